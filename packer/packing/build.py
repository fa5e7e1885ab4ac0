"""A whole build, step by step, from options to a published pack."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from difflib import get_close_matches
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias, TypeVar

from packer.errors import AnyPath, StorageError, TooManyBad, UsageError, option, printable
from packer.format.jpeg_index_list import JpegIndexList, interval_of
from packer.format.make_jpeg_index import jobs_for, list_of, make_jpeg_index
from packer.format.manifest import Manifest, read_manifest
from packer.model.annotation import Progress, advancing
from packer.packing import bad_inputs, partial_builds
from packer.packing.build_options import KINDS, BuildOptions
from packer.packing.build_steps import (
    JPEG_INDEX,
    PRELOADED,
    SourceReading,
    check_libraries,
    list_fingerprints,
    local_pool,
    pack_shards,
    plan_of,
    run_in,
)
from packer.packing.class_map import ClassChange
from packer.packing.engines import Engine, open_engine, with_threads
from packer.packing.journal import ShardResult
from packer.packing.partial_builds import BuildPart, HasSplits, PartSummary
from packer.packing.plan import Plan
from packer.packing.publish import Output, Outputs
from packer.packing.remembered import remember
from packer.packing.resume import make_manifest, noting_what_is_kept, options_that_shape_bytes, resume_or_restart
from packer.packing.store_output import output_of
from packer.sources.paths import archive_of
from packer.stores import is_url
from packer.system import usable_cores

T = TypeVar("T")
_Packed: TypeAlias = tuple[Output, Plan, list[ShardResult], float]
"""Where a pack is, its plan, its shards, and the seconds that it took."""


@dataclass(frozen=True, slots=True)
class BuildSummary:
    """The result of a finished build. `packer.format.lists.read_list` reads all rejected and changed inputs."""

    path: str
    manifest: Manifest
    seconds: float
    jpeg_index: JpegIndexList | None = None
    """The index of the JPEGs, if there is one."""
    output: str = ""
    """The path as the options give it."""
    elsewhere: int = 0
    """How many of the skipped images are only not in the split of this pack."""
    class_changes: tuple[ClassChange, ...] = ()

    def __repr__(self) -> str:
        counts = self.manifest.counts
        text = ", ".join(f"{counts[name]:,} {name}" for name in ("found", "packed", "rejected", "skipped"))
        return f"<BuildSummary {printable(self.output or self.path)}: {text}>"

    @property
    def pack_bytes(self) -> int:
        """Size of the shards and their indexes."""
        return self.manifest.shard_bytes

    @property
    def images_per_s(self) -> float:
        """Packed images per second over the whole time, including planning."""
        return self.manifest.records / self.seconds if self.seconds else 0.0


def plan_pack(options: BuildOptions, progress: Progress | None = None, deep: bool = False) -> Plan:
    """Read the source and plan the pack, as ``--dry-run`` does. Write nothing but the list for ``--quarantine``;
    a compressed tar is decompressed to the folder for temporary files.

    Args:
        options: What to build.
        progress: Receives the images that were read.
        deep: Decode every image too, to find those that are damaged behind their headers.

    Returns:
        The plan.

    Raises:
        UsageError: The options do not fit the source.
        TooManyBad: More inputs than ``--max-bad`` are bad.
        StorageError: The pack will not fit on the disk.
    """
    return _planned_alone(options, progress or Progress(), deep, SourceReading())


def plan_packs(options: BuildOptions, progress: Progress | None = None, deep: bool = False) -> list[Plan]:
    """Plan a pack as `plan_pack` does, or one for each split of the source, as `build_packs` makes them."""
    told = progress or Progress()
    return _of_each_split(
        options, told, lambda every, reading: [_planned_alone(one, told, deep, reading) for one in every]
    )


def _planned_alone(options: BuildOptions, progress: Progress, deep: bool, reading: SourceReading) -> Plan:
    check_libraries(options)
    open_engine(options.engine, options.workers, options.decode_timeout, PRELOADED)  # checks its name
    output_of(options, progress)
    bad_inputs.check_quarantine(options)
    with TemporaryDirectory(prefix="packer-build-") as temporary, local_pool(options) as pool:
        pool.start(min(pool.size, usable_cores()))  # workers load their libraries while the source is listed
        plan = plan_of(options, pool, progress, replace(reading, scratch=temporary), deep=deep)
    bad_inputs.list_rejected(options, plan.inputs.rejected, progress)
    return plan


def build(
    source: AnyPath, out: AnyPath | None = None, progress: Progress | None = None, **options: Any
) -> list[BuildSummary]:
    """Build a pack of a folder of images and labels, as the command does.

    ``packer.build("imgs", "imgs.lmdb", resize=64)``

    Args:
        source: Folder, zip or tar of images and labels, or its URL in an object store.
        out: Path of the new pack, or its URL. None: NAME.lmdb beside the source.
        progress: Receives the images that were read and packed, the plans and notes.
        options: The other fields of `BuildOptions`.

    Returns:
        What was packed: a summary for each pack, of which there is one for each split that the source has.

    Raises:
        TypeError: There is no option of this name.
        PackerError: The build failed; a subclass such as UsageError, TooManyBad or StorageError says why.
    """
    for name in options.keys() - KINDS.keys():
        near = get_close_matches(name, KINDS, 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise TypeError(f"packer.build got an unknown option {name!r}{hint}")
    return build_packs(
        BuildOptions(os.fsdecode(source), None if out is None else os.fsdecode(out), **options), progress
    )


def build_pack(options: BuildOptions, progress: Progress | None = None) -> BuildSummary:
    """Build a pack. If it fails, nothing is written at its path.

    After an error, finished shards stay in NAME.partial, and the same call resumes from them. The resulting pack is
    the same as without interruption. If there are too many bad inputs, the build fails when it has found all of them.

    Args:
        options: What to build.
        progress: Receives the images that were read and packed, the plan and notes.

    Returns:
        What was packed.

    Raises:
        PackerError: The build failed; a subclass such as TooManyBad or StorageError says why.
    """
    (summary,) = _built([options], progress or Progress(), SourceReading())
    return summary


def build_packs(options: BuildOptions, progress: Progress | None = None) -> list[BuildSummary]:
    """Build a pack, or one for each split of the source if it has some and ``split`` chooses none.

    The packs of splits are NAME-train.lmdb, NAME-val.lmdb and so on, for NAME.lmdb. They have the same class ids. If
    one of them fails, none is published; the same call resumes, as that of `build_pack`.

    Args:
        options: What to build.
        progress: Receives the images that were read and packed, the plans and notes.

    Returns:
        What was packed, a summary for each pack.

    Raises:
        PackerError: As of `build_pack`.
    """
    told = progress or Progress()
    return _of_each_split(options, told, lambda every, reading: _built(every, told, reading))


def build_part(options: BuildOptions, progress: Progress | None = None) -> PartSummary:
    """Pack the shards of one part of a pack, ``--job``; `build_pack` with `finish` publishes it when all are there.

    Args:
        options: What to build, with `job`.
        progress: Receives the images that were read and packed, the plan and notes.

    Returns:
        What was packed.

    Raises:
        PackerError: As of `build_pack`.
    """
    (summary,) = _built_parts([options], progress or Progress(), SourceReading())
    return summary


def build_parts(options: BuildOptions, progress: Progress | None = None) -> list[PartSummary]:
    """Pack one part of a pack as `build_part` does, or of the packs of all splits of the source, as of `build_packs`.

    Args:
        options: What to build, with `job`.
        progress: Receives the images that were read and packed, the plans and notes.

    Returns:
        What was packed, a summary for each pack.

    Raises:
        PackerError: As of `build_pack`.
    """
    told = progress or Progress()
    return _of_each_split(options, told, lambda every, reading: _built_parts(every, told, reading))


def _of_each_split(
    options: BuildOptions, progress: Progress, make: Callable[[list[BuildOptions], SourceReading], list[T]]
) -> list[T]:
    """Call `make` with the options of each pack, and how the source of all is read."""
    with local_pool(options) as pool:
        listed, splits = partial_builds.list_with_splits(options, run_in(pool))
    if not splits:
        try:
            return make([options], SourceReading(listed=listed, detects=listed is None and options.job is None))
        except HasSplits as found:
            splits = found.splits
    progress.note(f"note: a pack for each split: {printable(', '.join(splits))} (--split packs one)")
    return make(partial_builds.of_each(options, splits), SourceReading(listed=listed))


def _built(every: Sequence[BuildOptions], progress: Progress, reading: SourceReading) -> list[BuildSummary]:
    """Pack all packs, and then publish them."""
    if every[0].job is not None:
        step = "call build_part for each part, then build_pack with finish=True"
        raise UsageError(option("job"), "is for build_part", step)
    started = time.monotonic()
    before = partial_builds.published_before(every)
    left = [options for options in every if options.split not in before]
    summaries: dict[str | None, BuildSummary] = {}
    for options in (one for one in every if one.split in before):
        progress.note(f"note: {printable(options.output)} is finished")
        summaries[options.split] = BuildSummary(
            options.output, read_manifest(options.output), 0.0, None, options.output
        )
    with _pack_all(left, progress, reading) as packed:
        partial_builds.check_classes(
            [summary.manifest for summary in summaries.values()], [plan.inputs.classes for _, plan, *_ in packed]
        )
        shared = time.monotonic() - started - sum(seconds for *_, seconds in packed)  # counts for the first pack
        for output, plan, results, own in packed:
            publishing, inputs, given = time.monotonic(), plan.inputs, plan.options
            listings = (inputs.rejected, inputs.skipped, inputs.changed)
            manifest = make_manifest(plan, results)
            output.beside = [*output.beside, *list_fingerprints(output.folder, manifest, results)]
            manifest = output.publish(manifest, listings, inputs.selections)
            if inputs.seen is not None:
                remember(manifest.digest, inputs.seen)
            seconds, shared = shared + own + time.monotonic() - publishing, 0.0
            jpeg_index = next((one for one in output.beside if isinstance(one, JpegIndexList)), None)
            summaries[given.split] = BuildSummary(
                output.path, manifest, seconds, jpeg_index, given.output, plan.elsewhere, inputs.class_changes
            )
    return [summaries[options.split] for options in every if options.split in summaries]


def _built_parts(every: Sequence[BuildOptions], progress: Progress, reading: SourceReading) -> list[PartSummary]:
    started, part = time.monotonic(), BuildPart.of(every[0].job or "")
    summaries = []
    for options in every:
        with _pack_all([options], progress, reading) as ((output, plan, results, _),):
            records = sum(result.entry.records for result in results if result.entry is not None)
        seconds, started = time.monotonic() - started, time.monotonic()
        summaries.append(PartSummary(output.path, part, len(results), plan.shards, records, seconds))
    return summaries


@contextmanager
def _pack_all(every: Sequence[BuildOptions], progress: Progress, reading: SourceReading) -> Iterator[list[_Packed]]:
    """Plan all packs, pack their shards, and yield them with where they are; work that is not published is kept."""
    options = every[0]  # those that concern the machine are the same for all
    check_libraries(options)
    outputs = [output_of(each, progress) for each in every]
    for each in every:
        bad_inputs.check_quarantine(each)
    paths: list[str] = []
    if not is_url(options.source):
        source = os.path.abspath(options.source)
        paths.append(os.fsdecode(archive_of(os.fsencode(source))[0]) or source)  # it may be a folder in an archive
    paths += [output.partial for output in outputs]
    with noting_what_is_kept(outputs, progress) as resumes:
        engine = open_engine(
            options.engine, options.workers, options.decode_timeout, PRELOADED, tuple(paths), progress.note
        )
        with Outputs(outputs), engine as pool:  # which ends before the locks are released
            resumes.clear()
            for each, output in zip(every, outputs, strict=True):
                for note in resume_or_restart(output, options_that_shape_bytes(each), each.overwrite):
                    progress.note(f"note: {note}")
                resumes.append(output)
            pool.start(min(pool.size, usable_cores()))  # workers load their libraries while the source is listed
            try:
                packed = _planned_and_packed(every, outputs, pool, progress, reading)
            except TooManyBad:
                with suppress(StorageError):
                    for output in outputs:
                        output.journal.mark(failed=True)
                raise
            for output, plan, results, _ in packed:
                _index_jpegs(plan.options, results, pool, output, progress)
                bad_inputs.list_rejected(plan.options, plan.inputs.rejected, progress)
            yield packed


def _index_jpegs(
    options: BuildOptions, results: Sequence[ShardResult], pool: Engine, output: Output, progress: Progress
) -> None:
    """Index the JPEGs of all shards, if that was asked for, and note what there is in `output.beside`.

    A part of a build has no index: it is made when all are published.
    """
    if options.jpeg_index is None or options.job is not None:
        return
    interval = interval_of(JPEG_INDEX, options.jpeg_index)
    shards = [result.entry for result in results if result.entry is not None]
    jobs = with_threads(jobs_for(output.folder, shards, os.path.join, interval, output.folder), pool.size)
    progress.stage("indexing", sum(shard.records for shard in shards))
    made = dict(pool.run(make_jpeg_index, jobs, advancing(progress)))
    listed = list_of([made[number] for number in sorted(made)], interval)
    listed.write(output.folder)
    output.beside = [listed]


def _planned_and_packed(
    every: Sequence[BuildOptions], outputs: Sequence[Output], pool: Engine, progress: Progress, reading: SourceReading
) -> list[_Packed]:
    """Plan all packs before the first one is packed, so that mistakes in the labels of the last show early.

    A split whose images are all skipped for want of a label is left out.
    """
    plans: list[Plan] = []
    kept: list[Output] = []
    seconds, packed = [], []
    for each, output in zip(every, outputs, strict=True):
        started = time.monotonic()
        reading = replace(reading, scratch=output.source, folder=output.partial)
        try:
            plan = plan_of(each, pool, progress, reading)
        except bad_inputs.NothingToPack as error:
            if not error.lacks_labels or (not plans and each is every[-1]):
                raise
            progress.note(f"note: no image of the split {printable(each.split or '')} has a label: it is left out")
            continue
        for note in dict.fromkeys(plan.inputs.more_notes):
            if not any(note in other.inputs.more_notes for other in plans):
                progress.note(f"note: {printable(note)}")
        progress.note(plan.summary)
        for warning in plan.warnings:
            progress.note(f"warning: {warning}")
        plans.append(plan)
        kept.append(output)
        seconds.append(time.monotonic() - started)
    if note := partial_builds.in_no_pack(plans):
        progress.note(f"note: {note}")
    for output, plan, planning in zip(kept, plans, seconds, strict=True):
        started = time.monotonic()
        results = pack_shards(plan, pool, output, progress)
        packed.append((output, plan, results, planning + time.monotonic() - started))
    return packed
