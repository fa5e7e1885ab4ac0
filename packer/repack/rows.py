"""Changes whole columns of an index: other class ids, fewer rows. No row becomes a Python object."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer.model.annotation import Int64
from packer.model.columns import column, present
from packer.model.ragged import Ragged


def map_ids(ids: NDArray[Any], mapping: Int64) -> Int64:
    """Return the new class ids, int64 (n,); a negative id, which means none, is -1.

    Args:
        ids: Class ids, any integers below the number of classes.
        mapping: New id of each class, int64 (classes,).

    Raises:
        ValueError: An id is not that of a class.
    """
    if len(ids) and int(ids.max()) >= len(mapping):
        raise ValueError(f"it has the class id {int(ids.max())}, but the pack has {len(mapping)} classes")
    return np.append(mapping, -1)[np.where(ids < 0, len(mapping), ids)]


def relabelled(table: Any, mapping: Int64) -> Any:
    """Return an index with other class ids, as a record batch."""
    (batch,) = table.to_batches()
    lists: Any = column(table, "box_labels")
    flat = pa.array(map_ids(np.asarray(lists.flat()), mapping), pa.int64())
    offsets = pa.array(np.asarray(lists.offsets - lists.offsets[0], np.int32))
    absent = pa.array(~present(table, "box_labels"))
    batch = _with(batch, "box_labels", pa.ListArray.from_arrays(offsets, flat, mask=absent))
    return _with(batch, "label", _labels(map_ids(np.asarray(column(table, "label")), mapping)))


def selected(batch: Any, rows: Int64) -> Any:
    """Return some rows of an index (a record batch), in the order of `rows`."""
    table = pa.Table.from_batches([batch])
    labels = np.asarray(column(table, "label"))[rows]
    return _with(batch.take(pa.array(rows)), "label", _labels(labels))


def _labels(ids: NDArray[Any]) -> Any:
    # a null must have the value -1 (packer/format/schema.py), which Arrow's own functions do not keep
    return pa.array(np.asarray(ids, np.int32), pa.int32(), mask=np.asarray(ids) < 0)


def _with(batch: Any, name: str, values: Any) -> Any:
    place = batch.schema.get_field_index(name)
    arrays = [values if i == place else array for i, array in enumerate(batch.columns)]
    return pa.RecordBatch.from_arrays(arrays, schema=batch.schema)


def rows_of(lists: Ragged, rows: Int64) -> Ragged:
    """Return a copy of some rows of a column of lists of numbers."""
    starts, lengths = np.asarray(lists.offsets[:-1], np.int64)[rows], np.asarray(lists.lengths, np.int64)[rows]
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    places = np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], lengths)
    return Ragged(np.asarray(lists.values)[places], offsets)
