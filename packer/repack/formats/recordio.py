"""RecordIO of MXNet, GluonCV and InsightFace: an image a record, its labels in the header."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from packer.containers.recordio import CONTAINER
from packer.errors import BadLabel, DamagedPack
from packer.files.recordio_frames import HEADER, frames
from packer.model.annotation import RawAnnotation
from packer.repack.formats.base import GET_AGAIN, ForeignFile, FormatOptions, Known, Rich, Row
from packer.repack.formats.packers import packer_rows
from packer.sources.paths import MOST_CLASSES

BOX = 5
"""Numbers of an object: its class, and its box in fractions of the image."""


class RecordIO:
    """Reads the images of a .rec file; it needs neither the .idx nor the .lst beside it."""

    def __init__(self, options: FormatOptions) -> None:
        self.classes: tuple[str, ...] | None = None
        self.notes: list[str] = []

    def __call__(self, file: ForeignFile) -> Iterator[Row]:
        try:
            first = next(CONTAINER.scan(file.path), None)
            if first is not None and first.annotation is not None:
                yield from packer_rows(CONTAINER.scan(file.path), file)
                return
            with memoryview(file.view) as data:
                detection: bool | None = None
                for start, stop in frames(file.path, data):
                    vector, number, image = _header(file, data, start, stop)
                    if image == stop:
                        continue  # the first and the last ones of InsightFace say something of the file
                    if detection is None and _before(vector) == len(vector):
                        detection = any(_has_objects(_header(file, data, *f)[0]) for f in frames(file.path, data))
                    known = _known(vector, f"{file.name}: record {number}", bool(detection))
                    yield b"%08d" % number, image, stop - image, known, None
        except DamagedPack as error:
            raise file.damaged(error.problem, error.next_step or GET_AGAIN) from None


def _header(file: ForeignFile, data: memoryview, start: int, stop: int) -> tuple[list[float], int, int]:
    """Return the label of a record, its number, and the first byte of its image."""
    if stop - start < HEADER.size:
        raise file.damaged(f"has a record of {stop - start} bytes at byte {start}")
    count, label, number, _ = HEADER.unpack_from(data, start)
    image = start + HEADER.size + 4 * count
    if image > stop:
        raise file.damaged(f"has a label of {count} numbers at byte {start}, beyond its record")
    return np.frombuffer(data[start + HEADER.size : image], "<f4").tolist() or [label], number, image


def _before(vector: list[float]) -> int:
    """Return how many numbers are before the objects, if the label is as `im2rec` packs those for detection; else 0.

    It begins with the number of numbers before the objects, and the number of numbers of each.
    """
    sizes = [int(value) for value in vector[:2] if value.is_integer()]
    if len(sizes) == 2 and sizes[0] >= 2 and sizes[1] >= BOX and (len(vector) - sizes[0]) % sizes[1] == 0:
        return sizes[0]
    return 0


def _has_objects(vector: list[float]) -> bool:
    return 0 < _before(vector) < len(vector)


def _known(vector: list[float], origin: str, detection: bool) -> Known:
    """Return what a label says: a class, or objects. InsightFace has the class first, and other numbers after it.

    Args:
        vector: The label.
        origin: The record, for messages.
        detection: Whether a label that could be both is of an image without objects.
    """
    if _has_objects(vector) or (detection and _before(vector) == len(vector)):
        return _objects(np.array(vector[_before(vector) :]).reshape(-1, int(vector[1])), origin)
    if not vector[0].is_integer():
        return BadLabel(origin, f"its label is {vector[0]:g}, which is not the number of a class", "pack it as a list")
    return int(vector[0]) if vector[0] >= 0 else None


def _objects(rows: Any, origin: str) -> Known:
    rows = rows[rows[:, 0] != -1]  # which fills up
    ids = rows[:, 0].tolist()
    if not np.isfinite(rows[:, :BOX]).all() or not all(0 <= n < MOST_CLASSES and n.is_integer() for n in ids):
        problem = f"an object has a class that is none of 0 to {MOST_CLASSES - 1}, or a box that is not finite"
        return BadLabel(origin, problem, "correct the label")
    boxes = tuple(tuple(row) for row in rows[:, 1:BOX].tolist())
    names = tuple(str(int(number)) for number in ids)
    return Rich(None, RawAnnotation(origin=origin, boxes=boxes, box_labels=names, relative=True))
