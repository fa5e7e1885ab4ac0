"""Pascal VOC: matching by stem, every field, the 1-based frame, hostile and foreign XML."""

from __future__ import annotations

import os
import sys
import time

import pytest
from drawn import draw
from hypothesis import given, settings
from hypothesis import strategies as st

from packer import BuildOptions, Pack, build_pack
from packer.errors import BadLabel, NoImage, NoLabel, UsageError
from packer.sources import open_source
from packer.sources.by_stem import match_by_stem
from packer.sources.coco_objects import signed_area
from packer.sources.source import SourceOptions
from packer.sources.voc import parse_xml, read_annotation


def voc(*objects: str, head: str = "") -> str:
    return f"<annotation>{head}{''.join(objects)}</annotation>"


def thing(name: str = "cat", box: tuple[object, ...] = (1, 2, 30, 40), more: str = "") -> str:
    edges = "".join(f"<{tag}>{v}</{tag}>" for tag, v in zip(("xmin", "ymin", "xmax", "ymax"), box, strict=True))
    return f"<object><name>{name}</name>{more}<bndbox>{edges}</bndbox></object>"


def read(data: str | bytes):
    data = data if isinstance(data, bytes) else data.encode()
    return read_annotation(parse_xml(data, b"a.xml"), b"a.xml")


def test_all_fields_and_the_frame():
    a = read(voc(
        "<object><bndbox><ymax> 40.5 </ymax><xmin>1</xmin><xmax>\n30</xmax><ymin>2</ymin></bndbox>"
        "<occluded>1</occluded><pose> Left </pose><difficult>1</difficult><name> a cat </name></object>",
        thing("dog", (5, 5, 5, 5), "<truncated>1</truncated><difficult/>"),
        head="<size><width>64</width><height>48</height><depth>3</depth></size>",
    ))  # fmt: skip
    assert a.boxes == ((0.0, 1.0, 30.0, 40.5), (4.0, 4.0, 4.0, 4.0))
    assert a.box_labels == ("a cat", "dog") and a.image_size == (64, 48) and a.origin == "a.xml"
    assert a.box_fields == {
        "difficult": (1, 0), "truncated": (0, 1), "occluded": (1, 0), "pose": ("Left", None),
        "voc_bndbox": ((1, 2, 30, 40.5), (5, 5, 5, 5)),
    }  # fmt: skip


def test_no_objects_and_no_size():
    a = read(voc(head="<size><width>0</width><height>0</height></size>"))
    assert a.boxes == () and a.box_labels == () and a.image_size is None and a.box_fields["pose"] == ()
    assert read("<annotation/>").image_size is None


def polygon(*points: tuple[object, object]) -> str:
    numbered = enumerate(points, 1)
    return f"<polygon>{''.join(f'<x{i}>{x}</x{i}><y{i}>{y}</y{i}>' for i, (x, y) in numbered)}</polygon>"


def test_polygons_of_roboflow():
    ring = polygon((1, 2), (30.5, "2"), (30, 40))
    turned = "<polygon><y2>2</y2><x3>30</x3><x1> 1 </x1><y3>40</y3><x2>30.5</x2><y1>2</y1></polygon>"
    a = read(voc(thing(more=ring), thing("dog"), thing(more=turned)))
    assert a.boxes == ((0.0, 1.0, 30.0, 40.0),) * 3  # of the box, not of the polygon
    assert a.polygons == (((0.0, 1.0), (29.5, 1.0), (29.0, 39.0)), (), ((0.0, 1.0), (29.5, 1.0), (29.0, 39.0)))
    assert read(voc(thing())).polygons is None


def test_several_polygons_of_an_object_are_joined():
    square, other = [(1, 1), (11, 1), (11, 11), (1, 11)], [(21, 1), (21, 11), (31, 11), (31, 1)]  # turns otherwise
    (found,) = read(voc(thing(more=polygon(*square) + polygon(*other)))).polygons
    assert {*found} == {(x - 1.0, y - 1.0) for x, y in square + other} and signed_area(found) == 2 * 200


names = st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=8).filter(lambda s: s.strip())
values = st.integers(-50, 5000) | st.floats(-50, 5000).map(lambda v: round(v, 3))


@settings(derandomize=True, deadline=None, max_examples=60)
@given(st.lists(st.tuples(names, st.tuples(values, values, values, values), st.permutations(range(4))), max_size=5))
def test_what_is_drawn_is_read(objects):
    from xml.sax.saxutils import escape

    tags = ("xmin", "ymin", "xmax", "ymax")
    text = "".join(
        f"<object><bndbox>{''.join(f'<{tags[i]}>{box[i]}</{tags[i]}>' for i in order)}</bndbox>"
        f"<name>{escape(name)}</name></object>"
        for name, box, order in objects
    )
    a = read(voc(text))
    assert a.box_labels == tuple(name.strip() for name, _, _ in objects)
    assert a.box_fields["voc_bndbox"] == tuple(box for _, box, _ in objects)
    for (x1, y1, x2, y2), (_, (xmin, ymin, xmax, ymax), _) in zip(a.boxes, objects, strict=True):
        assert (x1, y1) == (xmin - 1, ymin - 1)
        assert x2 == (xmax if xmax > xmin else xmax - 1) and y2 == (ymax if ymax > ymin else ymax - 1)


@pytest.mark.parametrize(("text", "message"), [
    (voc(thing(), "<object><name>x</name></object>"), r"a\.xml: object 2: it has no <bndbox>"),
    (voc(thing().replace("</object>", "<bndbox/></object>")), "object 1: it has 2 <bndbox>"),
    (voc(thing("")), "object 1: its <name> is empty"),
    (voc(thing(more="<name>b</name>")), "object 1: it has 2 <name>"),
    (voc("<object><bndbox/></object>"), "object 1: it has no <name>"),
    (voc(thing(box=(1, 2, "12px", 4))), 'object 1: <xmax> "12px" is not a number'),
    (voc(thing(box=(1, 2, "nan", 4))), "not a number"),
    (voc(thing(box=(1, 2, "1e400", 4))), "not a number"),
    (voc(thing(box=(1, 2, "1_0", 4))), "not a number"),
    (voc(thing(box=(1, 2, "１２", 4))), "not a number"),
    (voc(thing(box=(1, 2, "9" * 5000, 4))), "not a number"),
    (voc(thing(box=(1, 2, "", 4))), "its <xmax> is empty"),
    (voc(thing(), thing(more=polygon((1, 1), (2, "z"), (3, 3)))), 'object 2: <y2> "z" is not a number'),
    (voc(thing(more=polygon((1, 1), (2, ""), (3, 3)))), 'object 1: <y2> "" is not a number'),
    (voc(thing(more=polygon((1, 1), (2, "2e9"), (3, 3)))), 'object 1: <y2> "2e9" is not a number'),
    (voc(thing(more=polygon((1, 1), (2, 2), (3, 3)).replace("<y2>2</y2>", ""))), "its <polygon> is not of <x1>, <y1>"),
    (voc(thing(more=polygon((1, 1), (2, 2), (3, 3)).replace("2>", "4>"))), "its <polygon> is not of <x1>, <y1>"),
    (voc(thing(more=polygon((1, 1), (2, 2), (3, 3)).replace("2>", "1>"))), "its <polygon> is not of <x1>, <y1>"),
    (voc(thing(more=polygon((1, 1), (2, 2), (3, 3)).replace("y3", "z"))), "its <polygon> is not of <x1>, <y1>"),
    (voc(thing(more="<difficult>yes</difficult>")), '<difficult> "yes" is not a whole number'),
    (voc(head="<size/><size/>"), "it has 2 <size>"),
    (voc(head="<size><width>-3</width></size>"), '<width> "-3" is not a whole number'),
    ("<html/>", "its root is <html>, not <annotation>"),
    ("", "not readable as XML"),
    (voc(thing())[:-5], "not readable as XML"),
    (voc("\0"), "not readable as XML"),
])  # fmt: skip
def test_bad_labels_say_where(text, message):
    with pytest.raises(BadLabel, match=message) as caught:
        read(text)
    assert str(caught.value).startswith("a.xml: ") and "\n" not in str(caught.value)


BOMB = '<!DOCTYPE a [<!ENTITY a "aaaaaaaaaa">' + "".join(
    f'<!ENTITY {chr(98 + i)} "{f"&{chr(97 + i)};" * 10}">' for i in range(9)
) + "]><annotation>&j;</annotation>"  # fmt: skip


OPENED: list[object] = []
sys.addaudithook(lambda event, args: OPENED.append(args[0]) if event in ("open", "socket.connect") else None)


@pytest.mark.parametrize("text", [
    BOMB,
    '<!DOCTYPE a SYSTEM "file:///etc/passwd"><annotation/>',
    '<!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/passwd">]><annotation>&x;</annotation>',
    '<!DOCTYPE annotation><annotation/>',
])  # fmt: skip
def test_a_dtd_is_refused_and_opens_nothing(text):
    del OPENED[:]
    start = time.thread_time()
    with pytest.raises(BadLabel, match="DTD"):
        parse_xml(text.encode(), b"a.xml")
    assert not OPENED and time.thread_time() - start < 1


def test_deep_nesting_and_many_attributes_end():
    deep = "<x>" * 100_000 + "</x>" * 100_000
    assert read(voc(deep)).boxes == ()
    many = " ".join(f"a{i}=''" for i in range(50_000))
    assert read(f"<annotation {many}/>").boxes == ()


@pytest.mark.parametrize(("declared", "codec", "name"), [
    ("UTF-8", "utf-8", "猫"), ("utf-8", "utf-8-sig", "猫"), ("UTF-16", "utf-16", "猫"), ("gb2312", "gb18030", "猫"),
    ("GBK", "gbk", "猫"), ("Big5", "big5", "貓"), ("Shift_JIS", "shift_jis", "猫"), ("euc-kr", "euc_kr", "고양이"),
    ("ISO-8859-1", "latin-1", "Kätzchen"), ("windows-1252", "cp1252", "Kätzchen"),
])  # fmt: skip
def test_encodings(declared, codec, name):
    text = f'<?xml version="1.0" encoding="{declared}" standalone="yes"?>\n' + voc(thing(name))
    assert read(text.encode(codec)).box_labels == (name,)


@pytest.mark.parametrize("declared", ["klingon", "zip_codec", "gb2312", "utf-16", "utf-7"])
def test_encodings_that_do_not_fit_are_bad_labels(declared):
    with pytest.raises(BadLabel, match="not readable as XML"):
        head = f'<?xml version="1.0" encoding="{declared}"?>'
        read((head + voc(thing("NAME"))).encode().replace(b"NAME", b"\xff"))


def test_matching_prefers_the_nearest(make_tree):
    tree = make_tree({
        "JPEGImages/a/1.jpg": "", "Annotations/a/1.xml": voc(thing("mirrored")),
        "JPEGImages/b/1.jpg": "", "Annotations/b/1.xml": voc(thing("b")),
        "c/2.jpg": "", "c/2.xml": voc(thing("beside")), "Annotations/2.xml": voc(thing("left over")),
        "c/3.png": "", "elsewhere/3.XML": voc(thing("anywhere")),
        "d/4.jpg": "", "d/Annotations/4.xml": voc(thing("below")),
        "d/5.jpg": "",
        "notes.xml": "<project/>", "broken.xml": "<ann",
    })  # fmt: skip
    source = open_source("voc", tree, SourceOptions())
    got = {}
    for image in tree.images[:]:
        try:
            got[image] = source.annotate(image).box_labels
        except NoLabel as error:
            assert image == b"d/5.jpg" and "has no label file 5.xml" in str(error)
    assert got == {
        b"JPEGImages/a/1.jpg": ("mirrored",), b"JPEGImages/b/1.jpg": ("b",), b"c/2.jpg": ("beside",),
        b"c/3.png": ("anywhere",), b"d/4.jpg": ("below",),
    }  # fmt: skip
    assert {error.where for error in source.unmatched_labels()} == {b"Annotations/2.xml", b"broken.xml"}


def test_equals_are_refused_by_name(make_tree):
    tree = make_tree({
        "1.jpg": "", "x/1.xml": voc(), "y/1.xml": voc(),
        "2.jpg": "", "2.png": "", "2.xml": voc(),
    })  # fmt: skip
    source = open_source("voc", tree, SourceOptions())
    with pytest.raises(BadLabel, match=r"1\.jpg: 2 label files fit it equally well: x/1\.xml, y/1\.xml"):
        source.annotate(b"1.jpg")
    for image in (b"2.jpg", b"2.png"):
        with pytest.raises(BadLabel, match=r"2\.xml fits 2 images equally well: 2\.jpg, 2\.png"):
            source.annotate(image)
    assert list(source.unmatched_labels()) == []


folders = st.sampled_from([b"", b"a", b"b", b"JPEGImages", b"Annotations", b"JPEGImages/a", b"Annotations/a"])


@settings(derandomize=True, deadline=None)
@given(st.sets(st.tuples(folders, st.sampled_from([b"1", b"2"]), st.sampled_from([b".jpg", b".png", b".xml"]))))
def test_matching_is_one_to_one_complete_and_free_of_order(drawn):
    paths = sorted((folder + b"/" if folder else b"") + stem + end for folder, stem, end in drawn)
    images = [path for path in paths if not path.endswith(b".xml")]
    labels = [path for path in paths if path.endswith(b".xml")]
    result = match_by_stem(images, labels)
    used = list(result.label_of.values())
    assert len(used) == len(set(used)) and not set(used) & set(result.unclaimed)
    assert not result.label_of.keys() & result.refused.keys()
    for image in set(images) - result.label_of.keys() - result.refused.keys():
        assert not [x for x in result.unclaimed if x.split(b"/")[-1][:1] == image.split(b"/")[-1][:1]]
    again = match_by_stem(images[::-1], labels[::-1])
    assert again.label_of == result.label_of and again.refused.keys() == result.refused.keys()


@pytest.mark.parametrize("claim", ["../../etc/passwd", "/etc/passwd", "C:\\a\\b.jpg", "file:///x.jpg", "other.jpg"])
def test_claimed_file_names_are_reported_and_never_opened(make_tree, claim):
    head = f"<filename>{claim}</filename>"
    right = "<path>C:\\x\\2.png</path>"
    tree = make_tree({"1.jpg": "", "1.xml": voc(head=head), "2.jpg": "", "2.xml": voc(head=right)})
    source = open_source("voc", tree, SourceOptions())
    del OPENED[:]
    for image in tree.images:
        source.annotate(image)
    assert list(source.unmatched_labels()) == []
    assert sorted({path for path in OPENED if isinstance(path, (str, bytes))}) == [
        os.path.join(tree.root, name) for name in (b"1.xml", b"2.xml")
    ]
    assert len(source.notes) == 1
    assert source.notes[0].startswith("1 XML file claims a <filename>") and "1.xml" in source.notes[0]


def test_polygons_that_are_left_out_are_counted(make_tree):
    pt = "<polygon><pt><x>1</x><y>2</y></pt></polygon>"
    tree = make_tree({
        "1.jpg": "", "1.xml": voc(thing(more=polygon((1, 2), (3, 4))), thing(more="<polygon/>"), thing(more=pt)),
        "2.jpg": "", "2.xml": voc(thing(more=polygon((1, 2), (3, 4), (5, 9))), head="<filename>x.jpg</filename>"),
        "3.jpg": "", "3.xml": voc(thing(more=polygon() + polygon((1, 2), (3, 4), (5, 9)))),
    })  # fmt: skip
    source = open_source("voc", tree, SourceOptions())
    found = [source.annotate(image) for image in tree.images]
    assert [len(one.boxes) for one in found] == [3, 1, 1] and found[0].polygons is None
    assert found[1].polygons == found[2].polygons == (((0.0, 1.0), (2.0, 3.0), (4.0, 8.0)),)
    assert list(source.unmatched_labels()) == []
    assert source.notes[1:] == [
        "4 polygons were left out, without three points <x1>, <y1> to <x3>, <y3>; the boxes are packed"
    ]
    assert source.notes[0].startswith("1 XML file claims a <filename>")


def test_polygons_are_packed(tmp_path):
    for number in range(3):
        draw(tmp_path / "set" / f"{number}.png", number)
        outlined = thing(box=(3, 3, 29, 19), more=polygon((3, 3), (30, 3), (30, 20), (3, 20)))
        objects = [outlined * (number > 0), thing("dog", (1, 2, 30, 25), "<polygon/>")]
        (tmp_path / "set" / f"{number}.xml").write_text(voc(*objects))
    build_pack(BuildOptions(str(tmp_path / "set"), str(tmp_path / "p"), workers=2))
    pack = Pack(tmp_path / "p")
    assert [[len(one) for one in pack.annotation(i).polygons or ()] for i in range(3)] == [[], [4, 0], [4, 0]]
    assert pack.annotation(1).polygons[0].tolist() == [[2, 2], [29, 2], [29, 19], [2, 19]]
    assert any(note.startswith("3 polygons were left out") for note in pack.manifest.notes)
    build_pack(BuildOptions(str(tmp_path / "set"), str(tmp_path / "m"), workers=2, instance_masks=True))
    assert [mask.sum() for mask in Pack(tmp_path / "m").instance_masks(2)] == [27 * 17, 0]


def test_splits(make_tree):
    tree = make_tree({
        "VOC/JPEGImages/a b.jpg": "", "VOC/JPEGImages/2.jpg": "", "VOC/JPEGImages/3.jpg": "",
        "VOC/Annotations/2.xml": voc(), "VOC/Annotations/9.xml": voc(), "VOC/Annotations/8.xml": voc(),
        "VOC/ImageSets/Main/train.txt": b"a b\r\n\r\n2.jpg\r\n9\r\n",
        "VOC/ImageSets/Main/cat_val.txt": "3  1\na b -1\n",
    })  # fmt: skip
    source = open_source("voc", tree, SourceOptions("train"))
    covered = [image for image in tree.images if source.in_split(image)]
    assert covered == [b"VOC/JPEGImages/2.jpg", b"VOC/JPEGImages/a b.jpg"]
    unmatched_labels = list(source.unmatched_labels())
    assert [str(error.where) for error in unmatched_labels] == ["VOC/ImageSets/Main/train.txt:4"]
    assert isinstance(unmatched_labels[0], NoImage)
    source = open_source("voc", tree, SourceOptions("cat_val"))
    assert sum(map(source.in_split, tree.images)) == 2 and list(source.unmatched_labels()) == []
    with pytest.raises(UsageError, match=r"ImageSets/Main has no test\.txt.*the splits are: cat_val, train"):
        open_source("voc", tree, SourceOptions("test"))


def test_a_split_is_of_every_year_that_has_it(make_tree):
    files = {f"VOC{y}/JPEGImages/{i}.jpg": "" for y in (2007, 2012) for i in (y, 1, y + 1)}
    files |= {f"VOC{y}/Annotations/{i}.xml": voc() for y in (2007, 2012) for i in (y, 1, y + 1)}
    sets = {"VOC2007/ImageSets/Main/train.txt": "2007\n", "VOC2012/ImageSets/Main/train.txt": "1\n"}
    tree = make_tree({f"VOCdevkit/{name}": text for name, text in (files | sets).items()})
    source = open_source("voc", tree, SourceOptions("train"))
    covered = [image for image in tree.images if source.in_split(image)]
    assert covered == [b"VOCdevkit/VOC2007/JPEGImages/2007.jpg", b"VOCdevkit/VOC2012/JPEGImages/1.jpg"]
    assert list(source.unmatched_labels()) == []


def test_without_image_sets_a_split_is_a_folder(make_tree):
    tree = make_tree({f"{s}/{i}.{e}": voc() if e == "xml" else "" for s, i in (("train", 1), ("test", 2), ("train", 3))
                      for e in ("jpg", "xml")} | {"train/9.xml": voc(), "test/8.xml": voc()})  # fmt: skip
    source = open_source("voc", tree, SourceOptions("train"))
    assert [image for image in tree.images if source.in_split(image)] == [b"train/1.jpg", b"train/3.jpg"]
    assert [error.where for error in source.unmatched_labels()] == [b"train/9.xml"]
    with pytest.raises(UsageError, match=r"no folder of images for split=.val.; the splits are: test, train"):
        open_source("voc", tree, SourceOptions("val"))


def test_the_masks_of_voc_are_no_images_of_the_set(make_tree):
    tree = make_tree({
        "VOC/JPEGImages/1.jpg": "", "VOC/SegmentationClass/1.png": "", "VOC/SegmentationObject/1.png": "",
        "VOC/Annotations/1.xml": voc(), "VOC/SegmentationClass/7.png": "",
    })  # fmt: skip
    source = open_source("auto", tree, SourceOptions())
    assert "1 of 1 image has" in source.notes[0]
    assert [bool(source.left_out(image)) for image in tree.images] == [False, True, False, True]


def test_a_large_file_is_refused_unread(make_tree):
    tree = make_tree({"1.jpg": "", "1.xml": voc(head=" " * 2**20)})
    with pytest.raises(BadLabel, match="larger than the 1048576 bytes"):
        open_source("voc", tree, SourceOptions()).annotate(b"1.jpg")
