"""Converts a pack to another container, encoding or size, or to a part of its records."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, cast

import packer
from packer.containers import container_names, container_of
from packer.errors import AnyPath, TooManyBad, UsageError, option, plural, printable
from packer.format.indexes import Indexes, IndexFiles
from packer.format.jpeg_index_list import not_carried
from packer.format.lists import MOST_IN_MANIFEST, Listing, lists_of, selection_file
from packer.format.manifest import Manifest, Origin, Rejected, read_manifest
from packer.images.decode import Decoder
from packer.images.encode import Encoding
from packer.images.header import Mode
from packer.images.resize import Resize
from packer.model.annotation import Progress, advancing
from packer.packing.engines import with_threads
from packer.packing.journal import ShardResult
from packer.packing.options import BuildOptions, check_extension
from packer.packing.publish import Output
from packer.packing.resume import asked_of, resume_or_restart, what_is_kept
from packer.packing.store_output import output_of
from packer.packing.summary import library_versions
from packer.repack.copy_plan import CopyPlan, Selected, select
from packer.repack.copy_shard import CopyJob, Remake, copy_shard, measure_rows
from packer.repack.recount import recount
from packer.system import usable_cores
from packer.system.pool import Pool

PRELOADED = "packer.repack.copy_shard"
DECODING = "packer.images.decode packer.images.encode packer.packing.convert"
"""What workers need beyond that to make images again."""


@dataclass(frozen=True, slots=True)
class ConvertReport:
    """The result of `convert`."""

    path: str
    container: str
    encoding: str
    records: int
    shards: int
    bytes: int
    """Size of all shards."""
    skipped: int
    """Records of the pack that `include` and `exclude` leave out."""
    rejected: tuple[Rejected, ...]
    """Records whose image could not be decoded, or not be stored in the encoding."""
    seconds: float


def convert(pack: AnyPath, out: AnyPath, progress: Progress | None = None, **given: Any) -> ConvertReport:
    """Write the records of a pack to a new one.

    Without `encode` and `resize`, the bytes of the images and their keys stay, and so do all annotations. After an
    error, finished shards stay in NAME.partial, and the same call resumes from them.

    Args:
        pack: The pack.
        out: Path of the new pack.
        progress: Receives the records that were written, and notes.
        given: Options of `BuildOptions`: format (by default by the extension of `out`, else that of the pack), encode,
            quality, resize, fit, pad_value, interpolation, include, exclude, overwrite, workers, decode_timeout.

    Returns:
        What was written.

    Raises:
        UsageError: The options do not fit the pack.
        DamagedPack: A record or a file of the pack was altered; nothing is published.
        StorageError: The new pack does not fit on the disk, or a file cannot be read or written.
    """
    started = time.monotonic()
    progress = progress or Progress()
    folder = os.fsdecode(pack)
    old = read_manifest(folder)
    options = _options(folder, old, os.fsdecode(out), given)
    remake = _remake(options, old, given)
    output = output_of(options, progress, indexes=True)
    _check_links(old, folder, output.path)
    indexes = Indexes(IndexFiles(folder, old.shards, old))
    listings, selections = lists_of(folder, old)
    selected = select(options, old, indexes)
    selections.update(selected.files)
    for row in selected.skipped:
        listings["skipped"].add(row)
    try:
        workers = options.workers or usable_cores()
        preloaded = PRELOADED if remake is None else f"{PRELOADED} {DECODING}"
        with output, Pool(workers, options.decode_timeout, preloaded) as pool:
            asked = {**asked_of(options), "command": "convert"}
            asked["source"] = f"{asked['source']} (digest {old.digest[:12]})"
            notes = (*resume_or_restart(output, asked, options.overwrite), *selected.notes, *not_carried([folder]))
            for note in notes:
                progress.note(f"note: {printable(note)}")
            pool.start(min(workers, usable_cores(), len(old.shards)))  # workers load their libraries meanwhile
            plan = CopyPlan(old, indexes, options, remake)
            jobs = plan.jobs(selected.rows, output.folder)
            if plan.new_keys:
                progress.note("note: records get new keys: those of the pack are not numbers in increasing order")
            plan.check_space(jobs, lambda job: next(sizes for _, sizes in pool.run(measure_rows, [job])))
            results = _written(jobs, pool, output, progress)
            rejected = [row for result in results for row in result.rejected]
            for one in rejected:
                listings["rejected"].add(one)
            made = _manifest(old, options, remake, selected)
            made = _counted(made, results, output.folder, listings)
            manifest = output.publish(made, listings.values(), selections)
    except BaseException as error:
        if kept := what_is_kept(output, error):
            progress.note(kept)
        raise
    size = sum(shard.container.bytes + shard.index.bytes for shard in manifest.shards)
    return ConvertReport(
        output.path, manifest.container, manifest.encoding, manifest.records, len(manifest.shards), size,
        len(selected.skipped), tuple(rejected), time.monotonic() - started,
    )  # fmt: skip


def _options(folder: str, old: Manifest, out: str, given: dict[str, Any]) -> BuildOptions:
    """Return the options, with what the pack has where none are given."""
    encode = given.get("encode") or old.encoding
    if encode == "copy" and old.encoding != "copy":
        problem = f"keeps the files of a source, but the pack has {old.encoding} images"
        raise UsageError(option("encode", "copy"), problem, "leave it out to keep the images as they are stored")
    if encode == "copy" and given.get("resize") is not None and given.get("encode") is None:
        encode = "raw"  # as a build that resizes
    if given.get("quality") is not None and encode != "jpeg":
        raise UsageError(option("quality"), f"is for jpeg, not for {encode}", "leave it out, or add --encode=jpeg")
    if not out:
        raise UsageError("OUT", "is empty", "name the new pack")
    chosen = {name: value for name, value in given.items() if value is not None}
    if container_of(out) is None and "format" not in chosen:
        check_extension(out)
        if old.container not in container_names():
            problem = f"is needed: the pack is of {old.container} files, which packer does not write"
            raise UsageError(option("format"), problem, f"choose one of {', '.join(container_names())}")
        chosen["format"] = old.container
    return BuildOptions(folder, out, **{**chosen, "encode": encode})


def _remake(options: BuildOptions, old: Manifest, given: dict[str, Any]) -> Remake | None:
    """Return how images are made again; None if their bytes stay."""
    resize = None
    if options.resize is not None:
        resize = Resize.of(options.resize, options.fit, options.pad_value, options.interpolation)
    elif options.encode == old.encoding and given.get("quality") is None:
        return None
    decoder: Decoder = "lenient" if old.lenient else "auto"
    return Remake(cast(Mode, old.mode), decoder, resize, cast(Encoding, options.encode), options.quality)


def _check_links(old: Manifest, folder: str, out: str) -> None:
    """Raise UsageError if a file of the pack that lies elsewhere would be replaced."""
    for name in old.linked:
        path = os.path.realpath(old.path_of(folder, name))
        if path.startswith(os.path.realpath(out) + os.sep):
            problem = f"would be replaced, but {printable(folder)} needs its {printable(os.path.basename(path))}"
            raise UsageError(out, problem, "choose another name")


def _written(jobs: list[CopyJob], pool: Pool, output: Output, progress: Progress) -> list[ShardResult]:
    """Write all shards and return their results in order."""
    before = dict(output.journal.finished)
    jobs = [replace(job, finished=before.get(job.name), checked=output.checked) for job in jobs]
    jobs = with_threads(jobs, pool.size)
    progress.stage("converting", sum(job.spec.planned_records for job in jobs), "records")
    results: dict[int, ShardResult] = {}
    for number, result in pool.run(copy_shard, jobs, advancing(progress)):
        if not result.unchanged:
            output.add(jobs[number].name, result)
        results[number] = result
    if before:
        kept = sum(result.unchanged for result in results.values())
        progress.note(f"note: resumed: {kept} of {plural(len(jobs), 'shard')} were finished")
    return [results[number] for number in sorted(results)]


def _manifest(old: Manifest, options: BuildOptions, remake: Remake | None, selected: Selected) -> Manifest:
    """Return the manifest of the new pack, without what is counted."""
    recorded = {**old.options, **{name: selection_file(name) for name in selected.files}}
    if remake is not None:
        recorded["encode"] = options.encode
        if options.encode == "jpeg":
            recorded["quality"] = options.quality
        if remake.resize is not None:
            recorded.update(resize=options.resize, fit=remake.resize.fit)
            for name in ("pad_value", "interpolation"):
                recorded.pop(name, None)
                recorded.update({} if getattr(options, name) is None else {name: getattr(options, name)})
    return replace(
        old,
        container=options.container,
        encoding=options.encode or old.encoding,
        options=dict(sorted(recorded.items())),
        linked={},
        made_from=(Origin("convert", os.path.basename(os.path.abspath(options.source)), old.digest),),
        packer=packer.__version__,
        libraries=library_versions(),
    )


def _counted(
    manifest: Manifest, results: Sequence[ShardResult], folder: str, listings: dict[str, Listing[Any]]
) -> Manifest:
    """Return the manifest with the shards, and with what follows from them and from the lists."""
    shards = [result.entry for result in results if result.entry is not None]
    rejected = listings["rejected"]
    if not shards:
        reasons = [(reason, count, rejected.examples[reason]) for reason, count in rejected.counts.most_common()]
        raise TooManyBad("", "none of the images can be converted", "", tuple(islice(rejected, 100)), reasons)
    counts = Counter(manifest.counts)
    counts.update(boxes_cropped=sum(result.counts["boxes_cropped"] for result in results))
    counts.update(rejected=len(rejected) - counts["rejected"], skipped=len(listings["skipped"]) - counts["skipped"])
    kept = {name: count for name, count in counts.items() if count or name in manifest.counts}
    manifest = replace(manifest, counts=kept, rejected=tuple(islice(rejected, MOST_IN_MANIFEST)))
    return recount(manifest, shards, (Indexes(IndexFiles(folder, [shard]))[0] for shard in shards))
