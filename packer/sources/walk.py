"""Lists the files below a folder in byte order of their paths; those of many folders in several processes."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from packer.sources.archives.contents import FAULT
from packer.sources.path_list import PathList, PathWriter
from packer.sources.paths import IMAGE_EXTENSIONS, extension_of, folder_of

FEW = 50_000
"""So many files are listed before others are asked to help."""
JOBS = 256
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


def walk(job: WalkJob, run: Run) -> Walked:
    """List a folder; what is left after a FEW files is divided into jobs."""
    here = _Walk(job)
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
    part = _Walk(job)
    part.run()
    return part.finish()


class _Walk:
    def __init__(self, job: WalkJob) -> None:
        self.root, self.is_image, self.follow_links = job.root, job.is_image, job.follow_links
        self.pending = list(reversed(job.entries))
        """What is to be listed, the last first."""
        self.linked = dict(job.linked)
        self.images, self.files = PathWriter(), PathWriter()
        self.folders: list[bytes] = []
        self.image_folders: set[bytes] = set()
        self.skipped: list[Skipped] = []
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

    def finish(self) -> Walked:
        """Return what was found."""
        images, files = self.images.finish(), self.files.finish()
        return Walked(images, files, self.folders, frozenset(self.image_folders), self.skipped)

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
                self.image_folders.add(path[: path.rfind(b"/") + 1])
            else:
                self.files.append(path)
        except OSError as error:
            self.skipped.append((path, reason_of(error)))

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
        return reason_of(error)


def reason_of(error: OSError) -> str:
    """Return why a file cannot be read."""
    if isinstance(error, PermissionError):
        return "permission"
    return "vanished" if isinstance(error, FileNotFoundError) else f"unreadable: {error.strerror}"
