"""Reads image headers, and rejects images that must not be decoded before anything is allocated.

JPEG and PNG have their own readers for speed and strictness. TIFF has one because Pillow reads every field of a
directory completely, however often it is repeated, and OpenCV needs a corrected copy. Pillow opens BMP, GIF and WebP.
"""

from __future__ import annotations

import os
from typing import Any

from packer.errors import NotAnImage, PackerError
from packer.images import jpeg_header, png_header, tiff_header
from packer.images.base import Header, IncompleteHeader, Mode, bad, cut_short, orientation_of

__all__ = ["DEFAULT_MAX_PIXELS", "Header", "IncompleteHeader", "Mode", "check_header", "decoded_shape"]
__all__ += ["losses", "read_header"]

DEFAULT_MAX_PIXELS = 64_000_000
_SNIFF_BYTES = 32
_READS_MAX = 1 << 22
"""Limit because Pillow reads a GIF block by block, and blocks of a few bytes would take minutes."""
_BMP_RAW_MODES = {"BGR;15": 3, "BGR;16": 3, "BGR": 3, "BGRX": 3, "BGRA": 4}


def read_header(data: bytes, complete: bool = True, file_bytes: int | None = None) -> Header:
    """Return the header of an image file, within microseconds for any bytes.

    Args:
        data: The file's bytes, or its first ones.
        complete: Whether `data` is the whole file.
        file_bytes: Size of the file, if it is known and `complete` is false.

    Raises:
        NotAnImage: The format is unknown.
        BadImage: The header is damaged or truncated.
        IncompleteHeader: More bytes are needed: call again with the whole file.
    """
    if data[:3] == jpeg_header.SIGNATURE:
        return jpeg_header.read(data, complete, file_bytes or (len(data) if complete else 0))
    if data[:8] == png_header.SIGNATURE:
        return png_header.read(data, complete)
    if data[:4] in tiff_header.SIGNATURES:
        return tiff_header.read(data, complete)
    kind = _format_of(data)
    if (kind or len(data) < _SNIFF_BYTES) and not complete:
        raise IncompleteHeader  # the formats below need the whole file
    if kind:
        return _by_pillow(data, kind)
    raise NotAnImage("", f"not an image: {_looks_like(data)}", "remove it or convert it to JPEG or PNG")


def _format_of(data: bytes) -> str:
    """Return bmp, gif or webp if the bytes begin like such a file, else ""."""
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "webp"
    if data[:6] in (b"GIF87a", b"GIF89a"):
        return "gif"
    # text may begin with BM, but has other bytes at the size of the header
    return "bmp" if data[:2] == b"BM" and (len(data) < 18 or data[15:18] == b"\0\0\0") else ""


class _File:
    """Bytes as the file that Pillow reads; `data` may be a view of a file on the disk."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at, self._left = data, 0, _READS_MAX

    def read(self, size: int = -1) -> bytes:
        self._left -= 1
        if self._left < 0:
            raise bad("a file of too many blocks")
        start = self._at
        self._at = len(self._data) if size < 0 else min(start + size, len(self._data))
        return self._data[start : self._at]

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: len(self._data)}[whence]
        self._at = max(0, min(base + offset, len(self._data)))
        return self._at

    def tell(self) -> int:
        return self._at


def _by_pillow(data: bytes, kind: str) -> Header:
    """Return the header of a BMP, GIF or WebP file as Pillow opens it; no pixel is decoded.

    It calls the class of the format rather than `PIL.Image.open`, which warns about large images by a global limit.
    """
    from PIL import BmpImagePlugin, GifImagePlugin, WebPImagePlugin

    opener: Any = {
        "bmp": BmpImagePlugin.BmpImageFile,
        "gif": GifImagePlugin.GifImageFile,
        "webp": WebPImagePlugin.WebPImageFile,
    }[kind]
    try:
        image = opener(_File(data))
        width, height = image.size
        frames = 2 if getattr(image, "is_animated", False) else 1
    except PackerError:
        raise
    except Exception as error:  # damaged bytes may raise anything in Pillow
        reason = str(error).strip().partition("\n")[0]
        if reason.startswith("Unsupported"):
            raise bad(f"cannot decode this {kind} file: {reason}", "convert it to an 8-bit PNG") from None
        raise bad(f"truncated or damaged {kind} file" + (f" ({reason})" if reason else "")) from None
    if not width or not height:
        raise bad(f"{kind} of {width}x{height} pixels")
    if kind == "bmp":
        return _bmp(data, image)
    alpha = image.mode == "RGBA" if kind == "webp" else "transparency" in image.info
    orientation = orientation_of(image.info.get("exif", b"")) if kind == "webp" else 1
    return Header(kind, width, height, 4 if alpha else 3, 8, orientation, frames)


def _bmp(data: bytes, image: Any) -> Header:
    """Return the header of a BMP file opened by Pillow. Raise BadImage if pixels are missing."""
    width, height = image.size
    _, _, offset, (raw_mode, stride, *_) = image.tile[0]
    compression = image.info["compression"]
    channels, obstacle = _BMP_RAW_MODES.get(raw_mode, 0), ""
    if compression not in (0, 3):
        obstacle = f"BMP with compression {compression}"
    elif not channels and image.mode not in ("1", "L", "P"):
        obstacle = "BMP with unusual color masks"  # OpenCV would silently read wrong colors
    elif not channels:
        palette = image.palette.palette if image.mode == "P" else b""
        entry = 4 if image.palette and image.palette.rawmode == "BGRX" else 3
        gray = palette[0::entry] == palette[1::entry] == palette[2::entry]
        channels = 1 if gray else 3
    if not obstacle and offset + stride * height > len(data):
        raise cut_short("BMP", complete=True)
    return Header("bmp", width, height, channels or 3, 8, obstacle=obstacle)


def check_header(header: Header, max_pixels: int = DEFAULT_MAX_PIXELS) -> None:
    """Raise BadImage if packer does not decode the image: too many pixels, several frames, unusual variants."""
    if header.width * header.height > max_pixels:
        pixels = f"{header.width}x{header.height} pixels"
        raise bad(f"{pixels} are more than {max_pixels}", "raise --max-pixels if this is intended")
    if header.frames > 1:
        kind = "several pages" if header.format == "tiff" else "an animation"
        raise bad(f"{header.format} with {kind}, not one image", "extract the frame to use")
    if header.obstacle:
        raise bad(f"cannot decode a {header.obstacle}", "convert it to an 8-bit JPEG or PNG")


def decoded_shape(header: Header, mode: Mode) -> tuple[int, int, int, str]:
    """Return (height, width, channels, dtype) that `decode` gives for this header; dtype is uint8 or uint16."""
    width, height = header.upright_size
    if mode != "unchanged":
        return height, width, 1 if mode == "gray" else 3, "uint8"
    return height, width, 3 if header.cmyk else header.channels, "uint16" if header.bit_depth == 16 else "uint8"


def losses(header: Header, mode: Mode) -> tuple[str, ...]:
    """Return the losses of decoding in `mode`: "16 to 8 bits", "alpha dropped", "color dropped", ..."""
    lost = []
    if header.bit_depth == 16 and mode != "unchanged":
        lost.append("16 to 8 bits")
    has_alpha = header.channels in (2, 4) and not header.cmyk
    if header.hidden_alpha or (has_alpha and mode != "unchanged"):
        lost.append("alpha dropped")
    if mode == "gray" and header.channels >= 3:
        lost.append("color dropped")
    elif header.cmyk:
        lost.append("CMYK to RGB")
    return tuple(lost)


def _looks_like(data: bytes) -> str:
    """Describe the bytes of a file that is not an image."""
    if not data:
        return "the file is empty"
    if not data.strip(b"\0"):
        return "the file holds only zeros"
    start = data[:512].lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    known = {
        b"<!doctype html": "an HTML page",
        b"<html": "an HTML page",
        b"<svg": "an SVG drawing",
        b"<?xml": "an XML document",
        b"pk\x03\x04": "a zip archive",
        b"\x1f\x8b": "a gzip archive",
        b"%pdf": "a PDF document",
        b"\x89png": "a PNG damaged in transfer (line ends changed?)",
        b"\xff\xd8": "a damaged JPEG",
        b"\0\0\0\x0cjp": "a JPEG 2000 image, which packer does not read",
        b"version https://git-lfs": "a Git LFS pointer, not the file",
    }
    for prefix, words in known.items():
        if start.startswith(prefix):
            return words
    if data[4:8] == b"ftyp":
        return "a HEIC, AVIF or video file, which packer does not read"
    if data[:1] == b"P" and data[1:2] in b"123456" and data[2:3].isspace():
        return "a PNM image, which packer does not read"
    return f"it begins with {data[:8]!r}"
