"""Writes and maps shard files, with fsync and errors that name the file."""

from __future__ import annotations

import errno
import io
import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from packer.errors import DamagedPack, PackerError, StorageError, option

_BUFFER_BYTES = 1 << 20
_DIRECT_BYTES = 64 << 10
"""Larger parts are written as they are: a copy in the buffer would take longer than the call that it saves."""
FREE_SPACE = "free some space"
"""What to do about a full disk where nothing else can be done."""


@contextmanager
def storage_errors(path: str) -> Iterator[None]:
    """Turn the OSError of a write into a StorageError that names `path`."""
    try:
        yield
    except PackerError:
        raise
    except OSError as error:
        raise write_error(path, error) from error


def write_error(path: str, error: OSError) -> StorageError:
    """Return the StorageError for a write to `path` that failed."""
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    next_step = f"{FREE_SPACE}, or choose another {option('out')}" if full else ""
    reason = os.strerror(error.errno or 0) if full else error.strerror or error  # Arrow's has more than the reason
    found = StorageError(path, f"cannot write: {reason}", next_step)
    found.full = full
    return found


class NewFile:
    """A file written sequentially and fsynced when closed; `path` must not exist."""

    def __init__(self, path: str) -> None:
        self._path = path
        with storage_errors(path):
            self._raw = open(path, "xb", buffering=0)  # noqa: SIM115
        self._file = io.BufferedWriter(self._raw, _BUFFER_BYTES)

    def __del__(self) -> None:
        # an abandoned writer: only its descriptor must be closed
        if hasattr(self, "_file"):
            with suppress(OSError):
                self._file.close()

    def append(self, *parts: bytes) -> None:
        """Write the parts, one after another."""
        try:  # not `storage_errors`, which takes as long as writing a small image
            for part in parts:
                if len(part) < _DIRECT_BYTES:
                    self._file.write(part)
                else:
                    self._file.flush()
                    rest = memoryview(part)
                    while rest:
                        rest = rest[self._raw.write(rest) :]
        except OSError as error:
            raise write_error(self._path, error) from error

    def close(self) -> None:
        """Flush and fsync. A failed fsync is never retried, because the kernel reports it only once."""
        with storage_errors(self._path), self._file:
            self._file.flush()
            os.fsync(self._file.fileno())


@contextmanager
def mapped(path: str) -> Iterator[mmap.mmap]:
    """Map the finished file at `path`. Raise DamagedPack if it is missing or empty."""
    try:
        with open(path, "rb") as file:
            view = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except FileNotFoundError as error:
        raise DamagedPack(path, "the shard is missing") from error
    except ValueError as error:
        raise DamagedPack(path, "the shard is empty") from error
    except OSError as error:
        raise StorageError(path, f"cannot read: {error.strerror or error}") from error
    try:
        yield view
    finally:
        with suppress(BufferError):  # an array in a traceback may still refer to the map and keep it open
            view.close()
