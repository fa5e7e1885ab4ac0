"""Reads the source once: its images, their sizes, their labels, and which of them are bad.

The result is one compact table, so that labels are parsed once, mistakes show before hours of packing, and workers
can share the table as a mapped file.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer.errors import BadInput, BadLabel, StorageError, UsageError, plural, printable
from packer.format.index_rows import annotation_arrays
from packer.format.manifest import Rejected
from packer.format.schema import ANNOTATION_FIELDS
from packer.format.schema import SCHEMA as INDEX_SCHEMA
from packer.images.base import Header
from packer.images.header import (
    Mode,
    decoded_shape,
    losses,
)
from packer.packing.convert import rejected
from packer.packing.headers import HeaderJob, Headers, read_headers
from packer.packing.options import BuildOptions
from packer.packing.resolve import ClassIds, Resolver, read_classes
from packer.sources import check_options, joined, open_source, recognize
from packer.sources.base import Source, SourceOptions, Tree
from packer.sources.tree import find_tree
from packer.types import Annotation, Progress

IMAGES_A_JOB = 2048
TURNED_BY_A_QUARTER = 5
"""From this Exif orientation on, width and height are swapped."""
FAULTS = ("permission", "vanished", "unreadable")
"""Reasons of `find_tree` that are faults rather than choices: a folder that cannot be listed."""

BASE_SCHEMA = pa.schema(
    [
        ("path", pa.binary()),
        ("bytes", pa.int64()),
        ("height", pa.int32()),
        ("width", pa.int32()),
        ("channels", pa.int8()),
        ("wide", pa.bool_()),
        ("code", pa.int32()),
    ]
)
"""height, width, channels of the decoded, upright image; `wide` for uint16; `code` is `Header.code`."""

ReadHeaders = Callable[[Sequence[HeaderJob]], Iterator[tuple[int, Headers]]]
"""Yields (number of the job, its headers), in any order."""


@dataclass
class Inputs:
    """The inputs found in the source."""

    table: Any
    """pyarrow.Table of BASE_SCHEMA and the annotation columns of the index that any image has: the inputs to pack, in
    byte order of their paths."""
    classes: tuple[str, ...] = ()
    fields: tuple[str, ...] = ()
    rejected: list[Rejected] = field(default_factory=list)
    skipped: list[tuple[str, str]] = field(default_factory=list)
    """(path, reason) of images that were left out on purpose."""
    labels: tuple[str, ...] = ()
    """The kinds of labels that were read, with ``auto`` resolved."""
    boxes: int = 0
    """Number of boxes in the images to pack; the same for landmarks."""
    landmarks: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    losses: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)
    flip_index: tuple[int, ...] | None = None
    """Index of the mirror image of each landmark or keypoint, if a source has it."""

    @property
    def found(self) -> int:
        """Number of inputs to pack, rejected and skipped."""
        return len(self.table) + len(self.rejected) + len(self.skipped)

    @property
    def asked(self) -> int:
        """Number of inputs that were not skipped, to which ``--max-bad`` refers."""
        return len(self.table) + len(self.rejected)


def read_headers_here(jobs: Sequence[HeaderJob]) -> Iterator[tuple[int, Headers]]:
    """Read the headers of each job in this process."""
    return enumerate(map(read_headers, jobs))


def read_inputs(
    options: BuildOptions, progress: Progress | None = None, read: ReadHeaders = read_headers_here
) -> Inputs:
    """Walk the source folder, read every image's header and every label.

    Args:
        options: What to build.
        progress: Receives the images that were read.
        read: Reads headers; a build does it in its worker processes.

    Returns:
        The table of inputs and everything else that was found. Bad inputs are listed in `rejected`.

    Raises:
        UsageError: The source or its labels cannot be used at all.
    """
    if not os.path.isdir(options.source):
        problem = "is not a folder" if os.path.lexists(options.source) else "no such folder"
        raise UsageError(options.source, problem, "give the folder that holds the images")
    tree, skipped = find_tree(os.path.abspath(options.source))
    inputs = Inputs(table=BASE_SCHEMA.empty_table())
    for path, reason in skipped:
        if reason.partition(":")[0] in FAULTS:  # it may hold any number of images, so it must not be skipped
            inputs.rejected.append(rejected(path, BadInput("", f"cannot be read: {reason}", "check its permissions")))
        else:
            inputs.skipped.append((os.fsdecode(path), reason))
    if not tree.images:
        raise UsageError(options.source, "no images found", "give the folder that holds the images")
    sources = _open_sources(tree, options, inputs)
    fixed = None if options.classes is None else read_classes(options.classes)
    resolver = Resolver(ClassIds(fixed), options.boxes)
    table = _Table(options, resolver, inputs)
    _read_all(tree, sources, table, options, read, progress or Progress())
    declared = [source.classes for source in sources if source.classes is not None]
    inputs.classes, class_ids = resolver.classes.final(declared)
    table.finish(class_ids)
    inputs.counts.update(resolver.counts)
    for source in sources:
        inputs.notes += source.notes
        inputs.flip_index = inputs.flip_index or getattr(source, "flip_index", None)
    inputs.notes += [f"{what} in {plural(count, 'image')}" for what, count in sorted(inputs.losses.items())]
    return inputs


def _open_sources(tree: Tree, options: BuildOptions, inputs: Inputs) -> list[Source]:
    specs = list(options.labels)
    if specs == ["auto"]:
        choice = recognize(tree, SourceOptions(options.split, _one(options.columns)))
        inputs.notes.append(f"--labels {printable(choice.spec)}: {choice.why}")
        specs = [choice.spec]
    check_options(specs, SourceOptions(options.split, _one(options.columns)))
    sources_of = joined(specs)
    inputs.labels = tuple(spec.partition(":")[0] for spec, _ in sources_of)
    columns: Iterator[str | None] = iter(options.columns)
    sources = []
    for spec, more_files in sources_of:
        of_list = (_one(options.columns) or next(columns, None)) if spec.startswith("list:") else None
        source_options = SourceOptions(options.split, of_list, None, more_files, options.rle == "polygons")
        sources.append(open_source(spec, tree, source_options))
    return sources


def _one(columns: tuple[str, ...]) -> str | None:
    return columns[0] if len(columns) == 1 else None


class _Table:
    """Collects the table of inputs, one chunk of images at a time."""

    def __init__(self, options: BuildOptions, resolver: Resolver, inputs: Inputs) -> None:
        self._mode = cast(Mode, options.mode)
        self._resolver = resolver
        self.inputs = inputs
        self._fields: set[str] = set()
        self._chunks: list[tuple[list[Any], dict[str, Any]]] = []

    def add(self, paths: Sequence[bytes], headers: Headers, sources: Sequence[Source]) -> None:
        """Add the images at `paths` with their labels; reject those that cannot be packed."""
        annotations, good = [], []
        for number, (path, (_, width, height, code)) in enumerate(zip(paths, headers.facts.tolist(), strict=True)):
            try:
                if number in headers.bad:
                    raise headers.bad[number]
                raws = [source.annotate(path) for source in sources]
                annotation = self._resolver.of_label(raws)
                if annotation is None:
                    annotation = self._resolver.annotation(raws, Header.from_code(code, width, height))
                    self._look_at(annotation, path)
            except BadInput as error:
                self.inputs.rejected.append(rejected(path, error))
            else:
                annotations.append(annotation)
                good.append(number)
        if good:
            self._append([paths[number] for number in good], headers.facts[good], annotations)

    def _look_at(self, annotation: Annotation, path: bytes) -> None:
        try:
            json.dumps([dict(annotation.box_fields), dict(annotation.extras)], allow_nan=False)
        except ValueError as error:
            raise BadLabel(path, f"an annotation that JSON cannot hold: {error}", "fix the label") from None
        self._fields.update(f"box_fields.{name}" for name in annotation.box_fields)

    def _append(self, paths: list[bytes], facts: NDArray[np.int64], annotations: list[Annotation]) -> None:
        size, width, height, codes = facts.T
        turned = (codes >> 3 & 15) >= TURNED_BY_A_QUARTER
        unique, which, counts = np.unique(codes, return_inverse=True, return_counts=True)
        headers = [Header.from_code(code, 1, 1) for code in unique.tolist()]
        shapes = [decoded_shape(header, self._mode) for header in headers]
        for header, count in zip(headers, counts.tolist(), strict=True):
            always = losses(header, "unchanged")
            for what in losses(header, self._mode):
                self.inputs.losses[what if what in always else f"{what} (--mode unchanged keeps that)"] += count
        columns = [
            pa.array(paths, pa.binary()),
            size,
            np.where(turned, width, height).astype(np.int32),
            np.where(turned, height, width).astype(np.int32),
            np.array([channels for _, _, channels, _ in shapes], np.int8)[which],
            np.array([dtype == "uint16" for *_, dtype in shapes], np.bool_)[which],
            codes.astype(np.int32),
        ]
        arrays = zip(ANNOTATION_FIELDS, annotation_arrays(annotations), strict=True)
        there = {name: array for name, array in arrays if array.null_count < len(array)}
        self._fields.update(there.keys() - {"box_fields"})
        for name in ("boxes", "landmarks"):
            if name in there:
                setattr(self.inputs, name, getattr(self.inputs, name) + len(there[name].values))
        self._chunks.append(([pa.array(column) for column in columns], there))

    def finish(self, class_ids: NDArray[np.int64]) -> None:
        """Finish the table, replacing preliminary class ids with the final ones."""
        names = [name for name in ANNOTATION_FIELDS if any(name in there for _, there in self._chunks)]
        schema = pa.schema([*BASE_SCHEMA, *(INDEX_SCHEMA.field(name) for name in names)])
        batches = []
        while self._chunks:
            columns, there = self._chunks.pop(0)
            for name in names:
                array = there.get(name)
                if array is None:
                    array = pa.nulls(len(columns[0]), schema.field(name).type)
                elif name in ("label", "box_labels"):
                    array = _renumbered(array, class_ids)
                columns.append(array)
            batches.append(pa.RecordBatch.from_arrays(columns, schema=schema))
        self.inputs.table = pa.Table.from_batches(batches, schema)
        self.inputs.fields = tuple(sorted(self._fields))


def _renumbered(array: Any, class_ids: NDArray[np.int64]) -> Any:
    """Return a column of class ids, or of lists of them, with ids replaced; nulls keep -1."""
    ids = np.append(class_ids, -1)
    if pa.types.is_list(array.type):
        values = pa.array(ids[np.frombuffer(array.values.buffers()[1] or b"", np.int64, len(array.values))])
        return pa.ListArray.from_arrays(array.offsets, values, mask=array.is_null())
    labels = np.frombuffer(array.buffers()[1], np.int32, len(array))
    return pa.array(ids[labels].astype(np.int32), mask=array.is_null().to_numpy(zero_copy_only=False))


def _read_all(
    tree: Tree, sources: Sequence[Source], table: _Table, options: BuildOptions, read: ReadHeaders, progress: Progress
) -> None:
    inputs = table.inputs
    paths: Sequence[bytes] = tree.images
    for source in sources:
        covered = [source.in_split(path) for path in paths]
        reason = getattr(source, "outside", None) or f"not in split {options.split}"
        inputs.skipped += [(os.fsdecode(path), reason) for path, there in zip(paths, covered, strict=True) if not there]
        paths = [path for path, there in zip(paths, covered, strict=True) if there]
    starts = range(0, len(paths), IMAGES_A_JOB)
    jobs = [HeaderJob(tree.root, tuple(paths[start : start + IMAGES_A_JOB]), options.max_pixels) for start in starts]
    waiting: dict[int, Headers] = {}
    following = 0
    for number, headers in read(jobs):
        waiting[number] = headers
        while following in waiting:  # keep the order of the paths, whichever worker is first
            table.add(jobs[following].paths, waiting.pop(following), sources)
            progress.advance(len(jobs[following].paths))
            following += 1
    for source in sources:
        for unmatched in source.unmatched_labels():
            inputs.rejected.append(rejected(os.fsencode(unmatched.where), unmatched))


def write_table(table: Any, path: str) -> None:
    """Write the table for the workers to map. Raise StorageError on failure."""
    try:
        with open(path, "xb") as file, pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table)
    except OSError as error:
        raise StorageError(path, f"cannot be written: {error.strerror or error}") from None
