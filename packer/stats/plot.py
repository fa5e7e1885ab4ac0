"""Draws the numbers of a pack as one picture; needs matplotlib (the extra packer[report])."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from packer.errors import AnyPath, UsageError
from packer.format.pack import open_pack
from packer.stats import ClassCounts, PackStats
from packer.stats.plots import figure_class, save_figure

MOST_CLASSES = 40
BINS = 40


def plot_stats(stats: PackStats, file: AnyPath) -> None:
    """Draw class counts, boxes per image, box sizes and image sizes into `file` (PNG, SVG or PDF by its extension).

    Raises UsageError where matplotlib is missing, StorageError where the file cannot be written.
    """
    make_figure = figure_class("--plot")
    pack = open_pack(stats.path)
    drawings: list[Callable[[Any], None]] = [
        partial(_classes, counts) for counts in stats.classes if any(counts.counts)
    ]
    if stats.boxes is not None and stats.boxes.boxes:
        rows: Any = pack.column("boxes")
        boxes = np.asarray(rows.flat()).reshape(-1, 4)
        lengths = np.asarray(rows.lengths)
        drawings.append(partial(_histogram, lengths, "boxes an image"))
        drawings.append(partial(_density, boxes[:, 2] - boxes[:, 0], boxes[:, 3] - boxes[:, 1], "box"))
    width, height = (np.asarray(pack.column(name)) for name in ("width", "height"))
    if stats.sizes.distinct > 1 or not drawings:  # one size is one dot
        drawings.append(partial(_density, width, height, "image"))
    columns = min(2, len(drawings))
    lines = -(-len(drawings) // columns)
    figure: Any = make_figure(figsize=(6 * columns, 4 * lines), layout="constrained")
    for number, drawing in enumerate(drawings, 1):
        drawing(figure.add_subplot(lines, columns, number))
    figure.suptitle(f"{stats.records:,} records")
    try:
        save_figure(figure, file)
    except ValueError as error:  # an extension that it does not know
        raise UsageError("--plot", str(error).partition("\n")[0], "end the name in .png, .svg or .pdf") from None


def _classes(counts: ClassCounts, axes: Any) -> None:
    printable = sorted(zip(counts.counts, counts.names, strict=True), reverse=True)[:MOST_CLASSES][::-1]
    axes.barh([_plain(name) for _, name in printable], [count for count, _ in printable], color="#2c82c9")
    more = len(counts.names) - len(printable)
    axes.set_xlabel(counts.of + (f" (the {MOST_CLASSES} largest classes; {more} more)" if more > 0 else ""))


def _histogram(values: Any, label: str, axes: Any) -> None:
    highest = int(values.max())
    axes.hist(values, bins=np.arange(highest + 2) - 0.5 if highest <= 3 * BINS else BINS, color="#2c82c9")
    axes.set_xlabel(label)
    axes.set_ylabel("images")


def _density(width: Any, height: Any, of: str, axes: Any) -> None:
    """How many are of each width and height."""
    bounds = [[0, float(width.max()) + 1], [0, float(height.max()) + 1]]
    _, _, _, drawn = axes.hist2d(width, height, bins=BINS, range=bounds, cmin=1, cmap="viridis")
    axes.figure.colorbar(drawn, ax=axes)
    axes.set_xlabel(f"{of} width, px")
    axes.set_ylabel(f"{of} height, px")


def _plain(name: str) -> str:
    """A dollar sign would begin a formula."""
    from packer.errors import printable

    return printable(name).replace("$", r"\$")
