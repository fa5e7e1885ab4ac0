"""Masks as pictures beside the images: folders of them, or files called like the images with an ending."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, replace

import numpy as np

from packer.errors import BadInput, UsageError, option, printable
from packer.images.header import read_header
from packer.images.masks import MaskValues, color_codes, gray_of
from packer.images.pillow import decode_values
from packer.model.annotation import Image, PartFile, PartSpec, RawAnnotation
from packer.sources.by_stem import ByStemSource, Matches, match_by_stem
from packer.sources.folder import MASK_ENDING, MASK_FOLDERS, MASK_NAME
from packer.sources.mask_values import Asked, files_of_values, values_in, with_classes, with_ignored
from packer.sources.paths import (
    IMAGE_FOLDERS,
    FolderSplit,
    as_bytes,
    as_text,
    folder_of,
    quoted_value,
    some_paths,
    spread,
    stem_of,
)
from packer.sources.source import LOOKS, SourceOptions, Tree
from packer.sources.tree import find_tree, read_file
from packer.sources.voc import SegmentationSplit
from packer.stores import is_url

MASK = "mask"
"""The name of the part."""
SEVERAL = 2
MOST_VALUES = 64
"""A picture with more different values is no mask of classes, but a photo, unless it has a palette."""
MOST_MASK_BYTES = 64 << 20
BLACK_AND_WHITE = frozenset((0, 255))
NOT_CLASSES = frozenset(
    b"segmentationobject instance instances depth depths target targets matte mattes alpha semantic_rgb".split()
)
"""Folders with pictures that are not maps of classes (compared in lower case)."""
NOT_CLASS_ENDING = re.compile(rb"_(?:instanceids|color|depth|target|matte)\Z", re.IGNORECASE)
PREFERRED = (b"_gtfine_labeltrainids", b"_gtfine_labelids", b"segmentationclassaug", b"segmentationclass", b"semantic")
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

    @property
    def beside(self) -> bytes:
        """The folder beside which files may say what the values mean."""
        return self.first or self.where


def mark_of(path: bytes) -> tuple[bytes, bytes]:
    """Return the folder and the ending in a path that say that it is a mask, b"" each if it does not."""
    folder, stem = folder_of(path), stem_of(path)
    parts = folder.split(b"/")
    for number, part in enumerate(parts):
        if part.lower() in MASK_FOLDERS or _plain_part(part) != part:
            return b"/".join(parts[: number + 1]), _ending_of(stem)
    return b"", _ending_of(stem)


def _ending_of(stem: bytes) -> bytes:
    match = MASK_ENDING.search(stem)
    return b"" if match is None or match[0].lower() == b"_leftimg8bit" else match[0]


def _plain_part(part: bytes) -> bytes:
    """Return the name of the folder of the images of one whose name says that masks are in it: train of train_masks."""
    match = MASK_NAME.search(part)
    return part[: match.start()] if match is not None and match.start() and match.end() == len(part) else part


def _image_stem(path: bytes) -> bytes:
    """Return what the names of an image and of its mask have in common."""
    return MASK_ENDING.sub(b"", stem_of(path))


def _plain_folder(path: bytes) -> bytes:
    """Return what the folders of an image and of its mask have in common."""
    parts = folder_of(path).split(b"/")
    return b"/".join(_plain_part(p) for p in parts if p.lower() not in MASK_FOLDERS | IMAGE_FOLDERS)


def match_masks(images: Iterable[bytes], masks: Iterable[bytes]) -> Matches:
    """Match masks to the images of the same name, but for an ending such as _mask; the nearest by their folders."""
    anywhere = ((folder_of, folder_of), (_plain_folder, _plain_folder), (lambda _: b"", lambda _: b""))
    return match_by_stem(images, masks, _image_stem, anywhere)


def find_masks(tree: Tree) -> MaskLayout | None:
    """Return the masks in a tree by their names and, of a few, their values; None if there are none.

    Of several sets that fit, such as SegmentationClass and SegmentationObject, one is chosen.
    """
    layouts = _layouts(tree.images)
    every = frozenset(path for layout in layouts for path in layout.masks)
    usable = [layout for layout in layouts if not _is_not_classes(layout.beside) and _are_masks(tree, layout)]
    if not usable:
        return None
    chosen = min(usable, key=_rank)
    others = tuple(layout.where for layout in layouts if layout is not chosen)
    return replace(chosen, others=others, all_masks=every)


def _layouts(paths: Iterable[bytes]) -> list[MaskLayout]:
    """Return the sets of pictures that fit the others by their names."""
    groups: dict[tuple[bytes, bytes], list[bytes]] = defaultdict(list)
    images: list[bytes] = []
    for path in paths:
        folder, ending = mark_of(path)
        mark = _kind_of(folder), ending.lower()
        (groups[mark] if any(mark) else images).append(path)
    return [layout for mark, paths in groups.items() if (layout := _layout(images, mark, paths)) is not None]


def _kind_of(folder: bytes) -> bytes:
    """Return what folders of one set of masks have in common: masks of train/masks and val/masks, _masks of a_masks."""
    name = folder.rpartition(b"/")[2]
    plain = _plain_part(name)
    return (name if plain == name else name[len(plain) :]).lower()


def _layout(images: Sequence[bytes], mark: tuple[bytes, bytes], masks: list[bytes]) -> MaskLayout | None:
    matches = match_masks(images, masks)
    count = len(matches.label_of)
    if count < SEVERAL or 2 * count < len(masks):
        return None
    folders = {mark_of(path)[0] for path in masks}
    folder = place = mark_of(masks[0])[0]
    if len(folders) > 1:
        place = (b"*/" if folder.rpartition(b"/")[2].lower() == mark[0] else b"*") + mark[0]
    ending = b"*" + mark[1] if mark[1] else b""
    first, where = (name + b"/" * bool(name) + ending for name in (folder, place))
    return MaskLayout(where, tuple(masks), matches, first=first)


def _is_not_classes(where: bytes) -> bool:
    parts = where.lower().split(b"/")
    return bool(NOT_CLASSES.intersection(parts)) or NOT_CLASS_ENDING.search(parts[-1]) is not None


def _rank(layout: MaskLayout) -> tuple[int, int]:
    place = layout.where.lower()
    return next((n for n, name in enumerate(PREFERRED) if name in place), len(PREFERRED)), -len(layout.matches.label_of)


def _are_masks(tree: Tree, layout: MaskLayout) -> bool:
    """Return whether a few of the pictures look like maps of classes: of few values, and as large as their image."""
    images = spread(list(layout.matches.label_of), LOOKS)
    looks = [_looks_like_mask(tree, image, layout.matches.label_of[image]) for image in images]
    return 2 * sum(looks) > len(looks)


def _looks_like_mask(tree: Tree, image: bytes, mask: bytes) -> bool:
    try:
        data, of_image = (read_file(tree, path, MOST_MASK_BYTES) for path in (mask, image))
        header, other = read_header(data), read_header(of_image)
        if header.upright_size not in (other.upright_size, (other.width, other.height)):
            return False
        values = decode_values(data, header)
    except BadInput:
        return False
    if header.format == "jpeg":
        return _is_nearly_black_and_white(values)
    found = _distinct(values)
    return len(found) <= MOST_VALUES or (values.ndim == 2 and _has_palette(data))


def _has_palette(data: bytes) -> bool:
    return data[:8] == b"\x89PNG\r\n\x1a\n" and data[25] == 3


def _is_nearly_black_and_white(values: Image) -> bool:
    return bool(((values < 32) | (values >= 224)).mean() > 0.97)


def _distinct(values: Image) -> list[int]:
    """Return the different values of a picture, of colors as r << 16 | g << 8 | b; gray in three channels is gray."""
    values = gray_of(values)
    if values.ndim == 3:
        values = color_codes(values)
    found: list[int] = np.unique(values).tolist()
    return found


class MaskSource(ByStemSource):
    """A map of classes for each image, in a picture of the image's size.

    ``--labels masks`` finds the pictures by their names; ``--mask WHERE``, or ``--labels masks:WHERE``, names their
    folder, or a pattern with {dir}, {stem} and {name}.

    Args:
        tree: The source.
        options: How they are read.
        found: The masks.
        alone: Whether the images have no other labels.

    Raises:
        UsageError: It is not clear what their values mean.
    """

    def __init__(self, tree: Tree, options: SourceOptions, found: MaskLayout, alone: bool) -> None:
        super().__init__(tree, found.matches)
        self.layout = found
        lists = SegmentationSplit.lists(tree) if alone else ()
        self.label_files = {*found.masks, *files_of_values(tree, found.beside, alone), *lists}
        split = SegmentationSplit.of(tree, options.split) if alone else None
        self.of_split = split or FolderSplit.of(tree, options.split)
        self._files = {image: _part_file(tree, mask) for image, mask in found.matches.label_of.items()}
        self.values = self._values(tree, Asked(options.mask_values, options.ignore_id, alone))
        self.classes: tuple[str, ...] | None = None
        spec = PartSpec(MASK, "mask", "uint16" if self._is_deep(tree) else "", self.values.classes, self.values.ignore)
        self.parts: Mapping[str, PartSpec] = {MASK: spec}
        if found.others:
            names = ", ".join(quoted_value(where) for where in found.others)
            self.notes.append(f"masks of {quoted_value(found.where)}; not packed: {names}")

    def _is_deep(self, tree: Tree) -> bool:
        """Return whether masks in a store have ids of 16 bits, by a few of them: the others are read by the shards."""
        if self.values.classes or not is_url(tree.root):
            return False
        for path in spread(self.layout.masks, LOOKS):
            with suppress(BadInput):  # it is rejected when it is packed
                if read_header(read_file(tree, path, MOST_MASK_BYTES)).bit_depth > 8:
                    return True
        return False

    def _values(self, tree: Tree, asked: Asked) -> MaskValues:
        """Return what the values mean; where nothing says it, a few masks are looked at."""
        known = values_in(tree, self.layout.beside, asked)
        if known is not None:
            return known
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
                seen.update(_distinct(decode_values(data, header)))
            except BadInput:
                continue  # it is rejected when it is packed
        if seen == BLACK_AND_WHITE and asked.ignore is None:
            return MaskValues(("background", "foreground"), None, ((0, 0), (255, 1)))
        if max(seen, default=0) > 65535:
            problem = f"masks in colors, and no file says what they mean ({some_paths(self.layout.masks, 1)})"
            raise UsageError(self.layout.where, problem, f"name one: {option('mask-values', 'colors:FILE')}")
        return with_ignored(MaskValues(), asked.ignore)

    def take_classes(self, names: Sequence[str] | None) -> None:
        """Give the classes these names, and make them those of the pack, if its images have no other labels.

        Raises:
            UsageError: They are not those that the masks have.
        """
        if names is not None:
            self.values = with_classes(self.values, tuple(names))
        self.parts = {MASK: replace(self.parts[MASK], classes=self.values.classes)}
        self.classes = self.values.classes or None

    def annotate(self, image: bytes) -> RawAnnotation:
        """Return the mask of the image.

        Raises:
            NoLabel: It has none.
            BadLabel: Several fit it.
        """
        if (file := self._files.get(image)) is None:
            self.label_file(image)  # raises the error
        assert file is not None
        return RawAnnotation(origin=as_text(file.path), parts={MASK: file})

    def wanted(self, image: bytes) -> str:
        """Return how an error names what an image lacks."""
        return f"mask in {printable(self.layout.where)}"

    def for_images(self, images: Sequence[bytes]) -> MaskSource | None:
        """Return a copy for a worker, with the masks of these images, wherever they are."""
        part = copy(self)
        part._tree, part._matches, part.label_files = Tree(b"", (), (), ()), self._matches.of_images(images), set()
        part._files = {image: self._files[image] for image in images if image in self._files}
        part.layout, part.of_split = MaskLayout(self.layout.where, (), Matches()), None
        return part


def masks_at(tree: Tree, where: str) -> MaskLayout:
    """Return the masks in a folder, or those that a pattern with {dir}, {stem} and {name} names.

    Raises:
        UsageError: There are none.
    """
    if "{" in where:
        return _by_pattern(tree, where)
    folder = os.path.normpath(as_bytes(where)).rstrip(b"/")
    inside = tree.below(folder) if os.path.isabs(folder) else folder
    if not inside or inside.startswith(b".."):
        return _elsewhere(tree, os.path.join(tree.root, folder))
    masks = [path for path in tree.images if path.startswith(inside + b"/")]
    if not masks:
        there = sorted({folder_of(path) + b"/" for path in tree.images if folder_of(path)})
        problem = f"has no pictures in {quoted_value(inside + b'/')}"
        raise UsageError(tree.root, problem, f"its folders with pictures are: {some_paths(there, 10)}")
    return _beside_others(inside + b"/", masks, (path for path in tree.images if not path.startswith(inside + b"/")))


def _beside_others(where: bytes, masks: Sequence[bytes], others: Iterable[bytes]) -> MaskLayout:
    """Return masks and the other pictures that they fit; of these, further sets of masks are no images, either."""
    others = list(others)
    layouts = _layouts(others)
    every = frozenset(path for layout in layouts for path in layout.masks)
    matches = match_masks((path for path in others if path not in every), masks)
    return MaskLayout(where, tuple(masks), matches, tuple(layout.where for layout in layouts), every.union(masks))


def _elsewhere(tree: Tree, folder: bytes) -> MaskLayout:
    """Return the masks in a folder outside the source, by their absolute paths."""
    other, _ = find_tree(folder)
    masks = [os.path.join(other.root, path) for path in other.images]
    if not masks:
        raise UsageError(folder, "has no pictures", "name the folder of the masks")
    return _beside_others(other.root + b"/", masks, tree.images)


def _by_pattern(tree: Tree, pattern: str) -> MaskLayout:
    try:
        pattern.format(dir="", stem="", name="")
    except (AttributeError, LookupError, TypeError, ValueError):
        problem = f"{printable(pattern)} is not a pattern of {{dir}}, {{stem}} and {{name}}"
        raise UsageError(option("mask"), problem, 'write one such as "{dir}/{stem}_mask.png"') from None
    there = set(tree.images)
    named = {image: _formatted(pattern, image) for image in tree.images}
    masks = {mask for image, mask in named.items() if mask in there and mask != image}
    layouts = _layouts(path for path in tree.images if path not in masks)
    every = masks.union(*(layout.masks for layout in layouts))
    matches = Matches({image: mask for image, mask in named.items() if mask in masks and image not in every})
    if not masks:
        one = next(iter(named.values()), b"")
        raise UsageError(option("mask"), f"names no file: there is no {quoted_value(one)}", "correct the pattern")
    first = folder_of(min(masks)) + b"/"
    others = tuple(layout.where for layout in layouts)
    return MaskLayout(as_bytes(pattern), tuple(sorted(masks)), matches, others, frozenset(every), first)


def _formatted(pattern: str, image: bytes) -> bytes:
    name = image.rpartition(b"/")[2]
    parts = {"dir": as_text(folder_of(image)), "stem": as_text(stem_of(image)), "name": as_text(name)}
    return os.path.normpath(as_bytes(pattern.format(**parts))).lstrip(b"/")


def without_masks(tree: Tree, layout: MaskLayout) -> Tree:
    """Return a tree without masks, and what only they need."""
    own = layout.all_masks.union(files_of_values(tree, layout.beside, alone=False))
    left = [path for path in tree.images if path not in own]
    only_masks = _folders_of(layout.all_masks) - _folders_of(left)
    return replace(
        tree,
        images=left,
        files=[path for path in tree.files if path not in own],
        folders=[folder for folder in tree.folders if folder not in only_masks],  # a folder without images is a class
        image_folders=None,
    )


def _folders_of(paths: Iterable[bytes]) -> set[bytes]:
    """Return the folders of files, and those that these are in."""
    found: set[bytes] = set()
    level = {folder_of(path) for path in paths}
    while level := level - found - {b""}:
        found |= level
        level = {folder_of(folder) for folder in level}
    return found


def _part_file(tree: Tree, path: bytes) -> PartFile:
    if tree.members is None or path.startswith(b"/"):
        return PartFile(path)
    (row,) = tree.members.rows([path])
    archive, offset, size, packed, crc = tree.members.places[row].tolist()
    return PartFile(path, size, archive, offset, packed, crc, tree.members.etags[row] if tree.members.etags else None)
