"""Decodes JPEGs with jpeg4py, which calls the system's libturbojpeg; loaded when first used."""

from __future__ import annotations

from typing import Any

import numpy as np

from packer.errors import UsageError
from packer.images import decode_simplejpeg
from packer.images.formats.base import Header
from packer.images.reduction import extents
from packer.types import Image

_GRAY, _RGB = 6, 0  # TJPF_GRAY, TJPF_RGB


def load() -> Any:
    """The module jpeg4py with its system library loaded; UsageError names what is missing."""
    try:
        import jpeg4py
        from jpeg4py import _cffi

        _cffi.initialize()
    except ImportError:
        raise UsageError("--decoder jpeg4py", "jpeg4py is not installed", "pip install jpeg4py") from None
    except OSError:
        raise UsageError(
            "--decoder jpeg4py",
            "the system library libturbojpeg is missing",
            "apt-get install libturbojpeg0, or choose --decoder auto",
        ) from None
    return jpeg4py


def decode(data: bytes, header: Header, channels: int, factor: int) -> Image:
    """The stored (not yet upright) image, uint8 (height, width, channels), at 1/factor of its size."""
    jpeg4py = load()
    if header.cmyk:
        return decode_simplejpeg.decode(data, header, channels, factor)  # jpeg4py knows no CMYK
    size = extents(header.height, factor), extents(header.width, factor)
    image: Image = np.empty((*size, 3) if channels == 3 else size, np.uint8)
    jpeg = jpeg4py.JPEG(np.frombuffer(data, np.uint8))
    try:
        jpeg.decode(image, _RGB if channels == 3 else _GRAY)
    except jpeg4py.JPEGRuntimeError as error:
        # jpeg4py puts the handle back for the next image, and libturbojpeg goes on in the middle of this
        # one ("Bogus DQT index"): after one damaged image it would refuse every good one.
        if jpeg.decompressor is not None:
            jpeg.decompressor.release()
            jpeg.decompressor = None
        raise decode_simplejpeg.damaged(error) from None
    return image.reshape(*size, channels)
