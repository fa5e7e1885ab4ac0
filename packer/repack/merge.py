"""Several packs as one: their shards under new names, their classes joined. No image is read or copied."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Any

import numpy as np

from packer.errors import AnyPath, BadInput, UsageError, option, plural, printable
from packer.format.index import read_index
from packer.format.jpeg_index_list import not_carried
from packer.format.lists import KINDS, MOST_IN_MANIFEST, Listing, Skipped, read_list
from packer.format.manifest import Manifest
from packer.model.annotation import Int64, Progress
from packer.model.columns import column
from packer.packing.options import check_extension
from packer.packing.publish import Output, check_folder
from packer.packing.resolve import read_classes
from packer.packing.resume import resume_or_restart
from packer.repack.alike import Duplicates, find_duplicates
from packer.repack.fit import fitted, joined_classes
from packer.repack.links import Linked, Source, Taken, link_shards
from packer.repack.recount import recount

DUPLICATES = ("keep", "drop", "fail")
DROPPED = "has the same bytes as an earlier image of the merged packs"


@dataclass(frozen=True, slots=True)
class MergeReport:
    """The result of `merge`."""

    path: str
    manifest: Manifest
    shards: dict[str, int]
    """Number of shards by what was done with their files: hard link, reflink, copy, in place."""
    relabelled: int
    """Shards with other class ids than in their pack."""
    duplicates: Duplicates
    dropped: int
    """Duplicates that are not in the new pack."""
    notes: tuple[str, ...]
    seconds: float


def merge(
    packs: Sequence[AnyPath],
    out: AnyPath,
    classes: AnyPath | None = None,
    duplicates: str = "keep",
    overwrite: bool = False,
    progress: Progress | None = None,
) -> MergeReport:
    """Merge packs, in this order, into the new pack `out`.

    Shards are hard links to those of the packs where the file system allows, so that they take no space twice; else
    copies. The packs may be moved or removed afterwards, but the files of adopted packs stay where they are.

    Args:
        packs: At least two, of the same container and color mode, and with fields that fit.
        out: Path of the new pack.
        classes: File with the class names in id order, or a pack, as of `build_pack`; None: the classes of the first
            pack, then those that each next one adds.
        duplicates: keep, drop or fail: what to do with records whose source files have the same bytes as an earlier
            one. drop keeps the first.
        overwrite: Replace an existing pack.
        progress: Receives the stages reading and linking, in shards.

    Raises:
        UsageError: The packs do not fit together, or `out` exists.
        BadInput: There are duplicates, with `duplicates` fail.
        DamagedPack: A file of a pack is missing, or its index was altered.
        StorageError: A file cannot be written.
    """
    started = time.perf_counter()
    progress = progress or Progress()
    if duplicates not in DUPLICATES:
        raise UsageError(option("duplicates"), f"must be one of {', '.join(DUPLICATES)}, got {printable(duplicates)}")
    check_folder(out, "merge")
    sources = _sources(packs)
    check_extension(os.fsdecode(out), f"{option('out')}=", sources[0].manifest.container)
    path = os.path.abspath(os.fsdecode(out))
    names, mappings = joined_classes(sources, None if classes is None else read_classes(os.fsdecode(classes)))
    output = _output(path, sources, overwrite)
    taken = [
        Taken(source, number, None, mapping)
        for source, mapping in zip(sources, mappings, strict=True)
        for number in range(len(source.manifest.shards))
    ]
    progress.stage("reading", len(taken), "shards")
    for item in taken:
        len(item.source.tables)
        progress.advance(1)
    manifest, notes = fitted(sources, names)
    notes = [*notes, *not_carried(source.path for source in sources)]
    if duplicates == "drop":
        manifest = replace(manifest, options={**manifest.options, "repack": {"duplicates": "drop"}})
    found, later, _ = find_duplicates(taken)
    if found.records and duplicates == "fail":
        raise BadInput(
            path, f"{duplicates_text(found)}, for example {found.examples[0]}", "pass --duplicates=keep or drop"
        )
    listings = _listings(sources)
    dropped = _drop(taken, later, listings["skipped"]) if duplicates == "drop" else 0
    asked = {"command": "merge", "packs": [source.path for source in sources]}
    with output:
        for note in resume_or_restart(output, asked, overwrite):
            progress.note(f"note: {note}")
        made = link_shards(output.folder, path, [item for item in taken if item is not None], progress)
        manifest = _counted(manifest, sources, made, output.folder, dropped)
        manifest = replace(manifest, rejected=tuple(islice(listings["rejected"], MOST_IN_MANIFEST)))
        manifest = output.publish(manifest, listings.values())
    changed = sum(item is not None and item.mapping is not None for item in taken)
    return MergeReport(
        path, manifest, dict(made.how), changed, found, dropped, tuple(notes), time.perf_counter() - started
    )


def duplicates_text(found: Duplicates) -> str:
    """Return the counts as text."""
    text = plural(found.records, "record has", "records have") + " the same image file as an earlier one"
    within = found.records - found.across
    parts = [f"{within:,} in the same pack"] if within else []
    parts += [f"{found.contradicting:,} labelled differently"] if found.contradicting else []
    return f"{text} ({', '.join(parts)})" if parts else text


def _sources(packs: Sequence[AnyPath]) -> list[Source]:
    if len(packs) < 2:
        raise UsageError("PACKS", "must be two packs or more", "name the packs to merge")
    sources = [Source(pack) for pack in packs]
    seen = set[str]()
    for source in sources:
        real = os.path.realpath(source.path)
        if real in seen:
            raise UsageError(source.path, "is given twice", "name each pack once")
        seen.add(real)
    return sources


def _output(path: str, sources: Sequence[Source], overwrite: bool) -> Output:
    """Return the output. Raise UsageError if the new pack would replace a pack or file that it is made from."""
    for source in sources:
        for file in filter(None, source.manifest.linked.values()):
            Output(path, os.path.join(source.path, file), overwrite)
        output = Output(path, source.path, overwrite)
    return output


def _listings(sources: Sequence[Source]) -> dict[str, Listing[Any]]:
    """Return the rejected, skipped and changed inputs of all packs."""
    return {
        name: Listing(kind, chain.from_iterable(read_list(s.path, name, s.manifest) for s in sources))
        for name, kind in KINDS.items()
    }


def _drop(taken: list[Any], later: Int64, skipped: Listing[Skipped]) -> int:
    """Leave duplicates out of the shards, and shards out of which nothing is left; list them as skipped."""
    start = 0
    bounds = np.searchsorted(later, np.cumsum([0, *(item.shard.records for item in taken)]))
    for number, item in enumerate(list(taken)):
        gone = later[bounds[number] : bounds[number + 1]] - start
        start += item.shard.records
        if len(gone):
            paths = column(item.source.tables[item.number], "path")
            for row in gone.tolist():
                skipped.add(Skipped(os.fsdecode(bytes(paths[row])), DROPPED))
            rows = np.delete(np.arange(item.shard.records), gone)
            taken[number] = replace(item, rows=rows) if len(rows) else None
    return len(later)


def _counted(manifest: Manifest, sources: Sequence[Source], made: Linked, folder: str, dropped: int) -> Manifest:
    counts = dict(manifest.counts)
    counts["skipped"] += dropped
    manifest = replace(
        manifest, counts=counts, linked=made.linked, made_from=tuple(source.origin("merge") for source in sources)
    )
    indexes = (read_index(os.path.join(folder, shard.index.name)) for shard in made.shards)
    return recount(manifest, made.shards, indexes)
