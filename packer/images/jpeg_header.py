"""Reads a JPEG header: the markers up to the first scan (ITU-T T.81, annex B).

The loop over its segments dominates planning: it runs ten million times for a million files.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple

from packer.images.base import Header, bad, cut_short, orientation_of

SIGNATURE = b"\xff\xd8\xff"
_SEGMENT = struct.Struct(">HH")  # marker, size of the rest including the two bytes of the size
_FRAME = struct.Struct(">BHHB")  # bits per sample, height, width, components
_SEGMENTS_MAX = 4096
"""Real headers have about ten, or 255 with a large ICC profile; without a limit 64 MB of markers take seconds."""
_FILL_MAX = 16
_SOS, _EXIF = 0xFFDA, 0xFFE1
_SOF = frozenset(range(0xFFC0, 0xFFD0)) - {0xFFC4, 0xFFC8, 0xFFCC}  # those three are DHT, JPG, DAC
_DECODED_SOF = frozenset((0xFFC0, 0xFFC1, 0xFFC2, 0xFFC9, 0xFFCA))
_ARITHMETIC_SOF = 0xFFC9
_MANY_SCANS_SOF = frozenset((0xFFC2, 0xFFC9, 0xFFCA))
_NO_SEGMENT = frozenset((0xFF00, 0xFF01, *range(0xFFD0, 0xFFDA)))
_SKIPPED = frozenset(range(0xFF02, 0xFFFF)) - _SOF - _NO_SEGMENT - {_SOS, _EXIF}
_PIXELS_PER_BYTE_MAX = 512
"""A block of 64 pixels takes at least one bit of Huffman-coded data."""


class _Layout(NamedTuple):
    """The segments of a header without Exif, which have the same sizes in all files of an encoder."""

    starts: list[int]
    """First byte of each segment."""
    unpack_from: Callable[..., tuple[Any, ...]]
    """Returns the first two bytes, and the marker and size of each segment."""
    segments: tuple[bytes, ...]
    """Its result for this layout; empty if the layout was seen only once."""
    stop: int
    frame_at: int


_LAST = [_Layout([], _SEGMENT.unpack_from, (), 1 << 62, 0)]
"""Layout of the last parsed header: in most datasets, the next one matches it in one comparison."""


def read(data: bytes, complete: bool, file_bytes: int) -> Header:
    """Return the header of JPEG bytes.

    Args:
        data: The file's bytes, or its first ones.
        complete: Whether they are the whole file.
        file_bytes: Size of the file, 0 if it is not known.

    Raises:
        BadImage: The header is damaged or truncated.
        IncompleteHeader: More bytes are needed.
    """
    last, starts = _LAST[0], []
    at, orientation, frame_at, unusual = 2, 0, 0, False
    unpack = _SEGMENT.unpack
    try:
        if len(data) >= last.stop and type(data) is bytes and last.unpack_from(data) == last.segments:
            return _header(data, last.frame_at, 1, file_bytes)
        for _ in range(_SEGMENTS_MAX):
            marker, size = unpack(data[at : at + 4])
            starts.append(at)
            if marker in _SKIPPED and size > 1:
                at += 2 + size
            elif marker == 0xFFFF:
                at, unusual = _after_fill(data, at), True
            elif marker < 0xFF00:
                # libjpeg skips such bytes with a warning, but other parts of the file may be damaged too
                raise bad("stray bytes between JPEG markers", "re-save it with an image editor")
            elif marker in _NO_SEGMENT:
                raise bad(f"JPEG marker 0x{marker & 0xFF:02x} in the header")
            elif size < 2:
                raise bad(f"JPEG segment of {size} bytes")
            elif marker == _SOS:
                if not frame_at:
                    raise bad("JPEG scan before any frame header")
                if not unusual:
                    _remember(data, starts, frame_at)
                return _header(data, frame_at, orientation or 1, file_bytes)
            else:
                if marker == _EXIF:
                    unusual = True
                    if not orientation and data[at + 4 : at + 10] == b"Exif\0\0":
                        if at + 2 + size > len(data):
                            raise cut_short("JPEG", complete)
                        orientation = orientation_of(data[at + 10 : at + 2 + size])
                elif frame_at:
                    raise bad("JPEG with two frame headers")
                else:
                    frame_at = at + 4
                at += 2 + size
    except struct.error:
        raise cut_short("JPEG", complete) from None
    raise bad(f"more than {_SEGMENTS_MAX} segments in a JPEG header")


def frame_like_last(data: memoryview) -> bytes | None:
    """Return what a file says of its frame, if its segments have the layout of the last header that was read.

    That is the last byte of the marker, the size of the segment, and what `_FRAME` unpacks. Equal frames of such files
    have equal headers, but for the number of pixels that their size allows: `least_bytes`.
    """
    last = _LAST[0]
    if len(data) < last.stop or last.unpack_from(data) != last.segments:
        return None
    return data[last.frame_at - 3 : last.frame_at + 6].tobytes()


def least_bytes(header: Header) -> int:
    """Return the size from which on a file may have this header, however it is compressed."""
    return -(-header.width * header.height // _PIXELS_PER_BYTE_MAX)


def _remember(data: bytes, starts: list[int], frame_at: int) -> None:
    """Remember the layout of a header. It is prepared only when seen again, which takes as long as parsing."""
    layout = _Layout(starts, _SEGMENT.unpack_from, (), 1 << 62, frame_at)
    if starts == _LAST[0].starts and type(data) is bytes:
        gaps = [after - start - 4 for start, after in pairwise(starts)]
        segments = struct.Struct("2s" + "".join(f"4s{gap}x" for gap in gaps) + "4s")
        layout = _Layout(starts, segments.unpack_from, segments.unpack_from(data), segments.size, frame_at)
    _LAST[0] = layout


def _after_fill(data: bytes, at: int) -> int:
    """Return the position of the marker after fill bytes (0xFF)."""
    start = at
    while data[at + 1 : at + 2] == b"\xff":
        at += 1
        if at - start > _FILL_MAX:
            raise bad("a run of fill bytes in a JPEG header")
    return at


def _header(data: bytes, at: int, orientation: int, file_bytes: int) -> Header:
    sof = 0xFF00 | data[at - 3]
    bit_depth, height, width, components = _FRAME.unpack(data[at : at + 6])
    if not width or not height:
        raise bad(f"JPEG of {width}x{height} pixels")
    obstacle = ""
    if sof not in _DECODED_SOF:
        obstacle = f"{'lossless' if sof & 3 == 3 else 'hierarchical'} JPEG (SOF{sof - 0xFFC0})"
    elif bit_depth != 8:
        obstacle = f"{bit_depth}-bit JPEG"
    elif components not in (1, 3, 4):
        obstacle = f"JPEG of {components} components"
    elif file_bytes and sof < _ARITHMETIC_SOF and width * height > _PIXELS_PER_BYTE_MAX * file_bytes:
        raise bad(f"JPEG declares {width}x{height} pixels in {file_bytes} bytes", "copy it again from the original")
    return Header(
        "jpeg", width, height, components, bit_depth, orientation, 1,
        components == 4, False, sof in _MANY_SCANS_SOF, obstacle,
    )  # fmt: skip
