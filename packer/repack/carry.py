"""What is beside the shards of packs goes along to a pack that is made of their records: sidecars, the index of JPEGs.

Where all records stay in their order, the files are shared, as the shards are. Else their rows are written anew; no
image is read for it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain
from typing import Any

import numpy as np
import pyarrow.compute as pc
from crc32c import crc32c
from numpy.typing import NDArray

from packer.errors import DamagedPack, UsageError, printable
from packer.format.beside import BesideList, read_beside
from packer.format.index import read_index
from packer.format.jpeg_index_list import JpegIndexList, ShardJpegIndex, index_file_of
from packer.format.make_jpeg_index import MadeJpegIndex, list_of, take_jpeg_index
from packer.format.manifest import FileEntry, Manifest, ShardEntry
from packer.format.mmap import check_size, map_file
from packer.format.new_sidecar import write_fingerprints
from packer.format.sidecar_list import (
    CHECKED_BYTES,
    SidecarFacts,
    SidecarFile,
    SidecarList,
    check_sidecar_name,
    file_names,
    lost_notes,
    rows_digest,
)
from packer.format.sidecars import checksums_of
from packer.model.annotation import Int64, Progress
from packer.repack.attach import CHUNK_ROWS, write_array, write_rows
from packer.repack.attached_rows import Attached
from packer.repack.links import Source, Taken, share
from packer.system.storage import storage_errors


@dataclass(frozen=True)
class NewFiles:
    """Where the files of a new pack are, and how files of the packs that it is made of come there.

    Args:
        folder: The folder of its new files, in which its indexes and lists are.
        version: It is this version of a pack, whose files keep their names and places. None: it is another pack.
    """

    folder: str
    version: int | None = None

    def keep(self, source: Source, entry: FileEntry, name: str) -> str:
        """Let the new pack have a file of a pack, and return its name there. Raise DamagedPack if it is missing."""
        path = source.manifest.path_of(source.path, entry.name)
        check_size(path, entry.bytes)
        if self.version is not None:
            return entry.name
        with storage_errors(self.folder):
            share(path, os.path.join(self.folder, name), entry)
        return name


def carry(
    taken: Sequence[Taken], manifest: Manifest, new: NewFiles, added: bytes = b"", packs: Sequence[Source] = ()
) -> tuple[list[BesideList], list[str]]:
    """Write what is beside the shards of packs for the records that a new pack has of them, with the lists of it.

    Args:
        taken: What the new pack has of others, shard by shard; records have the keys that they had there.
        manifest: Its manifest. Shards after those that are taken have other records, of which no more is known.
        new: Where its files are.
        added: The fingerprints of the records of the other shards; empty if they are not known.
        packs: The packs that it is made of, if it may have no record of them.

    Returns:
        The lists, which are in the folder of new files; and notes about what is not carried.

    Raises:
        UsageError: A sidecar has a name that the new pack has for something else.
        DamagedPack: A list or a file was altered, or a file is missing.
        StorageError: A file cannot be written.
    """
    sources = list(dict.fromkeys([*packs, *(item.source for item in taken)]))
    found = {kind: {one: read_beside(kind, one.path, one.manifest) for one in sources} for kind in CARRIERS}
    there = {kind: {one: listed for one, listed in of.items() if listed is not None} for kind, of in found.items()}
    if not any(there.values()):
        return [], []
    pack = _CarriedPack(
        [_CarriedShard(*each, new.folder) for each in zip(taken, manifest.shards, strict=False)], manifest, new, added
    )
    lists, notes = list[BesideList](), list[str]()
    for kind, (carried, note) in CARRIERS.items():
        listed = carried(pack, there[kind]) if len(there[kind]) == len(sources) else None
        notes += note(listed, there[kind].values())
        if listed is not None:
            listed.write(new.folder)
            lists.append(listed)
    return lists, notes


class _CarriedShard:
    """A shard of a new pack, and the records that it has of one of a pack that this is made of."""

    def __init__(self, taken: Taken, entry: ShardEntry, folder: str) -> None:
        self.source, self.number, self.entry = taken.source, taken.number, entry
        self.rows: Int64 | None = None
        """Its rows in the index of the other; None: all, in their order."""
        self.table: Any = None
        """Its index; None: that of the other."""
        if entry.index.sha256 == taken.shard.index.sha256:
            return
        path = os.path.join(folder, entry.index.name)
        there = os.path.lexists(path)  # else another version of the pack has it
        self.table = read_index(path if there else taken.source.manifest.path_of(taken.source.path, entry.index.name))
        before, now = (table.column("key") for table in (self.source.indexes[self.number], self.table))
        if not before.equals(now):
            self.rows = np.asarray(pc.index_in(now, value_set=before), np.int64)

    @property
    def records(self) -> Int64:
        """Return the numbers of its records in the other pack."""
        shards = self.source.manifest.shards
        first = sum(shard.records for shard in shards[: self.number])
        return first + (np.arange(shards[self.number].records) if self.rows is None else self.rows)


@dataclass(frozen=True)
class _CarriedPack:
    shards: Sequence[_CarriedShard]
    manifest: Manifest
    new: NewFiles
    added: bytes

    @property
    def grows(self) -> bool:
        """Whether it has other records, too."""
        return len(self.manifest.shards) > len(self.shards)


# -- the index of JPEGs


def _carry_index(pack: _CarriedPack, found: dict[Source, JpegIndexList]) -> JpegIndexList | None:
    """Carry the index of JPEGs; None if there are new ones, or those of several packs differ in more than JPEGs."""
    if pack.grows or len({(listed.interval, listed.made_with) for listed in found.values()}) > 1:
        return None
    first = next(iter(found.values()))
    made = [_carry_shard(shard, found[shard.source].shards[shard.number], pack.new) for shard in pack.shards]
    return list_of(made, first.interval, first.made_with)


def _carry_shard(shard: _CarriedShard, before: ShardJpegIndex, new: NewFiles) -> MadeJpegIndex:
    path = shard.source.manifest.path_of(shard.source.path, before.index.name)
    name = index_file_of(shard.entry, new.version)
    try:
        made = take_jpeg_index(path, before, shard.rows, shard.entry, shard.table, os.path.join(new.folder, name))
        if shard.rows is None:
            index = replace(before.index, name=new.keep(shard.source, before.index, name))
            made = replace(made, entry=replace(made.entry, index=index))
    except DamagedPack as error:
        error.next_step = JpegIndexList.again(shard.source.path)
        raise error.with_location(shard.source.path) from None
    return made


# -- sidecars


def _carry_sidecars(pack: _CarriedPack, found: dict[Source, SidecarList]) -> SidecarList | None:
    """Carry what is attached to all packs in one form; None if nothing is. For new records there are fingerprints."""
    first, *others = found.values()
    forms = [{one.name: replace(one, files=()) for one in listed.sidecars} for listed in others]
    made = [
        _carry_sidecar(pack, {source: one for source, listed in found.items() if (one := listed.get(facts.name))})
        for facts in first.sidecars
        if all(its.get(facts.name) == replace(facts, files=()) for its in forms)
        and (not pack.grows or (pack.added and facts.are_fingerprints))
    ]
    return SidecarList(rows_digest(pack.manifest), tuple(made)) if made else None


def _carry_sidecar(pack: _CarriedPack, found: dict[Source, SidecarFacts]) -> SidecarFacts:
    """Carry a sidecar: share its files if all records of one pack stay, else write the rows of those that do."""
    (source, facts), *others = found.items()
    try:
        check_sidecar_name(facts.name, pack.manifest.parts, pack.manifest.fields)
    except ValueError as error:
        step = f"packer detach {printable(source.path)} {facts.name}, and attach it under another name"
        raise UsageError(source.path, f"has a sidecar that the new pack cannot have: {error}", step) from None
    names = file_names(facts.name, facts.kind, pack.new.version)
    firsts = dict(zip(found, accumulate((one.manifest.records for one in found), initial=0), strict=False))
    records = np.concatenate([np.arange(0), *(shard.records + firsts[shard.source] for shard in pack.shards)])
    if not pack.grows and not others and np.array_equal(records, np.arange(source.manifest.records)):
        kept = [pack.new.keep(source, file, name) for file, name in zip(facts.files, names, strict=True)]
        return replace(facts, files=tuple(replace(f, name=n) for f, n in zip(facts.files, kept, strict=True)))
    values = _Values([_Rows(one, its) for one, its in found.items()], [one.manifest.records for one in found])
    with storage_errors(pack.new.folder):
        if pack.grows:
            stay = values[records].tobytes() if len(records) else b""
            return write_fingerprints(pack.new.folder, [stay, pack.added], pack.new.version)
        if facts.has_rows:
            _, _, files = write_array(pack.new.folder, names, Attached(values, records, ""), len(records), Progress())
        else:
            files = write_rows(
                pack.new.folder, names, len(records), lambda a, b: values[records[a:b]], CHUNK_ROWS, Progress()
            )
    return replace(facts, files=tuple(files))


class _Rows:
    """What a sidecar of a pack has for each record, read from its verified files."""

    def __init__(self, source: Source, facts: SidecarFacts) -> None:
        self._source, self._facts, records = source, facts, source.manifest.records
        files = [self._content(file) for file in facts.files]
        if facts.has_rows:
            rows = files[0][len(files[0]) - records * facts.row_bytes :]
            self._rows = rows.view(facts.dtype).reshape(records, *facts.shape)
        else:
            self._data = files[0].data
            self._bounds = files[1][len(files[1]) - 8 * (records + 1) :].view(np.int64)

    def _content(self, file: SidecarFile) -> NDArray[np.uint8]:
        data = map_file(self._source.manifest.path_of(self._source.path, file.name), file.bytes)
        for piece, wanted in enumerate(checksums_of(file).tolist()):
            if crc32c(data[piece * CHECKED_BYTES : (piece + 1) * CHECKED_BYTES]) != wanted:
                raise self._damage(file, "was altered: it does not match its checksums")
        return data

    def _damage(self, file: SidecarFile, problem: str) -> DamagedPack:
        path = self._source.path
        where = self._source.manifest.path_of(path, file.name)
        return DamagedPack(where, problem, SidecarList.again(path, file.name)).with_location(path)

    def __getitem__(self, rows: Int64) -> Any:
        if self._facts.has_rows:
            return self._rows[rows]
        begins, ends = self._bounds[rows], self._bounds[rows + 1]
        if ((begins < 0) | (begins > ends) | (ends > len(self._data))).any():
            raise self._damage(self._facts.files[1], "leads out of its lines")
        return [bytes(self._data[begin:end]) for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)]


class _Values:
    """The rows of several packs, whose records follow one another: `records` are the numbers of theirs."""

    def __init__(self, packs: Sequence[_Rows], counts: Sequence[int]) -> None:
        self._packs, self._firsts = packs, np.cumsum([0, *counts])[:-1]

    def __getitem__(self, records: Int64) -> Any:
        packs = np.searchsorted(self._firsts, records, "right") - 1
        runs = np.split(np.arange(len(records)), np.flatnonzero(np.diff(packs)) + 1)
        found = [self._packs[packs[run[0]]][records[run] - self._firsts[packs[run[0]]]] for run in runs if len(run)]
        return np.concatenate(found) if isinstance(found[0], np.ndarray) else list(chain.from_iterable(found))


def _index_notes(made: JpegIndexList | None, found: Iterable[JpegIndexList]) -> list[str]:
    return [JpegIndexList.NOT_CARRIED] if made is None and any(found) else []


def _sidecar_notes(made: SidecarList | None, found: Iterable[SidecarList]) -> list[str]:
    names = {one.name for listed in found for one in listed.sidecars}
    names -= {one.name for one in made.sidecars} if made is not None else set()
    return lost_notes(names, "not attached to all records of the packs in one form")


CARRIERS: dict[type[BesideList], tuple[Callable[..., BesideList | None], Callable[..., list[str]]]] = {
    JpegIndexList: (_carry_index, _index_notes),
    SidecarList: (_carry_sidecars, _sidecar_notes),
}
"""Kind of list -> what makes that of a new pack of those of the packs that it is made of; and what it could not."""
