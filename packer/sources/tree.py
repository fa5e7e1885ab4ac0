"""Finds the files of a source folder once, for all sources: by byte order, never leaving the folder."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field

from packer.errors import StorageError, UsageError
from packer.sources.base import Tree
from packer.sources.paths import extension_of

IMAGE_EXTENSIONS = frozenset(
    b".jpg .jpeg .jpe .jfif .png .bmp .dib .gif .webp .tif .tiff"
    # not all of these can be decoded, but they claim to be images: they are rejected by name, not overlooked
    b" .ppm .pgm .pbm .pnm .jp2 .avif .heic .heif".split()
)

Skipped = tuple[bytes, str]
"""A path relative to the root, and why it was not taken."""


def find_tree(root: bytes | str, is_image: Callable[[bytes], bool]) -> tuple[Tree, list[Skipped]]:
    """The tree below `root`, and what was not taken, with reasons.

    A file is an image where its extension claims so or `is_image` (given its absolute path) says so. Hidden
    names (``.x``, ``__MACOSX``) are left out, and listed where their extension is an image's. A symlink is taken
    only where it leads to a file inside the root. Raises UsageError where `root` is no folder, StorageError
    where it cannot be read.
    """
    absolute = os.path.realpath(os.fsencode(root))
    if not os.path.isdir(absolute):
        problem = "is not a folder" if os.path.exists(absolute) else "there is no such folder"
        raise UsageError(root, problem, "name the folder that holds the images")
    try:
        os.scandir(absolute).close()
    except OSError as error:
        raise StorageError(root, f"cannot be read: {error.strerror}", "check its permissions") from None
    walk = _Walk(absolute, is_image)
    walk.run()
    return Tree(absolute, walk.images, walk.files, walk.folders), walk.skipped


@dataclass(slots=True)
class _Walk:
    root: bytes
    is_image: Callable[[bytes], bool]
    images: list[bytes] = field(default_factory=list)
    files: list[bytes] = field(default_factory=list)
    folders: list[bytes] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)

    def run(self) -> None:
        pending: list[tuple[bytes, str]] = [(b"", "folder")]
        while pending:  # no recursion: folders may nest deeper than Python's stack
            path, kind = pending.pop()
            if kind in ("folder", "hidden folder"):
                if path and kind == "folder":
                    self.folders.append(path)
                pending += self._entries(path, hidden=kind == "hidden folder")
            elif kind == "file":
                self._take(path)
            elif kind == "symlink":
                self._follow(path)
            elif kind != "hidden" or extension_of(path) in IMAGE_EXTENSIONS:
                self.skipped.append((path, kind))

    def _entries(self, folder: bytes, hidden: bool) -> list[tuple[bytes, str]]:
        """What lies in a folder, the last in byte order first; a folder sorts as its name with a slash."""
        prefix = folder + b"/" if folder else b""
        try:
            with os.scandir(os.path.join(self.root, folder)) as entries:
                found = [(prefix + entry.name, _kind(entry, hidden)) for entry in entries]
        except OSError as error:
            if not hidden:
                self.skipped.append((folder, _reason(error)))
            return []
        found.sort(key=lambda item: item[0] + b"/" if item[1].endswith("folder") else item[0], reverse=True)
        return found

    def _take(self, path: bytes) -> None:
        if extension_of(path) in IMAGE_EXTENSIONS:
            self.images.append(path)
            return
        try:
            (self.images if self.is_image(os.path.join(self.root, path)) else self.files).append(path)
        except OSError as error:
            self.skipped.append((path, _reason(error)))

    def _follow(self, path: bytes) -> None:
        target = os.path.realpath(os.path.join(self.root, path))
        if not target.startswith(self.root.rstrip(b"/") + b"/"):
            self.skipped.append((path, "symlink out of the folder"))
        elif os.path.isfile(target):
            self._take(path)
        elif os.path.isdir(target):
            self.skipped.append((path, "symlink to a folder"))
        else:
            self.skipped.append((path, "symlink that leads to no file"))


def _kind(entry: os.DirEntry[bytes], hidden: bool) -> str:
    """folder, file, symlink, or why it is neither; what is hidden is never opened or followed."""
    hidden = hidden or entry.name.startswith(b".") or entry.name == b"__MACOSX"
    try:
        if entry.is_dir(follow_symlinks=False):
            return "hidden folder" if hidden else "folder"
        if hidden:
            return "hidden"
        if entry.is_symlink():
            return "symlink"
        return "file" if entry.is_file(follow_symlinks=False) else "not a regular file"
    except OSError as error:
        return _reason(error)


def _reason(error: OSError) -> str:
    if isinstance(error, PermissionError):
        return "permission"
    return "vanished" if isinstance(error, FileNotFoundError) else f"unreadable: {error.strerror}"
