"""Problems of images that their fingerprints show: blank, dark, bright or blurred ones, and gray ones among colors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.errors import DamagedPack, plural
from packer.images.fingerprint import VERSION
from packer.model.annotation import Progress
from packer.repack.fingerprints import fingerprints_of_images, known_fingerprints
from packer.stats.problems.problem import CHECK, NOTE, DataProblem, ProblemColumns, median_of, usual

Figures = NDArray[np.void]
Records = NDArray[np.int64]

MOST_PIXELS = 400_000_000
"""Pixels of images without a fingerprint that are decoded, some seconds: of more, none is."""
DEVIATIONS = 4.0
"""Standard deviations from the median beyond which a figure is unusual: see `problem.usual`."""
GRAY, COLORFUL, FEW = 1.0, 4.0, 0.2
"""Colorfulness below which an image is gray, and from which it is not; share of a set up to which either is odd."""


@dataclass(frozen=True)
class OddKind:
    """What makes an image odd: a figure that is far from the median of all, and beyond a limit whatever the median."""

    kind: str
    title: str
    text: str
    """After "1 image has" or "2 images have"."""
    figure: str
    """The name of the field of a fingerprint."""
    told: str
    """What the figure says, with a place for the number."""
    number: str
    """How the number is written."""
    beyond: Callable[[Figures], NDArray[np.bool_]]
    """Whether it could be odd in any set."""
    least: float
    """How far from the median it is at least: a factor if `log`, else in units of the figure."""
    log: bool = False
    high: bool = False
    """Whether the large ones are odd."""
    last: bool = True
    """Whether an image that has it is not listed under the following kinds."""


KINDS = (
    OddKind(
        "blank", "Images of one color",
        "hardly a pixel that differs from the others. Most often, the camera or the file has failed, or nothing was in "
        "the picture. Leave them out if there is nothing to learn from them.",
        "contrast", "contrast {}", ".3g", lambda rows: rows["contrast"] < 2, 2.0, log=True,
    ),
    OddKind(
        "blurred", "Blurred images",
        "far less fine detail than the others: out of focus, moved, or enlarged from a small image. If a person cannot "
        "label it with certainty, a model learns little from it.",
        "focus", "focus {}", ".2g", lambda rows: rows["focus"] < 0.7, 3.0, log=True, last=False,
    ),
    OddKind(
        "dark", "Dark images",
        "hardly a bright pixel, where the others have some: too short an exposure, a cap on the lens, or night. "
        "Brighten them, or leave them out if nothing can be seen.",
        "bright", "the brightest pixels are {} of 255", ".0f", lambda rows: rows["bright"] < 100, 50.0,
    ),
    OddKind(
        "bright", "Bright images",
        "hardly a dark pixel, where the others have some: fog, a wet lens, or too long an exposure. Raise the "
        "contrast, or leave them out if nothing can be seen.",
        "dark", "the darkest pixels are {} of 255", ".0f",
        lambda rows: (rows["dark"] >= 100) & (rows["brightness"] >= 180), 50.0, high=True,
    ),
    OddKind(
        "overexposed", "Overexposed images",
        "hardly anything but pixels of the highest value: too long an exposure, or a thing on a white page.",
        "saturated", "{} of the pixels are saturated", ".0%", lambda rows: rows["saturated"] >= 0.75, 0.5, high=True,
    ),
    OddKind(
        "low-information", "Images with little to see",
        "few different values: mostly one tone, such as a thing on an empty background, or a page with little on it.",
        "entropy", "entropy {} bits", ".2g", lambda rows: rows["entropy"] < 3, 1.5,
    ),
)  # fmt: skip


def figures_of(columns: ProblemColumns, read: bool, progress: Progress) -> tuple[Figures, tuple[str, ...]]:
    """Return the fingerprint of each record, of version 0 where it is not known, and a note if there are such.

    Args:
        columns: Those of the pack.
        read: Whether images without one may be read, if they are few.
        progress: Receives those that are.
    """
    rows = known_fingerprints(columns.pack)
    unknown = np.flatnonzero(rows["version"] != VERSION)
    if not len(unknown):
        return rows, ()
    if read and columns.sizes[:, unknown].astype(np.float64).prod(axis=0).sum() <= MOST_PIXELS:
        try:
            rows[unknown] = fingerprints_of_images(columns.pack, unknown, progress)
        except DamagedPack as error:  # what the index says is worth a look all the same
            return rows, (f"odd images and near duplicates: not looked for: {error}",)
        return rows, ()
    missing = plural(len(unknown), "record has", "records have")
    where = "" if read or columns.pack.packs[0].reader.remote is None else ", after packer pull"
    step = f"packer attach PACK --fingerprints makes them{where}"
    return rows, (f"odd images and near duplicates: {missing} no fingerprint; {step}",)


def odd_problems(columns: ProblemColumns, rows: Figures) -> Iterator[DataProblem]:
    """Yield the problems that the figures of the images show, of `rows` as `figures_of` returns them."""
    known = rows["version"] == VERSION
    for kind, found, median in odd_records(rows):
        known[found] &= not kind.last
        yield columns.problem(
            (kind.kind, CHECK, kind.title),
            f"{plural(len(found), 'image has', 'images have')} {kind.text}",
            found, None, partial(_detail, rows[kind.figure], kind.told, kind.number, median),
        )  # fmt: skip
    yield from _other_colors(columns, rows["colorfulness"].astype(np.float64), np.flatnonzero(known))


def _detail(values: NDArray[Any], told: str, number: str, median: float, record: int) -> str:
    return f"{told.format(format(float(values[record]), number))}; the median of all is {median:{number}}"


def odd_records(rows: Figures) -> Iterator[tuple[OddKind, Records, float]]:
    """Yield the records that are odd in a way, the most extreme first, and the median of all.

    Whatever most of the images of a set are is usual: a set of photos by night has no dark images.
    """
    known = np.flatnonzero(rows["version"] == VERSION)
    for kind in KINDS:
        if not len(known):
            return
        values = rows[kind.figure][known].astype(np.float64)
        values = np.log(np.maximum(values, 1e-3)) if kind.log else values
        median, limit = usual(values, kind.least if kind.log else float(np.exp(kind.least)), DEVIATIONS)
        below = (values - median) * (1 if kind.high else -1)
        odd = (below > limit) & kind.beyond(rows)[known]
        if odd.any():
            found = known[odd][np.argsort(-below[odd], kind="stable")]
            yield kind, found, float(np.exp(median)) if kind.log else median
        if kind.last:
            known = known[~odd]


def _other_colors(columns: ProblemColumns, colors: NDArray[np.float64], known: Records) -> Iterator[DataProblem]:
    """Yield gray images among many in color, and images in color among many gray ones; `known` are looked at."""
    order = known[np.argsort(colors[known], kind="stable")]
    texts = (
        ("gray-among-colors", "Gray images among colors", order[colors[order] < GRAY], "gray", "in color"),
        (
            "color-among-grays",
            "Images in color among gray ones",
            order[colors[order] >= COLORFUL][::-1],
            "in color",
            "gray",
        ),
    )
    for name, title, found, few, many in texts:
        if 0 < len(found) <= FEW * len(known):
            yield columns.problem(
                (name, NOTE, title),
                f"{plural(len(found), 'image is', 'images are')} {few}, most of the others {many}. A model that learns "
                "from color may fail on them; if they are of another source, look at their labels, too.",
                found, None, partial(_detail, colors, "colorfulness {}", ".2g", median_of(colors[known])),
            )  # fmt: skip
