"""The page in a real browser: what a person sees and does."""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path
from typing import Any

import looking
import numpy as np
import pytest
from drawn import draw, draw_landmarks, draw_plain
from PIL import Image
from running import good, until

from packer import open_pack
from packer.format.pack import Pack

pytestmark = pytest.mark.skipif(bool(looking.missing()), reason=looking.missing() or "-")

HOSTILE = "<img src=x onerror=alert(1)>"


def records(page: Any) -> list[int]:
    """The records of the tiles in the document, in their places."""
    found = page.eval_on_selector_all(
        "#canvas .tile[data-record]", "tiles => tiles.map(t => [+t.dataset.place, +t.dataset.record])"
    )
    return [record for _, record in sorted(found)]


def test_the_first_tiles_with_their_boxes(opened: Any, boxed: tuple[Pack, str]) -> None:
    pack, _ = boxed
    printable = records(opened)
    assert printable == list(range(len(printable))) and len(printable) >= 20
    assert opened.inner_text("#count") == "150 records" and opened.title() == "boxed.lmdb - packer view"
    for record in printable[:8]:
        boxes = pack.annotation(record).boxes
        drawn = opened.eval_on_selector_all(
            f".tile[data-record='{record}'] rect.box",
            "all => all.map(r => ['x', 'y', 'width', 'height'].map(name => r[name].baseVal.value))",
        )
        expected = [[x1, y1, x2 - x1, y2 - y1] for x1, y1, x2, y2 in boxes.tolist()]
        assert [pytest.approx(box, abs=0.02) for box in expected] == drawn
        classes = {pack.classes[i] for i in pack.annotation(record).box_labels.tolist()}
        caption = opened.inner_text(f".tile[data-record='{record}'] .caption")
        assert all(name in caption for name in sorted(classes)[:1])


def test_boxes_lie_where_the_image_is(opened: Any) -> None:
    """The drawing and the image have the same frame on the screen, though the tile is not square."""
    tile = opened.locator(".tile[data-record='3']")
    assert tile.locator("img").bounding_box() == pytest.approx(tile.locator(".picture svg").bounding_box())


def test_scrolling_to_the_end_and_back(opened: Any) -> None:
    opened.evaluate("document.getElementById('scroller').scrollTop = 1e9")
    opened.wait_for_function("() => document.querySelector('.tile[data-record=\"149\"] img')")
    opened.wait_for_function(looking.FILLED)
    assert records(opened)[-1] == 149 and len(records(opened)) < 120  # those out of sight are gone
    opened.keyboard.press("Home")
    opened.wait_for_function("() => document.querySelector('.tile[data-record=\"0\"] img')")


def test_keys(opened: Any) -> None:
    selected = "document.querySelector('.tile[aria-selected=true]')?.dataset.place"
    places = opened.eval_on_selector_all("#canvas .tile", "tiles => tiles.map(t => t.getBoundingClientRect().top)")
    columns = places.count(min(places))
    keys = [("ArrowRight", 1), ("ArrowDown", 1 + columns), ("ArrowLeft", columns), ("ArrowUp", 0), ("End", 149)]
    for key, place in keys:
        opened.keyboard.press(key)
        opened.wait_for_function(f"() => {selected} === '{place}'")
    opened.keyboard.press("Home")
    opened.keyboard.press("Enter")
    opened.wait_for_selector("dialog[open] #large img")
    assert opened.inner_text("#detail-key") == "000000.jpg"
    opened.keyboard.press("ArrowRight")
    opened.wait_for_function("() => document.getElementById('detail-key').textContent === '000001.jpg'")
    opened.keyboard.press("Escape")
    opened.wait_for_selector("dialog", state="hidden")
    opened.wait_for_function(f"() => {selected} === '1'")
    opened.keyboard.press("/")
    opened.wait_for_function("() => document.activeElement.id === 'text'")


def test_one_record_large(opened: Any, boxed: tuple[Pack, str]) -> None:
    pack, _ = boxed
    opened.click(".tile[data-record='5']")
    boxes = pack.annotation(5).boxes
    looking.shows(opened, "dialog[open] #large rect.box", len(boxes))  # they are drawn a frame after the image
    fields = opened.inner_text("#fields")
    source = bytes(pack.column("path")[5]).decode()
    assert source in fields and "64 x 64" in fields and "data.mdb, row 5" in fields
    assert f"boxes: {len(boxes)}" in fields.lower()
    names = opened.locator("#large svg .tag text").all_text_contents()
    assert sorted(names) == sorted(pack.classes[i] for i in pack.annotation(5).box_labels.tolist())
    opened.click("#close")


def test_filters_and_order(opened: Any, boxed: tuple[Pack, str]) -> None:
    pack, _ = boxed
    annotations = [pack.annotation(i) for i in range(len(pack))]
    opened.select_option("#class", "1")
    expected = [i for i, a in enumerate(annotations) if 1 in a.box_labels.tolist()]
    opened.wait_for_function(f"() => document.getElementById('count').textContent === '{len(expected)} of 150 records'")
    opened.wait_for_function(looking.FILLED)
    assert records(opened) == expected[: len(records(opened))]
    opened.click("#chips .chip")
    opened.fill("#range-from", "3")
    opened.press("#range-from", "Tab")
    many = [i for i, a in enumerate(annotations) if len(a.boxes) >= 3]
    opened.wait_for_function(f"() => document.getElementById('count').textContent === '{len(many)} of 150 records'")
    opened.select_option("#sort", "largest-box")
    areas = {i: max((b[2] - b[0]) * (b[3] - b[1]) for b in annotations[i].boxes) for i in many}
    largest = max(areas, key=lambda i: areas[i])
    opened.wait_for_function(f"() => document.querySelector('.tile[data-place=\"0\"]')?.dataset.record === '{largest}'")
    opened.fill("#text", "no such name")
    opened.wait_for_function("() => document.getElementById('count').textContent === '0 of 150 records'")
    assert records(opened) == []


def test_batches_beside_their_sources(opened: Any) -> None:
    opened.click("[data-tab=batches]")
    opened.wait_for_function("() => document.querySelectorAll('#batch-grid img').length === 32")
    first = opened.eval_on_selector_all("#batch-grid .tile", "tiles => tiles.map(t => t.dataset.record)")
    assert len(set(first)) == 16
    opened.click("#batch-made summary")
    opened.wait_for_selector("#batch-code code")
    code = opened.inner_text("#batch-code code")
    assert "RandomResizedCrop(64)" in code and "flip=True" in code
    opened.focus("#tab-batches")
    opened.keyboard.press("ArrowRight")
    opened.wait_for_function("() => document.getElementById('batch-code').textContent.includes('# batch 1')")
    second = opened.eval_on_selector_all("#batch-grid .tile", "tiles => tiles.map(t => t.dataset.record)")
    assert not set(first) & set(second)
    opened.uncheck("#batch-sources")
    opened.locator(".half").first.wait_for(state="hidden")
    assert opened.locator(".half").nth(1).is_visible()
    opened.click("#batch-grid .tile")
    opened.wait_for_selector("dialog[open] #large img")
    opened.click("#close")


def test_a_wrong_number_keeps_the_batch_and_marks_its_field(opened: Any) -> None:
    opened.click("[data-tab=batches]")
    opened.wait_for_function("() => document.querySelectorAll('#batch-grid img').length === 32")
    first = opened.inner_html("#batch-grid")
    opened.fill("#batch-side", "0")
    opened.press("#batch-side", "Tab")
    opened.wait_for_selector("#batch-side[aria-invalid=true]")
    assert opened.inner_text("#batch-side-wrong") == "must be 1 to 1024, got '0'"
    assert opened.inner_html("#batch-grid") == first and opened.locator("#problem").is_hidden()
    opened.fill("#batch-side", "64")
    opened.press("#batch-side", "Tab")
    opened.wait_for_selector("#batch-side:not([aria-invalid])")
    looking.shows(opened, ".wrong", 0)
    opened.said[:] = [text for text in opened.said if "400" not in text]  # the browser notes the refusal itself


def test_a_batch_is_there_when_the_page_has_been_idle(opened: Any) -> None:
    """It was asked for in advance: the click asks for nothing."""
    with opened.expect_response(lambda answer: "/api/batch?" in answer.url):
        pass
    asked: list[str] = []
    opened.on("request", lambda request: asked.append(request.url))
    opened.click("[data-tab=batches]")
    opened.wait_for_function("() => document.querySelectorAll('#batch-grid img').length === 32", timeout=5000)
    assert [url for url in asked if "/api/batch" in url] == []


def test_statistics(opened: Any) -> None:
    opened.click("[data-tab=statistics]")
    opened.wait_for_selector("#charts .card")
    titles = opened.locator("#charts h2").all_inner_texts()
    assert {"Totals", "Classes, boxes", "Boxes per image", "Width and height of boxes"} <= set(titles)
    opened.get_by_role("button", name="Compute mean and std").click()
    opened.wait_for_selector("#charts code")
    assert opened.inner_text("#charts code").startswith("mean=(0.")
    rows = opened.locator(".class-row")
    rows.first.click()  # leads to the records of that class
    opened.wait_for_function("() => document.getElementById('count').textContent.includes(' of 150')")
    opened.wait_for_selector("#tab-records")


def test_nothing_rejected(opened: Any) -> None:
    opened.click("[data-tab=rejected]")
    opened.wait_for_function(
        "() => document.getElementById('tab-rejected').textContent.includes('No input was rejected')"
    )


def test_hostile_names_are_text(page: Any, tmp_path: Path) -> None:
    """Classes, keys, paths and reasons that try to be HTML."""
    source = tmp_path / "src"
    for i in range(3):
        draw(source / HOSTILE / f"<b>{i}.jpg", i)
    draw(source / "plain" / "0.jpg", 5)
    (source / "plain" / "<script>alert(1)<!--.jpg").write_bytes(b"\xff\xd8 no image")
    good("build", source, "-o", tmp_path / "<i>pack", "--labels", "folder", "--max-bad", "9")
    page.said.clear()
    page.on("dialog", lambda dialog: page.said.append("alert"))
    with looking.served(tmp_path / "<i>pack") as served:
        page.goto(served.url)
        page.wait_for_function(looking.FILLED)
        assert HOSTILE in page.inner_text("#canvas") and page.inner_text("#name") == "<i>pack"
        page.click(".tile[data-record='0']")
        page.wait_for_selector("dialog[open] #large img")
        assert f"{HOSTILE}/<b>0.jpg" in page.inner_text("#fields")
        page.keyboard.press("Escape")
        page.click("[data-tab=statistics]")
        page.wait_for_selector("#charts .card")
        page.click("[data-tab=rejected]")
        page.wait_for_selector("#tab-rejected td")
        assert "<script>alert(1)<!--.jpg" in page.inner_text("#tab-rejected")
        assert page.locator("b, i, img[src=x], #tab-rejected script").count() == 0
    assert page.said == []


def test_a_server_that_has_stopped_and_is_started_again(page: Any, tmp_path: Path) -> None:
    draw_plain(tmp_path / "src", 3)
    good("build", tmp_path / "src", "-o", tmp_path / "pack", "--labels", "none")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    with looking.served(tmp_path / "pack", "--port", port, "--token", "0123456789-token") as served:
        page.goto(f"{served.url}?tab=statistics")
        page.wait_for_selector("#charts .card")
    page.click("[data-tab=rejected]")
    page.wait_for_selector("#problem:not([hidden])")
    assert "packer view has stopped; start it again" in page.inner_text("#problem")
    with looking.served(tmp_path / "pack", "--port", port, "--token", "0123456789-token"):
        page.wait_for_function("() => document.getElementById('tab-rejected')?.textContent.includes('No input')")
        page.wait_for_selector("#problem", state="hidden")
        page.goto("about:blank")
    page.said.clear()


def test_the_contact_sheet(page: Any, boxed: tuple[Pack, str], tmp_path: Path) -> None:
    """Opens from the disk, shows every picture, asks for nothing, runs nothing."""
    pack, _ = boxed
    good("view", pack.path, "--export", tmp_path / "sheet.html", "--count", "30", "--seed", "2")
    page.said.clear()
    page.goto(f"file://{tmp_path}/sheet.html")
    assert page.locator("figure").count() == 30
    loaded = page.evaluate("""async () => {
      const all = [...document.querySelectorAll('image')].map((image) => {
        const made = Object.assign(new Image(), { src: image.href.baseVal });
        return made.decode().then(() => true, () => false);
      });
      return (await Promise.all(all)).filter(Boolean).length; }""")
    assert loaded == 30
    page.screenshot(path=tmp_path / "sheet.png")
    with Image.open(tmp_path / "sheet.png") as shot:
        assert len(shot.convert("RGB").getcolors(1 << 24) or ()) > 1000  # pictures, not an empty page
    sources = "\n".join(page.locator("small").all_inner_texts())
    assert len(set(re.findall(r"\w+\.jpg", sources))) == 30 and page.said == []
    assert sorted(os.listdir(tmp_path)) == ["sheet.html", "sheet.png"]


def test_outlines_and_landmarks_are_drawn_where_they_are(page: Any, tmp_path: Path) -> None:
    draw(tmp_path / "seg" / "images" / "0.jpg", 0, 40, 30)
    (tmp_path / "seg" / "labels").mkdir()
    (tmp_path / "seg" / "labels" / "0.txt").write_text("0 0.25 0.2 0.75 0.2 0.5 0.8\n")
    (tmp_path / "seg" / "data.yaml").write_text("names: [roof]\n")
    draw_landmarks(tmp_path / "faces")
    labels = ("--labels", f"list:{tmp_path / 'faces' / 'landmarks.txt'}", "--columns", "path x*5 y*5")
    good("build", tmp_path / "seg", "-o", tmp_path / "outlines", "--labels", "yolo")
    good("build", tmp_path / "faces", "-o", tmp_path / "points", *labels)
    page.said.clear()
    with looking.served(tmp_path / "outlines") as served:
        page.goto(served.url)
        page.wait_for_function(looking.FILLED)
        corners = page.locator(".tile polygon.outline").get_attribute("points")
        assert [tuple(map(float, corner.split(","))) for corner in corners.split()] == [(10, 6), (30, 6), (20, 24)]
    (tmp_path / "seg" / "labels" / "0.txt").write_text("0 0.5 0.2 0.75 0.4 0.5 0.6 0.25 0.4\n")
    good("build", tmp_path / "seg", "-o", tmp_path / "oriented", "--labels", "yolo-obb")
    with looking.served(tmp_path / "oriented") as served:
        page.goto(served.url)
        page.wait_for_function(looking.FILLED)
        assert page.locator(".tile polygon.outline").get_attribute("points") == "20,6 30,12 20,18 10,12"
        assert page.locator(".tile rect.box").count() == 0
    with looking.served(tmp_path / "points") as served:
        page.goto(served.url)
        page.wait_for_function(looking.FILLED)
        drawn = page.eval_on_selector_all(
            ".tile[data-record='2'] .landmark", "all => all.map(c => [c.cx.baseVal.value, c.cy.baseVal.value])"
        )
        assert np.allclose(drawn, open_pack(tmp_path / "points").annotation(2).landmarks, atol=0.01) and len(drawn) == 5
    assert page.said == []


def test_drawings_lie_over_their_pictures_in_problems(opened: Any) -> None:
    """The style of charts, which are in cards too, must not resize what is drawn over the pictures of examples."""
    opened.click("#tab-of-problems")
    opened.wait_for_selector(".example .picture svg")
    sizes = "(e) => [e.previousElementSibling, e].map((one) => JSON.stringify(one.getBoundingClientRect()))"
    pictures = opened.locator(".example .picture svg")
    for at in range(min(3, pictures.count())):
        image, drawing = pictures.nth(at).evaluate(sizes)
        assert image == drawing


def test_boxes_in_one_place_are_told_apart(page: Any, tmp_path: Path) -> None:
    """Previously, the second lay on the first and could not be seen."""
    (tmp_path / "src").mkdir()
    for name, boxes in (("a", [(4, 4, 30, 25)] * 2), ("b", [(4, 4, 30, 25), (12, 4, 38, 25)])):
        draw(tmp_path / "src" / f"{name}.png", 1)
        lines = (f"0 {(x1 + x2) / 80} {(y1 + y2) / 60} {(x2 - x1) / 40} {(y2 - y1) / 30}" for x1, y1, x2, y2 in boxes)
        (tmp_path / "src" / f"{name}.txt").write_text("\n".join(lines))
    good("build", tmp_path / "src", "-o", tmp_path / "pack", "--labels", "yolo")
    with looking.served(tmp_path / "pack") as served:
        page.goto(f"{served.url}?record=0")
        page.wait_for_selector("#large rect.box[stroke-dasharray]")
        frames = page.eval_on_selector_all("#large rect.box", "all => all.map((r) => r.getBoundingClientRect().width)")
        assert frames[1] == pytest.approx(frames[0] + 10, abs=1.5)
        assert sorted(page.locator("#large .tag").all_text_contents()) == ["1 0", "2 0"]
        page.goto(f"{served.url}?record=1")
        page.wait_for_selector("#large rect.box")
        looking.shows(page, "#large rect.box[stroke-dasharray]", 0)
        page.goto(f"{served.url}?tab=problems")
        page.wait_for_selector(".example .tag:has-text('2 0')")


def test_batches_say_what_they_wait_for(page: Any, boxed: tuple[Pack, str]) -> None:
    held: list[Any] = []

    def hold(route: Any) -> None:
        held.append(route)

    page.route("**/api/batch?*", hold)
    try:
        page.goto(f"{boxed[1]}?tab=batches")
        page.wait_for_selector("#batch-grid .waiting:has-text('PyTorch')")
        for route in held:
            route.continue_()
        page.wait_for_selector("#batch-grid .pair")
        looking.shows(page, ".waiting", 0)
    finally:
        page.unroute("**/api/batch?*")


def test_a_row_of_tabs_that_scrolls_shows_it(page: Any, boxed: tuple[Pack, str]) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    try:
        page.goto(boxed[1])
        page.wait_for_selector(".scrolls:text-is('›')")
        assert not page.is_visible(".scrolls:text-is('‹')")
        page.eval_on_selector("#tabs", "row => row.scrollTo(1e6, 0)")
        page.wait_for_selector(".scrolls:text-is('‹')")
        page.wait_for_selector(".scrolls:text-is('›')", state="hidden")
        page.goto(f"{boxed[1]}?tab=marked")  # the one that is shown is not below an arrow
        page.wait_for_selector("#tab-of-marked[aria-selected=true]")
        ends = "['tabs', 'tab-of-marked'].map((id) => document.getElementById(id).getBoundingClientRect().right)"
        assert until(lambda: np.subtract(*page.evaluate(ends)) >= 20, 9)
    finally:
        page.set_viewport_size({"width": 1280, "height": 800})


def test_large_zooms_are_plain_numbers(opened: Any) -> None:
    opened.click("#canvas .tile >> nth=0")
    opened.wait_for_selector("#large .tools output")
    for _ in range(12):
        opened.keyboard.press("+")
    assert until(lambda: len(opened.inner_text("dialog#detail output")) == len("1600 %"), 30)
    assert re.fullmatch(r"\d{4} %", opened.inner_text("dialog#detail output"))


def test_names_below_the_images(opened: Any, boxed: tuple[Pack, str]) -> None:
    opened.goto(f"{boxed[1]}?naming=path&sort=last-path")
    opened.wait_for_function(looking.FILLED)
    pack = boxed[0]
    last = max(bytes(pack.column("path")[i]).decode() for i in range(len(pack)))
    assert opened.inner_text(".tile[data-place='0'] .name") == last
    opened.select_option("#naming", "")
    looking.shows(opened, ".tile .name", 0)
