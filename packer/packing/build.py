"""A whole build, step by step, from options to a published pack."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from packer.errors import TooManyBad, UsageError, plural, printable
from packer.packing.options import BuildOptions
from packer.system import usable_cores
from packer.types import Progress

if TYPE_CHECKING:
    from packer.format.manifest import Manifest, Rejected
    from packer.packing.headers import HeaderJob, Headers
    from packer.packing.journal import ShardResult
    from packer.packing.plan import Plan
    from packer.packing.publish import Output
    from packer.packing.scan import Inputs
    from packer.system.pool import Pool

PRELOADED = "packer.packing.write_shard packer.packing.headers"
"""Modules that workers import when they start."""


@dataclass(frozen=True, slots=True)
class BuildSummary:
    """The result of a finished build."""

    path: str
    manifest: Manifest
    pack_bytes: int
    seconds: float

    @property
    def images_per_s(self) -> float:
        """Packed images per second over the whole time, including planning."""
        return self.manifest.records / self.seconds if self.seconds else 0.0


def plan_pack(options: BuildOptions, progress: Progress | None = None) -> Plan:
    """Read the source and plan the pack, as ``--dry-run`` does. Write nothing but the list for ``--quarantine``;
    a compressed tar is decompressed to the folder for temporary files.

    Args:
        options: What to build.
        progress: Receives the images that were read.

    Returns:
        The plan.

    Raises:
        UsageError: The options do not fit the source.
        TooManyBad: More inputs than ``--max-bad`` have bad labels or headers.
        StorageError: The pack will not fit on the disk.
    """
    from packer.images.decode import check_available
    from packer.packing.publish import Output
    from packer.packing.quarantine import listing
    from packer.system.pool import Pool

    progress = progress or Progress()
    check_available(options.decoder)
    Output(options.output, options.source, options.overwrite)
    with (
        listing(options, progress) as list_rejected,
        ExitStack() as temporary,
        Pool(options.workers or usable_cores(), options.decode_timeout, "packer.packing.headers") as pool,
    ):
        plan = _planned(
            options, pool, progress, lambda: temporary.enter_context(TemporaryDirectory(prefix="packer-build-"))
        )
        list_rejected(plan.inputs.rejected)
    return plan


def build_pack(options: BuildOptions, progress: Progress | None = None) -> BuildSummary:
    """Build a pack. If it fails, nothing is written at its path.

    After an error, finished shards stay in NAME.partial, and the same call resumes from them. The resulting pack is
    the same as without interruption.

    Args:
        options: What to build.
        progress: Receives the images that were read and packed, the plan and notes.

    Returns:
        What was packed.

    Raises:
        PackerError: The build failed; a subclass such as TooManyBad or StorageError says why.
    """
    from packer.images.decode import check_available
    from packer.packing.publish import Output
    from packer.packing.quarantine import listing
    from packer.packing.resume import resume_or_restart
    from packer.packing.summary import make_manifest
    from packer.system.pool import Pool

    progress = progress or Progress()
    started = time.monotonic()
    check_available(options.decoder)
    output = Output(options.output, options.source, options.overwrite)
    try:
        workers = options.workers or usable_cores()
        with (
            listing(options, progress) as list_rejected,
            output,
            Pool(workers, options.decode_timeout, PRELOADED) as pool,  # ends before the lock is released
        ):
            for note in resume_or_restart(output, options):
                progress.note(f"note: {note}")
            pool.start(min(workers, usable_cores()))  # workers load their libraries while the source is listed
            plan = _planned(options, pool, progress, lambda: output.source)
            for note in plan.inputs.notes:
                progress.note(f"note: {printable(note)}")
            progress.note(plan.summary)
            results = _pack(plan, pool, output, progress)
            manifest = make_manifest(plan, results)
            list_rejected(manifest.rejected)
            output.publish(manifest)
    except BaseException:
        if finished := len(output.journal.finished):
            shards = plural(finished, "finished shard is", "finished shards are")
            progress.note(f"{shards} kept in {printable(output.partial)}: run the same command to resume")
        raise
    size = sum(shard.container.bytes + shard.index.bytes for shard in manifest.shards)
    return BuildSummary(output.path, manifest, size, time.monotonic() - started)


def _planned(options: BuildOptions, pool: Pool, progress: Progress, folder: Callable[[], str]) -> Plan:
    """Plan the pack; `folder` returns a folder to decompress archives to."""
    from packer.packing.convert import MeasureJob, measure
    from packer.packing.headers import read_headers
    from packer.packing.plan import make_plan
    from packer.packing.scan import read_inputs

    def headers(jobs: Sequence[HeaderJob]) -> Iterator[tuple[int, Headers]]:
        # a worker takes a moment to start, so a few images are read faster in this process
        return enumerate(map(read_headers, jobs)) if len(jobs) < 2 else pool.run(read_headers, jobs)

    def in_a_worker(job: MeasureJob) -> list[tuple[int, int]]:
        ((_, sizes),) = pool.run(measure, [job])
        return list(sizes)

    def scratch(name: str) -> str:
        source = folder()
        os.makedirs(source, exist_ok=True)
        progress.note(f"note: decompressing {printable(name)} once, to {printable(source)}")
        return os.path.join(source, f"{len(os.listdir(source))}.tar")

    progress.stage("reading")
    inputs = read_inputs(options, progress, headers, scratch)
    check_bad(options, inputs, inputs.rejected)
    plan = make_plan(options, inputs, in_a_worker)
    plan.check_space()
    return plan


def _pack(plan: Plan, pool: Pool, output: Output, progress: Progress) -> list[ShardResult]:
    """Pack all shards and return their results in order."""
    from packer.packing.scan import write_table
    from packer.packing.write_shard import pack_shard

    write_table(plan.table, output.table)
    before = dict(output.journal.finished)
    threads = threads_of(plan.shards, pool.size)
    jobs = [
        replace(job, finished=before.get(job.name), threads=n)
        for job, n in zip(plan.jobs(output.table, output.folder), threads, strict=True)
    ]
    if before:
        progress.note(f"note: resuming an unfinished build: {len(before)} of {plan.shards} shards are finished")
    progress.stage("packing", len(plan.table))
    reported = (0, 0)

    def tick(done: int, bad: int) -> None:
        nonlocal reported
        progress.advance(done - reported[0], bad - reported[1])
        reported = done, bad

    results: dict[int, ShardResult] = {}
    rejected = list(plan.inputs.rejected)
    for number, result in pool.run(pack_shard, jobs, tick):
        results[number] = result
        rejected += result.rejected
        check_bad(plan.options, plan.inputs, rejected)
        if not result.unchanged:
            output.journal.add(jobs[number].name, result)
    if before:
        unchanged = sum(result.unchanged for result in results.values())
        changed = len(before) - unchanged
        again = f", {changed} packed again: their inputs or files have changed" if changed > 0 else ""
        progress.note(f"note: {plural(unchanged, 'finished shard')} kept{again}")
    return [results[number] for number in sorted(results)]


def threads_of(jobs: int, workers: int) -> list[int]:
    """Return the number of threads of each job, chosen to keep all cores busy until the end.

    Jobs have one thread each, except that the last round shares all cores if it has fewer shards than workers.
    """
    last_round = jobs % workers
    threads = [1] * (jobs - last_round)
    return threads + [-(-workers // max(1, last_round))] * last_round


def check_bad(options: BuildOptions, inputs: Inputs, rejected: Sequence[Rejected]) -> None:
    """Raise TooManyBad if more inputs are bad than ``--max-bad`` allows, or if all are bad."""
    asked = inputs.asked
    if not asked:
        path, reason = inputs.skipped[0]
        problem = f"nothing to pack: all {inputs.found} inputs are skipped ({printable(path)}: {reason})"
        raise UsageError(options.source, problem, "choose another --split" if options.split else "give other images")
    allowed = options.bad_allowed(asked)
    if len(rejected) <= allowed and len(rejected) < asked:
        return
    problem = f"{len(rejected)} of {asked} {'input is' if asked == 1 else 'inputs are'} bad, {allowed} allowed"
    fix = "fix them" if len(rejected) == asked else f"fix them, or skip them with --max-bad {len(rejected)}"
    raise TooManyBad(options.source, problem, fix, rejected)
