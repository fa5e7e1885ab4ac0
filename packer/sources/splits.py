"""The splits that names stand for, as ``annotations/instances_train2017.json``, and those of a tree."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from packer.errors import UsageError, option, printable
from packer.sources.base import Tree
from packer.sources.paths import SPLIT_FOLDER, as_bytes, as_text, folder_of, named, splits_of

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


def folder_splits(tree: Tree) -> tuple[str, ...]:
    """Return the splits whose folders lie side by side, such as ``images/train`` and ``images/val``; () for one."""
    return in_order(map(as_text, splits_of(tree)))


def file_splits(paths: Sequence[bytes]) -> tuple[str, ...]:
    """Return the splits that files are named after, one for each: ``train.csv``, ``val.csv``; () if one is not."""
    words = [SPLIT_WORD.findall(path.lower()) for path in paths]
    if any(len({*found}) != 1 for found in words):
        return ()
    names = {word for ((word, _), *_) in words}
    with_year = len({*(found[0] for found in words)}) > len(names)
    return in_order(as_text(b"".join(found[0]) if with_year else found[0][0]) for found in words)


def in_order(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names of splits that may be packed one by one: train first, and none that others are parts of."""
    every = {*names}
    for whole, part in (("trainval", "train"), ("val", "trainval")):
        if part in every:
            every.discard(whole)
    ranks = {name: next((i for i, word in enumerate(("train", "val", "test")) if name.lower().startswith(word)), 3)
             for name in every}  # fmt: skip
    return tuple(sorted(every, key=lambda name: (ranks[name], name))) if len(every) > 1 else ()


def are_splits(names: Iterable[str]) -> bool:
    """Return whether names, as of subsets, are all those of splits."""
    return all(SPLIT_FOLDER.fullmatch(as_bytes(name)) for name in names)


class FolderSplit:
    """A split by the folders of its images.

    Raises:
        UsageError: No folder is of that split.
    """

    def __init__(self, tree: Tree, split: str) -> None:
        self._name = as_bytes(split)
        if not any(self._fits(folder) for folder in tree.folders):
            problem = f"{option('split', printable(split))} fits no folder"
            raise UsageError(tree.root, problem, f"its folders are: {named(tree.folders, 10)}")

    def in_split(self, image: bytes) -> bool:
        """Return whether the folder of an image is of the split."""
        return self._fits(folder_of(image))

    def _fits(self, folder: bytes) -> bool:
        return self._name in folder.split(b"/") or is_of_split(folder, self._name)
