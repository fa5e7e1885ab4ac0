"""Makes, replaces or removes the index of a pack's JPEGs, in files beside its shards; nothing else of it changes."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from packer.errors import AnyPath, DamagedPack, StorageError, UsageError, option, printable
from packer.format.beside import read_beside
from packer.format.jpeg_index_list import (
    JPEG_INDEX_NAME,
    JPEG_INDEX_PREFIX,
    WORK_FOLDER,
    JpegIndexList,
    interval_of,
    own_files,
    remove_files,
)
from packer.format.make_jpeg_index import (
    MadeJpegIndex,
    check_installed,
    jobs_for,
    list_of,
    make_jpeg_index,
)
from packer.format.pack import Pack, open_pack
from packer.format.pack_paths import numbers_in
from packer.format.versions import check_newest, files_of_versions, newest_number
from packer.model.annotation import Progress, advancing
from packer.packing.build_options import DEFAULT_DECODE_TIMEOUT_S, JPEG_ENCODINGS
from packer.packing.engines import with_threads
from packer.packing.publish_version import forget_list
from packer.system import sync_path, usable_cores
from packer.system.atomic import is_own_file
from packer.system.locks import LOCK, lock_folder, remove_folder
from packer.system.pool import Pool, held_signals
from packer.system.storage import FREE_SPACE, write_error

PRELOADED = "packer.format.make_jpeg_index"


@dataclass(frozen=True, slots=True)
class IndexReport:
    """The result of `index_jpegs`."""

    path: str
    interval: int
    """MCUs between two entries; 0: an entry per row of MCUs."""
    records: int
    indexed: int
    without: Mapping[str, int]
    """Why records have no index -> their number."""
    bytes: int
    share: float
    """Size of the index in relation to that of the shards."""
    kept: int
    """Shards that an earlier, interrupted call had indexed."""
    ms_per_image: float
    """Time of a processor; 0.0 if nothing was left to do."""
    seconds: float


@dataclass(frozen=True, slots=True)
class RemovedIndex:
    """The result of `remove_jpeg_index`."""

    path: str
    files: int
    bytes: int


def index_jpegs(
    pack: AnyPath, interval: str = "row", workers: int | None = None, progress: Progress | None = None
) -> IndexReport:
    """Make the index of a pack's JPEGs, with which crops are decoded without what comes before them.

    The pack stays as it is; the index is in files beside the shards, and replaces one that is there. If the call is
    interrupted, the same call resumes.

    Args:
        pack: The folder of the pack.
        interval: ``row``, an entry per row of blocks; or ``4``, an entry per four blocks: larger, faster for small
            crops of wide images.
        workers: Number of worker processes. None: the number of usable cores.
        progress: Receives the stage indexing, in records.

    Returns:
        What was indexed.

    Raises:
        NotInstalled: packer-fast is missing.
        UsageError: The pack is at a URL, has no JPEGs, or is being indexed.
        DamagedPack: A file of the pack was altered; the index stays as it was.
        StorageError: A file cannot be written; the index stays as it was.
    """
    started = time.monotonic()
    progress = progress or Progress()
    number = interval_of(option("interval"), interval)
    opened = _open_local_pack(pack)
    manifest = opened.manifest
    if manifest.encoding not in JPEG_ENCODINGS:
        problem = f"has no JPEGs: its images are stored as {manifest.encoding}"
        raise UsageError(opened.path, problem, "build it with --encode=jpeg or --encode=copy")
    check_installed("packer index")
    workers = workers or usable_cores()
    with in_place(), work_folder(opened.path) as work, Pool(workers, DEFAULT_DECODE_TIMEOUT_S, PRELOADED) as pool:
        version = newest_number(opened.path, manifest)
        jobs = with_threads(jobs_for(opened.path, manifest.shards, manifest.path_of, number, work, version), pool.size)
        pool.start(min(workers, usable_cores(), len(jobs)))
        progress.stage("indexing", manifest.records, "records")
        made: dict[int, MadeJpegIndex] = dict(pool.run(make_jpeg_index, jobs, advancing(progress)))
        results = [made[job] for job in sorted(made)]
        listed = list_of(results, number)
        _publish(opened, work, listed)
    new = [one for one in results if one.seconds]
    images = sum(one.indexed for one in new)
    return IndexReport(
        opened.path, number, manifest.records, listed.indexed, listed.without, listed.bytes,
        listed.bytes / sum(shard.container.bytes for shard in manifest.shards), len(results) - len(new),
        1e3 * sum(one.seconds for one in new) / images if images else 0.0, time.monotonic() - started,
    )  # fmt: skip


def remove_jpeg_index(pack: AnyPath) -> RemovedIndex:
    """Remove the index of a pack's JPEGs, if it has one.

    Args:
        pack: The folder of the pack.

    Returns:
        What was removed.

    Raises:
        UsageError: The pack is at a URL, or is being indexed.
        StorageError: A file cannot be removed.
    """
    opened = _open_local_pack(pack)
    if not own_files(opened.path) and not os.path.isdir(os.path.join(opened.path, WORK_FOLDER)):
        return RemovedIndex(opened.path, 0, 0)
    with in_place(), work_folder(opened.path), _storage_errors(opened.path), held_signals():
        forget_list(opened.path, opened.manifest, JPEG_INDEX_NAME)
        names = _only_of_newest(opened)
        size = sum(os.lstat(os.path.join(opened.path, name)).st_size for name in names)
        remove_files(opened.path, names)
    return RemovedIndex(opened.path, len(names), size)


def _only_of_newest(pack: Pack) -> list[str]:
    """Return the names of the index files of a pack that no other version of it has."""
    names = own_files(pack.path)
    if not (numbers := numbers_in(pack.path)):
        return names
    others = {*numbers} - {newest_number(pack.path, pack.manifest)}
    return [name for name in names if name not in files_of_versions(pack.path, others)]


def _open_local_pack(pack: AnyPath) -> Pack:
    return open_pack(check_newest(pack, "packer index"))


@contextmanager
def work_folder(folder: str) -> Iterator[str]:
    """Lock the folder where the index grows; complete files stay there if the work does not end."""
    path = os.path.join(folder, WORK_FOLDER)
    with _storage_errors(path):
        lock = lock_folder(path)
    if lock is None:
        raise UsageError(folder, "is being indexed by another process", "wait for it")
    done = kept = False
    try:
        with _storage_errors(path):
            names = {*os.listdir(path)} - {LOCK}
            if others := sorted(name for name in names if not name.startswith(JPEG_INDEX_PREFIX)):
                kept = True
                problem = f"holds {printable(others[0])}, which packer index has not left"
                raise UsageError(path, problem, "move it away")
            for name in names:
                file = os.path.join(path, name)
                if not (name.endswith(".arrow") and is_own_file(file)):
                    os.unlink(file)
        yield path
        done = True
    finally:
        with suppress(OSError):
            done = done or not (kept or any(name.endswith(".arrow") for name in os.listdir(path)))
        if done:
            remove_folder(path, lock)
        lock.close()


@contextmanager
def in_place() -> Iterator[None]:
    """Let no error advise another place to write to: what is beside a pack is in its folder."""
    try:
        yield
    except StorageError as error:
        if error.full:
            error.next_step = FREE_SPACE
        raise


@contextmanager
def _storage_errors(path: str) -> Iterator[None]:
    try:
        yield
    except (DamagedPack, StorageError):
        raise
    except OSError as error:
        found = write_error(error.filename or path, error)
        if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
            found.next_step = "an index is written into the pack's folder: copy the pack, or ask for its permissions"
        raise found from None


def _publish(pack: Pack, work: str, listed: JpegIndexList) -> None:
    """Move the files of an index into the pack, and write its list last."""
    folder = pack.path
    try:
        before = read_beside(JpegIndexList, folder, pack.manifest)
    except DamagedPack:
        before = None
    names = [shard.index.name for shard in listed.shards]
    with _storage_errors(folder), held_signals():
        forget_list(folder, pack.manifest, JPEG_INDEX_NAME)
        if before != listed:  # otherwise a file is replaced by itself, or by what it was before it was damaged
            remove_files(folder, [name for name in own_files(folder) if name == JPEG_INDEX_NAME])
        for name in names:
            os.replace(os.path.join(work, name), os.path.join(folder, name))
        sync_path(folder)
        listed.write(folder)
        kept = {*names, JPEG_INDEX_NAME, *files_of_versions(folder, numbers_in(folder))}
        remove_files(folder, [name for name in own_files(folder) if name not in kept])
