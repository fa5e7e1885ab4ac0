"""Records as rows of an index: all but the image bytes, a few thousand at a time turned into Arrow arrays."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from packer.errors import BadLabel
from packer.format.schema import DTYPES, ENCODINGS, SCHEMA
from packer.types import Annotation, Record


class Row(NamedTuple):
    """What the index keeps of a record."""

    facts: tuple[str, int, int, int, int, int, int, int, bytes, bytes]
    """key, size, crc32c, height, width, channels, codes of dtype and encoding, path, source_xxh3."""
    annotation: Annotation
    box_fields: str | None
    extras: str | None


def row_of(record: Record) -> Row:
    """The row of a record. Raises BadLabel where a field has a number that JSON cannot hold."""
    facts = (
        record.key,
        len(record.data),
        record.crc32c(),
        record.height,
        record.width,
        record.channels,
        DTYPES.index(record.dtype),
        ENCODINGS.index(record.encoding),
        record.path,
        record.source_xxh3,
    )
    a = record.annotation
    return Row(facts, a, _json(record.path, a.box_fields), _json(record.path, a.extras))


def rows_batch(rows: list[Row]) -> Any:
    """The rows as one record batch: SCHEMA without `offset`."""
    facts = list(zip(*(row.facts for row in rows), strict=True)) or [()] * 10
    keys, sizes, crcs, heights, widths, channels, dtypes, encodings, paths, sources = facts
    notes = [row.annotation for row in rows]
    labels = np.array([-1 if a.label is None else a.label for a in notes], np.int32)
    columns = [
        pa.array(keys, pa.string()),
        pa.array(sizes, pa.int64()),
        pa.array(crcs, pa.uint32()),
        pa.array(heights, pa.int32()),
        pa.array(widths, pa.int32()),
        pa.array(channels, pa.int8()),
        _names(dtypes, DTYPES),
        _names(encodings, ENCODINGS),
        pa.array(paths, pa.binary()),
        pa.array(sources, pa.binary(16)),
        # -1 stands under the nulls, so that the mapped numbers are the labels without a copy
        pa.array(labels, pa.int32(), mask=np.array([a.label is None for a in notes], np.bool_)),
        _lists([a.boxes for a in notes], _floats(4)),
        _lists([a.box_labels for a in notes], _integers),
        _lists([a.landmarks for a in notes], _floats(2)),
        _lists([a.polygons for a in notes], _nested(2)),
        _lists([a.keypoints for a in notes], _nested(3)),
        pa.array([row.box_fields for row in rows], pa.string()),
        pa.array([row.extras for row in rows], pa.string()),
    ]
    schema = SCHEMA.remove(SCHEMA.get_field_index("offset"))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _names(codes: tuple[int, ...], names: tuple[str, ...]) -> Any:
    return pa.DictionaryArray.from_arrays(pa.array(codes, pa.int8()), pa.array(names, pa.string()))


def _lists(rows: list[Any], values_of: Callable[[list[Any]], Any]) -> Any:
    """A list array of one row per item of `rows`, null where it is None."""
    present = [row for row in rows if row is not None]
    lengths = [0 if row is None else len(row) for row in rows]
    offsets = pa.array(np.cumsum([0, *lengths], dtype=np.int32))
    absent = pa.array([row is None for row in rows], pa.bool_())
    return pa.ListArray.from_arrays(offsets, values_of(present), mask=absent)


def _integers(rows: list[Any]) -> Any:
    return pa.array(np.concatenate([np.zeros(0, np.int64), *(np.asarray(r, np.int64) for r in rows)]))


def _floats(width: int) -> Callable[[list[Any]], Any]:
    def values(rows: list[Any]) -> Any:
        flat = [np.asarray(row, np.float32).reshape(-1, width) for row in rows]
        joined = np.concatenate([np.zeros((0, width), np.float32), *flat])
        return pa.FixedSizeListArray.from_arrays(pa.array(joined.ravel()), width)

    return values


def _nested(width: int) -> Callable[[list[Any]], Any]:
    def values(rows: list[Any]) -> Any:
        return _lists([item for row in rows for item in row], _floats(width))

    return values


def _json(path: bytes, fields: Mapping[str, Any]) -> str | None:
    """ASCII JSON (undecodable bytes of names survive as escaped surrogates); None for no fields."""
    if not fields:
        return None
    try:
        return json.dumps(dict(fields), allow_nan=False)
    except ValueError as error:
        raise BadLabel(path, f"an annotation that JSON cannot hold: {error}") from error
