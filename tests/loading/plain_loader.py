"""A slow, plain loader: what the batches of `PackedLoader` must be, one sample, one crop and one step after another.

What it takes from packer: the random numbers of a sample (`uniform`, of the streams of seed, epoch and sample), the
region of a crop, for one image at a time, the grid of patches of an image, and the samples of an epoch in their order,
whose promises are tested beside. All else is written anew, here and in `plain_steps`: ranks and batches are slices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from plain_steps import OF_BOXES, Item, Step, crop, cut_off, flipped, quarter, upended

from packer import CoverCrop, Letterbox, Resize
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


@dataclass
class PlainLoader:
    """The batches of a loader with these options, whose names are those of `PackedLoader`."""

    items: Sequence[Item]
    """The samples of the pack as they are."""
    views: dict[str, View]
    """One of the name "" for a loader without views."""
    seed: int
    buckets: Any = None
    shared: bool = False
    """Whether crops of an image share what is decoded and averaged: with views and repeats."""
    options: dict[str, Any] = field(default_factory=dict)

    def batch(self, samples: Any, epoch: int) -> tuple[Any, Any]:
        """The images, float64 (n, height, width, channels), by view, and the targets of a batch."""
        shape, images, targets, number = None, {}, {}, 0
        if self.buckets is not None:
            height, width = self.items[int(samples[0]) % VISIT]["image"].shape[:2]
            shape = int(self.buckets.of(np.array([width]), np.array([height]))[0])
        for name, view in self.views.items():
            found = []
            for crop_number in range(number, number + view.count):
                seed = derive(self.seed ^ (5 << 32), crop_number) if crop_number else self.seed
                found += [self._made(int(sample), view, seed, epoch, shape) for sample in samples]
            number += view.count
            images[name] = [one["image"] for one in found]
            targets[name] = [self._target(one) for one in found]
        return images, targets

    def _made(self, sample: int, view: View, seed: int, epoch: int, shape: int | None) -> Item:
        """One sample after all of its steps."""
        item = {**self.items[sample % VISIT], "image_id": sample % VISIT}
        if "boxes" in item:
            self._without_ignored(item)
        for step in self.steps(item["image"].shape[:2], sample, view, seed, epoch, shape):
            item = step(item)
        return item

    def steps(
        self, size: tuple[int, int], sample: int, view: View, seed: int, epoch: int, shape: int | None
    ) -> list[Step]:
        """What happens to a sample whose image is of this (height, width): `shape` is the bucket of its batch."""
        cut_by = view.crop if shape is None else self._of_bucket(view.crop, size, shape)
        count = 0 if view.crop is None else view.crop.num_random
        count = 2 if isinstance(cut_by, CoverCrop) else count
        flip, *random = uniform(seed, epoch, np.array([sample]), count + 1)[0].tolist()
        down, turn = uniform(seed ^ (6 << 32), epoch, np.array([sample]), 2)[0].tolist()
        steps: list[Step] = []
        if cut_by is not None:
            size, whole = cut_by.output(size), size
            (region,) = cut_by.regions(*np.array([[whole[1]], [whole[0]]], float), np.array([random])).tolist()
            steps.append(crop(region, size, cut_by.interpolation, whole, self.shared))
        steps += [flipped(self.options.get("flip_index"))] * (flip < view.flip)
        steps += [upended(self.options.get("flip_index"))] * (down < view.vflip)
        if turn < view.rotate90:  # as likely by 90, 180 and 270 degrees
            steps += [quarter] * (1 + int(turn * 3 / view.rotate90))
        if cut_by is not None:
            steps.append(cut_off(size, self.options.get("min_area", 1.0), self.options.get("hide_outside", True)))
        return steps

    def _of_bucket(self, given: Any, size: tuple[int, int], shape: int) -> Any:
        """The crop of an image in a batch of this bucket."""
        if hasattr(self.buckets, "lengths"):
            grid = self.buckets.grids(np.array([size[1]]), np.array([size[0]]), self.buckets.lengths[shape])
            return Resize(tuple(int(side[0]) * self.buckets.patch for side in grid))
        default = CoverCrop() if self.buckets.fit == "cover" else Letterbox()
        return replace(given or default, size=self.buckets.shapes[shape])

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
        parts = self.options.get("parts")
        size = item["image"].shape[:2]
        made = {name: value for name, value in item.items() if name not in ("image", "value", "polygons")}
        for name, shape, dtype in (
            ("boxes", (-1, 4), "f4"), ("labels", (-1,), "i8"), ("landmarks", (-1, 2), "f4"), ("mask", size, "i8"),
            ("keypoints", (-1, 5, 3), "f4"), ("masks", (-1, *size), "u1"), ("iscrowd", (-1,), "i8"),
            ("ignored", (-1,), "?"), ("depth", (1, *size), "f4"),
        ):  # fmt: skip
            if name in item:
                made[name] = np.array(item[name], dtype).reshape(shape)
        if "right" in item:
            made["right"] = item["right"].transpose(2, 0, 1)
        if "polygons" in item:
            made["polygons"] = [np.array(one, "f4").reshape(-1, 2) for one in item["polygons"]]
        for name in ("mask", "masks", "depth", "right", "text"):
            if parts is not None and name not in parts:
                made.pop(name, None)
        if "value" in item:
            return np.array(item["value"], "f4")
        if made.keys() == {"label", "image_id"}:
            return made["label"]
        return made["mask"] if made.keys() == {"mask", "image_id"} else made
