"""The files of a pack as its manifest names them, and their JSON: a large pack has 10,000 shards."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

INDEX_SUFFIX = ".index.arrow"


@dataclass(frozen=True, slots=True)
class FileEntry:
    """A file of a pack: its name in the pack's directory, its size and its digest."""

    name: str
    bytes: int
    sha256: str

    def to_json(self) -> dict[str, Any]:
        """Return the members of the object in a manifest."""
        return {"name": self.name, "bytes": self.bytes, "sha256": self.sha256}


@dataclass(frozen=True, slots=True)
class IndexEntry(FileEntry):
    """The index file of a shard, whose checksum readers verify before use."""

    crc32c: int
    """CRC-32C of the whole file, which detects accidental damage and is ten times as fast as SHA-256."""

    def to_json(self) -> dict[str, Any]:
        """Return the members of the object in a manifest."""
        return {**FileEntry.to_json(self), "crc32c": self.crc32c}


@dataclass(frozen=True, slots=True)
class ShardEntry:
    """A shard: its container file, its index file, and the number of records in each."""

    records: int
    container: FileEntry
    index: IndexEntry

    def to_json(self) -> dict[str, Any]:
        """Return what `dataclasses.asdict` does, ten times as fast."""
        return {"records": self.records, "container": self.container.to_json(), "index": self.index.to_json()}

    def to_text(self) -> str:
        """Return the JSON in a manifest, as json.dumps writes it with an indent, which takes ten times as long."""
        files = (self.container, self.index)
        container, index = (json.dumps(file.to_json(), separators=(",\n    ", ": "))[1:-1] for file in files)
        return (
            f'  {{\n   "records": {self.records},\n   "container": {{\n    {container}\n   }},\n'
            f'   "index": {{\n    {index}\n   }}\n  }}'
        )
