"""``cache="device"``: keeps a pack of raw images of one shape on the device, and prepares batches there.

All images are copied to the device once, and the host has no work per image after that. Crops are resized with the
filters of `images.resample.resample` as matrices; the host rounds after each axis, this code only once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from copy import copy
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from packer.errors import DamagedPack, UsageError, size_text
from packer.images.resample import FAST_SHRINK, Interpolation
from packer.loading.augmentation import CropParams
from packer.loading.page_cache import announced
from packer.loading.pipeline import LoadedBatch, Pipeline
from packer.loading.replace import problem_of
from packer.loading.stats import Stats
from packer.model.annotation import Int64
from packer.system import available_bytes

COPIED_BYTES = 64 * 1024**2
HEADROOM = 0.9


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
        if pack.record_bytes is None:
            raise UsageError(pack.path, 'cache="device" needs raw images of one shape', "pack with --resize and raw")
        if filler.dtype != np.uint8:
            raise UsageError(pack.path, f'cache="device" needs 8-bit images, but these are {filler.dtype}')
        need, free = pack.record_bytes * len(pack), _free_bytes(device)
        if need > free * HEADROOM:
            raise UsageError(
                pack.path, f"has {size_text(need)} of images, but {device} has only {size_text(free)} free",
                'leave out cache="device", or pack smaller images',
            )  # fmt: skip
        self.host = host
        self.device = device
        self._whole = CropParams(None, None, pack.shape_of(0)[:2])
        self._bad = np.zeros(len(pack), np.bool_)
        self._images = self._copied(pack.record_bytes)

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
            rows = part.numpy().reshape(len(records), *pack.shape_of(0))
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
        """Yield one batch for each array of record numbers, in order; images uint8 on the device."""
        host, filler = self.host, self.host.filler
        for records in batches:
            if host.replacer is not None and self._bad[records].any():
                records, replaced = host.replacer.stand_ins(records, epoch)  # noqa: PLW2901
                host.replacer.report([what for _, what in replaced], stats)
            params = filler.params(records, epoch)
            images = self._gathered(records)
            if params.regions is not None:
                images = cropped(images, params.regions, filler.output, filler.interpolation)
            if params.flipped is not None:
                flipped = torch.from_numpy(params.flipped).to(self.device, non_blocking=True)
                images = torch.where(flipped.view(-1, 1, 1, 1), images.flip(3), images)
            stats.images += len(records)
            stats.batches += 1
            yield images, host.targets_of(records, params), records

    def _gathered(self, records: Int64) -> torch.Tensor:
        """Return images (n, channels, height, width), channels last in memory."""
        numbers = torch.from_numpy(records).to(self.device, non_blocking=True)
        rows = torch.index_select(self._images, 0, numbers)
        return rows.view(len(records), *self.host.filler.pack.shape_of(0)).permute(0, 3, 1, 2)


def _free_bytes(device: torch.device) -> int:
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else available_bytes()


def cropped(
    images: torch.Tensor, regions: np.ndarray[Any, Any], output: tuple[int, int], interpolation: Interpolation
) -> torch.Tensor:
    """Resize the region (x, y, width, height) of each image to (height, width) `output`; uint8, channels last."""
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
    rows = torch.bmm(down, images.permute(0, 2, 3, 1).reshape(n, height, width * channels).float())
    columns = rows.view(n, output[0], width, channels).transpose(1, 2).reshape(n, width, output[0] * channels)
    values = torch.bmm(across, columns).round_().clamp_(0, 255).to(torch.uint8)
    # (n, width, height, channels) until here
    made = values.view(n, output[1], output[0], channels).permute(0, 3, 2, 1)
    return made.contiguous(memory_format=torch.channels_last)


def _weights(
    start: torch.Tensor, size: torch.Tensor, sides: tuple[int, int], interpolation: Interpolation,
    averaged: torch.Tensor,
) -> torch.Tensor:  # fmt: skip
    """Return (n, outputs, pixels): the weight of each source pixel in each output pixel, along one axis.

    Output pixels outside the image are black: no source pixel has weight in them. Nothing blends into the others.

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
