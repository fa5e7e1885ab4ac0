"""Packs that share the files of others: shards get a second name, and an index of their own where it must differ."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from packer.containers import CONTAINERS, open_container
from packer.errors import AnyPath, DamagedPack, PackerError, StorageError, plural
from packer.format.digests import sha256_of
from packer.format.index import INDEX_SUFFIX, write_index
from packer.format.indexes import Indexes, IndexFiles
from packer.format.manifest import FileEntry, Manifest, Origin, ShardEntry, read_manifest
from packer.format.mmap import check_size
from packer.model.annotation import Int64, Progress
from packer.repack.rows import relabelled, selected
from packer.system import share_file, usable_cores
from packer.system.atomic import make_own_folder

MOST_THREADS = 4
IN_PLACE = "in place"
"""What is done with the file of an adopted pack: it stays where it is."""


class Source:
    """A pack that another is made from. Its images are never read.

    Args:
        path: The directory of the pack.

    Raises:
        PackNotFound: It is not a pack.
        DamagedPack: A file is missing or has another size.
    """

    def __init__(self, path: AnyPath) -> None:
        self.path = os.path.abspath(os.fsdecode(path))
        self.manifest: Manifest = read_manifest(self.path)
        try:
            for shard in self.manifest.shards:
                check_size(self.file_of(shard), shard.container.bytes)
            self.indexes = Indexes(IndexFiles(self.path, self.manifest.shards, self.manifest))
        except DamagedPack as error:
            error.with_location(self.path)
            raise

    @property
    def name(self) -> str:
        """Name of its folder."""
        return os.path.basename(self.path)

    def file_of(self, shard: ShardEntry) -> str:
        """Return the path of a shard's container."""
        return self.manifest.path_of(self.path, shard.container.name)

    def origin(self, command: str) -> Origin:
        """Return it as what another pack was made from."""
        return Origin(command, self.name, self.manifest.digest)

    @cached_property
    def tables(self) -> list[Any]:
        """The index of each shard, mapped and verified."""
        return [self.indexes[number] for number in range(len(self.manifest.shards))]


@dataclass(frozen=True, slots=True, eq=False)
class Taken:
    """What a new pack takes of a shard."""

    source: Source
    number: int
    """Of the shard."""
    rows: Int64 | None = None
    """Its records, in order; None: all."""
    mapping: Int64 | None = None
    """New id of each class; None: unchanged."""

    @property
    def shard(self) -> ShardEntry:
        """The shard in its pack."""
        return self.source.manifest.shards[self.number]

    def table(self) -> Any:
        """Return its new index as a record batch; None if it is unchanged."""
        if self.rows is None and self.mapping is None:
            return None
        table = self.source.tables[self.number]
        (batch,) = table.to_batches()
        try:
            batch = batch if self.mapping is None else relabelled(table, self.mapping)
        except ValueError as error:
            raise DamagedPack(self.source.indexes.path(self.number), str(error), "build the pack again") from None
        return batch if self.rows is None else selected(batch, self.rows)


@dataclass(slots=True)
class Linked:
    """The files of a pack of links."""

    shards: list[ShardEntry] = field(default_factory=list)
    linked: dict[str, str] = field(default_factory=dict)
    """`Manifest.linked`."""
    how: Counter[str] = field(default_factory=Counter)
    """Number of container files by what was done: hard link, reflink, copy, in place."""


def shards_text(how: Mapping[str, int]) -> str:
    """Return what was done with the files of the shards, as text: ``3 shards (2 hard links, 1 copy)``."""
    names = {"hard link": "hard links", "reflink": "reflinks", "copy": "copies", IN_PLACE: "files in place"}
    parts = [plural(count, name.replace("in place", "file in place"), names[name]) for name, count in how.items()]
    return f"{plural(sum(how.values()), 'shard')} ({', '.join(parts)})"


def link_shards(folder: str, home: str, taken: Sequence[Taken], progress: Progress) -> Linked:
    """Write the shards of a new pack, as shard-00000 and so on, without reading their images.

    Args:
        folder: Where the pack grows.
        home: Its final path.
        taken: Its shards.
        progress: Receives the stage linking, in shards.

    Raises:
        DamagedPack: An index was altered, or a copy does not have the digest of its original.
        StorageError: A file cannot be written.
    """
    make_own_folder(folder)
    progress.stage("linking", len(taken), "shards")
    made = Linked()
    # digests and syncs release the GIL
    with ThreadPoolExecutor(max(1, min(MOST_THREADS, usable_cores()))) as pool:
        waiting = [pool.submit(_link, folder, home, number, item) for number, item in enumerate(taken)]
        try:
            for future in waiting:
                entry, path, how = future.result()
                made.shards.append(entry)
                made.how[how] += 1
                if path is not None:
                    made.linked[entry.container.name] = path
                progress.advance(1)
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise
    return made


def _link(folder: str, home: str, number: int, taken: Taken) -> tuple[ShardEntry, str | None, str]:
    """Return the entry of a new shard, its `Manifest.linked` (None: it is written for this pack), and what was done."""
    source, old = taken.source, taken.shard
    suffix = _suffix(old.container.name, source.manifest.container)
    stem = f"shard-{number:05d}"
    container = replace(old.container, name=stem + suffix)
    batch = taken.table()
    before = source.manifest.linked.get(old.container.name)
    path: str | None
    try:
        if before:
            how, path = IN_PLACE, _moved(before, source.path, home)
        else:
            how = _share(source.file_of(old), os.path.join(folder, container.name), old.container)
            path = "" if how == "hard link" or batch is not None or before == "" else None
        index = os.path.join(folder, stem + INDEX_SUFFIX)
        if batch is None:
            _share(source.indexes.path(taken.number), index, old.index)
            entry = replace(old.index, name=os.path.basename(index))
        else:
            entry = write_index(index, batch)
    except PackerError:
        raise
    except OSError as error:
        raise StorageError(error.filename or folder, error.strerror or str(error), "choose another --out") from None
    return ShardEntry(old.records if batch is None else len(batch), container, entry), path, how


def _suffix(name: str, container: str) -> str:
    """Return the end of a shard's name: that of its format, if it has or stands for it; else its own, if adopted."""
    extension = os.path.splitext(name)[1]
    if container in CONTAINERS:
        suffix = open_container(container).suffix
        if name.endswith(suffix) or extension == ".mdb":  # a single LMDB shard is called data.mdb
            return suffix
    return extension


def _share(source: str, target: str, entry: FileEntry) -> str:
    how = share_file(source, target)
    if how == "copy" and sha256_of(target) != entry.sha256:
        raise DamagedPack(source, "does not match its digest", "run packer verify").with_location(
            os.path.dirname(source), entry.name
        )
    return how


def _moved(path: str, pack: str, home: str) -> str:
    """Return the path of a linked file as a pack at `home` names it: relative where it lies below its folder."""
    if os.path.isabs(path):
        return path
    file = os.path.normpath(os.path.join(pack, path))
    below = os.path.dirname(home).rstrip(os.sep) + os.sep
    return os.path.relpath(file, home) if file.startswith(below) else file
