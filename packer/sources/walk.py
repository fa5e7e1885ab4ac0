"""Walks through a source folder, in this process and others, and tells images from other files."""

from __future__ import annotations

import os
import stat
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any

from packer.sources.archives import FAULT
from packer.sources.paths import IMAGE_EXTENSIONS, PathList, PathWriter, extension_of, folder_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

FEW = 50_000
"""So many files are listed before others are asked to help."""
JOBS = 256
Stamp = tuple[int, int]
"""When a file last changed, in ns since the epoch, and its size."""
FILE = "file"
IS_WINDOWS = os.name == "nt"
REGULAR = 0o170000
"""The bits of a mode that say what a file is."""
FOLDER_FLAGS = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_CLOEXEC", 0)
Skipped = tuple[bytes, str]
"""A path relative to the root, and why it was skipped."""
Run = Callable[[Callable[..., Any], Sequence[Any]], Iterator[tuple[int, Any]]]
"""Called as run(work, jobs); yields (number of the job, work(job)), in any order."""


def run_here(work: Callable[..., Any], jobs: Sequence[Any]) -> Iterator[tuple[int, Any]]:
    """Run the jobs in this process."""
    return enumerate(map(work, jobs))


@dataclass(frozen=True, slots=True)
class WalkJob:
    """Entries of a folder to list, with all that is below them."""

    root: bytes
    is_image: Callable[[bytes], bool]
    follow_links: bool
    entries: Sequence[tuple[bytes, str]] = ((b"", "folder"),)
    """Paths relative to the root and what they are, in order."""
    linked: Mapping[bytes, bytes] = field(default_factory=dict)
    """Links to folders that are followed, and the real path of the folder that each is in."""
    stamps: bool = False
    """Whether to ask for the time and the size of each file."""


@dataclass(frozen=True, slots=True)
class Walked:
    """What was found."""

    images: PathList
    files: PathList
    """All other regular files."""
    folders: list[bytes]
    image_folders: frozenset[bytes]
    """Those that directly hold images, with a final slash; b"" for the root."""
    skipped: list[Skipped]
    stamps: list[NDArray[np.int64]]
    """Those of the images and of the other files (`packer.sources.source.Stamps`), if they were asked for."""


def walk(job: WalkJob, run: Run) -> Walked:
    """List a folder; what is left after a FEW files is divided into jobs."""
    here = _FolderWalk(job)
    here.run(FEW)
    left = here.pending[::-1]
    length = -(-len(left) // JOBS)
    jobs = [
        replace(job, entries=tuple(left[start : start + length]), linked=dict(here.linked))
        for start in range(0, len(left), max(1, length))
    ]
    waiting: dict[int, Walked] = {}
    following = 0
    for number, walked in run(walk_part, jobs) if jobs else ():
        waiting[number] = walked
        while following in waiting:  # keep the order, whichever worker is first
            here.add(waiting.pop(following))
            following += 1
    return here.finish()


def walk_part(job: WalkJob, *_: object) -> Walked:
    """List the entries of a job."""
    part = _FolderWalk(job)
    part.run()
    return part.finish()


class _FolderWalk:
    def __init__(self, job: WalkJob) -> None:
        self.root, self.is_image, self.follow_links = job.root, job.is_image, job.follow_links
        self.pending = list(reversed(job.entries))
        """What is to be listed, the last first."""
        self.linked = dict(job.linked)
        self.images, self.files = PathWriter(), PathWriter()
        self.folders: list[bytes] = []
        self.image_folders: set[bytes] = set()
        self.skipped: list[Skipped] = []
        self.stamps: tuple[list[Any], ...] = ([], []) if job.stamps else ()
        self._stamp_of: dict[bytes, Stamp] = {}
        """Those of files that are not taken yet."""
        self.seen = 0

    def run(self, most: int | None = None) -> None:
        """List everything; stop after about `most` files."""
        pending = self.pending
        # no recursion: folders may nest deeper than Python's stack
        while pending and (most is None or self.seen < most):
            path, kind = pending.pop()
            if kind in ("folder", "hidden folder"):
                if path and kind == "folder":
                    self.folders.append(path)
                pending += self._entries(path, hidden=kind == "hidden folder")
            elif kind == "file":
                self._take(path)
            elif kind != "hidden" or extension_of(path) in IMAGE_EXTENSIONS:
                self.skipped.append((path, kind))

    def add(self, more: Walked) -> None:
        """Add what follows."""
        self.images.join(more.images)
        self.files.join(more.files)
        self.folders += more.folders
        self.image_folders |= more.image_folders
        self.skipped += more.skipped
        for mine, its in zip(self.stamps, more.stamps, strict=True):
            mine.append(its)

    def finish(self) -> Walked:
        """Return what was found."""
        images, files = self.images.finish(), self.files.finish()
        folders = frozenset(self.image_folders)
        return Walked(images, files, self.folders, folders, self.skipped, [_joined(one) for one in self.stamps])

    def _entries(self, folder: bytes, hidden: bool) -> list[tuple[bytes, str]]:
        """Return the entries of a folder in reverse byte order; a folder sorts as its name with a slash.

        If there are only files in it, as in a class folder, add them directly.
        """
        prefix = folder + b"/" if folder else b""
        try:
            if self.stamps:
                listed, failed = _facts_in(os.path.join(self.root, folder))
                if not (hidden or failed) and self._take_plain(prefix, listed):
                    return []
                found = self._stamped(prefix, listed, hidden) + [(prefix + name, reason) for name, reason in failed]
            else:
                with os.scandir(os.path.join(self.root, folder)) as entries:
                    found = [(prefix + entry.name, _kind(entry, hidden)) for entry in entries]
        except OSError as error:
            if not hidden:
                self.skipped.append((folder, reason_of(error)))
            return []
        self.seen += len(found)
        found = [(path, self._behind(path) if kind == "symlink" else kind) for path, kind in found]
        if all(kind == "file" for _, kind in found):
            paths = sorted(path for path, _ in found)
            # none is hidden: the stem before an extension is not empty
            named = [path for path in paths if path[path.rfind(b".") :].lower() in IMAGE_EXTENSIONS]
            if len(named) == len(paths):
                self.images.extend(paths)
                self._stamp(0, paths)
                self.image_folders.update([prefix] * bool(paths))
                return []
            for path in paths:
                self._take(path)
            return []
        found.sort(key=lambda item: item[0] + b"/" if item[1].endswith("folder") else item[0], reverse=True)
        return found

    def _take(self, path: bytes) -> None:
        try:
            if extension_of(path) in IMAGE_EXTENSIONS or self.is_image(os.path.join(self.root, path)):
                self.images.append(path)
                self._stamp(0, (path,))
                self.image_folders.add(path[: path.rfind(b"/") + 1])
            else:
                self.files.append(path)
                self._stamp(1, (path,))
        except OSError as error:
            self.skipped.append((path, reason_of(error)))

    def _take_plain(self, prefix: bytes, listed: list[tuple[bytes, os.stat_result]]) -> bool:
        """Add the entries of a folder if all are regular files with the extension of an image, at once; else none."""
        import numpy as np

        listed.sort(key=itemgetter(0))
        names, of_files = [name for name, _ in listed], [facts for _, facts in listed]

        def numbers(what: str) -> NDArray[np.int64]:
            return np.fromiter(map(attrgetter(what), of_files), np.int64, len(of_files))

        first_hidden = bisect_left(names, b".")
        if not names or (first_hidden < len(names) and _is_hidden(names[first_hidden])):
            return False
        if not all(end.lower() in IMAGE_EXTENSIONS for end in {name[name.rfind(b".") :] for name in names}):
            return False
        if (numbers("st_mode") & REGULAR != stat.S_IFREG).any():
            return False
        written, changed, sizes = map(numbers, ("st_mtime_ns", "st_ctime_ns", "st_size"))
        self.images.extend([prefix + name for name in names])
        self.stamps[0].append(np.stack([written if IS_WINDOWS else np.maximum(written, changed), sizes], axis=1))
        self.image_folders.add(prefix)
        self.seen += len(names)
        return True

    def _stamped(
        self, prefix: bytes, listed: list[tuple[bytes, os.stat_result]], hidden: bool
    ) -> list[tuple[bytes, str]]:
        """Return the entries of a folder, and remember the stamps of files."""
        found = [(prefix + name, _kind_of(name, facts.st_mode, hidden)) for name, facts in listed]
        of_files = zip(found, listed, strict=True)
        self._stamp_of.update((path, stamp_of(facts)) for (path, kind), (_, facts) in of_files if kind == FILE)
        return found

    def _stamp(self, kind: int, paths: Sequence[bytes]) -> None:
        """Add the stamps of files, in the order in which they are listed as images (0) or others (1)."""
        if self.stamps:
            import numpy as np

            known = self._stamp_of
            found = [known.pop(path) if path in known else self._stamp_behind(path) for path in paths]
            self.stamps[kind].append(np.array(found, np.int64).reshape(-1, 2))

    def _stamp_behind(self, path: bytes) -> Stamp:
        """Return the stamp of a file that another process has listed, or of a link: both it and its target count."""
        where = os.path.join(self.root, path)
        (link, _), (target, size) = stamp_of(os.lstat(where)), stamp_of(os.stat(where))
        return max(link, target), size

    def _behind(self, path: bytes) -> str:
        """Return what a link leads to: file, folder, or the reason to skip it."""
        try:
            mode = os.stat(os.path.join(self.root, path)).st_mode
        except OSError:
            problem = "symlink that leads to no file"
            is_image = extension_of(path) in IMAGE_EXTENSIONS
            return f"{FAULT}{problem}; fetch it, or remove the link" if is_image else problem
        if not stat.S_ISDIR(mode):
            return "file" if stat.S_ISREG(mode) else "not a regular file"
        target = os.path.realpath(os.path.join(self.root, path)).rstrip(b"/") + b"/"
        around = os.path.realpath(os.path.join(self.root, folder_of(path)))
        above = [around, *(real for link, real in self.linked.items() if path.startswith(link + b"/"))]
        if any((real + b"/").startswith(target) for real in above):
            return "symlink to a folder that it is in"
        if not self.follow_links and not target.startswith(self.root.rstrip(b"/") + b"/"):
            return "symlink to a folder outside the source (--follow-links reads it)"
        self.linked[path] = around
        return "folder"


def _facts_in(folder: bytes) -> tuple[list[tuple[bytes, os.stat_result]], list[tuple[bytes, str]]]:
    """Return the entries of a folder with what the system says of them, and those that vanished meanwhile."""
    found, failed = [], []
    descriptor = os.open(folder, FOLDER_FLAGS)  # the system need not look for the folder again with each file
    try:
        for name in os.listdir(folder):
            try:
                found.append((name, os.stat(name, dir_fd=descriptor, follow_symlinks=False)))
            except OSError as error:
                failed.append((name, reason_of(error)))
    finally:
        os.close(descriptor)
    return found, failed


def _joined(parts: list[Any]) -> NDArray[np.int64]:
    import numpy as np  # a command that fails early does not wait for it

    return np.concatenate([np.empty((0, 2), np.int64), *parts])


def stamp_of(facts: os.stat_result) -> Stamp:
    """Return when a file last changed, in ns, and its size: a copy may have an old time, but not an old one of its
    metadata, which Windows does not keep.
    """
    written, changed = facts.st_mtime_ns, facts.st_ctime_ns
    return written if written > changed or IS_WINDOWS else changed, facts.st_size


def _is_hidden(name: bytes) -> bool:
    return name[:1] == b"." or name == b"__MACOSX"


def _kind_of(name: bytes, mode: int, hidden: bool) -> str:
    """Return what `_kind` does, of the mode of an entry."""
    hidden = hidden or _is_hidden(name)
    if mode & REGULAR == stat.S_IFREG and not hidden:
        return FILE
    if stat.S_ISDIR(mode):
        return "hidden folder" if hidden else "folder"
    if hidden:
        return "hidden"
    return "symlink" if stat.S_ISLNK(mode) else "not a regular file"


def _kind(entry: os.DirEntry[bytes], hidden: bool) -> str:
    """Return folder, file or symlink, or the reason to skip it. Do not open or follow hidden names."""
    hidden = hidden or _is_hidden(entry.name)
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
        return reason_of(error)


def reason_of(error: OSError) -> str:
    """Return why a file cannot be read."""
    if isinstance(error, PermissionError):
        return "permission"
    return "vanished" if isinstance(error, FileNotFoundError) else f"unreadable: {error.strerror}"
