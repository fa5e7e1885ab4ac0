"""The shell of the page in a real browser: its address, filters, tabs, empty states, phones and screen readers."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import looking
import pytest
from drawn import draw_plain
from running import good

from packer.format.pack import Pack

pytestmark = pytest.mark.skipif(bool(looking.missing()), reason=looking.missing() or "-")

Boxed = tuple[Pack, str]


def address(page: Any) -> dict[str, str]:
    """What the address of the page holds, by name."""
    return {name: values[0] for name, values in parse_qs(urlsplit(page.url).query).items()}


def until(page: Any, what: str) -> None:
    page.wait_for_function(f"() => {what}")


def until_count(page: Any, count: int) -> None:
    text = "150 records" if count == 150 else f"{count} of 150 records"
    until(page, f"document.getElementById('count').textContent === '{text}'")


def matching(pack: Pack, wanted: Callable[[list[int]], bool]) -> list[int]:
    """The records whose classes of boxes are wanted."""
    return [i for i in range(len(pack)) if wanted(pack.annotation(i).box_labels.tolist())]


# -- the address


def test_nothing_is_in_the_address_at_first(opened: Any, boxed: Boxed) -> None:
    assert opened.url == boxed[1]


def test_back_and_forward(opened: Any, boxed: Boxed) -> None:
    """Each step is one that back undoes: a filter, an order, a record, a tab."""
    pack, url = boxed
    ones = matching(pack, lambda labels: 1 in labels)
    opened.select_option("#class", "1")
    until_count(opened, len(ones))
    opened.select_option("#sort", "most-boxes")
    opened.click(".tile[data-place='0']")
    opened.wait_for_selector("dialog[open] #large img")
    record = address(opened)["record"]
    opened.click("#close")
    opened.click("[data-tab=rejected]")
    until(opened, "location.search.includes('tab=rejected')")
    assert address(opened) == {"class": "1", "sort": "most-boxes", "tab": "rejected"}
    opened.go_back()
    opened.wait_for_selector("#scroller")
    opened.wait_for_selector("#tab-rejected", state="hidden")
    opened.go_back()
    opened.wait_for_selector("dialog[open] #large img")
    assert address(opened)["record"] == record
    opened.go_back()
    opened.wait_for_selector("dialog", state="hidden")
    opened.go_back()
    until(opened, "document.getElementById('sort').value === 'packed'")
    opened.go_back()
    until_count(opened, 150)
    opened.wait_for_selector("#chosen", state="hidden")
    assert opened.url == url
    opened.go_forward()
    until_count(opened, len(ones))
    looking.shows(opened, ".chip", 1)


def test_reload_and_a_shared_address(opened: Any, page: Any) -> None:
    opened.fill("#text", "1")
    until(opened, "location.search === '?text=1'")
    opened.select_option("#class", "2")
    opened.fill("#range-from", "2")
    opened.press("#range-from", "Tab")
    opened.select_option("#sort", "tallest-box")
    opened.evaluate("size.value = 240; size.dispatchEvent(new Event('change', { bubbles: true }))")
    opened.uncheck("#labels")
    opened.wait_for_function(looking.FILLED)
    opened.click(".tile[data-place='1']")
    opened.wait_for_selector("dialog[open] #large img")
    expected = {"text": "1", "class": "2", "boxes": "2..", "sort": "tallest-box", "size": "240", "labels": "0"}
    record = address(opened)["record"]
    assert address(opened) == {**expected, "record": record}

    def shown(page: Any) -> None:
        page.wait_for_selector("dialog[open] #large img")
        page.keyboard.press("ArrowLeft")  # the place of the record among the matching ones is known
        until(page, f"!location.search.includes('record={record}')")
        looking.shows(page, "#chips .chip", 3)
        assert page.input_value("#text") == "1"
        assert page.input_value("#size") == "240" and not page.is_checked("#labels")
        until(page, f"document.getElementById('count').textContent === '{count}'")
        page.wait_for_function(looking.FILLED)
        assert page.locator(".tile").first.bounding_box()["height"] > 240

    count = opened.inner_text("#count")
    shared = opened.url
    opened.reload()
    shown(opened)
    other = page.context.browser.new_page()
    other.goto(f"{shared}&tab=unknown")  # shows the records
    shown(other)
    other.close()


def test_batches_are_in_the_address(opened: Any, boxed: Boxed) -> None:
    opened.goto(f"{boxed[1]}?tab=batches&samples=4&seed=7&batch=3")
    opened.wait_for_function("() => document.querySelectorAll('#batch-grid img').length >= 4")
    assert opened.input_value("#batch-seed") == "7" and opened.input_value("#batch-batch") == "3"
    opened.click("#batch-next")
    until(opened, "location.search.includes('batch=4')")
    opened.go_back()
    until(opened, "document.getElementById('batch-batch').value === '3'")


def test_an_address_with_nonsense_opens(opened: Any, boxed: Boxed) -> None:
    opened.goto(f"{boxed[1]}?tab=nothing&size=big&record=99999&unknown=1")
    opened.wait_for_selector("#problem:not([hidden])")
    opened.wait_for_function(looking.FILLED)
    assert opened.get_attribute("[data-tab=records]", "aria-selected") == "true"
    opened.goto(f"{boxed[1]}?boxes=5..2")
    opened.wait_for_selector("#problem:not([hidden])")
    assert "range such as" in opened.inner_text("#problem")
    opened.goto(f"{boxed[1]}?window=a..b")
    opened.wait_for_selector("#problem:not([hidden])")
    opened.wait_for_function(looking.FILLED)
    opened.said[:] = [text for text in opened.said if "400" not in text]  # the browser notes the refusals itself


def test_an_address_of_another_pack(opened: Any) -> None:
    """A record that is not in the pack cannot be opened and marked, and a class that is not is not a bare number."""
    opened.goto(f"{opened.url}?class=0,77&record=99999")
    opened.wait_for_selector("#problem:not([hidden])")
    assert opened.inner_text("#problem") == "The pack has no record 99999: its records are 0 to 149."
    assert not opened.is_visible("#detail") and "record=" not in opened.url
    chips = opened.locator("#chips .chip").all_inner_texts()
    assert len(chips) == 2 and "class 77 (not in this pack)" in chips[1] and "not in" not in chips[0]
    opened.click(".tile[data-record]")  # the page can be used
    opened.wait_for_selector("dialog[open] #large img")


@pytest.mark.parametrize("size", ["0", "-8", "5", "1e9"])
def test_tiles_of_no_size(opened: Any, boxed: Boxed, size: str) -> None:
    opened.goto(f"{boxed[1]}?size={size}")
    opened.wait_for_function(looking.FILLED)
    assert 79 <= opened.evaluate("document.querySelector('.tile').clientHeight - 28") <= 320


# -- filters


def test_several_classes_any_and_all(opened: Any, boxed: Boxed) -> None:
    pack, _ = boxed
    for number in ("0", "1"):
        opened.select_option("#class", number)
    until_count(opened, len(matching(pack, lambda labels: bool({0, 1} & {*labels}))))
    opened.select_option("#match", "all")
    both = matching(pack, lambda labels: {0, 1} <= {*labels})
    until_count(opened, len(both))
    assert 0 < len(both) < 100
    assert opened.locator("#chips .chip span:not(.cross, .dot)").all_inner_texts() == list(pack.classes[:2])
    opened.click("#chips .chip >> nth=0")
    until_count(opened, len(matching(pack, lambda labels: 1 in labels)))
    opened.wait_for_selector("#match", state="hidden")


def test_a_range_of_the_largest_box(opened: Any, boxed: Boxed) -> None:
    pack, _ = boxed
    largest = [max((b[2] - b[0]) * (b[3] - b[1]) for b in pack.annotation(i).boxes.tolist()) for i in range(len(pack))]
    opened.select_option("#range-of", "box")
    opened.fill("#range-to", "20")
    opened.press("#range-to", "Enter")
    until_count(opened, sum(100 * area <= 20 * 64 * 64 for area in largest))
    assert "largest box" in opened.inner_text("#chosen") and "20 or less" in opened.inner_text("#chosen")


def test_no_match_shows_the_ways_out(opened: Any) -> None:
    opened.select_option("#class", "1")
    opened.fill("#text", "no such name")
    opened.wait_for_selector("#empty .chip")
    until_count(opened, 0)
    looking.shows(opened, "#empty .chip", 2)
    opened.wait_for_selector("#scroller", state="hidden")
    opened.keyboard.press("Escape")  # leaves the search, and clears it
    opened.wait_for_function(looking.FILLED)
    until(opened, "document.activeElement.id === 'scroller'")
    opened.fill("#text", "no such name")
    opened.click("#empty .clear")
    until_count(opened, 150)
    opened.wait_for_function(looking.FILLED)
    until(opened, "document.activeElement.id === 'scroller'")
    assert opened.input_value("#text") == ""


def test_a_place_without_a_match_is_no_error(opened: Any) -> None:
    opened.fill("#text", "no such name")
    until_count(opened, 0)
    found = opened.evaluate("fetch('api/place?at=0&text=nothing').then(async (r) => [r.status, await r.json()])")
    assert found == [200, {"record": None, "at": None}]


# -- keys


def test_tabs_by_keys(opened: Any) -> None:
    opened.focus("[data-tab=records]")
    ids = opened.eval_on_selector_all("[role=tab]", "all => all.map((tab) => tab.dataset.tab)")
    assert ids == ["records", "batches", "statistics", "problems", "marked", "rejected"]
    for key, name in [("End", "rejected"), ("ArrowRight", "records"), ("ArrowLeft", "rejected"), ("Home", "records")]:
        opened.keyboard.press(key)
        until(opened, f"document.activeElement.dataset.tab === '{name}'")
        opened.wait_for_selector(f"#tab-of-{name}[aria-selected=true]")
        assert opened.locator("[role=tab][aria-selected=true]").get_attribute("data-tab") == name
        assert opened.locator("[role=tabpanel]:visible").get_attribute("aria-labelledby") == f"tab-of-{name}"
        assert opened.locator("[role=tab][tabindex='0']").count() == 1


def test_help_and_the_focus_after_it(opened: Any) -> None:
    opened.keyboard.press("?")
    opened.wait_for_selector("#help[open]")
    assert "search keys and paths" in opened.inner_text("#help")
    opened.click("#help button")
    opened.wait_for_selector("#help", state="hidden")
    opened.focus("#text")
    opened.keyboard.type("?")
    assert not opened.is_visible("#help")  # typed
    opened.keyboard.press("Escape")
    until_count(opened, 150)
    opened.wait_for_function(looking.FILLED)  # which record is first is known later than how many there are
    opened.keyboard.press("Enter")
    opened.wait_for_selector("dialog[open] #large img")
    opened.keyboard.press("Escape")
    opened.wait_for_selector("dialog", state="hidden")
    until(opened, "document.activeElement.id === 'scroller'")


# -- phones, and those who do not see the page


@pytest.fixture
def at_size(page: Any) -> Iterator[Callable[[int, int, str], None]]:
    """Make the window so wide and high, and light or dark."""

    def change(width: int, height: int, scheme: str) -> None:
        page.set_viewport_size({"width": width, "height": height})
        page.emulate_media(color_scheme=scheme)

    yield change
    change(1280, 800, "light")


TABS = ("records", "batches", "statistics", "problems", "marked", "rejected")
STATES = (
    *(f"?size=320&tab={tab}" for tab in TABS),
    "?size=320&class=0,1&boxes=1..",
    "?text=nothing",
    "?size=320&record=3",
)
"""Few and large tiles: the checks take time for each."""


def ready(page: Any) -> None:
    page.wait_for_selector("[role=tabpanel]:not([hidden]):not([aria-busy=true])", state="attached")
    page.wait_for_function("() => !location.search.includes('record=') || document.querySelector('#large img')")


def refused_by_axe(page: Any) -> list[Any]:
    """What axe-core calls serious or critical of the page as it is; nothing where axe-core is not installed."""
    axe = importlib.util.find_spec("axe_playwright_python")
    if axe is None or axe.origin is None:
        return []
    page.evaluate(Path(axe.origin).with_name("axe.min.js").read_text(encoding="utf-8"))
    found = page.evaluate("axe.run({ resultTypes: ['violations'], runOnly: ['wcag2a', 'wcag2aa', 'wcag21aa'] })")
    problems = [(v["impact"], v["id"], v["nodes"][0]["html"]) for v in found["violations"]]
    return [problem for problem in problems if problem[0] in ("serious", "critical")]


def test_a_phone(opened: Any, boxed: Boxed, at_size: Callable[[int, int, str], None]) -> None:
    """Nothing is wider than the window, what a finger hits is 40 px high, the filters are behind a button."""
    at_size(390, 844, "dark")
    for state in STATES:
        opened.goto(boxed[1] + state)
        ready(opened)
        assert opened.evaluate("document.documentElement.scrollWidth") <= 390, state
        small = opened.eval_on_selector_all(
            "button, select, input:not([type=checkbox]), label:has([type=checkbox])",
            """all => all.filter((o) => o.checkVisibility()).map((o) => [o.outerHTML, o.getBoundingClientRect()])
               .filter(([, at]) => at.height && (at.height < 39.5 || at.width < 39.5)).map(([html]) => html)""",
        )
        assert small == [], state
        assert refused_by_axe(opened) == [], state
    opened.goto(boxed[1])
    ready(opened)
    assert opened.locator("#name").bounding_box()["width"] > 200 and not opened.is_visible("#class")
    opened.click("#filters-open")
    opened.wait_for_selector("#class")
    assert opened.get_attribute("#filters-open", "aria-expanded") == "true"
    opened.select_option("#class", "1")
    until(opened, "document.getElementById('filters-open').textContent === 'Filters (1)'")


def test_axe_finds_nothing_serious(opened: Any, boxed: Boxed, at_size: Callable[[int, int, str], None]) -> None:
    if importlib.util.find_spec("axe_playwright_python") is None:
        pytest.skip("axe-core is not installed: pip install axe-playwright-python")
    at_size(1440, 900, "light")
    for state in (*STATES, "help"):
        opened.goto(boxed[1] + state.removeprefix("help"))
        ready(opened)
        if state == "help":
            opened.keyboard.press("?")
        assert refused_by_axe(opened) == [], state


# -- packs that have little


def test_a_pack_without_classes_and_boxes(page: Any, tmp_path: Path) -> None:
    """What it has no values for is not offered, and every tab says so in words."""
    draw_plain(tmp_path / "src", 3)
    good("build", tmp_path / "src", "-o", tmp_path / "pack", "--labels", "none", "--no-fingerprints")
    page.said.clear()
    with looking.served(tmp_path / "pack") as served:
        page.goto(served.url)
        page.wait_for_function(looking.FILLED)
        assert not page.locator("#sort option[value$=-focus]").count()
        assert not page.is_visible("#class") and not page.is_visible("#range-of")  # all are of one size
        for tab in page.eval_on_selector_all("[role=tab]", "all => all.map((tab) => tab.dataset.tab)"):
            page.click(f"[data-tab={tab}]")
            until(page, f"document.getElementById('tab-{tab}').innerText.length > 10")
            ready(page)
            assert not page.is_visible("#problem"), tab
    assert page.said == []
