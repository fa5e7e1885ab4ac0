"""RecordIO of MXNet, GluonCV and InsightFace: an image a record, its labels in the header."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from packer.containers.npy import HEADER_BYTES, looks_like_image
from packer.containers.recordio import CONTAINER, HEADER, frames
from packer.errors import BadLabel, DamagedPack
from packer.model.annotation import RawAnnotation
from packer.repack.formats.base import GET_AGAIN, ForeignFile, FormatOptions, Known, Rich, Row
from packer.repack.formats.packers import packer_rows

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
                for start, stop in frames(file.path, data):
                    yield from _row(file, data, start, stop)
        except DamagedPack as error:
            raise file.damaged(error.problem, error.next_step or GET_AGAIN) from None


def _row(file: ForeignFile, data: memoryview, start: int, stop: int) -> Iterator[Row]:
    """Yield the image of a record; those without one, as the first ones of InsightFace, say something of the file."""
    if stop - start < HEADER.size:
        raise file.damaged(f"has a record of {stop - start} bytes at byte {start}")
    count, label, number, _ = HEADER.unpack_from(data, start)
    image = start + HEADER.size + 4 * count
    if image > stop:
        raise file.damaged(f"has a label of {count} numbers at byte {start}, beyond its record")
    if not looks_like_image(bytes(data[image : min(stop, image + HEADER_BYTES)])):
        return
    vector = np.frombuffer(data[start + HEADER.size : image], "<f4").tolist()
    path = b"%08d" % number
    yield path, image, stop - image, _known(vector or [label], f"{file.name}: record {number}"), None


def _known(vector: list[float], origin: str) -> Known:
    """Return what a label says: a class, or objects as `im2rec` packs them for detection.

    Those are the number of numbers before the objects, the number of numbers of each, and more before and after.
    InsightFace has the class first, and other numbers after it.
    """
    sizes = [int(value) for value in vector[:2] if value.is_integer()]
    if len(sizes) == 2 and sizes[0] >= 2 and sizes[1] >= BOX and len(vector) > sizes[0]:
        rest = len(vector) - sizes[0]
        if rest % sizes[1] == 0:
            return _objects(np.array(vector[sizes[0] :]).reshape(-1, sizes[1]), origin)
    if not vector[0].is_integer():
        return BadLabel(origin, f"its label is {vector[0]:g}, which is not the number of a class", "pack it as a list")
    return int(vector[0]) if vector[0] >= 0 else None


def _objects(rows: Any, origin: str) -> Known:
    rows = rows[rows[:, 0] >= 0]  # -1 fills up
    ids = rows[:, 0].tolist()
    if not all(number.is_integer() for number in ids):
        return BadLabel(origin, "a class of its objects is not a whole number", "correct the label")
    boxes = tuple(tuple(row) for row in rows[:, 1:BOX].tolist())
    names = tuple(str(int(number)) for number in ids)
    return Rich(None, RawAnnotation(origin=origin, boxes=boxes, box_labels=names, relative=True))
