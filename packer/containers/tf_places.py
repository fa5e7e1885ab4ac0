"""Where the values of bytes features lie in serialised Examples, for many Examples at once.

Wire format: https://protobuf.dev/programming-guides/encoding. An Example is a field 1 (features) of fields 1 (entries
of a map: key 1, feature 2); a feature of bytes is a field 1 (list) of fields 1 (values). No value is read.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Positions = NDArray[np.int64]
_MOST_LENGTH_BITS = 63


class Places(NamedTuple):
    """Ranges of a file: int64 (n,) each."""

    starts: Positions
    stops: Positions

    def of(self, rows: Positions) -> Places:
        """Those of some rows."""
        return Places(self.starts[rows], self.stops[rows])


def find_bytes_features(data: Bytes, examples: Places, names: tuple[bytes, ...]) -> list[Places]:
    """Where the single value of each named bytes feature lies in each of the Examples, which lie inside `data`.

    Raises ValueError where bytes are not nested so, and where a name is missing.
    """
    found = [Places(np.zeros_like(examples.starts), np.zeros_like(examples.starts)) for _ in names]
    missing = np.ones((len(names), len(examples.starts)), np.bool_)
    features = _fields(data, examples, 1)
    position = features.starts.copy()
    open_rows = np.flatnonzero(position < features.stops)
    while open_rows.size:
        entries = _fields(data, Places(position[open_rows], features.stops[open_rows]), 1)
        keys = _fields(data, entries, 1)
        for name, places, lacks in zip(names, found, missing, strict=True):
            hits = _equal(data, keys, name)
            if hits.size:
                rest = Places(keys.stops[hits], entries.stops[hits])
                value = _fields(data, _fields(data, _fields(data, rest, 2), 1), 1)
                rows = open_rows[hits]
                places.starts[rows], places.stops[rows], lacks[rows] = *value, False
        position[open_rows] = entries.stops
        open_rows = open_rows[missing[:, open_rows].any(axis=0) & (entries.stops < features.stops[open_rows])]
    for name, lacks in zip(names, missing, strict=True):
        if lacks.any():
            raise ValueError(f"no feature {name.decode()} in the example at byte {examples.starts[lacks][0]}")
    return found


def _equal(data: Bytes, keys: Places, name: bytes) -> Positions:
    """Which keys are `name`."""
    rows = np.flatnonzero(keys.stops - keys.starts == len(name))
    texts = data[keys.starts[rows][:, None] + np.arange(len(name))]
    return np.asarray(rows[(texts == np.frombuffer(name, np.uint8)).all(axis=1)])


def _fields(data: Bytes, with_location: Places, number: int) -> Places:
    """The length-delimited field `number` that each of these ranges begins with."""
    starts, stops = with_location
    empty = starts >= stops
    if not empty.any():
        empty = data[starts] != (number << 3 | 2)
    if empty.any():
        raise ValueError(f"no field {number} at byte {starts[empty][0]}")
    lengths, position = np.zeros_like(starts), starts + 1
    more, shift = np.arange(len(starts)), 0
    while more.size:
        if shift >= _MOST_LENGTH_BITS or (position[more] >= stops[more]).any():
            raise ValueError(f"a length that does not end at byte {starts[more][0]}")
        byte = data[position[more]].astype(np.int64)
        lengths[more] |= (byte & 127) << shift
        position[more] += 1
        more, shift = more[byte >= 128], shift + 7
    outside = lengths > stops - position
    if outside.any():
        raise ValueError(f"the field at byte {starts[outside][0]} ends outside its message")
    return Places(position, position + lengths)
