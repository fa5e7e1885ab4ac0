"""Decodes image bytes to upright pixels, wholly or not at all: a truncated or damaged image is an error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, get_args

import numpy as np

from packer.errors import UsageError
from packer.images import decode_jpeg4py, decode_opencv, decode_simplejpeg
from packer.images.formats.base import Header, bad
from packer.images.header import DEFAULT_MAX_PIXELS, Mode, check_header, decoded_shape, read_header
from packer.images.orient import orient
from packer.images.reduction import extents, reduction
from packer.types import Image

Decoder = Literal["auto", "simplejpeg", "opencv", "jpeg4py"]
DECODERS: tuple[str, ...] = get_args(Decoder)
_DTYPES = {"uint8": np.dtype(np.uint8), "uint16": np.dtype(np.uint16)}
_SCANS_MAX = 100
"""Encoders write about ten; a file of 38 kB can hold a thousand, each as slow as a decode of its own."""

_DecodeJpeg = Callable[[bytes, Header, int, int], Image]  # data, header, channels, factor
_JPEG: dict[str, _DecodeJpeg] = {
    "auto": decode_simplejpeg.decode,  # the fastest measured
    "simplejpeg": decode_simplejpeg.decode,
    "opencv": decode_opencv.decode_jpeg,
    "jpeg4py": decode_jpeg4py.decode,
}


def decode(
    data: bytes,
    mode: Mode = "rgb",
    decoder: Decoder = "auto",
    at_least: tuple[int, int] | None = None,
    max_pixels: int = DEFAULT_MAX_PIXELS,
    header: Header | None = None,
) -> Image:
    """The upright image in the file's bytes: (height, width, channels), C-contiguous.

    rgb: uint8, 3 channels. gray: uint8, 1 channel (of a JPEG, its luma as stored). unchanged: as stored,
    1 (gray), 2 (gray + alpha), 3 or 4 (RGBA) channels, uint16 where the file has 16 bits. In rgb and gray,
    16 bits become 8 by dropping the low byte, as OpenCV, libpng and Pillow do, and alpha is dropped: hidden
    colours appear. CMYK becomes RGB as Pillow does it, without a colour profile, in every mode.

    A JPEG that libjpeg warns of is refused (nothing says how much of it is wrong), also one that
    lacks only its last two bytes; bytes after the end of an image are nobody's and are ignored.

    Args: at_least, (width, height) in the upright frame: a JPEG may be decoded at 1/2, 1/4 or 1/8 if it
    still covers that; header, if the caller has read and checked it already.
    Raises: BadImage (not an image, truncated, damaged, too large, several frames), UsageError (jpeg4py's
    system library is missing).
    """
    if header is None:
        header = read_header(data)
        check_header(header, max_pixels)
    height, width, channels, dtype = decoded_shape(header, mode)
    factor = 1
    try:
        if header.format == "jpeg":
            if header.many_scans and data.count(b"\xff\xda") > _SCANS_MAX:
                raise bad(f"JPEG of more than {_SCANS_MAX} scans", "re-save it with an image editor")
            if at_least is not None:
                factor = reduction((width, height), at_least, header.orientation)
            image = _JPEG[decoder](data, header, channels, factor)
        else:
            image = decode_opencv.decode(data, header, mode)
    except MemoryError:
        raise bad(f"no memory to decode {header.width}x{header.height} pixels", "lower --workers") from None
    if header.orientation != 1:
        image = orient(image, header.orientation)
    if image.shape != (extents(height, factor), extents(width, factor), channels) or image.dtype != _DTYPES[dtype]:
        raise bad(f"decodes to shape {image.shape}, its header says {(height, width, channels)}")
    return image


def check_available(decoder: str) -> None:
    """Raises UsageError if that decoder does not exist or lacks its system library; call it before a build."""
    if decoder not in DECODERS:
        raise UsageError("--decoder", f"must be one of {', '.join(DECODERS)}, got {decoder!r}")
    if decoder == "jpeg4py":
        decode_jpeg4py.load()
