"""Raw pixels as a .npy file, which contains their shape and dtype."""

from __future__ import annotations

import io
import os
from functools import lru_cache

import numpy as np

from packer.model.annotation import Record

_NPY = b"\x93NUMPY"
_MAGIC = (_NPY, b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF8", b"II*\0", b"MM\0*", b"\0\0\0\x0cjP  ")
_LITTLE_ENDIAN = {"uint8": "|u1", "uint16": "<u2"}


@lru_cache(maxsize=256)
def npy_header(shape: tuple[int, int, int], dtype: str) -> bytes:
    """Return the header of pixels (height, width, channels), uint8 or little-endian uint16, in C order."""
    header = io.BytesIO()
    facts = {"descr": _LITTLE_ENDIAN[dtype], "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(header, facts)
    return header.getvalue()


def looks_like_image(start: bytes) -> bool:
    """Return whether data is an image or .npy file by its first bytes, for names without an extension."""
    if start.startswith(b"BM"):
        return start[6:10] == bytes(4)  # reserved, always zero: many texts begin with the same two letters
    return start.startswith(_MAGIC) or start[8:12] in (b"WEBP", b"avif", b"avis")


def npy_payload_offset(start: bytes) -> int:
    """Return where the image begins in a file: after the header of a .npy file, else 0.

    Args:
        start: The first HEADER_BYTES of the file, or all of it.

    Raises:
        ValueError: It is a .npy file with a version other than 1.0, or of Python objects.
    """
    if not start.startswith(_NPY):
        return 0
    # magic (6 bytes), version (2), length of the rest (2): only the header is cached
    return _parsed_header_bytes(start[: 10 + int.from_bytes(start[8:10], "little")])


@lru_cache(maxsize=256)
def _parsed_header_bytes(header: bytes) -> int:
    stream = io.BytesIO(header)
    if np.lib.format.read_magic(stream) != (1, 0):
        raise ValueError("a .npy header with a version other than 1.0")
    dtype = np.lib.format.read_array_header_1_0(stream)[2]
    if dtype.hasobject:
        raise ValueError("a .npy file of Python objects, which packer never reads")
    return stream.tell()


HEADER_BYTES = 512
"""Larger than the header of any record."""

EXTENSIONS = {
    "raw": "npy",
    "jpeg": "jpg",
    "png": "png",
    "bmp": "bmp",
    "gif": "gif",
    "webp": "webp",
    "tiff": "tiff",
    "avif": "avif",
    "jp2": "jp2",
    "pnm": "pnm",
}
"""File extension of a record's image by its encoding."""

IMAGE_EXTENSIONS = frozenset((*EXTENSIONS.values(), "jpeg", "tif", "j2k", "ppm", "pgm", "pbm"))
"""Including those of other tools, in lower case."""


def image_file(record: Record) -> tuple[bytes, bytes]:
    """Return (header, data) of the record's image as a file; the header is empty if it is encoded."""
    if record.encoding != "raw":
        return b"", record.data
    check_raw_size(record)
    return npy_header(record.shape, record.dtype), record.data


def check_raw_size(record: Record) -> None:
    """Raise ValueError if raw data is not as long as its shape says."""
    expected = record.height * record.width * record.channels * np.dtype(record.dtype).itemsize
    if len(record.data) != expected:
        at = f"{os.fsdecode(record.path)!r}: raw data of {len(record.data)} bytes"
        raise ValueError(f"{at}; {record.shape} {record.dtype} needs {expected}")
