"""Earlier versions of a pack without records that are erased: new indexes and lists, and manifests that name them.

What is new is written first, and the manifests are replaced then, each in one step. Meanwhile all files that go or come
are those of a version that was begun (`packer.packing.publish_version`): whatever happens, the next change of the pack
removes those of them that no version has.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

from packer.format.beside import NEXT, BesideList
from packer.format.index import read_index, write_index
from packer.format.lists import write_lists
from packer.format.manifest import FileEntry, IndexEntry, Manifest, ShardEntry
from packer.format.pack_paths import INDEX_SUFFIX, MANIFEST_NAME, PARTIAL_SUFFIX, numbers_in, version_folder
from packer.format.sidecar_list import BESIDE
from packer.format.verify_records import texts
from packer.format.versions import MADE_NAME, Made, files_of_versions, read_made
from packer.model.annotation_columns import column
from packer.packing.publish_version import discard_version, settle_version
from packer.repack.deleted import History
from packer.repack.forgotten import Forgotten, without_paths
from packer.repack.index_columns import recount
from packer.repack.purged_beside import beside_earlier
from packer.repack.survivors import Kept
from packer.system import sync_path
from packer.system.atomic import make_own_folder, remove, replacing, write_new

ERASED = "erased"
"""The count of records that were erased, in made.json."""
DIGITS = 16
"""Of the digest of a file, in its name."""


class EarlierVersions:
    """Changes the earlier versions of a pack, whose versions are locked.

    Args:
        history: The versions; the newest one has no deleted records any more.
        newest: The number of the newest one.
        erased: Paths of images that no version has any more.
        forget: Whether the paths of erased records go from the lists.
    """

    def __init__(self, history: History, newest: int, erased: Collection[bytes], forget: bool) -> None:
        self._history, self._newest, self._erased, self._forget = history, newest, erased, forget
        self._survivors = history.survivors()
        self._begun = version_folder(history.pack, newest + 1)
        self._work = self._begun + PARTIAL_SUFFIX
        self._beside: dict[int, list[BesideList]] = {}
        self.notes: list[str] = []
        """What versions lose besides."""

    def rewrite(self) -> None:
        """Take what is erased from all versions. One without a record left is removed.

        Raises:
            DamagedPack: A file of a version was altered.
            StorageError: A file cannot be written.
        """
        history = self._history
        remove(self._work)
        make_own_folder(self._work)
        new = {number: self._rewritten(number, manifest) for number, manifest in history.earlier.items()}
        changed = [n for n, made in new.items() if made is None or made.digest != history.earlier[n].digest]
        if changed:
            self._begin(filter(None, new.values()))
        # the oldest last: with its rows goes what tells the next call the paths that lists of later ones have
        for number in reversed(changed):
            if (manifest := new[number]) is None:
                discard_version(version_folder(history.pack, number))
            else:
                self._publish(number, manifest)
        _follow_digests(history.pack, self._newest)

    def close(self) -> None:
        """End the change, when all files that went are removed."""
        discard_version(self._begun)
        remove(self._work)

    def _begin(self, new: Iterable[Manifest]) -> None:
        """Let a version begin that has all files which come or go, and move those that come into the pack."""
        history, names = self._history, os.listdir(self._work)
        files = {file.name: file for one in (*history.earlier.values(), *new) for file in one.files}
        files |= {file.name: file for lists in self._beside.values() for one in lists for file in one.data_files}
        before = files_of_versions(history.pack, history.earlier)
        files |= {name: FileEntry(name, 0, "") for name in before - files.keys()}  # beside those that are as they were
        lists = {str(number): file for number, file in enumerate(files.values())}
        manifest = replace(
            history.newest, base="", lists={n: FileEntry(f.name, f.bytes, f.sha256) for n, f in lists.items()}
        )
        for name in names:
            sync_path(os.path.join(self._work, name))
        write_new(os.path.join(self._work, MANIFEST_NAME), manifest.to_json())
        write_new(os.path.join(self._work, MADE_NAME), Made("", "", "").to_json())
        sync_path(self._work)
        os.rename(self._work, self._begun)
        sync_path(os.path.dirname(self._begun))
        for name in names:
            os.replace(os.path.join(self._begun, name), os.path.join(history.pack, name))
        sync_path(history.pack)

    def _rewritten(self, number: int, old: Manifest) -> Manifest | None:
        """Write new files of a version, and return its new manifest; None if no record is left."""
        history = self._history
        if not (kept := self._survivors.of_version(old, history.table_of(old))):
            return None
        paths = {*self._erased, *self._own_paths(old, kept)}
        if not paths and tuple(one.entry for one in kept) == old.shards:
            return old
        forgotten = without_paths(history.pack, old, paths, self._forget)
        shards = tuple(one.entry or self._written(one) for one in kept)
        manifest = replace(
            forgotten.manifest, base="", lists=self._lists(old, forgotten),
            linked=self._linked(old, kept, shards), companions=_of_shards(history.newest.companions, shards),
        )  # fmt: skip
        if shards != old.shards:
            manifest = recount(manifest, shards, map(self._index, shards))
            self._beside[number], note = beside_earlier(history.pack, number, manifest, kept, self._work)
            self.notes += [note] if note else []
        return manifest

    def _own_paths(self, manifest: Manifest, kept: Iterable[Kept]) -> set[bytes]:
        """Return the paths of the records that leave a version."""
        changed = {shard.container.name for shard in manifest.shards} - self._history.numbers.keys()
        before, after, table_of = set[bytes](), set[bytes](), self._history.table_of(manifest)
        for number, shard in enumerate(manifest.shards):
            if shard.container.name in changed:
                before.update(texts(column(table_of(number), "path")))
        for one in kept:
            for table, rows, _ in one.rows:
                paths = texts(column(table, "path"))
                after.update(paths[row] for row in rows.tolist())
        return before - after

    def _written(self, kept: Kept) -> ShardEntry:
        """Write the index of a shard, unless it is that of the newest version, and return the shard."""
        newest = self._history.newest.shards[kept.number]
        path = os.path.join(self._work, "index")
        batch = self._survivors.batch(kept)
        entry = write_index(path, batch)
        if (entry.bytes, entry.sha256) == (newest.index.bytes, newest.index.sha256):
            os.unlink(path)
            return newest
        stem = newest.container.name.partition(".")[0]
        name = self._named(path, stem, entry, INDEX_SUFFIX)
        return ShardEntry(len(batch), newest.container, IndexEntry(name, entry.bytes, entry.sha256, entry.crc32c))

    def _named(self, path: str, stem: str, entry: FileEntry, suffix: str) -> str:
        """Give a new file a name that only these bytes have, and return it."""
        name = f"{stem}.{entry.sha256[:DIGITS]}{suffix}"
        os.replace(path, os.path.join(self._work, name))
        return name

    def _lists(self, old: Manifest, forgotten: Forgotten) -> dict[str, FileEntry]:
        """Write the lists of a version that are not as they were, and return the entries of all."""
        if not forgotten.changed:
            return dict(old.lists)
        there = [*old.lists.values(), *self._history.newest.lists.values()]
        found = {}
        for kind, entry in write_lists(self._work, forgotten.listings.values(), forgotten.selections).items():
            same = next((one for one in there if (one.bytes, one.sha256) == (entry.bytes, entry.sha256)), None)
            path, (stem, suffix) = os.path.join(self._work, entry.name), os.path.splitext(entry.name)
            if same is not None:
                os.unlink(path)
            found[kind] = same or replace(entry, name=self._named(path, stem, entry, suffix))
        return found

    def _linked(self, old: Manifest, kept: Iterable[Kept], shards: Iterable[ShardEntry]) -> dict[str, str]:
        """Return `Manifest.linked`: which containers have the annotations of another version, or are elsewhere."""
        newest, found = self._history.newest, {}
        for one, shard in zip(kept, shards, strict=True):
            name, index = shard.container.name, newest.shards[one.number].index
            if one.entry is not None:
                found.update({name: old.linked[name]} if name in old.linked else {})
            elif name in newest.linked or (index.sha256, newest.classes) != (shard.index.sha256, old.classes):
                found[name] = newest.linked.get(name, "")
        return found

    def _index(self, shard: ShardEntry) -> Any:
        path = os.path.join(self._work, shard.index.name)
        return read_index(path if os.path.lexists(path) else os.path.join(self._history.pack, shard.index.name))

    def _publish(self, number: int, manifest: Manifest) -> None:
        """Let a manifest take the place of that of a version; what made it says which digest it had."""
        pack, folder = self._history.pack, version_folder(self._history.pack, number)
        made = read_made(pack, number)
        if made.digest != manifest.digest:  # unless a process was killed before the manifest took its place
            lost = made.counts.get(ERASED, 0) + self._history.earlier[number].records - manifest.records
            counts = {**made.counts, ERASED: lost} if lost else made.counts
            made = replace(made, digest=manifest.digest, former=(*made.former, made.digest), counts=counts)
            _replace(os.path.join(folder, MADE_NAME), made.to_json())
        lists = self._beside.get(number, ())
        if number in self._beside:
            for kind in {*BESIDE} - {*map(type, lists)}:
                remove(os.path.join(folder, kind.NAME))
        for listed in lists:
            listed.write(folder, NEXT)
        sync_path(folder)
        _replace(os.path.join(folder, MANIFEST_NAME), manifest.to_json())
        settle_version(folder, manifest)
        sync_path(folder)


def _follow_digests(pack: str, newest: int) -> None:
    """Let what made each version of a pack name the others by the digests that they have now."""
    found: dict[int, Made] = {number: read_made(pack, number) for number in numbers_in(pack) if number <= newest}
    now = {digest: made.digest for made in found.values() for digest in made.former}
    for number, made in found.items():
        # a version that only erased records is equal to the one before it then, and no parent of itself
        new = {digest: now.get(digest, digest) for digest in made.parents}
        parents = tuple(dict.fromkeys(old if to == made.digest else to for old, to in new.items()))
        if parents != made.parents:
            folder = version_folder(pack, number)
            _replace(os.path.join(folder, MADE_NAME), replace(made, parents=parents).to_json())
            sync_path(folder)


def _of_shards(files: Mapping[str, Any], shards: Iterable[ShardEntry]) -> dict[str, Any]:
    return {s.container.name: files[s.container.name] for s in shards if s.container.name in files}


def _replace(path: str, content: bytes) -> None:
    with replacing(path) as file:
        file.write(content)
