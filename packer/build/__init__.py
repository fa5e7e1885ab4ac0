"""Builds a pack from a folder of labelled images: read the inputs, plan the shards, pack them, publish."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from packer.build.options import BuildOptions
from packer.cores import usable_cores
from packer.errors import TooManyBad, UsageError, shown

if TYPE_CHECKING:
    from packer.build.commit import Output
    from packer.build.inputs import Inputs
    from packer.build.plan import Plan
    from packer.build.result import ShardResult
    from packer.manifest import Manifest, Rejected
    from packer.processes.pool import Pool

PRELOADED = "packer.build.shard packer.build.measure"
"""What workers load when they start."""

__all__ = ["BuildOptions", "BuildSummary", "Watcher", "build_pack", "plan_pack"]


class Watcher:
    """Is told how a build comes along; the command line shows it. This one shows nothing."""

    def reading(self, images: int) -> None:
        """`images` more images of the source were looked at."""

    def planned(self, plan: Plan) -> None:
        """The plan is made, and packing begins."""

    def packing(self, done: int, bad: int) -> None:
        """So many images are done in all, so many of them bad."""

    def note(self, text: str) -> None:
        """Something that the user should know."""

    def listed(self, path: str, rejected: int) -> None:
        """So many bad inputs are listed in the file `path`, as ``--quarantine`` asks for."""

    def unfinished(self, finished: int, partial: str) -> None:
        """The build ends with an error; so many shards are finished, and stay in the directory `partial`."""


@dataclass(frozen=True, slots=True)
class BuildSummary:
    """What a finished build has done."""

    path: str
    manifest: Manifest
    pack_bytes: int
    seconds: float

    @property
    def images_per_s(self) -> float:
        """Packed images by the whole time, planning included."""
        return self.manifest.records / self.seconds if self.seconds else 0.0


def plan_pack(options: BuildOptions, watcher: Watcher | None = None) -> Plan:
    """Read the source and plan the pack, as ``--dry-run`` does; writes nothing but the list for ``--quarantine``.

    Raises UsageError, TooManyBad (the labels or headers of more inputs than ``--max-bad`` are bad) or
    StorageError (the pack will not fit).
    """
    from packer.build.commit import Output
    from packer.build.quarantine import listing
    from packer.ops.decode import check_available
    from packer.processes.pool import Pool

    watcher = watcher or Watcher()
    check_available(options.decoder)
    Output(options.output, options.source, options.overwrite)
    with listing(options, watcher) as list_rejected, Pool(1, options.decode_timeout, PRELOADED) as pool:
        plan = _planned(options, pool, watcher)
        list_rejected(plan.inputs.rejected)
    return plan


def _planned(options: BuildOptions, pool: Pool, watcher: Watcher) -> Plan:
    from packer.build.inputs import read_inputs
    from packer.build.measure import MeasureJob, measure
    from packer.build.plan import make_plan

    def in_a_worker(job: MeasureJob) -> list[tuple[int, int]]:
        ((_, sizes),) = pool.run(measure, [job])
        return list(sizes)

    inputs = read_inputs(options, watcher.reading)
    check_bad(options, inputs, inputs.rejected)
    plan = make_plan(options, inputs, in_a_worker)
    plan.check_space()
    return plan


def build_pack(options: BuildOptions, watcher: Watcher | None = None) -> BuildSummary:
    """Build the pack that `options` ask for. All or nothing: after an error there is no pack.

    The shards that are finished by then stay in NAME.partial, and the same call goes on behind them: the pack is the
    very one that one call would have made. Raises PackerError of the kind that fits.
    """
    from packer.build.commit import Output
    from packer.build.quarantine import listing
    from packer.build.resume import begin_or_go_on
    from packer.build.summary import make_manifest
    from packer.ops.decode import check_available
    from packer.processes.pool import Pool

    watcher = watcher or Watcher()
    started = time.monotonic()
    check_available(options.decoder)
    output = Output(options.output, options.source, options.overwrite)
    try:
        workers = options.workers or usable_cores()
        with (
            listing(options, watcher) as list_rejected,
            output,
            Pool(workers, options.decode_timeout, PRELOADED) as pool,  # the workers end before the lock goes
        ):
            for note in begin_or_go_on(output, options):
                watcher.note(note)
            pool.start(1)  # it loads its libraries while the source is read
            plan = _planned(options, pool, watcher)
            watcher.planned(plan)
            results = _pack(plan, pool, output, watcher)
            manifest = make_manifest(plan, results)
            list_rejected(manifest.rejected)
            output.publish(manifest)
    except BaseException:
        if output.journal.finished:
            watcher.unfinished(len(output.journal.finished), output.partial)
        raise
    size = sum(shard.container.bytes + shard.index.bytes for shard in manifest.shards)
    return BuildSummary(output.path, manifest, size, time.monotonic() - started)


def _pack(plan: Plan, pool: Pool, output: Output, watcher: Watcher) -> list[ShardResult]:
    """Pack all shards; their results in the order of the shards."""
    from packer.build.shard import pack_shard
    from packer.build.table import write_table

    write_table(plan.table, output.table)
    before = dict(output.journal.finished)
    threads = threads_of(plan.shards, pool.size)
    jobs = [
        replace(job, finished=before.get(job.name), threads=n)
        for job, n in zip(plan.jobs(output.table, output.folder), threads, strict=True)
    ]
    if before:
        watcher.note(f"goes on with an unfinished build: {len(before)} of {plan.shards} shards are finished")
    results: dict[int, ShardResult] = {}
    rejected = list(plan.inputs.rejected)
    for number, result in pool.run(pack_shard, jobs, watcher.packing):
        results[number] = result
        rejected += result.rejected
        check_bad(plan.options, plan.inputs, rejected)
        if not result.kept:
            output.journal.add(jobs[number].name, result)
    kept = sum(result.kept for result in results.values())
    if before:
        changed = f", {len(before) - kept} made again: their inputs or files have changed" if kept < len(before) else ""
        watcher.note(f"{kept} finished shards kept{changed}")
    return [results[number] for number in sorted(results)]


def threads_of(jobs: int, workers: int) -> list[int]:
    """Threads of each job, so that all cores work to the end.

    Full rounds of shards have one thread each; where the last round has fewer shards than workers, its
    shards share the workers' cores among them.
    """
    last_round = jobs % workers
    threads = [1] * (jobs - last_round)
    return threads + [-(-workers // max(1, last_round))] * last_round


def check_bad(options: BuildOptions, inputs: Inputs, rejected: Sequence[Rejected]) -> None:
    """Raise TooManyBad where more inputs are bad than ``--max-bad`` allows, or none is good."""
    asked = inputs.asked
    if not asked:
        path, reason = inputs.skipped[0]
        problem = f"nothing to pack: all {inputs.found} inputs are skipped ({shown(path)}: {reason})"
        raise UsageError(options.source, problem, "choose another --split" if options.split else "give other images")
    allowed = options.bad_allowed(asked)
    if len(rejected) <= allowed and len(rejected) < asked:
        return
    problem = f"{len(rejected)} of {asked} inputs are bad, {allowed} allowed"
    mend = "mend them" if len(rejected) == asked else f"mend them, or leave them out with --max-bad {len(rejected)}"
    raise TooManyBad(options.source, problem, mend, rejected)
