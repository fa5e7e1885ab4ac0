"""COCO's pictures of segments (panoptic) and of categories (stuff) as masks of classes."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from drawn_masks import draw_mask, image_of, picture, write_files
from PIL import Image

import packer
from packer import BuildOptions, build_pack
from packer.errors import TooManyBad, UsageError
from packer.packing.build import build_packs

CATEGORIES = [
    {"id": 184, "name": "tree", "isthing": 0},
    {"id": 1, "name": "person", "isthing": 1},
    {"id": 17, "name": "cat", "isthing": 1},
]
NAMES = ("person", "cat", "tree")
"""In the order of the ids."""
OF_DRAWN = {1: 17, 2: 184, 3: 1}
"""Values of drawn masks -> categories; 0 is void."""


def expected(seed: int) -> np.ndarray:
    return np.array([255, 1, 2, 0], np.uint8)[draw_mask(seed)]


def panoptic(seed: int) -> tuple[bytes, dict[str, Any]]:
    """The picture of segments, and its entry, as panopticapi writes them; two segments may be of one category."""
    mask, random = draw_mask(seed), np.random.default_rng(seed)
    ids = np.zeros(mask.shape, np.int64)
    segments = []
    for number, category in OF_DRAWN.items():
        for half in (np.arange(40) < 20, np.arange(40) >= 20):
            segment = int(random.integers(1, 1 << 24))
            ids[(mask == number) & half] = segment
            segments.append({"id": segment, "category_id": category, "iscrowd": 0, "area": 1, "bbox": [0, 0, 1, 1]})
    colors = np.stack([ids % 256, ids // 256 % 256, ids // 65536], axis=2).astype(np.uint8)
    return picture(colors), {"segments_info": segments, "file_name": f"{seed:012}.png", "image_id": seed}


def coco(seeds: range, folder: str, split: str, images: str = "{}2017/{:012}.jpg") -> dict[str, bytes]:
    files = {images.format(split, seed): image_of(draw_mask(seed), "JPEG") for seed in seeds}
    entries = []
    for seed in seeds:
        data, entry = panoptic(seed)
        files[f"{folder}panoptic_{split}2017/{seed:012}.png"] = data
        entries.append(entry)
    listed = [{"id": seed, "file_name": f"{seed:012}.jpg", "width": 40, "height": 30} for seed in seeds]
    document = {"images": listed, "annotations": entries, "categories": CATEGORIES}
    return files | {f"annotations/panoptic_{split}2017.json": json.dumps(document).encode()}


def build(source: Path, **options: Any) -> packer.Pack:
    out = source.parent / "out.lmdb"
    build_pack(BuildOptions(str(source), str(out), workers=1, **options))
    return packer.open_pack(out)


def check(pack: packer.Pack) -> None:
    facts = pack.manifest.masks["mask"]
    assert facts.classes == NAMES and facts.ignore == 255 and facts.dtype == "uint8"
    for i, path in enumerate(pack.paths):
        assert np.array_equal(pack.mask(i), expected(int(Path(path).stem)))


@pytest.mark.parametrize("folder", ["annotations/", ""])
def test_panoptic_pictures_are_found(folder: str, tmp_path: Path) -> None:
    pack = build(write_files(tmp_path / "set", coco(range(4), folder, "val")))
    check(pack)
    assert len(pack) == 4 and tuple(pack.classes) == NAMES
    assert "--mask " + folder + "panoptic_val2017/: 4 masks fit images" in pack.manifest.notes[0]


def test_splits_of_panoptic_pictures(tmp_path: Path) -> None:
    source = write_files(
        tmp_path / "set", coco(range(3), "annotations/", "train") | coco(range(3, 5), "annotations/", "val")
    )
    made = build_packs(BuildOptions(str(source), str(tmp_path / "out.lmdb"), workers=2))
    packs = [packer.open_pack(one.path) for one in made]
    assert [len(pack) for pack in packs] == [3, 2]
    for pack in packs:
        check(pack)


@pytest.mark.parametrize("elsewhere", [False, True])
def test_the_user_names_the_file(elsewhere: bool, tmp_path: Path) -> None:
    files = coco(range(4), "annotations/", "val")
    files["other.json"] = files.pop("annotations/panoptic_val2017.json")
    source = write_files(tmp_path / "set", files)
    if elsewhere:
        (source / "other.json").rename(tmp_path / "other.json")
    file = str(tmp_path / "other.json" if elsewhere else source / "other.json")
    check(build(source, mask="annotations/panoptic_val2017", mask_values=f"panoptic:{file}", labels="none"))


def test_names_of_classes_order_the_ids(tmp_path: Path) -> None:
    (tmp_path / "names.txt").write_text("tree\nperson\ncat\nsky\n")
    pack = build(write_files(tmp_path / "set", coco(range(3), "", "val")), classes=str(tmp_path / "names.txt"))
    assert pack.manifest.masks["mask"].classes == ("tree", "person", "cat", "sky")
    turned = np.array([1, 2, 0], np.uint8)
    for i in range(3):
        known = expected(i) != 255
        mask = pack.mask(i)
        assert (
            mask is not None and np.array_equal(mask[known], turned[expected(i)[known]]) and (mask[~known] == 255).all()
        )


def test_a_segment_that_is_not_listed(tmp_path: Path) -> None:
    files = coco(range(4), "annotations/", "val")
    document = json.loads(files["annotations/panoptic_val2017.json"])
    document["annotations"][1]["segments_info"].pop(0)
    del document["annotations"][2]
    source = write_files(tmp_path / "set", files | {"annotations/panoptic_val2017.json": json.dumps(document).encode()})
    with pytest.raises(TooManyBad):
        build(source)
    pack = build(source, max_bad="2")
    check(pack)
    assert len(pack) == 2
    problems = [row.problem for row in pack.manifest.rejected]
    assert any("000000000002.png is not in the file of the segments" in problem for problem in problems)
    assert any("has the color (" in problem and "which no class has" in problem for problem in problems)


def test_an_unknown_category_is_an_error(tmp_path: Path) -> None:
    files = coco(range(2), "annotations/", "val")
    text = files["annotations/panoptic_val2017.json"].replace(b'"category_id": 17', b'"category_id": 18', 1)
    source = write_files(tmp_path / "set", files | {"annotations/panoptic_val2017.json": text})
    with pytest.raises(UsageError, match=r"panoptic_val2017\.json:1.* is of category 18, which is not in the file"):
        build(source)


def test_resume_sees_other_segments(tmp_path: Path) -> None:
    """The class of a segment is an input of the shard, though the pictures are the same."""
    files = coco(range(3), "annotations/", "val")
    source = write_files(tmp_path / "set", files)
    first = build(source)
    text = files["annotations/panoptic_val2017.json"].replace(b'"category_id": 17', b'"category_id": 184')
    write_files(source, {"annotations/panoptic_val2017.json": text})
    build_pack(BuildOptions(str(source), str(tmp_path / "again.lmdb"), workers=1))
    again = packer.open_pack(tmp_path / "again.lmdb")
    before, after = first.mask(0), again.mask(0)
    assert before is not None and after is not None
    assert (
        (before == 1).any()
        and not (after == 1).any()
        and (after == 2).sum() == (before >= 1).sum() - (before == 255).sum()
    )


def stuff(seeds: range, split: str) -> dict[str, bytes]:
    values = np.array([0, 17, 184, 1], np.uint8)
    files = {f"{split}2017/{seed:012}.jpg": image_of(draw_mask(seed), "JPEG") for seed in seeds}
    files |= {
        f"annotations/stuff_{split}2017_pixelmaps/{seed:012}.png": picture(values[draw_mask(seed)]) for seed in seeds
    }
    document = {"images": [], "annotations": [], "categories": CATEGORIES}
    return files | {f"annotations/stuff_{split}2017.json": json.dumps(document).encode()}


def test_pixel_maps_of_categories(tmp_path: Path) -> None:
    source = write_files(tmp_path / "set", stuff(range(4), "val"))
    pack = build(source)
    check(pack)
    assert tuple(pack.classes) == NAMES
    file = source / "annotations/stuff_val2017.json"
    (source / "annotations/stuff_val2017.json").rename(file := tmp_path / "any.json")
    check(build(source, mask="annotations/stuff_val2017_pixelmaps", mask_values=f"map:{file}", overwrite=True))


def test_both_kinds_of_pictures(tmp_path: Path) -> None:
    source = write_files(tmp_path / "set", coco(range(3), "annotations/", "val") | stuff(range(3), "val"))
    pack = build(source)
    check(pack)
    note = 'masks of "annotations/panoptic_val2017/"; not packed: "annotations/stuff_val2017_pixelmaps/"'
    assert note in pack.manifest.notes


def test_boxes_and_segments(tmp_path: Path) -> None:
    files = coco(range(3), "annotations/", "val")
    objects = [{"id": seed + 1, "image_id": seed, "category_id": 17, "bbox": [1, 2, 9, 9]} for seed in range(3)]
    images = json.loads(files["annotations/panoptic_val2017.json"])["images"]
    document = {"images": images, "annotations": objects, "categories": CATEGORIES}
    files["annotations/instances_val2017.json"] = json.dumps(document).encode()
    pack = build(write_files(tmp_path / "set", files))
    check(pack)
    assert pack.annotation(0).boxes is not None and set(pack.manifest.fields) >= {"boxes"}


def test_label_train_ids_beside_pixel_maps(tmp_path: Path) -> None:
    """As mmsegmentation prepares COCO-Stuff: NAME.png and NAME_labelTrainIds.png in one folder."""
    files = {f"images/val2017/{seed:012}.jpg": image_of(draw_mask(seed), "JPEG") for seed in range(3)}
    for seed in range(3):
        files[f"annotations/val2017/{seed:012}.png"] = picture(draw_mask(seed) + 90)
        files[f"annotations/val2017/{seed:012}_labelTrainIds.png"] = picture(draw_mask(seed))
    pack = build(write_files(tmp_path / "set", files))
    assert len(pack) == 3 and all(np.array_equal(pack.mask(i), draw_mask(i)) for i in range(3))


def test_segments_against_pillow(tmp_path: Path) -> None:
    """R + 256 G + 65536 B, computed from the file by Pillow."""
    data, entry = panoptic(7)
    pixels = np.asarray(Image.open(io.BytesIO(data))).astype(np.int64) @ [1, 256, 65536]
    category = {segment["id"]: segment["category_id"] for segment in entry["segments_info"]} | {0: -1}
    wanted = np.vectorize({1: 0, 17: 1, 184: 2, -1: 255}.get)(np.vectorize(category.get)(pixels))
    files = coco(range(7, 9), "", "val")
    pack = build(write_files(tmp_path / "set", files))
    assert np.array_equal(pack.mask(0), wanted)
