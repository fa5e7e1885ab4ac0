"""Container and index of a shard against each other; only for files whose digests are right."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise, zip_longest
from typing import Any

import numpy as np

from packer.containers import open_container
from packer.containers.annotation import annotation_json
from packer.errors import PackerError
from packer.format.columns import column
from packer.format.manifest import Manifest, ShardEntry
from packer.format.verify_problems import Problem
from packer.format.verify_records import text_of, texts
from packer.format.verify_rows import Rows

_WRONG = (PackerError, ValueError, IndexError, TypeError, OverflowError)


def check_rows(manifest: Manifest, shard: ShardEntry, table: Any) -> Iterator[Problem]:
    """What the index says against what the manifest says."""
    name = shard.index.name
    if len(table) != shard.records:
        yield Problem(name, None, f"has {len(table)} rows where the pack says {shard.records}")
    keys = texts(column(table, "key"))
    for before, key in pairwise(keys):
        if key <= before:
            yield Problem(name, text_of(key), "does not come after the key before it")
            break
    if manifest.shape is not None:
        shapes = np.stack([np.asarray(column(table, c)) for c in ("height", "width", "channels")], axis=1)
        for row in np.flatnonzero((shapes != manifest.shape).any(axis=1))[:1].tolist():
            problem = f"is of shape {tuple(shapes[row].tolist())}, and the pack of {manifest.shape}"
            yield Problem(name, text_of(keys[row]), problem)


def check_places(container: str, path: str, shard: ShardEntry, table: Any) -> Iterator[Problem]:
    """The container's own view of where its records lie against the index."""
    keys = [key.decode("ascii", "backslashreplace") for key in texts(column(table, "key"))]
    offsets, sizes = (np.asarray(column(table, name)).tolist() for name in ("offset", "size"))
    row = 0
    try:
        for row, (found, wanted) in enumerate(
            zip_longest(open_container(container).locate(path), zip(keys, offsets, sizes, strict=True)), 1
        ):
            if found == wanted:
                continue
            if wanted is None:
                yield Problem(shard.container.name, found[0], "is not in the index")
            elif found is None:
                problem = f"holds {row - 1} records where the index has {len(keys)}"
                yield Problem(shard.container.name, None, problem)
                return
            else:
                yield Problem(shard.container.name, found[0], "lies elsewhere than the index says")
    except PackerError as error:
        yield Problem(shard.container.name, None, error.problem)
    except _WRONG as error:
        yield Problem(shard.container.name, None, f"cannot be read: {error!r}")


def check_annotations(manifest: Manifest, paths: tuple[str, str], shard: ShardEntry, table: Any) -> Iterator[Problem]:
    """The annotations that other readers see, in the container, against the index; `paths` are of both files."""
    name = shard.container.name
    try:
        rows = Rows(table, paths[1])
        for row, (key, text) in enumerate(open_container(manifest.container).annotations(paths[0])):
            if row >= len(rows):
                yield Problem(name, key, "has an annotation, and no row in the index")
                continue
            try:
                wanted = annotation_json(rows.record(row), manifest.classes).encode("ascii")
            except _WRONG as error:
                yield Problem(shard.index.name, text_of(rows.key(row)), f"has no valid row: {error}")
                continue
            if text != wanted:
                yield Problem(name, key, "has another annotation in the container than in the index")
    except PackerError as error:
        yield Problem(name, None, error.problem)
    except _WRONG as error:
        yield Problem(name, None, f"its annotations cannot be read: {error!r}")
