"""Reads with Pillow what OpenCV and simplejpeg are not meant for.

The class of the format is called rather than `PIL.Image.open`, whose limit of pixels and whose list of formats are
global; nothing of Pillow is set, so that threads may use it as they like.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np

from packer.errors import PackerError
from packer.images.image_headers import Header, bad_image, cut_short, orientation_of
from packer.model.annotation import Image

_CLASSES = {
    "jpeg": "JpegImagePlugin.JpegImageFile",
    "png": "PngImagePlugin.PngImageFile",
    "bmp": "BmpImagePlugin.BmpImageFile",
    "gif": "GifImagePlugin.GifImageFile",
    "webp": "WebPImagePlugin.WebPImageFile",
    "tiff": "TiffImagePlugin.TiffImageFile",
    "avif": "AvifImagePlugin.AvifImageFile",
    "jp2": "Jpeg2KImagePlugin.Jpeg2KImageFile",
    "pnm": "PpmImagePlugin.PpmImageFile",
}
_READS_MAX = 1 << 22
"""Limit because Pillow reads a GIF block by block, and blocks of a few bytes would take minutes."""
_BMP_RAW_MODES = {"BGR;15": 3, "BGR;16": 3, "BGR": 3, "BGRX": 3, "BGRA": 4}
_CHANNELS = {"1": 1, "L": 1, "I;16": 1, "I": 1, "LA": 2, "P": 3, "RGB": 3, "PA": 4, "RGBA": 4, "CMYK": 4}
_DEEP_MODES = ("I", "I;16", "I;16B")
_LEVEL_STEPS = {2: 85, 4: 17}
"""Bits of gray levels -> what Pillow multiplies them by."""
_HEAD_BYTES = 1 << 14
_START_OF_DATA = b"\xff\x93"
"""Of a JPEG 2000 file; OpenJPEG takes one that ends before it, as an image without data."""


class _BytesFile:
    """Bytes as the file that Pillow reads; `data` may be a view of a file on the disk."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at, self._left = data, 0, _READS_MAX

    def read(self, size: int = -1) -> bytes:
        self._left -= 1
        if self._left < 0:
            raise bad_image("a file of too many blocks")
        start = self._at
        self._at = len(self._data) if size < 0 else min(start + size, len(self._data))
        return self._data[start : self._at]

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: len(self._data)}[whence]
        self._at = max(0, min(base + offset, len(self._data)))
        return self._at

    def tell(self) -> int:
        return self._at


def _open_lazily(kind: str, file: Any) -> Any:
    """Return the image in a file of this format; its pixels are not decoded yet."""
    module, _, name = _CLASSES[kind].partition(".")
    try:
        return getattr(import_module(f"PIL.{module}"), name)(file)
    except (PackerError, MemoryError):
        raise
    except Exception as error:  # damaged bytes may raise anything in Pillow
        raise _refusal(kind, error) from None


def _refusal(kind: str, error: Exception) -> Exception:
    reason = str(error).strip().partition("\n")[0]
    if reason.startswith("Unsupported"):
        return bad_image(f"cannot decode this {kind} file: {reason}", "convert it to an 8-bit PNG")
    if "support not installed" in reason:
        return bad_image(f"this Pillow reads no {kind} files", "pip install --upgrade pillow")
    return bad_image(f"truncated or damaged {kind} file" + (f" ({reason})" if reason else ""))


def read(data: bytes, kind: str, lenient: bool = False) -> Header:
    """Return the header of a file of this format as Pillow opens it; no pixel is decoded.

    Args:
        data: All bytes of the file, or a view of it.
        kind: One of `FORMATS`, but tiff.
        lenient: Pixels may be missing.

    Raises:
        BadImage: The header is damaged or truncated.
    """
    image = _open_lazily(kind, _BytesFile(data))
    try:
        several = bool(getattr(image, "is_animated", False))
    except PackerError:
        raise
    except Exception as error:
        raise _refusal(kind, error) from None
    width, height = image.size
    if not width or not height:
        raise bad_image(f"{kind} of {width}x{height} pixels")
    if kind == "bmp":
        return _bmp(data, image, lenient)
    transparent, mode = "transparency" in image.info, image.mode
    deep = mode in _DEEP_MODES
    if deep:
        mode = "I;16"
    obstacle = "" if mode in _CHANNELS else f"{kind} of Pillow's mode {mode}"
    channels = _CHANNELS.get(mode, 3)
    if kind == "gif" or (transparent and mode in ("P", "RGB")):
        channels = 4 if transparent else 3
    header = Header(
        kind, width, height, channels, 16 if deep else 8, orientation_of(image.info.get("exif", b"")),
        2 if several else 1, mode == "CMYK", transparent and mode in ("1", "L"), kind == "jpeg", obstacle,
        several or kind not in ("gif", "webp"),
    )  # fmt: skip
    if kind == "pnm":
        return _pnm(data, image, header, lenient)
    return header._replace(hidden_depth=not deep and _is_deep(data[:_HEAD_BYTES], kind))


def _bmp(data: bytes, image: Any, lenient: bool) -> Header:
    """Return the header of a BMP file opened by Pillow. Raise BadImage if pixels are missing."""
    width, height = image.size
    decoder, _, offset, (raw_mode, stride, *_) = image.tile[0]
    channels = _BMP_RAW_MODES.get(raw_mode, 0)
    pillow = not channels
    # runs of pixels: the header has the size of their data
    pixel_bytes = stride * height if decoder == "raw" else int.from_bytes(data[34:38], "little")
    if not lenient and offset + pixel_bytes > len(data):
        raise cut_short("BMP", complete=True)
    if image.mode in ("1", "L", "P"):
        palette = image.palette.palette if image.mode == "P" else b""
        entry = 4 if image.palette and image.palette.rawmode == "BGRX" else 3
        gray = palette[0::entry] == palette[1::entry] == palette[2::entry]
        channels = 1 if gray else 3
        pillow = decoder != "raw" or entry == 3
    return Header("bmp", width, height, channels or _CHANNELS[image.mode], 8, pillow=pillow)


def _pnm(data: bytes, image: Any, header: Header, lenient: bool) -> Header:
    """Return the header of a PBM, PGM or PPM file. Raise BadImage if pixels are missing."""
    _, _, offset, args = image.tile[0]
    maximum = args[1] if isinstance(args, tuple) else 65535 if args == "I;16B" else 255
    if data[1:2] in b"456":
        bits = 1 if image.mode == "1" else 16 if maximum > 255 else 8
        channels = 3 if image.mode == "RGB" else 1
        if not lenient and offset + -(-header.width * channels * bits // 8) * header.height > len(data):
            raise cut_short("PNM", complete=True)
        return header._replace(bit_depth=max(8, bits))
    return header._replace(hidden_depth=image.mode == "RGB" and maximum > 255)


def _is_deep(head: bytes, kind: str) -> bool:
    """Return whether the first bytes of a file say that its samples have more than 8 bits."""
    if kind == "avif":
        at = head.find(b"av1C") + 6
        return at > 5 and bool(head[at : at + 1]) and bool(head[at] & 0x40)
    if kind == "jp2":
        codestream = head.startswith(b"\xff\x4f")
        at = 42 if codestream else head.find(b"ihdr") + 14
        return len(head) > at > 13 and 7 < head[at] & 0x7F < 127
    return False


def decode(data: bytes, header: Header, lenient: bool = False) -> Image:
    """Return the stored (not yet upright) image of the first frame.

    Args:
        data: All bytes of the file.
        header: Its header.
        lenient: Take what Pillow can decode of a damaged file; what is missing is black.

    Returns:
        (height, width, channels) with the channels of the header, but 3 for CMYK; uint16 if its bit depth is 16.

    Raises:
        BadImage: It is truncated or damaged, or nothing of it can be decoded.
    """
    if header.format == "pnm" and data[1:2] in b"56" and not lenient:
        return _samples(data, header)
    if header.format == "jp2" and _START_OF_DATA not in data and not lenient:
        raise cut_short("JPEG 2000", complete=True)
    if header.format == "tiff":
        from packer.images import tiff_header

        data = tiff_header.without_orientation(data)  # else Pillow would turn it
    image = _open_lazily(header.format, io.BytesIO(data))
    _load(image, header, lenient)
    try:
        return _as_header_says(_array(image), header)
    except (PackerError, MemoryError):
        raise
    except Exception as error:
        raise _refusal(header.format, error) from None


def decode_values(data: bytes, header: Header) -> Image:
    """Return the stored values of a picture whose pixels are numbers: indices of a palette, gray levels, or colors.

    Args:
        data: All bytes of the file.
        header: Its header.

    Returns:
        uint8 or uint16 (height, width), or uint8 (height, width, 3) for a picture in colors; alpha is dropped. Gray
        levels of 1, 2 and 4 bits are those of the file, from 0 to 1, 3 and 15.

    Raises:
        BadImage: It is truncated or damaged.
    """
    if header.format == "tiff":
        from packer.images import tiff_header

        data = tiff_header.without_orientation(data)
    image, values = _decode_as(_values, data, header)
    return values // _LEVEL_STEPS.get(_bits_of(image, header, data), 1) if image.mode in ("L", "LA") else values


def decode_shown(data: bytes, header: Header) -> Image:
    """Return which pixels of a picture are not 0 (height, width): by its alpha, or by its values if it has none.

    Raises:
        BadImage: It is truncated or damaged.
    """
    return _decode_as(_shown, data, header)[1]


def _shown(image: Any) -> Image:
    if image.mode in ("LA", "PA", "RGBA") or "transparency" in image.info:
        return np.asarray(image.convert("RGBA").getchannel("A"))
    values = _values(image)
    return values.max(axis=2) if values.ndim == 3 else values


def _decode_as(values: Callable[[Any], Image], data: bytes, header: Header) -> tuple[Any, Image]:
    """Return a decoded picture of Pillow, and what `values` makes of it."""
    image = _open_lazily(header.format, io.BytesIO(data))
    _load(image, header, lenient=False)
    try:
        return image, values(image)
    except (PackerError, MemoryError):
        raise
    except Exception as error:
        raise _refusal(header.format, error) from None


def _bits_of(image: Any, header: Header, data: bytes) -> int:
    """Return the bits of a level in a gray picture: Pillow spreads fewer than eight over eight."""
    if header.format == "tiff":
        return int(image.tag_v2.get(258, (8,))[0])
    return data[24] if header.format == "png" else 8


def _values(image: Any) -> Image:
    """Return the values of a decoded picture as `decode_values` does, but for levels of fewer than eight bits."""
    if image.mode in ("P", "PA"):
        return np.asarray(image.getchannel("P") if image.mode == "PA" else image)
    if image.mode == "1":
        return np.asarray(image).astype(np.uint8)
    if image.mode in _DEEP_MODES:
        return np.asarray(image).astype(np.uint16)
    if image.mode in ("La", "RGBa"):
        image = image.convert({"La": "LA", "RGBa": "RGBA"}[image.mode])
    return np.asarray(image.getchannel("L") if image.mode in ("L", "LA") else image.convert("RGB"))


def decode_jpeg(data: bytes, header: Header, channels: int, factor: int, lenient: bool = False) -> Image:
    """Return the stored image of a JPEG whose sampling libjpeg-turbo's own interface does not know, such as 4:1:0.

    Pillow notices if the file ends early, but not all damage within.

    Args:
        data: All bytes of the file.
        header: Its header.
        channels: 3 or 1 (the luma as stored).
        factor: 1, 2, 4 or 8: the image is decoded at 1/factor.
        lenient: Take what Pillow can decode of a damaged file.
    """
    image = _open_lazily("jpeg", io.BytesIO(data + b"\xff\xd9" if lenient else data))
    image.draft("L" if channels == 1 and not header.cmyk else None, (header.width // factor, header.height // factor))
    _load(image, header, lenient)
    return np.asarray(image.convert("L" if channels == 1 else "RGB")).reshape(image.height, image.width, channels)


def _load(image: Any, header: Header, lenient: bool) -> None:
    """Decode the pixels of an opened image."""
    if header.format == "tiff":
        if image.size != (header.width, header.height):  # Pillow takes the memory of the size that it sees
            other = f"{image.width}x{image.height}"
            raise bad_image(f"is {header.width}x{header.height} pixels by one tag of TIFF, {other} by another")
        core: Any = import_module("PIL.Image").core
        image.im = core.new(image.mode, image.size)  # else Pillow would check its global limit of pixels
    if header.format == "png" and image.size != (header.width, header.height):
        raise bad_image("has several headers, of other sizes")  # Pillow takes memory for the last one
    try:
        image.load()
    except MemoryError:
        raise
    except Exception as error:
        partial = lenient and isinstance(error, OSError) and image._im is not None
        image.tile = []  # do not try again
        if not partial or getattr(image, "use_load_libtiff", False) or image.getbbox(alpha_only=False) is None:
            raise _refusal(header.format, error) from None


def _array(image: Any) -> Image:
    """Return the pixels of a decoded image as (height, width, channels): gray, gray + alpha, RGB or RGBA."""
    if image.mode in _DEEP_MODES:
        pixels = np.asarray(image).astype(np.uint16)
    elif image.mode in ("P", "RGB") and "transparency" in image.info:
        pixels = np.asarray(image.convert("RGBA"))
    else:
        mode = {"1": "L", "P": "RGB", "PA": "RGBA", "La": "LA", "RGBa": "RGBA"}.get(image.mode, image.mode)
        pixels = np.asarray(image.convert(mode if mode in ("L", "LA", "RGB", "RGBA") else "RGB"))
    return pixels.reshape(image.height, image.width, -1)


def _as_header_says(pixels: Image, header: Header) -> Image:
    """Return the pixels with the channels and bits that the header says."""
    channels = 3 if header.cmyk else header.channels
    if header.bit_depth == 16 and pixels.dtype == np.uint8:
        pixels = pixels.astype(np.uint16) * 257
    have = pixels.shape[2]
    colors = pixels[..., : 1 if channels < 3 or have < 3 else 3]
    if channels >= 3 > have:
        colors = np.repeat(colors, 3, axis=2)
    if channels in (2, 4):
        opaque = np.full_like(pixels[..., :1], np.iinfo(pixels.dtype).max)
        colors = np.dstack([colors, pixels[..., -1:] if have in (2, 4) else opaque])
    return np.ascontiguousarray(colors)


def _samples(data: bytes, header: Header) -> Image:
    """Return the pixels of a binary PGM or PPM file, scaled to the whole range of 8 or 16 bits.

    Pillow reads colors with 8 bits only, and scales with a loop in Python.
    """
    _, _, offset, args = _open_lazily("pnm", io.BytesIO(data)).tile[0]
    maximum = args[1] if isinstance(args, tuple) else 65535 if args == "I;16B" else 255
    deep = maximum > 255
    shape = (header.height, header.width, header.channels)
    pixels = np.frombuffer(data, ">u2" if deep else np.uint8, int(np.prod(shape)), offset).reshape(shape)
    highest = 65535 if deep else 255
    if maximum != highest:
        pixels = (np.minimum(pixels, maximum).astype(np.uint32) * highest + maximum // 2) // maximum
    return pixels.astype(np.uint16 if deep else np.uint8)
