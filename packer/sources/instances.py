"""Pictures whose values are numbers of objects: each number is an object with a mask, a box and a class.

``--labels instances[:WHERE]``: the numbers of Penn-Fudan (0 is background), Pascal VOC's ``SegmentationObject`` with
classes from ``SegmentationClass``, Cityscapes' ``instanceIds`` and other numbers that hold a class (`Codes`), COCO
panoptic's colors with their JSON, ADE20K's colors with their names.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import msgspec
import numpy as np

from packer.errors import BadInput, BadMask, UsageError, option, printable
from packer.images.header import read_header
from packer.images.masks import color_codes
from packer.images.pillow import decode_values
from packer.model.annotation import IGNORED as IGNORED_CLASS
from packer.model.annotation import Image, Int64, RawAnnotation
from packer.model.rle import as_shape, check_installed
from packer.sources.ade20k import is_ade20k, names_file, objects_in, other_pictures
from packer.sources.by_name import NO_CLASS
from packer.sources.by_stem import ByStemSource
from packer.sources.coco_file import MEMBERS
from packer.sources.coco_masks import json_map, panoptic_segments
from packer.sources.mask_files import MOST_MASK_BYTES, MaskLayout, layouts_of, masks_at
from packer.sources.mask_values import (
    CITYSCAPES_CLASSES,
    CITYSCAPES_IDS,
    IGNORED,
    VOC_CLASSES,
    Asked,
    values_in,
    vistas_classes,
)
from packer.sources.part_files import match_files
from packer.sources.paths import FolderSplit, as_text, folder_of, some_paths, spread, stem_of
from packer.sources.source import LOOKS, SourceOptions, Tree
from packer.sources.tree import read_file
from packer.sources.voc import SegmentationSplit

VOC, CITYSCAPES = b"segmentationobject", b"_instanceids"
KITTI, MOTS = re.compile(rb"(?:\A|/)instance/\Z"), re.compile(rb"(?:\A|/)instances/\Z")
NEWEST = b"v2.0/instances"
"""Of Mapillary Vistas' versions."""
CROWD = "iscrowd"
LEAST_OF_MOTS = 1000
"""The first value of the first class."""
NAMED = (VOC, CITYSCAPES, b"instance", b"panoptic", b"ped")
"""In lower case, what is in the names of such pictures, or of their folders."""
THINGS = dict(zip(CITYSCAPES_IDS[11:], CITYSCAPES_CLASSES[11:], strict=True))
"""cityscapesScripts, helpers/labels.py: the classes of which single objects are labelled, and evaluated."""
OF_MOTS = {1: "car", 2: "pedestrian"}
MOTS_IGNORED = 10
"""KITTI MOTS and MOTSChallenge (Voigtlaender et al., 2019): the classes, and that of ignored regions."""


class Codes(NamedTuple):
    """Values that hold the class of an object: class * `per_class` + number."""

    per_class: int
    names: Mapping[int, str]
    """Classes of which single objects are labelled."""
    field: str = ""
    """The box field that tells apart what is no single object: of class `IGNORED`, or a group."""
    bare: bool = False
    """Whether a group of objects has the class itself as its value (Cityscapes), rather than the number 0 (KITTI)."""
    has_tracks: bool = False
    """Whether the numbers are those of tracks."""

    def object_of(self, value: int) -> tuple[str, int] | None:
        """Return the class of a value, and whether it is no single object; None for what is no object."""
        number, place = divmod(value, self.per_class)
        is_bare = self.bare and not number
        name = self.names.get(place if is_bare else number)
        is_group = self.field == CROWD and (is_bare or (not self.bare and not place))
        return None if name is None else (name, int(is_group or name == IGNORED_CLASS))


class _Category(msgspec.Struct, gc=False):
    id: int
    name: str
    isthing: int = 1


@dataclass(frozen=True)
class _Meaning:
    """What the values of pictures mean."""

    classes: tuple[str, ...] | None = None
    """All classes, if they are known."""
    of_class: Mapping[bytes, bytes] = field(default_factory=dict)
    """Picture -> that with the class of each pixel."""
    codes: Codes | None = None
    names_of: Mapping[bytes, bytes] | None = None
    """Picture of ADE20K -> the file of the names of its objects."""
    segments: Mapping[bytes, Mapping[int, tuple[str, int]]] | None = None
    """Stem of a picture -> color of each object -> its class, and whether it is a crowd."""

    def of_pictures(self, paths: Collection[bytes]) -> _Meaning:
        """Return what those of these pictures mean."""
        of_class = {path: self.of_class[path] for path in paths if path in self.of_class}
        known = self.segments
        segments = None if known is None else {stem: known[stem] for stem in map(stem_of, paths) if stem in known}
        files = self.names_of
        names_of = None if files is None else {path: files[path] for path in paths if path in files}
        return replace(self, of_class=of_class, segments=segments, names_of=names_of)


def find_instances(tree: Tree, where: str) -> MaskLayout:
    """Return the pictures in a folder, or of a pattern; without one, those whose names say that they are of objects.

    Raises:
        UsageError: There are none, or several that may be meant.
    """
    if where:
        return masks_at(tree, where.removesuffix(".json"))
    layouts = layouts_of(tree.images)
    own = [one for one in layouts if is_ade20k(tree, one.masks)]
    layouts = own or [*layouts, *_panoptic(tree, layouts)]
    found = [one for one in layouts if any(word in one.beside.lower() for word in NAMED)] or layouts
    if newest := [one for one in found if NEWEST in one.beside.lower()]:
        found = newest
    if len(found) != 1:
        problem = f"several folders of pictures fit: {some_paths([one.where for one in found])}"
        problem = problem if found else "no pictures were found that fit the images by their names"
        raise UsageError(tree.root, problem, f"name their folder: {option('labels', 'instances:FOLDER')}")
    every = frozenset(path for layout in layouts for path in layout.masks)
    return replace(found[0], all_masks=every.union(other_pictures(tree.images)))


def _panoptic(tree: Tree, known: Sequence[MaskLayout]) -> Iterator[MaskLayout]:
    """Yield COCO's panoptic pictures, which lie in a folder that is called as their JSON."""
    stems = {path.removesuffix(b".json") for path in tree.files}
    for folder in stems.intersection(tree.folders) - {one.where.rstrip(b"/") for one in known}:
        if own := [path for path in tree.images if folder_of(path) == folder]:
            others = [path for path in tree.images if folder_of(path) != folder]
            yield MaskLayout(folder + b"/", tuple(own), match_files(others, own))


def suggested(tree: Tree) -> MaskLayout | None:
    """Return the pictures whose names say that they are of objects; None unless they are of one kind."""
    with suppress(UsageError):
        found = find_instances(tree, "")
        if any(word in found.beside.lower() for word in NAMED) or is_ade20k(tree, found.masks):
            return found
    return None


class InstanceSource(ByStemSource):
    """A picture of each image's size, in which the pixels of an object have its number.

    Args:
        tree: The source.
        options: How they are read.
        found: The pictures.
        alone: Whether the images have no other labels.

    Raises:
        NotInstalled: pycocotools is missing.
        UsageError: The JSON of panoptic pictures cannot be read.
    """

    def __init__(self, tree: Tree, options: SourceOptions, found: MaskLayout, alone: bool) -> None:
        check_installed(what=option("labels", "instances"))
        super().__init__(tree, found.matches)
        self.where = found.where
        self._ignored = options.ignore_id
        self._meaning = _meaning_of(tree, found)
        self.classes = self._meaning.classes
        self._only_class = NO_CLASS
        self.of_split = (SegmentationSplit.of(tree, options.split) if alone else None) or FolderSplit.of(
            tree, options.split
        )
        self.label_files.update(found.all_masks)

    def take_classes(self, names: Sequence[str]) -> None:
        """Name the class of objects, if there is one; other names are those that the pictures' files give."""
        if len(names) == 1:
            self._only_class = names[0]

    def for_images(self, images: Sequence[bytes]) -> InstanceSource | None:
        """Return a copy for a worker, with the pictures of these images."""
        if (part := super().for_images(images)) is not None:
            part._meaning = self._meaning.of_pictures(part.matches.label_of.values())
        return part

    def wanted(self, image: bytes) -> str:
        """Return how an error names what an image lacks."""
        return f"picture of its objects in {printable(self.where)}"

    def annotate(self, image: bytes) -> RawAnnotation:
        """Return the objects of the image.

        Raises:
            NoLabel: It has no picture.
            BadLabel: Several fit it.
            BadMask: The picture cannot be read, or shows objects that are not known.
        """
        path = self.label_file(image)
        values = _read_values(self._tree, path)
        objects = self._objects(path, values)
        boxes, shapes = [], []
        for number in objects:
            box, shape = as_shape(values == number)
            boxes.append(box)
            shapes.append(shape)
        codes = self._meaning.codes
        flag = CROWD if self._meaning.segments is not None else "" if codes is None else codes.field
        fields: dict[str, tuple[int, ...]] = {flag: tuple(crowd for _, crowd in objects.values())} if flag else {}
        if codes is not None and codes.has_tracks:
            fields["track"] = tuple(number % codes.per_class for number in objects)
        return RawAnnotation(
            origin=as_text(path),
            boxes=tuple(boxes),
            box_labels=tuple(name for name, _ in objects.values()),
            rles=tuple(shapes) if shapes else None,
            box_fields=fields,
            image_size=(values.shape[1], values.shape[0]),
        )

    def _objects(self, path: bytes, values: Image) -> dict[int, tuple[str, int]]:
        """Return the values of objects, each with its class, and whether it is a crowd."""
        there: list[int] = np.unique(values).tolist()
        meaning = self._meaning
        if meaning.segments is not None:
            return _named_segments(path, there, meaning.segments)
        if meaning.codes is not None:
            return {value: one for value in there if (one := meaning.codes.object_of(value)) is not None}
        if meaning.names_of is not None:
            return objects_in(self._tree, path, meaning.names_of.get(path), there)
        numbers = [value for value in there if value not in self._no_objects(values, path in meaning.of_class)]
        if path not in meaning.of_class:
            return dict.fromkeys(numbers, (self._only_class, 0))
        classes = _read_values(self._tree, meaning.of_class[path])
        if classes.shape != values.shape:
            raise BadMask(meaning.of_class[path], f"has another size than {printable(path)}", "make them alike")
        return {number: (self._class_in(path, number, classes[values == number]), 0) for number in numbers}

    def _no_objects(self, values: Image, has_border: bool) -> tuple[int | None, ...]:
        """Return the values that are no object: 255 is one in colors and 16 bits, and is the border in VOC."""
        is_border = values.dtype == np.uint8 and (has_border or self._ignored is None)
        return 0, self._ignored, IGNORED if is_border else 0

    def _class_in(self, path: bytes, number: int, classes: Int64) -> str:
        """Return the class that most pixels of an object have."""
        found, counts = np.unique(classes[~np.isin(classes, (0, IGNORED, self._ignored or 0))], return_counts=True)
        names = self._meaning.classes or ()
        value = int(found[counts.argmax()]) if len(found) else 0
        if not 0 < value <= len(names):
            where = self._meaning.of_class[path]
            raise BadMask(where, f"gives object {number} the class {value}, which has no name", "correct the picture")
        return names[value - 1]


def _read_values(tree: Tree, path: bytes) -> Image:
    """Return the values of a picture, (height, width), colors as one number. Raise BadMask if it cannot be read."""
    try:
        data = read_file(tree, path, MOST_MASK_BYTES)
        header = read_header(data)
        if header.format == "jpeg":
            raise BadMask(path, "is a JPEG, which changes the values at the borders of objects", "save it as PNG")
        values = decode_values(data, header)
    except BadInput as error:
        raise BadMask(path, error.problem, error.next_step) from None
    return color_codes(values) if values.ndim == 3 else values


def _meaning_of(tree: Tree, found: MaskLayout) -> _Meaning:
    place = found.beside.lower()
    if (codes := _codes_of(tree, found)) is not None:
        return _Meaning(tuple(codes.names.values()), codes=codes)
    if is_ade20k(tree, found.masks):
        files = {*tree.files}
        return _Meaning(names_of={path: file for path in found.masks if (file := names_file(files, path))})
    if VOC in place.split(b"/"):
        return _of_voc(tree, found)
    folder = found.beside.rstrip(b"/")
    file = next(
        (path for path in tree.files if path.rpartition(b".json")[0] in (folder, b"annotations/" + folder)), None
    )
    return _Meaning() if file is None else _of_panoptic(tree, file)


def _codes_of(tree: Tree, found: MaskLayout) -> Codes | None:
    """Return which classes values hold, by the names of the pictures' folders, and of MOTS by a few values."""
    place = found.beside.lower()
    if CITYSCAPES in place:
        return Codes(1000, THINGS, CROWD, bare=True)
    if KITTI.search(place) and any(b"image_2" in folder.split(b"/") for folder in tree.folders):
        return Codes(256, THINGS, CROWD)
    if (vistas := vistas_classes(tree, place)) is not None:
        return Codes(256, {number: one["name"] for number, one in enumerate(vistas) if one["instances"]})
    if not MOTS.search(place):
        return None
    listed = values_in(tree, found.beside, Asked())
    names = dict(enumerate(listed.classes, 1)) if listed is not None and listed.classes else OF_MOTS
    names = names if MOTS_IGNORED in names else names | {MOTS_IGNORED: IGNORED_CLASS}
    looks = [_read_values(tree, path) for path in spread(found.masks, LOOKS)]
    there = {int(value) for values in looks for value in np.unique(values) if value}
    fits = there and min(there) >= LEAST_OF_MOTS and all(value // LEAST_OF_MOTS in names for value in there)
    return Codes(LEAST_OF_MOTS, names, "ignore", has_tracks=True) if fits else None


def _of_voc(tree: Tree, found: MaskLayout) -> _Meaning:
    folder = found.beside[: found.beside.lower().index(VOC)] + b"SegmentationClass/"
    classes = {stem_of(path): path for path in found.all_masks if path.startswith(folder)}
    of_class = {path: classes[stem_of(path)] for path in found.masks if stem_of(path) in classes}
    if missing := [path for path in found.matches.label_of.values() if path not in of_class]:
        problem = f"{some_paths(missing)} has no picture in {printable(folder)}, which says what its objects are"
        raise UsageError(tree.root, problem, "add it, or remove the one of its objects")
    named = values_in(tree, folder, Asked())
    return _Meaning((VOC_CLASSES if named is None else named.classes)[1:], of_class)


def _of_panoptic(tree: Tree, path: bytes) -> _Meaning:
    file = json_map(tree, path)
    place = file.members(MEMBERS).get("categories", (0, 0))
    categories = [one for piece in file.objects(place, _Category, "categories") for one in piece.heads]
    things = {one.id: one.name for one in categories if one.isthing}
    segments = {
        stem_of(name): {one.color: (things.get(one.category_id, ""), int(bool(one.iscrowd))) for one in of_picture}
        for name, of_picture in panoptic_segments(file, {one.id for one in categories})
    }
    return _Meaning(tuple(dict.fromkeys(things.values())), segments=segments)


def _named_segments(
    path: bytes, there: Sequence[int], segments: Mapping[bytes, Mapping[int, tuple[str, int]]]
) -> dict[int, tuple[str, int]]:
    """Return the objects of a panoptic picture; what is no single thing, such as sky, is none."""
    if (known := segments.get(stem_of(path))) is None:
        raise BadMask(path, "is not in the JSON of the panoptic pictures", "add its segments, or remove it")
    if unknown := [value for value in there if value and value not in known]:
        color = (unknown[0] >> 16, unknown[0] >> 8 & 255, unknown[0] & 255)
        raise BadMask(path, f"has the color {color}, which is of no segment in the JSON", "correct one of them")
    return {value: known[value] for value in there if value and known[value][0]}
