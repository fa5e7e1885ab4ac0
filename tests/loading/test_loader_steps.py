"""`forever`: so many batches through as many epochs as it takes, and states that give exactly those that are left."""

from __future__ import annotations

import pickle
import threading
from itertools import chain, islice

import pytest
import torch
from loader_packs import alike

from packer import PackedLoader, RandomResizedCrop, open_pack
from packer.errors import UsageError
from packer.samplers import (
    BalancedSampler,
    BlockShuffleSampler,
    MixtureSampler,
    SequentialSampler,
    ShuffleSampler,
    WeightedSampler,
)

pytestmark = pytest.mark.usefixtures("blocks")

SAMPLERS = {
    "shuffle": ShuffleSampler,
    "sequential": SequentialSampler,
    "block": lambda pack, **options: BlockShuffleSampler(pack, block=4, window=20, **options),
    "balanced": lambda pack, **options: BalancedSampler(pack, 0.5, **options),
    "mixture": lambda pack, **options: MixtureSampler([20, 7], [0.5, 0.5], **options),
    "weighted": lambda pack, **options: WeightedSampler(pack, range(27), num_samples=22, **options),
}


def loader_of(pack, kind="shuffle", batch_size=4, **options):
    sampler = SAMPLERS[kind](open_pack(pack("raw")), seed=3, **options)
    return PackedLoader(
        pack("raw"), batch_size, sampler=sampler, crop=RandomResizedCrop(6), flip=True, with_index=True, threads=2
    )


def through_file(state, path):
    torch.save(state, path)
    return torch.load(path, weights_only=True)


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("kind", SAMPLERS)
def test_the_batches_are_those_of_the_epochs(pack, kind, drop_last):
    expected = list(chain.from_iterable(list(loader) for loader in [loader_of(pack, kind, drop_last=drop_last)] * 4))
    loader = loader_of(pack, kind, drop_last=drop_last)
    steps = loader.forever(steps=17)
    assert len(steps) == 17 and iter(steps) is steps
    found = []
    for batch in steps:
        found.append(batch)
        assert len(steps) == 17 - len(found)
        assert loader.epoch == (len(found) - 1) // len(loader)
    assert alike(found, expected[:17])
    assert {len(images) for images, _, _ in found} == ({4} if drop_last else {4, len(expected[len(loader) - 1][0])})
    assert alike(list(islice(loader.forever(), 3)), expected[17:20])  # goes on, and would not end
    assert next(steps, None) is None


@pytest.mark.parametrize("kind", ["shuffle", "block", "weighted"])
def test_a_state_gives_exactly_those_that_are_left(pack, kind, tmp_path):
    def update(loader, batch):
        if kind == "weighted":  # in the middle of epochs, too
            loader.sampler.update(batch[2], batch[0].float().mean((1, 2, 3)) / 255 + len(batch[0]))

    expected, whole = [], loader_of(pack, kind)
    for batch in whole.forever(steps=16):
        expected.append(batch)
        update(whole, batch)
    for stop in range(17):
        first = loader_of(pack, kind)
        for batch in islice(first.forever(steps=16), stop):
            update(first, batch)
        state = through_file(first.state_dict(), tmp_path / "state.pt")
        assert state.get("steps", 0) == stop
        again = loader_of(pack, kind)
        steps = again.forever(steps=16)
        again.load_state_dict(state)
        assert len(steps) == 16 - stop and again.state_dict().get("steps", 0) == stop
        copy = pickle.loads(pickle.dumps(again))
        rest = []
        for batch in steps:
            rest.append(batch)
            update(again, batch)
        assert alike(rest, expected[stop:])
        assert again.state_dict()["steps"] == 16 == whole.state_dict()["steps"]
        assert len(copy.forever(steps=16)) == 16 - stop
        assert alike(list(islice(copy.forever(steps=16), 1)), expected[stop : stop + 1])
    assert len(again.forever(steps=5)) == 5  # another count


def test_ranks_and_other_numbers_of_ranks(pack):
    expected = list(loader_of(pack, batch_size=8).forever(steps=9))

    def together(world_size, state, steps, until):
        loaders = [
            loader_of(pack, batch_size=8 // world_size, rank=r, world_size=world_size) for r in range(world_size)
        ]
        for loader in loaders if state else ():
            loader.load_state_dict(state)
        batches = list(islice(zip(*(loader.forever(steps=steps) for loader in loaders), strict=True), until))
        return [torch.stack([records for _, _, records in parts], 1).flatten() for parts in batches], loaders

    found, loaders = together(2, None, 9, 5)
    assert {len(loader) for loader in loaders} == {4}
    state = loaders[1].state_dict()
    assert (state["steps"], state["epoch"], state["position"]) == (5, 1, 8)
    rest, _ = together(4, state, 9, None)
    for records, (_, _, alone) in zip(found + rest, expected, strict=True):
        assert records[: len(alone)].tolist() == alone.tolist() and len(records) - len(alone) < 4


@pytest.mark.parametrize("kind", SAMPLERS)
def test_ranks_that_pad_nothing_have_each_sample_once(pack, kind):
    """27 or 22 samples on two ranks, by 2: one has a batch more, and all resume what the other left."""
    order = loader_of(pack, kind).sampler.order(0).tolist()

    def ranks():
        return [loader_of(pack, kind, 2, pad=False, rank=rank, world_size=2) for rank in range(2)]

    for rank, loader in enumerate(ranks()):
        assert torch.cat([records for _, _, records in loader]).tolist() == order[rank::2]
        assert len(loader) == -(-len(order[rank::2]) // 2)
        assert loader.state_dict()["position"] == len(order)  # also where it had one batch less
        for stop in range(1, len(loader)):
            first = ranks()[rank]
            taken = [records for _, _, records in islice(first, stop)]
            assert torch.cat(taken).tolist() == order[rank::2][: 2 * stop]
            for other, again in enumerate(ranks()):
                again.load_state_dict(first.state_dict())
                rest = [record for _, _, records in again for record in records.tolist()]
                assert rest == order[other::2][2 * stop :]


def test_it_goes_on_where_the_last_iteration_stopped(pack):
    expected = list(loader_of(pack).forever(steps=30))
    loader, found = loader_of(pack), []
    for number in range(3):
        found += loader.forever(steps=5 + number)  # as between evaluations
    assert alike(found, expected[:18])
    assert loader.state_dict()["steps"] == 7
    found += loader  # a plain loop is the next epoch
    assert alike(found[18:], expected[21:28])
    assert "steps" not in loader.state_dict()
    found = list(islice(loader, 2))
    assert alike(found + list(loader.forever(steps=3)), list(loader_of(pack).forever(steps=33))[28:])
    loader.set_epoch(0)
    assert alike(list(loader.forever(steps=2)), expected[:2])


def test_a_loop_that_is_left_goes_on_with_the_next_batch(pack):
    expected = list(loader_of(pack).forever(steps=12))
    loader = loader_of(pack)
    steps, found = loader.forever(steps=12), []
    before = set(threading.enumerate())
    for stop in (3, 7, 9):
        for batch in steps:
            found.append(batch)
            if len(found) == stop:
                break
        steps.close()
        assert set(threading.enumerate()) <= before
    found.append(next(steps))
    assert alike(found + list(steps), expected)
    assert set(threading.enumerate()) <= before


def test_what_cannot_be_is_refused(pack):
    loader = loader_of(pack)
    for steps in (-1, 2.5, "10", True):
        with pytest.raises(UsageError, match="steps: must be an integer"):
            loader.forever(steps=steps)
    with pytest.raises(TypeError, match="no length without steps="):
        len(loader.forever())
    assert list(loader.forever(steps=0)) == []
    assert len(list(loader.forever(steps=4))) == 4
    again = loader_of(pack)
    again.load_state_dict(loader.state_dict())
    with pytest.raises(UsageError, match="steps: is 3, but the state has read 4 batches already"):
        next(again.forever(steps=3))
    assert list(again.forever(steps=4)) == []
    with pytest.raises(UsageError, match="steps"):
        again.load_state_dict({**loader.state_dict(), "steps": -1})
    uneven = loader_of(pack, pad=False, rank=0, world_size=2)
    with pytest.raises(UsageError, match="pad: is False: ranks would differ in the number of batches"):
        next(uneven.forever(steps=3))
    assert len(list(loader_of(pack, pad=False).forever(steps=9))) == 9


def test_several_packs(pack):
    loader = PackedLoader({pack("raw"): 1.0}, 4, seed=0, samples_per_epoch=10)
    assert [len(images) for images, _ in loader.forever(steps=7)] == [4, 4, 2, 4, 4, 2, 4]
