"""Marks in a real browser: keys, ranges, reasons, undo, the list."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import looking
import pytest

from packer.format.pack import Pack
from packer.view.marks import Marks

pytestmark = pytest.mark.skipif(bool(looking.missing()), reason=looking.missing() or "-")


@pytest.fixture
def marks(opened: Any, boxed: tuple[Pack, str]) -> Iterator[Marks]:
    """The marks of the page, of which none is left at the end."""
    kept = Marks(boxed[0])
    yield kept
    kept.change(dict.fromkeys(kept.all()))


def counted(page: Any, count: int) -> None:
    text = f" ({count})" if count else ""
    page.wait_for_function(f"() => document.querySelector('#tab-of-marked .count').textContent === '{text}'")


def test_x_marks_and_u_undoes(opened: Any, marks: Marks) -> None:
    opened.keyboard.press("ArrowRight")
    opened.keyboard.press("x")
    opened.wait_for_selector(".tile.marked[data-record='1']")
    counted(opened, 1)
    opened.click("#toast >> text=bad box")
    opened.wait_for_function("() => document.getElementById('toast').textContent.includes('Marked as bad box')")
    assert marks.all() == {1: "bad box"}
    opened.keyboard.press("x")
    counted(opened, 0)
    opened.keyboard.press("u")
    counted(opened, 1)
    assert marks.all() == {1: "bad box"}
    opened.keyboard.press("u")
    opened.keyboard.press("u")
    counted(opened, 0)
    looking.shows(opened, ".tile.marked", 0)
    assert marks.all() == {}


def test_a_click_with_shift_marks_a_range_in_the_order_of_the_page(opened: Any, marks: Marks) -> None:
    opened.goto(f"{opened.url}?class=0,1&text=1")
    opened.wait_for_function(looking.FILLED)
    opened.focus("#scroller")
    opened.keyboard.press("ArrowRight")
    tiles = "tiles => tiles.map((tile) => [+tile.dataset.place, +tile.dataset.record])"
    shown = dict(opened.eval_on_selector_all("#canvas .tile[data-record]", tiles))
    opened.click(".tile[data-place='4']", modifiers=["Shift"])
    counted(opened, 4)
    expected = [shown[place] for place in (1, 2, 3, 4)]
    assert marks.all() == dict.fromkeys(expected, "") and expected != [1, 2, 3, 4]
    looking.shows(opened, ".tile.marked", 4)
    assert opened.locator("dialog[open]").count() == 0
    opened.reload()
    opened.wait_for_function("() => document.querySelectorAll('.tile.marked').length === 4")


def test_the_open_record(opened: Any, marks: Marks) -> None:
    opened.click(".tile[data-record='3']")
    opened.wait_for_selector("dialog[open] #large img")
    opened.keyboard.press("x")
    opened.wait_for_selector("#mark[aria-pressed=true]")
    opened.fill("#mark-reason", "two x of u, <b>")  # its letters are no keys
    opened.press("#mark-reason", "Tab")
    opened.wait_for_function("() => document.getElementById('toast').hidden || true")
    opened.click("#mark >> text=Remove mark")
    opened.wait_for_selector("#mark[aria-pressed=false]")
    opened.click("#toast >> text=Undo")
    opened.wait_for_selector("#mark[aria-pressed=true]")
    assert marks.all() == {3: "two x of u, <b>"} and opened.input_value("#mark-reason") == "two x of u, <b>"
    opened.keyboard.press("Escape")


def test_the_list_of_marks(opened: Any, marks: Marks, boxed: tuple[Pack, str], tmp_path: Path) -> None:
    pack, _ = boxed
    marks.change({9: "", 4: "duplicate"})  # by another page
    opened.click("[data-tab=marked]")
    opened.wait_for_function("() => document.querySelectorAll('.marked-list img').length === 2")
    assert opened.eval_on_selector_all(".marked-list input", "all => all.map(one => one.value)") == ["duplicate", ""]
    opened.fill(".marked-list li:nth-child(2) input", "wrong  label")
    opened.keyboard.press("Enter")
    with opened.expect_download() as download:
        opened.click("text=Export list")
    download.value.save_as(tmp_path / download.value.suggested_filename)
    paths = [pack.paths[record] for record in (4, 9)]
    expected = f"path\treason\n{paths[0]}\tduplicate\n{paths[1]}\twrong label\n"
    assert (tmp_path / "marks.txt").read_text() == expected
    opened.click("text=What to do with the list")
    assert f"packer convert {pack.path} clean --exclude marks.txt" in opened.inner_text("#tab-marked details")
    opened.click("text=Show in Records")
    opened.wait_for_function("() => document.getElementById('count').textContent === '2 of 150 records'")
    opened.wait_for_selector("#chips >> text=marked")
    opened.click("[data-tab=marked]")
    opened.click(".marked-list li:nth-child(1) >> text=Remove mark")
    opened.wait_for_function("() => document.querySelectorAll('.marked-list li').length === 1")
    opened.click("#tab-marked >> text=Clear")
    opened.wait_for_selector("#tab-marked .nothing")
    assert marks.all() == {}
    opened.click("#tab-marked >> text=Undo")
    opened.wait_for_selector(".marked-list li")
    assert marks.all() == {9: "wrong label"}
