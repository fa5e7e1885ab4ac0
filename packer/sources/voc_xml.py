"""Parses a Pascal VOC XML file into an annotation with all fields.

Format: the VOC2012 development kit, section 5. Unknown elements are ignored, and elements may be in any order.
"""

from __future__ import annotations

import codecs
import re
import warnings
from collections.abc import Sequence
from xml.etree.ElementTree import Element, ParseError

from defusedxml.common import DefusedXmlException
from defusedxml.ElementTree import fromstring

from packer.errors import BadLabel
from packer.model.annotation import Json, RawAnnotation
from packer.sources.paths import as_text, exact_number, quoted

Box = tuple[float, float, float, float]
EDGES = ("xmin", "ymin", "xmax", "ymax")
FLAGS = ("difficult", "truncated", "occluded")
FIX = "fix the label"

# expat does not know these encodings and Python's parser refuses them, but labels from East Asia use them
MULTI_BYTE = {
    codecs.lookup(name).name: name
    for name in ("gb18030", "big5hkscs", "cp932", "shift_jis", "euc_jp", "euc_kr", "cp949", "iso2022_jp")
} | {"gb2312": "gb18030", "gbk": "gb18030", "big5": "big5hkscs"}  # the supersets that are used in practice
DECLARED = re.compile(rb"""\A(<\?xml[^>]{0,200}?)\sencoding\s*=\s*["']([A-Za-z0-9._-]{1,40})["']""")


def parse_xml(data: bytes, path: bytes) -> Element:
    """Return the root element. Raise BadLabel if it is not XML, or has a DTD (entity bombs, file access)."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # some codecs that an XML may name warn about its bytes
            root: Element = fromstring(_known_to_expat(data), forbid_dtd=True)
            return root
    except DefusedXmlException:
        raise BadLabel(path, "has a DTD or entities, which may hide an attack", "remove its <!DOCTYPE") from None
    except (ParseError, ValueError, LookupError) as error:  # LookupError: an unknown encoding
        raise BadLabel(path, f"is not readable as XML: {error}", FIX) from None


def _known_to_expat(data: bytes) -> bytes:
    match = DECLARED.match(data)
    if match is None:
        return data
    try:
        codec = MULTI_BYTE.get(codecs.lookup(match[2].decode("ascii")).name)
    except LookupError:
        return data
    if codec is None:
        return data
    return match[1] + data[match.end() :].decode(codec).encode()  # without `encoding=` it is UTF-8


def read_annotation(root: Element, path: bytes) -> RawAnnotation:
    """Return the annotation in an ``<annotation>`` element.

    VOC pixels are counted from 1 and its edges are inclusive: the box (xmin, ymin, xmax, ymax) covers
    (xmin - 1, ymin - 1, xmax, ymax) in the frame of `packer.model.annotation`. The original numbers are kept in the box
    field ``voc_bndbox``.

    Raises:
        BadLabel: It is invalid; the error names the file and the object's number.
    """
    if root.tag != "annotation":
        raise BadLabel(path, f"its root is <{_tag(root)}>, not <annotation>", "move it away from the image")
    boxes: list[Box] = []
    names: list[str] = []
    fields: dict[str, list[Json]] = {name: [] for name in (*FLAGS, "pose", "voc_bndbox")}
    try:
        size = _size(root)
    except ValueError as error:
        raise BadLabel(path, str(error), FIX) from None
    for count, thing in enumerate(root.findall("object"), 1):
        try:
            names.append(_text(thing, "name", required=True))
            for flag in FLAGS:
                fields[flag].append(_whole(thing, flag))
            fields["pose"].append(_text(thing, "pose") or None)
            written = _edges(thing)
        except ValueError as error:
            raise BadLabel(path, f"object {count}: {error}", FIX) from None
        fields["voc_bndbox"].append(written)
        boxes.append(_covered(written))
    return RawAnnotation(
        origin=as_text(path),
        boxes=tuple(boxes),
        box_labels=tuple(names),
        box_texts=tuple(", ".join(map(str, edges)) for edges in fields["voc_bndbox"]),
        box_fields={name: tuple(values) for name, values in fields.items()},
        image_size=size,
    )


def claimed_names(root: Element) -> list[str]:
    """Return the file names in ``<filename>`` and ``<path>`` without folders, for comparison only."""
    claims = (root.findtext(tag, "").strip() for tag in ("filename", "path"))
    return [re.split(r"[/\\]", claim)[-1] for claim in claims if claim]


def _covered(written: Sequence[float]) -> Box:
    xmin, ymin, xmax, ymax = written
    # equal edges are mistakes, not objects one pixel wide: keep them without area, so that --boxes applies
    right = xmax if xmax > xmin else xmax - 1
    bottom = ymax if ymax > ymin else ymax - 1
    return float(xmin - 1), float(ymin - 1), float(right), float(bottom)


def _edges(thing: Element) -> tuple[float, ...]:
    box = _only(thing, "bndbox")
    if box is None:
        raise ValueError("it has no <bndbox>")
    return tuple(_number(box, edge) for edge in EDGES)


def _size(root: Element) -> tuple[int, int] | None:
    size = _only(root, "size")
    if size is None:
        return None
    width, height = (_whole(size, tag) for tag in ("width", "height"))
    return (width, height) if width and height else None  # tools that do not know the size write 0


def _whole(parent: Element, tag: str) -> int:
    """Return the whole number in a tag; 0 if the tag is absent or empty."""
    text = _text(parent, tag)
    if not re.fullmatch(r"(?:[0-9]{1,9}(?:\.0{0,9})?)?", text):
        raise ValueError(f"<{tag}> {quoted(text)} is not a whole number")
    return int(float(text or "0"))


def _number(parent: Element, tag: str) -> float:
    text = _text(parent, tag, required=True)
    try:
        return exact_number(text.encode("utf-8", "surrogatepass"))
    except ValueError as error:
        raise ValueError(f"<{tag}> {error}") from None


def _text(parent: Element, tag: str, required: bool = False) -> str:
    """Return the stripped text of a tag that may occur once; "" if it is absent or empty and that is allowed."""
    child = _only(parent, tag)
    text = (child.text or "").strip() if child is not None else ""
    if required and not text:
        raise ValueError(f"it has no <{tag}>" if child is None else f"its <{tag}> is empty")
    return text


def _only(parent: Element, tag: str) -> Element | None:
    found = parent.findall(tag)
    if len(found) > 1:
        raise ValueError(f"it has {len(found)} <{tag}>")
    return found[0] if found else None


def _tag(element: Element) -> str:
    return quoted(element.tag)[1:-1]
