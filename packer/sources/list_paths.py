"""Which image a path in a list means: below the source folder or the list's own, and never outside the source."""

from __future__ import annotations

import os
import posixpath

from packer.sources.base import Tree

LONGEST_PATH = 4096
"""No path that the operating system takes is longer; following a million folders that are not there takes minutes."""
MOST_FOLDERS = 65536
"""So many folders' real places are kept."""


class PathFinder:
    """Finds the image that a list's path names; it looks at names only, and opens nothing."""

    def __init__(self, tree: Tree, list_folder: bytes) -> None:
        """Args: the tree; the absolute path of the folder that holds the list."""
        self._root = tree.root.rstrip(b"/")
        self._images = {image: image for image in tree.images}
        self._folder = list_folder
        self._real_folders: dict[bytes, bytes] = {}

    def find(self, written: bytes) -> bytes | None:
        """The image, relative to the root; None where there is none. The path as written comes first, then with
        backslashes as slashes; relative to the root first, then to the list's folder."""
        image = self._images.get(written)  # the tree's own object: a million paths are not held twice
        if image is not None:
            return image
        for place in self._places(written):
            if (image := self._images.get(place)) is not None:
                return image
        return None

    def escapes(self, written: bytes) -> bool:
        """Whether the path may lead out of the source folder, by ``..``, from ``/`` or through a symlink."""
        if b"\0" in written or len(written) > LONGEST_PATH:
            return False
        places = self._places(written)
        if not places:
            return True
        top = os.path.realpath(self._root) + b"/"
        return not all((self._real(place) + b"/").startswith(top) for place in places)

    def _real(self, place: bytes) -> bytes:
        """Where a place inside the root really is; each folder is looked at once, however many images are missing."""
        folder, _, name = place.rpartition(b"/")
        if folder not in self._real_folders:
            if len(self._real_folders) >= MOST_FOLDERS:
                self._real_folders.clear()
            self._real_folders[folder] = os.path.realpath(self._root + b"/" + folder)
        path = self._real_folders[folder] + b"/" + name
        return os.path.realpath(path) if os.path.islink(path) else path

    def _places(self, written: bytes) -> list[bytes]:
        """Where the path may lie, relative to the root and inside it."""
        if len(written) > LONGEST_PATH:
            return []
        spellings = [written, written.replace(b"\\", b"/")] if b"\\" in written else [written]
        places = []
        for spelling in spellings:
            for base in (self._root, self._folder):
                place = posixpath.normpath(posixpath.join(base, spelling))
                if place.startswith(self._root + b"/"):
                    places.append(place[len(self._root) + 1 :])
        return places
