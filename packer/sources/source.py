"""The contract of a source: which annotation belongs to which image.

A source reads annotation files, never pixels. It receives the tree of the source folder, which all sources
share, and returns the annotation of one image at a time.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from inspect import isfunction
from types import MappingProxyType, MethodType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from packer.errors import BadLabel, NoImage
from packer.model.annotation import PartSpec, RawAnnotation
from packer.sources.places import MemberPlaces, SourceFile, decompress, most_bytes
from packer.stores import is_url, joined

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

HELD_BYTES = 64 << 20
"""A deflated file of labels up to this size is held in memory, a larger one decompressed to the disk."""
LOOKS = 8
"""Maximum number of label files opened to recognize them."""


@dataclass(frozen=True, slots=True, eq=False)
class Stamps:
    """When the files of a source last changed, and their sizes, as the disk or the store says."""

    images: Sequence[bytes]
    """In byte order; so are `files`."""
    of_images: NDArray[np.int64]
    """(n, 2): the later one of the times of content and of metadata, in ns since the epoch; and the size in bytes."""
    files: Sequence[bytes]
    """All others."""
    of_files: NDArray[np.int64]


NEVER_NS = (1 << 63) - 1
"""In place of the time of a file that nobody tells: it may have changed just now."""


@dataclass(frozen=True, slots=True)
class Tree:
    """The files below the source folder, in byte order of their paths relative to `root`."""

    root: bytes
    """Absolute path or URL of the source folder, or of the archive that is the source."""
    images: Sequence[bytes]
    """Files that are images by their bytes or their extension; a `PathList` if they are from a folder."""
    files: Sequence[bytes]
    """All other regular files, including annotation files."""
    folders: Sequence[bytes]
    """All folders below `root`, including empty ones."""
    members: MemberPlaces | None = None
    """Where the files are that are in archives or in a store."""
    mask_lists: frozenset[bytes] = frozenset()
    """Lists that name masks, which are not among the images any more."""
    image_folders: frozenset[bytes] | None = None
    """The folders that directly hold images, with a final slash, if they are known; b"" for the root."""
    stamps: Stamps | None = None
    """Those of its files as they were listed, if they were asked for."""

    def open(self, path: bytes) -> SourceFile:
        """Open a file of the source, wherever its bytes are, or another file by its absolute path or URL.

        Raises:
            BadImage: It is not a regular file, or its archive has changed.
            OSError: It cannot be opened.
        """
        if self.members is None:
            return SourceFile(path if is_url(path) else os.path.join(self.root, path))
        # the root may be an archive or a URL: the operating system cannot follow .. from there
        file = joined(self.root, path)
        return self.members.open(file, self.below(file))

    def open_plain(self, path: bytes) -> SourceFile:
        """Open the same; if it is large, and deflated in an archive or in a store, as the copy that is made once.

        Raises:
            UsageError: It is damaged.
            BadImage: The same as for `open`.
            OSError: The same.
        """
        file = self.open(path)
        if self.members is None or self.members.scratch is None or file.is_plain or file.size <= HELD_BYTES:
            return file
        copies = self.members.copies
        with file:
            place = joined(self.root, path)
            if place not in copies:
                name = (self.below(place) or place).decode("utf-8", "surrogateescape")
                copies[place] = self.members.scratch(name)
                most = most_bytes(file.stored_bytes) if file.is_deflated else file.size
                decompress(file, None, name, copies[place], most)
        return SourceFile(copies[place].encode("utf-8", "surrogateescape"))

    @property
    def without_files(self) -> Tree | None:
        """The same root, to open files of the folder in a worker; None if they are in archives or in a store."""
        return Tree(self.root, (), (), ()) if self.members is None else None

    def below(self, path: bytes) -> bytes:
        """Return an absolute path as one relative to `root`; b"" if it is elsewhere."""
        top = self.root.rstrip(b"/") + b"/"
        return path[len(top) :] if path.startswith(top) else b""


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The options for reading labels."""

    split: str | None = None
    """``--split``: the part of the dataset to pack."""
    columns: str | None = None
    """``--columns``: the columns of a list."""
    file: str | None = None
    """The FILE of ``list:FILE``, as the user wrote it (relative to the working directory)."""
    by_auto: bool = False
    """Whether ``--labels auto`` chose the source, rather than the user."""
    more_files: tuple[str, ...] = ()
    """The FILEs of further ``--labels`` of this source, if its type has ``joins_files``."""
    rle_polygons: bool = False
    """``--rle polygons``: masks of run lengths become polygons as well."""
    instance_masks: bool = False
    """``--instance-masks``: objects get masks; run lengths and bitmaps are read."""
    mask_values: str | None = None
    """``--mask-values``: what the pixels of mask files mean."""
    ignore_id: int | None = None
    """``--ignore-id``: the value of pixels of no class."""
    columns_of_lists: tuple[str, ...] = ()
    """``--columns`` of several lists, in their order."""

    @property
    def files(self) -> tuple[str, ...]:
        """All FILEs."""
        return self.more_files if self.file is None else (self.file, *self.more_files)


HAVE_COLUMNS = ("list", "parquet", "jsonl")
"""Kinds of labels that ``--columns`` is for."""


class Choice(NamedTuple):
    """A candidate of ``--labels auto``."""

    spec: str
    """The value of ``--labels``."""
    why: str
    """The reason, in one sentence."""
    others: tuple[str, ...] = ()
    """Those of other splits: ``list:val.csv``. Their classes are numbered with those of this one."""


class InSplit(Protocol):
    """The images of a split."""

    def in_split(self, image: bytes) -> bool:
        """Return whether an image, or the path of a label without one, is of the split."""


class BaseSource:
    """The labels of one tree. Subclasses say what their layout has; what is here is for those that have nothing of it.

    A class of another package need not be a subclass: `packer.sources.open_source` gives it what it lacks.
    """

    classes: tuple[str, ...] | None = None
    """Names in id order if the source numbers its classes (data.yaml, whole-number labels);
    None if the ids follow from the names."""
    notes: list[str]
    """Messages for the user, such as `<filename>` fields that differ; complete after the last call."""
    flip_index: tuple[int, ...] | None = None
    """The index of the mirror image of each landmark or keypoint."""
    tags: tuple[str, ...] | None = None
    """The names of the classes in `RawAnnotation.tags`."""
    has_splits: bool = True
    """Whether ``--split`` means something to this source."""
    label_files: Collection[bytes] | None = None
    """The files of the tree that are read: ``--labels auto`` counts the others. None: it is not known."""
    parts: Mapping[str, PartSpec] = MappingProxyType({})
    """The parts that its images have besides their pixels, by name."""
    found: dict[bytes, Any] | None = None
    """What `annotate` of a copy (`for_images`) puts here is added to that of this source. None: nothing."""
    of_split: InSplit | None = None
    """Says which images are of ``--split``, such as a `FolderSplit`. None: all."""

    def in_split(self, image: bytes) -> bool:
        """Return whether this image is part of the chosen split (True for every image without ``--split``)."""
        return self.of_split is None or self.of_split.in_split(image)

    def annotate(self, image: bytes) -> RawAnnotation:
        """Return the annotation of the image at this path; repeated calls return equal objects.

        Raises:
            NoLabel: The image has none.
            BadLabel: It is invalid; the error names file, line and value.
        """
        raise NotImplementedError

    def unmatched_labels(self) -> Iterator[NoImage | BadLabel]:
        """Yield the labels and lines that match no image. Called after the last `annotate`."""
        return iter(())

    def left_out(self, image: bytes) -> str | None:
        """Return why an image is not packed (a mask; a list does not name it), so that it is skipped; else None."""
        return None

    def for_images(self, images: Sequence[bytes]) -> BaseSource | None:
        """Return a copy that knows the labels of these images, and can be pickled, so that a worker annotates them.

        None: only this process can.
        """
        return None


def leaves_out(source: BaseSource) -> bool:
    """Return whether `left_out` of a source may say anything: it is called for a million images."""
    return getattr(type(source), "left_out", BaseSource.left_out) is not BaseSource.left_out


def with_defaults(source: Any) -> BaseSource:
    """Return a source that has all members of `BaseSource`, those of another package too."""
    if not isinstance(source, BaseSource):
        for name in [name for name in dir(BaseSource) if not hasattr(source, name)]:
            value = getattr(BaseSource, name)
            setattr(source, name, MethodType(value, source) if isfunction(value) else value)
    found: BaseSource = source
    return found


class SourceType(Protocol):
    """A layout of labels, as named in the table of sources and by the entry points of ``packer.sources``.

    Usually a class, whose ``__init__`` is the call and `recognize` a static method. These attributes are False if it
    does not have them:

    - ``takes_file``: it is used as ``--labels NAME:FILE``, and FILE is in the options; with "optional", FILE may be
      left out;
    - ``joins_files``: if it is given several times, all FILEs are read by one source;
    - ``splits(tree, options) -> tuple[str, ...]``: the values of ``--split`` that make one pack each if none is given,
      two or more; () if all is one pack, as without this method. May raise what the call raises.
    """

    def __call__(self, tree: Tree, options: SourceOptions) -> BaseSource:
        """Open the labels of a tree.

        Raises:
            UsageError: The tree or the options do not fit this layout.
        """

    def recognize(self, tree: Tree) -> list[Choice]:
        """Return the choices for ``--labels auto``: an empty list if the tree has another layout.

        Look only at names and into a few files. More than one choice from all sources is an error that lists them.
        """
