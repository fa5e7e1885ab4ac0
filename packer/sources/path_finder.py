"""Finds the image that a path in a list means: as written, else by the end of the path, the file name, or its stem."""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from itertools import chain, islice
from operator import eq
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer.errors import BadLabel, NoImage, plural, printable
from packer.sources.paths import (
    Split,
    extension_of,
    folder_of,
    image_stem,
    quoted_value,
    some_paths,
    splits_in,
    stem_of,
)
from packer.sources.source import Tree
from packer.stores import joined

LONGEST_PATH = 4096
"""The operating system accepts no longer path, and checking a million missing folders would take minutes."""
MOST_FOLDERS = 65536
"""Number of folders whose real paths are cached."""
MOST_PARTS = 32
NOT_FOUND, SEVERAL = -1, -2
DISTINCT = 0.95
"""Share of the paths that must lead to an image of their own; a few mistakes are reported as such."""


class Manner(NamedTuple):
    """How paths are compared that lead nowhere as written; the same for all paths of a list.

    The rest of a path must be the end of the path of exactly one image.
    """

    dropped: int | None
    """Number of leading folders to leave out; None: all of them."""
    stem: bool
    """Whether to ignore the extension."""

    def describe(self) -> str:
        """Return how paths are compared, for a note."""
        what = "the file name" if self.dropped is None else "the end of the path"
        if self.dropped:
            what += f" (without its first {'folder' if self.dropped == 1 else f'{self.dropped} folders'})"
        return what + " without extension" * self.stem


BY_NAME, BY_STEM = Manner(None, False), Manner(None, True)


class PathFinder:
    """Finds the image of a path in a list, inside the source only. Compares names without opening files."""

    def __init__(self, tree: Tree, list_folder: bytes) -> None:
        """Use this tree, and the absolute path of the folder of the list."""
        self.tree = tree
        self._root = tree.root.rstrip(b"/")
        self.images = tree.images
        self._folder = list_folder
        self._real_folders: dict[bytes, bytes] = {}
        self._places_of: dict[bytes, list[bytes]] = {}
        self._by_hash: dict[bool | None, tuple[NDArray[np.int64], NDArray[np.int32]]] = {}
        """Hashes in ascending order, and whose they are: of all images, of their names (False) and stems (True).

        Dicts would need five times the memory, and ten times with their own names.
        """

    def at(self, list_folder: bytes) -> PathFinder:
        """Return a finder for a list in another folder."""
        other = copy(self)
        other._folder = list_folder
        other._places_of = {}
        return other

    def find(self, written: bytes) -> int:
        """Return the number of the image; NOT_FOUND if there is none.

        Try the path as written first, then with backslashes as slashes; relative to the root first, then to the
        list's folder.
        """
        number = self._number(written)
        if number == NOT_FOUND:
            for place in self._near(written):
                if (number := self._number(place)) != NOT_FOUND:
                    break
        return number

    def find_by(self, manner: Manner | None, written: bytes) -> int:
        """Return the number of the only image that a path means; None is `find`."""
        if manner is None:
            return self.find(written)
        found = list(islice(self._candidates(manner, written), 2))
        return found[0] if len(found) == 1 else NOT_FOUND

    def find_all(self, manner: Manner | None, paths: Sequence[bytes]) -> NDArray[np.int32]:
        """Return what `find_by` returns for each of many paths; NOT_FOUND for empty ones."""
        if not self.images:
            return np.full(len(paths), NOT_FOUND, np.int32)
        if manner is not None:
            return self._only_ones(manner, paths)
        found = self._numbers(paths)
        missing = [i for i in np.flatnonzero(found == NOT_FOUND).tolist() if paths[i]]
        near = [self._near(paths[i]) for i in missing]
        numbers = self._numbers(list(chain.from_iterable(near)))[::-1]
        owners = np.repeat(np.array(missing, np.int64), list(map(len, near)))[::-1]
        there = numbers != NOT_FOUND
        found[owners[there]] = numbers[there]  # the first of several is written last
        return found

    def manner(self, paths: Iterable[bytes]) -> tuple[Manner, int] | None:
        """Return how to compare paths that lead nowhere as written, and how many of them then lead to an image.

        The manner that finds most of them wins, of equals the strictest. One that finds the same image for different
        paths time and again is none.
        """
        distinct = list(dict.fromkeys(paths))
        depth = max((path.replace(b"\\", b"/").count(b"/") for path in distinct), default=0)
        best: tuple[Manner, int] | None = None
        for stem in (False, True):
            for dropped in (*range(min(depth, MOST_PARTS) + 1), None):
                manner = Manner(dropped, stem)
                found = [number for number in self.find_all(manner, distinct).tolist() if number != NOT_FOUND]
                if found and len(set(found)) >= DISTINCT * len(found) and (best is None or len(found) > best[1]):
                    best = manner, len(found)
            if best is not None and 2 * best[1] >= len(distinct):
                break
        return best

    def alike(self, written: bytes) -> list[bytes]:
        """Return the images with the file name of a path, or else its stem."""
        numbers = [*self._candidates(BY_NAME, written)] or self._candidates(BY_STEM, written)
        return [self.images[number] for number in numbers]

    def example(self, manner: Manner, paths: Iterable[bytes]) -> str:
        """Return a path with the image that it means, for a note."""
        pairs = ((path, self.find_by(manner, path)) for path in paths)
        path, number = next(pair for pair in pairs if pair[1] != NOT_FOUND)
        return f"{quoted_value(path)} is {printable(self.images[number])}"

    def escapes(self, written: bytes) -> bool:
        """Return whether the path may lead out of the source folder, through ``..``, ``/`` or a symlink."""
        if b"\0" in written or len(written) > LONGEST_PATH:
            return False
        places = self._places(written)
        if not places:
            return True
        top = os.path.realpath(self._root) + b"/"
        return not all((self._real(place) + b"/").startswith(top) for place in places)

    def _number(self, image: bytes) -> int:
        number = bisect_left(self.images, image)
        return number if number < len(self.images) and self.images[number] == image else NOT_FOUND

    def _numbers(self, paths: Sequence[bytes]) -> NDArray[np.int32]:
        """Return the number of each path that is an image's own, and else NOT_FOUND."""
        numbers = self._of_hash(None, paths)
        several = np.flatnonzero(numbers == SEVERAL).tolist()
        own = map(self.images.__getitem__, numbers.tolist())
        numbers[~np.fromiter(map(eq, own, paths), np.bool_, len(paths))] = NOT_FOUND
        for i in several:
            numbers[i] = self._number(paths[i])
        return numbers

    def _only_ones(self, manner: Manner, paths: Sequence[bytes]) -> NDArray[np.int32]:
        endings = [_ending(manner, path) for path in paths]
        numbers = self._of_hash(manner.stem, [ending[ending.rfind(b"/") + 1 :] for ending in endings]).tolist()
        of_several = dict[bytes, int]()
        for i, number in enumerate(numbers):
            if number == SEVERAL:
                if paths[i] not in of_several:  # a path may be in many lines, and its name of many images
                    of_several[paths[i]] = self.find_by(manner, paths[i])
                numbers[i] = of_several[paths[i]]
            elif number != NOT_FOUND and not self._ends(number, manner, endings[i]):
                numbers[i] = NOT_FOUND
        return np.array(numbers, np.int32)

    def _of_hash(self, stem: bool | None, names: Sequence[bytes]) -> NDArray[np.int32]:
        """Return the image whose name has the hash of this one, NOT_FOUND or SEVERAL; stem as in `_by_hash`."""
        hashes, order = self._hashes(stem)
        own = np.fromiter(map(hash, names), np.int64, len(names))
        places = np.empty(len(own), np.int64)
        ascending = np.argsort(own)  # half of the time, because what is read is near what was read before
        places[ascending] = np.searchsorted(hashes, own[ascending])
        numbers = order.take(places, mode="clip")
        numbers[hashes.take(places, mode="clip") != own] = NOT_FOUND
        numbers[(hashes.take(places + 1, mode="clip") == own) & (places + 1 < len(hashes))] = SEVERAL
        return numbers

    def _hashes(self, stem: bool | None) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        if stem not in self._by_hash:
            names: Iterable[bytes] = self.images
            if stem is not None:
                names = map(stem_of, names) if stem else (image.rpartition(b"/")[2] for image in names)
            hashes = np.fromiter(map(hash, names), np.int64, len(self.images))
            order = np.argsort(hashes).astype(np.int32)
            self._by_hash[stem] = hashes[order], order
        return self._by_hash[stem]

    def _near(self, written: bytes) -> list[bytes]:
        """Return `_places` of a path, found once for each folder: millions of paths have few."""
        cut = written.rfind(b"/") + 1
        folder, name = written[:cut], written[cut:]
        if b"\\" in name or name in (b"", b".", b".."):
            return self._places(written)
        places = self._places_of.get(folder)
        if places is None:
            if len(self._places_of) >= MOST_FOLDERS:
                self._places_of.clear()
            places = self._places_of[folder] = [place[:-1] for place in self._places(folder + b"x")]
        return [place + name for place in places]

    def _candidates(self, manner: Manner, written: bytes) -> Iterator[int]:
        """Yield the images that a path may mean, in order."""
        ending = _ending(manner, written)
        all_hashes, order = self._hashes(manner.stem)
        hashes, own = all_hashes.data, hash(ending[ending.rfind(b"/") + 1 :])
        start = stop = bisect_left(hashes, own)  # numpy's takes longer for one
        while stop < len(hashes) and hashes[stop] == own:
            stop += 1
        return (number for number in sorted(order[start:stop].tolist()) if self._ends(number, manner, ending))

    def _ends(self, number: int, manner: Manner, ending: bytes) -> bool:
        path = b"/" + self.images[number]
        end = len(path) - len(extension_of(path)) if manner.stem else len(path)
        return bool(ending) and path.endswith(ending, 0, end)

    def _real(self, place: bytes) -> bytes:
        """Return the real path of a path inside the root, looking up each folder once."""
        folder, _, name = place.rpartition(b"/")
        if folder not in self._real_folders:
            if len(self._real_folders) >= MOST_FOLDERS:
                self._real_folders.clear()
            self._real_folders[folder] = os.path.realpath(self._root + b"/" + folder)
        path = self._real_folders[folder] + b"/" + name
        return os.path.realpath(path) if os.path.islink(path) else path

    def _places(self, written: bytes) -> list[bytes]:
        """Return the candidates for a path, relative to the root and inside it."""
        if len(written) > LONGEST_PATH:
            return []
        spellings = [written, written.replace(b"\\", b"/")] if b"\\" in written else [written]
        places = []
        for spelling in spellings:
            for base in (self._root, self._folder):
                place = joined(base, spelling)
                if place.startswith(self._root + b"/"):
                    places.append(place[len(self._root) + 1 :])
        return list(dict.fromkeys(places))


def _ending(manner: Manner, written: bytes) -> bytes:
    """Return how the path of an image must end that a path means, with a slash before it; b"" if none can."""
    if not written or len(written) > LONGEST_PATH:
        return b""
    rest = [written]
    if b"/" in written or b"\\" in written or written == b".":
        rest = [part for part in written.replace(b"\\", b"/").split(b"/") if part not in (b"", b".")]
    if b".." in rest[manner.dropped or 0 :]:
        return b""
    rest = rest[-1:] if manner.dropped is None else rest[manner.dropped :]
    if not rest:
        return b""
    rest[-1] = image_stem(rest[-1]) if manner.stem else rest[-1]
    return b"/" + b"/".join(rest)


class ImageNames:
    """Finds images by what label files write: a path, or a name without its folder or extension."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._finder = PathFinder(tree, tree.root)

    def of_file(self, path: bytes) -> FileImages:
        """Return what finds the images of the file at this absolute path."""
        folder = folder_of(self._tree.below(path))
        return FileImages(self._finder.at(folder_of(path)), folder, splits_in(self.told(path)))

    def told(self, path: bytes) -> bytes:
        """Return the part of an absolute path that may name a split: below the source, else file and folder."""
        return self._tree.below(path) or b"/".join(path.split(b"/")[-2:])


class FileImages:
    """Finds the images of one file.

    A path is followed from the source folder, or from the file's own. If nothing is there, the images of that name
    or stem are compared with it: most folders in common win, then the folder of the file, then the folder of the split
    that the file is of. An image in the folder of another split is never taken.
    """

    def __init__(self, finder: PathFinder, folder: bytes, splits: set[Split]) -> None:
        self._finder = finder
        self._folder = folder + b"/"
        self._splits = splits
        self._of_another: dict[bytes, bool] = {}
        self.moved: tuple[bytes, bytes] | None = None
        """The first path with a folder that was found in another one, and where."""
        self.count = 0
        """Number of those; names without a folder are found anywhere."""

    def find(self, written: bytes) -> list[bytes]:
        """Return the image of a path; none, or several, if that is not clear."""
        number = self._finder.find(written)
        if number != NOT_FOUND:
            return [self._finder.images[number]]
        parts = written.replace(b"\\", b"/").split(b"/")
        found = [image for image in self._finder.alike(written) if not self._is_of_another_split(image)]
        if len(found) > 1:
            most = max(_common(image, parts) for image in found)
            found = [image for image in found if _common(image, parts) == most]
        if len(found) > 1:
            found = [image for image in found if image.startswith(self._folder)] or found
        if len(found) > 1 and self._splits:
            found = [image for image in found if splits_in(folder_of(image)) & self._splits] or found
        if len(found) == 1 and len(parts) > 1:
            self.count += 1
            self.moved = self.moved or (written, found[0])
        return found

    def notes(self, name: str) -> list[str]:
        """Return how many images were found in other folders than the file says, if there are any."""
        if self.moved is None:
            return []
        written, found = self.moved
        what = plural(self.count, "image was", "images were")
        return [f"{name}: {what} found elsewhere, e.g. {quoted_value(written)} at {printable(found)}"]

    def _is_of_another_split(self, image: bytes) -> bool:
        folder = folder_of(image)
        if folder not in self._of_another:
            theirs = {name for name, _ in splits_in(folder)}
            ours = {name for name, _ in self._splits}
            self._of_another[folder] = bool(theirs and ours and not theirs & ours)
        return self._of_another[folder]


def only_image(images: FileImages, written: bytes, where: Callable[[], str]) -> bytes | NoImage | BadLabel:
    """Return the image that an entry names, else the error of the entry; `where` returns the place of it."""
    found = images.find(written)
    if len(found) == 1:
        return found[0]
    if found:
        problem = f"{quoted_value(written)} fits {len(found)} images equally well: {some_paths(found)}"
        return BadLabel(where(), problem, "write the folder too")
    return NoImage(where(), f"no image {quoted_value(written)}", "add the image, or remove its entry")


def _common(image: bytes, parts: list[bytes]) -> int:
    """Return how many parts two paths have in common at their ends."""
    count = 0
    for one, other in zip(reversed(image.split(b"/")), reversed(parts), strict=False):
        if one != other:
            break
        count += 1
    return count
