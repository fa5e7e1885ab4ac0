"""Masks in the layouts of published sets: CamVid, SYNTHIA, Cityscapes' colors, Mapillary Vistas, KITTI, Datumaro."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from drawn_masks import COLORS, image_of, pairs, picture, write_files
from test_build_masks import COLOR_FILES, build, drawn, masks_of, same

from packer.errors import UsageError
from packer.sources.mask_values import CITYSCAPES_CLASSES

PUBLISHED = {
    "camvid": [("Void", 0, 0, 0), ("Child", 192, 128, 64), ("Road", 128, 64, 128), ("Wall", 64, 192, 0)],
    "cityscapes": [("road", 128, 64, 128), ("sky", 70, 130, 180), ("train", 0, 80, 100), ("bicycle", 119, 11, 32)],
    "synthia": [("sky", 128, 128, 128), ("car", 64, 0, 128), ("bicycle", 0, 128, 192), ("lanemarking", 0, 175, 0)],
}
"""Some rows of CamVid's label_colors.txt, of helpers/labels.py of cityscapesScripts and of SYNTHIA's readme."""


@pytest.mark.parametrize("name", PUBLISHED)
def test_colors_of_published_sets(name: str, tmp_path: Path) -> None:
    """The message of auto names the set, and that reads its colors."""
    colors = np.array([row[1:] for row in PUBLISHED[name]], np.uint8)
    files = {f"train/{one}.png": image_of(mask) for one, mask in drawn().items()}
    files |= {f"trainannot/{one}.png": picture(colors[mask]) for one, mask in drawn().items()}
    source = write_files(tmp_path / "set", files)
    with pytest.raises(UsageError, match=rf"masks in colors.* mask_values=.colors:{name}. \(as published\), or "):
        build(source)
    pack = build(source, mask_values=f"colors:{name}")
    ids = np.array([pack.classes.index(row[0]) for row in PUBLISHED[name]])
    assert same(masks_of(pack), {one: ids[mask] for one, mask in drawn().items()})
    assert len(pack.classes) == {"camvid": 32, "cityscapes": 19, "synthia": 14}[name]


def test_black_is_of_no_class_in_the_colors_of_cityscapes(tmp_path: Path) -> None:
    files = pairs() | {
        f"masks/{one}.png": picture(np.zeros((*mask.shape, 3), np.uint8)) for one, mask in drawn().items()
    }
    pack = build(write_files(tmp_path / "set", files), mask_values="colors:cityscapes")
    assert same(masks_of(pack), {one: np.full_like(mask, 255) for one, mask in drawn().items()})
    assert tuple(pack.classes) == CITYSCAPES_CLASSES


META = {
    "label_map": {"0": "background", "1": "ant", "2": "bee", "3": "cat"},
    "segmentation_colors": COLORS[:4].tolist(),
    "background_label": "0",
}


def test_colors_of_datumaro(tmp_path: Path) -> None:
    files = pairs() | {f"masks/{name}.png": picture(COLORS[mask]) for name, mask in drawn().items()}
    pack = build(write_files(tmp_path / "set", files | {"dataset_meta.json": json.dumps(META).encode()}))
    assert same(masks_of(pack), drawn()) and pack.classes == ["background", "ant", "bee", "cat"]


@pytest.mark.parametrize("meta", ["[", '{"segmentation_colors": [[1, 2, 3]]}', '{"segmentation_colors": 3}'])
def test_bad_colors_of_datumaro(meta: str, tmp_path: Path) -> None:
    files = pairs() | {f"masks/{name}.png": picture(COLORS[mask]) for name, mask in drawn().items()}
    with pytest.raises(UsageError, match=r"dataset_meta\.json"):
        build(write_files(tmp_path / "set", files | {"dataset_meta.json": meta.encode()}))


@pytest.mark.parametrize("file", ["labelmap.csv", "dataset_meta.json", "labels only"])
def test_numbers_of_classes_beside_a_file_of_colors(file: str, tmp_path: Path) -> None:
    """The file says the names; a file of Datumaro without colors says nothing of masks."""
    if file == "labels only":
        text = '{"labels": ["x", "y"]}'
    else:
        text = json.dumps(META) if file.endswith("json") else COLOR_FILES["class_dict.csv"]
    name = "dataset_meta.json" if file == "labels only" else file
    pack = build(write_files(tmp_path / "set", pairs() | {name: text.encode()}))
    assert same(masks_of(pack), drawn())
    assert pack.classes == ([] if file == "labels only" else ["background", "ant", "bee", "cat"])


def vistas(label: Any = lambda name: name) -> dict[str, bytes]:
    """Mapillary Vistas: two versions of the classes, with instances, panoptic pictures and polygons."""
    files: dict[str, bytes] = {}
    for seed, (one, mask) in enumerate(drawn().items()):
        part = "training" if seed else "validation"
        files[f"{part}/images/{one}.jpg"] = image_of(mask, "JPEG")
        for version in ("v1.2", "v2.0"):
            ids = mask if version == "v2.0" else np.array([3, 0, 1, 2], np.uint8)[mask]
            files[f"{part}/{version}/labels/{one}.png"] = picture(ids, palette=True)
            files[f"{part}/{version}/instances/{one}.png"] = picture(ids.astype(np.uint16) * 256 + (ids > 0))
            files[f"{part}/{version}/panoptic/{one}.png"] = picture(COLORS[ids])
        files[f"{part}/v2.0/polygons/{one}.json"] = b'{"height": 30, "width": 40, "objects": []}'
    for version, names in (("v1.2", "abcd"), ("v2.0", "wxyz")):
        rows = [{"name": name, "instances": name not in "dw", "color": [i] * 3} for i, name in enumerate(names)]
        files[f"config_{version}.json"] = json.dumps({"labels": rows, "version": version}).encode()
    files["training/v2.0/panoptic/panoptic_2020.json"] = b'{"images": [], "annotations": []}'
    return files


def test_mapillary_vistas(tmp_path: Path) -> None:
    """The newer classes are taken, and a note names the others."""
    pack = build(write_files(tmp_path / "set", vistas()), split="training")
    assert same(masks_of(pack), {one: mask for one, mask in drawn().items() if one != "im0"})
    assert pack.classes == ["w", "x", "y", "z"]
    assert any('"*/v1.2/labels/"' in note and "not packed" in note for note in pack.manifest.notes)
    assert not any("config" in note for note in pack.manifest.notes)
    older = build(tmp_path / "set", split="training", mask="{dir}/../v1.2/labels/{stem}.png", overwrite=True)
    wanted = {one: np.array([3, 0, 1, 2])[mask] for one, mask in drawn().items() if one != "im0"}
    assert same(masks_of(older), wanted) and older.classes == ["a", "b", "c", "d"]


def test_semantic_masks_of_kitti(tmp_path: Path) -> None:
    """Their values are the labelIds of Cityscapes."""
    files = {f"training/image_2/{one}.png": image_of(mask) for one, mask in drawn().items()}
    ids = np.array([3, 7, 26, 33], np.uint8)
    files |= {f"training/semantic/{one}.png": picture(ids[mask]) for one, mask in drawn().items()}
    files |= {
        f"training/instance/{one}.png": picture(ids[mask].astype(np.uint16) * 256) for one, mask in drawn().items()
    }
    pack = build(write_files(tmp_path / "set", files))
    assert same(masks_of(pack), {one: np.array([255, 0, 13, 18])[mask] for one, mask in drawn().items()})
    assert tuple(pack.classes) == CITYSCAPES_CLASSES


@pytest.mark.parametrize("files", [
    {"street/1.jpg": image_of(drawn()["im0"], "JPEG"), "street/1_seg.png": picture(COLORS[drawn()["im0"]])},
    {f"street/{name}": image_of(drawn()["im0"], "PNG") for name in ("1.png", "1_seg.png", "1_parts_1.png")},
    {"train/images/1.png": image_of(drawn()["im0"]), "train/1_GT.bmp": picture(COLORS[drawn()["im0"]], "BMP")},
])  # fmt: skip
def test_the_mask_of_the_only_image_is_no_image(files: dict[str, bytes], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"masks in colors|named like a mask of others"):
        build(write_files(tmp_path / "set", files))


def test_a_folder_of_masks_that_is_named_is_not_matched_by_other_parts(tmp_path: Path) -> None:
    files = {f"RGBLeft/{one}.png": image_of(mask) for one, mask in drawn().items()}
    files |= {
        f"{folder}/{one}.png": picture(mask) for folder in ("GTLeft", "DepthLeft") for one, mask in drawn().items()
    }
    pack = build(write_files(tmp_path / "set", files), labels="none", mask="GTLeft", part=["depth=DepthLeft:map"])
    assert len(pack) == 4 and same(masks_of(pack), drawn())
