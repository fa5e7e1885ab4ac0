"""YOLO: the row grammar against a regex, places of labels, names, keypoints, splits."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packer.errors import BadLabel, NoImage, NoLabel, UsageError
from packer.sources import open_source
from packer.sources.source import SourceOptions
from packer.sources.yolo_source import BadRow, parse_rows

NUMBER = rb"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"
ROW = re.compile(rb"[ \t]*([0-9]+)((?:[ \t]+%s){4}(?:(?:[ \t]+%s){2})*)[ \t]*" % (NUMBER, NUMBER))


def oracle(data: bytes) -> int | None:
    """How many rows the file has, None where it is bad: a second reading of the grammar."""
    count = 0
    for line in re.split(rb"\r\n|\r|\n", data.removeprefix(b"\xef\xbb\xbf")):
        if not line.strip(b" \t"):
            continue
        row = ROW.fullmatch(line)
        if row is None or int(row[1]) >= 20:
            return None
        values = [float(v) for v in row[2].split()]
        if any(abs(v) > 1e9 for v in values) or (len(values) == 4 and min(values[2:]) < 0):
            return None
        count += 1
    return count


odd_tokens = "0 1 19 20 00 -1 +1 0.5 .5 5. . 1e-3 1e400 nan inf 1_0 0x1 １ 0.5\u2028 -0.1 12px # a"
tokens = st.sampled_from(odd_tokens.split(" ")) | st.floats(0, 1).map(str)
good = st.tuples(st.integers(0, 21), st.lists(st.floats(0, 1).map(str), min_size=3, max_size=10)).map(
    lambda row: f"{row[0]} {' '.join(row[1])}"
)
odd_lines = st.sampled_from(["", " ", "0\t.5  .5 .5 .5 ", "0 1 1 1 1\u2028"])
lines = good | st.lists(tokens, max_size=8).map(" ".join) | odd_lines


@settings(derandomize=True, deadline=None, max_examples=300)
@given(st.lists(lines, max_size=4), st.sampled_from(["\n", "\r\n", "\r"]), st.booleans(), st.booleans())
def test_the_grammar_agrees_with_a_regex(rows, end, bom, last):
    data = ("\ufeff" * bom + end.join(rows) + end * last).encode()
    expected = oracle(data)
    try:
        found = len(parse_rows(data, 20).boxes)
    except BadRow as error:
        assert expected is None, error
        assert 1 <= error.line <= len(rows)
    else:
        assert found == expected


def test_boxes_and_outlines():
    rows = parse_rows(b"\xef\xbb\xbf3 .5 0.5 0.5 1\r\n\r\n0\t0.1 0.2  0.3 0.4 0.2 0.8 ")
    assert rows.classes == [3, 0]
    assert rows.boxes == [(0.25, 0.0, 0.75, 1.0), (0.1, 0.2, 0.3, 0.8)]
    assert rows.polygons == [(), ((0.1, 0.2), (0.3, 0.4), (0.2, 0.8))]


def test_keypoints():
    assert parse_rows(b"0 .5 .5 1 1 .1 .2 1 .3 .4 0", 1, (2, 3)).keypoints == [((0.1, 0.2, 1.0), (0.3, 0.4, 0.0))]
    assert parse_rows(b"0 .5 .5 1 1 .1 .2", 1, (1, 2)).keypoints == [((0.1, 0.2, 2.0),)]
    with pytest.raises(BadRow, match="has 5 columns, but kpt_shape \\[2, 3\\] needs 11"):
        parse_rows(b"0 .5 .5 1 1", 1, (2, 3))


@pytest.mark.parametrize(("row", "message"), [
    ("0 .5 .5 1", "has 4 columns, but a box needs 5"),
    ("0 .5 .5 1 1 .9", "has 6 columns.*kpt_shape in data.yaml"),
    ("80 .5 .5 1 1", "class 80 is not among the 80 classes"),
    ("-1 .5 .5 1 1", 'class "-1" is not a whole number'),
    ("1.0 .5 .5 1 1", 'class "1.0" is not a whole number'),
    ("9" * 5000 + " .5 .5 1 1", "is not a whole number"),
    ("0 .5 .5 nan 1", '"nan" is not a number'),
    ("0 .5 .5 1_0 1", '"1_0" is not a number'),
    ("0 .5 .5 0x1 1", '"0x1" is not a number'),
    ("0 .5 .5 １ 1", '"１" is not a number'),
    ("0 .5 .5 1e400 1", '"1e400" is not a number'),
    ("0 .5 .5 -0.1 1", "width -0.1 is below 0"),
    ("0 .5 .5 1 \x1b[31m", "is not a number"),
])  # fmt: skip
def test_errors_name_file_line_and_value(make_tree, row, message):
    names = "names: [" + ", ".join(f"c{i}" for i in range(80)) + "]"
    tree = make_tree({"images/a.jpg": "", "labels/a.txt": f"0 .5 .5 1 1\n\n{row}\n", "data.yaml": names})
    with pytest.raises(BadLabel, match=message) as caught:
        open_source("yolo", tree, SourceOptions()).annotate(b"images/a.jpg")
    assert str(caught.value).startswith("labels/a.txt:3: ") and str(caught.value).isprintable()


def test_places_of_labels(make_tree):
    one = "1 .5 .5 1 1\n"
    tree = make_tree({
        "images/a.jpg": "", "labels/a.txt": one, "images/a.txt": "a caption",
        "images/deep/images/b.jpg": "", "images/deep/labels/b.txt": one,
        "train/images/c.JPG": "", "train/labels/c.txt": "",
        "beside/d.png": "", "beside/d.txt": one,
        "images/e.jpg": "",
        "images/f.jpg": "", "images/f.png": "", "labels/f.txt": one,
        "labels/orphan.txt": one, "beside/orphan.txt": one, "labels/classes.txt": "x\ny\n",
        "README.txt": "0 1 1 1 1\n", "beside/notes.txt": "hello", "beside/empty.txt": "",
    })  # fmt: skip
    source = open_source("yolo", tree, SourceOptions())
    assert source.classes == ("x", "y")
    for image in (b"images/a.jpg", b"images/deep/images/b.jpg", b"beside/d.png"):
        annotation = source.annotate(image)
        assert annotation.box_labels == ("y",) and annotation.relative and annotation.polygons is None
    assert source.annotate(b"train/images/c.JPG").boxes == ()
    with pytest.raises(NoLabel, match=r"^images/e\.jpg: has no label file e\.txt; add an empty file"):
        source.annotate(b"images/e.jpg")
    with pytest.raises(BadLabel, match=r"labels/f\.txt fits 2 images equally well"):
        source.annotate(b"images/f.jpg")
    unmatched_labels = list(source.unmatched_labels())
    assert [error.where for error in unmatched_labels] == [b"beside/orphan.txt", b"labels/orphan.txt"]
    assert all(isinstance(error, NoImage) for error in unmatched_labels)


@pytest.mark.parametrize(("text", "names"), [
    ("names: [no, 1, 'a b']", ("no", "1", "a b")),
    ("names:\n  0: cat\n  2: dog\nnc: 3", ("cat", "1", "dog")),
    ("nc: 2", ("0", "1")),
    ("names: !!python/object/apply:os.abort [a]", ("a",)),  # a tag is never obeyed
])  # fmt: skip
def test_names(make_tree, text, names):
    tree = make_tree({"images/a.jpg": "", "labels/a.txt": "", "some.yaml": text, "other.yaml": "- a list"})
    assert open_source("yolo", tree, SourceOptions()).classes == names


@pytest.mark.parametrize(("text", "message"), [
    ("names: [a, a]", 'the class name "a" appears twice'),
    ("names: [a]\nnc: 2", "nc: says 2 classes, but names: has 1"),
    ("names: {x: a}", '"x" is not a class number'),
    ("names: {99999999999: a}", "is not a class number"),
    ("names: 3", "neither a list"),
    ("names: [[a]]", "neither a list"),
    ("names: [a\nb: {", r"data\.yaml:2: is not YAML"),
    ("names: [a]\nkpt_shape: [17, 4]", "kpt_shape"),
    ("names: [a]\nx: " + "[" * 100_000, r"data\.yaml:2: is deeper than 32 levels"),
    ("names: [a]\nnames: [b]", r'data\.yaml:2: the key "names" appears twice'),
    ("names: [a]\nx: {[1]: 2}", r"data\.yaml:2: has a key that is not text"),
    ("names: [a]\nx: *y", r"data\.yaml:2: is not YAML"),
    ("names: [a]\n---\nnames: [b]", r"data\.yaml:2: holds a second document"),
    ("names: [a]\nx: [" + "a," * 262_145 + "]", r"data\.yaml:2: has more than 262144 values"),
    ("#" * 2**20 + "\nnames: [a]", "larger than"),
])  # fmt: skip
def test_bad_yaml_is_one_clear_line(make_tree, text, message):
    tree = make_tree({"images/a.jpg": "", "labels/a.txt": "", "data.yaml": text})
    with pytest.raises(UsageError, match=message) as caught:
        open_source("yolo", tree, SourceOptions())
    assert "\n" not in str(caught.value)


def test_names_files(make_tree):
    files = {"a.jpg": "", "a.txt": "1 .5 .5 1 1"}
    assert open_source("yolo", make_tree(files), SourceOptions()).classes == ("0", "1")
    tree = make_tree(files | {"classes.txt": "cat\r\nbig dog\r\n\r\n", "obj.names": "cat\nbig dog"})
    assert open_source("yolo", tree, SourceOptions()).annotate(b"a.jpg").box_labels == ("big dog",)
    with pytest.raises(UsageError, match="different class names"):
        open_source("yolo", make_tree({"obj.names": "cat\ndog"}), SourceOptions())


SPLITS = {
    "images/train2017/1.jpg": "", "images/val2017/2.jpg": "", "labels/train2017/1.txt": "",
    "labels/train2017/8.txt": "", "labels/val2017/9.txt": "",
}  # fmt: skip


@pytest.mark.parametrize("entry", [
    None, "train: images/train2017", "train: ../images/train2017/", "path: images\ntrain: train2017",
    "path: ../datasets/coco\ntrain: [images/train2017]", "train: lists/train.txt",
])  # fmt: skip
def test_splits(make_tree, entry):
    files = SPLITS | ({"data.yaml": f"{entry}\nnames: [a]"} if entry else {})
    tree = make_tree(files | {"lists/train.txt": "./images/train2017/1.jpg\nimages/train2017/7.jpg\n"})
    source = open_source("yolo", tree, SourceOptions("train"))
    assert [image for image in tree.images if source.in_split(image)] == [b"images/train2017/1.jpg"]
    found = [str(error).split(";")[0] for error in source.unmatched_labels()]
    if entry and "txt" in entry:
        assert found == ["lists/train.txt:2: no image images/train2017/7.jpg"]
    else:
        assert found == ["labels/train2017/8.txt: has no image"]


def test_splits_that_are_not_there(make_tree):
    with pytest.raises(UsageError, match=r"split=.test. fits no folders; its folders are: images/train2017"):
        open_source("yolo", make_tree(SPLITS), SourceOptions("test"))
    tree = make_tree({"data.yaml": "names: [a]\ntrain: /elsewhere/train"})
    with pytest.raises(UsageError, match=r"data\.yaml: train: /elsewhere/train is not a folder"):
        open_source("yolo", tree, SourceOptions("train"))
