"""Creates the pictures for the browser: small, 8 bits, RGB or gray, PNG or JPEG. The latest are cached."""

from __future__ import annotations

import base64
from collections import OrderedDict
from collections.abc import Callable
from threading import Lock
from typing import Literal, cast

import numpy as np

from packer.errors import DamagedPack, PackerError
from packer.format.pack import Pack
from packer.images.decode import decode
from packer.images.encode import encode
from packer.images.header import Mode
from packer.images.opencv import quiet_opencv
from packer.images.resize import Resize
from packer.model.annotation import Image

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
        self._cached: OrderedDict[tuple[int, int], str] = OrderedDict()
        self._bytes = 0
        self._whole: tuple[int, Image] = (-1, np.empty(0))
        self._lock = Lock()

    def uri(self, record: int, side: int) -> str:
        """Return a data: URI of a record, its longer side at most `side` pixels.

        Raises:
            DamagedPack: If the record cannot be shown.
        """
        name = (record, side)
        with self._lock:
            found = self._cached.get(name)
            if found is not None:
                self._cached.move_to_end(name)
                return found
        try:
            made = data_uri(self._small(record, side), EXACT_PIXELS if side == LARGEST_SIDE else _SHARP_PIXELS)
        except DamagedPack:
            raise
        except PackerError as error:
            raise self._pack.damage(record, f"cannot be shown: {error.problem}") from None
        with self._lock:
            if name not in self._cached:
                self._cached[name] = made
                self._bytes += len(made)
            while self._bytes > _CACHED_BYTES:
                self._bytes -= len(self._cached.popitem(last=False)[1])
        return made

    @quiet_opencv()
    def crop(self, record: int, region: tuple[int, int, int, int], side: int) -> str:
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
            return data_uri(part)
        except DamagedPack:
            raise
        except PackerError as error:
            raise self._pack.damage(record, f"cannot be shown: {error.problem}") from None

    @quiet_opencv()
    def _small(self, record: int, side: int) -> Image:
        height, width, _ = self._pack.shape_of(record)
        if max(height, width) <= side:
            return self._pack.image(record)
        resize = shrink(height, width, side)
        if self._pack.encoding_of(record) != "jpeg" or self._pack.manifest.lenient:
            return resize.apply(self._pack.image(record))
        data, mode = bytes(self._pack.record(record)), cast("Mode", self._pack.manifest.mode)
        image = decode(data, mode, max_pixels=height * width, at_least=resize.at_least(width, height))
        try:
            return resize.apply(image, (width, height))
        except ValueError:
            problem = f"decodes to {image.shape[1]}x{image.shape[0]} pixels, but its row says {width}x{height}"
            raise self._pack.damage(record, problem) from None


def shrink(height: int, width: int, side: int) -> Resize:
    # a panorama must stay at least one pixel high
    scale = side / max(height, width)
    return Resize(max(1, round(width * scale)), max(1, round(height * scale)), "stretch")


@quiet_opencv()
def data_uri(image: Image, exact: int = _SHARP_PIXELS) -> str:
    """Return a data: URI of `image`, (height, width, 1..4), uint8 or uint16, shrunk to LARGEST_SIDE if it is larger.

    It has the exact pixels if there are no more than `exact`, apart from alpha and 16 bits.
    """
    if max(image.shape[:2]) > LARGEST_SIDE:
        image = shrink(image.shape[0], image.shape[1], LARGEST_SIDE).apply(image)
    plain = _plain(image)
    kind: Literal["png", "jpeg"] = "png" if plain.shape[0] * plain.shape[1] <= exact else "jpeg"
    data = base64.b64encode(encode(plain, kind, 85 if exact == _SHARP_PIXELS else 92)).decode("ascii")
    return f"data:image/{kind};base64,{data}"


def _plain(image: Image) -> Image:
    """Return the image as uint8 with 1 or 3 channels; 16 bits are scaled so that the brightest value is white."""
    if image.dtype != np.uint8:
        image = (image.astype(np.float32) * (255 / max(1, int(image.max())))).astype(np.uint8)
    channels = image.shape[2]
    if channels in (2, 4):
        alpha = image[:, :, -1:].astype(np.float32) / 255
        image = (image[:, :, :-1] * alpha + _GROUND * (1 - alpha)).astype(np.uint8)
    return np.ascontiguousarray(image)


def problem_of(make: Callable[[], str]) -> dict[str, str]:
    """Return {"picture": URI}, or {"error": why there is none}."""
    try:
        return {"picture": make()}
    except PackerError as error:
        return {"error": str(error)}
