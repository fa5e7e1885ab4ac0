"""A sample's crop and flip depend on (seed, epoch, record) alone: not on threads, batches, order or ranks."""

from __future__ import annotations

import pytest
import torch
from loader_packs import RECORDS

from packer import PackedDataset, PackedLoader, RandomResizedCrop
from packer.samplers import BlockShuffleSampler, SequentialSampler, ShuffleSampler

CROP = RandomResizedCrop(8)


pytestmark = pytest.mark.usefixtures("blocks")


def by_record(path, batch_size=5, epoch=2, sampler=None, **options):
    """Record number -> its image; the target transform tells nothing, so records are told by their order."""
    loader = PackedLoader(path, batch_size, sampler=sampler, crop=CROP, flip=True, **options)
    loader.set_epoch(epoch)
    records = [r for batch in loader.sampler.rank_batches(batch_size, epoch) for r in batch.tolist()]
    images = torch.cat([images for images, _ in loader])
    return dict(zip(records, images, strict=True))


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[record], b[record]) for record in a)


@pytest.mark.parametrize("kind", ["raw", "jpeg", "ragged"])
def test_the_same_images_however_they_are_made(pack, kind):
    path = pack(kind)
    data = PackedDataset(path)
    expected = by_record(path, seed=4)
    assert len(expected) == RECORDS
    for threads in (1, 2, 4):
        for batch_size in (1, 4, 27):
            assert same(by_record(path, batch_size, threads=threads, seed=4), expected)
    for prefetch in (1, 5):
        assert same(by_record(path, prefetch=prefetch, seed=4), expected)
    assert same(by_record(path, shuffle=True, seed=4), expected)
    assert same(by_record(path, sampler=BlockShuffleSampler(data, seed=4)), expected)
    assert same(by_record(path, sampler=ShuffleSampler(data, seed=9), seed=4), expected)


@pytest.mark.parametrize("world_size", [2, 3])
def test_the_same_images_on_any_rank(pack, world_size):
    path = pack("raw")
    expected = by_record(path, seed=4)
    ranks = {}
    for rank in range(world_size):
        sampler = ShuffleSampler(PackedDataset(path), 4, rank=rank, world_size=world_size)
        ranks |= by_record(path, 3, sampler=sampler)
    assert same(ranks, expected)


def test_global_batches_are_the_same_for_any_number_of_ranks(pack):
    path = pack("raw")
    alone = [images for images, _ in PackedLoader(path, 6, shuffle=True, crop=CROP, seed=1)]
    for world_size in (2, 3):
        samplers = [ShuffleSampler(PackedDataset(path), 1, rank=r, world_size=world_size) for r in range(world_size)]
        loaders = [PackedLoader(path, 6 // world_size, sampler=sampler, crop=CROP) for sampler in samplers]
        for number, parts in enumerate(zip(*loaders, strict=True)):
            together = torch.stack([images for images, _ in parts], dim=1).flatten(0, 1)
            assert torch.equal(together[: len(alone[number])], alone[number])


def test_seed_and_epoch_matter(pack):
    expected = by_record(pack("raw"), seed=4)
    for other in (by_record(pack("raw"), seed=5), by_record(pack("raw"), seed=4, epoch=3)):
        changed = sum(not torch.equal(expected[record], other[record]) for record in expected)
        assert changed > RECORDS * 0.9


def test_the_seed_of_the_sampler_is_that_of_the_crops(pack):
    sampler = SequentialSampler(PackedDataset(pack("raw")), 4)
    assert same(by_record(pack("raw"), sampler=sampler), by_record(pack("raw"), seed=4))
    assert not same(by_record(pack("raw"), sampler=sampler, seed=5), by_record(pack("raw"), seed=4))
