"""Reads a WebP header: VP8, VP8L or VP8X inside RIFF (RFC 9649)."""

from __future__ import annotations

import struct

from packer.images.exif import orientation_of
from packer.images.formats.base import Header, bad, cut_short

_CHUNK = struct.Struct("<4sI")
_CHUNKS_MAX = 1 << 16
_ANIMATED, _EXIF, _ALPHA = 0x02, 0x08, 0x10


def read(data: bytes, complete: bool) -> Header:
    """The header of WebP bytes; the whole file is needed where it announces Exif, which stands last."""
    if len(data) < 30:
        raise cut_short("WebP", complete)
    size = 8 + int.from_bytes(data[4:8], "little")
    if complete and size > len(data):
        raise cut_short("WebP", complete)
    kind = data[12:16]
    if kind == b"VP8X":
        flags = data[20]
        width, height = 1 + int.from_bytes(data[24:27], "little"), 1 + int.from_bytes(data[27:30], "little")
        orientation = _orientation(data, size, complete) if flags & _EXIF else 1
        channels = 4 if flags & _ALPHA else 3
        return Header("webp", width, height, channels, 8, orientation, 2 if flags & _ANIMATED else 1)
    if kind == b"VP8L":
        if data[20] != 0x2F:
            raise bad("damaged WebP header")
        bits = int.from_bytes(data[21:25], "little")
        return Header("webp", 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF), 4 if bits >> 28 & 1 else 3, 8)
    if kind == b"VP8 ":
        width, height = (v & 0x3FFF for v in struct.unpack("<HH", data[26:30]))
        if data[23:26] != b"\x9d\x01\x2a" or not width or not height:
            raise bad("damaged WebP header")
        return Header("webp", width, height, 3, 8)
    raise bad("WebP without an image")


def _orientation(data: bytes, size: int, complete: bool) -> int:
    at = 12
    for _ in range(_CHUNKS_MAX):
        if at + 8 > size:
            return 1  # announced, and not there
        if at + 8 > len(data):
            raise cut_short("WebP", complete)
        kind, length = _CHUNK.unpack(data[at : at + 8])
        if kind == b"EXIF":
            if at + 8 + length > len(data):
                raise cut_short("WebP", complete)
            return orientation_of(data[at + 8 : at + 8 + length])
        at += 8 + length + (length & 1)
    raise bad(f"more than {_CHUNKS_MAX} chunks in a WebP file")
