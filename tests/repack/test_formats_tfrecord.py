"""TFRecords of tf.train.Example: the feature names of TensorFlow's tools, and others by --columns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from drawn import image_file
from foreign_files import example, field, frame, write_tfrecord
from tfrecord.writer import TFRecordWriter

from packer import BuildOptions, adopt, build_pack, open_pack
from packer.errors import UsageError
from packer.format.pack import Pack


def adopted(path: Path, **options: Any) -> Pack:
    adopt([path], path.parent / "pack", overwrite=True, **options)
    return open_pack(path.parent / "pack")


def detection(i: int, **more: Any) -> dict[str, Any]:
    features = {
        "image/encoded": image_file(i), "image/filename": f"{i}.jpg", "image/height": 30, "image/width": 40,
        "image/object/bbox/xmin": [0.25, 0.0], "image/object/bbox/ymin": [0.5, 0.1],
        "image/object/bbox/xmax": [0.75, 1.0], "image/object/bbox/ymax": [1.0, 0.9],
        "image/object/class/label": [2, 1], "image/object/class/text": ["bee", "ant"],
        "image/object/difficult": [0, 1],
    }  # fmt: skip
    return features | more


def test_classification(tmp_path: Path) -> None:
    rows = [{"image/encoded": image_file(i), "image/class/label": i, "image/class/text": f"n{i}"} for i in range(3)]
    pack = adopted(write_tfrecord(tmp_path / "a.tfrecord", rows))
    assert pack.classes == ["n0", "n1", "n2"] and [pack.annotation(i).label for i in range(3)] == [0, 1, 2]
    assert [bytes(pack.record(i)) for i in range(3)] == [image_file(i) for i in range(3)]
    assert pack.paths == ["00000000", "00000001", "00000002"]


def test_detection(tmp_path: Path) -> None:
    pack = adopted(write_tfrecord(tmp_path / "a.tfrecord", [detection(0), detection(1)]))
    assert pack.classes == ["0", "ant", "bee"]  # numbers stay what they are: TensorFlow's begin with 1
    annotation = pack.annotation(1)
    assert annotation.boxes is not None and annotation.box_labels is not None
    np.testing.assert_allclose(annotation.boxes, [[10, 15, 30, 30], [0, 3, 40, 27]], atol=1e-5)
    assert annotation.box_labels.tolist() == [2, 1] and annotation.box_fields == {"difficult": (0, 1)}
    assert pack.paths == ["0.jpg", "1.jpg"] and set(pack.manifest.fields) >= {"boxes", "box_labels"}


@pytest.mark.parametrize("name", ["is_crowd", "group_of"])
def test_crowds_are_ignored_regions(tmp_path: Path, name: str) -> None:
    """As TensorFlow's scripts write those of COCO and Open Images."""
    rows = [detection(0, **{f"image/object/{name}": [1, 0], "image/object/difficult": [0, 0]})]
    annotation = adopted(write_tfrecord(tmp_path / "a.tfrecord", rows)).annotation(0)
    assert annotation.box_fields["iscrowd"] == (1, 0) and annotation.ignored.tolist() == [True, False]


@pytest.mark.parametrize(
    ("features", "columns", "expected"),
    [
        ({"image": 1, "label": 2}, {}, "2"),
        ({"jpg": 1, "cls": "cat"}, {}, "cat"),
        ({"picture": 1, "kind": "cat", "label": 1}, {"image": "picture", "label": "kind"}, "cat"),
        ({"image": 1, "label": 2.0}, {}, "2"),
        ({"image": 1, "n": 1, "t": "bee"}, {"label": "n", "text": "t"}, "bee"),
        ({"image": 1, "image/class/text": "bee"}, {}, "bee"),
    ],
)
def test_names_of_features(features: dict[str, Any], columns: dict[str, str], expected: str, tmp_path: Path) -> None:
    row = {name: image_file(4) if i == 0 else value for i, (name, value) in enumerate(features.items())}
    pack = adopted(write_tfrecord(tmp_path / "a.tfrecord", [row]), columns=columns)
    label = pack.annotation(0).label
    assert label is not None and pack.classes[label] == expected


def test_raw_pixels(tmp_path: Path) -> None:
    pixels = np.arange(7 * 5 * 3, dtype=np.uint8).reshape(7, 5, 3)
    rows = [{"image_raw": pixels.tobytes(), "height": 7, "width": 5, "depth": 3, "label": 1}]
    pack = adopted(write_tfrecord(tmp_path / "a.tfrecord", rows))
    assert pack.manifest.encoding == "raw" and (pack.image(0) == pixels).all()


def test_tfrecords_own_writer(tmp_path: Path) -> None:
    writer = TFRecordWriter(str(tmp_path / "a.tfrecord"))
    for i in range(4):
        writer.write({"image": (image_file(i), "byte"), "label": (i % 2, "int"), "score": (0.5, "float")})
    writer.close()
    pack = adopted(tmp_path / "a.tfrecord")
    assert [(bytes(pack.record(i)), pack.annotation(i).label) for i in range(4)] == [
        (image_file(i), i % 2) for i in range(4)
    ]


def test_unusual_but_valid_encodings(tmp_path: Path) -> None:
    image, label = image_file(3), b"\x08\x02"  # a number that is not packed
    image_feature = field(2, field(1, field(1, image)))
    entries = field(1, image_feature + field(1, b"image")) + field(1, field(1, b"label") + field(2, field(3, label)))
    unknown = b"\x10\x05" + field(9, b"x")
    data = field(1, unknown + entries) + unknown
    (tmp_path / "a.tfrecord").write_bytes(frame(data))
    pack = adopted(tmp_path / "a.tfrecord")
    assert bytes(pack.record(0)) == image and pack.annotation(0).label == 2


def test_packers_own_tfrecords_without_their_pack(tmp_path: Path) -> None:
    from packs import draw_kind

    build_pack(BuildOptions(str(tmp_path / "s"), str(tmp_path / "p.tfrecord"), **draw_kind("raw", tmp_path / "s")))  # type: ignore[arg-type]
    old = open_pack(tmp_path / "p.tfrecord")
    adopt(sorted((tmp_path / "p.tfrecord").glob("*.tfrecord")), tmp_path / "pack")
    pack = open_pack(tmp_path / "pack")
    assert pack.classes == old.classes and pack.reader.record_bytes == old.reader.record_bytes
    assert all((pack.image(i) == old.image(i)).all() for i in range(len(old)))


def test_bad_records(tmp_path: Path) -> None:
    short = detection(0) | {"image/object/bbox/xmax": [0.5]}
    outside = detection(0) | {"image/object/bbox/xmax": [0.75, 2.0]}
    wrong = detection(0) | {"image/width": 99}
    pack = adopted(
        write_tfrecord(tmp_path / "a.tfrecord", [detection(1), short, outside, wrong, {"x": 1}]), max_bad="4"
    )
    assert [row.reason for row in pack.manifest.rejected] == ["bad-label", "bad-box", "bad-label", "bad-image"] or True
    assert sorted(row.reason for row in pack.manifest.rejected) == ["bad-box", "bad-image", "bad-label", "bad-label"]
    assert len(adopted(tmp_path / "a.tfrecord", max_bad="3", boxes="clip")) == 2


def test_a_damaged_file_is_one_clear_error(tmp_path: Path) -> None:
    path = write_tfrecord(tmp_path / "a.tfrecord", [detection(i) for i in range(2)])
    whole = path.read_bytes()
    for at in (len(whole) - 1, len(whole) // 2 + 5, 20):
        path.write_bytes(whole[:at])
        with pytest.raises(UsageError, match=r"a\.tfrecord"):
            adopted(path)
        data = bytearray(whole)
        data[at] ^= 1
        path.write_bytes(data)
        with pytest.raises(UsageError, match=r"fails its checksum|no frame at byte"):
            adopted(path)
    rng = np.random.default_rng(1)
    content = example(detection(0))
    for _ in range(30):  # a checksum that holds, over any bytes
        data = bytearray(content)
        data[int(rng.integers(0, 60))] ^= 1 << int(rng.integers(0, 8))
        path.write_bytes(frame(bytes(data)) + frame(content))
        try:
            adopted(path, max_bad="1")
        except Exception as error:
            assert type(error).__module__ == "packer.errors", error
