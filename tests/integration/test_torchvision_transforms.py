"""torchvision's transforms v2: per sample with seeded generators, and of whole batches: mixup, cutmix, color jitter."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from doc_blocks import ROOT, run_elsewhere
from drawn import draw_classes
from PIL import Image
from torch.utils.data import DataLoader

from packer import BuildOptions, PackedDataset, PackedLoader, RandomResizedCrop, build_pack, collate
from packer.errors import UsageError
from packer.samplers import SequentialSampler, ShuffleSampler

pytest.importorskip("torchvision", reason="torchvision is optional, and not installed here")
from torchvision.transforms import v2

pytestmark = pytest.mark.filterwarnings("ignore")
RECORDS = 20


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """20 images of noise in four classes."""
    root = tmp_path_factory.mktemp("classes")
    for i in range(RECORDS):
        folder = root / "src" / "abcd"[i % 4]
        folder.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(i).integers(0, 256, (16, 16, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{i:02}.png")
    build_pack(BuildOptions(str(root / "src"), str(root / "pack"), workers=1, encode="raw", shard_bytes=4000))
    return root / "pack"


chain = v2.Compose([v2.RandomResizedCrop(12), v2.RandomHorizontalFlip(), v2.ColorJitter(0.4, 0.4, 0.4, 0.1)])


def seeded(image: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """For processes: torch's own generator belongs to all threads."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(generator.initial_seed())
        return chain(image)


def drawn(image: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """For threads, too: only the numbers of the generator."""
    angle, factor = (torch.rand(2, generator=generator) * torch.tensor([30.0, 1.0])).tolist()
    return v2.functional.adjust_brightness(v2.functional.rotate(image, angle), 0.5 + factor)


def test_a_chain_of_v2_is_the_same_for_any_workers_and_ranks(classes: Path) -> None:
    data = PackedDataset(classes, transform=seeded, seed=7)
    data.set_epoch(1)
    expected = torch.stack([data[i][0] for i in range(RECORDS)])
    before = torch.random.get_rng_state()
    for workers in (0, 2):
        for ranks in (1, 2):
            found = torch.zeros_like(expected)
            for rank in range(ranks):
                sampler = ShuffleSampler(data, seed=3, rank=rank, world_size=ranks)
                same = ShuffleSampler(len(data), seed=3, rank=rank, world_size=ranks)
                sampler.set_epoch(1)  # it moves that of the dataset, too
                same.set_epoch(1)
                numbers = list(same)
                context = "fork" if workers else None
                loader = DataLoader(data, 3, sampler=sampler, collate_fn=collate, num_workers=workers,
                                    multiprocessing_context=context, generator=torch.Generator())  # fmt: skip
                found[numbers] = torch.cat([images for images, _ in loader])
            assert torch.equal(found, expected), (workers, ranks)
    assert torch.equal(torch.random.get_rng_state(), before)
    data.set_epoch(2)
    assert not torch.equal(data[0][0], expected[0])


def test_functions_of_v2_are_the_same_for_any_threads(classes: Path) -> None:
    found = []
    for threads, size in ((1, 4), (3, 5), (2, 20)):
        loader = PackedLoader(classes, size, transform=drawn, seed=7, threads=threads)
        found.append(torch.cat([images for images, _ in loader]))
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])
    assert not torch.equal(found[0], torch.cat([images for images, _ in PackedLoader(classes, 4)]))


# -- whole batches

FLOATS: dict[str, Any] = {"dtype": torch.float32}


def batches(path: Path, epoch: int = 0, size: int = 4, **options: Any) -> list[Any]:
    loader = PackedLoader(path, size, shuffle=True, **{"seed": 2, **options})
    loader.set_epoch(epoch)
    return list(loader)


def same(a: list[Any], b: list[Any]) -> bool:
    pairs = [pair for one, other in zip(a, b, strict=True) for pair in zip(one, other, strict=True)]
    return all(torch.equal(*pair) for pair in pairs)


@pytest.mark.parametrize("options", [
    {"mixup": 0.4, **FLOATS}, {"cutmix": 1.0}, {"mixup": 1.0, "cutmix": 1.0, "mean": (0.5,) * 3, "std": (0.2,) * 3},
    {"cutmix": 1.0, "cache": "device"}, {"mixup": 1.0, "color_jitter": (0.4, 0.4), **FLOATS},
], ids=str)  # fmt: skip
def test_mixed_batches(classes: Path, options: dict[str, Any]) -> None:
    plain = {name: value for name, value in options.items() if name not in ("mixup", "cutmix", "color_jitter")}
    before = torch.random.get_rng_state()
    found = batches(classes, **options)
    assert torch.equal(torch.random.get_rng_state(), before)
    changed = 0
    for (images, targets), (originals, labels) in zip(found, batches(classes, **plain), strict=True):
        assert images.shape == originals.shape and images.dtype == originals.dtype
        assert images.is_contiguous(memory_format=torch.channels_last)
        assert targets.shape == (len(labels), 4) and torch.allclose(targets.sum(1), torch.ones(len(labels)))
        one_hot = torch.nn.functional.one_hot(labels, 4)
        assert ((targets > 0) <= (one_hot + one_hot.roll(1, 0) > 0)).all()
        changed += not torch.equal(images, originals)
    assert changed >= 3
    assert same(found, batches(classes, threads=1, prefetch=1, **options))
    for other in ({"epoch": 1}, {"seed": 3}):
        assert not same(found, batches(classes, **options, **other))


def test_colors_change_before_images_are_normalized(classes: Path) -> None:
    options = {"mean": (0.5,) * 3, "std": (0.25,) * 3, "color_jitter": (0.5, 0.5, 0.5, 0.1)}
    bytes_ = batches(classes, color_jitter=options["color_jitter"])
    found = batches(classes, **options)
    plain = batches(classes)
    for (images, targets), (jittered, _), (originals, labels) in zip(found, bytes_, plain, strict=True):
        assert jittered.dtype == torch.uint8 and not torch.equal(jittered, originals) and torch.equal(targets, labels)
        assert torch.allclose(images, (jittered.float() / 255 - 0.5) / 0.25, atol=1e-5)


@pytest.mark.parametrize("options", [{"mixup": 1.0, **FLOATS}, {"color_jitter": (0.5,)}], ids=str)
def test_a_resumed_epoch_mixes_as_the_uninterrupted_one(classes: Path, options: dict[str, Any]) -> None:
    whole = batches(classes, epoch=1, **options)
    loader = PackedLoader(classes, 4, shuffle=True, seed=2, **options)
    loader.set_epoch(1)
    iteration = iter(loader)
    first = [next(iteration), next(iteration)]
    state = loader.state_dict()
    resumed = PackedLoader(classes, 4, shuffle=True, seed=2, **options)
    resumed.load_state_dict(state)
    assert same(first + list(resumed), whole)


def test_ranks_draw_the_same_share_for_a_global_batch(classes: Path) -> None:
    one_of_each = np.arange(RECORDS).reshape(4, 5).T.ravel()
    shares = []
    for rank in range(2):
        sampler = SequentialSampler(RECORDS, seed=2, indices=one_of_each, rank=rank, world_size=2)
        loader = PackedLoader(classes, 2, sampler=sampler, mixup=1.0, **FLOATS)
        shares.append([targets.max().item() for _, targets in loader])
    assert shares[0] == shares[1] and len(set(shares[0])) == 5 and max(shares[0]) < 1


def test_what_cannot_be_mixed_is_refused(classes: Path) -> None:
    for options, message in (
        ({"mixup": 1.0}, "mixup: needs float images; pass mean and std, or dtype=torch.float32"),
        ({"mixup": 0.0, **FLOATS}, "mixup: must be a number above 0, got 0.0"),
        ({"cutmix": True}, "cutmix: must be a number above 0, got True"),
        ({"cutmix": 1.0, "target_transform": int}, "cutmix: needs the pack's own class labels"),
        ({"color_jitter": (-1,)}, "color_jitter: must be brightness, contrast, saturation and hue"),
        ({"color_jitter": 5}, "color_jitter: must be brightness, contrast, saturation and hue, got 5; write color_"),
        ({"color_jitter": ()}, "color_jitter: must be brightness, contrast, saturation and hue, got (); write color_"),
    ):
        with pytest.raises(UsageError) as refused:
            PackedLoader(classes, 4, **options)
        assert message in str(refused.value)


def test_a_number_of_numpy_is_a_number(classes: Path) -> None:
    wanted = batches(classes, mixup=0.25, **FLOATS)
    assert same(wanted, batches(classes, mixup=np.float32(0.25), **FLOATS))


def test_colors_of_images_with_alpha_are_refused(tmp_path: Path) -> None:
    for i in range(4):
        (tmp_path / "src" / "ab"[i % 2]).mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((8, 8, 4), i, np.uint8)).save(tmp_path / "src" / "ab"[i % 2] / f"{i}.png")
    build_pack(BuildOptions(str(tmp_path / "src"), str(tmp_path / "pack"), workers=1, encode="raw", mode="unchanged"))
    with pytest.raises(UsageError, match="color_jitter: needs gray or RGB images, but those of the pack have 4 channe"):
        PackedLoader(tmp_path / "pack", 4, color_jitter=(0.4,))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mixup": 1.0, "transform": lambda image: image}, "mixup: needs float images, but the transform returns tor"),
        ({"cutmix": 1.0, "transform": lambda image: image.flatten()}, "cutmix: needs images, but the transform retu"),
        ({"color_jitter": (0.4,), "transform": lambda image: image.flatten()}, r"tensors of shape \(768,\); leave it"),
    ],
)
def test_a_transform_must_leave_images_to_mix(classes: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        batches(classes, **options)


def test_a_state_of_other_mixing_is_refused(classes: Path) -> None:
    given = {"mixup": 0.2, "cutmix": 1.0, "color_jitter": (0.4, 0.4, 0.4, 0.1)}
    state = json.loads(json.dumps(PackedLoader(classes, 4, **given, **FLOATS).state_dict()))
    PackedLoader(classes, 4, **{**given, "color_jitter": [0.4, (0.6, 1.4), 0.4, 0.1]}, **FLOATS).load_state_dict(state)
    for name, other in (("mixup", 0.3), ("cutmix", None), ("color_jitter", (0.4,))):
        loader = PackedLoader(classes, 4, **{**given, name: other}, **FLOATS)
        with pytest.raises(UsageError, match=f"state: has {name} .*; use the same {name}, or set_epoch in place of"):
            loader.load_state_dict(state)
    with pytest.raises(UsageError, match=r"state: has mixup None, here 0\.2"):
        PackedLoader(classes, 4, mixup=0.2, **FLOATS).load_state_dict(PackedLoader(classes, 4).state_dict())


def test_progressive_resizing_with_mixup(classes: Path) -> None:
    loader = PackedLoader(classes, 4, shuffle=True, crop=RandomResizedCrop(8), mixup=0.2, seed=0, **FLOATS)
    for side in (8, 12):
        loader.set_crop(RandomResizedCrop(side))
        assert all(images.shape[2:] == (side, side) and targets.shape[1] == 4 for images, targets in loader)


def test_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What docs/training.md shows."""
    draw_classes(tmp_path / "imgs", each=16)
    monkeypatch.chdir(tmp_path)
    build_pack(BuildOptions("imgs", "imgs.lmdb", resize="32x32", workers=1))
    assert run_elsewhere(ROOT / "docs" / "training.md", "test_torchvision_transforms.py") == 1
