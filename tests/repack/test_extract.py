"""Packs extracted: the files of the source again, and labels that a build reads to an equal pack."""

from __future__ import annotations

import json
import os
import shlex
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from drawn import draw, draw_classes, draw_plain, draw_voc, tree_state
from packs import MakePack, noise
from running import good, refused, run

from packer import BuildOptions, PackWriter, build_pack, extract, merge, open_pack
from packer.errors import UsageError
from packer.repack.extract import ExtractOptions, Names, safe
from packer.repack.layouts import LAYOUTS


def build(source: Path, out: Path, **options: Any) -> Path:
    build_pack(BuildOptions(str(source), str(out), workers=1, **{"encode": "copy", **options}))
    return out


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def facts(pack: Path, without: frozenset[str] = frozenset()) -> dict[bytes, Any]:
    """By name of the image: its pixels and its annotation, with names for class ids."""
    opened = open_pack(pack)
    found = {}
    for i in range(len(opened)):
        a = opened.annotation(i)
        label = None if a.label is None else opened.classes[a.label]
        boxes = None if a.boxes is None else a.boxes.tolist()
        names = None if a.box_labels is None else [opened.classes[c] for c in a.box_labels.tolist()]
        polygons = None if a.polygons is None else [p.tolist() for p in a.polygons]
        rest = {
            name: None if (v := getattr(a, name)) is None else v.tolist() for name in ("landmarks", "keypoints", "tags")
        }
        fields = {f"box_fields.{k}": v for k, v in a.box_fields.items()} | {
            f"extras.{k}": v for k, v in a.extras.items()
        }
        every = {"label": label, "boxes": boxes, "names": names, "polygons": polygons, **rest, **fields}
        name = os.path.splitext(opened.paths[i].rpartition("/")[2])[0]
        kept = {k: v for k, v in every.items() if k not in without and (v or "." not in k)}
        found[name] = (opened.image(i).shape, opened.image(i).tobytes(), kept)
    return found


def again(report: Any, out: Path, *more: str) -> Path:
    """The folder packed again, by the command that the report gives."""
    good(*report.build[1:], "-o", out, *more)
    return out


def test_class_folders_come_back_byte_for_byte(tmp_path: Path) -> None:
    source = draw_classes(tmp_path / "src", ("zebra", "ant", "ümlaut"), 3)
    (source / "empty").mkdir()
    os.rename(source / "ant" / "000.jpg", os.fsencode(source / "ant") + b"/odd \xff \\ name.jpg")
    pack = build(source, tmp_path / "p.lmdb")
    (tmp_path / "order.txt").write_text("zebra\nant\nempty\nümlaut\n")
    ordered = build(source, tmp_path / "q.lmdb", classes=str(tmp_path / "order.txt"))
    for one in (pack, ordered):
        out = tmp_path / f"{one.name}-out"
        report = extract(one, out)
        assert (report.images, report.renamed, report.lost) == (9, 0, {})
        found = files_of(out)
        assert found.pop("classes.txt").decode().split() == open_pack(one).classes
        found.pop(".packer-extract.json")
        assert found == files_of(source) and (out / "empty").is_dir()
        new = again(report, tmp_path / f"{one.name}-again")
        assert open_pack(new).classes == open_pack(one).classes and open_pack(new).paths == open_pack(one).paths
        assert open_pack(new).manifest.class_counts == open_pack(one).manifest.class_counts
        assert facts(new) == facts(one)


@pytest.mark.parametrize("kind", ["raw", "jpeg", "gray16"])
def test_stored_images(make_pack: MakePack, tmp_path: Path, kind: str) -> None:
    """Raw pixels become PNG, and encoded images stay what they are; the extension is that of the format."""
    pack = make_pack(kind, "hdf5")
    report = extract(pack, tmp_path / "out")
    end = ".jpg" if kind == "jpeg" else ".png"
    images = {name: data for name, data in files_of(tmp_path / "out").items() if name.endswith(end)}
    assert len(images) == 24 and report.renamed == (24 if kind == "jpeg" else 0)
    if kind == "jpeg":
        opened = open_pack(pack)
        assert [images[os.fsdecode(path)[:-4] + end] for path in opened.paths] == [
            bytes(opened.record(i)) for i in range(24)
        ]
    assert facts(again(report, tmp_path / "again.lmdb")) == facts(pack)


def voc_pack(tmp_path: Path, difficult: int = 1) -> Path:
    source = draw_voc(tmp_path / "voc", 7)
    for file in (source / "Annotations").iterdir():
        text = file.read_text().replace("<xmax>12.0", "<xmax>12.3")
        file.write_text(text.replace("<difficult>0", f"<pose>Left &amp; up</pose><difficult>{difficult}"))
    return build(source, tmp_path / "voc.lmdb")


ORIGINALS = frozenset(("box_fields.voc_bndbox", "box_fields.category_id", "box_fields.area", "extras.image_id"))
"""What a layout adds or leaves out without a word: the numbers of its own files."""


FLAGS = frozenset(("box_fields.iscrowd", "box_fields.difficult", "box_fields.ignore"))
"""Those of ignored regions: a layout has one of them."""


@pytest.mark.parametrize(
    ("layout", "lost"),
    [
        ("voc", set()),
        ("yolo", {"truncated", "occluded", "pose", "voc_bndbox"}),
        ("coco", {"difficult, but as ignore", "truncated", "occluded", "pose"}),
        ("list", {"pose"}),
    ],
)
def test_boxes(tmp_path: Path, layout: str, lost: set[str]) -> None:
    pack = voc_pack(tmp_path, difficult=int(layout != "yolo"))
    report = extract(pack, tmp_path / "out", layout)
    assert set(report.lost) == {f"box_fields.{name}" for name in lost}
    new = again(report, tmp_path / "again.lmdb")
    without = ORIGINALS | frozenset(report.lost) | (frozenset() if layout in ("voc", "list") else FLAGS)
    assert facts(new, without) == facts(pack, without) and open_pack(new).classes == open_pack(pack).classes
    if layout == "voc":
        assert facts(new) == facts(pack) and open_pack(new).paths == open_pack(pack).paths


PLACES = [[1, 1, 9, 9], [2, 2, 14, 12], [10, 4, 20, 16], [3, 3, 8, 12]]
MARKS: list[dict[str, tuple[int, ...]]] = [
    {"iscrowd": (0, 1, 0, 0), "ignore": (0, 0, 0, 1)}, {"difficult": (1, 0, 0, 0), "ignore": (0, 0, 1, 0)}, {},
    {"ignore": (1, 1, 1, 1)},
]  # fmt: skip


def marked_pack(path: Path, **more: Any) -> Path:
    """Four boxes in each image, some of them ignored regions; the last is of the class of such without one."""
    with PackWriter(path, classes=["cat", "dog", "__ignore__"]) as writer:
        for i, fields in enumerate(MARKS):
            labels = [0, 1, 0, 2 if i in (0, 3) else 1]
            writer.write(noise(i, 18, 22), boxes=PLACES, box_labels=labels, box_fields=fields, **more)
    return path


@pytest.mark.parametrize("layout", ["voc", "coco", "list", "dota"])
def test_ignored_regions_stay_what_they_are(tmp_path: Path, layout: str) -> None:
    pack = marked_pack(tmp_path / "p.lmdb")
    report = extract(pack, tmp_path / "out", layout)
    one_flag = {"voc": "difficult", "dota": "difficult", "coco": "ignore", "list": ""}[layout]
    others = {"iscrowd", "ignore", "difficult"} - {one_flag} - ({"iscrowd"} if layout == "coco" else set())
    assert set(report.lost) == {f"box_fields.{name}, but as {one_flag}" for name in others if one_flag}
    new = again(report, tmp_path / "again.lmdb")
    found, wanted = ([o.annotation(i).ignored.tolist() for i in range(4)] for o in (open_pack(new), open_pack(pack)))
    assert found == wanted == [[False, True, False, True], [True, False, True, False], [False] * 4, [True] * 4]


@pytest.mark.parametrize("what", ["boxes", "corners", "polygons"])
def test_ignored_regions_are_left_out_of_yolo(tmp_path: Path, what: str) -> None:
    """A trainer would learn them; Ultralytics' converters of VOC and COCO leave them out, too."""
    rings = [[[x1, y1], [x2, y1], [x2, y2], [x1, y2]] for x1, y1, x2, y2 in PLACES]
    more = {"boxes": {}, "corners": {"obb": rings}, "polygons": {"polygons": rings}}[what]
    report = extract(marked_pack(tmp_path / "p.lmdb", **more), tmp_path / "out", "yolo")
    assert report.lost == {"ignored regions, which are left out": 8}
    files = sorted((tmp_path / "out" / "labels").iterdir())
    assert [[int(line.split()[0]) for line in file.read_text().splitlines()] for file in files] == [
        [0, 0], [1, 1], [0, 1, 0, 1], [],
    ]  # fmt: skip
    assert "__ignore__" not in (tmp_path / "out" / "data.yaml").read_text()
    new = open_pack(again(report, tmp_path / "again.lmdb"))
    assert new.classes == ["cat", "dog"]
    boxes = [new.annotation(i).boxes for i in range(4)]
    np.testing.assert_allclose(boxes[0], [PLACES[0], PLACES[2]], atol=1e-4)
    np.testing.assert_allclose(boxes[2], PLACES, atol=1e-4)


def test_oriented_boxes_in_a_list(tmp_path: Path) -> None:
    corners = np.array([[[6, 2], [10, 6], [6, 10], [2, 6]], [[3, 3], [9, 4], [8, 11], [2, 10]]], np.float32)
    boxes = np.concatenate([corners.min(axis=1), corners.max(axis=1)], axis=1)
    with PackWriter(tmp_path / "p.lmdb", classes=["cat", "big dog"]) as writer:
        writer.write(noise(0, 18, 22), boxes=boxes, box_labels=[1, 0], obb=corners, box_fields={"ignore": (0, 1)})
        writer.write(noise(1, 18, 22), boxes=boxes[:1], box_labels=[0])  # its box becomes corners
    report = extract(tmp_path / "p.lmdb", tmp_path / "out", "list")
    assert not report.lost and "x1 y1 x2 y2 x3 y3 x4 y4 class ignore" in " ".join(report.build)
    new = open_pack(again(report, tmp_path / "again.lmdb"))
    first, second = new.annotation(0), new.annotation(1)
    assert np.array_equal(first.obb, corners) and np.array_equal(first.boxes, boxes)
    assert first.ignored.tolist() == [False, True] and [new.classes[i] for i in first.box_labels] == ["big dog", "cat"]
    assert np.array_equal(second.boxes, boxes[:1]) and second.obb[0].tolist() == [[2, 2], [10, 2], [10, 10], [2, 10]]


@pytest.mark.parametrize("layout", ["voc", "yolo", "coco", "list", "dota"])
def test_folders_of_splits_become_one_pack_again(tmp_path: Path, layout: str) -> None:
    source = draw_voc(tmp_path / "voc", 2)
    for part in ("train", "val"):
        for folder, stem in (("JPEGImages", "001.jpg"), ("Annotations", "001.xml")):
            (source / folder / part).mkdir()
            if part == "val":
                os.rename(source / folder / stem, source / folder / part / stem)
    for folder, stem in (("JPEGImages", "000.jpg"), ("Annotations", "000.xml")):
        os.rename(source / folder / stem, source / folder / "train" / stem)
    pack = build(source, tmp_path / "p.lmdb", split="all")
    report = extract(pack, tmp_path / "out", layout)
    assert len(open_pack(again(report, tmp_path / "again.lmdb"))) == len(open_pack(pack)) == 2


def test_resized_boxes_are_those_of_the_pack(tmp_path: Path) -> None:
    """The numbers of the XML file are not those of the images that are written."""
    pack = build(draw_voc(tmp_path / "voc", 4), tmp_path / "p.lmdb", encode="png", resize="77x31")
    for layout in ("voc", "yolo", "coco", "list"):
        report = extract(pack, tmp_path / f"{layout}-out", layout)
        new = again(report, tmp_path / f"{layout}.lmdb")
        without = ORIGINALS | frozenset(report.lost) | FLAGS
        assert facts(new, without) == facts(pack, without)


def coco_pack(tmp_path: Path) -> Path:
    source = draw_plain(tmp_path / "coco", 4)
    keypoints = [10, 5, 2, 12.25, 7, 1, 0, 0, 0]
    objects = [
        {"id": 1, "image_id": 7, "category_id": 18, "bbox": [10, 5, 20, 15], "area": 123.5, "iscrowd": 0,
         "segmentation": [[10, 5, 30, 5, 30, 20, 10, 20]], "keypoints": keypoints, "num_keypoints": 2},
        {"id": 2, "image_id": 7, "category_id": 3, "bbox": [1.5, 2.25, 7, 8], "area": 56, "iscrowd": 1,
         "segmentation": {"size": [30, 40], "counts": [100, 20, 1080]}, "keypoints": [0] * 9, "num_keypoints": 0},
        {"id": 3, "image_id": "x", "category_id": 3, "bbox": [0, 0, 40, 30], "area": 1200, "iscrowd": 0,
         "segmentation": [[0, 0, 40, 0, 40, 30]], "keypoints": keypoints, "num_keypoints": 2},
    ]  # fmt: skip
    images = [
        {"id": key, "file_name": f"00{i}.jpg", "width": 40, "height": 30} for i, key in enumerate([7, "x", 9, 10])
    ]
    categories = [{"id": i, "name": name, "keypoints": ["a", "b", "c"]} for i, name in ((18, "dog\n"), (3, "person"))]
    text = json.dumps({"images": images, "annotations": objects, "categories": categories})
    (source / "instances.json").write_text(text)
    return build(source, tmp_path / "coco.lmdb")


def test_coco(tmp_path: Path) -> None:
    pack = coco_pack(tmp_path)
    report = extract(pack, tmp_path / "out", "coco")
    assert report.lost == {}
    new = again(report, tmp_path / "again.lmdb")
    assert facts(new) == facts(pack) and open_pack(new).classes == open_pack(pack).classes
    assert 'cannot hold a class called "dog\\n"' in refused(2, "extract", pack, tmp_path / "x", "--layout", "voc")


def test_yolo_keypoints_and_polygons(tmp_path: Path) -> None:
    """One file holds either; what is left out is said."""
    pack = coco_pack(tmp_path)
    shutil.rmtree(tmp_path / "coco")
    text = json.loads(good("extract", pack, tmp_path / "c", "--layout", "coco", "--json").out)
    assert text["images"] == 4
    changed = (tmp_path / "c" / "instances.json").read_text().replace("dog\\n", "dog")
    (tmp_path / "c" / "instances.json").write_text(changed)
    pack = build(tmp_path / "c", tmp_path / "p.lmdb", labels=(f"coco:{tmp_path / 'c' / 'instances.json'}",))
    report = extract(pack, tmp_path / "out", "yolo")
    assert report.lost["polygons"] == 2 and "box_fields.rle" in report.lost
    assert (tmp_path / "out" / "data.yaml").read_text().endswith("kpt_shape: [3, 3]\n")
    without = ORIGINALS | {"polygons", "box_fields.rle", "box_fields.iscrowd"}
    new = again(report, tmp_path / "again.lmdb", "--boxes", "clip")
    found, wanted = facts(new, without), facts(pack, without)
    assert report.lost["ignored regions, which are left out"] == 1
    wanted["000"][2].update({name: wanted["000"][2][name][:1] for name in ("boxes", "names", "keypoints")})  # a crowd
    assert found == wanted

    plain = json.loads(changed)
    for one in plain["annotations"]:
        del one["keypoints"], one["num_keypoints"]
        one["iscrowd"] = 0
        one["segmentation"] = one["segmentation"] if isinstance(one["segmentation"], list) else []
    plain["categories"] = [{"id": c["id"], "name": c["name"]} for c in plain["categories"]]
    (tmp_path / "c" / "instances.json").write_text(json.dumps(plain))
    pack = build(tmp_path / "c", tmp_path / "q.lmdb", labels=(f"coco:{tmp_path / 'c' / 'instances.json'}",))
    report = extract(pack, tmp_path / "out2", "yolo")
    assert "polygons" not in report.lost
    new = again(report, tmp_path / "again2.lmdb")
    without = ORIGINALS | {"box_fields.iscrowd"}
    assert facts(new, without) == facts(pack, without)


def test_landmarks_label_and_boxes_in_a_list(make_pack: MakePack, tmp_path: Path) -> None:
    pack = make_pack("boxes", "lmdb")
    report = extract(pack, tmp_path / "out", "list")
    new = again(report, tmp_path / "again.lmdb")
    without = ORIGINALS | frozenset(report.lost)
    assert facts(new, without) == facts(pack, without)
    for layout in ("voc", "yolo"):
        lost = extract(pack, tmp_path / layout, layout).lost
        assert lost["landmarks"] == 9 and lost["label"] == 9


def test_tags_and_text(tmp_path: Path) -> None:
    lines = ["path,text,smiling,young, old"]
    for i in range(4):
        draw(tmp_path / "src" / f"a,{i}.jpg", i)
        lines.append(f'"a,{i}.jpg","said ""{i}"", so",{i % 2},1,0')
    (tmp_path / "src" / "tags.csv").write_text("\n".join(lines))
    labels = {"labels": (f"list:{tmp_path / 'src' / 'tags.csv'}",), "columns": ("path text tag*3",)}
    pack = build(tmp_path / "src", tmp_path / "p.lmdb", **labels)
    report = extract(pack, tmp_path / "out", "list")
    new = again(report, tmp_path / "again.lmdb")
    assert facts(new) == facts(pack) and open_pack(new).manifest.tags == open_pack(pack).manifest.tags


def test_equal_names_are_numbered(tmp_path: Path) -> None:
    for name in "ab":
        draw(tmp_path / name / "cat" / "1.jpg", ord(name))
        draw(tmp_path / name / "dog" / "1.png", ord(name), format="PNG")
        build(tmp_path / name, tmp_path / f"{name}.lmdb")
    merge([tmp_path / "a.lmdb", tmp_path / "b.lmdb"], tmp_path / "all")
    report = extract(tmp_path / "all", tmp_path / "out")
    images = {name for name in files_of(tmp_path / "out") if name.startswith(("cat", "dog"))}
    assert images == {"cat/1.jpg", "cat/1-2.jpg", "dog/1.png", "dog/1-2.png"} and report.renamed == 2
    assert "4 images, 2 of them renamed" in good("extract", tmp_path / "all", tmp_path / "out2").out


def test_names_stay_in_the_folder() -> None:
    jpeg = (b".jpg", b".jpeg")
    for path, wanted in {
        b"../../etc/passwd": b"etc/passwd.jpg", b"/abs/./1.JPG": b"abs/1.JPG", b".hidden/.x.jpg": b"_hidden/_x.jpg",
        b"a\n\x1b.jpg": b"a__.jpg", b"": b"image.jpg", b"..": b"image.jpg", b"a/b.png": b"a/b.jpg",
        b"\xff.jpeg": b"\xff.jpeg",
        b"n" * 300 + b".jpg": b"n" * 197 + b".jpg",
    }.items():  # fmt: skip
        assert safe(path, jpeg) == wanted
    names = Names(stems=False)
    assert [names.free(name, False) for name in (b"a.b/1.jpg", b"a.b", b"c.d", b"c.d/1.jpg")] == [
        b"a.b/1.jpg", b"a-2.b", b"c.d", b"c.d-2/1.jpg"
    ]  # fmt: skip
    names = Names(stems=True)
    assert [names.free(name, False) for name in (b"1.jpg", b"1.png", b"1-2.png")] == [
        b"1.jpg",
        b"1-2.png",
        b"1-2-2.png",
    ]


def test_folders_that_exist(tmp_path: Path) -> None:
    pack = build(draw_classes(tmp_path / "src"), tmp_path / "p.lmdb")
    out = tmp_path / "out"
    out.mkdir()
    assert good("extract", pack, out).out.count("\n") == 2
    assert "exists; choose another folder, or replace it with --overwrite" in refused(2, "extract", pack, out)
    good("extract", pack, out, "--overwrite")
    (out / "mine.txt").write_text("mine")
    assert "has other files than those that were extracted" in refused(2, "extract", pack, out, "--overwrite")
    assert "was not extracted from a pack" in refused(2, "extract", pack, tmp_path / "src", "--overwrite")
    assert "is the pack, or in it" in refused(2, "extract", pack, pack / "x")
    assert "no such folder" in refused(2, "extract", pack, tmp_path / "no" / "x")
    assert "--layout: must be one of folder" in refused(2, "extract", pack, tmp_path / "x", "--layout", "zip")
    assert (out / "mine.txt").read_text() == "mine" and not list(tmp_path.glob("*.partial"))
    for layout in set(LAYOUTS) - {"folder", "list", "masks"}:
        text = refused(2, "extract", pack, tmp_path / "x", "--layout", layout)
        assert f"{layout} holds boxes" in text and "but the pack has label; choose folder" in text


@pytest.mark.parametrize("what", ["an extracted folder", "other files", "a folder of that name"])
def test_a_partial_folder_of_the_user_stays(tmp_path: Path, what: str) -> None:
    pack = build(draw_classes(tmp_path / "src"), tmp_path / "p.lmdb")
    partial = tmp_path / "out.partial"
    if what == "an extracted folder":
        good("extract", pack, partial)
    else:
        name = "mine.txt" if what == "other files" else "files/mine.txt"
        (partial / name).parent.mkdir(parents=True)
        (partial / name).write_text("mine")
    before = tree_state(partial)
    line = refused(2, "extract", pack, tmp_path / "out")
    assert (
        "out.partial: exists and was not left by packer extract; move it away" in line and tree_state(partial) == before
    )


def test_a_damaged_record_leaves_nothing(tmp_path: Path) -> None:
    pack = build(draw_classes(tmp_path / "src"), tmp_path / "p.lmdb")
    at = open_pack(pack).reader.span(3)[0]
    data = bytearray((pack / "data.mdb").read_bytes())
    data[at] ^= 1
    (pack / "data.mdb").write_bytes(data)
    assert "does not match its checksum" in refused(4, "extract", pack, tmp_path / "out")
    assert not (tmp_path / "out").exists() and not (tmp_path / "out.partial").exists()


def test_a_part_of_the_images(tmp_path: Path) -> None:
    pack = build(draw_classes(tmp_path / "src"), tmp_path / "p.lmdb")
    (tmp_path / "some.txt").write_text("ant/\n00000007\ncat/00*.jpg\nnothing.jpg\n")
    (tmp_path / "not.txt").write_text("cat/001.jpg\n")
    options = ExtractOptions("list", str(tmp_path / "some.txt"), str(tmp_path / "not.txt"))
    report = extract(pack, tmp_path / "out", options)
    assert report.images == 5 + 1 + 4 and "nothing.jpg" in report.notes[0]
    with pytest.raises(UsageError, match="leaves no image"):
        (tmp_path / "none.txt").write_text("nothing.jpg\n")
        extract(pack, tmp_path / "none", ExtractOptions(include=str(tmp_path / "none.txt")))


def test_classes_that_cannot_be_folders(tmp_path: Path) -> None:
    for name in ("a/b", "train"):
        draw(tmp_path / name.replace("/", "-") / "1.jpg", 1)
        (tmp_path / name.replace("/", "-") / "l.csv").write_text(f"path,label\n1.jpg,{name}\n")
        pack = build(tmp_path / name.replace("/", "-"), tmp_path / "p.lmdb", overwrite=True)
        ran = run("extract", pack, tmp_path / "out")
        assert ran.code == 2 and "choose list" in ran.err
        report = extract(pack, tmp_path / f"{name[0]}-out", "list")
        assert open_pack(again(report, tmp_path / "again.lmdb", "--overwrite")).classes == [name]


def test_the_printed_command_can_be_typed(tmp_path: Path) -> None:
    pack = build(draw_classes(tmp_path / "a b"), tmp_path / "p.lmdb", mode="gray", encode="raw")
    line = good("extract", pack, tmp_path / "out put").out.splitlines()[-1]
    words = shlex.split(line.partition(": ")[2])
    good(*words[1:], "-o", tmp_path / "again.lmdb")
    a, b = open_pack(pack), open_pack(tmp_path / "again.lmdb")
    assert np.array_equal(a.image(3), b.image(3)) and b.manifest.mode == "gray"


@pytest.mark.parametrize("layout", ["voc", "yolo", "coco", "list"])
def test_odd_names(tmp_path: Path, layout: str) -> None:
    source = draw_voc(tmp_path / "voc", 4)
    for old, new in ((b"001", b'\xff odd, "name" & <x>\''), (b"002", b"# [1]*?"), (b"003", "\u00fc ' \\n".encode())):
        for folder, end in (("JPEGImages", b".jpg"), ("Annotations", b".xml")):
            home = os.fsencode(source / folder) + b"/"
            os.rename(home + old + end, home + new + end)
    pack = build(source, tmp_path / "p.lmdb")
    report = extract(pack, tmp_path / "out", layout)
    new = again(report, tmp_path / "again.lmdb")
    without = ORIGINALS | frozenset(report.lost) | FLAGS
    found, wanted = facts(new, without), facts(pack, without)
    if layout == "coco":  # JSON holds no other bytes than those of UTF-8
        odd = next(name for name in wanted if name.startswith("\udcff"))
        found[odd] = found.pop("%FF" + odd[1:])
    assert found == wanted


def test_labels_that_a_layout_does_not_hold(tmp_path: Path) -> None:
    source = draw_plain(tmp_path / "src")
    pack = build(source, tmp_path / "p.lmdb", labels=("none",))
    assert "but the pack has no labels; choose folder" in refused(
        2, "extract", pack, tmp_path / "o", "--layout", "list"
    )
    boxed = build(draw_voc(tmp_path / "voc"), tmp_path / "boxed.lmdb", labels=("voc",))
    assert "boxes; choose voc, yolo, coco or list" in refused(2, "extract", boxed, tmp_path / "o")
    report = extract(pack, tmp_path / "out")
    assert (report.renamed, report.lost) == (0, {})
    new = again(report, tmp_path / "again.lmdb")
    assert facts(new) == facts(pack) and open_pack(new).paths == open_pack(pack).paths
