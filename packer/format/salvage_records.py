"""Finds the good records of a damaged shard, and rebuilds a manifest from them."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from xxhash import xxh3_128_digest

from packer import __version__
from packer.containers import CONTAINERS, open_container
from packer.containers.container import Entry, PlaceList, Places, ShardSpec
from packer.errors import DamagedPack, PackerError, WorkerDied, plural
from packer.format.index import IndexBuilder, read_index
from packer.format.manifest import FileEntry, IndexEntry, Manifest, ShardEntry
from packer.format.pack_paths import INDEX_SUFFIX, MANIFEST_NAME
from packer.format.verify import SHARD_NAME
from packer.format.verify_records import IndexRows, Window, digest_of_written, record_problems
from packer.model.annotation import KINDS, PartSpec, Record, names_in
from packer.model.annotation_columns import column
from packer.model.fields import CLASS_IDS, listed_fields
from packer.model.record_json import annotation_json, class_names, part_sizes, path_text, record_from_json
from packer.system.pool import Pool


@dataclass(frozen=True, slots=True)
class LostRecord:
    """A record that can no longer be verified, or several records of a shard with unknown keys."""

    shard: str
    key: str | None
    path: str | None
    """Path of its source file, from the index."""
    records: int = 1

    def __str__(self) -> str:
        if self.key is None:
            return f"{self.shard}: {plural(self.records, 'record')}, keys unknown"
        return f"{self.shard}: record {self.key}" + ("" if self.path is None else f" ({self.path})")


@dataclass(frozen=True, slots=True)
class FoundShard:
    """A shard of the damaged pack."""

    entry: ShardEntry
    format: str
    """``--format``."""
    folder: str
    container_intact: bool
    index_intact: bool
    known: bool
    """Whether the manifest describes its files and records."""
    is_linked: bool = False
    """Whether the container was written for another pack (`Manifest.linked`)."""

    @property
    def name(self) -> str:
        """Name of the container file."""
        return self.entry.container.name

    @property
    def container(self) -> str:
        """Path of the container."""
        return os.path.join(self.folder, self.entry.container.name)

    @property
    def index(self) -> str:
        """Path of the index."""
        return os.path.join(self.folder, self.entry.index.name)


def good_records(shard: FoundShard, lost: list[LostRecord], classes: dict[int, str] | None = None) -> Iterator[Record]:
    """Yield the good records of a shard, in key order.

    An image is good if it matches its checksum in the index. Its annotation is good if the index is intact, or if the
    container has the same one, or if the container cannot be read and the index is not known to be altered.

    Args:
        shard: The shard.
        lost: Receives the other records.
        classes: Receives the class names in the container's annotations, by id.
    """
    entries = {} if shard.index_intact else {entry.key: entry for entry in _scan_apart(shard)}
    for record in _good(shard, entries, lost):
        entry = entries.get(record.key)
        if classes is not None and entry is not None:  # of those only: other ids may be meant in other containers
            with suppress(ValueError, TypeError, KeyError, AttributeError, RecursionError):
                classes.update(class_names(entry.annotation or b""))
        yield record


def _good(shard: FoundShard, entries: dict[str, Entry], lost: list[LostRecord]) -> Iterator[Record]:
    with Window(shard.container) as window:
        try:
            table = read_index(shard.index)
        except PackerError:
            yield from _without_index(shard, entries, window, lost)
            return
        rows = IndexRows(table, shard.index)
        for row, problem in enumerate(record_problems(shard.container, table)):
            record = None
            if problem is None:
                record = _vouched(shard, rows, row, window, entries)
            if record is None:
                lost.append(LostRecord(shard.name, rows.key(row), path_text(rows.path(row))))
            else:
                yield record


def _vouched(shard: FoundShard, rows: IndexRows, row: int, window: Window, entries: dict[str, Entry]) -> Record | None:
    try:
        data = bytes(window.bytes(rows.number("offset", row), rows.number("size", row)))
        record = rows.record(row, data, rows.parts(row, window))
        entry = entries.get(record.key)
        if shard.index_intact or (entry is None and not shard.known):
            return record
        if entry is None or entry.annotation is None:
            return None
        parts = {part.name: part.data for part in record.parts}
        same = annotation_json(record_from_json(entry.annotation, b"", parts), ()) == annotation_json(record, ())
    except (PackerError, ValueError):
        return None
    return record if same else None


def _without_index(
    shard: FoundShard, entries: dict[str, Entry], window: Window, lost: list[LostRecord]
) -> Iterator[Record]:
    kept = 0
    if shard.format == "tfrecord":  # its frames have checksums
        for entry in entries.values():
            with suppress(ValueError):
                yield _record_of(entry, window)
                kept += 1
    if missing := (shard.entry.records if shard.known else len(entries)) - kept:
        lost.append(LostRecord(shard.name, None, None, missing))


def _record_of(entry: Entry, window: Window) -> Record:
    parts = {name: b"" for name, size in part_sizes(entry.annotation).items() if not size}  # some have no place
    parts |= {name: bytes(window.bytes(*place)) for name, place in entry.parts.items()}
    return record_from_json(entry.annotation or b"", bytes(window.bytes(entry.offset, entry.size)), parts)


def _scan_apart(shard: FoundShard) -> list[Entry]:
    """Scan a container in a separate process, because a damaged file may crash the library of its format."""
    with suppress(WorkerDied), Pool(1, None, "packer.containers") as pool:
        for _, entries in pool.run(_scan, [(shard.format, shard.container)]):
            return list(entries)
    return []


def _scan(job: tuple[str, str], *_: Any) -> list[Entry]:
    entries: list[Entry] = []
    with suppress(PackerError):  # entries found before an error count
        entries.extend(open_container(job[0]).scan(job[1]))
    return entries


def shards_in(folder: str) -> Manifest | None:
    """Return a manifest that only lists the shards in a folder, by name; None if there are none."""
    names = os.listdir(folder)
    formats = {open_container(name).suffix: name for name in CONTAINERS} | {".mdb": "lmdb"}
    stems: dict[str, set[str]] = {}
    for name in names:
        if found := SHARD_NAME.match(name):
            stems.setdefault(found[1], set()).add(name[len(found[1]) :])
    seen = Counter(formats[suffix] for suffixes in stems.values() for suffix in suffixes if suffix in formats)
    if not seen:
        return None
    container = seen.most_common(1)[0][0]
    shards = []
    for stem in sorted(stems):
        file = stem + (".mdb" if stem.startswith("data") else open_container(container).suffix)
        size = os.path.getsize(os.path.join(folder, file)) if file in names else 0
        shards.append(ShardEntry(0, FileEntry(file, size, ""), IndexEntry(stem + INDEX_SUFFIX, 0, "", 0)))
    return Manifest(
        container=container,
        encoding="copy",
        mode="unchanged",
        dtype=None,
        shape=None,
        classes=(),
        fields=(),
        records=0,
        counts={"found": 0, "packed": 0, "rejected": 0, "skipped": 0},
        class_counts={},
        options={"labels": []},
        shards=tuple(shards),
        packer=__version__,
    )


def manifest_of(listed: Manifest, shards: Iterable[FoundShard]) -> tuple[Manifest, tuple[str, ...]]:
    """Return a manifest rebuilt from the good records of these shards, and notes about what is missing in it.

    Raises:
        DamagedPack: There is no good record.
    """
    encodings, dtypes, fields = set[str](), set[str](), set[str]()
    shapes = set[tuple[int, int, int]]()
    labels, classes, copied, tags = {-1}, dict[int, str](), True, 0
    parts = dict[str, str]()
    folder = ""
    for shard in shards:
        folder = shard.folder
        with suppress(PackerError):  # an index that stays names parts that no record may have
            parts |= dict.fromkeys(names_in(read_index(shard.index).column_names), KINDS[0])
        for record in good_records(shard, [], classes):
            encodings.add(record.encoding)
            shapes.add(record.shape)
            dtypes.add(record.dtype)
            fields.update(listed_fields(record.annotation))
            parts |= dict.fromkeys((part.name for part in record.parts), KINDS[0])
            a = record.annotation
            labels.update(*(np.atleast_1d(ids).tolist() for n in CLASS_IDS if (ids := getattr(a, n)) is not None))
            tags = max(tags, 0 if a.tags is None else len(a.tags))
            copied = copied and xxh3_128_digest(record.data) == record.source_xxh3
    if not encodings:
        raise DamagedPack(folder, "none of its records can be verified", "build the pack again")
    encoding = "copy" if copied or len(encodings) > 1 else min(encodings)
    channels = {shape[2] for shape in shapes} if dtypes == {"uint8"} else set()
    manifest = replace(
        listed,
        encoding=encoding if encoding in ("raw", "jpeg", "png", "bmp") else "copy",
        mode="rgb" if channels == {3} else "gray" if channels == {1} else "unchanged",
        dtype=min(dtypes) if len(dtypes) == 1 else None,
        shape=min(shapes) if len(shapes) == 1 else None,
        classes=tuple(classes.get(i, str(i)) for i in range(max(labels) + 1)),
        fields=tuple(sorted(fields)),
        tags=tuple(map(str, range(tags))),
        parts=dict(sorted(parts.items())),
    )
    numbers = [int(digits) for s in listed.shards if (digits := "".join(filter(str.isdigit, s.index.name)))]
    missing = sorted(set(range(max(numbers, default=-1) + 1)) - set(numbers))
    notes = [f"{MANIFEST_NAME} was damaged or missing, and was rebuilt from the shards"]
    notes.append("unknown: the options of the build, names of classes that no record has and of tags, inputs and notes")
    notes += (
        [f"unknown: whether {', '.join(sorted(parts))} are masks, and of what: they are bytes now"] if parts else []
    )
    notes += [f"shards that are missing: {', '.join(map(str, missing))}"] if missing else []
    return manifest, tuple(notes)


def class_counts_of(indexes: Iterable[str], classes: int) -> tuple[dict[str, list[int]], int]:
    """Return `Manifest.class_counts` of these index files, and the number of boxes."""
    counters: dict[str, Counter[int]] = {"label": Counter(), "boxes": Counter()}
    boxes = 0
    for index in indexes:
        table = read_index(index)
        rows: dict[str, Any] = {name: column(table, name) for name in ("label", "boxes", "box_labels")}
        counters["label"].update(label for label in np.asarray(rows["label"]).tolist() if label >= 0)
        counters["boxes"].update(rows["box_labels"].flat().tolist())
        boxes += len(rows["boxes"].flat())
    return {name: [c[i] for i in range(classes)] for name, c in counters.items() if c}, boxes


def write_index_of(folder: str, shard: FoundShard, parts: Sequence[PartSpec]) -> ShardEntry:
    """Write an index for an intact container from its annotations; records may have these parts."""
    builder = IndexBuilder(parts)
    places = PlaceList(parts)
    with Window(shard.container) as window:
        for entry in open_container(shard.format).scan(shard.container):
            builder.add(_record_of(entry, window))
            places.add((entry.offset, entry.size), entry.parts)
    return with_index(folder, shard.container, builder, places.places())


def with_index(folder: str, container: str, builder: IndexBuilder, places: Places) -> ShardEntry:
    """Write the index of a container that lies in the same folder or in that of a damaged pack."""
    name = os.path.basename(container)
    index = os.path.join(folder, name.partition(".")[0] + INDEX_SUFFIX)
    entry = builder.write(index, places)
    digest = digest_of_written(container, index, entry)
    return ShardEntry(len(builder), FileEntry(name, os.path.getsize(container), digest), entry)


def write_shard(folder: str, manifest: Manifest, old: ShardEntry, records: Iterable[Record]) -> ShardEntry | None:
    """Rewrite the shard `old` with these records. Return None, and write no file, if there are none."""
    path = os.path.join(folder, old.container.name)
    raw = manifest.encoding == "raw"
    spec = ShardSpec(
        classes=manifest.classes,
        encoding=manifest.encoding,
        shape=manifest.shape if raw else None,
        dtype=manifest.dtype or "uint8",
        planned_records=old.records,
        planned_bytes=old.container.bytes,
        parts=manifest.part_specs,
    )
    builder, writer = IndexBuilder(manifest.part_specs), None
    for record in records:
        writer = writer or open_container(manifest.container).create(path, spec)
        builder.add(record)
        writer.write(record)
    return None if writer is None else with_index(folder, path, builder, writer.close())
