"""Letterboxes with a border of any value: only the border changes, in every kind of pack, on every way to a batch."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from loader_packs import alike
from PIL import Image

from packer import CenterCrop, CropView, Letterbox, PackedLoader, build_pack, open_pack
from packer.errors import UsageError
from packer.images.resize import TargetSize
from packer.loading.crop import crop_of, crop_text
from packer.packing import BuildOptions
from packer.samplers import BucketSampler, ShapeBuckets

SIZE = (31, 18)
KINDS = ["raw", "jpeg", "ragged", "gray", "gray16", "copy", "png", "boxes", "photos"]


def batches(path, fill, **options):
    return list(PackedLoader(path, 4, **{"crop": Letterbox(SIZE, fill=fill), "with_index": True, **options}))


def border_of(pack, record, shape):
    """Where the output has no pixel of the image, as LetterBox of Ultralytics computes it: bool (height, width)."""
    height, width = pack.reader.shape_of(record)[:2]
    ratio = min(shape[0] / height, shape[1] / width)
    wide, tall = round(width * ratio), round(height * ratio)
    left, top = round((shape[1] - wide) / 2 - 0.1), round((shape[0] - tall) / 2 - 0.1)
    border = np.ones(shape, np.bool_)
    border[top : top + tall, left : left + wide] = False
    return border


def check(pack, black, filled, fill):
    """Both batches are equal but for the borders, which have 0 and `fill`."""
    beside = 0
    for (images, *_, records), (others, *_, again) in zip(black, filled, strict=True):
        assert torch.equal(records, again)
        for image, other, record in zip(images.numpy(), others.numpy(), records.tolist(), strict=True):
            border = border_of(pack, record, image.shape[1:])
            assert (other[:, border] == fill).all() and (image[:, border] == 0).all()
            assert np.array_equal(image[:, ~border], other[:, ~border])
            beside += border.sum()
    assert beside


@pytest.mark.parametrize("kind", KINDS)
def test_only_the_border_changes(pack, kind):
    path, fill = pack(kind), 40_000 if kind == "gray16" else 114
    check(open_pack(path), batches(path, 0), batches(path, fill), fill)
    for interpolation in ("bilinear", "nearest", "fast"):
        crops = (Letterbox(SIZE, interpolation), Letterbox(SIZE, interpolation, fill))
        check(open_pack(path), *(batches(path, 0, crop=crop) for crop in crops), fill)


@pytest.mark.parametrize("kind", ["ragged", "copy", "photos"])
def test_pixels_are_those_of_a_build(pack, kind):
    data, target = open_pack(pack(kind)), TargetSize(SIZE[1], SIZE[0], "pad", 114)
    for images, _, records in batches(data, 114):
        for image, record in zip(images, records.tolist(), strict=True):
            found, whole = image.permute(1, 2, 0).numpy(), target.apply(data.image(record))
            border = border_of(data, record, SIZE)
            same = np.s_[border] if kind == "photos" else ...  # which are decoded smaller
            assert border.any() and np.array_equal(found[same], whole[same])


@pytest.mark.parametrize("kind", ["ragged", "jpeg"])
def test_shapes_of_buckets(pack, kind):
    data = open_pack(pack(kind))

    def made(fill):
        sampler = BucketSampler(data, ShapeBuckets([(24, 24), (20, 28)], fit="pad"), 4)
        return batches(data, fill, sampler=sampler, crop=Letterbox(fill=fill))

    check(data, made(0), made(114), 114)


@pytest.mark.parametrize("kind", ["raw", "copy"])
def test_views_have_borders_of_their_own(pack, kind):
    def views(*fills):
        options = {str(number): CropView(Letterbox(SIZE, fill=fill)) for number, fill in enumerate(fills)}
        return batches(pack(kind), 0, crop=None, views=options)

    for (there, *_), (alone, *_), (black, *_) in zip(
        views(114, 7), batches(pack(kind), 114), batches(pack(kind), 7), strict=True
    ):
        assert torch.equal(there["0"], alone) and torch.equal(there["1"], black)


@pytest.mark.parametrize("interpolation", ["area", "bilinear", "fast", "nearest"])
def test_on_the_device(pack, interpolation):
    size = (20, 31)
    crop = Letterbox(size, interpolation, 114)
    here, there = (batches(pack("raw"), 0, crop=crop, cache=cache) for cache in (None, "device"))
    for (images, *_, records), (others, *_) in zip(here, there, strict=True):
        assert (images.int() - others.int()).abs().max() <= 2
        border = border_of(open_pack(pack("raw")), records[0], size)
        assert border.any() and (others.numpy()[:, :, border] == 114).all()


def test_a_second_image_has_the_border_of_the_first(tmp_path, pack):
    source = tmp_path / "set"
    for folder in ("left", "right"):
        (source / folder).mkdir(parents=True)
        for record in range(5):
            image = open_pack(pack("ragged")).image(record)
            Image.fromarray(image).save(source / folder / f"{record}.png")
    options = {"labels": ("none",), "part": ("right=right:image",), "missing_labels": "empty", "workers": 1}
    build_pack(BuildOptions(str(source), str(tmp_path / "p"), encode="raw", **options))
    for images, targets, _ in batches(tmp_path / "p", 114, collate="dict", flip=True):
        assert torch.equal(images, targets["right"]) and (images == 114).all(dim=1).any()


def test_a_state_has_the_border_and_one_from_before_there_was_one_is_read(pack):
    def made(fill=0):
        return PackedLoader(pack("raw"), 4, crop=Letterbox(SIZE, fill=fill))

    before = "Letterbox(size=(31, 18), interpolation='area')"
    assert crop_text(Letterbox(SIZE)) == before and crop_of(before) == Letterbox(SIZE)
    state = made().state_dict()
    assert state["crop"] == before
    with pytest.raises(UsageError, match=r"state: has crop .*, here .*fill=114\)"):
        made(114).load_state_dict(state)
    loader = made()
    loader.set_crop(Letterbox(SIZE, fill=114))
    again = made()
    again.load_state_dict(json.loads(json.dumps(loader.state_dict())))
    assert alike(list(again), list(made(114)))
    again.set_crop(CenterCrop(40))
    again.set_epoch(0)
    assert alike(list(again), list(PackedLoader(pack("raw"), 4, crop=CenterCrop(40))))


@pytest.mark.parametrize("fill", [-1, 1 << 16, 1.5, True, "114", (114, 114, 114), None])
def test_what_is_no_value_is_refused(fill):
    with pytest.raises(ValueError, match="fill must be a whole number from 0 to 255, or to 65535 for 16 bits, got"):
        Letterbox(8, fill=fill)


def test_a_value_beyond_8_bits_is_for_16_bits(pack):
    with pytest.raises(UsageError, match="crop: has fill 256, but values of pixels are up to 255; write 0 to 255"):
        PackedLoader(pack("raw"), 4, crop=Letterbox(8, fill=256))
    loader = PackedLoader(pack("gray16"), 4, crop=Letterbox((8, 40), fill=np.int64(256)))
    assert (next(iter(loader))[0] == 256).any()
    assert crop_text(Letterbox(8, fill=np.int64(256))) == "Letterbox(size=8, interpolation='area', fill=256)"
