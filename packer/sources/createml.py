"""Create ML's JSON: a list of images with boxes, whose x and y are those of the center."""

from __future__ import annotations

from typing import Any

from packer.errors import BadLabel, UsageError, printable
from packer.sources.base import Choice, SourceOptions, Tree
from packer.sources.by_name import ByNameSource, Entry, Objects, asked_files, files_like, read_json
from packer.sources.paths import as_bytes, coordinate, folder_of, name_in, named


class CreateMlSource(ByNameSource):
    """One or more JSON files of Create ML. The annotations of all images are held in memory."""

    takes_file = "optional"

    def __init__(self, tree: Tree, options: SourceOptions) -> None:
        files = asked_files(tree, options, _found(tree), "createml")
        entries = [_entry(path, i, item) for path in files for i, item in enumerate(_items(tree, path), 1)]
        super().__init__(tree, options, entries, files)

    @staticmethod
    def recognize(tree: Tree) -> list[Choice]:
        """Return Create ML if a JSON file begins as its exports do."""
        files = _found(tree)
        return [Choice("createml", f"{named(files)} {'has' if len(files) == 1 else 'have'} boxes of Create ML")][
            : len(files)
        ]


def _found(tree: Tree) -> list[bytes]:
    return files_like(tree, b".json", b'"image', b'"annotation', b'"coordinates"', b'"label"')


def _items(tree: Tree, path: bytes) -> list[Any]:
    try:
        items = read_json(tree, path)
    except BadLabel as error:
        raise UsageError(path, error.problem, error.next_step) from None
    if not isinstance(items, list):
        raise UsageError(path, "is not a list of images", "export it again")
    return items


def _entry(path: bytes, number: int, item: Any) -> Entry:
    origin = f"{printable(path)}: image {number}"
    name = b""
    objects: Objects | BadLabel = (boxes := Objects())
    try:
        name = as_bytes(item["image"] if "image" in item else item["imagefilename"])
        for box in item["annotations"] if "annotations" in item else item["annotation"]:
            place = box["coordinates"]
            x, y, w, h = (coordinate(place[key]) for key in ("x", "y", "width", "height"))
            boxes.add(name_in(box["label"]), (x - w / 2, y - h / 2, x + w / 2, y + h / 2))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        objects = BadLabel(origin, f"is not as Create ML writes it: {error!r}", "fix the entry")
    return Entry(origin, name, objects, folder_of(path))
