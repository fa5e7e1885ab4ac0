"""What the columns of Parquet and Arrow files of Hugging Face say of each image."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from packer.errors import BadLabel, UsageError, option, printable
from packer.model.annotation import RawAnnotation
from packer.repack.formats.base import ForeignFile, FormatOptions, Known, Rich, class_of
from packer.sources.parquet.columns import Layout, layout_of
from packer.sources.parquet.objects import FORMATS, Votes, objects_of

ROWS_AT_ONCE = 4096


class Columns:
    """The labels in a table."""

    def __init__(self, table_file: Any, options: FormatOptions) -> None:
        """Look at the columns of a `ParquetFile`, or of what has its attributes. Raise UsageError if unclear."""
        if (image := options.columns.get("image")) is not None:
            if image not in table_file.image_columns:
                choices = ", ".join(map(printable, table_file.image_columns)) or "none"
                problem = f"{printable(image)} is not a column of images"
                raise UsageError(option("columns"), problem, f"those of {printable(table_file.name)} are: {choices}")
            table_file.image_columns = [image]
        self.layout: Layout = layout_of(table_file, options.columns.get("label"))
        self._boxes = options.columns.get("boxes")
        if self._boxes not in (None, *FORMATS):
            raise UsageError(
                option("columns"), f"{printable(str(self._boxes))} are no numbers of boxes", f"give {FORMATS}"
            )
        self.classes = self.layout.names
        self.tags = self.layout.tag_names
        self.notes = list(self.layout.notes)

    def known(self, file: ForeignFile, table: Any) -> Iterator[Known]:
        """Yield what a table of `self.layout.columns` says of each row."""
        layout = self.layout
        votes = Votes()
        votes.add(table, layout)
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
            for number, values in enumerate(rows.to_pylist() if layout.columns else [{}] * len(rows), start):
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
            extras={name: layout.plain(name, values[name]) for name in layout.extras},
            image_size=size if len(size) == 2 and all(size) and layout.objects is not None else None,
            **objects,
        )
        plain = raw.tags is None and not raw.extras and layout.objects is None
        return known if plain or isinstance(known, Exception) else Rich(known, raw)
