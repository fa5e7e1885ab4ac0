"""Class folders, as torchvision's ImageFolder reads them: the first folder of an image's path is its class."""

from __future__ import annotations

from collections.abc import Iterator

from packer.errors import BadLabel, NoImage, NoLabel, UsageError
from packer.sources.base import SourceOptions, Tree
from packer.sources.paths import SPLIT_FOLDER, as_bytes, as_text, named
from packer.types import RawAnnotation


def split_prefix(tree: Tree, split: str | None) -> bytes:
    """The folder of a split with its slash, b"" without ``--split``. Raises UsageError where it is missing."""
    if split is None:
        return b""
    folder = as_bytes(split).strip(b"/")
    if folder not in tree.folders:
        there = [path for path in tree.folders if b"/" not in path]
        problem = f"there is no folder for --split {split}"
        next_step = f"its folders are: {named(there, 10)}" if there else "it has no folders; leave out --split"
        raise UsageError(tree.root, problem, next_step)
    return folder + b"/"


class FolderSource:
    """The class of ``cat/deep/1.jpg`` is ``cat``; with ``--split train`` that of ``train/cat/1.jpg``.

    Empty class folders count, so that ids do not depend on which classes have images. Raises UsageError where
    the folders are splits and ``--split`` is missing, or names none of them.
    """

    def __init__(self, tree: Tree, options: SourceOptions) -> None:
        self._prefix = split_prefix(tree, options.split)
        if options.split is None:
            _refuse_splits(tree)
        names = _subfolders(tree, self._prefix)
        self.classes: tuple[str, ...] | None = tuple(as_text(name) for name in names)
        self.notes: list[str] = _other_classes(tree, self._prefix, names) if options.split else []

    def in_split(self, image: bytes) -> bool:
        """Whether the image lies in the split's folder."""
        return image.startswith(self._prefix)

    def annotate(self, image: bytes) -> RawAnnotation:
        """The class of the image. Raises NoLabel for an image that lies in no class folder."""
        name, slash, _ = image[len(self._prefix) :].partition(b"/")
        if not slash:
            raise NoLabel(image, "lies in no class folder", "move it into one, or out of the source")
        return RawAnnotation(origin=as_text(self._prefix + name + b"/"), label=as_text(name))

    def unmatched_labels(self) -> Iterator[NoImage | BadLabel]:
        """Nothing: an empty class folder is no fault."""
        return iter(())


def _subfolders(tree: Tree, prefix: bytes) -> list[bytes]:
    below = (path[len(prefix) :] for path in tree.folders if path.startswith(prefix))
    return sorted(name for name in below if b"/" not in name)


def _refuse_splits(tree: Tree) -> None:
    """Class folders below train/ and val/ would silently become two classes, train and val."""
    tops = {image.partition(b"/")[0] for image in tree.images if b"/" in image}
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


open_tree = FolderSource
