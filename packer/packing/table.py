"""The table of inputs: one row for each image to pack, with its labels; and the lists of all others."""

from __future__ import annotations

import json
import os
import tempfile
import weakref
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from packer.errors import plural
from packer.format.lists import Changed, Listing, Skipped
from packer.format.manifest import Rejected
from packer.format.schema import FULL_SCHEMA
from packer.model.fields import BY_NAME, CLASS_IDS, FIELD_NAMES, OBJECTS, label_arrays
from packer.packing.partition import CLASSES, UNLABELED, Partition, base_schema
from packer.packing.publish import PLAN
from packer.packing.rows import mapped, marked, no_objects, pieces, renumbered, write_table
from packer.packing.select import Selection
from packer.sources.archives.places import Archive
from packer.system.atomic import make_own_folder, remove
from packer.system.storage import storage_errors


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
    tags: tuple[str, ...] = ()
    """Names of the tags, if a source has them."""
    flip_index: tuple[int, ...] | None = None
    """Index of the mirror image of each landmark or keypoint, if a source has it."""
    suspects: list[Any] = field(default_factory=list)
    """Record batches of `base`: images that were rejected for a label that an option would let pass."""
    twice: int = 0
    """How many of `rejected` are a second entry of an image."""

    @property
    def table(self) -> Any:
        """The mapped pyarrow.Table of the inputs to pack, in byte order of their paths.

        It has the columns of `base` and the annotation columns of the index that any image has.
        """
        return mapped(self.file)

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
                yield from marked(piece.filter(pa.array(there))).to_batches()

        write_table(kept(), table.schema, less)
        os.replace(less, self.file)
        self.rows -= len(dropped)

    @property
    def all_notes(self) -> list[str]:
        """The notes, with those on what the mode loses and on missing labels."""
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
        return all(len(pc.unique(table.column(name))) <= 1 for name in ("width", "height"))

    @property
    def base(self) -> Any:
        """Schema of the columns that are not annotations."""
        return base_schema(bool(self.archives), self.in_store)

    @property
    def objects(self) -> tuple[int, int]:
        """Numbers of boxes and of landmarks in the images to pack."""
        return self.count("boxes"), self.count("landmarks")

    def count(self, name: str) -> int:
        """Return the number of items of a field in the images to pack."""
        table = self.table
        if name not in table.column_names:
            return 0
        return sum(pc.sum(pc.list_value_length(chunk)).as_py() or 0 for chunk in table.column(name).chunks)

    @property
    def found(self) -> int:
        """Number of inputs to pack, rejected and skipped."""
        return self.asked + len(self.skipped)

    @property
    def asked(self) -> int:
        """Number of inputs that were not skipped, to which ``--max-bad`` refers."""
        return self.rows + self.bad

    @property
    def bad(self) -> int:
        """Number of rejected inputs."""
        return len(self.rejected) - self.twice


class InputTable:
    """Collects what is found in the partitions of the source, and makes one table of their files."""

    def __init__(self, inputs: Inputs) -> None:
        self.inputs = inputs
        self._rows: dict[int, int] = {}
        """Of each partition."""
        self.classes: dict[str, None] = {}
        """The names that were met."""
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
        self._columns |= found.columns
        self._members |= found.members
        inputs.counts.update(found.counts)
        inputs.losses.update(found.losses)
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
        schema = pa.schema(
            [*inputs.base, *(FULL_SCHEMA.field(name) for name in names)], metadata={CLASSES: json.dumps(classes)}
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
