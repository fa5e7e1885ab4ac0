"""Locks on folders, so that two builds do not write to the same one. Without `flock`, they are lock files."""

from __future__ import annotations

import errno
import hashlib
import os
import tempfile
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from packer.errors import UsageError
from packer.system import PORTABLE, at_fork
from packer.system.atomic import check_own_folder, is_own_file, make_own_folder, open_own, remove, write_new

LOCK = ".lock"
"""The file in a folder that is locked: over NFS, locks need a file that is open for writing."""
PARTIAL, FILES, OLD = ".partial", "files", ".old"
"""Of folders that grow (`growing_folder`): TARGET.partial, in it the files, and those that they replace, files.old."""
NO_LOCKS = {errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK}
"""Errors of file systems without locks, such as Lustre without its mount option flock."""


class FolderLock:
    """A lock on a folder, released by `close` or when the process ends."""

    def __init__(self, descriptor: int, path: str | None = None, works: bool = True) -> None:
        self._descriptor: int | None = descriptor
        self._path = path
        self.works = works
        """False if the file system has no locks: another process gets one, too."""

    def close(self) -> None:
        """Release the lock."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
            if self._path is not None:
                with suppress(OSError):
                    os.unlink(self._path)
                    os.rmdir(os.path.dirname(self._path))  # succeeds if no other lock is left


def lock_folder(folder: str, file: str = LOCK) -> FolderLock | None:
    """Create a folder if needed and lock it; return None if another process has it.

    Args:
        folder: The folder, which must not be a link.
        file: The file in it that is locked. Empty: the folder itself, for one that only this machine uses, and that
            the user has named: it may be a link.

    Raises:
        StorageError: The folder, or the file, is a link that packer did not make.
        OSError: It cannot be created or locked.
    """
    while True:
        if file:
            make_own_folder(folder)
        else:
            os.makedirs(folder, exist_ok=True)
        if PORTABLE:
            lock = _lock_file(_lock_name(folder) + ".lock")
            if lock is None or os.path.isdir(folder):
                return lock
            lock.close()
        else:
            with suppress(FileNotFoundError):  # the previous owner has removed it
                return _flock(os.path.join(folder, file), is_folder=not file)


def remove_folder(folder: str, lock: FolderLock) -> None:
    """Remove a folder that this process has locked, as far as possible, and release the lock.

    Its lock file goes last, and while it is locked: whoever creates another one must find the folder empty. Nothing is
    removed if the folder has become a link since.
    """
    with suppress(OSError):
        check_own_folder(folder)
        for name in set(os.listdir(folder)) - {LOCK}:
            remove(os.path.join(folder, name), ignore_errors=True)
        os.unlink(os.path.join(folder, LOCK))
    lock.close()
    with suppress(OSError):
        os.rmdir(folder)


@contextmanager
def growing_folder(target: str, mark: str, command: str) -> Iterator[str]:
    """Yield a new folder for files that will take the name `target` together: TARGET.partial/files.

    TARGET.partial is removed at the end. One that a killed process has left is emptied first.

    Args:
        target: The path of the finished folder.
        mark: Name of the empty file that says whose TARGET.partial is: without it, nothing in it is removed.
        command: The command that writes it.

    Raises:
        UsageError: TARGET.partial is in use, or holds anything else.
        StorageError: It is a link.
        OSError: It cannot be made.
    """
    partial = target + PARTIAL
    if os.path.lexists(partial):
        check_own_folder(partial)
        names, whose = {*os.listdir(partial)} - {LOCK}, os.path.join(partial, mark)
        # the mark of a finished folder, which has the same name, is not empty
        if names and not (names <= {mark, FILES, FILES + OLD} and is_own_file(whose) and not os.path.getsize(whose)):
            raise UsageError(
                partial, f"exists and was not left by packer {command}", "move it away, or choose another folder"
            )
    lock = lock_folder(partial)
    if lock is None:
        raise UsageError(partial, f"another packer {command} is writing to it", "wait for it, or choose another folder")
    try:
        for name in (FILES, FILES + OLD):
            remove(os.path.join(partial, name))
        with suppress(FileExistsError):
            write_new(os.path.join(partial, mark), b"")
        folder = os.path.join(partial, FILES)
        os.mkdir(folder)
        yield folder
    finally:
        for name in (FILES, FILES + OLD):  # before the mark, without which the next one would not remove them
            remove(os.path.join(partial, name), ignore_errors=True)
        remove_folder(partial, lock)


def _flock(path: str, is_folder: bool) -> FolderLock | None:
    """Lock a file or a folder; return None if another process has it. Raise FileNotFoundError if it was removed."""
    import fcntl

    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC) if is_folder else open_own(path)
    lock = FolderLock(descriptor)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        return None
    except OSError as error:
        if error.errno not in NO_LOCKS:
            lock.close()
            raise
        lock.works = False
    try:
        if os.path.samestat(os.stat(path), os.fstat(descriptor)):
            return lock
        raise FileNotFoundError(errno.ENOENT, "was replaced", path)
    except OSError:
        lock.close()
        raise


def _lock_name(folder: str) -> str:
    """Return the start of the name of a folder's lock file, which is outside it: Windows could not rename it."""
    name = hashlib.sha256(os.fsencode(os.path.realpath(folder))).hexdigest()
    return os.path.join(tempfile.gettempdir(), "packer-locks", name)


def _lock_file(path: str) -> FolderLock | None:
    """Create a lock file with the id of this process; return None if another process has it."""
    while True:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
        except FileNotFoundError:
            make_own_folder(os.path.dirname(path))  # in the folder for temporary files, where others could put a link
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


class Locked:
    """Something with a lock. In a forked child it has a new one: the thread that holds the old one is not there.

    Attributes:
        lock: The lock.
    """

    def __init__(self) -> None:
        self._reset()
        _all.add(self)

    def _reset(self) -> None:
        """Begin with a free lock: in a new object, and in a forked child."""
        self.lock = threading.Lock()


_all: weakref.WeakSet[Locked] = weakref.WeakSet()


def _in_child() -> None:
    for one in list(_all):
        one._reset()


at_fork(after_in_child=_in_child)
