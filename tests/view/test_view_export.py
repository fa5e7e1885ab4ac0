"""The contact sheet: one file, no script, nothing from elsewhere, and never half of one."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path

import pytest
from drawn import draw, draw_classes, draw_dota, draw_landmarks, draw_objects, draw_voc, tree_state
from packs import WIDE
from running import good, refused

from packer import open_pack
from packer.view import export as sheets


class Sheet(HTMLParser):
    """The elements of a page, and its text."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text.append(data)

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.tags)


@pytest.mark.parametrize("container", WIDE)
def test_every_record_with_its_boxes(tmp_path: Path, container: str) -> None:
    draw_voc(tmp_path / "src")
    good("build", tmp_path / "src", "-o", tmp_path / "pack", "--labels", "voc", "--format", container)
    before = tree_state(tmp_path / "pack")
    said = good("view", tmp_path / "pack", "--export", tmp_path / "sheet.html").out
    pack, sheet = open_pack(tmp_path / "pack"), Sheet(tmp_path / "sheet.html")
    boxes = sum(len(pack.annotation(i).boxes) for i in range(len(pack)))
    assert sheet.count("figure") == sheet.count("image") == len(pack) and sheet.count("rect") == boxes > 0
    assert sheet.count("script") == 0 and "://" not in (tmp_path / "sheet.html").read_text()
    assert f"{len(pack)} of {len(pack)} records" in said and tree_state(tmp_path / "pack") == before


def test_landmarks_and_a_draw(tmp_path: Path) -> None:
    draw_landmarks(tmp_path / "src")
    labels = ("--labels", f"list:{tmp_path / 'src' / 'landmarks.txt'}", "--columns", "path x*5 y*5")
    good("build", tmp_path / "src", "-o", tmp_path / "pack", *labels)
    printable = []
    for seed in (1, 1, 2):
        drawn = ("--count", 4, "--seed", seed, "--json")
        facts = good("view", tmp_path / "pack", "--export", tmp_path / "s.html", *drawn).out
        assert json.loads(facts) == {"path": str(tmp_path / "s.html"), "records": 4, "of": 8}
        sheet = Sheet(tmp_path / "s.html")
        assert sheet.count("circle") == 4 * 5
        printable.append([text for text in sheet.text if text.startswith("faces/")])
    assert printable[0] == printable[1] != printable[2]


def test_keypoints_and_outlines(tmp_path: Path) -> None:
    good("build", draw_objects(tmp_path / "src"), "-o", tmp_path / "pack")
    good("view", tmp_path / "pack", "--export", tmp_path / "s.html")
    circles = [made for name, made in Sheet(tmp_path / "s.html").tags if name == "circle"]
    assert [(made["cx"], made["cy"], made["fill"] == "none") for made in circles] == [
        ("4.5", "4.5", True), ("10.5", "10.5", False)  # hidden, visible
    ] * 2  # fmt: skip
    assert Sheet(tmp_path / "s.html").count("polygon") == 2


def test_oriented_boxes_are_drawn_in_place_of_their_extents(tmp_path: Path) -> None:
    good("build", draw_dota(tmp_path / "src"), "-o", tmp_path / "pack")
    good("view", tmp_path / "pack", "--export", tmp_path / "s.html")
    sheet, corners = Sheet(tmp_path / "s.html"), "9.0,2.0 16.0,9.0 9.0,16.0 2.0,9.0"
    assert sheet.count("rect") == 0
    assert [made["points"] for name, made in sheet.tags if name == "polygon"] == [corners] * 6


def test_hostile_names(tmp_path: Path) -> None:
    hostile = "<img src=x onerror=alert(1)>\x1b[2J"
    draw(tmp_path / "src" / hostile / "0.jpg", 0)
    good("build", tmp_path / "src", "-o", tmp_path / "pack", "--labels", "folder")
    good("view", tmp_path / "pack", "--export", tmp_path / "sheet.html")
    sheet = Sheet(tmp_path / "sheet.html")
    assert sheet.count("img") == 0 and "\x1b" not in (tmp_path / "sheet.html").read_text()
    assert any("<img src=x onerror=alert(1)>\\x1b[2J" in text for text in sheet.text)


def test_a_damaged_record_is_said_in_its_place(tmp_path: Path) -> None:
    draw_classes(tmp_path / "src")
    good("build", tmp_path / "src", "-o", tmp_path / "pack")
    pack = open_pack(tmp_path / "pack")
    path = Path(pack.path, pack.reader.shards[0].container.name)
    data = bytearray(path.read_bytes())
    data[pack.reader.span(2)[0]] ^= 1
    path.write_bytes(data)
    good("view", tmp_path / "pack", "--export", tmp_path / "sheet.html")
    sheet = Sheet(tmp_path / "sheet.html")
    assert sheet.count("image") == len(pack) - 1 and any("checksum" in text for text in sheet.text)


def test_an_old_sheet_stays_until_the_new_one_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draw_classes(tmp_path / "src")
    good("build", tmp_path / "src", "-o", tmp_path / "pack")
    (tmp_path / "sheet.html").write_text("old")

    def fails(*arguments: object) -> str:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(sheets, "_figure", fails)
        said = refused(3, "view", tmp_path / "pack", "--export", tmp_path / "sheet.html")
    assert "No space left" in said and (tmp_path / "sheet.html").read_text() == "old"
    assert not list(tmp_path.glob("*.partial"))
    good("view", tmp_path / "pack", "--export", tmp_path / "sheet.html")
    assert (tmp_path / "sheet.html").read_text() != "old"


def test_mistakes(tmp_path: Path) -> None:
    draw_classes(tmp_path / "src")
    good("build", tmp_path / "src", "-o", tmp_path / "pack")
    pack, out = tmp_path / "pack", tmp_path / "sheet.html"
    assert "into the pack" in refused(2, "view", pack, "--export", pack / "sheet.html")
    assert "--count" in refused(2, "view", pack, "--export", out, "--count", 0)
    assert "--export" in refused(2, "view", pack, "--count", 3)
    assert "--no-browser" in refused(2, "view", pack, "--export", out, "--no-browser")
    assert "error: --source: is not a folder" in refused(
        2, "view", pack, "--source", pack / "pack.json", "--no-browser"
    )
    assert "no such pack" in refused(2, "view", tmp_path / "none", "--export", out) and not out.exists()
    refused(3, "view", pack, "--export", tmp_path / "none" / "sheet.html")
