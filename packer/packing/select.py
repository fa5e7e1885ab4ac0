"""``--include`` and ``--exclude``: files that say which images to pack, one path, key or glob per line."""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from packer.errors import PackerError, UsageError, plural, printable
from packer.format.lists import cell_of, path_in
from packer.format.pack import open_pack
from packer.sources.archives.contents import add_folder
from packer.sources.paths import as_bytes, as_text, folder_of, quoted, stem_of
from packer.sources.tree import MIB, lines_of, read_file

MOST_BYTES = 1024 * MIB
GLOB = re.compile(rb"[*?\[]")
KEY = re.compile(rb"[0-9]{8,18}")


@dataclass(slots=True)
class Selection:
    """The images that a file names."""

    file: str
    images: set[bytes] = field(default_factory=set)
    lines: list[bytes] = field(default_factory=list)
    """The lines in a form that holds without the file's surroundings: paths, and globs."""
    unmatched: dict[bytes, int] = field(default_factory=dict)
    """The lines that name no image, and the number of each."""

    def names(self, path: bytes) -> bool:
        """Return whether a line names an input that is bad, such as a label without an image."""
        return path in self.images or self.unmatched.pop(path, 0) > 0

    @property
    def content(self) -> bytes:
        """The lines as a file; as a list of packer, with its escapes, if they would not be read as they are."""
        content = b"".join(line + b"\n" for line in self.lines)
        if not content.startswith(b"path\t") and [line for _, line in _entries(content, self.file)] == self.lines:
            return content
        cells = (cell_of(as_text(line)).encode() for line in self.lines)
        return b"".join(cell + b"\n" for cell in (b"path\t", *cells))

    @property
    def note(self) -> str:
        """What the lines without an image are, as one line."""
        text, number = next(iter(self.unmatched.items()))
        name = printable(os.path.basename(self.file))
        lines = plural(len(self.unmatched), "line names", "lines name")
        return f"{name}: {lines} no image, for example line {number}: {quoted(text)}"


def read_selection(file: str, images: Sequence[bytes], like: str | None = None) -> Selection:
    """Return the images that a file names.

    A line is a path relative to the source, a folder that ends with a slash, a glob (``*`` also matches slashes), a
    key of the pack `like`, the name of one image, with or without its extension, or else a folder without a slash.
    A list of packer (rejected.tsv, ...) is read by its first column.

    Args:
        file: The file.
        images: The images of the source.
        like: The pack of the keys.

    Raises:
        UsageError: The file cannot be read, or a line fits several images.
    """
    try:
        data = read_file(b"/", os.path.abspath(as_bytes(file)), MOST_BYTES)
    except PackerError as error:
        raise UsageError(file, error.problem, "give a file with one path, key or glob per line") from None
    selection = Selection(file)
    entries = list(_entries(data, file))
    there = {line for _, line in entries}.intersection(images)
    later: list[tuple[int, bytes]] = []
    for number, line in entries:
        glob = line + b"*" if line.endswith(b"/") else line if GLOB.search(line) else None
        if line in there:
            selection.images.add(line)
            selection.lines.append(line)
        elif glob is None:
            later.append((number, line))
        else:
            # no bytes are lost: latin-1 has a character for each
            fits = re.compile(fnmatch.translate(glob.decode("latin-1")).encode("latin-1")).match
            found = [image for image in images if fits(image)]
            selection.images.update(found)
            selection.lines.append(line)
            if not found:
                selection.unmatched.setdefault(line, number)
    if later:
        _find_names(selection, later, images, like)
    return selection


def _entries(data: bytes, file: str) -> Iterator[tuple[int, bytes]]:
    """Yield the number and the entry of each line that is not blank. Raise UsageError for a damaged list of packer."""
    lines = lines_of(data)
    listed = bool(lines) and lines[0].startswith(b"path\t")
    for number, line in enumerate(lines, 1):
        entry = line.strip().removeprefix(b"./")
        if listed:
            try:
                entry = as_bytes(path_in(as_text(line.partition(b"\t")[0]))) if number > 1 else b""
            except ValueError:
                problem = f"{quoted(line)} is not a line of a list of packer"
                raise UsageError(f"{file}:{number}", problem, "write one path, key or glob per line") from None
        if entry:
            yield number, entry


def _find_names(
    selection: Selection, lines: list[tuple[int, bytes]], images: Sequence[bytes], like: str | None
) -> None:
    """Find keys, names, stems, and folders without a slash."""
    keys = {line for _, line in lines if KEY.fullmatch(line)}
    of_key = _paths_of(like, keys) if like is not None and keys else {}
    wanted = {line for _, line in lines}
    named: dict[bytes, list[bytes]] = {}
    for image in images:
        name, stem = image.rpartition(b"/")[2], stem_of(image)
        for spelling in {name, stem, image[: len(image) - len(name) + len(stem)]} & wanted:
            named.setdefault(spelling, []).append(image)
    there = {path for paths in of_key.values() for path in paths}.intersection(images if of_key else ())
    folders: set[bytes] = set()
    for image in images if wanted - named.keys() else ():
        add_folder(folders, folder_of(image))
    for number, line in lines:
        found = [path for path in dict.fromkeys(of_key.get(line, ())) if path in there] or named.get(line, [])
        if len(found) > 1:
            several = f"{quoted(line)} fits {len(found)} images, for example {printable(found[0])}"
            raise UsageError(f"{selection.file}:{number}", several, "give its path, or a glob for all of them")
        if not found and line in folders:
            selection.images.update(image for image in images if image.startswith(line + b"/"))
            selection.lines.append(line + b"/")
            continue
        if not found:
            selection.unmatched.setdefault(line, number)
        selection.images.update(found)
        selection.lines.append(found[0] if found else line)


def _paths_of(pack: str, keys: set[bytes]) -> dict[bytes, list[bytes]]:
    """Return the paths of the records with each of these keys; several only in a pack that was merged."""
    opened = open_pack(pack)
    columns: Any = zip(opened.column("key"), opened.column("path"), strict=True)
    found: dict[bytes, list[bytes]] = {}
    for key, path in columns:
        if (name := bytes(key)) in keys:
            found.setdefault(name, []).append(bytes(path))
    return found
