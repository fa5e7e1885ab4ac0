"""Reads a TIFF header: the first directory of a TIFF or BigTIFF file (TIFF revision 6.0)."""

from __future__ import annotations

import struct

from packer.images.image_headers import ORIENTATION_TAG, Header, bad_image, cut_short

SIGNATURES = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
_WIDTH, _HEIGHT, _BITS, _PHOTOMETRIC, _SAMPLES, _EXTRA, _SAMPLE_FORMAT = 256, 257, 258, 262, 277, 338, 339
_PLANES, _COMPRESSION = 284, 259
_TAGS = frozenset((_WIDTH, _HEIGHT, _BITS, _PHOTOMETRIC, _SAMPLES, _PLANES, _EXTRA, _SAMPLE_FORMAT, ORIENTATION_TAG))
_TAGS |= {_COMPRESSION}
_VALUE_FORMATS = {1: "B", 3: "H", 4: "I", 16: "Q"}  # the TIFF types that these tags may have
_WHITE_IS_0, _BLACK_IS_0, _RGB, _PALETTE, _CMYK, _YCBCR, _LAB = 0, 1, 2, 3, 5, 6, 8
_Layouts = dict[int, tuple[tuple[int, int], ...]]
_DECODED: _Layouts = {
    _WHITE_IS_0: ((1, 1), (1, 8)),
    _BLACK_IS_0: ((1, 1), (1, 8), (1, 16), (2, 8)),
    _RGB: ((3, 8), (3, 16), (4, 8), (4, 16)),
    _PALETTE: ((1, 4), (1, 8)),
    _CMYK: ((4, 8),),
    _YCBCR: ((3, 8),),
}
"""Photometric interpretation -> (samples, bits) that OpenCV decodes correctly, as compared with Pillow."""
_BY_PILLOW: _Layouts = {
    _WHITE_IS_0: ((1, 2), (1, 4)),
    _BLACK_IS_0: ((1, 2), (1, 4)),
    _PALETTE: ((1, 1), (1, 2), (2, 8)),
    _CMYK: ((4, 16), (5, 8)),
    _LAB: ((3, 8),),
}
"""The same for Pillow, which also knows compressions that OpenCV does not."""
_PILLOW_COMPRESSIONS = (34925, 50000, 50001)  # LZMA, Zstandard, WebP
_UNASSOCIATED, _ASSOCIATED = 2, 1
_SEPARATE = 2

Fields = dict[int, tuple[int, str, tuple[int, ...]]]
"""tag -> (position of its first value in the file, the struct format of one value, its first values)."""


def read(data: bytes, complete: bool) -> Header:
    """Return the header of TIFF bytes; the whole file is needed if the directory is at its end."""
    fields, next_directory = _directory(data, complete)

    def first(tag: int, default: int) -> int:
        return fields[tag][2][0] if tag in fields else default

    width, height, samples = first(_WIDTH, 0), first(_HEIGHT, 0), first(_SAMPLES, 1)
    bits = fields[_BITS][2] if _BITS in fields else (1,)
    photometric = first(_PHOTOMETRIC, -1)
    if not width or not height:
        raise bad_image(f"TIFF of {width}x{height} pixels")
    orientation = first(ORIENTATION_TAG, 1)
    layout = photometric, samples, first(_PLANES, 1)
    with_alpha = layout[:2] == (_BLACK_IS_0, 2) and bits[0] == 8 and first(_EXTRA, 0) == _UNASSOCIATED
    known = _BY_PILLOW.get(photometric, ())
    deep = photometric == _CMYK and bits[0] == 16
    color = 1 if photometric in (_WHITE_IS_0, _BLACK_IS_0) else 3
    alpha = with_alpha or (samples == 4 and photometric == _RGB) or (samples == 2 and photometric == _PALETTE)
    return Header(
        "tiff",
        width,
        height,
        4 if photometric == _CMYK else color + alpha,
        8 if deep else bits[0],
        orientation if 1 <= orientation <= 8 else 1,
        2 if next_directory else 1,
        cmyk=photometric == _CMYK,
        hidden_alpha=samples == 2 and not alpha,  # OpenCV reads gray + alpha as gray
        obstacle=_obstacle(layout, bits, first(_SAMPLE_FORMAT, 1)),
        pillow=with_alpha or (samples, bits[0]) in known or first(_COMPRESSION, 1) in _PILLOW_COMPRESSIONS,
        hidden_depth=deep,
        lab=photometric == _LAB,
    )


def plain(data: bytes) -> bytes:
    """Return the TIFF with orientation 1 and its alpha declared as premultiplied.

    OpenCV always rotates TIFFs, and multiplies separate alpha into the colors. With these changes it returns
    the pixels as stored (premultiplied colors stay so).
    """
    return _with_values(data, ((ORIENTATION_TAG, 1), (_EXTRA, _ASSOCIATED)))


def without_orientation(data: bytes) -> bytes:
    """Return the TIFF with orientation 1."""
    return _with_values(data, ((ORIENTATION_TAG, 1),))


def _with_values(data: bytes, values: tuple[tuple[int, int], ...]) -> bytes:
    fields, _ = _directory(data, complete=True)
    out = bytearray(data)
    for tag, value in values:
        at, kind, before = fields.get(tag, (0, "", (value,)))
        if before[0] != value and (tag != _EXTRA or before[0] == _UNASSOCIATED):
            struct.pack_into(kind, out, at, value)
    return bytes(out)


def _obstacle(layout: tuple[int, int, int], bits: tuple[int, ...], sample_format: int) -> str:
    """Return why this TIFF is not decoded; `layout` is (photometric interpretation, samples, planar configuration)."""
    depth = bits[0]
    if sample_format != 1:
        return f"TIFF of {depth}-bit {'floating point' if sample_format == 3 else 'signed'} samples"
    photometric, samples, planes = layout
    known = _DECODED.get(photometric, ()) + _BY_PILLOW.get(photometric, ())
    if (samples, depth) not in known or len(set(bits)) > 1:
        return f"TIFF of photometric interpretation {photometric} with {samples} samples of {depth} bits"
    if planes == _SEPARATE and depth == 16 and samples > 1:
        return "TIFF of 16 bits with separate color planes"  # OpenCV silently mixes them up
    return ""


def _unpack(form: str, data: bytes, at: int) -> tuple[int, ...]:
    """Unpack a slice; `data` may be a file of which only this part is read."""
    return struct.unpack(form, data[at : at + struct.calcsize(form)])


def _directory(data: bytes, complete: bool) -> tuple[Fields, int]:
    """Return the fields of the first directory, and the offset of the next one (0 if there is none)."""
    order = ">" if data[:1] == b"M" else "<"
    big = data[2:4] in (b"+\0", b"\0+")
    offset, count_format, entry_bytes = ("Q", "Q", 20) if big else ("I", "H", 12)
    offset_bytes = struct.calcsize(offset)
    try:
        (start,) = _unpack(order + offset, data, 8 if big else 4)
        (count,) = _unpack(order + count_format, data, start)
        first = start + struct.calcsize(count_format)
        if first + count * entry_bytes > len(data):  # before the loop: a BigTIFF may claim 2**64 fields
            raise cut_short("TIFF", complete)
        fields: Fields = {}
        for at in range(first, first + count * entry_bytes, entry_bytes):
            tag, kind, number = _unpack(order + "HH" + offset, data, at)
            if tag not in _TAGS or kind not in _VALUE_FORMATS or not number:
                continue
            kind_format = _VALUE_FORMATS[kind]
            value_at = at + 4 + offset_bytes
            if number * struct.calcsize(kind_format) > offset_bytes:
                (value_at,) = _unpack(order + offset, data, value_at)
            values = _unpack(f"{order}{min(number, 4)}{kind_format}", data, value_at)
            fields[tag] = value_at, order + kind_format, values
        (next_directory,) = _unpack(order + offset, data, first + count * entry_bytes)
    except (struct.error, OverflowError) as error:
        raise cut_short("TIFF", complete) from error
    return fields, next_directory
