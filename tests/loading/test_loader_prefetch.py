"""CudaPrefetcher on the CPU: nesting, values, errors, and nothing left behind."""

from __future__ import annotations

import gc
from collections import Counter, OrderedDict, UserDict, defaultdict, namedtuple
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np
import pytest
import torch
from loader_packs import alike, fresh, noise
from running import Threads, until
from torch.utils.data import DataLoader

from packer import CudaPrefetcher, PackedDataset, PackedLoader, collate
from packer.loading.to_device import Normalize, map_tensors

Pair = namedtuple("Pair", "images targets")
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@dataclass
class Open:
    images: torch.Tensor
    name: str
    made: int = field(default=0, init=False)
    parts: list = field(default_factory=list)

    def __post_init__(self):
        self.made += 1


@dataclass(frozen=True, slots=True)
class Closed:
    images: torch.Tensor
    count: int = field(init=False, default=7)


def images_of(seed=0, shape=(2, 3, 4, 5), dtype="uint8"):
    n, channels, height, width = shape
    array = noise(seed, n * height, width, channels, dtype).reshape(n, height, width, channels)
    return torch.from_numpy(array).permute(0, 3, 1, 2)


def one(batch, **options):
    """What becomes of one batch."""
    (there,) = CudaPrefetcher([batch], "cpu", **options)
    return there


def test_every_nesting_keeps_its_types():
    images, labels = images_of(), torch.arange(2)
    there = one(
        (
            Pair(images, [labels, {"text": "a", "n": 5, "none": None}]),
            OrderedDict(b=labels, a=(images,)),
            [np.arange(3), "text", 2.5],
            Closed(labels),
            Open(labels, "o", [labels]),
        ),
        dtype=torch.float32,
    )
    pair, ordered, mixed, closed, opened = there
    assert isinstance(pair, Pair) and pair.images.dtype == torch.float32
    assert type(pair.targets[1]) is dict and pair.targets[1] == {"text": "a", "n": 5, "none": None}
    assert type(ordered) is OrderedDict and list(ordered) == ["b", "a"]
    assert ordered["a"][0].dtype == torch.uint8  # only the first images are converted
    assert isinstance(mixed[0], np.ndarray) and mixed[1:] == ["text", 2.5]
    assert isinstance(closed, Closed) and closed.count == 7 and torch.equal(closed.images, labels)
    assert isinstance(opened, Open) and opened.made == 1 and opened.name == "o" and opened.parts[0] is not None


def test_mappings_of_every_kind():
    tensors = {"x": torch.arange(3), "deep": {"y": torch.ones(1)}}
    doubled = []

    def double(item):
        doubled.append(map_tensors(item, lambda tensor, images: tensor * 2))
        return doubled[-1]

    there = double(defaultdict(list, tensors))
    assert type(there) is defaultdict and there.default_factory is list and there["new"] == []
    assert type(double(Counter(a=3))) is Counter
    user = UserDict(tensors)
    there = double(user)
    assert type(there) is UserDict and there["x"].tolist() == [0, 2, 4] and user["x"].tolist() == [0, 1, 2]
    assert double(MappingProxyType(tensors))["deep"]["y"].item() == 2
    assert tensors["x"].tolist() == [0, 1, 2]


def test_the_batch_itself_is_left_as_it_is():
    images = images_of()
    batch = {"images": images, "list": [images]}
    one(batch, mean=MEAN, std=STD)
    assert batch["images"] is images and images.dtype == torch.uint8 and batch["list"][0] is images


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, None])
@pytest.mark.parametrize("depth", ["uint8", "uint16"])
def test_normalising_is_torchvisions(dtype, depth):
    images = images_of(dtype=depth)
    full = 255 if depth == "uint8" else 65535
    mean, std = (torch.tensor(v, dtype=torch.float64).view(3, 1, 1) for v in (MEAN, STD))
    expected = (torch.from_numpy(images.numpy().astype(np.float64)) / full - mean) / std
    there = one(images, mean=MEAN, std=STD, dtype=dtype)
    assert there.dtype == (dtype or torch.float32)
    close = {torch.float16: 1e-3, torch.bfloat16: 8e-3}.get(dtype, 2e-6)
    torch.testing.assert_close(there.double(), expected, rtol=close, atol=close)
    assert there.is_contiguous(memory_format=torch.channels_last)
    plain = one(images, dtype=torch.float32)
    torch.testing.assert_close(plain.double(), expected * std + mean, rtol=2e-6, atol=2e-6)


def test_other_dtypes_and_memory_formats():
    images = images_of()
    assert one(images) is images or torch.equal(one(images), images)
    whole = one(images, dtype=torch.int32)
    assert whole.dtype == torch.int32 and torch.equal(whole, images.int())
    there = one(images, dtype=torch.float32, memory_format=torch.contiguous_format)
    assert there.is_contiguous() and torch.equal(there, one(images, dtype=torch.float32))
    gray = images_of(shape=(2, 1, 4, 5))
    torch.testing.assert_close(one(gray, mean=[0.5], std=[0.25]), (gray / 255 - 0.5) / 0.25)


def test_impossible_normalising_is_refused():
    for options in ({"mean": MEAN}, {"std": STD}, {"mean": MEAN, "std": (1, 0, 1)}, {"mean": MEAN, "std": (1,)},
                    {"mean": MEAN, "std": STD, "dtype": torch.uint8}):  # fmt: skip
        with pytest.raises(ValueError, match=r"mean and std|fractions"):
            Normalize(**options)
    with pytest.raises(ValueError, match="mean has 3 channels, but the images have 1"):
        one(images_of(shape=(2, 1, 4, 5)), mean=MEAN, std=STD)
    with pytest.raises(ValueError, match="depth must be at least 1"):
        CudaPrefetcher([], "cpu", depth=0)


@pytest.mark.parametrize(
    "batch",
    [torch.rand(2, 3, 4, 5), [torch.zeros((3, 4, 5)).byte()], (5, "a")],
    ids=["fractions", "a list of images", "no tensor"],
)
def test_a_batch_without_images_is_not_left_unnormalised_in_silence(batch):
    assert alike(one(batch), batch)
    with pytest.raises(ValueError, match="mean, std and dtype are for uint8 images"):
        one(batch, mean=MEAN, std=STD)


def test_empty_short_and_long():
    for n in (0, 1, 2, 9):
        batches = [images_of(seed) for seed in range(n)]
        prefetcher = CudaPrefetcher(batches, "cpu", depth=3)
        assert len(prefetcher) == n
        for _ in range(2):  # again, from the beginning
            assert alike(list(prefetcher), batches)
    assert list(CudaPrefetcher(iter([]), "cpu", mean=MEAN, std=STD)) == []


class Mine(Exception):
    pass


def test_what_the_loader_raises_comes_out_in_its_place():
    def batches():
        yield images_of(0)
        yield images_of(1)
        raise Mine("third")

    received = []
    with pytest.raises(Mine, match="third"):
        for images in CudaPrefetcher(batches(), "cpu", depth=4):
            received.append(images)
    assert len(received) == 2


def test_leaving_early_closes_the_loader():
    closed = []

    def batches():
        try:
            for seed in range(100):
                yield images_of(seed)
        finally:
            closed.append(True)

    for _ in CudaPrefetcher(batches(), "cpu"):
        break
    assert closed
    iteration = iter(CudaPrefetcher(batches(), "cpu"))
    next(iteration)
    del iteration
    gc.collect()
    assert len(closed) == 2


def test_no_thread_is_left(pack):
    new = Threads()
    loader = PackedLoader(pack("raw"), 2, threads=3)
    for _ in CudaPrefetcher(loader, "cpu"):
        assert len(new)
        break
    assert until(lambda: not new, 60)
    iteration = iter(CudaPrefetcher(loader, "cpu"))
    next(iteration)
    with pytest.raises(Mine):
        iteration.throw(Mine())
    assert until(lambda: not new, 60)


@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
@pytest.mark.parametrize("workers", [0, 2])
def test_around_a_plain_dataloader(pack, workers):
    data = PackedDataset(pack("raw"))
    loader = DataLoader(data, 4, collate_fn=collate, num_workers=workers, persistent_workers=workers > 0)
    prefetcher = CudaPrefetcher(loader, "cpu", mean=MEAN, std=STD, dtype=torch.float16)
    assert len(prefetcher) == 7
    expected = torch.stack([image for image, _ in fresh(pack("raw"))])
    for _ in range(2):
        batches = list(prefetcher)
        images = torch.cat([images for images, _ in batches])
        assert torch.equal(images, Normalize(MEAN, STD, torch.float16)(expected))
        assert torch.cat([targets for _, targets in batches]).tolist() == data.targets


@pytest.mark.parametrize("kind", ["raw", "jpeg", "boxes"])
def test_the_loader_does_the_same_by_itself(pack, kind):
    options = {"mean": MEAN, "std": STD, "dtype": torch.bfloat16}
    inside = list(PackedLoader(pack(kind), 4, device="cpu", **options))
    assert alike(inside, list(CudaPrefetcher(PackedLoader(pack(kind), 4), "cpu", **options)))
    assert inside[0][0].dtype == torch.bfloat16 and inside[0][0].is_contiguous(memory_format=torch.channels_last)


def test_a_default_device_does_not_matter(pack):
    """`torch.set_default_device("meta")` would otherwise make buffers and targets of no memory."""
    expected = list(PackedLoader(pack("raw"), 4, target_transform=int))
    with torch.device("meta"):
        assert alike(list(PackedLoader(pack("raw"), 4, target_transform=int)), expected)
