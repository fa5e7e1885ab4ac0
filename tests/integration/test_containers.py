"""Containers as the libraries of their formats read them, and the examples of docs/formats.md that need those."""

from __future__ import annotations

import json
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from doc_blocks import ROOT, run_elsewhere
from drawn import draw_shots

sys.path.append(str(ROOT / "tests" / "containers"))  # its readers and records
from container_records import ANNOTATIONS, CLASSES, IMAGES, expected_json, picture, records_of, write_shard
from foreign_readers import READERS

from packer import BuildOptions, build_pack
from packer.containers import n5
from packer.model.annotation import Annotation, Record

datasets = pytest.importorskip("datasets", reason="datasets is optional, and not installed here")
ts = pytest.importorskip("tensorstore", reason="tensorstore is optional, and not installed here")
pytest.importorskip("zarr", reason="zarr is optional, and not installed here")
pytest.importorskip("z5py", reason="z5py is optional, and not installed here")


@pytest.fixture(autouse=True)
def _caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


@pytest.mark.parametrize("kind", IMAGES)
@pytest.mark.parametrize("container", ["zarr", "n5"])
def test_read_back(container: str, kind: str, tmp_path: Path) -> None:
    records = records_of(kind, ANNOTATIONS.values())
    write_shard(container, str(tmp_path / "shard"), kind, records)
    found = list(READERS[container](str(tmp_path / "shard")))
    for record, (key, image, note) in zip(records, found, strict=True):
        assert (key, note) == (record.key, expected_json(record))
        assert (image if record.encoding != "raw" else image.tobytes()) == record.data


def opened(driver: str, path: Path) -> Any:
    store = {"driver": "zip", "base": f"file://{path}", "path": "images/"}
    return ts.open({"driver": driver, "kvstore": store}, read=True).result()


@pytest.mark.parametrize("kind", IMAGES)
def test_shard_of_zarr_has_the_bytes_of_tensorstore(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "shard.zarr.zip"
    write_shard("zarr", str(path), kind, records_of(kind, ANNOTATIONS.values()))
    images = opened("zarr3", path).read().result()
    with zipfile.ZipFile(path) as file:
        metadata = json.loads(file.read("images/zarr.json"))
        theirs = ts.open({"driver": "zarr3", "kvstore": "memory://", "metadata": metadata}, create=True).result()
        theirs[...] = images
        (name,) = (key.decode() for key in theirs.kvstore.list().result() if key != b"zarr.json")
        assert theirs.kvstore.read(name).result().value == file.read(f"images/{name}")


def test_blocks_of_n5(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several blocks, the last of which is not full."""
    monkeypatch.setattr(n5, "_BLOCK_BYTES", 3 * 8 * 6 * 3)
    records = records_of("raw", [Annotation(label=1)] * 8)
    path = tmp_path / "shard.n5.zip"
    write_shard("n5", str(path), "raw", records)
    expected = b"".join(record.data for record in records)
    assert np.transpose(opened("n5", path).read().result()).tobytes() == expected
    assert b"".join(image.tobytes() for _, image, _ in READERS["n5"](str(path))) == expected


@pytest.mark.parametrize("kind", ["raw", "ragged", "gray", "jpeg", "mixed"])
def test_datasets_shows_pictures(kind: str, tmp_path: Path) -> None:
    records = records_of(kind, ANNOTATIONS.values())
    write_shard("parquet", str(tmp_path / "shard"), kind, records)
    data = datasets.load_dataset("parquet", data_files=str(tmp_path / "shard"), split="train")
    assert data.features["label"].names == data.features["objects"]["labels"].feature.names == list(CLASSES)
    for record, row in zip(records, data, strict=True):
        assert row["image"].size == (record.width, record.height)
        if record.encoding == "raw":
            assert np.asarray(row["image"]).tobytes() == record.data
        note = expected_json(record)
        assert all(row[name] == note.get(name) for name in ("label", "landmarks", "keypoints"))
        assert (row["objects"] or {}).get("boxes") == note.get("boxes")
        assert json.loads(row["annotation"]) == note


def test_datasets_shows_bytes_where_there_are_no_pictures(tmp_path: Path) -> None:
    pixels = picture(0, 5, 4, 4)
    record = Record("00000000", pixels.tobytes(), "raw", *pixels.shape, "uint8", Annotation(), b"a.png")
    write_shard("parquet", str(tmp_path / "two"), "raw", [record])
    write_shard("parquet", str(tmp_path / "wide"), "raw16", records_of("raw16", [Annotation()]))
    for name in ("two", "wide"):
        (row,) = datasets.load_dataset("parquet", data_files=str(tmp_path / name), split="train")
        assert row["image"]["bytes"].startswith(b"\x93NUMPY")


def test_examples_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    draw_shots(tmp_path / "shots")
    for container in ("parquet", "zarr", "n5"):
        labels = {"labels": ("voc", "list:shots/landmarks.txt"), "columns": ("path (x y)*5 label",)}
        build_pack(BuildOptions("shots", f"imgs.{container}", shard_bytes=8000, workers=1, **labels))
    assert run_elsewhere(ROOT / "docs" / "formats.md", "test_containers.py") == 4
