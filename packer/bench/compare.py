"""The plain folder against packs of every format, side by side."""

from __future__ import annotations

import importlib.util
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from packer.bench.images import Images, draw_images
from packer.bench.job import Job
from packer.bench.machine import machine
from packer.bench.options import BenchOptions
from packer.bench.process import measuring, one_round
from packer.bench.result import PACED, Figure, Report, Row
from packer.bench.watcher import Silent, Watcher
from packer.bench.words import cold_notes, compared
from packer.build import BuildOptions, build_pack
from packer.drawing import draw_sample
from packer.errors import StorageError

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
"""Of warm and of cold reads: name and kind of the limit of each."""
DRAWN_IMAGES, DRAWN_SIZE = 600, 256


def compare(source: str | None, options: BenchOptions, command: str, watcher: Watcher | None = None) -> Report:
    """Measure a sample of the images in the folder `source` (drawn ones where it is None).

    The sample is packed in every format and encoding that `options` name, at one size; each round builds each pack
    anew and reads everything once. Raises UsageError where there is nothing to read, StorageError where the disk is
    too full.
    """
    watcher = watcher or Silent()
    with work_folder(options) as folder:
        if source is None:
            source = os.path.join(folder, "drawn")
            draw_sample(source, "folder", options.images or DRAWN_IMAGES, DRAWN_SIZE, options.seed)
        watcher.begin("drawing a sample", None)
        images = draw_images(source, os.path.join(folder, "images"), options)
        _require_space(folder, images, options)
        return _Comparison(source, images, options, folder).run(command, watcher)


class _Comparison:
    """The rounds of one comparison."""

    def __init__(self, source: str, images: Images, options: BenchOptions, folder: str) -> None:
        self._images, self._options, self._folder = images, options, folder
        self._source = source
        self._files = images.files
        self._build_s: dict[str, list[float]] = {}
        self._jobs: dict[str, Job] = {}
        self._rows: dict[str, Row] = {}

    def run(self, command: str, watcher: Watcher) -> Report:
        options, images = self._options, self._images
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
        }
        self._plan()
        report = Report("compare", self._source, command, machine(), settings, list(self._rows.values()))
        watcher.begin("measuring", 1 + options.rounds * (len(self._jobs) + len(self._packs)))
        self._build(watcher, self._packs[:1])  # loads libraries, which is no part of a build
        self._build_s.clear()
        with measuring() as pool:
            for number in range(options.rounds):
                self._build(watcher, self._packs)
                if number == 0:
                    self._agree()
                one_round(pool, self._jobs, self._rows, watcher)
        for name in self._packs:
            self._rows[name].build_s = Figure(tuple(self._build_s[name]))
        rejected = len(images.files) - len(self._files)
        if rejected:
            problem = "cannot be packed, and stand in no row"
            report.notes.append(f"{rejected} of {len(images.files)} images {problem}")
        report.notes += cold_notes(report)
        report.conclusion = compared(report)
        return report

    def _plan(self) -> None:
        options = self._options
        job = Job(
            "", self._images.size, options.batch_size, options.threads, options.seconds,
            cold=options.cold, device=options.device, seed=options.seed, images=len(self._images.files),
        )  # fmt: skip
        limits = LIMITS[options.cold] if options.device == "cpu" else {}
        files = self._images.bytes / len(self._images.files)
        raw = 3 * self._images.size[0] * self._images.size[1]
        self._packs = [f"{container}, {encoding}" for encoding in options.encodings for container in options.formats]
        for of, (name, kind) in limits.items():
            if of == "files":
                self._add(name, replace(job, kind=kind), files)
            elif of in options.encodings:
                self._add(name, replace(job, kind=kind, pack=self._path(f"{options.formats[0]}, {of}")), raw)
        for name, kind in (("folder, PIL", "folder-pil"), ("folder, cv2", "folder-cv2")):
            self._add(name, replace(job, kind=kind), files, limits["files"][0] if limits else None)
        if importlib.util.find_spec("PIL") is None:
            del self._jobs["folder, PIL"]
            self._rows["folder, PIL"].left_out = "Pillow is not installed"
        for name in self._packs:
            limit = limits[name.split(", ")[1]][0] if limits else None
            self._add(name, replace(job, kind="pack", pack=self._path(name)), raw, limit)
        if options.step_ms is not None:
            for name in ("folder, cv2", *(f"{options.formats[0]}, {encoding}" for encoding in options.encodings)):
                paced = replace(self._jobs[name], step_s=options.step_ms / 1000, cold=False)
                self._add(f"{name}{PACED}", paced, self._rows[name].stored_bytes)

    def _add(self, name: str, job: Job, stored: float, limit: str | None = None) -> None:
        settings: dict[str, Any] = {"kind": job.kind, "threads": job.threads, "batch_size": job.batch_size}
        self._jobs[name] = job
        self._rows[name] = Row(name, settings, stored, limit)

    def _path(self, name: str) -> str:
        return os.path.join(self._folder, name.replace(", ", "-"))

    def _build(self, watcher: Watcher, names: list[str]) -> None:
        width, height = self._images.size
        for name in names:
            watcher.doing(f"building {name}")
            container, encoding = name.split(", ")
            shutil.rmtree(self._path(name), ignore_errors=True)
            asked = BuildOptions(
                self._images.folder, self._path(name), format=container, encode=encoding, labels=("none",),
                resize=f"{width}x{height}", fit="stretch", on_bad="skip",
            )  # fmt: skip
            summary = build_pack(asked)
            self._build_s.setdefault(name, []).append(summary.seconds)
            row = self._rows[name]
            row.disk_bytes = summary.pack_bytes
            if encoding == "jpeg":
                row.stored_bytes = sum(s.container.bytes for s in summary.manifest.shards) / summary.manifest.records
            rejected = {entry.path for entry in summary.manifest.rejected}
            self._packed = sorted(set(os.listdir(self._images.folder)) - rejected)
            watcher.done(1)

    def _agree(self) -> None:
        """All rows read the images that could be packed, and no others."""
        self._files = tuple(self._images.of(name) for name in self._packed)
        size = sum(os.path.getsize(file) for file in self._files)
        for name, job in self._jobs.items():
            if job.kind.startswith("folder") or job.kind.endswith("-files"):
                self._jobs[name] = replace(job, files=self._files)
                self._rows[name].disk_bytes = size
                self._rows[name].stored_bytes = size / len(self._files)
        for name, job in self._jobs.items():
            if job.kind in ("decode-packed", "disk-pack") or (job.kind == "pack" and name.endswith(PACED)):
                packed = next(pack for pack in self._packs if self._path(pack) == job.pack)
                self._rows[name].stored_bytes = self._rows[packed].stored_bytes


@contextmanager
def work_folder(options: BenchOptions) -> Iterator[str]:
    """A folder for packs, which goes with the bench."""
    if options.work_dir is not None:
        os.makedirs(options.work_dir, exist_ok=True)
    folder = tempfile.mkdtemp(prefix="packer-bench-", dir=options.work_dir)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _require_space(folder: str, images: Images, options: BenchOptions) -> None:
    raw = 3 * images.size[0] * images.size[1] * len(images.files)
    needed = int(raw * 1.3) * len(options.encodings) * len(options.formats) + images.bytes
    free = shutil.disk_usage(folder).free
    if needed > free:
        from packer.text import size_text

        problem = f"{size_text(free)} are free, and the packs of the sample take up to {size_text(needed)}"
        raise StorageError(folder, problem, "lower --images, or name another --work-dir")
