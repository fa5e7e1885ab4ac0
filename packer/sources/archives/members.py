"""The places of all files of a source whose bytes are not in files of their own."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from packer.sources.archives.places import OWN_FILE, Archive, Place, Scratch
from packer.sources.archives.small_files import SmallFiles

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

    def place(self, path: bytes) -> tuple[Place, str]:
        """Return the place of a file, and its ETag."""
        row = bisect_left(self.paths, path)
        if row < len(self.paths) and self.paths[row] == path:
            return Place(*self.places[row].tolist()), self.etags[row] if self.etags else ""
        return OWN_FILE, ""

    def rows(self, paths: Sequence[bytes]) -> list[int]:
        """Return the numbers of files that all have a place, in byte order of their paths."""
        first, last = (bisect_left(self.paths, path) for path in (paths[0], paths[-1]))
        row_of = {path: row for row, path in enumerate(self.paths[first : last + 1], first)}
        return [row_of[path] for path in paths]
