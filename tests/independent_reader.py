"""A second reader of packs, written from docs/formats.md alone: it imports no line of packer.

It reads each record twice: at its place in the index (`records`), and as other readers of the container find it
(`foreign_records`). Whatever contradicts a checksum or a digest is `Damaged`. Pictures are not decoded.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import struct
import tarfile
import zipfile
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import h5py
import lmdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

Note = dict[str, Any]
Record = tuple[str, bytes, Note, dict[str, bytes]]
"""The key, pixels or the file of an image, the annotation as in the JSON, and the bytes of its parts."""
FIELDS = {"label", "boxes", "box_labels", "landmarks", "polygons", "keypoints", "box_fields", "extras", "tags", "value",
          "rles", "obb", "window"}  # fmt: skip


class Damaged(Exception):
    """A file or a record is not what the pack says of it."""


def must(right: bool, what: str) -> None:
    if not right:
        raise Damaged(what)


TABLE = list(range(256))
for _ in range(8):
    TABLE = [n >> 1 ^ 0x82F63B78 * (n & 1) for n in TABLE]


def crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = TABLE[(crc ^ byte) & 255] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


def manifest_of(folder: Path, name: str = "pack.json") -> Note:
    """Return pack.json, or another file with such a digest."""
    try:
        text = (folder / name).read_text("ascii")
        manifest: Note = json.loads(text)
        must(json.dumps(manifest, indent=1) + "\n" == text, name)
        digest = manifest.pop("digest")
    except (ValueError, KeyError):  # no JSON, or none of the digest
        raise Damaged(name) from None
    text = json.dumps(manifest, sort_keys=True, separators=(",", ":"))
    must(hashlib.sha256(text.encode("ascii")).hexdigest() == digest, name)
    return manifest


def path_of(folder: Path, manifest: Note, file: Note) -> Path:
    """Return where a file of a pack is; those of other tools may be elsewhere."""
    return Path(folder, manifest.get("linked", {}).get(file["name"]) or file["name"])


def check_files(folder: Path) -> None:
    """Compare all files that the pack names with their sizes and SHA-256."""
    manifest = manifest_of(folder)
    files = [entry for shard in manifest["shards"] for entry in (shard["container"], shard["index"])]
    files += [*manifest.get("companions", {}).values(), *manifest.get("lists", {}).values()]
    if (folder / "sidecars.json").exists():
        files += [entry for car in manifest_of(folder, "sidecars.json")["sidecars"] for entry in car["files"]]
    for entry in files:
        data = path_of(folder, manifest, entry).read_bytes()
        must(len(data) == entry["bytes"] and hashlib.sha256(data).hexdigest() == entry["sha256"], entry["name"])


def note_of(row: Note, classes: list[str]) -> Note:
    """Write the row of an index as the JSON has it."""
    note = {name: row[name] for name in FIELDS if row.get(name) is not None}
    for name in note.keys() & {"box_fields", "extras"}:
        note[name] = json.loads(note[name])
    if "rles" in note:
        note["rles"] = [bytes(counts).decode("ascii") for counts in note["rles"]]
    note |= {"class": classes[note["label"]]} if "label" in note else {}
    note |= {"box_classes": [classes[label] for label in note["box_labels"]]} if "box_labels" in note else {}
    note |= {name: row[name] for name in ("key", "height", "width", "channels", "dtype", "encoding")}
    return note | {"path": os.fsdecode(row["path"]), "source_xxh3": row["source_xxh3"].hex()}


def records(folder: Path) -> Iterator[Record]:
    """Read each record at its place, and compare its checksums."""
    manifest = manifest_of(folder)
    for shard in manifest["shards"]:
        data = path_of(folder, manifest, shard["container"]).read_bytes()
        index = (folder / shard["index"]["name"]).read_bytes()
        must(crc32c(index) == shard["index"]["crc32c"], shard["index"]["name"])
        for row in pa.ipc.open_file(pa.py_buffer(index)).read_all().to_pylist():
            key, note, parts = row["key"], note_of(row, manifest["classes"]), {}
            image = data[row["offset"] : row["offset"] + row["size"]]
            must(crc32c(key.encode("ascii") + image) == row["crc32c"], f"record {key}")
            for name in manifest.get("parts", {}):
                start, size = row[f"{name}_offset"], row[f"{name}_size"]
                if size >= 0:
                    parts[name] = data[start : start + size]
                    must(crc32c(f"{key}.{name}".encode() + parts[name]) == row[f"{name}_crc32c"], f"{name} of {key}")
                    note.setdefault("parts", {})[name] = {"encoding": row[f"{name}_encoding"], "bytes": size}
            yield key, image, note, parts


def foreign_records(folder: Path) -> Iterator[Record]:
    """Read each record as the container's own readers do."""
    manifest = manifest_of(folder)
    for shard in manifest["shards"]:
        yield from READERS[manifest["container"]](path_of(folder, manifest, shard["container"]))


def stored(image: bytes, note: Note) -> bytes:
    """Take the header of .npy or PNM from raw pixels; anything may follow them."""
    if note["encoding"] != "raw":
        return image
    if image[:1] == b"P":
        return image[-note["height"] * note["width"] * note["channels"] :]
    return bytes(np.load(io.BytesIO(image), allow_pickle=False))


def grouped(entries: Iterable[tuple[str, bytes]]) -> Iterator[Record]:
    """Join the entries of LMDB or tar whose names are equal up to the first dot."""
    groups: dict[str, dict[str, bytes]] = {}
    for name, data in entries:
        key, _, rest = name.partition(".")
        groups.setdefault(key, {})[rest] = data
    for key, files in groups.items():
        note = json.loads(files.pop("json"))
        must(int(files.pop("cls", note.get("label", -1))) == note.get("label", -1), f"class of {key}")
        parts = {rest.partition(".")[0]: files.pop(rest) for rest in [*files] if "." in rest}
        (image,) = files.values()
        yield key, stored(image, note), note, parts


def read_lmdb(path: Path) -> Iterator[Record]:
    with lmdb.open(str(path), subdir=False, readonly=True, lock=False) as env, env.begin() as transaction:
        yield from grouped((key.decode("ascii"), value) for key, value in transaction.cursor())


def read_tar(path: Path) -> Iterator[Record]:
    with tarfile.open(path) as tar:
        yield from grouped((member.name, tar.extractfile(member).read()) for member in tar)  # type: ignore[union-attr]


def proto(data: bytes) -> Iterator[tuple[int, Any]]:
    """Read the fields of a message of protobuf: integers, and what has a length."""
    place = 0
    while place < len(data):
        numbers = []
        for _ in range(2):
            number = shift = 0
            while data[place] >= 128:
                number, shift, place = number | (data[place] & 127) << shift, shift + 7, place + 1
            numbers.append(number | data[place] << shift)
            place += 1
        tag, value = numbers
        yield tag >> 3, data[place : place + value] if tag & 7 == 2 else value
        place += value if tag & 7 == 2 else 0


def read_tfrecord(path: Path) -> Iterator[Record]:
    data, place = path.read_bytes(), 0
    while place < len(data):
        (length,) = struct.unpack_from("<Q", data, place)
        example = data[place + 12 : place + 12 + length]
        for covered, at in ((data[place : place + 8], place + 8), (example, place + 12 + length)):
            crc = crc32c(covered)
            masked = (crc >> 15 | crc << 17) + 0xA282EAD8 & 0xFFFFFFFF
            must(masked == struct.unpack_from("<I", data, at)[0], path.name)
        place += 16 + length
        found: dict[str, Any] = {}
        for _, entry in proto(dict(proto(example))[1]):
            (_, name), (_, feature) = proto(entry)
            found[name.decode()] = [value for _, values in proto(feature) for _, value in proto(values)]
        note = json.loads(found["packer/annotation"][0])
        parts = {name: found[f"image/{name}/encoded"][0] for name in note.get("parts", {})}
        yield found["image/source_id"][0].decode(), stored(found["image/encoded"][0], note), note, parts


def read_recordio(path: Path) -> Iterator[Record]:
    data, place = path.read_bytes(), 0
    for number, line in enumerate(path.with_suffix(".idx").read_text("ascii").splitlines()):
        must(line == f"{number}\t{place}", path.name)
        magic, length, flag, _, key, _ = struct.unpack_from("<IIIfQQ", data, place)
        must(magic == 0xCED7230A, path.name)
        rest = data[place + 32 + 4 * flag : place + 8 + length]
        place += 8 + length + -length % 4
        must(rest[-8:] == b"\0packer\0", path.name)
        end = len(rest) - 12 - int.from_bytes(rest[-12:-8], "little")
        note, parts = json.loads(rest[end:-12]), {}
        for name, part in reversed(note.get("parts", {}).items()):
            end -= part["bytes"]
            parts[name] = rest[end : end + part["bytes"]]
        yield f"{key:08d}", stored(rest[:end], note), note, parts
    must(place == len(data), path.name)


def read_parquet(path: Path) -> Iterator[Record]:
    for row in pq.ParquetFile(path).read().to_pylist():
        note = json.loads(row["annotation"])
        cells = ((name, row[name]) for name in note.get("parts", {}))  # binary, a picture, or a text
        files = ((name, cell["bytes"] if isinstance(cell, dict) else cell) for name, cell in cells)
        parts = {name: cell.encode() if isinstance(cell, str) else cell for name, cell in files}
        yield row["key"], stored(row["image"]["bytes"], note), note, parts


Arrays = Iterator[tuple[str, Any]]


def hdf5_arrays(path: Path) -> Arrays:
    with h5py.File(path, "r") as file:
        yield from ((name, dataset[()]) for name, dataset in file.items())


def pth_arrays(path: Path) -> Arrays:
    import torch

    file = torch.load(path, weights_only=True)
    yield from ((name, value.numpy()) for name, value in file.items() if isinstance(value, torch.Tensor))


def zarr_arrays(path: Path) -> Arrays:
    with zipfile.ZipFile(path) as file:
        for name in [name[: -len("/zarr.json")] for name in file.namelist() if name.endswith("/zarr.json")]:
            facts = json.loads(file.read(f"{name}/zarr.json"))
            shape, codec = facts["shape"], facts["codecs"][0]
            data = file.read("/".join([name, "c", *"0" * len(shape)])) if np.prod(shape) else b""
            if data and codec["name"] == "sharding_indexed":
                count = -(-shape[0] // codec["configuration"]["chunk_shape"][0])
                places = np.frombuffer(data[-16 * count - 4 : -4], "<u8").reshape(count, 2)
                must(crc32c(places.tobytes()) == int.from_bytes(data[-4:], "little"), path.name)
                data = b"".join(data[start : start + size] for start, size in places)
            values = np.frombuffer(data, np.dtype(facts["data_type"]).newbyteorder("<"))
            yield name, values[: int(np.prod(shape))].reshape(shape)


def n5_arrays(path: Path) -> Arrays:
    with zipfile.ZipFile(path) as file:
        for name in [name.split("/")[0] for name in file.namelist() if name.endswith("/attributes.json")]:
            facts = json.loads(file.read(f"{name}/attributes.json"))
            sides, block = facts["dimensions"], facts["blockSize"]
            names = ["/".join([name, *"0" * (len(sides) - 1), str(i)]) for i in range(-(-sides[-1] // block[-1]))]
            # a block begins with its mode, the number of its dimensions, and each of them
            data = b"".join(file.read(name)[4 + 4 * len(sides) :] for name in names)
            yield name, np.frombuffer(data, np.dtype(facts["dataType"]).newbyteorder(">")).reshape(sides[::-1])


def read_arrays(read: Callable[[Path], Arrays], path: Path) -> Iterator[Record]:
    """Read the arrays that HDF5, Zarr, N5 and pth have in common."""

    def item(name: str, i: int) -> bytes:
        offsets = arrays.get(f"{name.removesuffix('s')}_offsets")
        value = arrays[name][i] if offsets is None else arrays[name].ravel().view("u1")[offsets[i] : offsets[i + 1]]
        return value if isinstance(value, bytes) else bytes(value.tobytes())

    arrays = dict(read(path))
    for i in range(len(arrays["annotation_offsets"]) - 1):
        note = json.loads(item("annotations", i))
        parts = {name: item(name, i) for name in note.get("parts", {})}
        yield item("keys", i).decode(), item("images", i), note, parts


READERS: dict[str, Callable[[Path], Iterator[Record]]] = {
    "lmdb": read_lmdb, "hdf5": partial(read_arrays, hdf5_arrays), "tfrecord": read_tfrecord, "webdataset": read_tar,
    "parquet": read_parquet, "zarr": partial(read_arrays, zarr_arrays), "n5": partial(read_arrays, n5_arrays),
    "recordio": read_recordio, "pth": partial(read_arrays, pth_arrays),
}  # fmt: skip


def sidecars(folder: Path) -> dict[str, list[Any]]:
    """Read what is attached: for each name the values of all records, of pixels the bytes."""
    found, manifest, facts = {}, manifest_of(folder), manifest_of(folder, "sidecars.json")
    digests = "".join(shard["index"]["sha256"] for shard in manifest["shards"]).encode()
    must(hashlib.sha256(digests).hexdigest() == facts["rows_sha256"], "sidecars.json")
    for car in facts["sidecars"]:
        files = [(folder / entry["name"]).read_bytes() for entry in car["files"]]
        for data, entry in zip(files, car["files"], strict=True):
            blocks = [data[at : at + 65536] for at in range(0, len(data), 65536)]
            must("".join(f"{crc32c(block):08x}" for block in blocks) == entry["crc32c"], entry["name"])
        if car["kind"] in ("text", "json"):
            found[car["name"]] = [json.loads(line) for line in files[0].splitlines()]
        else:
            rows = np.load(io.BytesIO(files[-1]), allow_pickle=False)
            found[car["name"]] = [*rows] if car["kind"] == "array" else [files[0][a:b] for a, b in pairwise(rows)]
    return found
