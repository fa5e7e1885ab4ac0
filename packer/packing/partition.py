"""Reads the headers and labels of some images, in a worker process or in this one, and writes their rows as a file."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer.errors import BadBox, BadInput, BadLabel, NoLabel
from packer.format.lists import Changed, Skipped
from packer.format.manifest import Rejected
from packer.images.header import Mode, decoded_shape, losses_named
from packer.images.image_headers import Header, orientations
from packer.images.parts import BY_KIND, FactsFound, PartKind, check_size
from packer.model.annotation import Annotation, PartFile, RawAnnotation
from packer.model.fields import FIELD_NAMES, NO_TEXTS, Texts, annotation_arrays, label_arrays, listed_members, texts_of
from packer.model.tiles import TileCutter, Tiling
from packer.packing.build_options import BuildOptions
from packer.packing.class_map import NOTHING_LEFT, ClassMap
from packer.packing.make_record import (
    ETAG_SCHEMA,
    PART_COLUMN,
    PART_FILE,
    PLACE_SCHEMA,
    UNREAD,
    HeaderJob,
    Headers,
    place_of_part,
    read_headers,
    read_part_facts,
    rejected,
)
from packer.packing.resolve import ClassIds, Resolver
from packer.sources.paths import as_text, is_text
from packer.sources.source import BaseSource
from packer.stores import is_url
from packer.system.atomic import replacing
from packer.system.child import Decoding, Report, unmarked
from packer.system.storage import storage_errors

NO_LABEL = "no label"
"""Why an image is skipped that has none."""
TURNED_BY_A_QUARTER = 5
"""From this Exif orientation on, width and height are swapped."""
UPRIGHT = "masks taken to be upright, as Exif turns the image and its size stays the same,"
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
UNLABELED = "unlabeled"
"""One more column of a file if images without a label are packed without objects: which ones."""
CLASSES = b"packer.classes"
"""Metadata of a table: the names of its class ids, as JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionJob(HeaderJob):
    """Some images of a source, in the order of their paths."""

    options: BuildOptions
    classes: tuple[str, ...] | None
    """The names of ``--classes FILE``."""
    class_map: ClassMap | None
    file: str
    """The file to write; there is none if no image is good."""
    sources: tuple[BaseSource, ...] | None = None
    """Sources that know the labels of these images. None: read only the headers."""
    etags: tuple[str, ...] | None = None
    """Of the images, if they are objects of a store."""
    known: Headers | None = None
    """What stands for the headers. None: they are read."""

    @property
    def schema(self) -> Any:
        """Schema of the columns that are not annotations."""
        return base_schema(bool(self.archives), self.etags is not None)


@dataclass(slots=True)
class Partition:
    """What was found in some images; their rows are in a file."""

    rows: int = 0
    """Number of images to pack."""
    classes: list[str] = field(default_factory=list)
    """The names that were met."""
    class_counts: Counter[str] = field(default_factory=Counter)
    """With a `ClassMap`: the number of labels of each class, as the labels call it."""
    columns: set[str] = field(default_factory=set)
    """The FIELD_NAMES that an image has, and the columns of parts."""
    part_facts: dict[str, FactsFound] = field(default_factory=dict)
    """What the files of each part are."""
    members: set[str] = field(default_factory=set)
    """The listed fields that are members of one: ``box_fields.pose``."""
    counts: Counter[str] = field(default_factory=Counter)
    losses: Counter[str] = field(default_factory=Counter)
    rejected: list[Rejected] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    changed: list[Changed] = field(default_factory=list)
    suspects: Any = None
    """Record batch of images that were rejected for a label that an option would let pass."""
    found: list[Mapping[Any, Any]] = field(default_factory=list)
    """The `found` of each source."""


def base_schema(in_archives: bool, in_store: bool) -> Any:
    """Return the schema of the columns that are not annotations."""
    return pa.schema([*BASE_SCHEMA, *(PLACE_SCHEMA if in_archives else ETAG_SCHEMA if in_store else ())])


def read_partition(
    job: PartitionJob, report: Report | None = None, decoding: Decoding = unmarked
) -> Partition | Headers:
    """Return what is found in the images of a job; only their headers if it has no sources."""
    headers = read_headers(job, report, decoding) if job.known is None else job.known
    return headers if job.sources is None else make_partition(job, headers, job.sources)


def make_partition(job: PartitionJob, headers: Headers, sources: Sequence[BaseSource]) -> Partition:
    """Write the rows of images whose headers are read, with their labels; reject those that cannot be packed.

    Raises:
        StorageError: The file cannot be written.
    """
    result = Partition()
    classes = ClassIds(job.classes)
    resolver = Resolver(classes, job.options.boxes, job.options.instance_masks)
    kinds = {name: BY_KIND[spec.kind] for source in sources for name, spec in source.parts.items()}
    of_all_splits, more_names = job.options.one_split is not None and job.classes is None, dict[str, None]()
    tiling = job.options.tiling()
    good: list[int] = []
    suspects: list[int] = []
    unlabeled: list[bool] = []
    annotations: list[Annotation] = []
    texts: list[Texts] = []
    files: list[Mapping[str, PartFile]] = []
    for number, (path, (_, width, height, code)) in enumerate(zip(job.paths, headers.facts.tolist(), strict=True)):
        try:
            if number in headers.bad:
                raise headers.bad[number]
            raws, missing, left_out = _labels_of(job, path, sources, result)
            if left_out:
                more_names |= names_of([path], sources) if of_all_splits else {}
                result.skipped.append(Skipped(os.fsdecode(path), left_out))
                continue
            header = None if code == UNREAD else Header.from_code(code, width, height)
            parts = {
                name: _checked_part(job, file, header, kinds[name], result.part_facts.setdefault(name, FactsFound()))
                for name, file in _parts_of(raws).items()
            }
            annotation, encoded = resolver.of_label(raws), NO_TEXTS
            if annotation is None:
                assert header is not None  # it is read late only where no label needs it
                annotation = resolver.annotation(raws, header, path)
                encoded = checked_texts(annotation, path)
                result.members.update(listed_members(annotation))
            its = [annotation] if tiling is None else tiles_of(annotation, cast(Header, header), tiling, path)
        except BadInput as error:
            result.rejected.append(rejected(path, error))
            if of_all_splits:  # the builds of other splits cannot know that it is rejected
                more_names |= names_of([path], sources)
            if isinstance(error, BadBox | NoLabel):
                suspects.append(number)
        else:
            annotations += its
            texts += [encoded] if tiling is None else map(texts_of, its)
            unlabeled += ["" in missing] * len(its)
            result.losses.update(f"no {name}" for name in missing if name)
            files += [parts] * len(its)
            good += [number] * len(its)
    result.counts, result.changed = resolver.counts, list(resolver.changed)
    result.found = [getattr(source, "found", None) or {} for source in sources]  # copies of other packages may lack it
    if suspects:
        columns = _columns(job, suspects, headers, Counter())
        result.suspects = pa.RecordBatch.from_arrays(columns, schema=job.schema)
    for name in more_names if job.class_map is None else job.class_map.new_names(more_names):
        classes.id_of(name, "")
    if good or of_all_splits:
        result.classes = [] if job.classes is not None else classes.names
    if good:
        result.rows = len(good)
        batch = dict(zip(job.schema.names, _columns(job, good, headers, result.losses), strict=True))
        if job.options.instance_masks or any(kind.of_pixels for kind in kinds.values()):
            result.losses += Counter({UPRIGHT: _same_size_turned(headers.facts[good])})
        arrays = zip(FIELD_NAMES, annotation_arrays(annotations, texts), strict=True)
        batch |= {name: array for name, array in arrays if array.null_count < len(array)}
        for name in sorted({name for parts in files for name in parts}):
            rows = [file._asdict() if (file := parts.get(name)) is not None else None for parts in files]
            batch[name + PART_COLUMN] = pa.array(rows, PART_FILE)
        result.columns = batch.keys() - job.schema.names
        if any(unlabeled):
            result.counts["missing_labels"] += sum(unlabeled)
            batch[UNLABELED] = pa.array(unlabeled)
        _write(pa.RecordBatch.from_pydict(batch, metadata={CLASSES: json.dumps(result.classes)}), job.file)
    return result


def tiles_of(annotation: Annotation, header: Header, tiling: Tiling, path: bytes) -> list[Annotation]:
    """Return what each tile of an image has of its annotation. Raise BadLabel if a mask in that is damaged."""
    size = header.upright_size
    try:
        cutter = TileCutter(annotation, size, tiling.min_visible)
    except ValueError as error:
        raise BadLabel(path, f"has a mask that is damaged: {error}", "leave the image out") from None
    return [cutter.cut((x, y, width, height)) for x, y, width, height in tiling.windows(*size).tolist()]


def _parts_of(raws: Sequence[RawAnnotation]) -> dict[str, PartFile]:
    """Return the files of the parts of an image. Raise BadLabel if two sources give the same part."""
    found: dict[str, PartFile] = {}
    for raw in raws:
        if both := found.keys() & raw.parts.keys():
            raise BadLabel(raw.origin, f"gives a {min(both)}, and so does another label", "leave one of them out")
        found |= raw.parts
    return found


def _checked_part(
    job: PartitionJob, file: PartFile, image: Header | None, kind: PartKind, found: FactsFound
) -> PartFile:
    """Return the file of a part with its size. Raise BadPart if it is not one of the image.

    In a store, that shows when it is packed: a request for each header takes as long as one for the whole file.
    """
    path, place = place_of_part(job.root, file)
    if is_url(path) or (image is None and kind.of_pixels):
        return file
    try:
        facts, size = read_part_facts(path, place, job.archives, kind, job.max_pixels)
        if facts.size is not None and image is not None:
            check_size(facts.size, image)
            found.add(facts.dtype, facts.channels, file.path)
    except BadInput as error:
        raise kind.error(file.path, error.problem, error.next_step) from None
    return file._replace(bytes=size)


def read_names(
    job: PartitionJob, report: Report | None = None, decoding: Decoding = unmarked
) -> dict[str, None] | None:
    """Return the names of the classes of the images of a job; None if it has no sources."""
    return None if job.sources is None else names_of(job.paths, job.sources)


def names_of(paths: Sequence[bytes], sources: Sequence[BaseSource]) -> dict[str, None]:
    """Return the names of the classes in the labels of images; those that cannot be read have none."""
    found: dict[str, None] = {}
    for path in paths:
        for source in sources:
            with suppress(BadInput):
                raw = source.annotate(path)
                found |= dict.fromkeys(name for name in (raw.label, *(raw.box_labels or ())) if name is not None)
    return {name: None for name in found if is_text(name)}


def _write(batch: Any, path: str) -> None:
    """Write a file. Of two attempts at it, the later one replaces the other, which wrote the same."""
    with storage_errors(path), replacing(path, sync=False) as file, pa.ipc.new_file(file, batch.schema) as writer:
        writer.write_batch(batch)


def _same_size_turned(facts: NDArray[np.int64]) -> int:
    """Return how many images are turned by their Exif orientation, and have the same size when they are not."""
    _, width, height, codes = facts.T
    orientation = np.where(codes == UNREAD, 1, orientations(codes))
    return int(((orientation > 1) & ((orientation < TURNED_BY_A_QUARTER) | (width == height))).sum())


def _columns(job: PartitionJob, numbers: list[int], headers: Headers, lost: Counter[str]) -> list[Any]:
    """Return the columns that are not annotations, and count what the mode loses of these images."""
    mode = cast(Mode, job.options.mode)
    size, width, height, codes = headers.facts[numbers].T
    turned = orientations(codes) >= TURNED_BY_A_QUARTER
    unique, which, counts = np.unique(codes, return_inverse=True, return_counts=True)
    # a mode that takes UNREAD codes gives the same channels to every header
    found = [Header.from_code(max(0, code), 1, 1) for code in unique.tolist()]
    shapes = [decoded_shape(header, mode) for header in found]
    for header, code, count in zip(found, unique.tolist(), counts.tolist(), strict=True):
        for what in losses_named(header, mode) if code != UNREAD else ():
            lost[what] += count
    columns: list[Any] = [
        [job.paths[number] for number in numbers],
        size,
        np.where(turned, width, height).astype(np.int32),
        np.where(turned, height, width).astype(np.int32),
        np.array([channels for _, _, channels, _ in shapes], np.int8)[which],
        np.array([dtype == "uint16" for *_, dtype in shapes], np.bool_)[which],
        codes.astype(np.int32),
    ]
    if job.etags is not None:
        columns.append([job.etags[number] for number in numbers])
    elif job.places is not None:
        archive, offset, _, packed, crc = job.places[numbers].T
        columns += [archive.astype(np.int32), offset, packed, crc]
    return [pa.array(column, kind) for column, kind in zip(columns, job.schema.types, strict=True)]


def checked_texts(annotation: Annotation, path: bytes) -> Texts:
    """Return `texts_of` an annotation. Raise BadLabel if an index cannot hold it."""
    try:
        return texts_of(annotation)
    except ValueError as error:
        raise BadLabel(path, f"an annotation that JSON cannot hold: {error}", "fix the label") from None


def _labels_of(
    job: PartitionJob, path: bytes, sources: Sequence[BaseSource], result: Partition
) -> tuple[list[RawAnnotation], set[str], str]:
    """Return the annotations of an image, the parts that it lacks ("" is a label), and why it is left out, or "".

    Raises:
        BadLabel: A label is invalid, or missing (NoLabel) where each image must have one.
    """
    raws: list[RawAnnotation] = []
    policy, fault, reason, missing = job.options.missing_labels, None, NO_LABEL, set[str]()
    for source in sources:
        try:
            raws.append(source.annotate(path))
        except NoLabel as error:
            fault = fault or error
            missing |= {*source.parts} or {""}
            if policy != "empty":
                break
    if job.class_map is not None:
        raws, emptied, left_out = job.class_map.of_image(raws, path, result.class_counts)
        if left_out:
            return raws, set(), left_out
        if emptied is not None:
            reason = NOTHING_LEFT if fault is None else reason
            fault = fault or emptied
            missing.add("")
    if fault is not None and policy == "error":
        raise fault
    return raws or [RawAnnotation(origin=as_text(path))], missing, reason if fault and policy == "skip" else ""


ROWS_A_BATCH = 1 << 16
BATCH_BYTES = 64 << 20
"""A batch of rows with many labels is shorter."""


def write_table(batches: Iterable[Any], schema: Any, path: str) -> None:
    """Write record batches as a file for workers to map, in batches of about ROWS_A_BATCH.

    Raises:
        StorageError: The disk does not take it.
    """
    waiting: list[Any] = []
    rows = size = 0
    with storage_errors(path), open(path, "xb") as file, pa.ipc.new_file(file, schema) as writer:
        for batch in batches:
            waiting.append(batch)
            rows, size = rows + len(batch), size + batch.nbytes
            if rows >= ROWS_A_BATCH or size >= BATCH_BYTES:
                writer.write_table(pa.Table.from_batches(waiting, schema).combine_chunks())
                rows, size = 0, 0
                waiting.clear()
        if waiting:
            writer.write_table(pa.Table.from_batches(waiting, schema).combine_chunks())


def map_table(file: str) -> Any:
    """Return the table in a file, which stays mapped as long as it is used."""
    return pa.ipc.open_file(pa.memory_map(os.fsencode(file))).read_all()


def classes_of(table: Any) -> tuple[str, ...]:
    """Return the names of the classes of a table of inputs."""
    return tuple(json.loads(table.schema.metadata[CLASSES]))


def pieces(table: Any) -> Iterator[tuple[int, Any]]:
    """Yield (number of the first row, table of some rows)."""
    start = 0
    for batch in table.to_batches():
        yield start, pa.Table.from_batches([batch])
        start += len(batch)


def rows_at(table: Any, numbers: NDArray[np.int64]) -> Any:
    """Return the rows of a mapped table with these numbers, in their order, as a table in memory."""
    order = np.argsort(numbers, kind="stable")
    ascending = numbers[order]
    found, taken = [], 0
    for start, piece in pieces(table):
        stop = int(np.searchsorted(ascending, start + len(piece)))
        if stop > taken:
            found.append(piece.take(pa.array(ascending[taken:stop] - start)))
            taken = stop
    back = np.empty(len(order), np.int64)
    back[order] = np.arange(len(order))
    rows = pa.concat_tables(found) if found else table.slice(0, 0)
    return mark_missing_labels(rows.combine_chunks().take(pa.array(back)).combine_chunks())


def mark_missing_labels(table: Any) -> Any:
    """Return a table of which rows were taken with -1 below the nulls of `label` again, where Arrow leaves zeros."""
    place = table.schema.get_field_index("label")
    if place < 0 or not table.column(place).null_count:
        return table
    labels = label_arrays(table.column(place).fill_null(-1).to_numpy())[0]
    return table.set_column(place, table.schema.field(place), labels)


def no_objects(array: Any, rows: NDArray[np.bool_]) -> Any:
    """Return a column of lists with the nulls in these rows replaced by empty lists: nothing is in those images."""
    null = array.is_null().to_numpy(zero_copy_only=False) & ~rows
    lengths = np.diff(array.offsets.to_numpy()) if len(array.offsets) else np.zeros(len(array), np.int64)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), array.flatten(), mask=pa.array(null))


def renumbered(array: Any, class_ids: NDArray[np.int64]) -> Any:
    """Return a column of class ids, or of lists of them, with ids replaced; nulls keep -1."""
    ids = np.append(class_ids, -1)
    if pa.types.is_list(array.type):
        values = pa.array(ids[np.frombuffer(array.values.buffers()[1] or b"", np.int64, len(array.values))])
        return pa.ListArray.from_arrays(array.offsets, values, mask=array.is_null())
    labels = np.frombuffer(array.buffers()[1], np.int32, len(array))
    return pa.array(ids[labels].astype(np.int32), mask=array.is_null().to_numpy(zero_copy_only=False))
