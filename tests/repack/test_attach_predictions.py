"""`packer attach --kind boxes` and `labels`: formats, ids, frames, what is refused, and what becomes of them later."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from damage import flip
from drawn_predictions import NAMES, SIZES, as_results, build_set, labels_of, write_results
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import parquet
from running import digests, good, refused, run

from packer import Mosaic, PackedLoader, RandomResizedCrop, attach, edit, merge, open_pack
from packer.errors import BadInput, DamagedPack, PackerError, UsageError
from packer.format.pack import Pack
from packer.format.sidecar_list import BOX_TYPE
from packer.format.verify import verify

FITS = [
    {},
    {"resize": "32", "fit": "short"},
    {"resize": "40", "fit": "long"},
    {"resize": "32x24", "fit": "stretch"},
    {"resize": "48x48", "fit": "pad"},
    {"resize": "24x24", "fit": "crop", "boxes": "clip"},
]


@pytest.fixture
def labels() -> dict[str, Any]:
    return labels_of()


@pytest.fixture
def pack(tmp_path: Path, labels: dict[str, Any]) -> Path:
    return build_set(tmp_path, labels)


def boxes_in(pack: Pack, record: int, name: str = "pred") -> list[tuple[str, tuple[float, ...]]]:
    """Class and box of each prediction of a record, in order."""
    value, classes = pack.part(record, name), pack.sidecars[name].classes
    return sorted(
        (classes[label], tuple(np.round(box.astype(float), 2)))
        for label, box in zip(value["labels"].tolist(), value["boxes"], strict=True)
    )


def labelled_in(pack: Pack, record: int) -> list[tuple[str, tuple[float, ...]]]:
    annotation = pack.annotation(record)
    if annotation.boxes is None or annotation.box_labels is None:
        return []
    names = [pack.classes[label] for label in annotation.box_labels.tolist()]
    return sorted((n, tuple(np.round(box.astype(float), 2))) for n, box in zip(names, annotation.boxes, strict=True))


def assert_are_labels(path: Path, name: str = "pred") -> None:
    """The predictions are those of the labels, which the build has moved as it resized their images."""
    pack = open_pack(path)
    for record in range(len(pack)):
        found, wanted = boxes_in(pack, record, name), labelled_in(pack, record)
        assert [one for one, _ in found] == [one for one, _ in wanted]
        for (_, box), (_, label) in zip(found, wanted, strict=True):
            assert np.allclose(box, label, atol=0.02)


def yolo_files(folder: Path, labels: dict[str, Any], conf: bool = True) -> Path:
    folder.mkdir()
    for image in labels["images"]:
        lines = []
        for number, one in enumerate(labels["annotations"]):
            if one["image_id"] == image["id"]:
                x, y, w, h = one["bbox"]
                size = image["width"], image["height"]
                place = [(x + w / 2) / size[0], (y + h / 2) / size[1], w / size[0], h / size[1]]
                row = [[*NAMES].index(one["category_id"]), *(f"{v:.7f}" for v in place)]
                lines.append(" ".join(map(str, [*row, *([number % 10 / 10] if conf else [])])))
        if lines:
            (folder / f"{image['file_name'][:-4]}.txt").write_text("\n".join(lines) + "\n")
    return folder


# -- frames


@pytest.mark.parametrize("options", FITS, ids=lambda one: one.get("fit", "none"))
def test_results_of_source_images_move_as_labels_do(
    tmp_path: Path, labels: dict[str, Any], options: dict[str, Any]
) -> None:
    pack, results = build_set(tmp_path, labels, **options), write_results(tmp_path / "p.json", as_results(labels))
    if options:
        with pytest.raises(UsageError, match="was resized"):
            attach(pack, results, "pred", "boxes")
    report = attach(pack, results, "pred", "boxes", classes=str(tmp_path / "instances.json"))
    assert report.kind == "boxes" and "3 classes" in report.text
    assert any("without a box" in note for note in report.notes)
    assert_are_labels(pack)


@pytest.mark.parametrize("options", FITS[:5], ids=lambda one: one.get("fit", "none"))
def test_yolo_files(tmp_path: Path, labels: dict[str, Any], options: dict[str, Any]) -> None:
    """Class numbers are those of the pack's classes; sizes are needed only where images were padded."""
    pack, folder = build_set(tmp_path, labels, **options), yolo_files(tmp_path / "labels", labels)
    if options.get("fit") == "pad":
        with pytest.raises(UsageError, match="how large its source images are"):
            attach(pack, folder, "pred", "boxes")
        return
    report = attach(pack, folder, "pred", "boxes")
    assert any("numbers of the pack's classes" in note for note in report.notes)
    assert_are_labels(pack)


def test_packed_frame(tmp_path: Path, labels: dict[str, Any]) -> None:
    pack = build_set(tmp_path, labels, resize="48x48", fit="pad")
    opened, rows = open_pack(pack), []
    for record in range(len(opened)):
        image = int(labels["images"][[i["file_name"] for i in labels["images"]].index(opened.paths[record])]["id"])
        for name, (x1, y1, x2, y2) in labelled_in(opened, record):
            number = next(number for number, one in NAMES.items() if one == name)
            rows.append({"image_id": image, "category_id": number, "bbox": [x1, y1, x2 - x1, y2 - y1], "score": 0.5})
    attach(pack, write_results(tmp_path / "p.json", rows), "pred", "boxes", frame="packed")
    assert_are_labels(pack)


# -- ids of images and classes


@pytest.mark.parametrize("form", ["id", "stem", "number", "path"])
def test_images_are_named_as_trainers_write_them(tmp_path: Path, labels: dict[str, Any], form: str) -> None:
    """By COCO's id, or by the file name, of which YOLO's trainers make a number if they can."""
    labels["images"] = [{**one, "id": one["id"] + 5000} for one in labels["images"]]
    labels["annotations"] = [{**one, "image_id": one["image_id"] + 5000} for one in labels["annotations"]]
    pack = build_set(tmp_path, labels)
    names = {one["id"]: one["file_name"] for one in labels["images"]}
    as_form: dict[str, Callable[[int], Any]] = {
        "id": lambda one: one,
        "stem": lambda one: names[one][:-4],
        "number": lambda one: int(names[one][:-4]),
        "path": lambda one: names[one],
    }
    rows = [{**one, "image_id": as_form[form](one["image_id"])} for one in as_results(labels)]
    attach(pack, write_results(tmp_path / "p.json", rows), "pred", "boxes")
    assert_are_labels(pack)


@pytest.mark.parametrize("form", ["txt", "yaml", "list", "dict", "0", "1"])
def test_names_of_classes(tmp_path: Path, labels: dict[str, Any], form: str) -> None:
    pack, names = build_set(tmp_path, labels), [*NAMES.values()]
    ids = {number: place + (form == "1") for place, number in enumerate(NAMES)}
    rows = [{**one, "category_id": ids[one["category_id"]]} for one in as_results(labels)]
    with pytest.raises(UsageError, match="without a name in the COCO ids"):
        attach(pack, write_results(tmp_path / "p.json", rows), "pred", "boxes")
    files = {
        "txt": ("n.txt", "\n".join(names)),
        "yaml": ("n.yaml", "names:\n" + "".join(f"  {n}: {name}\n" for n, name in enumerate(names))),
        "list": ("n.json", json.dumps(names)),
        "dict": ("n.json", json.dumps(dict(enumerate(names)))),
    }
    given = form
    if form in files:
        (tmp_path / files[form][0]).write_text(files[form][1])
        given = str(tmp_path / files[form][0])
    attach(pack, tmp_path / "p.json", "pred", "boxes", classes=given)
    assert_are_labels(pack)


def test_ids_without_a_meaning_are_never_guessed(tmp_path: Path, labels: dict[str, Any]) -> None:
    """A pack of YOLO's labels keeps no ids of COCO: 0 or 1 may be the first class."""
    pack = build_set(tmp_path, labels)
    good("extract", pack, tmp_path / "yolo", "--layout", "yolo")
    good("build", tmp_path / "yolo", "-o", tmp_path / "yolo.lmdb", "--labels", "yolo", "--split", "all")
    results = write_results(tmp_path / "p.json", as_results(labels))
    said = refused(2, "attach", tmp_path / "yolo.lmdb", results, "--as", "pred", "--kind", "boxes")
    assert "the pack keeps no ids of COCO" in said and "--classes 0 or 1" in said
    attach(tmp_path / "yolo.lmdb", results, "pred", "boxes", classes=str(tmp_path / "instances.json"))
    assert_are_labels(tmp_path / "yolo.lmdb")


# -- tables


FORMS: dict[str, Callable[[list[float]], dict[str, Any]]] = {
    "corners": lambda b: dict(
        zip(("xmin", "ymin", "xmax", "ymax"), (b[0], b[1], b[0] + b[2], b[1] + b[3]), strict=True)
    ),
    "x1y1": lambda b: dict(zip(("x1", "y1", "x2", "y2"), (b[0], b[1], b[0] + b[2], b[1] + b[3]), strict=True)),
    "xywh": lambda b: dict(zip("xywh", b, strict=True)),
    "center": lambda b: {"cx": b[0] + b[2] / 2, "cy": b[1] + b[3] / 2, "w": b[2], "h": b[3]},
    "bbox": lambda b: {"bbox": b},
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("ending", ["csv", "parquet", "jsonl"])
def test_tables(tmp_path: Path, pack: Path, labels: dict[str, Any], ending: str, form: str) -> None:
    names = {one["id"]: one["file_name"] for one in labels["images"]}
    rows = [
        {
            "path": names[one["image_id"]],
            "class": NAMES[one["category_id"]],
            "confidence": one["score"],
            **FORMS[form](one["bbox"]),
        }
        for one in as_results(labels)
    ]
    where = tmp_path / f"p.{ending}"
    if ending == "parquet":
        parquet.write_table(pa.Table.from_pylist(rows), where)
    elif ending == "jsonl":
        where.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        with open(where, "w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    report = attach(pack, where, "pred", "boxes")
    assert report.joined == "by path"
    assert_are_labels(pack)
    scores = np.concatenate([open_pack(pack).part(i, "pred")["scores"] for i in range(len(SIZES))])
    assert sorted(np.round(scores.astype(float), 4)) == sorted(one["score"] for one in as_results(labels))


# -- what is refused


def changed(**members: Any) -> Callable[[list[dict[str, Any]]], Any]:
    return lambda rows: [{**rows[0], **members}, *rows[1:]]


BAD: dict[str, tuple[Callable[[list[dict[str, Any]]], Any], str]] = {
    "nan": (lambda rows: json.dumps(changed(bbox=[np.nan, 0, 1, 1])(rows)), "not COCO results"),
    "negative size": (changed(bbox=[5, 5, -2, 3]), "has a box that is none, in result 1"),
    "three numbers": (changed(bbox=[5, 5, 2]), r"not COCO results.*result 1\)"),
    "score": (changed(score=3.5), "a score that is not from 0 to 1, in result 1: 3.5"),
    "no score": (lambda rows: [{n: v for n, v in one.items() if n != "score"} for one in rows], "not COCO results"),
    "class": (changed(category_id=12), r"without a name in the COCO ids.*: 12 \(the first in result 1\)"),
    "large class": (changed(category_id=1 << 70), "cannot be read"),
    "image": (changed(image_id=77), r"has 1 row for no record \(77\)"),
    "annotations": (lambda rows: {"annotations": rows}, "not COCO results"),
    "text": (lambda rows: "[{", "not COCO results"),
    "nothing": (lambda rows: "", "is empty"),
    "no rows": (lambda rows: [], "has no box for any record"),
    "elsewhere": (lambda rows: [{**one, "bbox": [900, 900, 5, 5]} for one in rows], "outside of their images"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_results(tmp_path: Path, pack: Path, labels: dict[str, Any], name: str) -> None:
    """The error says what is wrong, and the pack stays as it was."""
    make, problem = BAD[name]
    made, before = make(as_results(labels)), digests(pack)
    (tmp_path / "p.json").write_text(made if isinstance(made, str) else json.dumps(made))
    with pytest.raises(PackerError, match=problem):
        attach(pack, tmp_path / "p.json", "pred", "boxes")
    assert digests(pack) == before


def test_images_of_no_record_can_be_left_out(tmp_path: Path, pack: Path, labels: dict[str, Any]) -> None:
    rows = [*as_results(labels), {"image_id": 77, "category_id": 3, "bbox": [1, 1, 5, 5], "score": 0.5}]
    report = attach(pack, write_results(tmp_path / "p.json", rows), "pred", "boxes", extra_rows="skip")
    assert "1 row for no record left out" in report.notes
    assert_are_labels(pack)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("0 0.5 0.5 0.1\n", "has 4 numbers, which is no box"),
        ("0 0.1 0.1 0.2 0.2 0.3 0.3\n", "has 7 numbers"),
        ("0 0.5 0.5 0.1 0.1\n0 0.5 0.5 0.1 0.1 0.9\n", "with and without a confidence"),
        ("x 0.5 0.5 0.1 0.1\n", "not a number"),
        ("0.5 0.5 0.5 0.1 0.1\n", "has the class 0.5"),
        ("9 0.5 0.5 0.1 0.1 0.2\n", "without a name in the pack"),
        ("0 nan 0.5 0.1 0.1 0.2\n", "has a box that is none"),
    ],
)
def test_bad_yolo_files(tmp_path: Path, pack: Path, text: str, problem: str) -> None:
    (tmp_path / "labels").mkdir()
    (tmp_path / "labels" / "000000.txt").write_text(text)
    with pytest.raises(PackerError, match=problem):
        attach(pack, tmp_path / "labels", "pred", "boxes")


@pytest.mark.parametrize(
    ("head", "row", "problem"),
    [
        ("path,label,score", "000000.png,cat,0.5", "has no columns of boxes"),
        ("label,x1,y1,x2,y2", "cat,1,1,2,2", "has no column of keys or paths"),
        ("path,x1,y1,x2,y2", "000000.png,1,1,2,2", "has no column of classes"),
        ("path,label,x1,y1,x2,y2", "000000.png,cow,1,1,9,9", "has 1 class that the pack does not have.*cow"),
        ("path,label,x1,y1,x2,y2", "000000.png,cat,1,a,2,2", "is not a number"),
        ("path,label,x1,y1,x2,y2", ",cat,1,1,2,2", "has no path in line 2"),
        ("path,label,x1,y1,x2,y2", "000000.png,cat,.1,.1,.2,.2\n000001.png,cat,.1,.1,.2,.2", "boxes from 0 to 1"),
    ],
)
def test_bad_tables(tmp_path: Path, pack: Path, head: str, row: str, problem: str) -> None:
    (tmp_path / "p.csv").write_text(f"{head}\n{row}\n")
    with pytest.raises(PackerError, match=problem):
        attach(pack, tmp_path / "p.csv", "pred", "boxes")


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("--kind", "text", "--classes", "1"), "--classes: is for --kind boxes or labels"),
        (("--kind", "labels", "--frame", "packed"), "--frame: is for --kind boxes"),
        (("--kind", "boxes", "--column", "a"), "--column: is not for predictions"),
        (("--kind", "labels"), "in no format of predicted labels"),
        (("--kind", "boxes", "--classes", "missing.txt"), "cannot be read"),
    ],
)
def test_options_that_do_not_fit(tmp_path: Path, pack: Path, options: tuple[str, ...], problem: str) -> None:
    results = write_results(tmp_path / "p.json", [])
    ran = run("attach", pack, results, "--as", "pred", *options)
    assert ran.code > 1 and problem in ran.err


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes]:
    folder, labels = tmp_path_factory.mktemp("fuzzed"), labels_of()
    return build_set(folder, labels), json.dumps(as_results(labels)[:4]).encode()


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damaged_files_are_errors(fuzzed: tuple[Path, bytes], data: st.DataObject) -> None:
    """Whatever was changed in a file, it is read or refused, and nothing else happens."""
    pack, content = fuzzed
    place = data.draw(st.integers(0, len(content) - 1))
    new = data.draw(st.binary(max_size=4))
    where = pack.parent / "fuzz.json"
    where.write_bytes(content[:place] + new + content[place + data.draw(st.integers(0, 6)) :])
    try:
        attach(pack, where, "pred", "boxes")
    except PackerError:
        return
    good("detach", pack, "pred")


# -- labels


def test_labels(tmp_path: Path, make_labelled: Path) -> None:
    pack = open_pack(make_labelled)
    rng, count = np.random.default_rng(0), len(pack)
    table = rng.dirichlet(np.ones(len(pack.classes)), count).astype(np.float32)
    np.save(tmp_path / "p.npy", table)
    attach(make_labelled, tmp_path / "p.npy", "array", "labels")
    order = rng.permutation(count)
    with open(tmp_path / "p.csv", "w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["path", *pack.classes])
        rows.writerows([[pack.paths[i], *table[i]] for i in order])
    attach(make_labelled, tmp_path / "p.csv", "table", "labels")
    with open(tmp_path / "best.csv", "w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["path", "label", "score"])
        rows.writerows([[pack.paths[i], pack.classes[table[i].argmax()], table[i].max()] for i in order])
    attach(make_labelled, tmp_path / "best.csv", "best", "labels")
    pack = open_pack(make_labelled)
    for i in range(count):
        assert np.allclose(pack.part(i, "table"), pack.part(i, "array"))
        assert pack.part(i, "best")[0] == table[i].argmax() and np.isclose(pack.part(i, "best")[1], table[i].max())
        assert np.array_equal(pack.part(i, "array")[2:], table[i])


@pytest.fixture
def make_labelled(tmp_path: Path) -> Path:
    from packer.sources.synthetic import draw_sample

    draw_sample(tmp_path / "src", count=20, size=32)
    good("build", tmp_path / "src", "-o", tmp_path / "pack", "--split", "all")
    return tmp_path / "pack"


def test_bad_labels(tmp_path: Path, make_labelled: Path) -> None:
    pack = open_pack(make_labelled)
    np.save(tmp_path / "logits.npy", np.full((len(pack), len(pack.classes)), 3.0))
    with pytest.raises(BadInput, match="are no probabilities"):
        attach(make_labelled, tmp_path / "logits.npy", "p", "labels")
    np.save(tmp_path / "few.npy", np.zeros((len(pack), 1)))
    with pytest.raises(BadInput, match="classes"):
        attach(make_labelled, tmp_path / "few.npy", "p", "labels")
    (tmp_path / "p.csv").write_text(f"path,label\n{pack.paths[0]},{pack.classes[0]}\n")
    with pytest.raises(BadInput, match=f"has nothing for {len(pack) - 1} records"):
        attach(make_labelled, tmp_path / "p.csv", "p", "labels")


# -- afterwards


@pytest.fixture
def attached(tmp_path: Path, pack: Path, labels: dict[str, Any]) -> Path:
    attach(pack, write_results(tmp_path / "p.json", as_results(labels)), "pred", "boxes")
    return pack


def test_a_record_without_a_box_has_none(attached: Path) -> None:
    value = open_pack(attached).part(len(SIZES) - 1, "pred")
    assert value["boxes"].shape == (0, 4) and value["scores"].dtype == np.float32 and value["labels"].dtype == np.int64


def test_they_go_along(tmp_path: Path, attached: Path) -> None:
    """Into parts of a split, of which one has no box at all; merged again; with other names of classes."""
    (tmp_path / "parts").mkdir()
    good("split", attached, "--parts", "a=0.5,b=0.5", "-o", tmp_path / "parts")
    parts = sorted((tmp_path / "parts").glob("*.lmdb"))
    assert len(parts) == 2
    merge(parts, tmp_path / "both.lmdb")
    edit(attached, tmp_path / "left.lmdb", delete=[0, 1, 2, 3, 4])
    for one in (*parts, tmp_path / "both.lmdb", tmp_path / "left.lmdb"):
        assert verify(one).problems == ()
        assert_are_labels(one)


def test_names_of_classes_stay(tmp_path: Path, attached: Path) -> None:
    """As masks keep theirs: what was predicted stays what it was, whatever the pack calls it."""
    good("edit", attached, "-o", tmp_path / "new.lmdb", "--map", "cat=puma")
    assert open_pack(tmp_path / "new.lmdb").sidecars["pred"].classes == tuple(NAMES.values())


def test_damage_is_found(attached: Path) -> None:
    flip(attached / "sidecar.pred.bin", 10)
    assert [one.file for one in verify(attached).problems] == ["sidecar.pred.bin"]


def test_loaders_cut_them_as_labels(attached: Path) -> None:
    loader = PackedLoader(attached, 3, crop=RandomResizedCrop(24), flip=True, seed=3, parts=("pred",))
    checked = 0
    for _, targets in loader:
        for target in targets:
            found, wanted = target["pred"], target
            assert found["boxes"].shape == (len(found["scores"]), 4)
            key = [tuple(row) for row in np.round(found["boxes"].numpy(), 1)]
            assert sorted(key) == sorted(tuple(row) for row in np.round(wanted["boxes"].numpy(), 1))
            checked += len(key)
    assert checked > 10


@pytest.mark.parametrize("how", [{"crop": Mosaic(24)}, {"crop": RandomResizedCrop(24), "mixup": (8.0, 0.5)}])
def test_images_of_several_records_have_no_predictions(attached: Path, how: dict[str, Any]) -> None:
    """They would be those of one image, where they are in it."""
    with pytest.raises(UsageError, match="pred, predicted boxes, which are not joined"):
        PackedLoader(attached, 3, seed=3, parts=("pred",), **how)


@pytest.mark.parametrize(
    ("kind", "place", "value"),
    [
        ("boxes", "label", 3), ("boxes", "label", -1), ("boxes", "score", np.nan), ("boxes", "box", np.inf),
        ("labels", 0, np.nan), ("labels", 0, 3), ("labels", 1, 2),
    ],
)  # fmt: skip
def test_predictions_that_are_none_are_damage(
    tmp_path: Path, attached: Path, monkeypatch: pytest.MonkeyPatch, kind: str, place: Any, value: float
) -> None:
    """Checksums do not say who made a pack."""
    name, file = "pred", attached / "sidecar.pred.bin"
    if kind == "labels":
        np.save(tmp_path / "p.npy", np.full((len(SIZES), 3), 1 / 3))
        attach(attached, tmp_path / "p.npy", "said", "labels")
        name, file = "said", attached / "sidecar.said.npy"
    data = bytearray(file.read_bytes())
    rows = np.frombuffer(data, BOX_TYPE) if kind == "boxes" else np.frombuffer(data, "<f4")[-5 * len(SIZES) :]
    rows = rows if kind == "boxes" else rows.reshape(-1, 5).T
    rows[place][0] = value
    file.write_bytes(data)
    monkeypatch.setattr("packer.format.sidecars._SidecarFiles._verify", lambda *_: None)
    with pytest.raises(DamagedPack):
        open_pack(attached).part(0, name)
    with pytest.raises(DamagedPack):
        open_pack(attached).sidecar(name).read(np.arange(len(SIZES)))


def test_rows_of_whole_images_are_none_of_tiles(tmp_path: Path, labels: dict[str, Any]) -> None:
    """The tiles of an image have one path; its predictions would be those of one of them, in the frame of that."""
    path = build_set(tmp_path, labels, tile="24")
    pack, files = open_pack(path), yolo_files(tmp_path / "txt", labels)
    with pytest.raises(BadInput, match="by its key"):
        attach(path, files, "pred", "boxes", classes="0")
    keys = [pack.keys[record] for record in (0, 3)]
    rows = "".join(f"{key},cat,1,2,9,8,0.5\n" for key in keys)
    (tmp_path / "p.csv").write_text(f"key,label,xmin,ymin,xmax,ymax,score\n{rows}")
    attach(path, tmp_path / "p.csv", "pred", "boxes")
    assert [len(open_pack(path).part(record, "pred")["boxes"]) for record in range(4)] == [1, 0, 0, 1]


def test_the_size_that_is_not_that_of_a_record_is_named(tmp_path: Path, labels: dict[str, Any]) -> None:
    path, results = build_set(tmp_path, labels, resize="32", fit="long"), as_results(labels)
    labels["images"][2] |= {"width": 90, "height": 20}
    (tmp_path / "other.json").write_text(json.dumps(labels))
    with pytest.raises(UsageError, match=r"000002.png has \(90, 20\) pixels"):
        attach(path, write_results(tmp_path / "p.json", results), "pred", "boxes", classes=tmp_path / "other.json")
