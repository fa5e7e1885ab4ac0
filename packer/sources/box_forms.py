"""What the four numbers of a box are, as their order and the sizes of the images tell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer.errors import UsageError, option, plural
from packer.sources.box_corners import Box
from packer.sources.paths import LARGEST

Numbers = NDArray[np.float64]
FORMATS = ("xmin ymin w h", "xmin ymin xmax ymax", "cx cy w h")
"""What four numbers may be, as ``--columns`` says it; the first is COCO's, and usual at Hugging Face."""
BORDER_PX, BORDER_SHARE = 1.0, 1e-3
"""A box ends at most so far outside its image, in pixels or fractions."""


class BoxFormat(NamedTuple):
    """What the four numbers of a box are."""

    words: str
    """One of FORMATS."""
    relative: bool
    """Whether they are fractions of width and height."""

    def box(self, numbers: Sequence[float]) -> Box:
        """Return a box as xyxy. Raise ValueError if it is not a box."""
        if len(numbers) != 4:
            raise ValueError(f"has {len(numbers)} numbers, not 4")
        a, b, c, d = numbers
        if not all(isinstance(value, int | float) and abs(value) <= LARGEST for value in numbers):
            raise ValueError(f"{list(numbers)} are not coordinates")
        if self.words == FORMATS[1]:
            return a, b, c, d
        if c < 0 or d < 0:
            raise ValueError(f"its {'width' if c < 0 else 'height'} {min(c, d):g} is below 0")
        return (a, b, a + c, b + d) if self.words == FORMATS[0] else (a - c / 2, b - d / 2, a + c / 2, b + d / 2)


@dataclass
class Votes:
    """Counts the boxes that fit no image if they are read in each format."""

    count: int = 0
    pixels: bool = False
    """Whether a number is larger than 1."""
    misfits: Numbers = field(default_factory=lambda: np.zeros((2, len(FORMATS))))
    """As pixels, and as fractions."""

    def add(self, boxes: Numbers, size: Numbers) -> None:
        """Count boxes (n, 4) in images of these sizes (n, 2), which are infinite where they are not known."""
        self.count += len(boxes)
        self.pixels |= bool((np.abs(boxes) > 1 + BORDER_SHARE).any())
        for number, limit in enumerate((size + BORDER_PX, np.full((len(size), 2), 1 + BORDER_SHARE))):
            slack = (BORDER_PX, BORDER_SHARE)[number]
            first, second = boxes[:, :2], boxes[:, 2:]
            corners = ((first, first + second), (first, second), (first - second / 2, first + second / 2))
            for which, (low, high) in enumerate(corners):
                bad = ~((low >= -slack) & (high <= limit) & (low <= high)).all(axis=1)
                self.misfits[number, which] += bad.sum()

    @property
    def relative(self) -> bool:
        """Whether the numbers are fractions of width and height."""
        return bool(self.count) and not self.pixels

    @property
    def fitting(self) -> list[str]:
        """The formats that fewest boxes contradict; several if they fit equally well."""
        # nobody writes centers in pixels
        counts = self.misfits[int(self.relative)][: len(FORMATS) if self.relative else 2].tolist()
        return [name for name, count in zip(FORMATS, counts, strict=False) if count == min(counts)]

    def result(self, words: str | None, kind: str = "parquet") -> BoxFormat:
        """Return the format that fits most boxes, or the one of the user. Raise UsageError if two fit equally well."""
        fits = self.fitting
        if words is not None and words not in FORMATS:
            choices = ", ".join(f'"{name}"' for name in FORMATS)
            problem = f"says what the numbers of boxes are, for {option('labels', kind)}"
            raise UsageError(option("columns"), problem, f"pass one of {choices}")
        if self.count and words is None and len(fits) > 1:
            problem = f"the {plural(self.count, 'box', 'boxes')} may be any of {', '.join(fits)}"
            choices = ", ".join(option("columns", f'"{name}"') for name in fits)
            raise UsageError(option("labels", kind), problem, f"choose one: {choices}")
        return BoxFormat(words or fits[0], self.relative)

    def describe(self, found: BoxFormat) -> str:
        """Return what the boxes are taken for, and how well that fits."""
        unit = "fractions of the image" if found.relative else "pixels"
        counts = self.misfits[int(found.relative)]
        fits = ", ".join(f"{int(counts[i])} as {words}" for i, words in enumerate(FORMATS) if i < 2 or found.relative)
        what = plural(self.count, "box is", "boxes are")
        return f'{what} read as "{found.words}" in {unit}; boxes that do not fit: {fits} (--columns chooses)'
