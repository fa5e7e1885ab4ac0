"""What the page answers about single boxes and about the files that were packed."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from drawn import draw_plain, pixels
from PIL import Image
from running import good
from test_view_app import TOKEN, ask, get, seen
from werkzeug.test import Client

from packer import open_pack
from packer.format.pack import Pack
from packer.view.app import App
from packer.view.catalog import SORTS, Catalog, Query

# -- boxes cut out


@pytest.mark.parametrize("sort", SORTS)
@pytest.mark.parametrize("class_id", [None, 1])
def test_every_box_once_in_the_order_of_the_sort(sixty: Pack, sort: str, class_id: int | None) -> None:
    query = Query(classes=() if class_id is None else (class_id,), sort=sort, ranges=(("boxes", 0, 4),))
    catalog = Catalog(sixty)
    records, rows = catalog.crops(query)
    found = list(zip(records.tolist(), map(catalog.box_number, records.tolist(), rows.tolist()), strict=True))
    expected = []
    for record in catalog.find(query).tolist():
        annotation = sixty.annotation(record)
        assert annotation.boxes is not None and annotation.box_labels is not None
        labels = annotation.box_labels.tolist()
        expected += [(record, n) for n, label in enumerate(labels) if class_id in (None, label)]
    if not sort.endswith("-box"):
        assert found == expected
        return
    assert sorted(found) == sorted(expected)
    sides = [np.diff(sixty.annotation(i).boxes[n].reshape(2, 2), axis=0)[0].astype(np.float64) for i, n in found]
    values = [w * h if sort.startswith(("largest", "smallest")) else w / h for w, h in sides]
    descending = sort.startswith(("largest", "widest"))
    assert np.allclose(values, sorted(values, reverse=descending), rtol=1e-6)


def test_a_crop_is_the_box_and_a_margin(sixty: Pack) -> None:
    answer = ask(sixty, "tiles", crops=1, sort="largest-box", count=30, side=512)
    assert answer["count"] == sum(len(sixty.annotation(i).boxes) for i in range(len(sixty)))
    for tile in answer["tiles"]:
        image, box = sixty.image(tile["record"]), sixty.annotation(tile["record"]).boxes[tile["box"]]
        ((x1, y1, x2, y2),) = tile["boxes"]
        left, top = round(box[0] - x1), round(box[1] - y1)
        assert np.allclose([left + x1, top + y1, left + x2, top + y2], box, atol=0.02)
        assert 0 <= x1 <= 2 + 0.1 * (x2 - x1) + 1 and 0 <= y1 <= 2 + 0.1 * (y2 - y1) + 1
        part = image[top : top + tile["height"], left : left + tile["width"]]
        assert np.array_equal(seen(tile["picture"]), part)
        assert tile["box_labels"] == [sixty.annotation(tile["record"]).box_labels[tile["box"]]]


def test_the_place_of_a_crop_and_none(sixty: Pack) -> None:
    tiles = ask(sixty, "tiles", crops=1, class_=1)["tiles"]
    for at in (0, 7):
        assert ask(sixty, "place", crops=1, class_=1, at=at)["box"] == tiles[at]["box"]
        assert ask(sixty, "place", crops=1, class_=1, record=tiles[at]["record"], object=tiles[at]["box"])["at"] == at
    assert ask(sixty, "tiles", crops=1, text="no such name")["count"] == 0
    assert ask(sixty, "place", crops=1, text="no such name")["record"] is None


def test_boxes_beyond_the_border_are_cut_at_it(tmp_path: Path) -> None:
    Image.fromarray(pixels(3)).resize((40, 30)).save(tmp_path / "0.png")
    (tmp_path / "boxes.txt").write_text("0.png 0 0 40 30\n0.png 39.5 29.5 40 30\n")
    (tmp_path / "src").mkdir()
    shutil.move(tmp_path / "0.png", tmp_path / "src")
    labels = ("--labels", f"list:{tmp_path / 'boxes.txt'}", "--columns", "path xmin ymin xmax ymax")
    good("build", tmp_path / "src", "-o", tmp_path / "p", *labels)
    tiles = ask(tmp_path / "p", "tiles", crops=1)["tiles"]
    assert [(tile["width"], tile["height"]) for tile in tiles] == [(40, 30), (3, 3)]


# -- the original


def build(folder: Path, *options: Any) -> Path:
    """A pack of photos of several sizes and orientations, which lies beside its source."""
    (folder / "src").mkdir(parents=True)
    for number, size in enumerate([(120, 80), (70, 130)]):
        turned = Image.Exif()
        turned[0x0112] = 6 if number else 1
        Image.fromarray(pixels(number)).resize(size).save(folder / "src" / f"{number}.jpg", quality=95, exif=turned)
    good("build", folder / "src", "-o", folder / "src.lmdb", "--labels", "none", *options)
    return folder / "src.lmdb"


@pytest.mark.parametrize(
    "options",
    [
        (), ("--resize", "48x40"), ("--resize", "48", "--fit", "pad"), ("--resize", "48", "--fit", "crop"),
        ("--resize", "48"), ("--resize", "64", "--fit", "long", "--interpolation", "bilinear"), ("--mode", "gray"),
    ],
)  # fmt: skip
def test_the_original_lies_where_the_packed_image_is_from(tmp_path: Path, options: tuple[str, ...]) -> None:
    """Resampled from the original at the place that the page gets, the packed image is found again."""
    pack = open_pack(build(tmp_path, *options))
    for record in range(2):
        assert ask(pack, "record", record=record)["original"]["found"]
        facts = ask(pack, "original", record=record)
        assert facts["exact"] and (facts["width"], facts["height"]) == [(120, 80), (130, 70)][record]
        packed = pack.image(record).astype(np.float64)
        x, y, width, height = facts["at"]
        scale = width / facts["width"], height / facts["height"]
        left, top = max(0, x), max(0, y)
        right, bottom = min(packed.shape[1], x + width), min(packed.shape[0], y + height)
        box = ((left - x) / scale[0], (top - y) / scale[1], (right - x) / scale[0], (bottom - y) / scale[1])
        size = round(right - left), round(bottom - top)
        again = Image.fromarray(seen(facts["picture"])).resize(size, Image.Resampling.BOX, box)
        if packed.shape[2] == 1:
            again = again.convert("L")
        part = packed[round(top) : round(bottom), round(left) : round(right)]
        assert np.abs(part - np.asarray(again).reshape(part.shape)).mean() < 6


def test_a_pack_resized_twice_says_that_it_cannot_tell(tmp_path: Path) -> None:
    first = build(tmp_path, "--resize", "48", "--fit", "pad")
    good("convert", first, tmp_path / "again.lmdb", "--resize", "20x30")
    app = App(open_pack(tmp_path / "again.lmdb"), TOKEN, source=tmp_path / "src")
    facts = Client(app).get(f"/{TOKEN}/api/original?record=0").json
    assert not facts["exact"] and facts["at"] == [0, 0, 20, 30]


def test_only_the_file_that_was_packed_is_shown(tmp_path: Path) -> None:
    pack = build(tmp_path)
    Image.new("RGB", (120, 80)).save(tmp_path / "src" / "0.jpg")
    answer = get(pack, f"/{TOKEN}/api/original?record=0")
    assert answer.status_code == 400 and "has changed" in answer.text
    os.unlink(tmp_path / "src" / "1.jpg")
    assert not ask(pack, "record", record=1)["original"]["found"]
    answer = get(pack, f"/{TOKEN}/api/original?record=1")
    assert answer.status_code == 400 and "was not found" in answer.text
    os.mkfifo(tmp_path / "src" / "1.jpg")
    assert get(pack, f"/{TOKEN}/api/original?record=1").status_code == 400
    assert get(pack, f"/{TOKEN}/api/original?record=0&path=1.jpg").status_code == 400


@pytest.mark.parametrize("path", [b"../secret.png", b"/etc/passwd", b"a/../../secret.png", b""])
def test_a_pack_cannot_name_files_outside_of_the_source(tmp_path: Path, monkeypatch: Any, path: bytes) -> None:
    """A pack of somebody else may name any path, and knows the digest of any public file."""
    draw_plain(tmp_path / "src", 1)
    good("build", tmp_path / "src", "-o", tmp_path / "src.lmdb", "--labels", "none")
    (file,) = (tmp_path / "src").rglob("*.jpg")
    shutil.copy(file, tmp_path / "secret.png")
    pack = open_pack(tmp_path / "src.lmdb")
    column = pack.column
    monkeypatch.setattr(pack, "column", lambda name: [path] if name == "path" else column(name))
    answer = get(pack, f"/{TOKEN}/api/original?record=0")
    assert answer.status_code == 400 and "was not found" in answer.text and "picture" not in answer.text
