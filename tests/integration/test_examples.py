"""The examples of transformers train from packs as docs/trainers.md shows it, and evaluate as from files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from conftest import HERE, Launch
from drawn import pixels
from PIL import Image
from published import modules, prepare

from packer import BuildOptions, build_pack

transformers = pytest.importorskip("transformers", reason="transformers is optional, and not installed here")
pytest.importorskip("torchvision", reason="torchvision is optional, and not installed here")

SIDE, COUNT = 32, 14
SIZES = ((40, 32), (32, 48), (36, 36))
NAMES = ("ant", "bee", "cat")


def draw(home: Path, kind: str, count: int = COUNT) -> list[dict[str, Any]]:
    """Images and their labels; the pack of them is train.lmdb."""
    rows, coco = (
        [],
        {"images": [], "annotations": [], "categories": [{"id": i, "name": n} for i, n in enumerate(NAMES)]},
    )
    for i in range(count):
        width, height = SIZES[i % 3]
        folder = home / "images" / (NAMES[i % 3] if kind == "classes" else "all")
        for one in (folder, home / "masks" / "all"):
            one.mkdir(parents=True, exist_ok=True)
        image = Image.fromarray(pixels(i, width, height))
        image.save(folder / f"{i:02}.png")
        mask = Image.fromarray((np.add.outer(np.arange(height) // 7, np.arange(width) // 5) % 3).astype(np.uint8))
        mask.save(home / "masks" / "all" / f"{i:02}.png")
        box = [2.0 + i % 5, 3.0, 16.0, 12.0]
        coco["images"].append({"id": i, "file_name": f"all/{i:02}.png", "width": width, "height": height})
        its = {"id": i + 1, "image_id": i, "category_id": i % 3, "bbox": box, "area": box[2] * box[3], "iscrowd": 0}
        coco["annotations"].append(its)
        objects = {"bbox": [box], "category": [i % 3], "area": [its["area"]]}
        rows.append({"image_id": i, "image": image, "objects": objects, "label": mask})
    (home / "boxes.json").write_text(json.dumps(coco))
    labels: dict[str, Any] = {
        "classes": {"labels": ("folder",)},
        "boxes": {"labels": (f"coco:{home / 'boxes.json'}",)},
        "masks": {"mask": str(home / "masks"), "ignore_id": 255},
    }[kind]
    build_pack(BuildOptions(str(home / "images"), str(home / "train.lmdb"), encode="copy", workers=1, **labels))
    return rows


def page_module() -> ModuleType:
    module = ModuleType("packed_trainer")
    exec(compile(modules()["packed_trainer.py"], "packed_trainer", "exec"), module.__dict__)
    return module


def model_of(kind: str) -> tuple[Any, Any]:
    """A small model with random weights, and its image processor."""
    torch.manual_seed(0)
    tiny: dict[str, Any] = {
        "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16, "patch_size": 8,
    }  # fmt: skip
    square = {"height": SIDE, "width": SIDE}
    if kind == "classes":
        config = transformers.ViTConfig(image_size=SIDE, num_labels=3, **tiny)
        return transformers.ViTForImageClassification(config), transformers.ViTImageProcessor(size=square)
    if kind == "boxes":
        config = transformers.YolosConfig(image_size=[SIDE, SIDE], num_labels=3, num_detection_tokens=5, **tiny)
        size = {"max_height": SIDE, "max_width": SIDE}
        processor = transformers.YolosImageProcessor(size=size, do_pad=True, pad_size=square)
        return transformers.YolosForObjectDetection(config), processor
    config = transformers.SegformerConfig(
        num_labels=3, depths=[1] * 4, hidden_sizes=[8, 16, 24, 32], num_attention_heads=[1, 1, 2, 2],
        decoder_hidden_size=16, semantic_loss_ignore_index=255,
    )  # fmt: skip
    processor = transformers.SegformerImageProcessor(size=square, do_reduce_labels=False)
    return transformers.SegformerForSemanticSegmentation(config), processor


TRAINERS = {"classes": "ClassTrainer", "boxes": "BoxTrainer", "masks": "MaskTrainer"}


def arguments(home: Path, **options: Any) -> Any:
    return transformers.TrainingArguments(
        str(home / "run"), per_device_train_batch_size=4, num_train_epochs=2, use_cpu=True, report_to=[], seed=0,
        disable_tqdm=True, save_strategy="no", logging_steps=1, learning_rate=1e-3, remove_unused_columns=False,
        **options,
    )  # fmt: skip


@pytest.mark.parametrize("kind", TRAINERS)
def test_a_trainer_of_the_page_trains(kind: str, tmp_path: Path) -> None:
    draw(tmp_path, kind)
    model, processor = model_of(kind)
    trainer = getattr(page_module(), TRAINERS[kind])(
        str(tmp_path / "train.lmdb"), model=model, args=arguments(tmp_path), processing_class=processor
    )
    trainer.train()
    losses = [line["loss"] for line in trainer.state.log_history if "loss" in line]
    assert len(losses) == 2 * 4 and all(np.isfinite(losses))


def test_boxes_are_those_of_the_image_processor(tmp_path: Path) -> None:
    """Without flip and colors: fitted into the size, at the top left, boxes as fractions of what the model sees."""
    rows = draw(tmp_path, "boxes")
    model, processor = model_of("boxes")
    trainer = page_module().BoxTrainer(
        str(tmp_path / "train.lmdb"), model=model, args=arguments(tmp_path), processing_class=processor
    )
    loader = trainer.get_train_dataloader()
    loader = type(loader)(**{**loader._settings, "sampler": loader.sampler, "flip": False, "color_jitter": None})
    for images, targets in loader:
        for image, target, label in zip(images, targets, trainer.labels(images, targets), strict=True):
            row = rows[target["extras"]["image_id"]]
            box, category = row["objects"]["bbox"][0], row["objects"]["category"][0]
            its = {"category_id": category, "iscrowd": 0, "area": box[2] * box[3], "bbox": box}
            annotations = {"image_id": row["image_id"], "annotations": [its]}
            found = processor(images=[np.array(row["image"])], annotations=[annotations], return_tensors="pt")
            assert torch.equal(label["class_labels"], found["labels"][0]["class_labels"])
            assert torch.allclose(label["boxes"], found["labels"][0]["boxes"], atol=1e-4)
            shown = found["pixel_values"][0] != 0
            assert (image - found["pixel_values"][0])[shown].abs().mean() < 0.02


def test_labels_are_reduced_as_by_the_script(tmp_path: Path) -> None:
    draw(tmp_path, "masks", 4)
    model, processor = model_of("masks")
    processor.do_reduce_labels = True
    trainer = page_module().MaskTrainer(
        str(tmp_path / "train.lmdb"), model=model, args=arguments(tmp_path), processing_class=processor
    )
    for images, masks in trainer.get_train_dataloader():
        labels = masks.numpy().astype(np.uint8)
        labels[labels == 0] = 255
        labels -= 1
        labels[labels == 254] = 255
        assert np.array_equal(trainer.labels(images, masks).numpy(), labels)


def save_model(kind: str, home: Path) -> None:
    model, processor = model_of(kind)
    model.save_pretrained(home / "model")
    processor.save_pretrained(home / "model")


def save_set(home: Path, rows: list[dict[str, Any]], features: dict[str, Callable[[Any], Any]]) -> Path:
    """Write rows as a set of the Hub, whose three splits are the same."""
    datasets = pytest.importorskip("datasets", reason="datasets is not installed")
    data = datasets.Dataset.from_list([{name: row[name] for name in features} for row in rows])
    data = data.cast(datasets.Features(features))
    (home / "data").mkdir()
    for split in ("train", "validation", "test"):
        data.to_parquet(home / "data" / f"{split}-00000.parquet")
    (home / "id2label.json").write_text(json.dumps(dict(enumerate(NAMES))))
    return home


SCRIPTS = {
    "classes": "image-classification/run_image_classification.py",
    "boxes": "object-detection/run_object_detection.py",
    "masks": "semantic-segmentation/run_semantic_segmentation.py",
}


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("kind", TRAINERS)
def test_the_patched_script_trains(kind: str, ranks: int, tmp_path: Path, launch: Launch) -> None:
    """And counts each of 14 records once, which do not divide by two ranks and batches of four.

    That of boxes cannot evaluate in two processes, patched or not: its targets are then joined field by field.
    """
    datasets = pytest.importorskip("datasets", reason="datasets is not installed")
    folder, _, script = SCRIPTS[kind].partition("/")
    home = prepare(f"examples/pytorch/{folder}", tmp_path / folder)
    rows = draw(tmp_path, kind)
    save_model(kind, tmp_path)
    if kind == "classes":
        given = ["--train_dir", tmp_path / "images", "--validation_dir", tmp_path / "images"]
    else:
        category = datasets.ClassLabel(names=list(NAMES))
        number, image = datasets.Value("float64"), datasets.Image()
        objects = {"bbox": [[number]], "category": [category], "area": [number]}
        features = {
            "boxes": {"image_id": datasets.Value("int64"), "image": image, "objects": objects},
            "masks": {"image": image, "label": image},
        }[kind]
        (tmp_path / "set").mkdir()
        given = ["--dataset_name", save_set(tmp_path / "set", rows, features)]
    evaluated = [] if kind == "boxes" and ranks > 1 else ["--do_eval"]
    more = {"boxes": ["--image_square_size", SIDE, "--eval_do_concat_batches", "false"]}.get(kind, [])
    launch(
        HERE / "run_example.py", home / script, "--model_name_or_path", tmp_path / "model", *given, *more, *evaluated,
        "--output_dir", tmp_path / "run", "--do_train", "--num_train_epochs", 1, "--report_to", "none",
        "--per_device_train_batch_size", 4, "--per_device_eval_batch_size", 4, "--remove_unused_columns", "false",
        "--use_cpu", "--save_strategy", "no", cwd=tmp_path, ranks=ranks, env={"HF_HUB_OFFLINE": "1"},
    )  # fmt: skip
    found = json.loads((tmp_path / "run" / "all_results.json").read_text())
    assert np.isfinite(found["train_loss"])
    if kind != "boxes":
        assert found["eval_count"] == COUNT
