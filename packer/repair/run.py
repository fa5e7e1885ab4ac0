"""The way of a repair: find what is damaged, make it again, and put it back where it is proven or else beside."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace

from packer.build.commit import Output, sync_folder
from packer.checking.files import check_file
from packer.errors import AnyPath, DamagedPack, StorageError, UsageError
from packer.index import read_index
from packer.manifest import MANIFEST_NAME, FileEntry, Manifest, Rejected, ShardEntry, read_manifest
from packer.processes.signals import held_signals
from packer.repair.missing_manifest import Found, find_manifest
from packer.repair.report import LostRecord, RepairReport, Watcher
from packer.repair.salvage import Shard, salvage
from packer.repair.writing import Tally, copy_file, graft, remove, write_index, write_shard
from packer.verify import verify_with

REPAIRED_SUFFIX = ".repaired"


def repair(path: AnyPath, out: str | None = None, watcher: Watcher | None = None) -> RepairReport:
    """Make the pack at `path` whole again, or a new pack of what can be saved of it.

    Files that can be made again byte for byte (their digests say so) are put back in their place. Where that is not
    all that is damaged, or `out` is given, the pack at `path` stays as it is and a new one is made: `out`, or
    NAME.repaired beside it. Raises UsageError where there is no pack or `out` exists, DamagedPack where nothing can be
    saved.
    """
    folder = os.path.abspath(os.fsdecode(path))
    try:
        return _repair(folder, out, watcher or Watcher())
    except OSError as error:
        raise StorageError(error.filename or folder, error.strerror or str(error)) from None


def _repair(folder: str, out: str | None, watcher: Watcher) -> RepairReport:
    found = _manifest(folder)
    target = os.path.abspath(out) if out is not None else folder.rstrip("/") + REPAIRED_SUFFIX
    problems = verify_with(folder, found.manifest).problems if found.digests_known else ()
    if found.digests_known and not found.mended and not problems:
        return RepairReport(folder, None, found.manifest.records, (), (), (), ())
    if os.path.lexists(target):
        raise UsageError(target, "exists", "move it away, or choose another --out")
    output = Output(target, folder, False)
    with output:
        if output.journal.finished:
            raise UsageError(output.partial, "holds an unfinished build", "finish it, or choose another --out")
        output.restart()
        os.mkdir(output.folder)
        work = _Work(folder, output.folder, found, watcher, frozenset(p.file for p in problems))
        work.all_shards()
        if work.whole and out is None:
            restored = work.put_back()
            return RepairReport(folder, None, found.manifest.records, restored, (), (), found.notes)
        manifest = work.finished()
        output.publish(manifest)
    return RepairReport(
        folder, target, manifest.records, (), tuple(work.remade), tuple(work.lost), (*found.notes, *work.notes)
    )


def _manifest(folder: str) -> Found:
    try:
        return Found(read_manifest(folder))
    except DamagedPack as error:
        return find_manifest(folder, error)
    except UsageError as error:
        if os.path.isdir(folder) and not os.path.lexists(os.path.join(folder, MANIFEST_NAME)):
            return find_manifest(folder, error)
        raise


@dataclass(slots=True)
class _Work:
    """A repair on its way."""

    folder: str
    new: str
    """Where files are made."""
    found: Found
    watcher: Watcher
    damaged: frozenset[str]
    """Files of which something is wrong."""
    entries: list[tuple[ShardEntry, tuple[FileEntry, ...]]] = field(default_factory=list)
    """Each shard of the new pack, and its files that still lie in the old pack alone."""
    lost: list[LostRecord] = field(default_factory=list)
    remade: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    healed: list[str] = field(default_factory=list)
    whole: bool = True
    """All is as it was, byte for byte."""

    def all_shards(self) -> None:
        """Make the damaged files again."""
        for shard in self.found.manifest.shards:
            self._shard(shard)

    def _shard(self, old: ShardEntry) -> None:
        manifest, known = self.found.manifest, self.found.digests_known
        container, index = (self._intact(file) for file in (old.container, old.index))
        if container and index:
            if not self.damaged & {old.container.name, old.index.name}:
                records = old.records or len(read_index(os.path.join(self.folder, old.index.name)))
                self.entries.append((replace(old, records=records), (old.container, old.index)))
                return
            container = False  # both are as they were made, and records of it are wrong
        path, rows = (os.path.join(self.folder, file.name) for file in (old.container, old.index))
        shard = Shard(manifest.container, path, rows, container, index, old.records if known else None)
        saved = salvage(shard, manifest.classes if known else None)
        left = (record for record, _ in saved.records)
        try:
            if container:
                self._of_index(old, write_index(self.new, old.container.name, shard.container, shard.path, left))
            else:
                self._of_shard(old, write_shard(self.new, old, manifest, left), index, shard.path)
        except ValueError as error:
            raise DamagedPack(shard.path, f"its records cannot be written again: {error}") from error
        self.lost += saved.lost
        self.whole = self.whole and not saved.lost

    def _intact(self, file: FileEntry) -> bool:
        if self.found.digests_known:
            return check_file(self.folder, file, self.watcher.reading) is None
        return self.found.proves(file)

    def _of_index(self, old: ShardEntry, made: ShardEntry) -> None:
        """The container is intact, and its index was made anew."""
        if self._is_original(made.index, old.index):
            self.healed.append(old.index.name)
        else:
            self.whole = False
        self.entries.append((made, (made.container,)))

    def _of_shard(self, old: ShardEntry, made: ShardEntry | None, index: bool, path: str) -> None:
        """Container and index were made anew; `index`: the old one is intact."""
        if made is None:
            self.whole = False
            return
        name = old.container.name
        same = self._is_original(made.container, old.container)
        if not same and self.found.digests_known and graft(path, os.path.join(self.new, name), old.container):
            made, same = replace(made, container=old.container), True
        if same:
            self.healed.append(name)
        else:
            self.whole = False
            self.remade.append(name)
        if same and index:
            remove(self.new, old.index.name)
            self.entries.append((replace(made, index=old.index), (old.index,)))
            return
        if same and self._is_original(made.index, old.index):
            self.healed.append(old.index.name)
        else:
            self.whole = False
        self.entries.append((made, ()))

    def _is_original(self, made: FileEntry, old: FileEntry) -> bool:
        return self.found.digests_known and made.sha256 == old.sha256

    def put_back(self) -> tuple[str, ...]:
        """Give the files that were made again their places; each is the original, as its digest says."""
        names = list(self.healed)
        if self.found.mended:
            with open(os.path.join(self.new, MANIFEST_NAME), "xb") as file:
                file.write(self.found.manifest.to_json())
                file.flush()
                os.fsync(file.fileno())
            names.append(MANIFEST_NAME)
        with held_signals():
            for name in names:
                os.rename(os.path.join(self.new, name), os.path.join(self.folder, name))
            sync_folder(self.folder)
        return tuple(names)

    def finished(self) -> Manifest:
        """Copy the good files, and make the manifest of the new pack."""
        old = self.found.manifest
        tally = Tally()
        for entry, staying in self.entries:
            for file in staying:
                copy_file(os.path.join(self.folder, file.name), self.new, file, self.watcher)
            tally.add(os.path.join(self.new, entry.index.name))
        records = sum(entry.records for entry, _ in self.entries)
        if not records:
            raise DamagedPack(self.folder, "nothing vouches for any of its records", "build the pack again")
        lost = sum(entry.records for entry in self.lost)
        self.notes.append(f"repaired: {records} records are left, {lost} are lost")
        counts = {**old.counts, "packed": records, "rejected": old.counts["rejected"] + lost}
        if not self.found.digests_known:
            counts = {**counts, "found": records + lost, "rejected": lost, "skipped": 0}
        return replace(
            old,
            records=records,
            counts={**counts, **({"boxes": tally.boxes} if "boxes" in counts or tally.boxes else {})},
            class_counts=tally.class_counts(len(old.classes)),
            shards=tuple(entry for entry, _ in self.entries),
            rejected=(*old.rejected, *(Rejected(e.path or "", "lost", f"{e}, was damaged") for e in self.lost)),
            notes=(*old.notes, *self.found.notes, *self.notes),
        )
