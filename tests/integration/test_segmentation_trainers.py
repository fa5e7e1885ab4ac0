"""Segmentation as it is trained: transforms move images and masks together, and models of four libraries learn."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from drawn_masks import COLORS, draw_mask, image_of, nearest_by_hand, picture, write_files
from numpy.typing import NDArray
from PIL import Image
from torch.utils.data import DataLoader

import packer
from packer import BuildOptions, PackedDataset, PackedLoader, RandomResizedCrop, as_tv_tensors, build_pack

pytestmark = pytest.mark.filterwarnings("ignore")
RECORDS, SIDE, IDS, IGNORED = 12, 48, 4, 255
NORM: dict[str, Any] = {"mean": (0.5,) * 3, "std": (0.25,) * 3}
local = threading.local()


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Steps this small take ten times as long in threads that wait for a core."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def files() -> dict[str, tuple[NDArray[Any], NDArray[Any]]]:
    """Name -> the pixels of the image and of its mask, as they were drawn."""
    masks = {f"im{seed}": draw_mask(seed, 64, SIDE, IDS) for seed in range(RECORDS)}
    return {name: (COLORS[mask], mask) for name, mask in masks.items()}


@pytest.fixture(scope="module")
def drawn(files: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pack of these, with raw pixels."""
    home = tmp_path_factory.mktemp("drawn")
    written = {f"images/{name}.png": image_of(mask) for name, (_, mask) in files.items()}
    written |= {f"masks/{name}.png": picture(mask) for name, (_, mask) in files.items()}
    source = write_files(home / "set", written)
    build_pack(BuildOptions(str(source), str(home / "set.lmdb"), workers=1, encode="raw"))
    return home / "set.lmdb"


@pytest.fixture(scope="module")
def camvid(real_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Thirty photos of streets with masks of eleven classes, as they are."""
    out = tmp_path_factory.mktemp("camvid") / "camvid.lmdb"
    build_pack(BuildOptions(str(real_data / "masks_camvid"), str(out), workers=1, encode="copy", ignore_id=11))
    return out


@pytest.fixture(scope="module")
def camvid_files(real_data: Path) -> dict[str, tuple[NDArray[Any], NDArray[Any]]]:
    """As `files`, of these."""
    paths = (real_data / "masks_camvid" / "images").iterdir()
    return {path.stem: (pixels_of(path), pixels_of(path.parents[1] / "masks" / path.name)) for path in paths}


def pixels_of(path: Path) -> NDArray[Any]:
    return np.asarray(Image.open(path))


def aligned(image: torch.Tensor, mask: torch.Tensor) -> bool:
    """Whether each pixel has the color of its id; where it was not mixed with others."""
    pixels, ids = image.permute(1, 2, 0).numpy().astype(int), mask.numpy()
    found = np.full(ids.shape, -1)
    for number, color in enumerate(COLORS[:IDS].astype(int)):
        found[(abs(pixels - color) < 6).all(axis=-1)] = number
    return bool((found[found >= 0] == ids[found >= 0]).all()) and (found >= 0).mean() > 0.6


# -- transforms


def seeded(transform: Any) -> Any:
    """For torchvision, which takes no generator: its numbers come from torch's own, seeded for this sample alone."""

    def both(image: torch.Tensor, mask: torch.Tensor, generator: torch.Generator) -> Any:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(generator.initial_seed())
            return transform(*as_tv_tensors(image, mask))

    return both


def test_transforms_of_v2_keep_image_and_mask_aligned(drawn: Path) -> None:
    v2 = pytest.importorskip("torchvision.transforms.v2", reason="torchvision is optional, and not installed here")
    chain = v2.Compose([v2.RandomCrop(40), v2.RandomHorizontalFlip(), v2.Resize((60, 80)), v2.ToPureTensor()])
    data = PackedDataset(drawn, transforms=seeded(chain), seed=3)
    for image, mask in data:
        assert image.shape == (3, 60, 80) and mask.shape == (60, 80) and mask.dtype == torch.int64
        assert aligned(image, mask) and not aligned(image, mask.flip(-1))
        assert set(mask.unique().tolist()) <= set(range(IDS))
    images, masks = next(iter(DataLoader(data, RECORDS, num_workers=2, multiprocessing_context="fork")))
    assert all(torch.equal(images[i], data[i][0]) and torch.equal(masks[i], data[i][1]) for i in range(RECORDS))


def test_a_flip_of_v2_flips_both(drawn: Path) -> None:
    v2 = pytest.importorskip("torchvision.transforms.v2", reason="torchvision is optional, and not installed here")
    data = PackedDataset(drawn, transforms=seeded(v2.RandomHorizontalFlip()), seed=3)
    flipped = 0
    for (image, mask), (whole, ids) in zip(data, PackedDataset(drawn), strict=True):
        is_flipped = torch.equal(image, whole.flip(-1))
        assert is_flipped or torch.equal(image, whole)
        assert torch.equal(mask, ids.flip(-1) if is_flipped else ids)
        flipped += is_flipped
    assert 0 < flipped < RECORDS


@pytest.mark.parametrize("size", [(24, 32), (31, 41), (96, 128), (100, 77)])
def test_torchvision_resizes_masks_by_nearest_pixels(size: tuple[int, int], drawn: Path) -> None:
    """Its Resize takes ids of the mask, whatever the filter of the image; "nearest-exact" are packer's own places."""
    v2 = pytest.importorskip("torchvision.transforms.v2", reason="torchvision is optional, and not installed here")
    pack = packer.open_pack(drawn)
    image, mask = as_tv_tensors(*PackedDataset(pack)[0])
    smooth = v2.Resize(size)(image, mask)[1]
    assert smooth.shape == size and set(smooth.unique().tolist()) <= set(range(IDS))
    exact = v2.functional.resize(mask, size, v2.InterpolationMode.NEAREST_EXACT)
    wanted = nearest_by_hand(np.asarray(pack.mask(0)), *size)
    (_, whole), *_ = PackedLoader(pack, 1, crop=packer.Resize(size))
    assert np.array_equal(whole[0].numpy(), wanted)
    assert np.array_equal(exact.numpy(), wanted)


def test_masks_beside_other_targets_become_masks() -> None:
    kinds = pytest.importorskip("torchvision.tv_tensors", reason="torchvision is optional, and not installed here")
    mask = torch.zeros(30, 40, dtype=torch.int64)
    _, target = as_tv_tensors(torch.zeros(3, 30, 40), {"mask": mask, "boxes": torch.zeros(1, 4), "image_id": 3})
    assert type(target["mask"]) is kinds.Mask and type(target["boxes"]) is kinds.BoundingBoxes


def by_albumentations(image: torch.Tensor, mask: torch.Tensor, generator: torch.Generator) -> Any:
    """One Compose for each thread: it holds random numbers of its own."""
    from albumentations import Compose, HorizontalFlip, RandomCrop, Resize, Rotate

    if not hasattr(local, "compose"):
        steps = [RandomCrop(40, 40), HorizontalFlip(), Rotate(20, fill_mask=IGNORED), Resize(60, 64)]
        local.compose = Compose(steps)
    local.compose.set_random_seed(generator.initial_seed() % 2**32)
    made = local.compose(image=image.permute(1, 2, 0).numpy(), mask=mask.numpy().astype(np.int32))
    pixels = torch.from_numpy(np.ascontiguousarray(made["image"])).permute(2, 0, 1)
    return pixels, torch.from_numpy(np.ascontiguousarray(made["mask"])).long()


def test_albumentations_moves_masks(drawn: Path) -> None:
    pytest.importorskip("albumentations", reason="albumentations is optional, and not installed here")
    data = PackedDataset(drawn, transforms=by_albumentations, seed=5)
    samples = list(data)
    for image, mask in samples:
        assert mask.shape == (60, 64) and set(mask.unique().tolist()) <= {*range(IDS), IGNORED}
        inside = torch.where(mask == IGNORED, 0, 255).to(torch.uint8)
        assert aligned(torch.where(mask == IGNORED, 255, image), mask) and inside.any()
    for threads in (1, 3):
        batches = list(PackedLoader(drawn, 5, transforms=by_albumentations, seed=5, threads=threads))
        images, masks = (torch.cat(columns) for columns in zip(*batches, strict=True))
        assert all(torch.equal(images[i], a) and torch.equal(masks[i], b) for i, (a, b) in enumerate(samples))


# -- trainers


def loader_of(pack: Path, size: int = 4, **options: Any) -> PackedLoader:
    """As a user writes it, for a side of 32 that each model takes; the last batch may be short."""
    crop = RandomResizedCrop(32, scale=(0.5, 1), interpolation="bilinear")
    return PackedLoader(pack, size, shuffle=True, crop=crop, flip=True, seed=1, drop_last=True, **NORM, **options)


def loss_of(scores: torch.Tensor, masks: torch.Tensor, ignored: int = IGNORED) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(scores, masks, ignore_index=ignored)


def falls(losses: list[float], each: int, most: float = 0.8) -> bool:
    """Whether the mean loss of the last epoch is below so much of that of the first; `each` has so many steps."""
    print("losses", losses)
    return np.isfinite(losses).all() and np.mean(losses[-each:]) < most * np.mean(losses[:each])


def train(model: torch.nn.Module, loader: Iterable[Any], epochs: int, ignored: int = IGNORED) -> list[float]:
    """The loss of each step of a model of torchvision."""
    model.train()
    optimizer, losses = torch.optim.Adam(model.parameters(), 2e-3), []
    for _ in range(epochs):
        for images, masks in loader:
            loss = loss_of(model(images)["out"], masks, ignored)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(("name", "pixels"), [("drawn", "files"), ("camvid", "camvid_files")])
def test_batches_are_what_the_files_give(name: str, pixels: str, threads: int, request: Any) -> None:
    """The same draws, cut and resized by Pillow and by hand from the files."""
    loader = loader_of(request.getfixturevalue(name), with_index=True, threads=threads)
    pack, files = loader.pack, request.getfixturevalue(pixels)
    for epoch in range(2):
        loader.set_epoch(epoch)
        for images, masks, records in loader:
            params = loader._host.filler.params(records.numpy(), epoch)
            for i, record in enumerate(records.tolist()):
                image, ids = files[Path(pack.paths[record]).stem]
                x, y, wide, high = map(int, params.regions[i])
                shown = Image.fromarray(image[y : y + high, x : x + wide]).resize((32, 32), Image.Resampling.BILINEAR)
                ids = nearest_by_hand(ids[y : y + high, x : x + wide], 32, 32)
                if params.flipped[i]:
                    shown, ids = shown.transpose(Image.Transpose.FLIP_LEFT_RIGHT), ids[:, ::-1]
                assert np.array_equal(masks[i].numpy(), ids)
                levels = (images[i].permute(1, 2, 0).numpy() * 0.25 + 0.5) * 255
                assert np.abs(levels - np.asarray(shown)).max() <= 1.01


@pytest.mark.parametrize("crop", [None, RandomResizedCrop(24), packer.CenterCrop(56)], ids=str)
def test_dali_gives_the_same_masks(crop: Any, drawn: Path, tmp_path: Path) -> None:
    pytest.importorskip("nvidia.dali", reason="DALI is optional, and not installed here")
    from packer import dali

    packer.convert(drawn, tmp_path / "jpeg.lmdb", encode="jpeg", quality=95)
    options = {"shuffle": True, "crop": crop, "flip": True, "seed": 3}
    theirs = [masks.clone() for _, masks in dali.pipeline(tmp_path / "jpeg.lmdb", 4, device="cpu", **options)]
    ours = [masks for _, masks in PackedLoader(tmp_path / "jpeg.lmdb", 4, **options)]
    assert len(ours) == 3 and all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def classes_of(pack: packer.Pack) -> tuple[int, int]:
    """How many classes a model has, and the id that its loss ignores; the last name of CamVid is of what is ignored."""
    facts = pack.manifest.masks["mask"]
    assert facts.ignore is not None
    return min(len(facts.classes) or IDS, facts.ignore), facts.ignore


def test_the_masks_of_streets_are_of_eleven_classes(camvid: Path) -> None:
    pack = packer.open_pack(camvid)
    assert classes_of(pack) == (11, 11)
    present = {int(value) for i in range(len(pack)) for value in np.unique(np.asarray(pack.mask(i)))}
    assert present <= set(range(12)) and len(present) > 8


@pytest.mark.parametrize("name", ["drawn", "camvid"])
def test_two_epochs_of_deeplab(name: str, request: pytest.FixtureRequest) -> None:
    segmentation = pytest.importorskip("torchvision.models.segmentation", reason="torchvision is not installed here")
    loader = loader_of(request.getfixturevalue(name), 2)
    ids, ignored = classes_of(loader.pack)
    torch.manual_seed(0)
    model = segmentation.deeplabv3_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=ids)
    losses = train(model, loader, 2, ignored)
    assert len(losses) == 2 * len(loader) and falls(losses, len(loader), 0.9)


@pytest.mark.parametrize("name", ["drawn", "camvid"])
def test_two_epochs_of_segmentation_models(name: str, request: pytest.FixtureRequest) -> None:
    """A Unet with its losses and its metrics, which leave out the ignored id."""
    smp = pytest.importorskip("segmentation_models_pytorch", reason="segmentation_models_pytorch is not installed here")
    loader = loader_of(request.getfixturevalue(name), 2)
    ids, ignored = classes_of(loader.pack)
    torch.manual_seed(0)
    model = smp.Unet("resnet18", encoder_weights=None, classes=ids)
    dice = smp.losses.DiceLoss("multiclass", ignore_index=ignored)
    focal = smp.losses.FocalLoss("multiclass", ignore_index=ignored)
    optimizer = torch.optim.Adam(model.parameters(), 4e-3)
    losses, scores = [], []
    for _ in range(2):
        for images, masks in loader:
            given = model(images)
            loss = dice(given, masks) + focal(given, masks)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            stats = smp.metrics.get_stats(
                given.argmax(1), masks, mode="multiclass", num_classes=ids, ignore_index=ignored
            )
            scores.append(smp.metrics.iou_score(*stats, reduction="micro").item())
    assert len(losses) == 2 * len(loader) and falls(losses, len(loader), 0.9)
    assert np.mean(scores[-len(loader) :]) > np.mean(scores[: len(loader)])


@pytest.mark.parametrize("name", ["drawn", "camvid"])
def test_two_epochs_of_segformer_by_the_trainer_of_transformers(name: str, tmp_path: Path, request: Any) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is optional, and not installed here")
    data = PackedDataset(request.getfixturevalue(name))
    ids, ignored = classes_of(data.pack)
    torch.manual_seed(0)
    config = transformers.SegformerConfig(
        num_labels=ids, depths=[1] * 4, hidden_sizes=[8, 16, 24, 32], num_attention_heads=[1, 1, 2, 2],
        decoder_hidden_size=16, semantic_loss_ignore_index=ignored,
    )  # fmt: skip
    seen: list[Any] = []

    def inputs(samples: Any) -> dict[str, torch.Tensor]:
        images, masks = packer.collate(samples)
        seen.append(masks)
        return {"pixel_values": (images / 255 - 0.5) / 0.25, "labels": torch.stack(list(masks))}

    arguments = transformers.TrainingArguments(
        str(tmp_path), per_device_train_batch_size=1, num_train_epochs=2, learning_rate=1e-2, use_cpu=True,
        report_to=[], disable_tqdm=True, remove_unused_columns=False, save_strategy="no", logging_strategy="epoch",
        dataloader_pin_memory=False, seed=0,
    )  # fmt: skip
    model = transformers.SegformerForSemanticSegmentation(config)
    trainer = transformers.Trainer(model, arguments, train_dataset=data, data_collator=inputs)
    trainer.train()
    losses = [line["loss"] for line in trainer.state.log_history if "loss" in line]
    assert len(seen) == 2 * len(data) and len(losses) == 2 and falls(losses, 1)


@pytest.mark.parametrize("kind", ["loader", "data module"])
def test_an_epoch_of_lightning(kind: str, drawn: Path) -> None:
    lightning = pytest.importorskip("lightning", reason="lightning is not installed")
    from packer.lightning import PackedDataModule

    class Module(lightning.LightningModule):  # type: ignore[misc,name-defined]
        """Notes the loss of each step, and the shapes of what is validated."""

        def __init__(self) -> None:
            super().__init__()
            conv = torch.nn.Conv2d
            self.model = torch.nn.Sequential(conv(3, 16, 3, padding=1), torch.nn.ReLU(), conv(16, IDS, 1))
            self.losses: list[float] = []
            self.validated: list[torch.Tensor] = []

        def training_step(self, batch: Any, _: int) -> torch.Tensor:
            images, masks = batch
            loss = loss_of(self.model(images), masks)
            self.losses.append(loss.item())
            return loss

        def validation_step(self, batch: Any, _: int) -> None:
            self.validated += batch[1]

        def configure_optimizers(self) -> Any:
            return torch.optim.Adam(self.parameters(), 2e-2)

    torch.manual_seed(0)
    module = Module()
    trainer = lightning.Trainer(
        max_epochs=1, accelerator="cpu", devices=1, logger=False, enable_progress_bar=False, num_sanity_val_steps=0,
        enable_model_summary=False, enable_checkpointing=False,
    )  # fmt: skip
    if kind == "loader":
        trainer.fit(module, loader_of(drawn, 1), PackedLoader(drawn, 4, **NORM))
    else:
        shared = {"crop": RandomResizedCrop(32), "flip": True, "threads": 1, **NORM}
        trainer.fit(
            module, datamodule=PackedDataModule(drawn, drawn, batch_size=1, eval_options={"crop": None}, **shared)
        )
    assert len(module.losses) == RECORDS and falls(module.losses, 3)
    pack = packer.open_pack(drawn)
    assert all(np.array_equal(mask.numpy(), pack.mask(i)) for i, mask in enumerate(module.validated))
    assert len(module.validated) == RECORDS
