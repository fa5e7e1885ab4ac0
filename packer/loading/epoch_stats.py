"""Counts and times of an epoch of a loader."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field


@dataclass
class Stats:
    """The times of an epoch so far. Stages overlap; each is summed over its threads."""

    images: int = 0
    batches: int = 0
    replaced: int = 0
    """Number of damaged images that were replaced."""
    waited_s: float = 0.0
    """How long the consumer waited because its next batch was not ready."""
    stage_s: dict[str, float] = field(default_factory=dict)
    """Seconds of all threads in read (raw images), decode (encoded images), transform, targets, and copy (to the
    device, including normalization)."""
    _started: float = field(default_factory=time.perf_counter)
    _ended: float | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def add(self, stage: str, seconds: float) -> None:
        """Add to the time of a stage. Thread-safe."""
        with self._lock:
            self.stage_s[stage] = self.stage_s.get(stage, 0.0) + seconds

    def end(self) -> None:
        """End the epoch."""
        self._ended = time.perf_counter()

    def summary(self) -> dict[str, float]:
        """Return the counts and times of the epoch so far.

        Returns:
            images, batches, replaced (number of damaged images that were replaced), seconds, images_per_s, waiting
            (share of the time), and seconds of each stage. If `waiting` is near 0, the consumer (the GPU) is the
            bottleneck; near 1, the loader is.
        """
        seconds = max((self._ended or time.perf_counter()) - self._started, 1e-9)
        stages = {f"{name}_s": round(value, 4) for name, value in sorted(self.stage_s.items())}
        return {
            "images": self.images,
            "batches": self.batches,
            "replaced": self.replaced,
            "seconds": round(seconds, 4),
            "images_per_s": round(self.images / seconds, 1),
            "waiting": round(min(1.0, self.waited_s / seconds), 4),
            **stages,
        }
