"""Training from a pack in a store: opening it, and epochs with an empty and a full cache.

What the processes of a node fetch, and how, are the steps of `packer.stores.fetch`, `packer.stores.sparse` and
`packer.format.remote`, without bytes. In which order a rank reads, and what its loader asks for in advance, is not
modelled: samplers, windows and announcements are those of packer, for a pack that has no bytes.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import numpy as np
from simulation.cluster import FETCHING, INDEXES, Counter, Phase, Process, Queue, World, compute
from simulation.setting import Setting

from packer.format.indexes import FETCHED_AT_ONCE
from packer.format.mmap import MANY_FILES
from packer.format.remote import Remote
from packer.loading.page_cache import AHEAD_BYTES, Closable, WindowedBatches, announced
from packer.loading.pipeline import DECODED_A_PART, PART_BYTES
from packer.model.annotation import Int64
from packer.samplers import BlockShuffleSampler, Sampler, ShuffleSampler
from packer.samplers.order import RUN, SAMPLED_RUNS
from packer.stores.blocks import BlockLayout, runs
from packer.stores.fetch import JOINED_BLOCKS, MOST_THREADS

# -- what a node fetches

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
        self.layout = BlockLayout((np.diff(self.firsts) * setting.image_bytes).tolist())
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
    def layout(self) -> BlockLayout:
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
                for first, number in list(runs(claimed)):
                    before = clock.now
                    yield from self._fetch(first, number)
                    self._world.fly(FETCHING, before, self._most)
                if not claimed:
                    yield clock.now + TAKEN_S
            self._idle += 1

    def _fetch(self, first: int, count: int) -> Process:
        world, setting = self._world, self._world.setting
        size = int(self._cache.layout.block_sizes[first : first + count].sum())
        yield from world.request(self._node, "GET", size)
        yield from compute(world.clock, world.cores[self._node], size * setting.fetch_byte_s)
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


# -- in which order a rank reads

ROW_BYTES = 224 * 224 * 3
"""Of an image in a batch. Images of this size are stored raw."""


def sampler_of(setting: Setting, files: Files, rank: int) -> Sampler:
    """Return the sampler of a rank."""
    world_size = setting.nodes * setting.ranks
    if not setting.block_shuffle:
        return ShuffleSampler(setting.images, rank=rank, world_size=world_size)
    return BlockShuffleSampler(
        np.diff(files.firsts).tolist(), block=setting.block_records, window=setting.window_blocks, rank=rank,
        world_size=world_size, nodes=setting.nodes if setting.canonical else None, local_world_size=setting.ranks,
    )  # fmt: skip


@dataclass(frozen=True)
class Asked:
    """What a loader asks for at once."""

    shards: list[int]
    """Whose indexes it needs first."""
    blocks: list[int]
    later: bool


class _Nothing:
    def close(self) -> None:
        """Hold nothing."""


class _Windows(WindowedBatches):
    """Windows, each of which one rank of a node asks for: the model keeps the blocks of all ranks in one queue."""

    known: set[int]

    def ahead(self, ask: Callable[[Int64], list[Closable]]) -> Any:
        def ask_once(records: Int64) -> list[Closable]:
            if (first := int(records.min())) in self.known:
                return [_Nothing()]
            self.known.add(first)
            return ask(records)

        return super().ahead(ask_once)


class Reader:
    """A pack of a store as the loader of one rank sees it: it notes what is asked for.

    Args:
        setting: The pack, and who reads it.
        files: Its shards.
        rank: Of all ranks.
        known: The windows that were asked for on this node, by their first record.
    """

    manifest = None
    blocks_of, ends_of = Remote.blocks_of, Remote.ends_of

    def __init__(self, setting: Setting, files: Files, rank: int, known: set[int]) -> None:
        self._setting, self._files = setting, files
        self.starts, self.layout = files.starts, files.layout
        self.blocks, self.remote, self.files = self, self, (self,)
        self.reader = self
        self._known, self._opened = known, np.zeros(setting.shards, np.bool_)
        self._new: list[int] = []
        self._asked: list[Asked] = []
        self.sampler = sampler_of(setting, files, rank)

    def batches(self, begun: float) -> Iterator[tuple[Int64, list[Asked]]]:
        """Yield the records of each batch, and what is asked for before it comes; after this share of the epoch."""
        sampler, size = self.sampler, self.sampler.global_batch(self._setting.batch)
        start = int(begun * sampler.num_batches(self._setting.batch)) * size
        records: Any = sampler.rank_batches(self._setting.batch, 0, start)
        if isinstance(sampler, BlockShuffleSampler):
            records = _Windows(records, sampler, 0, start, size)
            records.known = self._known
        reader: Any = self
        for batch in announced(records, reader):
            asked, self._asked = self._asked, []
            yield batch, asked

    def parts(self, records: Int64) -> list[tuple[int, list[int]]]:
        """Return the images of each part of a batch that a thread prepares, and their blocks."""
        setting: Setting = self._setting
        if setting.image_bytes < ROW_BYTES:
            size = min(-(-len(records) // setting.threads), DECODED_A_PART)
        else:
            size = -(-len(records) // max(1, min(setting.threads, round(len(records) * ROW_BYTES / PART_BYTES))))
        cuts = [records[start : start + size] for start in range(0, len(records), size)]
        return [(len(cut), self._blocks(cut).tolist()) for cut in cuts]

    def _blocks(self, records: Int64) -> Int64:
        reader: Any = self
        return Remote.blocks_of(reader, *self.shards_and_places(records)[1:])

    def shards_and_places(self, records: Int64) -> tuple[Int64, Int64, Int64]:
        """Return the shards of records, where they are, and their sizes."""
        shards = self._files.firsts.searchsorted(records, "right") - 1
        offsets = self._files.starts[shards] + (records - self._files.firsts[shards]) * self._files.image_bytes
        return shards, offsets, np.full(len(records), self._files.image_bytes)

    # -- as `packer.loading.page_cache` asks a pack, and what fetches it

    def by_files(self, records: Int64) -> Iterator[tuple[Any, Int64]]:
        """Yield the files of the pack, in which all records are."""
        yield self, records

    def own_places(self, records: Int64) -> tuple[Int64, Int64]:
        """Return where records are, and their sizes; it opens the shards that are new."""
        shards, offsets, sizes = self.shards_and_places(records)
        if setting_is_large(self._setting) and not (opened := self._opened[shards]).all():
            self._new += np.unique(shards[~opened]).tolist()
            self._opened[shards] = True
        return offsets, sizes

    def fits(self) -> bool:
        """Return whether the cache holds the whole pack."""
        return self._setting.pack_bytes <= self._setting.cache_bytes

    def announce(self, blocks: Int64, later: bool) -> None:
        """Note what is asked for."""
        self._asked.append(Asked(self._new, blocks.tolist(), later))
        self._new = []

    def pinned(self, blocks: Int64) -> Closable:
        """Hold blocks: there is no eviction."""
        return _Nothing()

    def all_pinned(self) -> Closable:
        """Hold all blocks."""
        return _Nothing()

    def note_whole(self, files: Any) -> bool:
        """Return whether it is known that everything is there."""
        return False

    def begin(self) -> None:
        """Begin to announce."""

    def end(self, token: object) -> None:
        """End."""


def blocks_before(setting: Setting, files: Files, rank: int, begun: float) -> list[int]:
    """Return the blocks of the windows that this share of an epoch has before: runs that come later share some."""
    reader: Any = Reader(setting, files, rank, set())
    ends = [runs for start, _, runs in reader.sampler.windows(0) if start < begun * setting.images]
    records = np.concatenate(ends)
    _, first, _ = reader.shards_and_places(records[:, 0])
    _, last, _ = reader.shards_and_places(records[:, 1] - 1)
    firsts, lasts = Remote.ends_of(reader, first, last - first + setting.image_bytes)
    edges = np.bincount(firsts, minlength=files.layout.num_blocks + 1)
    edges -= np.bincount(lasts + 1, minlength=files.layout.num_blocks + 1)
    return np.flatnonzero(np.cumsum(edges)).tolist()


def setting_is_large(setting: Setting) -> bool:
    """Return whether the indexes of a pack are fetched when its shards are first read, not when it is opened."""
    return setting.shards > MANY_FILES


def sampled_shards(setting: Setting, files: Files) -> list[int]:
    """Return the shards at whose labels a block shuffle looks when it is made, to tell whether the pack is sorted."""
    if not setting.block_shuffle or not setting_is_large(setting):
        return []
    starts = np.linspace(0, setting.images - RUN, SAMPLED_RUNS).astype(np.int64)
    ends = np.concatenate([starts, starts + RUN - 1])
    return np.unique(files.firsts.searchsorted(ends, "right") - 1).tolist()


def shards_of_epoch(setting: Setting, files: Files, node: int) -> int:
    """Return of how many shards a node needs the indexes: all, or of its part of the pack and of the sample."""
    if not setting_is_large(setting):
        return 0
    if not (setting.block_shuffle and setting.canonical):
        return setting.shards
    bounds = np.array([setting.images * node // setting.nodes, setting.images * (node + 1) // setting.nodes - 1])
    first, last = (files.firsts.searchsorted(bounds, "right") - 1).tolist()
    return len({*range(first, last + 1), *sampled_shards(setting, files)})


# -- phases

BLOCK = BlockLayout.BLOCK_BYTES
NODES = 4
"""Simulated, of all."""
PREFETCH = 2
"""Of `PackedLoader`, in batches."""


@dataclass(frozen=True)
class Stretch:
    """A part of an epoch."""

    begun: float = 0.0
    """Share of the epoch that is read before."""
    length: float = 1.0
    """Share of the epoch that is read."""
    cached: float = 0.0
    """Share of the blocks that are in the cache of each node when it begins."""
    has_indexes: bool = False
    """Whether the indexes are there."""


FIRST = Stretch()


def _world(setting: Setting) -> tuple[World, int]:
    """Return some of the nodes with their share of what the store allows, and how many; all nodes do the same."""
    nodes = min(setting.nodes, NODES)
    prefixes = setting.prefixes * nodes / setting.nodes
    world = World(setting, nodes, setting.cores, setting.network_bytes_s, prefixes)
    world.gpus.servers = nodes * setting.ranks
    return world, nodes


def opening(setting: Setting) -> Phase:
    """Open the pack in every rank.

    Each rank fetches the manifest. Of a pack of few shards, the ranks of a node then fetch all indexes, each of which
    comes once; those of a pack of many shards come when they are needed.
    """
    world, nodes = _world(setting)
    done = Counter(world.clock)

    def rank(node: int, indexes: Indexes) -> Process:
        yield from world.request(node, "GET", setting.shards * setting.manifest_bytes)
        if not setting_is_large(setting):
            yield from indexes.fetch(range(setting.shards))
        done.add()

    def main() -> Process:
        for node in range(nodes):
            indexes = Indexes(world, node, nodes * setting.ranks)
            for _ in range(setting.ranks):
                world.clock.start(rank(node, indexes))
        yield done, nodes * setting.ranks

    phase = world.phase("open the pack", main())
    mapped = 0 if setting_is_large(setting) else setting.images * setting.index_bytes
    phase.memory["node"] = mapped + setting.ranks * setting.shards * setting.manifest_bytes
    return _scaled(phase, setting.nodes / nodes)


def _scaled(phase: Phase, nodes: float) -> Phase:
    """Return a phase of so many times the nodes."""
    requests = {kind: number * nodes for kind, number in phase.requests.items()}
    return replace(phase, bytes_read=phase.bytes_read * nodes, requests=requests)


class Node:
    """What the ranks of one node share."""

    def __init__(self, world: World, number: int, files: Files, stretch: Stretch, nodes: int) -> None:
        processes = nodes * world.setting.ranks
        self.number, self.cached = number, stretch.cached
        self.cache = Cache(world, files, stretch.cached)
        if world.setting.takes_windows and stretch.begun and not stretch.cached:
            self.cache.add(blocks_before(world.setting, files, number * world.setting.ranks, stretch.begun))
        self.indexes = Indexes(world, number, processes)
        self.has_indexes = stretch.has_indexes or not setting_is_large(world.setting)
        self.windows: set[int] = set()
        """Those that were asked for, by their first record."""


class Rank:
    """What the processes (of the clock) of one rank share.

    Args:
        world: Its machines.
        files: The shards of the pack.
        node: Its node.
        number: Of all ranks.
        nodes: How many are simulated.
    """

    def __init__(self, world: World, files: Files, node: Node, number: int, nodes: int) -> None:
        clock = world.clock
        self.world, self.files, self.node = world, files, node
        self.reader = Reader(world.setting, files, number, node.windows)
        self.fetcher = Fetcher(world, node.number, node.cache, nodes * world.setting.ranks)
        self.parts = Queue(clock)
        """(blocks, images, counter of the batch) of what a thread prepares at once."""
        self.batches: list[tuple[Counter, int]] = []
        """Parts of each batch that are prepared, and how many there are."""
        self.announced, self.taken = Counter(clock), Counter(clock)

    def announcer(self, begun: float) -> Process:
        """Ask for the batches in advance, and give them to the threads."""
        world, node, setting = self.world, self.node, self.world.setting
        if not node.has_indexes:
            yield from node.indexes.fetch(sampled_shards(setting, self.files))
        for _ in range(setting.threads):
            world.clock.start(self.thread())
        for step, (records, asked) in enumerate(self.reader.batches(begun)):
            for one in asked:
                if one.shards and not node.has_indexes:
                    yield from node.indexes.fetch(one.shards)
                self.fetcher.announce(one.blocks, one.later)
                yield world.clock.now  # threads begin with a batch before its windows are known
            parts, prepared = self.reader.parts(records), Counter(world.clock)
            self.batches.append((prepared, len(parts)))
            for images, blocks in parts:
                self.parts.put((blocks, images, prepared))
            self.announced.add()
            yield self.taken, step + 1 - PREFETCH

    def thread(self) -> Process:
        """Prepare parts of batches."""
        world, node, setting = self.world, self.node, self.world.setting
        while True:
            blocks, images, prepared = yield self.parts
            self.fetcher.need(blocks)
            yield from node.cache.wait(blocks)
            if node.cached and setting.disk_bytes_s:
                seconds = node.cached * images * setting.image_bytes / setting.disk_bytes_s
                yield world.disks[node.number].serve(world.clock.now, seconds)
            yield from compute(world.clock, world.cores[node.number], images * setting.decode_s)
            prepared.add()


@dataclass(frozen=True)
class _Count:
    """What was counted until now."""

    seconds: float
    requests: float
    """For blocks."""
    bytes_read: float
    busy_s: dict[str, float]

    @classmethod
    def of(cls, world: World, nodes: list[Node]) -> _Count:
        """Return what a world has counted."""
        setting, indexes = world.setting, sum(node.indexes.requests for node in nodes)
        size = indexes * setting.images * setting.index_bytes / setting.shards
        return cls(world.clock.now, world.requests["GET"] - indexes, world.bytes_read - size, world.busy_s())

    def extended(self, before: _Count, times: float) -> _Count:
        """Return what it will be if what came since `before` comes so many times."""

        def more(name: str) -> float:
            then: float = getattr(before, name)
            return then + times * (float(getattr(self, name)) - then)

        return _Count(more("seconds"), more("requests"), more("bytes_read"), self.busy_s)

    def busy_since(self, before: _Count) -> dict[str, float]:
        """Return the share of the time since `before` in which each resource was busy."""
        seconds = self.seconds - before.seconds
        return {name: (spent - before.busy_s.get(name, 0.0)) / seconds for name, spent in self.busy_s.items()}


def _simulated(setting: Setting, steps: int) -> tuple[int, int]:
    """Return after how many steps one is like the other, and how many to simulate: whole windows follow until then."""
    tail = max(1, steps // 2)
    if setting.block_shuffle:
        parts = setting.nodes if setting.canonical else 1
        images = -(-setting.window_blocks // parts) * setting.block_records * parts
        window = images / (setting.nodes * setting.ranks * setting.batch)
        tail = math.ceil(round(math.ceil(tail / window) * window, 6))
        steps = max(steps, math.ceil(2 * window) + tail)
    return steps - tail, steps


def epoch(setting: Setting, name: str, stretch: Stretch = FIRST, steps: int | None = None) -> Phase:
    """Read an epoch, or a part of it, and train.

    Args:
        setting: What is read, and by whom.
        name: Of the phase.
        stretch: The part of the epoch.
        steps: About how many steps are simulated: the second half of them stands for all that follow. None: all.
    """
    world, count_of_nodes = _world(setting)
    files, ranks, clock = Files(setting), count_of_nodes * setting.ranks, world.clock
    nodes = [Node(world, number, files, stretch, count_of_nodes) for number in range(count_of_nodes)]
    readers = [
        Rank(world, files, node, node.number * setting.ranks + number, count_of_nodes)
        for node in nodes
        for number in range(setting.ranks)
    ]
    batches = readers[0].reader.sampler.num_batches(setting.batch)
    whole, left = max(1, round(batches * stretch.length)), batches - int(batches * stretch.begun)
    settled, steps = _simulated(setting, min(steps or whole, whole))
    if steps > min(whole, left):
        settled, steps = 0, min(whole, left)
    arrived, consumed = Counter(clock), Counter(clock)
    counts: list[_Count] = []

    def consumer(rank: Rank) -> Process:
        for step in count():
            yield rank.announced, min(left, step + 1 + PREFETCH)
            yield rank.batches[step]
            rank.taken.add()
            if setting.gpu_images_s:
                world.gpus.busy_s += setting.batch / setting.gpu_images_s
                yield clock.now + setting.batch / setting.gpu_images_s
                arrived.add()
                yield arrived, ranks * (step + 1)  # gradients of all ranks
            consumed.add()
            if step + 1 == steps:
                return

    def main() -> Process:
        for rank in readers:
            clock.start(rank.announcer(stretch.begun))
            clock.start(consumer(rank))
        for until in (settled, steps):
            yield consumed, ranks * until
            counts.append(_Count.of(world, nodes))

    phase = world.phase(name, main())
    total, before = counts[1], counts[0]
    indexes = sum(node.indexes.requests for node in nodes)
    if steps < whole:
        phase.busy = total.busy_since(before)
        total = total.extended(before, (whole - settled) / (steps - settled))
        if not nodes[0].has_indexes:
            indexes = sum(shards_of_epoch(setting, files, node.number) for node in nodes)
    phase.seconds, phase.requests["GET"] = total.seconds, total.requests + indexes
    phase.bytes_read = total.bytes_read + indexes * setting.images * setting.index_bytes / setting.shards
    phase.memory["node"] = setting.ranks * (AHEAD_BYTES + (2 * PREFETCH + 4) * setting.batch * ROW_BYTES)
    return _scaled(phase, setting.nodes / count_of_nodes)
