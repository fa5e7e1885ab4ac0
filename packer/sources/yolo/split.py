"""The splits of a YOLO dataset: the entries of data.yaml, or the usual folders."""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass, field

from packer.errors import NoImage, PackerError, UsageError, option, printable
from packer.sources.base import Tree
from packer.sources.paths import IMAGE_FOLDERS, as_bytes, named
from packer.sources.tree import MIB, lines_of, read_file
from packer.sources.yolo.config import YoloConfig

UPWARDS = re.compile(rb"\A(?:\.\./)+")
MOST_SPLIT_BYTES = 256 * MIB


@dataclass(slots=True)
class Split:
    """Folders (with their slash) and single images."""

    folders: tuple[bytes, ...] = ()
    images: set[bytes] = field(default_factory=set)
    missing: list[NoImage] = field(default_factory=list)
    """Lines in the list of the split that name no image."""

    def in_split(self, path: bytes) -> bool:
        """Return whether an image, or the path of a label's missing image, is in the split."""
        return path in self.images or path.startswith(self.folders)


def find_split(tree: Tree, config: YoloConfig, split: str) -> Split:
    """Return the split: data.yaml's entry, else the usual folder. Raise UsageError if it is missing or ambiguous."""
    result = Split()
    folders = set(tree.folders)
    files = set(tree.files)
    images: set[bytes] = set()
    for entry in config.splits.get(split, ()):
        choices = _places(tree, config, entry)
        folder = next((place for place in choices if place in folders or place == b""), None)
        listing = next((place for place in choices if place in files), None)
        if folder is not None:
            result.folders += (folder + b"/" if folder else b"",)
        elif listing is not None:
            images = images or set(tree.images)
            _read_listing(tree, listing, images, result)
        else:
            problem = f"{split}: {printable(entry)} is not a folder or file below the source"
            raise UsageError(config.origin, problem, "correct the entry, or give the folder that holds it")
    if config.splits.get(split):
        return result
    return Split((_usual_folder(tree, as_bytes(split)) + b"/",))


def _places(tree: Tree, config: YoloConfig, entry: str) -> list[bytes]:
    """Return the candidates for an entry, relative to the root: below ``path:``, below the root, or below a folder that
    the dataset was moved from (one exporter writes ``../train/images`` for ``train/images``)."""
    written = as_bytes(entry.strip().replace("\\", "/"))
    base = as_bytes(config.path.strip())
    found = []
    for place in (posixpath.join(base, written), written):
        if place.startswith(b"/"):
            if (place + b"/").startswith(tree.root + b"/"):
                found.append(posixpath.relpath(place, tree.root))
            continue
        found.append(UPWARDS.sub(b"", posixpath.normpath(place)))
    return [b"" if place == b"." else place for place in found if place != b".."]


def _read_listing(tree: Tree, listing: bytes, images: set[bytes], result: Split) -> None:
    folder = listing.rpartition(b"/")[0]
    try:
        lines = lines_of(read_file(tree, listing, MOST_SPLIT_BYTES))
    except PackerError as error:
        raise UsageError(listing, error.problem, error.next_step) from None
    for count, line in enumerate(lines, 1):
        name = line.strip()
        if not name:
            continue
        choices = [posixpath.normpath(name), posixpath.normpath(posixpath.join(folder, name))]
        if name.startswith(tree.root + b"/"):
            choices.append(posixpath.relpath(name, tree.root))
        image = next((choice for choice in choices if choice in images), None)
        if image is not None:
            result.images.add(image)
        else:
            where = f"{printable(listing)}:{count}"
            result.missing.append(NoImage(where, f"no image {printable(name)}", "add it, or remove the line"))


def _usual_folder(tree: Tree, split: bytes) -> bytes:
    """Return ``images/train``, ``train/images``, ``train``, or a single ``images/train2017``."""
    folders = [path for path in tree.folders if path]
    for folder in folders:
        parent, _, name = folder.rpartition(b"/")
        if (name == split and parent.lower() in IMAGE_FOLDERS) or (parent == split and name.lower() in IMAGE_FOLDERS):
            return folder
    if split in folders:
        return split
    inside = [path for path in folders if path.rpartition(b"/")[0].lower() in IMAGE_FOLDERS]
    dated = [path for path in inside if re.fullmatch(re.escape(split) + rb"[-_]?[0-9]{4}", path.rpartition(b"/")[2])]
    if len(dated) == 1:
        return dated[0]
    problem = f"{option('split', printable(split))} fits {len(dated) or 'no'} folders"
    next_step = f"its folders are: {named(dated or inside or folders, 10)}"
    raise UsageError(tree.root, problem, next_step)
