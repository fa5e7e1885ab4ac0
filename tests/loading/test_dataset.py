"""PackedDataset: indices, batches, pixels and their layout in memory, over all containers and encodings."""

from __future__ import annotations

import io
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from packer import PackedDataset
from packer.errors import UsageError
from packer.loading.collate import Batch

KINDS = ("raw", "jpeg", "ragged", "boxes", "gray16", "copy")


@pytest.fixture(params=KINDS)
def data(request, make_pack, container):
    return PackedDataset(make_pack(request.param, container))


@pytest.fixture
def raw(make_pack, container):
    return PackedDataset(make_pack("raw", container))


@pytest.fixture(scope="module")
def lmdb(make_pack):
    return PackedDataset(make_pack("raw", "lmdb"))


def pillow(data: PackedDataset, i: int) -> np.ndarray:
    """What Pillow sees: in the source file, or in the record where that was encoded again."""
    if data.pack.manifest.encoding == "jpeg":
        file = io.BytesIO(bytes(data.pack.record(i)))
    else:
        file = io.BytesIO(Path(data.pack.path, "..", "source", os.fsdecode(data.paths[i])).read_bytes())
    pixels = np.asarray(Image.open(file))
    return pixels.reshape(*pixels.shape[:2], -1)


def same(a, b) -> bool:
    """Equal images and targets, their types and dtypes as well."""
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (tuple, list)):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


def test_pixels_are_those_of_pillow(data):
    assert len(data) == len(data.keys) == len(data.paths) > 8
    jpeg = data.pack.manifest.encoding in ("jpeg", "copy") or data.paths[0].endswith(".jpg")
    for i in range(len(data)):
        image, _ = data[i]
        expected = pillow(data, i)
        assert tuple(image.shape) == (expected.shape[2], *expected.shape[:2]) == as_chw(data.pack.reader.shape_of(i))
        assert str(image.dtype) == f"torch.{expected.dtype}" == f"torch.{data.pack.reader.dtype_of(i)}"
        found = image.permute(1, 2, 0).numpy().astype(int)
        assert np.abs(found - expected).max() <= (3 if jpeg else 0)


def as_chw(shape):
    return (shape[2], *shape[:2])


def test_image_is_a_copy_channels_last(data):
    image, _ = data[1]
    channels, _, width = image.shape
    assert image.stride() == (1, width * channels, channels)
    assert image[None].is_contiguous(memory_format=torch.channels_last)
    before = image.clone()
    image.zero_()  # a view of the map would kill the process
    assert torch.equal(data[1][0], before)


def test_batch_is_the_samples_one_by_one(data):
    indices = [3, 0, 7, 7, -1, len(data) - 1, -len(data)]
    batch = data.__getitems__(indices)
    assert len(batch) == len(indices)
    for (image, target), i in zip(batch, indices, strict=True):
        one, its_target = data[i]
        assert same(image, one) and same(target, its_target)
        assert image.stride() == one.stride()
    assert all(same(batch[k], data[i]) for k, i in enumerate(indices))


def test_batch_of_raw_images_is_one_tensor(raw):
    batch = raw.__getitems__(list(range(len(raw))))  # over all shards
    assert isinstance(batch, Batch) and len(raw.pack.reader.shards) > 2
    assert batch.images.shape == (len(raw), 3, 10, 12) and batch.images.dtype == torch.uint8
    assert batch.images.is_contiguous(memory_format=torch.channels_last)
    assert batch.targets.dtype == torch.int64 and batch.targets.tolist() == raw.targets
    assert isinstance(batch[0][1], int) and isinstance(next(iter(batch))[1], int)
    part = batch[2:5]
    assert isinstance(part, Batch) and torch.equal(part.images, batch.images[2:5])
    before = batch.images.clone()
    batch.images.zero_()
    assert torch.equal(raw.__getitems__(range(len(raw))).images, before)


def test_gray16_batch(make_pack, container):
    data = PackedDataset(make_pack("gray16", container))
    batch = data.__getitems__([5, 0, 9])
    assert batch.images.dtype == torch.uint16 and batch.images.shape == (3, 1, 10, 12)
    assert batch.images.is_contiguous(memory_format=torch.channels_last)
    assert batch.images.numpy().max() > 255


def test_empty_batch(raw):
    batch = raw.__getitems__([])
    assert list(batch) == [] and batch.images.shape == (0, 3, 10, 12)


@pytest.mark.parametrize("index", [np.int64(4), np.uint8(4), torch.tensor(4), np.array(4), -20])
def test_any_whole_number_is_an_index(lmdb, index):
    assert same(lmdb[index], lmdb[4]) and same(lmdb.__getitems__([index])[0], lmdb[4])


@pytest.mark.parametrize("make", [np.array, torch.tensor, tuple, lambda v: np.array(v, np.uint16), list])
def test_any_sequence_is_a_batch(lmdb, make):
    assert torch.equal(lmdb.__getitems__(make([5, 2, 23])).images, lmdb.__getitems__([5, 2, 23]).images)


@pytest.mark.parametrize("index", [24, -25, 10**9, -(2**63), 2**63, 2**64])
def test_out_of_range(lmdb, index):
    with pytest.raises(IndexError):
        lmdb[index]
    with pytest.raises(IndexError):
        lmdb.__getitems__([0, index])
    with pytest.raises(IndexError):
        lmdb.pack.record(index)
    with pytest.raises(IndexError):
        lmdb.pack.annotation(index)


@pytest.mark.parametrize("index", [1.0, "1", None, [1]])
def test_what_is_no_index(lmdb, index):
    with pytest.raises(TypeError):
        lmdb[index]
    with pytest.raises(TypeError):
        lmdb.__getitems__([0, index])


def test_slice_is_refused_with_the_way_to_do_it(lmdb):
    with pytest.raises(TypeError, match=r"no slices; use torch\.utils\.data\.Subset"):
        lmdb[2:4]


def test_a_for_loop_ends(lmdb):
    assert sum(1 for _ in lmdb) == 24


def test_transforms(make_pack):
    path = make_pack("raw", "hdf5")
    plain = PackedDataset(path)
    data = PackedDataset(path, lambda image: image.float() / 255, lambda target: f"class {target}")
    image, target = data[3]
    assert torch.equal(image, plain[3][0].float() / 255) and target == f"class {plain[3][1]}"
    assert same(list(data.__getitems__([3, 9])), [data[3], data[9]])
    assert data.targets == plain.targets  # as stored, like ImageFolder's


def test_unknown_decoder(make_pack):
    with pytest.raises(UsageError, match="must be one of auto, fast, simplejpeg, opencv, jpeg4py, lenient, got 'pil'"):
        PackedDataset(make_pack("raw", "lmdb"), decoder="pil")


def test_decoder_of_choice(make_pack):
    path = make_pack("jpeg", "lmdb")
    a, b = PackedDataset(path), PackedDataset(path, decoder="opencv")
    assert (a[0][0].int() - b[0][0].int()).abs().max() <= 3


def test_repr(lmdb):
    assert repr(lmdb).startswith("PackedDataset(<Pack ") and "24 records, lmdb raw" in repr(lmdb)
