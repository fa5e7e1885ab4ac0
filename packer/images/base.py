"""The header of an image file, with the Exif and error helpers of all header readers."""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import TYPE_CHECKING, Literal, NamedTuple

from packer.errors import BadImage

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

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


def bad(problem: str, next_step: str = "replace it or remove it") -> BadImage:
    """Return a `BadImage` whose file name the caller fills in."""
    return BadImage("", problem, next_step)


def cut_short(format_name: str, complete: bool) -> Exception:
    """Return the error for data that end too early: the file is truncated, or only its first bytes were given."""
    if not complete:
        return IncompleteHeader()
    return bad(f"truncated {format_name} file", "copy it again from the original")
