"""Bytes of parts that nobody should trust: what a stranger's pack or file says is checked before memory is taken."""

from __future__ import annotations

import io
import math
import zlib
from typing import Any

import numpy as np
import pytest
from PIL import Image

from packer.errors import BadImage
from packer.images.masks import encode_mask
from packer.images.parts import BY_KIND, PartRecipe
from packer.model.annotation import KINDS, PartSpec


def npy(header: str, data: bytes = b"") -> bytes:
    text = header.encode().ljust(118) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + data


def saved(values: Any) -> bytes:
    stream = io.BytesIO()
    np.save(stream, values)
    return stream.getvalue()


def test_kinds_are_those_of_the_model() -> None:
    assert tuple(BY_KIND) == KINDS


@pytest.mark.parametrize("shape", [(), (1,), (0,), (2, 3)])
@pytest.mark.parametrize("order", "CF")
@pytest.mark.parametrize("dtype", ["<f4", ">i2"])
def test_an_array_keeps_its_shape(shape: tuple[int, ...], order: Any, dtype: str) -> None:
    kind, recipe = BY_KIND["array"], PartRecipe(PartSpec("a", "array"), "npy")
    value = np.asarray(np.arange(math.prod(shape)).reshape(shape), dtype, order=order)
    stored = kind.encode(kind.read(saved(value), recipe), "npy")
    found = kind.decode(stored, "npy", (1, 1), recipe.spec, "rgb")
    assert found.shape == shape and found.dtype == np.dtype(dtype).newbyteorder("<") and (found == value).all()


HOSTILE = {
    "a terabyte": npy("{'descr': '<f8', 'fortran_order': False, 'shape': (1000000, 125000), }", bytes(64)),
    "a width of zero bytes": npy("{'descr': '<f0', 'fortran_order': False, 'shape': (3,), }"),
    "a negative side": npy("{'descr': '<f4', 'fortran_order': False, 'shape': (-1,), }", bytes(4)),
    "objects": npy("{'descr': '|O', 'fortran_order': False, 'shape': (1,), }", bytes(8)),
    "one byte more": saved(np.zeros(3)) + b"\0",
    "one byte less": saved(np.zeros(3))[:-1],
    "no dict": npy("7 % 0"),
    "nothing": b"",
}


@pytest.mark.parametrize("case", HOSTILE)
def test_arrays_that_are_none(case: str) -> None:
    recipe = PartRecipe(PartSpec("a", "array"), "npy")
    for read in (
        lambda data: BY_KIND["array"].read(data, recipe),
        lambda data: BY_KIND["array"].decode(data, "npy", (1, 1), recipe.spec, "rgb"),
    ):
        with pytest.raises(BadImage):
            read(HOSTILE[case])


@pytest.mark.parametrize(
    ("kind", "encoding", "data", "spec"),
    [
        ("map", "png", encode_mask(np.zeros((2, 3), np.uint8), "png"), {"dtype": "float32"}),
        ("map", "raw", bytes(23), {"dtype": "float32"}),
        ("map", "raw", bytes(24), {"dtype": "float32", "channels": 2}),
        ("map", "npy", saved(np.zeros((2, 3), np.float16)), {"dtype": "float32"}),
        ("map", "zstd", b"(\xb5/\xfd", {"dtype": "uint16"}),
        ("image", "raw", bytes(17), {"dtype": "uint8"}),
        ("image", "raw", bytes(13), {"dtype": "uint16"}),
        ("image", "png", encode_mask(np.zeros((3, 2), np.uint8), "png"), {"dtype": "uint8"}),
        ("text", "txt", b"\xff", {}),
        ("json", "json", b"[1e999]", {}),
    ],
)
def test_stored_bytes_that_are_no_value(kind: str, encoding: str, data: bytes, spec: dict[str, Any]) -> None:
    with pytest.raises(BadImage):
        BY_KIND[kind].decode(data, encoding, (2, 3), PartSpec("a", kind, **spec), "unchanged")


def test_pixels_of_no_size() -> None:
    for kind in ("map", "image"):
        with pytest.raises(BadImage):
            BY_KIND[kind].decode(b"\0", "raw", (0, 3), PartSpec("a", kind, "uint8"), "rgb")


def test_a_mask_of_bits_that_no_png_has() -> None:
    data = bytearray(encode_mask(np.zeros((2, 3), np.uint8), "png"))
    data[24] = 0
    data[29:33] = zlib.crc32(data[12:29]).to_bytes(4, "big")
    with pytest.raises(BadImage, match="bit depth 0"):
        BY_KIND["mask"].decode(bytes(data), "png", (2, 3), PartSpec("a", "mask", "uint8"), "rgb")


def test_a_mask_with_a_second_header() -> None:
    stream = io.BytesIO()
    Image.new("1", (3, 2)).save(stream, "PNG")
    data = stream.getvalue()
    header = b"IHDR" + (70_000).to_bytes(4, "big") * 2 + data[24:29]
    second = len(header[4:]).to_bytes(4, "big") + header + zlib.crc32(header).to_bytes(4, "big")
    with pytest.raises(BadImage):
        BY_KIND["mask"].decode(data[:33] + second + data[33:], "png", (2, 3), PartSpec("a", "mask", "uint8"), "rgb")
