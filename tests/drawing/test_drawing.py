"""`packer sample`: the folders it draws are what they say, to packer and to readers of their own formats."""

from __future__ import annotations

import csv
import errno
import hashlib
import json
import signal
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from PIL import Image
from running import good, refused

from packer import open_pack
from packer.errors import StorageError, UsageError
from packer.sources.synthetic import CLASSES, LAYOUTS, _Drawing, draw_sample, scene


def digest_of(folder: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        digest.update(str(path.relative_to(folder)).encode() + path.read_bytes())
    return digest.hexdigest()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_same_seed_same_bytes(tmp_path: Path, layout: str) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        draw_sample(tmp_path / name, layout, 7, 48, seed)
    assert digest_of(tmp_path / "a") == digest_of(tmp_path / "b") != digest_of(tmp_path / "c")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_packs_without_an_option(tmp_path: Path, layout: str) -> None:
    """What the summary says to run runs, and finds every image and class."""
    said = good("sample", tmp_path / "src", "--layout", layout, "--count", 30, "--size", 64).out
    assert f"packer build {tmp_path}/src" in said
    good("build", tmp_path / "src", "-o", tmp_path / "pack")
    packs = [open_pack(path) for path in tmp_path.glob("pack*")]  # one, or one for each split
    assert sum(map(len, packs)) == 30 and len(packs) == (2 if layout in ("voc", "yolo") else 1)
    wanted = {"folder": "label", "list": "landmarks", "voc": "boxes", "yolo": "boxes"}[layout]
    for pack in packs:
        assert not pack.manifest.rejected and list(pack.manifest.classes) == list(CLASSES)
        assert wanted in pack.manifest.fields


def test_boxes_hold_their_shape_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pixels that are not background lie inside the boxes, and reach each side of each box."""
    drawn = [scene(number, 96, 3, 4) for number in range(20)]
    monkeypatch.setattr("packer.sources.synthetic._add_shape", lambda *_: None)
    for number, one in enumerate(drawn):
        differs = (one.image != scene(number, 96, 3, 4).image).any(axis=2)
        for shape in one.shapes:
            xmin, ymin, xmax, ymax = shape.box
            part = differs[ymin:ymax, xmin:xmax]
            assert all(side.any() for side in (part[:2], part[-2:], part[:, :2], part[:, -2:]))
            differs[max(ymin - 2, 0) : ymax + 2, max(xmin - 2, 0) : xmax + 2] = False  # smooth edges reach out
        assert not differs.any()


def test_labels_say_the_same_in_each_format(tmp_path: Path) -> None:
    for layout in ("voc", "yolo"):
        draw_sample(tmp_path / layout, layout, 10, 80, 5)
    names = yaml.safe_load((tmp_path / "yolo" / "data.yaml").read_text())["names"]
    val = (tmp_path / "voc" / "ImageSets" / "Main" / "val.txt").read_text().split()
    assert val == ["000008", "000009"]
    for number in range(10):
        stem = f"{number:06d}"
        split = "val" if stem in val else "train"
        with Image.open(tmp_path / "yolo" / "images" / split / f"{stem}.jpg") as image:
            width, height = image.size
        xml = ET.parse(tmp_path / "voc" / "Annotations" / f"{stem}.xml")
        boxes = []
        for one in xml.iter("object"):
            x1, y1, x2, y2 = (int(one.findtext(f"bndbox/{side}") or "") for side in ("xmin", "ymin", "xmax", "ymax"))
            boxes.append((one.findtext("name"), x1 - 1, y1 - 1, x2, y2))
        rows = []
        for line in (tmp_path / "yolo" / "labels" / split / f"{stem}.txt").read_text().splitlines():
            name, cx, cy, w, h = line.split()
            x, y, w, h = float(cx) * width, float(cy) * height, float(w) * width, float(h) * height
            rows.append((names[int(name)], *(round(v) for v in (x - w / 2, y - h / 2, x + w / 2, y + h / 2))))
        assert rows == boxes


def test_landmarks_lie_on_the_shape(tmp_path: Path) -> None:
    draw_sample(tmp_path / "list", "list", 10, 80, 5)
    rows = list(csv.reader((tmp_path / "list" / "landmarks.csv").read_text().splitlines()))[1:]
    for number, row in enumerate(rows):
        shape = scene(number, 80, 5, 1).shapes[0]
        points = np.array(row[1:-1], float).reshape(4, 2)
        assert row[-1] == shape.name
        assert [*points.min(axis=0), *points.max(axis=0)] == list(shape.box)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "full"), KeyboardInterrupt()])
@pytest.mark.parametrize("there", [True, False])
def test_half_a_sample_is_removed(
    tmp_path: Path, layout: str, error: BaseException, there: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    if there:
        out.mkdir()
    write, left = _Drawing._write, 5

    def full(self: _Drawing, *arguments: Any) -> None:
        nonlocal left
        left -= 1
        write(self, *arguments)
        if not left:
            raise error

    monkeypatch.setattr(_Drawing, "_write", full)
    with pytest.raises(StorageError if isinstance(error, OSError) else KeyboardInterrupt) as caught:
        draw_sample(out, layout, 7, 48)
    if isinstance(error, OSError):
        assert str(caught.value).endswith("cannot write: full; free some space, or name another folder")
    assert [path.name for path in tmp_path.rglob("*")] == ["out"] * there
    draw_sample(out, layout, 7, 48)


@pytest.mark.parametrize("there", [True, False])
def test_a_sample_that_was_killed_is_drawn_again(tmp_path: Path, there: bool) -> None:
    out = tmp_path / "out"
    if there:
        out.mkdir()
    lines = """if True:
        import os, signal, sys
        from packer.sources.synthetic import draw_sample
        draw_sample(sys.argv[1], "voc", 7, 48, progress=lambda _: os.kill(os.getpid(), signal.SIGKILL))
    """
    ran = subprocess.run([sys.executable, "-c", lines, out], check=False)
    assert ran.returncode == -signal.SIGKILL
    (left,) = (out if there else tmp_path).iterdir()
    assert left.name == ("sample.partial" if there else "out.partial")
    draw_sample(out, "voc", 7, 48)
    draw_sample(tmp_path / "once", "voc", 7, 48)
    assert digest_of(out) == digest_of(tmp_path / "once")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["once", "out"]


def test_a_folder_that_a_sample_did_not_leave_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "out.partial").mkdir()
    (tmp_path / "out.partial" / "mine.txt").write_text("mine")
    assert "out.partial: exists and was not left by packer sample" in refused(2, "sample", tmp_path / "out")
    assert [path.name for path in tmp_path.rglob("*")] == ["out.partial", "mine.txt"]


def test_a_folder_that_holds_anything_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    assert "is not empty" in refused(2, "sample", tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["mine.txt"]


@pytest.mark.parametrize(
    ("option", "value"),
    [("--count", 0), ("--count", -1), ("--size", 31), ("--size", 5000), ("--seed", -1)],
)
def test_values_out_of_range(tmp_path: Path, option: str, value: int) -> None:
    assert option in refused(2, "sample", tmp_path / "out", option, value)
    assert not (tmp_path / "out").exists()


def test_unknown_layout(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="choose one of folder, voc, yolo, list"):
        draw_sample(tmp_path / "out", "coco")


def test_json(tmp_path: Path) -> None:
    facts = json.loads(good("sample", tmp_path / "out", "--count", 2, "--json").out)
    assert facts["images"] == 2 and facts["classes"] == list(CLASSES)


def test_one_image_of_each_layout(tmp_path: Path) -> None:
    for layout in LAYOUTS:
        draw_sample(tmp_path / layout, layout, 1, 32)
        good("build", tmp_path / layout, "-o", tmp_path / f"{layout}.pack")
