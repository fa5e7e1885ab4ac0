"""PackedDataset in torch's own DataLoader: collate functions, samplers, start methods of workers."""

from __future__ import annotations

import pickle
import sys
import types

import pytest
import torch
from side_by_side import SideBySide, digest
from torch.utils.data import BatchSampler, ConcatDataset, DataLoader, Subset, SubsetRandomSampler

from packer import PackedDataset, collate
from packer.containers import CONTAINERS

# Python 3.12 warns of any fork in a process with threads, which torch has
pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")


@pytest.fixture(scope="module")
def raw(make_pack):
    return PackedDataset(make_pack("raw", "lmdb"))


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(7)


@pytest.mark.parametrize("workers", [0, 2])
def test_default_collate(make_pack, container, workers):
    data = PackedDataset(make_pack("raw", container))
    seen = 0
    for images, targets in DataLoader(data, batch_size=7, num_workers=workers, multiprocessing_context=_fork(workers)):
        assert images.dtype == torch.uint8 and images.shape[1:] == (3, 10, 12)
        assert targets.dtype == torch.int64
        for image, target in zip(images, targets, strict=True):
            expected = data[seen]
            assert torch.equal(image, expected[0]) and int(target) == expected[1]
            seen += 1
    assert seen == len(data)


class DataLoaderDispatcher:
    """Stands for accelerate's loader of this name."""


@pytest.mark.parametrize("kind", ["raw", "jpeg", "ragged"])
@pytest.mark.parametrize("way", ["here", "forked", "pickled"])
@pytest.mark.parametrize("transform", [None, torch.clone], ids=["plain", "transform"])
def test_images_that_accelerate_sends_to_other_processes_are_contiguous(make_pack, monkeypatch, kind, way, transform):
    """They receive the bytes of a batch into a contiguous tensor: the pixels of channels last would be scrambled."""
    active = types.SimpleNamespace(_shared_state={"a": 1}, active_dataloader=DataLoaderDispatcher())
    state = types.SimpleNamespace(GradientState=lambda: active)
    state.GradientState._shared_state = active._shared_state
    data = PackedDataset(make_pack(kind, "lmdb"), transform)
    expected = [data[i][0].clone() for i in range(8)]
    monkeypatch.setitem(sys.modules, "accelerate.state", state)
    if way == "pickled":  # as for a worker that is spawned, which knows nothing of accelerate
        data = pickle.loads(pickle.dumps(data))
        monkeypatch.delitem(sys.modules, "accelerate.state")
    workers = int(way == "forked")
    loader = DataLoader(data, 8, collate_fn=collate, num_workers=workers, multiprocessing_context=_fork(workers))
    images, _ = next(iter(loader))
    for image, own in zip(images, expected, strict=True):
        assert image.is_contiguous() and torch.equal(image, own)


@pytest.mark.parametrize("kind", ["raw", "jpeg", "gray16", "boxes"])
@pytest.mark.parametrize("workers", [0, 1])
def test_packer_collate_keeps_channels_last(make_pack, kind, workers):
    data = PackedDataset(make_pack(kind, "webdataset"))
    loader = DataLoader(
        data, batch_size=4, num_workers=workers, collate_fn=collate, multiprocessing_context=_fork(workers)
    )
    for images, _ in loader:
        assert images.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("kind", ["raw", "jpeg"])
def test_collate_of_samples_is_that_of_a_batch(make_pack, container, kind):
    data = PackedDataset(make_pack(kind, container))
    indices = [5, 1, 20, 5]
    whole, single = collate(data.__getitems__(indices)), collate([data[i] for i in indices])
    assert torch.equal(whole[0], single[0]) and torch.equal(whole[1], single[1])
    assert whole[0].stride() == single[0].stride() and whole[1].dtype == single[1].dtype == torch.int64


def test_detection_batches(make_pack, container):
    data = PackedDataset(make_pack("boxes", container))
    (images, targets), *_ = DataLoader(data, batch_size=9, collate_fn=collate)
    assert images.shape == (9, 3, 30, 40)
    assert [len(t["boxes"]) for t in targets] == [0, 1, 2] * 3


def test_images_of_different_sizes_stay_a_list(make_pack, container):
    data = PackedDataset(make_pack("ragged", container))
    (images, targets), *_ = DataLoader(data, batch_size=6, collate_fn=collate)
    assert [tuple(i.shape) for i in images] == [(3, 9 + i % 3, 7 + i % 2) for i in range(6)]
    assert targets.tolist() == [0] * 6


def test_samplers(raw):
    def targets(**options) -> list[int]:
        return [t for _, batch in DataLoader(raw, collate_fn=collate, **options) for t in batch.tolist()]

    assert sorted(targets(batch_size=5, sampler=SubsetRandomSampler([0, 9, 23], generator=seeded()))) == [0, 1, 2]
    assert targets(batch_sampler=BatchSampler([23, 0, 9], 2, drop_last=False)) == [2, 0, 1]
    shuffled = targets(batch_size=5, shuffle=True, generator=seeded())
    assert shuffled == targets(batch_size=5, shuffle=True, generator=seeded())
    assert shuffled != raw.targets and sorted(shuffled) == raw.targets
    images, label = next(iter(DataLoader(raw, batch_size=None)))
    assert images.shape == (3, 10, 12) and label == 0


def test_subset_and_concat(raw):
    subset = Subset(raw, range(4, 12))
    (images, targets), *_ = DataLoader(subset, batch_size=8, collate_fn=collate)
    assert targets.tolist() == [0] * 4 + [1] * 4
    assert torch.equal(images, raw.__getitems__(range(4, 12)).images)
    both = ConcatDataset([raw, raw])
    assert len(both) == 48 and torch.equal(both[30][0], raw[6][0])


def _fork(workers: int) -> str | None:
    return "fork" if workers else None


def _stream(data: PackedDataset, workers: int) -> list[str]:
    loader = DataLoader(
        data, batch_size=5, shuffle=True, generator=seeded(), num_workers=workers, collate_fn=collate,
        multiprocessing_context=_fork(workers),
    )  # fmt: skip
    return [digest(batch) for batch in loader]


@pytest.mark.parametrize("kind", ["raw", "jpeg", "boxes"])
def test_same_bytes_in_forked_workers(make_pack, container, kind):
    data = PackedDataset(make_pack(kind, container))
    here = _stream(data, 0)
    assert here == _stream(data, 1) == _stream(data, 2)
    assert here == _stream(PackedDataset(make_pack(kind, "lmdb")), 0)


@pytest.mark.parametrize(("method", "workers"), [("spawn", 1), ("forkserver", 2)])
def test_same_bytes_in_fresh_workers(make_pack, method, workers):
    kinds = ("raw", "jpeg", "ragged", "boxes")
    datasets = [PackedDataset(make_pack(kind, container)) for kind in kinds for container in CONTAINERS]
    batches = torch.randperm(24, generator=seeded()).view(-1, 4).tolist()
    data = SideBySide(datasets, batches)
    here = [data[k] for k in range(len(data))]
    assert list(DataLoader(data, batch_size=None, num_workers=workers, multiprocessing_context=method)) == here
    for digests in here:  # and the same out of each container
        assert len(set(digests)) == len(kinds)


def test_collate_of_what_transforms_return():
    first, last = torch.rand(3, 4, 5), torch.rand(4, 5, 3).permute(2, 0, 1)
    images, targets = collate([(first, 1), (first, 2)])
    assert torch.equal(images[1], first) and images.is_contiguous() and targets.dtype == torch.int64
    images, targets = collate([(last, "a"), (last, "b")])
    assert torch.equal(images[1], last) and images.is_contiguous(memory_format=torch.channels_last)
    assert targets == ["a", "b"]
    flat, _ = collate([(torch.arange(3), 0), (torch.arange(3), 0)])
    assert flat.shape == (2, 3)
    assert collate([("text", 0), (first, 1)])[0] == ["text", first]
