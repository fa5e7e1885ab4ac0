"""Reads JSON of a pack, strictly, and converts its values to dataclasses."""

from __future__ import annotations

import json
import math
import re
from dataclasses import is_dataclass
from functools import cache
from typing import Any, NoReturn, get_args, get_origin, get_type_hints

MOST_DEEP = 100
"""Lists and objects in each other: whoever reads or writes them goes as deep, and Python ends at about 1,000 calls."""
LONG_NUMBER = re.compile(r"[0-9][eE]\+?[0-9]{3}|[0-9]{300}")
"""What a number that is not finite looks like, besides NaN and Infinity."""


def _not_json(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_decoded = json.JSONDecoder(parse_constant=_not_json).decode  # json.loads would make a decoder for each text


def read_json(data: bytes) -> Any:
    """Return the value of a JSON text.

    Raises:
        ValueError: It is not JSON, lists and objects are more than MOST_DEEP in each other, or a number is too large.
    """
    text = data.decode("utf-8", "surrogatepass")
    try:
        value = _decoded(text)
    except RecursionError:
        raise ValueError(f"its lists or objects are more than {MOST_DEEP} in each other") from None
    check_json(text, value)
    return value


def check_json(text: str, value: Any) -> None:
    """Check a value that has this JSON text. Raise ValueError as `read_json` does."""
    if text.count("[") + text.count("{") <= MOST_DEEP and LONG_NUMBER.search(text) is None:
        return  # nearly every text
    layer = [value]
    for _ in range(MOST_DEEP + 1):
        if not layer:
            return
        if not all(math.isfinite(item) for item in layer if isinstance(item, float)):
            raise ValueError("a number in it is too large")
        layer = [
            item
            for outer in layer
            if isinstance(outer, dict | list | tuple)
            for item in (outer.values() if isinstance(outer, dict) else outer)
        ]
    if layer:
        raise ValueError(f"its lists or objects are more than {MOST_DEEP} in each other")


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def typed(hint: Any, value: Any) -> Any:
    """Convert a JSON value to a type: objects to dataclasses, lists to tuples. Raise TypeError if it does not fit."""
    if hint is Any:
        return value
    if is_dataclass(hint):
        kind: Any = hint
        kinds = _hints(kind)
        # most values already have the right type: a large pack has 100,000 of them
        return kind(**{n: item if type(item) is kinds[n] else typed(kinds[n], item) for n, item in value.items()})
    origin, inner = get_origin(hint), get_args(hint)
    if type(None) in inner:
        return None if value is None else typed(inner[0], value)
    are_alike = origin is list or inner[-1:] == (Ellipsis,)
    if are_alike and isinstance(value, list) and {inner[0]} == set(map(type, value)):  # a million classes, at once
        return value if origin is list else tuple(value)
    if origin is tuple:
        hints = inner[:1] * len(value) if inner[-1] is Ellipsis else inner
        return tuple(typed(item_hint, item) for item_hint, item in zip(hints, value, strict=True))
    if origin is list:
        return [typed(inner[0], item) for item in value]
    if origin is not None:
        return {name: typed(inner[1], item) for name, item in value.items()}
    if type(value) is not hint:
        raise TypeError(f"{value!r} is not of type {hint.__name__}")
    return value
