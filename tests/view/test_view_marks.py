"""Marks: who may change them, what keeps them, and that builds and conversions take their list."""

from __future__ import annotations

import errno
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from drawn import draw, draw_plain
from running import good, refused
from werkzeug.test import Client, TestResponse

from packer import join_packs, open_pack
from packer.format.lists import read_list
from packer.format.pack import Pack
from packer.view.app import MOST_POSTED, App
from packer.view.marks import Marks

TOKEN = "a-token-that-nobody-guesses"
HOST = "127.0.0.1:8123"


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The state folder of one test."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state"


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Pack:
    folder = tmp_path_factory.mktemp("marks")
    draw_plain(folder / "src", 9)
    good("build", folder / "src", "-o", folder / "pack", "--labels", "none")
    return open_pack(folder / "pack")


def post(pack: Pack, body: Any, headers: dict[str, str] | None = None, path: str = "api/marks") -> TestResponse:
    given = {"Host": HOST, "Content-Type": "application/json", **(headers or {})}
    data = body if isinstance(body, str) else json.dumps(body)
    return Client(App(pack, TOKEN)).post(f"/{TOKEN}/{path}", data=data, headers=given)


def get(pack: Pack, path: str) -> TestResponse:
    return Client(App(pack, TOKEN)).get(f"/{TOKEN}/{path}", headers={"Host": HOST})


# -- where they are kept


def test_a_mark_is_there_for_the_next_server_and_for_a_copy_of_the_pack(pack: Pack, tmp_path: Path) -> None:
    before = {path.name: path.read_bytes() for path in Path(pack.path).iterdir()}
    answer = post(pack, {"set": {"4": "bad box", "1": ""}})
    assert answer.status_code == 200 and answer.json["before"] == {"4": None, "1": None}
    assert answer.json["after"] == {"4": "bad box", "1": ""}
    os.symlink(pack.path, tmp_path / "elsewhere")
    facts = get(open_pack(tmp_path / "elsewhere"), "api/marks").json
    assert facts["marks"] == [[4, "bad box"], [1, ""]] and facts["packs"][0]["count"] == 2
    assert {path.name: path.read_bytes() for path in Path(pack.path).iterdir()} == before


def test_another_pack_has_marks_of_its_own(pack: Pack, tmp_path: Path) -> None:
    draw_plain(tmp_path / "src", 3)
    good("build", tmp_path / "src", "-o", tmp_path / "other", "--labels", "none")
    other = open_pack(tmp_path / "other")
    Marks(pack).change({2: "duplicate"})
    assert Marks(other).all() == {}
    both = Marks(join_packs([other, pack]))
    assert both.all() == {5: "duplicate"}
    both.change({0: "bad image", 5: None})
    assert (Marks(other).all(), Marks(pack).all()) == ({0: "bad image"}, {})
    assert [part["count"] for part in both.facts()["packs"]] == [1, 0]


def test_servers_and_tabs_lose_no_marks_of_each_other(pack: Pack) -> None:
    """Each marks one record, removes it, and marks it again, all at once."""

    def work(record: int) -> None:
        mine = Marks(pack)
        for _ in range(5):
            mine.change({record: "bad image"})
            mine.change({record: None})
        mine.change({record: str(record)})

    threads = [threading.Thread(target=work, args=(record,)) for record in range(9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert Marks(pack).all() == {record: str(record) for record in range(9)}


def test_a_folder_that_cannot_be_written(pack: Pack, state: Path) -> None:
    state.write_text("a file")
    answer = post(pack, {"set": {"0": ""}})
    assert answer.status_code == 422 and "XDG_STATE_HOME" in answer.json["error"]
    assert get(pack, "api/marks").json["marks"] == []


@pytest.mark.parametrize("content", ["", "{", "[]", '{"marks": 5}', '{"marks": [[1, 2, 3]]}', '{"marks": [["a", ""]]}'])
def test_a_damaged_file(pack: Pack, state: Path, content: str) -> None:
    Marks(pack).change({0: ""})
    (path,) = (state / "packer" / "marks").glob("*.json")
    path.write_text(content)
    answer = get(pack, "api/marks")
    assert answer.status_code == 422 and str(path) in answer.json["error"] and "move it away" in answer.json["error"]


def test_marks_are_replaced_all_at_once(pack: Pack, state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Marks(pack).change({0: "bad box"})

    def fail(*paths: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.replace", fail)
    answer = post(pack, {"set": {"1": ""}})
    assert answer.status_code == 422 and "No space left" in answer.json["error"]
    assert Marks(pack).all() == {0: "bad box"} and [p.suffix for p in (state / "packer" / "marks").glob("[!.]*.*")] == [
        ".json"
    ]


# -- what the page asks for


def test_a_change_is_undone_by_what_was_before(pack: Pack) -> None:
    post(pack, {"set": {"3": "bad box", "5": "duplicate"}})
    cleared = post(pack, {"clear": True}).json["before"]
    assert cleared == {"3": "bad box", "5": "duplicate"} and Marks(pack).all() == {}
    post(pack, {"set": cleared})
    assert Marks(pack).all() == {3: "bad box", 5: "duplicate"}


def test_a_range_is_in_the_order_of_the_page_and_keeps_reasons(pack: Pack) -> None:
    post(pack, {"set": {"6": "bad box"}})
    answer = post(pack, {"range": [4, 2], "query": {"sort": "last", "text": "00"}})
    assert answer.json["before"] == {"5": None, "4": None}
    assert Marks(pack).all() == {6: "bad box", 5: "", 4: ""}


def test_marked_records_are_a_set_of_the_page(pack: Pack) -> None:
    Marks(pack).change({7: "", 2: "bad box"})
    facts = get(pack, "api/tiles?set=marked:all&text=00").json
    assert [tile["record"] for tile in facts["tiles"]] == [2, 7] and facts["sets"] == {"marked:all": "marked"}
    assert get(pack, "api/tiles?set=marked:x").status_code == 400


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"set": {"9": ""}}, "record: must be 0 to 8, got 9"),
        ({"set": {"-1": ""}}, "record: must be 0 to 8, got -1"),
        ({"set": {"0": "x" * 201}}, "reason: must have at most 200 characters, got 201"),
        ({"set": {str(n): "" for n in range(10_001)}}, "at most 10,000"),
        ({"range": [0, 10_000], "query": {}}, "at most 10,000"),
        ({"range": [0, float("inf")], "query": {}}, "marks: are not in the form"),
        ({"range": [0, 1], "query": {"sort": "x"}}, "sort: must be one of"),
        ({"set": {"0": 5}}, "form"),
        ({"set": {"a": ""}}, "form"),
        ({"set": [0]}, "form"),
        ({"clear": 1}, None),
        ({}, "form"),
        ([], "form"),
        ("{", "form"),
        ("null", "form"),
        pytest.param("[" * 100_000 + "]" * 100_000, "form", id="deep"),
    ],
)
def test_other_requests_change_nothing(pack: Pack, body: Any, said: str | None) -> None:
    Marks(pack).change({7: "duplicate"})
    answer = post(pack, body)
    if said is not None:
        assert answer.status_code == 400 and said in answer.json["error"]
    assert Marks(pack).all() == {7: "duplicate"}


# -- who may change them


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Origin": f"http://{HOST}", "Sec-Fetch-Site": "same-origin"}, 200),
        ({"Origin": "http://example.org"}, 403),
        ({"Origin": "http://127.0.0.1:9"}, 403),
        ({"Origin": "null"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Host": "example.org"}, 403),
        ({"Content-Type": "text/plain"}, 415),
        ({"Content-Type": "application/x-www-form-urlencoded"}, 415),
    ],
)
def test_only_the_page_itself_changes_marks(pack: Pack, headers: dict[str, str], status: int) -> None:
    assert post(pack, {"set": {"0": ""}}, headers).status_code == status
    assert Marks(pack).all() == ({0: ""} if status == 200 else {})


def test_a_large_request_is_refused_unread(pack: Pack) -> None:
    body = json.dumps({"set": {"0": ""}}) + " " * MOST_POSTED
    assert post(pack, body).status_code == 413 and Marks(pack).all() == {}


def test_posts_need_the_token_and_are_for_marks_only(pack: Pack) -> None:
    client = Client(App(pack, TOKEN))
    for path, status in (("/api/marks", 403), (f"/{TOKEN}/api/pack", 405), (f"/{TOKEN}/marks.txt", 405)):
        answer = client.post(path, json={"set": {"0": ""}}, headers={"Host": HOST})
        assert answer.status_code == status
    assert Marks(pack).all() == {}


# -- the list

ODD = (
    "a b.jpg", " lead.jpg", "trail .jpg ", "-dash.jpg", "#hash.jpg", "ünï 写.jpg", "two\nlines.jpg", "tab\t.jpg",
    "x*[1]?.jpg", "back\\nslash.jpg", "path", "cr\r.jpg", "./dots..jpg", os.fsdecode(b"\xff latin.jpg"),
)  # fmt: skip


def test_builds_and_conversions_take_the_list(tmp_path: Path) -> None:
    """All names that a file may have; each one is marked, and its neighbor stays."""
    for number, name in enumerate(ODD):
        draw(tmp_path / "src" / "sub" / name, number)
        draw(tmp_path / "src" / "sub" / f"kept{number}.jpg", 50 + number)
    draw(tmp_path / "src" / "sub" / "xy1z.jpg", 99)  # fits the glob x*[1]?.jpg
    good("build", tmp_path / "src", "-o", tmp_path / "pack", "--labels", "none")
    pack = open_pack(tmp_path / "pack")
    odd = {f"sub/{name.removeprefix('./')}" for name in ODD}
    marked = {number: "bad\timage\n" if number % 2 else "" for number, path in enumerate(pack.paths) if path in odd}
    assert len(marked) == len(ODD)
    Marks(pack).change(marked)
    answer = get(pack, "marks.txt")
    assert answer.headers["Content-Disposition"] == "attachment; filename=marks.txt"
    (tmp_path / "marks.txt").write_bytes(answer.data)
    good("view", pack.path, "--export-marks", tmp_path / "same.txt")
    assert (tmp_path / "same.txt").read_bytes() == answer.data

    good("build", tmp_path / "src", "-o", tmp_path / "built", "--labels", "none", "--exclude", tmp_path / "marks.txt")
    good("convert", tmp_path / "pack", tmp_path / "converted.tar", "--exclude", tmp_path / "marks.txt")
    for out in ("built", "converted.tar"):
        assert set(open_pack(tmp_path / out).paths) == set(pack.paths) - odd
        skipped = [row.path for row in read_list(tmp_path / out, "skipped") if row.reason == "excluded"]
        assert set(skipped) == odd
    assert len(Marks(open_pack(tmp_path / "built")).all()) == 0  # another pack


def test_the_list_of_a_pack_without_marks(pack: Pack, tmp_path: Path) -> None:
    assert get(pack, "marks.txt").data == b"path\treason\n"
    said = refused(2, "view", pack.path, "--export-marks", tmp_path / "marks.txt")
    assert "no record is marked" in said and not (tmp_path / "marks.txt").exists()


def test_a_list_for_each_of_several_packs(pack: Pack, tmp_path: Path) -> None:
    draw_plain(tmp_path / "src", 2)
    good("build", tmp_path / "src", "-o", tmp_path / "other", "--labels", "none")
    both = join_packs([open_pack(tmp_path / "other"), pack])
    Marks(both).change({3: "duplicate"})
    assert get(both, "marks.txt").data == b"path\treason\n"
    assert get(both, "marks.txt?pack=1").data == b"path\treason\n001.jpg\tduplicate\n"
    assert get(both, "marks.txt?pack=2").status_code == 422
