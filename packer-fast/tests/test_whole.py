"""Whole images without resizing have the pixels of simplejpeg, bit by bit."""

import io

import numpy as np
import pytest
import simplejpeg
from helpers import JPEG_410, SAMPLINGS, decode, decode_whole, encode, photos, scene
from PIL import Image

from packer_fast import Error

SIZES = [(32, 32), (33, 31), (1, 1), (2, 3), (5, 17), (16, 8), (100, 75), (257, 131)]
KINDS = [{}, {"restart_marker_blocks": 3}]


@pytest.mark.parametrize("kind", KINDS, ids=["baseline", "restarts"])
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_colors(sampling: str, kind: dict[str, int]) -> None:
    for width, height in SIZES:
        jpeg = encode(scene(width, height, width), sampling, **kind)
        for channels, space in ((3, "RGB"), (1, "GRAY")):
            rows, errors = decode([jpeg], [(0, 0, width, height)], (height, width), channels)
            assert errors == [Error.OK]
            assert np.array_equal(rows[0], simplejpeg.decode_jpeg(jpeg, space))


@pytest.mark.parametrize("channels", [1, 3])
def test_410(channels: int) -> None:
    rows, errors = decode([JPEG_410], [(0, 0, 70, 45)], (45, 70), channels)
    assert errors == [Error.OK]
    assert np.array_equal(rows[0], decode_whole(JPEG_410, channels))


@pytest.mark.parametrize("channels", [1, 3])
def test_gray(channels: int) -> None:
    jpeg = encode(scene(61, 47)[..., :1])
    rows, errors = decode([jpeg], [(0, 0, 61, 47)], (47, 61), channels)
    assert errors == [Error.OK]
    assert np.array_equal(rows[0], simplejpeg.decode_jpeg(jpeg, "RGB" if channels == 3 else "GRAY"))


def test_optimized_tables_and_low_quality() -> None:
    jpegs = [encode(scene(64, 48, i), quality=q, optimize=True) for i, q in enumerate((1, 10, 50, 95, 100))]
    rows, errors = decode(jpegs, [(0, 0, 64, 48)] * 5, (48, 64))
    assert errors == [Error.OK] * 5
    for row, jpeg in zip(rows, jpegs, strict=True):
        assert np.array_equal(row, simplejpeg.decode_jpeg(jpeg))


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("width", [31, 32])
def test_flip(width: int, channels: int) -> None:
    jpeg = encode(scene(width, 20))
    rows, errors = decode([jpeg] * 2, [(0, 0, width, 20)] * 2, (20, width), channels, flips=[True, False])
    assert errors == [Error.OK] * 2
    assert np.array_equal(rows[0], rows[1][:, ::-1])


def test_rgb_without_color_conversion() -> None:
    made = io.BytesIO()
    Image.fromarray(scene(40, 30)).save(made, "JPEG", quality=90, keep_rgb=True)
    rows, errors = decode([made.getvalue()], [(0, 0, 40, 30)], (30, 40))
    assert errors == [Error.OK]
    assert np.array_equal(rows[0], simplejpeg.decode_jpeg(made.getvalue()))
    assert decode([made.getvalue()], [(0, 0, 40, 30)], (30, 40), 1)[1] == [Error.UNSUPPORTED]


def test_photos() -> None:
    jpegs = photos(60)
    if not jpegs:
        pytest.skip("the photos of ../shared/data are not here")
    compared = 0
    for jpeg in jpegs:
        height, width, space, _ = simplejpeg.decode_jpeg_header(jpeg)
        if space in ("CMYK", "YCCK") or width * height > 1_000_000:
            continue
        rows, errors = decode([jpeg], [(0, 0, width, height)], (height, width), sizes=[(width, height)])
        assert errors == [Error.OK]
        assert np.array_equal(rows[0], simplejpeg.decode_jpeg(jpeg))
        compared += 1
    assert compared > 20
