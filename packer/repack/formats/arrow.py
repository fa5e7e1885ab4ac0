"""Arrow files and streams: what Hugging Face's save_to_disk and its cache hold; their images lie back to back."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa

from packer.errors import UsageError, printable
from packer.repack.formats.base import ForeignFile, FormatOptions, Known, Row
from packer.repack.formats.huggingface import Columns
from packer.sources.parquet.file import columns_of_images, features_of

MAGIC = b"ARROW1"
SMALL_BYTES = 1 << 20
"""What the values of a small file may become in any case."""
AGAIN = "write it again without compression: save_to_disk of Hugging Face's datasets does"


class Arrow:
    """Reads the images of an Arrow file or stream; the roles are image and label."""

    def __init__(self, options: FormatOptions) -> None:
        self._options = options
        self.classes: tuple[str, ...] | None = None
        self.tags: tuple[str, ...] | None = None
        self.notes: list[str] = []

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
        images = columns_of_images(schema, features)
        about: Any = SimpleNamespace(name=file.path, schema=schema, features=features, image_columns=images)
        if not images:
            columns = ", ".join(map(printable, schema.names))
            raise UsageError(file.path, f"has no column of images (columns: {columns})", "name it image")
        about.image = self._options.columns.get("image", images[0])
        columns_of = Columns(about, self._options)
        self.classes, self.tags, self.notes = columns_of.classes, columns_of.tags, columns_of.notes
        number = 0
        table = pa.Table.from_batches(batches).select(list(columns_of.layout.columns))
        known: Iterator[Known] = columns_of.known(file, table)
        for batch in batches:
            for path, offset, size in _images(file, batch.column(about.image), base):
                yield path or b"%08d" % number, offset, size, next(known), None
                number += 1


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
