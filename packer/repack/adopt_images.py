"""What an index says of an image: its place, size, channels, dtype and encoding, read from its header."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from packer.errors import BadImage, BadInput
from packer.format.schema import DTYPES, ENCODINGS
from packer.images.base import Header, OnAnimation
from packer.images.header import IncompleteHeader, check_header, decoded_shape, losses, read_header
from packer.images.jpeg_header import frame_like_last, least_bytes
from packer.repack.formats.base import ForeignFile, Pixels
from packer.repack.formats.npy import header_of

HEAD_BYTES = 4096
MOST_FACTS = 1 << 16
NPY = b"\x93NUMPY"
MOST_SIDE = 1 << 31
UNKNOWN = 0, None


class Facts(NamedTuple):
    """What many images have in common."""

    columns: tuple[int, int, int, int, int]
    """Height, width, channels, code of the dtype, code of the encoding."""
    header: Header
    error: BadInput | None = None
    """Why such images cannot be packed."""
    losses: tuple[str, ...] = ()


class ImageFacts:
    """Finds the facts of the images in a file; those with equal headers share them."""

    def __init__(self, file: ForeignFile, max_pixels: int, on_animation: OnAnimation) -> None:
        self._file = file
        self._max_pixels = max_pixels
        self._on_animation = on_animation
        self._facts: dict[Header | Pixels, Facts] = {}
        self.frames: dict[bytes | None, tuple[int, Facts]] = {}
        """Facts of good JPEGs by `frame_like_last`, with the least size of such a file."""
        self.losses: Counter[str] = Counter()

    def of_image(self, head: bytes, offset: int, size: int) -> Facts:
        """Return the facts of an image file. Raise BadImage if it cannot be decoded."""
        try:
            header = read_header(head, size <= HEAD_BYTES, size)
        except IncompleteHeader:
            header = read_header(self._file.view[offset : offset + size])
        facts = self._facts.get(header) or self._checked(header)
        if facts.error is not None:
            raise facts.error
        if facts.losses:
            self.losses.update(facts.losses)
        elif len(self.frames) < MOST_FACTS and (frame := frame_like_last(memoryview(head))) is not None:
            self.frames[frame] = least_bytes(header), facts
        return facts

    def _checked(self, header: Header) -> Facts:
        height, width, channels, dtype = decoded_shape(header, "rgb")
        columns = height, width, channels, DTYPES.index(dtype), ENCODINGS.index(header.format)
        facts = Facts(columns, header, None, losses(header, "rgb"))
        try:
            check_header(header, self._max_pixels, self._on_animation)
        except BadInput as error:
            facts = facts._replace(error=error)
        return self._keep(header, facts)

    def _keep(self, of: Header | Pixels, facts: Facts) -> Facts:
        if len(self._facts) >= MOST_FACTS:
            self._facts.clear()
        self._facts[of] = facts
        return facts

    def of_pixels(self, pixels: Pixels, size: int) -> Facts:
        """Return the facts of a raw image."""
        facts = self._facts.get(pixels) or self._checked_pixels(pixels)
        if facts.error is not None:
            raise facts.error
        height, width, channels, dtype = pixels
        if size != height * width * channels * (2 if dtype == "uint16" else 1):
            raise BadImage("", f"{size} bytes are not {dtype} pixels of shape {tuple(pixels[:3])}", "write it again")
        return facts

    def _checked_pixels(self, pixels: Pixels) -> Facts:
        height, width, channels, dtype = pixels
        error = None
        if dtype not in DTYPES or not 1 <= channels <= 4 or min(height, width) < 1 or max(height, width) >= MOST_SIDE:
            problem = f"an array of {dtype} {tuple(pixels[:3])}, not of uint8 or uint16 (height, width, 1 to 4)"
            error = BadImage("", problem, "convert it")
        elif height * width > self._max_pixels:
            problem = f"{width}x{height} pixels are more than {self._max_pixels}"
            error = BadImage("", problem, "raise --max-pixels if this is intended")
        code = 0 if error else DTYPES.index(dtype)
        return self._keep(pixels, Facts((height, width, channels, code, 0), Header("png", width, height, 3, 8), error))

    def of_npy(self, offset: int, size: int, head: bytes) -> tuple[Facts, int, int]:
        """Return the place and the facts of the pixels in a .npy file."""
        try:
            shape, order, kind, start = header_of(head)
            if kind.byteorder == ">":
                raise ValueError("its numbers are big-endian")
        except ValueError as error:
            raise BadImage("", f"a .npy file that cannot be read: {error}", "write it again") from None
        if order or len(shape) not in (2, 3):
            raise BadImage("", f"a .npy array of shape {shape}, not of rows of pixels", "write it again in C order")
        pixels = Pixels(shape[0], shape[1], shape[2] if len(shape) == 3 else 1, kind.name)
        return self.of_pixels(pixels, size - start), offset + start, size - start


def no_bytes(offset: int, size: int, limit: int) -> BadImage:
    if size < 0:
        return BadImage("", "a link or a sparse file, without bytes of its own", "write the image itself into the file")
    if not size:
        return BadImage("", "not an image: it is empty", "write the image itself into the file")
    return BadImage("", f"lies outside its file: {size} bytes at {offset} of {limit}", "get the file again")
