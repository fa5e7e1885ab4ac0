"""Zarr and N5 in one zip file, and files of torch.save: an array of images, stored as it is, with labels in another."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext, suppress
from importlib import import_module
from typing import Any

import numpy as np

from packer.containers.arrays import scanned
from packer.errors import DamagedPack, UsageError, option, printable
from packer.files.array_files import ArrayFile, Chunks
from packer.repack.formats.base import LABEL_NAMES, ForeignFile, FormatOptions, Pixels, Row
from packer.repack.formats.npy import more_images, rows_of, unread_labels
from packer.repack.formats.packers import packer_rows

IMAGES = ("images", "image", "imgs", "img", "x", "X", "data", "pixels", "0")
LABELS = (*LABEL_NAMES, "targets", "Y", "1")
MOST_WHOLE = 1 << 31
NAMES = ("classes", "class_names", "label_names")
"""Attributes with the names of classes, in the order of their numbers."""


class Arrays:
    """Reads the images of an array; the roles are image and label, the names of arrays.

    Subclasses say how a file is opened.
    """

    home = ""
    """The module whose `open_arrays` opens it."""
    again = ""
    """How to write an array as it is."""

    def __init__(self, options: FormatOptions) -> None:
        self._columns = options.columns
        self.classes: tuple[str, ...] | None = None
        self.titles: tuple[str, ...] = ()
        self.notes: list[str] = []

    def __call__(self, file: ForeignFile) -> Iterator[Row]:
        try:
            with import_module(self.home).open_arrays(file.path) as arrays:
                if "annotation_offsets/" in arrays.axes and not self._columns:
                    self.titles = _texts(arrays.attributes.get("classes"))
                    yield from packer_rows(scanned(arrays), file)
                else:
                    yield from self._rows(file, arrays)
        except DamagedPack as error:
            raise file.damaged(error.problem, self.again) from None

    def _rows(self, file: ForeignFile, arrays: ArrayFile) -> Iterator[Row]:
        folder = self._images(file, arrays)
        images = arrays.open(folder)
        labels = self._labels(arrays, images.shape[0])
        shapes = _shapes(arrays, folder)
        if labels is None:
            self.notes += unread_labels(file, shapes, folder.rstrip("/"), LABELS, "image" in self._columns)
        self.notes += more_images(shapes, folder.rstrip("/"))
        names = next((found for name in NAMES if (found := _texts(arrays.attributes.get(name)))), ())
        if names and all(type(label) is int and -1 <= label < len(names) for label in labels or ()):
            self.classes = names
            labels = None if labels is None else [names[label] if label >= 0 else None for label in labels]
        yield from _rows_of_chunks(file, images, labels)

    def _images(self, file: ForeignFile, arrays: ArrayFile) -> str:
        asked = self._columns.get("image")
        for name in (asked,) if asked else IMAGES:
            if f"{name}/" in arrays.axes:
                return f"{name}/"
        large = [] if asked else [folder for folder, axes in arrays.axes.items() if axes >= 3]
        if len(large) == 1:
            return large[0]
        names = ", ".join(printable(folder.rstrip("/")) for folder in large or arrays.axes)
        if large:
            step = "name one: --columns=image=NAME --columns=label=NAME"
            raise UsageError(file.path, f"has several arrays that may be images: {names}", step)
        if not arrays.axes:
            raise UsageError(file.path, "has no array at all, hence no images", self.again)
        raise UsageError(file.path, f"has no array of images (it has {names})", "name it: --columns=image=NAME")

    def _labels(self, arrays: ArrayFile, count: int) -> list[Any] | None:
        asked = self._columns.get("label")
        for name in (asked,) if asked else LABELS:
            found: list[Any] | None = None
            if arrays.axes.get(f"{name}/") in (1, 2):
                array = arrays.open(f"{name}/")
                if array.shape in ((count,), (count, 1)) and array.dtype.kind in "iubf":
                    found = _classes(array.read(arrays.data))
            elif isinstance(listed := arrays.attributes.get(name), list):
                found = _listed(listed, count)
            if found is not None:
                return found
        if asked:
            problem = f"{printable(asked)} is not an array of {count} whole numbers"
            raise UsageError(option("columns"), problem, "name another: --columns=label=NAME")
        return None


def _classes(values: Any) -> list[Any] | None:
    """Return an array of class numbers; they may be floats that are whole. None if it is something else."""
    numbers = values.reshape(-1)
    if values.dtype.kind == "f" and not ((np.abs(numbers) < MOST_WHOLE) & (numbers == np.trunc(numbers))).all():
        return None
    found: list[Any] = numbers.astype(np.int64).tolist()
    return found


def _listed(values: list[Any], count: int) -> list[Any] | None:
    """Return a list of class numbers or of names; None if it is something else."""
    alike = any(all(type(value) is kind for value in values) for kind in (int, str))
    return values if alike and len(values) == count else None


def _shapes(arrays: ArrayFile, images: str) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the arrays that are stored as they are, and lengths of lists as those of arrays."""
    lists = {name: value for name, value in arrays.attributes.items() if name in LABELS and isinstance(value, list)}
    shapes: dict[str, tuple[int, ...]] = {
        name: (len(values),) for name, values in lists.items() if values and all(type(one) is int for one in values)
    }
    for folder in arrays.axes:
        with nullcontext() if folder == images else suppress(ValueError, LookupError):
            shapes[folder.rstrip("/")] = arrays.open(folder).shape
    return shapes


def _texts(value: Any) -> tuple[str, ...]:
    """Return a list of texts; empty if it is something else."""
    return tuple(value) if isinstance(value, list | tuple) and all(isinstance(one, str) for one in value) else ()


def _rows_of_chunks(file: ForeignFile, images: Chunks, labels: list[Any] | None) -> Iterator[Row]:
    """Yield the items of an array, wherever its chunks are. Raise UsageError if they are no images."""
    first = (1, *images.shape[1:]), False, images.dtype, int(images.starts[0]) if len(images.starts) else 0
    ((_, _, size, _, pixels),) = rows_of(file, first, None)  # checks shape and type
    assert isinstance(pixels, Pixels)
    for number, offset in enumerate(images.offsets().tolist()):
        yield b"%08d" % number, offset, size, None if labels is None else labels[number], pixels


class Zarr(Arrays):
    """Zarr version 3 in a zip file."""

    home = "packer.files.zarr_chunks"
    again = "write it again with zarr 3, not compressed, a chunk of whole images: create_array(..., compressors=None)"


class N5(Arrays):
    """N5 in a zip file."""

    home = "packer.files.n5_blocks"
    again = "write it again with raw blocks of whole images"


class Pth(Arrays):
    """A dict of tensors, or one tensor, by torch.save."""

    home = "packer.files.torch_tensors"
    again = 'save a dict of tensors: torch.save({"images": images, "labels": labels}, FILE)'
