"""Reads what is attached to a pack: arrays, tables and folders, and joins their rows with its records."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer.errors import BadInput, BadPart, PackerError, StorageError, UsageError, option, plural, printable
from packer.format.pack import Pack
from packer.format.sidecar_list import KIND_FILES
from packer.images.image_headers import Header
from packer.images.masks import MaskValues
from packer.images.parts import BY_KIND, FactsFound, PartKind, PartRecipe
from packer.images.resize import TargetSize
from packer.model.annotation import Int64, PartSpec
from packer.model.tiles import WINDOW
from packer.packing.build_options import BuildOptions
from packer.packing.make_record import read_part_facts
from packer.packing.plan import part_recipe
from packer.repack.attached_tables import (
    AN_ARRAY,
    TABLES,
    AttachRequest,
    Table,
    chosen_column,
    saved_by_numpy,
    texts_of,
    values_of,
)
from packer.sources.by_stem import Matches
from packer.sources.list_meaning import MEANING, words_of
from packer.sources.mask_files import MaskSource
from packer.sources.part_files import MOST_BYTES, FilesAt, by_pattern, of_kind
from packer.sources.path_finder import NOT_FOUND, PathFinder
from packer.sources.paths import quoted_value, some_paths
from packer.sources.places import OWN_FILE
from packer.sources.source import SourceOptions, Tree
from packer.sources.tree import find_tree, read_file
from packer.system import usable_cores

FIX = "correct it, or attach it to the pack that it was made of"
RECORDED = ("resize", "fit", "pad_value", "interpolation", "quality", "decoder", "max_pixels")
"""The options of a pack by which its images were made."""


@dataclass(frozen=True)
class Attached:
    """What is attached, in rows: those of the records, in their order, are ``values[rows]``."""

    values: Any
    """An array (m, ...), what returns one for row numbers (`_Arrays`), what returns bytes (`_Stored`), or a list."""
    rows: Int64 | None
    """The row of each record, int64 (n,); None: the rows are in the order of the records."""
    joined: str
    """How they were joined, for a message: by key."""
    notes: tuple[str, ...] = ()
    recipe: PartRecipe | None = None
    """How values of pixels were converted; they are bytes then, as they are stored."""
    column: str = ""
    """Of a table."""
    classes: tuple[str, ...] = ()
    """The names of those that are predicted."""

    def chunk(self, start: int, stop: int) -> Any:
        """Return the values of these records."""
        if self.rows is None or not isinstance(self.values, list):
            return self.values[slice(start, stop) if self.rows is None else self.rows[start:stop]]
        return [self.values[row] for row in self.rows[start:stop].tolist()]


def read_attached(asked: AttachRequest, pack: Pack) -> Attached:
    """Read a file or a folder, and join its rows with the records of a pack.

    Raises:
        UsageError: It is of no format that is read here, or it is not clear what to take.
        BadInput: A record has no row, or more than one; a row has no record.
        StorageError: It cannot be read.
    """
    where, ending = asked.where, os.path.splitext(asked.where)[1].lower()
    if asked.column is not None and (ending not in TABLES or os.path.isdir(where)):
        raise UsageError(option("column"), "is for tables", "leave it out")
    try:
        if os.path.isdir(where) or "{" in where:
            return _read_folder(asked, pack)
        if ending == ".npy":
            return _in_order(where, _loaded(where), pack)
        if ending not in TABLES:
            os.stat(where)
            step = f"give a folder, or a file that ends in .npy, {', '.join(TABLES)}"
            raise UsageError(where, "is in no format that packer attach reads", step)
        return _read_table(asked, TABLES[ending](where), pack)
    except PackerError:
        raise
    except OSError as error:
        step = "give a file or folder that is there" if isinstance(error, FileNotFoundError) else ""
        raise StorageError(where, f"cannot be read: {error.strerror or error}", step) from None
    except ValueError as error:  # ArrowInvalid is one
        raise BadInput(where, f"cannot be read: {error}", "write it again") from None


def _loaded(path: str) -> NDArray[Any]:
    """Return the array of a .npy file, mapped."""
    with saved_by_numpy(path, *AN_ARRAY):
        return np.lib.format.open_memmap(path, mode="r")


def _in_order(where: str, values: NDArray[Any], pack: Pack) -> Attached:
    if values.shape[:1] != (len(pack),):
        rows = plural(len(values), "row") if values.ndim else "no rows"
        raise BadInput(where, f"has {rows}, but the pack {plural(len(pack), 'record')}", FIX)
    with saved_by_numpy(where, *AN_ARRAY):  # texts may be of characters that do not exist
        return Attached(values_of(values), None, "in their order")


# -- folders


@dataclass(frozen=True)
class _Arrays:
    """The arrays of files, read when they are needed."""

    read: Callable[[int], NDArray[Any]]
    """Returns that of a row."""

    def __getitem__(self, rows: Int64) -> NDArray[Any]:
        first = self.read(0)
        found = np.empty((len(rows), *first.shape), first.dtype)
        for place, row in enumerate(rows.tolist()):
            array = self.read(row)
            if (array.dtype, array.shape) != (first.dtype, first.shape):
                forms = f"{first.dtype} {first.shape} and {array.dtype} {array.shape}"
                raise BadInput("", f"has arrays of several forms, such as {forms}", "make all of one form")
            found[place] = array
        return found


def _read_folder(asked: AttachRequest, pack: Pack) -> Attached:
    """Match the files of a folder to the images by their names, as the files of parts are matched in a build."""
    where = asked.where
    folder, pattern = (where, "") if os.path.isdir(where) else _pattern_in(where)
    tree, _ = find_tree(folder)
    kind, labels = _kind_of(asked, tree)
    images = list(map(os.fsencode, pack.paths))
    files = by_pattern(images, pattern, labels, apart=True) if pattern else FilesAt(b"", tuple(labels))
    matches = files.matches(images)
    if matches.refused:
        raise BadInput(*next(iter(matches.refused.items())), "rename or move one of them")
    numbers = {path: row for row, path in enumerate(labels)}
    rows = np.array([numbers.get(matches.label_of.get(image, b""), NOT_FOUND) for image in images], np.int64)
    notes = check_rows(asked, pack, np.flatnonzero(rows == NOT_FOUND), matches.unclaimed)
    paths = [os.path.join(tree.root, label) for label in labels]
    if kind.of_pixels:
        found, used = _read_pixels(asked, pack, kind, tree, [paths[row] for row in rows.tolist()])
    else:
        found, used = _read_values(asked, kind, [paths[row] for row in rows.tolist()]), set()
    others = len({os.path.join(tree.root, path) for path in (*tree.files, *tree.images)} - used - {*paths})
    notes += (f"{plural(others, 'other file')} in {printable(where)} left out",) if others else ()
    return replace(found, notes=notes)


def _read_values(asked: AttachRequest, kind: PartKind, paths: Sequence[bytes]) -> Attached:
    recipe = PartRecipe(PartSpec(asked.name, kind.name), "")

    def read(row: int) -> Any:
        with naming(paths[row]):
            return kind.read(read_file(b"", paths[row], MOST_BYTES), recipe)

    values = _Arrays(read) if kind.name == "array" else [read(row) for row in range(len(paths))]
    return Attached(values, np.arange(len(paths)), "by file name")


def _pattern_in(where: str) -> tuple[str, str]:
    """Return the folder in which a pattern of files begins, and the rest of it."""
    folder = os.path.dirname(where.partition("{")[0])
    return folder or ".", where[len(folder) :].lstrip("/")


def _kind_of(asked: AttachRequest, tree: Tree) -> tuple[PartKind, list[bytes]]:
    """Return the kind of the files in a folder, and these. Raise UsageError unless they are of one kind."""
    kinds = [BY_KIND[name] for name in BY_KIND if name in KIND_FILES and name == (asked.kind or name)]
    if asked.kind is None:
        kinds = [kind for kind in kinds if not kind.of_pixels]  # a picture may be a mask, a map or an image
    there = [(kind, files) for kind in kinds if (files := of_kind(tree, kind))]
    if len(there) != 1:
        endings = b", ".join(sorted(chain.from_iterable(kind.endings for kind in kinds))).decode()
        what = ["pictures"] * any(kind.in_pictures for kind in kinds) + [f"files of {endings}"] * bool(endings)
        step = f"pass {option('kind')}" if there else "name the folder of the files"
        if tree.images and not there and asked.kind is None:
            step = f"pass {option('kind')}=mask, map or image, if it is pictures"
        raise UsageError(asked.where, f"has {'' if there else 'no '}{' or '.join(what)}", step)
    return there[0]


@contextmanager
def naming(path: str | bytes) -> Iterator[None]:
    """Name the file in an error about what is in it."""
    try:
        yield
    except BadInput as error:
        raise BadInput(error.where or path, error.problem, error.next_step) from None


# -- pixels


@dataclass(frozen=True)
class _Stored:
    """The bytes of values as they are stored, made of their files when they are needed."""

    of: Callable[[int], bytes]
    """Returns those of a record."""

    def __getitem__(self, records: slice) -> list[bytes]:
        with ThreadPoolExecutor(usable_cores()) as threads:
            return list(threads.map(self.of, range(records.start, records.stop)))


def _read_pixels(
    asked: AttachRequest, pack: Pack, kind: PartKind, tree: Tree, paths: Sequence[bytes]
) -> tuple[Attached, set[bytes]]:
    """Return what `packer build --part` would store of a file for each record, and the files that were read."""
    manifest = pack.manifest
    recorded = {name: manifest.options[name] for name in RECORDED if name in manifest.options}
    options = BuildOptions(
        pack.path, format=manifest.container, encode=manifest.encoding, mode=manifest.mode, **recorded
    )
    found, files = FactsFound(), []
    for record, path in enumerate(paths):
        with naming(path):
            facts, size = read_part_facts(path, OWN_FILE, (), kind, options.max_pixels)
            header = Header("png", *(facts.size or (0, 0)), 3, 8)
            resize = _resize_to(pack.reader.shape_of(record)[1::-1], header.upright_size, options.target_size())
        found.add(facts.dtype, facts.channels, path)
        files.append((path, size, header, resize))
    spec, values, used = PartSpec(asked.name, kind.name, ignore=asked.ignore_id), MaskValues(), {*paths}
    if kind.name == "mask":
        whole = replace(tree, files=[os.path.join(tree.root, path) for path in tree.files])
        given = SourceOptions(mask_values=asked.mask_values, ignore_id=asked.ignore_id)
        source = MaskSource.of_files(whole, given, asked.name, FilesAt(tree.root + b"/", tuple(paths)), Matches())
        spec, values, used = source.parts[asked.name], source.values, {*source.label_files}
    recipe = part_recipe(spec, options, values, found)

    def stored(record: int) -> bytes:
        path, size, header, resize = files[record]
        with naming(path):
            return kind.part(read_file(b"", path, size), recipe, header, resize).data

    return Attached(_Stored(stored), None, "by file name", recipe=recipe), used


def _resize_to(packed: tuple[int, int], size: tuple[int, int], resize: TargetSize | None) -> TargetSize | None:
    """Return how values of pixels of this size become those of a packed image. Raise BadPart if they do not."""
    if size == packed:
        return None
    if resize is None or resize.output_size(*size) != packed:
        problem = f"has {size[0]}x{size[1]} pixels, but the packed image {packed[0]}x{packed[1]}"
        original = "" if resize is None else ", or as the image before it was resized"
        raise BadPart("", problem, f"make it as large as that{original}")
    return resize


# -- tables


def _read_table(asked: AttachRequest, table: Table, pack: Pack) -> Attached:
    where, kind = asked.where, asked.kind
    names = list(table.columns)
    keys = [name for name, word in zip(names, words_of(names), strict=True) if MEANING.get(word) == "path"]
    chosen = chosen_column(asked, names, keys) if keys else ""
    if not (keys := [name for name in keys if name != chosen]):
        listed = ", ".join(map(printable, names))
        raise UsageError(where, f"has no column of keys or paths; its columns are: {listed}", "call one key or path")
    joined = _join(where, pack, [(name, texts_of(table.columns[name]("text"))) for name in keys])
    key, texts, records = joined.column, joined.texts, joined.records
    values = table.columns[chosen](kind)
    values = values if kind == "json" and isinstance(values, list) else values_of(values)
    if len(values) != len(texts):
        lengths = f"{printable(chosen)} has {plural(len(values), 'row')}, {printable(key)} {len(texts)}"
        raise BadInput(where, f"has columns of different length: {lengths}", "save a row of each for each record")
    _check_no_null(where, table, key, texts)
    if kind != "json":
        _check_no_null(where, table, chosen, values)
    counts = np.bincount(records[records >= 0], minlength=len(pack))
    several = kind in (None, "text") and isinstance(values, list) and all(isinstance(one, str) for one in values)
    extra = [os.fsencode(texts[row] or "") for row in np.flatnonzero(records == NOT_FOUND).tolist()]
    twice = np.flatnonzero((counts > 1) & (not several))
    notes = check_rows(asked, pack, np.flatnonzero(counts == 0), extra, twice)
    order = np.argsort(records, kind="stable")[len(extra) :]
    if (counts > 1).any():
        lists = np.split(order, np.cumsum(counts)[:-1])
        values, order = [[values[row] for row in rows.tolist()] for rows in lists], np.arange(len(pack))
    return Attached(values, order, joined.text, notes, column=chosen)


# -- joining


class _Joined(NamedTuple):
    """A column of keys or paths, and the records that it names."""

    column: str
    texts: Sequence[str | None]
    records: Int64
    """The record of each row, NOT_FOUND if it has none."""
    way: str
    looseness: int
    """0: as the key or path is written; 1: by its end; 2: without its extension, which numbers of rows may fit, too."""

    def rank(self, records: int) -> tuple[bool, bool, int, int]:
        """The greatest is the column to join with a pack of so many records."""
        found = _count(self.records)
        return 2 * found >= records, found > 0, -self.looseness, found

    @property
    def text(self) -> str:
        """How rows and records were joined."""
        return f"by {self.way} (column {printable(self.column)})"


def _join(where: str, pack: Pack, keys: Sequence[tuple[str, Sequence[str | None]]]) -> _Joined:
    """Return the column that names the records most strictly. Raise BadInput if one as good disagrees with it."""
    found = [_Joined(name, texts, *records_of(pack, texts)) for name, texts in keys]
    ranks = [one.rank(len(pack)) for one in found]
    best = found[ranks.index(max(ranks))]
    for other, rank in zip(found, ranks, strict=True):
        if rank == max(ranks) and rank[-1] and not np.array_equal(other.records, best.records):
            names = f"{printable(best.column)} and {printable(other.column)}"
            raise BadInput(
                where, f"has two columns that name records, {names}, and they disagree", "keep the right one"
            )
    return best


def records_of(pack: Pack, texts: Sequence[str | None], by_key: bool = True) -> tuple[Int64, str, int]:
    """Return the record of each key or path, NOT_FOUND if it has none, how they were joined, and how loosely.

    Args:
        pack: The pack.
        texts: The keys or paths; None names no record.
        by_key: Whether they may be keys.
    """
    numbers = {key: number for number, key in enumerate(pack.keys)}
    of_keys = np.array([numbers.get(text or "", NOT_FOUND) for text in texts], np.int64)
    if by_key and (of_keys != NOT_FOUND).all():
        return of_keys, "key", 0
    order, finder = _finder_in(pack)
    written, ways = [os.fsencode(text or "") for text in texts], [(of_keys, "key", 0)] if by_key else []
    for manner in (None, (finder.manner(written) or (None,))[0]):
        found = finder.find_all(manner, written)
        records = np.array([*order, NOT_FOUND], np.int64)[np.where(found < 0, NOT_FOUND, found)]
        ways.append((records, "path", 0) if manner is None else (records, manner.describe(), 1 + manner.stem))
    return max(ways, key=lambda way: _count(way[0]))


def _finder_in(pack: Pack) -> tuple[list[int], PathFinder]:
    """Return what finds the paths of a pack, and their records: none for a path of several, as that of tiles is."""
    paths = list(map(os.fsencode, pack.paths))
    times = Counter(paths)
    order = sorted(range(len(pack)), key=paths.__getitem__)
    records = [number if times[paths[number]] == 1 else NOT_FOUND for number in order]
    return records, PathFinder(Tree(b"/pack", [paths[number] for number in order], (), ()), b"/pack")


def _count(records: Int64) -> int:
    """Return how many records there are in those of rows."""
    return len(np.unique(records[records >= 0]))


def _check_no_null(where: str, table: Table, column: str, cells: Any) -> None:
    if without := [row for row, cell in enumerate(cells) if cell is None] if isinstance(cells, list) else []:
        rows, first = plural(len(without), "row"), without[0]
        written = texts_of(table.columns[column]("text"))[first]
        what = "" if written is None else f", where it is {quoted_value(written)}"
        problem = f"has {rows} without a {printable(column)}, the first is {table.place(first)}{what}"
        raise BadInput(where, problem, FIX)


def check_rows(
    asked: AttachRequest, pack: Pack, missing: Int64, extra: Sequence[bytes], twice: Sequence[int] | Int64 = ()
) -> tuple[str, ...]:
    """Return notes. Raise BadInput unless each record has one row, and, if asked so, each row a record."""

    def some(records: Any) -> str:
        return some_paths(os.fsencode(pack.paths[record] or pack.key(record)) for record in records)

    rows, is_skipped = f"{plural(len(extra), 'row')} for no record", asked.extra_rows == "skip"
    problems = [
        f"has nothing for {plural(len(missing), 'record')} ({some(missing)})" if len(missing) else "",
        f"has {rows} ({some_paths(extra)})" if extra and not is_skipped else "",
        f"has several rows for {plural(len(twice), 'record')} ({some(twice)})" if len(twice) else "",
    ]
    if any(problems):
        is_larger = problems[1] and not problems[0] and not problems[2]
        step = f"correct it, or leave them out: {option('extra-rows', 'skip')}" if is_larger else FIX
        if extra and len(alike := _finder_in(pack)[1].alike(extra[0])) > 1:
            problems += [f"{printable(extra[0])} fits {plural(len(alike), 'record')} ({some_paths(alike)})"]
            step = "give the paths with their folders"
        if extra and WINDOW in pack.manifest.fields:
            step = "records are tiles of images, which have one path: name each by its key"
        raise BadInput(asked.where, ", and ".join(filter(None, problems)), step)
    return (f"{rows} left out",) if extra else ()
