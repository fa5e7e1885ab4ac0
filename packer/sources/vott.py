"""VoTT's JSON export: boxes and polygons with tags."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from packer.errors import BadLabel, UsageError, printable
from packer.sources.base import Choice, SourceOptions, Tree
from packer.sources.by_name import ByNameSource, Entry, Objects, asked_files, files_like, read_json, whole_size
from packer.sources.paths import as_bytes, coordinate, folder_of, name_in, named


class VottSource(ByNameSource):
    """One or more JSON exports of VoTT. The annotations of all images are held in memory."""

    takes_file = "optional"

    def __init__(self, tree: Tree, options: SourceOptions) -> None:
        files = asked_files(tree, options, _found(tree), "vott")
        super().__init__(tree, options, [entry for path in files for entry in _entries(tree, path)], files)

    @staticmethod
    def recognize(tree: Tree) -> list[Choice]:
        """Return VoTT if there is a file with the name that it gives to exports."""
        files = _found(tree)
        return [Choice("vott", f"{named(files)} {'is an export' if len(files) == 1 else 'are exports'} of VoTT")][
            : len(files)
        ]


def _found(tree: Tree) -> list[bytes]:
    return files_like(tree, b"-export.json")


def _entries(tree: Tree, path: bytes) -> Iterator[Entry]:
    try:
        assets = read_json(tree, path)["assets"].items()
    except (BadLabel, KeyError, TypeError, AttributeError) as error:
        problem = error.problem if isinstance(error, BadLabel) else "has no assets, so VoTT did not write it"
        raise UsageError(path, problem, "export it again") from None
    for key, item in assets:
        origin = f"{printable(path)}: asset {printable(key)}"
        name, size = b"", None
        objects: Objects | BadLabel = (regions := Objects())
        try:
            asset = item["asset"]
            name = as_bytes(asset["name"])
            size = whole_size(asset.get("size", {}).get("width"), asset.get("size", {}).get("height"))
            for region in item["regions"]:
                _add(regions, region)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            objects = BadLabel(origin, f"is not as VoTT writes it: {error!r}", "fix the entry")
        yield Entry(origin, name, objects, folder_of(path), None, size)


def _add(objects: Objects, region: dict[str, Any]) -> None:
    if len(region["tags"]) > 1:
        raise ValueError(f"a region has several tags: {', '.join(region['tags'])}")
    name = name_in(region["tags"][0]) if region["tags"] else None
    if region.get("type", "RECTANGLE") in ("RECTANGLE", "SQUARE"):
        left, top, width, height = (
            coordinate(region["boundingBox"][key]) for key in ("left", "top", "width", "height")
        )
        objects.add(name, (left, top, left + width, top + height))
    else:
        objects.add(name, polygon=[(point["x"], point["y"]) for point in region["points"]])
