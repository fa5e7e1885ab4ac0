"""The datasets of an HDF5 file: only its own, and only as large as it is."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import h5py
import numpy as np

from packer.errors import printable

_SMALL_BYTES = 1 << 20
"""What values may take in memory however small their file is: compressed ones are larger than they are there."""


def own_dataset(content: Any, name: str) -> Any:
    """Return a dataset of the file itself; None if there is none of that name, or a link leads elsewhere."""
    at = content
    for part in name.strip("/").split("/"):
        if not isinstance(at, h5py.Group) or not isinstance(at.get(part, getlink=True), h5py.HardLink):
            return None
        at = at[part]
    return at if isinstance(at, h5py.Dataset) else None


def check_within(dataset: Any, file_bytes: int) -> None:
    """Raise ValueError if a dataset is in other files, or is larger than its file: a shape costs nothing to write."""
    if dataset.is_virtual or dataset.external:
        raise ValueError(f"the dataset {printable(dataset.name)} is in other files")
    count = max(math.prod(dataset.shape), math.prod(dataset.chunks or (0,)))  # a chunk is read as a whole
    if count * dataset.dtype.itemsize > max(file_bytes, _SMALL_BYTES):
        problem = f"of shape {dataset.shape} and type {dataset.dtype} is larger than its file"
        raise ValueError(f"the dataset {printable(dataset.name)} {problem}")


def values_of(dataset: Any, file_bytes: int) -> Any:
    """Return all values of a dataset, numbers or bytes. Raise ValueError as `check_within` does, or for other types."""
    check_within(dataset, file_bytes)
    if not dataset.dtype.hasobject:
        return dataset[:]
    if h5py.check_string_dtype(dataset.dtype) is None:
        raise ValueError(f"the dataset {printable(dataset.name)} has neither numbers nor texts")
    found = within_file((dataset[place] for place in np.ndindex(dataset.shape)), dataset, file_bytes)
    return np.array([*found, None], object)[:-1].reshape(dataset.shape)


def within_file(texts: Iterator[bytes], dataset: Any, file_bytes: int) -> Iterator[bytes]:
    """Yield texts. Raise ValueError if together they are longer than their file, in which they may all be the same."""
    left = max(file_bytes, _SMALL_BYTES)
    for text in texts:
        left -= len(text)
        if left < 0:
            raise ValueError(f"the texts of the dataset {printable(dataset.name)} are longer than its file")
        yield text


def contiguous_offset(images: Any) -> int:
    """Return where a dataset begins in its file. Raise ValueError if it is not contiguous there."""
    if images.chunks is not None:
        raise ValueError("the dataset is chunked or compressed; write it again in one piece (h5repack -l CONTI)")
    if images.is_virtual or images.external:
        raise ValueError("the dataset is in other files")
    offset = images.id.get_offset()
    if images.dtype.hasobject or (offset is None and images.size):
        raise ValueError("the dataset is not contiguous in the file")
    return int(offset or 0)
