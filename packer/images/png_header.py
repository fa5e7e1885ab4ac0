"""Reads a PNG header, and reduces a PNG to the chunks that determine its pixels (W3C PNG, third edition)."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator

from packer.images.base import Header, bad, cut_short, orientation_of

SIGNATURE = b"\x89PNG\r\n\x1a\n"
_CHUNK = struct.Struct(">I4s")  # length, type; then the data and their CRC-32
_IHDR = struct.Struct(">IIBBBBB")  # width, height, bit depth, color type, compression, filter, interlace
_CHUNKS_MAX = 1 << 17
_CHANNELS = {0: 1, 2: 3, 3: 3, 4: 2, 6: 4}
_BIT_DEPTHS = {0: (1, 2, 4, 8, 16), 2: (8, 16), 3: (1, 2, 4, 8), 4: (8, 16), 6: (8, 16)}
_PIXEL_CHUNKS = frozenset((b"IHDR", b"PLTE", b"tRNS", b"IDAT", b"IEND"))


def read(data: bytes, complete: bool) -> Header:
    """Return the header of PNG bytes; the whole file is needed, since an eXIf chunk may follow the pixels."""
    if len(data) < 33:
        raise cut_short("PNG", complete)
    if data[8:16] != b"\0\0\0\rIHDR":
        raise bad("PNG without a header chunk")
    width, height, bit_depth, color, compression, filtering, interlace = _IHDR.unpack(data[16:29])
    if bit_depth not in _BIT_DEPTHS.get(color, ()) or compression or filtering or interlace > 1:
        raise bad(f"PNG of color type {color} and bit depth {bit_depth}, which the format does not have")
    if not 0 < width < 1 << 31 or not 0 < height < 1 << 31:
        raise bad(f"PNG of {width}x{height} pixels")
    if zlib.crc32(data[12:29]) != int.from_bytes(data[29:33], "big"):
        raise bad("checksum of the PNG header is wrong")
    channels, orientation, frames, hidden_alpha = _CHANNELS[color], 1, 1, False
    palette = color != 3
    for kind, start, stop in _chunks(data, complete):
        if kind == b"PLTE":
            palette = True
        elif kind == b"IDAT" and not palette:
            raise bad("PNG without its palette")
        elif kind == b"eXIf":
            orientation = orientation_of(data[start:stop])
        elif kind == b"acTL" and stop - start >= 4:
            frames = max(1, int.from_bytes(data[start : start + 4], "big"))
        elif kind == b"tRNS":
            hidden_alpha = color == 0  # OpenCV ignores tRNS in gray images
            channels = 4 if color in (2, 3) else channels
    return Header("png", width, height, channels, bit_depth, orientation, frames, hidden_alpha=hidden_alpha)


def pixel_chunks(data: bytes) -> bytes:
    """Return the PNG with only the chunks that determine its pixels, after verifying their checksums.

    Otherwise libpng would write a line to the terminal for every unusual ICC profile, histogram or damaged
    chunk, and see the orientation, which `orient` applies.
    """
    parts = [SIGNATURE]
    for kind, start, stop in _chunks(data, complete=True):
        if kind in _PIXEL_CHUNKS:
            view = memoryview(data)[start - 4 : stop]
            if zlib.crc32(view) != int.from_bytes(data[stop : stop + 4], "big"):
                raise bad(f"checksum of a PNG chunk ({kind.decode()}) is wrong", "copy it again from the original")
            parts.append(data[start - 8 : stop + 4])
    return b"".join(parts)


def _chunks(data: bytes, complete: bool) -> Iterator[tuple[bytes, int, int]]:
    """Yield (type, first byte, end) of each chunk's data, up to IEND; bytes after it are ignored."""
    at, end = 8, len(data)
    for _ in range(_CHUNKS_MAX):
        if at + 12 > end:
            raise cut_short("PNG", complete)
        length, kind = _CHUNK.unpack(data[at : at + 8])
        start, stop = at + 8, at + 8 + length
        if stop + 4 > end:
            raise cut_short("PNG", complete)
        yield kind, start, stop
        if kind == b"IEND":
            return
        at = stop + 4
    raise bad(f"more than {_CHUNKS_MAX} chunks in a PNG file")
