"""Reads the arguments of a request."""

from __future__ import annotations

import math
from collections.abc import Mapping

from packer.errors import UsageError
from packer.view.catalog import RANGES, SORTS, Query

_MOST_PARTS = 100
"""Maximum number of classes or of sets in a filter."""


def query_of(given: Mapping[str, str]) -> Query:
    """Return the filter and order of a request; raise UsageError if they are invalid."""
    sort = given.get("sort", "packed")
    if sort not in SORTS:
        raise UsageError("sort", f"must be one of {', '.join(SORTS)}, got {sort!r}")
    if given.get("match", "any") not in ("any", "all"):
        raise UsageError("match", f"must be any or all, got {given['match'][:40]!r}")
    most = 1 << 40
    classes = [part for part in given.get("class", "").split(",") if part][:_MOST_PARTS]
    return Query(
        classes=tuple(number({"class": part}, "class", 0, -1, most) for part in classes),
        all_classes=given.get("match") == "all",
        ranges=tuple((name, *range_of(given, name)) for name in RANGES if given.get(name)),
        text=given.get("text", "")[:1000],
        sets=tuple(part for part in given.get("set", "").split(",") if part)[:_MOST_PARTS],
        sort=sort,
    )


def range_of(given: Mapping[str, str], name: str) -> tuple[float, float]:
    """Return the ends of a range such as ``2..5``, ``2..`` or ``..5``; raise UsageError if it is not one."""
    low, dots, high = given[name].partition("..")
    try:
        ends = float(low or "-inf"), float(high or "inf")
    except ValueError:
        ends = math.nan, math.nan
    if not dots or not ends[0] <= ends[1]:
        raise UsageError(name, f"must be a range such as 2..5, 2.. or ..5, got {given[name][:40]!r}")
    return ends


def number(given: Mapping[str, str], name: str, default: int, low: int, high: int) -> int:
    """Return an integer argument of a request.

    Raises:
        UsageError: If it is not an integer from `low` to `high`.
    """
    text = given.get(name)
    if text is None:
        return default
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) < 20) or not low <= int(text) <= high:
        raise UsageError(name, f"must be {low} to {high}, got {text[:40]!r}")
    return int(text)
