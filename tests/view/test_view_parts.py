"""Maps, second images, texts, json and arrays in the page, and the outlines of objects that have masks."""

from __future__ import annotations

import base64
import io
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import looking
import numpy as np
import pytest
from drawn_instances import NAMES, draw_instances
from drawn_masks import write_files
from PIL import Image, ImageDraw
from running import good

import packer
from packer import BuildOptions, build_pack
from packer.errors import DamagedPack
from packer.images.npy_files import save_npy as as_npy
from packer.model.annotation import PartSpec
from packer.view.batches import BatchQuery, batch_facts
from packer.view.export import export
from packer.view.facts import crop_facts, pack_facts, record_facts, tile_facts
from packer.view.part_facts import SHOWN, TILE_SIDE
from packer.view.pictures import LARGEST_SIDE

PARTS = ("depth=depth:map", "far=far:map", "right=right:image", "code=code:array", "said=said:text", "more=more:json")
HEIGHT, WIDTH = 60, 80


def depth_of(i: int) -> np.ndarray:
    depth = np.add.outer(np.arange(HEIGHT) * 10, np.arange(WIDTH) + 100 * (i + 1)).astype(np.uint16)
    depth[:5, :7] = 0
    return depth


def far_of(i: int) -> np.ndarray:
    far = np.random.default_rng(i).random((HEIGHT, WIDTH, 2), np.float32)
    far[3, 4] = np.nan
    return far


def image_of(i: int) -> np.ndarray:
    return np.random.default_rng(i).integers(0, 256, (HEIGHT, WIDTH, 3), np.uint8)


def picture(values: np.ndarray) -> bytes:
    return cv2.imencode(".png", values)[1].tobytes()


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three images with a part of each kind; the last one has no text."""
    home, files = tmp_path_factory.mktemp("parts"), {}
    for i in range(3):
        files[f"images/im{i}.png"] = picture(image_of(i))
        files[f"right/im{i}.png"] = picture(image_of(9 + i)[..., ::-1])
        files[f"depth/im{i}.png"], files[f"far/im{i}.npy"] = picture(depth_of(i)), as_npy(far_of(i))
        files[f"code/im{i}.npy"] = as_npy(np.arange(6, dtype=np.float16).reshape(2, 3) * i)
        files[f"more/im{i}.json"] = json.dumps(["one", "zwei & <b>"] if i else {"n": 1, "ä": [None]}).encode()
        if i < 2:
            files[f"said/im{i}.txt"] = f"a <b>drawing</b>, {i}\nsecond\x1b line".encode()
    options = {"part": PARTS, "labels": ("none",), "missing_labels": "empty", "workers": 1, "encode": "png"}
    build_pack(BuildOptions(str(write_files(home / "set", files)), str(home / "set.lmdb"), **options))
    return home / "set.lmdb"


@pytest.fixture(scope="module")
def pack(path: Path) -> packer.Pack:
    return packer.open_pack(path)


def pixels(uri: str) -> np.ndarray:
    image = Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2])))
    return np.asarray(image.convert("RGBA" if image.mode == "P" else "RGB"))


def parts_of(facts: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {part["name"]: part for part in facts["parts"]}


def turbo(levels: np.ndarray) -> np.ndarray:
    return cv2.applyColorMap(levels.astype(np.uint8), cv2.COLORMAP_TURBO)[..., ::-1]


@pytest.mark.parametrize("name", ["depth", "far"])
def test_maps_have_colors_where_they_are_known(pack: packer.Pack, name: str) -> None:
    """The colors are those of OpenCV, from the 1st to the 99th percentile of the known values."""
    value = depth_of(1) if name == "depth" else far_of(1)[..., 0]
    known = (value != 0) & np.isfinite(value)
    low, high = np.percentile(value[known].astype(np.float64), (1, 99))
    levels = np.clip((np.where(known, value, low) - low) / (high - low), 0, 1) * 254
    for facts in (tile_facts(pack, 1), record_facts(pack, 1)):
        over = pixels(parts_of(facts)[name]["picture"])
        assert np.array_equal(over[..., 3] == 255, known)
        assert np.array_equal(over[known][:, :3], turbo(np.rint(levels))[known])
    part = parts_of(record_facts(pack, 1))[name]
    rows = dict(part["rows"])
    expected = [value[known].min(), np.median(value[known]), value[known].max()]
    assert [float(text) for text in rows["lowest, median, highest"].split(", ")] == pytest.approx(expected, rel=1e-4)
    assert rows["unknown"] == f"{1 - known.mean():.2%}"
    assert rows.get("shown") == (None if name == "depth" else "channel 1 of 2")
    assert [float(text) for text in part["ends"]] == pytest.approx([low, high], rel=1e-4)
    assert pack_facts(pack)["overlays"] == ["depth", "far"]


@pytest.mark.parametrize("value", [np.zeros((4, 5), np.uint16), np.full((4, 5), 7, np.uint16)])
def test_maps_of_one_value_or_none(value: np.ndarray) -> None:
    facts = SHOWN["map"].facts_of(value, PartSpec("depth", "map", "uint16", ignore=0), LARGEST_SIDE)
    assert len(np.unique(pixels(facts["picture"])[..., 3])) == 1
    assert pixels(facts["picture"])[0, 0, 3] == (255 if value.any() else 0)


def test_large_maps_and_images_are_small_over_tiles() -> None:
    values = np.tile(np.arange(600, dtype=np.float32), (300, 1))
    over = pixels(SHOWN["map"].facts_of(values, PartSpec("far", "map", "float32"), TILE_SIDE)["picture"])
    assert over.shape == (128, 256, 4)
    image = np.zeros((300, 600, 3), np.uint8)
    assert pixels(SHOWN["image"].facts_of(image, PartSpec("right", "image"), TILE_SIDE)["picture"]).shape[1] == 256


def test_images_texts_json_and_arrays(pack: packer.Pack) -> None:
    parts = parts_of(record_facts(pack, 0))
    assert parts["right"]["as"] == "beside" and np.array_equal(pixels(parts["right"]["picture"]), image_of(9))
    assert parts["said"]["texts"] == ["a <b>drawing</b>, 0\nsecond\\x1b line"]
    assert json.loads(parts["more"]["code"]) == {"n": 1, "ä": [None]} and "\n  " in parts["more"]["code"]
    parts = parts_of(record_facts(pack, 2))
    assert "said" not in parts and parts["more"]["texts"] == ["one", "zwei & <b>"]
    assert parts["code"]["rows"] == [["shape, dtype", "[2, 3], float16"], ["lowest, mean, highest", "0, 5, 10"]]
    assert "code" not in parts_of(tile_facts(pack, 2))


def test_what_is_attached_is_shown_as_parts_are(path: Path, tmp_path: Path) -> None:
    shutil.copytree(path, tmp_path / "pack")
    np.save(tmp_path / "codes.npy", np.arange(12, dtype=np.float32).reshape(3, 4))
    (tmp_path / "alt.jsonl").write_text(
        "".join(json.dumps({"key": f"{i:08}", "alt": f"Nr. {i}"}) + "\n" for i in range(3))
    )
    good("attach", tmp_path / "pack", tmp_path / "codes.npy", "--as", "embedding")
    good("attach", tmp_path / "pack", tmp_path / "alt.jsonl", "--as", "alt")
    parts = parts_of(record_facts(packer.open_pack(tmp_path / "pack"), 1))
    assert parts["alt"]["texts"] == ["Nr. 1"] and "depth" in parts
    assert parts["embedding"]["rows"] == [["shape, dtype", "[4], float32"], ["lowest, mean, highest", "4, 5.5, 7"]]


def test_a_sheet_has_maps_and_texts(pack: packer.Pack, tmp_path: Path) -> None:
    export(pack, tmp_path / "sheet.html", 3)
    page = (tmp_path / "sheet.html").read_text()
    assert page.count("image-rendering:pixelated") == 3 and "<b>" not in page
    assert "a &lt;b&gt;drawing&lt;/b&gt;, 1\n" in page and "zwei &amp; &lt;b&gt;" in page


def test_samples_of_batches_have_their_parts(pack: packer.Pack) -> None:
    pytest.importorskip("torch")
    asked = BatchQuery(samples=3, crop="none", flip=False)
    for sample in batch_facts(pack, asked, lambda record: tile_facts(pack, record))["samples"]:
        parts, i = parts_of(sample), sample["record"]
        assert parts == parts_of(record_facts(pack, i))


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> packer.Pack:
    home = tmp_path_factory.mktemp("objects")
    build_pack(BuildOptions(str(draw_instances(home / "set")), str(home / "set.lmdb"), instance_masks=True, workers=1))
    return packer.open_pack(home / "set.lmdb")


def inside(path: str, width: int, height: int) -> np.ndarray:
    """The pixels that a path goes through or around, drawn by Pillow; those of holes are not."""
    canvas = Image.new("L", (width, height))
    for ring in path.split("Z")[:-1]:
        points = [tuple(int(float(number)) for number in one.split()) for one in ring[1:].split("L")]
        one = Image.new("L", (width, height))
        ImageDraw.Draw(one).polygon(points, fill=1, outline=1) if len(points) > 1 else one.putpixel(points[0], 1)
        canvas = Image.fromarray(np.asarray(canvas) ^ np.asarray(one))
    return np.asarray(canvas) > 0


def test_outlines_are_those_of_the_masks(objects: packer.Pack) -> None:
    """A path goes through the outermost pixels, and around holes through those beside them."""
    for record in range(len(objects)):
        facts, masks = record_facts(objects, record), objects.instance_masks(record)
        assert [crowd for _, crowd in facts["outlines"]] == [n == 4 for n in range(7)]
        for (path, _), mask in zip(facts["outlines"], masks, strict=True):
            drawn = inside(path, facts["width"], facts["height"])
            edge = cv2.morphologyEx(mask, cv2.MORPH_GRADIENT, np.ones((3, 3), np.uint8)) > 0
            assert np.array_equal(drawn & ~edge, (mask > 0) & ~edge) and bool(path) == bool(mask.any())


def test_outlines_of_a_box_that_is_cut_out(objects: packer.Pack) -> None:
    facts, (x, y, _, _) = crop_facts(objects, 0, 2)  # a ring
    ((path, _),) = facts["outlines"]
    numbers = np.array(re.findall(r"[\d.]+", path), float).reshape(-1, 2) + np.array([x, y])
    rows, columns = np.nonzero(objects.instance_masks(0)[2])
    assert numbers.min(axis=0).tolist() == [columns.min() + 0.5, rows.min() + 0.5]
    assert numbers.max(axis=0).tolist() == [columns.max() + 0.5, rows.max() + 0.5] and path.count("M") == 2


def test_large_masks_of_objects_have_their_place_in_tiles(tmp_path: Path) -> None:
    mask = np.zeros((1, 600, 1200), np.uint8)
    mask[0, 100:500, 200:900] = 1
    with packer.PackWriter(tmp_path / "pack", classes=["ant"]) as writer:
        image, box = np.zeros((600, 1200, 3), np.uint8), np.array([[200, 100, 900, 500]], np.float32)
        writer.write(image, masks=mask, boxes=box, box_labels=[0])
    ((path, _),) = tile_facts(packer.open_pack(tmp_path / "pack"), 0)["outlines"]
    numbers = np.array(re.findall(r"[\d.]+", path), float).reshape(-1, 2)
    assert np.abs([*numbers.min(axis=0), *numbers.max(axis=0)] - box[0]).max() < 1200 / TILE_SIDE


def test_a_damaged_mask_of_an_object_is_an_error(objects: packer.Pack, monkeypatch: pytest.MonkeyPatch) -> None:
    from packer.view import part_facts

    monkeypatch.setattr(part_facts, "lengths_of", lambda *given: (_ for _ in ()).throw(ValueError("its counts end")))
    with pytest.raises(DamagedPack, match=r"00000001 .*mask of an object that is damaged: its counts end"):
        tile_facts(objects, 1)


def test_batches_and_sheets_have_outlines(objects: packer.Pack, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    asked = BatchQuery(samples=len(objects), crop="resize", side=64)
    for sample in batch_facts(objects, asked, lambda record: tile_facts(objects, record))["samples"]:
        assert len(sample["outlines"]) == len(sample["boxes"]) > 3
    export(objects, tmp_path / "sheet.html", 5)
    assert (tmp_path / "sheet.html").read_text().count("fill-rule:evenodd") == 5 * 7


# -- the page

needs_browser = pytest.mark.skipif(bool(looking.missing()), reason=looking.missing() or "-")


@pytest.fixture
def view(page: Any, path: Path) -> Iterator[Any]:
    page.said.clear()
    with looking.served(path) as served:
        page.goto(f"{served.url}?record=0")
        page.wait_for_selector("#large .overlay")
        yield page
        page.goto("about:blank")
    assert page.said == []


@needs_browser
def test_an_open_record_shows_all_parts(view: Any) -> None:
    over = pixels(view.get_attribute("#large .overlay", "href"))
    assert np.array_equal(over[..., 3] == 255, depth_of(0) != 0)
    assert view.locator("#large .texts p").all_inner_texts() == ["a <b>drawing</b>, 0\nsecond\\x1b line"]
    assert '"n": 1' in view.locator("#fields pre").inner_text() and view.locator(".bar-of-map").count() == 2
    first, second = (view.locator("#large .layer img").nth(n).bounding_box() for n in range(2))
    stage = view.locator("#large .view").bounding_box()
    for box in (first, second):  # both are in sight, of one size, and not over one another
        assert box["width"] == pytest.approx(first["width"], abs=1)
        assert stage["y"] <= box["y"] and box["y"] + box["height"] <= stage["y"] + stage["height"] + 1
    assert second["x"] >= first["x"] + first["width"] or second["y"] >= first["y"] + first["height"]
    assert view.locator("#large .over > text").all_text_contents() == ["right"]
    view.locator("#large .overlays select").select_option("far")
    looking.shows(view, "#large .overlay", 1)
    assert "overlay=far" in view.url


@needs_browser
def test_a_tile_shows_its_text_and_under_the_pointer_the_other_image(view: Any) -> None:
    view.keyboard.press("Escape")
    tile = view.locator(".tile[data-record='0']")
    assert "a <b>drawing</b>, 0" in tile.inner_text()
    opacity = "element => getComputedStyle(element.querySelector('.other')).opacity"
    assert tile.evaluate(opacity) == "0"
    tile.hover()
    assert tile.evaluate(opacity) == "1"


@needs_browser
def test_objects_have_outlines_that_the_slider_fades(page: Any, objects: packer.Pack) -> None:
    page.said.clear()
    with looking.served(objects.path) as served:
        page.goto(f"{served.url}?record=0")
        looking.shows(page, "#large .instance", 6)
        assert page.locator("#large .instance.crowd").count() == 1
        filled = "() => Number(getComputedStyle(document.querySelector('#large .instance')).fillOpacity)"
        assert page.evaluate(filled) == pytest.approx(0.7 * 0.55)
        page.locator("#large .overlays input[type=range]").fill("10")
        assert page.evaluate(filled) == pytest.approx(0.07)
        page.locator("#fields .legend button").filter(has_text=re.compile(rf"^{NAMES[0]} ")).click()
        looking.shows(page, "#large .instance", 4)
        page.goto("about:blank")
    assert page.said == []


def test_real_masks_of_objects(real_data: Path, tmp_path: Path) -> None:
    good("build", real_data / "masks_pennfudan", "-o", tmp_path / "pack", "--labels", "instances")
    pack = packer.open_pack(tmp_path / "pack")
    for record in range(len(pack)):
        facts, masks = record_facts(pack, record), pack.instance_masks(record)
        for (path, _), mask in zip(facts["outlines"], masks, strict=True):
            drawn = inside(path, facts["width"], facts["height"])
            edge = cv2.morphologyEx(mask, cv2.MORPH_GRADIENT, np.ones((3, 3), np.uint8)) > 0
            assert np.array_equal(drawn & ~edge, (mask > 0) & ~edge)
