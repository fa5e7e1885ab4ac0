"""Turns what a container holds of a record back into the record: the way back of annotation_json."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from packer.types import Annotation, Record

_DTYPES = ("uint8", "uint16")
_MOST_SIDE = 1 << 31


def record_from_json(text: bytes, data: bytes) -> Record:
    """The record whose annotation is the JSON `text` and whose image is `data`.

    Raises ValueError where the text is none that `annotation_json` writes.
    """
    try:
        members = json.loads(text)
        record = _record(members, data)
    except (KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise ValueError(f"no annotation of packer: {error!r}") from error
    if min(record.shape) < 1 or max(record.shape) >= _MOST_SIDE or record.dtype not in _DTYPES:
        raise ValueError(f"no annotation of packer: {record.dtype} pixels of shape {record.shape}")
    if len(record.source_xxh3) != 16:
        raise ValueError("no annotation of packer: a source_xxh3 of another length")
    return record


def class_names(text: bytes) -> dict[int, str]:
    """The classes that an annotation names, by id."""
    members = json.loads(text)
    names = dict(zip(members.get("box_labels", ()), members.get("box_classes", ()), strict=False))
    if "label" in members:
        names[members["label"]] = members["class"]
    return names


def _record(members: dict[str, Any], data: bytes) -> Record:
    polygons = members.get("polygons")
    keypoints = members.get("keypoints")
    annotation = Annotation(
        label=members.get("label"),
        boxes=_points(members.get("boxes"), 4),
        box_labels=None if (ids := members.get("box_labels")) is None else np.array(ids, np.int64),
        landmarks=_points(members.get("landmarks"), 2),
        polygons=None if polygons is None else tuple(_some_points(p, 2) for p in polygons),
        keypoints=None if keypoints is None else _keypoints(keypoints),
        box_fields={name: tuple(values) for name, values in members.get("box_fields", {}).items()},
        extras=members.get("extras", {}),
    )
    return Record(
        key=str(members["key"]),
        data=data,
        encoding=str(members["encoding"]),
        height=int(members["height"]),
        width=int(members["width"]),
        channels=int(members["channels"]),
        dtype=str(members["dtype"]),
        annotation=annotation,
        path=str(members["path"]).encode("utf-8", "surrogateescape"),
        source_xxh3=bytes.fromhex(members["source_xxh3"]),
    )


def _points(rows: Any, width: int) -> Any:
    return None if rows is None else _some_points(rows, width)


def _some_points(rows: Any, width: int) -> Any:
    return np.array(rows, np.float32).reshape(len(rows), width)


def _keypoints(rows: Any) -> Any:
    return np.array(rows, np.float32).reshape(len(rows), len(rows[0]) if rows else 0, 3)
