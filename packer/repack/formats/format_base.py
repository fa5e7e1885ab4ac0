"""The contract of a format of other tools: one callable, made with its options and called with a file.

It yields a row for each image in the order of the file, and neither copies nor decodes an image. The class of a row is
a plain number or text, so that a million rows make few objects.
"""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

from packer.containers.container import Entry
from packer.errors import BadInput, BadLabel, UsageError, printable
from packer.model.annotation import Annotation, RawAnnotation
from packer.model.fields import FIELDS, Field
from packer.model.record_json import class_names, record_from_json

GET_AGAIN = "get the file again"
LABEL_NAMES = ("label", "labels", "cls", "class", "class_id", "class_index", "category", "category_id", "target", "y")
"""Names of fields that hold a class, the likeliest first."""
TEXT_NAMES = ("class_name", "class_text", "label_name", "category_name", "synset")
"""Names of fields that hold the name of the class whose number another field holds."""
MOST_TEXT_BYTES = 1 << 20
"""Labels of one image."""


class Pixels(NamedTuple):
    """The shape of a raw image."""

    height: int
    width: int
    channels: int
    dtype: str = "uint8"


class Numbered(NamedTuple):
    """The class of an image as a number, and its name."""

    number: int
    name: str


Class = int | str | Numbered | None
"""A class by its number (as packer's class ids, from 0; -1 is none), by its name, or both."""


class Rich(NamedTuple):
    """More than a class."""

    label: Class
    raw: RawAnnotation
    """The rest: its label is None, its classes of boxes are names, or numbers as text."""
    names: Mapping[int, str] = MappingProxyType({})
    """Names of the classes of boxes by their numbers."""


Known = Class | Rich | BadInput
"""What a file says of an image; or why that cannot be read."""
Row = tuple[bytes, int, int, Known, Pixels | None]
"""(path of the image, as the file names it; its first byte in the file; its bytes; its labels; shape if it is raw)"""


@dataclass(frozen=True, slots=True)
class FormatOptions:
    """What the user says about files of other tools.

    Args:
        columns: The field of each role (image, label, text, ...), where the format's own names do not apply.
        labels: A file with the labels, for formats that have none of their own.
    """

    columns: Mapping[str, str] = field(default_factory=dict)
    labels: str | None = None


class ForeignFile:
    """A mapped file. A context manager.

    Attributes:
        path: Its path.
        name: Its name, for messages.
        view: Its bytes.
        size: Its size.
    """

    def __init__(self, path: str) -> None:
        """Map the file. Raise OSError, or UsageError if it is empty."""
        self.path = path
        self.name = os.path.basename(path)
        with open(path, "rb") as file:
            self.size = os.fstat(file.fileno()).st_size
            if not self.size:
                raise UsageError(path, "is empty", GET_AGAIN)
            self.view = mmap.mmap(file.fileno(), self.size, access=mmap.ACCESS_READ)

    def __enter__(self) -> ForeignFile:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(BufferError):  # an array in a traceback may still refer to it
            self.view.close()

    def damaged(self, problem: str, next_step: str = GET_AGAIN) -> UsageError:
        """Return the error that the file cannot be read."""
        return UsageError(self.path, problem, next_step)


class Format(Protocol):
    """One format of other tools."""

    classes: tuple[str, ...] | None
    """Class names in the order of their numbers, if the file has them; known after the first row."""
    notes: list[str]
    """What the user should know; complete after the last row."""

    def __call__(self, file: ForeignFile) -> Iterator[Row]:
        """Yield the images of a file.

        Raises:
            UsageError: The file is damaged, or its images cannot be read in place.
        """


class FormatType(Protocol):
    """A format of another package, as the entry points of ``packer.formats`` name it: usually a class."""

    roles: tuple[str, ...]
    """The roles of ``--columns`` that it has."""

    def __call__(self, options: FormatOptions) -> Format:
        """Return a reader."""

    @staticmethod
    def recognizes(head: bytes, size: int) -> bool:
        """Return whether a file with these first bytes (at most 4,096) and this size is of the format."""


def whole_number(text: bytes) -> int | None:
    """Return a text of decimal digits as a number, None if it is something else."""
    text = text.strip()
    if len(text) < 19 and (text.isdigit() or (text[:1] == b"-" and text[1:].isdigit())):
        return int(text)
    return None


def class_of(value: Any, name: Any, origin: str) -> Known:
    """Return the class that a value of JSON or of a table, and perhaps a name beside it, stand for."""
    if type(value) is str and value.lstrip("-").isdecimal() and value.isascii() and len(value) < 19:
        value = int(value)
    if type(value) is float and value.is_integer() and abs(value) < 1 << 53:
        value = int(value)
    if value is None or value == "":
        return name if type(name) is str and name else None
    if type(value) is int:
        return Numbered(value, name) if type(name) is str and name else value
    if type(value) is str:
        return value
    given = printable(str(value)[:40])
    return BadLabel(
        origin, f"its class is {given}, neither a number nor a name", "name the field of the class: --columns"
    )


def json_of(text: bytes) -> Any:
    """Return JSON. Raise ValueError for other text, and for NaN and Infinity."""
    if len(text) > MOST_TEXT_BYTES:
        raise ValueError(f"it has {len(text)} bytes")
    try:
        return json.loads(text, parse_constant=_no_constant)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _no_constant(text: str) -> Any:
    raise ValueError(f"{text} is not a number")


def packer_rows(entries: Iterable[Entry], file: ForeignFile) -> Iterator[Row]:
    """Yield the images of a file that packer wrote."""
    for entry in entries:
        text, origin = entry.annotation, f"{file.name}: {entry.key}"
        if text is None:
            yield entry.key.encode("utf-8", "surrogateescape"), entry.offset, entry.size, None, None
            continue
        try:
            record = record_from_json(text, b"")
            known = _labels_in_annotation(record.annotation, text, origin)
        except ValueError as error:
            yield entry.key.encode("utf-8", "surrogateescape"), 0, 0, _unreadable(origin, error), None
            continue
        pixels = Pixels(*record.shape, record.dtype) if record.encoding == "raw" else None
        yield record.path, entry.offset, entry.size, known, pixels


def packer_annotation_of(text: bytes, origin: str) -> Known:
    """Return what packer's JSON says of an image."""
    try:
        return _labels_in_annotation(record_from_json(text, b"").annotation, text, origin)
    except ValueError as error:
        return _unreadable(origin, error)


def _unreadable(origin: str, error: ValueError) -> BadLabel:
    return BadLabel(origin, f"its annotation cannot be read: {error}", "correct it")


def _labels_in_annotation(annotation: Annotation, text: bytes, origin: str) -> Known:
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
