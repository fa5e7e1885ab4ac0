"""The members of one archive by their paths in it: which are files, folders, hidden, links, or refused."""

from __future__ import annotations

import posixpath
import re
from array import array
from collections.abc import Callable, Sequence
from functools import partial

from packer.files.tar_members import BLOCK, Files, Member
from packer.sources.archives.places import Archive, Place, SourceFile
from packer.sources.paths import IMAGE_EXTENSIONS, archive_stem, folder_of

MOST_LINKS = 40
"""Links to links, as many as Linux follows."""
UNUSUAL = re.compile(rb"\A/|(?:\A|/)\.{0,2}(?:/|\Z)|\0|\A[A-Za-z]:[/\\]")
ABSOLUTE = re.compile(rb"/|[A-Za-z]:[/\\]")
HIDDEN = re.compile(rb"(?:\A|/)(?:\.|__MACOSX(?:/|\Z))")
PECULIAR = re.compile(rb"[\0/](?:[./\0]|__MACOSX[/\0])|\0[A-Za-z]:[/\\]")
"""Names that are `UNUSUAL` or `HIDDEN`, among many with a zero byte before and after each."""
FAULT = "unreadable: "
"""Begins the reason of members that must not be skipped."""

IsImage = Callable[[bytes, Callable[[], bytes]], bool]
"""Takes a path, and a function that returns the first bytes of the file."""


def add_folder(folders: set[bytes], path: bytes) -> None:
    """Add a folder and those above it."""
    while path and path not in folders:
        folders.add(path)
        path = folder_of(path)


class Contents:
    """The members of one archive."""

    def __init__(self, is_image: IsImage, whole: Place, archives: Sequence[Archive]) -> None:
        self._is_image, self._whole, self._archives = is_image, whole, archives
        self.paths: list[bytes] = []
        self.places = array("q")
        self.are_images = bytearray()
        self.folders: set[bytes] = set()
        self.skipped: list[tuple[bytes, str]] = []
        self._hidden: dict[bytes, Place] = {}
        self._links: dict[bytes, Member] = {}

    def take(self, found: Member | Files) -> None:
        """Take the next member, or the next ones."""
        if isinstance(found, Files):
            self._take_files(found)
        else:
            self._take(found)

    def _take_files(self, files: Files) -> None:
        """Take many files: those with peculiar names one by one, the others at once."""
        import numpy as np

        paths, places = [name.removeprefix(b"./") for name in files.names], files.places
        joined = b"\0%b\0" % b"\0".join(paths)
        if PECULIAR.search(joined) or joined.count(b"\0") > len(paths) + 1:
            peculiar = [bool(PECULIAR.search(b"\0%b\0" % path) or b"\0" in path) for path in paths]
            for number, is_one in enumerate(peculiar):
                if is_one:
                    self._take(files.member(number))
            paths = [path for path, is_one in zip(paths, peculiar, strict=True) if not is_one]
            places = places[~np.array(peculiar)]
        rows = np.empty((len(paths), len(Place._fields)), np.int64)
        rows[:, 0], rows[:, 1:] = self._whole.archive, places
        rows[:, 1] += self._whole.offset
        first = len(self.paths)
        self.paths += paths
        self.places.frombytes(rows.tobytes())
        # none is hidden: the stem before an extension is not empty
        self.are_images += bytes(path[path.rfind(b".") :].lower() in IMAGE_EXTENSIONS for path in paths)
        for number in range(first, len(self.paths)):
            if not self.are_images[number]:
                place = self._place_of(number)
                self.are_images[number] = self._is_image(self.paths[number], partial(self._head, place))
        for folder in {folder_of(path) for path in paths}:
            add_folder(self.folders, folder)

    def _take(self, member: Member) -> None:
        path, kind = member.name, member.kind
        if UNUSUAL.search(path):
            usual = self._usual(path, kind)
            if not usual:
                return
            path = usual
        if HIDDEN.search(path):
            if kind == "file":
                self._hidden[path] = self._place(member)
            if kind != "folder" and self._is_image(path, bytes):
                self.skipped.append((path, "hidden"))
        elif kind in ("file", "image"):
            self._append(path, self._place(member), kind == "image")
        elif kind == "folder":
            add_folder(self.folders, path)
        elif kind in ("symlink", "hard link"):
            self._links[path] = member
        else:
            self.skipped.append((path, kind if kind == "not a regular file" else f"{FAULT}{kind}: unpack the archive"))

    def _place(self, member: Member) -> Place:
        start = self._whole.offset + member.offset
        return Place(self._whole.archive, start, member.size, member.packed, member.crc)

    def _append(self, path: bytes, place: Place, is_image: bool = False) -> None:
        self.paths.append(path)
        self.places.extend(place)
        self.are_images.append(is_image or self._is_image(path, partial(self._head, place)))
        add_folder(self.folders, folder_of(path))

    def _head(self, place: Place) -> bytes:
        with SourceFile(b"", place, self._archives) as file:
            return file.read(BLOCK)

    def _usual(self, name: bytes, kind: str) -> bytes | None:
        """Return a name without ``./`` and ``//``, b"" for the root; None if it is refused."""
        problem = ""
        usual = b"/".join(part for part in name.split(b"/") if part not in (b"", b"."))
        if ABSOLUTE.match(name):
            problem = "has an absolute name"
        elif b".." in name.split(b"/"):
            problem = 'has ".." in its name'
        elif b"\0" in name or (not usual and kind != "folder"):
            problem = "has no valid name"
        if problem:
            self.skipped.append((name, f"{FAULT}{problem}: unpack the archive"))
            return None
        return usual

    def finish(self) -> None:
        """Find what links lead to, in this archive."""
        if not self._links:
            return
        places = dict(zip(self.paths, map(self._place_of, range(len(self.paths))), strict=True))
        for path, link in self._links.items():
            target = self._target(path, link)
            for _ in range(MOST_LINKS):
                if target not in self._links:
                    break
                target = self._target(target, self._links[target])
            place = places.get(target) or self._hidden.get(target)
            if place is not None:
                self._append(path, place)
            elif target in self.folders:
                self.skipped.append((path, f"{FAULT}links to a folder: unpack the archive"))
            else:
                problem = f"is a {link.kind} to no file of the archive"
                is_image = self._is_image(path, bytes)
                self.skipped.append((path, f"{FAULT}{problem}: unpack the archive" if is_image else problem))

    def _target(self, path: bytes, link: Member) -> bytes:
        base = folder_of(path) if link.kind == "symlink" else b""
        return posixpath.normpath(posixpath.join(base, link.target))

    def _place_of(self, number: int) -> Place:
        width = len(Place._fields)
        return Place(*self.places[number * width : (number + 1) * width])

    def take_nested(self) -> dict[bytes, Place]:
        """Take the archives from the files; none if there are images, which might be their content."""
        numbers = [] if 1 in self.are_images else [i for i, path in enumerate(self.paths) if archive_stem(path)]
        nested = {self.paths[number]: self._place_of(number) for number in numbers}
        if nested:
            kept = [i for i, path in enumerate(self.paths) if path not in nested]
            self.places = array("q", (n for i in kept for n in self._place_of(i)))
            self.paths, self.are_images = [self.paths[i] for i in kept], bytearray(len(kept))
        return nested

    def is_below(self, top: bytes) -> bool:
        """Return whether everything is in the folder `top`."""
        every = (*self.folders, *self.paths)
        return top in self.folders and all((path + b"/").startswith(top + b"/") for path in every)
