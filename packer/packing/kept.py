"""Tells whether a shard that an earlier build has finished is what this build would make."""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from xxhash import xxh3_128, xxh3_128_digest

from packer.errors import BadInput
from packer.format.digests import crc32c_of, sha256_of
from packer.packing.convert import Recipe, Row
from packer.packing.result import ShardResult

if TYPE_CHECKING:
    from packer.packing.write_shard import Report, ShardJob


class Sources:
    """Digest over the contents of source files, in the order of a shard's rows."""

    def __init__(self) -> None:
        self._all = xxh3_128()

    def add(self, digest: bytes) -> None:
        """The XXH3-128 of the next file's bytes; b"" where it cannot be read."""
        self._all.update(bytes([len(digest)]) + digest)

    def hexdigest(self) -> str:
        """Over all that were added."""
        return str(self._all.hexdigest())


def digest_of_inputs(job: ShardJob, rows: Any) -> str:
    """SHA-256 over all that a shard is made of, but the contents of its source files; `rows` are its inputs."""
    digest = hashlib.sha256()
    recipe = job.recipe
    asked = (
        recipe.mode, recipe.decoder, recipe.max_pixels, recipe.resize, recipe.encode, recipe.quality,
        job.container, job.name, job.start, job.stop, job.spec, job.key_digits,
    )  # fmt: skip
    digest.update(repr(asked).encode("utf-8", "surrogateescape"))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows.combine_chunks())
    digest.update(sink.getvalue())
    return digest.hexdigest()


def keeps(job: ShardJob, finished: ShardResult, rows: Any, report: Report) -> bool:
    """Whether the files of a finished shard are whole, and its source files the very ones that went into it."""
    entry = finished.entry
    if entry is not None:
        container, index = (os.path.join(job.folder, file.name) for file in (entry.container, entry.index))
        try:
            if os.path.getsize(container) != entry.container.bytes or os.path.getsize(index) != entry.index.bytes:
                return False
            if sha256_of(container) != entry.container.sha256 or sha256_of(index) != entry.index.sha256:
                return False
            if crc32c_of(index) != entry.index.crc32c:
                return False
        except OSError:
            return False
    sources = Sources()
    for batch in rows.select(Row._fields).to_batches(max_chunksize=1024):
        for row in map(Row, *(column.to_pylist() for column in batch.columns)):
            sources.add(source_digest(job.recipe, row))
    if sources.hexdigest() != finished.sources:
        return False
    report(len(rows), len(finished.rejected))
    return True


def source_digest(recipe: Recipe, row: Row) -> bytes:
    """Return the XXH3-128 of a source file's bytes; b"" if it cannot be read as it was planned."""
    try:
        return xxh3_128_digest(recipe.read(row))
    except BadInput:
        return b""
