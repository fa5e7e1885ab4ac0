"""Parts of images in files of their own, named like the images: masks, maps, second images, arrays, texts."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from packer.errors import BadInput, UsageError, option, printable
from packer.images.parts import BY_KIND, FileFacts, PartKind
from packer.model.annotation import PartFile, PartSpec, RawAnnotation, check_name
from packer.sources.by_stem import ByStemSource, Matches, match_by_stem
from packer.sources.folder import MASK_ENDING, MASK_FOLDERS, MASK_NAME
from packer.sources.paths import (
    IMAGE_FOLDERS,
    as_bytes,
    as_text,
    extension_of,
    folder_of,
    quoted_value,
    some_paths,
    spread,
    stem_of,
)
from packer.sources.source import LOOKS, Tree
from packer.sources.tree import find_tree, read_file
from packer.stores import is_url

if TYPE_CHECKING:
    from typing_extensions import Self

MOST_BYTES = 64 << 20
"""Of a file that is looked at before others are."""
MASK_PART = "mask", "mask"
"""Name and kind of the part that ``--mask WHERE`` asks for, too."""
SHOWN_ENDINGS = 5
FORM = "write NAME=WHERE:KIND, such as depth=depth:map"
_OF_MAP = re.compile(r"(.+):map:([0-9]{1,5})", re.DOTALL)


class AskedPart(NamedTuple):
    """What ``--part NAME=WHERE:KIND`` asks for, or of a map NAME=WHERE:map:N."""

    name: str
    where: str
    kind: str
    unknown: int | None = None
    """The value of a map where nothing is known. None: as `packer.images.parts.MapKind` has it."""

    @classmethod
    def of(cls, text: str) -> AskedPart:
        """Return what a value of the option says. Raise UsageError if that is nothing."""
        name, _, rest = text.partition("=")
        of_map = _OF_MAP.fullmatch(rest)
        where, kind = (of_map[1], "map") if of_map else rest.rpartition(":")[::2]
        if not where:
            is_job = name.replace("/", "").isdigit()
            raise UsageError(
                option("part"), f"got {printable(text)}", f"write {option('job', name)}" if is_job else FORM
            )
        if kind not in BY_KIND:
            problem = f"{printable(kind)} is no kind of part: {', '.join(BY_KIND)}"
            raise UsageError(option("part"), problem, FORM)
        try:
            check_name(name)
        except ValueError as error:
            raise UsageError(option("part"), str(error), FORM) from None
        return cls(name, where, kind, int(of_map[2]) if of_map else None)


class FilesAt(NamedTuple):
    """The files that a WHERE names."""

    where: bytes
    """Their folder with a slash, or the pattern."""
    paths: tuple[bytes, ...]
    of_image: Mapping[bytes, bytes] | None = None
    """The file of each image, if a pattern says it."""

    def matches(self, images: Iterable[bytes]) -> Matches:
        """Match the files to images."""
        if self.of_image is None:
            return match_files(images, self.paths, self.where)
        of_image, there = self.of_image, set(self.paths)
        return Matches({image: of_image[image] for image in images if of_image.get(image) in there})


def files_at(tree: Tree, where: str, kind: PartKind) -> FilesAt:
    """Return the files of a kind in a folder, or those that a pattern with {dir}, {stem} and {name} names.

    Raises:
        UsageError: There are none.
    """
    candidates = of_kind(tree, kind)
    if "{" in where:
        return by_pattern(tree.images, where, candidates, root=tree.root)
    folder = os.path.normpath(as_bytes(where)).rstrip(b"/")
    inside = tree.below(folder) if os.path.isabs(folder) else folder
    what = "pictures" if kind.in_pictures else f"{b' or '.join(sorted(kind.endings)).decode()} files"
    if not inside or inside.startswith(b".."):
        other, _ = find_tree(os.path.join(tree.root, folder))
        if other.members is not None:
            raise UsageError(other.root, "is an archive, which only the source may be", "unpack it")
        paths = tuple(os.path.join(other.root, path) for path in of_kind(other, kind))
        if not paths:
            endings = sorted({extension_of(path) for path in (*other.files, *other.images)})
            has = f"; it has {as_text(b', '.join(endings[:SHOWN_ENDINGS]))}" if endings else ""
            raise UsageError(other.root, f"has no {what}{has}", "name the folder of the files")
        return FilesAt(other.root + b"/", paths)
    place = b"" if inside == b"." else inside + b"/"
    paths = tuple(path for path in candidates if path.startswith(place)) if place or not kind.in_pictures else ()
    if not paths:
        raise UsageError(
            tree.root, f"has no {what} in {quoted_value(place or b'./')}", _other_place(tree, where, candidates, what)
        )
    return FilesAt(place, paths)


def _other_place(tree: Tree, where: str, candidates: Sequence[bytes], what: str) -> str:
    """Return the next step if there are no such files at a place: what may have been meant."""
    if os.path.normpath(where) == ".":
        return 'write a pattern of {dir}, {stem} and {name}, such as "{dir}/{stem}_mask.png"'
    if os.path.isdir(where) and not is_url(tree.root):
        return f"WHERE is relative to the source: {quoted_value(os.path.relpath(as_bytes(where), tree.root))}"
    there = sorted({folder_of(path) + b"/" for path in candidates if folder_of(path)})
    return f"its folders with {what} are: {some_paths(there, 10)}" if there else "name the folder of the files"


def of_kind(tree: Tree, kind: PartKind) -> list[bytes]:
    """Return the files that may be of a kind: pictures, and those with its extensions; any file if it has none."""
    is_any = not kind.in_pictures and not kind.endings
    others = (path for path in tree.files if is_any or extension_of(path).lower() in kind.endings)
    return [*(tree.images if kind.in_pictures or is_any else ()), *others]


def by_pattern(
    images: Iterable[bytes], pattern: str, candidates: Sequence[bytes], apart: bool = False, root: bytes = b""
) -> FilesAt:
    """Return which of some files, `apart` from the images if so, a pattern with {dir}, {stem} and {name} names.

    Beside a source in the folder `root`, files elsewhere are found, too.

    Raises:
        UsageError: There are none.
    """
    try:
        pattern.format(dir="", stem="", name="")
    except (AttributeError, LookupError, TypeError, ValueError):
        problem = "is not a pattern of {dir}, {stem} and {name}"
        raise UsageError(pattern, problem, 'write one such as "{dir}/{stem}_mask.png"') from None
    there = set(candidates)
    named = {image: _formatted(pattern, image, root) for image in images}
    of_image = {
        image: path
        for image, path in named.items()
        if (path in there or (os.path.isabs(path) and os.path.isfile(path))) and (apart or path != image)
    }
    if not of_image:
        one = next(iter(named.values()), b"")
        raise UsageError(pattern, f"names no file: there is no {printable(one)}", "correct the pattern")
    return FilesAt(as_bytes(pattern), tuple(sorted({*of_image.values()})), of_image)


def _formatted(pattern: str, image: bytes, root: bytes) -> bytes:
    """Return the path that a pattern names for an image: relative to `root`, or absolute if it is elsewhere."""
    name = image.rpartition(b"/")[2]
    parts = {"dir": as_text(folder_of(image)), "stem": as_text(stem_of(image)), "name": as_text(name)}
    path = os.path.normpath(as_bytes(pattern.format(**parts)))
    path = path if pattern.startswith("/") else path.lstrip(b"/")
    if not path.startswith((b"/", b"../")) or is_url(root):
        return path
    path = os.path.normpath(os.path.join(root, path))
    return path.removeprefix(root.rstrip(b"/") + b"/")


def plain_part(part: bytes) -> bytes:
    """Return the name of the folder of the images of one whose name says that masks are in it: train of train_masks."""
    match = MASK_NAME.search(part)
    return part[: match.start()] if match is not None and match.start() and match.end() == len(part) else part


def _image_stem(path: bytes) -> bytes:
    """Return what the names of an image and of its file have in common."""
    return MASK_ENDING.sub(b"", stem_of(path))


def _plain_folder(path: bytes) -> bytes:
    """Return what the folders of an image and of its file have in common."""
    parts = folder_of(path).split(b"/")
    return b"/".join(plain_part(p) for p in parts if p.lower() not in MASK_FOLDERS | IMAGE_FOLDERS)


def _last_folder(path: bytes) -> bytes:
    """Return the innermost folder that an image and its file have in common: rgb/cat/1.png, depth/cat/1.png."""
    return _plain_folder(path).rpartition(b"/")[2]


def match_files(images: Iterable[bytes], files: Iterable[bytes], folder: bytes = b"") -> Matches:
    """Match files to the images of the same name, but for an ending such as _mask; the nearest by their folders.

    Args:
        images: The images.
        files: The files.
        folder: The one that all files are in.
    """
    rounds = (
        (folder_of, folder_of),
        (folder_of, lambda file: folder_of(file.removeprefix(folder))),
        (_plain_folder, _plain_folder),
        (_plain_folder, lambda file: _plain_folder(file.removeprefix(folder))),
        (_last_folder, _last_folder),
        (lambda _: b"", lambda _: b""),
    )
    return match_by_stem(images, files, _image_stem, rounds)


def without(tree: Tree, own: frozenset[bytes]) -> Tree:
    """Return a tree without files, and without the folders that only had them."""
    left = [path for path in tree.images if path not in own]
    only_own = _folders_of(own) - _folders_of(left)
    return replace(
        tree,
        images=left,
        files=[path for path in tree.files if path not in own],
        folders=[folder for folder in tree.folders if folder not in only_own],  # a folder without images is a class
        image_folders=None,
    )


def _folders_of(paths: Iterable[bytes]) -> set[bytes]:
    """Return the folders of files, and those that these are in."""
    found: set[bytes] = set()
    level = {folder_of(path) for path in paths}
    while level := level - found - {b""}:
        found |= level
        level = {folder_of(folder) for folder in level}
    return found


def _part_file(tree: Tree, path: bytes) -> PartFile:
    if tree.members is None or path.startswith(b"/"):
        return PartFile(path)
    (row,) = tree.members.rows([path])
    archive, offset, size, packed, crc = tree.members.places[row].tolist()
    return PartFile(path, size, archive, offset, packed, crc, tree.members.etags[row] if tree.members.etags else None)


class PartSource(ByStemSource):
    """A part of each image, in a file of its name.

    Args:
        tree: The source.
        spec: The part.
        where: Where its files are, for messages.
        paths: All of them.
        matches: The images that they belong to.
    """

    has_splits = False

    def __init__(self, tree: Tree, spec: PartSpec, where: bytes, paths: Sequence[bytes], matches: Matches) -> None:
        super().__init__(tree, matches)
        self.where, self.label_files = where, {*paths}
        self._name = spec.name
        self._files = {image: _part_file(tree, path) for image, path in matches.label_of.items()}
        self.parts: Mapping[str, PartSpec] = {spec.name: spec}

    def annotate(self, image: bytes) -> RawAnnotation:
        """Return the part of the image.

        Raises:
            NoLabel: It has none.
            BadLabel: Several fit it.
        """
        if (file := self._files.get(image)) is None:
            self.label_file(image)  # raises the error
        assert file is not None
        return RawAnnotation(origin=as_text(file.path), parts={self._name: file})

    def wanted(self, image: bytes) -> str:
        """Return how an error names what an image lacks."""
        return f"{self._name} in {printable(self.where)}"

    def for_images(self, images: Sequence[bytes]) -> Self | None:
        """Return a copy for a worker, with the files of these images, wherever they are."""
        part = copy(self)
        part._tree, part.matches, part.label_files = Tree(b"", (), (), ()), self.matches.of_images(images), set()
        part._files = {image: self._files[image] for image in images if image in self._files}
        part.of_split = None
        return part


def mask_asked(mask: str | None, texts: Sequence[str]) -> str | None:
    """Return where masks are: the value of ``--mask``, or what ``--part mask=WHERE:mask`` says.

    Raises:
        UsageError: Both are given.
    """
    places = [one.where for one in map(AskedPart.of, texts) if (one.name, one.kind) == MASK_PART]
    if len(places) + (mask is not None) > 1:
        raise UsageError(option("part"), "mask is given twice", "name one place: an image has one mask of that name")
    return places[0] if places else mask


def facts_of_few(tree: Tree, kind: PartKind, paths: Sequence[bytes], max_pixels: int = 1 << 40) -> list[FileFacts]:
    """Return what a few files in a store say; others are read when their images are packed."""
    found = []
    for path in spread(paths, LOOKS) if is_url(tree.root) and kind.of_pixels else ():
        try:
            data = read_file(tree, path, MOST_BYTES)
            found.append(kind.facts(data, True, len(data), max_pixels))
        except BadInput:
            continue  # it is rejected when it is packed
    return found
