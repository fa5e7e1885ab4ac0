"""A pack with other labels, or without some records: its shards under new names, with indexes of their own.

No image is read: what is labelled is whole columns of the indexes, and what is deleted is rows of them.
"""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from itertools import chain, islice
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

import packer
from packer.errors import AnyPath, UsageError, option, plural, printable
from packer.format.index import read_index
from packer.format.lists import MOST_IN_MANIFEST, Changed, Listing, Skipped, lists_of, selection_file
from packer.format.manifest import Manifest
from packer.model.annotation import Int64, Progress
from packer.model.annotation_columns import column
from packer.model.fields import BY_NAME, object_of
from packer.model.strict_json import read_json
from packer.packing.build_options import DEFAULTS, BuildOptions, check_extension
from packer.packing.class_map import ClassChange, changes_notes
from packer.packing.input_table import read_selection
from packer.packing.option_table import CLASS_OPTIONS, TABLE, label_of
from packer.packing.publish import Output, check_folder
from packer.packing.publish_version import NextVersion
from packer.packing.resume import resume_or_restart
from packer.repack.carry import NewFiles, carry
from packer.repack.index_columns import recount, select_rows, with_column
from packer.repack.labels_again import labels_again, options_again
from packer.repack.labels_of import LabelsOf, NewLabels
from packer.repack.links import Linked, Source, Taken, index_shards, link_shards
from packer.repack.pack_classes import PackClasses, class_map_of, recorded_classes
from packer.repack.selected import select

EXTRAS = "extras"
LENIENT = "lenient"
OF_INPUTS = ("found", "packed", "rejected", "skipped", "changed", LENIENT)
"""Counts that are not of labels."""


@dataclass(frozen=True, slots=True)
class EditOptions:
    """What becomes of a pack.

    Args:
        delete: The records to delete: a file with a path, name, glob or key per line, or a list of packer, such as
            the marks of ``packer view``; or numbers of records.
        labels: The kinds of labels to read again from `source`, as of a build. None given: those of the pack.
        source: The folder of the images and their new labels. The records get what a build with the options of the
            pack says of them now, if the images are those that were packed.
        reading: How the labels are read, if not as they were: ``{"boxes": "clip"}``; the options of a build in
            `LABEL_OPTIONS`.
        labels_from: A pack whose labels the records get. Records belong together if their source files have the same
            path and digest, or else the same digest.
        map: New names of classes, each text ``old,old=new``; or a file of such lines, or of YAML ``old: new``.
        drop_class: Classes to leave out, as `map` calls them; in each text names with commas between.
        only_class: The classes to keep, in the same form.
        single_class: The name of all classes.
        missing_labels: A record that these leave without objects, or to which `source` or `labels_from` has nothing:
            error, empty (it has no objects) or skip. Empty and skip are also for images of `source` without a label,
            which are otherwise treated as when the pack was built.
        set: Pairs of ``NAME=VALUE`` and a file in the form of `delete`: a field of extras of these records. VALUE is
            text unless it is JSON; ``null`` removes the field.

    Raises:
        UsageError: Nothing is asked for.
    """

    delete: AnyPath | Collection[int] | None = None
    labels: Sequence[str] = ()
    source: AnyPath | None = None
    reading: Mapping[str, Any] = field(default_factory=dict)
    labels_from: AnyPath | None = None
    map: Sequence[str] = ()
    drop_class: Sequence[str] = ()
    only_class: Sequence[str] = ()
    single_class: str | None = None
    missing_labels: str = "error"
    set: Sequence[tuple[str, AnyPath]] = ()

    def __post_init__(self) -> None:
        if self.source is None and (self.labels or self.reading):
            given = option("labels") if self.labels else label_of(next(iter(self.reading)))
            raise UsageError(
                given, "is for labels that are read again", f"name their folder: {option('source', 'SRC')}"
            )
        if self.source is not None and self.labels_from is not None:
            raise UsageError(option("source"), f"excludes {option('labels-from')}", "leave out one of them")
        if not (self.changes_classes or self.set or self.gets_labels) and self.delete is None:
            step = "pass --delete, --source, --labels-from, --map, --drop-class, --only-class or --set"
            raise UsageError("PACK", "is to be edited, but nothing is asked for", step)

    @property
    def gets_labels(self) -> bool:
        """Whether the records get other labels."""
        return self.source is not None or self.labels_from is not None

    @property
    def changes_classes(self) -> bool:
        """Whether an option says what becomes of classes."""
        return any(getattr(self, name) for name in CLASS_OPTIONS)

    def of_build(self, pack: str) -> BuildOptions:
        """Return the options that a build has, too, for this `pack`: records to delete are those to exclude there."""
        names = (*CLASS_OPTIONS, "missing_labels")
        file = os.fsdecode(self.delete) if isinstance(self.delete, str | bytes | os.PathLike) else None
        return BuildOptions(pack, exclude=file, **{name: getattr(self, name) for name in names})


@dataclass(frozen=True, slots=True)
class EditReport:
    """The result of `edit`."""

    path: str
    manifest: Manifest
    deleted: int
    """Records that were to be deleted."""
    left_out: int
    """Records that went with their labels."""
    relabelled: int
    """Records with the labels of a source or of another pack."""
    shards: dict[str, int]
    """Number of shards by what was done with their files: hard link, reflink, copy, in place."""
    indexes: int
    """Shards with another index than in the pack."""
    notes: tuple[str, ...]
    seconds: float
    class_changes: tuple[ClassChange, ...] = ()
    """What became of classes that were renamed or dropped."""
    version: int | None = None
    """The number of the new version of the pack. None: `path` is a new pack."""


def edit(
    pack: AnyPath,
    out: AnyPath | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
    **options: Any,
) -> EditReport:
    """Give a pack other labels, or leave out some of its records, without reading an image.

    Without `out`, the pack gets a new version, and stays as it was under the name of the earlier one, ``PACK@1``
    (`packer.versions_of`). The shards of a new pack are hard links to those of the pack where the file system allows;
    else copies. What is asked for happens in this order: records are deleted, get the labels of a source or of another
    pack, other classes, and extras.

    Args:
        pack: The pack.
        out: Path of a new pack; the pack then stays as it is. None: the pack itself is changed.
        overwrite: Replace an existing pack.
        progress: Receives the stage linking, or indexing, in shards; and those of labels that are read again.
        options: The fields of `EditOptions`.

    Returns:
        What was written.

    Raises:
        UsageError: An option does not fit the pack, nothing is asked for, no record is left, `out` exists, or another
            process is changing the pack.
        DamagedPack: A file of the pack is missing, or its index was altered.
        StorageError: A file cannot be written.
    """
    started = time.perf_counter()
    progress, asked = progress or Progress(), EditOptions(**options)
    if out is not None:
        return _into_new_pack(pack, out, overwrite, progress, asked, started)
    with NextVersion(pack, command_text(pack, asked)) as new:
        edited = _Edit(Source(new.path), asked, progress)
        taken = edited.taken()
        for note in (*edited.notes, *edited.hints):
            progress.note(f"note: {note}")
        made = index_shards(new, taken, progress)
        manifest = edited.manifest(made, new.folder)
        carry(taken, manifest, NewFiles(new.folder, new.number))
        new.publish(manifest, edited.listings.values(), edited.files, edited.counts)
    return edited.report(new.path, manifest, made, taken, started, new.number)


def _into_new_pack(
    pack: AnyPath, out: AnyPath, overwrite: bool, progress: Progress, asked: EditOptions, started: float
) -> EditReport:
    check_folder(out, "edit")
    source = Source(pack)
    path = os.path.abspath(os.fsdecode(out))
    check_extension(path, f"{option('out')}=", source.manifest.container)
    for file in filter(None, source.manifest.linked.values()):
        Output(path, os.path.join(source.path, file), overwrite)
    output = Output(path, source.path, overwrite)
    edited = _Edit(source, asked, progress)
    taken = edited.taken()
    notes = (*edited.notes, *edited.hints)
    with output:
        for note in (*resume_or_restart(output, {"command": "edit", "pack": source.path}, overwrite), *notes):
            progress.note(f"note: {note}")
        made = link_shards(output.folder, path, taken, progress)
        manifest = edited.manifest(made, output.folder)
        output.beside, _ = carry(taken, manifest, NewFiles(output.folder))
        manifest = output.publish(manifest, edited.listings.values(), edited.files)
    return edited.report(path, manifest, made, taken, started)


def command_text(pack: AnyPath, asked: EditOptions) -> str:
    """Return the command of an edit as a log shows it: of files, only their names."""
    words = ["packer", "edit", os.path.basename(os.path.abspath(os.fsdecode(pack)))]
    names = [member.name for member in fields(asked) if member.name not in ("delete", "reading")]
    given = {name: value for name in names if (value := getattr(asked, name)) not in (None, ()) and value != "error"}
    if isinstance(asked.delete, str | bytes | os.PathLike):
        given = {"delete": asked.delete, **given}
    elif asked.delete is not None:
        given = {"delete": plural(len(asked.delete), "record"), **given}
    reading = asked.reading
    for name, value in {**given, **reading}.items():
        for one in value if isinstance(value, list | tuple) else (value,):
            texts, is_path = one if name == "set" else (one,), name != "map"
            words += [option(name), *(_named(text, is_path) for text in texts if text is not True)]
    return shlex.join(words)


def _named(value: Any, is_path: bool) -> str:
    """Return a value of an option as a log shows it."""
    text = os.fsdecode(value)
    kind, colon, file = text.partition(":")
    if is_path and colon and os.path.isabs(file):  # labels
        return f"{kind}:{os.path.basename(file)}"
    return os.path.basename(text) if is_path and os.path.isabs(text) else text


@dataclass(slots=True)
class _Shard:
    """What becomes of a shard."""

    table: Any
    """The index in whose rows `rows` are numbers."""
    rows: Int64 | None = None
    """Those that stay; None: all."""
    index: Callable[[], Any] | None = None
    """Makes the new index of the same rows; None: it is `table`."""

    def batch(self) -> Any:
        """Return the new index."""
        return self.table.to_batches()[0] if self.index is None else self.index()

    def keep(self, stay: NDArray[np.bool_]) -> None:
        """Leave all other rows out."""
        rows = np.arange(len(self.table)) if self.rows is None else self.rows
        if not stay[rows].all():
            self.rows = rows[stay[rows]]


class _Edit:
    """What becomes of a pack, step by step; the indexes are made when they are written."""

    def __init__(self, source: Source, asked: EditOptions, progress: Progress) -> None:
        self._source, self._asked, self._options = source, asked, asked.of_build(source.path)
        self._manifest = source.manifest
        self._recorded = {name: value for name, value in source.manifest.options.items() if name != "repack"}
        self._origins = [source.origin("edit")]
        self._shards = [_Shard(source.indexes[number]) for number in range(len(source.manifest.shards))]
        self.listings, self.files = lists_of(source.path, source.manifest)
        self.deleted = self.left_out = self.relabelled = 0
        self.notes: list[str] = []
        """What the new pack says of its labels."""
        self.hints: list[str] = []
        """What only the user is told."""
        self.changes: tuple[ClassChange, ...] = ()
        if asked.delete is not None:
            self._delete(() if isinstance(asked.delete, str | bytes | os.PathLike) else asked.delete)
        if asked.gets_labels:
            self._take_labels(self._new_labels(progress))
        if asked.changes_classes or not asked.gets_labels:
            self._change_classes()
        for text, names in asked.set:
            self._set_extra(text, os.fsdecode(names))

    def _delete(self, numbers: Collection[int]) -> None:
        """Leave out the records that ``--delete`` names, or those of these numbers."""
        if wrong := [number for number in numbers if not 0 <= number < self._manifest.records]:
            raise UsageError(option("delete"), f"names the record {wrong[0]}, of {self._manifest.records}")
        selected = select(self._options, self._manifest, self._source.indexes, dict.fromkeys(numbers, "excluded"))
        if not selected.skipped:
            file = self._options.exclude or option("delete")
            raise UsageError(file, "names no record", "write paths, names, globs or keys of the pack, one per line")
        for shard, rows in zip(self._shards, selected.rows, strict=True):
            shard.rows = None if rows is None else np.array(rows, np.int64)
        for row in selected.skipped:
            self.listings["skipped"].add(row)
        self.deleted = len(selected.skipped)
        self.hints += selected.notes
        self.files |= selected.files
        for name in selected.files:
            repack = {**self._recorded.get("repack", {}), "delete": selection_file(name)}
            self._recorded |= {name: selection_file(name), "repack": repack}

    def _new_labels(self, progress: Progress) -> NewLabels:
        """Return those of another pack, or read those of a source again."""
        asked, policy = self._asked, self._options.missing_labels
        if asked.source is None:
            return NewLabels.of_pack(asked.labels_from or "")
        reading = {**asked.reading, "missing_labels": None if policy == DEFAULTS["missing_labels"] else policy}
        folder = os.fsdecode(asked.source)
        return labels_again(self._source, options_again(self._source, folder, asked.labels, reading), progress)

    def _take_labels(self, other: NewLabels) -> None:
        """Give records other labels. Raise UsageError if there are not those of all records."""
        labels = LabelsOf(other, [shard.table for shard in self._shards])
        self._leave_out(other, [rows < 0 for rows in labels.rows])
        for number, shard in enumerate(self._shards):
            labels.check_sizes(number, shard.table)
            shard.index = partial(labels.given_to, shard.table, number)
        if other.origin is not None:
            self._origins.append(other.origin)
        else:
            reading = {name: "given" if TABLE[name].takes else one for name, one in self._asked.reading.items()}
            before = self._recorded.get("repack", {})
            self._recorded["repack"] = {**before, **reading, "source": TABLE["source"].label}
        for name in other.options:
            self._recorded.pop(name, None)
            self._recorded |= {name: other.manifest.options[name]} if name in other.manifest.options else {}
        self._take_facts(other)

    def _leave_out(self, other: NewLabels, missing: list[NDArray[np.bool_]]) -> None:
        """Leave out records that have no label, if that is asked for. Raise UsageError if nothing is."""
        policy, lacking = self._options.missing_labels, list[bytes]()
        for shard, without in zip(self._shards, missing, strict=True):
            paths: Any = column(shard.table, "path")
            rows = np.arange(len(without)) if shard.rows is None else shard.rows
            self.relabelled += int((~without[rows]).sum())
            lacking += [bytes(paths[row]) for row in rows[without[rows]].tolist()]
            if policy == "skip":
                shard.keep(~without)
        if lacking and policy == "error":
            raise other.lacks_error(lacking[0], len(lacking))
        for path in lacking if policy == "skip" else ():
            self.listings["skipped"].add(Skipped(os.fsdecode(path), other.left_out.get(path, other.reason)))
            self.left_out += 1

    def _take_facts(self, other: NewLabels) -> None:
        """Take what is said of the new labels."""
        old, new = self._manifest, other.manifest
        counts = {name: count for name, count in old.counts.items() if name in OF_INPUTS}
        counts |= {name: count for name, count in new.counts.items() if name not in OF_INPUTS}
        self._manifest = replace(
            old, classes=new.classes, fields=new.fields, tags=new.tags, flip_index=new.flip_index, counts=counts,
            options=self._recorded, notes=old.notes if other.origin is not None else new.notes,
        )  # fmt: skip
        of_images = (row for row in self.listings["changed"] if row.change == LENIENT)
        of_labels = (row for row in other.changed if row.change != LENIENT)
        self.listings["changed"] = Listing(Changed, chain(of_images, of_labels))
        self.hints += other.hints

    def _change_classes(self) -> None:
        """Rename and drop classes.

        Raises:
            UsageError: An option names a class that the pack has not, a record is left without objects, or the pixels
                of masks would have to change.
        """
        if (class_map := class_map_of(self._options, [self._manifest])) is None:
            return
        classes = PackClasses.of(class_map, self._manifest)
        classes.check_masks(self._source.path, "an edit")
        before = len(self.listings["skipped"])
        stays = bool((classes.ids == np.arange(len(classes.ids))).all())
        for shard in self._shards:
            if shard.rows is not None and not len(shard.rows):
                continue
            if shard.rows is not None or shard.index is not None:
                batch = shard.batch() if shard.rows is None else select_rows(shard.batch(), shard.rows)
                shard.table, shard.rows = pa.Table.from_batches([batch]), None
                shard.index = partial(_first_batch, shard.table)
            found, stay = classes.taken(shard.table, self._options.missing_labels, self.listings["skipped"])
            shard.index = shard.index if stays else found.batch
            shard.keep(stay)
        self.left_out += len(self.listings["skipped"]) - before
        self.changes = classes.changes
        self.notes += changes_notes(self.changes)
        self._manifest = classes.in_manifest(self._manifest)
        self._recorded = recorded_classes(self._options, self._recorded)

    def _set_extra(self, text: str, file: str) -> None:
        """Set a field of extras, ``NAME=VALUE``, of the records that a file names; raise UsageError for other lines."""
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise UsageError(option("set"), f"{printable(text)} is not of the form NAME=VALUE", "write split=val")
        try:
            BY_NAME[EXTRAS].kind.text({name: _value(value)})
        except ValueError as error:
            raise UsageError(
                option("set"), f"{printable(name)} cannot be kept: {error}", "give another value"
            ) from None
        parts = [shard.table.column("path").combine_chunks() for shard in self._shards]
        found = read_selection(file, [path for part in parts for path in part.to_pylist()], self._source.path)
        for line, number in found.unmatched.items():
            raise UsageError(f"{file}:{number}", f"no record {printable(line)}", "correct the line, or remove it")
        named, count = pa.array([*found.images], pa.binary()), 0
        for shard, paths in zip(self._shards, parts, strict=True):
            rows = np.asarray(pc.is_in(paths, value_set=named))
            if rows.any():
                shard.index = partial(_with_extra, replace(shard).batch, np.flatnonzero(rows), name, _value(value))
                count += int((rows if shard.rows is None else rows[shard.rows]).sum())
        self.notes.append(f"{EXTRAS}: {printable(text)} in {plural(count, 'record')}")
        self._manifest = replace(self._manifest, fields=tuple(dict.fromkeys((*self._manifest.fields, EXTRAS))))

    def taken(self) -> list[Taken]:
        """Return what the new pack takes. Raise UsageError if nothing is left."""
        found = [
            Taken(self._source, number, shard.rows, None, shard.index)
            for number, shard in enumerate(self._shards)
            if shard.rows is None or len(shard.rows)
        ]
        if not found:
            raise UsageError(self._source.path, "has no record left", "name other records or classes")
        return found

    @property
    def counts(self) -> dict[str, int]:
        """What was done, by name."""
        names = ("deleted", "left_out", "relabelled")
        return {name: getattr(self, name) for name in names if getattr(self, name)}

    def report(
        self, path: str, manifest: Manifest, made: Linked, taken: Sequence[Taken], started: float,
        version: int | None = None,
    ) -> EditReport:  # fmt: skip
        """Return what was written."""
        return EditReport(
            path, manifest, self.deleted, self.left_out, self.relabelled, dict(made.how),
            sum(new.index.sha256 != item.shard.index.sha256 for new, item in zip(made.shards, taken, strict=True)),
            (*self.notes, *self.hints), time.perf_counter() - started, self.changes, version,
        )  # fmt: skip

    def manifest(self, made: Linked, folder: str) -> Manifest:
        """Return the manifest of the new pack, whose new files are in this folder."""
        counts = {**self._manifest.counts, **{name: len(self.listings[name]) for name in ("rejected", "skipped")}}
        if changed := len(self.listings["changed"]):
            counts["changed"] = changed
        manifest = replace(
            self._manifest,
            counts=counts,
            options=dict(sorted(self._recorded.items())),
            rejected=tuple(islice(self.listings["rejected"], MOST_IN_MANIFEST)),
            notes=(*self.notes, *self._manifest.notes),
            lists={},
            companions=made.companions,
            linked=made.linked,
            made_from=tuple(self._origins),
            packer=packer.__version__,
        )
        paths = (os.path.join(folder, shard.index.name) for shard in made.shards)
        others = (self._source.manifest.path_of(self._source.path, shard.index.name) for shard in made.shards)
        files = (path if os.path.lexists(path) else other for path, other in zip(paths, others, strict=True))
        return recount(manifest, made.shards, map(read_index, files))


def _first_batch(table: Any) -> Any:
    return table.to_batches()[0]


def _value(text: str) -> Any:
    """Return a value of extras: JSON, else the text itself."""
    try:
        return read_json(text.encode("utf-8", "surrogateescape"))
    except ValueError:
        return text


def _with_extra(batch: Callable[[], Any], rows: Int64, name: str, value: Any) -> Any:
    """Return an index with a value, or without one (None), in the extras of these rows."""
    made = batch()
    texts: Any = column(pa.Table.from_batches([made]), EXTRAS)
    new: list[str | None] = []
    for row in rows.tolist():
        members = {**object_of(texts[row]), name: value}
        new.append(
            BY_NAME[EXTRAS].kind.text({key: one for key, one in members.items() if one is not None or key != name})
        )
    mask = np.zeros(len(made), np.bool_)
    mask[rows] = True
    old = made.column(made.schema.get_field_index(EXTRAS))
    return with_column(made, EXTRAS, pc.replace_with_mask(old, pa.array(mask), pa.array(new, pa.string())))
