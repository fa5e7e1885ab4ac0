"""The progress bar of all commands: on a terminal only, and never in the way of output that is piped."""

from __future__ import annotations

import sys
from typing import Any

from tqdm import tqdm

from packer.types import Progress


def bar(what: str, total: int | None = None, unit: str = "img", hidden: bool = False) -> Any:
    """A tqdm bar on stderr; shows nothing where stderr is no terminal or `hidden` is set."""
    disabled = hidden or sys.stderr is None or not sys.stderr.isatty()
    return tqdm(desc=what, total=total, unit=unit, unit_scale=unit == "B", disable=disabled, leave=False)


class Bars(Progress):
    """A bar for each stage."""

    def __init__(self, hidden: bool) -> None:
        self._hidden = hidden
        self._bar: Any = None

    def stage(self, name: str, total: int | None = None, unit: str = "images") -> None:
        self.close()
        self._bar = bar(name, total, unit, self._hidden)

    def advance(self, done: int, bad: int = 0) -> None:
        if self._bar is not None:
            self._bar.update(done)

    def close(self) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.close()
