"""Several packs as one: their shards under new names, their classes joined. No image is read or copied."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer.errors import AnyPath, BadInput, UsageError, option, plural, printable
from packer.format.index import read_index
from packer.format.lists import KINDS, MOST_IN_MANIFEST, Listing, Skipped, read_list
from packer.format.manifest import Manifest
from packer.model.annotation import Int64, Progress, column_of
from packer.model.annotation_columns import Ragged, column, present
from packer.model.fields import CLASS_IDS, NUMERIC
from packer.packing.build_options import BuildOptions, check_extension
from packer.packing.class_map import ClassChange, changes_notes
from packer.packing.option_table import CLASS_OPTIONS
from packer.packing.publish import Output, check_folder
from packer.packing.resolve import read_classes
from packer.packing.resume import resume_or_restart
from packer.repack.carry import NewFiles, carry
from packer.repack.index_columns import equal_files, map_ids, recount, rows_of, select_rows
from packer.repack.links import Linked, Source, Taken, joined_classes, joint_manifest, link_shards
from packer.repack.pack_classes import PackClasses, class_map_of, recorded_classes

SHOWN = 5


@dataclass(frozen=True, slots=True)
class EqualInputs:
    """Records whose source file has the same bytes as that of an earlier record."""

    records: int = 0
    """How many there are: all but the first of each file."""
    across: int = 0
    """Those whose first record is in another pack."""
    contradicting: int = 0
    """Those that are labelled differently than the first, in any field but the texts."""
    examples: tuple[str, ...] = ()
    """Some of them as text, the contradicting ones first."""


def find_duplicates(taken: Sequence[Taken]) -> tuple[EqualInputs, Int64, Int64]:
    """Return the duplicates among the records of these shards, their numbers, and the first record of each one's file.

    Files are equal if their XXH3-128 are; records whose digest is not known are not duplicates.
    """
    tables = [item.source.tables[item.number] for item in taken]
    digests = np.concatenate([np.asarray(column(table, "source_xxh3")) for table in tables])
    equal = equal_files(np.ascontiguousarray(digests).view(np.uint64))
    later = np.delete(equal.records, equal.starts[:-1])
    first = np.repeat(equal.records[equal.starts[:-1]], np.diff(equal.starts) - 1)
    order = np.argsort(later)
    later, first = later[order], first[order]
    if not len(later):
        return EqualInputs(), later, first
    starts = np.cumsum([0, *map(len, tables)])
    shards = np.searchsorted(starts, np.stack([first, later]), side="right") - 1
    packs = np.array([list(dict.fromkeys(t.source.path for t in taken)).index(t.source.path) for t in taken])
    across = packs[shards[0]] != packs[shards[1]]
    contradicting = _differ(taken, tables, first, later)
    order = np.argsort(~contradicting, kind="stable")[:SHOWN].tolist()
    paths = [column(table, "path") for table in tables]

    def name(record: int, shard: int) -> str:
        path = bytes(paths[shard][record - int(starts[shard])])
        return f"{printable(os.fsdecode(path))} in {printable(taken[shard].source.name)}"

    examples = [
        f"{name(int(later[i]), int(shards[1, i]))} is {name(int(first[i]), int(shards[0, i]))}"
        + (", labelled differently" if contradicting[i] else "")
        for i in order
    ]
    found = EqualInputs(len(later), int(across.sum()), int(contradicting.sum()), tuple(examples))
    return found, later, first


def _differ(taken: Sequence[Taken], tables: Sequence[Any], first: Int64, later: Int64) -> NDArray[np.bool_]:
    """Return which pairs of records are labelled differently, bool (n,)."""
    found = np.zeros(len(first), np.bool_)
    for field in NUMERIC:
        there = np.concatenate([present(table, field.name) for table in tables])
        found |= there[first] != there[later]
        parts = [_map_class_ids(item, table, field.name) for item, table in zip(taken, tables, strict=True)]
        if isinstance(parts[0], Ragged):
            found |= lists_differ(Ragged.concat(parts), first, later)
        else:
            values = np.concatenate(parts)
            found |= values[first] != values[later]
    for name in taken[0].source.manifest.parts:
        for what in ("size", "crc32c"):
            values = np.concatenate([np.asarray(column(table, column_of(name, what))) for table in tables])
            found |= values[first] != values[later]
    return found


def lists_differ(lists: Ragged, first: Int64, later: Int64) -> NDArray[np.bool_]:
    """Return which pairs of rows of a column of lists differ, bool (n,)."""
    if isinstance(lists.values, Ragged):  # of lists: in how long these are, or in what they hold
        inner, bounds = lists.values, np.asarray(lists.offsets)
        lengths = Ragged(np.asarray(inner.lengths), bounds)
        items = Ragged(inner.values, np.asarray(inner.offsets)[bounds])
        return lists_differ(lengths, first, later) | lists_differ(items, first, later)
    counts = np.asarray(lists.lengths)
    same = counts[first] == counts[later]
    found = ~same
    a, b = rows_of(lists, first[same]), rows_of(lists, later[same])
    differ = np.asarray(a.values != b.values)
    unequal = np.asarray(differ.any(axis=tuple(range(1, differ.ndim))))
    before = np.concatenate([[0], np.cumsum(unequal)])
    found[np.flatnonzero(same)[before[a.offsets[1:]] > before[a.offsets[:-1]]]] = True
    return np.asarray(found)


def _map_class_ids(item: Taken, table: Any, name: str) -> Any:
    values: Any = column(table, name)
    if item.mapping is None or name not in CLASS_IDS:
        return values
    if not isinstance(values, Ragged):
        return map_ids(np.asarray(values), item.mapping)
    return Ragged(map_ids(np.asarray(values.flat()), item.mapping), np.asarray(values.offsets) - values.offsets[0])


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
    duplicates: EqualInputs
    dropped: int
    """Duplicates that are not in the new pack."""
    notes: tuple[str, ...]
    seconds: float
    class_changes: tuple[ClassChange, ...] = ()
    """What became of classes that were renamed or dropped."""


def merge(
    packs: Sequence[AnyPath],
    out: AnyPath,
    classes: AnyPath | None = None,
    duplicates: str = "keep",
    overwrite: bool = False,
    progress: Progress | None = None,
    **given: Any,
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
        given: Options of `BuildOptions` that change classes: map, drop_class, only_class and single_class; and
            missing_labels, for records that these leave without objects.

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
    options = _class_options(given)
    listings = _listings(sources)
    skipped = len(listings["skipped"])
    changes = _new_classes(sources, options, listings["skipped"])
    names, mappings = joined_classes(sources, None if classes is None else read_classes(os.fsdecode(classes)))
    output = _output(path, sources, overwrite)
    taken = [
        Taken(source, number, None, mapping)
        for source, mapping in zip(sources, mappings, strict=True)
        for number in range(len(source.manifest.shards))
        if not source.has_new_index or len(source.tables[number])
    ]
    progress.stage("reading", len(taken), "shards")
    for item in taken:
        len(item.source.tables)
        progress.advance(1)
    manifest, notes = joint_manifest(sources, names)
    notes = [*changes_notes(changes), *notes]
    manifest = _recorded(manifest, duplicates, options, changes)
    found, later, _ = find_duplicates(taken)
    if found.records and duplicates == "fail":
        raise BadInput(
            path, f"{duplicates_text(found)}, for example {found.examples[0]}", "pass --duplicates=keep or drop"
        )
    left_out = len(listings["skipped"]) - skipped
    dropped = _drop(taken, later, listings["skipped"]) if duplicates == "drop" else 0
    asked = {"command": "merge", "packs": [source.path for source in sources]}
    with output:
        for note in resume_or_restart(output, asked, overwrite):
            progress.note(f"note: {note}")
        kept = [item for item in taken if item is not None]
        made = link_shards(output.folder, path, kept, progress)
        manifest = _counted_manifest(manifest, sources, made, output.folder, dropped + left_out)
        manifest = replace(manifest, rejected=tuple(islice(listings["rejected"], MOST_IN_MANIFEST)))
        output.beside, lost = carry(kept, manifest, NewFiles(output.folder))
        manifest = output.publish(manifest, listings.values())
    changed = sum(item is not None and (item.mapping is not None or item.source.has_new_index) for item in taken)
    return MergeReport(
        path, manifest, dict(made.how), changed, found, dropped, (*notes, *lost), time.perf_counter() - started, changes
    )


def _class_options(given: Mapping[str, Any]) -> BuildOptions:
    """Return the options that change classes, checked."""
    if unknown := given.keys() - {*CLASS_OPTIONS, "missing_labels"}:
        raise TypeError(f"merge got an unknown option {min(unknown)!r}")
    return BuildOptions("PACKS", **given)


def _new_classes(
    sources: Sequence[Source], options: BuildOptions, skipped: Listing[Skipped]
) -> tuple[ClassChange, ...]:
    """Give packs the classes that the options ask for, and return what changed; `skipped` receives what is left out.

    Raises:
        UsageError: The options name a class that no pack has, or leave no record, or one without objects; or the
            pixels of masks would have to change.
    """
    if (class_map := class_map_of(options, [source.manifest for source in sources])) is None:
        return ()
    counts: Counter[str] = Counter()
    for source in sources:
        classes, tables = PackClasses.of(class_map, source.manifest), []
        classes.check_masks(source.path, "a merge")
        for table in source.tables:
            found, stay = classes.taken(table, options.missing_labels, skipped)
            tables.append(pa.Table.from_batches([select_rows(found.batch(), np.flatnonzero(stay))]))
        counts.update(classes.counts)
        if (manifest := classes.in_manifest(source.manifest)) != source.manifest:
            source.take(manifest, tables)
    if not any(len(table) for source in sources for table in source.tables):
        raise UsageError(class_map.option, "leaves no record", "name other classes")
    return class_map.changes(counts)


def _recorded(manifest: Manifest, duplicates: str, options: BuildOptions, changes: tuple[ClassChange, ...]) -> Manifest:
    """Return a manifest that says what becomes of duplicates and classes."""
    if duplicates == "drop":
        manifest = replace(manifest, options={**manifest.options, "repack": {"duplicates": "drop"}})
    recorded, notes = recorded_classes(options, manifest.options), changes_notes(changes)
    return replace(manifest, options=recorded, notes=(*notes, *manifest.notes))


def duplicates_text(found: EqualInputs) -> str:
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
    bounds = np.searchsorted(later, np.cumsum([0, *(item.records for item in taken)]))
    for number, item in enumerate(list(taken)):
        gone = later[bounds[number] : bounds[number + 1]] - start
        start += item.records
        if len(gone):
            paths = column(item.source.tables[item.number], "path")
            for row in gone.tolist():
                skipped.add(Skipped(os.fsdecode(bytes(paths[row])), DROPPED))
            rows = np.delete(np.arange(item.records), gone)
            taken[number] = replace(item, rows=rows) if len(rows) else None
    return len(later)


def _counted_manifest(
    manifest: Manifest, sources: Sequence[Source], made: Linked, folder: str, dropped: int
) -> Manifest:
    counts = dict(manifest.counts)
    counts["skipped"] += dropped
    manifest = replace(
        manifest,
        counts=counts,
        linked=made.linked,
        companions=made.companions,
        made_from=tuple(source.origin("merge") for source in sources),
    )
    indexes = (read_index(os.path.join(folder, shard.index.name)) for shard in made.shards)
    return recount(manifest, made.shards, indexes)
