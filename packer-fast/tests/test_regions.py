"""Regions are, but for rounding, what decoding, cropping and resizing gives, at the same place."""

import numpy as np
import pytest
import simplejpeg
from helpers import JPEG_410, SAMPLINGS, decode, encode, photos, psnr, reference, resize, scene

from packer_fast import Error, make_index

FILTERS = ["area", "bilinear", "fast"]


def random_region(random: np.random.Generator, width: int, height: int) -> tuple[int, int, int, int]:
    w, h = int(random.integers(1, width + 1)), int(random.integers(1, height + 1))
    return int(random.integers(0, width - w + 1)), int(random.integers(0, height - h + 1)), w, h


@pytest.mark.parametrize("filter", FILTERS)
@pytest.mark.parametrize("sampling", [*SAMPLINGS, "gray"])
def test_random_regions(sampling: str, filter: str) -> None:
    random = np.random.default_rng(7)
    ratios, differences = [], []
    for n in range(40):
        width, height = map(int, random.integers(20, 300, 2))
        image = scene(width, height, n)
        jpeg = encode(image[..., :1] if sampling == "gray" else image, sampling)
        region = random_region(random, width, height)
        # at least a twentieth, so that no axis shrinks by more than the library supports
        out = tuple(int(random.integers(max(1, side // 20), 150)) for side in region[3:1:-1])
        if n % 5 == 0:
            out = region[3], region[2]
        channels = 3 if n % 3 else 1
        rows, errors = decode([jpeg], [region], out, channels, filter=filter, headroom=0)
        assert errors == [Error.OK]
        expected = reference(jpeg, region, out, channels, filter)
        ratios.append(psnr(rows[0], expected))
        differences.append(np.abs(rows[0].astype(float) - expected).mean())
        for options in ({"indexes": [make_index(jpeg, n % 6)]}, {"verify": True}):
            again, errors = decode([jpeg], [region], out, channels, filter=filter, headroom=0, **options)
            assert errors == [Error.OK]
            assert np.array_equal(again, rows)
        flipped, errors = decode([jpeg], [region], out, channels, filter=filter, headroom=0, flips=[True])
        assert np.array_equal(flipped[:, :, ::-1], rows)
    assert np.median(ratios) >= 52
    # the colors of these scenes clip at hard edges: then clipping before or after the resize differs
    assert min(ratios) >= 36
    assert np.mean(differences) <= 0.4


@pytest.mark.parametrize("sampling", ["444", "422", "420", "440"])
def test_restart_markers_change_nothing(sampling: str) -> None:
    random = np.random.default_rng(3)
    for n in range(15):
        image = scene(150, 117, n)
        region = random_region(random, 150, 117)
        baseline, errors = decode([encode(image, sampling)], [region], (50, 60))
        rows, more = decode([encode(image, sampling, restart_marker_blocks=2)], [region], (50, 60))
        assert errors == more == [Error.OK]
        assert np.array_equal(rows, baseline)


@pytest.mark.parametrize("filter", FILTERS)
def test_410(filter: str) -> None:
    random = np.random.default_rng(8)
    ratios = []
    for n in range(60):
        region = random_region(random, 70, 45)
        out = tuple(int(random.integers(max(1, side // 20), 90)) for side in region[3:1:-1])
        rows, errors = decode([JPEG_410], [region], out, filter=filter, headroom=0)
        assert errors == [Error.OK]
        ratios.append(psnr(rows[0], reference(JPEG_410, region, out, filter=filter)))
        indexes = [make_index(JPEG_410, n % 3)]
        by_index, errors = decode([JPEG_410], [region], out, filter=filter, headroom=0, indexes=indexes)
        assert errors == [Error.OK]
        assert np.array_equal(by_index, rows)
    assert np.median(ratios) >= 52
    assert min(ratios) >= 40


@pytest.mark.parametrize("sampling", [*SAMPLINGS, "gray"])
def test_every_offset_of_a_crop_without_resizing(sampling: str) -> None:
    """Shows shifts by half a pixel, and chroma that lacks its neighbors at the edges of MCUs."""
    image = scene(75, 61, 4)
    jpeg = encode(image[..., :1] if sampling == "gray" else image, sampling, quality=95)
    whole = simplejpeg.decode_jpeg(jpeg).astype(int)
    for x in range(36):
        y = (7 * x) % 36
        for width, height in ((1, 1), (16, 16), (75 - x, 61 - y), (13, 21)):
            rows, errors = decode([jpeg], [(x, y, width, height)], (height, width))
            assert errors == [Error.OK]
            # rounding of chroma, times 1.8 in blue
            assert np.abs(rows[0] - whole[y : y + height, x : x + width]).max() <= 3


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("sampling", ["444", "422", "420", "440"])
@pytest.mark.parametrize("filter", FILTERS)
def test_ramps_stay_in_place(filter: str, sampling: str, axis: int) -> None:
    """A ramp of luma and one of chroma tell where each output pixel comes from: within 0.05 pixels."""
    side = 128
    ramp = np.arange(side)[:, None] if axis == 0 else np.arange(side)
    # noise, so that rounding errors cancel out
    ramp = ramp + np.random.default_rng(2).normal(0, 1, (side, side))
    gray = np.stack([ramp * 1.7 + 20] * 3, axis=2).clip(0, 255).astype(np.uint8)
    # blue rises and red falls, so that luma is nearly the same all over
    color = np.stack([215 - ramp * 1.4, 100 + ramp * 0.35, 40 + ramp * 1.4], axis=2).astype(np.uint8)
    for image, channel in ((gray, 1), (color, 2), (color, 0)):
        jpeg = encode(image, sampling, quality=100)
        whole = simplejpeg.decode_jpeg(jpeg)
        slope = 1.7 if image is gray else 1.4
        for region in ((3, 5, 90, 83), (17, 32, 64, 96), (0, 0, 127, 125), (31, 33, 97, 95), (40, 41, 55, 57)):
            for out in ((61, 67), (29, 43), (151, 137)):  # primes: few values are halfway between two levels
                rows, errors = decode([jpeg], [region], out, filter=filter, headroom=0)
                assert errors == [Error.OK]
                x, y, width, height = region
                part = whole[y : y + height, x : x + width].astype(np.float32)
                expected = resize(np.ascontiguousarray(part), out, filter)
                # in pixels, of each line across the ramp
                shift = (rows[0].astype(float) - expected)[..., channel].mean(axis=1 - axis) / slope
                assert abs(shift.mean()) <= 0.05
                assert np.abs(shift).max() <= 0.6  # rounding, which a line of few pixels does not cancel out


@pytest.mark.parametrize("sampling", ["444", "420", "gray"])
def test_scaled_decoding_is_like_that_of_simplejpeg(sampling: str) -> None:
    image = scene(640, 496, 9)
    jpeg = encode(image[..., :1] if sampling == "gray" else image, sampling)
    whole = 0, 0, 640, 496
    for region, out, factor in ((whole, (60, 80), 4), ((64, 32, 512, 448), (56, 64), 4), (whole, (31, 40), 8)):
        rows, errors = decode([jpeg], [region], out, headroom=2)
        assert errors == [Error.OK]
        height, width = -(-496 // factor), -(-640 // factor)
        small = simplejpeg.decode_jpeg(jpeg, "RGB", min_height=height, min_width=width, min_factor=factor)
        x, y, w, h = (side // factor for side in region)
        expected = resize(np.ascontiguousarray(small[y : y + h, x : x + w]), out, "area")
        assert psnr(rows[0], expected) >= 45


def test_scaled_decoding_of_odd_sizes() -> None:
    for width, height in ((333, 271), (401, 399), (257, 300)):
        jpeg = encode(scene(width, height, width), "420")
        for region in ((0, 0, width, height), (1, 3, width - 2, height - 5), (width // 2, 7, width // 3, 200)):
            full, errors = decode([jpeg], [region], (20, 17), headroom=0)
            scaled, more = decode([jpeg], [region], (20, 17), headroom=2)
            assert errors == more == [Error.OK]
            assert psnr(full, scaled) >= 30


def test_rgb_without_color_conversion() -> None:
    import io

    from PIL import Image

    made = io.BytesIO()
    Image.fromarray(scene(90, 70)).save(made, "JPEG", quality=90, keep_rgb=True)
    jpeg = made.getvalue()
    rows, errors = decode([jpeg], [(5, 6, 60, 50)], (40, 40))
    assert errors == [Error.OK]
    assert psnr(rows[0], reference(jpeg, (5, 6, 60, 50), (40, 40))) >= 52


def test_photos() -> None:
    jpegs = photos(125)
    if not jpegs:
        pytest.skip("the photos of ../shared/data are not here")
    random = np.random.default_rng(5)
    ratios, differences = [], []
    for jpeg in jpegs:
        height, width, space, _ = simplejpeg.decode_jpeg_header(jpeg)
        if space in ("CMYK", "YCCK") or width * height > 1_000_000:
            continue
        region = random_region(random, width, height)
        if min(region[2:]) < 40:
            continue
        rows, errors = decode([jpeg], [region], (224, 224), sizes=[(width, height)], headroom=0)
        assert errors == [Error.OK]
        expected = reference(jpeg, region, (224, 224))
        ratios.append(psnr(rows[0], expected))
        differences.append(np.abs(rows[0].astype(float) - expected).mean())
    assert len(ratios) > 40
    assert np.median(ratios) >= 52
    assert np.mean(differences) <= 0.4
