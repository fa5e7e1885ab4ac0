"""Near duplicates through the commands: listed, as a problem, together in a split, one of each in a new pack."""

from __future__ import annotations

import json
import os
from pathlib import Path

import cv2
import numpy as np
import pytest
from running import good, refused

from packer import open_pack
from packer.repack.split import SplitOptions, split
from packer.stats.problems import find_problems, records_with


def write(path: Path, image: np.ndarray, quality: int = 95) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, quality])[1].tobytes())


def photo(seed: int) -> np.ndarray:
    """Smooth shapes in colors."""
    noise = np.random.default_rng(seed).integers(0, 256, (9, 12, 3), np.uint8)
    return cv2.resize(noise, (160, 120), interpolation=cv2.INTER_CUBIC)


@pytest.fixture
def packs(tmp_path: Path) -> tuple[Path, Path]:
    """A pack of cats and dogs, with a smaller copy and one with another label, and one with a leak."""
    source = tmp_path / "train"
    for i in range(10):
        write(source / ("cat", "dog")[i % 2] / f"{i}.jpg", photo(i))
    write(source / "cat" / "0-small.jpg", cv2.resize(photo(0), (80, 60), interpolation=cv2.INTER_AREA))
    write(source / "dog" / "2-wrong.jpg", photo(2), 60)
    write(source / "cat" / "4-mirrored.jpg", photo(4)[:, ::-1])
    write(tmp_path / "val" / "dog" / "5-bright.jpg", cv2.convertScaleAbs(photo(5), alpha=1.1))
    write(tmp_path / "val" / "cat" / "20.jpg", photo(20))
    good("build", source, "-o", tmp_path / "train.lmdb")
    good("build", tmp_path / "val", "-o", tmp_path / "val.lmdb")
    return tmp_path / "train.lmdb", tmp_path / "val.lmdb"


NEAR = [["cat/0-small.jpg", "cat/0.jpg"], ["cat/2.jpg", "dog/2-wrong.jpg"]]
MIRRORED = ["cat/4-mirrored.jpg", "cat/4.jpg"]


def test_groups_are_listed(packs: tuple[Path, Path]) -> None:
    train, val = packs
    facts = json.loads(good("stats", train, "--duplicates", "near", "--json").out)
    assert facts["near_duplicates"] == NEAR and not facts["near_leaks"]
    assert (facts["bits"], facts["groups"], facts["records"]) == (8, 2, 4)
    assert facts["listed"][0][0]["differ"] == 0
    mirrored = json.loads(good("stats", train, "--duplicates", "mirrored", "--json").out)
    assert mirrored["near_duplicates"] == [*NEAR[:1], NEAR[1], MIRRORED]
    both = json.loads(good("stats", train, "--against", val, "--duplicates", "near", "--json").out)
    assert both["near_leaks"] == [["dog/5.jpg", "dog/5-bright.jpg"]] and both["near_duplicates"] == NEAR
    lines = good("stats", train, "--against", val, "--duplicates", "near").out.splitlines()
    assert lines[0].startswith("near duplicates 3 groups of near duplicates within 8 bits: 6 records")
    assert lines[1].endswith("1 group has records of both packs") and "5-bright.jpg" in "".join(lines[3:5])


def test_images_are_read_where_there_is_no_fingerprint(packs: tuple[Path, Path]) -> None:
    before = json.loads(good("stats", packs[0], "--duplicates", "near", "--json").out)
    good("detach", packs[0], "fingerprint")
    ran = good("stats", packs[0], "--duplicates", "near")
    assert "13 images" in ran.out and "must be read for fingerprints; packer attach" in ran.out
    assert json.loads(good("stats", packs[0], "--duplicates", "near", "--json").out) == before
    kinds = {one.kind for one in find_problems(open_pack(packs[0])).found}
    assert {"near-label-conflict", "near-duplicate"} <= kinds  # of few
    assert any("13 records have no fingerprint" in note for note in find_problems(open_pack(packs[0]), 0).notes)


def test_they_are_problems(packs: tuple[Path, Path]) -> None:
    train = open_pack(packs[0])
    found = {one.kind: one for one in find_problems(train).found}
    assert [train.paths[i] for i in found["near-label-conflict"].records] == NEAR[1]
    assert found["near-label-conflict"].examples[0].detail == "cat, dog (near dog/2-wrong.jpg)"
    assert [train.paths[i] for one in found["near-label-conflict"].examples for i in one.neighbors] == [
        "dog/2-wrong.jpg"
    ]
    assert [train.paths[i] for i in found["near-duplicate"].records] == NEAR[0]
    assert [train.paths[i] for i in records_with(train, ["near-duplicate"])] == ["cat/0-small.jpg"]
    facts = json.loads(good("stats", packs[0], "--against", packs[1], "--problems", "--json").out)
    assert "near-leak" in [one["kind"] for one in facts["problems"]]


def test_an_example_counts_all_of_a_large_group(packs: tuple[Path, Path], tmp_path: Path) -> None:
    source = packs[0].parent / "train"
    for number in range(14):
        write(source / "cat" / f"0-{number:02}.jpg", photo(0), 70 + number)
    write(source / "dog" / "z.jpg", photo(0), 60)
    good("build", source, "-o", tmp_path / "again.lmdb")
    again = open_pack(tmp_path / "again.lmdb")
    (example,) = [
        one
        for problem in find_problems(again).found
        if problem.kind == "near-label-conflict"
        for one in problem.examples
        if one.path.startswith("cat/0")
    ]
    assert example.detail.startswith("cat, dog (near dog/z.jpg, cat/0-01.jpg") and "and 13 more" in example.detail
    assert len(example.neighbors) == 4 and again.paths[example.neighbors[0]] == "dog/z.jpg"


def test_equal_files_are_no_near_duplicates(packs: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / "train/cat/copy.jpg").write_bytes((tmp_path / "train/cat/6.jpg").read_bytes())
    good("build", tmp_path / "train", "-o", tmp_path / "again.lmdb")
    found = {one.kind: one for one in find_problems(open_pack(tmp_path / "again.lmdb")).found}
    assert found["duplicate"].count == 2 and found["near-duplicate"].count == 2


@pytest.mark.parametrize("seed", range(4))
def test_a_split_keeps_them_together(packs: tuple[Path, Path], tmp_path: Path, seed: int) -> None:
    os.mkdir(tmp_path / "parts")
    report = split(packs[0], SplitOptions("a=0.5,b=0.5", group="mirrored", seed=seed), tmp_path / "parts")
    parts = [set(open_pack(part.path).paths) for part in report.parts]
    for group in (*NEAR, MIRRORED):
        assert any(set(group) <= part for part in parts)
    assert report.notes == ("3 groups of near duplicates stay together: 6 records",)


@pytest.mark.parametrize(
    ("what", "gone"),
    [
        ("near", {"cat/0-small.jpg": "cat/0.jpg", "dog/2-wrong.jpg": "cat/2.jpg"}),
        ("near=0", {}),
        ("equal", {}),
    ],
)
def test_one_of_each_is_kept(packs: tuple[Path, Path], tmp_path: Path, what: str, gone: dict[str, str]) -> None:
    good("convert", packs[0], tmp_path / "once.hdf5", "--keep-one", what)
    once = open_pack(tmp_path / "once.hdf5")
    if what != "near=0":
        assert set(open_pack(packs[0]).paths) - set(once.paths) == set(gone)
    skipped = tmp_path / "once.hdf5" / "skipped.tsv"
    for path, kept in gone.items():
        assert f"{path}\tnear duplicate of {kept}" in skipped.read_text("utf-8").splitlines()
    assert once.manifest.options["repack"] == {"keep_one": what}


def test_of_equal_files_the_first_is_kept(packs: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / "train/cat/a-copy.jpg").write_bytes((tmp_path / "train/cat/6.jpg").read_bytes())
    good("build", tmp_path / "train", "-o", tmp_path / "again.lmdb")
    good("convert", tmp_path / "again.lmdb", tmp_path / "once.lmdb", "--keep-one", "equal")
    assert "cat/a-copy.jpg\tequal to cat/6.jpg" in (tmp_path / "once.lmdb/skipped.tsv").read_text("utf-8")


def test_mistakes_are_named(packs: tuple[Path, Path], tmp_path: Path) -> None:
    assert "--duplicates: must be near or mirrored" in refused(2, "stats", packs[0], "--duplicates", "far")
    assert "has no effect with --duplicates" in refused(2, "stats", packs[0], "--duplicates", "near", "--problems")
    assert "--keep-one: must be equal, near" in refused(2, "convert", packs[0], tmp_path / "x.lmdb", "--keep-one", "a")
    assert "near=BITS with 0 to 16" in refused(2, "split", packs[0], "--parts", "a=.5,b=.5", "--group", "near=17")
