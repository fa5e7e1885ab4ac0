"""Which records of a pack were deleted, and which of its files still hold them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from packer.format.indexes import Indexes, IndexFiles
from packer.format.manifest import Manifest
from packer.format.verify_records import texts
from packer.model.annotation import IMAGE, column_of, names_in
from packer.model.annotation_columns import column
from packer.repack.compact import Dead, Paths, dead_records
from packer.repack.survivors import Identity, Survivors

TableOf = Callable[[int], Any]


class History:
    """The versions of a pack, and their indexes.

    Args:
        pack: Its folder.
        newest: The newest version.
        earlier: The earlier ones, by number.
    """

    def __init__(self, pack: str, newest: Manifest, earlier: Mapping[int, Manifest]) -> None:
        self.pack, self.newest, self.earlier = pack, newest, dict(sorted(earlier.items()))
        self._tables: dict[str, TableOf] = {}
        self.numbers = {shard.container.name: number for number, shard in enumerate(newest.shards)}
        """Container -> the number of its shard in the newest version."""
        versions = (newest, *self.earlier.values())
        self.written = {s.container.name for its in versions for s in its.shards if s.container.name not in its.linked}
        """Containers of which a version names all that they hold (`Manifest.linked`)."""

    def table_of(self, manifest: Manifest) -> TableOf:
        """Return what returns the index of a shard of a version, verified."""
        found = self._tables.get(manifest.digest)
        if found is None:
            indexes = Indexes(IndexFiles(self.pack, manifest.shards, manifest))
            found = self._tables[manifest.digest] = indexes.__getitem__
        return found

    @property
    def tables(self) -> Iterator[tuple[int, Manifest, TableOf]]:
        """The earlier versions: number, manifest and what returns the indexes."""
        return ((number, manifest, self.table_of(manifest)) for number, manifest in self.earlier.items())

    def survivors(self) -> Survivors:
        """Return where the newest version has the records of the earlier ones."""
        return Survivors(self.newest, self.table_of(self.newest), (one[1:] for one in self.tables))


@dataclass
class Deleted:
    """What is to be erased."""

    shards: dict[int, Dead] = field(default_factory=dict)
    """By number of the shard of the newest version whose container holds it."""
    gone: dict[str, Dead] = field(default_factory=dict)
    """Containers that only earlier versions have, and what is in them that the newest version has nowhere."""
    versions: set[int] = field(default_factory=set)
    """Numbers of the earlier versions that have deleted records."""
    unknown: list[str] = field(default_factory=list)
    """Containers of other tools, elsewhere: whether they hold more than the pack names is not known."""

    @property
    def records(self) -> int:
        """How many records there are."""
        return sum(one.records for one in (*self.shards.values(), *self.gone.values()))

    @property
    def bytes(self) -> int:
        """How many bytes their images and parts have."""
        return sum(one.bytes for one in (*self.shards.values(), *self.gone.values()))

    @property
    def paths(self) -> Paths:
        """Of their source files."""
        return Paths().union(*(one.paths for one in (*self.shards.values(), *self.gone.values())))


def find_deleted(history: History) -> Deleted:
    """Return what the files of a pack hold besides the records of its newest version.

    Only containers are read that no version has as written for it (`Manifest.linked`): the index of such a version
    names all that they hold.
    """
    newest, found, table_of = history.newest, Deleted(), history.table_of(history.newest)
    dead = {number: _NoLonger(table_of(number)) for number in _changed(history)}
    for version, manifest, its_table in history.tables:
        for old, shard in enumerate(manifest.shards):
            number = history.numbers.get(shard.container.name, -1)
            if number in dead and dead[number].add(its_table(old)):
                found.versions.add(version)
    for number, shard in enumerate(newest.shards):
        where, name = newest.linked.get(shard.container.name), shard.container.name
        if not where and name not in history.written:
            path = newest.path_of(history.pack, name)
            its = dead_records(path, newest.container, table_of(number))
        elif number in dead:
            its = dead[number].dead
        else:
            found.unknown += [name] if where else []
            continue
        if its.records:
            found.shards[number] = its
    _find_gone(history, found)
    return found


def _changed(history: History) -> set[int]:
    """Return the shards of which an earlier version has another index."""
    shards = (shard for manifest in history.earlier.values() for shard in manifest.shards)
    found = ((history.numbers.get(shard.container.name), shard.index.sha256) for shard in shards)
    return {n for n, sha256 in found if n is not None and history.newest.shards[n].index.sha256 != sha256}


class _NoLonger:
    """Records of a container that earlier versions have and the newest has not."""

    def __init__(self, newest: Any = None) -> None:
        self._alive = np.zeros(0, np.int64) if newest is None else np.asarray(column(newest, "offset"))
        self._found: dict[int, tuple[int, bytes]] = {}

    def add(self, table: Any, rows: NDArray[np.int64] | None = None) -> int:
        """Add those of an index of an earlier version (`rows`, or all that the newest has not), and count them."""
        offsets: Any = np.asarray(column(table, "offset"))
        rows = np.flatnonzero(~np.isin(offsets, self._alive)) if rows is None else rows
        facts = zip(offsets[rows].tolist(), _sizes(table)[rows].tolist(), _paths(table, rows), strict=True)
        self._found.update({offset: (size, path) for offset, size, path in facts})
        return len(rows)

    @property
    def dead(self) -> Dead:
        """What there is."""
        sizes, paths = zip(*self._found.values(), strict=True) if self._found else ((), ())
        return Dead(len(self._found), sum(sizes), frozenset(paths))


def _find_gone(history: History, deleted: Deleted) -> None:
    """Find what containers that only earlier versions have hold, and the newest version has nowhere."""
    survivors, found = history.survivors(), dict[str, _NoLonger]()
    named: dict[str, tuple[Manifest, list[Any]]] = {}
    for number, manifest, table_of in history.tables:
        taken = Counter[Identity]()
        for old, shard in enumerate(manifest.shards):
            if (name := shard.container.name) not in history.numbers:
                table = table_of(old)
                places = survivors.places(table, taken)
                rows = np.array([row for row, place in enumerate(places) if place is None], np.int64)
                named.setdefault(name, (manifest, []))[1].append(column(table, "offset"))
                if found.setdefault(name, _NoLonger()).add(table, rows):
                    deleted.versions.add(number)
    deleted.gone = {name: its.dead for name, its in found.items()}
    for name, (manifest, offsets) in named.items():
        if name not in history.written and not manifest.linked.get(name):  # more than any version says may be in it
            all_named = pa.table({"offset": np.concatenate(offsets)})
            more = dead_records(manifest.path_of(history.pack, name), manifest.container, all_named)
            its = deleted.gone[name]
            deleted.gone[name] = Dead(its.records + more.records, its.bytes + more.bytes, its.paths | more.paths)


def _sizes(table: Any) -> Any:
    """Return the bytes of each record of an index, with its parts."""
    names = (column_of(part, "size") for part in (IMAGE, *names_in(table.column_names)))
    return sum(np.maximum(np.asarray(column(table, name)), 0) for name in names)


def _paths(table: Any, rows: Any) -> list[bytes]:
    paths = texts(column(table, "path"))
    return [paths[row] for row in rows.tolist()]


def not_in(paths: Paths, tables: Iterable[Any]) -> Paths:
    """Return the paths that no record of these indexes has."""
    wanted, there = pa.array(sorted(paths), pa.binary()), set[bytes]()
    for table in tables if paths else ():
        of_shard = table.column("path")
        there.update(of_shard.filter(pc.is_in(of_shard, value_set=wanted)).to_pylist())
    return paths - there
