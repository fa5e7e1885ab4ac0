"""The figures of images that their fingerprints hold, as the page sorts, filters, draws and tells them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer.format.pack import Pack
from packer.format.sidecar_list import FINGERPRINTS
from packer.repack.fingerprints import FIGURES, stored_fingerprints


class ImageFigure(NamedTuple):
    """A figure, a field of `FINGERPRINT`, and what the records are called that have least and most of it."""

    title: str
    least: str
    most: str
    scale: float = 1.0


IMAGE_FIGURES = {
    "brightness": ImageFigure("brightness", "darkest", "brightest"),
    "contrast": ImageFigure("contrast", "least contrast", "most contrast"),
    "focus": ImageFigure("focus (fine detail)", "most blurred", "sharpest"),
    "entropy": ImageFigure("entropy, bits", "lowest entropy", "highest entropy"),
    "colorfulness": ImageFigure("colorfulness", "least colorful", "most colorful"),
    "saturated": ImageFigure("saturated pixels, %", "fewest saturated pixels", "most saturated pixels", 100.0),
}


def offered(pack: Pack) -> list[dict[str, str]]:
    """Return the figures that the page offers for a pack: none if it has no fingerprints."""
    if not any(FINGERPRINTS in part.sidecars for part in pack.packs):
        return []
    return [
        {"name": name, "title": one.title, "least": one.least, "most": one.most} for name, one in IMAGE_FIGURES.items()
    ]


def figure_values(rows: NDArray[np.void], name: str) -> NDArray[np.float64]:
    """Return a figure of each fingerprint, (n,); NaN for those that are not known."""
    values = rows[name].astype(np.float64) * IMAGE_FIGURES[name].scale
    return np.asarray(np.where(rows["version"] > 0, values, np.nan))


def figures_text(pack: Pack, record: int) -> str:
    """Return all figures of a record in one line; "" if they are not known."""
    number, place = pack.part_of(record)
    rows = stored_fingerprints(pack.packs[number], np.array([place]))
    if rows is None or not rows["version"][0]:
        return ""
    return ", ".join(f"{name} {float(rows[name][0]):.3g}" for name in FIGURES)
