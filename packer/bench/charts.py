"""Draws what a bench has found; needs matplotlib (the extra packer[report])."""

from __future__ import annotations

import os
from typing import Any

from packer.bench.result import PACED, Figure, Report, Row
from packer.stats.plots import figure_class, save_figure

COLORS = {"folder": "#d64541", "raw": "#2c82c9", "jpeg": "#26a65b", "limit": "#95a5a6"}
MARKERS = {"PIL": "P", "cv2": "X", "lmdb": "o", "hdf5": "s", "tfrecord": "^", "webdataset": "D"}
"""Formats of one encoding lie close together: names beside them would cover each other."""


def write_charts(report: Report, folder: str) -> list[str]:
    """Write speed.png, and size.png where packs were built; their names."""
    names = ["speed.png"]
    save_figure(_speed(report), os.path.join(folder, names[0]))
    sized = [row for row in report.rows if row.rounds and row.disk_bytes and not row.name.startswith("limit")]
    sized = [row for row in sized if PACED not in row.name]
    if report.what == "compare" and len(sized) > 1:
        names.append("size.png")
        save_figure(_size(sized), os.path.join(folder, names[1]))
    return names


def _speed(report: Report) -> Any:
    """Bars of images/s with the lowest and the highest round, and where the limit of each is."""
    rows = [row for row in report.rows if row.rounds and not row.name.startswith("limit") and PACED not in row.name]
    figure = figure_class("--report")(figsize=(9, 1.2 + 0.42 * len(rows)), layout="constrained")
    axes = figure.add_subplot()
    for place, row in enumerate(reversed(rows)):
        rate = row.figure("images_per_s")
        axes.barh(place, rate.median, color=_colour(row), height=0.7)
        axes.errorbar(rate.median, place, xerr=_reach(rate), color="#2c3e50", capsize=3, linewidth=1)
        label = {"facecolor": "white", "edgecolor": "none", "pad": 0.6, "alpha": 0.85}
        axes.annotate(f" {rate.median:,.0f}", (rate.highest, place), va="center", fontsize=9, bbox=label)
        if row.limit is not None and report.row(row.limit).rounds:
            limit = report.row(row.limit).figure("images_per_s").highest
            axes.plot([limit, limit], [place - 0.4, place + 0.4], color="#7f8c8d", linewidth=2)
    axes.set_yticks(range(len(rows)), [row.name for row in reversed(rows)])
    scale = "log" if _wide(rows) else "linear"
    axes.set_xscale(scale)
    axes.margins(x=0.12)
    rounds = report.settings["rounds"]
    axes.set_xlabel(f"images/s ({scale} scale): median of {rounds} rounds, lowest to highest; grey: its limit at best")
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def _size(rows: list[Row]) -> Any:
    """Bytes on disk an image against speed."""
    figure = figure_class("--report")(figsize=(9, 5), layout="constrained")
    axes = figure.add_subplot()
    for row in rows:
        rate = row.figure("images_per_s")
        size = (row.disk_bytes or 0) / 1e6
        marker = next((MARKERS[word] for word in MARKERS if word in row.name), "o")
        axes.errorbar(size, rate.median, yerr=_reach(rate), fmt=marker, color=_colour(row), capsize=3, label=row.name)
    figure.legend(loc="outside right upper", fontsize=8, frameon=False)
    axes.set_xlabel("size on disk, MB")
    axes.set_ylabel("images/s (log scale): median, lowest to highest")
    axes.set_yscale("log")
    axes.set_xlim(left=0)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def _reach(rate: Figure) -> list[list[float]]:
    return [[rate.median - rate.lowest], [rate.highest - rate.median]]


def _wide(rows: list[Row]) -> bool:
    rates = [row.figure("images_per_s").median for row in rows]
    return max(rates) > 20 * min(rates)


def _colour(row: Row) -> str:
    kinds = [kind for kind in ("folder", "jpeg", "raw") if kind in row.name]
    return COLORS[kinds[0]] if kinds else COLORS["raw"]
