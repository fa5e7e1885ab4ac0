"""torchvision's transforms v2 on PackedDataset and PackedLoader, where torchvision is installed."""

from __future__ import annotations

import math
import sys

import numpy as np
import pytest
import torch
from loader_packs import fresh
from torch.utils.data import DataLoader, Dataset

from packer import PackedDataset, PackedLoader, Resize, collate
from packer.errors import UsageError
from packer.loading.augmentation import Augmentation
from packer.loading.collate import as_tv_tensors


def test_without_torchvision_the_error_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchvision", None)
    monkeypatch.delitem(sys.modules, "torchvision.tv_tensors", raising=False)
    with pytest.raises(UsageError, match="torchvision: is not installed"):
        as_tv_tensors(torch.zeros(3, 2, 2), 1)


@pytest.fixture(scope="module")
def v2():
    return pytest.importorskip("torchvision.transforms.v2", reason="torchvision is optional, and not installed here")


class Joint(Dataset):
    """Image and target through one transform, as detection needs it."""

    def __init__(self, data, transforms):
        self.data = data
        self.transforms = transforms

    def __len__(self):
        return len(self.data)

    def __getitem__(self, i):
        return self.transforms(*as_tv_tensors(*self.data[i]))


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("workers", [0, 1])
def test_a_transform_of_the_image(pack, v2, workers):
    transform = v2.Compose([v2.RandomHorizontalFlip(1.0), v2.ToDtype(torch.float32, scale=True)])
    expected = torch.stack([image.flip(2) / 255 for image, _ in fresh(pack("raw"))])
    data = PackedDataset(pack("raw"), transform=transform)
    context = "fork" if workers else None
    loader = DataLoader(data, 9, collate_fn=collate, num_workers=workers, multiprocessing_context=context)
    torch.testing.assert_close(torch.cat([images for images, _ in loader]), expected)
    loader = PackedLoader(pack("raw"), 9, transform=transform)
    torch.testing.assert_close(torch.cat([images for images, _ in loader]), expected)


def test_boxes_and_points_move_with_the_image(pack, v2):
    from torchvision import tv_tensors

    flipped = v2.Compose([v2.RandomHorizontalFlip(1.0), v2.Resize((60, 80)), v2.SanitizeBoundingBoxes()])
    ours = [target for _, targets in PackedLoader(pack("boxes"), 4, flip=1.0) for target in targets]
    for i, (image, target) in enumerate(Joint(PackedDataset(pack("boxes")), flipped)):
        assert isinstance(image, tv_tensors.Image) and image.shape == (3, 60, 80)
        assert isinstance(target["boxes"], tv_tensors.BoundingBoxes)
        torch.testing.assert_close(target["boxes"].as_subclass(torch.Tensor), ours[i]["boxes"] * 2)
        assert torch.equal(target["labels"], ours[i]["labels"]) and target["label"] == ours[i]["label"]
        if i == 8:
            break


def test_vertical_flips_are_as_frequent_as_torchvisions(v2):
    """The Kolmogorov-Smirnov distance of 10,000 draws each, for several chances."""
    image, count = torch.tensor([[[0], [1]]]), 10_000
    torch.manual_seed(0)
    for chance in (0.1, 0.5, 0.9):
        flip = v2.RandomVerticalFlip(chance)
        theirs = sum(int(flip(image)[0, 0, 0]) for _ in range(count)) / count
        made = Augmentation(vflip=chance).params(np.arange(count), 0, (2, 1), lambda records: (records, records))
        assert abs(theirs - made.upended.mean()) < 1.95 * math.sqrt(2 / count)  # by chance in 1 of 1,000 cases


def test_vertical_flips_and_turns_are_torchvisions(pack, v2):
    """Pixels and boxes, given the parameters."""
    from torchvision import tv_tensors

    crop = Resize((24, 24))
    plain = list(PackedLoader(pack("boxes"), 1, crop=crop, min_area=0))
    for name in ("vflip", "rotate90"):
        loader = PackedLoader(pack("boxes"), 1, crop=crop, min_area=0, seed=3, flip_index=range(5), **{name: 1.0})
        filler, seen = loader._host.filler, set()
        for record, ((image, (target,)), (before, (want,))) in enumerate(zip(loader, plain, strict=True)):
            params = filler.params(np.array([record]), 0)
            # counterclockwise, as torchvision counts them
            degrees = {(0, 0): 0, (1, 1): 90, (1, 0): 180, (0, 1): 270}
            turn = degrees[bool(params.flipped[0]), bool(params.transposed[0])] if name == "rotate90" else 0
            seen.add(turn)
            boxes = tv_tensors.BoundingBoxes(want["boxes"], format="XYXY", canvas_size=(24, 24))
            if name == "vflip":
                changed = v2.functional.vertical_flip(before), v2.functional.vertical_flip(boxes)
            else:
                changed = v2.functional.rotate(before, turn), v2.functional.rotate(boxes, turn)
            assert torch.equal(image, changed[0])
            torch.testing.assert_close(target["boxes"], changed[1].as_subclass(torch.Tensor), atol=1e-3, rtol=0)
        assert len(seen) == (1 if name == "vflip" else 3)


def test_points_become_key_points(pack, v2):
    from torchvision import tv_tensors

    if not hasattr(tv_tensors, "KeyPoints"):
        pytest.skip("this torchvision has no KeyPoints")
    flip = v2.RandomHorizontalFlip(1.0)
    image = torch.zeros(3, 20, 40, dtype=torch.uint8)
    points = torch.tensor([[1.0, 2], [30, 4]])
    visible = torch.tensor([[[1.0, 2, 2], [3, 4, 0]]])
    target = {"landmarks": points, "polygons": [points], "keypoints": visible, "x": "y"}
    _, there = flip(*as_tv_tensors(image, target))
    mirrored = torch.tensor([[39.0, 2], [10, 4]])
    assert (there["landmarks"].as_subclass(torch.Tensor) - mirrored).abs().max() <= 1
    assert (there["polygons"][0].as_subclass(torch.Tensor) - mirrored).abs().max() <= 1
    assert there["keypoints"].shape == (1, 2, 2) and there["visibility"].tolist() == [[2, 0]] and there["x"] == "y"
    assert as_tv_tensors(image, 5)[1] == 5 and torch.equal(target["landmarks"], points)
