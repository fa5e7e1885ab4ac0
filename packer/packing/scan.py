"""Reads the source once: which images there are, how large, what their labels say, and which are bad.

All that packing needs later stands in one compact table (about 150 bytes an image), so that the labels are
parsed once, mistakes in them show before hours of packing, and workers share the table as a mapped file.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer.errors import BadImage, BadInput, NotAnImage, UsageError, shown
from packer.format.manifest import Rejected
from packer.images.header import (
    Header,
    IncompleteHeader,
    Mode,
    check_header,
    decoded_shape,
    losses,
    read_header,
)
from packer.packing.options import BuildOptions
from packer.packing.resolve import ClassIds, Resolver
from packer.packing.source_file import FileView, open_source_file
from packer.packing.table import ROWS_A_CHUNK, SCHEMA, annotation_to_text, fields_of
from packer.sources import check_options, open_source, recognise
from packer.sources.base import Source, SourceOptions, Tree
from packer.sources.tree import find_tree

HEAD_BYTES = 16 * 1024  # holds the header of nearly every image; the rest are read whole
SNIFFED_BYTES = 64  # enough to tell an image by
SMALLEST_IMAGE_BYTES = 26  # a GIF of one pixel
READ_WHOLE_BYTES = 256 * 1024
FAULTS = ("permission", "vanished", "unreadable")
"""Reasons of `find_tree` that are no one's wish: a folder that cannot be listed."""
MAX_CLASS_FILE_BYTES = 16 * 1024**2

Progress = Callable[[int], None]


@dataclass
class Inputs:
    """What was found in the source."""

    table: Any
    """pyarrow.Table of SCHEMA: the inputs to pack, in byte order of their paths."""
    classes: tuple[str, ...] = ()
    class_ids: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    """Final class id of each id in the table's annotations."""
    fields: tuple[str, ...] = ()
    rejected: list[Rejected] = field(default_factory=list)
    skipped: list[tuple[str, str]] = field(default_factory=list)
    """(path, reason) of images that were left out on purpose."""
    labels: tuple[str, ...] = ()
    """The labels that were read, after ``auto`` was decided."""
    boxes: int = 0
    """Of the images to pack, as are the landmarks."""
    landmarks: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    losses: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)

    @property
    def found(self) -> int:
        """found = to pack + rejected + skipped."""
        return len(self.table) + len(self.rejected) + len(self.skipped)

    @property
    def asked(self) -> int:
        """The inputs that were to be packed: ``--max-bad`` counts by these."""
        return len(self.table) + len(self.rejected)


def read_inputs(options: BuildOptions, progress: Progress = lambda n: None) -> Inputs:
    """Walk the source folder, read every image's header and every label.

    Raises UsageError where the source or its labels are not usable at all; an input that is bad by itself
    is listed in `rejected`.
    """
    if not os.path.isdir(options.source):
        problem = "is no folder" if os.path.lexists(options.source) else "no such folder"
        raise UsageError(options.source, problem, "give the folder that holds the images")
    tree, skipped = find_tree(os.path.abspath(options.source), _looks_like_an_image)
    inputs = Inputs(table=SCHEMA.empty_table())
    for path, reason in skipped:
        if reason.partition(":")[0] in FAULTS:  # who knows how many images: not left out on purpose
            inputs.rejected.append(rejected(path, BadInput("", f"cannot be read: {reason}", "check its permissions")))
        else:
            inputs.skipped.append((os.fsdecode(path), reason))
    if not tree.images:
        raise UsageError(options.source, "no images found", "give the folder that holds the images")
    sources = _open_sources(tree, options, inputs)
    fixed = None if options.classes is None else _read_classes(options.classes)
    resolver = Resolver(ClassIds(fixed), options.boxes)
    _read_all(tree, sources, _Reader(tree.root, options, resolver, inputs), progress)
    declared = [source.classes for source in sources if source.classes is not None]
    inputs.classes, inputs.class_ids = resolver.classes.final(declared)
    inputs.counts.update(resolver.counts)
    for source in sources:
        inputs.notes += source.notes
    inputs.notes += [
        f"{what} in {count} {'image' if count == 1 else 'images'}" for what, count in sorted(inputs.losses.items())
    ]
    return inputs


def _open_sources(tree: Tree, options: BuildOptions, inputs: Inputs) -> list[Source]:
    specs = list(options.labels)
    if specs == ["auto"]:
        choice = recognise(tree, SourceOptions(options.split, _one(options.columns)))
        inputs.notes.append(f"--labels {shown(choice.spec)}: {choice.why}")
        specs = [choice.spec]
    check_options(specs, SourceOptions(options.split, _one(options.columns)))
    inputs.labels = tuple(spec if not spec.startswith("list:") else "list" for spec in specs)
    columns: Iterator[str | None] = iter(options.columns)
    sources = []
    for spec in specs:
        is_list = spec.startswith("list:")
        of_list = (_one(options.columns) or next(columns, None)) if is_list else None
        source_options = SourceOptions(options.split, of_list, spec[5:] if is_list else None)
        sources.append(open_source(spec, tree, source_options))
    return sources


def _one(columns: tuple[str, ...]) -> str | None:
    return columns[0] if len(columns) == 1 else None


class _Reader:
    """Fills the table of one build's inputs."""

    def __init__(self, root: bytes, options: BuildOptions, resolver: Resolver, inputs: Inputs) -> None:
        self.root = root
        self.options = options
        self.mode = cast(Mode, options.mode)
        self.resolver = resolver
        self.inputs = inputs
        self.fields: set[str] = set()
        self._columns: list[list[Any]] = [[] for _ in SCHEMA]
        self._chunks: list[Any] = []

    def read(self, path: bytes, sources: Sequence[Source]) -> None:
        """One image with its labels; raises BadInput where it cannot be packed."""
        header, size = _read_file_header(os.path.join(self.root, path))
        check_header(header, self.options.max_pixels)
        raws = [source.annotate(path) for source in sources]
        annotation = self.resolver.annotation(raws, header)
        self.fields.update(fields_of(annotation))
        self.inputs.boxes += 0 if annotation.boxes is None else len(annotation.boxes)
        self.inputs.landmarks += 0 if annotation.landmarks is None else len(annotation.landmarks)
        always = losses(header, "unchanged")
        for what in losses(header, self.mode):
            self.inputs.losses[what if what in always else f"{what} (--mode unchanged keeps that)"] += 1
        height, width, channels, dtype = decoded_shape(header, self.mode)
        row = (path, size, height, width, channels, dtype == "uint16", annotation_to_text(annotation))
        for column, value in zip(self._columns, row, strict=True):
            column.append(value)
        if len(self._columns[0]) >= ROWS_A_CHUNK:
            self._flush()

    def _flush(self) -> None:
        arrays = [pa.array(c, f.type) for c, f in zip(self._columns, SCHEMA, strict=True)]
        self._chunks.append(pa.RecordBatch.from_arrays(arrays, schema=SCHEMA))
        self._columns = [[] for _ in SCHEMA]

    def finish(self) -> None:
        self._flush()
        self.inputs.table = pa.Table.from_batches(self._chunks, SCHEMA)
        self.inputs.fields = tuple(sorted(self.fields))

    def reject(self, path: bytes, error: BadInput) -> None:
        self.inputs.rejected.append(rejected(path, error))


def _read_all(tree: Tree, sources: Sequence[Source], reader: _Reader, progress: Progress) -> None:
    splits = list(sources) if reader.options.split is not None else []
    for path in tree.images:
        progress(1)
        if not all(source.covers(path) for source in splits):
            reader.inputs.skipped.append((os.fsdecode(path), f"not in split {reader.options.split}"))
            continue
        try:
            reader.read(path, sources)
        except BadInput as error:
            reader.reject(path, error)
    for source in sources:
        for leftover in source.leftovers():
            reader.reject(os.fsencode(leftover.where), leftover)
    reader.finish()


def rejected(path: bytes, error: BadInput) -> Rejected:
    """The entry of an input that `error` keeps out of the pack."""
    name = os.fsdecode(path)
    about_another_file = error.where and os.fsdecode(error.where) != name
    problem = str(error) if about_another_file else str(type(error)("", error.problem, error.next_step))
    return Rejected(name, error.reason, problem)


def _looks_like_an_image(path: bytes) -> bool:
    try:
        with open(path, "rb", buffering=0) as file:
            head = file.read(SNIFFED_BYTES)
        if len(head) < SMALLEST_IMAGE_BYTES:
            return False  # a short text, whatever it begins with
        read_header(head, complete=len(head) < SNIFFED_BYTES)
    except NotAnImage:
        return False
    except (BadImage, IncompleteHeader):
        return True
    except OSError:
        return False
    return True


def _read_file_header(path: bytes) -> tuple[Header, int]:
    with open_source_file(path) as (file, size):
        head = file.read(HEAD_BYTES)
        try:
            return read_header(head, complete=size <= len(head)), size
        except IncompleteHeader:
            if size < READ_WHOLE_BYTES:
                return read_header(head + file.readall()), size
            # a PNG's orientation may stand behind its pixels: those are not read from the disk
            return read_header(cast(bytes, FileView(file, size))), size


def _read_classes(path: str) -> list[str]:
    """The names of ``--classes FILE``: one a line, UTF-8, in id order."""
    try:
        with open(path, "rb") as file:
            text = file.read(MAX_CLASS_FILE_BYTES + 1)
    except OSError as error:
        raise UsageError(path, f"cannot be read: {error.strerror}", "give a text file, one class name a line") from None
    if len(text) > MAX_CLASS_FILE_BYTES:
        raise UsageError(path, f"is larger than {MAX_CLASS_FILE_BYTES} bytes", "give one class name a line")
    lines = text.removeprefix(b"\xef\xbb\xbf").replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
    names = [os.fsdecode(line.strip()) for line in lines]
    while names and not names[-1]:
        names.pop()
    if not names:
        raise UsageError(path, "holds no class names", "give one class name a line")
    for number, name in enumerate(names, 1):
        if not name:
            raise UsageError(f"{path}:{number}", "is an empty line, and every line is a class", "remove it")
    twice = next((name for name, n in Counter(names).items() if n > 1), None)
    if twice is not None:
        raise UsageError(path, f"names {shown(twice)} twice", "remove one of the lines")
    return names
