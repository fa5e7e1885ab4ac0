"""Resizing: sizes by rule, pixels that are averages, and marks that stay under their boxes and points."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from ops_images import as_stored, oriented, saved
from PIL import Image

from packer.errors import BadImage, UsageError
from packer.images.decode import decode
from packer.images.header import read_header
from packer.images.jpeg import reduction
from packer.images.resize import FITS, TargetSize, parse_size
from packer.model.annotation import Annotation
from packer.model.geometry import clip, move, orientation_geometry

BRIGHT = 255


@pytest.mark.parametrize(("text", "size"), [("256", (256, 256)), ("300x200", (300, 200)), ("4X3", (4, 3))])
def test_sizes_are_parsed(text: str, size: tuple[int, int]) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "x", "3x", "-1", "1.5", "٣", "1x2x3", "999999999", "big"])
def test_other_sizes_are_quoted(text: str) -> None:
    with pytest.raises(UsageError, match="got '"):
        parse_size(text)


def test_the_fit_follows_the_size_unless_given() -> None:
    assert TargetSize.of("256") == TargetSize(256, 256, "short")
    assert TargetSize.of("300x200") == TargetSize(300, 200, "stretch")
    assert TargetSize.of("300x200", "pad") == TargetSize(300, 200, "pad")
    assert TargetSize.of("64", "crop") == TargetSize(64, 64, "crop")


@pytest.mark.parametrize(
    ("text", "fit", "words"),
    [
        ("0", None, "got 0"),
        ("5x0", None, "got 0"),
        ("70000", None, "got 70000"),
        ("8", "squash", "got 'squash'"),
        ("30x20", "short", "got 30x20"),
        ("30x20", "long", "got 30x20"),
    ],
)
def test_impossible_resizes_are_refused(text: str, fit: str | None, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        TargetSize.of(text, fit)


@pytest.mark.parametrize(
    ("resize", "source", "output"),
    [
        (TargetSize(64, 48, "stretch"), (500, 375), (64, 48)),
        (TargetSize(64, 64, "short"), (500, 375), (85, 64)),
        (TargetSize(64, 64, "short"), (375, 500), (64, 85)),
        (TargetSize(64, 64, "long"), (500, 375), (64, 48)),
        (TargetSize(64, 64, "long"), (1, 100_000), (1, 64)),
        (TargetSize(64, 64, "short"), (33, 33), (64, 64)),
        (TargetSize(64, 32, "crop"), (500, 375), (64, 32)),
        (TargetSize(64, 32, "pad"), (1, 100_000), (64, 32)),
        (TargetSize(1, 1, "short"), (3, 2), (2, 1)),
    ],
)
def test_output_sizes(resize: TargetSize, source: tuple[int, int], output: tuple[int, int]) -> None:
    assert resize.output_size(*source) == output
    if source[1] < 1000:
        image = np.zeros((source[1], source[0], 3), np.uint8)
        assert resize.apply(image).shape == (output[1], output[0], 3)


@pytest.mark.parametrize("fit", FITS)
@pytest.mark.parametrize("source", [(1, 1), (1, 20_000), (20_000, 1), (3, 2)])
def test_extreme_shapes_resize_or_are_refused(fit: str, source: tuple[int, int]) -> None:
    resize = TargetSize.of("224", fit)
    image = np.full((source[1], source[0], 1), 9, np.uint8)
    if fit == "short" and 20_000 in source:
        with pytest.raises(BadImage, match="would be resized to"):
            resize.apply(image)
        return
    result = resize.apply(image)
    assert result.shape[1::-1] == resize.output_size(*source)
    assert result.max() == 9


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
@pytest.mark.parametrize("channels", [1, 2, 3, 4])
@pytest.mark.parametrize("fit", FITS)
def test_dtype_and_channels_are_kept(fit: str, channels: int, dtype: type) -> None:
    image = np.full((30, 40, channels), 200, dtype)
    result = TargetSize.of("16", fit).apply(image)
    assert result.dtype == dtype and result.shape[2] == channels and result.flags.c_contiguous
    assert set(np.unique(result)) <= {0, 200}


def test_shrinking_averages_and_growing_is_linear() -> None:
    random = np.random.default_rng(1).integers(0, 256, (24, 36, 3), dtype=np.uint8)
    means = random.reshape(8, 3, 12, 3, 3).mean(axis=(1, 3))
    assert np.abs(TargetSize(12, 8, "stretch").apply(random) - means).max() <= 0.51
    ramp = (np.arange(20) * 10).astype(np.uint8)[None, :, None].repeat(4, 0)
    grown = TargetSize(40, 4, "stretch").apply(ramp)[0, :, 0].astype(float)
    assert np.abs(grown[1:-1] - ((np.arange(40) + 0.5) / 2 - 0.5)[1:-1] * 10).max() <= 0.51
    both = TargetSize(72, 8, "stretch").apply(random)  # one axis grows, the other is averaged
    expected = cv2.resize(random.reshape(8, 3, 36, 3).mean(axis=1), (72, 8), interpolation=cv2.INTER_LINEAR)
    assert np.abs(both - expected).max() <= 1.01


@pytest.mark.parametrize(("size", "channels"), [((150, 100), 3), ((90, 131), 1), ((30, 200), 4)])
def test_bilinear_is_pillows_to_a_level(size: tuple[int, int], channels: int) -> None:
    image = np.random.default_rng(1).integers(0, 256, (100, 150, channels), dtype=np.uint8)
    made = TargetSize(*size, "stretch", interpolation="bilinear").apply(image)
    for c in range(channels):
        plane = Image.fromarray(image[..., c]).resize(size, Image.Resampling.BILINEAR)
        assert np.abs(made[..., c].astype(int) - np.asarray(plane)).max() <= 1


def test_a_crop_takes_the_largest_centred_part() -> None:
    image = np.zeros((20, 50, 1), np.uint8)
    image[:, 15:35] = BRIGHT
    assert (TargetSize(10, 10, "crop").apply(image) == BRIGHT).all()
    geometry = TargetSize(10, 10, "crop").geometry(50, 20)
    assert geometry.points(np.array([[15.0, 0.0], [35.0, 20.0]])).tolist() == [[0, 0], [10, 10]]
    # where a JPEG would be decoded at 1/8, the corner goes to the nearest of its pixels' corners
    assert TargetSize(10, 10, "crop").geometry(500, 200).points(np.array([152.0, 0.0])).tolist() == [0, 0]


def test_padding_is_black_and_even() -> None:
    result = TargetSize(20, 20, "pad").apply(np.full((10, 40, 3), BRIGHT, np.uint8))
    assert (result[:7] == 0).all() and (result[7:12] == BRIGHT).all() and (result[12:] == 0).all()


@pytest.mark.parametrize(("dtype", "level"), [(np.uint8, 114), (np.uint16, 114 * 257)])
def test_padding_has_the_level_that_is_asked_for(dtype: type, level: int) -> None:
    result = TargetSize(20, 20, "pad", 114).apply(np.full((10, 40, 3), BRIGHT, dtype))
    assert (result[:7] == level).all() and (result[7:12] == BRIGHT).all() and (result[12:] == level).all()


@pytest.mark.parametrize(("size", "rows"), [((640, 425), 212), ((640, 427), 214), ((6400, 2), 1), ((640, 1), 1)])
def test_padded_sizes_are_those_of_letterbox(size: tuple[int, int], rows: int) -> None:
    """Halves go to the even number, as Python's round; the odd row of the border is below."""
    corners = TargetSize(320, 320, "pad").geometry(*size).points(np.array([[0.0, 0.0], size]))
    top = (320 - rows) // 2
    assert corners.tolist() == [[0, top], [320, top + rows]]


def test_reduction_is_a_power_of_two_that_covers_the_target() -> None:
    assert reduction((500, 375), (64, 48)) == 4
    assert reduction((512, 384), (64, 48)) == 8
    assert reduction((511, 384), (64, 48)) == 4
    assert reduction((500, 375), (251, 1)) == 1
    assert reduction((15, 500), (1, 1)) == 1
    assert reduction((500, 375), (64, 48), orientation=2) == 4  # 500 is a multiple of 4, 375 of none
    assert reduction((500, 375), (64, 48), orientation=3) == 1


def mark_box(image: np.ndarray, box: tuple[int, int, int, int]) -> None:
    image[box[1] : box[3], box[0] : box[2]] = BRIGHT


def check_mark(
    image: np.ndarray, annotation: Annotation, blur: tuple[float, float], one_sided: tuple[float, float] = (0, 0)
) -> None:
    """The bright pixels are those under the box, up to `blur` output pixels (x, y) at its edges.

    Their center is that of the box. At the border of an image the linear filter is one-sided, which moves the center of
    one pixel by 1/24 of it: `one_sided` is the size of a source pixel on an axis on which the box touches the border.
    """
    printable = image[..., 0].astype(float)
    height, width = printable.shape
    visible = clip(annotation, width, height)
    assert annotation.boxes is not None and visible.boxes is not None
    x, y = np.arange(width) + 0.5, np.arange(height) + 0.5
    x0, y0, x1, y1 = annotation.boxes[0]
    inside = np.outer((y > y0 + blur[1]) & (y < y1 - blur[1]), (x > x0 + blur[0]) & (x < x1 - blur[0]))
    outside = ~np.outer((y > y0 - blur[1]) & (y < y1 + blur[1]), (x > x0 - blur[0]) & (x < x1 + blur[0]))
    assert (printable[inside] > 190).all()
    assert (printable[outside] < 64).all()
    whole = len(visible.boxes) == 1 and np.array_equal(visible.boxes, annotation.boxes)
    if (
        whole
        and min(x1 - x0, y1 - y0) > 2
        and x0 > blur[0]
        and y0 > blur[1]
        and x1 < width - blur[0]
        and y1 < height - blur[1]
    ):
        weight = np.where(outside, 0, printable)  # the ringing of a JPEG far off weighs nothing
        centre = (weight.sum(0) @ x / weight.sum(), weight.sum(1) @ y / weight.sum())
        assert annotation.landmarks is not None and annotation.polygons is not None
        middle = (annotation.boxes[0, :2] + annotation.boxes[0, 2:]) / 2
        assert (np.abs(np.array(centre) - middle) < 0.15 + np.array(one_sided) / 24).all()
        assert np.abs(annotation.landmarks[0] - middle).max() < 1e-3
        assert np.abs(annotation.polygons[0].mean(axis=0) - middle).max() < 1e-3


def annotated(box: tuple[int, int, int, int]) -> Annotation:
    x0, y0, x1, y1 = box
    return Annotation(
        boxes=np.array([box], np.float32),
        landmarks=np.array([[(x0 + x1) / 2, (y0 + y1) / 2]], np.float32),
        polygons=(np.array([[x0, y0], [x1, y0], [x1, y1], [x0, y1]], np.float32),),
    )


def resizes(most: int) -> st.SearchStrategy[TargetSize]:
    side, fit = st.integers(1, most), st.sampled_from(FITS)
    return st.builds(lambda w, h, f: TargetSize(w, w if f in ("short", "long") else h, f), side, side, fit)


@settings(max_examples=250, deadline=None, derandomize=True)
@given(
    size=st.tuples(st.integers(3, 90), st.integers(3, 90)),
    corners=st.tuples(*[st.floats(0, 1)] * 4),
    orientation=st.integers(1, 8),
    resize=resizes(120),
)
def test_a_mark_stays_under_its_box_through_every_fit_and_orientation(
    size: tuple[int, int], corners: tuple[float, ...], orientation: int, resize: TargetSize
) -> None:
    width, height = size
    x = sorted(int(corner * (width - 1)) for corner in corners[:2])
    y = sorted(int(corner * (height - 1)) for corner in corners[2:])
    box = (x[0], y[0], x[1] + 1, y[1] + 1)
    upright = np.zeros((height, width, 1), np.uint8)
    mark_box(upright, box)
    stored = as_stored(upright[..., 0], orientation)
    data = oriented(stored, "PNG", orientation)

    bright = np.argwhere(stored)  # the box in the frame of the stored pixels, from the pixels themselves
    low, high = bright.min(axis=0), bright.max(axis=0) + 1
    stored_box = annotated((int(low[1]), int(low[0]), int(high[1]), int(high[0])))
    turn = orientation_geometry(orientation, stored.shape[1], stored.shape[0])
    annotation = move(stored_box, turn)
    assert annotation.boxes is not None and tuple(annotation.boxes[0]) == box

    image = decode(data, "gray")
    geometry = resize.geometry(width, height)
    result = resize.apply(image)
    assert result.shape == (geometry.height, geometry.width, 1)
    moved = move(annotation, geometry)
    direct = move(stored_box, turn.compose(geometry))
    assert moved.boxes is not None and direct.boxes is not None
    assert np.allclose(moved.boxes, direct.boxes, atol=1e-3)
    touches = box[0] == 0 or box[2] == width, box[1] == 0 or box[3] == height
    one_sided = (geometry.a * touches[0], geometry.e * touches[1])
    check_mark(result, moved, (max(1.0, geometry.a) / 2 + 0.51, max(1.0, geometry.e) / 2 + 0.51), one_sided)


@settings(max_examples=120, deadline=None, derandomize=True)
@given(
    size=st.tuples(st.integers(64, 300), st.integers(64, 300)),
    place=st.tuples(st.floats(0, 1), st.floats(0, 1)),
    orientation=st.integers(1, 8),
    resize=resizes(60),
)
@example(size=(257, 193), place=(1.0, 1.0), orientation=6, resize=TargetSize(32, 24, "stretch"))
@example(size=(257, 193), place=(0.9, 0.9), orientation=1, resize=TargetSize(24, 24, "short"))
def test_a_mark_stays_under_its_box_through_the_scaled_decode(
    size: tuple[int, int], place: tuple[float, float], orientation: int, resize: TargetSize
) -> None:
    width, height = size
    x, y = int(place[0] * (width - 40)), int(place[1] * (height - 40))
    box = (x, y, x + 40, y + 40)
    upright = np.zeros((height, width), np.uint8)
    mark_box(upright, box)
    data = oriented(as_stored(upright, orientation), "JPEG", orientation, quality=97)
    source = read_header(data).upright_size
    assert source == size
    image = decode(data, "gray", at_least=resize.at_least(*source))
    result = resize.apply(image, source)
    geometry = resize.geometry(*source)
    assert result.shape == (geometry.height, geometry.width, 1)
    check_mark(result, move(annotated(box), geometry), (max(1.0, geometry.a) / 2 + 0.6,) * 2)


@pytest.mark.parametrize("fit", FITS)
@pytest.mark.parametrize("size", [(500, 375), (333, 500), (1023, 767)])
def test_scaled_decode_makes_no_visible_difference(size: tuple[int, int], fit: str) -> None:
    noise = np.random.default_rng(3).normal(size=(size[1] // 16 + 2, size[0] // 16 + 2, 3)) * 60 + 128
    photo = np.clip(cv2.resize(noise, size, interpolation=cv2.INTER_CUBIC), 0, 255).astype(np.uint8)
    data = saved(photo, "JPEG", quality=90)
    for side in ("20", "40", "80"):
        resize = TargetSize.of(side, fit)
        small = decode(data, at_least=resize.at_least(*size))
        assert small.shape[0] < size[1]
        assert psnr_db(resize.apply(small, size), resize.apply(decode(data))) > 34


@pytest.mark.parametrize("side", [8, 16, 32])
def test_scaled_decode_of_noise_differs_by_two_levels(side: int) -> None:
    noise = np.random.default_rng(0).integers(0, 2, (256, 256), dtype=np.uint8) * 255
    data = saved(noise, "JPEG", quality=95)
    resize = TargetSize.of(str(side))
    small = decode(data, "gray", at_least=resize.at_least(256, 256))
    assert small.shape[0] < 256
    assert np.abs(resize.apply(small, (256, 256)).astype(int) - resize.apply(decode(data, "gray"))).max() <= 2


def test_scaled_decode_of_photos_makes_no_visible_difference(real_data: Path) -> None:
    found = []
    for path in sorted((real_data / "photos").rglob("*.JPEG"))[:40]:
        data = path.read_bytes()
        size = read_header(data).upright_size
        for side in ("48", "90"):
            resize = TargetSize.of(side)
            small = decode(data, at_least=resize.at_least(*size))
            if small.shape[1] < size[0]:
                found.append(psnr_db(resize.apply(small, size), resize.apply(decode(data))))
    assert len(found) > 40
    assert min(found) > 33
    assert np.median(found) > 42


def psnr_db(a: np.ndarray, b: np.ndarray) -> float:
    return float(10 * np.log10(255**2 / np.mean((a.astype(float) - b.astype(float)) ** 2)))


def test_an_image_of_another_size_is_refused() -> None:
    with pytest.raises(ValueError, match="does not come from one of 100x100"):
        TargetSize.of("10").apply(np.zeros((60, 50, 3), np.uint8), (100, 100))
