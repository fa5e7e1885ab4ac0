"""The columns of an index and their Arrow types, described in docs/formats.md."""

from __future__ import annotations

import pyarrow as pa

ENCODINGS = ("raw", "jpeg", "png", "bmp", "gif", "webp", "tiff", "avif", "jp2", "pnm")
FIRST_ENCODINGS = ENCODINGS[:7]
"""All names that an index lists if it needs no others, as those of earlier versions."""
DTYPES = ("uint8", "uint16")

_NAME = pa.dictionary(pa.int8(), pa.string())
_BOX = pa.list_(pa.float32(), 4)
_XY = pa.list_(pa.float32(), 2)
_XYV = pa.list_(pa.float32(), 3)

SCHEMA = pa.schema(
    [
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
        pa.field("label", pa.int32()),
        pa.field("boxes", pa.list_(_BOX)),
        pa.field("box_labels", pa.list_(pa.int64())),
        pa.field("landmarks", pa.list_(_XY)),
        pa.field("polygons", pa.list_(pa.list_(_XY))),
        pa.field("keypoints", pa.list_(pa.list_(_XYV))),
        pa.field("box_fields", pa.string()),
        pa.field("extras", pa.string()),
    ],
    metadata={"packer.index": "2"},
)
"""A missing field is null; an empty list means "none in this image". A missing label is null with the value -1."""

TAGGED_SCHEMA = pa.schema([*SCHEMA, pa.field("tags", pa.list_(pa.uint8()))], metadata={"packer.index": "3"})
"""The columns if a record of the shard has tags; all other indexes are as those of earlier versions."""

ANNOTATION_FIELDS = tuple(TAGGED_SCHEMA.names[SCHEMA.get_field_index("label") :])
"""The columns that hold an annotation."""
