"""Damaged files: an error, or what simplejpeg gives; never a crash, never another image's pixels.

What is promised, and tested here:

* whole images, and regions with `verify`: an image that is decoded is one that simplejpeg decodes without an error
  or a warning, or whose sampling only plain libjpeg knows (4:1:0), and it has those pixels;
* regions without `verify`: the pixels are those that libjpeg decodes there, although it may warn about other parts;
* an index of which any bit differs is refused.
"""

import numpy as np
import pytest
from helpers import Pixels, decode, decode_whole, encode, psnr, reference, resize, scene

from packer_fast import Error, make_index

SIZE = (40, 24)
REGION = (17, 2, 14, 9)
OUT = (12, 12)
BATCH = 64
KINDS = {
    "420": {"sampling": "420"},
    "444 restarts": {"sampling": "444", "restart_marker_blocks": 4},
    "422 optimized": {"sampling": "422", "optimize": True},
}


def small(kind: str) -> bytes:
    return encode(scene(*SIZE, 5), quality=60, **KINDS[kind])


def decode_all(
    jpegs: list[bytes], region: tuple[int, ...], out: tuple[int, int], verify: bool = False
) -> tuple[Pixels, list[int]]:
    rows, errors = [], []
    for i in range(0, len(jpegs), BATCH):
        part = jpegs[i : i + BATCH]
        more, found = decode(part, [region] * len(part), out, sizes=[SIZE] * len(part), verify=verify)
        rows.append(more)
        errors += found
    return np.concatenate(rows), errors


def by_libjpeg(jpeg: bytes, strict: bool) -> Pixels | None:
    """Return the RGB image, None if it is refused."""
    try:
        return decode_whole(jpeg, strict=strict)
    except (ValueError, OSError):
        return None


def flips(data: bytes) -> list[bytes]:
    """Return the data with each of its bits changed."""
    made = []
    for i in range(len(data) * 8):
        changed = bytearray(data)
        changed[i // 8] ^= 1 << i % 8
        made.append(bytes(changed))
    return made


@pytest.mark.parametrize("kind", KINDS)
def test_truncation_at_every_length(kind: str) -> None:
    jpeg = small(kind)
    parts = [jpeg[:size] for size in range(len(jpeg))]
    assert Error.OK not in decode_all(parts, (0, 0, *SIZE), SIZE[::-1])[1]
    assert Error.OK not in decode_all(parts, REGION, OUT, verify=True)[1]
    rows, errors = decode_all(parts, REGION, OUT)
    expected = decode([jpeg], [REGION], OUT)[0][0]
    # what is complete in front of the cut is right
    assert errors.count(Error.OK) < len(jpeg) * 0.6
    assert all(np.array_equal(row, expected) for row, error in zip(rows, errors, strict=True) if error == Error.OK)


@pytest.mark.parametrize("kind", KINDS)
def test_every_changed_bit_of_a_whole_image(kind: str) -> None:
    changed = flips(small(kind))
    rows, errors = decode_all(changed, (0, 0, *SIZE), SIZE[::-1])
    decoded = 0
    for jpeg, row, error in zip(changed, rows, errors, strict=True):
        if error == Error.OK:
            expected = by_libjpeg(jpeg, strict=True)
            assert expected is not None
            assert np.array_equal(row, expected)
            decoded += 1
    assert 100 < decoded < len(changed)


@pytest.mark.parametrize("verify", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_every_changed_bit_of_a_region(kind: str, verify: bool) -> None:
    changed = flips(small(kind))
    rows, errors = decode_all(changed, REGION, OUT, verify=verify)
    x, y, width, height = REGION
    worst = []
    for jpeg, row, error in zip(changed, rows, errors, strict=True):
        if error == Error.OK:
            expected = by_libjpeg(jpeg, strict=verify)
            if expected is None and not verify:  # the end of the file, where no region is
                expected = by_libjpeg(small(kind), strict=True)
            assert expected is not None
            part = np.ascontiguousarray(expected[y : y + height, x : x + width])
            worst.append(psnr(row, resize(part, OUT, "area")))
    assert len(worst) > 100
    # changed colors clip where those of a photo do not, before or after the resize
    assert np.median(worst) > 40
    assert min(worst) > 20


@pytest.mark.parametrize("interval", [0, 1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_every_changed_bit_of_an_index(kind: str, interval: int) -> None:
    jpeg = small(kind)
    indexes = flips(make_index(jpeg, interval))
    for i in range(0, len(indexes), BATCH):
        part: list[bytes | None] = [*indexes[i : i + BATCH]]
        errors = decode([jpeg] * len(part), [REGION] * len(part), OUT, indexes=part)[1]
        assert errors == [Error.WRONG_INDEX] * len(part)


def test_truncated_and_random_indexes() -> None:
    jpeg = small("420")
    index = make_index(jpeg, 1)
    random = np.random.default_rng(0)
    wrong: list[bytes | None] = [index[:size] for size in range(1, len(index))] + [index + b"\0"]
    wrong += [random.bytes(int(size)) for size in random.integers(1, 300, 100)]
    wrong += [index[:24] + random.bytes(len(index) - 24) for _ in range(50)]
    errors = decode([jpeg] * len(wrong), [REGION] * len(wrong), OUT, indexes=wrong)[1]
    assert errors == [Error.WRONG_INDEX] * len(wrong)


def test_indexes_of_other_images() -> None:
    jpegs = [encode(scene(64, 48, i), quality=80) for i in range(8)]
    indexes = [make_index(jpeg, 2) for jpeg in jpegs]
    for i, jpeg in enumerate(jpegs):
        given: list[bytes | None] = [*indexes]
        errors = decode([jpeg] * 8, [REGION] * 8, OUT, indexes=given)[1]
        assert errors == [Error.OK if j == i else Error.WRONG_INDEX for j in range(8)]


def test_an_index_is_not_needed_by_verify() -> None:
    jpeg = small("420")
    assert decode([jpeg], [REGION], OUT, indexes=[b"not one"], verify=True)[1] == [Error.OK]


def test_damage_behind_the_region_is_seen_by_verify() -> None:
    jpeg = bytearray(encode(scene(160, 160, 1)))
    for i in range(len(jpeg) - 400, len(jpeg) - 300):
        jpeg[i] = 0xAA
    data = bytes(jpeg)
    expected = reference(encode(scene(160, 160, 1)), (0, 0, 40, 30), (20, 20))
    rows, errors = decode([data], [(0, 0, 40, 30)], (20, 20))
    assert errors == [Error.OK]
    assert psnr(rows[0], expected) > 45
    strict = by_libjpeg(data, strict=True)
    assert decode([data], [(0, 0, 40, 30)], (20, 20), verify=True)[1] == [Error.DAMAGED] or strict is not None


def test_tables_of_the_image_before_are_not_used() -> None:
    """libjpeg keeps tables from image to image: a JPEG without its own would be decoded with those of another."""
    jpeg = small("420")
    without = []
    for marker in (b"\xff\xdb", b"\xff\xc4"):
        at = jpeg.index(marker)
        size = int.from_bytes(jpeg[at + 2 : at + 4], "big")
        without.append(jpeg[:at] + jpeg[at + 2 + size :])
    for region, out in (((0, 0, *SIZE), SIZE[::-1]), (REGION, OUT)):
        for damaged in without:
            alone = decode([damaged], [region], out, sizes=[SIZE])[0][0]
            rows, errors = decode([jpeg, damaged], [region] * 2, out, sizes=[SIZE] * 2)
            assert errors[0] == Error.OK
            # the standard's Huffman tables are the default
            assert errors[1] == Error.DAMAGED or np.array_equal(rows[1], alone)
        assert decode([jpeg, without[0]], [region] * 2, out, sizes=[SIZE] * 2)[1] == [Error.OK, Error.DAMAGED]
