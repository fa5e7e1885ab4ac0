"""Annotations that packer wrote into a container whose pack.json is gone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from packer.containers.base import Entry
from packer.errors import BadLabel
from packer.model.annotation import Annotation, RawAnnotation
from packer.model.fields import FIELDS, Field
from packer.model.record_json import class_names, record_from_json
from packer.repack.formats.base import ForeignFile, Known, Numbered, Pixels, Rich, Row


def packer_rows(entries: Iterable[Entry], file: ForeignFile) -> Iterator[Row]:
    """Yield the images of a file that packer wrote."""
    for entry in entries:
        text, origin = entry.annotation, f"{file.name}: {entry.key}"
        if text is None:
            yield entry.key.encode("utf-8", "surrogateescape"), entry.offset, entry.size, None, None
            continue
        try:
            record = record_from_json(text, b"")
            known = _known(record.annotation, text, origin)
        except ValueError as error:
            yield entry.key.encode("utf-8", "surrogateescape"), 0, 0, _unreadable(origin, error), None
            continue
        pixels = Pixels(*record.shape, record.dtype) if record.encoding == "raw" else None
        yield record.path, entry.offset, entry.size, known, pixels


def packer_annotation_of(text: bytes, origin: str) -> Known:
    """Return what packer's JSON says of an image."""
    try:
        return _known(record_from_json(text, b"").annotation, text, origin)
    except ValueError as error:
        return _unreadable(origin, error)


def _unreadable(origin: str, error: ValueError) -> BadLabel:
    return BadLabel(origin, f"its annotation cannot be read: {error}", "correct it")


def _known(annotation: Annotation, text: bytes, origin: str) -> Known:
    names, number = class_names(text), annotation.label
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
