"""Writes, replaces and removes files and folders, and never reaches one through a link that packer did not make.

A pack, or the folder around an output, may come from somebody else, with symbolic links at the very names that packer
uses there. A path that the user passes may lead through links; a name that packer derives from it must not be one.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO

from packer.errors import AnyPath, StorageError

OWN_FLAGS = os.O_RDWR | sum(
    # O_NONBLOCK: a pipe at the name must not block the writer
    getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_BINARY", "O_NOINHERIT")
)  # fmt: skip
"""Flags for os.open of a file that is changed in place."""


@contextmanager
def replacing(path: str, sync: bool = True, unfinished: str = "") -> Iterator[IO[bytes]]:
    """Yield a new file that takes the name `path` when the context ends without an error.

    Until then it has another name in the same folder, which nobody can guess. A link at `path` is replaced itself, and
    what it leads to stays.

    Args:
        path: The file.
        sync: Whether its bytes must be on the disk before it takes the name.
        unfinished: The other name, if it must follow a rule of its folder.

    Raises:
        OSError: It cannot be written.
    """
    unfinished = unfinished or f"{path}.{secrets.token_hex(4)}.tmp"
    with open(unfinished, "xb") as file:  # never through a link, and never what is there
        try:
            yield file
            file.flush()
            if sync:
                os.fsync(file.fileno())
            file.close()  # Windows cannot rename an open file
            os.replace(unfinished, path)
        except BaseException:
            with suppress(OSError):
                file.close()
            with suppress(OSError):
                os.unlink(unfinished)
            raise


def write_new(path: AnyPath, data: bytes | memoryview) -> None:
    """Write a file that must not exist, and fsync it. Raise OSError on failure."""
    with open(path, "xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def open_own(path: str, create: bool = True) -> int:
    """Open a file of packer's own to change it in place, and no other to which a link leads.

    Args:
        path: The file.
        create: Make it if it is not there.

    Returns:
        Its descriptor.

    Raises:
        StorageError: Something else is there: a link, a pipe.
        OSError: It cannot be opened.
    """
    _refuse_link(path)  # first, for systems without O_NOFOLLOW
    descriptor = -1
    try:
        descriptor = os.open(path, OWN_FLAGS | (os.O_CREAT if create else 0), 0o666)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise in_the_way(path)
        _refuse_link(path)
        return descriptor
    except OSError:
        if descriptor >= 0:
            os.close(descriptor)
        _refuse_link(path)
        raise


def make_own_folder(path: str, mode: int = 0o777) -> None:
    """Make a folder of packer's own, and those above it, unless it is there.

    Raises:
        StorageError: Something else is there: a link.
        OSError: It cannot be made.
    """
    above = os.path.dirname(path) or "."
    if not os.path.isdir(above):  # makedirs tries to make also what is there
        os.makedirs(above, exist_ok=True)
    while True:
        try:
            return os.mkdir(path, mode)
        except FileExistsError:
            with suppress(FileNotFoundError):  # it has been removed since
                return check_own_folder(path)


def check_own_folder(path: str) -> None:
    """Raise StorageError unless `path` is a folder, and no link to one; raise OSError if nothing is there."""
    if not stat.S_ISDIR(os.lstat(path).st_mode):
        raise in_the_way(path)


def is_own_file(path: str) -> bool:
    """Return whether there is a file, and no link to one."""
    with suppress(OSError):
        return stat.S_ISREG(os.lstat(path).st_mode)
    return False


def remove(path: str, ignore_errors: bool = False) -> None:
    """Remove a file, a folder with all that is in it, or a link, but not what it leads to; there may be nothing.

    Args:
        path: What to remove.
        ignore_errors: Remove as much as possible.

    Raises:
        OSError: It cannot be removed.
    """
    try:
        if stat.S_ISDIR(os.lstat(path).st_mode):
            shutil.rmtree(path, ignore_errors)  # holds folders open while it empties them, so it follows no link
        else:
            os.unlink(path)
    except FileNotFoundError:
        return
    except OSError:
        if not ignore_errors:
            raise


def in_the_way(path: str) -> StorageError:
    """Return the error for a name of packer's at which something else is."""
    is_link = os.path.islink(path)
    problem = "is a link that packer did not make" if is_link else "is in the way: it was not made by packer"
    error = StorageError(path, problem, "remove it, or work in another folder")
    error.errno = errno.EEXIST
    return error


def _refuse_link(path: str) -> None:
    if os.path.islink(path):
        raise in_the_way(path)
