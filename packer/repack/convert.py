"""Converts a pack to another container, encoding or size, or to a part of its records."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, islice
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import packer
from packer.containers import container_names, container_of
from packer.containers.container import ShardSpec
from packer.errors import AnyPath, TooManyBad, UsageError, option, plural, printable
from packer.format.index import DTYPES
from packer.format.indexes import Indexes, IndexFiles
from packer.format.lists import MOST_IN_MANIFEST, Listing, Skipped, lists_of, selection_file
from packer.format.manifest import Manifest, Origin, Rejected, read_manifest
from packer.format.pack import open_pack
from packer.format.sidecar_list import FINGERPRINTS, not_carried
from packer.images.decode import Decoder
from packer.images.header import Mode
from packer.images.parts import BY_KIND
from packer.images.resize import Encoding
from packer.model.annotation import OF_PIXELS, Progress, advancing
from packer.model.fields import FIELD_NAMES, INSTANCES
from packer.model.rle import check_installed
from packer.packing.build_options import BuildOptions, check_extension
from packer.packing.build_steps import list_fingerprints
from packer.packing.class_map import ClassChange, changes_notes
from packer.packing.engines import with_threads
from packer.packing.journal import MOST_FINGERPRINTS, ShardResult
from packer.packing.plan import (
    SAMPLED_IMAGES,
    InputSizes,
    check_space,
    free_bytes,
    shard_name,
    stored_bytes,
)
from packer.packing.publish import Output
from packer.packing.recorded import RESIZED_TWICE
from packer.packing.resume import kept_work_note, library_versions, options_that_shape_bytes, resume_or_restart
from packer.packing.store_output import output_of
from packer.repack.copy_shard import CopyJob, Remake, copy_shard, keys_may_stay, measure_rows
from packer.repack.fingerprints import stored_fingerprints
from packer.repack.index_columns import recount, select_rows
from packer.repack.pack_classes import PackClasses, class_map_of, recorded_classes
from packer.repack.repeated import repeated
from packer.repack.selected import Rows, Selected, select
from packer.system import usable_cores
from packer.system.pool import Pool

Measure = Callable[[CopyJob], Sequence[int]]


def _new_classes(
    options: BuildOptions, old: Manifest, indexes: Indexes, selected: Selected, skipped: Listing[Skipped]
) -> PackClasses | None:
    """Return the classes that the options ask for, and take the records without any other from `selected`.

    Raises:
        UsageError: The options name a class that the pack has not, or leave no record, or one without objects.
    """
    if (class_map := class_map_of(options, [old])) is None:
        return None
    classes = PackClasses.of(class_map, old)
    for number, rows in enumerate(selected.rows):
        table = indexes[number]
        if rows is not None:
            (batch,) = table.to_batches()
            table = pa.Table.from_batches([select_rows(batch, np.array(rows, np.int64))])
        _, stay = classes.taken(table, options.missing_labels, skipped)
        numbers = np.arange(len(table)) if rows is None else np.array(rows, np.int64)
        selected.rows[number] = rows if stay.all() else tuple(numbers[stay].tolist())
    if not any(rows is None or rows for rows in selected.rows):
        raise UsageError(class_map.option, "leaves no record", "name other classes")
    selected.notes += changes_notes(classes.changes)
    return classes


class CopyPlan:
    """The jobs of a conversion."""

    def __init__(self, manifest: Manifest, indexes: Indexes, options: BuildOptions, remake: Remake | None) -> None:
        self._old, self._indexes, self._options, self._remake = manifest, indexes, options, remake
        self.new_keys = False
        """Whether the keys of the pack cannot stay."""

    def jobs(self, rows: Sequence[Rows], folder: str) -> list[CopyJob]:
        """Return a job for each shard that has records left, to be written to `folder`."""
        wanted = [number for number, kept in enumerate(rows) if kept is None or kept]
        tables = [_take_rows(self._indexes[number], rows[number]) for number in wanted]
        self.new_keys = not all(map(keys_may_stay, tables))
        facts = InputSizes(pa.concat_tables(map(_sizes, tables)), None if self._remake is None else self._remake.resize)
        old, options = self._old, self._options
        shape, dtype = (old.shape, old.dtype) if self._remake is None else facts.uniform()
        self.image_bytes = facts.source_bytes if self._remake is None else facts.raw_bytes
        spec = ShardSpec(
            classes=old.classes,
            encoding=options.encode or old.encoding,
            shape=shape if options.encode == "raw" else None,
            dtype=dtype or "uint8",
            planned_records=0,
            planned_bytes=0,
            parts=old.part_specs,
        )
        jobs: list[CopyJob] = []
        first = 0
        # as readers of the new format expect them
        moves = (old.container, old.encoding) != (options.container, spec.encoding)
        kinds = {part: BY_KIND[part.kind] for part in old.part_specs if moves and part.kind in OF_PIXELS}
        encode_parts = {
            part.name: kind.encoding(options.container, spec.encoding, part) for part, kind in kinds.items()
        }
        for number, table in zip(wanted, tables, strict=True):
            entry, stop = old.shards[number], first + len(table)
            job = CopyJob(
                folder=folder,
                name=shard_name(options.container, len(jobs), len(wanted)),
                container=options.container,
                spec=replace(spec, planned_records=len(table), planned_bytes=int(self.image_bytes[first:stop].sum())),
                bad_allowed=len(table),
                pack=old.base or os.path.abspath(options.source),
                file=old.path_of(os.path.abspath(options.source), entry.container.name),
                entry=entry,
                rows=rows[number],
                first_key=first if self.new_keys else None,
                remake=self._remake,
                encode_parts=encode_parts,
                mode=old.mode,
            )
            jobs.append(job)
            first = stop
        self._table = pa.concat_tables(
            table.select([n for n in _LABELS if n in table.column_names]) for table in tables
        )
        return _with_fingerprints(jobs, options.source, old)

    def check_space(self, jobs: Sequence[CopyJob], measure: Measure) -> None:
        """Raise StorageError if the new pack will not fit on the disk. `measure` encodes a few images, in a worker."""
        options = self._options
        sizes = self.image_bytes
        if self._remake is not None and options.encode != "raw":
            job = jobs[0]
            count = job.spec.planned_records
            drawn = np.unique(np.linspace(0, count - 1, min(SAMPLED_IMAGES, count)).astype(int))
            rows = range(count) if job.rows is None else job.rows
            encoded = measure(replace(job, rows=tuple(rows[number] for number in drawn.tolist())))
            ratio = sum(encoded) / max(1, int(sizes[drawn].sum()))
            sizes = np.ceil(sizes * ratio).astype(np.int64)
        needed = stored_bytes(options.container, options.encode == "raw", sizes, self._table)
        step = "choose another disk, or make it smaller with --encode=jpeg"
        check_space(options, needed, len(jobs), free_bytes(options), step)


_LABELS = ("path", *FIELD_NAMES)


def _take_rows(table: Any, rows: Rows) -> Any:
    return table if rows is None else table.take(pa.array(rows, pa.int64()))


def _sizes(table: Any) -> Any:
    """Return the columns that `InputSizes` needs."""
    columns = {name: table.column(name) for name in ("height", "width", "channels")}
    wide = pc.equal(table.column("dtype").cast("string"), DTYPES[1])
    return pa.table({"bytes": table.column("size"), **columns, "wide": wide})


PRELOADED = "packer.repack.copy_shard"
DECODING = "packer.images.decode packer.images.resize packer.packing.make_record"
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
    """Records of the pack that are left out: by `include` and `exclude`, or with their class."""
    rejected: tuple[Rejected, ...]
    """Records whose image could not be decoded, or not be stored in the encoding."""
    seconds: float
    class_changes: tuple[ClassChange, ...] = ()
    """What became of classes that were renamed or dropped."""


def convert(pack: AnyPath, out: AnyPath, progress: Progress | None = None, **given: Any) -> ConvertReport:
    """Write the records of a pack to a new one.

    Without `encode` and `resize`, the bytes of the images and their keys stay, and so do all annotations. After an
    error, finished shards stay in NAME.partial, and the same call resumes from them.

    Args:
        pack: The pack.
        out: Path of the new pack.
        progress: Receives the records that were written, and notes.
        given: Options of `BuildOptions`: format (by default by the extension of `out`, else that of the pack), encode,
            quality, resize, fit, pad_value, interpolation, include, exclude, overwrite, workers, decode_timeout; map,
            drop_class, only_class, single_class, and missing_labels for records that these leave without objects;
            keep_one: of equal files (equal) or near duplicates (near, near=BITS, mirrored), one stays.

    Returns:
        What was written.

    Raises:
        UsageError: The options do not fit the pack.
        DamagedPack: A record or a file of the pack was altered; nothing is published.
        StorageError: The new pack does not fit on the disk, or a file cannot be read or written.
    """
    started, progress = time.monotonic(), progress or Progress()
    folder, keep_one = os.fsdecode(pack), given.pop("keep_one", None)
    old = read_manifest(folder)
    options = _options(folder, old, os.fsdecode(out), given)
    remake = _remake(options, old, given)
    check_installed(options.resize is not None and INSTANCES.name in old.fields, option("resize"))
    output = output_of(options, progress, indexes=True)
    _check_links(old, folder, output.path)
    indexes = Indexes(IndexFiles(folder, old.shards, old))
    listings, selections = lists_of(folder, old)
    without = repeated(open_pack(folder), keep_one, progress) if keep_one else {}
    selections.update((selected := select(options, old, indexes, without)).files)
    before = len(listings["skipped"])
    for row in selected.skipped:
        listings["skipped"].add(row)
    classes = _new_classes(options, old, indexes, selected, listings["skipped"])
    try:
        workers = options.workers or usable_cores()
        preloaded = PRELOADED if remake is None else f"{PRELOADED} {DECODING}"
        with output, Pool(workers, options.decode_timeout, preloaded) as pool:
            asked = {**options_that_shape_bytes(options), "command": "convert", "keep_one": keep_one}
            asked["source"] = f"{asked['source']} (digest {old.digest[:12]})"
            resumed = resume_or_restart(output, asked, options.overwrite)
            carried = () if old.records > MOST_FINGERPRINTS else (FINGERPRINTS,)
            for note in (*resumed, *selected.notes, *not_carried([folder], carried)):
                progress.note(f"note: {printable(note)}")
            pool.start(min(workers, usable_cores(), len(old.shards)))  # workers load their libraries meanwhile
            plan = CopyPlan(old if classes is None else classes.in_manifest(old), indexes, options, remake)
            jobs = plan.jobs(selected.rows, output.folder)
            if classes is not None:
                ids = tuple(classes.ids.tolist())
                jobs = [replace(job, class_ids=ids, mask_ids=classes.mask_ids) for job in jobs]
            if plan.new_keys:
                progress.note("note: records get new keys: those of the pack are not numbers in increasing order")
            plan.check_space(jobs, lambda job: next(sizes for _, sizes in pool.run(measure_rows, [job])))
            results = _write_shards(jobs, pool, output, progress)
            rejected = [row for result in results for row in result.rejected]
            for one in rejected:
                listings["rejected"].add(one)
            made = _manifest(old, options, remake, selected, keep_one)
            if classes is not None:
                notes = (*made.notes, *changes_notes(classes.changes))
                made = replace(classes.in_manifest(made), options=recorded_classes(options, made.options), notes=notes)
            made = _count_records(made, results, output.folder, listings)
            output.beside = list_fingerprints(output.folder, made, results)
            size, manifest = made.shard_bytes, output.publish(made, listings.values(), selections)
    except BaseException as error:
        if kept := kept_work_note(output, error):
            progress.note(kept)
        raise
    return ConvertReport(
        output.path, manifest.container, manifest.encoding, manifest.records, len(manifest.shards), size,
        len(listings["skipped"]) - before, tuple(rejected), time.monotonic() - started,
        () if classes is None else classes.changes,
    )  # fmt: skip


def _with_fingerprints(jobs: list[CopyJob], folder: str, old: Manifest) -> list[CopyJob]:
    """Return the jobs with the fingerprints of all records of their shards, if the pack has them, and not too many."""
    if old.records > MOST_FINGERPRINTS or (stored := stored_fingerprints(open_pack(folder))) is None:
        return jobs
    ends = accumulate(shard.records for shard in old.shards)
    ends_of = {shard.container.name: end for shard, end in zip(old.shards, ends, strict=True)}
    rows = [stored[ends_of[job.entry.container.name] - job.entry.records :][: job.entry.records] for job in jobs]
    return [replace(job, fingerprints=its.tobytes()) for job, its in zip(jobs, rows, strict=True)]


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
    resize = options.target_size()
    if resize is None and options.encode == old.encoding and given.get("quality") is None:
        old.check_no_windows(options.source, "a copy would have each image as often as it has tiles")
        return None
    decoder: Decoder = "lenient" if old.lenient else "auto"
    return Remake(cast(Mode, old.mode), decoder, resize, cast(Encoding, options.encode), options.quality, old.windows)


def _check_links(old: Manifest, folder: str, out: str) -> None:
    """Raise UsageError if a file of the pack that lies elsewhere would be replaced."""
    for name in old.linked:
        path = os.path.realpath(old.path_of(folder, name))
        if path.startswith(os.path.realpath(out) + os.sep):
            problem = f"would be replaced, but {printable(folder)} needs its {printable(os.path.basename(path))}"
            raise UsageError(out, problem, "choose another name")


def _write_shards(jobs: list[CopyJob], pool: Pool, output: Output, progress: Progress) -> list[ShardResult]:
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


def _manifest(
    old: Manifest, options: BuildOptions, remake: Remake | None, selected: Selected, keep_one: str | None
) -> Manifest:
    """Return the manifest of the new pack, without what is counted."""
    recorded = {**old.options, **{name: selection_file(name) for name in selected.files}}
    recorded |= {"repack": {"keep_one": keep_one}} if keep_one else {}
    if remake is not None:
        recorded["encode"] = options.encode
        if options.encode == "jpeg":
            recorded["quality"] = options.quality
        if remake.resize is not None:
            recorded |= {RESIZED_TWICE: True} if recorded.get("resize") else {}
            recorded.update(resize=options.resize, fit=remake.resize.fit)
            for name in ("pad_value", "interpolation"):
                recorded.pop(name, None)
                recorded.update({} if getattr(options, name) is None else {name: getattr(options, name)})
    return replace(
        old.without_windows(),
        container=options.container,
        encoding=options.encode or old.encoding,
        options=dict(sorted(recorded.items())),
        linked={},
        companions={},
        made_from=(Origin("convert", os.path.basename(os.path.abspath(options.source)), old.digest),),
        packer=packer.__version__,
        libraries=library_versions(),
    )


def _count_records(
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
