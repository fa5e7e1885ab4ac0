"""Masks as pictures beside the images: folders of them, or files called like the images with an ending."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from packer.errors import BadInput, UsageError, option, printable
from packer.images.header import read_header
from packer.images.masks import MaskValues, color_codes, gray_of, has_palette
from packer.images.parts import BY_KIND
from packer.images.pillow import decode_values
from packer.model.annotation import Image, PartSpec
from packer.sources.ade20k import is_ade20k, other_pictures
from packer.sources.by_stem import Matches
from packer.sources.coco_masks import VOID, Panoptic, panoptic_in
from packer.sources.folder import MASK_ENDING, MASK_FOLDERS
from packer.sources.mask_values import (
    Asked,
    files_of_values,
    renamed,
    same_as_masks,
    values_in,
    with_classes,
    with_ignored,
)
from packer.sources.part_files import FilesAt, PartSource, facts_of_few, files_at, match_files, plain_part, without
from packer.sources.paths import FolderSplit, folder_of, quoted_value, some_paths, spread, stem_of
from packer.sources.published_colors import sets_with
from packer.sources.source import LOOKS, SourceOptions, Tree
from packer.sources.tree import read_file
from packer.sources.voc import SegmentationSplit

if TYPE_CHECKING:
    from typing_extensions import Self

MASK = "mask"
"""The name of the part."""
SEVERAL = 2
MOST_VALUES = 64
"""A picture with more different values is no mask of classes, but a photo, unless it has a palette."""
MOST_MASK_BYTES = 64 << 20
BLACK_AND_WHITE = frozenset((0, 255))
NOT_CLASSES = frozenset(
    b"segmentationobject instance instances depth depths target targets matte mattes alpha semantic_rgb"
    b" panoptic".split()
)
"""Folders with pictures that are not maps of classes (compared in lower case)."""
NOT_CLASS_ENDING = re.compile(rb"_(?:instanceids|color|depth|target|matte)\Z", re.IGNORECASE)
COCO_FOLDER = re.compile(rb"(panoptic)_.+|.+_(pixelmaps)", re.IGNORECASE)
"""Folders of COCO's pictures, one for each split, which may be in one folder with those of the other kind."""
VERSION = re.compile(rb"(?:\A|/)(v[0-9]\.[0-9]/[^/]+)\Z")
"""The end of a folder of Mapillary Vistas: an image has masks of two versions of the classes."""
PREFERRED = (
    b"v2.0/labels",
    b"_labeltrainids",
    b"_gtfine_labelids",
    b"segmentationclassaug",
    b"segmentationclass",
    b"semantic",
    b"panoptic",
)
"""Of several sets of masks, the first of these is taken, else the one that fits most images."""


@dataclass(frozen=True, slots=True)
class MaskLayout:
    """Masks, and the images that they belong to."""

    where: bytes
    """Their folder, or the ending of their names, as a note names it; several folders of a name as */masks/."""
    masks: tuple[bytes, ...]
    """All of them, with those that fit no image."""
    matches: Matches
    others: tuple[bytes, ...] = ()
    """Where there are pictures that fit the images, too, and are not packed."""
    all_masks: frozenset[bytes] = frozenset()
    """Those and the masks: what is not an image of the dataset."""
    first: bytes = b""
    """As `where` if that is of several folders: the first of them."""
    lists: frozenset[bytes] = frozenset()
    """The lists that name them, if it is not by their own names that they belong to the images."""
    has_labels: bool = False
    """Whether these lists also have other labels."""

    @property
    def beside(self) -> bytes:
        """The folder beside which files may say what the values mean."""
        return self.first or self.where


def mark_of(path: bytes) -> tuple[bytes, bytes]:
    """Return the folder and the ending in a path that say that it is a mask, b"" each if it does not."""
    folder, stem = folder_of(path), stem_of(path)
    parts = folder.split(b"/")
    for number in reversed(range(len(parts))):
        if COCO_FOLDER.fullmatch(parts[number]):
            return b"/".join(parts[: number + 1]), _ending_of(stem)
    for number, part in enumerate(parts):
        if part.lower() in MASK_FOLDERS or plain_part(part) != part:
            return b"/".join(parts[: number + 1]), _ending_of(stem)
    return b"", _ending_of(stem)


def _ending_of(stem: bytes) -> bytes:
    match = MASK_ENDING.search(stem)
    return b"" if match is None or match[0].lower() == b"_leftimg8bit" else match[0]


def find_masks(tree: Tree) -> MaskLayout | None:
    """Return the masks in a tree by their names and, of a few, their values; None if there are none.

    Of several sets that fit, such as SegmentationClass and SegmentationObject, one is chosen.
    """
    layouts = layouts_of(tree.images)
    every = frozenset(path for layout in layouts for path in layout.masks)
    layouts = [layout for layout in layouts if not is_ade20k(tree, layout.masks)]  # its classes depend on the image
    usable = [layout for layout in layouts if not _is_not_classes(layout.beside) and are_masks(tree, layout)]
    if not usable:
        return None
    chosen = min(usable, key=_rank)
    others = tuple(layout.where for layout in layouts if layout is not chosen)
    return replace(chosen, others=others, all_masks=every)


def layouts_of(paths: Collection[bytes]) -> list[MaskLayout]:
    """Return the sets of pictures that fit the others by their names."""
    left_out = frozenset(other_pictures(paths))
    groups: dict[tuple[bytes, bytes], list[bytes]] = defaultdict(list)
    images: list[bytes] = []
    for path in paths:
        if path in left_out:
            continue
        folder, ending = mark_of(path)
        mark = _kind_of(folder), ending.lower()
        (groups[mark] if any(mark) else images).append(path)
    return [layout for mark, paths in groups.items() if (layout := _layout(images, mark, paths)) is not None]


def _kind_of(folder: bytes) -> bytes:
    """Return what folders of one set of masks have in common: masks of train/masks and val/masks, _masks of a_masks."""
    name = folder.rpartition(b"/")[2]
    if (version := VERSION.search(folder)) is not None:
        return version[1].lower()
    if (of_coco := COCO_FOLDER.fullmatch(name)) is not None:
        return (of_coco[1] or of_coco[2]).lower()
    plain = plain_part(name)
    return (name if plain == name else name[len(plain) :]).lower()


def _layout(images: Sequence[bytes], mark: tuple[bytes, bytes], masks: list[bytes]) -> MaskLayout | None:
    matches = match_files(images, masks)
    count = len(matches.label_of)
    if count < min(SEVERAL, len(images)) or 2 * count < len(masks):
        return None
    folders = {mark_of(path)[0] for path in masks}
    folder = place = mark_of(masks[0])[0]
    if len(folders) > 1:
        place = (b"*/" if (b"/" + folder.lower()).endswith(b"/" + mark[0]) else b"*") + mark[0]
    ending = b"*" + mark[1] if mark[1] else b""
    first, where = (name + b"/" * bool(name) + ending for name in (folder, place))
    return MaskLayout(where, tuple(masks), matches, first=first)


def _is_not_classes(where: bytes) -> bool:
    parts = where.lower().split(b"/")
    return bool(NOT_CLASSES.intersection(parts)) or NOT_CLASS_ENDING.search(parts[-1]) is not None


def _is_of_objects(where: bytes) -> bool:
    return b"segmentationobject" in where.lower() or b"instance" in where.lower()


def _rank(layout: MaskLayout) -> tuple[int, int]:
    place = layout.where.lower()
    return next((n for n, name in enumerate(PREFERRED) if name in place), len(PREFERRED)), -len(layout.matches.label_of)


def are_masks(tree: Tree, layout: MaskLayout) -> bool:
    """Return whether a few of the pictures look like maps of classes: of few values, and as large as their image."""
    images = spread(list(layout.matches.label_of), LOOKS)
    looks = [_looks_like_mask(tree, image, layout.matches.label_of[image]) for image in images]
    return 2 * sum(looks) > len(looks)


def _looks_like_mask(tree: Tree, image: bytes, mask: bytes) -> bool:
    try:
        return looks_like_mask(*(read_file(tree, path, MOST_MASK_BYTES) for path in (mask, image)))
    except BadInput:
        return False


def looks_like_mask(data: bytes, of_image: bytes) -> bool:
    """Return whether a picture looks like the map of classes of an image. Raise BadInput if one cannot be read."""
    header, other = read_header(data), read_header(of_image)
    if header.upright_size not in (other.upright_size, (other.width, other.height)):
        return False
    values = decode_values(data, header)
    if header.format == "jpeg":
        return _is_nearly_black_and_white(values)
    return len(distinct_values(values)) <= MOST_VALUES or (values.ndim == 2 and has_palette(data))


def _is_nearly_black_and_white(values: Image) -> bool:
    return bool(((values < 32) | (values >= 224)).mean() > 0.97)


def distinct_values(values: Image) -> list[int]:
    """Return the different values of a picture, of colors as r << 16 | g << 8 | b; gray in three channels is gray."""
    values = gray_of(values)
    if values.ndim == 3:
        values = color_codes(values)
    found: list[int] = np.unique(values).tolist()
    return found


class MaskSource(PartSource):
    """A map of classes for each image, in a picture of the image's size.

    ``--labels masks`` finds the pictures by their names; ``--mask WHERE``, or ``--labels masks:WHERE``, names their
    folder, or a pattern with {dir}, {stem} and {name}.

    Args:
        tree: The source.
        options: How they are read.
        found: The masks.
        alone: Whether the images have no other labels.
        name: That of the part.

    Raises:
        UsageError: It is not clear what their values mean.
    """

    has_splits = True

    def __init__(self, tree: Tree, options: SourceOptions, found: MaskLayout, alone: bool, name: str = MASK) -> None:
        self.layout, self.are_alone = found, alone
        super().__init__(tree, PartSpec(name, "mask"), found.where, found.masks, found.matches)
        lists = SegmentationSplit.lists(tree) if alone else ()
        self.label_files = {*found.masks, *files_of_values(tree, found.beside, alone), *lists}
        split = SegmentationSplit.of(tree, options.split) if alone else None
        self.of_split = None if found.lists else split or FolderSplit.of(tree, options.split)
        self.values = self._values(tree, Asked(options.mask_values, options.ignore_id, alone))
        self.classes: tuple[str, ...] | None = None
        self.old_classes: tuple[str, ...] = ()
        """The names of those that have got others."""
        # masks in a store have ids of 16 bits if a few of them have
        dtypes = [] if self.values.classes else [one.dtype for one in facts_of_few(tree, BY_KIND["mask"], found.masks)]
        self.parts = {name: PartSpec(name, "mask", max(dtypes, default=""), self.values.classes, self.values.ignore)}
        if found.others:
            names = ", ".join(quoted_value(where) for where in found.others)
            objects = [where for where in found.others if _is_of_objects(where)]
            hint = f" ({option('labels', 'instances')} packs objects)" if objects else ""
            self.notes.append(f"masks of {quoted_value(found.where)}; not packed: {names}{hint}")

    def _values(self, tree: Tree, asked: Asked) -> MaskValues:
        """Return what the values mean; where nothing says it, a few masks are looked at."""
        if (panoptic := panoptic_in(tree, asked.values, self.layout.masks)) is not None:
            return self._segments(panoptic, asked.ignore)
        known = values_in(tree, self.layout.beside, asked)
        if known is not None:
            of_ids = with_ignored(MaskValues(known.classes), asked.ignore)
            return of_ids if asked.values is None and known.in_colors and self._are_ids(tree, known) else known
        seen: set[int] = set()
        looks = spread(self.layout.masks, LOOKS)
        for number, path in enumerate(dict.fromkeys((*looks, *self.layout.masks))):
            if number >= len(looks) and not (len(seen) < SEVERAL and seen <= BLACK_AND_WHITE):
                break  # masks that are all background do not say what the others have: 1 or 255
            try:
                data = read_file(tree, path, MOST_MASK_BYTES)
                header = read_header(data)
                if header.format == "jpeg":
                    return MaskValues(("background", "foreground"), asked.ignore, binary=True)
                seen.update(distinct_values(decode_values(data, header)))
            except BadInput:
                continue  # it is rejected when it is packed
        if seen == BLACK_AND_WHITE and asked.ignore is None:
            return MaskValues(("background", "foreground"), None, ((0, 0), (255, 1)))
        if max(seen, default=0) > 65535:
            problem = f"masks in colors, and no file says what they mean ({some_paths(self.layout.masks, 1)})"
            published = [f"{option('mask-values', f'colors:{name}')} (as published), or " for name in sets_with(seen)]
            step = f"name one: {''.join(published)}{option('mask-values', 'colors:FILE')}"
            raise UsageError(self.layout.where, problem, step)
        return with_ignored(MaskValues(), asked.ignore)

    def _are_ids(self, tree: Tree, colors: MaskValues) -> bool:
        """Return whether a few masks have the numbers of classes that a file gives colors to."""
        seen: set[int] = set()
        for path in spread(self.layout.masks, LOOKS):
            try:
                data = read_file(tree, path, MOST_MASK_BYTES)
                values = gray_of(decode_values(data, read_header(data)))
            except BadInput:
                continue  # it is rejected when it is packed
            if values.ndim == 3:
                return False
            seen.update(distinct_values(values))
        grays = {code & 255 for code, _ in colors.ids if code == (code & 255) * 0x010101}
        return bool(seen) and not seen <= grays and max(seen) < len(colors.classes)

    @classmethod
    def of_files(cls, tree: Tree, options: SourceOptions, name: str, files: FilesAt, matches: Matches) -> MaskSource:
        """Return the source of masks that are a part of another name than that of ``--mask``."""
        return cls(tree, options, MaskLayout(files.where, files.paths, matches), False, name)

    def _segments(self, panoptic: Panoptic, ignore: int | None) -> MaskValues:
        """Note the classes of the segments of each mask, and return what all have in common."""
        values = with_ignored(MaskValues(panoptic.classes), ignore)
        void = () if values.ignore is None else (VOID, values.ignore)
        for image, file in [*self._files.items()]:
            if (ids := panoptic.of_mask(file.path)) is not None:
                self._files[image] = file._replace(ids=(*void, *ids))
                continue
            del self._files[image]
            self.matches.refused[image] = f"its mask {printable(file.path)} is not in the file of the segments"
            self.matches.step = "complete the file, or remove the mask"
        return values

    def rename(self, new_name: Callable[[str], str | None]) -> None:
        """Give the classes other names, as `renamed` does. Raise UsageError if the pixels cannot follow."""
        self.old_classes = self.values.classes
        self.values = renamed(self.values, new_name)
        classes, ignore = self.values.classes, self.values.ignore
        self.parts = {name: replace(spec, classes=classes, ignore=ignore) for name, spec in self.parts.items()}

    def take_classes(self, names: Sequence[str] | None) -> None:
        """Give the classes these names, and make them those of the pack, if its images have no other labels.

        Raises:
            UsageError: They are not those that the masks have.
        """
        if names is not None:
            self.values = with_classes(self.values, tuple(names))
        self.parts = {name: replace(spec, classes=self.values.classes) for name, spec in self.parts.items()}
        self.classes = self.values.classes or None

    def for_images(self, images: Sequence[bytes]) -> Self | None:
        """Return a copy for a worker, with the masks of these images, wherever they are."""
        if (part := super().for_images(images)) is not None:
            part.layout = MaskLayout(self.layout.where, (), Matches())
        return part


def masks_at(tree: Tree, where: str) -> MaskLayout:
    """Return the masks in a folder, or those that a pattern with {dir}, {stem} and {name} names.

    Of the other pictures, further sets of masks are no images, either.

    Raises:
        UsageError: There are none.
    """
    files = files_at(tree, where, BY_KIND[MASK])
    masks = frozenset(files.paths)
    layouts = layouts_of([path for path in tree.images if path not in masks])
    every = masks.union(*(layout.masks for layout in layouts))
    matches = files.matches(path for path in tree.images if path not in every)
    others = tuple(layout.where for layout in layouts)
    first = b"" if files.of_image is None else folder_of(files.paths[0]) + b"/"
    return MaskLayout(files.where, files.paths, matches, others, every, first)


def masks_among(paths: Collection[bytes]) -> frozenset[bytes]:
    """Return the pictures that are named like masks of the others."""
    return frozenset(path for layout in layouts_of(paths) for path in layout.masks)


def without_masks(tree: Tree, layout: MaskLayout) -> Tree:
    """Return a tree without masks, and what only they need."""
    beside = files_of_values(tree, layout.beside, alone=False)
    rest = without(tree, layout.all_masks.union(beside, same_as_masks(tree, layout.beside)))
    return replace(rest, mask_lists=layout.lists)
