"""The splits that names stand for: train, ``val2017``, ``annotations/instances_train2017.json``."""

from __future__ import annotations

import re

from packer.errors import UsageError, printable
from packer.sources.base import Tree
from packer.sources.paths import as_bytes, folder_of, named

SPLIT_WORD = re.compile(
    rb"(?<![a-z])(trainval|train(?:ing)?|val(?:id(?:ation)?)?|test(?:ing)?)(?:[-_]?([0-9]{4}))?(?![a-z0-9])"
)
SPLIT_NAMES = {b"training": b"train", b"valid": b"val", b"validation": b"val", b"testing": b"test"}

Split = tuple[bytes, bytes]
"""train, val, test or trainval, and a year or b""."""


def splits_in(path: bytes) -> set[Split]:
    """Return the splits in a path: {(train, 2017)} for ``annotations/instances_train2017.json``."""
    found = {(SPLIT_NAMES.get(word, word), year) for word, year in SPLIT_WORD.findall(path.lower())}
    return found | {(word, year) for name, year in found if name == b"trainval" for word in (b"train", b"val")}


def is_of_split(path: bytes, split: bytes) -> bool:
    """Return whether a file or folder belongs to a split by its name: that very word, or one that means the same."""
    wanted = splits_in(split)
    if wanted:
        return any(word == name and year in (b"", other) for word, year in wanted for name, other in splits_in(path))
    return re.search(rb"(?<![a-z0-9])%b(?![a-z0-9])" % re.escape(split.lower()), path.lower()) is not None


class FolderSplit:
    """A split by the folders of its images.

    Raises:
        UsageError: No folder is of that split.
    """

    def __init__(self, tree: Tree, split: str) -> None:
        self._name = as_bytes(split)
        if not any(self._fits(folder) for folder in tree.folders):
            problem = f"--split {printable(split)} fits no folder"
            raise UsageError(tree.root, problem, f"its folders are: {named(tree.folders, 10)}")

    def in_split(self, image: bytes) -> bool:
        """Return whether the folder of an image is of the split."""
        return self._fits(folder_of(image))

    def _fits(self, folder: bytes) -> bool:
        return self._name in folder.split(b"/") or is_of_split(folder, self._name)
