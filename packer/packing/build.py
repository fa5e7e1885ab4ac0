"""A whole build, step by step, from options to a published pack."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from packer.errors import StorageError, TooManyBad, UsageError, plural, printable
from packer.packing.options import BuildOptions
from packer.system import usable_cores
from packer.types import Progress, advancing

if TYPE_CHECKING:
    from packer.format.jpeg_index_list import JpegIndexList
    from packer.format.manifest import Manifest, Rejected
    from packer.packing.engines import Engine
    from packer.packing.journal import ShardResult
    from packer.packing.parts import PartSummary
    from packer.packing.plan import Plan
    from packer.packing.publish import Output

PRELOADED = "packer.packing.write_shard packer.packing.partition"
"""Modules that workers import when they start."""


@dataclass(frozen=True, slots=True)
class BuildSummary:
    """The result of a finished build. `packer.format.lists.read_list` reads all rejected and changed inputs."""

    path: str
    manifest: Manifest
    pack_bytes: int
    seconds: float
    jpeg_index: JpegIndexList | None = None
    """The index of the JPEGs, if there is one."""

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
    from packer.images.decode import check_available
    from packer.packing.engines import open_engine
    from packer.packing.index_jpegs import check_indexer
    from packer.packing.quarantine import check_quarantine, list_rejected
    from packer.packing.store_output import output_of
    from packer.system.pool import Pool

    progress = progress or Progress()
    check_available(options.decoder)
    check_indexer(options)
    open_engine(options.engine, options.workers, options.decode_timeout, PRELOADED)  # checks its name
    output_of(options, progress)
    check_quarantine(options)
    with (
        ExitStack() as temporary,
        Pool(options.workers or usable_cores(), options.decode_timeout, "packer.packing.partition") as pool,
    ):

        def folder() -> str:
            return temporary.enter_context(TemporaryDirectory(prefix="packer-build-"))

        pool.start(min(pool.size, usable_cores()))  # workers load their libraries while the source is listed
        plan = _planned(options, pool, progress, folder, deep=deep)
    list_rejected(options, plan.inputs.rejected, progress)
    return plan


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
    from packer.packing.summary import make_manifest

    if options.part is not None:
        step = "call build_part for each part, then build_pack with finish=True"
        raise UsageError("--part", "is for build_part", step)
    started = time.monotonic()
    with _packed(options, progress or Progress()) as (output, plan, results):
        inputs = plan.inputs
        listings = (inputs.rejected, inputs.skipped, inputs.changed)
        manifest = output.publish(make_manifest(plan, results), listings, inputs.selections)
    size = sum(shard.container.bytes + shard.index.bytes for shard in manifest.shards)
    return BuildSummary(output.path, manifest, size, time.monotonic() - started, output.jpeg_index)


def build_part(options: BuildOptions, progress: Progress | None = None) -> PartSummary:
    """Pack the shards of one part of a pack, ``--part``; `build_pack` with `finish` publishes it when all are there.

    Args:
        options: What to build, with `part`.
        progress: Receives the images that were read and packed, the plan and notes.

    Returns:
        What was packed.

    Raises:
        PackerError: As of `build_pack`.
    """
    from packer.packing.parts import Part, PartSummary

    started, part = time.monotonic(), Part.of(options.part or "")
    with _packed(options, progress or Progress()) as (output, plan, results):
        records = sum(result.entry.records for result in results if result.entry is not None)
    return PartSummary(output.path, part, len(results), plan.shards, records, time.monotonic() - started)


@contextmanager
def _packed(options: BuildOptions, progress: Progress) -> Iterator[tuple[Output, Plan, list[ShardResult]]]:
    """Pack the shards, and yield them with where they are; work that is not published is kept."""
    from packer.images.decode import check_available
    from packer.packing.engines import open_engine
    from packer.packing.index_jpegs import check_indexer, index_jpegs
    from packer.packing.quarantine import check_quarantine, list_rejected
    from packer.packing.resume import asked_of, resume_or_restart, what_is_kept
    from packer.packing.store_output import output_of
    from packer.sources.paths import archive_of
    from packer.stores import is_url

    check_available(options.decoder)
    check_indexer(options)
    output = output_of(options, progress)
    check_quarantine(options)
    resumes = True
    try:
        source = os.path.abspath(options.source)
        source = os.fsdecode(archive_of(os.fsencode(source))[0]) or source  # it may be a folder in an archive
        paths = (output.partial,) if is_url(options.source) else (source, output.partial)
        engine = open_engine(options.engine, options.workers, options.decode_timeout, PRELOADED, paths, progress.note)
        with output, engine as pool:  # which ends before the lock is released
            resumes = False
            for note in resume_or_restart(output, asked_of(options), options.overwrite):
                progress.note(f"note: {note}")
            resumes = True
            pool.start(min(pool.size, usable_cores()))  # workers load their libraries while the source is listed
            try:
                plan = _planned(options, pool, progress, lambda: output.source, output.partial)
                for note in plan.inputs.more_notes:
                    progress.note(f"note: {printable(note)}")
                progress.note(plan.summary)
                for warning in plan.warnings:
                    progress.note(f"warning: {warning}")
                results = _pack(plan, pool, output, progress)
            except TooManyBad:
                with suppress(StorageError):
                    output.journal.mark(failed=True)
                raise
            index_jpegs(options, results, pool, output, progress)
            list_rejected(options, plan.inputs.rejected, progress)
            yield output, plan, results
    except BaseException as error:
        if resumes and (kept := what_is_kept(output, error)):
            progress.note(kept)
        raise


def _planned(
    options: BuildOptions,
    pool: Engine,
    progress: Progress,
    unpacked: Callable[[], str],
    folder: str | None = None,
    deep: bool | None = None,
) -> Plan:
    """Read the source and plan the pack.

    Args:
        options: What to build.
        pool: The workers.
        progress: Receives the images that were read.
        unpacked: Returns a folder to decompress archives to.
        folder: Where to write the table of inputs. None: to a temporary folder.
        deep: Decode every image. None: if the build fails for too many bad inputs, unless ``--fail-fast``.
    """
    from packer.packing.check import CheckJob, check_images, decode_all
    from packer.packing.convert import MeasureJob, measure
    from packer.packing.index_jpegs import check_indexer
    from packer.packing.plan import make_plan, recipe_of
    from packer.packing.scan import read_inputs
    from packer.packing.verdict import check_not_empty, fail, going_on, too_many
    from packer.sources.walk import run_here
    from packer.system.atomic import make_own_folder

    def run(work: Callable[..., Any], jobs: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        # a worker takes a moment to start, so a few images are read faster in this process
        return run_here(work, jobs) if len(jobs) < 2 else pool.run(work, jobs)

    def in_a_worker(job: MeasureJob) -> list[tuple[int, int]]:
        ((_, sizes),) = pool.run(measure, [job])
        return list(sizes)

    def scratch(name: str) -> str:
        source = unpacked()
        make_own_folder(source)
        progress.note(f"note: decompressing {printable(name)} once, to {printable(source)}")
        return os.path.join(source, f"{len(os.listdir(source))}.tar")

    def check(jobs: Sequence[CheckJob]) -> Iterator[tuple[int, dict[int, Rejected]]]:
        progress.stage("decoding", sum(job.stop - job.start for job in jobs))
        return pool.run(check_images, jobs, advancing(progress))

    progress.stage("reading")
    inputs = read_inputs(options, progress, run, scratch, folder)
    check_not_empty(options, inputs)
    options = options.with_encoding(inputs.same_size)  # before bad images leave the table: a dry run decodes them first
    check_indexer(options)
    asked = inputs.asked
    failing = too_many(options, inputs.bad, asked)
    in_parts = options.part is not None or options.finish  # each would decode the images of all
    decoding = failing and not options.fail_fast and not in_parts if deep is None else deep
    if decoding:
        if failing:
            progress.note(f"note: {going_on(options, inputs.bad, asked)}")
        decode_all(inputs, recipe_of(options, inputs.archives), suspects=failing, run=check)
    if too_many(options, inputs.bad, asked):
        raise fail(options, inputs, asked, decoding, progress)
    plan = make_plan(options, inputs, in_a_worker)
    if not options.finish:  # which only moves files
        plan.check_space()
    return plan


def _pack(plan: Plan, pool: Engine, output: Output, progress: Progress) -> list[ShardResult]:
    """Pack all shards and return their results in order."""
    from packer.packing.engines import with_threads
    from packer.packing.parts import FinishedParts, Part
    from packer.packing.verdict import fail, going_on, too_many
    from packer.packing.write_shard import is_unchanged, pack_shard

    before = dict(output.journal.finished)
    jobs = plan.jobs(output.folder)
    if plan.options.part is not None:
        mine = Part.of(plan.options.part).shards(len(jobs))
        jobs = jobs[mine.start : mine.stop]
    jobs = [replace(job, finished=before.get(job.name), checked=output.checked) for job in jobs]
    jobs = with_threads(jobs, pool.size)
    if before:
        progress.note(f"note: resuming an unfinished build: {len(before)} of {len(jobs)} shards are finished")
    progress.stage("packing", sum(job.stop - job.start for job in jobs))
    packing = pool.run(pack_shard, jobs, advancing(progress))
    if isinstance(output, FinishedParts):
        packing = output.results(jobs, lambda there: pool.run(is_unchanged, there, advancing(progress)))
    options, inputs, asked = plan.options, plan.inputs, plan.inputs.asked
    results: dict[int, ShardResult] = {}
    failing = False
    for number, result in packing:
        for row in result.rejected:
            inputs.rejected.add(row)
        for change in result.changed:
            inputs.changed.add(change)
        if not failing and too_many(options, inputs.bad, asked):
            failing = True
            if options.fail_fast:
                break
            if not options.finish:
                progress.note(f"note: {going_on(options, inputs.bad, asked)}")
        if not result.unchanged:
            output.add(jobs[number].name, result)
        results[number] = replace(result, rejected=[], changed=[])  # they are in the list, which may be long
    if failing:
        raise fail(options, inputs, asked, not options.fail_fast, progress)
    if before:
        unchanged = sum(result.unchanged for result in results.values())
        changed = len(before) - unchanged
        again = f", {changed} packed again: their inputs or files have changed" if changed > 0 else ""
        progress.note(f"note: {plural(unchanged, 'finished shard')} kept{again}")
    return [results[number] for number in sorted(results)]
