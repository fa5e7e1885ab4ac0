"""What --labels auto decides, and when it refuses; the names of sources and their options."""

from __future__ import annotations

import pytest

from packer.errors import UsageError
from packer.sources import check_options, open_source, recognise
from packer.sources.base import SourceOptions

XML = "<annotation/>"
FOLDER = {"cat/1.jpg": "", "dog/1.jpg": ""}
VOC = {"JPEGImages/1.jpg": "", "Annotations/1.xml": XML}
YOLO = {"images/train/1.jpg": "", "labels/train/1.txt": "0 .5 .5 1 1"}


@pytest.mark.parametrize(("files", "spec"), [
    (FOLDER, "folder"), (VOC, "voc"), (YOLO, "yolo"), ({"1.jpg": "", "notes.txt": "hello"}, "none"),
    ({"1.jpg": "", "1.xml": XML}, "voc"), ({"1.jpg": "", "1.txt": "0 .5 .5 1 1"}, "yolo"),
    ({"1.jpg": "", "1.txt": "a caption"}, "none"), ({"1.jpg": "", "1.xml": "<project/>"}, "none"),
    ({"train/1.jpg": "", "train/1.xml": XML, "test/2.jpg": "", "test/2.xml": XML}, "voc"),
    ({"train/images/1.jpg": "", "train/labels/1.txt": "", "data.yaml": "names: [a]"}, "yolo"),
    (VOC | {"ImageSets/Main/train.txt": "1\n"}, "voc"), (YOLO | {"train.txt": "images/train/1.jpg\n"}, "yolo"),
    ({"JPEGImages/cat/1.jpg": "", "JPEGImages/dog/2.jpg": ""}, "folder"),
    ({"train/1.jpg": "", "val/1.jpg": ""}, "none"),
])  # fmt: skip
def test_one_fits(make_tree, files, spec):
    choice = recognise(make_tree(files), SourceOptions())
    assert choice.spec == spec and choice.why


def test_a_list_is_found(make_tree):
    tree = make_tree({"1.jpg": "", "labels.csv": "filename,label\n1.jpg,cat\n"})
    source = open_source("auto", tree, SourceOptions())
    assert source.annotate(b"1.jpg").label == "cat"
    assert source.notes[0].startswith("--labels list:/") and "labels.csv" in source.notes[0]


def test_columns_mean_a_list(make_tree):
    tree = make_tree(FOLDER | {"l.txt": "cat/1.jpg 1 2\n"})
    assert recognise(tree, SourceOptions(columns="path x y")).spec.endswith("/l.txt")
    with pytest.raises(UsageError, match="no list was found"):
        recognise(make_tree({"l.txt": ""}), SourceOptions(columns="path x y"))


def test_two_that_fit_are_refused_with_both_options(make_tree):
    with pytest.raises(UsageError, match=r"2 kinds of labels fit.*--labels voc .*--labels folder "):
        recognise(make_tree(FOLDER | {"cat/1.xml": XML, "dog/1.xml": "", "x.xml": ""}), SourceOptions())


def test_splits_of_class_folders_lead_to_the_option(make_tree):
    tree = make_tree({"train/cat/1.jpg": "", "val/cat/1.jpg": ""})
    with pytest.raises(UsageError, match="choose one: --split train"):
        open_source("auto", tree, SourceOptions())
    assert open_source("auto", tree, SourceOptions("train")).classes == ("cat",)


@pytest.mark.parametrize("spec", ["coco", "", "list", "list:", "voc:x", "none:"])
def test_unknown_names(make_tree, spec):
    with pytest.raises(UsageError, match="choose one of auto, none, folder, voc, yolo, list:FILE"):
        open_source(spec, make_tree(FOLDER), SourceOptions())


def test_options_that_nobody_can_use():
    check_options(["voc", "list:x"], SourceOptions("train", "path label"))
    check_options(["auto"], SourceOptions("train", "path label"))
    with pytest.raises(UsageError, match="a list has no splits"):
        check_options(["list:x"], SourceOptions("train"))
    with pytest.raises(UsageError, match="--columns is for lists"):
        check_options(["voc"], SourceOptions(columns="path label"))


def test_the_path_may_stand_at_the_end_of_a_long_line(make_tree):
    """As in sets of 98 landmarks and more; of a million columns only the ends are looked at."""
    numbers = " ".join(str(i) for i in range(300))
    tree = make_tree({"cat/1.jpg": "", "dog/2.jpg": "", "faces.txt": f"{numbers} 1.jpg\n{numbers} cat/1.jpg\n"})
    with pytest.raises(UsageError, match=r"2 kinds of labels fit.*faces\.txt"):
        recognise(tree, SourceOptions())
