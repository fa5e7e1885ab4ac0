"""A record's annotation as one ASCII JSON text: the exact copy for users of the container."""

from __future__ import annotations

import json
from typing import Any

from packer.errors import BadLabel
from packer.types import Record


def annotation_json(record: Record, classes: tuple[str, ...]) -> str:
    """All that is known of a record but its pixels (docs/formats.md lists the members).

    ASCII, so that undecodable bytes of names survive as escaped surrogates (``\\udcff`` is the byte ff).
    float32 numbers are written so that they read back exactly. What the annotation lacks is left out.
    Raises BadLabel where a number is not finite.
    """
    a = record.annotation
    members: dict[str, Any] = {
        "key": record.key,
        "path": path_text(record.path),
        "source_xxh3": record.source_xxh3.hex(),
        "height": record.height,
        "width": record.width,
        "channels": record.channels,
        "dtype": record.dtype,
        "encoding": record.encoding,
    }
    if a.label is not None:
        members["label"] = a.label
        members["class"] = class_name(a.label, classes)
    if a.boxes is not None:
        members["boxes"] = a.boxes.tolist()
    if a.box_labels is not None:
        members["box_labels"] = a.box_labels.tolist()
        members["box_classes"] = [class_name(i, classes) for i in members["box_labels"]]
    if a.landmarks is not None:
        members["landmarks"] = a.landmarks.tolist()
    if a.polygons is not None:
        members["polygons"] = [p.tolist() for p in a.polygons]
    if a.keypoints is not None:
        members["keypoints"] = a.keypoints.tolist()
    if a.box_fields:
        members["box_fields"] = dict(a.box_fields)
    if a.extras:
        members["extras"] = dict(a.extras)
    try:
        return json.dumps(members, allow_nan=False)
    except ValueError as error:
        raise BadLabel(record.path, f"an annotation that JSON cannot hold: {error}") from error


def path_text(path: bytes) -> str:
    """A path as text; bytes that are not UTF-8 become surrogates (the same in any locale)."""
    return path.decode("utf-8", "surrogateescape")


def class_name(label: int, classes: tuple[str, ...]) -> str:
    """Name of a class id; the number as text where the pack names no such class."""
    return classes[label] if 0 <= label < len(classes) else str(label)
