"""Class folders: the first folder is the class, ids by byte order, splits are never taken for classes."""

from __future__ import annotations

import pytest

from packer.errors import NoLabel, UsageError
from packer.sources import open_source
from packer.sources.source import SourceOptions


def test_the_first_folder_is_the_class(make_tree):
    tree = make_tree({"cat/deep/1.jpg": "", "Dog/1.jpg": "", "empty/": "", "bird/sub/": "", "top.jpg": ""})
    source = open_source("folder", tree, SourceOptions())
    assert source.classes == ("Dog", "bird", "cat", "empty")
    assert source.annotate(b"cat/deep/1.jpg").label == "cat"
    with pytest.raises(NoLabel, match=r"^top\.jpg: is in no class folder"):
        source.annotate(b"top.jpg")
    assert list(source.unmatched_labels()) == []


def test_class_names_of_any_bytes(make_tree):
    source = open_source("folder", make_tree({b"\xff\n/1.jpg": "", "é/1.jpg": ""}), SourceOptions())
    assert source.classes == ("é", "\udcff\n")
    assert source.annotate(b"\xff\n/1.jpg").label.encode("utf-8", "surrogateescape") == b"\xff\n"


def test_splits_need_the_option(make_tree):
    tree = make_tree({"train/cat/1.jpg": "", "train/dog/1.jpg": "", "val/cat/1.jpg": "", "README.md": ""})
    with pytest.raises(UsageError, match=r"splits, not classes: train, val; choose one: split=.train.$"):
        open_source("folder", tree, SourceOptions())
    source = open_source("folder", tree, SourceOptions("val"))
    assert source.classes == ("cat", "dog")  # those of all splits
    assert [image for image in tree.images if source.in_split(image)] == [b"val/cat/1.jpg"]
    assert source.annotate(b"val/cat/1.jpg").label == "cat"
    assert "different classes (dog): the classes of all splits" in source.notes[0]
    with pytest.raises(UsageError, match=r"no folder for split=.test.; its folders are: train, val"):
        open_source("folder", tree, SourceOptions("test"))


def test_a_class_may_be_called_train(make_tree):
    tree = make_tree({"train/1.jpg": "", "car/1.jpg": ""})
    assert open_source("folder", tree, SourceOptions()).classes == ("car", "train")


def test_images_beside_the_class_folders_of_a_split(make_tree):
    tree = make_tree({"train/cat/1.jpg": "", "train/2.jpg": ""})
    source = open_source("folder", tree, SourceOptions("train"))
    with pytest.raises(NoLabel):
        source.annotate(b"train/2.jpg")
