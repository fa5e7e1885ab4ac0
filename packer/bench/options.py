"""What a bench is asked to do."""

from __future__ import annotations

from dataclasses import dataclass, field

from packer.containers import CONTAINERS
from packer.errors import UsageError
from packer.system import usable_cores

ENCODINGS = ("raw", "jpeg")
IMAGES, LEAST_IMAGES = 1000, 8


@dataclass(frozen=True)
class BenchOptions:
    """Settings of all benches; each says which it uses. Raises UsageError for values out of range."""

    images: int | None = None
    """Images that are measured, drawn over the whole folder or pack; by default IMAGES of a folder, and of a pack what
    is read in seconds."""
    rounds: int = 3
    batch_size: int = 64
    threads: int = field(default_factory=usable_cores)
    """Of `PackedLoader`; and as many worker processes of a DataLoader."""
    seconds: float = 0.7
    """Whole epochs are read until a measurement has taken so long."""
    resize: str | None = None
    """WIDTHxHEIGHT of the batches; by default the median size of the images, at most 224x224."""
    formats: tuple[str, ...] = tuple(CONTAINERS)
    encodings: tuple[str, ...] = ENCODINGS
    cold: bool = False
    """Drop the files from the page cache first, and measure the first epoch."""
    device: str = "cpu"
    step_ms: float | None = None
    """How long a training step takes; `tune` holds the loader against it."""
    seed: int = 0
    work_dir: str | None = None
    """Where packs are built; by default the folder for temporary files."""

    def __post_init__(self) -> None:
        for name, value, least in (
            ("--images", IMAGES if self.images is None else self.images, LEAST_IMAGES),
            *(("--rounds", self.rounds, 2), ("--batch-size", self.batch_size, 1)),
            *(("--threads", self.threads, 1), ("--seed", self.seed, 0)),
        ):
            if value < least:
                raise UsageError(name, f"must be at least {least}, got {value}")
        most = max(64, 4 * usable_cores())
        if self.threads > most:
            raise UsageError("--threads", f"must be at most {most} on these {usable_cores()} cores, got {self.threads}")
        if not 0.05 <= self.seconds <= 3600:
            raise UsageError("--seconds", f"must be 0.05 to 3600, got {self.seconds:g}")
        if self.step_ms is not None and not 0 < self.step_ms <= 60_000:
            raise UsageError("--step-ms", f"must be more than 0 and at most 60000, got {self.step_ms:g}")
        for option, words, known in (
            ("--format", self.formats, tuple(CONTAINERS)),
            ("--encode", self.encodings, ENCODINGS),
        ):
            for word in words:
                if word not in known:
                    raise UsageError(option, f"must be one of {', '.join(known)}, got {word!r}")
        if self.resize is not None:
            self.size_of(self.resize)
        if self.device != "cpu":
            require_device(self.device)

    @staticmethod
    def size_of(text: str) -> tuple[int, int]:
        """(width, height) of "224x200" or "224"."""
        width, _, height = text.lower().partition("x")
        height = height or width
        if not (width.isdecimal() and height.isdecimal() and 1 <= int(width) <= 4096 and 1 <= int(height) <= 4096):
            raise UsageError("--resize", f"must be WIDTHxHEIGHT of 1 to 4096 pixels, got {text!r}", "such as 224x224")
        return int(width), int(height)


def require_device(device: str) -> None:
    """Raise UsageError where torch cannot use this device."""
    import torch

    try:
        kind = torch.device(device).type
    except RuntimeError:
        kind = ""
    if kind != "cuda":
        raise UsageError("--device", f"must be cpu, cuda or cuda:N, got {device!r}")
    if not torch.cuda.is_available():
        raise UsageError("--device", f"torch cannot use {device} here", "install torch with CUDA, or leave it out")
