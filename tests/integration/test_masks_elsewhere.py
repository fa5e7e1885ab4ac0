"""Masks as other readers see them: each format's own library finds the ids of `pack.mask` in packs that were built or
converted."""

from __future__ import annotations

import importlib.util
import io
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from drawn_masks import COLORS, Mask, draw_mask, image_of, picture, write_files
from numpy.typing import NDArray
from PIL import Image
from running import good

from packer import BuildOptions, Pack, build_pack, convert, open_pack

pytestmark = pytest.mark.filterwarnings("ignore")
RECORDS = 7
Pairs = tuple[list[NDArray[Any]], list[NDArray[Any]]]
"""Images (height, width, channels) and masks (height, width), in the order of the pack."""


def ids_in(data: bytes) -> NDArray[Any]:
    """Decode a mask's PNG; the decoders of webdataset turn gray levels into colors, and cut those of 16 bits."""
    return np.asarray(Image.open(io.BytesIO(data)))


def read_webdataset(shards: list[Path]) -> Pairs:
    webdataset = pytest.importorskip("webdataset", reason="webdataset is optional, and not installed here")
    files = webdataset.WebDataset([str(path) for path in shards], shardshuffle=False)
    samples = list(files.decode(webdataset.handle_extension("mask.png", ids_in), "pil"))
    kind = next(name for name in ("jpg", "png", "npy") if name in samples[0])
    return [np.asarray(one[kind]) for one in samples], [one["mask.png"] for one in samples]


def read_datasets(shards: list[Path]) -> Pairs:
    datasets = pytest.importorskip("datasets", reason="datasets is optional, and not installed here")
    with tempfile.TemporaryDirectory() as cache:
        files = [str(path) for path in shards]
        rows = datasets.load_dataset("parquet", data_files=files, split="train", cache_dir=cache)
        assert {name for name, kind in rows.features.items() if kind == datasets.Image()} == {"image", "mask"}
        return [np.asarray(row["image"]) for row in rows], [np.asarray(row["mask"]) for row in rows]


TENSORFLOW = """
import io
import sys
import numpy as np
import tensorflow as tf

out, shards = sys.argv[1], sys.argv[2:]
names = ("image/encoded", "image/mask/encoded")
features = {name: tf.io.FixedLenFeature([], tf.string) for name in names}

def parse(example):
    row = tf.io.parse_single_example(example, features)
    return row["image/encoded"], row["image/mask/encoded"]

images, masks = [], []
for data, mask in tf.data.TFRecordDataset(shards).map(parse):
    is_raw = data.numpy().startswith(b"\\x93NUMPY")
    images.append(np.load(io.BytesIO(data.numpy())) if is_raw else tf.io.decode_image(data).numpy())
    depth = mask.numpy()[24]  # bits of a value: what is read as more is spread over their range
    masks.append(tf.io.decode_png(mask, dtype=tf.uint16 if depth == 16 else tf.uint8).numpy()[:, :, 0])
np.savez(out, **{f"image{i}": image for i, image in enumerate(images)}, **{f"mask{i}": m for i, m in enumerate(masks)})
"""


def read_tensorflow(shards: list[Path]) -> Pairs:
    if importlib.util.find_spec("tensorflow") is None:
        pytest.skip("tensorflow is optional, and not installed here")
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "found.npz")
        # a process of its own: TensorFlow brings its own protobuf and numpy
        command = [sys.executable, "-c", TENSORFLOW, str(out), *map(str, shards)]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-3000:]
        found = np.load(out)
        count = len(found.files) // 2
        return [found[f"image{i}"] for i in range(count)], [found[f"mask{i}"] for i in range(count)]


def read_h5py(shards: list[Path]) -> Pairs:
    images, masks = [], []
    for path in shards:
        with h5py.File(path) as file:
            assert file["mask"].ndim == 3
            images += list(file["images"][:])
            masks += list(file["mask"][:])
    return images, masks


def read_zarr(shards: list[Path]) -> Pairs:
    zarr = pytest.importorskip("zarr", reason="zarr is optional, and not installed here")
    images, masks = [], []
    for path in shards:
        store = zarr.storage.ZipStore(path, mode="r")
        group = zarr.open_group(store, mode="r")
        images += list(group["images"][:])
        masks += list(group["mask"][:])
        store.close()
    return images, masks


def tensorstore_of(driver: str) -> Callable[[list[Path]], Pairs]:
    """A reader of Zarr or N5; tensorstore shows the axes of N5 from the last to the first."""

    def read(shards: list[Path]) -> Pairs:
        ts = pytest.importorskip("tensorstore", reason="tensorstore is optional, and not installed here")
        found: dict[str, list[NDArray[Any]]] = {"images": [], "mask": []}
        for path in shards:
            for name, rows in found.items():
                store = {"driver": "zip", "base": f"file://{path}", "path": f"{name}/"}
                array = ts.open({"driver": driver, "kvstore": store}, read=True).result().read().result()
                rows += list(array if driver == "zarr3" else np.transpose(array))
        return found["images"], found["mask"]

    return read


def read_z5py(shards: list[Path]) -> Pairs:
    z5py = pytest.importorskip("z5py", reason="z5py is optional, and not installed here")
    images, masks = [], []
    for path in shards:
        with tempfile.TemporaryDirectory() as folder:
            zipfile.ZipFile(path).extractall(folder)
            file = z5py.File(folder, "r")
            images += list(file["images"][:])
            masks += list(file["mask"][:])
    return images, masks


def read_torch(shards: list[Path]) -> Pairs:
    files = [torch.load(path, weights_only=True, mmap=True) for path in shards]
    masks = [mask.numpy() for file in files for mask in file["mask"]]
    return [image.numpy() for file in files for image in file["images"]], masks


READERS: dict[str, tuple[str, Callable[[list[Path]], Pairs]]] = {
    "webdataset": ("webdataset", read_webdataset),
    "datasets": ("parquet", read_datasets),
    "tensorflow": ("tfrecord", read_tensorflow),
    "h5py": ("hdf5", read_h5py),
    "zarr": ("zarr", read_zarr),
    "tensorstore of Zarr": ("zarr", tensorstore_of("zarr3")),
    "tensorstore of N5": ("n5", tensorstore_of("n5")),
    "z5py": ("n5", read_z5py),
    "torch": ("pth", read_torch),
}
"""Library -> the format that it reads, and how."""
PICTURES = ("webdataset", "datasets", "tensorflow")
"""Those for which masks are PNGs beside images of any encoding; the others have arrays of masks beside raw images."""
DEEP = [reader for reader, (container, _) in READERS.items() if container != "n5"]
"""Those that show ids above 255 as numbers; N5, whose numbers are big-endian, has their bytes."""
CONVERSIONS = [*((reader, "raw") for reader in READERS), *((reader, "jpeg") for reader in PICTURES)]


def draw(root: Path, deep: bool = False) -> Path:
    """Draw images and their masks, with ids above 255 if `deep`."""
    files = {}
    for seed in range(RECORDS):
        mask: Mask = draw_mask(seed)
        files[f"images/im{seed}.png"] = image_of(mask)
        files[f"masks/im{seed}.png"] = picture(mask.astype(np.uint16) * 300 if deep else mask)
    return write_files(root, files)


def build(source: Path, out: Path, container: str, **options: Any) -> Pack:
    """Build a pack of several shards."""
    build_pack(BuildOptions(str(source), str(out), container, workers=1, shard_bytes=15_000, **options))
    return open_pack(out)


def shards_of(pack: Pack) -> list[Path]:
    """The files that the other readers open."""
    assert pack.manifest.encoding != "raw" or len(pack.manifest.shards) > 1
    return [Path(pack.path, shard.container.name) for shard in pack.manifest.shards]


def check(pack: Pack, found: Pairs) -> None:
    """Compare what a library finds with what the pack says, and the masks with the drawings."""
    images, masks = found
    assert len(images) == len(masks) == len(pack) == RECORDS
    for i, (image, mask) in enumerate(zip(images, masks, strict=True)):
        drawing = draw_mask(int(Path(pack.paths[i]).stem.removeprefix("im")))
        assert np.array_equal(mask, pack.mask(i)) and np.array_equal(mask > 0, drawing > 0)
        if pack.manifest.encoding == "raw":
            assert np.array_equal(image, pack.image(i)) and np.array_equal(image, COLORS[drawing])
        assert image.shape == (*mask.shape, 3)


@pytest.mark.parametrize("reader", READERS)
def test_a_build(reader: str, tmp_path: Path) -> None:
    container, read = READERS[reader]
    pack = build(draw(tmp_path / "set"), tmp_path / "pack", container, encode="raw")
    check(pack, read(shards_of(pack)))


@pytest.mark.parametrize("reader", DEEP)
def test_many_classes(reader: str, tmp_path: Path) -> None:
    container, read = READERS[reader]
    pack = build(draw(tmp_path / "set", deep=True), tmp_path / "pack", container, encode="raw")
    assert pack.manifest.masks["mask"].dtype == "uint16"
    check(pack, read(shards_of(pack)))


def test_many_classes_are_bytes_in_n5(tmp_path: Path) -> None:
    z5py = pytest.importorskip("z5py", reason="z5py is optional, and not installed here")
    pack = build(draw(tmp_path / "set", deep=True), tmp_path / "pack", "n5", encode="raw")
    zipfile.ZipFile(shards_of(pack)[0]).extractall(tmp_path / "shard")
    mask = z5py.File(tmp_path / "shard", "r")["mask"][:].view("<u2").reshape(-1, 30, 40)
    assert len(mask) > 1 and all(np.array_equal(one, pack.mask(i)) for i, one in enumerate(mask))


def test_webdataset_shows_masks_as_pictures(tmp_path: Path) -> None:
    """What it does of itself: "pill" has the ids of a mask, "pil" has them in three channels."""
    webdataset = pytest.importorskip("webdataset", reason="webdataset is optional, and not installed here")
    pack = build(draw(tmp_path / "set"), tmp_path / "pack", "webdataset", encode="jpeg")
    for kind, channels in (("pill", ()), ("pil", (3,))):
        files = webdataset.WebDataset([str(path) for path in shards_of(pack)], shardshuffle=False)
        masks = [np.asarray(one["mask.png"]) for one in files.decode(kind)]
        for i, mask in enumerate(masks):
            wanted = np.asarray(pack.mask(i))
            assert mask.shape == (30, 40, *channels) and (mask == wanted.reshape(30, 40, *(1 for _ in channels))).all()


@pytest.mark.parametrize("encode", ["jpeg", "copy"])
@pytest.mark.parametrize("reader", PICTURES)
def test_pictures_beside_pictures(reader: str, encode: str, tmp_path: Path) -> None:
    container, read = READERS[reader]
    pack = build(draw(tmp_path / "set"), tmp_path / "pack", container, encode=encode)
    found = read(shards_of(pack))
    check(pack, found)
    for image, i in zip(found[0], range(RECORDS), strict=True):
        # TensorFlow decodes JPEGs by a faster transform, which is some levels beside the exact one
        assert np.abs(image.astype(int) - pack.image(i)).max() <= (8 if encode == "jpeg" else 0)


@pytest.mark.parametrize(("reader", "encode"), CONVERSIONS)
def test_a_conversion_of_lmdb(reader: str, encode: str, tmp_path: Path) -> None:
    """Masks become what the readers of the new format expect, whatever they were in the old one."""
    container, read = READERS[reader]
    old = build(draw(tmp_path / "set"), tmp_path / "old", "lmdb", encode=encode)
    convert(old.path, tmp_path / "new", format=container)
    pack = open_pack(tmp_path / "new")
    assert all(np.array_equal(pack.mask(i), old.mask(i)) for i in range(RECORDS))  # type: ignore[arg-type]
    check(pack, read(shards_of(pack)))


@pytest.mark.parametrize("reader", PICTURES)
def test_images_of_different_sizes(reader: str, tmp_path: Path) -> None:
    container, read = READERS[reader]
    files = {}
    for seed in range(RECORDS):
        mask = draw_mask(seed, 40 + 3 * seed, 30 + 2 * (seed % 3))
        files[f"images/im{seed}.png"], files[f"masks/im{seed}.png"] = image_of(mask), picture(mask)
    pack = build(write_files(tmp_path / "set", files), tmp_path / "pack", container, encode="copy")
    images, masks = read(shards_of(pack))
    assert len({mask.shape for mask in masks}) == len(masks) == RECORDS
    for i, (image, mask) in enumerate(zip(images, masks, strict=True)):
        assert np.array_equal(mask, pack.mask(i)) and np.array_equal(image, COLORS[mask])


def test_an_image_without_a_mask_is_a_row_without_one(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets", reason="datasets is optional, and not installed here")
    source = draw(tmp_path / "set")
    (source / "masks" / "im2.png").unlink()
    pack = build(source, tmp_path / "pack", "parquet", encode="raw", mask="masks", missing_labels="empty")
    files = [str(path) for path in shards_of(pack)]
    rows = datasets.load_dataset("parquet", data_files=files, split="train", cache_dir=str(tmp_path / "cache"))
    assert [row["mask"] is None for row in rows] == [pack.mask(i) is None for i in range(RECORDS)]
    assert sum(row["mask"] is None for row in rows) == 1


def test_the_command(tmp_path: Path) -> None:
    old = build(draw(tmp_path / "set"), tmp_path / "old.lmdb", "lmdb", encode="raw")
    good("convert", old.path, tmp_path / "new.hdf5")
    pack = open_pack(tmp_path / "new.hdf5")
    check(pack, read_h5py(shards_of(pack)))


def test_an_array_of_masks_beside_jpegs(tmp_path: Path) -> None:
    """As asked for: masks of one size are an array beside images that are none."""
    pack = build(draw(tmp_path / "set"), tmp_path / "pack", "hdf5", encode="jpeg", mask_encode="raw")
    with h5py.File(shards_of(pack)[0]) as file:
        assert file["images"].ndim == 1 and file["mask"].shape[1:] == (30, 40)
        assert all(np.array_equal(mask, pack.mask(i)) for i, mask in enumerate(file["mask"][:]))
