"""timm's random changes of single images, drawn from the seed of the sample and not from the process's generators.

With the same seeds, `random.seed(s)` and `np.random.seed(s)`, timm's own policies draw and make the same images: colors
to the last bit, what is moved within a level (`packer.images.pillow_ops`).
"""

from __future__ import annotations

import math
import random
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from packer.images import pillow_ops as ops
from packer.images.pillow_ops import to_pixels
from packer.loading.user_functions import InPlace

MOST_LEVEL = 10.0
"""Levels are tenths of an operation's range."""


class Draws(threading.local):
    """The generators of a thread, with the methods of `random` and `numpy.random`."""

    def __init__(self) -> None:
        self.random = random.Random()
        self.numpy = np.random.RandomState()

    def seed(self, seed: int) -> None:
        """Begin the random numbers of a seed of 64 bits."""
        self.random.seed(seed)
        self.numpy.seed(seed & 0xFFFFFFFF)


Step = Callable[[Any, Draws], Any]
"""Changes pixels or an image of Pillow, and returns one of them."""


class SeededSteps(InPlace):
    """Random changes of an image: the `transform` of a PackedLoader.

    Args:
        steps: in their order.
    """

    def __init__(self, steps: Sequence[Step]) -> None:
        self._steps = tuple(steps)
        self._draws = Draws()

    def __call__(self, image: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        """Return an image, uint8 (channels, height, width), changed in its place."""
        draws, row = self._draws, image.permute(1, 2, 0).numpy()
        draws.seed(generator.initial_seed())
        made: Any = row
        for step in self._steps:
            made = step(made, draws)
        if made is not row:
            row[:] = to_pixels(made)
        return image


def sometimes(step: Step, chance: float) -> Step:
    """Return a step that is made by chance."""
    return lambda image, draws: step(image, draws) if draws.random.random() < chance else image


def one_policy(policies: Sequence[Sequence[Any]]) -> Step:
    """Return the step of timm's ``AutoAugment``: all operations of one of its policies."""
    each = [[_operation(one) for one in policy] for policy in policies]

    def step(image: Any, draws: Draws) -> Any:
        for operation in draws.random.choice(each):
            image = operation(image, draws)
        return image

    return step


def some_operations(operations: Sequence[Any], count: int, weights: Any) -> Step:
    """Return the step of timm's ``RandAugment``: so many of its operations; with weights, each once at most."""
    each = [_operation(one) for one in operations]

    def step(image: Any, draws: Draws) -> Any:
        for number in draws.numpy.choice(len(each), count, replace=weights is None, p=weights):
            image = each[number](image, draws)
        return image

    return step


def gray(functional: Any) -> Step:
    """Return the step of torchvision's ``Grayscale(3)``; `functional` is torchvision.transforms.functional."""
    return lambda image, _: functional.rgb_to_grayscale(ops.to_pillow(image), 3)


def jitter(given: Any, functional: Any) -> Step:
    """Return the step of torchvision's ``ColorJitter``, as for `gray`."""
    changes: list[tuple[Callable[[Any, float], Any], Any]] = [
        (_of_pixels(ops.bright), given.brightness),
        (_of_pixels(ops.contrasted), given.contrast),
        (ops.saturated, given.saturation),
        (lambda image, factor: functional.adjust_hue(ops.to_pillow(image), factor), given.hue),
    ]

    def step(image: Any, draws: Draws) -> Any:
        for number in draws.random.sample(range(len(changes)), len(changes)):
            change, span = changes[number]
            if span is not None:
                image = change(image, draws.random.uniform(*span))
        return image

    return step


def blur(given: Any, functional: Any) -> Step:
    """Return the step of torchvision's ``GaussianBlur``, as for `gray`."""

    def step(image: Any, draws: Draws) -> Any:
        sigma = draws.random.uniform(*given.sigma)
        return functional.gaussian_blur(ops.to_pillow(image), list(given.kernel_size), [sigma, sigma])

    return step


def known(operation: Any) -> bool:
    """Return whether an ``AugmentOp`` of timm is one of those here."""
    return operation.name in OPERATIONS


def _operation(given: Any) -> Step:
    """Return the step of an ``AugmentOp`` of timm."""
    row, chance, magnitude = OPERATIONS[given.name], given.prob, given.magnitude
    spread, most = given.magnitude_std, given.magnitude_max or MOST_LEVEL
    filters, fill = given.kwargs["resample"], given.kwargs["fillcolor"]
    filters = filters if isinstance(filters, tuple | list) else (filters,)
    names = [ops.FILTER_NAMES[int(filter)] for filter in filters]

    def step(image: Any, draws: Draws) -> Any:
        drawn = draws.random
        if chance < 1.0 and drawn.random() > chance:
            return image
        level = magnitude
        if spread == math.inf:
            level = drawn.uniform(0, level)
        elif spread > 0:
            level = drawn.gauss(level, spread)
        argument = row.argument(max(0.0, min(level, most)) / MOST_LEVEL, given.hparams, drawn)
        if not row.moves:
            return row.apply(image, argument)
        name = drawn.choice(names) if names[1:] else names[0]
        return row.apply(image, argument, name, fill)

    return step


class _Operation(NamedTuple):
    """What a level means, and what is done then."""

    argument: Callable[[float, Mapping[str, Any], random.Random], Any]
    """Returns the argument of `apply` for a level from 0 to 1, or more."""
    apply: Callable[..., Any]
    moves: bool = False
    """Whether `apply` takes a filter and a fill, too."""


def _signed(value: float, drawn: random.Random) -> float:
    return -value if drawn.random() > 0.5 else value


def _up_to(most: float) -> Any:
    return lambda level, how, drawn: _signed(level * most, drawn)


def _within(low: float, high: float) -> Any:
    return lambda level, how, drawn: max(low, min(high, low + (high - low) * level))


def _away_from_one(level: float, how: Mapping[str, Any], drawn: random.Random) -> float:
    return max(0.1, 1.0 + _signed(level * 0.9, drawn))


def _of_pixels(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda image, argument: function(to_pixels(image), argument)


def _plain(function: Callable[[Any], Any]) -> _Operation:
    return _Operation(lambda *_: None, lambda image, _: function(to_pixels(image)))


def _moved(function: Callable[..., Any], argument: Any, vertical: bool, relative: bool = False) -> _Operation:
    def apply(image: Any, amount: float, filter: str, fill: Any) -> Any:
        pixels = to_pixels(image)
        amount = amount * pixels.shape[0 if vertical else 1] if relative else amount
        return function(pixels, amount, vertical, filter, fill)

    return _Operation(argument, apply, moves=True)


Level = Callable[..., Any]
_bits: Level = lambda level, *_: int(level * 4)  # noqa: E731 - rows of a table
_threshold: Level = lambda level, *_: min(256, int(level * 256))  # noqa: E731
_enhance: Level = lambda level, *_: level * 1.8 + 0.1  # noqa: E731
_pixels: Level = lambda level, how, drawn: _signed(level * float(how["translate_const"]), drawn)  # noqa: E731
_share: Level = lambda level, how, drawn: _signed(level * how.get("translate_pct", 0.45), drawn)  # noqa: E731

OPERATIONS: dict[str, _Operation] = {
    "AutoContrast": _plain(ops.contrast_stretched),
    "Equalize": _plain(ops.equalized),
    "Invert": _plain(ops.inverted),
    "Rotate": _Operation(_up_to(30.0), ops.rotated, moves=True),
    "Posterize": _Operation(_bits, _of_pixels(ops.posterized)),
    "PosterizeIncreasing": _Operation(lambda *level: 4 - _bits(*level), _of_pixels(ops.posterized)),
    "PosterizeOriginal": _Operation(lambda *level: 4 + _bits(*level), _of_pixels(ops.posterized)),
    "Solarize": _Operation(_threshold, _of_pixels(ops.solarized)),
    "SolarizeIncreasing": _Operation(lambda *level: 256 - _threshold(*level), _of_pixels(ops.solarized)),
    "SolarizeAdd": _Operation(lambda level, *_: min(128, int(level * 110)), _of_pixels(ops.brightened_below)),
    "Color": _Operation(_enhance, ops.saturated),
    "ColorIncreasing": _Operation(_away_from_one, ops.saturated),
    "Contrast": _Operation(_enhance, _of_pixels(ops.contrasted)),
    "ContrastIncreasing": _Operation(_away_from_one, _of_pixels(ops.contrasted)),
    "Brightness": _Operation(_enhance, _of_pixels(ops.bright)),
    "BrightnessIncreasing": _Operation(_away_from_one, _of_pixels(ops.bright)),
    "Sharpness": _Operation(_enhance, _of_pixels(ops.sharpened)),
    "SharpnessIncreasing": _Operation(_away_from_one, _of_pixels(ops.sharpened)),
    "ShearX": _moved(ops.sheared, _up_to(0.3), vertical=False),
    "ShearY": _moved(ops.sheared, _up_to(0.3), vertical=True),
    "TranslateX": _moved(ops.translated, _pixels, vertical=False),
    "TranslateY": _moved(ops.translated, _pixels, vertical=True),
    "TranslateXRel": _moved(ops.translated, _share, vertical=False, relative=True),
    "TranslateYRel": _moved(ops.translated, _share, vertical=True, relative=True),
    "Desaturate": _Operation(lambda *level: 1.0 - _within(0.5, 1.0)(*level), ops.saturated),
    "GaussianBlur": _Operation(_within(0.1, 2.0), ops.blurred),
    "GaussianBlurRand": _Operation(lambda level, how, drawn: drawn.uniform(0.1, 2.0 * min(level, 1.0)), ops.blurred),
}
"""timm's name of an operation -> what it is here."""
