"""Compares the labels that a source has now with those of the records of a pack, column by column."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from packer.images.resize import TargetSize
from packer.model.annotation import Int64, column_of
from packer.model.annotation_columns import Annotations, Ragged, column, present
from packer.model.fields import FIELDS, annotation_arrays, texts_of
from packer.packing.input_table import Inputs
from packer.packing.make_record import PART_COLUMN, resize_annotation
from packer.packing.partition import mark_missing_labels, rows_at
from packer.repack.changed_files import SourceCheck
from packer.repack.index_columns import annotations_of
from packer.repack.merge import lists_differ


def rows_that_differ(
    inputs: Inputs, rows: Int64, tables: Sequence[Any], records: Int64, resize: TargetSize | None, but: str = ""
) -> NDArray[np.bool_]:
    """Return which rows of a table of inputs have other labels than the records of a pack, bool (n,).

    Args:
        inputs: The inputs, with the class ids of the pack.
        rows: Numbers of rows.
        tables: The indexes of the pack.
        records: The record of each row.
        resize: How the images of the pack were resized, and labels with them.
        but: A field that is not compared, as the records did not get it from the source.
    """
    some = rows_at(inputs.table, rows)
    new = annotations_of([some]) if resize is None else _resized(some, resize, inputs.file)
    old = mark_missing_labels(annotations_of(tables).take(pa.array(records)))
    joined = mark_missing_labels(pa.concat_tables([old, new.cast(old.schema)])).combine_chunks()
    first = np.arange(len(rows))
    later = first + len(rows)
    found = np.zeros(len(rows), np.bool_)
    for name in (field.name for field in FIELDS if field.name != but):
        there = present(joined, name)
        found |= there[first] != there[later]
        if not there.any():
            continue
        values: Any = column(joined, name)
        if isinstance(values, Ragged):
            found |= lists_differ(values, first, later)
        elif pa.types.is_string(joined.schema.field(name).type):
            texts = joined.column(name)
            unequal = pc.not_equal(texts.slice(0, len(rows)), texts.slice(len(rows)))
            found |= np.asarray(pc.fill_null(unequal, False).to_numpy(), np.bool_)
        else:
            found |= np.asarray(values)[first] != np.asarray(values)[later]
    return found


def _resized(table: Any, resize: TargetSize, file: str) -> Any:
    """Return the annotations of rows of a table of inputs in the frames of the resized images."""
    annotations, widths, heights = (
        Annotations(table, file), *(table.column(name).to_pylist() for name in ("width", "height"))
    )  # fmt: skip
    made = [
        resize_annotation(annotations[row], resize, size)
        for row, size in enumerate(zip(widths, heights, strict=True))
    ]  # fmt: skip
    arrays = annotation_arrays(made, list(map(texts_of, made)))
    return pa.table(dict(zip((field.name for field in FIELDS), arrays, strict=True)))


def parts_that_differ(
    inputs: Inputs, rows: Int64, tables: Sequence[Any], records: Int64, check: SourceCheck
) -> NDArray[np.bool_]:
    """Return which rows of a table of inputs may have other parts than the records of a pack, bool (n,).

    A pack does not know the digests of the files of parts: only their times say that they are as they were.
    """
    table, found = inputs.table, np.zeros(len(rows), np.bool_)
    for name in inputs.parts:
        sizes = np.concatenate([np.asarray(column(index, column_of(name, "size"))) for index in tables])[records]
        if f"{name}{PART_COLUMN}" not in table.column_names:
            found |= sizes >= 0
            continue
        files = rows_at(table, rows).column(f"{name}{PART_COLUMN}").combine_chunks()
        there = ~np.asarray(files.is_null().to_numpy(zero_copy_only=False), np.bool_)
        found |= there != (sizes >= 0)
        found |= there & ~check.sure(pc.fill_null(pc.struct_field(files, "path"), b""))
    return found
