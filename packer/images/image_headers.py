"""The header of an image file: reads those of JPEG and PNG, with the Exif and error helpers of all header readers."""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import TYPE_CHECKING, Literal, NamedTuple

from packer.errors import BadImage

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
import zlib
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

Mode = Literal["rgb", "gray", "unchanged"]
OnAnimation = Literal["fail", "first"]
FORMATS = ("jpeg", "png", "bmp", "gif", "webp", "tiff", "avif", "jp2", "pnm")

ORIENTATION_TAG = 274
_SHORT = 3
_BYTE_ORDERS = {b"II*\0": "<", b"MM\0*": ">"}


class IncompleteHeader(Exception):  # not an error of the file: the caller reads more of it
    """The given bytes do not contain the whole header: read the whole file."""


class Header(NamedTuple):
    """The properties of an image file, read without decoding."""

    format: str
    """One of `FORMATS`."""
    width: int
    """Pixels, as stored, before the orientation is applied."""
    height: int
    """Pixels, as stored."""
    channels: int
    """Channels of the stored image, with a palette expanded: 1 gray, 2 gray + alpha, 3 RGB, 4 RGBA or (`cmyk`) CMYK."""
    bit_depth: int
    """Bits of one sample of one channel (of one palette index)."""
    orientation: int = 1
    """Exif orientation 1..8, which turns the stored image upright."""
    frames: int = 1
    """1, or at least 2 for an animation or several pages, which are not always counted; the first is decoded."""
    cmyk: bool = False
    """Stored as CMYK or YCCK."""
    hidden_alpha: bool = False
    """Whether it has transparency that the decoders ignore and `channels` does not include."""
    many_scans: bool = False
    """Whether it is a JPEG with a coding in which short scans can take long to decode (progressive, arithmetic)."""
    obstacle: str = ""
    """Why packer does not decode this variant of the format; empty if it does."""
    pillow: bool = False
    """Whether Pillow decodes it: OpenCV does not, or not with the right colors."""
    hidden_depth: bool = False
    """Whether its samples have more bits than `bit_depth`, which the decoder drops."""
    lab: bool = False
    """Stored as CIE L*a*b*."""

    @property
    def code(self) -> int:
        """A checked header without its size, as a number of 23 bits; see `from_code`. Of its frames it has 1 or 2."""
        flags = self.cmyk | self.hidden_alpha << 1 | self.many_scans << 2 | (self.frames > 1) << 3
        flags |= self.pillow << 4 | self.hidden_depth << 5 | self.lab << 6
        kind = self.orientation << 4 | self.channels << 8 | self.bit_depth << 11
        return FORMATS.index(self.format) | kind | flags << 16

    @staticmethod
    @lru_cache(maxsize=4096)
    def from_code(code: int, width: int, height: int) -> Header:
        """Return the header with this code and stored size."""
        cmyk, hidden_alpha, many_scans, several, pillow, hidden_depth, lab = (
            bool(code >> n & 1) for n in range(16, 23)
        )
        return Header(
            FORMATS[code & 15], width, height, code >> 8 & 7, code >> 11 & 31, code >> 4 & 15, 1 + several,
            cmyk, hidden_alpha, many_scans, "", pillow, hidden_depth, lab,
        )  # fmt: skip

    @property
    def upright_size(self) -> tuple[int, int]:
        """(width, height) of the image with its orientation applied."""
        return (self.height, self.width) if self.orientation >= 5 else (self.width, self.height)


def orientations(codes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the orientation in each `Header.code`."""
    return codes >> 4 & 15


def orientation_of(block: bytes) -> int:
    """Return the orientation (1..8) in an Exif block, with or without its ``Exif\\0\\0`` prefix; 1 if in doubt.

    Only the first directory is read, once and in order, so no chain of offsets can make it loop.
    """
    if block.startswith(b"Exif\0\0"):
        block = block[6:]
    order = _BYTE_ORDERS.get(block[:4])
    if order is None or len(block) < 14:
        return 1
    (start,) = struct.unpack_from(order + "I", block, 4)
    if start + 2 > len(block):
        return 1
    (count,) = struct.unpack_from(order + "H", block, start)
    first = start + 2
    for at in range(first, min(first + 12 * count, len(block) - 11), 12):
        tag, kind, number, value = struct.unpack_from(order + "HHIH", block, at)
        if tag == ORIENTATION_TAG:
            return value if kind == _SHORT and number == 1 and 1 <= value <= 8 else 1
    return 1


def bad_image(problem: str, next_step: str = "replace it or remove it") -> BadImage:
    """Return a `BadImage` whose file name the caller fills in."""
    return BadImage("", problem, next_step)


def cut_short(format_name: str, complete: bool) -> Exception:
    """Return the error for data that end too early: the file is truncated, or only its first bytes were given."""
    if not complete:
        return IncompleteHeader()
    return bad_image(f"truncated {format_name} file", "copy it again from the original")


JPEG_SIGNATURE = b"\xff\xd8\xff"
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


# Reads a JPEG header: the markers up to the first scan (ITU-T T.81, annex B).
#
# The loop over its segments dominates planning: it runs ten million times for a million files.


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


def read_jpeg(data: bytes, complete: bool, file_bytes: int) -> Header:
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
                raise bad_image("stray bytes between JPEG markers", "re-save it with an image editor")
            elif marker in _NO_SEGMENT:
                raise bad_image(f"JPEG marker 0x{marker & 0xFF:02x} in the header")
            elif size < 2:
                raise bad_image(f"JPEG segment of {size} bytes")
            elif marker == _SOS:
                if not frame_at:
                    raise bad_image("JPEG scan before any frame header")
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
                    raise bad_image("JPEG with two frame headers")
                else:
                    frame_at = at + 4
                at += 2 + size
    except struct.error:
        raise cut_short("JPEG", complete) from None
    raise bad_image(f"more than {_SEGMENTS_MAX} segments in a JPEG header")


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
            raise bad_image("a run of fill bytes in a JPEG header")
    return at


def _header(data: bytes, at: int, orientation: int, file_bytes: int) -> Header:
    sof = 0xFF00 | data[at - 3]
    bit_depth, height, width, components = _FRAME.unpack(data[at : at + 6])
    if not width or not height:
        raise bad_image(f"JPEG of {width}x{height} pixels")
    obstacle = ""
    if sof not in _DECODED_SOF:
        obstacle = f"{'lossless' if sof & 3 == 3 else 'hierarchical'} JPEG (SOF{sof - 0xFFC0})"
    elif bit_depth != 8:
        obstacle = f"{bit_depth}-bit JPEG"
    elif components not in (1, 3, 4):
        obstacle = f"JPEG of {components} components"
    elif file_bytes and sof < _ARITHMETIC_SOF and width * height > _PIXELS_PER_BYTE_MAX * file_bytes:
        raise bad_image(
            f"JPEG declares {width}x{height} pixels in {file_bytes} bytes", "copy it again from the original"
        )
    return Header(
        "jpeg", width, height, components, bit_depth, orientation, 1,
        components == 4, False, sof in _MANY_SCANS_SOF, obstacle,
    )  # fmt: skip


PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_CHUNK = struct.Struct(">I4s")  # length, type; then the data and their CRC-32
_IHDR = struct.Struct(">IIBBBBB")  # width, height, bit depth, color type, compression, filter, interlace
_CHUNKS_MAX = 1 << 17
_CHANNELS = {0: 1, 2: 3, 3: 3, 4: 2, 6: 4}
_BIT_DEPTHS = {0: (1, 2, 4, 8, 16), 2: (8, 16), 3: (1, 2, 4, 8), 4: (8, 16), 6: (8, 16)}
_PIXEL_CHUNKS = frozenset((b"IHDR", b"PLTE", b"tRNS", b"IDAT", b"IEND"))


def read_png(data: bytes, complete: bool) -> Header:
    """Return the header of PNG bytes; the whole file is needed, since an eXIf chunk may follow the pixels."""
    if len(data) < 33:
        raise cut_short("PNG", complete)
    if data[8:16] != b"\0\0\0\rIHDR":
        raise bad_image("PNG without a header chunk")
    width, height, bit_depth, color, compression, filtering, interlace = _IHDR.unpack(data[16:29])
    if bit_depth not in _BIT_DEPTHS.get(color, ()) or compression or filtering or interlace > 1:
        raise bad_image(f"PNG of color type {color} and bit depth {bit_depth}, which the format does not have")
    if not 0 < width < 1 << 31 or not 0 < height < 1 << 31:
        raise bad_image(f"PNG of {width}x{height} pixels")
    if zlib.crc32(data[12:29]) != int.from_bytes(data[29:33], "big"):
        raise bad_image("checksum of the PNG header is wrong")
    channels, orientation, frames, hidden_alpha = _CHANNELS[color], 1, 1, False
    palette = color != 3
    for kind, start, stop in _chunks(data, complete):
        if kind == b"PLTE":
            palette = True
        elif kind == b"IDAT" and not palette:
            raise bad_image("PNG without its palette")
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
    parts = [PNG_SIGNATURE]
    for kind, start, stop in _chunks(data, complete=True):
        if kind in _PIXEL_CHUNKS:
            view = memoryview(data)[start - 4 : stop]
            if zlib.crc32(view) != int.from_bytes(data[stop : stop + 4], "big"):
                raise bad_image(
                    f"checksum of a PNG chunk ({kind.decode()}) is wrong", "copy it again from the original"
                )
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
    raise bad_image(f"more than {_CHUNKS_MAX} chunks in a PNG file")
