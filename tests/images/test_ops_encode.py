"""Encoding: lossless formats come back exactly through Pillow, and what a format cannot hold is refused."""

from __future__ import annotations

import numpy as np
import pytest
from ops_images import DEEP, GRAY, HEIGHT, RGB, RGBA, WIDTH, difference, pillow_pixels

from packer.errors import BadImage
from packer.images.decode import decode
from packer.images.header import read_header
from packer.images.resize import Encoding, encode


@pytest.mark.parametrize(
    ("image", "encoding"),
    [(RGB, "png"), (GRAY[..., None], "png"), (RGBA, "png"), (RGB, "bmp"), (GRAY[..., None], "bmp")],
)
def test_lossless_encodings_come_back_exactly(image: np.ndarray, encoding: Encoding) -> None:
    data = encode(image, encoding)
    assert difference(pillow_pixels(data, image.shape[2]), image) == 0
    assert difference(decode(data, "unchanged"), image) == 0
    assert read_header(data).format == encoding


def test_png_holds_16_bits() -> None:
    data = encode(DEEP[..., None], "png")
    assert difference(pillow_pixels(data, 1, deep=True), DEEP[..., None]) == 0
    deep = (RGBA.astype(np.uint16) * 257) ^ 0x5A
    assert difference(decode(encode(deep, "png"), "unchanged"), deep) == 0


def test_raw_is_the_pixels_in_c_order() -> None:
    turned = RGB.swapaxes(0, 1)
    assert encode(turned, "raw") == np.ascontiguousarray(turned).tobytes()


def test_jpeg_is_420_close_and_smaller_with_less_quality() -> None:
    data = encode(RGB, "jpeg", 95)
    header = read_header(data)
    assert (header.width, header.height, header.channels) == (WIDTH, HEIGHT, 3)
    assert np.abs(pillow_pixels(data, 3).astype(int) - RGB).mean() < 4
    assert data[data.index(b"\xff\xc0") + 11] == 0x22  # luma sampled twice as densely both ways
    assert len(encode(RGB, "jpeg", 40)) < len(data)
    gray = encode(GRAY[..., None], "jpeg", 95)
    assert read_header(gray).channels == 1
    assert difference(pillow_pixels(gray, 1), GRAY[..., None]) < 12


@pytest.mark.parametrize(
    ("image", "encoding", "words"),
    [
        (DEEP[..., None], "jpeg", "16 bits"),
        (DEEP[..., None], "bmp", "16 bits"),
        (RGBA, "jpeg", "alpha"),
        (RGBA, "bmp", "alpha"),
        (RGBA[..., :2], "jpeg", "alpha"),
        (RGBA[..., :2], "png", "alpha"),
        (np.zeros((1, 65501, 3), np.uint8), "jpeg", "65501x1"),
    ],
)
def test_what_a_format_cannot_hold_is_refused_with_a_way_out(image: np.ndarray, encoding: Encoding, words: str) -> None:
    with pytest.raises(BadImage, match=f"{words}.*; use encode=.raw."):
        encode(image, encoding)
