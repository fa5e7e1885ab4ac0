"""Datumaro's own JSON, also as CVAT exports it: ``annotations/SUBSET.json`` and ``images/SUBSET/1.jpg``.

Coordinates are continuous, from the top left corner. (Datumaro, plugins/data_formats/datumaro/exporter.py.)
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from packer.errors import BadLabel, UsageError, printable
from packer.model.annotation import Json, Point
from packer.sources.box_corners import turned
from packer.sources.by_name import (
    MASK,
    MISTAKES,
    ImageEntry,
    LabelledObjects,
    place_point_sets,
    read_json,
    shared_json,
    whole_size,
)
from packer.sources.coco_objects import mask_box, read_rle, rle_text
from packer.sources.paths import as_bytes, as_text, coordinate, folder_of, name_in, stem_of
from packer.sources.source import Tree
from packer.sources.tree import needed, read_head

HEAD_BYTES = 1 << 16
OF_DATUMARO = re.compile(rb'"categories"\s*:\s*\{\s*"label"\s*:\s*\{\s*"labels"\s*:|"dm_format_version"')
NO_SUBSET = b"default"


def datumaro_files(tree: Tree) -> list[bytes]:
    """Return the JSON files of Datumaro."""
    return [path for path in shared_json(tree) if OF_DATUMARO.search(read_head(tree, path, HEAD_BYTES))]


def datumaro_entries(tree: Tree, files: Sequence[bytes], masks: bool) -> list[ImageEntry]:
    """Return the entries of all files. Raise UsageError if one cannot be read."""
    found = [entry for path in files for entry in _entries(tree, path, masks)]
    place_point_sets(entry.objects for entry in found if isinstance(entry.objects, LabelledObjects))
    return found


def _entries(tree: Tree, path: bytes, masks: bool) -> Iterator[ImageEntry]:
    try:
        with needed(path):
            content = read_json(tree, path)
        names = [name_in(one["name"]) for one in content["categories"].get("label", {"labels": ()})["labels"]]
        items = list(content["items"])
    except MISTAKES as error:
        raise UsageError(path, f"is not as Datumaro writes it: {error!r}", "export it again") from None
    split = None if stem_of(path) == NO_SUBSET else as_text(stem_of(path))
    for number, item in enumerate(items, 1):
        origin, name, size = f"{printable(path)}: item {number}", b"", None
        objects: LabelledObjects | BadLabel = (found := LabelledObjects(with_masks=masks))
        other = b""
        try:
            media = item.get("image") or item.get("media") or {}
            other = as_bytes(item["id"])
            name = as_bytes(media.get("path") or item["id"])
            height, width = media.get("size") or (None, None)
            size = whole_size(width, height)
            for annotation in item["annotations"]:
                _add(found, annotation, names)
            found.extras = dict(_plain(item.get("attr") or {}))
        except MISTAKES as error:
            objects = BadLabel(origin, f"is not as Datumaro writes it: {error!r}", "fix the item")
        yield ImageEntry(origin, name, objects, folder_of(path), split, size, other)


def _add(objects: LabelledObjects, annotation: dict[str, Any], names: Sequence[str]) -> None:
    kind, label = name_in(annotation["type"]), annotation.get("label_id")
    if label is not None and not 0 <= label < len(names):
        raise ValueError(f"label_id {label} is not one of {len(names)} labels")
    name = None if label is None else names[label]
    fields: dict[str, Json] = dict(_plain(annotation.get("attributes") or {}))
    degrees = fields.pop("rotation", 0)
    if annotation.get("group"):
        fields["group"] = annotation["group"]
    if kind == "label":
        objects.labels.append(name or str(label))
    elif kind == "bbox":
        x, y, width, height = map(coordinate, annotation["bbox"])
        box, center = (x, y, x + width, y + height), (x + width / 2, y + height / 2)
        obb = turned(box, coordinate(degrees), center) if degrees else ()
        objects.add(name, None if degrees else box, fields=fields, obb=obb)
    elif kind == "polygon":
        objects.add(name, polygon=_pairs(annotation["points"]), fields=fields)
    elif kind == "points":
        if not (points := tuple(_pairs(annotation["points"]))):
            raise ValueError("points without a point")
        objects.point_sets.append((name, points, fields))
    elif kind == "skeleton":
        objects.add(name, keypoints=_keypoints(annotation["elements"]), fields=fields)
    elif kind == MASK and objects.with_masks:
        height, _, counts = shape = read_rle(annotation["rle"]["size"], annotation["rle"]["counts"])
        objects.shapes[len(objects.boxes)] = {"size": list(shape[:2]), "counts": rle_text(counts)}
        objects.add(name, mask_box(height, counts), fields=fields)
    else:
        objects.no_field[kind] += 1


def _pairs(values: Sequence[Any]) -> list[Point]:
    numbers = list(map(coordinate, values))
    return list(zip(numbers[::2], numbers[1::2], strict=True))


def _keypoints(elements: Iterable[dict[str, Any]]) -> Iterator[tuple[float, float, float]]:
    """Yield x, y and visibility of each point, 0, 1 or 2 as of COCO."""
    for element in elements:
        pairs = _pairs(element["points"])
        seen = element.get("visibility") or [2] * len(pairs)
        yield from ((x, y, float(v)) for (x, y), v in zip(pairs, seen, strict=True))


def _plain(attributes: dict[str, Any]) -> Iterator[tuple[str, Json]]:
    """Yield what a box field can be; that which tells whether a frame of a track is a key frame says nothing here."""
    for name, value in attributes.items():
        if isinstance(value, bool | int | float | str) and name != "keyframe":
            yield name, int(value) if isinstance(value, bool) else value
