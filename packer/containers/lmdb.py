"""LMDB shards: one memory-mapped B+tree; choose it for random access with existing LMDB training code."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import lmdb
import numpy as np
from numpy.typing import NDArray

from packer.containers.container import (
    EXTENSIONS,
    HEADER_BYTES,
    IMAGE_EXTENSIONS,
    Entry,
    FileFormat,
    Place,
    PlaceList,
    Places,
    ShardSpec,
    image_file,
    npy_payload_offset,
)
from packer.errors import DamagedPack, printable
from packer.files.lmdb_values import MIB, disk_error, open_lmdb, values
from packer.model.annotation import EXTENSIONS as PART_EXTENSIONS
from packer.model.annotation import Record, parts_of
from packer.model.record_json import annotation_json, packer_annotation, part_sizes
from packer.system import sync_path
from packer.system.storage import storage_errors

_TRANSACTION_BYTES = 16 << 20
_MAP_BYTES = 64 * MIB
"""Address space, not disk, of a small file; doubled as it grows."""
_PAGE_BYTES = 4096
_LEAF_BYTES = _PAGE_BYTES - 16
"""What a page holds after its header."""
_INLINE_BYTES = _LEAF_BYTES // 2 - 2
"""A larger entry (MDB_env.me_nodemax) gets pages of its own; its leaf only refers to them."""
_ENTRY_BYTES = 8 + len("00000000.json") + 2
"""Header, key and index of an entry in a leaf."""
_REFERENCE_BYTES = _ENTRY_BYTES + 8
_SAMPLED_RECORDS = 4096
_EXTENSIONS = frozenset(extension.encode() for extension in IMAGE_EXTENSIONS)


class LmdbWriter:
    """Puts KEY.EXT and KEY.json of each record, in transactions of about 16 MiB."""

    def __init__(self, path: str, spec: ShardSpec) -> None:
        self._path = path
        self._classes = spec.classes
        self._parts = spec.parts
        self._pending: list[tuple[bytes, bytes]] = []
        self._pending_bytes = 0
        self._last_key = ""
        with storage_errors(path):
            open(path, "xb").close()  # lmdb would open an existing file
        # no sync per transaction: the file counts only after close(), which syncs all of it
        self._env = open_lmdb(path, map_size=_MAP_BYTES, sync=False, metasync=False)
        self._map_bytes = _MAP_BYTES
        self._content_bytes = 0

    def write(self, record: Record) -> None:
        if record.key <= self._last_key:
            raise ValueError(f"keys must increase, got {record.key!r} after {self._last_key!r}")
        text = annotation_json(record, self._classes).encode("ascii")
        image = f"{record.key}.{EXTENSIONS[record.encoding]}".encode("ascii"), b"".join(image_file(record))
        self._last_key = record.key
        parts = [
            (f"{record.key}.{name}.{PART_EXTENSIONS[part.encoding]}".encode("ascii"), part.data)
            for name, part in parts_of(record, self._parts).items()
        ]
        # append mode needs key order: .jpg comes before .json, .npy after it
        self._pending += sorted([image, *parts, (f"{record.key}.json".encode("ascii"), text)])
        self._pending_bytes += len(image[1]) + len(text) + sum(len(data) for _, data in parts)
        if self._pending_bytes >= _TRANSACTION_BYTES:
            self._commit()

    def close(self) -> Places:
        with storage_errors(self._path):
            try:
                self._commit()
                self._env.sync(True)
            except lmdb.Error as error:
                raise disk_error(self._path, error) from error
            finally:
                self._env.close()
            sync_path(self._path)
        # only LMDB knows where it puts values, and reveals it only through the addresses of its map
        found = PlaceList(self._parts)
        for entry in scan(self._path, frozenset(part.name.encode("ascii") for part in self._parts)):
            found.add((entry.offset, entry.size), entry.parts)
        return found.places()

    def _commit(self) -> None:
        """Write the pending records in one transaction."""
        if not self._pending:
            return
        # the file says how large its map was: that follows from the records alone, not from a plan
        self._content_bytes += self._pending_bytes + len(self._pending) * _PAGE_BYTES
        while self._map_bytes < 2 * self._content_bytes:
            self._map_bytes *= 2
        with storage_errors(self._path):
            try:
                self._env.set_mapsize(self._map_bytes)
                with self._env.begin(write=True) as transaction, transaction.cursor() as cursor:
                    cursor.putmulti(self._pending, append=True)
            except lmdb.Error as error:
                raise disk_error(self._path, error) from error
        self._pending, self._pending_bytes = [], 0


class LmdbContainer(FileFormat):
    """``--format lmdb``."""

    def stored_bytes(self, image_bytes: NDArray[np.int64], note_bytes: float) -> int:
        """Return the approximate size of the file.

        Small entries share pages, in the order in which they are appended; the pages of a sample of the records are
        filled to see how well that goes.

        Args:
            image_bytes: Size of each image file, (n,).
            note_bytes: Mean size of the annotations.
        """
        alone = image_bytes + _ENTRY_BYTES > _INLINE_BYTES
        pages = int((((image_bytes[alone] + 15) // _PAGE_BYTES) + 1).sum())
        entries = np.where(alone, _REFERENCE_BYTES, image_bytes + _ENTRY_BYTES)
        note = int(note_bytes) + _ENTRY_BYTES
        if note > _INLINE_BYTES:
            pages += len(image_bytes) * (int(note_bytes + 15) // _PAGE_BYTES + 1)
            note = _REFERENCE_BYTES
        drawn = np.unique(np.linspace(0, len(entries) - 1, min(_SAMPLED_RECORDS, len(entries))).astype(int))
        leaves, free = 0, 0
        for image in entries[drawn].tolist():
            for size in (image, note):
                if size > free:
                    leaves, free = leaves + 1, _LEAF_BYTES
                free -= size
        share = leaves / max(1, len(drawn))
        return int((pages + share * len(entries) * 1.01 + 2) * _PAGE_BYTES)  # a hundredth: the inner nodes of the tree


def scan(path: str, own: frozenset[bytes] | None = None) -> Iterator[Entry]:
    """Yield the images.

    Args:
        path: The file.
        own: The names of the parts of records that were written just now, whose annotations nobody needs. None: of any
            file.
    """
    images: list[Entry] = []
    parts: dict[str, Place] = {}
    record, note, names = b"", None, own or frozenset[bytes]()
    for key, offset, value, get in values(path):
        base, _, extension = key.partition(b".")
        if base != record:
            yield from (image._replace(parts=parts) for image in images)
            record, images, parts = base, [], {}
            if own is None:
                note = _note(base, get)
                names = _part_names(path, base, note)
        name = base.decode("utf-8", "backslashreplace")
        if (part := extension.partition(b".")[0]) in names:
            parts[part.decode("ascii")] = offset, len(value)
        elif extension in _EXTENSIONS:
            header = _header_bytes(path, name, value)
            images.append(Entry(name, offset + header, len(value) - header, note))
    yield from (image._replace(parts=parts) for image in images)


def _note(key: bytes, get: Callable[[bytes], Any]) -> bytes | None:
    found = get(key + b".json")
    return packer_annotation(None if found is None else bytes(found))


def _part_names(path: str, key: bytes, note: bytes | None) -> frozenset[bytes]:
    try:
        return frozenset(part.encode("ascii") for part in part_sizes(note))
    except ValueError as error:
        record = printable(key.decode("utf-8", "backslashreplace"))
        raise DamagedPack(path, f"the annotation of {record} cannot be read: {error}") from error


def _header_bytes(path: str, key: str, value: memoryview) -> int:
    try:
        return npy_payload_offset(value[:HEADER_BYTES].tobytes())
    except ValueError as error:
        raise DamagedPack(path, f"the value of {printable(key)} is not an image: {error}") from error


CONTAINER = LmdbContainer("lmdb", ".lmdb", block_bytes=_PAGE_BYTES, overhead_bytes=256, create=LmdbWriter, scan=scan)
