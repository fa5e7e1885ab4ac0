"""Targets of images for training: class ids, or dicts of tensors."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from packer.errors import UsageError, printable
from packer.format.pack import Pack
from packer.loading.annotations import BatchAnnotations, Column, read_annotations
from packer.loading.augmentation import CropParams
from packer.model.annotation import Int64
from packer.model.fields import BY_NAME, FLIPS
from packer.model.ragged import Ragged
from packer.samplers.ranks import as_number, check_int

Target = Any
"""int if the pack has only class labels of images, float32 (k,) if only tags, else dict[str, Tensor | list | int]."""

FACE = "(1, 0, 2, 4, 3) for eyes, nose and mouth corners"
STACKABLE = frozenset(("label", "tags", "landmarks", "extras"))
"""Fields that an image has once, in one shape: landmarks if each image has as many."""
_warned: set[str] = set()


class Targets(Sequence[Target]):
    """The targets of a pack's records, created on access.

    Args:
        pack: the pack.
        min_area: drop boxes that a crop cuts to less than this area, in pixels.
        label_offset: added to the class ids of boxes; 1 for models whose class 0 is the background.
        flip_index: index of the mirror image of each landmark or keypoint; default: that of the pack.
        hide_outside: keypoints outside a crop get visibility 0.

    Raises:
        UsageError: if the pack has no boxes for an offset, or no points for the index.
    """

    def __init__(
        self, pack: Pack, min_area: float = 1.0, label_offset: int = 0, flip_index: Sequence[int] | None = None,
        hide_outside: bool = True,
    ) -> None:  # fmt: skip
        self._pack = pack  # not the dataset: a reference cycle would keep the map
        self._min_area = check_area(min_area)
        self._hide_outside = hide_outside
        self._fields = pack.manifest.fields
        self._read = [name for name in self._fields if name != "tags"]
        self._label_offset = check_int("label_offset", label_offset, 0)
        self.are_labels = tuple(self._fields) == ("label",)
        """Whether the targets are class ids: the pack has only labels of whole images."""
        self._has_tags = "tags" in self._fields
        self.is_array = self.are_labels or tuple(self._fields) == ("tags",)
        """Whether `of` returns an array: class ids, or tags."""
        self.has_boxes = {"boxes", "box_labels"} <= set(self._fields)
        if label_offset and not self.has_boxes:
            raise UsageError("label_offset", f"is for boxes, but {pack.path} has none", "leave it out")
        self._points: dict[str, int] = {name: _points_each(pack, name) for name in FLIPS if name in self._fields}
        given = pack.manifest.flip_index if flip_index is None else flip_index
        self._flip_index = None if given is None else check_flip_index(given, self._points)

    @cached_property
    def vary(self) -> bool:
        """Whether targets have as many rows as the image has objects, or points, so that a batch cannot be stacked."""
        if not STACKABLE.issuperset(self._fields):
            return True
        columns = self._pack.shard_columns("landmarks") if "landmarks" in self._fields else ()
        return len({length for column in columns for length in np.unique(column.lengths).tolist()}) > 1

    def __len__(self) -> int:
        return len(self._pack)

    def __getitem__(self, index: Any) -> Any:
        return self.target(record_number(index, len(self)))

    def target(self, record: int) -> Target:
        """Return the target of `record`: a class id, tags, or a dict with what the pack has.

        Returns:
            boxes float32 (n, 4), xyxy in pixels; labels int64 (n,), of the boxes; label int, of the image, -1 if it has
            none; tags float32 (k,), 1 for each of the pack's tags that the image has, else 0; landmarks float32 (k,
            2); polygons list of n float32 (m, 2); keypoints float32 (n, k, 3);
            difficult, truncated, occluded int64 (n,); other box fields as lists of n; extras dict; image_id int, the
            number of the record. All images of a pack have the same keys. The tensors of a batch are views of one
            tensor per field: clone one to keep it without the others.
        """
        found = self.of(np.array([record]))
        if isinstance(found, np.ndarray):
            return int(found[0]) if self.are_labels else torch.from_numpy(found[0])
        assert isinstance(found, BatchAnnotations)
        return found.as_tensors().as_dicts()[0]

    def of(self, records: Int64, params: CropParams | None = None) -> NDArray[Any] | BatchAnnotations:
        """Return the targets of some records after the crops and flips of `params`. `join_targets` combines them."""
        if self.are_labels:
            return self._pack.values("label", records).astype(np.int64)
        tags = _tags(self._pack, records) if self._has_tags else None
        if tags is not None and self.is_array:
            return tags
        found = read_annotations(self._pack, records, self._read, self._points.get("keypoints", 0))
        if tags is not None:
            found.columns["tags"] = Column(tags.ravel(), np.full(len(tags), tags.shape[1]))
        if self._label_offset:
            labels = found.columns["labels"]
            found.columns["labels"] = replace(labels, values=labels.values + self._label_offset)
        if params is not None and (maps := params.maps()) is not None:
            found = found.moved(maps)
            if params.flipped is not None and self._flip_index is not None:
                found = found.mirrored(params.flipped, self._flip_index)
        if params is not None and params.regions is not None:
            found = found.cut(params.output, self._min_area, self._hide_outside)
        return found

    def warn_of_flips(self) -> None:
        """Warn once for each pack with points if their flip index is not known."""
        if self._points and self._flip_index is None and self._pack.manifest.digest not in _warned:
            _warned.add(self._pack.manifest.digest)
            (name, count), *_ = self._points.items()
            warnings.warn(
                f"{printable(self._pack.path)}: flip mirrors {name} without exchanging left and right ones; "
                f"pass flip_index, such as {FACE}, or range({count}) if none is left or right",
                stacklevel=4,  # the caller of PackedLoader
            )


def check_area(min_area: Any) -> float:
    """Return an area in pixels. Raise UsageError if it is not a number, or below 0."""
    area = as_number(min_area)
    if not area >= 0:
        raise UsageError("min_area", f"must be an area in pixels, 0 or more, got {min_area!r}", "leave it out for 1.0")
    return area


def check_flip_index(flip_index: Sequence[int], points: dict[str, int]) -> Int64:
    """Return a flip index as an array.

    Args:
        flip_index: index of the mirror image of each point.
        points: number of landmarks of an image, of keypoints of an object.

    Raises:
        UsageError: if it is not a permutation that undoes itself, or the number of points differs.
    """
    try:
        numbers = [operator.index(number) for number in flip_index]
        wrong = sorted(numbers) != list(range(len(numbers)))
    except TypeError:
        wrong = True
    if wrong:
        problem = f"must have each number from 0 once, got {flip_index!r}"
        raise UsageError("flip_index", problem, f"such as {FACE}")
    for point, mirrored in enumerate(numbers):
        if numbers[mirrored] != point:
            problem = f"says that {point} becomes {mirrored} in a flip, but {mirrored} becomes {numbers[mirrored]}"
            raise UsageError("flip_index", problem, f"points change places in pairs, such as {FACE}")
    found = np.array(numbers, np.int64)
    if not points:
        raise UsageError("flip_index", "is for landmarks and keypoints, but the pack has none", "leave it out")
    if len(found) not in points.values():
        counts = ", ".join(f"{count} {name}" for name, count in points.items())
        raise UsageError("flip_index", f"has {len(found)} numbers, but the pack has {counts}", "pass one per point")
    return found


def _tags(pack: Pack, records: Int64) -> NDArray[np.float32]:
    """Return the tags of `records`, float32 (n, k); an image without tags has none of them."""
    (rows,) = pack.rows(["tags"], records)
    found = np.zeros((len(rows), len(pack.manifest.tags)), np.float32)
    for record, flags, row in zip(records.tolist(), found, rows, strict=True):
        if len(row) == len(flags):
            flags[:] = row
        elif len(row):
            raise pack.damage(record, f"has {len(row)} tags, not {len(flags)}")
    return found


def _points_each(pack: Pack, name: str) -> int:
    """Return the landmarks of the first image, or the keypoints of the first object, that has any."""
    for rows in pack.shard_columns(name):
        points: Any = rows.flat() if BY_NAME[name].per_box else rows
        assert isinstance(points, Ragged)
        lengths = points.lengths
        if lengths.any():
            return int(lengths[lengths > 0][0])
    return 0


def record_number(index: Any, n: int) -> int:
    """Return the record number of a sample index, an integer from -n to n - 1."""
    if isinstance(index, slice):
        raise TypeError("a PackedDataset takes no slices; use torch.utils.data.Subset(dataset, range(a, b))")
    i = operator.index(index)
    if not -n <= i < n:
        raise IndexError(f"sample {i} of {n}")
    return i + n if i < 0 else i
