"""Compares a plain folder with packs of every format."""

from __future__ import annotations

import importlib.util
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from packer.bench.conclude import conclude
from packer.bench.measure import Figure
from packer.bench.options import BenchOptions, Job, machine
from packer.bench.process import measure_apart, measuring, one_round
from packer.bench.report import DATASET, PACED, PERFECT, YOURS, Batch, Report, Row
from packer.bench.sample import Images, sample_images
from packer.errors import StorageError, size_text
from packer.format.lists import read_list
from packer.model.annotation import Progress
from packer.packing import BuildOptions, build_pack
from packer.sources.synthetic import draw_sample
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
    assert isinstance(first.batch, Batch)
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
