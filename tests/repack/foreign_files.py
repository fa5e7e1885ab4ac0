"""Files of other tools, written by independent plain writers, and what must be found in them."""

from __future__ import annotations

import io
import struct
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from crc32c import crc32c
from drawn import image_file

Members = Sequence[tuple[str, bytes]]


def write_tar(path: Path, members: Members, form: int = tarfile.USTAR_FORMAT, mtime: float = 0) -> Path:
    """A tar of regular files."""
    with tarfile.open(path, "w", format=form) as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size, info.mtime = len(data), mtime
            tar.addfile(info, io.BytesIO(data))
    return path


def samples(count: int, first: int = 0) -> list[tuple[str, bytes]]:
    """Members of samples with a JPEG and a class number."""
    return [
        member
        for i in range(first, first + count)
        for member in ((f"{i:06d}.jpg", image_file(i)), (f"{i:06d}.cls", b"%d" % (i % 3)))
    ]


def varint(number: int) -> bytes:
    number &= (1 << 64) - 1
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def field(number: int, data: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(data)) + data


def example(features: dict[str, Any]) -> bytes:
    """A serialized tf.train.Example: bytes, text, ints and floats, or lists of them."""
    entries = b""
    for name, value in features.items():
        values = value if isinstance(value, list) else [value]
        if values and isinstance(values[0], float):
            feature = field(2, field(1, np.array(values, "<f4").tobytes()))
        elif values and isinstance(values[0], int):
            feature = field(3, field(1, b"".join(map(varint, values))))
        else:
            texts = [v.encode() if isinstance(v, str) else v for v in values]
            feature = field(1, b"".join(field(1, text) for text in texts))
        entries += field(1, field(1, name.encode()) + field(2, feature))
    return field(1, entries)


def masked(data: bytes) -> bytes:
    crc = crc32c(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def frame(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return length + masked(length) + data + masked(data)


def write_tfrecord(path: Path, examples: Sequence[dict[str, Any]]) -> Path:
    path.write_bytes(b"".join(frame(example(one)) for one in examples))
    return path
