"""Checks a finished pack: every file's digest first, then every record, then container and index against each other."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from threading import Lock
from typing import Any

from packer.checking.files import ALTERED, check_file, check_names, unlisted
from packer.checking.problems import Problem, VerifyReport
from packer.checking.records import bad_records, require_intact
from packer.checking.structure import check_annotations, check_places, check_rows
from packer.cores import usable_cores
from packer.errors import AnyPath, PackerError
from packer.index import read_index
from packer.manifest import Manifest, ShardEntry, read_manifest

__all__ = ["Problem", "VerifyReport", "require_intact", "verify"]

Checked = tuple[Future[Problem | None], ...]
MOST_THREADS = 4
INLINE_BYTES = 1 << 20
"""A smaller pack is read before threads would have begun."""
UNUSED = (
    "every record matches its checksum, so packer reads what was packed; "
    "what was altered is for other readers: keys, annotations, the format's own bytes"
)


class Watcher:
    """Is told how a check comes along; the command line shows it. This one shows nothing."""

    def reading(self, size: int) -> None:
        """So many more bytes are read."""

    def decoding(self, images: int) -> None:
        """So many more images are decoded (`deep`)."""


def verify(path: AnyPath, watcher: Watcher | None = None, deep: bool = False) -> VerifyReport:
    """Check the pack at `path` and list all that is wrong with it.

    A file goes to its format's own library only after its digest was found right. `deep` also decodes every image,
    in processes of its own, and compares the annotations in the containers with those in the indexes. Raises
    UsageError where there is no pack and DamagedPack where its manifest cannot be trusted.
    """
    folder = os.path.abspath(os.fsdecode(path))
    return verify_with(folder, read_manifest(folder), watcher, deep)


def verify_with(folder: str, manifest: Manifest, watcher: Watcher | None = None, deep: bool = False) -> VerifyReport:
    """`verify` for a caller that has the manifest of the pack in `folder`."""
    watcher = watcher or Watcher()
    strange, strangers = unlisted(folder, manifest)
    check = _Check(folder, manifest, deep)
    check.problems += [*check_names(manifest), *strange]
    with _digests(folder, manifest, watcher) as files:
        for shard, (index, container) in zip(manifest.shards, files, strict=True):
            check.shard(shard, index.result(), container.result)
    if check.jobs:
        from packer.checking.decoding import check_images

        check.problems += check_images(check.jobs, watcher.decoding)
    total = sum(s.container.bytes + s.index.bytes for s in manifest.shards)
    report = VerifyReport(folder, 2 * len(files), manifest.records, total, tuple(check.problems), tuple(strangers))
    return report


@contextmanager
def _digests(folder: str, manifest: Manifest, watcher: Watcher) -> Iterator[list[Checked]]:
    """What is wrong with the files of each shard as such; they are read beside whatever is done meanwhile.

    Digests hold no GIL, and the checks of records, which do, take about as long.
    """
    files = [(shard.index, shard.container) for shard in manifest.shards]
    if sum(file.bytes for pair in files for file in pair) <= INLINE_BYTES:
        yield [tuple(_at_once(check_file(folder, file, watcher.reading)) for file in pair) for pair in files]
        return
    lock = Lock()

    def told(size: int) -> None:
        with lock:
            watcher.reading(size)

    with ThreadPoolExecutor(max(1, min(MOST_THREADS, usable_cores() - 1))) as pool:
        try:
            yield [tuple(pool.submit(check_file, folder, file, told) for file in pair) for pair in files]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _at_once(problem: Problem | None) -> Future[Problem | None]:
    future: Future[Problem | None] = Future()
    future.set_result(problem)
    return future


class _Check:
    """The checks of a pack, shard by shard."""

    def __init__(self, folder: str, manifest: Manifest, deep: bool) -> None:
        self._folder = folder
        self._manifest = manifest
        self._deep = deep
        self.problems: list[Problem] = []
        self.jobs: list[Any] = []
        """Images to decode."""

    def shard(self, shard: ShardEntry, index: Problem | None, container_result: Callable[[], Problem | None]) -> None:
        """Check a shard; `index` and `container_result()` say what is wrong with its files as such.

        Records are read without any library, so they need not wait for the container's digest.
        """
        if index is not None:
            self.problems += [problem for problem in (container_result(), index) if problem is not None]
            return
        paths = os.path.join(self._folder, shard.container.name), os.path.join(self._folder, shard.index.name)
        try:
            table: Any = read_index(paths[1])
        except PackerError as error:
            found = container_result(), Problem(shard.index.name, None, error.problem)
            self.problems += [problem for problem in found if problem is not None]
            return
        bad = []
        if os.path.isfile(paths[0]):
            bad = [Problem(shard.container.name, key, problem) for key, problem in bad_records(paths[0], table)]
        container = container_result()
        if container is not None and container.problem == ALTERED and not bad:
            container = replace(container, problem=f"{ALTERED}; {UNUSED}")
        self.problems += [*([] if container is None else [container]), *bad, *check_rows(self._manifest, shard, table)]
        if container is None:
            self.problems += check_places(self._manifest.container, paths[0], shard, table)
            if self._deep:
                self.problems += check_annotations(self._manifest, paths, shard, table)
        if self._deep and os.path.isfile(paths[0]):
            from packer.checking.decoding import decode_jobs

            self.jobs += decode_jobs(paths, shard.container.name, len(table), self._manifest.mode)
