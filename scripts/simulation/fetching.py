"""What the processes of a node fetch of a pack, and how: its indexes, and its blocks in requests for neighbors.

The steps are those of `packer.stores.fetch`, `packer.stores.sparse` and `packer.format.remote`, without bytes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping

import numpy as np
from simulation.build import FETCHING, INDEXES, World
from simulation.clock import Counter, Process, Queue, compute
from simulation.setting import Setting

from packer.format.indexes import FETCHED_AT_ONCE
from packer.stores.fetch import JOINED_BLOCKS, MOST_THREADS
from packer.stores.layout import Layout, runs

ABSENT, FLYING, HERE = range(3)
TAKEN_S = 0.01
"""How long a thread rests that finds all its blocks with other processes (`packer.stores.fetch.OTHERS_S`)."""


class Files:
    """The shards of a pack, of even sizes, one after another in one range of addresses as `packer` maps them."""

    def __init__(self, setting: Setting) -> None:
        shards, images = setting.shards, setting.images
        firsts = [images * number // shards for number in range(shards + 1)]
        self.firsts = np.array(firsts, np.int64)
        """The first record of each shard, and the end."""
        self.layout = Layout((np.diff(self.firsts) * setting.image_bytes).tolist())
        pages = -(-np.array(self.layout.sizes, np.int64) // 4096) * 4096
        self.starts = np.cumsum(pages) - pages
        """Where each shard begins."""
        self.image_bytes = setting.image_bytes


class Indexes:
    """The indexes in the cache folder of a node. One process fetches each, and the others wait for it."""

    def __init__(self, world: World, node: int, processes: int) -> None:
        setting = world.setting
        self._world, self._node, self._most = world, node, processes * FETCHED_AT_ONCE
        self._bytes = setting.images * setting.index_bytes / setting.shards
        self._there: dict[int, Counter] = {}
        self.requests = 0

    def fetch(self, shards: Iterable[int]) -> Process:
        """Have these indexes there, as one process fetches them: some at once, in order."""
        clock, done = self._world.clock, Counter(self._world.clock)
        waiting = Queue(clock, tuple(shards))
        count = len(waiting)

        def thread() -> Process:
            while len(waiting):
                yield from self._one((yield waiting))
                done.add()

        for _ in range(min(count, FETCHED_AT_ONCE)):
            clock.start(thread())
        yield done, count

    def _one(self, shard: int) -> Process:
        world, there = self._world, self._there.get(shard)
        if there is not None:
            yield there, 1
            return
        there = self._there[shard] = Counter(world.clock)
        before = world.clock.now
        self.requests += 1
        yield from world.request(self._node, "GET", self._bytes)
        world.fly(INDEXES, before, self._most)
        yield from compute(world.clock, world.cores[self._node], self._bytes * world.setting.fetch_byte_s)
        there.add()


class Cache:
    """The blocks in the cache folder of a node, which its processes share."""

    def __init__(self, world: World, files: Files, cached: float) -> None:
        self.layout, self._clock = files.layout, world.clock
        count = self.layout.num_blocks
        self.states = bytearray(count)
        if cached >= 1:
            self.states = bytearray([HERE]) * count
        elif cached > 0:
            # what a block shuffle has fetched are groups of neighbors
            group = JOINED_BLOCKS if world.setting.takes_windows else 1
            drawn = np.random.default_rng(1).random(-(-count // group)) < cached
            self.states = bytearray((np.repeat(drawn, group)[:count] * HERE).astype(np.uint8).tobytes())
        self.later: OrderedDict[int, None] = OrderedDict()
        """Blocks of windows, in the order in which they were announced."""
        self._waiting: dict[int, list[Counter]] = {}

    def add(self, blocks: Iterable[int]) -> None:
        """Let blocks be there."""
        for block in blocks:
            self.states[block] = HERE
            for counter in self._waiting.pop(block, ()):
                counter.add()

    def wait(self, blocks: Iterable[int]) -> Process:
        """Wait until all blocks are there."""
        counter, count = Counter(self._clock), 0
        for block in blocks:
            if self.states[block] != HERE:
                self._waiting.setdefault(block, []).append(counter)
                count += 1
        yield counter, count


class Fetcher:
    """The threads of one process that fetch blocks, and what they are asked for."""

    def __init__(self, world: World, node: int, cache: Cache, processes: int) -> None:
        self._world, self._node, self._cache, self._most = world, node, cache, processes * MOST_THREADS
        self.now: dict[int, None] = {}
        self.soon: dict[int, None] = {}
        self._orders, self._idle = Queue(world.clock), MOST_THREADS
        for _ in range(MOST_THREADS):
            world.clock.start(self._thread())

    def need(self, blocks: Iterable[int]) -> None:
        """Fetch blocks that somebody waits for, before all others."""
        for block in blocks:
            if self._cache.states[block] == ABSENT and block not in self.now:
                self.soon.pop(block, None)
                self.now[block] = None
        self._wake(len(self.now) + len(self.soon) + len(self._cache.later))

    def announce(self, blocks: Iterable[int], later: bool) -> None:
        """Fetch blocks in this order, after those of earlier calls; `later`: after all others."""
        states, now, soon = self._cache.states, self.now, self.soon
        queue = self._cache.later if later else soon
        for block in blocks:
            if states[block] == ABSENT and block not in now and block not in soon:
                queue[block] = None
        self._wake(-(-(len(now) + len(soon) + len(self._cache.later)) // JOINED_BLOCKS))

    def _wake(self, count: int) -> None:
        for _ in range(min(count, self._idle)):
            self._idle -= 1
            self._orders.put(None)

    def take(self) -> list[int]:
        """Return the neighbors to fetch next; none if there is nothing to do."""
        states, later = self._cache.states, self._cache.later
        for queue in (self.now, self.soon, later):
            while queue:
                found = with_neighbors(next(iter(queue)), queue, self)
                for block in found:
                    for other in (self.now, self.soon, later):
                        other.pop(block, None)
                if any(states[block] != HERE for block in found):
                    return found
        return []

    @property
    def layout(self) -> Layout:
        """The blocks of the files."""
        return self._cache.layout

    def in_later(self, block: int) -> bool:
        """Return whether a block is wanted for a window only. Those of a node are kept once, not for each process."""
        return block in self._cache.later and block not in self.soon and block not in self.now

    def has_later(self) -> bool:
        """Return whether any block is wanted for a window."""
        return bool(self._cache.later)

    def _thread(self) -> Process:
        clock, states = self._world.clock, self._cache.states
        while True:
            yield self._orders
            while found := self.take():
                claimed = [block for block in found if states[block] == ABSENT]
                for block in claimed:
                    states[block] = FLYING
                for first, count in list(runs(claimed)):
                    before = clock.now
                    yield from self._fetch(first, count)
                    self._world.fly(FETCHING, before, self._most)
                if not claimed:
                    yield clock.now + TAKEN_S
            self._idle += 1

    def _fetch(self, first: int, count: int) -> Process:
        world, setting = self._world, self._world.setting
        size = int(self._cache.layout.block_sizes[first : first + count].sum())
        yield from world.request(self._node, "GET", size)
        yield from compute(world.clock, world.cores[self._node], setting.fetch_s + size * setting.fetch_byte_s)
        self._cache.add(range(first, first + count))


def with_neighbors(block: int, queue: Mapping[int, None], wanted: Fetcher) -> list[int]:
    """Return what one request is for, as `packer.stores.fetch` chooses it.

    A block and those beside it in the same file: of its queue, and of windows those in its aligned group.
    """
    layout = wanted.layout
    file = layout.files[block]
    begin, end = int(layout.first_blocks[file]), int(layout.first_blocks[file + 1])
    group = begin + (block - begin) // JOINED_BLOCKS * JOINED_BLOCKS
    has_later, is_later = wanted.has_later(), queue is not wanted.now and queue is not wanted.soon

    def joins(other: int) -> bool:
        if has_later and group <= other < group + JOINED_BLOCKS and wanted.in_later(other):
            return other < end
        return not is_later and other in queue and begin <= other < end

    first, stop = block, block + 1
    while stop - first < JOINED_BLOCKS and joins(stop):
        stop += 1
    while stop - first < JOINED_BLOCKS and joins(first - 1):
        first -= 1
    return list(range(first, stop))
