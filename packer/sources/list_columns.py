"""The grammar of ``--columns``, which gives the meaning of the columns of a list.

path label                                one class per image
path (x y)*5                              five points: x1 y1 x2 y2 ...
path x*5 y*5                              five points: x1 .. x5, then y1 .. y5
path (xmin ymin xmax ymax class)*         boxes to the end of the line
path cx cy w h _ _                        one box by its center, and two columns to skip
path tag*40                               40 columns of 0 and 1: the classes that the image has
path label split                          the part of the dataset to which the image belongs
path mask                                 a picture with the class of each pixel
path [xmin ymin w h]                      a cell with any number of boxes; without one, an image without objects
path [class _ xmin ymin xmax ymax]        a cell with boxes and their classes: Kaggle's PredictionString
path rle class                            run lengths of an object, in Kaggle's order: column by column, from 1
path value*2                              two numbers of the image, such as angles: targets of a regression
path x1 y1 x2 y2 x3 y3 x4 y4 class        an oriented box by its corners
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from typing import Any

from packer.errors import UsageError, option, plural
from packer.model.annotation import FLAGS, Point
from packer.sources.box_corners import extent
from packer.sources.list_cells import groups_in, values_in
from packer.sources.paths import as_text, is_utf8, number, quoted_value

Box = tuple[float, float, float, float]
BOX_FORMS = (("xmin", "ymin", "xmax", "ymax"), ("cx", "cy", "w", "h"), ("xmin", "ymin", "w", "h"))
FOUR_CORNERS = ("x1", "y1", "x2", "y2", "x3", "y3", "x4", "y4")
"""Those of an oriented box."""
NUMBERS = frozenset({"x", "y"}.union(*BOX_FORMS, FOUR_CORNERS))
RUNS = ("rle", "rle:rows")
"""Run lengths of an object whose pixels are numbered column by column, or row by row."""
LABELS = NUMBERS | {"label", "class", "tag", "value", "text", *RUNS}
"""Those that say something of an image by themselves."""
NAMES = LABELS | {"path", "split", "mask", "width", "height", "_", *FLAGS}
MOST_COLUMNS = 10_000
EXAMPLE = 'write it like --columns="path (x y)*5 label"'
TOKEN = re.compile(
    r"[\s,]*(?:\((?P<group>[^()]*)\)|\[(?P<cell>[^()\[\]]*)\]|(?P<name>[^\s,()\[\]*]+))"
    r"(?P<star>\s*\*\s*(?P<count>[0-9]{1,5})?)?"
)
TAGS = {b"1": True, b"1.0": True, b"True": True, b"0": False, b"0.0": False, b"False": False}
TAGS |= {b"-1": False, b"-1.0": False}
"""The values of a tag column; a list has either 0 or -1 for "no"."""
NO_CLASS = "object"
"""The class of boxes without one."""


@dataclass(frozen=True, slots=True)
class ListRow:
    """The content of one line; fields as in `packer.model.annotation.RawAnnotation`."""

    label: str | None
    boxes: tuple[Box, ...] | None
    box_labels: tuple[str, ...] | None
    landmarks: tuple[Point, ...] | None
    box_fields: dict[str, tuple[int, ...]]
    tags: tuple[bool, ...] | None
    value: tuple[float, ...] | None
    text: str | None
    image_size: tuple[int, int] | None
    obb: tuple[tuple[Point, ...], ...] | None
    """The corners of each box, if it is an oriented one."""
    masks: tuple[Any, ...] | None
    """Run lengths of each object, from which follow its box and its mask, if the size of the image is known."""


@dataclass(frozen=True, slots=True)
class LineColumns:
    """The columns of a line: `head`, then `tail` any number of times, or in a cell."""

    head: tuple[str, ...]
    tail: tuple[str, ...] = ()
    negative: bool | None = None
    """Whether a tag column has -1 instead of 0; None: either."""
    cell: int | None = None
    """Index of the column that holds `tail` any number of times."""

    def fits(self, count: int) -> bool:
        """Return whether a line with this number of columns can be read."""
        more = count - len(self.head)
        is_open = bool(self.tail) and self.cell is None
        return more == 0 or (more > 0 and is_open and more % len(self.tail) == 0)

    def unfolded(self, cells: Sequence[bytes]) -> Sequence[bytes]:
        """Return the cells of a line that fits, those in one cell at the end. Raise ValueError if that is invalid."""
        return cells if self.cell is None else [*cells, *groups_in(cells[self.cell], self.tail)]

    def path(self, cells: Sequence[bytes]) -> bytes | None:
        """Return the path in a line, even if the line is otherwise invalid; None if the line ends before it."""
        index = self.head.index("path")
        return (cells[index] or None) if index < len(cells) else None

    def classes(self, cells: Sequence[bytes]) -> list[bytes]:
        """Return all labels and classes in a line; none if the line does not fit."""
        if not self.fits(len(cells)):
            return []
        try:
            cells = self.unfolded(cells) if "class" in self.tail else cells
        except ValueError:
            return []
        places = _places(self, len(cells))
        return [cells[i] for i in (*places.get("label", ()), *places.get("class", ())) if cells[i]]

    def tags(self, rows: Sequence[Sequence[bytes]]) -> set[bytes]:
        """Return the cells in the tag columns of some lines."""
        places = [i for i, name in enumerate(self.head) if name == "tag"]
        return {row[i] for row in rows for i in places if i < len(row)}

    @property
    def has_objects(self) -> bool:
        """Whether a line has boxes or run lengths, so that an image may have several lines."""
        return self.box_form is not None or self.has_runs

    @property
    def plain_box(self) -> tuple[str, ...] | None:
        """Return the names of the numbers of a box if that is all that a line says besides class and size."""
        form, beside = self.box_form, {"path", "class", "split", "width", "height", "_"}
        places = self.tail if self.cell is not None else tuple(name for name in self.head if name in NUMBERS)
        if form is None or form == FOUR_CORNERS or sorted(places) != sorted(form) or (self.tail and places != form):
            return None
        return form if set(self.head) <= beside | set(form) and self.head.count("class") < 2 else None

    @property
    def has_runs(self) -> bool:
        """Whether a line has run lengths."""
        return not set(RUNS).isdisjoint(self.head)

    @property
    def has_labels(self) -> bool:
        """Whether a line says more of an image than its mask."""
        return not LABELS.isdisjoint((*self.head, *self.tail))

    @property
    def text(self) -> str:
        """The columns as they can be written."""
        runs = ((name, len(list(run))) for name, run in groupby(self.head))
        words = [name if count == 1 else f"{name}*{count}" for name, count in runs]
        if self.cell is not None:
            before, after = LineColumns(self.head[: self.cell]), LineColumns(self.head[self.cell + 1 :])
            return f"{before.text} [{' '.join(self.tail)}] {after.text}".strip()
        return " ".join([*words, *([f"({' '.join(self.tail)})*"] if self.tail else [])])

    def read(self, cells: Sequence[bytes]) -> ListRow:
        """Parse a line. Raise ValueError if the number of columns is wrong or a value is not a number."""
        if not self.fits(len(cells)):
            more = f" and any number of {len(self.tail)} more" if self.tail and self.cell is None else ""
            raise ValueError(f"has {plural(len(cells), 'column')}, but --columns needs {len(self.head)}{more}")
        cells = self.unfolded(cells)
        places = _places(self, len(cells))
        label = _name(cells[places["label"][0]], "label") if "label" in places else None
        boxes, classes, fields = self._boxes(cells, places, label)
        landmarks = None
        if "x" in self.head or "x" in self.tail:
            xs, ys = ([number(cells[i]) for i in places.get(name, ())] for name in "xy")
            landmarks = tuple(zip(xs, ys, strict=True))
        tags = tuple(_tag(cells[i], self.negative) for i in places["tag"]) if "tag" in places else None
        value = tuple(_value(cells[i]) for i in places["value"]) if "value" in places else None
        text = _text(cells[places["text"][0]]) if "text" in places else None
        size = None
        if "width" in places:
            size = _whole(cells[places["width"][0]], "width"), _whole(cells[places["height"][0]], "height")
        runs = next((cells[places[name][0]] for name in RUNS if name in places), None)
        if runs is not None:
            shapes = (runs,) if values_in(runs) else ()
            classes = tuple(_name(cells[i], "class") for i in places.get("class", ()) for _ in shapes)
            classes = classes or (label or NO_CLASS,) * len(shapes)
            return ListRow(label, (), classes, landmarks, fields, tags, value, text, size, None, shapes)
        obb = boxes if self.box_form == FOUR_CORNERS else None
        boxes = boxes if obb is None else tuple(map(extent, obb))
        return ListRow(label, boxes, classes, landmarks, fields, tags, value, text, size, obb, None)

    @property
    def box_form(self) -> tuple[str, ...] | None:
        """Return the column names of a box, four, or the eight of its corners; None if there is no box."""
        used = {*self.head, *self.tail}
        return next((form for form in (*BOX_FORMS, FOUR_CORNERS) if used.issuperset(form)), None)

    def _boxes(
        self, cells: Sequence[bytes], places: dict[str, tuple[int, ...]], label: str | None
    ) -> tuple[tuple[Any, ...] | None, tuple[str, ...] | None, dict[str, tuple[int, ...]]]:
        """Return the boxes, or their corners, their classes and their flags; one without numbers is none."""
        form = self.box_form
        if form is None:
            return None, None, {}
        count = len(places.get(form[0], ()))
        of_boxes = {name: places[name] for name in ("class", *FLAGS) if name in places}
        if self.cell is not None:  # a column beside the cell is about all its boxes
            of_boxes = {name: its * count if name in self.head else its for name, its in of_boxes.items()}
        corners = list(zip(*(places.get(name, ()) for name in form), strict=True))
        there = [k for k, its in enumerate(corners) if any(cells[i] for i in its)]
        boxes = tuple(_box(form, [number(cells[i]) for i in corners[k]]) for k in there)
        classes = tuple(_name(cells[of_boxes["class"][k]], "class") for k in there) if "class" in of_boxes else None
        flags = {
            name: tuple(_whole(cells[its[k]], name) for k in there) for name, its in of_boxes.items() if name in FLAGS
        }
        return boxes, (label or NO_CLASS,) * len(boxes) if classes is None else classes, flags


def parse_columns(text: str) -> LineColumns:
    """Return the columns that `text` describes. Raise UsageError if it is invalid."""
    head: list[str] = []
    tail: tuple[str, ...] = ()
    cell: int | None = None
    position = 0
    text = text.strip().rstrip(",")
    while position < len(text):
        token = TOKEN.match(text, position)
        if token is None:
            raise _wrong(f"{quoted_value(text[position:].strip())} is not valid")
        if tail and cell is None:
            raise _wrong("a * without a number must come last")
        group = token["cell"] if token["group"] is None else token["group"]
        names = tuple(re.split(r"[\s,]+", group.strip()) if token["name"] is None else [token["name"]])
        _check_names(names)
        if token["cell"] is not None:
            if tail or token["star"]:
                raise _wrong("only one column can be in brackets, without *, and none after it can repeat to the end")
            tail, cell = names, len(head)
            head.append("_")
        elif token["star"] and token["count"] is None:
            if tail:
                raise _wrong("only one column can be in brackets, without *, and none after it can repeat to the end")
            tail = names
        else:
            times = int(token["count"] or 1)
            if times < 1 or len(head) + times * len(names) > MOST_COLUMNS:
                raise _wrong(f"*{times} gives no columns, or more than {MOST_COLUMNS}")
            head += names * times
        position = token.end()
    columns = LineColumns(tuple(head), tail, cell=cell)
    _check(columns)
    return columns


def _check_names(names: tuple[str, ...]) -> None:
    for name in names:
        if name not in NAMES:
            choices = "path label class xmin ymin xmax ymax cx cy w h x y tag value split text mask rle rle:rows"
            choices += f" width height {' '.join(FLAGS)} {' '.join(FOUR_CORNERS)} _"
            raise _wrong(f"{quoted_value(name)} is not a column name", f"the names are: {choices}")


def _check(columns: LineColumns) -> None:
    head, tail = Counter(columns.head), Counter(columns.tail)
    if head["path"] != 1 or tail["path"]:
        raise _wrong("path must appear once")
    if head["label"] > 1 or tail["label"]:
        raise _wrong("label is the image's class and appears once", "a box's class is: class")
    for name in ("split", "text", "mask", "width", "height"):
        if head[name] > 1 or tail[name]:
            raise _wrong(f"{name} appears at most once")
    for name in ("tag", "value"):
        if tail[name]:
            raise _wrong(f"the number of {name} columns must be given", f'write it like --columns="path {name}*40"')
    if head["width"] != head["height"]:
        raise _wrong("width and height are the size of the image and go together", "a box's size is: w h")
    form = columns.box_form
    used = {name for name in (*head, *tail) if name in NUMBERS - {"x", "y"}}
    if used and used != set(form or ()):
        raise _wrong("a box is xmin ymin xmax ymax, or cx cy w h, or xmin ymin w h, or x1 y1 x2 y2 x3 y3 x4 y4")
    for part in (head, tail):
        if part["x"] != part["y"]:
            raise _wrong(f"it has {part['x']} x and {part['y']} y")
        counts = {part[name] for name in form or ()}
        if len(counts) > 1:
            raise _wrong(f"the columns {' '.join(form or ())} must appear equally often")
    if sum(head[name] for name in RUNS) > 1 or any(tail[name] for name in RUNS) or (form and columns.has_runs):
        raise _wrong("rle appears at most once, and without a box, which it gives")
    if (head["class"] or tail["class"]) and not (columns.has_runs and head["class"] == 1):
        if form is None:
            raise _wrong("class is the class of a box, but there is no box", "an image's class is: label")
        if not _are_alike(columns, "class", form):
            raise _wrong("class must appear once for each box", "one class for the whole image is: label")
    for name in FLAGS:
        if (head[name] or tail[name]) and (form is None or not _are_alike(columns, name, form)):
            raise _wrong(f"{name} must appear once for each box")


def _are_alike(columns: LineColumns, name: str, form: Sequence[str]) -> bool:
    """Return whether a column appears once for each box; beside a cell of boxes, once for all of them."""
    counts = [(names.count(name), names.count(form[0])) for names in (columns.head, columns.tail)]
    return (
        counts == [(1, 0), (0, 1)]
        if columns.cell is not None and name in columns.head
        else (all(its == boxes for its, boxes in counts))
    )


def _wrong(problem: str, next_step: str = EXAMPLE) -> UsageError:
    return UsageError(option("columns"), problem, next_step)


@lru_cache(maxsize=256)
def _places(columns: LineColumns, count: int) -> dict[str, tuple[int, ...]]:
    """Return the column indices of each name, for a line of `count` columns that fits."""
    tails = (count - len(columns.head)) // len(columns.tail) if columns.tail else 0
    places: dict[str, list[int]] = {}
    for i, name in enumerate(columns.head + columns.tail * tails):
        places.setdefault(name, []).append(i)
    return {name: tuple(indices) for name, indices in places.items()}


def _name(cell: bytes, column: str) -> str:
    if not cell:
        raise ValueError(f"its {column} is empty")
    return as_text(cell)


def _text(cell: bytes) -> str:
    if not is_utf8(cell):
        raise ValueError(f"its text {quoted_value(cell)} is not in UTF-8")
    return as_text(cell)


def _tag(cell: bytes, negative: bool | None) -> bool:
    value = TAGS.get(cell)
    if value is None or (not value and negative not in (None, cell[:1] == b"-")):
        raise ValueError(f"{quoted_value(cell)} is neither {-1 if negative else 0} nor 1")
    return value


def _value(cell: bytes) -> float:
    if not cell:
        raise ValueError("its value is empty")
    return number(cell)


def _whole(cell: bytes, column: str) -> int:
    value = number(cell)
    if not value.is_integer():
        raise ValueError(f"its {column} {quoted_value(cell)} is not a whole number")
    return int(value)


def _box(form: Sequence[str], values: Sequence[float]) -> Box | tuple[Point, ...]:
    """Return a box as xyxy, or the corners of an oriented one."""
    if form == FOUR_CORNERS:
        return tuple(zip(values[::2], values[1::2], strict=True))
    a, b, c, d = values
    if form[2] == "xmax":
        return a, b, c, d
    if c < 0 or d < 0:
        raise ValueError(f"{'w' if c < 0 else 'h'} {c if c < 0 else d:g} is below 0")
    return (a, b, a + c, b + d) if form[0] == "xmin" else (a - c / 2, b - d / 2, a + c / 2, b + d / 2)
