"""HDF5 shards: one array per field; choose it for h5py, MATLAB and other tools that slice arrays."""

from __future__ import annotations

import io
import math
import os
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import h5py
import numpy as np

from packer.containers.arrays import BytesColumn, CollectingWriter, part_places
from packer.containers.container import Entry, FileFormat, Places, ShardSpec
from packer.errors import DamagedPack
from packer.files.hdf5_datasets import contiguous_offset, own_dataset, values_of
from packer.model.record_json import packer_annotation
from packer.system.storage import storage_errors


class SafeFile(io.RawIOBase):
    """The file that HDF5 writes through, which defers a write error until finish().

    After a failed write HDF5 cannot close its file, and crashes the process with SIGSEGV at exit.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._error: OSError | None = None
        with storage_errors(path):
            # unbuffered: HDF5 has its own buffers, and a write must not fail in a later seek
            self._file = open(path, "x+b", buffering=0)  # noqa: SIM115

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        got = self._file.readinto(view) or 0
        view[got:] = bytes(len(view) - got)  # HDF5 may read back data whose write failed
        return len(view)

    def write(self, data: Any) -> int:
        rest = memoryview(data).cast("B")
        total = len(rest)
        try:
            while self._error is None and len(rest):
                rest = rest[self._file.write(rest) :]
        except OSError as error:
            self._error = error
        return total

    def truncate(self, size: int | None = None) -> int:
        try:
            return self._file.truncate(size)
        except OSError as error:
            self._error = self._error or error
            return size or 0

    def flush(self) -> None:
        """Do nothing: finish() syncs the file."""

    def close(self) -> None:
        """Close the file unfinished; Python calls this for an abandoned writer."""
        if hasattr(self, "_file"):
            self._file.close()
        super().close()

    def finish(self) -> None:
        """Fsync and close the file. Raise StorageError if a write has failed."""
        with storage_errors(self._path), self:
            if self._error is not None:
                raise self._error
            os.fsync(self._file.fileno())


_BLOCK_BYTES = 4 << 20
_TEXTS = ("annotations", "annotation_offsets")


class Hdf5Writer(CollectingWriter):
    """Collects the shard, then writes it in close().

    A contiguous dataset needs its final size, which is known after the last record. Until then the images are
    kept in memory, or beyond 256 MiB in an unnamed file beside the shard.
    """

    def __init__(self, path: str, spec: ShardSpec) -> None:
        super().__init__(path, spec)
        self._file = SafeFile(path)
        self._images = BytesColumn(path)

    def _append_image(self, data: bytes) -> None:
        self._images.append(data)

    def close(self) -> Places:
        with storage_errors(self._path):
            try:
                # the earliest format version, which any HDF5 library reads
                with h5py.File(self._file, "w", libver="earliest") as file:
                    self._write_all(file)
                    base = contiguous_offset(file["images"])
                    parts = {
                        name: self._parts.places(name, contiguous_offset(file[name])) for name in self._parts.columns
                    }
            except (OSError, RuntimeError):
                self._file.finish()  # raises the disk's error, if that is the reason
                raise
        offsets = self._images.offsets()
        self._images.close()
        self._texts.close()
        self._file.finish()
        return Places(base + offsets[:-1], np.diff(offsets), parts)

    def _write_all(self, file: Any) -> None:
        self._write_images(file)
        _fill(file, "annotations", self._texts, np.dtype(np.uint8), ())
        file["annotation_offsets"] = self._texts.offsets()
        joined, bounds = self._keys.read(0, self._keys.total), self._keys.offsets().tolist()
        file["keys"] = _fixed_texts([joined[start:stop] for start, stop in pairwise(bounds)])
        # a dataset, because an attribute is limited to 64 KiB
        file["classes"] = _fixed_texts([name.encode("utf-8", "surrogateescape") for name in self._spec.classes])
        for name, array in self._columns.arrays().items():
            file[name] = array
        for name, column in self._parts.columns.items():
            shape, dtype = self._parts.form_of(name)
            _fill(file, name, column, dtype, shape[1:])
            file[f"{name}_offsets"] = column.offsets()

    def _write_images(self, file: Any) -> None:
        file.attrs["encoding"] = np.bytes_(self._encoding())
        if self._item_shape is not None:
            _fill(file, "images", self._images, np.dtype(self._spec.dtype), self._item_shape)
            return
        _fill(file, "images", self._images, np.dtype(np.uint8), ())
        file["image_offsets"] = self._images.offsets()
        file["image_shapes"] = np.array(self._shapes, np.int64).reshape(-1, 3)


def _fixed_texts(texts: list[bytes]) -> Any:
    return np.array(texts, f"S{max(map(len, texts), default=1)}")


def scan(path: str) -> Iterator[Entry]:
    """Yield the records of a file that `Hdf5Writer` wrote."""
    try:
        file_bytes = os.path.getsize(path)
        with h5py.File(path, "r", locking=False) as file:
            found = {name: own_dataset(file, name) for name in ("images", "keys", *_TEXTS)}
            if missing := [name for name, dataset in found.items() if dataset is None]:
                raise ValueError(f"it has no dataset {missing[0]}")
            images = found["images"]
            base, offsets = contiguous_offset(images), _image_offsets(file, images, file_bytes).tolist()
            keys = values_of(found["keys"], file_bytes).tolist()
            contiguous_offset(found["annotations"])
            texts, bounds = (values_of(found[name], file_bytes) for name in _TEXTS)
            texts, bounds = texts.tobytes(), bounds.tolist()
            places = dict(_part_bounds(file, file_bytes))
        if len(keys) != len(offsets) - 1:
            raise ValueError(f"{len(keys)} keys for {len(offsets) - 1} images")
        if len(bounds) != len(offsets) or bounds[0] != 0 or bounds[-1] != len(texts):
            raise ValueError("annotation_offsets do not cover the annotations")
        if base + offsets[-1] > file_bytes:
            raise ValueError("the images extend beyond the end of the file")
        for number, (start, stop) in enumerate(pairwise(offsets)):
            text = packer_annotation(texts[bounds[number] : bounds[number + 1]])
            parts = {} if text is None else part_places(text, number, places)
            yield Entry(keys[number].decode("utf-8", "backslashreplace"), base + start, stop - start, text, parts)
    except (OSError, KeyError, ValueError, TypeError, AttributeError, RuntimeError) as error:
        raise DamagedPack(path, f"not an HDF5 file of images: {error}") from error


def _part_bounds(file: Any, file_bytes: int) -> Iterator[tuple[str, Any]]:
    """Yield the name of each part, and where each record begins in its dataset, as places in the file."""
    for name in [name.removesuffix("_offsets") for name in file if name.endswith("_offsets")]:
        content, offsets = own_dataset(file, name), own_dataset(file, f"{name}_offsets")
        if content is not None and offsets is not None and content.dtype.kind in "uf":
            yield name, contiguous_offset(content) + _bounds(offsets, content, file_bytes, name)


def _bounds(offsets: Any, content: Any, file_bytes: int, name: str, covered: str = "") -> Any:
    """Return offsets in a dataset as an array. Raise ValueError if they do not divide it."""
    bounds = values_of(offsets, file_bytes)
    total = content.size * content.dtype.itemsize
    if len(bounds) < 1 or bounds[0] != 0 or bounds[-1] != total or (np.diff(bounds) < 0).any():
        raise ValueError(f"{name}_offsets do not cover {covered or name}")
    return bounds


def _fill(file: Any, name: str, content: BytesColumn, dtype: Any, item_shape: tuple[int, ...]) -> None:
    """Write the dataset `name`, items of one shape, in blocks of a few MiB."""
    item_bytes = int(np.prod(item_shape, dtype=np.int64)) * dtype.itemsize
    count = content.total // item_bytes
    dataset = file.create_dataset(name, (count, *item_shape), dtype)
    block_items = max(1, _BLOCK_BYTES // item_bytes)
    for start in range(0, count, block_items):
        stop = min(start + block_items, count)
        block = np.frombuffer(content.read(start * item_bytes, stop * item_bytes), dtype)
        dataset[start:stop] = block.reshape(-1, *item_shape)


def _image_offsets(file: Any, images: Any, file_bytes: int) -> Any:
    """Return the offset of each image in `images`, and the end, int64 (n + 1,)."""
    if (offsets := own_dataset(file, "image_offsets")) is not None:
        return _bounds(offsets, images, file_bytes, "image", "the images")
    image_bytes = math.prod(images.shape[1:]) * images.dtype.itemsize
    if len(images) * max(1, image_bytes) > file_bytes:  # before there is a number for each
        raise ValueError("the images extend beyond the end of the file")
    return np.arange(len(images) + 1, dtype=np.int64) * image_bytes


CONTAINER = FileFormat("hdf5", ".hdf5", block_bytes=1, overhead_bytes=192, create=Hdf5Writer, scan=scan)
