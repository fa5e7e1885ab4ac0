"""Tags: several names for a record, kept on the server, found again, and lists that other commands take."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import looking
import pytest
from running import good, refused
from werkzeug.test import Client, TestResponse

from packer import join_packs, open_pack
from packer.format.pack import Pack
from packer.sources.synthetic import draw_sample
from packer.view.app import App
from packer.view.record_tags import RecordTags

TOKEN = "a-token-that-nobody-guesses"
HOST = {"Host": "localhost"}


@pytest.fixture
def pack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pack:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    draw_sample(tmp_path / "src", layout="folder", count=12, size=32)
    good("build", tmp_path / "src", "-o", tmp_path / "pack.lmdb", "--labels", "folder", "--split", "all")
    return open_pack(tmp_path / "pack.lmdb")


def post(pack: Pack, body: Any) -> TestResponse:
    return Client(App(pack, TOKEN)).post(f"/{TOKEN}/api/tags", json=body, headers=HOST)


def get(pack: Pack, path: str) -> TestResponse:
    return Client(App(pack, TOKEN)).get(f"/{TOKEN}/{path}", headers=HOST)


def test_a_record_has_several_tags(pack: Pack) -> None:
    assert post(pack, {"tag": " very  dark ", "on": True, "records": [3, 1, 3]}).json["records"] == [3, 1]
    assert post(pack, {"tag": "night", "on": True, "range": [2, 4], "query": {"sort": "last"}}).json["records"] == [
        9,
        8,
        7,
    ]
    assert post(pack, {"tag": "night", "on": True, "records": [3, 9]}).json["records"] == [3]  # what it changed
    again = open_pack(pack.path)
    assert RecordTags(again).all() == {"very dark": [3, 1], "night": [9, 8, 7, 3]}
    shown = get(again, "api/tiles?set=tagged:night,tagged:very dark").json
    assert [tile["record"] for tile in shown["tiles"]] == [3] and shown["sets"]["tagged:night"] == "night"
    assert [tile["record"] for tile in get(again, "api/tiles?set=tagged:night&sort=set").json["tiles"]] == [9, 8, 7, 3]
    post(again, {"tag": "very dark", "on": False, "records": [1, 2, 3]})
    assert get(again, "api/tags").json == {"tags": [{"tag": "night", "records": [9, 8, 7, 3], "packs": [4]}]}
    assert get(again, "api/tiles?set=tagged:very dark").json["count"] == 0


def test_the_list_of_a_tag_makes_packs(pack: Pack, tmp_path: Path) -> None:
    RecordTags(pack).change("night", [2, 5], on=True)
    listed, exported = get(pack, "tags.txt?tag=night").data, tmp_path / "night.txt"
    good("view", pack.path, "--export-marks", exported, "--tag", "night")
    assert exported.read_bytes() == listed and listed.count(b"\tnight\n") == 2
    good("convert", pack.path, tmp_path / "only.lmdb", "--include", exported)
    good("edit", pack.path, "-o", tmp_path / "rest.lmdb", "--delete", exported)
    names = [pack.paths[2], pack.paths[5]]
    assert list(open_pack(tmp_path / "only.lmdb").paths) == names
    assert list(open_pack(tmp_path / "rest.lmdb").paths) == [path for path in pack.paths if path not in names]
    said = refused(2, "view", pack.path, "--export-marks", tmp_path / "x.txt", "--tag", "day")
    assert "no record has the tag 'day'" in said and "choose one of night" in said
    assert "needs --export" in refused(2, "view", pack.path, "--tag", "night")


def test_each_of_joined_packs_has_its_own(pack: Pack, tmp_path: Path) -> None:
    draw_sample(tmp_path / "more", layout="folder", count=4, size=32, seed=7)
    good("build", tmp_path / "more", "-o", tmp_path / "more.lmdb", "--labels", "folder", "--split", "all")
    other = open_pack(tmp_path / "more.lmdb")
    both = join_packs([pack, other])
    assert RecordTags(both).change("night", [13, 0], on=True) == [0, 13]
    assert RecordTags(other).all() == {"night": [1]} and RecordTags(pack).all() == {"night": [0]}
    assert get(both, "api/tags").json["tags"][0]["packs"] == [1, 1]
    assert get(both, "tags.txt?tag=night&pack=1").data.count(b"night") == 1


@pytest.mark.parametrize(
    "body",
    [
        {"tag": "a,b", "on": True, "records": [1]},
        {"tag": "", "on": True, "records": [1]},
        {"tag": "x" * 61, "on": True, "records": [1]},
        {"tag": "a", "on": True, "records": [12]},
        {"tag": "a", "on": True, "records": [-1]},
        {"tag": "a", "on": True, "records": ["x"]},
        {"tag": "a", "on": True, "range": [0, 10_000], "query": {}},
        {"tag": "a", "on": True},
        {"tag": 5, "on": True, "records": [1]},
        [],
    ],
)
def test_what_the_page_does_not_send(pack: Pack, body: Any) -> None:
    assert post(pack, body).status_code == 400
    assert RecordTags(pack).all() == {}


# -- in a browser


@pytest.fixture
def tags(boxed: tuple[Pack, str]) -> Iterator[RecordTags]:
    found = RecordTags(boxed[0])
    yield found
    for tag, records in found.all().items():
        found.change(tag, records, on=False)


@pytest.mark.skipif(bool(looking.missing()), reason=looking.missing() or "-")
def test_tags_by_keys(opened: Any, tags: RecordTags) -> None:
    opened.focus("#scroller")
    opened.keyboard.press("ArrowRight")
    opened.keyboard.press("t")
    opened.keyboard.type("night")
    opened.keyboard.press("Enter")
    opened.wait_for_selector(".tile[data-record='1'] .tags-of:has-text('night')")
    opened.keyboard.press("ArrowRight")
    opened.keyboard.press("1")
    opened.wait_for_selector(".tile[data-record='2'] .tags-of")
    assert tags.all() == {"night": [1, 2]}
    opened.click("#toast >> text=Undo")
    looking.shows(opened, ".tags-of", 1)
    opened.keyboard.press("t")
    opened.keyboard.press("Escape")  # nothing is added
    looking.shows(opened, "#tag-dialog[open]", 0)
    assert tags.all() == {"night": [1]}
    opened.select_option("#tagged", "tagged:night")
    looking.shows(opened, "#canvas .tile", 1)
    opened.keyboard.press("Escape")
    opened.focus("#scroller")
    opened.keyboard.press("Enter")
    opened.wait_for_selector("#tags [aria-pressed=true]")
    opened.keyboard.press("1")
    opened.wait_for_function("() => !document.querySelector('#tags .chip')")
    assert tags.all() == {}


@pytest.mark.skipif(bool(looking.missing()), reason=looking.missing() or "-")
def test_all_that_are_shown_get_a_tag_and_the_tab_lists_it(
    opened: Any, boxed: tuple[Pack, str], tags: RecordTags
) -> None:
    opened.goto(f"{boxed[1]}?boxes=2..")
    opened.wait_for_function(looking.FILLED)
    opened.focus("#scroller")
    opened.keyboard.press("t")
    opened.fill("#tag-name", "some <b>boxes</b>")
    opened.check("#tag-all")
    opened.click("#tag-dialog >> text=Add")
    opened.wait_for_selector(".tags-of")
    expected = [i for i in range(150) if len(boxed[0].annotation(i).boxes) >= 2]
    assert tags.all() == {"some <b>boxes</b>": expected}
    opened.click("[data-tab=marked]")
    row = opened.locator(".tag-list li")
    assert f"{len(expected)} records" in row.inner_text() and "some <b>boxes</b>" in row.inner_text()
    assert row.locator("a").get_attribute("download") == "some-b-boxes-b-.txt"
    row.locator("text=Remove").click()
    looking.shows(opened, ".tag-list li", 0)
    assert tags.all() == {} and json.dumps(opened.said) == "[]"
