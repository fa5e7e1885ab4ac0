"""The meaning of the columns of a list without ``--columns``: by the words of its header, or by the shape of its lines.

The words are those of TensorFlow, RetinaNet, VoTT, Roboflow, Open Images, CelebA, Kaggle and Hugging Face.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from packer.errors import UsageError, option
from packer.sources.lists.columns import BOX_FORMS, FLAGS, TAGS
from packer.sources.paths import is_number

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
    "difficult": "difficult isdifficult",
    "truncated": "truncated istruncated",
    "occluded": "occluded isoccluded",
    "iscrowd": "iscrowd isgroupof",
}
MEANING = {word: name for name, words in _MEANINGS.items() for word in words.split()}
"""Word of a header, in lower case and without other characters than letters and digits -> name of the column."""
EXAMPLE = option("columns", '"path (xmin ymin xmax ymax class)*"')
PARTITION = re.compile(r"partition|split", re.IGNORECASE)


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
    head = [MEANING.get(word, "_") for word in words]
    head = ["_" if name == "path" or head.index(name) < i else name for i, name in enumerate(head)]
    head[path_at] = "path"
    form = next((form for form in BOX_FORMS if set(form) <= set(head)), None)
    if form is not None:
        rename = {"label": "class", "w": "w" if "w" in form else "width", "h": "h" if "h" in form else "height"}
        head = [rename.get(name, name) for name in head]
        useful = {"path", "class", "split", "text", *form, *FLAGS}
    else:
        useful = {"path", "label", "split", "text"}
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
        elif len(head) == 2 and "_" in head and not _has_fractions([row[1 - path_at] for row in rows]):
            head[1 - path_at] = "label"
    return head if len(set(head) - {"_"}) > 1 else None


def by_shape(rows: Rows, path_at: int, file: str) -> list[str]:
    """Return the columns of lines without a header: ``path label``, or a box and its class after the path.

    Raises:
        UsageError: They are not clear.
    """
    width = len(rows[0])
    if width == 2:
        others = {row[1 - path_at] for row in rows}
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
        return EXAMPLE
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


def _has_fractions(cells: Sequence[bytes]) -> bool:
    return any(is_number(cell) and not float(cell).is_integer() for cell in cells)


def _is_box(row: Sequence[bytes]) -> bool:
    """Return whether a row is path, x1, y1, x2, y2, class, with x2 > x1 and y2 > y1; or path,,,,, as RetinaNet."""
    if not any(row[1:]):
        return True
    if not all(map(is_number, row[1:5])) or not row[5] or is_number(row[5]):
        return False
    x1, y1, x2, y2 = map(float, row[1:5])
    return x2 > x1 and y2 > y1


def unclear(file: str, problem: str, like: str = EXAMPLE) -> UsageError:
    return UsageError(file, problem, f"say what they are, for example {like}")


def _readings(numbers: int) -> str:
    if numbers == 2:
        return 'write --columns="path x y" for a point'
    k = numbers // 2
    points = f'{option("columns")}="path (x y)*{k}" for x1 y1 x2 y2, or --columns="path x*{k} y*{k}" for x1 x2 y1 y2'
    box = ', or --columns="path xmin ymin xmax ymax" or "path xmin ymin w h" for a box' if numbers == 4 else ""
    return f"write {points}{box}"
