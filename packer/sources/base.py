"""The contract of a source: which annotation belongs to which image.

A source knows annotation files, never pixels. It is given the tree of the source folder, found once for
all sources, and is asked for one image after the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from packer.errors import BadLabel, NoImage
from packer.types import RawAnnotation


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
    """``--split``: the part of the set to take."""
    columns: str | None = None
    """``--columns``: the columns of a list."""
    file: str | None = None
    """The FILE of ``list:FILE``, as the user wrote it (relative to the working directory)."""


class Source(Protocol):
    """One layout of labels."""

    classes: tuple[str, ...] | None
    """Names in id order where the source itself numbers its classes (data.yaml, whole-number labels);
    None where ids follow from the names."""
    notes: list[str]
    """What the user should be told once, such as `<filename>` fields that differ; complete after the
    last call."""

    def in_split(self, image: bytes) -> bool:
        """Whether this image is part of the chosen split (True for every image without ``--split``)."""

    def annotate(self, image: bytes) -> RawAnnotation:
        """The annotation of the image at this path. Raises NoLabel where there is none, BadLabel where
        it is wrong, naming file, line and value."""

    def unmatched_labels(self) -> Iterator[NoImage | BadLabel]:
        """The labels that name no image, and the lines that name nothing. Call after the last `annotate`."""
