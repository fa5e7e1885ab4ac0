"""What can be known of a pack whose manifest is damaged or gone.

Where the manifest can be mended so that its own digest is right again, it is the original. Else it is made anew from
the shards; what they do not say (rejected inputs, notes, options) is lost, or stands in what is left of the old one.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from packer.containers import CONTAINERS, open_container
from packer.errors import DamagedPack, PackerError
from packer.format.digests import crc32c_of, sha256_of
from packer.format.index import INDEX_SUFFIX
from packer.format.manifest import MANIFEST_NAME, FileEntry, IndexEntry, Manifest, ShardEntry
from packer.format.repair_mended_manifest import checked, loaded, mend
from packer.format.repair_salvage import Shard, names_of, readable_bytes, salvage
from packer.format.verify_files import SHARD_NAME
from packer.packing.summary import library_versions
from packer.packing.table import fields_of


@dataclass(frozen=True, slots=True)
class Found:
    """A manifest to repair by."""

    manifest: Manifest
    mended: bool = False
    """It was damaged, and this is the original."""
    digests_known: bool = True
    """False: it was made anew, and its digests are those of the files as they are now."""
    proven: frozenset[str] = frozenset()
    """Files whose digests stand in what is left of the old manifest."""
    notes: tuple[str, ...] = ()

    def proves(self, file: FileEntry) -> bool:
        """Whether a file is surely the original, by a manifest that was made anew."""
        return file.name in self.proven


def find_manifest(folder: str, error: PackerError) -> Found:
    """The manifest of the pack in `folder`, whose pack.json is damaged or missing; raises `error` where it is none."""
    text = bytes(readable_bytes(os.path.join(folder, MANIFEST_NAME)))
    pairs = _pairs(folder)
    if not pairs:
        raise error
    files = {name: _digests(os.path.join(folder, name)) for pair in pairs for name in pair[1:]}
    mended = mend(text, files) if text else None
    if mended is not None:
        return Found(mended, mended=True)
    proven = frozenset(name for name, file in files.items() if file is not None and file.sha256.encode() in text)
    return _made_anew(folder, pairs, files, proven, text)


def _pairs(folder: str) -> list[tuple[str, str, str]]:
    """(container, file, index file) of each shard, by their names."""
    names = os.listdir(folder)
    stems = sorted({found[1] for name in names if (found := SHARD_NAME.match(name))})
    suffixes = {open_container(name).suffix: name for name in CONTAINERS} | {".mdb": "lmdb"}
    seen = Counter(suffixes[suffix] for name in names if (suffix := os.path.splitext(name)[1]) in suffixes)
    if not seen:
        return []
    container = seen.most_common(1)[0][0]
    suffix = open_container(container).suffix
    return [(container, stem + (".mdb" if stem == "data" else suffix), stem + INDEX_SUFFIX) for stem in stems]


def _digests(path: str) -> IndexEntry | None:
    with suppress(OSError):
        return IndexEntry(os.path.basename(path), os.path.getsize(path), sha256_of(path), crc32c_of(path))
    return None


@dataclass(slots=True)
class _Facts:
    """What the records of a pack say about it."""

    records: int = 0
    encodings: set[str] = field(default_factory=set)
    shapes: set[tuple[int, int, int]] = field(default_factory=set)
    dtypes: set[str] = field(default_factory=set)
    fields: set[str] = field(default_factory=set)
    classes: Counter[tuple[int, str]] = field(default_factory=Counter)
    copied: bool = True
    """Each image is the very file that it came from."""

    def read(self, shard: Shard) -> None:
        """Take in the records of a shard."""
        from xxhash import xxh3_128_digest

        for record, text in salvage(shard, None).records:
            self.records += 1
            self.encodings.add(record.encoding)
            self.shapes.add(record.shape)
            self.dtypes.add(record.dtype)
            self.fields.update(fields_of(record.annotation))
            self.copied = self.copied and xxh3_128_digest(record.data) == record.source_xxh3
            if text is not None:
                self.classes.update(names_of([text]))

    def class_names(self, hints: Any) -> tuple[str, ...]:
        """Names in id order; what no record names is taken from `hints`, else it is its number."""
        hinted = list(hints) if isinstance(hints, list) and all(isinstance(name, str) for name in hints) else []
        most = max([-1, *(i for i, _ in self.classes)])
        names = [str(i) for i in range(most + 1)]
        names[: len(hinted)] = hinted
        for (i, name), _ in reversed(self.classes.most_common()):
            names[i] = name
        return tuple(names)

    def encoding(self) -> str:
        """As the manifest calls it."""
        (only,) = self.encodings if len(self.encodings) == 1 else ("copy",)
        return "copy" if self.copied or only not in ("raw", "jpeg", "png", "bmp") else only

    def mode(self) -> str:
        """One in which the images decode to what they are."""
        channels = {shape[2] for shape in self.shapes}
        if self.dtypes == {"uint8"} and channels in ({3}, {1}):
            return "rgb" if channels == {3} else "gray"
        return "unchanged"


def _made_anew(
    folder: str,
    pairs: list[tuple[str, str, str]],
    files: dict[str, IndexEntry | None],
    proven: frozenset[str],
    text: bytes,
) -> Found:
    facts = _Facts()
    for container, name, index in pairs:
        paths = os.path.join(folder, name), os.path.join(folder, index)
        facts.read(Shard(container, *paths, name in proven, False, None))
    if not facts.records:
        raise DamagedPack(folder, "nothing vouches for any of its records", "build the pack again")
    old = loaded(text)
    bare = Manifest(
        container=pairs[0][0],
        encoding=facts.encoding(),
        mode=facts.mode(),
        dtype=facts.dtypes.copy().pop() if len(facts.dtypes) == 1 else None,
        shape=facts.shapes.copy().pop() if len(facts.shapes) == 1 else None,
        classes=facts.class_names(old.get("classes")),
        fields=tuple(sorted(facts.fields)),
        records=facts.records,
        counts={"found": facts.records, "packed": facts.records, "rejected": 0, "skipped": 0},
        class_counts={},
        options={"labels": []},
        shards=tuple(_entry(name, index, files) for _, name, index in pairs),
        packer=_version(),
        libraries=library_versions(),
    )
    notes = [f"{MANIFEST_NAME} was damaged or missing, and was made anew from the shards"]
    manifest = bare
    if isinstance(options := old.get("options"), dict) and "labels" in options:
        hinted = replace(bare, options=options, mode=old.get("mode", bare.mode))
        if checked(hinted) is not None:
            manifest = hinted
            notes.append(f"options and classes are those of the damaged {MANIFEST_NAME}, which nothing vouches for")
    if manifest is bare:
        notes.append("not known: the options of the build, names of classes that no record has, inputs and notes")
    else:
        notes.append("not known: rejected and skipped inputs, notes")
    notes += _gaps(pairs)
    return Found(manifest, digests_known=False, proven=proven, notes=tuple(notes))


def _entry(name: str, index: str, files: dict[str, IndexEntry | None]) -> ShardEntry:
    """A shard as its files are now; the number of its records is known when they are read."""
    container, rows = (files[n] or IndexEntry(n, 0, "", 0) for n in (name, index))
    return ShardEntry(0, FileEntry(container.name, container.bytes, container.sha256), rows)


def _gaps(pairs: list[tuple[str, str, str]]) -> list[str]:
    numbers = [int(number[0]) for _, name, _ in pairs if (number := re.findall(r"\d+", name))]
    missing = sorted(set(range(max(numbers, default=-1) + 1)) - set(numbers))
    return [f"shards that are missing: {', '.join(map(str, missing))}"] if missing else []


def _version() -> str:
    import packer

    return packer.__version__
