"""What only LMDB has: transactions, a map that can be too small, and a library that keeps files apart."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import lmdb as lmdb_library
import pytest
from container_records import picture, spec_of

from packer.containers import lmdb
from packer.errors import DamagedPack, StorageError
from packer.files.lmdb_values import open_lmdb
from packer.model.annotation import Annotation, Record


@pytest.fixture
def records() -> list[Record]:
    pixels = [picture(i, 10, 10).tobytes() for i in range(400)]
    return [Record(f"{i:08d}", p, "raw", 10, 10, 3, "uint8", Annotation(label=1), b"x") for i, p in enumerate(pixels)]


def write(path: Path, records: list[Record]) -> dict[str, int]:
    """Write the records; the environment's figures afterwards."""
    writer = lmdb.LmdbWriter(str(path), spec_of("raw", records))
    for record in records:
        writer.write(record)
    writer.close()
    with lmdb_library.open(str(path), subdir=False, readonly=True, lock=False) as env:
        return dict(env.info()) | env.stat()


def test_several_transactions(records: list[Record], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lmdb, "_TRANSACTION_BYTES", 20_000)
    figures = write(tmp_path / "shard", records)
    assert figures["last_txnid"] > 5 and figures["entries"] == 800
    found = list(lmdb.CONTAINER.scan(str(tmp_path / "shard")))
    shard = (tmp_path / "shard").read_bytes()
    assert [(key, shard[a : a + n]) for key, a, n, *_ in found] == [(r.key, r.data) for r in records]


def test_the_map_grows_and_no_record_is_lost(
    records: list[Record], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lmdb, "_TRANSACTION_BYTES", 20_000)
    monkeypatch.setattr(lmdb, "_MAP_BYTES", 16384)
    figures = write(tmp_path / "small", records)
    assert figures["entries"] == 800
    found = list(lmdb.CONTAINER.scan(str(tmp_path / "small")))
    shard = (tmp_path / "small").read_bytes()
    assert [(key, shard[a : a + n]) for key, a, n, *_ in found] == [(r.key, r.data) for r in records]


def test_what_the_system_does_not_read_is_not_called_damaged(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="cannot read: Is a directory"):  # the first error of LMDB itself to be had
        open_lmdb(str(tmp_path), readonly=True, create=False)


def test_the_file_does_not_depend_on_the_plan(records: list[Record], tmp_path: Path) -> None:
    files = []
    for planned in (1, 1 << 30):
        path = tmp_path / str(planned)
        spec = replace(spec_of("raw", records), planned_records=planned, planned_bytes=planned)
        writer = lmdb.CONTAINER.create(str(path), spec)
        for record in records:
            writer.write(record)
        writer.close()
        files.append(path.read_bytes())
    assert files[0] == files[1]


def test_keys_must_grow(records: list[Record], tmp_path: Path) -> None:
    writer = lmdb.LmdbWriter(str(tmp_path / "shard"), spec_of("raw", records))
    writer.write(records[1])
    with pytest.raises(ValueError, match="keys must increase, got '00000000'"):
        writer.write(records[0])


def test_scan_while_open_elsewhere_is_an_error_and_no_crash(records: list[Record], tmp_path: Path) -> None:
    path = str(tmp_path / "shard")
    write(tmp_path / "shard", records)
    with lmdb_library.open(path, subdir=False, readonly=True, lock=False), pytest.raises(DamagedPack):
        list(lmdb.CONTAINER.scan(path))
    assert len(list(lmdb.CONTAINER.scan(path))) == 400  # and it left nothing open


def test_scan_given_up_half_way_closes_the_file(records: list[Record], tmp_path: Path) -> None:
    path = str(tmp_path / "shard")
    write(tmp_path / "shard", records)
    half = lmdb.CONTAINER.scan(path)
    next(half)
    half.close()  # type: ignore[attr-defined]
    assert len(list(lmdb.CONTAINER.scan(path))) == 400
