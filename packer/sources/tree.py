"""Lists the files of a source folder once for all sources, without leaving it, and reads annotation files."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from dataclasses import dataclass, field

from packer.errors import BadImage, BadLabel, NotAnImage, StorageError, UsageError
from packer.images.header import IncompleteHeader, read_header
from packer.sources.base import Tree
from packer.sources.paths import extension_of
from packer.system import READ_FLAGS

IMAGE_EXTENSIONS = frozenset(
    b".jpg .jpeg .jpe .jfif .png .apng .bmp .dib .gif .webp .tif .tiff .ppm .pgm .pbm .pnm"
    b" .jp2 .j2k .j2c .jpc .jpf .jpx .avif .avifs"
    # packer cannot decode these, but they are images: they must be rejected, not overlooked
    b" .heic .heif".split()
)

MIB = 1024 * 1024
SNIFFED_BYTES = 64  # enough to tell an image by
SMALLEST_IMAGE_BYTES = 26  # a GIF of one pixel

Skipped = tuple[bytes, str]
"""A path relative to the root, and why it was skipped."""


def looks_like_image(path: bytes) -> bool:
    """Return whether a file begins like an image, even a damaged one; False if it cannot be read."""
    try:
        with open(path, "rb", buffering=0) as file:
            head = file.read(SNIFFED_BYTES)
        if len(head) < SMALLEST_IMAGE_BYTES or head[:1] == b"P":
            return False  # a short text, whatever it begins with; a PNM file has an extension
        read_header(head, complete=len(head) < SNIFFED_BYTES)
    except (NotAnImage, OSError):
        return False
    except (BadImage, IncompleteHeader):
        return True
    return True


def find_tree(root: bytes | str, is_image: Callable[[bytes], bool] = looks_like_image) -> tuple[Tree, list[Skipped]]:
    """Return the tree below a folder, and the skipped paths with reasons.

    Hidden names (``.x``, ``__MACOSX``) are left out, and listed if they have an image extension. A symlink is
    followed only if it leads to a file inside the root.

    Args:
        root: The folder.
        is_image: Returns whether a file without an image extension, given by its absolute path, is an image.

    Raises:
        UsageError: `root` is not a folder.
        StorageError: `root` cannot be read.
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
        """Return the entries of a folder in reverse byte order; a folder sorts as its name with a slash.

        If there are only files in it, as in a class folder, add them directly.
        """
        prefix = folder + b"/" if folder else b""
        try:
            with os.scandir(os.path.join(self.root, folder)) as entries:
                found = [(prefix + entry.name, _kind(entry, hidden)) for entry in entries]
        except OSError as error:
            if not hidden:
                self.skipped.append((folder, _reason(error)))
            return []
        if all(kind == "file" for _, kind in found):
            found.sort()
            for path, _ in found:
                if path[path.rfind(b".") :].lower() in IMAGE_EXTENSIONS:  # never hidden: its stem is not empty
                    self.images.append(path)
                else:
                    self._take(path)
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
    """Return folder, file or symlink, or the reason to skip it. Do not open or follow hidden names."""
    name = entry.name
    hidden = hidden or name[:1] == b"." or name == b"__MACOSX"
    try:
        if not hidden and entry.is_file(follow_symlinks=False):
            return "file"
        if entry.is_dir(follow_symlinks=False):
            return "hidden folder" if hidden else "folder"
        if hidden:
            return "hidden"
        if entry.is_symlink():
            return "symlink"
        return "not a regular file"
    except OSError as error:
        return _reason(error)


def _reason(error: OSError) -> str:
    if isinstance(error, PermissionError):
        return "permission"
    return "vanished" if isinstance(error, FileNotFoundError) else f"unreadable: {error.strerror}"


def read_file(root: bytes, path: bytes, most_bytes: int) -> bytes:
    """Return the bytes of ``root/path``.

    Raises:
        BadLabel: The file is unreadable, not a regular file, or larger than `most_bytes`.
    """
    data = read_head(root, path, most_bytes + 1)
    if len(data) > most_bytes:
        raise BadLabel(path, f"is larger than the {most_bytes} bytes allowed", "split it, or remove it")
    return data


def read_head(root: bytes, path: bytes, num_bytes: int, tail_bytes: int = 0) -> bytes:
    """Return the first bytes of ``root/path``, and the last `tail_bytes` of the rest.

    Raises:
        BadLabel: The file is unreadable or not a regular file.
    """
    try:
        with open(os.open(os.path.join(root, path), READ_FLAGS), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise BadLabel(path, "is not a regular file", "replace it with one")
            head = file.read(num_bytes)
            if tail_bytes:
                file.seek(max(len(head), file.seek(0, os.SEEK_END) - tail_bytes))
            return head + file.read(tail_bytes)
    except PermissionError:
        raise BadLabel(path, "cannot be read: permission denied", "make it readable") from None
    except FileNotFoundError:
        raise BadLabel(path, "vanished during the build", "start again") from None
    except OSError as error:
        raise BadLabel(path, f"cannot be read: {error.strerror}", "check the disk") from None


def lines_of(data: bytes) -> list[bytes]:
    """Return the lines of a text file, split only at LF, CRLF or CR, without BOM."""
    data = data.removeprefix(b"\xef\xbb\xbf")
    if b"\r" in data:
        data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    lines = data.split(b"\n")
    return lines[:-1] if lines[-1] == b"" else lines
