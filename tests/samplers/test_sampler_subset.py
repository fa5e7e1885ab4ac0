"""subset: records by their columns, for any sampler."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from packer import PackedDataset, open_pack
from packer.errors import UsageError
from packer.samplers import ShuffleSampler, subset


def test_records_are_chosen_by_columns(sorted_pack: Path, boxes_pack: Path) -> None:
    data = PackedDataset(sorted_pack)
    wide = subset(data, lambda columns: columns["width"] > 6)
    assert wide.dtype == np.int64
    assert wide.tolist() == [i for i in range(len(data)) if data[i][0].shape[2] > 6]
    cats = subset(data.pack, lambda columns: columns["label"] == data.class_to_idx["cat"])
    assert cats.tolist() == list(range(120, 126))
    boxes = PackedDataset(boxes_pack)
    some = subset(boxes, lambda columns: columns["boxes"].lengths > 0)
    assert some.tolist() == [i for i, boxes in enumerate(boxes.boxes) if len(boxes)]
    assert sorted(ShuffleSampler(data, indices=cats)) == cats.tolist()
    assert subset(data, lambda columns: columns["width"] > 99).tolist() == []


def test_columns_are_a_mapping_of_the_index(sorted_pack: Path) -> None:
    seen: list[Any] = []
    subset(open_pack(sorted_pack), lambda columns: seen.append(columns) or columns["label"] >= 0)
    (columns,) = seen
    assert {"key", "width", "label", "boxes", "path"} <= set(columns) and len(columns) == len(list(columns))
    with pytest.raises(UsageError, match=r"there is no column 'widht'; the columns are key, .*width"):
        columns["widht"]


@pytest.mark.parametrize(
    ("predicate", "message"),
    [
        (lambda columns: columns["width"], r"must return bool of shape \(126,\), one per record; got int32"),
        (lambda columns: True, r"got bool of shape \(\)"),
        (lambda columns: columns["width"][1:] > 3, r"got bool of shape \(125,\)"),
        (lambda columns: None, "got object"),
    ],
)
def test_answers_that_are_no_mask_are_refused(sorted_pack: Path, predicate: Any, message: str) -> None:
    with pytest.raises(UsageError, match=f"predicate: .*{message}"):
        subset(open_pack(sorted_pack), predicate)


def test_data_without_an_index_is_refused() -> None:
    with pytest.raises(UsageError, match="data: must be a Pack or a PackedDataset, got list"):
        subset([1, 2], lambda columns: columns["width"] > 0)


def test_a_state_names_its_pack(sorted_pack: Path, shuffled_pack: Path) -> None:
    state = ShuffleSampler(open_pack(sorted_pack)).state_dict()
    ShuffleSampler(PackedDataset(sorted_pack)).load_state_dict(state)
    with pytest.raises(UsageError, match=r"pack is '[0-9a-f]{64}' in the state, '[0-9a-f]{64}' here"):
        ShuffleSampler(open_pack(shuffled_pack)).load_state_dict(state)
