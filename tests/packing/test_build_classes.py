"""Classes that a build renames, merges and leaves out: every kind of labels, against a mapping written down here."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from drawn import draw, draw_classes, voc_xml
from drawn_masks import draw_mask, image_of, picture, write_files
from PIL import Image
from running import Ran, digests, good, run

from packer import build, options_like
from packer.errors import UsageError
from packer.format.lists import read_list
from packer.format.pack import open_pack
from packer.packing import BuildOptions
from packer.packing.class_map import ClassChange, ClassMap
from packer.packing.recorded import as_config

NAMES = ("bus", "car", "dog", "truck")
OBJECTS: tuple[tuple[str, ...], ...] = (("car", "dog", "bus"), ("dog",), (), ("truck", "car"), ("dog", "dog", "truck"))
"""The classes of the objects of each image."""
MAP, DROP = ("bus, car ,truck=vehicle",), ("dog",)
GIVEN = ("--map", MAP[0], "--drop-class", "dog")
NEW = {"bus": "vehicle", "car": "vehicle", "truck": "vehicle", "dog": None}


def failed(*arguments: Any, code: int) -> Ran:
    """A command that must fail with this exit code."""
    ran = run(*arguments)
    assert ran.code == code and "Traceback" not in ran.err, ran
    return ran


def box_of(image: int, number: int) -> tuple[float, float, float, float]:
    return (2.0 + image, 3.0 + 4 * number, 12.0 + 2 * image, 11.0 + 5 * number)


def draw_images(root: Path) -> None:
    for i in range(len(OBJECTS)):
        draw(root / "images" / f"{i}.jpg", i)


def draw_voc(root: Path) -> tuple[str, ...]:
    draw_images(root)
    for i, names in enumerate(OBJECTS):
        boxes = [(name, *box_of(i, number)) for number, name in enumerate(names)]
        file = root / "Annotations" / f"{i}.xml"
        file.parent.mkdir(exist_ok=True)
        file.write_text(voc_xml(f"{i}.jpg", boxes))
    return ("--labels", "voc")


def draw_yolo(root: Path) -> tuple[str, ...]:
    draw_images(root)
    (root / "labels").mkdir()
    for i, names in enumerate(OBJECTS):
        lines = []
        for number, name in enumerate(names):
            x1, y1, x2, y2 = box_of(i, number)
            numbers = ((x1 + x2) / 80, (y1 + y2) / 60, (x2 - x1) / 40, (y2 - y1) / 30)
            lines.append(" ".join(map(str, (NAMES.index(name), *numbers))))
        (root / "labels" / f"{i}.txt").write_text("\n".join(lines))
    (root / "data.yaml").write_text(f"train: images\nnames: [{', '.join(NAMES)}]\n")
    return ("--labels", "yolo")


def draw_coco(root: Path) -> tuple[str, ...]:
    """Boxes with outlines, keypoints and fields of their own."""
    draw_images(root)
    objects: list[dict[str, Any]] = []
    for i, names in enumerate(OBJECTS):
        for number, name in enumerate(names):
            x1, y1, x2, y2 = box_of(i, number)
            objects.append({
                "id": len(objects), "image_id": i, "category_id": 7 - NAMES.index(name), "area": 9.0, "iscrowd": 0,
                "bbox": [x1, y1, x2 - x1, y2 - y1], "segmentation": [[x1, y1, x2, y1, x2, y2]],
                "keypoints": [x1, y1, 2, x2, y2, 1], "num_keypoints": 2, "score": len(objects) / 8,
            })  # fmt: skip
    images = [{"id": i, "file_name": f"{i}.jpg", "width": 40, "height": 30} for i in range(len(OBJECTS))]
    points = {"keypoints": ["head", "tail"], "skeleton": []}
    categories = [{"id": 7 - number, "name": name, **points} for number, name in enumerate(NAMES)]
    content = {"images": images, "annotations": objects, "categories": categories}
    (root / "coco.json").write_text(json.dumps(content))
    return ("--labels", "coco:coco.json")


def draw_instances(root: Path) -> tuple[str, ...]:
    pytest.importorskip("pycocotools", reason="pycocotools is not installed")
    return (*draw_coco(root), "--instance-masks")


def draw_list(root: Path) -> tuple[str, ...]:
    draw_images(root)
    lines = []
    for i, names in enumerate(OBJECTS):
        words = [f"images/{i}.jpg"]
        for number, name in enumerate(names):
            words += [*map(str, box_of(i, number)), name]
        lines.append(" ".join(words))
    (root / "boxes.txt").write_text("\n".join(lines))
    return ("--labels", "list:boxes.txt", "--columns", "path (xmin ymin xmax ymax class)*")


SOURCES = {"voc": draw_voc, "yolo": draw_yolo, "coco": draw_coco, "instances": draw_instances, "list": draw_list}
every_source = pytest.mark.parametrize("draw_source", SOURCES.values(), ids=SOURCES)


def objects_in(pack: Path | str) -> dict[str, list[tuple[str, dict[str, Any]]]]:
    """The class of each object of each image, and all else that is known of it, as plain values."""
    opened, found = open_pack(pack), {}
    for number, path in enumerate(opened.paths):
        one = opened.annotation(number)
        rows = [] if one.boxes is None else one.boxes.tolist()
        fields = {"box": rows, **one.box_fields}
        for name in ("polygons", "keypoints", "rles"):
            if (value := getattr(one, name)) is not None:
                fields[name] = [each.tolist() for each in value]
        labels = [] if one.box_labels is None else [opened.classes[id] for id in one.box_labels.tolist()]
        assert {len(values) for values in fields.values()} == {len(labels)}
        found[Path(path).stem] = [(name, {n: v[i] for n, v in fields.items()}) for i, name in enumerate(labels)]
    return found


def renamed(before: dict[str, list[tuple[str, Any]]]) -> dict[str, list[tuple[str, Any]]]:
    """What must be left of the objects of images."""
    return {
        image: [(new, rest) for name, rest in objects if (new := NEW[name]) is not None]
        for image, objects in before.items()
    }


@every_source
@pytest.mark.parametrize("policy", ["empty", "skip"])
def test_objects_get_new_names_with_all_that_is_theirs(
    tmp_path: Path, draw_source: Callable[[Path], tuple[str, ...]], policy: str
) -> None:
    labels = draw_source(tmp_path / "src")
    good("build", tmp_path / "src", "-o", tmp_path / "before", *labels)
    ran = good("build", tmp_path / "src", "-o", tmp_path / "p", *labels, *GIVEN, "--missing-labels", policy, "--json")
    before = objects_in(tmp_path / "before")
    assert [[name for name, _ in before[str(i)]] for i in range(len(OBJECTS))] == [list(one) for one in OBJECTS]
    after = renamed(before)
    if policy == "skip":
        assert after.pop("1") == []  # image 2 never had an object, and stays
        assert [row.reason for row in read_list(tmp_path / "p", "skipped")] == ["only objects of dropped classes"]
    assert objects_in(tmp_path / "p") == after
    assert open_pack(tmp_path / "p").manifest.classes == ("vehicle",)
    facts = json.loads(ran.out)
    counts = Counter(name for names in OBJECTS for name in names)
    assert facts["class_changes"] == [{"name": n, "becomes": NEW[n], "labels": counts[n]} for n in sorted(NAMES)]
    assert facts["counts"]["boxes"] == sum(NEW[name] is not None for names in OBJECTS for name in names)
    assert "classes: bus, car, truck to vehicle (5 labels); dog dropped (4 labels)" in facts["notes"]


@every_source
def test_an_image_without_other_objects_is_bad(tmp_path: Path, draw_source: Callable[[Path], tuple[str, ...]]) -> None:
    labels = draw_source(tmp_path / "src")
    ran = failed("build", tmp_path / "src", "-o", tmp_path / "p", *labels, *GIVEN, code=1)
    assert "images/1.jpg: has only objects of dropped classes" in ran.err
    assert "--missing-labels skip" in ran.err
    good("build", tmp_path / "src", "-o", tmp_path / "p", *labels, *GIVEN, "--max-bad", "1")
    assert [row.reason for row in read_list(tmp_path / "p", "rejected")] == ["no-label"]


@every_source
def test_the_ids_are_those_of_the_first_of_each_name(
    tmp_path: Path, draw_source: Callable[[Path], tuple[str, ...]]
) -> None:
    labels = draw_source(tmp_path / "src")
    good("build", tmp_path / "src", "-o", tmp_path / "p", *labels, "--map", "truck=car")
    assert open_pack(tmp_path / "p").manifest.classes == ("bus", "car", "dog")
    assert open_pack(tmp_path / "p").manifest.class_counts == {"boxes": [1, 4, 4]}
    good("build", tmp_path / "src", "-o", tmp_path / "q", *labels, "--only-class", "truck,dog", "--max-bad", "9")
    assert open_pack(tmp_path / "q").manifest.classes == ("dog", "truck")


@every_source
def test_all_classes_are_one(tmp_path: Path, draw_source: Callable[[Path], tuple[str, ...]]) -> None:
    labels = draw_source(tmp_path / "src")
    good("build", tmp_path / "src", "-o", tmp_path / "p", *labels, "--single-class", "object")
    assert [len(objects) for objects in objects_in(tmp_path / "p").values()] == [len(names) for names in OBJECTS]
    assert {name for objects in objects_in(tmp_path / "p").values() for name, _ in objects} == {"object"}


def test_a_box_of_a_dropped_class_is_not_checked(tmp_path: Path) -> None:
    draw(tmp_path / "src" / "a.jpg", 0)
    boxes = [("dog", 5.0, 5.0, 90.0, 9.0), ("car", 1.0, 1.0, 9.0, 9.0)]
    (tmp_path / "src" / "a.xml").write_text(voc_xml("a.jpg", boxes))
    failed("build", tmp_path / "src", "-o", tmp_path / "p", code=1)
    good("build", tmp_path / "src", "-o", tmp_path / "p", "--drop-class", "dog")
    assert [[name for name, _ in of_one] for of_one in objects_in(tmp_path / "p").values()] == [["car"]]


# -- images of a class


def test_an_image_of_a_dropped_class_is_left_out(tmp_path: Path) -> None:
    draw_classes(tmp_path / "src", each=3)
    good("build", tmp_path / "src", "-o", tmp_path / "p", "--map", "cat=bee", "--drop-class", "ant")
    pack = open_pack(tmp_path / "p")
    assert pack.manifest.classes == ("bee",)
    assert pack.paths == [f"{name}/{i:03d}.jpg" for name in ("bee", "cat") for i in range(3)]
    rows = list(read_list(tmp_path / "p", "skipped"))
    assert [(row.path, row.reason) for row in rows] == [(f"ant/{i:03d}.jpg", "class ant is dropped") for i in range(3)]
    assert {name: pack.manifest.counts[name] for name in ("found", "packed", "skipped")} == {
        "found": 9, "packed": 6, "skipped": 3,
    }  # fmt: skip


def test_nothing_is_left(tmp_path: Path) -> None:
    draw_classes(tmp_path / "src", each=2)
    ran = failed("build", tmp_path / "src", "-o", tmp_path / "p", "--drop-class", "ant,bee,cat", code=2)
    assert "nothing to pack: all 6 inputs are skipped (ant/000.jpg: class ant is dropped)" in ran.err


def test_other_labels_of_an_image_keep_it(tmp_path: Path) -> None:
    draw_voc(tmp_path / "src")
    lines = [f"images/{i}.jpg {('day', 'night')[i % 2]}" for i in range(len(OBJECTS))]
    (tmp_path / "src" / "times.txt").write_text("\n".join(lines))
    both = ("--labels", "voc", "--labels", "list:times.txt", "--columns", "path label")
    good("build", tmp_path / "src", "-o", tmp_path / "p", *both, "--drop-class", "dog")
    pack = open_pack(tmp_path / "p")
    assert len(pack) == len(OBJECTS) and pack.manifest.classes == ("bus", "car", "day", "night", "truck")
    good("build", tmp_path / "src", "-o", tmp_path / "q", *both, "--drop-class", "night", "--map", "day=noon")
    assert [Path(path).stem for path in open_pack(tmp_path / "q").paths] == ["0", "2", "4"]


# -- the list of classes


def test_a_list_of_classes_has_the_new_names(tmp_path: Path) -> None:
    draw_voc(tmp_path / "src")
    (tmp_path / "names.txt").write_text("person\nvehicle\n")
    given = (*GIVEN, "--classes", tmp_path / "names.txt", "--missing-labels", "empty")
    good("build", tmp_path / "src", "-o", tmp_path / "p", *given)
    pack = open_pack(tmp_path / "p")
    assert pack.manifest.classes == ("person", "vehicle") and pack.manifest.class_counts == {"boxes": [0, 5]}
    (tmp_path / "names.txt").write_text("person\ncar\n")
    ran = failed("build", tmp_path / "src", "-o", tmp_path / "q", *given, code=1)
    assert "class vehicle is not in the class list" in ran.err


def test_numbers_are_those_of_the_list(tmp_path: Path) -> None:
    draw_images(tmp_path / "src")
    lines = [f"images/{i}.jpg {i}" for i in range(4)]
    (tmp_path / "src" / "list.txt").write_text("\n".join(lines))
    (tmp_path / "names.txt").write_text("\n".join(NAMES))
    given = ("--labels", "list:list.txt", "--columns", "path label", "--max-bad", "1")
    good(
        "build", tmp_path / "src", "-o", tmp_path / "p", *given, "--classes", tmp_path / "names.txt",
        "--map", "truck=car", "--drop-class", "dog", "--missing-labels", "skip",
    )  # fmt: skip
    pack = open_pack(tmp_path / "p")
    labels = {Path(path).stem: pack.classes[pack.annotation(i).label or 0] for i, path in enumerate(pack.paths)}
    assert labels == {"0": "bus", "1": "car", "3": "car"} and pack.manifest.classes == NAMES
    good("build", tmp_path / "src", "-o", tmp_path / "q", *given, "--map", "0,3=x", "--missing-labels", "skip")
    assert open_pack(tmp_path / "q").manifest.classes == ("x", "1", "2")


@pytest.mark.parametrize(
    ("given", "said", "step"),
    [
        (("--map", "cars=x"), "--map: names the class cars, which no label has", "did you mean car?"),
        (("--drop-class", "kite"), "--drop-class: names the class kite", "labels have bus, car, dog, truck"),
        (("--only-class", "dgo,car"), "--only-class: names the class dgo", "did you mean dog?"),
        (("--map", "car=x", "--drop-class", "car"), "--drop-class: names the class car", "labels have bus, dog, truck"),
        (("--map", "car=x", "--map", "car=y"), "--map: gives car two names: x and y", "give one"),
        (("--map", "car="), "--map: car= is not of the form OLD,OLD=NEW", "--drop-class"),
        (("--map", "=car"), "--map: =car is not of the form", "write OLD,OLD=NEW"),
        (("--map", "a=b=c"), "--map: a=b=c is not of the form", "write OLD,OLD=NEW"),
        (("--map", "no-such-file"), "no-such-file: no such file", "write OLD,OLD=NEW"),
        (("--drop-class", "car", "--only-class", "dog"), "--drop-class: excludes --only-class", "leave out"),
        (("--single-class", " "), "--single-class: is empty", "name the class"),
    ],
)  # fmt: skip
def test_a_name_that_means_nothing_is_refused(tmp_path: Path, given: tuple[str, ...], said: str, step: str) -> None:
    draw_voc(tmp_path / "src")
    ran = failed("build", tmp_path / "src", "-o", tmp_path / "p", *given, code=2)
    assert said in ran.err and step in ran.err.partition("try:")[2]
    assert not (tmp_path / "p").exists()


@pytest.mark.parametrize(
    ("text", "pairs"),
    [
        ("a , b = c\n\n# no class\nd=c\n", {"a": "c", "b": "c", "d": "c"}),
        ("a: b\nc: 'd e'\n", {"a": "b", "c": "d e"}),
        ("vehicle: [car, bus]\nx: y\n", {"car": "vehicle", "bus": "vehicle", "x": "y"}),
        ('"tench, Tinca": fish\n', {"tench, Tinca": "fish"}),
        ('{"a": "b"}', {"a": "b"}),
        ("tench\\, Tinca = fish\n", {"tench, Tinca": "fish"}),
        ("\ufeffa = b\r\nc = d", {"a": "b", "c": "d"}),
    ],
)
def test_a_file_of_names_is_read(tmp_path: Path, text: str, pairs: dict[str, str]) -> None:
    (tmp_path / "names.yaml").write_text(text, "utf-8")
    options = BuildOptions("src", map=(str(tmp_path / "names.yaml"),))
    found = ClassMap.of(options)
    assert found is not None and found.pairs == pairs
    again = ClassMap.of(BuildOptions("src", map=options.map))
    assert again == found and not any("names.yaml" in one for one in options.map)  # the pack has what the file said


@pytest.mark.parametrize("text", ["", "# nothing\n", "- a\n- b\n", "a:\n", "a: {b: c}\n", "a: b\na: c\n", "a = b\nc\n"])
def test_a_file_of_something_else_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "names.yaml").write_text(text)
    with pytest.raises(UsageError):
        BuildOptions("src", map=(str(tmp_path / "names.yaml"),))


# -- again, and in parts


def test_a_pack_and_a_config_repeat_the_options(tmp_path: Path) -> None:
    draw_voc(tmp_path / "src")
    given = {"map": MAP, "drop_class": DROP, "missing_labels": "skip"}
    (made,) = build(tmp_path / "src", tmp_path / "p", **given)
    assert made.class_changes[0] == ClassChange("bus", "vehicle", 1)
    options = options_like(tmp_path / "p", str(tmp_path / "src"))
    assert (options.map, options.drop_class) == (MAP, DROP)
    (tmp_path / "c.yaml").write_text("\n".join(as_config(BuildOptions(str(tmp_path / "src"), **given))))
    good("build", tmp_path / "src", "--config", tmp_path / "c.yaml", "-o", tmp_path / "q")
    good("build", tmp_path / "src", "--like", tmp_path / "p", "-o", tmp_path / "r")
    assert objects_in(tmp_path / "p") == objects_in(tmp_path / "q") == objects_in(tmp_path / "r")
    less = tmp_path / "less"  # which has no bus, no car and no dog
    draw(less / "images" / "0.jpg", 0)
    (less / "Annotations").mkdir()
    (less / "Annotations" / "0.xml").write_text(voc_xml("0.jpg", [("truck", 1.0, 1.0, 9.0, 9.0)]))
    good("build", less, "--like", tmp_path / "p", "-o", tmp_path / "s")
    assert [[name for name, _ in one] for one in objects_in(tmp_path / "s").values()] == [["vehicle"]]


def test_parts_and_a_resumed_build_are_as_one(tmp_path: Path) -> None:
    draw_voc(tmp_path / "src")
    given = ("--shard-size", "3KB", *GIVEN, "--missing-labels", "skip")
    good("build", tmp_path / "src", "-o", tmp_path / "p", *given)
    for part in ("1/2", "2/2"):
        good("build", tmp_path / "src", "-o", tmp_path / "q", *given, "--job", part)
    good("build", tmp_path / "src", "-o", tmp_path / "q", *given, "--finish")
    assert digests(tmp_path / "p") == digests(tmp_path / "q")
    good("build", tmp_path / "src", "-o", tmp_path / "r", *given, "--job", "1/2")
    other = run("build", tmp_path / "src", "-o", tmp_path / "r", "--shard-size", "3KB", "--job", "1/2")
    assert other.code == 2 and "--map" in other.err and "--drop-class" in other.err


def test_splits_have_the_classes_of_all(tmp_path: Path) -> None:
    for split, name in (("train", "car"), ("val", "bus")):
        for i in range(2):
            draw(tmp_path / "src" / split / "images" / f"{i}.jpg", i)
            draw(tmp_path / "src" / split / name / f"{i}.jpg", i)
    root = tmp_path / "classes"
    for split, names in (("train", ("car", "dog")), ("val", ("bus", "dog"))):
        for name in names:
            draw(root / split / name / "0.jpg", 3)
    good("build", root, "-o", tmp_path / "p.lmdb", "--map", "car,bus=vehicle")
    train, val = (open_pack(tmp_path / f"p-{split}.lmdb") for split in ("train", "val"))
    assert train.manifest.classes == val.manifest.classes == ("vehicle", "dog") and len(train) == len(val) == 2


# -- masks


def draw_masks(root: Path, names: str = "background\nroad\ncar\nbus\n") -> Path:
    files = {f"images/{i}.png": image_of(draw_mask(i)) for i in range(3)}
    files |= {f"masks/{i}.png": picture(draw_mask(i)) for i in range(3)}
    return write_files(root, {**files, "masks/class_names.txt": names.encode()})


def masks_in(pack: Path, root: Path) -> list[tuple[Any, Any]]:
    """The mask of each image of a pack, and the file that it was made of."""
    opened = open_pack(pack)
    files = [root / "masks" / f"{Path(path).stem}.png" for path in opened.paths]
    return [(opened.mask(i), np.asarray(Image.open(file))) for i, file in enumerate(files)]


@pytest.mark.parametrize(
    ("given", "classes", "ids"),
    [
        (("--map", "car,bus=vehicle"), ("background", "road", "vehicle"), (0, 1, 2, 2)),
        (("--drop-class", "road"), ("background", "car", "bus"), (0, 255, 1, 2)),
        (("--only-class", "bus,background"), ("background", "bus"), (0, 255, 255, 1)),
        (("--map", "road=background", "--drop-class", "car"), ("background", "bus"), (0, 0, 255, 1)),
        (("--map", "road=street"), ("background", "street", "car", "bus"), (0, 1, 2, 3)),
    ],
)
def test_pixels_get_the_ids_of_the_new_names(
    tmp_path: Path, given: tuple[str, ...], classes: tuple[str, ...], ids: tuple[int, ...]
) -> None:
    root = draw_masks(tmp_path / "src")
    good("build", root, "-o", tmp_path / "p", *given)
    facts = open_pack(tmp_path / "p").manifest.masks["mask"]
    assert (facts.classes, facts.ignore) == (classes, 255)
    for mask, before in masks_in(tmp_path / "p", root):
        assert np.array_equal(mask, np.array(ids)[before])


def test_masks_without_names_or_of_one_class_are_refused(tmp_path: Path) -> None:
    root = draw_masks(tmp_path / "src")
    assert "background" in failed("build", root, "-o", tmp_path / "p", "--single-class", "x", code=2).err
    (root / "masks" / "class_names.txt").unlink()
    ran = failed("build", root, "-o", tmp_path / "p", "--drop-class", "car", code=2)
    assert "--drop-class: is for names, but the masks have no names" in ran.err and "class_names.txt" in ran.err
