"""The manifest and the indexes of adopted files."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np

import packer
from packer.errors import UsageError
from packer.format.index import INDEX_SUFFIX, batch_of, write_index
from packer.format.lists import MOST_IN_MANIFEST
from packer.format.manifest import FileEntry, Manifest, Origin, ShardEntry
from packer.model.annotation_columns import column
from packer.packing.input_table import Inputs
from packer.packing.publish import Output
from packer.packing.resolve import similar_names
from packer.packing.resume import library_versions
from packer.repack.adopt_file import FileResult
from packer.repack.index_columns import recount


def manifest_of(
    options: dict[str, Any], kind: str, classes: tuple[str, ...], results: list[FileResult], inputs: Inputs
) -> Manifest:
    """Return the manifest without what follows from the indexes.

    Args:
        options: What affects the records.
        kind: The format of the files.
        classes: Class names in id order.
        results: What was found in each file.
        inputs: The lists of rejected, skipped and changed inputs.
    """
    fields = set().union(*(result.fields for result in results))
    counts = Counter(inputs.counts)
    counts.update(rejected=len(inputs.rejected), skipped=len(inputs.skipped), found=0, packed=0)
    if inputs.changed:
        counts["changed"] = len(inputs.changed)
    return Manifest(
        container=kind,
        encoding="copy",
        mode="rgb",
        dtype=None,
        shape=None,
        classes=classes,
        fields=tuple(sorted(fields)),
        records=0,
        counts=dict(counts),
        class_counts={},
        options=dict(sorted({"labels": [kind], "encode": "copy", "mode": "rgb", **options}.items())),
        shards=(),
        rejected=tuple(islice(inputs.rejected, MOST_IN_MANIFEST)),
        notes=(*inputs.notes, *similar_names(classes)),
        tags=next((result.tags for result in results if result.tags), ()),
        packer=packer.__version__,
        libraries=library_versions(),
    )


def with_shards(
    manifest: Manifest, paths: list[str], results: list[FileResult], tables: list[Any], output: Output
) -> Manifest:
    """Write the indexes, and return the manifest with them."""
    shards: list[ShardEntry] = []
    linked: dict[str, str] = {}
    origins: list[Origin] = []
    names = Counter(os.path.basename(path).lower() for path in paths)
    parent = os.path.dirname(output.path)
    for number, (path, result, table) in enumerate(zip(paths, results, tables, strict=True)):
        if not len(table):
            continue
        name = os.path.basename(path)
        name = name if names[name.lower()] == 1 else f"{number:05d}-{name}"
        index_path = os.path.join(output.folder, f"shard-{number:05d}{INDEX_SUFFIX}")
        index = write_index(index_path, batch_of(index_path, table))
        shards.append(ShardEntry(len(table), FileEntry(name, result.bytes, result.sha256), index))
        below = path.startswith(f"{parent.rstrip('/')}/")
        linked[name] = os.path.relpath(path, output.path) if below else path
        origins.append(Origin("adopt", os.path.basename(path), result.sha256))
    manifest = recount(manifest, shards, (table for table in tables if len(table)))
    raw = [np.asarray(column(table, "encoding")) == 0 for table in tables]
    if any(flags.any() for flags in raw):
        if not all(flags.all() for flags in raw):
            raise UsageError(paths[0], "holds raw arrays and encoded images", "write them to files of their own")
        manifest = replace(manifest, encoding="raw", mode=_mode_of(manifest))
    return replace(manifest, linked=linked, made_from=tuple(origins))


def _mode_of(manifest: Manifest) -> str:
    """Return the mode that raw images are of."""
    if manifest.dtype != "uint8" or manifest.shape is None or manifest.shape[2] not in (1, 3):
        return "unchanged"
    return "gray" if manifest.shape[2] == 1 else "rgb"
