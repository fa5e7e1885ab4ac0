"""Files that broke a parser when it was fuzzed, or would have: each is read, or refused by an error that names it."""

from __future__ import annotations

import json

import pytest

from packer.errors import BadLabel, NoImage, UsageError
from packer.images.header import Header
from packer.packing.resolve import ClassIds, Resolver
from packer.sources import open_source
from packer.sources.source import SourceOptions

CVAT = b"<annotations><version>1.1</version>%s</annotations>"
TRACK = b'<track id="%s" label="dog"><box frame="%s" xtl="1" ytl="2" xbr="9" ybr="9"/></track>'
COCO = '{"images":[{"id":1,"file_name":"a.jpg"}],"annotations":[%s],"categories":[%s]}'
DLIB = b"<dataset><images><image file='a.jpg'><box top='1' left='1' width='5' height='5'/></image>%s</images></dataset>"
LABELME = {"imagePath": "a.jpg", "imageData": None}


def shape(points, label="dog", **more):
    return {**LABELME, "shapes": [{"label": label, "points": points, **more}]}


def face(x=1, label="dog", image="a.jpg"):
    return [
        {"image": image, "annotations": [{"label": label, "coordinates": {"x": x, "y": 2, "width": 1, "height": 2}}]}
    ]


def region(tags=("dog",), left=1):
    box = {"left": left, "top": 1, "width": 3, "height": 4}
    return {"assets": {"a0": {"asset": {"name": "a.jpg"}, "regions": [{"tags": tags, "boundingBox": box}]}}}


BAD_LABELS = {
    "a number that no float holds": ("labelme", "a.json", shape([[10**400, 2], [3, 4]], shape_type="rectangle")),
    "a point that is not a number": ("labelme", "a.json", shape([[float("nan"), 2]], shape_type="point")),
    "a corner beyond float32": ("labelme", "a.json", shape([[1e300, 2], [3, 4], [5, 9]])),
    "text as a coordinate": ("labelme", "a.json", shape([["nan", 2], [3, 4], [5, 9]])),
    "a mapping as a class": ("labelme", "a.json", shape([[1, 2], [3, 4], [5, 9]], label={"a": 1})),
    "a group that JSON cannot hold": ("labelme", "a.json", shape([[1, 2], [3, 4], [5, 9]], group_id=float("nan"))),
    "a center at infinity": ("createml", "b.json", face(float("inf"))),
    "a large center": ("createml", "b.json", face(10**400)),
    "no class": ("createml", "b.json", face(label=None)),
    "a list as a class": ("createml", "b.json", face(label=[["dog"]])),
    "a large edge": ("vott", "b-export.json", region(left=10**400)),
    "an edge that is a text": ("vott", "b-export.json", region(left="1_0")),
    "a tag that is a list": ("vott", "b-export.json", region(tags=[["a"]])),
    "a track with a bad number": ("cvat", "a.xml", CVAT % (TRACK % (b"x", b"0"))),
    "half of a surrogate pair as a class": ("createml", "b.json", face(label="\ud800")),
}
FIRST_FRAME = b"frame_000000.jpg"


@pytest.mark.parametrize("name", BAD_LABELS)
def test_bad_labels(make_tree, name):
    kind, file, content = BAD_LABELS[name]
    data = content if isinstance(content, bytes) else json.dumps(content)
    source = open_source(kind, make_tree({"a.jpg": "", FIRST_FRAME: "", file: data}), SourceOptions())
    with pytest.raises(BadLabel, match=file):
        Resolver(ClassIds(), "clip").annotation(
            [source.annotate(FIRST_FRAME if kind == "cvat" else b"a.jpg")], Header("jpeg", 40, 30, 3, 8)
        )


REFUSED = {
    "an unknown encoding": ("cvat", "a.xml", b'<?xml version="1.0" encoding="none"?>' + CVAT % b""),
    "a frame below 0": ("cvat", "a.xml", CVAT % (TRACK % (b"0", b"-1"))),
    "half of a frame": ("cvat", "a.xml", CVAT % (TRACK % (b"0", b"1.5"))),
    "a list of one number": ("list:{}/list.txt", "list.txt", b"5"),
    "a kind that is a number": ("labelme", "a.json", json.dumps(shape([[1, 2]], shape_type=7))),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(make_tree, name):
    spec, file, data = REFUSED[name]
    tree = make_tree({"a.jpg": "", FIRST_FRAME: "", file: data})
    with pytest.raises(UsageError) as raised:
        open_source(spec.format(tree.root.decode()), tree, SourceOptions())
    raised.value.line.encode()  # no half of a surrogate pair


@pytest.mark.parametrize("frame, size", [(b"999999999", b"4"), (b"1", b"999999999")])
def test_a_short_cvat_file_that_tells_of_many_frames(make_tree, frame, size):
    data = CVAT % (b"<meta><task><size>%s</size></task></meta>" % size + TRACK % (b"0", frame))
    source = open_source("cvat", make_tree({FIRST_FRAME: "", "b.jpg": "", "a.xml": data}), SourceOptions())
    assert source.annotate(FIRST_FRAME).boxes == ()  # a frame without objects
    (missing,) = source.unmatched_labels()
    assert isinstance(missing, NoImage) and f"frame_{int(frame):06d}" in missing.problem


def test_elements_in_elements_in_dlib_and_cvat(make_tree):
    """They took a minute, because the path to each was copied."""
    deep = b"<image>" * 50_000 + b"</image>" * 50_000
    source = open_source("dlib", make_tree({"a.jpg": "", "a.xml": DLIB % deep}), SourceOptions())
    assert source.annotate(b"a.jpg").boxes == ((1.0, 1.0, 6.0, 6.0),)


def test_many_categories_of_coco(make_tree):
    """They took minutes, because each was compared with all others."""
    categories = ",".join(f'{{"id":{i},"name":"{i % 60000}"}}' for i in range(65_000))
    source = open_source("coco", make_tree({"a.jpg": "", "c.json": COCO % ("", categories)}), SourceOptions())
    assert len(source.classes) == 60_000 and len(source.notes) == 5_000


def test_a_small_text_of_a_large_mask(make_tree):
    """A mask without a box was written out in full."""
    masks = ",".join(
        f'{{"id":{i},"image_id":1,"category_id":1,"segmentation":{{"size":[30000,30000],"counts":[5,10,899999985]}}}}'
        for i in range(200)
    )
    content = COCO % (masks, '{"id":1,"name":"cat"}')
    source = open_source("coco", make_tree({"a.jpg": "", "c.json": content}), SourceOptions())
    assert set(source.annotate(b"a.jpg").boxes) == {(0.0, 5.0, 1.0, 15.0)}


def test_labelme_notes_can_be_printed(make_tree):
    odd = {"label": "x", "points": [], "shape_type": "\ud800"}
    shapes = [*shape([[1, 2], [9, 9]], shape_type="rectangle")["shapes"], odd]
    data = json.dumps({**LABELME, "shapes": shapes})
    source = open_source("labelme", make_tree({"a.jpg": "", "a.json": data}), SourceOptions())
    assert "\\ud800" in source.notes[0]


def test_many_labels_of_one_image_in_a_list(make_tree):
    """For each label all lines of the image were compared."""
    lines = b"".join(b"a.jpg,c%d\n" % i for i in range(5_000))
    tree = make_tree({"a.jpg": "", "b.jpg": "", "list.csv": lines + b"b.jpg,7\n"})
    source = open_source(f"list:{tree.root.decode()}/list.csv", tree, SourceOptions())
    assert source.classes == tuple("01234567")
    with pytest.raises(BadLabel, match="several lines"):
        source.annotate(b"a.jpg")


def test_boxes_whose_parts_all_have_other_names(make_tree):
    """Each of them would have the parts of all: gigabytes, of a file of 100 KB."""
    boxes = b"".join(
        b"<box top='1' left='1' width='5' height='5'><part name='%d' x='1' y='1'/></box>" % i for i in range(1000)
    )
    data = b"<dataset><images><image file='a.jpg'>%s</image></images></dataset>" % boxes
    source = open_source("dlib", make_tree({"a.jpg": "", "a.xml": data}), SourceOptions())
    with pytest.raises(BadLabel, match=r"a.xml:1: has 1000 objects with 1000 keypoints each"):
        source.annotate(b"a.jpg")


def test_an_empty_cell_before_a_quote_in_a_list_with_tabs(make_tree):
    """Its tab was taken as a blank before the quote: the cells after it moved to the left."""
    tree = make_tree({"a.jpg": "", "l.txt": '"a.jpg"\t\t"dog"\n'})
    options = SourceOptions(columns="path split label")
    source = open_source(f"list:{tree.root.decode()}/l.txt", tree, options)
    assert source.annotate(b"a.jpg").label == "dog"
