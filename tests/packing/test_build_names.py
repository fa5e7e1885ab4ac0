"""Names of any bytes, files of any kind: a file is what its bytes say, and no name reaches the terminal raw."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from drawn import draw, draw_plain, image_file
from running import good, run, run_apart

from packer.format.pack import open_pack
from packer.packing import BuildOptions, build_pack

NAMES = [
    b"\xff\xfe.jpg", b"new\nline.jpg", b"tab\there.jpg", b"clear\x1b[2Jscreen.jpg", b"-rf.jpg", b" .jpg", b"a b.jpg",
    "NFC-\u00e9.jpg".encode(), "NFD-e\u0301.jpg".encode(), "rtl-\u202egpj.jpg".encode(), b"dots.in.name.jpg",
    b"x.JPG", b"y.JpEg", b"quote\"'.jpg", b"A.jpg", b"a.jpg", b"a.png", b"n" * 251 + b".jpg", b"%s%n.jpg", b"C:\\x.jpg",
]  # fmt: skip


@pytest.fixture(scope="module")
def odd_names(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("names") / "src"
    root.mkdir()
    for i, name in enumerate(NAMES):
        with open(os.path.join(os.fsencode(root), name), "wb") as file:
            file.write(image_file(i, 20 + i))
    return root


@pytest.mark.parametrize("format", ["lmdb", "hdf5", "tfrecord", "webdataset"])
def test_names_of_any_bytes_survive(odd_names: Path, tmp_path: Path, format: str) -> None:
    good("build", odd_names, "-o", tmp_path / "p", "--format", format, "--labels", "none")
    pack = open_pack(tmp_path / "p")
    assert pack.paths == [*map(os.fsdecode, sorted(NAMES))]
    for i, path in enumerate(pack.paths):
        assert pack.reader.shape_of(i)[1] == 20 + NAMES.index(os.fsencode(path))
    good("verify", tmp_path / "p")


@pytest.mark.parametrize("env", [{"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}, {"LC_ALL": "C.UTF-8"}])
def test_no_name_reaches_the_terminal_raw(tmp_path: Path, env: dict[str, str]) -> None:
    bad = os.path.join(os.fsencode(tmp_path), b"src\x1b[31m")
    os.mkdir(bad)
    for name in NAMES:
        with open(os.path.join(bad, name), "wb") as file:
            file.write(b"no image, whatever its name is")
    draw(Path(os.fsdecode(bad)) / "zz.jpg", 1)
    for options in ([], ["--json"], ["--max-bad", "99"]):
        ran = run_apart("build", bad, "--labels", "none", *options, "-o", tmp_path / "p", "--workers", 1, env=env)
        assert ran.code == (0 if "--max-bad" in options else 1), ran.err
        for text in (ran.out, ran.err):
            assert all(c.isprintable() or c == "\n" for c in text)
            assert not any(0xD800 <= ord(c) < 0xE000 for c in text)
        if not options:
            assert len(ran.error_lines) == 3  # one reason, and where all of them are listed
        if "--json" in options:
            paths = {os.fsencode(r["path"]) for r in json.loads(ran.out)["rejected"]}
            assert paths == set(NAMES)
    info = run_apart("info", tmp_path / "p", "--rejected", env=env)
    assert (info.code == 0 and "\x1b" not in info.out and "\\xff" in info.out) or "\\udcff" in info.out


def test_class_folders_of_any_bytes(tmp_path: Path) -> None:
    for name in (b"\xff", b"new\nline", b"\x1b[2J", "é".encode()):
        folder = os.path.join(os.fsencode(tmp_path / "src"), name)
        os.makedirs(folder)
        with open(os.path.join(folder, b"0.jpg"), "wb") as file:
            file.write(image_file(1))
    good("build", tmp_path / "src", "-o", tmp_path / "p")
    pack = open_pack(tmp_path / "p")
    assert [os.fsencode(c) for c in pack.classes] == [b"\x1b[2J", b"new\nline", "é".encode(), b"\xff"]
    assert "\x1b" not in good("info", tmp_path / "p").out


def test_a_file_is_what_its_bytes_say(tmp_path: Path) -> None:
    source = tmp_path / "src"
    draw(source / "png-named.jpg", 1, 11, format="PNG")
    draw(source / "jpeg-named.png", 2, 12)
    draw(source / "jpeg-without-extension", 3, 13)
    draw(source / "webp-named.txt", 4, 14, format="WEBP")
    (source / "html.jpg").write_text("<!DOCTYPE html><html><body>404</body></html>")
    (source / "text.jpg").write_text("just a text")
    (source / "empty.jpg").write_bytes(b"")
    (source / "notes.txt").write_text("just a text, and named so")
    (source / "label.xml").write_text("<other/>")
    ran = good("build", source, "-o", tmp_path / "p", "--labels", "none", "--max-bad", 3)
    pack = open_pack(tmp_path / "p")
    assert {p: pack.reader.shape_of(i)[1] for i, p in enumerate(pack.paths)} == {
        "jpeg-named.png": 12, "jpeg-without-extension": 13, "png-named.jpg": 11, "webp-named.txt": 14
    }  # fmt: skip
    assert {r.path: r.problem.partition(";")[0] for r in pack.manifest.rejected} == {
        "empty.jpg": "not an image: the file is empty",
        "html.jpg": "not an image: an HTML page",
        "text.jpg": "not an image: it begins with b'just a t'",
    }
    assert "packed 4 images of 7 found (3 rejected)" in ran.out


def test_copies_keep_their_own_format(tmp_path: Path) -> None:
    for format in ("PNG", "JPEG", "GIF", "BMP", "WEBP", "TIFF"):
        draw(tmp_path / "src" / f"{format}.jpg", 5, format=format)
    good("build", tmp_path / "src", "-o", tmp_path / "p", "--encode", "copy")
    pack = open_pack(tmp_path / "p")
    assert [pack.reader.encoding_of(i) for i in range(6)] == ["bmp", "gif", "jpeg", "png", "tiff", "webp"]
    for i, path in enumerate(pack.paths):
        assert bytes(pack.record(i)) == (tmp_path / "src" / path).read_bytes()


def test_links_pipes_and_hidden_files(tmp_path: Path) -> None:
    source = draw_plain(tmp_path / "src", 2)
    outside = draw_plain(tmp_path / "outside", 1)
    (source / "leaves.jpg").symlink_to(outside / "000.jpg")
    (source / "absolute.jpg").symlink_to(outside / "000.jpg")
    (source / "elsewhere").symlink_to("../outside")
    (source / "up.jpg").symlink_to("../outside/000.jpg")
    (source / "inside.jpg").symlink_to("000.jpg")
    (source / "dangling.jpg").symlink_to("nothing.jpg")
    (source / "dangling").symlink_to("nothing")
    (source / "loop").symlink_to(".")
    os.mkfifo(source / "pipe.jpg")
    (source / "folder.jpg").mkdir()
    draw(source / ".hidden.jpg", 8)
    draw(source / ".git" / "x.jpg", 8)
    build_pack(BuildOptions(str(source), str(tmp_path / "p"), max_bad="1"))  # a command may only open what it names
    pack = open_pack(tmp_path / "p")
    assert pack.paths == ["000.jpg", "001.jpg", "absolute.jpg", "inside.jpg", "leaves.jpg", "up.jpg"]
    manifest = pack.manifest
    assert [(bad.path, bad.reason) for bad in manifest.rejected] == [("dangling.jpg", "bad-input")]
    assert manifest.counts["found"] == 7 + manifest.counts["skipped"]
    notes = "\n".join(manifest.notes)
    outside_of = "skipped 1: symlink to a folder outside the source (--follow-links reads it) (elsewhere)"
    for reason in (outside_of, "symlink that leads to no file", "that it is in", "not a regular file", "hidden"):
        assert reason in notes
    build_pack(BuildOptions(str(source), str(tmp_path / "q"), labels=("none",), max_bad="1", follow_links=True))
    assert "elsewhere/000.jpg" in open_pack(tmp_path / "q").paths


def test_a_source_that_is_a_symlink(tmp_path: Path) -> None:
    draw_plain(tmp_path / "real", 2)
    (tmp_path / "link").symlink_to("real")
    good("build", tmp_path / "link")
    assert len(open_pack(tmp_path / "link.lmdb")) == 2


def test_a_swapped_in_pipe_does_not_hang(tmp_path: Path) -> None:
    """Between the walk and the read, an image is replaced by a pipe that nobody writes to."""
    from test_build_bad import pack_after

    source = draw_plain(tmp_path / "src", 2)

    def change() -> None:
        (source / "001.jpg").unlink()
        os.mkfifo(source / "001.jpg")

    result = pack_after(source, change)
    assert [r.path for r in result.rejected] == ["001.jpg"]


def test_usage_errors_are_escaped_too(tmp_path: Path) -> None:
    ran = run("build", tmp_path / "no\x1b[2J\nsuch", "--json")
    assert ran.code == 2 and "\x1b" not in ran.err + ran.out and len(ran.error_lines) == 1
    ran = run("build", tmp_path, "--format", "\x1b[2J")
    assert ran.code == 2 and "\x1b" not in ran.err
    ran = run("build", tmp_path, "--\x1b[2J")
    assert ran.code == 2 and "\x1b" not in ran.err
