"""Where an updated pack is: a folder, which gets a new version, or a URL, whose pack.json is replaced."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Protocol

import numpy as np

from packer.errors import UsageError
from packer.format.index import read_index, write_index
from packer.format.indexes import Indexes, IndexFiles
from packer.format.jpeg_index_list import JpegIndexList
from packer.format.lists import MOST_IN_MANIFEST, Listing
from packer.format.manifest import Manifest, ShardEntry
from packer.format.new_sidecar import write_fingerprints
from packer.format.pack_objects import beside_at, fetch_file, manifest_at
from packer.format.pack_paths import MANIFEST_NAME, VERSIONS, numbers_in
from packer.format.sidecar_list import FINGERPRINTS, SidecarList, lost_notes, rows_digest
from packer.format.versions import check_newest, current_number, files_of_versions, read_made
from packer.model.annotation import Progress
from packer.packing.build_options import BuildOptions
from packer.packing.publish import Output
from packer.packing.publish_version import WORK, NextVersion, discard_unfinished_update
from packer.packing.store_output import StoreOutput
from packer.repack.carry import NewFiles, carry
from packer.repack.compact_dead import compact_dead, dead_shares
from packer.repack.index_columns import recount
from packer.repack.links import Linked, Source, Taken, index_shards
from packer.stores import clean_url, open_store
from packer.stores.waiting import all_of, pool
from packer.system import share_file
from packer.system.atomic import make_own_folder
from packer.system.storage import storage_errors

FETCHED_AT_ONCE = 16
SHARD = re.compile(r"shard-(\d+)")


@dataclass(slots=True)
class NewContent:
    """What becomes of a pack."""

    taken: Sequence[Taken]
    """What stays of its shards."""
    added: Sequence[ShardEntry]
    """New shards, which are in the folder of the output."""
    manifest: Manifest
    """Without what follows from the shards."""
    listings: Mapping[str, Listing[Any]]
    selections: Mapping[str, bytes]
    command: str
    fingerprints: bytes = b""
    """Of the records of the new shards; empty if none were made."""
    done: dict[str, int] = field(default_factory=dict)
    """What was done, for the log."""
    notes: list[str] = field(default_factory=list)
    """Receives what is not carried over."""
    compact: float | None = None
    """Shards are written again of which a larger share is dead. None: none is."""
    ready: Callable[[Manifest], object] = lambda manifest: None
    """Called with the manifest: before it takes the place of the old one, where that is one step."""

    def recounted(self, made: Linked, path_of: Callable[[str], str | None]) -> Manifest:
        """Return the whole manifest.

        Args:
            made: The shards that stay.
            path_of: Returns where an index is that was written now; None for those of the pack.
        """
        manifest = replace(
            self.manifest,
            lists={},
            linked=made.linked,
            companions=made.companions,
            rejected=tuple(islice(self.listings["rejected"], MOST_IN_MANIFEST)),
            counts={**self.manifest.counts, **{name: len(self.listings[name]) for name in ("rejected", "skipped")}},
        )
        shards = [*made.shards, *self.added]
        return recount(manifest, shards, self._tables(shards, path_of))

    def _tables(self, shards: Sequence[ShardEntry], path_of: Callable[[str], str | None]) -> Iterator[Any]:
        for number, shard in enumerate(shards):
            path = path_of(shard.index.name)
            yield self.taken[number].source.tables[self.taken[number].number] if path is None else read_index(path)


def _next_shard(names: Iterable[str]) -> int:
    """Return the number behind the largest one of these files; a single shard may be called data."""
    return max((int(found[1]) for name in names if (found := SHARD.match(name))), default=0) + 1


class Target(Protocol):
    """A pack that is updated."""

    path: str
    source: Source
    """What it is now."""
    ancestors: tuple[str, ...]
    """Digests of what it was made from, the newest first."""

    def next_shard(self) -> int:
        """Return the number of the next shard; those of earlier versions count."""

    def options(self) -> dict[str, Any]:
        """Return the options of a build that writes its new shards."""

    def output(self, options: BuildOptions, progress: Progress) -> Output:
        """Return where the new shards are written. Raise UsageError if the pack has changed since it was read."""

    def publish(self, content: NewContent, output: Output, progress: Progress) -> tuple[Manifest, int | None]:
        """Let the new content take the place of the pack; return its manifest, and the number of its version."""

    def discard_unfinished(self) -> None:
        """Remove what an update has left that died, as there is nothing to do."""

    def close(self) -> None:
        """Leave nothing behind that is not needed."""


class FolderTarget:
    """A pack in a folder."""

    def __init__(self, pack: str) -> None:
        self.path = check_newest(pack, "packer update")
        self.source = Source(self.path)
        made = [read_made(self.path, number) for number in reversed(numbers_in(self.path))]
        found = (digest for one in made for digest in (one.digest, *one.former, *one.parents))
        self.ancestors = tuple(dict.fromkeys((*found, *(one.digest for one in self.source.manifest.made_from))))
        self._has_made_folder = False

    def next_shard(self) -> int:
        """Return the number of the next shard."""
        numbers, current = numbers_in(self.path), current_number(self.path, self.source.manifest)
        kept = files_of_versions(self.path, (number for number in numbers if number <= current))
        begun = files_of_versions(self.path, (number for number in numbers if number > current))  # of one that died
        return _next_shard({*os.listdir(self.path)} - (begun - kept))

    def options(self) -> dict[str, Any]:
        """Return the options of a build that writes its new shards."""
        return {"out": os.path.join(self.path, WORK), "format": self.source.manifest.container}

    def output(self, options: BuildOptions, progress: Progress) -> Output:
        """Return where the new shards are written."""
        versions = os.path.join(self.path, VERSIONS)
        with storage_errors(versions):
            make_own_folder(versions)
        self._has_made_folder = True
        return Output(os.path.join(versions, WORK), options.source, overwrite=True)

    def discard_unfinished(self) -> None:
        """Remove what an update has left that died: the pack is as it should be."""
        discard_unfinished_update(self.path)

    def publish(self, content: NewContent, output: Output, progress: Progress) -> tuple[Manifest, int | None]:
        """Publish the next version of the pack."""
        with NextVersion(self.path, content.command) as new:
            if new.manifest.digest != self.source.manifest.digest:
                raise UsageError(self.path, "was changed by another packer meanwhile", "run the same command again")
            made = index_shards(new, content.taken, progress)
            for shard in content.added:
                for file in (shard.container, shard.index):
                    target = os.path.join(new.folder, file.name)
                    with storage_errors(target):  # the names in the output stay until the version is published
                        share_file(os.path.join(output.folder, file.name), target)

            def path_of(name: str) -> str | None:
                path = os.path.join(new.folder, name)
                return path if os.path.lexists(path) else None

            manifest = content.recounted(made, path_of)
            if content.compact is not None:
                shares = dead_shares(self.path, self.source.manifest, content.taken)
                manifest, count = compact_dead(new, manifest, made, shares, content.compact, progress)
                content.done |= {"compacted": count} if count else {}
            files = NewFiles(new.folder, new.number)
            _, notes = carry(content.taken, manifest, files, content.fingerprints, [self.source])
            content.notes += notes
            manifest = new.publish(manifest, content.listings.values(), content.selections, content.done, content.ready)
            number = new.number
        output.discard()
        return manifest, number

    def close(self) -> None:
        """Remove the folder of versions if there are none."""
        if self._has_made_folder:
            with suppress(OSError):
                os.rmdir(os.path.join(self.path, VERSIONS))


class _Mirror(Source):
    """A pack at a URL, of which the indexes and lists are in a folder, but not the shards."""

    def __init__(self, folder: str, url: str, manifest: Manifest) -> None:
        self.path, self.manifest, self.has_new_index = folder, manifest, False
        self._digest, self._url = manifest.digest, url
        self.indexes = Indexes(IndexFiles(folder, manifest.shards, manifest))

    @property
    def name(self) -> str:
        """Name of its folder."""
        return os.path.basename(self._url)


class StoreTarget:
    """A pack at a URL. What is new gets names of its own; what is not needed any more stays for those who read it.

    Args:
        url: The pack.
        folder: A folder for its indexes and lists.
    """

    def __init__(self, url: str, folder: str) -> None:
        self.path = clean_url(url)
        store = open_store(self.path)
        manifest = manifest_at(store)
        indexes = [shard.index for shard in manifest.shards]
        with pool(FETCHED_AT_ONCE) as threads:
            files = [*indexes, *manifest.lists.values()]
            for file, data in zip(
                files, all_of([threads.submit(fetch_file, store, file) for file in files]), strict=True
            ):
                with storage_errors(folder), open(os.path.join(folder, file.name), "xb") as copy:
                    copy.write(data)
        with storage_errors(folder), open(os.path.join(folder, MANIFEST_NAME), "xb") as copy:
            copy.write(manifest.to_json())
        self.source: Source = _Mirror(folder, self.path, manifest)
        self.ancestors = tuple(one.digest for one in manifest.made_from)

    def next_shard(self) -> int:
        """Return the number of the next shard."""
        return _next_shard(shard.container.name for shard in self.source.manifest.shards)

    def options(self) -> dict[str, Any]:
        """Return the options of a build that writes its new shards."""
        return {"out": self.path, "overwrite": True}

    def output(self, options: BuildOptions, progress: Progress) -> Output:
        """Return where the new shards are written."""
        output = StoreOutput(options, progress, indexes=True)
        if manifest_at(open_store(self.path)).digest != self.source.manifest.digest:  # it notices what is later
            raise UsageError(self.path, "was changed by another packer meanwhile", "run the same command again")
        return output

    def publish(self, content: NewContent, output: Output, progress: Progress) -> tuple[Manifest, int | None]:
        """Upload the indexes that differ, and replace pack.json."""
        assert isinstance(output, StoreOutput)
        if beside_at(JpegIndexList, output.store, self.source.manifest, progress.note) is not None:
            content.notes.append(JpegIndexList.NOT_CARRIED)
        listed = beside_at(SidecarList, output.store, self.source.manifest, progress.note)
        made, folder = Linked(companions=dict(self.source.manifest.companions)), output.folder
        made.linked.update(self.source.manifest.linked)
        paths: dict[str, str] = {}
        for item in content.taken:
            entry, batch = item.shard, item.table()
            if batch is not None:
                name = f"index-{item.number:05d}.arrow"
                index = output.upload_file(write_index(os.path.join(folder, name), batch), entry.index.name)
                paths[index.name] = os.path.join(folder, name)
                entry = ShardEntry(len(batch), entry.container, index)
                made.linked[entry.container.name] = ""
            made.shards.append(entry)
        here = {shard.container.name for shard in made.shards}
        made.companions = {name: file for name, file in made.companions.items() if name in here}
        made.linked = {name: path for name, path in made.linked.items() if name in here}
        paths |= {shard.index.name: os.path.join(folder, shard.index.name) for shard in content.added}
        manifest = content.recounted(made, paths.get)
        output.beside = self._fingerprints(content, output, listed, rows_digest(manifest))
        names = {one.name for one in listed.sidecars} if listed is not None else set[str]()
        content.notes += lost_notes(names - ({FINGERPRINTS} if output.beside else set()))
        manifest = output.publish(manifest, content.listings.values(), content.selections)
        content.ready(manifest)
        return manifest, None

    def _fingerprints(
        self, content: NewContent, output: StoreOutput, listed: SidecarList | None, rows: str
    ) -> list[SidecarList]:
        """Write the fingerprints of the records that stay and of new ones; nothing if some are not known."""
        facts = None if listed is None else listed.get(FINGERPRINTS)
        if facts is None or not facts.are_fingerprints or (content.added and not content.fingerprints):
            return []
        shards, data = self.source.manifest.shards, fetch_file(output.store, facts.files[0])
        firsts = np.cumsum([0, *(shard.records for shard in shards)])
        old = np.frombuffer(data, np.uint8)[-facts.row_bytes * int(firsts[-1]) :].reshape(-1, facts.row_bytes)
        kept = []
        for item in content.taken:
            its = old[firsts[item.number] : firsts[item.number + 1]]
            kept.append((its if item.rows is None else its[item.rows]).tobytes())
        made = write_fingerprints(output.folder, [*kept, content.fingerprints])
        found = SidecarList(rows, (made,))
        found.write(output.folder)
        return [found]

    def discard_unfinished(self) -> None:
        """Do nothing: what is unfinished is in the scratch folder."""

    def close(self) -> None:
        """Do nothing: its folder is that of who made it."""
