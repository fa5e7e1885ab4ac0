"""RandomAffine against torchvision's: what it draws, and what it makes of pixels, masks and boxes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from packer import PackedLoader, PackWriter, RandomAffine, RandomResizedCrop
from packer.loading.affine import AFFINE_STREAM
from packer.samplers.order import uniform

sys.path.append(str(Path(__file__).parents[1] / "loading"))
from affine_reference import EDGE, LEVELS, sources

pytest.importorskip("torchvision", reason="torchvision is optional, and not installed here")
from torchvision import transforms, tv_tensors
from torchvision.transforms.v2 import InterpolationMode, functional

DRAWS, COUNT, SHAPE = 10_000, 12, (48, 64)
LEVEL = 1.95 * (2 / DRAWS) ** 0.5
"""Of the two-sample Kolmogorov-Smirnov test at 0.1%."""
GIVEN: dict[str, dict[str, Any]] = {
    "all": {"degrees": 30, "translate": (0.1, 0.3), "scale": (0.5, 1.5), "shear": (-20, 10, 5, 15)},
    "a range": {"degrees": (10, 25), "scale": (0.9, 1.1)}, "rotation": {"degrees": 180},
    "shift": {"degrees": 0, "translate": (0.5, 0.02)}, "shear": {"degrees": 0, "shear": 40},
    "shear of a range": {"degrees": (-5, 5), "shear": (10, 20)},
}  # fmt: skip


def distance(ours: Any, theirs: Any) -> float:
    """The largest difference between two empirical distributions."""
    a, b = np.sort(ours), np.sort(theirs)
    every = np.concatenate([a, b])
    shares = [np.searchsorted(one, every, "right") / len(one) for one in (a, b)]
    return float(np.abs(shares[0] - shares[1]).max())


@pytest.mark.parametrize("name", GIVEN)
def test_parameters_are_those_of_torchvision(name: str) -> None:
    theirs, ours = transforms.RandomAffine(**GIVEN[name]), RandomAffine(**GIVEN[name])
    torch.manual_seed(0)
    drawn = [
        theirs.get_params(theirs.degrees, theirs.translate, theirs.scale, theirs.shear, list(SHAPE[::-1]))
        for _ in range(DRAWS)
    ]
    expected = np.array([(angle, *shift, scale, *shear) for angle, shift, scale, shear in drawn]).T
    angles, shifts, scales, shears = ours.drawn(uniform(1, 0, np.arange(DRAWS), ours.num_random), SHAPE)
    for found, wanted in zip((angles, *shifts.T, scales, *shears.T), expected, strict=True):
        assert distance(found, wanted) < LEVEL
        # angles are float32 there
        assert abs(found.min() - wanted.min()) < 0.01 * np.ptp(wanted) + 1e-5


def test_the_distance_sees_a_shift() -> None:
    random = np.random.default_rng(0)
    assert distance(random.random(DRAWS), random.random(DRAWS) * 1.03) > LEVEL


@pytest.fixture(scope="module")
def labelled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Noise with boxes and a mask."""
    path, random = tmp_path_factory.mktemp("labelled") / "p.lmdb", np.random.default_rng(3)
    with PackWriter(path, classes=["a"], mask_classes=[str(i) for i in range(200)]) as writer:
        for _ in range(COUNT):
            start = random.uniform(0, 30, (4, 2))
            boxes = np.concatenate([start, start + random.uniform(3, 17, (4, 2))], axis=1).tolist()
            mask = random.integers(0, 200, SHAPE, np.uint8)
            writer.write(random.integers(0, 256, (*SHAPE, 3), np.uint8), boxes=boxes, box_labels=[0] * 4, mask=mask)
    return path


def inside(its_map: Any, shape: tuple[int, int]) -> Any:
    """Which pixels come from between the centers of pixels: torchvision multiplies others by their share twice."""
    rows, columns = sources(its_map, shape)
    return (rows >= 0.5) & (rows <= shape[0] - 0.5) & (columns >= 0.5) & (columns <= shape[1] - 0.5)


@pytest.mark.parametrize("crop", [None, RandomResizedCrop((40, 30), scale=(0.3, 1))], ids=["whole", "cut"])
@pytest.mark.parametrize("name", GIVEN)
def test_images_and_labels_are_those_of_torchvision(labelled: Path, name: str, crop: Any) -> None:
    """Pixels within 1 of 255 away from borders; masks equal but where a center is within 1e-3 px of two pixels."""
    affine = RandomAffine(**GIVEN[name], fill=70)
    loader = PackedLoader(labelled, COUNT, crop=crop, flip=True, affine=affine, min_area=0)
    plain = PackedLoader(labelled, COUNT, crop=crop, flip=True, min_area=0)
    filler, dropped = loader._host.filler, 0
    (images, targets), (before, wanted) = next(iter(loader)), next(iter(plain))
    random = uniform(filler.augmentation.seed ^ AFFINE_STREAM, 0, np.arange(COUNT), affine.num_random)
    drawn, maps = affine.drawn(random, filler.output), filler.params(np.arange(COUNT), 0).affine
    for row, (angle, shift, scale, shear) in enumerate(zip(*(one.tolist() for one in drawn), strict=True)):
        given = {"angle": angle, "translate": shift, "scale": scale, "shear": shear}
        image = functional.affine(before[row], **given, interpolation=InterpolationMode.BILINEAR, fill=70)
        far = inside(maps[row], filler.output)
        assert far.sum() > 100
        assert ((images[row].int() - image.int()).abs().amax(dim=0).numpy()[far] <= LEVELS).all()
        mask = functional.affine(tv_tensors.Mask(wanted[row]["mask"]), **given, fill=255)
        certain = np.all([np.abs(axis - np.rint(axis)) > EDGE for axis in sources(maps[row], filler.output)], axis=0)
        assert certain.any() and np.array_equal(targets[row]["mask"].numpy()[certain], mask.numpy()[certain])
        boxes = tv_tensors.BoundingBoxes(wanted[row]["boxes"], format="XYXY", canvas_size=filler.output)
        moved = functional.affine(boxes, **given).as_subclass(torch.Tensor)
        left = moved[(moved[:, 2:] > moved[:, :2]).all(dim=1)]
        dropped += len(moved) - len(left)
        torch.testing.assert_close(targets[row]["boxes"], left, atol=1e-3, rtol=0)
    assert dropped or name != "all"


@pytest.mark.parametrize("wrong", [
    {"degrees": -1}, {"degrees": (1, 2, 3)}, {"translate": (0.1, 1.5)}, {"translate": 0.1}, {"scale": (0, 1)},
    {"scale": 2}, {"shear": -1}, {"shear": (1, 2, 3)},
], ids=str)  # fmt: skip
def test_what_torchvision_refuses_is_refused(wrong: dict[str, Any]) -> None:
    for made in (transforms.RandomAffine, RandomAffine):
        with pytest.raises((ValueError, TypeError)):
            made(**{"degrees": 5, **wrong})
