"""pack.json: what a pack is and how it was made; written last, so that a directory without one is not a pack."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, is_dataclass
from functools import cache, cached_property
from typing import Any, get_args, get_origin, get_type_hints

from packer.errors import AnyPath, DamagedPack, PackNotFound, StorageError, UsageError

MANIFEST_NAME = "pack.json"
PARTIAL_SUFFIX = ".partial"
FORMAT_VERSION = 2
MAX_MANIFEST_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One file of a pack: its name in the pack's directory, its size and its digest."""

    name: str
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class IndexEntry(FileEntry):
    """The index file of a shard; readers verify it against its checksum before they use it."""

    crc32c: int
    """CRC-32C of the whole file: ten times as fast as its SHA-256, and finds what disks and copies do to files."""


@dataclass(frozen=True, slots=True)
class ShardEntry:
    """One shard: its container file, its index file, and how many records both hold."""

    records: int
    container: FileEntry
    index: IndexEntry


@dataclass(frozen=True, slots=True)
class Rejected:
    """One input that is not in the pack, and why."""

    path: str
    """Relative to the source; bytes that are not UTF-8 as surrogate escapes (`os.fsencode` gives them back)."""
    reason: str
    """A code: bad-image, not-an-image, bad-label, no-label, no-image, ..."""
    problem: str
    """In words, with the next step."""


@dataclass(frozen=True)
class Manifest:
    """All that pack.json says. Equal inputs and options give an equal manifest: it holds no time and no place."""

    container: str
    encoding: str
    """raw, jpeg, png, bmp, or copy (then each record has its own)."""
    mode: str
    """rgb, gray or unchanged: what the images are decoded to."""
    dtype: str | None
    """Of the decoded images where all share it."""
    shape: tuple[int, int, int] | None
    """(height, width, channels) of the decoded images where all share it."""
    classes: tuple[str, ...]
    fields: tuple[str, ...]
    """Annotation fields that at least one record has: label, boxes, landmarks, polygons, keypoints, ..."""
    records: int
    counts: Mapping[str, int]
    """found = packed + rejected + skipped; boxes, boxes_clamped, boxes_clipped, boxes_dropped, ..."""
    class_counts: Mapping[str, list[int]]
    """{"label": images of each class, "boxes": boxes of each class}, lists in id order."""
    options: Mapping[str, Any]
    """The options of the build that shape its result."""
    shards: tuple[ShardEntry, ...]
    rejected: tuple[Rejected, ...] = ()
    notes: tuple[str, ...] = ()
    """What the user was told once."""
    flip_index: tuple[int, ...] | None = None
    """Which landmark or keypoint each one becomes in a mirrored image; not in the file if it is not known."""
    packer: str = ""
    """Version of packer that wrote the pack."""
    libraries: Mapping[str, str] = field(default_factory=dict)
    """Versions of the libraries that made its bytes."""
    version: int = FORMAT_VERSION

    def to_json(self) -> bytes:
        """Return the file's bytes: ASCII JSON with a digest over everything else in it."""
        content = {**self._content(), "digest": self.digest}
        return (json.dumps(content, indent=1, allow_nan=False) + "\n").encode("ascii")

    @cached_property
    def digest(self) -> str:
        """SHA-256 over all that the manifest says, as hexadecimal digits: the name of this very pack."""
        return digest_of(self._content())

    def _content(self) -> dict[str, Any]:
        content = {"format": "packer", **asdict(self)}
        if self.flip_index is None:  # as packs of before have it, which must stay what they are
            del content["flip_index"]
        return content


def digest_of(content: Mapping[str, Any]) -> str:
    """Return the SHA-256 over the members of a manifest but its digest. Raises ValueError if one is not JSON."""
    rest = {k: v for k, v in content.items() if k != "digest"}
    canonical = json.dumps(rest, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(canonical.encode("ascii")).hexdigest()


def names_a_pack(path: AnyPath) -> bool:
    """Return whether `path` is a pack and not a folder of images; also an unfinished one, which is refused by name."""
    folder = os.fsdecode(path)
    unfinished = folder.rstrip("/").endswith(PARTIAL_SUFFIX) and os.path.isdir(folder)
    return unfinished or os.path.isfile(os.path.join(folder, MANIFEST_NAME))


def read_manifest(pack: AnyPath) -> Manifest:
    """Read and check the pack.json of the directory `pack`.

    Raises:
        PackNotFound: It is not a pack.
        UsageError: It is a pack of another version of the format.
        DamagedPack: It is a pack that cannot be trusted.
        StorageError: The file cannot be read.
    """
    folder = os.fsdecode(pack)
    path = os.path.join(folder, MANIFEST_NAME)
    try:
        with open(path, "rb") as file:
            text = file.read() if os.path.getsize(path) <= MAX_MANIFEST_BYTES else None
    except (FileNotFoundError, NotADirectoryError):
        raise _no_pack(folder) from None
    except OSError as error:
        raise StorageError(path, error.strerror or str(error)) from None
    if text is None:
        raise DamagedPack(path, f"is larger than {MAX_MANIFEST_BYTES} bytes", "restore it or build the pack again")
    return parse_manifest(path, text)


def _no_pack(folder: str) -> PackNotFound:
    if not os.path.lexists(folder):
        partial = folder.rstrip("/") + PARTIAL_SUFFIX
        hint = f"its build did not finish ({partial} is there): run it again" if os.path.isdir(partial) else ""
        return PackNotFound(folder, "no such pack", hint or "build one: packer build FOLDER")
    if folder.rstrip("/").endswith(PARTIAL_SUFFIX):
        return PackNotFound(folder, "is an unfinished build, not a pack", "run the same packer build again")
    if os.path.isdir(folder):
        problem = f"is not a pack: it holds no {MANIFEST_NAME}"
        return PackNotFound(folder, problem, "build one: packer build FOLDER")
    return PackNotFound(folder, "is a file, and a pack is a directory", "give the directory that packer build made")


def parse_manifest(path: str, text: bytes) -> Manifest:
    """Return the manifest in the bytes of a pack.json; `path` is for messages. Raises as `read_manifest`."""
    again = "restore it or build the pack again"
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DamagedPack(path, f"is not readable: {error}", again) from None
    if not isinstance(content, dict) or content.get("format") != "packer":
        raise DamagedPack(path, "is not a manifest of packer", again)
    version = content.get("version")
    if not isinstance(version, int) or version < 1:
        raise DamagedPack(path, f"has no valid version: {version!r}", again)
    if version < FORMAT_VERSION:
        raise UsageError(path, f"has format version {version}, which was never released", "build the pack again")
    if version > FORMAT_VERSION:
        raise UsageError(path, f"has format version {version}, newer than {FORMAT_VERSION}", "update packer")
    try:
        if content.get("digest") != digest_of(content):
            problem = "does not match its own digest: it was altered"
        else:
            manifest = _from_json(content)
            if manifest.to_json() == text:  # one way to write each manifest: every changed byte shows
                return manifest
            problem = "is not written as packer writes it: it was altered"
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
        problem = f"is not as format version {version} has it: {error!r}"
    raise DamagedPack(path, problem, again)


def _from_json(content: Mapping[str, Any]) -> Manifest:
    manifest: Manifest = _typed(Manifest, {k: v for k, v in content.items() if k not in ("format", "digest")})
    for name, choices in _CHOICES.items():
        if getattr(manifest, name) not in choices:
            raise ValueError(f"the {name} is {getattr(manifest, name)!r}")
    if manifest.shape is not None and not all(0 < side < 1 << 31 for side in manifest.shape):
        raise ValueError(f"images of shape {manifest.shape}")
    if not manifest.records or manifest.records != sum(shard.records for shard in manifest.shards):
        raise ValueError(f"{manifest.records} records, and its shards hold another number, or none")
    if any(len(counts) != len(manifest.classes) for counts in manifest.class_counts.values()):
        raise ValueError(f"other counts than one for each of {len(manifest.classes)} classes")
    if not manifest.counts.keys() >= _INPUTS or not isinstance(manifest.options["labels"], list):
        raise ValueError("the counts of the inputs or the labels are missing")
    index = manifest.flip_index
    if index is not None and sorted(index) != list(range(len(index))):
        raise ValueError(f"the flip_index is {index}")
    for shard in manifest.shards:
        _check_shard(shard)
    return manifest


_CHOICES = {
    "encoding": ("raw", "jpeg", "png", "bmp", "copy"),
    "mode": ("rgb", "gray", "unchanged"),
    "dtype": (None, "uint8", "uint16"),
}
_INPUTS = frozenset(("found", "packed", "rejected", "skipped"))


def _check_shard(shard: ShardEntry) -> None:
    for file in (shard.container, shard.index):
        if os.path.basename(file.name) != file.name or file.name in ("", ".", "..") or "\0" in file.name:
            raise ValueError(f"file name {file.name!r} leaves the pack")
        if not 0 <= file.bytes < 1 << 62:
            raise ValueError(f"size of {file.name} is {file.bytes}")
    if not 0 <= shard.index.crc32c < 1 << 32:
        raise ValueError(f"checksum of {shard.index.name} is {shard.index.crc32c}")
    if not 0 <= shard.records < 1 << 48:
        raise ValueError(f"{shard.records} records in {shard.container.name}")


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def _typed(hint: Any, value: Any) -> Any:
    """Return a JSON value as a value of this type: dataclasses from objects, tuples from lists. Raises TypeError."""
    origin, inner = get_origin(hint), get_args(hint)
    if hint is Any:
        return value
    if is_dataclass(hint):
        kind: Any = hint
        return kind(**{name: _typed(_hints(kind)[name], item) for name, item in value.items()})
    if type(None) in inner:
        return None if value is None else _typed(inner[0], value)
    if origin is tuple:
        hints = inner[:1] * len(value) if inner[-1] is Ellipsis else inner
        return tuple(_typed(item_hint, item) for item_hint, item in zip(hints, value, strict=True))
    if origin is list:
        return [_typed(inner[0], item) for item in value]
    if origin is not None:
        return {name: _typed(inner[1], item) for name, item in value.items()}
    if type(value) is not hint:
        raise TypeError(f"{value!r} is not of type {hint.__name__}")
    return value
