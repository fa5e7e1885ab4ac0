"""LMDB shards: one memory-mapped B+tree; choose it for random access with existing LMDB training code."""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import lmdb
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer.containers.base import Entry, Place, PlaceList, Places, ShardSpec
from packer.containers.npy import (
    EXTENSIONS,
    HEADER_BYTES,
    IMAGE_EXTENSIONS,
    image_file,
    looks_like_image,
    npy_payload_offset,
)
from packer.containers.storage import mapped, storage_errors
from packer.errors import DamagedPack, StorageError, printable
from packer.model.annotation import Record
from packer.model.parts import EXTENSIONS as PART_EXTENSIONS
from packer.model.parts import parts_of
from packer.model.record_json import annotation_json, packer_annotation, part_sizes
from packer.system import sync_path

_TRANSACTION_BYTES = 16 << 20
_MIB = 1 << 20
_MAP_BYTES = 64 * _MIB
"""Address space, not disk, of a small file; doubled as it grows."""
_MAGIC_BYTES = 12
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
        self._env = _opened(path, map_size=_MAP_BYTES, sync=False, metasync=False)
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
                raise _disk_error(self._path, error) from error
            finally:
                self._env.close()
            sync_path(self._path)
        # only LMDB knows where it puts values, and reveals it only through the addresses of its map
        found = PlaceList(self._parts)
        for entry in _images(self._path, frozenset(part.name.encode("ascii") for part in self._parts)):
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
                raise _disk_error(self._path, error) from error
        self._pending, self._pending_bytes = [], 0


class LmdbContainer:
    """``--format lmdb``."""

    name = "lmdb"
    suffix = ".lmdb"
    block_bytes = _PAGE_BYTES
    overhead_bytes = 256

    def create(self, path: str, spec: ShardSpec) -> LmdbWriter:
        return LmdbWriter(path, spec)

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

    def scan(self, path: str) -> Iterator[Entry]:
        """Yield the values whose key has an image extension, or that begin like an image file.

        The key of an entry has no extension. Named databases in the file (``max_dbs``) are ignored.
        """
        return _images(path, None)


def _images(path: str, own: frozenset[bytes] | None) -> Iterator[Entry]:
    """Yield the images.

    Args:
        path: The file.
        own: The names of the parts of records that packer has written just now, whose annotations nobody needs. None:
            of any file.
    """
    images: list[Entry] = []
    parts: dict[str, Place] = {}
    record, note, names = b"", None, own or frozenset[bytes]()
    for name, offset, value, get in values(path):
        stem, _, extension = name.rpartition(b".")
        base = name.partition(b".")[0]
        if base != record:
            yield from (image._replace(parts=parts) for image in images)
            record, images, parts = base, [], {}
            if own is None:
                note = _note(get, base)
                try:
                    names = frozenset(part.encode("ascii") for part in part_sizes(note))
                except ValueError as error:
                    key = printable(base.decode("utf-8", "backslashreplace"))
                    raise DamagedPack(path, f"the annotation of {key} cannot be read: {error}") from error
        if stem != base and (part := stem[len(base) + 1 :]) in names:
            parts[part.decode("ascii")] = offset, len(value)
            continue
        if extension.lower() not in _EXTENSIONS:
            stem = name
            if extension == b"json" or not looks_like_image(bytes(value[:_MAGIC_BYTES])):
                continue
        try:
            header = npy_payload_offset(value[:HEADER_BYTES].tobytes())
        except ValueError as error:
            raise DamagedPack(
                path, f"the value {printable(name.decode('utf-8', 'backslashreplace'))} is not an image: {error}"
            ) from error
        text = note if stem == base or own is not None else _note(get, stem)
        images.append(Entry(stem.decode("utf-8", "backslashreplace"), offset + header, len(value) - header, text))
    yield from (image._replace(parts=parts) for image in images)


def _note(get: Callable[[bytes], Any], stem: bytes) -> bytes | None:
    found = get(stem + b".json")
    return packer_annotation(None if found is None else bytes(found))


def values(path: str) -> Iterator[tuple[bytes, int, memoryview, Callable[[bytes], Any]]]:
    """Yield (key, first byte in the file, value, function that returns the value of another key) of each value.

    Empty values are left out: they have no place. A value must not be used after the next one. Pages may refer to one
    another in any way, so the file is left as soon as it gives more than a tree could.

    Raises:
        DamagedPack: It is not a whole LMDB file.
    """
    with mapped(path) as file, _transaction(path, len(file)) as (transaction, page_bytes):
        map_address: int | None = None
        last, left, room = b"", transaction.stat()["entries"], len(file)
        for name, value in transaction.cursor():
            key = bytes(name)
            left, room = left - 1, room - len(value)
            if left < 0 or room < 0 or key <= last:  # no key is empty
                raise DamagedPack(path, f"its pages are not a tree: record {key!r} comes after {last!r}")
            last = key
            if not value:
                continue
            buffer = pa.py_buffer(value)  # its address, in a third of the time of numpy or ctypes
            if map_address is None:
                # LMDB maps the file in one piece, so checking the first value is enough
                map_address = _map_address(buffer.address, page_bytes)
                start = buffer.address - map_address
                if file[start : start + buffer.size] != value.tobytes():
                    raise DamagedPack(path, f"record {key!r} is not where LMDB maps it")
            yield key, buffer.address - map_address, value, transaction.get


@contextmanager
def _transaction(path: str, file_bytes: int) -> Iterator[tuple[Any, int]]:
    """Open a finished file for reading values as buffers; yield it with the page size."""
    env = _opened(path, readonly=True, create=False, readahead=False)
    try:
        _check_length(path, env, file_bytes)
        with env.begin(buffers=True) as transaction:
            yield transaction, env.stat()["psize"]
    except (lmdb.Error, ValueError) as error:
        raise DamagedPack(path, f"the LMDB file cannot be read: {error}") from error
    finally:
        env.close()


def _opened(path: str, **options: Any) -> Any:
    try:
        return lmdb.open(os.fsencode(path), subdir=False, lock=False, mode=0o644, **options)
    except lmdb.Error as error:
        if options.get("readonly"):
            if error.code > 0 and error.code not in (errno.ENOENT, errno.EINVAL):  # of the system, not of the content
                raise StorageError(path, f"cannot read: {os.strerror(error.code)}") from error
            raise DamagedPack(path, f"not a whole LMDB file: {error}") from error
        with storage_errors(path):
            raise _disk_error(path, error) from error


def _disk_error(path: str, error: lmdb.Error) -> OSError:
    """Convert an error of LMDB, which reports a partly written page on a full disk as an input/output error."""
    if shutil.disk_usage(os.path.dirname(path) or ".").free < _MIB:
        return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    return OSError(None, str(error))


def _check_length(path: str, env: Any, file_bytes: int) -> None:
    # reading past the end of a truncated file would kill the process with SIGBUS
    expected = (env.info()["last_pgno"] + 1) * env.stat()["psize"]
    if file_bytes < expected:
        raise DamagedPack(path, f"the file has {file_bytes} bytes of {expected}")


def _map_address(address: int, page_bytes: int) -> int:
    """Return the address of the file's first byte, given the address of a value.

    A page begins with its number (MDB_page.mp_pgno, a size_t), and a value begins in the first page of its node
    or overflow run, so the address of the map is that of the page minus its offset in the file.
    """
    page_address = address - address % page_bytes
    page_number = ctypes.c_size_t.from_address(page_address).value
    return page_address - page_number * page_bytes


CONTAINER = LmdbContainer()
