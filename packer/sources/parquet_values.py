"""The types of Parquet columns, and the columns of numbers that are values of an image: targets of a regression."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from packer.errors import NoLabel, printable
from packer.model.annotation import Json
from packer.sources.list_meaning import MEANING, words_of
from packer.sources.paths import LARGEST


def is_list(kind: Any) -> bool:
    """Return whether a type of Arrow is a list."""
    return any(test(kind) for test in (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list))


def is_scalar(kind: Any) -> bool:
    """Return whether a type of Arrow is a number, a flag or a text."""
    types = pa.types
    tests = (types.is_integer, types.is_floating, types.is_boolean, types.is_string, types.is_large_string)
    return any(test(kind) for test in tests)


def is_float(kind: Any) -> bool:
    """Return whether a type of Arrow is a fraction, or some of a fixed number."""
    return bool(pa.types.is_floating(kind.value_type if pa.types.is_fixed_size_list(kind) else kind))


def plain(value: Any) -> Json:
    """Return a value as JSON has it."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def value_columns(columns: Sequence[Any], asked: str | None, are_values: bool) -> tuple[str, ...]:
    """Return the columns of values of an image: those of fractions that are called so, or the one that is asked for.

    Args:
        columns: The columns, with name and type.
        asked: The column that the user names.
        are_values: Whether it may have whole numbers.
    """
    if asked is not None:
        is_one = [
            is_float(one.type) or (are_values and pa.types.is_integer(one.type)) for one in columns if one.name == asked
        ]
        return (asked,) if any(is_one) else ()
    named = [one for one in columns if MEANING.get(words_of([one.name])[0]) in ("label", "value")]
    return tuple(one.name for one in named if is_float(one.type))


def numbers_of(columns: Sequence[str], values: Mapping[str, Any], origin: str) -> tuple[float, ...] | None:
    """Return the numbers in some columns of a row; None without columns. Raise NoLabel if one is null or NaN."""
    found: list[float] = []
    for name in columns:
        value = values[name]
        numbers = value if isinstance(value, list) else [value]
        if not all(number is not None and abs(number) <= LARGEST for number in numbers):
            problem = f'has no value in "{printable(name)}"' + (f" but {value}" if value is not None else "")
            raise NoLabel(origin, problem, "add it, or remove the row")
        found += map(float, numbers)
    return tuple(found) or None
