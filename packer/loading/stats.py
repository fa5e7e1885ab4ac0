"""What a loader measures of itself: whether the consumer had to wait, and for which stage."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field


@dataclass
class Stats:
    """Times of one epoch so far. Stages overlap: each is summed over its threads."""

    images: int = 0
    batches: int = 0
    replaced: int = 0
    """Images that stand in for damaged ones."""
    waited_s: float = 0.0
    """How long the consumer waited because its next batch was not ready."""
    stage_s: dict[str, float] = field(default_factory=dict)
    """Seconds of all threads in read (raw images), decode (encoded ones), transform, targets, copy (to the device,
    and normalizing there)."""
    _started: float = field(default_factory=time.perf_counter)
    _ended: float | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def add(self, stage: str, seconds: float) -> None:
        """Count time of a stage; from any thread."""
        with self._lock:
            self.stage_s[stage] = self.stage_s.get(stage, 0.0) + seconds

    def end(self) -> None:
        """End the epoch."""
        self._ended = time.perf_counter()

    def summary(self) -> dict[str, float]:
        """Return what the epoch has cost so far.

        Returns:
            images, batches, replaced (images that stand in for damaged ones), seconds, images_per_s, waiting (share of
            the time), and seconds of each stage. `waiting` near 0 says that the consumer (the GPU) is the limit;
            near 1, that the loader is.
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
