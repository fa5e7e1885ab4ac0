"""The points of an object: their number, and the mirror image of each one, given by its index or by their names."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from packer.sources.paths import class_id

SIDES = re.compile(r"left|right|(?<![a-z])[lr](?![a-z])")
MOST_KEYPOINTS = 1 << 18
"""Of an image."""
OPPOSITE = {"left": "right", "right": "left", "l": "r", "r": "l"}


def check_count(objects: int, points: int) -> None:
    """Raise ValueError for more keypoints than an image has: a short file may give each object those of all others."""
    if objects * points > MOST_KEYPOINTS:
        raise ValueError(f"has {objects} objects with {points} keypoints each, more than {MOST_KEYPOINTS}")


def flip_index_of(names: Sequence[str]) -> tuple[int, ...] | None:
    """Return the index of the mirror image of each point: (1, 0, 2) for left_eye, right_eye, nose.

    Args:
        names: The names of the points, in order; left and right as words or parts of them, or as a single l or r.

    Returns:
        The indices, or None if the names have no sides, repeat, or lack an opposite.
    """
    lower = [name.strip().lower() for name in names]
    places = {name: i for i, name in enumerate(lower)}
    mirrored = [SIDES.sub(lambda match: OPPOSITE[match[0]], name) for name in lower]
    if len(places) < len(lower) or mirrored == lower or not places.keys() >= set(mirrored):
        return None
    return tuple(places[name] for name in mirrored)


def yolo_points(value: Any) -> tuple[int, int] | None:
    """Return ``kpt_shape`` of a data.yaml: the number of points, and of values per point. Raise ValueError."""
    if value is None:
        return None
    numbers = _numbers(value)
    if len(numbers) == 2 and numbers[0] > 0 and numbers[1] in (2, 3):
        return numbers[0], numbers[1]
    raise ValueError("kpt_shape: is not [points, 2] or [points, 3]")


def yolo_flip_index(loaded: dict[str, Any], points: int) -> tuple[int, ...] | None:
    """Return ``flip_idx`` of a data.yaml, or what follows from ``kpt_names``. Raise ValueError if it is invalid."""
    value = loaded.get("flip_idx")
    if value in (None, "", []):
        names = loaded.get("kpt_names")
        lists = list(names.values()) if isinstance(names, dict) else [names]  # by class
        found = {_of_names(texts, points) for texts in lists}
        return found.pop() if len(found) == 1 else None
    numbers = _numbers(value)
    if set(numbers) != set(range(points)) or len(numbers) != points:
        raise ValueError(f"flip_idx: does not have each number from 0 to {points - 1} once")
    if any(numbers[numbers[i]] != i for i in range(points)):
        raise ValueError("flip_idx: points do not change places in pairs: where 0 has 1, 1 must have 0")
    return tuple(numbers)


def _numbers(value: Any) -> list[int]:
    """Return a list of numbers, which YAML's base loader leaves as text; -1 for any other item, [] for no list."""
    found = [class_id(item.encode("utf-8", "replace")) for item in value] if _is_texts(value) else []
    return [-1 if number is None else number for number in found]


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _of_names(names: Any, points: int) -> tuple[int, ...] | None:
    return flip_index_of(names) if _is_texts(names) and len(names) == points else None
