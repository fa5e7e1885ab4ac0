"""Is told how a bench comes along."""

from __future__ import annotations

from typing import Protocol


class Watcher(Protocol):
    """Shows progress."""

    def begin(self, what: str, total: int | None) -> None:
        """A part of the work begins, of `total` steps where they can be counted."""

    def doing(self, what: str) -> None:
        """What is measured or built now."""

    def done(self, steps: int) -> None:
        """So many more steps are done."""


class Silent:
    """Shows nothing."""

    def begin(self, what: str, total: int | None) -> None:
        """Nothing."""

    def doing(self, what: str) -> None:
        """Nothing."""

    def done(self, steps: int) -> None:
        """Nothing."""
