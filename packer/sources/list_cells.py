"""Cells of a list that hold several values: boxes, the groups of Kaggle's ``PredictionString``, run lengths."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from packer.model.annotation import Int64
from packer.model.strict_json import read_json
from packer.sources.box_corners import Box
from packer.sources.box_forms import FORMATS, Numbers, Votes
from packer.sources.coco_objects import check_pixels, rle_text
from packer.sources.paths import is_number, quoted_value

Size = tuple[float, float]
"""Width and height of an image; infinite if they are not known."""
UNKNOWN: Size = (float("inf"), float("inf"))
VALUE = re.compile(rb"[^\s,;\[\](){}]+")
KEY = re.compile(rb"""(["'])\w+\1\s*:|["']""")
"""The keys of ``{'x': 1, 'y': 2}``, and other quotes."""
_OF_KEYS = {
    "xmin": "x left xmin x1 xtl", "ymin": "y top ymin y1 ytl",
    "xmax": "xmax x2 right xbr", "ymax": "ymax y2 bottom ybr",
    "w": "w width", "h": "h height", "cx": "cx xcenter centerx", "cy": "cy ycenter centery",
    "class": "class label category name classname labelname classid categoryid labels",
}  # fmt: skip
KEYS = {word: name for name, words in _OF_KEYS.items() for word in words.split()}
"""Key of an object in a cell, in lower case and without other characters than letters and digits -> column."""
_WORD = re.compile(r"[\W_]+|^(?:bbox|box)(?=.)")
NOTHING = frozenset((b"nan", b"none", b"null", b"no_box", b"-1"))
"""In lower case, a cell without objects; -1 is that of SIIM's pneumothorax."""
LEADS = ("", "class _", "class", "_")
"""What is before the four numbers of a box in a cell; ``_`` is a confidence, which is skipped."""
MOST_DIGITS = 12
FEW = 0.05
"""Share of cells that may be wrong; they are reported as such."""
MOSTLY = 0.8
"""Share of numbers among the values of an object: a class and four numbers."""
FEWEST_RUNS = 3
"""Fewer may be numbers of another kind."""


def values_in(cell: bytes) -> list[bytes]:
    """Return the values in a cell such as ``[1, 2, 3, 4]`` or ``14 1 0 0 1 1``; none if it says that there are none."""
    found = VALUE.findall(KEY.sub(b" ", cell) if b'"' in cell or b"'" in cell else cell)
    return [] if len(found) == 1 and found[0].lower() in NOTHING else found


def numbers_in_cells(cells: Any) -> Numbers | None:
    """Return the four numbers in each cell of an Arrow column of bytes, (n, 4), NaN for a cell that has others.

    None if they are to be read one by one: here only commas, or single blanks, are between numbers, and brackets around
    all of them.
    """
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyarrow import csv

    count, cells = len(cells), cells.combine_chunks()
    is_empty = pc.equal(pc.binary_length(cells), 0)
    full = count - pc.sum(is_empty).as_py()
    every = pc.if_else(is_empty, pa.scalar(b",,,", pa.binary()), cells)
    text = pc.binary_join(pa.ListArray.from_arrays(pa.array([0, count], pa.int32()), every), b"\n")[0].as_py()
    text = b"\n" + text + b"\n"
    bare = text[1:].translate(None, b"[](){}")
    if removed := len(text) - 1 - len(bare):
        around = next(pair for pair in (b"[]", b"()", b"{}") if pair[:1] in text or pair[1:] in text)
        ends = text.count(b"\n" + around[:1]), text.count(around[1:] + b"\n")
        if ends != (full, full) or removed != 2 * full:
            return None
    if b"," not in bare.replace(b",,,", b""):
        bare = bare.replace(b" ", b",")
    if b'"' in bare or not bare.isascii():  # pyarrow decodes what it skips
        return None
    odd: list[int] = []

    def skip(row: Any) -> str:
        odd.append(row.number - 1)
        return "skip"

    try:
        table = csv.read_csv(
            pa.BufferReader(bare),
            csv.ReadOptions(use_threads=False, column_names=list("abcd"), block_size=len(bare) + 1024),
            csv.ParseOptions(ignore_empty_lines=False, invalid_row_handler=skip),
            csv.ConvertOptions(column_types=dict.fromkeys("abcd", pa.float64())),
        )
    except pa.ArrowInvalid:
        return None
    found = np.full((count, 4), np.nan)
    places = np.delete(np.arange(count), odd)
    if len(places) != len(table):
        return None
    found[places] = np.stack([column.to_numpy() for column in table.columns], axis=1)
    return found


def objects_in(cell: bytes) -> list[dict[str, bytes]] | None:
    """Return column -> value of each object in a cell such as ``{'x': 1, 'y': 2}`` or ``[{...}, {...}]``.

    The order of keys means nothing. None for another cell, and for one without any of KEYS.
    """
    if b"{" not in cell or not KEY.search(cell):
        return None
    try:
        value = read_json(cell if b'"' in cell else cell.replace(b"'", b'"'))
    except ValueError:
        return None
    objects = [item for item in (value if isinstance(value, list) else [value]) if item != {}]
    if not objects or not all(isinstance(item, dict) for item in objects):
        return None
    found = []
    for item in objects:
        named = {KEYS.get(_WORD.sub("", key).lower(), ""): value for key, value in item.items()}
        found.append({name: str(value).encode() for name, value in named.items() if name and _is_plain(value)})
    return found if any(found) else None


def _is_plain(value: Any) -> bool:
    return isinstance(value, str | int | float) and not isinstance(value, bool)


def named_reading(cells: Iterable[bytes]) -> str:
    """Return the columns of the objects in cells with keys, as ``--columns`` says them; "" for other cells."""
    found = [objects for cell in cells if values_in(cell) and (objects := objects_in(cell) or [{}])]
    names = set.intersection(*(set(item) for objects in found for item in objects)) if found else set()
    form = next((form for form in FORMATS if names.issuperset(form.split())), "")
    return f"class {form}" if form and "class" in names else form


def groups_in(cell: bytes, names: Sequence[str]) -> list[bytes]:
    """Return the values in a cell of any number of groups, each of these columns, by their keys if it has such.

    Raises:
        ValueError: A group is incomplete.
    """
    if (objects := objects_in(cell)) is not None:
        for name in names:
            if name != "_" and not all(name in item for item in objects):
                raise ValueError(f"{quoted_value(cell)} has an object without {name}")
        return [item.get(name, b"") for item in objects for name in names]
    values = values_in(cell)
    if len(values) % len(names):
        raise ValueError(f"{quoted_value(cell)} has {len(values)} values, which are not groups of {len(names)}")
    return values


def readings_of(cells: Sequence[bytes], sizes: Sequence[Size], leads: Sequence[str] = LEADS) -> list[str]:
    """Return what the values of cells may be, as ``--columns`` says it in brackets: all readings that fit them equally.

    Args:
        cells: Some cells of a column.
        sizes: The sizes of their images.
        leads: Those of LEADS that are looked for; of different lengths, the first that fits.
    """
    found: list[str] = []
    values = [(row, size) for row, size in zip(map(values_in, cells), sizes, strict=True) if row]
    for lead in leads:
        length = len(lead.split()) + 4
        if found and length != len(found[0].split()):
            break
        groups = [_groups(row, lead) for row, _ in values]
        if not values or sum(group is None for group in groups) > FEW * len(groups):
            continue
        votes = Votes()
        owners = [size for group, (_, size) in zip(groups, values, strict=True) for _ in group or ()]
        boxes = [[float(value) for value in box] for group in groups for box in group or ()]
        votes.add(np.array(boxes), np.array(owners))
        found += [f"{lead} {form}".strip() for form in votes.fitting]
    return found


def _groups(values: Sequence[bytes], lead: str) -> list[Sequence[bytes]] | None:
    """Return the four numbers of each box in the values of a cell; None if they are not boxes with this lead."""
    words = lead.split()
    length = len(words) + 4
    rows = [values[i : i + length] for i in range(0, len(values), length)]
    for row in rows:
        if len(row) != length or not all(map(is_number, row[-4:])):
            return None
        for word, value in zip(words, row, strict=False):
            if word == "class" and is_number(value) and b"." in value:
                return None
            if word == "_" and not (is_number(value) and 0 <= float(value) <= 1):
                return None
    return [row[-4:] for row in rows]


def are_several(cells: Iterable[bytes]) -> bool:
    """Return whether most cells hold several values, nearly all of them numbers: boxes, run lengths, ids."""
    there = [values for values in map(values_in, cells) if values]
    several = sum(len(row) > 1 and sum(map(is_number, row)) >= MOSTLY * len(row) for row in there)
    return 2 * several > len(there)


def are_runs(cells: Iterable[bytes], fewest: int = FEWEST_RUNS) -> bool:
    """Return whether cells hold run lengths in Kaggle's order, at least one of them so many runs."""
    there = [values for values in map(values_in, cells) if values]
    bad = sum(_runs(values) is None for values in there)
    return any(len(values) >= 2 * fewest for values in there) and bad <= FEW * len(there)


def _runs(values: Sequence[bytes]) -> Int64 | None:
    """Return start and length of each run, (n, 2); None if they are not in order."""
    if len(values) % 2 or not all(value.isdigit() and len(value) <= MOST_DIGITS for value in values):
        return None
    runs = np.array([int(value) for value in values], np.int64).reshape(-1, 2)
    in_order = (runs[1:, 0] >= runs[:-1].sum(axis=1)).all() and (runs > 0).all()
    return runs if in_order else None


def are_by_rows(cells: Iterable[bytes], sizes: Iterable[Size]) -> bool:
    """Return whether run lengths number pixels row by row, as Carvana's, rather than column by column, as Kaggle says.

    The next run of an object begins about a column further on, or about a row.
    """
    counts = [0, 0]
    for cell, (width, height) in zip(cells, sizes, strict=True):
        runs = _runs(values_in(cell))
        if runs is not None and width not in (height, UNKNOWN[0]):
            steps = np.diff(runs[:, 0])
            for which, side in enumerate((height, width)):
                counts[which] += int((np.abs(steps - side) < side / 8).sum())
    return counts[1] > 2 * counts[0]


def read_runs(cell: bytes, size: tuple[int, int], by_rows: bool) -> tuple[Box, dict[str, Any]]:
    """Return the box (xyxy) of an object in an image of (width, height), and its mask as `RawAnnotation.rles` has it.

    Args:
        cell: Start and length of each run of its pixels, which are numbered from 1.
        size: Width and height of the image.
        by_rows: Whether pixels are numbered row by row, rather than column by column.

    Raises:
        ValueError: They are no such run lengths, or not of such an image.
    """
    width, height = size
    runs = _runs(values_in(cell))
    if runs is None:
        raise ValueError(f"{quoted_value(cell)} are not run lengths: a start, which grows, and a length for each run")
    starts, ends = runs[:, 0] - 1, runs.sum(axis=1) - 1
    if ends[-1] > width * height:
        raise ValueError(f"has a run that ends at pixel {ends[-1]}, but the image has {width}x{height}")
    if by_rows:
        check_pixels(width, height)
        mask = np.zeros(width * height + 1, np.int8)
        mask[starts] += 1
        mask[ends] -= 1
        inside = np.cumsum(mask[:-1]).reshape(height, width).T.ravel()
        edges = np.flatnonzero(np.diff(inside, prepend=0, append=0))
        starts, ends = edges[::2], edges[1::2]
    apart = np.flatnonzero(starts[1:] > ends[:-1])
    starts, ends = starts[np.append(0, apart + 1)], ends[np.append(apart, len(ends) - 1)]
    counts = np.diff(np.stack([starts, ends], axis=1).ravel(), prepend=0).tolist()
    rest = [] if ends[-1] == width * height else [width * height - int(ends[-1])]
    tops, bottoms = starts % height, (ends - 1) % height + 1
    whole = ((ends - 1) // height > starts // height).any()
    top, bottom = (0, height) if whole else (int(tops.min()), int(bottoms.max()))
    box = (float(starts[0] // height), float(top), float((ends[-1] - 1) // height + 1), float(bottom))
    return box, {"size": [height, width], "counts": rle_text([*counts, *rest])}


def looks_like(cells: Sequence[bytes]) -> tuple[str, str]:
    """Return what cells that are not classes seem to hold, and the column of ``--columns`` for it, else label."""
    if are_runs(cells):
        return "run lengths", "rle"
    if readings := readings_of(cells, [UNKNOWN] * len(cells)):
        return "boxes", f"[{readings[0]}]" if len(readings) == 1 else "label"
    if are_several(cells):
        return "several numbers", "label"
    if all(map(is_number, cells)):
        return "numbers", "value"
    texts = 2 * sum(b" " in cell.strip() for cell in cells) > len(cells)
    return ("texts", "text") if texts else ("names of their own", "label")
