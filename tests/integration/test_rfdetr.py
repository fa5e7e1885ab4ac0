"""RF-DETR trains from packs as it does from files: target for target, and loss for loss.

Needs RF-DETR: ``pip install 'rfdetr[train]'``. Models are made from their config, nothing is fetched.
"""

from __future__ import annotations

import csv
import json
import shutil
import warnings
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from conftest import HERE
from doc_blocks import ROOT, blocks_of
from drawn import pixels
from PIL import Image
from running import good
from torch.utils.data import DataLoader, RandomSampler

from packer import BuildOptions, build_pack, join_packs, open_pack
from packer.errors import NotInstalled, UsageError
from packer.loading.augmentation import CropParams
from packer.loading.decoding import sizes_of
from packer.loading.detr_batches import AlignedSampler, SquareCrop
from packer.samplers.order import uniform

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    rfdetr = pytest.importorskip("rfdetr", reason="needs RF-DETR: pip install 'rfdetr[train]'")
    pytest.importorskip("pytorch_lightning", reason="needs RF-DETR with what it trains with")
    from rfdetr.config import RFDETRNanoConfig, TrainConfig
    from rfdetr.datasets import _torchvision as steps
    from rfdetr.datasets.coco import make_coco_transforms_square_div_64
    from rfdetr.training import RFDETRDataModule, RFDETRModelModule, build_trainer
    from rfdetr.training.callbacks.coco_eval import COCOEvalCallback
    from rfdetr.utilities.tensors import PackedTargets

    import packer.rfdetr
    from packer.rfdetr import PackedRFDETRDataModule

pytestmark = pytest.mark.filterwarnings("ignore")  # those of its libraries
SMALL: dict[str, Any] = {"num_queries": 20, "num_select": 20, "group_detr": 1, "dec_layers": 1}
SIDE = 320
"""Of the images of batches: no JPEG of 640x480 is decoded at half its size for it."""
PLAIN: dict[str, Any] = {"aug_config": {}, "scale_jitter": False, "multi_scale": False}
"""Nothing is drawn."""
LEVEL = 1.001 / 255 / 0.224
"""A level of a pixel, normalized."""
SPLITS = {"train": "train", "val": "valid", "test": "test"}


def write_coco(folder: Path, images: list[tuple[bytes, str, list[dict[str, Any]]]], categories: dict[int, str]) -> None:
    """A folder as RF-DETR wants it; ids of images are none that packer would count."""
    folder.mkdir(parents=True)
    listed, objects = [], []
    for number, (data, suffix, found) in enumerate(images):
        file = folder / f"{number:03}{suffix}"
        file.write_bytes(data)
        with Image.open(file) as image:
            listed.append({"id": 7 * number + 3, "file_name": file.name, "width": image.width, "height": image.height})
        for one in found:
            rest = {"area": one["bbox"][2] * one["bbox"][3], "iscrowd": 0, "segmentation": []}
            objects.append({**rest, **one, "id": len(objects) + 1, "image_id": 7 * number + 3})
    named = [{"id": key, "name": name, "supercategory": "none"} for key, name in categories.items()]
    content = {"images": listed, "annotations": objects, "categories": named}
    (folder / "_annotations.coco.json").write_text(json.dumps(content))


def cells(data: Path, split: str, count: int) -> list[tuple[bytes, str, list[dict[str, Any]]]]:
    """The first cell images of a split, with the boxes of their XML files."""
    names = (data / "ImageSets" / "Main" / f"{split}.txt").read_text().split()[:count]
    images = []
    for name in names:
        objects = []
        for one in ElementTree.parse(data / "Annotations" / f"{name}.xml").getroot().iter("object"):
            x1, y1, x2, y2 = (int(one.findtext(f"bndbox/{side}") or "") for side in ("xmin", "ymin", "xmax", "ymax"))
            kind = {"RBC": 1, "WBC": 5, "Platelets": 40}[str(one.findtext("name"))]
            if x2 > x1 and y2 > y1:
                objects.append({"bbox": [x1, y1, x2 - x1, y2 - y1], "category_id": kind})
        images.append(((data / "JPEGImages" / f"{name}.jpg").read_bytes(), ".jpg", objects))
    return images


def shapes(seed: int, count: int, folder: Path) -> list[tuple[bytes, str, list[dict[str, Any]]]]:
    """Drawn images of several sizes: fractions of pixels, polygons, crowds, and an image without objects."""
    images = []
    for number in range(count):
        random = np.random.default_rng(100 * seed + number)
        height, width = (240, 320) if number % 3 else (300, 210)
        file = folder.parent / f"{seed}-{number}.png"
        Image.fromarray(pixels(number, width, height)).save(file)
        objects = []
        for _ in range(0 if number == 1 else 4):
            x, y = random.uniform(0, width - 40), random.uniform(0, height - 40)
            w, h = random.uniform(3, 40, 2)
            ring = [x, y, x + w, y, x + w, y + h, x, y + h]
            objects.append({
                "bbox": [round(float(side), 2) for side in (x, y, w, h)], "area": round(float(w * h) / 2, 2),
                "category_id": int(random.choice([1, 5, 40])), "segmentation": [[float(side) for side in ring]],
            })  # fmt: skip
        if number % 4 == 2:
            crowd = {"counts": [width * height // 2, width * height - width * height // 2], "size": [height, width]}
            objects.append({"bbox": [9, 9, 99, 50], "category_id": 5, "iscrowd": 1, "segmentation": crowd, "area": 9})
        images.append((file.read_bytes(), ".png", objects))
    return images


class Set:
    """A folder in RF-DETR's layout, and packs of its splits."""

    def __init__(self, home: Path) -> None:
        self.folder = home / "coco"
        self.packs = {split: str(home / f"{split}.lmdb") for split in SPLITS}

    def pack(self, **options: Any) -> Set:
        """Build the packs."""
        for split, name in SPLITS.items():
            source = self.folder / name
            labels = (f"coco:{source / '_annotations.coco.json'}",)
            build_pack(BuildOptions(str(source), self.packs[split], workers=1, labels=labels, **options))
        return self


@pytest.fixture(scope="module", params=["cells", "shapes"])
def data(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Set:
    """Real images with whole numbers, drawn ones with fractions."""
    home = tmp_path_factory.mktemp(request.param)
    made = Set(home)
    for seed, (split, name) in enumerate(SPLITS.items()):
        folder, count = made.folder / name, 24 if split == "train" else 9
        if request.param == "cells":
            images = cells(request.getfixturevalue("real_data") / "voc_bccd", split, count)
        else:
            made.folder.mkdir(exist_ok=True)
            images = shapes(seed, count, folder)
        write_coco(folder, images, {1: "RBC", 5: "WBC", 40: "Platelets"})
    return made.pack(encode="copy")


@pytest.fixture(scope="module")
def drawn_set(tmp_path_factory: pytest.TempPathFactory) -> Set:
    """Eleven drawn images to train with, five to validate with."""
    made = Set(tmp_path_factory.mktemp("few"))
    made.folder.mkdir()
    for seed, (split, name) in enumerate(SPLITS.items()):
        write_coco(
            made.folder / name,
            shapes(seed, 11 if split == "train" else 5, made.folder / name),
            {1: "a", 5: "b", 40: "c"},
        )
    return made.pack(encode="copy")


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def model_config(**options: Any) -> Any:
    return RFDETRNanoConfig(pretrain_weights=None, num_classes=3, **{"resolution": SIDE, **SMALL, **options})


def train_config(folder: Path | str, **options: Any) -> Any:
    given = {"batch_size": 4, "num_workers": 0, "grad_accum_steps": 1, "seed": 0, "epochs": 1, "progress_bar": None}
    return TrainConfig(dataset_dir=str(folder), **{**given, "tensorboard": False, **options})


def modules(data: Set, model: Any = None, interpolation: str = "bilinear", **options: Any) -> tuple[Any, Any]:
    """Their data module of the folder, and packer's of the packs."""
    model = model or model_config()
    theirs = RFDETRDataModule(model, train_config(data.folder, **options))
    ours = PackedRFDETRDataModule(
        model, train_config(data.packs["train"], **options), val=data.packs["val"], test=data.packs["test"],
        interpolation=interpolation,
    )  # fmt: skip
    for one in (theirs, ours):
        one.setup("fit")
        one.setup("test")
    return theirs, ours


def check_target(theirs: dict[str, torch.Tensor], ours: dict[str, torch.Tensor], exact: bool) -> None:
    assert set(theirs) == set(ours)
    for name, value in theirs.items():
        assert value.dtype == ours[name].dtype and value.shape == ours[name].shape, name
        if exact or name not in ("boxes", "area"):
            assert torch.equal(value, ours[name]), name
        else:  # a pack has corners: where x + width is rounded makes the difference
            torch.testing.assert_close(value, ours[name], rtol=2e-6, atol=2e-6)


def test_batches_are_those_of_their_collate(data: Set) -> None:
    theirs, ours = modules(data, **PLAIN)
    assert ours.class_names == theirs.class_names == ["RBC", "WBC", "Platelets"]
    assert ours._dataset_label_space() == theirs._dataset_label_space()
    exact, seen = "cells" in str(data.folder), 0
    for split in ("val", "test"):
        loaders = (getattr(module, f"{split}_dataloader")() for module in (theirs, ours))
        for (samples, targets), (packed, found) in zip(*loaders, strict=True):
            assert type(targets) is type(found) is PackedTargets or len(targets) == 1
            assert packed.no_padding and samples.no_padding and torch.equal(samples.mask, packed.mask)
            assert packed.tensors.stride() == samples.tensors.stride()
            # images that grow are within a level of theirs
            torch.testing.assert_close(samples.tensors, packed.tensors, rtol=0, atol=0 if exact else LEVEL)
            for one, other in zip(targets, found, strict=True):
                check_target(one, other, exact)
                seen += len(one["labels"])
    assert seen > 50
    files = {int(theirs._dataset_train[i][1]["image_id"]): theirs._dataset_train[i] for i in range(24)}
    for samples, targets in ours.train_dataloader():
        for image, target in zip(samples.tensors, targets, strict=True):
            its, wanted = files[int(target["image_id"])]
            torch.testing.assert_close(image, its, rtol=0, atol=0 if exact else LEVEL)
            check_target(wanted, target, exact)


def test_targets_unpacked_and_padded(drawn_set: Set) -> None:
    theirs, ours = modules(drawn_set, **PLAIN, pack_targets=False, pad_targets_to=6)
    for (_, targets), (_, found) in zip(theirs.val_dataloader(), ours.val_dataloader(), strict=True):
        assert type(targets) is type(found) is tuple
    wanted = {int(t["image_id"]): t for _, targets in theirs.train_dataloader() for t in targets}
    for _, targets in ours.train_dataloader():
        for target in targets:
            if int(target["image_id"]) in wanted:
                check_target(wanted[int(target["image_id"])], target, False)
                assert target["valid"].shape == (6,)


def test_colors_and_boxes_are_left_to_a_gpu(drawn_set: Set) -> None:
    """What Kornia does there needs images that are not normalized, and boxes in pixels."""
    theirs, ours = modules(drawn_set, **PLAIN)
    for module in (theirs, ours):
        module._dataset_train._transforms = make_coco_transforms_square_div_64(
            "train", SIDE, aug_config={}, scale_jitter=False, gpu_postprocess=True
        )
    files = {
        int(target["image_id"]): (image, target) for image, target in map(theirs._dataset_train.__getitem__, range(11))
    }
    for samples, targets in ours.train_dataloader():
        for image, target in zip(samples.tensors, targets, strict=True):
            its, wanted = files[int(target["image_id"])]
            torch.testing.assert_close(image, its, rtol=0, atol=1.001 / 255)
            torch.testing.assert_close(target["boxes"], wanted["boxes"], rtol=2e-6, atol=1e-4)


class InOrder(RFDETRDataModule):  # type: ignore[misc]
    """Their data module, whose order is given."""

    order: list[int]

    def train_dataloader(self) -> Any:
        return DataLoader(self._dataset_train, batch_size=4, sampler=self.order, collate_fn=self._collate_fn_train)


def losses(module: Any, model: Any, config: Any, count: int) -> list[float]:
    torch.manual_seed(0)
    found: list[float] = []

    class Noted(RFDETRModelModule):  # type: ignore[misc]
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            loss = super().training_step(batch, batch_idx)
            found.append(float(loss["loss"] if isinstance(loss, dict) else loss))
            return loss

    trainer = build_trainer(
        config, model, accelerator="cpu", include_training_callbacks=False, max_steps=count, limit_val_batches=0
    )
    trainer.fit(Noted(model, config), module)
    return found


@pytest.mark.parametrize("data", ["cells"], indirect=True)
def test_the_loss_is_that_of_files(data: Set, tmp_path: Path) -> None:
    model, options = model_config(resolution=64), {**PLAIN, "output_dir": str(tmp_path), "epochs": 2, "drop_path": 0.0}
    # of the size of batches: files would be decoded at half their size
    folder = Set(tmp_path)
    for name in SPLITS.values():
        shutil.copytree(data.folder / name, folder.folder / name)
        content = json.loads((folder.folder / name / "_annotations.coco.json").read_text())
        for one in content["images"]:
            file = folder.folder / name / one["file_name"]
            with Image.open(file) as image:
                made = image.convert("RGB").resize((64, 64))
            one["width"], one["height"], one["file_name"] = 64, 64, f"{file.stem}.png"
            made.save(file.with_suffix(".png"))
            file.unlink()
        for one in content["annotations"]:
            x, y, w, h = one["bbox"]
            one["bbox"] = [x // 10, y * 2 // 15, max(1, w // 10), max(1, h * 2 // 15)]
        (folder.folder / name / "_annotations.coco.json").write_text(json.dumps(content))
    folder.pack(encode="raw")
    config = train_config(folder.folder, **options)
    theirs = InOrder(model, config)
    sampler = AlignedSampler(open_pack(folder.packs["train"]), 0, 24)
    theirs.order = sampler.order(0).tolist()
    wanted = losses(theirs, model, config, 6)
    packs = (folder.packs[split] for split in ("train", "val", "test"))
    found = losses(PackedRFDETRDataModule(model, config, *packs), model, config, 6)
    assert len(found) == 6 and len(set(found)) == 6
    assert found == wanted


def test_crops_are_drawn_as_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Any] = []
    monkeypatch.setattr(steps, "crop", lambda image, target, *at: drawn.append((image.size, at)) or (image, target))
    monkeypatch.setattr(steps.Resize, "__call__", lambda self, image, target: (image.resize(self.size[::-1]), target))
    resize = packer.rfdetr.steps
    recipe = steps.RandomSelect(
        steps.Resize((64, 64)),
        steps.Compose(
            [steps.RandomResize([400, 500, 600]), steps.RandomChoice([steps.RandomSizedCrop((384, 600), (64, 64))])]
        ),
    )
    assert resize is steps
    crop = packer.rfdetr._crop_of(recipe, "fast")
    assert crop == SquareCrop(64, 0.5)
    torch.manual_seed(0)
    for _ in range(1500):
        recipe(Image.new("L", (640, 480)), None)
    theirs = np.array([[w, h, top / h, left / w, c] for (w, h), (top, left, c, _) in drawn])
    sizes = np.full(3000, 640.0), np.full(3000, 480.0)
    regions = crop.regions(*sizes, uniform(0, 0, np.arange(3000), 5))
    assert (regions[:, :2] >= 0).all() and (regions[:, :2] + regions[:, 2:] <= [640, 480]).all()
    ours = regions[(regions[:, 2:] != [640, 480]).any(axis=1)]
    assert abs(len(theirs) / 1500 - 0.5) < 0.06 and abs(len(ours) / 3000 - 0.5) < 0.04
    wanted = np.stack([theirs[:, 3], theirs[:, 2], theirs[:, 4] / theirs[:, 0], theirs[:, 4] / theirs[:, 1]], axis=1)
    found = ours / [640, 480, 640, 480]
    for quantile in (0.05, 0.25, 0.5, 0.75, 0.95):
        difference = np.quantile(wanted, quantile, axis=0) - np.quantile(found, quantile, axis=0)
        assert np.abs(difference).max() < 0.045, (quantile, difference)


def test_the_same_crop_gives_the_same_objects(drawn_set: Set) -> None:
    """Theirs: resize, crop, resize. Ours: a region of the original."""
    theirs, ours = modules(drawn_set, **{**PLAIN, "scale_jitter": True})
    loader, records = ours.train_dataloader(), np.arange(11)
    crop, targets = loader._augmentation.crop, loader._host.targets
    random = uniform(1, 0, records, 5)
    random[:, 0] = 0.0
    sizes = sizes_of(loader.pack, records)
    params = CropParams(crop.regions(*sizes, random), None, (SIDE, SIDE))
    columns = targets.of(records, params).columns
    boxes, labels, areas = (np.split(columns[name].values, np.cumsum(columns[name].counts)[:-1])
                            for name in ("boxes", "labels", "area"))  # fmt: skip
    lost = 0
    for record, (_, short, side, down_or_across, other) in enumerate(random.tolist()):
        image, target = its_file(theirs._dataset_train, record)
        resized = steps.RandomResize([crop.shorts[int(short * 3)]])(image, target)
        wide, high = resized[0].size
        least, most = min(384, wide, high), min(600, wide, high)
        length = least + int(side * (most - least + 1))
        left, top = int(down_or_across * (wide - length + 1)), int(other * (high - length + 1))
        _, wanted = steps.Resize((SIDE, SIDE))(*steps.crop(*resized, top, left, length, length))
        assert labels[record].tolist() == wanted["labels"].tolist()
        made = boxes[record] * SIDE
        corners = np.hstack([made[:, :2] - made[:, 2:] / 2, made[:, :2] + made[:, 2:] / 2])
        np.testing.assert_allclose(corners, wanted["boxes"].numpy(), rtol=0, atol=1e-3)
        np.testing.assert_allclose(areas[record], wanted["area"].numpy(), rtol=1e-3, atol=0.1)
        lost += len(target["labels"]) - len(wanted["labels"])
    assert lost > 0


def its_file(dataset: Any, record: int) -> tuple[Any, Any]:
    """Return an image of their dataset with its target, before transforms."""
    transforms, dataset._transforms = dataset._transforms, None
    try:
        return dataset[record]
    finally:
        dataset._transforms = transforms


class Trainer:
    """What a data module asks of Lightning's."""

    class strategy:  # noqa: N801 - the name is Lightning's
        root_device = torch.device("cpu")

    def __init__(self, world_size: int, accumulated: int = 1) -> None:
        self.world_size, self.global_rank, self.accumulate_grad_batches = world_size, 0, accumulated


@pytest.mark.parametrize(
    "batch, accumulated, world", [(1, 1, 1), (2, 1, 1), (2, 3, 1), (4, 4, 1), (2, 1, 2), (1, 2, 3)]
)
def test_epochs_are_as_long_as_theirs(drawn_set: Set, batch: int, accumulated: int, world: int) -> None:
    theirs, ours = modules(drawn_set, **PLAIN, batch_size=batch, grad_accum_steps=accumulated)
    for one in (theirs, ours):
        one.trainer = Trainer(world, accumulated)
    own, sampler = theirs.train_dataloader(), ours.train_dataloader().sampler
    length = len(own.sampler) if isinstance(own.sampler, RandomSampler) else len(own.dataset)
    assert sampler.num_samples == length and length % (batch * accumulated * world) == 0
    order = sampler.order(0)
    counts = np.bincount(order, minlength=11)
    assert counts.min() == length // 11 and counts.max() - counts.min() <= 1
    assert not np.array_equal(order, sampler.order(1))


@pytest.mark.parametrize("samples", [11, 16, 50])
def test_ranks_share_an_epoch(drawn_set: Set, samples: int) -> None:
    pack = open_pack(drawn_set.packs["train"])
    whole = AlignedSampler(pack, 3, samples)
    shares = [[], []]
    for rank, share in enumerate(shares):
        one = AlignedSampler(pack, 3, samples)
        one._given = (rank, 2)
        share += [number for numbers in one.rank_samples(2, 0) for number in numbers.tolist()]
    together = [*shares[0], *shares[1]]
    assert len(set(together)) == len(together) or samples % 2
    assert set(together) >= set(whole.samples_at(0)(np.arange(samples)).tolist())


def test_two_ranks(drawn_set: Set, launch: Any, tmp_path: Path) -> None:
    """Each image counts once in validation, although five are not divided by two; each comes in training."""
    out = tmp_path / "seen"
    launch(HERE / "with_rfdetr.py", drawn_set.packs["train"], drawn_set.packs["val"], out, ranks=2)
    ranks = [json.loads(Path(f"{out}-{rank}").read_text()) for rank in range(2)]
    assert sorted(ranks[0]["counted"] + ranks[1]["counted"]) == [3, 10, 17, 24, 31]
    assert ranks[0]["val"] == [3, 17, 31] and ranks[1]["val"] == [10, 24, 3]  # as many batches on each rank
    trained = ranks[0]["train"] + ranks[1]["train"]
    assert len(ranks[0]["train"]) == len(ranks[1]["train"]) and len(set(trained)) == 11


def small_model(**options: Any) -> Any:
    return rfdetr.RFDETRNano(pretrain_weights=None, resolution=64, **SMALL, **options)


RUN: dict[str, Any] = {
    "batch_size": 4, "grad_accum_steps": 1, "num_workers": 1, "device": "cpu", "multi_scale": False,
    "progress_bar": None, "tensorboard": False, "eval_max_dets": 20, "seed": 0, "warmup_epochs": 0,
}  # fmt: skip


def test_training_evaluation_and_resuming(drawn_set: Set, tmp_path: Path) -> None:
    model, out = small_model(), tmp_path / "out"
    packs = drawn_set.packs
    options = {**RUN, "output_dir": str(out)}
    packer.rfdetr.train(model, packs["train"], packs["val"], packs["test"], epochs=1, run_test=True, **options)
    assert model.model_config.num_classes == 3 and model.model.class_names == ["a", "b", "c"]
    saved = json.loads((out / "training_config.json").read_text())
    assert saved["class_names"] == ["a", "b", "c"] and saved["num_classes"] == 3
    assert saved["train_config"]["dataset_dir"] == packs["train"]
    assert "_align_num_classes_from_dataset" not in vars(model) and type(model) is rfdetr.RFDETRNano
    assert (out / "checkpoint_best_total.pth").exists()
    metrics = packer.rfdetr.evaluate(model, packs["val"], split="val", **options)
    assert {"val/mAP_50_95", "val/F1"} <= set(metrics)
    wanted = model.evaluate(split="val", dataset_dir=str(drawn_set.folder), **options)
    for name, value in metrics.items():
        assert value == pytest.approx(wanted[name], abs=1e-5), name
    resumed = small_model()
    packer.rfdetr.train(resumed, packs["train"], packs["val"], epochs=2, resume=str(out / "last.ckpt"), **options)
    with (out / "metrics.csv").open() as file:
        assert {row["epoch"] for row in csv.DictReader(file)} == {"0", "1"}  # the first epoch was not trained again


def test_the_middle_of_an_epoch_is_resumed(drawn_set: Set) -> None:
    _, ours = modules(drawn_set, interpolation="fast", num_workers=2)
    loader, whole = ours.train_dataloader(), []
    for samples, targets in loader:
        whole.append((samples.tensors.clone(), [int(one["image_id"]) for one in targets]))
        if len(whole) == 2:
            state = json.loads(json.dumps(loader.state_dict()))
    again = ours.train_dataloader()
    again.load_state_dict(state)
    rest = [(samples.tensors, [int(one["image_id"]) for one in targets]) for samples, targets in again]
    assert len(whole) == 5 and len(rest) == 3
    for (images, ids), (others, same) in zip(whole[2:], rest, strict=True):
        assert ids == same and torch.equal(images, others)


def test_an_explicit_number_of_classes_stays(drawn_set: Set, caplog: pytest.LogCaptureFixture) -> None:
    model = small_model(num_classes=7)
    readers = packer.rfdetr._readers(["a", "b"])
    packer.rfdetr._LIBRARY.with_names(rfdetr.RFDETR._align_num_classes_from_dataset, RFDETR=readers)(model, "x.lmdb")
    assert model.model_config.num_classes == 7


def perfect(module: Any, split: str = "val") -> dict[str, float]:
    """The metrics of predictions that are the targets, as the callback computes them."""
    callback = COCOEvalCallback(max_dets=100)
    trainer = type("T", (), {"datamodule": module})()
    callback.setup(trainer, type("M", (), {"model_config": module.model_config})(), "validate")
    crowds = callback._get_crowd_regions(trainer, split)
    for _, targets in getattr(module, f"{split}_dataloader")():
        wanted = callback._convert_targets(list(targets), crowd_regions=crowds)
        found = [
            {name: one[name][one.get("iscrowd", torch.zeros(len(one["labels"]))) == 0] for name in ("boxes", "labels")}
            for one in wanted
        ]
        callback.map_metric.update([{**one, "scores": torch.ones(len(one["labels"]))} for one in found], wanted)
    return {name: float(value) for name, value in callback.map_metric.compute().items() if value.numel() == 1}


def test_crowds_and_sizes_of_the_evaluation(drawn_set: Set, tmp_path: Path) -> None:
    theirs, ours = modules(drawn_set, **PLAIN)
    callback = COCOEvalCallback()
    regions = []
    for module in (theirs, ours):
        callback._crowd_regions = {}
        found = callback._get_crowd_regions(type("T", (), {"datamodule": module})(), "val")
        regions.append({key: [(one.label, one.box) for one in some] for key, some in found.items()})
    assert regions[0] == regions[1] and len(regions[0]) == 1
    assert perfect(ours) == pytest.approx(perfect(theirs)) and perfect(ours)["map"] == pytest.approx(1.0)
    resized = Set(tmp_path)
    resized.folder = drawn_set.folder
    resized.pack(encode="raw", resize="96x80", fit="stretch")
    _, small = modules(resized, **PLAIN)
    assert perfect(small)["map"] == pytest.approx(1.0)
    for _, targets in small.val_dataloader():
        assert all(target["orig_size"].tolist() == [80, 96] for target in targets)


def test_two_sets_that_count_images_alike(drawn_set: Set) -> None:
    """Of joined packs, the ids of one file are those of the other: objects would go to other images."""
    packs = [open_pack(drawn_set.packs[split]) for split in ("val", "test")]
    module = PackedRFDETRDataModule(
        model_config(), train_config(".", **PLAIN), drawn_set.packs["train"], join_packs(packs)
    )
    module.setup("validate")
    seen = [int(target["image_id"]) for _, targets in module.val_dataloader() for target in targets]
    assert seen == [*range(10)] == [*module._dataset_val.coco.imgs]
    callback = COCOEvalCallback()
    regions = callback._get_crowd_regions(type("T", (), {"datamodule": module})(), "val")
    assert {key for key, some in regions.items() if some} == {2, 7}
    assert perfect(module)["map"] == pytest.approx(1.0)


def test_what_packer_does_not_draw_is_drawn_by_them(drawn_set: Set, caplog: pytest.LogCaptureFixture) -> None:
    for options, name in (
        ({"multi_scale": "per-sample"}, "a size for each sample"),
        ({"aug_config": {"RandomBrightnessContrast": {"p": 1.0}}}, "AlbumentationsWrapper"),
    ):
        if "aug_config" in options:
            pytest.importorskip("albumentations")
        _, ours = modules(drawn_set, **options)
        loader = ours.train_dataloader()
        assert isinstance(loader, DataLoader), name
        samples, targets = next(iter(loader))
        assert samples.tensors.shape[:2] == (4, 3) and len(targets) == 4
        assert not isinstance(ours.val_dataloader(), DataLoader)


@pytest.mark.parametrize("config, chance", [
    (None, 0.5), ({}, 0.0), ({"HorizontalFlip": {"p": 0.25}}, 0.25), ({"HorizontalFlip": {}}, 0.5),
])  # fmt: skip
def test_flips_alone_are_packers(drawn_set: Set, config: Any, chance: float) -> None:
    """With Albumentations installed, RF-DETR flips by it, also by default."""
    _, ours = modules(drawn_set, aug_config=config, multi_scale=True)
    loader = ours.train_dataloader()
    assert loader._augmentation.flip == chance and loader._augmentation.crop.chance == 0.5
    assert loader._augmentation.crop.size == SIDE + 5 * 32  # the largest of the scales, as theirs


def test_masks_are_theirs(drawn_set: Set) -> None:
    theirs, ours = modules(drawn_set, model_config(segmentation_head=True), **PLAIN)
    for record in range(11):
        wanted, found = theirs._dataset_train[record], ours._dataset_train[record]
        assert torch.equal(wanted[0], found[0])
        check_target(wanted[1], found[1], False)
    assert isinstance(ours.train_dataloader(), DataLoader)


def test_what_cannot_be_trained(drawn_set: Set, numbered_pack: Path, tmp_path: Path) -> None:
    packs, model = drawn_set.packs, small_model()
    with pytest.raises(UsageError, match=r"has no boxes, which a detector needs; build it from a folder with such"):
        packer.rfdetr.train(model, numbered_pack, packs["val"])
    gray = tmp_path / "gray.lmdb"
    source = drawn_set.folder / "valid"
    labels = (f"coco:{source / '_annotations.coco.json'}",)
    build_pack(BuildOptions(str(source), str(gray), workers=1, labels=labels, mode="gray"))
    with pytest.raises(UsageError, match=r"has images with the mode gray, .* takes RGB of 8 bits; build it with"):
        packer.rfdetr.train(model, packs["train"], gray)
    with pytest.raises(UsageError, match=r"model: is no model of RF-DETR, but NoneType; give an rfdetr.RFDETRNano\(\)"):
        packer.rfdetr.train(None, packs["train"], packs["val"])
    for name in ("dataset_dir", "dataset_file"):
        with pytest.raises(UsageError, match=f"{name}: is not for packs; leave it out"):
            packer.rfdetr.train(model, packs["train"], packs["val"], **{name: "coco"})
    with pytest.raises(Exception, match="interpolation"):
        packer.rfdetr.evaluate(model, packs["val"], interpolation="area")
    with pytest.raises(UsageError, match=r"val: is not given; name a pack: val='val\.lmdb'"):
        PackedRFDETRDataModule(model_config(), train_config(packs["train"])).setup("fit")
    other = Set(tmp_path)
    for name in SPLITS.values():
        write_coco(other.folder / name, cells_of(drawn_set, name), {1: "x", 5: "b", 40: "c"})
    other.pack(encode="copy")
    with pytest.raises(UsageError, match="has the classes x, b, c, not a, b, c; build it with the classes of"):
        packer.rfdetr.train(model, packs["train"], other.packs["val"])
    model.model_config.use_grouppose_keypoints = True
    with pytest.raises(UsageError, match=r"model: finds keypoints, which packer\.rfdetr does not train"):
        packer.rfdetr.train(model, packs["train"], packs["val"])
    with pytest.raises(NotInstalled, match=r"rfdetr: version 1.* does not fit: .*modules does not use BOGUS"):
        packer.rfdetr._LIBRARY.with_names(modules, BOGUS=1)


def cells_of(data: Set, name: str) -> list[tuple[bytes, str, list[dict[str, Any]]]]:
    """One image of a folder."""
    return [((data.folder / name / "000.png").read_bytes(), ".png", [{"bbox": [1, 1, 9, 9], "category_id": 1}])]


def test_the_blocks_of_the_page_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page, ran = ROOT / "docs" / "guides" / "rf-detr.md", 0
    small = ", ".join(
        f"{name}={value}" for name, value in {"resolution": 64, "pretrain_weights": None, **SMALL}.items()
    )
    for block in blocks_of(page):
        if block.language == "sh":
            for words in block.commands():
                good(*words[1:])
            continue
        code = block.text.replace("RFDETRNano()", f"RFDETRNano({small})").replace("Config(num", f"Config({small}, num")
        code = code.replace("epochs=10", "epochs=1, multi_scale=False, accelerator='cpu', progress_bar=None")
        exec(compile("\n" * (block.line - 1) + code, str(page), "exec"), {"__name__": "__main__"})
        ran += 1
    assert ran == 2
