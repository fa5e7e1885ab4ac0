"""A clock with queues, on which `build.py` and `stream.py` let a cluster work: events in the order of time.

A process is a generator. It yields a time, and goes on then; a `Queue`, and goes on with its next item; or a pair
(`Counter`, number), and goes on when so many are counted. `Resource.serve` tells when some of its equal servers will
have done a piece of work; who asks first is served first. That is what a library such as simpy would be used for; it is
less code than its use, and makes a million events in two seconds.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Generator, Iterator
from itertools import count
from typing import Any, TypeAlias

Process: TypeAlias = Generator[Any, Any, None]
LEAST_PIECE_S = 0.005


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

    def __init__(self, name: str, servers: int = 1, pieces: int = 1) -> None:
        self.name, self.servers, self.busy_s, self.pieces = name, servers, 0.0, pieces
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
    """Keep one core busy for so many seconds, in pieces, between which others have their turn."""
    piece = max(seconds / cores.pieces, LEAST_PIECE_S)
    while seconds > 1e-9:
        yield cores.serve(clock.now, min(piece, seconds))
        seconds -= piece
