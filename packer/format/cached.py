"""What the cache folder holds of packs at URLs: lists them, verifies what is there, and removes them."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np
from crc32c import crc32c

from packer.errors import DamagedPack, PackerError, StorageError, UsageError
from packer.format.beside import read_beside
from packer.format.digests import sha256_of
from packer.format.index import read_index
from packer.format.indexes import all_ranges
from packer.format.jpeg_index_list import JPEG_INDEX
from packer.format.manifest import Manifest, read_manifest
from packer.format.mmap import map_file
from packer.format.pack_paths import MANIFEST_NAME
from packer.format.sidecar_list import CHECKED_BYTES, SidecarList
from packer.format.sidecars import checksums_of
from packer.format.verify_records import record_problems, text_of
from packer.model.annotation import Int64, Progress, names_in
from packer.model.annotation_columns import column
from packer.stores import clean_url, is_url
from packer.stores.blocks import BlockLayout, runs
from packer.stores.cache import ORIGIN, folders_of
from packer.stores.sparse import NAME, StoredBlocks
from packer.stores.waiting import UNFINISHED

INDEX_SUFFIX = ".index.arrow"
REMOVED = ".old-"
"""Start of the names of folders that are being removed, or were when the process was killed."""


@dataclass(frozen=True)
class CachedPack:
    """A folder of the cache."""

    folder: str
    url: str
    """Where its pack was when it was first opened."""
    files: tuple[tuple[str, int], ...]
    """(name, bytes) of each container."""

    @property
    def id(self) -> str:
        """The first digits of the digest of the pack, which are the name of the folder."""
        return os.path.basename(self.folder)

    @property
    def stored(self) -> StoredBlocks:
        """Its blocks."""
        return StoredBlocks(
            self.folder, [name for name, _ in self.files], BlockLayout([size for _, size in self.files])
        )

    @property
    def whole_bytes(self) -> int:
        """The size of the containers."""
        return sum(size for _, size in self.files)

    def here_bytes(self) -> int:
        """Return how many bytes of them are here."""
        with suppress(FileNotFoundError):
            return self.stored.here_bytes()
        return 0

    def used_s(self) -> int:
        """Return when it was last read, in seconds since the epoch."""
        with suppress(FileNotFoundError):
            if last := int(self.stored.used_s().max(initial=0)):
                return last
        return int(os.path.getmtime(os.path.join(self.folder, ORIGIN)))


@dataclass
class CacheReport:
    """The result of `verify_cached`."""

    url: str
    records: int
    """Records of which all bytes are here, and were verified."""
    of: int
    """Records of the pack."""
    proved: int = 0
    """Those in files that are here as a whole and match their SHA-256. Of the others, only the CRC-32C was compared,
    which finds damage, but not what somebody has made to match it."""
    absent_bytes: int = 0
    """Of the files that hold those others, what is not here. It may hold no record, and then no reader waits for it."""
    problems: list[str] = field(default_factory=list)
    dropped_bytes: int = 0
    """Removed, because something in it was wrong; it is fetched again when it is read."""
    in_use_bytes: int = 0
    """The same, but in use by a process, which verifies what it reads itself."""
    what: str = "record"
    """What `records` counts: of a sidecar, "piece", of its files."""


def cached_packs(root: str, which: str | None = None) -> list[CachedPack]:
    """Return the packs of a cache folder.

    Args:
        root: The cache folder.
        which: Only the packs of this URL, or whose `id` begins with this. None: all.

    Raises:
        UsageError: There is none of that URL or digest.
    """
    found = []
    for folder, origin in folders_of(root):
        files = tuple((str(name), int(size)) for name, size in origin["files"])
        found.append(CachedPack(folder, str(origin["url"]), files))
    if which is not None:
        url = clean_url(which) if is_url(which) else None
        found = [pack for pack in found if (pack.url == url if url else which and pack.id.startswith(which))]
        if not found:
            raise UsageError(which, f"is not in the cache {root}", "packer cache lists what is")
    return found


def verify_cached(pack: CachedPack, progress: Progress) -> CacheReport:
    """Verify the records of a pack that are here, and drop the blocks of those that are wrong.

    Of files that are here as a whole, the SHA-256 is compared, too.

    Nothing is fetched. Blocks that a process uses stay: it verifies what it reads, and fetches it again.

    Raises:
        DamagedPack: Its manifest was altered, so that nothing can be verified.
    """
    try:
        manifest = read_manifest(pack.folder)
        if (beside := read_beside(SidecarList, pack.folder, manifest)) is not None:
            return _verify_sidecar(pack, beside, progress)
    except PackerError as error:
        step = f"remove it, to have it fetched again: packer cache --clear {pack.id}"
        raise DamagedPack(pack.url, f"cannot be verified in the cache: {error.problem}", step) from None
    report, stored = CacheReport(pack.url, 0, manifest.records), pack.stored
    wrong: set[int] = set()
    with stored.held():
        here = stored.present()
        before = np.concatenate([[0], np.cumsum(here)])
        for number, shard in enumerate(manifest.shards):
            index = os.path.join(pack.folder, shard.index.name)
            try:
                if sha256_of(index) != shard.index.sha256:
                    raise DamagedPack(index, "does not match its digest")
                table = read_index(index)
            except (PackerError, OSError) as error:
                if not isinstance(error, FileNotFoundError):
                    os.unlink(index)
                    report.problems.append(f"{shard.index.name}: {getattr(error, 'problem', error)}; it was removed")
                continue
            each = 1 + len(names_in(table.column_names)), len(table)  # the image and the parts of each record
            starts, sizes = (numbers.reshape(each) for numbers in all_ranges(table))
            first = stored.layout.first_blocks[number] + starts // BlockLayout.BLOCK_BYTES
            last = stored.layout.first_blocks[number] + (starts + np.maximum(sizes, 1) - 1) // BlockLayout.BLOCK_BYTES
            rows = np.flatnonzero((before[last + 1] - before[first] == last - first + 1).all(axis=0))
            report.records += len(rows)
            container = os.path.join(pack.folder, shard.container.name)
            found, keys = list(_problems(container, table, rows)), column(table, "key")
            for row, problem in found:
                report.problems.append(f"{shard.container.name}: record {text_of(keys[row])} {problem}")
                for start, stop in zip(first[:, row].tolist(), last[:, row].tolist(), strict=True):
                    wrong.update(stored.layout.extents[start : stop + 1].tolist())
            begin, end = stored.layout.first_blocks[number : number + 2].tolist()
            absent = int(stored.layout.block_sizes[begin:end][~here[begin:end]].sum())
            if found:
                pass  # it is dropped
            elif absent:
                report.absent_bytes += absent if len(rows) else 0
            elif sha256_of(container) == shard.container.sha256:
                report.proved += len(rows)
            else:
                report.problems.append(f"{shard.container.name}: does not match its SHA-256, though its records do")
                wrong.update(stored.layout.extents[begin:end].tolist())
            progress.advance(int(sizes[:, rows].sum()))
    _drop(stored, wrong, report)
    return report


def _verify_sidecar(pack: CachedPack, beside: SidecarList, progress: Progress) -> CacheReport:
    """Verify the pieces that are here of the sidecar to which this folder belongs."""
    report, stored, wrong = CacheReport(pack.url, 0, 0, what="piece"), pack.stored, set[int]()
    (facts,) = beside.sidecars
    with stored.held():
        here, layout = stored.present(), stored.layout
        for number, file in enumerate(facts.files):
            path, first = os.path.join(pack.folder, file.name), int(layout.first_blocks[number])
            data, absent = map_file(path, file.bytes), 0
            for piece, wanted in enumerate(checksums_of(file).tolist()):
                start = piece * CHECKED_BYTES
                block, some = first + start // BlockLayout.BLOCK_BYTES, data[start : start + CHECKED_BYTES]
                report.of, report.records = report.of + 1, report.records + int(here[block])
                absent += 0 if here[block] else len(some)
                if here[block] and crc32c(some) != wanted:
                    report.problems.append(f"{file.name}: piece {piece} does not match its checksum")
                    wrong.add(int(layout.extents[block]))
            report.absent_bytes += absent
            progress.advance(file.bytes - absent)
        if not report.absent_bytes and not wrong:
            proved = all(sha256_of(os.path.join(pack.folder, file.name)) == file.sha256 for file in facts.files)
            report.proved = report.records if proved else 0
    _drop(stored, wrong, report)
    return report


def _drop(stored: StoredBlocks, wrong: set[int], report: CacheReport) -> None:
    """Drop extents that are wrong, to be fetched again."""
    for extent in sorted(wrong):
        size = int(stored.layout.block_sizes[stored.present() & (stored.layout.extents == extent)].sum())
        dropped = stored.evict(extent)
        report.dropped_bytes += dropped
        report.in_use_bytes += size if not dropped else 0


def _problems(container: str, table: object, rows: Int64) -> Iterator[tuple[int, str]]:
    """Yield (row, problem) of those that are wrong."""
    for first, count in runs(rows.tolist()):
        for row, problem in enumerate(record_problems(container, table, range(first, first + count)), first):
            if problem is not None:
                yield row, problem


def clear_cached(pack: CachedPack) -> int:
    """Remove a folder of the cache and return the bytes of the pack that were in it.

    Raises:
        UsageError: A process uses it, or it holds files that are not the cache's.
        StorageError: It cannot be removed.
    """
    size = pack.here_bytes()
    try:
        with pack.stored.unused() as is_unused:
            if not is_unused:
                raise UsageError(pack.url, "is in use by another process", "end that process first")
            names = os.listdir(pack.folder)
            own = _own_names(pack)
            others = sorted(name for name in names if name not in own and not name.startswith(UNFINISHED))
            if others:
                problem = f"holds {others[0]}, which is not the cache's, so that nothing is removed"
                raise UsageError(pack.folder, problem, "move it elsewhere")
            # a process that opens the pack now makes a folder of its own
            removed = os.path.join(os.path.dirname(pack.folder), f"{REMOVED}{os.getpid()}-{time.monotonic_ns()}")
            os.rename(pack.folder, removed)
            for name in sorted(names, key=lambda name: name == ORIGIN):  # without it, the rest is nobody's
                os.unlink(os.path.join(removed, name))
            os.rmdir(removed)
    except OSError as error:
        if isinstance(error, PackerError):
            raise
        raise StorageError(pack.folder, f"cannot be removed: {error.strerror or error}") from None
    return size


def _own_names(pack: CachedPack) -> set[str]:
    own = {ORIGIN, NAME, MANIFEST_NAME, SidecarList.NAME, *(name for name, _ in pack.files)}
    manifest: Manifest | None = None
    with suppress(PackerError):
        manifest = read_manifest(pack.folder)
    names = os.listdir(pack.folder)
    own |= {name for name in names if JPEG_INDEX.fullmatch(name)}
    if manifest is not None:
        return own | {file.name for file in manifest.files}
    return own | {name for name in names if name.endswith(INDEX_SUFFIX)}
