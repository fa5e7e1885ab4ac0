"""The lists of a pack: which inputs were rejected, skipped or changed, and why; a TSV file each, of any length.

A list may have millions of lines, so it is sorted on disk and never held as a whole.
"""

from __future__ import annotations

import hashlib
import heapq
import io
import os
import re
import tempfile
import weakref
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, astuple, dataclass, fields, replace
from itertools import islice
from typing import IO, Any, Generic, TypeVar

from packer.errors import AnyPath, DamagedPack, printable
from packer.format.digests import sha256_of
from packer.format.manifest import FileEntry, Manifest, Rejected
from packer.format.pack_objects import fetch_file, manifest_of
from packer.stores import is_url, open_store
from packer.system import open_regular
from packer.system.atomic import write_new

MOST_IN_MANIFEST = 1000
"""pack.json holds the first rejected inputs itself."""
ROWS_IN_MEMORY = 50_000
BLOCK_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Skipped:
    """An input that was left out on purpose, and the reason."""

    path: str
    """Relative to the source, as in `Rejected`."""
    reason: str


@dataclass(frozen=True, slots=True)
class Changed:
    """An object whose label was changed by ``--boxes clip`` or ``--boxes drop``, or a damaged image that was packed."""

    path: str
    """Path of the image, as in `Rejected`."""
    change: str
    """clipped or dropped; lenient for an image that only ``--decoder lenient`` decodes."""
    label: str
    """The label's file and, if known, its line: ``labels/1.txt:3``. Empty for an image."""
    box: str
    """Number of the box in the image, from 1, and its class. Empty for an image."""
    before: str
    """xmin ymin xmax ymax in pixels of the labelled image, before the change; or what is wrong with the image."""
    after: str
    """The same after the change; empty if the box was dropped, and for an image."""


KINDS: dict[str, type[Any]] = {"rejected": Rejected, "skipped": Skipped, "changed": Changed}
"""Name of a list -> its rows. The first column is the path of the input, the second says what happened to it."""

ESCAPE = re.compile(r"\\(?:[\\nrt]|x[0-9a-f]{2}|u[0-9a-f]{4}|U[0-9a-f]{8})")

T = TypeVar("T", Rejected, Skipped, Changed)


def file_of(name: str) -> str:
    """Return the file name of a list in a pack."""
    return f"{name}.tsv"


def selection_file(name: str) -> str:
    """Return the file name of the ``--include`` or ``--exclude`` of a pack."""
    return f"{name}.txt"


class Listing(Generic[T]):
    """Collects the rows of a list, and yields them sorted by path.

    `counts` and `examples` have the number of rows, and the first by path, of each reason.
    """

    def __init__(self, kind: type[T], rows: Iterable[T] = ()) -> None:
        self.kind: type[T] = kind
        self.counts: Counter[str] = Counter()
        self.examples: dict[str, T] = {}
        self._lines: list[bytes] = []
        self._file: IO[bytes] | None = None
        self._runs: list[tuple[int, int]] = []
        for row in rows:
            self.add(row)

    def add(self, row: T) -> None:
        """Add a row."""
        path, reason = astuple(row)[:2]
        self.counts[reason] += 1
        example = self.examples.get(reason)
        if example is None or path < example.path:
            self.examples[reason] = row
        self._lines.append(_line(row))
        if len(self._lines) >= ROWS_IN_MEMORY:
            self._spill()

    def _spill(self) -> None:
        if self._file is None:
            self._file = tempfile.TemporaryFile(prefix="packer-list-")  # noqa: SIM115
            weakref.finalize(self, self._file.close)
        start = self._file.seek(0, os.SEEK_END)
        self._file.writelines(sorted(self._lines))
        self._runs.append((start, self._file.tell()))
        self._lines = []

    def __len__(self) -> int:
        return self.counts.total()

    def __iter__(self) -> Iterator[T]:
        return (_row(self.kind, line) for line in self.lines())

    def lines(self) -> Iterator[bytes]:
        """Yield the sorted lines of the file, without its header."""
        if self._file is None:
            return iter(sorted(self._lines))
        return heapq.merge(*(self._run(*run) for run in self._runs), sorted(self._lines))

    def _run(self, start: int, stop: int) -> Iterator[bytes]:
        assert self._file is not None
        rest = b""
        while start < stop:
            self._file.seek(start)
            block = self._file.read(min(BLOCK_BYTES, stop - start))
            start += len(block)
            *lines, rest = (rest + block).split(b"\n")
            yield from (line + b"\n" for line in lines)

    def write(self, path: str) -> FileEntry:
        """Write the file `path`, which must not exist, sync it, and return its entry. Raises OSError."""
        digest = hashlib.sha256()
        with open(path, "xb") as file:
            for chunk in self.content():
                file.write(chunk)
                digest.update(chunk)
            file.flush()
            os.fsync(file.fileno())
            size = file.tell()
        return FileEntry(os.path.basename(path), size, digest.hexdigest())

    def content(self) -> Iterator[bytes]:
        """Yield the bytes of the file, in pieces."""
        lines = self.lines()
        chunk = header_of(self.kind)
        while chunk:
            yield chunk
            chunk = b"".join(islice(lines, 4096))


def header_of(kind: type[Any]) -> bytes:
    """Return the first line of a list."""
    return ("\t".join(field.name for field in fields(kind)) + "\n").encode("ascii")


def _line(row: Any) -> bytes:
    path, *rest = astuple(row)
    cells = [cell_of(path), *map(printable, rest)]
    return ("\t".join(cells) + "\n").encode("utf-8")


def _row(kind: type[T], line: bytes) -> T:
    path, *rest = line.rstrip(b"\n").decode("utf-8").split("\t")
    return kind(path_in(path), *rest)


def cell_of(path: str) -> str:
    """Return a path as the cell of a list: backslashes are doubled, so that `path_in` recovers it from its escapes."""
    return printable(path.replace("\\", "\\\\"))


def path_in(cell: str) -> str:
    """Return the path in a cell of a list. Raise ValueError if it has escapes that `printable` does not write."""
    if "\\" not in cell:
        return cell
    if "\\" in ESCAPE.sub("", cell):
        raise ValueError("a path has an escape that is not valid")
    return ESCAPE.sub(lambda escape: escape[0].encode("ascii").decode("unicode_escape"), cell)


def read_list(pack: AnyPath, name: str, manifest: Manifest | None = None) -> Iterator[Any]:
    """Yield the rows of a list of a pack, sorted by path: `Rejected`, `Skipped` or `Changed`.

    Args:
        pack: The directory of the pack, or its URL.
        name: rejected, skipped or changed.
        manifest: Its manifest, if it is at hand.

    Raises:
        PackNotFound: The directory is not a pack.
        DamagedPack: The list is missing or cannot be parsed. Its digest is checked by `packer verify`.
    """
    folder = os.fsdecode(pack)
    manifest = manifest or manifest_of(folder)
    kind = KINDS[name]
    entry = manifest.lists.get(name)
    if entry is None:  # nothing of that kind, or a pack of an earlier version, which lists all in its manifest
        yield from manifest.rejected if name == "rejected" else ()
        return
    path, remote = manifest.path_of(folder, entry.name), is_url(folder)
    content = fetch_file(open_store(folder), entry) if remote else b""
    try:
        with io.BytesIO(content) if remote else open_regular(path) as file:
            if file.readline() != header_of(kind):
                raise ValueError("it has another header")
            for line in file:
                yield _row(kind, line)
    except (OSError, ValueError, TypeError) as error:
        problem = getattr(error, "strerror", None) or ("a line is damaged" if isinstance(error, TypeError) else error)
        raise DamagedPack(path, f"cannot be read: {problem}", "restore it, or build the pack again") from None


def write_lists(
    folder: str, listings: Iterable[Listing[Any]], selections: Mapping[str, bytes] | None = None
) -> dict[str, FileEntry]:
    """Write the lists that are not empty into a pack, and return the entries for its manifest. Raises OSError.

    Args:
        folder: The folder of the pack.
        listings: The lists.
        selections: The content of the files that say which images were included and excluded.
    """
    entries = {}
    for name, content in (selections or {}).items():
        write_new(os.path.join(folder, selection_file(name)), content)
        entries[name] = FileEntry(selection_file(name), len(content), hashlib.sha256(content).hexdigest())
    for listing in listings:
        if len(listing):
            name = next(name for name, kind in KINDS.items() if kind is listing.kind)
            entries[name] = listing.write(os.path.join(folder, file_of(name)))
    return entries


def lists_of(folder: str, manifest: Manifest) -> tuple[dict[str, Listing[Any]], dict[str, bytes]]:
    """Return the lists of a pack, to be written into another: a listing for each of KINDS, and the selections.

    Raises:
        DamagedPack: A list was altered.
    """
    selections = {}
    for name, entry in manifest.lists.items():
        path = manifest.path_of(folder, entry.name)
        try:
            with open_regular(path) as file:
                content = file.read() if name not in KINDS else b""
            intact = (hashlib.sha256(content).hexdigest() if content else sha256_of(path)) == entry.sha256
        except OSError as error:
            raise DamagedPack(path, f"cannot be read: {error.strerror}", "restore it") from None
        if not intact:
            raise DamagedPack(path, "was altered: it does not match its digest", f"packer repair {printable(folder)}")
        if name not in KINDS:
            selections[name] = content
    return {name: Listing(kind, read_list(folder, name, manifest)) for name, kind in KINDS.items()}, selections


def carry_over(
    folder: str, work: str, old: Manifest, damaged: Collection[str], lost: Iterable[Rejected]
) -> tuple[Manifest, list[str]]:
    """Write the lists of a pack in `folder` into its repaired copy in `work`.

    Args:
        folder: The damaged pack.
        work: The folder of its copy.
        old: Its manifest.
        damaged: Names of damaged files.
        lost: Inputs whose records could not be saved; they become rejected inputs.

    Returns:
        The manifest with the new lists, and notes about lists that could not be saved.
    """
    good = {name: entry for name, entry in old.lists.items() if entry.name not in damaged}
    listings, selections = lists_of(folder, replace(old, lists=good))
    notes = [f"{e.name} was damaged or missing, and is left out" for e in old.lists.values() if e.name in damaged]
    for row in lost:
        listings["rejected"].add(row)
    lists = write_lists(work, listings.values(), selections)
    return replace(old, lists=lists, rejected=tuple(islice(listings["rejected"], MOST_IN_MANIFEST))), notes


def as_json(rows: Iterable[Any]) -> list[dict[str, str]]:
    """Return rows as JSON values."""
    return [asdict(row) for row in rows]
