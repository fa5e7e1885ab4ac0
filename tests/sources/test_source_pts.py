"""PTS files: the frame of 300-W, damaged files, places and splits."""

from __future__ import annotations

import pytest

from packer.errors import BadLabel, NoImage, UsageError
from packer.sources import open_source, recognize
from packer.sources.source import SourceOptions

POINTS = "version: 1\nn_points:  3\n{\n1 1\n30.25 41\n-2 5e1\n}\n"


def test_points_count_from_the_center_of_the_first_pixel(make_tree):
    tree = make_tree({"a.png": "", "a.pts": POINTS})
    assert recognize(tree, SourceOptions()).spec == "pts"
    source = open_source("pts", tree, SourceOptions())
    assert source.annotate(b"a.png").landmarks == ((0.5, 0.5), (29.75, 40.5), (-2.5, 49.5))
    assert source.annotate(b"a.png").boxes is None and list(source.unmatched_labels()) == []


@pytest.mark.parametrize(
    "text", ["n_points: 1 {\r\n 1\t1 \r\n\r\n}", "{\n1 1\n}", "version: 1\rn_points: 1\r{\r1 1\r}\r"]
)
def test_other_spellings(make_tree, text):
    tree = make_tree({"a.png": "", "a.pts": text})
    assert open_source("pts", tree, SourceOptions()).annotate(b"a.png").landmarks == ((0.5, 0.5),)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", r"a.pts: has no points between"),
        ("1 1\n2 2\n", r"a.pts: has no points between"),
        ("n_points: 2\n{\n1 1\n}", r"a.pts: says n_points: 2, but has 1 point"),
        ("n_points: x\n{\n1 1\n}", r'n_points: "x" is not a number of points'),
        ("{\n1 1\n", r"a.pts: does not end with }"),
        ("{\n\n1 1 1\n}", r"a.pts:3: has 3 numbers, not x and y"),
        ("{\n1 nan\n}", r'a.pts:2: "nan" is not a number'),
    ],
)
def test_bad_files(make_tree, text, problem):
    tree = make_tree({"a.png": "", "a.pts": text})
    with pytest.raises(BadLabel, match=problem):
        open_source("pts", tree, SourceOptions()).annotate(b"a.png")


def test_splits_are_folders(make_tree):
    tree = make_tree({"trainset/a.png": "", "trainset/a.pts": POINTS, "testset/a.png": "", "testset/b.pts": POINTS})
    source = open_source("pts", tree, SourceOptions(split="trainset"))
    assert [path for path in tree.images if source.in_split(path)] == [b"trainset/a.png"]
    assert list(source.unmatched_labels()) == []
    found = list(open_source("pts", tree, SourceOptions(split="testset")).unmatched_labels())
    assert [type(error) for error in found] == [NoImage] and found[0].where == b"testset/b.pts"
    with pytest.raises(UsageError, match=r'split="val" fits no folder'):
        open_source("pts", tree, SourceOptions(split="val"))
