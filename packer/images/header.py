"""Reads image headers, and rejects images that must not be decoded before anything is allocated.

JPEG and PNG have their own readers for speed and strictness. TIFF has one because Pillow reads every field of a
directory completely, however often it is repeated, and OpenCV needs a corrected copy. Pillow opens all others.
"""

from __future__ import annotations

import re

from packer.errors import BadImage, NotAnImage, SeveralFrames
from packer.images import image_headers, tiff_header
from packer.images.image_headers import Header, IncompleteHeader, Mode, OnAnimation, bad_image

__all__ = ["DEFAULT_MAX_PIXELS", "Header", "IncompleteHeader", "Mode", "check_header", "decoded_shape"]
__all__ += ["losses", "read_header", "read_header_leniently"]

DEFAULT_MAX_PIXELS = 64_000_000
_SNIFF_BYTES = 32
_PNM = re.compile(rb"P[1-6](\s+\d+\s+\d+\s|\s*#)").match


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
    if data[:3] == image_headers.JPEG_SIGNATURE:
        return image_headers.read_jpeg(data, complete, file_bytes or (len(data) if complete else 0))
    if data[:8] == image_headers.PNG_SIGNATURE:
        return image_headers.read_png(data, complete)
    if data[:4] in tiff_header.SIGNATURES:
        return tiff_header.read(data, complete)
    kind = _format_of(data)
    if (kind or len(data) < _SNIFF_BYTES) and not complete:
        raise IncompleteHeader  # the formats below need the whole file
    if kind:
        from packer.images import pillow

        return pillow.read(data, kind)
    raise NotAnImage("", f"not an image: {_looks_like(data)}", "remove it or convert it to JPEG or PNG")


def read_header_leniently(data: bytes) -> Header:
    """Return the header of a file that `read_header` may refuse, but Pillow opens; `data` are all its bytes.

    Raises:
        NotAnImage: The format is unknown.
        BadImage: Pillow does not open it either.
    """
    try:
        return read_header(data)
    except NotAnImage:
        raise
    except BadImage as strict:
        from packer.images import pillow

        signatures = {image_headers.JPEG_SIGNATURE: "jpeg", image_headers.PNG_SIGNATURE: "png"}
        kind = next((kind for start, kind in signatures.items() if data.startswith(start)), _format_of(data))
        if not kind:  # TIFF: Pillow needs as much of it
            raise
        try:
            return pillow.read(data, kind, lenient=True)
        except BadImage:
            raise strict from None


def _format_of(data: bytes) -> str:
    """Return the format that Pillow opens and whose files begin with these bytes, else ""."""
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "webp"
    if data[:6] in (b"GIF87a", b"GIF89a"):
        return "gif"
    if data[4:8] == b"ftyp" and {b"avif", b"avis"} & {data[at : at + 4] for at in (8, *range(16, data[3], 4))}:
        return "avif"
    if data[:12] == b"\0\0\0\x0cjP  \r\n\x87\n" or data[:4] == b"\xff\x4f\xff\x51":
        return "jp2"
    if data[:1] == b"P" and _PNM(data[:_SNIFF_BYTES]):
        return "pnm"
    # text may begin with BM, but has other bytes at the size of the header
    return "bmp" if data[:2] == b"BM" and (len(data) < 18 or data[15:18] == b"\0\0\0") else ""


def check_header(header: Header, max_pixels: int = DEFAULT_MAX_PIXELS, on_animation: OnAnimation = "fail") -> None:
    """Raise BadImage if packer does not decode the image: too many pixels, several frames, unusual variants.

    Args:
        header: The header.
        max_pixels: Maximum number of pixels.
        on_animation: first decodes the first of several frames or pages.
    """
    if header.width * header.height > max_pixels:
        pixels = f"{header.width}x{header.height} pixels"
        raise bad_image(f"{pixels} are more than {max_pixels}", "raise --max-pixels if this is intended")
    if header.frames > 1 and on_animation == "fail":
        kind = "several pages" if header.format == "tiff" else "an animation"
        raise SeveralFrames("", f"{header.format} with {kind}, not one image", "take the first: --on-animation=first")
    if header.obstacle:
        raise bad_image(f"cannot decode a {header.obstacle}", "convert it to PNG (of 8 bits, or 16)")


def decoded_shape(header: Header, mode: Mode) -> tuple[int, int, int, str]:
    """Return (height, width, channels, dtype) that `decode` gives for this header; dtype is uint8 or uint16."""
    width, height = header.upright_size
    if mode != "unchanged":
        return height, width, 1 if mode == "gray" else 3, "uint8"
    return height, width, 3 if header.cmyk else header.channels, "uint16" if header.bit_depth == 16 else "uint8"


def losses(header: Header, mode: Mode) -> tuple[str, ...]:
    """Return the losses of decoding in `mode`: "16 to 8 bits", "alpha dropped", "color dropped", ..."""
    lost = []
    if header.frames > 1:
        lost.append(
            "all pages but the first dropped" if header.format == "tiff" else "all frames but the first dropped"
        )
    if header.hidden_depth:
        lost.append("samples reduced to 8 bits")
    if header.bit_depth == 16 and mode != "unchanged":
        lost.append("16 to 8 bits")
    has_alpha = header.channels in (2, 4) and not header.cmyk
    if header.hidden_alpha or (has_alpha and mode != "unchanged"):
        lost.append("alpha dropped")
    if mode == "gray" and header.channels >= 3:
        lost.append("color dropped")
    elif header.cmyk or header.lab:
        lost.append("CMYK to RGB" if header.cmyk else "Lab to RGB")
    return tuple(lost)


def losses_named(header: Header, mode: Mode) -> list[str]:
    """Return the `losses` in `mode`, with the option that avoids those that another mode has not."""
    always = losses(header, "unchanged")
    return [what if what in always else f"{what} (--mode=unchanged keeps that)" for what in losses(header, mode)]


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
        b"version https://git-lfs": "a Git LFS pointer, not the file",
    }
    for prefix, words in known.items():
        if start.startswith(prefix):
            return words
    if data[4:8] == b"ftyp":
        return "a HEIC or video file, which packer does not read"
    if start[:2] in (b"p7", b"pf"):
        return "a PAM or PFM image, which packer does not read"
    return f"it begins with {data[:8]!r}"
