"""Each container read back with its users' own libraries: no line of packer between file and test."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import h5py
import lmdb
import numpy as np
import pytest
from container_records import ANNOTATIONS, CLASSES, IMAGES, expected_json, records_of, write_shard
from foreign_readers import PART_READERS, READERS
from PIL import Image

from packer.errors import UsageError
from packer.model.annotation import Annotation, Record


@pytest.mark.parametrize("kind", IMAGES)
@pytest.mark.parametrize("container", READERS)
def test_read_back(container: str, kind: str, tmp_path: Path) -> None:
    records = records_of(kind, ANNOTATIONS.values())
    path = str(tmp_path / "shard.tar")
    write_shard(container, path, kind, records)
    found = list(READERS[container](path))
    assert len(found) == len(records)
    for record, (key, image, note) in zip(records, found, strict=True):
        assert key == record.key
        assert note == expected_json(record)
        if record.encoding != "raw":
            assert image == record.data
            assert Image.open(io.BytesIO(image)).size == (record.width, record.height)
        else:
            assert image.dtype == np.dtype(record.dtype) and image.shape == record.shape
            assert image.tobytes() == record.data


@pytest.mark.parametrize("container", PART_READERS)
def test_parts_read_back(container: str, tmp_path: Path) -> None:
    records = records_of("parts", [*ANNOTATIONS.values()] * 2)
    path = str(tmp_path / "shard.tar")
    write_shard(container, path, "parts", records)
    found = list(PART_READERS[container](path))
    assert found == [{part.name: part.data for part in record.parts} for record in records]
    assert {len(of_record) for of_record in found} == {0, 1, 2} and b"" in [one.get("aux") for one in found]


def test_lmdb_opens_as_a_directory(tmp_path: Path) -> None:
    records = records_of("jpeg", [Annotation(label=1)] * 3)
    write_shard("lmdb", str(tmp_path / "data.mdb"), "jpeg", records)
    with lmdb.open(str(tmp_path)) as env, env.begin() as transaction:
        assert transaction.get(b"00000001.jpg") == records[1].data
        assert env.stat()["entries"] == 6


def test_lmdb_file_is_as_long_as_its_pages(tmp_path: Path) -> None:
    path = tmp_path / "shard"
    write_shard("lmdb", str(path), "raw", records_of("raw", [Annotation(label=1)] * 100))
    with lmdb.open(str(path), subdir=False, readonly=True, lock=False) as env:
        assert path.stat().st_size == (env.info()["last_pgno"] + 1) * env.stat()["psize"]


def test_tar_members(tmp_path: Path) -> None:
    records = records_of("png", [Annotation(label=1), Annotation()])
    path = str(tmp_path / "shard.tar")
    write_shard("webdataset", path, "png", records)
    with tarfile.open(path) as tar:
        members = tar.getmembers()
        assert [m.name for m in members] == [
            "00000000.png", "00000000.cls", "00000000.json", "00000001.png", "00000001.json",
        ]  # fmt: skip
        assert {(m.mtime, m.uid, m.gid, m.mode, m.type) for m in members} == {(0, 0, 0, 0o644, tarfile.REGTYPE)}
        assert tar.extractfile(members[0]).read() == records[0].data  # type: ignore[union-attr]
        assert tar.extractfile(members[1]).read() == b"1"  # type: ignore[union-attr]
    # our headers are those that tarfile would write
    other = io.BytesIO()
    with (
        tarfile.open(fileobj=other, mode="w", format=tarfile.USTAR_FORMAT) as tar,
        tarfile.open(path) as ours,
    ):
        for member in ours:
            info = tarfile.TarInfo(member.name)
            info.size = member.size
            tar.addfile(info, ours.extractfile(member))
    assert other.getvalue() == Path(path).read_bytes()


def test_hdf5_arrays(tmp_path: Path) -> None:
    notes = [ANNOTATIONS[name] for name in ("boxes", "none", "empty", "keypoints", "label")]
    path = str(tmp_path / "shard")
    write_shard("hdf5", path, "raw", records_of("raw", notes))
    with h5py.File(path, "r") as file:
        assert file["images"].shape == (5, 8, 6, 3) and file["images"].dtype == np.uint8
        assert file["labels"][:].tolist() == [-1, -1, 0, -1, 2]
        assert file["box_offsets"][:].tolist() == [0, 2, 2, 2, 4, 4]
        assert file["boxes"].shape == (4, 4) and file["boxes"].dtype == np.float32
        assert file["box_labels"][:].tolist() == [2, 0, 0, 1]
        assert [c.decode() for c in file["classes"][:]] == list(CLASSES)
        assert "keypoints" not in file  # two boxes have none: only the JSON has the others


@pytest.mark.parametrize(("lengths", "shape"), [((3, 3), (2, 3, 2)), ((3, 1), (4, 2)), ((2, None), (2, 2))])
def test_hdf5_landmarks(lengths: tuple[int | None, ...], shape: tuple[int, ...], tmp_path: Path) -> None:
    notes = [Annotation(landmarks=None if k is None else np.ones((k, 2), np.float32)) for k in lengths]
    path = str(tmp_path / "shard")
    write_shard("hdf5", path, "raw", records_of("raw", notes))
    with h5py.File(path, "r") as file:
        assert file["landmarks"].shape == shape
        assert ("landmark_offsets" in file) == (len(shape) == 2)
        assert "labels" not in file and "boxes" not in file


def test_hdf5_keypoints(tmp_path: Path) -> None:
    notes = [ANNOTATIONS["keypoints"], Annotation(), ANNOTATIONS["empty"], ANNOTATIONS["keypoints"]]
    path = str(tmp_path / "shard")
    write_shard("hdf5", path, "raw", records_of("raw", notes))
    with h5py.File(path, "r") as file:
        assert file["keypoints"].shape == (4, 2, 3)
        assert file["keypoints"][:2].tolist() == ANNOTATIONS["keypoints"].keypoints.tolist()  # type: ignore


def test_hdf5_oriented_boxes(tmp_path: Path) -> None:
    path = str(tmp_path / "shard")
    write_shard("hdf5", path, "raw", records_of("raw", [ANNOTATIONS["obb"], ANNOTATIONS["empty"], ANNOTATIONS["obb"]]))
    with h5py.File(path, "r") as file:
        assert np.array_equal(file["obb"][:], np.concatenate([ANNOTATIONS["obb"].obb] * 2))  # type: ignore[list-item]


def test_tfrecord_features(tmp_path: Path) -> None:
    from tfrecord.reader import tfrecord_loader

    records: list[Record] = records_of("jpeg", [ANNOTATIONS[n] for n in ("boxes", "empty", "landmarks")])
    path = str(tmp_path / "shard")
    write_shard("tfrecord", path, "jpeg", records)
    boxes, empty, landmarks = (dict(e) for e in tfrecord_loader(path, None))
    assert boxes["image/format"] == b"jpeg" and boxes["image/height"] == 8 and boxes["image/width"] == 6
    assert boxes["image/filename"] == records[0].path
    np.testing.assert_allclose(boxes["image/object/bbox/xmax"], [5 / 6, 0.5])
    np.testing.assert_allclose(boxes["image/object/bbox/ymin"], [0, 2 / 8])
    assert boxes["image/object/class/label"].tolist() == [2, 0]
    assert boxes["image/object/class/text"].tolist() == ["café".encode(), b"ant"]
    assert boxes["image/object/difficult"].tolist() == [0, 1]
    assert boxes["image/object/view"].tolist() == [b"Left", b"\xff"]
    assert empty["image/object/bbox/xmin"].shape == (0,) and empty["image/class/label"] == 0
    assert landmarks["image/landmarks/x"].tolist() == [1, -3.5, 1e6]
    assert "image/object/bbox/xmin" not in landmarks


def test_n5_of_more_bytes_than_java_can_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records = records_of("jpeg", [Annotation()] * 3)
    monkeypatch.setattr("packer.containers.n5._LARGEST_BLOCK", 2 * len(records[0].data))
    with pytest.raises(UsageError, match=r"shard_bytes: a shard .* holds at most .* make the shards smaller"):
        write_shard("n5", str(tmp_path / "shard"), "jpeg", records)
