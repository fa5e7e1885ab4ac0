"""Decodes image bytes to upright pixels. A truncated or damaged image is an error."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, get_args

import numpy as np

from packer.errors import BadImage, UsageError, option
from packer.images import image_headers, jpeg, pillow, tiff_header
from packer.images.header import (
    DEFAULT_MAX_PIXELS,
    Mode,
    check_header,
    decoded_shape,
    read_header,
    read_header_leniently,
)
from packer.images.image_headers import Header, bad_image
from packer.images.jpeg import extents, reduction
from packer.images.opencv import cv2
from packer.model.annotation import Image

Decoder = Literal["auto", "fast", "simplejpeg", "opencv", "jpeg4py", "lenient"]
DECODERS: tuple[str, ...] = tuple(name for name in get_args(Decoder) if name != "fast")
"""Those of a build; a loader also has fast, which decodes parts."""
_DTYPES = {"uint8": np.dtype(np.uint8), "uint16": np.dtype(np.uint16)}
_SCANS_MAX = 100
"""Encoders write about ten, but a file of 38 kB can hold a thousand, each as slow as a whole decode."""

_AS_STORED = cv2.IMREAD_IGNORE_ORIENTATION  # otherwise OpenCV rotates some formats in some modes; `orient` handles all
_FLAGS = {
    "rgb": cv2.IMREAD_COLOR | _AS_STORED,
    "gray": cv2.IMREAD_GRAYSCALE | _AS_STORED,
    "unchanged": cv2.IMREAD_UNCHANGED,  # never turns
}
_COLOR_FLAGS = {
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
    b"GIF89a\1\0\1\0\x80\0\0\0\0\0\xff\xff\xff"  # header, two colors
    b",\0\0\0\0\1\0\1\0\0\2\2D\1\0;"  # one pixel
)
"""The smallest whole GIF: OpenCV 4.11 is built without a decoder for it."""

_TURNS = {3: cv2.ROTATE_180, 6: cv2.ROTATE_90_CLOCKWISE, 8: cv2.ROTATE_90_COUNTERCLOCKWISE}
_FLIPS = {2: 1, 4: 0}  # 1: left and right are swapped, 0: top and bottom


def decode(
    data: bytes,
    mode: Mode = "rgb",
    decoder: Decoder = "auto",
    at_least: tuple[int, int] | None = None,
    max_pixels: int = DEFAULT_MAX_PIXELS,
    header: Header | None = None,
) -> Image:
    """Return the upright image in the file's bytes: (height, width, channels), C-contiguous.

    rgb: uint8, 3 channels. gray: uint8, 1 channel (of a JPEG, its luma as stored). unchanged: as stored,
    1 (gray), 2 (gray + alpha), 3 or 4 (RGBA) channels, uint16 if the file has 16 bits. In rgb and gray,
    16 bits become 8 by dropping the low byte, as OpenCV, libpng and Pillow do, and alpha is dropped, which
    reveals hidden colors. CMYK becomes RGB as in Pillow, without a color profile, in every mode.

    A JPEG about which libjpeg warns is rejected, because the extent of the damage is unknown, even if only
    its last two bytes are missing. Bytes after the end of an image are ignored. Of an animation or several pages,
    the first is decoded.

    Args:
        data: All bytes of the file.
        mode: The channels and bits to decode to.
        decoder: JPEG decoder; lenient as `decode_leniently`.
        at_least: (width, height) in the upright frame: a JPEG may be decoded at 1/2, 1/4 or 1/8 if it still
            covers that.
        max_pixels: Larger images are rejected before they are decoded.
        header: The file's header, if the caller has read and checked it already.

    Raises:
        BadImage: The file is not an image, or is truncated, damaged or too large.
        UsageError: jpeg4py or its system library is missing.
    """
    if decoder == "lenient":
        return decode_leniently(data, mode, at_least, max_pixels, header)[0]
    if header is None:
        header = read_header(data)
        check_header(header, max_pixels, "first")
    height, width, channels, _ = decoded_shape(header, mode)
    factor = 1
    try:
        if header.format == "jpeg":
            if _too_many_scans(data, header):
                raise bad_image(f"JPEG of more than {_SCANS_MAX} scans", "re-save it with an image editor")
            if at_least is not None:
                factor = reduction((width, height), at_least, header.orientation)
            image = _JPEG_DECODERS[decoder](data, header, channels, factor)
        elif header.pillow:
            image = _in_mode(pillow.decode(data, header), mode)
        else:
            image = _by_opencv(data, header, mode)
    except MemoryError:
        raise bad_image(f"no memory to decode {header.width}x{header.height} pixels", "lower --workers") from None
    return _upright(image, header, mode, factor)


def decode_leniently(
    data: bytes,
    mode: Mode = "rgb",
    at_least: tuple[int, int] | None = None,
    max_pixels: int = DEFAULT_MAX_PIXELS,
    header: Header | None = None,
) -> tuple[Image, str]:
    """Return the image as `decode` does, also of a damaged file, and what is wrong with it ("" if nothing is).

    Of a damaged file it returns what Pillow does if it is told to load truncated images: the missing part is gray in
    a JPEG, else black. The arguments are those of `decode`.

    Raises:
        BadImage: Pillow cannot decode anything of it, or it is too large.
    """
    if header is None:
        header = read_header_leniently(data)
        check_header(header, max_pixels, "first")
    try:
        return decode(data, mode, "auto", at_least, max_pixels, read_header(data)), ""
    except BadImage as error:
        strict = error
    height, width, channels, _ = decoded_shape(header, mode)
    factor = 1
    try:
        if header.format != "jpeg":
            image = _in_mode(pillow.decode(data, header, lenient=True), mode)
        elif _too_many_scans(data, header):
            raise strict
        else:
            if at_least is not None:
                factor = reduction((width, height), at_least, header.orientation)
            image = jpeg.decode_leniently(data, header, channels, factor)
        return _upright(image, header, mode, factor), strict.problem
    except MemoryError:
        raise bad_image(f"no memory to decode {header.width}x{header.height} pixels", "lower --workers") from None
    except BadImage:
        raise strict from None


def _upright(image: Image, header: Header, mode: Mode, factor: int) -> Image:
    """Return a stored image upright. Raise BadImage if it has not the shape that the header says."""
    height, width, channels, dtype = decoded_shape(header, mode)
    if header.orientation != 1:
        image = orient(image, header.orientation)
    if image.shape != (extents(height, factor), extents(width, factor), channels) or image.dtype != _DTYPES[dtype]:
        raise bad_image(f"decodes to shape {image.shape}, but its header says {(height, width, channels)}")
    return image


def is_plain_jpeg(data: bytes, mode: Mode, shape: tuple[int, int, int]) -> bool:
    """Return whether `packer.images.jpeg.decode_into` gives what `decode` does, for an image of that shape.

    This makes all checks that `decode` makes before it decodes; decoding can still find damage.
    """
    try:
        header = read_header(data)
        check_header(header, shape[0] * shape[1])
    except BadImage:
        return False
    upright_jpeg = header.format == "jpeg" and header.orientation == 1 and not header.cmyk
    if not upright_jpeg or decoded_shape(header, mode) != (*shape, "uint8") or _too_many_scans(data, header):
        return False
    return jpeg.is_known(data)


def check_available(decoder: str, known: Sequence[str] = DECODERS) -> None:
    """Raise UsageError if the decoder does not exist or its library is missing; called before a build."""
    if decoder not in known:
        raise UsageError(option("decoder"), f"must be one of {', '.join(known)}, got {decoder!r}")
    if decoder == "jpeg4py":
        jpeg.load_jpeg4py()


def orient(image: Image, orientation: int) -> Image:
    """Return the upright image of a stored one, C-contiguous.

    Args:
        image: (height, width, channels), any dtype.
        orientation: Exif orientation 1..8; 1 is upright already.
    """
    if orientation == 1:
        return np.ascontiguousarray(image)
    if orientation in _TURNS:
        turned = cv2.rotate(image, _TURNS[orientation])  # ten times as fast as numpy's views and a copy
    elif orientation in _FLIPS:
        turned = cv2.flip(image, _FLIPS[orientation])
    elif orientation == 5:
        turned = cv2.transpose(image)
    elif orientation == 7:
        turned = cv2.rotate(cv2.transpose(image), cv2.ROTATE_180)
    else:
        raise ValueError(f"orientation must be 1..8, got {orientation}")
    return np.ascontiguousarray(turned.reshape(turned.shape[0], turned.shape[1], image.shape[2]))


def _too_many_scans(data: bytes, header: Header) -> bool:
    return header.many_scans and data.count(b"\xff\xda") > _SCANS_MAX


def _by_opencv(data: bytes, header: Header, mode: Mode) -> Image:
    """Return the stored (not yet upright) image (height, width, channels) of any format but JPEG."""
    if header.format == "png":
        data = image_headers.pixel_chunks(data)
    elif header.format == "tiff":
        data = tiff_header.plain(data)
    channels = {"rgb": 3, "gray": 1}.get(mode) or (3 if header.cmyk else header.channels)
    # libpng rounds gray differently from OpenCV: decode to color first, so that equal pixels of any format stay equal
    flags = _FLAGS["rgb" if mode == "gray" and header.channels >= 3 else mode]
    return _in_order(_imdecode(data, flags, header), channels)


def _in_mode(image: Image, mode: Mode) -> Image:
    """Return an image with the channels of its header, gray to RGBA, in that mode."""
    if mode == "unchanged":
        return image
    if image.dtype == np.uint16:
        image = (image >> 8).astype(np.uint8)
    colors = np.ascontiguousarray(image[..., : 1 if image.shape[2] < 3 else 3])
    have, want = colors.shape[2], 1 if mode == "gray" else 3
    if have == want:
        return colors
    converted: Image = cv2.cvtColor(colors, cv2.COLOR_RGB2GRAY if want == 1 else cv2.COLOR_GRAY2RGB)
    return converted.reshape(*image.shape[:2], want)


def _jpeg_by_opencv(data: bytes, header: Header, channels: int, factor: int) -> Image:
    """Return the stored image of a JPEG, uint8 (height, width, channels), at 1/factor of its size.

    OpenCV reports neither warnings nor, in gray images, a missing end, so a quick strict decode comes first.
    """
    jpeg.check(data, header)
    flags = (_COLOR_FLAGS if channels == 3 else _GRAY_FLAGS)[factor]
    image = _in_order(_imdecode(data, flags | _AS_STORED, header), channels)
    size = extents(header.width, factor), extents(header.height, factor)
    if image.shape[1::-1] != size:
        raise bad_image(f"OpenCV decodes to {image.shape[1]}x{image.shape[0]} pixels, not {size[0]}x{size[1]}")
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
            raise bad_image("this OpenCV reads no GIF", "upgrade opencv-python-headless, or convert it to PNG")
        raise bad_image(f"truncated or damaged {header.format} file", "copy it again from the original")
    return image


def _in_order(image: Image, channels: int) -> Image:
    """Return OpenCV's gray, BGR or BGRA as (height, width, channels): gray, gray + alpha, RGB or RGBA."""
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
        raise bad_image(f"OpenCV decodes {have} channels, but the header says {channels}")
    converted: Image = cv2.cvtColor(image, codes[have, channels])
    return converted.reshape(*image.shape[:2], channels)


_DecodeJpeg = Callable[[bytes, Header, int, int], Image]  # data, header, channels, factor
_JPEG_DECODERS: dict[str, _DecodeJpeg] = {
    "auto": jpeg.decode,  # the fastest measured
    "fast": jpeg.decode,  # of a whole image, it makes the same pixels
    "simplejpeg": jpeg.decode,
    "opencv": _jpeg_by_opencv,
    "jpeg4py": jpeg.decode_by_jpeg4py,
}
