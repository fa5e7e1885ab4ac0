"""What listing, planning and building make a cluster do, step by step as the code of packer does it.

Numbers of images, nodes and requests are in a `Setting`. Each phase is run on a clock on which cores, network cards,
the store's limits and the coordinator are shared, and requests are in flight for as long as the store takes to answer.

A process of the clock is a generator. It yields a time, and goes on then; a `Queue`, and goes on with its next item; or
a pair (`Counter`, number), and goes on when so many are counted. `Resource.serve` tells when some of its equal servers
will have done a piece of work; who asks first is served first. That is what a library such as simpy would be used for;
it is less code than its use, and makes a million events in two seconds.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import deque
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate, count
from typing import Any, TypeAlias

from simulation.setting import Setting

from packer.packing.engines import threads_of
from packer.packing.scan import IMAGES_A_JOB
from packer.sources.store_files import MOST_CALLS, READS
from packer.stores.store import PIECE_BYTES

# -- the clock

Process: TypeAlias = Generator[Any, Any, None]


class Clock:
    """Runs processes; `now` is the time in seconds."""

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Process, Any]] = []
        self._order = count()

    def start(self, process: Process, value: Any = None) -> None:
        """Let a process go on now, with a value."""
        heapq.heappush(self._events, (self.now, next(self._order), process, value))

    def run(self, process: Process) -> float:
        """Run until a process has ended, and return the time; what others still do is left."""
        ended: list[bool] = []

        def whole() -> Process:
            yield from process
            ended.append(True)

        self.start(whole())
        while not ended:
            self.now, _, going, value = heapq.heappop(self._events)
            try:
                wanted = going.send(value)
            except StopIteration:
                continue
            if isinstance(wanted, float):
                heapq.heappush(self._events, (max(wanted, self.now), next(self._order), going, None))
            elif isinstance(wanted, Queue):
                wanted.take(going)
            else:
                counter, least = wanted
                counter.wait(going, least)
        return self.now


class Queue:
    """Items for whoever asks, in order."""

    def __init__(self, clock: Clock, items: Iterator[Any] | tuple[Any, ...] = ()) -> None:
        self._clock = clock
        self._items: deque[Any] = deque(items)
        self._waiting: deque[Process] = deque()

    def __len__(self) -> int:
        return len(self._items)

    def put(self, item: Any) -> None:
        """Give an item to who waits longest."""
        if self._waiting:
            self._clock.start(self._waiting.popleft(), item)
        else:
            self._items.append(item)

    def take(self, process: Process) -> None:
        """Let a process go on with an item."""
        if self._items:
            self._clock.start(process, self._items.popleft())
        else:
            self._waiting.append(process)


class Counter:
    """A number that grows, and processes that wait for it."""

    def __init__(self, clock: Clock) -> None:
        self.value = 0.0
        self._clock = clock
        self._waiting: list[tuple[float, int, Process]] = []
        self._order = count()

    def add(self, number: float = 1) -> None:
        """Count on."""
        self.value += number
        while self._waiting and self._waiting[0][0] <= self.value + 1e-6:
            self._clock.start(heapq.heappop(self._waiting)[2])

    def wait(self, process: Process, least: float) -> None:
        """Let a process go on when so many are counted."""
        if least <= self.value + 1e-6:
            self._clock.start(process)
        else:
            heapq.heappush(self._waiting, (least, next(self._order), process))


class Resource:
    """Equal servers, such as the cores of a node, a network card, or the requests that a store allows per second."""

    def __init__(self, name: str, servers: int = 1) -> None:
        self.name, self.servers, self.busy_s = name, servers, 0.0
        self._free = [0.0] * servers

    def serve(self, now: float, seconds: float) -> float:
        """Return when this work is done, if it is asked for now."""
        end = max(now, self._free[0]) + seconds
        heapq.heapreplace(self._free, end)
        self.busy_s += seconds
        return end

    def busy_until(self, now: float) -> float:
        """Return for how long servers were busy until now, without the work that is asked for and not begun."""
        return self.busy_s - sum(max(0.0, free - now) for free in self._free)


def compute(clock: Clock, cores: Resource, seconds: float) -> Process:
    """Keep one core busy for so many seconds."""
    if seconds > 1e-9:
        yield cores.serve(clock.now, seconds)


# -- machines

LISTS, READING, FETCHING = "LISTs in flight", "reads in flight of a worker", "requests in flight of a rank"
INDEXES = "indexes in flight of a rank"
SHARD_REQUESTS = 3
"""Beside the parts of a shard: its index, its size that is asked for, and its line in the journal."""
ALWAYS = 0.95
"""Share of the time in which something is busy that limits all else."""


@dataclass
class Phase:
    """What came out of one phase."""

    name: str
    seconds: float
    requests: dict[str, float]
    """By kind: GET, PUT, LIST."""
    bytes_read: float
    """From the store or the shared file system, by all nodes."""
    busy: dict[str, float]
    """Share of the time in which each resource was busy, the mean of all nodes."""
    memory: dict[str, float] = field(default_factory=dict)
    """Bytes, by whose."""

    @property
    def bottleneck(self) -> str:
        """The busiest resource. If one is always busy, it is that, and not the requests that wait for it."""
        machines = [one for one in self.busy if one not in (LISTS, READING, FETCHING, INDEXES)]
        name = max(machines, key=lambda one: self.busy[one])
        if self.busy[name] < ALWAYS:
            name = max(self.busy, key=lambda one: self.busy[one])
        return f"{name} {self.busy[name]:.0%}"


class World:
    """The machines of one phase, and what is counted."""

    def __init__(self, setting: Setting, nodes: int, cores: int, network_bytes_s: float, prefixes: float) -> None:
        self.setting, self.clock = setting, Clock()
        self._gets_per_s = prefixes * setting.prefix_gets_s
        self.cores = [Resource("cores", cores) for _ in range(nodes)]
        self.networks = [Resource("network of a node") for _ in range(nodes)]
        self.disks = [Resource("disk") for _ in range(nodes)]
        self.gpus = Resource("GPUs", nodes)
        self.coordinator, self.upload = Resource("coordinator"), Resource("network of the coordinator")
        self.gets, self.puts = Resource("GETs the store allows"), Resource("PUTs the store allows")
        self._flights: dict[str, float] = {}
        self.requests = {"GET": 0.0, "PUT": 0.0, "LIST": 0.0}
        self.bytes_read = 0.0
        self.turn = Queue(self.clock, (None,))
        self._network_bytes_s = network_bytes_s
        self._dice = random.Random(0)

    def coordinate(self, seconds: float) -> Process:
        """Do serial work in the coordinator, on the first node."""
        if seconds > 0:
            yield self.turn
            self.coordinator.busy_s += seconds
            yield from compute(self.clock, self.cores[0], seconds)
            self.turn.put(None)

    def request(self, node: int, kind: str, size: float, count: float = 1, at_once: int = 1) -> Process:
        """Make `count` requests of `size` bytes in all, `at_once` at a time, and wait for the last answer."""
        setting = self.setting
        self.requests[kind] += count
        self.bytes_read += size if kind == "GET" else 0
        allowed = self._gets_per_s if kind == "GET" else setting.puts_per_s
        limit = self.gets if kind == "GET" else self.puts
        yield limit.serve(self.clock.now, count / allowed)
        tail = self._dice.expovariate(1.0) * setting.latency_tail
        yield self.clock.now + setting.latency_s * (1 - setting.latency_tail + tail) * max(1.0, count / at_once)
        yield self.networks[node].serve(self.clock.now, size / self._network_bytes_s)

    def fly(self, kind: str, since: float, most: int, at_once: int = 1) -> None:
        """Note that requests were in flight since then, of as many as can be at once."""
        self._flights[kind] = self._flights.get(kind, 0.0) + (self.clock.now - since) * at_once / most

    def busy_s(self) -> dict[str, float]:
        """Return for how long each resource was busy until now, the mean of all nodes."""
        groups = [self.cores, self.networks, self.disks]
        groups += [[one] for one in (self.gpus, self.coordinator, self.upload, self.gets, self.puts)]
        spent = {}
        for group in groups:
            spent[group[0].name] = sum(one.busy_until(self.clock.now) / one.servers for one in group) / len(group)
        return spent | self._flights

    def phase(self, name: str, main: Process) -> Phase:
        """Run a phase until its main process has ended."""
        seconds = self.clock.run(main)
        busy = {name: spent / seconds for name, spent in self.busy_s().items()}
        return Phase(name, seconds, self.requests, self.bytes_read, busy)


def listing(setting: Setting) -> Phase:
    """List the source in the coordinator: many folders of a store at once, or the files of a file system."""
    world = _builders(setting)

    def lister(folders: Queue, done: Counter) -> Process:
        while True:
            keys = yield folders
            for first in range(0, keys, setting.keys_a_page):
                page = min(setting.keys_a_page, keys - first)
                if setting.source_in_store:
                    before = world.clock.now
                    yield from world.request(0, "LIST", 0)
                    world.fly(LISTS, before, READS)
                yield from world.coordinate(page * setting.list_s)
                done.add(page)

    def main() -> Process:
        each, more = divmod(setting.images, setting.folders)
        folders = Queue(world.clock, tuple(each + (number < more) for number in range(setting.folders)))
        done = Counter(world.clock)
        for _ in range(READS):
            world.clock.start(lister(folders, done))
        yield done, setting.images

    phase = world.phase("list", main())
    phase.memory["coordinator"] = setting.coordinator_bytes * setting.images
    return phase


def planning(setting: Setting) -> Phase:
    """Read headers and labels in tasks, and merge them in the coordinator."""
    world = _builders(setting)
    counts = _parts(setting.images, IMAGES_A_JOB) if setting.headers else []
    jobs, done = Queue(world.clock, tuple(counts)), Counter(world.clock)
    workers = setting.build_nodes * setting.workers

    def worker(node: int) -> Process:
        yield from compute(world.clock, world.cores[node], setting.worker_start_s)
        while True:
            count = yield jobs
            if setting.source_in_store:
                before = world.clock.now
                for part in _parts(count, max(READS, count // 4)):
                    yield from world.request(node, "GET", part * setting.header_bytes, part, READS)
                world.fly(READING, before, READS * workers, READS)
            yield from compute(world.clock, world.cores[node], count * setting.header_s)
            yield from _merged(world, count * setting.merge_s, partial(done.add, count))

    def main() -> Process:
        yield from world.coordinate(setting.start_s)
        for number in range(workers if counts else 0):
            world.clock.start(worker(number % setting.build_nodes))
        if not counts:
            yield from world.coordinate(setting.images * (setting.annotate_s + setting.merge_s))
            return
        yield done, setting.images

    phase = world.phase("plan", main())
    phase.memory["coordinator"] = setting.coordinator_bytes * setting.images
    return phase


def _merged(world: World, seconds: float, then: Callable[[], None]) -> Process:
    """Let the coordinator take a result. A worker of `local` waits for it; other engines keep tasks in advance."""

    def merge() -> Process:
        yield from world.coordinate(seconds)
        then()

    if world.setting.waits_for_merge:
        yield from merge()
    else:
        world.clock.start(merge())


def building(setting: Setting) -> Phase:
    """Pack the shards in tasks: read, convert, write; a pack in a store is sent from there by the coordinator."""
    world = _builders(setting)
    clock, shards = world.clock, setting.shards
    sizes = [setting.images * (k + 1) // shards - setting.images * k // shards for k in range(shards)]
    workers = setting.build_nodes * setting.workers
    jobs, done = Queue(clock, tuple(zip(sizes, threads_of(shards, workers), strict=True))), Counter(clock)
    sending = Queue(clock, (None,) * setting.workers)

    def reader(node: int, images: int, step: int, read: Counter, converted: Counter) -> Process:
        at = 0
        for part in _parts(images, step):
            yield converted, at - MOST_CALLS
            before = clock.now
            yield from world.request(node, "GET", part * setting.source_bytes, part, READS)
            world.fly(READING, before, READS * workers, READS)
            at += part
            read.add(part)

    def converter(node: int, parts: Queue, converted: Counter, read: Counter) -> Process:
        while len(parts):
            start, part = yield parts
            yield read, start + part
            yield from compute(clock, world.cores[node], part * setting.convert_s)
            converted.add(part)

    def worker(node: int) -> Process:
        yield from compute(clock, world.cores[node], setting.worker_start_s)
        while True:
            images, threads = yield jobs
            yield from world.coordinate(setting.dispatch_s)
            read, converted = Counter(clock), Counter(clock)
            step = max(READS, images // 16)
            if setting.source_in_store:
                clock.start(reader(node, images, step, read, converted))
            else:
                read.add(images)
            parts = _parts(images, step)
            queue = Queue(clock, tuple(zip(accumulate([0, *parts]), parts, strict=False)))
            for _ in range(threads):
                clock.start(converter(node, queue, converted, read))
            yield converted, images
            yield from _merged(world, setting.record_s, partial(clock.start, sent(images * setting.image_bytes)))

    def sent(size: float) -> Process:
        if setting.output_in_store:
            yield sending
            parts = math.ceil(size / PIECE_BYTES)
            yield world.upload.serve(clock.now, size / setting.build_network_bytes_s)
            yield from world.request(0, "PUT", 0, parts + SHARD_REQUESTS, parts + SHARD_REQUESTS)
            sending.put(None)
        done.add()

    def main() -> Process:
        yield from world.coordinate(setting.start_s)
        for number in range(workers):
            clock.start(worker(number % setting.build_nodes))
        yield done, shards
        yield from world.coordinate(shards * setting.record_s)  # the manifest

    phase = world.phase("build", main())
    phase.memory["node"] = setting.workers * (setting.bytes_of_shard + 200e6)
    phase.memory["coordinator"] = setting.coordinator_bytes * setting.images
    return phase


def _builders(setting: Setting) -> World:
    return World(
        setting, setting.build_nodes, setting.build_cores, setting.build_network_bytes_s, setting.source_prefixes
    )


def _parts(count: int, step: int) -> list[int]:
    return [min(step, count - first) for first in range(0, count, step)]
