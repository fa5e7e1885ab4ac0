"""Stand-ins of damaged records: with ``on_error="replace"``, another record of the same epoch takes the place.

It is a pure function of (seed, epoch, record): the same for any number of threads, on every rank that reads the record,
and after a resume. Nothing of that runs until a record has failed.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from packer.errors import DamagedPack, DamagedRecordWarning, printable
from packer.loading.epoch_order import EpochOrder
from packer.loading.epoch_stats import Stats
from packer.loading.fill import ImageFiller
from packer.loading.targets import Targets
from packer.model.annotation import Int64
from packer.samplers import Sampler
from packer.samplers.order import MOST_VISITS, VISIT, derive, records_in, uniform
from packer.system.locks import Locked

MOST_LISTED = 1000
"""Records that `PackedLoader.replaced` lists."""
MOST_REMEMBERED = 100_000
"""Maximum number of cached results, each of which may have taken a decode."""
DRAWS = 64
"""After this number of bad random candidates, the epoch is searched sequentially."""

REPLACEMENT_STREAM = 1 << 32
"""Derives another seed from that of crops and flips."""
STAND_IN = 2 * MOST_VISITS
"""Visits of a record in place of damaged ones, above all others; so it has another crop than where it is itself."""


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

    def __init__(self, filler: ImageFiller, targets: Targets, sampler: Sampler, seed: int) -> None:
        super().__init__()
        self._filler, self._targets = filler, targets
        self._sampler, self._order = sampler, EpochOrder(sampler)
        self._seed = seed
        self._found: dict[tuple[int, int], tuple[int, Replaced]] = {}
        self._reported: dict[int, Replaced] = {}

    def with_filler(self, filler: ImageFiller) -> Replacer:
        """Return one for other crops, with the same reports."""
        other = Replacer(filler, self._targets, self._sampler, self._seed)
        other._reported = self._reported
        return other

    def stand_ins(self, samples: Int64, epoch: int) -> tuple[Int64, Replacements]:
        """Return the samples with damaged records replaced, and which ones were.

        Raises:
            DamagedPack: if every record of the epoch is bad, or an index is damaged.
        """
        readable = samples.copy()
        replacements = []
        for position, sample in enumerate(samples.tolist()):
            found = self._stand_in(sample, epoch)
            if found is not None:
                readable[position] = found[0]
                replacements.append((position, found[1]))
        return readable, replacements

    def _stand_in(self, sample: int, epoch: int) -> tuple[int, Replaced] | None:
        found = self._found.get((epoch, sample))
        if found is None and (error := self._problem(sample, epoch)) is not None:
            record = sample % VISIT if error.record is None else error.record  # of others that are shown with it
            replaced = Replaced(record, error.key or "", error.shard, error.problem)
            found = self._candidate(sample, epoch, error), replaced
            with self.lock:
                if len(self._found) >= MOST_REMEMBERED:
                    self._found.clear()
                self._found[epoch, sample] = found
        return found

    def _candidate(self, sample: int, epoch: int, error: DamagedPack) -> int:
        samples = self._sampler.num_samples
        random = uniform(self._seed ^ REPLACEMENT_STREAM, epoch, np.array([sample]), DRAWS)[0]
        positions = (random * samples).astype(np.int64).tolist()
        tried = {sample % VISIT}
        visit = STAND_IN + derive(sample) % STAND_IN
        for position in chain(positions, range(positions[-1], samples), range(positions[-1])):
            record = int(self._order.records(epoch, np.array([position]))[0])
            if record not in tried:
                if self._problem(record + visit * VISIT, epoch) is None:
                    return record + visit * VISIT
                tried.add(record)
        raise DamagedPack(
            self._filler.pack.path, f"none of the {len(tried)} records of epoch {epoch} can be read: {error.problem}",
            error.next_step,
        ).with_location(self._filler.pack.path)  # fmt: skip

    def _problem(self, sample: int, epoch: int) -> DamagedPack | None:
        """Return the problem of a sample, read alone with its crop of this epoch."""
        one = np.array([sample])
        filler = self._filler.for_batch(one, epoch)
        row = filler.shaped(np.empty(filler.row_bytes, np.uint8), 1)

        def read() -> None:
            params = filler.params(one, epoch)
            filler.fill(records_in(one), params, row)
            filler.targets_of(self._targets, records_in(one), params)

        return problem_of(read)

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
