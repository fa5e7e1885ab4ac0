"""A WeightedSampler in a PackedLoader: weights in the batch, updates by record number, states, damaged records."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest
import torch
from loader_packs import alike
from torch.utils.data import DataLoader

from packer import PackedDataset, PackedLoader, RandomResizedCrop, open_pack
from packer.errors import UsageError
from packer.samplers import ShuffleSampler, WeightedSampler, class_weights

WEIGHTS = np.arange(27) % 5 + 0.5


def loader_of(pack, **options):
    sampler = WeightedSampler(open_pack(pack("raw")), WEIGHTS, 1, num_samples=40)
    return PackedLoader(
        pack("raw"), 8, **{"sampler": sampler, "crop": RandomResizedCrop(6), "with_index": True, **options}
    )


@pytest.mark.parametrize("with_index", [False, True])
def test_importance_weights_come_with_the_batch(pack, with_index):
    loader = loader_of(pack, with_weights=True, with_index=with_index)
    for batch, numbered in zip(loader, loader_of(pack), strict=True):
        weights, records = batch[-1], numbered[2].numpy()
        assert len(batch) == 3 + with_index and weights.dtype == torch.float32
        assert np.allclose(weights, WEIGHTS.sum() / 27 / WEIGHTS[records], rtol=1e-5)
        assert alike(batch[:-1], numbered if with_index else numbered[:2])
        loader.sampler.update(records, np.full(len(records), 9.0))  # the weights are those of the epoch
    assert not np.allclose(next(iter(loader))[-1], weights)


def test_a_record_that_comes_again_has_another_crop(pack):
    sampler = WeightedSampler(27, (np.arange(27) == 5).astype(float), num_samples=16)
    ((images, _), (more, _)) = loader_of(pack, sampler=sampler, with_index=False)
    assert len({image.numpy().tobytes() for image in [*images, *more]}) > 12
    data = PackedDataset(pack("raw"))
    assert [int(label) for _, labels in DataLoader(data, 8, sampler=sampler) for label in labels] == [0] * 16


def test_a_resumed_run_is_the_uninterrupted_one(pack, tmp_path):
    def train(loader, batches):
        out = []
        for batch in batches:
            out.append(batch)
            loader.sampler.update(batch[2], batch[0].float().std((1, 2, 3)))
        return out

    whole = loader_of(pack)
    expected = [train(whole, whole) for _ in range(3)]
    assert not alike(expected[0], expected[1])
    for epoch in range(2):
        for stop in range(6):
            first = loader_of(pack)
            for _ in range(epoch):
                train(first, first)
            train(first, islice(first, stop))
            torch.save(first.state_dict(), tmp_path / "state.pt")
            again = loader_of(pack)
            again.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
            rest = train(again, again) if 0 < stop < 5 else []
            assert alike(rest, expected[epoch][stop:] if 0 < stop < 5 else [])
            following = expected[epoch + (stop > 0)] if epoch or stop else expected[0]
            assert alike(train(again, again), following)


def test_numbers_are_those_of_the_pack_in_a_dataset_of_some_records(pack):
    some = PackedDataset(pack("raw"), indices=[20, 3, 11])
    sampler = WeightedSampler(some, seed=1, num_samples=30)
    loader = PackedLoader(some, 10, sampler=sampler, with_index=True)
    for _, _, records in loader:
        assert set(records.tolist()) <= {20, 3, 11}
        loader.sampler.update(records, (records != 11).float())
    assert sampler.weights.tolist() == loader.sampler.weights.tolist() == [1, 1, 0]
    assert set(torch.cat([records for _, _, records in loader]).tolist()) == {20, 3}
    assert set(iter(sampler)) == {0, 1}  # of the dataset, in the next epoch
    with pytest.raises(UsageError, match="has record 4, which this sampler does not read"):
        loader.sampler.update([4], [1.0])


def test_class_weights_of_a_pack(pack):
    data = open_pack(pack("raw"))
    loader = loader_of(pack, sampler=WeightedSampler(data, class_weights(data)), with_weights=True)
    assert all((weights == 1).all() for _, _, _, weights in loader)  # nine of each


def test_without_weights_there_is_none_to_give(pack):
    for options in ({"sampler": ShuffleSampler(27)}, {"sampler": None, "shuffle": True}):
        with pytest.raises(UsageError, match="with_weights: needs a WeightedSampler, got ShuffleSampler"):
            loader_of(pack, with_weights=True, **options)
    with pytest.raises(UsageError, match="pad: cannot be combined with a sampler"):
        loader_of(pack, pad=False)


def test_cache_on_the_device(pack):
    for batch, plain in zip(loader_of(pack, with_weights=True, cache="device"), loader_of(pack), strict=True):
        assert alike(batch[1:3], plain[1:]) and len(batch[3]) == len(plain[2])
