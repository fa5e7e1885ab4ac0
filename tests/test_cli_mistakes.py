"""What a newcomer gets wrong, and what they see: the message, the next step on a line of its own, and the exit code.

The table is cli_mistakes.txt. Commands run in a folder of sources and packs that `world` draws, and leave it as it is.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from drawn import draw, draw_classes, draw_plain, voc_xml
from running import good, jobs_here, run


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Sources and packs, good and bad; rows only read them."""
    root = tmp_path_factory.mktemp("world")
    draw_classes(root / "imgs", ("ant", "bee"), 3)
    draw_classes(root / "other", ("ant", "wasp"), 2)
    draw_plain(root / "photos", 3)
    (root / "empty").mkdir()
    (root / "texts").mkdir()
    (root / "texts" / "readme.txt").write_text("no image\n")
    (root / "videos").mkdir()
    (root / "videos" / "clip.mp4").write_bytes(b"\0\0\0\x18ftypmp42" + bytes(64))
    draw_plain(root / "cut", 3)
    (root / "cut" / "001.jpg").write_bytes((root / "cut" / "001.jpg").read_bytes()[:-300])
    draw_plain(root / "fake", 2)
    (root / "fake" / "page.jpg").write_text("<html>404</html>")
    draw_plain(root / "heic", 1)
    (root / "heic" / "new.heic").write_bytes(b"\0\0\0\x18ftypheic" + bytes(64))
    draw(root / "voc" / "JPEGImages" / "a.jpg", 1)
    (root / "voc" / "Annotations").mkdir()
    (root / "voc" / "Annotations" / "a.xml").write_text(voc_xml("a.jpg", [("dog", 1, 2, 90, 20)]))
    draw(root / "unlabeled" / "images" / "a.jpg", 1)
    draw(root / "unlabeled" / "images" / "b.jpg", 2)
    (root / "unlabeled" / "labels").mkdir()
    (root / "unlabeled" / "labels" / "a.txt").write_text("0 0.5 0.5 0.2 0.2\n")
    (root / "unlabeled" / "data.yaml").write_text("names: [dog]\n")
    draw(root / "wrapped" / "data" / "ant" / "1.jpg", 1)
    draw(root / "wrapped" / "data" / "bee" / "1.jpg", 2)
    (root / "labels.csv").write_text("path,label\n000.jpg,ant\n001.jpg,bee\n002.jpg,bee\n")
    (root / "wrong.csv").write_text("path,label\n000.jpg,ant\n001.jpg,bee\n002.jpg,bee\n099.jpg,bee\n")
    (root / "none.txt").write_text("nothing.jpg\n")
    (root / "ants.txt").write_text("ant\n")
    (root / "unknown.yaml").write_text("resiz: 64\n")
    (root / "python.yaml").write_text("resize=64\n")
    (root / "broken.zip").write_text("no zip\n")
    with zipfile.ZipFile(root / "texts.zip", "w") as archive:
        archive.writestr("readme.txt", "no image")
    with jobs_here(), pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        for source in ("imgs", "other"):
            good("build", source, "--resize", "16x16", "--quiet")
        good("build", "photos", "-o", "points.lmdb", "--quiet")
        good("build", "imgs", "-o", "small.hdf5", "--resize", "8x8", "--quiet")
    for name in ("flipped", "short", "bare", "garbled"):
        shutil.copytree(root / "imgs.lmdb", root / f"{name}.lmdb")
    data = bytearray((root / "flipped.lmdb" / "data.mdb").read_bytes())
    data[len(data) // 2] ^= 255
    (root / "flipped.lmdb" / "data.mdb").write_bytes(data)
    (root / "short.lmdb" / "data.mdb").write_bytes(data[:5000])
    (root / "bare.lmdb" / "pack.json").unlink()
    (root / "garbled.lmdb" / "pack.json").write_text("{")
    yield root


def mistakes() -> Iterator[Any]:
    """Yield (command, exit code, a part of the message, the next step) of each row of the table."""
    for row in (Path(__file__).parent / "cli_mistakes.txt").read_text().split("\n\n$ packer ")[1:]:
        command, answer, *steps = row.rstrip("\n").split("\n")
        code, _, message = answer.partition(" ")
        yield pytest.param(command, int(code), message, "\n".join(steps), id=command)


@pytest.mark.parametrize(("command", "code", "message", "step"), [*mistakes()])
def test_mistake(
    world: Path, monkeypatch: pytest.MonkeyPatch, command: str, code: int, message: str, step: str
) -> None:
    monkeypatch.chdir(world)
    for left in ("y", "y.partial"):  # finished shards of a build that failed
        shutil.rmtree(left, ignore_errors=True)
    before = os.listdir(world)
    with jobs_here():
        ran = run(*shlex.split(command))
    assert ran.code == code, ran
    assert message in "\n".join(ran.error_lines), ran.err
    assert "\n".join(ran.steps) == step, ran.err
    assert str(world) not in ran.err and "Traceback" not in ran.err and "bug" not in ran.err, ran.err
    assert {*os.listdir(world)} - {"y.partial"} == {*before}


@pytest.mark.parametrize(
    ("command", "module", "message", "step"),
    [
        ("build imgs -o y --decoder jpeg4py", "jpeg4py", "jpeg4py", "pip install"),
        ("bench imgs", "torch", "PyTorch", "pip install torch"),
    ],
)
def test_a_library_is_missing(
    world: Path, monkeypatch: pytest.MonkeyPatch, command: str, module: str, message: str, step: str
) -> None:
    monkeypatch.chdir(world)
    monkeypatch.setitem(sys.modules, module, None)
    ran = run(*shlex.split(command))
    assert ran.code == 2 and message in ran.error_lines[0] and step in ran.steps[0], ran.err


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read and write everything")
@pytest.mark.parametrize(("mode", "code"), [(0o000, 2), (0o555, 3)])
def test_a_folder_is_not_ours(world: Path, monkeypatch: pytest.MonkeyPatch, mode: int, code: int) -> None:
    monkeypatch.chdir(world)
    (world / "empty").chmod(mode)
    try:
        ran = run("build", *(["empty", "-o", "y"] if mode == 0 else ["imgs", "-o", "empty/y"]))
    finally:
        (world / "empty").chmod(0o755)
    assert ran.code in (2, 3) and ran.steps and "Traceback" not in ran.err


def test_there_are_enough_rows() -> None:
    assert len(list(mistakes())) >= 89
