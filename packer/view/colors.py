"""A colour for each class, the same in the page and in the contact sheet."""

from __future__ import annotations


def colour_of(class_id: int | None) -> str:
    """CSS colour of a class id; gray for none. Neighbouring ids get hues far apart (static/draw.js has the same)."""
    if class_id is None or class_id < 0:
        return "hsl(0 0% 60%)"
    hue = (class_id * 137.508 + 205) % 360
    return f"hsl({hue:.0f} 75% 52%)"
