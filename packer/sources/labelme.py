"""LabelMe's JSON, one file per image: polygons, rectangles, points, flags.

Single points are the landmarks of the image, in the order of their labels.
"""

from __future__ import annotations

import re
from typing import Any

from packer.errors import BadLabel, printable
from packer.model.annotation import Point
from packer.sources.base import LOOKS, Choice, SourceOptions, Tree
from packer.sources.by_name import ByNameSource, Entry, Objects, files_like, read_json, whole_size
from packer.sources.paths import as_bytes, coordinate, folder_of, name_in, spread, stem_of
from packer.sources.tree import read_head

WORDS = (b'"shapes"', b'"imagePath"', b'"imageData"')


class LabelMeSource(ByNameSource):
    """The JSON files that LabelMe writes. The annotations of all images are held in memory."""

    def __init__(self, tree: Tree, options: SourceOptions) -> None:
        entries, files = [], []
        self._names: list[str] | None = None
        stems = {stem_of(image) for image in tree.images}
        for path in files_like(tree, b".json"):
            try:
                content = read_json(tree, path)
                if not isinstance(content, dict) or "shapes" not in content:
                    continue  # package.json, config.json
                entries.append(self._entry(path, content, stems))
            except BadLabel as error:
                entries.append(Entry(printable(path), stem_of(path), error, folder_of(path)))
            files.append(path)
        super().__init__(tree, options, entries, files)

    @staticmethod
    def recognize(tree: Tree) -> list[Choice]:
        """Return LabelMe if a few of the JSON files have its keys."""
        files = files_like(tree, b".json")
        seen = [path for path in spread(files, LOOKS) if _is_labelme(read_head(tree, path, 4096, 4096))]
        if not seen:
            return []
        return [Choice("labelme", f"JSON files such as {printable(seen[0])} have the keys of LabelMe")]

    def _entry(self, path: bytes, content: dict[str, Any], stems: set[bytes]) -> Entry:
        # the tool keeps the old name of an image that was renamed together with its file
        claimed = content.get("imagePath")
        name = stem_of(path) if stem_of(path) in stems or not isinstance(claimed, str) else as_bytes(claimed)
        objects: Objects | BadLabel = (shapes := Objects())
        points: dict[str, Point] = {}
        try:
            for shape in content["shapes"]:
                _add(shapes, shape, points)
            if points:
                shapes.landmarks = self._landmarks(points)
            shapes.labels += [flag for flag, there in (content.get("flags") or {}).items() if there is True]
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            objects = BadLabel(path, f"is not as LabelMe writes it: {error!r}", "fix the label")
        size = whole_size(content.get("imageWidth"), content.get("imageHeight"))
        return Entry(printable(path), name, objects, folder_of(path), None, size)

    def _landmarks(self, points: dict[str, Point]) -> tuple[Point, ...]:
        names = sorted(points, key=_natural)
        self._names = self._names or names
        if names != self._names:
            raise ValueError(f"its points are {names}, those of the first file {self._names}")
        return tuple(points[name] for name in names)


def _is_labelme(head: bytes) -> bool:
    return sum(word in head for word in WORDS) > 1


def _add(objects: Objects, shape: dict[str, Any], points: dict[str, Point]) -> None:
    kind, name, corners = name_in(shape.get("shape_type") or "polygon"), name_in(shape["label"]), shape["points"]
    fields = {}
    if (group := shape.get("group_id")) is not None:
        name_in(group)
        fields = {"group": group}
    if kind == "polygon":
        objects.add(name, polygon=corners, fields=fields)
    elif kind == "rectangle":
        xs, ys = zip(*corners, strict=True)
        objects.add(name, (min(xs), min(ys), max(xs), max(ys)), fields=fields)
    elif kind == "point":
        if name in points:
            raise ValueError(f"there are two points {name}")
        ((x, y),) = corners
        points[name] = (coordinate(x), coordinate(y))
    else:
        objects.no_field[kind] += 1


def _natural(name: str) -> list[tuple[int, str]]:
    """Return a key that sorts p10 after p9."""
    return [(int(digits or 0), text) for text, digits in re.findall(r"(\D*)(\d*)", name)]
