"""state_dict and load_state_dict in the middle of an epoch, and what set_epoch and iteration do."""

from __future__ import annotations

import json
import pickle
from copy import deepcopy
from itertools import islice

import pytest
import torch
from loader_packs import alike
from packs import needs_cache
from torch.utils.data import DataLoader

from packer import CenterCrop, PackedDataset, PackedLoader, RandomResizedCrop, open_pack
from packer.errors import UsageError
from packer.samplers import BalancedSampler, BlockShuffleSampler, SequentialSampler, ShuffleSampler

OPTIONS = {"shuffle": True, "crop": RandomResizedCrop(6), "flip": True, "seed": 3, "threads": 2}


pytestmark = pytest.mark.usefixtures("blocks")


def loader_of(pack, batch_size=4, **options):
    return PackedLoader(pack("raw"), batch_size, **{**OPTIONS, **options})


def take(loader, count):
    """Receive some batches, then leave the loop."""
    return list(islice(loader, count))


def epochs_of(pack, count):
    """The batches of the first epochs."""
    expected = []
    for epoch in range(count):
        loader = loader_of(pack)
        loader.set_epoch(epoch)
        expected.append(list(loader))
    return expected


def through_json(state):
    assert len(json.dumps(state)) < 1000
    return json.loads(json.dumps(state))


@pytest.mark.parametrize(("batch_size", "drop_last"), [(3, False), (4, False), (4, True), (27, False)])
def test_every_position(pack, batch_size, drop_last):
    loader = loader_of(pack, batch_size, drop_last=drop_last)
    loader.set_epoch(2)
    whole, following = list(loader), list(loader)
    assert loader.epoch == 3 and not alike(whole, following)
    for position in range(len(whole) + 1):
        first = loader_of(pack, batch_size, drop_last=drop_last)
        first.set_epoch(2)
        iteration = iter(first)
        received = list(islice(iteration, position))
        state = through_json(first.state_dict())
        again = loader_of(pack, batch_size, drop_last=drop_last, threads=1, prefetch=5)
        again.load_state_dict(state)
        middle = (len(whole) - position) // 2
        second = iter(again)
        more = list(islice(second, middle))
        state = through_json(again.state_dict())
        third = loader_of(pack, batch_size, drop_last=drop_last, threads=3, prefetch=1)
        third.load_state_dict(state)
        if position + middle < len(whole):
            assert alike(received + more + list(third), whole)
        assert alike(list(third), following)  # at once, if nothing was left


def test_the_state_counts_what_was_received(pack):
    loader = loader_of(pack, prefetch=6)
    assert loader.state_dict()["position"] == 0
    positions = []
    for _ in loader:
        positions.append(loader.state_dict()["position"])
    assert positions == [4, 8, 12, 16, 20, 24, 27]
    loader = loader_of(pack, drop_last=True)
    assert [loader.state_dict()["position"] for _ in loader] == [4, 8, 12, 16, 20, 24]
    list(loader)
    assert loader.state_dict()["position"] == 24 and loader.state_dict()["epoch"] == 1


@pytest.mark.parametrize("prefetch", [1, 4])
def test_another_number_of_ranks(pack, prefetch):
    data = PackedDataset(pack("raw"))
    whole = list(loader_of(pack, 6))
    for position in range(len(whole)):
        first = loader_of(pack, 6)
        iteration = iter(first)
        list(islice(iteration, position))
        state = through_json(first.state_dict())
        ranks = []
        for rank in range(3):
            sampler = ShuffleSampler(data, 3, rank=rank, world_size=3)
            loader = loader_of(pack, 2, shuffle=False, sampler=sampler, prefetch=prefetch)
            loader.load_state_dict(state)
            ranks.append([images for images, _ in loader])
            assert loader.state_dict()["position"] == 27
        rest = [torch.stack(parts, 1).flatten(0, 1) for parts in zip(*ranks, strict=True)]
        assert len(rest) == len(whole) - position
        for ours, (images, _) in zip(rest, whole[position:], strict=True):
            assert torch.equal(ours[: len(images)], images)


def test_states_of_something_else_are_refused(pack):
    loader = loader_of(pack)
    take(loader, 2)
    state = loader.state_dict()
    others = [
        loader_of(pack, seed=4),
        loader_of(pack, 5),
        loader_of(pack, shuffle=False),
        loader_of(pack, drop_last=True),
        PackedLoader(pack("jpeg"), 4, **OPTIONS),
    ]
    for other in others:
        take(other, 1)
        before = other.state_dict()
        with pytest.raises(UsageError, match="state"):
            other.load_state_dict(state)
        assert other.state_dict() == before
    view = PackedLoader(pack("raw"), 4, sampler=ShuffleSampler(PackedDataset(pack("raw")), 3), seed=8)
    with pytest.raises(UsageError, match="seed 3 for crops and flips, here 8"):
        view.load_state_dict(state)


def test_another_crop_or_flip_is_refused(pack):
    loader = loader_of(pack)
    whole = list(loader)
    loader.set_epoch(0)
    take(loader, 2)
    state = through_json(loader.state_dict())
    assert state["crop"].startswith("RandomResizedCrop(size=6") and state["flip"] == 0.5
    others = [
        ({"crop": RandomResizedCrop(7)}, "has crop"), ({"crop": RandomResizedCrop(6, scale=(0.5, 1))}, "has crop"),
        ({"crop": CenterCrop(6)}, "has crop"), ({"crop": None}, "has crop"), ({"flip": False}, "has flip"),
        ({"flip": 0.25}, "has flip"),
    ]  # fmt: skip
    for options, words in others:
        other = loader_of(pack, **options)
        before = other.state_dict()
        with pytest.raises(UsageError, match=f"state: {words}"):
            other.load_state_dict(state)
        assert other.state_dict() == before
    # states of version 0.1.0 did not say
    old = {name: value for name, value in state.items() if name not in ("crop", "flip")}
    again = loader_of(pack)
    again.load_state_dict(old)
    assert alike(list(again), whole[2:])


def test_a_crop_of_the_users_own_is_known_by_its_name(pack):
    class Whole(RandomResizedCrop):
        __repr__ = object.__repr__

    states = [loader_of(pack, crop=Whole(6)).state_dict() for _ in range(2)]
    assert states[0] == states[1] and states[0]["crop"].endswith("Whole")


@pytest.mark.parametrize("change", [
    {"crop": 3}, {"crop": None}, {"flip": "0.5"}, {"flip": None}, {"flip": True},
    {"version": 3}, {"version": None}, {"version": True}, {"epoch": -1}, {"epoch": 1.0}, {"epoch": None},
    {"position": 3}, {"position": 28}, {"position": -4}, {"position": "8"}, {"position": True}, {"seed": 3.0},
    {"view_seed": "3"}, {"view_seed": 3.0}, {"view_seed": None}, {"pack": "0" * 64}, {"extra": 1}, {"global_batch": 8},
], ids=str)  # fmt: skip
def test_corrupt_states_are_refused(pack, change):
    loader = loader_of(pack)
    state = {**loader.state_dict(), **change}
    with pytest.raises(UsageError, match="state"):
        loader.load_state_dict(state)
    assert loader.state_dict()["position"] == 0 and len(list(loader)) == 7


def test_what_is_no_state_is_refused(pack):
    loader = loader_of(pack)
    state = loader.state_dict()
    for wrong in (None, 5, [], "state", {}, [*state.items()]):
        with pytest.raises(UsageError, match="state"):
            loader.load_state_dict(wrong)
    for name in state:
        with pytest.raises(UsageError, match=r"state.*(has no|None)"):
            loader.load_state_dict({key: value for key, value in state.items() if key != name})


def test_the_usual_loop(pack):
    """set_epoch before each epoch, in any order, gives each epoch's own batches, wherever the last one ended."""
    expected = epochs_of(pack, 3)
    assert not alike(expected[0], expected[1])
    loader = loader_of(pack)
    for number, epoch in enumerate((0, 1, 2, 0, 0, 1, 1, 2, 2)):
        # DDP scripts and Lightning call that of the sampler
        set_epoch = loader.set_epoch if number % 2 else loader.sampler.set_epoch
        set_epoch(epoch)
        assert loader.epoch == epoch
        take(loader, 3)
        set_epoch(epoch)  # after an early break: from its beginning
        assert alike(list(loader), expected[epoch])


def test_without_set_epoch_each_iteration_is_the_next_epoch(pack):
    loader = loader_of(pack)
    expected = epochs_of(pack, 5)
    assert alike(list(loader), expected[0])
    assert alike(take(loader, 2), expected[1][:2])
    assert alike(list(loader), expected[2])
    assert loader.epoch == 2
    for _ in range(3):
        iter(loader)  # never advanced: uses up no epoch
    assert loader.epoch == 2 and alike(list(loader), expected[3])
    loader.sampler.set_epoch(2)
    assert alike(list(loader), expected[2]) and alike(list(loader), expected[3])
    loader.sampler.order()  # somebody looks at it
    assert alike(list(loader), expected[4])


def test_an_iteration_that_gave_no_batch_has_not_begun(pack):
    """Its first batch could not be made: the next iteration is of the same epoch."""
    failing = [True]

    def transform(image):
        if failing:
            raise ZeroDivisionError
        return image

    loader = loader_of(pack, transform=transform)
    expected = epochs_of(pack, 2)
    for epoch in range(2):
        failing.append(True)
        with pytest.raises(ZeroDivisionError):
            next(iter(loader))
        failing.clear()
        assert alike(list(loader), expected[epoch])


def test_the_state_is_of_the_iteration_that_it_counts(pack):
    """Whatever epoch is set meanwhile: that is the next one."""
    expected = epochs_of(pack, 4)
    loader = loader_of(pack)
    loader.set_epoch(1)
    iteration = iter(loader)
    take(iteration, 2)
    for set_epoch in (loader.sampler.set_epoch, loader.set_epoch):
        set_epoch(3)
        state = through_json(loader.state_dict())
        assert (state["epoch"], state["position"]) == (1, 8)
        again = loader_of(pack)
        again.load_state_dict(state)
        assert alike(list(again), expected[1][2:])
    assert alike(next(iteration), expected[1][2])
    assert loader.state_dict()["position"] == 12
    iteration.close()  # now it is over, and what was set comes next
    state = loader.state_dict()
    assert (state["epoch"], state["position"]) == (3, 0)
    assert alike(list(loader), expected[3])


class Trainer:
    """What Lightning 2.6 asks of a loader, in its order; it never asks for the batch after the last."""

    def __init__(self, loader, state=None):
        self.loader, self.state = loader, state

    def fit(self, batches, epochs=3):
        """The batches up to that many, and the state after the last."""
        received = []
        iter(self.loader)  # _check_dataloader_iterable
        epoch = fetched = 0
        if self.state is not None:
            epoch, fetched = self.state["epoch"], self.state["fetched"]
            self.loader.load_state_dict(self.state["loader"])
        iteration = iter(self.loader)  # setup_data
        if fetched == len(self.loader):
            epoch, fetched = epoch + 1, 0
        for number in range(epoch, epochs):
            self.loader.sampler.set_epoch(number)  # on_advance_start
            if number > epoch:
                iteration = iter(self.loader)
            while fetched < len(self.loader):
                received.append(next(iteration))
                fetched += 1
                if len(received) == batches:
                    return received, {"epoch": number, "fetched": fetched, "loader": self.loader.state_dict()}
            fetched = 0
        return received, None


@pytest.mark.parametrize("same_loader", [False, True])
def test_a_resumed_lightning_run_is_the_uninterrupted_one(pack, same_loader):
    whole, _ = Trainer(loader_of(pack)).fit(None)
    assert alike(whole, [batch for epoch in epochs_of(pack, 3) for batch in epoch])
    for stop in range(1, len(whole)):
        loader = loader_of(pack)
        received, state = Trainer(loader).fit(stop)
        assert state["loader"]["epoch"] == state["epoch"]
        more, state = Trainer(loader if same_loader else loader_of(pack), state).fit(1)
        rest, _ = Trainer(loader_of(pack), state).fit(None)
        assert alike(received + more + rest, whole)


def test_set_epoch_before_and_after_a_state_is_loaded(pack):
    loader = loader_of(pack)
    loader.set_epoch(1)
    whole = list(loader)
    loader.set_epoch(1)
    take(loader, 3)
    state = loader.state_dict()
    for set_epoch in (loader.set_epoch, loader.sampler.set_epoch):
        set_epoch(1)
        loader.load_state_dict(state)
        for _ in range(2):
            set_epoch(1)
            last = iter(loader)
            assert loader.state_dict() == state
        set_epoch(1)
        assert alike(list(last), whole[3:])
        set_epoch(1)
        assert alike(list(loader), whole)


def test_resuming_in_the_usual_loop(pack):
    """load_state_dict, then set_epoch of that very epoch, as a loop that begins at it does."""
    loader = loader_of(pack)
    loader.set_epoch(1)
    whole = list(loader)
    loader.set_epoch(1)
    take(loader, 3)
    state = loader.state_dict()

    again = loader_of(pack)
    again.load_state_dict(state)
    lengths = []
    for epoch in range(again.epoch, 4):
        again.set_epoch(epoch)
        batches = list(again)
        lengths.append(len(batches))
        if epoch == 1:
            assert alike(batches, whole[3:])
    assert lengths == [4, 7, 7]
    again.load_state_dict(state)
    again.set_epoch(2)  # another one: its beginning
    assert len(list(again)) == 7
    again.load_state_dict(state)
    again.set_epoch(1)
    take(again, 1)
    again.set_epoch(1)  # the state was used up
    assert alike(list(again), whole)


def test_state_of_an_epoch_that_is_over_or_not_begun(pack):
    loader = loader_of(pack)
    loader.set_epoch(1)
    fresh = loader.state_dict()
    whole = list(loader)
    over = loader.state_dict()
    again = loader_of(pack)
    again.load_state_dict(over)
    assert again.epoch == 2 and alike(list(again), list(loader)) and again.epoch == 2
    again.load_state_dict(over)
    again.set_epoch(1)  # what is left of it
    assert list(again) == [] and len(list(again)) == len(again) == 7 and again.epoch == 2
    again.load_state_dict(fresh)
    assert alike(list(again), whole)


def test_only_the_iteration_begun_last_moves_the_position(pack):
    loader = loader_of(pack)
    loader.set_epoch(0)
    old = iter(loader)
    next(old)
    new = iter(loader)
    assert loader.epoch == 0 and loader.state_dict()["position"] == 4
    next(new)
    assert loader.epoch == 1 and loader.state_dict()["position"] == 4
    for _ in old:
        pass
    assert loader.state_dict()["position"] == 4 and "seconds" in loader.stats()
    state = loader.state_dict()
    next(new)
    loader.load_state_dict(state)
    next(new)
    assert loader.state_dict() == state
    new.close()


@pytest.mark.parametrize("copied", [deepcopy, lambda one: pickle.loads(pickle.dumps(one))], ids=["copy", "pickle"])
@pytest.mark.parametrize("made_of", ["path", "dataset", "sampler"])
def test_a_loader_is_copied_as_its_settings_and_state(pack, copied, made_of):
    """As launchers with spawn, Ray and a copied data module do."""
    options = {name: OPTIONS[name] for name in ("crop", "flip", "threads")}
    if made_of == "sampler":
        sampler = ShuffleSampler(PackedDataset(pack("raw")), 3)
        loader = PackedLoader(pack("raw"), 4, sampler=sampler, target_transform=str, **options)
    else:
        data = PackedDataset(pack("raw"), target_transform=str) if made_of == "dataset" else pack("raw")
        loader = PackedLoader(data, 4, shuffle=True, seed=3, **options)
    epochs = [list(loader) for _ in range(3)]
    for count in (0, 3, 7):
        loader.set_epoch(1)
        iteration = iter(loader)
        take(iteration, count)
        if count == 7:
            list(iteration)
        copy = copied(loader)
        assert copy.state_dict() == loader.state_dict() or count == 7
        assert copy.sampler is not loader.sampler
        if count < 7:
            assert alike(list(copy), epochs[1][count:])
        assert alike(list(copy), epochs[2])
    assert alike(list(loader), epochs[2])


def test_a_data_loader_is_rebuilt_of_a_loader(pack):
    """As accelerate's skip_first_batches does: of its parts, with a batch sampler that leaves out the first batches."""
    loader, epochs = loader_of(pack), epochs_of(pack, 3)
    assert len(loader.batch_sampler) == 7 and len(loader.dataset) == 27
    assert (loader.batch_sampler.batch_size, loader.batch_sampler.drop_last) == (4, False)
    options = {"num_workers": loader.num_workers, "prefetch_factor": loader.prefetch_factor}
    left = list(loader.batch_sampler)[3:]
    rest = DataLoader(loader.dataset, batch_sampler=left, collate_fn=loader.collate_fn, **options)
    loader.batch_sampler.set_epoch(1)
    assert alike(list(rest), epochs[1][3:])
    assert loader.state_dict()["epoch"] == 1 and loader.state_dict()["position"] == 27
    assert alike(list(loader), epochs[2])
    again = DataLoader(loader.dataset, batch_sampler=loader.batch_sampler, collate_fn=loader.collate_fn)
    for epoch in range(2):
        loader.set_epoch(epoch)
        assert alike(list(again), epochs[epoch])
    with pytest.raises(UsageError, match=r"loader.dataset: returns whole batches of the loader.*PackedDataset"):
        next(iter(DataLoader(loader.dataset, batch_size=4)))


def test_a_copy_has_the_crop_that_was_set(pack):
    loader = loader_of(pack)
    loader.set_crop(CenterCrop(4))
    iteration = iter(loader)
    take(iteration, 2)
    loader.set_crop(CenterCrop(5))  # for the next one
    copy = deepcopy(loader)
    assert copy.state_dict()["set_crop"] == loader.state_dict()["set_crop"]
    assert alike(list(copy), list(iteration))


@needs_cache
@pytest.mark.parametrize("sampler", [SequentialSampler, ShuffleSampler, BlockShuffleSampler, BalancedSampler])
def test_every_sampler_resumes_at_a_url(pack, sampler, tmp_path):
    local, there = open_pack(pack("raw")), open_pack(pack("raw").as_uri(), cache_dir=tmp_path)
    for rank in range(2):
        whole = list(PackedLoader(local, 3, sampler=sampler(local, rank=rank, world_size=2)))
        first = PackedLoader(there, 3, sampler=sampler(there, rank=rank, world_size=2))
        received = take(first, 2)
        second = PackedLoader(there, 3, sampler=sampler(there, rank=rank, world_size=2))
        second.load_state_dict(through_json(first.state_dict()))
        assert alike([*received, *second], whole)
