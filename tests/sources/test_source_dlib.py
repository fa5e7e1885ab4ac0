"""dlib's XML: against a plain reading with ElementTree, frames of boxes and parts, errors with their lines."""

from __future__ import annotations

import random
from xml.etree import ElementTree

import pytest
from drawn import packed_of

from packer.errors import BadLabel, NoImage, NoLabel, UsageError
from packer.sources import open_source, recognize
from packer.sources.source import SourceOptions

START = "<?xml version='1.0' encoding='UTF-8'?>\n<?xml-stylesheet type='text/xsl' href='x.xsl'?>\n<dataset>\n<images>\n"
END = "</images>\n</dataset>\n"


def opened(tree, file=None, split=None):
    spec = "dlib" if file is None else f"dlib:{tree.root.decode()}/{file}"
    return open_source(spec, tree, SourceOptions(split=split))


def box(inner="", left=1, top=2, width=3, height=4, **more):
    attributes = {"top": top, "left": left, "width": width, "height": height, **more}
    written = " ".join(f"{name}='{value}'" for name, value in attributes.items())
    return f"<box {written}>{inner}</box>\n"


def entry(file, *boxes):
    return f"<image file='{file}'>\n{''.join(boxes)}</image>\n"


def xml(*entries):
    return START + "".join(entries) + END


def test_a_drawn_file_agrees_with_a_plain_reading(make_tree):
    dice = random.Random(3)
    names = [f"{i:02d}" for i in range(12)]
    entries = []
    for number in range(20):
        boxes = []
        for _ in range(dice.randrange(4)):
            parts = "".join(
                f"<part name='{name}' x='{dice.randrange(90)}' y='{dice.randrange(90)}'/>"
                for name in dice.sample(names, dice.randrange(len(names)))
            )
            label = dice.choice(["", "<label>face</label>", "<label> a &amp; b </label>"])
            left, top, width, height = (dice.randrange(50) for _ in range(4))
            boxes.append(box(label + parts, left, top, width, height, ignore=dice.randrange(2)))
        entries.append(entry(f"{number}.jpg", *boxes))
    tree = make_tree({**{f"{i}.jpg": "" for i in range(20)}, "other.jpg": "", "faces.xml": xml(*entries)})
    assert recognize(tree, SourceOptions()).spec == "dlib"
    source = opened(tree)
    for image in ElementTree.fromstring(xml(*entries).encode()).iter("image"):
        found = source.annotate(image.get("file").encode())
        assert found == source.annotate(image.get("file").encode())
        assert len(found.boxes) == len(image)
        for i, one in enumerate(image):
            left, top, width, height = (int(one.get(name)) for name in ("left", "top", "width", "height"))
            assert found.boxes[i] == (left, top, left + width, top + height)
            assert found.box_labels[i] == (one.findtext("label") or "object").strip()
            assert found.box_fields["ignore"][i] == int(one.get("ignore")) and found.box_fields["difficult"][i] == 0
            parts = {
                part.get("name"): (int(part.get("x")) + 0.5, int(part.get("y")) + 0.5, 2) for part in one.iter("part")
            }
            assert found.keypoints[i] == tuple(parts.get(name, (0, 0, 0)) for name in names)
    assert set(tree.images) - {*packed_of(tree, source)} == {b"other.jpg"}
    with pytest.raises(NoLabel, match=r"is not in faces.xml"):
        source.annotate(b"other.jpg")


def test_numbers_of_parts_are_sorted_as_numbers_and_sides_give_the_flip_index(make_tree):
    parts = "".join(f"<part name='{name}' x='{name}' y='0'/>" for name in ("10", "9", "1"))
    tree = make_tree({"a.jpg": "", "a.b.xml": xml(entry("a.jpg", box(parts)))})
    assert [x for x, _, _ in opened(tree).annotate(b"a.jpg").keypoints[0]] == [1.5, 9.5, 10.5]
    parts = "".join(f"<part name='{name}' x='0' y='0'/>" for name in ("right_eye", "nose", "left_eye"))
    tree = make_tree({"a.b.xml": xml(entry("a.jpg", box(parts)))})
    assert opened(tree).flip_index == (2, 1, 0)  # left_eye, nose, right_eye


def test_an_entry_without_boxes_is_a_negative_and_none_has_parts(make_tree):
    tree = make_tree({"a.jpg": "", "b.jpg": "", "x.xml": xml(entry("a.jpg"), entry("b.jpg", box()))})
    found = opened(tree).annotate(b"a.jpg")
    assert found.boxes == () == found.box_labels and found.keypoints is None


@pytest.mark.parametrize(
    ("inner", "problem"),
    [
        (box(width=-1), r"x.xml:6: the width of a box is below 0"),
        (box(top="a"), r'x.xml:6: top "a" is not a number'),
        ("<box top='1' left='1' width='1'/>\n", r"x.xml:6: has no height"),
        (box("\n<part name='1' x='1' y='1'/>\n<part name='1' x='1' y='1'/>"), r'x.xml:8: a box has two parts "1"'),
        (box("<part x='1' y='1'/>"), r"x.xml:6: a <part> has no name"),
        (box("<part name='1' x='1' y='nan'/>"), r'x.xml:6: y "nan" is not a number'),
        ("</image>\n<image file='a.jpg'>\n", r"x.xml:7: names a.jpg, as line 5 does"),
    ],
)
def test_bad_entries(make_tree, inner, problem):
    tree = make_tree({"a.jpg": "", "b.jpg": "", "x.xml": xml(entry("a.jpg", inner), entry("b.jpg", box()))})
    source = opened(tree)
    with pytest.raises(BadLabel, match=problem):
        source.annotate(b"a.jpg")
    assert source.annotate(b"b.jpg").boxes == ((1, 2, 4, 6),)


def test_what_names_nothing_is_listed(make_tree):
    entries = (entry("gone.jpg"), entry("c.jpg"), "<image/>")
    tree = make_tree({"a/c.jpg": "", "b/c.jpg": "", "x.xml": xml(*entries)})
    found = list(opened(tree).unmatched_labels())
    assert [type(error) for error in found] == [NoImage, BadLabel, BadLabel]
    assert 'x.xml:5: no image "gone.jpg"' in found[0].line and "fits 2 images" in found[1].line


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        ("", r"x.xml:1: is not readable as XML"),
        (START + entry("a.jpg"), r"x.xml:7: is not readable as XML"),
        ("<annotation/>", r"its root is <annotation>, not dlib's <dataset>"),
        ("<!DOCTYPE a [<!ENTITY b 'c'>]><dataset>&b;</dataset>", "has entities"),
        ("<?xml version='1.0' encoding='ascii7'?><dataset/>", "is not readable as XML"),
    ],
)
def test_bad_files(make_tree, data, problem):
    tree = make_tree({"a.jpg": "", "x.xml": data})
    with pytest.raises(UsageError, match=problem):
        opened(tree, "x.xml")


def test_one_file_must_be_chosen(make_tree):
    names = [f"labels_ibug_300W_{split}.xml" for split in ("test", "train")]
    tree = make_tree({"a.jpg": "", **{name: xml(entry("a.jpg")) for name in names}})
    with pytest.raises(UsageError, match=r"2 XML files of dlib: labels_ibug_300W_test.xml"):
        opened(tree)
    with pytest.raises(UsageError, match=r"dlib:.*labels_ibug_300W_train.xml"):
        recognize(tree, SourceOptions())
    assert opened(tree, names[0]).in_split(b"a.jpg")
