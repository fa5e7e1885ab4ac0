"""The columns of an index and their Arrow types, described in docs/formats.md."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import pyarrow as pa

from packer.model.fields import BY_NAME, FIELDS, FIRST_VERSION
from packer.model.parts import names_in

ENCODINGS = ("raw", "jpeg", "png", "bmp", "gif", "webp", "tiff", "avif", "jp2", "pnm")
FIRST_ENCODINGS = ENCODINGS[:7]
"""All names that an index lists if it needs no others, as those of earlier versions."""
DTYPES = ("uint8", "uint16")

_NAME = pa.dictionary(pa.int8(), pa.string())
_FACTS = (
    pa.field("key", pa.string(), nullable=False),
    pa.field("offset", pa.int64(), nullable=False),
    pa.field("size", pa.int64(), nullable=False),
    pa.field("crc32c", pa.uint32(), nullable=False),
    pa.field("height", pa.int32(), nullable=False),
    pa.field("width", pa.int32(), nullable=False),
    pa.field("channels", pa.int8(), nullable=False),
    pa.field("dtype", _NAME, nullable=False),
    pa.field("encoding", _NAME, nullable=False),
    pa.field("path", pa.binary(), nullable=False),
    pa.field("source_xxh3", pa.binary(16), nullable=False),
)


PARTS_SINCE = 4
"""The version of an index that knows parts of records."""
PART_COLUMNS = {"offset": pa.int64(), "size": pa.int64(), "crc32c": pa.uint32(), "encoding": _NAME}
"""The columns of each part: ``NAME_offset``, ... The size is -1 if a record lacks it."""


def schema_with(optional: Collection[str] = (), parts: Sequence[str] = ()) -> Any:
    """Return the schema of an index that has these optional fields and parts besides all others.

    Its version is that of the newest that it has, so that an index without new ones is as those of earlier versions.
    """
    fields = [field for field in FIELDS if not field.optional or field.name in optional]
    version = max(*(field.since for field in fields), PARTS_SINCE if parts else 0)
    columns = [*_FACTS, *(pa.field(field.name, field.kind.arrow) for field in fields)]
    columns += [pa.field(f"{name}_{of}", kind, nullable=False) for name in parts for of, kind in PART_COLUMNS.items()]
    return pa.schema(columns, metadata={"packer.index": str(version)})


def schema_of(names: Collection[str]) -> Any:
    """Return the schema of the index that has these columns."""
    return schema_with([n for n in names if n in BY_NAME and BY_NAME[n].since > FIRST_VERSION], names_in(names))


SCHEMA = schema_with()
"""A missing field is null; an empty list means "none in this image". A missing label is null with the value -1."""
FULL_SCHEMA = schema_with([field.name for field in FIELDS])
"""With the columns of all fields: of tables in memory and of inputs."""
