"""COCO: a JSON file of images, objects and categories; boxes, polygons, masks and keypoints."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain

from packer.errors import BadLabel, NoImage, NoLabel, PackerError, UsageError, option, plural, printable
from packer.model.annotation import Json, RawAnnotation
from packer.sources.box_corners import turned_boxes
from packer.sources.by_name import shared_json
from packer.sources.coco_file import MEMBERS, CocoFile, JsonMap, classes_in
from packer.sources.coco_objects import CocoObject, far_off, number_in, shape_of
from packer.sources.path_finder import ImageNames
from packer.sources.paths import (
    FolderSplit,
    as_bytes,
    as_text,
    check_count,
    file_of,
    file_splits,
    folder_splits,
    is_of_split,
    some_paths,
    splits_in,
)
from packer.sources.source import BaseSource, Choice, SourceOptions, Tree
from packer.sources.tree import read_head
from packer.stores import joined

HEAD_BYTES = 4096
KEYS = re.compile(rb'"(?:images|annotations|categories|info|licenses)"\s*:')
FIRST_BYTES = 1 << 16
SHORTEST_OBJECT = 8
"""A shorter list has no objects: all images are without."""
OF_SEGMENTS = re.compile(rb'"segments_info"\s*:')  # panoptic
OF_OBJECTS = re.compile(rb'"(?:bbox|segmentation)"\s*:')
OF_KEYPOINTS = re.compile(rb'"keypoints"\s*:')
Row = tuple[int, int]
"""Number of a file, and of an image's entry in it."""


class CocoSource(BaseSource):
    """One or more COCO files. Images that they do not name are not part of the dataset.

    Raises:
        UsageError: There is no such file, it cannot be read, or two files contradict each other.
    """

    takes_file = "optional"
    joins_files = True

    def __init__(self, tree: Tree, options: SourceOptions) -> None:
        self.notes: list[str] = []
        maps = {} if options.files else _coco_files(tree)
        paths = [file_of(tree, "coco", file) for file in options.files] or list(maps)
        self.label_files = set(map(tree.below, paths))
        names = ImageNames(tree)
        every = paths
        if options.split is not None:
            chosen = [path for path in paths if is_of_split(names.told(path), as_bytes(options.split))]
            self.of_split = None if chosen else FolderSplit(tree, options.split)
            paths = chosen or paths
        self._files = []
        self._row_of: dict[bytes, Row] = {}
        self._repeated: dict[bytes, list[Row]] = {}
        classes: list[tuple[str, ...]] = []
        for path in every:
            told = printable(names.told(path))
            mapped = maps.get(path) or JsonMap(tree, path, told)
            mapped.name = told
            if path in paths:
                self._files.append(CocoFile(mapped, names.of_file(path), options.rle_polygons))
            classes.append(self._files[-1].classes if path in paths else classes_in(mapped))
        for number, file in enumerate(self._files):
            for image, row in file.images:
                if self._row_of.setdefault(image, (number, row)) != (number, row):
                    self._repeated.setdefault(image, [self._row_of[image]]).append((number, row))
            self.notes += file.notes
        self._refuse_copies()
        longest = self._joined_classes()
        if len(every) > len(paths):  # those of all splits, in an order that does not depend on which is asked for
            classes.sort(key=len, reverse=True)
            longest = tuple(dict.fromkeys(chain.from_iterable(classes)))
        self.classes: tuple[str, ...] | None = longest
        flips = {file.flip_index for file in self._files if file.rules.points}
        self.flip_index: tuple[int, ...] | None = flips.pop() if len(flips) == 1 else None
        if len({file.rules.points for file in self._files}) > 1:
            self._refuse_points()
        self._not_named = f"not in {some_paths([as_bytes(file.name) for file in self._files])}"
        self._crumbs = 0
        self._masks = options.instance_masks
        if any("counts" in file.fields for file in self._files) and not (
            options.instance_masks or options.rle_polygons
        ):
            self.notes.append(f"run lengths are kept as text; {option('instance_masks')} packs a mask of each object")

    @staticmethod
    def recognize(tree: Tree) -> list[Choice]:
        """Return COCO if there are such files: all of them, or one of each kind if there are boxes and keypoints."""
        kinds = {path: kind for path, (kind, _) in _kinds(tree).items()}
        if not kinds:
            return []
        if len(set(kinds.values())) == 1:
            are = "are COCO files" if len(kinds) > 1 else "is a COCO file"
            return [Choice("coco", f"{some_paths(kinds)} {are} of {next(iter(kinds.values()))}")]
        return [
            Choice(f"coco:{as_text(joined(tree.root, path))}", f"a COCO file of {kind}") for path, kind in kinds.items()
        ]

    @staticmethod
    def splits(tree: Tree, options: SourceOptions) -> tuple[str, ...]:
        """Return the splits that the files are named after, else those of the folders of images.

        One file that is named after a split, and was asked for, is that split.
        """
        paths = [file_of(tree, "coco", file) for file in options.files] or list(_coco_files(tree))
        names = [ImageNames(tree).told(path) for path in paths]
        if options.files and len(names) == 1 and splits_in(names[0]):
            return ()
        return file_splits(names) or folder_splits(tree)

    def left_out(self, image: bytes) -> str | None:
        """Return why an image is not part of the dataset: no file names it."""
        return None if image in self._row_of else self._not_named

    def annotate(self, image: bytes) -> RawAnnotation:
        """Return the objects of the image.

        Raises:
            NoLabel: No file names the image.
            BadLabel: Its entry or an object is invalid.
        """
        if image not in self._row_of:
            raise NoLabel(image, f"is {self._not_named}", "add it, or remove the image")
        if image in self._repeated:
            files = ", ".join(self._files[number].name for number, _ in self._repeated[image])
            raise BadLabel(image, f"is in several files: {files}", "name one of them: --labels=coco:FILE")
        number, row = self._row_of[image]
        file = self._files[number]
        origin, key, size = file.image(row)
        found = list(file.objects(row))
        try:
            check_count(len(found), file.rules.points)
        except ValueError as error:
            raise BadLabel(origin, str(error), "correct the keypoints") from None
        shapes, classes = [], []
        for i, one in enumerate(found):
            try:
                classes.append(file.class_of(one.category_id))
                shapes.append(shape_of(one, size, file.rules))
            except ValueError as error:
                raise BadLabel(file.where(row, i), str(error), "fix the object") from None
        boxes, polygons, rles, keypoints, crumbs, _ = zip(*shapes, strict=True) if shapes else ((),) * 6
        if far := far_off(polygons):
            raise BadLabel(file.where(row, far[0]), f"{far[1]:g} is not a coordinate", "fix the object")
        self._crumbs += sum(crumbs)
        boxes, obb = turned_boxes(boxes, [one.rotation for one in found] if "rotation" in file.fields else ())
        return RawAnnotation(
            origin=origin,
            boxes=boxes,
            box_labels=tuple(classes),
            polygons=polygons if any(polygons) and not self._masks else None,
            rles=tuple(one.shape for one in shapes) if self._masks and any(one.shape for one in shapes) else None,
            keypoints=keypoints if file.rules.points else None,
            obb=obb,
            box_fields=_fields(file, found, None if self._masks else rles),
            extras={"image_id": key},
            image_size=size,
        )

    def unmatched_labels(self) -> Iterator[NoImage | BadLabel]:
        """Yield the images and objects that name nothing."""
        if self._crumbs:
            what = plural(self._crumbs, "polygon of fewer than 3 points was", "polygons of fewer than 3 points were")
            self.notes.append(f"{what} left out")
        for file in self._files:
            yield from file.unmatched()

    def _joined_classes(self) -> tuple[str, ...]:
        """Return the classes of all files, which must number them alike as far as they go."""
        longest = max(self._files, key=lambda file: len(file.classes))
        for file in self._files:
            if longest.classes[: len(file.classes)] != file.classes:
                problem = f"{file.name} and {longest.name} have different categories"
                raise UsageError(option("labels"), problem, "pack them one by one, with one --classes=FILE for all")
        return longest.classes

    def _refuse_copies(self) -> None:
        """Raise UsageError if a file has the images of others: it is another version of them."""
        for file in self._files:
            images = [image for image, _ in file.images]
            file.images.clear()
            if images and all(image in self._repeated for image in images):
                names = " and ".join(self._files[number].name for number, _ in self._repeated[images[0]])
                raise UsageError(
                    option("labels"), f"{names} are of the same images", "name one of them: --labels=coco:FILE"
                )

    def _refuse_points(self) -> None:
        counts = ", ".join(f"{file.name} {file.rules.points}" for file in self._files)
        raise UsageError(
            option("labels"), f"the files have different numbers of keypoints: {counts}", "pack them one by one"
        )


def _fields(file: CocoFile, found: list[CocoObject], rles: tuple[Json, ...] | None) -> dict[str, tuple[Json, ...]]:
    fields: dict[str, tuple[Json, ...]] = {
        "iscrowd": tuple([int(bool(number_in(one.iscrowd))) for one in found]),
        "category_id": tuple([one.category_id for one in found]),
    }
    if "ignore" in file.fields:
        fields["ignore"] = tuple([int(bool(number_in(one.ignore))) for one in found])
    if "area" in file.fields:
        areas = [number_in(one.area) for one in found]
        fields["area"] = tuple([area if isinstance(area, (int, float)) else None for area in areas])
    if rles is not None and "counts" in file.fields:
        fields["rle"] = rles
    return fields


def _coco_files(tree: Tree) -> dict[bytes, JsonMap]:
    """Return all COCO files of a tree by their paths. Raise UsageError if there are none, or of several kinds."""
    kinds = _kinds(tree)
    if not kinds:
        raise UsageError(tree.root, "holds no COCO file", "name it: --labels=coco:FILE")
    if len({kind for kind, _ in kinds.values()}) > 1:
        files = ", ".join(f"{printable(path)} ({kind})" for path, (kind, _) in kinds.items())
        raise UsageError(tree.root, f"holds COCO files of boxes and of keypoints: {files}", "name those to pack")
    return {joined(tree.root, path): file for path, (_, file) in kinds.items()}


def _kinds(tree: Tree) -> dict[bytes, tuple[str, JsonMap]]:
    """Return the COCO files of a tree by their paths below it, each with the `_kind` of its objects."""
    kinds = {}
    for path in shared_json(tree):
        with suppress(PackerError):
            if KEYS.search(read_head(tree, path, HEAD_BYTES)) and (kind := _kind(file := JsonMap(tree, path, ""))):
                kinds[path] = kind, file
    return kinds


def _kind(file: JsonMap) -> str:
    """Return what the objects of a COCO file are, boxes or keypoints; "" for another file, as of captions."""
    places = file.members(MEMBERS)
    if len(places) < len(MEMBERS):
        return ""
    start, stop = places["annotations"]
    first = file.view[start : min(stop, start + FIRST_BYTES)]
    if OF_SEGMENTS.search(first):
        return ""
    if OF_KEYPOINTS.search(first):
        return "keypoints"
    return "boxes" if OF_OBJECTS.search(first) or stop - start < SHORTEST_OBJECT else ""
