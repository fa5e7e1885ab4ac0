"""Looks for the settings with which a pack (or a folder) is read fastest, and holds them against a training step."""

from __future__ import annotations

import os
from dataclasses import replace

from packer.bench.compare import work_folder
from packer.bench.images import draw_images
from packer.bench.job import Job
from packer.bench.machine import machine
from packer.bench.options import BenchOptions
from packer.bench.process import measuring, one_round
from packer.bench.result import Report, Row
from packer.bench.sweep import add, add_limit, job_of, thread_counts
from packer.bench.watcher import Silent, Watcher
from packer.bench.words import cold_notes, tuned
from packer.errors import PackerError
from packer.manifest import names_a_pack
from packer.pack import Pack, open_pack

PREFETCHES = (1, 2, 4, 8)
WINDOWS = (0, 16, 64)
"""0: a shuffle without windows."""
GOOD_ENOUGH = 0.97
"""Of the best median: fewer threads, or less memory, are worth more than the last few hundredths."""


def tune(path: str, options: BenchOptions, command: str, watcher: Watcher | None = None) -> Report:
    """Find threads, prefetch and, for cold reads, the window of the shuffle for the pack at `path`; or the number of
    workers of a DataLoader, for a folder of images.

    With `options.step_ms` the best settings are held against a consumer that takes so long for a batch.
    """
    watcher = watcher or Silent()
    if names_a_pack(path):
        return _Tuning(path, options, command, watcher).of_pack(open_pack(path))
    with work_folder(options) as folder:
        watcher.begin("drawing a sample", None)
        images = draw_images(path, os.path.join(folder, "images"), options)
        job = Job(
            "folder-cv2", images.size, options.batch_size, 0, options.seconds, files=images.files,
            cold=options.cold, device=options.device, seed=options.seed,
        )  # fmt: skip
        return _Tuning(path, options, command, watcher).of_folder(job, images.bytes / len(images.files))


class _Tuning:
    """The stages of one search: each keeps the best of the one before it."""

    def __init__(self, path: str, options: BenchOptions, command: str, watcher: Watcher) -> None:
        settings = {
            "rounds": options.rounds, "batch_size": options.batch_size, "cold": options.cold,
            "device": options.device, "step_ms": options.step_ms,
        }  # fmt: skip
        self._report = Report("tune", path, command, machine(), settings)
        self._options, self._watcher = options, watcher

    def of_pack(self, pack: Pack) -> Report:
        job = job_of(pack, self._options)
        if pack.manifest.shape is None:  # PackedLoader must be told
            self._report.settings["resized_to"] = list(job.size)
        counts = thread_counts(2 * job.threads)
        best = self._stage(pack, {f"threads {n}": replace(job, threads=n) for n in counts}, limits=True)
        best = self._stage(pack, {f"prefetch {n}": replace(best, prefetch=n) for n in PREFETCHES})
        if self._options.cold:
            best = self._stage(pack, {f"window {n}": replace(best, window=n) for n in WINDOWS})
        if self._options.step_ms is not None:
            self._stage(pack, {"with the step": replace(best, step_s=self._options.step_ms / 1000, cold=False)})
        return self._done(best)

    def of_folder(self, job: Job, stored: float) -> Report:
        counts = [0, *thread_counts(2 * self._options.threads)]
        jobs = {f"num_workers {n}": replace(job, threads=n) for n in counts}
        limit = None
        if self._options.device == "cpu":
            limit, kind = ("limit: disk", "disk-files") if job.cold else ("limit: decode", "decode-files")
            jobs = {limit: replace(job, kind=kind, threads=self._options.threads), **jobs}
        rows = {name: _row(name, one, stored, limit if name != limit else None) for name, one in jobs.items()}
        best = self._measured(jobs, rows)
        if self._options.step_ms is not None:
            last = {"with the step": replace(best, step_s=self._options.step_ms / 1000, cold=False)}
            self._measured(last, {name: _row(name, one, stored) for name, one in last.items()})
        return self._done(best)

    def _stage(self, pack: Pack, jobs: dict[str, Job], limits: bool = False) -> Job:
        all_jobs: dict[str, Job] = {}
        rows: dict[str, Row] = {}
        for name, job in jobs.items():
            limit = add_limit(pack, job, all_jobs, rows) if limits else None
            add(pack, name, job, all_jobs, rows, limit)
        return self._measured(all_jobs, rows)

    def _measured(self, jobs: dict[str, Job], rows: dict[str, Row]) -> Job:
        """Measure, and the first of those that are nearly the best: fewest threads, least ahead."""
        self._report.rows += rows.values()
        self._watcher.begin("measuring", self._options.rounds * len(jobs))
        with measuring() as pool:
            for _ in range(self._options.rounds):
                one_round(pool, jobs, rows, self._watcher)
        failed = next((row for row in rows.values() if row.left_out), None)
        if failed is not None:
            raise PackerError(self._report.path, f"{failed.name}: {failed.left_out}")
        rates = {name: row.figure("images_per_s").median for name, row in rows.items() if "limit" not in name}
        best = max(rates.values())
        return jobs[next(name for name, rate in rates.items() if rate >= GOOD_ENOUGH * best)]

    def _done(self, best: Job) -> Report:
        self._report.settings["best"] = {
            "threads": best.threads, "prefetch": best.prefetch, "window": best.window, "batch_size": best.batch_size,
        }  # fmt: skip
        self._report.notes += cold_notes(self._report)
        self._report.conclusion = tuned(self._report, best)
        return self._report


def _row(name: str, job: Job, stored: float, limit: str | None = None) -> Row:
    return Row(name, {"kind": job.kind, "threads": job.threads, "batch_size": job.batch_size}, stored, limit)
