"""What is RecordIO's own: the magic word in the data, the label vectors, files of other tools."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from container_records import ANNOTATIONS, image_record, records_of, spec_of, write_shard

from packer.containers import open_container, recordio
from packer.errors import DamagedPack, UsageError
from packer.model.annotation import Annotation, Record

MAGIC = struct.pack("<I", 0xCED7230A)
CONTAINER = recordio.CONTAINER


def frame(payload: bytes, label: float = 0, number: int = 0, floats: tuple[float, ...] = ()) -> bytes:
    """A record as MXNet 1.9.1 writes it (`recordio.pack`, `MXRecordIO.write`): compared with it by hand."""
    data = struct.pack(f"<IfQQ{len(floats)}f", len(floats), label, number, 0, *floats) + payload
    return MAGIC + struct.pack("<I", len(data)) + data + bytes(-len(data) % 4)


def aligned_magic(data: bytes) -> list[int]:
    return [at for at in range(0, len(data) - 3, 4) if data[at : at + 4] == MAGIC]


@pytest.mark.parametrize("places", [(0,), (48,), (5,), (4, 9), (4, 9, 14), (140,)])
def test_pixels_are_moved_off_the_magic_word(places: tuple[int, ...], tmp_path: Path) -> None:
    record = image_record("raw", 0, Annotation(label=1))
    data = bytearray(record.data)
    for at in places:
        data[at : at + 4] = MAGIC
    record = Record(record.key, bytes(data), "raw", 8, 6, 3, "uint8", record.annotation, record.path)
    path = tmp_path / "shard"
    (entry,) = write_shard("recordio", str(path), "raw", [record])
    whole = path.read_bytes()
    assert aligned_magic(whole) == [0]  # the frame's own
    assert whole[entry.offset : entry.offset + entry.size] == record.data


def test_pixels_with_the_magic_word_at_every_place_stay_in_one_piece(tmp_path: Path) -> None:
    record = image_record("raw", 0, Annotation(label=1))
    data = (MAGIC + b"x") * 28 + bytes(4)
    record = Record(record.key, data, "raw", 8, 6, 3, "uint8", record.annotation, record.path)
    path = tmp_path / "shard"
    (entry,) = write_shard("recordio", str(path), "raw", [record])
    assert path.read_bytes()[entry.offset : entry.offset + entry.size] == record.data


def test_image_files_with_the_magic_word_keep_their_bytes(tmp_path: Path) -> None:
    records = records_of("png", [Annotation(label=0)] * 3)
    data = records[1].data
    data = data[: len(data) - len(data) % 4] + MAGIC + b"\0" * 8
    records[1] = Record(records[1].key, data, "png", 8, 6, 3, "uint8", Annotation(label=0), b"x")
    path = tmp_path / "shard"
    entries = write_shard("recordio", str(path), "png", records)
    whole = path.read_bytes()
    assert whole[entries[1].offset : entries[1].offset + entries[1].size] == data
    assert CONTAINER.companion(str(path))[1].count(b"\n") == 3


def test_labels_are_those_of_im2rec(tmp_path: Path) -> None:
    names = ("label", "none", "boxes", "empty")
    records = [*records_of("png", [ANNOTATIONS[name] for name in names])]
    records.append(image_record("png", 4, Annotation(tags=np.array([0, 1, 1], np.uint8))))
    path = tmp_path / "shard"
    write_shard("recordio", str(path), "png", records)
    _, lines = CONTAINER.companion(str(path))
    whole, found = path.read_bytes(), []
    for line in lines.decode().splitlines():
        start = int(line.split("\t")[1]) + 8
        count, label, number, _ = struct.unpack_from("<IfQQ", whole, start)
        found.append((label, number, struct.unpack_from(f"<{count}f", whole, start + 24)))
    assert [f[:2] for f in found] == [(2, 0), (-1, 1), (-1, 2), (0, 3), (-1, 4)]
    assert [f[2] for f in found[:2]] == [(), ()]
    boxes = ANNOTATIONS["boxes"].boxes
    assert boxes is not None
    wanted = boxes / np.array([6, 8, 6, 8], np.float32)
    assert found[2][2] == (2, 5, 2, *wanted[0].tolist(), 0, *wanted[1].tolist())
    assert found[3][2] == (2, 5) and found[4][2] == (0, 1, 1)


def test_a_record_that_is_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records = records_of("raw", [Annotation()])
    writer = open_container("recordio").create(str(tmp_path / "shard"), spec_of("raw", records))
    monkeypatch.setattr(recordio, "MOST_BYTES", 300)
    with pytest.raises(UsageError, match=r"ant/1.jpg: takes \d+ bytes, but a record of RecordIO has at most 300 bytes"):
        writer.write(records[0])


# -- files of other tools


def scanned(path: Path, content: bytes) -> list[tuple[str, bytes]]:
    path.write_bytes(content)
    entries = list(CONTAINER.scan(str(path)))
    assert {entry.annotation for entry in entries} <= {None}
    return [(entry.key, content[entry.offset : entry.offset + entry.size]) for entry in entries]


def test_file_of_im2rec(tmp_path: Path) -> None:
    jpegs = [record.data for record in records_of("jpeg", [Annotation()] * 3)]
    content = frame(jpegs[0], 3, 7) + frame(jpegs[1], 0, 8, (2, 5, 1, 0, 0, 0.5, 1)) + frame(jpegs[2], 1, 9, (4, 5))
    assert scanned(tmp_path / "f", content) == [("7", jpegs[0]), ("8", jpegs[1]), ("9", jpegs[2])]


def test_file_of_insightface(tmp_path: Path) -> None:
    """Its first record has no image, but says where the records of images end; so have those of identities."""
    (jpeg,) = (record.data for record in records_of("jpeg", [Annotation()]))
    content = frame(b"", 0, 0, (2, 3)) + frame(jpeg, 5, 1) + frame(b"", 0, 2, (1, 2))
    assert scanned(tmp_path / "f", content) == [("1", jpeg)]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (frame(b"x" * 9) + MAGIC + struct.pack("<I", 1 << 29 | 4) + b"abcd", "record at byte 44 is split into parts"),
        (frame(b"x" * 9)[:-4], "record at byte 0 is truncated"),
        (frame(b"x" * 9) + b"\0" * 8, "no record at byte 44"),
        (frame(b"x" * 9) + MAGIC, "no record at byte 44"),
        (MAGIC + struct.pack("<I", 4) + b"abcd", "record at byte 0 cannot be read"),
        (MAGIC + struct.pack("<I", 24) + b"\xff" * 24, "a label vector of 4294967295 numbers"),
    ],
    ids=["split", "truncated", "zeros", "end", "short", "floats"],
)
def test_files_that_are_refused(content: bytes, problem: str, tmp_path: Path) -> None:
    with pytest.raises(DamagedPack, match=problem):
        scanned(tmp_path / "f", content)
