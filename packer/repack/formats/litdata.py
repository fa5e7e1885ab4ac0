"""Chunks of LitData (chunk-0-0.bin) that are not compressed; the index.json beside them names their columns."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

import numpy as np

from packer.errors import UsageError
from packer.repack.formats.base import ForeignFile, FormatOptions, Known, Row
from packer.repack.formats.mds import bounds_of, chosen_columns, image_row, value_of

MOST_INDEX_BYTES = 256 << 20
TARS = "write the images to files, or to tars of WebDataset"
AGAIN = "write it again: optimize(..., compression=None)"


class LitData:
    """Reads the images of a chunk; the roles are image and label, by their keys or numbers in the sample."""

    def __init__(self, options: FormatOptions) -> None:
        self._columns = options.columns
        self.classes: tuple[str, ...] | None = None
        self.notes: list[str] = []

    def __call__(self, file: ForeignFile) -> Iterator[Row]:
        names, kinds = _columns(file)
        image, label = chosen_columns(file, names, kinds, self._columns)
        if label is None and kinds.count("int") == 1 and "label" not in self._columns:
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
        raise UsageError(path, f"is not an index of LitData: {error!r}", AGAIN) from None
    if compression:
        raise UsageError(file.path, "is compressed", AGAIN)
    return names, kinds


def _names(spec: Any, count: int) -> list[str]:
    """Return the keys of a sample that is a dict, else the numbers of its parts."""
    numbers = [str(number) for number in range(count)]
    try:
        keys = json.loads(json.loads(spec)[1]["context"])
    except (ValueError, TypeError, KeyError, IndexError):
        return numbers
    return [str(key) for key in keys] if isinstance(keys, list) and len(keys) == count else numbers
