"""Packs that somebody made to do harm, every digest and checksum right: refused, before anything is allocated."""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from damage import edit_index, vouch
from running import anonymous_bytes, good

from packer import PackedDataset, PackedLoader, RandomResizedCrop, open_pack
from packer.errors import DamagedPack, PackerError
from packer.format.index import SCHEMA
from packer.format.manifest import MAX_MANIFEST_BYTES, digest_of, read_manifest
from packer.format.salvage import repair
from packer.format.verify import verify
from packer.repack.convert import convert
from packer.repack.diff import diff
from packer.repack.extract import extract
from packer.view.export import export

BIG = (2**31, 2**32, 2**53, 2**62, 2**63 - 1, 2**63, 2**64 - 1, 2**64, 10**30, -1, -(2**63))
MOST_GROWTH_BYTES = 5 << 20
MOST_S = 5.0  # a second is asked for, of all processors


@contextmanager
def cheap() -> Iterator[None]:
    """What is done in here must neither take time nor memory."""
    linux = sys.platform == "linux"
    peak_before, before, started = _peak_bytes(), anonymous_bytes() if linux else 0, time.process_time()
    yield
    assert time.process_time() - started < MOST_S
    if linux:
        assert anonymous_bytes() - before < MOST_GROWTH_BYTES
        assert _peak_bytes() - peak_before < MOST_GROWTH_BYTES


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def read_all(pack: Path | str) -> None:
    opened = open_pack(pack)
    for i in range(len(opened)):
        opened.image(i)
        opened.annotation(i)
    for name in SCHEMA.names:
        opened.column(name)


@pytest.fixture(autouse=True, scope="module")
def _warm(make_pack):
    """Libraries are loaded, and their caches filled, before memory is measured."""
    for kind in ("raw", "boxes"):
        read_all(make_pack(kind, "lmdb"))
        verify(make_pack(kind, "lmdb"))


def refused(pack: Path) -> None:
    """Neither a reader nor verify takes the pack."""
    with cheap(), pytest.raises(PackerError):
        read_all(pack)
    with cheap(), suppress(PackerError):
        assert verify(pack).problems


# -- the manifest


def edit_manifest(pack: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the members of pack.json, with a right digest."""
    path = pack / "pack.json"
    content = json.loads(path.read_bytes())
    change(content)
    content["digest"] = digest_of(content)
    path.write_text(json.dumps(content, indent=1) + "\n")


def put(value: Any, *place: Any) -> Callable[[dict[str, Any]], None]:
    def change(content: dict[str, Any]) -> None:
        for step in place[:-1]:
            content = content[step]
        content[place[-1]] = value

    return change


SHARD = ("shards", 0)
PLACES = (
    ("records",), (*SHARD, "records"), (*SHARD, "container", "bytes"), (*SHARD, "index", "bytes"),
    (*SHARD, "index", "crc32c"),
)  # fmt: skip


@pytest.mark.parametrize("value", [*BIG, True, False, 1.0, 24.0, "24", None, [], {}], ids=str)
@pytest.mark.parametrize("place", PLACES, ids=str)
def test_numbers_of_the_manifest(copied, place, value):
    pack = copied("raw", "lmdb")
    edit_manifest(pack, put(value, *place))
    refused(pack)


@pytest.mark.parametrize("value", BIG, ids=str)
def test_sizes_whose_sum_is_beyond_all_numbers(copied, value):
    pack = copied("raw", "lmdb")

    def change(content):
        for shard in content["shards"]:
            shard["container"]["bytes"] = shard["index"]["bytes"] = shard["records"] = value
        content["records"] = value * len(content["shards"])

    edit_manifest(pack, change)
    refused(pack)


@pytest.mark.parametrize("shape", [[2**31 - 1] * 3, [2**31] * 3, [2**63] * 3, [1, 1], [1, 1, 1, 1], [10, 12, 3.0],
                                   [0, 12, 3], [-10, -12, 3], [10, 12, "3"], "abc", [True, True, True]],
                         ids=str)  # fmt: skip
@pytest.mark.parametrize("container", ["lmdb", "hdf5"])
def test_shapes(copied, container, shape):
    pack = copied("raw", container)
    edit_manifest(pack, put(shape, "shape"))
    refused(pack)


def test_a_shape_of_as_many_bytes(copied):
    pack = copied("raw", "lmdb")
    edit_manifest(pack, put([12, 10, 3], "shape"))
    with pytest.raises(DamagedPack, match="has the height 10, but the pack has 12"):
        open_pack(pack).record(0)
    assert any("has the height 10, but the pack has 12" in p.problem for p in verify(pack).problems)


def test_a_container_of_another_kind(copied):
    """A reader has no use for it."""
    pack = copied("raw", "lmdb")
    for name in ("zip", "hdf5"):
        edit_manifest(pack, put(name, "container"))
        read_all(pack)
        assert verify(pack, deep=True).problems


@pytest.mark.parametrize(
    "name",
    [
        "../x",
        "/etc/passwd",
        "a/b",
        "",
        ".",
        "..",
        "a\0b",
        "pack.json",
        "shard-00001.lmdb",
        7,
        None,
        "x" * 300,
        "\ud800",
    ],
)
def test_file_names(copied, name):
    pack = copied("raw", "lmdb")
    edit_manifest(pack, put(name, *SHARD, "container", "name"))
    refused(pack)


@pytest.mark.parametrize(
    "change",
    [
        put([], "shards"), put([{}], "shards"), put(None, "shards"), put({}, "counts"), put("x", "class_counts"),
        put([1], "classes"), put("abc", "classes"), put(3, "container"),
        put("exe", "encoding"),
        put([], "options"), put({"a": 1}, "libraries"), put(1, "unknown"), put(1, *SHARD, "unknown"),
        put(3, "version"), put(True, "version"), put(2.0, "version"), put(-1, "version"), put([{}], "rejected"),
        put([["a", "b", "c"]], "rejected"), put("rgba", "mode"), put("object", "dtype"), put("float64", "dtype"),
    ],
)  # fmt: skip
def test_members(copied, change):
    pack = copied("raw", "lmdb")
    edit_manifest(pack, change)
    refused(pack)


@pytest.mark.parametrize(
    "text",
    [
        b"[" * 10**6,
        b'{"a":' * 10**6,
        b"9" * 10**6,
        b'{"a": 1, "a": 2}',
        b"\xff" * 10**6,
        b"{}",
        b"null",
        b"",
        b'{"format": "packer", "version": NaN}',
        b'"' + b"a" * 10**6,
    ],
)
def test_texts_that_are_no_manifest(copied, text):
    pack = copied("raw", "lmdb")
    (pack / "pack.json").write_bytes(text)
    with pytest.raises(DamagedPack):
        open_pack(pack)


def test_a_manifest_of_gigabytes(copied):
    """Refused by its size: it is never read."""
    pack = copied("raw", "lmdb")
    os.truncate(pack / "pack.json", MAX_MANIFEST_BYTES + 1)
    refused(pack)


# -- the index


@pytest.mark.parametrize("name", ["offset", "size"])
@pytest.mark.parametrize("value", [b for b in BIG if -(2**63) <= b < 2**63], ids=str)
def test_places_of_records(copied, container, name, value):
    pack = copied("ragged", container)
    edit_index(pack / read_manifest(pack).shards[1].index.name, name, lambda old: [*old[:2], value, *old[3:]])
    vouch(pack)
    refused(pack)


@pytest.mark.parametrize("shift", [-1, 1])
def test_records_that_overlap(copied, container, shift):
    pack = copied("raw", container)
    index = pack / read_manifest(pack).shards[0].index.name
    edit_index(index, "offset", lambda old: [old[0], old[0] + shift, *old[2:]])
    vouch(pack)
    with pytest.raises(DamagedPack, match="has overlapping records"):
        open_pack(pack).record(0)
    assert any("overlaps another record" in p.problem for p in verify(pack).problems)


@pytest.mark.parametrize("name", ["height", "width", "channels"])
@pytest.mark.parametrize("value", [0, -1, 127, 2**31 - 1, -(2**31)])
def test_shapes_of_rows(copied, name, value):
    if name == "channels" and abs(value) > 127:
        pytest.skip("does not fit into the column")
    pack = copied("ragged", "lmdb")
    edit_index(pack / read_manifest(pack).shards[0].index.name, name, lambda old: [value, *old[1:]])
    vouch(pack)
    with cheap(), pytest.raises(DamagedPack):
        read_all(pack)
    assert verify(pack, deep=True).problems


def rewritten(path: Path, change: Callable[[list[Any]], list[Any]]) -> None:
    """Write an index with other arrays, unchecked."""
    batch = pa.ipc.open_file(pa.py_buffer(path.read_bytes())).get_batch(0)
    arrays = change(list(batch.columns))
    made = pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, SCHEMA) as writer:
        writer.write_batch(made)


def at(name: str, change: Callable[[Any], Any]) -> Callable[[list[Any]], list[Any]]:
    k = SCHEMA.get_field_index(name)
    return lambda arrays: [*arrays[:k], change(arrays[k]), *arrays[k + 1 :]]


WRONG_OFFSETS: dict[str, Callable[[list[int]], list[int]]] = {
    "decrease": lambda o: [*o[:-2], o[-1] + 3, o[-1]],
    "negative": lambda o: [-5, *o[1:]],
    "past the end": lambda o: [*o[:-1], 2**31 - 1],
    "all past the end": lambda o: [2**31 - 1] * len(o),
}


@pytest.mark.parametrize("wrong", WRONG_OFFSETS)
@pytest.mark.parametrize("name", ["key", "path", "boxes", "box_labels", "polygons", "extras"])
def test_offsets_of_columns(copied, name, wrong):
    pack = copied("boxes", "lmdb")
    index = pack / read_manifest(pack).shards[0].index.name
    array = pa.ipc.open_file(pa.py_buffer(index.read_bytes())).get_batch(0).column(name)
    offsets = np.frombuffer(array.buffers()[1], np.int32, len(array) + 1)
    made = np.array(WRONG_OFFSETS[wrong](offsets.tolist()), np.int32)
    data = index.read_bytes()  # Arrow itself would not write it
    assert offsets.tobytes() in data
    index.write_bytes(data.replace(offsets.tobytes(), made.tobytes()))
    vouch(pack)
    refused(pack)


@pytest.mark.parametrize("name", ["key", "offset", "size", "crc32c", "height", "dtype", "path", "source_xxh3"])
def test_nulls_where_there_must_be_none(copied, name):
    pack = copied("raw", "lmdb")
    index = pack / read_manifest(pack).shards[0].index.name

    def change(array: Any) -> Any:
        if pa.types.is_dictionary(array.type):
            codes = pa.array([None, *array.indices.to_pylist()[1:]], pa.int8())
            return pa.DictionaryArray.from_arrays(codes, array.dictionary)
        return pa.array([None, *array.to_pylist()[1:]], array.type)

    rewritten(index, at(name, change))
    vouch(pack)
    refused(pack)


def test_text_that_is_none(copied):
    pack = copied("raw", "lmdb")
    index = pack / read_manifest(pack).shards[0].index.name

    def change(array: Any) -> Any:
        data = bytearray(array.buffers()[2])
        data[0] = 0xFF
        return pa.Array.from_buffers(array.type, len(array), [None, array.buffers()[1], pa.py_buffer(bytes(data))], 0)

    rewritten(index, at("key", change))
    vouch(pack)
    refused(pack)


@pytest.mark.parametrize("rows", [2**31, 2**40, 2**63 - 1])
def test_a_row_count_that_no_file_can_hold(copied, rows):
    """The number of rows stands in Arrow's own header: it is put there by hand."""
    pack = copied("raw", "lmdb")
    shard = read_manifest(pack).shards[0]
    path = pack / shard.index.name
    old, new = (np.int64(n).tobytes() for n in (shard.records, rows))
    data = path.read_bytes()
    assert old in data
    path.write_bytes(data.replace(old, new))
    vouch(pack)
    refused(pack)


def first(value: Any) -> Callable[[list[Any]], list[Any]]:
    """Put a value into the first row that has one."""

    def change(old: list[Any]) -> list[Any]:
        row = next((row for row, item in enumerate(old) if item), 0)
        return [*old[:row], value(old[row]) if callable(value) else value, *old[row + 1 :]]

    return change


WRONG_VALUES = {
    "a class below 0": ("boxes", "label", first(-7)),
    "a class of none": ("boxes", "label", first(1000)),
    "the largest class": ("raw", "label", first(2**31 - 1)),
    "a box of class -3": ("boxes", "box_labels", first(lambda ids: [-3, *ids[1:]])),
    "a box of a class of none": ("boxes", "box_labels", first(lambda ids: [2**62, *ids[1:]])),
    "more labels than boxes": ("boxes", "box_labels", first(lambda ids: [*ids, 0])),
    "fewer labels than boxes": ("boxes", "box_labels", first([])),
    "a box of NaN": ("boxes", "boxes", first(lambda boxes: [[float("nan")] * 4, *boxes[1:]])),
    "an endless box": ("boxes", "boxes", first(lambda boxes: [[0, 0, float("inf"), 1], *boxes[1:]])),
    "landmarks of NaN": ("boxes", "landmarks", first([[float("nan"), 0.0]] * 5)),
    "a polygon without its box": ("boxes", "polygons", first([[[0.0, 0.0]]] * 9)),
    "objects of other points": ("boxes", "keypoints", first(lambda _: [[[0.0] * 3], []])),
    "an oriented box of three corners": ("oriented", "obb", first(lambda rows: [rows[0][:3], *rows[1:]])),
    "corners of NaN": ("oriented", "obb", first(lambda rows: [[[float("nan"), 0.0]] * 4, *rows[1:]])),
    "more corners than boxes": ("oriented", "obb", first(lambda rows: [*rows, rows[0]])),
    "no value": ("boxes", "box_labels", first(lambda ids: [None, *ids[1:]])),
    "another encoding": ("jpeg", "encoding", first(2)),
    "no height": ("ragged", "height", first(-1)),
}


@pytest.mark.parametrize("wrong", WRONG_VALUES)
def test_values_that_do_not_fit(copied, wrong):
    kind, name, change = WRONG_VALUES[wrong]
    pack = copied(kind, "lmdb")
    index = pack / read_manifest(pack).shards[0].index.name
    edit_index(index, name, change)
    vouch(pack)
    for read in (lambda: open_pack(pack).column("label"), lambda: open_pack(pack).record(0)):
        with pytest.raises(DamagedPack, match=r"record 0000000\d \(row \d\) has") as caught:
            read()
        assert caught.value.where == str(index) and caught.value.exit_code == 4
    assert any(problem.file == index.name for problem in verify(pack).problems)
    with pytest.raises(DamagedPack, match="its digest is right"):
        repair(pack)


WRONG_TEXTS = {
    "deep": '{"a": ' + "[" * 10**5 + "]" * 10**5 + "}",
    "too deep": '{"a": ' + "[" * 500 + "]" * 500 + "}",
    "a long number": '{"a": ' + "9" * 5000 + "}",
    "no number": '{"a": [NaN]}',
    "endless": '{"a": [1e999]}',
    "a list": "[1]",
    "no JSON": '{"a": ',
}


@pytest.mark.parametrize("name", ["extras", "box_fields"])
@pytest.mark.parametrize("wrong", [*WRONG_TEXTS, "other boxes", "no lists"])
def test_texts_that_do_not_fit(copied, make_pack, tmp_path, name, wrong):
    if name == "extras" and wrong not in WRONG_TEXTS:
        pytest.skip("extras may have any members")
    text = {"other boxes": '{"difficult": [1, 2, 3, 4, 5, 6, 7]}', "no lists": '{"difficult": 1}', **WRONG_TEXTS}[wrong]
    pack = copied("boxes", "lmdb")
    index = pack / read_manifest(pack).shards[0].index.name
    edit_index(index, name, lambda old: [text] * len(old))
    vouch(pack, lambda manifest: replace(manifest, fields=(*manifest.fields, "extras", "box_fields.difficult")))
    is_json = wrong in ("a list", "other boxes", "no lists")  # which diff compares as they are
    for use in (
        lambda: read_all(pack),
        lambda: PackedDataset(pack).__getitems__([0, 1]),
        lambda: extract(pack, tmp_path / "out"),
        lambda: convert(pack, tmp_path / "out.hdf5"),
        *(() if is_json else (lambda: diff(pack, make_pack("boxes", "lmdb")),)),
    ):
        with pytest.raises(DamagedPack):
            use()
    assert verify(pack, deep=True).problems


@pytest.mark.parametrize(
    ("name", "value"),
    [("decoder", {}), ("max_pixels", "many"), ("max_pixels", 10**30), ("columns", "path"), ("fit", []), ("any", [[]])],
)
def test_options(copied, name, value):
    pack = copied("raw", "lmdb")
    edit_manifest(pack, put(value, "options", name))
    refused(pack)


@pytest.mark.parametrize(
    "change",
    [
        put(["exe"], "fields"), put(-1, "counts", "found"), put(10**400, "counts", "x"),
        put("\ud800", "classes", 0),  # which no container could write as UTF-8
    ],
)  # fmt: skip
def test_fields_and_counts(copied, change):
    pack = copied("raw", "lmdb")
    edit_manifest(pack, change)
    refused(pack)


def test_no_text_of_a_manifest_reaches_the_terminal_raw(copied):
    pack = copied("raw", "lmdb")
    edit_manifest(pack, put("0.2\x1b[31m\udcff", "packer"))
    edit_manifest(pack, put("\x1b[31m\udcff", "options", "decoder"))
    ran = good("info", pack)
    assert "packer 0.2\\x1b[31m\\udcff: " in ran.out and "decoder \\x1b[31m\\udcff" in ran.out
    assert "\x1b" not in ran.out


def test_objects_without_points(copied):
    """Of no keypoints each, as a file of another tool may have them."""
    pack = copied("boxes", "lmdb")
    lengths = [len(rows) for rows in open_pack(pack).column("boxes")]
    start = 0
    for shard in read_manifest(pack).shards:
        rows = [[[]] * length for length in lengths[start : start + shard.records]]
        edit_index(pack / shard.index.name, "keypoints", lambda old, rows=rows: rows)
        start += shard.records
    vouch(pack, lambda manifest: replace(manifest, fields=(*manifest.fields, "keypoints")))
    found = [target["keypoints"] for _, target in PackedDataset(pack).__getitems__(list(range(len(lengths))))]
    assert [tuple(points.shape) for points in found] == [(length, 0, 3) for length in lengths]


def test_boxes_beyond_all_images_are_cut(copied):
    """And nobody warns of numbers that float32 cannot hold."""
    pack = copied("boxes", "lmdb")
    index = pack / read_manifest(pack).shards[0].index.name
    edit_index(index, "boxes", first(lambda boxes: [[-3e38, -3e38, 3e38, 3e38], *boxes[1:]]))
    edit_index(index, "landmarks", first([[3e38, -3e38]] * 5))
    vouch(pack)
    (targets,) = [targets for _, targets in PackedLoader(pack, 64, crop=RandomResizedCrop(50, scale=(0.1, 0.2)))]
    boxes = torch.cat([target["boxes"] for target in targets])
    assert [0, 0, 50, 50] in boxes.tolist() and boxes.min() >= 0 and boxes.max() <= 50
    assert torch.cat([target["landmarks"] for target in targets]).isfinite().all()


def test_a_row_that_says_a_giant_image_takes_no_memory(copied):
    pack = copied("jpeg", "lmdb")
    edit_index(pack / read_manifest(pack).shards[0].index.name, "width", lambda old: [2**31 - 1, *old[1:]])
    vouch(pack, lambda manifest: replace(manifest, shape=None))
    with cheap(), pytest.raises(DamagedPack, match="decodes to shape"):
        list(PackedLoader(pack, 2, crop=RandomResizedCrop(8), threads=1))


def test_an_object_that_is_shorter_than_its_manifest_says_is_not_waited_for(copied, tmp_path, monkeypatch):
    monkeypatch.setenv("PACKER_CACHE", str(tmp_path / "cache"))
    pack = copied("raw", "lmdb")
    started = time.monotonic()
    edit_manifest(pack, put(1 << 40, "shards", 0, "container", "bytes"))
    with pytest.raises(PackerError):
        read_all(f"file://{pack}")
    assert time.monotonic() - started < 30


@pytest.mark.parametrize("written", [["a", "b", "c", "d"], "1234", [1], 5, None])
def test_voc_boxes_as_written_that_are_none(copied, tmp_path, written):
    pack = copied("boxes", "lmdb")
    lengths, start = [len(rows) for rows in open_pack(pack).column("boxes")], 0
    for shard in read_manifest(pack).shards:
        texts = [json.dumps({"voc_bndbox": [written] * n}) for n in lengths[start : start + shard.records]]
        edit_index(pack / shard.index.name, "box_fields", lambda old, texts=texts: texts)
        start += shard.records
    vouch(pack, lambda manifest: replace(manifest, fields=(*manifest.fields, "box_fields.voc_bndbox")))
    extract(pack, tmp_path / "out", "voc")
    assert len(list((tmp_path / "out").rglob("*.xml"))) == len(open_pack(pack))


@pytest.mark.parametrize("layout", ["voc", "yolo", "coco", "list"])
def test_boxes_without_classes_are_lost_and_told(copied, tmp_path, layout):
    pack = copied("boxes", "lmdb")
    for shard in read_manifest(pack).shards:
        edit_index(pack / shard.index.name, "box_labels", lambda old: [None] * len(old))
    vouch(pack)
    boxes = len(open_pack(pack).column("boxes").flat())
    assert extract(pack, tmp_path / "out", layout).lost["boxes without a class"] == boxes


def test_an_image_of_another_size_than_its_row_is_told_in_a_sheet(copied, tmp_path):
    pack = copied("jpeg", "lmdb")
    edit_index(pack / read_manifest(pack).shards[0].index.name, "width", lambda old: [32768, *old[1:]])
    vouch(pack, lambda manifest: replace(manifest, shape=None, classes=("\udcff", *manifest.classes[1:])))
    export(open_pack(pack), tmp_path / "sheet.html", 24)
    assert "but its row says 32768x10" in (tmp_path / "sheet.html").read_text()


def test_a_path_of_many_folders_is_extracted(copied, tmp_path):
    pack = copied("raw", "lmdb")
    edit_index(
        pack / read_manifest(pack).shards[0].index.name, "path", lambda old: [b"/".join([b"ab"] * 2000), *old[1:]]
    )
    vouch(pack)
    assert extract(pack, tmp_path / "out").images == len(open_pack(pack))


def test_a_manifest_of_many_classes_is_read_without_a_call_for_each(copied):
    pack = copied("raw", "lmdb")
    many = tuple(map(str, range(20_000)))
    counts = {"label": [24, *[0] * (len(many) - 1)]}
    (pack / "pack.json").write_bytes(replace(read_manifest(pack), classes=many, class_counts=counts).to_json())
    calls = 0

    def count(_frame: object, event: str, _arg: object) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        assert read_manifest(pack).classes == many
    finally:
        sys.setprofile(None)
    assert calls < 10 * len(many)  # json.dumps with an indent makes them


def test_keys_out_of_order_and_twice(copied):
    pack = copied("raw", "lmdb")
    shards = read_manifest(pack).shards
    edit_index(pack / shards[0].index.name, "key", lambda keys: [keys[1], *keys[1:]])
    vouch(pack)
    assert any("does not come after" in p.problem for p in verify(pack).problems)


def test_a_container_named_twice(copied):
    pack = copied("raw", "lmdb")
    manifest = read_manifest(pack)
    first, second, *rest = manifest.shards
    (pack / "pack.json").write_bytes(
        replace(manifest, shards=(first, replace(second, container=first.container), *rest)).to_json()
    )
    assert any("listed twice" in p.problem for p in verify(pack).problems)
