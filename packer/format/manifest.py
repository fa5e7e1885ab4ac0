"""pack.json: what a pack is and how it was made; written last, so that a directory without one is no pack."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from packer.errors import AnyPath, DamagedPack, StorageError, UsageError

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
    """The index file of a shard; readers hold it against its checksum before they use it."""

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


@dataclass(frozen=True, slots=True)
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
    class_counts: Mapping[str, Any]
    """{"label": images of each class, "boxes": boxes of each class}, lists in id order."""
    options: Mapping[str, Any]
    """The options of the build that shape its result."""
    shards: tuple[ShardEntry, ...]
    rejected: tuple[Rejected, ...] = ()
    notes: tuple[str, ...] = ()
    """What the user was told once."""
    packer: str = ""
    """Version of packer that wrote the pack."""
    libraries: Mapping[str, str] = field(default_factory=dict)
    """Versions of the libraries that made its bytes."""
    version: int = FORMAT_VERSION

    def to_json(self) -> bytes:
        """The file's bytes: ASCII JSON with a digest over everything else in it."""
        content = self._content()
        return (json.dumps({**content, "digest": digest_of(content)}, indent=1, allow_nan=False) + "\n").encode("ascii")

    @property
    def digest(self) -> str:
        """SHA-256 over all that the manifest says, as hexadecimal digits: the name of this very pack."""
        return digest_of(self._content())

    def _content(self) -> dict[str, Any]:
        return {"format": "packer", **asdict(self)}


def digest_of(content: Mapping[str, Any]) -> str:
    """SHA-256 over the members of a manifest but its digest. Raises ValueError where one is no JSON."""
    rest = {k: v for k, v in content.items() if k != "digest"}
    canonical = json.dumps(rest, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(canonical.encode("ascii")).hexdigest()


def names_a_pack(path: AnyPath) -> bool:
    """Whether `path` is a pack, no folder of images; an unfinished one too, which `read_manifest` refuses by name."""
    folder = os.fsdecode(path)
    unfinished = folder.rstrip("/").endswith(PARTIAL_SUFFIX) and os.path.isdir(folder)
    return unfinished or os.path.isfile(os.path.join(folder, MANIFEST_NAME))


def read_manifest(pack: AnyPath) -> Manifest:
    """Read and check the pack.json of the directory `pack`.

    Raises UsageError where it is no pack at all, DamagedPack where it is one that cannot be trusted.
    """
    folder = os.fsdecode(pack)
    path = os.path.join(folder, MANIFEST_NAME)
    try:
        if os.path.getsize(path) > MAX_MANIFEST_BYTES:
            raise DamagedPack(path, f"is larger than {MAX_MANIFEST_BYTES} bytes")
        with open(path, "rb") as file:
            text = file.read()
    except (FileNotFoundError, NotADirectoryError):
        raise _no_pack(folder) from None
    except OSError as error:
        raise StorageError(path, error.strerror or str(error)) from None
    return parse_manifest(path, text)


def _no_pack(folder: str) -> UsageError:
    if not os.path.lexists(folder):
        partial = folder.rstrip("/") + PARTIAL_SUFFIX
        hint = f"its build did not finish ({partial} is there): run it again" if os.path.isdir(partial) else ""
        return UsageError(folder, "no such pack", hint or "build one: packer build FOLDER")
    if folder.rstrip("/").endswith(PARTIAL_SUFFIX):
        return UsageError(folder, "is an unfinished build, not a pack", "run the same packer build again")
    if os.path.isdir(folder):
        return UsageError(folder, f"is no pack: it holds no {MANIFEST_NAME}", "build one: packer build FOLDER")
    return UsageError(folder, "is a file, and a pack is a directory", "give the directory that packer build made")


def parse_manifest(path: str, text: bytes) -> Manifest:
    """The manifest in the bytes of a pack.json; `path` is for messages. Raises as `read_manifest`."""
    again = "restore it or build the pack again"
    try:
        content = json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)
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
            raise DamagedPack(path, "does not match its own digest: it was altered", again)
        manifest = _from_json(content)
        if manifest.to_json() != text:  # one way to write each manifest: every changed byte shows
            raise DamagedPack(path, "is not written as packer writes it: it was altered", again)
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise DamagedPack(path, f"is not as format version {version} has it: {error!r}", again) from None
    return manifest


def _from_json(content: dict[str, Any]) -> Manifest:
    del content["format"], content["digest"]
    content["shards"] = tuple(_shard(entry) for entry in content["shards"])
    content["rejected"] = tuple(Rejected(**entry) for entry in content["rejected"])
    for name in ("classes", "fields", "notes"):
        content[name] = tuple(content[name])
    if content["shape"] is not None:
        height, width, channels = content["shape"]
        content["shape"] = (int(height), int(width), int(channels))
        if min(content["shape"]) < 1 or max(content["shape"]) >= 1 << 31:
            raise ValueError(f"images of shape {content['shape']}")
    manifest = Manifest(**content)
    _check_values(manifest)
    if manifest.records != sum(shard.records for shard in manifest.shards):
        raise ValueError(f"{manifest.records} records, but its shards hold another number")
    if not manifest.records:
        raise ValueError("no records")
    return manifest


_CHOICES = {
    "encoding": ("raw", "jpeg", "png", "bmp", "copy"),
    "mode": ("rgb", "gray", "unchanged"),
    "dtype": (None, "uint8", "uint16"),
}
_INPUTS = frozenset(("found", "packed", "rejected", "skipped"))


def _check_values(manifest: Manifest) -> None:
    """JSON has types of its own: what readers rely on is held against the fields' types here."""
    for name, choices in _CHOICES.items():
        if getattr(manifest, name) not in choices:
            raise ValueError(f"the {name} is {getattr(manifest, name)!r}")
    texts = [manifest.container, manifest.packer, *manifest.classes, *manifest.fields, *manifest.notes]
    texts += [text for entry in manifest.rejected for text in (entry.path, entry.reason, entry.problem)]
    texts += [*manifest.libraries.values(), *manifest.options["labels"]]
    texts += [file.sha256 for shard in manifest.shards for file in (shard.container, shard.index)]
    if not all(isinstance(text, str) for text in texts):
        raise TypeError("a number or a list where a text belongs")
    numbers = [manifest.records, *manifest.counts.values()]
    for name, counts in manifest.class_counts.items():
        if name not in ("label", "boxes") or len(counts) != len(manifest.classes):
            raise ValueError(f"{len(manifest.classes)} classes, and other counts of {name!r}")
        numbers += counts
    if not all(type(number) is int and number >= 0 for number in numbers):
        raise TypeError("something else where a count belongs")
    if not manifest.counts.keys() >= _INPUTS:
        raise ValueError("the counts of the inputs are missing")


def _shard(entry: dict[str, Any]) -> ShardEntry:
    shard = ShardEntry(entry["records"], FileEntry(**entry["container"]), IndexEntry(**entry["index"]))
    for file in (shard.container, shard.index):
        if os.path.basename(file.name) != file.name or file.name in ("", ".", ".."):
            raise ValueError(f"file name {file.name!r} leaves the pack")
        if b"\0" in os.fsencode(file.name):
            raise ValueError(f"{file.name!r} is no file name")
        if type(file.bytes) is not int or not 0 <= file.bytes < 1 << 62:
            raise ValueError(f"size of {file.name} is {file.bytes!r}")
    if type(shard.index.crc32c) is not int or not 0 <= shard.index.crc32c < 1 << 32:
        raise ValueError(f"checksum of {shard.index.name} is {shard.index.crc32c!r}")
    if type(shard.records) is not int or not 0 <= shard.records < 1 << 48:
        raise ValueError(f"{shard.records!r} records in {shard.container.name}")
    return shard


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("a name stands twice")
    return result


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no number")
