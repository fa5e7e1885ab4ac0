"""Encodes pixels as the bytes of a record: raw for speed, jpeg for size, png or bmp for lossless files."""

from __future__ import annotations

from typing import Literal

import numpy as np
import simplejpeg

from packer.errors import BadImage
from packer.images.base import bad
from packer.images.opencv import cv2
from packer.model.annotation import Image

Encoding = Literal["raw", "jpeg", "png", "bmp"]
_JPEG_SIDE_MAX = 65500
_TO_OPENCV = {3: cv2.COLOR_RGB2BGR, 4: cv2.COLOR_RGBA2BGRA}


def encode(image: Image, encoding: Encoding, quality: int = 90) -> bytes:
    """Return the image as bytes: C-order pixels (raw), or a file in that format.

    Args:
        image: uint8 or uint16 (height, width, channels), gray, RGB or RGBA.
        encoding: The format.
        quality: 1..100, only for jpeg (4:2:0 chroma).

    Raises:
        BadImage: The format cannot hold it (16 bits or alpha in jpeg and bmp, gray + alpha in png).
    """
    if encoding == "raw":
        return image.tobytes()
    if encoding == "jpeg":
        return _jpeg(image, quality)
    channels = image.shape[2]
    if channels == 2:
        raise bad(f"{encoding} cannot hold gray with alpha here", "use --encode=raw or --mode=rgb")
    if encoding == "bmp" and image.dtype != np.uint8:
        raise bad("bmp cannot hold 16 bits a sample", "use --encode=raw or png, or --mode=rgb")
    if encoding == "bmp" and channels == 4:
        # OpenCV 4.11 writes a BMP that does not mark its alpha
        raise bad("bmp cannot hold alpha", "use --encode=raw or png, or --mode=rgb")
    stored = cv2.cvtColor(image, _TO_OPENCV[channels]) if channels > 1 else image
    done, data = cv2.imencode(f".{encoding}", stored)
    if not done:
        raise BadImage("", f"OpenCV cannot encode shape {image.shape} as {encoding}", "use --encode=raw")
    return bytes(data)


def _jpeg(image: Image, quality: int) -> bytes:
    height, width, channels = image.shape
    if image.dtype != np.uint8:
        raise bad("jpeg cannot hold 16 bits a sample", "use --encode=raw or png, or --mode=rgb")
    if channels not in (1, 3):
        raise bad("jpeg cannot hold alpha", "use --encode=raw or png, or --mode=rgb")
    if max(height, width) > _JPEG_SIDE_MAX:
        raise bad(f"jpeg cannot hold {width}x{height} pixels", "use --encode=raw or png, or --resize")
    pixels = np.ascontiguousarray(image)
    if channels == 1:
        return bytes(simplejpeg.encode_jpeg(pixels, quality, "GRAY", "Gray"))
    return bytes(simplejpeg.encode_jpeg(pixels, quality, "RGB", "420"))
