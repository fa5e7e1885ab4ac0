"""Files that other tools have written are scanned to the very bytes of their images."""

from __future__ import annotations

import io
import json
import struct
import tarfile
import warnings
import zipfile
from pathlib import Path

import h5py
import lmdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
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
        for name, data in (("a.left.jpg", JPEGS["s0"]), ("a.right.jpg", JPEGS["s1"]), ("a.left.jpg", JPEGS["s2"])):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    entries = list(open_container("webdataset").scan(str(tmp_path / "f")))
    assert [(e.key, e.size) for e in entries] == [("a", len(data)) for data in JPEGS.values()]


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


# -- Parquet


FILES = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


def write_parquet(path: Path, rows: list[dict[str, object] | None], **options: object) -> None:
    table = pa.table({"label": pa.array(range(len(rows))), "picture": pa.array(rows, FILES)})
    pq.write_table(table, path, **{"compression": "none", **options})


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("dictionary", [True, False])
@pytest.mark.parametrize("groups", [2, 100])
def test_parquet(version: str, dictionary: bool, groups: int, tmp_path: Path) -> None:
    """As Hugging Face writes it but for the compression: dictionaries, both kinds of pages, rows without an image."""
    a, b, c = JPEGS.values()
    rows = [
        {"bytes": a, "path": "a.jpg"}, None, {"bytes": b, "path": None}, {"bytes": None, "path": "c.jpg"},
        {"bytes": c, "path": "\u00e9.jpg"}, {"bytes": c, "path": "again.jpg"}, {"bytes": b"", "path": "empty"},
    ]  # fmt: skip
    options = {"use_dictionary": dictionary, "data_page_version": version, "row_group_size": groups}
    write_parquet(tmp_path / "f", rows, **options)
    found = scanned("parquet", tmp_path / "f")
    assert found == {"a.jpg": a, "2": b, "\u00e9.jpg": c, "again.jpg": c, "empty": b""}


def test_parquet_of_many_pages(tmp_path: Path) -> None:
    """The dictionary is full after some rows; the others are plain."""
    rows = [{"bytes": picture(i % 700, 10, 10).tobytes(), "path": f"{i}"} for i in range(3000)]
    write_parquet(tmp_path / "f", rows, dictionary_pagesize_limit=100_000, data_page_size=2000, write_batch_size=8)
    assert scanned("parquet", tmp_path / "f") == {row["path"]: row["bytes"] for row in rows}


def test_parquet_of_plain_bytes(tmp_path: Path) -> None:
    columns = {"mask": [b"m"] * 3, "jpg": pa.array(JPEGS.values(), pa.large_binary()), "key": list(JPEGS)}
    fields = [pa.field(name, pa.array(values).type, nullable=False) for name, values in columns.items()]
    table = pa.table(list(columns.values()), schema=pa.schema(fields))
    pq.write_table(table, tmp_path / "f", compression="none", use_dictionary=False)
    assert scanned("parquet", tmp_path / "f") == JPEGS


@pytest.mark.parametrize("dictionary", [False, ["text", "c1"]])
def test_parquet_of_many_columns(dictionary: bool | list[str], tmp_path: Path) -> None:
    """Columns after as many as packer writes are none of its parts."""
    images = [{"bytes": data, "path": name} for name, data in JPEGS.items()]
    others = {f"c{i}": pa.array(range(3)) for i in range(15)}
    table = pa.table(
        {"image": images, **{name: pa.array(column) for name, column in others.items()}, "text": ["a"] * 3}
    )
    pq.write_table(table, tmp_path / "f", compression="none", use_dictionary=dictionary)
    assert scanned("parquet", tmp_path / "f") == JPEGS


@pytest.mark.parametrize("how", ["compressed", "no images", "lists", "delta"])
def test_parquet_that_has_no_places(how: str, tmp_path: Path) -> None:
    rows = [{"bytes": data, "path": key} for key, data in JPEGS.items()]
    if how == "compressed":
        write_parquet(tmp_path / "f", rows, compression="snappy")
    elif how == "delta":
        encoding = {"picture.bytes": "DELTA_LENGTH_BYTE_ARRAY"}
        write_parquet(tmp_path / "f", rows, use_dictionary=False, column_encoding=encoding)
    else:
        column = pa.array([[row] for row in rows], pa.list_(FILES)) if how == "lists" else pa.array([1, 2, 3])
        pq.write_table(pa.table({"image": column}), tmp_path / "f", compression="none")
    problem = {"compressed": r"compressed \(SNAPPY\)", "delta": "encoding 6, which is not plain"}
    with pytest.raises(DamagedPack, match=problem.get(how, "no column of images")):
        scanned("parquet", tmp_path / "f")


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
NUMBERED = {str(i): data for i, data in enumerate(PIXELS)}


@pytest.mark.parametrize("separator", ["/", "."])
def test_zarr_in_chunks(separator: str, tmp_path: Path) -> None:
    """Chunks of two images, of which the last has room for one more; an array that is the root of the file."""
    names = [separator.join(["c", str(i), "0", "0", "0"]) for i in range(3)]
    parts = [b"".join([*PIXELS, bytes(60)][i : i + 2]) for i in (0, 2, 4)]
    node = zarr_array((5, 5, 4, 3), (2, 5, 4, 3), separator=separator)
    write_zip(tmp_path / "f", {**dict(zip(names, parts, strict=True)), "zarr.json": node})
    assert scanned("zarr", tmp_path / "f") == NUMBERED


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
    assert scanned("zarr", tmp_path / "f") == NUMBERED


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
    with pytest.raises(DamagedPack, match=problem.get(how, "not a Zarr file of images")):
        scanned("zarr", tmp_path / "f")


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
    assert scanned("n5", tmp_path / "f") == NUMBERED


@pytest.mark.parametrize(("compression", "mode"), [("gzip", 0), ("raw", 1)])
def test_n5_that_has_no_places(compression: str, mode: int, tmp_path: Path) -> None:
    write_zip(tmp_path / "f", n5_files(compression, mode))
    with pytest.raises(DamagedPack, match="of another mode" if mode else r"compressed \(gzip\)"):
        scanned("n5", tmp_path / "f")
