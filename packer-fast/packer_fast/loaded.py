"""Finds and loads the shared library."""

from __future__ import annotations

import ctypes
import os
from functools import cache
from pathlib import Path

ABI = 2
"""PF_ABI of the header that these declarations follow."""
LIBRARY_VARIABLE = "PACKER_FAST_LIBRARY"
"""Environment variable with the path of another build of the library, such as one with sanitizers."""


class BatchStruct(ctypes.Structure):
    """pf_batch of packer_fast.h."""

    _fields_ = (
        ("count", ctypes.c_int64),
        ("jpegs", ctypes.c_void_p),
        ("jpeg_bytes", ctypes.c_void_p),
        ("sizes", ctypes.c_void_p),
        ("regions", ctypes.c_void_p),
        ("rows", ctypes.c_void_p),
        ("flips", ctypes.c_void_p),
        ("indexes", ctypes.c_void_p),
        ("indexes_bytes", ctypes.c_void_p),
        ("errors", ctypes.c_void_p),
        ("height", ctypes.c_int32),
        ("width", ctypes.c_int32),
        ("channels", ctypes.c_int32),
        ("filter", ctypes.c_int32),
        ("verify", ctypes.c_int32),
        ("headroom", ctypes.c_int32),
    )


@cache
def load() -> ctypes.CDLL:
    """Return the library, with its functions declared; calls of a CDLL release the GIL.

    Raises:
        ImportError: It is missing, cannot be loaded, or is another version than this package.
    """
    found = os.environ.get(LIBRARY_VARIABLE)
    folder = Path(__file__).parent
    paths = [Path(found)] if found else [*folder.glob("libpacker_fast.so"), *folder.glob("libpacker_fast.dylib")]
    if not paths:
        raise ImportError(f"{folder} has no shared library; install the wheel, or build it as README.md says")
    try:
        library = ctypes.CDLL(str(paths[0]))
    except OSError as error:
        raise ImportError(f"{paths[0]} cannot be loaded: {error}") from error
    library.packer_fast_abi.restype = ctypes.c_int32
    abi = library.packer_fast_abi()
    if abi != ABI:
        raise ImportError(f"{paths[0]} has interface {abi}, but this package needs {ABI}; install both from one wheel")
    library.packer_fast_version.restype = ctypes.c_char_p
    library.packer_fast_decode_crops.argtypes = (ctypes.POINTER(BatchStruct), ctypes.c_int64)
    library.packer_fast_decode_crops.restype = ctypes.c_int64
    library.packer_fast_make_index.argtypes = (
        ctypes.c_void_p,
        ctypes.c_uint64,
        ctypes.c_int32,
        ctypes.c_void_p,
        ctypes.c_uint64,
        ctypes.POINTER(ctypes.c_int32),
    )
    library.packer_fast_make_index.restype = ctypes.c_int64
    return library
