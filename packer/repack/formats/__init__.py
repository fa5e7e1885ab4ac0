"""Formats of other tools, which `packer adopt` reads in place: a new one is its file and two lines here.

A format is known by the bytes of a file, not by its name. Other packages add formats by entry points.
"""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from types import MappingProxyType
from typing import Any, NamedTuple

from packer.containers.container import Entry
from packer.errors import BadInput, BadLabel, UsageError, option, printable
from packer.files.array_files import StoredEntries
from packer.files.record_frames import masked_crc32c
from packer.model.annotation import Annotation, RawAnnotation
from packer.model.fields import FIELDS, Field
from packer.model.record_json import class_names, record_from_json
from packer.system.registry import Registry
from packer.system.storage import mapped

_HOMES = {
    "webdataset": "packer.repack.formats.keyed_formats:WebDataset",
    "tfrecord": "packer.repack.formats.tfrecord_format:TFRecord",
    "parquet": "packer.repack.formats.arrow_formats:Parquet",
    "arrow": "packer.repack.formats.arrow_formats:Arrow",
    "lmdb": "packer.repack.formats.keyed_formats:Lmdb",
    "hdf5": "packer.repack.formats.hdf5_format:Hdf5",
    "mds": "packer.repack.formats.chunk_formats:Mds",
    "litdata": "packer.repack.formats.chunk_formats:LitData",
    "npy": "packer.repack.formats.array_formats:Npy",
    "idx": "packer.repack.formats.array_formats:Idx",
    "zarr": "packer.repack.formats.array_formats:Zarr",
    "n5": "packer.repack.formats.array_formats:N5",
    "pth": "packer.repack.formats.array_formats:Pth",
    "recordio": "packer.repack.formats.keyed_formats:RecordIO",
}
_REGISTRY = Registry(_HOMES, "packer.formats")
"""Entry points of this group add formats: a name, and the class, which has `recognizes`."""
HEAD_BYTES = 4096
NPY = b"\x93NUMPY"
PICKLE = ("is a pickle, which packer never reads: it may run code", "write its images to files first")
REFUSED = (
    *((b"\x80" + bytes([protocol]), *PICKLE) for protocol in range(2, 6)),
    (b"\x1f\x8b", "is compressed by gzip", "decompress it: gunzip"),
    (b"\x28\xb5\x2f\xfd", "is compressed by zstd", "decompress it: zstd -d"),
    (b"BZh", "is compressed by bzip2", "decompress it: bunzip2"),
    (b"\xfd7zXZ", "is compressed by xz", "decompress it: unxz"),
    (b"PK\x03\x04", "is a zip archive", "packer build reads it"),
)
"""First bytes, what they are, and what to do."""
CIFAR = ((3073, 10), (3074, 20))
"""Bytes of a record of CIFAR-10 and CIFAR-100, and the number of classes in its first byte."""

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


class Masked(NamedTuple):
    """What a file says of an image, and where its mask is."""

    known: Known
    offset: int
    size: int


Row = tuple[bytes, int, int, Known | Masked, Pixels | None]
"""(path of the image, as the file names it; its first byte in the file; its bytes; its labels; shape if it is raw)"""
Pairs = Iterable[tuple[bytes, bytes]]
"""The bytes of the files of some images, b"" for raw ones, and of their masks."""


@dataclass(frozen=True, slots=True)
class FormatOptions:
    """What the user says about files of other tools.

    Args:
        columns: The field of each role (image, label, text, ...), where the format's own names do not apply.
        labels: A file with the labels, for formats that have none of their own.
        ignore_id: The value of pixels of masks that are of no class.
    """

    columns: Mapping[str, str] = field(default_factory=dict)
    labels: str | None = None
    ignore_id: int | None = None


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


class Format:
    """A format of other tools: made with its options and called with a file.

    It yields a row for each image in the order of the file, and neither copies nor decodes an image. The class of a
    row is a plain number or text, so that a million rows make few objects.
    """

    roles: tuple[str, ...] = ("image", "label")
    """The roles of ``--columns`` that it has."""
    has_labels = True
    """Whether its files have labels; if not, ``--labels`` names a file of them."""

    def __init__(self, options: FormatOptions) -> None:
        self.options, self.columns = options, options.columns
        self.classes: tuple[str, ...] | None = None
        """Class names in the order of their numbers, if the file has them; known after the first row."""
        self.titles: tuple[str, ...] = ()
        """Names of the classes that labels number, if the numbers say more than the names."""
        self.tags: tuple[str, ...] = ()
        """Names of the tags of each image."""
        self.notes: list[str] = []
        """What the user should know; complete after the last row."""
        self.obstacles: dict[str, str] = {}
        """Fields of masks that are left out, and why; see `choose_mask`."""

    @staticmethod
    def recognizes(head: bytes, size: int) -> bool:
        """Return whether a file with these first bytes and this size is of the format, if that is another package's."""
        return False

    def __call__(self, file: ForeignFile) -> Iterator[Row]:
        """Yield the images of a file.

        Raises:
            UsageError: The file is damaged, or its images cannot be read in place.
        """
        raise NotImplementedError

    def choose_mask(self, found: Mapping[str, Pairs]) -> str | None:
        """Return the field of the masks that are read where they are; None if there is none. Fill `obstacles`.

        Args:
            found: The fields of pictures that may be masks, the likeliest first.

        Raises:
            UsageError: The field that the user names is not there, or cannot be read.
        """
        asked = self.columns.get("mask")
        if asked == NO_MASKS:
            return None
        if asked is not None and asked not in found:
            there = ", ".join(map(printable, found)) or "none"
            raise UsageError(option("mask"), f"{printable(asked)} is not a field of pictures", f"there are: {there}")
        for name in found if asked is None else (asked,):
            obstacle = _obstacle(found[name], self.options.ignore_id, asked is not None)
            if not obstacle:
                self.notes.append(f"masks are those of {printable(name)}")
                return name
            self.obstacles[name] = obstacle
            if asked is not None:
                raise UsageError(option("mask", asked), obstacle, "packer build reads such masks")
        return None


NO_MASKS = "none"
"""In place of the field of the masks: they are left out."""


def _obstacle(pairs: Pairs, ignore_id: int | None, is_asked: bool) -> str:
    """Return why masks cannot be read where they are, by a few of them; empty if they can."""
    from packer.images.header import read_header
    from packer.images.masks import stored_obstacle
    from packer.images.pillow import decode_values
    from packer.sources.mask_files import BLACK_AND_WHITE, distinct_values, looks_like_mask
    from packer.sources.source import LOOKS

    seen: set[int] = set()
    looked, why = 0, list[str]()
    for image, mask in pairs:
        if looked >= LOOKS and not (len(seen) < len(BLACK_AND_WHITE) and seen <= BLACK_AND_WHITE):
            break  # masks that are all background do not say what the others have
        with suppress(BadInput):  # such a mask is listed
            header = read_header(mask)
            looked += 1
            if what := stored_obstacle(mask, header):
                why.append(f"a mask is {what}, which cannot be read in place")
            elif image and not is_asked and not looks_like_mask(mask, image):
                why.append("the pictures do not look like masks of the images")
            seen.update(distinct_values(decode_values(mask, header)))
    if why and 2 * len(why) >= looked:
        return why[0]
    if seen == BLACK_AND_WHITE and ignore_id is None:
        return "the masks are black and white, 0 and 255, which packer build makes the ids 0 and 1"
    return ""


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


def open_format(name: str, options: FormatOptions) -> Format:
    """Return a reader of this format."""
    found: Format = _REGISTRY.load(name)(options)
    return found


def check_roles(name: str, roles: Sequence[str], labels: bool) -> None:
    """Raise UsageError if the format has no such fields, or labels of its own: they would be passed over."""
    if not (roles or labels):
        return
    kind: type[Format] = _REGISTRY.load(name)
    for role in roles:
        if role not in kind.roles:
            step = f"its roles are {', '.join(kind.roles)}" if kind.roles else "leave it out"
            raise UsageError(option("columns"), f"{name} has no role {role}", step)
    if labels and kind.has_labels:
        raise UsageError(option("labels"), f"{name} holds its own labels", "say which they are: --columns=label=FIELD")


def recognize(path: str) -> str | UsageError:
    """Return the format of a file, or why it is none of them. Raise OSError if it cannot be read."""
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        head = file.read(HEAD_BYTES)
    for name, is_it in _SIGNS:
        if is_it(head, size):
            return name
    if head.startswith(b"PK\x03\x04") and (of_zip := _zip_of(path)) is not None:
        return of_zip
    for name in _REGISTRY.added:
        if _REGISTRY.load(name).recognizes(head, size):
            return name
    for start, problem, step in REFUSED:
        if head.startswith(start):
            return UsageError(path, problem, step)
    if size and any(size % record == 0 and head[0] < classes for record, classes in CIFAR):
        problem = "is CIFAR's binary: the colors of an image lie in three planes, not pixel by pixel"
        step = "save its images as .npy: rows[:, -3072:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)"
        return UsageError(path, problem, step)
    what = "is empty" if not size else f"begins with {head[:8]!r}, which is none of {', '.join(_REGISTRY.names)}"
    return UsageError(path, what, "give files of these formats" if size else "get it again")


def _zip_of(path: str) -> str | UsageError | None:
    """Return the format of a zip file of arrays; why it cannot be read; None for another zip file."""
    try:
        with mapped(path) as view, memoryview(view) as data:
            names = {name.rpartition("/")[2] for name in StoredEntries(path, data).names}
    except ValueError:
        return None
    if names & {".zarray", ".zgroup"}:
        return UsageError(path, "is Zarr of version 2", "write it again with zarr 3: zarr_format=3, compressors=None")
    return next((name for name, has in _ZIPS.items() if has in names), None)


_ZIPS = {"zarr": "zarr.json", "n5": "attributes.json", "pth": "data.pkl"}
"""Format of a zip file -> the name of a file that is in each of them."""


def _is_tar(head: bytes, size: int) -> bool:
    if head[257:262] == b"ustar":
        return True
    written = head[148:156].split(b"\0")[0].strip()  # v7 has only its checksum
    total = sum(head[:148]) + 8 * ord(" ") + sum(head[156:512])
    return (
        len(head) >= 512
        and len(written) < 8
        and written.strip(b"01234567") == b"" != written
        and int(written, 8) == total
    )


def _number(data: bytes) -> int:
    return int.from_bytes(data, "little")


def _is_chunk(head: bytes, size: int) -> bool:
    """Return whether a file begins with a number of samples, and where each of them begins."""
    count, first = _number(head[:4]), _number(head[4:8])
    if not (len(head) >= 12 and 0 < count < size // 4 and 8 + 4 * count <= first < size):
        return False
    bounds = [_number(head[at : at + 4]) for at in range(4, min(len(head) - 3, 8 + 4 * count), 4)]
    return all(a <= b for a, b in pairwise(bounds)) and bounds[-1] <= size


def _is_tfrecord(head: bytes, size: int) -> bool:
    return len(head) >= 12 and _number(head[8:12]) == masked_crc32c(head[:8])


_SIGNS = (
    ("webdataset", _is_tar),
    ("parquet", lambda head, size: head[:4] == b"PAR1"),
    ("arrow", lambda head, size: head[:6] == b"ARROW1" or (head[:4] == b"\xff" * 4 and 0 < _number(head[4:8]) < size)),
    ("lmdb", lambda head, size: head[16:20] == b"\xde\xc0\xef\xbe"),
    ("hdf5", lambda head, size: any(head[at : at + 8] == b"\x89HDF\r\n\x1a\n" for at in (0, 512, 1024, 2048))),
    ("npy", lambda head, size: head[:6] == NPY),
    ("idx", lambda head, size: head[:3] == b"\0\0\x08" and head[3:4] in b"\1\3\4" and size > 8),
    ("litdata", lambda head, size: _is_chunk(head, size) and _number(head[4:8]) == 8 + 4 * _number(head[:4])),
    ("mds", _is_chunk),
    ("recordio", lambda head, size: head[:4] == b"\x0a\x23\xd7\xce"),
    ("tfrecord", _is_tfrecord),
)
"""Format -> whether a file with this head, of this size, is of it."""
