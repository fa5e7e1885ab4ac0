"""A real GPU, where there is one: its batches are the host's, whatever the loop around them does."""

from __future__ import annotations

import pytest
import torch
from loader_packs import alike, fresh
from torch.utils.data import DataLoader

from packer import (
    CenterCrop,
    CudaPrefetcher,
    PackedDataset,
    PackedLoader,
    RandomResizedCrop,
    Resize,
    collate,
)
from packer.loading.seeded_transform import seeded_globals
from packer.loading.to_device import map_tensors

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")

ORDER = {"shuffle": True, "seed": 3}
KINDS = ("raw", "jpeg", "png", "gray", "gray16", "copy", "photos", "boxes")
SIZE = {"copy": Resize((16, 20)), "photos": RandomResizedCrop(32), "boxes": None}


def here(batch):
    return map_tensors(batch, lambda tensor, images: tensor.cpu())


def there(path, batch_size=4, **options):
    """An epoch's batches, checked to lie on the GPU, brought back."""
    batches = list(PackedLoader(path, batch_size, device="cuda", **{**ORDER, **options}))
    for images, _ in batches:
        assert images.is_cuda and images.is_contiguous(memory_format=torch.channels_last)
    return [here(batch) for batch in batches]


@pytest.mark.parametrize("kind", KINDS)
def test_bytes_are_the_hosts(pack, kind):
    options = {**ORDER, "crop": SIZE.get(kind), "flip": True}
    assert alike(there(pack(kind), **options), list(PackedLoader(pack(kind), 4, **options)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("normal", [{}, {"mean": (0.4, 0.5, 0.6), "std": (0.2, 0.25, 0.3)}], ids=["plain", "normal"])
def test_normalized_images_are_the_hosts_to_the_last_bit_of_their_type(pack, dtype, normal):
    options = {**ORDER, "dtype": dtype, **normal}
    steps = {torch.float32: 1e-6, torch.float16: 2e-3, torch.bfloat16: 2e-2}[dtype]
    pairs = zip(there(pack("raw"), **options), PackedLoader(pack("raw"), 4, **options), strict=True)
    for (images, targets), (same, labels) in pairs:
        assert images.dtype == dtype and torch.equal(targets, labels)
        torch.testing.assert_close(images.float(), same.float(), rtol=steps, atol=steps)


@pytest.mark.parametrize(
    "crop", [None, CenterCrop((8, 6)), RandomResizedCrop(8), RandomResizedCrop((20, 9), interpolation="area"),
             CenterCrop(6, resize=13), Resize((20, 24), "nearest")], ids=str,
)  # fmt: skip
def test_the_cache_on_the_device_gives_the_hosts_batches(pack, crop):
    options = {**ORDER, "crop": crop, "flip": True}
    exact = crop is None or crop == CenterCrop((8, 6))
    pairs = zip(there(pack("raw"), cache="device", **options), PackedLoader(pack("raw"), 4, **options), strict=True)
    for (images, targets), (same, labels) in pairs:
        assert torch.equal(targets, labels) and images.dtype == torch.uint8
        assert (images.int() - same.int()).abs().max() <= (0 if exact else 2)


@pytest.mark.parametrize("prefetch", [1, 2, 5])
@pytest.mark.parametrize("cache", [None, "ram", "device"])
def test_tensors_are_not_written_while_the_loop_works_with_them(pack, prefetch, cache):
    """The loop runs far ahead of the GPU, drops each batch at once and takes its memory for something else."""
    expected = [images.long().sum().item() for images, _ in PackedLoader(pack("raw"), 3, **ORDER)] * 4
    loader = PackedLoader(pack("raw"), 3, device="cuda", prefetch=prefetch, cache=cache, **ORDER)
    sums = []
    for _ in range(4):
        loader.set_epoch(0)
        for images, _ in loader:
            torch.cuda._sleep(2_000_000)  # about a millisecond: the sum is far from computed when `images` is gone
            sums.append(images.long().sum())
            del images
            torch.full((3, 3, 10, 12), 255, dtype=torch.uint8, device="cuda")
    assert [value.item() for value in sums] == expected


def test_a_loop_on_a_stream_of_its_own(pack):
    expected = [images.long().sum().item() for images, _ in PackedLoader(pack("jpeg"), 4, **ORDER)]
    own, sums = torch.cuda.Stream(), []
    with torch.cuda.stream(own):
        for images, _ in PackedLoader(pack("jpeg"), 4, device="cuda", **ORDER):
            torch.cuda._sleep(2_000_000)
            sums.append(images.long().sum())
    own.synchronize()
    assert [value.item() for value in sums] == expected


def test_left_early_and_two_at_once(pack):
    expected = there(pack("raw"))
    loader = PackedLoader(pack("raw"), 4, device="cuda", **ORDER)
    for _ in range(5):
        loader.set_epoch(0)
        assert alike(here(next(iter(loader))), expected[0])
    loader.set_epoch(0)
    pairs = list(zip(loader, PackedLoader(pack("raw"), 4, device="cuda", **ORDER), strict=True))
    assert all(alike(here(a), expected[i]) and alike(here(b), expected[i]) for i, (a, b) in enumerate(pairs))


def test_a_state_goes_on_in_the_middle_on_the_device_and_on_the_host(pack):
    options = {**ORDER, "crop": RandomResizedCrop(8), "flip": True}
    expected = there(pack("raw"), **options)
    stopped = PackedLoader(pack("raw"), 4, device="cuda", **options)
    for number, _ in enumerate(stopped, 1):
        if number == 3:
            break
    for device in ("cuda", "cpu"):
        loader = PackedLoader(pack("raw"), 4, device=device, **options)
        loader.load_state_dict(stopped.state_dict())
        assert alike([here(batch) for batch in loader], expected[3:])


def test_an_error_of_the_loop_leaves_the_loader_usable(pack):
    loader = PackedLoader(pack("raw"), 4, device="cuda", **ORDER)
    with pytest.raises(ZeroDivisionError):
        for _ in loader:
            raise ZeroDivisionError
    loader.set_epoch(0)
    assert alike([here(batch) for batch in loader], there(pack("raw")))


@pytest.mark.parametrize("kind", ["raw", "boxes"])
@pytest.mark.parametrize("workers", [0, 2])
def test_the_prefetcher_around_a_dataloader(pack, kind, workers):
    context = "spawn" if workers else None
    plain = DataLoader(
        PackedDataset(pack(kind)), 4, num_workers=workers, collate_fn=collate, pin_memory=True,
        multiprocessing_context=context,
    )  # fmt: skip
    batches = [here(batch) for batch in CudaPrefetcher(plain, "cuda")]
    expected = fresh(pack(kind))
    assert sum(len(images) for images, _ in batches) == len(expected)
    assert alike([image for images, _ in batches for image in images], [image for image, _ in expected])


def test_time_is_counted_and_the_device_is_named(pack):
    loader = PackedLoader(pack("raw"), 4, device="cuda:0", **ORDER)
    assert sum(len(images) for images, _ in loader) == 27
    assert loader.stats()["copy_s"] > 0 and "cuda:0" in repr(loader)


def test_a_device_that_is_not_there(pack):
    from packer.errors import UsageError

    with pytest.raises(UsageError, match="device: is cuda:99, which torch cannot use here"):
        PackedLoader(pack("raw"), 4, device="cuda:99")


def test_a_seed_is_that_of_the_gpu_too():
    """timm's erasing draws its noise there; afterwards the generators are where they were."""

    def noise(seed):
        with seeded_globals(seed, torch.device("cuda")):
            return torch.rand(8, device="cuda")

    before = torch.cuda.get_rng_state()
    assert torch.equal(noise(1), noise(1)) and not torch.equal(noise(1), noise(2))
    assert torch.equal(torch.cuda.get_rng_state(), before)
