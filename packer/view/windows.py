"""Which values of an image of 16 bits are black and white, and at which values the colors of a map end: a window."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.errors import UsageError
from packer.view.catalog import range_of

_PERCENTILES = re.compile(r"p(\d{1,2}(?:\.\d+)?)\.\.p(\d{1,3}(?:\.\d+)?)")


@dataclass(frozen=True, slots=True)
class ValueWindow:
    """The lowest and the highest value that are told apart.

    Attributes:
        low: A value, a percentile of the values of each picture, or None for the lowest value of each picture.
        high: As `low`, or None for the highest value.
        percent: Whether they are percentiles.
    """

    low: float | None
    high: float | None
    percent: bool = False

    def ends(self, values: NDArray[Any]) -> tuple[float, float]:
        """Return both ends for the values of a picture, of which none is NaN; 0 and 0 if there are none."""
        if not values.size:
            return 0.0, 0.0
        if self.percent:
            low, high = np.percentile(values, [self.low or 0, 100 if self.high is None else self.high]).tolist()
            if low < high:
                return low, high
            low, high = float(values.min()), float(values.max())  # nearly all are equal
            return (low if low < high else min(0.0, low)), high
        low, high = (values.min(), values.max()) if None in (self.low, self.high) else (0, 0)
        return float(low if self.low is None else self.low), float(high if self.high is None else self.high)

    def shares(self, values: NDArray[Any], ends: tuple[float, float]) -> NDArray[np.floating[Any]]:
        """Return where values are between the ends, 0 to 1."""
        low, high = ends
        scaled: NDArray[np.floating[Any]] = values.astype(np.result_type(values, np.float32))
        return np.clip((scaled - low) / ((high - low) or 1), 0, 1, out=scaled)


INNER = ValueWindow(1, 99, percent=True)
"""A few wild values would leave one color for all others."""


@dataclass(frozen=True, slots=True)
class Windows:
    """That of images of 16 bits, and that of maps."""

    images: ValueWindow = INNER
    maps: ValueWindow = INNER


def windows_of(given: Mapping[str, str]) -> Windows:
    """Return the windows of a request, ``window`` and ``colors``.

    They are ``800..2500``, ``800..`` or ``..2500`` of values, ``min..max``, or ``p1..p99`` of percentiles.

    Raises:
        UsageError: One is something else.
    """
    return Windows(*(_window(given, name) if given.get(name) else INNER for name in ("window", "colors")))


def _window(given: Mapping[str, str], name: str) -> ValueWindow:
    text = given[name]
    if text == "min..max":
        return ValueWindow(None, None)
    if found := _PERCENTILES.fullmatch(text):
        low, high = map(float, found.groups())
        if low < high <= 100:
            return ValueWindow(low, high, percent=True)
        raise UsageError(name, f"must be percentiles that grow, from p0 to p100, got {text!r}")
    low, high = range_of(given, name)
    return ValueWindow(low if np.isfinite(low) else None, high if np.isfinite(high) else None)


def level_facts(image: NDArray[Any], window: ValueWindow) -> dict[str, Any]:
    """Return the ``lowest`` and ``highest`` value of an image of 16 bits, and both ``ends`` of its window.

    Alpha is not counted.
    """
    values = image[..., :-1] if image.shape[2] in (2, 4) else image
    return {"lowest": int(values.min()), "highest": int(values.max()), "ends": list(window.ends(values))}
