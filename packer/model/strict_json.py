"""Reads JSON of a pack strictly: what it refuses, no pack holds."""

from __future__ import annotations

import json
import math
import re
from typing import Any, NoReturn

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
