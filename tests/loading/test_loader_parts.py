"""Loaders give every part of a record: pixels by the draw of the image, other kinds as they are."""

from __future__ import annotations

import io
import json
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from drawn_masks import write_files

from packer import CenterCrop, PackedDataset, PackedLoader, RandomResizedCrop, collate
from packer.errors import UsageError
from packer.format.pack import Pack
from packer.images.resize import resize_map
from packer.model.geometry import interpolate
from packer.packing import BuildOptions, build_pack

COUNT = 8


def picture(pixels: Any) -> bytes:
    return cv2.imencode(".png", pixels)[1].tobytes()


def npy(values: Any) -> bytes:
    stream = io.BytesIO()
    np.save(stream, values)
    return stream.getvalue()


def pixels(i: int, height: int, width: int) -> Any:
    return np.random.default_rng(i).integers(0, 256, (height, width, 3), np.uint8)


@pytest.fixture(scope="module", params=["raw", "png", "ragged"])
def pack(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pack:
    """The second image is as the first, and the map is its red channel."""
    files: dict[str, bytes] = {}
    for i in range(COUNT):
        image = pixels(i, 40 + (i if request.param == "ragged" else 0), 50)
        files[f"left/{i}.png"] = files[f"right/{i}.png"] = picture(image)
        if i != 3:
            files[f"red/{i}.npy"] = npy(image[..., 2].astype(np.float32))
            files[f"deep/{i}.png"] = picture(image[..., 2].astype(np.uint16) * 250)
            files[f"say/{i}.txt"] = f"image {i}".encode()
        files[f"vec/{i}.npy"] = npy(np.arange(i, i + 5, dtype=np.float16))
        files[f"info/{i}.json"] = json.dumps([i] * i).encode()
    root = tmp_path_factory.mktemp("parts")
    source = write_files(root / "set", files)
    parts = (
        "right=right:image", "red=red:map", "deep=deep:map", "say=say:text", "vec=vec:array", "info=info:json",
    )  # fmt: skip
    encode = "raw" if request.param == "ragged" else request.param
    options = {"labels": ("none",), "part": parts, "missing_labels": "empty", "encode": encode, "workers": 1}
    build_pack(BuildOptions(str(source), out=str(root / "p.lmdb"), **options))  # type: ignore[arg-type]
    return Pack(root / "p.lmdb")


def batches(pack: Pack, **options: Any) -> Any:
    given = {"batch_size": 4, "crop": RandomResizedCrop(24), "flip": 0.5, "seed": 5, "device": "cpu", **options}
    return PackedLoader(pack.path, **given)


def test_a_second_image_goes_with_the_first(pack: Pack) -> None:
    seen = 0
    for images, targets in batches(pack, collate="dict", parts=("right",)):
        assert torch.equal(images, targets["right"]) and images.shape[1:] == (3, 24, 24)
        seen += len(images)
    assert seen == COUNT


def test_a_second_image_has_the_filter_of_each_view(pack: Pack) -> None:
    filters = ("nearest", "area", "bilinear")
    views = {name: (2, RandomResizedCrop(18, interpolation=name)) for name in filters}
    for images, targets in batches(pack, crop=None, views=views, collate="dict", parts=("right",)):
        for name in views:
            assert torch.equal(images[name], targets[name]["right"]), name


def test_a_second_image_has_the_filter_of_a_crop_that_is_set(pack: Pack) -> None:
    loader = batches(pack, crop=RandomResizedCrop(18, interpolation="area"), collate="dict", parts=("right",))
    loader.set_crop(RandomResizedCrop(18, interpolation="nearest"))
    for images, targets in loader:
        assert torch.equal(images, targets["right"])


def test_a_second_image_is_never_normalized_in_place_of_the_first(pack: Pack) -> None:
    options = {"collate": "dict", "parts": ("right",), "mean": (0.5,) * 3, "std": (0.2,) * 3}
    for _, targets in batches(pack, **options):
        assert targets["right"].dtype == torch.uint8
    with pytest.raises(ValueError, match="are for uint8 images"):
        next(iter(batches(pack, transform=torch.Tensor.float, **options)))


def test_maps_are_cut_by_the_draw_of_the_image(pack: Pack) -> None:
    loader = batches(pack, collate="dict", parts=("red", "deep"), shuffle=True)
    filler, flips = loader._host.filler, 0
    for _, targets in loader:
        assert targets["red"].dtype == torch.float32 and targets["deep"].dtype == torch.uint16
        records = targets["image_id"].numpy()
        params = filler.params(records, 0)
        for name, ignore in (("red", None), ("deep", 0)):
            for row, record in enumerate(records.tolist()):
                whole = pack.part(record, name)
                wanted = np.full((24, 24), np.nan if ignore is None else 0, targets[name].numpy().dtype)
                if whole is not None:
                    wanted = resize_map(whole, params.regions[row].tolist(), (24, 24), ignore)
                wanted = wanted[:, ::-1] if params.flipped[row] else wanted
                assert np.array_equal(targets[name][row, 0].numpy(), wanted, equal_nan=True)
        flips += int(params.flipped.sum())
    assert 0 < flips < COUNT


def test_whole_maps_are_as_they_are_stored(pack: Pack) -> None:
    dataset = PackedDataset(pack.path, parts=("red", "right"))
    for record in range(COUNT):
        image, target = dataset[record]
        assert torch.equal(target["right"], image)
        wanted = pack.part(record, "red")
        assert (wanted is None) == (record == 3)
        wanted = np.full(image.shape[1:], np.nan, np.float32) if wanted is None else wanted
        assert np.array_equal(target["red"][0], wanted, equal_nan=True)


def test_beside_the_image_maps_are_unknown(pack: Pack) -> None:
    for _, targets in batches(pack, crop=CenterCrop(60), flip=0, collate="dict", parts=("red", "deep")):
        for record, red, deep in zip(targets["image_id"].tolist(), targets["red"], targets["deep"], strict=True):
            whole = pack.part(record, "red")
            if whole is not None:
                assert int(red.isfinite().sum()) == whole.size and np.count_nonzero(deep) == np.count_nonzero(whole)


def test_other_kinds_are_as_they_are(pack: Pack) -> None:
    found = {}
    for _, targets in batches(pack):
        for target in targets:
            found[target["image_id"]] = target
    for record, target in found.items():
        assert target["say"] == (None if record == 3 else f"image {record}")
        assert target["info"] == [record] * record
        assert target["vec"].dtype == torch.float16 and target["vec"].tolist() == [*range(record, record + 5)]
        assert {*target} == {"right", "red", "deep", "say", "vec", "info", "image_id"}


def test_one_dict_of_a_batch(pack: Pack) -> None:
    images, targets = next(iter(batches(pack, collate="dict", shuffle=False)))
    assert targets["vec"].shape == (4, 5) and targets["image_id"].tolist() == [0, 1, 2, 3]
    assert targets["say"] == ["image 0", "image 1", "image 2", None] and targets["info"][2] == [2, 2]
    assert targets["right"].shape == images.shape


def test_the_order_and_threads_do_not_matter(pack: Pack) -> None:
    first, second = (
        [targets["red"] for _, targets in batches(pack, collate="dict", threads=threads)] for threads in (1, 3)
    )
    assert all(np.array_equal(a, b, equal_nan=True) for a, b in zip(first, second, strict=True))


def test_only_what_is_asked_for_is_read(pack: Pack) -> None:
    _, targets = next(iter(batches(pack, parts=(), collate="dict")))
    assert {*targets} == {"image_id"}
    with pytest.raises(UsageError, match="names depth, which is not a part of"):
        batches(pack, parts=("depth",))


def test_a_data_loader_of_torch_takes_them(pack: Pack) -> None:
    dataset = PackedDataset(pack.path, parts=("vec", "say"))
    for workers in (0, 2):
        loader = torch.utils.data.DataLoader(dataset, 4, num_workers=workers, collate_fn=collate)
        found = [target["say"] for _, targets in loader for target in targets]
        assert found == [None if i == 3 else f"image {i}" for i in range(COUNT)]


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.float16, np.float32])
@pytest.mark.parametrize("region", [(0, 0, 9, 7), (2, 1, 5, 4), (1.25, 0.5, 6.5, 6.25)])
def test_interpolation_against_a_plain_formula(dtype: Any, region: tuple[float, ...]) -> None:
    values = (np.random.default_rng(1).random((7, 9)) * 200).astype(dtype)
    found = resize_map(values, region, (11, 6))  # type: ignore[arg-type]
    x, y, across, down = region
    for row in range(6):
        for column in range(11):
            cx, cy = x + (column + 0.5) * across / 11 - 0.5, y + (row + 0.5) * down / 6 - 0.5
            xs = np.clip([np.floor(cx), np.floor(cx) + 1], np.floor(x), min(np.ceil(x + across), 9) - 1).astype(int)
            ys = np.clip([np.floor(cy), np.floor(cy) + 1], np.floor(y), min(np.ceil(y + down), 7) - 1).astype(int)
            wx, wy = cx - np.floor(cx), cy - np.floor(cy)
            corners = values[np.ix_(ys, xs)].astype(np.float64)
            wanted = np.array([1 - wy, wy]) @ corners @ np.array([1 - wx, wx])
            assert abs(float(found[row, column]) - wanted) <= (0.501 if values.dtype.kind == "u" else 0.1)


@pytest.mark.parametrize("channels", [1, 3, 9])
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.float16, np.float32])
def test_whole_pixels_by_opencv_are_those_of_the_formula(dtype: Any, channels: int) -> None:
    random = np.random.default_rng(3)
    values = (random.random((30, 40, channels)) * 250).astype(dtype)
    values[random.random(values.shape) < 0.1] = 0 if values.dtype.kind == "u" else np.nan
    values = values[..., 0] if channels == 1 else values
    for region in ((0, 0, 40, 30), (3, 5, 20, 11), (7, 0, 1, 30)):
        for size in ((40, 30), (17, 23), (61, 8), (1, 1)):
            found, wanted = resize_map(values, region, size, 0), interpolate(values, region, size, 0)
            assert found.dtype == wanted.dtype and found.shape == wanted.shape
            assert np.array_equal(np.isnan(found), np.isnan(wanted)) and np.array_equal(found == 0, wanted == 0)
            off = np.abs(np.nan_to_num(found).astype(np.float64) - np.nan_to_num(wanted).astype(np.float64))
            assert off.max() <= (1 if values.dtype.kind == "u" else 0.15 if dtype == np.float16 else 1e-3)
