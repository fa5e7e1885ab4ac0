"""Threads that wait for a store, and files that are fetched as a whole into the folder of a remote pack."""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from packer.errors import StorageError
from packer.system.atomic import open_own, replacing
from packer.system.storage import lock_bytes, unlock_bytes

POLL_S = 0.1
QUIET_S = 2.0
"""A program that ends waits no longer for requests of which none has ended for so long: the network may be dead."""
EXIT_S = 10.0

T = TypeVar("T")
_waiting = threading.local()
_threads: weakref.WeakSet[threading.Thread] = weakref.WeakSet()


def give_up_if(ended: Callable[[], bool]) -> None:
    """Let waits of the calling thread for a store end with an error as soon as `ended()`."""
    _waiting.ended = ended


def check_ended() -> None:
    """Raise StorageError if the calling thread is to wait no longer (`give_up_if`)."""
    ended = getattr(_waiting, "ended", None)
    if ended is not None and ended():
        raise StorageError("store", "the reading was ended", "open it again")


def start(run: Callable[[], None]) -> threading.Thread:
    """Start a thread that may be in the middle of a request when the program ends."""
    thread = threading.Thread(target=run, name="packer-fetch", daemon=True)
    thread.start()
    _threads.add(thread)
    return thread


def interruptible(call: Callable[[], T]) -> T:
    """Return what a request returns; leave it to itself on Ctrl-C, which obstore does not notice, and `give_up_if`."""
    if threading.current_thread() is not threading.main_thread() and not hasattr(_waiting, "ended"):
        return call()
    result: Future[T] = Future()

    def run() -> None:
        try:
            result.set_result(call())
        except BaseException as error:
            result.set_exception(error)

    start(run)
    return all_of([result])[0]


def all_of(futures: Sequence[Future[T]]) -> list[T]:
    """Return the results of futures; raise the first error that there is."""
    left = set(futures)
    while left:
        check_ended()
        # Python misses a signal that comes in the last moment before a wait
        done, left = wait(left, POLL_S, FIRST_EXCEPTION)
        for future in done:
            future.result()
    return [future.result() for future in futures]


@contextmanager
def pool(count: int) -> Iterator[ThreadPoolExecutor]:
    """Return a context with threads for requests, which wait no longer when an exception leaves it."""
    left = threading.Event()
    with ThreadPoolExecutor(count, "packer-store", initializer=give_up_if, initargs=(left.is_set,)) as threads:
        try:
            yield threads
        except BaseException:
            left.set()
            threads.shutdown(wait=False, cancel_futures=True)
            raise


@atexit.register
def _end() -> None:
    """Wait for requests: a thread that comes back from the network while the interpreter ends would abort."""
    now = time.monotonic()
    quiet, end, before = now + QUIET_S, now + EXIT_S, len(_threads)
    while (left := sum(thread.is_alive() for thread in list(_threads))) and (now := time.monotonic()) < min(quiet, end):
        if left < before:
            quiet, before = now + QUIET_S, left
        time.sleep(POLL_S / 10)


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
