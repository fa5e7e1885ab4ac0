"""Files that other tools have written are scanned to the very bytes of their images."""

from __future__ import annotations

import io
import tarfile
import warnings
from pathlib import Path

import h5py
import lmdb
import numpy as np
import pytest
from container_records import picture
from PIL import Image

from packer.containers import open_container
from packer.errors import DamagedPack


def file_of(kind: str, number: int = 0) -> bytes:
    file = io.BytesIO()
    if kind == "npy":
        np.save(file, picture(number, 5, 4))
    else:
        Image.fromarray(picture(number, 5, 4)).save(file, kind)
    return file.getvalue()


def scanned(container: str, path: Path) -> dict[str, bytes]:
    data = path.read_bytes()
    entries = list(open_container(container).scan(str(path)))
    assert all(entry.annotation is None for entry in entries)
    found = {e.key: data[e.offset : e.offset + e.size] for e in entries}
    assert len(found) == len(entries)
    return found


JPEGS = {f"s{i}": file_of("jpeg", i) for i in range(3)}


# -- TFRecord


def write_tfrecord(path: Path, *examples: dict[str, object]) -> None:
    from tfrecord.writer import TFRecordWriter

    writer = TFRecordWriter(str(path))
    for example in examples:
        writer.write({name: (value, "int" if isinstance(value, int) else "byte") for name, value in example.items()})
    writer.close()


def test_tfrecord(tmp_path: Path) -> None:
    a, b, c = JPEGS.values()
    write_tfrecord(
        tmp_path / "f",
        {"image/encoded": a, "image/source_id": b"17", "image/filename": b"a.jpg", "image/height": 5},
        {"image/class/label": 3, "image/filename": b"\xff.jpg", "image/encoded": b},
        {"image/class/label": 4},
        {"image/encoded": c, "image/source_id": b"", "packer/annotation": b"{}"},
        {"image/encoded": file_of("npy"), "image/filename": b"raw"},
    )
    found = scanned("tfrecord", tmp_path / "f")
    assert found == {"17": a, "\\xff.jpg": b, "3": c, "raw": picture(0, 5, 4).tobytes()}


def test_tfrecord_of_something_else(tmp_path: Path) -> None:
    from tfrecord.writer import TFRecordWriter

    with open(tmp_path / "f", "wb") as file:
        data = b"no message"
        length = len(data).to_bytes(8, "little")
        file.write(length + TFRecordWriter.masked_crc(length) + data + TFRecordWriter.masked_crc(data))
    with pytest.raises(DamagedPack, match="frame at byte 0 is not a readable Example"):
        scanned("tfrecord", tmp_path / "f")


# -- WebDataset


def test_webdataset(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from webdataset import TarWriter

        with TarWriter(str(tmp_path / "f"), encoder=False) as writer:
            for key, data in JPEGS.items():
                writer.write({"__key__": f"train/{key}", "jpg": data, "json": b'{"a": 1}', "cls": b"1"})
            writer.write({"__key__": "last", "seg.PNG": file_of("png"), "txt": b"a dog"})
    found = scanned("webdataset", tmp_path / "f")
    assert found == {**{f"train/{key}": data for key, data in JPEGS.items()}, "last": file_of("png")}


@pytest.mark.parametrize("layout", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_tar_of_any_layout(layout: int, tmp_path: Path) -> None:
    """Long names, names that are not ASCII, other owners and times, and members that are no regular files."""
    long = "d" * 90 + "/" + "k" * 60 if layout == tarfile.USTAR_FORMAT else "d" * 120 + "/" + "k" * 200
    names = ["a.jpeg", long + ".png", "\u00e9t\u00e9.webp", "b.npy", "c.BMP"]
    expected = {}
    with tarfile.open(tmp_path / "f", "w", format=layout) as tar:
        folder = tarfile.TarInfo("folder.jpg")
        folder.type = tarfile.DIRTYPE
        link = tarfile.TarInfo("link.jpg")
        link.type, link.linkname = tarfile.SYMTYPE, "a.jpeg"
        tar.addfile(folder)
        tar.addfile(link)
        for name in names:
            kind = name.rpartition(".")[2].lower()
            data = file_of(kind)
            info = tarfile.TarInfo(name)
            info.size, info.mtime, info.uname, info.mode = len(data), 1234.5, "user", 0o600
            tar.addfile(info, io.BytesIO(data))
            expected[name.rpartition(".")[0]] = picture(0, 5, 4).tobytes() if kind == "npy" else data
    assert scanned("webdataset", tmp_path / "f") == expected


def test_several_images_of_a_sample_share_its_key(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "f", "w") as tar:
        for name, data in (("a.left.jpg", JPEGS["s0"]), ("a.right.jpg", JPEGS["s1"])):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    entries = list(open_container("webdataset").scan(str(tmp_path / "f")))
    assert [(e.key, e.size) for e in entries] == [("a", len(JPEGS["s0"])), ("a", len(JPEGS["s1"]))]


@pytest.mark.parametrize("damage", ["header", "compressed"])
def test_tar_that_is_not_whole(damage: str, tmp_path: Path) -> None:
    """At a header that it cannot read tarfile ends as at the end of the file."""
    path = tmp_path / "f"
    with tarfile.open(path, "w:gz" if damage == "compressed" else "w") as tar:
        for key, data in JPEGS.items():
            info = tarfile.TarInfo(f"{key}.jpg")
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    content = bytearray(path.read_bytes())
    if damage == "header":
        content[content.index(b"s2.jpg") + 100] ^= 1
    path.write_bytes(content)
    with pytest.raises(DamagedPack):
        scanned("webdataset", path)


# -- HDF5


@pytest.mark.parametrize("userblock", [0, 512])
@pytest.mark.parametrize("keys", [None, "bytes", "text", "numbers"])
def test_hdf5(keys: str | None, userblock: int, tmp_path: Path) -> None:
    images = np.stack([picture(i, 5, 4) for i in range(3)])
    names = {"bytes": [b"a", b"b", b"c"], "text": ["a", "b", "\u00e9"], "numbers": [7, 8, 9]}.get(keys or "")
    with h5py.File(tmp_path / "f", "w", userblock_size=userblock, libver="latest") as file:
        file["labels"] = np.arange(3)
        file["images"] = images
        if names is not None:
            file["keys"] = names
    expected = (
        [str(i) for i in range(3)] if names is None else [n.decode() if keys == "bytes" else str(n) for n in names]
    )
    assert scanned("hdf5", tmp_path / "f") == {
        key: image.tobytes() for key, image in zip(expected, images, strict=True)
    }


def test_hdf5_of_different_sizes(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "f", "w") as file:
        file["images"] = np.frombuffer(b"".join(JPEGS.values()), np.uint8)
        file["image_offsets"] = np.cumsum([0, *map(len, JPEGS.values())])
        file["keys"] = np.array(list(JPEGS), "S9")
    assert scanned("hdf5", tmp_path / "f") == JPEGS


@pytest.mark.parametrize("how", ["chunks", "gzip", "external", "virtual", "vlen", "missing", "keys", "compact"])
def test_hdf5_that_has_no_places(how: str, tmp_path: Path) -> None:
    images = np.stack([picture(i, 5, 4) for i in range(3)])
    path = tmp_path / "f"
    with h5py.File(path, "w") as file:
        if how in ("chunks", "gzip"):
            file.create_dataset(
                "images", data=images, chunks=(1, 5, 4, 3), compression=None if how == "chunks" else "gzip"
            )
        elif how == "external":
            file.create_dataset("images", images.shape, "u1", external=[("other", 0, images.size)])
        elif how == "virtual":
            layout = h5py.VirtualLayout(images.shape, "u1")
            layout[:] = h5py.VirtualSource(str(tmp_path / "other"), "x", images.shape)
            file.create_virtual_dataset("images", layout)
        elif how == "vlen":
            dataset = file.create_dataset("images", (3,), h5py.vlen_dtype(np.uint8))
            for i, data in enumerate(JPEGS.values()):
                dataset[i] = np.frombuffer(data, np.uint8)
        elif how == "compact":
            layout = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
            layout.set_layout(h5py.h5d.COMPACT)
            space = h5py.h5s.create_simple((3, 2))
            h5py.h5d.create(file.id, b"images", h5py.h5t.NATIVE_UINT8, space, layout)
        elif how == "keys":
            file["images"], file["keys"] = images, [b"a"]
    problem = {"chunks": "chunked or compressed", "gzip": "h5repack", "missing": "images", "keys": "1 keys for 3"}
    problem |= dict.fromkeys(("external", "virtual"), "in other files") | dict.fromkeys(
        ("vlen", "compact"), "not contiguous"
    )
    with pytest.raises(DamagedPack, match=problem[how]):
        scanned("hdf5", path)


# -- LMDB


def test_lmdb(tmp_path: Path) -> None:
    """Keys of any bytes; values that are labels, counts, or databases of their own."""
    values = {
        b"image-000000001": JPEGS["s0"],
        b"image-000000002": file_of("png"),
        b"label-000000001": b"a word",
        b"num-samples": b"2",
        b"\xff\x00": JPEGS["s1"],
        b"a.b/cat.JPG": JPEGS["s2"],
        b"dog.json": b'{"a": 1}',
        b"dog.png": file_of("png", 1),
        b"empty.png": b"",
        b"pixels.npy": file_of("npy"),
        b"text": b"BM is how this text begins",
    }
    with lmdb.open(str(tmp_path / "f"), subdir=False, lock=False, max_dbs=1, map_size=1 << 24) as env:
        with env.begin(write=True) as transaction:
            for key, value in values.items():
                transaction.put(key, value)
        env.open_db(b"other")
    assert scanned("lmdb", tmp_path / "f") == {
        "image-000000001": JPEGS["s0"],
        "image-000000002": file_of("png"),
        "\\xff\x00": JPEGS["s1"],
        "a.b/cat": JPEGS["s2"],
        "dog": file_of("png", 1),
        "pixels": picture(0, 5, 4).tobytes(),
    }


def test_lmdb_without_images(tmp_path: Path) -> None:
    with lmdb.open(str(tmp_path / "f"), subdir=False, lock=False) as env, env.begin(write=True) as transaction:
        transaction.put(b"a", b"b")
    assert scanned("lmdb", tmp_path / "f") == {}


@pytest.mark.parametrize("container", ["lmdb", "webdataset"])
def test_npy_of_python_objects_is_refused(container: str, tmp_path: Path) -> None:
    file = io.BytesIO()
    np.save(file, np.array([{}], object), allow_pickle=True)
    path = tmp_path / "f"
    if container == "lmdb":
        with lmdb.open(str(path), subdir=False, lock=False) as env, env.begin(write=True) as transaction:
            transaction.put(b"a.npy", file.getvalue())
    else:
        with tarfile.open(path, "w") as tar:
            info = tarfile.TarInfo("a.npy")
            info.size = len(file.getvalue())
            tar.addfile(info, io.BytesIO(file.getvalue()))
    with pytest.raises(DamagedPack, match="Python objects"):
        scanned(container, path)
