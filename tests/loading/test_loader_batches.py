"""PackedLoader's batches are what PackedDataset reads sample by sample; kept ones are never overwritten."""

from __future__ import annotations

import itertools
import shutil
import threading

import numpy as np
import pytest
import torch
from loader_packs import RECORDS, alike, decoded, fresh
from torch.utils.data import DataLoader

from packer import CenterCrop, PackedDataset, PackedLoader, RandomResizedCrop, collate, open_pack
from packer.errors import DamagedPack, UsageError
from packer.samplers import SequentialSampler, ShuffleSampler

pytestmark = pytest.mark.usefixtures("blocks")


@pytest.mark.parametrize(
    ("kind", "threads"), [("raw", 1), ("raw", 3), ("jpeg", 3), ("png", 3), ("gray", 1), ("gray16", 3), ("boxes", 1)]
)
def test_batches_are_the_samples(pack, container, kind, threads):
    path = pack(kind, container)
    samples = fresh(path)
    loader = PackedLoader(path, 4, threads=threads)
    assert len(loader.pack.reader.shards) > 1
    batches = list(loader)
    assert [len(images) for images, _ in batches] == [4] * (len(samples) // 4) + [len(samples) % 4]
    for number, (images, targets) in enumerate(batches):
        expected = samples[number * 4 : number * 4 + 4]
        assert images.is_contiguous(memory_format=torch.channels_last)
        assert alike(images, torch.stack([image for image, _ in expected]))
        if kind == "boxes":
            assert alike(targets, [target for _, target in expected])
        else:
            assert alike(targets, torch.tensor([target for _, target in expected]))


def test_images_of_differing_size_come_through_a_crop(pack, container):
    """A crop without resize is a cut: every pixel must be the very pixel."""
    path = pack("ragged", container)
    images = torch.cat([images for images, _ in PackedLoader(path, 5, crop=CenterCrop((7, 5)))])
    for row, (image, _) in zip(images, fresh(path), strict=True):
        height, width = image.shape[1:]
        top, left = round((height - 7) / 2), round((width - 5) / 2)
        assert torch.equal(row, image[:, top : top + 7, left : left + 5])


def test_copied_files_are_turned_upright(pack, container):
    path = pack("copy", container)
    opened = open_pack(path)
    assert {opened.reader.encoding_of(i) for i in range(RECORDS)} == {"png", "jpeg", "bmp"}
    images = torch.cat([images for images, _ in PackedLoader(path, 5, crop=CenterCrop(24))])
    for i, row in enumerate(images):
        full = decoded(bytes(opened.record(i)))
        top, left = round((full.shape[0] - 24) / 2), round((full.shape[1] - 24) / 2)
        difference = row.permute(1, 2, 0).numpy().astype(int) - full[top : top + 24, left : left + 24]
        assert np.abs(difference).max() <= 2


def test_what_is_given_may_be_a_path_a_pack_or_a_dataset(pack):
    path = pack("raw")
    data = PackedDataset(path, transform=lambda image: image.float() + 1, target_transform=lambda label: label + 10)
    expected = [images for images, _ in PackedLoader(str(path), 8)]
    for given in (path, open_pack(path), PackedDataset(path)):
        assert alike([images for images, _ in PackedLoader(given, 8)], expected)
    for (images, targets), plain in zip(PackedLoader(data, 8), expected, strict=True):
        assert torch.equal(images, plain.float() + 1)
        assert targets.dtype == torch.int64 and targets.min() >= 10


def test_kept_batches_are_never_overwritten(pack):
    loader = PackedLoader(pack("raw"), 2, threads=2, prefetch=3)
    kept = list(loader) + list(loader)
    images = torch.cat([images for images, _ in kept])
    expected = torch.stack([image for image, _ in fresh(pack("raw"))])
    assert torch.equal(images, torch.cat([expected, expected]))


def test_a_view_of_a_kept_image_keeps_its_batch(pack):
    samples = fresh(pack("raw"))
    crumbs = [images[1:2, :, 3:5].permute(0, 2, 3, 1).numpy() for images, _ in PackedLoader(pack("raw"), 3)]
    for number, crumb in enumerate(crumbs):
        assert np.array_equal(crumb[0], samples[3 * number + 1][0][:, 3:5].permute(1, 2, 0))


def test_dropped_batches_are_used_again(pack, monkeypatch):
    monkeypatch.setattr("packer.loading.pipeline.BLOCK_BYTES", 1)
    loader = PackedLoader(pack("raw"), 1, prefetch=2)
    pool = loader._batches._buffers
    for _ in range(3):
        for _ in loader:
            pass
        assert 0 < len(pool) <= 6
    kept = list(loader)
    assert len(pool) >= RECORDS
    del kept
    list(loader)
    assert len(pool) <= 2 * 2 + 4 + 1 + RECORDS  # no third set
    for _ in loader:
        pass
    assert len(pool) <= 8


def test_a_transform_runs_in_the_threads(pack):
    names = set()

    def transform(image):
        names.add(threading.current_thread().name)
        assert image.shape == (3, 10, 12) and image.dtype == torch.uint8
        return image[:, ::2].float()

    def target_transform(target):
        names.add(threading.current_thread().name)
        return str(target)

    loader = PackedLoader(pack("raw"), 10, transform=transform, target_transform=target_transform, threads=2)
    for number, (images, targets) in enumerate(loader):
        expected = fresh(pack("raw"))[number * 10 : number * 10 + 10]
        assert images.is_contiguous(memory_format=torch.channels_last)
        assert torch.equal(images, torch.stack([image[:, ::2].float() for image, _ in expected]))
        assert targets == [str(target) for _, target in expected]
    assert threading.current_thread().name not in names


@pytest.mark.parametrize(
    "transform",
    [lambda label: label / 4, torch.tensor, lambda label: torch.eye(10, dtype=torch.int64)[label]],
    ids=["float", "0-d", "one-hot"],
)
def test_numbers_and_vectors_of_a_target_transform_are_stacked_as_torch_does(pack, transform):
    data = PackedDataset(pack("raw"), target_transform=transform)
    as_torch = DataLoader(data, 5)
    for loader in (PackedLoader(pack("raw"), 5, target_transform=transform), DataLoader(data, 5, collate_fn=collate)):
        for (_, targets), (_, expected) in zip(loader, as_torch, strict=True):
            assert targets.dtype == expected.dtype and torch.equal(targets, expected)


def test_vectors_of_different_lengths_and_boxes_stay_a_list(pack):
    lengths = itertools.count()
    for transform in (lambda label: torch.zeros(next(lengths) % 3), lambda label: torch.zeros(1, 4)):
        for _, targets in PackedLoader(pack("raw"), 5, target_transform=transform, threads=1):
            assert isinstance(targets, list) and len(targets) <= 5


def test_ids_that_a_target_transform_makes_become_a_tensor(pack):
    for cache in (None, "device"):
        loader = PackedLoader(pack("raw"), 9, target_transform=lambda label: label * 2, cache=cache)
        targets = [targets for _, targets in loader]
        assert alike(torch.cat(targets), torch.arange(3).repeat_interleave(9) * 2)


def test_what_a_thread_raises_comes_out_as_it_is(pack):
    class Mine(Exception):
        pass

    def transform(image):
        raise Mine("here")

    with pytest.raises(Mine, match="here"):
        list(PackedLoader(pack("raw"), 4, transform=transform))
    with pytest.raises(Mine):
        list(PackedLoader(pack("boxes"), 4, target_transform=transform))


@pytest.mark.parametrize("kind", ["raw", "jpeg", "ragged"])
def test_a_damaged_record_stops_the_loop(pack, tmp_path, kind):
    path = shutil.copytree(pack(kind), tmp_path / "pack")
    opened = open_pack(path)
    shard, _ = opened.reader.locate(13)
    name = opened.reader.shards[shard].container.name
    where = int(opened.reader.span(13)[0] - opened.reader._starts[shard])
    del opened
    with open(path / name, "r+b") as file:
        file.seek(where + 40)
        byte = file.read(1)
        file.seek(where + 40)
        file.write(bytes([byte[0] ^ 0xFF]))
    received = []
    with pytest.raises(DamagedPack, match="00000013"):
        for images, _ in PackedLoader(path, 4, crop=CenterCrop(8)):
            received.append(len(images))
    assert received in ([], [4], [4, 4], [4, 4, 4])  # small batches are made several at once
    if kind == "raw":
        assert len(list(PackedLoader(path, 4, verify=False))) == 7


@pytest.mark.parametrize("cores", [2, 8, 16])
def test_default_threads_are_the_cores_but_for_copying_no_more_than_eight(pack, monkeypatch, cores):
    def threads(kind, **options):
        return PackedLoader(pack(kind), 4, **options)._batches.work.threads

    monkeypatch.setattr("packer.loading.assemble.usable_cores", lambda: cores)
    assert threads("raw") == min(cores, 8) and threads("raw", threads=12) == 12
    assert threads("jpeg") == threads("raw", crop=CenterCrop(8)) == threads("raw", transform=torch.clone) == cores


def test_images_that_do_not_fit_one_batch_are_refused(pack):
    for kind in ("ragged", "copy"):
        with pytest.raises(ValueError, match=r"images differ in size; give a crop, such as RandomResizedCrop\(224\)"):
            PackedLoader(pack(kind), 4)


def test_what_does_not_go_together_is_refused(pack):
    path = pack("raw")
    sampler = ShuffleSampler(PackedDataset(path))
    refused = {
        "batch_size": {"batch_size": 0},
        "threads": {"threads": 0},
        "prefetch": {"prefetch": 0},
        "flip": {"flip": 1.5},
        "seed": {"seed": -1},
        "decoder": {"decoder": "magic"},
        "cache": {"cache": "disk"},
        "shuffle": {"shuffle": True, "sampler": sampler},
        "drop_last": {"drop_last": True, "sampler": sampler},
        "sampler": {"sampler": SequentialSampler(5)},
        "transform": {"transform": len, "cache": "device"},
    }
    for name, options in refused.items():
        with pytest.raises(UsageError, match=name):
            PackedLoader(path, **{"batch_size": 4, **options})
    with pytest.raises(UsageError, match="another pack"):
        PackedLoader(path, 4, sampler=ShuffleSampler(PackedDataset(pack("jpeg"))))
    with pytest.raises(UsageError, match="27 samples do not fill a batch of 28"):
        PackedLoader(path, 28, drop_last=True)
    with pytest.raises(ValueError, match="mean and std must be given together"):
        PackedLoader(path, 4, mean=(0.5,) * 3)
    assert len(PackedLoader(path, 4, sampler=ShuffleSampler(27))) == 7


def test_length_and_drop_last(pack):
    for size in (1, 4, 27, 40):
        loader = PackedLoader(pack("raw"), size)
        assert len(loader) == len(list(loader)) == -(-RECORDS // size)
    loader = PackedLoader(pack("raw"), 4, drop_last=True, shuffle=True)
    assert [len(images) for images, _ in loader] == [4] * 6


def test_encodings_that_a_crop_reads_alike(pack):
    """The same random crops of raw and PNG pixels, which are equal."""
    crop = RandomResizedCrop(8)
    raw, png = (list(PackedLoader(pack(kind), 7, crop=crop, flip=True, seed=3)) for kind in ("raw", "png"))
    assert alike(raw, png)


def test_a_slow_transform_uses_all_threads_and_keeps_nobody_waiting(pack):
    names, calls, together = set(), [], threading.Barrier(3, timeout=60)

    def transform(image):
        if threading.current_thread().name not in names:
            names.add(threading.current_thread().name)
            together.wait()  # each thread waits for all others
        calls.append(1)
        return image.clone()

    iteration = iter(PackedLoader(pack("raw"), 4, transform=transform, threads=3, prefetch=1))
    next(iteration)
    assert len(calls) < 27 and len(names) == 3
    iteration.close()


def test_a_sampler_with_more_samples_in_a_later_epoch(pack):
    """As the one with which `packer bench` fills its time; the first epoch decides how large buffers are."""

    class Growing(ShuffleSampler):
        kind = "growing"

        def set_epoch(self, epoch):
            super().set_epoch(epoch)
            self.num_samples = self.num_indices * (1 + 3 * epoch)

        def _numbers(self, epoch):
            numbers = super()._numbers(epoch)
            return lambda positions: numbers(positions % self.num_indices)

    opened, samples = open_pack(pack("raw")), fresh(pack("raw"))
    count = len(opened)
    loader = PackedLoader(opened, 4 * count, sampler=Growing(opened, 0))
    for epoch in range(2):
        loader.set_epoch(epoch)
        ((images, _),) = loader
        order = loader.sampler._numbers(epoch)(np.arange(count * (1 + 3 * epoch)))
        assert alike(images, torch.stack([samples[number][0] for number in order]))
