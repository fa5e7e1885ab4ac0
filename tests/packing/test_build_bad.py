"""Inputs that cannot be packed: how many are let go, what is said of each, and what changes under way."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from drawn import draw, draw_plain, image_file
from running import ROOT, good, refused, run

from packer.format.pack import open_pack
from packer.packing import BuildOptions, build_pack
from packer.packing.plan import make_plan
from packer.packing.scan import read_inputs
from packer.packing.write_shard import pack_shard
from packer.sources import places


def with_bad(root: Path, good_ones: int, bad: int) -> Path:
    root.mkdir()
    draw_plain(root, good_ones)
    for i in range(bad):
        (root / f"bad{i}.jpg").write_bytes(b"no image at all" * 9)
    return root


@pytest.mark.parametrize(
    ("bad", "option", "code"),
    [
        (1, "0", 1), (2, "1", 1), (2, "2", 0), (2, "3", 0), (2, "19%", 1), (2, "20%", 0), (2, "19.99%", 1),
        (2, "100%", 0), (0, "0", 0),
    ],
)  # fmt: skip
def test_max_bad(tmp_path: Path, bad: int, option: str, code: int) -> None:
    source = with_bad(tmp_path / "src", 10 - bad, bad)
    ran = run("build", source, "-o", tmp_path / "p", "--max-bad", option)
    assert ran.code == code
    if code:
        verb, them = ("is", "it") if bad == 1 else ("are", "them")
        assert f"{bad} of 10 inputs {verb} bad" in ran.err
        assert f"try: fix {them}, or skip {them} with --max-bad {bad}\n  packer build " in ran.err
        assert os.listdir(tmp_path) == ["src"]
    else:
        some = f" of 10 found ({bad} rejected)" if bad else ""
        assert f"packed {10 - bad} images{some}: " in ran.out
        assert len(open_pack(tmp_path / "p")) == 10 - bad


def test_on_bad_skip(tmp_path: Path) -> None:
    source = with_bad(tmp_path / "src", 1, 9)
    (source / "bad0.jpg").write_bytes(image_file(3)[:-300])
    ran = good("build", source, "-o", tmp_path / "p", "--on-bad", "skip", "--workers", 2)
    assert "packed 1 image of 10 found (9 rejected)" in ran.out
    (source / "000.jpg").unlink()
    ran = run("build", source, "-o", tmp_path / "q", "--on-bad", "skip")
    assert ran.code == 1 and "9 of 9 inputs are bad: no image is left to pack\n" in ran.err
    ran = run("build", source, "-o", tmp_path / "q", "--on-bad", "fail", "--max-bad", 3)
    assert ran.code == 1 and "are bad, 3 allowed" in ran.err


@pytest.mark.parametrize("option", ["0", "3", "100%"])
def test_all_bad(tmp_path: Path, option: str) -> None:
    source = with_bad(tmp_path / "src", 0, 3)
    ran = run("build", source, "-o", tmp_path / "p", "--max-bad", option)
    assert ran.code == 1 and "3 of 3 inputs are bad" in ran.err
    assert os.listdir(tmp_path) == ["src"]


@pytest.mark.parametrize("option", ["0", "3", "100%"])
def test_all_bad_where_only_decoding_shows_it(tmp_path: Path, option: str) -> None:
    source = draw_plain(tmp_path / "src", 3)
    for file in source.iterdir():
        file.write_bytes(file.read_bytes()[:-300])
    ran = run("build", source, "-o", tmp_path / "p", "--max-bad", option, "--workers", 1)
    assert ran.code == 1 and " of 3 inputs are bad" in ran.err
    assert os.listdir(tmp_path) == ["src"]


def test_all_skipped(tmp_path: Path) -> None:
    draw(tmp_path / "src" / "train" / "a" / "0.jpg", 1)
    (tmp_path / "src" / "val" / "a").mkdir(parents=True)
    line = refused(2, "build", tmp_path / "src", "-o", tmp_path / "p", "--labels", "folder", "--split", "val")
    assert "nothing to pack: all 1 inputs are skipped (train/a/0.jpg: not in split val); choose another" in line
    assert os.listdir(tmp_path) == ["src"]


def test_rejected_inputs_stand_in_the_manifest_sorted(tmp_path: Path) -> None:
    source = with_bad(tmp_path / "src", 4, 3)
    (source / "002.jpg").write_bytes((source / "002.jpg").read_bytes()[:-300])
    (source / "zero.png").write_bytes(b"")
    ran = good("build", source, "-o", tmp_path / "p", "--max-bad", "50%", "--workers", 1, "--max-bad", 9)
    manifest = open_pack(tmp_path / "p").manifest
    assert [r.path for r in manifest.rejected] == ["002.jpg", "bad0.jpg", "bad1.jpg", "bad2.jpg", "zero.png"]
    assert {r.reason for r in manifest.rejected} == {"bad-image", "not-an-image"}
    assert "zero.png: not an image: the file is empty" in good("info", tmp_path / "p", "--rejected").out
    assert "rejected: bad1.jpg: not an image: it begins with" in ran.out


def test_the_list_of_rejections_is_kept_short_on_the_screen(tmp_path: Path) -> None:
    source = with_bad(tmp_path / "src", 1, 12)
    ran = run("build", source, "-o", tmp_path / "p")
    assert len(ran.error_lines) == 3 and "  not-an-image: 12, for example bad0.jpg: not an image" in ran.error_lines[1]
    assert ran.error_lines[2] == "  (--quarantine DIR or --json lists all of them)"
    ran = good("build", source, "-o", tmp_path / "p", "--max-bad", 12)
    assert ran.out.count("rejected: ") == 6 and "and 7 more (packer info --rejected lists all)" in ran.out
    assert good("info", tmp_path / "p", "--rejected").out.count("bad") == 12


def test_max_pixels(tmp_path: Path) -> None:
    source = draw_plain(tmp_path / "src", 2)
    draw(source / "wide.png", 3, 200, 100, format="PNG")
    ran = run("build", source, "-o", tmp_path / "p", "--max-pixels", 19_999)
    assert ran.code == 1 and "wide.png: 200x100 pixels are more than 19999; raise --max-pixels" in ran.err
    good("build", source, "-o", tmp_path / "p", "--max-pixels", 20_000)


def pack_after(source: Path, change: Callable[[], Any]) -> Any:
    """Plan, then change the source, then pack: what a worker finds."""
    options = BuildOptions(str(source), out=str(source.parent / "p"), max_bad="9", encode="raw")
    plan = make_plan(options, read_inputs(options), lambda job: [])
    folder = source.parent / "work"
    folder.mkdir()
    change()
    (job,) = plan.jobs(str(folder))
    return pack_shard(job, lambda done, bad: None)


def test_file_that_vanishes_after_the_plan(tmp_path: Path) -> None:
    source = draw_plain(tmp_path / "src", 3)
    result = pack_after(source, (source / "001.jpg").unlink)
    assert [(r.path, r.reason) for r in result.rejected] == [("001.jpg", "bad-image")]
    assert "vanished while the source was being read" in result.rejected[0].problem
    assert result.entry.records == 2


def test_file_that_the_disk_does_not_give_after_the_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> bytes:
        raise OSError(5, "Input/output error")

    result = pack_after(draw_plain(tmp_path / "src", 1), lambda: monkeypatch.setattr(places, "read_at", broken))
    monkeypatch.undo()
    assert [r.problem for r in result.rejected] == [
        "cannot be read: Input/output error; check the file's permissions and the disk"
    ]


def test_file_that_changes_after_the_plan(tmp_path: Path) -> None:
    source = draw_plain(tmp_path / "src", 3)
    result = pack_after(source, lambda: draw(source / "001.jpg", 77, 64, 64))
    assert [r.path for r in result.rejected] == ["001.jpg"]
    assert "changed while the source was being read" in result.rejected[0].problem
    assert result.entry.records == 2


def test_file_of_the_same_length_but_another_size_of_image(tmp_path: Path) -> None:
    source = draw_plain(tmp_path / "src", 3, format="BMP")
    for i in range(3):
        (source / f"{i:03d}.jpg").rename(source / f"{i:03d}.bmp")
    other = image_file(9, 30, 40, format="BMP")  # 30 pixels a row are padded to 92 bytes
    data = (source / "001.bmp").read_bytes()
    other = (other + bytes(len(data)))[: len(data)]
    result = pack_after(source, lambda: (source / "001.bmp").write_bytes(other))
    assert [r.path for r in result.rejected] == ["001.bmp"]
    assert result.entry.records == 2


def test_file_that_turns_into_a_folder(tmp_path: Path) -> None:
    source = draw_plain(tmp_path / "src", 3)

    def change() -> None:
        (source / "001.jpg").unlink()
        (source / "001.jpg").mkdir()

    result = pack_after(source, change)
    assert [r.path for r in result.rejected] == ["001.jpg"] and "is not a regular file" in result.rejected[0].problem


def test_unreadable_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = draw_plain(tmp_path / "src", 3)
    real = os.open

    def denied(path: Any, *more: Any, **options: Any) -> int:
        if os.fsencode(path).endswith(b"001.jpg"):
            raise PermissionError(13, "Permission denied")
        return real(path, *more, **options)

    monkeypatch.setattr(os, "open", denied)
    inputs = read_inputs(BuildOptions(str(source)))
    assert [(r.path, r.reason) for r in inputs.rejected] == [("001.jpg", "bad-image")]
    assert "cannot be read: Permission denied; check the file's permissions" in next(iter(inputs.rejected)).problem


def test_unreadable_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody knows what is in it: it is bad, and not left out in silence."""
    source = draw_plain(tmp_path / "src", 3)
    draw_plain(source / "locked", 2)
    real = os.scandir

    def denied(path: Any) -> Any:
        if not isinstance(path, int) and os.fsencode(path).endswith(b"/locked"):  # shutil gives descriptors
            raise PermissionError(13, "Permission denied")
        return real(path)

    monkeypatch.setattr(os, "scandir", denied)
    ran = run("build", source, "-o", tmp_path / "p")
    assert ran.code == 1 and "locked: cannot be read: permission; check its permissions" in ran.err
    ran = good("build", source, "-o", tmp_path / "p", "--max-bad", 1)
    assert "packed 3 images of 4 found (1 rejected)" in ran.out


WITHOUT_POWERS = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"]


@pytest.mark.skipif(os.geteuid() == 0 and not shutil.which("setpriv"), reason="root reads all, and there is no setpriv")
def test_permissions(tmp_path: Path) -> None:
    source = draw_plain(tmp_path / "src", 3)
    (source / "001.jpg").chmod(0)
    (tmp_path / "fixed").mkdir(mode=0o555)

    def packer(*arguments: Any) -> Any:
        prefix = WITHOUT_POWERS if os.geteuid() == 0 else []
        command = [*prefix, sys.executable, "-m", "packer", *map(str, arguments)]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    done = packer("build", source, "-o", tmp_path / "p", "--workers", 1)
    assert done.returncode == 1 and "001.jpg: cannot be read: Permission denied" in done.stderr
    done = packer("build", source, "-o", tmp_path / "fixed" / "p", "--max-bad", 1, "--workers", 1)
    assert done.returncode == 3
    assert done.stderr == f"packer: error: {tmp_path}/fixed/p.partial: Permission denied\ntry: choose another --out\n"
    (tmp_path / "fixed").chmod(0o755)


def test_summary_says_what_happened_to_boxes(tmp_path: Path) -> None:
    source = draw_plain(tmp_path / "src", 2)
    (tmp_path / "boxes.txt").write_text("000.jpg 0.5 0.5 40.4 30 a 5 5 50 20 a\n001.jpg 7 7 7 9 a 1 1 5 5 b\n")
    options = ["--labels", f"list:{tmp_path}/boxes.txt", "--columns", "path (xmin ymin xmax ymax class)*"]
    ran = run("build", source, "-o", tmp_path / "p", *options)
    assert ran.code == 1
    assert "000.jpg: boxes.txt:1: box 2: xmax 50 exceeds width 40; fix the label or pass --boxes clip" in ran.err
    assert "001.jpg: boxes.txt:2: box 1 (7, 7, 7, 9) has no area" in ran.err
    clip = good("build", source, "-o", tmp_path / "clip", *options, "--boxes", "clip")
    assert "boxes: 3 packed, 1 clamped, 1 clipped, 1 dropped" in clip.out
    boxes = open_pack(tmp_path / "clip").annotation(0).boxes
    assert boxes is not None and boxes.tolist() == [[0.5, 0.5, 40, 30], [5, 5, 40, 20]]
    drop = json.loads(good("build", source, "-o", tmp_path / "drop", *options, "--boxes", "drop", "--json").out)
    assert (drop["counts"]["boxes"], drop["counts"]["boxes_dropped"], drop["counts"]["boxes_clamped"]) == (2, 2, 1)


def test_summary_says_what_a_crop_leaves_out(tmp_path: Path) -> None:
    source = draw_plain(tmp_path / "src", 1)
    (tmp_path / "boxes.txt").write_text("000.jpg 0 0 4 4 a 10 10 30 20 a\n")
    options = ["--labels", f"list:{tmp_path}/boxes.txt", "--columns", "path (xmin ymin xmax ymax class)*"]
    ran = good("build", source, "-o", tmp_path / "p", *options, "--resize", "10x30", "--fit", "crop")
    assert "boxes: 1 packed, 1 cropped" in ran.out


def test_build_pack_is_a_library_call(tmp_path: Path) -> None:
    source = draw_plain(tmp_path / "src", 3)
    summary = build_pack(BuildOptions(str(source), out=str(tmp_path / "p"), workers=1, no_fingerprints=True))
    assert summary.path == str(tmp_path / "p") and summary.manifest.records == 3
    assert summary.pack_bytes == sum(p.stat().st_size for p in (tmp_path / "p").iterdir() if p.name != "pack.json")
    assert summary.images_per_s > 0
