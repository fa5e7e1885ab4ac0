"""Builds a pack from a folder of labelled images: read the inputs, plan the shards, pack them, publish."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from packer.errors import TooManyBad, UsageError, printable
from packer.packing.options import BuildOptions
from packer.system import usable_cores

if TYPE_CHECKING:
    from packer.format.manifest import Manifest, Rejected
    from packer.packing.local import LocalEngine
    from packer.packing.plan import Plan
    from packer.packing.publish import Output
    from packer.packing.result import ShardResult
    from packer.packing.scan import Inputs

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
    from packer.images.decode import check_available
    from packer.packing.local import LocalEngine
    from packer.packing.publish import Output
    from packer.packing.quarantine import listing

    watcher = watcher or Watcher()
    check_available(options.decoder)
    Output(options.output, options.source, options.overwrite)
    with listing(options, watcher) as list_rejected, LocalEngine(1, options.decode_timeout) as engine:
        plan = _planned(options, engine, watcher)
        list_rejected(plan.inputs.rejected)
    return plan


def _planned(options: BuildOptions, engine: LocalEngine, watcher: Watcher) -> Plan:
    from packer.packing.plan import make_plan
    from packer.packing.scan import read_inputs

    inputs = read_inputs(options, watcher.reading, engine.read_headers)
    check_bad(options, inputs, inputs.rejected)
    plan = make_plan(options, inputs, engine.measure)
    plan.check_space()
    return plan


def build_pack(options: BuildOptions, watcher: Watcher | None = None) -> BuildSummary:
    """Build the pack that `options` ask for. All or nothing: after an error there is no pack.

    The shards that are finished by then stay in NAME.partial, and the same call goes on behind them: the pack is the
    very one that one call would have made. Raises PackerError of the kind that fits.
    """
    from packer.images.decode import check_available
    from packer.packing.local import LocalEngine
    from packer.packing.publish import Output
    from packer.packing.quarantine import listing
    from packer.packing.resume import begin_or_go_on
    from packer.packing.summary import make_manifest

    watcher = watcher or Watcher()
    started = time.monotonic()
    check_available(options.decoder)
    output = Output(options.output, options.source, options.overwrite)
    try:
        workers = options.workers or usable_cores()
        with (
            listing(options, watcher) as list_rejected,
            output,
            LocalEngine(workers, options.decode_timeout) as engine,  # the workers end before the lock goes
        ):
            for note in begin_or_go_on(output, options):
                watcher.note(note)
            engine.warm_up()
            plan = _planned(options, engine, watcher)
            watcher.planned(plan)
            results = _pack(plan, engine, output, watcher)
            manifest = make_manifest(plan, results)
            list_rejected(manifest.rejected)
            output.publish(manifest)
    except BaseException:
        if output.journal.finished:
            watcher.unfinished(len(output.journal.finished), output.partial)
        raise
    size = sum(shard.container.bytes + shard.index.bytes for shard in manifest.shards)
    return BuildSummary(output.path, manifest, size, time.monotonic() - started)


def _pack(plan: Plan, engine: LocalEngine, output: Output, watcher: Watcher) -> list[ShardResult]:
    """Pack all shards; their results in the order of the shards."""
    from packer.packing.scan import write_table

    write_table(plan.table, output.table)
    before = dict(output.journal.finished)
    jobs = [replace(job, finished=before.get(job.name)) for job in plan.jobs(output.table, output.folder)]
    if before:
        watcher.note(f"goes on with an unfinished build: {len(before)} of {plan.shards} shards are finished")
    results: dict[int, ShardResult] = {}
    rejected = list(plan.inputs.rejected)
    for number, result in engine.run(jobs, watcher.packing):
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


def check_bad(options: BuildOptions, inputs: Inputs, rejected: Sequence[Rejected]) -> None:
    """Raise TooManyBad where more inputs are bad than ``--max-bad`` allows, or none is good."""
    asked = inputs.asked
    if not asked:
        path, reason = inputs.skipped[0]
        problem = f"nothing to pack: all {inputs.found} inputs are skipped ({printable(path)}: {reason})"
        raise UsageError(options.source, problem, "choose another --split" if options.split else "give other images")
    allowed = options.bad_allowed(asked)
    if len(rejected) <= allowed and len(rejected) < asked:
        return
    problem = f"{len(rejected)} of {asked} inputs are bad, {allowed} allowed"
    mend = "mend them" if len(rejected) == asked else f"mend them, or leave them out with --max-bad {len(rejected)}"
    raise TooManyBad(options.source, problem, mend, rejected)
