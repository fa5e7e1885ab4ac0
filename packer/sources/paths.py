"""Names and places in a tree: stems, folders, well-known folder names, and paths as text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from packer.errors import printable

IMAGE_FOLDERS = frozenset({b"images", b"image", b"imgs", b"img", b"jpegimages"})
"""Folders that hold the images of a VOC or YOLO set (compared in lower case): never a class."""
LABEL_FOLDERS = frozenset({b"annotations", b"annotation", b"labels", b"label", b"xml", b"xmls"})
"""Folders that hold the annotations of such a set (compared in lower case)."""
SPLIT_FOLDER = re.compile(
    rb"(?:train|trainval|training|val|valid|validation|test|testing)(?:[-_]?[0-9]{4})?", re.IGNORECASE
)
"""Folders that hold a part of a set: train, val, test2017."""


def as_text(path: bytes) -> str:
    """A path or name as text that gives the same bytes back, in any locale."""
    return path.decode("utf-8", "surrogateescape")  # os.fsdecode would depend on the locale


def as_bytes(path: str) -> bytes:
    """The inverse of `as_text`; also of what the shell hands over in a UTF-8 locale."""
    return path.encode("utf-8", "surrogateescape")


def folder_of(path: bytes) -> bytes:
    """The folder of a relative path, b"" for the root."""
    return path.rpartition(b"/")[0]


def stem_of(path: bytes) -> bytes:
    """The file name without folder and last extension: ``a/b.c.jpg`` -> ``b.c``."""
    name = path.rpartition(b"/")[2]
    stem, dot, _ = name.rpartition(b".")
    return stem if dot and stem else name


def extension_of(path: bytes) -> bytes:
    """The last extension in lower case with its dot, b"" for none: ``a/b.JPG`` -> ``.jpg``."""
    name = path.rpartition(b"/")[2]
    stem, dot, extension = name.rpartition(b".")
    return (dot + extension).lower() if dot and stem else b""


def named(paths: Iterable[bytes], limit: int = 3) -> str:
    """Some of these paths, for a message: ``a.xml, b.xml and 4 more``."""
    every = list(paths)
    text = ", ".join(printable(path) for path in every[:limit])
    return f"{text} and {len(every) - limit} more" if len(every) > limit else text


def spread(paths: Sequence[bytes], limit: int) -> Sequence[bytes]:
    """At most `limit` of these, from all over."""
    return paths[:: max(1, len(paths) // limit)][:limit]


def quoted(value: bytes | str) -> str:
    """A value out of a file, for a message: safe to print, at most 40 characters, in quotes."""
    text = value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else value
    text = printable(text if len(text) <= 40 else text[:37] + "...")
    return f'"{text}"'
