"""Pascal VOC: one XML file an image, matched by stem; splits from ``ImageSets/Main``."""

from __future__ import annotations

from collections.abc import Iterator

from packer.errors import BadLabel, NoImage, NoLabel, UsageError, printable
from packer.sources.base import SourceOptions, Tree
from packer.sources.files import MIB, lines_of, read_file
from packer.sources.paths import as_bytes, as_text, extension_of, folder_of, named, quoted, stem_of
from packer.sources.stems import match_by_stem
from packer.sources.tree import IMAGE_EXTENSIONS
from packer.sources.voc_xml import claimed_names, parse_xml, read_annotation
from packer.types import RawAnnotation

MOST_XML_BYTES = MIB
MOST_SPLIT_BYTES = 64 * MIB


class VocSource:
    """Raises UsageError where ``--split`` names no file of the only ``ImageSets/Main`` in the tree."""

    def __init__(self, tree: Tree, options: SourceOptions) -> None:
        self.classes: tuple[str, ...] | None = None
        self._root = tree.root
        self._matches = match_by_stem(tree.images, (path for path in tree.files if extension_of(path) == b".xml"))
        self._stems = {stem_of(image) for image in tree.images}
        self._split: dict[bytes, str] | None = None
        """Stem -> ``file:line`` for the images of the split."""
        if options.split is not None:
            self._split = _read_split(tree, options.split, self._stems)
        self._renamed: dict[bytes, str] = {}
        """Image -> the different file name that its XML claims."""
        self.notes: list[str] = []

    def in_split(self, image: bytes) -> bool:
        """Whether the stem of the image stands in the split's file."""
        return self._split is None or stem_of(image) in self._split

    def annotate(self, image: bytes) -> RawAnnotation:
        """Boxes of the image's XML file. Raises NoLabel where none fits; BadLabel where several fit equally
        well, or the file is wrong."""
        path = self._matches.of(image)
        if path is None:
            raise NoLabel(image, f"there is no {printable(stem_of(image))}.xml for it", "add it, or remove the image")
        root = parse_xml(read_file(self._root, path, MOST_XML_BYTES), path)
        annotation = read_annotation(root, path)
        name, stem = as_text(image.rpartition(b"/")[2]), as_text(stem_of(image))
        for claim in claimed_names(root):
            if claim not in (name, stem) and claim.rpartition(".")[0] != stem:
                self._renamed[image] = claim
        return annotation

    def unmatched_labels(self) -> Iterator[NoImage | BadLabel]:
        """XML files that fit no image (XML of other kinds is passed over), and names in the split without one."""
        self._note_renamed()
        for path in self._matches.unclaimed:
            stem = stem_of(path)
            # a name of the split that has no image at all is reported at its line, below
            asked = self._split is None or (stem in self._split and stem in self._stems)
            if asked and self._is_annotation(path):
                yield NoImage(path, "there is no image for it", "add the image, or remove the label")
        for stem, where in (self._split or {}).items():
            if stem not in self._stems:
                yield NoImage(where, f"there is no image {printable(stem)}", "add the image, or remove the line")

    def _note_renamed(self) -> None:
        if self._renamed:
            image = min(self._renamed)
            self.notes.append(
                f"{len(self._renamed)} XML files claim another <filename> or <path> than their image's, e.g. "
                f"{printable(self._matches.label_of[image])} claims {quoted(self._renamed[image])}; matched by stem"
            )

    def _is_annotation(self, path: bytes) -> bool:
        """False for sound XML of another kind; a broken file may be an annotation."""
        try:
            return parse_xml(read_file(self._root, path, MOST_XML_BYTES), path).tag == "annotation"
        except BadLabel:
            return True


def _read_split(tree: Tree, split: str, stems: set[bytes]) -> dict[bytes, str]:
    folders = [path for path in tree.folders if (b"/" + path).endswith(b"/ImageSets/Main")]
    if len(folders) != 1:
        problem = f"--split {split} needs one ImageSets/Main folder, there are {len(folders)}"
        next_step = f"give one of these parts as the source: {named(folders)}" if folders else "leave out --split"
        raise UsageError(tree.root, problem, next_step)
    path = folders[0] + b"/" + as_bytes(split) + b".txt"
    if path not in tree.files:
        there = [stem_of(file) for file in tree.files if folder_of(file) == folders[0]]
        raise UsageError(path, f"there is no such file for --split {split}", f"the splits are: {named(there, 10)}")
    found: dict[bytes, str] = {}
    for count, line in enumerate(lines_of(read_file(tree.root, path, MOST_SPLIT_BYTES)), 1):
        name, _, last = (b" " + line.strip()).rpartition(b" ")
        # cat_train.txt says for each image of train whether it shows a cat (-1, 0, 1)
        stem = name.strip() if last in (b"-1", b"0", b"1") and name.strip() else line.strip()
        if stem:
            found.setdefault(_plain(stem, stems), f"{printable(path)}:{count}")
    return found


def _plain(name: bytes, stems: set[bytes]) -> bytes:
    """The stem in a split's line; some tools write folders and extensions too."""
    name = name.rpartition(b"/")[2]
    return stem_of(name) if name not in stems and extension_of(name) in IMAGE_EXTENSIONS else name


open_tree = VocSource
