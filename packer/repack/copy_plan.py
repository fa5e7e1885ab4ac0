"""Plans a conversion: the records to write, the job of each shard, and whether the new pack fits on the disk."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from packer.containers.base import ShardSpec
from packer.errors import UsageError, printable
from packer.format.indexes import Indexes
from packer.format.lists import Skipped
from packer.format.manifest import Manifest
from packer.format.schema import DTYPES
from packer.model.fields import FIELD_NAMES
from packer.packing.options import BuildOptions
from packer.packing.plan import SAMPLED_IMAGES, shard_name
from packer.packing.select import Selection, read_selection
from packer.packing.sizes import Facts, stored_bytes
from packer.packing.space import check_space, free_bytes
from packer.repack.copy_shard import CopyJob, Remake

KEY = "^[0-9]{8,18}$"
RESERVE = 1.02
"""Bytes that are needed, per byte that is estimated."""

Rows = tuple[int, ...] | None
"""Rows of a shard, in order; None: all of them."""
Measure = Callable[[CopyJob], Sequence[int]]


@dataclass
class Selected:
    """The records of a pack that ``--include`` and ``--exclude`` leave."""

    rows: list[Rows]
    """Those of each shard."""
    skipped: list[Skipped] = field(default_factory=list)
    files: dict[str, bytes] = field(default_factory=dict)
    """What the options name, as files for the new pack."""
    notes: list[str] = field(default_factory=list)


def select(options: BuildOptions, manifest: Manifest, indexes: Indexes) -> Selected:
    """Return the records that the options leave.

    Raises:
        UsageError: A line of ``--include`` names no record, or no record is left.
    """
    selected = Selected([None] * len(manifest.shards))
    if options.include is None and options.exclude is None:
        return selected
    parts = [indexes[number].column("path").to_pylist() for number in range(len(manifest.shards))]
    paths = [path for part in parts for path in part]
    reasons: dict[bytes, str] = {}
    if options.include is not None:
        found = read_selection(options.include, paths, options.source)
        for line, number in found.unmatched.items():
            problem = f"no record {printable(line)}"
            raise UsageError(f"{options.include}:{number}", problem, "correct the line, or remove it")
        reasons.update((path, "not included") for path in paths if path not in found.images)
        selected.files["include"] = found.content
    if options.exclude is not None:
        found = read_selection(options.exclude, paths, options.source)
        if found.unmatched:
            selected.notes.append(found.note)
        reasons.update((path, "excluded") for path in found.images)
        selected.files["exclude"] = _with_earlier(found, options.source, manifest, paths)
    rows = [tuple(row for row, path in enumerate(part) if path not in reasons) for part in parts]
    if not any(rows):
        raise UsageError(options.include or options.exclude or "", "leaves no record", "name other images")
    selected.rows = [None if len(kept) == len(part) else kept for kept, part in zip(rows, parts, strict=True)]
    selected.skipped = [Skipped(os.fsdecode(path), reasons[path]) for path in paths if path in reasons]
    return selected


def _with_earlier(found: Selection, pack: str, manifest: Manifest, paths: list[bytes]) -> bytes:
    """Return what is excluded now and, if the pack was built with ``--exclude``, what was excluded then."""
    if (entry := manifest.lists.get("exclude")) is None:
        return found.content
    earlier = read_selection(os.path.join(pack, entry.name), paths)
    return Selection(found.file, lines=[*earlier.lines, *found.lines]).content


class CopyPlan:
    """The jobs of a conversion."""

    def __init__(self, manifest: Manifest, indexes: Indexes, options: BuildOptions, remake: Remake | None) -> None:
        self._old, self._indexes, self._options, self._remake = manifest, indexes, options, remake
        self.new_keys = False
        """Whether the keys of the pack cannot stay."""

    def jobs(self, rows: Sequence[Rows], folder: str) -> list[CopyJob]:
        """Return a job for each shard that has records left, to be written to `folder`."""
        wanted = [number for number, kept in enumerate(rows) if kept is None or kept]
        tables = [_taken(self._indexes[number], rows[number]) for number in wanted]
        self.new_keys = not all(map(_keys_may_stay, tables))
        facts = Facts(pa.concat_tables(map(_sizes, tables)), None if self._remake is None else self._remake.resize)
        old, options = self._old, self._options
        shape, dtype = (old.shape, old.dtype) if self._remake is None else facts.uniform()
        self.image_bytes = facts.source_bytes if self._remake is None else facts.raw_bytes
        spec = ShardSpec(
            classes=old.classes,
            encoding=options.encode or old.encoding,
            shape=shape if options.encode == "raw" else None,
            dtype=dtype or "uint8",
            planned_records=0,
            planned_bytes=0,
            parts=old.part_specs,
        )
        jobs: list[CopyJob] = []
        first = 0
        for number, table in zip(wanted, tables, strict=True):
            entry, stop = old.shards[number], first + len(table)
            job = CopyJob(
                folder=folder,
                name=shard_name(options.container, len(jobs), len(wanted)),
                container=options.container,
                spec=replace(spec, planned_records=len(table), planned_bytes=int(self.image_bytes[first:stop].sum())),
                bad_allowed=len(table),
                pack=os.path.abspath(options.source),
                file=old.path_of(os.path.abspath(options.source), entry.container.name),
                entry=entry,
                rows=rows[number],
                first_key=first if self.new_keys else None,
                remake=self._remake,
            )
            jobs.append(job)
            first = stop
        self._table = pa.concat_tables(
            table.select([n for n in _LABELS if n in table.column_names]) for table in tables
        )
        return jobs

    def check_space(self, jobs: Sequence[CopyJob], measure: Measure) -> None:
        """Raise StorageError if the new pack will not fit on the disk. `measure` encodes a few images, in a worker."""
        options = self._options
        sizes = self.image_bytes
        if self._remake is not None and options.encode != "raw":
            job = jobs[0]
            count = job.spec.planned_records
            drawn = np.unique(np.linspace(0, count - 1, min(SAMPLED_IMAGES, count)).astype(int))
            rows = range(count) if job.rows is None else job.rows
            encoded = measure(replace(job, rows=tuple(rows[number] for number in drawn.tolist())))
            ratio = sum(encoded) / max(1, int(sizes[drawn].sum()))
            sizes = np.ceil(sizes * ratio).astype(np.int64)
        needed = stored_bytes(options.container, options.encode == "raw", sizes, self._table)
        step = "choose another disk, or make it smaller with --encode=jpeg"
        check_space(options, needed, len(jobs), free_bytes(options), step)


_LABELS = ("path", *FIELD_NAMES)


def _taken(table: Any, rows: Rows) -> Any:
    return table if rows is None else table.take(pa.array(rows, pa.int64()))


def _sizes(table: Any) -> Any:
    """Return the columns that `Facts` needs."""
    columns = {name: table.column(name) for name in ("height", "width", "channels")}
    wide = pc.equal(table.column("dtype").cast("string"), DTYPES[1])
    return pa.table({"bytes": table.column("size"), **columns, "wide": wide})


def _keys_may_stay(table: Any) -> bool:
    """Return whether the keys of a shard are as packer writes them: numbers, in increasing order."""
    keys = table.column("key")
    numbers = pc.all(pc.match_substring_regex(keys, KEY)).as_py()
    return bool(numbers and (len(keys) < 2 or pc.all(pc.less(keys[:-1], keys[1:])).as_py()))
