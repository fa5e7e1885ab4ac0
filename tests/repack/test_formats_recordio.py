"""RecordIO as MXNet's `im2rec` and InsightFace write it, by a writer of its own."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from drawn import image_file, pixels
from PIL import Image

from packer import adopt, open_pack
from packer.errors import TooManyBad, UsageError
from packer.format.verify import verify

MAGIC = 0xCED7230A


def frame(data: bytes, split: int = 0) -> bytes:
    return struct.pack("<II", MAGIC, split << 29 | len(data)) + data + bytes(-len(data) % 4)


def record(number: int, label: float | list[float], image: bytes) -> bytes:
    """A record as `mxnet.recordio.pack` makes it: IRHeader, the vector if the label is one, the image."""
    vector = label if isinstance(label, list) else []
    head = struct.pack("<IfQQ", len(vector), 0.0 if vector else label, number, 0)  # type: ignore[str-format]
    return frame(head + struct.pack(f"<{len(vector)}f", *vector) + image)


def test_classes(tmp_path: Path) -> None:
    labels = [3, 0, 1]
    (tmp_path / "a.rec").write_bytes(b"".join(record(i, n, image_file(i)) for i, n in enumerate(labels, 7)))
    adopt([tmp_path / "a.rec"], tmp_path / "pack")
    pack = open_pack(tmp_path / "pack")
    assert verify(tmp_path / "pack", deep=True).problems == ()
    assert [pack.annotation(i).label for i in range(3)] == labels and pack.classes == ["0", "1", "2", "3"]
    assert pack.paths == ["00000007", "00000008", "00000009"]
    assert all(bytes(pack.record(i)) == image_file(i + 7) for i in range(3))


def test_faces(tmp_path: Path) -> None:
    """InsightFace: the first record says how many images and identities there are, and has no image; then come the
    images with the identity first in a vector; then identities, each with the range of its images."""
    faces = [record(i, [float(i % 2), 0.5], image_file(i)) for i in range(1, 5)]
    people = [record(5 + i, [1.0 + i, 3.0 + i], b"") for i in range(2)]
    (tmp_path / "train.rec").write_bytes(b"".join([record(0, [5.0, 7.0], b""), *faces, *people]))
    adopt([tmp_path / "train.rec"], tmp_path / "pack")
    pack = open_pack(tmp_path / "pack")
    assert [pack.annotation(i).label for i in range(len(pack))] == [1, 0, 1, 0]
    assert np.abs(np.asarray(pack.image(0), int) - np.asarray(pixels(1), int)).mean() < 20


def test_detection(tmp_path: Path) -> None:
    """`im2rec --pack-label`: 2 or more numbers before the objects, 5 or more for each, boxes in fractions."""
    first = [4.0, 5.0, 40.0, 30.0, 1.0, 0.25, 0.1, 0.5, 0.9, 0.0, 0.0, 0.0, 1.0, 1.0]
    second = [2.0, 6.0, 2.0, 0.5, 0.5, 0.75, 1.0, 1.0, -1.0, 0.0, 0.0, 0.0, 0.0, 0.0]
    records = [record(i, label, image_file(i)) for i, label in enumerate((first, second))]
    (tmp_path / "a.rec").write_bytes(b"".join(records))
    adopt([tmp_path / "a.rec"], tmp_path / "pack")
    pack = open_pack(tmp_path / "pack")
    one, two = pack.annotation(0), pack.annotation(1)
    np.testing.assert_allclose(one.boxes, [[10, 3, 20, 27], [0, 0, 40, 30]], atol=1e-5)  # type: ignore[arg-type]
    assert one.box_labels.tolist() == [1, 0]  # type: ignore[union-attr]
    np.testing.assert_allclose(two.boxes, [[20, 15, 30, 30]], atol=1e-5)  # type: ignore[arg-type]
    assert two.box_labels.tolist() == [2]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (lambda: frame(b"x" * 40, split=1), "split into parts"),
        (lambda: record(0, 1, image_file(0))[:-8], "is truncated"),
        (lambda: frame(struct.pack("<IfQQ", 1 << 20, 0, 0, 0)), "a label vector of 1048576 numbers"),
        (lambda: record(0, 1, image_file(0)) + b"garbage!", "no record at byte"),
    ],
    ids=["split", "cut", "long label", "garbage"],
)
def test_damage(content: object, message: str, tmp_path: Path) -> None:
    (tmp_path / "a.rec").write_bytes(content())  # type: ignore[operator]
    with pytest.raises(UsageError, match=message):
        adopt([tmp_path / "a.rec"], tmp_path / "pack")


def test_a_label_that_is_no_class(tmp_path: Path) -> None:
    (tmp_path / "a.rec").write_bytes(record(0, 0.25, image_file(0)) + record(1, 1.0, image_file(1)))
    adopt([tmp_path / "a.rec"], tmp_path / "pack", max_bad="1")
    pack = open_pack(tmp_path / "pack")
    assert len(pack) == 1 and "0.25, which is not the number of a class" in pack.manifest.rejected[0].problem
    Image.fromarray(pack.image(0))


def test_images_without_objects(tmp_path: Path) -> None:
    """A label that ends before its first object is of an image without any, if other images have some."""
    none, one = [2.0, 5.0], [2.0, 5.0, 1.0, 0.25, 0.1, 0.5, 0.9]
    for labels in ([none, one], [one, none, none]):
        (tmp_path / "a.rec").write_bytes(b"".join(record(i, v, image_file(i)) for i, v in enumerate(labels)))
        adopt([tmp_path / "a.rec"], tmp_path / "pack", overwrite=True)
        pack = open_pack(tmp_path / "pack")
        counts = [len(pack.annotation(i).boxes) for i in range(len(labels))]  # type: ignore[arg-type]
        assert counts == [int(label is one) for label in labels]
    (tmp_path / "a.rec").write_bytes(record(0, none, image_file(0)) + record(1, [3.0, 5.0], image_file(1)))
    adopt([tmp_path / "a.rec"], tmp_path / "pack", overwrite=True)  # InsightFace: the class, and another number
    assert [open_pack(tmp_path / "pack").annotation(i).label for i in (0, 1)] == [2, 3]


@pytest.mark.parametrize(
    "numbers", [(float("nan"), 0, 0, 1, 1), (0, 0, float("inf"), 1, 1), (70_000, 0, 0, 1, 1), (-2, 0, 0, 1, 1)]
)
def test_objects_that_are_none(numbers: tuple[float, ...], tmp_path: Path) -> None:
    records = [record(0, [2.0, 5.0, *numbers], image_file(0)), record(1, [2.0, 5.0, 1, 0, 0, 1, 1], image_file(1))]
    (tmp_path / "a.rec").write_bytes(b"".join(records))
    with pytest.raises(TooManyBad, match="an object has a class that is none of 0 to 65535, or a box"):
        adopt([tmp_path / "a.rec"], tmp_path / "pack")
    adopt([tmp_path / "a.rec"], tmp_path / "pack", max_bad="1")
    assert open_pack(tmp_path / "pack").paths == ["00000001"]


@pytest.mark.parametrize(
    "note", ['{"key": "0", "path', '{"key": "0", "encoding": "raw", "path": "a"}', '{"key": "' + "[" * 20_000]
)
def test_notes_of_packer_that_are_none(note: str, tmp_path: Path) -> None:
    data = struct.pack("<IfQQ", 0, 1, 0, 0) + image_file(0) + note.encode()
    (tmp_path / "a.rec").write_bytes(frame(data + struct.pack("<I8s", len(note), b"\0packer\0")))
    with pytest.raises(TooManyBad, match="its annotation cannot be read"):
        adopt([tmp_path / "a.rec"], tmp_path / "pack")


def test_payloads_that_are_no_image_are_bad(tmp_path: Path) -> None:
    (tmp_path / "a.rec").write_bytes(record(0, 1, bytes(64 * 64 * 3)))
    with pytest.raises(TooManyBad, match="1 of 1 input is bad"):
        adopt([tmp_path / "a.rec"], tmp_path / "pack")


def test_the_index_beside_is_skipped(tmp_path: Path) -> None:
    (tmp_path / "a.rec").write_bytes(record(0, 1, image_file(0)))
    (tmp_path / "a.idx").write_text("0\t0\n")
    (tmp_path / "old.index.arrow").write_bytes(b"ARROW1\0\0")
    for files in ([tmp_path], [tmp_path / "a.rec", tmp_path / "a.idx"]):
        adopt(files, tmp_path.parent / "pack", overwrite=True)
        assert len(open_pack(tmp_path.parent / "pack")) == 1
