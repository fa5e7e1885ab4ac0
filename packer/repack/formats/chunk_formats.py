"""Chunks of MosaicML Streaming (.mds) and of LitData (chunk-0-0.bin) that are not compressed."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np

from packer.errors import BadInput, BadLabel, UsageError, option, printable
from packer.repack.formats import LABEL_NAMES, ForeignFile, Format, Known, Pixels, Row, class_of

IMAGES = ("jpeg", "png", "jpegarray", "jpeg_array", "pil")
NAMES = ("image", "img", "x", "jpg", "jpeg", "png", "picture", "photo")
MODES = {b"L": 1, b"RGB": 3, b"RGBA": 4, b"LA": 2}
NUMBERS = {
    "int": "<i8",
    **{f"{sign}int{bits}": f"<{sign[:1] or 'i'}{bits // 8}" for sign in ("", "u") for bits in (8, 16, 32, 64)},
}
SIZE = struct.Struct("<I")
AGAIN = "write it again without compression: MDSWriter(compression=None)"


class Mds(Format):
    """Reads the images of a shard; the roles are image and label."""

    def __call__(self, file: ForeignFile) -> Iterator[Row]:
        bounds = bounds_of(file)
        start = 4 + 4 * len(bounds)
        try:
            config = json.loads(file.view[start : bounds[0]])
            names, kinds, sizes = (config[f"column_{part}"] for part in ("names", "encodings", "sizes"))
            compressed = config.get("compression")
            if not len(names) == len(kinds) == len(sizes) or not all(
                type(one) is list for one in (names, kinds, sizes)
            ):
                raise ValueError("its columns")
            if not all(type(one) is str for one in (*names, *kinds)):
                raise ValueError("names or types of columns that are not texts")
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise file.damaged(f"is not a shard of MosaicML Streaming: {error!r}") from None
        if compressed:
            raise UsageError(file.path, "is compressed", AGAIN)
        image, label = chosen_columns(file, names, kinds, self.columns)
        fixed = [size if isinstance(size, int) and size > 0 else None for size in sizes]
        head = 4 * sum(size is None for size in fixed)
        for number in range(len(bounds) - 1):
            at, stop = bounds[number], bounds[number + 1]
            path = b"%08d" % number
            places = _places(file, at, at + head, fixed)
            if at + head > stop or places[-1][0] + places[-1][1] != stop:
                raise file.damaged(f"sample {number} at byte {at} has columns of other sizes than it says")
            known: Known = None
            if label is not None:
                known = value_of(file, kinds[label], places[label], f"{file.name} (sample {number})")
            yield image_row(file, path, places[image], known, kinds[image])


def _places(file: ForeignFile, at: int, start: int, fixed: list[int | None]) -> list[tuple[int, int]]:
    places = []
    for known in fixed:
        size = known
        if size is None:
            (size,), at = SIZE.unpack(file.view[at : at + 4].ljust(4, b"\0")), at + 4
        places.append((start, size))
        start += size
    return places


def bounds_of(file: ForeignFile) -> list[int]:
    """Return where each sample begins, and the end of the last one. Raise UsageError if that is not in the file."""
    (count,) = SIZE.unpack(file.view[:4].ljust(4, b"\0"))
    start = 4 + 4 * (count + 1)
    if not count or start > file.size:
        raise file.damaged(f"is truncated: it should have {count} samples")
    bounds = np.frombuffer(file.view[4:start], "<u4").astype(np.int64)
    if (np.diff(bounds) < 0).any() or bounds[0] < start or bounds[-1] > file.size:
        raise file.damaged("is truncated: its samples end behind it, or overlap")
    found: list[int] = bounds.tolist()
    return found


def chosen_columns(file: ForeignFile, names: list[str], kinds: list[str], asked: Any) -> tuple[int, int | None]:
    """Return the indices of the image column and the label column. Raise UsageError if no column holds images."""
    image, label = asked.get("image"), asked.get("label")
    for name in filter(None, (image, label)):
        if name not in names:
            raise UsageError(
                option("columns"), f"{printable(name)} is not a column", f"columns are {', '.join(map(str, names))}"
            )
    found = [number for number, kind in enumerate(kinds) if kind in IMAGES]
    found += [n for n, kind in enumerate(kinds) if kind == "bytes" and str(names[n]).lower() in NAMES]
    if image is not None:
        found = [names.index(image)]
    if not found:
        columns = ", ".join(f"{name} ({kind})" for name, kind in zip(names, kinds, strict=True))
        raise UsageError(file.path, f"has no column of images: {printable(columns)}", "name it: --columns=image=NAME")
    likely = [name for name in (label, *LABEL_NAMES) if name in names]
    readable = [
        n for n, kind in enumerate(kinds) if kind in ("str", "str_int") or str(kind).partition(":")[0] in NUMBERS
    ]
    number = next((names.index(name) for name in likely if names.index(name) in readable), None)
    if label is not None and number is None:
        kind = kinds[names.index(label)]
        raise UsageError(
            option("columns"), f"{printable(label)} is of the type {kind}, not a number or text", "name another"
        )
    return found[0], number


def value_of(file: ForeignFile, kind: str, place: tuple[int, int], origin: str) -> Known:
    """Return the class in a column."""
    data = file.view[place[0] : place[0] + min(place[1], 1 << 16)]
    dtype = NUMBERS.get(kind)
    if dtype is not None:
        if len(data) != np.dtype(dtype).itemsize:
            return BadLabel(origin, f"its label has {place[1]} bytes", "correct the label")
        return int.from_bytes(data, "little", signed=dtype[1] == "i")
    return class_of(data.decode("utf-8", "surrogateescape"), None, origin)


def image_row(file: ForeignFile, path: bytes, place: tuple[int, int], known: Any, kind: str) -> Row:
    """Return the row of an image; a PIL image is raw pixels behind width, height and mode."""
    start, size = place
    if kind != "pil" or size < 12:
        return path, start, size, known, None
    head = file.view[start : start + 64]
    width, height, length = struct.unpack("<III", head[:12])
    mode = head[12 : 12 + min(length, 16)]
    if mode not in MODES:
        error = BadInput(
            "", f"raw pixels of the mode {printable(mode)}, which packer does not read", "convert it to RGB"
        )
        return path, start, 0, error, None
    return path, start + 12 + length, size - 12 - length, known, Pixels(height, width, MODES[mode])


MOST_INDEX_BYTES = 256 << 20
TARS = "write the images to files, or to tars of WebDataset"
PLAIN_CHUNKS = "write it again: optimize(..., compression=None)"


class LitData(Format):
    """Reads the images of a chunk; the roles are image and label, by their keys or numbers in the sample."""

    def __call__(self, file: ForeignFile) -> Iterator[Row]:
        names, kinds = _columns(file)
        image, label = chosen_columns(file, names, kinds, self.columns)
        if label is None and kinds.count("int") == 1 and "label" not in self.columns:
            label = kinds.index("int")
        bounds = bounds_of(file)
        if bounds[0] == bounds[-1] and file.view[bounds[0] : bounds[0] + 6] == b"ARROW1":
            raise UsageError(
                file.path, "keeps its items in an Arrow table of LitData, which packer does not read", TARS
            )
        head = 4 * len(kinds)
        for number in range(len(bounds) - 1):
            at, stop = bounds[number], bounds[number + 1]
            if at + head > stop:
                raise file.damaged(f"item {number} at byte {at} is too short")
            sizes = np.frombuffer(file.view[at : at + head], "<u4").astype(np.int64)
            ends = at + head + np.cumsum(sizes)
            if ends[-1] != stop:
                raise file.damaged(f"item {number} at byte {at} has parts of other sizes than it says")
            places = list(zip((ends - sizes).tolist(), sizes.tolist(), strict=True))
            known: Known = None
            if label is not None:
                known = value_of(file, kinds[label], places[label], f"{file.name} (item {number})")
            yield image_row(file, b"%08d" % number, places[image], known, kinds[image])


def _columns(file: ForeignFile) -> tuple[list[str], list[str]]:
    """Return the names and the types of the parts of an item."""
    path = os.path.join(os.path.dirname(file.path), "index.json")
    try:
        if os.path.exists(path) and not os.path.isfile(path):
            raise ValueError("it is not a file")  # a pipe would be waited for
        if os.path.getsize(path) > MOST_INDEX_BYTES:
            raise ValueError("it is too large")
        with open(path, "rb") as index:
            config: Any = json.load(index)["config"]
        kinds = [str(kind).partition(":")[0] for kind in config["data_format"]]
        compression = config.get("compression")
        names = _names(config.get("data_spec"), len(kinds))
    except OSError as error:
        raise UsageError(path, f"cannot be read: {error.strerror}", "copy it beside the chunks") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UsageError(path, f"is not an index of LitData: {error!r}", PLAIN_CHUNKS) from None
    if compression:
        raise UsageError(file.path, "is compressed", PLAIN_CHUNKS)
    return names, kinds


def _names(spec: Any, count: int) -> list[str]:
    """Return the keys of a sample that is a dict, else the numbers of its parts."""
    numbers = [str(number) for number in range(count)]
    try:
        keys = json.loads(json.loads(spec)[1]["context"])
    except (ValueError, TypeError, KeyError, IndexError):
        return numbers
    return [str(key) for key in keys] if isinstance(keys, list) and len(keys) == count else numbers
