"""Options as people type them in Python: ``resize=64, max_bad=0.01``."""

from __future__ import annotations

import os
from decimal import Decimal
from numbers import Integral, Real
from typing import Any

from packer.errors import UsageError

TYPES = ("str", "int", "float", "bool", "tuple")
WRITE = {
    "str": ("text", "write it in quotes"),
    "int": ("a whole number", "write it without quotes"),
    "float": ("a number", "write it without quotes"),
    "bool": ("True or False", "write one of them"),
    "tuple": ("a text, or a list of texts", 'write labels="coco", or labels=["voc", "list:more.csv"]'),
    "resize": ("a number of pixels, or width x height", 'write resize=64, or resize="640x480"'),
    "max_bad": ("a number of images, or a share below 1", 'write max_bad=5, or max_bad=0.01 or "1%" for a hundredth'),
    "classes": ("a file with a name per line, or a pack", "write the names to a file, and name that"),
    "shuffle": ("the seed of an order, a whole number", "write shuffle=0"),
}
"""Type, or option -> what its value must be, and what to write."""
OPTION_NAMES = {"shard_bytes": "shard-size"}


def typed_option(name: str, kind: str, value: Any) -> Any:
    """Return the value of an option as its annotation says, of what people write: ``resize=64``, ``max_bad=0.01``.

    Args:
        name: The option.
        kind: Its annotation, such as ``str | None``.
        value: What was given.

    Raises:
        UsageError: It can mean nothing, or several things.
    """
    if value is None and "None" in kind:
        return None
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    is_whole = is_number and isinstance(value, Integral)
    if kind.startswith("tuple"):
        several = (value,) if isinstance(value, str) else value
        if isinstance(several, list | tuple) and all(isinstance(one, str) for one in several):
            return tuple(several)
    elif kind.startswith("str"):
        if isinstance(value, str):
            return value
        if isinstance(value, os.PathLike):
            return os.fsdecode(value)
        if name == "resize" and is_whole:
            return str(value)
        if name == "resize" and isinstance(value, list | tuple) and len(value) == 2 and value[0] == value[1]:
            return f"{value[0]}x{value[1]}"
        if name == "max_bad" and is_whole:
            return str(value)
        if name == "max_bad" and is_number and 0 <= value < 1:
            return f"{round(Decimal(str(float(value))) * 100, 9).normalize():f}%" if value else "0"
    elif kind.startswith("bool") and type(value).__name__ in ("bool", "bool_"):
        return bool(value)
    elif kind.startswith("float") and is_number:
        return value
    elif kind.startswith("int") and (is_whole or (is_number and value == int(value))):
        return int(value)
    what, step = WRITE.get(name) or next(WRITE[start] for start in TYPES if kind.startswith(start))
    raise UsageError(f"--{OPTION_NAMES.get(name, name.replace('_', '-'))}", f"must be {what}, got {value!r}", step)
