"""The table of a build's inputs: its columns, and annotations as text in it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer.errors import StorageError
from packer.types import Annotation, Float32

ROWS_A_CHUNK = 8192

SCHEMA = pa.schema(
    [
        ("path", pa.binary()),
        ("bytes", pa.int64()),
        ("height", pa.int32()),
        ("width", pa.int32()),
        ("channels", pa.int8()),
        ("wide", pa.bool_()),
        ("annotation", pa.string()),
    ]
)
"""height, width, channels of the decoded, upright image; `wide` for uint16."""


def write_table(table: Any, path: str) -> None:
    """Write the table for the workers to map."""
    try:
        with open(path, "xb") as file, pa.ipc.new_file(file, SCHEMA) as writer:
            writer.write_table(table, max_chunksize=ROWS_A_CHUNK)
    except OSError as error:
        raise StorageError(path, f"cannot be written: {error.strerror or error}") from None


def fields_of(annotation: Annotation) -> Iterator[str]:
    """Names of the fields that the annotation has."""
    for name in ("label", "boxes", "box_labels", "landmarks", "polygons", "keypoints"):
        if getattr(annotation, name) is not None:
            yield name
    for name in annotation.box_fields:
        yield f"box_fields.{name}"
    if annotation.extras:
        yield "extras"


def annotation_to_text(annotation: Annotation) -> str:
    """JSON of an annotation with the table's class ids; `annotation_from_text` gives it back exactly."""
    values: dict[str, Any] = {}
    if annotation.label is not None:
        values["label"] = annotation.label
    for name in ("boxes", "box_labels", "landmarks", "keypoints"):
        value = getattr(annotation, name)
        if value is not None:
            values[name] = value.tolist()
    if annotation.polygons is not None:
        values["polygons"] = [polygon.tolist() for polygon in annotation.polygons]
    if annotation.box_fields:
        values["box_fields"] = dict(annotation.box_fields)
    if annotation.extras:
        values["extras"] = dict(annotation.extras)
    return json.dumps(values, allow_nan=False, separators=(",", ":"))


def annotation_from_text(text: str, class_ids: NDArray[np.int64]) -> Annotation:
    """The annotation with final class ids."""
    if text == "{}":
        return Annotation()
    values = json.loads(text)
    label, labels = values.get("label"), values.get("box_labels")
    polygons, keypoints = values.get("polygons"), values.get("keypoints")
    return Annotation(
        label=None if label is None else int(class_ids[label]),
        boxes=_array(values.get("boxes"), 4),
        box_labels=None if labels is None else class_ids[np.array(labels, np.int64)],
        landmarks=_array(values.get("landmarks"), 2),
        polygons=None if polygons is None else tuple(np.array(p, np.float32).reshape(-1, 2) for p in polygons),
        keypoints=None if keypoints is None else np.array(keypoints, np.float32).reshape(len(keypoints), -1, 3)
        if keypoints else np.zeros((0, 0, 3), np.float32),
        box_fields={name: tuple(v) for name, v in values.get("box_fields", {}).items()},
        extras=values.get("extras", {}),
    )  # fmt: skip


def _array(rows: Any, width: int) -> Float32 | None:
    return None if rows is None else np.array(rows, np.float32).reshape(-1, width)
