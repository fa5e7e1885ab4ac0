"""Masks over their images, in the page and in sheets: the color of each class, hatching where pixels are ignored."""

from __future__ import annotations

import base64
import io
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import looking
import numpy as np
import part_packs
import pytest
from drawn_masks import draw_mask, image_of, picture, write_files
from PIL import Image, ImageColor

import packer
from packer import BuildOptions, PackWriter, build_pack
from packer.images.masks import encode_mask
from packer.model.annotation import MaskFacts, PartSpec
from packer.stats.plots import color_of as color_of_class
from packer.view.batches import BatchQuery, batch_facts
from packer.view.export import color_of, export
from packer.view.facts import ProblemSets, crop_facts, pack_facts, record_facts, tile_facts
from packer.view.part_facts import mask_facts
from packer.view.pictures import Pictures

NAMES = ("background", "ant", "bee & <b>", "cat")
SEEN, HIDDEN = 255, 0


def ignored_corner(seed: int) -> np.ndarray:
    mask = draw_mask(seed)
    mask[:6, :6] = 255
    return mask


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three images of 40x30; a corner of each mask is ignored."""
    home, files = tmp_path_factory.mktemp("view"), {"classes.txt": "\n".join(NAMES).encode()}
    for seed in range(3):
        files[f"images/im{seed}.png"] = image_of(draw_mask(seed))
        files[f"masks/im{seed}.png"] = picture(ignored_corner(seed))
    build_pack(BuildOptions(str(write_files(home / "set", files)), str(home / "set.lmdb"), workers=1))
    return home / "set.lmdb"


@pytest.fixture(scope="module")
def pack(path: Path) -> packer.Pack:
    return packer.open_pack(path)


def laid_over(uri: str) -> np.ndarray:
    """The picture of an overlay, RGBA; Pillow checks the sums of its chunks."""
    assert uri.startswith("data:image/png;base64,")
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2]))).convert("RGBA"))


def rgb(number: int) -> tuple[int, ...]:
    return tuple(round(255 * value) for value in color_of_class(number))


def colors(over: np.ndarray, where: np.ndarray) -> set[tuple[int, ...]]:
    return {tuple(pixel) for pixel in over[where].tolist()}


def require_overlay(over: np.ndarray, mask: np.ndarray) -> None:
    """Each class has its color, the background is transparent, and ignored pixels are hatched."""
    for number in range(1, 4):
        assert colors(over, mask == number) <= {(*rgb(number), SEEN)}
    assert {color[3] for color in colors(over, mask == 0)} <= {HIDDEN}
    if (mask == 255).any():
        lines, between = over[mask == 255][:, 3] == SEEN, over[mask == 255][:, 3] == HIDDEN
        assert (lines | between).all() and 0.2 < lines.mean() < 0.5
        assert {tuple(color) for color in over[mask == 255][lines].tolist()} == {(255, 255, 255, SEEN)}


def test_each_class_has_its_color(pack: packer.Pack) -> None:
    for record in range(3):
        mask, (part,) = pack.mask(record), record_facts(pack, record)["parts"]
        require_overlay(laid_over(part["picture"]), mask)
        assert (part["name"], part["as"], part["ignore"]) == ("mask", "overlay", 255)
        rows = {number: (name, share) for number, name, share in part["legend"]}
        assert rows[255] == ("ignored", 3.0) and rows[0][0] == "background"
        for number, (_, share) in rows.items():
            assert share == pytest.approx(100 * (mask == number).mean(), abs=0.006)
        assert [row[2] for row in part["legend"]] == sorted((row[2] for row in part["legend"]), reverse=True)


def test_what_the_page_knows_of_masks(pack: packer.Pack) -> None:
    facts = pack_facts(pack)
    legend = [[0, "background"], [1, "ant"], [2, "bee & <b>"], [3, "cat"], [255, "ignored"]]
    assert facts["masks"] == {"mask": {"legend": legend, "ignore": 255, "background": 0}}
    assert facts["overlays"] == ["mask"]


def test_colors_are_those_of_boxes() -> None:
    for number in range(40):
        css = ImageColor.getrgb(re.sub(r"hsl\((\d+) (\d+)% (\d+)%\)", r"hsl(\1, \2%, \3%)", color_of(number)))
        assert max(abs(a - b) for a, b in zip(css, rgb(number), strict=True)) <= 3


@pytest.mark.parametrize("ids", [1, 2, 3, 16, 254, 255, 300, 5000])
def test_any_number_of_ids(ids: int) -> None:
    """The largest 254 have a color of their own; all others are gray, and have one row."""
    mask = np.repeat(np.arange(ids, dtype=np.uint16), 3).reshape(1, -1)
    mask[0, :2] = mask[0, -1]
    facts = mask_facts(mask, PartSpec("mask", "mask", "uint16"), 1 << 20)
    over, own = laid_over(facts["picture"]), [row[0] for row in facts["legend"]]
    for number in np.unique(mask).tolist():
        color = rgb(number) if number in own else (153, 153, 153)
        assert colors(over, mask == number) == {(*color, HIDDEN if number == 0 and 0 in own else SEEN)}
    assert len(own) == min(ids, 255) and sum(row[2] for row in facts["legend"]) == pytest.approx(100, abs=2)
    assert (facts["legend"][-1][:2] == [-1, f"{ids - 254} other ids"]) == (ids > 254)


def test_names_of_backgrounds() -> None:
    for names, number in (((), 0), (("sky", "road"), None), (("car", "_background_"), 1), (("Background", "car"), 0)):
        assert MaskFacts("uint8", names).background == number


def test_large_masks_are_small_over_tiles(tmp_path: Path) -> None:
    mask = np.kron(draw_mask(1), np.ones((20, 20), np.uint8))
    files = {"images/a.png": image_of(mask), "masks/a.png": picture(mask)}
    files |= {"images/b.png": image_of(mask), "masks/b.png": picture(mask)}
    build_pack(BuildOptions(str(write_files(tmp_path / "set", files)), str(tmp_path / "set.lmdb"), workers=1))
    pack = packer.open_pack(tmp_path / "set.lmdb")
    assert laid_over(tile_facts(pack, 0)["parts"][0]["picture"]).shape == (192, 256, 4)
    assert laid_over(record_facts(pack, 0)["parts"][0]["picture"]).shape == (600, 800, 4)


def test_a_sheet_shows_masks_and_their_classes(pack: packer.Pack, tmp_path: Path) -> None:
    export(pack, tmp_path / "sheet.html", 3)
    page = (tmp_path / "sheet.html").read_text()
    assert page.count("image-rendering:pixelated") == 3
    assert "bee &amp; &lt;b&gt;" in page and "<b>" not in page and "ignored" not in page


@pytest.fixture(scope="module")
def boxed(tmp_path_factory: pytest.TempPathFactory) -> packer.Pack:
    """Images with masks and boxes; the third has no mask, and the last box has no pixel of its class."""
    path = tmp_path_factory.mktemp("boxed") / "pack"
    with PackWriter(path, classes=NAMES, ignore_id=255) as writer:
        for i in range(4):
            mask = np.zeros((300, 400), np.uint8)
            mask[40:80, 50:90], mask[39:81, 49], mask[200, 300] = 1 + i % 2, 255, 3
            boxes = np.array([[50, 40, 90, 80], [250, 100, 280, 130]][: 1 + (i == 3)], np.float32)
            image = np.full((300, 400, 3), i, np.uint8)
            writer.write(image, mask=None if i == 2 else mask, boxes=boxes, box_labels=[1 + i % 2] * len(boxes))
    return packer.open_pack(path)


def test_a_box_that_is_cut_out_has_its_part_of_the_mask(boxed: packer.Pack) -> None:
    facts, (x, y, width, height) = crop_facts(boxed, 1, 0)
    over, mask = laid_over(facts["parts"][0]["picture"]), boxed.mask(1)[y : y + height, x : x + width]
    assert over.shape == (height, width, 4) and (mask == 2).sum() == 1600
    require_overlay(over, mask)
    assert "parts" not in crop_facts(boxed, 2, 0)[0]


def test_examples_of_problems_show_the_place(boxed: packer.Pack) -> None:
    """An island and a box are in the middle of a part of the image, with that part of the mask."""
    problems = ProblemSets(boxed, Pictures(boxed))
    for kind, number in (("mask-islands", 3), ("box-without-mask", None)):
        example = problems.examples(kind)["examples"][0]
        ((x1, y1, x2, y2),) = example["boxes"]
        assert abs(x1 + x2 - example["width"]) <= 2 and abs(y1 + y2 - example["height"]) <= 2
        over = laid_over(example["parts"][0]["picture"])
        assert over.shape == (example["height"], example["width"], 4) and example["width"] < 150
        inside = over[int(y1) : int(y2), int(x1) : int(x2)]
        shown = {(*rgb(number), SEEN)} if number else {(*rgb(0), HIDDEN)}
        assert {tuple(pixel) for pixel in inside.reshape(-1, 4).tolist()} == shown
    (missing,) = problems.examples("no-part")["examples"]
    assert missing["record"] == 2 and "parts" not in missing


@pytest.mark.parametrize("name", ["pack", "boxed"])
def test_samples_of_batches_have_their_masks(name: str, request: pytest.FixtureRequest) -> None:
    pytest.importorskip("torch")
    pack = request.getfixturevalue(name)
    facts = batch_facts(pack, BatchQuery(samples=len(pack), crop="none"), lambda record: tile_facts(pack, record))
    assert len(facts["samples"]) == len(pack)
    for sample in facts["samples"]:
        over, source = laid_over(sample["parts"][0]["picture"]), pack.mask(sample["record"])
        mask = np.full(over.shape[:2], 255, np.uint8) if source is None else source
        flipped = mask[:, ::-1]
        matches = [np.array_equal(over[..., 3] == SEEN, seen_of(one)) for one in (mask, flipped)]
        assert any(matches)


def seen_of(mask: np.ndarray) -> np.ndarray:
    rows, columns = np.indices(mask.shape)
    return np.where(mask == 255, (rows + columns) % 6 < 2, mask > 0)


@pytest.fixture(scope="module")
def several(path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pack with another mask, `lanes`: ids without names."""
    out = tmp_path_factory.mktemp("several") / "two.lmdb"
    specs = (PartSpec("mask", "mask", "uint8", NAMES, 255), PartSpec("lanes", "mask", "uint8"))
    masks = lambda i: {"mask": encode_mask(draw_mask(i), "raw"), "lanes": encode_mask(draw_mask(9 + i), "raw")}  # noqa: E731
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(part_packs, "bytes_of", masks)
        return part_packs.add_parts(path, out, specs=specs)


def test_several_masks(several: Path) -> None:
    pack = packer.open_pack(several)
    facts = pack_facts(pack)
    assert facts["overlays"] == ["mask", "lanes"]
    assert facts["masks"]["lanes"] == {"legend": [], "ignore": None, "background": 0}
    for record in range(3):
        first, other = tile_facts(pack, record)["parts"]
        require_overlay(laid_over(first["picture"]), draw_mask(record))
        require_overlay(laid_over(other["picture"]), draw_mask(9 + record))
        assert {name for _, name, _ in other["legend"]} == set("0123") and other["name"] == "lanes"


# -- the page

needs_browser = pytest.mark.skipif(bool(looking.missing()), reason=looking.missing() or "-")


@pytest.fixture
def view(page: Any, several: Path, tmp_path: Path) -> Iterator[Any]:
    """The page of the pack with two masks, with its first record open."""
    shutil.copytree(several, tmp_path / "two.lmdb")
    page.said.clear()
    with looking.served(tmp_path / "two.lmdb") as served:
        page.goto(f"{served.url}?record=0")
        page.wait_for_selector("#large .overlay")
        yield page
        page.goto("about:blank")
    assert page.said == []


def on_stage(page: Any) -> np.ndarray:
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    return laid_over(page.get_attribute("#large .overlay", "href"))


def switch(page: Any, name: str) -> Any:
    return page.locator("#fields .legend button").filter(has_text=re.compile(rf"^{name} "))


@needs_browser
def test_the_legend_hides_and_isolates_classes(view: Any) -> None:
    mask = draw_mask(0)
    require_overlay(on_stage(view), mask)
    assert switch(view, "background").get_attribute("aria-pressed") == "false"  # it would hide the picture
    switch(view, "ant").click()
    over = on_stage(view)
    assert colors(over, mask == 1) == {(*rgb(1), HIDDEN)} and colors(over, mask == 3) == {(*rgb(3), SEEN)}
    assert "hide=mask:0,lanes:0,mask:1" in view.url
    tile = laid_over(view.get_attribute(".tile[data-record='0'] .overlay", "href"))
    assert colors(tile, mask == 1) == {(*rgb(1), HIDDEN)}
    switch(view, "cat").dblclick()
    over = on_stage(view)
    assert {pixel[3] for pixel in colors(over, mask != 3)} == {HIDDEN} and colors(over, mask == 3) == {(*rgb(3), SEEN)}
    view.locator("#fields .legend .plain").first.click()  # all
    assert (on_stage(view)[..., 3] == SEEN).all() and "hide=" in view.url
    view.reload()
    view.wait_for_selector("#large .overlay")
    assert (on_stage(view)[..., 3] == SEEN).all()


@needs_browser
def test_opacity_and_the_key(view: Any) -> None:
    style = "(name) => getComputedStyle(document.querySelector('#large .overlay'))[name]"
    assert view.evaluate(style, "opacity") == "0.55"
    view.locator("#large .overlays input[type=range]").fill("20")
    assert view.evaluate(style, "opacity") == "0.2" and "opacity=20" in view.url
    view.locator("#large .view").click()
    for display in ("none", "inline"):
        view.keyboard.press("m")
        assert view.evaluate(style, "display") == display
    view.keyboard.press("Escape")
    view.wait_for_selector("dialog#detail", state="hidden")
    view.keyboard.press("m")  # in the grid, too
    assert view.evaluate("getComputedStyle(document.querySelector('.tile .overlay')).display") == "none"


@needs_browser
def test_one_of_several_masks_is_chosen(view: Any) -> None:
    looking.shows(view, "#large .overlay", 1)
    view.locator("#large .overlays select").select_option("lanes")
    require_overlay(on_stage(view), draw_mask(9))
    assert "overlay=lanes" in view.url
    tile = laid_over(view.get_attribute(".tile[data-record='0'] .overlay", "href"))
    require_overlay(tile, draw_mask(9))


@needs_browser
def test_classes_of_masks_are_counted_in_the_page(view: Any) -> None:
    view.goto(view.url.partition("?")[0] + "?tab=statistics")
    view.click("text=Count pixels")
    view.wait_for_selector(".of-masks")
    rows = view.locator(".of-masks").first.locator(".class-row").all_inner_texts()[1:]
    masks = np.stack([draw_mask(i) for i in range(3)])
    for row in rows:
        name, share, images = row.split("\n")
        number = NAMES.index(name)
        assert images == str(sum((mask == number).any() for mask in masks))
        assert float(share.removesuffix(" %")) == pytest.approx(100 * (masks == number).mean(), abs=0.0501)
    assert len(rows) == 4
