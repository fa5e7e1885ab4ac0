"""Which lines of a list belong to which image: paths as people write them, several lines for an image, selection."""

from __future__ import annotations

import os
import re

import pytest
from drawn import packed_of
from hypothesis import given
from hypothesis import strategies as st

from packer.errors import BadLabel, NoImage, UsageError
from packer.sources import list_lines, open_source, path_finder
from packer.sources.path_finder import BY_NAME, NOT_FOUND, Manner, PathFinder
from packer.sources.source import SourceOptions, Tree

BOXES = "path xmin ymin xmax ymax class"


@pytest.fixture
def open_list(make_tree):
    """A list over these images."""

    def make(images, text, columns=None, name="list.csv", **options):
        tree = make_tree(dict.fromkeys(images.split(), "") | {name: text})
        source = open_source(f"list:{os.fsdecode(tree.root)}/{name}", tree, SourceOptions(columns=columns, **options))
        return tree, source

    return make


def labels(tree, source):
    return {os.fsdecode(i): source.annotate(i).label for i in packed_of(tree, source)}


@pytest.mark.parametrize(("images", "paths", "how"), [
    ("images/a.jpg images/b.jpg", "a.jpg b.jpg", "end of the path"),
    ("a.jpg b.jpg", r"C:\set\a.jpg C:\set\b.jpg", "end of the path (without its first 2 folders)"),
    ("cat/1.jpg dog/1.jpg", r"D:\pets\cat\1.jpg D:\pets\dog\1.jpg", "end of the path (without its first 2 folders)"),
    ("cat/1.jpg cat/more/2.jpg", "/home/me/cat/1.jpg /home/me/cat/more/2.jpg", "end of the path (without its first 2"),
    ("x/cat/1.jpg x/dog/1.jpg", "cat/1.jpg dog/1.jpg", "the end of the path"),
    ("JPEGImages/a.jpg JPEGImages/b.jpg", "images/a.jpg images/b.jpg", "end of the path (without its first folder)"),
    ("a.jpg b.jpg", "x/a.jpg y/z/b.jpg", "file name"),
    ("train/0001.jpg train/0002.png", "0001 0002", "end of the path without extension"),
    ("train/a.v1.png train/b.png", "a.v1 b", "end of the path without extension"),
    ("train/a.png train/b.png", "train/a.jpg train/b.jpg", "end of the path without extension"),
    ("part1/a.jpg part2/b.jpg", "a b", "end of the path without extension"),
])  # fmt: skip
def test_paths_that_lead_nowhere_as_written(open_list, images, paths, how):
    """One note says how they are compared, with an example."""
    tree, source = open_list(images, "".join(f"{path},l{i}\n" for i, path in enumerate(paths.split())), "path label")
    assert list(labels(tree, source).values()) == ["l0", "l1"] and list(source.unmatched_labels()) == []
    (note,) = [note for note in source.notes if "compared" in note]
    assert how in note and tree.images[0].decode() in note


def test_images_found_as_written_are_not_compared_by_name(open_list, monkeypatch):
    """Which takes longer than all else of a list: whether a class may be an image is not asked."""
    monkeypatch.setattr(PathFinder, "manner", None)
    tree, source = open_list("cat/1.jpg dog/2.jpg", "file,what,n\ncat/1.jpg,cat,7\ndog/2.jpg,dog,7\n", "path label _")
    assert labels(tree, source) == {"cat/1.jpg": "cat", "dog/2.jpg": "dog"}
    assert open_list("cat/1.jpg dog/2.jpg", "cat/1.jpg,cat\ndog/2.jpg,dog\n")[1].notes == []


WRITTEN = st.text("aB/.\\\xff", max_size=6).map(lambda text: text.encode("latin-1"))


@pytest.mark.parametrize("hash_of", [hash, lambda path: sum(path) % 3])
@given(
    images=st.sets(WRITTEN.filter(bool)),
    paths=st.lists(WRITTEN, max_size=20),
    in_folder=st.booleans(),
    manner=st.builds(Manner, st.sampled_from([None, 0, 1, 2]), st.booleans()),
)
def test_many_paths_are_found_as_each_is(hash_of, images, paths, in_folder, manner):
    """Also those whose hashes are the same."""
    finder = PathFinder(Tree(b"/set", sorted(images), (), ()), b"/set/a" if in_folder else b"/set")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(path_finder, "hash", hash_of, raising=False)
        assert finder.find_all(None, sorted(images)).tolist() == list(range(len(images)))
        for how in (None, manner):
            each = [finder.find_by(how, path) if path else NOT_FOUND for path in paths]
            assert finder.find_all(how, paths).tolist() == each


def test_a_name_of_several_images_is_compared_once(monkeypatch):
    """It may be in millions of lines, and the name of thousands of images."""
    finder = PathFinder(Tree(b"/set", [b"x/a.jpg", b"y/a.jpg"], (), ()), b"/set")
    asked = []
    monkeypatch.setattr(finder, "find_by", lambda _, path: asked.append(path) or NOT_FOUND)
    assert finder.find_all(BY_NAME, [b"a.jpg"] * 100).tolist() == [NOT_FOUND] * 100 and asked == [b"a.jpg"]


def test_a_path_as_written_means_that_all_are(open_list):
    """cat/2.jpg is missing: dog/2.jpg is another image."""
    tree, source = open_list("cat/1.jpg dog/2.jpg", "cat/1.jpg,a\ncat/2.jpg,a\n")
    assert labels(tree, source) == {"cat/1.jpg": "a"}
    assert [error.line for error in source.unmatched_labels()] == [
        'list.csv:2: no image "cat/2.jpg"; add the image, or remove the line'
    ]


def test_no_two_paths_mean_one_image(open_list):
    """dog/1.jpg is missing, and must not be taken for cat/1.jpg."""
    tree, source = open_list("cat/1.jpg cat/2.jpg", "/x/cat/1.jpg,a\n/x/dog/1.jpg,b\n/x/cat/2.jpg,a\n")
    assert labels(tree, source) == {"cat/1.jpg": "a", "cat/2.jpg": "a"}
    assert [error.where for error in source.unmatched_labels()] == ["list.csv:2"]


def test_two_paths_for_one_image_below_the_lines_looked_at(open_list):
    names = [f"p{i:04d}" for i in range(900)]
    text = "".join(f"x/{name}.png,l\n" for name in names)
    lines = text.splitlines(keepends=True)
    lines[701] = "y/p0700.png,k\n"
    tree, source = open_list(" ".join(f"{name}.jpg" for name in names), "".join(lines), "path label")
    with pytest.raises(
        BadLabel, match=r"p0700\.jpg: is meant by different paths: list\.csv:701-702; write whole paths"
    ):
        labels(tree, source)
    assert source.classes is None


def test_a_name_of_several_images(open_list):
    tree, source = open_list("a/1.jpg b/1.jpg b/2.jpg", "1.jpg,x\n2.jpg,y\n")
    assert labels(tree, source) == {"b/2.jpg": "y"}
    (error,) = source.unmatched_labels()
    assert error.line == 'list.csv:1: "1.jpg" may be a/1.jpg or b/1.jpg; write the whole path'


@pytest.mark.parametrize(("images", "text", "message"), [
    ("a/1.jpg b/1.jpg", "1.jpg,x\n1.jpg,y\n",
     'list.csv: none of its 2 paths leads to an image, for example line 1 "1.jpg"; a/1.jpg and b/1.jpg have that name'),
    ("a.jpg", "x.jpg,1\n\ny.jpg,2\nz.jpg,0\n",
     'none of its 3 paths leads to an image, for example line 1 "x.jpg"; give'),
    ("a.jpg", "path,label\nx.jpg,cat\n", 'none of its 1 path leads to an image, for example line 2 "x.jpg"'),
])  # fmt: skip
def test_no_path_leads_to_an_image(open_list, images, text, message):
    with pytest.raises(UsageError) as caught:
        open_list(images, text)
    assert message in caught.value.line


@pytest.mark.parametrize(("text", "columns", "message"), [
    ("a.jpg" + ",1" * 10 + "\nb.jpg" + ",2" * 10, "path x*4 y*4",
     'list.csv: each line has 11 columns, but --columns names 9; write --columns "path x*4 y*4 _*2"'),
    ("filename,width,height,class,xmin,ymin,xmax,ymax\na.jpg,9,9,cat,1,1,2,2\n", "path label",
     '8 columns, but --columns names 2; write --columns "path width height class xmin ymin xmax ymax"'),
    ("a.jpg,1,2\nb.jpg,1,2\n", "path x y _*5", "each line has 3 columns, but --columns names 8; name each column once"),
    ("a.jpg,1,2\nb.jpg,1,2,3\nd.jpg,1,2,3", "path (x y)*3", "most lines have 4 columns, but --columns names 7"),
    ("a.jpg,1\nb.jpg,1\n", "path (xmin ymin xmax ymax class)*",
     'each line has 2 columns, but --columns names 1 and any number of 5 more; write --columns "path label"'),
])  # fmt: skip
def test_a_wrong_number_of_columns_is_told_once(open_list, text, columns, message):
    with pytest.raises(UsageError) as caught:
        open_list("a.jpg b.jpg", text, columns)
    assert message in caught.value.line


def test_some_lines_with_another_number_of_columns_are_bad_lines(open_list):
    _, source = open_list("a.jpg b.jpg", "a.jpg,1,2\nb.jpg,1\n", "path x y")
    assert source.annotate(b"a.jpg").landmarks == ((1, 2),)
    with pytest.raises(BadLabel, match=r"list\.csv:2: has 2 columns, but columns needs 3"):
        source.annotate(b"b.jpg")


def test_a_list_selects(open_list):
    tree, source = open_list("a.jpg b.jpg c.jpg", "b.jpg,cat\n")
    assert packed_of(tree, source) == [b"b.jpg"] and source.left_out(b"a.jpg") == "not in list.csv"
    tree, source = open_list("a.jpg b.jpg c.jpg", "b.jpg,cat\n", by_auto=True)
    assert packed_of(tree, source) == tree.images


def test_a_list_of_paths_alone_selects(open_list):
    tree, source = open_list("a.jpg b.jpg c.jpg", "b.jpg\nc.jpg\n", "path")
    assert labels(tree, source) == {"b.jpg": None, "c.jpg": None}


def test_a_column_of_splits(open_list):
    text = "path,label,split\na.jpg,cat,TRAIN\nb.jpg,dog,TRAIN\nc.jpg,dog,TEST\n"
    tree, source = open_list("a.jpg b.jpg c.jpg d.jpg", text, split="train")
    assert labels(tree, source) == {"a.jpg": "cat", "b.jpg": "dog"} and source.has_splits
    assert list(source.unmatched_labels()) == []
    with pytest.raises(UsageError, match="has no split val; its splits are TEST, TRAIN"):
        open_list("a.jpg b.jpg c.jpg", text, split="val")


def test_lines_of_an_image_are_collected(open_list):
    text = "a.jpg,1,1,5,5,cat\nb.jpg,2,2,4,4,dog\na.jpg,6,6,9,9,dog\na.jpg,1,1,5,5,cat\na.jpg,3,3,4,4,cat\n"
    _, source = open_list("a.jpg b.jpg", text)
    found = source.annotate(b"a.jpg")
    assert found.boxes == ((1, 1, 5, 5), (6, 6, 9, 9), (3, 3, 4, 4)) and found.box_labels == ("cat", "dog", "cat")
    assert found == source.annotate(b"a.jpg") and found.origin == "list.csv:1,3,4 and 1 more"
    assert list(source.unmatched_labels()) == []
    (note,) = [note for note in source.notes if "repeat" in note]
    assert note == "list.csv: 1 line repeats another line of the same image; each is counted once"


def test_identical_lines_without_boxes_are_one(open_list):
    tree, source = open_list("a.jpg b.jpg", "a.jpg,1\na.jpg,1\nb.jpg,0\n")
    assert labels(tree, source) == {"a.jpg": "1", "b.jpg": "0"} and source.classes == ("0", "1")


@pytest.mark.parametrize(("text", "columns", "message"), [
    ("a.jpg,1,1,5,5,cat\na.jpg,1,1,5,?,cat\n", BOXES, r'^list\.csv:2: "\?" is not a number'),
    ("a.jpg,1,1,5,5,cat,9,9\na.jpg,2,2,5,5,cat,9,8\n", BOXES + " width height",
     r"^list\.csv:2: gives another image size than line 1"),
    ("a.jpg,1,1,5,5,day\na.jpg,2,2,5,5,night\n", "path xmin ymin xmax ymax label",
     r"^list\.csv:2: gives another label than line 1"),
    ("a.jpg,1,1,5,5,\n", BOXES, r"^list\.csv:1: its class is empty"),
    ("a.jpg,1,,5,5,cat\n", BOXES, r'^list\.csv:1: "" is not a number'),
    ("a.jpg,,,5,,cat\n", BOXES, r'^list\.csv:1: "" is not a number'),
])  # fmt: skip
def test_lines_that_do_not_fit_together_are_bad(open_list, text, columns, message):
    _, source = open_list("a.jpg", text, columns)
    with pytest.raises(BadLabel, match=message):
        source.annotate(b"a.jpg")


@pytest.mark.parametrize(("text", "columns", "message"), [
    ("path,cat,dog\na.jpg,1,0\nb.jpg,0,-1\n", None, "not clear: path, cat, dog"),
    ("path,cat,dog\na.jpg,1,0\nb.jpg,0,\n", None, "not clear: path, cat, dog"),
    ("path,cat,dog\na.jpg,1,0\nb.jpg,0,-1\n", "path tag*2", "its tag columns have 0 and -1"),
    ("path,cat,cat\na.jpg,1,0\nb.jpg,0,1\n", None, "two tag columns are called cat"),
])  # fmt: skip
def test_tags_that_are_not_clear(open_list, text, columns, message):
    with pytest.raises(UsageError, match=message):
        open_list("a.jpg b.jpg", text, columns)


def test_tags(open_list):
    _, source = open_list("a.jpg b.jpg", "a.jpg,1.0,0.0\nb.jpg,0,2\n", "path tag*2")
    assert source.tags == ("0", "1") and source.annotate(b"a.jpg").tags == (True, False)
    with pytest.raises(BadLabel, match='"2" is neither 0 nor 1'):
        source.annotate(b"b.jpg")


def test_a_header_is_recognized_by_numbers_below_its_words(open_list):
    """Whatever its words are, and whether its path has an extension or not."""
    for text in ("wo,wie\n1,7\n2,8\n", "Bild;Klasse\n1.jpg;7\n2.jpg;8\n"):
        tree, source = open_list("1.jpg 2.jpg", text)
        assert labels(tree, source) == {"1.jpg": "7", "2.jpg": "8"} and source.classes[-1] == "8"
        assert any("list.csv:1 is taken as a header" in note for note in source.notes)


def test_the_first_line_of_ids_is_data_although_its_image_is_missing(open_list):
    """Its class occurs below."""
    _, source = open_list("a2.jpg a3.jpg", "a1,cat\na2,dog\na3,cat\n")
    assert [error.where for error in source.unmatched_labels()] == ["list.csv:1"]


def test_missing_images_are_told_once_per_path(open_list):
    _, source = open_list("a.jpg", "a.jpg,1,1,2,2,c\nx.jpg,1,1,2,2,c\nx.jpg,1,1,3,3,c\n")
    assert [(type(e), e.where) for e in source.unmatched_labels()] == [(NoImage, "list.csv:2")]


PLAIN = "path,label\n" + "".join(f"d/{i:03d}.jpg,{i % 7}\n" for i in range(40))


@pytest.mark.parametrize("change", [
    lambda text: text, lambda text: text.replace(",", ", "), lambda text: text.replace("\n", "\r\n"),
    lambda text: text.replace(",", "\t"), lambda text: re.sub(r"(\w)\n", r"\1 \n", text),
    lambda text: text.rstrip("\n"),
    lambda text: re.sub(r"(?m)^(.*),(.*)$", r'"\1","\2"', text), lambda text: text.replace("d/007.jpg", '"d/007.jpg"'),
    lambda text: text.replace("d/007.jpg,", 'd/007.jpg , '), lambda text: text.replace("d/007", "\n\nd/007"),
    lambda text: text.replace("d/007.jpg,0", "d/007.jpg,0\nd/007.jpg,0"), lambda text: text + 'x"y,1\n',
    lambda text: text + "d/040.jpg,1,2\n", lambda text: text + '"d/041.jpg,1\n', lambda text: text + '"x\ny",1\n',
    lambda text: text + ",1\n",
])  # fmt: skip
@pytest.mark.parametrize("block", [1, 100, 1 << 22])
def test_blocks_are_read_as_single_lines_are(open_list, monkeypatch, change, block):
    """By pyarrow's reader or not: the same images, classes and errors."""
    images, text = " ".join(f"d/{i:03d}.jpg" for i in range(40)), change(PLAIN)
    monkeypatch.setattr(list_lines, "_plain_block", lambda *_: None)
    expected = open_list(images, text, "path label")[1]
    monkeypatch.undo()
    monkeypatch.setattr(list_lines, "BLOCK_BYTES", block)
    tree, source = open_list(images, text, "path label")
    assert [source.annotate(i) for i in tree.images] == [expected.annotate(i) for i in tree.images]
    assert source.classes == expected.classes == tuple("0123456")
    assert [e.line for e in source.unmatched_labels()] == [e.line for e in expected.unmatched_labels()]
