"""Batches as detectors of the DETR family take them: squares, and boxes as centers and sizes in fractions of them.

The order, the crops and the arithmetic of boxes are those of RF-DETR (Apache-2.0), which has the crops from DETR.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import cv2
import numpy as np
import torch
from numpy.typing import NDArray

from packer.format.pack import Pack
from packer.images.opencv import Interpolation
from packer.loading.annotations import BatchAnnotations, Column, read_annotations
from packer.loading.augmentation import CropParams
from packer.loading.crop import Regions
from packer.loading.decoding import sizes_of
from packer.loading.fill import Floats
from packer.loading.loader import PackedLoader
from packer.loading.pipeline import Pipeline
from packer.loading.targets import TargetOptions, Targets
from packer.model.annotation import Int64
from packer.model.fields import box_fields_of, object_of
from packer.samplers.order import MOST_VISITS, VISIT, Float64, Records, derive, permutation, permutation_function
from packer.samplers.sampler import Sampler

Form = Callable[[torch.Tensor, list[dict[str, torch.Tensor]]], Any]
"""Makes a batch of its images, (n, 3, height, width), and the target of each."""
_ROWS = ("boxes", "box_labels", "box_fields", "extras")


@dataclass(frozen=True)
class SquareCrop:
    """The whole image as a square; or by a chance a random square of it, which keeps its aspect.

    That square is one of the image resized to one of `shorts`. The resized image is not made: it is cut out of the
    original, and resampled once.

    Args:
        size: side of the output, in pixels.
        chance: of a random square.
        shorts: short sides of the image, each as likely.
        sides: range of the side of the square, in pixels of the image with such a short side.
        interpolation: as for `RandomResizedCrop`.
    """

    size: int
    chance: float = 0.0
    shorts: tuple[int, ...] = (400, 500, 600)
    sides: tuple[int, int] = (384, 600)
    interpolation: Interpolation = "fast"

    num_random = 5

    def output(self, shape: tuple[int, int] | None) -> tuple[int, int]:
        """Return `size` as (height, width), for any `shape`."""
        return self.size, self.size

    def regions(self, widths: Float64, heights: Float64, random: Float64) -> Regions:
        """Return regions of images; `widths`, `heights` and `random` are those of `Crop.regions`."""
        sizes = np.stack([widths, heights], axis=1)
        whole = np.hstack([np.zeros_like(sizes), sizes])
        if not self.chance:
            return whole
        short = np.array(self.shorts)[(random[:, 1] * len(self.shorts)).astype(np.int64)]
        resized = np.rint(sizes * (short / sizes.min(axis=1))[:, None])
        most = np.minimum(resized.min(axis=1), self.sides[1])
        least = np.minimum(self.sides[0], most)
        side = (least + np.floor(random[:, 2] * (most - least + 1)))[:, None]
        start = np.floor(random[:, 3:] * (resized - side + 1)) * sizes / resized
        # rounding errors must not put an edge outside the image
        square = np.hstack([start, np.minimum(side * sizes / resized, sizes - start)])
        return np.where((random[:, 0] < self.chance)[:, None], square, whole)


class AlignedSampler(Sampler):
    """Records in random order, each as often as any other or once more, so that an epoch has `num_samples`.

    A run that accumulates gradients needs as many batches as fill its last step. A record that comes again has another
    crop and flip.

    Args:
        pack: the pack.
        seed: seed of the order.
        num_samples: samples per epoch of all ranks together.
    """

    kind = "aligned"

    def __init__(self, pack: Pack, seed: int, num_samples: int) -> None:
        super().__init__(pack, seed)
        self.num_samples = num_samples
        self._ranks()

    def _options(self) -> dict[str, int]:
        return {"num_samples": self.num_samples}

    def _order(self, epoch: int) -> Records:
        count, key = self.num_indices, derive(self.seed, epoch)
        rounds, places = np.divmod(permutation(self.num_samples, key).astype(np.int64), count)
        for again in range(1, int(rounds.max(initial=0)) + 1):
            mine = rounds == again
            places[mine] = permutation_function(count, derive(key, again))(places[mine])
        order: Records = places + rounds % MOST_VISITS * VISIT
        return order


class DetrTargets(Targets):
    """The boxes of a pack's records, computed in float32, operation by operation, as torchvision's transforms do.

    Args:
        pack: a pack with boxes and their classes.
        fractions: whether boxes are centers and sizes in fractions of the image; else corners in pixels.
        ids: those of all images; default: what the records say.
    """

    def __init__(self, pack: Pack, fractions: bool = True, ids: Int64 | None = None) -> None:
        super().__init__(pack, TargetOptions(parts=()))
        there = {name.partition(".")[0] for name in pack.manifest.fields}
        self._rows = [name for name in _ROWS if name in there]
        self._fractions, self._of_images = fractions, ids

    def of(self, records: Int64, params: CropParams | None = None, out: Any = None) -> BatchAnnotations:
        """Return boxes (m, 4), labels, area and iscrowd (m,); id (1,), orig_size and size (2,) of each image.

        Crowds, and boxes of which a crop leaves nothing, are left out.
        """
        try:
            return self._of(records, params)
        except (ValueError, TypeError, OverflowError):
            read_annotations(self._pack, records, self._fields)  # names the record that is damaged
            raise

    def _of(self, records: Int64, params: CropParams | None) -> BatchAnnotations:
        rows = dict(zip(self._rows, self._pack.reader.rows(self._rows, records), strict=True))
        counts = np.array([len(row) for row in rows["boxes"]], np.int64)
        boxes, labels = np.concatenate(rows["boxes"]), np.concatenate(rows["box_labels"]).astype(np.int64)
        area, crowd = _areas(boxes), np.zeros(len(boxes), np.bool_)
        if "box_fields" in rows:
            _read_fields(rows["box_fields"], counts, area, crowd)
        images, sizes = np.repeat(np.arange(len(counts)), counts), np.stack(sizes_of(self._pack, records), axis=1)
        boxes = _clipped(boxes, np.tile(sizes.astype(np.float32), 2)[images])
        boxes, area, keep = self._boxes_placed(boxes, area, images, sizes, params)
        keep &= ~crowd
        counts = np.bincount(images[keep], minlength=len(counts))
        size = sizes[:, ::-1] if params is None else np.tile(params.output, (len(counts), 1))
        if self._fractions:
            boxes = _as_fractions(boxes, size.astype(np.float32)[images])
        ones = np.ones(len(counts), np.int64)
        ids = image_ids(rows.get("extras"), records) if self._of_images is None else self._of_images[records]
        columns = {
            "boxes": Column(boxes[keep], counts),
            "labels": Column(labels[keep], counts),
            "id": Column(ids, ones),
            "area": Column(area[keep], counts),
            "iscrowd": Column(np.zeros(int(keep.sum()), np.int64), counts),
            "orig_size": Column(sizes[:, ::-1].astype(np.int64).ravel(), 2 * ones),
            "size": Column(size.astype(np.int64).ravel(), 2 * ones),
        }
        return BatchAnnotations(records, columns)

    def _boxes_placed(
        self, boxes: Any, area: Any, images: Int64, sizes: Float64, params: CropParams | None
    ) -> tuple[Any, Any, Any]:
        """Return boxes and their areas after crops and flips, and which of them have an area."""
        keep = _have_area(boxes)
        if params is None:
            return boxes, area, keep
        height, width = params.output
        if params.regions is not None:
            start, extent = params.regions[:, :2], params.regions[:, 2:]
            scale = np.array([width, height]) / extent
            if (cropped := (extent != sizes).any(axis=1)).any():
                boxes = boxes - np.tile(start.astype(np.float32), 2)[images]
            boxes = boxes * np.tile(scale.astype(np.float32), 2)[images]
            area = area * scale.prod(axis=1).astype(np.float32)[images]
            if cropped.any():
                boxes = _clipped(boxes, np.array([width, height, width, height], np.float32))
                keep &= _have_area(boxes)
                area = np.where(cropped[images], _areas(boxes), area)
        if params.flipped is not None:
            mirrored = boxes[:, [2, 1, 0, 3]]
            mirrored[:, [0, 2]] = np.float32(width) - mirrored[:, [0, 2]]
            boxes = np.where(params.flipped[images][:, None], mirrored, boxes)
        return boxes, area, keep


def _areas(boxes: Any) -> Any:
    return ((boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])).astype(np.float32)


def _have_area(boxes: Any) -> Any:
    return (boxes[:, 2:] > boxes[:, :2]).all(axis=1)


def _clipped(boxes: Any, limits: Any) -> Any:
    return np.minimum(np.maximum(boxes, np.float32(0)), limits)


def _as_fractions(boxes: Any, size: Any) -> Any:
    """Return center and size of each box in fractions of its image, of (height, width)."""
    low, high = boxes[:, :2], boxes[:, 2:]
    return np.hstack([(low + high) / np.float32(2), high - low]) / np.tile(size[:, ::-1], 2)


def _read_fields(texts: Any, counts: Int64, area: Any, crowd: NDArray[np.bool_]) -> None:
    """Write what is known of the boxes of each image to the places of these boxes."""
    first = 0
    for text, count in zip(texts, counts.tolist(), strict=True):
        fields = box_fields_of(text, count)
        for place, value in enumerate(fields.get("area", ()), first):
            area[place] = area[place] if value is None else value
        crowd[first : first + count] |= np.array(fields.get("iscrowd", [0] * count), np.bool_)
        first += count


def image_ids(extras: Any, records: Int64) -> Int64:
    """Return the ids that a COCO file has given to images, int64 (n,), or else the numbers of their records.

    Args:
        extras: rows of the column, or None.
        records: numbers of the records.
    """
    if extras is None:
        return records
    found = [object_of(text).get("image_id") for text in extras]
    pairs = zip(found, records.tolist(), strict=True)
    return np.array([key if type(key) is int else record for key, record in pairs], np.int64)


class TableFloats(Floats):
    """Turns uint8 rows into float32 ones, (channels, height, width), by looking each value up.

    Args:
        table: what becomes of the values 0 to 255 of each channel, float32 (channels, 256).
    """

    def __init__(self, table: NDArray[np.float32]) -> None:
        super().__init__(None, None, 255.0, len(table), planar=True)
        self._table = np.ascontiguousarray(table)

    def __call__(self, rows: NDArray[Any], out: NDArray[np.float32]) -> None:
        """Write what the table says of rows (n, height, width, channels) to `out`."""
        planes = list(np.empty((len(self._table), *rows.shape[1:3]), np.uint8))
        for row, floats in zip(rows, out, strict=True):
            cv2.split(row, planes)
            for plane, values, found in zip(planes, self._table, floats, strict=True):
                cv2.LUT(plane, values, found)


class DetrLoader(PackedLoader):
    """A PackedLoader with `DetrTargets`.

    Args:
        pack: the pack.
        batch_size: samples per batch on this rank.
        form: what a batch becomes.
        table: as for `TableFloats`; what `mean` and `std` are on another device than the CPU.
        fractions: as for `DetrTargets`.
        ids: likewise.
        options: of PackedLoader.
    """

    def __init__(
        self, pack: Pack, batch_size: int, form: Form, table: NDArray[np.float32], fractions: bool = True,
        ids: Int64 | None = None, **options: Any,
    ) -> None:  # fmt: skip
        super().__init__(pack, batch_size, parts=(), memory_format=torch.contiguous_format, **options)
        host, targets = self._host, DetrTargets(pack, fractions, ids)
        work = replace(host.work, floats=None if host.floats is None else TableFloats(table))
        self._host = Pipeline(host.filler, targets, host.batch_size, work, host.transforms, host.replacer)
        self._batches = self._host
        self._hand_over = _HandOver(self._hand_over, form)  # type: ignore[assignment]


class _HandOver:
    """What is done with a batch last."""

    def __init__(self, before: Any, form: Form) -> None:
        self._before, self._form = before, form
        self.identity, self.check = before.identity, before.check

    def __call__(self, batch: Any, epoch: int, number: int) -> Any:
        images, targets = self._before(batch, epoch, number)
        for target in targets:
            target["image_id"] = target.pop("id")  # not the number of the record
        return self._form(images, targets)
