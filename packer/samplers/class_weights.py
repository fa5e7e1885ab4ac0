"""How much rarer the classes of an image are than the most common one: the weights of balanced sampling."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from packer.errors import UsageError
from packer.format.ragged import Ragged
from packer.samplers.records import pack_of

By = Literal["label", "box_labels"]


def class_ids(data: Any, by: By | None) -> NDArray[Any] | Ragged:
    """The class ids of each record: (n,), -1 for none, or a Ragged of n rows.

    Of a pack or dataset its column `by`, by default `label` where any image has one, else `box_labels`; anything
    else is taken for class ids itself.
    """
    if by not in (None, "label", "box_labels"):
        raise UsageError("by", f"must be label or box_labels, got {by!r}")
    pack = pack_of(data)
    if pack is not None:
        by = by or ("label" if (np.asarray(pack.column("label")) >= 0).any() else "box_labels")
        return pack.column(by)
    ids = data if isinstance(data, Ragged) else np.asarray(data)
    flat = np.asarray(ids.flat()) if isinstance(ids, Ragged) else ids
    if flat.ndim != 1 or flat.dtype.kind not in "iu":
        problem = f"must be a pack, a dataset, or class ids of shape (n,), got {flat.dtype} of shape {flat.shape}"
        raise UsageError("data", problem)
    return ids


@dataclass(frozen=True, slots=True, eq=False)
class Rarest:
    """The rarest class of each image, and in how many images each class is."""

    classes: NDArray[np.int32]
    """(n,), a place in `images`; that of the most common class where an image has none."""
    images: NDArray[np.int64]
    """Images that show each class, those classes only that any image shows."""

    def weights(self, power: float) -> NDArray[np.float64]:
        """The weight of each class: (images of the rarest class / images of it) ** power, from 0 to 1."""
        least = int(self.images.min())
        # rounded: powers differ in the last bit from machine to machine, and the order must not
        return np.array([float(f"{(least / count) ** power:.12g}") for count in self.images.tolist()])


def rarest(ids: NDArray[Any] | Ragged) -> Rarest:
    """Count the classes by image, and find the rarest of each image. Raises UsageError where there are none."""
    rows, flat = _pairs(ids)
    known = flat >= 0
    rows, flat = rows[known], flat[known]
    if not len(flat):
        raise UsageError("data", "has no class labels: there is nothing to balance", "use ShuffleSampler")
    classes = _places(flat)
    if not isinstance(ids, Ragged):
        images = np.bincount(classes)
        out = np.full(len(ids), images.argmax(), np.int32)
        out[rows] = classes
        return Rarest(out, images)
    # a class counts once an image, however many of its boxes show it
    rows, classes = np.divmod(np.unique(rows * len(flat) + classes), len(flat))
    images = np.bincount(classes)
    out = np.full(len(ids), images.argmax(), np.int32)
    by_rarity = np.argsort(-images[classes], kind="stable")
    out[rows[by_rarity]] = classes[by_rarity]  # the rarest last, so that it is what stays written
    return Rarest(out, images)


def _pairs(ids: NDArray[Any] | Ragged) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(record, class id) of every label."""
    if isinstance(ids, Ragged):
        return np.repeat(np.arange(len(ids)), ids.lengths), np.asarray(ids.flat()).astype(np.int64)
    return np.arange(len(ids)), ids.astype(np.int64)


def _places(ids: NDArray[np.int64]) -> NDArray[np.int64]:
    """The place of each id among those that occur, in rising order."""
    top = int(ids.max()) + 1
    if top > len(ids) + (1 << 16):  # ids that are hardly class ids: too large to count by
        return np.unique(ids, return_inverse=True)[1]
    occurs = np.bincount(ids, minlength=top) > 0
    return (np.cumsum(occurs) - 1)[ids]
