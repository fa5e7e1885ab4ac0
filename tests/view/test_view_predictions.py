"""Predictions in the page: the sets of records, what is marked in each, the matrix, and the tab in a browser."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import looking
import numpy as np
import pytest
from drawn_masks import picture, write_files
from drawn_predictions import as_results, build_set, labels_of, perturbed, write_results
from running import good, until
from test_view_app import TOKEN, get
from werkzeug.test import Client

from packer import attach, open_pack
from packer.sources.synthetic import draw_sample
from packer.stats.matching import labelled_boxes, match_boxes, predicted_boxes
from packer.view.app import App
from packer.view.facts import drawn_boxes, pack_facts, tile_facts
from packer.view.predicted import DIFFERENCE

IOU, CONFIDENCE = 0.5, 0.3
AT = f"{IOU};{CONFIDENCE}"


class Asked:
    """The page of a pack: one server for several questions."""

    def __init__(self, path: Path) -> None:
        self._client = Client(App(open_pack(path), TOKEN))

    def ask(self, what: str, code: int = 200, **given: Any) -> Any:
        said = self._client.get(f"/{TOKEN}/api/{what}", query_string=given, headers={"Host": "127.0.0.1"})
        assert said.status_code == code, said.text
        return json.loads(said.text)

    def compared(self, name: str = "pred") -> Any:
        until_s = time.monotonic() + 60
        while time.monotonic() < until_s:
            found = self.ask("predictions", name=name, iou=IOU, confidence=CONFIDENCE)
            assert "error" not in found
            if "found" in found:
                return found["found"]
            time.sleep(0.05)
        raise AssertionError("it is not compared yet")

    def records(self, what: str, name: str = "pred") -> list[int]:
        answer = self.ask("tiles", set=f"predictions:{name};{what};{AT}", sort="set")
        return [tile["record"] for tile in answer["tiles"]]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, labels = tmp_path_factory.mktemp("predictions"), labels_of(seed=2)
    pack = build_set(folder, labels, format="lmdb")
    rows = perturbed(labels, seed=3)
    rows = [one for one in rows if one["image_id"] != 97] + [r for r in as_results(labels) if r["image_id"] == 97]
    rows = [one | {"score": max(one["score"], 0.35)} if one["image_id"] == 97 else one for one in rows]
    names = str(folder / "instances.json")
    attach(pack, write_results(folder / "p.json", rows), "pred", "boxes", classes=names)
    return pack


@pytest.fixture
def asked(path: Path) -> Asked:
    return Asked(path)


def test_sets_are_those_of_the_one_rule(path: Path, asked: Asked) -> None:
    pack, found = open_pack(path), asked.compared()
    matched = match_boxes(labelled_boxes(pack), predicted_boxes(pack, "pred"), IOU, CONFIDENCE)
    counts = {one["name"]: one["records"] for one in found["sets"]}
    for kind, errors in matched.errors.items():
        records = asked.records(kind)
        assert sorted(records) == np.flatnonzero(errors).tolist() and counts[kind] == len(records)
        assert [errors[one] for one in records] == sorted(errors[errors > 0], reverse=True)
        assert found["errors"][kind] == errors.sum()
    worst = asked.records("worst")
    assert [matched.disagreement[one] for one in worst] == sorted(matched.disagreement[worst], reverse=True)
    assert asked.records("correct") == [3] and 3 not in worst


def test_cells_lead_to_their_records(path: Path, asked: Asked) -> None:
    matrix = asked.compared()["matrix"]
    pack = open_pack(path)
    matched = match_boxes(labelled_boxes(pack), predicted_boxes(pack, "pred"), IOU, CONFIDENCE)
    labels, said, records, _ = matched.cells()
    checked = 0
    for label, row in zip(matrix["ids"], matrix["counts"], strict=True):
        for predicted, count in zip(matrix["ids"], row, strict=True):
            wanted = records[(labels == label) & (said == predicted)]
            assert count == len(wanted)
            assert sorted(asked.records(f"{label}>{predicted}")) == sorted(set(wanted.tolist()))
            checked += count > 0
    assert checked > 5


def test_each_box_says_what_it_is(path: Path, asked: Asked) -> None:
    """In tiles and in an open record of a set; elsewhere nothing is said."""
    pack = open_pack(path)
    matched = match_boxes(labelled_boxes(pack), predicted_boxes(pack, "pred"), IOU, CONFIDENCE)
    name = f"predictions:pred;worst;{AT}"
    for tile in asked.ask("tiles", set=name, sort="set")["tiles"]:
        record = tile["record"]
        opened = asked.ask("record", record=record, set=name)
        assert opened["kinds"] == tile["kinds"] and opened["predictions"] == tile["predictions"]
        (said,) = tile["predictions"]
        missed = [kind for kind in tile["kinds"] if kind == "missed"]
        assert len(missed) == matched.errors["missed"][record]
        assert said["kinds"].count("spurious") == matched.errors["spurious"][record]
        assert said["scores"] == sorted(said["scores"], reverse=True)
        rows = slice(*matched.predicted.firsts[record : record + 2])
        scores = dict(
            zip(np.round(matched.predicted.scores[rows].astype(float), 4), matched.of_predicted[rows], strict=True)
        )
        for score, kind in zip(said["scores"], said["kinds"], strict=True):
            assert (kind == "left out") == (scores[score] == 4) == (score < CONFIDENCE)
    assert "kinds" not in tile_facts(pack, 0)


@pytest.mark.parametrize(
    "name",
    ["pred", "pred;worst", "pred;nothing;0.5;0.2", "pred;worst;x;0.2", "pred;worst;2;0.2", "other;worst;0.5;0.2",
     "pred;9>0;0.5;0.2", "pred;0>x;0.5;0.2", "pred;worst;nan;0.2"],
)  # fmt: skip
def test_strange_sets_are_refused(asked: Asked, name: str) -> None:
    assert asked.ask("tiles", 400, set=f"predictions:{name}")["where"] == "set"


def test_a_pack_without_predictions_has_none(tmp_path: Path) -> None:
    pack = build_set(tmp_path)
    assert pack_facts(open_pack(pack))["predictions"] == []
    assert get(pack, f"/{TOKEN}/api/predictions?name=pred").status_code == 400


def test_labels(tmp_path: Path) -> None:
    """The most confident errors come first, and the least sure records."""
    draw_sample(tmp_path / "src", count=40, size=32)
    good("build", tmp_path / "src", "-o", tmp_path / "pack", "--split", "all")
    pack = open_pack(tmp_path / "pack")
    table = np.random.default_rng(0).dirichlet(np.full(len(pack.classes), 0.5), len(pack)).astype(np.float32)
    np.save(tmp_path / "p.npy", table)
    attach(tmp_path / "pack", tmp_path / "p.npy", "pred", "labels")
    asked, said = Asked(tmp_path / "pack"), table.argmax(axis=1)
    truth = np.asarray(pack.column("label"))
    wrong = asked.records("wrong")
    assert sorted(wrong) == np.flatnonzero(said != truth).tolist()
    assert [table[one].max() for one in wrong] == sorted(table[said != truth].max(axis=1), reverse=True)
    unsure = asked.records("unsure")
    margins = np.sort(table, axis=1)[:, -1] - np.sort(table, axis=1)[:, -2]
    assert np.allclose(margins[unsure], np.sort(margins))
    (shown,) = asked.ask("record", record=wrong[0])["predictions"]
    assert (shown["label"], shown["said"]) == (said[wrong[0]], pack.classes[said[wrong[0]]])


def test_masks(tmp_path: Path) -> None:
    """Records are sorted by IoU, and a picture shows where they differ."""
    truth = np.zeros((20, 30), np.uint8)
    truth[5:15] = 1
    image = np.full((20, 30, 3), 90, np.uint8)
    files = {f"images/{i}.png": picture(image) for i in range(3)} | {f"masks/{i}.png": picture(truth) for i in range(3)}
    good("build", write_files(tmp_path / "src", files), "-o", tmp_path / "pack", "--mask", "masks/")
    said = [np.roll(truth, shift, axis=0) for shift in (1, 4, 0)]
    write_files(tmp_path / "said", {f"{i}.png": picture(mask) for i, mask in enumerate(said)})
    attach(tmp_path / "pack", tmp_path / "said", "pred", "mask")
    asked = Asked(tmp_path / "pack")
    assert asked.records("worst") == [1, 0, 2]
    assert asked.records("0>1") == [1, 0]
    assert f"pred{DIFFERENCE}" in asked.ask("pack")["overlays"]
    parts = {one["name"]: one for one in asked.ask("record", record=1)["parts"]}
    shares = {row[1]: row[2] for row in parts[f"pred{DIFFERENCE}"]["legend"]}
    assert sum(share for name, share in shares.items() if name != "(equal)") == pytest.approx(100 * 8 / 20)


# -- in a browser


def test_examples_of_boxes_have_no_predictions(path: Path) -> None:
    """They lie in the frame of the image, of which a part is shown."""
    facts = tile_facts(open_pack(path), 0)
    assert facts["predictions"] and "predictions" not in drawn_boxes(facts, [0])


@pytest.fixture(scope="module")
def address(path: Path) -> Iterator[str]:
    with looking.served(path) as served:
        yield served.url


@pytest.mark.skipif(bool(looking.missing()), reason=looking.missing() or "there is a browser")
def test_the_tab_leads_to_records(page: Any, address: str, asked: Asked) -> None:
    page.said.clear()
    page.goto(f"{address}?tab=predictions&confidence={CONFIDENCE}")
    page.wait_for_selector("[data-set=missed]")
    page.evaluate("document.querySelector('.figures tbody th').append('a-name-that-needs-much-room'.repeat(3))")
    assert max(page.eval_on_selector_all(".figures td", "all => all.map((cell) => cell.clientHeight)")) < 30  # one line
    found = asked.compared()
    assert page.inner_text("[data-set=missed] strong") == str(found["errors"]["missed"])
    page.click("[data-set=missed]")
    count = next(one["records"] for one in found["sets"] if one["name"] == "missed")
    page.wait_for_selector(".tile .predicted")
    assert page.inner_text("#count").startswith(f"{count} of ")
    assert "missed: " in page.inner_text("#canvas")
    before = page.locator(".tile .predicted").count()
    page.fill("#filter [aria-label='least confidence']", "0.9")
    assert until(lambda: page.locator(".tile .predicted").count() < before, 30)
    page.uncheck("#filter [aria-label=predictions] input[type=checkbox]")
    looking.shows(page, ".tile .predicted", 0)
    page.go_back()
    page.wait_for_selector(".confusion button.off")
    page.click(".confusion button.off >> nth=0")
    page.wait_for_selector(".tile")
    assert until(lambda: "→" in page.inner_text("#chips"), 30)
    assert page.said == []
