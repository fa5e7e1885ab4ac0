"""Joins predictions with the records of a pack: their images are its records, their boxes those of packed images."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.errors import BadInput, PackerError, StorageError, UsageError, option, plural, printable
from packer.format.pack import Pack
from packer.format.sidecar_list import BOX_TYPE
from packer.model.annotation import Int64
from packer.repack.attached_boxes import as_packed, check_inside
from packer.repack.attached_rows import FIX, Attached, check_rows, records_of
from packer.repack.attached_tables import AN_ARRAY, TABLES, AttachRequest, saved_by_numpy
from packer.repack.predicted_classes import NAMES_STEP, NamedClasses, image_ids, kept_ids, named_classes
from packer.repack.predicted_files import Predictions, checked_probabilities, read_results, read_table, read_yolo
from packer.sources.path_finder import NOT_FOUND

FRAMES = ("source", "packed", "relative")
NONE = np.zeros(0, np.int64)


def read_predictions(asked: AttachRequest, pack: Pack) -> Attached:
    """Read predicted boxes or labels, and join them with the records of a pack.

    Raises:
        UsageError: It is in no format that is read here; what ids mean, or where boxes are, is not known.
        BadInput: A value is wrong; a row has no record; a label is missing.
        StorageError: It cannot be read.
    """
    where = asked.where
    if asked.column is not None:
        raise UsageError(option("column"), "is not for predictions", "leave it out")
    if asked.frame not in (None, *FRAMES):
        raise UsageError(option("frame"), f"must be {' or '.join(FRAMES)}, got {asked.frame!r}")
    named = named_classes(asked.classes, pack)
    try:
        if asked.kind == "labels" and where.lower().endswith(".npy"):
            return _in_order(where, pack, pack.classes if named is None else named.names)
        found = _read(asked, pack.classes if named is None else named.names)
    except PackerError:
        raise
    except OSError as error:
        step = "give a file or folder that is there" if isinstance(error, FileNotFoundError) else ""
        raise StorageError(where, f"cannot be read: {error.strerror or error}", step) from None
    except (ValueError, OverflowError) as error:  # ArrowInvalid is one
        raise BadInput(where, f"cannot be read: {error}", "write it again") from None
    labels, names, notes = _classes(asked, pack, found, named)
    return _joined(asked, pack, found, named, labels, (names, notes))


def _read(asked: AttachRequest, names: Sequence[str]) -> Predictions:
    where, ending, of_boxes = asked.where, os.path.splitext(asked.where)[1].lower(), asked.kind == "boxes"
    if of_boxes and os.path.isdir(where):
        return read_yolo(where)
    if of_boxes and ending == ".json":
        return read_results(where)
    if ending in TABLES and not os.path.isdir(where):
        return read_table(asked, TABLES[ending](where), names)
    os.stat(where)
    first = "COCO results (.json), a folder of YOLO's .txt files" if of_boxes else "a .npy file"
    step = f"give {first}, or a table ({', '.join(TABLES)})"
    raise UsageError(where, f"is in no format of predicted {asked.kind} that packer attach reads", step)


def _in_order(where: str, pack: Pack, names: Sequence[str]) -> Attached:
    """Return the labels of a .npy file with the probability of each class."""
    with saved_by_numpy(where, *AN_ARRAY):
        values = np.lib.format.open_memmap(where, mode="r")
    if values.shape[:1] != (len(pack),):
        count = plural(len(values), "row") if values.ndim else "no rows"
        raise BadInput(where, f"has {count}, but the pack {plural(len(pack), 'record')}", FIX)
    table = checked_probabilities(where, values, names)
    rows = np.column_stack([table.argmax(axis=1).astype(np.float32), table.max(axis=1), table])
    return Attached(rows, None, "in their order", classes=tuple(names))


def _joined(
    asked: AttachRequest, pack: Pack, found: Predictions, named: NamedClasses | None, labels: Int64,
    said: tuple[tuple[str, ...], tuple[str, ...]],
) -> Attached:  # fmt: skip
    names, notes = said
    scores = _scores(asked, found, len(labels))
    if found.scores is None:
        notes += ("it has no scores: all are 1, and what is ranked by them says nothing",)
    of_images, way = _records(pack, found, named)
    records = of_images[found.image] if len(of_images) else NONE
    extra = [os.fsencode(found.images[one]) for one in np.flatnonzero(of_images == NOT_FOUND).tolist()]
    counts = np.bincount(records[records >= 0], minlength=len(pack))
    of_boxes = asked.kind == "boxes"
    missing, twice = (NONE, NONE) if of_boxes else (np.flatnonzero(counts == 0), np.flatnonzero(counts > 1))
    notes += check_rows(asked, pack, missing, extra, twice)
    order = np.argsort(records, kind="stable")[int((records < 0).sum()) :]
    if not of_boxes:
        columns: list[Any] = [labels, scores, *([] if found.probabilities is None else [found.probabilities])]
        return Attached(np.column_stack(columns).astype(np.float32), order, way, notes, classes=names)
    rows = np.empty(len(order), np.dtype(BOX_TYPE))
    rows["box"], rows["score"], rows["label"] = 0, scores[order], labels[order]
    boxes, more = _placed(asked, pack, found, named, order, records[order])
    rows["box"], kept = boxes, (boxes[:, 2:] > boxes[:, :2]).all(axis=1)
    if not kept.all():
        notes += (f"{plural(int((~kept).sum()), 'box', 'boxes')} without area left out",)
    rows, records = rows[kept], records[order][kept]
    if not len(rows):
        raise BadInput(asked.where, "has no box for any record", "give the predictions of the images of this pack")
    counts = np.bincount(records, minlength=len(pack))
    notes += (*more, *check_inside(asked.where, boxes[kept], records, pack))
    if without := int((counts == 0).sum()):
        notes += (f"{plural(without, 'record')} without a box",)
    return Attached(_Boxes(rows, np.concatenate([[0], np.cumsum(counts)])), None, way, notes, classes=names)


def _scores(asked: AttachRequest, found: Predictions, rows: int) -> NDArray[np.float32]:
    scores = np.ones(rows, np.float32) if found.scores is None else found.scores
    if (wrong := np.flatnonzero(~((scores >= 0) & (scores <= 1)))).size:
        problem = f"has a score that is not from 0 to 1, in {found.place(int(wrong[0]))}: {scores[wrong[0]]:g}"
        raise BadInput(asked.where, problem, "write probabilities, as after a sigmoid or softmax")
    return scores


def _placed(
    asked: AttachRequest, pack: Pack, found: Predictions, named: NamedClasses | None, order: Int64, records: Int64
) -> tuple[NDArray[np.float64], tuple[str, ...]]:
    """Return boxes in pixels of packed images, in the order of their records, and notes."""
    boxes = found.boxes[order]
    if (bad := np.flatnonzero(~(np.isfinite(boxes).all(axis=1) & (boxes[:, 2:] >= boxes[:, :2]).all(axis=1)))).size:
        text = " ".join(f"{number:g}" for number in boxes[bad[0]].tolist())
        problem = f"has a box that is none, in {found.place(int(order[bad[0]]))}: {text} (x1 y1 x2 y2)"
        raise BadInput(asked.where, problem, FIX)
    sizes = {}
    if named is not None and named.sizes:
        ids = [one for one in named.sizes if one in named.files]
        of_files, _, _ = records_of(pack, [named.files[one] for one in ids], by_key=False)
        sizes = {record: named.sizes[one] for one, record in zip(ids, of_files.tolist(), strict=True)}
    boxes, note = as_packed(boxes, records, pack, asked.frame or found.frame, sizes)
    return boxes, (note,) if note else ()


@dataclass(frozen=True)
class _Boxes:
    rows: NDArray[Any]
    ends: Int64

    def __getitem__(self, records: slice) -> list[bytes]:
        ends = self.ends[records.start : records.stop + 1].tolist()
        return [self.rows[first:end].tobytes() for first, end in pairwise(ends)]


# -- what ids mean


def _classes(
    asked: AttachRequest, pack: Pack, found: Predictions, named: NamedClasses | None
) -> tuple[Int64, tuple[str, ...], tuple[str, ...]]:
    """Return the class of each row, the names of classes, and notes."""
    if not isinstance(found.classes, np.ndarray):
        return _by_name(asked, pack, found, named)
    of, notes = named, tuple[str, ...]()
    if of is None and found.are_coco:
        of = kept_ids(pack)
        if of is None:
            first = found.classes[0] if len(found.classes) else 1
            problem = f"has category ids (such as {first}), and the pack keeps no ids of COCO"
            step = f"pass {option('classes', 'FILE')}, such as the COCO file of labels, or the id of the pack's first "
            raise UsageError(asked.where, problem, f"{step}class: {option('classes', '0')} or 1")
    elif of is None:
        of = NamedClasses.of_pack(pack)
        notes = (f"class ids are numbers of the pack's classes, from 0 ({option('classes', 'FILE')} says otherwise)",)
    numbers, places = np.unique(found.classes, return_inverse=True)
    classes = np.array([of.ids.get(number, -1) for number in numbers.tolist()], np.int64)
    if (unknown := np.flatnonzero(classes < 0)).size:
        row = int(np.flatnonzero(places == unknown[0])[0])
        ids = ", ".join(map(str, numbers[unknown[:5]].tolist())) + ", ..." * (len(unknown) > 5)
        problem = f"has class ids without a name in {of.source}: {ids} (the first in {found.place(row)})"
        raise UsageError(asked.where, problem, f"pass {option('classes', 'FILE')}: {NAMES_STEP}")
    return classes[places.reshape(-1)], of.names, notes


def _by_name(
    asked: AttachRequest, pack: Pack, found: Predictions, named: NamedClasses | None
) -> tuple[Int64, tuple[str, ...], tuple[str, ...]]:
    names = tuple(pack.classes) if named is None else named.names
    numbers = {name: number for number, name in enumerate(names)}
    unknown = {name: row for row, name in reversed([*enumerate(found.classes)]) if name not in numbers}
    if unknown:
        name, row = min(unknown.items(), key=lambda item: item[1])
        whose = "the pack" if named is None else named.source
        problem = f"has {plural(len(unknown), 'class')} that {whose} does not have, the first in {found.place(row)}: "
        step = f"pass the classes of the model: {option('classes', 'FILE')}"
        raise UsageError(asked.where, problem + printable(str(name)), step if named is None else "add them to it")
    return np.array([numbers[name] for name in found.classes], np.int64), names, ()


def _records(pack: Pack, found: Predictions, named: NamedClasses | None) -> tuple[Int64, str]:
    """Return the record of each image, NOT_FOUND if it has none, and how they were joined."""
    ways = []
    if found.are_coco and (ids := image_ids(pack)):
        ways.append((np.array([ids.get(one, NOT_FOUND) for one in found.images], np.int64), "by COCO's image ids"))
    if named is not None and named.files:
        records, way, _ = records_of(pack, [named.files.get(one) for one in found.images], by_key=False)
        ways.append((records, f"by {way}, from the ids of {named.source}"))
    texts = list(found.images)
    records, way, _ = records_of(pack, texts, by_key=not (found.are_paths or found.are_coco))
    ways.append((records, f"by {way}"))
    if found.are_coco:
        ways.append((_by_number(pack, texts), "by the numbers that file names are"))
    return max(ways, key=lambda way: int((way[0] >= 0).sum()))


def _by_number(pack: Pack, texts: Sequence[str]) -> Int64:
    """Return the records whose file name is the number, with zeros before it, as YOLO's trainers write image_id."""
    numbers: dict[str, int] = {}
    for record, path in enumerate(pack.paths):
        stem = os.path.splitext(os.path.basename(path))[0]
        if stem.isascii() and stem.isdigit():
            number = stem.lstrip("0") or "0"
            numbers[number] = NOT_FOUND if number in numbers else record
    return np.array([numbers.get(text, NOT_FOUND) for text in texts], np.int64)
