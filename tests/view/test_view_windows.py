"""The windows of images of 16 bits and of maps: what is black, and what is white."""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path
from typing import Any

import looking
import numpy as np
import pytest
from PIL import Image
from running import good
from werkzeug.test import Client

from packer import open_pack
from packer.format.pack import Pack
from packer.view.app import App
from packer.view.windows import windows_of

HOT = 60_000
"""A pixel that is brighter than all others, as of a broken sensor."""


@pytest.fixture(scope="module")
def deep(tmp_path_factory: pytest.TempPathFactory) -> Pack:
    """Gray images of 16 bits with values of 1,000 to 2,199, and a hot pixel."""
    folder = tmp_path_factory.mktemp("deep")
    (folder / "src").mkdir()
    for number in range(3):
        values = (1000 + np.arange(1200, dtype=np.uint16)).reshape(30, 40)
        values[0, 0] = HOT
        Image.fromarray(values).save(folder / "src" / f"{number}.png")
    good("build", folder / "src", "-o", folder / "pack", "--mode", "unchanged", "--labels", "none")
    return open_pack(folder / "pack")


def ask(pack: Pack, what: str, status: int = 200) -> Any:
    token = "a-token-that-nobody-guesses"
    said = Client(App(pack, token)).get(f"/{token}/api/{what}", headers={"Host": "localhost"})
    assert said.status_code == status
    return json.loads(said.text)


def pixels(uri: str) -> Any:
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2]))))


@pytest.mark.parametrize(
    ("window", "ends"),
    [("1200..1700", (1200, 1700)), ("0..", (0, HOT)), ("..2000", (1001, 2000)), ("min..max", (1001, HOT)), ("", None),
     ("p10..p50", None)],
)  # fmt: skip
def test_black_and_white_are_the_ends_of_the_window(deep: Pack, window: str, ends: tuple[int, int] | None) -> None:
    facts = ask(deep, f"record?record=1&window={window}")
    values = deep.image(1)[..., 0].astype(np.float64)
    quantiles = {"": (1, 99), "p10..p50": (10, 50)}
    low, high = ends or np.percentile(values, quantiles[window])
    assert facts["levels"] == {"lowest": 1001, "highest": HOT, "ends": pytest.approx([low, high])}
    expected = np.rint(255 * np.clip((values - low) / (high - low), 0, 1))
    assert np.abs(pixels(facts["picture"]).astype(int) - expected).max() <= 1
    tile = ask(deep, f"tiles?count=1&side=64&window={window}")["tiles"][0]
    assert np.abs(pixels(tile["picture"]).astype(int) - expected).max() <= 1


@pytest.mark.parametrize("window", ["p99..p1", "p1..p101", "5..2", "white", "min", "p..p", "nan..nan"])
def test_a_window_that_is_none(deep: Pack, window: str) -> None:
    assert ask(deep, f"tiles?window={window}", 400)["where"] == "window"
    assert ask(deep, f"record?record=0&colors={window}", 400)["where"] == "colors"


def test_equal_values_have_a_window() -> None:
    window = windows_of({}).images
    for values in ([7, 7, 7], [0, 0], [-3.5]):
        low, high = window.ends(np.array(values))
        assert low <= high == max(values) and np.isfinite(window.shares(np.array(values), (low, high))).all()
    few = np.zeros(1000)
    few[3] = 9
    assert window.ends(few) == (0, 9)  # not black all over


@pytest.mark.skipif(bool(looking.missing()), reason=looking.missing() or "-")
def test_sliders_of_an_open_record(page: Any, deep: Pack) -> None:
    with looking.served(Path(deep.path)) as served:
        page.said.clear()
        page.goto(f"{served.url}?record=1")
        page.wait_for_selector(".levels:not([hidden])")
        fitted = page.inner_text(".tools output >> nth=0")
        page.click("[aria-label='zoom in']")
        page.wait_for_function(f"() => document.querySelector('.tools output').textContent !== '{fitted}'")
        before = page.inner_text(".tools output >> nth=0")
        page.select_option(".tools [aria-label='window']", "fixed")
        page.fill(".tools [aria-label='lowest value of window']", "1500")
        page.keyboard.press("Enter")
        page.wait_for_function("() => location.search.includes('window=1500..')")
        page.wait_for_function("() => document.querySelector('.levels output').textContent.startsWith('1,500 to')")
        assert page.inner_text(".tools output >> nth=0") == before  # it stays zoomed
        page.locator("[aria-label='value that is white']").focus()
        page.keyboard.press("Home")  # not below black
        page.wait_for_function("() => document.querySelector('.levels output').textContent !== '1,500 to 2,188'")
        low, high = map(int, page.inner_text(".levels output").replace(",", "").split(" to "))
        assert low < high
        page.click("#close")
        page.wait_for_function(looking.FILLED)
        assert page.said == []
