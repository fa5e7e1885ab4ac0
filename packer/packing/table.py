"""The table of inputs: one row for each image to pack, with its labels; and the lists of all others."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from packer.errors import BadBox, BadInput, BadLabel, NoLabel, StorageError, plural
from packer.format.index_rows import Texts, annotation_arrays, texts_of
from packer.format.lists import Changed, Listing, Skipped
from packer.format.manifest import Rejected
from packer.format.schema import ANNOTATION_FIELDS
from packer.format.schema import TAGGED_SCHEMA as INDEX_SCHEMA
from packer.images.base import Header, orientations
from packer.images.header import Mode, decoded_shape, losses_named
from packer.packing.convert import ETAG_SCHEMA, PLACE_SCHEMA, UNREAD, rejected
from packer.packing.headers import Headers
from packer.packing.options import BuildOptions
from packer.packing.resolve import Resolver
from packer.packing.select import Selection
from packer.sources.archives.members import Members
from packer.sources.archives.places import Archive
from packer.sources.base import Source
from packer.sources.paths import as_text
from packer.types import Annotation, RawAnnotation

NO_TEXTS: Texts = (None, None)
TURNED_BY_A_QUARTER = 5
"""From this Exif orientation on, width and height are swapped."""

BASE_SCHEMA = pa.schema(
    [
        ("path", pa.binary()),
        ("bytes", pa.int64()),
        ("height", pa.int32()),
        ("width", pa.int32()),
        ("channels", pa.int8()),
        ("wide", pa.bool_()),
        ("code", pa.int32()),
    ]
)
"""height, width, channels of the decoded, upright image; `wide` for uint16; `code` is `Header.code`."""


@dataclass
class Inputs:
    """The inputs found in the source."""

    table: Any
    """pyarrow.Table of BASE_SCHEMA and the annotation columns of the index that any image has: the inputs to pack, in
    byte order of their paths."""
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
    tags: tuple[str, ...] = ()
    """Names of the tags, if a source has them."""
    flip_index: tuple[int, ...] | None = None
    """Index of the mirror image of each landmark or keypoint, if a source has it."""
    suspects: list[Any] = field(default_factory=list)
    """Record batches of `base`: images that were rejected for a label that an option would let pass."""
    twice: int = 0
    """How many of `rejected` are a second entry of an image."""

    @property
    def all_notes(self) -> list[str]:
        """The notes, with those on what the mode loses and on missing labels."""
        notes = [f"{what} in {plural(count, 'image')}" for what, count in sorted(self.losses.items())]
        if count := self.counts["missing_labels"]:
            without = plural(count, "image has no label and is", "images have no label and are")
            notes.append(f"{without} packed without objects")
        return self.notes + notes

    @property
    def base(self) -> Any:
        """Schema of the columns that are not annotations."""
        return pa.schema([*BASE_SCHEMA, *(PLACE_SCHEMA if self.archives else ETAG_SCHEMA if self.in_store else ())])

    @property
    def boxes(self) -> int:
        """Number of boxes in the images to pack."""
        return self._values("boxes")

    @property
    def landmarks(self) -> int:
        """Number of landmarks in the images to pack."""
        return self._values("landmarks")

    def _values(self, name: str) -> int:
        if name not in self.table.column_names:
            return 0
        return pc.sum(pc.list_value_length(self.table.column(name))).as_py() or 0

    @property
    def found(self) -> int:
        """Number of inputs to pack, rejected and skipped."""
        return self.asked + len(self.skipped)

    @property
    def asked(self) -> int:
        """Number of inputs that were not skipped, to which ``--max-bad`` refers."""
        return len(self.table) + self.bad

    @property
    def bad(self) -> int:
        """Number of rejected inputs."""
        return len(self.rejected) - self.twice


class InputTable:
    """Collects the table of inputs, one chunk of images at a time."""

    def __init__(self, options: BuildOptions, resolver: Resolver, inputs: Inputs, members: Members | None) -> None:
        self._mode = cast(Mode, options.mode)
        self._missing = options.missing_labels
        self._resolver = resolver
        self._members = members
        self.inputs = inputs
        self._fields: set[str] = set()
        self._chunks: list[tuple[list[Any], dict[str, Any], NDArray[np.bool_]]] = []

    def add(self, paths: Sequence[bytes], headers: Headers, sources: Sequence[Source]) -> None:
        """Add the images at `paths` with their labels; reject those that cannot be packed."""
        annotations: list[Annotation] = []
        texts: list[Texts] = []
        good: list[int] = []
        suspects: list[int] = []
        unlabeled: list[bool] = []
        for number, (path, (_, width, height, code)) in enumerate(zip(paths, headers.facts.tolist(), strict=True)):
            try:
                if number in headers.bad:
                    raise headers.bad[number]
                try:
                    raws, is_unlabeled = [source.annotate(path) for source in sources], False
                except NoLabel:
                    if self._missing == "error":
                        raise
                    if self._missing == "skip":
                        self.inputs.skipped.add(Skipped(os.fsdecode(path), "no label"))
                        continue
                    raws, is_unlabeled = _labels_there(path, sources), True
                annotation, encoded = self._resolver.of_label(raws), NO_TEXTS
                if annotation is None:
                    annotation = self._resolver.annotation(raws, Header.from_code(code, width, height), path)
                    encoded = checked_texts(annotation, path)
                    self._fields.update(f"box_fields.{name}" for name in annotation.box_fields)
            except BadInput as error:
                self.inputs.rejected.add(rejected(path, error))
                if isinstance(error, BadBox | NoLabel):
                    suspects.append(number)
            else:
                annotations.append(annotation)
                texts.append(encoded)
                unlabeled.append(is_unlabeled)
                good.append(number)
        if suspects:
            columns = self._columns([paths[number] for number in suspects], headers.facts[suspects], Counter())
            self.inputs.suspects.append(pa.RecordBatch.from_arrays(columns, schema=self.inputs.base))
        if good:
            self._append([paths[number] for number in good], headers.facts[good], annotations, texts, unlabeled)

    def _append(
        self,
        paths: list[bytes],
        facts: NDArray[np.int64],
        annotations: list[Annotation],
        texts: list[Texts],
        unlabeled: list[bool],
    ) -> None:
        columns = self._columns(paths, facts, self.inputs.losses)
        arrays = zip(ANNOTATION_FIELDS, annotation_arrays(annotations, texts), strict=True)
        there = {name: array for name, array in arrays if array.null_count < len(array)}
        self._fields.update(there.keys() - {"box_fields"})
        self._chunks.append((columns, there, np.array(unlabeled)))

    def _columns(self, paths: list[bytes], facts: NDArray[np.int64], lost: Counter[str]) -> list[Any]:
        """Return the columns that are not annotations, and count what the mode loses of these images."""
        size, width, height, codes = facts.T
        turned = orientations(codes) >= TURNED_BY_A_QUARTER
        unique, which, counts = np.unique(codes, return_inverse=True, return_counts=True)
        # a mode that takes UNREAD codes gives the same channels to every header
        headers = [Header.from_code(max(0, code), 1, 1) for code in unique.tolist()]
        shapes = [decoded_shape(header, self._mode) for header in headers]
        for header, code, count in zip(headers, unique.tolist(), counts.tolist(), strict=True):
            for what in losses_named(header, self._mode) if code != UNREAD else ():
                lost[what] += count
        columns = [
            paths,
            size,
            np.where(turned, width, height).astype(np.int32),
            np.where(turned, height, width).astype(np.int32),
            np.array([channels for _, _, channels, _ in shapes], np.int8)[which],
            np.array([dtype == "uint16" for *_, dtype in shapes], np.bool_)[which],
            codes.astype(np.int32),
        ]
        if self._members is not None:
            rows = self._members.rows(paths)
            if self.inputs.in_store:
                columns.append([self._members.etags[row] for row in rows])
            else:
                archive, offset, _, packed, crc = self._members.places[rows].T
                columns += [archive.astype(np.int32), offset, packed, crc]
        return [pa.array(column, kind) for column, kind in zip(columns, self.inputs.base.types, strict=True)]

    def finish(self, class_ids: NDArray[np.int64]) -> None:
        """Finish the table, replacing preliminary class ids with the final ones."""
        names = [name for name in ANNOTATION_FIELDS if any(name in there for _, there, _ in self._chunks)]
        schema = pa.schema([*self.inputs.base, *(INDEX_SCHEMA.field(name) for name in names)])
        batches = []
        while self._chunks:
            columns, there, is_unlabeled = self._chunks.pop(0)
            self.inputs.counts["missing_labels"] += int(is_unlabeled.sum())
            for name in names:
                array = there.get(name)
                if array is None:
                    array = pa.nulls(len(columns[0]), schema.field(name).type)
                elif name in ("label", "box_labels"):
                    array = renumbered(array, class_ids)
                if name in ("boxes", "box_labels") and is_unlabeled.any():
                    array = no_objects(array, is_unlabeled)
                columns.append(array)
            batches.append(pa.RecordBatch.from_arrays(columns, schema=schema))
        self.inputs.table = pa.Table.from_batches(batches, schema)
        self.inputs.fields = tuple(sorted(self._fields))


def checked_texts(annotation: Annotation, path: bytes) -> Texts:
    """Return `texts_of` an annotation. Raise BadLabel if an index cannot hold it."""
    try:
        return texts_of(annotation)
    except (ValueError, RecursionError) as error:
        raise BadLabel(path, f"an annotation that JSON cannot hold: {error}", "fix the label") from None


def _labels_there(path: bytes, sources: Sequence[Source]) -> list[RawAnnotation]:
    """Return the annotations of an image from the sources that have one."""
    raws = []
    for source in sources:
        with suppress(NoLabel):
            raws.append(source.annotate(path))
    return raws or [RawAnnotation(origin=as_text(path))]


def no_objects(array: Any, rows: NDArray[np.bool_]) -> Any:
    """Return a column of lists with the nulls in these rows replaced by empty lists: nothing is in those images."""
    null = array.is_null().to_numpy(zero_copy_only=False) & ~rows
    lengths = np.diff(array.offsets.to_numpy()) if len(array.offsets) else np.zeros(len(array), np.int64)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), array.flatten(), mask=pa.array(null))


def renumbered(array: Any, class_ids: NDArray[np.int64]) -> Any:
    """Return a column of class ids, or of lists of them, with ids replaced; nulls keep -1."""
    ids = np.append(class_ids, -1)
    if pa.types.is_list(array.type):
        values = pa.array(ids[np.frombuffer(array.values.buffers()[1] or b"", np.int64, len(array.values))])
        return pa.ListArray.from_arrays(array.offsets, values, mask=array.is_null())
    labels = np.frombuffer(array.buffers()[1], np.int32, len(array))
    return pa.array(ids[labels].astype(np.int32), mask=array.is_null().to_numpy(zero_copy_only=False))


def write_table(table: Any, path: str) -> None:
    """Write the table for the workers to map. Raise StorageError on failure."""
    try:
        with open(path, "xb") as file, pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table)
    except OSError as error:
        raise StorageError(path, f"cannot be written: {error.strerror or error}") from None
