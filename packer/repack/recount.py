"""What pack.json says of the records, counted in their indexes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from packer.format.manifest import Manifest, ShardEntry
from packer.format.schema import DTYPES
from packer.model.columns import column, present
from packer.model.fields import FIELD_NAMES


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
