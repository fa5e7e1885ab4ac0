"""Measuring functions of `packer bench` and of scripts/benchmarks: rounds that take turns, their spread, memory.

Every figure is a ratio or a rate with its spread over the rounds of one run; other runs see a different load.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from packer.system import TICKS_PER_SECOND, cpu_seconds, forget_pages

ANONYMOUS = (b"Pss_Anon:", b"Pss_Shmem:")
"""Fields of /proc/PID/smaps_rollup: a process's own memory, without the page cache, which is released on demand."""
RSS, PSS = (b"Rss:",), (b"Pss:",)
"""All pages that are mapped: RSS counts a page in each process that maps it, PSS divides it among them."""


@dataclass(frozen=True)
class Figure:
    """A number with its spread over rounds."""

    rounds: tuple[float, ...]

    @property
    def median(self) -> float:
        """Median of all rounds."""
        return statistics.median(self.rounds)

    @property
    def lowest(self) -> float:
        """Lowest of all rounds."""
        return min(self.rounds)

    @property
    def highest(self) -> float:
        """Highest of all rounds."""
        return max(self.rounds)

    def __truediv__(self, other: Figure) -> Figure:
        """Return the ratio, round by round."""
        return Figure(tuple(one / two for one, two in zip(self.rounds, other.rounds, strict=True)))

    def per_second(self, count: float) -> Figure:
        """Return `count` divided by these seconds."""
        return Figure(tuple(count / seconds for seconds in self.rounds))

    def text(self, digits: int = 1) -> str:
        """Return ``4.2 (4.0 to 4.4)``: median, lowest and highest, with `digits` after the point."""
        return f"{self.median:,.{digits}f} ({self.lowest:,.{digits}f} to {self.highest:,.{digits}f})"


def seconds_of(work: Callable[[], object]) -> float:
    """Return the duration of `work` in seconds."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def take_turns(works: Mapping[str, Callable[[], object]], rounds: int, warm_up: int = 1) -> dict[str, Figure]:
    """Run each of `works` once per round, in a different order each round.

    Args:
        works: What to measure, by name.
        rounds: Number of rounds that count.
        warm_up: Number of rounds before them: page cache, first touch, imports.

    Returns:
        Seconds of each, by name.
    """
    names = list(works)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for number in range(warm_up + rounds):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            seconds[name].append(seconds_of(works[name]))
    return {name: Figure(tuple(values[warm_up:])) for name, values in seconds.items()}


def in_threads(count: int, work: Callable[[int], object]) -> None:
    """Run work(0), work(1), ... work(count - 1) at once, and wait for them."""
    threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def processes_of(pid: int) -> list[int]:
    """Return the process and all its descendants (Linux)."""
    found = [pid]
    for one in found:
        with suppress(OSError):
            for task in os.listdir(f"/proc/{one}/task"):
                with open(f"/proc/{one}/task/{task}/children", "rb") as file:
                    found += map(int, file.read().split())
    return found


def memory_bytes(pid: int, fields: tuple[bytes, ...] = ANONYMOUS) -> int:
    """Return the memory of a process and its descendants; 0 if the system does not report it.

    Args:
        pid: The process.
        fields: The fields of /proc/PID/smaps_rollup to add: ANONYMOUS, RSS or PSS.
    """
    total = 0
    for one in processes_of(pid):
        with suppress(OSError, ValueError), open(f"/proc/{one}/smaps_rollup", "rb") as file:
            total += sum(int(line.split()[1]) * 1024 for line in file if line.startswith(fields))
    return total


class Spent:
    """Processor time since its creation: of this process with its descendants, and of all others (Linux)."""

    def __init__(self) -> None:
        self._started, self._own_s, self._all_s = time.perf_counter(), _own_cpu_seconds(), _all_cpu_seconds()

    def until_now(self) -> tuple[float, float | None]:
        """Return seconds of this process, and how many cores others used; None if the system does not report it."""
        own_s, all_s = _own_cpu_seconds() - self._own_s, _all_cpu_seconds()
        if self._all_s is None or all_s is None:
            return own_s, None
        return own_s, max(0.0, (all_s - self._all_s - own_s) / (time.perf_counter() - self._started))


def _own_cpu_seconds() -> float:
    ended, living = os.times(), processes_of(os.getpid())[1:]
    if not living:  # not Linux
        living = [child.pid or 0 for child in multiprocessing.active_children()]
    return time.process_time() + ended.children_user + ended.children_system + sum(map(cpu_seconds, living))


def _all_cpu_seconds() -> float | None:
    """Return the time that all processors of the machine have worked."""
    try:
        with open("/proc/stat", "rb") as file:
            fields = file.readline().split()
    except OSError:
        return None
    user, nice, system, _, _, *interrupts = map(int, fields[1:9])  # without idle and waiting for disks
    return (user + nice + system + sum(interrupts)) / TICKS_PER_SECOND


class Peak:
    """The most memory seen so far, in bytes."""

    bytes = 0


@contextmanager
def peak_memory(pid: int, fields: tuple[bytes, ...] = PSS, interval_s: float = 0.05) -> Iterator[Peak]:
    """Watch the memory of a process and its descendants in this context; arguments as for `memory_bytes`."""
    peak, done = Peak(), threading.Event()

    def watch() -> None:
        while True:
            peak.bytes = max(peak.bytes, memory_bytes(pid, fields))
            if done.wait(interval_s):
                return

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield peak
    finally:
        done.set()
        watcher.join()


def drop_from_page_cache(path: str) -> None:
    """Ask the kernel to drop the pages of a file, after writing those that are not on disk yet."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        forget_pages(descriptor)
    finally:
        os.close(descriptor)
