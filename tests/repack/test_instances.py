"""Masks of objects in packs made from packs, in files again, and from memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from drawn_instances import coco_mask, draw_instances, drawn_masks, read_masks
from drawn_masks import nearest_by_hand
from packs import WIDE
from running import good, run

import packer
from packer import PackWriter, open_pack
from packer.errors import BadLabel, BadMask, NotInstalled
from packer.repack.extract import ExtractOptions

EVERY = pytest.mark.parametrize("container", WIDE)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draw_instances(tmp_path_factory.mktemp("instances") / "cells")


def build(source: Path, out: Path, **options: Any) -> Path:
    packer.build(source, out, **{"instance_masks": True, "workers": 1, **options})
    return out


def assert_drawn(pack: Path, source: Path) -> None:
    opened, wanted = open_pack(pack), drawn_masks(source)
    for i, path in enumerate(opened.paths):
        assert np.array_equal(read_masks(opened, i), wanted[Path(path).name])


@EVERY
def test_packs_from_packs(container: str, source: Path, tmp_path: Path) -> None:
    pack = build(source, tmp_path / f"a.{container}")
    packer.convert(pack, tmp_path / "b.hdf5", workers=1)
    assert_drawn(tmp_path / "b.hdf5", source)
    assert good("diff", pack, tmp_path / "b.hdf5").out.endswith("equal: 5 records\n")
    good("split", pack, "--parts", "x=0.4,y=0.6", "-o", tmp_path)
    good("merge", *sorted(tmp_path.glob("a-*")), "-o", tmp_path / f"c.{container}")
    assert_drawn(tmp_path / f"c.{container}", source)
    assert not packer.verify(tmp_path / f"c.{container}").problems
    without = build(source, tmp_path / f"d.{container}", instance_masks=False)
    assert "rles" in run("diff", pack, without).out
    (next(tmp_path.glob(f"c.{container}/*.arrow"))).unlink()
    packer.repair(tmp_path / f"c.{container}", out=tmp_path / f"e.{container}")
    assert_drawn(tmp_path / f"e.{container}", source)


@pytest.mark.parametrize("container", ["webdataset", "tfrecord"])
def test_files_of_packs_are_adopted(container: str, source: Path, tmp_path: Path) -> None:
    pack = build(source, tmp_path / "a", format=container, encode="png")
    shard = next(path for path in pack.iterdir() if path.suffix in (".tar", ".tfrecord"))
    packer.adopt([shard], tmp_path / "b")
    ones, others = open_pack(pack), open_pack(tmp_path / "b")
    assert len(others) == len(ones)
    assert all(np.array_equal(read_masks(others, i), read_masks(ones, i)) for i in range(len(ones)))


def test_convert_resizes_masks(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pack = build(source, tmp_path / "a.lmdb")
    packer.convert(pack, tmp_path / "b.lmdb", resize="33x21", workers=1)
    built = build(source, tmp_path / "c.lmdb", resize="33x21")
    small = open_pack(tmp_path / "b.lmdb")
    for i in range(len(small)):
        assert np.array_equal(read_masks(small, i), read_masks(open_pack(built), i))
    first = drawn_masks(source)["000.jpg"]
    assert np.array_equal(read_masks(small, 0), [nearest_by_hand(mask, 21, 33) for mask in first])
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(NotInstalled, match="pycocotools"):
        packer.convert(pack, tmp_path / "d.lmdb", resize=20)


@pytest.mark.parametrize("layout", ["coco", "yolo"])
def test_files_again(layout: str, source: Path, tmp_path: Path) -> None:
    """Nothing is lost but ignored regions: a polygon along the pixels of a mask goes around its holes, too."""
    pack = build(source, tmp_path / "a.lmdb", encode="copy")
    report = packer.extract(pack, tmp_path / "files", ExtractOptions(layout))
    good(*report.build[1:], "-o", tmp_path / "again.lmdb")
    if layout == "coco":
        assert_drawn(tmp_path / "again.lmdb", source)
        assert report.lost == {}
        assert good("diff", pack, tmp_path / "again.lmdb").out.endswith("equal: 5 records\n")
        return
    assert not any("mask" in lost for lost in report.lost)
    one, other = open_pack(pack), open_pack(tmp_path / "again.lmdb")
    for i in range(len(one)):
        assert np.array_equal(read_masks(one, i)[~one.annotation(i).ignored], read_masks(other, i))


def test_masks_from_memory(tmp_path: Path) -> None:
    masks = (np.random.default_rng(0).random((3, 12, 17)) < 0.4).astype(np.uint8)
    boxes = [[0, 0, 17, 12]] * 3
    compressed = coco_mask.encode(np.asfortranarray(masks[1]))
    plain = {"size": [12, 17], "counts": [3, 200, 1]}
    with PackWriter(tmp_path / "p.lmdb") as writer:
        image = np.zeros((12, 17, 3), np.uint8)
        writer.write(image, boxes=boxes, box_labels=[0, 1, 0], masks=masks)
        writer.write(image, boxes=boxes, box_labels=[0, 1, 0], masks=[masks[0] > 0, compressed, None])
        writer.write(image, boxes=boxes[:1], box_labels=[1], masks=[plain])
        writer.write(image, boxes=boxes, box_labels=[0, 0, 0])
        with pytest.raises(BadLabel, match="has 3 masks for 1 box"):
            writer.write(image, boxes=boxes[:1], box_labels=[0], masks=masks)
        for wrong in (masks[0, 1:], masks[0] * 1.5, {"size": [12, 17], "counts": b"0"}, {"counts": [1]}):
            with pytest.raises(BadMask):
                writer.write(image, boxes=boxes[:1], box_labels=[0], masks=[wrong])
    pack = open_pack(tmp_path / "p.lmdb")
    assert np.array_equal(pack.instance_masks(0), masks) and np.array_equal(read_masks(pack, 0), masks)
    assert np.array_equal(pack.instance_masks(1), [masks[0], masks[1], np.zeros((12, 17))])
    assert pack.instance_masks(2)[0].T.ravel().tolist() == [0] * 3 + [1] * 200 + [0]
    assert pack.instance_masks(3).shape == (3, 12, 17) and not pack.instance_masks(3).any()
    assert pack[1].annotation.rles[1].tobytes() == compressed["counts"]
