"""Arrays of NumPy, uint8 or uint16 (n, height, width) or (n, height, width, channels), with labels in another file."""

from __future__ import annotations

import io
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from packer.errors import UsageError, printable
from packer.repack.formats.base import ForeignFile, FormatOptions, Pixels, Row

MOST_HEADER_BYTES = 4096
MOST_LABEL_BYTES = 1 << 30


class Npy:
    """Reads the images of an array; `labels` is a .npy file of class numbers or names, (n,)."""

    def __init__(self, options: FormatOptions) -> None:
        self._labels = options.labels
        self.classes: tuple[str, ...] | None = None
        self.notes: list[str] = []

    def __call__(self, file: ForeignFile) -> Iterator[Row]:
        try:
            shape, fortran, dtype, start = header_of(file.view[:MOST_HEADER_BYTES])
        except ValueError as error:
            raise file.damaged(f"is not an array that packer reads: {error}", "save it again: numpy.save") from None
        yield from rows_of(file, (shape, fortran, dtype, start), labels_in(self._labels, shape[0] if shape else 0))


def header_of(head: bytes) -> tuple[tuple[int, ...], bool, Any, int]:
    """Return shape, order, dtype and first byte of an array. Raise ValueError if it is none, or has objects."""
    stream = io.BytesIO(head)
    try:
        version = np.lib.format.read_magic(stream)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = read(stream)
    except Exception as error:  # numpy reads it as a Python literal, which may fail in many ways
        raise ValueError(str(error).partition("\n")[0]) from None
    if dtype.hasobject:
        raise ValueError("it holds Python objects, which packer never reads")
    return shape, fortran, dtype, stream.tell()


def rows_of(
    file: ForeignFile, array: tuple[tuple[int, ...], bool, Any, int], labels: list[Any] | None
) -> Iterator[Row]:
    """Yield the images of an array of the given (shape, Fortran order, dtype, first byte). Raise UsageError."""
    shape, fortran, dtype, start = array
    step = "save it as uint8 or uint16 (n, height, width, channels), in C order: numpy.save"
    if fortran or len(shape) not in (3, 4) or dtype.name not in ("uint8", "uint16") or dtype.byteorder == ">":
        order = " in Fortran order" if fortran else ""
        raise UsageError(
            file.path, f"is an array of {dtype.str} {shape}{order}: its images are no rows of pixels", step
        )
    count, height, width = shape[:3]
    channels = shape[3] if len(shape) == 4 else 1
    if len(shape) == 4 and channels > 4 and height in (1, 3, 4):
        problem = f"is an array of shape {shape}: its colors lie in {height} planes, not pixel by pixel"
        raise UsageError(file.path, problem, "save it as (n, height, width, channels): array.transpose(0, 2, 3, 1)")
    size = height * width * channels * dtype.itemsize
    if size < 1:
        raise file.damaged(f"has images of {height}x{width} pixels")
    if min(shape) < 0 or start + count * size > file.size:
        raise file.damaged(f"is truncated: {count} images of {size} bytes are more than it holds")
    if labels is not None and len(labels) != count:
        raise UsageError(file.path, f"has {count} images, but there are {len(labels)} labels", "give its own labels")
    pixels = Pixels(height, width, channels, dtype.name)
    for number in range(count):
        known = None if labels is None else labels[number]
        yield b"%08d" % number, start + number * size, size, known, pixels


def unread_labels(
    file: ForeignFile, shapes: Mapping[str, tuple[int, ...]], images: str, names: Sequence[str], named: bool
) -> Iterator[str]:
    """Yield what the user should know of a file of several arrays, of which none is taken for labels.

    Args:
        file: The file.
        shapes: Its arrays of numbers.
        images: The array of images.
        names: Those that labels have.
        named: Whether the user has named the array of images.

    Raises:
        UsageError: An array that is named as labels are has one for each of another number of images.
    """
    count = shapes[images][0]
    unfit = next((name for name in names if len(shapes.get(name, ())) in (1, 2)), None)
    fit = [name for name, shape in shapes.items() if shape == (count,) and name not in (images, unfit)]
    step = f"; {printable(fit[0])} could be: --columns label={shlex.quote(printable(fit[0]))}" if fit else ""
    if unfit is not None:
        shape = shapes[unfit]
        if not named and shape[0] != count and (len(shape) == 1 or shape[1:] == (1,)):
            problem = f"has {count} images in {printable(images)}, but {shape[0]} labels in {printable(unfit)}"
            image = shlex.quote(f"image={printable(images)}")
            step = f"name others: --columns=label=NAME; without labels: --columns={image}"
            raise UsageError(file.path, problem, step)
        given = "x".join(map(str, shape))
        yield f"{printable(unfit)} ({given}) is not a class for each image, so that the images have no label{step}"
    elif fit:
        yield f"no array is named as labels are, so that the images have no label{step}"


def more_images(shapes: Mapping[str, tuple[int, ...]], images: str) -> Iterator[str]:
    """Yield a note if other arrays look like images, too."""
    shape = shapes[images]
    others = [name for name, other in shapes.items() if name != images and len(shape) > 2 and other[1:] == shape[1:]]
    if others:
        given = ", ".join(map(printable, others))
        yield f"only the images of {printable(images)} are taken, not those of {given}: --columns image=NAME"


def labels_in(path: str | None, count: int) -> list[Any] | None:
    """Return the classes in a file of `--labels`: a .npy array (n,) of numbers or texts, or IDX. Raise UsageError."""
    if path is None:
        return None
    step = "give a .npy file of class numbers or names, one for each image, or an IDX file of labels"
    try:
        with open(path, "rb") as file:
            data = file.read(MOST_LABEL_BYTES + 1)
    except OSError as error:
        raise UsageError(path, f"cannot be read: {error.strerror}", step) from None
    try:
        if data[:4] == b"\0\0\x08\1":
            array: Any = np.frombuffer(data, np.uint8, -1, 8)
            shape: tuple[int, ...] = (int.from_bytes(data[4:8], "big"),)
        else:
            shape, _, dtype, start = header_of(data[:MOST_HEADER_BYTES])
            array = np.frombuffer(data, dtype, -1, start)
        if len(shape) == 2 and shape[1] == 1:
            shape = shape[:1]
        if len(data) > MOST_LABEL_BYTES or len(shape) != 1 or len(array) != shape[0] or array.dtype.kind not in "iuUS":
            raise ValueError(f"it has the shape {shape} and the type {array.dtype}")
    except ValueError as error:
        raise UsageError(path, f"is not a list of labels: {error}", step) from None
    if array.dtype.kind == "S":
        return [text.decode("utf-8", "surrogateescape") or None for text in array.tolist()]
    return [value if value != "" else None for value in array.tolist()]
