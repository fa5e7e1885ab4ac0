"""The parts of records besides their images: names, how they are stored, and their columns in an index."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import fields
from typing import Any

from packer.model.annotation import Annotation, Part, PartSpec, Record

IMAGE = "image"
"""The name of the image among the parts of a record."""
KINDS = ("bytes",)
"""What a part can be: bytes are stored as they are."""
ENCODINGS = ("bytes",)
EXTENSIONS = {"bytes": "bin"}
"""File extension of a part by its encoding."""
MISSING = (0, -1)
"""The place (offset, size) of a part that a record lacks."""
COLUMNS = ("offset", "size", "crc32c", "encoding")
"""Columns of an index for each part: ``NAME_offset``, ..."""
NAME = re.compile(r"[a-z][a-z0-9_]{0,30}")
MOST_PARTS = 32
_FIELDS = [field.name for field in fields(Annotation)]
RESERVED = {
    *_FIELDS,
    *(name.removesuffix("s") for name in _FIELDS),
    *("annotation", "annotations", "box", "channels", "class", "classes", "cls", "crc32c", "dtype", "encoding"),
    *("filename", "format", "height", "image", "images", "json", "key", "keys", "labels", "object", "objects"),
    *("offset", "path", "size", "source_id", "width"),
    *("avif", "bmp", "gif", "j2k", "jp2", "jpeg", "jpg", "npy", "pbm", "pgm", "png", "pnm", "ppm", "tif", "tiff"),
    *("webp",),
}
"""Names that containers or indexes use for something else, and extensions of images."""
ENDINGS = ("_offset", "_offsets", "_size", "_crc32c", "_encoding", "_shapes")


def check_name(name: str) -> None:
    """Raise ValueError if a part cannot have this name in every container."""
    if not NAME.fullmatch(name) or name in RESERVED or name.endswith(ENDINGS) or name in EXTENSIONS.values():
        problem = "is not a name for a part: a word of a-z, 0-9 and _ that has no other meaning in a pack"
        raise ValueError(f"{name!r} {problem}")


def check_names(names: Collection[str]) -> None:
    """Raise ValueError if records of a pack cannot have these parts."""
    if len(names) > MOST_PARTS or len(set(names)) < len(names):
        raise ValueError(f"{len(names)} parts of a record, some of one name or more than {MOST_PARTS}")
    for name in names:
        check_name(name)


def names_in(columns: Iterable[str]) -> list[str]:
    """Return the names of the parts that an index with these columns has."""
    return [name.removesuffix("_offset") for name in columns if name.endswith("_offset")]


def key_of(key: bytes | memoryview, name: str) -> bytes:
    """Return what the checksum of a part begins with, so that parts that were swapped are detected."""
    return bytes(key) if name == IMAGE else bytes(key) + b"." + name.encode("ascii")


def column_of(name: str, what: str) -> str:
    """Return the column of an index with `what` (one of COLUMNS) of a part, or of the image."""
    return what if name == IMAGE else f"{name}_{what}"


def parts_of(record: Record, specs: Iterable[PartSpec]) -> Mapping[str, Any]:
    """Return the parts of a record by name, sorted. Raise ValueError if the pack has no such part."""
    found = {part.name: part for part in in_order(record)}
    if unknown := found.keys() - {spec.name for spec in specs}:
        raise ValueError(f"record {record.key} has the parts {sorted(unknown)}, which were not planned")
    return found


def in_order(record: Record) -> list[Part]:
    """Return the parts of a record as they are stored: sorted by name."""
    return sorted(record.parts, key=lambda part: part.name)


def facts_in(members: Mapping[str, Any]) -> Iterator[tuple[str, str, int]]:
    """Yield name, encoding and size of each part that the JSON of an annotation lists. Raise ValueError."""
    listed = members.get("parts", {})
    if not isinstance(listed, dict):
        raise ValueError("the parts of an annotation are no object")
    check_names(listed)
    for name, facts in listed.items():
        if not isinstance(facts, dict) or facts.get("encoding") not in ENCODINGS:
            raise ValueError(f"the part {name} of an annotation has no known encoding")
        if type(facts.get("bytes")) is not int or not 0 <= facts["bytes"] < 1 << 48:
            raise ValueError(f"the part {name} of an annotation has no size")
        yield name, facts["encoding"], facts["bytes"]
