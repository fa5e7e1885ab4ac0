"""Tar files of WebDataset: the members of a sample have one name up to the first dot.

https://github.com/webdataset/webdataset: an image, with its class in ``cls`` (a number or a name), ``json`` or ``txt``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from packer.containers.annotation import packer_annotation
from packer.containers.npy import IMAGE_EXTENSIONS
from packer.errors import BadInput, BadLabel, printable
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
from packer.repack.formats.tar import tar_files
from packer.types import RawAnnotation

IMAGES = frozenset(extension.encode() for extension in IMAGE_EXTENSIONS)
TEXTS = frozenset((b"cls", b"class", b"label", b"txt", b"text", b"caption", b"json"))
CAPTIONS = frozenset((b"txt", b"text", b"caption"))
CLASS = (b"cls", b"class", b"label")

Image = tuple[bytes, int, int]
Sample = tuple[list[Image], dict[bytes, tuple[int, int]]]


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

    def __call__(self, file: ForeignFile) -> Iterator[Row]:
        view = file.view
        plain: dict[bytes, Known] = {}  # a class has few spellings
        for images, texts in self._samples(file):
            if len(texts) == 1 and (place := texts.get(b"cls")) is not None and self._label is None:
                text = view[place[0] : place[0] + min(place[1], MOST_TEXT_BYTES)]
                try:
                    known = plain[text]
                except KeyError:
                    known = class_text(text)
                    if len(plain) < 1 << 16:
                        plain[text] = known
            else:
                known = self._known(file, images, texts) if texts else None
            for path, start, size in images:
                yield path, start, size, known, None
        if self._captions:
            self.notes.append("texts are kept as fields of the images; --columns label=txt makes them classes")

    def _samples(self, file: ForeignFile) -> Iterator[Sample]:
        """Yield the images and labels of each sample that has an image, in the order of the samples' first members."""
        images_of, texts_of = self._images, self._texts
        last = b""
        images: list[Image] = []
        texts: dict[bytes, tuple[int, int]] = {}
        for name, start, size in tar_files(file):
            slash = name.rfind(b"/") + 1
            dot = name.find(b".", slash)
            if dot < 0:
                continue
            key = name[:dot]
            if key != last:
                if images:
                    yield images, texts
                last, images, texts = key, [], {}
            extension = name[dot + 1 :]
            if extension not in texts_of:
                extension = extension.lower()
                if extension.rpartition(b".")[2] in images_of or extension in images_of:
                    images.append((name, start, size))
                    continue
                if extension not in texts_of:
                    continue
            texts[extension] = start, size
        if images:
            yield images, texts

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
