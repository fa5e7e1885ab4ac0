"""LMDB shards: one memory-mapped B+tree; choose it for random access with existing LMDB training code."""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import lmdb
import pyarrow as pa

from packer.containers.annotation import annotation_json, packer_annotation
from packer.containers.base import Entry, Places, ShardSpec
from packer.containers.npy import (
    EXTENSIONS,
    HEADER_BYTES,
    IMAGE_EXTENSIONS,
    image_file,
    looks_like_image,
    npy_payload_offset,
)
from packer.containers.storage import mapped, storage_errors
from packer.errors import DamagedPack
from packer.system import sync_path
from packer.types import Record

_TRANSACTION_BYTES = 16 << 20
_MIB = 1 << 20
_MAGIC_BYTES = 12
_EXTENSIONS = frozenset(extension.encode() for extension in IMAGE_EXTENSIONS)


class LmdbWriter:
    """Puts KEY.EXT and KEY.json of each record, in transactions of about 16 MiB."""

    def __init__(self, path: str, spec: ShardSpec, map_bytes: int) -> None:
        self._path = path
        self._classes = spec.classes
        self._pending: list[tuple[bytes, bytes]] = []
        self._pending_bytes = 0
        self._last_key = ""
        with storage_errors(path):
            open(path, "xb").close()  # lmdb would open an existing file
        # no sync per transaction: the file counts only after close(), which syncs all of it
        self._env = _opened(path, map_size=map_bytes, sync=False, metasync=False)

    def write(self, record: Record) -> None:
        if record.key <= self._last_key:
            raise ValueError(f"keys must increase, got {record.key!r} after {self._last_key!r}")
        text = annotation_json(record, self._classes).encode("ascii")
        image = f"{record.key}.{EXTENSIONS[record.encoding]}".encode("ascii"), b"".join(image_file(record))
        self._last_key = record.key
        # append mode needs key order: .jpg comes before .json, .npy after it
        self._pending += sorted([image, (f"{record.key}.json".encode("ascii"), text)])
        self._pending_bytes += len(image[1]) + len(text)
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
        entries = list(_images(self._path, annotated=False))
        return Places.of([entry.offset for entry in entries], [entry.size for entry in entries])

    def _commit(self) -> None:
        """Write the pending records in one transaction; repeat it with a larger map if the map is full."""
        with storage_errors(self._path):
            while self._pending:
                try:
                    with self._env.begin(write=True) as transaction, transaction.cursor() as cursor:
                        cursor.putmulti(self._pending, append=True)
                except lmdb.MapFullError:  # the transaction was rolled back, and its records are still pending
                    self._env.set_mapsize(2 * self._env.info()["map_size"])
                except lmdb.Error as error:
                    raise _disk_error(self._path, error) from error
                else:
                    self._pending, self._pending_bytes = [], 0


class LmdbContainer:
    """``--format lmdb``."""

    name = "lmdb"
    suffix = ".lmdb"
    block_bytes = 4096
    overhead_bytes = 256

    def create(self, path: str, spec: ShardSpec) -> LmdbWriter:
        # address space, not disk: page rounding and JSON take up to two pages a record
        content = spec.planned_bytes + spec.planned_records * 2 * 4096
        return LmdbWriter(path, spec, -(-2 * content // _MIB) * _MIB + 64 * _MIB)

    def scan(self, path: str) -> Iterator[Entry]:
        """Yield the values whose key has an image extension, or that begin like an image file.

        The key of an entry has no extension. Named databases in the file (``max_dbs``) are ignored.
        """
        return _images(path, annotated=True)


def _images(path: str, annotated: bool) -> Iterator[Entry]:
    with mapped(path) as file, _transaction(path, len(file)) as (transaction, page_bytes):
        map_address: int | None = None
        for name, value in transaction.cursor():
            stem, _, extension = bytes(name).rpartition(b".")
            if extension.lower() not in _EXTENSIONS:
                stem = bytes(name)
                if extension == b"json" or not looks_like_image(bytes(value[:_MAGIC_BYTES])):
                    continue
            if not value:
                continue  # an empty value has no address
            buffer = pa.py_buffer(value)  # its address, in a third of the time of numpy or ctypes
            if map_address is None:
                # LMDB maps the file in one piece, so checking the first value is enough
                map_address = _map_address(buffer.address, page_bytes)
                start = buffer.address - map_address
                if file[start : start + buffer.size] != value.tobytes():
                    raise DamagedPack(path, f"record {stem!r} is not where LMDB maps it")
            header = npy_payload_offset(value[:HEADER_BYTES].tobytes())
            note = transaction.get(stem + b".json") if annotated else None
            text = packer_annotation(None if note is None else bytes(note))
            key = stem.decode("utf-8", "backslashreplace")
            yield Entry(key, buffer.address - map_address + header, buffer.size - header, text)


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
