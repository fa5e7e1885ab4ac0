"""Locks on folders, so that two builds do not write to the same one. Without `flock`, they are lock files."""

from __future__ import annotations

import hashlib
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from packer.system import PORTABLE

POLL_S = 0.02


class FolderLock:
    """A lock on a folder, released by `close` or when the process ends."""

    def __init__(self, descriptor: int, path: str | None = None) -> None:
        self._descriptor: int | None = descriptor
        self._path = path

    def close(self) -> None:
        """Release the lock."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
            if self._path is not None:
                with suppress(OSError):
                    os.unlink(self._path)
                    os.rmdir(os.path.dirname(self._path))  # succeeds if no other lock is left


def lock_folder(folder: str) -> FolderLock | None:
    """Create a folder if needed and lock it; return None if another process has it. Raise OSError on failure."""
    while True:
        os.makedirs(folder, exist_ok=True)
        if PORTABLE:
            lock = _lock_file(_lock_name(folder) + ".lock")
            if lock is None or os.path.isdir(folder):
                return lock
        else:
            descriptor = _flock(folder, shared=False)
            if descriptor is None:
                return None
            lock = FolderLock(descriptor)
            with suppress(FileNotFoundError):
                if os.path.samestat(os.stat(folder), os.fstat(descriptor)):
                    return lock
        lock.close()  # the previous owner has removed the folder


@contextmanager
def in_use(folder: str) -> Iterator[None]:
    """Mark a folder as being written to by this process, as others may at the same time; see `wait_until_unused`."""
    if PORTABLE:
        lock = _lock_file(f"{_lock_name(folder)}-{os.getpid()}-{time.monotonic_ns()}.use")
    else:
        descriptor = _flock(folder, shared=True)
        lock = None if descriptor is None else FolderLock(descriptor)
    try:
        yield
    finally:
        if lock is not None:
            lock.close()


def wait_until_unused(folder: str, timeout_s: float) -> bool:
    """Wait until no process marks a folder as `in_use`; return False if one still does after that time."""
    end = time.monotonic() + timeout_s
    while _is_used(folder):
        if time.monotonic() > end:
            return False
        time.sleep(POLL_S)
    return True


def _is_used(folder: str) -> bool:
    if PORTABLE:
        place, name = os.path.split(_lock_name(folder) + "-")
        with suppress(FileNotFoundError):  # there is no lock
            return any(_is_held(os.path.join(place, other)) for other in os.listdir(place) if other.startswith(name))
        return False
    descriptor = _flock(folder, shared=False)
    if descriptor is not None:
        os.close(descriptor)
    return descriptor is None


def _flock(folder: str, shared: bool) -> int | None:
    """Return a descriptor that holds a lock; None if an exclusive lock was asked for and another process has one."""
    import fcntl

    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH if shared else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _lock_name(folder: str) -> str:
    """Return the start of the names of a folder's lock files, which are outside it: Windows could not rename it."""
    name = hashlib.sha256(os.fsencode(os.path.realpath(folder))).hexdigest()
    return os.path.join(tempfile.gettempdir(), "packer-locks", name)


def _lock_file(path: str) -> FolderLock | None:
    """Create a lock file with the id of this process; return None if another process has it."""
    while True:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
        except FileNotFoundError:
            os.makedirs(os.path.dirname(path), exist_ok=True)
        except FileExistsError:
            if _is_held(path):
                return None
        else:
            os.write(descriptor, b"%d" % os.getpid())
            return FolderLock(descriptor, path)


def _is_held(path: str) -> bool:
    """Return whether the process of a lock file is alive; remove the file of a dead one."""
    with suppress(FileNotFoundError):
        if os.name == "posix":
            with open(path, "rb") as file:
                number = file.read()
            with suppress(PermissionError):  # the process is alive and belongs to another user
                try:
                    os.kill(int(number or os.getpid()), 0)  # an empty file is just being created
                except ProcessLookupError:
                    os.unlink(path)
                    return False
            return True
        try:
            os.unlink(path)
        except PermissionError:  # Windows cannot remove a file that a process has open
            return True
    return False
