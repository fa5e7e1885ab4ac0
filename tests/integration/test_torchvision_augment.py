"""`augment=`: torchvision's random transforms of each image of a batch, against torchvision itself."""

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

from packer import BuildOptions, CropView, PackedLoader, RandomResizedCrop, build_pack
from packer.errors import UsageError
from packer.loading.seeded_transform import AUGMENT_STREAM, SeededTransform
from packer.samplers import RepeatedSampler, ShuffleSampler
from packer.samplers.order import VISIT, derive

pytest.importorskip("torchvision", reason="torchvision is optional, and not installed here")
from torchvision.transforms import v2

pytestmark = pytest.mark.filterwarnings("ignore")
RECORDS, SEED, EPOCH = 20, 7, 3
SIMCLR = v2.Compose([
    v2.RandomApply([v2.ColorJitter(0.8, 0.8, 0.8, 0.2)], p=0.8),
    v2.RandomGrayscale(p=0.2),
    v2.RandomApply([v2.GaussianBlur(9, (0.1, 2.0))], p=0.5),
    v2.RandomSolarize(128, p=0.2),
])  # fmt: skip
TIMM = v2.Compose([
    v2.RandAugment(),
    v2.ToDtype(torch.float32, scale=True),
    v2.Normalize((0.5,) * 3, (0.25,) * 3),
    v2.RandomErasing(0.6, value="random"),
])  # fmt: skip
CHOSEN = {
    "simclr": SIMCLR, "timm": TIMM, "randaugment": v2.RandAugment(3, 12, interpolation="bilinear", fill=[9, 8, 7]),
    "trivial": v2.TrivialAugmentWide(), "auto": v2.AutoAugment(), "erasing": v2.RandomErasing(0.7, value=[1, 2, 3]),
    "distort": v2.RandomPhotometricDistort(p=0.7), "fixed": v2.GaussianBlur(5, 1.0), "gray": v2.Grayscale(3),
    "others": v2.RandomOrder([
        v2.RandomChoice([v2.RandomInvert(0.5), v2.RandomPosterize(3, 0.5)], p=[0.3, 0.7]),
        v2.RandomApply(torch.nn.ModuleList([v2.RandomEqualize(0.5), v2.RandomAutocontrast(0.5)]), p=0.7),
        v2.RandomAdjustSharpness(1.7, 0.5), v2.RandomChannelPermutation(),
    ]),
}  # fmt: skip


def pixels(count: int, side: int = 32) -> torch.Tensor:
    """Noise over slopes, uint8 (count, 3, side, side), channels last in memory."""
    slope = np.linspace(20, 160, side)[:, None] + np.linspace(0, 40, side)
    noise = np.random.default_rng(0).integers(0, 56, (count, side, side, 3))
    return torch.from_numpy((slope[None, :, :, None] + noise).astype(np.uint8)).permute(0, 3, 1, 2)


def alone(transform: Any, images: torch.Tensor, samples: list[int], crops: int = 1, first: int = 0) -> torch.Tensor:
    """What torchvision makes of each image by itself, under the seed of its sample."""
    made = []
    for row, image in enumerate(images):
        crop, sample = first + row // len(samples), samples[row % len(samples)]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derive(SEED ^ AUGMENT_STREAM, EPOCH, sample, crop))
            made.append(transform(image.contiguous()))
    assert len(images) == crops * len(samples)
    return torch.stack(made)


@pytest.mark.parametrize("name", CHOSEN)
def test_images_are_those_of_torchvision(name: str) -> None:
    images, samples = pixels(48), np.arange(24) + VISIT * (np.arange(24) % 3)
    before = torch.random.get_rng_state()
    expected = alone(CHOSEN[name], images, samples.tolist(), crops=2, first=5)
    found = SeededTransform(CHOSEN[name], SEED, first_crop=5)(images.clone(), samples, EPOCH)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert found.dtype == expected.dtype and not torch.equal(expected.to(torch.uint8), images)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6 if found.is_floating_point() else 0)


@pytest.mark.parametrize("transform", [v2.GaussianNoise(), v2.AugMix(), v2.ElasticTransform(5.0)], ids=repr)
def test_transforms_that_draw_while_they_change(transform: Any) -> None:
    images, samples = pixels(8), np.arange(8)
    chain = v2.Compose([v2.RandomInvert(0.5), v2.ToDtype(torch.float32, scale=True), transform])
    if isinstance(transform, v2.AugMix):
        chain = v2.Compose([v2.RandomInvert(0.5), transform])
    one = SeededTransform(chain, SEED)
    found = one(images.clone(), samples, EPOCH)
    assert torch.equal(found, one(images.clone(), samples, EPOCH))
    half = [one(images[part].clone(), samples[part], EPOCH) for part in (slice(0, 3), slice(3, 8))]
    assert torch.equal(found, torch.cat(half))
    assert not torch.equal(found, one(images.clone(), samples, EPOCH + 1))


# -- distributions

DRAWS = 10_000
LEVEL = 1.95 * (2 / DRAWS) ** 0.5
"""Of the two-sample Kolmogorov-Smirnov test at 0.1%."""


def distance(ours: list[float], theirs: list[float]) -> float:
    """The largest difference between two empirical distributions."""
    a, b = np.sort(ours), np.sort(theirs)
    every = np.concatenate([a, b])
    return float(
        np.abs(np.searchsorted(a, every, "right") / len(a) - np.searchsorted(b, every, "right") / len(b)).max()
    )


LIKE = torch.arange(3 * 64 * 48).view(3, 64, 48).to(torch.uint8)


def ours(transform: Any, sample: int) -> list[Any]:
    """The parameters of a sample: those of each change."""
    found = []
    for change in SeededTransform(transform, SEED).changes(derive(SEED ^ AUGMENT_STREAM, EPOCH, sample, 0), LIKE):
        cells = [cell.cell_contents for cell in change.apply.__closure__ or ()]
        params = next((one for one in cells if isinstance(one, dict) and "interpolation" not in one), None)
        found.append(change.key if params is None else params)
    return found


def theirs(transform: Any) -> list[Any]:
    """Those that torchvision draws next."""
    found: list[Any] = []

    def record(image: torch.Tensor, name: str, magnitude: float, **_: Any) -> torch.Tensor:
        found.extend([(name, magnitude)] if name != "Identity" else [])
        return image

    if hasattr(transform, "_apply_image_or_video_transform"):
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(type(transform), "_apply_image_or_video_transform", staticmethod(record))
            transform(LIKE)
        return found
    if transform.__class__ in (v2.RandomGrayscale, v2.RandomSolarize):
        changed = not torch.equal(transform(LIKE), LIKE)
        return [transform.make_params([LIKE])] if changed else []
    return [transform.make_params([LIKE])]


def numbers(changes: list[Any]) -> dict[str, float]:
    """Numbers that stand for the parameters of an image."""
    flat = {"changes": float(len(changes))}
    for place, params in enumerate(changes):
        if isinstance(params, tuple):  # an operation and its magnitude
            flat |= {f"name {place}": float(sum(params[0].encode())), f"magnitude {place}": params[1]}
            continue
        for name, value in params.items():
            each = value.flatten().tolist() if isinstance(value, torch.Tensor) else np.ravel(value).tolist()
            flat |= {f"{name} {i}": float(x) for i, x in enumerate(each) if x is not None}
    return flat


@pytest.mark.parametrize(("transform", "names"), [
    (v2.ColorJitter(0.8, 0.7, (0.2, 1.9), 0.2), {"brightness_factor 0", "hue_factor 0", "fn_idx 0"}),
    (v2.GaussianBlur(23, (0.1, 2.0)), {"sigma 0"}),
    (v2.RandomErasing(1.0), {"i 0", "j 0", "h 0", "w 0"}),
    (v2.RandomGrayscale(0.2), {"changes"}),
    (v2.RandomSolarize(128, 0.3), {"changes"}),
    (v2.RandAugment(), {"name 0", "magnitude 0", "name 1", "changes"}),
    (v2.TrivialAugmentWide(), {"name 0", "magnitude 0"}),
], ids=lambda value: type(value).__name__)  # fmt: skip
def test_parameters_are_distributed_as_torchvisions(transform: Any, names: set[str]) -> None:
    with torch.random.fork_rng(devices=[]):
        mine = [numbers(ours(transform, sample)) for sample in range(DRAWS)]
        torch.manual_seed(11)
        his = [numbers(theirs(transform)) for _ in range(DRAWS)]
    assert names <= {name for one in his for name in one}
    for name in {name for one in (*mine, *his) for name in one}:
        found = distance([one.get(name, -9.0) for one in mine], [one.get(name, -9.0) for one in his])
        assert found < LEVEL, (name, found)


# -- loaders


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """20 images in four classes."""
    root = tmp_path_factory.mktemp("classes")
    for i, image in enumerate(pixels(RECORDS, 24).permute(0, 2, 3, 1).numpy()):
        folder = root / "src" / "abcd"[i % 4]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(folder / f"{i:02}.png")
    build_pack(BuildOptions(str(root / "src"), str(root / "pack"), workers=1, encode="raw", shard_bytes=4000))
    return root / "pack"


def by_record(loaders: list[PackedLoader], epoch: int = EPOCH) -> dict[int, torch.Tensor]:
    found = {}
    for loader in loaders:
        loader.set_epoch(epoch)
        for images, _, records in loader:
            found |= dict(zip(records.tolist(), images, strict=True))
    return found


def equal(a: dict[int, torch.Tensor], b: dict[int, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[record], b[record]) for record in a)


@pytest.mark.parametrize("name", ["simclr", "timm", "trivial"])
def test_images_do_not_depend_on_batches_threads_or_ranks(classes: Path, name: str) -> None:
    options = {"augment": CHOSEN[name], "seed": SEED, "with_index": True}
    whole = by_record([PackedLoader(classes, RECORDS, **options)])
    plain = by_record([PackedLoader(classes, RECORDS, with_index=True, dtype=whole[0].dtype)])
    expected = alone(CHOSEN[name], torch.stack([plain[i] for i in range(RECORDS)]).to(torch.uint8)
                     if name != "timm" else stored(classes), list(range(RECORDS)))  # fmt: skip
    torch.testing.assert_close(torch.stack([whole[i] for i in range(RECORDS)]), expected, rtol=0, atol=1e-6)
    for size, more in ((3, {"threads": 1}), (7, {"threads": 2, "shuffle": True}), (4, {"cache": "device"})):
        assert equal(whole, by_record([PackedLoader(classes, size, **options, **more)])), (size, more)
    ranks = [ShuffleSampler(RECORDS, seed=SEED, rank=rank, world_size=2) for rank in range(2)]
    assert equal(whole, by_record([PackedLoader(classes, 5, sampler=rank, **options) for rank in ranks]))
    for other in ({"seed": SEED + 1}, {}):
        changed = by_record([PackedLoader(classes, 5, **{**options, **other})], EPOCH + (not other))
        assert not equal(whole, changed)


def stored(path: Path) -> torch.Tensor:
    return torch.cat([images for images, _ in PackedLoader(path, RECORDS)])


def test_visits_of_a_record_differ(classes: Path) -> None:
    sampler = RepeatedSampler(RECORDS, repeats=2, seed=0)
    loader = PackedLoader(classes, RECORDS, sampler=sampler, augment=SIMCLR, with_index=True)
    images, _, records = next(iter(loader))
    assert records[0] == records[1] and records.dtype == torch.int64 and records.max() < RECORDS
    assert sum(not torch.equal(*images[row : row + 2]) for row in range(0, RECORDS, 2)) >= 8


def test_a_resumed_epoch_changes_images_as_the_uninterrupted_one(classes: Path) -> None:
    options = {"shuffle": True, "seed": 2, "augment": SIMCLR}
    loader = PackedLoader(classes, 4, **options)
    whole = [images for images, _ in loader]
    loader.set_epoch(0)
    iteration = iter(loader)
    next(iteration), next(iteration)
    state = json.loads(json.dumps(loader.state_dict()))
    resumed = PackedLoader(classes, 4, **options)
    resumed.load_state_dict(state)
    assert all(torch.equal(a, b) for a, (b, _) in zip(whole[2:], resumed, strict=True))
    with pytest.raises(UsageError, match=r"state: has augment 'Compose.* here None; use the same augment"):
        PackedLoader(classes, 4, shuffle=True, seed=2).load_state_dict(state)
    with pytest.raises(UsageError, match="state: has augment None"):
        PackedLoader(classes, 4, **options).load_state_dict(PackedLoader(classes, 4, shuffle=True, seed=2).state_dict())


def test_views_have_their_own(classes: Path) -> None:
    gray, crop = v2.Grayscale(3), RandomResizedCrop(16)
    options = {"seed": SEED, "shuffle": True, "mean": (0.5,) * 3, "std": (0.5,) * 3}
    views = {"one": CropView(crop, 2), "two": CropView(crop, 1, augment=gray)}
    plain = PackedLoader(classes, 5, views={"one": (2, crop), "two": (1, crop)}, seed=SEED, shuffle=True)
    loader = PackedLoader(classes, 5, views=views, augment=SIMCLR, **options)
    for one in (plain, loader):
        one.set_epoch(EPOCH)
    order = ShuffleSampler(RECORDS, seed=SEED)
    order.set_epoch(EPOCH)
    records = list(order)
    for number, ((images, labels), (originals, same)) in enumerate(zip(loader, plain, strict=True)):
        samples = records[5 * number : 5 * number + 5]
        expected = {"one": alone(SIMCLR, originals["one"], samples, 2), "two": gray(originals["two"])}
        for name, made in expected.items():
            torch.testing.assert_close(images[name], (made.float() / 255 - 0.5) / 0.5)
        assert torch.equal(labels, same)
    assert loader.state_dict()["augment"].keys() == {"one", "two"}


def test_a_default_device_does_not_matter(classes: Path) -> None:
    expected = next(iter(PackedLoader(classes, 5, augment=SIMCLR, seed=SEED)))[0]
    transform = SeededTransform(SIMCLR, SEED)
    images = stored(classes)[:5]
    torch.set_default_device("meta")
    try:
        found = transform(images, np.arange(5), 0)
    finally:
        torch.set_default_device(None)
    assert torch.equal(found, expected)


def test_repeated_crops_differ(classes: Path) -> None:
    loader = PackedLoader(classes, 5, repeats=3, crop=RandomResizedCrop(16), augment=TIMM, seed=SEED)
    loader.set_epoch(EPOCH)
    plain = PackedLoader(classes, 5, repeats=3, crop=RandomResizedCrop(16), seed=SEED)
    plain.set_epoch(EPOCH)
    images, originals = next(iter(loader))[0], next(iter(plain))[0]
    torch.testing.assert_close(images, alone(TIMM, originals, list(range(5)), 3), rtol=0, atol=1e-6)


def test_mixup_takes_floats_of_augment(classes: Path) -> None:
    images, targets = next(iter(PackedLoader(classes, 5, augment=TIMM, mixup=0.2)))
    assert images.dtype == torch.float32 and targets.shape == (5, 4)
    with pytest.raises(UsageError, match="mixup: needs float images"):
        PackedLoader(classes, 5, augment=SIMCLR, mixup=0.2)


@pytest.mark.parametrize(("options", "message"), [
    ({"augment": [v2.RandAugment()]}, "augment: must be a transform of torchvision.transforms.v2, got list; write v2"),
    ({"augment": TIMM, "mean": (0.5,) * 3, "std": (0.5,) * 3}, "augment: returns floats, which mean, std and dtype w"),
    ({"augment": v2.Resize(9)}, "augment: makes images of .3, 24, 24. images of .3, 9, 9.; leave the size to crop="),
    ({"augment": v2.GaussianBlur(51)}, "augment: cannot change torch.uint8 images of 3 x 24 x 24: "),
    ({"augment": SIMCLR, "color_jitter": (0.4,)}, "color_jitter: cannot be combined with augment; write v2.ColorJit"),
])  # fmt: skip
def test_what_cannot_change_images_is_refused(classes: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        PackedLoader(classes, 4, **options)


@pytest.mark.parametrize(("options", "message"), [
    ({"augment": v2.RandomApply([v2.ToDtype(torch.float32)], p=0.5)}, "augment: makes torch.float32 of some images on"),
    ({"augment": SIMCLR, "transform": lambda image: image.flatten()}, "augment: needs images, but the transform retur"),
])  # fmt: skip
def test_what_only_a_batch_shows_is_refused(classes: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        list(PackedLoader(classes, 20, seed=1, **options))


def test_with_boxes_only_colors_change(tmp_path: Path) -> None:
    listed = tmp_path / "list.csv"
    listed.write_text("path,x1,y1,x2,y2,class\na.png,1,2,9,8,cat\nb.png,3,4,12,13,dog\n")
    for name in "ab":
        Image.fromarray(pixels(1, 16)[0].permute(1, 2, 0).numpy()).save(tmp_path / f"{name}.png")
    pack = tmp_path.parent / f"{tmp_path.name}-pack"
    build_pack(BuildOptions(str(tmp_path), str(pack), workers=1, encode="raw", labels=f"list:{listed}"))
    boxes = [target["boxes"] for _, targets in PackedLoader(pack, 2) for target in targets]
    changed = PackedLoader(pack, 2, augment=v2.Compose([SIMCLR, v2.RandomErasing(0.5)]))
    found = [target["boxes"] for _, targets in changed for target in targets]
    assert all(torch.equal(a, b) for a, b in zip(boxes, found, strict=True))
    for transform, name in ((v2.Compose([SIMCLR, v2.RandAugment()]), "RandAugment"), (v2.AugMix(), "AugMix")):
        with pytest.raises(UsageError, match=f"augment: has {name}, which may move what boxes, points and masks name"):
            PackedLoader(pack, 2, augment=transform)


@pytest.mark.parametrize("page", ["training.md", "guides/ssl.md"])
def test_the_pages_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, page: str) -> None:
    draw_classes(tmp_path / "imgs", each=16)
    monkeypatch.chdir(tmp_path)
    for name in ("imgs", "shapes"):
        build_pack(BuildOptions("imgs", f"{name}.lmdb", resize="64x64", workers=1))
    assert run_elsewhere(ROOT / "docs" / page, "test_torchvision_augment.py") == 1
