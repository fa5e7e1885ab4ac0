"""Reads a BMP header: BITMAPCOREHEADER, BITMAPINFOHEADER and its successors up to version 5."""

from __future__ import annotations

import struct

from packer.images.formats.base import Header, bad, cut_short

_CORE = struct.Struct("<HHHH")  # width, height, planes, bits per pixel
_INFO = struct.Struct("<iiHHIIiiI")  # width, height, planes, bits, compression, bytes, density x 2, colours
_RGB, _BITFIELDS = 0, 3
_MASKS_16 = ((0x7C00, 0x3E0, 0x1F), (0xF800, 0x7E0, 0x1F))
_MASKS_32 = ((0xFF0000, 0xFF00, 0xFF),)


def read(data: bytes, complete: bool) -> Header:
    """The header of BMP bytes, with the length of the pixels checked."""
    if len(data) < 26:
        raise cut_short("BMP", complete)
    pixels_at, header_bytes = struct.unpack_from("<II", data, 10)
    if len(data) < 14 + header_bytes and header_bytes <= 124:
        raise cut_short("BMP", complete)
    if header_bytes == 12:
        width, height, _, bits = _CORE.unpack_from(data, 18)
        compression, colors, entry_bytes = _RGB, 0, 3
    elif 40 <= header_bytes <= 124:
        width, height, _, bits, compression, _, _, _, colors = _INFO.unpack_from(data, 18)
        height, entry_bytes = abs(height), 4  # negative: rows from top to bottom
    else:
        raise bad(f"BMP with an unknown header of {header_bytes} bytes")
    if width <= 0 or not height:
        raise bad(f"BMP of {width}x{height} pixels")
    channels, obstacle = 3, ""
    if bits not in (1, 4, 8, 16, 24, 32) or compression not in (_RGB, _BITFIELDS):
        obstacle = f"BMP of {bits} bits with compression {compression}"
    elif bits <= 8:
        table_at = 14 + header_bytes
        count = min(colors or 1 << bits, 1 << bits)
        table = data[table_at : table_at + count * entry_bytes]
        if len(table) < count * entry_bytes:
            raise cut_short("BMP", complete)
        gray = table[0::entry_bytes] == table[1::entry_bytes] == table[2::entry_bytes]
        channels = 1 if gray else 3
    elif compression == _BITFIELDS:
        channels, obstacle = _bitfields(data, header_bytes, bits, complete)
    if complete and not obstacle and pixels_at + (width * bits + 31) // 32 * 4 * height > len(data):
        raise cut_short("BMP", complete)
    return Header("bmp", width, height, channels, min(bits, 8), obstacle=obstacle)


def _bitfields(data: bytes, header_bytes: int, bits: int, complete: bool) -> tuple[int, str]:
    """(channels, obstacle) of an image that says with masks where its colours lie in a pixel."""
    if len(data) < 70:
        raise cut_short("BMP", complete)
    masks = struct.unpack_from("<III", data, 54)
    if masks not in (_MASKS_16 if bits == 16 else _MASKS_32) or bits == 24:
        return 3, "BMP with unusual colour masks"  # OpenCV would read other colours without a word
    has_alpha = bits == 32 and header_bytes >= 56 and struct.unpack_from("<I", data, 66)[0] == 0xFF000000
    return 4 if has_alpha else 3, ""
