"""Lists the files of a source folder once for all sources, without leaving it, and reads annotation files."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from difflib import get_close_matches

from packer.errors import BadImage, BadLabel, NotAnImage, PackerError, StorageError, UsageError
from packer.images.header import IncompleteHeader, read_header
from packer.sources.archives import Archives, check_file, fault
from packer.sources.parquet_file import EXTENSION as PARQUET
from packer.sources.paths import IMAGE_EXTENSIONS, archive_of, archive_stem, extension_of
from packer.sources.places import Scratch, SourceFile
from packer.sources.source import Stamps, Tree
from packer.sources.walk import Run, Skipped, WalkJob, reason_of, run_here, walk

MIB = 1024 * 1024
SNIFFED_BYTES = 64  # enough to tell an image by
SMALLEST_IMAGE_BYTES = 26  # a GIF of one pixel


def looks_like_image(path: bytes) -> bool:
    """Return whether a file begins like an image, even a damaged one; False if it cannot be read."""
    try:
        with open(path, "rb", buffering=0) as file:
            return begins_like_image(file.read(SNIFFED_BYTES))
    except OSError:
        return False


def begins_like_image(head: bytes) -> bool:
    """Return whether a file that begins with these SNIFFED_BYTES (or has fewer) is an image, even a damaged one."""
    if len(head) < SMALLEST_IMAGE_BYTES or head[:1] == b"P":
        return False  # a short text, whatever it begins with; a PNM file has an extension
    try:
        read_header(head, complete=len(head) < SNIFFED_BYTES)
    except NotAnImage:
        return False
    except (BadImage, IncompleteHeader):
        return True
    return True


def find_tree(
    root: bytes | str,
    is_image: Callable[[bytes], bool] = looks_like_image,
    scratch: Scratch | None = None,
    follow_links: bool = False,
    run: Run = run_here,
    stamps: bool = False,
) -> tuple[Tree, list[Skipped]]:
    """Return the tree of a folder or of an archive, and the skipped paths with reasons.

    Hidden names (``.x``, ``__MACOSX``) are left out, and listed if they have an image extension. If a folder has no
    images, the archives in it are read.

    Args:
        root: The folder, zip or tar; or a folder in an archive, as ``set.zip/images``.
        is_image: Returns whether a file without an image extension, given by its absolute path, is an image.
        scratch: Where to decompress compressed archives to. None: they are refused.
        follow_links: Whether to follow links to folders outside `root`.
        run: Runs jobs, for folders with many files.
        stamps: Whether to ask for the times and sizes of the files of a folder.

    Raises:
        UsageError: `root` is neither a folder nor an archive.
        StorageError: `root` cannot be read.
    """
    absolute = os.path.realpath(os.fsencode(root))
    archives = Archives(is_member_image, scratch)
    archive, inside = archive_of(absolute)
    if archive:
        if extension_of(archive) == PARQUET and archive != absolute:
            raise UsageError(root, "is in a Parquet file, which is read as a whole", "give the Parquet file")
        with _readable(archive):
            return tree_of_archive(absolute, archive, inside, archives)
    if not os.path.isdir(absolute):
        problem = "is not a folder or archive" if os.path.lexists(absolute) else "no such folder or archive"
        parent, name = os.path.split(os.fsdecode(absolute))
        near = get_close_matches(name, os.listdir(parent) if os.path.isdir(parent) else (), 1)
        step = f", perhaps {near[0]}" if near and near[0] != name else ""
        raise UsageError(root, problem, f"give the folder or archive that holds the images{step}")
    with _readable(absolute):
        os.scandir(absolute).close()
    found = walk(WalkJob(absolute, is_image, follow_links, stamps=stamps), run)
    of_all = Stamps(found.images, found.stamps[0], found.files, found.stamps[1]) if found.stamps else None
    tree = Tree(absolute, found.images, found.files, found.folders, image_folders=found.image_folders, stamps=of_all)
    return with_archives(tree, found.skipped, archives)


def tree_of_archive(root: bytes, archive: bytes, inside: bytes, archives: Archives) -> tuple[Tree, list[Skipped]]:
    """Return the tree of an archive, or of the folder `inside` of it, and what is skipped.

    Raises:
        UsageError: It is not an archive, cannot be read, or has no such folder.
        OSError: It cannot be read.
    """
    check_file(archive, is_member_image)
    archives.add(archive, b"")
    if inside:
        if inside[:-1] not in archives.folders:
            raise UsageError(root, "no such folder in the archive", "give the archive, or another folder in it")
        archives.keep(inside)
    members, images, files = archives.finish()
    return Tree(root, images, files, in_order(archives.folders), members), archives.skipped


def with_archives(tree: Tree, skipped: list[Skipped], archives: Archives) -> tuple[Tree, list[Skipped]]:
    """Return a tree with the members of the archives in it if it has no images, and what is skipped."""
    paths = [path for path in tree.files if archive_stem(path)]
    if tree.images or not paths:
        paths = [path for path in paths if extension_of(path) != PARQUET]  # labels of the images, probably
        return tree, skipped + [(path, "archive beside images, which is not read") for path in paths]
    others = {path for path in tree.files if path not in paths or extension_of(path) == PARQUET}  # it has labels too
    for path in paths:
        stem = archive_stem(path)
        assert stem is not None
        try:
            archives.add(os.path.join(tree.root, path), stem)
        except (UsageError, BadImage) as error:
            archives.skipped.append((path, fault(error)))
        except OSError as error:
            archives.skipped.append((path, reason_of(error)))
    members, images, files = archives.finish()
    folders = in_order(archives.folders.union(tree.folders))
    return Tree(tree.root, images, sorted([*others, *files]), folders, members), skipped + archives.skipped


def in_order(folders: set[bytes]) -> list[bytes]:
    """Return folders in the order of a walk: each as its name with a slash."""
    return sorted(folders, key=lambda folder: folder + b"/")


def is_member_image(path: bytes, head: Callable[[], bytes]) -> bool:
    """Return whether a member of an archive is an image; `head` returns its first bytes."""
    if extension_of(path) in IMAGE_EXTENSIONS:
        return True
    try:
        return begins_like_image(head())
    except BadImage:  # damaged: whoever needs it says so
        return False


@contextmanager
def _readable(root: bytes) -> Iterator[None]:
    try:
        yield
    except PackerError:
        raise
    except OSError as error:
        raise StorageError(root, f"cannot be read: {error.strerror}", "check its permissions") from None


def read_file(tree: Tree | bytes, path: bytes, most_bytes: int) -> bytes:
    """Return the bytes of a file of the source, or of another folder.

    Raises:
        BadLabel: The file is unreadable, not a regular file, or larger than `most_bytes`.
    """
    data = read_head(tree, path, most_bytes + 1)
    if len(data) > most_bytes:
        raise BadLabel(path, f"is larger than the {most_bytes} bytes allowed", "split it, or remove it")
    return data


HEAD_BYTES, MOST_IMAGE_BYTES = 16 * 1024, 1024 * MIB


def image_size(tree: Tree, image: bytes) -> tuple[int, int]:
    """Return width and height of an image, upright, by its header. Raise BadInput if it has none."""
    head = read_head(tree, image, HEAD_BYTES)
    try:
        return read_header(head, len(head) < HEAD_BYTES).upright_size
    except IncompleteHeader:
        return read_header(read_file(tree, image, MOST_IMAGE_BYTES)).upright_size


@contextmanager
def needed(file: bytes | str) -> Iterator[None]:
    """Raise why a file cannot be read as UsageError: without it there are no labels."""
    try:
        yield
    except BadLabel as error:
        raise UsageError(file, error.problem, error.next_step) from None


def read_head(tree: Tree | bytes, path: bytes, num_bytes: int, tail_bytes: int = 0) -> bytes:
    """Return the first bytes of a file of the source, or of another folder, and the last `tail_bytes` of the rest.

    Raises:
        BadLabel: The file is unreadable or not a regular file.
    """
    try:
        with tree.open(path) if isinstance(tree, Tree) else SourceFile(os.path.join(tree, path)) as file:
            head = file.read(num_bytes)
            return head + file.read(tail_bytes, max(len(head), file.size - tail_bytes)) if tail_bytes else head
    except BadImage as error:
        raise BadLabel(path, error.problem, error.next_step) from None
    except PermissionError:
        raise BadLabel(path, "cannot be read: permission denied", "make it readable") from None
    except FileNotFoundError:
        problem = "vanished during the build" if isinstance(tree, Tree) else "no such file"
        raise BadLabel(path, problem, "start again") from None
    except StorageError:
        raise  # the store cannot be reached: no fault of this file
    except OSError as error:
        raise BadLabel(path, f"cannot be read: {error.strerror}", "check the disk") from None


def lines_of(data: bytes) -> list[bytes]:
    """Return the lines of a text file, split only at LF, CRLF or CR, in UTF-8 and without BOM."""
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        with suppress(ValueError):
            data = data.decode("utf-16").encode()
    data = data.removeprefix(b"\xef\xbb\xbf")
    if b"\r" in data:
        data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    lines = data.split(b"\n")
    return lines[:-1] if lines[-1] == b"" else lines
