"""The grammar of ``--columns``, which gives the meaning of the columns of a list.

path label                                one class per image
path (x y)*5                              five points: x1 y1 x2 y2 ...
path x*5 y*5                              five points: x1 .. x5, then y1 .. y5
path (xmin ymin xmax ymax class)*         boxes to the end of the line
path cx cy w h _ _                        one box by its center, and two columns to skip
path tag*40                               40 columns of 0 and 1: the classes that the image has
path label split                          the part of the dataset to which the image belongs
path mask                                 a picture with the class of each pixel
path value*2                              two numbers of the image, such as angles: targets of a regression
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby

from packer.errors import UsageError, option, plural, printable
from packer.model.annotation import Point
from packer.sources.paths import IMAGE_EXTENSIONS, as_text, extension_of, is_number, is_utf8, number, quoted_value

Box = tuple[float, float, float, float]
BOX_FORMS = (("xmin", "ymin", "xmax", "ymax"), ("cx", "cy", "w", "h"), ("xmin", "ymin", "w", "h"))
NUMBERS = frozenset({"x", "y"}.union(*BOX_FORMS))
FLAGS = ("difficult", "truncated", "occluded", "iscrowd")
"""Whole numbers of each box."""
NAMES = NUMBERS | {"path", "label", "class", "tag", "value", "split", "text", "mask", "width", "height", "_", *FLAGS}
LABELS = NUMBERS | {"label", "class", "tag", "value", "text"}
"""Those that say something of an image by themselves."""
MOST_COLUMNS = 10_000
EXAMPLE = 'write it like --columns="path (x y)*5 label"'
TOKEN = re.compile(r"[\s,]*(?:\((?P<group>[^()]*)\)|(?P<name>[^\s,()*]+))(?P<star>\s*\*\s*(?P<count>[0-9]{1,5})?)?")
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


@dataclass(frozen=True, slots=True)
class LineColumns:
    """The columns of a line: `head`, then `tail` any number of times."""

    head: tuple[str, ...]
    tail: tuple[str, ...] = ()
    negative: bool | None = None
    """Whether a tag column has -1 instead of 0; None: either."""

    def fits(self, count: int) -> bool:
        """Return whether a line with this number of columns can be read."""
        more = count - len(self.head)
        return more == 0 or (more > 0 and bool(self.tail) and more % len(self.tail) == 0)

    def path(self, cells: Sequence[bytes]) -> bytes | None:
        """Return the path in a line, even if the line is otherwise invalid; None if the line ends before it."""
        index = self.head.index("path")
        return (cells[index] or None) if index < len(cells) else None

    def classes(self, cells: Sequence[bytes]) -> list[bytes]:
        """Return all labels and classes in a line; none if the line does not fit."""
        if not self.fits(len(cells)):
            return []
        places = _places(self, len(cells))
        return [cells[i] for i in (*places.get("label", ()), *places.get("class", ())) if cells[i]]

    def tags(self, rows: Sequence[Sequence[bytes]]) -> set[bytes]:
        """Return the cells in the tag columns of some lines."""
        places = [i for i, name in enumerate(self.head) if name == "tag"]
        return {row[i] for row in rows for i in places if i < len(row)}

    @property
    def has_box(self) -> bool:
        """Whether a line has boxes, so that an image may have several lines."""
        return self.box_form is not None

    @property
    def has_labels(self) -> bool:
        """Whether a line says more of an image than its mask."""
        return not LABELS.isdisjoint((*self.head, *self.tail))

    @property
    def text(self) -> str:
        """The columns as they can be written."""
        runs = ((name, len(list(run))) for name, run in groupby(self.head))
        words = [name if count == 1 else f"{name}*{count}" for name, count in runs]
        return " ".join([*words, *([f"({' '.join(self.tail)})*"] if self.tail else [])])

    def read(self, cells: Sequence[bytes]) -> ListRow:
        """Parse a line. Raise ValueError if the number of columns is wrong or a value is not a number."""
        if not self.fits(len(cells)):
            more = f" and any number of {len(self.tail)} more" if self.tail else ""
            raise ValueError(f"has {plural(len(cells), 'column')}, but --columns needs {len(self.head)}{more}")
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
        return ListRow(label, boxes, classes, landmarks, fields, tags, value, text, size)

    @property
    def box_form(self) -> tuple[str, ...] | None:
        """Return the four column names of a box; None if there is no box."""
        used = {*self.head, *self.tail}
        return next((form for form in BOX_FORMS if used.issuperset(form)), None)

    def _boxes(
        self, cells: Sequence[bytes], places: dict[str, tuple[int, ...]], label: str | None
    ) -> tuple[tuple[Box, ...] | None, tuple[str, ...] | None, dict[str, tuple[int, ...]]]:
        """Return the boxes, their classes and their flags; a box whose columns are all empty is none."""
        form = self.box_form
        if form is None:
            return None, None, {}
        names = [*form, *(["class"] if "class" in places else [])]
        each = list(zip(*(places.get(name, ()) for name in names), strict=True))
        there = [k for k, its in enumerate(each) if any(cells[i] for i in its)]
        boxes = tuple(_xyxy(form, *(number(cells[i]) for i in each[k][:4])) for k in there)
        classes = tuple(_name(cells[each[k][4]], "class") for k in there) if "class" in places else None
        flags = {name: tuple(_whole(cells[places[name][k]], name) for k in there) for name in FLAGS if name in places}
        return boxes, (label or NO_CLASS,) * len(boxes) if classes is None else classes, flags


def parse_columns(text: str) -> LineColumns:
    """Return the columns that `text` describes. Raise UsageError if it is invalid."""
    head: list[str] = []
    tail: tuple[str, ...] = ()
    position = 0
    text = text.strip().rstrip(",")
    while position < len(text):
        token = TOKEN.match(text, position)
        if token is None:
            raise _wrong(f"{quoted_value(text[position:].strip())} is not valid")
        if tail:
            raise _wrong("a * without a number must come last")
        names = tuple(re.split(r"[\s,]+", token["group"].strip()) if token["name"] is None else [token["name"]])
        _check_names(names)
        if token["star"] and token["count"] is None:
            tail = names
        else:
            times = int(token["count"] or 1)
            if times < 1 or len(head) + times * len(names) > MOST_COLUMNS:
                raise _wrong(f"*{times} gives no columns, or more than {MOST_COLUMNS}")
            head += names * times
        position = token.end()
    columns = LineColumns(tuple(head), tail)
    _check(columns)
    return columns


def _check_names(names: tuple[str, ...]) -> None:
    for name in names:
        if name not in NAMES:
            choices = "path label class xmin ymin xmax ymax cx cy w h x y tag value split text mask width height _"
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
        raise _wrong("a box is xmin ymin xmax ymax, or cx cy w h, or xmin ymin w h")
    for part in (head, tail):
        if part["x"] != part["y"]:
            raise _wrong(f"it has {part['x']} x and {part['y']} y")
        counts = {part[name] for name in form or ()}
        if len(counts) > 1:
            raise _wrong(f"the columns {' '.join(form or ())} must appear equally often")
    if head["class"] or tail["class"]:
        if form is None:
            raise _wrong("class is the class of a box, but there is no box", "an image's class is: label")
        if (head["class"], tail["class"]) != (head[form[0]], tail[form[0]]):
            raise _wrong("class must appear once for each box", "one class for the whole image is: label")
    for name in FLAGS:
        if (head[name] or tail[name]) and (form is None or (head[name], tail[name]) != (head[form[0]], tail[form[0]])):
            raise _wrong(f"{name} must appear once for each box")


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


def _xyxy(form: Sequence[str], a: float, b: float, c: float, d: float) -> Box:
    if form[2] == "xmax":
        return a, b, c, d
    if c < 0 or d < 0:
        raise ValueError(f"{'w' if c < 0 else 'h'} {c if c < 0 else d:g} is below 0")
    return (a, b, a + c, b + d) if form[0] == "xmin" else (a - c / 2, b - d / 2, a + c / 2, b + d / 2)


Rows = Sequence[Sequence[bytes]]

_MEANINGS = {
    "path": "path image img file filename filepath imagepath imgpath imagename imgname imageid imgid id name key"
    " imageindex idcode filepaths filenames imagepaths",
    "label": "label labels class classname labelname category categoryname classid labelid categoryid target",
    "xmin": "xmin x1 left xtl minx xleft",
    "ymin": "ymin y1 top ytl miny ytop",
    "xmax": "xmax x2 right xbr maxx xright",
    "ymax": "ymax y2 bottom ybr maxy ybottom",
    "cx": "cx xcenter centerx xcentre xc",
    "cy": "cy ycenter centery ycentre yc",
    "w": "w width",
    "h": "h height",
    "split": "split dataset partition subset usage",
    "text": "text caption prompt",
    "mask": "mask masks maskpath maskfile maskfilename maskname labelpath labelfile labelimage annotation annotations"
    " annotationpath seg segpath segmap segmentation segmentationpath segmentationmask gt gtpath groundtruth target",
    "value": "value values age ages angle angles steering steeringangle yaw pitch roll calories kcal price weight bmi"
    " score rating quality mos regression",
    "difficult": "difficult isdifficult",
    "truncated": "truncated istruncated",
    "occluded": "occluded isoccluded",
    "iscrowd": "iscrowd isgroupof",
}
MEANING = {word: name for name, words in _MEANINGS.items() for word in words.split()}
"""Word of a header, in lower case and without other characters than letters and digits -> name of the column."""
CLASS_WORDS = {*_MEANINGS["label"].split()} - {"target"}
LOWEST_ID, MANY_NUMBERS = 0.05, 16
"""The lowest class id in some lines is not above this share of the highest one; of fewer numbers, it may be."""
BOXES_EXAMPLE = option("columns", '"path (xmin ymin xmax ymax class)*"')
PARTITION = re.compile(r"partition|split", re.IGNORECASE)


# The meaning of the columns of a list without ``--columns``: by the words of its header, or by the shape of its lines.
#
# The words are those of TensorFlow, RetinaNet, VoTT, Roboflow, Open Images, CelebA, Kaggle and Hugging Face.


def words_of(names: Sequence[str]) -> list[str]:
    """Return names in lower case, without what is not a letter or a digit, and without a leading "bbox" or "roi"."""
    return [re.sub(r"^(?:b?box|roi)(?=.)", "", re.sub(r"[\W_]+", "", name.lower())) for name in names]


def by_header(words: Sequence[str], rows: Rows, path_at: int) -> list[str] | None:
    """Return the names of the columns that the words of a header give; None if they are not clear.

    Args:
        words: Of each column, from `words_of`.
        rows: The cells of some lines.
        path_at: Index of the column of the path.
    """
    head = [_meaning(word, [row[i] for row in rows]) for i, word in enumerate(words)]
    values = [i for i, name in enumerate(head) if name == "value" and _are_numbers([row[i] for row in rows])]
    head = ["_" if name in ("path", "value") or head.index(name) < i else name for i, name in enumerate(head)]
    head[path_at] = "path"
    form = next((form for form in BOX_FORMS if set(form) <= set(head)), None)
    if form is not None:
        rename = {"label": "class", "w": "w" if "w" in form else "width", "h": "h" if "h" in form else "height"}
        head = [rename.get(name, name) for name in head]
        useful = {"path", "class", "split", "text", "mask", *form, *FLAGS}
    else:
        useful = {"path", "label", "split", "text", "mask"}
    if not {"width", "height"} <= set(head):
        head = ["_" if name in ("width", "height") else name for name in head]
    else:
        useful |= {"width", "height"}
    head = [name if name in useful else "_" for name in head]
    if form is None:
        points = [i for i, name in enumerate(head) if name == "_"]
        if len(points) > 1 and len(points) % 2 == 0 and _are_points([words[i] for i in points]):
            for number, i in enumerate(points):
                head[i] = "xy"[number % 2]
        elif "label" not in head and (tags := _tags(points, rows)):
            head = ["tag" if i in tags else name for i, name in enumerate(head)]
        elif values and "label" not in head and all(i in values or _are_numbers([r[i] for r in rows]) for i in points):
            head = ["value" if i in values else name for i, name in enumerate(head)]
        elif len(head) == 2 and "_" in head:
            head[1 - path_at] = "label"
    return head if len(set(head) - {"_"}) > 1 else None


def with_values(head: Sequence[str], header: Sequence[str], rows: Rows, file: str) -> list[str]:
    """Return the names of columns with those of numbers told apart: classes, or values.

    Fractions are values. Whole numbers are classes if the word above them says so, if they are few, or if they begin
    near 0, as ids do.

    Raises:
        UsageError: Whole numbers of `file` may be either.
    """
    places = [i for i, name in enumerate(head) if name in ("label", "value")]
    cells = [row[i] for row in rows for i in places if row[i]]
    if not cells or not ("value" in head or all(map(is_number, cells))):
        return list(head)
    values = ["value" if i in places else name for i, name in enumerate(head)]
    if any(is_number(cell) and not float(cell).is_integer() for cell in cells):
        return values
    word = words_of(header)[places[0]] if header else ""
    low, high = (end(float(cell) for cell in cells if is_number(cell)) for end in (min, max))
    are_ids = word in CLASS_WORDS or len({*cells}) < MANY_NUMBERS or 0 <= low <= max(1, high * LOWEST_ID)
    if "value" not in head and are_ids:
        return list(head)
    where = f"the column {printable(header[places[0]])}" if header else "it"
    labels = ["label" if i == places[0] else "_" if i in places else name for i, name in enumerate(head)]
    says = [f'{option("columns")}="{LineColumns(tuple(names)).text}"' for names in (labels, values)]
    problem = f"{where} has whole numbers, which may be classes or values"
    raise UsageError(file, problem, f"write {says[0]} for classes, {says[1]} for values, the targets of a regression")


def _meaning(word: str, cells: Sequence[bytes]) -> str:
    """Return the meaning of a column; one of masks has the names of pictures."""
    meaning = MEANING.get(word, "_")
    if meaning in ("mask", "label") and _are_pictures(cells):
        return "mask"
    return meaning if meaning != "mask" else "label" if word == "target" else "_"


def _are_pictures(cells: Sequence[bytes]) -> bool:
    return 2 * sum(extension_of(cell) in IMAGE_EXTENSIONS for cell in cells) > len(cells)


def by_shape(rows: Rows, path_at: int, file: str) -> list[str]:
    """Return the columns of lines without a header: ``path label``, ``path mask``, or a path, a box and its class.

    Raises:
        UsageError: They are not clear.
    """
    width = len(rows[0])
    if width == 2:
        others = {row[1 - path_at] for row in rows}
        if _are_pictures([row[1 - path_at] for row in rows]):
            return ["path", "mask"] if path_at == 0 else ["mask", "path"]
        is_split = PARTITION.search(file) is not None and others <= {b"0", b"1", b"2"}
        return [("split" if is_split else "label") if i != path_at else "path" for i in range(2)]
    numbers = all(is_number(cell) for row in rows for i, cell in enumerate(row) if i != path_at)
    more = width - 1
    if numbers and more > 0 and more % 2 == 0:
        raise UsageError(file, f"a path and {more} numbers can be read in several ways", _readings(more))
    if width == 6 and path_at == 0 and all(map(_is_box, rows)) and any(map(any, (row[1:] for row in rows))):
        return ["path", "xmin", "ymin", "xmax", "ymax", "class"]
    raise unclear(file, "its columns are not clear", example(rows, path_at, boxes=True))


def example(rows: Rows, path_at: int, boxes: bool) -> str:
    """Return ``--columns`` that may fit: the first column of names as a class, and four numbers in a row as a box."""
    width = len(rows[0])
    others = [i for i in range(width) if i != path_at]
    if not others:
        return BOXES_EXAMPLE
    kinds = {i: _kind([row[i] for row in rows]) for i in others}
    runs = [i for i in others if boxes and all(kinds.get(k) == "number" for k in range(i, i + 4))]
    named = [i for i in others if kinds[i] == "name"]
    head = ["path" if i == path_at else "_" for i in range(width)]
    if runs:
        head[runs[0] : runs[0] + 4] = ["xmin", "ymin", "xmax", "ymax"]
    if named or not runs:
        head[(named or others)[0]] = "class" if runs else "label"
    return option("columns", f'"{" ".join(head)}"')


def _kind(cells: Sequence[bytes]) -> str:
    if all(map(is_number, cells)):
        return "number"
    return "name" if all(cell and cell[:1] not in b"[{(" for cell in cells) else "_"


def _are_points(words: Sequence[str]) -> bool:
    """Return whether words are like lefteyex, lefteyey, nosex, nosey, or x1, y1, x2, y2."""
    pairs = zip(words[::2], words[1::2], strict=True)
    return all(x != y and x.replace("x", "y") == y.replace("x", "y") and "x" in x and "y" in y for x, y in pairs)


def _tags(places: Sequence[int], rows: Rows) -> set[int]:
    """Return which of these columns are 0 or 1 (or -1 or 1) in all rows, if there are several.

    None if some of them also have another of the three numbers, or nothing: what that means is not known.
    """
    values = {place: {row[place] for row in rows} for place in places}
    flags = {place for place, found in values.items() if found <= TAGS.keys() | {b""}}
    found = set().union(*(values[place] for place in flags))
    no = {value for value in found if value and not TAGS[value]}
    if len(flags) < 2 or b"" in found or len({value[:1] for value in no}) > 1:
        return set()
    return flags


def _are_numbers(cells: Sequence[bytes]) -> bool:
    return 2 * sum(map(is_number, cells)) > len(cells)


def _is_box(row: Sequence[bytes]) -> bool:
    """Return whether a row is path, x1, y1, x2, y2, class, with x2 > x1 and y2 > y1; or path,,,,, as RetinaNet."""
    if not any(row[1:]):
        return True
    if not all(map(is_number, row[1:5])) or not row[5] or is_number(row[5]):
        return False
    x1, y1, x2, y2 = map(float, row[1:5])
    return x2 > x1 and y2 > y1


def unclear(file: str, problem: str, like: str = BOXES_EXAMPLE) -> UsageError:
    return UsageError(file, problem, f"say what they are, for example {like}")


def _readings(numbers: int) -> str:
    if numbers == 2:
        return 'write --columns="path x y" for a point'
    k = numbers // 2
    points = f'{option("columns")}="path (x y)*{k}" for x1 y1 x2 y2, or --columns="path x*{k} y*{k}" for x1 x2 y1 y2'
    box = ', or --columns="path xmin ymin xmax ymax" or "path xmin ymin w h" for a box' if numbers == 4 else ""
    return f"write {points}{box}"
