"""Annotations that packer wrote into a container whose pack.json is gone."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from packer.containers.base import Entry
from packer.errors import BadLabel
from packer.model.annotation import RawAnnotation
from packer.model.fields import FIELDS, Field
from packer.model.record_json import class_names, record_from_json
from packer.repack.formats.base import ForeignFile, Known, Numbered, Pixels, Rich, Row


def packer_rows(entries: Iterable[Entry], file: ForeignFile) -> Iterator[Row]:
    """Yield the images of a file that packer wrote."""
    for entry in entries:
        about = json.loads(entry.annotation or b"{}")
        pixels = None
        if about.get("encoding") == "raw":
            pixels = Pixels(about["height"], about["width"], about["channels"], about["dtype"])
        path = str(about.get("path", entry.key)).encode("utf-8", "surrogateescape")
        text = entry.annotation
        known = None if text is None else packer_annotation_of(text, f"{file.name}: {entry.key}")
        yield path, entry.offset, entry.size, known, pixels


def packer_annotation_of(text: bytes, origin: str) -> Known:
    """Return what packer's JSON says of an image."""
    try:
        annotation = record_from_json(text, b"").annotation
        names = class_names(text)
    except ValueError as error:
        return BadLabel(origin, f"its annotation cannot be read: {error}", "correct it")
    number = annotation.label
    label = None if number is None else Numbered(number, names.get(number) or str(number))
    extras = dict(annotation.extras) | ({} if annotation.tags is None else {"tags": annotation.tags.tolist()})
    if not extras and not any(f.says and getattr(annotation, f.name) is not None for f in FIELDS[1:]):
        return label
    there = [(field, getattr(annotation, field.name)) for field in FIELDS[1:] if field.name != "tags"]
    values: dict[str, Any] = {field.name: _raw(field, value) for field, value in there if field.has(value)}
    return Rich(label, RawAnnotation(origin=origin, **{**values, "extras": extras}), names)


def _raw(field: Field, value: Any) -> Any:
    """Return the value of a field as a source gives it; a class has its number as its name."""
    if not field.kind.is_numeric:
        return value
    return tuple(map(str, value.tolist())) if field.classes else _tuples(field.kind.to_json(value))


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
