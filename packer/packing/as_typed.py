"""Options as people type them in Python: ``resize=64, max_bad=0.01``."""

from __future__ import annotations

import os
from typing import Any

from packer.errors import UsageError
from packer.packing.option_table import TABLE
from packer.packing.option_values import is_number, is_whole

EXPECTED = {
    "str": ("text", "write it in quotes"),
    "int": ("a whole number", "write it without quotes"),
    "float": ("a number", "write it without quotes"),
    "bool": ("True or False", "write one of them"),
    "tuple": ("a text, or a list of texts", 'write labels="coco", or labels=["voc", "list:more.csv"]'),
}
"""Type -> what a value must be, and what to write; options may have their own."""


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
    row = TABLE[name]
    if kind.startswith("tuple"):
        several = (value,) if isinstance(value, str) else value
        if isinstance(several, list | tuple) and all(isinstance(one, str) for one in several):
            return tuple(several)
    elif kind.startswith("str"):
        if isinstance(value, str | os.PathLike):
            return os.fsdecode(value)
        if (text := row.typed(value)) is not None:
            return text
    elif kind.startswith("bool") and type(value).__name__ in ("bool", "bool_"):
        return bool(value)
    elif kind.startswith("float") and is_number(value):
        return value
    elif kind.startswith("int") and (is_whole(value) or (is_number(value) and value == int(value))):
        return int(value)
    what, step = row.expected or next(EXPECTED[start] for start in EXPECTED if kind.startswith(start))
    raise UsageError(row.label, f"must be {what}, got {value!r}", step)
