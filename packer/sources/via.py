"""VGG Image Annotator (VIA): projects, JSON and CSV of versions 1 and 2, projects of version 3.

Coordinates are used unchanged. A file does not say which attribute of a region is its class: it is the only one, or
the first that is called as one of CLASS_WORDS. Its COCO is read as COCO.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from packer.errors import BadLabel, UsageError, printable
from packer.model.annotation import Json
from packer.sources.by_name import (
    MISTAKES,
    MOST_JSON_BYTES,
    ImageEntry,
    LabelledObjects,
    NamedFilesSource,
    read_json,
    shared_json,
)
from packer.sources.list_lines import OF_VIA
from packer.sources.paths import as_bytes, coordinate, extension_of, folder_of, name_in, quoted_value
from packer.sources.source import Tree
from packer.sources.tree import lines_of, needed, read_file, read_head

HEAD_BYTES = 4096
OF_VIA_JSON = re.compile(
    rb'"(?:_via_settings|_via_img_metadata|shape_attributes|region_attributes|file_attributes|vid_list)"'
)
CLASS_WORDS = ("class", "label", "category", "name", "type", "object")
IMAGE_WORDS = CLASS_WORDS[:3]
"""The attributes of a file that are the class of the image."""


class ViaSource(NamedFilesSource):
    """Files of VIA."""

    kind, ending = "via", b""
    are = "is of VGG Image Annotator", "are of VGG Image Annotator"

    @classmethod
    def files_in(cls, tree: Tree) -> list[bytes]:
        """Return the files of VIA."""
        tables = (path for path in tree.files if extension_of(path) == b".csv")
        found = [path for path in tables if OF_VIA in read_head(tree, path, HEAD_BYTES)]
        return found + [path for path in shared_json(tree) if OF_VIA_JSON.search(read_head(tree, path, HEAD_BYTES))]

    def entries(self, tree: Tree, files: Sequence[bytes]) -> Iterator[ImageEntry]:
        """Yield the entries of all files, when it is known which attribute is the class."""
        items = [(path, origin, item) for path in files for origin, item in _items(tree, path)]
        regions = (region for *_, item in items for region in _listed(item.get("regions")))
        attributes = (region.get("region_attributes") for region in regions)
        used = dict.fromkeys(name for one in attributes if isinstance(one, dict) for name in one if one[name])
        of_class = _class_among(used, CLASS_WORDS) or (next(iter(used)) if len(used) == 1 else None)
        if used and of_class is None:
            names = ", ".join(map(quoted_value, used))
            self.notes.append(f"of the attributes {names} none is called {', '.join(CLASS_WORDS)}: no box has a class")
        for path, origin, item in items:
            yield _entry(path, origin, item, of_class)


def _items(tree: Tree, path: bytes) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each image of a file, and where it is in it."""
    with needed(path):
        if extension_of(path) == b".csv":
            yield from _rows(path, read_file(tree, path, MOST_JSON_BYTES))
            return
        content = read_json(tree, path)
    if isinstance(content, dict) and {"file", "view", "metadata"} <= content.keys():
        yield from _of_version_3(path, content)
        return
    if isinstance(content, dict):
        content = content.get("_via_img_metadata", content)
    if not isinstance(content, dict):
        raise UsageError(path, "has no images as VIA writes them", "export it again")
    for key, item in content.items():
        yield f"{printable(path)}: {printable(key)}", item if isinstance(item, dict) else {}


SHAPES_3 = {
    1: ("point", ("cx", "cy")), 2: ("rect", ("x", "y", "width", "height")), 3: ("circle", ()), 4: ("ellipse", ()),
    5: ("line", ()), 6: ("polyline", ()), 7: ("polygon", ()), 8: ("extreme rectangle", ()), 9: ("extreme circle", ()),
}  # fmt: skip
"""The first number of a region of version 3 -> its name in version 2, and what the numbers after it are."""
IMAGE_FILE, CHECKBOX = 2, 2
"""Types of a file, and of an attribute."""


def _of_version_3(path: bytes, content: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each image of a project of version 3 as version 2 has it.

    (gitlab.com/vgg/via, via-3.x.y/CodeDoc.md, "Annotation Data Format".)
    """
    try:
        attributes = {key: one for key, one in content["attribute"].items() if isinstance(one, dict)}
        found: dict[str, dict[str, Any]] = {}
        for view, one in content["view"].items():
            files = [content["file"][str(key)] for key in one["fid_list"]]
            if len(files) == 1 and files[0].get("type", IMAGE_FILE) == IMAGE_FILE:
                name = files[0].get("src") or files[0]["fname"]
                found[str(view)] = {"filename": name, "regions": [], "file_attributes": {}}
        for key, note in content["metadata"].items():
            item = found.get(str(note["vid"]))
            if item is None or note.get("z"):
                raise ValueError(f"{key} is of a video, a sound or several images")
            values = dict(_values_3(attributes, note.get("av") or {}))
            if not note.get("xy"):
                item["file_attributes"] |= values
                continue
            item["regions"].append({"shape_attributes": _shape_3(note["xy"]), "region_attributes": values})
    except MISTAKES as error:
        raise UsageError(path, f"is not as VIA 3 writes images: {error}", "export its images again") from None
    yield from ((f"{printable(path)}: view {view}", item) for view, item in found.items())


def _shape_3(numbers: Sequence[Any]) -> dict[str, Any]:
    name, members = SHAPES_3[numbers[0]]
    if name == "polygon":
        return {"name": name, "all_points_x": numbers[1::2], "all_points_y": numbers[2::2]}
    return {"name": name, **dict(zip(members, numbers[1:], strict=bool(members)))}


def _values_3(attributes: dict[str, dict[str, Any]], values: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the names of attributes and what was chosen: the texts of options, several of a check box."""
    for key, value in values.items():
        attribute = attributes.get(key) or {}
        options = attribute.get("options") or {}
        if attribute.get("type") == CHECKBOX:
            yield str(attribute["aname"]), {str(options.get(one, one)): True for one in str(value).split(",") if one}
        else:
            yield str(attribute.get("aname", key)), options.get(value, value)


def _rows(path: bytes, data: bytes) -> Iterator[tuple[str, dict[str, Any]]]:
    text = b"\n".join(lines_of(data)).decode("utf-8", "surrogateescape").removeprefix("#")
    reader = csv.DictReader(io.StringIO(text, newline=""))
    found: dict[str, tuple[str, dict[str, Any]]] = {}
    try:
        for row in reader:
            name = row.get("filename") or ""
            item: dict[str, Any] = {"filename": name, "regions": [], "file_attributes": _cell(row, "file_attributes")}
            _, item = found.setdefault(name, (f"{printable(path)}:{reader.line_num}", item))
            if shape := _cell(row, OF_VIA.decode()):
                region = {"shape_attributes": shape, "region_attributes": _cell(row, "region_attributes")}
                item["regions"].append(region)
    except csv.Error as error:
        raise UsageError(f"{printable(path)}:{reader.line_num}", str(error), "export it again") from None
    yield from found.values()


def _cell(row: Mapping[str, Any], name: str) -> Any:
    """Return the JSON in a cell; a text if it is none, which is not as VIA writes it."""
    text = row.get(name) or "{}"
    try:
        return json.loads(text)
    except (ValueError, TypeError, RecursionError):
        return str(text)


def _listed(regions: Any) -> list[dict[str, Any]]:
    """Return the regions of an image: a list, or those of version 1 by their numbers."""
    values = regions.values() if isinstance(regions, dict) else regions if isinstance(regions, list) else ()
    return [region for region in values if isinstance(region, dict)]


def _attributes(values: Any) -> dict[str, Json]:
    """Return the attributes that have a value: a text, or of check boxes those that are checked."""
    found: dict[str, Json] = {}
    for name, value in values.items() if isinstance(values, dict) else ():
        checked = [key for key, there in value.items() if there] if isinstance(value, dict) else [value]
        if checked not in ([], [""], [None]):
            found[name] = name_in(checked[0]) if len(checked) == 1 else checked
    return found


def _class_among(names: Iterable[str], words: Sequence[str]) -> str | None:
    plain = {name.strip(" _:").lower(): name for name in names}
    return next((plain[word] for word in words if word in plain), None)


def _entry(path: bytes, origin: str, item: dict[str, Any], of_class: str | None) -> ImageEntry:
    name = b""
    objects: LabelledObjects | BadLabel = (found := LabelledObjects())
    try:
        name = as_bytes(item["filename"])
        regions = item["regions"]
        for region in regions.values() if isinstance(regions, dict) else regions:
            _add_region(found, region["shape_attributes"], _attributes(region.get("region_attributes")), of_class)
        found.extras = _attributes(item.get("file_attributes"))
        if (of_image := _class_among(found.extras, IMAGE_WORDS)) is not None:
            value = found.extras.pop(of_image)
            found.labels += [name_in(one) for one in value] if isinstance(value, list) else [name_in(value)]
    except MISTAKES as error:
        objects = BadLabel(origin, f"is not as VIA writes it: {error!r}", "fix the entry")
    return ImageEntry(origin, name, objects, folder_of(path))


def _add_region(
    objects: LabelledObjects, shape: dict[str, Any], attributes: dict[str, Json], of_class: str | None
) -> None:
    kind, value = name_in(shape["name"]), attributes.pop(of_class, None) if of_class is not None else None
    if isinstance(value, list):
        raise ValueError(f"a region has several values of {of_class}: {', '.join(map(str, value))}")
    name = None if value is None else name_in(value)
    if kind == "rect":
        x, y, width, height = (coordinate(shape[key]) for key in ("x", "y", "width", "height"))
        objects.add(name, (x, y, x + width, y + height), fields=attributes)
    elif kind == "polygon":
        points = zip(shape["all_points_x"], shape["all_points_y"], strict=True)
        objects.add(name, polygon=points, fields=attributes)
    elif kind == "point":
        objects.points.append((name or kind, (coordinate(shape["cx"]), coordinate(shape["cy"]))))
    else:
        objects.no_field[kind] += 1
