"""Writes those shards of a pack again of which much is dead: images that no record of the new version has."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np

from packer.errors import DamagedPack, UsageError, option, printable
from packer.format.index import read_index
from packer.format.manifest import Manifest, ShardEntry
from packer.format.pack_paths import numbers_in
from packer.format.versions import read_version
from packer.model.annotation import Progress, column_of, names_in
from packer.model.annotation_columns import column
from packer.packing.publish_version import NextVersion
from packer.repack.compact import compact_shard, dead_records
from packer.repack.links import Linked, Taken

NEVER = "never"
DEFAULT_SHARE = "20%"


def share_of_text(text: str) -> float | None:
    """Return the share that ``20%`` means; None for ``never``. Raise UsageError for another text."""
    if text.strip().lower() == NEVER:
        return None
    match = re.fullmatch(r"(\d{1,3}(?:\.\d{1,9})?)%", text.strip(), re.ASCII)
    if match is None or float(match[1]) > 100:
        raise UsageError(option("compact"), f"must be a percentage such as 20%, or never, got {printable(text)}")
    return float(match[1]) / 100


def dead_shares(pack: str, manifest: Manifest, taken: Sequence[Taken]) -> list[float]:
    """Return the share of the bytes of each shard that will be dead.

    Args:
        pack: The folder of a pack.
        manifest: Its manifest.
        taken: What stays of its shards.
    """
    shares, versions = [], list[Manifest]()
    for item in taken:
        if item.rows is None:  # it was not worth it when some of its records were dropped
            shares.append(0.0)
            continue
        if not versions:
            versions = [*_versions(pack), manifest]
        table = item.source.tables[item.number]
        whole, live = _whole_bytes(pack, versions, item.shard, table), int(_sizes(table)[item.rows].sum())
        shares.append(1 - live / whole if whole else 0.0)
    return shares


def _versions(pack: str) -> Iterator[Manifest]:
    """Yield the manifests of the versions of a pack that can be read, the first one first."""
    for number in numbers_in(pack):
        with suppress(DamagedPack):
            yield read_version(pack, number)


def _sizes(table: Any) -> Any:
    """Return the bytes of each record with its parts."""
    sizes = np.array(column(table, "size"), np.int64)
    for name in names_in(table.column_names):
        sizes += np.maximum(0, np.asarray(column(table, column_of(name, "size"))))
    return sizes


def _whole_bytes(pack: str, versions: Sequence[Manifest], shard: ShardEntry, table: Any) -> int:
    """Return the bytes of all records of a container: those of the version that it was written for, else by its
    framing; `table` is its index now.
    """
    for version in versions:
        for entry in version.shards:
            if entry.container == shard.container and entry.container.name not in version.linked:
                return int(_sizes(read_index(version.path_of(pack, entry.index.name))).sum())
    path, container = versions[-1].path_of(pack, shard.container.name), versions[-1].container
    return int(_sizes(table).sum()) + dead_records(path, container, table).bytes


def compact_dead(
    new: NextVersion, manifest: Manifest, made: Linked, shares: Sequence[float], most: float, progress: Progress
) -> tuple[Manifest, int]:
    """Write the shards again of which more than a share is dead, and return the manifest with them, and how many.

    Args:
        new: The next version of a pack, with its new indexes.
        manifest: Its manifest.
        made: Its first shards, those that are in the pack.
        shares: Which share of each of them is dead.
        most: The share.
        progress: Receives the stage compacting, in records.
    """
    numbers = [number for number, share in enumerate(shares) if share > most]
    progress.stage("compacting", sum(made.shards[number].records for number in numbers), "records")
    shards, linked, companions = list(manifest.shards), dict(manifest.linked), dict(manifest.companions)
    compacted = 0
    for number in numbers:
        old = shards[number]
        path = os.path.join(new.folder, old.index.name)
        if os.path.lexists(path):  # it is not in the pack yet
            name = os.path.relpath(path, new.path)
            shards[number] = replace(old, index=replace(old.index, name=name))
        names = new.name(old.container.name), new.name(old.index.name)
        try:
            found = compact_shard(
                new.path, replace(manifest, shards=tuple(shards)), number, new.folder, names, progress.advance
            )
        except UsageError as error:  # of a format, or an order of keys, that cannot be written again
            progress.note(f"note: {printable(old.container.name)} stays as it is: it {error.problem}")
            shards[number] = old
            continue
        compacted += 1
        shards[number] = found.entry
        linked.pop(old.container.name, None)
        companions.pop(old.container.name, None)
        if found.companion is not None:
            companions[found.entry.container.name] = found.companion
    return replace(manifest, shards=tuple(shards), linked=linked, companions=companions), compacted
