"""The last step of a build with ``--jpeg-index``: the index of the JPEGs of its new shards."""

from __future__ import annotations

import os
from collections.abc import Sequence

from packer.errors import UsageError, option
from packer.format.jpeg_index_list import interval_of, write_list
from packer.format.make_jpeg_index import check_installed, jobs_for, list_of, make_jpeg_index
from packer.model.annotation import Progress, advancing
from packer.packing.build_options import BuildOptions
from packer.packing.engines import Engine, with_threads
from packer.packing.journal import ShardResult
from packer.packing.publish import Output

OPTION = option("jpeg-index")
JPEG_ENCODINGS = ("jpeg", "copy")
"""Encodings of a pack that may have JPEGs."""


def check_indexer(options: BuildOptions) -> None:
    """Raise UsageError if a build is to index JPEGs and cannot: it has none, or packer-fast is missing."""
    if options.jpeg_index is None:
        return
    interval_of(OPTION, options.jpeg_index)
    if options.encode is not None and options.encode not in JPEG_ENCODINGS:
        step = f"leave it out, or choose --encode={' or '.join(JPEG_ENCODINGS)}"
        raise UsageError(OPTION, f"is for JPEGs, but --encode is {options.encode}", step)
    if options.to_store:
        raise UsageError(OPTION, "is for packs in a folder", "build to a folder, and packer push the pack")
    check_installed(OPTION)


def index_jpegs(
    options: BuildOptions, results: Sequence[ShardResult], pool: Engine, output: Output, progress: Progress
) -> None:
    """Index the JPEGs of all shards, if that was asked for, and note what there is in `output.jpeg_index`.

    A part of a build has no index: it is made when all are published.

    Args:
        options: The options of the build.
        results: The finished shards, in order.
        pool: The workers.
        output: The folder in which the pack grows.
        progress: Receives the stage indexing, in images.
    """
    if options.jpeg_index is None or options.part is not None:
        return
    interval = interval_of(OPTION, options.jpeg_index)
    shards = [result.entry for result in results if result.entry is not None]
    jobs = with_threads(jobs_for(output.folder, shards, os.path.join, interval, output.folder), pool.size)
    progress.stage("indexing", sum(shard.records for shard in shards))
    made = dict(pool.run(make_jpeg_index, jobs, advancing(progress)))
    output.jpeg_index = list_of([made[number] for number in sorted(made)], interval)
    write_list(output.folder, output.jpeg_index)
