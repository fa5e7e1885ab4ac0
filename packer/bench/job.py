"""What one measurement does, as plain values that go to its process."""

from __future__ import annotations

from dataclasses import dataclass

MANY_SAMPLES = 1 << 17
"""Of an epoch that ends later than its measurement."""


@dataclass(frozen=True)
class Job:
    """One kind of reading and how long."""

    kind: str
    """A name of work.KINDS."""
    size: tuple[int, int]
    """(width, height) of the images of a batch."""
    batch_size: int
    threads: int
    """Threads, or worker processes of a DataLoader."""
    seconds: float
    files: tuple[str, ...] = ()
    """Image files, of the plain folder and of its limit."""
    pack: str = ""
    device: str = "cpu"
    cold: bool = False
    prefetch: int = 2
    window: int = 0
    """Blocks of a window of `BlockShuffleSampler`; 0: `ShuffleSampler`."""
    step_s: float = 0.0
    """How long the consumer takes for each batch."""
    seed: int = 0
    images: int | None = None
    """Records of the pack that are read; None: see `chosen_records`."""
