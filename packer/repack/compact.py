"""Writes a shard again with only the records that its index names: what was deleted is not in the new file."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from packer.containers import container_names, open_container
from packer.containers.container import ShardSpec
from packer.errors import UsageError, printable
from packer.format.indexes import Indexes, IndexFiles
from packer.format.manifest import FileEntry, Manifest, ShardEntry
from packer.format.verify_records import write_companion
from packer.model.annotation_columns import column
from packer.packing.write_shard import files_of
from packer.repack.copy_shard import CopyJob, keys_may_stay
from packer.system.child import Report, unmarked
from packer.system.storage import storage_errors

Paths = frozenset[bytes]


def _unheard(done: int, bad: int) -> None:
    pass


@dataclass(frozen=True, slots=True)
class Compacted:
    """A shard that was written again."""

    entry: ShardEntry
    """Its files, under their new names."""
    companion: FileEntry | None
    """The file that readers of the format want beside it."""


@dataclass(frozen=True, slots=True)
class Dead:
    """What a container holds and its index does not name."""

    records: int
    bytes: int
    """Of their images and parts."""
    paths: Paths = frozenset()
    """Of their source files, as far as the container has them."""


def compact_shard(
    pack: str, manifest: Manifest, number: int, folder: str, names: tuple[str, str], report: Report = _unheard
) -> Compacted:
    """Write a shard of a pack again, with the records that its index names, in their order.

    Keys, bytes of images and parts, checksums, annotations, paths and digests of the sources stay; places in the file
    are others. Each record is compared with its checksum.

    Args:
        pack: The folder of the pack.
        manifest: Its manifest.
        number: Of the shard.
        folder: Where to write it.
        names: New names of the container and of the index.
        report: Called with (records done, 0) from time to time.

    Returns:
        The new shard.

    Raises:
        UsageError: The shard is in a format that packer does not write, or has keys that cannot stay.
        DamagedPack: A record, or the index, was altered.
        StorageError: A file cannot be read or written.
    """
    shard, pack = manifest.shards[number], os.path.abspath(pack)
    table = check_can_compact(pack, manifest, number)
    job = CopyJob(
        folder=folder,
        name=names[0],
        container=manifest.container,
        spec=ShardSpec(
            classes=manifest.classes,
            encoding=manifest.encoding,
            shape=manifest.shape if manifest.encoding == "raw" else None,
            dtype=manifest.dtype or "uint8",
            planned_records=len(table),
            planned_bytes=int(np.asarray(column(table, "size")).sum()),
            parts=manifest.part_specs,
        ),
        bad_allowed=len(table),
        pack=pack,
        file=manifest.path_of(pack, shard.container.name),
        entry=shard,
        rows=None,
        first_key=None,
        remake=None,
    )
    result = job.write(job.made(unmarked), report)
    assert result.entry is not None  # an index has a row, or its shard is in no manifest
    for written, name in zip(files_of(folder, names[0], result.attempt), names, strict=True):
        with storage_errors(name):
            os.replace(written, os.path.join(folder, name))
    entry = replace(result.entry, index=replace(result.entry.index, name=names[1]))
    has_companion = hasattr(open_container(manifest.container), "companion")
    path = os.path.join(folder, names[0])
    return Compacted(entry, write_companion(manifest.container, path, folder) if has_companion else None)


def check_can_compact(pack: str, manifest: Manifest, number: int) -> Any:
    """Return the index of a shard that is to be written again, `number` of a pack.

    Raises:
        UsageError: It is in a format that packer does not write, or has keys that cannot stay.
        DamagedPack: The index cannot be read.
    """
    shard = manifest.shards[number]
    manifest.check_no_windows(pack, "shards of such images are not written again")
    table = Indexes(IndexFiles(pack, [shard], manifest))[0]
    step = f"make a pack of its own of it: packer convert {printable(pack)} OUT"
    if manifest.container not in container_names():
        problem = f"has deleted records in {manifest.container} files, which packer does not write"
        raise UsageError(pack, problem, f"{step} --format=lmdb")
    if not keys_may_stay(table):
        problem = f"has deleted records in {printable(shard.container.name)}, whose keys are not increasing numbers"
        raise UsageError(pack, problem, step)
    return table


def dead_records(path: str, container: str, table: Any) -> Dead:
    """Return what a container holds besides the records that an index names. Its framing is read, not its images.

    Args:
        path: The container, in the layout that packer writes.
        container: Its format.
        table: The index.

    Raises:
        DamagedPack: The file cannot be read as this format.
    """
    alive = {*np.asarray(column(table, "offset")).tolist()}
    records, size, paths = 0, 0, set[bytes]()
    for entry in open_container(container).scan(path):
        if entry.offset not in alive:
            records += 1
            size += entry.size + sum(max(0, length) for _, length in entry.parts.values())
            with suppress(ValueError, AttributeError, TypeError):  # no annotation, or not one of packer
                paths.add(os.fsencode(json.loads(entry.annotation or b"{}").get("path", "")))
    return Dead(records, size, frozenset(paths - {b""}))
