"""The progress bar of all commands: on a terminal only, and never in the way of output that is piped."""

from __future__ import annotations

import sys
from typing import Any

from tqdm import tqdm


def bar(what: str, total: int | None = None, unit: str = "img", hidden: bool = False) -> Any:
    """A tqdm bar on stderr; shows nothing where stderr is no terminal or `hidden` is set."""
    disabled = hidden or sys.stderr is None or not sys.stderr.isatty()
    return tqdm(desc=what, total=total, unit=unit, unit_scale=unit == "B", disable=disabled, leave=False)
