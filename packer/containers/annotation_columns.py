"""Collects the data of a shard of arrays before it is written: runs of bytes, and annotations as arrays."""

from __future__ import annotations

import os
import tempfile
from array import array
from collections.abc import Iterator
from typing import IO, Any

import numpy as np

from packer.types import Annotation

_IN_MEMORY_BYTES = 256 << 20


class BytesColumn:
    """Byte strings one after another: not copied up to 256 MiB, then in an unnamed file beside `path`."""

    def __init__(self, path: str) -> None:
        self._folder = os.path.dirname(path) or "."
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._file: IO[bytes] | None = None
        self._bounds: Any = None
        self._lengths = array("q", [0])
        self.total = 0

    def __del__(self) -> None:
        self.close()

    def append(self, item: bytes) -> None:
        self._held.append(item)
        self._bounds = None
        self._held_bytes += len(item)
        self._lengths.append(len(item))
        self.total += len(item)
        if self._held_bytes > _IN_MEMORY_BYTES:
            self._spill()

    def _spill(self) -> None:
        if self._file is None:
            self._file = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115
        self._file.seek(0, os.SEEK_END)
        self._file.writelines(self._held)
        self._held, self._held_bytes = [], 0

    def offsets(self) -> Any:
        """The start of each item, and the end of the last, int64 (n + 1,)."""
        return np.cumsum(np.frombuffer(self._lengths, np.int64))

    def read(self, start: int, stop: int) -> bytes:
        if self._file is not None:
            self._spill()
            self._file.seek(start)
            return self._file.read(stop - start)
        if self._bounds is None:
            self._bounds = self.offsets()
        number = int(np.searchsorted(self._bounds, start, "right")) - 1
        parts = []
        while start < stop:
            first, item = int(self._bounds[number]), memoryview(self._held[number])
            parts.append(item[start - first : stop - first])
            start, number = first + len(item), number + 1
        return b"".join(parts)

    def close(self) -> None:
        self._held = []
        if self._file is not None:
            self._file.close()


class AnnotationColumns:
    """The annotations of a shard as the arrays that docs/formats.md lists."""

    def __init__(self) -> None:
        self._labels = array("q")
        self._boxes = _Column(4)
        self._box_labels = array("q")
        self._landmarks = _Column(2)
        self._keypoints = _Column(3)
        self._keypoints_a_box: set[int] = set()
        self._tags: list[Any] = []

    def append(self, a: Annotation) -> None:
        self._labels.append(-1 if a.label is None else a.label)
        self._boxes.append(a.boxes)
        if a.boxes is not None:
            labels = np.full(len(a.boxes), -1) if a.box_labels is None else a.box_labels
            self._box_labels.frombytes(np.asarray(labels, np.int64).tobytes())
        self._landmarks.append(a.landmarks)
        self._tags.append(a.tags)
        if a.boxes is not None and len(a.boxes):
            self._keypoints_a_box.add(-1 if a.keypoints is None else a.keypoints.shape[1])
            self._keypoints.append(a.keypoints)

    def arrays(self) -> dict[str, Any]:
        """Return the datasets by name, without fields that no record has."""
        return dict(self._arrays())

    def _arrays(self) -> Iterator[tuple[str, Any]]:
        labels = np.frombuffer(self._labels, np.int64)
        if (labels >= 0).any():
            yield "labels", labels
        if self._boxes.present:
            yield "boxes", self._boxes.flat()
            yield "box_labels", np.frombuffer(self._box_labels, np.int64)
            yield "box_offsets", self._boxes.offsets()
        if self._landmarks.present:
            k = self._landmarks.common_length()
            if k is not None:
                yield "landmarks", self._landmarks.flat().reshape(len(labels), k, 2)
            else:
                yield "landmarks", self._landmarks.flat()
                yield "landmark_offsets", self._landmarks.offsets()
        if len({-1 if tags is None else len(tags) for tags in self._tags} - {-1}) == 1:
            count = max(len(tags) for tags in self._tags if tags is not None)
            yield "tags", np.array([np.zeros(count) if tags is None else tags for tags in self._tags], np.uint8)
        # an array only if all boxes have the same number of points; the JSON always has them
        if len(self._keypoints_a_box) == 1 and (k := min(self._keypoints_a_box)) >= 0:
            yield "keypoints", self._keypoints.flat().reshape(-1, k, 3)


class _Column:
    """Rows of float32 (n, width), where n varies between records."""

    def __init__(self, width: int) -> None:
        self._width = width
        self._values = array("f")
        self._lengths = array("q", [0])
        self.present = 0

    def append(self, rows: Any) -> None:
        if rows is not None:
            self.present += 1
            self._values.frombytes(np.asarray(rows, np.float32).tobytes())
        self._lengths.append(0 if rows is None else len(rows))

    def flat(self) -> Any:
        return np.frombuffer(self._values, np.float32).reshape(-1, self._width)

    def offsets(self) -> Any:
        return np.cumsum(np.frombuffer(self._lengths, np.int64))

    def common_length(self) -> int | None:
        """Return the common length of all rows; None if they differ or one is missing."""
        lengths = set(self._lengths[1:])
        return min(lengths) if len(lengths) == 1 and self.present == len(self._lengths) - 1 else None
