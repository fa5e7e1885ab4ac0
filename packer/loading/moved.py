"""The targets of a batch whose images were cropped and flipped: boxes and landmarks move along."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from packer.images.geometry import Geometry, clip, move, select_boxes
from packer.loading.fill import Placement, RowFiller
from packer.loading.targets import is_plain, target_of
from packer.types import Annotation, Int64


class Targets:
    """Makes the targets of some records: class ids as one array, or a list of dicts (`target.target_of`)."""

    def __init__(
        self, filler: RowFiller, min_area: float = 1.0, target_transform: Callable[[Any], Any] | None = None
    ) -> None:
        """Args: what fills the images; the area in pixels under which a box that a crop has cut is dropped."""
        self._filler = filler
        self._min_area = min_area
        self._transform = target_transform
        self._fields = filler.pack.manifest.fields
        self._labels: Int64 | None = None
        if is_plain(self._fields):
            self._labels = np.asarray(filler.pack.column("label")).astype(np.int64)

    def __call__(self, records: Int64, placement: Placement) -> Any:
        """int64 (n,), or a list of n; `batched` makes one of the parts of a batch."""
        if self._labels is not None:
            labels = self._labels[records]
            return labels if self._transform is None else [self._transform(label) for label in labels.tolist()]
        if self._fields:
            targets = [self._target(record, i, placement) for i, record in enumerate(records.tolist())]
        else:  # a pack without labels: nothing to look up
            targets = [{} for _ in records]
        return targets if self._transform is None else [self._transform(target) for target in targets]

    def _target(self, record: int, row: int, placement: Placement) -> dict[str, Any]:
        annotation = self._filler.pack.annotation(record)
        geometry = self._geometry(row, placement)
        if geometry is not None:
            annotation = move(annotation, geometry)
        if placement.regions is not None:
            annotation = self._cut(annotation)
        return target_of(annotation, self._fields)

    def _cut(self, moved: Annotation) -> Annotation:
        """What is left of an annotation in the part of the image that a crop has kept, or added a border to."""
        height, width = self._filler.output
        moved = clip(moved, width, height)
        if moved.boxes is None or not len(moved.boxes):
            return moved
        areas = (moved.boxes[:, 2] - moved.boxes[:, 0]) * (moved.boxes[:, 3] - moved.boxes[:, 1])
        large = areas >= self._min_area
        return moved if large.all() else select_boxes(moved, large)

    def _geometry(self, row: int, placement: Placement) -> Geometry | None:
        """The map from the stored image to its row; None where nothing moves."""
        flipped = placement.flipped is not None and bool(placement.flipped[row])
        height, width = self._filler.output
        if placement.regions is None:
            geometry = Geometry.identity(width, height)
        else:
            x, y, w, h = placement.regions[row].tolist()
            sx, sy = width / w, height / h
            geometry = Geometry(sx, 0.0, -x * sx, 0.0, sy, -y * sy, width, height)
        if flipped:
            geometry = replace(geometry, a=-geometry.a, c=width - geometry.c)
        return None if geometry.is_identity else geometry


def batched(parts: Sequence[Any]) -> Any:
    """The targets of a batch out of those of its parts: class ids as one int64 tensor (n,), all else as a list of n."""
    if isinstance(parts[0], np.ndarray):
        return torch.from_numpy(np.concatenate(parts) if len(parts) > 1 else parts[0])
    targets = [target for part in parts for target in part]
    # as packer.collate has it: also where a target_transform has made the ids
    if all(isinstance(target, int) for target in targets):
        return torch.tensor(targets, dtype=torch.int64, device="cpu")
    return targets
