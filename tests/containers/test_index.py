"""The index: what goes in comes out, mapped without a copy, and a wrong file is one clear error."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from hashlib import sha256
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from container_records import ANNOTATIONS, IMAGES, assert_same_annotation, image_record, records_of
from crc32c import crc32c

from packer.containers.container import Places
from packer.errors import DamagedPack, StorageError
from packer.format import index
from packer.format.index import (
    DTYPES,
    ENCODINGS,
    SCHEMA,
    IndexBuilder,
    read_index,
    schema_with,
)
from packer.format.manifest import IndexEntry
from packer.model.annotation import Annotation, Record
from packer.model.annotation_columns import Annotations, Ragged, annotation_of, column, present


def places_of(records: list[Record]) -> Places:
    return Places.of([1000 * i + 7 for i in range(len(records))], [len(r.data) for r in records])


def write_index(path: Path, records: list[Record]) -> pa.Table:
    builder = IndexBuilder()
    for record in records:
        assert builder.add(record) == record.crc32c()
    assert len(builder) == len(records)
    entry = builder.write(path, places_of(records))
    data = path.read_bytes()
    assert entry == IndexEntry(path.name, len(data), sha256(data).hexdigest(), crc32c(data))
    return read_index(path)


@pytest.fixture
def records() -> list[Record]:
    return [image_record(kind, i, a) for kind in IMAGES for i, a in enumerate(ANNOTATIONS.values())]


def test_round_trip(records: list[Record], tmp_path: Path) -> None:
    table = write_index(tmp_path / "i", records)
    assert table.schema.equals(schema_with(["obb"])) and table.num_rows == len(records)
    plain = [record for record in records if record.annotation.obb is None]
    assert write_index(tmp_path / "plain", plain).schema.equals(SCHEMA, check_metadata=True)
    annotations = Annotations(table)
    assert len(annotations) == len(records)
    for i, record in enumerate(records):
        assert_same_annotation(annotations[i], record.annotation)
        assert_same_annotation(annotation_of(table, i), record.annotation)
        row = {name: table.column(name)[i].as_py() for name in ("key", "path", "dtype", "encoding", "crc32c")}
        assert row["key"] == record.key and row["path"] == record.path
        assert (row["dtype"], row["encoding"], row["crc32c"]) == (
            record.dtype,
            record.encoding,
            record.crc32c(),
        )
        assert tuple(table.column(n)[i].as_py() for n in ("height", "width", "channels")) == record.shape
    with pytest.raises(IndexError):
        annotations[len(records)]
    assert_same_annotation(annotations[-1], records[-1].annotation)


def test_columns(records: list[Record], tmp_path: Path) -> None:
    table = write_index(tmp_path / "i", records)
    labels = [-1 if r.annotation.label is None else r.annotation.label for r in records]
    assert column(table, "label").tolist() == labels  # type: ignore[union-attr]
    assert table.column("label").to_pylist() == [r.annotation.label for r in records]
    assert column(table, "offset").tolist() == places_of(records).offsets.tolist()  # type: ignore[union-attr]
    assert [ENCODINGS[c] for c in column(table, "encoding")] == [r.encoding for r in records]
    assert [DTYPES[c] for c in column(table, "dtype")] == [r.dtype for r in records]
    assert [p.tobytes() for p in column(table, "path")] == [r.path for r in records]
    for name in ("boxes", "box_labels", "landmarks", "polygons", "keypoints", "obb"):
        rows = column(table, name)
        assert isinstance(rows, Ragged)
        for row, record in zip(rows, records, strict=True):
            value = getattr(record.annotation, name)
            assert len(row) == (0 if value is None else len(value))
        expected = [getattr(r.annotation, name) is not None for r in records]
        assert present(table, name).tolist() == expected
    assert present(table, "key").all()


def test_columns_are_views_of_the_file(records: list[Record], tmp_path: Path) -> None:
    table = write_index(tmp_path / "i", records)
    for name in SCHEMA.names:
        values = column(table, name)
        while isinstance(values, Ragged):
            values = values.values
        assert not values.flags.owndata and not values.flags.writeable, name


@pytest.mark.parametrize("chunk", [1, 3, 7, 100])
def test_rows_across_chunks(chunk: int, records: list[Record], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = tmp_path / "whole"
    write_index(whole, records)
    monkeypatch.setattr(index, "_ROWS_A_CHUNK", chunk)
    table = write_index(tmp_path / "parts", records)
    for i, record in enumerate(records):
        assert_same_annotation(annotation_of(table, i), record.annotation)
    assert (tmp_path / "parts").read_bytes() == whole.read_bytes()


_WRITE = """
import sys
from container_records import *
from packer.containers.container import Places
from packer.format.index import IndexBuilder
builder = IndexBuilder()
records = records_of("mixed", ANNOTATIONS.values())
for r in records: builder.add(r)
builder.write(sys.argv[1], Places.of(list(range(len(records))), [len(r.data) for r in records]))
assert "torch" not in sys.modules and "lmdb" not in sys.modules
"""


def test_same_bytes_in_another_process(tmp_path: Path) -> None:
    for number in (1, 2):
        env = {**os.environ, "PYTHONHASHSEED": str(number)}
        env["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), *sys.path])
        subprocess.run([sys.executable, "-c", _WRITE, str(tmp_path / str(number))], check=True, env=env)
    assert (tmp_path / "1").read_bytes() == (tmp_path / "2").read_bytes()


def test_no_rows(tmp_path: Path) -> None:
    table = write_index(tmp_path / "i", [])
    assert table.num_rows == 0
    assert [len(column(table, name)) for name in SCHEMA.names] == [0] * len(SCHEMA.names)


def test_no_rows_are_as_in_the_first_version(tmp_path: Path) -> None:
    table = write_index(tmp_path / "f", [])
    assert table.schema.names == SCHEMA.names and table.schema.metadata == SCHEMA.metadata


def test_path_of_any_bytes(tmp_path: Path) -> None:
    records = records_of("raw", [Annotation()])
    path = os.fsdecode(os.fsencode(tmp_path) + b"/\xff")
    assert write_index(Path(path), records).num_rows == 1


def test_wrong_places_are_refused(tmp_path: Path) -> None:
    records = records_of("raw", [Annotation(label=1)] * 3)
    offsets, sizes = (numbers.tolist() for numbers in places_of(records)[:2])
    wrong = {
        "has 2 records, but 3 were": (offsets[:2], sizes[:2]),
        "has 4 records, but 3 were": ([*offsets, 0], [*sizes, 1]),
        "record 2 has 5 bytes, but 144 were": (offsets, [*sizes[:2], 5]),
    }
    for problem, places in wrong.items():
        builder = IndexBuilder()
        for record in records:
            builder.add(record)
        with pytest.raises(DamagedPack, match=problem):
            builder.write(tmp_path / "i", Places.of(*places))
        assert not (tmp_path / "i").exists()


def test_an_existing_file_is_kept(tmp_path: Path) -> None:
    (tmp_path / "there").write_bytes(b"mine")
    with pytest.raises(StorageError, match="there"):
        IndexBuilder().write(tmp_path / "there", Places.of([], []))
    assert (tmp_path / "there").read_bytes() == b"mine"


def test_wrong_files(records: list[Record], tmp_path: Path) -> None:
    path = tmp_path / "i"
    with pytest.raises(DamagedPack, match="missing"):
        read_index(path)
    write_index(path, records)
    whole = path.read_bytes()
    other = pa.table({"key": ["a"]})
    with pa.OSFile(str(tmp_path / "other"), "wb") as sink, pa.ipc.new_file(sink, other.schema) as writer:
        writer.write_table(other)
    cuts = [whole[:n] for n in (*range(0, 40), *range(40, len(whole), 97), len(whole) - 1)]
    for content in [*cuts, b"ARROW1\0\0" + b"\0" * 100, (tmp_path / "other").read_bytes(), b"x" * 5000]:
        path.write_bytes(content)
        with pytest.raises(DamagedPack, match=str(path)):
            read_index(path)


def test_altered_file_never_crashes(tmp_path: Path) -> None:
    path = tmp_path / "i"
    write_index(path, records_of("raw", list(ANNOTATIONS.values())))
    whole = path.read_bytes()
    chosen = random.Random(0)
    for _ in range(1000):
        altered = bytearray(whole)
        altered[chosen.randrange(len(altered))] ^= 1 << chosen.randrange(8)
        path.write_bytes(altered)
        try:
            table = read_index(path)
            annotations = Annotations(table)
            for i in range(min(len(annotations), 20)):
                _ = annotations[i]
            for name in SCHEMA.names:
                _ = list(column(table, name)[:20])
        except DamagedPack:
            continue


def test_opening_reads_no_row(tmp_path: Path) -> None:
    record = image_record("raw", 0, Annotation(label=1, landmarks=np.zeros((5, 2), np.float32)))
    builder = IndexBuilder()
    for i in range(30_000):
        builder.add(Record(f"{i:08d}", b"x", "raw", 1, 1, 1, "uint8", record.annotation, record.path))
    builder.write(tmp_path / "i", Places.of(list(range(30_000)), [1] * 30_000))
    before = pa.total_allocated_bytes()
    read_index(tmp_path / "i")
    started = time.thread_time()
    table = read_index(tmp_path / "i")
    assert time.thread_time() - started < 0.5  # 0.3 ms; reading rows would take seconds
    assert pa.total_allocated_bytes() - before < 100_000
    assert np.asarray(column(table, "landmarks")).shape == (30_000, 5, 2)
