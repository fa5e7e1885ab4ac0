"""`DataLoader(PackedDataset(path), 256)` without a collate_fn: the batch that was gathered, as torch would stack it."""

from __future__ import annotations

import copy
import io
import os
import pickle
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_dataset import same
from torch.utils.data import ConcatDataset, DataLoader, Subset, default_collate, random_split

from packer import BuildOptions, PackedDataset, build_pack, collate
from packer.errors import DamagedPack
from packer.loading import memory
from packer.loading.collate import BY_VALUE_BYTES, Batch, LoadedSample, SentList

# Python 3.12 warns of any fork in a process with threads, which torch has
pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
ORDER = [7, 2, 2, 0, -1, 5]


@pytest.fixture(autouse=True)
def small_batches_are_recycled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "RECYCLED_BYTES", 1)


@pytest.fixture
def raw(make_pack):
    return PackedDataset(make_pack("raw", "lmdb"))


@pytest.fixture
def boxed(make_pack):
    return PackedDataset(make_pack("boxes", "lmdb"))


def plain(data: Any, size: int = 6, workers: int = 0, **options: Any) -> list[Any]:
    context = "fork" if workers else None
    return list(DataLoader(data, size, num_workers=workers, multiprocessing_context=context, **options))


def stacked(data: PackedDataset, numbers: Any) -> torch.Tensor:
    """Images one by one, as torch stacks them."""
    return torch.stack([data[i][0].contiguous() for i in numbers])


# -- the batch


@pytest.mark.parametrize("kind", ["raw", "jpeg", "gray16", "boxes"])
def test_the_gathered_batch_is_taken(make_pack, container, kind):
    data = PackedDataset(make_pack(kind, container))
    batch = data.__getitems__(ORDER)
    images, targets = default_collate(batch)
    assert images.data_ptr() == batch.images.data_ptr()
    assert images.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(images.int(), stacked(data, ORDER).int())
    assert same(targets, collate([data[i] for i in ORDER])[1])


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", ["raw", "jpeg", "gray16", "boxes"])
def test_batches_are_the_records_in_order(make_pack, kind, workers):
    data = PackedDataset(make_pack(kind, "hdf5"))
    batches = plain(data, 5, workers)
    assert same([image for images, _ in batches for image in images], [data[i][0] for i in range(len(data))])
    expected = [collate([data[i] for i in range(k, min(k + 5, len(data)))])[1] for k in range(0, len(data), 5)]
    assert same([targets for _, targets in batches], expected)
    assert all(type(batch) is list for batch in batches)  # as default_collate makes of tuples


def test_images_of_different_sizes_are_torchs_error(make_pack):
    with pytest.raises(RuntimeError, match="equal size"):
        plain(PackedDataset(make_pack("ragged", "lmdb")))


def test_a_decoded_image_of_another_shape_is_damage(make_pack, monkeypatch):
    data = PackedDataset(make_pack("jpeg", "lmdb"))
    monkeypatch.setattr(data.pack, "image", lambda i, decoder: np.zeros((1, 1, 3), np.uint8))
    with pytest.raises(DamagedPack, match=r"decodes to shape \(1, 1, 3\), which is not \(10, 12, 3\)"):
        data.__getitems__([3])


# -- a sample is a tuple


def test_a_sample_is_a_tuple(raw):
    for sample in (raw[3], raw.__getitems__([3])[0], *raw.__getitems__([3]), *raw.__getitems__([3, 4])[:1]):
        image, target = sample
        assert isinstance(sample, tuple) and len(sample) == 2
        assert sample[0] is image and sample[-1] == target == 0 and isinstance(target, int)
        assert same(pickle.loads(pickle.dumps(sample)), sample) and same(copy.deepcopy(sample), sample)


def test_wrappers(raw):
    first, second = random_split(raw, [16, 8], torch.Generator().manual_seed(3))
    for part in (first, second, Subset(raw, ORDER)):
        ((images, targets),) = plain(part, 30)
        assert torch.equal(images, stacked(raw, part.indices))
        assert targets.tolist() == [raw.targets[i] for i in part.indices]
    ((images, targets),) = plain(ConcatDataset([raw, Subset(raw, [4])]), 30)
    assert torch.equal(images, stacked(raw, [*range(24), 4])) and targets.tolist() == [*raw.targets, 0]
    ((images, targets),) = plain(raw, sampler=[5, 5, 20, 5])
    assert torch.equal(images, stacked(raw, [5, 5, 20, 5])) and targets.tolist() == [0, 0, 2, 0]


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    "change", [lambda b: b[::-1], list, lambda b: [b[4], b[1]], lambda b: [*b, b[0]]],
    ids=["turned", "list", "filtered", "repeated"],
)  # fmt: skip
def test_samples_in_another_order_are_stacked(raw, boxed, change, workers):
    for data in (raw, boxed):
        batch = data.__getitems__([6, 5, 4, 3, 2, 1])
        ((images, targets),) = plain(data, sampler=[6, 5, 4, 3, 2, 1], workers=workers, collate_fn=Changed(change))
        numbers = change([6, 5, 4, 3, 2, 1])
        assert torch.equal(images, stacked(data, numbers)) and images.is_contiguous(memory_format=torch.channels_last)
        assert same(targets, collate([data[i] for i in numbers])[1])
        if not isinstance(changed := change(batch), Batch):  # a copy: others may hold the samples
            assert default_collate(changed)[0].untyped_storage().data_ptr() != batch.images.untyped_storage().data_ptr()


class Changed:
    """A collate_fn that others write."""

    def __init__(self, change: Any) -> None:
        self.change = change

    def __call__(self, samples: Any) -> Any:
        assert all(isinstance(sample, tuple) for sample in samples)
        return default_collate(self.change(samples))


def test_beside_other_samples(raw):
    mixed = [raw[0], (raw[1][0], 7)]
    for samples in (mixed, mixed[::-1]):
        images, targets = default_collate(samples)
        assert torch.equal(images, torch.stack([image for image, _ in samples]))
        assert targets.tolist() == [target for _, target in samples]


# -- targets


def test_points_of_one_number_are_stacked_as_by_torch(tmp_path, boxed):
    source = Path(boxed.pack.path).parent / "source"
    points = [line.split()[:11] for line in (source / "landmarks.txt").read_text().splitlines()]
    (tmp_path / "points.txt").write_text("".join(f"{' '.join(words)}\n" for words in points))
    labels = (f"list:{tmp_path / 'points.txt'}",)
    build_pack(BuildOptions(str(source), str(tmp_path / "same.lmdb"), labels=labels, columns=("path (x y)*5",)))
    data = PackedDataset(tmp_path / "same.lmdb")
    assert not data._targets.vary and boxed._targets.vary
    _, targets = default_collate(data.__getitems__([2, 4]))
    assert targets["landmarks"].shape == (2, 5, 2) and targets["image_id"].tolist() == [2, 4]
    assert torch.equal(targets["landmarks"][1], data[4][1]["landmarks"])


def test_target_transform_keeps_the_batch(raw):
    raw.target_transform = lambda label: {"id": torch.tensor([label, 1]), "good": label > 0}
    batch = raw.__getitems__(ORDER)
    images, targets = default_collate(batch)
    assert images.data_ptr() == batch.images.data_ptr() and torch.equal(images, stacked(raw, ORDER))
    assert targets["id"][:, 0].tolist() == [raw.targets[i] for i in ORDER] and targets["good"].dtype == torch.bool
    raw.target_transform = lambda label: torch.tensor(label / 2)
    batch = raw.__getitems__([20])
    assert torch.equal(batch[0][1], torch.tensor(1.0)) and torch.equal(default_collate(batch)[1], torch.tensor([1.0]))
    raw.target_transform = lambda label: label + 5
    assert collate(raw.__getitems__([0, 20]))[1].tolist() == [5, 7]


@pytest.mark.parametrize("workers", [0, 1])
def test_transform(raw, boxed, workers):
    for data in (raw, boxed):
        images = stacked(data, range(6))
        targets = collate([data[i] for i in range(6)])[1]
        data.transform = lambda image: image.float() / 255
        found = plain(Subset(data, range(6)), workers=workers)
        assert torch.equal(found[0][0], images.float() / 255) and same(found[0][1], targets)
        data.transform = lambda image: image  # the same memory
        assert torch.equal(plain(Subset(data, range(6)), workers=workers)[0][0], images)


def test_targets_of_a_transform_are_stacked_by_torch(boxed):
    boxed.target_transform = lambda target: {"boxes": torch.zeros(7, 4)}
    assert default_collate(boxed.__getitems__([0, 1]))[1]["boxes"].shape == (2, 7, 4)
    boxed.target_transform = lambda target: {"boxes": target["boxes"]}
    with pytest.raises(RuntimeError) as caught:
        default_collate(boxed.__getitems__([0, 1]))
    assert "collate_fn=packer.collate" in "".join(getattr(caught.value, "__notes__", ["collate_fn=packer.collate"]))


def test_targets_that_a_worker_has_changed_are_sent_as_they_are(boxed):
    def changed(samples):
        images, targets = default_collate(samples)
        for number, target in enumerate(targets):
            target["boxes"] = target["boxes"] / 2 + number
            target["more"] = [torch.full((2,), number), {"text": "x"}, torch.tensor(1.5, dtype=torch.bfloat16)]
        return images, targets[::-1]

    ((_, targets),) = plain(boxed, 9, workers=1, collate_fn=changed)
    for number, target in enumerate(reversed(targets)):
        assert torch.equal(target["boxes"], boxed[number][1]["boxes"] / 2 + number)
        assert target["more"][0].tolist() == [number] * 2 and target["more"][1:] == [{"text": "x"}, 1.5]
        target["labels"].zero_()  # nobody else's memory


class Counting(pickle.Pickler):
    """Lists the tensors and arrays that it pickles."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.found: list[Any] = []

    def reducer_override(self, thing: Any) -> Any:
        if isinstance(thing, (torch.Tensor, np.ndarray)):
            self.found.append(thing)
        return NotImplemented


def sent(targets: list[Any]) -> tuple[list[Any], list[Any]]:
    """What is received of targets that a worker sends, and the tensors and arrays in between."""
    file = io.BytesIO()
    pickler = Counting(file)
    pickler.dump(SentList(targets))
    return pickle.loads(file.getvalue()), pickler.found


LARGE = BY_VALUE_BYTES // 4


@pytest.mark.parametrize(
    ("targets", "count"),
    [
        ([], 0),
        ([{}, {}], 0),
        ([{"boxes": torch.zeros(0, 4), "labels": torch.zeros(0, dtype=torch.int64)}] * 3, 2),
        ([{"boxes": torch.rand(n, 4), "labels": torch.arange(n), "image_id": n, "text": "x"} for n in (2, 0, 3)], 2),
        ([{"polygons": [torch.rand(n, 2) for n in sizes]} for sizes in ((3, 4), (), (5,))], 1),
        ([{"polygons": []}, {"polygons": []}], 0),
        ([{"keypoints": torch.rand(n, k, 3)} for n, k in ((2, 17), (0, 17), (1, 4))], 1),
        ([{"masks": torch.rand(n, 5, 4 + n) > 0.5} for n in (2, 0, 1)], 1),
        ([{"id": torch.tensor(n), "size": torch.tensor([4.0, 5.0], dtype=torch.float64)} for n in range(4)], 2),
        ([{"of": {"boxes": torch.rand(n, 4).half()}, "occluded": [n, None, "x"]} for n in range(4)], 1),
        ([torch.rand(2, 3).t(), torch.rand(4, 1).expand(4, 2)], 1),
        ([torch.rand(3), torch.rand(()), torch.rand(0)], 1),
        ([{"boxes": torch.rand(LARGE // 2, 1)}, {"boxes": torch.rand(LARGE, 1)}], 1),
        ([torch.arange(2), torch.rand(2), torch.rand(()), 3, torch.rand(LARGE + 1)], 4),
        ([{"a": torch.rand(2)}, {"b": torch.rand(2)}, {"a": torch.rand(2), "b": 1}], 3),
        ([("a", 1), ("b", 2.5)], 0),
        ([{"scores": torch.rand(2).bfloat16()}, {"scores": torch.rand(2).bfloat16()}], 2),
        ([{"scores": torch.rand(2, requires_grad=True)}, {"scores": torch.rand(2)}], 2),
    ],
)  # fmt: skip
def test_a_worker_sends_one_tensor_for_a_field(targets, count):
    received, between = sent(targets)
    assert same(received, targets) and type(received) is list
    assert len(between) == count


def test_many_bytes_are_sent_in_shared_memory():
    received, between = sent([{"masks": torch.ones(2, 500, 700)}, {"masks": torch.zeros(1, 500, 700)}])
    assert [tensor.is_shared() for tensor in between] == [True]
    assert [target["masks"].shape[0] for target in received] == [2, 1] and received[0]["masks"].all()


def test_images_of_different_sizes_are_sent_as_one_tensor(make_pack):
    data = PackedDataset(make_pack("ragged", "lmdb"))
    expected = [image for image, _ in (data[i] for i in range(len(data)))]
    for images in (expected, [image.contiguous() for image in expected]):
        received, between = sent(images)
        assert len(between) == 1 and same(received, images)
        assert [image.stride() for image in received] == [image.stride() for image in images]
    ((images, _),) = plain(data, 30, workers=1, collate_fn=collate)
    assert same(images, expected) and [image.stride() for image in images] == [image.stride() for image in expected]
    assert len({image.untyped_storage().data_ptr() for image in images}) == 1


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_targets_of_workers_are_those_without_any(boxed, context):
    loader = DataLoader(boxed, 4, num_workers=1, multiprocessing_context=context, persistent_workers=True)
    for batches in (list(loader), list(loader)):
        assert same([targets for _, targets in batches], [targets for _, targets in plain(boxed, 4)])
        assert any(not len(target["boxes"]) for _, targets in batches for target in targets)
        for target in (target for _, targets in batches for target in targets):
            target["boxes"].add_(1)  # nobody else's memory


# -- memory


def test_memory_is_used_again_when_nothing_holds_it(raw):
    def addresses(count: int) -> set[int]:
        return {images.data_ptr() for _ in range(count) for images, _ in plain_batches(raw)}

    assert len(addresses(3)) <= 2  # the consumer drops a batch when it has the next one
    kept = [images for images, _ in plain_batches(raw)]
    assert len({images.data_ptr() for images in kept}) == len(kept)
    del kept
    for _ in plain_batches(raw):
        assert len(raw._memory._pool) <= 3


def plain_batches(data: PackedDataset) -> Any:
    return iter(DataLoader(data, 4))


@pytest.mark.parametrize(
    "hold",
    [
        lambda images: images,
        lambda images: images[1:2, :, 3:5],
        lambda images: images[3].permute(1, 2, 0).numpy(),
        lambda images: images.untyped_storage(),
        lambda images: memoryview(images.numpy()),
        lambda images: np.from_dlpack(images.detach()),
        lambda images: list(images.unbind()),
    ],
    ids=["batch", "view", "numpy", "storage", "memoryview", "dlpack", "samples"],
)
def test_memory_that_is_held_is_not_overwritten(raw, hold):
    held, copies = [], []
    for images, _ in plain_batches(raw):
        held.append(hold(images))
        copies.append(copy.deepcopy(hold(images.clone())) if not isinstance(held[-1], memoryview) else images.clone())
        del images
    for _ in plain_batches(raw):
        pass
    for thing, before in zip(held, copies, strict=True):
        if isinstance(thing, torch.UntypedStorage):
            assert bytes(thing)[: len(before)] == bytes(before) or thing.nbytes() > before.nbytes()
        else:
            assert np.array_equal(np.asarray(thing), np.asarray(before))


def test_a_sample_and_a_batch_object_hold_it_too(raw):
    samples = [raw.__getitems__([i, i + 1])[1] for i in range(20)]
    batches = [raw.__getitems__([i, i + 1]) for i in range(20)]
    for i in range(20):
        assert torch.equal(samples[i][0], raw[i + 1][0]) and torch.equal(batches[i].images[0], raw[i][0])


def test_a_small_batch_holds_no_large_buffer(raw):
    raw.__getitems__(range(24))
    assert raw.__getitems__([3]).images.untyped_storage().nbytes() == 360


def test_gathered_straight_into_memory_that_a_worker_shares(make_pack):
    for kind in ("raw", "jpeg", "boxes"):
        data = PackedDataset(make_pack(kind, "lmdb"))
        assert plain(data, 4, workers=1, collate_fn=is_shared) == [True] * -(-len(data) // 4)
        data.transform = lambda image: image.float()
        assert plain(data, 4, workers=1, collate_fn=is_shared) == [False] * -(-len(data) // 4)


def is_shared(samples: Any) -> bool:
    before = memory.shared_pool()._states.tolist()
    function, (tensor, states, number) = default_collate(samples)[0].__reduce_ex__(4)  # nothing is left to copy
    assert function is memory.received and tensor.is_shared() and states.is_shared() and not before[number]
    states[number] = memory.HERE
    return any(image.data_ptr() == tensor.data_ptr() for image, _ in samples)


def with_buffers(samples: Any) -> Any:
    """A batch, the number of buffers in the pool of its worker, and what an operation makes of it."""
    images, targets = collate(samples)
    assert type(images) is memory.SentTensor and type(images[:1]) is type(images + 1) is torch.Tensor
    return images, targets, len(memory.shared_pool())


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_a_worker_uses_memory_again_that_the_consumer_has_dropped(raw, context):
    expected = torch.cat([images for images, _ in plain(raw, 4)])
    options = {"num_workers": 1, "multiprocessing_context": context, "persistent_workers": True}
    loader = DataLoader(raw, 4, collate_fn=recycling, worker_init_fn=recycle_all, **options)
    for _ in range(3):
        counts = []
        for number, (images, _, buffers) in enumerate(loader):
            assert type(images) is torch.Tensor
            assert torch.equal(images, expected[4 * number : 4 * number + len(images)])
            counts.append(buffers)
            images.add_(1)  # it is the consumer's
    assert max(counts) <= 5  # two are fetched ahead, one is sent, one used, one has just been dropped
    kept = [(images[1:3], number) for number, (images, _, _) in enumerate(loader)]
    again = [(images, buffers) for images, _, buffers in loader]
    for part, number in kept:  # a view is enough: its memory stays as it is
        assert torch.equal(part, expected[4 * number + 1 : 4 * number + 3])
    assert torch.equal(torch.cat([images for images, _ in again]), expected)
    assert again[-1][1] >= len(kept)


def recycling(samples: Any) -> Any:
    return with_buffers(samples)


def recycle_all(_: int) -> None:
    """In a worker that was spawned, too: the batches of these tests are small."""
    memory.RECYCLED_BYTES = 1


def test_an_epoch_left_early_gives_its_memory_back(raw):
    loader = DataLoader(
        raw, 2, num_workers=1, persistent_workers=True, collate_fn=recycling, worker_init_fn=recycle_all
    )
    for _ in range(20):
        next(iter(loader))
    assert max(buffers for _, _, buffers in loader) <= 8


def test_pickles_without_its_memory(raw):
    before = len(pickle.dumps(raw))
    raw.__getitems__(range(24))
    assert len(pickle.dumps(raw)) == before


def test_pinned(raw, boxed, monkeypatch):
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self, *_: self.clone())
    for data in (raw, boxed):
        batch = default_collate(data.__getitems__(ORDER))
        pinned = torch.utils.data._utils.pin_memory.pin_memory(batch)
        assert same(pinned, batch) and pinned[0].data_ptr() != batch[0].data_ptr()
        assert pinned[0].is_contiguous(memory_format=torch.channels_last)


def test_torchs_threads_stay_as_they_are(raw, monkeypatch):
    own, seen = torch.get_num_threads(), []
    gather = raw._gather
    monkeypatch.setitem(vars(raw), "_gather", lambda *args: seen.append(torch.get_num_threads()) or gather(*args))
    torch.set_num_threads(3)
    try:
        raw.__getitems__(ORDER)
        assert torch.get_num_threads() == 3 and seen[0] in (1, 3)
    finally:
        torch.set_num_threads(own)


def test_the_class_of_samples_is_registered_once():
    table = torch.utils.data._utils.collate.default_collate_fn_map
    assert [kind for kind in table if isinstance(kind, type) and issubclass(kind, LoadedSample)] == [LoadedSample]


def shared_batch(pool: memory.SharedPool, size: int = 1 << 20) -> tuple[memory.SentTensor, int]:
    """A batch of ones in shared memory, and the number of its buffer."""
    tensor = pool.take(size).fill_(1)
    return tensor.as_subclass(memory.SentTensor), pool.number_of(tensor)  # type: ignore[return-value]


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> memory.SharedPool:
    """The pool of a worker that this process is."""
    pool = memory.SharedPool()
    monkeypatch.setattr(memory, "shared_pool", lambda: pool)
    return pool


def test_a_batch_that_is_sent_while_memory_is_sought(pool, monkeypatch):
    """Another thread sends it when `take` looks for free memory: it is away before its last reference is gone."""
    sent, number = shared_batch(pool)
    waiting, wire = [sent], []
    del sent
    references = memory._references
    monkeypatch.setattr(pool, "number_of", lambda _: number)  # which it knew before

    def while_sought(arrays: Any, n: int) -> int:
        if waiting:  # the other thread is as quick as it can be: before references are counted
            wire.append(ForkingPickler.dumps(waiting.pop()))
        return references(arrays, n)

    monkeypatch.setattr(memory, "_references", while_sought)
    pool.take(1 << 20).fill_(2)
    received = pickle.loads(wire[0])
    assert received.eq(1).all() and len(pool) == 2
    start = received.data_ptr()
    del received
    assert start in [one.data_ptr() for one in (pool.take(1 << 20), pool.take(1 << 20))]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_keeps_what_it_has_of_a_batch(pool):
    sent, number = shared_batch(pool)
    wire = ForkingPickler.dumps(sent)
    del sent
    batch = pickle.loads(wire)
    child = os.fork()
    if not child:
        del batch  # says nothing of the parent's
        os._exit(0)
    os.waitpid(child, 0)
    assert pool._states[number] == memory.AWAY
    pool.take(1 << 20).fill_(2)
    assert batch.eq(1).all()
    del batch  # a fork may still read it: its memory is not written to again
    assert pool._states[number] == memory.FORKED
    old = pool._buffers[number].data_ptr()
    held = pool._buffers[number]
    taken = [pool.take(1 << 20).fill_(2) for _ in range(3)]
    assert held.eq(1).all() and all(one.data_ptr() != old for one in taken)


def test_memory_that_a_consumer_has_kept_for_long_is_released(pool):
    received = []
    for _ in range(20):
        sent, _ = shared_batch(pool)
        received.append(pickle.loads(ForkingPickler.dumps(sent)))
        del sent
    assert len(pool) == 20
    received.clear()
    pool.take(1 << 20)
    assert len(pool) == 1 + pool.SPARE
    pool.take(3 << 20)  # the buffers are too small
    assert len(pool) == 1


def test_a_copy_of_a_batch_is_plain(pool):
    sent, _ = shared_batch(pool)
    copied = copy.deepcopy([sent, sent])
    assert type(copied[0]) is torch.Tensor and copied[0] is copied[1] and torch.equal(copied[0], sent)
    shallow = copy.copy(sent)  # it is not sent: nobody is told that it is dropped
    assert type(shallow) is torch.Tensor and shallow.data_ptr() == sent.data_ptr()
    assert pool._states.tolist() == [memory.HERE] * pool.MOST


class WithoutGradients(torch.utils.data.Dataset[Any]):
    """A dataset whose user has read of inference_mode."""

    def __init__(self, data: PackedDataset) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data)

    @torch.inference_mode()
    def __getitems__(self, records: list[int]) -> Any:
        return self.data.__getitems__(records)


def test_a_worker_in_inference_mode(raw, monkeypatch):
    monkeypatch.setattr(memory, "RECYCLED_BYTES", 1)
    expected = torch.cat([images for images, _ in plain(raw, 4)])
    options = {"num_workers": 1, "timeout": 60, "worker_init_fn": recycle_all}
    with torch.inference_mode():
        batches = [images for images, _ in DataLoader(WithoutGradients(raw), 4, collate_fn=collate, **options)]
    assert torch.equal(torch.cat(batches), expected)
    batches.clear()  # says so to the worker, outside of the mode
