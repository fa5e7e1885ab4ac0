"""Parquet as Hugging Face writes it: columns by metadata, types and names; boxes of every order; what is refused."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from drawn import image_file

from packer.errors import BadLabel, NoLabel, UsageError
from packer.sources import open_source, recognize
from packer.sources.source import SourceOptions
from packer.sources.tree import find_tree

VALUE = {"_type": "Value"}
IMAGE = {"_type": "Image"}
PETS = {"names": ["cat", "dog"], "_type": "ClassLabel"}
OBJECTS = {"feature": {"bbox": VALUE, "category": PETS, "id": VALUE}, "_type": "Sequence"}


def cell(seed: int, path: str | None = None) -> dict[str, Any]:
    return {"bytes": image_file(seed), "path": path}


def write(path: Path, rows: list[dict[str, Any]], features: Any = None, **types: pa.DataType) -> None:
    """Write rows with Hugging Face's metadata; `types` are those of columns that cannot be told by the values."""
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.Table.from_pylist(rows)
    for name, kind in types.items():
        table = table.set_column(table.schema.get_field_index(name), name, table.column(name).cast(kind))
    info = {} if features is None else {b"huggingface": json.dumps({"info": {"features": features}}).encode()}
    pq.write_table(table.replace_schema_metadata(info), path, row_group_size=3)


def tree_of(root: Path) -> Any:
    copies = root.parent / f"copies of {root.name}"
    copies.mkdir()
    tree, skipped = find_tree(str(root), scratch=lambda _: f"{copies}/{len(list(copies.iterdir()))}")
    return tree, skipped


def opened(root: Path, spec: str = "parquet", **options: Any) -> Any:
    tree, skipped = tree_of(root)
    assert not skipped
    if spec == "auto":
        spec = recognize(tree, SourceOptions(**options)).spec
    return tree, open_source(spec, tree, SourceOptions(**options))


def test_classes_and_images_of_several_files(tmp_path: Path) -> None:
    features = {"image": IMAGE, "label": PETS}
    for part, split in enumerate(("test", "train")):
        rows = [{"image": cell(10 * part + i), "label": i % 2} for i in range(7)]
        write(tmp_path / "src" / "data" / f"{split}-00000-of-00001.parquet", rows, features)
    tree, source = opened(tmp_path / "src", "auto")
    names = [b"data/%b-00000-of-00001/%06d" % (split, i) for split in (b"test", b"train") for i in range(7)]
    assert tree.images == names and source.classes == ("cat", "dog")
    for i, image in enumerate(names):
        with tree.open(image) as file:
            assert file.read(1 << 20) == image_file(10 * (i // 7) + i % 7)
        assert source.annotate(image).label == ("cat", "dog")[i % 7 % 2]
    assert source.annotate(names[8]).origin == "data/train-00000-of-00001.parquet (row 1)"
    assert source.label_files == set(tree.files)
    train = open_source("parquet", tree, SourceOptions(split="train"))
    assert [path for path in names if train.in_split(path)] == names[7:]
    choice = recognize(tree, SourceOptions())
    assert choice.spec == "parquet" and "train/, test/ are packed together (--split train packs one)" in choice.why


def test_one_file_whose_images_have_paths_out_of_order(tmp_path: Path) -> None:
    paths = [f"{name}.jpg" for name in ("m", "a/x", "z", "b", "a/c")]
    rows = [{"image": cell(i, path), "text": path.upper(), "width": 40, "height": 30} for i, path in enumerate(paths)]
    write(tmp_path / "all.parquet", rows)
    tree, source = opened(tmp_path / "all.parquet", "auto")
    assert tree.images == sorted(map(str.encode, paths)) and tree.folders == [b"a"]
    for i, path in enumerate(paths):
        with tree.open(path.encode()) as file:
            assert file.read(1 << 20) == image_file(i)
        found = source.annotate(path.encode())
        assert found.extras == {"text": path.upper()} and found.image_size == (40, 30)
        assert found.label is None is found.boxes and found.origin == f"all.parquet (row {i})"
    assert source.notes == ["kept as fields of the image: text"]


@pytest.mark.parametrize("paths", [["a.jpg", "a.jpg"], ["a.jpg", None], ["a.jpg", "../b.jpg"], ["a.jpg", ".b.jpg"]])
def test_paths_that_are_no_names_leave_the_numbers_of_rows(tmp_path: Path, paths: list[Any]) -> None:
    write(tmp_path / "s" / "x.parquet", [{"image": cell(i, path), "label": "ab"[i]} for i, path in enumerate(paths)])
    tree, source = opened(tmp_path / "s")
    assert tree.images == [b"x/000000", b"x/000001"]
    assert [source.annotate(image).label for image in tree.images] == ["a", "b"]


def drawn_boxes(words: str) -> list[list[float]]:
    """Two boxes, as xyxy 2 3 12 10 and 20 1 39.5 28, in this order of numbers."""
    boxes = [(2.0, 3.0, 12.0, 10.0), (20.0, 1.0, 39.5, 28.0)]
    if words == "xmin ymin w h":
        return [[a, b, c - a, d - b] for a, b, c, d in boxes]
    if words == "cx cy w h":
        return [[(a + c) / 2, (b + d) / 2, c - a, d - b] for a, b, c, d in boxes]
    return [list(box) for box in boxes]


@pytest.mark.parametrize("words", ["xmin ymin w h", "xmin ymin xmax ymax", "cx cy w h"])
@pytest.mark.parametrize("relative", [False, True])
@pytest.mark.parametrize("nesting", ["struct of lists", "list of structs"])
@pytest.mark.parametrize("size", [True, False])
def test_boxes(tmp_path: Path, words: str, relative: bool, nesting: str, size: bool) -> None:
    boxes = drawn_boxes(words)
    if relative:
        boxes = [[v / side for v, side in zip(box, (40, 30, 40, 30), strict=True)] for box in boxes]
    struct: Any = {"bbox": boxes, "category": [1, 0], "id": [7, 8], "area": [70.0, float("nan")]}
    if nesting == "list of structs":
        struct = [dict(zip(struct, values, strict=True)) for values in zip(*struct.values(), strict=True)]
    nothing: Any = [] if nesting == "list of structs" else {name: [] for name in struct}
    sides = {"width": 40, "height": 30} if size else {}
    rows = [{"image": cell(i), "objects": one, **sides} for i, one in enumerate((struct, nothing, None))]
    kind = pa.Table.from_pylist(rows[:1]).schema.field("objects").type
    write(tmp_path / "s" / "x.parquet", rows, {"image": IMAGE, "objects": OBJECTS}, objects=kind)
    unclear = not relative and not size and words == "xmin ymin xmax ymax"
    if unclear:
        tree, _ = tree_of(tmp_path / "s")
        with pytest.raises(
            UsageError, match=r'the 2 boxes may be any of .*choose one: columns="xmin ymin w h", columns='
        ):
            open_source("parquet", tree, SourceOptions())
        (tmp_path / "copies of s").rename(tmp_path / "before")
    told = unclear or (words == "cx cy w h" and not relative)  # nobody writes centers in pixels
    tree, source = opened(tmp_path / "s", columns=words if told else None)
    assert source.classes == ("cat", "dog") and f'2 boxes are read as "{words}"' in source.notes[-1]
    found = source.annotate(tree.images[0])
    assert found.relative == relative and found.box_labels == ("dog", "cat")
    scale = (40, 30, 40, 30) if relative else (1, 1, 1, 1)
    pixels = [[v * side for v, side in zip(box, scale, strict=True)] for box in found.boxes]
    assert pixels == [pytest.approx(box) for box in drawn_boxes("xyxy")]
    assert found.box_fields == {"id": (7, 8), "area": (70.0, None)}
    for image in tree.images[1:]:
        assert source.annotate(image).boxes == () == source.annotate(image).box_labels


def test_a_few_bad_boxes_do_not_change_how_all_are_read(tmp_path: Path) -> None:
    boxes = [[30.0, 20.0, 5.0, 5.0]] * 20 + [[30.0, 20.0, 50.0, 5.0]]
    rows = [{"image": cell(0), "width": 40, "height": 30, "objects": {"bbox": boxes, "category": ["a"] * 21}}]
    write(tmp_path / "s" / "x.parquet", rows)
    _, source = opened(tmp_path / "s")
    assert '21 boxes are read as "xmin ymin w h" in pixels; boxes that do not fit: 1 as' in source.notes[-1]


@pytest.mark.parametrize(
    ("objects", "problem"),
    [
        ({"bbox": [[1.0, 2.0, 3.0]], "category": [0]}, r"x.parquet \(row 0\): box 1 has 3 numbers, not 4"),
        ({"bbox": [[1.0, 2.0, None, 4.0]], "category": [0]}, "are not coordinates"),
        ({"bbox": [None], "category": [0]}, "box 1 has 0 numbers"),
        ({"bbox": [[1.0, 2.0, 3.0, -4.0]], "category": [0]}, "box 1 its height -4 is below 0"),
        ({"bbox": [[1.0, 2.0, 3.0, 4.0]], "category": [2]}, '"category" is 2, which is none of 2 classes'),
        ({"bbox": [[1.0, 2.0, 3.0, 4.0]], "category": [None]}, "box 1 has no class"),
        ({"bbox": [[1.0, 2.0, 3.0, 4.0]], "category": []}, "has 1 box, but 0 of category"),
    ],
)
def test_bad_objects(tmp_path: Path, objects: Any, problem: str) -> None:
    good = {"bbox": [[30.0, 20.0, 5.0, 5.0]], "category": [0]}
    rows = [{"image": cell(i), "objects": one} for i, one in enumerate((objects, good))]
    write(tmp_path / "s" / "x.parquet", rows, {"image": IMAGE, "objects": OBJECTS})
    tree, source = opened(tmp_path / "s")
    with pytest.raises(BadLabel, match=problem):
        source.annotate(tree.images[0])
    assert source.annotate(tree.images[1]).boxes == ((30, 20, 35, 25),)


def test_columns_of_classes(tmp_path: Path) -> None:
    coarse = {"names": ["x", "y"], "_type": "ClassLabel"}
    rows = [{"img": cell(i), "fine_label": i, "coarse_label": 1 - i} for i in range(2)]
    write(tmp_path / "s" / "x.parquet", rows, {"img": IMAGE, "fine_label": PETS, "coarse_label": coarse})
    tree, _ = tree_of(tmp_path / "s")
    with pytest.raises(UsageError, match='choose one: labels="parquet:fine_label", labels="parquet:coarse_label"'):
        open_source("parquet", tree, SourceOptions())
    with pytest.raises(UsageError, match="is not a column of classes; its columns are: fine_label, coarse_label"):
        open_source("parquet:coarse", tree, SourceOptions())
    source = open_source("parquet:coarse_label", tree, SourceOptions())
    found = source.annotate(tree.images[0])
    assert source.classes == ("x", "y") and found.label == "y" and found.extras == {"fine_label": "cat"}


def test_classes_without_names(tmp_path: Path) -> None:
    write(tmp_path / "n" / "x.parquet", [{"image": cell(i), "label": 11 - i} for i in range(2)])
    tree, source = opened(tmp_path / "n")
    assert source.classes == tuple(map(str, range(12))) and source.annotate(tree.images[0]).label == "11"
    write(tmp_path / "t" / "x.parquet", [{"image": image_file(i), "label": "ba"[i]} for i in range(2)])
    tree, source = opened(tmp_path / "t")
    assert source.classes is None and source.annotate(tree.images[0]).label == "b"


def test_rows_without_a_class_are_unlabelled(tmp_path: Path) -> None:
    rows = [{"image": cell(i), "label": label} for i, label in enumerate((-1, None, 5, 0))]
    write(tmp_path / "s" / "x.parquet", rows, {"image": IMAGE, "label": PETS})
    tree, source = opened(tmp_path / "s")
    for image in tree.images[:2]:
        with pytest.raises(NoLabel, match='has no class in "label"'):
            source.annotate(image)
    with pytest.raises(BadLabel, match="which is none of 2 classes"):
        source.annotate(tree.images[2])
    assert source.annotate(tree.images[3]).label == "cat"


def test_several_classes_of_an_image_are_tags(tmp_path: Path) -> None:
    rows = [{"image": cell(i), "labels": labels} for i, labels in enumerate(([1, 0], [], [1], None))]
    write(tmp_path / "s" / "x.parquet", rows, {"image": IMAGE, "labels": {"feature": PETS, "_type": "Sequence"}})
    tree, source = opened(tmp_path / "s")
    assert source.tags == ("cat", "dog")
    assert [source.annotate(i).tags for i in tree.images] == [
        (True, True),
        (False, False),
        (False, True),
        (False, False),
    ]


def test_what_has_no_field_is_named(tmp_path: Path) -> None:
    rows = [
        {"image": cell(0), "label": "a", "embedding": [1.0, 2.0], "objects": {"bbox": [[1.0] * 4], "mask": [[[1.0]]]}}
    ]
    write(tmp_path / "s" / "x.parquet", rows)
    _, source = opened(tmp_path / "s")
    assert "2 columns were left out, because packer has no field for them: embedding, objects.mask" in source.notes
    write(tmp_path / "t" / "x.parquet", [{"image": cell(0), "landmarks": [[1.0, 2.0]]}])
    with pytest.raises(UsageError, match=r'reads as labels: landmarks; pass labels="none"'):
        opened(tmp_path / "t")
    write(tmp_path / "m" / "x.parquet", [{"image": cell(0), "depth": cell(1)}])
    with pytest.raises(UsageError, match=r'images in "image", and also in depth; remove them, call masks "mask"'):
        opened(tmp_path / "m")


@pytest.mark.parametrize(
    ("names", "problem"),
    [
        (["cat", "cat"], 'two classes are called "cat"'),
        (["cat", ""], "a class has an empty name"),
        (["cat", None], "None is not a name"),
        (["cat", ["dog"]], "['dog'] is not a name"),
        ({"0": "cat"}, "not a list"),
    ],
)
def test_names_of_classes_that_are_none(tmp_path: Path, names: Any, problem: str) -> None:
    wrong = {"names": names, "_type": "ClassLabel"}
    for column in (wrong, {"feature": {"bbox": VALUE, "category": wrong}, "_type": "Sequence"}):
        root = tmp_path / f"{len(list(tmp_path.iterdir()))}"
        write(root / "a.parquet", [{"image": cell(0), "label": 0}], {"image": IMAGE, "label": column})
        _, [(path, reason)] = tree_of(root)
        assert path == b"a.parquet" and problem in reason and "column label" in reason


def test_files_of_different_columns(tmp_path: Path) -> None:
    write(tmp_path / "s" / "a.parquet", [{"image": cell(0), "label": 0}], {"image": IMAGE, "label": PETS})
    write(tmp_path / "s" / "b.parquet", [{"image": cell(0), "label": 0}], {"image": IMAGE})
    with pytest.raises(UsageError, match=r"b.parquet: has other columns or classes than a.parquet"):
        opened(tmp_path / "s")


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        ([{"text": "a", "label": 1}], r"has no column of images \(columns: text, label\)"),
        ([{"image": {"bytes": None, "path": "/home/me/a.jpg"}}], 'its column "image" has no bytes of images'),
    ],
)
def test_files_without_images(tmp_path: Path, rows: list[Any], problem: str) -> None:
    binary = {} if "image" not in rows[0] else {"image": pa.struct([("bytes", pa.binary()), ("path", pa.string())])}
    write(tmp_path / "s" / "x.parquet", rows, None, **binary)
    ((path, reason),) = tree_of(tmp_path / "s")[1]
    assert path == b"x.parquet" and problem.replace("\\", "") in reason
    with pytest.raises(UsageError, match=problem):
        tree_of(tmp_path / "s" / "x.parquet")


def test_damaged_files(tmp_path: Path) -> None:
    rows = [{"image": cell(i), "label": "a"} for i in range(5)]
    write(tmp_path / "x.parquet", rows)
    data = (tmp_path / "x.parquet").read_bytes()
    for number, damaged in enumerate((data[:-20], data[:4] + b"\xff" * 2000 + data[2004:], b"PAR1")):
        file = tmp_path / f"{number}.parquet"
        file.write_bytes(damaged)
        with pytest.raises(UsageError, match=rf"{number}.parquet: cannot be read as Parquet: .*; get the file again"):
            tree_of(file)


def test_only_whole_files_of_that_name_are_read(tmp_path: Path) -> None:
    write(tmp_path / "s" / "x.parquet", [{"image": cell(i, f"a/{i}.jpg"), "label": "a"} for i in range(3)])
    for inside in ("x", "x/a", "x.parquet/a"):
        with pytest.raises(UsageError, match="is in a Parquet file, which is read as a whole; give the Parquet file"):
            find_tree(str(tmp_path / "s" / inside), scratch=str)
    data = (tmp_path / "s" / "x.parquet").read_bytes()
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        archive.writestr("x.parquet", data)
    ((path, reason),) = tree_of(tmp_path / "all.zip")[1]
    assert path == b"x.parquet" and "unpack the archive" in reason
    (tmp_path / "x.zip").write_bytes(data)
    with pytest.raises(UsageError, match=r"rename it to NAME\.parquet"):
        tree_of(tmp_path / "x.zip")


def test_a_parquet_file_beside_images_is_not_opened(tmp_path: Path) -> None:
    write(tmp_path / "s" / "metadata.parquet", [{"file_name": "1.jpg", "label": "a"}])
    (tmp_path / "s" / "1.jpg").write_bytes(image_file(1))
    tree, skipped = tree_of(tmp_path / "s")
    assert tree.images == [b"1.jpg"] and tree.files == [b"metadata.parquet"] and not skipped


def test_a_row_without_an_image_is_an_empty_file(tmp_path: Path) -> None:
    rows = [{"image": cell(0), "label": "a"}, {"image": None, "label": "b"}, {"image": cell(2), "label": "c"}]
    write(tmp_path / "s" / "x.parquet", rows)
    tree, source = opened(tmp_path / "s")
    sizes = []
    for image in tree.images:
        with tree.open(image) as file:
            sizes.append(file.size)
    assert sizes == [len(image_file(0)), 0, len(image_file(2))]
    assert source.annotate(tree.images[2]).label == "c"


def test_fractions_are_values(tmp_path: Path) -> None:
    """Of a column that is called so, if nothing else is a label; or of one that is asked for, also of whole numbers."""
    rows = [{"image": cell(i), "age": i + 0.5, "pose": [i, 1, 2.5], "year": 1990 + i, "pet": "cat"} for i in range(3)]
    write(tmp_path / "src" / "a.parquet", rows, None, age=pa.float32(), pose=pa.list_(pa.float32(), 3))
    tree, source = opened(tmp_path / "src", "auto")
    found = [source.annotate(image) for image in tree.images]
    assert [one.value for one in found] == [(0.5,), (1.5,), (2.5,)] and "values are those of age" in source.notes
    assert found[1].extras == {"year": 1991, "pet": "cat"} and found[1].label is None
    for spec, options, value, label in (
        ("parquet:pose", {}, (1, 1, 2.5), None),
        ("parquet:year", {"columns": "value"}, (1991,), None),
        ("parquet:year", {}, None, "1991"),
        ("parquet:pet", {}, None, "cat"),
    ):
        raw = open_source(spec, tree, SourceOptions(**options)).annotate(tree.images[1])
        assert (raw.value, raw.label) == (value, label), spec


def test_a_row_without_a_value_has_no_label(tmp_path: Path) -> None:
    rows = [{"image": cell(i), "label": value} for i, value in enumerate((0.5, None, float("nan")))]
    write(tmp_path / "src" / "a.parquet", rows, None, label=pa.float64())
    tree, source = opened(tmp_path / "src", "auto")
    assert source.annotate(tree.images[0]).value == (0.5,)
    for image, says in ((tree.images[1], '"label"; add'), (tree.images[2], '"label" but nan')):
        with pytest.raises(NoLabel, match=f"has no value in {says}"):
            source.annotate(image)
