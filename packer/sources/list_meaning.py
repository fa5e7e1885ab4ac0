"""The meaning of the columns of a list without ``--columns``: by the words of its header, or by the shape of its lines.

The words are those of TensorFlow, RetinaNet, VoTT, Roboflow, Open Images, CelebA, Kaggle and Hugging Face.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from packer.errors import UsageError, option, printable
from packer.model.annotation import FLAGS
from packer.sources.list_cells import FEW, are_runs, are_several, named_reading, values_in
from packer.sources.list_columns import BOX_FORMS, FOUR_CORNERS, TAGS, LineColumns, parse_columns
from packer.sources.paths import IMAGE_EXTENSIONS, as_text, extension_of, flip_index_of, is_number, quoted_value

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
    "boxes": "bbox bboxes boxes boundingbox boundingboxes boxesstring",
    "prediction": "predictionstring",
    "rle": "rle rles rlemask encodedpixels",
    "value": "value values age ages angle angles steering steeringangle yaw pitch roll calories kcal price weight bmi"
    " score rating quality mos regression",
    "difficult": "difficult isdifficult",
    "truncated": "truncated istruncated",
    "occluded": "occluded isoccluded",
    "iscrowd": "iscrowd isgroupof",
    "ignore": "ignore ignored",
}
MEANING = {word: name for name, words in _MEANINGS.items() for word in words.split()}
"""Word of a header, in lower case and without other characters than letters and digits -> name of the column."""
CLASS_WORDS = {*_MEANINGS["label"].split()} - {"target"}
OF_IDS = ("id", "idx", "index", "class", "label", "category", "code", "target")
"""The end of words above ids."""
LOWEST_ID, MANY_NUMBERS = 0.05, 16
"""The lowest class id in some lines is not above this share of the highest one; of fewer numbers, it may be."""
OF_OBJECTS = ("boxes", "prediction", "rle")
"""Columns of which a cell holds objects; what its values are is found out by them."""
GROUPS = "path (xmin ymin xmax ymax class)*"
"""The lines of keras-yolo3."""
WORDS = (
    f"say what each of its columns is, with {option('columns')}: path label class value text rle ..., or _ to skip it"
)
MOST_SUGGESTIONS = 4
MOST_DIGITS = 9
DECIMAL_COMMA = re.compile(rb"[-+]?[0-9]+,[0-9]+")
NUMBERED = re.compile(r"[xy]([0-9]{1,4})")
"""A coordinate of one of several points."""
AUTOML_SETS = frozenset((b"TRAIN", b"TRAINING", b"VALIDATE", b"VALIDATION", b"TEST", b"UNASSIGNED", b""))
"""The first cell of a line of AutoML Vision, before the path and the class."""
PARTITION = re.compile(r"partition|split", re.IGNORECASE)


def words_of(names: Sequence[str]) -> list[str]:
    """Return names in lower case, without what is not a letter or a digit, and without a leading "bbox" or "roi"."""
    return [re.sub(r"^(?:b?box(?!es)|roi)(?=.)", "", re.sub(r"[\W_]+", "", name.lower())) for name in names]


CORNER = "corner "
"""Before the name of a coordinate of an oriented box."""
CORNERS = {("0", "1"): "xmin x2", ("", "2"): "xmin x0 x1", ("", "max"): "xmin x0 x1"}
"""How the two corners of a box may end otherwise, x0 y0 x1 y1 and x y x2 y2, and the words that say something else."""


def with_corners(words: Sequence[str]) -> list[str]:
    """Return words of which those of two corners are xmin ymin xmax ymax.

    Those of more than two points lose their meaning: a box by the first two would be wrong.
    """
    there = set(words)
    if {"x3", "y3"} <= there:
        return ["_" + word if re.fullmatch(r"[xy][0-9]", word) else word for word in words]
    for (low, high), others in CORNERS.items():
        if {"x" + low, "y" + low, "x" + high, "y" + high} <= there and there.isdisjoint(others.split()):
            new = {side + end: side + name for side in "xy" for end, name in ((low, "min"), (high, "max"))}
            return [new.get(word, word) for word in words]
    return list(words)


def are_class_names(lines: Sequence[bytes]) -> bool:
    """Return whether each line is an id, which counts up, and the name of a class, or the other way round."""
    for pattern in (rb"(?P<id>[0-9]+)[\s,:;]+(?P<name>.+)", rb"(?P<name>.+?)[\s,:;]+(?P<id>[0-9]+)"):
        found = [re.fullmatch(pattern, line.strip()) for line in lines if line.strip()]
        pairs = [(int(match["id"][:MOST_DIGITS]), match["name"]) for match in found if match is not None]
        names = {name for _, name in pairs if not is_number(name) and extension_of(name) not in IMAGE_EXTENSIONS}
        starts = [number - i for i, (number, _) in enumerate(pairs)]
        if len(names) == len(found) > 1 and set(starts) in ({0}, {1}):
            return True
    return False


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
    of_corners = [word.removeprefix(CORNER) for word in words]
    head = [new if new != word else name for new, word, name in zip(of_corners, words, head, strict=True)]
    form: tuple[str, ...] | None = next((form for form in (*BOX_FORMS, FOUR_CORNERS) if set(form) <= set(head)), None)
    if form is None and (of_objects := [name for name in head if name in OF_OBJECTS]):
        form = (of_objects[0],)
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
        half = len(points) // 2
        if len(points) == 2 * half and not _are_points([words[i] for i in points]):  # first x of all, then y
            points = [i for pair in zip(points[:half], points[half:], strict=True) for i in pair]
        if half and len(points) == 2 * half and _are_points([words[i] for i in points]):
            for number, i in enumerate(points):
                head[i] = "xy"[number % 2]
        elif "label" not in head and (tags := _tags(points, rows)):
            head = ["tag" if i in tags else name for i, name in enumerate(head)]
        elif values and "label" not in head and all(i in values or _are_numbers([r[i] for r in rows]) for i in points):
            head = ["value" if i in values else name for i, name in enumerate(head)]
        elif len(head) == 2 and "_" in head and not are_several([row[1 - path_at] for row in rows]):
            head[1 - path_at] = "label"
    return head if len(set(head) - {"_"}) > 1 else None


def with_four_corners(words: Sequence[str], rows: Rows, path_at: int, file: str) -> list[str]:
    """Return the words of a header with those of numbered points changed, so that x1 y1 x2 y2 of three are no box.

    Four points in several lines of one image are the corners of oriented boxes; without a class, or if they are other
    numbers than four, they are landmarks.

    Raises:
        UsageError: Four points of `file` may be either.
    """
    there = {word: int(found[1]) for word in words if (found := NUMBERED.fullmatch(word))}
    numbers = sorted({*there.values()})
    if len(numbers) < 3:
        return list(words)
    of_box = {f"{axis}{number}": f"{axis}{place}" for place, number in enumerate(numbers, 1) for axis in "xy"}
    if of_box.keys() != there.keys() or len(numbers) != len(FOUR_CORNERS) // 2:
        return [f"point{there[word]}{word[0]}" if word in there and numbers[-1] < 3 else word for word in words]
    if len({row[path_at] for row in rows}) < len(rows):
        return [CORNER + of_box[word] if word in of_box else word for word in words]
    if not any(MEANING.get(word) == "label" for word in words):
        return list(words)
    head = ["path" if i == path_at else MEANING.get(word, "_") for i, word in enumerate(words)]
    choices = [
        " ".join(names.get(word, of_class if name == "label" else "_" if name != "path" else name)
                 for word, name in zip(words, head, strict=True))
        for names, of_class in ((of_box, "class"), ({word: word[0] for word in there}, "label"))
    ]  # fmt: skip
    says = [f'{option("columns")}="{parse_columns(text).text}"' for text in choices]
    problem = f"{', '.join(there)} may be the corners of a box, or four landmarks"
    raise UsageError(file, problem, f"write {says[0]} for an oriented box, {says[1]} for landmarks")


def with_values(head: Sequence[str], header: Sequence[str], rows: Rows, file: str) -> list[str]:
    """Return the names of columns with those of numbers told apart: classes, or values.

    Fractions are values. Whole numbers are classes if the word above them says so, if they are few, or, without a word,
    if they begin near 0, as ids do.

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
    are_ids = word in CLASS_WORDS or len({*cells}) < MANY_NUMBERS
    are_ids |= (not header or word.endswith(OF_IDS)) and 0 <= low <= max(1, high * LOWEST_ID)
    if "value" not in head and are_ids:
        return list(head)
    where = f"the column {printable(header[places[0]])}" if header else "it"
    labels = ["label" if i == places[0] else "_" if i in places else name for i, name in enumerate(head)]
    says = [f'{option("columns")}="{LineColumns(tuple(names)).text}"' for names in (labels, values)]
    problem = f"{where} has whole numbers, which may be classes or values"
    raise UsageError(file, problem, f"write {says[0]} for classes, {says[1]} for values, the targets of a regression")


def refuse_lists_of_classes(head: Sequence[str], rows: Rows, place: int, name: str) -> None:
    """Raise UsageError if the cells of classes have a class for each of the boxes in the cell beside them."""
    if "class" not in head:
        return
    at, cell = head.index("class"), parse_columns(" ".join(head))
    counts = [(len(values_in(row[at])), len(cell.unfolded(row)) - len(row), row[at]) for row in rows]
    several = [(classes, cells) for classes, values, cells in counts if values > len(cell.tail)]
    counted = [len(cell.tail) * classes == values for classes, values, _ in counts if values > len(cell.tail)]
    if several and 2 * sum(counted) > len(counted):
        alone = ["_" if column == "class" else column for column in head]
        problem = f"cells such as {quoted_value(several[0][1])} have the classes of several boxes"
        step = "write the class before the numbers of each box, or a line for each box; "
        raise UsageError(name, problem, f'{step}{option("columns")}="{" ".join(alone)}" reads boxes without classes')


def _meaning(word: str, cells: Sequence[bytes]) -> str:
    """Return the meaning of a column; one of masks has the names of pictures."""
    meaning = MEANING.get(word, "_")
    if meaning in ("mask", "label", "_") and named_reading(cells):
        return "boxes"
    if meaning in ("mask", "label") and _are_pictures(cells):
        return "mask"
    if meaning == "mask" and are_runs(cells):
        return "rle"
    if meaning == "label" and are_several(cells):
        return "_"
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
    if path_at == 1 and {row[0].upper() for row in rows} <= AUTOML_SETS:
        if width == 3:
            return ["split", "path", "label"]
        if width == 11:  # the corners of a rectangle; those not on its diagonal may be left out
            return ["split", "path", "class", "xmin", "ymin", "_", "_", "xmax", "ymax", "_", "_"]
    numbers = all(is_number(cell) for row in rows for i, cell in enumerate(row) if i != path_at)
    more = width - 1
    if numbers and more > 0 and more % 2 == 0:
        raise UsageError(file, f"a path and {more} numbers can be read in several ways", _readings(more))
    if width == 6 and path_at == 0 and all(map(_is_box, rows)) and any(map(any, (row[1:] for row in rows))):
        return ["path", "xmin", "ymin", "xmax", "ymax", "class"]
    raise unclear(file, "its columns are not clear", suggestions(rows, path_at))


def suggestions(rows: Rows, path_at: int, header: Sequence[str] = ()) -> str:
    """Return the ``--columns`` that may be meant, each of which reads these rows; "" for none or too many.

    With a header, each column of names or whole numbers may be the class, and fractions are values; without one, four
    numbers are a box.
    """
    if not rows or len(rows[0]) < 2:
        return ""
    others = [i for i in range(len(rows[0])) if i != path_at]
    words = words_of(header) or [""] * len(rows[0])
    kinds = {i: _kind([row[i] for row in rows]) for i in others if MEANING.get(words[i], "label") in ("label", "value")}
    heads: list[tuple[list[str], str]] = []
    if header:
        heads = _of_image(rows, path_at, {i: kind for i, kind in kinds.items() if kind != "_"}, header)
    elif len(numbers := [i for i in others if kinds[i] not in ("name", "_")]) in (4, 8) and _are_next(numbers):
        names = {i: "class" for i in others if kinds[i] == "name"}
        forms: Sequence[Sequence[str]] = (BOX_FORMS[0], BOX_FORMS[2]) if len(numbers) == 4 else (FOUR_CORNERS,)
        heads = [
            (_head(rows, path_at, names | dict(zip(numbers, form, strict=True))), f"with {form[-1]}")
            for form in (forms if len(names) < 2 else ())
        ]
    texts = [(f'{option("columns")}="{" ".join(head)}"', of) for head, of in heads if _reads(" ".join(head), rows)]
    if len(texts) > MOST_SUGGESTIONS:
        return ""
    return " or ".join(f"{text} ({of})" for text, of in texts)


def _of_image(rows: Rows, path_at: int, kinds: dict[int, str], header: Sequence[str]) -> list[tuple[list[str], str]]:
    """Return columns that say something of the image, each with what that is: classes, or values, also all together."""
    values = [i for i, kind in kinds.items() if kind == "value"]
    if len(values) > 1 and "name" not in kinds.values():
        values = list(kinds)
    heads = []
    if len(values) > 1:
        all_of_them = printable(", ".join(header[i] for i in values))
        heads = [(_head(rows, path_at, dict.fromkeys(values, "value")), f"the values are {all_of_them}")]
    for i, kind in kinds.items():
        if i not in values or len(values) == 1:
            name = "value" if kind == "value" else "label"
            what = "value" if kind == "value" else "class"
            heads.append((_head(rows, path_at, {i: name}), f"the {what} is {printable(header[i])}"))
    return heads


def _are_next(places: Sequence[int]) -> bool:
    return len(places) == places[-1] - places[0] + 1


def _head(rows: Rows, path_at: int, names: dict[int, str]) -> list[str]:
    return ["path" if i == path_at else names.get(i, "_") for i in range(len(rows[0]))]


def _reads(text: str, rows: Rows) -> bool:
    """Return whether ``--columns`` reads nearly all rows."""
    columns, bad = parse_columns(text), 0
    for row in rows:
        try:
            columns.read(row)
        except ValueError:
            bad += 1
    return bad <= FEW * len(rows)


def _kind(cells: Sequence[bytes]) -> str:
    if all(map(is_number, cells)):
        is_whole = all(float(cell).is_integer() for cell in cells)
        return "number" if is_whole and len({*cells}) < MANY_NUMBERS else "value"
    return "name" if all(cell and cell[:1] not in b"[{(" for cell in cells) and not are_several(cells) else "_"


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


def unclear(file: str, problem: str, like: str = "") -> UsageError:
    return UsageError(file, problem, f"write {like}" if like else WORDS)


def with_decimal_commas(rows: Rows, file: str) -> UsageError | None:
    """Return the error of a list some of whose numbers are like 12,5; None if it has no such numbers."""
    found = [cell for row in rows for cell in row if DECIMAL_COMMA.fullmatch(cell)]
    if 2 * len(found) <= len(rows):
        return None
    point = as_text(found[0].replace(b",", b"."))
    return UsageError(file, f"has numbers with a decimal comma, such as {quoted_value(found[0])}", f"write {point}")


def flip_index_in(columns: LineColumns, names: Sequence[str]) -> tuple[int, ...] | None:
    """Return the index of the mirror image of each point, if a header has names such as lefteye_x; else None."""
    if not names:
        return None
    of_x = [name.strip().lower() for name, column in zip(names, columns.head, strict=True) if column == "x"]
    return flip_index_of([re.sub(r"(^x[_ .])|([_ .]?x$)", "", name) for name in of_x])


def in_groups(rows: Rows, file: str) -> UsageError:
    """Return the error of lines of different lengths; it says what can be written if that reads them."""
    like = f'{option("columns")}="{GROUPS}"'
    return unclear(file, "its columns are not clear", like if _reads(GROUPS, rows) else "")


def _readings(numbers: int) -> str:
    if numbers == 2:
        return 'write --columns="path x y" for a point'
    k = numbers // 2
    points = f'{option("columns")}="path (x y)*{k}" for x1 y1 x2 y2, or --columns="path x*{k} y*{k}" for x1 x2 y1 y2'
    box = ', or --columns="path xmin ymin xmax ymax" or "path xmin ymin w h" for a box' if numbers == 4 else ""
    box = f', or --columns="path {" ".join(FOUR_CORNERS)}" for an oriented box' if numbers == len(FOUR_CORNERS) else box
    return f"write {points}{box}"
