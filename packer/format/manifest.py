"""pack.json, the manifest of a pack. It is written last, so that a directory without one is not a pack."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from functools import cache, cached_property
from typing import Any, get_args, get_origin, get_type_hints

from packer.errors import AnyPath, DamagedPack, StorageError, UsageError, option, printable
from packer.format.pack_paths import MANIFEST_NAME, no_pack, own_folder, version_named
from packer.model.annotation import (
    KINDS,
    MAP_DTYPES,
    MOST_CHANNELS,
    OF_PIXELS,
    Annotation,
    MaskFacts,
    PartSpec,
    PixelFacts,
    check_names,
)
from packer.system import open_regular

_hints = cache(get_type_hints)


def from_json_value(hint: Any, value: Any) -> Any:
    """Convert a JSON value to a type: objects to dataclasses, lists to tuples. Raise TypeError if it does not fit."""
    if hint is Any:
        return value
    if is_dataclass(hint):
        kind: Any = hint
        kinds = _hints(kind)
        # most values already have the right type: a large pack has 100,000 of them
        return kind(
            **{n: item if type(item) is kinds[n] else from_json_value(kinds[n], item) for n, item in value.items()}
        )
    origin, inner = get_origin(hint), get_args(hint)
    if type(None) in inner:
        return None if value is None else from_json_value(inner[0], value)
    are_alike = origin is list or inner[-1:] == (Ellipsis,)
    if are_alike and isinstance(value, list) and {inner[0]} == set(map(type, value)):  # a million classes, at once
        return value if origin is list else tuple(value)
    if origin is tuple:
        hints = inner[:1] * len(value) if inner[-1] is Ellipsis else inner
        return tuple(from_json_value(item_hint, item) for item_hint, item in zip(hints, value, strict=True))
    if origin is list:
        return [from_json_value(inner[0], item) for item in value]
    if origin is not None:
        return {name: from_json_value(inner[1], item) for name, item in value.items()}
    if type(value) is not hint:
        raise TypeError(f"{value!r} is not of type {hint.__name__}")
    return value


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


FORMAT_VERSION = 2
WINDOWS_VERSION = 3
"""That of packs whose records share images (`Manifest.windows`), of which earlier versions would show the whole."""
MAX_MANIFEST_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class Rejected:
    """An input that is not in the pack, and the reason."""

    path: str
    """Relative to the source; bytes that are not UTF-8 are surrogate escapes, as for `os.fsencode`."""
    reason: str
    """A code: bad-image, not-an-image, bad-label, no-label, no-image, ..."""
    problem: str
    """The problem as text, with the next step."""


@dataclass(frozen=True, slots=True)
class Origin:
    """A pack, or a file of another tool, that a pack was made from."""

    command: str
    """adopt, convert, edit, merge or split; PackWriter."""
    name: str
    """Name of its folder, or of the file."""
    digest: str
    """Digest of the pack (`Manifest.digest`), or of the file."""


SAME_MASKS = "build both with the same --classes, --mask-values and --ignore-id"
"""The next step where values of masks mean one thing in one pack, and another in the other."""


def of_parts(specs: Iterable[PartSpec]) -> dict[str, Any]:
    """Return what a manifest says of the parts of its records."""
    specs = list(specs)
    masks = {spec.name: MaskFacts(spec.dtype, spec.classes, spec.ignore) for spec in specs if spec.kind == "mask"}
    others = [spec for spec in specs if spec.kind in OF_PIXELS and spec.kind != "mask"]
    pixels = {spec.name: PixelFacts(spec.dtype, spec.channels, spec.ignore) for spec in others}
    return {"parts": {spec.name: spec.kind for spec in specs}, "masks": masks, "pixels": pixels}


@dataclass(frozen=True)
class Manifest:
    """The content of pack.json. Equal inputs and options give an equal manifest, without times or absolute paths."""

    container: str
    encoding: str
    """raw, jpeg, png, bmp, or copy (then each record has its own)."""
    mode: str
    """rgb, gray or unchanged: the color mode of the decoded images."""
    dtype: str | None
    """dtype of the decoded images if it is the same for all."""
    shape: tuple[int, int, int] | None
    """(height, width, channels) of the decoded images if it is the same for all."""
    classes: tuple[str, ...]
    fields: tuple[str, ...]
    """Annotation fields that at least one record has: label, boxes, box_fields.pose, ..."""
    records: int
    counts: Mapping[str, int]
    """found = packed + rejected + skipped; boxes, boxes_clamped, boxes_clipped, boxes_dropped, ..."""
    class_counts: Mapping[str, list[int]]
    """{"label": images of each class, "boxes": boxes of each class}, lists in id order."""
    options: Mapping[str, Any]
    """The build options that affect the result."""
    shards: tuple[ShardEntry, ...]
    rejected: tuple[Rejected, ...] = ()
    """The first rejected inputs; `packer.format.lists` reads all of them."""
    notes: tuple[str, ...] = ()
    """Messages of the build to the user."""
    flip_index: tuple[int, ...] | None = None
    """Which landmark or keypoint each one becomes in a mirrored image; not in the file if it is not known."""
    lists: Mapping[str, FileEntry] = field(default_factory=dict)
    """The files that list the rejected, skipped and changed inputs; not in pack.json if there are none."""
    tags: tuple[str, ...] = ()
    """Names of the tags (multi-label classes), in the order of their flags; not in the file if there are none."""
    parts: Mapping[str, str] = field(default_factory=dict)
    """The parts that records may have besides their image: name -> kind; not in the file if there are none."""
    masks: Mapping[str, MaskFacts] = field(default_factory=dict)
    """The values of those that are masks; not in the file if there are none."""
    pixels: Mapping[str, PixelFacts] = field(default_factory=dict)
    """The values of those that are maps and images; not in the file if there are none."""
    linked: Mapping[str, str] = field(default_factory=dict)
    """Container files that were not written for this pack: name -> path of the file, absolute or relative to the pack;
    "" if the file is in the pack's folder and shared with other packs. Their records are those that the index names;
    other readers may see more, other keys and other annotations in them. Not in pack.json if there are none."""
    companions: Mapping[str, FileEntry] = field(default_factory=dict)
    """Files that readers of the format want beside a shard, as the .idx of RecordIO: container file name -> file. They
    are made from the shard, and packer does not read them. Not in pack.json if there are none."""
    made_from: tuple[Origin, ...] = ()
    """What the pack was made from, if that is not a folder of images; not in pack.json if there is nothing."""
    packer: str = ""
    """Version of packer that wrote the pack."""
    libraries: Mapping[str, str] = field(default_factory=dict)
    """Versions of the libraries that produced its bytes."""
    windows: bool = False
    """Whether records are tiles that are windows on whole images, several on one; not in pack.json if they are not."""
    version: int = FORMAT_VERSION
    base: str = field(default="", compare=False)
    """The folder of its files if that is not the folder of pack.json: of a version of a pack; not in the file."""

    def without_windows(self) -> Manifest:
        """Return the manifest of a pack of the same records whose images are stored each by itself."""
        return replace(self, windows=False, version=FORMAT_VERSION)

    def check_no_windows(self, path: str, what: str) -> None:
        """Raise UsageError for `what` cannot be done with a pack, at `path`, of windows on images that they share."""
        if self.windows:
            problem = f"has tiles that are windows on images which they share, and {what}"
            step = f"store each tile first: packer convert {printable(path)} NEW {option('encode', 'jpeg')}"
            raise UsageError(path, problem, step)

    @property
    def part_specs(self) -> tuple[PartSpec, ...]:
        """The parts as a writer of shards wants them."""
        facts = {name: asdict(one) for name, one in self.masks.items()}
        facts |= {name: asdict(one) for name, one in self.pixels.items()}
        return tuple(PartSpec(name, kind, **facts.get(name, {})) for name, kind in self.parts.items())

    @property
    def masks_text(self) -> str:
        """What the values of masks are, for a message."""
        return "; ".join(facts.text for facts in self.masks.values())

    @property
    def parts_text(self) -> str:
        """What a record consists of: ``image, aux (bytes), depth (map, uint16)``."""
        return ", ".join(["image", *(spec.text for spec in self.part_specs)])

    @property
    def lenient(self) -> bool:
        """Whether it may hold copies of damaged files, which only a lenient decoder reads."""
        return self.encoding == "copy" and self.options.get("decoder") == "lenient"

    def to_json(self) -> bytes:
        """Return the content of the file: ASCII JSON with a digest of everything else in it."""
        text = json.dumps({**self._content([]), "digest": self.digest}, indent=1, allow_nan=False) + "\n"
        # json.dumps would take a second for 10,000 shards; only members of the manifest itself are indented by one
        if shards := ",\n".join(shard.to_text() for shard in self.shards):
            text = text.replace('\n "shards": []', f'\n "shards": [\n{shards}\n ]', 1)
        return text.encode("ascii")

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the content as hexadecimal digits, which identifies the pack."""
        return digest_of(self._content([shard.to_json() for shard in self.shards]))

    def _content(self, shards: list[dict[str, Any]]) -> dict[str, Any]:
        content = {"format": "packer", **{member.name: getattr(self, member.name) for member in fields(self)}}
        # not asdict of all, which would copy each of a million classes
        content.update(shards=shards, rejected=[asdict(row) for row in self.rejected])
        content["made_from"] = [asdict(origin) for origin in self.made_from]
        for name in ("lists", "companions", "masks", "pixels"):
            content[name] = {key: asdict(file) for key, file in content[name].items()}
        del content["base"]
        if self.flip_index is None:  # as packs of before have it, which must stay what they are
            del content["flip_index"]
        if not self.lists:
            del content["lists"]
        for name in ("tags", "parts", "masks", "pixels", "linked", "companions", "made_from"):
            if not content[name]:
                del content[name]
        if not self.windows:
            del content["windows"]
        return content

    def path_of(self, folder: str, name: str) -> str:
        """Return the path of the file `name` of the pack in `folder`, or of a version of it (``PACK@2``).

        Linked files may be elsewhere, and those of a version are in the pack.
        """
        return os.path.join(folder, self.base, self.linked.get(name) or name)

    @property
    def shard_bytes(self) -> int:
        """Size of all shards and their indexes."""
        return sum(shard.container.bytes + shard.index.bytes for shard in self.shards)

    @property
    def files(self) -> tuple[FileEntry, ...]:
        """Every file of the pack except pack.json."""
        shards = (file for shard in self.shards for file in (shard.container, shard.index))
        return (*shards, *self.companions.values(), *self.lists.values())


def digest_of(content: Mapping[str, Any]) -> str:
    """Return the SHA-256 of the members of a manifest except its digest. Raise ValueError if one is not JSON."""
    rest = {k: v for k, v in content.items() if k != "digest"}
    canonical = json.dumps(rest, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(canonical.encode("ascii")).hexdigest()


def read_manifest(pack: AnyPath) -> Manifest:
    """Read and check the pack.json of the directory `pack`, or of a version of it, ``PACK@2``.

    Raises:
        PackNotFound: The directory is not a pack.
        UsageError: The pack has another format version.
        DamagedPack: The manifest was altered.
        StorageError: The file cannot be read.
    """
    folder = os.fsdecode(pack)
    own = own_folder(folder)
    path = os.path.join(own, MANIFEST_NAME)
    try:
        with open_regular(path) as file:
            text = file.read() if os.path.getsize(path) <= MAX_MANIFEST_BYTES else None
    except (FileNotFoundError, NotADirectoryError):
        raise no_pack(folder) from None
    except OSError as error:
        raise StorageError(path, error.strerror or str(error)) from None
    if text is None:
        raise DamagedPack(path, f"is larger than {MAX_MANIFEST_BYTES} bytes", "restore it or build the pack again")
    manifest = parse_manifest(path, text)
    if own != folder and (named := version_named(folder)) is not None:
        object.__setattr__(manifest, "base", os.path.abspath(named[0]))
    return manifest


def parse_manifest(path: str, text: bytes) -> Manifest:
    """Parse the content of a pack.json; `path` is for messages. Raise the errors of `read_manifest`."""
    again = "restore it or build the pack again"
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DamagedPack(path, f"is not readable: {error}", again) from None
    if not isinstance(content, dict) or content.get("format") != "packer":
        raise DamagedPack(path, "is not a packer manifest", again)
    version = content.get("version")
    if not isinstance(version, int) or version < 1:
        raise DamagedPack(path, f"has no valid version: {version!r}", again)
    if version < FORMAT_VERSION:
        raise UsageError(path, f"has format version {version}, which was never released", "build the pack again")
    if version > WINDOWS_VERSION:
        raise UsageError(path, f"has format version {version}, newer than {WINDOWS_VERSION}", "update packer")
    try:
        if content.get("digest") != digest_of(content):
            problem = "does not match its own digest: it was altered"
        else:
            if b"\\ud" in text:  # half of a character, which no name of a file or class can have
                json.dumps(content, ensure_ascii=False).encode("utf-8", "surrogateescape")
            manifest = _from_json(content)
            manifest.__dict__["digest"] = content["digest"]  # of the same content, if the text is the same
            if manifest.to_json() == text:  # each manifest has one valid form, so that any changed byte is detected
                return manifest
            problem = "was not written by packer: it was altered"
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
        problem = f"does not follow format version {version}: {error!r}"
    raise DamagedPack(path, problem, again)


def _from_json(content: Mapping[str, Any]) -> Manifest:
    manifest: Manifest = from_json_value(Manifest, {k: v for k, v in content.items() if k not in ("format", "digest")})
    for name, choices in _CHOICES.items():
        if getattr(manifest, name) not in choices:
            raise ValueError(f"unknown {name} {getattr(manifest, name)!r}")
    if manifest.windows != (manifest.version >= WINDOWS_VERSION) or (
        manifest.windows and "window" not in manifest.fields
    ):
        raise ValueError(f"version {manifest.version} with windows {manifest.windows}")
    if manifest.shape is not None and not all(0 < side < 1 << 31 for side in manifest.shape):
        raise ValueError(f"images of shape {manifest.shape}")
    if not manifest.records or manifest.records != sum(shard.records for shard in manifest.shards):
        raise ValueError(f"{manifest.records} records, but its shards have another number, or none")
    if any(len(counts) != len(manifest.classes) for counts in manifest.class_counts.values()):
        raise ValueError(f"other counts than one for each of {len(manifest.classes)} classes")
    numbers = itertools.chain(manifest.counts.values(), *manifest.class_counts.values())
    if not all(0 <= number < 1 << 62 for number in numbers):
        raise ValueError("a count is negative, or too large")
    strange = [name for name in manifest.fields if name not in _FIELDS and not name.startswith("box_fields.")]
    if strange:
        raise ValueError(f"unknown fields {strange[:3]}")
    if not manifest.counts.keys() >= _INPUTS:
        raise ValueError("the counts of the inputs are missing")
    for name, value in manifest.options.items():
        _check_option(name, value)
    labels = manifest.options["labels"]
    files = manifest.options.get("label_files") or [""] * len(labels)
    if not _are_texts(labels) or not _are_texts(files) or len(files) != len(labels):
        raise ValueError(f"the labels are {labels!r:.80}, of {files!r:.80}")
    check_names(manifest.parts)
    if strange := [name for name, kind in manifest.parts.items() if kind not in KINDS]:
        raise ValueError(f"parts of an unknown kind {strange[:3]}")
    _check_masks(manifest)
    index = manifest.flip_index
    if index is not None and sorted(index) != list(range(len(index))):
        raise ValueError(f"the flip_index is {index}")
    for file in manifest.files:
        _check_file(file)
    for path in (*(file.name for file in manifest.files), *manifest.linked.values()):
        path.encode("utf-8", "surrogateescape")  # raises UnicodeEncodeError for what no path can be
    unknown = {*manifest.linked, *manifest.companions} - {shard.container.name for shard in manifest.shards}
    if unknown or any("\0" in path for path in manifest.linked.values()):
        files = sorted(unknown or manifest.linked.items())[:3]
        raise ValueError(f"linked files or companions {files} are not those of its shards")
    for shard in manifest.shards:
        if not 0 <= shard.index.crc32c < 1 << 32:
            raise ValueError(f"checksum of {shard.index.name} is {shard.index.crc32c}")
        if not 0 <= shard.records < 1 << 48:
            raise ValueError(f"{shard.records} records in {shard.container.name}")
    return manifest


def _check_masks(manifest: Manifest) -> None:
    of_pixels = {name for name, kind in manifest.parts.items() if kind in OF_PIXELS}
    masks = {name for name, kind in manifest.parts.items() if kind == "mask"}
    if manifest.masks.keys() != masks or manifest.pixels.keys() != of_pixels - masks:
        raise ValueError(f"values of {sorted({*manifest.masks, *manifest.pixels})}, but other parts have pixels")
    for spec in manifest.part_specs:
        if spec.name in of_pixels:
            check_pixels(spec)


def check_pixels(spec: PartSpec) -> None:
    """Raise ValueError if there is no part with pixels of this spec."""
    if spec.dtype not in (("uint8", "uint16") if spec.kind == "mask" else MAP_DTYPES):
        raise ValueError(f"the values of {spec.name} are of the type {spec.dtype!r}")
    most = 1 << (8 if spec.dtype == "uint8" else 16)
    if len(spec.classes) > most or not 0 <= (spec.ignore or 0) < most:
        raise ValueError(f"the classes and the value {spec.ignore} do not fit into {spec.name}")
    if not 1 <= spec.channels <= MOST_CHANNELS:
        raise ValueError(f"{spec.name} has a strange number of channels")


_CHOICES = {
    "encoding": ("raw", "jpeg", "png", "bmp", "copy"),
    "mode": ("rgb", "gray", "unchanged"),
    "dtype": (None, "uint8", "uint16"),
}
_FIELDS = frozenset(member.name for member in fields(Annotation)) - {"box_fields"}
_INPUTS = frozenset(("found", "packed", "rejected", "skipped"))


_NUMBERS = frozenset(("ignore_id", "max_pixels", "pad_value", "quality", "shard_bytes", "shuffle"))
_LISTS = frozenset(("columns", "drop_class", "label_files", "labels", "map", "only_class", "part"))


def _check_option(name: str, value: object) -> None:
    """Check a recorded option: a number, a list of texts, or anything that is written on a line."""
    if name == "repack" and isinstance(value, dict):
        for inner, of_repack in value.items():
            _check_option(f"{name}.{inner}", of_repack)
    elif not (
        _are_texts(value)
        if name.removeprefix("repack.") in _LISTS
        else value is None or (type(value) is int and abs(value) < 1 << 63)
        if name in _NUMBERS
        else value is None or isinstance(value, str | bool | int | float)
    ):
        raise ValueError(f"the option {name} is {value!r:.80}")


def _are_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _check_file(file: FileEntry) -> None:
    if os.path.basename(file.name) != file.name or file.name in ("", ".", "..") or "\0" in file.name:
        raise ValueError(f"file name {file.name!r} leaves the pack")
    if not 0 <= file.bytes < 1 << 62:
        raise ValueError(f"size of {file.name} is {file.bytes}")
