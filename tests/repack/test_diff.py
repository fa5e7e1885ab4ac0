"""`packer diff`: what differs is found, and what does not matter is not."""

from __future__ import annotations

import io
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from damage import edit_index, vouch
from drawn import draw, draw_classes, draw_voc
from drawn_masks import draw_mask, pairs, picture, write_files
from packs import MakePack
from running import ROOT, good, refused, run

from packer import BuildOptions, build_pack, convert, open_pack
from packer.format.manifest import read_manifest
from packer.repack.diff import DiffReport, diff


def build(source: Path, name: str, **options: Any) -> Path:
    out = source.parent / name
    build_pack(BuildOptions(str(source), str(out), workers=1, **options))
    return out


def found(report: DiffReport) -> dict[str, int]:
    """The number of records that differ, by respect."""
    parts = ("only_a", "only_b", "moved", "labels", "pixels")
    return {name: part.count for name in parts if (part := getattr(report, name)).count}


@pytest.mark.parametrize("kind", ["raw", "boxes", "copy"])
def test_another_container_is_no_difference(kind: str, make_pack: MakePack, tmp_path: Path) -> None:
    pack = make_pack(kind, "lmdb")
    convert(pack, tmp_path / "b.hdf5")
    report = diff(pack, tmp_path / "b.hdf5")
    assert report.equal and not found(report) and set(report.options) == {"container"}
    ran = good("diff", pack, tmp_path / "b.hdf5")
    assert ran.out == f"option container: lmdb, now hdf5\nequal: {len(open_pack(pack))} records\n"


def test_another_encoding_without_loss_is_no_difference(make_pack: MakePack, tmp_path: Path) -> None:
    pack = make_pack("raw", "lmdb")
    convert(pack, tmp_path / "b.lmdb", encode="png")
    report = diff(pack, tmp_path / "b.lmdb")
    assert report.equal and report.other_bytes == 24 and set(report.options) == {"encoding", "encode"}


def test_masks_that_are_stored_in_another_way_are_no_difference(tmp_path: Path) -> None:
    source = write_files(tmp_path / "set", pairs())
    a, b = (build(source, f"{encode}.lmdb", mask_encode=encode) for encode in ("raw", "zstd"))
    assert diff(a, b).equal
    (source / "masks" / "im2.png").write_bytes(picture(draw_mask(7)))
    assert found(diff(a, build(source, "other.lmdb", mask_encode="png"))) == {"labels": 1}


@pytest.mark.parametrize("container", ["lmdb", "hdf5", "parquet", "webdataset"])
def test_parts_of_pixels_that_are_stored_in_another_way_are_no_difference(container: str, tmp_path: Path) -> None:
    source = write_files(tmp_path / "set", pairs())
    for i, image in enumerate(sorted((source / "images").iterdir())):
        mask = draw_mask(i)
        write_files(source, {f"near/{image.stem}.png": picture(mask.astype(np.uint16) * 300)})
        (source / "far").mkdir(exist_ok=True)
        np.save(source / f"far/{image.stem}.npy", np.where(mask > 0, mask + np.float32(0.5), np.nan))
    write_files(source, {f"right/{path.name}": path.read_bytes() for path in (source / "images").iterdir()})
    part = ("near=near:map", "far=far:map", "right=right:image")
    a, b = build(source, "a", part=part, encode="raw"), build(source, "b", part=part, encode="png", format=container)
    report = diff(a, b)
    assert report.equal and not report.parts and not found(report)
    np.save(next((source / "far").iterdir()), np.zeros_like(mask, np.float32))
    assert found(diff(a, build(source, "other", part=part))) == {"labels": 1}


def test_what_the_values_of_parts_mean(tmp_path: Path) -> None:
    source = write_files(tmp_path / "set", pairs())
    one, two = tmp_path / "a.txt", tmp_path / "b.txt"
    one.write_text("ground\nant\nfly\nbee\n"), two.write_text("ground\nant\nfly\nwasp\n")
    a = build(source, "a", part=("depth=masks:map", "seg=masks:mask"), labels=("none",), ignore_id=9)
    b = build(source, "b", part=("depth=masks:map:2", "seg=masks:mask"), labels=("none",), ignore_id=8)
    report = diff(a, b)
    assert report.parts == {"depth.ignore": (0, 2), "seg.ignore": (9, 8)} and not report.equal and not found(report)
    ran = run("diff", a, b)
    assert ran.code == 1 and "part depth: ignore 0, now 2\npart seg: ignore 9, now 8\ndifferent" in ran.out
    c, d = (build(source, name, mask="masks", classes=str(file)) for name, file in (("c", one), ("d", two)))
    assert diff(c, d).parts == {"mask.classes": (("ground", "ant", "fly", "bee"), ("ground", "ant", "fly", "wasp"))}


def test_pixels(make_pack: MakePack, tmp_path: Path) -> None:
    pack = make_pack("raw", "lmdb")
    convert(pack, tmp_path / "b.lmdb", encode="jpeg", quality=95)
    report = diff(pack, tmp_path / "b.lmdb", limit=2)
    assert found(report) == {"pixels": 24} and len(report.pixels.first) == 2 and report.psnr is not None
    assert 10 < report.psnr[0] <= report.psnr[1] < 50
    convert(pack, tmp_path / "c.lmdb", resize="5x5")
    assert diff(pack, tmp_path / "c.lmdb").pixels.first[0] == {"path": "ant/0.png", "key": "00000000", "psnr": None}


def test_records_and_paths(tmp_path: Path) -> None:
    source = draw_classes(tmp_path / "src", each=2)
    a = build(source, "a.lmdb")
    (source / "ant" / "000.jpg").rename(source / "ant" / "0.jpg")
    (source / "bee" / "001.jpg").unlink()
    draw(source / "cat" / "9.jpg", 77)
    b = build(source, "b.tfrecord")
    report = diff(a, b)
    assert found(report) == {"only_a": 1, "only_b": 1, "moved": 1} and not report.equal
    assert report.only_a.first[0]["path"] == "bee/001.jpg" and report.only_b.first[0]["path"] == "cat/9.jpg"
    assert report.moved.first == [{"path": "ant/000.jpg", "now": "ant/0.jpg"}]
    back = diff(b, a)
    assert found(back) == {"only_a": 1, "only_b": 1, "moved": 1}


def test_labels(tmp_path: Path) -> None:
    source = draw_voc(tmp_path / "src")
    a = build(source, "a.lmdb", labels=("voc",))
    label = source / "Annotations" / "002.xml"
    label.write_text(label.read_text().replace("<xmax>14.0</xmax>", "<xmax>14.5</xmax>", 1))
    b = build(source, "b.lmdb", labels=("voc",))
    report = diff(a, b)
    assert found(report) == {"labels": 1} and not report.classes
    assert report.labels.first == [{"path": "JPEGImages/002.jpg", "key": "00000002", "fields": ["boxes", "box_fields"]}]


def test_classes_are_compared_by_name(tmp_path: Path) -> None:
    source = draw_voc(tmp_path / "src")
    a = build(source, "a.lmdb", labels=("voc",))
    (tmp_path / "names").write_text("dog\nbird\ncow\n")
    b = build(source, "b.lmdb", labels=("voc",), classes=str(tmp_path / "names"))
    report = diff(a, b)
    assert report.classes == {"only_b": ["cow"]} and not found(report) and not report.equal
    (tmp_path / "names").write_text("dog\nbird\n")
    c = build(source, "c.lmdb", labels=("voc",), classes=str(tmp_path / "names"))
    report = diff(a, c)
    assert report.classes == {"order": ["dog", "bird"]} and not found(report)
    assert diff(b, c).classes == {"only_a": ["cow"]}


def test_equal_paths_are_paired_in_order(copied: MakePack) -> None:
    pack = copied("raw", "tfrecord")
    for shard in read_manifest(pack).shards:
        edit_index(pack / shard.index.name, "path", lambda paths: [b"same.png"] * len(paths))
    vouch(pack)
    assert diff(pack, pack).equal


def test_command(make_pack: MakePack, tmp_path: Path) -> None:
    pack = make_pack("raw", "lmdb")
    (tmp_path / "these").write_text("ant/[2-7].png\n")
    convert(pack, tmp_path / "b.lmdb", exclude=str(tmp_path / "these"))
    ran = run("diff", pack, tmp_path / "b.lmdb", "--limit", 2)
    assert (ran.code, ran.err) == (1, "")
    assert ran.out.splitlines() == [
        "option exclude: none, now a list",
        "6 records only in A:",
        "  ant/2.png",
        "  ant/3.png",
        "  ... and 4 more",
        "different: A has 24 records, B 18",
    ]
    facts = json.loads(run("diff", pack, tmp_path / "b.lmdb", "--json").out)
    assert (facts["equal"], facts["only_a"]["count"], len(facts["only_a"]["first"])) == (False, 6, 6)
    assert run("diff", pack, tmp_path / "b.lmdb", "--quiet") == type(ran)(1, "", "")
    assert "no such pack" in refused(2, "diff", pack, tmp_path / "absent")
    assert "--limit: must be at least 0" in refused(2, "diff", pack, pack, "--limit", -1)


# -- a line for each record


def listed(a: Path, b: Path) -> list[bytes]:
    """The lines of ``--combined``."""
    found = io.BytesIO()
    diff(a, b, limit=0, combined=found.write)
    return found.getvalue().splitlines()


def test_a_line_for_each_record_of_either(tmp_path: Path) -> None:
    source = draw_voc(tmp_path / "src")
    images, label = source / "JPEGImages", source / "Annotations" / "002.xml"
    a = build(source, "a.lmdb", labels=("voc",))
    label.write_text(label.read_text().replace("<xmax>14.0</xmax>", "<xmax>14.5</xmax>", 1))
    draw(images / "001.jpg", 77, **dict(zip(("width", "height"), open_pack(a).image(1).shape[1::-1], strict=True)))
    (images / "000.jpg").rename(images / "009.jpg")
    (source / "Annotations" / "000.xml").rename(source / "Annotations" / "009.xml")
    before = [f"JPEGImages/{name}" for name in sorted(path.name for path in images.iterdir())]
    b = build(source, "b.lmdb", labels=("voc",))
    assert open_pack(b).paths == before
    signs = {b"JPEGImages/000.jpg": b"-", b"JPEGImages/001.jpg": b"*", b"JPEGImages/002.jpg": b"*"}
    expected = [signs.get(path.encode(), b"=") + b" " + path.encode() for path in open_pack(a).paths]
    assert listed(a, b) == [*expected, b"+ JPEGImages/009.jpg"]
    assert len(expected) > 3 and listed(a, a) == [b"= " + line[2:] for line in expected]


NAMES = [
    *(b"plain.png", b" lead", b"sp ace", b"a\nb", b"a\tb", b"c\rd", b"x\xff", b"a*b", b"aXb", b"a[1]", b"a1", b"q\\n"),
    *(b"tail ", b"path\tx", b"path\ty", b"\xef\xbb\xbfbom", "\u00fcml".encode(), b"a?b/ mid ", b"gone.png", b"p"),
]  # fmt: skip


@pytest.fixture(scope="module")
def strange(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with packs a.lmdb and b.lmdb: plain.png is equal, gone.png is only in a, new.png only in b."""
    home = tmp_path_factory.mktemp("strange")
    paths = [Path(os.fsdecode(name)) for name in NAMES]
    for number, path in enumerate(paths):
        draw(home / "src" / path.with_name(f"{path.name.removesuffix('.png')}.png"), number, 8, 8)
    build(home / "src", "a.lmdb", labels=("none",))
    for number, path in enumerate(sorted((home / "src").rglob("*.png"))):
        if path.name == "gone.png":
            path.unlink()
        elif path.name != "plain.png":
            draw(path, 100 + number, 8, 8)
    draw(home / "src" / "new.png", 99, 8, 8)
    build(home / "src", "b.lmdb", labels=("none",))
    return home


@pytest.mark.parametrize("option", ["--include", "--exclude"])
def test_any_name_survives_the_way_to_a_selection(strange: Path, tmp_path: Path, option: str) -> None:
    """As the page says it, with the tools of a shell."""
    ran = run("diff", strange / "a.lmdb", strange / "b.lmdb", "--combined", tmp_path / "all.txt", "--limit", 0)
    assert ran.code == 1 and "with other pixels" in ran.out
    script = "grep -a '^[*]' all.txt | cut -b3- > changed.txt"
    subprocess.run(["bash", "-c", script], cwd=tmp_path, check=True, env={**os.environ, "LC_ALL": "C.UTF-8"})
    good("convert", strange / "b.lmdb", tmp_path / "c.lmdb", option, tmp_path / "changed.txt")
    good("build", strange / "src", "-o", tmp_path / "d.lmdb", "--labels", "none", option, tmp_path / "changed.txt")
    changed = {path for path in open_pack(strange / "b.lmdb").paths if path not in ("plain.png", "new.png")}
    assert len(changed) == len(NAMES) - 2
    expected = changed if option == "--include" else {"plain.png", "new.png"}
    assert {*open_pack(tmp_path / "c.lmdb").paths} == {*open_pack(tmp_path / "d.lmdb").paths} == expected


def test_lines_are_the_paths_unless_they_would_be_read_otherwise(strange: Path) -> None:
    lines = {line[:1]: line[2:] for line in listed(strange / "a.lmdb", strange / "b.lmdb") if line[:1] != b"*"}
    assert lines == {b"=": b"plain.png", b"-": b"gone.png", b"+": b"new.png"}
    names = [line[2:] for line in listed(strange / "a.lmdb", strange / "b.lmdb")]
    assert {b"sp ace.png", b"x\xff.png", b"a*b.png", b"a[1].png", b"a\tb.png", b"q\\n.png"} < {*names}
    assert b"[ ]lead[.][p]ng" in names


def test_combined_goes_to_standard_output_or_to_a_file(strange: Path, tmp_path: Path) -> None:
    packs = strange / "a.lmdb", strange / "b.lmdb"
    assert run("diff", *packs, "--combined", tmp_path / "all.txt", "--quiet") == type(run("--version"))(1, "", "")
    command = f"{shlex.quote(sys.executable)} -m packer diff a.lmdb b.lmdb --combined -"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    for end, code in (("", 1), (" | true", 1), (" > /dev/full", 3)):
        script = f"{command}{end}; exit ${{PIPESTATUS[0]}}"
        done = subprocess.run(["bash", "-c", script], cwd=strange, capture_output=True, env=environment, check=False)
        assert done.returncode in ({code, 3} if "true" in end else {code}), done.stderr
        assert b"Traceback" not in done.stderr
        assert done.stdout == ((tmp_path / "all.txt").read_bytes() if not end else b"")
    assert "--combined -: excludes --json" in refused(2, "diff", *packs, "--combined", "-", "--json")
    assert "would write into the pack" in refused(2, "diff", *packs, "--combined", strange / "b.lmdb" / "x.txt")
    assert "absent" in refused(3, "diff", *packs, "--combined", tmp_path / "absent" / "x.txt")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["all.txt"]
