"""Arrow and Parquet files of images, as Hugging Face writes them."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product, repeat
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from packer.errors import BadLabel, UsageError, option, printable
from packer.files.parquet_pages import NO_PLACE, binary_places
from packer.model.annotation import RawAnnotation
from packer.repack.formats import ForeignFile, Format, FormatOptions, Known, Masked, Pairs, Rich, Row, class_of
from packer.sources.box_forms import FORMATS, Votes
from packer.sources.parquet_file import ParquetFile, columns_of_images, features_of
from packer.sources.parquet_source import ParquetMeaning, count_boxes, layout_of, objects_of
from packer.sources.parquet_values import numbers_of
from packer.sources.places import SourceFile

ROWS_AT_ONCE = 4096


class LabelColumns:
    """The labels in a table."""

    def __init__(self, table_file: Any, options: FormatOptions) -> None:
        """Look at the columns of a `ParquetFile`, or of what has its attributes. Raise UsageError if unclear."""
        pictures = [*table_file.image_columns, *table_file.mask_columns]
        if (image := options.columns.get("image")) is not None:
            if image not in pictures:
                choices = ", ".join(map(printable, pictures)) or "none"
                problem = f"{printable(image)} is not a column of images"
                raise UsageError(option("columns"), problem, f"those of {printable(table_file.name)} are: {choices}")
            table_file.image_columns = [image]
        if "mask" in options.columns:  # which may be any but the first of the others
            images = [name for name in table_file.image_columns if name != options.columns["mask"]][:1]
            others = [name for name in pictures if name not in images]
            table_file.image_columns, table_file.mask_columns = images, others
        self.layout: ParquetMeaning = layout_of(table_file, options.columns.get("label"))
        self._boxes = options.columns.get("boxes")
        if self._boxes not in (None, *FORMATS):
            raise UsageError(
                option("columns"),
                f"{printable(str(self._boxes))} do not say what the numbers of a box are",
                f"give {FORMATS}",
            )
        self.classes = self.layout.names
        self.tags = self.layout.tag_names or ()
        self.notes = list(self.layout.notes)

    def known(self, file: ForeignFile, table: Any) -> Iterator[Known]:
        """Yield what a table of `self.layout.columns` says of each row."""
        layout = self.layout
        votes = Votes()
        count_boxes(votes, table, layout)
        try:
            boxes = votes.result(self._boxes)
        except UsageError as error:
            choices = " or ".join(option("columns", f'"boxes={words}"') for words in FORMATS)
            raise UsageError(file.path, error.problem, f"pass {choices}") from None
        if votes.count:
            self.notes.append(votes.describe(boxes))
        only = layout.columns == (() if layout.label is None else (layout.label.column,))
        for start in range(0, len(table), ROWS_AT_ONCE):
            rows = table.slice(start, ROWS_AT_ONCE)
            if only and layout.label is not None:
                for number, value in enumerate(rows.column(0).to_pylist(), start):
                    yield self._class(value, f"{file.name} (row {number})")
                continue
            for number, values in enumerate(rows.to_pylist(), start):
                try:
                    yield self._row(values, boxes, f"{file.name} (row {number})")
                except BadLabel as error:
                    yield error

    def _class(self, value: Any, origin: str) -> Known:
        label = self.layout.label
        if label is None or value is None or value == "":
            return None
        if label.names is None:
            return class_of(value, None, origin)
        try:
            return label.name_of(value, origin)
        except BadLabel as error:
            return error

    def _row(self, values: dict[str, Any], boxes: Any, origin: str) -> Known:
        layout = self.layout
        known = None if layout.label is None else self._class(values[layout.label.column], origin)
        if isinstance(known, BadLabel | Rich):
            return known
        size = tuple(values[name] for name in layout.size)
        objects: dict[str, Any] = {}
        if layout.objects is not None:
            objects = objects_of(layout.objects, values[layout.objects.column], boxes, origin)
        raw = RawAnnotation(
            origin=origin,
            tags=layout.tags_of(values, origin),
            value=numbers_of(layout.values, values, origin),
            extras={name: layout.plain(name, values[name]) for name in layout.extras},
            image_size=size if len(size) == 2 and all(size) and layout.objects is not None else None,
            **objects,
        )
        plain = raw.tags is None and raw.value is None and not raw.extras and layout.objects is None
        return known if plain or isinstance(known, Exception) else Rich(known, raw)


MAGIC = b"ARROW1"
SMALL_BYTES = 1 << 20
"""What the values of a small file may become in any case."""
AGAIN = "write it again without compression: save_to_disk of Hugging Face's datasets does"


class Arrow(Format):
    """Reads the images of an Arrow file or stream; the roles are image, label, boxes and mask."""

    roles = ("image", "label", "boxes", "mask")

    def __call__(self, file: ForeignFile) -> Iterator[Row]:
        try:
            batches = _batches(file)
        except UsageError:
            raise
        except (pa.ArrowException, OSError, ValueError, IndexError, struct.error) as error:
            raise file.damaged(f"cannot be read as Arrow: {printable(str(error))}") from None
        base = pa.py_buffer(file.view).address
        schema = batches[0].schema if batches else pa.schema([])
        features = features_of(schema.metadata or {})
        images, masks = columns_of_images(schema, features)
        about: Any = SimpleNamespace(
            name=file.path, schema=schema, features=features, image_columns=images, mask_columns=masks
        )
        if not images:
            columns = ", ".join(map(printable, schema.names))
            raise UsageError(file.path, f"has no column of images (columns: {columns})", "name it image")
        wanted = self.options.columns
        about.image = wanted.get("image") or next((name for name in images if name != wanted.get("mask")), images[0])
        columns_of = LabelColumns(about, self.options)
        self.classes, self.tags, self.notes = columns_of.classes, columns_of.tags, columns_of.notes
        table = pa.Table.from_batches(batches).select(list(columns_of.layout.columns))
        known: Iterator[Known] = columns_of.known(file, table)

        def places(column: str) -> Iterator[tuple[bytes, int, int]]:
            for batch in batches:
                yield from _images(file, batch.column(column), base)

        def at(column: str) -> Iterator[tuple[int, int]]:
            return ((offset, size) for _, offset, size in places(column))

        mask = self.choose_mask({name: _pairs(file, at(about.image), at(name)) for name in about.mask_columns})
        self.notes += _mask_notes(mask, self.obstacles, about.mask_columns)
        masks_at = repeat(NO_PLACE) if mask is None else at(mask)
        for number, ((path, offset, size), place) in enumerate(zip(places(about.image), masks_at, strict=False)):
            says = next(known) if mask is None else Masked(next(known), *place)
            yield path or b"%08d" % number, offset, size, says, None


def _batches(file: ForeignFile) -> list[Any]:
    """Return the record batches, views of the mapped file, checked."""
    data = pa.py_buffer(file.view)
    messages = list(_messages(data))
    if sum(message.body.size for message in messages) > file.size:
        raise ValueError("its batches overlap")
    if sum(map(_claimed_bytes, messages)) > max(file.size, SMALL_BYTES):
        raise UsageError(file.path, "is compressed, and becomes larger than its file", AGAIN)
    if file.view[:6] == MAGIC:
        reader = pa.ipc.open_file(data)
        batches = [reader.get_batch(number) for number in range(reader.num_record_batches)]
    else:
        batches = list(pa.ipc.open_stream(data))
    for batch in batches:
        batch.validate(full=True)
    return batches


def _messages(data: Any) -> Iterator[Any]:
    """Yield the messages that the batches of a file or stream are read from, not decompressed."""
    if data[:6].to_pybytes() != MAGIC:
        yield from pa.ipc.MessageReader.open_stream(pa.BufferReader(data))
        return
    view = memoryview(data)
    (size,) = struct.unpack("<i", view[-10:-6])
    footer = view[len(view) - 10 - size : -10]
    for number in (2, 3):  # dictionaries, and record batches
        blocks = _follow(footer, _field(footer, _follow(footer, 0), number))
        if blocks is not None:
            (count,) = struct.unpack_from("<I", footer, blocks)
            for place, _, _ in struct.iter_unpack("<qi4xq", footer[blocks + 4 : blocks + 4 + 24 * count]):
                yield pa.ipc.read_message(data[place:])


def _claimed_bytes(message: Any) -> int:
    """Return what the buffers of a message say that they become, which is allocated before they are read."""
    about, body = memoryview(message.metadata), message.body
    root = _follow(about, 0)
    header = _follow(about, _field(about, root, 2))
    if message.type == "dictionary":
        header = _follow(about, _field(about, header, 1))
    elif message.type != "record batch":
        return 0
    buffers = _follow(about, _field(about, header, 2))
    if buffers is None or _field(about, header, 3) is None:  # not compressed
        return 0
    (count,) = struct.unpack_from("<I", about, buffers)
    places = list(struct.iter_unpack("<qq", about[buffers + 4 : buffers + 4 + 16 * count]))
    sizes = [struct.unpack_from("<q", body, place)[0] for place, size in places if size >= 8]
    return sum(max(0, size) for size in sizes)  # -1: it is not compressed


def _field(data: memoryview, table: int | None, number: int) -> int | None:
    """Return where a field of a table of FlatBuffers is; None if it is not there."""
    if table is None:
        return None
    fields = table - struct.unpack_from("<i", data, table)[0]
    (size,) = struct.unpack_from("<H", data, fields)
    place = struct.unpack_from("<H", data, fields + 4 + 2 * number)[0] if 4 + 2 * number < size else 0
    return table + place if place else None


def _follow(data: memoryview, place: int | None) -> int | None:
    """Return where an offset of FlatBuffers leads."""
    return None if place is None else place + int(struct.unpack_from("<I", data, place)[0])


def _images(file: ForeignFile, column: Any, base: int) -> Iterator[tuple[bytes, int, int]]:
    """Yield (path, offset, size) of the image in each row of a batch."""
    there = column.is_valid()
    paths: list[Any] = [None] * len(column)
    if pa.types.is_struct(column.type):
        names = [column.type.field(i).name for i in range(column.type.num_fields)]
        if "path" in names:
            paths = column.field(names.index("path")).to_pylist()
        column = column.field(names.index("bytes"))
    wide = pa.types.is_large_binary(column.type)
    if not (wide or pa.types.is_binary(column.type)):
        raise UsageError(file.path, f"its images are of the type {column.type}, not binary", AGAIN)
    _, offsets, data = column.buffers()
    count = len(column)
    ends = np.frombuffer(offsets, np.int64 if wide else np.int32)[column.offset : column.offset + count + 1]
    start = 0 if data is None else data.address - base
    if data is not None and data.size and not 0 <= start <= file.size - data.size:
        raise UsageError(file.path, "is compressed", AGAIN)
    usable = (there.to_numpy(zero_copy_only=False) & column.is_valid().to_numpy(zero_copy_only=False)).tolist()
    bounds = ends.tolist()
    for row in range(count):
        path = paths[row].encode("utf-8", "surrogateescape") if isinstance(paths[row], str) else b""
        yield path, start + bounds[row], bounds[row + 1] - bounds[row] if usable[row] else 0


PLAIN = frozenset(("PLAIN", "PLAIN_DICTIONARY", "RLE_DICTIONARY", "RLE", "BIT_PACKED"))
"""Encodings of values that are as they were given, and of levels."""
PLAIN_PARQUET = (
    'write the column of images again with compression="none" and use_dictionary=False (pyarrow.parquet.write_table), '
    "or pack the file: packer build FILE --encode copy"
)


class Parquet(Format):
    """Reads the images of a Parquet file; the roles are image, label, boxes and mask."""

    roles = ("image", "label", "boxes", "mask")

    def __call__(self, file: ForeignFile) -> Iterator[Row]:
        with SourceFile(os.fsencode(file.path)) as source:
            table_file = ParquetFile(source, file.path)
            if table_file.rows > file.size:
                raise file.damaged(f"is damaged: {table_file.rows:,} rows are more than it has bytes")
            columns = LabelColumns(table_file, self.options)
            self.classes, self.tags, self.notes = columns.classes, columns.tags, columns.notes
            number = 0
            try:
                mask = self.choose_mask(
                    {
                        name: _pairs(file, _places(file, table_file.image), _places(file, name))
                        for name in table_file.mask_columns
                    }
                )
                self.notes += _mask_notes(mask, self.obstacles, table_file.mask_columns)
                table = pa.table([pa.nulls(table_file.rows)], [""]).select([])  # rows without columns
                if columns.layout.columns:
                    table = table_file.read(list(columns.layout.columns))
                names = table_file.names()
                known = columns.known(file, table)
                masks = repeat(NO_PLACE) if mask is None else _places(file, mask)
                for (offset, size), place in zip(_places(file, table_file.image), masks, strict=False):
                    says = next(known) if mask is None else Masked(next(known), place[0], max(0, place[1]))
                    yield names[number], offset, max(0, size), says, None  # null: as without bytes
                    number += 1
            except UsageError:
                raise
            except (ValueError, LookupError, struct.error, StopIteration) as error:
                raise file.damaged(f"its columns of images cannot be read: {error}") from None
            if number != table_file.rows:
                raise file.damaged(f"has {number} images in {table_file.rows} rows")


def _pairs(file: ForeignFile, images: Iterable[tuple[int, int]], masks: Iterable[tuple[int, int]]) -> Pairs:
    """Yield the files at two places each, but those of images without a mask."""
    for (start, size), (at, count) in zip(images, masks, strict=False):
        if count > 0:
            yield file.view[start : start + max(0, size)], file.view[at : at + count]


def _mask_notes(mask: str | None, obstacles: Mapping[str, str], columns: Sequence[str]) -> list[str]:
    """Return what to say of the columns of masks that are left out."""
    left = {name: obstacles.get(name, "not the masks that are read") for name in columns if name != mask}
    return [f"left out: {printable(name)}: {why}" for name, why in left.items()]


def _places(file: ForeignFile, column: str) -> Iterator[tuple[int, int]]:
    """Yield where the image of each row is in a column."""
    with memoryview(file.view) as view:
        for chunk, levels in _chunks(file, column):
            yield from binary_places(view, chunk, levels)


def _chunks(file: ForeignFile, column: str) -> list[tuple[Any, int]]:
    """Return the metadata of the chunks of a column of images, with its definition levels."""
    metadata: Any = pq.read_metadata(pa.BufferReader(pa.py_buffer(file.view)))
    names = (f"{column}.bytes", column)

    def refused(problem: str) -> UsageError:
        return UsageError(file.path, f'its column "{printable(column)}" {problem}', PLAIN_PARQUET)

    found = []
    for group, number in product(range(metadata.num_row_groups), range(metadata.num_columns)):
        chunk, schema = metadata.row_group(group).column(number), metadata.schema.column(number)
        if chunk.path_in_schema in names:
            if chunk.compression != "UNCOMPRESSED":
                raise refused(f"is compressed by {chunk.compression.lower()}")
            if not PLAIN.issuperset(chunk.encodings):
                raise refused("is not stored plainly")
            if schema.max_repetition_level or schema.physical_type != "BYTE_ARRAY":
                raise refused("is not one image a row")
            found.append((chunk, schema.max_definition_level))
    if len(found) != metadata.num_row_groups:
        raise refused("has no bytes of images")
    return found
