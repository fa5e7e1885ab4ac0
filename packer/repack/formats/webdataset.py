"""Tar files of WebDataset: the members of a sample have one name up to the first dot.

https://github.com/webdataset/webdataset: an image, with its class in ``cls`` (a number or a name), ``json`` or ``txt``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from packer.containers.npy import IMAGE_EXTENSIONS
from packer.errors import BadInput, BadLabel, printable
from packer.files.tar_segments import tar_files
from packer.model.annotation import RawAnnotation
from packer.model.record_json import packer_annotation
from packer.repack.formats.base import (
    LABEL_NAMES,
    MOST_TEXT_BYTES,
    TEXT_NAMES,
    ForeignFile,
    FormatOptions,
    Known,
    Numbered,
    Rich,
    Row,
    class_of,
    json_of,
    whole_number,
)
from packer.repack.formats.packers import packer_annotation_of

IMAGES = frozenset(extension.encode() for extension in IMAGE_EXTENSIONS)
TEXTS = frozenset((b"cls", b"class", b"label", b"txt", b"text", b"caption", b"json"))
CAPTIONS = frozenset((b"txt", b"text", b"caption"))
CLASS = (b"cls", b"class", b"label")

IMAGE, OTHER = b"/", b"//"
"""Kinds of members beside the extensions of texts; no extension has a slash."""
MOST_SPELLINGS = 1 << 16

Image = tuple[bytes, int, int]


class WebDataset:
    """Reads the images of a tar, sample by sample.

    Of the roles, ``image`` is the extension of the images (``jpg``), ``label`` that of the class (``txt``), or a field
    of the JSON (``json:category``).
    """

    def __init__(self, options: FormatOptions) -> None:
        self.classes: tuple[str, ...] | None = None
        self.notes: list[str] = []
        asked = options.columns.get("label", "")
        self._field = asked[len("json:") :] if asked.startswith("json:") else None
        self._label = None if self._field or not asked else asked.lower().lstrip(".").encode()
        image = options.columns.get("image")
        self._images = frozenset((image.lower().lstrip(".").encode(),)) if image else IMAGES
        self._texts = TEXTS | ({self._label} if self._label else set())
        self._captions = 0
        self._kinds: dict[bytes, bytes] = {}
        self._plain: dict[bytes, Known] = {}
        """The classes of small files: they have few spellings."""

    def __call__(self, file: ForeignFile) -> Iterator[Row]:
        kinds = self._kinds
        last = b""
        images: list[Image] = []
        texts: dict[bytes, tuple[int, int]] = {}
        for member in tar_files(file.view, file.path):
            name, start, size = member
            key, _, extension = name.partition(b".")
            kind = kinds.get(extension)
            if kind is None:
                dot = name.find(b".", name.rfind(b"/") + 1)
                if dot < 0:
                    continue
                key, kind = name[:dot], self._kind(name[dot + 1 :])
            if key != last:
                if images:
                    known = self._class(file, images, texts) if texts else None
                    for path, at, count in images:
                        yield path, at, count, known, None
                    images = []
                last, texts = key, {}
            if kind is IMAGE:
                images.append(member)
            elif kind is not OTHER:
                texts[kind] = start, size
        known = self._class(file, images, texts) if texts and images else None
        for path, at, count in images:
            yield path, at, count, known, None
        if self._captions:
            self.notes.append("texts are kept as fields of the images; --columns label=txt makes them classes")

    def _kind(self, extension: bytes) -> bytes:
        """Return what the extension of a member says of it: IMAGE, OTHER, or the extension in `_texts`."""
        lower = extension.lower()
        kind = OTHER
        if extension in self._texts:
            kind = extension
        elif lower in self._images or lower.rpartition(b".")[2] in self._images:
            kind = IMAGE
        elif lower in self._texts:
            kind = lower
        if extension and b"/" not in extension and len(self._kinds) < MOST_SPELLINGS:
            self._kinds[extension] = kind
        return kind

    def _class(self, file: ForeignFile, images: list[Image], texts: dict[bytes, tuple[int, int]]) -> Known:
        """Return what a sample says of its images; quickly if that is a small file with the class."""
        if len(texts) > 1 or self._label is not None or b"cls" not in texts:
            return self._known(file, images, texts)
        start, size = texts[b"cls"]
        text = file.view[start : start + size] if size <= MOST_TEXT_BYTES else b""
        known = self._plain.get(text)
        if known is None:
            known = class_text(text)
            if len(self._plain) < MOST_SPELLINGS:
                self._plain[text] = known
        return known

    def _known(self, file: ForeignFile, images: list[Image], texts: dict[bytes, tuple[int, int]]) -> Known:
        """Return what the members of a sample say of its images."""
        origin = f"{file.name}: {printable(images[0][0])}"
        content: dict[bytes, bytes] = {}
        for extension, (start, size) in texts.items():
            if size > MOST_TEXT_BYTES:
                return BadLabel(origin, f"its {printable(extension)} has {size} bytes", "correct the label")
            content[extension] = file.view[start : start + size]
        extras: dict[str, Any] = {}
        fields: Any = {}
        if b"json" in content:
            text = content.pop(b"json")
            if packer_annotation(text) is not None:
                return packer_annotation_of(text, origin)
            try:
                fields = json_of(text)
            except ValueError as error:
                return BadLabel(origin, f"its json cannot be read: {error}", "correct the label")
            if not isinstance(fields, dict):
                return BadLabel(origin, "its json is not an object", "correct the label")
        known: Known = None
        chosen = (self._label,) if self._label else CLASS
        if self._field is None and (of_class := next((name for name in chosen if name in content), None)):
            known = class_text(content.pop(of_class))
        if fields:
            names = (self._field,) if self._field else () if self._label else LABEL_NAMES
            number = next((fields.pop(name) for name in names if name in fields), None)
            title = next((fields.pop(name) for name in TEXT_NAMES if type(fields.get(name)) is str), None)
            if known is None:
                known = class_of(number, title, origin)
            elif type(known) is int and title:
                known = Numbered(known, title)
        for extension in sorted(CAPTIONS & content.keys()):
            number = whole_number(content[extension]) if known is None and not self._field else None
            if number is None:
                extras[extension.decode()] = content[extension].decode("utf-8", "backslashreplace")
                self._captions += 1
            else:
                known = number
        extras.update(fields)
        return with_extras(known, extras, origin)


def class_text(text: bytes) -> Known:
    """Return the class that a small file holds."""
    text = text.strip()
    number = whole_number(text)
    return number if number is not None else text.decode("utf-8", "surrogateescape") or None


def with_extras(known: Known, extras: dict[str, Any], origin: str) -> Known:
    """Return a class with more fields of the image."""
    if not extras or isinstance(known, Rich | BadInput):
        return known
    return Rich(known, RawAnnotation(origin=origin, extras=extras))
