"""Saves what can be saved of a damaged pack, without changing the only copy of anything.

A rebuilt file with the digest in the manifest is identical to the original and replaces it. Otherwise the good
records go to a new pack beside the old one.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial

from packer.errors import AnyPath, DamagedPack, PackerError, PackNotFound, StorageError, UsageError, plural
from packer.format.digests import sha256_of
from packer.format.lists import carry_over
from packer.format.make_jpeg_index import drop_damaged, find_beside
from packer.format.manifest import (
    MAX_MANIFEST_BYTES,
    FileEntry,
    Manifest,
    Rejected,
    ShardEntry,
    parse_manifest,
    read_manifest,
)
from packer.format.pack_paths import MANIFEST_NAME, PARTIAL_SUFFIX
from packer.format.salvage_records import (
    FoundShard,
    LostRecord,
    class_counts_of,
    good_records,
    manifest_of,
    shards_in,
    write_index_of,
    write_shard,
)
from packer.format.sidecar_list import SidecarList, not_carried
from packer.format.verify import Problem, check_file, check_pack, damaged_files
from packer.format.verify_records import restore_companions, write_companions
from packer.format.versions import check_newest
from packer.model.annotation import Progress
from packer.system import open_regular, sync_path
from packer.system.atomic import remove, write_new

__all__ = ["LostRecord", "RepairReport", "repair"]

REPAIRED_SUFFIX = ".repaired"
ONLY_CRC = (
    "kept because of their CRC-32C alone, as the file is not the one that was packed; that finds accidents, but can be "
    "forged: if somebody may have changed the pack, compare it with a copy (packer diff) or build it again"
)


@dataclass(frozen=True, slots=True)
class RepairReport:
    """The result of `repair`."""

    path: str
    out: str | None
    """The new pack; None if the pack at `path` is intact or was restored."""
    records: int
    """Number of records in the intact pack."""
    restored: tuple[str, ...]
    """Files that were rebuilt byte for byte and restored in place."""
    remade: tuple[str, ...]
    """Shards that were rewritten in the new pack."""
    lost: tuple[LostRecord, ...]
    notes: tuple[str, ...]

    @property
    def lost_records(self) -> int:
        """Number of lost records."""
        return sum(entry.records for entry in self.lost)


def repair(path: AnyPath, out: str | None = None, progress: Progress | None = None) -> RepairReport:
    """Repair the pack at `path`, or save what is left of it in a new pack.

    Files that can be rebuilt byte for byte, as their digests prove, are restored in place. If that is not enough, or
    if `out` is given, the pack at `path` stays unchanged and a new one is written.

    Args:
        path: The damaged pack.
        out: Path of the new pack. None: NAME.repaired beside the damaged one, and only if it is needed.
        progress: Receives the stages verifying and repairing, in bytes.

    Returns:
        The restored files, rewritten shards and lost records.

    Raises:
        UsageError: If `path` is not a pack, or the path of the new one exists.
        DamagedPack: If nothing can be saved.
        StorageError: If a file cannot be read or written.
    """
    folder = check_newest(path, "packer repair") if out is None else os.path.abspath(os.fsdecode(path))
    target = folder.rstrip("/") + REPAIRED_SUFFIX if out is None else os.path.abspath(out)
    try:
        report = _Repair(folder, target, out is None, progress or Progress()).run()
        if report.out is None:
            manifest = read_manifest(folder)
            check = partial(check_file, folder, manifest, progress=Progress())
            notes = (*drop_damaged(folder, manifest, check), *_damaged_sidecars(folder, manifest, check))
        else:
            notes = tuple(not_carried([folder]))
        return replace(report, notes=(*report.notes, *notes))
    except PackerError:
        raise
    except OSError as error:
        raise StorageError(error.filename or folder, error.strerror or str(error)) from None


def _damaged_sidecars(folder: str, manifest: Manifest, check: Callable[[FileEntry], Problem | None]) -> Iterator[str]:
    """Yield a note for each file of a sidecar that is damaged: nothing here can make it again."""
    listed, problems = find_beside(SidecarList, folder, manifest)
    problems += filter(None, map(check, () if listed is None else listed.data_files))
    for problem in problems:
        yield f"{problem}: sidecars are not repaired; {SidecarList.again(folder, problem.file)}"


@dataclass(slots=True)
class _Repair:
    """A repair in progress; `target` and `in_place` tell where its result may go."""

    folder: str
    target: str
    in_place: bool
    progress: Progress
    made: list[tuple[ShardEntry, tuple[FileEntry, ...]]] = field(default_factory=list)
    """Each shard of the new pack, and those of its files that still have to be copied from the old pack."""
    lost: list[LostRecord] = field(default_factory=list)
    remade: list[str] = field(default_factory=list)
    healed: list[str] = field(default_factory=list)
    """Files that were rebuilt byte for byte."""
    whole: bool = True
    """Whether all files so far are identical to the originals."""
    damaged: frozenset[str] = frozenset()
    """Names of damaged files."""

    def run(self) -> RepairReport:
        manifest, known = self._manifest()
        problems = check_pack(self.folder, manifest, self.progress).problems if known else ()
        if known and not problems and not self.healed:
            return RepairReport(self.folder, None, manifest.records, (), (), (), ())
        manifest.check_no_windows(self.folder, "files with such images are not repaired")
        self.damaged = damaged_files(self.folder, manifest, problems)
        self._check_as_made(manifest, problems)
        self.whole = not any(file.name in self.damaged for file in manifest.lists.values())
        shards = []
        for entry in manifest.shards:
            container, index = (known and file.name not in self.damaged for file in (entry.container, entry.index))
            is_linked = entry.container.name in manifest.linked
            shards.append(FoundShard(entry, manifest.container, self.folder, container, index, known, is_linked))
        notes: tuple[str, ...] = ()
        if not known:
            manifest, notes = manifest_of(manifest, shards)
        self.progress.stage("repairing", sum(shard.entry.container.bytes for shard in shards), "B")
        with _new_folder(self.target, self.folder) as work:
            for shard in shards:
                self._make(work, manifest, shard)
            if self.whole:
                self.whole = restore_companions(self.folder, work, manifest, self.damaged)
            if self.whole and known and self.in_place:
                return self._put_back(work, manifest)
            before = len(manifest.notes)
            manifest = self._finished(work, manifest, notes)
            notes = manifest.notes[before:]
            write_new(os.path.join(work, MANIFEST_NAME), manifest.to_json())
            sync_path(work)
            os.rename(work, self.target)
            sync_path(os.path.dirname(self.target))
        return RepairReport(self.folder, self.target, manifest.records, (), tuple(self.remade), tuple(self.lost), notes)

    def _manifest(self) -> tuple[Manifest, bool]:
        """Return the manifest, or one that only lists the files; and whether it is the original."""
        try:
            return read_manifest(self.folder), True
        except (DamagedPack, PackNotFound):
            if not os.path.isdir(self.folder):
                raise
            path = os.path.join(self.folder, MANIFEST_NAME)
            with suppress(OSError, ValueError, RecursionError), open_regular(path) as file:
                # its digest covers the content only: with other line ends it is still the original
                text = json.dumps(json.loads(file.read(MAX_MANIFEST_BYTES)), indent=1) + "\n"
                manifest = parse_manifest(path, text.encode("ascii"))
                self.healed.append(MANIFEST_NAME)
                return manifest, True
            if (listed := shards_in(self.folder)) is None:
                raise
            return listed, False

    def _check_as_made(self, manifest: Manifest, problems: Sequence[Problem]) -> None:
        """Raise DamagedPack if an index makes no sense although it is as it was written: what is right is not known."""
        for shard in manifest.shards:
            wrong = next((problem for problem in problems if problem.file == shard.index.name), None)
            if wrong is not None and check_file(self.folder, manifest, shard.index, Progress()) is None:
                problem = f"{wrong.problem}; its digest is right, so that the pack was made so"
                where = os.path.join(self.folder, wrong.file)
                raise DamagedPack(where, f"record {wrong.record} {problem}", "build the pack again")

    def _make(self, work: str, manifest: Manifest, shard: FoundShard) -> None:
        """Rebuild the damaged files of a shard."""
        old, lost = shard.entry, list[LostRecord]()
        entry: ShardEntry | None
        if shard.container_intact and shard.index_intact:
            self.made.append((old, (old.container, old.index)))
            return
        try:
            if not shard.index_intact and shard.is_linked:
                entry = self._same_index(work, manifest, shard, lost)
            elif shard.container_intact:
                entry = write_index_of(work, shard, manifest.part_specs)
            else:
                entry = write_shard(work, manifest, old, good_records(shard, lost))
        except ValueError as error:
            if isinstance(error, PackerError):
                raise
            raise DamagedPack(shard.container, f"its records cannot be written again: {error}") from error
        self.lost += lost
        files = ((old.container, shard.container_intact), (old.index, shard.index_intact))
        made = () if entry is None else (entry.container, entry.index)
        healed = [a.name for (a, intact), b in zip(files, made, strict=False) if not intact and a.sha256 == b.sha256]
        self.healed += healed
        self.whole &= not lost and len(healed) == sum(not intact for _, intact in files)
        if entry is not None:
            if not shard.container_intact and old.container.name not in healed:
                self.remade.append(shard.name)
            self.made.append((entry, (entry.container,) if shard.container_intact else ()))

    def _same_index(
        self, work: str, manifest: Manifest, shard: FoundShard, lost: list[LostRecord]
    ) -> ShardEntry | None:
        """Write the index of a linked container if it is the one that the pack had.

        Other records, keys and class ids may be in the container than in the pack, so no other index can be trusted.
        """
        if shard.container_intact:
            entry = write_index_of(work, shard, manifest.part_specs)
            if entry.index.sha256 == shard.entry.index.sha256:
                return entry
            os.unlink(os.path.join(work, entry.index.name))
        lost.append(LostRecord(shard.name, None, None, shard.entry.records))
        return None

    def _put_back(self, work: str, manifest: Manifest) -> RepairReport:
        """Restore the rebuilt files in place; their digests prove that they are identical to the originals."""
        if MANIFEST_NAME in self.healed:
            write_new(os.path.join(work, MANIFEST_NAME), manifest.to_json())
        self.healed += sorted(self.damaged & {file.name for file in manifest.companions.values()})
        for name in self.healed:
            os.replace(os.path.join(work, name), os.path.join(self.folder, name))
        sync_path(self.folder)
        return RepairReport(self.folder, None, manifest.records, tuple(self.healed), (), (), ())

    def _finished(self, work: str, old: Manifest, notes: tuple[str, ...]) -> Manifest:
        """Copy the good files, and return the manifest of the new pack."""
        kept = [file for _, staying in self.made for file in staying]
        for file in kept:
            self._copy(work, file)
        linked = {file.name: "" for file in kept if file.name in old.linked}  # all in the folder: see damaged_files
        records = sum(entry.records for entry, _ in self.made)
        if not records:
            raise DamagedPack(self.folder, "none of its records can be verified", "build the pack again")
        lost = sum(entry.records for entry in self.lost)
        class_counts, boxes = class_counts_of(
            [os.path.join(work, entry.index.name) for entry, _ in self.made], len(old.classes)
        )
        counts = {**old.counts, "packed": records, "rejected": old.counts["rejected"] + lost}
        counts["found"] = sum(counts[name] for name in ("packed", "rejected", "skipped"))
        gone = (Rejected(e.path or "", "lost", f"{e}, was damaged") for e in self.lost)
        listed, more = carry_over(self.folder, work, old, self.damaged, gone)
        listed = replace(listed, shards=tuple(entry for entry, _ in self.made))
        if remade := sum(entry.records for entry, _ in self.made if entry.container.name in self.remade):
            more = [*more, f"{plural(remade, 'record')} in {', '.join(self.remade)}: {ONLY_CRC}"]
        left = f"repaired: {plural(records, 'record is', 'records are')} left, {lost} lost"
        return replace(
            listed,
            records=records,
            counts={**counts, **({"boxes": boxes} if "boxes" in counts or boxes else {})},
            class_counts=class_counts,
            linked=linked,
            companions=write_companions(work, replace(listed, linked=linked, companions={})),
            notes=(*old.notes, *notes, *more, left),
        )

    def _copy(self, work: str, file: FileEntry) -> None:
        source, target = os.path.join(self.folder, file.name), os.path.join(work, file.name)
        with open_regular(source) as old, open(target, "xb") as new:
            shutil.copyfileobj(old, new)
        sync_path(target)
        if sha256_of(target, self.progress.advance) != file.sha256:
            raise DamagedPack(source, "changed while it was copied", "check the disk, and repair again")


@contextmanager
def _new_folder(target: str, source: str) -> Iterator[str]:
    """Create the folder in which the new pack grows; remove it unless it was renamed to `target`."""
    if os.path.lexists(target):
        raise UsageError(target, "exists", "move it away, or pass another --out")
    if os.path.realpath(target).startswith(os.path.realpath(source) + os.sep):
        raise UsageError(target, "is inside the damaged pack", "pass another --out")
    partial = target + PARTIAL_SUFFIX
    try:
        os.mkdir(partial)
    except FileExistsError:
        problem = "exists: another repair or build is running, or was killed"
        raise UsageError(partial, problem, "wait for it, or remove the folder") from None
    except FileNotFoundError:
        raise UsageError(os.path.dirname(target), "no such folder for the pack", "create it") from None
    try:
        yield partial
    finally:
        remove(partial, ignore_errors=True)
