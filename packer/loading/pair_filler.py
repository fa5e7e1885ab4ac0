"""Fills rows of a batch with pairs of images: one that another is mixed into, or that gets objects of another."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import cv2
import numpy as np
import torch
from numpy.typing import NDArray

from packer.errors import UsageError
from packer.loading.annotations import BatchAnnotations
from packer.loading.epoch_order import EpochOrder
from packer.loading.fill import Floats, ImageFiller
from packer.loading.targets import Targets
from packer.model.annotation import Int64
from packer.model.fields import INSTANCES
from packer.samplers.order import MOST_VISITS, VISIT, Float64, derive, records_in, uniform
from packer.samplers.ranks import as_number

PAIR_STREAM = 9 << 32
"""Gives pairs other random numbers than crops, flips and mosaics."""
PARTNER = 4 * MOST_VISITS
"""Visits of a record in a pair, above all others; so it has another crop than where it is itself."""
HIDES = 0.3
"""An object is pasted if it covers less than this share of the box of each that is there, as in Ultralytics."""
PASTED = 0.5
"""Chance of each object that may be pasted: a random subset of them (Ghiasi and others 2021, arXiv 2012.07177)."""
_GRID = 1 << 16
_SHIFT = 4
"""Fractional bits of the corners of polygons that are drawn."""


@dataclass(frozen=True, slots=True)
class Pairing:
    """How often images are mixed with others, and get objects of others.

    Args:
        alpha: both parameters of the beta distribution of the share that stays.
        mixed: chance of a mixture.
        pasted: chance of objects of another image.
    """

    alpha: float = 1.0
    mixed: float = 0.0
    pasted: float = 0.0

    @property
    def identity(self) -> dict[str, Any]:
        """Return the fields for a state: those of what is used."""
        mixup = {"mixup": [self.alpha, self.mixed]} if self.mixed else {}
        return {**mixup, **({"copy_paste": self.pasted} if self.pasted else {})}


def check_pairing(mixup: Any, copy_paste: Any, targets: Targets) -> Pairing | None:
    """Return how images are paired; None if they are not.

    Args:
        mixup: of the loader: (alpha, chance), or what is not for pairs.
        copy_paste: of the loader: a chance.
        targets: those of the pack.

    Raises:
        UsageError: if they are out of range, or the pack lacks what they need.
    """
    alpha, mixed, chance = 1.0, 0.0, as_number(copy_paste)
    if not 0 <= chance <= 1:
        raise UsageError("copy_paste", f"must be a chance from 0.0 to 1.0, got {copy_paste!r}", "write copy_paste=0.5")
    if isinstance(mixup, (tuple, list)):
        alpha, mixed = map(as_number, mixup) if len(mixup) == 2 else (math.nan, math.nan)
        if not (0 < alpha < math.inf and 0 <= mixed <= 1):
            problem = f"must be (alpha, chance) for objects, got {mixup!r}"
            raise UsageError("mixup", problem, "write mixup=(32.0, 0.15), or leave it out")
        if not targets.has_boxes:
            hint = "write alpha alone: mixup=0.2" if targets.are_labels else "leave it out"
            raise UsageError("mixup", "is (alpha, chance), but the pack has no boxes", hint)
    elif mixup is not None and targets.has_boxes:
        problem = f"is {mixup!r}, but the pack has boxes, which need alpha and a chance"
        raise UsageError("mixup", problem, "write mixup=(32.0, 0.15), or leave it out")
    if chance and not (targets.has_boxes and targets.has_outlines):
        problem = "needs boxes with polygons or masks of their own, but the targets have none"
        raise UsageError("copy_paste", problem, "leave it out")
    return Pairing(alpha, mixed, chance) if mixed or chance else None


@dataclass(frozen=True, slots=True, eq=False)
class Partners:
    """Images that go into some rows of a batch."""

    rows: Int64
    """Of the batch, sorted, (k,)."""
    records: Int64
    params: Any
    """Their crops or mosaics."""

    def __getitem__(self, chosen: slice) -> Partners:
        """Return some of them."""
        return Partners(self.rows[chosen], self.records[chosen], self.params[chosen])

    def of_rows(self, first: int, last: int) -> tuple[Partners, slice]:
        """Return those of some rows, counted from the first, and which they are."""
        chosen = slice(*np.searchsorted(self.rows, (first, last)).tolist())
        found = self[chosen]
        return replace(found, rows=found.rows - first), chosen


@dataclass(frozen=True, slots=True, eq=False)
class PairParams:
    """What is in each row of a batch."""

    own: Any
    """The crops or mosaics of the rows."""
    pasted: Partners
    objects: list[NDArray[np.bool_]]
    """Which boxes of each pasted image are copied."""
    outlines: list[NDArray[np.uint8]]
    """Where they are, 1 in (height, width)."""
    mixed: Partners
    shares: Float64
    """Of each row that is mixed, what stays of it."""

    def __getitem__(self, rows: slice) -> PairParams:
        """Return those of some of the rows."""
        first, last = rows.start or 0, np.iinfo(np.int64).max if rows.stop is None else rows.stop
        pasted, those = self.pasted.of_rows(first, last)
        mixed, these = self.mixed.of_rows(first, last)
        return PairParams(self.own[rows], pasted, self.objects[those], self.outlines[those], mixed, self.shares[these])


class PairFiller(ImageFiller):
    """Fills rows of a batch as another filler does, and puts other images of the epoch into some of them.

    Those have crops, flips or mosaics of their own, drawn for (seed, epoch, record, visit) of the row.

    Args:
        one: fills rows with one image, or one mosaic.
        pairing: how often images are paired.
        targets: those of the pack, for the outlines of objects.
        order: the records of an epoch, from which the other images are drawn.
        seed: any integer.
    """

    def __init__(self, one: ImageFiller, pairing: Pairing, targets: Targets, order: EpochOrder, seed: int) -> None:
        self.one, self.pairing, self._targets, self._order, self._seed = one, pairing, targets, order, seed
        self.pack, self.augmentation, self.decoder, self.verify = one.pack, one.augmentation, one.decoder, one.verify
        self.interpolation, self.channels, self.output = one.interpolation, one.channels, one.output

    def with_one(self, one: ImageFiller) -> PairFiller:
        """Return the same with other crops."""
        return PairFiller(one, self.pairing, self._targets, self._order, self._seed)

    @property
    def decoded_by(self) -> str:
        """What decodes JPEGs."""
        return self.one.decoded_by

    def shaped(self, memory: NDArray[np.uint8], count: int, floats: Floats | None = None) -> Any:
        """Return memory of `count` rows as these rows, or as those of `floats`."""
        return self.one.shaped(memory, count, floats)

    def params(self, samples: Int64, epoch: int) -> Any:
        """Return what is in the row of each sample: it depends on (seed, epoch, record, visit) and the order alone."""
        pairing = self.pairing
        random = uniform(self._seed ^ PAIR_STREAM, epoch, samples, 5)
        own = self.one.params(samples, epoch)
        pasted, others = self._partners(samples, random[:, 0] < pairing.pasted, random[:, 1], epoch, 0)
        mixed, _ = self._partners(samples, random[:, 2] < pairing.mixed, random[:, 3], epoch, 1)
        objects: list[NDArray[np.bool_]] = []
        outlines: list[NDArray[np.uint8]] = []
        for place, row in enumerate(pasted.rows.tolist()):
            kept, mask = self._chosen(
                self.one.targets_of(self._targets, records_in(samples[row : row + 1]), own[row : row + 1]),
                self.one.targets_of(self._targets, pasted.records[place : place + 1], pasted.params[place : place + 1]),
                partial(uniform, self._seed ^ PAIR_STREAM, epoch, others[place : place + 1]),
            )
            objects.append(kept)
            outlines.append(mask)
        shares = beta_shares(random[mixed.rows, 4], pairing.alpha)
        return PairParams(own, pasted, objects, outlines, mixed, shares)

    def _partners(
        self, samples: Int64, chosen: NDArray[np.bool_], random: Float64, epoch: int, kind: int
    ) -> tuple[Partners, Int64]:
        """Return other images of the epoch for some of the samples, and their own samples."""
        rows = np.flatnonzero(chosen)
        records = self._order.near(epoch, records_in(samples[rows]), random[rows, None])[:, 0]
        visits = [PARTNER + derive(sample, kind) % MOST_VISITS for sample in samples[rows].tolist()]
        others = records + np.array(visits, np.int64) * VISIT
        return Partners(rows, records, self.one.params(others, epoch)), others

    def _chosen(
        self, own: BatchAnnotations, other: BatchAnnotations, draw: Callable[[int], Float64]
    ) -> tuple[NDArray[np.bool_], NDArray[np.uint8]]:
        """Return which objects of another image are pasted into an image, and where they are."""
        boxes = other.columns["boxes"].values
        free = (shares_covered(boxes, own.columns["boxes"].values) < HIDES).all(axis=1)
        free &= ~other.treat_ignored("flag").columns["ignored"].values
        shapes = outlines_of(other, self.output)
        kept = free & (draw(len(boxes) + 1)[0, 1:] < PASTED) & shapes.any(axis=(1, 2))
        mask = np.zeros(self.output, np.uint8)
        for shape in shapes[kept]:
            mask |= shape
        return kept, mask

    def fill(self, records: Int64, params: Any, rows: Any) -> None:
        """Write the image, or the pair, of each record to its row. Raise DamagedPack if one cannot be read."""
        self.one.fill(records, params.own, rows)
        for place, (row, image) in enumerate(self._images(params.pasted)):
            where = params.outlines[place].view(np.bool_)
            rows[row][where] = image[where]
        for place, (row, image) in enumerate(self._images(params.mixed)):
            share = float(params.shares[place])
            cv2.addWeighted(rows[row], share, image, 1 - share, 0, dst=rows[row])

    def _images(self, partners: Partners) -> Iterator[tuple[int, Any]]:
        """Yield the row of each partner, and its image."""
        for place, row in enumerate(partners.rows.tolist()):
            image = self.shaped(np.empty(self.row_bytes, np.uint8), 1)
            self.one.fill(partners.records[place : place + 1], partners.params[place : place + 1], image)
            yield row, image[0]

    def targets_of(self, targets: Any, records: Int64, params: Any, out: NDArray[Any] | None = None) -> Any:
        """Return annotations with the objects of both images of a pair; as `of` does."""
        found = self.one.targets_of(targets, records, params.own)
        if len(params.pasted.rows):
            found = self._with_pasted(found, targets, params)
        if len(params.mixed.rows):
            found = self._with_mixed(found, targets, params)
        return found

    def _with_pasted(self, found: BatchAnnotations, targets: Any, params: PairParams) -> BatchAnnotations:
        others = self.one.targets_of(targets, params.pasted.records, params.pasted.params)
        for place, row in enumerate(params.pasted.rows.tolist()):
            where = torch.from_numpy(params.outlines[place]).bool()
            for part in targets.of_pixels:
                values = found.images[part][row] = found.images[part][row].clone()
                values[..., where] = others.images[part][place][..., where]
            if INSTANCES.target in found.images:
                masks = others.images[INSTANCES.target]
                masks[place] = masks[place][torch.from_numpy(params.objects[place])]
                found.images[INSTANCES.target][row] = found.images[INSTANCES.target][row] * ~where
        kept = np.concatenate([*params.objects, np.zeros(0, np.bool_)])
        return _joined(found, others.having(kept, others.columns["boxes"].counts), params.pasted.rows)

    def _with_mixed(self, found: BatchAnnotations, targets: Any, params: PairParams) -> BatchAnnotations:
        others = self.one.targets_of(targets, params.mixed.records, params.mixed.params)
        for place, row in enumerate(params.mixed.rows.tolist()):
            for part in targets.of_pixels:
                if params.shares[place] < 0.5:  # pixels are of one class: of the image that is seen better
                    found.images[part][row] = others.images[part][place]
        return _joined(found, others, params.mixed.rows)


def _joined(found: BatchAnnotations, others: BatchAnnotations, rows: Int64) -> BatchAnnotations:
    """Return annotations with the objects of other images in some rows."""
    groups = np.concatenate([np.arange(len(found.records)), rows])
    order = np.argsort(groups, kind="stable")
    return BatchAnnotations.join([found, others]).take(order).grouped(groups[order])


def shares_covered(boxes: NDArray[Any], others: NDArray[Any]) -> Float64:
    """Return which share of each of the other boxes (m, 4) lies in each box (n, 4), as (n, m)."""
    low = np.maximum(boxes[:, None, :2], others[None, :, :2])
    high = np.minimum(boxes[:, None, 2:], others[None, :, 2:])
    areas = np.prod(others[:, 2:] - others[:, :2], axis=1)
    shares: Float64 = np.prod(np.clip(high - low, 0, None), axis=2) / np.maximum(areas, 1e-9)
    return shares


def outlines_of(annotations: BatchAnnotations, output: tuple[int, int]) -> NDArray[np.uint8]:
    """Return where each object of an image is, 1 in (k, height, width): its mask, or its polygon."""
    masks = annotations.images.get(INSTANCES.target)
    if masks is not None:
        found: NDArray[np.uint8] = masks[0].numpy()
        return found
    column = annotations.columns["polygons"]
    assert column.sizes is not None
    drawn = np.zeros((len(column.sizes), *output), np.uint8)
    for mask, corners in zip(drawn, np.split(column.values, np.cumsum(column.sizes)), strict=False):
        if len(corners):  # corners are at the edges of pixels, OpenCV's at their centers
            fixed = np.rint((corners[:, :2] - 0.5) * (1 << _SHIFT)).astype(np.int32)
            cv2.fillPoly(mask, [fixed], 1, cv2.LINE_8, _SHIFT)
    return drawn


def beta_shares(random: Float64, alpha: float) -> Float64:
    """Return numbers of the beta distribution of (alpha, alpha) for random numbers in [0, 1)."""
    # x = sin(t)**2 spreads the ends, where the density of a small alpha is infinite
    angles = (np.arange(_GRID) + 0.5) * (math.pi / 2 / _GRID)
    with np.errstate(under="ignore"):
        density = np.exp((2 * alpha - 1) * np.log(np.sin(2 * angles)))
    below = np.cumsum(density) - density / 2
    below /= density.sum()
    shares: Float64 = np.sin(np.interp(random, below, angles)) ** 2
    return shares
