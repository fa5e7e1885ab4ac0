"""Batches of one shape each: pixels, boxes and masks against plain geometry, and loaders of one shape."""

from __future__ import annotations

import json
import pickle
from itertools import islice

import numpy as np
import pytest
import torch
from broken_packs import broken
from drawn import image_file, resized, voc_xml
from drawn_masks import draw_mask, image_of, picture, write_files
from loader_packs import alike

from packer import (
    BuildOptions,
    CoverCrop,
    Letterbox,
    PackedLoader,
    RandomResizedCrop,
    build_pack,
    open_pack,
)
from packer.errors import UsageError
from packer.images.resize import TargetSize
from packer.samplers import BucketSampler, SequentialSampler, ShapeBuckets

COUNT = 29
BUCKETS = ShapeBuckets([(24, 24), (16, 36), (36, 16), (20, 28)])
RECT = ShapeBuckets.rect(48, 16)


def size_of(number):
    """(width, height) of an image."""
    return 30 + number * 17 % 60, 24 + number * 29 % 47


def boxes_of(number):
    width, height = size_of(number)
    return [("dog", 2.0, 3.0, width - 9.0, height / 2), ("bird", width / 2, 5.0, width - 1.0, height - 4.0)]


@pytest.fixture(scope="module")
def detection(tmp_path_factory):
    """Raw images of differing size with two boxes each; the names of the files are the numbers."""
    root, files = tmp_path_factory.mktemp("buckets"), {}
    for number in range(COUNT):
        name, size = f"{number:03d}", size_of(number)
        files[f"JPEGImages/{name}.png"] = image_file(number, *size, format="PNG")
        files[f"Annotations/{name}.xml"] = voc_xml(f"{name}.png", boxes_of(number), size).encode()
    write_files(root / "source", files)
    build_pack(BuildOptions(str(root / "source"), str(root / "p.lmdb"), workers=1, encode="raw", shard_bytes=60_000))
    return root / "p.lmdb"


@pytest.fixture(scope="module")
def segmentation(tmp_path_factory):
    """Images of differing size with masks."""
    root, files = tmp_path_factory.mktemp("bucket_masks"), {}
    for number in range(COUNT):
        mask = draw_mask(number, *size_of(number))
        files[f"images/{number:03d}.png"], files[f"masks/{number:03d}.png"] = image_of(mask), picture(mask)
    write_files(root / "source", files)
    build_pack(BuildOptions(str(root / "source"), str(root / "p.lmdb"), workers=1))
    return root / "p.lmdb"


def covering(width, height, shape):
    """What of an image is seen, and where on the canvas it goes: (x, y, width, height), twice."""
    tall, wide = shape
    if width / height >= wide / tall:
        w, h = int(height * wide / tall + 0.5), height
    else:
        w, h = width, int(width * tall / wide + 0.5)
    return ((width - w) // 2, (height - h) // 2, w, h), (0, 0, wide, tall)


def letterboxed(width, height, shape):
    """Likewise, as LetterBox of Ultralytics computes it."""
    ratio = min(shape[0] / height, shape[1] / width)
    wide, tall = round(width * ratio), round(height * ratio)
    left, top = round((shape[1] - wide) / 2 - 0.1), round((shape[0] - tall) / 2 - 0.1)
    return (0, 0, width, height), (left, top, wide, tall)


@pytest.mark.parametrize(("buckets", "geometry"), [(BUCKETS, covering), (RECT, letterboxed)], ids=["cover", "pad"])
@pytest.mark.parametrize("flip", [False, 1.0])
def test_pixels_and_boxes_are_where_plain_geometry_puts_them(detection, buckets, geometry, flip):
    pack = open_pack(detection)
    loader = PackedLoader(
        pack, 5, sampler=BucketSampler(pack, buckets, 5, seed=2), with_index=True, flip=flip, min_area=0
    )
    seen = []
    for images, targets, records in loader:
        shape = tuple(images.shape[2:])
        assert shape in buckets.shapes
        for image, target, record in zip(images, targets, records.tolist(), strict=True):
            number = int(pack.paths[record].split("/")[-1].split(".")[0])
            seen.append(number)
            (x, y, w, h), (left, top, wide, tall) = geometry(*size_of(number), shape)
            expected = np.zeros((*shape, 3))
            expected[top : top + tall, left : left + wide] = resized(pack.image(record), (x, y, w, h), (wide, tall))
            expected = expected[:, ::-1] if flip else expected
            assert np.abs(image.permute(1, 2, 0).numpy() - expected).max() <= 1
            boxes = np.array([box[1:] for box in boxes_of(number)]) - [1, 1, 0, 0]  # the first pixel of VOC is 1
            boxes[:, 0::2] = (boxes[:, 0::2] - x) * wide / w + left
            boxes[:, 1::2] = (boxes[:, 1::2] - y) * tall / h + top
            if flip:
                boxes[:, 0::2] = shape[1] - boxes[:, 2::-2]
            boxes = np.clip(boxes, 0, [*shape[::-1]] * 2)
            assert np.allclose(target["boxes"].numpy(), boxes, atol=1e-3)
    assert sorted(seen) == list(range(COUNT))


@pytest.mark.parametrize("fit", ["crop", "pad"])
@pytest.mark.parametrize("size", [(24, 24), (16, 36), (31, 17)], ids=str)
def test_the_crops_are_those_of_a_build(detection, fit, size):
    """`packer build` with that fit, pixel by pixel."""
    crop = CoverCrop(size) if fit == "crop" else Letterbox(size)
    pack, target = open_pack(detection), TargetSize(size[1], size[0], fit)
    for images, _, records in PackedLoader(pack, 8, crop=crop, with_index=True):
        for image, record in zip(images, records.tolist(), strict=True):
            assert np.array_equal(image.permute(1, 2, 0).numpy(), target.apply(pack.image(record)))


@pytest.mark.parametrize("kind", ["ragged", "copy", "photos", "boxes", "gray16", "png"])
@pytest.mark.parametrize(
    ("buckets", "crop"),
    [
        (BUCKETS, None),
        (BUCKETS, CoverCrop(random=True, interpolation="fast")),
        (RECT, None),
        (RECT, Letterbox(interpolation="bilinear")),
    ],
    ids=str,
)
def test_each_batch_is_that_of_a_loader_of_its_shape(pack, kind, buckets, crop):
    path = pack(kind)
    options = {"flip": True, "seed": 7, "with_index": True}
    batches = list(PackedLoader(path, 4, sampler=BucketSampler(open_pack(path), buckets, 4), crop=crop, **options))
    default = CoverCrop() if buckets is BUCKETS else Letterbox()
    for images, targets, records in batches:
        own = crop or default
        alone = type(own)(tuple(images.shape[2:]), **({"random": True} if getattr(own, "random", False) else {}),
                          interpolation=own.interpolation)  # fmt: skip
        sampler = SequentialSampler(open_pack(path), indices=records.numpy())
        (expected,) = PackedLoader(path, len(records), sampler=sampler, crop=alone, **options)
        assert alike((images, targets, records), expected)
        assert images.is_contiguous(memory_format=torch.channels_last)
    assert sorted(torch.cat([records for *_, records in batches]).tolist()) == list(range(len(open_pack(path))))


@pytest.mark.parametrize("buckets", [BUCKETS, RECT], ids=["cover", "pad"])
def test_masks_have_the_shape_of_their_batch(segmentation, buckets):
    path = segmentation
    for images, masks, records in PackedLoader(
        path, 4, sampler=BucketSampler(open_pack(path), buckets, 4), with_index=True
    ):
        assert masks.shape == (len(records), *images.shape[2:]) and masks.dtype == torch.int64
        crop = (CoverCrop if buckets is BUCKETS else Letterbox)(tuple(images.shape[2:]))
        sampler = SequentialSampler(open_pack(path), indices=records.numpy())
        (expected,) = PackedLoader(path, len(records), sampler=sampler, crop=crop, with_index=True)
        assert alike((images, masks, records), expected)


@pytest.mark.parametrize("options", [{"threads": 1}, {"threads": 3, "prefetch": 4}, {"cache": "ram"}], ids=str)
def test_any_threads_make_the_same_batches(detection, options):
    def made(**more):
        sampler = BucketSampler(open_pack(detection), BUCKETS, 6, seed=3)
        return list(PackedLoader(detection, 6, sampler=sampler, crop=CoverCrop(random=True), flip=True, **more))

    assert alike(made(**options), made())


def test_ranks_and_resume_give_the_same_batches(detection):
    def made(batch_size, **ranks):
        sampler = BucketSampler(open_pack(detection), BUCKETS, 6, seed=4, **ranks)
        return PackedLoader(
            detection, batch_size, sampler=sampler, crop=CoverCrop(random=True), flip=True, with_index=True
        )

    whole = list(made(6))
    for world_size in (2, 3):
        ranks = [list(made(6 // world_size, rank=rank, world_size=world_size)) for rank in range(world_size)]
        for (images, _, records), *parts in zip(whole, *ranks, strict=True):
            together = torch.stack([part[2] for part in parts], 1).flatten()[: len(records)]
            assert torch.equal(together, records)
            assert torch.equal(torch.stack([part[0] for part in parts], 1).flatten(0, 1)[: len(records)], images)
        for done in (0, 1, len(whole) - 1, len(whole)):
            loader = made(6)
            list(islice(loader, done))
            state = json.loads(json.dumps(loader.state_dict()))
            rest = made(6 // world_size, rank=1, world_size=world_size)
            rest.load_state_dict(state)
            if done < len(whole):
                assert alike(list(rest), ranks[1][done:])
            assert rest.epoch == (done == len(whole))
    copy = pickle.loads(pickle.dumps(made(6)))
    assert alike(list(copy), whole)
    other = PackedLoader(detection, 6, sampler=BucketSampler(open_pack(detection), RECT, 6, seed=4))
    with pytest.raises(UsageError, match=r"state: (num_samples|buckets) is"):
        other.load_state_dict(state)


@pytest.mark.parametrize("world_size", [1, 2, 3, 6])
def test_ranks_evaluate_each_record_once(detection, world_size):
    def made(rank):
        sampler = BucketSampler(
            open_pack(detection), BUCKETS, 6, shuffle=False, pad=False, rank=rank, world_size=world_size
        )
        return PackedLoader(detection, 6 // world_size, sampler=sampler, with_index=True)

    loaders = [made(rank) for rank in range(world_size)]
    ranks = [list(loader) for loader in loaders]
    assert list(map(len, loaders)) == list(map(len, ranks))
    assert sorted(torch.cat([batch[2] for batches in ranks for batch in batches]).tolist()) == list(range(COUNT))
    for steps in zip(*ranks, strict=False):
        assert len({images.shape[1:] for images, *_ in steps}) == 1
    for loader, batches in zip(loaders, ranks, strict=True):
        assert loader.state_dict()["position"] == loader.sampler.num_samples
        again = made(loader.sampler.rank)
        for done in range(len(batches) + 1):
            part = made(loader.sampler.rank)
            list(islice(part, done))
            again.load_state_dict(part.state_dict())
            if part.state_dict()["position"] < part.sampler.num_samples:  # else it is the next epoch
                assert alike(list(again), batches[done:])
    assert loaders[-1].state_dict() == loaders[0].state_dict()


def test_what_fills_a_batch_has_another_crop(detection):
    buckets = ShapeBuckets([(16, 16)])
    sampler = BucketSampler(open_pack(detection), buckets, COUNT + 9, fill_last=True)
    ((images, _, records),) = PackedLoader(
        detection, COUNT + 9, sampler=sampler, crop=CoverCrop(random=True), with_index=True
    )
    again = [(records == record).nonzero().flatten().tolist() for record in records[COUNT:].tolist()]
    assert len(images) == COUNT + 9 and all(len(two) == 2 for two in again)
    assert sum(not torch.equal(images[a], images[b]) for a, b in again) > 4


@pytest.mark.filterwarnings("ignore::packer.errors.DamagedRecordWarning")
def test_another_image_takes_the_shape_of_the_damaged_one(detection, tmp_path):
    path = broken(detection, tmp_path / "broken", [3, 11])
    loader = PackedLoader(
        path, 4, sampler=BucketSampler(open_pack(path), BUCKETS, 4), on_error="replace", with_index=True
    )
    sound = PackedLoader(detection, 4, sampler=BucketSampler(open_pack(detection), BUCKETS, 4), with_index=True)
    for (images, targets, records), (expected, _, wanted) in zip(loader, sound, strict=True):
        assert images.shape == expected.shape and not {3, 11} & set(records.tolist())
        same = (records == wanted).nonzero().flatten()
        assert torch.equal(images[same], expected[same])
        limit = torch.tensor([images.shape[3], images.shape[2]] * 2)
        assert all((target["boxes"] <= limit).all() for target in targets)
    assert [one.record for one in loader.replaced] == [3, 11]


def test_another_crop_is_set_without_a_size(detection):
    def made():
        return PackedLoader(detection, 4, sampler=BucketSampler(open_pack(detection), BUCKETS, 4, seed=1))

    loader = made()
    loader.set_crop(Letterbox())
    state, letterboxed_batches = json.loads(json.dumps(loader.state_dict())), list(loader)
    again = made()
    again.load_state_dict(state)
    assert alike(list(again), letterboxed_batches)
    loader.set_crop(None)
    loader.set_epoch(0)
    assert alike(list(loader), list(made())) and "set_crop" not in loader.state_dict()
    with pytest.raises(UsageError, match="crop: is CoverCrop"):
        loader.set_crop(CoverCrop(24))


REFUSED = {
    "a size": ({"crop": CoverCrop(24)}, "crop: is CoverCrop(size=24, random=False, interpolation='area'), but the"),
    "a crop": ({"crop": RandomResizedCrop(8)}, "sampler's buckets; write packer.CoverCrop(), packer.Letterbox(), or"),
    "views": ({"views": {"a": (2, RandomResizedCrop(8))}}, "views: cannot be combined with a BucketSampler"),
    "repeats": ({"crop": RandomResizedCrop(8), "repeats": 2}, "repeats: cannot be combined with a BucketSampler"),
    "decode": ({"decode": "device"}, "decode: cannot be combined with a BucketSampler; leave it out"),
    "cache": ({"cache": "device"}, "cache: cannot be combined with a BucketSampler; leave it out"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_meant_is_refused(detection, name):
    options, message = REFUSED[name]
    with pytest.raises(UsageError) as refused:
        PackedLoader(detection, 4, sampler=BucketSampler(open_pack(detection), BUCKETS, 4), **options)
    assert message in str(refused.value) and "\n" not in str(refused.value)


def test_a_crop_without_a_size_needs_buckets_and_batches_their_size(detection):
    with pytest.raises(ValueError, match=r"Letterbox\(\) takes the shapes of a BucketSampler, .*; write Letterbox"):
        PackedLoader(detection, 4, crop=Letterbox())
    loader = PackedLoader(detection, 4, sampler=BucketSampler(open_pack(detection), BUCKETS, 8))
    assert len(loader) > 0  # the process group may still come
    with pytest.raises(
        UsageError, match=r"batch_size: is 4 on 1 rank, but .* 8 on all ranks together; pass batch_size"
    ):
        next(iter(loader))


@pytest.mark.parametrize("memory_format", [None, torch.contiguous_format])
def test_normalized_on_the_way(detection, memory_format):
    def made(**options):
        sampler = BucketSampler(open_pack(detection), BUCKETS, 6, seed=3)
        return [images for images, _ in PackedLoader(detection, 6, sampler=sampler, **options)]

    mean, std = (0.5, 0.4, 0.3), (0.2, 0.2, 0.1)
    for images, values in zip(made(), made(mean=mean, std=std, memory_format=memory_format), strict=True):
        expected = (images / 255 - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(std).view(3, 1, 1)
        assert values.shape == images.shape and torch.allclose(values, expected, atol=1e-5)
    for images, arrays in zip(made(), made(output="numpy"), strict=True):
        assert isinstance(arrays, np.ndarray) and np.array_equal(arrays, images.permute(0, 2, 3, 1).numpy())


def test_steps_run_through_epochs(detection):
    def made():
        return PackedLoader(detection, 6, sampler=BucketSampler(open_pack(detection), BUCKETS, 6, seed=3))

    epochs = [batch for epoch in range(3) for batch in _of_epoch(made(), epoch)]
    loader = made()
    first = list(islice(loader.forever(20), 11))
    state, again = json.loads(json.dumps(loader.state_dict())), made()
    again.load_state_dict(state)
    assert alike([*first, *again.forever(20)], epochs[:20])


def _of_epoch(loader, epoch):
    loader.set_epoch(epoch)
    return loader


def test_buckets_are_flipped_and_not_turned(detection):
    def made(**options):
        return PackedLoader(detection, 4, sampler=BucketSampler(open_pack(detection), BUCKETS, 4, seed=3), **options)

    for (images, targets), (plain, before) in zip(made(vflip=1.0), made(), strict=True):
        assert torch.equal(images, plain.flip(2))
        for target, want in zip(targets, before, strict=True):
            boxes = want["boxes"][:, [0, 3, 2, 1]] * torch.tensor([1, -1, 1, -1])
            moved = boxes + torch.tensor([0, 1, 0, 1]) * images.shape[2]
            torch.testing.assert_close(target["boxes"], moved, atol=1e-4, rtol=0)
    with pytest.raises(UsageError, match="rotate90: cannot be combined with a BucketSampler"):
        made(rotate90=True)
