"""Real plans, builds and epochs in 1, 2 and 4 processes on this machine, beside what the simulation says of them.

Each round measures how much processor time the steps of one process take (plans and builds of two sizes, an epoch from
a folder and one from a store), and makes the runs. Predictions follow from the medians of that: nothing is fitted to
the seconds of a run. What other programs did with the cores in the meantime is measured and part of the prediction.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.common import Table, direct_pack, images
from benchmarks.plan import link_files
from simulation.build import building, listing, planning
from simulation.runs import Reading, Run, made, read
from simulation.setting import Setting
from simulation.stream import epoch, opening

from packer import BuildOptions, build_pack, open_pack
from packer.bench.measure import Figure
from packer.system import usable_cores

PROCESSES = (1, 2, 4)
FEW_FILES, FILES = 20_000, 500_000
FEW_PHOTOS, PHOTOS = 250, 1500
SHARD_BYTES = 3_400_000
JPEGS, RAW, SIDE = 10_000, 3000, 224
BATCH, THREADS = 64, 2
CACHES = {"jpeg": 4, "raw": 8}
"""Each run of epochs fills so many caches with the pack: one process reads as many epochs, four processes a quarter. So
a run takes about 5 s or more, and as much new memory in any number of processes: a virtual machine may have given back
what was free for long, and takes longer to get that than what was free a moment before.
"""
CALIBRATED = {"jpeg": 2, "raw": 8}
"""Epochs of a run from which rates follow. Of raw images as many as in a run: the time for new memory depends on it."""
CALIBRATED_DELAY_S = 0.03

HERE = replace(
    Setting(), build_nodes=1, nodes=1, ranks=1, threads=THREADS, batch=BATCH, build_cores=usable_cores(),
    cores=usable_cores(), one_machine=True, waits_for_merge=True, source_in_store=False, output_in_store=False,
    dispatch_s=0.0, record_s=0.0, latency_tail=0.0, gpu_images_s=0.0, network_bytes_s=1e12, disk_bytes_s=0.0,
    prefixes=1000, folders=1,
)  # fmt: skip
"""What all comparisons have in common."""


class Part:
    """One kind of work: what its steps take, and its runs."""

    title = ""
    processes = PROCESSES

    def __init__(self, home: Path) -> None:
        self.home = home
        self.rates: list[dict[str, float]] = []
        self.runs: dict[int, list[Run]] = {processes: [] for processes in self.processes}

    def calibrated(self) -> dict[str, float]:
        """Return the rates of a `Setting` that runs in one process show."""
        raise NotImplementedError

    def run(self, processes: int) -> Run:
        """Do it in so many processes."""
        raise NotImplementedError

    def predicted(self, setting: Setting, processes: int) -> tuple[float, float]:
        """Return what the simulation says: seconds, and requests."""
        raise NotImplementedError

    def round(self) -> None:
        """Measure once."""
        self.rates.append(self.calibrated())
        for processes, runs in self.runs.items():
            runs.append(self.run(processes))

    def report(self, table: Table) -> None:
        """Print what came out."""
        rates = {name: statistics.median(one[name] for one in self.rates) for name in self.rates[0]}
        for processes, runs in self.runs.items():
            ratios, requests = [], []
            for run in runs:
                setting = replace(HERE, **rates, others_cores=min(run.others_cores, usable_cores() - 0.2))  # type: ignore[arg-type]
                seconds, asked = self.predicted(setting, processes)
                ratios.append(seconds / run.wall_s)
                requests += [asked / run.requests] if run.requests else []
            ratio, wall = Figure(tuple(ratios)), Figure(tuple(run.wall_s for run in runs))
            text = ratio.text(2) if 0.8 <= ratio.median <= 1.2 else f"**{ratio.text(2)}**"
            others = Figure(tuple(run.others_cores for run in runs))
            asked_text = Figure(tuple(requests)).text(2) if requests else ""
            table.row(self.title, str(processes), text, wall.text(2), asked_text, others.text(2))


class Plans(Part):
    """Plans of a folder of tiny files."""

    title = f"plan of {FILES:,} files"

    def calibrated(self) -> dict[str, float]:
        few, many = (self._made(name, 1) for name in ("few", "files"))
        listed, own, worker = ((b - a) / (FILES - FEW_FILES) for a, b in zip(few.cpu_s, many.cpu_s, strict=True))
        return {
            "list_s": listed, "merge_s": max(0.0, own - listed), "header_s": worker,
            "start_s": max(0.0, few.cpu_s[1] - own * FEW_FILES),
            "worker_start_s": max(0.0, few.cpu_s[2] - worker * FEW_FILES),
        }  # fmt: skip

    def run(self, processes: int) -> Run:
        return self._made("files", processes)

    def _made(self, name: str, workers: int) -> Run:
        return made("plan", self.home / name, self.home, workers, {"encode": "copy"})

    def predicted(self, setting: Setting, processes: int) -> tuple[float, float]:
        setting = replace(setting, images=FILES, headers=True, workers=processes)
        return listing(setting).seconds + planning(setting).seconds, 0.0


class Builds(Part):
    """Builds of photos to JPEG."""

    title = f"build of {PHOTOS:,} photos to 256 px JPEG"

    def calibrated(self) -> dict[str, float]:
        few, many = (self._made(name, 1) for name in ("few-photos", "photos"))
        _, own, worker = ((b - a) / (PHOTOS - FEW_PHOTOS) for a, b in zip(few.cpu_s, many.cpu_s, strict=True))
        return {
            "list_s": 0.0, "merge_s": max(0.0, own), "convert_s": worker, "shard_s": 0.0,
            "start_s": max(0.0, few.cpu_s[1] - own * FEW_PHOTOS),
            "worker_start_s": max(0.0, few.cpu_s[2] - worker * FEW_PHOTOS),
        }  # fmt: skip

    def run(self, processes: int) -> Run:
        return self._made("photos", processes)

    def _made(self, name: str, workers: int) -> Run:
        options = {"resize": "256", "encode": "jpeg", "shard_bytes": SHARD_BYTES}
        return made("build", self.home / name, self.home, workers, options)

    @cached_property
    def shards(self) -> int:
        """As many as the builds have made."""
        return len(open_pack(self.home / "out.pack").manifest.shards)

    def predicted(self, setting: Setting, processes: int) -> tuple[float, float]:
        setting = replace(
            setting, images=PHOTOS, image_bytes=1, shard_bytes=PHOTOS // self.shards, workers=processes,
            start_s=setting.start_s + PHOTOS * setting.merge_s,
        )  # fmt: skip
        return building(setting).seconds, 0.0


class Epochs(Part):
    """Epochs from a store, each with empty caches: one for each process, or for all."""

    def __init__(self, home: Path, pack: str, kind: str, delay_s: float, like: Epochs | None = None) -> None:
        """Take what is read; the rates are those of `like`, if that is run, too."""
        self.processes = (2,) if kind in ("nodes", "shared") else PROCESSES
        super().__init__(home)
        self.pack, self.kind, self.delay_s, self._like = pack, kind, delay_s, like
        self.title = f"epochs of {pack}, {kind}, {delay_s * 1000:.0f} ms a request"

    @cached_property
    def _sizes(self) -> tuple[int, int, int]:
        """Number of records, their mean size in the shards, and number of shards."""
        manifest = open_pack(self.home / self.pack).manifest
        size = sum(shard.container.bytes for shard in manifest.shards) // manifest.records
        return manifest.records, size, len(manifest.shards)

    def calibrated(self) -> dict[str, float]:
        if self._like is not None and self._like.rates:
            return self._like.rates[-1]
        epochs = CALIBRATED[self.pack]
        images = self._sizes[0] * epochs
        all_of, quarter = (read(Reading(self.pack, "block", 1, epochs, ranks=ranks), self.home) for ranks in (1, 4))
        if not self.rates:  # it takes memory that was free for long
            self.run(1)
        kind = "full" if self.kind == "full" else "block"
        cold = read(Reading(self.pack, kind, 1, epochs, CALIBRATED_DELAY_S), self.home)
        decode_s = (all_of.cpu_s[0] - quarter.cpu_s[0]) / (images * 3 / 4)
        return {
            "decode_s": decode_s, "fetch_s": 0.0, "store_request_s": 1e-9,
            "rank_start_s": max(0.0, (quarter.cpu_s[0] - decode_s * images / 4) / epochs),
            "fetch_byte_s": max(0.0, cold.cpu_s[0] - all_of.cpu_s[0]) / cold.sent,
            "store_byte_s": cold.server_s / cold.sent,
        }  # fmt: skip

    def _epochs(self, processes: int) -> int:
        """How many each process reads, so that as many caches are filled by any number of processes."""
        caches = CACHES[self.pack]
        return caches if self.kind in ("nodes", "shared") else caches // processes

    def run(self, processes: int) -> Run:
        return read(Reading(self.pack, self.kind, processes, self._epochs(processes), self.delay_s), self.home)

    def predicted(self, setting: Setting, processes: int) -> tuple[float, float]:
        images, size, shards = self._sizes
        nodes, ranks = (1, processes) if self.kind == "shared" else (processes, 1)
        setting = replace(
            setting, images=images, image_bytes=size, latency_s=self.delay_s, canonical=self.kind == "nodes",
            nodes=nodes, ranks=ranks, block_shuffle=self.kind != "full", shard_bytes=-(-images * size // shards),
        )  # fmt: skip
        phase, epochs = epoch(setting, self.title), self._epochs(processes)
        # the server counts from the start, but the clock of a run starts when all packs are open
        requests = opening(setting).requests["GET"] + phase.requests["GET"]
        return phase.seconds * epochs, requests * epochs


def check(rounds: int, data: Path, work_dir: Path | None, only: str) -> None:
    """Print predicted against measured seconds of plans, builds and epochs."""
    with tempfile.TemporaryDirectory(prefix="simulate-", dir=work_dir) as folder:
        home = Path(folder)
        make_data(home, data)
        jpeg = Epochs(home, "jpeg", "block", 0.03)
        alike = [Epochs(home, "jpeg", kind, 0.03, jpeg) for kind in ("nodes", "shared")]
        raw = [Epochs(home, "raw", kind, delay_s) for kind, delay_s in (("block", 0.03), ("full", 0.15))]
        parts = [part for part in (Plans(home), Builds(home), jpeg, *alike, *raw) if only in part.title]
        for _ in range(rounds):
            for part in parts:
                part.round()
        head = ("run", "processes", "predicted / measured, goal 0.8 to 1.2", "measured, s")
        table = Table(*head, "requests, predicted / measured", "cores that other programs kept busy")
        for part in parts:
            part.report(table)


def make_data(home: Path, data: Path) -> None:
    """Make what is planned, built and read."""
    for name, count in (("few", FEW_FILES), ("files", FILES)):
        link_files(home / name, count)
    for name, count in (("few-photos", FEW_PHOTOS), ("photos", PHOTOS), ("source", JPEGS)):
        images("photos", data, home / name, count)
    options: dict[str, Any] = {"labels": ("folder",), "format": "tfrecord", "shard_bytes": 32 << 20, "shuffle": 1}
    build_pack(BuildOptions(str(home / "source"), str(home / "jpeg"), resize="256", encode="jpeg", **options))
    shutil.rmtree(home / "source")
    random = np.random.default_rng(0)
    direct_pack(home / "raw", "tfrecord", [random.bytes(SIDE * SIDE * 3) for _ in range(RAW)], (SIDE, SIDE, 3), True)
