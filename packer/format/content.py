"""The digest of what a pack holds, equal for the same records in any container, however they are cut into shards.

`content_digest` reads only the indexes: keys, the checksum (CRC-32C) and size of each image, its shape and encoding,
and all labels with the names of their classes. It proves that two packs say the same of themselves; a checksum of
32 bits finds accidents, but can be forged. `deep_digest` reads every image, verifies it, and digests the bytes.
Neither covers paths, source digests, offsets or the lists of rejected inputs.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

import numpy as np

from packer.format.indexes import Indexes
from packer.format.manifest import Manifest
from packer.format.pack import Pack
from packer.model.annotation import Progress
from packer.model.columns import column, present
from packer.model.fields import FIELDS
from packer.model.parts import column_of
from packer.model.ragged import Ragged

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
    return _joined(manifest, _of_columns(indexes, manifest, (*FACTS, *parts)))


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
    digests = _of_columns(pack.indexes, pack.manifest, facts)
    images, parts = hashlib.sha256(), {name: hashlib.sha256() for name in names}
    progress.stage("reading", len(pack), "records")
    for number in range(len(pack)):
        images.update(pack.record(number))
        for name, digest in parts.items():
            digest.update(pack.part(number, name) or b"")
        if number % RECORDS_A_REPORT == 0:
            progress.advance(min(RECORDS_A_REPORT, len(pack) - number))
    of_bytes = {name: digest.hexdigest() for name, digest in parts.items()}
    return _joined(pack.manifest, {**digests, "images": images.hexdigest(), **of_bytes})


def _joined(manifest: Manifest, digests: dict[str, str]) -> str:
    content = {
        "packer.content": VERSION,
        "records": manifest.records,
        "classes": manifest.classes,
        "tags": manifest.tags,
        "columns": digests,
        **({"parts": dict(sorted(manifest.parts.items()))} if manifest.parts else {}),
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
        while isinstance(values, Ragged):  # polygons have lists of lists
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
