"""Decodes the image of a record; that of a tile may be a window on a stored image that others have, too."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from packer.errors import BadImage
from packer.format.records import Records
from packer.model.annotation import Image, Int64

if TYPE_CHECKING:
    from packer.images.decode import Decoder
    from packer.images.header import Mode


class LastImage(threading.local):
    """Keeps the last image of each thread that is shared by several records, for these are neighbors."""

    def __init__(self) -> None:
        self._key: Any = None
        self._image: Image | None = None

    def get(self, key: Any, make: Callable[[], Image]) -> Image:
        """Return the image called `key`, which `make` decodes if it was not the last one."""
        if self._image is None or self._key != key:
            self._image = None  # two are not in memory at once
            self._key, self._image = key, make()
        return self._image


def window_of(image: Image, window: Int64, channels: int) -> Image:
    """Return what a window (`Annotation.window`) shows of a whole image, a view.

    Raises:
        BadImage: The image is of another size than the window says.
    """
    x, y, width, height, *whole = window.tolist()
    if min(x, y) < 0 or min(width, height) < 1 or x + width > whole[0] or y + height > whole[1]:
        raise BadImage("", f"has the window {window.tolist()}, which is none of its image")
    if image.shape != (whole[1], whole[0], channels):
        problem = f"decodes to shape {image.shape}, but its tiles say {(whole[1], whole[0], channels)}"
        raise BadImage("", problem)
    return image[y : y + height, x : x + width]


def decode_record(reader: Records, i: int, decoder: str, last: LastImage) -> Image:
    """Return the image of record `i`, which is not raw, (height, width, channels).

    Args:
        reader: The records.
        i: Number of the record.
        decoder: As of `packer.format.pack.Pack.image`.
        last: Keeps a whole image for the next tile of it.

    Raises:
        DamagedPack: It cannot be decoded, or is of another size than the index says.
    """
    from packer.images.decode import decode
    from packer.images.opencv import quiet_opencv

    data, (height, width, channels) = reader.record(i), reader.shape_of(i)
    is_lenient = reader.files_of(reader.locate(i)[0]).manifest.lenient
    mode, decoder = cast("Mode", reader.manifest.mode), "lenient" if is_lenient else decoder
    window = reader.window(i)
    pixels = height * width if window is None else int(window[4] * window[5])  # the build has limited it
    try:
        with quiet_opencv():
            if window is None:
                return decode(bytes(data), mode, cast("Decoder", decoder), max_pixels=pixels)
            whole = last.get(
                (*reader.span(i), decoder),
                lambda: decode(bytes(data), mode, cast("Decoder", decoder), max_pixels=pixels),
            )
            tile: Image = window_of(whole, window, channels).copy()
            return tile
    except BadImage as error:
        problem = f"matches its checksum, but cannot be decoded: {error.problem}"
        raise reader.damage_error(i, problem) from error
