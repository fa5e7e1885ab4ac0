"""packer.timm: batches against those of timm's own loader, pixel by pixel where nothing is random."""

from __future__ import annotations

import inspect
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import HERE, Launch
from doc_blocks import ROOT, run_elsewhere
from drawn import draw, draw_classes
from PIL import Image

from packer import BuildOptions, PackedDataset, build_pack
from packer.errors import UsageError
from packer.loading.user_functions import generator_of
from packer.samplers.order import derive, uniform

pytest.importorskip("timm", reason="timm is optional, and not installed here")
import timm
from timm.data import AugMixDataset, FastCollateMixup, create_transform
from timm.data import create_dataset as timm_dataset
from timm.data import create_loader as timm_loader

from packer import timm as packed

SIZES = ((61, 90), (90, 61), (64, 64), (120, 75), (47, 48))
COUNT = 26
CPU = {"device": torch.device("cpu"), "num_workers": 0}
A3 = {"auto_augment": "rand-m6-mstd0.5-inc1", "interpolation": "bicubic", "color_jitter": None}
A1 = {"auto_augment": "rand-m7-mstd0.5-inc1", "interpolation": "random", "color_jitter": None}
DEIT = {
    "auto_augment": "rand-m9-mstd0.5-inc1", "interpolation": "bicubic", "color_jitter": 0.3, "re_prob": 0.25,
    "re_mode": "pixel",
}  # fmt: skip
RECIPES = {
    "A3": (A3, {"mixup_alpha": 0.1, "cutmix_alpha": 1.0, "label_smoothing": 0.0}),
    "A1": (A1, {"mixup_alpha": 0.2, "cutmix_alpha": 1.0, "label_smoothing": 0.1}),
    "DeiT-S": (DEIT, {"mixup_alpha": 0.8, "cutmix_alpha": 1.0, "label_smoothing": 0.1}),
}
"""Options of create_loader and of FastCollateMixup: ResNet strikes back (arXiv:2110.00476), DeiT (arXiv:2012.12877)."""


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Any:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """files/train/CLASS/*.jpg, and packs/train.lmdb and packs/val.lmdb of them."""
    home = tmp_path_factory.mktemp("timm")
    for number in range(COUNT):
        draw(home / "files" / "train" / "abc"[number % 3] / f"{number:02}.jpg", number, *SIZES[number % len(SIZES)])
    (home / "packs").mkdir()
    for name, encode in (("train", "copy"), ("val", "raw")):
        out = str(home / "packs" / f"{name}.lmdb")
        build_pack(BuildOptions(str(home / "files" / "train"), out, workers=1, encode=encode))
    return home


def of_timm(home: Path, size: Any, batch: int, **options: Any) -> Any:
    return timm_loader(timm_dataset("", str(home / "files"), split="train"), size, batch, **CPU, **options)


def of_packer(home: Path, size: Any, batch: int, split: str = "train", **options: Any) -> Any:
    return packed.create_loader(packed.create_dataset("", home / "packs", split), size, batch, **CPU, **options)


@pytest.mark.parametrize("split", ["train", "val"])
@pytest.mark.parametrize("options", [
    {"interpolation": "bicubic", "crop_pct": 0.95}, {}, {"interpolation": "lanczos", "crop_pct": 1.0},
    {"interpolation": "bicubic", "crop_mode": "squash", "crop_pct": 0.9}, {"crop_pct": 1.3},
    {"img_dtype": torch.bfloat16}, {"fp16": True}, {"use_prefetcher": False},
    {"mean": (0.5,) * 3, "std": (0.5,) * 3, "interpolation": "nearest"},
], ids=str)  # fmt: skip
def test_evaluation_has_the_same_numbers(home: Path, split: str, options: dict[str, Any]) -> None:
    theirs, ours = of_timm(home, (3, 56, 56), 7, **options), of_packer(home, (3, 56, 56), 7, split, **options)
    assert isinstance(ours, packed.PackedTimmLoader) and len(ours) == len(theirs)
    for (images, targets), (found, labels) in zip(theirs, ours, strict=True):
        assert torch.equal(images, found) and torch.equal(targets, labels)
        assert (images.dtype, images.stride(), targets.dtype) == (found.dtype, found.stride(), labels.dtype)


@pytest.mark.parametrize("size", [48, (3, 40, 56)], ids=str)
def test_training_without_augmentation_has_the_same_numbers(home: Path, size: Any) -> None:
    """Only the order differs, which a transform of timm does not see."""
    options = {"is_training": True, "no_aug": True, "interpolation": "bicubic"}
    transform = create_transform(size, use_prefetcher=True, **options)
    loader = of_packer(home, size, COUNT, mean=(0.0,) * 3, std=(1 / 255,) * 3, **options)
    ((images, _),) = loader
    (records,) = loader.sampler.rank_batches(COUNT, 0)
    for image, record in zip(images, records.tolist(), strict=True):
        theirs = transform(loader.dataset[record][0])
        assert torch.equal(image.round().to(torch.uint8), theirs)


def changed_by_timm(loader: Any, records: Any, options: dict[str, Any]) -> list[torch.Tensor]:
    """Images as timm's transforms make them of the crops, flips and seeds that packer has drawn in epoch 0."""
    seed, crop = torch.initial_seed(), loader.loader._augmentation.crop
    _, secondary, _ = create_transform(48, is_training=True, use_prefetcher=True, separate=True, **options)
    numbers = uniform(seed, 0, records, crop.num_random + 1)
    made = []
    for record, drawn in zip(records.tolist(), numbers, strict=True):
        image = loader.dataset[record][0]
        sides = (np.array([float(side)]) for side in image.size)
        x, y, width, height = crop.regions(*sides, drawn[None, 1:])[0].astype(int).tolist()
        filter = crop.filters[int(crop.choices(drawn[None, 1:])[0])]
        image = image.crop((x, y, x + width, y + height)).resize((48, 48), Image.Resampling[filter.upper()])
        if drawn[0] < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        sample = generator_of(seed, 0, record).initial_seed()
        random.seed(sample)
        np.random.seed(sample & 0xFFFFFFFF)
        made.append(torch.from_numpy(np.array(secondary(image))).permute(2, 0, 1))
    return made


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("mode", ["batch", "elem", "half"])
def test_recipes_with_the_same_draws(home: Path, recipe: str, mode: str) -> None:
    """Cropped, changed, mixed, normalized and erased by timm: pixels as near as torch's resize is to Pillow's."""
    options, mixing = RECIPES[recipe]
    torch.manual_seed(5)
    collate = FastCollateMixup(num_classes=3, mode=mode, **mixing)
    loader = of_packer(home, 48, 12, is_training=True, collate_fn=collate, **options)
    assert isinstance(loader, packed.PackedTimmLoader)
    theirs = of_timm(home, 48, 12, is_training=True, collate_fn=collate, **options)
    for number, (images, targets) in enumerate(loader):
        records = list(loader.sampler.rank_batches(12, 0))[number]
        plain = changed_by_timm(loader, records, {**options, "re_prob": 0.0})
        labels = [loader.dataset[record][1] for record in records.tolist()]
        seed = derive(torch.initial_seed() ^ packed._STREAM, 0, number, 0)
        random.seed(seed)
        np.random.seed(seed & 0xFFFFFFFF)
        torch.manual_seed(seed)
        expected, wanted = collate(list(zip(plain, labels, strict=True)))
        expected = expected.float().sub_(theirs.mean).div_(theirs.std)
        if theirs.random_erasing is not None:
            expected = theirs.random_erasing(expected)
        torch.manual_seed(5)
        torch.testing.assert_close(targets, wanted)
        # three levels are 0.05; what a later operation makes of one level is more
        assert ((images - expected).abs() > 0.06).float().mean() < 0.004
        assert (images - expected).abs().mean() < 0.004
    assert number == len(loader) - 1 == COUNT // 12 - 1


@pytest.mark.parametrize("split", ["train", "val"])
@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.filterwarnings("error")
def test_a_model_trains(home: Path, recipe: str, split: str) -> None:
    options, mixing = RECIPES[recipe]
    collate = FastCollateMixup(num_classes=3, **mixing)
    loader = of_packer(home, 32, 8, split, is_training=True, collate_fn=collate, **options)
    model = timm.create_model("test_resnet", pretrained=False, num_classes=3)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for epoch in range(2):
        loader.sampler.set_epoch(epoch)
        for images, targets in loader:
            loss = torch.nn.functional.cross_entropy(model(images), targets)
            loss.backward()
            optimizer.step()
            assert loss.isfinite() and targets.shape == (8, 3) and images.is_contiguous()


def test_epochs_differ_and_repeat(home: Path) -> None:
    def epoch(loader: Any, number: int) -> torch.Tensor:
        loader.set_epoch(number)
        return torch.cat([images for images, _ in loader])

    options = {"is_training": True, "collate_fn": FastCollateMixup(num_classes=3), **DEIT}
    first, again = of_packer(home, 32, 8, **options), of_packer(home, 32, 8, **options)
    state = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()
    one, two = epoch(first, 0), epoch(first, 1)
    assert torch.equal(one, epoch(again, 0)) and torch.equal(two, epoch(again, 1)) and not torch.equal(one, two)
    assert state[0] == random.getstate() and state[1] == np.random.get_state()[1].tolist()
    assert torch.equal(state[2], torch.get_rng_state())


def test_mixup_can_be_turned_off(home: Path) -> None:
    loader = of_packer(
        home, 32, 8, is_training=True, collate_fn=FastCollateMixup(num_classes=3, label_smoothing=0.3), **A3
    )
    assert loader.mixup_enabled
    loader.mixup_enabled = False
    for _, targets in loader:
        assert torch.allclose(targets.sort(1).values, torch.tensor([0.1, 0.1, 0.8]).expand(8, 3))


BY_TIMM = [
    ({"auto_augment": "augmix-m3"}, "AugMixAugment"), ({"train_crop_mode": "rkrc"}, "ResizeKeepRatio"),
    ({"num_aug_splits": 3, "auto_augment": "rand-m3"}, "num_aug_splits"),
    ({"is_training": False, "crop_mode": "border"}, "ResizeKeepRatio"),
    ({"is_training": False, "crop_border_pixels": 2}, "TrimBorder"),
    ({"input_size_choices": (24, 32)}, "input_size_choices"),
]  # fmt: skip


@pytest.mark.parametrize(("options", "why"), BY_TIMM, ids=[str(one) for one, _ in BY_TIMM])
def test_what_packer_does_not_do_is_left_to_timm(home: Path, options: dict[str, Any], why: str) -> None:
    dataset = packed.create_dataset("", home / "packs", "train")
    given = {"is_training": True, **options, **CPU}
    assert why in packed.why_timm(dataset, 32, 4, **given)
    if "num_aug_splits" in options:
        dataset = AugMixDataset(dataset, 3)
        assert "AugMixDataset" in packed.why_timm(dataset, 32, 4, **given)
    loader = packed.create_loader(dataset, 32, 4, **given)
    assert type(loader).__module__ == "timm.data.loader"
    images, targets = next(iter(loader))
    assert len(images) == len(targets) and images.shape[1] == 3
    assert not packed.why_timm(packed.create_dataset("", home / "packs", "train"), 32, 4, is_training=True, **DEIT)


def test_the_arguments_are_those_of_timm(home: Path) -> None:
    assert inspect.signature(packed.create_loader) == inspect.signature(timm_loader)
    assert set(inspect.signature(timm_loader).parameters) <= packed._KNOWN
    with pytest.raises(TypeError, match="batch_sise"):
        of_packer(home, 32, 8, batch_sise=3)


def test_packs_are_found_by_their_split(home: Path, tmp_path: Path) -> None:
    of_folder = packed.create_dataset("", home / "packs", "train")
    of_pack = packed.create_dataset(str(home / "packs" / "val.lmdb"), split="anything")
    theirs = timm_dataset("", str(home / "files"), split="train")
    assert len(of_pack) == len(of_folder) == len(theirs) == COUNT
    assert of_folder.filenames() == theirs.filenames()
    assert of_folder.filename(3, basename=True) == Path(theirs.filename(3)).name
    for index in (0, 9):
        (mine, label), (image, target) = of_folder[index], theirs[index]
        assert label == target and np.array_equal(np.asarray(mine), np.asarray(image))
    with pytest.raises(UsageError, match=r"no pack for the split test; call one test\.lmdb"):
        packed.create_dataset("", home / "packs", "test")
    with pytest.raises(UsageError, match="class_map: is not for packs"):
        packed.create_dataset("", home / "packs", class_map="classes.txt")
    with pytest.raises(UsageError, match="root: is not given"):
        packed.create_dataset("")


def test_errors(home: Path, tmp_path: Path) -> None:
    pack = home / "packs" / "train.lmdb"
    with pytest.raises(UsageError, match="dataset: has transforms of its own"):
        packed.create_loader(PackedDataset(pack, transform=lambda image: image), 32, 8)
    with pytest.raises(UsageError, match="batch_size: is 5, and mixup takes pairs"):
        list(of_packer(home, 32, 5, is_training=True, collate_fn=FastCollateMixup(num_classes=3)))
    with pytest.raises(UsageError, match=f"has {COUNT} images, which fill no batch of 64 on 1 ranks; take smaller"):
        of_packer(home, 32, 64, is_training=True)
    assert "scale must be" in packed.why_timm(pack, 32, 8, is_training=True, scale=(0.0, 1.0), **CPU)
    draw(tmp_path / "plain" / "0.jpg", 0)
    build_pack(BuildOptions(str(tmp_path / "plain"), str(tmp_path / "plain.lmdb"), workers=1))
    with pytest.raises(UsageError, match="has no class labels"):
        packed.create_loader(tmp_path / "plain.lmdb", 32, 8)


def test_ranks(launch: Launch, numbered_pack: Path, tmp_path: Path) -> None:
    """47 records on two ranks: with batches of 23, one rank would have had a batch more than the other."""
    launch(HERE / "timm_ranks.py", numbered_pack, tmp_path, ranks=2)
    ranks = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    evaluated = [record for rank in ranks for batch in rank["eval"] for record in batch]
    assert sorted(evaluated) == list(range(47))
    assert [len(rank["eval"]) for rank in ranks] == [2, 2]
    trained = [record for rank in ranks for batch in rank["train"] for record in batch]
    assert len(trained) == len({*trained}) == 40 and [len(rank["train"]) for rank in ranks] == [5, 5]
    repeated = [record for rank in ranks for batch in rank["repeated"] for record in batch]
    assert len(repeated) == 40 and max(map(repeated.count, repeated)) == 3 and len({*repeated}) == 14


def test_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draw_classes(tmp_path / "imgs", each=8)
    monkeypatch.chdir(tmp_path)
    build_pack(BuildOptions("imgs", "train.lmdb", workers=1))
    assert run_elsewhere(ROOT / "docs" / "guides" / "timm.md", "test_timm_loader.py") == 2
