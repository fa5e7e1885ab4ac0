"""Formats of raw arrays: .npy, IDX, HDF5; and CIFAR, whose colors lie in planes."""

from __future__ import annotations

import os
import re
import struct
import zipfile
import zlib
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from drawn import image_file

from packer import BuildOptions, PackedLoader, adopt, build_pack, open_pack
from packer.errors import DamagedPack, UsageError
from packer.format.pack import Pack
from packer.format.verify import verify
from packer.repack.formats import ForeignFile, FormatOptions, open_format

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
        (PIXELS.transpose(0, 3, 1, 2).copy(), "planes|not rows of pixels|not of uint8"),
        (PIXELS.astype(np.float32), "not rows of pixels"),
        (np.asfortranarray(PIXELS), "Fortran order"),
        (PIXELS[0, 0], "not rows of pixels"),
        (PIXELS.astype(">u2"), "not rows of pixels"),
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


def rows_of_hdf5(path: Path) -> list[Any]:
    """What is read of a file, in this process."""
    with ForeignFile(str(path)) as file:
        return list(open_format("hdf5", FormatOptions())(file))


def write_hdf5(path: Path, **datasets: Any) -> None:
    """A file of six images; a value may be a function that makes the dataset."""
    content = {"images": PIXELS, "labels": np.arange(6) % 3, "class_names": [b"a", b"b", b"c"], **datasets}
    with h5py.File(path, "w") as file:
        for name, value in content.items():
            if callable(value):
                value(file, name)
            else:
                file[name] = value


SHAPES = {"images": ((6, 5, 4, 3), "u1"), "labels": ((6,), "i8"), "class_names": ((6,), "S2"), "keys": ((6,), "S2")}
SHAPES |= {"annotations": ((6,), "u1"), "annotation_offsets": ((7,), "i8"), "image_offsets": ((7,), "i8")}


def beside(name: str) -> dict[str, Any]:
    """What makes a file packer's own, if a dataset is read only of such files."""
    own = name in ("keys", "annotations", "annotation_offsets", "image_offsets")
    texts = {"annotations": np.zeros(0, "u1"), "annotation_offsets": np.zeros(7, "i8"), "keys": np.zeros(6, "S2")}
    return texts if own else {}


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("how", ["file", "pipe", "virtual"])
def test_nothing_of_other_files_is_read_with_an_hdf5_file(name: str, how: str, tmp_path: Path) -> None:
    (shape, kind), other = SHAPES[name], str(tmp_path / "other")

    def elsewhere(file: Any, name: str) -> None:
        if how == "virtual":
            layout = h5py.VirtualLayout(shape, kind)
            layout[:] = h5py.VirtualSource(other, "x", shape)
            file.create_virtual_dataset(name, layout)
        else:
            file.create_dataset(name, shape, kind, external=[(other, 0, int(np.prod(shape)) * np.dtype(kind).itemsize)])

    if how == "pipe":
        os.mkfifo(other)
    elif how == "file":
        (tmp_path / "other").write_text("root:x:0:0:root:/root:/bin/sh\n" * 20)
    write_hdf5(tmp_path / "x.h5", **{**beside(name), name: elsewhere})
    with pytest.raises((UsageError, DamagedPack), match="in other files"):
        rows_of_hdf5(tmp_path / "x.h5")


@pytest.mark.parametrize("name", ["annotation_offsets", "image_offsets", "labels", "class_names"])
def test_links_to_other_files_are_not_followed(name: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    write_hdf5(tmp_path / "x.h5", **{**beside(name), name: h5py.ExternalLink("pipe", "x")})
    rows = rows_of_hdf5(tmp_path / "x.h5")
    assert len(rows) == 6


def test_a_link_is_no_dataset_of_packer(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    write_hdf5(tmp_path / "x.h5", **{**beside("keys"), "keys": h5py.ExternalLink("pipe", "x")})
    with pytest.raises(UsageError, match="it has no dataset keys"):
        rows_of_hdf5(tmp_path / "x.h5")


@pytest.mark.parametrize("name", SHAPES)
def test_a_shape_alone_takes_no_memory(name: str, tmp_path: Path) -> None:
    def huge(file: Any, name: str) -> None:
        shape, kind = SHAPES[name]
        file.create_dataset(name, (4_000_000_000, *shape[1:]), kind, chunks=(1, *shape[1:]))

    others = {"images": huge} if name == "labels" else {}  # as many
    write_hdf5(tmp_path / "x.h5", **{**beside(name), **others, name: huge})
    with pytest.raises((UsageError, DamagedPack), match=r"larger than its file|more than it holds|chunked"):
        rows_of_hdf5(tmp_path / "x.h5")


@pytest.mark.parametrize("chunks", [None, (400,)])
def test_texts_that_are_all_the_same_long_one(chunks: Any, tmp_path: Path) -> None:
    def bomb(file: Any, name: str) -> None:
        texts = file.create_dataset(name, (4000,), h5py.string_dtype(), chunks=chunks, compression=chunks and "gzip")
        texts[:] = ["b" * 400_000, *["a"] * 3999]

    path = tmp_path / "x.h5"
    write_hdf5(path, class_names=bomb)
    with h5py.File(path, "r+") as file:
        texts = file["class_names"]
        offset = texts.id.get_offset()
        if chunks:
            first = zlib.decompress(texts.id.read_direct_chunk((0,))[1])[:16]
            for at in range(0, 4000, 400):
                texts.id.write_direct_chunk((at,), zlib.compress(first * 400))
    if not chunks:
        data = path.read_bytes()
        path.write_bytes(data[:offset] + data[offset : offset + 16] * 4000 + data[offset + 64_000 :])
    with pytest.raises(UsageError, match="longer than its file"):
        rows_of_hdf5(path)


@pytest.mark.parametrize("compression", [None, "gzip"])
def test_texts_of_any_length_are_labels(compression: Any, tmp_path: Path) -> None:
    def texts(file: Any, name: str) -> None:
        file.create_dataset(
            name, data=["ant", "bee", "", "ünï", "ant", "bee"], dtype=h5py.string_dtype(), compression=compression
        )

    write_hdf5(tmp_path / "x.h5", labels=texts)
    assert [row[3] for row in rows_of_hdf5(tmp_path / "x.h5")] == ["ant", "bee", None, "ünï", "ant", "bee"]


@pytest.mark.parametrize("encode", ["raw", "png"])
@pytest.mark.parametrize("container", ["hdf5", "zarr", "n5", "pth", "recordio"])
def test_packers_own_files_without_their_pack(container: str, encode: str, tmp_path: Path) -> None:
    from packs import draw_kind

    options = draw_kind("boxes", tmp_path / "s")
    build_pack(BuildOptions(str(tmp_path / "s"), str(tmp_path / "p"), container, encode=encode, **options))  # type: ignore[arg-type]
    old = open_pack(tmp_path / "p")
    files = [tmp_path / "p" / shard.container.name for shard in old.reader.shards]
    adopt(files, tmp_path / "pack")
    pack = open_pack(tmp_path / "pack")
    assert verify(tmp_path / "pack", deep=True).problems == () and pack.paths == old.paths
    for i in range(len(old)):
        assert (pack.image(i) == old.image(i)).all()
        np.testing.assert_array_equal(pack.annotation(i).boxes, old.annotation(i).boxes)
        np.testing.assert_array_equal(pack.annotation(i).landmarks, old.annotation(i).landmarks)


def test_torch_save(tmp_path: Path) -> None:
    import torch

    names = ["ant", "bee", "cat"]
    tensors = {"images": torch.from_numpy(PIXELS), "labels": torch.tensor([2, 0, 1, -1, 0, 2]), "classes": names}
    for content in (tensors, {"x": tensors["images"], "y": tensors["labels"].int()}, tensors["images"]):
        torch.save(content, tmp_path / "x.pth")
        pack = adopted(tmp_path / "x.pth", missing_labels="empty")
        assert (np.stack([pack.image(i) for i in range(6)]) == PIXELS).all()
        if isinstance(content, dict):
            numbered = [pack.annotation(i).label for i in range(6)]
            assert numbered == [2, 0, 1, None, 0, 2]
            assert pack.classes == (names if "classes" in content else ["0", "1", "2"])
    images = torch.zeros(2, 5, 4, 3, dtype=torch.uint8)
    torch.save({"a": images, "targets": torch.tensor([1, 0])}, tmp_path / "x.pth")  # the first of three axes or more
    assert adopted(tmp_path / "x.pth").annotation(0).label == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (lambda torch: {"images": torch.zeros(2, 3, 8, 8, dtype=torch.uint8)}, "colors lie in 3 planes"),
        (lambda torch: {"images": torch.zeros(2, 8, 8, 3)}, "array of <f4"),
        (lambda torch: {"images": torch.zeros(3, 8, 8, 2, dtype=torch.uint8).permute(0, 2, 1, 3)}, "not contiguous"),
        (lambda torch: {"weight": torch.zeros(3, 4)}, "has no array of images (it has weight)"),
        (lambda torch: [1, 2], "has no array at all"),
    ],
    ids=["planes", "floats", "permuted", "no images", "no tensors"],
)
def test_other_files_of_torch_are_refused(content: Any, message: str, tmp_path: Path) -> None:
    import torch

    torch.save(content(torch), tmp_path / "x.pth")
    with pytest.raises(UsageError, match=re.escape(message)):
        adopt([tmp_path / "x.pth"], tmp_path / "pack")


def test_roles_of_arrays(tmp_path: Path) -> None:
    import torch

    torch.save({"left": torch.from_numpy(PIXELS), "right": torch.from_numpy(PIXELS[::-1].copy()),
                "kind": torch.arange(6), "other": torch.zeros(5)}, tmp_path / "x.pt")  # fmt: skip
    pack = adopted(tmp_path / "x.pt", columns={"image": "right", "label": "kind"})
    assert "not those of left" in pack.manifest.notes[0]
    assert (pack.image(0) == PIXELS[5]).all() and pack.annotation(3).label == 3
    for columns, message in (
        ({"image": "up"}, "it has left, right, kind, other"),
        ({"image": "left", "label": "other"}, "6 whole numbers"),
        ({"label": "kind"}, "may be images: left, right"),
    ):
        with pytest.raises(UsageError, match=message):
            adopt([tmp_path / "x.pt"], tmp_path / "no", columns=columns)


@pytest.mark.parametrize("chunks", [1, 4])
def test_zarr(chunks: int, tmp_path: Path) -> None:
    zarr = pytest.importorskip("zarr", reason="zarr is optional, and not installed here")
    path = tmp_path / "x.zarr.zip"
    with zarr.storage.ZipStore(path, mode="w") as store:
        group = zarr.create_group(store, attributes={"classes": ["ant", "bee"]})
        group.create_array("images", data=PIXELS, chunks=(chunks, 5, 4, 3), compressors=None)
        group.create_array("labels", data=np.array([1, 0, 1, 1, 0, 0], np.int32), compressors=None)
    pack = adopted(path)
    assert (np.stack([pack.image(i) for i in range(6)]) == PIXELS).all()
    assert pack.classes == ["ant", "bee"] and [pack.annotation(i).label for i in range(6)] == [1, 0, 1, 1, 0, 0]
    with zarr.storage.ZipStore(path, mode="w") as store:
        zarr.create_group(store).create_array("images", data=PIXELS)
    with pytest.raises(UsageError, match=r"stored with the codec zstd.*compressors=None"):
        adopt([path], tmp_path / "no")


def test_other_zip_files_are_left_to_builds(tmp_path: Path) -> None:
    for name, message in ((".zarray", "is Zarr of version 2"), ("a.jpg", "packer build reads it")):
        with zipfile.ZipFile(tmp_path / "x.zip", "w") as file:
            file.writestr(name, b"{}")
        with pytest.raises(UsageError, match=message):
            adopt([tmp_path / "x.zip"], tmp_path / "pack")


NUMBERS = [2, 0, 1, 1, 0, 2]


def write_arrays(kind: str, path: Path, content: dict[str, Any]) -> None:
    """Write arrays and lists as users do."""
    if kind == "hdf5":
        with h5py.File(path, "w") as file:
            file.update(content)
    else:
        import torch

        tensors = {n: torch.from_numpy(v) if isinstance(v, np.ndarray) else v for n, v in content.items()}
        torch.save(tensors, path)


@pytest.mark.parametrize("kind", ["hdf5", "pth"])
@pytest.mark.parametrize("name", ["targets", "y"])
@pytest.mark.parametrize("labels", [NUMBERS, np.array(NUMBERS, np.float32), np.array(NUMBERS).reshape(6, 1)])
def test_labels_of_other_types(kind: str, name: str, labels: Any, tmp_path: Path) -> None:
    write_arrays(kind, tmp_path / "x", {"images": PIXELS, name: labels})
    pack = adopted(tmp_path / "x")
    assert [pack.annotation(i).label for i in range(6)] == NUMBERS and pack.manifest.notes == ()


def test_names_in_a_list_are_classes(tmp_path: Path) -> None:
    write_arrays("pth", tmp_path / "x", {"images": PIXELS, "labels": ["b", "a", "a", "b", "c", "a"]})
    pack = adopted(tmp_path / "x")
    assert pack.classes == ["a", "b", "c"] and pack.annotation(4).label == 2


def test_a_tuple_of_images_and_labels(tmp_path: Path) -> None:
    """As torchvision wrote MNIST: torch.save((images, labels))."""
    import torch

    torch.save((torch.from_numpy(PIXELS), torch.tensor(NUMBERS)), tmp_path / "training.pt")
    assert [adopted(tmp_path / "training.pt").annotation(i).label for i in range(6)] == NUMBERS


@pytest.mark.parametrize("kind", ["hdf5", "pth"])
@pytest.mark.parametrize(
    ("others", "note"),
    [
        ({"labels": np.eye(6, dtype=np.float32)}, "labels (6x6) is not a class for each image"),
        ({"labels": np.eye(6), "kind": np.arange(6)}, "kind could be: --columns label=kind"),
        ({"kind": np.arange(6)}, "no array is named as labels are, so that the images have no label; kind could be"),
        ({"labels": np.arange(6), "x_test": PIXELS[:2]}, "not those of x_test: --columns image=NAME"),
    ],
    ids=["one hot", "another", "unnamed", "more images"],
)
def test_what_is_left_out_of_a_file_of_arrays_is_said(kind: str, others: Any, note: str, tmp_path: Path) -> None:
    write_arrays(kind, tmp_path / "x", {"images": PIXELS, **others})
    assert note in " ".join(adopted(tmp_path / "x").manifest.notes)


@pytest.mark.parametrize("kind", ["hdf5", "pth"])
@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"images": PIXELS, "labels": np.arange(5)}, "has 6 images in images, but 5 labels in labels"),
        ({"a_train": PIXELS, "a_test": PIXELS[:2]}, "that may be images: a_"),
    ],
)
def test_arrays_that_do_not_fit(kind: str, content: Any, message: str, tmp_path: Path) -> None:
    write_arrays(kind, tmp_path / "x", content)
    with pytest.raises(UsageError, match=message):
        adopt([tmp_path / "x"], tmp_path / "pack")


@pytest.mark.parametrize("kind", ["hdf5", "pth"])
def test_names_of_classes_that_are_called_labels(kind: str, tmp_path: Path) -> None:
    write_arrays(kind, tmp_path / "x", {"images": PIXELS, "labels": ["a", "b", "c"]})
    assert adopted(tmp_path / "x").annotation(0).label is None
    write_arrays(kind, tmp_path / "x", {"images": PIXELS, "labels": np.arange(5)})
    with pytest.raises(UsageError, match="without labels: columns="):
        adopt(tmp_path / "x", tmp_path / "no")
    pack = adopted(tmp_path / "x", columns="image=images")
    assert pack.manifest.notes == ("labels (5) is not a class for each image, so that the images have no label",)


@pytest.mark.parametrize("value", [1e30, float("nan"), 0.5])
def test_floats_that_are_no_classes(value: float, tmp_path: Path) -> None:
    write_arrays("pth", tmp_path / "x", {"images": PIXELS, "labels": np.array([0, 1, value, 1, 0, 1])})
    pack = adopted(tmp_path / "x")
    assert pack.annotation(0).label is None and "labels (6) is not a class for each image" in pack.manifest.notes[0]


@pytest.mark.parametrize("columns", ["label=kind", ["label=kind"], {"label": "kind"}])
def test_roles_as_on_the_command_line(columns: Any, tmp_path: Path) -> None:
    write_arrays("pth", tmp_path / "x", {"images": PIXELS, "kind": np.array(NUMBERS)})
    assert adopted(tmp_path / "x", columns=columns).annotation(0).label == NUMBERS[0]


@pytest.mark.parametrize("container", ["hdf5", "zarr", "n5", "pth"])
def test_classes_without_an_image_keep_their_names(container: str, tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / "s" / name).mkdir(parents=True)
        (tmp_path / "s" / name / "1.jpg").write_bytes(image_file(1))
    (tmp_path / "names").write_text("a\nb\nc\n")
    build_pack(BuildOptions(str(tmp_path / "s"), str(tmp_path / "p"), container, classes=str(tmp_path / "names")))
    adopt(
        [tmp_path / "p" / shard.container.name for shard in open_pack(tmp_path / "p").reader.shards], tmp_path / "pack"
    )
    pack = open_pack(tmp_path / "pack")
    assert pack.classes == ["a", "b", "c"] and [pack.annotation(i).label for i in (0, 1)] == [0, 1]
