"""Finds the images that a file of labels names, in the folders in which they are now."""

from __future__ import annotations

from packer.sources.base import Tree
from packer.sources.path_finder import NOT_FOUND, PathFinder
from packer.sources.paths import folder_of
from packer.sources.splits import Split, splits_in


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

    def _is_of_another_split(self, image: bytes) -> bool:
        folder = folder_of(image)
        if folder not in self._of_another:
            theirs = {name for name, _ in splits_in(folder)}
            ours = {name for name, _ in self._splits}
            self._of_another[folder] = bool(theirs and ours and not theirs & ours)
        return self._of_another[folder]


def _common(image: bytes, parts: list[bytes]) -> int:
    """Return how many parts two paths have in common at their ends."""
    count = 0
    for one, other in zip(reversed(image.split(b"/")), reversed(parts), strict=False):
        if one != other:
            break
        count += 1
    return count
