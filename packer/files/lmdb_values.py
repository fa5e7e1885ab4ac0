"""The values of an LMDB file, and where each is in it."""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import lmdb
import pyarrow as pa

from packer.errors import DamagedPack, StorageError
from packer.system.storage import mapped, storage_errors

MIB = 1 << 20


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
    env = open_lmdb(path, readonly=True, create=False, readahead=False)
    try:
        _check_length(path, env, file_bytes)
        with env.begin(buffers=True) as transaction:
            yield transaction, env.stat()["psize"]
    except (lmdb.Error, ValueError) as error:
        raise DamagedPack(path, f"the LMDB file cannot be read: {error}") from error
    finally:
        env.close()


def open_lmdb(path: str, **options: Any) -> Any:
    try:
        return lmdb.open(os.fsencode(path), subdir=False, lock=False, mode=0o644, **options)
    except lmdb.Error as error:
        if options.get("readonly"):
            if error.code > 0 and error.code not in (errno.ENOENT, errno.EINVAL):  # of the system, not of the content
                raise StorageError(path, f"cannot read: {os.strerror(error.code)}") from error
            raise DamagedPack(path, f"not a whole LMDB file: {error}") from error
        with storage_errors(path):
            raise disk_error(path, error) from error


def disk_error(path: str, error: lmdb.Error) -> OSError:
    """Convert an error of LMDB, which reports a partly written page on a full disk as an input/output error."""
    if shutil.disk_usage(os.path.dirname(path) or ".").free < MIB:
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
