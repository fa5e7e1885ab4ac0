"""A line of JSON for each image: Hugging Face's metadata.jsonl, and manifests of SageMaker Ground Truth."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from drawn import image_file
from PIL import Image
from running import good, refused

from packer import open_pack
from packer.errors import UsageError
from packer.sources import open_source, recognize
from packer.sources.source import SourceOptions
from packer.sources.tree import find_tree

BOXES = {"a": [(30, 20, 10, 9), (1, 2, 3, 4)], "b": [], "c": [(0, 0, 40, 30)]}


@pytest.fixture
def read(tmp_path):
    """Write these lines beside images of 40x30; return the source and {name: annotation}."""

    def of(lines, name="metadata.jsonl", kind="jsonl", folder="", **options):
        place = tmp_path / folder
        place.mkdir(exist_ok=True)
        for stem in BOXES:
            Image.new("L", (40, 30)).save(place / f"{stem}.png")
        text = "".join((one if isinstance(one, str) else json.dumps(one)) + "\n" for one in lines)
        (tmp_path / name).write_text(text)
        tree, _ = find_tree(os.fsencode(tmp_path))
        assert recognize(tree, SourceOptions()).spec == "jsonl"
        source = open_source(kind, tree, SourceOptions(**options))
        return source, {os.fsdecode(i): source.annotate(i) for i in tree.images}

    return of


def xyxy(boxes):
    return tuple((x, y, x + w, y + h) for x, y, w, h in boxes)


@pytest.mark.parametrize("corners", [False, True])
@pytest.mark.parametrize("as_list", [False, True])
def test_objects_of_hugging_face(read, corners, as_list):
    lines = []
    for stem, boxes in BOXES.items():
        written = [list(box) for box in (xyxy(boxes) if corners else boxes)]
        objects = {
            "bbox": written,
            "categories": [i % 2 for i in range(len(boxes))],
            "area": [w * h for *_, w, h in boxes],
        }
        if as_list:
            objects = [dict(zip(objects, one, strict=True)) for one in zip(*objects.values(), strict=True)]
        lines.append({"file_name": f"{stem}.png", "objects": objects, "image_id": 7})
    source, found = read(lines)
    for stem, boxes in BOXES.items():
        annotation = found[f"{stem}.png"]
        assert annotation.boxes == xyxy(boxes) and annotation.box_labels == ("0", "1")[: len(boxes)]
        assert annotation.extras["image_id"] == 7
    assert found["a.png"].box_fields == {"area": (90, 12)}
    assert any(f'read as "xmin ymin {"xmax ymax" if corners else "w h"}"' in note for note in source.notes)


def test_boxes_that_may_be_both_are_asked_for(read):
    lines = [{"file_name": f"{stem}.png", "objects": {"bbox": [[1, 2, 20, 20]], "category": ["x"]}} for stem in BOXES]
    with pytest.raises(UsageError, match=r'may be any of .*columns="xmin ymin w h"'):
        read(lines)
    assert read(lines, columns="xmin ymin xmax ymax")[1]["a.png"].boxes == ((1, 2, 20, 20),)
    with pytest.raises(UsageError, match="pass one of"):
        read(lines, columns="path label")


def test_texts_and_classes_of_hugging_face(read):
    _, found = read([{"file_name": f"{s}.png", "text": f'"{s}"', "label": i, "n": 0.5} for i, s in enumerate(BOXES)])
    assert found["b.png"].label == "1" and found["b.png"].extras == {"text": '"b"', "n": 0.5}
    assert found["b.png"].boxes is None


def test_what_has_no_field_is_noted(read):
    source, _ = read([{"file_name": f"{s}.png", "label": "x", "mask_file_name": "m.png", "v": [1]} for s in BOXES])
    assert "left out, because packer has no field for them: 3 mask_file_names, 3 vs" in source.notes


def test_a_manifest_of_sagemaker(read):
    lines = [
        {
            "source-ref": f"s3://bucket/set/{stem}.png",
            "boxes": {
                "annotations": [
                    {"class_id": i % 2, "left": x, "top": y, "width": w, "height": h}
                    for i, (x, y, w, h) in enumerate(boxes)
                ],
                "image_size": [{"width": 40, "height": 30, "depth": 3}],
            },
            "boxes-metadata": {
                "objects": [{"confidence": 0.9}] * len(boxes),
                "class-map": {"0": "dog", "1": "cat"},
                "type": "groundtruth/object-detection",
                "human-annotated": "yes",
                "creation-date": "2026-11-18T02:53:27",
                "job-name": "labeling-job/boxes",
            },
        }
        for stem, boxes in BOXES.items()
    ]
    _, found = read(lines, "output.manifest", folder="images")
    for stem, boxes in BOXES.items():
        annotation = found[f"images/{stem}.png"]
        assert annotation.boxes == xyxy(boxes) and annotation.box_labels == ("dog", "cat")[: len(boxes)]
        assert annotation.image_size == (40, 30)


def test_classes_in_a_manifest(read):
    facts = {"class-name": "dog", "confidence": 0.5, "type": "groundtruth/image-classification", "job-name": "x"}
    _, found = read([{"source-ref": f"s3://b/{s}.png", "x": 0, "x-metadata": facts} for s in BOXES], "output.manifest")
    assert [one.label for one in found.values()] == ["dog"] * 3


def test_a_size_beyond_all_floats_is_no_vote(read):
    """It is compared with that of the image when that is packed."""
    objects = {"bbox": [[1, 2, 3, 1]], "categories": [0]}
    _, found = read([{"file_name": f"{s}.png", "width": 10**400, "height": 30, "objects": objects} for s in BOXES])
    assert found["a.png"].boxes == ((1, 2, 4, 3),)


def test_a_line_that_is_not_json_is_named(read):
    with pytest.raises(UsageError, match=r"metadata.jsonl:2: is not an object in JSON"):
        read([{"file_name": "a.png", "label": "x"}, "{", {"file_name": "b.png", "label": "x"}])


@pytest.mark.parametrize("labels", ["auto", "jsonl"])
def test_the_command_that_is_named_for_boxes_of_two_forms_packs_them(labels: str, tmp_path: Path) -> None:
    """Both forms fit: packer asks, and what it says to write works."""
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "a.jpg").write_bytes(image_file(1, 90, 80))
    line = {"file_name": "a.jpg", "objects": {"bbox": [[1, 2, 30, 40]], "categories": ["dog"]}}
    (tmp_path / "set" / "metadata.jsonl").write_text(json.dumps(line) + "\n")
    given = ("build", tmp_path / "set", "--labels", labels, "-o", tmp_path / "p")
    asked = refused(2, *given)
    for form, box in {"xmin ymin w h": [1, 2, 31, 42], "xmin ymin xmax ymax": [1, 2, 30, 40]}.items():
        assert f'--columns "{form}"' in asked
        good(*given, "--columns", form, "--overwrite")
        assert open_pack(tmp_path / "p").annotation(0).boxes.tolist() == [box]
