"""Verifies the index of a pack's JPEGs: its list, its files, and with ``--deep`` every entry."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress

from packer.errors import DamagedPack, NotInstalled, option
from packer.format.jpeg_index import index_column
from packer.format.jpeg_index_list import (
    JPEG_INDEX_NAME,
    JpegIndexList,
    own_files,
    read_jpeg_index_list,
    remove_files,
)
from packer.format.make_jpeg_index import check_installed, is_right, jobs_for
from packer.format.manifest import FileEntry, Manifest
from packer.format.mmap import map_files
from packer.format.verify_records import DECODE_TIMEOUT_S, Problem
from packer.model.annotation import Progress, advancing
from packer.system import usable_cores
from packer.system.pool import Pool


def find_list(folder: str, manifest: Manifest) -> tuple[JpegIndexList | None, list[Problem]]:
    """Return the list of a pack's index files, if it has one, and what is wrong with it."""
    try:
        return read_jpeg_index_list(folder, manifest), []
    except DamagedPack as error:
        return None, [Problem(JPEG_INDEX_NAME, None, error.problem)]


def index_problems(
    folder: str, manifest: Manifest, listed: JpegIndexList, found: Sequence[Problem], deep: Progress | None = None
) -> Iterator[Problem]:
    """Check the index files of a pack.

    Args:
        folder: The pack.
        manifest: Its manifest.
        listed: The list of the files.
        found: What is wrong with the digests of the pack's files; those are left out here.
        deep: Make the index again, and compare: receives the stage indexing, in records. None: do not.
    """
    bad = {problem.file for problem in found}
    for problem in _file_problems(folder, manifest, listed, bad):
        bad.add(problem.file)
        yield problem
    if deep is not None:
        yield from _deep_problems(folder, manifest, listed, bad, deep)


def drop_damaged(folder: str, manifest: Manifest, check: Callable[[FileEntry], Problem | None]) -> tuple[str, ...]:
    """Remove the index of a pack's JPEGs if it is damaged, for a repair: no image is lost with it.

    Args:
        folder: The pack.
        manifest: Its manifest.
        check: Returns what is wrong with the size and digest of a file.

    Returns:
        A note, if it is removed.
    """
    listed, problems = find_list(folder, manifest)
    if listed is not None:
        problems += filter(None, map(check, listed.files))
        problems += index_problems(folder, manifest, listed, problems)
    if not problems:
        return ()
    remove_files(folder, own_files(folder))
    return (f"the index of its JPEGs was damaged and is removed ({problems[0]}): packer index makes it again",)


def _file_problems(folder: str, manifest: Manifest, listed: JpegIndexList, bad: Collection[str]) -> Iterator[Problem]:
    """Check what is in the files that are not in `bad`, whose digests are right."""
    for shard, one in zip(manifest.shards, listed.shards, strict=True):
        if one.index.name not in bad:
            path = os.path.join(folder, one.index.name)
            try:
                rows = len(index_column(path, map_files([(path, one.index.bytes)])[0].parts[0][: one.index.bytes]))
            except DamagedPack as error:
                yield Problem(one.index.name, None, error.problem)
                continue
            if rows != shard.records:
                yield Problem(one.index.name, None, f"has {rows:,} rows, but the pack says {shard.records:,}")


def _deep_problems(
    folder: str, manifest: Manifest, listed: JpegIndexList, bad: Collection[str], progress: Progress
) -> Iterator[Problem]:
    """Make the index again, and compare; only the version of packer-fast that has made it makes the same."""
    with suppress(NotInstalled):
        if check_installed(option("deep")) != listed.made_with:
            return
        jobs = [
            job
            for job, one in zip(
                jobs_for(folder, manifest.shards, manifest.path_of, listed.interval, folder), listed.shards, strict=True
            )
            if not {one.index.name, job.shard.container.name, job.shard.index.name} & {*bad}
        ]
        progress.stage("indexing", sum(job.shard.records for job in jobs), "records")
        with Pool(usable_cores(), DECODE_TIMEOUT_S, "packer.format.make_jpeg_index") as pool:
            for number, right in pool.run(is_right, jobs, advancing(progress)):
                if not right:
                    name = os.path.basename(jobs[number].path)
                    yield Problem(name, None, "is not the index that the JPEGs of its shard give")
