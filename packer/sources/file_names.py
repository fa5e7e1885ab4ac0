"""Labels in the names of files: ``--labels "name:(?P<class>cat|dog)\\.\\d"``.

The expression is searched in the path of each image below the source; its named groups are the labels.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from copy import copy

from packer.errors import BadLabel, NoLabel, UsageError, option, printable
from packer.model.annotation import RawAnnotation
from packer.sources.paths import (
    FolderSplit,
    are_splits,
    as_text,
    folder_splits,
    in_order,
    number,
    quoted_value,
    stem_of,
)
from packer.sources.source import BaseSource, Choice, SourceOptions, Tree

EXAMPLE = option("labels", r'"name:(?P<class>cat|dog)\.\d"')
VALUE = re.compile(r"value\d*")
NUMBERED = re.compile(rb"(?P<name>[A-Za-z]+(?:[ _-][A-Za-z]+)*)(?P<between>[-_. ]*\(?)\d+\)?")
"""A name such as cat.0, great_pyrenees_12 and cat (3)."""
NO_CLASSES = frozenset(
    b"img image images dsc dscn dscf pxl mvimg imgp photo pic picture frame screenshot screen scan video vid clip"
    b" train test val valid validation sample file crop tile patch page".split()
)
"""Words that cameras and programs begin names with (compared in lower case)."""
LOOKED_AT, IMAGES_EACH, LISTED = 4096, 4, 8
"""Images that are looked at, those of each class that there must be on average, and classes that are listed."""

KNOWN = (
    (re.compile(rb"-?\d+_c\d+(?:s\d+)?_.+"), r"name:(?P<class>-?\d+)_c(?P<camera>\d+)"),  # Market-1501, DukeMTMC
    (
        re.compile(rb"(?:\d{4}|00-1)C\dT\d{4}F\d{3,}"),  # MARS
        r"name:(?P<class>\d{4}|00-1)C(?P<camera>\d)T(?P<track>\d{4})F(?P<frame>\d+)",
    ),
    (re.compile(rb"\d{1,3}_[01]_[0-4]_\d{14,}.*"), r"name:(?P<value>\d+)_(?P<gender>[01])_(?P<race>\d)_"),  # UTKFace
)
"""Names of the images of known sets, and the expressions of their labels."""


class NameSource(BaseSource):
    """The named groups of an expression: ``class``, ``value`` or ``value1``, ``value2``, ..., ``split``, and extras.

    Raises:
        UsageError: It is not such an expression, it fits no path, or no image is of ``--split``.
    """

    takes_file = True

    def __init__(self, tree: Tree, options: SourceOptions) -> None:
        self.notes: list[str] = []
        self.label_files: frozenset[bytes] = frozenset()
        try:
            self._regex = re.compile(options.file or "")
        except (re.error, OverflowError, RecursionError) as error:
            problem = f"{quoted_value(options.file or '')} is not a regular expression: {error}"
            raise UsageError(option("labels"), problem, f"write it like {EXAMPLE}") from None
        groups = self._regex.groupindex
        if not groups:
            raise UsageError(option("labels"), "the expression has no named group", f"write it like {EXAMPLE}")
        self._values = sorted(filter(VALUE.fullmatch, groups), key=lambda name: int(name[5:] or 0))
        self._extras = [name for name in groups if name not in ("class", "split", *self._values)]
        if not any(map(self._match, tree.images)):
            problem = f"no path matches {printable(self._regex.pattern)}; the first is {quoted_value(tree.images[0])}"
            raise UsageError(tree.root, problem, "correct the expression")
        if "class" not in groups and not self._values:
            others = ", ".join(map(printable, self._extras)) or "none"
            what = f"no group is called class or value: images have no label, only extras ({others})"
            self.notes.append(f"{option('labels')}: {what}")
        self._split = options.split if "split" in groups else None
        if self._split is None:
            self.of_split = FolderSplit.of(tree, options.split)
        elif self._split not in (names := self._split_names(tree)):
            names_text = ", ".join(sorted(map(printable, names)))
            raise UsageError(tree.root, f"no split {printable(self._split)}", f"the splits are: {names_text}")

    @staticmethod
    def recognize(tree: Tree) -> list[Choice]:
        """Return nothing: an expression is written by the user (`expression_of` is an aid)."""
        return []

    @classmethod
    def splits(cls, tree: Tree, options: SourceOptions) -> tuple[str, ...]:
        """Return what the group ``split`` has in all paths, if these are splits; without one, the folders of splits."""
        source = cls(tree, options)
        if "split" not in source._regex.groupindex:
            return folder_splits(tree)
        names = source._split_names(tree)
        return in_order(names) if are_splits(names) else ()

    def in_split(self, image: bytes) -> bool:
        """Return whether the path has the split in its group; without one, whether its folder has that name."""
        if self._split is None:
            return super().in_split(image)
        match = self._match(image)
        return match is not None and match["split"] == self._split

    def annotate(self, image: bytes) -> RawAnnotation:
        """Return what the groups say.

        Raises:
            NoLabel: The path does not match, or without the class or a value.
            BadLabel: A value is not a number.
        """
        match = self._match(image)
        if match is None:
            step = f"correct the expression, or leave such images out: {option('missing-labels', 'skip')}"
            raise NoLabel(image, f"does not match {printable(self._regex.pattern)}", step)
        found = match.groupdict()
        if missing := [name for name in ("class", *self._values) if not found.get(name, "-")]:
            raise NoLabel(image, f"has nothing that is the group {missing[0]}", "correct the expression, or the name")
        try:
            value = tuple(number(found[name].encode("utf-8", "surrogateescape")) for name in self._values)
        except ValueError as error:
            raise BadLabel(image, f"its value {error}", "correct the expression, or the name") from None
        return RawAnnotation(
            origin=as_text(image),
            label=found.get("class"),
            value=value or None,
            extras={name: found[name] for name in self._extras if found[name] is not None},
        )

    def for_images(self, images: Sequence[bytes]) -> NameSource:
        """Return a copy for a worker: the labels are in the paths."""
        part = copy(self)
        part.of_split = None
        return part

    def _match(self, image: bytes) -> re.Match[str] | None:
        return self._regex.search(as_text(image))

    def _split_names(self, tree: Tree) -> set[str]:
        return {match["split"] for match in map(self._match, tree.images) if match and match["split"]}


def _some(tree: Tree) -> list[bytes]:
    return [tree.images[i] for i in range(0, len(tree.images), -(-len(tree.images) // LOOKED_AT))]


def _of_known(images: Sequence[bytes]) -> str | None:
    for names_of_set, expression in KNOWN:
        if images and sum(bool(names_of_set.fullmatch(stem_of(image))) for image in images) >= 0.9 * len(images):
            return expression
    return None


def known_expression(tree: Tree) -> str | None:
    """Return the expression of a known set by the names of its images; None if they are of none."""
    return _of_known(_some(tree))


def expression_of(tree: Tree, wanted: Callable[[bytes], bool]) -> str | None:
    """Return the expression of the classes with which the names of images begin: cat.0.jpg, dog.0.jpg; None without.

    There are at least two, with some numbered images each, or the names are those of a known set.

    Args:
        tree: The source.
        wanted: Whether an image counts.
    """
    some = list(filter(wanted, _some(tree)))
    if (expression := _of_known(some)) is not None:
        return expression
    found = [match for match in map(NUMBERED.fullmatch, map(stem_of, some)) if match]
    names = Counter(match["name"] for match in found)
    if len(found) < 0.9 * len(some) or not 2 <= len(names) <= len(some) / IMAGES_EACH:
        return None
    if any(NO_CLASSES.intersection(re.split(rb"[ _-]", name.lower())) for name in names):
        return None
    betweens = {match["between"] for match in found}
    classes = "|".join(sorted(name.decode() for name in names))
    classes = classes if len(names) <= LISTED else "[A-Za-z]+(?:[ _-][A-Za-z]+)*"
    between = re.escape(betweens.pop().decode()).replace("\\ ", " ") if len(betweens) == 1 else "[-_. (]*"
    return rf"name:(?P<class>{classes}){between}\d"
