"""Training from a pack in a store: opening it, and epochs with an empty and a full cache."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import count

from simulation.build import Phase, World
from simulation.clock import Counter, Process, Queue, compute
from simulation.fetching import Cache, Fetcher, Files, Indexes
from simulation.reading import ROW_BYTES, Reader, blocks_before, sampled_shards, setting_is_large, shards_of_epoch
from simulation.setting import Setting

from packer.loading.page_cache import AHEAD_BYTES
from packer.stores.layout import Layout

BLOCK = Layout.BLOCK_BYTES
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
        yield from compute(world.clock, world.cores[node.number], setting.rank_start_s)
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
