"""Erases deleted records: their bytes, labels and paths leave every file of a pack, of its earlier versions too.

Only the shards that hold them are written again. Until the new pack.json is there, the pack is as it was; from then on
its newest version has none of them, and the earlier ones follow one by one. The files that held them are removed last.
A purge that was interrupted is finished by the next one.
"""

from __future__ import annotations

import os
import re
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import NamedTuple

from packer.errors import AnyPath, printable
from packer.format.beside import read_beside
from packer.format.jpeg_index_list import JPEG_INDEX, WORK_FOLDER
from packer.format.manifest import Manifest, read_manifest
from packer.format.pack_paths import MANIFEST_NAME, VERSIONS, numbers_in
from packer.format.sidecar_list import BESIDE, SIDECAR_FILE
from packer.format.verify import SHARD_NAME, OneAtATime
from packer.format.versions import check_newest, current_number, files_of_versions, read_version
from packer.model.annotation import Progress
from packer.packing.publish_version import UNFINISHED, NextVersion, discard_unfinished_update
from packer.repack.compact import Compacted, Paths, check_can_compact, compact_shard
from packer.repack.deleted import Deleted, History, find_deleted, not_in
from packer.repack.earlier_versions import ERASED, EarlierVersions
from packer.repack.forgotten import without_paths
from packer.repack.index_jpegs import in_place
from packer.repack.links import MOST_THREADS
from packer.repack.purged_beside import beside_newest, nothing_grows
from packer.repack.remains import Remains, elsewhere, leftovers, other_names
from packer.system import sync_path, usable_cores
from packer.system.atomic import remove
from packer.system.storage import storage_errors

LIST = re.compile(r"(?:rejected|skipped|changed)(?:\.[\w.]+)?\.tsv|(?:include|exclude)(?:\.[\w.]+)?\.txt")
"""Names of lists."""
GROWING = (WORK_FOLDER, "sidecars.partial")
"""Folders in which what is beside the shards grows."""
ONE_SHARD = re.compile(r"data(?:-[0-9a-f]{8})?(?:\.v\d+|\.[0-9a-f]{16})?\.(?:mdb|index\.arrow)")
"""Names of the files of an LMDB shard that is the only one."""


@dataclass(frozen=True, slots=True)
class PurgeReport:
    """The result of `purge`."""

    path: str
    version: int | None
    """The number of the new version of the pack; None if its newest one had nothing to erase, or nothing was done."""
    records: int
    """Deleted records that were erased."""
    bytes: int
    """Of their images and parts."""
    shards: int
    """Shards that were written again, or removed with all their records."""
    of_shards: int
    """Shards of the newest version."""
    written_bytes: int
    """Size of the shards that were written again."""
    versions: int
    """Earlier versions that lost records, or were removed with the last one."""
    files: int
    """Files that were removed."""
    remains: tuple[Remains, ...]
    """Where their bytes still are, or may be, and what to do about it."""
    notes: tuple[str, ...]
    dry_run: bool
    seconds: float

    @property
    def complete(self) -> bool:
        """Whether nothing is known to hold them still."""
        return not self.remains


def purge(
    pack: AnyPath, dry_run: bool = False, forget_paths: bool = False, progress: Progress | None = None
) -> PurgeReport:
    """Erase the records of a pack that were deleted: ``packer.purge("photos.lmdb")``.

    Their bytes, labels and paths leave every file of the pack and of its earlier versions; these keep what the newest
    version has. Only the shards that hold them are written again. The paths stay in the lists of what was skipped and
    excluded, so that an update does not bring the images back.

    Args:
        pack: The folder of the pack.
        dry_run: Only look for what would be erased.
        forget_paths: Let the paths leave those lists, too.
        progress: Receives the stage purging, in records of the shards that are written again.

    Returns:
        What was erased, and where bytes of it remain that packer does not reach.

    Raises:
        UsageError: The pack is at a URL, an earlier version, or being changed; or a shard cannot be written again.
        DamagedPack: A file or a record of the pack was altered.
        StorageError: A file cannot be written or removed.
    """
    started, progress = time.perf_counter(), progress or Progress()
    path = check_newest(pack, "packer purge")
    if dry_run:
        history = _history(path, read_manifest(path))
        found = find_deleted(history)
        files, strange = _others(path)
        return _report(history, found, _Done(None, files, strange, _sharing(history, found), []), started, dry_run)
    command = f"packer purge {os.path.basename(path)}{' --forget-paths' if forget_paths else ''}"
    with in_place(), NextVersion(path, command) as new, nothing_grows(path), storage_errors(path):
        discard_unfinished_update(path)
        history = _history(path, new.manifest)
        found = find_deleted(history)
        erased = not_in(found.paths, map(history.table_of(history.newest), range(len(history.newest.shards))))
        manifest = _erase_from_newest(new, history, found, erased, forget_paths, progress)
        now, number = _history(path, manifest or new.manifest), new.number - (manifest is None)
        earlier = EarlierVersions(now, number, erased, forget_paths)
        earlier.rewrite()
        files, strange = _others(path)
        remains = [*other_names(path, files)]
        for name in files:
            remove(os.path.join(path, name))
        sync_path(path)
        earlier.close()
    done = _Done(None if manifest is None else new.number, files, strange, remains, earlier.notes)
    return _report(history, found, done, started)


class _Done(NamedTuple):
    """What a purge has done, or would do."""

    version: int | None
    files: list[str]
    """Those that go."""
    strange: list[str]
    """Those in the pack's folder that are not packer's."""
    remains: list[Remains]
    notes: list[str]


def _report(history: History, found: Deleted, done: _Done, started: float, dry_run: bool = False) -> PurgeReport:
    newest, holders = history.newest, [history.newest.shards[number].container for number in found.shards]
    remains = [*elsewhere(history.pack, newest, [file.name for file in holders], found.unknown), *done.remains]
    remains += leftovers(history.pack) if found.records or done.files else ()
    strange = f"not packer's, and left alone: {', '.join(map(printable, done.strange))}"
    notes = (*done.notes, *([strange] if done.strange and (found.records or done.files) else ()))
    return PurgeReport(
        history.pack, done.version, found.records, found.bytes, len(found.shards) + len(found.gone),
        len(newest.shards), sum(file.bytes for file in holders), len(found.versions), len(done.files), tuple(remains),
        notes, dry_run, time.perf_counter() - started,
    )  # fmt: skip


def _history(pack: str, newest: Manifest) -> History:
    current = current_number(pack, newest)
    return History(pack, newest, {n: read_version(pack, n) for n in numbers_in(pack) if n < current})


def _sharing(history: History, found: Deleted) -> list[Remains]:
    """Return other names of the files that a purge would remove."""
    shards = [history.newest.shards[number] for number in found.shards]
    names = [file.name for shard in shards for file in (shard.container, shard.index)]
    return [*other_names(history.pack, [*names, *found.gone])]


def _others(pack: str) -> tuple[list[str], list[str]]:
    """Return the names in the folder of a pack that no version has: of files like packer's, and of others."""
    newest = read_manifest(pack)
    history = _history(pack, newest)
    manifests = [newest, *history.earlier.values()]
    named = {file.name for manifest in manifests for file in manifest.files} | {MANIFEST_NAME, VERSIONS, *GROWING}
    lists = [read_beside(kind, pack, newest) for kind in BESIDE]
    named |= {file.name for listed in lists if listed is not None for file in listed.files}
    named |= files_of_versions(pack, history.earlier)
    kinds = (LIST, ONE_SHARD, UNFINISHED, SIDECAR_FILE, JPEG_INDEX)
    ours: list[str] = []
    strange: list[str] = []
    for name in sorted({*os.listdir(pack)} - named):
        is_ours = SHARD_NAME.match(name) or any(kind.fullmatch(name) for kind in kinds)
        (ours if is_ours else strange).append(name)
    return ours, strange


def _erase_from_newest(
    new: NextVersion, history: History, found: Deleted, erased: Paths, forget: bool, progress: Progress
) -> Manifest | None:
    """Publish a new version without what was found; return its manifest, or None if the newest has none of it."""
    old, numbers = history.newest, [*found.shards]
    if not numbers and not erased:
        return None
    forgotten = without_paths(new.path, old, erased, forget)
    if not numbers and not forgotten.changed:
        return None
    tables = [check_can_compact(new.path, old, number) for number in numbers]
    progress.stage("purging", sum(map(len, tables)), "records")
    together = OneAtATime(progress)

    def compacted(number: int) -> Compacted:
        shard = old.shards[number]
        names = new.name(shard.container.name), new.name(shard.index.name)
        return compact_shard(new.path, old, number, new.folder, names, together.advance)

    with ThreadPoolExecutor(max(1, min(MOST_THREADS, usable_cores()))) as pool:
        made = dict(zip(numbers, pool.map(compacted, numbers), strict=True))
    replaced = {old.shards[number].container.name for number in numbers}
    companions = {name: file for name, file in old.companions.items() if name not in replaced}
    companions |= {one.entry.container.name: one.companion for one in made.values() if one.companion is not None}
    manifest = replace(
        forgotten.manifest,
        shards=tuple(made[n].entry if n in made else shard for n, shard in enumerate(old.shards)),
        companions=companions,
        linked={name: path for name, path in old.linked.items() if name not in replaced},
    )
    beside_newest(new.path, manifest, new.folder, new.number)
    return new.publish(manifest, forgotten.listings.values(), forgotten.selections, {ERASED: found.records})
