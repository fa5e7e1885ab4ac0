"""Masks: reads the ids of classes in mask files, and stores masks as bytes."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer.errors import BadImage, BadMask, plural, printable
from packer.images.header import DEFAULT_MAX_PIXELS, check_header, read_header
from packer.images.image_headers import PNG_SIGNATURE, Header, bad_image, pixel_chunks
from packer.images.opencv import cv2
from packer.images.pillow import decode_values
from packer.model.annotation import Mask

UNKNOWN = -1
LARGEST = 65535
SHOWN_VALUES = 3
HALF = 128
"""From here on, a gray level of a mask in black and white is white."""
NEARLY_GRAY = 32
"""How far the channels of a gray JPEG in three channels may be apart."""
ZSTD_LEVEL = 9
_STORED: dict[str, np.dtype[Any]] = {"uint8": np.dtype(np.uint8), "uint16": np.dtype("<u2")}


@dataclass(frozen=True)
class MaskValues:
    """What the values of mask files mean: each is a class, or of none, or unknown.

    Args:
        classes: Names of the classes, by their ids. Empty: each value is an id, whatever it is.
        ignore: The id of pixels that are of no class. None: all pixels are of a class.
        ids: (value of a file, its id); the value of a color is r << 16 | g << 8 | b. Empty: values are ids.
        in_colors: Whether `ids` are of colors.
        binary: The pictures are black and white, or have the values 0 and 1.
    """

    classes: tuple[str, ...] = ()
    ignore: int | None = None
    ids: tuple[tuple[int, int], ...] = ()
    in_colors: bool = False
    binary: bool = False

    @property
    def most(self) -> int:
        """The largest id that is known, or -1."""
        return max(len(self.classes) - 1, -1 if self.ignore is None else self.ignore)

    def of_file(self, ids: Sequence[int] | None) -> MaskValues:
        """Return what the values of a file mean whose colors have classes of their own (`PartFile.ids`)."""
        if ids is None:
            return self
        known = dict(self.ids)
        pairs = tuple((color, known.get(number, number)) for color, number in zip(ids[::2], ids[1::2], strict=True))
        return replace(self, ids=pairs, in_colors=True)

    def ids_of(self, values: Mask, dtype: str, lossy: bool = False) -> Mask:
        """Return the ids of the values of a file (`packer.images.pillow.decode_values`), which is `lossy` if a JPEG.

        Raises:
            BadMask: A value is unknown; the error says how many pixels have it.
        """
        if values.ndim == 3 and not self.in_colors:
            values = gray_of(values, NEARLY_GRAY if self.binary else 0)
        if values.ndim == 3 and not self.in_colors:
            problem = "is a picture in colors, and what they mean is not known"
            raise BadMask("", problem, "say what they mean with --mask-values=colors:FILE")
        if self.binary:
            return _foreground(values, lossy).astype(dtype)
        return self._of_colors(values, dtype) if self.in_colors else self._of_levels(values, dtype)

    def _of_levels(self, values: Mask, dtype: str) -> Mask:
        table = self._table
        highest = int(values.max(initial=0))
        if not self.ids and (highest < len(self.classes) or not self.classes) and highest <= np.iinfo(dtype).max:
            return values.astype(dtype, copy=False)
        known = self._known(dtype)
        if values.dtype == np.uint8 and dtype == "uint8" and cv2.LUT(values, known[:256].view(np.uint8)).all():
            return np.asarray(cv2.LUT(values, table[:256].astype(np.uint8)))
        if not (there := known[values]).all():
            raise self._unknown(values, there, str)
        return table.astype(dtype)[values]

    @lru_cache(maxsize=8)  # noqa: B019 - of a few values
    def _known(self, dtype: str) -> NDArray[np.bool_]:
        """Return which values have an id that a dtype holds."""
        known: NDArray[np.bool_] = (self._table >= 0) & (self._table <= np.iinfo(dtype).max)
        return known

    def _of_colors(self, values: Mask, dtype: str) -> Mask:
        colors, ids = self._colors
        if values.ndim == 2:
            values = np.repeat(values[..., None], 3, axis=2)
        codes = color_codes(values)
        places = np.minimum(np.searchsorted(colors, codes), len(colors) - 1)
        if not (there := colors[places] == codes).all():
            raise self._unknown(codes, there, lambda code: f"({code >> 16}, {code >> 8 & 255}, {code & 255})")
        return ids.astype(dtype)[places]

    @cached_property
    def _colors(self) -> tuple[NDArray[np.int32], NDArray[Any]]:
        colors, ids = zip(*sorted(self.ids), strict=True)
        return np.array(colors, np.int32), np.array(ids)

    @cached_property
    def _table(self) -> NDArray[np.int64]:
        """The id of each value, or UNKNOWN."""
        table = np.arange(LARGEST + 1)
        if self.ids:
            table[:] = UNKNOWN
            values, ids = zip(*self.ids, strict=True)
            table[[*values]] = ids
        elif self.classes:
            table[len(self.classes) :] = UNKNOWN
        if self.ignore is not None and table[self.ignore] == UNKNOWN:
            table[self.ignore] = self.ignore
        return table

    def _unknown(self, values: Mask, known: NDArray[np.bool_], name: Callable[[int], str]) -> BadMask:
        found, counts = np.unique(values[~known], return_counts=True)
        shown = [
            f"{name(int(value))} ({plural(int(count), 'pixel')})"
            for value, count in zip(found[:SHOWN_VALUES], counts, strict=False)
        ]
        more = f" and {len(found) - SHOWN_VALUES} more" if len(found) > SHOWN_VALUES else ""
        what = "color" if self.in_colors else "value"
        has = f"has the {what if len(found) == 1 else f'{what}s'} {', '.join(shown)}{more}"
        return BadMask("", f"{has}, which no class has", f"{self._allowed}; --mask-values says what they mean")

    @property
    def _allowed(self) -> str:
        if self.ids:
            return f"{plural(len(self.ids), 'value is', 'values are')} known"
        known = f"the classes are 0 ({printable(self.classes[0])}) to {len(self.classes) - 1}" if self.classes else ""
        also = "" if self.ignore is None else f", {self.ignore} is ignored"
        return f"{known or 'an id has at most 16 bits'}{also}"


def _foreground(values: Mask, lossy: bool) -> NDArray[np.bool_]:
    """Return the white pixels of a picture in black and white, or those that are 1 in one of 0 and 1.

    Raises:
        BadMask: None is as bright, though some are not black.
    """
    most = int(values.max(initial=0))
    white = HALF if most <= np.iinfo(np.uint8).max else HALF << 8
    if lossy or most in (0, 1) or most >= white:
        return values >= (white if lossy or most > 1 else 1)
    problem = f"is not black and white: its largest value is {most}"
    raise BadMask("", problem, "if its values are numbers of classes, --mask-values=ids reads it")


def gray_of(values: Mask, most: int = 0) -> Mask:
    """Return a picture in three channels as gray levels (height, width) if none are further apart than `most`."""
    if values.ndim == 3 and int(np.ptp(values, axis=2).max(initial=0)) <= most:
        return values[..., 1]
    return values


def color_codes(values: Mask) -> Mask:
    """Return the colors (height, width, 3) of a picture as numbers (height, width): r << 16 | g << 8 | b."""
    wide = np.int32 if values.dtype == np.uint8 else np.int64  # a level of 16 bits is not a color of 8
    return values.astype(wide) @ np.array([1 << 16, 1 << 8, 1], wide)


def read_mask_header(data: bytes, complete: bool, size: int, max_pixels: int = DEFAULT_MAX_PIXELS) -> Header:
    """Return the header of a mask file, of which `data` are the first bytes. Raise what `read_header` raises."""
    header = read_header(data, complete, size)
    check_header(header, max_pixels, "first")
    return header


def decode_mask(data: bytes, values: MaskValues, dtype: str, max_pixels: int = DEFAULT_MAX_PIXELS) -> Mask:
    """Return the ids in a mask file, uint8 or uint16 (height, width).

    Args:
        data: All bytes of the file.
        values: What its values mean.
        dtype: That of the ids.
        max_pixels: Larger masks are refused before they are decoded.

    Raises:
        BadImage: The file cannot be decoded.
        BadMask: It is a JPEG, or has a value that is unknown.
    """
    header = read_mask_header(data, True, len(data), max_pixels)
    if header.bit_depth > 8 and header.channels > 1:
        problem = (
            f"has {header.channels} channels of {header.bit_depth} bits, of which only the high halves can be read"
        )
        raise BadMask("", problem, "save ids of 16 bits as a picture in gray, and colors with 8 bits per channel")
    if header.format == "jpeg" and not values.binary:
        problem = "is a JPEG, which changes the values at the borders of areas"
        raise BadMask("", problem, "save masks as PNG; if this one is black and white, --mask-values=binary reads it")
    return values.ids_of(decode_values(data, header), dtype, header.format == "jpeg")


@cache
def codec() -> Any:
    """Return what compresses values of pixels."""
    return pa.Codec("zstd", compression_level=ZSTD_LEVEL)


def encode_mask(mask: Mask, encoding: str) -> bytes:
    """Return a mask as bytes in one of `packer.model.annotation.ENCODINGS`: raw, zstd or png."""
    if encoding == "png":
        done, file = cv2.imencode(".png", mask)
        if not done:
            raise BadImage("", f"OpenCV cannot encode a mask of shape {mask.shape} as PNG", "use --mask-encode=zstd")
        return bytes(file)
    data = mask.astype(mask.dtype.newbyteorder("<"), copy=False).tobytes()
    return data if encoding == "raw" else bytes(codec().compress(data))


@cache
def voc_palette() -> NDArray[np.uint8]:
    """Return the colors of the ids 0 to 255 in masks of Pascal VOC, (256, 3).

    The color of an id has its bits, three by three from the lowest, as the highest bits of red, green and blue
    (Everingham et al., VOC 2012 development kit, VOClabelcolormap.m).
    """
    ids = np.arange(256)
    colors = np.zeros((256, 3), np.uint8)
    for bit in range(8):
        for channel in range(3):
            colors[:, channel] |= ((ids >> (3 * bit + channel) & 1) << (7 - bit)).astype(np.uint8)
    return colors


def with_palette(mask: Mask, colors: NDArray[np.uint8], opacity: bytes | None = None) -> bytes:
    """Return a mask of up to 256 ids as a PNG with a palette: (n, 3) colors, and the opacity of each, 0 to 255."""
    from PIL import Image

    picture, file = Image.fromarray(mask), io.BytesIO()
    picture.putpalette(colors.ravel().tolist())
    picture.save(file, "PNG", **({} if opacity is None else {"transparency": opacity}))
    return file.getvalue()


def has_palette(data: bytes) -> bool:
    """Return whether a file is a PNG whose pixels are indices of a palette."""
    return data[:8] == PNG_SIGNATURE and data[25:26] == b"\3"


def stored_obstacle(data: bytes, header: Header) -> str:
    """Return why `decode_stored` cannot read a mask file of other tools as PNG: what it is; empty if it can."""
    if header.format != "png":
        return f"a {header.format.upper()} file"
    if header.orientation != 1:
        return "a turned picture"
    return "" if header.channels == 1 or has_palette(data) else "a picture in colors"


def _decode_png(data: bytes, shape: tuple[int, int]) -> Any:
    """Return the values in a PNG; None unless it is of this shape: memory is taken for the size that it says."""
    height, width = shape
    if data[12:24] != b"IHDR" + width.to_bytes(4, "big") + height.to_bytes(4, "big"):
        return None
    chunks = pixel_chunks(data)
    if has_palette(data) or data[24] < 8:  # OpenCV has colors for indices, and spreads few levels over 8 bits
        return decode_values(
            chunks, read_header(data)
        )  # which refuses bits that no PNG has: Pillow would take all memory
    return cv2.imdecode(np.frombuffer(chunks, np.uint8), cv2.IMREAD_UNCHANGED)


def decode_stored(data: bytes | memoryview, encoding: str, shape: tuple[int, int], dtype: str) -> Mask:
    """Return a mask (height, width) from what `encode_mask` made of it; a read-only view if it is raw.

    A PNG may be that of another tool: indices of a palette are ids, and levels of fewer bits are as they are.

    Raises:
        BadImage: It is not one of this shape.
    """
    kind = _STORED[dtype]
    try:
        if encoding == "png":
            found = _decode_png(bytes(data), shape)
            if found is None or found.shape != shape or found.dtype.itemsize > kind.itemsize:
                raise bad_image(f"is not a gray PNG of {shape[1]}x{shape[0]} pixels, {dtype}")
            return np.asarray(found.astype(kind, copy=False))
        if encoding == "zstd":
            data = codec().decompress(data, decompressed_size=shape[0] * shape[1] * kind.itemsize)
        values: Mask = np.frombuffer(data, kind).reshape(shape)
        return values
    except (OSError, ValueError, cv2.error) as error:  # of Arrow, numpy and OpenCV
        reason = str(error).strip().partition("\n")[0]
        raise bad_image(f"is not a mask of {shape[1]}x{shape[0]} pixels, {dtype}: {reason}") from None
