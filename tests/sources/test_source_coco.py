"""COCO: against a plain reading of the JSON, places of images, splits, ids, masks, and errors with their lines."""

from __future__ import annotations

import json
import math
import random

import numpy as np
import pytest
from drawn import centers_inside, packed_of

from packer.errors import BadLabel, NoImage, NoLabel, UsageError
from packer.model.geometry import clip_polygon
from packer.sources import coco_file, open_source, recognize, splits_of_labels
from packer.sources.coco_objects import join_rings, mask_box, mask_of, outline, read_rle, rle_text
from packer.sources.coco_source import CocoSource
from packer.sources.paths import is_of_split, splits_in
from packer.sources.source import SourceOptions

PEOPLE = ["nose", "left_eye", "right_eye"]


def image(key, name, width=40, height=30, **more):
    return {"id": key, "file_name": name, "width": width, "height": height, **more}


def thing(key, of, category=1, bbox=(1, 2, 3, 4), **more):
    return {"id": key, "image_id": of, "category_id": category, "bbox": list(bbox), **more}


def coco(images, annotations=(), categories=({"id": 1, "name": "cat"},)):
    return {"images": list(images), "annotations": list(annotations), "categories": list(categories)}


def text(content, indent=None):
    return json.dumps(content, indent=indent)


def opened(tree, *files, **options):
    names = tuple(f"{tree.root.decode()}/{name}" for name in files)
    first, more = (names[0], names[1:]) if names else (None, ())
    spec = "coco" if first is None else f"coco:{first}"
    return open_source(spec, tree, SourceOptions(more_files=more, **options))


def problems(source):
    return [error.line for error in source.unmatched_labels()]


def area(polygon):
    following = [*polygon[1:], polygon[0]]
    return sum(x * v - u * y for (x, y), (u, v) in zip(polygon, following, strict=True)) / 2


def plain(content):
    """The boxes and classes of each file name: a second, slow reading."""
    names = {c["id"]: c["name"] for c in content["categories"]}
    found = {}
    for entry in content["images"]:
        mine = [a for a in content["annotations"] if a["image_id"] == entry["id"]]
        xyxy = [(x, y, x + w, y + h) for x, y, w, h in (a["bbox"] for a in mine)]
        found[entry["file_name"]] = (xyxy, [names[a["category_id"]] for a in mine])
    return found


def points_of(polygon):
    return list(zip(polygon[::2], polygon[1::2], strict=True))


@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize("piece", [1, 300, 1 << 22])
def test_a_drawn_file_agrees_with_a_plain_reading(make_tree, monkeypatch, indent, piece):
    monkeypatch.setattr(coco_file, "PIECE_BYTES", piece)
    dice = random.Random(f"{indent} {piece}")
    images = [image(key, f"{key}.jpg", note='"}, {') for key in dice.sample(range(10**12), 40)]
    categories = [{"id": key, "name": f"c{key}"} for key in (1, 2, 3, 17, 90)]
    objects = [
        thing(key, dice.choice(images[:30])["id"], dice.choice(categories)["id"], [dice.random() for _ in range(4)])
        | {"attributes": [{"a": 1}, {"b": [{}, {}]}], "text": "]}, {"}
        for key in range(200)
    ]
    content = coco(images, objects, categories)
    keys = list(content)
    dice.shuffle(keys)
    tree = make_tree(dict.fromkeys((f"{i['id']}.jpg" for i in images), "") | {
        "a.json": text({key: content[key] for key in keys}, indent), "other.jpg": ""
    })  # fmt: skip
    source = opened(tree)
    assert source.classes == ("c1", "c2", "c3", "c17", "c90")
    for name, (boxes, labels) in plain(content).items():
        found = source.annotate(name.encode())
        assert (list(found.boxes), list(found.box_labels)) == (boxes, labels)
        assert found.polygons is None and found.keypoints is None and found.image_size == (40, 30)
        assert found.box_fields["category_id"] == tuple(int(label[1:]) for label in labels)
    assert problems(source) == []
    assert set(tree.images) - {*packed_of(tree, source)} == {b"other.jpg"}
    with pytest.raises(NoLabel, match=r"is not in a.json"):
        source.annotate(b"other.jpg")


def test_an_image_without_objects_is_a_negative(make_tree):
    tree = make_tree({"a.jpg": "", "a.coco.json": text(coco([image(7, "a.jpg")]))})
    found = opened(tree).annotate(b"a.jpg")
    assert (
        found.boxes == () == found.box_labels and found.box_fields["iscrowd"] == () and found.extras == {"image_id": 7}
    )


def test_several_parts_become_one_polygon_of_the_same_area(make_tree):
    square, other = [0, 0, 4, 0, 4, 4, 0, 4], [10, 1, 10, 3, 12, 3, 12, 1]  # they turn in different directions
    objects = [
        thing(1, 1, segmentation=[square, [1, 1, 2, 2], other]),
        thing(2, 1, segmentation=[[5, 5, 6.5, 5, 6, 7]]),
        thing(3, 1, segmentation=[]),
        {**thing(4, 1, segmentation=[square]), "bbox": []},
    ]
    tree = make_tree({"a.jpg": "", "c.json": text(coco([image(1, "a.jpg")], objects))})
    source = opened(tree)
    found = source.annotate(b"a.jpg")
    joined, *others = map(points_of, found.polygons)
    assert others == [[(5, 5), (6.5, 5), (6, 7)], [], [(0, 0), (4, 0), (4, 4), (0, 4)]]
    assert area(joined) == 16 + 4 and {(4, 0), (10, 1)} <= set(joined)
    inside = clip_polygon(np.array(joined, np.float32), 11, 30)
    assert area(inside.tolist()) == 16 + 2  # the lines between the parts have no width, wherever it is cut
    assert found.boxes[3] == (0, 0, 4, 4)
    assert problems(source) == [] and source.notes == ["1 polygon of fewer than 3 points was left out"]


def test_keypoints_lie_in_the_middle_of_their_pixels(make_tree):
    categories = [
        {"id": 1, "name": "person", "keypoints": PEOPLE},
        {"id": 2, "name": "car"},
    ]
    objects = [thing(1, 1, keypoints=[3, 4, 2, 0, 0, 0, 5, 6, 1]), thing(2, 1, 2)]
    images = [image(1, "a.jpg"), image(2, "b.jpg")]
    tree = make_tree({"a.jpg": "", "b.jpg": "", "c.json": text(coco(images, objects, categories))})
    source = opened(tree)
    assert source.flip_index == (0, 2, 1)
    assert source.annotate(b"a.jpg").keypoints == (((3.5, 4.5, 2), (0, 0, 0), (5.5, 6.5, 1)), ((0, 0, 0),) * 3)
    assert source.annotate(b"b.jpg").keypoints == ()


def test_categories_with_other_points_are_filled_up(make_tree):
    categories = [{"id": 1, "name": "face", "keypoints": PEOPLE}, {"id": 2, "name": "pen", "keypoints": ["end"]}]
    objects = [thing(1, 1, 2, keypoints=[1, 1, 2]), thing(2, 2, 2, keypoints=[1, 1, 2, 3, 3, 2])]
    images = [image(1, "a.jpg"), image(2, "b.jpg")]
    tree = make_tree({"a.jpg": "", "b.jpg": "", "c.json": text(coco(images, objects, categories), 1)})
    source = opened(tree)
    assert source.flip_index is None
    assert source.annotate(b"a.jpg").keypoints == (((1.5, 1.5, 2), (0, 0, 0), (0, 0, 0)),)
    with pytest.raises(BadLabel, match=r"c.json:\d+ \(object 2\): its keypoints have 6 numbers, not 3 for each of 1"):
        source.annotate(b"b.jpg")


# -- masks


def masks():
    dice = np.random.default_rng(5)
    for number in range(60):
        height, width = dice.integers(1, 30, 2)
        yield dice.random((height, width)) < number / 60
    ring = np.zeros((20, 30), bool)
    ring[3:17, 4:20] = True
    ring[6:10, 8:12] = False
    yield ring


def runs(mask):
    """Run lengths of a mask, the slow way."""
    counts, value = [0], False
    for pixel in mask.T.ravel().tolist():
        if pixel != value:
            counts.append(0)
            value = pixel
        counts[-1] += 1
    return counts


@pytest.mark.parametrize("mask", list(masks()))
def test_masks_of_run_lengths(mask):
    counts = runs(mask)
    written = rle_text(counts)
    assert read_rle([*mask.shape], written) == (*mask.shape, counts) == read_rle([*mask.shape], counts)
    assert (mask_of(*mask.shape, counts) == mask).all()
    if mask.any():
        ys, xs = np.nonzero(mask)
        assert mask_box(len(mask), counts) == (xs.min(), ys.min(), xs.max() + 1, ys.max() + 1)
        polygon = join_rings(outline(mask))
        assert math.isclose(area(polygon), mask.sum())
        assert (centers_inside(polygon, *mask.shape) == mask).all()


def test_a_known_text():
    # pycocotools 2.0.11: of a mask 3 x 4 whose middle row is set, and of one 30 x 40 with a box in it
    assert read_rle([3, 4], "11200000O") == (3, 4, [1, 1, 2, 1, 2, 1, 2, 1, 1])
    mask = np.zeros((30, 40), bool)
    mask[5:9, 10:20] = True
    assert rle_text(runs(mask)) == "a94j000000000000000000cb0"


@pytest.mark.parametrize("polygons", [False, True])
def test_a_crowd_is_kept_as_text_and_made_a_polygon_if_asked(make_tree, polygons):
    mask = np.zeros((30, 40), bool)
    mask[5:9, 10:20] = True
    rle = {"size": [30, 40], "counts": runs(mask)}
    packed = {"size": [30, 40], "counts": rle_text(runs(mask))}
    objects = [
        thing(1, 1, iscrowd=1, segmentation=rle, area=40),
        {**thing(2, 1, iscrowd=1, segmentation=packed), "bbox": None},
        thing(3, 1),
    ]
    tree = make_tree({"a.jpg": "", "c.json": text(coco([image(1, "a.jpg")], objects))})
    found = opened(tree, rle_polygons=polygons).annotate(b"a.jpg")
    assert found.box_fields["rle"] == (packed, packed, None) and found.box_fields["iscrowd"] == (1, 1, 0)
    assert found.box_fields["area"] == (40, None, None) and found.boxes[1] == (10, 5, 20, 9)
    if polygons:
        assert set(points_of(found.polygons[0])) == {(10, 5), (20, 5), (20, 9), (10, 9)}
        assert not found.polygons[2]
    else:
        assert found.polygons is None


@pytest.mark.parametrize(
    ("rle", "problem"),
    [
        ({"size": [30, 40], "counts": [5]}, "are of 5 pixels, but its size is of 1200"),
        ({"size": [40, 30], "counts": [1200]}, "it is 30x40, but the image is 40x30"),
        ({"size": [30], "counts": [30]}, "its size is not"),
        ({"size": [30, 40], "counts": "\u007f"}, "not run lengths"),
        ({"size": [30, 40], "counts": "o"}, "end inside a number"),
        ({"size": [30, 40], "counts": [1201, -1]}, "not run lengths"),
        ({"size": [30, 40], "counts": None}, "not run lengths"),
        ({"size": [1 << 20, 1 << 20], "counts": [1 << 40]}, "but the image is"),
    ],
)
def test_masks_that_are_none(make_tree, rle, problem):
    tree = make_tree({"a.jpg": "", "c.json": text(coco([image(1, "a.jpg")], [thing(5, 1, segmentation=rle)]))})
    with pytest.raises(BadLabel, match=problem) as caught:
        opened(tree).annotate(b"a.jpg")
    assert "c.json:1 (object 5)" in caught.value.line


# -- images and ids that name nothing, or too much


def test_what_names_nothing_is_listed_with_its_id_and_line(make_tree):
    images = [image(1, "a.jpg"), image(2, "gone.jpg"), {"id": 3}, {"file_name": "a.jpg"}]
    objects = [thing(10, 1), thing(11, 2), thing(12, 99), thing(13, "1", 1), {"id": 14}]
    tree = make_tree({"a.jpg": "", "c.json": text(coco(images, objects), 1)})
    source = opened(tree)
    assert len(source.annotate(b"a.jpg").boxes) == 2  # "1" is 1
    lines = (tree.root + b"/c.json", text(coco(images, objects), 1).splitlines())[1]
    found = list(source.unmatched_labels())
    assert [type(error) for error in found] == [NoImage, BadLabel, BadLabel, NoImage, NoImage]
    for error, words in zip(found, ("image 2", "image 3", "image None", "object 12", "object 14"), strict=True):
        file, line = error.where.split(" ")[0].split(":")
        assert f"({words})" in error.where and file == "c.json" and lines[int(line) - 1].strip() == "{"


def test_numbers_as_text_and_flat_polygons(make_tree):
    """As Roboflow and VIA write them."""
    ring = [1, 2, 4, 2, 4, 5]
    objects = [
        thing(1, "7", "1", bbox=["1.5000", "2", 3, "3e0"], segmentation=ring, area="9.5", iscrowd="0"),
        thing(2, "7", 1, bbox=[], segmentation=[list(map(str, ring))], keypoints=["1", "2", "2"]),
    ]
    tree = make_tree({"a.jpg": "", "c.json": text(coco([image(7, "a.jpg", width="40", height="30.0")], objects))})
    found = opened(tree).annotate(b"a.jpg")
    assert found.boxes == ((1.5, 2, 4.5, 5), (1, 2, 4, 5)) and found.image_size == (40, 30)
    assert [list(one) for one in found.polygons] == [ring, ring]
    assert len({*found.box_labels}) == 1 and found.keypoints[1] == ((1.5, 2.5, 2),)
    assert found.box_fields["area"][0] == 9.5 and found.box_fields["iscrowd"] == (0, 0)


@pytest.mark.parametrize(
    ("images", "objects", "problem"),
    [
        ([image(1, "a.jpg"), image(1, "b.jpg")], [], "another entry has the same id"),
        ([image(1, "a.jpg"), image(2, "a.jpg")], [], "another entry has the same file_name"),
        ([image(1, "a.jpg")], [thing(5, 1), thing(5, 1)], "another object has the same id as object 5 at c.json:1"),
        ([image("x", "a.jpg")], [thing("y", "x"), thing("y", "x")], "another object has the same id as object .y. at"),
        ([image(1, "a.jpg", width=-3)], [], "its size is -3 by 30"),
        ([image(1, "a.jpg", width="40px")], [], "its size is .40px. by 30"),
        ([image(1, "a.jpg")], [thing(5, 1, 9)], "is of category 9, which is not in the file"),
        ([image(1, "a.jpg")], [thing(5, 1, [9])], "is of category .9., which is not in the file"),
        ([image(1, "a.jpg")], [thing(5, 1, bbox=(1, 2, 3))], "its bbox has 3 numbers"),
        ([image(1, "a.jpg")], [thing(5, 1, bbox=(1, 2, -3, 3))], "the width of its bbox, -3, is below 0"),
        ([image(1, "a.jpg")], [thing(5, 1, bbox=(1, 2e10, 3, 3))], "2e.10 is not a coordinate"),
        ([image(1, "a.jpg")], [thing(5, 1, bbox=(1, "2,5", 3, 3))], "Expected `float`, got `str`"),
        ([image(1, "a.jpg")], [thing(5, 1, bbox=(1, "nan", 3, 3))], "Expected `float`, got `str`"),
        ([image(1, "a.jpg")], [thing(5, 1, bbox=())], "has no bbox"),
        ([image(1, "a.jpg")], [thing(5, 1, segmentation=[[1, 2, 3, 4, 5, 6, 7]])], "7 numbers, an x without y"),
        (
            [image(1, "a.jpg")],
            [thing(4, 1), thing(5, 1, segmentation=[[1, 2, 3, 4, 5, -2e10]])],
            r"json:1 \(object 5\).*-2e.10 is not a coordinate",
        ),
        ([image(1, "a.jpg")], [thing(5, 1, segmentation=[[1, 2, 3, 4, 5, 1e300]] * 2)], "1e.300 is not a coordinate"),
        ([image(1, "a.jpg")], [thing(5, 1, segmentation=[[[1, 2], [3, 4], [5, 6]]])], "Expected `float`, got `array`"),
    ],
)
def test_bad_entries(make_tree, images, objects, problem):
    tree = make_tree({"a.jpg": "", "b.jpg": "", "c.json": text(coco(images, objects))})
    with pytest.raises(BadLabel, match=problem) as caught:
        opened(tree).annotate(b"a.jpg")
    assert "c.json:1 (" in caught.value.line or "c.json:1:" in caught.value.line


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "is empty"),
        (b"[]", "is not an object"),
        (b'{"images": []}', 'has no "annotations" and "categories"'),
        (b'{"images": [],\n"annotations": [NaN],\n"categories": []}', "c.json:2: NaN is not JSON"),
        (b'{"images": [],\n"annotations": [{,}],\n"categories": []}', "c.json:2: is not JSON"),
        (b'{"images": [{"id": 1', "is not complete JSON"),
        (b'{"images": {},"annotations": [],"categories": []}', '"images" is not a list'),
        (b'{"images": [1],"annotations": [],"categories": []}', '"images" cannot be read: Expected `object`'),
        (b'{"images": [],"annotations": [],"categories": [{"id": 1}]}', "has no id or no name"),
        (b'{"images": [],"annotations": [],"categories": 5}', "is not a list of at most"),
        (b'{"images": [],"annotations": [],"categories": [{"id":1,"name":"a"},{"id":1,"name":"b"}]}', "is both"),
        (text(coco([])).encode("utf-16"), "is in UTF-16"),
        (b'{"x": ' + b"[" * 100_000, "is nested too deeply"),
    ],
)
def test_bad_files(make_tree, data, problem):
    tree = make_tree({"a.jpg": "", "c.json": data})
    with pytest.raises(UsageError, match=problem):
        opened(tree, "c.json")


def test_a_file_with_a_mark_and_names_of_any_bytes(make_tree):
    name = b"\xff.jpg"
    content = "\ufeff".encode() + text(coco([image(1, "??.jpg")], [thing(1, 1)])).encode()
    tree = make_tree({name: "", "c.json": content.replace(b"??", b"\xff")})
    assert len(opened(tree).annotate(name).boxes) == 1
    tree = make_tree({"c.json": text(coco([image(1, "a.jpg"), image(1, "\udcff.jpg")]), 1)})
    with pytest.raises(UsageError, match=r"c.json:11: is not JSON: invalid utf-16 surrogate pair"):
        opened(tree, "c.json")
    tree = make_tree({name: "", "a😀.jpg": "", "c.json": text(coco([image(1, "a😀.jpg")], [thing(1, 1)]))})
    assert len(opened(tree).annotate("a😀.jpg".encode()).boxes) == 1


def test_equal_category_names_are_one_class(make_tree):
    categories = [{"id": 0, "name": "fish", "supercategory": "none"}, {"id": 1, "name": "fish"}, {"id": 2, "name": "x"}]
    tree = make_tree({"a.jpg": "", "c.json": text(coco([image(1, "a.jpg")], [thing(1, 1, 1)], categories))})
    source = opened(tree)
    assert source.classes == ("fish", "x") and "categories 0, 1 are all named" in source.notes[0]
    assert source.annotate(b"a.jpg").box_labels == ("fish",)


# -- several files, and splits


def test_images_are_found_in_the_folder_of_the_split(make_tree):
    files = {f"{split}2017/1.jpg": "" for split in ("train", "val")}
    for split, box in (("train", 1), ("val", 2)):
        files[f"annotations/instances_{split}2017.json"] = text(
            coco([image(1, "1.jpg")], [thing(1, 1, bbox=[box] * 4)])
        )
    tree = make_tree(files)
    assert recognize(tree, SourceOptions()).spec == "coco"
    both = opened(tree)
    assert [both.annotate(f"{split}2017/1.jpg".encode()).boxes[0][0] for split in ("train", "val")] == [1, 2]
    train = opened(tree, split="train")
    assert packed_of(tree, train) == [b"train2017/1.jpg"] and problems(train) == []
    assert train.left_out(b"val2017/1.jpg") == "not in annotations/instances_train2017.json"
    with pytest.raises(UsageError, match=r'split="test" fits no folder; its folders are: annotations, tr'):
        opened(tree, split="test")


def test_roboflow(make_tree):
    files = {}
    for split in ("train", "valid"):
        files |= {
            f"{split}/1_jpg.rf.ab.jpg": "",
            f"{split}/_annotations.coco.json": text(coco([image(0, "1_jpg.rf.ab.jpg")])),
        }
    tree = make_tree(files)
    assert recognize(tree, SourceOptions()).spec == "coco"
    assert packed_of(tree, opened(tree)) == tree.images
    for split in ("valid", "val"):
        assert packed_of(tree, opened(tree, split=split)) == tree.images[1:]


def test_one_file_that_is_asked_for_is_its_split(make_tree):
    files = {f"{split}2017/1.jpg": "" for split in ("train", "val")}
    files |= {f"{split}.json": text(coco([image(1, "1.jpg")])) for split in ("train", "val")}
    tree = make_tree(files)
    assert CocoSource.splits(tree, SourceOptions()) == ("train", "val")
    train, val = (f"{tree.root.decode()}/{split}.json" for split in ("train", "val"))
    assert CocoSource.splits(tree, SourceOptions(file=val)) == ()
    assert splits_of_labels([f"coco:{val}"], tree, SourceOptions()) == ()
    assert splits_of_labels([f"coco:{train}", f"coco:{val}"], tree, SourceOptions()) == ("train", "val")


def test_a_split_by_folders_of_images(make_tree):
    images = [image(1, "train/1.jpg"), image(2, "val/1.jpg")]
    tree = make_tree({"train/1.jpg": "", "val/1.jpg": "", "all.json": text(coco(images))})
    source = opened(tree, split="val")
    assert packed_of(tree, source) == tree.images[1:]


def test_paths_of_another_machine_are_found_by_what_they_end_with(make_tree):
    names = ["C:\\data\\b\\1.jpg", "/home/me/c/1.jpg", "2.jpg", "d/3.jpg", "e/1.jpg"]
    tree = make_tree({"b/1.jpg": "", "c/1.jpg": "", "x/2.jpg": "", "c.json": text(coco(map(image, range(5), names)))})
    source = opened(tree)
    assert packed_of(tree, source) == [b"b/1.jpg", b"c/1.jpg", b"x/2.jpg"]
    assert source.notes == ['c.json: 2 images were found elsewhere, e.g. "C:\\data\\b\\1.jpg" at b/1.jpg']
    gone, unclear = problems(source)
    assert 'no image "d/3.jpg"' in gone and '"e/1.jpg" fits 2 images equally well: b/1.jpg, c/1.jpg' in unclear


def test_files_of_the_same_images_are_refused_once(make_tree):
    content = text(coco([image(1, "a.jpg"), image(2, "b.jpg")]))
    tree = make_tree({"a.jpg": "", "b.jpg": "", "one.json": content, "two.json": content})
    with pytest.raises(UsageError, match=r"one.json and two.json are of the same images; name one of them"):
        opened(tree)
    few = text(coco([image(1, "a.jpg")]))
    tree = make_tree({"two.json": text(coco([image(1, "a.jpg"), image(3, "c.jpg")])), "c.jpg": "", "one.json": few})
    with pytest.raises(UsageError, match="are of the same images"):
        opened(tree)


def test_an_image_of_two_files_is_bad(make_tree):
    one, two = text(coco([image(1, "a.jpg"), image(2, "b.jpg")])), text(coco([image(1, "b.jpg"), image(2, "c.jpg")]))
    tree = make_tree({"a.jpg": "", "b.jpg": "", "c.jpg": "", "one.json": one, "two.json": two})
    source = opened(tree)
    with pytest.raises(BadLabel, match=r"b.jpg: is in several files: one.json, two.json"):
        source.annotate(b"b.jpg")
    assert source.annotate(b"c.jpg").extras == {"image_id": 2}


def test_files_must_number_their_classes_alike(make_tree):
    more = [{"id": 5, "name": "cat"}, {"id": 6, "name": "dog"}]
    files = {"a.jpg": "", "b.jpg": "", "one.json": text(coco([image(1, "a.jpg")]))}
    tree = make_tree({**files, "two.json": text(coco([image(1, "b.jpg")], [thing(1, 1, 5)], more))})
    source = opened(tree, "one.json", "two.json")
    assert source.classes == ("cat", "dog") and source.annotate(b"b.jpg").box_labels == ("cat",)
    tree = make_tree({**files, "two.json": text(coco([image(1, "b.jpg")], [], more[::-1]))})
    with pytest.raises(UsageError, match=r"one.json and two.json have different categories"):
        opened(tree, "one.json", "two.json")


def test_boxes_and_keypoints_of_the_same_images_must_be_chosen(make_tree):
    boxes, points = thing(1, 1, segmentation=[]), thing(1, 1, keypoints=[1, 1, 2])
    captions = {"images": [image(1, "a.jpg")], "annotations": [{"id": 1, "image_id": 1, "caption": "a cat"}]}
    tree = make_tree({
        "t/a.jpg": "", "instances.json": text(coco([image(1, "a.jpg")], [boxes])),
        "person_keypoints.json": text(coco([image(1, "a.jpg")], [points])), "captions.json": text(captions),
        "panoptic.json": text(coco([image(1, "a.jpg")], [{"image_id": 1, "segments_info": [{"bbox": [1, 1, 2, 2]}]}])),
    })  # fmt: skip
    with pytest.raises(UsageError, match=r"instances.json. \(a COCO file of boxes\).*\(a COCO file of keypoints\)"):
        recognize(tree, SourceOptions())
    with pytest.raises(UsageError, match=r"instances.json \(boxes\), person_keypoints.json \(keypoints\); name those"):
        opened(tree)
    assert opened(tree, "person_keypoints.json").annotate(b"t/a.jpg").keypoints == (((1.5, 1.5, 2),),)


def test_words_of_splits():
    assert splits_in(b"annotations/instances_train2017.json") == {(b"train", b"2017")}
    assert splits_in(b"Valid/constraints.json") == {(b"val", b"")}
    assert {name for name, _ in splits_in(b"trainval.json")} == {b"trainval", b"train", b"val"}
    assert is_of_split(b"val2014/x.json", b"val") and not is_of_split(b"val2014/x.json", b"val2017")
    assert is_of_split(b"fold_1.json", b"fold_1") and not is_of_split(b"fold_12.json", b"fold_1")


def test_images_of_lvis_are_named_by_their_url(make_tree):
    """LVIS has no file_name, and takes images of both folders of COCO."""
    images = [{"id": i, "coco_url": f"http://images.org/{name}", "width": 40, "height": 30}
              for i, name in enumerate(("train2017/1.jpg", "val2017/1.jpg"))]  # fmt: skip
    objects = [thing(1, 0, bbox=[1, 2, 3, 4]), thing(2, 1, bbox=[5, 6, 7, 8])]
    tree = make_tree({"train2017/1.jpg": "", "val2017/1.jpg": "", "lvis_v1_train.json": text(coco(images, objects))})
    source = opened(tree)
    assert [source.annotate(image).boxes for image in tree.images] == [((1, 2, 4, 6),), ((5, 6, 12, 14),)]
