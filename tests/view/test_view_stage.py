"""One record looked at closely in a real browser: zoom, names, hover, legend, crops, the original."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import looking
import pytest
from drawn import pixels
from PIL import Image
from running import good

from packer.view.facts import COCO_BONES, COCO_FLIPS, COCO_POINTS

pytestmark = pytest.mark.skipif(bool(looking.missing()), reason=looking.missing() or "-")

SIZE = (200, 120)
BOXES = [(10, 10, 90, 70), (14, 12, 94, 72), (18, 14, 98, 74), (120, 30, 180, 110), (150, 60, 160, 70)]
POSE = [(20 + 4 * n, 20 + (n * 37) % 60) for n in range(17)]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The page of a COCO pack of three images that lies beside its source: crowded boxes, a person, a tiny image."""
    folder = tmp_path_factory.mktemp("stage")
    (folder / "src").mkdir()
    for number, size in enumerate([SIZE, SIZE, (24, 16)]):
        Image.fromarray(pixels(number)).resize(size).save(folder / "src" / f"photo{number}.png")
    images = [{"id": n, "file_name": f"photo{n}.png"} for n in range(3)]
    categories: list[dict[str, Any]] = [{"id": 1, "name": "person", "keypoints": COCO_POINTS}, {"id": 2, "name": "bag"}]
    categories[0]["keypoints"] = [name.replace(" ", "_") for name in COCO_POINTS]
    objects = [
        {"image_id": 0, "category_id": 1 + (n == 4), "bbox": [a, b, c - a, d - b]}
        for n, (a, b, c, d) in enumerate(BOXES)
    ]
    pose = [part for x, y in POSE for part in (x, y, 2)]
    pose[3 * 3 + 2] = 1  # the left ear is not visible
    objects.append({"image_id": 1, "category_id": 1, "bbox": [10, 10, 100, 100], "keypoints": pose})
    objects.append({"image_id": 2, "category_id": 2, "bbox": [2, 2, 20, 12]})
    for n, one in enumerate(objects):
        one.update(id=n, iscrowd=0, area=1)
        if one["category_id"] == 1:
            one.setdefault("keypoints", [0] * 51)
    found = {"images": images, "categories": categories, "annotations": objects}
    (folder / "src" / "person_keypoints.json").write_text(json.dumps(found))
    good("build", folder / "src", "-o", folder / "src.lmdb", "--labels", "coco")
    with looking.served(folder / "src.lmdb") as served:
        yield served.url


@pytest.fixture
def stage(page: Any, url: str) -> Iterator[Any]:
    """Record 0, large."""
    page.said.clear()
    page.goto(f"{url}?record=0")
    page.wait_for_selector("dialog[open] #large .tag")
    yield page
    assert page.said == []


def frame_of(page: Any, selector: str) -> dict[str, float]:
    box: dict[str, float] = page.locator(selector).first.bounding_box()
    return box


def percent(page: Any) -> float:
    return float(page.inner_text(".tools output").split()[0])


def settle(page: Any) -> None:
    page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


def test_wheel_zooms_at_the_pointer_and_boxes_stay_on_the_image(stage: Any) -> None:
    view = frame_of(stage, ".view")
    x, y = view["x"] + view["width"] * 0.3, view["y"] + view["height"] * 0.6
    image = frame_of(stage, ".layer img")
    share = (x - image["x"]) / image["width"], (y - image["y"]) / image["height"]
    before = percent(stage)
    stage.mouse.move(x, y)
    stage.mouse.wheel(0, -600)
    settle(stage)
    image = frame_of(stage, ".layer img")
    assert percent(stage) > 2 * before
    assert (x - image["x"]) / image["width"] == pytest.approx(share[0], abs=0.01)
    assert (y - image["y"]) / image["height"] == pytest.approx(share[1], abs=0.01)
    assert "pixels" in stage.get_attribute(".layer", "class")
    scale = image["width"] / SIZE[0]
    bounds = stage.locator("#large rect.box").nth(3).bounding_box()
    drawn = [bounds["x"], bounds["y"], bounds["x"] + bounds["width"], bounds["y"] + bounds["height"]]
    expected = [
        BOXES[3][0] * scale + image["x"],
        BOXES[3][1] * scale + image["y"],
        BOXES[3][2] * scale + image["x"],
        BOXES[3][3] * scale + image["y"],
    ]
    assert drawn == pytest.approx(expected, abs=2.5)
    stage.mouse.down()
    stage.mouse.move(x + 60, y - 30, steps=3)
    stage.mouse.up()
    settle(stage)
    moved = frame_of(stage, ".layer img")
    assert (moved["x"] - image["x"], moved["y"] - image["y"]) == pytest.approx((60, -30), abs=1)


def test_keys_buttons_and_double_click(stage: Any) -> None:
    fit = percent(stage)
    stage.keyboard.press("+")
    settle(stage)
    assert percent(stage) == pytest.approx(1.5 * fit, rel=0.02)
    stage.keyboard.press("-")
    stage.keyboard.press("-")
    settle(stage)
    assert percent(stage) == pytest.approx(fit / 1.5, rel=0.02)
    stage.keyboard.press("0")
    settle(stage)
    assert percent(stage) == fit
    view = frame_of(stage, ".view")
    stage.mouse.dblclick(view["x"] + 200, view["y"] + 200)
    settle(stage)
    assert percent(stage) == 100 and frame_of(stage, ".layer img")["width"] == pytest.approx(SIZE[0])
    stage.mouse.dblclick(view["x"] + 200, view["y"] + 200)
    settle(stage)
    assert percent(stage) == fit
    stage.click("[aria-label='zoom in']")
    settle(stage)
    assert percent(stage) > fit


def test_names_do_not_cover_each_other(stage: Any) -> None:
    """Three boxes have nearly the same corner; at every zoom, each name is in sight and free, and as large."""
    heights = set()
    for _ in range(5):
        tags = stage.eval_on_selector_all(
            "#large .tag rect",
            "all => all.map((r) => { const b = r.getBoundingClientRect(); return [b.x, b.y, b.right, b.bottom] })",
        )
        assert tags
        heights |= {round(tag[3] - tag[1]) for tag in tags}
        for (a, b, c, d), (e, f, g, h) in combinations(tags, 2):
            assert min(c, g) - max(a, e) <= 1.5 or min(d, h) - max(b, f) <= 1.5
        stage.keyboard.press("-")
        settle(stage)
    assert len(heights) == 1
    stage.keyboard.press("0")
    looking.shows(stage, "#large .tag", len(BOXES))


def test_hover_goes_both_ways_and_a_press_pins(stage: Any) -> None:
    rows = stage.locator(".objects button")
    looking.shows(stage, ".objects button", len(BOXES))
    rows.nth(3).hover()
    looking.shows(stage, "#large .aside rect.box", 4)
    image = frame_of(stage, ".layer img")
    scale = image["width"] / SIZE[0]
    # inside of the large box and of the small one: the small one is meant
    stage.mouse.move(image["x"] + 155 * scale, image["y"] + 65 * scale)
    settle(stage)
    assert "lit" in rows.nth(4).get_attribute("class") and "lit" not in (rows.nth(3).get_attribute("class") or "")
    stage.mouse.click(image["x"] + 155 * scale, image["y"] + 65 * scale)
    stage.mouse.move(image["x"] + 2, image["y"] + 2)
    settle(stage)
    assert rows.nth(4).get_attribute("aria-pressed") == "true" and "lit" in rows.nth(4).get_attribute("class")
    rows.nth(0).focus()  # by keyboard
    settle(stage)
    assert "lit" in rows.nth(0).get_attribute("class")
    stage.keyboard.press("ArrowDown")
    settle(stage)
    assert stage.evaluate("document.activeElement") and "lit" in rows.nth(1).get_attribute("class")
    before = percent(stage)
    rows.nth(4).click()  # takes the pin off
    rows.nth(4).click()
    settle(stage)
    assert percent(stage) > 2 * before


def test_the_legend_switches_classes_everywhere(stage: Any) -> None:
    stage.click("#fields .legend button:has-text('person')")
    looking.shows(stage, "#large rect.box", 1)
    stage.wait_for_function("() => location.search.includes('hide=0')")
    stage.click("#close")
    stage.wait_for_function("() => document.querySelectorAll(\".tile[data-record='0'] rect.box\").length === 1")
    stage.click("#legend summary")
    assert stage.locator("#legend [aria-pressed=false]").inner_text() == "person"
    stage.click("#legend .plain:has-text('all')")
    stage.wait_for_function("() => document.querySelectorAll(\".tile[data-record='0'] rect.box\").length === 5")
    stage.wait_for_function("() => !location.search.includes('hide')")
    stage.select_option("#class", "1")  # a filter: the others are faint, and have no name
    stage.wait_for_function("() => document.querySelectorAll(\".tile[data-record='0'] .faint rect.box\").length === 4")
    looking.shows(stage, ".tile .tag:has-text('person')", 0)


def test_bones_and_numbers_of_a_person(stage: Any, url: str) -> None:
    stage.goto(f"{url}?record=1")
    looking.shows(stage, "#large .bone", len(COCO_BONES))
    looking.shows(stage, "#large circle", 17)
    looking.shows(stage, ".tile[data-record='1'] circle", 17)
    facts = stage.evaluate("fetch('api/pack').then((r) => r.json())")
    assert facts["points"][9] == "left wrist" and COCO_POINTS[COCO_FLIPS[9]] == "right wrist"
    numbers = stage.locator("#large .number").all_text_contents()
    assert numbers and set(numbers) <= {str(n + 1) for n in range(17)} and len(numbers) == len(set(numbers))
    fields = stage.inner_text("#fields")
    assert "10 left wrist" in fields and "not visible" in fields
    assert stage.locator(".tile .number").count() == 0


def test_crops_open_their_box(stage: Any, url: str) -> None:
    stage.goto(f"{url}?crops=1&class=0&sort=smallest-box")
    stage.wait_for_function(looking.FILLED)
    looking.shows(stage, ".tile", 5)
    assert stage.inner_text("#count") == "5 boxes"
    stage.click(".tile[data-place='2']")
    stage.wait_for_selector("dialog[open] .objects [aria-pressed=true]")
    pressed = stage.locator(".objects button").evaluate_all("all => all.findIndex((b) => b.ariaPressed === 'true')")
    stage.wait_for_function(f"() => location.search.includes('object={pressed}')")
    assert "record=0" in stage.url
    stage.keyboard.press("ArrowRight")
    stage.wait_for_function(f"() => !location.search.includes('object={pressed}&')")
    stage.click("#close")
    stage.uncheck("#crops")
    stage.wait_for_function("() => document.getElementById('count').textContent.includes('records')")


def test_the_original_lies_over_the_packed_image(stage: Any) -> None:
    stage.keyboard.press("o")
    stage.wait_for_selector("img.original")
    settle(stage)
    whole = frame_of(stage, "img.original")
    assert whole == pytest.approx(frame_of(stage, ".layer img"), abs=0.5)
    cut = """[...document.querySelectorAll('.layer img')].map((image) =>
      image.style.clipPath.match(/[\\d.]+/g).map(Number).reduce((a, b) => a + b))"""
    assert stage.evaluate(cut) == pytest.approx([100, 100], abs=1)
    view = frame_of(stage, ".view")
    stage.mouse.move(view["x"] + view["width"] / 2, view["y"] + 60)
    stage.mouse.down()
    stage.mouse.move(whole["x"] + whole["width"] * 0.25, view["y"] + 60, steps=3)
    stage.mouse.up()
    settle(stage)
    assert stage.evaluate(cut) == pytest.approx([50, 150], abs=1)
    stage.focus(".tools input[type=range]")
    stage.keyboard.press("End")
    settle(stage)
    assert stage.evaluate(cut) == pytest.approx([200, 0], abs=1)
    assert "record=0" in stage.url  # the keys were those of the slider
    stage.click("button:has-text('original')")
    looking.shows(stage, "img.original", 0)


def test_captions_are_file_names_where_no_class_is(page: Any, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    Image.fromarray(pixels(1)).save(tmp_path / "in" / "harbor.png")
    good("build", tmp_path / "in", "-o", tmp_path / "pack", "--labels", "none")
    with looking.served(tmp_path / "pack") as served:
        page.goto(f"{served.url}?record=0")
        page.wait_for_selector("dialog[open] #large img")
        page.wait_for_selector(".tile .caption")
        assert page.inner_text(".tile .caption") == "harbor.png" and page.inner_text("#detail-key") == "harbor.png"
        assert "--source" in page.inner_text("#fields") and not page.is_visible("button:has-text('original')")
