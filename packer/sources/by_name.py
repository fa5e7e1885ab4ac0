"""What sources share whose files name their images: the annotations are read at once and held in memory.

A source yields an `ImageEntry` for each image that its files name. `LabelledObjects` collects the shapes of one image.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, ClassVar, NamedTuple

import numpy as np

from packer.errors import BadLabel, NoImage, NoLabel, UsageError, option, plural, printable
from packer.model.annotation import FLAGS, IGNORED, Json, Mask, Point, RawAnnotation
from packer.model.rle import as_shape, decode, encode_shape
from packer.sources.box_corners import Box, corners, extent
from packer.sources.coco_objects import check_pixels, join_rings, signed_area
from packer.sources.path_finder import FileImages, ImageNames
from packer.sources.paths import (
    are_splits,
    as_bytes,
    check_count,
    coordinate,
    extension_of,
    file_of,
    folder_of,
    folder_splits,
    in_order,
    is_text,
    quoted_value,
    some_paths,
    split_folders,
    stem_of,
)
from packer.sources.source import BaseSource, Choice, SourceOptions, Tree
from packer.sources.tree import MIB, read_file, read_head
from packer.stores import is_url

MASK = "mask"
"""A kind of shape: a bitmap."""
NO_CLASS = "object"
"""The class of an object without one."""
MOST_JSON_BYTES = 2048 * MIB
MOST_CANDIDATES = 64
MISTAKES = (KeyError, IndexError, TypeError, ValueError, AttributeError, OverflowError)
"""What reading JSON raises that is not as its tool writes it."""
YES_NO = {"true": 1, "yes": 1, "1": 1, "false": 0, "no": 0, "0": 0, "": 0}
"""Texts of attributes -> flags."""
VISIBLE = 2.0
"""COCO's value for a keypoint that is labelled and visible."""
Keypoint = tuple[float, float, float]


class Bitmap(NamedTuple):
    """A mask of a part of an image."""

    read: Callable[[], Mask]
    """Returns its pixels, (height, width)."""
    at: tuple[int, int]
    """Its left and upper edge."""
    size: tuple[int, int] | None
    """(width, height) of the image."""

    def whole(self) -> Mask:
        """Return it as a mask of the whole image; what lies beside the image is cut. Raise ValueError."""
        if self.size is None:
            raise ValueError("has a mask, but not the size of its image")
        (left, top), (width, height) = self.at, self.size
        check_pixels(width, height)
        mask = self.read()
        rows, columns = np.arange(height) - top, np.arange(width) - left
        inside_rows, inside = (rows >= 0) & (rows < mask.shape[0]), (columns >= 0) & (columns < mask.shape[1])
        whole = np.zeros((height, width), np.uint8)
        whole[np.ix_(inside_rows, inside)] = mask[np.ix_(rows[inside_rows], columns[inside])] != 0
        return whole


@dataclass(slots=True)
class LabelledObjects:
    """The shapes of one image, in the order of its file."""

    boxes: list[Box] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    polygons: list[tuple[Point, ...]] = field(default_factory=list)
    keypoints: list[tuple[Keypoint, ...]] = field(default_factory=list)
    obb: list[tuple[Point, ...]] = field(default_factory=list)
    """The corners of each oriented box; () for another."""
    fields: list[Mapping[str, Json]] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)
    """Classes of the image."""
    points: list[tuple[str, Point]] = field(default_factory=list)
    """Single points, by name: landmarks, if no image has two of a name."""
    point_sets: list[tuple[str | None, tuple[Point, ...], Mapping[str, Json]]] = field(default_factory=list)
    """Points that belong together, with a class and fields: of CVAT and Datumaro."""
    landmarks: tuple[Point, ...] | None = None
    extras: dict[str, Json] = field(default_factory=dict)
    no_field: Counter[str] = field(default_factory=Counter)
    """Kinds of shapes that packer has no field for."""
    with_masks: bool = False
    """Whether bitmaps are read (``--instance-masks``)."""
    shapes: dict[int, Any] = field(default_factory=dict)
    """Number of an object that has a bitmap -> it, as `RawAnnotation.rles` has it."""

    def add(
        self,
        name: str | None,
        box: Sequence[float] | None = None,
        polygon: Iterable[Sequence[float]] = (),
        keypoints: Iterable[Sequence[float]] = (),
        fields: Mapping[str, Json] | None = None,
        obb: Iterable[Sequence[float]] = (),
    ) -> None:
        """Add an object. Its box (xyxy) is by default the extent of its polygon, visible keypoints or oriented box."""
        outline, turned = (tuple((coordinate(x), coordinate(y)) for x, y in some) for some in (polygon, obb))
        points = tuple((coordinate(x), coordinate(y), float(v)) for x, y, v in keypoints)
        if box is None:
            seen = [*outline, *turned, *((x, y) for x, y, v in points if v > 0)]
            if not seen:
                raise ValueError("an object has no points")
            box = extent(seen)
        left, top, right, bottom = map(coordinate, box)
        self.boxes.append((left, top, right, bottom))
        self.names.append(name or NO_CLASS)
        self.polygons.append(outline)
        self.keypoints.append(points)
        self.obb.append(turned)
        self.fields.append({**(fields or {}), "ignore": 1} if name == IGNORED else fields or {})

    def add_mask(self, name: str | None, bitmap: Bitmap, fields: Mapping[str, Json] | None = None) -> None:
        """Add an object with a mask, if masks are read. Raise ValueError if it has no pixels in the image."""
        if not self.with_masks:
            self.no_field[MASK] += 1
            return
        box, shape = as_shape(bitmap.whole())
        self.shapes[len(self.boxes)] = shape
        self.add(name, box, fields=fields)

    def add_rings(
        self, name: str | None, rings: Iterable[Iterable[Sequence[float]]], size: tuple[int, int] | None,
        fields: Mapping[str, Json] | None = None,
    ) -> None:  # fmt: skip
        """Add an object with holes: its outline, and those of the holes. Raise ValueError if nothing is left of it."""
        outline, *holes = [[(coordinate(x), coordinate(y)) for x, y in ring] for ring in rings]
        if holes and self.with_masks and size is not None:
            self.shapes[len(self.boxes)] = as_shape(_without_holes(outline, holes, size))[1]
        sign = signed_area(outline) > 0
        turned = [hole[::-1] if (signed_area(hole) > 0) == sign else hole for hole in holes if hole]
        self.add(name, extent(outline) if outline else None, join_rings([outline, *turned]), fields=fields)

    def annotation(
        self, origin: str, size: tuple[int, int] | None, has_boxes: bool, tags: Sequence[str] | None = None
    ) -> RawAnnotation:
        """Return the annotation; with `has_boxes`, an image without objects has no boxes rather than no such field.

        With `tags`, its classes are some of these.

        Raises:
            ValueError: The objects have different numbers of keypoints, or the image has several classes.
        """
        count = max(map(len, self.keypoints), default=0)
        if count and {len(points) for points in self.keypoints} - {0, count}:
            raise ValueError("its objects have different numbers of keypoints")
        check_count(len(self.boxes), count)
        if len(set(self.labels)) > 1 and tags is None:
            raise ValueError(f"it has several classes ({', '.join(map(printable, self.labels))})")
        there = bool(self.boxes) or has_boxes
        every = list(dict.fromkeys(name for fields in self.fields for name in fields))
        nothing: tuple[Keypoint, ...] = ((0.0, 0.0, 0.0),) * count
        return RawAnnotation(
            origin=origin,
            label=self.labels[0] if self.labels and tags is None else None,
            tags=None if tags is None else tuple(tag in self.labels for tag in tags),
            boxes=tuple(self.boxes) if there else None,
            box_labels=tuple(self.names) if there else None,
            landmarks=self.landmarks,
            polygons=tuple(self.polygons) if any(self.polygons) else None,
            rles=self._shapes() if self.shapes else None,
            keypoints=tuple(points or nothing for points in self.keypoints) if count else None,
            obb=tuple(obb or corners(box) for obb, box in zip(self.obb, self.boxes, strict=True))
            if any(self.obb)
            else None,
            box_fields={n: tuple(fields.get(n, 0 if n in FLAGS else None) for fields in self.fields) for n in every},
            extras=self.extras,
            image_size=size,
        )

    def _shapes(self) -> tuple[Any, ...]:
        """Return the bitmaps and polygons of all objects."""
        return tuple(self.shapes.get(i, (ring,) if ring else ()) for i, ring in enumerate(self.polygons))


def _without_holes(outline: list[Point], holes: list[list[Point]], size: tuple[int, int]) -> Mask:
    width, height = size
    check_pixels(width, height)
    whole: Mask = decode([encode_shape([outline], height, width)], height, width)[0]
    for hole in holes:
        whole &= ~decode([encode_shape([hole], height, width)], height, width)[0]
    return whole


@dataclass(frozen=True, slots=True)
class ImageEntry:
    """The annotation of an image in a file."""

    origin: str
    """File, and line or number, for messages."""
    name: bytes
    """The image, as the file names it."""
    objects: LabelledObjects | BadLabel
    """What is in the image, or why it cannot be read."""
    folder: bytes = b""
    """Folder of the file, relative to the root."""
    split: str | None = None
    """The part of the dataset to which the file assigns the image."""
    size: tuple[int, int] | None = None
    or_name: bytes = b""
    """Another name of the image, if it is not found by the first."""


class ByNameSource(BaseSource):
    """Annotations that were read at once."""

    def __init__(
        self, tree: Tree, options: SourceOptions, entries: Iterable[ImageEntry], files: Iterable[bytes]
    ) -> None:
        """Read the entries.

        Raises:
            UsageError: They hold nothing that packer has a field for, or ``--split`` is missing.
        """
        self.classes: tuple[str, ...] | None = None
        self.notes: list[str] = []
        self.label_files = frozenset(files)
        self._of_image: dict[bytes, RawAnnotation | BadLabel] = {}
        self._bad: list[NoImage | BadLabel] = []
        self._splits: dict[bytes, str | None] = {}
        self._read(tree, with_landmarks(list(entries)))
        self._split = options.split
        self._folders: tuple[bytes, ...] = ()
        there = {split for split in self._splits.values() if split is not None}
        if options.split is not None and options.split not in there:
            if there:
                names = ", ".join(sorted(map(printable, there)))
                raise UsageError(tree.root, f"no split {options.split}", f"the splits are: {names}")
            self._folders = split_folders(tree, options.split)

    def _read(self, tree: Tree, entries: Sequence[ImageEntry]) -> None:
        sound = [entry.objects for entry in entries if isinstance(entry.objects, LabelledObjects)]
        has_boxes = any(objects.boxes for objects in sound)
        left_out: Counter[str] = Counter()
        for objects in sound:
            left_out.update(objects.no_field)
        kinds = ", ".join(plural(count, printable(kind)) for kind, count in sorted(left_out.items()))
        if left_out and not any(objects.boxes or objects.labels or objects.landmarks for objects in sound):
            step = "pass --labels=none to pack the images without them"
            if MASK in left_out:
                step = f"pass {option('instance-masks')} to pack masks"
            raise UsageError(
                some_paths(sorted(self.label_files or ())),
                f"there are only {kinds}, which packer has no field for",
                step,
            )
        if left_out:
            hint = f"; {option('instance-masks')} packs masks" if MASK in left_out else ""
            self.notes.append(f"left out, because packer has no field for them: {kinds}{hint}")
        if any(len(set(objects.labels)) > 1 for objects in sound):
            every = sorted({label for objects in sound for label in objects.labels})
            self.tags = tuple(every) if all(map(is_text, every)) else None
        self.notes += _read_flags(sound)
        names, in_folder = ImageNames(tree), dict[bytes, FileImages]()
        for entry in entries:
            images = in_folder.get(entry.folder)
            if images is None:
                images = in_folder[entry.folder] = names.of_file(b"/".join([tree.root, entry.folder, b""]))
            found = images.find(entry.name) or images.find(entry.or_name)
            if len(found) > 1 and entry.split:  # each subset of a project may have a frame_000000.jpg
                split = as_bytes(entry.split).lower()
                found = [path for path in found if split in folder_of(path).lower().split(b"/")] or found
            if len(found) > 1:
                problem = f"{quoted_value(entry.name)} may be any of {some_paths(found)}"
                self._bad.append(BadLabel(entry.origin, problem, "write its path below the source"))
                continue
            if not found:
                problem = f"no image {quoted_value(entry.name)}"
                self._bad.append(NoImage(entry.origin, problem, "add the image, or remove the entry"))
                continue
            (image,) = found
            if image in self._of_image:
                problem = f"is annotated twice; the second time at {printable(entry.origin)}"
                self._of_image[image] = BadLabel(image, problem, "keep one")
            else:
                self._of_image[image] = _annotation(entry, has_boxes, self.tags)
            self._splits[image] = entry.split

    @classmethod
    def splits(cls, tree: Tree, options: SourceOptions) -> tuple[str, ...]:
        """Return the splits to which the files assign images, else the folders of splits."""
        source = cls(tree, options)  # type: ignore[call-arg]  # of a source, not of this class
        names = {split for split in source._splits.values() if split is not None}
        if len(names) > 1:
            return in_order(names) if are_splits(names) else ()
        return folder_splits(tree)

    def in_split(self, image: bytes) -> bool:
        """Return whether the files assign the image to the split; without such, whether its folder has that name."""
        if self._split is None:
            return True
        return image.startswith(self._folders) if self._folders else self._splits.get(image) == self._split

    def annotate(self, image: bytes) -> RawAnnotation:
        """Return the annotation of the image.

        Raises:
            NoLabel: No file names the image.
            BadLabel: Its entry is invalid, or there are two.
        """
        found = self._of_image.get(image)
        if found is None:
            raise NoLabel(image, "no label file names it", "add it to one, or remove the image")
        if isinstance(found, BadLabel):
            raise found
        return found

    def unmatched_labels(self) -> Iterator[NoImage | BadLabel]:
        """Yield the entries that name no image."""
        return iter(self._bad)


class NamedFilesSource(ByNameSource):
    """One or more files of a format, found by their names and first bytes, or the FILE of ``--labels KIND:FILE``.

    Raises:
        UsageError: There is no such file, or it is not one of this format.
    """

    takes_file: ClassVar[str | bool] = "optional"
    kind: ClassVar[str]
    ending: ClassVar[bytes | tuple[bytes, ...]]
    """The end of their paths, or several, in lower case."""
    words: ClassVar[tuple[bytes, ...]] = ()
    """What is in their first KiB."""
    are: ClassVar[tuple[str, str]]
    """What they are: a verb for one of them, and for several."""

    def __init__(self, tree: Tree, options: SourceOptions) -> None:
        self.instance_masks = options.instance_masks
        files = self.files_in(tree) if options.file is None else []
        if options.file is not None:
            path = file_of(tree, self.kind, options.file)
            files = [tree.below(path) or (path if is_url(path) else os.path.relpath(path, tree.root))]
        elif not files:
            raise UsageError(tree.root, f"no file of {self.kind} was found", "choose another kind of --labels")
        super().__init__(tree, options, self.entries(tree, files), files)

    @classmethod
    def files_in(cls, tree: Tree) -> list[bytes]:
        """Return the files of this format."""
        return files_like(tree, cls.ending, *cls.words)

    @staticmethod
    def read(tree: Tree, path: bytes) -> Iterable[ImageEntry]:
        """Return the entries of a file. Raise UsageError if it cannot be read."""
        raise NotImplementedError

    def entries(self, tree: Tree, files: Sequence[bytes]) -> Iterable[ImageEntry]:
        """Return the entries of all files."""
        return chain.from_iterable(self.read(tree, path) for path in files)

    @classmethod
    def recognize(cls, tree: Tree) -> list[Choice]:
        """Return this source if there are such files."""
        files = cls.files_in(tree)
        return [Choice(cls.kind, f"{some_paths(files)} {cls.are[len(files) > 1]}")] if files else []


def place_point_sets(sets: Iterable[LabelledObjects]) -> None:
    """Make the point set of each image its landmarks, or objects with keypoints if an image has two."""
    every = list(sets)
    one_set = all(len(objects.point_sets) < 2 for objects in every)
    for objects in every:
        for name, points, fields in objects.point_sets:
            if one_set:
                objects.landmarks = points
            else:
                objects.add(name, keypoints=[(x, y, VISIBLE) for x, y in points], fields=fields)


def with_landmarks(entries: list[ImageEntry]) -> list[ImageEntry]:
    """Make single points the landmarks of their images, in the order of their names.

    Where most images with points have several of a name, or others than the rest, points are objects, which packer has
    no field for.
    """
    sets = [one.objects for one in entries if isinstance(one.objects, LabelledObjects) and one.objects.points]
    if not sets:
        return entries
    each = [tuple(sorted((name for name, _ in objects.points), key=natural)) for objects in sets]
    counts = Counter(names for names in each if len({*names}) == len(names))
    names = max(counts, key=lambda one: counts[one], default=())  # the first of equals
    if 2 * counts[names] < len(sets):
        for objects in sets:
            objects.no_field["point"] += len(objects.points)
        return entries
    return [_with_landmarks(entry, list(names)) for entry in entries]


def _with_landmarks(entry: ImageEntry, names: list[str]) -> ImageEntry:
    if not isinstance(objects := entry.objects, LabelledObjects) or not objects.points:
        return entry
    found = dict(objects.points)
    if len(found) < len(objects.points) or sorted(found, key=natural) != names:
        there = ", ".join(printable(name) for name, _ in objects.points)
        problem = f"its points are {there}; those of most images {', '.join(map(printable, names))}"
        return replace(entry, objects=BadLabel(entry.origin, problem, "fix the label"))
    objects.landmarks = tuple(found[name] for name in names)
    return entry


def _read_flags(sound: Sequence[LabelledObjects]) -> list[str]:
    """Make the attributes that are called like flags whole numbers, and return notes.

    One with other values than yes and no gets another name: ``truncated`` of ``25%`` is no flag.
    """
    notes = []
    for name in FLAGS:
        owners = [(objects.fields, i) for objects in sound for i, one in enumerate(objects.fields) if name in one]
        owners = [(fields, i) for fields, i in owners if type(fields[i][name]) is not int]
        flags = [_flag_in(fields[i][name]) for fields, i in owners]
        odd = [fields[i][name] for (fields, i), flag in zip(owners, flags, strict=True) if flag is None]
        for (fields, i), flag in zip(owners, flags, strict=True):
            others = {key: value for key, value in fields[i].items() if key != name}
            fields[i] = {**others, f"{name}_value": fields[i][name]} if odd else {**others, name: flag}
        if odd:
            what = f"the attribute {name} has values such as {quoted_value(str(odd[0]))}, and is no flag"
            notes.append(f"{what}: it is packed as {name}_value")
    return notes


def _flag_in(value: Json) -> int | None:
    """Return the flag that the value of an attribute means; None if it is none."""
    if isinstance(value, int | float) and value == value // 1:
        return int(value)
    return 0 if value is None else YES_NO.get(value.strip().lower()) if isinstance(value, str) else None


def natural(name: str) -> list[tuple[int, str]]:
    """Return a key that sorts p10 after p9."""
    return [(int(digits or 0), text) for text, digits in re.findall(r"(\D*)(\d*)", name)]


def _annotation(entry: ImageEntry, has_boxes: bool, tags: Sequence[str] | None = None) -> RawAnnotation | BadLabel:
    if isinstance(entry.objects, BadLabel):
        return entry.objects
    try:
        return entry.objects.annotation(entry.origin, entry.size, has_boxes, tags)
    except ValueError as error:
        return BadLabel(entry.origin, str(error), "fix the label")


def files_like(tree: Tree, ending: bytes | tuple[bytes, ...], *words: bytes) -> list[bytes]:
    """Return the files whose lower-case path has this ending and whose first KiB contains all of these words."""
    found = [path for path in tree.files if path.lower().endswith(ending)]
    return [path for path in found if not words or all(word in read_head(tree, path, 1024) for word in words)]


def shared_json(tree: Tree) -> list[bytes]:
    """Return the JSON files that are not the label of one image, those near the root first."""
    found = [path for path in tree.files if extension_of(path) == b".json"]
    stems = {stem_of(image) for image in tree.images} if found else set[bytes]()
    return sorted((path for path in found if stem_of(path) not in stems), key=lambda path: (path.count(b"/"), path))[
        :MOST_CANDIDATES
    ]


def read_json(tree: Tree, path: bytes) -> Any:
    """Return what is in a JSON file. Raise BadLabel if it cannot be read."""
    try:
        return json.loads(read_file(tree, path, MOST_JSON_BYTES))
    except (ValueError, RecursionError) as error:
        raise BadLabel(path, f"is not JSON: {error}", "export it again") from None


def whole_size(width: Any, height: Any) -> tuple[int, int] | None:
    """Return the size of an image; None if the file does not know it."""
    return (width, height) if isinstance(width, int) and isinstance(height, int) and width and height else None
