"""Formats of raw arrays: .npy, IDX, HDF5; and CIFAR, whose colors lie in planes."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from drawn import image_file

from packer import BuildOptions, PackedLoader, adopt, build_pack, open_pack
from packer.errors import UsageError
from packer.format.pack import Pack
from packer.format.verify import verify

RNG = np.random.default_rng(0)
PIXELS = RNG.integers(0, 256, (6, 5, 4, 3)).astype(np.uint8)


def adopted(path: Path, **options: Any) -> Pack:
    adopt([path], path.parent / "pack", overwrite=True, **options)
    assert verify(path.parent / "pack", deep=True).problems == ()
    return open_pack(path.parent / "pack")


def write_idx(path: Path, array: np.ndarray) -> Path:
    head = struct.pack(">HBB", 0, 8, array.ndim) + b"".join(struct.pack(">I", side) for side in array.shape)
    path.write_bytes(head + array.tobytes())
    return path


@pytest.mark.parametrize("kind", ["rgb", "gray", "gray1", "wide"])
def test_npy(kind: str, tmp_path: Path) -> None:
    shapes = {"rgb": PIXELS, "gray": PIXELS[..., 0], "gray1": PIXELS[..., :1], "wide": PIXELS.astype("<u2") * 200}
    array = np.ascontiguousarray(shapes[kind])
    np.save(tmp_path / "x.npy", array)
    np.save(tmp_path / "y.npy", np.array([2, 0, 1, 1, 0, 2]))
    pack = adopted(tmp_path / "x.npy", labels=[str(tmp_path / "y.npy")])
    assert pack.manifest.encoding == "raw" and pack.classes == ["0", "1", "2"]
    assert pack.manifest.mode == {"rgb": "rgb", "gray": "gray", "gray1": "gray", "wide": "unchanged"}[kind]
    for i in range(6):
        assert (pack.image(i).squeeze() == array[i].squeeze()).all()
    assert [pack.annotation(i).label for i in range(6)] == [2, 0, 1, 1, 0, 2]
    if kind == "rgb":
        images, labels = next(iter(PackedLoader(pack.path, batch_size=6)))
        assert (images.numpy().transpose(0, 2, 3, 1) == array).all() and labels.tolist() == [2, 0, 1, 1, 0, 2]


def test_npy_with_names(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", PIXELS[:2])
    for names in (["dog", "ant"], [b"dog", b"ant"]):
        np.save(tmp_path / "y.npy", np.array(names))
        pack = adopted(tmp_path / "x.npy", labels=[str(tmp_path / "y.npy")])
        assert pack.classes == ["ant", "dog"] and [pack.annotation(i).label for i in (0, 1)] == [1, 0]


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (PIXELS.transpose(0, 3, 1, 2).copy(), "planes|no rows of pixels|not of uint8"),
        (PIXELS.astype(np.float32), "no rows of pixels"),
        (np.asfortranarray(PIXELS), "Fortran order"),
        (PIXELS[0, 0], "no rows of pixels"),
        (PIXELS.astype(">u2"), "no rows of pixels"),
        (np.array([{}, {}]), "Python objects"),
    ],
)
def test_other_arrays_are_refused(array: np.ndarray, message: str, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((6, 3, 8, 8), np.uint8) if array.shape == (6, 3, 5, 4) else array)
    with pytest.raises(UsageError, match=message):
        adopt([tmp_path / "x.npy"], tmp_path / "pack")


def test_other_labels_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", PIXELS)
    for labels, message in (
        (np.zeros(5, int), "6 images"),
        (np.zeros((6, 2)), "not a list"),
        (np.zeros(6), "not a list"),
    ):
        np.save(tmp_path / "y.npy", labels)
        with pytest.raises(UsageError, match=message):
            adopt([tmp_path / "x.npy"], tmp_path / "pack", labels=[str(tmp_path / "y.npy")])
    with pytest.raises(UsageError, match="one for each"):
        adopt([tmp_path / "x.npy"], tmp_path / "pack", labels=["a", "b"])
    data = (tmp_path / "x.npy").read_bytes()
    (tmp_path / "x.npy").write_bytes(data[:-1])
    with pytest.raises(UsageError, match="truncated"):
        adopt([tmp_path / "x.npy"], tmp_path / "pack")


def test_mnist(tmp_path: Path) -> None:
    images = write_idx(tmp_path / "train-images-idx3-ubyte", PIXELS[..., 0].copy())
    write_idx(tmp_path / "train-labels-idx1-ubyte", np.array([5, 0, 4, 1, 9, 2], np.uint8))
    for pack in (adopted(images), adopted(images, labels=[str(tmp_path / "train-labels-idx1-ubyte")])):
        assert [pack.annotation(i).label for i in range(6)] == [5, 0, 4, 1, 9, 2] and len(pack.classes) == 10
        assert (pack.image(3)[..., 0] == PIXELS[3, ..., 0]).all() and pack.manifest.mode == "gray"
    (tmp_path / "folder").mkdir()
    for name in ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"):
        (tmp_path / name).rename(tmp_path / "folder" / name)
    adopt([tmp_path / "folder"], tmp_path / "pack", overwrite=True)
    assert len(open_pack(tmp_path / "pack")) == 6


@pytest.mark.parametrize("data", [b"\0\0\x08\3\0\0\0\2\0", b"\0\0\x08\3" + bytes([0, 8, 3, 0]) + bytes(30)])
def test_an_idx_file_that_is_none(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(data)
    with pytest.raises(UsageError, match=r"truncated|0x0 pixels"):
        adopt([tmp_path / "a"], tmp_path / "pack")


def test_cifar_is_refused_with_the_next_step(tmp_path: Path) -> None:
    (tmp_path / "data_batch_1.bin").write_bytes((b"\3" + bytes(3072)) * 4)
    with pytest.raises(UsageError, match=r"three planes.*transpose"):
        adopt([tmp_path / "data_batch_1.bin"], tmp_path / "pack")
    (tmp_path / "data_batch_1").write_bytes(b"\x80\x04}q\x00.")
    with pytest.raises(UsageError, match="never reads"):
        adopt([tmp_path / "data_batch_1"], tmp_path / "pack")


@pytest.mark.parametrize("layout", ["contiguous", "chunked", "bytes", "chunked-bytes"])
def test_hdf5(layout: str, tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w", userblock_size=512 if layout == "bytes" else 0) as file:
        file["labels"] = np.array([1, 0, 1, 2, 0, 1])
        if layout == "contiguous":
            file["images"] = PIXELS
        elif layout == "chunked":
            file.create_dataset("images", data=PIXELS, chunks=(4, 5, 4, 3))
        else:
            options = {"chunks": (4,)} if layout == "chunked-bytes" else {}
            dataset = file.create_dataset("images", (6,), h5py.vlen_dtype(np.uint8), **options)
            for i in range(6):
                dataset[i] = np.frombuffer(image_file(i), np.uint8)
    pack = adopted(tmp_path / "x.h5")
    assert [pack.annotation(i).label for i in range(6)] == [1, 0, 1, 2, 0, 1]
    for i in range(6):
        if layout in ("chunked", "contiguous"):
            assert (pack.image(i) == PIXELS[i]).all()
        else:
            assert bytes(pack.record(i)) == image_file(i)


def test_hdf5_that_cannot_be_read_in_place(tmp_path: Path) -> None:
    path = tmp_path / "x.h5"
    other = tmp_path / "other.h5"
    with h5py.File(other, "w") as file:
        file["images"] = PIXELS
    cases: list[tuple[dict[str, Any], str]] = [
        ({"compression": "gzip"}, "is compressed"),
        ({"chunks": (1, 2, 4, 3)}, "cut images in pieces"),
    ]
    for options, message in cases:
        with h5py.File(path, "w") as file:
            file.create_dataset("images", data=PIXELS, **options)
        with pytest.raises(UsageError, match=rf"{message}.*h5repack"):
            adopt([path], tmp_path / "pack")
    with h5py.File(path, "w") as file:
        file["images"] = h5py.ExternalLink("other.h5", "/images")
    with pytest.raises(UsageError, match="no dataset of images"):
        adopt([path], tmp_path / "pack")
    data = other.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(UsageError, match="HDF5"):
        adopt([path], tmp_path / "pack")


def test_packers_own_hdf5_without_its_pack(tmp_path: Path) -> None:
    from packs import draw_kind

    options = draw_kind("boxes", tmp_path / "s")
    build_pack(BuildOptions(str(tmp_path / "s"), str(tmp_path / "p.hdf5"), encode="raw", **options))  # type: ignore[arg-type]
    old = open_pack(tmp_path / "p.hdf5")
    adopt(sorted((tmp_path / "p.hdf5").glob("*.hdf5")), tmp_path / "pack")
    pack = open_pack(tmp_path / "pack")
    assert pack.paths == old.paths
    for i in range(len(old)):
        assert (pack.image(i) == old.image(i)).all()
        np.testing.assert_array_equal(pack.annotation(i).boxes, old.annotation(i).boxes)
