"""What is fuzzed of a pack: its manifest and its index, raw and as edits of sound ones.

An edit program is short: (place, value) after (place, value). Its results are nearly right, and have right digests,
so that they come past the first checks.
"""

from __future__ import annotations

import contextlib
import io
import json
import struct
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from packer.cli.info import facts, rows
from packer.errors import DamagedPack, StorageError, UsageError
from packer.format.columns import Annotations, column, present
from packer.format.index import SCHEMA, IndexBuilder, read_index
from packer.format.manifest import FileEntry, IndexEntry, Manifest, Rejected, ShardEntry, digest_of, parse_manifest
from packer.format.mmap import check_size
from packer.format.ragged import Ragged
from packer.types import Annotation, Record

RAW, RE_MADE, EDITED = 0, 1, 2


def _manifest() -> Manifest:
    shard = ShardEntry(2, FileEntry("a.lmdb", 4096, "0" * 64), IndexEntry("a.index.arrow", 900, "f" * 64, 7))
    return Manifest(
        container="lmdb", encoding="png", mode="rgb", dtype="uint8", shape=(4, 5, 3), classes=("cat", "é"),
        fields=("label", "boxes"), records=2, counts={"found": 3, "packed": 2, "rejected": 1, "skipped": 0},
        class_counts={"label": [1, 1]},
        options={"resize": None, "labels": ["voc"]}, shards=(shard,), rejected=(Rejected("x\udcff", "bad-image", "p"),),
        notes=("n",), packer="0.1.0", libraries={"numpy": "2"},
    )  # fmt: skip


MANIFEST = _manifest().to_json()
VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2, 3, 1 << 31, 1 << 62, 1 << 63, 1 << 64, 10**400, -(10**400), 1.0, 0.5, -0.0, 1e308,
    "", "a", ".", "..", "../a", "/etc/passwd", "a/b", "\0", "\udcff", "é", "uint8", "uint16", "packer", [], {}, [[]],
    [1, 2, 3], [0, 1, 1], ["1", "2", "3"], [1, 2], {"name": "a"}, [None], "9" * 5000, 1e16, {"digest": 1},
)  # fmt: skip
"""What an edit may put anywhere in a manifest."""


def one_manifest(data: bytes) -> None:
    """pack.json: raw bytes, bytes whose digest is made anew, or the edits of a sound one."""
    how, rest = data[0] % 3 if data else RAW, data[1:]
    if how == RAW:
        text = rest
    else:
        content = _json(rest) if how == RE_MADE else _edited(rest)
        if not isinstance(content, dict):
            return
        text = _with_digest(content)
    try:
        manifest = parse_manifest("pack.json", text)
    except (DamagedPack, UsageError):
        return
    assert manifest.to_json() == text
    assert all(line for line in rows(manifest))  # what `packer info` says of it
    json.dumps(facts("pack", manifest))
    for shard in manifest.shards:
        assert 0 <= shard.records < 1 << 48 and "/" not in shard.container.name + shard.index.name
        for file in (shard.container, shard.index):
            with contextlib.suppress(DamagedPack, StorageError):
                check_size("/no-such-pack/" + file.name, file.bytes)


def _json(text: bytes) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _with_digest(content: dict[str, Any]) -> bytes:
    content.pop("digest", None)
    try:
        whole = {**content, "digest": digest_of(content)}
        return (json.dumps(whole, indent=1, allow_nan=False) + "\n").encode("ascii")
    except (ValueError, RecursionError):  # a number that JSON has not: the reader does not come so far
        return b""


def _edited(program: bytes) -> Any:
    """The content after edits: each is the number of a place, and what is put there (255: taken away)."""
    content = json.loads(MANIFEST)
    for at in range(0, min(len(program), 16) - 1, 2):
        places: list[tuple[Any, Any]] = []
        _places(content, places)
        where, key = places[program[at] % len(places)]
        value = program[at + 1]
        if value == 255:
            del where[key]
        elif value == 254 and isinstance(where, dict):
            where["more"] = where.pop(key)
        elif value == 253 and isinstance(where, list):
            where.append(where[key])
        else:
            where[key] = json.loads(json.dumps(VALUES[value % len(VALUES)]))
        if not content:
            break
    return content


def _places(value: Any, places: list[tuple[Any, Any]]) -> None:
    for key in list(value) if isinstance(value, dict) else range(len(value)):
        places.append((value, key))
        if isinstance(value[key], (dict, list)):
            _places(value[key], places)


MANIFEST_SEEDS = [bytes([RAW]) + MANIFEST, bytes([RE_MADE]) + MANIFEST, b"\0{}"]
MANIFEST_SEEDS += [b'\0{"format": "packer", "version": 2, "digest": "", "x": 1e9}']
MANIFEST_SEEDS += [bytes([EDITED, i, j]) for i in range(0, 48, 5) for j in (0, 4, 20)]


def _records() -> list[Record]:
    rich = Annotation(
        label=1,
        boxes=np.array([[1, 2, 3, 4], [0, 0, 5, 5]], np.float32),
        box_labels=np.array([0, 1], np.int64),
        landmarks=np.ones((3, 2), np.float32),
        polygons=(np.ones((3, 2), np.float32), np.zeros((0, 2), np.float32)),
        keypoints=np.ones((2, 2, 3), np.float32),
        box_fields={"difficult": (0, 1)},
        extras={"who": "x"},
    )
    shared: dict[str, Any] = {"encoding": "png", "height": 4, "width": 5, "channels": 3, "dtype": "uint8"}
    return [
        Record(key=f"{i:08d}", data=b"x" * i, annotation=note, path=b"a\xff.p", source_xxh3=bytes([i] * 16), **shared)
        for i, note in enumerate((rich, Annotation(), rich, Annotation(label=0)))
    ]


def _index(records: list[Record], compression: str | None = None) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        builder = IndexBuilder(len(records))
        places = []
        for record in records:
            builder.add(record)
            places.append((record.key, 16 * len(places), len(record.data)))
        path = Path(folder, "a.index.arrow")
        builder.write(path, places)
        plain = path.read_bytes()
    if compression is None:
        return plain
    out = io.BytesIO()
    with pa.ipc.new_file(out, SCHEMA, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_batch(pa.ipc.open_file(plain).get_batch(0))
    return out.getvalue()


ONE = Record("0", b"", "raw", 1, 1, 1, "uint8", Annotation(), b"")
INDEXES = [_index(_records()), _index([ONE]), _index(_records(), "zstd"), _index([ONE], "lz4")]
NUMBERS = [0, 1, 2, 3, 4, 7, 8, 16, 127, 128, 255, 1 << 15, 1 << 16, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 40]
NUMBERS += [1 << 62, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, (1 << 64) - 8]
MOST_ALLOCATED = 1 << 20
EDIT = struct.Struct("<HBB")  # where in the file, how (width in bytes; from the end or not), which value


def one_index(data: bytes) -> None:
    """An index file, raw or edited, then all that is ever read out of it."""
    how, rest = data[0] if data else 0, data[1:]
    bytes_of_file = rest if how & 1 else _patched(bytearray(INDEXES[how >> 1 & 3]), rest)
    try:
        table = read_index("a.index.arrow", np.frombuffer(bytes_of_file, np.uint8))
        assert pa.total_allocated_bytes() < MOST_ALLOCATED
        for name in SCHEMA.names:
            values = column(table, name)
            assert len(values) == len(table)
            present(table, name)
            if isinstance(values, Ragged):
                _all_rows(values)
        notes = Annotations(table, "a.index.arrow")
    except DamagedPack:
        return
    assert len(notes) == len(table)
    for i in range(min(len(table), 8)):
        with contextlib.suppress(DamagedPack):
            notes[i]


def _all_rows(values: Ragged) -> None:
    for i in range(min(len(values), 8)):
        row = values[i]
        if isinstance(row, Ragged):
            _all_rows(row)


def _patched(file: bytearray, program: bytes) -> bytes:
    for where, how, value in EDIT.iter_unpack(program[: len(program) // 4 * 4][:64]):
        width = (1, 2, 4, 8)[how & 3]
        at = where % (len(file) - width) // width * width
        if how & 4:  # a number near the one that is there
            new = int.from_bytes(file[at : at + width], "little") + value - 128
        elif how & 8:
            new = NUMBERS[value % len(NUMBERS)]
        else:
            new = value
        file[at : at + width] = (new % (1 << 8 * width)).to_bytes(width, "little")
        if how & 16 and value < 8:  # a cut, or more
            file = file[: len(file) - 8 * value] or file
    return bytes(file)


INDEX_SEEDS = [b"\1" + file for file in INDEXES]
INDEX_SEEDS += [bytes([i & 6]) + EDIT.pack(16 * i, i % 16, i % 256) for i in range(0, 400, 3)]
INDEX_SEEDS = [seed for seed in INDEX_SEEDS if len(seed) <= 8192]
