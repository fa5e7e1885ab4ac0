"""Reads what an image file says of itself, and refuses what must not be decoded, before anything is allocated."""

from __future__ import annotations

from typing import Literal

from packer.errors import NotAnImage
from packer.images.formats import bmp, gif, jpeg, png, tiff, webp
from packer.images.formats.base import Header, IncompleteHeader, bad

__all__ = ["DEFAULT_MAX_PIXELS", "Header", "IncompleteHeader", "Mode", "check_header", "decoded_shape"]
__all__ += ["losses", "read_header"]

Mode = Literal["rgb", "gray", "unchanged"]
DEFAULT_MAX_PIXELS = 64_000_000
_SNIFF_BYTES = 32


def read_header(data: bytes, complete: bool = True, file_bytes: int | None = None) -> Header:
    """The header of an image file, in microseconds, whatever the bytes are.

    Args: the file's bytes; complete=False where they are only its first ones, then `file_bytes` may be its size.
    Raises: NotAnImage (the bytes are of no known format), BadImage (a broken or truncated header),
    IncompleteHeader (complete=False, and more bytes are needed: call again with the whole file).
    """
    if data[:3] == jpeg.SIGNATURE:
        return jpeg.read(data, complete, file_bytes or (len(data) if complete else 0))
    if data[:8] == png.SIGNATURE:
        return png.read(data, complete)
    if data[:4] in tiff.SIGNATURES:
        return tiff.read(data, complete)
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return webp.read(data, complete)
    if data[:6] in gif.SIGNATURES:
        return gif.read(data, complete)
    if data[:2] == b"BM" and (len(data) < 18 or data[15:18] == b"\0\0\0"):  # else: text that begins with BM
        return bmp.read(data, complete)
    if len(data) < _SNIFF_BYTES and not complete:
        raise IncompleteHeader
    raise NotAnImage("", f"not an image: {_looks_like(data)}", "remove it or convert it to JPEG or PNG")


def check_header(header: Header, max_pixels: int = DEFAULT_MAX_PIXELS) -> None:
    """Raises BadImage for what packer does not decode: too many pixels, several frames, odd variants."""
    if header.width * header.height > max_pixels:
        pixels = f"{header.width}x{header.height} pixels"
        raise bad(f"{pixels} are more than {max_pixels}", "raise --max-pixels if it is meant to be so large")
    if header.frames > 1:
        kind = "several pages" if header.format == "tiff" else "an animation"
        raise bad(f"{header.format} with {kind}, not one image", "extract the frame that is meant")
    if header.obstacle:
        raise bad(f"cannot decode a {header.obstacle}", "convert it to an 8-bit JPEG or PNG")


def decoded_shape(header: Header, mode: Mode) -> tuple[int, int, int, str]:
    """(height, width, channels, dtype) that `decode` gives for this header; dtype is uint8 or uint16."""
    width, height = header.upright_size
    if mode != "unchanged":
        return height, width, 1 if mode == "gray" else 3, "uint8"
    return height, width, 3 if header.cmyk else header.channels, "uint16" if header.bit_depth == 16 else "uint8"


def losses(header: Header, mode: Mode) -> tuple[str, ...]:
    """What decoding in `mode` loses of this image: "16 to 8 bits", "alpha dropped", "colour dropped", ..."""
    lost = []
    if header.bit_depth == 16 and mode != "unchanged":
        lost.append("16 to 8 bits")
    has_alpha = header.channels in (2, 4) and not header.cmyk
    if header.hidden_alpha or (has_alpha and mode != "unchanged"):
        lost.append("alpha dropped")
    if mode == "gray" and header.channels >= 3:
        lost.append("colour dropped")
    elif header.cmyk:
        lost.append("CMYK to RGB")
    return tuple(lost)


def _looks_like(data: bytes) -> str:
    """What bytes that are no image seem to be, in words."""
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
        b"\x89png": "a PNG damaged on its way (line ends changed?)",
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
