"""Labels edited and records deleted: what a build with the same options gives, and no image is opened."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from drawn import draw, draw_classes, draw_objects, draw_plain, draw_voc, tree_state, voc_xml
from drawn_masks import draw_mask, image_of, picture, write_files
from packs import MakePack
from running import good, refused

from packer import adopt, diff, edit, merge, open_pack
from packer.containers import CONTAINERS
from packer.errors import DamagedPack, StorageError, UsageError
from packer.format.content import content_digest
from packer.format.lists import read_list
from packer.format.manifest import read_manifest
from packer.format.verify import verify
from packer.system import share_file

WATCHED: list[Any] = []
"""The names that are looked for, and those that were opened."""


def _note(event: str, args: tuple[Any, ...]) -> None:
    if event == "open" and WATCHED and os.path.basename(os.fsdecode(str(args[0]))) in WATCHED[0]:
        WATCHED[1].append(args[0])


@contextmanager
def no_image_is_opened(*packs: Path) -> Iterator[None]:
    """No file with images is opened meanwhile: neither those of these packs, nor the same under new names."""
    if not hasattr(_note, "is_hooked"):
        sys.addaudithook(_note)
        _note.is_hooked = True  # type: ignore[attr-defined]
    names = {shard.container.name for pack in packs for shard in read_manifest(pack).shards}
    WATCHED[:] = [names, []]
    try:
        yield
        opened = WATCHED[1]
    finally:
        WATCHED.clear()
    assert not opened


def built(folder: Path, source: Path, name: str, *given: Any) -> Path:
    good("build", source, "-o", folder / name, *given)
    return folder / name


def digest(pack: Path) -> str:
    opened = open_pack(pack)
    return content_digest(opened.reader.indexes, opened.manifest)


def listed(pack: Path, name: str = "skipped") -> list[tuple[str, str]]:
    return [(row.path, row.reason) for row in read_list(pack, name)]


def voc(root: Path) -> Path:
    """Boxes of classes that no file lists, so that their ids follow from their names."""
    for number, names in enumerate((("bird", "dog"), ("dog",), ("cow", "bird", "cow"), (), ("cow",))):
        draw(root / f"JPEGImages/{number}.jpg", number)
        boxes = [(name, 3 + 4 * place, 2, 12 + 4 * place, 20) for place, name in enumerate(names)]
        (root / "Annotations").mkdir(exist_ok=True)
        (root / f"Annotations/{number}.xml").write_text(voc_xml(f"{number}.jpg", boxes))
    return root


def coco(root: Path) -> Path:
    draw_plain(root, 4)
    names = ("owl", "ant", "cat")  # in this order, which is not that of the names
    objects = [
        {"id": 7 * i + k, "image_id": i, "category_id": (i + k) % 3, "bbox": [2 + k, 3, 9, 8], "iscrowd": 0, "area": 72}
        for i in range(4)
        for k in range(i)
    ]
    images = [{"id": i, "file_name": f"{i:03d}.jpg", "width": 40, "height": 30} for i in range(4)]
    categories = [{"id": number, "name": name} for number, name in enumerate(names)]
    (root / "labels.json").write_text(json.dumps({"images": images, "annotations": objects, "categories": categories}))
    return root


SETS: dict[str, tuple[Callable[[Path], Any], tuple[str, ...]]] = {
    "voc": (voc, ("bird", "cow", "dog")),
    "coco": (coco, ("owl", "ant", "cat")),
    "folder": (draw_classes, ("ant", "bee", "cat")),
}
"""Name -> what draws a set, and its classes in the order of their ids."""


@pytest.mark.parametrize(
    ("name", "container"), [*(("voc", one) for one in CONTAINERS), ("coco", "lmdb"), ("folder", "lmdb")]
)
def test_other_classes_are_those_of_a_build(tmp_path: Path, name: str, container: str) -> None:
    draw_set, (first, second, third) = SETS[name]
    draw_set(tmp_path / "src")
    given = ("--format", container, "--shard-size", "3KB")
    pack = built(tmp_path, tmp_path / "src", "p", *given)
    for number, asked in enumerate(((f"{first}=zebra",), (f"{third}={second}", f"{first}=zebra"), (f"{second}=a",))):
        options = [word for text in asked for word in ("--map", text)]
        wanted = built(tmp_path, tmp_path / "src", f"b{number}", *given, *options)
        before = tree_state(pack)
        with no_image_is_opened(pack):
            report = edit(pack, tmp_path / f"e{number}", map=asked)
        assert report.manifest.classes == read_manifest(wanted).classes
        assert report.manifest.class_counts == read_manifest(wanted).class_counts
        assert digest(tmp_path / f"e{number}") == digest(wanted) != digest(pack)
        assert diff(tmp_path / f"e{number}", wanted).equal and tree_state(pack) == before
        assert not verify(tmp_path / f"e{number}", deep=True).problems
        there = Path(shutil.copytree(pack, tmp_path / f"v{number}"))
        with no_image_is_opened(pack):
            edit(there, map=asked)
        assert digest(there) == digest(wanted) and digest(f"{there}@1") == digest(pack)


@pytest.mark.parametrize("policy", ["skip", "empty"])
@pytest.mark.parametrize("container", CONTAINERS)
def test_dropped_classes_are_those_of_a_build(tmp_path: Path, container: str, policy: str) -> None:
    given = ("--format", container, "--shard-size", "3KB")
    asked = ("--map", "cow=zebra", "--drop-class", "dog", "--missing-labels", policy)
    pack = built(tmp_path, voc(tmp_path / "src"), "p", *given)
    wanted = built(tmp_path, tmp_path / "src", "wanted", *given, *asked)
    with no_image_is_opened(pack):
        told = json.loads(good("edit", pack, "-o", tmp_path / "e", *asked, "--json").out)
    assert diff(tmp_path / "e", wanted).equal and listed(tmp_path / "e") == listed(wanted)
    made, by_build = read_manifest(tmp_path / "e"), read_manifest(wanted)
    assert (made.classes, made.fields) == (by_build.classes, by_build.fields) == (("bird", "zebra"), by_build.fields)
    assert {n: made.counts[n] for n in ("found", "packed", "skipped", "boxes")} == {
        n: by_build.counts[n] for n in ("found", "packed", "skipped", "boxes")
    }
    assert told["left_out"] == (policy == "skip") and told["records"] == made.records
    assert [(one["name"], one["becomes"], one["labels"]) for one in told["class_changes"]] == [
        ("cow", "zebra", 3), ("dog", None, 2),
    ]  # fmt: skip
    assert not verify(tmp_path / "e", deep=True).problems
    if policy == "empty":  # no record is left out, and so all keys are the same
        assert digest(tmp_path / "e") == digest(wanted)
    assert "--drop-class dog" in good("info", tmp_path / "e", "--command").out
    good("build", tmp_path / "src", "--like", tmp_path / "e", "-o", tmp_path / "again")
    assert diff(tmp_path / "again", wanted).equal


@pytest.mark.parametrize("container", CONTAINERS)
def test_records_are_deleted(tmp_path: Path, container: str) -> None:
    pack = built(tmp_path, draw_classes(tmp_path / "src"), "p", "--format", container, "--shard-size", "3KB")
    key = open_pack(pack).key(9)
    lines = ("path\treason", "ant/001.jpg\twrong label", f"{key}\tmarked", "cat/*\tmarked", "gone.jpg\tmarked")
    (tmp_path / "marks.tsv").write_text("".join(line + "\n" for line in lines))
    with no_image_is_opened(pack):
        ran = good("edit", pack, "-o", tmp_path / "e", "--delete", tmp_path / "marks.tsv")
    assert 'note: marks.tsv: 1 line names no image, for example line 5: "gone.jpg"' in ran.out
    assert "8 records, 7 deleted; 3 classes" in ran.out
    good("convert", pack, tmp_path / "wanted", "--exclude", tmp_path / "marks.tsv", "--format", container)
    assert digest(tmp_path / "e") == digest(tmp_path / "wanted")
    kept = open_pack(tmp_path / "e").paths
    assert [path for path, _ in listed(tmp_path / "e")] == [path for path in open_pack(pack).paths if path not in kept]
    assert not verify(tmp_path / "e", deep=True).problems
    line = good("info", tmp_path / "e", "--command").out
    assert line == f"packer edit p --delete {tmp_path}/e/exclude.txt -o {tmp_path}/e\n"
    # what is deleted stays so in a build with the same options, and in an edit of the new pack
    good("build", tmp_path / "src", "--like", tmp_path / "e", "-o", tmp_path / "again")
    assert diff(tmp_path / "again", tmp_path / "e").equal
    edit(tmp_path / "e", tmp_path / "f", delete=[0])
    assert open_pack(tmp_path / "f").paths == open_pack(tmp_path / "e").paths[1:]
    assert len(listed(tmp_path / "f")) == 8


def test_only_what_differs_is_written(tmp_path: Path) -> None:
    pack = built(tmp_path, draw_classes(tmp_path / "src"), "p", "--shard-size", "3KB")
    shards = read_manifest(pack).shards
    assert len(shards) > 3
    assert edit(pack, tmp_path / "a", delete=[0]).indexes == 1
    assert edit(pack, tmp_path / "b", map=["ant=aunt"]).indexes == 0
    assert 1 < edit(pack, tmp_path / "c", map=["bee=ant"]).indexes < len(shards)  # some have only ants
    for name in "abc":
        made = read_manifest(tmp_path / name)
        for old, new in zip(shards, made.shards, strict=True):
            assert os.path.samefile(pack / old.container.name, tmp_path / name / new.container.name)
            assert new.container.sha256 == old.container.sha256
    shutil.rmtree(pack)
    assert not verify(tmp_path / "a", deep=True).problems


@pytest.mark.parametrize("container", CONTAINERS)
def test_labels_of_another_pack(tmp_path: Path, container: str) -> None:
    given = ("--format", container, "--shard-size", "3KB")
    source = voc(tmp_path / "src")
    pack = built(tmp_path, source, "p", *given)
    (source / "Annotations/1.xml").write_text(voc_xml("1.jpg", [("asp", 1, 2, 9, 9), ("dog", 3, 3, 20, 20)]))
    (source / "Annotations/4.xml").write_text(voc_xml("4.jpg", []))
    wanted = built(tmp_path, source, "new", *given)
    before = tree_state(pack), tree_state(wanted)
    with no_image_is_opened(pack, wanted):
        report = edit(pack, tmp_path / "e", labels_from=wanted)
    assert report.relabelled == 5 and report.manifest.classes == ("asp", "bird", "cow", "dog")
    assert digest(tmp_path / "e") == digest(wanted) != digest(pack)
    assert (tree_state(pack), tree_state(wanted)) == before
    assert not verify(tmp_path / "e", deep=True).problems
    assert good("info", tmp_path / "e", "--command").out == f"packer edit p --labels-from new -o {tmp_path}/e\n"
    edit(pack, tmp_path / "f", labels_from=wanted, map=["asp=zebra"], delete=[0])
    assert read_manifest(tmp_path / "f").classes == ("bird", "cow", "dog", "zebra")
    assert read_manifest(tmp_path / "f").class_counts == {"boxes": [1, 2, 1, 1]}


def test_labels_are_joined_by_path_and_digest(tmp_path: Path) -> None:
    pack = built(tmp_path, draw_classes(tmp_path / "a", ("ant", "bee"), 3), "p")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    (tmp_path / "b/cat").mkdir()
    (tmp_path / "b/ant/000.jpg").rename(tmp_path / "b/cat/x.jpg")  # the same file elsewhere
    other = built(tmp_path, tmp_path / "b", "q")
    edit(pack, tmp_path / "e", labels_from=other)
    made = open_pack(tmp_path / "e")
    assert [made.classes[made.annotation(i).label or 0] for i in range(6)] == ["cat", "ant", "ant", "bee", "bee", "bee"]
    # another image at the path of this one says nothing about it
    draw(tmp_path / "b/cat/x.jpg", 77)
    draw(tmp_path / "b/bee/001.jpg", 78)
    third = built(tmp_path, tmp_path / "b", "r")
    said = refused(2, "edit", pack, "-o", tmp_path / "f", "--labels-from", third)
    assert "has no record, or several, of the image ant/000.jpg" in said
    report = edit(pack, tmp_path / "f", labels_from=third, missing_labels="skip")
    assert (report.relabelled, report.left_out) == (4, 2)
    assert [path for path, _ in listed(tmp_path / "f")] == ["ant/000.jpg", "bee/001.jpg"]
    edit(pack, tmp_path / "g", labels_from=third, missing_labels="empty")
    assert [open_pack(tmp_path / "g").annotation(i).label for i in (0, 1, 4)] == [None, 0, None]


def test_boxes_of_images_of_another_size_do_not_fit(tmp_path: Path) -> None:
    pack = built(tmp_path, voc(tmp_path / "src"), "p")
    other = built(tmp_path, tmp_path / "src", "q", "--resize", "20x20")
    with pytest.raises(UsageError, match="boxes do not fit"):
        edit(pack, tmp_path / "e", labels_from=other)
    plain = built(tmp_path, draw_plain(tmp_path / "plain", 2), "r")
    with pytest.raises(UsageError, match="has no labels"):
        edit(pack, tmp_path / "e", labels_from=plain)
    assert not (tmp_path / "e").exists() and not (tmp_path / "e.partial").exists()


def test_extras_are_set(tmp_path: Path) -> None:
    pack = built(tmp_path, draw_classes(tmp_path / "src", ("ant", "bee"), 3), "p", "--shard-size", "3KB")
    (tmp_path / "some.txt").write_text("ant/*\nbee/001.jpg\n")
    (tmp_path / "one.txt").write_text("ant/001.jpg\n")
    asked = ("--set", "split=val", tmp_path / "some.txt", "--set", "times=3", tmp_path / "one.txt")
    with no_image_is_opened(pack):
        good("edit", pack, "-o", tmp_path / "e", *asked, "--map", "ant=bee")
    made = open_pack(tmp_path / "e")
    found = [dict(made.annotation(i).extras) for i in range(6)]
    assert found == [{"split": "val"}, {"split": "val", "times": 3}, {"split": "val"}, {}, {"split": "val"}, {}]
    assert "extras" in made.manifest.fields and made.manifest.classes == ("bee",)
    twice = [("split=null", tmp_path / "one.txt"), ("split=test", tmp_path / "one.txt")]
    edit(tmp_path / "e", tmp_path / "f", set=twice)
    assert dict(open_pack(tmp_path / "f").annotation(1).extras) == {"split": "test", "times": 3}
    gone = [("split=null", tmp_path / "some.txt"), ("times=null", tmp_path / "one.txt")]
    edit(tmp_path / "f", tmp_path / "g", set=gone)
    edit(pack, tmp_path / "h", map=["ant=bee"])
    assert digest(tmp_path / "g") == digest(tmp_path / "h")
    assert not verify(tmp_path / "e", deep=True).problems
    good("split", tmp_path / "e", "--parts", "a=0.5,b=0.5", "--group", "split")


def test_what_is_wrong_is_said_before_anything_is_written(tmp_path: Path) -> None:
    pack = built(tmp_path, voc(tmp_path / "src"), "p")
    (tmp_path / "none.txt").write_text("nothing.jpg\n")
    (tmp_path / "all.txt").write_text("*\n")
    out = ("-o", tmp_path / "e")
    assert "nothing is asked for" in refused(2, "edit", pack, *out)
    assert "none.txt: names no record" in refused(2, "edit", pack, *out, "--delete", tmp_path / "none.txt")
    assert "all.txt: leaves no record" in refused(2, "edit", pack, *out, "--delete", tmp_path / "all.txt")
    assert "no record nothing.jpg" in refused(2, "edit", pack, *out, "--set", "a=b", tmp_path / "none.txt")
    assert "not of the form NAME=VALUE" in refused(2, "edit", pack, *out, "--set", "a", tmp_path / "all.txt")
    assert "names the class cows, which no label has" in refused(2, "edit", pack, *out, "--map", "cows=x")
    assert "1.jpg: has only objects of dropped classes" in refused(2, "edit", pack, *out, "--drop-class", "dog")
    assert "names the record 5, of 5" in _said(lambda: edit(pack, tmp_path / "e", delete=[5]))
    assert "would replace" in refused(2, "edit", pack, "-o", pack, "--map", "cow=x", "--overwrite")
    assert sorted(os.listdir(tmp_path)) == ["all.txt", "none.txt", "p", "src"]


def _said(call: Callable[[], Any]) -> str:
    with pytest.raises(UsageError) as caught:
        call()
    return str(caught.value)


@pytest.mark.parametrize("container", CONTAINERS)
def test_files_of_other_tools_stay_where_they_are(tmp_path: Path, container: str) -> None:
    pack = built(tmp_path, draw_classes(tmp_path / "src", ("ant", "bee"), 3), "p", "--format", container)
    files = [pack / shard.container.name for shard in read_manifest(pack).shards]
    adopt(files, tmp_path / "theirs")
    with no_image_is_opened(tmp_path / "theirs"):
        report = edit(tmp_path / "theirs", tmp_path / "e", delete=[1])
    assert report.shards == {"in place": len(files)} and len(open_pack(tmp_path / "e")) == 5
    edit(tmp_path / "e", tmp_path / "f", delete=[0])
    assert not verify(tmp_path / "f", deep=True).problems
    with pytest.raises(UsageError, match="would replace"):
        edit(tmp_path / "theirs", pack, delete=[0], overwrite=True)


def test_a_merged_pack_loses_one_of_two_records_of_a_path(tmp_path: Path) -> None:
    packs = [built(tmp_path, draw_classes(tmp_path / "src", ("ant", "bee"), 2), name) for name in "pq"]
    merge(packs, tmp_path / "all")
    good("edit", tmp_path / "all", "-o", tmp_path / "e", "--problems", "duplicate")
    assert open_pack(tmp_path / "e").paths == open_pack(packs[0]).paths
    said = refused(2, "edit", tmp_path / "e", "-o", tmp_path / "f", "--problems", "duplicate")
    assert "--problems: finds no record with duplicate" in said
    assert "got duplicates; write --problems duplicate" in refused(
        2, "edit", packs[0], "-o", tmp_path / "f", "--problems", "duplicates"
    )
    (tmp_path / "one.txt").write_text("ant/000.jpg\n")
    both = ("--problems", "duplicate", "--delete", tmp_path / "one.txt")
    assert "--problems: excludes --delete" in refused(2, "edit", tmp_path / "all", "-o", tmp_path / "f", *both)


@pytest.mark.parametrize("kind", ["oriented", "boxes", "copy"])
def test_labels_of_all_kinds(make_pack: MakePack, tmp_path: Path, kind: str) -> None:
    """Every field comes along: oriented boxes, landmarks, box fields, labels that are missing."""
    pack = make_pack(kind)
    bare = built(tmp_path, pack.parent / "source", "bare", "--labels", "none", "--encode", "copy")
    other = built(tmp_path, pack.parent / "source", "other", "--like", pack, "--encode", "copy", "--shard-size", "none")
    assert diff(bare, other).labels.count == len(open_pack(bare)) > 2
    edit(bare, tmp_path / "e", labels_from=other)
    assert digest(tmp_path / "e") == digest(other) and diff(tmp_path / "e", other).equal
    assert read_manifest(tmp_path / "e").fields == read_manifest(other).fields
    assert read_manifest(tmp_path / "e").class_counts == read_manifest(other).class_counts
    assert not verify(tmp_path / "e", deep=True).problems


def test_a_disk_that_refuses_leaves_what_was_there(tmp_path: Path) -> None:
    pack = built(tmp_path, draw_classes(tmp_path / "src"), "p", "--shard-size", "3KB")
    edit(pack, tmp_path / "e", map=["ant=bee"])
    before = tree_state(tmp_path)
    for name, out in (("e", tmp_path / "e"), ("f", tmp_path / "f")):
        calls: list[str] = []

        def refuse(source: str, target: str, calls: list[str] = calls) -> str:
            calls.append(source)
            if len(calls) == 3:
                raise OSError(28, "No space left on device", target)
            return share_file(source, target)

        with mock.patch("packer.repack.links.share_file", refuse), pytest.raises(StorageError, match="No space left"):
            edit(pack, out, delete=[0], overwrite=True)
        assert len(calls) >= 3 and tree_state(tmp_path).keys() == before.keys(), name
    assert len(open_pack(tmp_path / "e")) == 15


def test_masks_keep_their_pixels(tmp_path: Path) -> None:
    files = {f"images/{i}.png": image_of(draw_mask(i)) for i in range(3)}
    files |= {f"masks/{i}.png": picture(draw_mask(i)) for i in range(3)}
    write_files(tmp_path / "src", {**files, "masks/class_names.txt": b"background\nroad\ncar\nbus\n"})
    pack = built(tmp_path, tmp_path / "src", "p")
    edit(pack, tmp_path / "e", map=["road=street"], delete=[1])
    made = open_pack(tmp_path / "e")
    assert made.manifest.masks["mask"].classes == ("background", "street", "car", "bus")
    assert [np.array_equal(made.mask(i), draw_mask(2 * i)) for i in range(2)] == [True, True]
    (tmp_path / "labels.csv").write_text("".join(f"{i}.png,{'xy'[i % 2]}\n" for i in range(3)))
    labels = ("--labels", f"list:{tmp_path / 'labels.csv'}", "--columns", "path label")
    other = built(tmp_path, tmp_path / "src/images", "q", *labels)
    edit(pack, tmp_path / "g", labels_from=other)
    made = open_pack(tmp_path / "g")
    assert [np.array_equal(made.mask(i), draw_mask(i)) for i in range(3)] == [True] * 3
    assert [made.classes[made.annotation(i).label or 0] for i in range(3)] == ["x", "y", "x"]
    assert made.manifest.masks["mask"].classes == ("background", "road", "car", "bus")
    assert not verify(tmp_path / "g", deep=True).problems
    said = refused(2, "edit", pack, "-o", tmp_path / "f", "--drop-class", "road")
    assert "has masks, whose pixels an edit does not change; convert it" in said


def test_a_damaged_index_is_found(tmp_path: Path) -> None:
    pack = built(tmp_path, draw_objects(tmp_path / "src"), "p")
    index = pack / read_manifest(pack).shards[0].index.name
    data = bytearray(index.read_bytes())
    data[len(data) // 2] ^= 1
    index.write_bytes(data)
    with pytest.raises(DamagedPack):
        edit(pack, tmp_path / "e", delete=[0])
    assert not (tmp_path / "e").exists()


def test_overwriting_takes_asking(tmp_path: Path) -> None:
    pack = built(tmp_path, draw_voc(tmp_path / "src"), "p")
    edit(pack, tmp_path / "e", map=["dog=hound"])
    with pytest.raises(UsageError, match="exists"):
        edit(pack, tmp_path / "e", delete=[0])
    assert len(open_pack(tmp_path / "e")) == 8
    edit(pack, tmp_path / "e", delete=[0], overwrite=True)
    assert len(open_pack(tmp_path / "e")) == 7
