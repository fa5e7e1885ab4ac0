"""Decodes JPEGs with simplejpeg, strictly: it brings libjpeg-turbo 3, and is the fastest one measured."""

from __future__ import annotations

import numpy as np
import simplejpeg

from packer.images.formats.base import Header, bad
from packer.images.opencv import cv2
from packer.images.reduction import extents, reduction
from packer.types import Image


def decode(data: bytes | memoryview, header: Header, channels: int, factor: int) -> Image:
    """The stored (not yet upright) image, uint8 (height, width, channels), at 1/factor of its size."""
    space = "CMYK" if header.cmyk else "RGB" if channels == 3 else "GRAY"
    try:
        if factor == 1:
            image: Image = simplejpeg.decode_jpeg(data, space)
        else:
            rows, columns = extents(header.height, factor), extents(header.width, factor)
            image = simplejpeg.decode_jpeg(data, space, min_height=rows, min_width=columns, min_factor=factor)
    except ValueError as error:
        raise damaged(error) from None
    return _from_cmyk(image, channels) if header.cmyk else image


def decode_into(data: bytes | memoryview, row: Image) -> None:
    """Decode a JPEG right into `row`, uint8 (height, width, 3 or 1), C-contiguous: no other memory, no copy.

    For JPEGs that packer has encoded itself: upright, RGB or gray, of a size that is known. Raises BadImage
    where it is damaged or of another size.
    """
    try:
        image = simplejpeg.decode_jpeg(data, "RGB" if row.shape[2] == 3 else "GRAY", buffer=row)
    except ValueError as error:
        raise damaged(error) from None
    if image.shape != row.shape:
        raise bad(f"decodes to shape {image.shape}, the index says {row.shape}")


def decode_reduced(
    data: bytes | memoryview, size: tuple[int, int], channels: int, at_least: tuple[int, int]
) -> Image:
    """Decode a JPEG of packer's own making, (width, height) `size`, at 1/1 to 1/8 so that it covers `at_least`."""
    return decode(data, Header("jpeg", *size, channels, 8), channels, reduction(size, at_least))


def check(data: bytes, header: Header) -> None:
    """Raises BadImage unless the JPEG is whole, for decoders that do not say so; half the cost of decoding."""
    space = "CMYK" if header.cmyk else "GRAY"
    try:
        simplejpeg.decode_jpeg(data, space, min_height=1, min_width=1, min_factor=8)
    except ValueError as error:
        raise damaged(error) from None


def damaged(error: Exception) -> Exception:
    """The BadImage that a complaint of libjpeg becomes."""
    text = str(error).strip().rpartition("error string ")[2]  # jpeg4py puts more words before it
    what = "truncated" if "remature end" in text else "damaged"
    return bad(f"{what} JPEG ({text})", "copy it again from its origin")


def _from_cmyk(image: Image, channels: int) -> Image:
    """RGB or gray of inverted CMYK (255: no ink, as Adobe writes it): each colour times black, as Pillow."""
    colors = image[..., :3].astype(np.uint16) * image[..., 3:]
    rgb = ((colors + 127) // 255).astype(np.uint8)
    return cv2.cvtColor(rgb, cv2.COLOR_RGB2GRAY)[..., None] if channels == 1 else rgb
