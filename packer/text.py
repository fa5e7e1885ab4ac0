"""Sizes and rates in words, for people."""

from __future__ import annotations

from collections.abc import Collection, Sequence


def size_text(size: float) -> str:
    """A size for people: ``1.4 GB`` (powers of 1024, as ``ls -h`` has them)."""
    for unit in ("bytes", "KB", "MB", "GB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "bytes" or size >= 100 else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TB"


def time_text(seconds: float) -> str:
    """A duration for people: ``0.4 s``, ``3 min 20 s``, ``2 h 05 min``."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def table_text(rows: Sequence[Sequence[str]], right: Collection[int] = ()) -> list[str]:
    """Lines of a table, columns side by side; those numbered in `right` end at the right. The first row is the head."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = zip(row, widths, strict=True)
        padded = (c.rjust(width) if i in right else c.ljust(width) for i, (c, width) in enumerate(cells))
        lines.append("  ".join(padded).rstrip())
    return lines
