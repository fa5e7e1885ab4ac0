"""Reads a GIF header, walking its blocks as far as the second image or the end (GIF89a)."""

from __future__ import annotations

from packer.images.formats.base import Header, bad, cut_short

SIGNATURES = (b"GIF87a", b"GIF89a")
_BLOCKS_MAX = 1 << 22


def read(data: bytes, complete: bool) -> Header:
    """The header of GIF bytes; the whole file is needed, since only its end says that it is one image."""
    if len(data) < 13:
        raise cut_short("GIF", complete)
    width, height = int.from_bytes(data[6:8], "little"), int.from_bytes(data[8:10], "little")
    if not width or not height:
        raise bad(f"GIF of {width}x{height} pixels")
    at = 13 + _table_bytes(data[10])
    frames, alpha = 0, False
    while True:
        if at >= len(data):
            raise cut_short("GIF", complete)
        kind = data[at]
        if kind == 0x3B:
            break
        if kind == 0x21:  # extension; 0xF9 is graphic control, whose first bit says transparency
            if not frames and data[at + 1 : at + 3] == b"\xf9\x04":
                alpha = bool(data[at + 3 : at + 4] and data[at + 3] & 1)
            at = _after_blocks(data, at + 2, complete)
        elif kind == 0x2C:  # image descriptor
            frames += 1
            if frames > 1:
                break
            if at + 10 > len(data):
                raise cut_short("GIF", complete)
            at = _after_blocks(data, at + 11 + _table_bytes(data[at + 9]), complete)
        else:
            raise bad(f"GIF block of unknown kind 0x{kind:02x}")
    if not frames:
        raise bad("GIF without an image")
    return Header("gif", width, height, 4 if alpha else 3, 8, 1, frames)


def _table_bytes(flags: int) -> int:
    """Size of the colour table that follows a descriptor with these flags."""
    return 3 << (flags & 7) + 1 if flags & 0x80 else 0


def _after_blocks(data: bytes, at: int, complete: bool) -> int:
    """Where a chain of sub-blocks (length, bytes; ended by length 0) ends."""
    end = len(data)
    for _ in range(_BLOCKS_MAX):
        if at >= end:
            raise cut_short("GIF", complete)
        if not data[at]:
            return at + 1
        at += 1 + data[at]
    raise bad("GIF of too many blocks")
