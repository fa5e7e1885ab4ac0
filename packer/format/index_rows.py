"""Converts records, without the image bytes, to Arrow arrays: the rows of an index, a few thousand at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from packer.format.schema import DTYPES, ENCODINGS, FULL_SCHEMA
from packer.model.annotation import Annotation
from packer.model.fields import annotation_arrays, texts_of
from packer.model.parts import ENCODINGS as PART_ENCODINGS

LACKING = (-1, 0, 0)
"""Size, crc32c and encoding of a part that a record lacks."""


def rows_batch(rows: list[tuple[Any, ...]], annotations: list[Annotation]) -> Any:
    """Return rows as one record batch: FULL_SCHEMA without `offset`.

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
        *annotation_arrays(annotations, list(map(texts_of, annotations))),
    ]
    schema = FULL_SCHEMA.remove(FULL_SCHEMA.get_field_index("offset"))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def part_arrays(rows: Sequence[Mapping[str, tuple[int, int, int]]], names: Sequence[str]) -> dict[str, Any]:
    """Return the columns of parts but `offset`, by name; a row has size, checksum and code of the encoding of each."""
    columns: dict[str, Any] = {}
    for name in names:
        sizes, crcs, codes = zip(*(row.get(name, LACKING) for row in rows), strict=True) if rows else ((), (), ())
        columns[f"{name}_size"] = pa.array(sizes, pa.int64())
        columns[f"{name}_crc32c"] = pa.array(crcs, pa.uint32())
        columns[f"{name}_encoding"] = coded(codes, PART_ENCODINGS)
    return columns


def coded(codes: Any, names: tuple[str, ...]) -> Any:
    """Return codes with their names, as the columns `dtype` and `encoding`."""
    return pa.DictionaryArray.from_arrays(pa.array(codes, pa.int8()), pa.array(names, pa.string()))
