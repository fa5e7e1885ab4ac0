"""The table of inputs: one row for each image to pack, with its labels; and the lists of all others."""

from __future__ import annotations

import fnmatch
import json
import os
import re
import tempfile
import weakref
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from packer.errors import PackerError, UsageError, plural, printable
from packer.format.index import FULL_SCHEMA
from packer.format.indexes import Indexes, IndexFiles
from packer.format.lists import Changed, Listing, Skipped, cell_of, path_in
from packer.format.manifest import Rejected, read_manifest
from packer.format.pack import open_pack
from packer.images.masks import MaskValues
from packer.images.parts import FactsFound
from packer.model.annotation import PartSpec
from packer.model.fields import BY_NAME, CLASS_IDS, FIELD_NAMES, FIELDS, OBJECTS, label_arrays
from packer.model.tiles import WINDOW
from packer.packing.class_map import ClassChange
from packer.packing.make_record import PART_COLUMN, PART_FILE
from packer.packing.partition import (
    CLASSES,
    UNLABELED,
    Partition,
    base_schema,
    map_table,
    mark_missing_labels,
    no_objects,
    pieces,
    renumbered,
    write_table,
)
from packer.packing.publish import PLAN
from packer.packing.remembered import Seen
from packer.packing.tile_rows import sizes_in
from packer.sources.archives import add_folder
from packer.sources.paths import as_bytes, as_text, folder_of, quoted_value, stem_of
from packer.sources.places import Archive
from packer.sources.tree import MIB, lines_of, read_file
from packer.stores import is_url
from packer.system.atomic import make_own_folder, remove
from packer.system.storage import storage_errors

MOST_BYTES = 1024 * MIB
GLOB = re.compile(rb"[*?\[]")
KEY = re.compile(rb"[0-9]{8,18}")
AS_GLOB = {byte: b"[%c]" % byte for byte in b" \t\v\f*?[.p\xef\xfe\xff"} | {10: b"[\t-\v]", 13: b"[\f-\x0e]"}
"""Bytes that need brackets in a glob, or where a line begins or ends. Those of a line break stand in a range."""


@dataclass(slots=True)
class Selection:
    """The images that a file names."""

    file: str
    images: set[bytes] = field(default_factory=set)
    lines: list[bytes] = field(default_factory=list)
    """The lines in a form that holds without the file's surroundings: paths, and globs."""
    unmatched: dict[bytes, int] = field(default_factory=dict)
    """The lines that name no image, and the number of each."""

    def names(self, path: bytes) -> bool:
        """Return whether a line names an input that is bad, such as a label without an image."""
        return path in self.images or self.unmatched.pop(path, 0) > 0

    @property
    def content(self) -> bytes:
        """The lines as a file; as a list of packer, with its escapes, if they would not be read as they are."""
        content = b"".join(line + b"\n" for line in self.lines)
        if not content.startswith(b"path\t") and [line for _, line in _entries(content, self.file)] == self.lines:
            return content
        cells = (cell_of(as_text(line)).encode() for line in self.lines)
        return b"".join(cell + b"\n" for cell in (b"path\t", *cells))

    @property
    def note(self) -> str:
        """What the lines without an image are, as one line."""
        text, number = next(iter(self.unmatched.items()))
        name = printable(os.path.basename(self.file))
        lines = plural(len(self.unmatched), "line names", "lines name")
        return f"{name}: {lines} no image, for example line {number}: {quoted_value(text)}"


def read_selection(file: str, images: Sequence[bytes], like: str | None = None) -> Selection:
    """Return the images that a file names.

    A line is a path relative to the source, a folder that ends with a slash, a glob (``*`` also matches slashes), a
    key of the pack `like`, the name of one image, with or without its extension, or else a folder without a slash.
    A list of packer (rejected.tsv, ...) is read by its first column.

    Args:
        file: The file.
        images: The images of the source.
        like: The pack of the keys.

    Raises:
        UsageError: The file cannot be read, or a line fits several images.
    """
    try:
        data = read_file(b"/", os.path.abspath(as_bytes(file)), MOST_BYTES)
    except PackerError as error:
        raise UsageError(file, error.problem, "give a file with one path, key or glob per line") from None
    selection = Selection(file)
    entries = list(_entries(data, file))
    there = {line for _, line in entries}.intersection(images)
    later: list[tuple[int, bytes]] = []
    for number, line in entries:
        glob = line + b"*" if line.endswith(b"/") else line if GLOB.search(line) else None
        if line in there:
            selection.images.add(line)
            selection.lines.append(line)
        elif glob is None:
            later.append((number, line))
        else:
            # no bytes are lost: latin-1 has a character for each
            fits = re.compile(fnmatch.translate(glob.decode("latin-1")).encode("latin-1")).match
            found = [image for image in images if fits(image)]
            selection.images.update(found)
            selection.lines.append(line)
            if not found:
                selection.unmatched.setdefault(line, number)
    if later:
        _find_names(selection, later, images, like)
    return selection


def line_of(path: bytes) -> bytes:
    """Return the line of a selection that names a path: the path, or a glob for it if that would be read otherwise.

    A line cannot hold line breaks, and may not begin or end with a space.
    """
    if path and [line for _, line in _entries(path + b"\n", "")] == [path]:
        return path
    return b"".join(AS_GLOB.get(byte) or b"%c" % byte for byte in path)


def _entries(data: bytes, file: str) -> Iterator[tuple[int, bytes]]:
    """Yield the number and the entry of each line that is not blank. Raise UsageError for a damaged list of packer."""
    lines = lines_of(data)
    listed = bool(lines) and lines[0].startswith(b"path\t")
    for number, line in enumerate(lines, 1):
        entry = line.strip().removeprefix(b"./")
        if listed:
            try:
                entry = as_bytes(path_in(as_text(line.partition(b"\t")[0]))) if number > 1 else b""
            except ValueError:
                problem = f"{quoted_value(line)} is not a line of a list of packer"
                raise UsageError(f"{file}:{number}", problem, "write one path, key or glob per line") from None
        if entry:
            yield number, entry


def _find_names(
    selection: Selection, lines: list[tuple[int, bytes]], images: Sequence[bytes], like: str | None
) -> None:
    """Find keys, names, stems, and folders without a slash."""
    keys = {line for _, line in lines if KEY.fullmatch(line)}
    of_key = _paths_of(like, keys) if like is not None and keys else {}
    there = {path for paths in of_key.values() for path in paths}.intersection(images if of_key else ())
    wanted = {line for _, line in lines} - {key for key, paths in of_key.items() if not there.isdisjoint(paths)}
    named: dict[bytes, list[bytes]] = {}
    for image in images if wanted else ():
        name, stem = image.rpartition(b"/")[2], stem_of(image)
        for spelling in {name, stem, image[: len(image) - len(name) + len(stem)]} & wanted:
            named.setdefault(spelling, []).append(image)
    folders: set[bytes] = set()
    for image in images if wanted - named.keys() else ():
        add_folder(folders, folder_of(image))
    for number, line in lines:
        found = [path for path in dict.fromkeys(of_key.get(line, ())) if path in there] or named.get(line, [])
        if len(found) > 1:
            several = f"{quoted_value(line)} fits {len(found)} images, for example {printable(found[0])}"
            raise UsageError(f"{selection.file}:{number}", several, "give its path, or a glob for all of them")
        if not found and line in folders:
            selection.images.update(image for image in images if image.startswith(line + b"/"))
            selection.lines.append(line + b"/")
            continue
        if not found:
            selection.unmatched.setdefault(line, number)
        selection.images.update(found)
        selection.lines.append(found[0] if found else line)


def _paths_of(pack: str, keys: set[bytes]) -> dict[bytes, list[bytes]]:
    """Return the paths of the records with each of these keys; several only in a pack that was merged."""
    if is_url(pack):
        indexes = open_pack(pack).reader.indexes
    else:  # no file of images is opened
        manifest = read_manifest(pack)
        indexes = Indexes(IndexFiles(pack, manifest.shards, manifest))
    named = pa.array([key.decode("ascii") for key in keys], pa.string())
    found: dict[bytes, list[bytes]] = {}
    for number in range(len(indexes)):
        index = indexes[number]
        table = index.select(["key", "path"])
        table = table.filter(pc.is_in(table.column("key"), value_set=named))
        if len(table) and WINDOW in index.column_names:
            problem = f"{table.column('key')[0]} is the key of a tile, but whole images are chosen, with all of theirs"
            raise UsageError(pack, problem, f"name the image: {printable(table.column('path')[0].as_py())}")
        for key, path in zip(*(table.column(name).to_pylist() for name in ("key", "path")), strict=True):
            found.setdefault(key.encode("ascii"), []).append(path)
    return found


@dataclass
class Inputs:
    """The inputs found in the source."""

    file: str = ""
    """Path of the table."""
    rows: int = 0
    """Number of its rows."""
    images: int = 0
    """Number of images in the source."""
    taken: int = 0
    """Number of those that were not left out on purpose before they were read."""
    archives: tuple[Archive, ...] = ()
    """Those that hold the images; the table then has the columns of PLACE_SCHEMA, too."""
    in_store: bool = False
    """Whether the images are objects of a store; the table then has the column of ETAG_SCHEMA, too."""
    classes: tuple[str, ...] = ()
    fields: tuple[str, ...] = ()
    rejected: Listing[Rejected] = field(default_factory=lambda: Listing(Rejected))
    skipped: Listing[Skipped] = field(default_factory=lambda: Listing(Skipped))
    """Images that were left out on purpose."""
    changed: Listing[Changed] = field(default_factory=lambda: Listing(Changed))
    """Boxes that ``--boxes`` clipped or dropped."""
    labels: tuple[str, ...] = ()
    """The kinds of labels that were read, with ``auto`` resolved."""
    counts: Counter[str] = field(default_factory=Counter)
    label_files: tuple[str, ...] = ()
    """The FILE of each of them, as ``SRC/FILE`` if it is below the source; empty if none has one."""
    selections: dict[str, bytes] = field(default_factory=dict)
    """The images that include and exclude name, as files for the pack."""
    left_out: Selection | None = None
    """What exclude names."""
    losses: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)
    chosen: str = ""
    """The labels that ``--labels auto`` has chosen, and why; the first of `notes` says it, too, with all counts."""
    class_changes: tuple[ClassChange, ...] = ()
    """What became of the classes that have other names in the pack, or none."""
    tags: tuple[str, ...] = ()
    """Names of the tags, if a source has them."""
    flip_index: tuple[int, ...] | None = None
    """Index of the mirror image of each landmark or keypoint, if a source has it."""
    suspects: list[Any] = field(default_factory=list)
    """Record batches of `base`: images that were rejected for a label that an option would let pass."""
    parts: dict[str, PartSpec] = field(default_factory=dict)
    """The parts that images have besides their pixels."""
    mask_values: dict[str, MaskValues] = field(default_factory=dict)
    """What the values of the files of each mask mean."""
    part_facts: dict[str, FactsFound] = field(default_factory=dict)
    """What the files of each part are."""
    seen: Seen | None = None
    """The source as it was listed, to be remembered."""
    kept: tuple[int, int] = (0, 0)
    """How many inputs are not read again, because a pack that is updated has them, or has rejected them."""
    twice: int = 0
    """How many of `rejected` are a second entry of an image."""

    @property
    def table(self) -> Any:
        """The mapped pyarrow.Table of the inputs to pack, in byte order of their paths.

        It has the columns of `base` and the annotation columns of the index that any image has.
        """
        return map_table(self.file)

    def work_in(self, folder: str | None) -> None:
        """Write the plan into this folder. None: into a temporary one that is removed with this object.

        Raises:
            StorageError: The disk does not take it.
        """
        if folder is None:
            folder = tempfile.mkdtemp(prefix="packer-plan-")
            weakref.finalize(self, remove, folder, ignore_errors=True)
        self.file = os.path.join(folder, PLAN, "inputs.arrow")
        with storage_errors(self.file):
            make_own_folder(os.path.dirname(self.file))

    def drop(self, numbers: Collection[int]) -> None:
        """Remove rows from the table. Raise StorageError if the disk does not take it."""
        table, less = self.table, f"{self.file}.less"
        dropped = np.array(sorted(numbers), np.int64)

        def kept() -> Iterator[Any]:
            for start, piece in pieces(table):
                first, last = np.searchsorted(dropped, [start, start + len(piece)])
                there: Any = np.ones(len(piece), np.bool_)
                there[dropped[first:last] - start] = False
                yield from mark_missing_labels(piece.filter(pa.array(there))).to_batches()

        write_table(kept(), table.schema, less)
        os.replace(less, self.file)
        self.rows -= len(dropped)

    @property
    def all_notes(self) -> list[str]:
        """The notes, with those on what images lose, and on missing parts and labels."""
        notes = [f"{what} in {plural(count, 'image')}" for what, count in sorted(self.losses.items())]
        if count := self.counts["missing_labels"]:
            without = plural(count, "image has no label and is", "images have no label and are")
            notes.append(f"{without} packed without objects")
        return self.notes + notes

    @property
    def more_notes(self) -> list[str]:
        """The notes that the line of a plan does not repeat."""
        return self.all_notes[1 if self.chosen else 0 :]

    @property
    def same_size(self) -> bool:
        """Whether the images to pack all have the same width and height."""
        table = self.table
        if WINDOW in table.column_names:
            return all(len(np.unique(sides)) <= 1 for sides in sizes_in(table))
        return all(len(pc.unique(table.column(name))) <= 1 for name in ("width", "height"))

    @property
    def base(self) -> Any:
        """Schema of the columns that are not annotations."""
        return base_schema(bool(self.archives), self.in_store)

    @property
    def objects(self) -> tuple[int, int, int]:
        """Numbers of boxes, of landmarks and of values in the images to pack."""
        return self.count("boxes"), self.count("landmarks"), self.count("value")

    def count(self, name: str) -> int:
        """Return the number of items of a field in the images to pack."""
        table = self.table
        if name not in table.column_names:
            return 0
        return sum(pc.sum(pc.list_value_length(chunk)).as_py() or 0 for chunk in table.column(name).chunks)

    @property
    def has_labels(self) -> bool:
        """Whether any image to pack has a class, an object or anything else that labels say."""
        table = self.table
        of_boxes = {field.name for field in FIELDS if field.per_box}
        names = [name for name in table.column_names if name not in self.base.names and name not in of_boxes]
        lists = {name for name in names if pa.types.is_list(table.column(name).type)}
        return bool(self.classes or {*names} - lists or any(map(self.count, ("boxes", *lists))))

    def count_of(self, part: str) -> int:
        """Return the number of images to pack that have a part."""
        table, name = self.table, f"{part}{PART_COLUMN}"
        return len(table) - table.column(name).null_count if name in table.column_names else 0

    @property
    def found(self) -> int:
        """Number of inputs to pack, rejected and skipped."""
        return self.asked + len(self.skipped)

    @property
    def asked(self) -> int:
        """Number of inputs that were not skipped, to which ``--max-bad`` refers."""
        return self.rows + self.bad + self.kept[0]

    @property
    def bad(self) -> int:
        """Number of rejected inputs."""
        return len(self.rejected) - self.twice + self.kept[1]


class InputTable:
    """Collects what is found in the partitions of the source, and makes one table of their files."""

    def __init__(self, inputs: Inputs) -> None:
        self.inputs = inputs
        self._rows: dict[int, int] = {}
        """Of each partition."""
        self.classes: dict[str, None] = {}
        """The names that were met."""
        self.class_counts: Counter[str] = Counter()
        """With a `ClassMap`: the number of labels of each class, as the labels call it."""
        self._columns: set[str] = set()
        self._members: set[str] = set()

    def file_of(self, number: int) -> str:
        """Return the file of a partition."""
        return os.path.join(os.path.dirname(self.inputs.file), f"part-{number:05d}.arrow")

    def add(self, number: int, found: Partition) -> None:
        """Add a partition, whose file is written."""
        inputs = self.inputs
        self._rows[number] = found.rows
        self.classes.update(dict.fromkeys(found.classes))
        self.class_counts.update(found.class_counts)
        self._columns |= found.columns
        self._members |= found.members
        inputs.counts.update(found.counts)
        inputs.losses.update(found.losses)
        for name, facts in found.part_facts.items():
            for (dtype, channels), (count, first) in facts.items():
                inputs.part_facts.setdefault(name, FactsFound()).add(dtype, channels, first, count)
        for rejected in found.rejected:
            inputs.rejected.add(rejected)
        for skipped in found.skipped:
            inputs.skipped.add(skipped)
        for changed in found.changed:
            inputs.changed.add(changed)
        if found.suspects is not None:
            inputs.suspects.append(found.suspects)

    def finish(self, classes: tuple[str, ...]) -> None:
        """Write the table, with the final ids of these classes, and remove the files of the partitions.

        Raises:
            StorageError: The disk does not take it.
        """
        inputs = self.inputs
        names = [name for name in FIELD_NAMES if name in self._columns]
        parts = [(name, PART_FILE) for name in sorted(self._columns) if name.endswith(PART_COLUMN)]
        schema = pa.schema(
            [*inputs.base, *(FULL_SCHEMA.field(name) for name in names), *parts],
            metadata={CLASSES: json.dumps(classes)},
        )
        ids = {name: number for number, name in enumerate(classes)}
        files = (self.file_of(number) for number in sorted(self._rows) if self._rows[number])
        write_table((_final(file, schema, ids) for file in files), schema, inputs.file)
        inputs.classes, inputs.rows = classes, sum(self._rows.values())
        plain = {name for name in names if not BY_NAME[name].has_members}
        inputs.fields = tuple(sorted(plain | self._members))


def _final(file: str, schema: Any, ids: dict[str, int]) -> Any:
    """Return the rows of a partition with all columns and the final class ids, and remove its file."""
    with pa.OSFile(os.fsencode(file)) as source:
        batch = pa.ipc.open_file(source).get_batch(0)
    os.unlink(file)
    there = dict(zip(batch.schema.names, batch.columns, strict=True))
    known = np.array([ids[name] for name in json.loads(batch.schema.metadata[CLASSES])], np.int64)
    unlabeled = there[UNLABELED].to_numpy(zero_copy_only=False) if UNLABELED in there else None
    columns = []
    for name, kind in zip(schema.names, schema.types, strict=True):
        array = there.get(name)
        if array is None and name == "label":
            array = label_arrays(np.full(len(batch), -1, np.int32))[0]  # null has the value -1
        elif array is None:
            array = pa.nulls(len(batch), kind)
        elif name in CLASS_IDS and len(known):
            array = renumbered(array, known)
        if name in OBJECTS and unlabeled is not None:
            array = no_objects(array, unlabeled)
        columns.append(array)
    return pa.RecordBatch.from_arrays(columns, schema=schema)
