"""The steps that all builds share: plan a pack of what the source has, and write its shards."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from packer.errors import option, plural, printable
from packer.format.beside import BesideList
from packer.format.make_jpeg_index import check_installed
from packer.format.manifest import Manifest, Rejected
from packer.format.new_sidecar import write_fingerprints
from packer.format.sidecar_list import FINGERPRINT_BYTES, SidecarList, rows_digest
from packer.images.decode import check_available
from packer.model.annotation import Progress, advancing
from packer.model.rle import check_installed as check_pycocotools
from packer.packing import bad_inputs, partial_builds
from packer.packing.build_options import BuildOptions
from packer.packing.engines import Engine, with_threads
from packer.packing.input_table import Inputs
from packer.packing.journal import MOST_FINGERPRINTS, ShardResult
from packer.packing.make_record import MeasureJob, measure
from packer.packing.partial_builds import BuildPart, FinishedParts, HasSplits
from packer.packing.plan import Plan, make_plan, recipe_of
from packer.packing.publish import Output
from packer.packing.scan import Listed, list_source, read_inputs
from packer.packing.write_shard import pack_shard
from packer.sources.walk import Run, run_here
from packer.system import usable_cores
from packer.system.atomic import make_own_folder
from packer.system.pool import Pool

JPEG_INDEX = option("jpeg-index")
PRELOADED = "packer.packing.write_shard packer.packing.partition"
"""Modules that workers import when they start."""


def local_pool(options: BuildOptions) -> Pool:
    """Return the workers that list and read a source."""
    return Pool(options.workers or usable_cores(), options.decode_timeout, "packer.packing.partition")


def run_in(pool: Engine) -> Run:
    """Return what runs jobs in workers; as a worker takes a moment to start, a few images are read in this process."""
    return lambda work, jobs: run_here(work, jobs) if len(jobs) < 2 else pool.run(work, jobs)


def check_libraries(options: BuildOptions) -> None:
    """Raise UsageError if a library that the options ask for is missing."""
    check_available(options.decoder)
    check_pycocotools(options.instance_masks)
    if options.jpeg_index is not None:
        check_installed(JPEG_INDEX)


@dataclass(frozen=True, slots=True)
class SourceReading:
    """How the source of a pack is read."""

    scratch: str = ""
    """Folder to decompress archives to; it is created if that is needed."""
    folder: str | None = None
    """Where to write the table of inputs. None: to a temporary folder."""
    listed: Listed | None = None
    """The files of the source, if they are known."""
    detects: bool = False
    """Whether to raise HasSplits if they have splits."""
    narrow: Callable[[Inputs], None] | None = None
    """Takes inputs out of the table that are not to be packed."""
    first_key: int = 0
    """Number of the first record."""
    first_shard: int = 0
    """Number of the first shard."""


def plan_of(
    options: BuildOptions, pool: Engine, progress: Progress, reading: SourceReading, deep: bool | None = None
) -> Plan:
    """Read the source and plan the pack.

    Args:
        options: What to build.
        pool: The workers.
        progress: Receives the images that were read.
        reading: How the source is read.
        deep: Decode every image. None: if the build fails for too many bad inputs, unless ``--fail-fast``.
    """

    def in_a_worker(job: MeasureJob) -> list[tuple[int, int]]:
        return [size for _, sizes in pool.run(measure, [job]) for size in sizes]

    def scratch(name: str) -> str:
        make_own_folder(reading.scratch)
        progress.note(f"note: decompressing {printable(name)} once, to {printable(reading.scratch)}")
        return os.path.join(reading.scratch, f"{len(os.listdir(reading.scratch))}.tar")

    def check(jobs: Sequence[bad_inputs.CheckJob]) -> Iterator[tuple[int, dict[int, Rejected]]]:
        progress.stage("decoding", sum(job.stop - job.start for job in jobs))
        return pool.run(bad_inputs.check_images, jobs, advancing(progress))

    progress.stage("reading")
    run = run_in(pool)
    listed = reading.listed or list_source(options, run, scratch)
    if reading.detects and (splits := partial_builds.splits_in(options, listed)):
        raise HasSplits(splits)
    inputs = read_inputs(options, progress, run, scratch, reading.folder, listed)
    if partial_builds.is_test_without_labels(options, inputs):
        progress.note(
            f"note: no image of the split {printable(options.split or '')} has a label: packed without labels"
        )
        options = replace(options, missing_labels="empty")
        os.unlink(inputs.file)
        inputs = read_inputs(options, progress, run, scratch, reading.folder, listed)
    if reading.narrow is not None:
        reading.narrow(inputs)
    bad_inputs.check_not_empty(options, inputs)
    options = options.with_encoding(inputs.same_size)  # before bad images leave the table: a dry run decodes them first
    asked = inputs.asked
    failing = bad_inputs.too_many(options, inputs.bad, asked)
    in_parts = options.job is not None or options.finish  # each would decode the images of all
    decoding = failing and not options.fail_fast and not in_parts if deep is None else deep
    if decoding:
        if failing:
            progress.note(f"note: {bad_inputs.continue_message(options, inputs.bad, asked)}")
        bad_inputs.decode_all(inputs, recipe_of(options, inputs), suspects=failing, run=check)
    if bad_inputs.too_many(options, inputs.bad, asked):
        raise bad_inputs.too_many_bad_error(options, inputs, asked, decoding, progress)
    plan = replace(
        make_plan(options, inputs, in_a_worker), first_key=reading.first_key, first_shard=reading.first_shard
    )
    if inputs.rows > MOST_FINGERPRINTS and not options.no_fingerprints:
        many = f"a build of more than {MOST_FINGERPRINTS:,} images makes none"
        progress.note(f"note: no fingerprints: {many}; packer attach PACK --fingerprints does")
    if not options.finish:  # which only moves files
        plan.check_space()
    return plan


def pack_shards(plan: Plan, pool: Engine, output: Output, progress: Progress) -> list[ShardResult]:
    """Pack all shards and return their results in order."""
    before = dict(output.journal.finished)
    jobs = plan.jobs(output.folder)
    if plan.options.job is not None:
        mine = BuildPart.of(plan.options.job).shards(len(jobs))
        jobs = jobs[mine.start : mine.stop]
    jobs = [replace(job, finished=before.get(job.name), checked=output.checked) for job in jobs]
    jobs = with_threads(jobs, pool.size)
    if before:
        progress.note(f"note: resuming an unfinished build: {len(before)} of {len(jobs)} shards are finished")
    progress.stage("packing", sum(job.stop - job.start for job in jobs))
    packing = pool.run(pack_shard, jobs, advancing(progress))
    if isinstance(output, FinishedParts):
        packing = output.results(jobs, lambda check, there: pool.run(check, there, advancing(progress)))
    options, inputs, asked = plan.options, plan.inputs, plan.inputs.asked
    results: dict[int, ShardResult] = {}
    failing = False
    for number, result in packing:
        for row in result.rejected:
            inputs.rejected.add(row)
        for change in result.changed:
            inputs.changed.add(change)
        if not failing and bad_inputs.too_many(options, inputs.bad, asked):
            failing = True
            if options.fail_fast:
                break
            if not options.finish:
                progress.note(f"note: {bad_inputs.continue_message(options, inputs.bad, asked)}")
        if not result.unchanged:
            output.add(jobs[number].name, result)
        results[number] = replace(result, rejected=[], changed=[])  # they are in the list, which may be long
    if failing:
        raise bad_inputs.too_many_bad_error(options, inputs, asked, not options.fail_fast, progress)
    if before:
        unchanged = sum(result.unchanged for result in results.values())
        again = f", {len(before) - unchanged} packed again: their inputs or files have changed"
        progress.note(f"note: {plural(unchanged, 'finished shard')} kept{again * (unchanged < len(before))}")
    return [results[number] for number in sorted(results)]


def list_fingerprints(folder: str, manifest: Manifest, results: Sequence[ShardResult]) -> list[BesideList]:
    """Write the fingerprints of a new pack into its folder, and return their list; nothing if none were made.

    Records of shards that an earlier build finished without them have a row of zeros.
    """
    if not any(result.fingerprints for result in results):
        return []
    facts = write_fingerprints(folder, map(fingerprint_rows, results))
    listed = SidecarList(rows_digest(manifest), (facts,))
    listed.write(folder)
    return [listed]


def fingerprint_rows(result: ShardResult) -> bytes:
    """Return the fingerprints of the records of a shard; zeros if none were made."""
    records = 0 if result.entry is None else result.entry.records
    return result.fingerprints or bytes(FINGERPRINT_BYTES * records)
