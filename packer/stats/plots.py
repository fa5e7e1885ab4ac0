"""Plots statistics; needs matplotlib (the extra `report`)."""

from __future__ import annotations

import colorsys
import math
import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.errors import AnyPath, StorageError, UsageError, option, plural, printable
from packer.format.pack import Pack, open_pack
from packer.stats import ClassCounts, PackStats, ValueStats
from packer.stats.columns import MEDIUM, SMALL
from packer.system.atomic import replacing
from packer.system.machine import install_command

INK, FAINT, BLUE, GRAY = "#1c2128", "#667080", "#2c82c9", "#a8b0bb"
MAP = "viridis"
NAME_CHARACTERS = 26
DRAWN_BOXES = 1000
BARS = 30
FEW_SIZES = LEAST_BARS = 8
FONTS = (
    "DejaVu Sans", "Noto Sans CJK SC", "Noto Sans CJK JP", "Noto Sans SC", "Source Han Sans SC", "WenQuanYi Zen Hei",
    "Microsoft YaHei", "PingFang SC", "Hiragino Sans", "Apple SD Gothic Neo", "Arial Unicode MS", "Noto Sans",
    "Noto Sans Devanagari", "Noto Sans Thai", "Noto Sans Arabic", "Noto Emoji", "Segoe UI Emoji", "Symbola",
)  # fmt: skip
"""Tried in this order for each character: the first is part of matplotlib."""

Floats = NDArray[np.float64]
ClassRow = tuple[int, str, int]
"""Id, name and count of a class."""


def hue_of(number: int) -> float:
    """Return the hue of a class id in degrees. Neighbors get hues far apart (view/static/draw.js has the same)."""
    return (number * 137.508 + 205) % 360


def color_of(number: int) -> tuple[float, float, float]:
    """Return the color of a class, the same as in `packer view`."""
    return colorsys.hls_to_rgb(hue_of(number) / 360, 0.52, 0.75)


def draw_classes(axes: Any, rows: Sequence[ClassRow], title: str, most: int) -> None:
    """Draw a bar for each class, the first on top; `most` is the count of the longest bar of all columns."""
    places, (families, known) = np.arange(len(rows)), fonts()
    axes.barh(places, [count for _, _, count in rows], color=[color_of(i) for i, _, _ in rows], height=0.76)
    for place, (_, _, count) in zip(places, rows, strict=True):
        axes.annotate(
            f"{count:,}", (count, place), (4, 0), textcoords="offset points", va="center", fontsize=8, color=FAINT
        )
    axes.set_yticks(places, [one_line(_shorten_name(name), known, f"{i}: ") for i, name, _ in rows], fontsize=8.5)
    for label in axes.get_yticklabels():
        label.set_fontfamily(families)
    axes.set_ylim(max(len(rows), LEAST_BARS) - 0.4, -0.6)  # few bars are not as thick as a thumb
    axes.spines["left"].set_bounds(-0.5, len(rows) - 0.5)
    axes.set_xlim(0, 1.17 * max(1, most))
    axes.set_xticks([])
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right", "bottom"]].set_visible(False)
    _title(axes, title)


def draw_centered(axes: Any, sides: Floats, labels: NDArray[Any] | None) -> None:
    """Draw boxes over one another, each in the middle of a unit square; `sides` are shares of the image."""
    from matplotlib.collections import LineCollection

    chosen = np.unique(np.linspace(0, len(sides) - 1, min(len(sides), DRAWN_BOXES)).astype(np.int64))
    x, y = sides[chosen].T / 2
    corners = np.stack([np.stack([0.5 + a * x, 0.5 + b * y], 1) for a, b in _CORNERS], 1)
    colors: Any = BLUE if labels is None else [color_of(int(i)) if i >= 0 else GRAY for i in labels[chosen]]
    alpha = 0.55 if len(chosen) < 200 else 0.3
    axes.add_collection(LineCollection(list(corners), colors=colors, linewidths=0.7, alpha=alpha))
    some = f"{len(chosen):,} of {len(sides):,} boxes" if len(chosen) < len(sides) else plural(len(sides), "box")
    _square(axes, f"{some}, centered in their images", 1.0)
    axes.invert_yaxis()


_CORNERS = ((-1, -1), (1, -1), (1, 1), (-1, 1), (-1, -1))


def draw_centers(axes: Any, centers: Floats, aspect: float) -> None:
    """Draw where in the images the centers of the boxes are; they are shares of the image."""
    bins = int(np.clip(math.sqrt(len(centers)) / 2.5, 10, 60))
    counts, _, _ = np.histogram2d(centers[:, 1], centers[:, 0], bins=bins, range=[[0, 1], [0, 1]])
    drawn = axes.imshow(counts, extent=(0, 1, 1, 0), cmap=MAP, norm=_norm(), interpolation="nearest")
    _scale(axes, drawn, "boxes")
    _square(axes, "centers of the boxes in their images", 1 / aspect)


def draw_box_sizes(axes: Any, width: Floats, height: Floats) -> None:
    """Draw the density of width and height of boxes in pixels, on log scales, with COCO's bounds of areas."""
    low = max(0.5, min(width.min(), height.min()) / 1.3)
    high = 1.3 * max(width.max(), height.max(), 2 * low)
    edges = np.geomspace(low, high, 36)
    counts, _, _ = np.histogram2d(height, width, bins=edges)
    drawn = axes.pcolormesh(edges, edges, np.ma.masked_equal(counts, 0), cmap=MAP, norm=_norm())
    _scale(axes, drawn, "boxes")
    axes.set(xscale="log", yscale="log", xlim=(low, high), ylim=(low, high))
    for side in (math.isqrt(SMALL), math.isqrt(MEDIUM)):
        if low < side < high:
            axes.plot(edges, side**2 / edges, color=FAINT, linewidth=1, linestyle=(0, (4, 3)))
        if 1.2 * low < side < high / 1.2:  # else it would leave the corner
            x = min(high / 1.05, side**2 / low / 1.3)
            style = {"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 1.2}
            axes.text(x, side**2 / x, f"{side} x {side}", ha="right", fontsize=8, color=INK, bbox=style)
    _plain_log(axes)
    axes.set(xlabel="box width, px", ylabel="box height, px")
    _title(axes, "box sizes; dashed: COCO's small, medium and large")


def draw_per_image(axes: Any, lengths: NDArray[Any], of: str) -> None:
    """Draw how many images have 0, 1, 2, ... boxes; 0 always has a bar of its own."""
    bins = whole_bins(lengths)
    values = [int(((lengths >= first) & (lengths <= last)).sum()) for first, last in bins]
    places = np.arange(len(bins))
    axes.bar(places, values, color=[GRAY if last == 0 else BLUE for _, last in bins], width=0.86)
    highest = int(lengths.max())
    names = [str(a) if a == b else f"{a}+" if (a, b) == bins[-1] and b == highest and len(bins) > 2 else f"{a}–{b}"
             for a, b in bins]  # fmt: skip
    step = -(-sum(map(len, names)) // 44)
    axes.set_xticks(places[::step], names[::step], fontsize=8.5)
    axes.set_xlim(-0.7, len(bins) - 0.3)
    without = values[0]
    note = f"{plural(without, 'image has', 'images have')} none" if without else "every image has some"
    _axis(axes)
    axes.set_ylabel("images")
    _title(axes, f"{of} per image: {note}, at most {highest:,}")


def draw_values(axes: Any, values: ValueStats) -> None:
    """Draw the histogram of a number that images have."""
    edges = np.array(values.edges)
    axes.bar(edges[:-1], values.counts, width=np.diff(edges), align="edge", color=BLUE)
    _axis(axes)
    axes.set_ylabel("images")
    _title(axes, f"{values.name}: {values.spread.lowest:g} to {values.spread.highest:g}, mean {values.spread.mean:.4g}")


def whole_bins(values: NDArray[Any]) -> list[tuple[int, int]]:
    """Return (first, last) of the bins of a histogram of counts: 0 alone, then equal ones, then outliers."""
    highest = int(values.max())
    usual = max(1, int(np.ceil(np.percentile(values, 99))))
    if highest <= max(BARS, 1.5 * usual):
        usual = highest
    step = max(1, -(-usual // BARS))
    bins = [(0, 0), *((first, first + step - 1) for first in range(1, usual + 1, step))]
    if highest > bins[-1][1]:
        bins.append((bins[-1][1] + 1, highest))
    return bins


def draw_image_sizes(axes: Any, width: NDArray[Any], height: NDArray[Any]) -> None:
    """Draw the sizes of images: a bar for each if there are few, else their density."""
    sizes, counts = np.unique(np.stack([width, height], 1), axis=0, return_counts=True)
    if len(sizes) <= FEW_SIZES:
        order = np.argsort(-counts, kind="stable")
        axes.barh(np.arange(len(order)), counts[order], color=BLUE, height=0.7)
        axes.set_yticks(np.arange(len(order)), [f"{w} x {h}" for w, h in sizes[order]])
        axes.set_ylim(FEW_SIZES - 0.4, -0.6)
        axes.spines["left"].set_bounds(-0.5, len(order) - 0.5)
        axes.set_xlabel("images")
        _axis(axes, "x")
        _title(axes, f"sizes of the images, px: {len(sizes)} different ones")
        return
    sides = [(float(side.min()), float(side.max())) for side in (width, height)]
    bounds = [[0 if low < high / 2 else 0.95 * low, 1.05 * high] for low, high in sides]
    counts, x, y = np.histogram2d(width, height, bins=40, range=bounds)
    _scale(axes, axes.pcolormesh(x, y, np.ma.masked_equal(counts.T, 0), cmap=MAP, norm=_norm()), "images")
    axes.set(xlabel="image width, px", ylabel="image height, px")
    _title(axes, f"sizes of the images: {len(sizes):,} different ones")


def draw_landmarks(axes: Any, shapes: Floats, aspect: float) -> None:
    """Draw the mean place of each landmark with one standard deviation; `shapes` are shares, (images, points, 2)."""
    from matplotlib.patches import Ellipse, Rectangle

    mean, std = shapes.mean(axis=0), shapes.std(axis=0)
    for number, ((x, y), (dx, dy)) in enumerate(zip(mean, std, strict=True)):
        color = color_of(number)
        axes.add_patch(Ellipse((x, y), 2 * dx, 2 * dy, color=color, alpha=0.25, linewidth=0))
        axes.plot(x, y, "o", color=color, markersize=4)
        if len(mean) <= 100:
            axes.annotate(str(number + 1), (x, y), (4, 4), textcoords="offset points", fontsize=8, color=INK)
    axes.add_patch(Rectangle((0, 0), 1, 1, fill=False, color=GRAY, linewidth=1))
    _square(axes, f"mean landmarks of {plural(len(shapes), 'image')}, with one standard deviation", 1 / aspect)
    axes.set_xlim(min(0.0, float((mean - std)[:, 0].min())), max(1.0, float((mean + std)[:, 0].max())))
    axes.set_ylim(max(1.0, float((mean + std)[:, 1].max())), min(0.0, float((mean - std)[:, 1].min())))


def one_line(text: str, family_characters: set[int], prefix: str = "") -> str:
    """Return text as one line for matplotlib; with a prefix, and ``?`` for characters, if no font has them."""
    text = printable(text)
    if not family_characters.issuperset(map(ord, text)):
        text = prefix + "".join(one if ord(one) in family_characters else "?" for one in text)
    return text.replace("$", r"\$")  # a dollar sign would begin a formula


def _shorten_name(name: str) -> str:
    """Return a name without its middle if it is long."""
    if len(name) <= NAME_CHARACTERS:
        return name
    return f"{name[: NAME_CHARACTERS * 5 // 8]}…{name[-NAME_CHARACTERS * 3 // 8 + 1 :]}"


def fonts() -> tuple[list[str], set[int]]:
    """Return the installed fonts of FONTS, and the characters that they have."""
    from matplotlib import font_manager

    installed = {font.name for font in font_manager.fontManager.ttflist}
    families = [name for name in FONTS if name in installed]
    known: set[int] = set()
    for family in families:
        known |= font_manager.get_font(font_manager.findfont(family)).get_charmap().keys()
    return families, known


def _title(axes: Any, text: str) -> None:
    axes.set_title(text, loc="left", fontsize=10, color=INK)
    axes.tick_params(colors=INK, labelsize=8.5)
    for spine in axes.spines.values():
        spine.set_color(GRAY)


def _axis(axes: Any, which: str = "y") -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axis = axes.xaxis if which == "x" else axes.yaxis
    axis.get_major_locator().set_params(integer=True)
    axis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.grid(axis=which, color=GRAY, alpha=0.35, linewidth=0.6)
    axes.set_axisbelow(True)


def _square(axes: Any, title: str, height: float) -> None:
    """Set the axes of a unit square that is drawn `height` times as high as wide."""
    axes.set(xlim=(0, 1), ylim=(1, 0) if axes.get_ylim()[0] > axes.get_ylim()[1] else (0, 1), aspect=height)
    ticks = (0, 0.25, 0.5, 0.75, 1)
    axes.set_xticks(ticks, ["0", "¼", "½", "¾", "1"])
    axes.set_yticks(ticks, ["0", "¼", "½", "¾", "1"])
    axes.set(xlabel="share of the image's width", ylabel="share of its height")
    _title(axes, title)


def _norm() -> Any:
    """Return a scale of colors on which rare values remain visible beside a peak."""
    from matplotlib.colors import PowerNorm

    return PowerNorm(0.5, vmin=0)


def _scale(axes: Any, drawn: Any, of: str) -> None:
    bar = axes.figure.colorbar(drawn, ax=axes, shrink=0.9, aspect=25, pad=0.02)
    bar.ax.yaxis.get_major_locator().set_params(integer=True)
    bar.ax.tick_params(labelsize=8, colors=INK)
    bar.set_label(of, fontsize=8.5, color=INK)
    bar.outline.set_visible(False)


def _plain_log(axes: Any) -> None:
    from matplotlib.ticker import LogLocator, NullFormatter

    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(base=10, subs=(1, 2, 5)))
        axis.set_major_formatter(lambda value, _: f"{value:g}")
        axis.set_minor_formatter(NullFormatter())


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
Column = tuple[list[ClassRow], str, int]
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
        others.insert(0, partial(draw_classes, rows=shown, title=title, most=most))
    rows = max((len(shown) for shown, _, _ in classes), default=0)
    across = min(3 if few and len(others) > 4 else 2, len(others))
    down = -(-len(others) // across) if others else 0
    column_in = CLASSES_IN[len(classes) > 1]
    width = column_in * len(classes) + PANEL_IN * across
    height = 0.8 + max(LEAST_IN * down, ROW_IN * rows + 0.4, 1.6)
    figure: Any = make_figure(figsize=(max(width, 6.4), height), layout="constrained")
    families, known = fonts()
    headline = one_line(_headline(stats), known)
    figure.suptitle(headline, x=0.01, ha="left", fontsize=12, color=INK, fontfamily=families)
    if classes or others:
        shares = [column_in] * len(classes) + [PANEL_IN * across] * bool(others)
        parts = figure.subfigures(1, len(shares), width_ratios=shares, squeeze=False)[0]
        for part, (shown, title, most) in zip(parts, classes, strict=False):
            draw_classes(part.add_subplot(), shown, title, most)
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
    if not stats.classes and stats.boxes is None and stats.landmarks is None and not stats.values:
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
        yield partial(draw_centered, sides=sides / of_box, labels=labels)
        centers = (boxes[:, :2] + sides / 2) / of_box
        yield partial(draw_centers, centers=centers, aspect=_aspect(images))
        real = sides[(sides > 0).all(axis=1)]
        if len(real):
            yield partial(draw_box_sizes, width=real[:, 0], height=real[:, 1])
    yield partial(draw_per_image, lengths=lengths, of="boxes")


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
        yield partial(draw_landmarks, shapes=shapes / sizes[:, None], aspect=_aspect(sizes))
        if len(np.unique(lengths)) > 1:
            yield partial(draw_per_image, lengths=lengths, of="landmarks")
    yield from (partial(draw_values, values=one) for one in stats.values)
    if stats.sizes.distinct > 1:  # one size is said in words
        yield partial(draw_image_sizes, width=width, height=height)


def _aspect(sizes: Any) -> float:
    """Return the median width / height, within bounds in which a panel is still readable."""
    return float(np.clip(np.median(sizes[:, 0] / sizes[:, 1]), 0.5, 2))
