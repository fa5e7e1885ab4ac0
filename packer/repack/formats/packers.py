"""Annotations that packer wrote into a container whose pack.json is gone."""

from __future__ import annotations

from packer.containers.annotation import class_names, record_from_json
from packer.errors import BadLabel
from packer.repack.formats.base import Known, Numbered, Rich
from packer.types import RawAnnotation


def packer_annotation_of(text: bytes, origin: str) -> Known:
    """Return what packer's JSON says of an image."""
    try:
        annotation = record_from_json(text, b"").annotation
        names = class_names(text)
    except ValueError as error:
        return BadLabel(origin, f"its annotation cannot be read: {error}", "correct it")
    number = annotation.label
    label = None if number is None else Numbered(number, names.get(number) or str(number))
    boxes, points, keypoints = annotation.boxes, annotation.landmarks, annotation.keypoints
    polygons = annotation.polygons
    extras = dict(annotation.extras) | ({} if annotation.tags is None else {"tags": annotation.tags.tolist()})
    if boxes is None and points is None and not extras:
        return label
    ids = annotation.box_labels
    raw = RawAnnotation(
        origin=origin,
        boxes=None if boxes is None else tuple(map(tuple, boxes.tolist())),
        box_labels=None if ids is None else tuple(map(str, ids.tolist())),
        landmarks=None if points is None else tuple(map(tuple, points.tolist())),
        polygons=None if polygons is None else tuple(tuple(map(tuple, one.tolist())) for one in polygons),
        keypoints=None if keypoints is None else tuple(tuple(map(tuple, one)) for one in keypoints.tolist()),
        box_fields=annotation.box_fields,
        extras=extras,
    )
    return Rich(label, raw, names)
