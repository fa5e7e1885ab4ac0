"""A slow, plain loader: what the batches of `PackedLoader` must be, one sample, one crop and one step after another.

What it takes from packer: the random numbers of a sample (`uniform`, of the streams of seed, epoch and sample), the
region of a crop and the map of an affine transform, for one image at a time, the grid of patches of an image, and the
beta distribution. All else is written anew, here, in `plain_steps`, `plain_mosaic` and `plain_batches`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from mosaic_reference import places_of, shortly_before
from plain_mosaic import matrix_of, mosaic
from plain_steps import (
    ANY,
    OF_BOXES,
    Item,
    Step,
    blended,
    crop,
    cut_off,
    flipped,
    quarter,
    upended,
    warped,
    with_objects_of,
)

from packer import CoverCrop, Letterbox, Mosaic, Resize
from packer.loading.pair_filler import beta_shares
from packer.samplers.order import VISIT, derive, uniform

PADDED = VISIT << 20
"""Added to samples that are repeated so that all ranks have equally many."""


@dataclass
class View:
    """So many crops of each image."""

    crop: Any = None
    count: int = 1
    flip: float = 0.0
    vflip: float = 0.0
    rotate90: float = 0.0
    affine: Any = None


def shares_of(order: Any, batch: int, rank: int, world_size: int, drop_last: bool, pad: bool) -> list[Any]:
    """The samples of each batch of a rank; `batch` are those of all ranks."""
    if drop_last:
        order = order[: len(order) // batch * batch]
    elif pad:
        order = np.concatenate([order, order[: -len(order) % world_size] + PADDED])
    shares = [order[start : start + batch][rank::world_size] for start in range(0, len(order), batch)]
    return [share for share in shares if len(share)]


@dataclass
class PlainLoader:
    """The samples of a loader."""

    items: Sequence[Item]
    """The samples of the pack as they are."""
    views: dict[str, View]
    """One of the name "" for a loader without views."""
    seed: int
    buckets: Any = None
    shared: bool = False
    """Whether crops of an image share what is decoded and averaged: with views and repeats."""
    options: dict[str, Any] = field(default_factory=dict)
    """What is left of those of PackedLoader."""
    orders: dict[int, Any] = field(default_factory=dict)
    """The samples of epochs, of which other images are drawn for mosaics and pairs."""

    def batch(self, samples: Any, epoch: int) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
        """The images, float64 (height, width, channels), and the targets of a batch, by view."""
        images, targets, number, bucket = {}, {}, 0, None
        if self.buckets is not None:
            height, width = self.items[int(samples[0]) % VISIT]["image"].shape[:2]
            bucket = int(self.buckets.of(np.array([width]), np.array([height]))[0])
        for name, view in self.views.items():
            found = []
            for crop_number in range(number, number + view.count):
                seed = derive(self.seed ^ (5 << 32), crop_number) if crop_number else self.seed
                for sample in samples.tolist():
                    made = self._made(sample, view, seed, epoch, bucket)
                    found.append(self._paired(made, sample, view, epoch) if epoch in self.orders else made)
            number += view.count
            images[name] = [one["image"] for one in found]
            targets[name] = [self._target(one) for one in found]
        return images, targets

    def _made(self, sample: int, view: View, seed: int, epoch: int, bucket: int | None) -> Item:
        """One sample after all of its steps."""
        item = self._sample(sample % VISIT)
        for step in self.steps(item["image"].shape[:2], sample, view, seed, epoch, bucket):
            item = step(item)
        return item

    def _sample(self, record: int) -> Item:
        item = {**self.items[record], "image_id": record}
        if "boxes" in item:
            self._without_ignored(item)
        return item

    def _paired(self, item: Item, sample: int, view: View, epoch: int) -> Item:
        """A sample with objects of another one, then blended with another one, if that is drawn."""

        def random(sample: int, count: int) -> list[float]:
            drawn: list[float] = uniform(self.seed ^ (9 << 32), epoch, np.array([sample]), count)[0].tolist()
            return drawn

        def other(place: float, kind: int) -> tuple[Item, int]:
            order = [int(one) % VISIT for one in self.orders[epoch]]
            record = shortly_before(order, sample % VISIT, place)
            its_sample = record + ((4 << 20) + derive(sample, kind) % (1 << 20)) * VISIT
            return self._made(its_sample, view, self.seed, epoch, None), its_sample

        pasted, first, mixed, second, share = random(sample, 5)
        alpha, chance = self.options.get("mixup") or (1.0, 0.0)
        made = item
        if pasted < self.options.get("copy_paste", 0.0):
            one, its_sample = other(first, 0)
            made = with_objects_of(made, one, random(its_sample, len(one["boxes"]) + 1)[1:])
        if mixed < chance:
            made = blended(made, other(second, 1)[0], float(beta_shares(np.array([share]), alpha)[0]))
        return made

    def steps(
        self, size: tuple[int, int], sample: int, view: View, seed: int, epoch: int, bucket: int | None
    ) -> list[Step]:
        """What happens to a sample whose image is of this (height, width), in a batch of a bucket."""

        def random(stream: int, count: int) -> list[float]:
            drawn: list[float] = uniform(seed ^ (stream << 32), epoch, np.array([sample]), count)[0].tolist()
            return drawn

        options, cut_by = self.options, view.crop
        steps, turns = list[Step](), list[Step]()
        cut_by = view.crop if bucket is None else self._of_bucket(view.crop, size, bucket)
        flip, *numbers = random(0, 1 + (cut_by.num_random if cut_by else 0))
        down, turn = random(6, 2)
        if isinstance(cut_by, Mosaic):
            size = cut_by.output(size)
        elif cut_by is not None:
            size, whole = cut_by.output(size), size
            (region,) = cut_by.regions(*np.array([[whole[1]], [whole[0]]], float), np.array([numbers])).tolist()
            fill = getattr(cut_by, "fill", 0)
            steps.append(crop(region, size, cut_by.interpolation, whole, self.shared, fill))
        turns += [flipped(options.get("flip_index"))] * (flip < view.flip)
        turns += [upended(options.get("flip_index"))] * (down < view.vflip)
        if turn < view.rotate90:  # as likely by 90, 180 and 270 degrees
            turns += [quarter] * (1 + int(turn * 3 / view.rotate90))
        left = cut_off(
            size, options.get("min_area", 1.0), options.get("min_visible", 0.0), options.get("hide_outside", True)
        )
        its_map = None
        if view.affine is not None and not view.affine.is_identity:
            (its_map,) = view.affine.maps(np.array([random(7, view.affine.num_random)]), size)
        if isinstance(cut_by, Mosaic):
            shown = self._mosaic(cut_by, sample, random(8, 2 + cut_by.tiles), epoch, turns, its_map)
            return [lambda item: shown, *turns, left]
        steps += [*turns, *[left] * (cut_by is not None)]
        return steps if its_map is None else [*steps, warped(its_map, view.affine.fill), left]

    def _mosaic(
        self, crop: Mosaic, sample: int, random: list[float], epoch: int, turns: list[Step], its_map: Any
    ) -> Item:
        """The images of a mosaic, which is turned and then moved by a map, before its turns."""
        (chance, across, down, *drawn), order = random, [int(one) % VISIT for one in self.orders[epoch]]
        alone = chance >= crop.chance or (crop.close_epoch is not None and epoch >= crop.close_epoch)
        others = [] if alone else [shortly_before(order, sample % VISIT, one) for one in drawn]
        items = [self._sample(record) for record in (sample % VISIT, *others)]
        sizes = [item["image"].shape[1::-1] for item in items]
        turn = matrix_of(turns, crop.size)
        warp = np.eye(3) if its_map is None else np.linalg.inv(turn) @ np.vstack([its_map, [0, 0, 1]]) @ turn
        places = places_of(sizes, crop.size, crop.tiles, across, down)
        tiles = list(zip(items, places, strict=True))
        return mosaic(tiles, crop, warp, self.options.get("hide_outside", True))

    def _of_bucket(self, given: Any, size: tuple[int, int], bucket: int) -> Any:
        """The crop of an image in a batch of this bucket."""
        if hasattr(self.buckets, "lengths"):
            grid = self.buckets.grids(np.array([size[1]]), np.array([size[0]]), self.buckets.lengths[bucket])
            return Resize(tuple(int(side[0]) * self.buckets.patch for side in grid))
        default = CoverCrop() if self.buckets.fit == "cover" else Letterbox()
        return replace(given or default, size=self.buckets.shapes[bucket])

    def _without_ignored(self, item: Item) -> None:
        how, flags = self.options.get("ignored") or "keep", item["iscrowd"]
        item["labels"] = [one + self.options.get("label_offset", 0) for one in item["labels"]]
        if how == "flag":
            item["ignored"] = [bool(one) for one in flags]
        if how == "drop":
            for name in {*OF_BOXES} & item.keys():
                item[name] = [one for one, ignored in zip(item[name], flags, strict=True) if not ignored]

    def _target(self, item: Item) -> Any:
        """What is labelled in an image, as arrays."""
        size, parts = item["image"].shape[:2], self.options.get("parts")
        left_out = ["image", "value", *(set() if parts is None else PARTS - {*parts})]
        made = {name: value for name, value in item.items() if name not in left_out}
        for name, shape, dtype in (
            ("boxes", (-1, 4), "f4"), ("labels", (-1,), "i8"), ("landmarks", (-1, 2), "f4"), ("mask", size, "i8"),
            ("keypoints", (-1, 5, 3), "f4"), ("masks", (-1, *size), "u1"), ("iscrowd", (-1,), "i8"),
            ("ignored", (-1,), "?"), ("depth", (1, *size), "f4"),
        ):  # fmt: skip
            if name in made:
                values = np.array(made[name], None if np.size(made[name]) else dtype).reshape(shape)
                unknown = name in PARTS and (values == ANY).any()
                made[name] = values.astype(float if unknown else dtype)
        if "right" in made:
            made["right"] = made["right"].astype(float).transpose(2, 0, 1)
        if "polygons" in made:
            made["polygons"] = [np.array(one, "f4").reshape(-1, 2) for one in made["polygons"]]
        if "value" in item:
            return np.array(item["value"], "f4")
        if made.keys() == {"label", "image_id"}:
            return made["label"]
        return made["mask"] if made.keys() == {"mask", "image_id"} else made


PARTS = {"mask", "masks", "depth", "right", "text"}
