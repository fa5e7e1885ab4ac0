"""A pack for each split of a source: one class list, one command, which resumes."""

from __future__ import annotations

import csv
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from drawn import draw_plain
from running import good, refused, run

from packer import open_pack
from packer.containers import CONTAINERS
from packer.format.manifest import read_manifest
from packer.packing import BuildOptions, build, build_pack, build_packs, build_part, build_parts, plan_packs
from packer.packing.publish import Output
from packer.sources.synthetic import draw_sample

IMAGES = {"train": ["bee", "cat"], "val": ["ant", "bee"], "test": ["cat", "dog"]}
"""The classes of each split, two images of each."""


def _image_folder_classes(root: Path) -> list[str]:
    """Return the class names of `torchvision.datasets.ImageFolder` (`find_classes`)."""
    return sorted(entry.name for entry in os.scandir(root) if entry.is_dir())


def _images(tmp_path: Path) -> list[bytes]:
    folder = draw_plain(tmp_path / "plain", 12)
    return [path.read_bytes() for path in sorted(folder.iterdir())]


def _each(tmp_path: Path) -> list[tuple[str, str, bytes]]:
    """Return (split, class, file) of each image."""
    names = [(split, name) for split, classes in IMAGES.items() for name in classes for _ in range(2)]
    return [(*name, data) for name, data in zip(names, _images(tmp_path), strict=True)]


def _write(path: Path, data: bytes | str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data.encode() if isinstance(data, str) else data)


def _folders(root: Path, images: list[tuple[str, str, bytes]]) -> None:
    for number, (split, name, data) in enumerate(images):
        _write(root / split / name / f"{number}.jpg", data)


def _voc(root: Path, images: list[tuple[str, str, bytes]]) -> None:
    for number, (split, name, data) in enumerate(images):
        _write(root / "JPEGImages" / f"{number}.jpg", data)
        box = "<bndbox><xmin>1</xmin><ymin>1</ymin><xmax>9</xmax><ymax>9</ymax></bndbox>"
        xml = f"<annotation><object><name>{name}</name>{box}</object></annotation>"
        _write(root / "Annotations" / f"{number}.xml", xml)
        for listed in (split, *(["trainval"] if split != "test" else [])):
            path = root / "ImageSets" / "Main" / f"{listed}.txt"
            _write(path, (path.read_text() if path.exists() else "") + f"{number}\n")


def _yolo(root: Path, images: list[tuple[str, str, bytes]]) -> None:
    names = ["bee", "cat", "ant", "dog"]
    for number, (split, name, data) in enumerate(images):
        _write(root / "images" / split / f"{number}.jpg", data)
        _write(root / "labels" / split / f"{number}.txt", f"{names.index(name)} 0.5 0.5 0.2 0.2\n")
    paths = "".join(f"{split}: images/{split}\n" for split in IMAGES)
    _write(root / "data.yaml", f"{paths}names: [{', '.join(names)}]\n")


def _coco(root: Path, images: list[tuple[str, str, bytes]]) -> None:
    for split, classes in IMAGES.items():
        named, labels = [], []
        for number, (its, name, data) in enumerate(images):
            if its == split:
                _write(root / f"{split}2017" / f"{number}.jpg", data)
                named.append({"id": number, "file_name": f"{number}.jpg"})
                box = {"id": number, "image_id": number, "category_id": classes.index(name), "bbox": [1, 1, 8, 8]}
                labels.append(box)
        categories = [{"id": i, "name": name} for i, name in enumerate(classes)]
        loaded = {"images": named, "annotations": labels, "categories": categories}
        _write(root / "annotations" / f"instances_{split}2017.json", json.dumps(loaded))


def _table(root: Path, images: list[tuple[str, str, bytes]]) -> None:
    rows = [("path", "label", "split")]
    for number, (split, name, data) in enumerate(images):
        _write(root / "images" / f"{number}.jpg", data)
        rows.append((f"images/{number}.jpg", name, split))
    with open(root / "labels.csv", "w", newline="") as file:
        csv.writer(file).writerows(rows)


def _lists(root: Path, images: list[tuple[str, str, bytes]]) -> None:
    rows: dict[str, list[tuple[str, str]]] = {split: [("path", "label")] for split in IMAGES}
    for number, (split, name, data) in enumerate(images):
        _write(root / "images" / f"{number}.jpg", data)
        rows[split].append((f"images/{number}.jpg", name))
    for split, lines in rows.items():
        with open(root / f"{split}.csv", "w", newline="") as file:
            csv.writer(file).writerows(lines)


def _labelme(root: Path, images: list[tuple[str, str, bytes]]) -> None:
    for number, (split, name, data) in enumerate(images):
        _write(root / split / f"{number}.jpg", data)
        shape = {"label": name, "shape_type": "rectangle", "points": [[1, 1], [9, 9]]}
        loaded = {"version": "5", "shapes": [shape], "imagePath": f"{number}.jpg", "imageData": None}
        _write(root / split / f"{number}.json", json.dumps(loaded))


SOURCES: dict[str, Callable[[Path, list[tuple[str, str, bytes]]], None]] = {
    "folders": _folders, "voc": _voc, "yolo": _yolo, "coco": _coco, "table": _table, "lists": _lists,
    "labelme": _labelme,
}  # fmt: skip
CLASSES = {"yolo": ("bee", "cat", "ant", "dog"), "coco": ("cat", "dog", "bee", "ant")}
"""Those of the sources that number them; else they are sorted."""


@pytest.fixture(params=[*SOURCES])
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    SOURCES[request.param](tmp_path / request.param, _each(tmp_path))
    return tmp_path / request.param


def _names(pack: Path) -> list[str]:
    """Return the class of each image, or of its box."""
    opened = open_pack(pack)
    found = [opened.annotation(i) for i in range(len(opened))]
    ids = [one.label if one.label is not None else int((one.box_labels if one.box_labels is not None else [])[0])
           for one in found]  # fmt: skip
    return [opened.classes[i] for i in ids]


def _bytes(pack: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(pack.iterdir())}


def test_splits_are_packed_with_one_class_list(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "packs" / "x.lmdb"
    out.parent.mkdir()
    summaries = build_packs(BuildOptions(str(source), str(out), encode="copy", workers=1))
    assert [Path(one.path).name for one in summaries] == ["x-train.lmdb", "x-val.lmdb", "x-test.lmdb"]
    assert sorted(path.name for path in out.parent.iterdir()) == ["x-test.lmdb", "x-train.lmdb", "x-val.lmdb"]
    for split, names in IMAGES.items():
        pack = out.with_name(f"x-{split}.lmdb")
        assert tuple(open_pack(pack).classes) == CLASSES.get(source.name, ("ant", "bee", "cat", "dog"))
        assert sorted(_names(pack)) == sorted(names * 2)
        alone = build_pack(BuildOptions(str(source), str(tmp_path / "one"), split=split, encode="copy", workers=1))
        assert _bytes(Path(alone.path)) == _bytes(pack)
        shutil.rmtree(alone.path)


def test_class_folders_have_the_ids_of_image_folder(tmp_path: Path) -> None:
    _folders(tmp_path / "D", _each(tmp_path))
    union = tmp_path / "union"
    for split, names in IMAGES.items():
        for name in names:
            shutil.copytree(tmp_path / "D" / split / name, union / name, dirs_exist_ok=True)
    (tmp_path / "D" / "val" / "empty").mkdir()
    (union / "empty").mkdir()
    good("build", tmp_path / "D", "--quiet", "--resize", "16x16")
    assert sorted(path.name for path in tmp_path.glob("*.lmdb")) == ["D-test.lmdb", "D-train.lmdb", "D-val.lmdb"]
    for pack in tmp_path.glob("*.lmdb"):
        assert list(open_pack(pack).classes) == _image_folder_classes(union)


def test_split_names_the_pack(tmp_path: Path) -> None:
    _folders(tmp_path / "D", _each(tmp_path))
    for split in IMAGES:
        good("build", tmp_path / "D", "--quiet", "--split", split, "--encode", "copy")
    good("build", tmp_path / "D", "--quiet", "--split", "val", "--encode", "copy", "-o", tmp_path / "x.lmdb")
    assert sorted(path.name for path in tmp_path.glob("*.lmdb")) == [
        "D-test.lmdb", "D-train.lmdb", "D-val.lmdb", "x.lmdb",
    ]  # fmt: skip
    assert "D-train.lmdb: exists" in refused(2, "build", tmp_path / "D", "--split", "train", "--encode", "copy")


@pytest.mark.parametrize("container", CONTAINERS)
def test_each_container_and_json(tmp_path: Path, container: str) -> None:
    _folders(tmp_path / "D", _each(tmp_path))
    done = good("build", tmp_path / "D", "--format", container, "--resize", "8x8", "--json", "--workers", "1")
    packs = json.loads(done.out)["packs"]
    assert [Path(one["path"]).name for one in packs] == [f"D-{split}.{container}" for split in IMAGES]
    assert {tuple(one["classes"]) for one in packs} == {("ant", "bee", "cat", "dog")}


def test_a_test_split_without_labels(tmp_path: Path) -> None:
    images = _each(tmp_path)
    _folders(tmp_path / "D", images[:8])
    for number, (*_, data) in enumerate(images[8:]):
        _write(tmp_path / "D" / "test" / f"{number}.jpg", data)
    done = good("build", tmp_path / "D", "--encode", "copy")
    assert "no image of the split test has a label" in done.out
    pack = open_pack(tmp_path / "D-test.lmdb")
    assert tuple(pack.classes) == ("ant", "bee", "cat") and [pack.annotation(i).label for i in range(4)] == [None] * 4
    shutil.copytree(tmp_path / "D" / "val" / "ant", tmp_path / "D" / "val2012")  # as ImageNet's, without folders
    ran = run("build", tmp_path / "D", "--split", "val2012", "--encode", "copy", "-o", tmp_path / "x.lmdb")
    assert ran.code == 1 and "no-label" in ran.err


def test_names_do_not_depend_on_what_is_rejected(tmp_path: Path) -> None:
    """An image of train that cannot be read has the only zebra: both packs have the class, whichever is built."""
    images = _each(tmp_path)
    _table(tmp_path / "D", images)
    text = (tmp_path / "D" / "labels.csv").read_text()
    (tmp_path / "D" / "labels.csv").write_text(text.replace("images/0.jpg,bee", "images/0.jpg,zebra"))
    (tmp_path / "D" / "images" / "0.jpg").write_bytes(images[0][2][:20] + bytes(500))
    for split in ("val", "train"):
        good("build", tmp_path / "D", "--quiet", "--split", split, "--encode", "copy", "--max-bad", "1")
        assert tuple(open_pack(tmp_path / f"D-{split}.lmdb").classes) == ("ant", "bee", "cat", "dog", "zebra")


def test_images_in_no_split_are_told(tmp_path: Path) -> None:
    images = _each(tmp_path)
    _voc(tmp_path / "D", images)
    (tmp_path / "D" / "ImageSets" / "Main" / "test.txt").unlink()
    done = good("build", tmp_path / "D", "--encode", "copy")
    assert "4 images are in none of the splits" in done.out
    assert sorted(path.name for path in tmp_path.glob("*.lmdb")) == ["D-train.lmdb", "D-val.lmdb"]
    assert tuple(open_pack(tmp_path / "D-val.lmdb").classes) == ("ant", "bee", "cat", "dog")


def test_nothing_is_published_if_one_fails_and_the_rest_is_kept(tmp_path: Path) -> None:
    _folders(tmp_path / "D", _each(tmp_path))
    damaged = next((tmp_path / "D" / "test" / "dog").iterdir())
    damaged.write_bytes(damaged.read_bytes()[:-200])
    assert run("build", tmp_path / "D", "--workers", "1", "--resize", "8x8").code == 1
    assert not [*tmp_path.glob("*.lmdb")] and (tmp_path / "D-train.lmdb.partial").is_dir()
    done = good("build", tmp_path / "D", "--workers", "1", "--max-bad", "1", "--resize", "8x8")
    assert "1 finished shard kept" in done.out
    assert len([*tmp_path.glob("*.lmdb")]) == 3 and not [*tmp_path.glob("*.partial")]


@pytest.mark.parametrize("published", [0, 1, 2])
def test_a_build_that_was_killed_while_publishing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, published: int
) -> None:
    _folders(tmp_path / "D", _each(tmp_path))
    options = BuildOptions(str(tmp_path / "D"), str(tmp_path / "x.lmdb"), resize="8x8", workers=1)
    build_packs(BuildOptions(str(tmp_path / "D"), str(tmp_path / "whole.lmdb"), resize="8x8", workers=1))
    publish, done = Output.publish_folder, []

    def killed(self: Output, manifest: Any) -> None:
        if len(done) == published:
            raise KeyboardInterrupt
        done.append(self.path)
        publish(self, manifest)

    with monkeypatch.context() as patch:
        patch.setattr(Output, "publish_folder", killed)
        with pytest.raises(KeyboardInterrupt):
            build_packs(options)
    assert len([*tmp_path.glob("x-*.lmdb")]) == published
    summaries = build_packs(options)
    assert [Path(one.path).name for one in summaries] == ["x-train.lmdb", "x-val.lmdb", "x-test.lmdb"]
    for split in IMAGES:
        assert _bytes(tmp_path / f"x-{split}.lmdb") == _bytes(tmp_path / f"whole-{split}.lmdb")
    assert not [*tmp_path.glob("*.partial")]


def test_parts_of_splits(tmp_path: Path) -> None:
    _folders(tmp_path / "D", _each(tmp_path))
    given: dict[str, Any] = {"encode": "copy", "shard_bytes": 2000, "workers": 1}
    build_packs(BuildOptions(str(tmp_path / "D"), str(tmp_path / "whole.lmdb"), **given))
    for part in ("1/2", "2/2"):
        summaries = build_parts(BuildOptions(str(tmp_path / "D"), str(tmp_path / "x.lmdb"), job=part, **given))
        assert len(summaries) == 3
    build_packs(BuildOptions(str(tmp_path / "D"), str(tmp_path / "x.lmdb"), finish=True, **given))
    for split in IMAGES:
        assert _bytes(tmp_path / f"x-{split}.lmdb") == _bytes(tmp_path / f"whole-{split}.lmdb")


def test_to_a_store_and_from_archives(tmp_path: Path) -> None:
    _folders(tmp_path / "D", _each(tmp_path))
    for form in ("zip", "tar", "gztar"):
        archive = shutil.make_archive(str(tmp_path / f"D{form}"), form, tmp_path / "D")
        good("build", archive, "-o", tmp_path / f"{form}.lmdb", "--encode", "copy", "--workers", "1")
    good("build", f"file://{tmp_path}/D", "-o", f"file://{tmp_path}/s/x.lmdb", "--encode", "copy",
         "--workers", "1", "--scratch", tmp_path)  # fmt: skip
    for split in IMAGES:
        found = {
            (tuple(pack.classes), tuple(_names(pack.path)))
            for pack in map(open_pack, [*tmp_path.glob(f"*-{split}.lmdb"), tmp_path / "s" / f"x-{split}.lmdb"])
        }
        assert len([*tmp_path.glob(f"*-{split}.lmdb")]) == 3 and len(found) == 1


def test_plans_and_quarantines_of_splits(tmp_path: Path) -> None:
    _folders(tmp_path / "D", _each(tmp_path))
    next((tmp_path / "D" / "val" / "ant").iterdir()).write_bytes(b"\xff\xd8\xff" + bytes(100))
    given: dict[str, Any] = {"quarantine": str(tmp_path / "bad"), "on_bad": "skip"}
    plans = plan_packs(BuildOptions(str(tmp_path / "D"), str(tmp_path / "x.lmdb"), **given))
    assert [(Path(plan.options.output).name, plan.inputs.rows) for plan in plans] == [
        ("x-train.lmdb", 4), ("x-val.lmdb", 3), ("x-test.lmdb", 4),
    ]  # fmt: skip
    assert "ant" in (tmp_path / "bad" / "val" / "rejected.tsv").read_text()
    assert not (tmp_path / "bad" / "rejected.tsv").exists()


def test_a_source_without_splits_is_one_pack(tmp_path: Path) -> None:
    source = draw_sample(tmp_path / "shapes", count=6, size=32).path
    (summary,) = build_packs(BuildOptions(str(source), str(tmp_path / "x.lmdb"), workers=1))
    alone = build_pack(BuildOptions(str(source), str(tmp_path / "y.lmdb"), workers=1))
    assert _bytes(Path(summary.path)) == _bytes(Path(alone.path))
    assert "split" not in {k for k, v in read_manifest(alone.path).options.items() if v is not None}
    build_part(BuildOptions(str(source), str(tmp_path / "z.lmdb"), workers=1, job="1/1"))


def test_each_pack_has_the_time_that_it_took(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Previously the first had the time of all, and the others that of renaming a folder."""
    now, seconds, pack = 0.0, iter((10.0, 20.0, 30.0)), build.pack_shards

    def slow(*given: Any) -> Any:
        nonlocal now
        now += next(seconds)
        return pack(*given)

    monkeypatch.setattr(build, "pack_shards", slow)
    monkeypatch.setattr(build, "time", SimpleNamespace(monotonic=lambda: now))
    _folders(tmp_path / "src", _each(tmp_path))
    summaries = build_packs(BuildOptions(str(tmp_path / "src"), str(tmp_path / "p"), workers=1))
    assert [summary.seconds for summary in summaries] == [10, 20, 30]
    assert [summary.images_per_s for summary in summaries] == [0.4, 0.2, 4 / 30]


def test_each_thing_is_told_once(tmp_path: Path) -> None:
    """Images of the other splits are not called skipped, and what concerns all splits is said for the first."""
    _folders(tmp_path / "D", _each(tmp_path))
    _write(tmp_path / "D" / "train" / "bee" / "notes.gif", b"GIF89a")
    ran = good("build", tmp_path / "D", "--max-bad", "1")
    lines = (ran.err + ran.out).splitlines()
    noted = [line for line in lines if line.startswith("note: ")]
    assert len(noted) == len(set(noted)) and sum("different classes" in line for line in noted) == 3
    packed = [line for line in lines if line.startswith("packed ")]
    assert packed[0].startswith("packed 4 images of 13 found (1 rejected, 8 not in this split): ")
    assert [line.partition(":")[0] for line in packed[1:]] == ["packed 4 images of 13 found (9 not in this split)"] * 2
    planned = [line for line in lines if line.startswith("plan: ")]
    assert all("not in this split" in line for line in planned) and not any("skipped" in line for line in lines)
