"""Recognises which source a folder is, from its names and a look into a few label files; refuses when two fit."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import NamedTuple

from packer.errors import BadLabel, UsageError, printable
from packer.sources.base import SourceOptions, Tree
from packer.sources.files import MIB, lines_of, read_file, read_head
from packer.sources.list_lines import COMMA, MIXED, TAB, split_line
from packer.sources.list_paths import PathFinder
from packer.sources.paths import IMAGE_FOLDERS, SPLIT_FOLDER, as_text, extension_of, folder_of, spread, stem_of
from packer.sources.stems import match_by_stem
from packer.sources.unread import paired_folders, unread_labels
from packer.sources.voc import MOST_XML_BYTES
from packer.sources.voc_xml import parse_xml
from packer.sources.yolo import MOST_LABEL_BYTES, label_of
from packer.sources.yolo_config import NAME_FILES, read_config
from packer.sources.yolo_rows import BadRow, parse_rows

LOOKS = 8
"""So many label files are opened to see what they are."""
CELLS = 64
"""So many columns at each end of a line are looked at for a path."""
LIST_EXTENSIONS = frozenset({b".txt", b".csv", b".tsv", b".lst", b".list"})
MOST_LIST_CANDIDATES = 64


class Choice(NamedTuple):
    """What ``auto`` decided."""

    spec: str
    """As the user would write it after ``--labels``."""
    why: str
    """One sentence."""


def recognise_tree(tree: Tree, options: SourceOptions) -> Choice:
    """The only source that fits. Raises UsageError where several fit, naming each as it is to be written."""
    if options.columns is not None:
        fits = list(_lists(tree))
        if not fits:
            raise UsageError(tree.root, "--columns is given, and no list was found", "pass --labels list:FILE")
    else:
        by_file = [choice for choice in (_voc(tree), _yolo(tree)) if choice]
        folder = _folder(tree)
        fits = by_file + ([folder] if folder else []) + list(_lists(tree))
        if fits in ([], [folder]):
            _refuse_to_pass_over(tree, folder)
    if len(fits) > 1:
        what = "; ".join(f"--labels {printable(choice.spec)} ({choice.why})" for choice in fits)
        raise UsageError(tree.root, f"{len(fits)} kinds of labels fit", f"choose one, or pass several: {what}")
    if fits:
        return fits[0]
    others = sum(extension_of(path) == b".xml" for path in tree.files)
    hint = f"; {others} XML files fit no image by name" if others else ""
    if any(folder_of(image) for image in tree.images):
        hint += " (--labels folder takes a folder as a class even if there is only one)"
    return Choice("none", f"there are no class folders, no label files that fit the images, and no list{hint}")


def _voc(tree: Tree) -> Choice | None:
    xml = [path for path in tree.files if extension_of(path) == b".xml"]
    if not xml:
        return None
    matches = match_by_stem(tree.images, xml)
    # two images or two XML files that fit equally well are VOC too; they are refused one by one
    fitting = len(matches.label_of) + len(matches.refused)
    seen = list(matches.label_of.values()) or [path for path in xml if path not in set(matches.unclaimed)]
    if fitting and any(_is_annotation(tree, path) for path in spread(seen, LOOKS)):
        return Choice("voc", f"{fitting} of {len(tree.images)} images have a Pascal VOC XML file of their name")
    return None


def _is_annotation(tree: Tree, path: bytes) -> bool:
    try:
        return parse_xml(read_file(tree.root, path, MOST_XML_BYTES), path).tag == "annotation"
    except BadLabel:
        return False


def _yolo(tree: Tree) -> Choice | None:
    texts = {path for path in tree.files if extension_of(path) == b".txt"}
    labels = [path for image in tree.images if (path := label_of(image, texts)) is not None] if texts else []
    if not labels:
        return None
    try:
        kpt_shape = read_config(tree).kpt_shape
    except UsageError:
        kpt_shape = None  # opening the source says what is wrong
    if any(_has_rows(tree, path, kpt_shape) for path in spread(labels, LOOKS)):
        return Choice("yolo", f"{len(labels)} of {len(tree.images)} images have a YOLO text file of their name")
    return None


def _has_rows(tree: Tree, path: bytes, kpt_shape: tuple[int, int] | None) -> bool:
    """Whether the file follows the grammar; an empty one does where it lies in a labels folder."""
    try:
        rows = parse_rows(read_file(tree.root, path, MOST_LABEL_BYTES), kpt_shape=kpt_shape)
    except (BadLabel, BadRow):
        return False
    return bool(rows.classes) or b"/labels/" in b"/" + path.lower()


def _folder(tree: Tree) -> Choice | None:
    """Class folders are what remains of the images' folders without images/ and the like, and without splits.

    One alone is no class: it may be the name of the set.
    """
    classes: set[bytes] = set()
    splits: set[bytes] = set()
    for folder in {folder_of(image) for image in tree.images}:
        parts = [part for part in folder.split(b"/") if part and part.lower() not in IMAGE_FOLDERS]
        if parts and SPLIT_FOLDER.fullmatch(parts[0]):
            splits.add(parts.pop(0))
        classes.update(parts[:1])
    if len(classes) < 2:
        return None
    below = f" below the splits {', '.join(sorted(map(printable, splits)))}" if splits else ""
    return Choice("folder", f"the images lie in {len(classes)} class folders{below}")


def _refuse_to_pass_over(tree: Tree, folder: Choice | None) -> None:
    """Raises UsageError if there seem to be labels that no source reads: something else would be packed in silence."""
    problem, instead = paired_folders(tree), "the folder of the images alone as the source"
    if problem is None:
        problem, instead = unread_labels(tree), "--labels list:FILE (a list that you make of them)"
        problem = problem and f"there are labels that --labels auto cannot read: {problem}"
    if problem is not None:
        choices = ["--labels none (no labels)", instead]
        if any(map(folder_of, tree.images)):
            choices.insert(0, f"--labels folder ({folder.why if folder else 'the folders are classes'})")
        raise UsageError(tree.root, problem, f"choose one: {', '.join(choices[:-1])}, or {choices[-1]}")


def _lists(tree: Tree) -> Iterable[Choice]:
    images = {stem_of(image) for image in tree.images}
    candidates = (
        path
        for path in tree.files
        if path.count(b"/") <= 1
        and extension_of(path) in LIST_EXTENSIONS
        and path.rpartition(b"/")[2].lower() not in NAME_FILES
        and stem_of(path) not in images
    )
    for path in islice(candidates, MOST_LIST_CANDIDATES):
        folder = tree.root + b"/" + folder_of(path) if b"/" in path else tree.root
        if _names_images(tree, path, PathFinder(tree, folder)):
            file = as_text(tree.root.rstrip(b"/") + b"/" + path)
            yield Choice(f"list:{file}", f"{printable(path)} names images and says something of each")


def _names_images(tree: Tree, path: bytes, finder: PathFinder) -> bool:
    """Whether one of the first lines names an image and has more columns; a bare list of paths is a split."""
    try:
        data = read_head(tree.root, path, MIB)
    except BadLabel:
        return False
    for line in lines_of(data)[:LOOKS]:
        for separator in (TAB, COMMA, MIXED):
            try:
                cells = split_line(line, separator)
            except ValueError:
                continue
            looked_at = [*cells[:CELLS], *cells[CELLS:][-CELLS:]]
            if len(cells) > 1 and any(finder.find(cell) is not None for cell in looked_at):
                return True
    return False
