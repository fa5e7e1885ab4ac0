"""Pixels of crops against those of torchvision's antialiased transforms, and docs/preprocessing.md."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from doc_blocks import ROOT, blocks_of
from drawn import draw, pixels
from packs import noise
from PIL import Image

from packer import BuildOptions, CenterCrop, PackedDataset, PackedLoader, RandomResizedCrop, Resize, build_pack
from packer.samplers.order import uniform

pytest.importorskip("torchvision", reason="needs torchvision")
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional

SIZES = [(500, 375), (333, 500), (1000, 401), (100, 90)]


def pictures(width, height):
    """Noise, stripes of one pixel in both directions, and a smooth picture."""
    stripes = [(np.indices((height, width, 3))[axis] % 2 * 255).astype(np.uint8) for axis in (0, 1)]
    return [noise(0, height, width), *stripes, pixels(1, width, height)]


@pytest.fixture(scope="module", params=SIZES, ids=str)
def sized(request, tmp_path_factory):
    """A raw and a JPEG pack of pictures of one size, and what PackedDataset reads from them."""
    home = tmp_path_factory.mktemp("sized")
    (home / "source" / "all").mkdir(parents=True)
    for i, picture in enumerate(pictures(*request.param)):
        Image.fromarray(picture).save(home / "source" / "all" / f"{i}.png")
    packs = []
    for encode in ("raw", "jpeg"):
        out = home / f"{encode}.lmdb"
        build_pack(BuildOptions(str(home / "source"), str(out), encode=encode, workers=1))
        packs.append((out, [image for image, _ in PackedDataset(out)]))
    return packs


def check(images, theirs):
    """Within a level on average for each picture; the largest difference only rounding."""
    for mine, other in zip(images, theirs, strict=True):
        difference = (mine.int() - other.int()).abs().double()
        assert difference.mean() < 1 and difference.max() <= 2
        assert abs(mine.double().std() - other.double().std()) < 1


def read(path, crop, **options):
    ((images, _),) = PackedLoader(path, 4, crop=crop, **options)
    return images


@pytest.mark.parametrize("size", [(224, 224), (96, 300), (300, 128)], ids=str)
def test_resize(sized, size):
    for path, whole in sized:
        check(read(path, Resize(size)), [v2.Resize(size, antialias=True)(image) for image in whole])


@pytest.mark.parametrize("resize, side", [
    (256, 224), (224, 224), (96, 64), (64, 80), (71, 300), (64, (90, 64)), (160, (250, 99)),
], ids=str)  # fmt: skip
def test_center_crop_after_a_resize(sized, resize, side):
    transform = v2.Compose([v2.Resize(resize, antialias=True), v2.CenterCrop(side)])
    for path, whole in sized:
        made, theirs = read(path, CenterCrop(side, resize=resize)), torch.stack([transform(image) for image in whole])
        if path.name == "jpeg.lmdb" and min(whole[0].shape[1:]) > 4 * resize:  # decoded at 1/2: noise differs
            made, theirs = made[3:], theirs[3:]
        difference = (made.int() - theirs.int()).abs().double()
        assert difference.flatten(1).mean(1).max() < 1
        if path.name == "raw.lmdb":
            assert difference.max() <= 2
        border = transform(torch.full_like(whole[0], 255)) == 0
        assert not made[:, border].any()


@pytest.fixture(scope="module")
def uneven(real_data, tmp_path_factory):
    """A raw pack of photos, every third one turned, and some rows and columns cut off; and what is in it."""
    home = tmp_path_factory.mktemp("uneven")
    (home / "source" / "all").mkdir(parents=True)
    for i, photo in enumerate(sorted((real_data / "photos").rglob("*.JPEG"))[:12]):
        with Image.open(photo) as opened:
            image = opened.convert("RGB").rotate(90 if i % 3 == 1 else 0, expand=True)
        image.crop((0, 0, image.width - i % 5, image.height - i % 4)).save(home / "source" / "all" / f"{i:02}.png")
    build_pack(BuildOptions(str(home / "source"), str(home / "pack"), encode="raw", workers=1))
    return home / "pack", [image for image, _ in PackedDataset(home / "pack")]


@pytest.mark.parametrize("resize, size", [
    (64, 224), (131, 224), (160, (300, 181)), (160, (171, 400)), (97, (97, 131)), (224, 224), (256, 224), (64, 48),
], ids=str)  # fmt: skip
def test_center_crops_of_photos_that_shrink_are_within_a_level(uneven, resize, size):
    """The short side is smaller than the crop, as large, larger, and between its height and its width."""
    path, whole = uneven
    assert {image.shape[1] > image.shape[2] for image in whole} == {True, False}
    assert {side % 2 for image in whole for side in image.shape[1:]} == {0, 1}
    transform = v2.Compose([v2.Resize(resize, antialias=True), v2.CenterCrop(size)])
    ((images, _),) = PackedLoader(path, len(whole), crop=CenterCrop(size, resize=resize))
    for made, image in zip(images, whole, strict=True):
        assert (made.int() - transform(image).int()).abs().max() <= 1
        assert not made[transform(torch.full_like(image, 255)) == 0].any()


@pytest.mark.parametrize("interpolation", ["bilinear", "fast"])
def test_random_resized_crop(sized, interpolation):
    crop = RandomResizedCrop((120, 96), interpolation=interpolation)
    for path, whole in sized:
        height, width = whole[0].shape[1:]
        sides = np.full(4, float(width)), np.full(4, float(height))
        regions = crop.regions(*sides, uniform(3, 0, np.arange(4), crop.num_random + 1)[:, 1:]).astype(int).tolist()
        theirs = [
            functional.resized_crop(image, y, x, h, w, [120, 96], antialias=True)
            for image, (x, y, w, h) in zip(whole, regions, strict=True)
        ]
        made = read(path, crop, seed=3)
        if interpolation == "bilinear":
            check(made, theirs)
        else:  # on the smooth picture
            assert (made[3].int() - theirs[3].int()).abs().double().mean() < 1


def test_flips_and_floats(sized):
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    transform = v2.Compose([
        v2.RandomHorizontalFlip(1.0), v2.ToDtype(torch.float32, scale=True), v2.Normalize(mean, std),
    ])  # fmt: skip
    path, _ = sized[0]
    plain = read(path, Resize((64, 64)))
    torch.testing.assert_close(read(path, Resize((64, 64)), flip=1.0, mean=mean, std=std), transform(plain))


def test_the_page_about_preprocessing(tmp_path, monkeypatch):
    page = ROOT / "docs" / "preprocessing.md"
    for i, size in enumerate(((500, 375), (333, 500), (640, 401))):
        draw(tmp_path / "pets" / "cat" / f"{i}.jpg", i, *size)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    build_pack(BuildOptions("pets", "files.lmdb", encode="copy", workers=1))
    (block,) = (block for block in blocks_of(page) if "torchvision.transforms" in block.text)
    (compare,) = (block for block in blocks_of(page) if block.title == "compare.py")
    Path("compare.py").write_text(compare.text)
    try:
        exec(block.code(), {"__name__": "__main__"})
    finally:
        sys.modules.pop("compare", None)
