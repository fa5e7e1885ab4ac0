"""The map of embeddings: the answers of the server against plain numpy, and the tab in a real browser."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import looking
import numpy as np
import pytest
from running import good, until
from werkzeug.test import Client

from packer import join_packs, open_pack
from packer.format.pack import Pack
from packer.sources.synthetic import draw_sample
from packer.stats.embeddings import unit_vectors
from packer.view.app import App
from packer.view.embedding_maps import NOWHERE, inside

TOKEN = "a-token-that-nobody-guesses"
COUNT = 120
WITHOUT = 5
"""The record whose vector has no direction."""
needs_browser = pytest.mark.skipif(bool(looking.missing()), reason=looking.missing() or "-")


def vectors(labels: np.ndarray) -> np.ndarray:
    """A cluster for each class; a wrong label, a vector without direction, and one unlike all others."""
    random = np.random.default_rng(0)
    found = random.normal(size=(10, 12))[labels] + 0.1 * random.normal(size=(len(labels), 12))
    found[WITHOUT] = 0
    found[9] = -found.sum(axis=0)
    return found.astype(np.float16)


@pytest.fixture(scope="session")
def mapped(tmp_path_factory: pytest.TempPathFactory) -> Pack:
    """A pack of class folders with two embeddings, `clip` and `small`."""
    folder = tmp_path_factory.mktemp("mapped")
    draw_sample(folder / "src", layout="folder", count=COUNT, size=32)
    good("build", folder / "src", "-o", folder / "pack", "--split", "all")
    values = vectors(np.asarray(open_pack(folder / "pack").column("label")))
    for name, columns in (("clip", 12), ("small", 3)):
        np.save(folder / f"{name}.npy", values[:, :columns])
        good("attach", folder / "pack", folder / f"{name}.npy", "--as", name)
    return open_pack(folder / "pack")


DRAWN = """() => {
  const canvas = document.getElementById("map-canvas");
  if (!canvas) return false;
  return canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data.some((value) => value > 0);
}"""


class Asked:
    """The application of a pack, which keeps its maps between questions."""

    def __init__(self, pack: Pack) -> None:
        self._client = Client(App(pack, TOKEN))

    def bytes(self, path: str) -> bytes:
        said = self._client.get(f"/{TOKEN}/{path}", headers={"Host": "127.0.0.1:1"})
        assert said.status_code == 200, said.text
        return said.data

    def json(self, path: str) -> Any:
        return json.loads(self.bytes(f"api/{path}"))

    def error(self, path: str) -> str:
        said = self._client.get(f"/{TOKEN}/{path}", headers={"Host": "127.0.0.1:1"})
        assert said.status_code == 400
        return str(json.loads(said.text)["error"])

    def when_ready(self, path: str) -> Any:
        self.json(f"{path}&start=1")
        assert until(lambda: self.json(path).get("ready") or self.json(path).get("error"), 60)
        return self.json(path)


@pytest.fixture(scope="module")
def asked(mapped: Pack) -> Asked:
    return Asked(mapped)


@pytest.fixture(scope="module")
def places(asked: Asked) -> np.ndarray:
    facts = asked.when_ready("map?embedding=clip")
    assert facts["left_out"] == 1 and facts["shown"] == COUNT - 1 and facts["colors"][0]["kind"] == "class"
    return np.frombuffer(asked.bytes("places.bin?embedding=clip"), "<u2").reshape(2, COUNT)


def test_places_are_the_principal_components(mapped: Pack, places: np.ndarray) -> None:
    known = np.arange(COUNT) != WITHOUT
    assert (places[:, WITHOUT] == NOWHERE).all() and places[:, known].max() == NOWHERE - 1
    plain, _ = unit_vectors(vectors(np.asarray(mapped.column("label")))[known])
    centered = plain - plain.mean(axis=0)
    left, sizes, _ = np.linalg.svd(centered, full_matrices=False)
    expected = left[:, :2] * sizes[:2]
    for found, wanted in zip(places[:, known].astype(float), expected.T, strict=True):
        assert abs(np.corrcoef(found, wanted)[0, 1]) > 0.9999
    spans = np.ptp(places[:, known].astype(float), axis=1)  # one scale in both directions
    assert spans[1] / spans[0] == pytest.approx(np.ptp(expected[:, 1]) / np.ptp(expected[:, 0]), rel=1e-2)


def test_colors(mapped: Pack, asked: Asked, places: np.ndarray) -> None:
    codes = np.frombuffer(asked.bytes("colors.bin?color=class"), "<u2")
    np.testing.assert_array_equal(codes, np.asarray(mapped.column("label")))
    assert "must be one of class" in asked.error("colors.bin?color=nothing")


def test_an_area_is_a_set_of_records(asked: Asked, places: np.ndarray) -> None:
    x, y = places.astype(int)
    middle, right = 30_000, 60_001
    corners = [(0, 0), (middle, 0), (middle, right), (0, right)]
    name = "area:clip.pca." + "".join(f"{a:04x}{b:04x}" for a, b in corners)
    said = asked.json(f"tiles?set={name}&count=64")
    expected = np.flatnonzero((x < middle) & (y < right)).tolist()
    assert [tile["record"] for tile in said["tiles"]] == expected[:64] and said["count"] == len(expected) > 0
    assert "is not EMBEDDING" in asked.error(f"api/tiles?set=area:clip.pca.{'0' * 16}")
    assert "no map by umap yet" in asked.error(f"api/tiles?set={name.replace('pca', 'umap')}")
    assert "no map by pca yet" in asked.error(f"api/tiles?set={name.replace('clip', 'small')}")


def test_inside_a_polygon_with_a_hole() -> None:
    """Against a winding of each point, point by point; the path crosses itself."""
    random = np.random.default_rng(0)
    places = random.integers(0, 1000, (2, 2000)).astype(np.uint16)
    places[:, 0] = NOWHERE
    corners = random.integers(0, 1000, (9, 2))

    def holds(x: int, y: int) -> bool:
        odd = False
        for (x1, y1), (x2, y2) in zip(corners.tolist(), [*corners.tolist()[1:], corners.tolist()[0]], strict=True):
            if (y1 > y) != (y2 > y) and (x - x1) * abs(y2 - y1) < (x2 - x1) * (y - y1) * np.sign(y2 - y1):
                odd = not odd
        return odd

    expected = [n for n in range(1, 2000) if holds(int(places[0, n]), int(places[1, n]))]
    assert inside(places, corners).tolist() == expected and len(expected) > 100


def test_similar_records_and_their_set(mapped: Pack, asked: Asked) -> None:
    plain, _ = unit_vectors(vectors(np.asarray(mapped.column("label"))))
    distances = 1 - plain @ plain[20]
    distances[[20, WITHOUT]] = np.inf
    expected = np.argsort(distances, kind="stable")[: COUNT - 2]
    said = asked.json("similar?embedding=clip&record=20&count=9")
    assert [tile["record"] for tile in said] == expected[:9].tolist()
    assert [tile["distance"] for tile in said] == pytest.approx(distances[expected[:9]].tolist(), abs=1e-3)
    tiles = asked.json("tiles?set=similar:clip.20&sort=set&count=64")
    assert [tile["record"] for tile in tiles["tiles"]] == expected[:64].tolist()
    assert asked.json(f"similar?embedding=clip&record={WITHOUT}") == []
    assert "not an embedding" in asked.error("api/tiles?set=similar:nope.20")


def test_outliers_join_the_problems(asked: Asked) -> None:
    found = asked.when_ready("neighborhoods?embedding=clip")
    assert "outlier.clip" in found["kinds"] and "1 record has no direction" in found["notes"][0]
    problems = {one["kind"]: one for one in asked.json("problems")["problems"]}
    assert problems["outlier.clip"]["records"] >= 1
    tiles = asked.json("tiles?set=problem:outlier.clip&sort=set&count=1")["tiles"]
    assert tiles[0]["record"] == 9
    (first, *_) = asked.json("problem?kind=outlier.clip")["examples"]
    assert len(first["neighbors"]) == 4 and all("picture" in tile for tile in first["neighbors"])


def test_joined_packs_share_a_map(mapped: Pack, tmp_path: Path) -> None:
    good("edit", mapped.path, "-o", tmp_path / "other", "--map", f"{mapped.classes[0]}=other")
    joined = Asked(join_packs([mapped, open_pack(tmp_path / "other")]))
    facts = joined.when_ready("map?embedding=clip")
    assert facts["shown"] == 2 * (COUNT - 1) and "pack" in [one["name"] for one in facts["colors"]]
    codes = np.frombuffer(joined.bytes("colors.bin?color=pack"), "<u2")
    assert codes.tolist() == [0] * COUNT + [1] * COUNT


def test_a_pack_without_embeddings(sixty: Pack) -> None:
    asked = Asked(sixty)
    assert asked.json("pack")["embeddings"] == []
    assert "packer attach" in asked.error("api/map")


@pytest.fixture(scope="module")
def served(mapped: Pack) -> Iterator[str]:
    with looking.served(mapped.path) as found:
        yield found.url


@needs_browser
def test_the_tab(page: Any, served: str) -> None:
    page.said.clear()
    page.goto(f"{served}?tab=map&embedding=clip")
    page.wait_for_selector("#map[data-drawn]")
    assert page.inner_text("#map-said").startswith("119 records; 1 left out")
    page.wait_for_function("() => document.getElementById('map-canvas').scatter.frames.length > 0")
    page.wait_for_function(DRAWN)

    page.focus("#map-canvas")
    page.keyboard.press("s")  # all that is in sight
    page.wait_for_selector("#map-chosen h3")
    assert int(page.inner_text("#map-chosen h3").split()[0]) > 100
    box = page.locator("#map-canvas").bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.keyboard.down("Shift")
    page.mouse.move(x - 1.0, box["y"] + 2)
    page.mouse.down()
    for at, over in ((x - 1, box["y"] + box["height"] - 2), (box["x"] + 2, y + 200), (box["x"] + 2, box["y"] + 2)):
        page.mouse.move(at, over, steps=3)
    page.mouse.up()
    page.keyboard.up("Shift")
    page.wait_for_function("() => parseInt(document.querySelector('#map-chosen h3')?.textContent) < 100")
    count = page.inner_text("#map-chosen h3").split()[0]
    page.click("text=Show in Records")
    page.wait_for_function(f"() => document.getElementById('count').textContent.startsWith('{count} of')")
    page.go_back()
    page.wait_for_function(f"() => document.querySelector('#map-chosen h3')?.textContent.startsWith('{count} ')")
    page.click("text=Mark all")
    page.wait_for_function(f"() => document.getElementById('toast').textContent.includes('Marked {count}')")
    page.click("#toast >> text=Undo")
    page.wait_for_function("() => document.getElementById('toast').textContent.includes('Undone')")
    assert page.said == []


@needs_browser
def test_what_was_looked_for_is_there_after_a_reload(page: Any, served: str) -> None:
    page.said.clear()
    page.goto(f"{served}?tab=map&embedding=clip")
    page.click("text=Look for outliers and wrong labels")
    page.wait_for_selector("#map-look >> text=Explained in Problems")
    page.reload()
    page.wait_for_selector("#map-look >> text=Explained in Problems")
    page.click("#map-look >> text=Explained in Problems")
    page.wait_for_selector(".problem[data-kind='outlier.clip']")
    said = page.inner_text("#tab-problems .page > .note >> nth=0")
    assert said.endswith("Only labels, digests of files, figures of the images and embeddings were compared.")
    assert page.said == []


@needs_browser
@pytest.mark.skipif(find_spec("umap") is not None, reason="umap-learn is installed")
def test_a_map_without_umap_says_how_to_get_it(page: Any, served: str) -> None:
    """And does not show another map in its place."""
    page.goto(f"{served}?tab=map&embedding=clip")
    page.wait_for_function(DRAWN)
    page.select_option("#map-method", "umap")
    page.wait_for_selector("#map-said >> text=pip install umap-learn")
    page.wait_for_function(f"() => !({DRAWN})()")
    page.select_option("#map-method", "pca")
    page.wait_for_function(DRAWN)


@needs_browser
def test_similar_records_of_an_open_one(page: Any, served: str) -> None:
    page.said.clear()
    page.goto(f"{served}?record=20")
    looking.shows(page, "dialog .similar .thumb img", 18)  # nine of each embedding
    page.click("dialog .similar .thumb >> nth=0")
    page.wait_for_function("() => !location.search.includes('record=20')")
    page.click("dialog .similar >> nth=0 >> text=All, the nearest first")
    page.wait_for_function("() => location.search.includes('set=similar:') && location.search.includes('sort=set')")
    assert page.said == []


@needs_browser
def test_a_pack_without_embeddings_has_no_tab(opened: Any) -> None:
    looking.shows(opened, "#tab-of-map", 0)
    looking.shows(opened, "#tab-of-problems", 1)
