"""The blocks of a remote pack in a folder: sparse files, and a map of what is there, which processes share.

The file `blocks` of a folder holds a header, (generation, time of last use) of each extent, and a state byte of each
block. It is read through a map and written with `pwrite`, so that a full disk is an error and not a signal. Locks on
bytes beyond its end stand for extents (shared: in use; exclusive: being evicted) and blocks (exclusive: being fetched).
"""

from __future__ import annotations

import mmap
import os
import struct
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.errors import StorageError
from packer.model.annotation import Int64
from packer.stores.blocks import BlockLayout, Blocks, runs
from packer.stores.waiting import size_of
from packer.system import open_regular, read_at
from packer.system.atomic import open_own
from packer.system.storage import has_one_name, lock_bytes, punch_hole, unlock_bytes, write_at

NAME = "blocks"
HEADER = struct.Struct("<8sII48x")
MAGIC = b"PKBLOCK1"
EXTENT = np.dtype([("generation", "<u8"), ("used_s", "<u8")])
SETUP_LOCK = 0
EXTENT_LOCKS, BLOCK_LOCKS = 1 << 40, 1 << 41
USE_LOCK = 1 << 42  # shared by processes that have the pack open
POLL_S = 0.001
SEEN_S = 30  # the time of last use may be this late


def header_of(layout: BlockLayout) -> bytes:
    """Return how the file `blocks` begins."""
    return HEADER.pack(MAGIC, layout.BLOCK_BYTES, layout.EXTENT_BLOCKS)


def map_bytes(layout: BlockLayout) -> int:
    """Return the size of the file `blocks`."""
    return HEADER.size + layout.num_extents * EXTENT.itemsize + layout.num_blocks


class FileBlocks(Blocks):
    """Blocks in a folder of the cache.

    Args:
        folder: the folder.
        names: of the files.
        layout: their blocks.

    Raises:
        StorageError: if the files cannot be created.
    """

    _opened = -1

    def __init__(self, folder: str, names: Sequence[str], layout: BlockLayout) -> None:
        self.place, self._path = folder, os.path.join(folder, NAME)
        self.folder, self.names, self._inodes = folder, list(names), list[int]()
        super().__init__(layout)
        try:
            self._set_up()
        except StorageError:
            raise
        except OSError as error:
            problem = f"cannot be prepared: {error.strerror or error}"
            raise StorageError(folder, problem, "free disk space, or choose another cache folder") from None

    def _reset(self) -> None:
        super()._reset()
        self._opening = threading.Lock()
        if self._opened >= 0:
            os.close(self._opened)  # a child shares the locks of what it has inherited
        self._opened = -1

    @property
    def _descriptor(self) -> int:
        """The descriptor whose locks are those of this process."""
        if self._opened < 0:
            with self._opening:
                if self._opened < 0:
                    self._opened = _open_used(self._path)
                    weakref.finalize(self, _close, self._opened, self._pid).atexit = False
        return self._opened

    def _set_up(self) -> None:
        _lock(self._descriptor, SETUP_LOCK, 1, shared=False)
        try:
            size, found = map_bytes(self.layout), os.fstat(self._descriptor).st_size
            if found < size:  # no holes: the disk must have room for it
                write_at(self._descriptor, bytes(size - found), found)
            header, before = header_of(self.layout), read_at(self._descriptor, HEADER.size, 0)
            if found > size or before not in (header, bytes(HEADER.size)):
                raise StorageError(self._path, "is of another version of packer", "packer cache --clear")
            write_at(self._descriptor, header, 0)
            with open(self._path, "rb") as file:
                content = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)  # holds its own descriptor
            extents = np.frombuffer(content, EXTENT, self.layout.num_extents, HEADER.size)
            self.generations, self._used = extents["generation"], extents["used_s"]
            self.states = np.frombuffer(content, np.uint8, self.layout.num_blocks, size - self.layout.num_blocks)
            for number, name in enumerate(self.names):
                self._set_up_file(number, os.path.join(self.folder, name))
        finally:
            unlock_bytes(self._descriptor, SETUP_LOCK, 1)

    def is_current(self) -> bool:
        """Return whether the files are still those that were opened; somebody may have removed them."""
        try:
            found = [os.stat(os.path.join(self.folder, name)).st_ino for name in self.names]
            return found == self._inodes and os.path.samestat(os.stat(self._path), os.fstat(self._descriptor))
        except OSError:
            return False

    def _set_up_file(self, number: int, path: str) -> None:
        size = self.layout.sizes[number]
        with _own(path) as opened:
            found = os.fstat(opened)
            self._inodes.append(found.st_ino)
            if found.st_size == size:
                return
            os.ftruncate(opened, size)
        first, end = self.layout.first_blocks[number : number + 2].tolist()
        self._write_states(first, bytes(end - first))  # if it was there before, it has lost bytes

    def _take(self, extents: Int64) -> None:
        for first, count in runs(extents.tolist()):
            _lock(self._descriptor, EXTENT_LOCKS + first, count)  # one of them may be being evicted
            now = int(time.time())
            if now - int(self._used[first : first + count].min()) > SEEN_S:
                table = np.empty(count, EXTENT)
                table["generation"], table["used_s"] = self.generations[first : first + count], now
                with suppress(OSError):  # a full disk: it is only the order of eviction
                    write_at(self._descriptor, table.tobytes(), HEADER.size + first * EXTENT.itemsize)

    def _give(self, extents: Int64) -> None:
        for first, count in runs(extents.tolist()):
            unlock_bytes(self._descriptor, EXTENT_LOCKS + first, count)

    @contextmanager
    def claimed(self, first: int, count: int) -> Iterator[list[tuple[int, int]]]:
        """Claim the right to fetch neighboring blocks (`Blocks.claimed`)."""
        locked: list[tuple[int, int]] = []
        try:
            if lock_bytes(self._descriptor, BLOCK_LOCKS + first, count):
                locked.append((first, count))
            else:
                for block in range(first, first + count):
                    if lock_bytes(self._descriptor, BLOCK_LOCKS + block, 1):
                        locked.append((block, 1))
            numbers = [b for start, length in locked for b in self.absent(np.arange(start, start + length))]
            yield list(runs(numbers))
        finally:
            for start, length in locked:
                unlock_bytes(self._descriptor, BLOCK_LOCKS + start, length)

    def write(self, file: int, start: int, data: Any) -> None:
        """Write bytes of a file. Raise OSError on failure."""
        try:
            with _own(os.path.join(self.folder, self.names[file]), create=False) as opened:
                if os.fstat(opened).st_ino != self._inodes[file]:
                    raise FileNotFoundError
                write_at(opened, data, start)
        except FileNotFoundError:
            raise StorageError(self.folder, "was removed while it was in use", "open the pack again") from None

    def _mark(self, first: int, count: int) -> None:
        self._write_states(first, b"\1" * count)

    def _write_states(self, first: int, states: bytes) -> None:
        write_at(self._descriptor, states, map_bytes(self.layout) - self.layout.num_blocks + first)


@contextmanager
def _own(path: str, create: bool = True) -> Iterator[int]:
    """Yield the descriptor of a file of packer's own (`open_own`), and close it."""
    descriptor = open_own(path, create)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _lock(descriptor: int, start: int, count: int, shared: bool = True) -> None:
    while not lock_bytes(descriptor, start, count, shared):
        time.sleep(POLL_S)


def _open_used(path: str) -> int:
    """Open a file `blocks` and mark it as used. Raise OSError on failure: its folder may be removed at this moment."""
    while True:
        opened = open_own(path)
        try:
            _lock(opened, USE_LOCK, 1)
            if os.path.samestat(os.fstat(opened), os.stat(path)):
                return opened
        except BaseException:
            os.close(opened)
            raise
        os.close(opened)


def _close(descriptor: int, pid: int) -> None:
    if pid == os.getpid():
        os.close(descriptor)


class StoredBlocks:
    """The blocks of a folder as eviction sees them, of a pack that need not be open anywhere.

    Args:
        folder: the folder.
        names: of its files.
        layout: their blocks.
    """

    def __init__(self, folder: str, names: Sequence[str], layout: BlockLayout) -> None:
        self.folder, self.names, self.layout = folder, list(names), layout
        self._path = os.path.join(folder, NAME)

    def _read(self) -> bytes:
        """Return the file `blocks`; one of which no block is there if it is not as it should be."""
        with open_regular(self._path) as file:
            content = file.read()
        right = len(content) == map_bytes(self.layout) and content.startswith(header_of(self.layout))
        return content if right else bytes(map_bytes(self.layout))

    def present(self) -> NDArray[np.bool_]:
        """Return whether each block is there."""
        count = self.layout.num_blocks
        return np.frombuffer(self._read(), np.uint8, count, map_bytes(self.layout) - count).astype(np.bool_)

    def here_bytes(self) -> int:
        """Return the bytes of the blocks that are there."""
        return int(self.layout.block_sizes[self.present()].sum())

    def other_bytes(self) -> int:
        """Return the size of the files of the folder that are not fetched by blocks."""
        others = {*os.listdir(self.folder)} - {*self.names}
        return sum(size_of(os.path.join(self.folder, name)) for name in others)

    def used_s(self) -> Int64:
        """Return when each extent was last used, in seconds since the epoch."""
        return np.frombuffer(self._read(), EXTENT, self.layout.num_extents, HEADER.size)["used_s"].astype(np.int64)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep all blocks from being evicted; this is no use of them that counts."""
        with _own(self._path, create=False) as descriptor:
            _lock(descriptor, EXTENT_LOCKS, max(1, self.layout.num_extents))
            yield

    @contextmanager
    def unused(self) -> Iterator[bool]:
        """Return whether no process has the pack open; until the end of the context, none can open it."""
        with _own(self._path) as descriptor:
            yield lock_bytes(descriptor, USE_LOCK, 1)

    def evict(self, extent: int) -> int:
        """Give the disk space of an extent back, unless somebody uses or fetches it; return the bytes it had."""
        first, end = self.layout.first_of_extent[extent : extent + 2].tolist()
        file, start, stop = self.layout.span(first, end - first)
        path = os.path.join(self.folder, self.names[file])
        with (
            _own(self._path, create=False) as descriptor,  # its locks exclude those of this process, too
            suppress(OSError),  # a file is gone, or is a symlink, or the file system has no holes
        ):
            locks = ((EXTENT_LOCKS + extent, 1), (BLOCK_LOCKS + first, end - first))
            if not all(lock_bytes(descriptor, *lock) for lock in locks):
                return 0
            size = int(self.layout.block_sizes[first:end][self.present()[first:end]].sum())
            with _own(path, create=False) as opened:
                if size and has_one_name(opened, self.layout.sizes[file]):
                    # this order, so that what is said to be there is there, wherever it is interrupted
                    write_at(descriptor, bytes(end - first), map_bytes(self.layout) - self.layout.num_blocks + first)
                    place = HEADER.size + extent * EXTENT.itemsize
                    generation = int.from_bytes(read_at(descriptor, 8, place), "little")
                    write_at(descriptor, (generation + 1).to_bytes(8, "little"), place)
                    punch_hole(opened, start, stop - start)
                    return size
        return 0
