"""New labels for the records of the same images: which belong together, and indexes with them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from packer.errors import AnyPath, UsageError, option, printable
from packer.format.index import batch_of
from packer.format.lists import Changed, read_list
from packer.format.manifest import Manifest, Origin
from packer.model.annotation import Int64
from packer.model.annotation_columns import column
from packer.model.fields import BY_NAME, FIELD_NAMES, INSTANCES, OBJECTS
from packer.model.tiles import WINDOW
from packer.packing.partition import no_objects
from packer.repack.index_columns import annotations_of, label_array, take_rows, with_column
from packer.repack.links import Source


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NewLabels:
    """Labels for a pack: those of another pack, or of a source that was read again (`labels_again`)."""

    path: str
    """The pack, or the source."""
    manifest: Manifest
    """What it says of labels: classes, fields, tags, flip index, counts, options and notes."""
    tables: Sequence[Any]
    """Its columns ``path``, ``source_xxh3``, ``height``, ``width`` and those of annotations, as of indexes."""
    options: Sequence[str]
    """The names of the options of its manifest that a pack with its labels has, too."""
    changed: Iterable[Changed] = ()
    """The labels that ``--boxes`` changed."""
    origin: Origin | None = None
    hints: Sequence[str] = ()
    """What only the user is told."""
    left_out: Mapping[bytes, str] = field(default_factory=dict)
    """The images that a build leaves out, by their paths, and why: no label, not in the list, not in the split, ..."""
    others: frozenset[bytes] = frozenset()
    """The paths of images that are not those in the pack."""
    lacks: str = "has no record, or several, of the image {}, by its path and digest"
    """What is wrong if it has no label for the image of a record; that of `others`."""
    differs: str = "has another image at {}: its bytes are not those that were packed"
    reason: str = "no label in the pack of --labels-from"
    """Why a record without a label is left out."""
    fitting: str = "build it with the same --resize and --fit"
    """The next step if its images have other sizes."""

    @staticmethod
    def of_pack(path: AnyPath) -> NewLabels:
        """Return those of a pack. Raise UsageError if it has none."""
        pack = Source(path)
        if not pack.manifest.fields:
            raise UsageError(pack.path, "has no labels", "name a pack with labels of the same images")
        return NewLabels(
            path=pack.path,
            manifest=pack.manifest,
            tables=pack.tables,
            options=("labels", "label_files", "columns", "boxes"),
            changed=read_list(pack.path, "changed", pack.manifest),
            origin=pack.origin("edit"),
        )

    def lacks_error(self, path: bytes, count: int) -> UsageError:
        """Return the error that there is no label for the image of a record, of `count` records in all."""
        name, reason = printable(os.fsdecode(path)), self.left_out.get(path)
        problem = (self.differs if path in self.others else self.lacks).format(name)
        problem = problem if reason is None else f"has no label for {name} ({printable(reason)})"
        problem += f"; so it is with {count:,} records" if count > 1 else ""
        step = f"leave out what it lacks with {option('missing-labels', 'skip')}, or keep it with empty"
        return UsageError(self.path, problem, step)


class LabelsOf:
    """The new labels of records.

    Args:
        other: The labels.
        tables: The indexes of the pack that gets them.
    """

    def __init__(self, other: NewLabels, tables: Sequence[Any]) -> None:
        self._other = other
        if any(WINDOW in table.column_names for table in tables):
            step = "build it again from a folder with these labels"
            raise UsageError(other.path, "has labels of whole images, and the pack has tiles", step)
        self._labels = annotations_of(other.tables)
        self._label = np.concatenate([np.asarray(column(table, "label")) for table in other.tables])
        self._moves = any(
            BY_NAME[name].moves or name == INSTANCES.name for name in other.manifest.fields if name in BY_NAME
        )
        found = partners(*(identities(each) for each in (tables, other.tables)))
        self.rows = np.split(found, np.cumsum([len(table) for table in tables])[:-1])
        """The record of each row of each index, -1 of a row without."""

    def check_sizes(self, number: int, table: Any) -> None:
        """Raise UsageError if places in an image that is labelled are not those in this index, of this number."""
        for side in ("height", "width") if self._moves else ():
            others = np.concatenate([np.asarray(column(table, side)) for table in self._other.tables])
            mine, rows = np.asarray(column(table, side)), self.rows[number]
            differ = (rows >= 0) & (mine != others[rows])
            if differ.any():
                row = int(differ.argmax())
                paths: Any = column(table, "path")
                sizes = f"the {side} {others[rows[row]]}, not {mine[row]}"
                problem = f"has the image {printable(os.fsdecode(bytes(paths[row])))} with {sizes}: boxes do not fit"
                raise UsageError(self._other.path, problem, self._other.fitting)

    def given_to(self, table: Any, number: int) -> Any:
        """Return the index of a shard with these labels, as a record batch."""
        rows = self.rows[number]
        is_missing = rows < 0
        if is_missing.any():
            labels = self._labels.take(pa.array(rows, pa.int64(), mask=is_missing))
        else:
            labels = take_rows(self._labels, rows)
        columns = {name: table.column(name) for name in table.column_names if name not in FIELD_NAMES}
        columns |= {name: labels.column(name).combine_chunks() for name in FIELD_NAMES}
        for name in OBJECTS if "boxes" in self._other.manifest.fields and is_missing.any() else ():
            columns[name] = no_objects(columns[name], is_missing)
        label = label_array(np.where(is_missing, -1, self._label[rows]))
        return with_column(batch_of("", pa.table(columns)), "label", label)


def identities(tables: Sequence[Any]) -> tuple[Any, Any]:
    """Return path and digest of each record, as Arrow arrays of bytes; the digest is null if it is not known."""
    paths = pa.concat_arrays([chunk for table in tables for chunk in table.column("path").chunks])
    chunks = [chunk for table in tables for chunk in table.column("source_xxh3").chunks]
    digests = pa.concat_arrays(chunks).cast(pa.binary())
    return paths, pc.if_else(pc.equal(digests, bytes(16)), None, digests)


def partners(mine: tuple[Any, Any], others: tuple[Any, Any]) -> Int64:
    """Return the other record of each of mine, -1 if there is none or several: of equal path and digest, else digest.

    Where a digest is not known, the path alone counts.
    """
    both = [pc.binary_join_element_wise(*each, pa.scalar(b"", pa.binary())) for each in (mine, others)]
    found = _matches(*both)
    if (found >= 0).all():
        return found
    unknown = [np.asarray(digests.is_null()) for _, digests in (mine, others)]
    of_path = _matches(mine[0], others[0])
    by_path = (found < 0) & (of_path >= 0) & (unknown[0] | unknown[1][of_path])
    found = np.where(by_path, of_path, found)
    return np.where(found < 0, _matches(mine[1], others[1]), found)


def _matches(mine: Any, others: Any) -> Int64:
    """Return the place of each value among others, -1 if it is null, or there is none or several."""
    codes = others.dictionary_encode()
    numbers = np.asarray(pc.fill_null(codes.indices, len(codes.dictionary)), np.int64)
    counts = np.bincount(numbers, minlength=len(codes.dictionary) + 1)
    place_of = np.zeros(len(counts), np.int64)
    place_of[numbers] = np.arange(len(numbers))
    found = pc.index_in(mine, value_set=codes.dictionary, skip_nulls=True)
    wanted = np.asarray(pc.fill_null(found, len(codes.dictionary)), np.int64)
    one = (counts[wanted] == 1) & (wanted < len(codes.dictionary))
    return np.where(one, place_of[wanted], -1)
