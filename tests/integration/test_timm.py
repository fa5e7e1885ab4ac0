"""timm: patches of its NaFlex models, and its sampler of repeated augmentation."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from drawn import draw

from packer import BuildOptions, PackedLoader, build_pack, open_pack
from packer.samplers import BucketSampler, PatchBuckets, RepeatedSampler

timm = pytest.importorskip("timm", reason="timm is optional, and not installed here")

LENGTHS = (16, 36, 64)
SIZES = ((320, 200), (200, 320), (64, 64), (500, 90), (33, 47), (256, 255), (90, 500), (48, 160))


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("timm")
    for number, size in enumerate(SIZES * 3):
        draw(home / "images" / ("ab"[number % 2]) / f"{number}.png", number, *size)
    build_pack(BuildOptions(str(home / "images"), str(home / "p.lmdb"), workers=1))
    return home / "p.lmdb"


def test_patches_are_those_of_timm(pack: Path) -> None:
    """Sizes as `get_image_size_for_seq` gives them, and patches of these pixels as `patchify_image` cuts them."""
    from timm.data.naflex_transforms import get_image_size_for_seq, patchify_image

    data = open_pack(pack)
    sampler = BucketSampler(data, PatchBuckets(patch=16, lengths=LENGTHS, enlarge=True), 4, seed=0)
    seen = []
    for images, _, records in PackedLoader(data, 4, sampler=sampler, with_index=True):
        assert images["patches"].shape[1] in LENGTHS
        for patches, coord, valid, record in zip(
            images["patches"], images["patch_coord"], images["patch_valid"], records.tolist(), strict=True
        ):
            count = int(valid.sum())
            rows, columns = (coord[:count].max(0).values + 1).tolist()
            shape = data.image(record).shape[:2]
            _, size = get_image_size_for_seq(shape, 16, patches.shape[0])
            assert (16 * rows, 16 * columns) == tuple(size)
            whole = patches[:count].reshape(rows, columns, 16, 16, 3).permute(4, 0, 2, 1, 3).reshape(3, *size)
            cut, places, valid_there = patchify_image(whole.contiguous(), (16, 16))
            assert torch.equal(cut, patches[:count]) and torch.equal(places, coord[:count].to(places.dtype))
            assert valid_there.all() and not valid[count:].any()
            seen.append(record)
    assert sorted(seen) == list(range(len(data)))


def test_a_model_of_timm_takes_them(pack: Path) -> None:
    model = timm.create_model(
        "naflexvit_base_patch16_gap", pretrained=False, num_classes=2, depth=1, embed_dim=48, num_heads=2
    ).eval()
    data = open_pack(pack)
    sampler = BucketSampler(data, PatchBuckets(patch=16, lengths=LENGTHS), 4, seed=0)
    loader = PackedLoader(data, 4, sampler=sampler, mean=(0.5,) * 3, std=(0.5,) * 3)
    for images, labels in loader:
        with torch.no_grad():
            assert model(images).shape == (len(labels), 2)


@pytest.mark.parametrize("world_size", [1, 3, 4])
def test_repetitions_are_spread_as_by_timm(world_size: int) -> None:
    """Each record three times in a row over the ranks, and as many samples in an epoch as there are records."""
    from timm.data.distributed_sampler import RepeatAugSampler

    records = 600
    theirs = [
        list(RepeatAugSampler(range(records), world_size, rank, num_repeats=3, selected_round=0))
        for rank in range(world_size)
    ]
    ours = [list(RepeatedSampler(records, 3, rank=rank, world_size=world_size)) for rank in range(world_size)]
    assert [len(one) for one in ours] == [len(one) for one in theirs]
    for ranks in (theirs, ours):
        order = np.array(ranks).T.ravel()
        assert (order.reshape(-1, 3) == order[::3, None]).all() and len({*order[::3]}) == records // 3
