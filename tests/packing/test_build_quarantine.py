"""``--quarantine DIR`` lists the inputs that are in no pack, and touches nothing else."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from drawn import draw_plain, tree_state
from running import good, refused, run

from packer.errors import StorageError
from packer.format.lists import Listing
from packer.format.manifest import Rejected
from packer.format.pack import open_pack
from packer.packing.bad_inputs import write_list

HEAD = "path\treason\tproblem"
ODD = [b"tab\there.jpg", b"line\nbreak.jpg", b"\xff\xfe.jpg", b"back\\slash.jpg", b"\x1b[2J.jpg", b"blank\xc2\xa0.jpg"]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Three good images, one that its header and one that only its decoding shows to be bad, and odd names."""
    source = draw_plain(tmp_path / "src", 4)
    (source / "002.jpg").write_bytes((source / "002.jpg").read_bytes()[:-300])
    (source / "bad.jpg").write_bytes(b"no image at all" * 9)
    return source


def listed(folder: Path) -> list[list[str]]:
    """The lines of the list, in its three parts."""
    head, *lines = (folder / "rejected.tsv").read_text("utf-8").split("\n")[:-1]
    assert head == HEAD and sorted(os.listdir(folder)) == ["rejected.tsv"]
    return [line.split("\t") for line in lines]


def test_after_a_build(source: Path, tmp_path: Path) -> None:
    before = tree_state(source)
    ran = good("build", source, "-o", tmp_path / "p", "--on-bad", "skip", "--quarantine", tmp_path / "q" / "deep")
    assert f"2 inputs are rejected: listed in {tmp_path}/q/deep/rejected.tsv" in ran.out
    rejected = open_pack(tmp_path / "p").manifest.rejected
    assert listed(tmp_path / "q" / "deep") == [[r.path, r.reason, r.problem] for r in rejected]
    assert [(r.path, r.reason) for r in rejected] == [("002.jpg", "bad-image"), ("bad.jpg", "not-an-image")]
    assert tree_state(source) == before


def test_after_a_build_that_failed_in_its_labels_or_headers(source: Path, tmp_path: Path) -> None:
    asked = ["build", source, "-o", tmp_path / "p", "--quarantine", tmp_path / "q"]
    ran = run(*asked, "--fail-fast")
    assert ran.code == 1 and f"1 input is rejected: listed in {tmp_path}/q/rejected.tsv" in ran.out
    assert [line[0] for line in listed(tmp_path / "q")] == ["bad.jpg"]
    assert run(*asked).code == 1
    assert [line[0] for line in listed(tmp_path / "q")] == ["002.jpg", "bad.jpg"]


def test_after_a_build_that_failed_in_a_worker(source: Path, tmp_path: Path) -> None:
    ran = run("build", source, "-o", tmp_path / "p", "--max-bad", 1, "--quarantine", tmp_path / "q", "--json")
    assert ran.code == 1 and len(json.loads(ran.out)["rejected"]) == 2
    assert [line[0] for line in listed(tmp_path / "q")] == ["002.jpg", "bad.jpg"]


def test_after_a_dry_run(source: Path, tmp_path: Path) -> None:
    asked = ["build", source, "-o", tmp_path / "p", "--on-bad", "skip", "--dry-run", "--quarantine", tmp_path / "q"]
    ran = good(*asked)
    assert f"1 input is rejected: listed in {tmp_path}/q/rejected.tsv" in ran.out
    assert [line[0] for line in listed(tmp_path / "q")] == ["bad.jpg"]
    assert json.loads(good(*asked, "--json").out)["quarantine"] == f"{tmp_path}/q/rejected.tsv"
    assert json.loads(good(*asked[:-2], "--json").out)["quarantine"] is None
    assert sorted(os.listdir(tmp_path)) == ["q", "src"]


def test_nothing_is_bad(tmp_path: Path) -> None:
    """An older list does not stay."""
    source = draw_plain(tmp_path / "src", 2)
    (tmp_path / "q").mkdir()
    (tmp_path / "q" / "rejected.tsv").write_text("old")
    good("build", source, "-o", tmp_path / "p", "--quarantine", tmp_path / "q")
    assert listed(tmp_path / "q") == []


def test_odd_names_are_one_line_each_and_can_be_had_back(tmp_path: Path) -> None:
    source = draw_plain(tmp_path / "src", 1)
    for name in ODD:
        (source / os.fsdecode(name)).write_bytes(b"no image at all" * 9)
    ran = good("build", source, "-o", tmp_path / "p", "--on-bad", "skip", "--quarantine", tmp_path / "q")
    lines = listed(tmp_path / "q")
    assert all(len(line) == 3 for line in lines) and not {"\x1b", "\udcff"} & set(ran.out)
    back = {line[0].encode("ascii", "backslashreplace").decode("unicode_escape") for line in lines}
    assert {os.fsencode(name) for name in back} == set(ODD)


@pytest.mark.parametrize(
    ("folder", "problem"),
    [
        ("src", "is inside the source folder"),
        ("src/q", "is inside the source folder"),
        ("alias/q", "is inside the source folder"),
        ("p", "is inside the new pack"),
        ("p/q/r", "is inside the new pack"),
        ("p.partial", "is inside the new pack"),
        ("src/000.jpg/q", "is inside the source folder"),
        ("file", "is not a folder"),
        ("file/q", "is not a folder"),
        ("", "is empty"),
    ],
)
@pytest.mark.parametrize("more", [(), ("--dry-run",)])
def test_folders_that_are_refused(tmp_path: Path, folder: str, problem: str, more: tuple[str, ...]) -> None:
    source = draw_plain(tmp_path / "src", 2)
    (tmp_path / "alias").symlink_to("src")
    (tmp_path / "file").write_text("mine")
    before = tree_state(tmp_path)
    given = tmp_path / folder if folder else ""
    assert problem in refused(2, "build", source, "-o", tmp_path / "p", "--quarantine", given, *more)
    assert tree_state(tmp_path) == before


def test_beside_the_pack_and_the_source(source: Path, tmp_path: Path) -> None:
    good("build", source, "-o", tmp_path / "p", "--on-bad", "skip", "--quarantine", tmp_path)
    assert sorted(os.listdir(tmp_path)) == ["p", "rejected.tsv", "src"]
    good("build", source, "-o", tmp_path / "p2", "--on-bad", "skip", "--quarantine", tmp_path / "p3")


def test_a_link_in_its_place_is_replaced_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("dear")
    (tmp_path / "q").mkdir()
    (tmp_path / "q" / "rejected.tsv").symlink_to(tmp_path / "mine")
    write_list(str(tmp_path / "q" / "rejected.tsv"), Listing(Rejected, [Rejected("a.jpg", "bad-image", "is bad")]))
    assert listed(tmp_path / "q") == [["a.jpg", "bad-image", "is bad"]]
    assert (tmp_path / "mine").read_text() == "dear" and not (tmp_path / "q" / "rejected.tsv").is_symlink()


def test_a_list_that_cannot_be_written(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No pack without the list that was asked for; and too many bad inputs stay what the error is about."""
    real = os.replace

    def full(old: str, new: str) -> None:
        if str(new).endswith("rejected.tsv"):
            raise OSError(28, "No space left on device")
        real(old, new)

    monkeypatch.setattr(os, "replace", full)
    asked = ["build", source, "-o", tmp_path / "p", "--quarantine", tmp_path / "q"]
    line = refused(3, *asked, "--on-bad", "skip")
    assert line == (
        f"packer: error: {tmp_path}/q/rejected.tsv: cannot be written: No space left on device; "
        "choose another --quarantine"
    )
    assert not (tmp_path / "p").exists() and os.listdir(tmp_path / "q") == []
    ran = run(*asked)
    assert ran.code == 1 and "2 of 5 inputs are bad" in ran.err
    assert "note: " in ran.out and "rejected.tsv: cannot be written" in ran.out
    with pytest.raises(StorageError):
        write_list(str(tmp_path / "q" / "rejected.tsv"), Listing(Rejected))
