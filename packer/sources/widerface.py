"""WIDER FACE's lists: the path of an image, the number of its faces, and a line for each face.

``x y w h blur expression illumination invalid occlusion pose``; an image without faces has one line of zeros.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from packer.errors import BadLabel, UsageError, printable
from packer.sources.base import Choice, SourceOptions, Tree
from packer.sources.by_name import ByNameSource, Entry, Objects, asked_files, files_like
from packer.sources.paths import folder_of, named, number
from packer.sources.tree import MIB, lines_of, read_file

FIELDS = ("blur", "expression", "illumination", "invalid", "occlusion", "pose")
FACE = "face"
MOST_BYTES = 256 * MIB
SPLIT = re.compile(rb"wider_face_([a-z]+)_bbx_gt\.txt")


class WiderFaceSource(ByNameSource):
    """The lists of WIDER FACE. The annotations of all images are held in memory."""

    takes_file = "optional"

    def __init__(self, tree: Tree, options: SourceOptions) -> None:
        files = asked_files(tree, options, _found(tree), "widerface")
        super().__init__(tree, options, [entry for path in files for entry in _entries(tree, path)], files)

    @staticmethod
    def recognize(tree: Tree) -> list[Choice]:
        """Return WIDER FACE if there is a list of its name."""
        files = _found(tree)
        return [Choice("widerface", f"{named(files)} {'lists' if len(files) == 1 else 'list'} faces")][: len(files)]


def _found(tree: Tree) -> list[bytes]:
    return files_like(tree, b"_bbx_gt.txt")


def _entries(tree: Tree, path: bytes) -> Iterator[Entry]:
    try:
        lines = lines_of(read_file(tree, path, MOST_BYTES))
    except BadLabel as error:
        raise UsageError(path, error.problem, error.next_step) from None
    match = SPLIT.fullmatch(path.rpartition(b"/")[2])
    split = match[1].decode() if match else None
    i = 0
    while i < len(lines):
        name, where = lines[i].strip(), f"{printable(path)}:{i + 1}"
        i += 1
        if not name:
            continue
        count = lines[i].strip() if i < len(lines) else b""
        if not re.fullmatch(rb"[0-9]{1,6}", count):
            raise UsageError(f"{printable(path)}:{i + 1}", "is not the number of faces", "fix the list")
        rows = lines[i + 1 : i + 1 + max(1, int(count))]
        if int(count) == 0 and rows and b"." in rows[0]:
            rows = []  # the line of zeros is missing: this is the next image
        i += 1 + len(rows)
        objects: Objects | BadLabel = (faces := Objects())
        try:
            for row in rows[: int(count)]:
                _add(faces, row)
        except ValueError as error:
            objects = BadLabel(where, str(error), "fix the list")
        yield Entry(where, name, objects, folder_of(path), split)


def _add(objects: Objects, row: bytes) -> None:
    values = [number(token) for token in row.split()]
    if len(values) not in (4, 4 + len(FIELDS)):
        raise ValueError(f"a face has {len(values)} numbers, not 4 or {4 + len(FIELDS)}")
    x, y, w, h = values[:4]
    objects.add(FACE, (x, y, x + w, y + h), fields=dict(zip(FIELDS, map(int, values[4:]), strict=False)))
