"""The rows of an index as the records that they were made of."""

from __future__ import annotations

from typing import Any

import numpy as np

from packer.errors import AnyPath
from packer.format.columns import Annotations, column
from packer.format.schema import DTYPES, ENCODINGS
from packer.types import Record


class Rows:
    """The records of an index, without their images. Raises DamagedPack or ValueError where a row makes no sense."""

    def __init__(self, table: Any, path: AnyPath) -> None:
        names = ("offset", "size", "crc32c", "height", "width", "channels", "dtype", "encoding")
        self._numbers = {name: np.asarray(column(table, name)) for name in names}
        self._keys, self._paths, self._sources = (column(table, name) for name in ("key", "path", "source_xxh3"))
        self._annotations = Annotations(table, path)

    def __len__(self) -> int:
        return len(self._annotations)

    def key(self, row: int) -> str:
        """The key of a row."""
        return bytes(self._keys[row]).decode("ascii")

    def path(self, row: int) -> bytes:
        """The path of its source file."""
        return bytes(self._paths[row])

    def number(self, name: str, row: int) -> int:
        """A number of a row: offset, size, crc32c, height, width, channels, dtype, encoding."""
        return int(self._numbers[name][row])

    def record(self, row: int, data: bytes = b"") -> Record:
        """The record of a row, whose image is `data`."""
        dtype, encoding = self.number("dtype", row), self.number("encoding", row)
        if not (0 <= dtype < len(DTYPES) and 0 <= encoding < len(ENCODINGS)):
            raise ValueError(f"row {row} has no valid dtype or encoding")
        return Record(
            key=self.key(row),
            data=data,
            encoding=ENCODINGS[encoding],
            height=self.number("height", row),
            width=self.number("width", row),
            channels=self.number("channels", row),
            dtype=DTYPES[dtype],
            annotation=self._annotations[row],
            path=self.path(row),
            source_xxh3=bytes(self._sources[row]),
        )
