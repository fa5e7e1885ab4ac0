"""Archives as sources: what a zip or a tar would be as a folder, without unpacking it.

An archive beside others, or in another, is a folder with its name without extension; if all of it is in a folder of
that name already, it is that folder. Names are only compared: nothing is written to them.
"""

from __future__ import annotations

import io
import posixpath
import re
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise

from packer.errors import BadImage, PackerError, UsageError, plural, printable
from packer.files.tar_members import BLOCK, Files, Member, tar_members
from packer.files.zip_members import zip_members
from packer.sources.parquet_file import PARQUET, parquet_members
from packer.sources.paths import (
    IMAGE_EXTENSIONS,
    LIST_EXTENSIONS,
    archive_stem,
    as_bytes,
    as_text,
    extension_of,
    folder_of,
)
from packer.sources.places import (
    Archive,
    Bytes,
    MemberPlaces,
    Place,
    Scratch,
    SourceFile,
    compression_of,
    decompress,
    most_bytes,
)

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


ZIP_MARKS = (b"PK\x03\x04", b"PK\x05\x06")
MARKS = (*ZIP_MARKS, PARQUET)
FOREIGN = {b"Rar!\x1a\x07": "RAR", b"7z\xbc\xaf\x27\x1c": "7-Zip"}
LABELS = (b".json", b".jsonl", b".xml", b".yaml", b".yml", b".pts", b".mat")
DEEPEST = 4  # archives in archives


def check_file(path: bytes, is_image: IsImage) -> None:
    """Raise UsageError if a file is not an archive, and say what to give instead. Raise OSError if it is unreadable."""
    with SourceFile(path) as file:
        head = file.read(BLOCK)
    if head.startswith(MARKS) or compression_of(head) or head[257:262] == b"ustar" or path.endswith(b".tar"):
        return
    foreign = next((name for mark, name in FOREIGN.items() if head.startswith(mark)), None)
    if foreign is not None:
        raise UsageError(path, f"is a {foreign} archive, which packer does not read", "unpack it, or make a zip or tar")
    if is_image(path, lambda: head):
        raise UsageError(path, "is one image", "give the folder that holds the images")
    extension = extension_of(path)
    if extension in LIST_EXTENSIONS:
        step = f"give the folder of the images, with --labels=list:{printable(path)}"
        raise UsageError(path, "is a list, not a folder or archive of images", step)
    if extension in LABELS:
        raise UsageError(path, "is a file of labels", "give the folder that holds the images and this file")
    raise UsageError(path, "is not a folder, a zip or a tar", "name the folder or archive that holds the images")


def fault(error: PackerError) -> str:
    """Return an error as the reason of an input that must not be skipped."""
    return f"{FAULT}{error.problem}; {error.next_step}"


@dataclass(slots=True)
class Archives:
    """Collects what the archives of a source hold, as paths relative to the source."""

    is_image: IsImage
    scratch: Scratch | None
    archives: list[Archive] = field(default_factory=list)
    paths: list[bytes] = field(default_factory=list)
    places: array[int] = field(default_factory=lambda: array("q"))
    """The fields of the `Place` of each path."""
    are_images: bytearray = field(default_factory=bytearray)
    folders: set[bytes] = field(default_factory=set)
    skipped: list[tuple[bytes, str]] = field(default_factory=list)
    _room: int = 0
    """What may still be decompressed of the file that is being added, and of archives in it."""

    def add(self, file: bytes, prefix: bytes) -> None:
        """Add the members of an archive file, and of archives in it if it has no images itself.

        Args:
            file: Its absolute path.
            prefix: Path of the folder that it stands for, b"" for the root of the source.

        Raises:
            UsageError: It is damaged, or cannot be read as a whole.
            OSError: It cannot be read.
        """
        whole = self._opened(file)
        self._room = most_bytes(whole.size)
        self._add(whole, as_text(file), prefix, 1)

    def _opened(self, file: bytes) -> Place:
        self.archives.append(Archive.of(file))
        return Place(len(self.archives) - 1, 0, self.archives[-1].size)

    def _add(self, place: Place, name: str, prefix: bytes, depth: int) -> None:
        if depth > DEEPEST:
            raise UsageError(name, f"is an archive in {plural(DEEPEST, 'archive')}", "unpack it")
        with SourceFile(b"", place, self.archives) as file:
            head = file.read(BLOCK)
            compression = compression_of(head)
            if compression is not None or place.packed >= 0:
                plain = self._decompressed(file, compression, name)
                return self._add(plain, name, prefix, depth + 1)
            if head.startswith(PARQUET):
                if depth > 1 or self.scratch is None:
                    raise UsageError(name, "is a Parquet file in an archive", "unpack the archive")
                if not name.lower().endswith(".parquet"):
                    raise UsageError(name, "is a Parquet file without its extension", "rename it to NAME.parquet")
                members: Iterator[Member | Files] = iter(parquet_members(file, name, target := self.scratch(name)))
                place = self._opened(as_bytes(target))
            elif head.startswith(ZIP_MARKS):
                members = zip_members(io.BufferedReader(Bytes(file)), file.read, file.size, name)
            else:
                members = tar_members(file.read, file.size, name)
            contents = Contents(self.is_image, place, self.archives)
            for member in members:
                contents.take(member)
        contents.finish()
        if prefix and contents.is_below(posixpath.basename(prefix)):
            prefix = folder_of(prefix)
        else:
            add_folder(self.folders, prefix)
        before = prefix + b"/" if prefix else b""
        nested = contents.take_nested()
        self.paths += [before + path for path in contents.paths] if before else contents.paths
        self.places += contents.places
        self.are_images += contents.are_images
        self.folders.update(before + folder for folder in contents.folders)
        self.skipped += [(before + path, reason) for path, reason in contents.skipped]
        for path, inner in nested.items():
            stem = archive_stem(path)
            assert stem is not None
            try:
                self._add(inner, f"{name}/{as_text(path)}", before + stem, depth + 1)
            except (UsageError, BadImage) as error:
                self.skipped.append((before + path, fault(error)))

    def _decompressed(self, file: SourceFile, compression: str | None, name: str) -> Place:
        if self.scratch is None:
            raise UsageError(name, "is compressed", "decompress it")
        target = self.scratch(name)
        self._room -= decompress(file, compression, name, target, self._room)
        return self._opened(target.encode("utf-8", "surrogateescape"))

    def keep(self, folder: bytes) -> None:
        """Drop what is not below a folder, given with a final slash, and take its paths from there."""
        start, width = len(folder), len(Place._fields)
        kept = [i for i, path in enumerate(self.paths) if path.startswith(folder)]
        self.paths = [self.paths[i][start:] for i in kept]
        self.are_images = bytearray(self.are_images[i] for i in kept)
        self.places = array("q", (n for i in kept for n in self.places[i * width : (i + 1) * width]))
        self.folders = {path[start:] for path in self.folders if path.startswith(folder)} - {b""}
        self.skipped = [(path[start:], reason) for path, reason in self.skipped if path.startswith(folder)]

    def finish(self) -> tuple[MemberPlaces, list[bytes], list[bytes]]:
        """Return all members, and the images and the other files among them, in byte order.

        Members with the same path are all skipped: which one the archive means depends on the program that reads it.
        """
        import numpy as np

        order = sorted(range(len(self.paths)), key=self.paths.__getitem__)
        paths = [self.paths[i] for i in order]
        twice = {path for path, other in pairwise(paths) if path == other}
        taken = twice | (self.folders & set(paths) if self.folders else set())
        self.skipped += [(path, f"{FAULT}several members have this name: unpack the archive") for path in sorted(taken)]
        if taken:
            order = [i for i in order if self.paths[i] not in taken]
            paths = [self.paths[i] for i in order]
        places = np.frombuffer(self.places, np.int64).reshape(-1, len(Place._fields))[order]
        images = [path for path, i in zip(paths, order, strict=True) if self.are_images[i]]
        files = [path for path, i in zip(paths, order, strict=True) if not self.are_images[i]]
        return MemberPlaces(tuple(self.archives), paths, places, self.scratch), images, files
