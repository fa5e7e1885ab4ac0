"""The options of a bench, the job of one measurement, and the description of the machine."""

from __future__ import annotations

import platform
import time
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any

from packer import __version__
from packer.containers import CONTAINERS
from packer.errors import UsageError, option
from packer.images import fast
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
        "decoder": "simplejpeg" if fast.native_for_auto() is None else "fast",
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
