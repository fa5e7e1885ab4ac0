"""Boxes that do not fit their image: every change is listed with file, line, before and after."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from drawn import draw, voc_xml
from running import good, run

from packer.errors import BadBox
from packer.format.lists import Changed, read_list
from packer.format.pack import open_pack
from packer.images.header import read_header
from packer.model.annotation import RawAnnotation
from packer.packing.resolve import ClassIds, Resolver


def yolo(root: Path, *rows: str, width: int = 480, height: int = 640) -> Path:
    """A YOLO set of one image with these rows."""
    draw(root / "images" / "a.jpg", 1, width, height)
    (root / "labels").mkdir()
    (root / "labels" / "a.txt").write_text("".join(f"{row}\n" for row in rows))
    return root


def test_rounding_of_six_decimals_is_no_fault(tmp_path: Path) -> None:
    """An edge a pixel outside, written with six decimals: 481.00008 of 480."""
    source = yolo(tmp_path / "src", "0 0.951042 0.5 0.102084 0.2")
    good("build", source, "-o", tmp_path / "p")
    boxes = open_pack(tmp_path / "p").annotation(0).boxes
    assert boxes is not None and boxes[0, 2] == 480
    assert "rejected" not in open_pack(tmp_path / "p").manifest.lists


def test_messages_have_the_line_and_the_numbers_of_the_file(tmp_path: Path) -> None:
    source = yolo(tmp_path / "src", "0 0.5 0.5 0.2 0.2", "", "3  0.95 0.5 0.2084 0.2")
    ran = run("build", source, "-o", tmp_path / "p")
    assert ran.code == 1
    assert "images/a.jpg: labels/a.txt:3: box 2 (3  0.95 0.5 0.2084 0.2): xmax 506.016 exceeds width 480" in ran.err
    (source / "labels" / "a.txt").write_text("0 0.5 0.5 0 0.2\n")
    assert "labels/a.txt:1: box 1 (0 0.5 0.5 0 0.2) has no area" in run("build", source, "-o", tmp_path / "p").err


def test_messages_have_the_numbers_of_voc(tmp_path: Path) -> None:
    """VOC counts from 1: packer's own numbers cannot be found in the file."""
    draw(tmp_path / "src" / "a.jpg", 1)
    (tmp_path / "src" / "a.xml").write_text(voc_xml("a.jpg", [("cat", 11, 4, 77, 20)]))
    ran = run("build", tmp_path / "src", "-o", tmp_path / "p")
    assert "a.xml: box 1 (11, 4, 77, 20): xmax 77 exceeds width 40" in ran.err


ROWS = ("1 0.95 0.5 0.2 0.2", "0 0.5 0.5 0.2 0.2", "1 0.5 0.5 0 0.2")


@pytest.mark.parametrize("policy", ["clip", "drop"])
def test_changed_boxes_are_listed(tmp_path: Path, policy: str) -> None:
    source = yolo(tmp_path / "src", *ROWS)
    (source / "classes.txt").write_text("ant\nbee\n")
    ran = good("build", source, "-o", tmp_path / "p", "--labels", "yolo", "--boxes", policy)
    assert "(packer info --changed lists them)" in ran.out
    change, after = ("clipped", "408 256 480 384") if policy == "clip" else ("dropped", "")
    assert list(read_list(tmp_path / "p", "changed")) == [
        Changed("images/a.jpg", change, "labels/a.txt:1", "1 bee", "408 256 504 384", after),
        Changed("images/a.jpg", "dropped", "labels/a.txt:3", "3 bee", "240 256 240 384", ""),
    ]
    out = good("info", tmp_path / "p", "--changed").out
    assert f"images/a.jpg: labels/a.txt:1: box 1 bee: {change}: 408 256 504 384" in out
    assert open_pack(tmp_path / "p").manifest.counts["changed"] == 2
    dry = good("build", source, "-o", tmp_path / "q", "--labels", "yolo", "--boxes", policy, "--dry-run").out
    assert f"--boxes {policy} changes 2 boxes" in dry


def test_an_image_that_is_rejected_has_no_changes() -> None:
    """A list of changes holds only what is in the pack."""
    raw = RawAnnotation("a.txt:1", boxes=((0, 0, 90, 5), (1, 1, 2, 2)), box_labels=("a", "nobody"))
    resolver = Resolver(ClassIds(["a"]), "clip")
    header = read_header(_jpeg())
    with pytest.raises(ValueError, match="nobody"):
        resolver.annotation([raw], header, b"a.jpg")
    assert len(resolver.changed) == 0 and not resolver.counts
    with pytest.raises(BadBox):
        Resolver(ClassIds(), "fail").annotation([raw], header)


def test_polygons_are_clipped_with_their_boxes(tmp_path: Path) -> None:
    source = yolo(tmp_path / "src", "0 0.5 0.5 1.2 0.5 1.2 0.75 0.5 0.75", width=40, height=40)
    good("build", source, "-o", tmp_path / "p", "--boxes", "clip")
    (polygon,) = open_pack(tmp_path / "p").annotation(0).polygons or ()
    assert sorted(map(tuple, polygon.tolist())) == [(20, 20), (20, 30), (40, 20), (40, 30)]
    assert open_pack(tmp_path / "p").manifest.counts["polygons_clipped"] == 1


def test_a_polygon_outside_of_a_good_box_is_listed_too() -> None:
    polygon = ((-9.0, 5.0), (10.0, 5.0), (10.0, 9.0))
    raw = RawAnnotation("a.json", boxes=((0, 5, 10, 9),), box_labels=("a",), polygons=(polygon,))
    resolver = Resolver(ClassIds(), "clip")
    annotation = resolver.annotation([raw], read_header(_jpeg()), b"a.jpg")
    assert annotation.polygons is not None and annotation.polygons[0].min() == 0
    assert [tuple(row.__getattribute__(n) for n in ("change", "before", "after")) for row in resolver.changed] == [
        ("polygon clipped", "-9 5 10 9", "0 5 10 9")
    ]
    for policy in ("fail", "drop"):
        kept = Resolver(ClassIds(), policy).annotation([raw], read_header(_jpeg())).polygons
        assert kept is not None and np.array_equal(kept[0], np.array(polygon, np.float32))


def _jpeg() -> bytes:
    from drawn import image_file

    return image_file(1)
