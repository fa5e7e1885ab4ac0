"""packer's changes of single images against timm's, with the same seeds, and the distribution of its own draws."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from drawn import pixels
from packs import noise
from PIL import Image

from packer.images import pillow_ops as ops
from packer.loading.byte_batches import PlanarFloats, mix_bytes, paste_bytes
from packer.loading.pillow_crops import PillowRandomCrop
from packer.loading.pillow_policy import Draws, SeededSteps, blur, gray, jitter, one_policy, some_operations
from packer.samplers.order import uniform

pytest.importorskip("timm", reason="timm is optional, and not installed here")
from timm.data import FastCollateMixup
from timm.data import auto_augment as policies
from timm.data.mixup import rand_bbox
from timm.data.transforms import RandomResizedCropAndInterpolation
from torchvision import transforms
from torchvision.transforms import functional

SIZE = (52, 41)
FILL = (124, 116, 104)
PICTURES = [pixels(seed, *SIZE) for seed in range(4)] + [noise(0, SIZE[1], SIZE[0]), np.full((41, 52, 3), 77, np.uint8)]
COLORS: dict[str, tuple[Callable[..., Any], Callable[..., Any], tuple[Any, ...]]] = {
    "invert": (lambda image, _: ops.inverted(image), lambda image, _: policies.invert(image), (0,)),
    "autocontrast": (
        lambda image, _: ops.contrast_stretched(image), lambda image, _: policies.auto_contrast(image), (0,),
    ),
    "equalize": (lambda image, _: ops.equalized(image), lambda image, _: policies.equalize(image), (0,)),
    "posterize": (ops.posterized, policies.posterize, (1, 4, 8)),
    "solarize": (ops.solarized, policies.solarize, (0, 100, 256)),
    "solarize_add": (ops.brightened_below, policies.solarize_add, (0, 66, 128)),
    "brightness": (ops.bright, policies.brightness, (0.1, 0.46, 1.0, 1.54, 1.9)),
    "contrast": (ops.contrasted, policies.contrast, (0.1, 0.46, 1.0, 1.54, 1.9)),
    "color": (ops.saturated, policies.color, (0.1, 0.46, 1.0, 1.54, 1.9)),
    "sharpness": (ops.sharpened, policies.sharpness, (0.1, 0.46, 1.0, 1.54, 1.9)),
    "blur": (ops.blurred, policies.gaussian_blur, (0.1, 1.3)),
}  # fmt: skip
MOVES = {
    "ShearX": (lambda image, by, *how: ops.sheared(image, by, False, *how), policies.shear_x),
    "ShearY": (lambda image, by, *how: ops.sheared(image, by, True, *how), policies.shear_y),
    "TranslateX": (lambda image, by, *how: ops.translated(image, 60 * by, False, *how), policies.translate_x_abs),
    "TranslateY": (lambda image, by, *how: ops.translated(image, 60 * by, True, *how), policies.translate_y_abs),
    "Rotate": (lambda image, by, *how: ops.rotated(image, 100 * by, *how), policies.rotate),
}
POLICIES = (
    "rand-m6-mstd0.5-inc1", "rand-m9-mstd0.5-inc1", "rand-m7-n3-mstd101", "rand-m8-mstd0.5-tweights",
    "rand-m5-inc1-t3aw-n1", "original", "originalr", "v0-mstd0.5", "v0r", "3a",
)  # fmt: skip


@pytest.mark.parametrize("name", COLORS)
def test_colors_are_those_of_pillow(name: str) -> None:
    mine, theirs, arguments = COLORS[name]
    for picture in PICTURES:
        for argument in arguments:
            found = ops.to_pixels(mine(picture, argument))
            assert np.array_equal(found, np.asarray(theirs(Image.fromarray(picture), argument))), argument


@pytest.mark.parametrize("filter", ["bilinear", "bicubic", "nearest"])
@pytest.mark.parametrize("name", MOVES)
def test_moved_images_are_within_a_level_of_those_of_pillow(name: str, filter: str) -> None:
    mine, theirs = MOVES[name]
    scale = {"T": 60, "R": 100}.get(name[0], 1)
    for picture in PICTURES:
        for by in (0.0, 0.18371, -0.21137, 0.29991, -0.44713, 1.5037):
            found = ops.to_pixels(mine(picture, by, filter, FILL)).astype(int)
            how = {"resample": ops.FILTERS[filter], "fillcolor": FILL}
            difference = np.abs(found - np.asarray(theirs(Image.fromarray(picture), scale * by, **how)))
            assert difference.max() <= (1 if filter != "nearest" else 0)
            assert (difference > 0).mean() < 0.01


@pytest.mark.parametrize("interpolation", [None, Image.Resampling.BICUBIC])
@pytest.mark.parametrize("text", POLICIES)
def test_policies_draw_and_do_what_those_of_timm_do(text: str, interpolation: Any) -> None:
    how = {"translate_const": 20, "img_mean": FILL, **({"interpolation": interpolation} if interpolation else {})}
    if text.startswith("rand"):
        theirs: Any = policies.rand_augment_transform(text, how)
        step = some_operations(theirs.ops, theirs.num_layers, theirs.choice_weights)
    else:
        theirs = policies.auto_augment_transform(text, how)
        step = one_policy(theirs.policy)
    mine, off, changed = SeededSteps([step]), [], 0
    for seed in range(80):
        picture = PICTURES[seed % 5]
        random.seed(seed)
        np.random.seed(seed)
        try:
            expected = np.asarray(theirs(Image.fromarray(picture)))
        except ValueError as error:  # Pillow 13 refuses to posterize to no bits, of which timm asks
            assert "bits must be" in str(error)
            continue
        image = torch.from_numpy(picture.copy()).permute(2, 0, 1)
        made = mine(image, torch.Generator().manual_seed(seed))
        assert made is image
        off.append((made.permute(1, 2, 0).numpy() != expected).mean())
        changed += not np.array_equal(expected, picture)
    assert np.mean(off) < 0.005 and np.median(off) == 0 and len(off) > 70 and changed > 15


def same(mine: Any, theirs: Any, draws: int = 4000) -> None:
    """Kolmogorov and Smirnov: the samples differ by less than what happens once in a thousand times."""
    together = np.sort(np.concatenate([mine, theirs]))
    shares = [np.searchsorted(np.sort(each), together, side="right") / len(each) for each in (mine, theirs)]
    assert np.abs(shares[0] - shares[1]).max() < 1.95 * np.sqrt(2 / draws)


@pytest.mark.parametrize(("width", "height"), [(256, 256), (90, 300)])
@pytest.mark.parametrize("scale", [(0.08, 1.0), (0.35, 1.0)])
def test_crops_have_the_distribution_of_timm(width: int, height: int, scale: tuple[float, float]) -> None:
    crop = PillowRandomCrop(160, scale=scale, filters=("bilinear", "bicubic"))
    drawn = uniform(3, 0, np.arange(4000), crop.num_random)
    x, y, w, h = crop.regions(np.full(4000, float(width)), np.full(4000, float(height)), drawn).T
    random.seed(1)
    image, ratio = Image.new("L", (width, height)), (3 / 4, 4 / 3)
    theirs = np.array([RandomResizedCropAndInterpolation.get_params(image, scale, ratio) for _ in range(4000)])
    for mine, other in ((y, 0), (x, 1), (h, 2), (w, 3)):
        same(mine, theirs[:, other])
    same(w * h, theirs[:, 2] * theirs[:, 3])
    same(w / h, theirs[:, 3] / theirs[:, 2])
    filters = crop.choices(drawn)
    assert abs(filters.mean() - 0.5) < 0.03 and abs(np.corrcoef(filters, w * h)[0, 1]) < 0.06


def test_color_jitter_has_the_distribution_of_torchvision() -> None:
    given = transforms.ColorJitter(0.4, 0.3, 0.2, 0.1)
    step, draws, picture = jitter(given, functional), Draws(), pixels(1, 8, 8)
    mine, theirs = [], []
    torch.manual_seed(0)
    for seed in range(2000):
        draws.seed(seed)
        mine.append(ops.to_pixels(step(picture, draws)).astype(float))
        theirs.append(np.asarray(given(Image.fromarray(picture))).astype(float))
    for measure in (np.mean, np.std, lambda image: image[3, 3, 0], lambda image: image[5, 2, 2]):
        same(np.array([measure(one) for one in mine]), np.array([measure(one) for one in theirs]), 2000)


def test_blurs_and_gray_are_those_of_torchvision() -> None:
    picture, draws = pixels(2, 40, 40), Draws()
    draws.seed(4)
    sigma = random.Random(4).uniform(0.1, 2.0)
    expected = functional.gaussian_blur(Image.fromarray(picture), [23, 23], [sigma, sigma])
    made = blur(transforms.GaussianBlur(23), functional)(picture, draws)
    assert np.array_equal(ops.to_pixels(made), np.asarray(expected))
    grayed = ops.to_pixels(gray(functional)(picture, draws))
    assert np.array_equal(grayed, np.asarray(transforms.Grayscale(3)(Image.fromarray(picture))))


@pytest.mark.parametrize("alphas", [(1.0, 0.0), (0.0, 1.0)], ids=["mixup", "cutmix"])
def test_batches_are_mixed_as_by_timm(alphas: tuple[float, float]) -> None:
    collate = FastCollateMixup(*alphas, num_classes=3)
    images = torch.from_numpy(np.stack(PICTURES)).permute(0, 3, 1, 2)
    changed = 0
    for seed in range(8):
        np.random.seed(seed)
        expected, _ = collate([(image, 0) for image in images])
        np.random.seed(seed)
        share, cut = collate._params_per_batch()
        mixed = images.clone()
        if cut:
            paste_bytes(mixed, rand_bbox(images.shape, share))
        else:
            mix_bytes(mixed, share)
        assert torch.equal(mixed, expected)
        changed += not torch.equal(mixed, images)
    assert changed > 4


def test_floats_are_those_of_timm() -> None:
    images = torch.from_numpy(np.stack(PICTURES)).permute(0, 3, 1, 2)
    mean, std = ([number * 255 for number in each] for each in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    expected = images.float().sub_(torch.tensor(mean).view(1, 3, 1, 1)).div_(torch.tensor(std).view(1, 3, 1, 1))
    floats = PlanarFloats(mean, std)
    found = floats(images)
    assert torch.equal(found, expected) and found.is_contiguous()
    again = floats(images[:2])
    assert torch.equal(again, expected[:2]) and torch.equal(found, expected)  # each in its own memory
