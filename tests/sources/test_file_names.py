"""Labels in the names of files, by expressions with named groups, and what ``auto`` says of such names."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from drawn import draw
from running import good, refused

from packer import BuildOptions, build_packs, open_pack
from packer.errors import BadLabel, NoLabel, UsageError
from packer.packing.recorded import command_of
from packer.sources import open_source
from packer.sources.file_names import NameSource, expression_of
from packer.sources.source import SourceOptions


@pytest.fixture
def opened(make_tree: Any) -> Any:
    """Return the source of an expression for images of these names, and {image: annotation}."""

    def of(regex: str, *names: str, **options: Any) -> Any:
        tree = make_tree(dict.fromkeys(names, ""))
        source = open_source(f"name:{regex}", tree, SourceOptions(**options))
        wanted = filter(source.in_split, tree.images)
        return source, {os.fsdecode(image): source.annotate(image) for image in wanted}

    return of


def test_dogs_and_cats(opened: Any) -> None:
    source, found = opened(r"(?P<class>cat|dog)\.\d+\.jpg", "train/cat.0.jpg", "train/dog.12.jpg")
    assert {name: one.label for name, one in found.items()} == {"train/cat.0.jpg": "cat", "train/dog.12.jpg": "dog"}
    assert source.classes is None and not any(one.extras or one.value for one in found.values())


def test_market_1501(opened: Any) -> None:
    names = ("bounding_box_train/0002_c1s1_000451_03.jpg", "bounding_box_test/-1_c6s3_000451_00.jpg")
    _, found = opened(r"(?P<class>-?\d+)_c(?P<camera>\d)", *names)
    assert [(found[name].label, found[name].extras) for name in names] == [
        ("0002", {"camera": "1"}), ("-1", {"camera": "6"}),
    ]  # fmt: skip
    regex = r"bounding_box_(?P<split>train|test)/(?P<class>-?\d+)_c"
    assert [*opened(regex, *names, split="test")[1]] == [names[1]]
    with pytest.raises(UsageError, match="no split val; the splits are: test, train"):
        opened(regex, *names, split="val")
    assert [*opened(r"(?P<class>-?\d+)_c", *names, split="train")[1]] == [names[0]]


def test_utkface(opened: Any) -> None:
    _, found = opened(r"(?P<value>\d+)_(?P<gender>[01])_(?P<race>\d)_", "25_1_2_20170116174525125.jpg.chip.jpg")
    (one,) = found.values()
    assert one.value == (25,) and one.label is None and one.extras == {"gender": "1", "race": "2"}


def test_several_values_are_in_the_order_of_their_numbers(opened: Any) -> None:
    _, found = opened(r"(?P<value10>-?[\d.]+)_(?P<value2>[\d.]+)_(?P<value>\d+)\.", "-1.5_.25_7.jpg")
    assert found["-1.5_.25_7.jpg"].value == (7, 0.25, -1.5)


@pytest.mark.parametrize(
    ("regex", "error", "says"),
    [
        (r"(?P<class>dog)", NoLabel, r"does not match \(\?P<class>dog\)"),
        (r"(?P<class>dog|)\.", NoLabel, "has nothing that is the group class"),
        (r"(?P<class>dog)?\.", NoLabel, "has nothing that is the group class"),
        (r"(?P<value>\w+)\.", BadLabel, 'its value "cat" is not a number'),
    ],
)
def test_an_image_without_a_label(make_tree: Any, regex: str, error: Any, says: str) -> None:
    source = open_source(f"name:{regex}", make_tree({"cat.jpg": "", "dog.jpg": ""}), SourceOptions())
    with pytest.raises(error, match=f"^cat.jpg: {says}"):
        source.annotate(b"cat.jpg")


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("name", 'write labels="name:REGEX"'),
        ("name:(", r'"\(" is not a regular expression: missing \)'),
        ("name:cat", "has no named group"),
        ("name:(?P<class>cow)", r'no path matches \(\?P<class>cow\); the first is "cat.1.jpg"'),
    ],
)
def test_expressions_that_are_refused(make_tree: Any, spec: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        open_source(spec, make_tree({"cat.1.jpg": ""}), SourceOptions())


def test_a_pack_of_each_split_which_is_made_again(tmp_path: Path) -> None:
    for number in range(12):
        draw(
            tmp_path / "src" / f"{('cat', 'dog')[number % 2]}_{('train', 'val')[number % 3 == 0]}_{number}.jpg", number
        )
    (tmp_path / "src" / "other.jpg").write_bytes((tmp_path / "src" / "cat_val_0.jpg").read_bytes())
    spec = r"name:(?P<class>[a-z]+)_(?P<split>[a-z]+)_(?P<serial>\d+)"
    options = {"labels": (spec,), "missing_labels": "skip", "workers": 2}
    packs = build_packs(BuildOptions(str(tmp_path / "src"), str(tmp_path / "p.lmdb"), **options))
    assert [Path(one.path).name for one in packs] == ["p-train.lmdb", "p-val.lmdb"]
    for one in packs:
        pack = open_pack(one.path)
        assert pack.classes == ["cat", "dog"]
        for record, path in enumerate(pack.paths):
            name, split, serial = path.removesuffix(".jpg").split("_")
            assert one.path.endswith(f"-{split}.lmdb") and pack.classes[pack.annotation(record).label or 0] == name
            assert pack.annotation(record).extras == {"serial": serial}
    assert f"'{spec}'" in command_of(open_pack(packs[0].path).manifest, "p")
    good("build", tmp_path / "src", "-o", tmp_path / "again.lmdb", "--like", packs[1].path, "--split", "val")
    good("diff", packs[1].path, tmp_path / "again.lmdb")


@pytest.mark.parametrize(
    ("names", "regex"),
    [
        (["cat.{}.jpg", "dog.{}.jpg"], r"name:(?P<class>cat|dog)\.\d"),
        (["train/cat ({}).png", "val/big dog ({}).png"], r"name:(?P<class>big dog|cat) \(\d"),
        (["cat{:03d}.jpg", "dog_{:03d}.jpg"], r"name:(?P<class>cat|dog)[-_. (]*\d"),
        ([f"{letter}_bird_{{}}.jpg" for letter in "abcdefghij"], r"name:(?P<class>[A-Za-z]+(?:[ _-][A-Za-z]+)*)_\d"),
        (["IMG_{}.jpg", "DSC_{}.jpg"], None),
        (["frame_{}.jpg"], None),
        (["{}.jpg"], None),
        (["cat.jpg", "dog.jpg", "{}.jpg"], None),
    ],
)
def test_what_auto_says_of_names(make_tree: Any, names: list[str], regex: str | None) -> None:
    """The expression that is named fits all images; names that cameras give are no classes."""
    tree = make_tree({name.format(number): "" for name in names for number in range(1, 6)})
    assert expression_of(tree, lambda image: True) == regex
    if regex is None:
        assert open_source("auto", tree, SourceOptions()).annotate(tree.images[0]).label is None
        return
    with pytest.raises(UsageError, match=re.escape(f'labels="{regex}"')):
        open_source("auto", tree, SourceOptions())
    source = open_source(regex, tree, SourceOptions())
    found = {source.annotate(image).label for image in tree.images}
    assert found == {re.sub(r"[-_. (]*\{.*", "", os.path.basename(name)) for name in names}
    assert isinstance(source, NameSource) and open_source("none", tree, SourceOptions())


@pytest.mark.parametrize(
    ("names", "labels"),
    [
        (["train/0001_c1s1_000176_01.jpg", "train/0002_c3s1_000176_02.jpg", "-1_c1s1_000201_01.jpg"],
         [("0001", None), ("0002", None), ("-1", None)]),
        ([f"{age}_1_4_20170109{age:09d}.jpg.chip.jpg" for age in (1, 26, 101)],
         [(None, (1.0,)), (None, (26.0,)), (None, (101.0,))]),
        (["bbox_train/0001/0001C1T0001F001.jpg", "bbox_test/00-1/00-1C2T0081F201.jpg"],
         [("0001", None), ("00-1", None)]),
    ],
)  # fmt: skip
def test_names_of_known_sets(make_tree: Any, names: list[str], labels: list[Any]) -> None:
    """Persons of Market-1501 and MARS, ages of UTKFace."""
    tree = make_tree(dict.fromkeys(names, ""))
    source = open_source(str(expression_of(tree, lambda image: True)), tree, SourceOptions())
    found = [source.annotate(name.encode()) for name in names]
    assert [(one.label, one.value) for one in found] == labels and all(one.extras for one in found)


def test_the_command_that_auto_names_packs_the_folder(tmp_path: Path) -> None:
    for number in range(5):
        draw(tmp_path / "src" / f"cat.{number}.jpg", number)
        draw(tmp_path / "src" / f"dog.{number}.jpg", 5 + number)
    said = refused(2, "build", tmp_path / "src", "-o", tmp_path / "p.lmdb")
    (spec,) = re.findall(r'--labels "([^"]+)"', said)
    good("build", tmp_path / "src", "-o", tmp_path / "p.lmdb", "--labels", spec)
    pack = open_pack(tmp_path / "p.lmdb")
    assert pack.classes == ["cat", "dog"] and np.bincount(pack.column("label")).tolist() == [5, 5]
    good("build", tmp_path / "src", "-o", tmp_path / "none.lmdb", "--labels", "none")


def test_groups_without_a_label_are_named(opened: Any) -> None:
    source, found = opened(r"(?P<age>\d+)_(?P<gender>[01])_", "25_1_2.jpg")
    assert found["25_1_2.jpg"].value is None
    assert any("images have no label, only extras (age, gender)" in note for note in source.notes)
    assert opened(r"(?P<value>\d+)_(?P<gender>[01])_", "25_1_2.jpg")[0].notes == []


def test_a_split_without_labels_is_left_out_with_skip(tmp_path: Path) -> None:
    """Kaggle's test set: the command that skips images without labels packed nothing."""
    for name in ("train/cat.0", "train/dog.1", "train/dog", "test/1", "test/2"):
        draw(tmp_path / "src" / f"{name}.jpg", len(name))
    given = ["build", tmp_path / "src", "--labels", r"name:(?P<class>cat|dog)\.\d", "--missing-labels", "skip"]
    said = good(*given, "-o", tmp_path / "out.lmdb")
    assert "no image of the split test has a label: it is left out" in said.out
    assert len(open_pack(tmp_path / "out-train.lmdb")) == 2 and not [*tmp_path.glob("out-test*")]
    error = refused(2, *given, "--split", "test", "-o", tmp_path / "x.lmdb")
    assert "nothing to pack of the split test" in error and "missing-labels empty" in error
