"""Reads files of predictions: COCO results, YOLO's .txt files, and tables."""

from __future__ import annotations

import mmap
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from packer.errors import BadInput, UsageError, option, plural, printable
from packer.model.annotation import Int64
from packer.repack.attached_rows import FIX
from packer.repack.attached_tables import AttachRequest, Table, texts_of, values_of
from packer.sources.list_meaning import MEANING, with_corners, words_of

PIECE_BYTES = 8 << 20
BETWEEN = re.compile(rb"\}\s*,\s*\{")
SCORES = ("score", "scores", "conf", "confidence", "prob", "probability")
FORMS: dict[tuple[str, ...], Callable[[NDArray[Any]], NDArray[Any]]] = {
    ("xmin", "ymin", "xmax", "ymax"): lambda box: box,
    ("cx", "cy", "w", "h"): lambda box: np.hstack([box[:, :2] - box[:, 2:] / 2, box[:, :2] + box[:, 2:] / 2]),
    ("x", "y", "w", "h"): lambda box: np.hstack([box[:, :2], box[:, :2] + box[:, 2:]]),
    ("boxes",): lambda box: np.hstack([box[:, :2], box[:, :2] + box[:, 2:]]),
}
"""Columns of boxes -> what makes corners of them: that of lists is bbox of COCO."""


@dataclass(frozen=True)
class Predictions:
    """What a file or folder says, a row for each box or label."""

    images: Sequence[str]
    """Ids, keys or paths, each once."""
    image: Int64
    """Of each row, in `images`."""
    classes: Int64 | Sequence[str]
    """Ids or names."""
    scores: NDArray[np.float32] | None
    frame: str
    boxes: NDArray[np.float64]
    """x1, y1, x2, y2; (m, 0) of labels."""
    place: Callable[[int], str]
    """Says where a row is."""
    are_coco: bool = False
    """Whether the ids are those of a COCO file."""
    are_paths: bool = False
    """Whether images are paths, never keys."""
    probabilities: NDArray[np.float32] | None = None
    """Of labels: that of each class, (m, classes)."""


class _CocoResult(msgspec.Struct):
    image_id: int | str
    category_id: int
    bbox: tuple[float, float, float, float]
    score: float


def read_results(where: str) -> Predictions:
    """Read COCO results, a few megabytes at once."""
    images: dict[str, int] = {}
    parts: list[tuple[Any, ...]] = [(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros((0, 4)), np.zeros(0))]
    decode = msgspec.json.Decoder(list[_CocoResult]).decode
    done = 0
    for piece in _pieces(where):
        try:
            found = decode(piece)
        except msgspec.DecodeError as error:
            at = re.search(r"\$\[(\d+)\]", str(error))
            text = str(error) if at is None else f"{error} (result {done + int(at[1]) + 1})"
            step = 'write a list of {"image_id", "category_id", "bbox": [x, y, width, height], "score"}'
            raise BadInput(where, f"is not COCO results: {text}", step) from None
        done += len(found)
        parts.append((
            np.array([images.setdefault(str(one.image_id), len(images)) for one in found], np.int64),
            np.array([one.category_id for one in found], np.int64),
            np.array([one.bbox for one in found], np.float64).reshape(-1, 4),
            np.array([one.score for one in found], np.float64),
        ))  # fmt: skip
    image, classes, boxes, scores = (np.concatenate(each) for each in zip(*parts, strict=True))
    boxes = FORMS[("boxes",)](boxes)
    place = "result {}".format
    return Predictions(
        [*images], image, classes, scores.astype(np.float32), "source", boxes, lambda row: place(row + 1), are_coco=True
    )


def _pieces(where: str) -> Iterator[bytes]:
    """Yield the objects of a list as lists in JSON, each of some megabytes."""
    with open(where, "rb") as file:
        if not os.fstat(file.fileno()).st_size:
            raise BadInput(where, "is empty", "write the results again")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            start, size, head = 0, len(data), b""
            while (cut := BETWEEN.search(data, min(size, start + PIECE_BYTES))) is not None:
                yield head + data[start : cut.start() + 1] + b"]"
                start, head = cut.end() - 1, b"["
            yield head + data[start:size]


def read_yolo(where: str) -> Predictions:
    """Read a folder of .txt files: class cx cy w h [conf] in each line."""
    images, counts, rows = list[str](), list[int](), list[list[float]]()
    firsts = list[int]()
    for folder, _, names in sorted(os.walk(where)):
        for name in sorted(names):
            if not name.endswith(".txt") or name in ("classes.txt", "class_names.txt"):
                continue
            path = os.path.join(folder, name)
            with open(path, "rb") as file:
                lines = [line.split() for line in file.read().splitlines()]
            images.append(os.path.splitext(os.path.relpath(path, where))[0])
            firsts.append(len(rows))
            for number, cells in enumerate(lines, 1):
                if cells:
                    rows.append(_yolo_row(path, number, cells))
            counts.append(len(rows) - firsts[-1])
    if not images:
        raise UsageError(where, "has no .txt files", "give the folder labels of yolo predict save_txt=True")
    if len({len(row) for row in rows}) > 1:
        raise BadInput(where, "has rows with and without a confidence", "predict again with save_conf=True")
    values = np.array(rows, np.float64).reshape(-1, len(rows[0]) if rows else 6)
    image = np.repeat(np.arange(len(images)), counts)

    def place(row: int) -> str:
        return f"{printable(images[int(image[row])])}.txt"

    scores = values[:, 5].astype(np.float32) if values.shape[1] == 6 else None
    boxes = FORMS[("cx", "cy", "w", "h")](values[:, 1:5])
    return Predictions(images, image, values[:, 0].astype(np.int64), scores, "relative", boxes, place, are_paths=True)


def _yolo_row(path: str, number: int, cells: Sequence[bytes]) -> list[float]:
    step = "a line is: class cx cy w h, and the confidence with save_conf=True"
    if len(cells) not in (5, 6):
        raise BadInput(f"{path}:{number}", f"has {plural(len(cells), 'number')}, which is no box", step)
    try:
        found = [float(cell) for cell in cells]
    except ValueError:
        raise BadInput(f"{path}:{number}", "has something that is not a number", step) from None
    if not found[0].is_integer() or found[0] < 0:
        raise BadInput(f"{path}:{number}", f"has the class {cells[0].decode('ascii', 'replace')}", step)
    return found


def read_table(asked: AttachRequest, table: Table, names: Sequence[str]) -> Predictions:
    """Read a table with a row for each box or label; `names` are those of the classes.

    Raises:
        UsageError: Columns are missing.
        BadInput: A cell is not what it must be.
    """
    where, columns = asked.where, list(table.columns)
    words = with_corners(words_of(columns))
    meanings = {MEANING.get(word, word): column for column, word in reversed([*zip(columns, words, strict=True)])}
    if (path := meanings.get("path")) is None:
        listed = ", ".join(map(printable, columns))
        raise UsageError(where, f"has no column of keys or paths; its columns are: {listed}", "call one path")
    texts = _without_null(where, table, path)
    images = {text: number for number, text in enumerate(dict.fromkeys(texts))}
    image = np.array([images[text] for text in texts], np.int64)
    score = next((column for column, word in zip(columns, words, strict=True) if word in SCORES), None)
    scores = None if score is None else _numbers(where, table, score, len(texts)).astype(np.float32)
    no_boxes, label = np.zeros((len(texts), 0)), meanings.get("label")
    if label is None:
        table_of = _probabilities_of(asked, table, names, len(texts))
        best = table_of.argmax(axis=1), table_of.max(axis=1)
        classes = [names[number] for number in best[0].tolist()]
        return Predictions([*images], image, classes, best[1], "", no_boxes, table.place, probabilities=table_of)
    ids = _ids_or_names(_without_null(where, table, label), names)
    boxes = _boxes_of(where, table, meanings, len(texts)) if asked.kind == "boxes" else no_boxes
    if asked.frame is None and len(boxes) > 1 and boxes.size and (np.abs(boxes) <= 1).all():
        step = f"pass {option('frame', 'relative')}, or source if these are pixels"
        raise UsageError(where, "has boxes from 0 to 1", step)
    is_coco = label == "category_id"
    return Predictions([*images], image, ids, scores, "source", boxes, table.place, are_coco=is_coco)


def _probabilities_of(asked: AttachRequest, table: Table, names: Sequence[str], rows: int) -> NDArray[np.float32]:
    """Return the columns of probabilities, one for each class."""
    missing = [name for name in names if name not in table.columns]
    if asked.kind == "boxes" or missing:
        listed = ", ".join(map(printable, table.columns))
        step = "call one label" + (", or give each class a column of probabilities" if asked.kind == "labels" else "")
        raise UsageError(asked.where, f"has no column of classes; its columns are: {listed}", step)
    return checked_probabilities(
        asked.where, np.stack([_numbers(asked.where, table, name, rows) for name in names], axis=1), names
    )


def checked_probabilities(where: str, values: NDArray[Any], names: Sequence[str]) -> NDArray[np.float32]:
    """Return the probabilities of classes (n, classes). Raise BadInput if they are none."""
    if values.ndim != 2 or values.shape[1] != len(names) or not len(names) or values.dtype.kind not in "fiu":
        problem = f"is of {values.dtype} {values.shape}, not of numbers (records, {plural(len(names), 'class')})"
        raise BadInput(where, problem, f"save a probability for each class, or pass {option('classes', 'FILE')}")
    if not ((values >= 0) & (values <= 1)).all():
        raise BadInput(where, "has values that are no probabilities, 0 to 1", "apply softmax to logits")
    return values.astype(np.float32)


def _boxes_of(where: str, table: Table, meanings: dict[str, str], rows: int) -> NDArray[np.float64]:
    form = next((form for form in FORMS if set(form) <= set(meanings)), None)
    if form is None:
        step = "call them xmin ymin xmax ymax, x y w h, cx cy w h, or bbox (a list x y w h)"
        raise UsageError(where, "has no columns of boxes", step)
    if form == ("boxes",):
        found = values_of(table.columns[meanings["boxes"]]("json"))
        if not isinstance(found, np.ndarray) or found.shape != (rows, 4) or found.dtype.kind not in "iuf":
            raise BadInput(where, f"has a {printable(meanings['boxes'])} that is not four numbers", FIX)
        return FORMS[form](found.astype(np.float64))
    return FORMS[form](np.stack([_numbers(where, table, meanings[name], rows) for name in form], axis=1))


def _numbers(where: str, table: Table, column: str, rows: int) -> NDArray[np.float64]:
    found = values_of(table.columns[column](None))
    if not isinstance(found, np.ndarray) or found.shape != (rows,) or found.dtype.kind not in "iuf":
        raise BadInput(where, f"has something in {printable(column)} that is not a number", FIX)
    return found.astype(np.float64)


def _without_null(where: str, table: Table, column: str) -> list[str]:
    texts = texts_of(table.columns[column]("text"))
    if None in texts:
        raise BadInput(where, f"has no {printable(column)} in {table.place(texts.index(None))}", FIX)
    return [str(text) for text in texts]


def _ids_or_names(texts: Sequence[str], names: Sequence[str]) -> Int64 | Sequence[str]:
    """Return ids if all are numbers and none is the name of a class."""
    are_ids = all(text.isascii() and text.isdigit() and len(text) < 10 for text in {*texts}) and not {*texts} & {*names}
    return np.array([int(text) for text in texts], np.int64) if are_ids else texts
