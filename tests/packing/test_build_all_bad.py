"""A build that fails for bad inputs finds all of them first, and says what would help."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path

import pytest
from drawn import draw, draw_plain, draw_voc, voc_xml
from running import good, run

from packer.errors import TooManyBad
from packer.format.pack import open_pack
from packer.packing import BuildOptions, build_pack, plan_pack


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-300])


@pytest.fixture
def voc(tmp_path: Path) -> Path:
    """Eight images: two boxes outside, one image without label, one label without image, three truncated images."""
    root = draw_voc(tmp_path / "voc", 8)
    for i in (1, 2):
        (root / "Annotations" / f"00{i}.xml").write_text(voc_xml(f"00{i}.jpg", [("dog", 5, 5, 90, 20)]))
    (root / "Annotations" / "003.xml").unlink()
    (root / "Annotations" / "gone.xml").write_text(voc_xml("gone.jpg", []))
    for i in (2, 5, 6):  # 2 has a bad box too
        truncate(root / "JPEGImages" / f"00{i}.jpg")
    return root


def test_all_bad_inputs_are_listed_by_reason_in_one_run(voc: Path, tmp_path: Path) -> None:
    ran = run("build", voc, "-o", tmp_path / "p", "--labels", "voc")
    head, *lines = ran.error_lines
    assert ran.code == 1 and head == (f"packer: error: {voc}: 6 of 9 inputs are bad, 0 allowed")
    assert ran.steps[0] == (
        "try: fix them, or drop bad boxes, skip images without a label and skip the others "
        "with --boxes drop --missing-labels skip --max-bad 4"
    )
    assert [line.partition(":")[0].strip() for line in lines] == ["bad-image"] * 3 + ["bad-box"] * 2 + [
        "no-label",
        "no-image",
    ]
    assert ran.out.count("going on to find all of them") == 1
    assert os.listdir(tmp_path) == ["voc"]


@pytest.mark.parametrize("more", [[], ["--max-bad", "1"], ["--max-bad=2", "--boxes", "fail"]])
def test_the_command_in_the_error_works(voc: Path, tmp_path: Path, more: list[str]) -> None:
    """It is the whole command as it was typed, with what would help in place of what did not."""
    out = tmp_path / "a pack.lmdb"
    *_, command = run("build", voc, "-o", out, "--labels", "voc", *more).steps
    program, *words = shlex.split(command)
    assert program == "packer" and words.count("--max-bad") == words.count("--boxes") == 1 and str(out) in words
    ran = good(*words)
    assert "packed 4 images of 9 found (4 rejected, 1 skipped)" in ran.out


def test_many_bad_inputs_have_one_example_of_each_reason(tmp_path: Path) -> None:
    source = draw_plain(tmp_path / "src", 20)
    for i in range(12):
        truncate(source / f"{i:03d}.jpg")
    (source / "zero.png").write_bytes(b"")
    with pytest.raises(TooManyBad) as caught:
        build_pack(BuildOptions(str(source), out=str(tmp_path / "p"), workers=1))
    error = caught.value
    assert [(reason, count, r.path) for reason, count, r in error.reasons] == [
        ("bad-image", 12, "000.jpg"), ("not-an-image", 1, "zero.png"),
    ]  # fmt: skip
    assert len(error.rejected) == 13 and error.line.count("\n") == 3
    assert "\n  bad-image: 12, for example 000.jpg: truncated JPEG" in error.line
    assert 'skip them with max_bad="13"' in str(error)


def test_fail_fast(voc: Path, tmp_path: Path) -> None:
    ran = run("build", voc, "-o", tmp_path / "p", "--labels", "voc", "--fail-fast")
    assert ran.code == 1 and "4 of 9 inputs are bad, 0 allowed (images were not decoded to the end" in ran.err
    assert "bad-image" not in ran.err and "going on" not in ran.out


def test_a_build_that_fails_while_packing_keeps_its_work(tmp_path: Path) -> None:
    """Then only the number of bad inputs is missing: the next run packs nothing again."""
    source = draw_plain(tmp_path / "src", 12)
    for i in (1, 7):
        truncate(source / f"{i:03d}.jpg")
    asked = ["build", source, "-o", tmp_path / "p", "--shard-size", "8KB", "--workers", 1]
    ran = run(*asked)
    assert ran.code == 1 and "2 of 12 inputs are bad, 0 allowed\n" in ran.err
    assert ran.out.count("going on") == 1 and "finished shards are kept" in ran.out
    ran = good(*asked, "--max-bad", 2)
    assert "packed again" not in ran.out and "packed 10 images of 12 found (2 rejected)" in ran.out
    assert len(open_pack(tmp_path / "p")) == 10


def test_a_dry_run_says_what_it_reads(tmp_path: Path) -> None:
    source = draw_plain(tmp_path / "src", 6)
    asked = ["build", source, "-o", tmp_path / "p", "--dry-run"]
    assert "note: headers and labels were read; --deep also decodes every image" in good(*asked).out
    assert "note: every image was decoded" in good(*asked, "--deep").out
    truncate(source / "003.jpg")
    assert "rejected" not in good(*asked).out
    ran = run(*asked, "--deep")
    assert ran.code == 1 and "1 of 6 inputs is bad" in ran.err and "bad-image: 003.jpg: truncated" in ran.err
    out = good(*asked, "--deep", "--max-bad", 1).out
    assert "plan: 5 images" in out and "1 rejected" in out and "rejected: 003.jpg" in out
    assert len(plan_pack(BuildOptions(str(source), out=str(tmp_path / "p"), max_bad="1"), deep=True).table) == 5
    assert os.listdir(tmp_path) == ["src"]


def test_json_has_the_reasons(tmp_path: Path) -> None:
    source = draw_plain(tmp_path / "src", 3)
    truncate(source / "001.jpg")
    ran = run("build", source, "-o", tmp_path / "p", "--json")
    facts = json.loads(ran.out)
    assert facts["reasons"] == {"bad-image": 1} and [r["path"] for r in facts["rejected"]] == ["001.jpg"]


def test_deep_is_for_dry_runs(tmp_path: Path) -> None:
    draw(tmp_path / "src" / "a.jpg", 1)
    ran = run("build", tmp_path / "src", "--deep")
    assert ran.code == 2 and "--deep: is for --dry-run" in ran.err


def test_force_builds_what_does_not_seem_to_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = draw_plain(tmp_path / "src", 2)
    monkeypatch.setattr("packer.packing.plan.free_bytes", lambda output: 100)
    ran = run("build", source, "-o", tmp_path / "p")
    assert ran.code == 3 and "or try it with --force" in ran.err
    good("build", source, "-o", tmp_path / "p", "--force")
