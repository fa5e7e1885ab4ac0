"""Formats of rows and samples: Parquet, Arrow, LMDB, MDS, LitData."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from drawn import image_file
from foreign_files import field

from packer import adopt, open_pack
from packer.errors import DamagedPack, UsageError
from packer.files.lmdb_values import values as values_of_lmdb
from packer.format.pack import Pack
from packer.format.verify import verify
from packer.repack.formats.arrow_formats import _field, _follow

IMAGES = [image_file(i) for i in range(7)]
FEATURES = {
    "info": {
        "features": {
            "image": {"_type": "Image"},
            "label": {"names": ["ant", "bee", "cat"], "_type": "ClassLabel"},
        }
    }
}


def adopted(path: Path, **options: Any) -> Pack:
    adopt([path], path.parent / "pack", overwrite=True, **options)
    assert verify(path.parent / "pack", deep=True).problems == ()
    return open_pack(path.parent / "pack")


def table(named: bool = True, images: list[bytes | None] | None = None) -> pa.Table:
    rows = [None if data is None else {"bytes": data, "path": f"{i}.jpg"} for i, data in enumerate(images or IMAGES)]
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    columns = {"image": pa.array(rows, kind), "label": pa.array([i % 3 for i in range(len(rows))], pa.int64())}
    metadata = {"huggingface": json.dumps(FEATURES)} if named else None
    return pa.table(columns).replace_schema_metadata(metadata)


def check(pack: Pack, named: bool = True) -> None:
    assert pack.classes == (["ant", "bee", "cat"] if named else ["0", "1", "2"])
    for i, data in enumerate(IMAGES):
        assert bytes(pack.record(i)) == data and pack.annotation(i).label == i % 3 and pack.paths[i] == f"{i}.jpg"


@pytest.mark.parametrize(
    "options",
    [
        {"use_dictionary": False},
        {"use_dictionary": True},
        {"use_dictionary": False, "data_page_version": "2.0"},
        {"use_dictionary": False, "data_page_size": 1000, "row_group_size": 3},
        {"use_dictionary": True, "dictionary_pagesize_limit": 3000, "data_page_size": 100},
    ],
)
@pytest.mark.parametrize("named", [True, False])
def test_parquet(options: dict[str, Any], named: bool, tmp_path: Path) -> None:
    pq.write_table(table(named), tmp_path / "a.parquet", compression="none", **options)
    check(adopted(tmp_path / "a.parquet"), named)


def test_parquet_with_rows_without_images(tmp_path: Path) -> None:
    images = [IMAGES[0], None, IMAGES[2], None]
    pq.write_table(table(images=images), tmp_path / "a.parquet", compression="none", use_dictionary=False)
    pack = adopted(tmp_path / "a.parquet", max_bad="2")
    assert [bytes(pack.record(i)) for i in range(2)] == [IMAGES[0], IMAGES[2]]


def test_parquet_of_objects(tmp_path: Path) -> None:
    objects = [{"bbox": [[1.0, 2.0, 5.0, 6.0]], "category": [1], "area": [30.0]}] * 2
    columns = {"image": pa.array(IMAGES[:2], pa.binary()), "objects": pa.array(objects), "id": pa.array([7, 8])}
    pq.write_table(pa.table(columns), tmp_path / "a.parquet", compression={"image": "none"}, use_dictionary=["id"])
    with pytest.raises(UsageError, match=r"columns=\"boxes=xmin ymin w h\""):
        adopt([tmp_path / "a.parquet"], tmp_path / "pack")
    pack = adopted(tmp_path / "a.parquet", columns={"boxes": "xmin ymin w h"})
    annotation = pack.annotation(1)
    assert annotation.boxes is not None and annotation.boxes.tolist() == [[1, 2, 6, 8]]
    assert annotation.box_fields == {"area": (30.0,)} and annotation.extras == {"id": 8}


def test_parquet_that_cannot_be_read_in_place(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(table(), path, compression="snappy")
    with pytest.raises(UsageError, match=r"compressed by snappy; write the column"):
        adopt([path], tmp_path / "pack")
    pq.write_table(
        table(), path, compression="none", use_dictionary=False, column_encoding={"image.bytes": "DELTA_BYTE_ARRAY"}
    )
    with pytest.raises(UsageError, match="not stored plainly"):
        adopt([path], tmp_path / "pack")
    pq.write_table(table(images=[IMAGES[0]] * 3), path, compression="none", use_dictionary=True)
    with pytest.raises(UsageError, match="overlap"):
        adopt([path], tmp_path / "pack")


@pytest.mark.parametrize("stream", [True, False])
def test_arrow(stream: bool, tmp_path: Path) -> None:
    content = table()
    path = tmp_path / "data-00000-of-00001.arrow"
    writer = pa.ipc.new_stream if stream else pa.ipc.new_file
    with writer(str(path), content.schema) as out:
        for batch in content.to_batches(max_chunksize=3):
            out.write_batch(batch)
    check(adopted(path))


@pytest.mark.parametrize("new", [pa.ipc.new_file, pa.ipc.new_stream])
@pytest.mark.parametrize("compression", ["zstd", "lz4"])
def test_arrow_that_becomes_much_larger(new: Any, compression: str, tmp_path: Path) -> None:
    path, rows = tmp_path / "a.arrow", 500_000
    content = pa.table({"image": pa.nulls(rows, pa.binary()), "label": np.zeros(rows, np.int64)})
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.OSFile(str(path), "wb") as sink, new(sink, content.schema, options=options) as writer:
        writer.write_table(content)
    with pytest.raises(UsageError, match="is compressed, and becomes larger than its file"):
        adopt([path], tmp_path / "pack")


def test_arrow_batches_that_are_all_the_same(tmp_path: Path) -> None:
    path = tmp_path / "a.arrow"
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table().schema) as writer:
        writer.write_table(table())
        for _ in range(9):
            writer.write_table(table().slice(0, 1))
    data = bytearray(path.read_bytes())
    start = len(data) - 10 - struct.unpack("<i", data[-10:-6])[0]
    footer = memoryview(bytes(data[start:]))
    blocks = start + (_follow(footer, _field(footer, _follow(footer, 0), 3)) or 0)
    data[blocks + 4 : blocks + 244] = data[blocks + 4 : blocks + 28] * 10
    path.write_bytes(data)
    with pytest.raises(UsageError, match="its batches overlap"):
        adopt([path], tmp_path / "pack")


def test_arrow_that_is_compressed(tmp_path: Path) -> None:
    path = tmp_path / "a.arrow"
    with pa.ipc.new_file(str(path), table().schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as out:
        out.write_table(table())
    with pytest.raises(UsageError, match="is compressed"):
        adopt([path], tmp_path / "pack")


def test_more_rows_than_bytes(tmp_path: Path) -> None:
    rows = 100_000  # runs of equal values take no space, so a small file could have billions
    columns = {"image": pa.nulls(rows, pa.binary()), "label": pa.array([0] * rows)}
    pq.write_table(pa.table(columns), tmp_path / "a.parquet", compression="none", use_dictionary=["label"])
    with pytest.raises(UsageError, match="100,000 rows are more than"):
        adopt([tmp_path / "a.parquet"], tmp_path / "pack", max_bad="100%")


def write_lmdb(path: Path, values: dict[bytes, bytes]) -> Path:
    with lmdb.open(str(path), subdir=False, map_size=1 << 24) as env, env.begin(write=True) as transaction:
        for key, value in values.items():
            transaction.put(key, value)
    return path


def test_lmdb(tmp_path: Path) -> None:
    values: dict[bytes, bytes] = {}
    for i, data in enumerate(IMAGES):
        values |= {b"%08d.jpg" % i: data, b"%08d.cls" % i: b"%d" % (i % 3)}
    datum = field(4, image_file(9)) + b"\x28\x01\x38\x01"
    pack = adopted(write_lmdb(tmp_path / "a.lmdb", {**values, b"99_datum": datum, b"__len__": b"8"}))
    assert [pack.annotation(i).label for i in range(8)] == [0, 1, 2, 0, 1, 2, 0, 1]
    assert [bytes(pack.record(i)) for i in range(8)] == [*IMAGES, image_file(9)]
    assert pack.paths[0] == "00000000.jpg"


def test_pickled_values_are_refused_and_not_read(tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> tuple[Any, ...]:
            return (Path.touch, (tmp_path / "bomb",))

    import pickle

    path = write_lmdb(tmp_path / "a.lmdb", {b"0": pickle.dumps((Bomb(), 1)), b"__len__": pickle.dumps(1)})
    with pytest.raises(UsageError, match="pickled values"):
        adopt([path], tmp_path / "pack")
    assert not (tmp_path / "bomb").exists()


def test_a_damaged_lmdb(tmp_path: Path) -> None:
    path = write_lmdb(tmp_path / "a.lmdb", {b"%08d.jpg" % i: data for i, data in enumerate(IMAGES)})
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(UsageError, match="12288 bytes of 24576"):
        adopt([path], tmp_path / "pack")


def fan_out(path: Path, entries: int | None) -> None:
    """Let all references in each inner page of an LMDB file lead to the next one, those of the last one to a leaf."""
    data = bytearray(path.read_bytes())
    newest = max((4096 * page + 16 for page in (0, 1)), key=lambda at: struct.unpack_from("<Q", data, at + 128)[0])
    root = struct.unpack_from("<Q", data, newest + 112)[0]
    if entries is not None:
        struct.pack_into("<Q", data, newest + 104, entries)
    flags = {page: struct.unpack_from("<H", data, 4096 * page + 10)[0] for page in range(2, len(data) // 4096)}
    inner = [root, *(page for page, flag in flags.items() if flag == 1 and page != root)][:30]
    leaf = next(page for page, flag in flags.items() if flag == 2)
    for page, following in zip(inner, [*inner[1:], leaf], strict=True):
        start = 4096 * page
        (end,) = struct.unpack_from("<H", data, start + 12)
        for (node,) in struct.iter_unpack("<H", data[start + 16 : start + end]):
            struct.pack_into("<HHH", data, start + node, following & 0xFFFF, following >> 16, 0)
    path.write_bytes(data)


@pytest.mark.parametrize("entries", [None, 3, 1 << 60])
def test_an_lmdb_whose_pages_are_not_a_tree(entries: int | None, tmp_path: Path) -> None:
    image = image_file(0, 2, 2)
    path = write_lmdb(tmp_path / "a.lmdb", {b"%08d" % i + b"k" * 300 + b".jpg": image for i in range(1000)})
    assert sum(1 for _ in values_of_lmdb(str(path))) == 1000
    fan_out(path, entries)
    with pytest.raises(DamagedPack, match="not a tree"):
        for _ in zip(range(2000), values_of_lmdb(str(path)), strict=False):
            pass
    with pytest.raises(UsageError, match="not a tree"):
        adopt([path], tmp_path / "pack")


def write_mds(path: Path, rows: list[list[bytes]], columns: list[tuple[str, str, int | None]]) -> Path:
    names, kinds, sizes = zip(*columns, strict=True)
    config = {"version": 2, "format": "mds", "compression": None}
    config |= {"column_names": names, "column_encodings": kinds, "column_sizes": sizes}
    text = json.dumps(config, sort_keys=True).encode()
    samples = []
    for row in rows:
        head = b"".join(struct.pack("<I", len(v)) for v, size in zip(row, sizes, strict=True) if size is None)
        samples.append(head + b"".join(row))
    start = 4 + 4 * (len(rows) + 1) + len(text)
    bounds = np.cumsum([start, *map(len, samples)]).astype("<u4")
    path.write_bytes(struct.pack("<I", len(rows)) + bounds.tobytes() + text + b"".join(samples))
    return path


def test_mds(tmp_path: Path) -> None:
    rows = [[data, struct.pack("<q", i % 3)] for i, data in enumerate(IMAGES)]
    pack = adopted(write_mds(tmp_path / "shard.00000.mds", rows, [("x", "jpeg", None), ("y", "int", 8)]))
    assert [bytes(pack.record(i)) for i in range(7)] == IMAGES
    assert [pack.annotation(i).label for i in range(7)] == [0, 1, 2, 0, 1, 2, 0]
    named = [[b"bee", data] for data in IMAGES]
    pack = adopted(write_mds(tmp_path / "a.mds", named, [("label", "str", None), ("image", "bytes", None)]))
    assert pack.classes == ["bee"] and bytes(pack.record(3)) == IMAGES[3]


def test_mds_of_raw_pixels(tmp_path: Path) -> None:
    pixels = np.arange(5 * 4 * 3, dtype=np.uint8).reshape(5, 4, 3)
    raw = struct.pack("<III", 4, 5, 3) + b"RGB" + pixels.tobytes()
    pack = adopted(write_mds(tmp_path / "a.mds", [[raw]] * 2, [("image", "pil", None)]))
    assert pack.manifest.encoding == "raw" and (pack.image(1) == pixels).all()


def test_a_damaged_mds(tmp_path: Path) -> None:
    path = write_mds(tmp_path / "a.mds", [[data] for data in IMAGES], [("image", "jpeg", None)])
    data = path.read_bytes()
    rng = np.random.default_rng(0)
    for _ in range(30):
        changed = bytearray(data[: int(rng.integers(30, len(data)))] if rng.random() < 0.3 else data)
        changed[int(rng.integers(0, min(len(changed), 300)))] ^= 1 << int(rng.integers(0, 8))
        path.write_bytes(changed)
        try:
            adopt([path], tmp_path / "pack", overwrite=True, max_bad="100%")
        except Exception as error:
            assert type(error).__module__ == "packer.errors", error


def test_an_mds_shard_whose_columns_are_not_texts(tmp_path: Path) -> None:
    path = write_mds(tmp_path / "a.mds", [[IMAGES[0]]], [("image", "jpeg", None)])
    path.write_bytes(path.read_bytes().replace(b'["jpeg"]', b'{"0": 1}'))
    with pytest.raises(UsageError, match=r"is not a shard of MosaicML Streaming.*columns"):
        adopt([path], tmp_path / "pack")


def write_chunk(folder: Path, rows: list[list[bytes]], kinds: list[str], keys: list[str] | None) -> Path:
    folder.mkdir(exist_ok=True)
    items = [b"".join(struct.pack("<I", len(v)) for v in row) + b"".join(row) for row in rows]
    start = 4 + 4 * (len(rows) + 1)
    bounds = np.cumsum([start, *map(len, items)]).astype("<u4")
    (folder / "chunk-0-0.bin").write_bytes(struct.pack("<I", len(rows)) + bounds.tobytes() + b"".join(items))
    spec = (
        json.dumps([1, {"type": "builtins.dict", "context": json.dumps(keys), "children_spec": []}]) if keys else None
    )
    config = {"data_format": kinds, "data_spec": spec, "compression": None}
    (folder / "index.json").write_text(json.dumps({"chunks": [], "config": config}))
    return folder


@pytest.mark.parametrize("keys", [["image", "label"], None])
def test_litdata(keys: list[str] | None, tmp_path: Path) -> None:
    rows = [[data, struct.pack("<q", i % 3)] for i, data in enumerate(IMAGES)]
    write_chunk(tmp_path / "chunks", rows, ["jpeg", "int"], keys)
    adopt([tmp_path / "chunks"], tmp_path / "pack")
    pack = open_pack(tmp_path / "pack")
    assert [bytes(pack.record(i)) for i in range(7)] == IMAGES
    assert [pack.annotation(i).label for i in range(7)] == [0, 1, 2, 0, 1, 2, 0]
    (tmp_path / "chunks" / "index.json").unlink()
    os.mkfifo(tmp_path / "chunks" / "index.json")
    with pytest.raises(UsageError, match=r"index\.json: .*not a file"):
        adopt([tmp_path / "chunks" / "chunk-0-0.bin"], tmp_path / "pack", overwrite=True)
    (tmp_path / "chunks" / "index.json").unlink()
    with pytest.raises(UsageError, match=r"index\.json"):
        adopt([tmp_path / "chunks" / "chunk-0-0.bin"], tmp_path / "pack", overwrite=True)


def test_two_formats_at_once_are_refused(tmp_path: Path) -> None:
    pq.write_table(table(), tmp_path / "a.parquet", compression="none", use_dictionary=False)
    np.save(tmp_path / "b.npy", np.zeros((2, 3, 3, 3), np.uint8))
    with pytest.raises(UsageError, match="one format at a time"):
        adopt([tmp_path / "a.parquet", tmp_path / "b.npy"], tmp_path / "pack")
