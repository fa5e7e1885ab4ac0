"""Builds in parts, jobs of their own, as in an array of Slurm; and the packs of a source that has splits."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from packer.containers import container_of
from packer.errors import NoLabel, PackerError, UsageError, option, plural, printable
from packer.format.manifest import FileEntry, Manifest
from packer.format.pack_paths import MANIFEST_NAME, PARTIAL_SUFFIX
from packer.packing.build_options import BuildOptions
from packer.packing.input_table import Inputs
from packer.packing.journal import Journal, ShardResult
from packer.packing.plan import Plan
from packer.packing.publish import JOURNAL, PACK, PART, TAKEN, Output
from packer.packing.resume import differences, options_that_shape_bytes, versions
from packer.packing.scan import Listed, list_source
from packer.packing.store_journal import StoreJournal
from packer.packing.write_shard import Check, ShardJob, digest_of_inputs, has_intact_files, is_unchanged
from packer.sources import open_parts, splits_of_labels
from packer.sources.part_files import mask_asked
from packer.sources.paths import as_bytes
from packer.sources.paths import splits_in as named_in
from packer.sources.source import SourceOptions
from packer.sources.walk import Run, run_here
from packer.stores import open_store
from packer.stores.store import NoObject
from packer.system.atomic import check_own_folder, is_own_file, make_own_folder
from packer.system.locks import LOCK, FolderLock, lock_folder, remove_folder
from packer.system.storage import storage_errors

MOST_NAMED = 8
"""Parts that an error names."""
PATIENCE_S = 60.0
"""For other parts that begin at the same moment."""
POLL_S = 0.05
FORM = re.compile(r"(\d{1,6})/(\d{1,6})")


# Builds in parts: jobs of their own, as in an array of Slurm, pack some of the shards each; another one publishes.
#
# Every part plans the whole pack in the same way, and keeps its shards in a folder of its own in NAME.partial.


@dataclass(frozen=True, slots=True)
class BuildPart:
    """Part `number` of `parts`, from 1."""

    number: int
    parts: int

    @classmethod
    def of(cls, text: str) -> BuildPart:
        """Return the part that ``--job`` names: ``3/16``. Raise UsageError if there is none."""
        match = FORM.fullmatch(text.strip())
        part = cls(int(match[1]), int(match[2])) if match else cls(0, 0)
        if not 1 <= part.number <= part.parts:
            problem = f"must be K/N, with K from 1 to N, got {printable(text)}"
            raise UsageError(option("job"), problem, "of 16 parts, the first is 1/16 and the last 16/16")
        return part

    def __str__(self) -> str:
        return f"{self.number}/{self.parts}"

    @property
    def folder(self) -> str:
        """The name of its folder in NAME.partial."""
        return f"part-{self.number}-of-{self.parts}"

    def shards(self, count: int) -> range:
        """Return which of `count` shards it packs: neighbors, which share archives."""
        return range(count * (self.number - 1) // self.parts, count * self.number // self.parts)

    @classmethod
    def with_shard(cls, shard: int, count: int, parts: int) -> BuildPart:
        """Return the part that packs a shard."""
        return cls(-(-parts * (shard + 1) // count), parts)


def parts_in(partial: str) -> list[BuildPart]:
    """Return the parts that have a folder in NAME.partial, in order."""
    names = os.listdir(partial) if os.path.isdir(partial) else []
    found = [BuildPart(int(match[1]), int(match[2])) for name in names if (match := PART.fullmatch(name))]
    return sorted(found, key=lambda part: (part.parts, part.number))


def _lock_for_a_moment(partial: str) -> FolderLock | None:
    """Lock NAME.partial as a whole build does; other parts do it for a moment each. Return None if a build keeps it."""
    until = time.monotonic() + PATIENCE_S
    while (lock := lock_folder(partial)) is None and time.monotonic() < until:
        if os.path.lexists(os.path.join(partial, JOURNAL)):
            return None
        time.sleep(POLL_S)
    return lock


class PartOutput(Output):
    """The directory of one part. Other parts may be at work in theirs."""

    def __init__(self, path: str, source: str, overwrite: bool, part: BuildPart) -> None:
        super().__init__(path, source, overwrite)
        self._whole = self.partial
        self._work_in(os.path.join(self.partial, part.folder))

    def __enter__(self) -> Output:
        with storage_errors(self._whole):
            lock = _lock_for_a_moment(self._whole)
        if lock is None:
            problem = "a whole build, or --finish, is writing to it"
            raise UsageError(self.path, problem, "wait for it, or choose another --out")
        try:
            return super().__enter__()
        finally:
            self._give_back(lock)

    def _open(self) -> None:
        self._check_free()  # what was waited for may have published the pack
        if os.path.lexists(os.path.join(self._whole, JOURNAL)):
            problem = "holds an unfinished build that is not in parts"
            raise UsageError(self._whole, problem, "finish it with the same command without --job, or remove it")
        super()._open()

    def _leave(self) -> None:
        super()._leave()
        if (lock := lock_folder(self._whole)) is not None:
            self._give_back(lock)

    def _give_back(self, lock: FolderLock) -> None:
        """Release the lock of NAME.partial, and remove the folder if nothing is in it."""
        if {*os.listdir(self._whole)} <= {LOCK}:
            remove_folder(self._whole, lock)
        lock.close()

    @property
    def _is_kept(self) -> bool:
        return bool(self.journal.finished)  # its images may all be bad


class FinishedParts(Output):
    """The directory of a build whose parts are packed: takes their shards, if all are there."""

    def __init__(self, path: str, source: str, overwrite: bool, recheck: bool = False) -> None:
        super().__init__(path, source, overwrite)
        self._recheck = recheck
        self._whole = self.partial
        self._work_in(os.path.join(self.partial, TAKEN))
        self.rest = self._whole
        self._finished: dict[str, ShardResult] = {}
        self._parts: list[BuildPart] = []
        self._locks: list[FolderLock] = []

    def _open(self) -> None:
        if not parts_in(self._whole):
            step = "run packer build with --job for each part first"
            raise UsageError(self._whole, "holds no parts of a build", step)
        super()._open()
        self._check_names(self._whole, {LOCK, TAKEN, *(part.folder for part in parts_in(self._whole))})

    def read_journal(self, head: Mapping[str, Any]) -> list[str]:
        """Lock all parts, and read their journals.

        Raises:
            UsageError: One is still being built, or differs from this build.
        """
        self._parts = parts_in(self._whole)
        if len({part.parts for part in self._parts}) > 1:
            counts = " and ".join(str(count) for count in sorted({part.parts for part in self._parts}))
            step = f"remove the folders of all but one, such as part-*-of-{self._parts[0].parts}"
            raise UsageError(self._whole, f"holds builds in {counts} parts", step)
        for part in self._parts:
            folder = os.path.join(self._whole, part.folder)
            lock = lock_folder(folder)
            if lock is None:
                raise UsageError(self.path, f"part {part} is still being built", "wait until it has ended")
            self._locks.append(lock)
            if os.path.lexists(os.path.join(folder, PACK)):
                check_own_folder(os.path.join(folder, PACK))  # files are moved out of it
            journal = Journal(os.path.join(folder, JOURNAL))
            if journal.head != head:
                problem = f"part {part} differs from this build: {differences(journal.head, head)}"
                step = f"use the same options, or run --job={part} again with --overwrite"
                raise UsageError(self.path, problem, step)
            self._finished.update(journal.finished)
        return []

    def restart(self) -> None:
        """Do nothing: files that an interrupted call has taken are those of the parts."""

    def clear(self) -> None:
        """Remove everything but the files of finished shards."""
        make_own_folder(self.folder)
        self._clear_work()

    @property
    def kept(self) -> str:
        """What is left for the next attempt, as a note."""
        where = printable(self._whole)
        return f"the parts are kept in {where}" if self._parts else ""

    resumes_with = "run --finish again"

    def _leave(self) -> None:
        for lock in self._locks:
            lock.close()
        self._close()

    def results(
        self, jobs: Sequence[ShardJob], run: Callable[[Check, list[ShardJob]], Iterator[tuple[int, bool]]]
    ) -> Iterator[tuple[int, ShardResult]]:
        """Take the files of all shards, and yield (number of the shard, result).

        Args:
            jobs: The shards.
            run: Runs a check of each shard, and yields (number, its answer).

        Raises:
            UsageError: A part is not complete, its shards are damaged, or the source has changed since.
        """
        missing, changed = set(), set()
        parts = [BuildPart.with_shard(number, len(jobs), self._parts[0].parts) for number in range(len(jobs))]
        for part, job in zip(parts, jobs, strict=True):
            result = self._finished.get(job.name)
            if result is None or not all(_has_size(path, file) for path, file in self._files(part, result)):
                missing.add(part)
            elif result.inputs != digest_of_inputs(job):
                changed.add(part)
        if missing:
            raise self._again(missing, "part {} is not complete", "parts {} are not complete")
        if changed:
            since = "the source has changed since part"
            raise self._again(changed, since + " {} was built", since + "s {} were built")
        self._check(jobs, parts, run)
        for number, job in enumerate(jobs):
            result = self._finished[job.name]
            for path, file in self._files(parts[number], result):
                self._take(path, file)
            yield number, replace(result, unchanged=True)

    def _check(
        self,
        jobs: Sequence[ShardJob],
        parts: Sequence[BuildPart],
        run: Callable[[Check, list[ShardJob]], Iterator[tuple[int, bool]]],
    ) -> None:
        """Raise UsageError if files of shards, or with `recheck` their images, are not as when they were packed."""
        check, what = (is_unchanged, "shards or images") if self._recheck else (has_intact_files, "shards")
        there = [self._where_packed(part, job) for part, job in zip(parts, jobs, strict=True)]
        if altered := {parts[number] for number, is_good in run(check, there) if not is_good}:
            since = f"{what} have changed since they were packed"
            raise self._again(altered, f"part {{}}: {since}", f"parts {{}}: {since}")

    def _where_packed(self, part: BuildPart, job: ShardJob) -> ShardJob:
        """Return the job of a shard with the folder of its files: that of its part, or of an interrupted call."""
        result = self._finished[job.name]
        files = list(self._files(part, result))
        folders = {os.path.dirname(path) for path, _ in files}
        if len(folders) > 1:  # that call was interrupted between the two
            for path, file in files:
                self._take(path, file)
            folders = {self.folder}
        return replace(job, finished=result, folder=next(iter(folders), job.folder))

    def _take(self, path: str, file: FileEntry) -> None:
        with storage_errors(path):
            os.replace(path, os.path.join(self.folder, file.name))

    def _files(self, part: BuildPart, result: ShardResult) -> Iterator[tuple[str, FileEntry]]:
        """Yield the paths and entries of the files of a shard, which an interrupted call may have taken."""
        for file in () if result.entry is None else (result.entry.container, result.entry.index):
            path = os.path.join(self._whole, part.folder, PACK, file.name)
            yield path if os.path.lexists(path) else os.path.join(self.folder, file.name), file

    def _again(self, parts: set[BuildPart], one: str, several: str) -> UsageError:
        """Return the error that some parts are not as they should be."""
        named = [str(part) for part in sorted(parts, key=lambda part: part.number)]
        more = f", and {len(named) - MOST_NAMED} others" if len(named) > MOST_NAMED else ""
        named = named[:MOST_NAMED]
        problem = (one if len(named) == 1 else several).format(", ".join(named) + more)
        return UsageError(self.path, problem, f"run --job={' and --job='.join(named)}{more}")


def _has_size(path: str, file: FileEntry) -> bool:
    with suppress(FileNotFoundError):
        return is_own_file(path) and os.path.getsize(path) == file.bytes
    return False


@dataclass(frozen=True, slots=True)
class PartSummary:
    """What a part has packed."""

    path: str
    part: BuildPart
    shards: int
    """Of this part."""
    of_shards: int
    records: int
    seconds: float

    @property
    def line(self) -> str:
        """The same in words."""
        return (
            f"part {self.part}: {plural(self.records, 'image')} in {self.shards} of {plural(self.of_shards, 'shard')}; "
            "when all parts are there, publish the pack with the same command and --finish in place of --job"
        )


TEST = b"test"


class _NeedsScratch(Exception):
    """The source must be written out before its files are known."""


class HasSplits(Exception):
    """The source has splits, which was found while it was planned as one pack."""

    def __init__(self, splits: Sequence[str]) -> None:
        super().__init__(splits)
        self.splits = tuple(splits)


def list_with_splits(options: BuildOptions, run: Run = run_here) -> tuple[Listed | None, tuple[str, ...]]:
    """Return the files of the source, and its splits; (None, ()) if it must be decompressed before it can be listed.

    Raises:
        UsageError: It cannot be listed.
    """

    def scratch(name: str) -> str:
        raise _NeedsScratch(name)

    try:
        listed = list_source(options, run, scratch)
        return listed, splits_in(options, listed)
    except _NeedsScratch:
        return None, ()


def splits_in(options: BuildOptions, listed: Listed) -> tuple[str, ...]:
    """Return the splits of a source, two or more; () if all is one pack, as with ``--split`` and ``--like``."""
    if options.split is not None or options.like is not None or not listed.tree.images:
        return ()
    of_all = SourceOptions(
        None, options.one_columns, None, options.labels == ("auto",),
        mask_values=options.mask_values, ignore_id=options.ignore_id,
    )  # fmt: skip
    with suppress(PackerError):  # the build will raise it
        asked = mask_asked(options.mask, options.part)
        tree, _ = open_parts(options.part, listed.tree, of_all, asked)
        return splits_of_labels(options.labels, tree, of_all, asked)
    return ()


def is_test_without_labels(options: BuildOptions, inputs: Inputs) -> bool:
    """Return whether the images are those of a test split, which all lack a label; of other splits that is an error."""
    if options.missing_labels != "error" or inputs.rows or not inputs.bad:
        return False
    return TEST in {name for name, _ in named_in(as_bytes(options.one_split or ""))} and set(
        inputs.rejected.counts
    ) == {NoLabel.reason}


def of_each(options: BuildOptions, splits: Sequence[str]) -> list[BuildOptions]:
    """Return the options for the pack of each split: NAME-train.lmdb for ``--out NAME.lmdb``."""
    every = []
    for split in splits:
        out, quarantine = options.out, options.quarantine
        if out is not None:
            out = out.rstrip("/") or out
            stem, extension = os.path.splitext(out) if container_of(out) else (out, "")
            out = f"{stem}-{split}{extension}"
        if quarantine is not None:
            quarantine = os.path.join(quarantine, split)
        every.append(replace(options, split=split, out=out, quarantine=quarantine))
    return every


def published_before(every: Sequence[BuildOptions]) -> set[str]:
    """Return the splits whose packs an interrupted build of the same splits has published, if others are left.

    Packs of splits are published when all are packed: if the work of one is unfinished, and another one is there, the
    build was interrupted in between.
    """
    if every[0].overwrite:
        return set()
    there = {options.split or "" for options in every if _is_published(options)}
    left = [options for options in every if options.split not in there]
    return there if there and left and all(map(_is_packed, left)) else set()


def in_no_pack(plans: Sequence[Plan]) -> str:
    """Return a note on the images of the source that none of the packs of its splits takes; "" if there are none."""
    options, inputs = plans[0].options, plans[0].inputs
    count = inputs.images - sum(plan.inputs.taken for plan in plans)
    if len(plans) < 2 or count <= 0 or options.include or options.exclude:
        return ""
    return f"{plural(count, 'image is', 'images are')} in none of the splits (packer info --skipped lists them)"


def check_classes(published: Sequence[Manifest], classes: Sequence[tuple[str, ...]]) -> None:
    """Raise UsageError if the labels have changed since an interrupted build published the packs of some splits."""
    if published and {manifest.classes for manifest in published} != {*classes}:
        problem = "has other classes since its first packs were published"
        raise UsageError("SRC", problem, "build all again with --overwrite")


def _is_published(options: BuildOptions) -> bool:
    if not options.to_store:
        return os.path.isfile(os.path.join(options.output, MANIFEST_NAME))
    try:
        open_store(options.output).size(MANIFEST_NAME)
    except NoObject:
        return False
    return True


def _is_packed(options: BuildOptions) -> bool:
    """Return whether a build with these options has left finished shards."""
    head = {"asked": options_that_shape_bytes(options), "made_with": versions()}
    if options.to_store:
        return bool(StoreJournal(open_store(options.output), head).finished)
    partial = os.path.abspath(options.output) + PARTIAL_SUFFIX
    folders = [os.path.join(partial, part.folder) for part in parts_in(partial)] if options.finish else [partial]
    journals = [Journal(os.path.join(folder, JOURNAL)) for folder in folders]
    return any(journal.head == head and journal.finished for journal in journals)
