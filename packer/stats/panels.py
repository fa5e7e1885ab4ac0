"""The panels of a plot of statistics: each draws one question into matplotlib's axes."""

from __future__ import annotations

import colorsys
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.errors import plural, printable
from packer.stats.columns import MEDIUM, SMALL

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


def color_of(number: int) -> tuple[float, float, float]:
    """Return the color of a class, the same as in `packer view`."""
    return colorsys.hls_to_rgb((number * 137.508 + 205) % 360 / 360, 0.52, 0.75)


def draw_classes(axes: Any, rows: Sequence[ClassRow], title: str, most: int) -> None:
    """Draw a bar for each class, the first on top; `most` is the count of the longest bar of all columns."""
    places, (families, known) = np.arange(len(rows)), fonts()
    axes.barh(places, [count for _, _, count in rows], color=[color_of(i) for i, _, _ in rows], height=0.76)
    for place, (_, _, count) in zip(places, rows, strict=True):
        axes.annotate(
            f"{count:,}", (count, place), (4, 0), textcoords="offset points", va="center", fontsize=8, color=FAINT
        )
    axes.set_yticks(places, [shown(_shortened(name), known, f"{i}: ") for i, name, _ in rows], fontsize=8.5)
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
    axes.set_xlabel("box width, px")
    axes.set_ylabel("box height, px")
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
    axes.set_xlabel("image width, px")
    axes.set_ylabel("image height, px")
    _title(axes, f"sizes of the images: {len(sizes):,} different ones")


def draw_landmarks(axes: Any, shapes: Floats, aspect: float) -> None:
    """Draw the mean place of each landmark with one standard deviation; `shapes` are shares, (images, points, 2)."""
    from matplotlib.patches import Ellipse

    mean, std = shapes.mean(axis=0), shapes.std(axis=0)
    for number, ((x, y), (dx, dy)) in enumerate(zip(mean, std, strict=True)):
        color = color_of(number)
        axes.add_patch(Ellipse((x, y), 2 * dx, 2 * dy, color=color, alpha=0.25, linewidth=0))
        axes.plot(x, y, "o", color=color, markersize=4)
        if len(mean) <= 100:
            axes.annotate(str(number + 1), (x, y), (4, 4), textcoords="offset points", fontsize=8, color=INK)
    axes.add_patch(_frame())
    _square(axes, f"mean landmarks of {plural(len(shapes), 'image')}, with one standard deviation", 1 / aspect)
    axes.set_xlim(min(0.0, float((mean - std)[:, 0].min())), max(1.0, float((mean + std)[:, 0].max())))
    axes.set_ylim(max(1.0, float((mean + std)[:, 1].max())), min(0.0, float((mean - std)[:, 1].min())))


def shown(text: str, family_characters: set[int], prefix: str = "") -> str:
    """Return text as one line for matplotlib; with a prefix, and ``?`` for characters, if no font has them."""
    text = printable(text)
    if not family_characters.issuperset(map(ord, text)):
        text = prefix + "".join(one if ord(one) in family_characters else "?" for one in text)
    return text.replace("$", r"\$")  # a dollar sign would begin a formula


def _shortened(name: str) -> str:
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
    axes.set_xlabel("share of the image's width")
    axes.set_ylabel("share of its height")
    _title(axes, title)


def _norm() -> Any:
    """Return a scale of colors on which rare values remain visible beside a peak."""
    from matplotlib.colors import PowerNorm

    return PowerNorm(0.5, vmin=0)


def _frame() -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle((0, 0), 1, 1, fill=False, color=GRAY, linewidth=1)


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
