"""PyTorch shards: one file of tensors as `torch.save` writes it; choose it for code that begins with `torch.load`.

The file is written without torch, so that it has the same bytes for any version of it: a zip of stored entries, one for
each tensor, and `data.pkl`, which names them (packer/containers/pth_pickle.py).
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator
from typing import Any
from zipfile import BadZipFile, ZipFile

import numpy as np

from packer.containers.annotation import annotation_json, packer_annotation
from packer.containers.base import Entry, Places, ShardSpec
from packer.containers.hdf5_columns import AnnotationColumns, BytesColumn
from packer.containers.npy import check_raw_size
from packer.containers.pth_pickle import Tensor, pickled, unpickled
from packer.containers.storage import NewFile, storage_errors
from packer.errors import DamagedPack
from packer.types import Record

_ALIGNMENT = 64
_LOCAL = struct.Struct("<4s5H3I2H")
_CENTRAL = struct.Struct("<4s6H3I5H2I")
_SIZES = struct.Struct("<4sI2Q")
"""After the data of an entry: its CRC-32 and its size, twice."""
_ZIP64 = struct.Struct("<2H3Q")
"""In the directory: the sizes and the position of an entry in 64 bits."""
_END64 = struct.Struct("<4sQ2H2I4Q4sIQI")
_END = struct.Struct("<4s4H2IH")
_STREAMED = 0x0808
"""Flags of an entry: its size follows its data, its name is UTF-8."""
_MOST = 0xFFFFFFFF
_NEW_YEAR_1980 = 0x21


class _Zip:
    """A zip file of stored entries, written from start to end, each entry at a multiple of 64 bytes."""

    def __init__(self, path: str) -> None:
        self._file = NewFile(path)
        self._bytes = 0
        self._directory: list[bytes] = []

    def begin(self, name: str) -> int:
        """Begin an entry and return where its data begin."""
        self._name, self._header, self._crc = f"archive/{name}".encode(), self._bytes, 0
        start = self._bytes + _LOCAL.size + len(self._name)
        extra = struct.pack("<2H16x", 1, 16)  # room for sizes of 64 bits
        extra += b"FB" + struct.pack("<H", fill := -(start + len(extra) + 4) % _ALIGNMENT) + b"Z" * fill
        fields = (b"PK\3\4", 45, _STREAMED, 0, 0, _NEW_YEAR_1980, 0, _MOST, _MOST, len(self._name), len(extra))
        self._append(_LOCAL.pack(*fields), self._name, extra)
        self._start = self._bytes
        return self._start

    def append(self, data: Any) -> None:
        """Add data to the entry."""
        self._crc = zlib.crc32(data, self._crc)
        self._append(data)

    def end(self) -> None:
        """End the entry."""
        size = self._bytes - self._start
        self._append(_SIZES.pack(b"PK\7\x08", self._crc, size, size))
        extra = _ZIP64.pack(1, 24, size, size, self._header)
        fields = (
            b"PK\1\2", 45, 45, _STREAMED, 0, 0, _NEW_YEAR_1980, self._crc, _MOST, _MOST, len(self._name), len(extra),
            0, 0, 0, 0, _MOST,
        )  # fmt: skip
        self._directory.append(_CENTRAL.pack(*fields) + self._name + extra)

    def add(self, name: str, data: Any) -> None:
        """Add a whole entry."""
        self.begin(name)
        self.append(data)
        self.end()

    def close(self) -> None:
        """Write the directory, and fsync the file."""
        start, count, directory = self._bytes, len(self._directory), b"".join(self._directory)
        sizes = (count, count, len(directory), start)
        end = (b"PK\6\6", _END64.size - 32, 45, 45, 0, 0, *sizes, b"PK\6\7", 0, start + len(directory), 1)
        self._append(directory, _END64.pack(*end), _END.pack(b"PK\5\6", 0, 0, count, count, _MOST, _MOST, 0))
        self._file.close()

    def _append(self, *parts: Any) -> None:
        self._file.append(*parts)
        self._bytes += sum(map(len, parts))


class PthWriter:
    """Writes the images as they come, as the first tensor, and the others in close()."""

    def __init__(self, path: str, spec: ShardSpec) -> None:
        self._path = path
        self._spec = spec
        self._zip = _Zip(path)
        self._images = self._zip.begin("data/0")
        self._sizes: list[int] = []
        self._keys: list[bytes] = []
        self._shapes: list[tuple[int, int, int]] = []
        self._encodings: set[str] = set()
        self._texts = BytesColumn(path)
        self._columns = AnnotationColumns()

    def write(self, record: Record) -> None:
        text = annotation_json(record, self._spec.classes).encode("ascii")
        if record.encoding == "raw":
            check_raw_size(record)
        if self._spec.shape is not None and record.shape != self._spec.shape:
            raise ValueError(f"record {record.key} of shape {record.shape}, planned: {self._spec.shape}")
        self._zip.append(record.data)
        with storage_errors(self._path):
            self._texts.append(text)
        self._sizes.append(len(record.data))
        self._keys.append(record.key.encode("ascii"))
        self._shapes.append(record.shape)
        self._encodings.add(record.encoding)
        self._columns.append(record.annotation)

    def close(self) -> Places:
        self._zip.end()
        offsets = np.cumsum([0, *self._sizes], dtype=np.int64)
        encoding = self._encodings.pop() if len(self._encodings) == 1 else self._spec.encoding
        tensors: dict[str, Any] = {}
        if self._spec.shape is not None and encoding == "raw":
            images = Tensor("0", self._spec.dtype, (len(self._keys), *self._spec.shape))
        else:
            images = Tensor("0", "uint8", (int(offsets[-1]),))
            tensors["image_offsets"] = offsets
            tensors["image_shapes"] = np.array(self._shapes, np.int64).reshape(-1, 3)
        keys = np.array(self._keys, f"S{max(map(len, self._keys), default=1)}")
        tensors["keys"] = keys.view(np.uint8).reshape(len(keys), keys.itemsize)
        tensors |= self._columns.arrays()
        with storage_errors(self._path):
            tensors["annotations"] = np.frombuffer(self._texts.read(0, self._texts.total), np.uint8)
        tensors["annotation_offsets"] = self._texts.offsets()
        self._texts.close()
        content: dict[str, Any] = {"images": images, "encoding": encoding, "classes": list(self._spec.classes)}
        for number, (name, array) in enumerate(tensors.items(), 1):
            self._zip.add(f"data/{number}", array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes())
            content[name] = Tensor(str(number), array.dtype.name, array.shape)
        for name, data in (("data.pkl", pickled(content)), ("byteorder", b"little"), ("version", b"3\n")):
            self._zip.add(name, data)
        self._zip.close()
        return Places(self._images + offsets[:-1], np.diff(offsets))


class PthContainer:
    """``--format pth``."""

    name = "pth"
    suffix = ".pth"
    block_bytes = 1
    overhead_bytes = 64

    def create(self, path: str, spec: ShardSpec) -> PthWriter:
        return PthWriter(path, spec)

    def scan(self, path: str) -> Iterator[Entry]:
        """Yield the items of the tensor ``images`` of a dict, or of a file of one tensor, which must be contiguous.

        Images of different sizes need ``image_offsets`` (docs/formats.md). The names come from ``keys``, or are
        numbers. Nothing is unpickled.
        """
        try:
            with ZipFile(path) as archive:
                yield from _Tensors(path, archive).entries()
        except FileNotFoundError as error:
            raise DamagedPack(path, "the shard is missing") from error
        except (OSError, BadZipFile, LookupError, ValueError, TypeError, struct.error, NotImplementedError) as error:
            if isinstance(error, DamagedPack):
                raise
            raise DamagedPack(path, f"not a torch.save file of images: {error}") from error


class _Tensors:
    """The tensors of a file."""

    def __init__(self, path: str, archive: ZipFile) -> None:
        self._path = path
        self._archive = archive
        (pickle,) = [name for name in archive.namelist() if name.count("/") == 1 and name.endswith("/data.pkl")]
        self._folder = pickle.removesuffix("data.pkl")
        content = unpickled(archive.read(pickle))
        self._content: dict[str, Any] = content if isinstance(content, dict) else {"images": content}

    def entries(self) -> Iterator[Entry]:
        images = self._content["images"]
        if not isinstance(images, Tensor):
            raise ValueError("its images are not one tensor")
        if not images.contiguous:
            raise ValueError("the tensor of images is not contiguous")
        base = self._offset(images)
        bounds = self._bounds("image_offsets", images.bytes)
        if bounds is None:
            size = images.bytes // max(1, images.shape[0])
            bounds = [size * i for i in range(images.shape[0] + 1)]
        count = len(bounds) - 1
        keys = [str(i) for i in range(count)]
        if "keys" in self._content:
            keys = [bytes(row).rstrip(b"\0").decode("utf-8", "backslashreplace") for row in self._array("keys")]
        texts, text_bounds = b"", None
        if "annotations" in self._content:
            texts = self._array("annotations").tobytes()
            text_bounds = self._bounds("annotation_offsets", len(texts))
        if len(keys) != count or (text_bounds is not None and len(text_bounds) != count + 1):
            raise ValueError(f"{len(keys)} keys for {count} images")
        for i, key in enumerate(keys):
            text = None if text_bounds is None else packer_annotation(texts[text_bounds[i] : text_bounds[i + 1]])
            yield Entry(key, base + bounds[i], bounds[i + 1] - bounds[i], text)

    def _bounds(self, name: str, total: int) -> list[int] | None:
        if name not in self._content:
            return None
        bounds = self._array(name)
        if bounds.ndim != 1 or not len(bounds) or bounds[0] != 0 or bounds[-1] != total or (np.diff(bounds) < 0).any():
            raise ValueError(f"{name} do not cover the tensor")
        return [int(bound) for bound in bounds]

    def _array(self, name: str) -> Any:
        """Read a tensor; zipfile verifies its CRC-32."""
        tensor = self._content[name]
        if not isinstance(tensor, Tensor) or not tensor.contiguous:
            raise ValueError(f"{name} is not a contiguous tensor")
        data = self._archive.read(f"{self._folder}data/{tensor.storage}")
        flat = np.frombuffer(data, np.dtype(tensor.dtype).newbyteorder("<"), -1, tensor.start)
        return flat[: int(np.prod(tensor.shape, dtype=np.int64))].reshape(tensor.shape)

    def _offset(self, tensor: Tensor) -> int:
        """Return where the data of a tensor begin in the file."""
        entry = self._archive.getinfo(f"{self._folder}data/{tensor.storage}")
        if entry.compress_type:
            raise ValueError("the tensor of images is compressed")
        with open(self._path, "rb") as file:
            file.seek(entry.header_offset)
            fields = _LOCAL.unpack(file.read(_LOCAL.size))
        start = entry.header_offset + _LOCAL.size + fields[-2] + fields[-1]
        if tensor.start + tensor.bytes > entry.file_size or start + entry.file_size > os.path.getsize(self._path):
            raise ValueError("the images extend beyond the end of their tensor")
        return int(start) + tensor.start


CONTAINER = PthContainer()
