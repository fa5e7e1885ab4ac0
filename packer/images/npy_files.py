"""Arrays in .npy files: read without the memory that a header asks for, and written in little-endian order."""

from __future__ import annotations

import io
import math
from typing import Any

import numpy as np

from packer.images.image_headers import bad_image

NUMBERS = "biufc"
"""Kinds of dtypes that are numbers."""


def npy_header(data: bytes) -> tuple[tuple[int, ...], bool, Any, int]:
    """Return shape, whether it is in Fortran's order, dtype and the place of the values of an array in a .npy file.

    Raises:
        BadImage: There is none, or it is not of numbers.
    """
    stream = io.BytesIO(data)
    try:
        version = np.lib.format.read_magic(stream)
        of_version = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, in_fortran, dtype = of_version(stream)
    except Exception as error:  # numpy's reader raises many kinds, among them ZeroDivisionError
        raise bad_image(f"is not an array in a .npy file: {str(error).partition(chr(10))[0]}") from None
    if dtype.kind not in NUMBERS or any(side < 0 for side in shape):
        raise bad_image(f"is an array of {dtype} in a .npy file, not of numbers", "save numbers: astype(float)")
    return shape, in_fortran, dtype, stream.tell()


def load_npy(data: bytes) -> Any:
    """Return the array in a .npy file. Raise BadImage if there is none, or it is not of numbers."""
    shape, in_fortran, dtype, start = npy_header(data)
    if len(data) - start != math.prod(shape) * dtype.itemsize:
        raise bad_image(f"has {len(data) - start} bytes of values, which is no array {dtype} {shape}")
    return np.frombuffer(data, dtype, offset=start).reshape(shape, order="F" if in_fortran else "C")


def save_npy(value: Any) -> bytes:
    """Return an array as a .npy file."""
    stream = io.BytesIO()
    np.lib.format.write_array(stream, np.asarray(value, value.dtype.newbyteorder("<"), order="C"))
    return stream.getvalue()
