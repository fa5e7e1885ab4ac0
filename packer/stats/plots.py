"""Plots statistics; needs matplotlib (the extra `report`)."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from packer.errors import AnyPath, StorageError, UsageError, plural, printable
from packer.format.pack import Pack, open_pack
from packer.stats import ClassCounts, PackStats

MOST_CLASSES = 40
BINS = 40
BLUE = "#2c82c9"


def figure_class(option: str) -> Any:
    """Return matplotlib's Figure.

    Args:
        option: The option that requires it, for the error.

    Raises:
        UsageError: If matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise UsageError(option, "needs matplotlib", 'pip install "dataset-packer[report]"') from None
    return Figure


def save_figure(figure: Any, path: AnyPath) -> None:
    """Write a figure in the format of the extension of `path`.

    Raises:
        StorageError: If the file cannot be written.
        ValueError: If matplotlib does not know the extension.
    """
    try:
        figure.savefig(os.fsdecode(path), dpi=120)
    except OSError as error:
        raise StorageError(path, f"cannot write: {error.strerror or error}") from error


def plot_stats(stats: PackStats, file: AnyPath, pack: Pack | None = None) -> None:
    """Draw class counts, boxes per image, box sizes and image sizes.

    Args:
        stats: The statistics.
        file: The file to write: PNG, SVG or PDF by its extension.
        pack: The pack, for the histograms; default: the one at `stats.path`.

    Raises:
        UsageError: If matplotlib is not installed or does not know the extension.
        StorageError: If the file cannot be written.
    """
    make_figure = figure_class("--plot")
    pack = pack or open_pack(stats.path)
    drawings: list[Callable[[Any], None]] = [
        partial(_classes, counts) for counts in stats.classes if any(counts.counts)
    ]
    if stats.boxes is not None and stats.boxes.boxes:
        rows: Any = pack.column("boxes")
        boxes = np.asarray(rows.flat()).reshape(-1, 4)
        lengths = np.asarray(rows.lengths)
        drawings.append(partial(_histogram, lengths, "boxes per image"))
        drawings.append(partial(_density, boxes[:, 2] - boxes[:, 0], boxes[:, 3] - boxes[:, 1], "box"))
    width, height = (np.asarray(pack.column(name)) for name in ("width", "height"))
    if stats.sizes.distinct > 1 or not drawings:  # one size is one dot
        drawings.append(partial(_density, width, height, "image"))
    columns = min(2, len(drawings))
    lines = -(-len(drawings) // columns)
    figure: Any = make_figure(figsize=(6 * columns, 4 * lines), layout="constrained")
    for number, drawing in enumerate(drawings, 1):
        drawing(figure.add_subplot(lines, columns, number))
    figure.suptitle(plural(stats.records, "record"))
    try:
        save_figure(figure, file)
    except ValueError as error:  # an unknown extension
        raise UsageError("--plot", str(error).partition("\n")[0], "end the name in .png, .svg or .pdf") from None


def _classes(counts: ClassCounts, axes: Any) -> None:
    largest = sorted(zip(counts.counts, counts.names, strict=True), reverse=True)[:MOST_CLASSES][::-1]
    axes.barh([_plain(name) for _, name in largest], [count for count, _ in largest], color=BLUE)
    more = len(counts.names) - len(largest)
    axes.set_xlabel(counts.of + (f" (the {MOST_CLASSES} largest classes; {more} more)" if more > 0 else ""))


def _histogram(values: Any, label: str, axes: Any) -> None:
    highest = int(values.max())
    axes.hist(values, bins=np.arange(highest + 2) - 0.5 if highest <= 3 * BINS else BINS, color=BLUE)
    axes.set_xlabel(label)
    axes.set_ylabel("images")


def _density(width: Any, height: Any, of: str, axes: Any) -> None:
    """Draw the distribution of width and height."""
    bounds = [[0, float(width.max()) + 1], [0, float(height.max()) + 1]]
    _, _, _, drawn = axes.hist2d(width, height, bins=BINS, range=bounds, cmin=1, cmap="viridis")
    axes.figure.colorbar(drawn, ax=axes)
    axes.set_xlabel(f"{of} width, px")
    axes.set_ylabel(f"{of} height, px")


def _plain(name: str) -> str:
    """Return one line of text for matplotlib, in which a dollar sign would begin a formula."""
    return printable(name).replace("$", r"\$")
