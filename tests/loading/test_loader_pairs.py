"""mixup and copy_paste of objects: a pair is what two images of a loader without them are, put together by hand."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from drawn_instances import draw_instances
from loader_packs import alike

import packer
from packer import CenterCrop, Letterbox, Mosaic, PackedLoader, PackWriter, RandomAffine, RandomResizedCrop, open_pack
from packer.errors import UsageError
from packer.loading.pair_filler import HIDES, PAIR_STREAM, PARTNER, beta_shares
from packer.samplers import ShuffleSampler
from packer.samplers.order import MOST_VISITS, VISIT, derive, uniform

SIZE, COUNT, SEED = 40, 10, 5
CROP = RandomResizedCrop(SIZE, scale=(0.5, 1))
CROPS = {
    "crop": {"crop": CROP},
    "affine": {"crop": CROP, "affine": RandomAffine(20, scale=(0.7, 1.2))},
    "mosaic": {"crop": Mosaic(SIZE), "affine": RandomAffine(0, scale=(0.7, 1.2))},
}
FLIPS = {"flip": True, "vflip": True, "rotate90": True}


@pytest.fixture(scope="module")
def objects(tmp_path_factory):
    """Images of two sizes with boxes that have polygons, a semantic mask and a depth map."""
    path, random = tmp_path_factory.mktemp("objects") / "p.lmdb", np.random.default_rng(3)
    with PackWriter(
        path, classes=["a", "b"], mask_classes=["x", "y", "z"], encode="png", parts={"depth": "map"}
    ) as writer:
        for i in range(COUNT):
            height, width = ((40, 56), (64, 48))[i % 2]
            start = random.uniform(1, 25, (i % 4, 2))
            end = start + random.uniform(4, 12, (i % 4, 2))
            writer.write(
                random.integers(0, 256, (height, width, 3), np.uint8),
                boxes=np.concatenate([start, end], axis=1).tolist(), box_labels=[k % 2 for k in range(i % 4)],
                polygons=[[(a, b), (c, b), (c, d), (a, d)] for (a, b), (c, d) in zip(start, end, strict=True)],
                mask=random.integers(0, 3, (height, width), np.uint8),
                parts={"depth": random.random((height, width), np.float32)},
            )  # fmt: skip
    return path


@pytest.fixture(scope="module")
def instances(tmp_path_factory):
    root = draw_instances(tmp_path_factory.mktemp("source"), COUNT)
    out = root.parent / "instances.lmdb"
    packer.build(root, out, instance_masks=True, encode="png", workers=1)
    return out


def read(pack, epoch=0, **options):
    loader = PackedLoader(pack, COUNT, shuffle=True, seed=SEED, **{"min_area": 0, **FLIPS, **options})
    loader.set_epoch(epoch)
    ((images, targets),) = loader
    return loader, images, targets


def partners(loader, epoch, kind):
    """Which row gets another image by each kind, and its sample: as the draw is documented."""
    sampler = loader.sampler
    samples = sampler.samples_at(epoch)(np.arange(COUNT)).astype(np.int64)
    random = uniform(SEED ^ PAIR_STREAM, epoch, samples, 5)
    pairing = loader._host.filler.pairing
    for row, sample in enumerate(samples.tolist()):
        if random[row, 2 * kind] < (pairing.pasted, pairing.mixed)[kind]:
            record = int(samples[(row - 8 * (1 + int(random[row, 2 * kind + 1] * 8))) % COUNT])
            yield row, record + (PARTNER + derive(sample, kind) % MOST_VISITS) * VISIT, random[row, 4]


def alone(loader, sample, epoch):
    """The image and target of a sample without pairs."""
    filler, records = loader._host.filler.one, np.array([sample % VISIT])
    params = filler.params(np.array([sample]), epoch)
    image = filler.shaped(np.empty(filler.row_bytes, np.uint8), 1)
    filler.fill(records, params, image)
    (target,) = filler.targets_of(loader._host.targets, records, params).as_tensors().as_dicts()
    return torch.from_numpy(image[0]).permute(2, 0, 1), target


@pytest.mark.parametrize("crop", CROPS)
@pytest.mark.parametrize("epoch", [0, 3])
def test_mixup_blends_two_images_and_keeps_all_objects(objects, crop, epoch):
    _, images, targets = read(objects, epoch, **CROPS[crop])
    loader, mixed, found = read(objects, epoch, mixup=(4.0, 0.6), **CROPS[crop])
    others = {row: (sample, number) for row, sample, number in partners(loader, epoch, 1)}
    assert 2 <= len(others) < COUNT
    for row in range(COUNT):
        if row not in others:
            assert torch.equal(mixed[row], images[row])
            assert alike([found[row]], [targets[row]])
            continue
        sample, number = others[row]
        image, target = alone(loader, sample, epoch)
        share = float(beta_shares(np.array([number]), 4.0)[0])
        blended = images[row].double() * share + image.double() * (1 - share)
        assert (mixed[row].double() - blended).abs().max() <= 0.5 + 1e-6
        for name in ("boxes", "labels"):
            assert torch.equal(found[row][name], torch.cat([targets[row][name], target[name]]))
        assert alike(found[row]["polygons"], [*targets[row]["polygons"], *target["polygons"]])
        for name in ("mask", "depth"):
            assert alike(found[row][name], (targets[row] if share >= 0.5 else target)[name])
        assert found[row]["image_id"] == targets[row]["image_id"]


@pytest.mark.parametrize("crop", CROPS)
@pytest.mark.parametrize("outlines", ["polygons", "masks"])
def test_pasted_objects_hide_what_is_below(objects, instances, crop, outlines):
    pack = objects if outlines == "polygons" else instances
    _, images, targets = read(pack, **CROPS[crop])
    loader, pasted, found = read(pack, copy_paste=0.8, **CROPS[crop])
    others = {row: sample for row, sample, _ in partners(loader, 0, 0)}
    copied = 0
    for row in range(COUNT):
        own, its = targets[row], found[row]
        if row not in others:
            assert torch.equal(pasted[row], images[row])
            assert alike([its], [own])
            continue
        image, other = alone(loader, others[row], 0)
        count, new = len(own["boxes"]), its["boxes"][len(own["boxes"]) :]
        assert torch.equal(its["boxes"][:count], own["boxes"])
        places = [other["boxes"].tolist().index(box) for box in new.tolist()]  # each is one of the other image
        assert places == sorted(set(places))
        assert torch.equal(its["labels"][count:], other["labels"][places])
        copied += len(places)
        changed = (pasted[row] != images[row]).any(0)
        assert torch.equal(pasted[row][:, changed], image[:, changed])
        if outlines == "masks":
            where = other["masks"][places].bool().any(0) if places else torch.zeros(SIZE, SIZE, dtype=torch.bool)
            assert torch.equal(its["masks"][count:], other["masks"][places])
            assert torch.equal(its["masks"][:count], own["masks"] * ~where)
        else:  # rectangles, turned by quarters or moved: within a pixel of their outline
            assert torch.equal(its["mask"][changed], other["mask"][changed])
            assert alike(its["depth"][..., changed], other["depth"][..., changed])
            where = changed
        assert not (changed & ~where).any()
        assert torch.equal(pasted[row][:, where], image[:, where])
        for box in new:
            covered = [_share(box, old) for old in own["boxes"]]
            assert max(covered, default=0) < HIDES
        if outlines == "polygons" and crop != "affine":
            inside = torch.zeros(SIZE, SIZE, dtype=torch.bool)
            for left, top, right, bottom in new.round().int().tolist():
                inside[max(top - 1, 0) : bottom + 2, max(left - 1, 0) : right + 2] = True
            assert not (changed & ~inside).any()
    assert copied >= 2


def _share(box, of):
    """The share of a box that lies in another."""
    across = min(box[2], of[2]) - max(box[0], of[0])
    down = min(box[3], of[3]) - max(box[1], of[1])
    return float(max(across, 0) * max(down, 0) / ((of[2] - of[0]) * (of[3] - of[1])))


def test_crowds_are_not_pasted(instances):
    pack = open_pack(instances)
    crowds = {i: np.flatnonzero(pack.annotation(i).ignored) for i in range(COUNT)}
    assert any(len(some) for some in crowds.values())
    for epoch in range(4):
        _, _, targets = read(instances, epoch, copy_paste=1.0, crop=CROP)
        for target in targets:
            own = len(np.flatnonzero(target["iscrowd"]))
            assert own <= len(crowds[target["image_id"]])


@pytest.mark.parametrize("crop", CROPS)
def test_pairs_are_the_same_for_threads_ranks_and_after_a_resume(objects, crop):
    options = {"shuffle": True, "seed": 1, "mixup": (1.0, 0.5), "copy_paste": 0.5, **FLIPS, **CROPS[crop]}
    whole = list(PackedLoader(objects, 4, threads=1, **options))
    assert alike(whole, list(PackedLoader(objects, 4, threads=3, **options)))
    loader = PackedLoader(objects, 4, **options)
    iterator = iter(loader)
    next(iterator)
    state = json.loads(json.dumps(loader.state_dict()))
    assert (state["mixup"], state["copy_paste"]) == ([1.0, 0.5], 0.5)
    again = PackedLoader(objects, 4, **options)
    again.load_state_dict(state)
    assert alike(list(again), whole[1:])
    with pytest.raises(UsageError, match="copy_paste"):
        PackedLoader(objects, 4, **{**options, "copy_paste": 0.0}).load_state_dict(state)
    del options["shuffle"]
    samplers = [ShuffleSampler(open_pack(objects), seed=1, rank=rank, world_size=2) for rank in range(2)]
    ranks = [list(PackedLoader(objects, 2, sampler=sampler, **options)) for sampler in samplers]
    for (images, targets), first, second in zip(whole, *ranks, strict=True):
        assert torch.equal(images[::2], first[0])
        assert torch.equal(images[1::2], second[0])
        assert alike(targets[::2], first[1])


def test_set_crop_keeps_the_pairs(objects):
    options = {"shuffle": True, "seed": 1, "mixup": (1.0, 0.5), "batch_size": 5}
    there = PackedLoader(objects, crop=Mosaic(SIZE), **options)
    there.set_crop(Letterbox(SIZE))
    assert alike(list(there), list(PackedLoader(objects, crop=Letterbox(SIZE), **options)))
    there.set_epoch(1)
    there.set_crop(Mosaic(SIZE))
    here = PackedLoader(objects, crop=Mosaic(SIZE), **options)
    here.set_epoch(1)
    assert alike(list(there), list(here))


def test_float_batches_are_those_of_bytes(objects):
    numbers = {"mean": (0.5, 0.4, 0.3), "std": (0.2, 0.3, 0.4)}
    _, images, _ = read(objects, crop=CROP, mixup=(1.0, 0.5))
    _, floats, _ = read(objects, crop=CROP, mixup=(1.0, 0.5), **numbers)
    mean, std = (torch.tensor(numbers[name]).view(3, 1, 1) for name in ("mean", "std"))
    torch.testing.assert_close(floats, (images / 255 - mean) / std, rtol=0, atol=1e-5)


@pytest.mark.parametrize("alpha", [0.2, 0.5, 1.0, 2.5, 32.0])
def test_shares_are_of_the_beta_distribution(alpha):
    drawn = np.sort(beta_shares((np.arange(20_000) + 0.5) / 20_000, alpha))
    expected = np.sort(np.random.default_rng(0).beta(alpha, alpha, 200_000))
    below = np.searchsorted(expected, drawn) / len(expected)
    assert np.abs(below - (np.arange(20_000) + 0.5) / 20_000).max() < 1.63 / np.sqrt(200_000) + 0.004


def refused(pack, match, **options):
    with pytest.raises(UsageError, match=match):
        PackedLoader(pack, 4, **{"crop": CenterCrop(SIZE), **options})


@pytest.mark.parametrize("mixup", [(1.0,), (0, 0.5), (1.0, 2.0), ("a", 0.5), (float("nan"), 0.1)])
def test_a_wrong_mixup_is_refused(objects, mixup):
    refused(objects, r"mixup: must be \(alpha, chance\)", mixup=mixup)


@pytest.mark.parametrize("alpha", [0, 0.2])
def test_alpha_alone_is_for_labels(objects, alpha):
    refused(objects, r"mixup=\(32.0, 0.15\), or leave it out", mixup=alpha)


def test_what_cannot_be_paired_is_refused(objects, tmp_path):
    refused(objects, "copy_paste", copy_paste=1.5)
    refused(objects, "repeats: cannot be combined with mixup", mixup=(1.0, 0.5), repeats=2)
    refused(objects, "views: cannot be combined with copy_paste", copy_paste=0.5, views={"a": (2, CROP)}, crop=None)
    with PackWriter(tmp_path / "labels.lmdb", classes=["a"]) as writer:
        for _ in range(4):
            writer.write(np.zeros((50, 50, 3), np.uint8), label=0)
    refused(tmp_path / "labels.lmdb", "has no boxes; write alpha alone", mixup=(1.0, 0.5))
    refused(tmp_path / "labels.lmdb", "needs boxes with polygons or masks", copy_paste=0.5)
    with PackWriter(tmp_path / "boxes.lmdb", classes=["a"]) as writer:
        for _ in range(4):
            writer.write(np.zeros((50, 50, 3), np.uint8), boxes=[(1, 1, 9, 9)], box_labels=[0])
    refused(tmp_path / "boxes.lmdb", "needs boxes with polygons or masks", copy_paste=0.5)
