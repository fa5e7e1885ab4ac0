"""torchvision's RandAugment and AutoAugment of single images, as those of Pillow: the same numbers, drawn for a sample.

For trainers whose own loaders apply them to images of Pillow (`packer.images.pillow_ops`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from packer.images import pillow_ops as ops
from packer.images.pillow_ops import to_pixels
from packer.loading.pillow_policy import Draws, Step

_BLACK = (0, 0, 0)
_BINS = 10
"""Magnitudes of each operation of AutoAugment."""


def _moved(function: Callable[..., Any], vertical: bool, whole: bool = False) -> Callable[[Any, float], Any]:
    """Return the operation that moves rows, or `vertical` columns; by pixels that are `whole`, to the other side."""

    def apply(image: Any, amount: float) -> Any:
        return function(to_pixels(image), float(-int(amount)) if whole else amount, vertical, "bilinear", _BLACK)

    return apply


def _changed(function: Callable[..., Any], argument: Callable[[float], Any] | None = None) -> Any:
    """Return the operation that changes colors; `argument` gives its argument for a magnitude."""
    if argument is None:
        return lambda image, _: function(to_pixels(image))
    return lambda image, amount: function(to_pixels(image), argument(amount))


def _more(amount: float) -> float:
    return 1.0 + amount


OPERATIONS: dict[str, Callable[[Any, float], Any]] = {
    "Identity": lambda image, _: image,
    "ShearX": _moved(ops.sheared, vertical=False),
    "ShearY": _moved(ops.sheared, vertical=True),
    "TranslateX": _moved(ops.translated, vertical=False, whole=True),
    "TranslateY": _moved(ops.translated, vertical=True, whole=True),
    "Rotate": lambda image, degrees: ops.rotated(image, degrees, "bilinear", _BLACK),
    "Brightness": _changed(ops.bright, _more),
    "Color": _changed(ops.saturated, _more),
    "Contrast": _changed(ops.contrasted, _more),
    "Sharpness": _changed(ops.sharpened, _more),
    "Posterize": _changed(ops.posterized, int),
    "Solarize": _changed(ops.solarized, float),
    "AutoContrast": _changed(ops.contrast_stretched),
    "Equalize": _changed(ops.equalized),
    "Invert": _changed(ops.inverted),
}
"""torchvision's name of an operation -> what it does to an image of Pillow, or pixels, with a magnitude."""


def _magnitude(space: Mapping[str, Any], name: str, number: int | None, negative: bool) -> float:
    magnitudes, signed = space[name]
    found = float(magnitudes[number]) if number is not None and magnitudes.ndim else 0.0
    return -found if signed and negative else found


def some_of(policy: Any, size: tuple[int, int]) -> Step:
    """Return the step of torchvision's ``RandAugment`` for images of `size`, (height, width)."""
    space = policy._augmentation_space(policy.num_magnitude_bins, size)
    names = list(space)

    def step(image: Any, draws: Draws) -> Any:
        for _ in range(policy.num_ops):
            name = draws.random.choice(names)
            negative = draws.random.random() < 0.5
            image = OPERATIONS[name](image, _magnitude(space, name, policy.magnitude, negative))
        return image

    return step


def one_of(policy: Any, size: tuple[int, int]) -> Step:
    """Return the step of torchvision's ``AutoAugment`` for images of `size`, (height, width)."""
    space = policy._augmentation_space(_BINS, size)

    def step(image: Any, draws: Draws) -> Any:
        for name, chance, number in draws.random.choice(policy.policies):
            seen, negative = draws.random.random() <= chance, draws.random.random() < 0.5
            if seen:
                image = OPERATIONS[name](image, _magnitude(space, name, number, negative))
        return image

    return step
