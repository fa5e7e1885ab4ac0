"""Which records of a pack another pack has: those that lists of paths, names, globs and keys leave."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import accumulate

from packer.errors import UsageError, printable
from packer.format.indexes import Indexes
from packer.format.lists import Skipped
from packer.format.manifest import Manifest
from packer.packing.build_options import BuildOptions
from packer.packing.input_table import Selection, read_selection

Rows = tuple[int, ...] | None
"""Rows of a shard, in order; None: all of them."""


@dataclass
class Selected:
    """The records of a pack that ``--include`` and ``--exclude`` leave."""

    rows: list[Rows]
    """Those of each shard."""
    skipped: list[Skipped] = field(default_factory=list)
    files: dict[str, bytes] = field(default_factory=dict)
    """What the options name, as files for the new pack."""
    notes: list[str] = field(default_factory=list)


def select(
    options: BuildOptions, manifest: Manifest, indexes: Indexes, without: Mapping[int, str] | None = None
) -> Selected:
    """Return the records that the options leave.

    Args:
        options: Those of a build.
        manifest: The pack.
        indexes: Its indexes.
        without: Numbers of records to leave out besides, and why.

    Raises:
        UsageError: A line of ``--include`` names no record, or no record is left.
    """
    selected = Selected([None] * len(manifest.shards))
    if options.include is None and options.exclude is None and not without:
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
    without = without or {}
    firsts = accumulate(map(len, parts), initial=0)
    rows = [
        tuple(row for row, path in enumerate(part) if path not in reasons and first + row not in without)
        for part, first in zip(parts, firsts, strict=False)
    ]
    if not any(rows):
        raise UsageError(options.include or options.exclude or "", "leaves no record", "name other images")
    selected.rows = [None if len(kept) == len(part) else kept for kept, part in zip(rows, parts, strict=True)]
    selected.skipped = [Skipped(os.fsdecode(path), reasons[path]) for path in paths if path in reasons]
    more = [number for number in sorted(without) if paths[number] not in reasons]
    selected.skipped += [Skipped(os.fsdecode(paths[number]), without[number]) for number in more]
    return selected


def _with_earlier(found: Selection, pack: str, manifest: Manifest, paths: list[bytes]) -> bytes:
    """Return what is excluded now and, if the pack was built with ``--exclude``, what was excluded then."""
    if (entry := manifest.lists.get("exclude")) is None:
        return found.content
    earlier = read_selection(manifest.path_of(pack, entry.name), paths)
    return Selection(found.file, lines=[*earlier.lines, *found.lines]).content
