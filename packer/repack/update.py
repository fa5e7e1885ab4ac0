"""Brings a pack up to date with the folder that it was built from: what has changed is packed as new shards.

No image is read that is as it was; records of images that were changed or removed are dropped from the indexes.
"""

from __future__ import annotations

import os
import shlex
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow.compute as pc

import packer
from packer.errors import AnyPath, StorageError, UsageError, option, printable
from packer.format.lists import KINDS, read_list
from packer.format.manifest import Manifest, ShardEntry, of_parts
from packer.model.annotation import Int64, Progress
from packer.packing.bad_inputs import check_quarantine, list_rejected
from packer.packing.build_options import BuildOptions
from packer.packing.build_steps import (
    PRELOADED,
    SourceReading,
    check_libraries,
    fingerprint_rows,
    pack_shards,
    plan_of,
    run_in,
)
from packer.packing.engines import Engine, open_engine
from packer.packing.journal import ShardResult
from packer.packing.plan import Plan
from packer.packing.publish import Output
from packer.packing.recorded import options_like
from packer.packing.remembered import Seen, place_of, recall, remember
from packer.packing.resume import options_that_shape_bytes, resume_or_restart, skipped_lines
from packer.packing.scan import Listed, list_source
from packer.repack.changed_files import PackedImages, SourceChanges, SourceCheck
from packer.repack.compact_dead import DEFAULT_SHARE, dead_shares, share_of_text
from packer.repack.images_again import ImagesAgain, notes_on_extras
from packer.repack.links import Taken
from packer.repack.update_target import FolderTarget, NewContent, StoreTarget, Target
from packer.stores import is_url
from packer.system import usable_cores
from packer.system.pool import Pool

CHECKS = ("time", "digest")
SHOWN = 5
OF_LABELS = ("labels_from", "set")


@dataclass(frozen=True, slots=True)
class UpdateOptions:
    """How a pack is updated.

    Args:
        check: How images are found that have changed: by ``time``, and by the digest of their bytes where times do not
            say it for sure; or all by ``digest``.
        dry_run: Only say what would be done.
        compact: A shard of whose bytes a larger share is dead is written again with its live records; ``never``: none
            is. Those of a pack at a URL stay.
        labels: Kinds of labels, if the pack was made with a file that is not below its source. None: those of the pack.
        max_bad: How many bad inputs the new pack may have, as of a build. None: as many as the pack has now.
        workers: Number of worker processes. None: one for each core.
        decode_timeout: Maximum seconds to decode an image. None: no limit.
        scratch: Folder for unfinished shards if the pack is at a URL. None: that for temporary files.
        quarantine: Folder for rejected.tsv, the list of bad inputs.

    Raises:
        UsageError: A value is none of its choices.
    """

    check: str = "time"
    dry_run: bool = False
    compact: str = DEFAULT_SHARE
    labels: Sequence[str] | None = None
    max_bad: str | None = None
    workers: int | None = None
    decode_timeout: float | None = 60.0
    scratch: str | None = None
    quarantine: str | None = None

    def __post_init__(self) -> None:
        if self.check not in CHECKS:
            raise UsageError(option("check"), f"must be time or digest, got {printable(str(self.check))}")
        share_of_text(self.compact)

    @property
    def of_build(self) -> dict[str, Any]:
        """Those that a build has, too, as far as they are given."""
        names = ("labels", "workers", "decode_timeout", "scratch", "quarantine")
        given = {name: getattr(self, name) for name in names}
        return {name: value for name, value in given.items() if value is not None or name == "decode_timeout"}


@dataclass(frozen=True, slots=True)
class UpdateReport:
    """The result of `update`. Names of files are relative to the source."""

    path: str
    source: str
    manifest: Manifest
    """That of the pack as it is now."""
    version: int | None
    """The number of the new version. None: there is none, or the pack is at a URL."""
    new: tuple[str, ...]
    """Images that the pack did not have."""
    changed: tuple[str, ...]
    """Images with other bytes, or other labels."""
    removed: tuple[str, ...]
    """Images whose records were dropped: their files were removed, or cannot be packed any more."""
    rejected: int
    """Bad inputs of the source."""
    shards: int
    """New shards."""
    compacted: int
    """Shards that were written again without what is dead."""
    dry_run: bool
    notes: tuple[str, ...]
    seconds: float

    @property
    def is_changed(self) -> bool:
        """Whether there was anything to do."""
        return bool(self.new or self.changed or self.removed or self.version is not None or self.shards)


def update(
    pack: AnyPath, source: AnyPath | None = None, progress: Progress | None = None, **options: Any
) -> UpdateReport:
    """Bring a pack up to date with the folder that it was built from.

    New, changed and removed images are found by times and digests; the options are those of the build. What is new or
    changed is packed as new shards, and a pack in a folder gets a new version (`packer.versions_of`). If it is
    interrupted, the same call resumes. The records are then those that a build of the folder would have; but class ids
    stay, new classes follow, and a class that has lost its last image stays.

    Args:
        pack: The pack, or its URL.
        source: The folder, archive or URL that it was built from. None: that of the build, if it was on this machine.
        progress: Receives the images that were compared, read and packed, the plan and notes.
        options: The fields of `UpdateOptions`.

    Returns:
        What was done.

    Raises:
        UsageError: The pack was not made by a build, or the source is not known.
        TooManyBad: More inputs than `max_bad` are bad.
        PackerError: As of `packer.build`.
    """
    started = time.perf_counter()
    asked = UpdateOptions(**options)
    with ExitStack() as held:
        cores = asked.workers or usable_cores()
        listers = held.enter_context(Pool(cores, None, "packer.sources.walk"))
        listers.start(cores)  # they load their libraries while the pack is opened
        scratch = held.enter_context(TemporaryDirectory(prefix="packer-build-"))
        path = os.fsdecode(pack)
        target: Target = StoreTarget(path, scratch) if is_url(path) else FolderTarget(path)
        held.callback(target.close)
        run = _Update(target, None if source is None else os.fsdecode(source), asked, progress or Progress(), scratch)
        return replace(run.run(listers), seconds=time.perf_counter() - started)


def _check_was_built(target: Target) -> list[str]:
    """Return notes on what an update does not do. Raise UsageError if the pack was not made by a build."""
    manifest = target.source.manifest
    others = [one for one in manifest.made_from if one.command != "edit"]
    if others or "labels" not in manifest.options:
        what = f"was made by packer {others[0].command}" if others else "was not made by packer build"
        if others and others[0].command == "PackWriter":
            what = "was made by packer.PackWriter"
        step = "update the packs that it was made from, and make it again"
        raise UsageError(target.path, f"{what}, not from a folder of images", step)
    if manifest.options.get("tile") is not None:
        raise UsageError(target.path, "has tiles of images, which are not updated", "build it again with --overwrite")
    if len(manifest.made_from) > 1:
        problem = f"has the labels of another pack, {printable(manifest.made_from[1].name)}, which new images have not"
        raise UsageError(target.path, problem, "update the pack that it was edited from, and edit it again")
    if notes_on_extras(manifest):
        return ["fields that packer edit --set gave to records are not in those of new and changed images"]
    return []


def _check_readable(source: str, skipped: Iterable[tuple[bytes, str]], known: Collection[bytes]) -> None:
    """Raise StorageError if a file or folder cannot be read which could be read before: it would seem to be gone."""
    for path, reason in skipped:
        if path not in known and reason.startswith(NOT_READ):
            where = os.path.join(source, os.fsdecode(path))
            step = "make it readable, and try again: what is gone would leave the pack"
            raise StorageError(where, f"cannot be read ({reason})", step)


@dataclass(slots=True)
class _Result:
    """What was found, and packed."""

    plan: Plan
    again: ImagesAgain
    results: list[ShardResult] = field(default_factory=list)

    @property
    def shards(self) -> list[ShardEntry]:
        return [result.entry for result in self.results if result.entry is not None]

    @property
    def fingerprints(self) -> bytes:
        """Those of the new records; empty if none were made."""
        made = any(result.fingerprints for result in self.results)
        return b"".join(map(fingerprint_rows, self.results)) if made else b""


class _Update:
    def __init__(
        self, target: Target, source: str | None, asked: UpdateOptions, progress: Progress, scratch: str
    ) -> None:
        self._target, self._asked, self._progress, self._scratch = target, asked, progress, scratch
        self._manifest = target.source.manifest
        self._notes = _check_was_built(target)
        digests = (self._manifest.digest, *target.ancestors)
        seen = recall(digests)
        if source is None and seen is None:
            step = f"name it: packer update {printable(target.path)} SRC"
            raise UsageError(target.path, "was not built by this user on this machine: its source is not known", step)
        self._source = source if source is not None else seen.source if seen is not None else ""
        is_here = seen is not None and seen.source == place_of(self._source)
        self._seen = seen if is_here and asked.check == "time" else None
        self._options = self._build_options()
        self._lists = {name: list(read_list(target.source.path, name, self._manifest)) for name in KINDS}
        self._packed = PackedImages(target.source.tables, self._manifest.encoding == "copy")

    def _build_options(self) -> BuildOptions:
        """Return the options of the build that packs what has changed."""
        source, given = self._target.source, {**self._target.options(), **self._asked.of_build}
        if self._manifest.options.get("classes") is None:
            given["classes"] = None  # there may be new ones
        rejected = self._manifest.counts.get("rejected", 0)
        given["max_bad"] = str(rejected) if self._asked.max_bad is None else self._asked.max_bad
        return options_like(source.path, self._source, **given)

    def run(self, listers: Pool) -> UpdateReport:
        """Do it; the source is listed by `listers`, which begin sooner than those that can pack."""
        options, progress = self._options, self._progress
        check_libraries(options)
        check_quarantine(options)
        progress.stage("listing")
        listed = list_source(options, run_in(listers), self._decompressed, stamps=True)
        known = {os.fsencode(row.path) for name in ("rejected", "skipped") for row in self._lists[name]}
        _check_readable(self._source, listed.skipped, known)
        check = SourceCheck(listed.tree, self._seen)
        changes = check.changes(self._packed, known, progress)
        if self._is_nothing(changes):
            return self._nothing(Seen.of(self._source, listed.tree, listed.began_ns))
        again = ImagesAgain(self._target.source, self._packed, changes, check, self._lists)
        listed = listed._replace(only=again.choose, first=self._manifest.classes)
        with open_engine(options.engine, options.workers, options.decode_timeout, PRELOADED) as pool:
            pool.start(1)  # it loads its libraries while labels are read
            return self._dry(pool, listed, again) if self._asked.dry_run else self._packed_anew(pool, listed, again)

    def _is_nothing(self, changes: SourceChanges) -> bool:
        files_matter = {*self._manifest.options["labels"]} - NO_FILES_OF_LABELS or self._manifest.parts
        if not files_matter:
            changes.files, changes.files_removed = [], False
        return changes.are_none and not (self._manifest.parts and changes.images_renamed)

    def _decompressed(self, name: str) -> str:
        self._progress.note(f"note: decompressing {printable(name)} once, to {printable(self._scratch)}")
        return os.path.join(self._scratch, f"{len(os.listdir(self._scratch))}.tar")

    def _reading(self, listed: Listed, again: ImagesAgain, folder: str | None) -> SourceReading:
        return SourceReading(
            scratch=self._scratch,
            folder=folder,
            listed=listed,
            narrow=again.narrow,
            first_key=self._first_key(),
            first_shard=self._target.next_shard(),
        )

    def _first_key(self) -> int:
        """Return the number behind the largest key of the pack."""
        keys = (pc.max(pc.cast(table.column("key"), "int64")).as_py() for table in self._target.source.tables)
        return max((key for key in keys if key is not None), default=-1) + 1

    def _dry(self, pool: Engine, listed: Listed, again: ImagesAgain) -> UpdateReport:
        plan = plan_of(self._options, pool, self._progress, self._reading(listed, again, None))
        self._check_fits(plan)
        self._notes += self._notes_on(plan)
        list_rejected(self._options, plan.inputs.rejected, self._progress)
        return self._report(_Result(plan, again), self._manifest, None, self._to_compact(again.dropped))

    def _to_compact(self, dropped: Int64) -> int:
        """Return how many shards would be written again."""
        most = share_of_text(self._asked.compact)
        if most is None or is_url(self._target.path):
            return 0
        taken = [item for item in self._taken(dropped) if item is not None]
        return sum(share > most for share in dead_shares(self._target.path, self._manifest, taken))

    def _packed_anew(self, pool: Engine, listed: Listed, again: ImagesAgain) -> UpdateReport:
        options, progress = self._options, self._progress
        output = self._target.output(options, progress)
        asked = {**options_that_shape_bytes(options), "like": self._manifest.digest}
        with output:
            for note in resume_or_restart(output, asked, overwrite=True):
                progress.note(f"note: {note}")
            plan = plan_of(options, pool, progress, self._reading(listed, again, output.partial))
            result = _Result(plan, again)
            seen = plan.inputs.seen
            assert seen is not None
            if again.is_nothing(plan.inputs):
                output.discard()
                return self._nothing(seen)
            self._check_fits(plan)
            self._notes += self._notes_on(plan)
            for note in self._notes:
                progress.note(f"note: {printable(note)}")
            progress.note(f"update: {again.summary}")
            if plan.inputs.rows:
                result.results = pack_shards(plan, pool, output, progress)
            list_rejected(options, plan.inputs.rejected, progress)
            manifest, number, done = self._publish(result, output, seen)
        return self._report(result, manifest, number, done.get("compacted", 0))

    def _notes_on(self, plan: Plan) -> list[str]:
        """Return what the user should know of what was found."""
        old, inputs = self._manifest, plan.inputs
        notes = [*dict.fromkeys(inputs.more_notes)]
        if new := inputs.classes[len(old.classes) :]:
            notes.append(f"new classes, with the ids behind those of the pack: {', '.join(new)}")
        if inputs.rows and old.shape is not None and plan.shape[0] != old.shape:
            height, width, _ = old.shape
            notes.append(f"the images of the pack were all of {width}x{height} pixels, and new ones are not")
        return notes

    def _check_fits(self, plan: Plan) -> None:
        """Raise UsageError if new records cannot be beside those of the pack."""
        made, old = of_parts(plan.spec.parts), self._manifest
        for name, what in (("parts", "parts"), ("masks", "classes of masks"), ("pixels", "values of maps and images")):
            if plan.inputs.rows and made[name] != getattr(old, name):
                self._refuse(f"{what} than the pack")
        if plan.inputs.rows and (plan.inputs.tags or old.tags) and plan.inputs.tags != old.tags:
            self._refuse("tags than the pack")
        if plan.inputs.rows and plan.inputs.flip_index != old.flip_index:
            self._refuse("points than the pack, by their flip index")

    def _refuse(self, what: str) -> None:
        raise UsageError(self._source, f"has other {what}", "build a new pack of it")

    def _publish(self, result: _Result, output: Output, seen: Seen) -> tuple[Manifest, int | None, dict[str, int]]:
        again, inputs, old = result.again, result.plan.inputs, self._manifest
        dropped = again.dropped
        content = NewContent(
            taken=[item for item in self._taken(dropped) if item is not None],
            added=result.shards,
            manifest=old,
            listings=again.listings(inputs),
            selections=inputs.selections,
            fingerprints=result.fingerprints,
            command=self._command(),
            done={name: count for name, count in self._done(result).items() if count},
            compact=share_of_text(self._asked.compact),
            ready=lambda manifest: remember(manifest.digest, seen),
        )
        if not content.taken and not content.added:
            raise UsageError(self._source, "has no image left that can be packed", "the pack stays as it is")
        content.manifest = replace(
            old,
            classes=inputs.classes if len(inputs.classes) > len(old.classes) else old.classes,
            fields=tuple(sorted({*old.fields, *inputs.fields})),
            counts=again.counts(inputs, result.results),
            notes=(
                *((*inputs.all_notes, *notes_on_extras(old)) if again.reads_all else _without_skipped(old.notes)),
                *skipped_lines(content.listings["skipped"]),
            ),
            packer=packer.__version__,
        )
        manifest, number = self._target.publish(content, output, self._progress)
        for note in content.notes:
            self._progress.note(f"note: {note}")
        self._notes += content.notes
        return manifest, number, content.done

    def _taken(self, dropped: Int64) -> Iterator[Taken | None]:
        """Yield what stays of each shard; None of one of which nothing does."""
        source, start = self._target.source, 0
        for number, table in enumerate(source.tables):
            first, last = np.searchsorted(dropped, [start, start + len(table)])
            gone = dropped[first:last] - start
            rows = np.delete(np.arange(len(table)), gone) if len(gone) else None
            start += len(table)
            yield Taken(source, number, rows) if rows is None or len(rows) else None

    def _done(self, result: _Result) -> Counter[str]:
        again = result.again
        return Counter(new=len(again.new), changed=len(again.changed), removed=len(again.removed))

    def _command(self) -> str:
        words = ["packer", "update", os.path.basename(self._target.path.rstrip("/"))]
        words += [os.path.basename(self._source.rstrip("/"))]
        return shlex.join([*words, option("check"), "digest"] if self._asked.check == "digest" else words)

    def _nothing(self, seen: Seen) -> UpdateReport:
        if not self._asked.dry_run:
            remember(self._manifest.digest, seen)
            self._target.discard_unfinished()
        rejected = self._manifest.counts.get("rejected", 0)
        return UpdateReport(
            self._target.path, self._source, self._manifest, None, (), (), (), rejected, 0, 0, self._asked.dry_run,
            tuple(self._notes), 0.0,
        )  # fmt: skip

    def _report(self, result: _Result, manifest: Manifest, number: int | None, compacted: int) -> UpdateReport:
        again = result.again
        names = (tuple(map(os.fsdecode, some)) for some in (again.new, again.changed, again.removed))
        new, changed, removed = names
        rejected = len(again.listings(result.plan.inputs)["rejected"])
        return UpdateReport(
            self._target.path, self._source, manifest, number, new, changed, removed, rejected, len(result.shards),
            compacted, self._asked.dry_run, tuple(self._notes), 0.0,
        )  # fmt: skip


def _without_skipped(notes: Sequence[str]) -> list[str]:
    return [note for note in notes if not note.startswith("skipped ")]


NOT_READ = ("permission", "unreadable")
"""How reasons of the walk begin where a path is there, but cannot be read."""
NO_FILES_OF_LABELS = frozenset(("folder", "name", "none"))
"""Kinds of labels that are in the paths of images."""
