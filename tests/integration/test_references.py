"""torchvision's references train from packs as docs/trainers.md shows it: batches, losses and metrics as from files.

Each comparison is made twice: with the functions of the published scripts, where they are, and with the same lines
written with torchvision's public ones. Pixels are equal bytes; packer's normalization, (x - 255 m) / 255 s, differs in
the last bit from (x / 255 - m) / s, so that where losses are compared exactly torchvision normalizes both.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from conftest import HERE, Launch
from drawn import draw
from PIL import Image
from published import modules, prepare, scripts

from packer import BuildOptions, build_packs

torchvision = pytest.importorskip("torchvision", reason="torchvision is optional, and not installed here")
from torchvision import transforms as v1  # noqa: E402
from torchvision.transforms import v2  # noqa: E402

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
SIDE = 64
KINDS = {"classification": "packed_classes", "detection": "packed_boxes", "segmentation": "packed_masks"}
SOURCES = ("public", "published")
ARGS = {
    "workers": 2, "device": "cpu", "batch_size": 4, "interpolation": "bilinear", "auto_augment": None,
    "random_erase": 0.0, "ra_sampler": False, "ra_reps": 3, "mixup_alpha": 0.0, "cutmix_alpha": 0.0,
    "train_crop_size": 48, "val_resize_size": SIDE, "val_crop_size": SIDE, "ra_magnitude": 9, "augmix_severity": 3,
    "model": "fasterrcnn", "data_augmentation": "hflip",
}  # fmt: skip
"""Of the command line of the scripts."""


def classes(home: Path) -> Path:
    """Square images in six class folders of two splits; 25 to evaluate, which two ranks cannot share evenly."""
    for split, count in (("train", 30), ("val", 25)):
        for i in range(count):
            draw(home / "set" / split / "abcdef"[i % 6] / f"{i:02}.jpg", i + 7 * (split == "val"), SIDE, SIDE)
    return home / "set"


def boxes(home: Path) -> Path:
    """Images of differing sizes in the layout of COCO 2017; category ids have gaps, and an image no boxes."""
    for split, count in (("train", 9), ("val", 7)):
        given: dict[str, Any] = {"images": [], "annotations": []}
        given["categories"] = [{"id": number, "name": name} for number, name in ((3, "car"), (17, "cat"), (44, "cup"))]
        for i in range(count):
            width, height = ((96, 64), (64, 96), (80, 80))[i % 3]
            draw(home / "set" / f"{split}2017" / f"{i:03}.jpg", i + 50, width, height)
            number = 100 + i
            given["images"].append({"id": number, "file_name": f"{i:03}.jpg", "width": width, "height": height})
            for k in range(0 if i == 4 else 1 + i % 3):
                x, y, w, h = 4 + 5 * k, 6 + 3 * k, 30, 26 + k
                outline = [[x, y, x + w, y, x + w, y + h, x, y + h]]
                its = {"image_id": number, "id": 10 * i + k + 1, "category_id": (3, 17, 44)[k], "iscrowd": 0}
                given["annotations"].append({**its, "bbox": [x, y, w, h], "area": w * h, "segmentation": outline})
        (home / "set" / "annotations").mkdir(exist_ok=True)
        (home / "set" / "annotations" / f"instances_{split}2017.json").write_text(json.dumps(given))
    return home / "set"


def masks(home: Path) -> Path:
    """Images of differing sizes and masks in the layout of Pascal VOC, with a border of 255."""
    root = home / "VOCdevkit" / "VOC2012"
    for folder in ("SegmentationClass", "ImageSets/Segmentation"):
        (root / folder).mkdir(parents=True)
    for split, count in (("train", 9), ("val", 7)):
        names = [f"{split}{i}" for i in range(count)]
        (root / "ImageSets" / "Segmentation" / f"{split}.txt").write_text("\n".join(names) + "\n")
        for i, name in enumerate(names):
            width, height = ((96, SIDE), (SIDE, 88), (SIDE, SIDE))[i % 3]
            draw(root / "JPEGImages" / f"{name}.jpg", i + 90, width, height)
            mask = np.add.outer(np.arange(height) // 9, np.arange(width) // 11 + i) % 21
            mask[:, :2] = 255
            Image.fromarray(mask.astype(np.uint8)).save(root / "SegmentationClass" / f"{name}.png")
    return root


DRAWN: dict[str, Callable[[Path], Path]] = {"classification": classes, "detection": boxes, "segmentation": masks}


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The files of each kind; beside them a pack of each split."""
    found = {}
    for kind, drawn in DRAWN.items():
        found[kind] = drawn(tmp_path_factory.mktemp(kind))
        build_packs(BuildOptions(str(found[kind]), encode="copy", workers=1))
    return found


def args_of(sets: dict[str, Path], kind: str, **options: Any) -> SimpleNamespace:
    return SimpleNamespace(**{**ARGS, "data_path": str(sets[kind]), **options})


def page_module(kind: str) -> ModuleType:
    """A module of the page."""
    module = ModuleType(KINDS[kind])
    exec(compile(modules()[f"{KINDS[kind]}.py"], KINDS[kind], "exec"), module.__dict__)
    return module


@pytest.fixture
def published() -> Iterator[Callable[..., ModuleType]]:
    """published(kind, module): a module of published scripts, which import one another by plain names."""
    before, paths = set(sys.modules), list(sys.path)

    def module(kind: str, name: str) -> ModuleType:
        sys.path.insert(0, str(scripts(f"references/{kind}")))
        return importlib.import_module(name)

    yield module
    sys.path[:] = paths
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).find("references") >= 0:
            del sys.modules[name]


Own = Callable[..., Any]


def own_classes(sets: dict[str, Path], published: Any) -> Any:
    """The validation set as from files."""
    if published is not None:
        preset = published("classification", "presets").ClassificationPresetEval(crop_size=SIDE, resize_size=SIDE)
    else:
        steps = [v2.Resize(SIDE), v2.CenterCrop(SIDE), v2.PILToTensor()]
        preset = v2.Compose([*steps, v1.ConvertImageDtype(torch.float), v2.Normalize(MEAN, STD)])
    return torchvision.datasets.ImageFolder(sets["classification"] / "val", preset)


def own_boxes(sets: dict[str, Path], published: Any, split: str, flip: float) -> Any:
    """A split as from files, mirrored by a chance of 0 or 1."""
    if published is not None:
        presets, utils = (published("detection", name) for name in ("presets", "coco_utils"))
        preset = presets.DetectionPresetTrain(data_augmentation="hflip", hflip_prob=flip)
        return utils.get_coco(str(sets["detection"]), split, preset)
    steps = [
        v2.ToImage(),
        v2.RandomHorizontalFlip(flip),
        v2.ToPureTensor(),
        lambda image, target: (image / 255, target),
    ]
    home = sets["detection"]
    data = torchvision.datasets.CocoDetection(
        home / f"{split}2017", home / "annotations" / f"instances_{split}2017.json", transforms=v2.Compose(steps)
    )
    keys = ["boxes", "labels", "image_id"]
    return torchvision.datasets.wrap_dataset_for_transforms_v2(data, target_keys=keys)


def own_masks(sets: dict[str, Path], published: Any) -> Any:
    """The validation set as from files; the short side of all images has the size that they are resized to."""
    if published is not None:
        preset = published("segmentation", "presets").SegmentationPresetEval(base_size=SIDE)
    else:

        def preset(image: Any, mask: Any) -> Any:
            pixels = v2.functional.pil_to_tensor(image) / 255
            return v2.functional.normalize(pixels, MEAN, STD), torch.as_tensor(np.array(mask), dtype=torch.int64)

    root = sets["segmentation"].parents[1]
    return torchvision.datasets.VOCSegmentation(root, image_set="val", transforms=preset)


def normalized(loader: Any) -> list[Any]:
    """The batches of a loader, normalized by torchvision; contiguous: torch sums other memory in another order."""
    floats = {"mean": None, "std": None, "dtype": torch.float32}
    again = type(loader)(**{**loader._settings, "sampler": loader.sampler, **floats})
    found = [(v2.functional.normalize(images.contiguous(), MEAN, STD), targets) for images, targets in again]
    for (images, _), (expected, _) in zip(loader, found, strict=True):
        assert torch.allclose(images, expected, rtol=0, atol=2e-6)
    return found


def losses_of(model: Any, batches: Any, loss_of: Callable[[Any, Any], torch.Tensor]) -> list[float]:
    """The loss of each step of training."""
    torch.manual_seed(0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    found = []
    for images, targets in batches:
        loss = loss_of(model(images), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


@pytest.mark.parametrize("source", SOURCES)
def test_classes_and_losses_are_those_of_files(source: str, sets: dict[str, Path], published: Any) -> None:
    own = own_classes(sets, published if source == "published" else None)
    _, loader = page_module("classification").loaders(args_of(sets, "classification"))
    theirs = list(torch.utils.data.DataLoader(own, 4))
    ours = normalized(loader)
    for (images, labels), (expected, classes) in zip(ours, theirs, strict=True):
        assert torch.equal(labels, classes) and torch.equal(images, expected)
    assert loader.pack.classes == own.classes

    def model() -> Any:
        torch.manual_seed(1)
        conv = torch.nn.Conv2d(3, 6, 3, stride=4)
        return torch.nn.Sequential(conv, torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten())

    entropy = torch.nn.functional.cross_entropy
    assert losses_of(model(), ours, entropy) == losses_of(model(), theirs, entropy)


def test_crops_are_those_of_torchvision_for_the_same_draws(sets: dict[str, Path]) -> None:
    """Within one level of 255, as torchvision's own on tensors and on Pillow's images."""
    loader, _ = page_module("classification").loaders(args_of(sets, "classification"))
    assert len(loader) == 8
    loader._settings["with_index"] = True
    again = type(loader)(**{**loader._settings, "sampler": loader.sampler})
    worst = 0.0
    for images, _, records in again:
        params = again._host.filler.params(records.numpy(), 0)
        for image, record, region, flipped in zip(
            images, records.tolist(), params.regions, params.flipped, strict=True
        ):
            whole = Image.open(sets["classification"] / again.pack.paths[record]).convert("RGB")
            x, y, width, height = map(int, region)
            crop = v2.functional.resized_crop(whole, y, x, height, width, [48, 48], antialias=True)
            pixels = v2.functional.pil_to_tensor(v2.functional.hflip(crop) if flipped else crop)
            levels = (image * torch.tensor(STD)[:, None, None] + torch.tensor(MEAN)[:, None, None]) * 255
            worst = max(worst, (levels - pixels).abs().max().item())
    assert worst < 1.01


def test_recipes_of_classification(sets: dict[str, Path]) -> None:
    """Each policy, erasing, mixing and repeated augmentation give batches of floats."""
    make = page_module("classification").loaders
    for policy in ("ra", "ta_wide", "augmix", "imagenet", None):
        recipe = {"auto_augment": policy, "random_erase": 0.5, "mixup_alpha": 0.2, "cutmix_alpha": 1.0}
        loader, _ = make(args_of(sets, "classification", ra_sampler=True, **recipe))
        images, targets = next(iter(loader))
        assert images.dtype == torch.float32 and images.shape == (4, 3, 48, 48) and targets.shape == (4, 6)
        assert len(loader) == 8


@pytest.mark.parametrize("source", SOURCES)
def test_boxes_and_losses_are_those_of_files(source: str, sets: dict[str, Path], published: Any) -> None:
    given = published if source == "published" else None
    loader, test_loader = page_module("detection").loaders(args_of(sets, "detection", batch_size=2))
    own = [own_boxes(sets, given, "train", float(flip)) for flip in (False, True)]
    data = own[0].dataset if isinstance(own[0], torch.utils.data.Subset) else own[0]
    places = own[0].indices if isinstance(own[0], torch.utils.data.Subset) else range(len(own[0]))
    index_of = {data.ids[place]: index for index, place in enumerate(places)}
    ours, theirs, seen = [], [], set()
    for images, targets in loader:
        records = [number["image_id"] - 100 for number in targets]
        flipped = loader._host.filler.params(np.array(records), 0).each
        expected = [
            own[int(its.flipped[0])][index_of[100 + record]] for record, its in zip(records, flipped, strict=True)
        ]
        for image, target, (pixels, truth) in zip(images, targets, expected, strict=True):
            assert torch.equal(image, pixels)
            assert torch.equal(target["boxes"], truth["boxes"]) and torch.equal(target["labels"], truth["labels"])
            assert target["image_id"] == truth["image_id"]
        ours.append((list(images), targets))
        theirs.append(tuple(zip(*expected, strict=True)))
        seen |= {bool(its.flipped[0]) for its in flipped}
    assert len(ours) == 4 and seen == {False, True}  # image 104 has no boxes
    for (image, target), (pixels, truth) in zip(
        ((images[0], targets[0]) for images, targets in test_loader), own_boxes(sets, given, "val", 0.0), strict=True
    ):
        assert torch.equal(image, pixels) and torch.equal(target["boxes"], truth.get("boxes", torch.zeros(0, 4)))
    assert losses_of_boxes(ours) == losses_of_boxes(theirs)


def losses_of_boxes(batches: Any) -> list[float]:
    """Two steps of the smallest detector, whose samples of proposals are drawn alike."""
    torch.manual_seed(0)
    few = {"box_batch_size_per_image": 8, "rpn_pre_nms_top_n_train": 40, "rpn_post_nms_top_n_train": 20}
    model = torchvision.models.detection.fasterrcnn_mobilenet_v3_large_320_fpn(
        weights=None, weights_backbone=None, num_classes=91, min_size=SIDE, max_size=2 * SIDE, **few
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    found = []
    torch.manual_seed(1)
    for images, targets in batches[:2]:
        loss = sum(model([image.contiguous() for image in images], list(targets)).values())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


@pytest.mark.parametrize("source", SOURCES)
def test_masks_and_losses_are_those_of_files(source: str, sets: dict[str, Path], published: Any) -> None:
    own = own_masks(sets, published if source == "published" else None)
    loader, test_loader = page_module("segmentation").loaders(args_of(sets, "segmentation"), SIDE, 48)
    ours, theirs = normalized(test_loader), [(image[None], mask[None]) for image, mask in own]
    for (images, masks), (pixels, truth) in zip(ours, theirs, strict=True):
        assert torch.equal(images, pixels) and torch.equal(masks, truth)

    def model() -> Any:
        torch.manual_seed(1)
        return torch.nn.Conv2d(3, 21, 3, padding=1)

    def loss(scores: Any, truth: Any) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(scores, truth, ignore_index=255)

    assert losses_of(model(), ours, loss) == losses_of(model(), theirs, loss)
    for images, masks in loader:
        assert images.shape == (4, 3, 48, 48) and masks.shape == (4, 48, 48) and masks.max() == 255


COMMAND = {
    "classification": "--model mobilenet_v3_small --train-crop-size 48 --val-resize-size 64 --val-crop-size 64 -b 8",
    "detection": "--model fasterrcnn_mobilenet_v3_large_320_fpn -b 4 --trainable-backbone-layers 6",
    "segmentation": "--model lraspp_mobilenet_v3_large --dataset voc -b 8",
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_patched_script_trains(kind: str, sets: dict[str, Path], tmp_path: Path, launch: Launch) -> None:
    home = prepare(f"references/{kind}", tmp_path / kind)
    common = f"--data-path {sets[kind]} --device cpu --epochs 1 -j 2 --print-freq 1 --output-dir {tmp_path}"
    told = launch(home / "train.py", *common.split(), *COMMAND[kind].split(), cwd=home)
    steps = {"classification": 4, "detection": 2, "segmentation": 1}[kind]
    assert told.count("Epoch: [0]  [") == steps and "Training time" in told
    assert (tmp_path / "checkpoint.pth").exists()


@pytest.mark.parametrize("kind", KINDS)
def test_metrics_of_two_ranks_are_those_of_one(
    kind: str, sets: dict[str, Path], tmp_path: Path, launch: Launch
) -> None:
    """By the evaluate() of each script; 25 and 7 records do not divide by two."""
    home = prepare(f"references/{kind}", tmp_path / kind)
    found = []
    for ranks in (1, 2):
        out = tmp_path / f"{ranks}.json"
        told = launch(HERE / "references_ranks.py", kind, home, json.dumps(vars(args_of(sets, kind))), out, ranks=ranks)
        assert "samples were used for the validation" not in told
        found.append(json.loads(out.read_text()))
    assert found[0] == found[1] and np.max(found[0]["numbers"]) > 0


@pytest.mark.parametrize("kind", KINDS)
def test_two_ranks_evaluate_every_record(kind: str, sets: dict[str, Path], tmp_path: Path, launch: Launch) -> None:
    """Without the scripts: each once, but for detection, whose evaluation counts an image once in any case."""
    (tmp_path / f"{KINDS[kind]}.py").write_text(modules()[f"{KINDS[kind]}.py"])
    out = tmp_path / "seen.json"
    told = json.dumps(vars(args_of(sets, kind)))
    launch(HERE / "references_ranks.py", kind, tmp_path, told, out, "records", ranks=2)
    seen = json.loads(out.read_text())["numbers"]
    records = {"classification": 25, "detection": 7, "segmentation": 7}[kind]
    assert sorted(set(seen)) == sorted(seen) if kind != "detection" else len(seen) == 8
    assert len(set(seen)) == records
