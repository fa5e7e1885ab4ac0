"""dlib: an XML file of images, boxes and their parts, as imglab writes it and the iBUG sets for dlib have it."""

from __future__ import annotations

from collections.abc import Iterator

from packer.errors import BadLabel, NoImage, NoLabel, UsageError, plural, printable
from packer.model.annotation import RawAnnotation
from packer.sources.base import BaseSource, Choice, SourceOptions, Tree
from packer.sources.dlib_xml import FLAGS, read_dlib
from packer.sources.image_names import ImageNames
from packer.sources.paths import as_text, extension_of, file_of, named, quoted
from packer.sources.points import check_count, flip_index_of
from packer.sources.splits import FolderSplit, folder_splits
from packer.sources.tree import read_head

HEAD_BYTES = 4096
MOST_CANDIDATES = 64


class DlibSource(BaseSource):
    """An XML file of dlib. Images that it does not name are not part of the dataset.

    Raises:
        UsageError: There is no such file, there are several, or it is not XML.
    """

    takes_file = "optional"

    def __init__(self, tree: Tree, options: SourceOptions) -> None:
        self.classes: tuple[str, ...] | None = None
        self.notes: list[str] = []
        self._split = None if options.split is None else FolderSplit(tree, options.split)
        path = file_of(tree, "dlib", options.file) if options.file else _only(tree)
        self.label_files = {tree.below(path)}
        names = ImageNames(tree)
        self._name = printable(names.told(path))
        found = names.of_file(path)
        self._entries = read_dlib(tree, path, self._name, found)
        points = self._entries.points
        self.flip_index = flip_index_of(points) if points else None
        if found.moved is not None:
            written, image = found.moved
            what = plural(found.count, "image was", "images were")
            self.notes.append(f"{self._name}: {what} found elsewhere, e.g. {quoted(written)} at {printable(image)}")

    @staticmethod
    def recognize(tree: Tree) -> list[Choice]:
        """Return the XML files whose root is that of dlib."""
        found = _candidates(tree)
        root = as_text(tree.root.rstrip(b"/")) + "/"
        if len(found) == 1:
            return [Choice("dlib", f"{printable(found[0])} is an XML file of dlib")]
        return [Choice(f"dlib:{root}{as_text(path)}", "an XML file of dlib") for path in found]

    @staticmethod
    def splits(tree: Tree, options: SourceOptions) -> tuple[str, ...]:
        """Return the folders of splits."""
        return folder_splits(tree)

    def in_split(self, image: bytes) -> bool:
        """Return whether the image's folder is of the split."""
        return self._split is None or self._split.in_split(image)

    def left_out(self, image: bytes) -> str | None:
        """Return why an image is not part of the dataset: the file does not name it."""
        return None if image in self._entries.of else f"not in {self._name}"

    def annotate(self, image: bytes) -> RawAnnotation:
        """Return the boxes of the image, with their parts as keypoints.

        Raises:
            NoLabel: The file does not name the image.
            BadLabel: Its entry is invalid, or there are several.
        """
        entries, row = self._entries, self._entries.of.get(image)
        if row is None:
            raise NoLabel(image, f"is not in {self._name}", "add it, or remove the image")
        origin = f"{self._name}:{entries.lines[row]}"
        if row in entries.problems:
            raise entries.problems[row]
        boxes = range(entries.boxes_end[row - 1] if row else 0, entries.boxes_end[row])
        try:
            check_count(len(boxes), len(entries.points))
        except ValueError as error:
            raise BadLabel(origin, str(error), "give the parts of all boxes the same names") from None
        return RawAnnotation(
            origin=origin,
            boxes=tuple(entries.box(i) for i in boxes),
            box_labels=tuple(entries.labels[i] for i in boxes),
            keypoints=tuple(entries.keypoints(i) for i in boxes) if entries.points else None,
            box_fields={name: tuple(int(entries.flags[i] >> bit & 1) for i in boxes) for bit, name in enumerate(FLAGS)},
        )

    def unmatched_labels(self) -> Iterator[NoImage | BadLabel]:
        """Yield the entries that name no image."""
        return iter(self._entries.bad)


def _candidates(tree: Tree) -> list[bytes]:
    found = sorted((p for p in tree.files if extension_of(p) == b".xml"), key=lambda path: (path.count(b"/"), path))
    return [path for path in found[:MOST_CANDIDATES] if _is_dlib(tree, path)]


def _is_dlib(tree: Tree, path: bytes) -> bool:
    try:
        head = read_head(tree, path, HEAD_BYTES)
    except BadLabel:
        return False
    return b"<dataset" in head and b"<image" in head


def _only(tree: Tree) -> bytes:
    found = _candidates(tree)
    if len(found) != 1:
        problem = f"{len(found)} XML files of dlib: {named(found)}" if found else "holds no XML file of dlib"
        raise UsageError(tree.root, problem, "name one: --labels=dlib:FILE")
    return tree.root.rstrip(b"/") + b"/" + found[0]
