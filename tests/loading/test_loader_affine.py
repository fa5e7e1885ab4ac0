"""RandomAffine: pixels, masks, boxes and points are where plain numpy puts what a loader without it returns."""

from __future__ import annotations

import json
import re
from copy import deepcopy

import cv2
import numpy as np
import pytest
import torch
from affine_reference import LEVELS, bilinear, boxes_around, moved, nearest
from loader_packs import alike

from packer import (
    CenterCrop,
    CropView,
    Letterbox,
    PackedLoader,
    PackWriter,
    RandomAffine,
    RandomResizedCrop,
    Resize,
    open_pack,
)
from packer.errors import UsageError
from packer.loading.affine import warp_row
from packer.loading.augmentation import Augmentation
from packer.loading.crop import crop_text
from packer.model.geometry import clip_polygon
from packer.samplers import BucketSampler, ShapeBuckets
from packer.samplers.order import uniform

HEIGHT, WIDTH, COUNT = 28, 36, 8
CROP = RandomResizedCrop((22, 30), scale=(0.3, 1))
SQUARE = RandomResizedCrop(24, scale=(0.3, 1))
AFFINE = RandomAffine(30, (0.5, 0.4), (0.6, 1.4), (-15, 15, -10, 5), fill=90)
FACE = (1, 0, 2, 4, 3)
IGNORED = 255
"""Of masks, by default."""


@pytest.fixture(scope="module", params=["raw", "jpeg", "png"])
def labelled(request, tmp_path_factory):
    """Noise of 36x28 with boxes, points, and all kinds of pixels."""
    path, random = tmp_path_factory.mktemp("labelled") / "p.lmdb", np.random.default_rng(3)
    kinds = {"right": "image", "depth": "map", "flow": "map"}
    with PackWriter(
        path, classes=["a", "b", "c"], mask_classes=["x", "y", "z"], encode=request.param,
        parts=kinds,
    ) as writer:  # fmt: skip
        for _ in range(COUNT):
            image = random.integers(0, 256, (HEIGHT, WIDTH, 3), np.uint8)
            start = random.uniform(1, 16, (3, 2))
            visible = random.integers(1, 3, (3, 5, 1))
            writer.write(
                image, boxes=np.concatenate([start, start + random.uniform(4, 11, (3, 2))], axis=1).tolist(),
                box_labels=[0, 1, 2], landmarks=random.uniform(0, HEIGHT, (5, 2)).tolist(),
                keypoints=np.concatenate([random.uniform(0, HEIGHT, (3, 5, 2)), visible], axis=2).tolist(),
                masks=random.integers(0, 2, (3, HEIGHT, WIDTH), np.uint8),
                mask=random.integers(0, 3, (HEIGHT, WIDTH), np.uint8),
                parts={
                    "right": image[::-1], "depth": random.random((HEIGHT, WIDTH)).astype(np.float16),
                    "flow": random.random((HEIGHT, WIDTH, 2), np.float32),
                },
            )  # fmt: skip
    return path


ROOF = np.array([(9, 5), (20, 11), (17, 16.5), (6, 10.5)])


@pytest.fixture(scope="module", params=["obb", "polygons"])
def roofs(request, tmp_path_factory):
    """Noise with oriented boxes or polygons."""
    path, random = tmp_path_factory.mktemp("roofs") / "p.lmdb", np.random.default_rng(4)
    with PackWriter(path, classes=["a"]) as writer:
        for _ in range(COUNT):
            outlines = [(ROOF + random.uniform((-5, -4), (14, 10))).tolist() for _ in range(3)]
            boxes = [[*np.min(one, axis=0), *np.max(one, axis=0)] for one in outlines]
            given = {} if request.param == "obb" else {"boxes": boxes}
            image = random.integers(0, 256, (HEIGHT, WIDTH, 3), np.uint8)
            writer.write(image, **{request.param: outlines}, **given, box_labels=[0, 0, 0])
    return request.param, path


def maps_of(loader, epoch=0, batch_size=4):
    """The map of each image, batch by batch."""
    for samples in loader.sampler.rank_batches(batch_size, epoch):
        yield loader._host.filler.for_batch(samples, epoch).params(samples, epoch).affine


def pairs(path, affine=AFFINE, epochs=2, **options):
    """(image, target), those without a map, and the map, of the images of some epochs."""
    options = {"seed": 5, "shuffle": True, **options}
    loader, plain = PackedLoader(path, 4, affine=affine, **options), PackedLoader(path, 4, **options)
    for epoch in range(epochs):
        loader.set_epoch(epoch)
        plain.set_epoch(epoch)
        for batch, before, maps in zip(loader, plain, maps_of(loader, epoch), strict=True):
            assert batch[0].is_contiguous(memory_format=torch.channels_last)
            yield from zip(zip(*batch, strict=True), zip(*before, strict=True), maps, strict=True)


def check_pixels(image, before, its_map, fill, levels=LEVELS):
    expected = bilinear(before.permute(1, 2, 0).numpy(), its_map, fill)
    assert np.abs(image.permute(1, 2, 0).numpy() - expected).max() <= levels


def check_ids(found, before, its_map, fill):
    expected, certain = nearest(before.numpy(), its_map, fill)
    assert certain.mean() > 0.9
    assert np.array_equal(found.numpy()[certain], expected[certain], equal_nan=expected.dtype.kind == "f")


def kept_boxes(before, its_map, output):
    """Boxes that are left, and which those are."""
    boxes = boxes_around(before["boxes"], its_map, output)
    across, down = (boxes[:, 2:] - boxes[:, :2]).T
    return boxes, across * down >= 1


@pytest.mark.parametrize(
    "options",
    [{}, {"crop": Resize((20, 31))}, {"crop": CROP, "flip": True}, {"crop": SQUARE, "vflip": True, "rotate90": True}],
    ids=str,
)
def test_every_label_moves_with_its_image(labelled, options):
    dropped = hidden = 0
    for (image, target), (plain, before), its_map in pairs(labelled, flip_index=FACE, **options):
        output = tuple(image.shape[1:])
        check_pixels(image, plain, its_map, AFFINE.fill)
        boxes, keep = kept_boxes(before, its_map, output)
        dropped += int((~keep).sum())
        assert np.allclose(target["boxes"], boxes[keep], atol=1e-4)
        assert np.array_equal(target["labels"], before["labels"][keep])
        assert np.allclose(target["landmarks"], moved(before["landmarks"], its_map), atol=1e-4)
        points = moved(before["keypoints"][..., :2], its_map)
        outside = ((points < 0) | (points > output[::-1])).any(axis=2)
        hidden += int(outside.sum())
        assert np.allclose(target["keypoints"][..., :2], points[keep], atol=1e-4)
        visible = np.where(outside, 0, before["keypoints"][..., 2])
        assert np.array_equal(target["keypoints"][..., 2], visible[keep])
        for mask, other in zip(target["masks"], before["masks"][keep], strict=True):
            check_ids(mask, other, its_map, 0)
        check_ids(target["mask"], before["mask"], its_map, IGNORED)
        for name in ("depth", "flow"):
            check_ids(target[name].permute(1, 2, 0), before[name].permute(1, 2, 0), its_map, np.nan)
        check_pixels(target["right"], before["right"], its_map, 0)
    assert dropped and hidden


@pytest.mark.parametrize("crop", [None, CROP], ids=["whole", "cut"])
def test_outlines_move_with_their_image(roofs, crop):
    (name, path), cut, away = roofs, 0, RandomAffine(40, (0.5, 0.5), (0.6, 2))
    for (image, target), (_, before), its_map in pairs(path, away, crop=crop, min_area=0):
        height, width = image.shape[1:]
        outlines = [moved(one, its_map) for one in before[name]]
        clipped = [clip_polygon(one.astype(np.float32), width, height) for one in outlines]
        boxes, _ = kept_boxes(before, its_map, (height, width))
        keep = [i for i, one in enumerate(clipped) if len(one) and (boxes[i, 2:] > boxes[i, :2]).all()]
        cut += len(clipped) - len(keep)
        assert np.allclose(target["boxes"], boxes[keep], atol=1e-4)
        for one, i in zip(target[name], keep, strict=True):
            assert np.allclose(one, outlines[i] if name == "obb" else clipped[i], atol=1e-3)
    assert cut


def test_what_a_crop_cuts_off_does_not_come_back(labelled):
    """An image that shrinks shows the edges of its crop, and boxes end there."""
    smaller, seen = RandomAffine(0, scale=(0.5, 0.5)), 0
    for (_, target), (_, before), its_map in pairs(labelled, smaller, crop=CROP, flip_index=FACE):
        edges = boxes_around([[0, 0, 30, 22]], its_map, (22, 30))[0]
        boxes = target["boxes"].numpy()
        assert (boxes >= np.tile(edges[:2], 2) - 1e-4).all() and (boxes <= np.tile(edges[2:], 2) + 1e-4).all()
        seen += int((np.abs(boxes - edges) < 1e-4).sum())
        hidden = before["keypoints"][..., 2] == 0
        assert (target["keypoints"][..., 2][hidden[kept_boxes(before, its_map, (22, 30))[1]]] == 0).all()
    assert seen


@pytest.mark.parametrize("kind", ["raw", "jpeg", "png", "ragged", "gray", "gray16", "copy", "photos"])
@pytest.mark.parametrize("crop", [RandomResizedCrop((9, 12)), Letterbox(16)], ids=lambda crop: crop_text(crop)[:6])
def test_pixels_of_all_kinds_of_packs(pack, kind, crop):
    scale = 257 if kind == "gray16" else 1
    affine = RandomAffine(20, scale=(0.5, 1), fill=200 * scale)
    for (image, label), (before, same), its_map in pairs(pack(kind), affine, epochs=1, crop=crop, flip=True):
        assert label == same
        check_pixels(image, before, its_map, 200 * scale, LEVELS if LEVELS == 1 else LEVELS * scale)


def test_each_channel_has_its_fill(pack):
    affine = RandomAffine(0, (0.4, 0.4), fill=(1, 20, 250))
    for (image, _), (before, _), its_map in pairs(pack("raw"), affine, epochs=1):
        check_pixels(image, before, its_map, (1, 20, 250), 0)  # a shift is of whole pixels
    assert affine.upright and not AFFINE.upright and not RandomAffine(0, shear=(0, 0, 0, 1)).upright


def test_masks_alone_have_the_ignored_value(tmp_path):
    random = np.random.default_rng(1)
    with PackWriter(tmp_path / "p.lmdb", mask_classes=[str(i) for i in range(200)]) as writer:
        for _ in range(COUNT):
            mask = random.integers(0, 200, (HEIGHT, WIDTH), np.uint8)
            writer.write(mask, mask=mask)
    for (_, mask), (_, before), its_map in pairs(tmp_path / "p.lmdb", RandomAffine(45)):
        assert mask.dtype == torch.int64 and (mask == IGNORED).any()
        check_ids(mask, before, its_map, IGNORED)


def test_normalized_images_are_moved_before(pack):
    options = {"affine": AFFINE, "crop": CROP, "seed": 1}
    plain = torch.cat([images for images, _ in PackedLoader(pack("raw"), 4, **options)])
    made = PackedLoader(pack("raw"), 4, mean=(0.5, 0.4, 0.3), std=(0.2, 0.2, 0.1), **options)
    expected = (plain / 255 - torch.tensor([0.5, 0.4, 0.3]).view(3, 1, 1)) / torch.tensor([0.2, 0.2, 0.1]).view(3, 1, 1)
    torch.testing.assert_close(torch.cat([images for images, _ in made]), expected)


def test_views_have_their_own(pack):
    turned = RandomAffine((40, 60), fill=7)
    views = {"a": (2, SQUARE), "b": CropView(CROP, 1, affine=turned), "c": CropView(CROP, affine=RandomAffine(0))}
    loader = PackedLoader(pack("boxes"), 4, views=views, affine=AFFINE, min_area=0, flip_index=FACE)
    text = loader.state_dict()["crop"]
    assert text.count(f", affine {AFFINE}") == text.count(f", affine {turned}") == 1 == text.count("c: 1 x") < 2
    assert text.endswith(f"{CROP}, flip 0.0")
    without = {"a": (2, SQUARE), "b": (1, CROP), "c": (1, CROP)}
    plain = PackedLoader(pack("boxes"), 4, views=without, min_area=0, flip_index=FACE)
    numbers = loader.sampler.rank_batches(4, 0)
    for (images, targets), (others, wanted), samples in zip(loader, plain, numbers, strict=True):
        params = loader._host.filler.params(samples, 0).of
        assert torch.equal(images["c"], others["c"]) and params["c"][0].affine is None
        for name, fill in (("a", AFFINE.fill), ("b", turned.fill)):
            maps = np.concatenate([one.affine for one in params[name]])
            assert len(np.unique(maps[:, 0, 0])) == len(maps)
            for image, before, its_map in zip(images[name], others[name], maps, strict=True):
                check_pixels(image, before, its_map, fill)
            for target, before, its_map in zip(targets[name], wanted[name], maps, strict=True):
                boxes = boxes_around(before["boxes"], its_map, tuple(images[name].shape[2:]))
                keep = (boxes[:, 2:] > boxes[:, :2]).all(axis=1)
                assert np.allclose(target["boxes"], boxes[keep], atol=1e-4)


def test_buckets_are_moved_about_their_own_centers(pack):
    data = open_pack(pack("photos"))
    buckets = ShapeBuckets(((24, 32), (30, 20)), fit="pad")

    def made(**options):
        return PackedLoader(data, 4, sampler=BucketSampler(data, buckets, 4, seed=3), **options)

    turned = RandomAffine((180, 180))
    for (images, _), (plain, _) in zip(made(affine=turned), made(), strict=True):
        assert (images.int() - plain.flip(2, 3).int()).abs().max() <= 1


# -- maps


def test_maps_are_about_the_center():
    """Clockwise, on an image of 40x20 pixels."""
    half = np.full((1, 6), 0.5)
    right = RandomAffine((90, 90)).maps(half, (20, 40))
    assert np.allclose(moved([(20, 10), (30, 10)], right[0]), [(20, 10), (20, 20)])
    larger = RandomAffine(0, scale=(2, 2)).maps(half, (20, 40))
    assert np.allclose(moved([(20, 10), (30, 11)], larger[0]), [(20, 10), (40, 12)])
    leaning = RandomAffine(0, shear=(45, 45)).maps(half, (20, 40))
    assert np.allclose(moved([(20, 10), (20, 15), (25, 10)], leaning[0]), [(20, 10), (15, 15), (25, 10)])
    down = RandomAffine(0, shear=(0, 0, 45, 45)).maps(half, (20, 40))
    assert np.allclose(moved([(20, 10), (20, 15), (25, 10)], down[0]), [(20, 10), (20, 15), (25, 5)])
    first_across = RandomAffine(0, shear=(45, 45, 45, 45)).maps(half, (20, 40))
    assert np.allclose(moved([(20, 15), (25, 10)], first_across[0]), [(15, 20), (25, 5)])
    shifted = RandomAffine(0, (0.1, 0.5)).maps(np.full((1, 6), 0.999), (20, 40))
    assert np.allclose(shifted, [[[1, 0, 4], [0, 1, 10]]])


def test_each_number_has_its_own_part():
    random = uniform(1, 0, np.arange(10_000), RandomAffine.num_random)
    angles, shifts, scales, shears = AFFINE.drawn(random, (50, 80))
    assert np.array_equal(shifts, np.rint(shifts)) and np.abs(shifts).max(axis=0).tolist() == [40, 20]
    numbers = np.stack([angles, *shifts.T, scales, *shears.T])
    assert np.abs(np.corrcoef(numbers) - np.eye(6)).max() < 0.04
    for values, (low, high) in zip(
        (angles, scales, *shears.T), ((-30, 30), (0.6, 1.4), (-15, 15), (-10, 5)), strict=True
    ):
        assert low <= values.min() < low + 0.01 * (high - low) and high - 0.01 * (high - low) < values.max() <= high


def test_maps_have_random_numbers_of_their_own():
    samples, sides = np.arange(2000), (np.full(2000, 50.0), np.full(2000, 40.0))
    chances = {"flip": 0.5, "vflip": 0.5, "rotate90": 0.5, "seed": 1}
    made = Augmentation(SQUARE, **chances, affine=AFFINE).params(samples, 3, (24, 24), lambda _: sides)
    plain = Augmentation(SQUARE, **chances).params(samples, 3, (24, 24), lambda _: sides)
    assert plain.affine is None
    for name in ("regions", "flipped", "upended", "transposed"):
        assert np.array_equal(getattr(made, name), getattr(plain, name))
    drawn = [*made.regions.T, made.flipped, made.upended, made.transposed]
    crossed = np.corrcoef(np.stack([*made.affine.reshape(-1, 6).T, *drawn]))[:6, 6:]
    assert np.abs(crossed).max() < 0.1
    again = Augmentation(affine=AFFINE, seed=1).params(samples[:9], 3, (24, 24), lambda _: sides)
    assert np.array_equal(again.affine, made[:9].affine)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.float32, np.float16])
@pytest.mark.parametrize("channels", [0, 1, 2, 3, 4, 5, 9])
@pytest.mark.parametrize("takes_nearest", [False, True], ids=["bilinear", "nearest"])
def test_any_number_of_channels(channels, dtype, takes_nearest):
    random = np.random.default_rng(0)
    pixels = random.integers(0, 256, (21, 33, channels or 1)).astype(dtype)
    pixels = pixels if channels else pixels[..., 0]
    fill = random.integers(0, 256, channels).tolist() if channels else 5
    for its_map in AFFINE.maps(random.random((4, 6)), (21, 33)):
        if takes_nearest:
            expected, certain = nearest(pixels, its_map, fill)
            found = warp_row(pixels, its_map, fill=fill, nearest=True)
            assert found.dtype == dtype and np.array_equal(found[certain], expected[certain])
        elif dtype != np.float16:
            found = warp_row(pixels, its_map, fill=fill)
            assert found.dtype == dtype and np.abs(found - bilinear(pixels, its_map, fill)).max() <= LEVELS


def test_a_row_may_become_larger():
    image = np.random.default_rng(0).integers(0, 256, (6, 8, 3), np.uint8)
    out = np.empty((20, 30, 3), np.uint8)
    assert warp_row(image, np.array([[2.0, 0, 5], [0, 2, 3]]), out, 9, nearest=True) is out
    assert np.array_equal(out[3:15, 5:21], cv2.resize(image, (16, 12), interpolation=cv2.INTER_NEAREST))
    out[3:15, 5:21] = 9
    assert (out == 9).all()


# -- states and options


def test_a_state_has_what_is_used(pack):
    made = {"crop": CROP, "seed": 3, "shuffle": True}
    plain = PackedLoader(pack("raw"), 4, **made)
    assert "affine" not in plain.state_dict()
    assert "affine" not in PackedLoader(pack("raw"), 4, affine=RandomAffine(0, (0, 0), (1, 1), 0), **made).state_dict()
    loader = PackedLoader(pack("raw"), 4, affine=RandomAffine(10), **made)
    iteration = iter(loader)
    next(iteration), next(iteration)
    state = json.loads(json.dumps(loader.state_dict()))
    rest = list(iteration)
    again = PackedLoader(pack("raw"), 4, affine=RandomAffine((-10, 10.0)), **made)
    again.load_state_dict(state)
    copy = deepcopy(again)
    assert alike(list(again), rest) and alike(list(copy), rest)
    with pytest.raises(UsageError, match=r"has affine 'RandomAffine\(degrees=\(-10.*, here None; use the same affine"):
        plain.load_state_dict(state)
    with pytest.raises(UsageError, match=r"has affine None, here 'RandomAffine\("):
        loader.load_state_dict(plain.state_dict())
    with pytest.raises(UsageError, match=r"has affine 'RandomAffine\(.*here 'RandomAffine\(.*fill=3"):
        PackedLoader(pack("raw"), 4, affine=RandomAffine(10, fill=3), **made).load_state_dict(state)


def test_another_crop_is_moved_too(pack):
    loader, plain = (PackedLoader(pack("raw"), 4, crop=CROP, affine=affine) for affine in (AFFINE, None))
    for one in (loader, plain):
        one.set_crop(CenterCrop((6, 9)))
    for (images, _), (before, _), maps in zip(loader, plain, maps_of(loader), strict=True):
        for image, other, its_map in zip(images, before, maps, strict=True):
            check_pixels(image, other, its_map, AFFINE.fill)


WRONG = {
    "degrees": ([-1, (10, -10), (1, 2, 3), "12", True, None, float("nan"), (0, float("inf"))], "a number, or a range"),
    "translate": ([0.1, (0.1,), (0.1, 1.5), (-0.1, 0.1), "ab"], "two shares from 0 to 1"),
    "scale": ([1.5, (0, 1), (1.5, 0.5), (0.5, 1, 2), (0.5, None)], "a range above 0"),
    "shear": ([-5, 90, (1, 2, 3), (0, 1, 5, 2), (0, 0, 0, 90), (-95, 0)], "a number below 90, or one or two ranges"),
    "fill": ([-1, (), (1, -1), "white", None, (1, float("nan"))], "0 or more, or so for each channel"),
}


@pytest.mark.parametrize("name", WRONG)
def test_arguments_are_checked(name):
    wrong, words = WRONG[name]
    for given in wrong:
        with pytest.raises(ValueError, match=re.escape(f"{name} must be {words}")) as error:
            RandomAffine(**{"degrees": 5, name: given})
        assert str(error.value).endswith(f"got {given!r}")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"affine": 10}, "affine: must be packer.RandomAffine, got 10; write packer.RandomAffine(10"),
        ({"views": {"a": CropView(CROP, affine=(1, 2))}}, "affine: must be packer.RandomAffine, got (1, 2)"),
        ({"affine": AFFINE, "cache": "device"}, "affine: cannot be combined with cache: only the host moves images; "),
        ({"affine": AFFINE, "decode": "device"}, "affine: cannot be combined with decode: only the host moves images"),
        ({"affine": RandomAffine(1, fill=(1, 2))}, "affine: has a fill of 2 numbers, but the images have 3 channels; "),
        ({"affine": RandomAffine(1, fill=256)}, "affine: has fill 256.0, but values of pixels are up to 255; write 0"),
    ],
    ids=lambda value: value[:30] if isinstance(value, str) else "",
)
def test_what_cannot_be_meant_is_refused(pack, options, message):
    with pytest.raises(UsageError, match=re.escape(message)):
        PackedLoader(pack("raw"), 4, **options)
