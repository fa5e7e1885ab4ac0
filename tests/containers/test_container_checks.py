"""What a scan notices of a file that was altered, and what the checksums must notice for it."""

from __future__ import annotations

import random
import zipfile
from pathlib import Path

import pytest
from container_records import ANNOTATIONS, records_of, write_shard
from crc32c import crc32c

from packer.containers import open_container
from packer.containers.container import EXTENSIONS
from packer.containers.stored_zip import StoredZip, _Written
from packer.errors import DamagedPack
from packer.format.index import ENCODINGS


def flips(whole: bytes, count: int) -> list[bytes]:
    chosen = random.Random(1)
    altered = []
    for _ in range(count):
        data = bytearray(whole)
        data[chosen.randrange(len(data))] ^= 1 << chosen.randrange(8)
        altered.append(bytes(data))
    return altered


def test_tfrecord_notices_every_flip(tmp_path: Path) -> None:
    path = tmp_path / "shard"
    write_shard("tfrecord", str(path), "raw", records_of("raw", ANNOTATIONS.values()))
    for altered in flips(path.read_bytes(), 500):
        path.write_bytes(altered)
        with pytest.raises(DamagedPack):
            list(open_container("tfrecord").scan(str(path)))


@pytest.mark.parametrize("container", ["hdf5", "webdataset", "parquet", "zarr", "n5", "recordio", "pth"])
def test_flip_gives_an_error_or_the_right_bytes_or_a_wrong_checksum(container: str, tmp_path: Path) -> None:
    path = tmp_path / "shard"
    records = records_of("png", ANNOTATIONS.values())
    write_shard(container, str(path), "png", records)
    for altered in flips(path.read_bytes(), 300):
        path.write_bytes(altered)
        try:
            found = list(open_container(container).scan(str(path)))
        except DamagedPack:
            continue
        for record, (key, offset, size, *_) in zip(records, found, strict=False):
            data = altered[offset : offset + size]
            if crc32c(data, crc32c(key.encode())) == record.crc32c():
                assert (key, data) == (record.key, record.data)


def test_every_encoding_has_an_extension() -> None:
    assert set(EXTENSIONS) == set(ENCODINGS)


@pytest.mark.parametrize(("size", "offset"), [(5, 3 << 30), (3 << 30, 7), (5 << 30, 5 << 30), (0x7FFFFFFF, 0x80000000)])
def test_the_directory_of_a_zip_holds_numbers_of_64_bits(tmp_path: Path, size: int, offset: int) -> None:
    written = StoredZip(str(tmp_path / "shard"))
    written._entries.append(_Written("dör".encode(), 0x800, offset, b"", size, 7))
    written.close()
    with zipfile.ZipFile(tmp_path / "shard") as file:
        (info,) = file.infolist()
    assert (info.filename, info.file_size, info.compress_size, info.header_offset) == ("dör", size, size, offset)
