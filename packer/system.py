"""What packer asks of the operating system; where a system lacks something, a portable answer stands in for it.

PACKER_PORTABLE=1 in the environment forces the portable answers; the tests run so too.
"""

from __future__ import annotations

import errno
import mmap
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any

PORTABLE = os.name != "posix" or os.environ.get("PACKER_PORTABLE", "0") not in ("", "0")
"""Whether files are mapped one by one, locks are files, signals of a terminal are not blocked, and so on."""
READ_FLAGS = os.O_RDONLY | sum(
    # O_NONBLOCK: a pipe put in the file's place must not hang the reader
    getattr(os, name, 0) for name in ("O_NONBLOCK", "O_CLOEXEC", "O_BINARY", "O_NOINHERIT")
)  # fmt: skip
"""For os.open."""
GROUP_SIGNALS = (signal.SIGINT,) if PORTABLE else (signal.SIGINT, signal.SIGHUP)
"""What a terminal sends to all processes of a command at once."""
ENDING_SIGNALS = (*GROUP_SIGNALS, signal.SIGTERM)
AT_FDCWD = -100
RENAME_EXCHANGE = 2  # linux/fs.h
MAP_FIXED = 0x10  # this and the next are the same on Linux, macOS and the BSDs; Python's mmap module names neither
MADV_WILLNEED = 3
CGROUP = "/sys/fs/cgroup"


# -- the machine


def usable_cores() -> int:
    """Return how many cores this process may use: its CPU affinity, and the quota of its container (cgroup v2)."""
    cores = os.cpu_count() or 1 if PORTABLE or not hasattr(os, "sched_getaffinity") else len(os.sched_getaffinity(0))
    with suppress(OSError, ValueError), open(f"{CGROUP}/cpu.max", "rb") as file:
        quota, period = file.read(100).split()
        if quota != b"max":
            cores = min(cores, max(1, -(-int(quota) // int(period))))
    return cores


def memory_bytes() -> int:
    """Return the memory of the machine; sys.maxsize if the system does not tell."""
    if PORTABLE:
        return sys.maxsize
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def available_bytes() -> int:
    """Return the memory that can be taken without swapping, of the machine or of the container's limit (cgroup v2)."""
    try:
        with open("/proc/meminfo", "rb") as file:
            available = next(int(line.split()[1]) * 1024 for line in file if line.startswith(b"MemAvailable:"))
    except (OSError, StopIteration):
        available = memory_bytes()
    with suppress(OSError, ValueError):
        available = min(available, _cgroup_bytes(CGROUP))
    return available


def _cgroup_bytes(folder: str) -> int:
    """What a container's limit leaves; the page cache counts as used there, and is given up when it is needed."""
    with open(f"{folder}/memory.max", "rb") as limit, open(f"{folder}/memory.current", "rb") as current:
        left = int(limit.read()) - int(current.read())
    with open(f"{folder}/memory.stat", "rb") as file:
        numbers = dict(line.split() for line in file)
    return left + int(numbers.get(b"active_file", 0)) + int(numbers.get(b"inactive_file", 0))


def load_average() -> float | None:
    """Return how many processes wanted a core during the last minute; None if the system does not tell."""
    return None if PORTABLE else round(os.getloadavg()[0], 2)


# -- processes


def cpu_seconds(pid: int) -> float:
    """Return the processor time of another process; 0.0 if it has ended, or the system is not Linux."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()  # what precedes is a name, which may hold anything
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def at_fork(**hooks: Callable[[], Any]) -> None:
    """Call functions when this process forks, as os.register_at_fork does; where none can fork, do nothing."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(**hooks)


def lead_group() -> None:
    """Make this process the leader of a new group: whoever ends it ends all that it will have started."""
    if not PORTABLE:
        os.setpgid(0, 0)


def kill_group(leader: int) -> None:
    """Kill the processes of the group that `leader` leads, if it leads one and groups exist."""
    if not PORTABLE:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(leader, signal.SIGKILL)


def end_group() -> None:
    """Kill this process and all others of the group that it leads, if it leads one."""
    if not PORTABLE and os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)


@contextmanager
def blocked_group_signals() -> Iterator[None]:
    """Let processes that this thread starts meanwhile not notice what a terminal sends, until they unblock it."""
    if PORTABLE:
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, GROUP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def ignore_group_signals() -> None:
    """Leave it to the parent process what Ctrl-C and a hang-up mean; SIGTERM ends this one."""
    for number in GROUP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if not PORTABLE:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, GROUP_SIGNALS)


# -- files


def read_at(descriptor: int, size: int, offset: int) -> bytes:
    """Return up to `size` bytes of an open file from `offset` on. One thread at a time. Raises OSError."""
    if not PORTABLE:
        return os.pread(descriptor, size, offset)
    os.lseek(descriptor, offset, os.SEEK_SET)
    return os.read(descriptor, size)


def expect_random_reads(descriptor: int) -> None:
    """Ask that nothing of an open file be read ahead."""
    if not PORTABLE and hasattr(os, "posix_fadvise"):
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)


def forget_pages(descriptor: int) -> None:
    """Ask that an open file, all of it on the disk, leave the page cache."""
    if not PORTABLE and hasattr(os, "posix_fadvise"):
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)


def sync_path(path: str) -> None:
    """Make a closed file, or the names in a folder, durable; a folder only where it can be opened. Raises OSError."""
    if PORTABLE and os.path.isdir(path):
        return
    descriptor = os.open(path, os.O_RDWR if PORTABLE else os.O_RDONLY)  # Windows syncs what may be written to
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def exchange_names(a: str, b: str) -> bool:
    """Let the names change places; False if the system or the file system cannot. Raises OSError."""
    rename = None if PORTABLE else getattr(_libc(), "renameat2", None)  # Linux, glibc 2.28
    if rename is None:
        return False
    import ctypes

    if rename(AT_FDCWD, os.fsencode(a), AT_FDCWD, os.fsencode(b), RENAME_EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP):
        return False
    raise OSError(number, os.strerror(number), b)


# -- maps


@cache
def _libc() -> Any:
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    pointer, size, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    libc.mmap.restype = pointer
    libc.mmap.argtypes = [pointer, size, number, number, number, ctypes.c_int64]
    libc.munmap.argtypes = [pointer, size]
    libc.madvise.argtypes = [pointer, size, number]
    libc.mincore.argtypes = [pointer, size, pointer]
    libc.mlock.argtypes = [pointer, size]
    return libc


def reserve(size: int) -> int:
    """Return the first of `size` addresses, with nothing behind them yet. Raises OSError."""
    return _mapped(None, size, 0, mmap.MAP_PRIVATE | mmap.MAP_ANON | getattr(mmap, "MAP_NORESERVE", 0), -1)


def map_at(address: int, size: int, descriptor: int) -> None:
    """Map the first `size` bytes of an open file, read-only, at an address that was reserved. Raises OSError."""
    _mapped(address, size, mmap.PROT_READ, mmap.MAP_SHARED | MAP_FIXED, descriptor)


def _mapped(address: int | None, size: int, access: int, flags: int, descriptor: int) -> int:
    import ctypes

    found = _libc().mmap(address, size, access, flags, descriptor, 0)
    if found == ctypes.c_void_p(-1).value:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return int(found)


def unmap(address: int, size: int) -> None:
    """Give addresses back."""
    _libc().munmap(address, size)


def fetch_pages(address: int, size: int) -> None:
    """Ask for whole pages of a map to be read from the disk in the background; the kernel may ignore it."""
    if not PORTABLE:
        _libc().madvise(address, size, MADV_WILLNEED)


def is_in_memory(address: int) -> bool | None:
    """Return whether the page at an address of a map is in memory; None if nobody can say."""
    if PORTABLE:
        return None
    import ctypes

    state = ctypes.c_ubyte()
    return bool(state.value & 1) if _libc().mincore(address, mmap.PAGESIZE, ctypes.byref(state)) == 0 else None


def tells_pages(path: str) -> bool:
    """Return whether `is_in_memory` is told of this file: Linux does it for those who own it or may write to it."""
    return not PORTABLE and (os.stat(path).st_uid == os.geteuid() or os.access(path, os.W_OK))


def lock_in_memory(address: int, size: int) -> bool:
    """Read a part of a map and keep it in memory; False if that is not allowed."""
    return not PORTABLE and bool(_libc().mlock(address, size) == 0)
