"""Class folders, as torchvision's ImageFolder reads them (`FolderSource`), and images without labels (`NoneSource`)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from copy import copy

from packer.errors import BadLabel, NoImage, NoLabel, UsageError, plural, printable
from packer.sources.base import Choice, SourceOptions, Tree
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
from packer.sources.splits import splits_in
from packer.types import RawAnnotation

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
    problem = f"no folder for --split {split}"
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


class FolderSource:
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
        self._prefix = images_below(folders, split)
        names = _subfolders(tree, self._prefix) or _subfolders(tree, split)
        if self._prefix != split and not tops_of(folders, self._prefix):
            self._prefix, names = split, _subfolders(tree, split)  # images/ is the only folder: it is the class
        self.classes: tuple[str, ...] | None = tuple(as_text(name) for name in names)
        self.notes: list[str] = _other_classes(tree, split, names) if options.split and self._prefix == split else []
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


class NoneSource:
    """Images without labels; with ``--split``, those in the folders of that name."""

    def __init__(self, tree: Tree, options: SourceOptions) -> None:
        self.classes: tuple[str, ...] | None = None
        self.notes: list[str] = []
        self.label_files: frozenset[bytes] = frozenset()
        self._prefixes = split_folders(tree, options.split)

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
        raise UsageError(tree.root, problem, f"choose one: --split {as_text(first)}")


def _other_classes(tree: Tree, prefix: bytes, names: list[bytes]) -> list[str]:
    notes = []
    parent = prefix[:-1].rpartition(b"/")[0]
    parent += b"/" if parent else b""
    for sibling in _subfolders(tree, parent):
        folder = parent + sibling + b"/"
        if folder != prefix and SPLIT_FOLDER.fullmatch(sibling) and (theirs := _subfolders(tree, folder)):
            odd = sorted(set(theirs) ^ set(names))
            if odd:
                notes.append(
                    f"{named([prefix[:-1]])} and {named([folder[:-1]])} have different classes ({named(odd)}): "
                    "class ids differ between them unless both are built with one --classes FILE"
                )
    return notes
