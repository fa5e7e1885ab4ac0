"""Classes that `packer convert`, `merge` and `adopt` rename, merge and leave out, as a build of those labels does."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from drawn import draw, draw_classes, tree_state
from drawn_masks import draw_mask, image_of, picture, write_files
from running import Ran, digests, good, run

from packer import adopt, convert, merge
from packer.containers import CONTAINERS
from packer.errors import UsageError
from packer.format.lists import read_list
from packer.format.manifest import read_manifest
from packer.format.pack import open_pack
from packer.format.verify import verify
from packer.model.fields import FIELDS

NAMES = ("car", "bus", "dog", "truck")
OBJECTS: tuple[tuple[str, ...], ...] = (("car", "dog", "bus"), ("dog",), (), ("truck", "car"), ("dog", "dog", "truck"))
MAP, DROP = ("bus,car,truck=vehicle",), ("dog",)
GIVEN = ("--map", MAP[0], "--drop-class", "dog")


def failed(*arguments: Any, code: int = 2) -> str:
    """What is wrong with a command, and the next step."""
    ran: Ran = run(*arguments)
    assert ran.code == code and "Traceback" not in ran.err, ran
    return ran.err


def draw_coco(root: Path, first: int = 0) -> Path:
    """Boxes with outlines, of one object two, keypoints, and fields of their own."""
    objects: list[dict[str, Any]] = []
    for i, names in enumerate(OBJECTS):
        draw(root / f"{i}.jpg", first + i)
        for number, name in enumerate(names):
            x, y = 2.0 + i, 3.0 + 4 * number
            objects.append({
                "id": len(objects), "image_id": i, "category_id": NAMES.index(name), "area": 9.0, "iscrowd": 0,
                "bbox": [x, y, 10 + i, 8], "segmentation": [[x, y, x + 9, y, x + 9, y + 7]], "score": len(objects) / 8,
                "keypoints": [x, y, 2, x + 1, y, 1], "num_keypoints": 2,
            })  # fmt: skip
    images = [{"id": i, "file_name": f"{i}.jpg", "width": 40, "height": 30} for i in range(len(OBJECTS))]
    points = {"keypoints": ["head", "tail"], "skeleton": []}
    categories = [{"id": number, "name": name, **points} for number, name in enumerate(NAMES)]
    (root / "coco.json").write_text(json.dumps({"images": images, "annotations": objects, "categories": categories}))
    return root


def labels_in(pack: Path | str) -> list[Any]:
    """All that is known of each image but its path, classes by their names, as plain values."""
    opened, found = open_pack(pack), []
    for number in range(len(opened)):
        one, plain = opened.annotation(number), {}
        for field in FIELDS:
            value = getattr(one, field.name)
            if field.has(value):
                plain[field.name] = field.kind.to_json(value)
        plain |= {} if one.label is None else {"label": opened.classes[one.label]}
        plain |= {} if one.box_labels is None else {"box_labels": [opened.classes[i] for i in one.box_labels.tolist()]}
        found.append(plain)
    return found


def built(folder: Path, source: Path, name: str, *given: Any) -> Path:
    good("build", source, "-o", folder / name, *given)
    return folder / name


@pytest.mark.parametrize(("container", "policy"), [*((name, "skip") for name in CONTAINERS), ("lmdb", "empty")])
def test_a_conversion_is_as_a_build(tmp_path: Path, container: str, policy: str) -> None:
    source = draw_coco(tmp_path / "src")
    given = ("--shard-size", "3KB", "--format", container)
    pack = built(tmp_path, source, "p", *given)
    wanted = built(tmp_path, source, "wanted", *given, *GIVEN, "--missing-labels", policy)
    report = convert(pack, tmp_path / "q", map=MAP, drop_class=DROP, missing_labels=policy)
    counts = Counter(name for names in OBJECTS for name in names)
    new = {"bus": "vehicle", "car": "vehicle", "truck": "vehicle", "dog": None}
    assert [(one.name, one.becomes, one.labels) for one in report.class_changes] == [
        (name, new[name], counts[name]) for name in sorted(new)
    ]
    assert labels_in(tmp_path / "q") == labels_in(wanted)
    made, by_build = read_manifest(tmp_path / "q"), read_manifest(wanted)
    assert (made.classes, made.class_counts, made.records) == (("vehicle",), {"boxes": [5]}, by_build.records)
    assert made.fields == by_build.fields and made.counts["boxes"] == 5
    assert {name: made.counts[name] for name in ("found", "packed", "skipped")} == {
        name: by_build.counts[name] for name in ("found", "packed", "skipped")
    }
    rows = [(row.path, row.reason) for row in read_list(tmp_path / "q", "skipped")]
    assert rows == ([("1.jpg", "only objects of dropped classes")] if policy == "skip" else [])
    assert not verify(tmp_path / "q", deep=True).problems


@pytest.mark.parametrize("container", CONTAINERS)
def test_a_merge_is_as_a_conversion(tmp_path: Path, container: str) -> None:
    given = ("--shard-size", "3KB", "--format", container)
    packs = [built(tmp_path, draw_coco(tmp_path / f"src{n}", 9 * n), f"p{n}", *given) for n in range(2)]
    before = [tree_state(pack) for pack in packs]
    report = merge(packs, tmp_path / "q", map=MAP, drop_class=DROP, missing_labels="skip")
    wanted: list[Any] = []
    for number, pack in enumerate(packs):
        convert(pack, tmp_path / f"c{number}", map=MAP, drop_class=DROP, missing_labels="skip")
        wanted += labels_in(tmp_path / f"c{number}")
    assert labels_in(tmp_path / "q") == wanted and report.manifest.classes == ("vehicle",)
    assert report.manifest.counts["skipped"] == 2 and report.manifest.class_counts == {"boxes": [10]}
    assert [one.labels for one in report.class_changes] == [2, 4, 8, 4]
    assert not verify(tmp_path / "q", deep=True).problems and [tree_state(pack) for pack in packs] == before


def test_a_merge_joins_by_the_new_names(tmp_path: Path) -> None:
    first = built(tmp_path, draw_classes(tmp_path / "a", ("ant", "bee"), 2), "p")
    second = built(tmp_path, draw_classes(tmp_path / "b", ("Bee", "cat", "wasp"), 2), "q")
    good("merge", first, second, "-o", tmp_path / "r", "--map", "Bee=bee", "--drop-class", "wasp")
    pack = open_pack(tmp_path / "r")
    assert pack.manifest.classes == ("ant", "bee", "cat") and pack.manifest.class_counts == {"label": [2, 4, 2]}
    assert [pack.classes[pack.annotation(i).label or 0] for i in range(8)] == ["ant", "ant", *["bee"] * 4, "cat", "cat"]
    assert [row.reason for row in read_list(tmp_path / "r", "skipped")] == ["class wasp is dropped"] * 2
    command = good("info", tmp_path / "r", "--command").out
    assert "--map Bee=bee --drop-class wasp" in command
    (tmp_path / "names.txt").write_text("cat\nbee\nant\n")
    given = ("--map", "Bee=bee", "--drop-class", "wasp", "--classes", tmp_path / "names.txt", "--duplicates", "drop")
    good("merge", first, second, "-o", tmp_path / "s", *given)
    assert open_pack(tmp_path / "s").manifest.classes == ("cat", "bee", "ant")
    assert open_pack(tmp_path / "s").manifest.class_counts == {"label": [0, 2, 2]}  # all of the second are duplicates


def test_a_pack_of_which_nothing_changes_is_shared_as_it_is(tmp_path: Path) -> None:
    first = built(tmp_path, draw_classes(tmp_path / "a", ("ant", "bee"), 2), "p")
    second = built(tmp_path, draw_classes(tmp_path / "b", ("ant", "cat"), 2), "q")
    report = merge([first, second], tmp_path / "r", map=["cat=bee"])
    assert report.relabelled == 1 and report.manifest.class_counts == {"label": [4, 4]}


@pytest.mark.parametrize("command", ["convert", "merge"])
def test_records_without_objects_need_a_policy(tmp_path: Path, command: str) -> None:
    packs = [built(tmp_path, draw_coco(tmp_path / f"src{n}", 9 * n), f"p{n}") for n in range(2)]
    of = (packs[0], tmp_path / "q") if command == "convert" else (*packs, "-o", tmp_path / "q")
    said = failed(command, *of, "--drop-class", "dog")
    assert "1.jpg: has only objects of dropped classes" in said and "--missing-labels empty" in said
    assert "--map: names the class cars, which no label has" in failed(command, *of, "--map", "cars=x")
    assert "is for records that lose all objects" in failed(command, *of, "--missing-labels", "skip")
    assert not (tmp_path / "q").exists()


@pytest.mark.parametrize("command", ["convert", "merge"])
def test_a_pack_of_no_record_is_refused(tmp_path: Path, command: str) -> None:
    packs = [built(tmp_path, draw_classes(tmp_path / f"src{n}", ("ant", "bee"), n + 1), f"p{n}") for n in range(2)]
    of = (packs[0], tmp_path / "q") if command == "convert" else (*packs, "-o", tmp_path / "q")
    assert "--drop-class: leaves no record" in failed(command, *of, "--drop-class", "bee,ant")


def test_a_selection_and_a_new_size_go_with_other_classes(tmp_path: Path) -> None:
    source = draw_coco(tmp_path / "src")
    pack = built(tmp_path, source, "p")
    (tmp_path / "some.txt").write_text("0.jpg\n1.jpg\n4.jpg\n")
    given = ("--include", tmp_path / "some.txt", "--resize", "20x20", *GIVEN, "--missing-labels", "skip")
    ran = good("convert", pack, tmp_path / "q", *given, "--json")
    assert json.loads(ran.out)["skipped"] == 3
    assert labels_in(tmp_path / "q") == labels_in(built(tmp_path, source, "r", *given))


def test_a_conversion_resumes_with_the_same_classes_only(tmp_path: Path) -> None:
    pack = built(tmp_path, draw_coco(tmp_path / "src"), "p", "--shard-size", "2KB")
    convert(pack, tmp_path / "whole", map=MAP)
    assert len(read_manifest(tmp_path / "whole").shards) > 2
    convert(pack, tmp_path / "other", map=["car=vehicle"])
    names = [name for name in digests(tmp_path / "whole") if name.endswith(".lmdb")]
    assert any(digests(tmp_path / "whole")[name] != digests(tmp_path / "other")[name] for name in names)


def test_a_converted_pack_repeats_its_options(tmp_path: Path) -> None:
    source = draw_coco(tmp_path / "src")
    convert(built(tmp_path, source, "p"), tmp_path / "q", map=MAP, drop_class=DROP, missing_labels="skip")
    good("build", source, "--like", tmp_path / "q", "-o", tmp_path / "r")
    assert labels_in(tmp_path / "q") == labels_in(tmp_path / "r")
    convert(tmp_path / "q", tmp_path / "s", map=["vehicle=thing"])  # in two steps, which no options repeat
    options = read_manifest(tmp_path / "s").options
    assert "map" not in options and options["repack"]["map"] == ["vehicle=thing"]


# -- masks


def masked(folder: Path) -> Path:
    files = {f"images/{i}.png": image_of(draw_mask(i)) for i in range(3)}
    files |= {f"masks/{i}.png": picture(draw_mask(i)) for i in range(3)}
    write_files(folder / "src", {**files, "masks/class_names.txt": b"background\nroad\ncar\nbus\n"})
    return built(folder, folder / "src", "p")


@pytest.mark.parametrize("encode", ["raw", "jpeg", "png"])
@pytest.mark.parametrize(
    ("given", "classes", "ids"),
    [
        ({"map": ["car,bus=vehicle"]}, ("background", "road", "vehicle"), (0, 1, 2, 2)),
        ({"drop_class": ["road"]}, ("background", "car", "bus"), (0, 255, 1, 2)),
        ({"map": ["road=street"]}, ("background", "street", "car", "bus"), (0, 1, 2, 3)),
    ],
)
def test_a_conversion_changes_the_pixels_of_masks(
    tmp_path: Path, encode: str, given: Any, classes: tuple[str, ...], ids: tuple[int, ...]
) -> None:
    pack = masked(tmp_path)
    convert(pack, tmp_path / "q", encode=encode, **given)
    made = open_pack(tmp_path / "q")
    assert made.manifest.classes == made.manifest.masks["mask"].classes == classes
    for number in range(3):
        assert np.array_equal(made.mask(number), np.array(ids)[draw_mask(number)])
    assert not verify(tmp_path / "q", deep=True).problems


def test_a_merge_leaves_the_pixels_of_masks(tmp_path: Path) -> None:
    first = masked(tmp_path / "a")
    second = masked(tmp_path / "b")
    assert "has masks, whose pixels a merge does not change" in failed(
        "merge", first, second, "-o", tmp_path / "q", "--drop-class", "road"
    )
    good("merge", first, second, "-o", tmp_path / "q", "--map", "road=street")
    assert open_pack(tmp_path / "q").manifest.masks["mask"].classes == ("background", "street", "car", "bus")
    with pytest.raises(UsageError, match="the background of masks"):
        convert(first, tmp_path / "r", single_class="x")


# -- files of other tools


@pytest.mark.parametrize("container", ["webdataset", "tfrecord", "parquet"])
@pytest.mark.parametrize("policy", ["empty", "skip"])
def test_adopted_files_get_other_classes(tmp_path: Path, container: str, policy: str) -> None:
    pack = built(tmp_path, draw_coco(tmp_path / "src"), "p", "--format", container)
    file = pack / read_manifest(pack).shards[0].container.name
    columns = {"boxes": "xmin ymin xmax ymax"} if container == "parquet" else {}
    adopt(file, tmp_path / "whole", columns=columns)
    report = adopt(file, tmp_path / "q", columns=columns, map=MAP, drop_class=DROP, missing_labels=policy)
    convert(tmp_path / "whole", tmp_path / "wanted.lmdb", map=MAP, drop_class=DROP, missing_labels=policy)
    assert labels_in(tmp_path / "q") == labels_in(tmp_path / "wanted.lmdb") != labels_in(tmp_path / "whole")
    assert report.manifest.class_counts == {"boxes": [5]} and report.manifest.records == 5 - (policy == "skip")
    assert [one.labels for one in report.class_changes] == [1, 2, 4, 2]
    assert "--map bus,car,truck=vehicle" in good("info", tmp_path / "q", "--command").out
    given = [f"--columns={role}={field}" for role, field in columns.items()]
    said = failed("adopt", file, "-o", tmp_path / "r", *given, *GIVEN, code=1)
    assert "has only objects of dropped classes" in said
    good("adopt", file, "-o", tmp_path / "r", *given, *GIVEN, "--max-bad", "1")
    assert "no label has" in failed("adopt", file, "-o", tmp_path / "s", *given, "--only-class", "kar")
    (tmp_path / "names.txt").write_text("vehicle\n")
    assert "--classes" in failed(
        "adopt", file, "-o", tmp_path / "s", *given, *GIVEN, "--classes", tmp_path / "names.txt"
    )


def test_adopted_images_of_dropped_classes_are_left_out(tmp_path: Path) -> None:
    pack = built(tmp_path, draw_classes(tmp_path / "a", each=2), "p", "--format", "webdataset")
    file = pack / read_manifest(pack).shards[0].container.name
    adopt(file, tmp_path / "q", map=["cat=bee"], drop_class="ant")
    made = open_pack(tmp_path / "q")
    assert made.manifest.classes == ("bee",) and made.manifest.class_counts == {"label": [4]}
    assert [row.reason for row in read_list(tmp_path / "q", "skipped")] == ["class ant is dropped"] * 2
