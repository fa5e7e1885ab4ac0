"""A pack as several: each part has links to the shards that it needs, and indexes with its records only."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

import packer
from packer.errors import AnyPath, PackerError, StorageError, UsageError, as_options, option, plural, printable
from packer.format.index import read_index
from packer.format.manifest import Manifest, read_manifest
from packer.format.pack import Pack, open_pack
from packer.format.verify_records import texts
from packer.model.annotation import Int64, Progress
from packer.model.annotation_columns import Ragged
from packer.model.fields import object_of
from packer.model.tiles import WINDOW
from packer.packing.input_table import Selection
from packer.packing.publish import Output, Outputs, check_folder
from packer.packing.resume import resume_or_restart
from packer.repack.carry import NewFiles, carry
from packer.repack.fingerprints import fingerprints_of
from packer.repack.index_columns import recount
from packer.repack.links import Linked, Source, Taken, link_shards
from packer.repack.near_duplicates import NEARNESS, JoinedSets, Nearness, near_groups
from packer.samplers.order import derive, permutation
from packer.sources.paths import as_text, quoted_value
from packer.system import open_regular
from packer.system.atomic import is_own_file, replacing

Shares = dict[str, Fraction]


def parse_parts(text: str) -> Shares:
    """Return the share of each part of a text such as ``train=0.8,val=0.2``; 1/3 is a share too.

    Raises:
        UsageError: The text is wrong, or the shares do not sum up to 1.
    """
    shares: Shares = {}
    step = "write it as train=0.8,val=0.2"
    for item in text.split(","):
        name, _, share = (word.strip() for word in item.partition("="))
        unsafe = name.startswith(".") or any(c in name for c in '/\\:*?"<>|\0')
        if unsafe or not 0 < len(name) <= 100 or name in shares:
            raise UsageError(option("parts"), f"has no valid name in {quoted_value(item)}, or has it twice", step)
        try:
            shares[name] = Fraction(share)
        except (ValueError, ZeroDivisionError):
            raise UsageError(option("parts"), f"has no share in {quoted_value(item)}", step) from None
        if shares[name] <= 0:
            raise UsageError(option("parts"), f"has a share that is not above 0 in {quoted_value(item)}", step)
    total = sum(shares.values())
    if all(share >= 1 for share in shares.values()) and total > 1:  # percentages, or 4 to 1
        meant = ",".join(f"{name}={_share_text(share / total)}" for name, share in shares.items())
        raise UsageError(option("parts"), f"add up to {float(total):g}, not 1", f"write --parts={meant}")
    if total != 1:
        raise UsageError(
            option("parts"), f"add up to {float(total):g}, not 1", "no record may be left over: name all parts"
        )
    return shares


def _share_text(share: Fraction) -> str:
    decimal = f"{float(share):g}"
    return decimal if Fraction(decimal) == share else str(share)


def divide_records(
    pack: Pack, shares: Shares, stratify: bool, group: str | None, seed: int, progress: Progress | None = None
) -> tuple[NDArray[Any], list[str]]:
    """Return the number of the part of each record, and notes.

    Args:
        pack: The pack.
        shares: Name and share of each part.
        stratify: Give each part its share of each class.
        group: What records have in common that must be in one part: folder, source, near, or a field of extras.
        seed: Seed of the random order.
        progress: With near, receives the images that are read for fingerprints, and what is compared.

    Raises:
        UsageError: The pack has no such field, or no classes.
    """
    if group is None and WINDOW in pack.manifest.fields:
        group = "source"
    strata = _strata(pack) if stratify else np.zeros(len(pack), np.int64)
    ranks = np.empty(len(pack), np.int64)
    ranks[permutation(len(pack), derive(seed, len(pack)))] = np.arange(len(pack))
    if group is None:
        order = np.lexsort((ranks, strata))
        parts = np.empty(len(pack), np.int64)
        parts[order] = interleaved(sizes_of(len(pack), list(shares.values())))
        return parts, []
    groups, notes = _groups(pack, group, progress)
    if WINDOW in pack.manifest.fields:  # the tiles of an image overlap
        paths: Any = pack.column("path")
        groups = _joined(groups, _numbers_of_values(texts(paths)))
    _, firsts, groups, weights = np.unique(groups, return_index=True, return_inverse=True, return_counts=True)
    order = np.lexsort((ranks[firsts], -weights, strata[firsts]))  # large groups first: small ones even out the rest
    of_group = np.empty(len(firsts), np.int64)
    of_group[order] = _by_deficit(weights[order].tolist(), [float(share) for share in shares.values()])
    return of_group[groups], notes


def sizes_of(count: int, shares: Sequence[Fraction]) -> list[int]:
    """Return how many of `count` records each part gets: its share rounded down, or up for the largest remainders."""
    exact = [share * count for share in shares]
    sizes = [math.floor(size) for size in exact]
    by_remainder = sorted(range(len(shares)), key=lambda part: (sizes[part] - exact[part], part))
    for part in by_remainder[: count - sum(sizes)]:
        sizes[part] += 1
    return sizes


def interleaved(sizes: Sequence[int]) -> Int64:
    """Return part numbers, each as often as its size says, so mixed that any run of them has all in proportion."""
    parts = np.repeat(np.arange(len(sizes)), sizes)
    places = np.concatenate([(np.arange(size) + 0.5) / max(size, 1) for size in sizes])
    return np.asarray(parts[np.argsort(places, kind="stable")], np.int64)


def _by_deficit(weights: list[int], shares: list[float]) -> list[int]:
    """Give each group to the part that is furthest behind its share."""
    given, total, found = [0] * len(shares), 0, []
    for weight in weights:
        total += weight
        part = max(range(len(shares)), key=lambda i: shares[i] * total - given[i])
        given[part] += weight
        found.append(part)
    return found


def _strata(pack: Pack) -> Int64:
    """Return a number for the class of each record, its tags, or the set of the classes of its boxes."""
    fields = pack.manifest.fields
    if "label" in fields:
        return np.asarray(pack.column("label"), np.int64)
    if "tags" in fields:
        rows: Any = pack.column("tags")
        return _numbers_of_values(texts(rows))
    if "box_labels" not in fields:
        raise UsageError(option("stratify"), f"needs classes, but {printable(pack.path)} has none", "leave it out")
    lists: Any = pack.column("box_labels")
    records = np.repeat(np.arange(len(pack)), lists.lengths)
    pairs = np.unique(np.stack([records, np.asarray(lists.flat(), np.int64)], axis=1), axis=0)
    bounds = np.searchsorted(pairs[:, 0], np.arange(len(pack) + 1))
    return _numbers_of_values(texts(Ragged(np.ascontiguousarray(pairs[:, 1]).view(np.uint8), bounds * 8)))


def _numbers_of_values(values: list[bytes]) -> Int64:
    numbers = {value: number for number, value in enumerate(sorted(set(values)))}
    return np.array([numbers[value] for value in values], np.int64)


def _groups(pack: Pack, name: str, progress: Progress | None) -> tuple[Int64, list[str]]:
    """Return the number of each record's group; a record without a value is a group of its own."""
    if name.partition("=")[0] in NEARNESS:
        return _near(pack, Nearness.of(option("group"), name), progress)
    if name == "source":
        rows = np.ascontiguousarray(np.asarray(pack.column("source_xxh3"), np.uint8))
        known = rows.any(axis=1)
        _, numbers = np.unique(rows.view("V16").reshape(-1), return_inverse=True)
    elif name == "folder":
        known = np.ones(len(pack), np.bool_)
        paths: Any = pack.column("path")
        numbers = _numbers_of_values([path.rpartition(b"/")[0] for path in texts(paths)])
    else:
        values = _extras(pack, name)
        known = np.array([value is not None for value in values], np.bool_)
        numbers = _numbers_of_values([value or b"" for value in values])
    unknown = int((~known).sum())
    asked = as_options(option("group", printable(name)))
    note = f"{asked}: {unknown:,} of {len(pack):,} records have no value, and each is on its own"
    groups = np.where(known, numbers, len(pack) + np.arange(len(pack)))
    return np.asarray(groups, np.int64), [note] if unknown else []


def _joined(groups: Int64, others: Int64) -> Int64:
    """Return the groups of records that are together in either of two groupings, directly or by others."""
    sets = JoinedSets(len(groups))
    for of in (groups, others):
        _, firsts, numbers = np.unique(of, return_index=True, return_inverse=True)
        sets.join(np.arange(len(of)), firsts[numbers])
    return sets.roots


def _near(pack: Pack, near: Nearness, progress: Progress | None) -> tuple[Int64, list[str]]:
    """Return the number of each record's group of near duplicates, and what was found."""
    found = near_groups(fingerprints_of(pack, progress), near, progress)
    numbers = len(pack) + np.arange(len(pack))
    numbers[found.groups.records] = found.groups.group_of
    groups = plural(found.groups.groups, "group of near duplicates stays", "groups of near duplicates stay")
    return numbers, [*found.notes, f"{groups} together: {plural(len(found.groups.records), 'record')}"]


def _extras(pack: Pack, name: str) -> list[bytes | None]:
    """Return a field of each record's extras as JSON; None if it has none."""
    rows: Any = pack.column("extras")
    found: list[bytes | None] = []
    fields = set[str]()
    for record, text in enumerate(rows):
        try:
            extras = object_of(text)
        except ValueError as error:
            raise pack.reader.damage_error(record, f"has extras that are damaged: {error}") from None
        fields.update(extras)
        value = extras.get(name)
        found.append(None if value is None else json.dumps(value, sort_keys=True).encode("ascii"))
    if name not in fields:
        has = f"the fields are {', '.join(map(printable, sorted(fields)))}" if fields else "it has none"
        problem = f"{printable(pack.path)} has no field {quoted_value(name)}: {has}"
        raise UsageError(option("group"), problem, "pass folder, source, near or a field of extras")
    return found


OWN = ("include", "exclude")
"""Options whose files are only in the whole pack."""


@dataclass(frozen=True, slots=True)
class PackPart:
    """A part of a pack."""

    name: str
    path: str
    """Of the pack, or of the list."""
    records: int
    shards: dict[str, int]
    """Number of shards by what was done with their files; empty for a list."""


@dataclass(frozen=True, slots=True)
class SplitReport:
    """The result of `split`."""

    path: str
    parts: tuple[PackPart, ...]
    notes: tuple[str, ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class SplitOptions:
    """How a pack is divided."""

    parts: str
    """Names and shares: ``train=0.8,val=0.2``."""
    stratify: bool = False
    """Give each part its share of the images of each class, or of each set of classes of boxes."""
    group: str | None = None
    """Keep together the records with an equal value: folder (of the path), source (equal files), near (near
    duplicates), or a field of extras."""
    seed: int = 0
    lists: bool = False
    """Write lists of paths for ``packer build --include`` instead of packs."""


def split(
    pack: AnyPath,
    options: SplitOptions | str,
    out: AnyPath | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> SplitReport:
    """Split a pack into parts: each record is in exactly one, and equal options give equal parts.

    After an interruption, the same call leaves the parts that are finished as they are, and makes the others.

    Args:
        pack: The pack, which stays.
        options: How to divide it; a text is `SplitOptions.parts`.
        out: The folder for the parts, NAME-train and so on; None: that of the pack.
        overwrite: Replace existing parts.
        progress: Receives the stage linking, in shards, for each part.

    Raises:
        UsageError: An option is wrong, a part would be empty, or exists.
        DamagedPack: A file of the pack is missing, or its index was altered.
        StorageError: A file cannot be written.
    """
    started = time.perf_counter()
    asked = SplitOptions(options) if isinstance(options, str) else options
    if out is not None:
        check_folder(out, "split")
    shares = parse_parts(asked.parts)
    source = Source(pack)
    opened = open_pack(source.path)
    numbers, notes = divide_records(opened, shares, asked.stratify, asked.group, asked.seed, progress)
    counts = np.bincount(numbers, minlength=len(shares)).tolist()
    for name, count in zip(shares, counts, strict=True):
        if not count:
            of = plural(len(opened), "record") if asked.group is None else f"{plural(len(opened), 'record')} in groups"
            raise UsageError(option("parts"), f"leave nothing for {printable(name)}: {of}", "make its share larger")
    folder = os.path.dirname(source.path) if out is None else os.path.abspath(os.fsdecode(out))
    stem, extension = os.path.splitext(os.path.basename(source.manifest.base or source.path))
    paths = [os.path.join(folder, f"{stem}-{name}{'.txt' if asked.lists else extension}") for name in shares]
    if asked.lists:
        of_images = [os.fsencode(path) for path in opened.paths]
        made = _write_lists(of_images, numbers, paths, (overwrite, progress or Progress()))
    else:
        made = _write_packs(source, asked, numbers, paths, (overwrite, progress or Progress()))
    parts = tuple(PackPart(*each) for each in zip(shares, paths, counts, made, strict=True))
    return SplitReport(source.path, parts, tuple(notes), time.perf_counter() - started)


def _write_packs(
    source: Source, asked: SplitOptions, numbers: NDArray[Any], paths: list[str], how: tuple[bool, Progress]
) -> list[dict[str, int]]:
    overwrite, progress = how
    before = set() if overwrite else _published_before(source, paths)
    outputs = [Output(path, source.path, overwrite, path in before) for path in paths]
    with Outputs(outputs):
        ready = []
        for number, (path, output) in enumerate(zip(paths, outputs, strict=True)):
            begun = {"command": "split", "pack": source.path, "options": repr(asked), "part": number}
            for note in resume_or_restart(output, begun, overwrite):
                progress.note(f"note: {note}")
            taken = _taken_shards(source, numbers == number)
            made = link_shards(output.folder, path, taken, progress)
            manifest = _manifest(source, asked, made, output.folder)
            output.beside, _ = carry(taken, manifest, NewFiles(output.folder))
            if path in before:
                output.check_same(manifest)
                progress.note(f"note: {printable(path)} is finished")
            ready.append((output, made, manifest))
        for output, made, manifest in ready:  # all or, as far as that can be, none
            if output.path not in before:
                output.publish(replace(manifest, companions=made.companions), ())
        return [dict(made.how) for _, made, _ in ready]


def _published_before(source: Source, paths: list[str]) -> set[str]:
    """Return the parts that an interrupted split of the pack may have published, if others are left."""
    there = set()
    for path in paths:
        with suppress(PackerError):
            if read_manifest(path).made_from == (source.origin("split"),):
                there.add(path)
    return there if len(there) < len(paths) else set()


def _taken_shards(source: Source, mine: NDArray[np.bool_]) -> list[Taken]:
    bounds = np.cumsum([0, *(shard.records for shard in source.manifest.shards)]).tolist()
    found = []
    for number, (start, stop) in enumerate(pairwise(bounds)):
        rows = np.flatnonzero(mine[start:stop])
        if len(rows):
            found.append(Taken(source, number, None if len(rows) == stop - start else rows))
    return found


def _manifest(source: Source, asked: SplitOptions, made: Linked, folder: str) -> Manifest:
    old = source.manifest
    options = {name: value for name, value in old.options.items() if name not in OWN}
    repack = {name: value for name, value in asdict(asked).items() if name != "lists"}
    options["repack"] = {name: value for name, value in repack.items() if value not in (None, False)}
    manifest = replace(
        old,
        counts={"found": 0, "packed": 0, "rejected": 0, "skipped": 0},
        options=dict(sorted(options.items())),
        rejected=(),
        lists={},
        companions={},
        linked=made.linked,
        made_from=(source.origin("split"),),
        packer=packer.__version__,
    )
    indexes = (read_index(os.path.join(folder, shard.index.name)) for shard in made.shards)
    return recount(manifest, made.shards, indexes)


def _write_lists(
    records: list[bytes], numbers: NDArray[Any], paths: list[str], how: tuple[bool, Progress]
) -> list[dict[str, int]]:
    overwrite, progress = how
    part_of: dict[bytes, int] = {}
    for record, number in zip(records, numbers.tolist(), strict=True):
        if part_of.setdefault(record, number) != number:
            problem = f"cannot divide {printable(as_text(record))}: several records of the pack have this path"
            raise UsageError(option("lists"), problem, "leave it out: packs of links are divided by records")
    lines = [[record for record, part in part_of.items() if part == number] for number in range(len(paths))]
    lists = {path: Selection(path, lines=mine).content for path, mine in zip(paths, lines, strict=True)}
    before = {path for path, content in lists.items() if not overwrite and _holds(path, content)}
    if len(before) == len(paths):
        before = set()  # of a split that has ended, which is not replaced unasked
    for path in paths:
        if os.path.lexists(path) and not overwrite and path not in before:
            raise UsageError(path, "exists", "move it away, or pass --overwrite")
    try:
        for path, content in lists.items():
            if path in before:
                progress.note(f"note: {printable(path)} is finished")
                continue
            with replacing(path) as file:
                file.write(content)
    except OSError as error:
        raise StorageError(error.filename, error.strerror or str(error), "choose another --out") from None
    return [{} for _ in paths]


def _holds(path: str, content: bytes) -> bool:
    """Return whether a file, and no link, has this content."""
    with suppress(OSError):
        if is_own_file(path) and os.path.getsize(path) == len(content):
            with open_regular(path) as file:
                return file.read() == content
    return False
