"""Cells that hold several values, as tables of Kaggle have them: boxes, PredictionString, run lengths."""

from __future__ import annotations

import csv
import io
import json
import os
import re
from typing import Any

import numpy as np
import pytest
from PIL import Image

from packer.errors import BadLabel, UsageError
from packer.sources import list_lines, open_source
from packer.sources.list_cells import read_runs
from packer.sources.list_source import ListSource
from packer.sources.source import SourceOptions
from packer.sources.tree import find_tree

SIZE = (60, 40)
IMAGES = [f"img{i}" for i in range(6)]
XYWH = [(5, 4, 30, 20), (40, 30, 15, 9), (1, 2, 3, 4), (50, 1, 9, 30), (0, 0, 60, 40), (7.5, 8.5, 2.5, 1)]
"""As corners, most of them have no area or end before they begin; as widths, all fit."""


def written(rows: list[list[Any]]) -> str:
    text = io.StringIO()
    csv.writer(text).writerows(rows)
    return text.getvalue()


@pytest.fixture
def read(tmp_path):
    """Write a table beside real images; return the source and {stem: annotation}."""

    def of(text: str | bytes, size: tuple[int, int] = SIZE, name: str = "train.csv", **options: Any):
        for stem in IMAGES:
            Image.new("L", size).save(tmp_path / f"{stem}.png")
        (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
        tree, _ = find_tree(os.fsencode(tmp_path))
        source = open_source(f"list:{tmp_path / name}", tree, SourceOptions(**options))
        found = {os.fsdecode(i)[:-4]: source.annotate(i) for i in tree.images if source.left_out(i) is None}
        assert list(source.unmatched_labels()) == []
        return source, found

    of.root = tmp_path
    return of


def corners(box):
    x, y, w, h = box
    return (x, y, x + w, y + h)


SPELLINGS = [
    "[{}, {}, {}, {}]",
    "{} {} {} {}",
    "({}, {}, {}, {})",
    "[ {}  {} {} {}]",
    "{{'x': {}, 'y': {}, 'w': {}, 'h': {}}}",
]


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("header", ["bbox", "boxes", "Bounding_Box"])
@pytest.mark.parametrize("form", ["xmin ymin w h", "xmin ymin xmax ymax"])
def test_boxes_in_one_cell_are_told_by_their_values(read, spelling, header, form):
    rows = [["image_id", "width", "height", header, "source"]]
    spelling = spelling if "w" in form else spelling.replace("'w'", "'x2'").replace("'h'", "'y2'")
    boxes = {stem: [XYWH[i], XYWH[(i + 1) % 6]] for i, stem in enumerate(IMAGES)}
    for stem, its in boxes.items():
        rows += [[stem, *SIZE, spelling.format(*(box if "w" in form else corners(box))), "s"] for box in its]
    source, found = read(written(rows))
    assert f'train.csv: --columns "path width height [{form}] _"' in source.notes
    assert {stem: list(one.boxes) for stem, one in found.items()} == {
        k: list(map(corners, v)) for k, v in boxes.items()
    }
    assert all(one.box_labels == ("object",) * 2 and one.image_size == SIZE for one in found.values())


OBJECTS = [
    ({"height": 3, "width": 2, "left": 0, "top": 1}, None),
    ({"xmin": 0, "xmax": (0, 2), "ymin": 1, "ymax": (1, 3)}, None),
    ({"class": "red deer", "y": 1, "x": 0, "h": 3, "w": 2, "id": "7"}, "red deer"),
]


@pytest.mark.parametrize(("keys", "name"), OBJECTS)
@pytest.mark.parametrize("header", ["bbox", "annotations", "objects"])
@pytest.mark.parametrize("several", [False, True])
def test_the_keys_of_boxes_tell_their_numbers(read, keys, name, header, several):
    """Whatever the order of the keys: without them, the numbers of these boxes could be read as other ones."""

    def value(at, box):
        return at if isinstance(at, str) else box[at] if isinstance(at, int) else box[at[0]] + box[at[1]]

    def cell(box):
        one = json.dumps({key: value(at, box) for key, at in keys.items()})
        return f"[{one}, {json.dumps(dict(reversed(json.loads(one).items())))}]" if several else one

    rows = [["image_id", header], *([stem, cell(XYWH[i])] for i, stem in enumerate(IMAGES))]
    _, found = read(written(rows), size=(400, 300))
    for i, stem in enumerate(IMAGES):
        assert found[stem].boxes == (corners(XYWH[i]),) * (1 + several)
        assert found[stem].box_labels == (name or "object",) * (1 + several)


def test_an_object_without_a_number_is_named(read):
    cells = ['{"x": 1, "y": 2, "w": 30, "h": 20}'] * 5 + ['{"x": 1, "y": 2, "w": 30}']
    rows = [["image_id", "bbox"], *zip(IMAGES, cells, strict=True)]
    with pytest.raises(BadLabel, match="has an object without h"):
        read(written(rows), columns="path [xmin ymin w h]")


@pytest.mark.parametrize("labels", ['["cat", "dog"]', "cat dog", "['cat', 'dog']"])
def test_a_list_of_classes_beside_a_list_of_boxes_is_no_class(read, labels):
    rows = [["image", "bboxes", "labels"], *([s, "[[1, 2, 30, 39], [40, 2, 60, 39]]", labels] for s in IMAGES)]
    with pytest.raises(UsageError, match="have the classes of several boxes") as caught:
        read(written(rows), size=(64, 48))
    columns = re.findall(r'columns="([^"]+)"', str(caught.value))[0]
    assert read(written(rows), size=(64, 48), columns=columns)[1]["img0"].box_labels == ("object", "object")


def test_the_sizes_of_images_tell_corners(read):
    """Without columns of sizes, the images themselves say that widths would lead out of them."""
    _, found = read("image,label,bbox\n" + "".join(f'{s},cat,"[40, 20, 55, 38]"\n' for s in IMAGES))
    assert found["img0"].boxes == ((40, 20, 55, 38),) and found["img0"].box_labels == ("cat",)


def test_boxes_that_may_be_both_are_asked_for_with_columns_that_work(read):
    text = "image_id,label,bbox\n" + "".join(f'{s},cat,"[1, 2, 20, 30]"\n' for s in IMAGES)
    with pytest.raises(UsageError, match="can be read in several ways") as caught:
        read(text)
    written_columns = re.findall(r'columns="([^"]+)"', str(caught.value))
    assert written_columns == ["path class [xmin ymin w h]", "path class [xmin ymin xmax ymax]"]
    assert [read(text, columns=c)[1]["img0"].boxes for c in written_columns] == [((1, 2, 21, 32),), ((1, 2, 20, 30),)]


def test_several_boxes_in_a_cell_and_none(read):
    """Global Wheat 2021."""
    text = "image_name,BoxesString,domain\nimg0.png,1 2 30 40;40 2 60 9,a\nimg1.png,no_box,b\nimg2.png,5 6 50 20,a\n"
    _, found = read(text)
    assert found["img0"].boxes == ((1, 2, 30, 40), (40, 2, 60, 9)) and found["img0"].box_labels == ("object",) * 2
    assert found["img1"].boxes == () and found["img2"].boxes == ((5, 6, 50, 20),)


PREDICTIONS = {
    "class _ xmin ymin xmax ymax": ("14 1.0 {0} {1} {2} {3}", "14"),
    "class xmin ymin xmax ymax": ("dog {0} {1} {2} {3}", "dog"),
    "class xmin ymin w h": ("U+306F {0} {1} {4} {5}", "U+306F"),
    "_ xmin ymin w h": ("0.75 {0} {1} {4} {5}", "object"),
    "xmin ymin xmax ymax": ("{0} {1} {2} {3}", "object"),
}


@pytest.mark.parametrize("reading", PREDICTIONS)
def test_prediction_strings(read, reading):
    group, name = PREDICTIONS[reading]
    texts = {s: " ".join(group.format(*corners(b), *b[2:]) for b in XYWH[:i]) for i, s in enumerate(IMAGES)}
    source, found = read("image_id,PredictionString\n" + "".join(f"{s},{text}\n" for s, text in texts.items()))
    assert f'train.csv: --columns "path [{reading}]"' in source.notes
    for i, stem in enumerate(IMAGES):
        assert found[stem].boxes == tuple(map(corners, XYWH[:i])) and found[stem].box_labels == (name,) * i


def test_a_prediction_of_zeros_and_ones_is_asked_for(read):
    text = "image_id,PredictionString\n" + "".join(f"{s},1 1 2 50 39\n" for s in IMAGES)
    with pytest.raises(UsageError, match=r'columns="path \[class xmin ymin xmax ymax\]" or .*path \[_ xmin'):
        read(text)


def test_a_bad_cell_is_named_with_its_line(read):
    text = "image_id,bbox\n" + "".join(f'{s},"[40, 20, 55, 38]"\n' for s in IMAGES[1:]) * 30 + 'img0,"[1, 2, 3]"\n'
    with pytest.raises(BadLabel, match=r'train.csv:152: "\[1, 2, 3\]" has 3 values, which are not groups of 4'):
        read(text)


# -- run lengths


def kaggle(mask: np.ndarray) -> str:
    """As in Kaggle's own notebooks: pixels numbered from 1, from top to bottom, then from left to right."""
    pixels = np.concatenate([[0], mask.T.flatten(), [0]])
    runs = np.where(pixels[1:] != pixels[:-1])[0] + 1
    runs[1::2] -= runs[::2]
    return " ".join(map(str, runs))


def drawn(count: int, shape=(40, 60)) -> list[np.ndarray]:
    random = np.random.default_rng(7)
    rows, columns = np.mgrid[: shape[0], : shape[1]]
    masks = []
    for _ in range(count):
        y, x, r = random.integers(8, shape[0] - 8), random.integers(8, shape[1] - 8), random.integers(3, 8)
        masks.append((np.hypot(rows - y, columns - x) < r).astype(np.uint8))
    return masks


def decoded(rle) -> np.ndarray:
    coco = pytest.importorskip("pycocotools.mask")
    return coco.decode({"size": rle["size"], "counts": rle["counts"].encode()})


@pytest.mark.parametrize("header", ["EncodedPixels", "rle", "rle_mask", "segmentation", "annotation"])
@pytest.mark.parametrize("by_rows", [False, True])
def test_run_lengths_of_objects(read, header, by_rows):
    """Several lines are several objects, an empty one an image without; Carvana's go along the rows."""
    masks = drawn(6)
    runs = [kaggle(mask.T if by_rows else mask) for mask in masks]
    lines = [f"img{i // 2},{text},c{i % 2}" for i, text in enumerate(runs)] + ["img3,,c0", "img4,,c1"]
    source, found = read("\n".join([f"ImageId,{header},class", *lines]) + "\n")
    assert f'train.csv: --columns "path {"rle:rows" if by_rows else "rle"} class"' in source.notes
    for i in range(3):
        annotation = found[f"img{i}"]
        assert annotation.box_labels == ("c0", "c1")
        for box, rle, mask in zip(annotation.boxes, annotation.rles, masks[2 * i :], strict=False):
            assert (decoded(rle) == mask).all()
            ys, xs = np.nonzero(mask)
            assert box == (xs.min(), ys.min(), xs.max() + 1, ys.max() + 1)
    assert all(found[s].boxes == () and found[s].box_labels == () and found[s].rles is None for s in ("img3", "img4"))


def test_the_masks_are_those_of_pycocotools():
    coco = pytest.importorskip("pycocotools.mask")
    random = np.random.default_rng(3)
    full, column = np.ones((5, 7), np.uint8), np.zeros((5, 7), np.uint8)
    column[:, 2:4] = 1
    for mask in [*drawn(20), *(random.random((9, 11, 13)) < 0.4).astype(np.uint8), full, column]:
        height, width = mask.shape
        wanted = coco.encode(np.asfortranarray(mask))["counts"].decode()
        x, y, w, h = coco.toBbox({"size": [height, width], "counts": wanted.encode()}).tolist()
        for by_rows in (False, True):
            box, rle = read_runs(kaggle(mask.T if by_rows else mask).encode(), (width, height), by_rows)
            assert rle == {"size": [height, width], "counts": wanted} and box == (x, y, x + w, y + h)


@pytest.mark.parametrize(("cell", "problem"), [
    ("1 5 20", "are not run lengths"), ("20 5 1 2", "are not run lengths"), ("1 5 3 2", "are not run lengths"),
    ("1 0", "are not run lengths"), ("0 4", "are not run lengths"), ("1 2401", "ends at pixel 2401"),
    ("2400 2", "ends at pixel 2401"), ("a b", "are not run lengths"), ("1.5 2", "are not run lengths"),
    ("9" * 30 + " 2", "are not run lengths"),
])  # fmt: skip
def test_bad_run_lengths_are_named_with_their_line(read, cell, problem):
    with pytest.raises(BadLabel, match=rf"^train.csv:2: .*{problem}"):
        read(f"path,x\nimg0.png,{cell}\n", columns="path rle")


@pytest.mark.parametrize("header", ["ImageId_ClassId", "Image_Label"])
def test_a_class_behind_the_path(read, header):
    """Severstal, and the clouds: four lines for each image, most of them empty."""
    (mask,) = drawn(1)
    lines = [
        f"{s}.png_{c},{kaggle(mask) if (i + c) % 3 == 0 else ''}" for i, s in enumerate(IMAGES) for c in (1, 2, 3, 4)
    ]
    _, found = read("\n".join([f"{header},EncodedPixels", *lines]) + "\n")
    assert found["img0"].box_labels == ("3",) and found["img2"].box_labels == ("1", "4")
    assert (decoded(found["img2"].rles[1]) == mask).all()


# -- what is no class


def many(read, cells, header="id,label", **options):
    names = [f"x{i:03d}" for i in range(40)]
    text = "\n".join([header, *(f'{name},"{cell}"' for name, cell in zip(names, cells, strict=True))]) + "\n"
    return read(text, **options)


@pytest.fixture
def read40(tmp_path):
    for i in range(40):
        Image.new("L", SIZE).save(tmp_path / f"x{i:03d}.png")

    def of(text, **options):
        (tmp_path / "train.csv").write_text(text)
        tree, _ = find_tree(os.fsencode(tmp_path))
        return open_source(f"list:{tmp_path / 'train.csv'}", tree, SourceOptions(**options))

    return of


@pytest.mark.parametrize(("cells", "what", "columns"), [
    ([f"a photo of thing {i}" for i in range(40)], "texts", "path text"),
    ([f"person-{i}" for i in range(40)], "names of their own", "path label"),
])  # fmt: skip
def test_as_many_classes_as_images_stop(read40, cells, what, columns):
    with pytest.raises(UsageError, match=f'40 classes for 40 images.*look like {what}.*columns="{columns}"'):
        many(read40, cells)
    assert many(read40, cells, columns=columns)


@pytest.mark.parametrize("header", ["id,label", "id,thing"])
@pytest.mark.parametrize("cell", ["12 5 30 7 50 9 {}00 1", "dog {} 2 50 39", "1 7 {}", "[{}, 2, 50, 39]"])
def test_cells_of_numbers_are_no_classes(read40, header, cell):
    cells = [cell.format(i + 1) for i in range(40)]
    with pytest.raises(UsageError) as caught:
        many(read40, cells, header)
    for columns in re.findall(r'columns="([^"]+)"', str(caught.value)):
        assert many(read40, cells, header, columns=columns)
    assert many(read40, cells, header, columns="path label").annotate(b"x000.png").label == cells[0]


# -- corners or centers


@pytest.mark.parametrize("centers", [False, True])
def test_x_and_y_before_a_width_are_told_by_the_images(read, centers):
    """RSNA's pneumonia: lines without numbers are images without objects."""
    boxes = {
        s: (x + (w / 2) * centers, y + (h / 2) * centers, w, h) for s, (x, y, w, h) in zip(IMAGES, XYWH, strict=True)
    }
    lines = [f"{s},{','.join(map(str, boxes[s]))},1" for s in IMAGES[1:]] + ["img0,,,,,0"]
    source, found = read("\n".join(["patientId,x,y,width,height,Target", *lines]) + "\n")
    assert {s: one.boxes for s, one in found.items() if one.boxes} == {
        s: (corners(box),) for s, box in zip(IMAGES[1:], XYWH[1:], strict=True)
    }
    assert found["img0"].boxes == () and found["img1"].box_labels == ("1",) and source.classes == ("0", "1")


def test_the_boxes_of_vgg_face2_have_a_corner(read):
    _, found = read("NAME_ID,X,Y,W,H\n" + "".join(f"{s},30,20,5,6\n" for s in IMAGES))
    assert {one.boxes for one in found.values()} == {((30, 20, 35, 26),)}


def test_corners_or_centers_are_asked_for(read):
    text = "image,x,y,w,h,label\n" + "".join(f"{s},30,20,5,6,cat\n" for s in IMAGES)
    with pytest.raises(UsageError, match="may be a corner or the center") as caught:
        read(text)
    written_columns = re.findall(r'columns="([^"]+)"', str(caught.value))
    found = [read(text, columns=c)[1]["img0"] for c in written_columns]
    assert [one.boxes for one in found] == [((30, 20, 35, 26),), ((27.5, 17, 32.5, 23),)]
    assert found[0].box_labels == ("cat",)


# -- tools


@pytest.mark.parametrize("vertices", [2, 4])
def test_automl_vision(read, vertices):
    more = ("0.6,0.2", "0.1,0.5") if vertices == 4 else (",", ",")
    line = "{},gs://bucket/set/{}.png,{},0.1,0.2,{},0.6,0.5,{}\n"
    sets = ["TRAIN", "TRAIN", "VALIDATION", "TEST", "UNASSIGNED"]
    text = "".join(line.format(part, s, "cat", *more) for part, s in zip(sets, IMAGES, strict=False))
    text += "TRAIN,gs://bucket/set/img5.png,,,,,,,,,\n" + line.format("TRAIN", "img0", "dog", *more)
    _, found = read(text)
    assert found["img0"].boxes == ((0.1, 0.2, 0.6, 0.5),) * 2 and found["img0"].box_labels == ("cat", "dog")
    assert found["img0"].relative and found["img5"].boxes == ()


def test_automl_vision_classes(read):
    source, found = read("".join(f"TRAIN,gs://b/{s}.png,c{i % 2}\n" for i, s in enumerate(IMAGES)))
    assert [found[s].label for s in IMAGES] == ["c0", "c1"] * 3 and source.has_splits


@pytest.mark.parametrize("names", ["", "cat\ndog\nbird\n"])
def test_keras_yolo(read, tmp_path, names):
    """Roboflow's: class ids behind the numbers, the names in a file."""
    (tmp_path / "_classes.txt").write_text(names)
    text = "".join(f"{s}.png 1,2,30,39,0 5,6,20,9,{i % 2}\n" for i, s in enumerate(IMAGES))
    source, found = read(text, name="_annotations.txt")
    assert found["img1"].boxes == ((1, 2, 30, 39), (5, 6, 20, 9))
    assert found["img1"].box_labels == (("cat", "dog") if names else ("0", "1"))
    assert source.classes == (("cat", "dog", "bird") if names else ("0", "1"))


CLASS_LISTS = {
    "class_list.txt": "1 cat\n2 dog\n3 bird\n", "ids.txt": "0: polar bear\n1: dog\n", "names.csv": "cat,0\ndog,1\n",
    "labelmap.txt": "# label:color_rgb:parts:actions\n1:128,0,0::\n", "_classes.txt": "1\n2\n",
}  # fmt: skip


@pytest.mark.parametrize("name", CLASS_LISTS)
def test_a_file_of_class_names_is_no_list(make_tree, name):
    """Though 1 is also the name of an image."""
    tree = make_tree({"1.jpg": "", "2.jpg": "", "3.jpg": "", name: CLASS_LISTS[name]})
    assert ListSource.recognize(tree) == []


# -- many at once


def test_boxes_are_read_at_once_as_they_are_alone(read, monkeypatch):
    """Also where lines repeat, differ in the size, lack a class, or hold another number of boxes."""
    random = np.random.default_rng(5)
    lines = [f'{s},60,40,c{i % 3},"[{i}, 2, 3.5, 4]"' for s in IMAGES for i in range(9)]
    odd = ['img0,60,40,c1,"[0, 2, 3.5, 4]"', "img1,60,41,c1,[]", "img2,60,40,,1 2 3 4", 'img3,60,40,c1,"[1, 2, 3]"']
    odd += ['img4,60,40,c1,"[1, 2, 3, 4], [5, 6, 7, 8]"', "img5,60,40,c1,"]
    text = "\n".join(["path,width,height,class,bbox", *random.permutation([*lines, *odd]).tolist()]) + "\n"

    def every():
        for stem in IMAGES:
            Image.new("L", SIZE).save(root / f"{stem}.png")
        (root / "train.csv").write_text(text)
        tree, _ = find_tree(os.fsencode(root))
        options = SourceOptions(columns="path width height class [xmin ymin w h]")
        source = open_source(f"list:{root / 'train.csv'}", tree, options)
        found = []
        for image in tree.images:
            try:
                found.append(source.annotate(image))
            except BadLabel as error:
                found.append(error.line)
        return found, source.notes

    root = read.root
    at_once = every()
    monkeypatch.setattr(list_lines, "_plain_block", lambda *_: None)
    assert at_once == every() and sum(isinstance(one, str) for one in at_once[0]) == 3


# -- how texts are written


@pytest.mark.parametrize("change", [
    lambda text: "\ufeff" + text, lambda text: text.replace("\n", "\r"), lambda text: text.replace("\n", "\r\n"),
    lambda text: text.replace(",", ";"), lambda text: text.replace(",", " , "), lambda text: text.replace(",", "\t"),
    lambda text: text.replace("60", '"60.0000"').replace("30", "30.000"),
    lambda text: text.replace("e.g", '"e.g"'), lambda text: text.encode("utf-16"),
])  # fmt: skip
def test_texts_in_many_spellings(read, change):
    text = "filename,width,height,class,xmin,ymin,xmax,ymax\n" + "".join(
        f"{s}.png,60,40,caf\u00e9,1,2,30,39\n" for s in IMAGES
    )
    _, found = read(change(text))
    assert all(one.boxes == ((1, 2, 30, 39),) and one.box_labels == ("café",) for one in found.values())
    assert all(one.image_size == SIZE for one in found.values())


@pytest.mark.parametrize(("line", "problem"), [
    ("img0.png;60;40;cat;1,5;2;30;39", r'train.csv:2: "1,5" is not a number'),
    ("img0.png;60;40.5;cat;1;2;30;39", r'train.csv:2: its height "40.5" is not a whole number'),
    ("img0.png;60;40;cat;1;2;30;3 9", r'train.csv:2: "3 9" is not a number'),
])  # fmt: skip
def test_numbers_that_are_none_are_named_with_their_line(read, line, problem):
    header = "filename;width;height;class;xmin;ymin;xmax;ymax"
    with pytest.raises(BadLabel, match=problem):
        read("\n".join([header, line, *(f"{s}.png;60;40;cat;1;2;30;39" for s in IMAGES[1:])]) + "\n")


def test_a_class_in_latin_1_is_named_with_its_line(read):
    text = "filename,class,xmin,ymin,xmax,ymax\n" + "".join(f"{s}.png,caf\u00e9,1,2,30,39\n" for s in IMAGES)
    with pytest.raises(UsageError, match=r'train.csv: the class "caf.*" in line 2 is not in UTF-8'):
        read(text.encode("latin-1"))
