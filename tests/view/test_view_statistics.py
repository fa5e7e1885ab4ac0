"""Statistics: a bar is what its range finds, packs are compared by shares, and bars are chosen by pointer and keys."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from typing import Any

import looking
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from running import good
from werkzeug.test import Client

from packer import join_packs, open_pack
from packer.format.pack import Pack
from packer.sources.synthetic import draw_sample
from packer.view.app import App
from packer.view.catalog import Catalog, query_of
from packer.view.histograms import Owners, histogram, whole_histogram

browsing = pytest.mark.skipif(bool(looking.missing()), reason=looking.missing() or "-")


def charts_of(pack: Pack) -> Any:
    token = "a-token-that-nobody-guesses"
    said = Client(App(pack, token)).get(f"/{token}/api/charts", headers={"Host": "localhost"})
    return json.loads(said.text)


def one_pack(count: int) -> Owners:
    return Owners(np.zeros(count, np.int64), 1)


def ranges(edges: list[float], whole: bool) -> list[str]:
    """The range of each bar, as the page asks for it."""
    if whole:
        return [f"{low}..{high - 1}" for low, high in itertools.pairwise(edges)]
    last = len(edges) - 2
    return [f"{low}..{'' if n == last else '<'}{high}" for n, (low, high) in enumerate(itertools.pairwise(edges))]


@pytest.fixture(scope="module")
def values(tmp_path_factory: pytest.TempPathFactory) -> Pack:
    """Images with two numbers each."""
    folder = tmp_path_factory.mktemp("values")
    draw_sample(folder / "src", layout="folder", count=40, size=32)
    files = sorted((folder / "src").rglob("*.jp*g"))
    rows = (f"{file.relative_to(folder / 'src')},{n * n / 7:.3f},{-n}" for n, file in enumerate(files))
    (folder / "list.csv").write_text("\n".join(rows))
    labels = ("--labels", f"list:{folder / 'list.csv'}", "--columns", "path value value")
    good("build", folder / "src", "-o", folder / "pack", *labels, "--split", "all")
    return open_pack(folder / "pack")


def test_a_bar_is_what_its_range_finds(sixty: Pack, values: Pack) -> None:
    facts, catalog = charts_of(sixty), Catalog(sixty)
    of_images = {
        "boxes": facts["boxes_per_image"],
        "square": facts["image_sizes"]["size"],
        "aspect": facts["image_sizes"]["aspect"],
    }
    for name, one in of_images.items():
        found = [len(catalog.find(query_of({name: text}))) for text in ranges(one["edges"], one.get("whole", False))]
        assert found == one["counts"] and sum(found) == len(sixty), name
    one = facts["box_aspects"]
    found = [len(catalog.crops(query_of({"box_aspect": text}))[0]) for text in ranges(one["edges"], False)]
    assert found == one["counts"] and sum(found) == facts["boxes"]
    catalog = Catalog(values)
    for name, one in zip(("value", "value1"), charts_of(values)["values"], strict=True):
        found = [len(catalog.find(query_of({name: text}))) for text in ranges(one["edges"], False)]
        assert found == one["counts"] and sum(found) == len(values)


def test_a_cell_is_what_its_ranges_find(sixty: Pack) -> None:
    facts, catalog = charts_of(sixty), Catalog(sixty)
    for one, names in ((facts["box_density"], ("box_width", "box_height")), (facts["centers"], ("box_x", "box_y"))):
        across, down = (ranges(one[axis], False) for axis in "xy")
        for row, column in zip(*np.nonzero(one["counts"]), strict=True):
            query = query_of({names[0]: across[column], names[1]: down[row]})
            assert len(catalog.crops(query)[0]) == one["counts"][row][column]


def test_the_packs_of_a_joined_one_are_told_apart(sixty: Pack, tmp_path: Path) -> None:
    draw_sample(tmp_path / "src", layout="yolo", count=9, size=48, seed=5)
    good("build", tmp_path / "src", "-o", tmp_path / "other", "--labels", "yolo", "--split", "all")
    other = open_pack(tmp_path / "other")
    facts, alone = charts_of(join_packs([sixty, other])), (charts_of(sixty), charts_of(other))
    boxes = facts["boxes_per_image"]
    assert np.sum(boxes["parts"], axis=0).tolist() == boxes["counts"]
    for part, one in zip(boxes["parts"], alone, strict=True):
        counts = one["boxes_per_image"]["counts"]
        assert part[: len(counts)] == counts and not any(part[len(counts) :])
    for row in facts["classes"][0]["rows"]:
        assert row["parts"] == [{r["id"]: r["count"] for r in one["classes"][0]["rows"]}[row["id"]] for one in alone]
    assert "parts" not in alone[0]["boxes_per_image"]


@pytest.mark.parametrize("highest", [0, 1, 29, 30, 31, 60, 61, 1000])
def test_zero_has_a_bar_of_its_own(highest: int) -> None:
    """Previously, 1 was counted in the bar of 0 if an image had more than 30 boxes."""
    values = np.concatenate([np.arange(highest + 1), [0, 0, highest]])
    found = whole_histogram(values, one_pack(len(values)))
    edges = found["edges"]
    assert edges[:2] == [0, 1] and edges[-1] > highest and len(found["counts"]) <= 31
    counted = [sum(low <= value < high for value in values.tolist()) for low, high in itertools.pairwise(edges)]
    assert found["counts"] == counted and found["counts"][0] == int((values == 0).sum())


@given(st.lists(st.floats(-1e12, 1e12) | st.floats(-2, 2), max_size=30), st.booleans())
def test_all_values_are_in_a_bar(numbers: list[float], log: bool) -> None:
    values = np.array([*numbers, np.nan])
    values = np.abs(values) + 1e-6 if log else values
    found = histogram(values, one_pack(len(values)), log)
    assert sum(found["counts"]) == len(numbers) and len(found["counts"]) <= 34
    edges = found["edges"]
    assert edges == sorted(set(edges))
    if numbers:
        assert edges[0] <= np.nanmin(values) and np.nanmax(values) <= edges[-1]
        counts = np.histogram(values[~np.isnan(values)], edges)[0]
        assert counts.tolist() == found["counts"]


# -- in a browser


@pytest.fixture
def charts(page: Any, boxed: tuple[Pack, str]) -> Any:
    page.goto(f"{boxed[1]}?tab=statistics")
    page.wait_for_selector(".brush")
    return page


def of_card(page: Any, title: str) -> Any:
    return page.locator(f".card:has(h2:text-is('{title}'))")


def shown(page: Any) -> str:
    page.wait_for_selector("#tab-records:not([hidden])")
    page.wait_for_function("() => document.getElementById('count').textContent.includes(' of ')")
    return str(page.inner_text("#count"))


@browsing
def test_dragging_over_bars_shows_their_records(charts: Any, boxed: tuple[Pack, str]) -> None:
    card = of_card(charts, "Boxes per image")
    chart = card.locator(".brush")
    chart.scroll_into_view_if_needed()
    frame = chart.bounding_box()
    charts.mouse.move(frame["x"] + frame["width"] * 0.4, frame["y"] + 60)
    charts.mouse.down()
    charts.mouse.move(frame["x"] + frame["width"] * 0.6, frame["y"] + 60, steps=3)
    says = card.locator("[role=status]").inner_text()
    low, high, count = map(int, re.findall(r"\d+", says))
    charts.mouse.up()
    assert shown(charts).startswith(f"{count} of 150")
    pack = boxed[0]
    assert count == sum(low <= len(pack.annotation(i).boxes) <= high for i in range(len(pack)))
    assert f"boxes={low}..{high}" in charts.url


@browsing
def test_bars_are_chosen_by_keys(charts: Any, boxed: tuple[Pack, str]) -> None:
    of_card(charts, "Boxes per image").locator(".brush").focus()
    for key in ("ArrowRight", "ArrowRight", "Shift+ArrowRight"):
        charts.keyboard.press(key)
    says = of_card(charts, "Boxes per image").locator("[role=status]").inner_text()
    assert says.startswith("1–2 boxes: ")
    charts.keyboard.press("Enter")
    pack = boxed[0]
    assert shown(charts).startswith(f"{sum(1 <= len(pack.annotation(i).boxes) <= 2 for i in range(len(pack)))} of")
    charts.go_back()
    charts.wait_for_selector("#tab-statistics:not([hidden])")
    matrix = of_card(charts, "Classes in the same image").locator(".brush")
    matrix.focus()
    for key in ("ArrowRight", "ArrowRight"):
        charts.keyboard.press(key)
    charts.keyboard.press("Shift+Enter")
    shown(charts)
    assert "class=" in charts.url and "not=" in charts.url


@browsing
def test_a_wrong_filter_of_the_address_is_left_out(page: Any, boxed: tuple[Pack, str]) -> None:
    """Previously, the page said that the pack had no record."""
    page.goto(f"{boxed[1]}?class=0&sort=nonsense")
    page.wait_for_function(looking.FILLED)
    said = page.inner_text("#problem")
    assert said.startswith("Left out of the address: sort=nonsense, which must be one of packed, ")
    assert "sort" not in page.url and "class=0" in page.url
    page.said.clear()  # the browser reports the answer 400
