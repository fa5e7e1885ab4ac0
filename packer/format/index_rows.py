"""Converts records, without the image bytes, to Arrow arrays: the rows of an index, a few thousand at a time."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer.format.schema import ANNOTATION_FIELDS, DTYPES, ENCODINGS, TAGGED_SCHEMA
from packer.format.typed import MOST_DEEP, check_json
from packer.types import Annotation

_encoded = json.JSONEncoder(allow_nan=False).encode  # json.dumps would make an encoder for each record
Texts = tuple[str | None, str | None]
"""Box fields and extras of an annotation as JSON; None if it has none."""


def rows_batch(rows: list[tuple[Any, ...]], annotations: list[Annotation]) -> Any:
    """Return rows as one record batch: TAGGED_SCHEMA without `offset`.

    A row is (key, size, crc32c, height, width, channels, codes of dtype and encoding, path, source_xxh3).
    """
    facts = list(zip(*rows, strict=True)) or [()] * 10
    keys, sizes, crcs, heights, widths, channels, dtypes, encodings, paths, sources = facts
    columns = [
        pa.array(keys, pa.string()),
        pa.array(sizes, pa.int64()),
        pa.array(crcs, pa.uint32()),
        pa.array(heights, pa.int32()),
        pa.array(widths, pa.int32()),
        pa.array(channels, pa.int8()),
        coded(dtypes, DTYPES),
        coded(encodings, ENCODINGS),
        pa.array(paths, pa.binary()),
        pa.array(sources, pa.binary(16)),
        *annotation_arrays(annotations, map(texts_of, annotations)),
    ]
    schema = TAGGED_SCHEMA.remove(TAGGED_SCHEMA.get_field_index("offset"))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def label_arrays(labels: NDArray[np.int32]) -> list[Any]:
    """Return annotations that have at most a class as `annotation_arrays` does; -1 means none."""
    kinds = [TAGGED_SCHEMA.field(name).type for name in ANNOTATION_FIELDS[1:]]
    return [pa.array(labels, pa.int32(), mask=labels < 0), *(pa.nulls(len(labels), kind) for kind in kinds)]


def annotation_arrays(annotations: list[Annotation], texts: Iterable[Texts]) -> list[Any]:
    """Return annotations, with the `texts_of` each, as Arrow arrays: the schema.ANNOTATION_FIELDS, in their order."""
    box_fields, extras = zip(*texts, strict=True) if annotations else ((), ())
    labels = np.array([-1 if a.label is None else a.label for a in annotations], np.int32)
    return [
        # nulls have the value -1, so that the mapped numbers are the labels without a copy
        pa.array(labels, pa.int32(), mask=np.array([a.label is None for a in annotations], np.bool_)),
        _lists([a.boxes for a in annotations], _floats(4)),
        _lists([a.box_labels for a in annotations], _integers),
        _lists([a.landmarks for a in annotations], _floats(2)),
        _lists([a.polygons for a in annotations], _nested(2)),
        _lists([a.keypoints for a in annotations], _nested(3)),
        pa.array(box_fields, pa.string()),
        pa.array(extras, pa.string()),
        _lists([a.tags for a in annotations], _flags),
    ]


def texts_of(annotation: Annotation) -> Texts:
    """Return box fields and extras as ASCII JSON, with undecodable bytes of names as escaped surrogates.

    Raises:
        ValueError: JSON cannot hold a value, or `typed.read_json` would not read it.
    """
    return _text_of(annotation.box_fields), _text_of(annotation.extras)


def _text_of(fields: Mapping[str, Any]) -> str | None:
    if not fields:
        return None
    try:
        text = _encoded(dict(fields))
    except RecursionError:
        raise ValueError(f"its lists or objects are more than {MOST_DEEP} in each other") from None
    check_json(text, fields)
    return text


def coded(codes: Any, names: tuple[str, ...]) -> Any:
    """Return codes with their names, as the columns `dtype` and `encoding`."""
    return pa.DictionaryArray.from_arrays(pa.array(codes, pa.int8()), pa.array(names, pa.string()))


def _lists(rows: list[Any], values_of: Callable[[list[Any]], Any]) -> Any:
    """Return a list array with one row per item of `rows`, null if the item is None."""
    present = [row for row in rows if row is not None]
    lengths = [0 if row is None else len(row) for row in rows]
    offsets = pa.array(np.cumsum([0, *lengths], dtype=np.int32))
    absent = pa.array([row is None for row in rows], pa.bool_())
    return pa.ListArray.from_arrays(offsets, values_of(present), mask=absent)


def _integers(rows: list[Any]) -> Any:
    return pa.array(np.concatenate([np.zeros(0, np.int64), *(np.asarray(r, np.int64) for r in rows)]))


def _flags(rows: list[Any]) -> Any:
    return pa.array(np.concatenate([np.zeros(0, np.uint8), *(np.asarray(r, np.uint8) for r in rows)]))


def _floats(width: int) -> Callable[[list[Any]], Any]:
    def values(rows: list[Any]) -> Any:
        joined = np.concatenate([np.zeros((0, width), np.float32), *rows])
        return pa.FixedSizeListArray.from_arrays(pa.array(joined.ravel()), width)

    return values


def _nested(width: int) -> Callable[[list[Any]], Any]:
    def values(rows: list[Any]) -> Any:
        return _lists([item for row in rows for item in row], _floats(width))

    return values
