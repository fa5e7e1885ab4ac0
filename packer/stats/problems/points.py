"""Landmarks: far from the mean shape, fewer or more than in other images, outside their image."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.errors import plural
from packer.stats.problems.base import CHECK, EXAMPLES, Columns, Problem, median_of

FEWEST = 30
"""Images from which their mean shape says what is usual."""
DEVIATIONS, FACTOR = 5.0, 2.0
"""Standard deviations above the median distance, and times the median, beyond which a shape is unusual."""
_SAMPLE = 20_000
"""Shapes that the mean is made from, spread evenly."""
_CHUNK = 1 << 16
_LEAST = 0.05
"""Distance from the mean shape, of size 1, that is never unusual."""


def landmark_problems(columns: Columns) -> Iterator[Problem]:
    """Yield the problems of landmarks."""
    if "landmarks" not in columns.fields:
        return
    lengths = np.asarray(columns.ragged("landmarks").lengths)
    some = np.flatnonzero(lengths)
    if not len(some):
        return
    points = int(np.bincount(lengths[some]).argmax())
    records = some[lengths[some] == points]
    if len(others := some[lengths[some] != points]):
        yield Problem(
            "landmark-count", CHECK, "Images with another number of landmarks",
            f"{plural(len(others), 'image has', 'images have')} fewer or more than {points} landmarks, as the others "
            "have.",
            len(others), others,
            tuple(columns.example(i, plural(int(lengths[i]), "landmark")) for i in others[:EXAMPLES].tolist()),
        )  # fmt: skip
    if len(records) >= FEWEST and points >= 3:
        yield from _far(columns, records, points)
    yield from _outside(columns, some)


def _shapes(columns: Columns, records: NDArray[np.int64], points: int) -> NDArray[np.complex128]:
    """Return the landmarks of records as complex numbers, without position and size: (n, points)."""
    column = columns.ragged("landmarks")
    rows = column.offsets[records].astype(np.int64)[:, None] + np.arange(points)
    found = np.asarray(column.values)[rows].astype(np.float64)
    shapes = found[..., 0] + 1j * found[..., 1]
    return _normalized(shapes - shapes.mean(axis=1, keepdims=True))


def _normalized(shapes: NDArray[Any]) -> NDArray[np.complex128]:
    size = np.sqrt((np.abs(shapes) ** 2).mean(axis=-1, keepdims=True))
    return np.asarray(shapes / np.where(size > 0, size, 1), np.complex128)


def _turned(shapes: NDArray[np.complex128], mean: NDArray[np.complex128]) -> NDArray[np.complex128]:
    """Return shapes, each rotated to fit the mean best (Procrustes; in the plane, a product of complex numbers)."""
    turn = (np.conj(shapes) * mean).sum(axis=1, keepdims=True)
    return np.asarray(shapes * np.where(turn == 0, 1, turn / np.maximum(np.abs(turn), 1e-300)))


def _far(columns: Columns, records: NDArray[np.int64], points: int) -> Iterator[Problem]:
    sample = _shapes(columns, records[:: -(-len(records) // _SAMPLE)], points)
    mean = sample[0]
    for _ in range(5):  # converges in a few rounds; the median does not follow a few wrong shapes
        turned = _turned(sample, mean)
        mean = _normalized(np.median(turned.real, axis=0) + 1j * np.median(turned.imag, axis=0))
    far = np.empty(len(records))
    for first in range(0, len(records), _CHUNK):
        shapes = _shapes(columns, records[first : first + _CHUNK], points)
        far[first : first + _CHUNK] = np.sqrt((np.abs(_turned(shapes, mean) - mean) ** 2).mean(axis=1))
    median = median_of(far)
    limit = max(median + DEVIATIONS * 1.4826 * median_of(np.abs(far - median)), FACTOR * median, _LEAST)
    chosen = np.flatnonzero(far > limit)
    if len(chosen):
        worst = chosen[np.argsort(-far[chosen], kind="stable")]
        yield Problem(
            "landmark-shape", CHECK, "Landmarks far from the mean shape",
            f"The landmarks of {plural(len(chosen), 'image')} fit the mean shape badly, after position, size and "
            "rotation are taken out. Often points in another order, one that slipped, or another object.",
            len(chosen), records[worst],
            tuple(
                columns.example(int(records[n]), f"{far[n] / max(median, 1e-6):.3g} times as far as the median image")
                for n in worst[:EXAMPLES].tolist()
            ),
        )  # fmt: skip


def _outside(columns: Columns, records: NDArray[np.int64]) -> Iterator[Problem]:
    column = columns.ragged("landmarks")
    found = np.asarray(column.flat(), np.float32)
    owners = np.repeat(np.arange(len(column)), column.lengths)
    away = ((found < -1) | (found > columns.sizes.T[owners] + 1)).any(axis=1)
    counts = np.bincount(owners[away], minlength=len(column))
    outside = records[counts[records] > 0]
    if len(outside):
        worst = outside[np.argsort(-counts[outside], kind="stable")]
        yield Problem(
            "landmark-outside", CHECK, "Landmarks outside the image",
            f"{plural(len(outside), 'image has', 'images have')} landmarks outside the image: cut off by a crop, or "
            "wrong.",
            len(outside), worst,
            tuple(columns.example(i, f"{plural(int(counts[i]), 'point')} outside") for i in worst[:EXAMPLES].tolist()),
        )  # fmt: skip
