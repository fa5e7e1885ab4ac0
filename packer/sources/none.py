"""Images without labels."""

from __future__ import annotations

from collections.abc import Iterator

from packer.errors import BadLabel, NoImage
from packer.sources.base import SourceOptions, Tree
from packer.sources.folder import split_prefix
from packer.types import RawAnnotation


class NoneSource:
    """Every image has an empty annotation; with ``--split`` those in the folder of that name."""

    def __init__(self, tree: Tree, options: SourceOptions) -> None:
        self.classes: tuple[str, ...] | None = None
        self.notes: list[str] = []
        self._prefix = split_prefix(tree, options.split)

    def in_split(self, image: bytes) -> bool:
        """Whether the image lies in the split's folder."""
        return image.startswith(self._prefix)

    def annotate(self, image: bytes) -> RawAnnotation:
        """An annotation with nothing in it."""
        return RawAnnotation(origin="")

    def unmatched_labels(self) -> Iterator[NoImage | BadLabel]:
        """Nothing: there are no labels."""
        return iter(())


open_tree = NoneSource
