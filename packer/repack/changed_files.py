"""Compares the files of a source with the records of a pack: which images are new, changed or removed.

By their times first; where these do not say it for sure, by the digests of their bytes, which the pack has.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from xxhash import xxh3_128_digest

from packer.errors import BadInput
from packer.model.annotation import Int64, Progress
from packer.model.annotation_columns import column
from packer.packing.remembered import Seen, digest_of_names, inodes_of
from packer.sources.paths import PathList
from packer.sources.places import Place, SourceFile
from packer.sources.source import NEVER_NS, Stamps, Tree
from packer.sources.store_files import SourceObject, at_once
from packer.sources.walk import stamp_of
from packer.stores import is_url
from packer.system import usable_cores

MOST_BINARY_BYTES = 1 << 30
"""An array of binary has fewer than 2 GB."""
FEW = 8
FILES_AT_ONCE = 64
"""Of a thread that reads them."""


class PackedImages:
    """What a pack says of the files that it was made of.

    Args:
        tables: The index of each shard.
        sizes: Whether the bytes of each file are in the pack, so that it knows its size.
    """

    def __init__(self, tables: Sequence[Any], sizes: bool) -> None:
        self.paths = _joined_paths([table.column("path").chunk(0) for table in tables])
        digests = [np.asarray(column(table, "source_xxh3")).view(np.uint8).reshape(-1, 16) for table in tables]
        self.digests: NDArray[np.uint8] = np.concatenate([np.empty((0, 16), np.uint8), *digests])
        self.sizes: Int64 | None = None
        if sizes:
            self.sizes = np.concatenate([np.empty(0, np.int64), *(np.asarray(column(t, "size")) for t in tables)])

    def __len__(self) -> int:
        return len(self.paths)

    def records_of(self, paths: Any) -> Int64:
        """Return the number of the record of each path; -1 for those that are not there."""
        is_same = isinstance(paths, pa.Array) and self.paths.equals(paths)  # often, and at once
        return np.arange(len(paths)) if is_same else places_in(paths, self.paths)


def _joined_paths(parts: Sequence[Any]) -> Any:
    """Return columns of paths as one array of large_binary."""
    if sum(part.nbytes for part in parts) < MOST_BINARY_BYTES:  # several times as fast as to cast each
        return pa.chunked_array([pa.array([], pa.binary()), *parts]).combine_chunks().cast(pa.large_binary())
    return pa.chunked_array([part.cast(pa.large_binary()) for part in parts]).combine_chunks()


def arrow_paths(paths: Sequence[bytes]) -> Any:
    """Return paths as an Arrow array of large_binary; those of a `PathList` without an object for each."""
    if not isinstance(paths, PathList):
        return pa.array(paths, pa.large_binary())
    starts, data = paths.buffers()
    kept = np.ones(starts[-1], np.bool_)
    kept[starts[1:] - 1] = False  # the zero byte behind each
    ends = starts - np.arange(len(starts))
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(np.frombuffer(data, np.uint8, int(starts[-1]))[kept])]
    return pa.Array.from_buffers(pa.large_binary(), len(paths), buffers)


def places_in(values: Any, among: Any) -> Int64:
    """Return the place of each value of an Arrow array among others; -1 if it is not there."""
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    values = values.cast(pa.large_binary())
    if len(values) * FEW > len(among):
        return _first_places(values, among)
    there = np.flatnonzero(_first_places(among, values) >= 0)  # a table of a few is made sooner than one of a million
    return np.append(there, -1)[_first_places(values, among.take(pa.array(there)))]


def _first_places(values: Any, among: Any) -> Int64:
    found = pc.index_in(values, value_set=among)
    return np.asarray(pc.fill_null(found, -1).to_numpy(zero_copy_only=False), np.int64)


@dataclass(slots=True, eq=False)
class SourceChanges:
    """How the files of a source differ from what a pack has of them."""

    new: list[bytes] = field(default_factory=list)
    """Images that the pack does not have, nor its lists of rejected and skipped inputs."""
    changed: list[bytes] = field(default_factory=list)
    """Images with other bytes."""
    removed: Int64 = field(default_factory=lambda: np.empty(0, np.int64))
    """The records of images that are not there any more."""
    again: list[bytes] = field(default_factory=list)
    """Images that were rejected or skipped, and may have changed since."""
    files: list[bytes] = field(default_factory=list)
    """Other files that may have changed, or are new."""
    files_removed: bool = True
    """Whether other files may have been removed."""
    images_renamed: bool = True
    """Whether there are other names of images than before; for parts of records, whose files may be called images."""

    @property
    def are_none(self) -> bool:
        """Whether everything is as it was."""
        some = self.new or self.changed or len(self.removed) or self.again or self.files
        return not (some or self.files_removed)


class SourceCheck:
    """The files of a source, and what is remembered of them.

    Args:
        tree: The source.
        seen: What is remembered of it. None: nothing, or all files are to be read.
    """

    def __init__(self, tree: Tree, seen: Seen | None) -> None:
        self.tree, self.seen = tree, seen
        self._stamps = stamps_of_members(tree) if tree.stamps is None else tree.stamps

    def sure(self, paths: Any) -> NDArray[np.bool_]:
        """Return which files, an Arrow array of paths, are as they were when the pack was made, by their times."""
        if self.seen is None or self._stamps is None:
            return np.zeros(len(paths), np.bool_)
        found = np.zeros(len(paths), np.bool_)
        for names, stamps in (
            (self._stamps.images, self._stamps.of_images), (self._stamps.files, self._stamps.of_files),
        ):  # fmt: skip
            places = places_in(paths, arrow_paths(names))
            found |= (places >= 0) & (self._old(names, stamps)[places] if len(stamps) else False)
        return found

    def _old(self, paths: Sequence[bytes], stamps: Int64) -> NDArray[np.bool_]:
        """Return which of these files, which are in order, are as they were."""
        assert self.seen is not None
        old = np.asarray(stamps[:, 0] < self.seen.until_ns)
        for folder in self._other_folders:
            first, last = (bisect_left(paths, folder + end) for end in ((b"/", b"0") if folder else (b"", b"\xff")))
            old[first:last] = False
        return old

    @cached_property
    def _other_folders(self) -> list[bytes]:
        """The folders that are others than those that had their names; b"" is the source itself."""
        if self.seen is None or is_url(self.tree.root):
            return []
        if self.seen.folders is not None:
            before = self.seen.folders
            return [os.fsencode(name) for name, inode in inodes_of(self.tree).items() if before.get(name) != inode]
        return [folder for folder in (b"", *self.tree.folders) if self._is_touched(folder)]

    def _is_touched(self, folder: bytes) -> bool:
        """Return whether the entries of a folder have changed, or its name."""
        assert self.seen is not None
        try:
            return os.stat(os.path.join(self.tree.root, folder)).st_ctime_ns >= self.seen.until_ns
        except OSError:
            return True

    def changes(self, packed: PackedImages, known: Collection[bytes], progress: Progress) -> SourceChanges:
        """Return how the source differs from a pack.

        Args:
            packed: What the pack has.
            known: The images that are in its lists of rejected and skipped inputs.
            progress: Receives the images whose digests are compared.
        """
        old = self._sure_images(len(self.tree.images))
        if packed.sizes is None and self._has_same_images:
            rows = np.flatnonzero(~old)  # only these are looked up
            paths = pa.array(list(self._paths(rows)), pa.large_binary())
            found, places = SourceChanges(), packed.records_of(paths)
        else:
            rows = np.arange(len(old))
            places = packed.records_of(arrow_paths(self.tree.images))
            there = np.zeros(len(packed), np.bool_)
            there[places[places >= 0]] = True
            found = SourceChanges(removed=np.flatnonzero(~there))
        if packed.sizes is not None and old.any():
            assert self._stamps is not None
            old &= (places < 0) | (packed.sizes[places] == self._stamps.of_images[:, 1])
        unsure = np.flatnonzero((places >= 0) & ~old[rows])
        found.changed = self._with_other_bytes(rows[unsure], packed.digests[places[unsure]], progress)
        for row in rows[places < 0].tolist():
            path = self.tree.images[row]
            if path not in known:
                found.new.append(path)
            elif not old[row]:
                found.again.append(path)
        self._compare_files(found)
        return found

    @cached_property
    def _has_same_images(self) -> bool:
        """Whether there are the images that were there when the pack was made, by their names."""
        return self.seen is not None and digest_of_names(self.tree.images) == self.seen.images

    def _sure_images(self, count: int) -> NDArray[np.bool_]:
        stamps = None if self._stamps is None else self._stamps.of_images
        if self.seen is None or stamps is None or len(stamps) != count:
            return np.zeros(count, np.bool_)
        return self._old(self.tree.images, stamps)

    def _compare_files(self, found: SourceChanges) -> None:
        """Find out which other files may have changed. Names are compared by digests, of all and of the old ones."""
        files, seen = self.tree.files, self.seen
        if seen is None:
            found.files = list(files)
            return
        old = np.zeros(len(files), np.bool_)
        if self._stamps is not None and len(self._stamps.of_files) == len(files):
            old = self._old(files, self._stamps.of_files)
        found.files = [files[row] for row in np.flatnonzero(~old).tolist()]
        found.files_removed = digest_of_names(files) != seen.files and (
            not found.files or digest_of_names([files[row] for row in np.flatnonzero(old).tolist()]) != seen.files
        )
        found.images_renamed = not self._has_same_images

    def _with_other_bytes(self, rows: Int64, digests: NDArray[np.uint8], progress: Progress) -> list[bytes]:
        """Return the images of these rows whose bytes have another digest."""
        if not len(rows):
            return []
        progress.stage("comparing", len(rows))
        found = []
        for path, digest, wanted in zip(self._paths(rows), self._digests(rows), digests, strict=True):
            if digest != wanted.tobytes():
                found.append(path)
            progress.advance(1)
        return found

    def _paths(self, rows: Int64) -> Iterator[bytes]:
        return (self.tree.images[row] for row in rows.tolist())

    def _digests(self, rows: Int64) -> Iterator[bytes]:
        """Yield the XXH3-128 of images; b"" of those that cannot be read, which the build will reject."""
        if is_url(self.tree.root):
            yield from at_once(self._digest, self._paths(rows))
            return
        parts = [rows[start : start + FILES_AT_ONCE] for start in range(0, len(rows), FILES_AT_ONCE)]
        with ThreadPoolExecutor(2 * usable_cores()) as pool:
            for some in pool.map(lambda part: list(map(self._digest, self._paths(part))), parts):
                yield from some

    def _digest(self, path: bytes) -> bytes:
        try:
            with _opened(self.tree, path) as file:
                return xxh3_128_digest(file.content(file.size))
        except (BadInput, FileNotFoundError, PermissionError):
            return b""


def _opened(tree: Tree, path: bytes) -> SourceFile:
    """Open an image, from any thread."""
    where, members = tree.root + b"/" + path, tree.members
    if members is None:
        return SourceFile(where)
    row = bisect_left(members.paths, path)
    place = Place(*members.places[row].tolist())
    if members.etags:
        return SourceFile(where, place, (), SourceObject(where, place.size, members.etags[row]))
    return SourceFile(where, place, members.archives)


def stamps_of_members(tree: Tree) -> Stamps | None:
    """Return the stamps of the files in archives on a disk: those of their archives. None: they are not known."""
    members = tree.members
    if members is None or not members.archives:
        return None
    times = np.array([_time_of(archive.path) for archive in members.archives], np.int64)

    def of(paths: Sequence[bytes]) -> Int64:
        rows = places_in(arrow_paths(paths), arrow_paths(members.paths))
        places = members.places[rows]
        inside = (rows >= 0) & (places[:, 0] >= 0)
        return np.stack([np.where(inside, times[places[:, 0]], NEVER_NS), places[:, 2]], axis=1)

    return Stamps(tree.images, of(tree.images), tree.files, of(tree.files))


def _time_of(path: bytes) -> int:
    return NEVER_NS if is_url(path) else stamp_of(os.stat(path))[0]
