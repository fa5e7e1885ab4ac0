"""Decodes JPEGs with simplejpeg (libjpeg-turbo 3, strict, the fastest measured) or jpeg4py, also at a fraction."""

from __future__ import annotations

from typing import Any

import numpy as np
import simplejpeg

from packer.errors import UsageError, option
from packer.images import pillow
from packer.images.decoders import import_jpeg4py
from packer.images.image_headers import Header, bad_image
from packer.images.opencv import cv2
from packer.model.annotation import Image

HEADROOM = 2
"""Minimum size of a scaled JPEG decode, relative to the result. libjpeg cuts frequencies off that area averaging
fades out: at 1 the result differs visibly (100 photos to 32..224 px: worst 27 dB, median 37), at 2 it does
not (worst 35 dB, median 45), and is nearly as fast (500x375 to 64 px: 1.4 times, not 1.5)."""
REDUCED_SIDE_MIN = 16
"""For smaller sides several of libjpeg's sixteen factors give the same size, so the one it uses is unknown."""
_REVERSES_X = frozenset((2, 3, 6, 7))
_REVERSES_Y = frozenset((3, 4, 7, 8))
_TURBO_GRAY, _TURBO_RGB = 6, 0  # TJPF_GRAY, TJPF_RGB


def extents(side: int, factor: int) -> int:
    """Return the pixels of a side decoded at 1/factor; libjpeg rounds up, so the last pixel may be partly outside."""
    return -(-side // factor)


def reduction(size: tuple[int, int], at_least: tuple[int, int], orientation: int = 1) -> int:
    """Return the largest factor, 1, 2, 4 or 8, by which an image may shrink and still cover `at_least`.

    libjpeg has fast paths only for these; factors such as 6/8 take longer than a full decode. If the
    orientation reverses an axis, its size must be a multiple of the factor, or libjpeg's partly filled last
    pixel would come first and shift all others.

    Args:
        size: (width, height) of the image, upright.
        at_least: Minimum (width, height) of the result, upright.
        orientation: Exif orientation of the file.
    """
    width, height = size
    if min(width, height) >= REDUCED_SIDE_MIN:
        for factor in (8, 4, 2):
            if width < factor * at_least[0] or height < factor * at_least[1]:
                continue
            if (orientation in _REVERSES_X and width % factor) or (orientation in _REVERSES_Y and height % factor):
                continue
            return factor
    return 1


def decode(data: bytes | memoryview, header: Header, channels: int, factor: int) -> Image:
    """Return the stored (not yet upright) image, uint8 (height, width, channels), at 1/factor of its size.

    Raises:
        BadImage: libjpeg raises an error or warns, which does not tell how much of the image is damaged.
    """
    space = "CMYK" if header.cmyk else "RGB" if channels == 3 else "GRAY"
    try:
        if factor == 1:
            image: Image = simplejpeg.decode_jpeg(data, space)
        else:
            rows, columns = extents(header.height, factor), extents(header.width, factor)
            image = simplejpeg.decode_jpeg(data, space, min_height=rows, min_width=columns, min_factor=factor)
    except ValueError as error:
        if is_unknown_sampling(error):
            return pillow.decode_jpeg(bytes(data), header, channels, factor)
        raise as_bad_image(error) from None
    return _from_cmyk(image, channels) if header.cmyk else image


def decode_leniently(data: bytes, header: Header, channels: int, factor: int) -> Image:
    """Return what libjpeg can decode of a damaged JPEG, as `decode` does; the rest is gray.

    Raises:
        BadImage: It cannot decode anything.
    """
    space = "CMYK" if header.cmyk else "RGB" if channels == 3 else "GRAY"
    rows, columns = extents(header.height, factor), extents(header.width, factor)
    limits = (0, 0, 1) if factor == 1 else (rows, columns, factor)
    try:
        image: Image = simplejpeg.decode_jpeg(data, space, False, False, *limits, None, False)
    except ValueError:
        return pillow.decode_jpeg(data, header, channels, factor, lenient=True)
    return _from_cmyk(image, channels) if header.cmyk else image


def is_known(data: bytes | memoryview) -> bool:
    """Return whether simplejpeg can decode a JPEG with this header."""
    try:
        simplejpeg.decode_jpeg_header(data)
    except ValueError:
        return False
    return True


def is_unknown_sampling(error: Exception) -> bool:
    """Return whether an error of simplejpeg means a sampling such as 4:1:0, which only libjpeg itself reads."""
    return "subsampling" in str(error)


def decode_into(data: bytes | memoryview, row: Image, factor: int = 1) -> None:
    """Decode a JPEG directly into `row`, uint8 (height, width, 3 or 1), C-contiguous, without a copy.

    Only for upright JPEGs, RGB or gray, of a known size. A JPEG of another size never writes beyond `row`.

    Args:
        data: The JPEG.
        row: An array of the size of the image at 1/factor.
        factor: 1, 2, 4 or 8.

    Raises:
        BadImage: The JPEG is damaged, or has another size.
    """
    space = "RGB" if row.shape[2] == 3 else "GRAY"
    try:
        if factor == 1:
            image = simplejpeg.decode_jpeg(data, space, buffer=row)
        else:
            rows, columns = row.shape[:2]
            image = simplejpeg.decode_jpeg(data, space, False, False, rows, columns, factor, row)
    except ValueError as error:
        raise as_bad_image(error) from None
    if image.shape != row.shape:
        raise bad_image(f"decodes to shape {image.shape}, but the index says {row.shape}")


def decode_rows(parts: list[memoryview], rows: list[Image]) -> int:
    """Decode each JPEG into its row as `decode_into` does, with little overhead per image.

    Returns:
        The number of decoded images: all, or those before the first that is damaged or has another size.
    """
    decode_one, done = simplejpeg.decode_jpeg, 0
    shape = rows[0].shape
    space = "RGB" if shape[2] == 3 else "GRAY"
    try:
        for data, row in zip(parts, rows, strict=True):
            if decode_one(data, space, False, False, 0, 0, 1, row).shape != shape:
                break
            done += 1
    except ValueError:
        pass
    return done


def check(data: bytes, header: Header) -> None:
    """Raise BadImage unless the JPEG is complete, for decoders that do not check; takes half the time of decoding."""
    space = "CMYK" if header.cmyk else "GRAY"
    try:
        simplejpeg.decode_jpeg(data, space, min_height=1, min_width=1, min_factor=8)
    except ValueError as error:
        if not is_unknown_sampling(error):
            raise as_bad_image(error) from None
        pillow.decode_jpeg(data, header, 3, 1)


def as_bad_image(error: Exception) -> Exception:
    """Convert an error of libjpeg to a BadImage."""
    text = str(error).strip().rpartition("error string ")[2]  # jpeg4py adds words before it
    what = "truncated" if "remature end" in text else "damaged"
    return bad_image(f"{what} JPEG ({text})", "copy it again from the original")


def load_jpeg4py() -> Any:
    """Return the module jpeg4py with its system library, libturbojpeg, loaded.

    Raises:
        UsageError: One of them is missing.
    """
    try:
        return import_jpeg4py()
    except ImportError:
        raise UsageError(option("decoder", "jpeg4py"), "jpeg4py is not installed", "pip install jpeg4py") from None
    except OSError:
        raise UsageError(
            option("decoder", "jpeg4py"),
            "the system library libturbojpeg is missing",
            "apt-get install libturbojpeg0, or choose --decoder=auto",
        ) from None


def decode_by_jpeg4py(data: bytes, header: Header, channels: int, factor: int) -> Image:
    """Return the same as `decode`, using the system's libturbojpeg.

    Raises:
        BadImage: The image is damaged.
        UsageError: jpeg4py or its library is missing.
    """
    jpeg4py = load_jpeg4py()
    if header.cmyk:
        return decode(data, header, channels, factor)  # jpeg4py does not support CMYK
    size = extents(header.height, factor), extents(header.width, factor)
    image: Image = np.empty((*size, 3) if channels == 3 else size, np.uint8)
    jpeg = jpeg4py.JPEG(np.frombuffer(data, np.uint8))
    try:
        jpeg.decode(image, _TURBO_RGB if channels == 3 else _TURBO_GRAY)
    except jpeg4py.JPEGRuntimeError as error:
        # jpeg4py reuses the handle for the next image, and libturbojpeg continues in the middle of this
        # one ("Bogus DQT index"): after one damaged image it would refuse every good one.
        if jpeg.decompressor is not None:
            jpeg.decompressor.release()
            jpeg.decompressor = None
        if is_unknown_sampling(error):
            return decode(data, header, channels, factor)
        raise as_bad_image(error) from None
    return image.reshape(*size, channels)


def _from_cmyk(image: Image, channels: int) -> Image:
    """Convert inverted CMYK (255: no ink, as Adobe writes it) to RGB or gray: each color times black, as in Pillow."""
    colors = image[..., :3].astype(np.uint16) * image[..., 3:]
    rgb = ((colors + 127) // 255).astype(np.uint8)
    return cv2.cvtColor(rgb, cv2.COLOR_RGB2GRAY)[..., None] if channels == 1 else rgb
