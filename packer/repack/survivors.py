"""What earlier versions of a pack keep when deleted records are erased: their rows of the records that the newest has.

Records are the same if key, checksums, sizes and the digest of the source file are; where the newest version has one in
another container, the row gets its place there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from packer.format.index import DTYPES, ENCODINGS, batch_of, dictionary_column
from packer.format.manifest import Manifest, ShardEntry
from packer.format.verify_records import texts
from packer.model.annotation import ENCODINGS as PART_ENCODINGS
from packer.model.annotation import IMAGE, Int64, column_of, names_in
from packer.model.annotation_columns import column
from packer.repack.index_columns import select_rows, with_column

Identity = tuple[Any, ...]
Place = tuple[int, int]
"""Number of a shard of the newest version, and a row of its index."""


@dataclass(frozen=True, slots=True)
class Kept:
    """What is left of a shard of an earlier version, or of several whose records are in one container now."""

    number: int
    """Of the shard in the newest version that has the container."""
    entry: ShardEntry | None
    """The shard as it was, if it stays so."""
    old: list[int] = field(default_factory=list)
    """The numbers that its shards had in the earlier version."""
    rows: list[tuple[Any, Int64, Int64]] = field(default_factory=list)
    """Index, rows of it, and the rows of the newest index that are the same records."""


def identities(table: Any, rows: Int64 | None = None) -> list[Identity]:
    """Return what tells the records of an index from all others, of these rows."""
    rows = np.arange(len(table)) if rows is None else rows
    names = [column_of(part, what) for part in (IMAGE, *names_in(table.column_names)) for what in ("size", "crc32c")]
    numbers = (np.asarray(column(table, name))[rows].tolist() for name in names)
    keys: Any = texts(column(table, "key"))
    sources: Any = column(table, "source_xxh3")
    chosen = rows.tolist()
    return list(zip((keys[row] for row in chosen), (bytes(sources[row]) for row in chosen), *numbers, strict=True))


class Survivors:
    """Where the newest version of a pack has the records of earlier ones.

    Args:
        newest: The newest version.
        table_of: Returns the index of one of its shards.
        earlier: The earlier versions, and what returns the index of a shard of each.
    """

    def __init__(
        self,
        newest: Manifest,
        table_of: Callable[[int], Any],
        earlier: Iterable[tuple[Manifest, Callable[[int], Any]]],
    ) -> None:
        self._newest, self._table_of = newest, table_of
        self._numbers = {shard.container.name: number for number, shard in enumerate(newest.shards)}
        self._places: dict[Identity, list[Place]] = {}
        """Several if a pack was merged with itself."""
        seen = set[str]()
        for manifest, its_table in earlier:
            for number, shard in enumerate(manifest.shards):
                if shard.container.name not in self._numbers and shard.index.sha256 not in seen:
                    seen.add(shard.index.sha256)
                    self._places.update({identity: [] for identity in identities(its_table(number))})
        self._find()

    def _find(self) -> None:
        """Look for all records at once, in one index after another."""
        if not self._places:
            return
        wanted = np.unique(np.array([identity[3] for identity in self._places], np.int64))
        for number in range(len(self._newest.shards)):
            table = self._table_of(number)
            rows = np.flatnonzero(np.isin(np.asarray(column(table, "crc32c")), wanted))
            for row, identity in zip(rows.tolist(), identities(table, rows), strict=True):
                if (places := self._places.get(identity)) is not None:
                    places.append((number, row))

    def places(self, table: Any, taken: Counter[Identity]) -> list[Place | None]:
        """Return where the newest version has each record of an index whose container it does not have.

        Args:
            table: The index.
            taken: How many records of the version have taken a place already; changed.
        """
        found: list[Place | None] = []
        for identity in identities(table):
            places, number = self._places[identity], taken[identity]
            taken[identity] += 1
            found.append(places[number] if number < len(places) else None)
        return found

    def of_version(self, manifest: Manifest, table_of: Callable[[int], Any]) -> list[Kept]:
        """Return what is left of an earlier version, in the order of the newest one.

        Args:
            manifest: The version.
            table_of: Returns the index of one of its shards.
        """
        found: dict[int, Kept] = {}
        taken = Counter[Identity]()
        for old, shard in enumerate(manifest.shards):
            if (number := self._numbers.get(shard.container.name)) is not None:
                found[number] = Kept(number, shard, [old])
                continue
            table = table_of(old)
            for number, rows, places in _grouped(self.places(table, taken)):
                one = found.setdefault(number, Kept(number, None))
                one.old.append(old)
                one.rows.append((table, rows, places))
        return [found[number] for number in sorted(found)]

    def batch(self, kept: Kept) -> Any:
        """Return the new index of a shard of an earlier version, with the places that the newest version has."""
        newest = self._table_of(kept.number)
        made = [_moved(table, rows, newest, places) for table, rows, places in kept.rows]
        order = np.argsort(np.concatenate([places for _, _, places in kept.rows]), kind="stable")
        return made[0] if len(made) == 1 else select_rows(_joined(made), order)


def _grouped(places: Sequence[Place | None]) -> Iterator[tuple[int, Int64, Int64]]:
    """Yield the shard of the newest version, the rows that are there, and their rows there."""
    groups: dict[int, list[tuple[int, int]]] = {}
    for row, place in enumerate(places):
        if place is not None:
            groups.setdefault(place[0], []).append((row, place[1]))
    for number, pairs in groups.items():
        rows, others = np.array(pairs, np.int64).T
        yield number, rows, others


def _moved(table: Any, rows: Int64, newest: Any, places: Int64) -> Any:
    """Return rows of an index as a record batch, with the places of other rows of the newest index."""
    (batch,) = table.to_batches()
    batch = select_rows(batch, rows)
    for part in (IMAGE, *names_in(table.column_names)):
        name = column_of(part, "offset")
        batch = with_column(batch, name, pa.array(np.asarray(column(newest, name))[places]))
    return batch


def _joined(batches: Sequence[Any]) -> Any:
    """Return several batches of indexes of one pack as one."""
    names = list(dict.fromkeys(name for batch in batches for name in batch.schema.names))
    codes: Mapping[str, tuple[str, ...]] = {"dtype": DTYPES, "encoding": ENCODINGS}
    tables = []
    for batch in batches:
        table = pa.Table.from_batches([batch])
        for name in names:
            known = codes.get(name, PART_ENCODINGS if name.endswith("_encoding") else None)
            if known is not None:
                values = dictionary_column(np.asarray(column(table, name)), known)
                table = table.set_column(table.column_names.index(name), name, values)
        tables.append(table)
    return batch_of("", pa.concat_tables(tables, promote_options="default"))
