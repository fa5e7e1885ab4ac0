"""Each container read with nothing of packer: (key, image file bytes or pixel array, annotation)."""

from __future__ import annotations

import io
import json
import struct
import tarfile
import tempfile
import warnings
import zipfile
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import h5py
import lmdb
import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

Read = tuple[str, Any, dict[str, Any]]


def read_lmdb(path: str) -> Iterator[Read]:
    env = lmdb.open(path, subdir=False, readonly=True, lock=False)
    with env.begin() as transaction:
        values = {bytes(k).decode(): bytes(v) for k, v in transaction.cursor()}
    env.close()
    texts = {k[:-5]: json.loads(v) for k, v in values.items() if k.endswith(".json")}
    images = {k.partition(".")[0]: (k, v) for k, v in values.items() if not k.endswith(".json") and k.count(".") == 1}
    parts = [f"{k}.{name}.bin" for k, note in texts.items() for name in note.get("parts", ())]
    assert len(texts) == len(images) == (len(values) - len(parts)) / 2 and {*parts} <= {*values}
    for key, (name, data) in images.items():
        yield key, _image(name, data), texts[key]


def read_hdf5(path: str) -> Iterator[Read]:
    with h5py.File(path, "r") as file:
        texts, ends = file["annotations"][:].tobytes(), file["annotation_offsets"][:]
        images = file["images"]
        for i, key in enumerate(file["keys"][:]):
            if images.ndim == 4:
                image = images[i]
            else:
                a, b = file["image_offsets"][i : i + 2]
                image = images[a:b].tobytes()
                if file.attrs["encoding"] == b"raw":
                    image = np.frombuffer(image, np.uint8).reshape(file["image_shapes"][i])
            yield key.decode(), image, json.loads(texts[ends[i] : ends[i + 1]])


def read_tfrecord(path: str) -> Iterator[Read]:
    from tfrecord.reader import tfrecord_loader

    for example in tfrecord_loader(path, None):
        name = "x." + bytes(example["image/format"]).decode()
        data = bytes(example["image/encoded"])
        yield (
            bytes(example["image/source_id"]).decode(),
            _image(name, data),
            json.loads(example["packer/annotation"]),
        )


def read_webdataset(path: str) -> Iterator[Read]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the library's own, of this version
        import webdataset

        for sample in webdataset.WebDataset(path, shardshuffle=False):
            note = json.loads(sample["json"])
            assert ("cls" in sample) == ("label" in note)
            assert "cls" not in sample or int(sample["cls"]) == note["label"]
            parts = {f"{name}.bin" for name in note.get("parts", ())}
            (extension,) = {k for k in sample if not k.startswith("__")} - {"cls", "json"} - parts
            yield sample["__key__"], _image(f"x.{extension}", sample[extension]), note


def read_parquet(path: str) -> Iterator[Read]:
    for row in pq.read_table(path).to_pylist():
        data = row["image"]["bytes"]
        note = json.loads(row["annotation"])
        assert all(row[name] == note.get(name) for name in ("label", "landmarks", "keypoints", "polygons"))
        objects = {"boxes": note["boxes"], "labels": note.get("box_labels")} if "boxes" in note else None
        assert row["objects"] == objects
        if row["encoding"] != "raw":
            yield row["key"], data, note
        elif data.startswith(b"\x93NUMPY"):
            yield row["key"], _image("npy", data), note
        else:
            pixels = np.asarray(Image.open(io.BytesIO(data)))
            yield row["key"], pixels.reshape(row["height"], row["width"], row["channels"]), note


def read_zarr(path: str) -> Iterator[Read]:
    zarr = pytest.importorskip("zarr", reason="zarr is optional, and not installed here")
    store = zarr.storage.ZipStore(path, mode="r")
    group = zarr.open_group(store, mode="r")
    yield from _of_arrays({name: group[name] for name in group.array_keys()}, group.attrs)
    store.close()


def read_n5(path: str) -> Iterator[Read]:
    z5py = pytest.importorskip("z5py", reason="z5py is optional, and not installed here")
    with tempfile.TemporaryDirectory() as folder:
        zipfile.ZipFile(path).extractall(folder)
        file = z5py.File(folder, "r")
        yield from _of_arrays({name: file[name] for name in file}, file.attrs)


def _of_arrays(arrays: dict[str, Any], attributes: Any) -> Iterator[Read]:
    def texts(name: str) -> list[bytes]:
        text, ends = arrays[f"{name}s"][:].tobytes(), arrays[f"{name}_offsets"][:].tolist()
        return [text[a:b] for a, b in pairwise(ends)]

    images = arrays["images"]
    for i, (key, text) in enumerate(zip(texts("key"), texts("annotation"), strict=True)):
        note = json.loads(text)
        if len(images.shape) == 4:
            image = images[i : i + 1][0]
        else:
            a, b = map(int, arrays["image_offsets"][i : i + 2])
            image = images[a:b].tobytes()
            if attributes["encoding"] == "raw":
                image = np.frombuffer(image, note["dtype"]).reshape(arrays["image_shapes"][i : i + 1][0])
        assert ("label" not in note) or arrays["labels"][i : i + 1][0] == note["label"]
        yield key.decode(), image, note


def read_recordio(path: str) -> Iterator[Read]:
    with open(path, "rb") as file:
        while head := file.read(8):
            magic, length = struct.unpack("<II", head)
            assert magic == 0xCED7230A and length < 1 << 29  # the bits above are those of a split record
            data = file.read(length)
            assert not any(file.read(-length % 4))
            floats, label, number, other = struct.unpack_from("<IfQQ", data)
            size, mark = struct.unpack("<I8s", data[-12:])
            assert mark == b"\0packer\0" and other == 0
            note = json.loads(data[-12 - size : -12])
            assert label == note.get("label", -1) and number == int(note["key"])
            name = "x.npy" if note["encoding"] == "raw" else "x"
            others = sum(part["bytes"] for part in note.get("parts", {}).values())
            yield note["key"], _image(name, data[24 + 4 * floats : len(data) - 12 - size - others]), note


def read_pth(path: str) -> Iterator[Read]:
    import torch

    file = torch.load(path, weights_only=True, mmap=True)
    images, texts, bounds = file["images"], file["annotations"].numpy().tobytes(), file["annotation_offsets"]
    keys = file["keys"].numpy().tobytes()
    for i, (start, stop) in enumerate(pairwise(file["key_offsets"].tolist())):
        if images.ndim == 4:
            image = images[i].numpy()
        else:
            image = images[slice(*file["image_offsets"][i : i + 2])].numpy()
            image = image.reshape(*file["image_shapes"][i]) if file["encoding"] == "raw" else image.tobytes()
        yield keys[start:stop].decode(), image, json.loads(texts[bounds[i] : bounds[i + 1]])


def _image(name: str, data: bytes) -> Any:
    return np.load(io.BytesIO(data), allow_pickle=False) if name.endswith("npy") else data


READERS = {
    "lmdb": read_lmdb,
    "hdf5": read_hdf5,
    "tfrecord": read_tfrecord,
    "webdataset": read_webdataset,
    "parquet": read_parquet,
    "zarr": read_zarr,
    "n5": read_n5,
    "recordio": read_recordio,
    "pth": read_pth,
}


Parts = dict[str, bytes]


def lmdb_parts(path: str) -> Iterator[Parts]:
    records = list(read_lmdb(path))
    with lmdb.open(path, subdir=False, readonly=True, lock=False) as env, env.begin() as transaction:
        for key, _, note in records:
            yield {name: bytes(transaction.get(f"{key}.{name}.bin".encode())) for name in note.get("parts", ())}


def webdataset_parts(path: str) -> Iterator[Parts]:
    with tarfile.open(path) as tar:
        members = {member.name: tar.extractfile(member).read() for member in tar}  # type: ignore[union-attr]
    for key, _, note in read_webdataset(path):
        yield {name: members[f"{key}.{name}.bin"] for name in note.get("parts", ())}


def tfrecord_parts(path: str) -> Iterator[Parts]:
    from tfrecord.reader import tfrecord_loader

    for example in tfrecord_loader(path, None):
        names = json.loads(example["packer/annotation"]).get("parts", ())
        yield {name: bytes(example[f"image/{name}/encoded"]) for name in names}


def parquet_parts(path: str) -> Iterator[Parts]:
    for row in pq.read_table(path).to_pylist():
        found = {name: row[name] for name in json.loads(row["annotation"]).get("parts", ())}
        assert all(row[name] is None for name in {"aux", "zed"} - {*found})
        yield found


def recordio_parts(path: str) -> Iterator[Parts]:
    content = Path(path).read_bytes()
    for _, _, note in read_recordio(path):
        length, content = struct.unpack_from("<4xI", content)[0], content[8:]
        size = struct.unpack_from("<I", content, length - 12)[0]
        at = length - 12 - size - sum(part["bytes"] for part in note.get("parts", {}).values())
        found = {}
        for name, part in note.get("parts", {}).items():
            found[name], at = content[at : at + part["bytes"]], at + part["bytes"]
        yield found
        content = content[length + -length % 4 :]


def _array_parts(arrays: dict[str, Any], notes: list[dict[str, Any]]) -> Iterator[Parts]:
    for i, note in enumerate(notes):
        found = {}
        for name in note.get("parts", ()):
            start, stop = (int(end) for end in arrays[f"{name}_offsets"][i : i + 2])
            found[name] = bytes(arrays[name][start:stop].tobytes()) if stop > start else b""
        yield found


def hdf5_parts(path: str) -> Iterator[Parts]:
    with h5py.File(path) as file:
        yield from _array_parts(dict(file), [note for _, _, note in read_hdf5(path)])


def zarr_parts(path: str) -> Iterator[Parts]:
    zarr = pytest.importorskip("zarr", reason="zarr is optional, and not installed here")
    store = zarr.storage.ZipStore(path, mode="r")
    group = zarr.open_group(store, mode="r")
    arrays = {name: group[name] for name in group.array_keys()}
    yield from _array_parts(arrays, [note for _, _, note in read_zarr(path)])
    store.close()


def n5_parts(path: str) -> Iterator[Parts]:
    z5py = pytest.importorskip("z5py", reason="z5py is optional, and not installed here")
    with tempfile.TemporaryDirectory() as folder:
        zipfile.ZipFile(path).extractall(folder)
        file = z5py.File(folder, "r")
        yield from _array_parts({name: file[name] for name in file}, [note for _, _, note in read_n5(path)])


def pth_parts(path: str) -> Iterator[Parts]:
    import torch

    arrays = {k: v.numpy() for k, v in torch.load(path, weights_only=True).items() if hasattr(v, "numpy")}
    yield from _array_parts(arrays, [note for _, _, note in read_pth(path)])


PART_READERS = {
    "lmdb": lmdb_parts,
    "hdf5": hdf5_parts,
    "tfrecord": tfrecord_parts,
    "webdataset": webdataset_parts,
    "parquet": parquet_parts,
    "zarr": zarr_parts,
    "n5": n5_parts,
    "recordio": recordio_parts,
    "pth": pth_parts,
}
