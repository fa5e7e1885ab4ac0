"""A pack as several: each part has links to the shards that it needs, and indexes with its records only."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

import packer
from packer.errors import AnyPath, PackerError, StorageError, UsageError, option, plural, printable
from packer.format.index import read_index
from packer.format.jpeg_index_list import not_carried
from packer.format.manifest import Manifest, read_manifest
from packer.format.pack import open_pack
from packer.model.annotation import Progress
from packer.packing.publish import Output, Outputs, check_folder
from packer.packing.resume import resume_or_restart
from packer.packing.select import Selection
from packer.repack.links import Linked, Source, Taken, link_shards
from packer.repack.parts import divided, parse_parts
from packer.repack.recount import recount
from packer.sources.paths import as_text
from packer.system import open_regular
from packer.system.atomic import is_own_file, replacing

OWN = ("include", "exclude")
"""Options whose files are only in the whole pack."""


@dataclass(frozen=True, slots=True)
class Part:
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
    parts: tuple[Part, ...]
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
    """Keep together the records with an equal value: folder (of the path), source (equal files), or a field of
    extras."""
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
    numbers, notes = divided(opened, shares, asked.stratify, asked.group, asked.seed)
    notes = [*notes, *(() if asked.lists else not_carried([source.path]))]
    counts = np.bincount(numbers, minlength=len(shares)).tolist()
    for name, count in zip(shares, counts, strict=True):
        if not count:
            of = plural(len(opened), "record") if asked.group is None else f"{plural(len(opened), 'record')} in groups"
            raise UsageError(option("parts"), f"leave nothing for {printable(name)}: {of}", "make its share larger")
    folder = os.path.dirname(source.path) if out is None else os.path.abspath(os.fsdecode(out))
    stem, extension = os.path.splitext(source.name)
    paths = [os.path.join(folder, f"{stem}-{name}{'.txt' if asked.lists else extension}") for name in shares]
    if asked.lists:
        of_images = [os.fsencode(path) for path in opened.paths]
        made = _write_lists(of_images, numbers, paths, (overwrite, progress or Progress()))
    else:
        made = _write_packs(source, asked, numbers, paths, (overwrite, progress or Progress()))
    parts = tuple(Part(*each) for each in zip(shares, paths, counts, made, strict=True))
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
            made = link_shards(output.folder, path, _taken(source, numbers == number), progress)
            manifest = _manifest(source, asked, made, output.folder)
            if path in before:
                output.check_same(manifest)
                progress.note(f"note: {printable(path)} is finished")
            ready.append((output, made, manifest))
        for output, _, manifest in ready:  # all or, as far as that can be, none
            if output.path not in before:
                output.publish(manifest, ())
        return [dict(made.how) for _, made, _ in ready]


def _published_before(source: Source, paths: list[str]) -> set[str]:
    """Return the parts that an interrupted split of the pack may have published, if others are left."""
    there = set()
    for path in paths:
        with suppress(PackerError):
            if read_manifest(path).made_from == (source.origin("split"),):
                there.add(path)
    return there if len(there) < len(paths) else set()


def _taken(source: Source, mine: NDArray[np.bool_]) -> list[Taken]:
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
    repack: dict[str, Any] = {
        "parts": asked.parts,
        "stratify": asked.stratify,
        "group": asked.group,
        "seed": asked.seed,
    }
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
