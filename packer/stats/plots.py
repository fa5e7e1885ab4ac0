"""matplotlib, which draws what `packer stats` and `packer bench` have found; the extra packer[report] brings it."""

from __future__ import annotations

import os
from typing import Any

from packer.errors import AnyPath, StorageError, UsageError


def figure_class(option: str) -> Any:
    """matplotlib's Figure. Raises UsageError, naming the option that asks for a picture, where it is missing."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise UsageError(option, "needs matplotlib", 'pip install "packer[report]"') from None
    return Figure


def save_figure(figure: Any, path: AnyPath) -> None:
    """Write a picture in the format of its name's end. Raises StorageError; ValueError for an end it does not know."""
    try:
        figure.savefig(os.fsdecode(path), dpi=120)
    except OSError as error:
        raise StorageError(path, f"cannot write: {error.strerror or error}") from error
