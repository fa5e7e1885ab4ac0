"""Work done on the device: ``cache="device"`` keeps raw images there, ``decode="device"`` decodes JPEGs there."""

from __future__ import annotations

import importlib
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import interpolate

from packer.errors import DamagedPack, NotInstalled, UsageError, size_text
from packer.format.index import ENCODINGS
from packer.format.pack import Pack
from packer.images.opencv import FAST_SHRINK, Interpolation
from packer.loading.augmentation import CropParams
from packer.loading.crop import Regions
from packer.loading.decoding import in_whole_pixels
from packer.loading.epoch_stats import Stats
from packer.loading.page_cache import announced
from packer.loading.pipeline import LoadedBatch, Pipeline
from packer.loading.stand_ins import Replacements, problem_of
from packer.model.annotation import Int64
from packer.samplers.order import records_in
from packer.system import available_bytes

ANTIALIASED = ("area", "bilinear", "fast")
"""Filters in whose place a library uses its own: linear, antialiased on an axis that shrinks (a triangle)."""
HOST = 'use decode="host" of PackedLoader'


# Encoded records for decoders that are not packer's own: what `PackedLoader(decode=...)` hands to a library.
#
# Order, ranks, crops, flips, targets and stand-ins are packer's; the library turns bytes into pixels.


class BatchMaker(Protocol):
    """Makes the batches of a loader."""

    @property
    def decoded_by(self) -> str:
        """What decodes JPEGs: a word, and more about it after a space; "" if nothing is decoded."""

    def run(self, batches: Iterable[Int64], epoch: int, stats: Stats) -> Iterator[LoadedBatch]:
        """Yield (images, targets, samples) for each array of samples, in order."""

    def with_host(self, host: Pipeline) -> BatchMaker:
        """Return what makes the batches of another host, which has other crops."""


class Decoding(Protocol):
    """What `PackedLoader` takes as `decode` beside the names: a decoder of another library, such as DALI."""

    def batches(self, host: Pipeline, device: torch.device) -> BatchMaker:
        """Return what makes batches on `device`, those that `host` would. Raise UsageError if it cannot."""


@dataclass(frozen=True)
class EncodedBatch:
    """Samples of one batch (`samplers.order.VISIT`), and what becomes of them."""

    samples: Int64
    params: CropParams
    replaced: Replacements = ()

    @property
    def records(self) -> Int64:
        """Numbers of the records."""
        return records_in(self.samples)


class EncodedReader:
    """Reads encoded records for a decoder.

    Args:
        host: makes the same batches on the host; its filler, targets and replacer are used.
        name: of the decoder, for errors.
        encodings: those that the decoder knows.

    Raises:
        UsageError: if the pack has none of these, or images that do not become 8-bit gray or RGB; or if a decoder of
            the host was chosen.
    """

    def __init__(self, host: Pipeline, name: str, encodings: tuple[str, ...]) -> None:
        self.host = host
        self.pack: Pack = host.filler.pack
        self._known = [ENCODINGS.index(encoding) for encoding in encodings]
        codes = {code for part in self.pack.reader.shard_columns("encoding") for code in np.unique(part).tolist()}
        self.unknown = sorted(ENCODINGS[code] for code in codes - {*self._known})
        """The encodings that the decoder does not know."""
        self.pack.manifest.check_no_windows(self.pack.path, f"{name} decodes whole images")
        if self.pack.manifest.encoding == "raw":
            self._refuse("has raw images, which need no decoding", f'{HOST}, or cache="device"')
        if not codes & {*self._known}:
            self._refuse(f"has {self.unknown[0]} images, which {name} does not decode", HOST)
        if self.pack.manifest.lenient:
            self._refuse(f"may hold damaged images, which {name} does not decode", HOST)
        if host.filler.dtype != np.uint8:
            self._refuse(f"has 16-bit images, of which {name} makes 8-bit ones", HOST)
        if host.filler.channels not in (1, 3):
            problem = f"has images of {host.filler.channels} channels, and {name} makes 1 or 3"
            self._refuse(problem, HOST)
        if host.filler.decoder != "auto":
            raise UsageError("decoder", f"is for decoding on the host, and {name} does it here", "leave it out")

    def known(self, records: Int64) -> NDArray[np.bool_]:
        """Return whether the decoder knows the encoding of each of `records`, bool (n,)."""
        return np.isin(self.pack.reader.values("encoding", records), self._known)

    def _refuse(self, problem: str, next_step: str) -> None:
        raise UsageError(self.pack.path, problem, next_step)

    def read(self, batches: Iterable[Int64], epoch: int) -> Iterator[EncodedBatch]:
        """Yield each batch, its records verified, damaged ones replaced."""
        for samples in announced(batches, self.pack):
            if not self.host.filler.verify and self.host.replacer is None:
                yield EncodedBatch(samples, self.host.filler.params(samples, epoch))
                continue
            try:
                records = records_in(samples)
                with self.pack.reader.held(records):
                    self.pack.reader.check(records)
            except DamagedPack as error:
                yield self.replaced(samples, epoch, error)
            else:
                yield EncodedBatch(samples, self.host.filler.params(samples, epoch))

    def replaced(self, samples: Int64, epoch: int, error: DamagedPack) -> EncodedBatch:
        """Return the batch with stand-ins for damaged records. Raise the error if the loader replaces none."""
        if self.host.replacer is None:
            raise error
        readable, replaced = self.host.replacer.stand_ins(samples, epoch)
        return EncodedBatch(readable, self.host.filler.params(readable, epoch), replaced)

    def data(self, records: Int64) -> Iterator[memoryview]:
        """Yield the bytes of each record, mapped, not copied; a remote record as a copy, because it may be evicted."""
        if self.pack.reader.is_remote:
            yield from map(self.pack.record, records.tolist())
            return
        region, places = self.pack.reader.region.data, self.pack.reader.places(records)
        for start, size in zip(*(numbers.tolist() for numbers in places), strict=True):
            yield region[start : start + size]

    def targets(self, batch: EncodedBatch, stats: Stats) -> Any:
        """Return the targets of a batch that is handed out, and count it."""
        started = time.perf_counter()
        targets = self.host.targets_of(batch.records, batch.params)
        stats.add("targets", time.perf_counter() - started)
        stats.images += len(batch.records)
        stats.batches += 1
        if self.host.replacer is not None and batch.replaced:
            self.host.replacer.report([what for _, what in batch.replaced], stats)
        return targets


COPIED_BYTES = 64 * 1024**2
HEADROOM = 0.9


# ``cache="device"``: keeps a pack of raw images of one shape on the device, and prepares batches there.
#
# All images are copied to the device once, and the host has no work per image after that. Crops are resized with the
# filters of `images.opencv.resample` as matrices; the host rounds after each axis, this code only once.


class DeviceCache:
    """Yields (images, targets, records) as `Pipeline` does, from device memory.

    Args:
        host: prepares the same batches on the host; its filler, targets, target transforms and replacer are used.
        device: the device of the images.

    Raises:
        UsageError: if the pack does not fit on the device.
    """

    decoded_by = ""

    def __init__(self, host: Pipeline, device: torch.device) -> None:
        filler, pack = host.filler, host.filler.pack
        if host.transforms.of_images:
            name = "transform" if host.transforms.transform else "transforms"
            raise UsageError(name, 'runs on the host, where cache="device" makes nothing', "leave out one")
        if pack.reader.record_bytes is None:
            raise UsageError(pack.path, 'cache="device" needs raw images of one shape', "pack with --resize and raw")
        if filler.dtype != np.uint8:
            raise UsageError(pack.path, f'cache="device" needs 8-bit images, but these are {filler.dtype}')
        need, free = pack.reader.record_bytes * len(pack), _free_bytes(device)
        if need > free * HEADROOM:
            raise UsageError(
                pack.path, f"has {size_text(need)} of images, but {device} has only {size_text(free)} free",
                'leave out cache="device", or pack smaller images',
            )  # fmt: skip
        self.host = host
        self.device = device
        self._whole = CropParams(None, None, pack.reader.shape_of(0)[:2])
        self._bad = np.zeros(len(pack), np.bool_)
        self._images = self._copied(pack.reader.record_bytes)

    def with_host(self, host: Pipeline) -> DeviceCache:
        """Return one for another host, with other crops of the same images."""
        other = copy(self)
        other.host = host
        return other

    def _copied(self, record_bytes: int) -> torch.Tensor:
        """Return all images on the device, uint8 (records, bytes of one)."""
        pack = self.host.filler.pack
        images = torch.empty((len(pack), record_bytes), dtype=torch.uint8, device=self.device)
        step = max(1, COPIED_BYTES // record_bytes)
        host = torch.empty((min(step, len(pack)), record_bytes), dtype=torch.uint8, device="cpu")
        parts = (np.arange(start, min(start + step, len(pack))) for start in range(0, len(pack), step))
        for records in announced(parts, pack):
            part = host[: len(records)]
            rows = part.numpy().reshape(len(records), *pack.reader.shape_of(0))
            try:
                self.host.filler.fill(records, self._whole, rows)
            except DamagedPack:
                if self.host.replacer is None:
                    raise
                self._fill_one_by_one(records, rows)
            images[records[0] : records[-1] + 1] = part
        return images

    def _fill_one_by_one(self, records: Int64, rows: NDArray[Any]) -> None:
        for i, record in enumerate(records.tolist()):
            one = slice(i, i + 1)
            problem = problem_of(lambda one=one: self.host.filler.fill(records[one], self._whole, rows[one]))  # type: ignore[misc]
            self._bad[record] = problem is not None

    def run(self, batches: Iterable[Int64], epoch: int, stats: Stats) -> Iterator[LoadedBatch]:
        """Yield one batch for each array of samples, in order; images uint8 on the device."""
        host, filler = self.host, self.host.filler
        for samples in batches:
            if host.replacer is not None and self._bad[records_in(samples)].any():
                samples, replaced = host.replacer.stand_ins(samples, epoch)  # noqa: PLW2901
                host.replacer.report([what for _, what in replaced], stats)
            params, records = filler.params(samples, epoch), records_in(samples)
            images = self._gathered(records)
            if params.regions is not None:
                images = crop_and_resize(images, params.regions, filler.output, filler.interpolation, params.border)
            images = oriented(images, params)
            stats.images += len(records)
            stats.batches += 1
            yield images, host.targets_of(records, params), samples

    def _gathered(self, records: Int64) -> torch.Tensor:
        """Return images (n, channels, height, width), channels last in memory."""
        numbers = torch.from_numpy(records).to(self.device, non_blocking=True)
        rows = torch.index_select(self._images, 0, numbers)
        return rows.view(len(records), *self.host.filler.pack.reader.shape_of(0)).permute(0, 3, 1, 2)


def oriented(images: torch.Tensor, params: CropParams) -> torch.Tensor:
    """Return images (n, channels, height, width), channels last in memory, flipped and turned where they are to be."""
    for flags, axis in ((params.flipped, 3), (params.upended, 2), (params.transposed, None)):
        if flags is not None:
            chosen = torch.from_numpy(flags).to(images.device, non_blocking=True)
            changed = images.transpose(2, 3) if axis is None else images.flip(axis)
            images = torch.where(chosen.view(-1, 1, 1, 1), changed, images)
    return images.contiguous(memory_format=torch.channels_last)


def _free_bytes(device: torch.device) -> int:
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else available_bytes()


def crop_and_resize(
    images: torch.Tensor, regions: np.ndarray[Any, Any], output: tuple[int, int], interpolation: Interpolation,
    border: int,
) -> torch.Tensor:  # fmt: skip
    """Resize the region (x, y, width, height) of each image, `border` beyond it, to (height, width); channels last."""
    corners = torch.from_numpy(np.ascontiguousarray(regions, np.float32)).to(images.device, non_blocking=True)
    n, channels, height, width = images.shape
    steps = corners[:, 2:] / corners.new_tensor([output[1], output[0]])
    if interpolation == "fast":
        averaged = (steps.amax(dim=1) > FAST_SHRINK)[:, None, None]
    else:
        averaged = torch.full((n, 1, 1), interpolation == "area", device=images.device)
    across, down = (
        _weights(corners[:, axis], corners[:, axis + 2], sides, interpolation, averaged)
        for axis, sides in enumerate(((width, output[1]), (height, output[0])))
    )
    # beyond the image all weights are 0: so values are counted from that of the border
    pixels = images.permute(0, 2, 3, 1).reshape(n, height, width * channels).float()
    rows = torch.bmm(down, pixels - border if border else pixels)
    columns = rows.view(n, output[0], width, channels).transpose(1, 2).reshape(n, width, output[0] * channels)
    values = torch.bmm(across, columns).add_(border).round_().clamp_(0, 255).to(torch.uint8)
    # (n, width, height, channels) until here
    made = values.view(n, output[1], output[0], channels).permute(0, 3, 2, 1)
    return made.contiguous(memory_format=torch.channels_last)


def _weights(
    start: torch.Tensor, size: torch.Tensor, sides: tuple[int, int], interpolation: Interpolation,
    averaged: torch.Tensor,
) -> torch.Tensor:  # fmt: skip
    """Return (n, outputs, pixels): the weight of each source pixel in each output pixel, along one axis.

    In output pixels outside the image, no source pixel has weight. Nothing blends into the others.

    Args:
        start: where each region starts.
        size: the length of each region.
        sides: (pixels, outputs).
        interpolation: the filter.
        averaged: whether an axis of each image that shrinks is averaged by a box filter.
    """
    start, size = start[:, None, None], size[:, None, None]
    pixels = torch.arange(sides[0], device=start.device)
    step = size / sides[1]
    left = start + step * torch.arange(sides[1], device=start.device)[:, None]
    centres = left + step / 2
    if interpolation == "nearest":
        return (centres.floor() == pixels).float()
    begin, end = start.clamp(min=0), (start + size).clamp(max=sides[0])
    if interpolation == "bilinear":
        # a region of whole pixels uses only its own, any other also those around it
        alone = (begin == begin.floor()) & (end == end.ceil())
        first, last = torch.where(alone, begin, 0), torch.where(alone, end, sides[0])
        triangle = (1 - (centres - 0.5 - pixels).abs() / step.clamp(min=1)).clamp(min=0)
        triangle = triangle * ((pixels >= first) & (pixels < last))
        weights = triangle / triangle.sum(dim=2, keepdim=True).clamp(min=1e-6)
    else:
        # not beyond the centres of the last pixels of the region, or of the image
        inside = torch.minimum(torch.maximum(centres, begin + 0.5), end - 0.5)
        linear = (1 - (inside - 0.5 - pixels).abs()).clamp(min=0)
        covered = torch.minimum(left + step, pixels + 1) - torch.maximum(left, pixels)
        weights = torch.where(averaged & (step > 1), covered.clamp(min=0) / step, linear)
    return weights * ((centres > 0) & (centres < sides[0]))


_MODES = {1: "GRAY", 3: "RGB"}


# ``decode="device"``: torchcodec decodes JPEGs on the device, where they are then cropped, resized and flipped.
#
# On a GPU this is nvJPEG, a whole batch in one call. On a CPU it gives the same pixels, slowly: it is there for tests.


def batches_of(
    decode: str | Decoding, host: Pipeline, device: torch.device, excluded: Mapping[str, bool]
) -> BatchMaker:
    """Return what decodes elsewhere than on the host: on the device, or by a library.

    Args:
        decode: "device", or the library's.
        host: makes the same batches on the host.
        device: where they go.
        excluded: which of the loader's arguments need the host's pixels, and whether they are given.

    Raises:
        UsageError: if one of them is given, or the pack cannot be decoded there.
    """
    for name, given in excluded.items():
        if given:
            raise UsageError("decode", f'cannot be other than "host" with {name}', "leave out one of them")
    if hasattr(decode, "batches"):
        return decode.batches(host, device)
    if decode != "device":
        raise UsageError("decode", f'must be "host" or "device", got {decode!r}')
    return DeviceDecode(host, device)


class DeviceDecode:
    """Yields (images, targets, records) as `Pipeline` does, decoded on the device.

    Records of a pack of copied files that are no JPEGs, and JPEGs that the device cannot decode (CMYK), are decoded
    on the host.

    Args:
        host: makes the same batches on the host; its filler, targets and replacer are used.
        device: where they are decoded.

    Raises:
        UsageError: if the pack has no JPEGs.
        NotInstalled: if torchcodec is missing.
    """

    decoded_by = "torchcodec"

    def __init__(self, host: Pipeline, device: torch.device) -> None:
        self.reader = EncodedReader(host, 'decode="device"', ("jpeg",))
        self.filler = host.filler
        self.device = device
        self._decode_jpeg = _torchcodec()
        self._options = {"mode": _MODES[host.filler.channels], "device": device}
        with warnings.catch_warnings():
            # torch has no read-only tensors and says so; nothing here writes
            warnings.simplefilter("ignore", UserWarning)
            self._mapped = [torch.from_numpy(part) for part in host.filler.pack.reader.region.parts]

    def run(self, batches: Iterable[Int64], epoch: int, stats: Stats) -> Iterator[LoadedBatch]:
        """Yield one batch for each array of record numbers, in order; images uint8 on the device."""
        for read in self.reader.read(batches, epoch):
            started, batch = time.perf_counter(), read
            try:
                decoded = self._decoded(batch.records)
            except DamagedPack as error:
                batch = self.reader.replaced(batch.samples, epoch, error)
                decoded = self._decoded(batch.records)
            images = self._cropped(decoded, batch.params)
            stats.add("decode", time.perf_counter() - started)
            yield images, self.reader.targets(batch, stats), batch.samples

    def with_host(self, host: Pipeline) -> DeviceDecode:
        """Return one for another host."""
        return DeviceDecode(host, self.device)

    def _decoded(self, records: Int64) -> list[torch.Tensor]:
        """Return whole images (channels, height, width) on the device."""
        images: list[Any] = [None] * len(records)
        known = np.flatnonzero(self.reader.known(records)).tolist()
        data = self._bytes_of(records[known])
        try:
            decoded = self._decode_jpeg(data, **self._options) if known else []
        except RuntimeError:
            decoded = self._one_by_one(data)
            if len(decoded) > 1 and all(image is None for image in decoded):
                self._on_host(int(records[known[0]]))  # raises if the records are to blame, and not the device
                raise
        for row, image in zip(known, decoded, strict=True):
            images[row] = image
        for row, image in enumerate(images):
            if image is None:
                images[row] = self._on_host(int(records[row]))
            elif image.shape[1:] != (shape := self.reader.pack.reader.shape_of(int(records[row])))[:2]:
                found = f"decodes to {image.shape[2]}x{image.shape[1]} pixels, its index says {shape[1]}x{shape[0]}"
                raise self.reader.pack.reader.damage_error(int(records[row]), found)
        return images

    def _bytes_of(self, records: Int64) -> list[torch.Tensor]:
        """Return the bytes of each record, mapped, not copied; a remote record as a copy, because it may be evicted."""
        pack = self.reader.pack
        if pack.reader.is_remote:
            return [torch.from_numpy(np.frombuffer(data, np.uint8).copy()) for data in self.reader.data(records)]
        data: list[Any] = [None] * len(records)
        rows, (starts, sizes) = np.arange(len(records)), pack.reader.places(records)
        for number, chosen, places in pack.reader.region.by_part(starts):
            for row, start, size in zip(rows[chosen].tolist(), places.tolist(), sizes[chosen].tolist(), strict=True):
                data[row] = self._mapped[number][start : start + size]
        return data

    def _one_by_one(self, data: list[torch.Tensor]) -> list[torch.Tensor | None]:
        """Return each image, None if the device cannot decode it."""
        images: list[torch.Tensor | None] = []
        for one in data:
            try:
                images += self._decode_jpeg([one], **self._options)
            except RuntimeError:
                images.append(None)
        return images

    def _on_host(self, record: int) -> torch.Tensor:
        image = self.reader.pack.image(record)
        return torch.from_numpy(image).to(self.device).permute(2, 0, 1)

    def _cropped(self, decoded: list[torch.Tensor], params: CropParams) -> torch.Tensor:
        """Return images uint8 (n, channels, height, width), channels last in memory."""
        shape = (len(decoded), self.filler.channels, *params.output)
        if params.regions is None:
            images = torch.empty(shape, dtype=torch.uint8, device=self.device, memory_format=torch.channels_last)
            torch.stack(decoded, out=images)
        else:
            values = torch.empty(shape, device=self.device, memory_format=torch.channels_last)
            for row, image in enumerate(decoded):
                values[row] = self._resized(image, params.regions[row : row + 1], params.output, params.border)
            images = values.round_().clamp_(0, 255).to(torch.uint8)
        return oriented(images, params)

    def _resized(self, image: torch.Tensor, region: Regions, output: tuple[int, int], border: int) -> torch.Tensor:
        """Return the region of an image at (height, width); pixels beyond the image are `border`."""
        interpolation = self.filler.interpolation
        sides = np.array(image.shape[:0:-1], np.float64)
        if not in_whole_pixels(region, (sides[:1], sides[1:])).all():
            return crop_and_resize(image[None], region, output, interpolation, border)[0]
        x, y, width, height = region[0].astype(int).tolist()
        part = image[:, y : y + height, x : x + width].float()
        if part.shape[1:] == output:
            return part
        if interpolation == "nearest":
            return interpolate(part[None], output, mode="nearest-exact")[0]
        return interpolate(part[None], output, mode="bilinear", antialias=interpolation in ANTIALIASED)[0]


def _torchcodec() -> Callable[..., Any]:
    try:
        decode: Callable[..., Any] = importlib.import_module("torchcodec.decoders").decode_jpeg
    except (ImportError, AttributeError, RuntimeError, OSError):
        # RuntimeError: for another torch
        problem = 'is not installed or does not fit this torch, and decode="device" needs it'
        raise NotInstalled("torchcodec", problem, "pip install 'torchcodec>=0.16'") from None
    return decode
