"""Creates the pictures for the browser: small, 8 bits, RGB or gray, PNG or JPEG. The latest are cached."""

from __future__ import annotations

import base64
import os
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import Lock
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_128_digest

from packer.errors import AnyPath, DamagedPack, PackerError, UsageError, option, printable
from packer.format.pack import Pack
from packer.images.decode import decode, decode_leniently
from packer.images.header import DEFAULT_MAX_PIXELS, Mode, check_header, read_header
from packer.images.image_headers import Header
from packer.images.masks import with_palette
from packer.images.opencv import cv2, quiet_opencv
from packer.images.resize import TargetSize, encode
from packer.model.annotation import Image, Mask, MaskFacts
from packer.model.geometry import Geometry, is_known
from packer.sources.places import SourceFile
from packer.stats.plots import color_of
from packer.stores import is_url
from packer.view.windows import INNER, ValueWindow

LARGEST_SIDE = 2048
_SHARP_PIXELS = 64 * 64
"""Images of up to this number of pixels become PNG, because JPEG would blur tiny images."""
EXACT_PIXELS = 1 << 20
"""As _SHARP_PIXELS, for a picture that is looked at closely."""
_GROUND = 160
"""Gray value behind transparent images."""
_CACHED_BYTES = 32 << 20


class Pictures:
    """Pictures of the records of a pack. Threads may share it."""

    def __init__(self, pack: Pack) -> None:
        self._pack = pack
        self._cached: OrderedDict[tuple[int, int, ValueWindow], str] = OrderedDict()
        self._bytes = 0
        self._whole: tuple[int, Image] = (-1, np.empty(0))
        self._lock = Lock()

    def uri(self, record: int, side: int, window: ValueWindow = INNER) -> str:
        """Return a data: URI of a record, its longer side at most `side` pixels; of 16 bits, what is in the window.

        Raises:
            DamagedPack: If the record cannot be shown.
        """
        name = (record, side, window)
        with self._lock:
            found = self._cached.get(name)
            if found is not None:
                self._cached.move_to_end(name)
                return found
        try:
            made = data_uri(self._small(record, side), EXACT_PIXELS if side == LARGEST_SIDE else _SHARP_PIXELS, window)
        except DamagedPack:
            raise
        except PackerError as error:
            raise self._pack.reader.damage_error(record, f"cannot be shown: {error.problem}") from None
        with self._lock:
            if name not in self._cached:
                self._cached[name] = made
                self._bytes += len(made)
            while self._bytes > _CACHED_BYTES:
                self._bytes -= len(self._cached.popitem(last=False)[1])
        return made

    @quiet_opencv()
    def crop(self, record: int, region: tuple[int, int, int, int], side: int, window: ValueWindow = INNER) -> str:
        """Return a data: URI of a part of a record, x, y, width and height in pixels; else as `uri`."""
        try:
            with self._lock:
                kept, image = self._whole
            if kept != record:
                image = self._pack.image(record)
                with self._lock:
                    self._whole = (record, image)  # the next crop is often of the same image
            x, y, width, height = region
            part = image[y : y + height, x : x + width]
            if max(width, height) > side:
                part = shrink(height, width, side).apply(np.ascontiguousarray(part))
            return data_uri(part, window=window)
        except DamagedPack:
            raise
        except PackerError as error:
            raise self._pack.reader.damage_error(record, f"cannot be shown: {error.problem}") from None

    @quiet_opencv()
    def _small(self, record: int, side: int) -> Image:
        height, width, _ = self._pack.reader.shape_of(record)
        if max(height, width) <= side:
            return self._pack.image(record)
        resize = shrink(height, width, side)
        manifest = self._pack.manifest
        if self._pack.reader.encoding_of(record) != "jpeg" or manifest.lenient or manifest.windows:
            return resize.apply(self._pack.image(record))
        data, mode = bytes(self._pack.record(record)), cast("Mode", self._pack.manifest.mode)
        image = decode(data, mode, max_pixels=height * width, at_least=resize.at_least(width, height))
        try:
            return resize.apply(image, (width, height))
        except ValueError:
            problem = f"decodes to {image.shape[1]}x{image.shape[0]} pixels, but its row says {width}x{height}"
            raise self._pack.reader.damage_error(record, problem) from None


def shrink(height: int, width: int, side: int) -> TargetSize:
    # a panorama must stay at least one pixel high
    scale = side / max(height, width)
    return TargetSize(max(1, round(width * scale)), max(1, round(height * scale)), "stretch")


@quiet_opencv()
def data_uri(image: Image, exact: int = _SHARP_PIXELS, window: ValueWindow = INNER) -> str:
    """Return a data: URI of `image`, (height, width, 1..4), uint8 or uint16, shrunk to LARGEST_SIDE if it is larger.

    It has the exact pixels if there are no more than `exact`, apart from alpha and 16 bits.
    """
    if max(image.shape[:2]) > LARGEST_SIDE:
        image = shrink(image.shape[0], image.shape[1], LARGEST_SIDE).apply(image)
    plain = _plain(image, window)
    kind: Literal["png", "jpeg"] = "png" if plain.shape[0] * plain.shape[1] <= exact else "jpeg"
    data = base64.b64encode(encode(plain, kind, 85 if exact == _SHARP_PIXELS else 92)).decode("ascii")
    return f"data:image/{kind};base64,{data}"


HATCH = 6
"""Pixels from one line of the hatching of ignored pixels to the next."""
MOST_COLORS = 254
"""Maximum number of ids that have a color of their own in one mask: a palette has 256."""
_GRAY, _WHITE = (153, 153, 153), (255, 255, 255)


def overlay_uri(mask: Mask, ids: Sequence[int], facts: MaskFacts, side: int) -> str:
    """Return a data: URI of a picture to lay over an image: the color of each class, hatching where it is ignored.

    It has a palette, in which the nth color is that of the nth of `ids`, so that the page can hide one of them
    (static/draw.js), as the background is here. Then come gray, for all other ids, and what is seen between the lines
    of the hatching: nothing.
    """
    if max(mask.shape) > side:
        mask = shrink(mask.shape[0], mask.shape[1], side).apply_to_mask(mask, 0)
    table = np.full(int(np.iinfo(mask.dtype).max) + 1, len(ids), np.uint8)
    table[np.asarray(ids, np.int64)] = np.arange(len(ids))
    picture = table[mask]
    if facts.ignore in ids:
        rows, columns = np.nonzero(mask == facts.ignore)
        between = (rows + columns) % HATCH >= HATCH // 3
        picture[rows[between], columns[between]] = len(ids) + 1
    colors = [_WHITE if i == facts.ignore else tuple(round(255 * value) for value in color_of(i)) for i in ids]
    palette = np.array([*colors, _GRAY, _GRAY], np.uint8)
    return _png_uri(picture, palette, bytes([*(255 * (i != facts.background) for i in ids), 255, 0]))


def _png_uri(picture: Mask, palette: NDArray[np.uint8], opacity: bytes | None = None) -> str:
    return f"data:image/png;base64,{base64.b64encode(with_palette(picture, palette, opacity)).decode('ascii')}"


LEVELS = 255
"""Colors of a map; one more of the palette is transparent, for what is unknown."""
_TURBO = cv2.applyColorMap(np.arange(LEVELS, dtype=np.uint8), cv2.COLORMAP_TURBO).reshape(LEVELS, 3)[:, ::-1]
BAR_URI = _png_uri(np.arange(LEVELS, dtype=np.uint8)[None], _TURBO)
"""All colors of maps in a row, the lowest first."""


def map_uri(
    values: NDArray[Any], ignore: int | None, side: int, window: ValueWindow = INNER
) -> tuple[str, tuple[float, float]]:
    """Return a data: URI of a map (height, width) in colors to lay over an image, and the values at their ends."""
    if max(values.shape) > side:
        values = shrink(values.shape[0], values.shape[1], side).apply_to_mask(values, 0)
    known = is_known(values, ignore)
    numbers = values[known].astype(np.float64)
    ends = window.ends(numbers)
    picture = np.full(values.shape, LEVELS, np.uint8)
    picture[known] = np.rint((LEVELS - 1) * window.shares(numbers, ends))
    return _png_uri(picture, np.vstack([_TURBO, _TURBO[:1]]), bytes([*LEVELS * (255,), 0])), ends


def _plain(image: Image, window: ValueWindow = INNER) -> Image:
    """Return the image as uint8 with 1 or 3 channels; of 16 bits, black and white are the ends of the window."""
    has_alpha = image.shape[2] in (2, 4)
    pixels, alpha = (image[:, :, :-1], image[:, :, -1:]) if has_alpha else (image, None)
    if pixels.dtype != np.uint8:
        pixels = np.rint(255 * window.shares(pixels, window.ends(pixels))).astype(np.uint8)
    if alpha is not None:
        share = alpha.astype(np.float32) / np.iinfo(alpha.dtype).max
        pixels = (pixels * share + _GROUND * (1 - share)).astype(np.uint8)
    return np.ascontiguousarray(pixels)


def problem_of(make: Callable[[], str]) -> dict[str, str]:
    """Return {"picture": URI}, or {"error": why there is none}."""
    try:
        return {"picture": make()}
    except PackerError as error:
        return {"error": str(error)}


_MOST_BYTES = 256 << 20


def _source_of(pack: Pack) -> str:
    """Return where the folder of a pack may be: the pack is called like it, ``imgs.lmdb`` or ``imgs-train.lmdb``."""
    folder = os.path.splitext(pack.path)[0]
    split = pack.manifest.options.get("split")
    return folder if os.path.isdir(folder) or not split else folder.removesuffix(f"-{split}")


class Originals:
    """The source files of a pack, found by the paths in its index and recognized by their digests.

    Args:
        pack: The pack.
        source: The folder that it was built from; None: the folder that is called like the pack, without its suffix
            and its split.

    Raises:
        UsageError: `source` is not a folder.
    """

    def __init__(self, pack: Pack, source: AnyPath | None = None) -> None:
        self._pack = pack
        if source is not None and not os.path.isdir(source):
            raise UsageError(
                option("source"), f"is not a folder: {printable(source)}", "name the folder that was packed"
            )
        self._folders = {one.path: os.fsencode(_source_of(one) if source is None else source) for one in pack.packs}

    def where(self, record: int) -> dict[str, Any]:
        """Return {"found": whether there is such a file, "path": where it is or should be}, without reading it."""
        pack, inside = self._one(record)
        path = self._path(pack, inside)
        found = path is not None and os.path.isfile(path)
        return {"found": found, "path": printable(path or bytes(pack.column("path")[inside]))}

    def facts(self, record: int) -> dict[str, Any]:
        """Return the picture of the source file and its place in the packed image.

        Returns:
            picture: A data: URI of the upright original; width, height: its size in pixels; at: the x, y, width and
            height that it has in the pixels of the packed image; exact: whether the pack tells how it was resized,
            so that the same points are over one another.

        Raises:
            PackerError: There is no such file, it is not the one that was packed, or it cannot be decoded.
        """
        pack, inside = self._one(record)
        path = self._path(pack, inside)
        if path is None or not os.path.isfile(path):
            raise UsageError("the source file", f"was not found at {self.where(record)['path']}")
        try:
            return _picture_facts(pack, inside, path)
        except OSError as error:
            raise UsageError("the source file", f"cannot be read: {error.strerror or error}") from None

    def _one(self, record: int) -> tuple[Pack, int]:
        """Return the pack that a record is from, and its number there."""
        number, inside = self._pack.part_of(record)
        return self._pack.packs[number], inside

    def _path(self, pack: Pack, record: int) -> bytes | None:
        folder, relative = self._folders[pack.path], bytes(pack.column("path")[record])
        # a pack of somebody else may name any path; one that is shown must also have the digest in the index
        outside = relative.startswith(b"/") or b".." in relative.split(b"/") or b"\0" in relative
        return None if outside or not relative or is_url(folder) else os.path.join(folder, relative)


@quiet_opencv()
def _picture_facts(pack: Pack, record: int, path: bytes) -> dict[str, Any]:
    if pack.window(record) is not None:
        raise UsageError("the source file", "is a larger image, of which this is a tile")
    with SourceFile(path) as file:
        if file.size > _MOST_BYTES:
            raise UsageError("the source file", f"has more than {_MOST_BYTES >> 20} MiB")
        data = file.content(file.size)
    if xxh3_128_digest(data) != bytes(np.asarray(pack.column("source_xxh3")[record])):
        raise UsageError("the source file", f"is not the one that was packed: {printable(path)} has changed")
    header = read_header(data)
    max_pixels = int(pack.manifest.options.get("max_pixels") or DEFAULT_MAX_PIXELS)
    check_header(header, max_pixels, "first")
    width, height = header.upright_size
    at, exact = _place(pack, record, width, height)
    image = _decode_original(pack, data, header, max_pixels)
    return {"picture": data_uri(image, EXACT_PIXELS), "width": width, "height": height, "at": at, "exact": exact}


def _decode_original(pack: Pack, data: bytes, header: Header, max_pixels: int) -> Image:
    mode = cast("Mode", "rgb" if pack.manifest.mode == "gray" else pack.manifest.mode)  # what gray has lost is seen
    width, height = header.upright_size
    small = shrink(height, width, LARGEST_SIDE) if max(width, height) > LARGEST_SIDE else None
    at_least = None if small is None else small.at_least(width, height)
    if pack.manifest.options.get("decoder") == "lenient":
        image = decode_leniently(data, mode, at_least, max_pixels, header)[0]
    else:
        image = decode(data, mode, "auto", at_least, max_pixels, header)
    return image if small is None else small.apply(image, (width, height))


def _place(pack: Pack, record: int, width: int, height: int) -> tuple[list[float], bool]:
    """Return where an original of this size is in the packed image, and whether the pack's options say so."""
    packed_height, packed_width, _ = pack.reader.shape_of(record)
    options = pack.manifest.options
    geometry = Geometry.identity(width, height)
    if options.get("resize") is not None:
        given = (options.get("fit"), options.get("pad_value"), options.get("interpolation"))
        with suppress(PackerError):
            geometry = TargetSize.of(str(options["resize"]), *given).geometry(width, height)
    if (geometry.width, geometry.height) != (packed_width, packed_height):  # resized twice, or by another tool
        return [0.0, 0.0, float(packed_width), float(packed_height)], False
    # a pack that was converted tells only the last resize
    converted = any(origin.command == "convert" for origin in pack.manifest.made_from)
    return [geometry.c, geometry.f, geometry.a * width, geometry.e * height], geometry.is_identity or not converted
