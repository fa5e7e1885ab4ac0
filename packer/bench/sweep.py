"""Reads one pack with different settings, to compare them or to find the best ones for training."""

from __future__ import annotations

import importlib.util
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from packer.bench.conclude import conclude
from packer.bench.measure import Figure
from packer.bench.process import measure_apart, measuring, one_round
from packer.bench.report import (
    CROPS,
    DATASET,
    INDEXED,
    PACED,
    PERFECT,
    YOURS,
    BenchOptions,
    Job,
    Report,
    Row,
    UserBatch,
    machine,
)
from packer.bench.sample import MOST_SIDE, Images, batch_size_of, indexed_sample, sample_images, sample_records
from packer.errors import PackerError, StorageError, UsageError, option, plural, size_text
from packer.format.lists import read_list
from packer.format.pack import Pack, open_pack
from packer.format.pack_paths import names_a_pack
from packer.model.annotation import Progress
from packer.packing import BuildOptions, build_pack
from packer.sources.synthetic import draw_sample
from packer.stores import is_url
from packer.system.atomic import remove
from packer.system.pool import Pool

LIMITS = {
    False: {
        "raw": ("limit: memory copy", "copy"),
        "jpeg": ("limit: jpeg decode", "decode-packed"),
        "files": ("limit: file decode", "decode-files"),
    },
    True: {
        "raw": ("limit: disk, raw", "disk-pack"),
        "jpeg": ("limit: disk, jpeg", "disk-pack"),
        "files": ("limit: disk, files", "disk-files"),
    },
}
"""Name and kind of the limits of warm and of cold reads."""
DRAWN_IMAGES, DRAWN_SIZE = 600, 256
OWN_TIMES = 3
"""A loader of the user's is measured this many times as long: its batches come in bursts, one from each worker."""


def compare(source: str | None, options: BenchOptions, command: str, progress: Progress | None = None) -> Report:
    """Compare a sample of the images in a folder with packs of it.

    The sample is packed in every format and encoding in `options`, at one size; each round rebuilds each pack and
    reads everything once.

    Args:
        source: The folder; None draws images.
        options: All of them apply.
        command: The command that repeats it, for the report.
        progress: Receives the stages.

    Raises:
        UsageError: If there are too few images.
        StorageError: If the disk is too full.
    """
    progress = progress or Progress()
    with work_folder(options) as folder, measuring() as pool:
        own, options = own_rows(options, pool, progress)
        progress.stage("drawing a sample")
        name = source or "drawn images"
        if source is None:
            source = os.path.join(folder, "drawn")
            draw_sample(source, "folder", options.images or DRAWN_IMAGES, DRAWN_SIZE, options.seed)
        images = sample_images(source, os.path.join(folder, "images"), options)
        _require_space(folder, images, options)
        return _Comparison(name, images, options, folder).run(own, command, pool, progress)


class _Comparison:
    """The rows of one comparison."""

    def __init__(self, source: str, images: Images, options: BenchOptions, folder: str) -> None:
        self._images, self._options, self._folder, self._source = images, options, folder, source
        self._packed = images.files
        self._rows: dict[str, Row] = {}
        self._packs = [f"{container}, {encoding}" for encoding in options.encodings for container in options.formats]
        self._build_s: dict[str, list[float]] = {name: [] for name in self._packs}

    def run(self, own: list[Row], command: str, pool: Pool, progress: Progress) -> Report:
        options, images = self._options, self._images
        self._add_rows(own)
        settings = {
            "images": len(images.files),
            "images_found": images.found,
            "size": list(images.size),
            "batch_size": options.batch_size,
            "threads": options.threads,
            "rounds": options.rounds,
            "cold": options.cold,
            "device": options.device,
            "step_ms": options.step_ms,
            "loader": options.loader,
        }
        report = Report("compare", self._source, command, machine(), settings, list(self._rows.values()))
        self._build(self._packs[0], Progress())  # loads libraries, which does not count as building
        self._build_s[self._packs[0]].clear()
        for number in range(1, options.rounds + 1):
            total = len(self._rows) + len(self._packs)
            progress.stage(f"round {number} of {options.rounds}", total, "steps")
            for name in self._packs:
                self._build(name, progress)
            if number == 1:
                self._read_only_what_is_packed()
            one_round(pool, self._rows.values(), progress)
        for name in self._packs:
            self._rows[name].build_s = Figure(tuple(self._build_s[name]))
        rejected = len(images.files) - len(self._packed)
        if rejected:
            report.notes.append(f"{rejected} of {len(images.files)} images cannot be packed and are not measured")
        conclude(report)
        return report

    def _add_rows(self, own: list[Row]) -> None:
        options, size = self._options, self._images.size
        job = Job(
            "", size, options.batch_size, options.threads, options.seconds,
            cold=options.cold, device=options.device, seed=options.seed, images=len(self._images.files),
        )  # fmt: skip
        limits = LIMITS[options.cold] if options.device == "cpu" else {}
        files, raw = self._images.bytes / len(self._images.files), 3 * size[0] * size[1]
        for of, (name, kind) in limits.items():
            if of == "files":
                self._add(name, replace(job, kind=kind), files)
            elif of in options.encodings:
                self._add(name, replace(job, kind=kind, pack=self._path(f"{options.formats[0]}, {of}")), raw)
        for name, kind in (("folder, PIL", "folder-pil"), ("folder, cv2", "folder-cv2")):
            self._add(name, replace(job, kind=kind), files, limits["files"][0] if limits else None)
        if importlib.util.find_spec("PIL") is None:
            self._rows["folder, PIL"].left_out = "Pillow is not installed"
        self._rows |= {row.name: row for row in own}
        for name in self._packs:
            limit = limits[name.split(", ")[1]][0] if limits else None
            self._add(name, replace(job, kind="pack", pack=self._path(name)), raw, limit)
        encoding, workers = ("raw", 0) if "raw" in options.encodings else ("jpeg", options.threads)
        first = self._rows[f"{options.formats[0]}, {encoding}"]
        self._add(f"{DATASET}{encoding}", replace(first.job, kind="dataset", threads=workers), raw, first.limit)
        if options.step_ms is not None:
            for name in ("folder, cv2", *(f"{options.formats[0]}, {encoding}" for encoding in options.encodings)):
                paced = replace(self._rows[name].job, step_s=options.step_ms / 1000, cold=False)
                self._add(f"{name}{PACED}", paced, self._rows[name].stored_bytes)

    def _add(self, name: str, job: Job, stored: float, limit: str | None = None) -> None:
        self._rows[name] = Row(name, job, stored, limit)

    def _path(self, name: str) -> str:
        return os.path.join(self._folder, name.replace(", ", "-"))

    def _build(self, name: str, progress: Progress) -> None:
        width, height = self._images.size
        container, encoding = name.split(", ")
        remove(self._path(name), ignore_errors=True)
        options = BuildOptions(
            self._images.folder, self._path(name), format=container, encode=encoding, labels=("none",),
            resize=f"{width}x{height}", fit="stretch", on_bad="skip",
        )  # fmt: skip
        summary = build_pack(options)
        self._build_s[name].append(summary.seconds)
        row = self._rows[name]
        row.disk_bytes = summary.pack_bytes
        if encoding == "jpeg":
            row.stored_bytes = sum(s.container.bytes for s in summary.manifest.shards) / summary.manifest.records
        rejected = {entry.path for entry in read_list(summary.path, "rejected", summary.manifest)}
        copies = sorted(set(os.listdir(self._images.folder)) - rejected)
        self._packed = tuple(self._images.original(name) for name in copies)
        progress.advance(1)

    def _read_only_what_is_packed(self) -> None:
        """Let all rows read the images that could be packed, and no others."""
        size = sum(os.path.getsize(file) for file in self._packed)
        packs = {self._path(name): self._rows[name].stored_bytes for name in self._packs}
        for row in self._rows.values():
            if row.job.loader:
                continue
            if row.job.pack:
                row.stored_bytes = packs[row.job.pack]
            else:
                row.job = replace(row.job, files=self._packed)
                row.disk_bytes, row.stored_bytes = size, size / len(self._packed)


def own_rows(options: BenchOptions, pool: Pool, progress: Progress) -> tuple[list[Row], BenchOptions]:
    """Return the rows of the user's loader, if there is one, and options with its size of batches and images.

    Its first batches are read for this, so that its errors come before all other work.
    """
    if options.loader is None:
        return [], options
    progress.stage("starting your loader")
    job = Job(
        "loader", (0, 0), 0, options.threads, OWN_TIMES * options.seconds, loader=options.loader, folder=os.getcwd(),
        seed=options.seed,
    )  # fmt: skip
    ((_, first),) = pool.run(measure_apart, [replace(job, seconds=0.0)])
    assert isinstance(first.batch, UserBatch)
    size = options.resize if first.batch.size is None else "x".join(map(str, first.batch.size))
    options = replace(options, batch_size=first.batch.images, resize=options.resize or size)
    job = replace(job, batch_size=first.batch.images)
    rows = [Row(YOURS, job, 0.0)]
    if options.step_ms is not None:
        paced = replace(job, step_s=options.step_ms / 1000)
        rows.append(Row(f"{YOURS}{PACED}", paced, 0.0))
        rows.append(Row(f"{PERFECT}{PACED}", replace(paced, kind="cached"), 0.0))
    return rows, options


@contextmanager
def work_folder(options: BenchOptions) -> Iterator[str]:
    """Create a folder for packs, and remove it at the end."""
    if options.work_dir is not None:
        os.makedirs(options.work_dir, exist_ok=True)
    folder = tempfile.mkdtemp(prefix="packer-bench-", dir=options.work_dir)
    try:
        yield folder
    finally:
        remove(folder, ignore_errors=True)


def _require_space(folder: str, images: Images, options: BenchOptions) -> None:
    raw = 3 * images.size[0] * images.size[1] * len(images.files)
    needed = int(raw * 1.3) * len(options.encodings) * len(options.formats) + images.bytes
    free = shutil.disk_usage(folder).free
    if needed > free:
        problem = f"{size_text(free)} are free, but the packs of the sample take up to {size_text(needed)}"
        raise StorageError(folder, problem, "lower --images, or choose another --work-dir")


BATCH_SIZES = (16, 64, 256)
PREFETCHES = (1, 2, 4, 8)
WINDOWS = (0, 16, 64)
"""0: a shuffle without windows."""
FETCHED_RECORDS = 4096
GOOD_ENOUGH = 0.97
"""Share of the best median that is enough: fewer threads or less memory are worth more than the last few percent."""


def sweep(path: str, options: BenchOptions, command: str, progress: Progress | None = None) -> Report:
    """Measure `PackedLoader` on a pack: 1, 2, 4, ... threads, and batches of 16, 64 and 256.

    Each number of threads has its limit in the same run: only copying the same bytes, or only decoding them.

    Args:
        path: The pack, or its URL; what is measured is fetched into the cache before.
        options: All apply but `formats`, `encodings`, and `resize` for a pack with one shape.
        command: The command that repeats it, for the report.
        progress: Receives the stages.

    Raises:
        DamagedPack: If a record cannot be read.
    """
    pack = _open_and_fetch(path, options, progress or Progress())
    job = _job_of(pack, options)
    rows: list[Row] = []
    sizes = [size for size in BATCH_SIZES if size <= len(pack)] or [len(pack)]
    for threads in _thread_counts(options.threads):
        limit = _limit_of(pack, replace(job, threads=threads))
        rows += limit
        for size in sizes:
            row = replace(job, threads=threads, batch_size=size)
            rows.append(_row_of(pack, f"{plural(threads, 'thread')}, batches of {size}", row, limit))
    settings = {
        "size": list(job.size), "rounds": options.rounds, "cold": options.cold, "device": options.device,
        "records": len(pack), "container": pack.manifest.container, "encoding": pack.manifest.encoding,
    }  # fmt: skip
    report = Report("sweep", path, command, machine(), settings, rows)
    with measuring() as pool:
        _measure(pool, rows, options, progress or Progress())
    conclude(report)
    return report


def beside(path: str | None, options: BenchOptions, command: str, progress: Progress | None = None) -> Report:
    """Measure the loader of `options`, and the pack at `path` beside it if there is one.

    Args:
        path: A pack with the same images, or its URL; None measures the loader alone.
        options: `loader` is required; batches of the pack have its size, and its images if the pack needs a crop.
        command: The command that repeats it, for the report.
        progress: Receives the stages.

    Raises:
        UsageError: If the loader is not found.
        LoaderFails: If it raises an exception, or yields batches of unknown size.
        DamagedPack: If a record cannot be read.
    """
    progress = progress or Progress()
    with measuring() as pool:
        rows, options = own_rows(options, pool, progress)
        settings: dict[str, Any] = {
            "batch_size": options.batch_size, "threads": options.threads, "rounds": options.rounds, "cold": False,
            "step_ms": options.step_ms, "loader": options.loader,
        }  # fmt: skip
        if path is not None:
            pack = _open_and_fetch(path, options, progress)
            job = _job_of(pack, options)
            settings |= {"size": list(job.size), "records": len(pack), "container": pack.manifest.container}
            limit = _limit_of(pack, job)
            row = _row_of(pack, f"pack, {pack.manifest.encoding}", job, limit)
            rows = [*limit, *rows, row]
            if options.step_ms is not None:
                rows.append(_row_of(pack, f"{row.name}{PACED}", replace(job, step_s=options.step_ms / 1000)))
        report = Report("loader", path or options.loader or "", command, machine(), settings, rows)
        _measure(pool, rows, options, progress)
    conclude(report)
    return report


def tune(path: str, options: BenchOptions, command: str, progress: Progress | None = None) -> Report:
    """Find threads, prefetch and, for cold reads, the window of the shuffle; or the workers of a DataLoader.

    Args:
        path: A pack or its URL, or a folder of images.
        options: With `step_ms`, the best settings are measured with a consumer that takes this long for a batch.
        command: The command that repeats it, for the report.
        progress: Receives the stages.

    Raises:
        UsageError: If there is nothing to read.
        DamagedPack: If a record cannot be read.
    """
    progress = progress or Progress()
    if is_url(path) or names_a_pack(path):
        pack = _open_and_fetch(path, options, progress)
        with measuring() as pool:
            return _Tuning(path, options, command, pool, progress).of_pack(pack)
    with work_folder(options) as folder, measuring() as pool:
        progress.stage("drawing a sample")
        images = sample_images(path, os.path.join(folder, "images"), options)
        job = Job(
            "folder-cv2", images.size, options.batch_size, 0, options.seconds, files=images.files,
            cold=options.cold, device=options.device, seed=options.seed,
        )  # fmt: skip
        return _Tuning(path, options, command, pool, progress).of_folder(job, images.bytes / len(images.files))


class _Tuning:
    """The stages of a search, each of which starts from the best settings of the previous one."""

    def __init__(self, path: str, options: BenchOptions, command: str, pool: Pool, progress: Progress) -> None:
        settings = {
            "rounds": options.rounds, "batch_size": options.batch_size, "cold": options.cold,
            "device": options.device, "step_ms": options.step_ms,
        }  # fmt: skip
        self._report = Report("tune", path, command, machine(), settings)
        self._options, self._pool, self._progress = options, pool, progress

    def of_pack(self, pack: Pack) -> Report:
        job = _job_of(pack, self._options)
        if pack.manifest.shape is None:  # PackedLoader needs a crop
            self._report.settings["resized_to"] = list(job.size)
        rows: list[Row] = []
        for n in _thread_counts(2 * job.threads):
            limit = _limit_of(pack, replace(job, threads=n))
            rows += [*limit, _row_of(pack, f"threads {n}", replace(job, threads=n), limit)]
        best = self._best(rows)
        best = self._best([_row_of(pack, f"prefetch {n}", replace(best, prefetch=n)) for n in PREFETCHES])
        if self._options.cold:
            best = self._best([_row_of(pack, f"window {n}", replace(best, window=n)) for n in WINDOWS])
        if self._options.step_ms is not None:
            self._best([_row_of(pack, "with the step", self._with_step(best))])
        if not self._options.cold:
            try:
                self._index(pack, replace(best, crops=True, images=None, cache_dir=None))
            except PackerError as error:  # the rest is worth showing
                self._report.notes.append(f"what an index of the JPEGs would do is not known: {error.line}")
        return self._finished(best)

    def _index(self, pack: Pack, job: Job) -> None:
        """Measure what an index of the JPEGs would do for random crops, with packs of a sample of them."""
        with work_folder(self._options) as folder:
            self._progress.stage("indexing a sample")
            if (found := indexed_sample(pack, folder, self._options)) is None:
                return
            plain, indexed = map(open_pack, found)
            size = min(job.size[0], MOST_SIDE), min(job.size[1], MOST_SIDE)
            job = replace(job, pack=plain.path, size=size, batch_size=min(job.batch_size, len(plain)))
            rows = [_row_of(plain, CROPS, job), _row_of(indexed, INDEXED, replace(job, pack=indexed.path))]
            self._best(rows)

    def of_folder(self, job: Job, stored: float) -> Report:
        rows = []
        if self._options.device == "cpu":
            name, kind = ("limit: disk", "disk-files") if job.cold else ("limit: decode", "decode-files")
            rows.append(Row(name, replace(job, kind=kind, threads=self._options.threads), stored))
        limit = rows[0].name if rows else None
        counts = [0, *_thread_counts(2 * self._options.threads)]
        rows += [Row(f"num_workers {n}", replace(job, threads=n), stored, limit) for n in counts]
        best = self._best(rows)
        if self._options.step_ms is not None:
            self._best([Row("with the step", self._with_step(best), stored)])
        return self._finished(best)

    def _with_step(self, best: Job) -> Job:
        return replace(best, step_s=(self._options.step_ms or 0.0) / 1000, cold=False)

    def _best(self, rows: list[Row]) -> Job:
        """Measure, and return the first setting that is nearly the best: fewest threads, least prefetch."""
        self._report.rows += rows
        _measure(self._pool, rows, self._options, self._progress)
        failed = next((row for row in rows if row.left_out), None)
        if failed is not None:
            raise PackerError(self._report.path, f"{failed.name}: {failed.left_out}")
        rates = [(row.rate.median, row.job) for row in rows if not row.name.startswith("limit")]
        most = max(rate for rate, _ in rates)
        return next(job for rate, job in rates if rate >= GOOD_ENOUGH * most)

    def _finished(self, best: Job) -> Report:
        names = ("threads", "prefetch", "window", "batch_size")
        self._report.settings["best"] = {name: getattr(best, name) for name in names}
        conclude(self._report, best)
        return self._report


def _measure(pool: Pool, rows: list[Row], options: BenchOptions, progress: Progress) -> None:
    progress.stage("measuring", options.rounds * len(rows), "steps")
    for _ in range(options.rounds):
        one_round(pool, rows, progress)


def _thread_counts(most: int) -> list[int]:
    """Return 1, 2, 4, ... and `most`."""
    return sorted({2**power for power in range(most.bit_length()) if 2**power <= most} | {most})


def _open_and_fetch(path: str, options: BenchOptions, progress: Progress) -> Pack:
    """Open a pack; of one at a URL, fetch the records that are measured."""
    pack = open_pack(path, options.cache_dir)
    if pack.reader.remote is not None:
        if options.cold:
            step = f"packer pull {pack.path} PACK, and measure that"
            raise UsageError(option("cold"), "measures a disk, but the pack is at a URL", step)
        records = sample_records(pack, options.images)
        progress.stage("fetching", len(records), "records")
        for start in range(0, len(records), FETCHED_RECORDS):
            part = records[start : start + FETCHED_RECORDS]
            with pack.reader.held(part):
                progress.advance(len(part))
    return pack


def _job_of(pack: Pack, options: BenchOptions) -> Job:
    """Return the job of reading this pack with the settings of the options."""
    if not len(pack):
        raise UsageError(pack.path, "holds no records", "there is nothing to measure")
    shape = pack.manifest.shape
    if shape is not None:
        size = shape[1], shape[0]
    elif options.resize is not None:
        size = options.size_of(options.resize)
    else:
        size = batch_size_of(np.stack([np.asarray(pack.column(name)) for name in ("width", "height")], axis=1))
    return Job(
        "pack", size, min(options.batch_size, len(pack)), options.threads, options.seconds, pack=pack.path,
        cache_dir=options.cache_dir, cold=options.cold, device=options.device, seed=options.seed, images=options.images,
    )  # fmt: skip


def _limit_of(pack: Pack, job: Job) -> list[Row]:
    """Return the row of this job's limit, if there is one."""
    if job.device != "cpu" or (not job.cold and pack.manifest.encoding == "raw" and pack.reader.record_bytes is None):
        return []
    kind, what = "decode-packed", "decode"
    if job.cold:
        kind, what = "disk-pack", "disk"
    elif pack.manifest.encoding == "raw":
        kind, what = "copy", "memory copy"
    return [_row_of(pack, f"limit: {what}, {plural(job.threads, 'thread')}", replace(job, kind=kind))]


def _row_of(pack: Pack, name: str, job: Job, limit: Iterable[Row] = ()) -> Row:
    stored = float(np.asarray(pack.column("size")).sum()) / len(pack)
    size = sum(shard.container.bytes + shard.index.bytes for shard in pack.reader.shards)
    return Row(name, job, stored, next((row.name for row in limit), None), size)
