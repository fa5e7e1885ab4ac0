"""Class folders, as torchvision's ImageFolder reads them (`FolderSource`), and images without labels (`NoneSource`)."""

from __future__ import annotations

from collections.abc import Iterator

from packer.errors import BadLabel, NoImage, NoLabel, UsageError, plural, printable
from packer.sources.base import Choice, SourceOptions, Tree
from packer.sources.paths import IMAGE_FOLDERS, SPLIT_FOLDER, as_bytes, as_text, folder_of, named
from packer.types import RawAnnotation

NOTHING = RawAnnotation(origin="")


def split_prefix(tree: Tree, split: str | None) -> bytes:
    """Return the folder of a split with a final slash; b"" without ``--split``. Raise UsageError if it is missing."""
    if split is None:
        return b""
    folder = as_bytes(split).strip(b"/")
    if folder not in tree.folders:
        there = [path for path in tree.folders if b"/" not in path]
        problem = f"no folder for --split {split}"
        next_step = f"its folders are: {named(there, 10)}" if there else "it has no folders; leave out --split"
        raise UsageError(tree.root, problem, next_step)
    return folder + b"/"


class FolderSource:
    """Class folders: the class of ``cat/deep/1.jpg``, or of ``train/cat/1.jpg`` with ``--split train``, is ``cat``.

    Empty class folders count, so that ids do not depend on which classes have images.

    Raises:
        UsageError: The folders are splits, and ``--split`` is missing or names none of them.
    """

    def __init__(self, tree: Tree, options: SourceOptions) -> None:
        self._prefix = split_prefix(tree, options.split)
        if options.split is None:
            _refuse_splits(tree)
        names = _subfolders(tree, self._prefix)
        self.classes: tuple[str, ...] | None = tuple(as_text(name) for name in names)
        self.notes: list[str] = _other_classes(tree, self._prefix, names) if options.split else []
        self._of_folder: dict[bytes, RawAnnotation] = {}
        """The annotation shared by all images of a class."""

    @staticmethod
    def recognize(tree: Tree) -> list[Choice]:
        """Return the choice of class folders, if there are two or more.

        Folders such as images/, and splits, do not count. A single folder may just be the name of the dataset.
        """
        classes: set[bytes] = set()
        splits: set[bytes] = set()
        for folder in {folder_of(image) for image in tree.images}:
            parts = [part for part in folder.split(b"/") if part and part.lower() not in IMAGE_FOLDERS]
            if parts and SPLIT_FOLDER.fullmatch(parts[0]):
                splits.add(parts.pop(0))
            classes.update(parts[:1])
        if len(classes) < 2:
            return []
        below = f" below the splits {', '.join(sorted(map(printable, splits)))}" if splits else ""
        return [Choice("folder", f"the images are in {plural(len(classes), 'class folder')}{below}")]

    def in_split(self, image: bytes) -> bool:
        """Return whether the image is in the split's folder."""
        return image.startswith(self._prefix)

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

    def unmatched_labels(self) -> Iterator[NoImage | BadLabel]:
        """Return nothing: an empty class folder is not an error."""
        return iter(())


class NoneSource:
    """Images without labels; with ``--split``, those in the folder of that name."""

    def __init__(self, tree: Tree, options: SourceOptions) -> None:
        self.classes: tuple[str, ...] | None = None
        self.notes: list[str] = []
        self._prefix = split_prefix(tree, options.split)

    @staticmethod
    def recognize(tree: Tree) -> list[Choice]:
        """Return nothing: `choose` falls back to this source if no other fits."""
        return []

    def in_split(self, image: bytes) -> bool:
        """Return whether the image is in the split's folder."""
        return image.startswith(self._prefix)

    def annotate(self, image: bytes) -> RawAnnotation:
        """Return an empty annotation."""
        return NOTHING

    def unmatched_labels(self) -> Iterator[NoImage | BadLabel]:
        """Return nothing: there are no labels."""
        return iter(())


def _subfolders(tree: Tree, prefix: bytes) -> list[bytes]:
    below = (path[len(prefix) :] for path in tree.folders if path.startswith(prefix))
    return sorted(name for name in below if b"/" not in name)


def _refuse_splits(tree: Tree) -> None:
    """Raise UsageError if the top folders are splits: train/ and val/ would silently become two classes."""
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
