"""Decodes everything but JPEG (and JPEG on request) with OpenCV, from bytes and never through imread."""

from __future__ import annotations

import numpy as np

from packer.images import decode_simplejpeg
from packer.images.formats import png, tiff
from packer.images.formats.base import Header, bad
from packer.images.header import Mode
from packer.images.opencv import cv2
from packer.images.reduction import extents
from packer.types import Image

_AS_STORED = cv2.IMREAD_IGNORE_ORIENTATION  # else OpenCV turns some formats in some modes; orient does all
_FLAGS = {
    "rgb": cv2.IMREAD_COLOR | _AS_STORED,
    "gray": cv2.IMREAD_GRAYSCALE | _AS_STORED,
    "unchanged": cv2.IMREAD_UNCHANGED,  # never turns
}
_COLOUR_FLAGS = {
    1: cv2.IMREAD_COLOR,
    2: cv2.IMREAD_REDUCED_COLOR_2,
    4: cv2.IMREAD_REDUCED_COLOR_4,
    8: cv2.IMREAD_REDUCED_COLOR_8,
}
_GRAY_FLAGS = {
    1: cv2.IMREAD_GRAYSCALE,
    2: cv2.IMREAD_REDUCED_GRAYSCALE_2,
    4: cv2.IMREAD_REDUCED_GRAYSCALE_4,
    8: cv2.IMREAD_REDUCED_GRAYSCALE_8,
}

_GIF = (
    b"GIF89a\1\0\1\0\x80\0\0\0\0\0\xff\xff\xff"  # header, two colours
    b",\0\0\0\0\1\0\1\0\0\2\2D\1\0;"  # one pixel
)
"""The smallest whole GIF: OpenCV 4.11 is built without a decoder for it."""


def decode(data: bytes, header: Header, mode: Mode) -> Image:
    """The stored (not yet upright) image (height, width, channels) of any format but JPEG."""
    if header.format == "png":
        data = png.pixel_chunks(data)
    elif header.format == "tiff":
        data = tiff.plain(data)
    channels = {"rgb": 3, "gray": 1}.get(mode) or (3 if header.cmyk else header.channels)
    # libpng rounds gray otherwise than OpenCV: colour first, so that equal pixels of any format stay equal
    flags = _FLAGS["rgb" if mode == "gray" and header.channels >= 3 else mode]
    return _in_order(_imdecode(data, flags, header), channels)


def decode_jpeg(data: bytes, header: Header, channels: int, factor: int) -> Image:
    """The stored image of a JPEG, uint8 (height, width, channels), at 1/factor of its size.

    OpenCV tells neither warnings nor, in gray images, a missing end: so a quick strict decode goes first.
    """
    decode_simplejpeg.check(data, header)
    flags = (_COLOUR_FLAGS if channels == 3 else _GRAY_FLAGS)[factor]
    image = _in_order(_imdecode(data, flags | _AS_STORED, header), channels)
    size = extents(header.width, factor), extents(header.height, factor)
    if image.shape[1::-1] != size:
        raise bad(f"OpenCV decodes to {image.shape[1]}x{image.shape[0]} pixels, not {size[0]}x{size[1]}")
    return image


def _imdecode(data: bytes, flags: int, header: Header) -> Image:
    try:
        image: Image | None = cv2.imdecode(np.frombuffer(data, np.uint8), flags)
    except cv2.error as error:
        if error.code == cv2.Error.StsNoMem:
            raise MemoryError from None
        image = None
    if image is None:
        if header.format == "gif" and cv2.imdecode(np.frombuffer(_GIF, np.uint8), cv2.IMREAD_COLOR) is None:
            raise bad("this OpenCV reads no GIF", "upgrade opencv-python-headless, or convert it to PNG")
        raise bad(f"truncated or damaged {header.format} file", "copy it again from its origin")
    return image


def _in_order(image: Image, channels: int) -> Image:
    """OpenCV's gray, BGR or BGRA as (height, width, channels): gray, gray + alpha, RGB or RGBA."""
    image = image.reshape(*image.shape[:2], -1)
    have = image.shape[2]
    if have == channels == 1:
        return image
    if (have, channels) == (4, 2):
        return np.ascontiguousarray(image[..., [0, 3]])
    codes = {
        (1, 3): cv2.COLOR_GRAY2RGB,  # an all-gray palette
        (3, 1): cv2.COLOR_BGR2GRAY,
        (4, 1): cv2.COLOR_BGRA2GRAY,
        (3, 3): cv2.COLOR_BGR2RGB,
        (3, 4): cv2.COLOR_BGR2RGBA,
        (4, 3): cv2.COLOR_BGRA2RGB,
        (4, 4): cv2.COLOR_BGRA2RGBA,
    }
    if (have, channels) not in codes:
        raise bad(f"OpenCV decodes {have} channels where the header says {channels}")
    converted: Image = cv2.cvtColor(image, codes[have, channels])
    return converted.reshape(*image.shape[:2], channels)
