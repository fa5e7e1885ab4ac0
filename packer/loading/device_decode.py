"""``decode="device"``: torchcodec decodes JPEGs on the device, where they are then cropped, resized and flipped.

On a GPU this is nvJPEG, a whole batch in one call. On a CPU it gives the same pixels, slowly: it is there for tests.
"""

from __future__ import annotations

import importlib
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch.nn.functional import interpolate

from packer.errors import DamagedPack, NotInstalled, UsageError
from packer.loading.augmentation import CropParams
from packer.loading.crop import Regions
from packer.loading.device_cache import cropped
from packer.loading.encoded import ANTIALIASED, BatchMaker, Decoding, EncodedReader
from packer.loading.parts import in_whole_pixels
from packer.loading.pipeline import LoadedBatch, Pipeline
from packer.loading.stats import Stats
from packer.model.annotation import Int64

_MODES = {1: "GRAY", 3: "RGB"}


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
            self._mapped = [torch.from_numpy(part) for part in host.filler.pack.region.parts]

    def run(self, batches: Iterable[Int64], epoch: int, stats: Stats) -> Iterator[LoadedBatch]:
        """Yield one batch for each array of record numbers, in order; images uint8 on the device."""
        for read in self.reader.read(batches, epoch):
            started, batch = time.perf_counter(), read
            try:
                decoded = self._decoded(batch.records)
            except DamagedPack as error:
                batch = self.reader.replaced(batch.records, epoch, error)
                decoded = self._decoded(batch.records)
            images = self._cropped(decoded, batch.params)
            stats.add("decode", time.perf_counter() - started)
            yield images, self.reader.targets(batch, stats), batch.records

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
            elif image.shape[1:] != (shape := self.reader.pack.shape_of(int(records[row])))[:2]:
                found = f"decodes to {image.shape[2]}x{image.shape[1]} pixels, its index says {shape[1]}x{shape[0]}"
                raise self.reader.pack.damage(int(records[row]), found)
        return images

    def _bytes_of(self, records: Int64) -> list[torch.Tensor]:
        """Return the bytes of each record, mapped, not copied; a remote record as a copy, because it may be evicted."""
        pack = self.reader.pack
        if pack.is_remote:
            return [torch.from_numpy(np.frombuffer(data, np.uint8).copy()) for data in self.reader.data(records)]
        data: list[Any] = [None] * len(records)
        rows, (starts, sizes) = np.arange(len(records)), pack.places(records)
        for number, chosen, places in pack.region.by_part(starts):
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
                values[row] = self._resized(image, params.regions[row : row + 1], params.output)
            images = values.round_().clamp_(0, 255).to(torch.uint8)
        if params.flipped is not None:
            flipped = torch.from_numpy(params.flipped).to(self.device, non_blocking=True)
            images = torch.where(flipped.view(-1, 1, 1, 1), images.flip(3), images)
        return images

    def _resized(self, image: torch.Tensor, region: Regions, output: tuple[int, int]) -> torch.Tensor:
        """Return the region of an image, black beyond it, at (height, width)."""
        interpolation = self.filler.interpolation
        sides = np.array(image.shape[:0:-1], np.float64)
        if not in_whole_pixels(region, (sides[:1], sides[1:])).all():
            return cropped(image[None], region, output, interpolation)[0]
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
