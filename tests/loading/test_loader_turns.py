"""vflip and rotate90: each image is one of the eight orientations that numpy makes of it, and all labels are too."""

from __future__ import annotations

import json
import re
from copy import deepcopy
from itertools import product

import numpy as np
import pytest
import torch
from loader_packs import alike

from packer import CenterCrop, CropView, PackedLoader, PackWriter, RandomResizedCrop, Resize
from packer.errors import UsageError
from packer.loading.augmentation import Augmentation, CropParams
from packer.loading.decoding import flip_rows
from packer.loading.on_device import oriented as oriented_there

SIDE, COUNT = 32, 10
CROP = RandomResizedCrop(20, scale=(0.3, 1))
EVERY = {"flip": True, "vflip": True, "rotate90": True}
FACE = (1, 0, 2, 4, 3)
ALL = set(product((False, True), range(4)))
"""Whether top and bottom are exchanged, and the turns by 90 degrees counterclockwise that follow."""


def oriented(pixels, orientation, axes=(-2, -1)):
    """An array with rows and columns on these axes, by numpy."""
    down, quarters = orientation
    return np.rot90(np.flip(pixels, axes[0]) if down else pixels, quarters, axes)


def moved(points, orientation, side):
    """Points (..., 2), step by step."""
    x, y = np.moveaxis(np.asarray(points, np.float64), -1, 0)
    down, quarters = orientation
    y = side - y if down else y
    for _ in range(quarters):
        x, y = y, side - x
    return np.stack([x, y], axis=-1)


def orientation_of(image, plain):
    """How an image (channels, height, width) is turned: noise is alike in one orientation only."""
    (found,) = [one for one in ALL if np.array_equal(oriented(plain, one), image)]
    return found


@pytest.fixture(scope="module", params=["raw", "jpeg", "png"])
def squares(request, tmp_path_factory):
    """Noise of 32x32 with boxes, points, and all kinds of pixels."""
    path, random = tmp_path_factory.mktemp("squares") / "p.lmdb", np.random.default_rng(3)
    kinds = {"right": "image", "depth": "map"}
    with PackWriter(path, classes=["a", "b", "c"], encode=request.param, parts=kinds) as writer:
        for _ in range(COUNT):
            image = random.integers(0, 256, (SIDE, SIDE, 3), np.uint8)
            start = random.uniform(1, 20, (3, 2))
            boxes = np.concatenate([start, start + random.uniform(4, 11, (3, 2))], axis=1)
            visible = random.integers(1, 3, (3, 5, 1))
            writer.write(
                image, boxes=boxes.tolist(), box_labels=[0, 1, 2],
                landmarks=random.uniform(0, SIDE, (5, 2)).tolist(),
                keypoints=np.concatenate([random.uniform(0, SIDE, (3, 5, 2)), visible], axis=2).tolist(),
                masks=random.integers(0, 2, (3, SIDE, SIDE), np.uint8),
                mask=random.integers(0, 3, (SIDE, SIDE), np.uint8),
                parts={"right": image, "depth": random.random((SIDE, SIDE), np.float32)},
            )  # fmt: skip
    return path


ROOF = np.array([(9, 5), (20, 11), (17, 16.5), (6, 10.5)])


@pytest.fixture(scope="module", params=["obb", "polygons"])
def roofs(request, tmp_path_factory):
    """Noise of 32x32 with oriented boxes or polygons."""
    path, random = tmp_path_factory.mktemp("roofs") / "p.lmdb", np.random.default_rng(4)
    with PackWriter(path, classes=["a"]) as writer:
        for _ in range(COUNT):
            image = random.integers(0, 256, (SIDE, SIDE, 3), np.uint8)
            outlines = [(ROOF + np.array([random.uniform(-5, 10), 3])).tolist() for _ in range(2)]
            boxes = [[*np.min(one, axis=0), *np.max(one, axis=0)] for one in outlines]
            given = {} if request.param == "obb" else {"boxes": boxes}
            writer.write(image, **{request.param: outlines}, **given, box_labels=[0, 0])
    return request.param, path


def seen_pairs(path, epochs=3, **options):
    """(target, that without vertical flips and turns, orientation, mirrored) of the images of some epochs."""
    options = {"seed": 5, "flip_index": FACE, **options}
    turned, plain = PackedLoader(path, 4, **EVERY, **options), PackedLoader(path, 4, flip=True, **options)
    for epoch in range(epochs):
        turned.set_epoch(epoch)
        plain.set_epoch(epoch)
        for (images, targets), (before, wanted) in zip(turned, plain, strict=True):
            assert images.is_contiguous(memory_format=torch.channels_last)
            for image, target, other, want in zip(images, targets, before, wanted, strict=True):
                yield target, want, orientation_of(image.numpy(), other.numpy())


def check_boxes(target, want, orientation, side):
    corners = moved(want["boxes"].reshape(-1, 2, 2), orientation, side)
    boxes = np.concatenate([corners.min(axis=1), corners.max(axis=1)], axis=1)
    assert np.allclose(target["boxes"], boxes, atol=1e-4)
    assert torch.equal(target["labels"], want["labels"])


@pytest.mark.parametrize("crop", [None, Resize((20, 20)), CROP], ids=["whole", "resized", "cut"])
def test_every_label_moves_with_its_image(squares, crop):
    side, seen = SIDE if crop is None else 20, set()
    for target, want, orientation in seen_pairs(squares, crop=crop):
        seen.add(orientation)
        check_boxes(target, want, orientation, side)
        order = np.array(FACE if orientation[0] else range(5))
        assert np.allclose(target["landmarks"], moved(want["landmarks"], orientation, side)[order], atol=1e-4)
        points = want["keypoints"].numpy()[:, order]
        assert np.allclose(target["keypoints"][..., :2], moved(points[..., :2], orientation, side), atol=1e-4)
        assert np.array_equal(target["keypoints"][..., 2], points[..., 2])
        for name in ("masks", "mask", "right", "depth"):
            assert np.array_equal(target[name], oriented(want[name].numpy(), orientation)), name
    assert seen == ALL


@pytest.mark.parametrize("crop", [None, CROP], ids=["whole", "cut"])
def test_outlines_move_with_their_image(roofs, crop):
    (name, path), side, seen = roofs, SIDE if crop is None else 20, set()
    for target, want, orientation in seen_pairs(path, crop=crop, flip_index=None):
        seen.add(orientation)
        check_boxes(target, want, orientation, side)
        for one, other in zip(target[name], want[name], strict=True):
            before = moved(other, orientation, side)
            if crop is None or name == "obb":
                assert np.allclose(one, before, atol=1e-4)
            # a polygon that is cut begins at another point
            apart = np.linalg.norm(one.numpy()[:, None] - before, axis=2)
            assert len(one) == len(other) and max(apart.min(axis=0).max(), apart.min(axis=1).max()) < 1e-3
    assert seen == ALL


@pytest.mark.parametrize("kind", ["raw", "jpeg", "png", "ragged", "gray", "gray16", "copy", "photos"])
@pytest.mark.parametrize("options", [{}, {"dtype": torch.float32}, {"views": {"a": (2, CROP)}}], ids=str)
def test_pixels_of_all_kinds_of_packs(pack, kind, options):
    options, seen = {"seed": 3, **options}, set()
    if "views" not in options:
        options["crop"] = CROP
    loader, before = (PackedLoader(pack(kind), 5, **chances, **options) for chances in (EVERY, {"flip": True}))
    for (images, labels), (plain, same) in zip(loader, before, strict=True):
        assert torch.equal(labels, same)
        both = (images["a"], plain["a"]) if "views" in options else (images, plain)
        seen |= {orientation_of(image.numpy(), other.numpy()) for image, other in zip(*both, strict=True)}
    assert len(seen) >= 6


def test_vertical_flips_are_of_any_shape(pack):
    for images, plain in zip(PackedLoader(pack("raw"), 4, vflip=1.0), PackedLoader(pack("raw"), 4), strict=True):
        assert torch.equal(images[0], plain[0].flip(2))
    for crop in (None, RandomResizedCrop((8, 5))):
        for (_, targets), (_, plain) in zip(
            PackedLoader(pack("boxes"), 4, vflip=1.0, flip_index=range(5), crop=crop),
            PackedLoader(pack("boxes"), 4, crop=crop), strict=True,
        ):  # fmt: skip
            height = 30 if crop is None else 8
            for target, want in zip(targets, plain, strict=True):
                mirrored = want["boxes"][:, [0, 3, 2, 1]] * torch.tensor([1, -1, 1, -1]) + torch.tensor([0, height] * 2)
                torch.testing.assert_close(target["boxes"], mirrored, atol=1e-4, rtol=0)


def test_masks_alone(tmp_path):
    random = np.random.default_rng(1)
    with PackWriter(tmp_path / "p.lmdb", mask_classes=[str(i) for i in range(200)]) as writer:
        for _ in range(COUNT):
            mask = random.integers(0, 200, (SIDE, SIDE), np.uint8)
            writer.write(mask, mask=mask)
    for crop in (None, RandomResizedCrop(SIDE, scale=(1, 1), ratio=(1, 1), interpolation="nearest")):
        for images, masks in PackedLoader(tmp_path / "p.lmdb", 5, crop=crop, **EVERY):
            assert torch.equal(images[:, 0].long(), masks)


def test_the_device_makes_the_same(squares, pack):
    if "raw" in json.loads((squares / "pack.json").read_text())["encoding"]:
        options = {"seed": 2, "shuffle": True, "flip_index": FACE, "parts": (), **EVERY}
        assert alike(
            list(PackedLoader(squares, 4, cache="device", **options)), list(PackedLoader(squares, 4, **options))
        )
    random = np.random.default_rng(0)
    for channels in (1, 3):
        rows = random.integers(0, 256, (64, 6, 6, channels), np.uint8)
        flags = random.random((3, 64)) < 0.5
        params = CropParams(None, flags[0], (6, 6), flags[1], flags[2])
        images = torch.from_numpy(rows.copy()).permute(0, 3, 1, 2)
        flip_rows(rows, params)
        assert torch.equal(oriented_there(images, params), torch.from_numpy(rows).permute(0, 3, 1, 2))


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
@pytest.mark.parametrize("channels", [1, 2, 3, 4, 5, 9])
def test_any_number_of_channels(channels, dtype):
    rows = np.random.default_rng(0).integers(0, 256, (8, 5, 5, channels)).astype(dtype)
    flags = np.array(list(product((False, True), repeat=3))).T
    wanted = rows.copy()
    for row, (across, down, swap) in zip(wanted, flags.T, strict=True):
        some = row[:, ::-1] if across else row
        some = some[::-1] if down else some
        row[:] = (some.swapaxes(0, 1) if swap else some).copy()
    flip_rows(rows, CropParams(None, flags[0], (5, 5), flags[1], flags[2]), np.zeros(8, np.bool_))
    assert np.array_equal(rows, wanted)
    # those that are mirrored already stay so
    again = wanted.copy()
    flip_rows(again, CropParams(None, flags[0], (5, 5)), flags[0])
    assert np.array_equal(again, wanted)


# -- chances


def shares(flip=0.0, vflip=0.0, rotate90=0.0, count=10_000, seed=1, crop=None):
    """How many of some samples have each orientation: (left and right, top and bottom, rows and columns exchanged)."""
    sides = np.full(count, 50.0), np.full(count, 40.0)
    made = Augmentation(crop, flip, seed, vflip, rotate90).params(np.arange(count), 3, (8, 8), lambda _: sides)
    flags = [np.zeros(count, bool) if one is None else one for one in (made.flipped, made.upended, made.transposed)]
    return np.bincount(flags[0] + 2 * flags[1] + 4 * flags[2], minlength=8), made


TURNS = [0, 1 + 4, 1 + 2, 2 + 4]
"""Codes of turns by 0 to 270 degrees."""


@pytest.mark.parametrize(
    ("chances", "expected"),
    [
        ({"flip": 0.5, "vflip": 0.5, "rotate90": 0.75}, dict.fromkeys(range(8), 1 / 8)),
        ({"vflip": 0.3}, {0: 0.7, 2: 0.3}),
        ({"vflip": 0.5, "flip": 0.2}, {0: 0.4, 1: 0.1, 2: 0.4, 3: 0.1}),
        ({"rotate90": 0.75}, dict.fromkeys(TURNS, 1 / 4)),
        ({"rotate90": 1.0}, dict.fromkeys(TURNS[1:], 1 / 3)),
        ({"rotate90": 0.3}, {0: 0.7, **dict.fromkeys(TURNS[1:], 0.1)}),
        ({"vflip": 1.0, "rotate90": 0.75}, dict.fromkeys([2, 7, 1, 4], 1 / 4)),
    ],
    ids=str,
)
def test_orientations_have_their_chances(chances, expected):
    """Pearson's test: 10,000 draws."""
    counts, _ = shares(**chances)
    assert set(np.flatnonzero(counts).tolist()) == set(expected)
    wanted = np.array([10_000 * share for share in expected.values()])
    found = counts[list(expected)]
    assert ((found - wanted) ** 2 / wanted).sum() < 24.3  # 7 degrees of freedom: 1 in 1,000


def test_turns_have_random_numbers_of_their_own():
    _, made = shares(**{"flip": 0.5, "vflip": 0.5, "rotate90": 0.75}, crop=CROP)
    _, plain = shares(flip=0.5, crop=CROP)
    assert np.array_equal(made.regions, plain.regions)
    numbers = np.stack([plain.flipped, made.upended, made.transposed, *made.regions.T])
    assert np.abs(np.corrcoef(numbers)[:3] - np.eye(3, 7))[:, :].max() < 0.04
    assert np.array_equal(shares(vflip=0.5)[1].upended, shares(vflip=0.5, crop=CROP)[1].upended)
    assert not np.array_equal(shares(vflip=0.5)[1].upended, shares(vflip=0.5, seed=2)[1].upended)


# -- states and options


def test_a_state_has_what_is_used(pack):
    made = {"crop": RandomResizedCrop(6), "seed": 3, "shuffle": True}
    plain = PackedLoader(pack("raw"), 4, **made)
    assert not {"vflip", "rotate90"} & {*plain.state_dict()}
    loader = PackedLoader(pack("raw"), 4, vflip=True, rotate90=True, **made)
    iteration = iter(loader)
    for _ in range(3):
        next(iteration)
    state = json.loads(json.dumps(loader.state_dict()))
    assert (state["vflip"], state["rotate90"]) == (0.5, 0.75)
    rest = list(iteration)
    again = PackedLoader(pack("raw"), 4, vflip=0.5, rotate90=0.75, **made)
    again.load_state_dict(state)
    copy = deepcopy(again)
    assert alike(list(again), rest) and alike(list(copy), rest)
    others = {
        "has vflip 0.5, here 0.0": {"rotate90": True},
        "has rotate90 0.75, here 1.0": {"vflip": True, "rotate90": 1.0},
    }
    for words, options in others.items():
        with pytest.raises(UsageError, match=words):
            PackedLoader(pack("raw"), 4, **options, **made).load_state_dict(state)
    with pytest.raises(UsageError, match=r"has vflip 0\.0, here 0\.5"):
        loader.load_state_dict(plain.state_dict())


def test_views_have_their_own(pack):
    views = {"a": (1, RandomResizedCrop(8)), "b": CropView(RandomResizedCrop((8, 6)), 2, rotate90=0.0, vflip=1.0)}
    loader = PackedLoader(pack("raw"), 4, views=views, rotate90=True)
    assert loader.state_dict()["crop"].count(", rotate90 0.75") == loader.state_dict()["crop"].count(", vflip 1.0") == 1
    plain = PackedLoader(pack("raw"), 4, views={"a": views["a"], "b": (2, RandomResizedCrop((8, 6)))})
    assert ", rotate90" not in plain.state_dict()["crop"]
    seen = set()
    for (images, _), (others, _) in zip(loader, plain, strict=True):
        assert torch.equal(images["b"], others["b"].flip(2))
        seen |= {
            orientation_of(one.numpy(), other.numpy()) for one, other in zip(images["a"], others["a"], strict=True)
        }
    assert seen == {(False, quarters) for quarters in range(4)}
    with pytest.raises(UsageError, match="rotate90: needs square images, but these are 6x8"):
        PackedLoader(pack("raw"), 4, views={"b": (2, RandomResizedCrop((8, 6)))}, rotate90=True)


def test_what_is_turned_is_square(pack):
    for options in ({}, {"crop": RandomResizedCrop((8, 12))}, {"crop": CenterCrop((10, 12))}):
        with pytest.raises(UsageError, match=r"rotate90: needs square images.* are 12x.*RandomResizedCrop\("):
            PackedLoader(pack("raw"), 4, rotate90=True, **options)
    loader = PackedLoader(pack("raw"), 4, rotate90=True, crop=RandomResizedCrop(8))
    before = loader.state_dict()
    with pytest.raises(UsageError, match="rotate90: needs square images, but these are 4x5"):
        loader.set_crop(CenterCrop((5, 4)))
    assert loader.state_dict() == before and next(iter(loader))[0].shape[2:] == (8, 8)


@pytest.mark.parametrize("name", ["vflip", "rotate90"])
def test_chances(pack, name):
    usual = {"vflip": 0.5, "rotate90": 0.75}[name]
    for given, chance in ((True, usual), (False, 0.0), (0, 0.0), (np.float32(0.25), 0.25), (1.0, 1.0)):
        loader = PackedLoader(pack("raw"), 4, crop=RandomResizedCrop(8), **{name: given})
        assert getattr(loader._augmentation, name) == chance
    for given, words in ((1, f"is 1, which may mean True or a chance; write True for {usual}"), (1.5, "must be True")):
        with pytest.raises(UsageError, match=re.escape(f"{name}: {words}")):
            PackedLoader(pack("raw"), 4, **{name: given})


def test_a_vertical_flip_of_points_wants_an_index(squares):
    with pytest.warns(UserWarning, match="vflip mirrors keypoints|vflip mirrors landmarks"):
        PackedLoader(squares, 4, vflip=True)
