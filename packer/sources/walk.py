"""Lists the files below a folder in byte order of their paths, or the objects that an inventory of a store names."""

from __future__ import annotations

import mmap
import os
import re
import stat
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, overload

from packer.errors import UsageError, printable
from packer.sources.archives import FAULT
from packer.sources.paths import IMAGE_EXTENSIONS, extension_of, folder_of
from packer.stores import clean_url, is_url
from packer.stores.store import Object
from packer.system.storage import Spill

AT_ONCE = 4096


class PathList(Sequence[bytes]):
    """Paths in ascending order."""

    def __init__(self, data: bytes | mmap.mmap, starts: bytes | mmap.mmap) -> None:
        """Read what a `PathWriter` has written.

        Args:
            data: The paths, a zero byte behind each.
            starts: Where each begins, and the end of the last one, int64.
        """
        self._data = data
        self._starts = memoryview(starts).cast("q")

    @classmethod
    def of(cls, paths: Iterable[bytes]) -> PathList:
        """Return these paths, which are in ascending order."""
        writer = PathWriter()
        for path in paths:
            writer.append(path)
        return writer.finish()

    def __len__(self) -> int:
        return len(self._starts) - 1

    @overload
    def __getitem__(self, index: int) -> bytes: ...
    @overload
    def __getitem__(self, index: slice) -> list[bytes]: ...
    def __getitem__(self, index: int | slice) -> bytes | list[bytes]:
        starts = self._starts
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            if step != 1:
                return [self[i] for i in range(start, stop, step)]
            return self._data[starts[start] : starts[max(start, stop)]].split(b"\0")[:-1]
        if index < 0:
            index += len(self)
        if not 0 <= index < len(self):
            raise IndexError(index)
        return self._data[starts[index] : starts[index + 1] - 1]

    def __iter__(self) -> Iterator[bytes]:
        for start in range(0, len(self), AT_ONCE):
            yield from self[start : start + AT_ONCE]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> tuple[type[PathList], tuple[bytes, bytes]]:
        return PathList, (self._data[:], self._starts.tobytes())

    def __contains__(self, path: Any) -> bool:
        place = bisect_left(self, path)
        return place < len(self) and self[place] == path


class PathWriter:
    """Collects the paths of a `PathList`, in their order."""

    def __init__(self) -> None:
        self._data, self._starts = Spill(), Spill()
        self._starts.append(bytes(8))
        self._end = 0
        self._waiting: list[bytes] = []

    def append(self, path: bytes) -> None:
        """Append a path, which has no zero byte."""
        self.extend((path,))

    def extend(self, paths: Iterable[bytes]) -> None:
        """Append paths."""
        self._waiting += paths
        if len(self._waiting) >= AT_ONCE:
            self._flush()

    def join(self, more: PathList) -> None:
        """Append paths."""
        import numpy as np

        self._flush()
        starts = np.frombuffer(more._starts, np.int64)
        self._data.append(more._data[: starts[-1]])
        self._starts.append((starts[1:] + self._end).tobytes())
        self._end += int(starts[-1])

    def _flush(self) -> None:
        import numpy as np  # a command that fails early does not wait for it

        if waiting := self._waiting:
            self._data.append(b"\0".join(waiting) + b"\0")
            ends = np.cumsum(np.fromiter(map(len, waiting), np.int64, len(waiting)) + 1) + self._end
            self._starts.append(ends.tobytes())
            self._end, self._waiting = int(ends[-1]), []

    def finish(self) -> PathList:
        """Return all paths."""
        self._flush()
        return PathList(self._data.finish(), self._starts.finish())


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


NAMES = ("key", "path", "name", "url", "file", "object")
SIZES = ("size", "bytes", "content_length", "content-length", "contentlength")
ETAGS = ("e_tag", "etag")
PARQUET = (".parquet",)
TABLES = (".csv", ".tsv", ".csv.gz")
LINES = (".txt", ".lst", ".list")
QUOTED = re.compile(rb"%([0-9A-Fa-f]{2})|\+")
ETAG = re.compile(r"[0-9a-f]{32}(-\d+)?")
MOST_COLUMNS = 100
Columns = tuple[list[str], list[int | None], list[str | None]]
"""Names, sizes and ETags."""
HOW = "give a Parquet or CSV file with the columns key and size, or a text file with a name on each line"


def read_inventory(file: str, url: str) -> Sequence[Object]:
    """Return the objects that an inventory names below a URL, by their names below it; a size of -1 is unknown.

    A name is relative to the URL, or a URL, or the whole key of the object in its bucket, with or without the bucket.
    If any is one of the latter and below `url`, all are such, and those elsewhere are left out.

    Args:
        file: A local Parquet, CSV, TSV or text file.
        url: The source.

    Raises:
        UsageError: It cannot be read, or names nothing.
    """
    lower = file.lower()
    if not os.path.isfile(file):
        raise UsageError(file, "there is no such file", HOW)
    try:
        if lower.endswith(PARQUET):
            names, sizes, etags = _columns_of(_parquet(file), file)
        elif lower.endswith(TABLES):
            names, sizes, etags = _csv(file, url)
        elif lower.endswith(LINES):
            with open(file, encoding="utf-8-sig") as lines:
                names = [line.strip("\r\n") for line in lines if line.strip()]
            sizes, etags = [], []
        else:
            raise UsageError(file, "is not a kind of inventory that is known", HOW)
    except UsageError:
        raise
    except OSError as error:
        raise UsageError(file, f"cannot be read: {error.strerror or error}", HOW) from None
    except ValueError as error:  # ArrowInvalid, UnicodeError
        raise UsageError(file, f"cannot be read: {printable(str(error))}", HOW) from None
    found = _below(names, clean_url(url))
    if not found:
        raise UsageError(file, f"names nothing below {url}", HOW)
    objects = []
    for row, name in found:
        size = sizes[row] if sizes else None
        etag = etags[row] if etags else None
        objects.append(Object(name, -1 if size is None else int(size), etag and f'"{etag.strip(chr(34))}"', 0.0))
    objects.sort()
    for one, other in pairwise(objects):
        if one.name == other.name:
            raise UsageError(file, f"names {printable(one.name)} twice", "list only current versions")
    return objects


def _below(names: Sequence[str], url: str) -> list[tuple[int, str]]:
    """Return the row and the relative name of each object below the URL."""
    host_and_key = url.partition("://")[2]
    key = host_and_key.partition("/")[2]
    files = [(row, name) for row, name in enumerate(names) if name and not name.endswith("/")]  # others are folders
    for start in (f"{url}/", f"{host_and_key}/", f"{key}/" if key else ""):
        if start and (below := [(row, name[len(start) :]) for row, name in files if name.startswith(start)]):
            return below
    return [(row, name) for row, name in files if not is_url(name)]


def _parquet(file: str) -> Any:
    import pyarrow.parquet as pq

    schema = pq.read_schema(file)
    return pq.read_table(file, columns=[name for name in schema.names if name.lower() in (*NAMES, *SIZES, *ETAGS)])


def _columns_of(table: Any, file: str) -> Columns:
    """Return the columns of a table; an empty one is missing."""
    lower = {name.lower(): name for name in reversed(table.column_names)}
    found = [next((lower[name] for name in names if name in lower), None) for names in (NAMES, SIZES, ETAGS)]
    if found[0] is None:
        raise UsageError(file, f"has no column of names (columns: {', '.join(map(printable, lower))})", HOW)
    names, sizes, etags = ([] if name is None else table.column(name).to_pylist() for name in found)
    if not all(isinstance(name, str) for name in names):
        raise UsageError(file, f"has names in the column {printable(found[0])} that are not text", HOW)
    return names, sizes, etags


def _csv(file: str, url: str) -> Columns:
    import pyarrow as pa
    from pyarrow import csv

    parse = csv.ParseOptions(delimiter="\t" if file.lower().endswith(".tsv") else ",")
    texts = csv.ConvertOptions(column_types={f"f{i}": pa.string() for i in range(MOST_COLUMNS)})
    with csv.open_csv(file, csv.ReadOptions(autogenerate_column_names=True), parse, texts) as reader:
        first = list(reader.read_next_batch().slice(0, 1).to_pylist()[0].values())
    has_names = any(name.strip().lower() in (*NAMES, *SIZES) for name in first)
    bucket = url.partition("://")[2].partition("/")[0]
    of_s3 = not has_names and len(first) > 1 and first[0] == bucket
    if has_names:
        names = [name.strip() for name in first]
    else:  # those of S3 Inventory: bucket, key, and what was asked for
        names = ["bucket"] * of_s3 + ["key"]
        rest = first[len(names) :]
        size = next((i for i, value in enumerate(rest) if re.fullmatch(r"\d+", value)), None)
        names += [
            "size" if i == size else "e_tag" if ETAG.fullmatch(value) else f"column {i}" for i, value in enumerate(rest)
        ]
    types = {name: pa.int64() if name.lower() in SIZES else pa.string() for name in names}
    wanted = [name for name in names if name.lower() in (*NAMES, *SIZES, *ETAGS)]
    table = csv.read_csv(
        file, csv.ReadOptions(column_names=names, skip_rows=int(has_names)), parse,
        csv.ConvertOptions(column_types=types, include_columns=wanted),
    )  # fmt: skip
    keys, sizes, etags = _columns_of(table, os.fspath(file))
    return list(map(_unquote_key, keys)) if of_s3 else keys, sizes, etags


def _unquote_key(key: str) -> str:
    """Return a key of S3 Inventory in CSV, which is written as in a URL."""
    return QUOTED.sub(lambda match: bytes((int(match[1], 16),)) if match[1] else b" ", key.encode()).decode()
