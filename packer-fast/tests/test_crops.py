"""Several crops of each image, which is decoded once, are those of a call of their own."""

import numpy as np
import pytest
from helpers import SAMPLINGS, batch_of, decode, encode, psnr, scene

import packer_fast
from packer_fast import Error, make_index

CROPS = {(40, 50): "area", (96, 31): "fast", (7, 9): "bilinear", (64, 64): "fast"}
"""(height, width) -> filter."""


def random_regions(count: int, width: int, height: int, random: np.random.Generator) -> list[tuple[int, ...]]:
    sides = [(int(random.integers(30, width)), int(random.integers(30, height))) for _ in range(count)]
    return [(int(random.integers(0, width - w)), int(random.integers(0, height - h)), w, h) for w, h in sides]


@pytest.mark.parametrize("sampling", [*SAMPLINGS, "gray"])
@pytest.mark.parametrize("channels", [1, 3])
def test_they_are_those_of_calls_of_their_own(sampling: str, channels: int) -> None:
    random = np.random.default_rng(4)
    pictures = [scene(170, 133, i) for i in range(8)]
    jpegs = [encode(image[..., :1] if sampling == "gray" else image, sampling) for image in pictures]
    indexes = [make_index(jpeg, i % 4) if i % 3 else None for i, jpeg in enumerate(jpegs)]
    regions = [random_regions(8, 170, 133, random) for _ in CROPS]
    flips = [random.random(8) < 0.5 for _ in CROPS]
    options = {"filters": list(CROPS.values()), "headroom": 0}
    for given in ({"indexes": indexes}, {"verify": True}):
        batches = [
            batch_of(jpegs, its, flips=flip, indexes=given.get("indexes"))
            for its, flip in zip(regions, flips, strict=True)
        ]
        rows = [np.full((8, *out, channels), 77, np.uint8) for out in CROPS]
        errors = packer_fast.decode_crops(batches, rows, verify="verify" in given, **options)
        assert not errors.any()
        for (out, filter), made, its, flip in zip(CROPS.items(), rows, regions, flips, strict=True):
            alone, errors = decode(jpegs, its, out, channels, flips=flip, filter=filter, headroom=0)
            assert errors == [Error.OK] * 8
            # edges of the part that is decoded may round a weight differently
            assert np.abs(made.astype(int) - alone).max() <= 1
            assert (made == alone).mean() > 0.999


def test_they_are_decoded_as_small_as_the_largest_allows() -> None:
    jpeg, whole = encode(scene(640, 480)), [(0, 0, 640, 480)]
    outs = (60, 80), (120, 160), (400, 500)
    alone = [decode([jpeg], whole, out)[0] for out in outs]
    for count in (2, 3):
        rows = [np.zeros((1, *out, 3), np.uint8) for out in outs[:count]]
        given = [batch_of([jpeg], whole)] * count
        assert not packer_fast.decode_crops(given, rows, filters=["area"] * count).any()
        assert (rows[-1] == alone[count - 1]).all()
        assert not (rows[0] == alone[0]).all()
        assert psnr(rows[0], alone[0]) > 35


def test_an_image_that_has_an_error_leaves_the_others_alone() -> None:
    good = [encode(scene(90, 70, i)) for i in range(3)]
    jpegs = [good[0], good[1][:600], good[2]]
    regions = [[(5, 5, 60, 60)] * 3, [(0, 0, 80, 70), (0, 0, 80, 70), (20, 0, 80, 70)]]
    batches = [batch_of(jpegs, its, sizes=[(90, 70)] * 3) for its in regions]
    rows = [np.zeros((3, 32, 32, 3), np.uint8) for _ in regions]
    errors = packer_fast.decode_crops(batches, rows, filters=["area", "area"])
    assert errors.tolist() == [Error.OK, Error.DAMAGED, Error.UNSUPPORTED]
    assert rows[0][0].any()
    assert rows[1][0].any()


def test_crops_of_other_images_are_refused() -> None:
    jpeg = encode(scene(90, 70))
    one, two = (batch_of([jpeg] * count, [(0, 0, 90, 70)] * count) for count in (1, 2))
    rows = np.zeros((1, 32, 32, 3), np.uint8)
    with pytest.raises(ValueError, match=r"jpegs must be uint64 \(1,\), got uint64 \(2,\)"):
        packer_fast.decode_crops([one, two], [rows, rows], filters=["area", "area"])
    with pytest.raises(ValueError, match="the same in all crops"):
        packer_fast.decode_crops([one, one], [rows, rows[..., :1].copy()], filters=["area", "area"])
