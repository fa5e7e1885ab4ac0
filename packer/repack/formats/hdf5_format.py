"""HDF5 files: an uncompressed dataset of images (n, height, width[, channels]), or of the bytes of image files.

https://docs.hdfgroup.org/archive/support/HDF5/doc/H5.format.html, III.E: bytes of variable length are in global heaps.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from typing import Any

import h5py
import numpy as np

from packer.containers.hdf5 import CONTAINER
from packer.errors import DamagedPack, UsageError, option, printable
from packer.files.hdf5_datasets import check_within, contiguous_offset, own_dataset, values_of, within_file
from packer.repack.formats import (
    LABEL_NAMES,
    ForeignFile,
    Format,
    Known,
    Pixels,
    Row,
    class_of,
    packer_rows,
)
from packer.repack.formats.array_formats import more_images, named_labels, rows_of, unread_labels

IMAGES = ("images", "image", "imgs", "img", "x", "X", "x_train", "X_train", "data", "jpeg", "jpegs", "pixels")
LABELS = (*LABEL_NAMES, "targets", "y_train", "Y", "classes")
NAMES = ("classes", "class_names", "label_names")
AGAIN = "write it again uncompressed and in one piece: h5repack -f NONE -l CONTI IN OUT"
ERRORS = (OSError, KeyError, ValueError, TypeError, AttributeError, RuntimeError, struct.error, IndexError)
REFERENCE = np.dtype([("size", "<u4"), ("heap", "<u8"), ("number", "<u4")])
"""Of bytes of variable length: their length, the address of their heap, and their number in it."""
_HEAP = struct.Struct("<4sB3xQ")
_OBJECT = struct.Struct("<HH4xQ")


class Hdf5(Format):
    """Reads the images of a dataset; the roles are image and label, the names of datasets."""

    def __call__(self, file: ForeignFile) -> Iterator[Row]:
        try:
            with h5py.File(file.path, "r", locking=False) as content:
                if own_dataset(content, "annotation_offsets") is not None and not self.columns:
                    self.titles = _texts(file, content, "classes") or ()
                    yield from packer_rows(CONTAINER.scan(file.path), file)
                    return
                yield from self._rows(file, content)
        except UsageError:
            raise
        except DamagedPack as error:
            raise file.damaged(error.problem) from None
        except ERRORS as error:
            raise file.damaged(f"not an HDF5 file of images: {error}") from None

    def _rows(self, file: ForeignFile, content: Any) -> Iterator[Row]:
        images = self._images(file, content)
        _check_images(file, images)
        labels = self._labels(file, content, images.shape[0] if images.shape else 0)
        own = {str(name): one for name in content if (one := own_dataset(content, name)) is not None}
        shapes = {name: one.shape for name, one in own.items() if one.shape}
        if (name := images.name.lstrip("/")) in shapes:
            self.notes += self._unread(file, own, shapes, name) if labels is None else ()
            self.notes += more_images(shapes, name)
        names = next((found for name in NAMES if (found := _texts(file, content, name)) is not None), None)
        self.classes, labels = named_labels(names or (), labels)
        if _is_of_any_size(images):
            rows = _vlen_images(file, content, images)
        elif images.chunks is not None:
            rows = _chunk_images(file, images)
        else:
            yield from rows_of(file, (images.shape, False, images.dtype, contiguous_offset(images)), labels)
            return
        for number, (offset, size, pixels) in enumerate(rows):
            yield b"%08d" % number, offset, size, None if labels is None else labels[number], pixels

    def _unread(self, file: ForeignFile, content: Any, shapes: Any, images: str) -> Iterator[str]:
        """Yield notes of labels that are not read; texts of another number are names of classes."""
        numbers = {name: shape for name, shape in shapes.items() if content[name].dtype.kind in "iubf"}
        return unread_labels(file, numbers | {images: shapes[images]}, images, LABELS[:-1], "image" in self.columns)

    def _images(self, file: ForeignFile, content: Any) -> Any:
        asked = self.columns.get("image")
        found = [name for name in ((asked,) if asked else IMAGES) if own_dataset(content, name) is not None]
        if not found and not asked:
            found = [name for name in content if (one := own_dataset(content, name)) is not None and len(one.shape) > 2]
            if len(found) > 1:
                problem = f"has several datasets that may be images: {', '.join(map(printable, found))}"
                raise UsageError(file.path, problem, "name one: --columns=image=NAME --columns=label=NAME")
        if not found:
            names = ", ".join(printable(str(name)) for name in content)
            raise UsageError(file.path, f"has no dataset of images (it has {names})", "name it: --columns=image=NAME")
        return own_dataset(content, found[0])

    def _labels(self, file: ForeignFile, content: Any, count: int) -> list[Known] | None:
        asked = self.columns.get("label")
        for name in (asked,) if asked else LABELS:
            dataset = own_dataset(content, name)
            if dataset is None or dataset.shape not in ((count,), (count, 1)):
                continue
            texts = _values(file, content, dataset)
            return [class_of(value, None, f"{file.name} (row {row})") for row, value in enumerate(texts)]
        if asked:
            raise UsageError(
                option("columns"), f"{printable(asked)} is not a dataset of {count} labels", "name another"
            )
        return None


def _is_of_any_size(dataset: Any) -> bool:
    """Return whether its values are texts or bytes of variable length."""
    return h5py.check_vlen_dtype(dataset.dtype) is not None or h5py.check_string_dtype(dataset.dtype) is not None


def _check_images(file: ForeignFile, images: Any) -> None:
    """Check that the images are in the file, and as many as it can hold: nothing is read before. Raise UsageError."""
    _check_own(file, images)
    if images.chunks is not None and images.id.get_create_plist().get_nfilters():
        raise UsageError(file.path, f"the dataset {printable(images.name)} is compressed", AGAIN)
    size = REFERENCE.itemsize if _is_of_any_size(images) else math.prod(images.shape[1:]) * images.dtype.itemsize
    if images.shape and images.shape[0] * max(1, size) > file.size:
        raise file.damaged(f"is truncated: {images.shape[0]} images of {size} bytes are more than it holds")


def _check_own(file: ForeignFile, dataset: Any) -> None:
    if dataset.is_virtual or dataset.external:
        raise UsageError(file.path, f"the dataset {printable(dataset.name)} is in other files", AGAIN)


def _values(file: ForeignFile, content: Any, dataset: Any) -> list[Any]:
    """Return the values of a dataset, bytes as text. Raise UsageError or ValueError before too many are read."""
    _check_own(file, dataset)
    check_within(dataset, file.size)
    info = h5py.check_string_dtype(dataset.dtype)
    if info is not None and info.length is None and len(dataset.shape) == 1 and _is_plain(dataset):
        places = _vlen_images(file, content, dataset)  # a hundred times as fast as one at a time
        values = list(within_file((bytes(file.view[at : at + size]) for at, size, _ in places), dataset, file.size))
    else:
        values = values_of(dataset, file.size).reshape(-1).tolist()
    return [value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else value for value in values]


def _is_plain(dataset: Any) -> bool:
    """Return whether all values of a dataset are in the file as they are."""
    if dataset.chunks is None:
        return dataset.id.get_offset() is not None
    chunks = -(-dataset.shape[0] // dataset.chunks[0])
    return not dataset.id.get_create_plist().get_nfilters() and dataset.id.get_num_chunks() == chunks


def _texts(file: ForeignFile, content: Any, name: str) -> tuple[str, ...] | None:
    dataset = own_dataset(content, name)
    if dataset is None or len(dataset.shape) != 1 or dataset.dtype.kind not in "SO":
        return None
    return tuple(map(str, _values(file, content, dataset))) or None


def _chunks(file: ForeignFile, dataset: Any) -> dict[int, int]:
    """Return where each chunk begins in the file, by its first row. Raise UsageError if they cut images in pieces."""
    name = printable(dataset.name)
    if dataset.chunks[1:] != dataset.shape[1:]:
        raise UsageError(
            file.path, f"the dataset {name} has chunks {dataset.chunks}, which cut images in pieces", AGAIN
        )
    found: dict[int, int] = {}
    for number in range(dataset.id.get_num_chunks()):
        chunk = dataset.id.get_chunk_info(number)
        found[chunk.chunk_offset[0]] = chunk.byte_offset
    return found


def _chunk_images(file: ForeignFile, dataset: Any) -> Iterator[tuple[int, int, Pixels | None]]:
    """Yield the images of a dataset whose chunks are whole images; one that was never written has no bytes."""
    chunks, rows = _chunks(file, dataset), dataset.chunks[0]
    if len(chunks) * rows < dataset.shape[0]:
        raise ValueError("some of its chunks were never written")
    array = (1, *dataset.shape[1:]), False, dataset.dtype, 0
    ((_, _, size, _, pixels),) = rows_of(file, array, None)  # checks shape and type
    for row in range(dataset.shape[0]):
        start = chunks.get(row - row % rows)
        yield (0, 0, pixels) if start is None else (start + row % rows * size, size, pixels)


def _vlen_images(file: ForeignFile, content: Any, dataset: Any) -> Iterator[tuple[int, int, Pixels | None]]:
    """Yield the bytes of variable length in a dataset (n,)."""
    if len(dataset.shape) != 1:
        raise UsageError(file.path, f"the dataset {printable(dataset.name)} is not one image a row", AGAIN)
    if dataset.chunks is None:
        offset = dataset.id.get_offset()
        parts = [] if offset is None else [(0, dataset.shape[0], offset)]
    else:
        chunks = _chunks(file, dataset)
        parts = [(row, min(dataset.chunks[0], dataset.shape[0] - row), at) for row, at in sorted(chunks.items())]
    heaps: dict[int, dict[int, tuple[int, int]]] = {}
    following = seen = 0
    for first, count, at in parts:
        if first != following or at + count * REFERENCE.itemsize > file.size:
            raise ValueError("rows are missing")
        following = first + count
        data = file.view[at : at + count * REFERENCE.itemsize]
        for row, (size, heap, number) in enumerate(np.frombuffer(data, REFERENCE).tolist(), first):
            if not size:
                yield 0, 0, None
                continue
            if heap not in heaps:
                heaps[heap], heap_bytes = _heap(file, heap + content.userblock_size)
                seen += heap_bytes
                if seen > file.size:  # else a small file could be read for hours
                    raise ValueError("its heaps overlap")
            start, length = heaps[heap].get(number, (0, -1))
            if length < size:
                raise ValueError(f"row {row} is not in its heap")
            if row == 0 and bytes(file.view[start : start + size]) != _first(dataset):
                raise ValueError("its images are not where they should be")
            yield start, size, None


def _first(dataset: Any) -> bytes:
    value = dataset[0]
    return value if isinstance(value, bytes) else np.asarray(value).tobytes()


def _heap(file: ForeignFile, at: int) -> tuple[dict[int, tuple[int, int]], int]:
    """Return the place of each object in a global heap, by number, and the bytes of the heap."""
    signature, version, size = _HEAP.unpack(file.view[at : at + _HEAP.size])
    if signature != b"GCOL" or version != 1 or size > file.size - at:
        raise ValueError(f"no heap at byte {at}")
    found = {}
    end = at + size
    at += _HEAP.size
    while at + _OBJECT.size <= end:
        number, _, length = _OBJECT.unpack(file.view[at : at + _OBJECT.size])
        at += _OBJECT.size
        if not number or length > end - at:
            break
        found[number] = at, length
        at += length + -length % 8
    return found, size
