"""What a harness reports: how many cases it has run, and each that went wrong."""

from __future__ import annotations

import time
from dataclasses import dataclass, field


@dataclass
class Outcome:
    """One row of the table in docs/reliability.md."""

    what: str
    """The row, in words."""
    goal: str
    """What must have been reached, in words."""
    done: dict[str, int] = field(default_factory=dict)
    """Counts that were reached: {"kills": 812}."""
    faults: list[str] = field(default_factory=list)
    """Each thing that went wrong, one line, so that it can be repeated."""

    def count(self, name: str, n: int = 1) -> None:
        """Count `n` more of something."""
        self.done[name] = self.done.get(name, 0) + n

    def add(self, other: Outcome) -> None:
        """Take over the counts and faults of another part of the row."""
        for name, n in other.done.items():
            self.count(name, n)
        self.faults += other.faults


@dataclass
class Budget:
    """How long a row may run, and what it draws."""

    minutes: float | None = None
    """None: as many cases as the row asks for."""
    seed: int = 0
    started: float = field(default_factory=time.monotonic)

    @property
    def spent(self) -> bool:
        """Whether the time is over."""
        return self.minutes is not None and time.monotonic() - self.started > 60 * self.minutes
