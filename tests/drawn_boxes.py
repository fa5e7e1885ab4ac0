"""Labelled and predicted boxes that overlap a lot."""

from __future__ import annotations

import numpy as np

from packer.stats.matching import RaggedBoxes


def boxes_of_records(records: int) -> tuple[RaggedBoxes, RaggedBoxes]:
    """Labels and predictions: each record has up to 12 boxes of 4 classes in a small area."""
    rng = np.random.default_rng(0)

    def draw(scores: bool) -> RaggedBoxes:
        counts = rng.integers(0, 13, records)
        corners = rng.uniform(0, 60, (counts.sum(), 2))
        boxes = np.hstack([corners, corners + rng.uniform(8, 40, corners.shape)]).astype(np.float32)
        labels = rng.integers(0, 4, len(boxes))
        return RaggedBoxes(boxes, labels, counts, rng.random(len(boxes)).astype(np.float32) if scores else None)

    return draw(False), draw(True)
