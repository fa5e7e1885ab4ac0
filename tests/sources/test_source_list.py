"""Lists: the grammar of --columns, separators, quotes, headers, paths, and what is said of bad lines."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packer.errors import BadLabel, NoImage, NoLabel, UsageError
from packer.sources import open_source
from packer.sources.list_columns import BOX_FORMS, LineColumns, parse_columns
from packer.sources.list_lines import BLANKS, COMMA, TAB, split_line
from packer.sources.path_finder import PathFinder
from packer.sources.source import SourceOptions


def open_list(tree, columns=None, name="list.txt"):
    file = os.fsdecode(os.path.join(tree.root, name.encode()))
    return open_source(f"list:{file}", tree, SourceOptions(columns=columns))


@pytest.fixture
def source_of(make_tree):
    """A list over images a.jpg, b.jpg and d/c d.jpg."""

    def make(text, columns=None):
        return open_list(make_tree({"a.jpg": "", "b.jpg": "", "d/c d.jpg": "", "list.txt": text}), columns)

    return make


@pytest.mark.parametrize(("text", "head", "tail"), [
    ("path label", "path label", ""),
    ("path, label", "path label", ""),
    ("path (x y)*2 label", "path x y x y label", ""),
    ("path x*2 y*2", "path x x y y", ""),
    ("path (xmin ymin xmax ymax class)*", "path", "xmin ymin xmax ymax class"),
    ("_*2 path (cx cy w h) * 1", "_ _ path cx cy w h", ""),
    ("path xmin ymin w h _*", "path xmin ymin w h", "_"),
])  # fmt: skip
def test_columns(text, head, tail):
    assert parse_columns(text) == LineColumns(tuple(head.split()), tuple(tail.split()))


@pytest.mark.parametrize(("text", "message"), [
    ("", "path must appear once"), ("label", "path must"), ("path path", "path must"), ("(path)*", "path must"),
    ("path xx", '"xx" is not a column name'),
    ("path (x y", "is not valid"), ("path ((x y)*2)*", "not valid|name"),
    ("path ()*2", "a column name"), ("path *", "path must"), ("path x*5 y*4", "5 x and 4 y"), ("path y x*", "x and"),
    ("path (x y)* label", "must come last"), ("path x*0", "no columns"), ("path x*99999", "more than 10000"),
    ("path label label", "label"), ("path (label)*", "label"), ("path class", "an image's class is: label"),
    ("path xmin ymin xmax", "a box is"), ("path xmin ymin xmax ymax w h", "a box is"),
    ("path cx cy xmax ymax", "a box is"),
    ("path (xmin ymin xmax ymax)*2 class", "once for each box"), ("path class (cx cy w h)*", "once for each box"),
    ("path xmin*2 ymin xmax ymax", "equally often"), ("path X Y", "not a column name"),
])  # fmt: skip
def test_columns_that_are_wrong(text, message):
    with pytest.raises(UsageError, match=message) as caught:
        parse_columns(text)
    assert str(caught.value).startswith("columns: ")


@settings(derandomize=True, deadline=None)
@given(st.integers(0, 3), st.integers(0, 3), st.sampled_from(BOX_FORMS), st.booleans(), st.booleans(), st.data())
def test_a_drawn_line_is_read(points, boxes, form, grouped, with_class, data):
    numbers = st.integers(-99, 999)
    landmarks = data.draw(st.lists(st.tuples(numbers, numbers), min_size=points, max_size=points))
    drawn = data.draw(st.lists(st.tuples(*[st.integers(0, 99)] * 4), min_size=boxes, max_size=boxes))
    text = "path" + (f" (x y)*{points}" if grouped else f" x*{points} y*{points}") * bool(points)
    names = [*form, "class"] if with_class else list(form)
    text += f" label ({' '.join(names)})*"
    cells = (
        ["p"] + [str(v) for point in landmarks for v in point]
        if grouped
        else (["p", *(str(x) for x, _ in landmarks), *(str(y) for _, y in landmarks)])
    )
    cells += ["L"] + [str(v) for i, box in enumerate(drawn) for v in (*box, *([f"c{i}"] if with_class else []))]
    row = parse_columns(text).read([cell.encode() for cell in cells])
    assert row.landmarks == (tuple(landmarks) if points else None) and row.label == "L"
    assert row.box_labels == tuple(f"c{i}" if with_class else "L" for i in range(boxes))
    for (x1, y1, x2, y2), (a, b, c, d) in zip(row.boxes, drawn, strict=True):
        if form[2] == "xmax":
            assert (x1, y1, x2, y2) == (a, b, c, d)
        else:
            assert (x2 - x1, y2 - y1) == (c, d)
            assert (x1, y1) == ((a, b) if form[0] == "xmin" else (a - c / 2, b - d / 2))


cell = st.text(st.characters(exclude_characters="\n\r\0", exclude_categories=("Cs",)), max_size=6).map(str.encode)


@settings(derandomize=True, deadline=None)
@given(st.lists(cell, min_size=1, max_size=5), st.sampled_from([TAB, COMMA, BLANKS]))
def test_quoted_cells_come_back(cells, separator):
    line = separator.join(b'"' + c.replace(b'"', b'""') + b'"' for c in cells)
    assert split_line(line, separator) == cells


@settings(derandomize=True, deadline=None)
@given(st.binary(max_size=20).filter(lambda b: not set(b) & set(b"\n\r")), st.sampled_from([TAB, COMMA, BLANKS]))
def test_any_line_is_split_or_refused(line, separator):
    try:
        assert split_line(line, separator)
    except ValueError as error:
        assert b'"' in line and "quote" in str(error)


@pytest.mark.parametrize("text", [
    "a.jpg cat\nb.jpg dog\n\"d/c d.jpg\" cat", "a.jpg,cat\r\nb.jpg, dog\r\nd/c d.jpg,cat\r\n",
    "a.jpg\tcat\rb.jpg\tdog\rd/c d.jpg\tcat\r", "\ufeffpath,label\na.jpg,cat\nb.jpg,dog\n\nd\\c d.jpg,cat\n",
    "3\n./a.jpg cat\nb.jpg   dog\n\"d/c d.jpg\"\tcat\n", "d/../a.jpg,cat\nb.jpg,dog\n\"d/c d.jpg\",cat\n",
    "label,filename,width\ncat,a.jpg,5\ndog,b.jpg,5\ncat,d/c d.jpg,5\n",
])  # fmt: skip
def test_path_and_label_in_many_spellings(source_of, text):
    for data in (text, text.encode("utf-16")):
        source = source_of(data)
        labels = [source.annotate(image).label for image in (b"a.jpg", b"b.jpg", b"d/c d.jpg")]
        assert labels == ["cat", "dog", "cat"] and source.classes is None and list(source.unmatched_labels()) == []


@pytest.mark.parametrize(("text", "message"), [
    ("a.jpg 1 2 3 4 5 6\n", r'6 numbers.*columns="path \(x y\)\*3" .*columns="path x\*3 y\*3" '),
    ("a.jpg 1 2 3 4\n", r'columns="path xmin ymin xmax ymax" or "path xmin ymin w h"'),
    ("a.jpg 1 2\n", 'columns="path x y"'),
    ("a.jpg 1 2 3\n", "not clear; say what each of its columns is, with columns: path label"),
    ("a.jpg\nb.jpg\n", "not clear"), ("a.jpg x 1 1\nb.jpg y\n", "not clear"), ("\n \n", "is empty"),
])  # fmt: skip
def test_unclear_columns_are_refused_with_what_to_write(source_of, text, message):
    with pytest.raises(UsageError, match=message):
        source_of(text)


def test_boxes(source_of):
    source = source_of("a.jpg 1 2 3 4 cat 5 6 7 8 dog\nb.jpg\n", "path (xmin ymin xmax ymax class)*")
    assert source.annotate(b"a.jpg").boxes == ((1, 2, 3, 4), (5, 6, 7, 8))
    assert source.annotate(b"a.jpg").box_labels == ("cat", "dog")
    assert source.annotate(b"b.jpg").boxes == () and source.annotate(b"b.jpg").label is None
    source = source_of("a.jpg 1,2,3,4,0 5,6,7,8,12\nb.jpg 1,2,3,4,1\n", "path (xmin ymin xmax ymax class)*")
    assert source.annotate(b"a.jpg").box_labels == ("0", "12") and len(source.classes) == 13
    assert source_of("a.jpg 9 5 2 4", "path cx cy w h").annotate(b"a.jpg").box_labels == ("object",)


def test_whole_number_labels_keep_their_numbers(source_of):
    source = source_of("a.jpg 07\nb.jpg 2\n")
    assert source.classes == tuple("01234567") and source.annotate(b"a.jpg").label == "7"
    source = source_of("a.jpg 7\nb.jpg -1\n")
    assert source.classes is None and 'list.txt:2: "-1" is not a whole number' in source.notes[0]
    assert source_of("a.jpg 65536\n").classes is None


def test_celeba(source_of):
    text = "2\nlefteye_x lefteye_y nose_x nose_y\na.jpg 1 -2 3 4\nb.jpg  5 6  7 8\n"
    source = source_of(text, "path (x y)*2")
    assert source.annotate(b"a.jpg").landmarks == ((1, -2), (3, 4)) and list(source.unmatched_labels()) == []
    source = source_of(text.replace("2", "3", 1), "path (x y)*2")
    assert [str(e).split(";")[0] for e in source.unmatched_labels()] == [
        "list.txt:1: says 3 images, but 2 lines follow"
    ]


def test_bad_lines_name_line_and_value(source_of):
    lines = ["a.jpg 1 2x", "b.jpg 1", "missing.jpg 1 2", '"d/c d.jpg 1 2', "", "../x.jpg 1 2", "/etc/passwd 1 2"]
    source = source_of("\n".join(lines), "path x y")
    with pytest.raises(BadLabel, match=r'^list\.txt:1: "2x" is not a number'):
        source.annotate(b"a.jpg")
    with pytest.raises(BadLabel, match=r"^list\.txt:2: has 2 columns, but columns needs 3"):
        source.annotate(b"b.jpg")
    with pytest.raises(NoLabel, match=r"is not in list\.txt"):
        source.annotate(b"d/c d.jpg")
    unmatched_labels = list(source.unmatched_labels())
    assert [str(error).split(";")[0] for error in unmatched_labels] == [
        'list.txt:3: no image "missing.jpg"', "list.txt:4: has a quote that is not closed, or text after one",
        'list.txt:6: "../x.jpg" is outside the source folder',
        'list.txt:7: "/etc/passwd" is outside the source folder',
    ]  # fmt: skip
    assert [isinstance(error, NoImage) for error in unmatched_labels] == [True, False, False, False]


def test_a_bad_first_line_is_no_header(source_of):
    source = source_of("missing.jpg cat\na.jpg dog\n")
    assert [error.where for error in source.unmatched_labels()] == ["list.txt:1"]
    source = source_of("missing.jpg 1 2\na.jpg 1 2\n", "path x y")
    assert [error.where for error in source.unmatched_labels()] == ["list.txt:1"]


@pytest.mark.parametrize(("text", "columns"), [
    ("filepath,label\na.jpg,10\nb.jpg,2\n", None), ("image_name,tags\na.jpg,10\nb.jpg,2\n", None),
    ("id,label\na.jpg,10\nb.jpg,2\n", "path label"), ("what it shows\na.jpg 10\nb.jpg 2\n", "path label"),
    ("version 2 list\na.jpg 10\nb.jpg 2\n", "path label"), ("\n# id,label\na.jpg,10\nb.jpg,2\n", None),
])  # fmt: skip
def test_an_unknown_header_is_a_header(source_of, text, columns):
    """Its words are not classes: whole-number labels keep their numbers."""
    source = source_of(text, columns)
    assert source.classes == tuple(str(i) for i in range(11)) and list(source.unmatched_labels()) == []
    assert source.annotate(b"a.jpg").label == "10" and any("is taken as a header" in note for note in source.notes)


def test_a_header_of_names_for_the_path(source_of):
    source = source_of("filepath,xmin,ymin,xmax,ymax,class\na.jpg,1,2,3,4,cat\n")
    assert source.annotate(b"a.jpg").boxes == ((1, 2, 3, 4),)


@pytest.mark.parametrize("line", [
    "missing.jpg,cat", "../b.jpg,cat", "a.jpg,", 'd.jpg,"cat', "b.jpg,cat\n./b.jpg,dog", "missing.jpg,60000",
])  # fmt: skip
def test_a_rejected_line_has_no_say_in_the_classes(source_of, line):
    source = source_of(f"d/c d.jpg,1\n{line}\n")
    assert source.classes == ("0", "1") and source.notes == []
    boxes = source_of("d/c\\ d.jpg,1,2,3,4,0\na.jpg,1,2,3,x,cat\nb.jpg,1,2,3,4,2\n", "path xmin ymin xmax ymax class")
    assert boxes.classes == ("0", "1", "2")


def test_two_lines_for_one_image(source_of):
    source = source_of("a.jpg cat\nb.jpg dog\n./a.jpg cat\n")
    with pytest.raises(BadLabel, match=r"^a\.jpg: appears in several lines: list\.txt:1,3"):
        source.annotate(b"a.jpg")


def test_paths_are_relative_to_the_root_or_the_list(make_tree, tmp_path):
    tree = make_tree({"d/a.jpg": "", "d/b.jpg": "", "b.jpg": "", "back\\slash.jpg": ""})
    root = Path(os.fsdecode(tree.root))
    (root / "out").symlink_to(tmp_path)
    (tmp_path / "x.jpg").write_bytes(b"")
    lines = f"a.jpg 1\nb.jpg 2\n{root}/d/b.jpg 3\nback\\slash.jpg 4\nout/x.jpg 5\n"
    (root / "d" / "list.txt").write_text(lines)
    source = open_list(tree, name="d/list.txt")
    assert [source.annotate(image).label for image in tree.images] == ["2", "4", "1", "3"]
    assert [str(error).split(";")[0] for error in source.unmatched_labels()] == [
        'list.txt:5: "out/x.jpg" is outside the source folder'
    ]
    (tmp_path / "list.txt").write_text("src/d/a.jpg 1\n")  # a list outside the source
    outside = open_source(f"list:{tmp_path}/list.txt", tree, SourceOptions())
    assert outside.annotate(b"d/a.jpg").label == "1"


def test_paths_of_any_bytes(make_tree):
    tree = make_tree({b"\xff.jpg": "", b"list.txt": b"\xff.jpg cat\n"})
    assert open_list(tree).annotate(b"\xff.jpg").label == "cat"


@pytest.mark.parametrize(("lines", "message"), [
    ("a.jpg,cat\nb.jpg,Bär\n", r'list\.txt: the class "B.*r" in line 2 is not in UTF-8.*save the list as UTF-8'),
    ("file,Bär,cat\na.jpg,0,1\nb.jpg,1,1\n", r"in its header is not in UTF-8.*save the list as UTF-8"),
])  # fmt: skip
def test_names_of_an_unknown_encoding_are_refused(make_tree, lines, message):
    with pytest.raises(UsageError, match=message):
        open_list(make_tree({"a.jpg": "", "b.jpg": "", "list.txt": lines.encode("cp1252")}))


def test_a_text_of_an_unknown_encoding_is_bad(make_tree):
    tree = make_tree({"a.jpg": "", "list.txt": "file,text\na.jpg,ein Bär\n".encode("cp1252")})
    with pytest.raises(BadLabel, match=r"list\.txt:2: its text .* is not in UTF-8"):
        open_list(tree).annotate(b"a.jpg")


@pytest.mark.parametrize("columns", ["path x y x y", None])
def test_semicolons_win_over_decimal_commas(make_tree, columns):
    tree = make_tree({"d/a.jpg": "", "list.txt": "file;lx;ly;rx;ry\na.jpg;1,5;2,5;3,5;4,5\n"})
    with pytest.raises(BadLabel, match=r'list\.txt:2: "1,5" is not a number'):
        open_list(tree, columns).annotate(b"d/a.jpg")


@pytest.mark.parametrize("rows", [
    ["clear primary", "clear water", "primary water", "primary", "water"],
    ["Mass|Nodule", "No Finding", "Mass", "Nodule", "No Finding"],
    ["Mass|Old Scar", "Mass|Nodule", "Nodule|Old Scar", "Mass|Nodule", "Mass|Nodule"],
])  # fmt: skip
def test_several_classes_in_a_cell_are_noted(make_tree, rows):
    lines = "".join(f"{i}.jpg,{row}\n" for i, row in enumerate(rows))
    source = open_list(make_tree({f"{i}.jpg": "" for i in range(5)} | {"list.txt": "image,tags\n" + lines}))
    assert any("several classes in one cell" in note for note in source.notes)
    assert source.annotate(b"0.jpg").label == rows[0]


def test_a_table_of_via_is_refused(make_tree):
    header = "filename,file_size,file_attributes,region_count,region_id,region_shape_attributes,region_attributes\n"
    row = ',123,"{}",1,0,"{""name"":""rect"",""x"":12}","{""type"":""cat""}"\n'
    with pytest.raises(UsageError, match=r"VGG Image Annotator.*export it as COCO"):
        open_list(make_tree({"a.jpg": "", "b.jpg": "", "list.txt": f"{header}a.jpg{row}b.jpg{row}"}))


@pytest.mark.parametrize(("lines", "columns"), [
    ("v_1.jpg\tn01\t0\t3\t4\t6\nv_2.jpg\tn02\t0\t3\t4\t6\n", "path class xmin ymin xmax ymax"),
    ('id,width,height,bbox,source\nv_1,9,9,"[1, 2]",a\nv_2,9,9,"[3, 4]",b\n', "path _ _ _ label"),
])  # fmt: skip
def test_the_columns_in_a_message_fit(make_tree, lines, columns):
    tree = make_tree({"d/v_1.jpg": "", "d/v_2.jpg": "", "list.txt": lines})
    with pytest.raises(UsageError, match=re.escape(f'columns="{columns}"')):
        open_list(tree)
    assert open_list(tree, columns).annotate(b"d/v_1.jpg").label in ("a", None)


def test_a_list_that_is_none(make_tree, tmp_path):
    tree = make_tree({"a.jpg": ""})
    for file in ("nothing.txt", str(tmp_path)):
        with pytest.raises(UsageError, match="there is no such file"):
            open_source(f"list:{file}", tree, SourceOptions())
    (tmp_path / "binary").write_bytes(b"\0\1\2")
    with pytest.raises(UsageError, match="is not a text file"):
        open_source(f"list:{tmp_path}/binary", tree, SourceOptions())


def test_a_header_supplies_the_columns(source_of):
    source = source_of("image,xmin,ymin,xmax,ymax,class,score\na.jpg,1,2,3,4,cat,.9\n")
    assert source.annotate(b"a.jpg").boxes == ((1, 2, 3, 4),) and source.annotate(b"a.jpg").box_labels == ("cat",)
    assert "list.txt: columns that are skipped: score" in source.notes


@pytest.mark.parametrize("written", ["a/" * 500_000 + "1.jpg", "../" * 300_000 + "1.jpg", "x" * 5000 + ".jpg"])
def test_a_path_longer_than_any_is_no_image(make_tree, written):
    tree = make_tree({"1.jpg": "", "list.txt": f"1.jpg 3\n{written} 4\n"})
    source = open_list(tree)
    assert source.annotate(b"1.jpg").label == "3"
    assert len(list(source.unmatched_labels())) == 1


def test_missing_images_behind_a_symlink_lead_out(make_tree, tmp_path):
    """Each folder is looked at once, the last part of each path again."""
    (tmp_path / "outside").mkdir()
    tree = make_tree({"in/1.jpg": ""})
    root = Path(os.fsdecode(tree.root))
    (root / "out").symlink_to(tmp_path / "outside")
    (root / "in" / "2.jpg").symlink_to(tmp_path / "outside" / "2.jpg")
    finder = PathFinder(tree, tree.root)
    assert [finder.escapes(p) for p in (b"in/1.jpg", b"in/3.jpg", b"out/1.jpg", b"out/2.jpg", b"in/2.jpg")] == [
        *(False, False, True, True, True)
    ]


def many(column: str, values: Iterable[object]) -> str:
    """A list of images a.jpg to z.jpg with a column below a word; without the word, without a header."""
    head = [f"file,{column}"] if column else []
    return "\n".join([*head, *(f"{chr(97 + i)}.jpg,{value}" for i, value in enumerate(values))])


def test_values(source_of):
    source = source_of("a.jpg,x,1.5,-2\nb.jpg,y,,3\nd/c d.jpg,z,nan,3\n", "path label value*2")
    first = source.annotate(b"a.jpg")
    assert first.value == (1.5, -2) and first.label == "x" and first.landmarks is None
    said = {b"b.jpg": "list.txt:2: its value is empty", b"d/c d.jpg": 'list.txt:3: "nan" is not a number'}
    for image, says in said.items():
        with pytest.raises(BadLabel, match=says):
            source.annotate(image)
    with pytest.raises(UsageError, match="the number of value columns must be given"):
        source_of("a.jpg 1\n", "path value*")


@pytest.mark.parametrize(
    ("column", "cells", "read"),
    [
        ("angle", [0.5, -1, 2], "path value"),
        ("label", [0.5, -1, 2], "path value"),
        ("foo", [0.5, -1, 2], "path value"),
        ("", [0.5, -1, 2], "path value"),
        ("age", range(20, 40), "asks"),
        ("age", [0, 1, 0], "asks"),
        ("target", range(300, 320), "asks"),
        ("", range(300, 320), "asks"),
        ("diagnosis", range(-10, 10), "asks"),
        ("label", range(300, 320), "path label"),
        ("target", range(20), "path label"),
        ("diagnosis", [0, 1, 4, 2], "path label"),
        ("", [7, 2], "path label"),
        ("rating", ["PG", "R", "13"], "path label"),
        ("label", [0.5, 1.5, "cat"], "path label"),
        ("age", [0.5, 1.5, "nan"], "path value"),
    ],
)
def test_numbers_are_values_or_classes_or_asked_for(source_of, column, cells, read):
    text = many(column, cells)
    if read != "asks":
        assert source_of(text)._columns.text == read
        return
    says = f"{f'the column {column}' if column else 'it'} has whole numbers, which may be classes or values"
    with pytest.raises(UsageError, match=says) as caught:
        source_of(text)
    for columns in re.findall(r'columns="([^"]*)"', str(caught.value)):
        raw = source_of(text, columns).annotate(b"a.jpg")
        assert (raw.label, raw.value) == ((None, (float(cells[0]),)) if "value" in columns else (str(cells[0]), None))


def test_columns_beside_values(source_of):
    """Further values are read, other numbers are skipped and named; beside a class, a value is skipped as before."""
    source = source_of("file,yaw,pitch,speed\na.jpg,0.5,1,30.25\nb.jpg,0.25,-1,31\n")
    assert source._columns.text == "path value*2 _" and any("skipped: speed" in note for note in source.notes)
    source = source_of("file,label,age\na.jpg,cat,30\nb.jpg,dog,31\n")
    assert source._columns.text == "path label _" and any("skipped: age" in note for note in source.notes)
    with pytest.raises(UsageError, match="the meaning of its columns is not clear: file, sex, age"):
        source_of("file,sex,age\na.jpg,m,30.5\nb.jpg,f,31\n")
