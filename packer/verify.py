"""Checks a finished pack: every file's digest first, then every record, then container and index against each other."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from crc32c import crc32c

from packer.columns import column
from packer.containers import open_container
from packer.digests import sha256_of
from packer.errors import AnyPath, DamagedPack, PackerError
from packer.index import read_index
from packer.manifest import FileEntry, Manifest, ShardEntry, read_manifest
from packer.mapping import map_files

ALTERED = "was altered: its digest is not the one that the pack says"


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong with a pack."""

    file: str
    record: str | None
    """Key of the record, None where it is about the whole file."""
    problem: str

    def __str__(self) -> str:
        return f"{self.file}: {'' if self.record is None else f'record {self.record} '}{self.problem}"


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What `verify` has found."""

    path: str
    files: int
    records: int
    bytes: int
    problems: tuple[Problem, ...]


def verify(path: AnyPath, progress: Callable[[int], None] = lambda n: None) -> VerifyReport:
    """Check the pack at `path` and list all that is wrong with it; `progress` is told of bytes read.

    A file goes to its format's own library only after its digest was found right. Raises UsageError where
    there is no pack and DamagedPack where its manifest cannot be trusted.
    """
    folder = os.path.abspath(os.fsdecode(path))
    manifest = read_manifest(folder)
    problems: list[Problem] = []
    for shard in manifest.shards:
        container, index = (_check_file(folder, file, progress) for file in (shard.container, shard.index))
        problems += [p for p in (container, index) if p is not None]
        if index is None and (container is None or container.problem == ALTERED):
            problems += _check_shard(folder, manifest, shard, intact=container is None)
    total = sum(s.container.bytes + s.index.bytes for s in manifest.shards)
    return VerifyReport(folder, 2 * len(manifest.shards), manifest.records, total, tuple(problems))


def _check_file(folder: str, file: FileEntry, progress: Callable[[int], None]) -> Problem | None:
    """Size and digest of one file."""
    path = os.path.join(folder, file.name)
    try:
        size = os.path.getsize(path)
        if size != file.bytes:
            return Problem(file.name, None, f"has {size} bytes where the pack says {file.bytes}")
        digest = sha256_of(path, progress)
    except FileNotFoundError:
        return Problem(file.name, None, "is missing")
    except OSError as error:
        return Problem(file.name, None, f"cannot be read: {error.strerror or error}")
    if digest != file.sha256:
        return Problem(file.name, None, ALTERED)
    return None


def _check_shard(folder: str, manifest: Manifest, shard: ShardEntry, intact: bool) -> Iterator[Problem]:
    """Records against checksums; and, where the files are intact, the container's own view against the index."""
    container = os.path.join(folder, shard.container.name)
    index = os.path.join(folder, shard.index.name)
    try:
        for key, problem in bad_records(container, index):
            yield Problem(shard.container.name, key, problem)
        if intact:
            yield from _compare(manifest.container, container, index, shard)
    except PackerError as error:
        yield Problem(shard.container.name, None, error.problem)


def _compare(name: str, container: str, index: str, shard: ShardEntry) -> Iterator[Problem]:
    table = read_index(index)
    if len(table) != shard.records:
        yield Problem(shard.index.name, None, f"has {len(table)} rows where the pack says {shard.records}")
        return
    keys, offsets, sizes = (column(table, c) for c in ("key", "offset", "size"))
    found = 0
    for found, (key, offset, size) in enumerate(open_container(name).locate(container), 1):
        row = found - 1
        if row >= len(table):
            yield Problem(shard.container.name, key, "is not in the index")
        elif (key.encode(), offset, size) != (bytes(keys[row]), offsets[row], sizes[row]):
            yield Problem(shard.container.name, key, "lies elsewhere than the index says")
    if found < len(table):
        yield Problem(shard.container.name, None, f"holds {found} records where the index has {len(table)}")


def bad_records(container: str, index: str) -> Iterator[tuple[str, str]]:
    """(key, problem) of every record of a shard whose bytes are not as its index has them.

    Raises DamagedPack where the index cannot be read.
    """
    table = read_index(index)
    size_of_file = os.path.getsize(container)
    region, _ = map_files([(container, size_of_file)])
    view = region.data
    numbers = zip(*(table.column(name).to_pylist() for name in ("offset", "size", "crc32c")), strict=True)
    for key, (offset, size, checksum) in zip(column(table, "key"), numbers, strict=True):
        if offset < 0 or size < 0 or offset + size > size_of_file:
            yield _text(key), f"lies outside of its file ({size} bytes at {offset})"
        elif crc32c(view[offset : offset + size], crc32c(key)) != checksum:
            yield _text(key), "does not match its checksum"


def _text(key: object) -> str:
    return bytes(key).decode("ascii", "backslashreplace")  # type: ignore[call-overload, no-any-return]


def require_intact(container: str, index: str) -> None:
    """Raise DamagedPack where a record of a shard is not as its index has it."""
    for key, problem in bad_records(container, index):
        raise DamagedPack(container, f"record {key} {problem}", "check the disk and the memory of this machine")
