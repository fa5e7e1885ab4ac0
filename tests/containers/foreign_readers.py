"""Each container read with nothing of packer: (key, image file bytes or pixel array, annotation)."""

from __future__ import annotations

import io
import json
import struct
import tempfile
import warnings
import zipfile
from collections.abc import Iterator
from itertools import pairwise
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
    images = {k.partition(".")[0]: (k, v) for k, v in values.items() if not k.endswith(".json")}
    assert len(texts) == len(images) == len(values) / 2
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
            (extension,) = [k for k in sample if not k.startswith("__") and k not in ("cls", "json")]
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
            yield note["key"], _image(name, data[24 + 4 * floats : -12 - size]), note


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
