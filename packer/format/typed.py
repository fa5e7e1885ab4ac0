"""Converts JSON values to dataclasses."""

from __future__ import annotations

from dataclasses import is_dataclass
from functools import cache
from typing import Any, get_args, get_origin, get_type_hints


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
