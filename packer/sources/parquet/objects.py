"""Objects in a Parquet file: their boxes, whose four numbers have no name, and their classes and fields."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer.errors import BadLabel, UsageError, option, plural
from packer.sources.by_name import NO_CLASS
from packer.sources.parquet.columns import Layout, ObjectColumns, plain
from packer.sources.paths import LARGEST

Box = tuple[float, float, float, float]
Numbers = NDArray[np.float64]
FORMATS = ("xmin ymin w h", "xmin ymin xmax ymax", "cx cy w h")
"""What four numbers may be, as ``--columns`` says it; the first is COCO's, and usual at Hugging Face."""
BORDER_PX, BORDER_SHARE = 1.0, 1e-3
"""A box ends at most so far outside its image, in pixels or fractions."""


class BoxFormat(NamedTuple):
    """What the four numbers of a box are."""

    words: str
    """One of FORMATS."""
    relative: bool
    """Whether they are fractions of width and height."""

    def box(self, numbers: Sequence[float]) -> Box:
        """Return a box as xyxy. Raise ValueError if it is none."""
        if len(numbers) != 4:
            raise ValueError(f"has {len(numbers)} numbers, not 4")
        a, b, c, d = numbers
        if not all(isinstance(value, int | float) and abs(value) <= LARGEST for value in numbers):
            raise ValueError(f"{list(numbers)} are not coordinates")
        if self.words == FORMATS[1]:
            return a, b, c, d
        if c < 0 or d < 0:
            raise ValueError(f"its {'width' if c < 0 else 'height'} {min(c, d):g} is below 0")
        return (a, b, a + c, b + d) if self.words == FORMATS[0] else (a - c / 2, b - d / 2, a + c / 2, b + d / 2)


@dataclass
class Votes:
    """Counts the boxes that fit no image if they are read in each format."""

    count: int = 0
    pixels: bool = False
    """Whether a number is larger than 1."""
    misfits: Numbers = field(default_factory=lambda: np.zeros((2, len(FORMATS))))
    """As pixels, and as fractions."""

    def add(self, table: Any, layout: Layout) -> None:
        """Count the boxes of a table."""
        if layout.objects is None or not len(table):
            return
        boxes, rows = _boxes(table.column(layout.objects.column), layout.objects.box)
        if not len(boxes):
            return
        size = np.full((len(table), 2), np.inf)
        if layout.size:
            size = np.stack([table.column(name).to_numpy().astype(np.float64) for name in layout.size], axis=1)
            size[~(size > 0)] = np.inf
        self.count += len(boxes)
        self.pixels |= bool((np.abs(boxes) > 1 + BORDER_SHARE).any())
        for number, limit in enumerate((size[rows] + BORDER_PX, np.full((len(rows), 2), 1 + BORDER_SHARE))):
            slack = (BORDER_PX, BORDER_SHARE)[number]
            first, second = boxes[:, :2], boxes[:, 2:]
            corners = ((first, first + second), (first, second), (first - second / 2, first + second / 2))
            for which, (low, high) in enumerate(corners):
                bad = ~((low >= -slack) & (high <= limit) & (low <= high)).all(axis=1)
                self.misfits[number, which] += bad.sum()

    def result(self, words: str | None) -> BoxFormat:
        """Return the format that fits most boxes, or the one of the user. Raise UsageError if two fit equally well."""
        relative = bool(self.count) and not self.pixels
        # nobody writes centers in pixels
        counts = self.misfits[int(relative)][: len(FORMATS) if relative else 2].tolist()
        fits = [name for name, count in zip(FORMATS, counts, strict=False) if count == min(counts)]
        if self.count and words is None and len(fits) > 1:
            problem = f"the {plural(self.count, 'box', 'boxes')} may be any of {', '.join(fits)}"
            choices = ", ".join(option("columns", f'"{name}"') for name in fits)
            raise UsageError(option("labels", "parquet"), problem, f"choose one: {choices}")
        return BoxFormat(words or fits[0], relative)

    def describe(self, found: BoxFormat) -> str:
        """Return what the boxes are taken for, and how well that fits."""
        unit = "fractions of the image" if found.relative else "pixels"
        counts = self.misfits[int(found.relative)]
        fits = ", ".join(f"{int(counts[i])} as {words}" for i, words in enumerate(FORMATS) if i < 2 or found.relative)
        what = plural(self.count, "box is", "boxes are")
        return f'{what} read as "{found.words}" in {unit}; boxes that do not fit: {fits} (--columns chooses)'


def objects_of(columns: ObjectColumns, value: Any, form: BoxFormat, origin: str) -> dict[str, Any]:
    """Return the fields of a `RawAnnotation` for the objects of an image.

    Args:
        columns: The parts of the column.
        value: The objects of the row; None for none.
        form: What the numbers of a box are.
        origin: The row, for messages.

    Raises:
        BadLabel: A box or class is invalid, or the lists have different lengths.
    """
    if isinstance(value, list):
        members = {name: [(one or {}).get(name) for one in value] for name in _names(columns)}
    else:
        members = {name: (value or {}).get(name) or [] for name in _names(columns)}
    count = len(members[columns.box])
    lengths = {name: len(values) for name, values in members.items() if len(values) != count}
    if any(lengths.values()) or (columns.category is not None and columns.category.column in lengths):
        name, other = next(iter(lengths.items()))
        raise BadLabel(origin, f"has {plural(count, 'box', 'boxes')}, but {other} of {name}", "correct the row")
    boxes: list[Box] = []
    names: list[str] = []
    for number, written in enumerate(members[columns.box]):
        try:
            boxes.append(form.box(written or ()))
        except ValueError as error:
            raise BadLabel(origin, f"box {number + 1} {error}", "correct it, or remove it") from None
        known: str | None = NO_CLASS
        if columns.category is not None:
            known = columns.category.name_of(members[columns.category.column][number], origin)
        if known is None:
            raise BadLabel(origin, f"box {number + 1} has no class", "add it, or remove the box")
        names.append(known)
    fields = {name: tuple(map(plain, members[name])) for name in columns.others if name not in lengths}
    return {"boxes": tuple(boxes), "box_labels": tuple(names), "box_fields": fields, "relative": form.relative}


def _names(columns: ObjectColumns) -> list[str]:
    category = [] if columns.category is None else [columns.category.column]
    return [columns.box, *category, *columns.others]


def _boxes(column: Any, member: str) -> tuple[Numbers, NDArray[np.int64]]:
    """Return all boxes of four numbers in a column of objects, and the row of each."""
    import pyarrow as pa
    import pyarrow.compute as pc

    column = column.combine_chunks()
    if isinstance(column, pa.ChunkedArray):
        column = pa.concat_arrays(column.chunks)
    is_struct = pa.types.is_struct(column.type)
    lists = pc.struct_field(column, member) if is_struct else column
    rows = pc.list_parent_indices(lists).to_numpy()
    boxes = pc.list_flatten(lists)
    if not is_struct:
        boxes = pc.struct_field(boxes, member)
    whole = pc.fill_null(pc.equal(pc.list_value_length(boxes), 4), False)
    flat = pc.list_flatten(boxes.filter(whole)).cast(pa.float64())
    return flat.to_numpy(zero_copy_only=False).reshape(-1, 4), rows[whole.to_numpy(zero_copy_only=False)]
