"""A damaged pack is a clear error that names the file: never a crash, never wrong pixels."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from damage import edit_index, exchange, flip, shard_files, vouch

import packer.format.records
from packer import PackedDataset, build_pack, open_pack
from packer.errors import DamagedPack, UsageError
from packer.format.index import SCHEMA
from packer.format.manifest import read_manifest
from packer.packing import BuildOptions


def read_all(pack: Path) -> None:
    data = PackedDataset(pack)
    for i in range(len(data)):
        data[i]
    data.__getitems__(range(len(data)))


def damaged(path: Path, action: Callable[[], object]) -> DamagedPack:
    """The action must fail with an error that names this file."""
    with pytest.raises(DamagedPack) as caught:
        action()
    error = caught.value
    assert error.where == str(path) and error.next_step and error.exit_code == 4
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is DamagedPack and str(again) == str(error)
    return error


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("number", [0, -1])
def test_missing(copied, container, which, number):
    pack = copied("raw", container)
    path = shard_files(pack, number)[which]
    path.unlink()
    assert "is missing" in str(damaged(path, lambda: open_pack(pack)))


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("change", [-1, 1, 4096, -4096])
def test_truncated_or_appended(copied, container, which, change):
    pack = copied("raw", container)
    path = shard_files(pack, 1)[which]
    size = path.stat().st_size
    os.truncate(path, max(0, size + change))
    assert f"has {max(0, size + change):,} bytes, but the pack says {size:,}" in str(
        damaged(path, lambda: open_pack(pack))
    )


def test_every_truncation_is_found_before_mapping(copied, container):
    pack = copied("boxes", container)
    for path in sorted(pack.iterdir()):
        data = path.read_bytes()
        for size in {*range(0, len(data), max(1, len(data) // 15)), len(data) - 1}:
            path.write_bytes(data[:size])
            damaged(path, lambda: open_pack(pack))
        path.write_bytes(data)
    read_all(pack)


@pytest.mark.parametrize("which", [0, 1])
def test_truncations_that_the_manifest_vouches_for(copied, container, which):
    pack = copied("boxes", container)
    path = shard_files(pack, 1)[which]
    data = path.read_bytes()
    good = open_pack(pack)
    last = int(good.reader._firsts[2]) - 1
    # what lies behind the last record belongs to the container alone
    needed = len(data) if which else good.reader.span(last)[1] - int(good.reader._starts[1])
    for size in {*range(0, needed, needed // 12), needed - 1}:
        path.write_bytes(data[:size])
        vouch(pack)
        with pytest.raises(DamagedPack):
            read_all(pack)


def test_swapped_containers(copied, container):
    pack = copied("raw", container)
    (a, _), (b, _) = shard_files(pack, 0), shard_files(pack, 1)
    if a.stat().st_size != b.stat().st_size:
        pytest.skip(f"shards of {container} differ in size here")
    exchange(a, b)
    assert "does not match its checksum" in str(damaged(a, lambda: open_pack(pack).record(0)))
    assert "does not match its checksum" in str(damaged(b, lambda: PackedDataset(pack).__getitems__([10, 9])))


def test_swapped_shards_with_their_indexes(copied, container):
    pack = copied("raw", container)
    one, two = shard_files(pack, 1), shard_files(pack, 2)
    for a, b in zip(one, two, strict=True):
        if a.stat().st_size != b.stat().st_size:
            pytest.skip(f"shards of {container} differ in size here")
        exchange(a, b)
    assert "was altered" in str(damaged(one[1], lambda: open_pack(pack).record(10)))


@pytest.mark.parametrize("kind", ["raw", "jpeg"])
def test_one_bit_of_the_pixels(copied, container, kind):
    pack = copied(kind, container)
    good = open_pack(pack)
    shard, row = good.reader.locate(11)
    offset = sum(good.reader.span(11)) // 2 - int(good.reader._starts[shard])
    path = shard_files(pack, shard)[0]
    flip(path, offset)
    for action in (lambda d: d[11], lambda d: d.__getitems__([1, 11]), lambda d: d.pack.record(11)):
        error = damaged(path, lambda action=action: action(PackedDataset(pack)))
        assert f"record 00000011 (row {row}) does not match its checksum" in error.problem
    data = PackedDataset(pack)
    data.__getitems__([10, 12])  # the others are good
    for _ in range(2):  # and an error is no one-off
        damaged(path, lambda: data.__getitems__([10, 11]))


def test_a_record_is_checked_at_first_touch_only(make_pack, container, monkeypatch):
    lengths: list[int] = []
    real = packer.format.records.crc32c
    monkeypatch.setattr(packer.format.records, "crc32c", lambda data, *a: lengths.append(len(data)) or real(data, *a))
    data = PackedDataset(make_pack("raw", container))
    assert not lengths
    for read in (lambda: data[5], lambda: data[-19], lambda: data.__getitems__([5, 5]), lambda: data.pack.record(5)):
        read()
        assert lengths == [8, 360]  # key, then pixels
    data.__getitems__([4, 5, 6])
    assert lengths == [8, 360] * 3


@pytest.mark.parametrize(
    ("name", "value"),
    [("offset", 2**62), ("offset", 2**63 - 1), ("offset", -1), ("size", 2**62), ("size", -360), ("size", -(2**63))],
)
def test_index_that_points_outside(copied, container, name, value):
    pack = copied("raw", container)
    path = shard_files(pack, 1)[1]
    edit_index(path, name, lambda values: [*values[:2], value, *values[3:]])
    vouch(pack)
    problem = str(damaged(path, lambda: PackedDataset(pack)[20]))  # another record, another shard: all the same
    assert (
        "has offsets outside its shard" if name == "offset" else f"has {value} bytes, but its pixels have"
    ) in problem
    damaged(path, lambda: PackedDataset(pack).__getitems__([20]))


def test_index_that_points_just_past_the_end(copied, container):
    pack = copied("raw", container)
    path, index = shard_files(pack, -1)
    edit_index(index, "offset", lambda values: [*values[:-1], path.stat().st_size - 359])
    vouch(pack)
    damaged(index, lambda: open_pack(pack).record(0))
    edit_index(index, "offset", lambda values: [*values[:-1], path.stat().st_size - 360])
    vouch(pack)
    damaged(path, lambda: open_pack(pack).record(23))


@pytest.mark.parametrize(
    ("name", "value"),
    [("height", -1), ("height", 0), ("width", 2**31 - 1), ("channels", 2), ("dtype", 1)],
)
def test_index_whose_shape_cannot_be(copied, name, value):
    pack = copied("ragged", "lmdb")
    index = shard_files(pack, 0)[1]
    edit_index(index, name, lambda values: [value, *values[1:]])
    vouch(pack, lambda manifest: replace(manifest, dtype=None))
    error = damaged(index, lambda: PackedDataset(pack)[0])
    assert "record 00000000" in str(error)


@pytest.mark.parametrize("name", ["dtype", "encoding"])
@pytest.mark.parametrize("code", [-1, 10, 100])
def test_index_with_a_code_that_does_not_exist(copied, name, code):
    pack = copied("copy", "lmdb")
    index = shard_files(pack, 0)[1]
    edit_index(index, name, lambda values: [code, *values[1:]])
    vouch(pack, lambda manifest: replace(manifest, dtype=None))
    assert "cannot be read" in str(damaged(index, lambda: PackedDataset(pack)[1]))


@pytest.mark.parametrize("code", [0, 2])
def test_index_whose_encoding_cannot_be(copied, code):
    pack = copied("copy", "lmdb")
    index = shard_files(pack, 0)[1]
    edit_index(index, "encoding", lambda values: [code, *values[1:]])
    vouch(pack)
    if code == 2:  # the bytes say what they are: any image format will do
        PackedDataset(pack)[0]
    else:
        damaged(index, lambda: PackedDataset(pack)[0])


def test_annotation_that_cannot_be(copied):
    pack = copied("boxes", "lmdb")
    index = shard_files(pack, 0)[1]
    edit_index(index, "box_fields", lambda values: ["{no json"] * len(values))
    vouch(pack)
    with pytest.raises(DamagedPack) as caught:
        PackedDataset(pack)[1]
    assert caught.value.where == str(index)


def test_raw_records_that_are_not_of_one_size(copied):
    pack = copied("raw", "lmdb")
    index = shard_files(pack, 0)[1]
    edit_index(index, "size", lambda values: [values[0] - 1, *values[1:]])
    vouch(pack)
    error = damaged(index, lambda: PackedDataset(pack).__getitems__([1]))
    assert "(row 0) has 359 bytes, but its pixels have 360" in error.problem


def test_number_of_rows(copied):
    pack = copied("raw", "lmdb")
    manifest = read_manifest(pack)
    first, second, *rest = manifest.shards
    moved = (replace(first, records=first.records + 1), replace(second, records=second.records - 1), *rest)
    (pack / "pack.json").write_bytes(replace(manifest, shards=moved).to_json())
    error = damaged(pack / first.index.name, lambda: open_pack(pack).record(0))
    assert f"has {first.records} rows, but the pack says {first.records + 1}" in error.problem


def test_image_that_cannot_be_decoded(copied, monkeypatch):
    pack = copied("jpeg", "lmdb")
    data = PackedDataset(pack)
    data[3]
    start, stop = data.pack.reader.span(3)
    monkeypatch.setattr(
        data.pack.reader, "span", lambda i, name: (start, (start + stop) // 2)
    )  # seen, so not checked again
    error = damaged(shard_files(pack, data.pack.reader.locate(3)[0])[0], lambda: data[3])
    assert "record 00000003" in error.problem and "cannot be decoded" in error.problem


# -- pack.json


def edited(pack: Path, old: str, new: str) -> None:
    path = pack / "pack.json"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda p: edited(p, '"encoding": "raw"', '"encoding": "jpeg"'), "was altered"),
        (lambda p: edited(p, '"classes"', '"mode": "rgb", "classes"'), "was not written by packer"),
        (lambda p: (p / "pack.json").write_bytes(b""), "is not readable"),
        (lambda p: (p / "pack.json").write_bytes(b"[1, 2]"), "is not a packer manifest"),
        (lambda p: (p / "pack.json").write_bytes(b"\x80\x04N."), "is not readable"),
        (lambda p: (p / "pack.json").write_bytes(b"[" * 100_000), "is not readable"),
        (lambda p: edited(p, '"records": ', '"records": NaN, "x": '), "not JSON compliant"),
        (lambda p: edited(p, '"version": 2', '"version": "2"'), "has no valid version"),
        (lambda p: edited(p, '"records": ', '"x": 1e999, "records": '), "not JSON compliant"),
        (lambda p: vouch(p, lambda m: replace(m, counts={"found": "?"})), "is not of type int"),
        (lambda p: vouch(p, lambda m: replace(m, class_counts={"label": []}, classes=("a",))), "other counts"),
        (lambda p: vouch(p, lambda m: replace(m, packer=[])), "is not of type str"),
        (lambda p: vouch(p, lambda m: replace(m, dtype="object")), "unknown dtype 'object'"),
        (lambda p: vouch(p, lambda m: replace(m, shape=(-10, -12, 3))), "images of shape"),
        (lambda p: vouch(p, lambda m: replace(m, records=99)), "99 records"),
        (lambda p: vouch(p, lambda m: replace(m, shards=(), records=0)), "or none"),
    ],
)
def test_manifest(copied, damage, words):
    pack = copied("raw", "lmdb")
    damage(pack)
    assert words in str(damaged(pack / "pack.json", lambda: open_pack(pack)))


@pytest.mark.parametrize(
    ("rows", "words"), [(1 << 47, "too few for"), (1 << 62, "records in"), (1 << 80, "records in")]
)
def test_more_records_than_an_index_can_hold(copied, rows, words):
    """Refused before a byte is allocated for each of them."""
    pack = copied("raw", "lmdb")
    manifest = read_manifest(pack)
    shards = (replace(manifest.shards[0], records=rows), *manifest.shards[1:])
    total = sum(shard.records for shard in shards)
    (pack / "pack.json").write_bytes(replace(manifest, shards=shards, records=total).to_json())
    with pytest.raises(DamagedPack, match=words):
        open_pack(pack)


def test_a_compressed_index(copied):
    """Refused before Arrow unpacks it, whatever its checksum says."""
    pack = copied("raw", "lmdb")
    _, path = shard_files(pack, 0)
    batch = pa.ipc.open_file(path.read_bytes()).get_batch(0)
    for codec in ("zstd", "lz4"):
        with pa.ipc.new_file(str(path), SCHEMA, options=pa.ipc.IpcWriteOptions(compression=codec)) as writer:
            writer.write_batch(batch)
        vouch(pack)
        assert "compressed" in str(damaged(path, lambda: open_pack(pack).record(0)))


def test_manifest_that_leaves_the_pack(copied):
    pack = copied("raw", "lmdb")
    manifest = read_manifest(pack)
    first = manifest.shards[0]
    shards = (replace(first, container=replace(first.container, name="../x.lmdb")), *manifest.shards[1:])
    (pack / "pack.json").write_bytes(replace(manifest, shards=shards).to_json())
    assert "leaves the pack" in str(damaged(pack / "pack.json", lambda: open_pack(pack)))


def test_manifest_of_a_newer_version(copied):
    pack = copied("raw", "lmdb")
    content = json.loads((pack / "pack.json").read_bytes())
    (pack / "pack.json").write_text(json.dumps({**content, "version": 4}))
    with pytest.raises(UsageError, match="has format version 4, newer than 3; update packer"):
        open_pack(pack)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda p: None, "no such pack; build one: packer build FOLDER"),
        (lambda p: p.mkdir(), r"is not a pack: it has no pack\.json"),
        (lambda p: p.write_bytes(b""), "is a file, but a pack is a directory"),
        (
            lambda p: p.with_name("p.partial").mkdir(),
            r"did not finish \(.*p\.partial exists\): run it again",
        ),
    ],
)
def test_no_pack_at_all(tmp_path, make, words):
    make(tmp_path / "p")
    with pytest.raises(UsageError, match=words) as caught:
        PackedDataset(tmp_path / "p")
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_unfinished_pack_by_its_name(copied, tmp_path):
    pack = copied("raw", "lmdb")
    (pack / "pack.json").unlink()
    partial = pack.rename(tmp_path / "p.partial")
    with pytest.raises(UsageError, match="is an unfinished build, not a pack; run the same packer build again"):
        open_pack(partial)


def test_pack_that_was_replaced(copied, make_pack):
    pack = copied("raw", "lmdb")
    data = PackedDataset(pack)
    first = data[0][0]
    pickled = pickle.dumps(data)
    shutil.rmtree(pack)
    source = make_pack("raw", "lmdb").parent / "source"
    build_pack(BuildOptions(str(source), str(pack), shuffle=1, workers=1))
    assert (data[0][0] == first).all()  # what is open stays what it is
    with pytest.raises(DamagedPack, match="was replaced by another pack since it was opened; open it again"):
        pickle.loads(pickled)
