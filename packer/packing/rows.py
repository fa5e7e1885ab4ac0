"""The file of the table of inputs: writes it in batches, and reads some rows of it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer.model.fields import label_arrays
from packer.packing.partition import CLASSES
from packer.system.storage import storage_errors

ROWS_A_BATCH = 1 << 16
BATCH_BYTES = 64 << 20
"""A batch of rows with many labels is shorter."""


def write_table(batches: Iterable[Any], schema: Any, path: str) -> None:
    """Write record batches as a file for workers to map, in batches of about ROWS_A_BATCH.

    Raises:
        StorageError: The disk does not take it.
    """
    waiting: list[Any] = []
    rows = size = 0
    with storage_errors(path), open(path, "xb") as file, pa.ipc.new_file(file, schema) as writer:
        for batch in batches:
            waiting.append(batch)
            rows, size = rows + len(batch), size + batch.nbytes
            if rows >= ROWS_A_BATCH or size >= BATCH_BYTES:
                writer.write_table(pa.Table.from_batches(waiting, schema).combine_chunks())
                rows, size = 0, 0
                waiting.clear()
        if waiting:
            writer.write_table(pa.Table.from_batches(waiting, schema).combine_chunks())


def mapped(file: str) -> Any:
    """Return the table in a file, which stays mapped as long as it is used."""
    return pa.ipc.open_file(pa.memory_map(os.fsencode(file))).read_all()


def classes_of(table: Any) -> tuple[str, ...]:
    """Return the names of the classes of a table of inputs."""
    return tuple(json.loads(table.schema.metadata[CLASSES]))


def pieces(table: Any) -> Iterator[tuple[int, Any]]:
    """Yield (number of the first row, table of some rows)."""
    start = 0
    for batch in table.to_batches():
        yield start, pa.Table.from_batches([batch])
        start += len(batch)


def rows_at(table: Any, numbers: NDArray[np.int64]) -> Any:
    """Return the rows of a mapped table with these numbers, in their order, as a table in memory."""
    order = np.argsort(numbers, kind="stable")
    ascending = numbers[order]
    found, taken = [], 0
    for start, piece in pieces(table):
        stop = int(np.searchsorted(ascending, start + len(piece)))
        if stop > taken:
            found.append(piece.take(pa.array(ascending[taken:stop] - start)))
            taken = stop
    back = np.empty(len(order), np.int64)
    back[order] = np.arange(len(order))
    rows = pa.concat_tables(found) if found else table.slice(0, 0)
    return marked(rows.combine_chunks().take(pa.array(back)).combine_chunks())


def marked(table: Any) -> Any:
    """Return a table of which rows were taken with -1 below the nulls of `label` again, where Arrow leaves zeros."""
    place = table.schema.get_field_index("label")
    if place < 0 or not table.column(place).null_count:
        return table
    labels = label_arrays(table.column(place).fill_null(-1).to_numpy())[0]
    return table.set_column(place, table.schema.field(place), labels)


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
