"""The result of a bench: rows of figures with all their rounds."""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from importlib import metadata
from typing import Any

from packer import __version__
from packer.bench.measure import Figure
from packer.containers import CONTAINERS
from packer.errors import UsageError, option
from packer.images import decoders
from packer.system import load_average, memory_bytes, usable_cores

ENCODINGS = ("raw", "jpeg")
IMAGES, LEAST_IMAGES = 1000, 8
MANY_SAMPLES = 1 << 17
"""Samples of an epoch that is longer than any measurement."""
LIBRARIES = (
    "torch", "numpy", "opencv-python-headless", "simplejpeg", "dataset-packer-fast", "pillow", "lmdb", "h5py"
)  # fmt: skip


@dataclass(frozen=True)
class BenchOptions:
    """Settings of all benches; each documents which it uses.

    Attributes:
        images: Number of images to measure, drawn from the whole folder or pack. Default: IMAGES of a folder; of a
            pack, as many as are read in seconds.
        rounds: Number of measurements of each row.
        batch_size: Images per batch.
        threads: Threads of `PackedLoader`, and worker processes of a DataLoader. Default: one per core.
        seconds: Minimum duration of a measurement.
        resize: WIDTHxHEIGHT of the batches. Default: the median size of the images, at most 224x224.
        formats: Containers to measure; the others are read by the same code.
        encodings: ``raw``, ``jpeg`` or both.
        cold: Whether to drop the files from the page cache and measure the first epoch.
        device: ``cpu``, ``cuda`` or ``cuda:N``.
        step_ms: Duration of a training step, to measure how long it waits.
        seed: Random seed of the sample and of all orders.
        work_dir: Folder to build packs in. Default: the folder for temporary files.
        cache_dir: Cache folder of a pack at a URL. Default: as `packer.open_pack`.
        loader: MODULE:FUNCTION that returns a loader of the user's, to measure that too.

    Raises:
        UsageError: If a value is out of range.
    """

    images: int | None = None
    rounds: int = 3
    batch_size: int = 64
    threads: int = field(default_factory=usable_cores)
    seconds: float = 0.7
    resize: str | None = None
    formats: tuple[str, ...] = ("lmdb", "hdf5", "tfrecord", "webdataset")
    encodings: tuple[str, ...] = ENCODINGS
    cold: bool = False
    device: str = "cpu"
    step_ms: float | None = None
    seed: int = 0
    work_dir: str | None = None
    cache_dir: str | None = None
    loader: str | None = None

    def __post_init__(self) -> None:
        for name, value, least in (
            (option("images"), IMAGES if self.images is None else self.images, LEAST_IMAGES),
            *((option("rounds"), self.rounds, 2), (option("batch-size"), self.batch_size, 1)),
            *((option("threads"), self.threads, 1), (option("seed"), self.seed, 0)),
        ):
            if value < least:
                raise UsageError(name, f"must be at least {least}, got {value}")
        most = max(64, 4 * usable_cores())
        if self.threads > most:
            raise UsageError(
                option("threads"), f"must be at most {most} on these {usable_cores()} cores, got {self.threads}"
            )
        if not 0.05 <= self.seconds <= 3600:
            raise UsageError(option("seconds"), f"must be 0.05 to 3600, got {self.seconds:g}")
        if self.step_ms is not None and not 0 < self.step_ms <= 60_000:
            raise UsageError(option("step-ms"), f"must be more than 0 and at most 60000, got {self.step_ms:g}")
        for asked, names, known in (
            (option("format"), self.formats, tuple(CONTAINERS)),
            (option("encode"), self.encodings, ENCODINGS),
        ):
            for name in names:
                if name not in known:
                    raise UsageError(asked, f"must be one of {', '.join(known)}, got {name!r}")
        if self.resize is not None:
            self.size_of(self.resize)
        if self.loader is not None:
            self._check_loader(self.loader)
        if self.device != "cpu":
            require_device(self.device)

    def _check_loader(self, loader: str) -> None:
        if not all(part.isidentifier() for part in loader.replace(":", ".", 1).split(".")) or ":" not in loader:
            raise UsageError(
                option("loader"), f"must be MODULE:FUNCTION, got {loader!r}", "such as my_module:make_loader"
            )
        for other, used in ((option("cold"), self.cold), (option("device"), self.device != "cpu")):
            if used:
                raise UsageError(other, "cannot be combined with --loader", "leave one of them out")

    @staticmethod
    def size_of(text: str) -> tuple[int, int]:
        """Return (width, height) of `text`, "224x200" or "224"; raise UsageError if it is neither."""
        width, _, height = text.lower().partition("x")
        height = height or width
        if not (width.isdecimal() and height.isdecimal() and 1 <= int(width) <= 4096 and 1 <= int(height) <= 4096):
            raise UsageError(
                option("resize"), f"must be WIDTHxHEIGHT of 1 to 4096 pixels, got {text!r}", "such as 224x224"
            )
        return int(width), int(height)


def require_device(device: str) -> None:
    """Raise UsageError if torch cannot use this device."""
    import torch

    try:
        kind = torch.device(device).type
    except RuntimeError:
        kind = ""
    if kind != "cuda":
        raise UsageError(option("device"), f"must be cpu, cuda or cuda:N, got {device!r}")
    if not torch.cuda.is_available():
        raise UsageError(
            option("device"), f"torch cannot use {device} here", "install torch with CUDA, or leave it out"
        )


@dataclass(frozen=True)
class Job:
    """One measurement, as plain values that are sent to its process.

    Attributes:
        kind: A name of work.KINDS.
        size: (width, height) of the images of a batch.
        batch_size: Images per batch.
        threads: Threads, or worker processes of a DataLoader.
        seconds: Minimum duration.
        files: Image files, of the plain folder and of its limit.
        pack: Path or URL of the pack.
        cache_dir: Its cache folder, if it is at a URL.
        device: Device of the batches.
        cold: Whether the files are dropped from the page cache, and the first epoch is measured.
        prefetch: Batches ahead of the consumer.
        window: Blocks of a window of `BlockShuffleSampler`; 0: `ShuffleSampler`.
        crops: Whether random crops are read, of `size`, not whole images.
        step_s: Time that the consumer takes for each batch.
        seed: Random seed of the order.
        images: Records of the pack that are read; None: see `sample_records`.
        loader: MODULE:FUNCTION of a loader of the user's.
        folder: The folder in which its module is looked for first.
    """

    kind: str
    size: tuple[int, int]
    batch_size: int
    threads: int
    seconds: float
    files: tuple[str, ...] = ()
    pack: str = ""
    cache_dir: str | None = None
    device: str = "cpu"
    cold: bool = False
    prefetch: int = 2
    window: int = 0
    crops: bool = False
    step_s: float = 0.0
    seed: int = 0
    images: int | None = None
    loader: str = ""
    folder: str = ""


def machine() -> dict[str, Any]:
    """Return processor, cores, memory, system, load, date and versions."""
    return {
        "processor": _processor(),
        "cores": usable_cores(),
        "memory_bytes": memory_bytes(),
        "system": f"{platform.system()} {platform.release()}",
        "load_before": load_average(),
        "date": time.strftime("%Y-%m-%d"),
        "decoder": "simplejpeg" if decoders.native_for_auto() is None else "fast",
        "versions": {"packer": __version__, "python": platform.python_version(), **_versions()},
    }


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            return next(line.partition(":")[2].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def _versions() -> dict[str, str]:
    found = {}
    for name in LIBRARIES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


DATASET = "PackedDataset, "
"""Prefix of the name of a row: a pack in a torch DataLoader; its encoding follows."""
PACED = " + step"
"""Suffix of the name of a row whose consumer takes a step for each batch, to measure waiting."""
YOURS, PERFECT = "your loader", "perfect loader"
"""Names of rows: a loader of the user's, and one that has its batches in memory."""
CROPS, INDEXED = "random crops", "random crops, indexed"
"""Names of rows: crops of the JPEGs of a sample, without and with an index of them."""


@dataclass(frozen=True)
class UserBatch:
    """A batch of a loader of the user's.

    Attributes:
        images: Number of images.
        size: Their (width, height); None if it is unknown.
        text: Its kind and shape.
    """

    images: int
    size: tuple[int, int] | None
    text: str


@dataclass(frozen=True)
class Measured:
    """One measurement: some epochs of one kind of reading, in one process.

    Attributes:
        images: Number of images read.
        seconds: Duration.
        cpu_s: Processor time of all processes.
        first_batch_s: From creating the loader to its first batch.
        peak_bytes: Peak of anonymous and shared memory, of worker processes too, without the page cache.
        waiting: Share of the time that the consumer waited, if it also did something else.
        in_cache: Share of the files' pages in memory before a cold read; None if warm or unknown.
        others: Cores that other processes used meanwhile; None if the system does not say.
        epochs: Times that a loader of the user's was iterated from its beginning.
        batch: Its first batch.
    """

    images: int
    seconds: float
    cpu_s: float
    first_batch_s: float
    peak_bytes: int
    waiting: float | None = None
    in_cache: float | None = None
    others: float | None = None
    epochs: int | None = None
    batch: UserBatch | None = None


@dataclass
class Row:
    """One kind of reading.

    Attributes:
        name: Name in the report.
        job: The measurement.
        stored_bytes: Bytes read per image: of its file, or of its record.
        limit: Name of the row that is its limit.
        disk_bytes: Size of all its images on disk.
        build_s: Duration of the builds.
        rounds: All measurements.
        left_out: Why it was not measured.
    """

    name: str
    job: Job
    stored_bytes: float
    limit: str | None = None
    disk_bytes: int | None = None
    build_s: Figure | None = None
    rounds: list[Measured] = field(default_factory=list)
    left_out: str = ""

    @property
    def in_cache(self) -> float | None:
        """Median share of the files' pages in memory before a cold read; None if warm or unknown."""
        known = [one.in_cache for one in self.rounds if one.in_cache is not None]
        return statistics.median(known) if known else None

    @property
    def rate(self) -> Figure:
        """Images/s."""
        return self.figure("images_per_s")

    def figure(self, name: str) -> Figure:
        """Return a figure over all rounds.

        Args:
            name: images_per_s, megabytes_per_s, cpu_s_per_1000, cores, first_batch_s, peak_mb or waiting.
        """
        return Figure(tuple(self._value(name, one) for one in self.rounds))

    def _value(self, name: str, one: Measured) -> float:
        rate = one.images / one.seconds
        return {
            "images_per_s": rate,
            "megabytes_per_s": rate * self.stored_bytes / 1e6,
            "cpu_s_per_1000": 1000 * one.cpu_s / one.images,
            "cores": one.cpu_s / one.seconds,
            "first_batch_s": one.first_batch_s,
            "peak_mb": one.peak_bytes / 1e6,
            "waiting": one.waiting or 0.0,
        }[name]

    def facts(self) -> dict[str, Any]:
        """Return the row as JSON values."""
        settings = {name: getattr(self.job, name) for name in ("kind", "threads", "batch_size", "prefetch", "window")}
        facts = {**vars(self), "settings": settings, "rounds": [asdict(one) for one in self.rounds]}
        del facts["job"]
        return {**facts, "build_s": None if self.build_s is None else asdict(self.build_s)}


@dataclass
class Report:
    """A whole bench.

    Attributes:
        what: ``compare``, ``sweep`` or ``tune``.
        path: The folder or pack.
        command: The command that repeats it.
        machine: See `machine`.
        settings: Settings of all rows.
        rows: The rows, in order.
        notes: Limitations of the figures.
        reasons: Why the figures are unreliable.
        answer: The first line: what to do, or that the figures are unreliable.
        conclusion: More conclusions from the figures.
    """

    what: str
    path: str
    command: str
    machine: dict[str, Any]
    settings: dict[str, Any]
    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    answer: str = ""
    conclusion: list[str] = field(default_factory=list)

    def row(self, name: str) -> Row:
        """Return the row `name`."""
        return next(row for row in self.rows if row.name == name)

    def share(self, row: Row) -> Figure | None:
        """Return the images/s of `row` divided by the best round of its limit, which other work affects least."""
        if row.limit is None or not row.rounds or not self.row(row.limit).rounds:
            return None
        most = self.row(row.limit).rate.highest
        return Figure(tuple(rate / most for rate in row.rate.rounds))

    def facts(self) -> dict[str, Any]:
        """Return the report as JSON values, with every round."""
        rows = []
        for row in self.rows:
            share = self.share(row)
            rows.append({**row.facts(), "share_of_limit": None if share is None else list(share.rounds)})
        return {**vars(self), "reliable": not self.reasons, "rows": rows}


def settings_text(settings: Mapping[str, Any]) -> str:
    """Return the settings as text, without those that do not apply."""
    known = {name: value for name, value in settings.items() if value not in (None, False, "cpu")}
    shown = {name.replace("_", " "): value for name, value in known.items() if name not in ("best", "cold")}
    return ", ".join(f"{name} {_setting(value)}" for name, value in shown.items())


def _setting(value: Any) -> str:
    if isinstance(value, list):
        return "x".join(map(str, value))
    return f"{value:,}" if isinstance(value, int) else str(value)
