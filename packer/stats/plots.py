"""Plots statistics; needs matplotlib (the extra `report`)."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from packer.errors import AnyPath, StorageError, UsageError, option, plural
from packer.format.pack import Pack, open_pack
from packer.stats import ClassCounts, PackStats, panels
from packer.system.atomic import replacing
from packer.system.machine import install_command

COLUMN_ROWS = 45
"""Most classes in a column. If there are more than fit into two, one has the largest and one the smallest."""
FEW_CLASSES = 18
"""As many as fit into a panel."""
ROW_IN, PANEL_IN, LEAST_IN = 0.19, 4.6, 3.7
"""Height of the bar of a class; width and height of a panel, in inches."""
CLASSES_IN = (4.4, 3.6)
"""Width of a single column of classes, and of one of several."""
MOST_SHAPES = 50_000

Drawing = Callable[[Any], None]
Column = tuple[list[panels.ClassRow], str, int]
"""Classes, title, and the count of the longest bar."""


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
        raise UsageError(option, "needs matplotlib", install_command("report")) from None
    return Figure


def plot_stats(stats: PackStats, file: AnyPath, pack: Pack | None = None) -> None:
    """Draw class counts, boxes, their places and sizes, landmarks and image sizes.

    Args:
        stats: The statistics.
        file: The file to write: PNG, SVG or PDF by its extension.
        pack: The pack, for the histograms; default: the one at `stats.path`.

    Raises:
        UsageError: If matplotlib is not installed or does not know the extension.
        StorageError: If the file cannot be written.
    """
    figure = draw_stats(stats, pack or open_pack(stats.path))
    try:
        path = os.fsdecode(file)
        extension = os.path.splitext(path)[1]
        with replacing(path if extension else f"{path}.png") as new:
            figure.savefig(new, dpi=120, format=extension[1:].lower() or "png")
    except OSError as error:
        raise StorageError(file, f"cannot write: {error.strerror or error}") from error
    except ValueError as error:  # an unknown extension
        raise UsageError(option("plot"), str(error).partition("\n")[0], "end the name in .png, .svg or .pdf") from None


def draw_stats(stats: PackStats, pack: Pack) -> Any:
    """Return the drawing as matplotlib's Figure; raise UsageError if it is not installed."""
    make_figure = figure_class(option("plot"))
    classes = [column for counts in stats.classes if any(counts.counts) for column in _class_columns(counts)]
    others: list[Drawing] = [*_box_panels(stats, pack), *_other_panels(stats, pack)]
    few = len(classes) == 1 and len(classes[0][0]) <= FEW_CLASSES and others
    if few:  # they need no column of their own
        shown, title, most = classes.pop()
        others.insert(0, partial(panels.draw_classes, rows=shown, title=title, most=most))
    rows = max((len(shown) for shown, _, _ in classes), default=0)
    across = min(3 if few and len(others) > 4 else 2, len(others))
    down = -(-len(others) // across) if others else 0
    column_in = CLASSES_IN[len(classes) > 1]
    width = column_in * len(classes) + PANEL_IN * across
    height = 0.8 + max(LEAST_IN * down, ROW_IN * rows + 0.4, 1.6)
    figure: Any = make_figure(figsize=(max(width, 6.4), height), layout="constrained")
    families, known = panels.fonts()
    headline = panels.shown(_headline(stats), known)
    figure.suptitle(headline, x=0.01, ha="left", fontsize=12, color=panels.INK, fontfamily=families)
    if classes or others:
        shares = [column_in] * len(classes) + [PANEL_IN * across] * bool(others)
        parts = figure.subfigures(1, len(shares), width_ratios=shares, squeeze=False)[0]
        for part, (shown, title, most) in zip(parts, classes, strict=False):
            panels.draw_classes(part.add_subplot(), shown, title, most)
        for number, drawing in enumerate(others, 1):
            drawing(parts[-1].add_subplot(down, across, number))
    return figure


def _headline(stats: PackStats) -> str:
    """Return the name of the pack, and in words what needs no drawing."""
    sizes = stats.sizes
    facts = [plural(stats.records, "image")]
    if sizes.distinct == 1:
        width, height, _ = sizes.common[0]
        facts = [f"{facts[0]}, {'all ' if stats.records > 1 else ''}{width} x {height} px"]
    if stats.boxes is not None:
        facts.append(plural(stats.boxes.boxes, "box"))
    if not stats.classes and stats.boxes is None and stats.landmarks is None:
        facts.append("no labels")
    return f"{stats.path.rstrip('/').rpartition('/')[2]}: {'; '.join(facts)}"


def _class_columns(counts: ClassCounts) -> list[Column]:
    order = sorted(range(len(counts.names)), key=lambda i: (-counts.counts[i], i))
    rows = [(i, counts.names[i], counts.counts[i]) for i in order]
    used = sum(1 for count in counts.counts if count)
    of, one = ("images", "tag") if counts.per_image else (counts.of, "class")
    title = f"{of} per {one}: {plural(len(rows), one)}"
    title += f", {len(rows) - used:,} of them empty" if used < len(rows) else ""
    most = max(counts.counts)
    if len(rows) <= COLUMN_ROWS:
        return [(rows, title, most)]
    if len(rows) <= 2 * COLUMN_ROWS:
        half = -(-len(rows) // 2)
        return [(rows[:half], title, most), (rows[half:], " ", most)]
    left_out = len(rows) - 2 * COLUMN_ROWS
    smallest = rows[-COLUMN_ROWS:]
    return [
        (rows[:COLUMN_ROWS], f"{title}; the {COLUMN_ROWS} largest", most),
        (smallest, f"the {COLUMN_ROWS} smallest ({left_out:,} in between)", most),
    ]


def _box_panels(stats: PackStats, pack: Pack) -> Iterator[Drawing]:
    if stats.boxes is None:
        return
    rows: Any = pack.column("boxes")
    lengths = np.asarray(rows.lengths)
    boxes = np.asarray(rows.flat(), np.float64).reshape(-1, 4)
    if len(boxes):
        sides = boxes[:, 2:] - boxes[:, :2]
        images = np.stack([np.asarray(pack.column(name), np.float64) for name in ("width", "height")], axis=1)
        of_box = np.repeat(images, lengths, axis=0)
        labels: Any = pack.column("box_labels") if "box_labels" in pack.manifest.fields else None
        labels = None if labels is None else np.asarray(labels.flat())
        yield partial(panels.draw_centered, sides=sides / of_box, labels=labels)
        centers = (boxes[:, :2] + sides / 2) / of_box
        yield partial(panels.draw_centers, centers=centers, aspect=_aspect(images))
        real = sides[(sides > 0).all(axis=1)]
        if len(real):
            yield partial(panels.draw_box_sizes, width=real[:, 0], height=real[:, 1])
    yield partial(panels.draw_per_image, lengths=lengths, of="boxes")


def _other_panels(stats: PackStats, pack: Pack) -> Iterator[Drawing]:
    width, height = (np.asarray(pack.column(name)) for name in ("width", "height"))
    if stats.landmarks is not None and stats.landmarks.count:
        rows: Any = pack.column("landmarks")
        lengths, points = np.asarray(rows.lengths), np.asarray(rows.flat(), np.float64).reshape(-1, 2)
        common = int(np.bincount(lengths[lengths > 0]).argmax())
        chosen = np.flatnonzero(lengths == common)
        chosen = chosen[:: -(-len(chosen) // MOST_SHAPES)]
        firsts = np.cumsum(lengths) - lengths
        shapes = points[firsts[chosen][:, None] + np.arange(common)]
        sizes = np.stack([width, height], axis=1)[chosen].astype(np.float64)
        yield partial(panels.draw_landmarks, shapes=shapes / sizes[:, None], aspect=_aspect(sizes))
        if len(np.unique(lengths)) > 1:
            yield partial(panels.draw_per_image, lengths=lengths, of="landmarks")
    if stats.sizes.distinct > 1:  # one size is said in words
        yield partial(panels.draw_image_sizes, width=width, height=height)


def _aspect(sizes: Any) -> float:
    """Return the median width / height, within bounds in which a panel is still readable."""
    return float(np.clip(np.median(sizes[:, 0] / sizes[:, 1]), 0.5, 2))
