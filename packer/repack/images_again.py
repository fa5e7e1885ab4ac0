"""Chooses which images of a source are read again for a pack that is updated, and which of them are packed again."""

from __future__ import annotations

import os
from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from packer.format.lists import KINDS, Listing
from packer.format.manifest import Manifest
from packer.model.annotation import Int64
from packer.packing.input_table import Inputs
from packer.packing.journal import ShardResult
from packer.packing.partition import pieces
from packer.repack.changed_files import PackedImages, SourceChanges, SourceCheck
from packer.repack.compare_labels import parts_that_differ, rows_that_differ
from packer.repack.edit import EXTRAS
from packer.repack.links import Source
from packer.sources.by_stem import ByStemSource
from packer.sources.instances import InstanceSource
from packer.sources.paths import stem_of
from packer.sources.source import BaseSource

DELETED = "excluded"
"""Why a record is in the list of skipped inputs that was deleted from the pack."""


class ImagesAgain:
    """What an update reads and packs.

    Args:
        source: The pack.
        packed: Its images.
        changes: How the source differs from it.
        check: The files of the source.
        lists: Its lists of inputs.
    """

    def __init__(
        self, source: Source, packed: PackedImages, changes: SourceChanges, check: SourceCheck,
        lists: Mapping[str, Sequence[Any]],
    ) -> None:  # fmt: skip
        self._source, self._packed, self._changes, self._check, self._lists = source, packed, changes, check, lists
        self._bytes_changed = {*changes.changed}
        self._deleted = {os.fsencode(row.path) for row in lists["skipped"] if row.reason == DELETED}
        self._only: set[bytes] | None = None
        self.new: list[bytes] = []
        """Images that the pack did not have, and gets now."""
        self.changed: list[bytes] = []
        """Images that are packed again."""
        self._dropped = np.empty(0, np.int64)
        """Records of images that are read again, and then packed anew, or not any more."""

    # -- which are read

    def choose(self, sources: Sequence[BaseSource], paths: Sequence[bytes]) -> Collection[bytes] | None:
        """Return the images to read: those that have changed or whose labels may have; None: all."""
        changes = self._changes
        self._only = None
        if not self._needs_all(sources):
            self._only = {*changes.new, *changes.changed, *changes.again}
            if any(isinstance(source, ByStemSource) for source in sources):
                self._only |= self._with_other_labels(sources, paths)
        return self._only

    @property
    def reads_all(self) -> bool:
        """Whether all images are read again."""
        return self._only is None

    def _needs_all(self, sources: Sequence[BaseSource]) -> bool:
        """Return whether labels must be read again of all images, as nobody says which ones are concerned."""
        changes = self._changes
        if self._source.manifest.parts or any(isinstance(source, InstanceSource) for source in sources):
            return True  # files that are called images have labels
        known = [source.label_files for source in sources]
        if not any(known) and None not in known:
            return False  # labels are in the paths
        if not all(isinstance(source, ByStemSource) or source.label_files == frozenset() for source in sources):
            return True
        own: set[bytes] = set()  # data.yaml is none
        for source in sources:
            if isinstance(source, ByStemSource):
                own.update(source.matches.label_of.values(), source.matches.unclaimed)
        return changes.files_removed or not own.issuperset(changes.files)

    def _with_other_labels(self, sources: Sequence[BaseSource], paths: Sequence[bytes]) -> set[bytes]:
        """Return the images whose own label files may have changed, or be those of others now."""
        changes, touched = self._changes, {*self._changes.files}
        gone = self._packed.paths.take(changes.removed).to_pylist()
        stems = {stem_of(path) for path in (*changes.new, *gone, *changes.files)}
        found = {path for path in paths if stem_of(path) in stems} if stems else set()
        for source in sources:
            if isinstance(source, ByStemSource):
                found.update(image for image, label in source.matches.label_of.items() if label in touched)
        return found

    # -- which are packed

    def narrow(self, inputs: Inputs) -> None:
        """Take the images out of the table of inputs that are in the pack as they are."""
        paths = [path for _, piece in pieces(inputs.table) for path in piece.column("path").to_pylist()]
        records = self._packed.records_of(inputs.table.column("path"))
        known = np.flatnonzero(
            [r >= 0 and path not in self._bytes_changed for path, r in zip(paths, records, strict=True)]
        )
        same = known[~self._differ(inputs, known, records[known])]
        out = {*same.tolist(), *(row for row, path in enumerate(paths) if path in self._deleted)}
        self.new = [path for row, path in enumerate(paths) if row not in out and records[row] < 0]
        self.changed = [path for row, path in enumerate(paths) if row not in out and records[row] >= 0]
        considered = np.arange(len(self._packed))
        if self._only is not None:
            considered = self._records_of_chosen()
        stay = np.zeros(len(self._packed), np.bool_)
        stay[records[sorted(row for row in out if records[row] >= 0)]] = True
        self._dropped = considered[~stay[considered]]
        inputs.drop(out)
        inputs.kept = (len(self._packed) - len(self.dropped), len(list(self._rows_that_stay("rejected", inputs))))

    def _records_of_chosen(self) -> Int64:
        found = self._packed.records_of(pa.array(sorted(self._only or ()), pa.large_binary()))
        return np.sort(found[found >= 0])

    def _differ(self, inputs: Inputs, rows: Int64, records: Int64) -> Any:
        """Return which rows of the table of inputs have other labels, or parts, than their records."""
        if not len(rows):
            return np.zeros(0, np.bool_)
        tables, options = self._source.tables, self._source.manifest.options
        but = EXTRAS if notes_on_extras(self._source.manifest) else ""
        found = rows_that_differ(inputs, rows, tables, records, resize_of(options), but)
        return found | parts_that_differ(inputs, rows, tables, records, self._check)

    # -- what follows

    @property
    def dropped(self) -> Int64:
        """The records that the pack has no more, sorted."""
        return np.union1d(self._changes.removed, self._dropped)

    @property
    def removed(self) -> list[bytes]:
        """The images of those that it does not get again."""
        again = {*self.changed}
        paths: list[bytes] = self._packed.paths.take(self.dropped).to_pylist()
        return [path for path in paths if path not in again]

    @property
    def summary(self) -> str:
        """What is done, as text."""
        counts = ((self.new, "new"), (self.changed, "changed"), (self.removed, "removed"))
        return ", ".join(f"{len(names):,} {what}" for names, what in counts if names) or "only lists of inputs"

    def is_nothing(self, inputs: Inputs) -> bool:
        """Return whether pack and lists are as they should be."""
        if inputs.rows or len(self.dropped):
            return False
        return all(sorted(map(repr, listing)) == sorted(map(repr, self._lists[name]))
                   for name, listing in self.listings(inputs).items())  # fmt: skip

    def listings(self, inputs: Inputs) -> dict[str, Listing[Any]]:
        """Return the lists of all inputs: those that were read again, and those of others that stay."""
        made = {}
        for name, rows in (("rejected", inputs.rejected), ("skipped", inputs.skipped), ("changed", inputs.changed)):
            made[name] = Listing(KINDS[name], [*rows, *self._rows_that_stay(name, inputs)])
        return made

    def _rows_that_stay(self, name: str, inputs: Inputs) -> Iterator[Any]:
        """Yield the rows of a list of the pack that are about images which were not read again."""
        if not self._lists[name]:
            return
        listing: Any = getattr(inputs, name)
        listed = {row.path for row in listing} if name != "changed" else set()
        images, gone = self._check.tree.images, {*self.changed, *self.removed}
        for row in self._lists[name]:
            path = os.fsencode(row.path)
            place = bisect_left(images, path)
            if place == len(images) or images[place] != path or row.path in listed:
                continue
            if name == "changed":
                if path not in gone and (self._only is not None and path not in self._only):
                    yield row
            elif path in self._deleted or (self._only is not None and path not in self._only):
                yield row

    def counts(self, inputs: Inputs, results: Sequence[ShardResult]) -> dict[str, int]:
        """Return the counts of the manifest. Those of labels are exact if all were read again, else sums."""
        old = self._source.manifest.counts
        found = Counter(inputs.counts) if self.reads_all else Counter(old) + Counter(inputs.counts)
        for result in results:
            found.update(result.counts)
        return {**old, **found}


def notes_on_extras(manifest: Manifest) -> list[str]:
    """Return what a manifest says of fields that `packer edit` gave to records."""
    return [note for note in manifest.notes if note.startswith(f"{EXTRAS}: ")]


def resize_of(options: Mapping[str, Any]) -> Any:
    """Return how the images of a pack were resized, by its recorded options; None if they were not."""
    from packer.images.resize import TargetSize

    size, *how = (options.get(name) for name in ("resize", "fit", "pad_value", "interpolation"))
    return None if size is None else TargetSize.of(size, *how)
