"""The trainers of packer.ultralytics whose batches come from a PackedLoader: by the settings of Ultralytics."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from yolo_sets import (
    FIXED,
    MODELS,
    OURS,
    SIZE,
    THEIRS,
    adapter,
    draw_splits,
    draw_yolo,
    in_a_folder_of_its_own,  # noqa: F401 - of all tests here
    losses,
    packed,
    trainer_of,
    yolo,
)

from packer import Mosaic, RandomAffine
from packer.errors import UsageError
from packer.loading.pillow_crops import PillowRandomCrop
from packer.loading.pillow_policy import Draws
from packer.loading.torchvision_policy import OPERATIONS, one_of, some_of
from packer.loading.yolo_batches import _Colors, _Objects

YOLO = yolo.model.YOLO
augment = pytest.importorskip("ultralytics.data.augment")
THREADED: dict[str, Any] = {
    "detect": adapter.ThreadedDetectionTrainer,
    "classify": adapter.ThreadedClassificationTrainer,
}
pytestmark = pytest.mark.filterwarnings("ignore")  # those of its libraries


@pytest.fixture(scope="module")
def boxes(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(packed(draw_yolo(tmp_path_factory.mktemp("drawn") / "boxes")))


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> str:
    root = draw_splits(tmp_path_factory.mktemp("drawn") / "set")
    return str(packed(root / "train", root / "set.lmdb", labels=("folder",)))


def kinds(batch: dict[str, Any]) -> dict[str, Any]:
    return {name: (value.dtype, value.shape[1:]) for name, value in batch.items() if isinstance(value, torch.Tensor)}


def test_settings_of_detection_are_those_of_the_loader(boxes: str) -> None:
    settings = {"mosaic": 0.7, "degrees": 5.0, "scale": 0.3, "translate": 0.2, "fliplr": 0.25, "flipud": 0.1}
    trainer = trainer_of(THREADED, "detect", boxes, **settings)
    theirs = trainer_of(THEIRS, "detect", str(Path(boxes).with_suffix("") / "data.yaml"), **settings)
    shown = trainer.train_loader.loader._augmentation
    assert shown.crop == Mosaic(SIZE, chance=0.7)
    assert shown.affine == RandomAffine(5.0, translate=(0.2, 0.2), scale=(0.7, 1.3), fill=114)
    assert (shown.flip, shown.vflip, shown.seed) == (0.25, 0.1, 3)
    batches = list(trainer.train_loader)
    assert kinds(batches[0]) == kinds(next(iter(theirs.train_loader)))
    files = [Path(file).name for batch in batches for file in batch["im_file"]]
    assert sorted(files) == sorted(Path(file).name for file in theirs.train_loader.dataset.im_files)
    assert len(trainer.train_loader) == len(theirs.train_loader) == 4
    assert len(trainer.train_loader.sampler) == len(theirs.train_loader.sampler) == 14
    assert not isinstance(trainer.test_loader, type(trainer.train_loader))  # validation stays theirs


def test_objects_of_mosaics_are_as_many_and_as_large(boxes: str) -> None:
    """Of 30 epochs of both: the share of classes, and Kolmogorov and Smirnov's distance of centers and sides."""
    found: list[Any] = []
    folder = str(Path(boxes).with_suffix("") / "data.yaml")
    for kind, data in ((THREADED, boxes), (THEIRS, folder)):
        loader = trainer_of(kind, "detect", data, hsv_h=0.0, hsv_s=0.0, hsv_v=0.0, batch=14).train_loader
        batches = [batch for _ in range(30) for batch in loader]
        rows = torch.cat([torch.cat([batch["bboxes"], batch["cls"]], dim=1) for batch in batches]).numpy()
        found.append(rows)
    ours, others = found
    assert len(ours) == pytest.approx(len(others), rel=0.1) and len(ours) > 900
    assert ours[:, 4].mean() == pytest.approx(others[:, 4].mean(), abs=0.06)
    for one, other in zip(ours[:, :4].T, others[:, :4].T, strict=True):
        values = np.sort(np.concatenate([one, other]))
        shares = [np.searchsorted(np.sort(each), values, side="right") / len(each) for each in (one, other)]
        # the objects of a few images are not independent: the limit for a tenth as many
        assert np.abs(shares[0] - shares[1]).max() < 1.63 * math.sqrt(10 / len(one) + 10 / len(other))


@pytest.mark.parametrize("mosaic", [1.0, 0.0])
def test_a_model_has_the_same_loss(mosaic: float, boxes: str) -> None:
    """One that does not learn, within three standard errors of the mean of 12 epochs of each loader."""
    folder, model, found = str(Path(boxes).with_suffix("") / "data.yaml"), None, []
    for kind, data in ((THREADED, boxes), (THEIRS, folder)):
        trainer = trainer_of(kind, "detect", data, mosaic=mosaic, batch=14)
        model = model or trainer.model.train()
        batches = (trainer.preprocess_batch(batch) for _ in range(12) for batch in trainer.train_loader)
        with torch.no_grad():
            found.append(np.array([[float(part) for part in model.loss(batch)[1].values()] for batch in batches]))
    errors = np.hypot(*(losses.std(axis=0) / len(losses) ** 0.5 for losses in found))
    assert (np.abs(found[0].mean(axis=0) - found[1].mean(axis=0)) < 3 * errors).all()


def test_colors_change_as_theirs() -> None:
    """The same gains give the same pixels."""
    image = np.random.default_rng(0).integers(0, 256, (40, 50, 3), dtype=np.uint8)
    image[:5] = 255
    gains = np.array([0.015, 0.7, 0.4])
    for seed in range(20):
        drawn = 2 * torch.rand(3, generator=torch.Generator().manual_seed(seed)).numpy() - 1
        ours = _Colors(gains)(torch.from_numpy(image.copy()).permute(2, 0, 1), torch.Generator().manual_seed(seed))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(augment.np.random, "uniform", lambda *_, drawn=drawn: drawn.astype(np.float64))
            bgr = np.ascontiguousarray(image[..., ::-1])
            theirs = augment.RandomHSV(*gains)({"img": bgr})["img"][..., ::-1]
        assert np.array_equal(ours.permute(1, 2, 0).numpy(), theirs)


def test_boxes_are_dropped_as_theirs(boxes: str) -> None:
    """Those with a side of two pixels and less, and those that are a hundred times as long as wide."""
    trainer = trainer_of(OURS, "detect", boxes)
    sides = np.random.default_rng(1).choice([1.0, 2.0, 2.5, 3.0, 40.0, 159.0], (200, 2))
    centers = np.linspace(0.1, 0.9, 400).reshape(-1, 2)
    rows = torch.from_numpy(np.concatenate([np.zeros((200, 2)), centers, sides / SIZE], axis=1)).float()
    corners = np.concatenate([np.zeros((200, 2)), rows[:, 4:].numpy() * SIZE], axis=1).T
    kept = augment.RandomPerspective.box_candidates(corners, corners, area_thr=0.1)
    batch = _Objects(trainer.train_loader.dataset, trainer.args)(None, rows, torch.zeros(0))
    assert len(batch["bboxes"]) == kept.sum() < 200
    assert torch.equal(batch["bboxes"], rows[torch.from_numpy(kept)][:, 2:])


@pytest.mark.parametrize("options", [{"classes": [1]}, {"single_cls": True}, {"fraction": 0.5}], ids=str)
def test_part_of_the_objects(boxes: str, options: dict[str, Any]) -> None:
    loader = trainer_of(THREADED, "detect", boxes, **options).train_loader
    batches = list(loader)
    seen = {int(label) for batch in batches for label in batch["cls"]}
    assert seen == ({1} if "classes" in options else {0} if "single_cls" in options else {0, 1})
    assert sum(len(batch["img"]) for batch in batches) == len(loader.dataset) == (7 if "fraction" in options else 14)


def test_settings_of_classification_are_those_of_the_loader(classes: str) -> None:
    settings = {"scale": 0.4, "fliplr": 0.25, "flipud": 0.1, "erasing": 0.3}
    trainer = trainer_of(THREADED, "classify", classes, **settings)
    theirs = trainer_of(OURS, "classify", classes, **settings)
    shown = trainer.train_loader.loader._augmentation
    assert shown.crop == PillowRandomCrop(SIZE, scale=(0.6, 1.0), interpolation="bilinear")
    assert (shown.flip, shown.vflip, shown.seed) == (0.25, 0.1, 3)
    batch = next(iter(trainer.train_loader))
    assert kinds(batch) == kinds(next(iter(theirs.train_loader)))
    assert 0 <= batch["img"].min() < 0.2 and 0.8 < batch["img"].max() <= 1
    counts = np.bincount(torch.cat([batch["cls"] for batch in trainer.train_loader]).numpy())
    assert counts.tolist() == [5, 5, 5]


def test_images_that_nothing_changes_are_theirs(classes: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same crops and flips give the same pixels, within two levels, and nearly all to the bit."""
    settings = {"auto_augment": "", "hsv_h": 0.0, "hsv_s": 0.0, "hsv_v": 0.0, "erasing": 0.0, "batch": 15}
    trainer = trainer_of(THREADED, "classify", classes, **settings)
    loader = trainer.train_loader.loader
    ((images, _, records),) = loader
    pack = loader.pack
    sizes = [pack.reader.values(name, records.numpy()).astype(float) for name in ("width", "height")]
    params = loader._augmentation.params(records.numpy(), 0, (SIZE, SIZE), lambda _: sizes)
    transform = trainer_of(OURS, "classify", classes, **settings).train_loader.dataset.torch_transforms
    for row, record in enumerate(records.tolist()):
        x, y, width, height = (int(v) for v in np.rint(params.regions[row]))
        monkeypatch.setattr(type(transform.transforms[0]), "get_params", lambda *_, box=(y, x, height, width): box)
        transform.transforms[1].p = float(params.flipped[row])
        expected = transform(Image.fromarray(pack.image(record, "opencv")))
        differences = (images[row] - expected).abs()
        assert differences.max() <= 2.01 / 255 and (differences > 0.5 / 255).float().mean() < 0.05


@pytest.mark.parametrize("name", ["RandAugment", "AutoAugment"])
def test_operations_are_those_of_torchvision_on_images_of_pillow(name: str) -> None:
    """Each with all magnitudes that are drawn; colors to the bit, what is moved within a level."""
    v1 = pytest.importorskip("torchvision.transforms")
    policy = getattr(v1, name)(interpolation=v1.InterpolationMode.BILINEAR)
    rand = name == "RandAugment"
    space = policy._augmentation_space(31 if rand else 10, (90, 110))
    apply = pytest.importorskip("torchvision.transforms.autoaugment")._apply_op
    waves = np.sin(np.arange(90)[:, None, None] / [7, 9, 11] + np.arange(110)[:, None] / [8, 5, 12])
    pixels = (127 + 90 * waves).astype(np.uint8)
    assert space.keys() <= OPERATIONS.keys()
    for operation, (magnitudes, signed) in space.items():
        for number in [9] if rand else range(10):
            for sign in (1, -1) if signed else (1,):
                amount = sign * float(magnitudes[number]) if magnitudes.ndim else 0.0
                theirs = apply(Image.fromarray(pixels), operation, amount, v1.InterpolationMode.BILINEAR, None)
                ours = np.asarray(OPERATIONS[operation](pixels.copy(), amount))
                differences = np.abs(ours.astype(int) - np.asarray(theirs))
                assert differences.max() <= operation.startswith(("Shear", "Translate")), (operation, amount)
                assert (differences > 0).mean() < 0.1


@pytest.mark.parametrize(("name", "step_of"), [("RandAugment", some_of), ("AutoAugment", one_of)])
def test_operations_are_drawn_as_often(name: str, step_of: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each operation with each magnitude and sign, in 7,000 images of both, within 5 sigma."""
    v1 = pytest.importorskip("torchvision.transforms")
    counts: tuple[Counter[Any], Counter[Any]] = (Counter(), Counter())

    def note(side: int, image: Any, operation: str, amount: float) -> Any:
        counts[side][operation, round(amount, 4) + 0.0] += 1
        return image

    for operation in OPERATIONS:
        monkeypatch.setitem(OPERATIONS, operation, lambda image, amount, of=operation: note(0, image, of, amount))
    theirs = pytest.importorskip("torchvision.transforms.autoaugment")
    monkeypatch.setattr(theirs, "_apply_op", lambda image, of, amount, **_: note(1, image, of, amount))
    policy, image, draws = getattr(v1, name)(), Image.new("RGB", (32, 32)), Draws()
    step = step_of(policy, (32, 32))
    torch.manual_seed(0)
    draws.seed(0)
    for _ in range(7000):
        step(image, draws)
        policy(image)
    assert set(counts[0]) == set(counts[1])
    for change, count in counts[0].items():
        assert abs(count - counts[1][change]) < 5 * math.sqrt(count + counts[1][change]), change


@pytest.mark.parametrize("task", list(THREADED))
def test_three_epochs(task: str, boxes: str, classes: str) -> None:
    """Mosaics close, and an interrupted run goes on with the order of its next epoch."""
    data = boxes if task == "detect" else classes
    model = YOLO(MODELS[task])
    options = {**FIXED, "epochs": 3, "optimizer": "AdamW", "lr0": 2e-3, "warmup_epochs": 0.0, "nbs": 4}
    model.train(data=data, trainer=THREADED[task], close_mosaic=1, **options)
    assert np.isfinite(losses(model.trainer.save_dir)).tolist() == [True] * 3
    if task == "detect":
        assert model.trainer.train_loader.loader._augmentation.crop.chance == 0
    assert model.trainer.train_loader.loader.epoch == 2

    def interrupt(trainer: Any) -> None:
        raise KeyboardInterrupt

    model = YOLO(MODELS[task])
    model.add_callback("on_model_save", interrupt)
    with pytest.raises(KeyboardInterrupt):
        model.train(data=data, trainer=THREADED[task], **options)
    begun: list[int] = []
    again = YOLO(model.trainer.last)
    again.add_callback("on_train_epoch_end", lambda trainer: begun.append(trainer.train_loader.loader.epoch))
    again.train(resume=True, trainer=THREADED[task])
    assert begun == [1, 2]


@pytest.mark.parametrize(
    ("task", "name", "value"),
    [
        ("detect", "mixup", 0.1), ("detect", "perspective", 0.0005), ("detect", "shear", 2.0), ("detect", "rect", True),
        ("detect", "copy_paste", 0.5), ("classify", "auto_augment", "augmix"),
    ],
)  # fmt: skip
def test_what_only_their_loader_does_is_refused(task: str, name: str, value: Any, boxes: str, classes: str) -> None:
    with pytest.raises(UsageError, match=f"{name}: is {value}, which only Ultralytics' own loader does; leave {name}"):
        trainer_of(THREADED, task, boxes if task == "detect" else classes, **{name: value})


def test_a_folder_is_refused(boxes: str) -> None:
    data = {"train": str(Path(boxes).with_suffix("") / "images" / "train"), "val": boxes}
    with pytest.raises(UsageError, match=r"data: names .*images/train as train, which is not a pack; build a pack"):
        trainer_of(THREADED, "detect", data)


@pytest.mark.parametrize("task", list(THREADED))
def test_no_image_is_kept_in_memory(task: str, boxes: str, classes: str) -> None:
    trainer = trainer_of(THREADED, task, boxes if task == "detect" else classes, cache="ram", scale=1.0)
    batches = trainer.get_dataloader(trainer.data["train"], 4, rank=-1)
    kept = batches.dataset.ims if task == "detect" else [sample[3] for sample in batches.dataset.samples]
    assert not any(image is not None for image in kept) and trainer.args.cache == "ram"
    assert len(next(iter(batches))["img"]) == 4


def test_an_order_goes_on_where_memory_ran_out(boxes: str) -> None:
    trainer = trainer_of(THREADED, "detect", boxes)
    trainer.start_epoch = 3
    assert trainer.get_dataloader(trainer.data["train"], 4, rank=-1).sampler.epoch == 3


def test_gray_images_keep_their_colors() -> None:
    gray = torch.zeros((1, 4, 4), dtype=torch.uint8)
    assert _Colors(np.ones(3))(gray, torch.Generator()) is gray
