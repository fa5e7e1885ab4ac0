"""The user's transforms: seeded generators, functions of image and target; and the crop that changes in training."""

from __future__ import annotations

import functools
import itertools
import json
import pickle

import pytest
import torch
from loader_packs import RECORDS, alike, fresh
from torch.utils.data import DataLoader

from packer import CenterCrop, PackedDataset, PackedLoader, RandomResizedCrop, Resize, collate
from packer.errors import UsageError
from packer.loading.user_functions import takes_generator
from packer.samplers import ShuffleSampler


def noisy(image, generator):
    return image + torch.rand(image.shape, generator=generator)


def jointly(image, target, generator):
    return noisy(image, generator), target * 100 + int(torch.randint(100, (), generator=generator))


def samples(loader, epochs=(0,)):
    """Record -> its image and target of each epoch."""
    found = {}
    for epoch in epochs:
        loader.set_epoch(epoch)
        for images, targets, records in loader:
            for image, target, record in zip(images, targets, records.tolist(), strict=True):
                found[epoch, record] = image.clone(), int(target)
    return found


def equal(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[k][0], b[k][0]) and a[k][1] == b[k][1] for k in a)


@pytest.mark.parametrize("name", ["transform", "transforms"])
def test_a_generator_makes_the_same_numbers_for_any_threads_batches_and_order(pack, name):
    function = noisy if name == "transform" else jointly
    options = {name: function, "with_index": True, "seed": 5, "shuffle": True}
    first = samples(PackedLoader(pack("raw"), 4, threads=1, **options), (0, 1))
    assert equal(first, samples(PackedLoader(pack("raw"), 7, threads=3, **options), (0, 1)))
    assert not torch.equal(first[0, 3][0], first[1, 3][0]) and not torch.equal(first[0, 3][0], first[0, 4][0])
    other = samples(PackedLoader(pack("raw"), 4, **{**options, "seed": 6}))
    assert not torch.equal(first[0, 3][0], other[0, 3][0])


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("kind", ["raw", "jpeg"])
def test_the_dataset_gives_the_loaders_samples_with_any_workers(pack, kind):
    data = PackedDataset(pack(kind), transforms=jointly, seed=5)
    expected = samples(PackedLoader(PackedDataset(pack(kind)), 4, transforms=jointly, seed=5, with_index=True), (0, 2))
    for workers in (0, 2):
        context = "fork" if workers else None
        loader = DataLoader(data, 5, collate_fn=collate, num_workers=workers, multiprocessing_context=context,
                            persistent_workers=bool(workers))  # fmt: skip
        for epoch in (0, 2):  # persistent workers learn of the epoch
            data.set_epoch(epoch)
            found = list(itertools.chain.from_iterable(zip(*batch, strict=True) for batch in loader))
            for record, (image, target) in enumerate(found):
                assert torch.equal(image, expected[epoch, record][0]) and int(target) == expected[epoch, record][1]


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("workers", [0, 2])
def test_a_sampler_of_the_dataset_moves_its_epoch(pack, workers):
    data = PackedDataset(pack("raw"), transform=noisy, seed=5)
    loader = DataLoader(
        data, 5, sampler=ShuffleSampler(data, seed=5), collate_fn=collate, num_workers=workers,
        multiprocessing_context="fork" if workers else None, persistent_workers=bool(workers),
    )  # fmt: skip
    expected = PackedLoader(PackedDataset(pack("raw"), transform=noisy), 5, shuffle=True, seed=5)
    for _ in range(3):
        for (images, targets), (same, labels) in zip(loader, expected, strict=True):
            assert torch.equal(images, same) and torch.equal(targets, labels)


def test_a_dataset_brings_its_transforms_to_the_loader(pack):
    data = PackedDataset(pack("raw"), transforms=jointly)
    for images, targets in PackedLoader(data, 4):
        assert images.dtype == torch.float32 and targets.dtype == torch.int64
    assert len(pickle.dumps(data)) < 5000
    again = pickle.loads(pickle.dumps(data))
    assert torch.equal(again[3][0], data[3][0])


def test_a_transform_of_the_dataset_may_be_exchanged(pack):
    data = PackedDataset(pack("raw"))
    plain = data[0][0]
    data.transform = noisy
    assert data[0][0].dtype == torch.float32
    data.transform = None
    assert torch.equal(data[0][0], plain)


def test_joint_transforms_move_images_and_boxes_together(pack):
    def mirror(image, target):
        width = image.shape[-1]
        boxes = target["boxes"][:, [2, 1, 0, 3]] * torch.tensor([-1, 1, -1, 1]) + torch.tensor([width, 0, width, 0])
        return image.flip(-1), {**target, "boxes": boxes}

    found = PackedLoader(pack("boxes"), 4, transforms=mirror)
    expected = PackedLoader(pack("boxes"), 4, flip=1.0, flip_index=range(5))
    for (images, targets), (same_images, same_targets) in zip(found, expected, strict=True):
        assert torch.equal(images, same_images)
        assert alike([target["boxes"] for target in targets], [target["boxes"] for target in same_targets])


def test_which_functions_take_a_generator():
    class Module(torch.nn.Module):
        def forward(self, image, generator):
            return image

    class Callable:
        def __call__(self, image, rng, /):
            return image

    yes = [noisy, Callable(), Module(), lambda image, generator=None: image]
    assert all(takes_generator(function, 1) for function in yes)
    no = [
        torch.nn.Identity(),
        lambda image, *, a=1, generator=None: image,
        abs,
        lambda image: image,
        lambda image, strength=0.5: image,
        lambda *images: images,
        torch.clone,
    ]
    assert not any(takes_generator(function, 1) for function in (*no, functools.partial(noisy, generator=None)))
    assert takes_generator(jointly, 2) and not takes_generator(lambda image, target: 0, 2)


def test_only_the_targets_of_a_cache_on_the_device_are_transformed(pack):
    loader = PackedLoader(pack("raw"), 9, cache="device", target_transform=lambda label: label + 5)
    assert torch.cat([targets for _, targets in loader]).min() == 5
    with pytest.raises(UsageError, match="transforms: runs on the host"):
        PackedLoader(pack("raw"), 9, cache="device", transforms=jointly)


# -- another crop in the course of training


@pytest.mark.parametrize("cache", [None, "device"])
def test_the_crop_changes_between_epochs(pack, cache):
    options = {"shuffle": True, "seed": 1, "flip": True, "cache": cache, "on_error": "replace"}
    loader = PackedLoader(pack("raw"), 4, crop=RandomResizedCrop(4), **options)
    begun = iter(loader)
    assert next(begun)[0].shape[2:] == (4, 4)
    loader.set_crop(RandomResizedCrop(6))
    assert next(begun)[0].shape[2:] == (4, 4)  # an iteration keeps its crop
    assert "set_crop" not in loader.state_dict()
    begun.close()
    found = [images for images, _ in loader]
    other = PackedLoader(pack("raw"), 4, crop=RandomResizedCrop(6), **options)
    other.set_epoch(1)
    assert alike(found, [images for images, _ in other]) and len(found) == 7
    with pytest.raises(UsageError, match="crop: must be a crop"):
        loader.set_crop(6)


def test_a_resumed_run_goes_on_with_the_crop_of_the_state(pack):
    def make(crop=None):
        return PackedLoader(pack("raw"), 4, shuffle=True, seed=1, crop=crop or Resize((4, 4)))

    loader = make()
    list(loader)
    loader.set_crop(RandomResizedCrop((6, 5), interpolation="nearest"))
    iteration = iter(loader)
    for _ in range(3):
        next(iteration)
    state = json.loads(json.dumps(loader.state_dict()))
    rest = [images for images, _ in iteration]
    for resumed in (make(), make(RandomResizedCrop((6, 5), interpolation="nearest"))):
        resumed.load_state_dict(state)
        assert alike([images for images, _ in resumed], rest) and len(rest) == 4
        assert next(iter(resumed))[0].shape[2:] == (6, 5)
    with pytest.raises(UsageError, match=r"crop .*Resize.*here .CenterCrop"):
        make(CenterCrop(4)).load_state_dict(state)
    first = make().state_dict()
    loader.load_state_dict(first)  # of before the change
    assert next(iter(loader))[0].shape[2:] == (4, 4)
    with pytest.raises(UsageError, match="which is not one of packer's"):
        make().load_state_dict({**state, "set_crop": "Mine(3)"})


def test_all_records_are_read_with_every_crop(pack):
    loader = PackedLoader(pack("copy"), 4, crop=CenterCrop(8), with_index=True)
    for side in (8, 12, 20):
        loader.set_crop(CenterCrop(side))
        batches = list(loader)
        assert all(images.shape[2:] == (side, side) for images, *_ in batches)
        assert sum(len(records) for *_, records in batches) == RECORDS == len(fresh(pack("raw")))


class Halved:
    """A transform of the user's, which returns another image, whatever it calls itself."""

    in_place = True

    def __call__(self, image: torch.Tensor) -> torch.Tensor:
        return image.float() / 2


def test_what_a_transform_returns_counts(pack):
    whole = next(iter(PackedLoader(pack("raw"), 4)))[0]
    halved = next(iter(PackedLoader(pack("raw"), 4, transform=Halved())))[0]
    assert torch.equal(halved, whole.float() / 2)
