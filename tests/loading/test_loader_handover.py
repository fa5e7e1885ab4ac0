"""What a batch looks like when it is handed over: its storage, memory format, record numbers, and formats of boxes."""

from __future__ import annotations

import io
import pickle
import time

import numpy as np
import pytest
import torch
from drawn import draw_shots
from loader_packs import RECORDS, alike, fresh

from packer import (
    BuildOptions,
    CenterCrop,
    CudaPrefetcher,
    PackedDataset,
    PackedLoader,
    RandomResizedCrop,
    build_pack,
    open_pack,
)
from packer.errors import UsageError
from packer.loading.to_device import Normalize, Transfer

pytestmark = pytest.mark.usefixtures("blocks")


@pytest.fixture(scope="module")
def boxed(tmp_path_factory):
    """9 images with VOC boxes alone, in several shards."""
    root = tmp_path_factory.mktemp("boxed")
    draw_shots(root / "src", 9)
    options = BuildOptions(str(root / "src"), str(root / "pack"), workers=1, labels=("voc",), shard_bytes=10_000)
    build_pack(options)
    return root / "pack"


def saved_bytes(thing):
    file = io.BytesIO()
    torch.save(thing, file)
    return len(file.getvalue())


# -- storage and format


@pytest.mark.parametrize("options", [{}, {"transform": torch.clone}, {"target_transform": int}, {"cache": "device"}])
def test_a_batch_is_saved_without_its_block(pack, options):
    for images, targets in PackedLoader(pack("raw"), 3, **options):
        assert images.untyped_storage().nbytes() == images.numel() == 3 * 360
        assert targets.untyped_storage().nbytes() == 3 * 8
        assert saved_bytes(images) < 3 * 360 + 2000 and len(pickle.dumps(targets)) < 1000


def test_boxes_of_a_batch_are_views_of_one_tensor_for_each_field(boxed):
    for _, targets in PackedLoader(boxed, 3, crop=CenterCrop(40)):
        for name in ("boxes", "labels"):
            storages = {target[name].untyped_storage().data_ptr() for target in targets if len(target[name])}
            total = sum(target[name].nbytes for target in targets)
            assert len(storages) == 1 and targets[0][name].untyped_storage().nbytes() == total


def test_contiguous_format_on_request(pack):
    plain = list(PackedLoader(pack("raw"), 4))
    for options in ({}, {"dtype": torch.float32}, {"transform": lambda image: image / 2}, {"cache": "device"}):
        loader = PackedLoader(pack("raw"), 4, memory_format=torch.contiguous_format, **options)
        for (images, _), (expected, _) in zip(loader, plain, strict=True):
            flat = images.view(len(images), -1)
            assert images.is_contiguous()
            if not options:
                assert torch.equal(flat, expected.reshape(len(images), -1))
    loader = PackedLoader(pack("raw"), 4, memory_format=torch.channels_last, transform=lambda image: image.contiguous())
    assert all(images.is_contiguous(memory_format=torch.channels_last) for images, _ in loader)


FLOATS = [
    {"dtype": torch.float32},
    {"mean": (0.5,), "std": (0.2,)},
    {"mean": (0.48, 0.45, 0.4), "std": (0.2, 0.3, 0.1)},
]


@pytest.mark.parametrize("planar", [False, True])
@pytest.mark.parametrize(("kind", "options"), [
    ("raw", FLOATS[0]), ("raw", FLOATS[2]), ("jpeg", FLOATS[2]), ("photos", FLOATS[2]), ("ragged", FLOATS[2]),
    ("gray", FLOATS[1]), ("gray16", FLOATS[0]), ("gray16", FLOATS[1]),
])  # fmt: skip
def test_threads_normalize_as_the_device_does(pack, kind, options, planar, monkeypatch):
    """The same bits as `Normalize` of the bytes, also in memory that is used again."""
    monkeypatch.setattr("packer.loading.pipeline.FLOATS_AT_ONCE", 3)
    memory_format = torch.contiguous_format if planar else torch.channels_last
    crop = {"crop": RandomResizedCrop((9, 11)), "flip": True} if kind != "raw" else {}
    stored = PackedLoader(pack(kind), 5, shuffle=True, **crop)
    loader = PackedLoader(pack(kind), 5, shuffle=True, memory_format=memory_format, **crop, **options)
    assert loader._transfer.normalize.nothing
    normalize = Normalize(memory_format=memory_format, **options)
    for _ in range(2):
        kept = list(loader)
        for (values, labels), (images, its) in zip(kept, stored, strict=True):
            assert values.dtype == torch.float32 and values.is_contiguous(memory_format=memory_format)
            assert torch.equal(values, normalize(images)) and torch.equal(labels, its)
            assert values.untyped_storage().nbytes() == 4 * values.numel()


@pytest.mark.parametrize("options", [
    {"crop": CenterCrop(8)}, {"crop": CenterCrop(8), "dtype": torch.float32}, {"views": {"a": (2, CenterCrop(8))}},
], ids=str)  # fmt: skip
@pytest.mark.parametrize("kind", ["raw", "gray", "boxes"])
@pytest.mark.parametrize("form", [{}, {"memory_format": torch.contiguous_format}], ids=str)
def test_arrays_of_numpy_in_the_memory_of_the_batch(pack, kind, options, form):
    plain = PackedLoader(pack(kind), 4, with_index=True, **options)
    loader = PackedLoader(pack(kind), 4, with_index=True, output="numpy", **form, **options)
    for (arrays, targets, records), (images, its, numbers) in zip(loader, plain, strict=True):
        array, image = (one["a"] if "views" in options else one for one in (arrays, images))
        assert np.array_equal(array, image.numpy() if form else image.permute(0, 2, 3, 1).numpy())
        assert array.flags.c_contiguous and array.flags.writeable and np.array_equal(records, numbers.numpy())
        if kind != "boxes":
            assert isinstance(targets, np.ndarray) and np.array_equal(targets, its.numpy())
            continue
        found, wanted = (one["a"] if "views" in options else one for one in (targets, its))
        for target, expected in zip(found, wanted, strict=True):
            assert isinstance(target["boxes"], np.ndarray) and target["boxes"].dtype == np.float32
            assert np.array_equal(target["boxes"], expected["boxes"].numpy())


def test_any_device_that_torch_can_use(pack):
    """Told by trying: "meta" stands for those that are not here. A copy there ends before its memory is used again."""
    loader = PackedLoader(pack("raw"), 4, device="meta", mean=(0.5,) * 3, std=(0.2,) * 3, with_index=True)
    for images, labels, records in loader:
        assert images.device.type == labels.device.type == records.device.type == "meta"
        assert images.dtype == torch.float32 and images.shape[1:] == (3, 10, 12)
    assert loader._transfer._stream is None and not loader._host.work.pinned


def test_channels_last_is_handed_over_without_a_copy(pack, monkeypatch):
    def copied(*arguments, **options):
        raise AssertionError("a copy")

    loader = PackedLoader(pack("raw"), 4)
    monkeypatch.setattr(torch.Tensor, "contiguous", copied)
    assert len(list(loader)) == 7


def test_a_slow_target_transform_keeps_nobody_waiting(pack):
    calls = []

    def slow(target):
        calls.append(1)
        time.sleep(0.002)
        return target

    iteration = iter(PackedLoader(pack("raw"), 2, target_transform=slow, threads=2, prefetch=1))
    next(iteration)
    assert len(calls) < RECORDS
    iteration.close()


# -- which records


def test_a_subset_and_the_numbers_of_its_records(pack):
    chosen = np.array([20, 3, 7, 11, 26])
    samples = fresh(pack("raw"))
    loader = PackedLoader(pack("raw"), 2, indices=chosen, with_index=True)
    batches = list(loader)
    assert len(loader) == 3 and torch.cat([records for *_, records in batches]).tolist() == chosen.tolist()
    for images, targets, records in batches:
        assert records.dtype == torch.int64
        for image, target, record in zip(images, targets, records.tolist(), strict=True):
            assert torch.equal(image, samples[record][0]) and target == samples[record][1]
    shuffled = PackedLoader(pack("raw"), 2, indices=chosen, shuffle=True, seed=1, with_index=True)
    assert sorted(torch.cat([records for *_, records in shuffled]).tolist()) == sorted(chosen.tolist())


@pytest.mark.parametrize("options", [{}, {"cache": "device"}, {"transform": torch.clone}, {"dtype": torch.float32}])
def test_numbers_follow_a_shuffled_epoch(pack, options):
    loader = PackedLoader(pack("raw"), 4, shuffle=True, seed=2, with_index=True, **options)
    found = torch.cat([records for *_, records in loader]).numpy()
    assert np.array_equal(found, loader.sampler.order(0))


def test_image_id_is_the_record(boxed):
    data = PackedDataset(boxed)
    assert [data[i]["image_id"] if isinstance(data[i], dict) else data[i][1]["image_id"] for i in range(9)] == list(
        range(9)
    )
    for _, targets, records in PackedLoader(boxed, 4, shuffle=True, seed=3, with_index=True, crop=CenterCrop(40)):
        assert [target["image_id"] for target in targets] == records.tolist()
        for target, record in zip(targets, records.tolist(), strict=True):
            assert set(target) == set(data[record][1])


# -- boxes


def test_an_offset_leaves_zero_to_the_background(boxed):
    plain = [target["labels"] for _, target in fresh(boxed)]
    for data in (PackedDataset(boxed, label_offset=1), boxed):
        options = {} if isinstance(data, PackedDataset) else {"label_offset": 1}
        found = [target["labels"] for _, targets in PackedLoader(data, 4, **options) for target in targets]
        assert alike(found, [labels + 1 for labels in plain])
    assert alike([PackedDataset(boxed, label_offset=1)[i][1]["labels"] for i in range(9)], [one + 1 for one in plain])
    again = PackedLoader(PackedDataset(boxed, label_offset=1), 4, label_offset=0)
    assert alike([target["labels"] for _, targets in again for target in targets], plain)


def same(target):
    return target


def both(image, target):
    return image, target


@pytest.mark.parametrize(
    "options", [{}, {"target_transform": same}, {"transforms": lambda image, target: (image, target)}]
)
@pytest.mark.parametrize("crop", [None, CenterCrop((24, 32))])
def test_yolo_rows(boxed, options, crop):
    options = {**options, "crop": crop, "label_offset": 2}
    listed, rows = (list(PackedLoader(boxed, 4, collate=how, **options)) for how in ("list", "yolo"))
    for (images, targets), (same_images, found) in zip(listed, rows, strict=True):
        assert torch.equal(images, same_images) and found.dtype == torch.float32 and found.shape[1] == 6
        height, width = images.shape[2:]
        expected = []
        for number, target in enumerate(targets):
            for (x1, y1, x2, y2), label in zip(target["boxes"].tolist(), target["labels"].tolist(), strict=True):
                expected.append([number, label, (x1 + x2) / 2 / width, (y1 + y2) / 2 / height, (x2 - x1) / width,
                                 (y2 - y1) / height])  # fmt: skip
        assert torch.allclose(found, torch.tensor(expected).reshape(-1, 6))


@pytest.mark.parametrize("options", [{}, {"target_transform": same}])
def test_padded_boxes(boxed, options):
    listed, padded = (list(PackedLoader(boxed, 4, collate=how, **options)) for how in ("list", "padded"))
    for (images, targets), (_, found) in zip(listed, padded, strict=True):
        height, width = images.shape[2:]
        most = max(len(target["boxes"]) for target in targets)
        assert found["mask"].shape == (len(images), most) and found["boxes"].shape == (len(images), most, 4)
        assert found["image_id"].tolist() == [target["image_id"] for target in targets]
        for i, target in enumerate(targets):
            count = len(target["boxes"])
            assert found["mask"][i].tolist() == [True] * count + [False] * (most - count)
            assert torch.equal(found["labels"][i, :count], target["labels"])
            cx, cy, w, h = found["boxes"][i, :count].unbind(1)
            corners = torch.stack([cx - w / 2, cy - h / 2, cx + w / 2, cy + h / 2], 1)
            assert torch.allclose(corners * torch.tensor([width, height] * 2), target["boxes"], atol=1e-4)
            assert not found["boxes"][i, count:].any() and not found["labels"][i, count:].any()


@pytest.mark.parametrize("how", ["yolo", "padded"])
def test_a_batch_without_boxes(boxed, how):
    (_, targets), *_ = PackedLoader(boxed, 4, crop=CenterCrop(1), min_area=5, collate=how)
    if how == "yolo":
        assert targets.shape == (0, 6)
    else:
        assert targets["boxes"].shape == (4, 0, 4) and targets["mask"].shape == (4, 0)


def test_a_target_without_boxes_cannot_be_collated(boxed):
    with pytest.raises(UsageError, match='collate: "yolo" needs targets with boxes and labels'):
        list(PackedLoader(boxed, 4, collate="yolo", target_transform=lambda target: target["labels"]))


def test_targets_are_moved_as_whole_columns(boxed, monkeypatch):
    """Not as a tensor for each field of each image, each of which would be a copy to the GPU."""
    moved = []
    to_device = Transfer._tensor_to_device
    monkeypatch.setattr(Transfer, "_tensor_to_device", lambda *given: moved.append(given[1]) or to_device(*given))
    (_, targets), *_ = PackedLoader(boxed, 9, dtype=torch.float16)
    fields = [name for name, value in targets[0].items() if isinstance(value, torch.Tensor)]
    assert len(targets) == 9 and len([tensor for tensor in moved if tensor.dim() < 4]) == len(fields)


def test_a_prefetcher_takes_every_format(boxed):
    for how in ("list", "yolo", "padded"):
        loader = PackedLoader(boxed, 4, collate=how, with_index=True)
        assert alike(list(CudaPrefetcher(loader, "cpu")), list(PackedLoader(boxed, 4, collate=how, with_index=True)))


def test_targets_of_a_batch_are_those_of_the_index(pack, container):
    """Columns of several shards, read for a batch, against the annotation of each record."""
    opened = open_pack(pack("boxes", container))
    for _, targets in PackedLoader(opened, 4, shuffle=True, seed=1):
        for target in targets:
            annotation = opened.annotation(target["image_id"])
            assert np.array_equal(target["boxes"].numpy(), annotation.boxes)
            assert np.array_equal(target["labels"].numpy(), annotation.box_labels)
            assert np.array_equal(target["landmarks"].numpy(), annotation.landmarks)
            assert target["label"] == annotation.label
