"""Numbers as annotation files write them: strict ASCII decimals of a picture's size.

Python's own ``float`` also takes ``1_0``, ``nan``, ``1e400`` and full-width digits; none is a coordinate.
"""

from __future__ import annotations

import re

from packer.sources.paths import quoted

MOST_CLASSES = 65536
"""Class ids are 0..65535: more is a typing error, and must not cost memory."""

NUMBER = re.compile(rb"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
WHOLE = re.compile(rb"[0-9]+")
LONGEST = 64  # characters; 17 digits write every float64
LARGEST = 1e9
"""No picture is that large; beyond, sums could leave float32."""


def is_number(token: bytes) -> bool:
    """Whether `number` takes the token."""
    return len(token) <= LONGEST and bool(NUMBER.fullmatch(token)) and abs(float(token)) <= LARGEST


def number(token: bytes) -> float:
    """The number that the token writes, -1e9..1e9. Raises ValueError quoting it."""
    if not is_number(token):
        raise ValueError(f"{quoted(token)} is not a number")
    return float(token)


def exact_number(token: bytes) -> int | float:
    """As `number`, but an int where the token is written as one, so that it is stored as it stood."""
    value = number(token)
    return int(token) if re.fullmatch(rb"[+-]?[0-9]{1,15}", token) else value


def class_id(token: bytes) -> int | None:
    """The class id 0..65535 that the token writes, None where it writes none."""
    if len(token) > LONGEST or not WHOLE.fullmatch(token):
        return None
    value = int(token)
    return value if value < MOST_CLASSES else None
