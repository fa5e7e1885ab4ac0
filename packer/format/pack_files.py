"""The files of one pack, on this machine or at a URL: what its manifest says, and where the bytes of its shards are."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from packer.errors import AnyPath, DamagedPack, UsageError
from packer.format.indexes import IndexFiles
from packer.format.manifest import Manifest, ShardEntry, read_manifest
from packer.format.mmap import MANY_FILES, Region, map_files
from packer.model.annotation import Int64
from packer.stores import clean_url, is_url, join_url
from packer.stores.cache import origin_of

if TYPE_CHECKING:
    from packer.format.remote import Remote


@dataclass(frozen=True, eq=False)
class PackFiles:
    """The files of one pack. An open pack (`packer.format.pack.Pack`) reads those of one, or of several.

    Attributes:
        path: The directory of the pack, or its URL.
        folder: Where its files are on this machine; "" if they are in memory.
        manifest: Its manifest.
        region: The bytes of its containers.
        starts: The offset in `region` at which each shard begins.
        remote: What fetches a pack at a URL; None: it is in a directory.
        cache_options: Folder and size of the cache as they were given, to open the pack again.
        first_shard: The number of its first shard in the open pack.
        first_record: The number of its first record in the open pack.
        class_ids: The class id in the open pack of each class of this one, and -1 for none at the end. None: the same.
    """

    path: str
    folder: str
    manifest: Manifest
    region: Region
    starts: Int64
    remote: Remote | None = None
    cache_options: tuple[AnyPath | None, int | str | None] = None, None
    first_shard: int = 0
    first_record: int = 0
    class_ids: NDArray[Any] | None = None

    @property
    def shards(self) -> tuple[ShardEntry, ...]:
        """Its shards."""
        return self.manifest.shards

    @property
    def end(self) -> int:
        """The number of the record after its last one in the open pack."""
        return self.first_record + self.manifest.records

    def file(self, name: str) -> str:
        """Return the path or URL of one of its files."""
        return join_url(self.path, name) if self.remote else self.manifest.path_of(self.path, name)

    def shard_at(self, file: AnyPath) -> str | None:
        """Return the shard that a file of this pack belongs to; None for the manifest."""
        return _shard_at(self.shards, file)

    def index_files(self) -> IndexFiles:
        """Return its indexes, to open them."""
        content = None if self.remote is None else self.remote.index
        return IndexFiles(self.folder, self.shards, self.manifest, content, self.class_ids)


def open_files(path: AnyPath, cache_dir: AnyPath | None = None, cache_bytes: int | str | None = None) -> PackFiles:
    """Open the files of a pack.

    Args:
        path: The directory of the pack, or its URL.
        cache_dir: The folder where packs at URLs are kept.
        cache_bytes: The size of that folder at most.

    Raises:
        PackNotFound: The directory is not a pack.
        DamagedPack: The manifest was altered, or a file is missing or has another size.
        StorageError: A file or the store cannot be read.
    """
    options = cache_dir, cache_bytes
    name = clean_url(path) if is_url(path) else os.path.abspath(os.fsdecode(path))
    try:
        return _at_url(name, path, options) if is_url(path) else _in_folder(name, options)
    except DamagedPack as error:
        error.with_location(name)
        raise


def _at_url(url: str, path: AnyPath, options: tuple[AnyPath | None, int | str | None]) -> PackFiles:
    from packer.format.remote import open_remote

    remote = open_remote(path, *options)
    return PackFiles(url, remote.folder, remote.manifest, remote.region, remote.starts, remote, options)


def _in_folder(folder: str, options: tuple[AnyPath | None, int | str | None]) -> PackFiles:
    if (origin := origin_of(folder)) is not None:
        raise UsageError(folder, "is packer's cache of a pack at a URL", f"open {origin['url']}")
    manifest = read_manifest(folder)
    files = [(manifest.path_of(folder, s.container.name), s.container.bytes) for s in manifest.shards]
    try:
        # of many files, each is mapped when it is first read; of few all are, so that errors come early
        region, starts = map_files(files, late=len(files) > MANY_FILES)
    except DamagedPack as error:
        error.with_location(folder, _shard_at(manifest.shards, error.where))
        raise
    return PackFiles(folder, folder, manifest, region, starts, cache_options=options)


def _shard_at(shards: tuple[ShardEntry, ...], file: AnyPath) -> str | None:
    name = os.path.basename(os.fsdecode(file))
    return next((s.container.name for s in shards if name in (s.container.name, s.index.name)), None)
