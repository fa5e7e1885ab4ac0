"""LabelMe: the JSON of the program, also of X-AnyLabeling, and the XML of the older web tool, one file per image.

Coordinates are used unchanged. Single points are the landmarks of the image, in the order of their labels.
"""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from xml.etree.ElementTree import Element

from packer.errors import BadInput, BadLabel, printable
from packer.images.masks import color_codes, read_mask_header
from packer.images.pillow import decode_values
from packer.model.annotation import Json, Mask
from packer.sources.box_corners import corners, extent
from packer.sources.by_name import (
    MASK,
    Bitmap,
    ByNameSource,
    ImageEntry,
    LabelledObjects,
    files_like,
    read_json,
    whole_size,
)
from packer.sources.paths import as_bytes, coordinate, folder_of, name_in, number, spread, stem_of
from packer.sources.source import LOOKS, Choice, SourceOptions, Tree
from packer.sources.tree import MIB, read_file, read_head
from packer.sources.voc import of_labelme, parse_xml

WORDS = (b'"shapes"', b'"imagePath"', b'"imageData"')
HEAD_BYTES = 4096
DRAWN = re.compile(rb"(?:.*/)?(?:masks|scribbles)/", re.IGNORECASE)
"""Folders of the web tool beside Images/ and Annotations/, with a picture for each object that was scribbled."""
MOST_XML_BYTES = 16 * MIB
OBB_CORNERS = 4


class LabelMeSource(ByNameSource):
    """The files that LabelMe writes. The annotations of all images are held in memory."""

    def __init__(self, tree: Tree, options: SourceOptions) -> None:
        self._with_masks = options.instance_masks
        files: list[bytes] = []
        of_json = list(self._of_json(tree, files))
        of_web = list(xml_entries(tree, files, self._with_masks))
        self._has_web, entries = bool(of_web), [*of_json, *of_web]
        super().__init__(tree, options, entries, files)

    @staticmethod
    def recognize(tree: Tree) -> list[Choice]:
        """Return LabelMe if a few of the JSON or XML files are such."""
        for ending, is_such in ((b".json", _is_labelme), (b".xml", of_labelme)):
            looked_at = spread(files_like(tree, ending), LOOKS)
            if seen := [path for path in looked_at if is_such(read_head(tree, path, HEAD_BYTES, HEAD_BYTES))]:
                what = "have the keys of LabelMe" if ending == b".json" else "are of LabelMe's web tool"
                kind = ending[1:].decode().upper()
                return [Choice("labelme", f"{kind} files such as {printable(seen[0])} {what}")]
        return []

    def left_out(self, image: bytes) -> str | None:
        """Return why an image is not packed that the web tool drew."""
        return "a mask or a scribble" if self._has_web and DRAWN.match(image) else None

    def _of_json(self, tree: Tree, files: list[bytes]) -> Iterator[ImageEntry]:
        stems = {stem_of(image) for image in tree.images}
        for path in files_like(tree, b".json"):
            try:
                content = read_json(tree, path)
                if not isinstance(content, dict) or "shapes" not in content:
                    continue  # package.json, config.json
                yield self._entry(path, content, stems)
            except BadLabel as error:
                yield ImageEntry(printable(path), stem_of(path), error, folder_of(path))
            files.append(path)

    def _entry(self, path: bytes, content: dict[str, Any], stems: set[bytes]) -> ImageEntry:
        # the tool keeps the old name of an image that was renamed together with its file
        claimed = content.get("imagePath")
        name = stem_of(path) if stem_of(path) in stems or not isinstance(claimed, str) else as_bytes(claimed)
        objects: LabelledObjects | BadLabel = (shapes := LabelledObjects(with_masks=self._with_masks))
        size = whole_size(content.get("imageWidth"), content.get("imageHeight"))
        try:
            for shape in content["shapes"]:
                _add_shape(shapes, shape, size)
            shapes.labels += [flag for flag, there in (content.get("flags") or {}).items() if there is True]
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            objects = BadLabel(path, f"is not as LabelMe writes it: {error!r}", "fix the label")
        return ImageEntry(printable(path), name, objects, folder_of(path), None, size)


def _is_labelme(head: bytes) -> bool:
    return sum(word in head for word in WORDS) > 1


def _add_shape(objects: LabelledObjects, shape: dict[str, Any], size: tuple[int, int] | None) -> None:
    kind, name, points = name_in(shape.get("shape_type") or "polygon"), name_in(shape["label"]), shape["points"]
    fields = _fields(shape)
    if kind == "polygon":
        objects.add(name, polygon=points, fields=fields)
    elif kind == "rectangle":
        box = extent(points)
        if objects.with_masks:  # LabelMe fills it, too (labelme.utils.shape_to_mask)
            objects.shapes[len(objects.boxes)] = (corners(box),)
        objects.add(name, box, fields=fields)
    elif kind == MASK:
        left, top, *_ = (int(coordinate(value)) for value in extent(points))
        objects.add_mask(name, Bitmap(partial(_read_mask, shape["mask"]), (left, top), size), fields)
    elif kind == "rotation":
        if len(points) != OBB_CORNERS:
            raise ValueError(f"a turned rectangle has {len(points)} points, not {OBB_CORNERS}")
        objects.add(name, fields=fields, obb=points)
    elif kind == "point":
        ((x, y),) = points
        objects.points.append((name, (coordinate(x), coordinate(y))))
    else:
        objects.no_field[kind] += 1


def _fields(shape: dict[str, Any]) -> dict[str, Json]:
    """Return what a shape says besides its place and its class: its flags, and its attributes in X-AnyLabeling."""
    found: dict[str, Json] = {}
    if (group := shape.get("group_id")) is not None:
        name_in(group)
        found = {"group": group}
    found |= {name: int(there) for name, there in (shape.get("flags") or {}).items() if isinstance(there, bool)}
    found |= {name: value for name, value in (shape.get("attributes") or {}).items() if isinstance(value, str)}
    if isinstance(shape.get("difficult"), bool):
        found["difficult"] = int(shape["difficult"])
    if shape.get("description"):
        found["description"] = name_in(shape["description"])
    return found


def _read_mask(text: str) -> Mask:
    """Return the pixels of a mask: a picture in base64. Raise ValueError if it cannot be read."""
    data = b64decode(text, validate=True)
    try:
        values = decode_values(data, read_mask_header(data, True, len(data)))
    except BadInput as error:
        raise ValueError(f"its mask {error.problem}") from None
    return color_codes(values) if values.ndim == 3 else values


# The XML of the web tool (labelme.csail.mit.edu): <object> with a <polygon> of <pt>, or a <segm> with a mask.


def xml_entries(tree: Tree, files: list[bytes], with_masks: bool) -> Iterator[ImageEntry]:
    """Yield the entries of the files of the web tool, and add those to `files`."""
    for path in files_like(tree, b".xml"):
        try:
            if not of_labelme(read_head(tree, path, HEAD_BYTES, HEAD_BYTES)):
                continue
            yield _web_entry(tree, path, parse_xml(read_file(tree, path, MOST_XML_BYTES), path), with_masks)
        except BadLabel as error:
            yield ImageEntry(printable(path), stem_of(path), error, folder_of(path))
        files.append(path)


def _web_entry(tree: Tree, path: bytes, root: Element, with_masks: bool) -> ImageEntry:
    folder, name = _text(root, "folder"), _text(root, "filename")
    objects: LabelledObjects | BadLabel = (shapes := LabelledObjects(with_masks=with_masks))
    beside = re.sub(rb"(?:\A|(?<=/))Annotations/", b"Masks/", folder_of(path) + b"/")
    size = None
    try:
        sides = [_text(root, f"imagesize/{side}") for side in ("ncols", "nrows")]
        size = (int(number(sides[0].encode())), int(number(sides[1].encode()))) if all(sides) else None
        for thing in root.findall("object"):
            if _text(thing, "deleted") != "1":
                _add_web_object(shapes, thing, partial(_read_picture, tree, beside), size)
    except ValueError as error:
        objects = BadLabel(path, str(error), "fix the label")
    written = as_bytes(f"{folder}/{name}" if folder else name)
    return ImageEntry(printable(path), written, objects, folder_of(path), None, size, stem_of(path))


def _read_picture(tree: Tree, folder: bytes, name: str) -> Mask:
    """Return the pixels of a mask in a file. Raise ValueError if it cannot be read."""
    path = folder + as_bytes(name)
    try:
        data = read_file(tree, path, MOST_XML_BYTES)
        values = decode_values(data, read_mask_header(data, True, len(data)))
    except BadInput as error:
        raise ValueError(f"its mask {printable(path)} {error.problem}") from None
    return color_codes(values) if values.ndim == 3 else values


def _add_web_object(
    objects: LabelledObjects, thing: Element, read: Callable[[str], Mask], size: tuple[int, int] | None
) -> None:
    fields = {"occluded": int(_text(thing, "occluded") == "yes"), "attributes": _text(thing, "attributes")}
    points = [[number(_text(point, axis).encode()) for axis in "xy"] for point in thing.findall("polygon/pt")]
    name = _text(thing, "name")
    if not points and (mask := _text(thing, "segm/mask")):
        objects.add_mask(name, Bitmap(partial(read, mask), (0, 0), size), fields)
    elif not points:
        objects.no_field["object without points"] += 1
    elif _text(thing, "type") == "bounding_box":
        objects.add(name, extent(points), fields=fields)
    elif len(points) == 1:
        objects.points.append((name, (points[0][0], points[0][1])))
    elif len(points) == 2:
        objects.no_field["line"] += 1
    else:
        objects.add(name, polygon=points, fields=fields)


def _text(parent: Element, path: str) -> str:
    return (parent.findtext(path) or "").strip()
