"""Raw pixels as the bytes of a .npy file, which say their own shape and dtype."""

from __future__ import annotations

import io
import os
from functools import lru_cache

import numpy as np

from packer.types import Record

_LITTLE_ENDIAN = {"uint8": "|u1", "uint16": "<u2"}


@lru_cache(maxsize=256)
def npy_header(shape: tuple[int, int, int], dtype: str) -> bytes:
    """What stands before pixels of (height, width, channels), uint8 or little-endian uint16, in C order."""
    header = io.BytesIO()
    facts = {"descr": _LITTLE_ENDIAN[dtype], "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(header, facts)
    return header.getvalue()


def npy_payload_offset(start: bytes) -> int:
    """Where the pixels begin in a .npy file whose first HEADER_BYTES (or all) are `start`.

    Raises ValueError where it is not one of version 1.0, or one of Python objects.
    """
    # magic (6 bytes), version (2), length of the rest (2): only the header itself goes into the cache
    return _parsed_header_bytes(start[: 10 + int.from_bytes(start[8:10], "little")])


@lru_cache(maxsize=256)
def _parsed_header_bytes(header: bytes) -> int:
    stream = io.BytesIO(header)
    if np.lib.format.read_magic(stream) != (1, 0):
        raise ValueError("a .npy header of another version than 1.0")
    dtype = np.lib.format.read_array_header_1_0(stream)[2]
    if dtype.hasobject:
        raise ValueError("a .npy of Python objects, which packer never reads")
    return stream.tell()


HEADER_BYTES = 512
"""More than the header of any record takes."""

EXTENSIONS = {
    "raw": "npy",
    "jpeg": "jpg",
    "png": "png",
    "bmp": "bmp",
    "gif": "gif",
    "webp": "webp",
    "tiff": "tiff",
}
"""File extension of a record's image by its encoding."""


def image_file(record: Record) -> tuple[bytes, bytes]:
    """(header, data) of the record's image as a file; the header is empty where it is encoded."""
    if record.encoding != "raw":
        return b"", record.data
    check_raw_size(record)
    return npy_header(record.shape, record.dtype), record.data


def check_raw_size(record: Record) -> None:
    """Raises ValueError where raw data is not as long as its shape says."""
    expected = record.height * record.width * record.channels * np.dtype(record.dtype).itemsize
    if len(record.data) != expected:
        at = f"{os.fsdecode(record.path)!r}: raw data of {len(record.data)} bytes"
        raise ValueError(f"{at}; {record.shape} {record.dtype} needs {expected}")
