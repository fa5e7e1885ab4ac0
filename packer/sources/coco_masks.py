"""What COCO's JSON files say of pictures: the classes of panoptic segments, and of the categories in pixel maps."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import msgspec

from packer.errors import UsageError
from packer.images.masks import LARGEST, MaskValues
from packer.sources.coco_file import FIX, MEMBERS, JsonMap, categories_in
from packer.sources.parquet_file import images_below
from packer.sources.paths import as_bytes, as_text, file_of, json_text
from packer.sources.source import Tree

JSON = b".json"
PIXEL_MAPS = b"_pixelmaps"
"""What follows the name of a file of stuff in that of the folder of its pictures."""
VOID = 0
"""The color, and the value of pixel maps, that is of no segment and no category."""


class _SegmentInfo(msgspec.Struct, gc=False):
    id: int
    category_id: int
    iscrowd: int = 0

    @property
    def color(self) -> int:
        """Red << 16 | green << 8 | blue: the id is red + 256 green + 65536 blue."""
        return (self.id & 255) << 16 | self.id & 0xFF00 | self.id >> 16 & 255


class _Entry(msgspec.Struct, gc=False):
    file_name: str
    segments_info: list[_SegmentInfo]


@dataclass(frozen=True, slots=True)
class Panoptic:
    """The segments of pictures in which the color of a pixel is the id of its segment: R + 256 G + 65536 B."""

    classes: tuple[str, ...]
    """Names, in the order of the ids of the categories."""
    ids: Mapping[bytes, tuple[int, ...]]
    """By the path of a picture, or its name: color, class, color, class, ...; a color is R << 16 | G << 8 | B."""

    def of_mask(self, path: bytes) -> tuple[int, ...] | None:
        """Return the ids of a picture; None if it has none."""
        found = self.ids.get(path)
        return self.ids.get(path.rpartition(b"/")[2]) if found is None else found


def panoptic_files(tree: Tree) -> list[bytes]:
    """Return the files of segments that have pictures in a folder of their name: panoptic_val2017.json."""
    return [path for path, _ in _with_folders(tree) if b"panoptic" in path.rpartition(b"/")[2]]


def pixel_map_files(tree: Tree) -> list[bytes]:
    """Return the files of categories that have pixel maps in a folder of their name: stuff_val2017.json."""
    return [path for path, _ in _with_folders(tree, PIXEL_MAPS)]


def _with_folders(tree: Tree, ending: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
    """Yield the JSON files that have pictures in a folder of their name and this ending, beside them or elsewhere."""
    for path in tree.files:
        if path.lower().endswith(JSON):
            beside = path[: -len(JSON)] + ending
            name = beside.rpartition(b"/")[2]
            for folder in (beside, *(folder for folder in tree.folders if folder.rpartition(b"/")[2] == name)):
                if images_below(tree, folder)[1]:
                    yield path, folder + b"/"
                    break


def panoptic_in(tree: Tree, values: str | None, masks: Sequence[bytes]) -> Panoptic | None:
    """Return the segments of masks: from the file of ``--mask-values``, else from those beside them; None without any.

    Raises:
        UsageError: A file cannot be read, or two number classes differently.
    """
    if values is not None and values.startswith("panoptic:"):
        file = values.removeprefix("panoptic:")
        return _read(tree, file_of(tree, "panoptic", file, "mask-values"), b"") if file else None
    if values is not None:
        return None
    classes: tuple[str, ...] = ()
    ids: dict[bytes, tuple[int, ...]] = {}
    for path, folder in _with_folders(tree):
        if b"panoptic" in path.rpartition(b"/")[2] and any(mask.startswith(folder) for mask in masks):
            found = _read(tree, path, folder)
            if classes not in ((), found.classes):
                raise UsageError(as_text(path), "has other categories than the other files", "pack them one by one")
            classes = found.classes
            ids.update(found.ids)
    return Panoptic(classes, ids) if classes else None


def panoptic_segments(file: JsonMap, categories: Collection[int]) -> Iterator[tuple[bytes, list[_SegmentInfo]]]:
    """Yield the name of each picture of a panoptic file, and its segments.

    Raises:
        UsageError: It is none, or a segment is of none of these categories.
    """
    places = file.members(MEMBERS)
    if not {"annotations", "categories"} <= places.keys():
        raise UsageError(
            file.name, 'has no "annotations" and "categories", as panoptic files have', "name another file"
        )
    for piece in file.objects(places["annotations"], _Entry, "annotations"):
        for start, entry in zip(piece.starts.tolist(), piece.heads, strict=True):
            for one in entry.segments_info:
                if one.category_id not in categories:
                    problem = f"segment {one.id} is of category {one.category_id}, which is not in the file"
                    raise UsageError(file.where(start), problem, FIX)
            yield as_bytes(entry.file_name), entry.segments_info


def json_map(tree: Tree, path: bytes) -> JsonMap:
    """Open a JSON file of COCO. Raise UsageError if it cannot be read."""
    return JsonMap(tree, path, as_text(path.rpartition(b"/")[2]))


def _read(tree: Tree, path: bytes, folder: bytes) -> Panoptic:
    file = json_map(tree, path)
    numbers, classes = _numbered(file)
    ids = {
        folder + name: tuple(value for one in segments for value in (one.color, numbers[one.category_id]))
        for name, segments in panoptic_segments(file, numbers)
    }
    return Panoptic(classes, ids)


def _numbered(file: JsonMap) -> tuple[dict[int, int], tuple[str, ...]]:
    """Return the class of each category, from 0 in the order of their ids, and the names."""
    class_of = categories_in(file)
    if odd := next((key for key in class_of if type(key) is not int or not 0 <= key <= LARGEST), None):
        raise UsageError(file.name, f"category {json_text(odd)} is not a number from 0 to {LARGEST}", FIX)
    classes = tuple(dict.fromkeys(class_of[key] for key in sorted(class_of)))
    order = {name: number for number, name in enumerate(classes)}
    return {key: order[name] for key, name in class_of.items()}, classes


def categories_of(tree: Tree, path: bytes, ignore: int) -> MaskValues | None:
    """Return what the values of pixel maps mean whose pixels are the categories of a file; None if it has none.

    The value 0 is of no class unless a category has that id.
    """
    if not path.lower().endswith(JSON):
        return None
    with suppress(UsageError):  # whoever reads it as another file says so
        numbers, classes = _numbered(json_map(tree, path))
        if classes:
            return MaskValues(classes, None, tuple(({VOID: ignore} | numbers).items()))
    return None
