"""The annotations of a whole pack as a table for people: text is text, and what an image lacks is null."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pyarrow as pa

from packer.errors import printable
from packer.format.indexes import Indexes
from packer.format.manifest import Manifest
from packer.model.fields import CLASS_IDS

FACTS = ("key", "path", "height", "width", "channels", "dtype", "encoding")
"""Columns that every index has, besides the places and digests of records."""


def annotation_table(indexes: Indexes, manifest: Manifest) -> Any:
    """Return the annotations of all records as a pyarrow.Table (`packer.Pack.to_arrow`).

    Args:
        indexes: The indexes of the pack.
        manifest: What the pack holds.
    """
    # `box_fields.pose` is a member of the JSON text in `box_fields`
    names = [*FACTS, *dict.fromkeys(field.partition(".")[0] for field in manifest.fields)]
    shards = [_shard(indexes, number, names) for number in range(len(indexes))]
    table = pa.concat_tables(shards, promote_options="default")
    table = table.set_column(table.column_names.index("path"), "path", _text(table.column("path")))
    if "label" in manifest.fields:
        place, classes = table.column_names.index("label"), pa.array([*manifest.classes], pa.string())
        ids = table.column(place).combine_chunks()
        if len({*manifest.classes}) == len(classes):
            named = pa.DictionaryArray.from_arrays(ids, classes)
        else:  # pandas wants each category once
            named = classes.take(ids).dictionary_encode()
        table = table.add_column(place + 1, "label_name", named)
    return table.unify_dictionaries()


def _shard(indexes: Indexes, number: int, names: list[str]) -> Any:
    """Return the columns of a shard that its index has, with the class ids of the open pack."""
    table = indexes[number]
    table = table.select([name for name in names if name in table.column_names])
    for place, name in enumerate(table.column_names):
        if name in CLASS_IDS:
            table = table.set_column(place, name, _with_class_ids(indexes, number, name, table.column(name).chunk(0)))
    return table


def _with_class_ids(indexes: Indexes, number: int, name: str, array: Any) -> Any:
    absent = np.asarray(array.is_null())
    if not pa.types.is_list(array.type):
        ids = indexes.with_class_ids(name, number, np.asarray(array.fill_null(-1)))
        return pa.array(ids, array.type, mask=absent)
    values = pa.array(indexes.with_class_ids(name, number, np.asarray(array.values)), array.type.value_type)
    mask = pa.array(absent) if absent.any() else None
    return pa.ListArray.from_arrays(array.offsets, values, type=array.type, mask=mask)


def _text(paths: Any) -> Any:
    try:
        return paths.cast(pa.string())
    except pa.ArrowInvalid:  # a path that is not UTF-8
        return pa.array([printable(os.fsdecode(path)) for path in paths.to_pylist()], pa.string())
