"""The places of all files of a source whose bytes are not in files of their own."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from packer.sources.archives.objects import SourceObject
from packer.sources.archives.places import Archive, Place, Scratch, SourceFile
from packer.sources.archives.small_files import SmallFiles
from packer.stores import is_url

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class Members:
    """The places of the files of a source that are in archives or in a store."""

    archives: tuple[Archive, ...]
    paths: Sequence[bytes]
    """Relative to the root of the source, in byte order."""
    places: NDArray[np.int64]
    """(n, 5): the fields of `Place`."""
    scratch: Scratch | None = None
    copies: dict[bytes, str] = field(default_factory=dict)
    """The files that were decompressed."""
    etags: Sequence[str] = ()
    """Of the files, if they are objects of a store."""
    small: SmallFiles | None = None
    """Reads the small ones of a store."""

    opened: dict[bytes, SourceObject] = field(default_factory=dict)
    """The archives in a store whose members were opened: those that follow each other are read together."""

    def open(self, file: bytes, path: bytes) -> SourceFile:
        """Open a file, given by its absolute path or URL, and its path in the source; from one thread.

        Raises:
            BadImage: Its archive has changed.
            OSError: It cannot be opened.
        """
        row = bisect_left(self.paths, path)
        if row == len(self.paths) or self.paths[row] != path:
            return SourceFile(file)
        place = Place(*self.places[row].tolist())
        opened = None
        if self.etags:
            content = self.small.content(row) if self.small else b""
            opened = SourceObject(file, place.size, self.etags[row], content)
        elif is_url(archive := (found := self.archives[place.archive]).path):
            if archive not in self.opened:
                self.opened[archive] = SourceObject(archive, found.size, found.etag)
            opened = self.opened[archive]
        return SourceFile(file, place, self.archives, opened)

    def rows(self, paths: Sequence[bytes]) -> list[int]:
        """Return the numbers of files that all have a place, in byte order of their paths."""
        first, last = (bisect_left(self.paths, path) for path in (paths[0], paths[-1]))
        row_of = {path: row for row, path in enumerate(self.paths[first : last + 1], first)}
        return [row_of[path] for path in paths]
