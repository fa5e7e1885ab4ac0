"""Decodes records into the rows of a batch: by the native decoder if it is there, else image by image."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import cv2
import numpy as np
from numpy.typing import NDArray

from packer.errors import BadImage
from packer.format.jpeg_index import JpegIndexes, open_jpeg_indexes
from packer.format.jpeg_index_list import JpegIndexList
from packer.format.pack import Pack
from packer.format.records import Bits
from packer.images import decoders
from packer.images.decode import Decoder, decode, is_plain_jpeg
from packer.images.header import Mode, check_header, decoded_shape, read_header, read_header_leniently
from packer.images.image_headers import Header
from packer.images.jpeg import HEADROOM, REDUCED_SIDE_MIN, decode_into, decode_rows, extents
from packer.images.opencv import Interpolation, one_call, resample
from packer.loading.augmentation import CropParams
from packer.loading.crop import Regions
from packer.model.annotation import Image, Int64
from packer.samplers.order import Float64

Sizes = tuple[Float64, Float64]
"""Widths and heights of images."""


def sizes_of(pack: Pack, records: Int64) -> Sizes:
    """Return the widths and heights of images, float64 (n,) each."""
    shape = pack.manifest.shape
    if shape is not None:
        return np.full(len(records), float(shape[1])), np.full(len(records), float(shape[0]))
    widths, heights = (pack.reader.values(name, records) for name in ("width", "height"))
    return widths.astype(np.float64), heights.astype(np.float64)


def data_of(pack: Pack, records: Int64) -> list[memoryview]:
    """Return the bytes of each record, mapped."""
    region, (starts, sizes) = pack.reader.region.data, pack.reader.places(records)
    return [region[start:end] for start, end in zip(starts.tolist(), (starts + sizes).tolist(), strict=True)]


def in_whole_pixels(parts: Regions, sizes: Sizes) -> NDArray[np.bool_]:
    """Return which parts begin and end between two pixels, inside their image; `sizes` are those of the images."""
    x, y, width, height = parts.T
    inside = (x >= 0) & (y >= 0) & (x + width <= sizes[0]) & (y + height <= sizes[1])
    whole: NDArray[np.bool_] = inside & (parts == np.rint(parts)).all(axis=1)
    return whole


def resize_parts(
    images: Iterable[Image], parts: Regions, sizes: Sizes, rows: Sequence[Image], interpolation: Interpolation,
    border: int,
) -> None:  # fmt: skip
    """Resize a part of each image, in pixels of that image, into its row; `sizes` are those of the images."""
    cuts = cuts_of(parts, sizes, rows[0].shape[:2], interpolation, border)
    for image, row, cut in zip(images, rows, cuts, strict=True):
        resize_cut(image, row, cut)


Cut = tuple[list[int], int, list[float], list[float], Interpolation, int]
"""Edges in whole pixels, OpenCV's flag (-1: by `resize_into`), x, y, width and height, sides of the image, filter and
border."""


def cuts_of(
    parts: Regions, sizes: Sizes, output: tuple[int, int], interpolation: Interpolation, border: int
) -> list[Cut]:
    """Return how `resize_cut` makes `output`, (height, width), of a part of each image, in its pixels."""
    flags = one_call(parts[:, 2] / output[1], parts[:, 3] / output[0], interpolation)
    whole = in_whole_pixels(parts, sizes)
    # per image only what must be: the GIL lets one thread run Python at a time
    edges = np.concatenate([parts[:, :2], parts[:, :2] + parts[:, 2:]], axis=1)
    cuts = np.where(whole[:, None], edges, 0).astype(np.int64).tolist()
    flags = np.where(whole, flags, -1).tolist()
    sides = np.stack(sizes, axis=1).tolist()
    count = len(parts)
    return list(zip(cuts, flags, parts.tolist(), sides, [interpolation] * count, [border] * count, strict=True))


def resize_cut(image: Image, row: Image, cut: Cut) -> None:
    """Resize a part of an image into its row."""
    (left, top, right, bottom), flag, part, sides, interpolation, border = cut
    if flag >= 0:
        cv2.resize(image[top:bottom, left:right], row.shape[1::-1], row, 0, 0, flag)
    else:
        resize_into(image, part, row, interpolation, sides, border)


def resize_into(
    image: Image, part: list[float], row: Image, interpolation: Interpolation = "area",
    sides: Sequence[float] | None = None, border: int = 0,
) -> None:  # fmt: skip
    """Resize the part (x, y, width, height) of an image into `row`.

    The image is resized alone, into whole pixels of the row: nothing blends into a border.

    Args:
        image: the whole image, maybe decoded smaller.
        part: in pixels of `image`.
        row: receives the pixels.
        interpolation: the filter.
        sides: the exact (width, height) of an image that was decoded smaller, which rounds them up.
        border: the value of pixels outside the image.
    """
    width, height = sides or image.shape[1::-1]
    x, y, across, down = part
    if x >= 0 and y >= 0 and x + across <= width and y + down <= height:
        resample(image, row.shape[1::-1], interpolation, (x, y, across, down), out=row)
        return
    row[:] = border
    left, right, x, across = _inside(x, across, width, row.shape[1])
    top, bottom, y, down = _inside(y, down, height, row.shape[0])
    if left < right and top < bottom:
        inside = resample(image, (right - left, bottom - top), interpolation, (x, y, across, down))
        row[top:bottom, left:right] = inside


def _inside(start: float, extent: float, side: float, pixels: int) -> tuple[int, int, float, float]:
    """Return what of a row has pixels of the image (first, end), and these (start, extent), along one axis."""
    begin, end = max(start, 0), min(start + extent, side)
    first, last = (round((edge - start) * pixels / extent) for edge in (begin, end))
    return first, last, begin, end - begin


LARGE_PIXELS = 1 << 26
"""More than that is not allocated for what a row says alone."""
PLAIN = ("auto", "fast", "simplejpeg")
"""The decoders that read plain JPEGs directly into their rows."""


@dataclass(frozen=True, slots=True, eq=False)
class CropRows:
    """The rows of one crop of each image, (n, height, width, channels), and how they are cut."""

    params: CropParams
    rows: NDArray[Any]
    interpolation: Interpolation


class RowDecoder:
    """Decodes records into rows. All threads share it.

    Args:
        pack: the pack.
        decoder: JPEG decoder.
        channels: of the rows.
        interpolation: the filter of crops.
        verify: refuse a JPEG that is damaged outside its crop, too.
    """

    def __init__(self, pack: Pack, decoder: Decoder, channels: int, interpolation: Interpolation, verify: bool) -> None:
        self.pack, self._decoder, self._interpolation = pack, decoder, interpolation
        self._channels = channels
        self._mode = cast(Mode, pack.manifest.mode)
        self._native = self._native_decoder()
        self._windows = pack.manifest.windows
        # a build has decoded what it has copied, and it is the same if it matches its checksum
        copied = any(one.manifest.encoding == "copy" and one.manifest.made_from for one in pack.packs)
        self._sound = Bits(len(pack)) if verify and copied and self._native is not None else None
        """Records that are known to be sound, of a pack that may hold damaged JPEGs."""

    def _native_decoder(self) -> Any:
        """Return the module packer_fast, or None if it does not decode these rows."""
        if self._decoder not in ("auto", "fast") or self.pack.manifest.lenient or self._channels not in (1, 3):
            return None
        if self.pack.manifest.encoding not in ("jpeg", "copy"):
            return None
        return decoders.load_native() if self._decoder == "fast" else decoders.native_for_auto()

    @cached_property
    def _indexes(self) -> JpegIndexes | None:
        return open_jpeg_indexes(self.pack)

    @property
    def name(self) -> str:
        """What decodes JPEGs: ``fast`` and its version, or another decoder."""
        if self._native is not None:
            return f"fast {decoders.native_version()}"
        if self.pack.manifest.lenient:
            return "lenient"
        return "simplejpeg" if self._decoder in PLAIN else self._decoder

    def decode(self, records: Int64, params: CropParams, rows: NDArray[Any]) -> None:
        """Write the image of each record, or its part, to its row, flipped and turned if it is to be.

        Raises:
            DamagedPack: An image cannot be decoded, or is not what the index says.
        """
        plain, regions = self._plain(records), params.regions
        crops = [CropRows(params, rows, self._interpolation)]
        done = self._decode_natively(records, np.flatnonzero(plain), crops)
        alone = ~done if self._windows else ~plain  # tiles are cut out of whole images, of which threads keep the last
        for i in np.flatnonzero(alone).tolist():
            self._decode_any(int(records[i]), None if regions is None else regions[i].tolist(), rows[i], params.border)
        places = np.flatnonzero(~alone & ~done)
        if len(places):
            its_rows = list(rows) if len(places) == len(rows) else [rows[i] for i in places.tolist()]
            if regions is None:
                self._decode_whole(records[places], its_rows)
            else:
                self._decode_parts(records[places], regions[places], its_rows, params.border)
        flip_rows(rows, params, done)
        if self._sound is not None:
            self._sound.set(records)

    def whole(self, record: int) -> Image:
        """Return the image of a record, (height, width, channels); of a tile, no more is decoded than it needs.

        Raises:
            DamagedPack: It cannot be decoded, or is not what the index says.
        """
        self.pack.reader.check(np.array([record]))
        height, width, _ = self.pack.reader.shape_of(record)
        if self._mode == "unchanged":  # with other channels in each
            return self.pack.image(record, self._decoder)
        rows = np.empty((1, height, width, self._channels), np.uint8)
        self.decode(np.array([record]), CropParams(None, None, (height, width)), rows)
        image: Image = rows[0]
        return image

    def decode_crops(self, records: Int64, crops: Sequence[CropRows]) -> NDArray[np.bool_]:
        """Decode each image that the native decoder can read once, and cut all of its crops out of it.

        Returns:
            Which images are done, bool (n,): their rows are flipped, but not upended or transposed.

        Raises:
            DamagedPack: An index is not that of its JPEG.
        """
        done = self._decode_natively(records, np.flatnonzero(self._plain(records)), crops)
        if self._sound is not None:
            self._sound.set(records[done])
        return done

    def _decode_natively(self, records: Int64, places: Int64, crops: Sequence[CropRows]) -> NDArray[np.bool_]:
        """Decode what the native decoder can of the plain JPEGs at `places`; return which images are done, bool (n,).

        The others are left to `simplejpeg`, which also says what is wrong with a damaged one.
        """
        done = np.zeros(len(records), np.bool_)
        if self._native is None or any(one.rows.dtype != np.uint8 or one.interpolation == "nearest" for one in crops):
            return done
        sizes = sizes_of(self.pack, records)
        whole = np.stack([np.zeros_like(sizes[0]), np.zeros_like(sizes[0]), *sizes], axis=1)
        parts = [whole if one.params.regions is None else one.params.regions for one in crops]
        for part in parts:
            places = places[in_whole_pixels(part[places], (sizes[0][places], sizes[1][places]))]
        if not len(places):
            return done
        if (windows := self.pack.reader.windows(records)) is not None:
            parts = [part + windows[:, [0, 1, 0, 1]] * [1, 1, 0, 0] for part in parts]
            sizes = windows[:, 4].astype(np.float64), windows[:, 5].astype(np.float64)
        starts, lengths = self.pack.reader.places(records[places])
        indexes = () if self._indexes is None else self._indexes.places(records[places])
        jpegs = self.pack.reader.region.addresses(starts), lengths.astype(np.uint64)
        sides = np.stack(sizes, axis=1)[places].astype(np.int32)
        batches = [
            self._native.Batch(
                *jpegs,
                sides,
                part[places].astype(np.int32),
                None if one.params.flipped is None else np.ascontiguousarray(one.params.flipped[places]),
                *indexes,
            )
            for one, part in zip(crops, parts, strict=True)
        ]
        every = len(places) == len(records)
        into = [one.rows if every else np.empty((len(places), *one.rows.shape[1:]), np.uint8) for one in crops]
        filters, verify = [one.interpolation for one in crops], self._may_be_damaged(records[places], indexes)
        errors = self._native.decode_crops(batches, into, filters=filters, verify=verify, headroom=HEADROOM)
        for record in records[places[errors == self._native.Error.WRONG_INDEX]].tolist():
            error = self.pack.reader.damage_error(record, "has an index of its JPEG that was made of other bytes")
            error.next_step = JpegIndexList.again(error.pack or self.pack.path)
            raise error
        good = errors == self._native.Error.OK
        for one, made in () if every else zip(crops, into, strict=True):
            one.rows[places[good]] = made[good]
        done[places[good]] = True
        return done

    def _may_be_damaged(self, records: Int64, indexes: tuple[Any, ...]) -> bool:
        """Return whether one of these JPEGs may be damaged where it is not looked at: a damaged one has no index."""
        if self._sound is None:
            return False
        sound = self._sound[records]
        return not (sound | (indexes[1] > 0) if indexes else sound).all()

    @cached_property
    def _kinds(self) -> tuple[Bits, Bits]:
        """Which records of a pack of copied files are plain JPEGs, and which are known not to be."""
        return Bits(len(self.pack)), Bits(len(self.pack))

    def _plain(self, records: Int64) -> NDArray[np.bool_]:
        """Return which records are upright JPEGs of the size in the index, whose header need not be read again.

        JPEGs encoded by packer are. Headers of copied files are read once, because the bytes of a record never change.
        """
        encoding = self.pack.manifest.encoding
        if encoding not in ("jpeg", "copy") or self._decoder not in PLAIN or self.pack.manifest.lenient:
            return np.zeros(len(records), np.bool_)
        if encoding == "jpeg":
            return np.ones(len(records), np.bool_)
        plain, other = self._kinds
        unknown = records[~(plain[records] | other[records])]
        if len(unknown):
            windows = self.pack.reader.windows(unknown)
            sides = sizes_of(self.pack, unknown) if windows is None else (windows[:, 4], windows[:, 5])
            widths, heights = (side.astype(int).tolist() for side in sides)
            for record, data, width, height in zip(
                unknown.tolist(), data_of(self.pack, unknown), widths, heights, strict=True
            ):
                is_plain = is_plain_jpeg(bytes(data), self._mode, (height, width, self._channels))
                (plain if is_plain else other).set(np.array([record]))
        return plain[records]

    def _decode_whole(self, records: Int64, rows: list[Image]) -> None:
        """Decode plain JPEGs directly into their rows."""
        parts = data_of(self.pack, records)
        done = decode_rows(parts, rows)
        if done < len(rows):
            self._decode_one(int(records[done]), parts[done], rows[done])

    def _decode_one(self, record: int, data: memoryview, image: Image, factor: int = 1) -> Image:
        try:
            decode_into(data, image, factor)
        except BadImage as error:
            raise self.pack.reader.damage_error(record, f"cannot be decoded: {error.problem}") from None
        return image

    def _decode_parts(self, records: Int64, regions: Regions, rows: list[Image], border: int) -> None:
        """Decode plain JPEGs at 1/1 to 1/8, and resize parts of them into their rows."""
        widths, heights = sizes_of(self.pack, records)
        factors = factors_of(room_of(regions, rows[0].shape[:2], self._interpolation), (widths, heights))
        sizes_then = widths / factors, heights / factors
        images = self._reduced(records, factors)
        resize_parts(images, regions / factors[:, None], sizes_then, rows, self._interpolation, border)

    def _reduced(self, records: Int64, factors: Int64) -> Iterator[Image]:
        """Decode plain JPEGs at 1/1 to 1/8."""
        widths, heights = sizes_of(self.pack, records)
        sizes = (np.ceil(heights / factors).astype(int).tolist(), np.ceil(widths / factors).astype(int).tolist())
        numbers = records.tolist(), data_of(self.pack, records), *sizes, factors.tolist()
        for record, data, height, width, factor in zip(*numbers, strict=True):
            yield self._decode_one(record, data, self._room(record, data, height, width), factor)

    def images(self, records: Int64, room: Float64) -> tuple[Iterator[Image], Int64]:
        """Return whole images for crops of several sizes, and the factor by which each is smaller.

        Args:
            records: their numbers.
            room: the least `room_of` the crops of each.

        Raises:
            DamagedPack: An image cannot be decoded, or is not what the index says.
        """
        if self._windows:
            whole = (self._whole(record, 1.0) for record in records.tolist())
            return whole, np.ones(len(records), np.int64)
        plain = self._plain(records)
        factors = np.where(plain, factors_of(room, sizes_of(self.pack, records)), 1)
        others = {}
        for row in np.flatnonzero(~plain).tolist():
            record = int(records[row])
            others[row] = self._whole(record, float(room[row]))
            factors[row] = reduced_by(self.pack.reader.shape_of(record)[:2], others[row])
        # one at a time: the next uses the same memory, which the caches of the processor have
        upright = self._reduced(records[plain], factors[plain])
        images = (others.pop(row) if row in others else next(upright) for row in range(len(records)))
        return images, factors

    def _whole(self, record: int, room: float) -> Image:
        """Decode an image by what its header says, smaller if there is room."""
        # of joined packs, some may have raw images
        if self.pack.reader.encoding_of(record) == "raw":
            return self.pack.image(record)
        height, width, _ = self.pack.reader.shape_of(record)
        room = max(1.0, room)
        return self._decoded(record, (math.ceil(width / room), math.ceil(height / room)))

    def _room(self, record: int, data: memoryview, height: int, width: int) -> Image:
        """Return memory for an image; that of a large one only if its header is as large as its row says."""
        if height * width > LARGE_PIXELS:
            self._header(record, bytes(data))
        return np.empty((height, width, self._channels), np.uint8)

    def _decode_any(self, record: int, part: list[float] | None, row: Image, border: int) -> None:
        """Decode an image by what its header says, and resize a part of it into the row."""
        # of joined packs, some may have raw images
        height, width, _ = self.pack.reader.shape_of(record)
        at_least = None if part is None else self._at_least(part, (width, height), row.shape[:2])
        raw = self.pack.reader.encoding_of(record) == "raw"
        image = self.pack.image(record) if raw else self._decoded(record, at_least)
        if part is None:
            row[:] = image
        else:
            factor = reduced_by((height, width), image)
            sides = width / factor, height / factor
            resize_into(image, [edge / factor for edge in part], row, self._interpolation, sides, border)

    def _decoded(self, record: int, at_least: tuple[int, int] | None) -> Image:
        if self._windows:
            image = self.pack.image(record, self._decoder)
            if image.shape[2] != self._channels:
                raise self.pack.reader.damage_error(record, f"has {image.shape[2]} channels, not {self._channels}")
            return image
        data = bytes(data_of(self.pack, np.array([record]))[0])
        header = self._header(record, data)
        try:
            decoder = "lenient" if self.pack.manifest.lenient else self._decoder
            return decode(data, self._mode, decoder, at_least, header=header)
        except BadImage as error:
            raise self.pack.reader.damage_error(record, f"cannot be decoded: {error.problem}") from None

    def _header(self, record: int, data: bytes) -> Header:
        """Return the header of an image. Raise DamagedPack if its row says another shape."""
        height, width, _ = self.pack.reader.shape_of(record)
        try:
            header = read_header_leniently(data) if self.pack.manifest.lenient else read_header(data)
            # the build has already limited the number of pixels, and decided about animations
            check_header(header, width * height, "first")
            found, expected = decoded_shape(header, self._mode)[:3], (height, width, self._channels)
            if found != expected:
                raise BadImage("", f"decodes to shape {found}, but the index says {expected}")
            return header
        except BadImage as error:
            raise self.pack.reader.damage_error(record, f"cannot be decoded: {error.problem}") from None

    def _at_least(self, part: list[float], size: tuple[int, int], output: tuple[int, int]) -> tuple[int, int]:
        """Return the smallest (width, height) at which to decode the whole image without visible loss in this part.

        Args:
            part: of the image.
            size: its (width, height).
            output: (height, width) of the row.
        """
        if self._interpolation == "nearest":
            return size
        across, down = HEADROOM * output[1], HEADROOM * output[0]
        return math.ceil(size[0] * across / part[2]), math.ceil(size[1] * down / part[3])


def room_of(regions: Regions, output: tuple[int, int], interpolation: Interpolation) -> Float64:
    """Return how many times smaller each image could be decoded without visible loss in its region, (n,)."""
    if interpolation == "nearest":
        return np.ones(len(regions))
    return np.minimum(regions[:, 2] / output[1], regions[:, 3] / output[0]) / HEADROOM


def factors_of(room: Float64, sizes: Sizes) -> Int64:
    """Return the factor, 1 to 8, by which libjpeg decodes each image smaller where there is room."""
    factors = np.ones(len(room), np.int64)
    for factor in (2, 4, 8):
        factors[(room >= factor) & (np.minimum(*sizes) >= REDUCED_SIDE_MIN)] = factor
    return factors


def flip_rows(rows: NDArray[Any], params: CropParams, done: NDArray[np.bool_] | None = None) -> None:
    """Flip and turn the images in rows.

    Args:
        rows: (n, height, width, channels), in memory one after another.
        params: which, and how.
        done: in which of them left and right are exchanged already, bool (n,).
    """
    flipped = params.flipped
    if flipped is not None and done is not None:
        flipped = flipped & ~done
    for axis, each in ((1, flipped), (0, params.upended)):
        for i in () if each is None else np.flatnonzero(each).tolist():
            cv2.flip(rows[i], axis, dst=rows[i])
    for i in () if params.transposed is None else np.flatnonzero(params.transposed).tolist():
        rows[i] = _transposed(rows[i])


def _transposed(image: Image) -> Image:
    # OpenCV, which knows no more channels, is ten times as fast
    few = image.size <= 4 * image.shape[0] * image.shape[1]
    made: Image = cv2.transpose(image).reshape(image.shape) if few else image.swapaxes(0, 1).copy()
    return made


def reduced_by(shape: tuple[int, int], image: Image) -> int:
    """Return the factor by which `image` is smaller than (height, width): 1, 2, 4 or 8. Raise BadImage otherwise.

    This is not the quotient of two sides, because decoding rounds up: 17 pixels at 1/8 are 3.
    """
    for factor in (1, 2, 4, 8):
        if image.shape[:2] == (extents(shape[0], factor), extents(shape[1], factor)):
            return factor
    raise BadImage("", f"decodes to shape {image.shape}, but the index says {shape}")
