"""The journal of an unfinished build: one checksummed line per finished shard, from which the same build resumes.

The first line holds the options of the build. Everything after the first line with a wrong checksum is ignored, so
shards whose lines were lost or damaged are packed again.
"""

from __future__ import annotations

import json
import os
from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from crc32c import crc32c
from xxhash import xxh3_128

from packer.format.digests import crc32c_of, sha256_of
from packer.format.lists import Changed
from packer.format.manifest import FileEntry, IndexEntry, Rejected, ShardEntry
from packer.system import open_regular
from packer.system.atomic import is_own_file, open_own
from packer.system.storage import storage_errors

MOST_FINGERPRINTS = 20_000_000
"""A build of more images makes none: it would have 40 bytes of each in memory until it ends."""
MAX_JOURNAL_BYTES = 1 << 31
"""Half of it is for fingerprints, 54 bytes each."""


@dataclass(slots=True)
class ShardResult:
    """The result of packing a shard; `entry` is None if none of its inputs could be packed."""

    entry: ShardEntry | None
    rejected: list[Rejected] = field(default_factory=list)
    changed: list[Changed] = field(default_factory=list)
    """Images that were decoded leniently."""
    counts: Counter[str] = field(default_factory=Counter)
    label_counts: Counter[int] = field(default_factory=Counter)
    box_counts: Counter[int] = field(default_factory=Counter)
    inputs: str = ""
    """Digest of the job: its rows of the table of inputs and their conversion."""
    sources: str = ""
    """Digest of the contents of its source files."""
    shapes: list[list[int]] = field(default_factory=list)
    """(height, width) of the images whose headers were read in the shard: at most two different ones."""
    losses: Counter[str] = field(default_factory=Counter)
    """What the mode loses of those images."""
    fingerprints: bytes = b""
    """Of its records, one after another; empty if none were made."""
    attempt: str = ""
    """Part of the names of its files, until it is recorded; see `packer.packing.write_shard`."""
    unchanged: bool = False
    """Whether an earlier, unfinished build wrote it and nothing has changed since."""

    def add_late(self, shape: tuple[int, int], lost: Iterable[str]) -> None:
        """Add an image whose header was read in the shard."""
        if len(self.shapes) < 2 and list(shape) not in self.shapes:
            self.shapes.append(list(shape))
        self.losses.update(lost)


class Journal:
    """The journal at `path`, read on creation; `head` is None if there is no build to resume."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.head: Mapping[str, Any] | None = None
        self.finished: dict[str, ShardResult] = {}
        """Result of each finished shard by the name of its container file."""
        self.failed = False
        """Whether the last attempt has ended by an error in its inputs, as the same build would again."""
        self._good_bytes = 0
        self._read()

    @property
    def finished_shards(self) -> int:
        """Number of finished shards that have a file."""
        return sum(result.entry is not None for result in self.finished.values())

    def _read(self) -> None:
        try:
            if not is_own_file(self.path) or os.path.getsize(self.path) > MAX_JOURNAL_BYTES:
                return
            with open_regular(self.path) as file:
                self._read_lines(file)
        except OSError:
            return  # there is none, or it is unreadable: everything is packed again

    def _read_lines(self, lines: Iterable[bytes]) -> None:
        for line in lines:
            content = checked_line(line)
            if content is None:
                return
            try:
                if self.head is None:
                    self.head = dict(content)
                elif "failed" in content:
                    self.failed = bool(content["failed"])
                else:
                    self.finished[content["name"]] = result_of(content)
            except (KeyError, TypeError, ValueError):
                return
            self._good_bytes += len(line)

    def begin(self, head: Mapping[str, Any]) -> None:
        """Write the first line of a new journal."""
        self.head, self.finished, self._good_bytes = dict(head), {}, 0
        self._append(self.head)

    def mark(self, failed: bool) -> None:
        """Record that a build has failed for its inputs, or is tried again. Raise StorageError on failure."""
        if self.finished and failed != self.failed:
            self._append({"failed": failed})
        self.failed = failed

    def add(self, name: str, result: ShardResult) -> None:
        """Record durably that the shard `name` is finished. Raise StorageError on failure."""
        self._append({"name": name, **content_of(result)})
        self.finished[name] = result

    def _append(self, content: Mapping[str, Any]) -> None:
        line = line_of(content)
        with storage_errors(self.path), open(open_own(self.path), "r+b") as file:
            file.seek(self._good_bytes)
            file.truncate(self._good_bytes)  # removes an incomplete line of a killed build
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
        self._good_bytes += len(line)


def line_of(content: Mapping[str, Any]) -> bytes:
    """Return a line of a journal."""
    text = json.dumps(content, separators=(",", ":"), allow_nan=False).encode("ascii")
    return b"%08x %b\n" % (crc32c(text), text)


def checked_line(line: bytes) -> dict[str, Any] | None:
    """Return the content of a line; None if it was altered."""
    try:
        content = json.loads(line[9:])
    except (ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) and line == line_of(content) else None


def content_of(result: ShardResult) -> dict[str, Any]:
    """Return a result as JSON values."""
    return {
        "entry": None if result.entry is None else asdict(result.entry),
        "rejected": [asdict(item) for item in result.rejected],
        "changed": [asdict(item) for item in result.changed],
        "counts": dict(result.counts),
        "label_counts": sorted(result.label_counts.items()),  # JSON keys cannot be integers
        "box_counts": sorted(result.box_counts.items()),
        "inputs": result.inputs,
        "sources": result.sources,
        "shapes": result.shapes,
        "losses": dict(result.losses),
        **({"fingerprints": b64encode(result.fingerprints).decode("ascii")} if result.fingerprints else {}),
    }


def result_of(content: dict[str, Any]) -> ShardResult:
    """Return the result of `content_of`. Raise KeyError, TypeError or ValueError if it is another value."""
    entry = content["entry"]
    return ShardResult(
        entry=None if entry is None else ShardEntry(
            int(entry["records"]), FileEntry(**entry["container"]), IndexEntry(**entry["index"])
        ),
        rejected=[Rejected(**item) for item in content["rejected"]],
        changed=[Changed(**item) for item in content["changed"]],
        counts=Counter(content["counts"]),
        label_counts=Counter(dict(content["label_counts"])),
        box_counts=Counter(dict(content["box_counts"])),
        inputs=str(content["inputs"]),
        sources=str(content["sources"]),
        shapes=content["shapes"],
        losses=Counter(content["losses"]),
        fingerprints=b64decode(content.get("fingerprints", "")),
    )  # fmt: skip


class SourcesDigest:
    """Digest of the contents of source files, in the order of a shard's rows."""

    def __init__(self) -> None:
        self._all = xxh3_128()

    def add(self, digest: bytes) -> None:
        """Add the XXH3-128 of the next file's bytes; b"" if it cannot be read."""
        self._all.update(bytes((len(digest),)) + digest)

    def hexdigest(self) -> str:
        """Return the digest of all files added."""
        return str(self._all.hexdigest())


def is_intact(entry: ShardEntry, folder: str) -> bool:
    """Return whether the two files of a shard are as they were written."""
    container, index = (os.path.join(folder, file.name) for file in (entry.container, entry.index))
    try:
        if not (is_own_file(container) and is_own_file(index)):
            return False
        if os.path.getsize(container) != entry.container.bytes or os.path.getsize(index) != entry.index.bytes:
            return False
        if sha256_of(container) != entry.container.sha256 or sha256_of(index) != entry.index.sha256:
            return False
        return crc32c_of(index) == entry.index.crc32c
    except OSError:
        return False
