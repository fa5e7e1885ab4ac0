"""Choices that repeat: which images, what of those without labels, and options from a pack or a file."""

from __future__ import annotations

import json
import shlex
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from drawn import draw, draw_classes, draw_landmarks, draw_plain, draw_voc
from PIL import Image
from running import digests, good, refused, run

from packer import options_from, options_like
from packer.containers import CONTAINERS
from packer.errors import UsageError
from packer.format.lists import cell_of, read_list
from packer.format.pack import open_pack
from packer.packing import BuildOptions
from packer.packing.input_table import read_selection
from packer.packing.recorded import _labels, as_config, read_config


def paths(pack: Path) -> list[str]:
    return open_pack(pack).paths


# -- how images are stored

KINDS_OF_FILES = ("JPEG", "PNG", "BMP", "GIF", "WEBP", "TIFF")


def draw_photos(root: Path, same_size: bool) -> Path:
    """A file of each format, and a PNG of 16 bits."""
    for i, kind in enumerate(KINDS_OF_FILES):
        draw(root / f"{i}.{kind.lower()}", i, 40 if same_size else 40 + i, 30, format=kind)
    Image.fromarray(np.arange(1200, dtype=np.uint16).reshape(30, 40)).save(root / "wide.png")
    return root


@pytest.mark.parametrize(
    ("container", "same_size", "given", "meant"),
    [
        *((container, False, [], "copy") for container in CONTAINERS),
        ("lmdb", True, [], "raw"),
        ("lmdb", False, ["--resize", "16"], "raw"),  # N leaves them of different sizes, but that was asked for
        ("lmdb", False, ["--encode", "raw"], "raw"),
    ],
)
def test_photos_of_different_sizes_are_stored_as_they_are(
    tmp_path: Path, container: str, same_size: bool, given: list[str], meant: str
) -> None:
    source = draw_photos(tmp_path / "src", same_size)
    given = [*given, "--format", container, "--labels", "none"]
    ran = good("build", source, "-o", tmp_path / "p", *given)
    assert f"({container}, {meant}, {'40x30x3' if same_size else 'different sizes'})" in ran.out
    asked = [*given, "--encode", meant]
    good("build", source, "-o", tmp_path / "q", *asked)
    assert digests(tmp_path / "p") == digests(tmp_path / "q")
    pack = open_pack(tmp_path / "p")
    assert pack.manifest.encoding == meant and good("verify", tmp_path / "p", "--deep")
    if meant == "copy":
        assert [bytes(pack.record(i)) for i in range(len(pack))] == [p.read_bytes() for p in sorted(source.iterdir())]
    command = shlex.split(good("info", tmp_path / "p", "--command").out)
    assert ("--encode" in command) == ("--encode" in given)


def test_the_choice_is_that_of_the_whole_source(tmp_path: Path) -> None:
    """One odd image in a shard of its own: all parts, a resumed build and a dry run that decodes choose the same."""
    source = draw_plain(tmp_path / "src", 6)
    draw(source / "9.jpg", 9, 41, 30)
    whole = ["build", source, "--shard-size", 2000]
    good(*whole, "-o", tmp_path / "p")
    for part in ("1/3", "2/3", "3/3"):
        good(*whole, "-o", tmp_path / "q", "--job", part)
    good(*whole, "-o", tmp_path / "q", "--finish")
    assert open_pack(tmp_path / "q").manifest.encoding == "copy"
    assert digests(tmp_path / "p") == digests(tmp_path / "q") and len(open_pack(tmp_path / "p").manifest.shards) > 2
    (source / "9.jpg").write_bytes((source / "9.jpg").read_bytes()[:-200])
    ran = good("build", source, "--dry-run", "--deep", "--max-bad", 1)
    assert "encode: copy" in ran.out and "(lmdb, copy, " in ran.out
    good("build", source, "-o", tmp_path / "r", "--max-bad", 1)
    assert open_pack(tmp_path / "r").manifest.encoding == "copy"


# -- include and exclude


@pytest.mark.parametrize(
    ("lines", "left_out"),
    [
        ("000.jpg\n./002.jpg\n\n", ["000.jpg", "002.jpg"]),
        ("003\r\n", ["003.jpg"]),
        ("00[12].jpg\n", ["001.jpg", "002.jpg"]),
        ("sub/\n", ["sub/x.jpg"]),
        ("sub\n", ["sub/x.jpg"]),
        ("*x.jpg\n", ["sub/x.jpg"]),
        ("x\n", ["sub/x.jpg"]),
        ("path\treason\tproblem\n001.jpg\tbad-image\tis cut\n", ["001.jpg"]),
        ("\ufeff001.jpg\n", ["001.jpg"]),
    ],
)
@pytest.mark.parametrize("option", ["--exclude", "--include"])
def test_lines_that_name_images(tmp_path: Path, lines: str, left_out: list[str], option: str) -> None:
    source = draw_plain(tmp_path / "src", 4)
    draw(source / "sub" / "x.jpg", 9)
    every = ["000.jpg", "001.jpg", "002.jpg", "003.jpg", "sub/x.jpg"]
    (tmp_path / "some.txt").write_bytes(lines.encode())
    good("build", source, "-o", tmp_path / "p", "--labels", "none", option, tmp_path / "some.txt")
    others = [path for path in every if path not in left_out]
    assert paths(tmp_path / "p") == (others if option == "--exclude" else left_out)
    reason = "excluded" if option == "--exclude" else "not included"
    skipped = left_out if option == "--exclude" else others
    assert [(row.path, row.reason) for row in read_list(tmp_path / "p", "skipped")] == [(p, reason) for p in skipped]
    assert f"{skipped[0]}: {reason}" in good("info", tmp_path / "p", "--skipped").out


def test_lines_that_name_nothing(tmp_path: Path) -> None:
    """Of --exclude they are a note: the image may be gone already. Of --include they are bad inputs."""
    source = draw_plain(tmp_path / "src", 3)
    (tmp_path / "some.txt").write_text("001.jpg\nno.jpg\nnone*\n")
    ran = good("build", source, "-o", tmp_path / "p", "--exclude", tmp_path / "some.txt")
    assert 'note: some.txt: 2 lines name no image, for example line 3: "none*"' in ran.out
    ran = run("build", source, "-o", tmp_path / "q", "--include", tmp_path / "some.txt")
    assert ran.code == 1 and 'no-image: some.txt:2: no image "no.jpg"' in ran.err
    good("build", source, "-o", tmp_path / "q", "--include", tmp_path / "some.txt", "--max-bad", 2)
    (tmp_path / "some.txt").write_text("*\n")
    line = refused(2, "build", source, "-o", tmp_path / "r", "--exclude", tmp_path / "some.txt")
    assert "nothing to pack: all 3 inputs are skipped (000.jpg: excluded); choose another --exclude" in line


def test_a_name_of_several_images_is_refused(tmp_path: Path) -> None:
    source = draw_classes(tmp_path / "src", each=2)
    (tmp_path / "some.txt").write_text("ant/000\n001.jpg\n")
    line = refused(2, "build", source, "-o", tmp_path / "p", "--exclude", tmp_path / "some.txt")
    assert 'some.txt:2: "001.jpg" fits 3 images, for example ant/001.jpg; give its path, or a glob' in line


def test_keys_are_those_of_like(tmp_path: Path) -> None:
    source = draw_plain(tmp_path / "src", 5)
    good("build", source, "-o", tmp_path / "p", "--shuffle", 3)
    pack = open_pack(tmp_path / "p")
    (tmp_path / "some.txt").write_text(f"{pack.key(1)}\n{pack.key(3)}\n")
    good("build", source, "-o", tmp_path / "q", "--like", tmp_path / "p", "--exclude", tmp_path / "some.txt")
    gone = {pack.paths[1], pack.paths[3]}
    assert set(open_pack(tmp_path / "q").paths) == set(pack.paths) - gone
    # the copy in the pack has paths: keys of another pack would mean nothing
    assert set((tmp_path / "q" / "exclude.txt").read_text().split()) == gone
    good("verify", tmp_path / "q")


def test_a_list_of_rejected_inputs_excludes_them(tmp_path: Path) -> None:
    source = draw_plain(tmp_path / "src", 3)
    (source / "tab\there.jpg").write_bytes(b"no image at all" * 9)
    run("build", source, "-o", tmp_path / "p", "--quarantine", tmp_path)
    ran = good("build", source, "-o", tmp_path / "p", "--exclude", tmp_path / "rejected.tsv")
    assert "packed 3 images of 4 found (1 skipped)" in ran.out


def test_a_list_of_rejected_inputs_excludes_labels_and_links_too(tmp_path: Path) -> None:
    source = draw_voc(tmp_path / "src", 4)
    (source / "JPEGImages" / "001.jpg").unlink()
    (source / "JPEGImages" / "001.jpg").symlink_to("nothing.jpg")
    (source / "JPEGImages" / "002.jpg").unlink()
    (source / "Annotations" / "003.xml").write_text("<broken")
    ran = run("build", source, "-o", tmp_path / "p", "--labels", "voc", "--quarantine", tmp_path)
    assert ran.code == 1 and "4 of 5 inputs are bad" in ran.err
    ran = good("build", source, "-o", tmp_path / "p", "--labels", "voc", "--exclude", tmp_path / "rejected.tsv")
    assert "packed 1 image of 5 found (4 skipped)" in ran.out and "names no image" not in ran.out
    ran = good("build", source, "-o", tmp_path / "q", "--like", tmp_path / "p")  # by its copy in the pack
    assert "packed 1 image of 5 found (4 skipped)" in ran.out


@pytest.mark.parametrize("name", [" blank.jpg", "line\nbreak.jpg", "back\\slash\r.jpg", "\udcff\n.jpg"])
def test_the_copy_in_the_pack_names_odd_images(tmp_path: Path, name: str) -> None:
    source = draw_plain(tmp_path / "src", 2)
    draw(source / name, 5)
    (tmp_path / "some.txt").write_text("000.jpg\n*[!0-9].jpg\n")
    good("build", source, "-o", tmp_path / "p", "--exclude", tmp_path / "some.txt")
    good("build", source, "-o", tmp_path / "q", "--exclude", tmp_path / "p" / "skipped.tsv")
    good("build", source, "-o", tmp_path / "r", "--like", tmp_path / "q")
    assert paths(tmp_path / "q") == paths(tmp_path / "r") == ["001.jpg"]


def test_labels_of_excluded_images_are_not_left_over(tmp_path: Path) -> None:
    (tmp_path / "some.txt").write_text("JPEGImages/003.jpg\n")
    source = draw_voc(tmp_path / "src", 5)
    (source / "Annotations" / "003.xml").write_text("<broken")
    good("build", source, "-o", tmp_path / "p", "--labels", "voc", "--exclude", tmp_path / "some.txt")


@pytest.mark.parametrize(("content", "problem"), [(None, "no such file"), ("folder", "is not a regular file")])
def test_a_file_that_cannot_be_read(tmp_path: Path, content: str | None, problem: str) -> None:
    if content == "folder":
        (tmp_path / "some").mkdir()
    with pytest.raises(UsageError, match=rf"some: {problem}; give a file with one path, key or glob per line"):
        read_selection(str(tmp_path / "some"), [b"a.jpg"])


@pytest.mark.parametrize("line", [rb"\udc41x", rb"\ud800", rb"\ x.jpg", rb"\N{DOG}"])
def test_a_list_of_packer_that_is_damaged(tmp_path: Path, line: bytes) -> None:
    (tmp_path / "some").write_bytes(b"path\treason\n" + line + b"\tx\n")
    with pytest.raises(UsageError, match=r"some:2: .* is not a line of a list of packer"):
        read_selection(str(tmp_path / "some"), [b"a.jpg"])


@pytest.mark.parametrize("name", [b" a.jpg", b"a\nb.jpg", b"path\tb", b"./x*", b"\xff\\n", b"\xef\xbb\xbfa", b"a\r"])
def test_lines_of_any_bytes_select_the_same_again(tmp_path: Path, name: bytes) -> None:
    images = [b"a.jpg", b"b.jpg", name]
    (tmp_path / "some.tsv").write_bytes(b"path\t\n" + cell_of(name.decode("utf-8", "surrogateescape")).encode() + b"\n")
    found = read_selection(str(tmp_path / "some.tsv"), images)
    assert found.images == {name}
    (tmp_path / "again").write_bytes(found.content)
    assert read_selection(str(tmp_path / "again"), images).images == {name}


def test_another_selection_does_not_resume(tmp_path: Path) -> None:
    source = draw_plain(tmp_path / "src", 6)
    (source / "005.jpg").write_bytes((source / "005.jpg").read_bytes()[:-300])
    (tmp_path / "some.txt").write_text("000.jpg\n")
    asked = ["build", source, "-o", tmp_path / "p", "--shard-size", "4KB", "--exclude", tmp_path / "some.txt"]
    with pytest.MonkeyPatch.context() as patch:  # a full disk, not the bad image, which would let the options change
        patch.setattr("packer.packing.publish.sync_path", mock.Mock(side_effect=OSError(28, "No space left on device")))
        assert run(*asked, "--max-bad", 1, "--workers", 1).code == 3
    (tmp_path / "some.txt").write_text("001.jpg\n")
    assert "holds an unfinished build with other options: --exclude" in refused(2, *asked, "--workers", 1)
    good(*asked, "--max-bad", 1, "--overwrite")


# -- missing labels


@pytest.fixture
def voc(tmp_path: Path) -> Path:
    source = draw_voc(tmp_path / "src", 5)
    (source / "Annotations" / "002.xml").unlink()
    return source


def test_missing_labels_are_an_error(voc: Path, tmp_path: Path) -> None:
    ran = run("build", voc, "-o", tmp_path / "p", "--labels", "voc")
    assert ran.code == 1 and "fix it, or skip images without a label with --missing-labels skip" in ran.err


def test_images_without_labels_are_negatives(voc: Path, tmp_path: Path) -> None:
    ran = good("build", voc, "-o", tmp_path / "p", "--labels", "voc", "--missing-labels", "empty")
    assert "note: 1 image has no label and is packed without objects" in ran.out
    pack = open_pack(tmp_path / "p")
    empty, full = pack.annotation(2), pack.annotation(1)
    assert empty.boxes is not None and empty.boxes.shape == (0, 4)
    assert empty.box_labels is not None and len(empty.box_labels) == 0
    assert full.boxes is not None and np.array_equal(full.boxes, [[2, 2, 13, 20]])
    assert pack.manifest.options["missing_labels"] == "empty" and pack.manifest.counts["missing_labels"] == 1
    good("verify", tmp_path / "p", "--deep")


def test_images_without_labels_are_skipped(voc: Path, tmp_path: Path) -> None:
    ran = good("build", voc, "-o", tmp_path / "p", "--labels", "voc", "--missing-labels", "skip")
    assert "packed 4 images of 5 found (1 skipped)" in ran.out
    assert [(r.path, r.reason) for r in read_list(tmp_path / "p", "skipped")] == [("JPEGImages/002.jpg", "no label")]


def test_many_images_without_a_class_before_those_with_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The class is null with the value -1, also if none of the images that are read together has one."""
    monkeypatch.setattr("packer.packing.scan.IMAGES_A_JOB", 2)
    source = draw_plain(draw_classes(tmp_path / "src", ("x", "y"), 2), 4)
    good("build", source, "-o", tmp_path / "p", "--labels", "folder", "--missing-labels", "empty")
    pack = open_pack(tmp_path / "p")
    assert list(pack.column("label")) == [-1, -1, -1, -1, 0, 0, 1, 1]
    assert pack.manifest.class_counts == {"label": [2, 2]}


def test_one_label_is_missing_and_the_other_does_not_fit(voc: Path, tmp_path: Path) -> None:
    """The image is rejected, and the one after it is not taken for one without a label."""
    rows = [f"JPEGImages/00{i}.jpg class{99 if i in (2, 4) else i}\n" for i in range(5)]
    (voc / "Annotations" / "004.xml").unlink()
    (tmp_path / "days.txt").write_text("".join(rows))
    (tmp_path / "classes.txt").write_text("dog\nbird\nclass0\nclass1\nclass3\n")
    options = ["--labels", "voc", "--labels", f"list:{tmp_path}/days.txt", "--classes", tmp_path / "classes.txt"]
    good("build", voc, "-o", tmp_path / "p", *options, "--missing-labels", "empty", "--max-bad", "2")
    pack = open_pack(tmp_path / "p")
    assert pack.paths == ["JPEGImages/000.jpg", "JPEGImages/001.jpg", "JPEGImages/003.jpg"]
    assert pack.manifest.counts.get("missing_labels", 0) == 0


def test_one_of_two_labels_is_missing(voc: Path, tmp_path: Path) -> None:
    """The other one counts."""
    (tmp_path / "days.txt").write_text("".join(f"JPEGImages/00{i}.jpg day\n" for i in range(5)))
    options = ["--labels", "voc", "--labels", f"list:{tmp_path}/days.txt", "--missing-labels", "empty"]
    good("build", voc, "-o", tmp_path / "p", *options)
    pack = open_pack(tmp_path / "p")
    assert [pack.annotation(i).label is not None for i in range(5)] == [True] * 5
    assert [len(pack.annotation(i).boxes) for i in range(5)] == [0, 1, 0, 0, 1]  # type: ignore[arg-type]


# -- like, command and config


def test_like_takes_every_option(tmp_path: Path) -> None:
    source = draw_classes(tmp_path / "src")
    options = ["--resize", "24x20", "--fit", "pad", "--pad-value", 114, "--encode", "png", "--mode", "gray"]
    options += ["--shard-size", "8KB", "--shuffle", 7, "--format", "webdataset", "--interpolation", "bilinear"]
    good("build", source, "-o", tmp_path / "p", *options)
    good("build", source, "-o", tmp_path / "q", "--like", tmp_path / "p")
    first, second = digests(tmp_path / "p"), digests(tmp_path / "q")
    assert {k: v for k, v in first.items() if k != "pack.json"} == {k: v for k, v in second.items() if k != "pack.json"}
    good("build", source, "-o", tmp_path / "r", "--like", tmp_path / "p", "--encode", "jpeg", "--shard-size", "none")
    manifest = open_pack(tmp_path / "r").manifest
    assert (manifest.encoding, len(manifest.shards), manifest.options["fit"]) == ("jpeg", 1, "pad")
    given = options_like(tmp_path / "p", str(source), encode="jpeg")
    assert (given.encode, given.shuffle, given.format, given.pad_value) == ("jpeg", 7, "webdataset", 114)


def test_like_keeps_class_ids(tmp_path: Path) -> None:
    """A validation split without the first class would else have other ids."""
    draw_classes(tmp_path / "train")
    draw_classes(tmp_path / "val", classes=("bee", "cat"))
    good("build", tmp_path / "train", "-o", tmp_path / "p")
    good("build", tmp_path / "val", "-o", tmp_path / "q", "--like", tmp_path / "p")
    assert open_pack(tmp_path / "q").classes == ["ant", "bee", "cat"]
    assert open_pack(tmp_path / "q").annotation(0).label == 1
    good("build", tmp_path / "val", "-o", tmp_path / "r", "--classes", tmp_path / "p")
    assert open_pack(tmp_path / "r").annotation(0).label == 1
    draw_classes(tmp_path / "new", classes=("bee", "dog"))
    ran = run("build", tmp_path / "new", "-o", tmp_path / "s", "--like", tmp_path / "p")
    assert ran.code == 1 and "class dog is not in the class list of 3 names" in ran.err


def test_like_with_a_list(tmp_path: Path) -> None:
    source = draw_landmarks(tmp_path / "src")
    columns = ["--columns", "path x*5 y*5"]
    good("build", source, "-o", tmp_path / "p", "--labels", f"list:{source}/landmarks.txt", *columns)
    assert "--labels list:SRC/landmarks.txt --columns 'path x*5 y*5'" in good("info", tmp_path / "p", "--command").out
    good("build", source, "-o", tmp_path / "q", "--like", tmp_path / "p")
    outside = tmp_path / "marks.txt"
    outside.write_text((source / "landmarks.txt").read_text())
    good("build", source, "-o", tmp_path / "r", "--labels", f"list:{outside}", *columns)
    line = refused(2, "build", source, "-o", tmp_path / "s", "--like", tmp_path / "r")
    assert "r: was made with --labels list:marks.txt, which is not below its source; pass --labels list:FILE" in line
    good("build", source, "-o", tmp_path / "s", "--like", tmp_path / "r", "--labels", f"list:{outside}")
    assert digests(tmp_path / "s")["data.mdb"] == digests(tmp_path / "r")["data.mdb"]


def test_the_command_makes_the_pack_again(tmp_path: Path) -> None:
    source = draw_classes(tmp_path / "src")
    (source / "ant" / "bad.jpg").write_bytes(b"no image at all" * 9)
    (tmp_path / "some.txt").write_text("ant/000.jpg\n")
    options = ["--resize", 20, "--encode", "jpeg", "--quality", 80, "--shard-size", "none", "--max-bad", 1]
    good("build", source, "-o", tmp_path / "p", "--exclude", tmp_path / "some.txt", *options)
    line = good("info", tmp_path / "p", "--command").out.strip()
    assert line.startswith("packer build SRC --labels folder ") and "--quality 80" in line and line.count("\n") == 0
    assert json.loads(good("info", tmp_path / "p", "--json").out)["command"] == line
    words = [str(source) if word == "SRC" else word for word in shlex.split(line)[1:]]
    words[words.index("-o") + 1] = str(tmp_path / "q")
    good(*words)
    keep = [name for name in digests(tmp_path / "p") if name != "pack.json"]
    assert {n: digests(tmp_path / "q")[n] for n in keep} == {n: digests(tmp_path / "p")[n] for n in keep}


def test_config(tmp_path: Path) -> None:
    source = draw_classes(tmp_path / "src")
    config = tmp_path / "packer.yaml"
    text = "resize: 20\nencode: jpeg\nshard-size: none\nmax_bad: 5%\ndecode-timeout: none\nlabels: [folder]\n"
    config.write_text(f"{text}overwrite: true\n")
    good("build", source, "-o", tmp_path / "p", "--config", config)
    assert open_pack(tmp_path / "p").manifest.options["resize"] == "20"
    good("build", source, "-o", tmp_path / "p", "--config", config, "--resize", 16)
    assert open_pack(tmp_path / "p").manifest.options["resize"] == "16"
    config.write_text(f"{text}overwrite: true\nsource: {source}\nout: {tmp_path}/p\n")
    options = options_from(config, quality=50)
    assert options == BuildOptions(
        str(source), out=f"{tmp_path}/p", resize="20", encode="jpeg", shard_bytes=None, max_bad="5%",
        decode_timeout=None, overwrite=True, labels=("folder",), quality=50,
    )  # fmt: skip


def test_a_dry_run_shows_the_options_as_a_config(tmp_path: Path) -> None:
    source = draw_plain(tmp_path / "src", 2)
    asked: list[Any] = ["build", source, "-o", tmp_path / "p", "--resize", "8x8", "--max-bad", "1%", "--overwrite"]
    out = good(*asked, "--dry-run").out.splitlines()
    start = out.index("options, as in a file for --config:")
    lines = [line[2:] for line in out[start + 1 :] if line.startswith("  ")]
    (tmp_path / "again.yaml").write_text("\n".join(lines))
    chosen = {"resize": "8x8", "max_bad": "1%", "overwrite": True}
    given = BuildOptions(str(source), out=str(tmp_path / "p"), shard_bytes=128 << 20, **chosen)
    assert options_from(tmp_path / "again.yaml") == given and as_config(given) == lines


def test_odd_values_survive_a_config(tmp_path: Path) -> None:
    given = BuildOptions(
        'a "b" \\c #d', out="x: y", columns=("path (x y)*5",), labels=("list:a b.txt", "voc"), shard_bytes=5000,
        decode_timeout=0.5, split="no",
    )  # fmt: skip
    (tmp_path / "c.yaml").write_text("\n".join(as_config(given)))
    assert options_from(tmp_path / "c.yaml") == given


WRONG = [
    ("resise: 20", 'has the option "resise", which is not known'),
    ("quality: high", 'quality must be a whole number, got "high"'),
    ("overwrite: 1", 'overwrite must be true or false, got "1"'),
    ("resize: [1, 2]", "resize must be a single value"),
    ("labels: {a: b}", "labels must be a text, or a list of texts"),
    ("shard-size: huge", "must be a size such as 128MB"),
    ("a: b: c", "is not YAML"),
    ("- resize: 64", "holds no options; write each on a line of its own: resize: 256"),
    ("resize 64", "holds no options"),
]


@pytest.mark.parametrize(("text", "problem"), WRONG)
def test_wrong_configs(tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path / "c.yaml").write_text(text)
    with pytest.raises(UsageError) as caught:
        read_config(str(tmp_path / "c.yaml"))
    assert problem in caught.value.line
    assert problem in refused(2, "build", tmp_path, "--config", tmp_path / "c.yaml")


def test_no_source(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("resize: 20\n")
    assert "Missing argument 'SRC'" in refused(2, "build", "--config", tmp_path / "c.yaml")
    with pytest.raises(UsageError, match="names no source"):
        options_from(tmp_path / "c.yaml")
    assert "no such pack" in refused(2, "build", tmp_path, "--like", tmp_path / "nothing")


def test_a_pack_is_no_source(tmp_path: Path) -> None:
    source = draw_plain(tmp_path / "src", 2)
    good("build", source, "-o", tmp_path / "p")
    line = refused(2, "build", tmp_path / "p", "-o", tmp_path / "q")
    assert f"p: is a pack, not a folder of images; give the folder of its images; --like {tmp_path}/p takes its" in line


def test_the_extension_of_the_output_is_stronger_than_like(tmp_path: Path) -> None:
    source = draw_plain(tmp_path / "src", 2)
    good("build", source, "-o", tmp_path / "p.lmdb")
    good("build", source, "-o", tmp_path / "q.hdf5", "--like", tmp_path / "p.lmdb")
    assert open_pack(tmp_path / "q.hdf5").manifest.container == "hdf5"


def coco_of(*names: str) -> str:
    images = [{"id": i, "file_name": name} for i, name in enumerate(names)]
    box = {"id": 1, "image_id": 0, "category_id": 1, "bbox": [1, 1, 9, 9]}
    return json.dumps({"images": images, "categories": [{"id": 1, "name": "ant"}], "annotations": [box]})


def test_like_and_the_command_of_several_files_in_an_archive(tmp_path: Path) -> None:
    source = draw_plain(tmp_path / "src", 4)
    (source / "a.json").write_text(coco_of("000.jpg", "001.jpg"))
    (source / "b.json").write_text(coco_of("002.jpg", "003.jpg"))
    archive = shutil.make_archive(str(tmp_path / "set"), "zip", source)
    specs = ["--labels", "coco:a.json", "--labels", f"coco:{archive}/b.json"]
    good("build", archive, "-o", tmp_path / "p", "--follow-links", *specs)
    assert open_pack(tmp_path / "p").manifest.options["label_files"] == ["SRC/a.json", "SRC/b.json"]
    line = good("info", tmp_path / "p", "--command").out
    assert "--labels coco:SRC/a.json --labels coco:SRC/b.json --follow-links -o" in line
    for other in (archive, str(source)):
        options = options_like(tmp_path / "p", other)
        assert options.labels == (f"coco:{other}/a.json", f"coco:{other}/b.json") and options.follow_links
        good("build", other, "-o", tmp_path / "q", "--overwrite", "--like", tmp_path / "p")
        first, second = digests(tmp_path / "p"), digests(tmp_path / "q")
        assert first.pop("pack.json") and second.pop("pack.json") and first == second


def test_like_a_pack_of_datumaro(tmp_path: Path) -> None:
    """Its labels have a format, not a file."""
    good("build", draw_plain(tmp_path / "src", 1), "-o", tmp_path / "p")
    manifest = open_pack(tmp_path / "p").manifest
    made = replace(manifest, options={**manifest.options, "labels": ["datumaro"], "label_files": ["celeba"]})
    assert _labels(made, "p", "src") == _labels(made, "p", None) == ["datumaro:celeba"]
