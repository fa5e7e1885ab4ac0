"""Reads a JPEG header: the markers up to the first scan (ITU-T T.81, annex B)."""

from __future__ import annotations

from packer.images.exif import orientation_of
from packer.images.formats.base import Header, bad, cut_short

SIGNATURE = b"\xff\xd8\xff"
_SEGMENTS_MAX = 4096
"""Real headers have about ten, with a large ICC profile 255; without a limit 64 MB of markers cost seconds."""
_FILL_MAX = 16
_SOF = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}  # those three are DHT, JPG, DAC
_DECODED_SOF = frozenset((0xC0, 0xC1, 0xC2, 0xC9, 0xCA))
_ARITHMETIC_SOF = 0xC9
_MANY_SCANS_SOF = frozenset((0xC2, 0xC9, 0xCA))
_NO_SEGMENT = frozenset((0x00, 0x01, *range(0xD0, 0xDA)))
_PIXELS_PER_BYTE_MAX = 512
"""A block of 64 pixels takes at least one bit of Huffman-coded data."""


def read(data: bytes, complete: bool, file_bytes: int) -> Header:
    """The header of JPEG bytes; `complete` says that they are the whole file, of `file_bytes` bytes (0: not known)."""
    end = len(data)
    at = 2
    orientation = 0
    frame: tuple[int, int] | None = None  # (marker, where its segment begins)
    for _ in range(_SEGMENTS_MAX):
        if at + 4 > end:
            raise cut_short("JPEG", complete)
        marker = data[at + 1]
        if data[at] != 0xFF:
            # libjpeg skips such bytes with a warning; what else is damaged in the file nobody knows
            raise bad("stray bytes between JPEG markers", "re-save it with an image editor")
        if marker == 0xFF:
            at = _after_fill(data, at)
            continue
        if marker in _NO_SEGMENT:
            raise bad(f"JPEG marker 0x{marker:02x} in the header")
        size = data[at + 2] << 8 | data[at + 3]
        if size < 2:
            raise bad(f"JPEG segment of {size} bytes")
        if marker == 0xDA:
            if frame is None:
                raise bad("JPEG scan before any frame header")
            return _header(data, frame, orientation or 1, complete, file_bytes)
        if marker in _SOF:
            if frame is not None:
                raise bad("JPEG with two frame headers")
            frame = marker, at + 4
        elif marker == 0xE1 and not orientation and data[at + 4 : at + 10] == b"Exif\0\0":
            if at + 2 + size > end:
                raise cut_short("JPEG", complete)
            orientation = orientation_of(data[at + 10 : at + 2 + size])
        at += 2 + size
    raise bad(f"more than {_SEGMENTS_MAX} segments in a JPEG header")


def _after_fill(data: bytes, at: int) -> int:
    """Where the marker stands that fill bytes (0xFF) precede."""
    start = at
    while data[at + 1 : at + 2] == b"\xff":
        at += 1
        if at - start > _FILL_MAX:
            raise bad("a run of fill bytes in a JPEG header")
    return at


def _header(data: bytes, frame: tuple[int, int], orientation: int, complete: bool, file_bytes: int) -> Header:
    marker, at = frame
    if at + 6 > len(data):
        raise cut_short("JPEG", complete)
    bit_depth = data[at]
    height = data[at + 1] << 8 | data[at + 2]
    width = data[at + 3] << 8 | data[at + 4]
    components = data[at + 5]
    if not width or not height:
        raise bad(f"JPEG of {width}x{height} pixels")
    obstacle = ""
    if marker not in _DECODED_SOF:
        obstacle = f"{'lossless' if marker & 3 == 3 else 'hierarchical'} JPEG (SOF{marker - 0xC0})"
    elif bit_depth != 8:
        obstacle = f"{bit_depth}-bit JPEG"
    elif components not in (1, 3, 4):
        obstacle = f"JPEG of {components} components"
    elif file_bytes and marker < _ARITHMETIC_SOF and width * height > _PIXELS_PER_BYTE_MAX * file_bytes:
        raise bad(f"JPEG declares {width}x{height} pixels in {file_bytes} bytes", "copy it again from its origin")
    return Header(
        "jpeg",
        width,
        height,
        components,
        bit_depth,
        orientation,
        cmyk=components == 4,
        many_scans=marker in _MANY_SCANS_SOF,
        obstacle=obstacle,
    )
