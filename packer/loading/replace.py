"""``on_error="replace"``: replaces a damaged record with another one of the same epoch.

The replacement is a pure function of (seed, epoch, record): it is the same for any number of threads, on every rank
that reads the record, and after a resume. Nothing here runs until a record has failed.
"""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain

import numpy as np

from packer.errors import DamagedPack, DamagedRecordWarning, printable
from packer.loading.fill import ImageFiller
from packer.model.annotation import Int64
from packer.samplers import Sampler
from packer.samplers.order import Records, uniform
from packer.system.locks import Locked


@dataclass
class Stats:
    """The times of an epoch so far. Stages overlap; each is summed over its threads."""

    images: int = 0
    batches: int = 0
    replaced: int = 0
    """Number of damaged images that were replaced."""
    waited_s: float = 0.0
    """How long the consumer waited because its next batch was not ready."""
    stage_s: dict[str, float] = field(default_factory=dict)
    """Seconds of all threads in read (raw images), decode (encoded images), transform, targets, and copy (to the
    device, including normalization)."""
    _started: float = field(default_factory=time.perf_counter)
    _ended: float | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def add(self, stage: str, seconds: float) -> None:
        """Add to the time of a stage. Thread-safe."""
        with self._lock:
            self.stage_s[stage] = self.stage_s.get(stage, 0.0) + seconds

    def end(self) -> None:
        """End the epoch."""
        self._ended = time.perf_counter()

    def summary(self) -> dict[str, float]:
        """Return the counts and times of the epoch so far.

        Returns:
            images, batches, replaced (number of damaged images that were replaced), seconds, images_per_s, waiting
            (share of the time), and seconds of each stage. If `waiting` is near 0, the consumer (the GPU) is the
            bottleneck; near 1, the loader is.
        """
        seconds = max((self._ended or time.perf_counter()) - self._started, 1e-9)
        stages = {f"{name}_s": round(value, 4) for name, value in sorted(self.stage_s.items())}
        return {
            "images": self.images,
            "batches": self.batches,
            "replaced": self.replaced,
            "seconds": round(seconds, 4),
            "images_per_s": round(self.images / seconds, 1),
            "waiting": round(min(1.0, self.waited_s / seconds), 4),
            **stages,
        }


MOST_LISTED = 1000
"""Records that `PackedLoader.replaced` lists."""
MOST_REMEMBERED = 100_000
"""Maximum number of cached results, each of which may have taken a decode."""
DRAWS = 64
"""After this number of bad random candidates, the epoch is searched sequentially."""

STREAM = 1 << 32
"""Derives another seed from that of crops and flips."""


@dataclass(frozen=True)
class Replaced:
    """A damaged record that was replaced."""

    record: int
    key: str
    shard: str | None
    problem: str


Replacements = Sequence[tuple[int, Replaced]]
"""Position in a batch, and the record that was replaced."""

_warned: set[tuple[str, int]] = set()


class Replacer(Locked):
    """Finds replacements for all threads, and keeps the reports to the consumer."""

    def __init__(self, filler: ImageFiller, sampler: Sampler, seed: int) -> None:
        super().__init__()
        self._filler = filler
        self._sampler = sampler
        self._seed = seed
        self._order: tuple[int, Callable[[Int64], Records]] | None = None
        self._found: dict[tuple[int, int], tuple[int, Replaced]] = {}
        self._reported: dict[int, Replaced] = {}

    def with_filler(self, filler: ImageFiller) -> Replacer:
        """Return one for other crops, with the same reports."""
        other = Replacer(filler, self._sampler, self._seed)
        other._reported = self._reported
        return other

    def stand_ins(self, records: Int64, epoch: int) -> tuple[Int64, Replacements]:
        """Return the records with damaged ones replaced, and which ones were.

        Raises:
            DamagedPack: if every record of the epoch is bad, or an index is damaged.
        """
        readable = records.copy()
        replacements = []
        for position, record in enumerate(records.tolist()):
            found = self._stand_in(record, epoch)
            if found is not None:
                readable[position] = found[0]
                replacements.append((position, found[1]))
        return readable, replacements

    def _stand_in(self, record: int, epoch: int) -> tuple[int, Replaced] | None:
        found = self._found.get((epoch, record))
        if found is None and (error := self._problem(record, epoch)) is not None:
            replaced = Replaced(record, error.key or "", error.shard, error.problem)
            found = self._candidate(record, epoch, error), replaced
            with self.lock:
                if len(self._found) >= MOST_REMEMBERED:
                    self._found.clear()
                self._found[epoch, record] = found
        return found

    def _candidate(self, record: int, epoch: int, error: DamagedPack) -> int:
        samples = self._sampler.num_samples
        random = uniform(self._seed ^ STREAM, epoch, np.array([record]), DRAWS)[0]
        positions = (random * samples).astype(np.int64).tolist()
        tried = {record}
        for position in chain(positions, range(positions[-1], samples), range(positions[-1])):
            candidate = self._record_at(epoch, position)
            if candidate not in tried:
                if self._problem(candidate, epoch) is None:
                    return candidate
                tried.add(candidate)
        raise DamagedPack(
            self._filler.pack.path, f"none of the {len(tried)} records of epoch {epoch} can be read: {error.problem}",
            error.next_step,
        ).with_location(self._filler.pack.path)  # fmt: skip

    def _record_at(self, epoch: int, position: int) -> int:
        """Return the record at a position of an epoch, of all ranks."""
        with self.lock:
            if self._order is None or self._order[0] != epoch:
                self._order = epoch, self._sampler.records_at(epoch)
            return int(self._order[1](np.array([position]))[0])

    def _problem(self, record: int, epoch: int) -> DamagedPack | None:
        """Return the problem of a record, read alone with its crop of this epoch."""
        one = np.array([record])
        row = np.empty((1, *self._filler.row_shape), self._filler.dtype)
        return problem_of(lambda: self._filler.fill(one, self._filler.params(one, epoch), row))

    def report(self, replaced: Sequence[Replaced], stats: Stats) -> None:
        """Count the replaced records of a batch for the consumer, and warn about them."""
        stats.replaced += len(replaced)
        pack = self._filler.pack
        for one in replaced:
            if len(self._reported) < MOST_LISTED:
                self._reported.setdefault(one.record, one)
            known = pack.manifest.digest, one.record
            if known not in _warned:
                _warned.add(known)
                of = pack.packs[pack.part_of(one.record)[0]]
                text = f"{printable(of.path)}: {one.problem}; replaced with another record"
                warnings.warn(text, DamagedRecordWarning, stacklevel=2)

    @property
    def reported(self) -> list[Replaced]:
        """The reported records, by number."""
        return [self._reported[record] for record in sorted(self._reported)]


def problem_of(action: Callable[[], None]) -> DamagedPack | None:
    """Return the error of reading one record. Raise it if it is about an index or the pack instead."""
    try:
        action()
    except DamagedPack as error:
        if error.key is None:
            raise
        return error
    return None
