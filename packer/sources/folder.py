"""Class folders, as torchvision's ImageFolder reads them (`FolderSource`), and images without labels (`NoneSource`)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from copy import copy
from itertools import chain

from packer.errors import BadLabel, NoImage, NoLabel, UsageError, plural, printable
from packer.model.annotation import RawAnnotation
from packer.sources.base import BaseSource, Choice, SourceOptions, Tree
from packer.sources.parquet.file import parquet_files
from packer.sources.paths import (
    IMAGE_FOLDERS,
    LABEL_FOLDERS,
    NEVER_CLASSES,
    SPLIT_FOLDER,
    as_bytes,
    as_text,
    named,
    split_folders,
)
from packer.sources.splits import folder_splits, in_order, splits_in

NOTHING = RawAnnotation(origin="")


def split_prefix(tree: Tree, split: str | None) -> bytes:
    """Return the folder of a split with a final slash; b"" without ``--split``. Raise UsageError if it is missing.

    The folder may be below the one folder of all images: ``images/train``.
    """
    if split is None:
        return b""
    name = as_bytes(split).strip(b"/")
    base = images_below(image_folders(tree), b"")
    for folder in dict.fromkeys((name, base + name)):
        if folder in tree.folders:
            return folder + b"/"
    there = _subfolders(tree, base) or _subfolders(tree, b"")
    problem = f"no folder for --split={split}"
    next_step = f"its folders are: {named(there, 10)}" if there else "it has no folders; leave out --split"
    raise UsageError(tree.root, problem, next_step)


def image_folders(tree: Tree) -> set[bytes]:
    """Return the folders that directly hold images, with a final slash; b"" for the root."""
    if tree.image_folders is not None:
        return set(tree.image_folders)
    return {image[: image.rfind(b"/") + 1] for image in tree.images}


def images_below(folders: set[bytes], prefix: bytes) -> bytes:
    """Return the prefix with the folders such as images/ that hold all `image_folders` below it."""
    while prefix not in folders and len(tops := tops_of(folders, prefix)) == 1:
        top = tops.pop()
        if top.lower() not in IMAGE_FOLDERS:
            break
        prefix += top + b"/"
    return prefix


def tops_of(folders: set[bytes], prefix: bytes) -> set[bytes]:
    """Return the names of the folders at a prefix that have images in them or below."""
    start = len(prefix)
    return {path[start : path.index(b"/", start)] for path in folders if path.startswith(prefix) and path != prefix}


class FolderSource(BaseSource):
    """Class folders: the class of ``cat/deep/1.jpg``, or of ``train/cat/1.jpg`` with ``--split train``, is ``cat``.

    Empty class folders count, so that ids do not depend on which classes have images.

    Raises:
        UsageError: The folders are splits, and ``--split`` is missing or names none of them.
    """

    def __init__(self, tree: Tree, options: SourceOptions) -> None:
        split, folders = split_prefix(tree, options.split), image_folders(tree)
        if options.split is None:
            _refuse_splits(tree)
        self._split = split
        self.notes: list[str] = []
        self._prefix, names = _class_folders(tree, folders, split)
        if options.split is not None:
            of_split = {
                each: _class_folders(tree, folders, each)[1] for each in (split, *_beside(tree, folders, split))
            }
            real = {each: [] if all(map(_holds_images, found)) else found for each, found in of_split.items()}
            if any(real.values()):  # beside those with classes, a split with nothing but images/ has none
                of_split, self._prefix = real, images_below(folders, split)
            names = sorted({*chain.from_iterable(of_split.values())})
            self.notes += _other_classes(split, of_split)
        self.classes: tuple[str, ...] | None = tuple(as_text(name) for name in names)
        self.label_files: frozenset[bytes] = frozenset()
        self._of_folder: dict[bytes, RawAnnotation] = {}
        """The annotation shared by all images of a class."""

    @staticmethod
    def recognize(tree: Tree) -> list[Choice]:
        """Return the choice of class folders, if there are two or more.

        A single folder may just be the name of the dataset. Folders called images, masks, annotations or train are
        never classes, nor are whole datasets with images and labels of their own.
        """
        if parquet_files(tree):
            return []
        folders = image_folders(tree)
        base = images_below(folders, b"")
        classes = tops_of(folders, base)
        splits = {top for top in classes if SPLIT_FOLDER.fullmatch(top)}
        if splits:
            inner = [images_below(folders, base + split + b"/") for split in splits]
            classes = (classes - splits).union(*(tops_of(folders, prefix) for prefix in inner))
        if len(classes) < 2 or any(top.lower() in NEVER_CLASSES for top in classes):
            return []
        if 2 * sum(map(_is_part, classes)) >= len(classes):
            return []
        if splits and tops_of(folders, base) - splits:
            return []  # some of the folders are splits and others are not
        if any(_is_dataset(tree, base + top) for top in classes):
            return []
        below = f" below the splits {', '.join(sorted(map(printable, splits)))}" if splits else ""
        return [Choice("folder", f"the images are in {plural(len(classes), 'class folder')}{below}")]

    @staticmethod
    def splits(tree: Tree, options: SourceOptions) -> tuple[str, ...]:
        """Return the names of the folders, if all are splits."""
        folders = image_folders(tree)
        tops = tops_of(folders, images_below(folders, b""))
        return in_order(map(as_text, tops)) if all(map(SPLIT_FOLDER.fullmatch, tops)) else ()

    def in_split(self, image: bytes) -> bool:
        """Return whether the image is in the split's folder."""
        return image.startswith(self._split)

    def annotate(self, image: bytes) -> RawAnnotation:
        """Return the class of the image.

        Raises:
            NoLabel: The image is not in a class folder.
        """
        folder = image[: image.find(b"/", len(self._prefix)) + 1]
        annotation = self._of_folder.get(folder)
        if annotation is None:
            if len(folder) <= len(self._prefix):
                raise NoLabel(image, "is in no class folder", "move it into one, or out of the source")
            name = as_text(folder[len(self._prefix) : -1])
            annotation = self._of_folder[folder] = RawAnnotation(origin=as_text(folder), label=name)
        return annotation

    def for_images(self, images: Sequence[bytes]) -> FolderSource:
        """Return a copy for a worker: the folders are in the paths."""
        part = copy(self)
        part.classes, part._of_folder = None, {}
        return part

    def unmatched_labels(self) -> Iterator[NoImage | BadLabel]:
        """Return nothing: an empty class folder is not an error."""
        return iter(())


class NoneSource(BaseSource):
    """Images without labels; with ``--split``, those in the folders of that name."""

    def __init__(self, tree: Tree, options: SourceOptions) -> None:
        self.classes: tuple[str, ...] | None = None
        self.notes: list[str] = []
        self.label_files: frozenset[bytes] = frozenset()
        self._prefixes = split_folders(tree, options.split)

    @staticmethod
    def splits(tree: Tree, options: SourceOptions) -> tuple[str, ...]:
        """Return the folders of splits."""
        return folder_splits(tree)

    @staticmethod
    def recognize(tree: Tree) -> list[Choice]:
        """Return nothing: `choose` falls back to this source if no other fits."""
        return []

    def in_split(self, image: bytes) -> bool:
        """Return whether the image is in a folder of the split."""
        return image.startswith(self._prefixes)

    def annotate(self, image: bytes) -> RawAnnotation:
        """Return an empty annotation."""
        return NOTHING

    def for_images(self, images: Sequence[bytes]) -> NoneSource:
        """Return itself."""
        return self

    def unmatched_labels(self) -> Iterator[NoImage | BadLabel]:
        """Return nothing: there are no labels."""
        return iter(())


def _subfolders(tree: Tree, prefix: bytes) -> list[bytes]:
    below = (path[len(prefix) :] for path in tree.folders if path.startswith(prefix))
    return sorted(name for name in below if b"/" not in name)


def _is_part(name: bytes) -> bool:
    """Return whether a folder is a part of a dataset by a word in its name: seg_train, test_images, images_part_1."""
    return bool(splits_in(name) or {*re.split(rb"[-_. ]", name.lower())} & IMAGE_FOLDERS)


def _is_dataset(tree: Tree, folder: bytes) -> bool:
    """Return whether a folder has a folder of images beside one of labels, as each year in VOCdevkit."""
    inside = {name.lower() for name in _subfolders(tree, folder + b"/")}
    return bool(inside & IMAGE_FOLDERS and inside & LABEL_FOLDERS)


def _refuse_splits(tree: Tree) -> None:
    """Raise UsageError if the folders are splits: train/ and val/ would silently become two classes."""
    folders = image_folders(tree)
    tops = tops_of(folders, images_below(folders, b""))
    if tops and all(SPLIT_FOLDER.fullmatch(top) for top in tops):
        names = sorted(tops)
        first = next((name for name in names if name.lower().startswith(b"train")), names[0])
        problem = f"its folders are splits, not classes: {named(names, 10)}"
        raise UsageError(tree.root, problem, f"choose one: --split={as_text(first)}")


def _class_folders(tree: Tree, folders: set[bytes], split: bytes) -> tuple[bytes, list[bytes]]:
    """Return the prefix below which the class folders of a split are, and their names, with those of empty ones."""
    prefix = images_below(folders, split)
    if prefix != split and not tops_of(folders, prefix):
        return split, _subfolders(tree, split)  # images/ is the only folder: it is the class
    return prefix, _subfolders(tree, prefix) or _subfolders(tree, split)


def _beside(tree: Tree, folders: set[bytes], split: bytes) -> list[bytes]:
    """Return the folders of the other splits; beside one of another name, such as fold1/, all that have folders."""
    parent, _, name = split[:-1].rpartition(b"/")
    base = parent + b"/" if parent else b""
    others = [other for other in _subfolders(tree, base) if other != name]
    if SPLIT_FOLDER.fullmatch(name):
        others = [other for other in others if SPLIT_FOLDER.fullmatch(other)]
    else:
        others = [
            other for other in others if tops_of(folders, base + other + b"/") and other.lower() not in NEVER_CLASSES
        ]
    return [base + other + b"/" for other in others]


def _holds_images(name: bytes) -> bool:
    return name.lower() in IMAGE_FOLDERS


def _other_classes(split: bytes, of_split: dict[bytes, list[bytes]]) -> list[str]:
    notes = []
    for other, names in of_split.items():
        if names and of_split[split] and (odd := sorted(set(names) ^ set(of_split[split]))):
            notes.append(
                f"{' and '.join(named([each[:-1]]) for each in sorted((split, other)))} have different classes "
                f"({named(odd)}): "
                "the classes of all splits are numbered together"
            )
    return notes
