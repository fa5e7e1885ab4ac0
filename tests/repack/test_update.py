"""packer update: the pack has afterwards what a build of the source from nothing has, and nothing else is touched."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from drawn import draw, draw_classes, draw_landmarks, draw_plain, draw_voc, image_file, tree_state, voc_xml
from running import good, refused

import packer
import packer.packing.publish
import packer.packing.publish_version
import packer.repack.changed_files
import packer.repack.update
from packer import open_pack, update, verify
from packer.containers import CONTAINERS
from packer.errors import StorageError, TooManyBad, UsageError
from packer.format.content_by_path import content_digest_by_path, deep_digest_by_path
from packer.format.lists import KINDS, read_list
from packer.format.manifest import read_manifest
from packer.model.annotation import Progress
from packer.model.fields import FIELD_NAMES
from packer.packing import remembered
from packer.sources import walk

OF_INPUTS = ("found", "packed", "rejected", "skipped")


@pytest.fixture(autouse=True)
def own_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A state folder for each test, and a clock that is trusted: files are drawn just before they are packed."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(remembered, "MARGIN_NS", 0)


def built(source: Path, name: str = "p.lmdb", **options: Any) -> Path:
    """A pack beside its source, in several shards."""
    out = source.parent / name
    (summary,) = packer.build(source, out, workers=1, **{"shard_bytes": 20_000, **options})
    return Path(summary.path)


def content(pack: Path | str) -> dict[str, Any]:
    """Path of each record -> its bytes, shape, parts and labels, with the names of classes."""
    opened, found = open_pack(pack), {}
    names = opened.classes
    for number in range(len(opened)):
        annotation = opened.annotation(number)
        labels = {name: getattr(annotation, name) for name in FIELD_NAMES}
        labels["label"] = None if annotation.label is None else names[annotation.label]
        if annotation.box_labels is not None:
            labels["box_labels"] = [names[label] for label in annotation.box_labels]
        parts = {name: opened.reader.part(number, name) for name in opened.manifest.parts}
        path = opened.paths[number]
        assert path not in found
        found[path] = (bytes(opened.record(number)), opened.reader.shape_of(number), repr(labels), repr(parts))
    return found


def check_as_built(pack: Path | str, source: Path | str, **options: Any) -> None:
    """The pack is whole, and as a build of its source from nothing, also in what it rejects and skips."""
    home = Path(os.environ["XDG_STATE_HOME"]).parent / "again"
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir()
    if not isinstance(pack, Path):
        packer.pull(pack, home / "pulled")
        pack = home / "pulled"
    assert not verify(pack).problems
    container = read_manifest(pack).container
    (summary,) = packer.build(
        source, home / f"new.{container}", workers=1, max_bad="100%", **{"shard_bytes": 20_000, **options}
    )
    assert content(pack) == content(summary.path)
    assert by_path(pack) == by_path(summary.path)
    for name in KINDS:
        assert list(read_list(pack, name)) == list(read_list(summary.path, name)), name
    old, new = read_manifest(pack), summary.manifest
    assert {name: old.counts[name] for name in OF_INPUTS} == {name: new.counts[name] for name in OF_INPUTS}
    assert len({*open_pack(pack).keys}) == old.records


def by_path(pack: Path | str) -> tuple[str, str]:
    opened = open_pack(pack)
    return content_digest_by_path(opened.reader.indexes, opened.manifest), deep_digest_by_path(opened)


def is_as_before(pack: Path) -> bool:
    report = update(pack)
    return not report.is_changed and report.version is None


@pytest.mark.parametrize("container", CONTAINERS)
def test_new_changed_and_removed(container: str, tmp_path: Path) -> None:
    source = draw_classes(tmp_path / "src")
    pack = built(source, f"p.{container}", encode="jpeg" if container == "hdf5" else "copy")
    first = content(pack)
    draw(source / "bee" / "100.jpg", 100)
    draw(source / "bug" / "101.jpg", 101)  # a class between those that there are
    draw(source / "ant" / "001.jpg", 102, 50, 40)
    (source / "cat" / "004.jpg").unlink()
    report = update(pack)
    assert (report.version, report.new) == (2, ("bee/100.jpg", "bug/101.jpg"))
    assert (report.changed, report.removed) == (("ant/001.jpg",), ("cat/004.jpg",))
    assert read_manifest(pack).classes == ("ant", "bee", "cat", "bug")
    check_as_built(pack, source, encode="jpeg" if container == "hdf5" else "copy")
    assert content(f"{pack}@1") == first
    assert is_as_before(pack)


def test_nothing_to_do(tmp_path: Path) -> None:
    source = draw_classes(tmp_path / "src")
    pack = built(source)
    before = tree_state(pack)
    assert "nothing to do" in good("update", pack, source).out
    assert is_as_before(pack)
    assert tree_state(pack) == before


def test_a_dry_run_changes_nothing(tmp_path: Path) -> None:
    source = draw_classes(tmp_path / "src")
    pack = built(source)
    draw(source / "ant" / "100.jpg", 100)
    (source / "cat" / "004.jpg").unlink()
    before = tree_state(tmp_path)
    ran = good("update", pack, source, "--dry-run")
    assert "1 new, 1 removed" in ran.out and "new: ant/100.jpg" in ran.out and "removed: cat/004.jpg" in ran.out
    facts = json.loads(good("update", pack, source, "--dry-run", "--json").out)
    assert (facts["new"], facts["removed"], facts["version"]) == (["ant/100.jpg"], ["cat/004.jpg"], None)
    assert tree_state(tmp_path) == before


def test_the_source_is_only_read(tmp_path: Path) -> None:
    source = draw_classes(tmp_path / "src")
    pack = built(source)
    draw(source / "ant" / "100.jpg", 100)
    before = tree_state(source)
    update(pack)
    assert tree_state(source) == before


# -- how a changed image is found


@pytest.mark.parametrize("encode", ["copy", "raw"])
def test_other_bytes_of_the_same_size_and_time(encode: str, tmp_path: Path) -> None:
    """As `cp -p` leaves them: the time of the content is old, but not that of the metadata."""
    source = draw_plain(tmp_path / "src", 4, format="BMP")
    pack = built(source, encode=encode)
    target = source / "001.jpg"
    stat = target.stat()
    target.write_bytes(image_file(77, format="BMP"))
    os.utime(target, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert target.stat().st_size == stat.st_size
    report = update(pack)
    assert report.changed == ("001.jpg",)
    check_as_built(pack, source, encode=encode)


def test_a_touched_file_is_the_same(tmp_path: Path) -> None:
    source = draw_classes(tmp_path / "src")
    pack = built(source)
    os.utime(source / "ant" / "000.jpg")
    assert is_as_before(pack)


def test_only_files_whose_times_are_not_sure_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = draw_classes(tmp_path / "src")
    pack = built(source)
    os.utime(source / "ant" / "000.jpg")
    read: list[bytes] = []
    check = packer.repack.changed_files.SourceCheck
    digest = check._digest
    monkeypatch.setattr(check, "_digest", lambda self, path: read.append(path) or digest(self, path))
    update(pack)
    assert read == [b"ant/000.jpg"]
    update(pack)
    assert read == [b"ant/000.jpg"]  # now it is known
    update(pack, check="digest")
    assert len(read) == 1 + 15
    monkeypatch.setattr(remembered, "MARGIN_NS", 3_600_000_000_000)
    shutil.rmtree(Path(os.environ["XDG_STATE_HOME"]))
    update(pack, source)
    update(pack)  # nothing is sure that has changed within the margin
    assert len(read) == 1 + 3 * 15


def test_the_state_is_lost(tmp_path: Path) -> None:
    source = draw_voc(tmp_path / "src")
    pack = built(source)
    shutil.rmtree(tmp_path / "state")
    with pytest.raises(UsageError, match="its source is not known") as caught:
        update(pack)
    assert f"packer update {pack} SRC" in caught.value.next_step
    draw(source / "JPEGImages" / "003.jpg", 50)
    (source / "Annotations" / "002.xml").write_text(voc_xml("002.jpg", [("dog", 1, 1, 9, 9)]))
    report = update(pack, source)
    assert report.changed == ("JPEGImages/002.jpg", "JPEGImages/003.jpg")
    check_as_built(pack, source)
    assert is_as_before(pack)


def test_a_damaged_state_is_as_none(tmp_path: Path) -> None:
    source = draw_classes(tmp_path / "src")
    pack = built(source)
    (file,) = (tmp_path / "state" / "packer" / "sources").glob("*.json")
    file.write_text("{")
    with pytest.raises(UsageError, match="its source is not known"):
        update(pack)
    assert not update(pack, source).is_changed


def test_a_state_that_cannot_be_written_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    source = draw_classes(tmp_path / "src")
    pack = built(source)
    assert not update(pack, source).is_changed


def test_few_files_are_kept_in_the_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remembered, "MOST_FILES", 2)
    for number in range(4):
        built(draw_plain(tmp_path / str(number), number + 1), f"{number}.lmdb")
    assert len(list((tmp_path / "state" / "packer" / "sources").glob("*.json"))) == 2


def test_a_copy_of_the_source_elsewhere(tmp_path: Path) -> None:
    source = draw_classes(tmp_path / "src")
    pack = built(source)
    moved = tmp_path / "moved"
    shutil.copytree(source, moved)
    draw(moved / "ant" / "000.jpg", 99)
    assert update(pack, moved).changed == ("ant/000.jpg",)
    check_as_built(pack, moved)


def swap(source: Path) -> None:
    (source / "ant").rename(source / "x")
    (source / "bee").rename(source / "ant")
    (source / "x").rename(source / "bee")


def swap_above(source: Path) -> None:
    source.rename(source.parent / "old")
    shutil.copytree(source.parent / "old", source)
    draw(source / "ant" / "000.jpg", 99)


def move_over(source: Path) -> None:
    (source / "ant" / "000.jpg").replace(source / "bee" / "000.jpg")


def link_over(source: Path) -> None:
    target = source / "bee" / "000.jpg"
    target.unlink()
    target.symlink_to(source / "ant" / "001.jpg")


@pytest.mark.parametrize("remembers", ["folders", "no folders"])
@pytest.mark.parametrize("change", [swap, swap_above, move_over, link_over])
def test_other_files_under_the_same_names(
    change: Callable[[Path], None], remembers: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files that were moved with their folder keep all their times."""
    if remembers == "no folders":
        monkeypatch.setattr(remembered, "MOST_FOLDERS", 0)
    source = tmp_path / "src"
    for c, name in enumerate(("ant", "bee", "cat")):
        for i in range(3):
            draw(source / name / f"{i:03d}.jpg", 10 * c + i)
    pack = built(source)
    change(source)
    assert update(pack).changed
    check_as_built(pack, source)
    assert is_as_before(pack)


def test_a_link_to_a_folder_leads_elsewhere(tmp_path: Path) -> None:
    draw_classes(tmp_path / "src")
    for i, name in enumerate(("one", "two")):
        draw(tmp_path / name / "0.jpg", 20 + i)
    link = tmp_path / "src" / "dog"
    link.symlink_to(tmp_path / "one")
    pack = built(tmp_path / "src", follow_links=True)
    link.unlink()
    link.symlink_to(tmp_path / "two")
    assert update(pack).changed == ("dog/0.jpg",)
    check_as_built(pack, tmp_path / "src", follow_links=True)


@pytest.mark.parametrize("extension", ["zip", "tar", "tar.gz"])
def test_an_archive(extension: str, tmp_path: Path) -> None:
    source = draw_classes(tmp_path / "src")
    form = {"zip": "zip", "tar": "tar", "tar.gz": "gztar"}[extension]
    archive = Path(shutil.make_archive(str(tmp_path / "set"), form, source))
    pack = built(archive)
    assert is_as_before(pack)
    draw(source / "ant" / "100.jpg", 100)
    draw(source / "bee" / "001.jpg", 101)
    (source / "cat" / "000.jpg").unlink()
    archive.unlink()
    shutil.make_archive(str(tmp_path / "set"), form, source)
    report = update(pack)
    assert (report.new, report.changed, report.removed) == (("ant/100.jpg",), ("bee/001.jpg",), ("cat/000.jpg",))
    check_as_built(pack, archive)
    assert is_as_before(pack)


# -- labels


def voc_changes(source: Path) -> None:
    (source / "Annotations" / "001.xml").write_text(voc_xml("001.jpg", [("fish", 1, 1, 9, 9)]))
    (source / "Annotations" / "004.xml").unlink()
    (source / "JPEGImages" / "004.jpg").unlink()
    draw(source / "JPEGImages" / "100.jpg", 100)
    (source / "Annotations" / "100.xml").write_text(voc_xml("100.jpg", [("bird", 2, 2, 9, 9)]))
    (source / "Annotations" / "002.xml").unlink()  # its image has no label now


def draw_yolo(root: Path) -> Path:
    for i in range(6):
        draw(root / "images" / f"{i}.jpg", i)
        (root / "labels").mkdir(exist_ok=True)
        (root / "labels" / f"{i}.txt").write_text(f"{i % 2} 0.5 0.5 0.25 0.5\n")
    (root / "data.yaml").write_text("names: [ant, bee]\ntrain: images\n")
    return root


def yolo_changes(source: Path) -> None:
    (source / "labels" / "1.txt").write_text("0 0.5 0.5 0.5 0.5\n")
    (source / "data.yaml").write_text("names: [ant, wasp]\ntrain: images\n")


def draw_coco(root: Path) -> Path:
    draw_plain(root / "images", 6)
    write_coco(root, range(6))
    return root


def write_coco(root: Path, images: Any, width: int = 9) -> None:
    listed = [{"id": i, "file_name": f"{i:03d}.jpg", "width": 40, "height": 30} for i in images]
    boxes = [
        {"id": i, "image_id": i, "category_id": 1 + i % 2, "bbox": [1, 2, width if i == 2 else 9, 8], "area": 72,
         "iscrowd": 0}
        for i in images
    ]  # fmt: skip
    names = [{"id": 1, "name": "ant"}, {"id": 2, "name": "bee"}]
    (root / "all.json").write_text(json.dumps({"images": listed, "annotations": boxes, "categories": names}))


def coco_changes(source: Path) -> None:
    draw(source / "images" / "006.jpg", 6)
    (source / "images" / "000.jpg").unlink()
    write_coco(source, range(1, 7), width=20)


def list_changes(source: Path) -> None:
    lines = (source / "landmarks.txt").read_text().splitlines()
    lines[2] = lines[2].replace("20.0", "21.0")
    (source / "landmarks.txt").write_text("\n".join(lines[:-1]) + "\n")


def folder_changes(source: Path) -> None:
    shutil.rmtree(source / "bee")
    (source / "cat" / "000.jpg").rename(source / "ant" / "moved.jpg")
    (source / "notes.txt").write_text("of no concern")


LISTED = {"labels": "list:SRC/landmarks.txt", "columns": "path x*5 y*5"}
KINDS_OF_LABELS: dict[str, tuple[Callable[[Path], Path], Callable[[Path], None], dict[str, Any], int]] = {
    "folder": (draw_classes, folder_changes, {}, 6),
    "voc": (draw_voc, voc_changes, {"missing_labels": "skip"}, 2),
    "voc-empty": (draw_voc, voc_changes, {"missing_labels": "empty", "resize": "20x20"}, 1),
    "yolo": (draw_yolo, yolo_changes, {}, 0),
    "coco": (draw_coco, coco_changes, {}, 1),
    "list": (draw_landmarks, list_changes, LISTED, 1),
}


@pytest.mark.parametrize("remembers", [True, False])
@pytest.mark.parametrize("kind", KINDS_OF_LABELS)
def test_labels(kind: str, remembers: bool, tmp_path: Path) -> None:
    draw_kind, change, given, removed = KINDS_OF_LABELS[kind]
    source = draw_kind(tmp_path / "src")
    options = {n: v.replace("SRC", str(source)) if isinstance(v, str) else v for n, v in given.items()}
    pack = built(source, **options)
    if not remembers:
        shutil.rmtree(tmp_path / "state")
    change(source)
    report = update(pack, source, max_bad="10")
    assert report.version == 2 and len(report.removed) == removed
    check_as_built(pack, source, **options)
    assert is_as_before(pack)


# -- what a build rejects and skips


def test_rejected_inputs(tmp_path: Path) -> None:
    source = draw_classes(tmp_path / "src")
    (source / "ant" / "bad.jpg").write_bytes(b"\xff\xd8 no image")
    (source / "ant" / "worse.jpg").write_bytes(b"\xff\xd8 no image either")
    pack = built(source, max_bad=2)
    assert is_as_before(pack)
    draw(source / "ant" / "bad.jpg", 50)  # good now
    (source / "bee" / "001.jpg").write_bytes(b"\xff\xd8 torn")  # was good
    report = update(pack)  # as many as before
    assert (report.new, report.removed, report.rejected) == (("ant/bad.jpg",), ("bee/001.jpg",), 2)
    check_as_built(pack, source)
    (source / "bee" / "002.jpg").write_bytes(b"\xff\xd8 torn")
    before = content(pack)
    with pytest.raises(TooManyBad, match=r"3 of 17 inputs are bad, 2 allowed.*max_bad=.3"):
        update(pack)
    assert content(pack) == before and read_manifest(pack).counts["rejected"] == 2
    assert update(pack, max_bad="3").removed == ("bee/002.jpg",)
    check_as_built(pack, source)
    assert is_as_before(pack)


def test_an_image_that_only_its_pixels_show_to_be_bad(tmp_path: Path) -> None:
    source = draw_classes(tmp_path / "src")
    pack = built(source, encode="raw")
    whole = image_file(40, 60, 60)
    (source / "ant" / "torn.jpg").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(TooManyBad):
        update(pack)
    report = update(pack, max_bad="1")
    assert (report.version, report.shards, report.rejected) == (2, 0, 1)
    check_as_built(pack, source, encode="raw")
    assert is_as_before(pack)


def test_images_that_are_left_out(tmp_path: Path) -> None:
    source = draw_classes(tmp_path / "src")
    (tmp_path / "out.txt").write_text("ant/\n*9.jpg\n")
    pack = built(source, exclude=str(tmp_path / "out.txt"))
    draw(source / "ant" / "100.jpg", 100)
    draw(source / "bee" / "109.jpg", 109)
    draw(source / "bee" / "110.jpg", 110)
    assert update(pack).new == ("bee/110.jpg",)
    check_as_built(pack, source, exclude=str(tmp_path / "out.txt"))
    assert is_as_before(pack)


def test_nothing_is_left(tmp_path: Path) -> None:
    source = draw_plain(tmp_path / "src", 3)
    pack = built(source)
    for file in source.iterdir():
        file.write_bytes(b"\xff\xd8 torn")
    before = tree_state(pack)
    with pytest.raises(TooManyBad):
        update(pack, max_bad="3")
    assert tree_state(pack) == before


# -- options of the build, and what else was done to the pack


def test_the_options_of_the_build(tmp_path: Path) -> None:
    source = draw_classes(tmp_path / "src")
    options = {"resize": "16x16", "encode": "png", "map": ("bee=wasp",), "drop_class": ("cat",), "mode": "gray"}
    pack = built(source, **options)
    draw(source / "bee" / "100.jpg", 100)
    draw(source / "cat" / "100.jpg", 101)
    assert update(pack).new == ("bee/100.jpg",)
    check_as_built(pack, source, **options)


def test_a_split(tmp_path: Path) -> None:
    for split in ("train", "val"):
        draw_classes(tmp_path / "src" / split)
    packer.build(tmp_path / "src", tmp_path / "p.lmdb", workers=1)
    draw(tmp_path / "src" / "train" / "ant" / "100.jpg", 100)
    draw(tmp_path / "src" / "val" / "ant" / "101.jpg", 101)
    for split, new in (("train", "train/ant/100.jpg"), ("val", "val/ant/101.jpg")):
        pack = tmp_path / f"p-{split}.lmdb"
        assert update(pack).new == (new,)
        check_as_built(pack, tmp_path / "src", split=split)
        assert is_as_before(pack)


def test_masks(tmp_path: Path) -> None:
    from PIL import Image

    source = draw_plain(tmp_path / "src" / "images", 4).parent
    (source / "masks").mkdir()
    for i in range(4):
        Image.new("L", (40, 30), i).save(source / "masks" / f"{i:03d}.png")
    pack = built(source, mask="masks")
    assert is_as_before(pack)
    Image.new("L", (40, 30), 9).save(source / "masks" / "001.png")
    draw(source / "images" / "100.jpg", 100)
    Image.new("L", (40, 30), 5).save(source / "masks" / "100.png")
    report = update(pack)
    assert (report.new, report.changed) == (("images/100.jpg",), ("images/001.jpg",))
    check_as_built(pack, source, mask="masks")
    assert is_as_before(pack)


def test_after_edits(tmp_path: Path) -> None:
    """What was deleted stays deleted, and classes keep the names that they got."""
    source = draw_classes(tmp_path / "src")
    pack = built(source)
    (tmp_path / "gone.txt").write_text("ant/001.jpg\n")
    packer.edit(pack, delete=tmp_path / "gone.txt", map=("bee=wasp",))
    packer.edit(pack, delete=[0])
    draw(source / "bee" / "100.jpg", 100)
    os.utime(source / "ant" / "000.jpg")
    assert (update(pack).new, read_manifest(pack).records) == (("bee/100.jpg",), 14)
    found = content(pack)
    assert "ant/001.jpg" not in found and "ant/000.jpg" not in found
    assert "'label': 'wasp'" in found["bee/100.jpg"][2]
    shutil.rmtree(tmp_path / "state")
    assert not update(pack, source).is_changed
    assert [one.number for one in packer.versions_of(pack)] == [1, 2, 3, 4]


def test_fields_that_an_edit_gave(tmp_path: Path) -> None:
    """They stay in records of images that are as they were, also where all labels are read again."""
    source = draw_voc(tmp_path / "src")
    pack = built(source)
    (tmp_path / "some.txt").write_text("JPEGImages/001.jpg\nJPEGImages/002.jpg\n")
    packer.edit(pack, set=[("split=val", tmp_path / "some.txt")])
    shutil.rmtree(tmp_path / "state")
    draw(source / "JPEGImages" / "002.jpg", 50)
    report = update(pack, source)
    assert report.changed == ("JPEGImages/002.jpg",)
    assert any("packer edit --set" in note for note in report.notes)
    found = content(pack)
    assert "'split': 'val'" in found["JPEGImages/001.jpg"][2] and "split" not in found["JPEGImages/002.jpg"][2]
    assert is_as_before(pack)


def test_packs_that_were_not_built(tmp_path: Path) -> None:
    source = draw_classes(tmp_path / "src")
    pack, other = built(source), built(source, "other.lmdb")
    packer.merge([pack, other], tmp_path / "merged.lmdb")
    with pytest.raises(UsageError, match="was made by packer merge"):
        update(tmp_path / "merged.lmdb", source)
    packer.edit(pack, tmp_path / "edited.lmdb", labels_from=other)
    with pytest.raises(UsageError, match="has the labels of another pack, other"):
        update(tmp_path / "edited.lmdb", source)
    with pytest.raises(UsageError, match="stays as it is"):
        packer.edit(pack, delete=[0])
        update(f"{pack}@1", source)
    with pytest.raises(UsageError, match="check: must be time or digest"):
        update(pack, check="size")


# -- interrupted


def test_a_failed_update_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = draw_classes(tmp_path / "src")
    pack = built(source)
    for i in range(30):
        draw(source / "ant" / f"{100 + i}.jpg", 100 + i)
    before = content(pack)
    with monkeypatch.context() as patched:
        added = packer.packing.publish.Output.add
        count: list[str] = []

        def failing(self: Any, name: str, result: Any) -> None:
            if count:
                raise StorageError(name, "no space left")
            count.append(name)
            added(self, name, result)

        patched.setattr(packer.packing.publish.Output, "add", failing)
        with pytest.raises(StorageError):
            update(pack)
    assert content(pack) == before and os.path.isdir(pack / "versions" / "update.partial")
    notes: list[str] = []
    progress = Progress()
    progress.note = notes.append  # type: ignore[method-assign]
    assert len(update(pack, progress=progress).new) == 30
    assert any("1 finished shard kept" in note for note in notes)
    check_as_built(pack, source)
    assert sorted(os.listdir(pack / "versions")) in (["1", "2"], [".lock", "1", "2"])


@pytest.mark.parametrize("point", ["publish", "_commit", "discard"])
def test_a_death_at_the_end(point: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = draw_classes(tmp_path / "src")
    pack = built(source)
    draw(source / "ant" / "100.jpg", 100)
    home = packer.packing.publish.Output if point == "discard" else packer.packing.publish_version.NextVersion

    def dying(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(home, point, dying)
        with pytest.raises(KeyboardInterrupt):
            update(pack)
    update(pack)
    check_as_built(pack, source)
    assert is_as_before(pack)


# -- what is attached


def test_what_is_attached(tmp_path: Path) -> None:
    """It stays with the records; if there are new ones, nothing is known of these, which is said."""
    source = draw_classes(tmp_path / "src")
    pack = built(source)
    np.save(tmp_path / "score.npy", np.arange(15, dtype=np.float32))
    packer.attach(pack, tmp_path / "score.npy", "score")
    (source / "ant" / "000.jpg").unlink()
    assert not update(pack).notes
    assert [float(open_pack(pack).part(row, "score")) for row in range(3)] == [1, 2, 3]
    draw(source / "ant" / "100.jpg", 100)
    assert any("attach" in note for note in update(pack).notes)
    assert not verify(pack).problems and not verify(f"{pack}@2").problems
    assert [float(open_pack(f"{pack}@2").part(row, "score")) for row in range(3)] == [1, 2, 3]


# -- dead bytes


@pytest.mark.parametrize("container", CONTAINERS)
def test_compact(container: str, tmp_path: Path) -> None:
    """Twice a shard loses a fifth of its bytes or less; the second time, more than that is dead."""
    source = draw_classes(tmp_path / "src")
    pack = built(source, f"p.{container}", shard_bytes=1 << 20)
    first = content(pack)
    for number, compacted in ((0, 0), (1, 1)):
        for folder in ("ant", "bee"):
            (source / folder / f"00{number}.jpg").unlink()
        assert update(pack, source, dry_run=True).compacted == compacted
        assert update(pack).compacted == compacted
        check_as_built(pack, source)
    (shard,) = read_manifest(pack).shards
    before = read_manifest(f"{pack}@1").shards[0]
    assert ".v3." in shard.container.name and shard.container.bytes <= before.container.bytes
    assert not read_manifest(pack).linked
    assert content(f"{pack}@1") == first and not verify(f"{pack}@2").problems
    assert is_as_before(pack)


def test_nothing_is_compacted_unless_it_should_be(tmp_path: Path) -> None:
    source = draw_classes(tmp_path / "src")
    pack = built(source)
    shutil.rmtree(source / "bee")
    assert update(pack, compact="never").compacted == 0
    with pytest.raises(UsageError, match="must be a percentage such as 20%, or never, got 20"):
        update(pack, compact="20")


def test_a_shuffled_pack(tmp_path: Path) -> None:
    source = draw_classes(tmp_path / "src", each=9)
    pack = built(source, shuffle=3, shard_bytes=1 << 20)
    shutil.rmtree(source / "bee")
    draw(source / "cat" / "100.jpg", 100)
    assert update(pack).compacted == 1
    check_as_built(pack, source, shuffle=3)


# -- object stores


def test_from_and_to_a_store(tmp_path: Path) -> None:
    source = draw_voc(tmp_path / "bucket" / "src")
    url, home = f"file://{tmp_path}/bucket/p.lmdb", f"file://{tmp_path}/bucket/src"
    packer.build(home, url, workers=1, shard_bytes=20_000)
    assert not update(url).is_changed
    before = {path.name: path.read_bytes() for path in (tmp_path / "bucket" / "p.lmdb").iterdir() if path.is_file()}
    voc_changes(source)
    (source / "Annotations" / "002.xml").write_text(voc_xml("002.jpg", [("dog", 2, 2, 9, 9)]))
    report = update(url)
    assert report.version is None and report.new == ("JPEGImages/100.jpg",) and len(report.changed) == 2
    check_as_built(url, source)
    after = {path.name: path.read_bytes() for path in (tmp_path / "bucket" / "p.lmdb").iterdir() if path.is_file()}
    replaced = {"pack.json", "sidecars.json", "sidecar.fingerprint.npy"}  # all else is there for those who read it
    assert {name for name in before if after.get(name) != before[name]} == replaced
    assert not update(url).is_changed
    shutil.rmtree(tmp_path / "state")
    assert not update(url, home).is_changed
    assert "nothing to do" in good("update", url, home, "--scratch", tmp_path).out


def test_a_pack_at_a_url_that_is_changed_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = draw_classes(tmp_path / "src")
    url = f"file://{tmp_path}/bucket/p.lmdb"
    packer.build(source, url, workers=1)
    draw(source / "ant" / "100.jpg", 100)
    (tmp_path / "elsewhere").mkdir()
    pack_shards = packer.repack.update.pack_shards

    def meanwhile(*given: Any) -> Any:
        with monkeypatch.context() as patched:
            patched.setattr(packer.repack.update, "pack_shards", pack_shards)
            draw(source / "ant" / "101.jpg", 101)
            update(url, scratch=str(tmp_path / "elsewhere"))
        return pack_shards(*given)

    monkeypatch.setattr(packer.repack.update, "pack_shards", meanwhile)
    with pytest.raises(UsageError, match="another build has published a pack there meanwhile"):
        update(url)
    check_as_built(url, source)


def test_errors_on_the_command_line(tmp_path: Path) -> None:
    source = draw_classes(tmp_path / "src")
    pack = built(source)
    assert "no such folder" in refused(2, "update", pack, tmp_path / "none")
    assert "is not a pack" in refused(2, "update", source, source)


@pytest.mark.parametrize("what", ["folder", "file"])
def test_what_cannot_be_read_is_not_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    source = draw_classes(tmp_path / "src")
    pack = built(source)
    before, facts_in = tree_state(pack), walk._facts_in

    def fails(folder: bytes) -> Any:
        if folder != os.fsencode(source / "bee"):
            return facts_in(folder)
        if what == "folder":
            raise OSError(errno.EIO, os.strerror(errno.EIO), folder)
        found, failed = facts_in(folder)
        return found[1:], [*failed, (found[0][0], "unreadable: Input/output error")]

    with monkeypatch.context() as patched:
        patched.setattr(walk, "_facts_in", fails)
        with pytest.raises(
            StorageError, match=r"src/bee.*: cannot be read \(unreadable: Input/output error\); make it"
        ):
            update(pack, max_bad="9")
    assert tree_state(pack) == before
    assert not update(pack).is_changed
