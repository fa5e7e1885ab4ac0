"""The contract of a source: which annotation belongs to which image.

A source knows annotation files, never pixels. It is given the tree of the source folder, found once for
all sources, and is asked for one image after the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from packer.errors import BadLabel, NoImage
from packer.types import RawAnnotation

LOOKS = 8
"""So many label files are opened to see what they are."""


@dataclass(frozen=True, slots=True)
class Tree:
    """The files below the source folder, in byte order of their paths relative to `root`."""

    root: bytes
    """Absolute path of the source folder."""
    images: Sequence[bytes]
    """Files whose bytes are an image, or whose extension claims so."""
    files: Sequence[bytes]
    """All other regular files: annotation files are among them."""
    folders: Sequence[bytes]
    """All folders below `root`, empty ones too."""


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """How the user wants the labels to be read."""

    split: str | None = None
    """``--split``: the part of the set to pack."""
    columns: str | None = None
    """``--columns``: the columns of a list."""
    file: str | None = None
    """The FILE of ``list:FILE``, as the user wrote it (relative to the working directory)."""


class Choice(NamedTuple):
    """What ``--labels auto`` may choose."""

    spec: str
    """As the user would write it after ``--labels``."""
    why: str
    """One sentence."""


class Source(Protocol):
    """The labels of one tree."""

    classes: tuple[str, ...] | None
    """Names in id order where the source itself numbers its classes (data.yaml, whole-number labels);
    None if ids follow from the names."""
    notes: list[str]
    """What the user should be told once, such as `<filename>` fields that differ; complete after the
    last call."""

    def in_split(self, image: bytes) -> bool:
        """Return whether this image is part of the chosen split (True for every image without ``--split``)."""

    def annotate(self, image: bytes) -> RawAnnotation:
        """Return the annotation of the image at this path, the same object each time or an equal one.

        Raises:
            NoLabel: There is none.
            BadLabel: It is wrong; the error names file, line and value.
        """

    def unmatched_labels(self) -> Iterator[NoImage | BadLabel]:
        """Yield the labels that name no image, and the lines that name nothing. Called after the last `annotate`."""


class SourceType(Protocol):
    """One layout of labels: what the table of sources and the entry points of ``packer.sources`` name.

    A class does: its ``__init__`` is the call, `recognize` a static method. If it also has a true attribute
    ``takes_file``, it is written ``--labels NAME:FILE``, and finds FILE in the options.
    """

    def __call__(self, tree: Tree, options: SourceOptions) -> Source:
        """Open the labels of a tree.

        Raises:
            UsageError: The tree or the options do not suit this layout as a whole.
        """

    def recognize(self, tree: Tree) -> list[Choice]:
        """Return how these labels could be read, for ``--labels auto``: an empty list if the tree has another layout.

        Look at names and into a few files only. More than one choice in all is an error that lists them.
        """
