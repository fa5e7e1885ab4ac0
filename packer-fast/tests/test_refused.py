"""What is not decoded, and with which error."""

import io

import numpy as np
import pytest
from helpers import decode, encode, scene
from PIL import Image

import packer_fast
from packer_fast import Error, IndexNotPossible, make_index

WHOLE = (0, 0, 40, 30)


def saved(mode: str) -> bytes:
    made = io.BytesIO()
    Image.fromarray(scene(40, 30)).convert(mode).save(made, "JPEG")
    return made.getvalue()


@pytest.mark.parametrize("out", [(30, 40), (20, 20)])
def test_cmyk(out: tuple[int, int]) -> None:
    assert decode([saved("CMYK")], [WHOLE], out)[1] == [Error.UNSUPPORTED]


@pytest.mark.parametrize(
    ("marker", "precision"),
    [(0xC1, 12), (0xC3, 8), (0xC9, 8), (0xCB, 8)],
    ids=["12 bits", "lossless", "arithmetic", "both"],
)
def test_other_processes(marker: int, precision: int) -> None:
    jpeg = bytearray(encode(scene(40, 30)))
    at = jpeg.index(b"\xff\xc0")
    jpeg[at + 1], jpeg[at + 4] = marker, precision
    for out in ((30, 40), (20, 20)):
        assert decode([bytes(jpeg)], [WHOLE], out, sizes=[(40, 30)])[1][0] in (Error.UNSUPPORTED, Error.DAMAGED)


@pytest.mark.parametrize("size", [(41, 30), (40, 29), (0, 0), (-1, 5), (70000, 30)])
def test_another_size_than_expected(size: tuple[int, int]) -> None:
    jpeg = encode(scene(40, 30))
    for out in ((30, 40), (20, 20)):
        assert decode([jpeg], [(0, 0, 10, 10)], out, sizes=[size])[1] == [Error.UNSUPPORTED]


@pytest.mark.parametrize(
    "region", [(-1, 0, 5, 5), (0, 0, 41, 30), (36, 0, 5, 5), (0, 0, 0, 5), (0, 27, 5, 4), (2**31 - 1, 0, 2**31 - 1, 1)]
)
def test_a_region_outside_the_image(region: tuple[int, ...]) -> None:
    assert decode([encode(scene(40, 30))], [region], (8, 8))[1] == [Error.UNSUPPORTED]


def test_an_axis_that_shrinks_too_much() -> None:
    jpeg = encode(scene(800, 40))
    assert decode([jpeg], [(0, 0, 800, 40)], (40, 2), headroom=0)[1] == [Error.UNSUPPORTED]


def test_samplings_that_libjpeg_refuses() -> None:
    jpeg = bytearray(encode(scene(40, 30), "444"))
    at = jpeg.index(b"\xff\xc0")
    jpeg[at + 11] = 0x32  # 3x2 luma to
    jpeg[at + 14] = 0x21  # 2x1 chroma
    for out in ((30, 40), (20, 20)):
        assert decode([bytes(jpeg)], [WHOLE], out, sizes=[(40, 30)])[1][0] in (Error.UNSUPPORTED, Error.DAMAGED)


@pytest.mark.parametrize("out", [(30, 40), (20, 20)])
def test_several_scans(out: tuple[int, int]) -> None:
    """Coefficients of all scans would have to be kept: no part of the image is done before the last one."""
    jpegs = [encode(scene(40, 30), progressive=True), encode(scene(40, 30)[..., :1], progressive=True)]
    assert decode(jpegs, [WHOLE] * 2, out)[1] == [Error.UNSUPPORTED] * 2


def test_other_formats() -> None:
    made = io.BytesIO()
    Image.fromarray(scene(40, 30)).save(made, "PNG")
    for data in (made.getvalue(), b"", b"\xff", b"\xff\xd8", b"\xff\xd8\xff\xd9"):
        assert decode([data], [WHOLE], (20, 20), sizes=[(40, 30)])[1] == [Error.DAMAGED]


def test_no_index_for_progressive_and_damaged() -> None:
    with pytest.raises(IndexNotPossible, match="UNSUPPORTED"):
        make_index(encode(scene(40, 30), progressive=True))
    with pytest.raises(IndexNotPossible, match="DAMAGED"):
        make_index(encode(scene(40, 30))[:-20])
    with pytest.raises(IndexNotPossible, match="DAMAGED"):
        make_index(b"")
    with pytest.raises(ValueError, match="interval"):
        make_index(encode(scene(40, 30)), -1)


def test_arguments_are_checked() -> None:
    ones = np.ones(1, np.uint64)
    good = packer_fast.Batch(ones, ones, np.ones((1, 2), np.int32), np.ones((1, 4), np.int32))
    rows = np.zeros((1, 4, 4, 3), np.uint8)
    for wrong in (rows[:, :, ::2], rows.astype(np.float32), rows[..., 0], np.zeros((2, 4, 4, 3), np.uint8)):
        with pytest.raises(ValueError, match="rows"):
            packer_fast.decode_batch(good, wrong)
    with pytest.raises(ValueError, match="1 or 3 channels"):
        packer_fast.decode_batch(good, np.zeros((1, 4, 4, 4), np.uint8))
    with pytest.raises(ValueError, match="filter"):
        packer_fast.decode_batch(good, rows, filter="nearest")  # type: ignore[arg-type]
    wrong_sizes = packer_fast.Batch(ones, ones, np.ones((1, 2), np.int64), good.regions)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="sizes must be int32"):
        packer_fast.decode_batch(wrong_sizes, rows)
    without_bytes = packer_fast.Batch(ones, ones, good.sizes, good.regions, indexes=ones)
    with pytest.raises(ValueError, match="indexes_bytes"):
        packer_fast.decode_batch(without_bytes, rows)
    empty = packer_fast.Batch(*(array[:0] for array in (ones, ones, good.sizes, good.regions)))
    assert packer_fast.decode_batch(empty, rows[:0]).shape == (0,)
