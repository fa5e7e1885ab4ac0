"""The targets of a batch whose images were cropped and flipped: boxes and landmarks move along."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from packer.loading.rows import Placement, RowFiller
from packer.loading.target import is_plain, target_of
from packer.ops.geometry import Geometry, clip, move, select_boxes
from packer.sample import Annotation, Int64


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
        """int64 (n,), or a list of n."""
        if self._labels is not None:
            labels = self._labels[records]
            return labels if self._transform is None else [self._transform(label) for label in labels.tolist()]
        targets = [self._target(record, i, placement) for i, record in enumerate(records.tolist())]
        return targets if self._transform is None else [self._transform(target) for target in targets]

    def _target(self, record: int, row: int, placement: Placement) -> dict[str, Any]:
        annotation = self._filler.pack.annotation(record)
        geometry = self._geometry(record, row, placement)
        if geometry is not None:
            annotation = self._moved(annotation, geometry)
        return target_of(annotation, self._fields)

    def _moved(self, annotation: Annotation, geometry: Geometry) -> Annotation:
        moved = clip(move(annotation, geometry), geometry.width, geometry.height)
        if moved.boxes is None or not len(moved.boxes):
            return moved
        areas = (moved.boxes[:, 2] - moved.boxes[:, 0]) * (moved.boxes[:, 3] - moved.boxes[:, 1])
        large = areas >= self._min_area
        return moved if large.all() else select_boxes(moved, large)

    def _geometry(self, record: int, row: int, placement: Placement) -> Geometry | None:
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
        return None if geometry.is_identity and not flipped else geometry
