"""Values of single options: how they are read, written, and made of what people type in Python."""

from __future__ import annotations

import re
from decimal import Decimal
from fractions import Fraction
from numbers import Integral, Real
from typing import Any

from packer.errors import UsageError, option, printable

LONGEST_TIMEOUT_S = 1e6
MOST_WORKERS = 1024  # each is a process of about 100 MB


def bad_allowed(max_bad: str, found: int) -> int:
    """Return how many of `found` inputs ``--max-bad`` allows to be bad: ``5`` or ``0.5%``."""
    match = re.fullmatch(r"(\d{1,18})|(\d{1,3}(?:\.\d{1,9})?)%", max_bad.strip(), re.ASCII)
    if match is None or (match[2] and Fraction(match[2]) > 100):
        problem = f"must be a number or a percentage such as 0.5%, got {printable(max_bad)}"
        raise UsageError(option("max_bad"), problem)
    return int(match[1]) if match[1] else int(found * Fraction(match[2]) / 100)  # 0.57% of 10,000 is 57, not 56


def parse_timeout(text: str) -> float | None:
    """Convert ``60`` or ``0.5`` to seconds, and ``none`` to None (no limit)."""
    if text.strip().lower() == "none":
        return None
    if re.fullmatch(r"\s*\d{1,9}(\.\d{1,9})?\s*", text, re.ASCII) is None:
        raise UsageError(option("decode_timeout"), f"must be a number of seconds, or none, got {printable(text)}")
    return float(text)


def timeout_text(seconds: Any) -> str:
    """Return seconds as ``--decode-timeout`` takes them; a manifest may hold any value."""
    return f"{seconds:.9f}".rstrip("0").rstrip(".") if isinstance(seconds, int | float) else str(seconds)


def parse_bytes(text: str) -> int | None:
    """Convert ``128MB``, ``1.5GiB`` or ``4096`` to bytes, and ``none`` to None (no limit).

    KB, MB and GB are powers of 1024: a shard of 128MB is 128 MiB.
    """
    if text.strip().lower() == "none":
        return None
    match = re.fullmatch(r"\s*(\d{1,15}(?:\.\d{1,9})?)\s*([kmgt]?)i?b?\s*", text, re.ASCII | re.IGNORECASE)
    size = int(float(match[1]) * 1024 ** " kmgt".index(match[2].lower() or " ")) if match else 0
    if size < 1:
        raise UsageError(option("shard_size"), f"must be a size such as 128MB, or none, got {printable(text)}")
    return size


def bytes_text(size: Any) -> str:
    """Return bytes as ``--shard-size`` takes them: ``128MB``; a manifest may hold any value."""
    for unit, power in (("GB", 30), ("MB", 20), ("KB", 10)):
        if isinstance(size, int) and size % (1 << power) == 0:
            return f"{size >> power}{unit}"
    return str(size)


def size_of(value: Any) -> str | None:
    """Return the text of ``resize=64`` or ``resize=(64, 64)``; None if it is not clear which side is which."""
    if is_whole(value):
        return str(value)
    if isinstance(value, list | tuple) and len(value) == 2 and value[0] == value[1]:
        return f"{value[0]}x{value[1]}"
    return None


def share_of(value: Any) -> str | None:
    """Return the text of ``max_bad=5`` or ``max_bad=0.01``; None for other numbers."""
    if is_whole(value):
        return str(value)
    if is_number(value) and 0 <= value < 1:
        return f"{round(Decimal(str(float(value))) * 100, 9).normalize():f}%" if value else "0"
    return None


def is_number(value: Any) -> bool:
    """Return whether it is a number; True and False are none."""
    return isinstance(value, Real) and not isinstance(value, bool)


def is_whole(value: Any) -> bool:
    """Return whether it is a whole number by its type: 5.0 is not."""
    return is_number(value) and isinstance(value, Integral)
