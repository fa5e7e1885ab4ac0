"""Arrow files and streams: what Hugging Face's save_to_disk and its cache hold; their images lie back to back."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa

from packer.errors import UsageError, printable
from packer.repack.formats.base import ForeignFile, FormatOptions, Known, Row
from packer.repack.formats.huggingface import Columns
from packer.sources.parquet.file import columns_of_images, features_of

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
        except (pa.ArrowException, OSError, ValueError) as error:
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
    if file.view[:6] == b"ARROW1":
        reader = pa.ipc.open_file(data)
        batches = [reader.get_batch(number) for number in range(reader.num_record_batches)]
    else:
        batches = list(pa.ipc.open_stream(data))
    for batch in batches:
        batch.validate(full=True)
    return batches


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
