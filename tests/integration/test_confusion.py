"""The confusion matrix of predictions is the one that Ultralytics' validation prints."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from drawn_boxes import boxes_of_records

from packer.stats.matching import match_boxes

metrics = pytest.importorskip("ultralytics.utils.metrics", reason="ultralytics is not installed")
torch = pytest.importorskip("torch", reason="torch is not installed")


@pytest.mark.parametrize(("iou", "confidence"), [(0.45, 0.25), (0.7, 0.5)])
def test_it_is_that_of_ultralytics(iou: float, confidence: float) -> None:
    truth, said = boxes_of_records(300)
    matrix: Any = metrics.ConfusionMatrix(names={number: str(number) for number in range(4)})
    assert said.scores is not None
    for record in range(300):
        t, p = (slice(*side.firsts[record : record + 2].tolist()) for side in (truth, said))
        found = {"cls": said.labels[p], "conf": said.scores[p], "bboxes": said.boxes[p]}
        given = {"cls": truth.labels[t], "bboxes": truth.boxes[t]}
        tensors = [{name: torch.tensor(value) for name, value in one.items()} for one in (found, given)]
        matrix.process_batch(*tensors, conf=confidence, iou_thres=iou)
    labels, predicted, _, _ = match_boxes(truth, said, iou, confidence).cells()
    mine = np.zeros((5, 5))
    np.add.at(mine, (labels, predicted), 1)
    assert np.array_equal(mine, matrix.matrix.T)
