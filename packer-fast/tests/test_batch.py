"""Batches: good and bad images together, several calls at the same time, memory next to the rows."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from helpers import decode, encode, scene

import packer_fast
from packer_fast import Error, make_index


def test_good_and_bad_images_do_not_disturb_each_other() -> None:
    good = [encode(scene(90, 70, i), sampling) for i, sampling in enumerate(["420", "444", "422", "440", "411"])]
    good.append(encode(scene(90, 70, 6)[..., :1]))
    good.append(encode(scene(90, 70, 7), optimize=True))
    alone = [decode([jpeg], [(11, 3, 60, 50)], (40, 40))[0][0] for jpeg in good]
    bad = [good[0][:700], b"junk", good[1][:-2][:900] + b"\xff\xd9", good[6][:500]]
    mixed, expected = [], []
    for i, jpeg in enumerate(good):
        mixed += [bad[i % 4], jpeg]
        expected += [None, alone[i]]
    rows, errors = decode(mixed, [(11, 3, 60, 50)] * 14, (40, 40), sizes=[(90, 70)] * 14)
    for row, error, right in zip(rows, errors, expected, strict=True):
        assert (error == Error.OK) == (right is not None)
        assert right is None or np.array_equal(row, right)


@pytest.mark.parametrize("out", [(13, 17), (70, 90), (1, 1), (33, 50)])
@pytest.mark.parametrize("channels", [1, 3])
def test_nothing_is_written_outside_the_row(out: tuple[int, int], channels: int) -> None:
    jpeg = np.frombuffer(encode(scene(90, 70)), np.uint8)
    canvas = np.full((5, *out, channels), 99, np.uint8)
    batch = packer_fast.Batch(
        np.array([jpeg.ctypes.data], np.uint64),
        np.array([len(jpeg)], np.uint64),
        np.array([[90, 70]], np.int32),
        np.array([[0, 0, 90, 70]], np.int32),
        flips=np.array([True]),
    )
    assert packer_fast.decode_batch(batch, canvas[2:3]).tolist() == [Error.OK]
    assert (canvas[[0, 1, 3, 4]] == 99).all()
    assert (canvas[2] != 99).any()


def test_rows_may_be_apart() -> None:
    jpeg = encode(scene(32, 32))
    data = np.frombuffer(jpeg, np.uint8)
    canvas = np.zeros((6, 32, 32, 3), np.uint8)
    batch = packer_fast.Batch(
        np.full(3, data.ctypes.data, np.uint64),
        np.full(3, len(data), np.uint64),
        np.full((3, 2), 32, np.int32),
        np.array([[0, 0, 32, 32]] * 3, np.int32),
    )
    assert packer_fast.decode_batch(batch, canvas[::2]).tolist() == [Error.OK] * 3
    assert (canvas[0] == canvas[2]).all()
    assert canvas[0].any()
    assert not canvas[1::2].any()


def test_threads() -> None:
    jpegs = [encode(scene(200, 150, i), ["420", "444"][i % 2], optimize=bool(i % 3)) for i in range(24)]
    indexes: list[bytes | None] = [make_index(jpeg, i % 5) for i, jpeg in enumerate(jpegs)]
    regions = [(i, 2 * i, 150, 100 - i) for i in range(24)]
    expected, errors = decode(jpegs, regions, (96, 96))
    assert errors == [Error.OK] * 24
    with ThreadPoolExecutor(8) as pool:
        for rows, found in pool.map(lambda _: decode(jpegs, regions, (96, 96), indexes=indexes), range(40)):
            assert found == [Error.OK] * 24
            assert np.array_equal(rows, expected)


def test_the_version_names_its_parts() -> None:
    assert packer_fast.version().startswith("0.2.0")
