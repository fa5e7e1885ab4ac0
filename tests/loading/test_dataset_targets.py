"""Targets and columns: their types, shapes and dtypes, and that no image is touched for them."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
import torch

from packer import BuildOptions, PackedDataset, build_pack
from packer.model.annotation_columns import Ragged


class Untouchable:
    def __getattr__(self, name):
        raise AssertionError(f"an image was touched: region.{name}")


@pytest.fixture
def labelled(make_pack, container, monkeypatch):
    """A pack of class labels whose images must not be touched."""
    return untouchable(PackedDataset(make_pack("raw", container)), monkeypatch)


@pytest.fixture
def boxed(make_pack, container, monkeypatch):
    """A pack of boxes, landmarks and labels whose images must not be touched."""
    return untouchable(PackedDataset(make_pack("boxes", container)), monkeypatch)


def untouchable(data, monkeypatch):
    monkeypatch.setattr(data.pack.reader, "region", Untouchable())
    return data


def test_class_labels_are_as_in_image_folder(labelled):
    assert labelled.classes == ["ant", "bee", "cat"]
    assert labelled.class_to_idx == {"ant": 0, "bee": 1, "cat": 2}
    assert labelled.targets == [0] * 8 + [1] * 8 + [2] * 8
    assert type(labelled.targets) is list and type(labelled.targets[0]) is int
    assert labelled.labels.dtype == np.int64 and labelled.labels.tolist() == labelled.targets
    assert labelled.keys == [f"{i:08d}" for i in range(24)]
    assert labelled.paths[9] == "bee/1.png"
    assert not labelled.pack.reader._checked["image"]._bytes.any()


def test_dict_targets(boxed):
    targets = boxed.targets
    assert len(targets) == len(boxed) == 9
    for i in range(9):
        target = targets[i]
        boxes, labels, landmarks = target["boxes"], target["labels"], target["landmarks"]
        count = i % 3
        assert boxes.dtype == torch.float32 and boxes.shape == (count, 4)
        assert labels.dtype == torch.int64 and labels.shape == (count,)
        assert landmarks.dtype == torch.float32 and landmarks.shape == (5, 2)
        assert landmarks[0].tolist() == [1 + i, 2] and landmarks[4].tolist() == [9.5, 10]
        assert boxed.classes[target["label"]] == ("day", "night")[i % 2]
        assert [boxed.classes[k] for k in labels] == ["dog", "bird"][:count]
        assert target["difficult"].dtype == torch.int64 and target["difficult"].shape == (count,)
        assert list(target) == list(targets[0])
        boxes.zero_()  # a copy: the map is not written to
    assert targets[-1]["boxes"].shape == (2, 4)
    with pytest.raises(IndexError):
        targets[9]
    assert not boxed.pack.reader._checked["image"]._bytes.any()


def test_columns_are_arrays(boxed):
    assert isinstance(boxed.boxes, Ragged)
    assert boxed.boxes.lengths.tolist() == [0, 1, 2] * 3
    assert boxed.boxes[2].dtype == np.float32 and boxed.boxes[2].shape == (2, 4)
    assert boxed.boxes[0].shape == (0, 4)
    assert boxed.box_labels[2].dtype == np.int64 and boxed.box_labels[2].shape == (2,)
    landmarks = np.asarray(boxed.landmarks)
    assert landmarks.dtype == np.float32 and landmarks.shape == (9, 5, 2)
    for i, target in enumerate(boxed.targets):
        assert np.array_equal(boxed.boxes[i], target["boxes"].numpy())
        assert np.array_equal(landmarks[i], target["landmarks"].numpy())
    assert boxed.column("height").tolist() == [30] * 9
    assert boxed.column("size").tolist() == [3600] * 9
    assert not boxed.pack.reader._checked["image"]._bytes.any()


def test_columns_are_read_only(boxed):
    with pytest.raises(ValueError, match="read-only"):
        boxed.pack.annotation(2).boxes[0] = 0


def test_without_labels(tmp_path, make_pack):
    source = shutil.copytree(make_pack("raw", "lmdb").parent / "source", tmp_path / "source")
    build_pack(BuildOptions(str(source), str(tmp_path / "pack"), labels=("none",), workers=1))
    data = PackedDataset(tmp_path / "pack")
    assert data[0][1] == {"image_id": 0} and data.classes == [] and data.labels.tolist() == [-1] * 24
    assert data.boxes.lengths.tolist() == [0] * 24
    assert data.__getitems__([1, 2]).targets == [{"image_id": 1}, {"image_id": 2}]
