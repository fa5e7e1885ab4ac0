"""Calls to the operating system, each with a portable fallback for systems that lack it.

PACKER_PORTABLE=1 in the environment forces the fallbacks; the tests also run that way.
"""

from __future__ import annotations

import errno
import mmap
import os
import shutil
import signal
import stat
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import IO, Any

TICKS_PER_SECOND: int = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100  # of processor times in /proc
PORTABLE = os.name != "posix" or os.environ.get("PACKER_PORTABLE", "0") not in ("", "0")
"""Whether to use the fallbacks: files are mapped one by one, locks are files, terminal signals are not blocked, etc."""
READ_FLAGS = os.O_RDONLY | sum(
    # O_NONBLOCK: a pipe that has replaced the file must not block the reader
    getattr(os, name, 0) for name in ("O_NONBLOCK", "O_CLOEXEC", "O_BINARY", "O_NOINHERIT")
)  # fmt: skip
"""Flags for os.open."""
GROUP_SIGNALS = (signal.SIGINT,) if PORTABLE else (signal.SIGINT, signal.SIGHUP)
"""Signals that a terminal sends to all processes of a command at once."""
ENDING_SIGNALS = (*GROUP_SIGNALS, signal.SIGTERM)
AT_FDCWD = -100
RENAME_EXCHANGE = 2  # linux/fs.h
FICLONE = 0x40049409
COPIED_BYTES = 1 << 20
MAP_FIXED = 0x10  # this and the next are the same on Linux, macOS and the BSDs; Python's mmap module names neither
MADV_WILLNEED = 3
CGROUP = "/sys/fs/cgroup"


# -- the machine


def usable_cores() -> int:
    """Return the number of cores this process may use: its CPU affinity and the quota of its container (cgroup v2)."""
    cores = os.cpu_count() or 1 if PORTABLE or not hasattr(os, "sched_getaffinity") else len(os.sched_getaffinity(0))
    with suppress(OSError, ValueError), open(f"{CGROUP}/cpu.max", "rb") as file:
        quota, period = file.read(100).split()
        if quota != b"max":
            cores = min(cores, max(1, -(-int(quota) // int(period))))
    return cores


def memory_bytes() -> int:
    """Return the memory of the machine in bytes; sys.maxsize if the system does not report it."""
    if PORTABLE:
        return sys.maxsize
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def available_bytes() -> int:
    """Return the bytes available without swapping, of the machine or of the container's limit (cgroup v2)."""
    try:
        with open("/proc/meminfo", "rb") as file:
            available = next(int(line.split()[1]) * 1024 for line in file if line.startswith(b"MemAvailable:"))
    except (OSError, StopIteration):
        available = memory_bytes()
    with suppress(OSError, ValueError):
        available = min(available, _cgroup_bytes(CGROUP))
    return available


def _cgroup_bytes(folder: str) -> int:
    """Return the memory left under a container's limit, which counts the page cache as used although it is released."""
    with open(f"{folder}/memory.max", "rb") as limit, open(f"{folder}/memory.current", "rb") as current:
        left = int(limit.read()) - int(current.read())
    with open(f"{folder}/memory.stat", "rb") as file:
        numbers = dict(line.split() for line in file)
    return left + int(numbers.get(b"active_file", 0)) + int(numbers.get(b"inactive_file", 0))


def load_average() -> float | None:
    """Return the load average of the last minute; None if the system does not report it."""
    return None if PORTABLE else round(os.getloadavg()[0], 2)


# -- processes


def cpu_seconds(pid: int) -> float:
    """Return the processor time of another process; 0.0 if it has ended, or the system is not Linux."""
    with suppress(OSError), open(f"/proc/{pid}/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()  # the name before it may contain anything
        return (int(fields[11]) + int(fields[12])) / TICKS_PER_SECOND
    return 0.0


def callable_module(name: str, function: Callable[..., Any]) -> None:
    """Make a module a function, too: importing one of its modules sets the attribute of its package to it.

    Args:
        name: The module, `__name__` in it.
        function: What calling it does.
    """

    import inspect
    from types import ModuleType

    class CallableModule(ModuleType):
        __signature__ = inspect.signature(function)
        __call__ = staticmethod(function)

    module = sys.modules[name]
    module.__class__ = CallableModule
    # help() shows that of a module
    signature = str(inspect.signature(function)).replace("'", "")
    module.__doc__ = f"{module.__doc__}\n{name}{signature}\n\n{inspect.getdoc(function)}\n"


def at_fork(**hooks: Callable[[], Any]) -> None:
    """Call functions when this process forks, as os.register_at_fork does; do nothing on systems without fork."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(**hooks)


def lead_group() -> None:
    """Make this process the leader of a new group, so that its future children can be killed with it."""
    if not PORTABLE:
        os.setpgid(0, 0)


def kill_group(leader: int) -> None:
    """Kill the process group of `leader`, if it leads one and the system has groups."""
    if not PORTABLE:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(leader, signal.SIGKILL)


def end_group() -> None:
    """Kill this process and its group, if it leads one."""
    if not PORTABLE and os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)


@contextmanager
def blocked_group_signals() -> Iterator[None]:
    """Block terminal signals in processes that this thread starts in this context, until they unblock them."""
    if PORTABLE:
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, GROUP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def ignore_group_signals() -> None:
    """Ignore Ctrl-C and hang-up, which the parent process handles; SIGTERM ends this process."""
    for number in GROUP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if not PORTABLE:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, GROUP_SIGNALS)


# -- files


def read_at(descriptor: int, size: int, offset: int) -> bytes:
    """Return up to `size` bytes of an open file from `offset`. Not thread-safe. Raise OSError on failure."""
    if not PORTABLE:
        return os.pread(descriptor, size, offset)
    os.lseek(descriptor, offset, os.SEEK_SET)
    return os.read(descriptor, size)


def open_regular(path: str) -> IO[bytes]:
    """Open a file for reading, as `regular_descriptor` does."""
    return open(regular_descriptor(path), "rb")


def regular_descriptor(path: str) -> int:
    """Open a file for reading, but no pipe or device, which could block for ever; raise OSError for one."""
    if not stat.S_ISREG(os.stat(path).st_mode):  # to open a device may do something, and a socket cannot be opened
        raise _irregular(path)
    descriptor = os.open(path, READ_FLAGS)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise _irregular(path)


def _irregular(path: str) -> OSError:
    if os.path.isdir(path):
        return IsADirectoryError(errno.EISDIR, "is a folder, not a file", path)
    return OSError(errno.EINVAL, "is a pipe or a device, not a file", path)


def expect_random_reads(descriptor: int) -> None:
    """Ask the system not to read ahead in an open file."""
    if not PORTABLE and hasattr(os, "posix_fadvise"):
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)


def forget_pages(descriptor: int) -> None:
    """Ask the system to drop an open file, already synced, from the page cache."""
    if not PORTABLE and hasattr(os, "posix_fadvise"):
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)


def sync_path(path: str) -> None:
    """Sync a closed file or a folder to the disk; a folder only if the system can open it. Raise OSError on failure."""
    if PORTABLE and os.path.isdir(path):
        return
    descriptor = os.open(path, os.O_RDWR if PORTABLE else os.O_RDONLY)  # Windows can sync only writable files
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def exchange_names(a: str, b: str) -> bool:
    """Exchange two names in one step; return False if this is not supported. Raise OSError on failure."""
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


def share_file(source: str, target: str) -> str:
    """Make `target` a hard link to a file, or else a reflink (a file that shares its blocks), or else a copy.

    Return which of them it is. A copy is not verified. Raise OSError on failure.
    """
    source = os.path.realpath(source)  # the name of a symlink would be a second symlink
    try:
        os.link(source, target)
        return "hard link"
    except FileNotFoundError:
        raise
    except OSError:  # another file system, or one without links; too many links; not the owner of the file
        with open(source, "rb") as file, open(target, "xb") as copy:
            if _cloned(file.fileno(), copy.fileno()):
                return "reflink"
            shutil.copyfileobj(file, copy, COPIED_BYTES)
            copy.flush()
            os.fsync(copy.fileno())
        return "copy"


def _cloned(source: int, target: int) -> bool:
    if PORTABLE or not sys.platform.startswith("linux"):
        return False
    import fcntl

    with suppress(OSError):
        return fcntl.ioctl(target, FICLONE, source) == 0
    return False


# -- libraries


def loadable_library(names: Iterable[str]) -> str | None:
    """Return the first of these names of a shared library that can be loaded, or None; no other program is asked."""
    import ctypes

    for name in names:
        with suppress(OSError):
            ctypes.CDLL(name)
            return name
    return None


# -- maps


def openmp_set_threads() -> Callable[[int], Any] | None:
    """Return OpenMP's omp_set_num_threads, which concerns the calling thread only; None if no loaded library has it."""
    return None if PORTABLE else getattr(_libc(), "omp_set_num_threads", None)


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
    libc.mlock.argtypes = libc.munlock.argtypes = [pointer, size]
    return libc


def reserve(size: int) -> int:
    """Reserve a range of `size` addresses without memory and return the first. Raise OSError on failure."""
    return _mapped(None, size, 0, mmap.MAP_PRIVATE | mmap.MAP_ANON | getattr(mmap, "MAP_NORESERVE", 0), -1)


def map_at(address: int, size: int, descriptor: int) -> None:
    """Map the first `size` bytes of an open file, read-only, at a reserved address. Raise OSError on failure."""
    _mapped(address, size, mmap.PROT_READ, mmap.MAP_SHARED | MAP_FIXED, descriptor)


def _mapped(address: int | None, size: int, access: int, flags: int, descriptor: int) -> int:
    import ctypes

    found = _libc().mmap(address, size, access, flags, descriptor, 0)
    if found == ctypes.c_void_p(-1).value:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return int(found)


def unmap(address: int, size: int) -> None:
    """Release a range of addresses."""
    _libc().munmap(address, size)


def fetch_pages(address: int, size: int) -> None:
    """Ask the kernel to read whole pages of a map from the disk in the background; it may ignore this."""
    if not PORTABLE:
        _libc().madvise(address, size, MADV_WILLNEED)


def is_in_memory(address: int) -> bool | None:
    """Return whether the page at an address of a map is in memory; None if that is unknown."""
    if PORTABLE:
        return None
    import ctypes

    state = ctypes.c_ubyte()
    return bool(state.value & 1) if _libc().mincore(address, mmap.PAGESIZE, ctypes.byref(state)) == 0 else None


def tells_pages(path: str) -> bool:
    """Return whether `is_in_memory` works for this file: Linux requires its owner or write permission."""
    return not PORTABLE and (os.stat(path).st_uid == os.geteuid() or os.access(path, os.W_OK))


def lock_in_memory(address: int, size: int) -> bool:
    """Read a part of a map and lock it in memory; return False if that is not allowed."""
    return not PORTABLE and bool(_libc().mlock(address, size) == 0)


def unlock_memory(address: int, size: int) -> None:
    """Unlock a part of a map."""
    if not PORTABLE:
        _libc().munlock(address, size)
