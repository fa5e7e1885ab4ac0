"""`packer stats --problems`: each kind against plain loops over small random packs, and planted faults."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from drawn import draw, draw_objects
from large_packs import labeled_pack, random_labels
from packs import MakePack, needs_cache
from part_packs import change, damage_part
from PIL import Image
from running import good, refused

from packer import PackWriter, join_packs, open_pack
from packer.errors import DamagedPack
from packer.format.pack import Pack
from packer.model.annotation import MaskFacts
from packer.stats.problems import ORDER, DataProblem, find_problems
from packer.stats.problems.names import plain_name

CLASSES = ("ant", "bee", "cat")


def problems(pack: Pack) -> dict[str, DataProblem]:
    return {one.kind: one for one in find_problems(pack).found}


def iou(a: Any, b: Any) -> float:
    wide, high = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
    if min(wide, high, a[2] - a[0], a[3] - a[1], b[2] - b[0], b[3] - b[1]) <= 0:
        return 0.0
    shared = wide * high
    return shared / ((a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - shared)


@pytest.mark.parametrize("field", ["polygons", "keypoints"])
def test_equal_images_with_objects_elsewhere(field: str, tmp_path: Path) -> None:
    for name in ("", field):
        good("build", draw_objects(tmp_path / f"src-{name}", name), "-o", tmp_path / f"pack-{name}")
    pack = join_packs([tmp_path / "pack-", tmp_path / f"pack-{field}"])
    (conflict,) = [one for one in find_problems(pack).found if one.kind == "label-conflict"]
    assert conflict.records.tolist() == [1, 3] and "1 file has equal classes in different places" in conflict.text


@pytest.mark.parametrize("seed", range(6))
def test_against_loops(tmp_path: Path, seed: int) -> None:
    """Equal files, boxes in the same place, tiny and empty boxes, the border, images without objects."""
    draw = np.random.default_rng(seed)
    facts = random_labels(300, 4, 3, seed)
    boxes, ids = facts["boxes"][0], facts["box_labels"]
    # boxes near others, of one class or another; on the border; without area
    for n in draw.choice(len(boxes) - 1, 150, replace=False):
        boxes[n + 1] = boxes[n] + draw.normal(0, 2, 4) * draw.integers(0, 2)
    boxes[:10, 0], boxes[10:15, 2] = 0, boxes[10:15, 0]
    facts["source_xxh3"] = facts["source_xxh3"][draw.integers(0, 200, 300)]  # many are equal
    facts["source_xxh3"][:5] = 0  # not known
    pack = open_pack(labeled_pack(tmp_path / "pack", facts, CLASSES, shards=3))
    found = problems(pack)

    groups, near, tiny, empty, border = defaultdict(list), {True: [], False: []}, [], [], []
    for i in range(len(pack)):
        annotation = pack.annotation(i)
        its_boxes, its_ids = annotation.boxes.tolist(), annotation.box_labels.tolist()
        if i >= 5:
            groups[bytes(facts["source_xxh3"][i])].append((i, sorted(zip(its_ids, its_boxes, strict=True))))
        for n, (x1, y1, x2, y2) in enumerate(its_boxes):
            if x2 <= x1 or y2 <= y1 or min(x1, y1) < -1 or x2 > 641 or y2 > 481:
                empty.append(i)
            elif x1 <= 0.5 or y1 <= 0.5 or x2 >= 639.5 or y2 >= 479.5:
                border.append(i)
            if x2 > x1 and y2 > y1 and min(x2 - x1, y2 - y1) < 2:
                tiny.append(i)
            for other in range(n):
                if iou(its_boxes[n], its_boxes[other]) >= 0.9:
                    near[its_ids[n] == its_ids[other]].append(i)
    repeated = [group for group in groups.values() if len(group) > 1]
    conflicts = [group for group in repeated if any(labels != group[0][1] for _, labels in group)]

    def require(kind: str, records: list[int], objects: int) -> None:
        assert (kind in found) == bool(records)
        if records:
            assert sorted(found[kind].records.tolist()) == sorted(set(records)) and found[kind].objects == objects

    require("label-conflict", [i for group in conflicts for i, _ in group], len(conflicts))
    clean = [group for group in repeated if group not in conflicts]
    require("duplicate", [i for group in clean for i, _ in group], len(clean))
    require("double-box", near[True], len(near[True]))
    require("two-classes", near[False], len(near[False]))
    require("tiny-box", tiny, len(tiny))
    require("box-area", empty, len(empty))
    require("border-box", border, len(border))
    without = [i for i, many in enumerate(facts["boxes"][1]) if not many]
    require("no-object", without, len(without))
    assert near[True] and near[False] and conflicts and empty and len(ids) > 1000
    assert find_problems(pack).notes[0] == "equal images: 5 records have no digest of the source file"


def test_near_boxes_that_reach_out_of_their_images(tmp_path: Path) -> None:
    draw = np.random.default_rng(5)
    corner, sides = draw.uniform(-300, 100, (400, 2)), draw.uniform(5, 300, (400, 2))
    boxes = np.concatenate([corner, corner + sides], axis=1)
    boxes[1::2] = boxes[::2] + draw.normal(0, 0.01, (200, 4)) * np.tile(sides[::2], 2)
    boxes = boxes[draw.permutation(400)].astype(np.float32)
    facts = {"width": np.full(10, 64), "height": np.full(10, 64), "boxes": (boxes, np.full(10, 40))}
    found = problems(open_pack(labeled_pack(tmp_path / "pack", facts, ())))["double-box"]
    images = boxes.reshape(10, 40, 4).astype(float).tolist()
    assert found.objects == sum(iou(a, b) >= 0.9 for its in images for n, a in enumerate(its) for b in its[:n])


def test_equal_labels_in_another_order_are_no_conflict(tmp_path: Path) -> None:
    facts = random_labels(200, 3, 3, 1)
    values, lengths = facts["boxes"]
    ends = np.concatenate([[0], np.cumsum(lengths)])
    facts["source_xxh3"][1::2] = facts["source_xxh3"][::2]
    order = np.arange(len(values))
    for i in range(0, 200, 2):  # the second of each pair has the boxes of the first, from the last to the first
        lengths[i + 1] = lengths[i]
    starts = np.concatenate([[0], np.cumsum(lengths)])
    order = np.concatenate([
        np.arange(ends[i - i % 2], ends[i - i % 2] + lengths[i])[:: -1 if i % 2 else 1] for i in range(200)
    ])  # fmt: skip
    facts["boxes"], facts["box_labels"] = (values[order], lengths), facts["box_labels"][order]
    found = problems(open_pack(labeled_pack(tmp_path / "same", facts, CLASSES)))
    assert "label-conflict" not in found and found["duplicate"].objects == 100
    # one box of another class; another by 3 % of the image; classes of two boxes exchanged
    facts["box_labels"] = facts["box_labels"].copy()
    changed = [i for i in range(0, 200, 2) if lengths[i] >= 2][:3]
    first = [int(starts[i]) for i in changed]
    facts["box_labels"][first[0]] = (facts["box_labels"][first[0]] + 1) % 3
    facts["boxes"][0][first[1]] += 20
    a, b = first[2], first[2] + 1
    facts["box_labels"][[a, b]] = 0, 1
    twin = [int(starts[changed[2] + 1]) + lengths[changed[2]] - 1 - n for n in (0, 1)]
    facts["box_labels"][twin] = 1, 0
    found = problems(open_pack(labeled_pack(tmp_path / "other", facts, CLASSES)))
    assert sorted(found["label-conflict"].records.tolist()) == sorted([*changed, *(i + 1 for i in changed)])
    assert "1 file has different classes" in found["label-conflict"].text
    assert "2 files have equal classes in different places" in found["label-conflict"].text
    assert found["duplicate"].objects == 97


def test_boxes_that_are_odd_for_their_class(tmp_path: Path) -> None:
    """A box is compared with its class, not with all; one that the border cuts is small for a reason."""
    facts = random_labels(400, 3, 2, 5)
    boxes, ids = facts["boxes"][0], np.asarray(facts["box_labels"])
    draw = np.random.default_rng(0)
    side = np.where(ids == 0, 20, 200) * np.exp(draw.normal(0, 0.1, len(ids)))
    boxes[:, :2] = draw.uniform(10, 200, (len(ids), 2))
    boxes[:, 2:] = boxes[:, :2] + side[:, None]
    small, large = np.flatnonzero(ids == 0)[:2], np.flatnonzero(ids == 1)[:3]
    boxes[small[0], 2:] = boxes[small[0], :2] + 200  # a small class, as large as the other
    boxes[large[0], 2:] = boxes[large[0], :2] + 20
    boxes[large[1]] = 0, 0, 20, 20  # cut
    boxes[large[2], 2:] = boxes[large[2], :2] + (240, 40)
    pack = open_pack(labeled_pack(tmp_path / "pack", facts, CLASSES[:2]))
    found = problems(pack)
    ends = np.cumsum(facts["boxes"][1])
    of = {kind: [int(np.searchsorted(ends, box, "right"))] for kind, box in
          (("large-box", small[0]), ("small-box", large[0]), ("aspect-box", large[2]))}  # fmt: skip
    assert {kind: found[kind].records.tolist() for kind in of} == of
    example = found["small-box"].examples[0]
    assert (
        example.detail.startswith("bee, 20 x 20 px: 9.")
        and pack.annotation(example.record).boxes[example.boxes[0]][2] < 300
    )


@pytest.mark.parametrize("fault", ["swapped", "slipped", "same place"])
def test_landmarks_far_from_the_mean_shape(tmp_path: Path, fault: str) -> None:
    draw = np.random.default_rng(2)
    face = np.array([[30, 30], [70, 30], [50, 55], [35, 75], [65, 75]], float)
    turn = draw.normal(0, 0.2, 200)
    spin = np.stack([np.cos(turn), -np.sin(turn), np.sin(turn), np.cos(turn)], axis=1).reshape(-1, 2, 2)
    points = (face - 50) @ spin * draw.uniform(0.3, 1, (200, 1, 1)) + draw.uniform(45, 55, (200, 1, 2))
    points += draw.normal(0, 0.5, points.shape)
    if fault == "swapped":
        points[17, [0, 1]] = points[17, [1, 0]]
    else:
        points[17, 2 if fault == "slipped" else slice(None)] = {"slipped": (1, 90), "same place": 40}[fault]
    lengths = np.full(200, 5)
    lengths[-1] = 4
    facts = {
        "width": np.full(200, 100),
        "height": np.full(200, 100),
        "landmarks": (points.reshape(-1, 2)[:-1], lengths),
    }
    facts["landmarks"][0][0] = -20, 10
    found = problems(open_pack(labeled_pack(tmp_path / "pack", facts, ())))
    assert found["landmark-shape"].records.tolist()[0] in (0, 17) and {0, 17} == set(found["landmark-shape"].records)
    assert found["landmark-count"].records.tolist() == [199] and found["landmark-outside"].records.tolist() == [0]


def test_several_packs(tmp_path: Path) -> None:
    """Files of one in the other, counted once each, and classes that one lacks."""
    train, val = random_labels(300, 2, 3, 0), random_labels(100, 2, 2, 1)
    for facts in (train, val):
        facts["source_xxh3"] = np.random.default_rng(len(facts["width"])).integers(
            0, 256, (len(facts["width"]), 16), np.uint8
        )
    val["source_xxh3"][[3, 4]] = train["source_xxh3"][[7, 9]]
    packs = [
        open_pack(labeled_pack(tmp_path / name, facts, names))
        for name, facts, names in (("train", train, CLASSES), ("val", val, ("cat", "ant")))
    ]
    found = problems(join_packs(packs))
    leak = found["leak"]
    assert leak.records.tolist() == [7, 303, 9, 304] and leak.objects == 2
    assert "2 records of train (0.7%), 2 records of val (2.0%)" in leak.text
    assert leak.examples[0].pack == "train" and leak.examples[0].detail == "also in val, as images/00000003.jpg"
    assert found["class-in-one-pack"].text.startswith("val lacks bee.")
    assert "leak" not in problems(packs[0]) and "duplicate" not in problems(packs[0])
    ran = good("stats", tmp_path / "train", "--against", tmp_path / "val", "--problems")
    assert f"see them: packer view {tmp_path / 'train'} {tmp_path / 'val'}" in ran.out
    assert "wrong  4 records: Images in more than one pack" in ran.out
    listed = json.loads(good("stats", tmp_path / "train", "--against", tmp_path / "val", "--problems", "--json").out)
    assert listed["problems"][[one["kind"] for one in listed["problems"]].index("leak")]["records"] == [7, 303, 9, 304]


@pytest.mark.parametrize("names", [("ant", "bee"), ("bee", "ant"), ("bee",), ("cat",)])
def test_other_ids_of_the_same_names(tmp_path: Path, names: tuple[str, ...]) -> None:
    """Two packs of one source that were built apart: ``bee`` is 1 in one and 0 in the other."""
    for name, classes, seed in (("train", ("ant", "bee"), 0), ("val", names, 1)):
        labeled_pack(tmp_path / name, random_labels(60, 2, len(classes), seed), classes)
    command = ("stats", tmp_path / "train", "--against", tmp_path / "val")
    told, listed = good(*command, "--no-pixels").out, json.loads(good(*command, "--problems", "--json").out)
    found = [one for one in listed["problems"] if one["kind"] == "class-ids"]
    if names == ("bee",):
        assert found[0]["text"].startswith("bee is 1 in train, 0 in val.") and found[0]["level"] == "wrong"
        assert f"class ids  differ from those of {tmp_path / 'val'}: bee 1 (there 0)" in told
    elif names == ("bee", "ant"):
        assert found[0]["objects"] == 2 and "ant 0 (there 1), bee 1 (there 0)" in told
    else:
        assert not found and "class ids" not in told


def test_a_pack_without_labels_contradicts_nobody(tmp_path: Path) -> None:
    """Only records of packs that have a field are compared in it, also if the first of their group is of another."""
    known, bare = random_labels(60, 2, 3), random_labels(20, 2, 3, 1)
    known["label"], known["landmarks"] = np.arange(60) % 3, (np.ones((60, 2)), np.ones(60, int))
    known["source_xxh3"] = np.random.default_rng(2).integers(0, 256, (60, 16), np.uint8)
    known["source_xxh3"][8] = known["source_xxh3"][7]  # of another class
    bare["source_xxh3"] = known["source_xxh3"][:20].copy()
    bare["boxes"] = tuple(part[:n] for part, n in zip(known["boxes"], (known["boxes"][1][:20].sum(), 20), strict=True))
    bare["source_xxh3"][8] = 0
    del bare["box_labels"]
    packs = [labeled_pack(tmp_path / "bare", bare, ()), labeled_pack(tmp_path / "known", known, CLASSES)]
    found = problems(join_packs(packs))
    assert found["label-conflict"].records.tolist() == [7, 27, 28] and found["leak"].objects == 19
    assert "class-in-one-pack" not in found


def test_boxes_that_are_points(tmp_path: Path) -> None:
    boxes = np.array([[5, 5, 9, 9], [7, 7, 7, 7], [3, 4, 3, 9]])
    facts = {"width": np.full(1, 64), "height": np.full(1, 64), "boxes": (boxes, [3])}
    assert problems(open_pack(labeled_pack(tmp_path / "pack", facts, ())))["box-area"].objects == 2


def test_numbers_that_cannot_be_squared(tmp_path: Path) -> None:
    """pytest makes errors of NumPy's warnings, which a user would see in the terminal."""
    facts = random_labels(60, 2, 3)
    facts["source_xxh3"][:4] = 7
    facts["landmarks"] = np.array([[3e38, 1], [3e38, 1], [-3e38, 1], [1, 1]] * 15), np.ones(60, int)
    found = problems(open_pack(labeled_pack(tmp_path / "pack", facts, CLASSES)))
    assert found["label-conflict"].records[:4].tolist() == [0, 1, 2, 3]


def test_boxes_that_cannot_be_squared(tmp_path: Path) -> None:
    boxes = np.array([[-3e38, -3e38, 3e38, 3e38], [-3e38, -3e38, 3e38, 3e38], [3, 4, 30, 9]])
    facts = {"width": np.full(1, 64), "height": np.full(1, 64), "boxes": (boxes, [3])}
    assert problems(open_pack(labeled_pack(tmp_path / "pack", facts, ())))["box-area"].objects == 2


def test_class_folders(tmp_path: Path) -> None:
    """Real files: names of classes, equal files in two folders, a rare class, images of another size."""
    for c, name in enumerate(("Traffic Light", "traffic_lights", "dog")):
        for i in range(2 if c == 1 else 40):
            draw(tmp_path / "src" / name / f"{i}.jpg", 100 * c + i, 40, 30)
    (tmp_path / "src/dog/copy.jpg").write_bytes((tmp_path / "src/dog/0.jpg").read_bytes())
    (tmp_path / "src/dog/wrong.jpg").write_bytes((tmp_path / "src/Traffic Light/0.jpg").read_bytes())
    draw(tmp_path / "src/dog/icon.jpg", 7, 8, 6)
    good("build", tmp_path / "src", "-o", tmp_path / "pack", "--no-fingerprints", "--encode", "copy")
    found = find_problems(open_pack(tmp_path / "pack"), 0).found  # what is drawn looks alike
    assert [one.kind for one in found] == ["label-conflict", "class-names", "duplicate", "image-size", "rare-class"]
    assert [one.kind for one in found] == sorted((one.kind for one in found), key=ORDER.index)
    conflict = found[0].examples[0]
    assert conflict.detail == "Traffic Light / dog (equal to dog/wrong.jpg)" and conflict.path == "Traffic Light/0.jpg"
    assert found[1].text.startswith("Traffic Light (40) = traffic_lights (2):") and found[1].count == 2
    assert found[3].examples[0].detail == "8 x 6 px"
    lines = good("stats", tmp_path / "pack", "--problems").out.splitlines()
    assert lines[0].endswith("85 records; 6 kinds of problems")
    assert "has no effect with --plot" in refused(
        2, "stats", tmp_path / "pack", "--problems", "--plot", tmp_path / "a.png"
    )


def test_nothing_to_report(tmp_path: Path) -> None:
    for i in range(24):
        path = tmp_path / "src" / ("cat", "dog")[i % 2] / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        noise = np.random.default_rng(i).integers(0, 256, (6, 8, 3), np.uint8)
        Image.fromarray(noise).resize((40, 30)).save(path)
    good("build", tmp_path / "src", "-o", tmp_path / "pack", "--no-fingerprints")
    assert good("stats", tmp_path / "pack", "--problems").out.splitlines()[0].endswith("24 records; no problems found")
    (tmp_path / "src/cat/copy.png").write_bytes((tmp_path / "src/cat/0.png").read_bytes())
    good("build", tmp_path / "src", "-o", tmp_path / "pack", "--no-fingerprints", "--overwrite")
    assert good("stats", tmp_path / "pack", "--problems").out.splitlines()[0].endswith("25 records; 1 kind of problem")


def test_names_that_mean_the_same() -> None:
    alike = [
        ("Dog", "dogs"),
        ("fire truck", "fire-truck"),
        ("Berry", "berries"),
        ("bus", "Bus"),
        ("1-1", "1_1"),
        ("-dog", "dog"),
    ]
    assert all(plain_name(a) == plain_name(b) for a, b in alike)
    apart = [("bus", "bu"), ("glass", "gla"), ("cat", "car"), ("c", "cs"), ("1", "2"), ("C", "C++"), ("A+", "A-")]
    apart += [("3", "-3"), ("1.1", "11"), ("class 1-2", "class 12")]
    assert all(plain_name(a) != plain_name(b) for a, b in apart)


@pytest.mark.parametrize("kind", ["raw", "ragged", "boxes", "gray16", "copy"])
def test_every_kind_of_pack(make_pack: MakePack, kind: str) -> None:
    """Whatever fields a pack has; and twice the same pack, of which everything is a leak."""
    path = make_pack(kind, "lmdb")
    pack, again = open_pack(path), open_pack(make_pack(kind, "tfrecord"))
    assert not {"label-conflict", "leak", "duplicate"} & problems(pack).keys()
    assert problems(join_packs([pack, again]))["leak"].objects == len(pack)


def test_tags(tmp_path: Path) -> None:
    """Images with equal bytes and other tags; an image without any."""
    rows = ["image,old,large"]
    for i in range(8):
        draw(tmp_path / "src" / f"{i}.png", i // 2, format="PNG")  # two of each
        rows.append(f"{i}.png,{int(i in (2, 3, 4))},{int(i < 6)}")
    (tmp_path / "src/tags.csv").write_text("\n".join(rows) + "\n")
    good("build", tmp_path / "src", "-o", tmp_path / "pack", "--labels", f"list:{tmp_path / 'src/tags.csv'}")
    found = problems(open_pack(tmp_path / "pack"))
    assert found["label-conflict"].records.tolist() == [4, 5] and found["no-object"].records.tolist() == [6, 7]
    assert found["label-conflict"].examples[0].detail == "old, large / large (equal to 5.png)"
    assert found["duplicate"].records.tolist() == [0, 1, 2, 3, 6, 7]


# -- masks

NAMES = ("background", "ant", "bee", "cat")


def regions_by_hand(mask: np.ndarray) -> list[tuple[int, int, bool]]:
    """The connected regions of a mask, corners included: id, pixels, whether it touches the border."""
    high, wide = mask.shape
    seen, found = np.zeros(mask.shape, bool), []
    for start in np.ndindex(mask.shape):
        if seen[start]:
            continue
        todo, pixels = [start], []
        seen[start] = True
        while todo:
            y, x = todo.pop()
            pixels.append((y, x))
            for there in ((y + dy, x + dx) for dy in (-1, 0, 1) for dx in (-1, 0, 1)):
                inside = 0 <= there[0] < high and 0 <= there[1] < wide
                if inside and not seen[there] and mask[there] == mask[start]:
                    seen[there] = True
                    todo.append(there)
        at_border = any(y in (0, high - 1) or x in (0, wide - 1) for y, x in pixels)
        found.append((int(mask[start]), len(pixels), at_border))
    return found


def masked(path: Path, masks: list[np.ndarray | None], **more: Any) -> Pack:
    """A pack of these masks, with images of different bytes; `more` are lists of other fields of records."""
    with PackWriter(path, mask_classes=NAMES, ignore_id=255, classes=more.pop("classes", None)) as writer:
        for i, mask in enumerate(masks):
            image = np.full((*(40, 60), 3) if mask is None else (*mask.shape, 3), i, np.uint8)
            writer.write(image, mask=mask, **{name: values[i] for name, values in more.items()})
    return open_pack(path)


@pytest.mark.parametrize("seed", range(4))
def test_islands_against_loops(seed: int, tmp_path: Path) -> None:
    draw, masks = np.random.default_rng(seed), []
    for _ in range(12):
        mask = np.kron(draw.integers(0, 4, (8, 12)), np.ones((5, 5), np.int64)).astype(np.uint8)
        for _ in range(draw.integers(0, 12)):
            y, x, side = draw.integers(0, 37), draw.integers(0, 57), draw.integers(1, 4)
            mask[y : y + side, x : x + side] = draw.choice([0, 1, 2, 3, 255])
        masks.append(mask)
    found = problems(masked(tmp_path / "pack", masks))
    expected = {}
    for record, mask in enumerate(masks):
        sizes = [many for i, many, at_border in regions_by_hand(mask) if i != 255 and many < 9 and not at_border]
        if sizes:
            expected[record] = (len(sizes), sum(sizes))
    islands = found["mask-islands"]
    assert sorted(islands.records.tolist()) == sorted(expected)
    counts = [expected[record][0] for record in islands.records.tolist()]
    assert counts == sorted(counts, reverse=True)
    for example in islands.examples:
        many, pixels = expected[example.record]
        assert example.detail.startswith(f"{many} island{'s' if many > 1 else ''} of {pixels} pixel")
        x1, y1, x2, y2 = example.place
        inside = masks[example.record][y1:y2, x1:x2]
        assert max(inside.shape) < 9 and any(0 < (inside == i).sum() < 9 for i in range(4))


def test_ids_that_no_class_has(tmp_path: Path) -> None:
    masks = [np.zeros((20, 30), np.uint8) for _ in range(3)]
    masks[1][5:10, 4:8] = 3
    masks[2][:] = 255
    masked(tmp_path / "pack", masks)
    change(tmp_path / "pack", masks={"mask": MaskFacts("uint8", NAMES[:3], 255)})
    bad = problems(open_pack(tmp_path / "pack"))["mask-ids"]
    assert bad.records.tolist() == [1] and bad.level == "wrong"
    (example,) = bad.examples
    assert (example.detail, example.place) == ("3 (20 pixels)", (4, 5, 8, 10))
    change(tmp_path / "pack", masks={"mask": MaskFacts("uint8", (), 255)})
    assert "mask-ids" not in problems(open_pack(tmp_path / "pack"))


def test_empty_and_missing_masks(tmp_path: Path) -> None:
    background, border, all_ignored = (np.zeros((40, 60), np.uint8) for _ in range(3))
    border[:10], all_ignored[:] = 255, 255
    object_there = border.copy()
    object_there[20:30, 20:30] = 1
    found = problems(masked(tmp_path / "pack", [background, object_there, None, border, all_ignored]))
    assert found["empty-mask"].records.tolist() == [4, 0, 3]
    details = [example.detail for example in found["empty-mask"].examples]
    assert details == ["all ignored", "only background", "only background"]
    assert found["no-part"].records.tolist() == [2] and "mask-islands" not in found
    change(tmp_path / "pack", masks={"mask": MaskFacts("uint8", ("sky", *NAMES[1:]), 255)})  # a scene of sky is one
    assert problems(open_pack(tmp_path / "pack"))["empty-mask"].records.tolist() == [4]


def test_boxes_and_masks_that_disagree(tmp_path: Path) -> None:
    """Classes are compared by name: ids of boxes are others, and 'dog' has no masks."""
    masks = [np.zeros((40, 60), np.uint8) for _ in range(5)]
    masks[0][10:20, 10:20] = 1  # as its box
    masks[1][10:20, 10:20] = 2  # another class than its box
    masks[2][10:20, 10:20], masks[2][30:36, 44:50] = 1, 1  # one without a box
    masks[3][10:20, 10:20] = 255  # not known
    masks[4][10:20, 10:20], masks[4][30, 50] = 1, 1  # an island is not a region
    boxes = [np.array([[10, 10, 20, 20]], np.float32)] * 5
    labels = [["ant"], ["ant"], ["ant"], ["ant"], ["ant"]]
    boxes[4] = np.array([[9, 11, 19, 21], [30, 5, 50, 25]], np.float32)
    labels[4] = ["ant", "dog"]
    found = problems(masked(tmp_path / "pack", masks, classes=("dog", "bee", "ant"), boxes=boxes, box_labels=labels))
    without, alone = found["box-without-mask"], found["mask-without-box"]
    assert without.records.tolist() == [1] and without.examples[0].boxes == (0,)
    assert without.examples[0].detail == "ant: 0.0% of the box is ant in the mask"
    assert alone.records.tolist() == [2] and alone.examples[0].place == (44, 30, 50, 36)
    assert alone.examples[0].detail == "ant: a region of 36 pixels"


def test_many_ids_of_all_shapes(tmp_path: Path) -> None:
    """The place of each id is found from the runs in its rows: the islands are those counted by hand."""
    mask = np.random.default_rng(0).integers(0, 200, (40, 60)).astype(np.uint16)
    mask[:, 20:23], mask[5:9] = 777, 888
    with PackWriter(tmp_path / "pack") as writer:
        writer.write(np.zeros((40, 60, 3), np.uint8), mask=mask)
    (example,) = problems(open_pack(tmp_path / "pack"))["mask-islands"].examples
    sizes = [pixels for _, pixels, at_border in regions_by_hand(mask) if pixels < 9 and not at_border]
    assert example.detail.startswith(f"{len(sizes):,} islands of {sum(sizes):,} pixels")


def with_parts(path: Path, values: list[dict[str, Any]], **parts: str) -> Pack:
    """A pack of images with these parts."""
    with PackWriter(path, parts=parts) as writer:
        for i, of_image in enumerate(values):
            writer.write(np.full((40, 60, 3), i, np.uint8), parts=of_image)
    return open_pack(path)


def test_maps_without_content(tmp_path: Path) -> None:
    depths = [np.arange(2400, dtype=np.uint16).reshape(40, 60) for _ in range(5)]
    depths[1][:] = 700
    depths[2][:] = 0  # unknown
    depths[3][:] = 0
    depths[3].flat[:2] = 5, 6  # nearly
    depths[4][:] = 0
    depths[4].flat[:3] = 5, 6, 7  # a thousandth is enough
    far = [depth.astype(np.float32) for depth in depths]
    for one in far:
        one[one == 0] = np.nan
    pack = with_parts(
        tmp_path / "pack", [{"depth": a, "far": b} for a, b in zip(depths, far, strict=True)], depth="map", far="map"
    )
    flat = problems(pack)["flat-map"]
    assert flat.records.tolist() == [2, 3, 1] and "3 maps have" in flat.text
    details = {one.record: one.detail for one in flat.examples}
    assert details == {
        1: "depth: 700 everywhere", 2: "depth: 0 values of 2,400 known", 3: "depth: 2 values of 2,400 known"
    }  # fmt: skip
    assert find_problems(pack, 0).notes[0].startswith("maps: not looked at")


def test_images_without_parts(tmp_path: Path) -> None:
    text, code = "the same for all is no problem", np.zeros(3, np.float32)
    values: list[dict[str, Any]] = [{"text": text, "code": code} for _ in range(8)]
    del values[3]["code"], values[5]["code"], values[5]["text"]
    found = problems(with_parts(tmp_path / "pack", values, text="text", code="array"))
    missing = found.pop("no-part")
    assert found.pop("near-duplicate").count == 8  # they are of one color
    assert missing.records.tolist() == [3, 5] and not found
    assert missing.text.startswith("1 image has no text (12.5%), 2 images have no code (25.0%).")
    assert [one.detail for one in missing.examples] == ["no code", "no text, no code"]


def test_classes_of_masks_are_not_without_objects(tmp_path: Path) -> None:
    with PackWriter(tmp_path / "pack", classes=("background", "ant", "cow"), mask_classes=NAMES) as writer:
        mask, box = np.ones((40, 60), np.uint8), np.array([[0, 0, 60, 40]], np.float32)
        writer.write(np.zeros((40, 60, 3), np.uint8), mask=mask, boxes=box, box_labels=[1])
    assert problems(open_pack(tmp_path / "pack"))["empty-class"].text.endswith("1 of 3 classes never occurs: cow.")


def test_some_masks_or_none_are_read(tmp_path: Path) -> None:
    masks = [np.full((20, 30), 255, np.uint8) for _ in range(50)]
    pack = masked(tmp_path / "pack", masks)
    some = find_problems(pack, 10)
    (empty,) = [one for one in some.found if one.kind == "empty-mask"]
    assert empty.count == 10 and empty.records.min() == 0 and empty.records.max() == 49
    assert some.notes[0].startswith("masks: 10 of 50 records were looked at")
    assert "Empty masks" in good("stats", tmp_path / "pack", "--problems").out
    out = good("stats", tmp_path / "pack", "--problems", "--no-pixels").out
    assert "Empty masks" not in out and "masks: not looked at" in out
    listed = json.loads(good("stats", tmp_path / "pack", "--problems", "--json").out)["problems"]
    assert next(one for one in listed if one["kind"] == "empty-mask")["records"] == list(range(50))


@needs_cache
def test_some_masks_of_a_url_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("packer.stats.problems.MOST_REMOTE", 3)
    masked(tmp_path / "pack", [np.full((20, 30), 255, np.uint8) for _ in range(5)])
    found = find_problems(open_pack((tmp_path / "pack").as_uri(), cache_dir=tmp_path / "cache"))
    (empty,) = [one for one in found.found if one.kind == "empty-mask"]
    assert empty.records.tolist() == [0, 2, 4]
    assert found.notes[0] == "masks: 3 of 5 records were looked at; to look at all, copy the pack: packer pull"


def test_a_damaged_mask_is_an_error(tmp_path: Path) -> None:
    pack = masked(tmp_path / "pack", [np.full((20, 30), 1, np.uint8) for _ in range(3)])
    del pack
    _, key = damage_part(tmp_path / "pack", "mask")
    with pytest.raises(DamagedPack, match=key):
        find_problems(open_pack(tmp_path / "pack"))


def test_real_masks(real_data: Path, tmp_path: Path) -> None:
    """Street scenes that were made smaller: each has islands, counted again in Python."""
    good("build", real_data / "masks_camvid", "-o", tmp_path / "pack")
    pack = open_pack(tmp_path / "pack")
    islands = problems(pack)["mask-islands"]
    assert sorted(islands.records.tolist()) == list(range(len(pack)))
    for example in islands.examples[:2]:
        found = regions_by_hand(pack.mask(example.record))
        sizes = [many for _, many, at_border in found if many < 9 and not at_border]
        assert example.detail.startswith(f"{len(sizes)} islands of {sum(sizes)} pixels: ")


def test_values(tmp_path: Path) -> None:
    """Images with equal bytes and other values are conflicts, those with equal values duplicates."""
    with PackWriter(tmp_path / "p.lmdb") as writer:
        for shade, value in ((1, 30.5), (1, 31), (2, 40), (2, 40), (3, None), (3, None)):
            writer.write(np.full((8, 8), shade, np.uint8), value=value)
    found = problems(open_pack(tmp_path / "p.lmdb"))
    conflict = found["label-conflict"]
    assert conflict.records.tolist() == [0, 1] and "1 file has different values" in conflict.text
    assert conflict.examples[0].detail.startswith("30.5 / 31 (equal to ")
    assert found["duplicate"].records.tolist() == [2, 3, 4, 5]
