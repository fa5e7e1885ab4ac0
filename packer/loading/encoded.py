"""Encoded records for decoders that are not packer's own: what `PackedLoader(decode=...)` hands to a library.

Order, ranks, crops, flips, targets and stand-ins are packer's; the library turns bytes into pixels.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch

from packer.errors import DamagedPack, UsageError
from packer.format.index import ENCODINGS
from packer.format.pack import Pack
from packer.loading.crop import CropParams
from packer.loading.fill import ImageFiller
from packer.loading.page_cache import announced
from packer.loading.pipeline import Work
from packer.loading.replace import Replacements, Replacer
from packer.loading.stats import Stats
from packer.loading.targets import Targets, join_targets
from packer.types import Int64

ANTIALIASED = ("area", "bilinear", "fast")
"""Filters in whose place a library uses its own: linear, antialiased on an axis that shrinks (a triangle)."""
HOST = 'use decode="host" of PackedLoader'


@dataclass(frozen=True)
class BatchSpec:
    """What the batches of a loader are.

    Args:
        filler: knows crops and flips, and reads records on the host.
        targets: those of the records.
        batch_size: images of the largest batch.
        work: how much is done at once.
        device: where the batches go.
        replacer: finds stand-ins for damaged records; None: they are errors.
    """

    filler: ImageFiller
    targets: Targets
    batch_size: int
    work: Work
    device: torch.device
    replacer: Replacer | None = None


class BatchMaker(Protocol):
    """Makes the batches of a loader."""

    def run(self, batches: Iterable[Int64], epoch: int, stats: Stats) -> Iterator[tuple[torch.Tensor, Any]]:
        """Yield (images, targets) for each array of record numbers, in order."""


class Decoding(Protocol):
    """What `PackedLoader` takes as `decode` beside the names: a decoder of another library, such as DALI."""

    def batches(self, spec: BatchSpec) -> BatchMaker:
        """Return what makes the batches of a loader. Raise UsageError if it cannot decode the pack."""


@dataclass(frozen=True)
class EncodedBatch:
    """Records of one batch, and what becomes of them."""

    records: Int64
    params: CropParams
    replaced: Replacements = ()


class EncodedReader:
    """Reads encoded records for a decoder.

    Args:
        spec: what the batches are.
        name: of the decoder, for errors.
        encodings: those that the decoder knows.

    Raises:
        UsageError: if the pack has none of these, or images that do not become 8-bit gray or RGB; or if a decoder of
            the host was chosen.
    """

    def __init__(self, spec: BatchSpec, name: str, encodings: tuple[str, ...]) -> None:
        self.spec = spec
        self.pack: Pack = spec.filler.pack
        codes = np.asarray(self.pack.column("encoding"))
        self.known = np.isin(codes, [ENCODINGS.index(encoding) for encoding in encodings])
        """Whether the decoder knows the encoding of each record, bool (records,)."""
        self.unknown = sorted({ENCODINGS[code] for code in np.unique(codes[~self.known]).tolist()})
        """The encodings that it does not know."""
        if self.pack.manifest.encoding == "raw":
            self._refuse("has raw images, which need no decoding", 'use decode="host", or cache="device"')
        if not self.known.any():
            self._refuse(f"has {self.unknown[0]} images, which {name} does not decode", HOST)
        if spec.filler.dtype != np.uint8:
            self._refuse(f"has 16-bit images, of which {name} makes 8-bit ones", HOST)
        if spec.filler.channels not in (1, 3):
            problem = f"has images of {spec.filler.channels} channels, and {name} makes 1 or 3"
            self._refuse(problem, HOST)
        if spec.filler.decoder != "auto":
            raise UsageError("decoder", f"is for decoding on the host, and {name} does it here", "leave it out")

    def _refuse(self, problem: str, next_step: str) -> None:
        raise UsageError(self.pack.path, problem, next_step)

    def read(self, batches: Iterable[Int64], epoch: int) -> Iterator[EncodedBatch]:
        """Yield each batch, its records verified, damaged ones replaced."""
        for records in announced(batches, self.pack):
            if not self.spec.filler.verify and self.spec.replacer is None:
                yield EncodedBatch(records, self.spec.filler.params(records, epoch))
                continue
            try:
                self.pack.check(records)
            except DamagedPack as error:
                yield self.replaced(records, epoch, error)
            else:
                yield EncodedBatch(records, self.spec.filler.params(records, epoch))

    def replaced(self, records: Int64, epoch: int, error: DamagedPack) -> EncodedBatch:
        """Return the batch with stand-ins for damaged records. Raise the error if the loader replaces none."""
        if self.spec.replacer is None:
            raise error
        readable, replaced = self.spec.replacer.stand_ins(records, epoch)
        return EncodedBatch(readable, self.spec.filler.params(readable, epoch), replaced)

    def data(self, records: Int64) -> Iterator[memoryview]:
        """Yield the bytes of each record, mapped, not copied."""
        region, starts = self.pack.region.data, self.pack.offsets[records].tolist()
        for start, size in zip(starts, self.pack.sizes[records].tolist(), strict=True):
            yield region[start : start + size]

    def targets(self, batch: EncodedBatch, stats: Stats) -> Any:
        """Return the targets of a batch that is handed out, and count it."""
        started = time.perf_counter()
        targets = join_targets([self.spec.targets.of(batch.records, batch.params)])
        stats.add("targets", time.perf_counter() - started)
        stats.images += len(batch.records)
        stats.batches += 1
        if self.spec.replacer is not None and batch.replaced:
            self.spec.replacer.report([what for _, what in batch.replaced], stats)
        return targets
