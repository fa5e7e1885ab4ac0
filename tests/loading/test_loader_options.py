"""Options are checked where they come in, and each error says what to write instead."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch
from loader_packs import RECORDS, alike, fresh
from torch.utils.data import RandomSampler, Subset

from packer import CenterCrop, PackedDataset, PackedLoader, RandomResizedCrop, open_pack
from packer.errors import NotInstalled, UsageError
from packer.samplers import ShuffleSampler

REFUSED = {
    "flip=1": ({"flip": 1}, "flip: is 1, which may mean True or a chance; write True for 0.5, or 1.0 for always"),
    "flip=2.5": ({"flip": 2.5}, "flip: must be True, False or a chance from 0.0 to 1.0, got 2.5"),
    "flip=nan": ({"flip": float("nan")}, "flip: must be True, False or a chance"),
    "flip=yes": ({"flip": "yes"}, "flip: must be True, False or a chance"),
    "crop=224": ({"crop": 224}, "crop: must be a crop of packer, got 224; write packer.RandomResizedCrop(224)"),
    "crop class": ({"crop": CenterCrop}, "write packer.RandomResizedCrop(224) to train, packer.CenterCrop(224)"),
    "sampler": ({"sampler": RandomSampler(range(27))}, "sampler: must be one of packer.samplers, got RandomSampler"),
    "num_workers": ({"num_workers": 4}, "num_workers: is an argument of torch's DataLoader; write threads="),
    "collate_fn": ({"collate_fn": list}, 'collate_fn: is an argument of torch\'s DataLoader; write collate="list"'),
    "mean=nan": ({"mean": (0.5, float("nan"), 0.5), "std": (1, 1, 1)}, "mean and std must have one number per channel"),
    "mean of text": ({"mean": "abc", "std": (1, 1, 1)}, "mean and std must have one number per channel"),
    "mean of bytes": ({"mean": (124.0,) * 3, "std": (58.0,) * 3}, "mean and std are for values from 0 to 1: divide"),
    "std below 0": ({"mean": (0.5,) * 3, "std": (-1,) * 3}, "mean and std must have one number per channel, std above"),
    "device": ({"device": "gpu"}, "device: must be a device of torch, got 'gpu'; write \"cuda\" or \"cpu\""),
    "vulkan": ({"device": "vulkan"}, "device: is 'vulkan', which torch cannot use here: PyTorch is not linked with"),
    "output": ({"output": "tf"}, 'output: must be "torch" or "numpy" or "jax", got \'tf\''),
    "numpy elsewhere": ({"output": "numpy", "device": "meta"}, 'output: is "numpy", whose arrays are on the CPU, but'),
    "bfloat16": ({"output": "numpy", "dtype": torch.bfloat16}, 'output: is "numpy", which has no bfloat16; write'),
    "no device": ({"device": None}, "device: must be a device of torch, got None"),
    "in_order": ({"in_order": True}, "in_order: is an argument of torch's DataLoader; leave it out"),
    "mean of two": ({"mean": (0.5, 0.5), "std": (1, 1)}, "mean: has 2 numbers, but the images have 3 channels"),
    "int8": ({"dtype": torch.int8}, "dtype is torch.int8, which cannot hold 0 to 255: use torch.float32"),
    "numpy's": ({"dtype": np.float32}, "dtype must be a torch.dtype such as torch.float32"),
    "decoder": ({"decoder": "nonsense"}, "decoder: must be one of auto, fast, simplejpeg, opencv, jpeg4py, lenient"),
    "collate": ({"collate": "coco"}, 'collate: must be "list" or "dict" or "yolo" or "padded", got \'coco\''),
    "yolo": ({"collate": "yolo"}, 'collate: is "yolo", which needs boxes, but the pack has none'),
    "label_offset": ({"label_offset": 1}, "label_offset: is for boxes, but"),
    "indices": ({"indices": [1, 99]}, "indices: must be from 0 to 26, got 1 to 99"),
    "joint": ({"transforms": min, "transform": abs}, "transforms: cannot be combined with transform; do all of it in"),
    "mixup": ({"mixup": 1.0}, "mixup: "),
    "min_area=nan": ({"min_area": float("nan")}, "min_area: must be an area in pixels, 0 or more, got nan"),
    "min_area=-1": ({"min_area": -1}, "min_area: must be an area in pixels, 0 or more, got -1"),
    "min_area=None": ({"min_area": None}, "min_area: must be an area in pixels, 0 or more, got None"),
    "format": ({"memory_format": "channels_last"}, "memory_format must be torch.channels_last or torch.contiguous_"),
    "preserve": ({"memory_format": torch.preserve_format}, "torch.contiguous_format, got torch.preserve_format"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_meant_is_refused_with_what_to_write(pack, name):
    options, message = REFUSED[name]
    with pytest.raises(ValueError) as refused:
        PackedLoader(pack("raw"), 4, **options)
    assert message in str(refused.value) and "\n" not in str(refused.value)


def test_a_subset_of_torch_is_given_as_indices(pack):
    subset = Subset(PackedDataset(pack("raw")), [3, 1])
    with pytest.raises(
        UsageError, match=r"got Subset; write PackedLoader\(subset.dataset, ..., indices=subset.indices"
    ):
        PackedLoader(subset, 4)
    ((_, _, records),) = PackedLoader(subset.dataset, 4, indices=subset.indices, with_index=True)
    assert records.tolist() == [3, 1]


def test_an_unknown_argument_is_a_type_error_with_a_guess(pack):
    with pytest.raises(TypeError, match="unexpected argument 'shufle'; did you mean shuffle"):
        PackedLoader(pack("raw"), 4, shufle=True)
    with pytest.raises(TypeError, match=r"unexpected argument 'xyzzy'$"):
        PackedLoader(pack("raw"), 4, xyzzy=True)


def test_a_chance_of_numpy_is_a_chance(pack):
    for given, chance in (
        (np.True_, 0.5),
        (np.False_, 0.0),
        (True, 0.5),
        (0, 0.0),
        (np.float32(0.25), 0.25),
        (1.0, 1.0),
    ):
        assert PackedLoader(pack("raw"), 4, flip=given)._augmentation.flip == chance


def test_a_sampler_brings_its_own_indices(pack):
    opened = open_pack(pack("raw"))
    with pytest.raises(UsageError, match="indices: cannot be combined with a sampler"):
        PackedLoader(opened, 4, sampler=ShuffleSampler(opened), indices=[1, 2])


def test_sixteen_bits_need_a_dtype_that_holds_them(pack):
    with pytest.raises(UsageError, match=r"dtype: is torch.uint8, which cannot hold 16-bit images"):
        PackedLoader(pack("gray16"), 4, dtype=torch.uint8)
    PackedLoader(pack("gray16"), 4, dtype=torch.int32)


def test_the_decoder_given_to_the_loader_wins(pack):
    data = PackedDataset(pack("jpeg"), decoder="simplejpeg")
    assert PackedLoader(data, 4)._batches.filler.decoder == "simplejpeg"
    assert PackedLoader(data, 4, decoder="opencv")._batches.filler.decoder == "opencv"
    with pytest.raises(UsageError, match="decoder: must be one of"):
        PackedLoader(data, 4, decoder="nonsense")


def test_a_dataset_is_made_of_an_open_pack(pack):
    opened = open_pack(pack("raw"))
    data = PackedDataset(opened)
    assert data.pack is opened and alike([data[i] for i in range(len(data))], fresh(pack("raw")))
    for kind in (PackedDataset, lambda given: PackedLoader(given, 4)):
        with pytest.raises(UsageError, match="data: must be the directory of a pack, or an open one, got list"):
            kind([opened])


def test_a_huge_batch_takes_the_memory_of_its_records(pack):
    for size in (10**9, 2**40):
        ((images, targets),) = PackedLoader(pack("raw"), size)
        assert len(images) == len(targets) == RECORDS
        assert images.untyped_storage().nbytes() == RECORDS * 360


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 has no notes")
@pytest.mark.parametrize("name", ["transform", "target_transform", "transforms"])
@pytest.mark.parametrize("kind", ["raw", "boxes"])
def test_a_failing_transform_names_its_record(pack, name, kind):
    path = pack(kind)
    count = 0

    def fails(*arguments):
        nonlocal count
        count += 1
        if count == 4:
            raise ZeroDivisionError
        return arguments if len(arguments) > 1 else arguments[0]

    def one(sample):
        return fails(sample)

    def both(image, target):
        return fails(image, target)

    function = both if name == "transforms" else one
    with pytest.raises(ZeroDivisionError) as failed:
        list(PackedLoader(path, 2, threads=1, **{name: function}))
    assert failed.value.__notes__ == [f"in a transform of record 00000003 of {path}"]
    count = 3
    with pytest.raises(ZeroDivisionError) as failed:
        PackedDataset(path, **{name: function})[5]
    assert failed.value.__notes__ == [f"in a transform of record 00000005 of {path}"]


@pytest.mark.parametrize(
    "options", [{"mixup": 1.0, "dtype": torch.float32}, {"cutmix": 1.0}, {"color_jitter": (0.4,)}, {"augment": "x"}]
)
def test_mixing_without_torchvision_says_what_to_install(pack, monkeypatch, options):
    monkeypatch.setitem(sys.modules, "torchvision", None)
    monkeypatch.delitem(sys.modules, "torchvision.transforms.v2", raising=False)
    with pytest.raises(NotInstalled, match="needs torchvision, which is not installed; pip install torchvision"):
        PackedLoader(pack("raw"), 4, **options)


def test_a_crop_of_ones_own_is_taken(pack):
    class Mine:
        num_random = 0

        def output(self, shape):
            return 4, 4

        def regions(self, widths, heights, random):
            return RandomResizedCrop(4).regions(widths, heights, np.zeros((len(widths), 22)))

    assert next(iter(PackedLoader(pack("raw"), 4, crop=Mine())))[0].shape == (4, 3, 4, 4)


WRONG = {
    "transform": (lambda image: image.numpy(), "transform: returns ndarray for an image, which must be a tensor"),
    "transforms": (lambda image, target: image, "transforms: must return an image and a target, got Tensor"),
    "transform ": (
        lambda image, generator: image[:, : int(torch.randint(1, 5, (), generator=generator))],
        "transform: returns images of different shapes, such as (3, ",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_a_transform_must_return(pack, name):
    function, message = WRONG[name]
    with pytest.raises(UsageError) as refused:
        list(PackedLoader(pack("raw"), 8, **{name.strip(): function}))
    assert str(refused.value).startswith(message)
