"""Converts a record's annotation to ASCII JSON and back: an exact copy for users of the container."""

from __future__ import annotations

import json
from collections.abc import Mapping
from json.encoder import encode_basestring_ascii as quoted
from typing import Any

from packer.errors import BadLabel
from packer.model.annotation import Annotation, Part, Record, facts_in, in_order
from packer.model.fields import FIELDS, IN_JSON

_DTYPES = ("uint8", "uint16")
_MAX_SIDE = 1 << 31


def annotation_json(record: Record, classes: tuple[str, ...]) -> str:
    """Return everything about a record except its pixels, as JSON (docs/formats.md lists the members).

    The text is ASCII, so that undecodable bytes of names survive as escaped surrogates (``\\udcff`` is the byte ff).
    float32 numbers are written so that they read back exactly. Missing fields are left out.

    Raises:
        BadLabel: A number is not finite.
    """
    # The common members are formatted here, because json.dumps would take longer than decoding a small image.
    text = (
        f'{{"key": {quoted(record.key)}, "path": {quoted(path_text(record.path))}, '
        f'"source_xxh3": "{record.source_xxh3.hex()}", "height": {record.height}, "width": {record.width}, '
        f'"channels": {record.channels}, "dtype": "{record.dtype}", "encoding": "{record.encoding}"'
    )
    a = record.annotation
    if a.label is not None:
        text += f', "label": {a.label}, "class": {quoted(class_name(a.label, classes))}'
    members = _members(record, classes)
    if not members:
        return text + "}"
    try:
        return f"{text}, {json.dumps(members, allow_nan=False)[1:]}"
    except ValueError as error:
        raise BadLabel(record.path, f"an annotation that JSON cannot hold: {error}") from error


def _members(record: Record, classes: tuple[str, ...]) -> dict[str, Any]:
    """Return the members of all fields but the class of the image, and of the parts."""
    a, members = record.annotation, dict[str, Any]()
    for field in IN_JSON[1:]:
        value = getattr(a, field.name)
        if field.has(value):
            members[field.name] = field.kind.to_json(value)
            if field.classes:
                members[field.classes] = [class_name(i, classes) for i in members[field.name]]
    if record.parts:
        parts = in_order(record)
        members["parts"] = {part.name: {"encoding": part.encoding, "bytes": len(part.data)} for part in parts}
    return members


def part_sizes(text: bytes | None) -> dict[str, int]:
    """Return the size of each part that packer's annotation of a record lists; empty if it is of another tool.

    Raises:
        ValueError: It is not as `annotation_json` writes it.
    """
    if text is None or b'"parts": {' not in text:
        return {}
    try:
        return {name: size for name, _, size in facts_in(json.loads(text))}
    except RecursionError as error:
        raise ValueError("an annotation that is nested too deeply") from error


def path_text(path: bytes) -> str:
    """Return a path as text, in any locale; bytes that are not UTF-8 become surrogates."""
    return path.decode("utf-8", "surrogateescape")


def class_name(label: int, classes: tuple[str, ...]) -> str:
    """Return the name of a class id, or the number as text if the class has no name."""
    return classes[label] if 0 <= label < len(classes) else str(label)


def packer_annotation(text: bytes | None) -> bytes | None:
    """Return `text` if it is an annotation of packer; None if it is the JSON of another tool."""
    return text if text is not None and text.startswith(b'{"key": "') else None


def record_from_json(text: bytes, data: bytes, parts: Mapping[str, bytes] | None = None) -> Record:
    """Return the record whose annotation is the JSON `text`, with these bytes of its image and of its parts.

    Raises:
        ValueError: The text was not written by `annotation_json`.
    """
    try:
        record = _record(json.loads(text), data, parts or {})
    except (KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise ValueError(f"not an annotation of packer: {error!r}") from error
    if min(record.shape) < 1 or max(record.shape) >= _MAX_SIDE or record.dtype not in _DTYPES:
        raise ValueError(f"not an annotation of packer: {record.dtype} pixels of shape {record.shape}")
    if len(record.source_xxh3) != 16:
        raise ValueError("not an annotation of packer: a source_xxh3 of another length")
    return record


def class_names(text: bytes) -> dict[int, str]:
    """Return the class names in an annotation, by id. Raise ValueError if it was not written by `annotation_json`."""
    try:
        members = json.loads(text)
        names = dict(zip(members.get("box_labels", ()), members.get("box_classes", ()), strict=False))
        if "label" in members:
            names[members["label"]] = members["class"]
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"not an annotation of packer: {error!r}") from error
    if not all(type(number) is int and isinstance(name, str) for number, name in names.items()):
        raise ValueError("not an annotation of packer: a class without a name")
    return names


def _record(members: dict[str, Any], data: bytes, parts: Mapping[str, bytes]) -> Record:
    there = {field.name: field.kind.of_json(members[field.name]) for field in FIELDS if field.name in members}
    return Record(
        key=str(members["key"]),
        data=data,
        encoding=str(members["encoding"]),
        height=int(members["height"]),
        width=int(members["width"]),
        channels=int(members["channels"]),
        dtype=str(members["dtype"]),
        annotation=Annotation(**there),
        path=str(members["path"]).encode("utf-8", "surrogateescape"),
        source_xxh3=bytes.fromhex(members["source_xxh3"]),
        parts=tuple(Part(name, parts[name], encoding) for name, encoding, _ in facts_in(members) if name in parts),
    )
