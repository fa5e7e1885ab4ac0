"""Whole columns of an index: what pack.json says of them, other class ids, fewer rows, equal files, ignored regions."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer.format.index import DTYPES
from packer.format.manifest import Manifest, ShardEntry
from packer.format.pack import Pack
from packer.model.annotation import NOT_OBJECTS, Int64
from packer.model.annotation_columns import Ragged, column, present
from packer.model.fields import FIELD_NAMES, FIELDS

MARKED = re.compile(rb'"(?:%b)":\s*\[[^\]]*[1-9t]' % "|".join(NOT_OBJECTS).encode())
"""In the JSON text of box fields with an ignored region."""

ROWS_A_RUN = 8
"""Of longer runs, a copy of each is faster than one of each row."""


def recount(manifest: Manifest, shards: Iterable[ShardEntry], tables: Iterable[Any]) -> Manifest:
    """Return `manifest` with these shards, and with what follows from their indexes.

    Args:
        manifest: Its container, encoding, mode, classes, options, ... stay; so do the counts of inputs that are not
            in the pack. Its fields must name all that a record may have.
        shards: The shards of the pack.
        tables: The index of each shard; read one by one.
    """
    shards = tuple(shards)
    totals = {name: np.zeros(len(manifest.classes), np.int64) for name in ("label", "boxes")}
    there, shapes, dtypes = set[str](), set[tuple[int, ...]](), set[int]()
    boxes = 0
    for table in tables:
        there.update(name for name in FIELD_NAMES if present(table, name).any())
        sides = np.stack([np.asarray(column(table, name)) for name in ("height", "width", "channels")], axis=1)
        if len(shapes) < 2 and len(sides):
            same = (sides == sides[0]).all()
            shapes.update([tuple(sides[0].tolist())] if same else map(tuple, np.unique(sides, axis=0)[:2].tolist()))
        dtypes.update(np.unique(np.asarray(column(table, "dtype"))).tolist())
        labels: Any = column(table, "label")
        box_labels: Any = column(table, "box_labels")
        for name, ids in (("label", labels[labels >= 0]), ("boxes", box_labels.flat())):
            totals[name] += np.bincount(ids, minlength=len(totals[name]))
        lists: Any = column(table, "boxes")
        boxes += len(lists.flat())
    records = sum(shard.records for shard in shards)
    counts = dict(manifest.counts)
    counts.update(packed=records, found=records + counts.get("rejected", 0) + counts.get("skipped", 0))
    counts.update({"boxes": boxes} if "boxes" in there else {})
    ((height, width, channels),) = shapes if len(shapes) == 1 else ((0, 0, 0),)
    return replace(
        manifest,
        shards=shards,
        records=records,
        dtype=DTYPES[min(dtypes)] if len(dtypes) == 1 else None,
        shape=(height, width, channels) if height else None,
        fields=tuple(name for name in manifest.fields if name.partition(".")[0] in there),
        counts=dict(sorted(counts.items())),
        class_counts={name: total.tolist() for name, total in totals.items() if total.any()},
    )


def map_ids(ids: NDArray[Any], mapping: Int64) -> Int64:
    """Return the new class ids, int64 (n,); a negative id, which means none, is -1.

    Args:
        ids: Class ids, any integers below the number of classes.
        mapping: New id of each class, int64 (classes,).

    Raises:
        ValueError: An id is not that of a class.
    """
    if len(ids) and int(ids.max()) >= len(mapping):
        raise ValueError(f"it has the class id {int(ids.max())}, but the pack has {len(mapping)} classes")
    return np.append(mapping, -1)[np.where(ids < 0, len(mapping), ids)]


def relabelled(table: Any, mapping: Int64) -> Any:
    """Return an index with other class ids, as a record batch."""
    (batch,) = table.to_batches()
    lists: Any = column(table, "box_labels")
    flat = pa.array(map_ids(np.asarray(lists.flat()), mapping), pa.int64())
    offsets = pa.array(np.asarray(lists.offsets - lists.offsets[0], np.int32))
    absent = pa.array(~present(table, "box_labels"))
    batch = with_column(batch, "box_labels", pa.ListArray.from_arrays(offsets, flat, mask=absent))
    return with_column(batch, "label", label_array(map_ids(np.asarray(column(table, "label")), mapping)))


def select_rows(batch: Any, rows: Int64) -> Any:
    """Return some rows of an index (a record batch), in the order of `rows`."""
    table = pa.Table.from_batches([batch])
    labels = np.asarray(column(table, "label"))[rows]
    (found,) = take_rows(table, rows).combine_chunks().to_batches() or [batch.slice(0, 0)]
    return with_column(found, "label", label_array(labels))


def take_rows(table: Any, rows: Int64) -> Any:
    """Return rows of a table, in this order, in several chunks; what is below a null is not kept."""
    ends = np.append(np.flatnonzero(np.diff(rows) != 1) + 1, len(rows))
    if len(ends) * ROWS_A_RUN >= len(rows):
        return table.take(pa.array(rows))
    starts = np.insert(ends[:-1], 0, 0)  # of all but a few, eight times as fast as Arrow takes rows of lists
    runs = [*zip(rows[starts].tolist(), (ends - starts).tolist(), strict=True)]
    if len(runs) == 1:  # a single slice, combined, is no copy, and is written with the texts of the rows behind it
        ((start, count),) = runs
        runs = [(start, 1), (start + 1, count - 1)]
    return pa.concat_tables(table.slice(start, count) for start, count in runs)


def annotations_of(tables: Iterable[Any]) -> Any:
    """Return the columns of annotations of indexes, with those that an index lacks, as one table."""
    parts = []
    for table in tables:
        there = {f.name: f.name in table.column_names for f in FIELDS}
        parts.append(
            pa.table(
                {f.name: table.column(f.name) if there[f.name] else pa.nulls(len(table), f.kind.arrow) for f in FIELDS}
            )
        )
    return pa.concat_tables(parts)


def label_array(ids: NDArray[Any]) -> Any:
    # a null must have the value -1 (packer/format/index.py), which Arrow's own functions do not keep
    return pa.array(np.asarray(ids, np.int32), pa.int32(), mask=np.asarray(ids) < 0)


def with_column(batch: Any, name: str, values: Any) -> Any:
    """Return a record batch with other values in the column `name`."""
    place = batch.schema.get_field_index(name)
    arrays = [values if i == place else array for i, array in enumerate(batch.columns)]
    return pa.RecordBatch.from_arrays(arrays, schema=batch.schema)


def rows_of(lists: Ragged, rows: Int64) -> Ragged:
    """Return a copy of some rows of a column of lists of numbers."""
    ends = np.cumsum(np.asarray(lists.lengths, np.int64)[rows])
    return Ragged(np.asarray(lists.values)[items_of(np.asarray(lists.offsets), rows)], np.insert(ends, 0, 0))


def items_of(offsets: NDArray[Any], rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the numbers of all items of these rows, one row after another."""
    starts, lengths = offsets[rows].astype(np.int64), (offsets[rows + 1] - offsets[rows]).astype(np.int64)
    ends = np.cumsum(lengths)
    return np.asarray(np.repeat(starts - ends + lengths, lengths) + np.arange(ends[-1] if len(ends) else 0), np.int64)


@dataclass(frozen=True)
class RecordGroups:
    """Groups of records that are alike, such as those of equal source files, in the order of their first records."""

    records: NDArray[np.int64]
    """The records of all groups, one group after another, ascending in each."""
    starts: NDArray[np.int64]
    """Where each group begins in `records`, and the end: (groups + 1,)."""

    @property
    def groups(self) -> int:
        """The number of groups."""
        return len(self.starts) - 1

    @property
    def group_of(self) -> NDArray[np.int64]:
        """The number of the group of each of `records`."""
        return np.repeat(np.arange(self.groups), np.diff(self.starts))

    def listed(self, group: int) -> list[int]:
        """Return the records of a group."""
        return list(self.records[self.starts[group] : self.starts[group + 1]].tolist())


def equal_files(digests: NDArray[np.uint64]) -> RecordGroups:
    """Return the groups of equal digests, (n, 2); zeros are equal to nothing."""
    half = digests[:, 0]
    ordered = np.sort(half)  # several times as fast as an order of the whole digests
    again = np.unique(ordered[1:][ordered[1:] == ordered[:-1]])  # few of a large pack
    some = np.zeros(0, np.int64)
    if len(again):
        some = np.flatnonzero((again[np.searchsorted(again[:-1], half)] == half) & digests.any(axis=1))
    some = some[np.lexsort((some, digests[some, 1], digests[some, 0]))]
    return groups_of(some, (digests[some[1:]] != digests[some[:-1]]).any(axis=1))


def groups_of(some: NDArray[np.int64], differ: NDArray[np.bool_]) -> RecordGroups:
    """Return the groups of two records or more among records that are sorted by group, ascending in each.

    Args:
        some: The records.
        differ: Whether each but the first is of another group than the one before.
    """
    begins = np.append(True, differ)[: len(some)]
    bounds = np.append(np.flatnonzero(begins), len(some))
    lengths = np.diff(bounds)
    groups = np.flatnonzero(lengths > 1)
    groups = groups[np.argsort(some[bounds[groups]], kind="stable")]
    return RecordGroups(some[items_of(bounds, groups)], np.insert(np.cumsum(lengths[groups]), 0, 0))


def count_ignored(pack: Pack) -> int:
    """Return the number of ignored regions in a pack."""
    return sum(int(flags.sum()) for _, flags in ignored_boxes(pack))


def ignored_boxes(pack: Pack) -> Iterator[tuple[int, Any]]:
    """Yield the number of each record that may have ignored regions, and which of its boxes these are, bool (k,)."""
    if not any(f"box_fields.{name}" in pack.manifest.fields for name in NOT_OBJECTS):
        return
    rows: Any = pack.column("box_fields")
    for record, text in enumerate(rows):
        if MARKED.search(text):  # parsing all would take long
            yield record, pack.annotation(record).ignored
