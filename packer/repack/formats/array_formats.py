"""Arrays of images, stored as they are: .npy, Zarr and N5 in one zip file, files of torch.save, and IDX."""

from __future__ import annotations

import io
import os
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any

import numpy as np

from packer.containers.arrays import scan_entries
from packer.errors import DamagedPack, UsageError, option, printable
from packer.files.array_files import ArrayFile, Chunks, open_n5, open_zarr
from packer.files.torch_tensors import open_tensors
from packer.repack.formats import LABEL_NAMES, ForeignFile, Format, Pixels, Row, packer_rows

MOST_HEADER_BYTES = 4096
MOST_LABEL_BYTES = 1 << 30


class Npy(Format):
    """Reads the images of an array; ``--labels`` is a .npy file of class numbers or names, (n,)."""

    roles = ()
    has_labels = False

    def __call__(self, file: ForeignFile) -> Iterator[Row]:
        try:
            shape, fortran, dtype, start = header_of(file.view[:MOST_HEADER_BYTES])
        except ValueError as error:
            raise file.damaged(f"is not an array that packer reads: {error}", "save it again: numpy.save") from None
        labels = labels_in(self.options.labels, shape[0] if shape else 0)
        yield from rows_of(file, (shape, fortran, dtype, start), labels)


def header_of(head: bytes) -> tuple[tuple[int, ...], bool, Any, int]:
    """Return shape, order, dtype and first byte of an array. Raise ValueError if it is not an array, or has objects."""
    stream = io.BytesIO(head)
    try:
        version = np.lib.format.read_magic(stream)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = read(stream)
    except Exception as error:  # numpy reads it as a Python literal, which may fail in many ways
        raise ValueError(str(error).partition("\n")[0]) from None
    if dtype.hasobject:
        raise ValueError("it holds Python objects, which packer never reads")
    return shape, fortran, dtype, stream.tell()


def rows_of(
    file: ForeignFile, array: tuple[tuple[int, ...], bool, Any, int], labels: list[Any] | None
) -> Iterator[Row]:
    """Yield the images of an array of the given (shape, Fortran order, dtype, first byte). Raise UsageError."""
    shape, fortran, dtype, start = array
    step = "save it as uint8 or uint16 (n, height, width, channels), in C order: numpy.save"
    if fortran or len(shape) not in (3, 4) or dtype.name not in ("uint8", "uint16") or dtype.byteorder == ">":
        order = " in Fortran order" if fortran else ""
        raise UsageError(
            file.path, f"is an array of {dtype.str} {shape}{order}: its images are not rows of pixels", step
        )
    count, height, width = shape[:3]
    channels = shape[3] if len(shape) == 4 else 1
    if len(shape) == 4 and channels > 4 and height in (1, 3, 4):
        problem = f"is an array of shape {shape}: its colors lie in {height} planes, not pixel by pixel"
        raise UsageError(file.path, problem, "save it as (n, height, width, channels): array.transpose(0, 2, 3, 1)")
    size = height * width * channels * dtype.itemsize
    if size < 1:
        raise file.damaged(f"has images of {height}x{width} pixels")
    if min(shape) < 0 or start + count * size > file.size:
        raise file.damaged(f"is truncated: {count} images of {size} bytes are more than it holds")
    if labels is not None and len(labels) != count:
        raise UsageError(file.path, f"has {count} images, but there are {len(labels)} labels", "give its own labels")
    pixels = Pixels(height, width, channels, dtype.name)
    for number in range(count):
        known = None if labels is None else labels[number]
        yield b"%08d" % number, start + number * size, size, known, pixels


def unread_labels(
    file: ForeignFile, shapes: Mapping[str, tuple[int, ...]], images: str, names: Sequence[str], named: bool
) -> Iterator[str]:
    """Yield what the user should know of a file of several arrays, of which none is taken for labels.

    Args:
        file: The file.
        shapes: Its arrays of numbers.
        images: The array of images.
        names: Those that labels have.
        named: Whether the user has named the array of images.

    Raises:
        UsageError: An array that is named as labels are has one for each of another number of images.
    """
    count = shapes[images][0]
    unfit = next((name for name in names if len(shapes.get(name, ())) in (1, 2)), None)
    fit = [name for name, shape in shapes.items() if shape == (count,) and name not in (images, unfit)]
    step = f"; {printable(fit[0])} could be: --columns label={shlex.quote(printable(fit[0]))}" if fit else ""
    if unfit is not None:
        shape = shapes[unfit]
        if not named and shape[0] != count and (len(shape) == 1 or shape[1:] == (1,)):
            problem = f"has {count} images in {printable(images)}, but {shape[0]} labels in {printable(unfit)}"
            image = shlex.quote(f"image={printable(images)}")
            step = f"name others: --columns=label=NAME; without labels: --columns={image}"
            raise UsageError(file.path, problem, step)
        given = "x".join(map(str, shape))
        yield f"{printable(unfit)} ({given}) is not a class for each image, so that the images have no label{step}"
    elif fit:
        yield f"no array is named as labels are, so that the images have no label{step}"


def more_images(shapes: Mapping[str, tuple[int, ...]], images: str) -> Iterator[str]:
    """Yield a note if other arrays look like images, too."""
    shape = shapes[images]
    others = [name for name, other in shapes.items() if name != images and len(shape) > 2 and other[1:] == shape[1:]]
    if others:
        given = ", ".join(map(printable, others))
        yield f"only the images of {printable(images)} are taken, not those of {given}: --columns image=NAME"


def labels_in(path: str | None, count: int) -> list[Any] | None:
    """Return the classes in a file of `--labels`: a .npy array (n,) of numbers or texts, or IDX. Raise UsageError."""
    if path is None:
        return None
    step = "give a .npy file of class numbers or names, one for each image, or an IDX file of labels"
    try:
        with open(path, "rb") as file:
            data = file.read(MOST_LABEL_BYTES + 1)
    except OSError as error:
        raise UsageError(path, f"cannot be read: {error.strerror}", step) from None
    try:
        if data[:4] == b"\0\0\x08\1":
            array: Any = np.frombuffer(data, np.uint8, -1, 8)
            shape: tuple[int, ...] = (int.from_bytes(data[4:8], "big"),)
        else:
            shape, _, dtype, start = header_of(data[:MOST_HEADER_BYTES])
            array = np.frombuffer(data, dtype, -1, start)
        if len(shape) == 2 and shape[1] == 1:
            shape = shape[:1]
        if len(data) > MOST_LABEL_BYTES or len(shape) != 1 or len(array) != shape[0] or array.dtype.kind not in "iuUS":
            raise ValueError(f"it has the shape {shape} and the type {array.dtype}")
    except ValueError as error:
        raise UsageError(path, f"is not a list of labels: {error}", step) from None
    if array.dtype.kind == "S":
        return [text.decode("utf-8", "surrogateescape") or None for text in array.tolist()]
    return [value if value != "" else None for value in array.tolist()]


IMAGES = ("images", "image", "imgs", "img", "x", "X", "data", "pixels", "0")
LABELS = (*LABEL_NAMES, "targets", "Y", "1")
MOST_WHOLE = 1 << 31
NAMES = ("classes", "class_names", "label_names")
"""Attributes with the names of classes, in the order of their numbers."""


class Arrays(Format):
    """Reads the images of an array; the roles are image and label, the names of arrays.

    Subclasses say how a file is opened.
    """

    open_arrays: Callable[[str], AbstractContextManager[ArrayFile]]
    """Opens a file."""
    again = ""
    """How to write an array as it is."""

    def __call__(self, file: ForeignFile) -> Iterator[Row]:
        try:
            with self.open_arrays(file.path) as arrays:
                if "annotation_offsets/" in arrays.axes and not self.columns:
                    self.titles = _texts(arrays.attributes.get("classes"))
                    yield from packer_rows(scan_entries(arrays), file)
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
            self.notes += unread_labels(file, shapes, folder.rstrip("/"), LABELS, "image" in self.columns)
        self.notes += more_images(shapes, folder.rstrip("/"))
        names = next((found for name in NAMES if (found := _texts(arrays.attributes.get(name)))), ())
        self.classes, labels = named_labels(names, labels)
        yield from _rows_of_chunks(file, images, labels)

    def _images(self, file: ForeignFile, arrays: ArrayFile) -> str:
        asked = self.columns.get("image")
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
        asked = self.columns.get("label")
        for name in (asked,) if asked else LABELS:
            found: list[Any] | None = None
            if arrays.axes.get(f"{name}/") in (1, 2):
                array = arrays.open(f"{name}/")
                if array.shape in ((count,), (count, 1)) and array.dtype.kind in "iubf":
                    found = _classes(array.read(arrays.data))
            elif isinstance(listed := arrays.attributes.get(name), list):
                found = _class_values(listed, count)
            if found is not None:
                return found
        if asked:
            problem = f"{printable(asked)} is not an array of {count} whole numbers"
            raise UsageError(option("columns"), problem, "name another: --columns=label=NAME")
        return None


def named_labels(names: tuple[str, ...], labels: list[Any] | None) -> tuple[tuple[str, ...] | None, list[Any] | None]:
    """Return the classes of a file that may have their names, and its labels by these names if they are numbers."""
    if not names or not all(type(label) is int and -1 <= label < len(names) for label in labels or ()):
        return None, labels
    return names, None if labels is None else [names[label] if label >= 0 else None for label in labels]


def _classes(values: Any) -> list[Any] | None:
    """Return an array of class numbers; they may be floats that are whole. None if it is something else."""
    numbers = values.reshape(-1)
    if values.dtype.kind == "f" and not ((np.abs(numbers) < MOST_WHOLE) & (numbers == np.trunc(numbers))).all():
        return None
    found: list[Any] = numbers.astype(np.int64).tolist()
    return found


def _class_values(values: list[Any], count: int) -> list[Any] | None:
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
    """Yield the items of an array, wherever its chunks are. Raise UsageError if they are not images."""
    first = (1, *images.shape[1:]), False, images.dtype, int(images.starts[0]) if len(images.starts) else 0
    ((_, _, size, _, pixels),) = rows_of(file, first, None)  # checks shape and type
    assert isinstance(pixels, Pixels)
    for number, offset in enumerate(images.offsets().tolist()):
        yield b"%08d" % number, offset, size, None if labels is None else labels[number], pixels


class Zarr(Arrays):
    """Zarr version 3 in a zip file."""

    open_arrays = staticmethod(open_zarr)
    again = "write it again with zarr 3, not compressed, a chunk of whole images: create_array(..., compressors=None)"


class N5(Arrays):
    """N5 in a zip file."""

    open_arrays = staticmethod(open_n5)
    again = "write it again with raw blocks of whole images"


class Pth(Arrays):
    """A dict of tensors, or one tensor, by torch.save."""

    open_arrays = staticmethod(open_tensors)
    again = 'save a dict of tensors: torch.save({"images": images, "labels": labels}, FILE)'


# IDX files, the format of MNIST: images (n, height, width), and a file of labels (n,) beside them.
#
# http://yann.lecun.com/exdb/mnist/: two zeros, the type (8: unsigned bytes), the number of dimensions, each dimension
# as 4 bytes with the highest first, then the bytes.


class Idx(Format):
    """Reads the images; their labels are in the file of ``--labels``, or in the one that MNIST's names mean."""

    roles = ()
    has_labels = False

    def __call__(self, file: ForeignFile) -> Iterator[Row]:
        dimensions = file.view[3] if file.size > 3 else 0
        if dimensions == 1:
            return  # labels, which are read with their images
        if dimensions not in (3, 4) or file.size < 4 + 4 * dimensions:
            raise file.damaged(f"is truncated, or has {dimensions} dimensions, which are not those of images")
        start = 4 + 4 * dimensions
        shape = tuple(int.from_bytes(file.view[at : at + 4], "big") for at in range(4, start, 4))
        labels = self.options.labels or self._beside(file)
        if labels is None:
            self.notes.append("no file of labels beside the images: --labels FILE names it")
        yield from rows_of(file, (shape, False, np.dtype(np.uint8), start), labels_in(labels, shape[0]))

    def _beside(self, file: ForeignFile) -> str | None:
        folder, name = os.path.split(file.path)
        found = os.path.join(folder, name.replace("images", "labels").replace("idx3", "idx1"))
        return found if "images" in name and os.path.isfile(found) else None
