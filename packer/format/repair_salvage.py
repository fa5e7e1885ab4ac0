"""The records of a damaged shard that something vouches for.

An intact index vouches for each image whose checksum matches. An intact container vouches for all that it holds. Where
both are damaged, a record counts only if its image matches the checksum in its row, and its annotation stands in the
container exactly as it does in that row; a frame of TFRecord also vouches for itself. A format's own library sees
only files that are intact.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from packer.containers import open_container
from packer.containers.annotation import annotation_json, path_text, record_from_json
from packer.errors import DamagedPack, PackerError
from packer.format.index import read_index
from packer.format.repair_report import LostRecord
from packer.format.verify_records import Window, record_problems
from packer.format.verify_rows import Rows
from packer.system import READ_FLAGS, read_at
from packer.types import Record

BLOCK_BYTES = 4096
LARGEST_ANNOTATION = 1 << 26


@dataclass(frozen=True, slots=True)
class Shard:
    """A shard as it was found."""

    container: str
    """``--format``."""
    path: str
    index: str
    container_intact: bool
    index_intact: bool
    records: int | None
    """None where nobody knows."""

    @property
    def name(self) -> str:
        """Of the container's file."""
        return os.path.basename(self.path)


@dataclass(slots=True)
class Saved:
    """What came of a shard; complete when `records` is used up."""

    records: Iterator[tuple[Record, bytes | None]]
    """Each with its annotation as the container has it, where that was read."""
    lost: list[LostRecord] = field(default_factory=list)


def salvage(shard: Shard, classes: tuple[str, ...] | None) -> Saved:
    """The records of a shard, in key order; `classes` where they are known."""
    saved = Saved(iter(()))
    if shard.index_intact:
        saved.records = _by_index(shard, saved.lost)
    elif shard.container_intact:
        saved.records = _by_container(shard)
    else:
        saved.records = _by_agreement(shard, classes, saved.lost)
    return saved


def _by_index(shard: Shard, lost: list[LostRecord]) -> Iterator[tuple[Record, None]]:
    table = read_index(shard.index)
    rows = Rows(table, shard.index)
    if not os.path.isfile(shard.path):
        lost += [_lost(shard, rows, row) for row in range(len(rows))]
        return
    with Window(shard.path) as window:
        for row, problem in enumerate(record_problems(shard.path, table)):
            if problem is None:
                data = bytes(window.bytes(rows.number("offset", row), rows.number("size", row)))
                yield rows.record(row, data), None
            else:
                lost.append(_lost(shard, rows, row))


def _by_container(shard: Shard) -> Iterator[tuple[Record, bytes]]:
    container = open_container(shard.container)
    places = list(container.locate(shard.path))  # used up: LMDB opens a file once at a time
    with Window(shard.path) as window:
        for (key, offset, size), (_, text) in zip(places, container.annotations(shard.path), strict=True):
            try:
                record = record_from_json(text, bytes(window.bytes(offset, size)))
            except ValueError as error:
                raise DamagedPack(shard.path, f"record {key}: {error}") from error
            yield record, text


def _by_agreement(
    shard: Shard, classes: tuple[str, ...] | None, lost: list[LostRecord]
) -> Iterator[tuple[Record, bytes | None]]:
    data = readable_bytes(shard.path)
    found: dict[str, tuple[Record, bytes]] = {}
    if shard.container == "tfrecord":
        from packer.containers.tfrecord_frames import intact_records

        found.update((record.key, (record, text)) for record, text in intact_records(memoryview(data)))
    expected = 0
    missing: list[LostRecord] = []
    with suppress(PackerError):
        table = read_index(shard.index)
        rows = Rows(table, shard.index)
        expected = len(rows)
        for row, problem in enumerate(record_problems(shard.path, table)) if data else ():
            pair = _agreed(data, rows, row, classes) if problem is None else None
            if pair is not None:
                found.setdefault(pair[0].key, pair)
        with suppress(ValueError):
            missing = [_lost(shard, rows, row) for row in range(len(rows)) if rows.key(row) not in found]
    total = expected if shard.records is None else shard.records
    if len(found) + len(missing) == total:
        lost += missing
    elif total > len(found):
        lost.append(LostRecord(shard.name, None, None, total - len(found)))
    yield from (found[key] for key in sorted(found))


def _agreed(data: bytearray, rows: Rows, row: int, classes: tuple[str, ...] | None) -> tuple[Record, bytes] | None:
    """The record of a row whose image matches its checksum, if the container has the same annotation."""
    try:
        offset, size = rows.number("offset", row), rows.number("size", row)
        record = rows.record(row, bytes(data[offset : offset + size]))
        plain = annotation_json(record, ())
        text = _annotation_at(data, record.key, len(plain))
        if text is None or annotation_json(record_from_json(text, b""), ()) != plain:
            return None
        if classes is not None and annotation_json(record, classes).encode("ascii") != text:
            return None
    except (PackerError, ValueError, IndexError):
        return None
    return record, text


def _annotation_at(data: bytearray, key: str, about: int) -> bytes | None:
    """The annotation of a key, as it stands somewhere in a container."""
    start = data.find(b'{"key": "%s", "path": ' % key.encode("ascii"))
    if start < 0:
        return None
    for size in (2 * about + 4096, LARGEST_ANNOTATION):
        text = bytes(data[start : start + size]).decode("latin-1")
        with suppress(ValueError, RecursionError):
            _, end = json.JSONDecoder().raw_decode(text)
            return text[:end].encode("latin-1")
    return None


def readable_bytes(path: str) -> bytearray:
    """The bytes of a file, zeros where the disk does not give them; nothing where there is no file."""
    if not os.path.isfile(path):
        return bytearray()
    descriptor = os.open(path, READ_FLAGS)
    try:
        data = bytearray(os.fstat(descriptor).st_size)
        position, step = 0, 1 << 20
        while position < len(data):
            try:
                part = read_at(descriptor, min(step, len(data) - position), position)
            except OSError:
                position, step = position + (step if step == BLOCK_BYTES else 0), BLOCK_BYTES
            else:
                if not part:  # it became shorter
                    break
                data[position : position + len(part)] = part
                position += len(part)
    finally:
        os.close(descriptor)
    return data


def _lost(shard: Shard, rows: Rows, row: int) -> LostRecord:
    return LostRecord(shard.name, rows.key(row), path_text(rows.path(row)))


def names_of(texts: Any) -> Iterator[tuple[int, str]]:
    """(id, name) of each class that annotations name."""
    from packer.containers.annotation import class_names

    for text in texts:
        yield from class_names(text).items()
