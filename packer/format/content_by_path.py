"""The digest of what a pack holds in the order of its paths: `packer hash --by-path`.

It is the same for the same records whatever their keys, their order, their shards and the ids of their classes, so that
a pack that has grown equals one that was built at once, and a merged pack one that was built of all sources. Nothing
counts that no record has: a class, a tag, a field or a part. docs/formats.md specifies it, byte for byte.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from crc32c import crc32c
from numpy.typing import NDArray

from packer.format.checksums import crc32c_after
from packer.format.indexes import Indexes, joined_column
from packer.format.manifest import Manifest
from packer.format.pack import Pack
from packer.model.annotation import IMAGE, MISSING, Int64, Progress, column_of, key_of
from packer.model.annotation_columns import Ragged, present
from packer.model.fields import CLASS_IDS, FIELD_NAMES

VERSION = 1
FACTS = ("size", "height", "width", "channels", "dtype", "encoding")
PART_FACTS = ("size", "encoding")
ROWS_AT_ONCE = 1 << 16
RECORDS_A_REPORT = 256
Digests = NDArray[np.uint8]
"""SHA-256 of each record, (n, 32)."""


def content_digest_by_path(indexes: Indexes, manifest: Manifest) -> str:
    """Return the digest of the content of a pack by the paths of its records, as its indexes describe it.

    Args:
        indexes: The indexes of the pack.
        manifest: Its manifest.

    Raises:
        DamagedPack: An index is missing or was altered.
    """
    return _Records(indexes, manifest).hexdigest()


def deep_digest_by_path(pack: Pack, progress: Progress | None = None) -> str:
    """Return the digest of the content of a pack by the paths of its records, with the bytes of all images.

    Args:
        pack: The pack.
        progress: Receives the records that were read, in the order of the pack.

    Raises:
        DamagedPack: A record does not match its checksum, or an index was altered.
    """
    progress = progress or Progress()
    found = {name: np.zeros((len(pack), 32), np.uint8) for name in (IMAGE, *pack.manifest.parts)}
    progress.stage("reading", len(pack), "records")
    for number in range(len(pack)):
        for name, digests in found.items():
            data = pack.record(number) if name == IMAGE else pack.reader.part(number, name)
            if data is not None:
                digests[number] = np.frombuffer(hashlib.sha256(data).digest(), np.uint8)
        if number % RECORDS_A_REPORT == 0:
            progress.advance(min(RECORDS_A_REPORT, len(pack) - number))
    return _Records(pack.reader.indexes, pack.manifest, found).hexdigest()


class _Records:
    """The columns of all records; each is made when it is asked for.

    Args:
        indexes: The indexes of the pack.
        manifest: Its manifest.
        deep: Digests of the images and parts. None: their checksums in the indexes stand for them.
    """

    def __init__(self, indexes: Indexes, manifest: Manifest, deep: Mapping[str, Digests] | None = None) -> None:
        self._indexes, self._deep = indexes, deep
        parts = [name for name in sorted(manifest.parts) if (self._column(column_of(name, "size")) >= 0).any()]
        self._there = {name: self._presence(name) for name in FIELD_NAMES}
        used = np.concatenate([np.unique(_flat(self._column(name))) for name in CLASS_IDS])
        classes = sorted({manifest.classes[number] for number in used[used >= 0].tolist()})
        ranks = {name: rank for rank, name in enumerate(classes)}
        self._class_ids = np.array([*(ranks.get(name, -1) for name in manifest.classes), -1])
        self._all_tags, tags = len(manifest.tags), manifest.tags
        self._tags = sorted(self._tags_in_use(), key=tags.__getitem__)
        self._columns: dict[str, Callable[[], Any]] = {
            "path": partial(self._column, "path"),
            **{column_of(name, self._content): partial(self._content_of, name) for name in (IMAGE, *parts)},
            **{name: partial(self._column, name) for name in FACTS},
            **{
                column_of(name, what): partial(self._column, column_of(name, what))
                for name in parts for what in PART_FACTS
            },
            **{name: partial(self._field, name) for name in FIELD_NAMES if self._there[name].any()},
        }  # fmt: skip
        self._facts: dict[str, Any] = {
            "packer.content_by_path": VERSION,
            "records": len(self._there[FIELD_NAMES[0]]),
            "classes": classes,
            "tags": [tags[number] for number in self._tags],
            "parts": {name: manifest.parts[name] for name in parts},
            "masks": {name: asdict(facts) for name, facts in manifest.masks.items() if name in parts},
            "pixels": {name: asdict(facts) for name, facts in manifest.pixels.items() if name in parts},
        }

    @property
    def _content(self) -> str:
        return "crc32c" if self._deep is None else "sha256"

    def hexdigest(self) -> str:
        """Return the digest of everything."""
        order = _sorted_rows((level for name in self._columns for level in self._levels(name)), self._facts["records"])
        columns = {name: _digest(self._levels(name), order) for name in self._columns}
        text = json.dumps({**self._facts, "columns": columns}, sort_keys=True)
        return hashlib.sha256(text.encode("ascii")).hexdigest()

    def _levels(self, name: str) -> Iterator[Any]:
        """Yield what a column says of each record, as arrays of bytes (n,): which have a value, lengths, values."""
        values = self._columns[name]()
        bounds: Int64 = np.arange(len(values) + 1)
        there = self._there.get(name, np.zeros(0, np.bool_))
        yield _rows_of_bytes(there.view(np.uint8), bounds if len(there) else np.zeros_like(bounds))
        while isinstance(values, Ragged):
            yield _rows_of_bytes(values.lengths.astype(np.int64), bounds)
            bounds = (np.asarray(values.offsets, np.int64) - int(values.offsets[0]))[bounds]
            values = values.flat()
        yield _rows_of_bytes(values, bounds)

    def _column(self, name: str) -> Any:
        return joined_column([*self._indexes.parts(name)])

    def _presence(self, name: str) -> NDArray[np.bool_]:
        return np.concatenate([present(self._indexes[number], name) for number in range(len(self._indexes))])

    def _content_of(self, part: str) -> Any:
        """Return what stands for the bytes of an image or part of each record; of checksums it takes the key out."""
        if self._deep is not None:
            return self._deep[part]
        keys, sizes = self._column("key"), self._column(column_of(part, "size"))
        text, bounds, rest = _flat(keys).tobytes(), (keys.offsets - keys.offsets[0]).tolist(), key_of(b"", part)
        begins = np.fromiter((crc32c(rest, crc32c(text[a:b])) for a, b in pairwise(bounds)), np.uint32, len(sizes))
        found = crc32c_after(begins, self._column(column_of(part, "crc32c")), np.maximum(sizes, 0))
        return np.where(sizes == MISSING[1], np.uint32(0), found)

    def _field(self, name: str) -> Any:
        values = self._column(name)
        if name in CLASS_IDS:
            flat = _flat(values)
            return _with_flat(values, self._class_ids[flat].astype(flat.dtype))
        if name != "tags":
            return values
        flags = _flat(values).reshape(-1, self._all_tags)[:, self._tags]
        ends = np.cumsum(np.where(values.lengths > 0, len(self._tags), 0))
        return Ragged(flags.ravel(), np.insert(ends, 0, 0))

    def _tags_in_use(self) -> list[int]:
        if not self._all_tags:
            return []
        used: list[int] = np.flatnonzero(_flat(self._column("tags")).reshape(-1, self._all_tags).any(axis=0)).tolist()
        return used


def _flat(values: Any) -> NDArray[Any]:
    return np.asarray(values.flat() if isinstance(values, Ragged) else values)


def _with_flat(values: Any, flat: NDArray[Any]) -> Any:
    return Ragged(flat, values.offsets - values.offsets[0]) if isinstance(values, Ragged) else flat


def _rows_of_bytes(items: NDArray[Any], bounds: Int64) -> Any:
    """Return the items from one bound to the next, as an Arrow array of their little-endian bytes, (n,)."""
    data = np.ascontiguousarray(items, items.dtype.newbyteorder("<"))
    size = data.nbytes // len(data) if len(data) else 0
    buffers = [None, pa.py_buffer(np.ascontiguousarray(bounds * size, np.int64)), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.large_binary(), len(bounds) - 1, buffers)


def _digest(levels: Iterable[Any], order: Int64) -> str:
    """Return the digest of a column with its rows in an order, as `packer.format.content` has it of all as they are."""
    parts = []
    for rows in levels:
        part = hashlib.sha256()
        for start in range(0, len(order), ROWS_AT_ONCE):
            found = rows.take(pa.array(order[start : start + ROWS_AT_ONCE]))
            _, bounds, data = found.buffers()
            part.update(memoryview(data)[: np.frombuffer(bounds, np.int64)[len(found)]])
        parts.append(part.digest())
    return hashlib.sha256(b"".join(parts)).hexdigest()


def _sorted_rows(levels: Iterable[Any], records: int) -> Int64:
    """Return the rows in the order of their bytes in the first level, those that agree there by the next, and so on."""
    tied: Int64 = np.arange(records)
    places: Int64 = np.zeros(records, np.int64)
    for rows in levels:
        ranks = np.asarray(pc.rank(rows.take(pa.array(tied)), tiebreaker="dense"))
        order = np.lexsort((ranks, places[tied]))
        tied, ranks, here = tied[order], ranks[order], np.arange(len(tied))
        before = places[tied]  # the first place of all rows that have agreed so far
        is_group = np.append(True, before[1:] != before[:-1])
        is_new = is_group | np.append(True, ranks[1:] != ranks[:-1])
        group, new = (np.maximum.accumulate(np.where(flags, here, 0)) for flags in (is_group, is_new))
        places[tied] = before + new - group
        tied = tied[~(is_new & np.append(is_new[1:], True))]
        if not len(tied):
            break
    return np.argsort(places, kind="stable")
