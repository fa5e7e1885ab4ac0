"""A sample's crop, flips, turn and map depend on (seed, epoch, record) alone: not on threads, batches, order or ranks.

A record that comes again in an epoch, of a sampler that repeats or of a padded rank, has others each time.
"""

from __future__ import annotations

import json
import pickle
from collections import Counter
from functools import partial
from itertools import islice

import numpy as np
import pytest
import torch
from loader_packs import RECORDS, alike
from torch.utils.data import DataLoader

from packer import PackedDataset, PackedLoader, RandomAffine, RandomResizedCrop, collate, join_packs
from packer.samplers import (
    BalancedSampler,
    BlockShuffleSampler,
    MixtureSampler,
    RepeatedSampler,
    SequentialSampler,
    ShuffleSampler,
)
from packer.samplers.order import VISIT, records_in

CROP = RandomResizedCrop(8)
AUGMENT = {"crop": CROP, "flip": True, "vflip": True, "rotate90": True, "affine": RandomAffine(30, (0.1, 0.1))}


pytestmark = pytest.mark.usefixtures("blocks")


def by_record(path, batch_size=5, epoch=2, sampler=None, **options):
    """Record number -> its image; the target transform tells nothing, so records are told by their order."""
    loader = PackedLoader(path, batch_size, sampler=sampler, **AUGMENT, **options)
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
        sampler = ShuffleSampler(PackedDataset(path), 4, rank=rank, world_size=world_size, drop_last=True)
        ranks |= by_record(path, 3, sampler=sampler)
    assert len(ranks) == RECORDS // (3 * world_size) * 3 * world_size
    assert all(torch.equal(image, expected[record]) for record, image in ranks.items())


def test_global_batches_are_the_same_for_any_number_of_ranks(pack):
    path = pack("raw")
    alone = [images for images, _ in PackedLoader(path, 6, shuffle=True, **AUGMENT, seed=1)]
    for world_size in (2, 3):
        samplers = [ShuffleSampler(PackedDataset(path), 1, rank=r, world_size=world_size) for r in range(world_size)]
        loaders = [PackedLoader(path, 6 // world_size, sampler=sampler, **AUGMENT) for sampler in samplers]
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


# -- records that come again

SAMPLERS = {
    "balanced": lambda data, **ranks: BalancedSampler(data, seed=4, num_samples=60, **ranks),
    "repeated": lambda data, **ranks: RepeatedSampler(data, 3, 4, num_samples=60, **ranks),
    "mixture": lambda data, **ranks: MixtureSampler(data, [1, 9], 4, num_samples=60, **ranks),
    "padded": lambda data, **ranks: ShuffleSampler(data, 4, **ranks),
    "padded blocks": lambda data, **ranks: BlockShuffleSampler(
        data, 4, block=2, window=2, nodes=2, local_world_size=1, **ranks
    ),
}


def opened(pack, kind, name):
    return join_packs([pack(kind), pack(kind, "hdf5")]) if name == "mixture" else PackedDataset(pack(kind))


def drawn(data, name, epoch=1, batch_size=5, start=0, **options):
    """(samples, images) of a whole epoch, of two ranks if the order is padded."""
    world_size = 2 if name.startswith("padded") else 1
    parts = []
    for rank in range(world_size):
        sampler = SAMPLERS[name](data, rank=rank, world_size=world_size)
        samples = np.concatenate(list(sampler.rank_samples(batch_size, epoch, start * batch_size * world_size)))
        loader = PackedLoader(data, batch_size, sampler=sampler, **AUGMENT, seed=4, **options)
        loader.set_epoch(epoch)
        batches = loader if not start else loader._run(start)
        parts.append((samples, torch.cat([images for images, _ in batches])))
    return np.concatenate([samples for samples, _ in parts]), torch.cat([images for _, images in parts])


@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize("kind", ["raw", "jpeg"])
def test_a_record_that_comes_again_has_another_crop(pack, kind, name):
    data = opened(pack, kind, name)
    once = by_record(data, epoch=1, seed=4)
    samples, images = drawn(data, name)
    assert len(np.unique(samples)) == len(samples) > len(np.unique(records_in(samples)))
    seen = Counter()
    for sample, image in zip(samples.tolist(), images, strict=True):
        seen[sample % VISIT] += 1
        # one visit of each record is that of samplers that never repeat
        assert torch.equal(image, once[sample % VISIT]) == (sample < VISIT)
    assert max(seen.values()) > 1
    if name in ("balanced", "repeated"):
        visits = sorted(map(divmod_visit, samples.tolist()))
        assert visits == sorted((record, visit) for record, count in seen.items() for visit in range(count))


def divmod_visit(sample):
    return sample % VISIT, sample // VISIT


@pytest.mark.parametrize("name", SAMPLERS)
def test_records_that_come_again_are_the_same_however_they_are_made(pack, name):
    data = opened(pack, "jpeg", name)
    samples, images = drawn(data, name)
    for options in ({"threads": 1}, {"threads": 3, "prefetch": 5}, {"cache": "ram"}):
        again = drawn(data, name, **options)
        assert np.array_equal(samples, again[0]) and torch.equal(images, again[1])
    rest = drawn(data, name, start=2)
    found = dict(zip(samples.tolist(), images, strict=True))
    assert all(torch.equal(found[sample], image) for sample, image in zip(rest[0].tolist(), rest[1], strict=True))


@pytest.mark.parametrize("world_size", [2, 3])
@pytest.mark.parametrize("name", ["balanced", "mixture", "repeated"])
def test_records_that_come_again_are_the_same_on_any_rank(pack, name, world_size):
    data = opened(pack, "raw", name)
    samples, images = drawn(data, name)
    found = dict(zip(samples.tolist(), images, strict=True))
    for rank in range(world_size):
        sampler = SAMPLERS[name](data, rank=rank, world_size=world_size)
        loader = PackedLoader(data, 4, sampler=sampler, **AUGMENT, seed=4)
        loader.set_epoch(1)
        for mine, (batch, _) in zip(sampler.rank_samples(4, 1), loader, strict=True):
            assert all(torch.equal(found[sample], image) for sample, image in zip(mine.tolist(), batch, strict=True))


def noise(image, generator):
    return torch.rand(2, generator=generator)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_plain_dataloader_draws_anew_too(pack, workers):
    """The indices of a sampler say how often a record came before; other datasets see whole numbers."""
    data = PackedDataset(pack("raw"), noise, seed=4)
    sampler = BalancedSampler(data, seed=4, num_samples=60)
    loader = DataLoader(data, 5, sampler=sampler, num_workers=workers, collate_fn=collate)
    numbers = torch.cat([batch for batch, _ in loader])
    samples = np.concatenate(list(sampler.rank_samples(5, 0)))
    assert len(torch.unique(numbers, dim=0)) == len(samples) == 60
    own = PackedLoader(data, 5, sampler=BalancedSampler(data, seed=4, num_samples=60), seed=4)
    assert torch.equal(torch.cat([batch for batch, _ in own]), numbers)
    plain = list(BalancedSampler(data, seed=4, num_samples=60))
    assert plain == records_in(samples).tolist()
    again = next(index for index, sample in zip(plain, samples.tolist(), strict=True) if sample >= VISIT)
    assert pickle.loads(pickle.dumps(again)).visit == again.visit > 0


def test_a_state_of_version_1_resumes_the_same_order(pack):
    data = PackedDataset(pack("raw"))
    made = partial(PackedLoader, data, 5, **AUGMENT, with_index=True)
    loader = made(sampler=BalancedSampler(data, seed=4, num_samples=60))
    list(islice(loader, 4))
    state = json.loads(json.dumps(loader.state_dict()))
    assert state["version"] == 2
    whole = made(sampler=BalancedSampler(data, seed=4, num_samples=60))
    resumed = made(sampler=BalancedSampler(data, seed=4, num_samples=60))
    resumed.load_state_dict({**state, "version": 1})
    assert alike([batch for *_, batch in resumed], [batch for *_, batch in whole][4:])
