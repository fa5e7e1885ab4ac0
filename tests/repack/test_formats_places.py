"""Where images are in files of other tools: the very bytes, for each way in which a format can store them."""

from __future__ import annotations

import io
import json
import struct
import zipfile
from pathlib import Path

import h5py
import lmdb
import numpy as np
import pytest
from PIL import Image

from packer.errors import UsageError
from packer.repack.formats import ForeignFile, FormatOptions, open_format


def picture(number: int, height: int, width: int) -> np.ndarray:
    return np.random.default_rng(number).integers(0, 256, (height, width, 3)).astype(np.uint8)


def file_of(kind: str, number: int = 0) -> bytes:
    file = io.BytesIO()
    if kind == "npy":
        np.save(file, picture(number, 5, 4))
    else:
        Image.fromarray(picture(number, 5, 4)).save(file, kind)
    return file.getvalue()


def found_in(kind: str, path: Path) -> dict[str, bytes]:
    """The bytes of each image by its name."""
    with ForeignFile(str(path)) as file:
        rows = list(open_format(kind, FormatOptions())(file))
        found = {name.decode("utf-8", "backslashreplace"): file.view[at : at + size] for name, at, size, *_ in rows}
    assert len(found) == len(rows)
    return found


JPEGS = {f"s{i}": file_of("jpeg", i) for i in range(3)}


# -- HDF5


@pytest.mark.parametrize("how", ["gzip", "external", "virtual", "missing", "compact"])
def test_hdf5_that_has_no_places(how: str, tmp_path: Path) -> None:
    images = np.stack([picture(i, 5, 4) for i in range(3)])
    path = tmp_path / "f"
    with h5py.File(path, "w") as file:
        if how == "gzip":
            file.create_dataset("images", data=images, chunks=(1, 5, 4, 3), compression="gzip")
        elif how == "external":
            file.create_dataset("images", images.shape, "u1", external=[("other", 0, images.size)])
        elif how == "virtual":
            layout = h5py.VirtualLayout(images.shape, "u1")
            layout[:] = h5py.VirtualSource(str(tmp_path / "other"), "x", images.shape)
            file.create_virtual_dataset("images", layout)
        elif how == "compact":
            layout = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
            layout.set_layout(h5py.h5d.COMPACT)
            space = h5py.h5s.create_simple((3, 2))
            h5py.h5d.create(file.id, b"images", h5py.h5t.NATIVE_UINT8, space, layout)
    problem = {"gzip": "h5repack", "missing": "no dataset of images", "compact": "not contiguous"}
    with pytest.raises(UsageError, match=problem.get(how, "in other files")):
        found_in("hdf5", path)


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
    assert found_in("lmdb", tmp_path / "f") == {
        "image-000000001": JPEGS["s0"],
        "image-000000002": file_of("png"),
        "\\xff\x00": JPEGS["s1"],
        "a.b/cat.JPG": JPEGS["s2"],
        "dog.png": file_of("png", 1),
        "pixels.npy": file_of("npy"),
    }


# -- Zarr and N5


def write_zip(path: Path, files: dict[str, object], compression: int = zipfile.ZIP_STORED) -> None:
    with zipfile.ZipFile(path, "w", compression) as file:
        for name, content in files.items():
            file.writestr(name, content if isinstance(content, bytes) else json.dumps(content))


def zarr_array(shape: tuple[int, ...], chunk: tuple[int, ...], *codecs: object, separator: str = "/") -> object:
    return {
        "zarr_format": 3, "node_type": "array", "shape": shape, "data_type": "uint8", "fill_value": 0,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": chunk}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": separator}},
        "codecs": codecs or [{"name": "bytes"}],
    }  # fmt: skip


IMAGES = [picture(i, 5, 4) for i in range(5)]
PIXELS = [image.tobytes() for image in IMAGES]
NUMBERED = {f"{i:08d}": data for i, data in enumerate(PIXELS)}


@pytest.mark.parametrize("separator", ["/", "."])
def test_zarr_in_chunks(separator: str, tmp_path: Path) -> None:
    """Chunks of two images, of which the last has room for one more; an array that is the root of the file."""
    names = [separator.join(["c", str(i), "0", "0", "0"]) for i in range(3)]
    parts = [b"".join([*PIXELS, bytes(60)][i : i + 2]) for i in (0, 2, 4)]
    node = zarr_array((5, 5, 4, 3), (2, 5, 4, 3), separator=separator)
    write_zip(tmp_path / "f", {**dict(zip(names, parts, strict=True)), "zarr.json": node})
    assert found_in("zarr", tmp_path / "f") == NUMBERED


def test_zarr_labels_in_chunks_of_which_one_is_not_stored(tmp_path: Path) -> None:
    """As zarr writes them by default: a chunk that is all zeros is left out."""
    labels = {**zarr_array((5,), (2,)), "data_type": "int64"}  # type: ignore[dict-item]
    files = {f"images/c/{i}/0/0/0": data for i, data in enumerate(PIXELS)}
    files |= {"images/zarr.json": zarr_array((5, 5, 4, 3), (1, 5, 4, 3)), "labels/zarr.json": labels}
    write_zip(tmp_path / "f", {**files, "labels/c/1": struct.pack("<qq", 0, 3), "labels/c/2": struct.pack("<qq", 1, 0)})
    with ForeignFile(str(tmp_path / "f")) as file:
        assert [row[3] for row in open_format("zarr", FormatOptions())(file)] == [0, 0, 0, 3, 1]
    del files["images/c/3/0/0/0"]
    write_zip(tmp_path / "f", files)
    with pytest.raises(UsageError, match="a chunk is not stored, as all of it is 0: write empty chunks, too"):
        found_in("zarr", tmp_path / "f")
    write_zip(tmp_path / "f", {"images/zarr.json": zarr_array((1 << 40, 5, 4, 3), (1, 5, 4, 3))})
    with pytest.raises(UsageError, match="has no chunk images/c/0"):
        found_in("zarr", tmp_path / "f")


def sharded(location: str) -> dict[str, object]:
    """Shards of four images in chunks of two, in another order, with gaps."""
    codec = {"chunk_shape": (2, 5, 4, 3), "codecs": [{"name": "bytes"}], "index_codecs": [{"name": "bytes"}]}
    node = zarr_array((5, 5, 4, 3), (4, 5, 4, 3), {"name": "sharding_indexed", "configuration": codec})
    codec["index_location"] = location
    shards, pairs = {}, [b"".join([*PIXELS, bytes(180)][i : i + 2]) for i in (0, 2, 4)]
    for number, chunks in enumerate((pairs[:2], pairs[2:])):
        head, body, index = 32 if location == "start" else 0, b"gap", {}
        for place, data in reversed(list(enumerate(chunks))):
            index[place] = struct.pack("<QQ", head + len(body), 120)
            body += data[:120].ljust(120, b"\0")
        rows = b"".join(index.get(place, b"\xff" * 16) for place in range(2))
        shards[f"a/c/{number}/0/0/0"] = rows + body if location == "start" else body + rows
    return {**shards, "a/zarr.json": node}


@pytest.mark.parametrize("location", ["start", "end"])
def test_zarr_in_shards(location: str, tmp_path: Path) -> None:
    write_zip(tmp_path / "f", sharded(location))
    assert found_in("zarr", tmp_path / "f") == NUMBERED


@pytest.mark.parametrize("how", ["codec", "zip", "missing", "hole", "axes", "two", "none"])
def test_zarr_that_has_no_places(how: str, tmp_path: Path) -> None:
    files = sharded("end")
    if how == "hole":
        shard = files["a/c/0/0/0/0"]
        files["a/c/0/0/0/0"] = shard[:-32] + b"\xff" * 16 + shard[-16:]
    elif how == "missing":
        del files["a/c/1/0/0/0"]
    elif how == "codec":
        files = {"zarr.json": zarr_array((5, 5, 4, 3), (5, 5, 4, 3), {"name": "bytes"}, {"name": "zstd"})}
    elif how == "axes":
        files = {"zarr.json": zarr_array((5, 5, 4, 3), (5, 5, 4, 1))}
    elif how == "two":
        files["a/zarr.json"]["zarr_format"] = files["a/zarr.json"].pop("codecs") and 2
    elif how == "none":
        files = {"zarr.json": zarr_array((5,), (5,))}
    write_zip(tmp_path / "f", files, zipfile.ZIP_DEFLATED if how == "zip" else zipfile.ZIP_STORED)
    problem = {
        "axes": "first axis only",
        "zip": "compressed",
        "hole": "chunk that is empty",
        "none": "no array of images",
    }
    with pytest.raises(UsageError, match=problem.get(how, "not a Zarr file of images")):
        found_in("zarr", tmp_path / "f")


def n5_files(compression: str = "raw", mode: int = 0) -> dict[str, object]:
    """Blocks of two images, of which the last has one; as its Java library names them."""
    node = {"dimensions": (3, 4, 5, 5), "blockSize": (3, 4, 5, 2), "dataType": "uint8", "compressionType": compression}
    files: dict[str, object] = {"attributes.json": {"n5": "4.0.0"}, "a/b/attributes.json": node}
    for i in range(3):
        images = PIXELS[2 * i : 2 * i + 2]
        files[f"a/b/0/0/0/{i}"] = struct.pack(">HHIIII", mode, 4, 3, 4, 5, len(images)) + b"".join(images)
    return files


def test_n5(tmp_path: Path) -> None:
    write_zip(tmp_path / "f", n5_files())
    assert found_in("n5", tmp_path / "f") == NUMBERED


@pytest.mark.parametrize(("compression", "mode"), [("gzip", 0), ("raw", 1)])
def test_n5_that_has_no_places(compression: str, mode: int, tmp_path: Path) -> None:
    write_zip(tmp_path / "f", n5_files(compression, mode))
    with pytest.raises(UsageError, match="of another mode" if mode else r"compressed \(gzip\)"):
        found_in("n5", tmp_path / "f")
