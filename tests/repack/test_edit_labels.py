"""Labels read again for the records of a pack: what a new build gives, and no image of the pack is opened."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import layouts
import pytest
from drawn import draw, draw_classes, draw_landmarks, tree_state
from drawn_instances import draw_instances
from drawn_masks import draw_mask, image_of, picture, write_files
from layouts import BOXES, CLASSES
from running import good, refused
from test_edit import built, digest, listed, no_image_is_opened

from packer import diff, edit, open_pack
from packer.containers import CONTAINERS
from packer.errors import TooManyBad, UsageError
from packer.format.lists import read_list
from packer.format.manifest import read_manifest
from packer.format.verify import verify
from packer.packing.option_table import LABEL_OPTIONS
from packer.repack.labels_again import labels_again, options_again
from packer.repack.links import Source

CORRECTED: dict[str, list[layouts.Box]] = {
    "img_0001": [("dog", 3, 3, 9, 9)],
    "img_0002": [("bird", 1, 3, 18, 20)],
    "img_0003": [("bird", 20, 10, 30, 28)],
    "img_0004": [("bird", 1, 1, 39, 29), ("dog", 10, 12, 20, 22), ("dog", 0, 0, 5, 5)],
}
"""`layouts.BOXES` after somebody looked at the images: boxes moved, added, removed, and of another class."""
YAML = "names: [dog, bird]\n"
SETS: dict[str, Callable[[], layouts.Files]] = {
    "voc": layouts.voc,
    "yolo": lambda: layouts.yolo("images/", "labels/") | {"data.yaml": YAML},
    "yolo polygons": lambda: layouts.yolo("images/", "labels/", kind="polygons") | {"data.yaml": YAML},
    "yolo poses": lambda: layouts.yolo("images/", "labels/", kind="poses") | {"data.yaml": YAML + "kpt_shape: [2, 3]"},
    "yolo oriented": lambda: layouts.yolo("images/", "labels/", kind="obb") | {"data.yaml": YAML},
    "coco": lambda: layouts.coco("coco.json", "images/"),
    "coco keypoints": lambda: layouts.coco("person_keypoints.json", "images/", keypoints=True),
    "csv": lambda: layouts.photos() | {"boxes.csv": layouts.table(
        layouts.each_box("path", "x1", "y1", "x2", "y2", "class"), "image,xmin,ymin,xmax,ymax,label")},
    "cvat": lambda: layouts.photos("images/") | {"annotations.xml": layouts.cvat()},
    "labelme": lambda: layouts.photos() | {f"{name}.json": layouts.labelme(name, f"{name}.jpg") for name in BOXES},
    "labelstudio": lambda: layouts.photos() | {"project.json": layouts.label_studio()},
    "via": lambda: layouts.photos("images/") | {"animals.json": layouts.via(project=True)},
    "createml": lambda: layouts.photos("train/") | {"train/_annotations.createml.json": layouts.createml()},
    "jsonl": lambda: layouts.photos("train/") | {"train/metadata.jsonl": layouts.metadata()},
    "dota": lambda: layouts.photos("images/") | {f"labelTxt/{name}.txt": layouts.dota(name) for name in BOXES},
    "kitti": lambda: layouts.photos("image_2/") | {f"label_2/{name}.txt": layouts.kitti(name) for name in BOXES},
}  # fmt: skip
RESIZED = {
    "as they are": (),
    "stretched": ("--resize", "25x20"),
    "padded": ("--resize", "32x32", "--fit", "pad"),
    "cropped": ("--resize", "16x16", "--fit", "crop"),
}
LENIENT = ("--missing-labels", "empty")
"""For formats that cannot say that nothing is in an image."""


@pytest.fixture
def correct(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    def corrected() -> None:
        for name, boxes in CORRECTED.items():
            monkeypatch.setitem(BOXES, name, boxes)

    return corrected


def drawn_twice(name: str, folder: Path, correct: Callable[[], None]) -> tuple[Path, Path]:
    """A set, and the same with corrected labels."""
    for path in (folder / "src", folder / "new"):
        layouts.write(path, SETS[name]())
        correct()
    return folder / "src", folder / "new"


def check_equal(made: Path, wanted: Path) -> None:
    """All that a build of the new labels would say is said, and the pack is whole."""
    assert digest(made) == digest(wanted) and diff(made, wanted).equal
    one, other = read_manifest(made), read_manifest(wanted)
    assert (one.classes, one.fields, one.tags, one.flip_index) == (
        other.classes, other.fields, other.tags, other.flip_index,
    )  # fmt: skip
    assert (one.counts, one.class_counts) == (other.counts, other.class_counts)
    assert {**one.options, "repack": None} == {**other.options, "repack": None}
    assert [*read_list(made, "changed")] == [*read_list(wanted, "changed")]
    assert not verify(made, deep=True).problems


@pytest.mark.parametrize("resized", RESIZED)
@pytest.mark.parametrize("name", SETS)
def test_corrected_labels_are_those_of_a_build(
    tmp_path: Path, name: str, resized: str, correct: Callable[[], None]
) -> None:
    source, new = drawn_twice(name, tmp_path, correct)
    pack = built(tmp_path, source, "p", *RESIZED[resized], *LENIENT, "--shard-size", "3KB")
    wanted = built(tmp_path, new, "wanted", *RESIZED[resized], *LENIENT, "--shard-size", "3KB")
    before = tree_state(pack), tree_state(new)
    with no_image_is_opened(pack):
        ran = good("edit", pack, "-o", tmp_path / "e", "--source", new)
    assert "4 labelled anew" in ran.out
    check_equal(tmp_path / "e", wanted)
    assert digest(pack) != digest(wanted) and (tree_state(pack), tree_state(new)) == before


@pytest.mark.parametrize("container", CONTAINERS)
def test_in_any_container(tmp_path: Path, container: str, correct: Callable[[], None]) -> None:
    source, new = drawn_twice("voc", tmp_path, correct)
    given = ("--format", container, "--shard-size", "3KB", "--shuffle", "3", "--resize", "20x20")
    pack, wanted = built(tmp_path, source, "p", *given), built(tmp_path, new, "wanted", *given)
    with no_image_is_opened(pack):
        edit(pack, tmp_path / "e", source=new)
    check_equal(tmp_path / "e", wanted)


@pytest.mark.parametrize("given", [
    ("--map", "dog=hound"), ("--map", "bird=dog", "--boxes", "clip"), ("--drop-class", "bird", *LENIENT),
    ("--classes", "names.txt"), ("--boxes", "drop"),
])  # fmt: skip
def test_options_are_those_that_made_the_pack(
    tmp_path: Path, given: tuple[str, ...], correct: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("names.txt").write_text("bird\nwhale\ndog\n")
    source, new = drawn_twice("voc", tmp_path, correct)
    one = new / "Annotations/img_0002.xml"
    if "--boxes" in given:
        one.write_text(layouts.voc_xml("img_0002.jpg", [("dog", -9, 3, 12, 20), ("bird", 50, 3, 60, 9)]))
    pack, wanted = built(tmp_path, source, "p", *given), built(tmp_path, new, "wanted", *given)
    edit(pack, tmp_path / "e", source=new)
    check_equal(tmp_path / "e", wanted)


@pytest.mark.parametrize("out", [None, "e"])
def test_only_indexes_that_differ_are_written(tmp_path: Path, out: str | None, correct: Callable[[], None]) -> None:
    """In place and into a new pack; the earlier version keeps its labels."""
    source, _ = drawn_twice("voc", tmp_path, correct)
    pack = built(tmp_path, source, "p", "--shard-size", "1KB", "--resize", "20x20")
    name = source / "Annotations/img_0002.xml"
    before = digest(pack)
    name.write_text(layouts.voc_xml("img_0002.jpg", [("dog", 5, 3, 12, 20)]))
    report = edit(pack, None if out is None else tmp_path / out, source=source)
    assert len(read_manifest(pack).shards) == 4 and report.indexes == 1 and report.relabelled == 4
    check_equal(Path(report.path), built(tmp_path, source, "wanted", "--shard-size", "1KB", "--resize", "20x20"))
    assert digest(pack if out else Path(f"{pack}@1")) == before
    again = edit(report.path, None if out is None else tmp_path / "f", source=source)
    assert again.indexes == 0
    if out is None:
        assert "packer edit p --source src\n" in good("log", pack).out.replace("  packer", "packer")


def test_options_and_kinds_may_be_others(tmp_path: Path, correct: Callable[[], None]) -> None:
    source, _ = drawn_twice("voc", tmp_path, correct)
    files = {**layouts.photos("JPEGImages/"), "corrected.json": layouts.coco("x.json", "JPEGImages/")["x.json"]}
    layouts.write(tmp_path / "coco", files)
    (tmp_path / "names").write_text("\n".join(reversed(CLASSES)))
    pack = built(tmp_path, source, "p")
    labels = ("--labels", f"coco:{tmp_path / 'coco/corrected.json'}")
    for number, given in enumerate((labels, (*labels, "--classes", tmp_path / "names"), ("--labels", "auto"))):
        wanted = built(tmp_path, tmp_path / "coco", f"w{number}", *given)
        good("edit", pack, "-o", tmp_path / f"e{number}", *given, "--source", tmp_path / "coco")
        check_equal(tmp_path / f"e{number}", wanted)
    line = good("info", tmp_path / "e0", "--command").out
    assert line == f"packer edit p --labels coco:SRC/corrected.json --source SRC -o {tmp_path}/e0\n"
    line = good("info", tmp_path / "e1", "--command").out
    assert (
        line
        == f"packer edit p --classes {tmp_path}/e1 --labels coco:SRC/corrected.json --source SRC -o {tmp_path}/e1\n"
    )
    # a build with the options of the new pack finds the labels where it did
    good("build", tmp_path / "coco", "--like", tmp_path / "e0", "-o", tmp_path / "again")
    assert diff(tmp_path / "again", tmp_path / "e0").equal
    assert {*LABEL_OPTIONS} == {"columns", "classes", "boxes", "rle", "instance_masks"}


def test_lists_landmarks_and_several_kinds(tmp_path: Path) -> None:
    draw_landmarks(tmp_path / "src")
    given = ("--columns", "path x*5 y*5", "--resize", "32x32", "--fit", "pad", "--boxes", "clip")
    pack = built(tmp_path, tmp_path / "src", "p", "--labels", f"list:{tmp_path}/src/landmarks.txt", *given)
    text = (tmp_path / "src/landmarks.txt").read_text()
    (tmp_path / "moved.txt").write_text(text.replace("20.0 30.0", "21.5 28.0"))
    labels = ("--labels", f"list:{tmp_path}/moved.txt")
    wanted = built(tmp_path, tmp_path / "src", "wanted", *labels, *given)
    good("edit", pack, "-o", tmp_path / "e", *labels, "--source", tmp_path / "src")
    check_equal(tmp_path / "e", wanted)
    (tmp_path / "sides.csv").write_text("".join(f"faces/{i:03d}.jpg,{'lr'[i % 2]}\n" for i in range(8)))
    both = (*labels, "--labels", f"list:{tmp_path}/sides.csv", "--columns", "path x*5 y*5", "--columns", "path label")
    wanted = built(tmp_path, tmp_path / "src", "both", *both, *given[2:])
    good("edit", pack, "-o", tmp_path / "f", *both, "--source", tmp_path / "src")
    check_equal(tmp_path / "f", wanted)


def test_splits_have_the_ids_of_all(tmp_path: Path, correct: Callable[[], None]) -> None:
    first, last = list(BOXES)[:2], list(BOXES)[2:]
    for path in (tmp_path / "src", tmp_path / "new"):
        lists = {f"ImageSets/Main/{name}.txt": "\n".join(names) for name, names in (("train", first), ("val", last))}
        layouts.write(path, layouts.voc() | lists)
        correct()
    for split in ("train", "val"):
        pack = built(tmp_path, tmp_path / "src", f"p-{split}", "--split", split)
        wanted = built(tmp_path, tmp_path / "new", f"w-{split}", "--split", split)
        edit(pack, tmp_path / f"e-{split}", source=tmp_path / "new")
        check_equal(tmp_path / f"e-{split}", wanted)


@pytest.mark.parametrize("resized", ["as they are", "padded", "cropped"])
@pytest.mark.parametrize("masks", [(), ("--instance-masks",), ("--rle", "polygons")])
def test_shapes_of_objects(tmp_path: Path, resized: str, masks: tuple[str, ...]) -> None:
    pytest.importorskip("pycocotools", reason="needs pycocotools")
    given = (*RESIZED[resized], *masks, "--boxes", "drop", "--encode", "jpeg")
    source = draw_instances(tmp_path / "src", 3)
    pack = built(tmp_path, source, "p", *given)
    (file,) = (source / "annotations").iterdir()
    content = json.loads(file.read_text())
    shapes = [one.get("segmentation") for one in content["annotations"]]
    for one, shape in zip(content["annotations"], [*shapes[:2][::-1], *shapes[2:]], strict=True):
        one["segmentation"] = shape or []
    del content["annotations"][8]
    file.write_text(json.dumps(content))
    wanted = built(tmp_path, source, "wanted", *given)
    edit(pack, tmp_path / "e", source=source)
    check_equal(tmp_path / "e", wanted)
    plain = built(tmp_path, source, "plain", *RESIZED[resized], "--labels", "none", "--encode", "jpeg")
    good("edit", plain, "-o", tmp_path / "f", "--source", source, "--labels", "coco", *masks, "--boxes", "drop")
    assert digest(tmp_path / "f") == digest(wanted)


def test_class_folders(tmp_path: Path) -> None:
    """A file that was moved to the folder of another class is found by its digest; the record keeps its path."""
    source = draw_classes(tmp_path / "src", ("ant", "bee", "cat"), 3)
    pack = built(tmp_path, source, "p")
    (source / "cat").rename(source / "cow")
    wanted = built(tmp_path, source, "wanted")
    edit(pack, tmp_path / "e", source=source)
    assert digest(tmp_path / "e") == digest(wanted)
    assert open_pack(tmp_path / "e").paths == open_pack(pack).paths
    (source / "ant/001.jpg").rename(source / "cow/new.jpg")
    report = edit(pack, tmp_path / "f", source=source)
    made = open_pack(tmp_path / "f")
    found = [made.classes[made.annotation(i).label or 0] for i in range(9)]
    assert found == ["ant", "cow", "ant", *["bee"] * 3, *["cow"] * 3] and report.relabelled == 9


def test_new_ids_of_classes_are_said(tmp_path: Path, correct: Callable[[], None]) -> None:
    source, _ = drawn_twice("voc", tmp_path, correct)
    pack = built(tmp_path, source, "p")
    name = source / "Annotations/img_0001.xml"
    name.write_text(layouts.voc_xml("img_0001.jpg", [("ape", 1, 1, 9, 9)]))
    ran = good("edit", pack, "-o", tmp_path / "e", "--source", source)
    assert f"note: classes: other ids: bird 0 -> 1, dog 1 -> 2 (--classes {pack} keeps all ids)" in ran.out
    check_equal(tmp_path / "e", built(tmp_path, source, "wanted"))
    with pytest.raises(TooManyBad, match="1 image of the pack cannot be labelled") as caught:
        edit(pack, tmp_path / "f", source=source, reading={"classes": pack})
    assert "class ape is not in the class list" in caught.value.rejected[0].problem
    said = json.loads(good("edit", pack, "-o", tmp_path / "f", "--source", source, "--map", "ape=dog", "--json").out)
    assert said["classes"] == ["bird", "dog"]


def test_it_happens_between_deleting_and_other_classes(tmp_path: Path, correct: Callable[[], None]) -> None:
    source, new = drawn_twice("voc", tmp_path, correct)
    pack = built(tmp_path, source, "p")
    (tmp_path / "gone").write_text("img_0002\n")
    (tmp_path / "some").write_text("img_0003\n")
    report = edit(
        pack, tmp_path / "e", source=new, labels=["voc"], delete=tmp_path / "gone", map=["bird=animal"],
        set=[("checked=true", tmp_path / "some")],
    )  # fmt: skip
    wanted = built(tmp_path, new, "wanted", "--map", "bird=animal", "--exclude", tmp_path / "gone")
    assert report.relabelled == 3 and report.manifest.classes == read_manifest(wanted).classes == ("animal", "dog")
    assert report.manifest.class_counts == read_manifest(wanted).class_counts
    assert [dict(open_pack(tmp_path / "e").annotation(i).extras or {}) for i in range(3)] == [{}, {"checked": True}, {}]


def test_what_was_set_is_said_to_be_gone(tmp_path: Path, correct: Callable[[], None]) -> None:
    source, new = drawn_twice("voc", tmp_path, correct)
    pack = built(tmp_path, source, "p")
    (tmp_path / "some").write_text("img_0003\n")
    edit(pack, set=[("checked=true", tmp_path / "some")])
    ran = good("edit", pack, "--source", new)
    assert "note: extras: checked=true in 1 record: not in the new labels" in ran.out
    check_equal(pack, built(tmp_path, new, "wanted"))
    assert not any(note.startswith("extras") for note in read_manifest(pack).notes)


def test_an_image_that_is_not_the_packed_one_gets_no_label(tmp_path: Path, correct: Callable[[], None]) -> None:
    source, new = drawn_twice("voc", tmp_path, correct)
    pack = built(tmp_path, source, "p")
    draw(new / "JPEGImages/img_0002.jpg", 77)
    (new / "JPEGImages/img_0003.jpg").unlink()
    draw(new / "JPEGImages/more.jpg", 78)
    (new / "Annotations/more.xml").write_text(layouts.voc_xml("more.jpg", [("dog", 1, 1, 9, 9)]))
    out = ("-o", tmp_path / "e", "--source", new)
    said = refused(2, "edit", pack, *out)
    assert "has another image at JPEGImages/img_0002.jpg: its bytes are not those that were packed" in said
    assert "so it is with 2 records" in said and not (tmp_path / "e").exists()
    ran = good("edit", pack, *out, "--missing-labels", "skip")
    assert "2 left out, 2 labelled anew" in ran.out
    assert "note: 1 bad input of no image of the pack, for example Annotations/img_0003.xml" in ran.out
    assert f"note: 1 image of {new} not in the pack: packer update adds them" in ran.out
    reason = "its image is not in the source of its new labels"
    assert listed(tmp_path / "e") == [(f"JPEGImages/img_000{i}.jpg", reason) for i in (2, 3)]
    edit(pack, tmp_path / "f", source=new, missing_labels="empty")
    made = open_pack(tmp_path / "f")
    boxes = [made.annotation(i).boxes for i in range(4)]
    assert [None if one is None else len(one) for one in boxes] == [1, 0, 0, 3]


def test_images_without_a_label(tmp_path: Path, correct: Callable[[], None]) -> None:
    source, new = drawn_twice("voc", tmp_path, correct)
    (new / "Annotations/img_0003.xml").unlink()
    pack = built(tmp_path, source, "p")
    with pytest.raises(TooManyBad, match="1 image of the pack cannot be labelled") as caught:
        edit(pack, tmp_path / "e", source=new)
    assert [(row.path, row.reason) for row in caught.value.rejected] == [("JPEGImages/img_0003.jpg", "no-label")]
    assert "--missing-labels=skip" in caught.value.next_step
    for policy in ("skip", "empty"):
        given = ("--missing-labels", policy)
        wanted = built(tmp_path, new, f"w-{policy}", *given)
        good("edit", pack, "-o", tmp_path / f"e-{policy}", "--source", new, *given)
        assert diff(tmp_path / f"e-{policy}", wanted).equal
        assert listed(tmp_path / f"e-{policy}") == listed(wanted)
        # as the pack was built so, it need not be said again
        edit(wanted, tmp_path / f"f-{policy}", source=new)
        assert digest(tmp_path / f"f-{policy}") == digest(wanted)


def test_no_record_is_left_out_unasked(tmp_path: Path) -> None:
    """A list that names some of the images: a build leaves out the others, and an edit does so if it is told to."""
    draw_landmarks(tmp_path / "src", 6)
    (tmp_path / "all.csv").write_text("".join(f"faces/{i:03d}.jpg,{'lr'[i % 2]}\n" for i in range(6)))
    (tmp_path / "some.csv").write_text("faces/001.jpg,l\nfaces/004.jpg,l\n")
    columns = ("--columns", "path label")
    pack = built(tmp_path, tmp_path / "src", "p", "--labels", f"list:{tmp_path}/all.csv", *columns)
    some = ("--source", tmp_path / "src", "--labels", f"list:{tmp_path}/some.csv")
    said = refused(2, "edit", pack, *some)
    assert "has no label for faces/000.jpg (not in some.csv)" in said and "with 4 records" in said
    good("edit", pack, "-o", tmp_path / "e", *some, "--missing-labels", "skip")
    wanted = built(tmp_path, tmp_path / "src", "wanted", *some[2:], *columns)
    assert diff(tmp_path / "e", wanted).equal and listed(tmp_path / "e") == listed(wanted)
    good("edit", pack, "-o", tmp_path / "f", *some, "--missing-labels", "empty")
    made = open_pack(tmp_path / "f")
    assert [made.annotation(i).label for i in range(6)] == [None, 0, None, None, 0, None]


@pytest.mark.parametrize("name", ["voc", "yolo", "coco", "csv", "cvat", "labelme"])
@pytest.mark.parametrize("archive", [False, True])
def test_labels_without_images(tmp_path: Path, name: str, archive: bool, correct: Callable[[], None]) -> None:
    """As annotation tools export them: the images are those of the pack, in the sizes that they have there."""
    source, new = drawn_twice(name, tmp_path, correct)
    pack, wanted = built(tmp_path, source, "p", *LENIENT), built(tmp_path, new, "wanted", *LENIENT)
    for image in new.rglob("*.jpg"):
        image.unlink()
    if archive:
        shutil.make_archive(str(new), "zip", new)
    where = tmp_path / "new.zip" if archive else new
    ran = good("edit", pack, "-o", tmp_path / "e", "--source", where)
    assert f"note: {where} has no images: labels are joined to records by path alone" in ran.out
    check_equal(tmp_path / "e", wanted)
    small = built(tmp_path, source, "small", *LENIENT, "--resize", "20x20")
    assert "was resized" in refused(2, "edit", small, "-o", tmp_path / "f", "--source", where)


def test_classes_need_no_sizes(tmp_path: Path) -> None:
    for number, (path, names) in enumerate((("src", "xyx"), ("new", "yyx"))):
        (tmp_path / path).mkdir()
        for i in range(3 - 3 * number):
            draw(tmp_path / path / f"{i}.jpg", i)
        (tmp_path / path / "labels.csv").write_text("".join(f"{i}.jpg,{name}\n" for i, name in enumerate(names)))
    pack = built(tmp_path, tmp_path / "src", "p", "--resize", "20x20")
    edit(pack, tmp_path / "e", source=tmp_path / "new")
    made = open_pack(tmp_path / "e")
    assert [made.classes[made.annotation(i).label or 0] for i in range(3)] == ["y", "y", "x"]


def test_masks_stay_as_they_are(tmp_path: Path) -> None:
    files = {f"images/{i}.png": image_of(draw_mask(i)) for i in range(3)}
    files |= {f"masks/{i}.png": picture(draw_mask(i)) for i in range(3)}
    source = tmp_path / "src"
    write_files(source, {**files, "masks/class_names.txt": b"background\nroad\ncar\nbus\n"})
    alone = built(tmp_path, source, "alone")
    for labels in ((), ("--labels", "masks"), ("--labels", "auto")):
        said = refused(2, "edit", alone, "-o", tmp_path / "e", "--source", source, *labels)
        assert "has no labels but the files of mask, which are in the shards" in said
    (source / "labels.csv").write_text("".join(f"images/{i}.png,{'xy'[i % 2]}\n" for i in range(3)))
    given = ("--labels", f"list:{source}/labels.csv", "--columns", "path label", "--mask", "masks")
    pack = built(tmp_path, source, "p", *given)
    (source / "labels.csv").write_text("".join(f"images/{i}.png,{'yx'[i % 2]}\n" for i in range(3)))
    wanted = built(tmp_path, source, "wanted", *given)
    ran = good("edit", pack, "-o", tmp_path / "f", "--source", source)
    assert "note: mask: as in the pack: what is in files is not read again" in ran.out
    check_equal(tmp_path / "f", wanted)
    plain = built(tmp_path, source, "plain", *given[:4])
    ran = good("edit", plain, "-o", tmp_path / "g", "--source", source, *given[:2], "--labels", "masks:masks")
    assert "note: mask: not in the pack; packer build packs them" in ran.out
    assert "masks" not in read_manifest(tmp_path / "g").options["labels"]


def test_what_was_resized_twice(tmp_path: Path, correct: Callable[[], None]) -> None:
    source, new = drawn_twice("voc", tmp_path, correct)
    pack = built(tmp_path, source, "p", "--encode", "copy")
    good("convert", pack, tmp_path / "q", "--resize", "24x18")
    edit(tmp_path / "q", tmp_path / "e", source=new)
    good("convert", built(tmp_path, new, "n", "--encode", "copy"), tmp_path / "wanted", "--resize", "24x18")
    assert digest(tmp_path / "e") == digest(tmp_path / "wanted")
    good("convert", tmp_path / "q", tmp_path / "r", "--resize", "12x9")
    with pytest.raises(UsageError, match="resized by a build, and again"):
        edit(tmp_path / "r", tmp_path / "f", source=new)


def test_what_is_wrong_is_said_before_anything_is_written(tmp_path: Path, correct: Callable[[], None]) -> None:
    source, _ = drawn_twice("voc", tmp_path, correct)
    pack = built(tmp_path, source, "p")
    layouts.write(tmp_path / "bare", layouts.photos("JPEGImages/"))
    out = ("-o", tmp_path / "e")
    for given in (("--labels", "voc"), ("--boxes", "clip"), ("--instance-masks",)):
        said = refused(2, "edit", pack, *out, *given)
        assert f"{given[0]}: is for labels that are read again" in said and "--source SRC" in said
    both = ("--source", source, "--labels-from", pack)
    assert "--source: excludes --labels-from" in refused(2, "edit", pack, *out, *both)
    assert "has no labels of these images" in refused(
        2, "edit", pack, *out, "--source", tmp_path / "bare", "--labels", "none"
    )
    assert "no such folder" in refused(2, "edit", pack, *out, "--source", tmp_path / "nowhere")
    assert "is a pack, not a folder" in refused(2, "edit", pack, *out, "--source", pack)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bare", "new", "p", "src"]


def test_others_can_read_them(tmp_path: Path, correct: Callable[[], None]) -> None:
    """`labels_again` gives a row for each image, with the labels that a build would store."""
    source, new = drawn_twice("voc", tmp_path, correct)
    pack: Any = Source(built(tmp_path, source, "p", "--resize", "20x20"))
    found = labels_again(pack, options_again(pack, str(new)))
    paths = [path for table in found.tables for path in table.column("path").to_pylist()]
    assert sorted(paths) == [f"JPEGImages/{name}.jpg".encode() for name in sorted(BOXES)]
    assert found.manifest.classes == ("bird", "dog") and not found.left_out and not found.others
