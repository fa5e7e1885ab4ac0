"""One pack, read with different numbers of threads and sizes of batches."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from packer.bench.images import MOST_SIDE
from packer.bench.job import Job
from packer.bench.machine import machine
from packer.bench.options import BenchOptions
from packer.bench.process import measuring, one_round
from packer.bench.result import Report, Row
from packer.bench.watcher import Silent, Watcher
from packer.bench.words import cold_notes, swept
from packer.errors import UsageError
from packer.manifest import read_manifest
from packer.pack import Pack, open_pack

BATCH_SIZES = (16, 64, 256)


def sweep(path: str, options: BenchOptions, command: str, watcher: Watcher | None = None) -> Report:
    """Measure `PackedLoader` on the pack at `path`: 1, 2, 4, ... threads, and batches of 16, 64 and 256.

    Each number of threads has its limit in the same run: copying the same bytes, or decoding them and nothing else.
    Raises DamagedPack where a record cannot be read.
    """
    watcher = watcher or Silent()
    pack = open_pack(path)
    job = job_of(pack, options)
    jobs: dict[str, Job] = {}
    rows: dict[str, Row] = {}
    for threads in thread_counts(options.threads):
        limit = add_limit(pack, replace(job, threads=threads), jobs, rows)
        for batch_size in (size for size in BATCH_SIZES if size <= len(pack)) if len(pack) >= 16 else (len(pack),):
            name = f"{_threads(threads)}, batches of {batch_size}"
            add(pack, name, replace(job, threads=threads, batch_size=batch_size), jobs, rows, limit)
    settings = {
        "size": list(job.size), "rounds": options.rounds, "cold": options.cold, "device": options.device,
        "records": len(pack), "container": pack.manifest.container, "encoding": pack.manifest.encoding,
    }  # fmt: skip
    report = Report("sweep", path, command, machine(), settings, list(rows.values()))
    watcher.begin("measuring", options.rounds * len(jobs))
    with measuring() as pool:
        for _ in range(options.rounds):
            one_round(pool, jobs, rows, watcher)
    report.notes += cold_notes(report)
    report.conclusion = swept(report)
    return report


def _threads(count: int) -> str:
    return "1 thread" if count == 1 else f"{count} threads"


def thread_counts(most: int) -> list[int]:
    """1, 2, 4, ... and `most`."""
    return sorted({2**power for power in range(most.bit_length()) if 2**power <= most} | {most})


def job_of(pack: Pack, options: BenchOptions) -> Job:
    """Reading this pack, with the settings of the options."""
    if not len(pack):
        raise UsageError(pack.path, "holds no records", "there is nothing to measure")
    shape = pack.manifest.shape
    if shape is not None:
        size = shape[1], shape[0]
    elif options.resize is not None:
        size = options.size_of(options.resize)
    else:
        width, height = (int(np.median(np.asarray(pack.column(name)))) for name in ("width", "height"))
        size = max(1, min(width, MOST_SIDE)), max(1, min(height, MOST_SIDE))
    return Job(
        "pack", size, min(options.batch_size, len(pack)), options.threads, options.seconds, pack=pack.path,
        cold=options.cold, device=options.device, seed=options.seed, images=options.images,
    )  # fmt: skip


def add_limit(pack: Pack, job: Job, jobs: dict[str, Job], rows: dict[str, Row]) -> str | None:
    """Add the limit of reading this pack with so many threads; its name, or None where there is none."""
    if job.device != "cpu":
        return None
    if job.cold:
        kind, what = "disk-pack", "disk"
    elif pack.manifest.encoding == "raw":
        if pack.record_bytes is None:
            return None
        kind, what = "copy", "memory copy"
    else:
        kind, what = "decode-packed", "decode"
    name = f"limit: {what}, {_threads(job.threads)}"
    add(pack, name, replace(job, kind=kind), jobs, rows, None)
    return name


def add(pack: Pack, name: str, job: Job, jobs: dict[str, Job], rows: dict[str, Row], limit: str | None) -> None:
    """Add one row."""
    stored = float(pack.sizes.sum()) / len(pack)
    settings = {
        "kind": job.kind, "threads": job.threads, "batch_size": job.batch_size, "prefetch": job.prefetch,
        "window": job.window,
    }  # fmt: skip
    jobs[name] = job
    rows[name] = Row(name, settings, stored, limit, disk_bytes=disk_bytes(pack.path))


def disk_bytes(path: str) -> int:
    """Bytes of all files of a pack."""
    return sum(shard.container.bytes + shard.index.bytes for shard in read_manifest(path).shards)
