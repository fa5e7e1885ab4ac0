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
from numpy.typing import NDArray

from packer.errors import DamagedPack, UsageError
from packer.format.index import ENCODINGS
from packer.format.pack import Pack
from packer.loading.crop import CropParams
from packer.loading.page_cache import announced
from packer.loading.pipeline import LoadedBatch, Pipeline
from packer.loading.replace import Replacements, Stats
from packer.model.annotation import Int64

ANTIALIASED = ("area", "bilinear", "fast")
"""Filters in whose place a library uses its own: linear, antialiased on an axis that shrinks (a triangle)."""
HOST = 'use decode="host" of PackedLoader'


class BatchMaker(Protocol):
    """Makes the batches of a loader."""

    @property
    def decoded_by(self) -> str:
        """What decodes JPEGs: a word, and more about it after a space; "" if nothing is decoded."""

    def run(self, batches: Iterable[Int64], epoch: int, stats: Stats) -> Iterator[LoadedBatch]:
        """Yield (images, targets, records) for each array of record numbers, in order."""

    def with_host(self, host: Pipeline) -> BatchMaker:
        """Return what makes the batches of another host, which has other crops."""


class Decoding(Protocol):
    """What `PackedLoader` takes as `decode` beside the names: a decoder of another library, such as DALI."""

    def batches(self, host: Pipeline, device: torch.device) -> BatchMaker:
        """Return what makes batches on `device`, those that `host` would. Raise UsageError if it cannot."""


@dataclass(frozen=True)
class EncodedBatch:
    """Records of one batch, and what becomes of them."""

    records: Int64
    params: CropParams
    replaced: Replacements = ()


class EncodedReader:
    """Reads encoded records for a decoder.

    Args:
        host: makes the same batches on the host; its filler, targets and replacer are used.
        name: of the decoder, for errors.
        encodings: those that the decoder knows.

    Raises:
        UsageError: if the pack has none of these, or images that do not become 8-bit gray or RGB; or if a decoder of
            the host was chosen.
    """

    def __init__(self, host: Pipeline, name: str, encodings: tuple[str, ...]) -> None:
        self.host = host
        self.pack: Pack = host.filler.pack
        self._known = [ENCODINGS.index(encoding) for encoding in encodings]
        codes = {code for part in self.pack.shard_columns("encoding") for code in np.unique(part).tolist()}
        self.unknown = sorted(ENCODINGS[code] for code in codes - {*self._known})
        """The encodings that the decoder does not know."""
        if self.pack.manifest.encoding == "raw":
            self._refuse("has raw images, which need no decoding", f'{HOST}, or cache="device"')
        if not codes & {*self._known}:
            self._refuse(f"has {self.unknown[0]} images, which {name} does not decode", HOST)
        if self.pack.manifest.lenient:
            self._refuse(f"may hold damaged images, which {name} does not decode", HOST)
        if host.filler.dtype != np.uint8:
            self._refuse(f"has 16-bit images, of which {name} makes 8-bit ones", HOST)
        if host.filler.channels not in (1, 3):
            problem = f"has images of {host.filler.channels} channels, and {name} makes 1 or 3"
            self._refuse(problem, HOST)
        if host.filler.decoder != "auto":
            raise UsageError("decoder", f"is for decoding on the host, and {name} does it here", "leave it out")

    def known(self, records: Int64) -> NDArray[np.bool_]:
        """Return whether the decoder knows the encoding of each of `records`, bool (n,)."""
        return np.isin(self.pack.values("encoding", records), self._known)

    def _refuse(self, problem: str, next_step: str) -> None:
        raise UsageError(self.pack.path, problem, next_step)

    def read(self, batches: Iterable[Int64], epoch: int) -> Iterator[EncodedBatch]:
        """Yield each batch, its records verified, damaged ones replaced."""
        for records in announced(batches, self.pack):
            if not self.host.filler.verify and self.host.replacer is None:
                yield EncodedBatch(records, self.host.filler.params(records, epoch))
                continue
            try:
                with self.pack.held(records):
                    self.pack.check(records)
            except DamagedPack as error:
                yield self.replaced(records, epoch, error)
            else:
                yield EncodedBatch(records, self.host.filler.params(records, epoch))

    def replaced(self, records: Int64, epoch: int, error: DamagedPack) -> EncodedBatch:
        """Return the batch with stand-ins for damaged records. Raise the error if the loader replaces none."""
        if self.host.replacer is None:
            raise error
        readable, replaced = self.host.replacer.stand_ins(records, epoch)
        return EncodedBatch(readable, self.host.filler.params(readable, epoch), replaced)

    def data(self, records: Int64) -> Iterator[memoryview]:
        """Yield the bytes of each record, mapped, not copied; a remote record as a copy, because it may be evicted."""
        if self.pack.is_remote:
            yield from map(self.pack.record, records.tolist())
            return
        region, places = self.pack.region.data, self.pack.places(records)
        for start, size in zip(*(numbers.tolist() for numbers in places), strict=True):
            yield region[start : start + size]

    def targets(self, batch: EncodedBatch, stats: Stats) -> Any:
        """Return the targets of a batch that is handed out, and count it."""
        started = time.perf_counter()
        targets = self.host.targets_of(batch.records, batch.params)
        stats.add("targets", time.perf_counter() - started)
        stats.images += len(batch.records)
        stats.batches += 1
        if self.host.replacer is not None and batch.replaced:
            self.host.replacer.report([what for _, what in batch.replaced], stats)
        return targets
