"""Crop and flip of each image, computed for a whole batch from (seed, epoch, record) alone."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.errors import UsageError
from packer.loading.crop import CenterCrop, Crop, RandomResizedCrop, Regions, Resize, with_whole_borders
from packer.model.annotation import Int64
from packer.samplers.order import Float64, uniform

STATE = ("view_seed", "crop", "flip", "set_crop")
"""What of a loader's state is about crops and flips."""
CROPS = {kind.__name__: kind for kind in (RandomResizedCrop, CenterCrop, Resize)}


@dataclass(frozen=True, slots=True, eq=False)
class CropParams:
    """The crops of a batch: the region of each image that fills the output, and whether it is mirrored."""

    regions: Regions | None
    flipped: NDArray[np.bool_] | None
    output: tuple[int, int]
    """(height, width)."""

    def __getitem__(self, rows: slice) -> CropParams:
        """Return those of some of the images."""
        regions = None if self.regions is None else self.regions[rows]
        return CropParams(regions, None if self.flipped is None else self.flipped[rows], self.output)

    def maps(self) -> Float64 | None:
        """Return the map of each image, (n, 4): x' = a x + c, y' = e y + f; None if all are the identity."""
        if self.regions is None and (self.flipped is None or not self.flipped.any()):
            return None
        height, width = self.output
        if self.regions is None:
            assert self.flipped is not None
            maps = np.tile((1.0, 0.0, 1.0, 0.0), (len(self.flipped), 1))
        else:
            x, y, w, h = self.regions.T
            sx, sy = width / w, height / h
            maps = np.stack([sx, -x * sx, sy, -y * sy], axis=1)
        if self.flipped is not None:
            maps[self.flipped, 0] *= -1
            maps[self.flipped, 1] = width - maps[self.flipped, 1]
        return maps


@dataclass(frozen=True, slots=True)
class Augmentation:
    """The crop, the chance of a horizontal flip, and the seed of both."""

    crop: Crop | None = None
    flip: float = 0.0
    seed: int = 0

    def params(
        self, records: Int64, epoch: int, output: tuple[int, int], sizes_of: Callable[[Int64], tuple[Float64, Float64]]
    ) -> CropParams:
        """Return crop and flip of each record; `sizes_of` gives the widths and heights that a crop needs."""
        count = 0 if self.crop is None else self.crop.num_random
        needed = count or self.flip
        random = uniform(self.seed, epoch, records, count + 1) if needed else np.zeros((len(records), 1))
        regions = None
        if self.crop is not None:
            sizes = sizes_of(records)
            regions = with_whole_borders(self.crop.regions(*sizes, random[:, 1:]), sizes, output)
        return CropParams(regions, random[:, 0] < self.flip if self.flip else None, output)

    @property
    def identity(self) -> dict[str, str | int | float | None]:
        """Return the fields for a state, which must be equal to resume it."""
        return {"view_seed": self.seed, "crop": crop_text(self.crop), "flip": float(self.flip)}

    def check(self, state: Mapping[str, Any]) -> None:
        """Raise UsageError if a state has another augmentation. States of packer 0.1.0 hold only the seed."""
        here = self.identity
        seed = state.get("view_seed")
        if type(seed) is not int or seed != here["view_seed"]:
            problem = f"has seed {seed!r} for crops and flips, here {here['view_seed']}"
            raise UsageError("state", problem, "give its seed")
        if "crop" not in state and "flip" not in state:
            return
        for name in ("crop", "flip"):
            if name not in state:
                raise UsageError("state", f"has no {name}", "resume with the same settings, or start over")
            there = state[name]
            if name == "crop" and state.get("set_crop", there) == here["crop"]:
                continue  # the loader was made with the crop that was set in the course of training
            if type(there) is not type(here[name]) or there != here[name]:
                problem = f"has {name} {there!r}, here {here[name]!r}"
                raise UsageError("state", problem, f"use the same {name}, or start over")


def crop_text(crop: Crop | None) -> str | None:
    """Return a crop as a state has it."""
    if crop is None:
        return None
    # the default repr contains an address, which differs between processes
    return type(crop).__qualname__ if type(crop).__repr__ is object.__repr__ else repr(crop)


def crop_of(text: Any, *known: Crop | None) -> Crop | None:
    """Return the crop with this text: one that is known, or any of packer's."""
    for crop in known:
        if crop_text(crop) == text:
            return crop
    try:
        call = ast.parse(text, mode="eval").body
        assert isinstance(call, ast.Call)
        made: Crop = CROPS[ast.unparse(call.func)](**{str(k.arg): ast.literal_eval(k.value) for k in call.keywords})
    except (AssertionError, KeyError, SyntaxError, TypeError, ValueError):
        problem = f"has crop {text!r} of set_crop, which is not one of packer's"
        raise UsageError("state", problem, "call set_crop with it before load_state_dict") from None
    return made
