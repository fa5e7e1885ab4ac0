"""Loaders of mosaics: the same images for any number of threads and ranks, after a resume, and with damaged records."""

from __future__ import annotations

import json
import re
from copy import deepcopy
from itertools import islice

import numpy as np
import pytest
import torch
from broken_packs import broken
from loader_packs import alike, waves
from part_packs import damage_part

from packer import (
    CropView,
    Letterbox,
    Mosaic,
    PackedLoader,
    PackWriter,
    RandomAffine,
    RandomResizedCrop,
    join_packs,
    open_pack,
)
from packer.errors import DamagedPack, DamagedRecordWarning, UsageError
from packer.loading.targets import TargetOptions, Targets
from packer.samplers import BucketSampler, ShapeBuckets, ShuffleSampler

SIZE, RECORDS = 32, 11
MOSAIC = Mosaic(SIZE)
AFFINE = RandomAffine(0, translate=(0.1, 0.1), scale=(0.5, 1.5))


def written(path, encode="png", boxes=True, seed=0):
    """Smooth images of many sizes, with boxes and masks, or masks alone; raw ones of one size."""
    with PackWriter(path, classes=["a", "b"], mask_classes=["x", "y", "z"], encode=encode) as writer:
        for i in range(RECORDS):
            height, width = (24, 30) if encode == "raw" else (20 + 3 * i, 50 - 2 * i)
            objects = {"boxes": [(2, 3, 12, 15), (5, 5, 20, 18)], "box_labels": [0, 1]} if boxes else {}
            mask = ((np.arange(width) // 5 + np.arange(height)[:, None] // 5 + i) % 3).astype(np.uint8)
            writer.write(waves(height, width, i + seed) // 2 + np.uint8(10 * i), mask=mask, **objects)
    return path


@pytest.fixture(scope="module", params=["raw", "png", "jpeg", "masks"])
def mixed(request, tmp_path_factory):
    path = tmp_path_factory.mktemp(request.param) / "p.lmdb"
    return written(path, *(("png", False) if request.param == "masks" else (request.param,)))


@pytest.fixture(scope="module")
def boxed(tmp_path_factory):
    return written(tmp_path_factory.mktemp("boxed") / "p.lmdb")


def made(path, batch_size=4, **options):
    common = {"crop": MOSAIC, "affine": AFFINE, "flip": True, "shuffle": True, "seed": 3, "min_visible": 0.1}
    return PackedLoader(path, batch_size, **{**common, **options})


def sampler_of(path, rank, world_size):
    return ShuffleSampler(open_pack(path), 3, rank=rank, world_size=world_size)


def rows_of(batches):
    return [pair for images, targets in batches for pair in zip(images, targets, strict=True)]


@pytest.mark.parametrize("options", [{}, {"affine": RandomAffine(20, scale=(0.5, 1.5))}], ids=["upright", "turning"])
def test_threads_batches_ranks_and_blocks(mixed, options, monkeypatch):
    expected = list(made(mixed, threads=1, **options))
    assert not alike(expected, list(made(mixed, threads=1, **{**options, "seed": 4})))
    for threads in (2, 3):
        assert alike(list(made(mixed, threads=threads, **options)), expected)
    assert alike(rows_of(made(mixed, 3, **options)), rows_of(expected))
    for world_size in (2, 3):
        ranks = [
            made(mixed, 1, shuffle=False, sampler=sampler_of(mixed, rank, world_size), **options)
            for rank in range(world_size)
        ]
        dealt = [row for step in zip(*map(rows_of, ranks), strict=False) for row in step]
        assert alike(dealt[:RECORDS], rows_of(made(mixed, 1, **options))[: len(dealt[:RECORDS])])
    monkeypatch.setattr("packer.loading.pipeline.BLOCK_BYTES", 1)
    assert alike(list(made(mixed, **options)), expected)


def test_every_position_resumes_exactly(mixed):
    loader = made(mixed)
    loader.set_epoch(1)
    whole = list(loader)
    for position in range(len(whole)):
        loader = made(mixed)
        loader.set_epoch(1)
        first = list(islice(loader, position))
        again = made(mixed, threads=1)
        again.load_state_dict(json.loads(json.dumps(loader.state_dict())))
        copy = deepcopy(again)
        assert alike(first + list(again), whole) and alike(first + list(copy), whole)
    with pytest.raises(UsageError, match=r"has crop \"Mosaic\(size=32, .*here \"Mosaic\(size=32, tiles=9"):
        made(mixed, crop=Mosaic(SIZE, tiles=9)).load_state_dict(loader.state_dict())


def test_forever_goes_through_the_epochs(mixed):
    epochs, loader = [], made(mixed)
    for epoch in range(3):
        loader.set_epoch(epoch)
        epochs += list(loader)
    assert alike(list(islice(made(mixed).forever(), len(epochs))), epochs)
    assert not alike(epochs[:1], epochs[len(loader) : len(loader) + 1])


def test_what_is_closed_is_a_letterbox(boxed):
    plain = {"affine": None, "flip": False, "min_visible": 0}
    crops = Mosaic(SIZE), Mosaic(SIZE, close_epoch=1), Mosaic(SIZE, chance=0), Letterbox(SIZE)
    loaders = [made(boxed, crop=crop, **plain) for crop in crops]
    mosaics, closing, alone, letterboxed = map(list, loaders)
    assert alike(closing, mosaics) and not alike(alone, mosaics)
    for loader in loaders:
        loader.set_epoch(1)
    mosaics, closing, alone, letterboxed = map(list, loaders)
    assert alike(closing, alone) and not alike(alone, mosaics)
    for (_, target), (_, other) in zip(rows_of(closing), rows_of(letterboxed), strict=True):
        assert torch.equal(target["labels"], other["labels"])
        assert (target["boxes"] - other["boxes"]).abs().max() <= 1  # sides are rounded up, not to the nearest pixel


def test_half_of_the_images_are_alone(boxed):
    """Which ones depends on the seed; those that are not are those of a loader of mosaics alone."""
    mosaics, half, alone = (rows_of(made(boxed, crop=Mosaic(SIZE, chance=chance))) for chance in (1, 0.5, 0))
    kinds = [(alike(one, always), alike(one, never)) for one, always, never in zip(half, mosaics, alone, strict=True)]
    assert set(kinds) == {(True, False), (False, True)}


def test_another_crop_and_back(mixed):
    expected, plain = list(made(mixed)), list(made(mixed, crop=Letterbox(SIZE)))
    loader = made(mixed)
    loader.set_crop(Letterbox(SIZE))
    batches = iter(loader)
    assert alike(next(batches), plain[0])
    state = json.loads(json.dumps(loader.state_dict()))
    assert alike(list(batches), plain[1:])
    resumed = made(mixed)
    resumed.load_state_dict(state)
    assert alike(list(resumed), plain[1:])
    loader.set_epoch(0)
    loader.set_crop(MOSAIC)
    assert alike(list(loader), expected)
    loader, resumed = (made(mixed, crop=Letterbox(SIZE)) for _ in range(2))
    loader.set_crop(MOSAIC)
    batches = iter(loader)
    assert alike(next(batches), expected[0])
    resumed.load_state_dict(loader.state_dict())
    assert alike(list(resumed), expected[1:]) and alike(list(batches), expected[1:])


def test_normalized_transformed_collated(boxed):
    expected = list(made(boxed))
    floats = made(boxed, mean=(0.5, 0.4, 0.3), std=(0.2, 0.2, 0.1))
    mean, std = (torch.tensor(each).view(3, 1, 1) for each in ((0.5, 0.4, 0.3), (0.2, 0.2, 0.1)))
    for (images, targets), (plain, same) in zip(floats, expected, strict=True):
        torch.testing.assert_close(images, (plain / 255 - mean) / std)
        assert alike(targets, same)
    turned = made(boxed, transform=lambda image: image.flip(0), target_transform=lambda target: len(target["boxes"]))
    for (images, counts), (plain, targets) in zip(turned, expected, strict=True):
        assert torch.equal(images, plain.flip(1)) and list(counts) == [len(target["boxes"]) for target in targets]
    for (_, rows), (_, targets) in zip(made(boxed, collate="yolo", parts=()), expected, strict=True):
        assert rows[:, 0].long().bincount(minlength=len(targets)).tolist() == [len(one["boxes"]) for one in targets]
    for (_, targets), (_, same) in zip(made(boxed, cache="ram", label_offset=1), expected, strict=True):
        assert all(torch.equal(a["labels"], b["labels"] + 1) for a, b in zip(targets, same, strict=True))


def test_subsets_have_their_own_partners(boxed):
    """The record of each row, and of each image beside it, is one of the subset."""
    chosen = [2, 5, 7]
    loader = made(boxed, indices=chosen)
    seen = set()
    for epoch in range(4):
        for samples in loader.sampler.rank_batches(4, epoch):
            seen |= set(loader._host.filler.params(samples, epoch).tiles.records.tolist())
    assert seen == set(chosen) and len(list(loader)) == 1


@pytest.mark.parametrize("kind", ["images", "masks"])
@pytest.mark.filterwarnings("ignore::packer.errors.DamagedRecordWarning")
def test_a_damaged_image_beside_others_is_named(tmp_path, kind):
    path = written(tmp_path / "p.lmdb")
    if kind == "images":
        path, record = broken(path, tmp_path / "broken.lmdb", [6]), 6
    else:
        record, _ = damage_part(path, "mask")
    with pytest.raises(DamagedPack, match=f"record {record:08d}"):
        list(made(path))
    loader = made(path, on_error="replace")
    expected = list(loader)
    assert sum(len(images) for images, _ in expected) == RECORDS
    assert [(one.record, one.key) for one in loader.replaced] == [(record, f"{record:08d}")]
    assert loader.stats()["replaced"] > 1  # in mosaics of others, too
    for threads in (1, 3):
        assert alike(list(made(path, on_error="replace", threads=threads)), expected)


def test_one_warning_names_the_damaged_record(tmp_path, monkeypatch):
    monkeypatch.setattr("packer.loading.stand_ins._warned", set())
    path = broken(written(tmp_path / "p.lmdb"), tmp_path / "broken.lmdb", [6])
    with pytest.warns(DamagedRecordWarning) as caught:
        list(made(path, on_error="replace"))
    assert len(caught) == 1 and "record 00000006" in str(caught[0].message)


@pytest.mark.parametrize("size", [(60, 60), (1, 1), (2, 300)])
def test_images_of_one_size_and_gray(tmp_path, size):
    """Boxes are inside, pixels are those of the images or the fill; 16 bits, one channel."""
    with PackWriter(tmp_path / "p.lmdb", classes=["a"]) as writer:
        for i in range(5):
            writer.write(np.full(size, 1000 * (i + 1), np.uint16), boxes=[(0, 0, size[1], size[0])], box_labels=[0])
    for tiles in (4, 9):
        for images, targets in made(tmp_path / "p.lmdb", crop=Mosaic(SIZE, tiles, fill=7), affine=None):
            assert images.dtype == torch.uint16 and images.shape[1:] == (1, SIZE, SIZE)
            assert {*np.unique(images.numpy()).tolist()} <= {7, 1000, 2000, 3000, 4000, 5000}
            assert all(target["boxes"].min() >= 0 and target["boxes"].max() <= SIZE for target in targets)


def test_images_need_no_labels_but_boxes_or_masks(tmp_path):
    with PackWriter(tmp_path / "p.lmdb") as writer:
        writer.write(waves(20, 30), 1)
    with pytest.raises(UsageError, match="crop: is a Mosaic, which needs boxes or masks"):
        PackedLoader(tmp_path / "p.lmdb", 1, crop=MOSAIC)
    loader = PackedLoader(tmp_path / "p.lmdb", 1, crop=RandomResizedCrop(SIZE))
    with pytest.raises(UsageError, match="crop: is a Mosaic, which needs boxes or masks"):
        loader.set_crop(MOSAIC)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"views": {"a": RandomResizedCrop(SIZE)}}, "crop"),
        ({"crop": None, "views": {"a": MOSAIC}}, "Mosaic"),
        ({"crop": None, "views": {"a": CropView(MOSAIC)}}, "Mosaic"),
        ({"repeats": 2}, "repeats: cannot be combined with Mosaic"),
        ({"cache": "device"}, "cache: cannot be combined with Mosaic"),
        ({"decode": "device"}, "decode: cannot be combined with Mosaic"),
        ({"crop": Mosaic(SIZE, fill=300)}, "crop: has fill 300, but values of pixels are up to 255"),
    ],
    ids=str,
)
def test_what_cannot_be_meant_is_refused(boxed, options, message):
    with pytest.raises(UsageError, match=re.escape(message)):
        made(boxed, **options)


def test_buckets_are_refused(boxed):
    data = open_pack(boxed)
    sampler = BucketSampler(data, ShapeBuckets(((24, 32), (30, 20))), 4, seed=3)
    with pytest.raises(UsageError, match="sampler: cannot be combined with Mosaic"):
        PackedLoader(data, 4, crop=MOSAIC, sampler=sampler)


WRONG = {
    "size": [0, 1, 2.5, True, (3, 4), "64", None],
    "tiles": [0, 1, 16, "4", None],
    "chance": [-0.1, 1.5, None, "half", float("nan")],
    "close_epoch": [-1, 0.5, True],
    "fill": [-1, 1 << 16, 0.5, (1, 2, 3)],
    "interpolation": ["cubic", None],
}


@pytest.mark.parametrize("name", WRONG)
def test_arguments_are_checked(name):
    for given in WRONG[name]:
        with pytest.raises(ValueError, match=f"{name} must be") as error:
            Mosaic(**{"size": 64, name: given})
        assert str(error.value).endswith(f"got {given!r}")


@pytest.mark.filterwarnings("ignore::packer.errors.DamagedRecordWarning")
def test_a_damaged_record_of_joined_packs(tmp_path):
    """Its number is that in the joined pack, though its key is that in its own."""
    first, second = written(tmp_path / "a.lmdb"), written(tmp_path / "b.lmdb", seed=5)
    joined = join_packs([first, broken(second, tmp_path / "broken.lmdb", [6])])
    loader = made(joined, on_error="replace")
    assert sum(len(images) for images, _ in loader) == 2 * RECORDS
    assert [(one.record, one.key) for one in loader.replaced] == [(RECORDS + 6, "00000006")]


@pytest.mark.parametrize("affine", [AFFINE, RandomAffine(20)], ids=["upright", "turning"])
def test_masks_that_the_device_widens(tmp_path, affine):
    """They are as the pack has them until then, or in memory of any dtype that is given."""
    path = written(tmp_path / "p.lmdb", boxes=False)
    loader = made(path, RECORDS, affine=affine, shuffle=False)
    ((_, expected),) = loader
    records, filler = np.arange(RECORDS), loader._host.filler
    params, narrow = filler.params(records, 0), Targets(loader.pack, TargetOptions(widen=False))
    found = filler.targets_of(narrow, records, params)
    assert expected.dtype == torch.int64 and found.dtype == np.uint8 and np.array_equal(found, expected.numpy())
    for dtype in (np.uint8, np.int64):
        out = np.zeros(expected.shape, dtype)
        assert filler.targets_of(narrow, records, params, out) is out and np.array_equal(out, found)
