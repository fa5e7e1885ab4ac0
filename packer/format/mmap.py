"""Maps the files of a pack read-only into memory, under one range of byte offsets.

On POSIX systems they follow one another in one range of addresses, so that one call gathers a whole batch from any
shards. The maps hold no file descriptors there, so thousands of shards stay below any limit on open files; Python's
`mmap` cannot do this before 3.13. On other systems each file has its own map.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import weakref
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer import system
from packer.errors import DamagedPack, StorageError
from packer.model.annotation import Int64

RESTORE = "restore it, run packer repair, or build the pack again"
MORE_MAPS = "raise the limit on maps (sysctl vm.max_map_count), or build packs of fewer, larger shards (--shard-size)"
MANY_FILES = 1024
"""Of more files, only the names are checked when a pack is opened: on a file server each size would be a request."""


class Region:
    """The bytes of mapped files. A range within one file can be read as one piece.

    Attributes:
        parts: The maps as read-only uint8 arrays: one for all files, or one for each file.
        starts: The offset at which each part begins.
    """

    def __init__(
        self, parts: list[NDArray[np.uint8]], starts: list[int], late: Sequence[tuple[str, int]] = (),
        offsets: Int64 | None = None,
    ) -> None:  # fmt: skip
        """Take what is mapped, and the files that `map` maps at their `offsets`."""
        self.parts, self.starts = parts, starts
        self._data = parts[0].data if len(parts) == 1 else None
        self._late, self._offsets = late, np.zeros(0, np.int64) if offsets is None else offsets
        self._waiting = np.array([size > 0 for _, size in late], np.bool_)

    def map(self, number: int, again: bool = False) -> None:
        """Map a file that waits for its first use; `again` if it has been replaced. Do nothing for any other.

        Raises:
            DamagedPack: It is missing or of another size.
            StorageError: It cannot be opened or mapped.
        """
        if len(self._late) and (again or self._waiting[number]):
            path, size = self._late[number]
            _with_file(path, size, partial(system.map_at, self.parts[0].ctypes.data + int(self._offsets[number]), size))
            self._waiting[number] = False  # another thread may have mapped it, too, at the same place

    @property
    def data(self) -> Any:
        """Return bytes of a file: ``data[start:stop]`` is a memoryview, without a copy."""
        return self if self._data is None else self._data

    def __len__(self) -> int:
        return self.starts[-1] + len(self.parts[-1])

    def __getitem__(self, wanted: slice) -> memoryview:
        number = bisect_right(self.starts, wanted.start) - 1
        start = self.starts[number]
        return self.parts[number].data[wanted.start - start : wanted.stop - start]

    def by_part(self, offsets: Int64) -> Iterator[tuple[int, Any, Int64]]:
        """Yield (part number, which of `offsets` are in the part, their positions in it) for each part that has any."""
        if len(self.parts) == 1:
            yield 0, slice(None), offsets
            return
        numbers = np.searchsorted(self.starts, offsets, "right") - 1
        for number in np.unique(numbers).tolist():
            chosen = np.flatnonzero(numbers == number)
            yield number, chosen, offsets[chosen] - self.starts[number]

    def addresses(self, offsets: Int64) -> NDArray[np.uint64]:
        """Return where the bytes at these offsets are in the memory of this process, uint64 (n,)."""
        found = np.empty(len(offsets), np.uint64)
        for number, chosen, places in self.by_part(offsets):
            found[chosen] = self.parts[number].ctypes.data + places
        return found

    def gather(self, offsets: Int64, size: int) -> NDArray[np.uint8]:
        """Return a copy of the `size` bytes at each offset, uint8 (n, size)."""
        out = np.empty(len(offsets), f"V{size}")
        for number, chosen, places in self.by_part(offsets):
            part = self.parts[number]
            # item i begins at byte i, so that numpy can copy items at any offset
            items: Any = np.ndarray((len(part) - size + 1,), out.dtype, part, strides=(1,))
            out[chosen] = items[places]
        return out.view(np.uint8).reshape(-1, size)

    def fetch(self, offsets: Int64, sizes: Int64) -> None:
        """Ask the kernel to read byte ranges from the disk in the background. Return immediately.

        Adjacent ranges are requested together. The kernel may ignore the request.
        """
        if system.PORTABLE:
            return
        first = offsets // mmap.PAGESIZE
        end = -(-(offsets + sizes) // mmap.PAGESIZE)
        order = np.argsort(first, kind="stable")
        first, end = first[order], np.maximum.accumulate(end[order])
        begins = np.flatnonzero(np.concatenate([[True], first[1:] > end[:-1]]))
        stops = np.concatenate([begins[1:], [len(first)]]) - 1
        base = self.parts[0].ctypes.data
        for begin, stop in zip(first[begins].tolist(), end[stops].tolist(), strict=True):
            system.fetch_pages(base + begin * mmap.PAGESIZE, (stop - begin) * mmap.PAGESIZE)

    def share_in_memory(self, offsets: Int64) -> float:
        """Return the share of the pages at these offsets that is in memory; 1.0 if it is unknown."""
        base = self.parts[0].ctypes.data
        pages = [base + offset // mmap.PAGESIZE * mmap.PAGESIZE for offset in offsets.tolist()]
        found = [system.is_in_memory(page) for page in pages]
        return sum(one is not False for one in found) / len(found) if found else 1.0

    def unlock(self) -> None:
        """Unlock what `read` has locked in memory."""
        system.unlock_memory(self.parts[0].ctypes.data, len(self))

    def read(self, start: int, stop: int, keep: bool) -> bool:
        """Load the bytes from `start` to `stop` into memory, without files that cannot be mapped.

        Args:
            start: The first byte.
            stop: The end, exclusive.
            keep: Lock them in memory, if that is allowed.

        Returns:
            Whether they are locked.
        """
        for first, end in self._mapped(start, stop):
            keep = keep and system.lock_in_memory(self.parts[0].ctypes.data + first, end - first)
            if not keep:
                for begin, part in zip(self.starts, self.parts, strict=True):
                    # reading a byte of each page loads it
                    part[max(0, first - begin) : max(0, end - begin) : 4096].max(initial=0)
        return keep

    def _mapped(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """Map the files of a range that wait, and yield the parts of the range that may be read."""
        for number in np.flatnonzero(self._waiting).tolist():
            begin = int(self._offsets[number])
            end = begin + -(-self._late[number][1] // mmap.PAGESIZE) * mmap.PAGESIZE
            if begin < stop and start < end:
                try:
                    self.map(number)
                except (DamagedPack, StorageError):  # whoever reads its records gets the error
                    if start < begin:
                        yield start, begin
                    start = end
        if start < stop:
            yield start, stop


def joined_region(parts: Sequence[tuple[Region, Int64]]) -> tuple[Region, Int64]:
    """Return several regions as one, at the addresses at which they lie: one call gathers from all of them.

    Between them nothing may be read.

    Args:
        parts: Each region, and the offsets in it at which its files begin.

    Returns:
        The region, and the offsets in it of all files.
    """
    bases = [[part.ctypes.data for part in region.parts] for region, _ in parts]
    begin = min(min(some) for some in bases)
    end = max(base + len(part) for some, (region, _) in zip(bases, parts, strict=True)
              for base, part in zip(some, region.parts, strict=True))  # fmt: skip
    memory: Any = (ctypes.c_uint8 * (end - begin)).from_address(begin)
    memory.regions = [region for region, _ in parts]  # they stay mapped as long as an array over the memory is there
    starts = []
    for some, (region, offsets) in zip(bases, parts, strict=True):
        begins = np.array(region.starts, np.int64)
        which = np.searchsorted(begins, offsets, "right") - 1
        starts.append(offsets - begins[which] + np.array(some, np.int64)[which] - begin)
    return Region([np.frombuffer(memoryview(memory).toreadonly(), np.uint8)], [0]), np.concatenate(starts)


def map_files(
    files: Sequence[tuple[str, int]], late: bool = False, check: bool = True
) -> tuple[Region, NDArray[np.int64]]:
    """Map (path, size in bytes) pairs, read-only.

    Sizes are checked first: reading a map beyond the end of its file would kill the process (SIGBUS).

    Args:
        files: The files to map.
        late: Only reserve the addresses: `Region.map` maps each file when it is first used. Not on systems where each
            file has its own map.
        check: Check the files now, too (`check_files`). False: with `late`, they need not be there yet.

    Returns:
        The mapped region, and the offset at which each file begins, a multiple of the page size.

    Raises:
        DamagedPack: A file is missing or of another size.
        StorageError: A file cannot be opened or mapped.
    """
    pages = [-(-size // mmap.PAGESIZE) for _, size in files]
    starts = np.cumsum([0, *pages], dtype=np.int64) * mmap.PAGESIZE
    total = int(starts[-1])
    if check:
        check_files(files)
    if not total:
        return Region([np.zeros(0, np.uint8)], [0]), starts[:-1]
    if system.PORTABLE:
        return Region([_map_alone(*file) for file in files], starts[:-1].tolist()), starts[:-1]
    region = Region([_reserve(total)], [0], files, starts[:-1])
    if not late:
        for number in range(len(files)):
            region.map(number)
    return region, starts[:-1]


def map_file(path: str, size: int) -> NDArray[np.uint8]:
    """Return the content of one file, mapped. Raise the errors of `map_files`."""
    return map_files([(path, size)])[0].parts[0][:size]


def check_files(files: Sequence[tuple[str, int]]) -> None:
    """Raise DamagedPack if a file is missing or has another size: of many files only if one is missing.

    Args:
        files: (path, size in bytes) of each.
    """
    if len(files) <= MANY_FILES:
        for file in files:
            check_size(*file)
        return
    folders: dict[str, set[str]] = {}
    for path, size in files:
        folder, name = os.path.split(path)
        if folder not in folders:
            folders[folder] = set(os.listdir(folder)) if os.path.isdir(folder) else set()
        if name not in folders[folder]:
            check_size(path, size)


def check_size(path: str, size: int) -> None:
    """Raise DamagedPack if a file is missing or does not have `size` bytes."""
    try:
        found = os.stat(path).st_size
    except FileNotFoundError:
        raise DamagedPack(path, "is missing", RESTORE) from None
    except OSError as error:
        raise StorageError(path, error.strerror or str(error)) from None
    if found != size:
        raise DamagedPack(path, f"has {found:,} bytes, but the pack says {size:,}", RESTORE)


def _reserve(total: int) -> NDArray[np.uint8]:
    try:
        base = system.reserve(total)
    except OSError as error:
        raise StorageError("", f"cannot reserve {total} bytes of addresses: {error.strerror}") from None
    memory = (ctypes.c_uint8 * total).from_address(base)
    unmap = weakref.finalize(memory, system.unmap, base, total)  # called when the last array over it is gone
    unmap.atexit = False  # not at exit, when other threads may still read; the kernel unmaps it
    return np.frombuffer(memoryview(memory).toreadonly(), np.uint8)


def _map_alone(path: str, size: int) -> NDArray[np.uint8]:
    if not size:
        return np.zeros(0, np.uint8)
    return np.frombuffer(_with_file(path, size, partial(mmap.mmap, length=size, access=mmap.ACCESS_READ)), np.uint8)


def _with_file(path: str, size: int, call: Any) -> Any:
    """Open a file, check its size, and return the result of `call`."""
    try:
        descriptor = os.open(path, system.READ_FLAGS)
    except FileNotFoundError:
        raise DamagedPack(path, "is missing", RESTORE) from None
    except OSError as error:
        raise StorageError(path, error.strerror or str(error)) from None
    try:
        if (found := os.fstat(descriptor).st_size) != size:
            raise DamagedPack(path, f"has {found:,} bytes, but the pack says {size:,}", RESTORE)
        try:
            return call(descriptor)
        except OSError as error:
            step = MORE_MAPS if error.errno == errno.ENOMEM else ""
            raise StorageError(path, f"cannot be mapped: {error.strerror or error}", step) from None
    finally:
        os.close(descriptor)
