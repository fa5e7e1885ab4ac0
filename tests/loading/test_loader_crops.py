"""Crops against torchvision's algorithm, written here once more; pixels against Pillow and exact averages."""

from __future__ import annotations

import math

import cv2
import numpy as np
import pytest
import torch
from drawn import resized
from loader_packs import alike, fresh, noise, waves
from PIL import Image

from packer import BuildOptions, CenterCrop, PackedLoader, RandomResizedCrop, Resize, build_pack
from packer.images.jpeg import decode_into
from packer.images.opencv import resample
from packer.loading.decoding import reduced_by, resize_into
from packer.samplers.order import uniform


def torchvision_crop(width, height, scale, ratio, rng):
    """RandomResizedCrop.get_params of torchvision 0.20, with numpy's numbers: x, y, width, height, fallback."""
    area = height * width
    low, high = math.log(ratio[0]), math.log(ratio[1])
    for _ in range(10):
        target_area = area * rng.uniform(*scale)
        aspect_ratio = math.exp(rng.uniform(low, high))
        w = round(math.sqrt(target_area * aspect_ratio))
        h = round(math.sqrt(target_area / aspect_ratio))
        if 0 < w <= width and 0 < h <= height:
            return rng.integers(0, width - w + 1), rng.integers(0, height - h + 1), w, h, False
    in_ratio = width / height
    if in_ratio < min(ratio):
        w, h = width, round(width / min(ratio))
    elif in_ratio > max(ratio):
        w, h = round(height * max(ratio)), height
    else:
        w, h = width, height
    return (width - w) // 2, (height - h) // 2, w, h, True


def drawn(crop, width, height, count, epoch=0):
    records = np.arange(count)
    sides = np.full(count, float(width)), np.full(count, float(height))
    return crop.regions(*sides, uniform(0, epoch, records, crop.num_random))


def distance(a, b):
    """The Kolmogorov-Smirnov distance of two samples."""
    points = np.concatenate([a, b])
    shares = [np.searchsorted(np.sort(x), points, side="right") / len(x) for x in (a, b)]
    return float(np.abs(shares[0] - shares[1]).max())


@pytest.mark.parametrize("size", [(500, 375), (90, 400), (64, 64)], ids=str)
@pytest.mark.parametrize("ranges", [((0.08, 1.0), (3 / 4, 4 / 3)), ((0.5, 0.9), (0.5, 1.0))], ids=str)
def test_random_resized_crop_has_torchvisions_distribution(size, ranges):
    scale, ratio = ranges
    n = 8000
    rng = np.random.default_rng(1)
    theirs = np.array([torchvision_crop(*size, scale, ratio, rng)[:4] for _ in range(n)], float)
    ours = drawn(RandomResizedCrop(10, scale, ratio), *size, n)
    limit = 1.95 * math.sqrt(2 / n)  # passed by chance in 1 of 1000 cases
    for k in range(4):
        assert distance(ours[:, k], theirs[:, k]) < limit
    for of in (lambda r: r[:, 2] * r[:, 3], lambda r: r[:, 2] / r[:, 3], lambda r: r[:, 0] + r[:, 2] / 2):
        assert distance(of(ours), of(theirs)) < limit


def test_random_resized_crop_stays_in_its_ranges_and_in_the_image():
    regions = drawn(RandomResizedCrop(8, (0.2, 0.6), (0.8, 1.25)), 300, 200, 5000)
    x, y, w, h = regions.T
    assert np.array_equal(regions, np.rint(regions))
    assert x.min() == 0 and y.min() == 0 and (x + w).max() == 300 and (y + h).max() == 200
    share, ratio = w * h / 60_000, w / h
    assert 0.195 < share.min() < 0.21 and 0.59 < share.max() < 0.605
    assert 0.79 < ratio.min() < 0.81 and 1.23 < ratio.max() < 1.27
    # evenly in the area and in the logarithm of the ratio, where all tries fit
    assert distance(share, np.random.default_rng(2).uniform(0.2, 0.6, 5000)) < 0.04
    assert distance(np.log(ratio), np.random.default_rng(3).uniform(math.log(0.8), math.log(1.25), 5000)) < 0.04


@pytest.mark.parametrize("size", [(1000, 3), (3, 1000), (1, 1), (2, 1), (1, 50)], ids=str)
def test_where_no_try_fits_the_middle_is_taken(size):
    crop = RandomResizedCrop(8, (0.9, 1.0))
    seen = {tuple(r) for r in drawn(crop, *size, 400).tolist()}
    rng = np.random.default_rng(0)
    theirs = {tuple(float(v) for v in torchvision_crop(*size, (0.9, 1.0), (3 / 4, 4 / 3), rng)[:4]) for _ in range(400)}
    assert seen == theirs
    if max(size) == 1000:
        assert len(seen) == 1


def test_numbers_are_even_and_independent():
    numbers = uniform(5, 2, np.arange(20_000), 22)
    assert numbers.min() >= 0 and numbers.max() < 1
    counts = np.stack([np.bincount((column * 16).astype(int), minlength=16) for column in numbers.T])
    chi = ((counts - 1250) ** 2 / 1250).sum(axis=1)
    assert chi.max() < 45  # 15 degrees of freedom: 1 in 10,000
    correlation = np.corrcoef(numbers.T) - np.eye(22)
    assert np.abs(correlation).max() < 0.035
    for other in (uniform(5, 3, np.arange(20_000), 22), uniform(6, 2, np.arange(20_000), 22)):
        assert not (numbers == other).any()
        assert abs(np.corrcoef(numbers[:, 0], other[:, 0])[0, 1]) < 0.035
    assert abs(np.corrcoef(numbers[:-1, 0], numbers[1:, 0])[0, 1]) < 0.035
    some = np.array([19_999, 7, 7, 300])
    assert np.array_equal(uniform(5, 2, some, 22), numbers[some])
    assert np.array_equal(uniform(5, 2, some, 3), numbers[some, :3])
    assert uniform(2**64 - 1, 2**40, some, 1).shape == (4, 1)


@pytest.mark.parametrize("size", [(12, 10), (5, 12), (7, 8), (8, 7), (3, 3), (1, 2), (30, 31)], ids=str)
@pytest.mark.parametrize("crop", [(8, 8), (5, 12), (7, 3)], ids=str)
def test_center_crop_is_torchvisions(size, crop):
    """CenterCrop of torchvision: pads by (crop - side) // 2 first, cuts at round((side - crop) / 2)."""
    (width, height), (out_height, out_width) = size, crop
    image = noise(1, height, width)
    before = [(max(0, out_height - height) // 2, (max(0, out_height - height) + 1) // 2),
              (max(0, out_width - width) // 2, (max(0, out_width - width) + 1) // 2), (0, 0)]  # fmt: skip
    padded = np.pad(image, before)
    top, left = round((padded.shape[0] - out_height) / 2), round((padded.shape[1] - out_width) / 2)
    row = np.full((*crop, 3), 77, np.uint8)
    region = CenterCrop(crop).regions(np.array([float(width)]), np.array([float(height)]), np.zeros((1, 0)))[0]
    resize_into(image, region.tolist(), row)
    assert np.array_equal(row, padded[top : top + out_height, left : left + out_width])


def test_center_crop_after_resize():
    """Within half a pixel of Resize(256), CenterCrop(224)."""
    for width, height in [(500, 375), (333, 500), (256, 256), (1000, 300), (100, 90)]:
        x, y, w, h = CenterCrop(224, resize=256).regions(
            np.array([float(width)]), np.array([float(height)]), np.zeros((1, 0))
        )[0]
        scale = min(width, height) / 256
        assert abs(w - 224 * scale) <= 0.5 and abs(h - 224 * scale) <= 0.5
        assert abs(x + w / 2 - width / 2) <= 0.5 + scale / 2 and abs(y + h / 2 - height / 2) <= 0.5 + scale / 2
        assert x >= 0 and y >= 0 and x + w <= width and y + h <= height


@pytest.mark.parametrize("size", [(445, 303), (274, 500), (500, 400), (400, 500), (512, 512), (300, 256)], ids=str)
def test_center_crop_after_resize_is_a_part_of_what_pillow_resizes(size):
    """Also where the middle lies between two pixels, and where the part has whole pixels of the source."""
    width, height = size
    image = noise(2, height, width)
    across, down = (side * 256 // min(size) for side in size)
    resized = np.asarray(Image.fromarray(image).resize((across, down), Image.Resampling.BILINEAR))
    left, top = round((across - 224) / 2), round((down - 224) / 2)
    region = CenterCrop(224, resize=256).regions(np.array([float(width)]), np.array([float(height)]), np.zeros((1, 0)))
    row = np.empty((224, 224, 3), np.uint8)
    resize_into(image, region[0].tolist(), row, "bilinear")
    assert np.abs(row.astype(int) - resized[top : top + 224, left : left + 224]).max() <= 1


def test_center_crop_of_less_than_a_pixel_is_one_pixel():
    """For "area"; "bilinear" resizes as if the whole image had been, and takes the part that it is."""
    sides = np.array([50.0]), np.array([40.0])
    for interpolation, side in (("area", 1.0), ("bilinear", 40 / 256)):
        part = CenterCrop(1, 256, interpolation).regions(*sides, np.zeros((1, 0)))[0, 2:]
        assert part.tolist() == [side, side]


def test_resize_output():
    assert Resize((5, 7)).output(None) == (5, 7)
    assert Resize(5).output((10, 12)) == (5, 6)
    assert Resize(5).output((12, 10)) == (6, 5)
    with pytest.raises(ValueError, match="keeps each image's aspect, and they differ"):
        Resize(5).output(None)


@pytest.mark.parametrize("make", [
    lambda: Resize(0), lambda: CenterCrop((4, 0)), lambda: RandomResizedCrop(-1), lambda: CenterCrop(4, resize=0),
    lambda: Resize(4, "cubic"), lambda: CenterCrop(4, interpolation=1), lambda: RandomResizedCrop(4, interpolation=""),
    lambda: Resize(4, "fast"), lambda: CenterCrop(4, interpolation="fast"),
    lambda: RandomResizedCrop(4, interpolation="linear"),
    lambda: RandomResizedCrop(4, scale=(0.5, 0.1)), lambda: RandomResizedCrop(4, ratio=(0.0, 1.0)),
])  # fmt: skip
def test_impossible_crops_are_refused(make):
    with pytest.raises(ValueError, match=r"must be|got"):
        make()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        *(
            (lambda size=size: Resize(size), f"got {size!r}")
            for size in ("x", 2.5, (1, 2, 3), (0, 4), None, True, (4, 2.5))
        ),
        (lambda: RandomResizedCrop(24, scale=1), "scale must be a range above 0, such as (0.5, 1.0), got 1"),
        (lambda: RandomResizedCrop(24, ratio=(0.5,)), "ratio must be a range above 0, such as (0.5, 1.0), got (0.5,)"),
        (lambda: CenterCrop(24, resize=2.5), "resize must be the short side, at least 1 pixel, got 2.5"),
        (lambda: CenterCrop(24, resize=(3, 4)), "resize must be the short side, at least 1 pixel, got (3, 4)"),
    ],
)
def test_values_of_another_kind_are_refused(make, message):
    with pytest.raises(ValueError) as refused:
        make()
    assert message in str(refused.value)


def test_lists_and_numbers_of_numpy_make_the_same_crop():
    assert repr(Resize([24, np.int64(30)])) == repr(Resize((24, 30)))
    assert repr(RandomResizedCrop(np.int32(24), scale=[0.1, 1.0])) == repr(RandomResizedCrop(24, (0.1, 1.0)))


def test_crops_are_values():
    assert RandomResizedCrop(4) == RandomResizedCrop(4) != RandomResizedCrop(5)
    assert len({CenterCrop(3), CenterCrop(3), Resize(3)}) == 2


def by_pillow(image, size, part):
    """The part (x, y, width, height) of an image by Pillow's antialiased bilinear filter; each channel for itself."""
    x, y, w, h = part
    planes = [
        Image.fromarray(image[..., c].astype(np.float32)).resize(size, Image.Resampling.BILINEAR, (x, y, x + w, y + h))
        for c in range(image.shape[2])
    ]
    return np.stack([np.asarray(plane) for plane in planes], axis=2)


@pytest.mark.parametrize(("channels", "dtype"), [(1, "uint8"), (2, "uint8"), (3, "uint8"), (4, "uint8"), (3, "uint16")])
@pytest.mark.parametrize(
    "region", [(0, 0, 120, 100), (13, 7, 50, 41), (5, 60, 110, 30), (40, 40, 8, 9), (3.25, 10.5, 61.5, 47.3)], ids=str
)
def test_bilinear_is_pillows_to_a_level(region, channels, dtype):
    """Of noise, where filters differ most: cut first if the region is of whole pixels, else with what is around it."""
    image = noise(0, 100, 120, channels, dtype)
    x, y, w, h = region
    row = np.zeros((24, 32, channels), dtype)
    resize_into(image, [float(v) for v in region], row, "bilinear")
    if all(float(v).is_integer() for v in region):
        image, x, y = image[y : y + h, x : x + w], 0, 0
    limit = 1.01 if dtype == "uint8" else 40  # OpenCV's linear filter has 11 bits for its weights
    assert np.abs(row - by_pillow(image, (32, 24), (x, y, w, h))).max() <= limit


def test_where_nothing_shrinks_all_filters_are_pillows_to_a_level():
    image = waves(20, 30)
    for interpolation in ("area", "bilinear", "fast"):
        row = np.zeros((41, 55, 3), np.uint8)
        resize_into(image, [4.0, 3.0, 21.0, 15.0], row, interpolation)
        assert np.abs(row - by_pillow(image[3:18, 4:25], (55, 41), (0, 0, 21, 15))).max() <= 1.51


def test_fast_is_linear_up_to_its_bound_and_area_from_there():
    image = noise(0, 230, 230)
    for side, same in ((230, "linear"), (200, "linear"), (199, "area"), (115, "area")):
        fast, area = (resample(image, (side, side), name) for name in ("fast", "area"))
        linear = cv2.resize(image, (side, side), interpolation=cv2.INTER_LINEAR)
        assert np.array_equal(fast, {"linear": linear, "area": area}[same])
    # one axis that shrinks by more is enough
    assert np.array_equal(resample(image, (220, 115), "fast"), resample(image, (220, 115), "area"))


def test_a_region_beyond_the_image_is_black_there():
    image = np.full((6, 8, 3), 200, np.uint8)
    row = np.zeros((10, 10, 3), np.uint8)
    resize_into(image, [-1.0, -2.0, 10.0, 10.0], row)
    inside = np.zeros((10, 10), bool)
    inside[2:8, 1:9] = True
    assert (row[inside] == 200).all() and not row[~inside].any()


@pytest.mark.parametrize("kind", ["raw", "gray", "gray16"])
def test_flips_are_exact(pack, container, kind):
    loader = PackedLoader(pack(kind, container), 6, flip=1.0)
    images = torch.cat([images for images, _ in loader]).numpy()
    assert np.array_equal(images, np.stack([image.numpy()[:, :, ::-1] for image, _ in fresh(pack(kind, container))]))


def test_opencv_flips_every_width_and_kind_in_place():
    for width in (1, 2, 3, 5, 8):
        for channels in (1, 2, 3, 4):
            for dtype in ("uint8", "uint16"):
                image = noise(3, 4, width, channels, dtype)
                rows = np.stack([image, image])  # a row of a batch, not an array of its own
                cv2.flip(rows[1], 1, dst=rows[1])
                assert np.array_equal(rows[1], image[:, ::-1]) and np.array_equal(rows[0], image)


def test_flip_is_a_chance(pack):
    plain = torch.stack([image for image, _ in fresh(pack("raw"))])
    share = []
    for flip_ in (True, 0.25):
        loader = PackedLoader(pack("raw"), 27, flip=flip_)
        flipped = 0
        for _ in range(60):
            (images, _), *_ = loader
            same = (images == plain).flatten(1).all(1)
            mirrored = (images == plain.flip(3)).flatten(1).all(1)
            assert (same ^ mirrored).all()
            flipped += int(mirrored.sum())
        share.append(flipped / (60 * 27))
    assert abs(share[0] - 0.5) < 0.05 and abs(share[1] - 0.25) < 0.05


@pytest.mark.parametrize("kind", ["gray16", "gray", "ragged"])
def test_crops_of_every_kind_of_pixel(pack, container, kind):
    """Against the same regions, resized exactly out of what PackedDataset reads."""
    crop = RandomResizedCrop((6, 5), scale=(0.3, 1.0))
    loader = PackedLoader(pack(kind, container), 5, crop=crop, seed=2)
    images = torch.cat([images for images, _ in loader])
    for i, (image, _) in enumerate(fresh(pack(kind, container))):
        height, width = image.shape[1:]
        random = uniform(2, 0, np.array([i]), crop.num_random + 1)[:, 1:]
        part = crop.regions(np.array([float(width)]), np.array([float(height)]), random)[0]
        exact = resized(image.permute(1, 2, 0).numpy(), part, (5, 6))
        assert np.abs(images[i].permute(1, 2, 0).numpy() - exact).max() <= ROUNDED_TWICE


def stripes(height, width, axis):
    """Black and white in turn, one pixel each."""
    return (np.indices((height, width, 3))[axis] % 2 * 255).astype(np.uint8)


def rough(height, width):
    """Pictures in which a filter that skips pixels shows; in smooth ones it does not."""
    return [noise(0, height, width), stripes(height, width, 0), stripes(height, width, 1)]


ROUNDED_TWICE = 1.01
"""Levels: half of one after each axis."""


def packed(folder, images, **options):
    """A pack of these images, all of one class."""
    (folder / "source" / "all").mkdir(parents=True, exist_ok=True)
    for i, image in enumerate(images):
        Image.fromarray(image).save(folder / "source" / "all" / f"{i}.png")
    out = folder / f"{len(list(folder.iterdir()))}.lmdb"
    build_pack(BuildOptions(str(folder / "source"), str(out), workers=1, **options))
    return out


@pytest.mark.parametrize("encode", ["raw", "jpeg"])
@pytest.mark.parametrize("size, crop", [
    ((1000, 401), Resize((224, 224), "area")), ((500, 375), CenterCrop(224, resize=256, interpolation="area")),
    ((341, 256), RandomResizedCrop(224, interpolation="area")),
    ((341, 256), RandomResizedCrop((96, 192), interpolation="area")),
    ((300, 200), Resize((150, 300), "area")), ((200, 300), Resize((299, 100), "area")),
], ids=str)  # fmt: skip
def test_each_axis_that_shrinks_is_averaged(tmp_path, encode, size, crop):
    path = packed(tmp_path, rough(*size[::-1]), encode=encode)
    for epoch in range(2 if crop.num_random else 1):
        loader = PackedLoader(path, 3, crop=crop, seed=3)
        loader.set_epoch(epoch)
        ((images, _),) = loader
        regions = crop.regions(*np.float64([size] * 3).T, uniform(3, epoch, np.arange(3), crop.num_random + 1)[:, 1:])
        for made, (image, _), part in zip(images, fresh(path), regions, strict=True):
            exact = resized(image.permute(1, 2, 0).numpy(), part, made.shape[:0:-1])
            assert np.abs(made.permute(1, 2, 0).numpy() - exact).max() <= ROUNDED_TWICE


def test_stripes_of_one_pixel_become_gray(tmp_path):
    path = packed(tmp_path, [stripes(401, 1000, 0)])
    ((images, _),) = PackedLoader(path, 1, crop=Resize((224, 224)))
    assert images.float().std() < 40  # a box 1.79 wide over stripes; 73.5 where only linear


@pytest.mark.parametrize("resize, fit, size", [
    ("96x128", "stretch", (96, 128)), ("160x20", "stretch", (160, 20)), ("48", "short", (72, 48)),
    ("200", "long", (200, 133)),
])  # fmt: skip
def test_the_loader_resizes_as_the_build_does(tmp_path, resize, fit, size):
    images = [noise(seed, 100, 150) for seed in range(3)]
    built = PackedLoader(packed(tmp_path, images, resize=resize, fit=fit), 3)
    read = PackedLoader(packed(tmp_path, images), 3, crop=Resize(size[::-1], "area"))
    assert alike(list(read), list(built))


def test_interpolation_is_chosen():
    image, row = noise(0, 9, 12), np.empty((3, 4, 3), np.uint8)
    resize_into(image, [0.0, 0.0, 12.0, 9.0], row, "nearest")
    assert np.array_equal(row, image[1::3, 1::3])
    resize_into(image, [0.5, 0.25, 11.0, 8.5], row, "nearest")
    assert np.array_equal(row, image[1::3, [1, 4, 7, 10]])
    resize_into(image, [0.0, 0.0, 12.0, 9.0], row, "area")
    assert np.abs(row - image.reshape(3, 3, 4, 3, 3).mean(axis=(1, 3))).max() <= 0.51


def test_scaled_decoding_is_close_to_the_full_one(pack, monkeypatch):
    """And it happens: libjpeg is asked for less where a crop is at least four times as large as the output."""
    factors = []

    def watched(data, row, factor):
        factors.append(factor)
        decode_into(data, row, factor)

    options = {"crop": RandomResizedCrop(12, scale=(0.1, 1.0)), "flip": True, "seed": 5, "threads": 1}
    monkeypatch.setattr("packer.loading.decoding.decode_into", watched)
    scaled = [images for images, _ in PackedLoader(pack("photos"), 9, **options)]
    assert len(factors) == 27 and {2, 4, 8} >= {*factors} and len({*factors}) > 1
    monkeypatch.setattr("packer.loading.decoding.factors_of", lambda room, _: np.ones(len(room), np.int64))
    whole = [images for images, _ in PackedLoader(pack("photos"), 9, **options)]
    differences = (torch.cat(scaled).int() - torch.cat(whole).int()).abs().float()
    assert differences.mean() < 0.5 and differences.max() <= 4


def test_a_crop_of_four_times_the_output_is_decoded_at_half(pack, monkeypatch):
    shapes = []

    def watched(data, row, factor):
        shapes.append(row.shape)
        decode_into(data, row, factor)

    monkeypatch.setattr("packer.loading.decoding.decode_into", watched)
    list(PackedLoader(pack("photos"), 9, crop=Resize((37, 47)), threads=1))  # the first is 150 x 190
    assert shapes[0] == (75, 95, 3)
    shapes.clear()
    list(PackedLoader(pack("photos"), 9, crop=Resize((37, 47), "nearest"), threads=1))
    assert shapes[0] == (150, 190, 3)


@pytest.mark.parametrize("factor", [1, 2, 4, 8])
def test_reduced_images_never_reach_beyond_themselves(factor):
    """Images of odd sizes, and of sizes that a factor does not divide: no black border may appear."""
    for width, height in [(17, 23), (40, 40), (41, 33), (47, 19)]:
        shape = -(-height // factor), -(-width // factor)
        image = np.full((*shape, 3), 255, np.uint8)
        assert reduced_by((height, width), image) == factor
        for x in range(width):
            y = x % (height - factor + 1)
            for w in range(factor, width - x + 1):
                row = np.zeros((1, 1, 3), np.uint8)
                resize_into(image, [side / factor for side in (x, y, w, height - y)], row)
                assert row.min() == 255


def test_an_image_of_another_size_than_the_index_says_is_damage():
    from packer.errors import BadImage

    with pytest.raises(BadImage, match="the index says"):
        reduced_by((40, 40), np.zeros((20, 21, 3), np.uint8))


def test_identity_crops_change_nothing(pack):
    plain = list(PackedLoader(pack("jpeg"), 5))
    for crop in (Resize((10, 12)), CenterCrop((10, 12)), Resize(10)):
        assert alike(list(PackedLoader(pack("jpeg"), 5, crop=crop)), plain)


def resized_and_padded(image, short, crop, interpolation):
    """float64: resized to whole pixels, then padded by (crop - side) // 2 at the left and top, or cut likewise."""
    sides = np.array(image.shape[1::-1])
    size = tuple((sides * short // sides.min()).tolist())
    if interpolation == "area":
        small = resized(image, (0, 0, *sides), size)
    else:
        small = np.asarray(Image.fromarray(image).resize(size, getattr(Image.Resampling, interpolation.upper())))
    height, width = small.shape[:2]
    top, left = (max(0, c - s) // 2 for c, s in zip(crop, (height, width), strict=True))
    cut_top, cut_left = (round(max(0, s - c) / 2) for c, s in zip(crop, (height, width), strict=True))
    part = small[cut_top : cut_top + crop[0], cut_left : cut_left + crop[1]]
    padded = np.zeros((*crop, 3))
    padded[top : top + part.shape[0], left : left + part.shape[1]] = part
    return padded


@pytest.mark.parametrize("kind", ["raw", "raw on the device", "jpeg", "copy"])
@pytest.mark.parametrize("interpolation, size, short, crop", [
    *((name, size, 31, (100, 97)) for name in ("bilinear", "area", "nearest") for size in ((51, 37), (37, 52))),
    *((name, (97, 83), 120, (165, 148)) for name in ("bilinear", "area", "nearest")),
    # cut at two sides, where "area" and "nearest" take whole pixels of the source
    ("bilinear", (121, 50), 31, (40, 60)), ("bilinear", (50, 121), 31, (60, 40)), ("bilinear", (50, 121), 31, (88, 31)),
], ids=str)  # fmt: skip
def test_nothing_blends_into_the_border_of_a_resized_center_crop(tmp_path, kind, interpolation, size, short, crop):
    path = packed(tmp_path, rough(*size[::-1]), encode=kind.partition(" ")[0])
    view = CenterCrop(crop, short, interpolation)
    ((images, _),) = PackedLoader(path, 3, crop=view, cache="device" if "device" in kind else None, device="cpu")
    for made, (image, _) in zip(images, fresh(path), strict=True):
        expected = resized_and_padded(image.permute(1, 2, 0).numpy(), short, crop, interpolation)
        assert np.abs(made.permute(1, 2, 0).numpy() - expected).max() <= ROUNDED_TWICE
        assert not made[:, ~torch.from_numpy(expected.any(axis=2))].any()


@pytest.mark.parametrize("cache", [None, "device"])
def test_borders_of_a_crop_of_ones_own_become_whole_pixels(tmp_path, monkeypatch, cache):
    """Around the image; and outside it, where all is black."""
    path = packed(tmp_path, [np.full((24, 30, 3), 200, np.uint8)], encode="raw")
    for region, shown in (([-7.3, -9.1, 43, 38], (slice(5, 17), slice(3, 17))), ([50, 3, 20, 20], (slice(0, 0),) * 2)):
        monkeypatch.setattr(Resize, "regions", lambda *_, region=region: np.array([region], float))
        ((images, _),) = PackedLoader(path, 1, crop=Resize((20, 20)), cache=cache, device="cpu")
        expected = torch.zeros(1, 3, 20, 20)
        expected[(..., *shown)] = 200
        assert torch.equal(images.float(), expected)
