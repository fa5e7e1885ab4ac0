"""Packs that share the files of others: shards get a second name, and an index of their own where it must differ."""

from __future__ import annotations

import os
import shlex
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from typing import Any, NoReturn

import numpy as np

import packer
from packer.containers import CONTAINERS, container_names, open_container
from packer.errors import AnyPath, DamagedPack, PackerError, StorageError, UsageError, plural, printable, words_of
from packer.format.digests import sha256_of
from packer.format.index import write_index
from packer.format.indexes import Indexes, IndexFiles
from packer.format.manifest import SAME_MASKS, FileEntry, Manifest, Origin, ShardEntry, read_manifest
from packer.format.mmap import check_size
from packer.format.pack_paths import INDEX_SUFFIX
from packer.model.annotation import Int64, Progress
from packer.model.annotation_columns import column
from packer.model.fields import BY_NAME, FLIPS, WHOLE
from packer.packing.publish_version import NextVersion
from packer.packing.resolve import similar_names
from packer.repack.index_columns import relabelled, select_rows
from packer.system import share_file, usable_cores
from packer.system.atomic import make_own_folder

MOST_THREADS = 4
IN_PLACE = "in place"
"""What is done with the file of an adopted pack: it stays where it is."""


class Source:
    """A pack that another is made from. Its images are never read.

    Args:
        path: The directory of the pack.
        manifest: Its manifest, if it is at hand.

    Raises:
        PackNotFound: It is not a pack.
        DamagedPack: A file is missing or has another size.
    """

    def __init__(self, path: AnyPath, manifest: Manifest | None = None) -> None:
        self.path = os.path.abspath(os.fsdecode(path))
        self.manifest: Manifest = read_manifest(self.path) if manifest is None else manifest
        self._digest = self.manifest.digest
        self.has_new_index = False
        """Whether `manifest` and `tables` are others than those of the pack (`take`)."""
        try:
            for shard in self.manifest.shards:
                check_size(self.file_of(shard), shard.container.bytes)
            self.indexes = Indexes(IndexFiles(self.path, self.manifest.shards, self.manifest))
        except DamagedPack as error:
            error.with_location(self.path)
            raise

    @property
    def name(self) -> str:
        """Name of its folder."""
        return os.path.basename(self.path)

    def file_of(self, shard: ShardEntry) -> str:
        """Return the path of a shard's container."""
        return self.manifest.path_of(self.path, shard.container.name)

    def origin(self, command: str) -> Origin:
        """Return it as what another pack was made from."""
        return Origin(command, self.name, self._digest)

    def take(self, manifest: Manifest, tables: list[Any]) -> None:
        """Take another manifest, with other classes, and other indexes of the same shards, perhaps with fewer rows."""
        self.manifest, self.tables, self.has_new_index = manifest, tables, True

    @cached_property
    def tables(self) -> list[Any]:
        """The index of each shard, mapped and verified."""
        return [self.indexes[number] for number in range(len(self.manifest.shards))]


@dataclass(frozen=True, slots=True, eq=False)
class Taken:
    """What a new pack takes of a shard."""

    source: Source
    number: int
    """Of the shard."""
    rows: Int64 | None = None
    """Its records, in order; None: all."""
    mapping: Int64 | None = None
    """New id of each class; None: unchanged."""
    index: Callable[[], Any] | None = None
    """Makes its new index as a record batch, of which `rows` are taken, when it is to be written; None: it has that of
    its source."""

    @property
    def shard(self) -> ShardEntry:
        """The shard in its pack."""
        return self.source.manifest.shards[self.number]

    @property
    def records(self) -> int:
        """How many records there are to take."""
        return len(self.source.tables[self.number]) if self.source.has_new_index else self.shard.records

    def table(self) -> Any:
        """Return its new index as a record batch; None if it is unchanged."""
        if self.rows is None and self.mapping is None and self.index is None and not self.source.has_new_index:
            return None
        try:
            if self.index is not None:
                batch = self.index()
                if self.rows is None and batch.equals(self.source.indexes[self.number].to_batches()[0]):
                    return None
            else:
                table = self.source.tables[self.number]
                (batch,) = table.to_batches()
                batch = batch if self.mapping is None else relabelled(table, self.mapping)
        except ValueError as error:
            raise DamagedPack(self.source.indexes.path(self.number), str(error), "build the pack again") from None
        return batch if self.rows is None else select_rows(batch, self.rows)


@dataclass(slots=True)
class Linked:
    """The files of a pack of links."""

    shards: list[ShardEntry] = field(default_factory=list)
    linked: dict[str, str] = field(default_factory=dict)
    """`Manifest.linked`."""
    companions: dict[str, FileEntry] = field(default_factory=dict)
    """`Manifest.companions`: those of shards that are linked, so that nobody reads these to make them again."""
    how: Counter[str] = field(default_factory=Counter)
    """Number of container files by what was done: hard link, reflink, copy, in place."""


def shards_text(how: Mapping[str, int]) -> str:
    """Return what was done with the files of the shards, as text: ``3 shards (2 hard links, 1 copy)``."""
    names = {"hard link": "hard links", "reflink": "reflinks", "copy": "copies", IN_PLACE: "files in place"}
    parts = [plural(count, name.replace("in place", "file in place"), names[name]) for name, count in how.items()]
    return f"{plural(sum(how.values()), 'shard')} ({', '.join(parts)})"


def link_shards(folder: str, home: str, taken: Sequence[Taken], progress: Progress) -> Linked:
    """Write the shards of a new pack, as shard-00000 and so on, without reading their images.

    Args:
        folder: Where the pack grows.
        home: Its final path.
        taken: Its shards.
        progress: Receives the stage linking, in shards.

    Raises:
        DamagedPack: An index was altered, or a copy does not have the digest of its original.
        StorageError: A file cannot be written.
    """
    make_own_folder(folder)
    progress.stage("linking", len(taken), "shards")
    made = Linked()
    # digests and syncs release the GIL
    with ThreadPoolExecutor(max(1, min(MOST_THREADS, usable_cores()))) as pool:
        waiting = [pool.submit(_link, folder, home, number, item) for number, item in enumerate(taken)]
        try:
            for number, (item, future) in enumerate(zip(taken, waiting, strict=True)):
                entry, path, how = future.result()
                made.shards.append(entry)
                made.how[how] += 1
                if (companion := _companion(folder, number, item, path)) is not None:
                    made.companions[entry.container.name] = companion
                if path is not None:
                    made.linked[entry.container.name] = path
                progress.advance(1)
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise
    return made


def _link(folder: str, home: str, number: int, taken: Taken) -> tuple[ShardEntry, str | None, str]:
    """Return the entry of a new shard, its `Manifest.linked` (None: it is written for this pack), and what was done."""
    source, old = taken.source, taken.shard
    suffix = _suffix(old.container.name, source.manifest.container)
    stem = f"shard-{number:05d}"
    container = replace(old.container, name=stem + suffix)
    batch = taken.table()
    before = source.manifest.linked.get(old.container.name)
    path: str | None
    try:
        if before:
            how, path = IN_PLACE, _path_from_home(before, source.path, home)
        else:
            how = share(source.file_of(old), os.path.join(folder, container.name), old.container)
            path = "" if how == "hard link" or batch is not None or before == "" else None
        index = os.path.join(folder, stem + INDEX_SUFFIX)
        if batch is None:
            share(source.indexes.path(taken.number), index, old.index)
            entry = replace(old.index, name=os.path.basename(index))
        else:
            entry = write_index(index, batch)
    except PackerError:
        raise
    except OSError as error:
        raise StorageError(error.filename or folder, error.strerror or str(error), "choose another --out") from None
    return ShardEntry(old.records if batch is None else len(batch), container, entry), path, how


def index_shards(new: NextVersion, taken: Sequence[Taken], progress: Progress) -> Linked:
    """Write the indexes of the next version of a pack that differ; the other files of its shards stay.

    Args:
        new: The next version.
        taken: Its shards, which are those of the pack, without those that have no record left.
        progress: Receives the stage indexing, in shards.

    Raises:
        DamagedPack: An index was altered.
        StorageError: A file cannot be written.
    """
    progress.stage("indexing", len(taken), "shards")
    made = Linked(how=Counter({IN_PLACE: len(taken)}))

    def entry_of(item: Taken) -> ShardEntry:
        if (batch := item.table()) is None:
            return item.shard
        index = write_index(os.path.join(new.folder, new.name(item.shard.index.name)), batch)
        return ShardEntry(len(batch), item.shard.container, index)

    old = new.manifest
    with ThreadPoolExecutor(max(1, min(MOST_THREADS, usable_cores()))) as pool:
        for entry in pool.map(entry_of, taken):
            name = entry.container.name
            made.shards.append(entry)
            made.linked[name] = old.linked.get(name, "")  # even if only names of classes differ: the file has them
            if name in old.companions:
                made.companions[name] = old.companions[name]
            progress.advance(1)
    return made


def _companion(folder: str, number: int, taken: Taken, path: str | None) -> FileEntry | None:
    """Link the companion of a shard, and return its entry; None if it has none, or is not in its folder."""
    old = taken.source.manifest.companions.get(taken.shard.container.name)
    if old is None or path:
        return None
    name = f"shard-{number:05d}{os.path.splitext(old.name)[1]}"
    try:
        share(os.path.join(taken.source.path, old.name), os.path.join(folder, name), old)
    except FileNotFoundError:  # it is made again
        return None
    except OSError as error:
        raise StorageError(error.filename or folder, error.strerror or str(error), "choose another --out") from None
    return replace(old, name=name)


def _suffix(name: str, container: str) -> str:
    """Return the end of a shard's name: that of its format, if it has or stands for it; else its own, if adopted."""
    extension = os.path.splitext(name)[1]
    if container in CONTAINERS:
        suffix = open_container(container).suffix
        if name.endswith(suffix) or extension == ".mdb":  # a single LMDB shard is called data.mdb
            return suffix
    return extension


def share(source: str, target: str, entry: FileEntry) -> str:
    """Link a file of a pack, and return what was done. Raise DamagedPack if a copy does not have its digest."""
    how = share_file(source, target)
    if how == "copy" and sha256_of(target) != entry.sha256:
        raise DamagedPack(source, "does not match its digest", "run packer verify").with_location(
            os.path.dirname(source), entry.name
        )
    return how


def _path_from_home(path: str, pack: str, home: str) -> str:
    """Return the path of a linked file as a pack at `home` names it: relative where it lies below its folder."""
    if os.path.isabs(path):
        return path
    file = os.path.normpath(os.path.join(pack, path))
    below = os.path.dirname(home).rstrip(os.sep) + os.sep
    return os.path.relpath(file, home) if file.startswith(below) else file


OWN = ("include", "exclude", "label_files", "columns", "classes", "split", "repack")
"""Options that hold only for the source of a pack."""


def joined_classes(
    sources: Sequence[Source], given: Sequence[str] | None
) -> tuple[tuple[str, ...], list[Int64 | None]]:
    """Return the classes of all packs, and the new id of each class of each pack; None if they stay.

    Args:
        sources: The packs.
        given: The names in id order; None: those of the first pack, then those that the next ones add.

    Raises:
        UsageError: A class is not among the given ones, or a pack has two classes of one name.
    """
    names = dict.fromkeys(given if given is not None else chain.from_iterable(s.manifest.classes for s in sources))
    ids = {name: number for number, name in enumerate(names)}
    mappings: list[Int64 | None] = []
    for source in sources:
        classes = source.manifest.classes
        twice = [name for name, times in Counter(classes).items() if times > 1]
        if twice:
            raise UsageError(
                source.path, f"has two classes called {printable(twice[0])}", "build it with --classes=FILE"
            )
        absent = [name for name in classes if name not in ids]
        if absent:
            problem = f"has the class {printable(absent[0])}, which --classes does not name"
            raise UsageError(source.path, problem, "add it to the file")
        mapping = np.array([ids[name] for name in classes], np.int64)
        mappings.append(None if (mapping == np.arange(len(mapping))).all() else mapping)
    return tuple(names), mappings


def joint_manifest(sources: Sequence[Source], classes: tuple[str, ...]) -> tuple[Manifest, list[str]]:
    """Return what the manifest of all packs says, apart from its records and files, and notes about the merge.

    Raises:
        UsageError: Two packs contradict one another.
    """
    first = sources[0].manifest
    for other in sources[1:]:
        _check_images(sources[0], other)
    for other in sources[1:]:
        if (other.manifest.parts, other.manifest.pixels) != (first.parts, first.pixels):
            mine, its = other.manifest.parts_text, first.parts_text
            _contradict(other, f"has records of {mine}", sources[0], f"of {its}", "leave one of the packs out")
        if other.manifest.masks != first.masks:
            mine, its = other.manifest.masks_text, first.masks_text
            _contradict(other, f"has masks of {mine}", sources[0], f"of {its}", SAME_MASKS)
    _check_tags(sources)
    fields = tuple(dict.fromkeys(chain.from_iterable(source.manifest.fields for source in sources)))
    notes = _check_fields(sources, fields)
    flip_index, more = _flip_index(sources)
    encodings = {source.manifest.encoding for source in sources}
    counts: Counter[str] = Counter()
    for source in sources:
        counts.update(source.manifest.counts)
    notes += [*more, *similar_names(classes)]
    manifest = replace(
        first,
        encoding=first.encoding if len(encodings) == 1 else "copy",
        classes=classes,
        fields=fields,
        counts=dict(counts),
        options=_options(sources),
        rejected=(),
        notes=(*notes, *_notes(sources)),
        flip_index=flip_index,
        lists={},
        companions={},
        tags=next((source.manifest.tags for source in sources if source.manifest.tags), ()),
        linked={},
        made_from=(),
        packer=packer.__version__,
        libraries=_equal([source.manifest.libraries for source in sources]),
    )
    return manifest, notes


def _check_images(first: Source, other: Source) -> None:
    """Raise UsageError if the images of two packs are not stored alike."""
    a, b = first.manifest, other.manifest
    root, extension = os.path.splitext(other.path)
    if b.container != a.container:
        if a.container not in container_names():  # npy: packer cannot make the other one fit
            step = _convert(first, f"{first.path}-{b.container}", {"format": b.container})
            step = step if b.container in container_names() else "convert both to one container: packer convert"
            _contradict(other, f"is {b.container}", first, a.container, step)
        new = f"{root}.{a.container}" if extension else f"{root}-{a.container}"
        if os.path.lexists(new):  # often it is the first pack
            new = f"{root}-{b.container}.{a.container}"
        _contradict(other, f"is {b.container}", first, a.container, _convert(other, new, {"format": a.container}))
    if b.windows != a.windows:
        one = other if b.windows else first
        one.manifest.check_no_windows(one.path, "they are not merged with images that are stored by themselves")
    if b.mode != a.mode:
        _contradict(other, f"has mode {b.mode}", first, a.mode, f"build it again with --mode={a.mode}")
    if (b.encoding == "raw") != (a.encoding == "raw"):
        encoding = "png" if a.encoding == "copy" else a.encoding
        line = _convert(other, f"{root}-{encoding}{extension}", {"encode": encoding})
        _contradict(other, f"stores {b.encoding} images", first, a.encoding, line)


def _contradict(other: Source, problem: str, first: Source, value: str, step: str) -> NoReturn:
    raise UsageError(other.path, f"{problem}, but {printable(first.path)} {value}", step)


def _convert(source: Source, new: str, options: Mapping[str, str]) -> str:
    return shlex.join(["packer", "convert", source.path, new, *words_of(options)])


def _check_tags(sources: Sequence[Source]) -> None:
    tagged = [source for source in sources if source.manifest.tags]
    for other in tagged[1:]:
        if other.manifest.tags != tagged[0].manifest.tags:
            problem = f"has other tags than {printable(tagged[0].path)}, or in another order"
            raise UsageError(other.path, problem, "build both from lists with the same columns")


def _check_fields(sources: Sequence[Source], fields: Sequence[str]) -> list[str]:
    """Return notes about fields that not all packs have; raise UsageError if their absence would be misread."""
    notes = []
    for name in fields:
        without = [source for source in sources if name not in source.manifest.fields]
        if without and name in WHOLE:
            has = next(source for source in sources if name in source.manifest.fields)
            problem = f"has no {name}, but {printable(has.path)} has: its images would count as without any"
            step = "build it with labels, or with --missing-labels=empty if there is nothing in its images"
            raise UsageError(without[0].path, problem, step)
        if without and name in BY_NAME and (BY_NAME[name].says or BY_NAME[name].moves):
            notes.append(f"{name}: not in {', '.join(printable(source.name) for source in without)}")
    for name in (*FLIPS, "value"):
        known: tuple[int, Source] | None = None
        for source in sources if name in fields else ():
            number = _points(source, name)
            if number is not None and known is not None and number != known[0]:
                problem = (
                    f"has {plural(number, name.removesuffix('s'))} each, but {printable(known[1].path)} {known[0]}"
                )
                raise UsageError(source.path, problem, "leave one of the packs out")
            known = known or (None if number is None else (number, source))
    return notes


def _points(source: Source, name: str) -> int | None:
    """Return the number of points or values of each image, or of each object; None if there are several."""
    if name not in source.manifest.fields:
        return None
    found = set[int]()
    for table in source.tables:
        rows: Any = column(table, name)
        lengths = (rows.flat() if BY_NAME[name].per_box else rows).lengths
        found.update(np.unique(lengths[lengths > 0]).tolist())
    return found.pop() if len(found) == 1 else None


def _flip_index(sources: Sequence[Source]) -> tuple[tuple[int, ...] | None, list[str]]:
    """Return the flip index of all packs with points, and a note if it is not known of all."""
    pointed = [source for source in sources if {*FLIPS} & set(source.manifest.fields)]
    known = [source for source in pointed if source.manifest.flip_index is not None]
    for other in known[1:]:
        if other.manifest.flip_index != known[0].manifest.flip_index:
            problem = f"has another flip index than {printable(known[0].path)}: points of another order"
            raise UsageError(other.path, problem, "leave one of the packs out")
    if len(known) == len(pointed):
        return (known[0].manifest.flip_index if known else None), []
    unknown = next(source for source in pointed if source.manifest.flip_index is None)
    return None, [f"flip_index: not known of {printable(unknown.name)}, and so not of this pack"] if known else []


def _options(sources: Sequence[Source]) -> dict[str, Any]:
    """Return the options that are those of all packs."""
    options = [source.manifest.options for source in sources]
    equal = {name: value for name, value in _equal(options).items() if name not in OWN}
    equal["labels"] = list(dict.fromkeys(chain.from_iterable(each["labels"] for each in options)))
    if any(source.manifest.lenient for source in sources):
        equal["decoder"] = "lenient"
    return dict(sorted(equal.items()))


def _equal(all_of_them: Sequence[Any]) -> dict[str, Any]:
    first, *others = all_of_them
    return {k: v for k, v in first.items() if all(k in other and other[k] == v for other in others)}


def _notes(sources: Sequence[Source]) -> list[str]:
    return [f"{printable(source.name)}: {note}" for source in sources for note in source.manifest.notes]
