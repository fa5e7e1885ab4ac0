"""The calls of the library as functions over numpy arrays."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from packer_fast.loaded import BatchStruct, load

Filter = Literal["area", "bilinear", "fast"]
"""What an axis that shrinks does: the filters of ``packer.images.opencv``; one that grows is linear."""
_FILTERS: dict[str, int] = {"area": 0, "bilinear": 1, "fast": 2}
_Addresses = NDArray[np.uint64]
_Int32 = NDArray[np.int32]


class Error(IntEnum):
    """What became of an image; for all but OK its row is undefined."""

    OK = 0
    DAMAGED = 1
    """libjpeg raises an error or a warning, or the data is not valid."""
    UNSUPPORTED = 2
    """Another decoder may read it: CMYK, 12 bits, another size than given, a region outside the image."""
    WRONG_INDEX = 3
    """The index is damaged, or that of another JPEG."""
    NO_MEMORY = 4


class IndexNotPossible(ValueError):
    """A JPEG cannot have an index; `error` is DAMAGED, UNSUPPORTED (progressive, say) or NO_MEMORY."""

    def __init__(self, error: Error) -> None:
        super().__init__(f"the JPEG cannot have an index: {error.name}")
        self.error = error


@dataclass(frozen=True)
class Batch:
    """JPEGs to decode; all arrays are C-contiguous and have one element per image.

    The memory at the addresses must stay valid during the call, and nobody may write to it.
    """

    jpegs: _Addresses
    """uint64 (n,): address of each JPEG."""
    jpeg_bytes: _Addresses
    """uint64 (n,): size of each JPEG."""
    sizes: _Int32
    """int32 (n, 2): width and height that each JPEG must have."""
    regions: _Int32
    """int32 (n, 4): x, y, width, height of the part to decode, inside the image."""
    flips: NDArray[np.bool_] | None = None
    """bool (n,): which results to mirror, left and right."""
    indexes: _Addresses | None = None
    """uint64 (n,): address of each index, 0 for none."""
    indexes_bytes: _Addresses | None = None
    """uint64 (n,): size of each index."""


def decode_batch(
    batch: Batch,
    rows: NDArray[np.uint8],
    *,
    filter: Filter = "area",
    verify: bool = False,
    headroom: int = 2,
) -> _Int32:
    """Decode a region of each JPEG, resize it to the size of a row, and write it there.

    The call releases the GIL and shares nothing with other calls: call it from several threads, with a part of
    the batch each. A whole image without resizing has the pixels that libjpeg-turbo gives (accurate DCT, fancy
    upsampling). Any other region differs from decoding, cropping and resizing by rounding.

    Args:
        batch: The JPEGs.
        rows: uint8 (n, height, width, channels), 1 (gray) or 3 (RGB) channels; each row C-contiguous.
        filter: What an axis that shrinks does.
        verify: Also find damage outside the regions. Decodes all of each file, so indexes are not used.
        headroom: Decode at 1/2, 1/4 or 1/8 where the region is then at least this many times the result.
            0: never.

    Returns:
        int32 (n,): `Error` of each image.

    Raises:
        ValueError: An array has another shape, type or layout.
    """
    return decode_crops([batch], [rows], filters=[filter], verify=verify, headroom=headroom)


def decode_crops(
    crops: Sequence[Batch],
    rows: Sequence[NDArray[np.uint8]],
    *,
    filters: Sequence[Filter],
    verify: bool = False,
    headroom: int = 2,
) -> _Int32:
    """Decode several regions of each JPEG, which is decoded once, as small as all of its regions allow.

    Args:
        crops: Batches of the same JPEGs; regions and flips may differ.
        rows: Those of each, as for `decode_batch`, of the same number of channels.
        filters: Of each.
        verify: As for `decode_batch`.
        headroom: The same.

    Returns:
        int32 (n,): `Error` of each image; the rows of one that has an error are undefined in all crops.

    Raises:
        ValueError: An array has another shape, type or layout, or the crops are not of the same images.
    """
    errors = np.full(len(crops[0].jpegs), Error.NO_MEMORY, np.int32)
    how = int(verify), headroom
    given = [_struct(*each, errors, *how) for each in zip(crops, rows, filters, strict=True)]
    structs = (BatchStruct * len(crops))(*(struct for struct, _ in given))
    if len(errors) and load().packer_fast_decode_crops(structs, len(crops)) < 0:
        shapes = ", ".join(str(each.shape) for each in rows)
        rule = "rows must have 1 or 3 channels, the same in all crops, and headroom must be >= 0"
        raise ValueError(f"{rule}, got {shapes}, {headroom}")
    return errors


def _struct(
    batch: Batch, rows: NDArray[np.uint8], filter: Filter, errors: _Int32, verify: int, headroom: int
) -> tuple[BatchStruct, _Addresses]:
    """Return what the library reads, and the array of it that must live as long."""
    count = len(errors)
    if rows.dtype != np.uint8 or rows.ndim != 4 or len(rows) != count or (count and not rows[0].flags.c_contiguous):
        raise ValueError(f"rows must be uint8 ({count}, height, width, channels), got {rows.dtype} {rows.shape}")
    if not rows.flags.writeable:
        raise ValueError("rows must be writable")
    if filter not in _FILTERS:
        raise ValueError(f"filter must be one of {', '.join(_FILTERS)}, got {filter!r}")
    starts = np.arange(count, dtype=np.int64) * rows.strides[0] + rows.ctypes.data
    struct = BatchStruct(
        count,
        _checked("jpegs", batch.jpegs, np.uint64, (count,)),
        _checked("jpeg_bytes", batch.jpeg_bytes, np.uint64, (count,)),
        _checked("sizes", batch.sizes, np.int32, (count, 2)),
        _checked("regions", batch.regions, np.int32, (count, 4)),
        starts.ctypes.data,
        None if batch.flips is None else _checked("flips", batch.flips, np.bool_, (count,)),
        None if batch.indexes is None else _checked("indexes", batch.indexes, np.uint64, (count,)),
        None if batch.indexes is None else _checked("indexes_bytes", batch.indexes_bytes, np.uint64, (count,)),
        errors.ctypes.data,
        *rows.shape[1:],
        _FILTERS[filter],
        verify,
        headroom,
    )
    return struct, starts


def make_index(jpeg: bytes | memoryview | NDArray[np.uint8], interval: int = 0) -> bytes:
    """Return the index of a JPEG, with which a region is decoded without what comes before it.

    Args:
        jpeg: A baseline JPEG.
        interval: MCUs (16x16 pixels for 4:2:0) between two entries; 0: an entry per row of MCUs.

    Raises:
        IndexNotPossible: The JPEG is damaged, or of a kind that has no index.
        ValueError: `interval` is negative.
    """
    if interval < 0:
        raise ValueError(f"interval must be >= 0, got {interval}")
    data = np.frombuffer(jpeg, np.uint8)
    error = ctypes.c_int32()
    capacity = len(data) // 4 + 1024
    while True:
        index = np.empty(capacity, np.uint8)
        size = load().packer_fast_make_index(
            data.ctypes.data, len(data), interval, index.ctypes.data, capacity, ctypes.byref(error)
        )
        if error.value != Error.OK:
            raise IndexNotPossible(Error(error.value))
        if size <= capacity:
            return index[:size].tobytes()
        capacity = size


def version() -> str:
    """Return the version of the library and of its libjpeg-turbo, and its instruction set."""
    text: bytes = load().packer_fast_version()
    return text.decode()


def _checked(name: str, array: Any, dtype: Any, shape: tuple[int, ...]) -> int:
    """Return the address of an array. Raise ValueError if it is not as the library expects it."""
    if not isinstance(array, np.ndarray) or array.dtype != dtype or array.shape != shape:
        found = f"{array.dtype} {array.shape}" if isinstance(array, np.ndarray) else repr(array)
        raise ValueError(f"{name} must be {np.dtype(dtype)} {shape}, got {found}")
    if not array.flags.c_contiguous:
        raise ValueError(f"{name} must be C-contiguous")
    return array.ctypes.data
