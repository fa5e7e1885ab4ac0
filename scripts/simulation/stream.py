"""Training from a pack in a store: opening it, and epochs with an empty and a full cache."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import count

from simulation.build import FETCHING, Phase, World
from simulation.clock import Counter, Process, Queue, compute
from simulation.setting import Setting

from packer.loading.page_cache import AHEAD_BYTES, LEAD_BATCHES
from packer.stores.fetch import JOINED_BLOCKS, MOST_THREADS
from packer.stores.layout import Layout

BLOCK = Layout.BLOCK_BYTES
INDEX_REQUESTS = 32
"""Of one process at once, when it opens a pack (`packer.format.indexes.FETCHED_AT_ONCE`)."""
NODES = 8
"""Simulated, of all."""
PREFETCH = 2
"""Of `PackedLoader`, in batches."""
ROW_BYTES = 224 * 224 * 3
"""Of an image in a batch."""


@dataclass(frozen=True)
class Windows:
    """The images among which a node reads in random order, and the blocks of the pack in which they are."""

    images: float
    """Images of this node in one window."""
    blocks: float
    """Blocks of one window; the node reads all of them only if it has enough of its images."""
    drawn: float
    """Images of all nodes in one window."""

    @classmethod
    def of(cls, setting: Setting) -> Windows:
        """Return those of a sampler."""
        if not setting.block_shuffle:
            return cls(setting.images / setting.nodes, setting.pack_bytes / BLOCK, setting.images)
        stream = setting.images / (setting.nodes if setting.canonical else 1)
        windows = math.ceil(stream / (setting.window_blocks * setting.block_records))
        drawn = stream / windows  # of even size, so that the last one is not smaller
        blocks = drawn * setting.image_bytes / BLOCK + drawn / setting.block_records  # runs begin and end within blocks
        return cls(drawn if setting.canonical else drawn / setting.nodes, blocks, drawn)

    def touched(self, images: float, image_bytes: float) -> float:
        """Return how many blocks the first images of a node in all its windows are in."""
        whole, rest = divmod(images, self.images)
        return whole * self._in_one(self.images, image_bytes) + self._in_one(rest, image_bytes)

    def _in_one(self, images: float, image_bytes: float) -> float:
        sharing = max(1.0, self.drawn * (1 + image_bytes / BLOCK) / self.blocks)  # images that have bytes in a block
        return float(self.blocks * (1 - (1 - min(1.0, images / self.drawn)) ** sharing))


def joined(density: float) -> float:
    """Return the mean blocks of a request if this share of the blocks around it is asked for, too."""
    return min(float(JOINED_BLOCKS), (1 + density) / (1 - density) if density < 1 else math.inf)


def _world(setting: Setting) -> tuple[World, int]:
    """Return some of the nodes with their share of what the store allows, and how many; all nodes do the same."""
    nodes = min(setting.nodes, NODES)
    prefixes = setting.prefixes * nodes / setting.nodes
    world = World(setting, nodes, setting.cores, setting.network_bytes_s, prefixes)
    world.gpus.servers = nodes * setting.ranks
    return world, nodes


def _of_all(phase: Phase, nodes: float, times: float = 1.0) -> Phase:
    """Return a phase of so many times the nodes, and of so many times the steps."""
    requests = {kind: number * nodes * times for kind, number in phase.requests.items()}
    return replace(phase, seconds=phase.seconds * times, bytes_read=phase.bytes_read * nodes * times, requests=requests)


def opening(setting: Setting) -> Phase:
    """Open the pack in every rank: the manifest, and the indexes of all shards, which each rank of a node asks for
    that does not find them in the cache folder when it begins."""
    world, nodes = _world(setting)
    size = setting.images * setting.index_bytes / setting.shards
    done = Counter(world.clock)

    def fetcher(node: int, indexes: Queue) -> Process:
        while True:
            step = yield indexes
            before = world.clock.now
            yield from world.request(node, "GET", step * size, step)
            world.fly(FETCHING, before, nodes * setting.ranks * INDEX_REQUESTS)
            done.add(step)

    def main() -> Process:
        step = max(1, setting.shards // 256)  # so many at a time on one connection, one after another
        steps = [min(step, setting.shards - first) for first in range(0, setting.shards, step)]
        for node in range(nodes):
            for _ in range(setting.ranks):
                indexes = Queue(world.clock, tuple(steps))
                for _ in range(INDEX_REQUESTS):
                    world.clock.start(fetcher(node, indexes))
        yield done, setting.shards * nodes * setting.ranks

    phase = world.phase("open the pack", main())
    phase.memory["node"] = setting.images * setting.index_bytes
    return _of_all(phase, setting.nodes / nodes)


class Wanted:
    """The blocks that a rank has announced and not begun to fetch, as `packer.stores.fetch` has them."""

    def __init__(self, world: World, windows: Windows) -> None:
        self._windows = windows
        self._blocks, self._rest = 0, 0.0
        self.threads = Queue(world.clock)

    def add(self, blocks: int) -> None:
        """Announce blocks; only as many threads are woken as have something to do if all are neighbors."""
        self._blocks += blocks
        for _ in range(-(-blocks // JOINED_BLOCKS)):
            self.threads.put(None)

    def take(self) -> int:
        """Return how many blocks the next request is for; 0 if there are none."""
        size = joined(min(1.0, self._blocks / self._windows.blocks)) + self._rest
        blocks = min(int(size), self._blocks)
        self._rest = size - int(size)
        self._blocks -= blocks
        return blocks


class Node:
    """What the ranks of one node share: the blocks that are there."""

    def __init__(self, world: World, number: int, windows: Windows, begun: float, cached: float) -> None:
        self.number, self.cached = number, cached
        self.fetched, self.asked = Counter(world.clock), 0
        """Blocks."""
        self._windows, self._size = windows, world.setting.image_bytes
        self._images, self._owed = begun, 0.0

    def announce(self, images: int, wanted: Wanted) -> int:
        """Ask for the blocks of a batch that are not there; return how many blocks must come first."""
        before = self._windows.touched(self._images, self._size)
        self._images += images
        new = (self._windows.touched(self._images, self._size) - before) * (1 - self.cached) + self._owed
        blocks = int(new)
        self._owed = new - blocks
        self.asked += blocks
        wanted.add(blocks)
        return self.asked


def epoch(setting: Setting, name: str, cached: float = 0.0, steps: int | None = None, begun: float = 0.0) -> Phase:
    """Read an epoch, or some steps of it, and train.

    Args:
        setting: What is read, and by whom.
        name: Of the phase.
        cached: Share of the blocks that are in the cache of each node.
        steps: How many steps are simulated; the time of the others is that of these. None: all.
        begun: Share of the epoch that is read already.
    """
    whole = max(1, setting.images // (setting.nodes * setting.ranks * setting.batch))
    steps = min(steps or whole, whole)
    world, nodes = _world(setting)
    ranks, windows = nodes * setting.ranks, Windows.of(setting)
    each = windows.images / (setting.ranks * setting.batch)
    if 1 < each <= steps < whole:  # the first step of a window needs most of it
        steps = int(steps // each * each)
    clock = world.clock
    arrived = Counter(clock)
    ended = Counter(clock)
    share = setting.batch / setting.threads

    def fetcher(node: Node, wanted: Wanted) -> Process:
        while True:
            yield wanted.threads
            while blocks := wanted.take():
                before = clock.now
                yield from world.request(node.number, "GET", blocks * BLOCK)
                work = setting.fetch_s + blocks * BLOCK * setting.fetch_byte_s
                yield from compute(clock, world.cores[node.number], work)
                world.fly(FETCHING, before, ranks * MOST_THREADS)
                node.fetched.add(blocks)

    def rank(node: Node) -> Process:
        wanted, prepared, taken = Wanted(world, windows), Counter(clock), Counter(clock)
        needs: list[int] = []
        announced = Counter(clock)
        yield from compute(clock, world.cores[node.number], setting.rank_start_s)
        for _ in range(MOST_THREADS):
            clock.start(fetcher(node, wanted))
        for number in range(setting.threads):
            clock.start(thread(node, number, needs, (announced, prepared, taken)))
        clock.start(consumer(prepared, taken))
        lead = 1 + AHEAD_BYTES // (setting.batch * setting.image_bytes)
        for step in range(steps):
            yield taken, step - PREFETCH
            while len(needs) < min(steps, LEAD_BATCHES * (step + 1), step + 1 + lead):
                needs.append(node.announce(setting.batch, wanted))
            announced.add()

    def thread(node: Node, number: int, needs: list[int], counters: tuple[Counter, Counter, Counter]) -> Process:
        announced, prepared, _ = counters
        for step in range(steps):
            yield announced, step + 1
            yield node.fetched, needs[step]
            if node.cached and setting.disk_bytes_s:
                yield world.disks[node.number].serve(
                    clock.now, node.cached * share * setting.image_bytes / setting.disk_bytes_s
                )
            yield from compute(clock, world.cores[node.number], share * setting.decode_s)
            prepared.add()

    def consumer(prepared: Counter, taken: Counter) -> Process:
        for step in count():
            yield prepared, (step + 1) * setting.threads
            taken.add()
            if setting.gpu_images_s:
                world.gpus.busy_s += setting.batch / setting.gpu_images_s
                yield clock.now + setting.batch / setting.gpu_images_s
                arrived.add()
                yield arrived, ranks * (step + 1)  # gradients of all ranks
            if step + 1 == steps:
                ended.add()
                return

    def main() -> Process:
        for number in range(nodes):
            node = Node(world, number, windows, begun * setting.images / setting.nodes, cached)
            for _ in range(setting.ranks):
                clock.start(rank(node))
        yield ended, ranks

    phase = world.phase(name, main())
    phase.memory["node"] = setting.ranks * (AHEAD_BYTES + (2 * PREFETCH + 4) * setting.batch * ROW_BYTES)
    return _of_all(phase, setting.nodes / nodes, whole / steps)
