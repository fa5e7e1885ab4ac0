"""The digest of what a pack holds, equal for the same records in any container, however they are cut into shards.

`content_digest` reads only the indexes: keys, the checksum (CRC-32C) and size of each image, its shape and encoding,
and all labels with the names of their classes. It proves that two packs say the same of themselves; a checksum of
32 bits finds accidents, but can be forged. `deep_digest` reads every image, verifies it, and digests the bytes.
Neither covers paths, source digests, offsets or the lists of rejected inputs.

`FlatColumns` has whole columns of labels and boxes as flat arrays, for statistics and the viewer.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.errors import printable
from packer.format.indexes import Indexes
from packer.format.manifest import Manifest
from packer.format.pack import Pack
from packer.model.annotation import Progress, column_of
from packer.model.annotation_columns import Ragged, column, present
from packer.model.fields import FIELDS

VERSION = 1
FIELDS_OF_VERSION = 3
"""The version of an index whose fields a digest always covers."""
FACTS = ("key", "crc32c", "size", "height", "width", "channels", "dtype", "encoding")
RECORDS_A_REPORT = 256


def content_digest(indexes: Indexes, manifest: Manifest) -> str:
    """Return the digest of the content of a pack, as its indexes describe it.

    Args:
        indexes: The indexes of the pack.
        manifest: Its manifest.

    Raises:
        DamagedPack: An index is missing or was altered.
    """
    parts = (column_of(name, what) for name in sorted(manifest.parts) for what in ("crc32c", "size", "encoding"))
    return _combined_digest(manifest, _of_columns(indexes, manifest, (*FACTS, *parts)))


def deep_digest(pack: Pack, progress: Progress | None = None) -> str:
    """Return the digest of the content of a pack with the bytes of all images.

    Args:
        pack: The pack.
        progress: Receives the records that were read.

    Raises:
        DamagedPack: A record does not match its checksum, or an index was altered.
    """
    progress = progress or Progress()
    facts = tuple(name for name in FACTS if name != "crc32c")
    names = sorted(pack.manifest.parts)
    facts += tuple(column_of(name, what) for name in names for what in ("size", "encoding"))
    digests = _of_columns(pack.reader.indexes, pack.manifest, facts)
    images, parts = hashlib.sha256(), {name: hashlib.sha256() for name in names}
    progress.stage("reading", len(pack), "records")
    for number in range(len(pack)):
        images.update(pack.record(number))
        for name, digest in parts.items():
            digest.update(pack.reader.part(number, name) or b"")
        if number % RECORDS_A_REPORT == 0:
            progress.advance(min(RECORDS_A_REPORT, len(pack) - number))
    of_bytes = {name: digest.hexdigest() for name, digest in parts.items()}
    return _combined_digest(pack.manifest, {**digests, "images": images.hexdigest(), **of_bytes})


def _combined_digest(manifest: Manifest, digests: dict[str, str]) -> str:
    content = {
        "packer.content": VERSION,
        "records": manifest.records,
        "classes": manifest.classes,
        "tags": manifest.tags,
        "columns": digests,
        **({"parts": dict(sorted(manifest.parts.items()))} if manifest.parts else {}),
        **({"masks": {name: asdict(facts) for name, facts in manifest.masks.items()}} if manifest.masks else {}),
        **({"pixels": {name: asdict(facts) for name, facts in manifest.pixels.items()}} if manifest.pixels else {}),
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode("ascii")).hexdigest()


def _of_columns(indexes: Indexes, manifest: Manifest, facts: tuple[str, ...]) -> dict[str, str]:
    """Return the digest of each column over all shards, of fields that came later only where the pack has them."""
    fields = [f.name for f in FIELDS if f.since <= FIELDS_OF_VERSION or f.name in manifest.fields]
    digests = {name: _ColumnDigest() for name in (*facts, *fields)}
    for number in range(len(indexes)):
        table = indexes[number]
        for name, digest in digests.items():
            digest.add(column(table, name), present(table, name) if name in fields else None)
    return {name: digest.hexdigest() for name, digest in digests.items()}


class _ColumnDigest:
    """Digests the rows of a column, the same in however many parts: their lengths, their values and what is missing."""

    def __init__(self) -> None:
        self._parts = [hashlib.sha256()]

    def add(self, values: Any, there: Any) -> None:
        if there is not None:
            self._update(0, there.astype(np.uint8))
        depth = 1
        while isinstance(values, Ragged):  # lists of lists
            self._update(depth, values.lengths.astype("<i8"))
            values, depth = values.flat(), depth + 1
        array = np.asarray(values)
        self._update(depth, array.astype(array.dtype.newbyteorder("<"), copy=False))

    def _update(self, level: int, array: Any) -> None:
        while len(self._parts) <= level:
            self._parts.append(hashlib.sha256())
        self._parts[level].update(np.ascontiguousarray(array).view(np.uint8).reshape(-1).data)

    def hexdigest(self) -> str:
        """Return the digest of all rows added."""
        return hashlib.sha256(b"".join(part.digest() for part in self._parts)).hexdigest()


NO_CLASS = -1


class FlatColumns:
    """Classes, boxes and sizes of a whole pack. Nothing is read but the index."""

    def __init__(self, pack: Pack) -> None:
        self.pack = pack

    @cached_property
    def pack_names(self) -> list[str]:
        """The names of the packs that this one is joined from, or its own."""
        return [printable(os.path.basename(pack.path.rstrip("/")) or pack.path) for pack in self.pack.packs]

    def ragged(self, name: str) -> Ragged:
        """Return a column of lists."""
        column = self.pack.column(name)
        assert isinstance(column, Ragged)
        return column

    @cached_property
    def labels(self) -> NDArray[Any]:
        """Class id of each image, (n,); -1 for none."""
        return np.asarray(self.pack.column("label"))

    @cached_property
    def sizes(self) -> NDArray[np.float32]:
        """Width and height of each image in pixels, (2, n)."""
        return np.stack([np.asarray(self.pack.column(name), np.float32) for name in ("width", "height")])

    @cached_property
    def boxes(self) -> NDArray[np.float32]:
        """Boxes of all images, float32 (m, 4)."""
        return np.asarray(self.ragged("boxes").flat(), np.float32).reshape(-1, 4)

    @cached_property
    def firsts(self) -> NDArray[Any]:
        """The row in `boxes` of the first box of each image, and the end: (n + 1,)."""
        offsets = self.ragged("boxes").offsets
        return np.asarray(offsets - offsets[0])

    @cached_property
    def box_labels(self) -> NDArray[Any]:
        """Class id of each of `boxes`, (m,); -1 for none."""
        if "box_labels" not in self.pack.manifest.fields:
            return np.full(len(self.boxes), NO_CLASS)
        column = self.ragged("box_labels")
        known = np.asarray(column.flat())
        if len(known) == len(self.boxes):
            return known
        ids = np.full(len(self.boxes), NO_CLASS, known.dtype)  # some images have boxes without classes
        ids[np.repeat(column.lengths > 0, np.diff(self.firsts))] = known
        return ids

    def records_of(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the record of each of these rows of `boxes`."""
        return np.asarray(np.searchsorted(self.firsts, rows, side="right") - 1, np.int64)
