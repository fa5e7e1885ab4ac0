"""What a loader draws for each image: its crop, flips, turn and affine map, out of (seed, epoch, record, visit)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.errors import UsageError
from packer.images.opencv import Interpolation
from packer.loading.affine import AFFINE_STREAM, RandomAffine
from packer.loading.crop import Crop, Regions, ResizingCrop, crop_text, interpolation_of, with_whole_borders
from packer.model.annotation import Int64
from packer.samplers.order import Float64, records_in, uniform
from packer.samplers.ranks import as_number

Flags = NDArray[np.bool_]
"""bool (n,): one for each image."""
TURNS = ("vflip", "rotate90")
"""Chances beside that of a flip."""
UNUSED = {**dict.fromkeys(TURNS, 0.0), "affine": None}
"""What of a state is there only if it is used, and what it is else."""
STATE = ("view_seed", "crop", "flip", *UNUSED, "set_crop")
"""What of a loader's state is about crops and flips."""
TURN_STREAM = 6 << 32
"""Gives vertical flips and turns other random numbers than crops and flips, which are then those without them."""


@dataclass(frozen=True, slots=True, eq=False)
class CropParams:
    """The crops of a batch: the region of each image that fills the output, and what is done to it then.

    A turn by 90 degrees is a flip and a transposition, one by 180 degrees both flips.
    """

    regions: Regions | None
    flipped: Flags | None
    """Whether left and right are exchanged."""
    output: tuple[int, int]
    """(height, width)."""
    upended: Flags | None = None
    """Whether top and bottom are exchanged."""
    transposed: Flags | None = None
    """Whether rows then become columns, in a square."""
    affine: Float64 | None = None
    """The affine map of what there is then, (n, 2, 3), as `maps` has it."""
    border: int = 0
    """The value of pixels outside the image."""
    interpolation: Interpolation = "area"
    """The filter of the crop."""
    choices: Int64 | None = None
    """What a crop that resizes by itself has drawn for each image."""

    def __getitem__(self, rows: slice) -> CropParams:
        """Return those of some of the images."""
        regions = None if self.regions is None else self.regions[rows]
        flipped, upended, transposed = (
            None if each is None else each[rows] for each in (self.flipped, self.upended, self.transposed)
        )
        affine = None if self.affine is None else self.affine[rows]
        choices = None if self.choices is None else self.choices[rows]
        more = self.border, self.interpolation, choices
        return CropParams(regions, flipped, self.output, upended, transposed, affine, *more)

    @property
    def flips(self) -> list[Flags]:
        """Exchanges of left and right, of top and bottom, and of rows and columns: those that there may be."""
        return [each for each in (self.flipped, self.upended, self.transposed) if each is not None]

    @property
    def is_whole(self) -> bool:
        """Whether all images stay as they are."""
        return self.regions is None and self.affine is None and not self.flips

    @property
    def reflected(self) -> Flags:
        """Which images are mirror images: those of an odd number of flips, of which a transposition is one."""
        reflected: Flags = np.logical_xor.reduce(self.flips)
        return reflected

    def maps(self) -> Float64 | None:
        """Return the map of each image by crop, flips and turn, (n, 2, 3): x' = a x + b y + c, y' = d x + e y + f.

        None if all are the identity. `affine` is not in it: what the crop has cut off stays away.
        """
        if self.regions is None and not any(each.any() for each in self.flips):
            return None
        height, width = self.output
        maps = np.zeros((len(self.flips[0] if self.regions is None else self.regions), 2, 3))
        if self.regions is None:
            maps[:, 0, 0] = maps[:, 1, 1] = 1
        else:
            x, y, w, h = self.regions.T
            sx, sy = width / w, height / h
            maps[:, 0, 0], maps[:, 0, 2], maps[:, 1, 1], maps[:, 1, 2] = sx, -x * sx, sy, -y * sy
        for axis, (each, side) in enumerate(((self.flipped, width), (self.upended, height))):
            if each is not None:
                maps[each, axis] *= -1
                maps[each, axis, 2] += side
        if self.transposed is not None:
            maps[self.transposed] = maps[self.transposed, ::-1]
        return maps

    def view_before_turns(self, row: int, pixels: NDArray[Any]) -> NDArray[Any]:
        """Return pixels (height, width, ...) of an image as a view: what is written to it is upended and transposed."""
        if self.transposed is not None and self.transposed[row]:
            pixels = pixels.swapaxes(0, 1)
        return pixels[::-1] if self.upended is not None and self.upended[row] else pixels


@dataclass(frozen=True, slots=True, eq=False)
class EachParams:
    """How each image of a batch is resized and flipped, where each has an output of its own."""

    each: list[CropParams]

    def __getitem__(self, rows: slice) -> EachParams:
        """Return those of some of the images."""
        return EachParams(self.each[rows])

    @property
    def output(self) -> tuple[int, int]:
        """The largest (height, width)."""
        heights, widths = zip(*(one.output for one in self.each), strict=True)
        return max(heights), max(widths)


CHANCES = {"flip": 0.5, "vflip": 0.5, "rotate90": 0.75}
"""What changes an image with a chance, and the chance that True is: all flips, or all turns, are then as likely."""


def check_chance(name: str, given: Any) -> float:
    """Return the chance of a flip or turn. An integer could mean True or a chance, so 1 is refused."""
    usual = CHANCES[name]
    if isinstance(given, (bool, np.bool_)):
        return usual if given else 0.0
    if isinstance(given, (int, np.integer)) and given != 0:
        step = f"write True for {usual}, or 1.0 for always"
        raise UsageError(name, f"is {given}, which may mean True or a chance", step)
    chance = as_number(given)
    if not 0 <= chance <= 1:
        problem = f"must be True, False or a chance from 0.0 to 1.0, got {given!r}"
        raise UsageError(name, problem, f"write True for {usual}")
    return chance


@dataclass(frozen=True, slots=True)
class Augmentation:
    """The crop, the chances of flips and of a turn by 90 degrees, what moves images then, and the seed of all."""

    crop: Crop | None = None
    flip: float = 0.0
    seed: int = 0
    vflip: float = 0.0
    rotate90: float = 0.0
    affine: RandomAffine | None = None

    def params(
        self, samples: Int64, epoch: int, output: tuple[int, int], sizes_of: Callable[[Int64], tuple[Float64, Float64]]
    ) -> CropParams:
        """Return crop, flips, turn and map of each sample; `sizes_of` gives widths and heights, which a crop needs."""
        count = 0 if self.crop is None else self.crop.num_random
        needed = count or self.flip
        random = uniform(self.seed, epoch, samples, count + 1) if needed else np.zeros((len(samples), 1))
        regions = choices = None
        if self.crop is not None:
            sizes = sizes_of(records_in(samples))
            regions = with_whole_borders(self.crop.regions(*sizes, random[:, 1:]), sizes, output)
            choices = self.crop.choices(random[:, 1:]) if isinstance(self.crop, ResizingCrop) else None
        flipped = random[:, 0] < self.flip if self.flip else None
        filter = interpolation_of(self.crop)
        params = CropParams(regions, flipped, output, border=self.border, interpolation=filter, choices=choices)
        if self.vflip or self.rotate90:
            params = self._turned(params, samples, epoch)
        if self.affine is None:
            return params
        random = uniform(self.seed ^ AFFINE_STREAM, epoch, samples, self.affine.num_random)
        return replace(params, affine=self.affine.maps(random, output))

    def _turned(self, params: CropParams, samples: Int64, epoch: int) -> CropParams:
        """Return crops and flips with the vertical flip and the turn of each sample after them."""
        down, turn = uniform(self.seed ^ TURN_STREAM, epoch, samples, 2).T
        upended, flipped = down < self.vflip, params.flipped
        if not self.rotate90:
            return replace(params, upended=upended)
        # those below the chance, in three equal parts
        quarters = np.where(turn < self.rotate90, 1 + np.minimum(turn * 3 // self.rotate90, 2), 0)
        if flipped is None:
            flipped = np.zeros(len(samples), np.bool_)
        # counterclockwise: one by 90 degrees is a flip, and a transposition
        return replace(
            params,
            flipped=flipped ^ ((quarters == 1) | (quarters == 2)),
            upended=upended ^ (quarters >= 2),
            transposed=quarters % 2 == 1,
        )

    @property
    def border(self) -> int:
        """The value of pixels outside the image."""
        return getattr(self.crop, "fill", 0)  # a user's crop may have none

    def with_crop(self, crop: Crop | None) -> Augmentation:
        """Return one with another crop."""
        return replace(self, crop=crop)

    @property
    def identity(self) -> dict[str, str | int | float | None]:
        """Return the fields for a state, which must be equal to resume it."""
        used: dict[str, Any] = {name: float(getattr(self, name)) for name in TURNS if getattr(self, name)}
        if self.affine is not None:
            used["affine"] = repr(self.affine)
        return {"view_seed": self.seed, "crop": crop_text(self.crop), "flip": float(self.flip), **used}

    def check(self, state: Mapping[str, Any]) -> None:
        """Raise UsageError if a state has another augmentation. States of packer 0.1.0 hold only the seed."""
        here = self.identity
        seed = state.get("view_seed")
        if type(seed) is not int or seed != here["view_seed"]:
            problem = f"has seed {seed!r} for crops and flips, here {here['view_seed']}"
            raise UsageError("state", problem, "give its seed")
        if "crop" not in state and "flip" not in state:
            return
        here, state = ({**UNUSED, **each} for each in (here, state))
        for name in ("crop", "flip", *UNUSED):
            if name not in state:
                raise UsageError("state", f"has no {name}", "resume with the same settings, or start over")
            there = state[name]
            if name == "crop" and state.get("set_crop", there) == here["crop"]:
                continue  # the loader was made with the crop that was set in the course of training
            if type(there) is not type(here[name]) or there != here[name]:
                problem = f"has {name} {there!r}, here {here[name]!r}"
                raise UsageError("state", problem, f"use the same {name}, or start over")
