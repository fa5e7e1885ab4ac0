"""The figures of images in the page: orders, ranges, histograms and the open record, against loops over the rows."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import looking
import numpy as np
import pytest
from running import good
from test_view_app import ask

from packer import join_packs, open_pack
from packer.format.pack import Pack
from packer.images.fingerprint import FINGERPRINT, fingerprint_of
from packer.sources.synthetic import draw_sample
from packer.view.catalog import Catalog, Query, query_of
from packer.view.image_figures import IMAGE_FIGURES

SCRIPT = Path(looking.ROOT, "packer", "view", "static", "figures.js").read_text("utf-8")


def figure(pack: Pack, name: str) -> list[float]:
    rows = [np.frombuffer(fingerprint_of(pack.image(i)), FINGERPRINT)[0] for i in range(len(pack))]
    return [float(row[name]) * (100 if name == "saturated" else 1) for row in rows]


@pytest.mark.parametrize("name", IMAGE_FIGURES)
def test_orders_and_ranges(sixty: Pack, name: str) -> None:
    catalog, values = Catalog(sixty), figure(sixty, name)
    by_value = sorted(range(60), key=lambda i: (values[i], i))
    assert catalog.find(Query(sort=f"least-{name}")).tolist() == by_value
    assert catalog.find(Query(sort=f"most-{name}")).tolist() == sorted(range(60), key=lambda i: (-values[i], i))
    middle = values[by_value[30]]
    found = catalog.find(query_of({name: f"{middle}.."})).tolist()
    assert found == [i for i in range(60) if values[i] >= middle] and len(found) >= 30


def test_records_without_a_fingerprint_are_last_and_in_no_range(sixty: Pack, tmp_path: Path) -> None:
    draw_sample(tmp_path / "src", layout="yolo", count=4, size=48, seed=9)
    build = ("build", tmp_path / "src", "-o", tmp_path / "pack", "--labels", "yolo", "--split", "all")
    good(*build, "--no-fingerprints")
    both = join_packs([open_pack(tmp_path / "pack"), sixty])
    catalog = Catalog(both)
    for sort in ("least-focus", "most-focus"):
        assert catalog.find(Query(sort=sort))[-4:].tolist() == [0, 1, 2, 3]
    assert catalog.find(Query(ranges=(("focus", -np.inf, np.inf),))).tolist() == list(range(4, 64))
    assert "figures" not in dict(ask(both, "record", record=2)["stored"])
    assert "focus" in dict(ask(both, "record", record=4)["stored"])["figures"]
    assert not ask(open_pack(tmp_path / "pack"), "pack")["figures"]
    assert not ask(open_pack(tmp_path / "pack"), "charts")["figures"]


def test_an_open_record_has_its_figures(sixty: Pack) -> None:
    facts = ask(sixty, "record", record=7)
    told = dict(part.split(" ") for part in dict(facts["stored"])["figures"].split(", "))
    row = np.frombuffer(fingerprint_of(sixty.image(7)), FINGERPRINT)[0]
    assert told == {name: f"{float(row[name]):.3g}" for name in told} and {*IMAGE_FIGURES, "sharpness"} < {*told}
    assert not [part for part in facts.get("parts", ()) if part["name"] == "fingerprint"]


def test_histograms_count_every_image(sixty: Pack) -> None:
    for one in ask(sixty, "charts")["figures"]:
        values = np.array(figure(sixty, one["name"]))
        counts = np.histogram(values, one["edges"])[0]
        assert one["counts"] == counts.tolist() and one["median"] == pytest.approx(np.median(values), abs=0.01)


def test_the_page_knows_all_figures() -> None:
    assert set(re.findall(r'"(\w+)"', SCRIPT.partition("FIGURES = ")[2].partition("]")[0])) == {*IMAGE_FIGURES}


def test_the_page_sorts_and_filters(opened: Any) -> None:
    opened.select_option("#sort", "least-focus")
    opened.wait_for_function(looking.FILLED)
    opened.select_option("#range-of", "brightness")
    opened.fill("#range-from", "1")
    opened.press("#range-from", "Enter")
    opened.wait_for_selector("#chips .chip")
    assert "brightness: 1 or more" in opened.inner_text("#chips") and "brightness=1.." in opened.url
    assert "sort=least-focus" in opened.url
