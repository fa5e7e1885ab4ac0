"""Whether the values of an index fit its manifest and each other: ranges of numbers, lengths of lists.

Checksums prove that an index is as it was written, Arrow that it can be read; a pack that was made elsewhere may still
hold class ids without a class, or two boxes with one label. Columns are compared as wholes: a few passes over them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.format.manifest import Manifest
from packer.format.schema import DTYPES, ENCODINGS
from packer.model.columns import column, present
from packer.model.fields import LISTS, OF_BOXES, Lists
from packer.model.parts import MISSING, names_in
from packer.model.ragged import Ragged


def value_problems(table: Any, manifest: Manifest) -> Iterator[tuple[int, str]]:
    """Yield (row, problem) of the first row of each kind whose values do not fit. No text is read.

    Args:
        table: The index, which Arrow has validated.
        manifest: The manifest of its pack.
    """
    if (parts := names_in(table.column_names)) != sorted(manifest.parts):
        has, wanted = (", ".join(["image", *names]) for names in (parts, sorted(manifest.parts)))
        yield 0, f"has the parts {has}, but the pack has {wanted}"
    for name in parts:
        if (found := _first(np.asarray(column(table, f"{name}_size")) < MISSING[1])) is not None:
            yield found, f"has a size of {name} that is none"
    yield from _facts(table, manifest)
    lists: dict[str, Any] = {f.name: column(table, f.name) for f in LISTS if f.name in table.column_names}
    for field in LISTS:
        name = field.name
        if (rows := lists.get(name)) is None or (
            table.column(name).null_count == len(table) and int(rows.offsets[0]) == int(rows.offsets[-1])
        ):
            continue
        there = present(table, name)
        values = _flat(rows)
        if _has_nulls(table, name):
            yield 0, f"has items without a value in {name}, or another record has"
        elif (found := _first(~there & (rows.lengths > 0))) is not None:
            yield found, f"has {name} that are marked as missing"
        elif field.moves and values.size and not np.isfinite([values.min(), values.max()]).all():
            wrong = ~np.isfinite(values).all(axis=tuple(range(1, values.ndim)))
            yield _row_of_point(rows, int(wrong.argmax())), f"has {name} with a number that is not finite"
        elif field in OF_BOXES and (found := _first(there & (rows.lengths != lists["boxes"].lengths))) is not None:
            yield found, f"has {rows.lengths[found]} {name}, but {lists['boxes'].lengths[found]} boxes"
    yield from _ids(lists["box_labels"], len(manifest.classes))
    for field in LISTS:
        if isinstance(field.kind, Lists) and field.kind.alike:
            yield from _alike(lists[field.name], field.name)
    if "tags" in lists:
        yield from _tags(lists["tags"], len(manifest.tags), present(table, "tags"))


def _facts(table: Any, manifest: Manifest) -> Iterator[tuple[int, str]]:
    """Compare shape, dtype, encoding and class of each image."""
    for place, name in enumerate(("height", "width", "channels")):
        side = np.asarray(column(table, name))
        wanted = None if manifest.shape is None else manifest.shape[place]
        if (found := _first(side < 1 if wanted is None else side != wanted)) is not None:
            expected = "which is not a size" if wanted is None else f"but the pack has {wanted}"
            yield found, f"has the {name} {side[found]}, {expected}"
    for name, names, value in (("dtype", DTYPES, manifest.dtype), ("encoding", ENCODINGS, manifest.encoding)):
        codes = np.asarray(column(table, name))
        if value in names and (found := _first(codes != names.index(value))) is not None:
            yield found, f"has the {name} {names[codes[found]]}, but the pack has {value}"
    yield from _raw_sizes(table, manifest)
    labels, classes = np.asarray(column(table, "label")), len(manifest.classes)
    if (found := _first((labels < -1) | (labels >= classes))) is not None:
        yield found, f"has class {labels[found]}, but the pack has {classes:,} classes"


def _raw_sizes(table: Any, manifest: Manifest) -> Iterator[tuple[int, str]]:
    if manifest.encoding not in ("raw", "copy"):
        return
    names = ("size", "encoding", "dtype", "height", "width", "channels")
    sizes, codes, dtypes, *sides = (np.asarray(column(table, name)) for name in names)
    raw = codes == ENCODINGS.index("raw")
    if raw.any():
        # as float64, which no product of sides overflows
        wanted = np.multiply.reduce([(dtypes + 1).astype(np.float64), *sides])
        if (found := _first(raw & (sizes != wanted))) is not None:
            yield found, f"has {sizes[found]} bytes, but its pixels have {wanted[found]:.0f}"


def _ids(rows: Ragged, classes: int) -> Iterator[tuple[int, str]]:
    ids = rows.flat()
    if ids.size and not (int(ids.min()) >= 0 and int(ids.max()) < classes):
        place = int(((ids < 0) | (ids >= classes)).argmax())
        yield _row(rows, place), f"has a box of class {ids[place]}, but the pack has {classes:,} classes"


def _alike(rows: Ragged, name: str) -> Iterator[tuple[int, str]]:
    """Compare the number of points of the objects of an image."""
    lengths = rows.flat().lengths
    if len(lengths) and int(lengths.min()) != int(lengths.max()):
        first = np.zeros(len(lengths) + 1, np.bool_)
        first[np.asarray(rows.offsets) - int(rows.offsets[0])] = True
        if (found := _first((lengths[1:] != lengths[:-1]) & ~first[1:-1])) is not None:
            yield _row(rows, found + 1), f"has objects with other numbers of {name}"


def _tags(rows: Ragged, tags: int, there: NDArray[np.bool_]) -> Iterator[tuple[int, str]]:
    if (found := _first(there & (rows.lengths != tags))) is not None:
        yield found, f"has {rows.lengths[found]} tags, but the pack has {tags}"
    elif (flags := rows.flat()).size and int(flags.max()) > 1:
        yield _row(rows, int(flags.argmax())), f"has the tag {flags.max()}, which must be 0 or 1"


def _flat(rows: Any) -> NDArray[Any]:
    return _flat(rows.flat()) if isinstance(rows, Ragged) else np.asarray(rows)


def _has_nulls(table: Any, name: str) -> bool:
    """Return whether an item of a list, or of a list in it, is null."""
    array = table.column(name).chunk(0)
    while hasattr(array, "values"):
        array = array.values
        if array.null_count:
            return True
    return False


def _row(rows: Any, place: int) -> int:
    """Return the row that has the item `place` of all rows."""
    return int(np.searchsorted(np.asarray(rows.offsets) - int(rows.offsets[0]), place, "right")) - 1


def _row_of_point(rows: Ragged, place: int) -> int:
    objects = rows.flat()
    return _row(rows, _row(objects, place) if isinstance(objects, Ragged) else place)


def _first(wrong: NDArray[np.bool_]) -> int | None:
    """Return the first row that is wrong."""
    return int(wrong.argmax()) if wrong.any() else None
