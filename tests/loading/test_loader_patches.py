"""Batches of patches: those of a loader of each image's own size, cut into squares by loops."""

from __future__ import annotations

import json
import pickle
from itertools import islice

import numpy as np
import pytest
import torch
from broken_packs import broken
from drawn_masks import pairs, write_files
from loader_packs import alike

from packer import BuildOptions, PackedLoader, RandomAffine, RandomResizedCrop, Resize, build_pack, open_pack
from packer.errors import UsageError
from packer.samplers import BucketSampler, PatchBuckets, SequentialSampler

BUCKETS = PatchBuckets(4, (6, 12, 24))


def made(path, batch_size=2, buckets=BUCKETS, ranks=(0, 1), **options):
    rank, world_size = ranks
    sampler = BucketSampler(open_pack(path), buckets, batch_size * world_size, seed=5, rank=rank, world_size=world_size)
    return PackedLoader(path, batch_size, sampler=sampler, with_index=True, **options)


def squares_of(image, patch):
    """The patches of an image (channels, height, width), row by row, each (patch * patch * channels,)."""
    height, width = image.shape[1:]
    for top in range(0, height, patch):
        for left in range(0, width, patch):
            yield image[:, top : top + patch, left : left + patch].permute(1, 2, 0).reshape(-1)


@pytest.mark.parametrize("kind", ["ragged", "raw", "copy", "jpeg", "boxes", "gray16"])
@pytest.mark.parametrize("buckets", [BUCKETS, PatchBuckets(5, (30,), enlarge=True)], ids=str)
def test_patches_are_those_of_the_resized_image(pack, kind, buckets):
    path, patch = pack(kind), buckets.patch
    opened, seen = open_pack(path), []
    for images, targets, records in made(path, buckets=buckets, flip=True, vflip=True):
        patches, coord, valid = images["patches"], images["patch_coord"], images["patch_valid"]
        assert list(images) == ["patches", "patch_coord", "patch_valid"]
        length = patches.shape[1]
        assert length in buckets.lengths and coord.shape == (len(records), length, 2)
        assert valid.shape == (len(records), length) and valid.dtype == torch.bool and coord.dtype == torch.int64
        for row, record in enumerate(records.tolist()):
            seen.append(record)
            height, width = opened.reader.shape_of(record)[:2]
            (rows,), (columns,) = buckets.grids(np.array([width]), np.array([height]), length)
            sampler = SequentialSampler(opened, indices=[record])
            alone = PackedLoader(
                path, 1, sampler=sampler, seed=5, crop=Resize((rows * patch, columns * patch)), flip=True, vflip=True
            )
            ((whole, target),) = alone
            expected = list(squares_of(whole[0], patch))
            assert torch.equal(patches[row, : len(expected)], torch.stack(expected))
            assert valid[row].tolist() == [True] * len(expected) + [False] * (length - len(expected))
            assert coord[row, : len(expected)].tolist() == [[y, x] for y in range(rows) for x in range(columns)]
            assert not patches[row, len(expected) :].to(torch.int64).any() and not coord[row, len(expected) :].any()
            assert alike(targets[row], target[0])
    assert sorted(seen) == list(range(len(opened)))


def test_threads_ranks_and_resume_give_the_same_patches(pack):
    path = pack("photos")
    buckets = PatchBuckets(16, (80, 120, 240))
    whole = list(made(path, 4, buckets, flip=True))
    assert alike(list(made(path, 4, buckets, flip=True, threads=1)), whole)
    assert len({images["patches"].shape[1] for images, *_ in whole}) > 1
    ranks = [list(made(path, 2, buckets, (rank, 2), flip=True)) for rank in range(2)]
    for (images, _, records), *parts in zip(whole, *ranks, strict=True):
        assert torch.equal(torch.stack([part[2] for part in parts], 1).flatten()[: len(records)], records)
        for name, values in images.items():
            together = torch.stack([part[0][name] for part in parts], 1).flatten(0, 1)[: len(records)]
            assert torch.equal(together, values)
    loader = made(path, 4, buckets, flip=True)
    list(islice(loader, 2))
    state = json.loads(json.dumps(loader.state_dict()))
    for again, expected in (
        (made(path, 4, buckets, flip=True), whole),
        (made(path, 2, buckets, (1, 2), flip=True), ranks[1]),
    ):
        again.load_state_dict(state)
        assert alike(list(again), expected[2:])
    assert alike(list(pickle.loads(pickle.dumps(loader))), whole[2:])


def test_normalized_on_the_way(pack):
    mean, std = (0.5, 0.4, 0.3), (0.2, 0.2, 0.1)
    for memory_format in (None, torch.contiguous_format):
        options = {"mean": mean, "std": std, "dtype": torch.float32, "memory_format": memory_format}
        for (plain, *_), (images, *_) in zip(made(pack("copy")), made(pack("copy"), **options), strict=True):
            values = plain["patches"].unflatten(2, (-1, 3)) / 255
            expected = ((values - torch.tensor(mean)) / torch.tensor(std)).flatten(2)
            assert images["patches"].dtype == torch.float32
            assert torch.allclose(images["patches"], expected, atol=1e-5)
            assert torch.equal(images["patch_valid"], plain["patch_valid"])


def test_patches_as_arrays(pack):
    for (plain, *_), (arrays, *_) in zip(made(pack("copy")), made(pack("copy"), output="numpy"), strict=True):
        assert all(isinstance(arrays[name], np.ndarray) for name in plain)
        assert all(np.array_equal(arrays[name], values.numpy()) for name, values in plain.items())


@pytest.mark.filterwarnings("ignore::packer.errors.DamagedRecordWarning")
def test_another_image_takes_the_place_of_a_damaged_one(pack, tmp_path):
    path = broken(pack("ragged"), tmp_path / "broken", [3, 11])
    loader = made(path, on_error="replace")
    for (images, _, records), (expected, _, wanted) in zip(loader, made(pack("ragged")), strict=True):
        assert images["patches"].shape == expected["patches"].shape and not {3, 11} & set(records.tolist())
        same = (records == wanted).nonzero().flatten()
        assert torch.equal(images["patches"][same], expected["patches"][same])
    assert [one.record for one in loader.replaced] == [3, 11]


def test_masks_alone_are_refused(tmp_path):
    source = write_files(tmp_path / "set", pairs())
    build_pack(BuildOptions(str(source), str(tmp_path / "p.lmdb"), workers=1))
    with pytest.raises(UsageError, match=r"parts: has masks alone, which PatchBuckets cannot .*; write parts=\(\)"):
        made(tmp_path / "p.lmdb")


REFUSED = {
    "a crop": ({"crop": RandomResizedCrop(8)}, "crop: cannot be combined with PatchBuckets, which show whole images"),
    "views": ({"views": {"a": (2, RandomResizedCrop(8))}}, "views: cannot be combined with patches; leave it out"),
    "transform": ({"transform": abs}, "transform: cannot be combined with patches; leave it out"),
    "mixup": ({"mixup": 1.0}, "mixup: cannot be combined with patches; leave it out"),
    "collate": ({"collate": "yolo"}, "collate: cannot be combined with patches; leave it out"),
    "decode": ({"decode": "device"}, "decode: cannot be combined with patches; leave it out"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_meant_is_refused(pack, name):
    options, message = REFUSED[name]
    with pytest.raises(UsageError) as refused:
        made(pack("boxes"), **options)
    assert message in str(refused.value) and "\n" not in str(refused.value)


def test_patches_are_not_turned(pack):
    with pytest.raises(UsageError, match="rotate90: cannot be combined with patches"):
        made(pack("raw"), rotate90=True)
    with pytest.raises(UsageError, match="affine: cannot be combined with patches"):
        made(pack("raw"), affine=RandomAffine(10))
