"""YOLO: one TXT file an image, in ``labels/`` with the image's relative path, or beside the image."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress

from packer.errors import BadLabel, NoImage, NoLabel, printable
from packer.sources.base import SourceOptions, Tree
from packer.sources.files import MIB, read_file
from packer.sources.numerals import MOST_CLASSES
from packer.sources.paths import as_text, extension_of, folder_of, named, stem_of
from packer.sources.yolo_config import NAME_FILES, read_config
from packer.sources.yolo_rows import BadRow, Rows, highest_class, parse_rows
from packer.sources.yolo_split import Split, find_split
from packer.types import RawAnnotation

MOST_LABEL_BYTES = 16 * MIB
IMAGES_TO_LABELS = {
    b"images": b"labels",
    b"Images": b"Labels",
    b"IMAGES": b"LABELS",
    b"JPEGImages": b"labels",  # darknet's own rule for VOC
}
LABELS_TO_IMAGES = {b"labels": b"images", b"Labels": b"Images", b"LABELS": b"IMAGES"}


def label_of(image: bytes, files: set[bytes]) -> bytes | None:
    """The label file of an image, None for none: the mirrored one before the one beside it."""
    name = stem_of(image) + b".txt"
    mirrored = _swapped(folder_of(image), IMAGES_TO_LABELS)
    for folder in (mirrored, folder_of(image)):
        if folder is not None and (path := folder + b"/" + name if folder else name) in files:
            return path
    return None


class YoloSource:
    """Coordinates stay fractions of the image (``relative``). Raises UsageError where data.yaml is wrong, or
    ``--split`` is not to be found."""

    def __init__(self, tree: Tree, options: SourceOptions) -> None:
        self.notes: list[str] = []
        self._tree = tree
        self._config = read_config(tree)
        self._split = None if options.split is None else find_split(tree, self._config, options.split)
        self._files = {path for path in tree.files if extension_of(path) == b".txt"}
        self._claims: dict[bytes, list[bytes]] = defaultdict(list)
        """Label file -> the images that it fits."""
        for image in tree.images:
            if (path := label_of(image, self._files)) is not None:
                self._claims[path].append(image)
        names = self._config.names
        self.classes: tuple[str, ...] | None = self._numbered() if names is None else names

    def in_split(self, image: bytes) -> bool:
        """Whether data.yaml's entry for the split, or the split's folder, has this image."""
        return self._split is None or self._split.in_split(image)

    def annotate(self, image: bytes) -> RawAnnotation:
        """The objects of the image, none for an empty file. Raises NoLabel where there is no file, BadLabel
        naming file, line and value."""
        path = label_of(image, self._files)
        if path is None:
            step = "add an empty file if nothing is in the picture"
            raise NoLabel(image, f"there is no {printable(stem_of(image))}.txt for it", step)
        if len(self._claims[path]) > 1:
            images = self._claims[path]
            problem = f"{printable(path)} fits {len(images)} images equally well: {named(images)}"
            raise BadLabel(image, problem, "rename or move one of them")
        num_classes = MOST_CLASSES if self._config.names is None else len(self._config.names)
        try:
            rows = parse_rows(read_file(self._tree.root, path, MOST_LABEL_BYTES), num_classes, self._config.kpt_shape)
        except BadRow as error:
            raise BadLabel(f"{printable(path)}:{error.line}", error.problem, error.next_step) from None
        return self._annotation(rows, path)

    def unmatched_labels(self) -> Iterator[NoImage | BadLabel]:
        """Label files without image. Other text files (README.txt) are none: outside ``labels`` a file counts
        only where it lies beside images and holds YOLO rows."""
        if self._split is not None:
            yield from self._split.missing
        image_folders = {folder_of(image) for image in self._tree.images}
        for path in self._tree.files:
            if path not in self._files or path in self._claims or path.rpartition(b"/")[2].lower() in NAME_FILES:
                continue
            images_folder = _swapped(folder_of(path), LABELS_TO_IMAGES)
            if self._split is not None and not _in_split(self._split, path, images_folder):
                continue
            if images_folder is not None or (folder_of(path) in image_folders and self._has_rows(path)):
                yield NoImage(path, "there is no image for it", "add the image, or remove the label")

    def _annotation(self, rows: Rows, path: bytes) -> RawAnnotation:
        assert self.classes is not None
        return RawAnnotation(
            origin=as_text(path),
            boxes=tuple(rows.boxes),
            box_labels=tuple(self.classes[i] for i in rows.classes),
            polygons=tuple(rows.polygons) if any(rows.polygons) else None,
            keypoints=None if self._config.kpt_shape is None else tuple(rows.keypoints),
            relative=True,
        )

    def _numbered(self) -> tuple[str, ...]:
        """Where nothing names the classes, their numbers are their names."""
        highest = -1
        for path in self._claims:
            with suppress(BadLabel):  # `annotate` reports it
                highest = max(highest, highest_class(read_file(self._tree.root, path, MOST_LABEL_BYTES)))
        return tuple(str(i) for i in range(highest + 1))

    def _has_rows(self, path: bytes) -> bool:
        try:
            data = read_file(self._tree.root, path, MOST_LABEL_BYTES)
            return bool(parse_rows(data, kpt_shape=self._config.kpt_shape).classes)
        except (BadLabel, BadRow):
            return False


def _swapped(folder: bytes, names: dict[bytes, bytes]) -> bytes | None:
    """The folder with its last component of these names replaced, None where it has none."""
    parts = folder.split(b"/")
    for i in reversed(range(len(parts))):
        if parts[i] in names:
            parts[i] = names[parts[i]]
            return b"/".join(parts)
    return None


def _in_split(split: Split, path: bytes, images_folder: bytes | None) -> bool:
    place = path if images_folder is None else images_folder + b"/" + path.rpartition(b"/")[2]
    return split.in_split(place)


open_tree = YoloSource
