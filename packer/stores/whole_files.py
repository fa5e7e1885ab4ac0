"""Files in the folder of a remote pack that are fetched as a whole: its manifest and its indexes."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from packer.errors import StorageError
from packer.stores.threads import check_ended
from packer.system.atomic import open_own, replacing
from packer.system.sparse import lock_bytes, unlock_bytes

INDEX_LOCKS = 1 << 43
"""In the file of the locks (`packer.stores.sparse`), far from its others."""
UNFINISHED = ".new-"
"""Start of the names of files and folders that get another one when they are complete."""
OTHERS_S = 0.01
"""How often to look whether another process has fetched an index."""


def new_name(folder: str) -> str:
    """Return a name in a folder that no process has, for what is renamed when it is complete."""
    return os.path.join(folder, f"{UNFINISHED}{os.getpid()}-{threading.get_ident()}-{time.monotonic_ns()}")


def has_file(path: str, size: int) -> bool:
    """Return whether there is a file of that size."""
    return os.path.isfile(path) and size_of(path) == size


def size_of(path: str) -> int:
    """Return the size of a file; 0 if it is not there: it may just have got its final name."""
    with suppress(OSError):
        return os.path.getsize(path)
    return 0


def write_file(path: str, data: Any) -> None:
    """Write a file under another name first, since others may open it at the same time. Raise OSError on failure."""
    with replacing(path, sync=False, unfinished=new_name(os.path.dirname(path))) as file:
        file.write(data)


def put_file(path: str, data: Any) -> None:
    """Write a file (`write_file`). Raise StorageError on failure."""
    try:
        write_file(path, data)
    except OSError as error:
        problem = f"cannot be written: {error.strerror or error}"
        raise StorageError(path, problem, "free disk space, or pass cache_dir= on another disk") from None


@contextmanager
def alone(locks: str, index: int) -> Iterator[None]:
    """Wait until no other process or thread fetches an index, and keep them from it; `locks` is the file of locks."""
    try:
        descriptor = open_own(locks, create=False)
    except FileNotFoundError:
        raise StorageError(os.path.dirname(locks), "was removed while it was in use", "open the pack again") from None
    try:
        while not lock_bytes(descriptor, INDEX_LOCKS + index, 1):
            check_ended()
            time.sleep(OTHERS_S)
        yield
    finally:
        unlock_bytes(descriptor, INDEX_LOCKS + index, 1)  # a child may share the descriptor
        os.close(descriptor)
