"""`packer.PackWriter`: packs of images in memory."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from drawn import image_file
from running import good

import packer
from packer import PackedLoader, PackWriter, open_pack
from packer.containers import CONTAINERS
from packer.errors import BadImage, BadLabel, TooManyBad, UsageError
from packer.format.pack import Pack
from packer.format.verify import verify

RNG = np.random.default_rng(0)
ALIKE = RNG.integers(0, 256, (7, 6, 5, 3)).astype(np.uint8)
SIZES = [RNG.integers(0, 256, (4 + i, 9 - i, 3)).astype(np.uint8) for i in range(5)]
every_container = pytest.mark.parametrize("container", CONTAINERS)


def opened(path: Path) -> Pack:
    assert verify(path, deep=True).problems == ()
    return open_pack(path)


@every_container
@pytest.mark.parametrize("encode", ["raw", "png"])
@pytest.mark.parametrize("images", [ALIKE, SIZES], ids=["alike", "sizes"])
def test_arrays(container: str, encode: str, images: Any, tmp_path: Path) -> None:
    with PackWriter(tmp_path / "p", format=container, encode=encode, classes=["ant", "bee", "cat"]) as writer:
        for number, image in enumerate(images):
            writer.write(image, label=number % 3 if number % 2 else ["ant", "bee", "cat"][number % 3])
        assert len(writer) == len(images)
    pack = opened(tmp_path / "p")
    assert pack.manifest.container == container and pack.manifest.encoding == encode and pack.manifest.mode == "rgb"
    assert pack.classes == ["ant", "bee", "cat"]
    for number, (image, annotation) in enumerate(pack):
        assert (image == images[number]).all() and annotation.label == number % 3
    assert pack.manifest.shape == ((6, 5, 3) if images is ALIKE else None)
    assert pack.manifest.counts == {"found": len(images), "packed": len(images), "rejected": 0, "skipped": 0}
    said = good("info", tmp_path / "p").out
    assert "made from  PackWriter: images in memory" in said and "\nlabels     label\n" in said
    good("convert", tmp_path / "p", tmp_path / "c", "--format", "tfrecord")
    assert f"equal: {len(images)} records\n" in good("diff", tmp_path / "p", tmp_path / "c").out


@every_container
def test_several_shards(container: str, tmp_path: Path) -> None:
    with PackWriter(tmp_path / "p", format=container, shard_bytes=200) as writer:
        for number, image in enumerate(ALIKE):
            writer.write(image, label=number)
    pack = opened(tmp_path / "p")
    assert len(pack.reader.shards) == 3 and pack.classes == [str(n) for n in range(7)]
    assert all((image == ALIKE[i]).all() and annotation.label == i for i, (image, annotation) in enumerate(pack))
    images, labels = next(iter(PackedLoader(tmp_path / "p", 7)))
    assert (images.numpy().transpose(0, 2, 3, 1) == ALIKE).all() and labels.tolist() == list(range(7))


def test_files_stay_as_they_are(tmp_path: Path) -> None:
    files = [image_file(0), image_file(1, format="PNG"), image_file(2)]
    with PackWriter(tmp_path / "p.tar") as writer:
        for number, data in enumerate(files):
            writer.write(data if number else memoryview(data), path=f"frames/{number}.jpg")
    pack = opened(tmp_path / "p.tar")
    assert [bytes(pack.record(i)) for i in range(3)] == files and pack.paths[1] == "frames/1.jpg"
    assert (pack.manifest.container, pack.manifest.encoding) == ("webdataset", "copy")
    assert pack[0].image.shape == (30, 40, 3) and pack[0].annotation.label is None


@pytest.mark.parametrize(
    ("dtype", "channels", "mode"), [("uint8", 1, "gray"), ("uint16", 1, "unchanged"), ("uint8", 4, "unchanged")]
)
def test_other_pixels(dtype: str, channels: int, mode: str, tmp_path: Path) -> None:
    image = RNG.integers(0, 256, (5, 4, channels)).astype(dtype) * (1 if dtype == "uint8" else 200)
    with PackWriter(tmp_path / "p") as writer:
        writer.write(image[:, :, 0] if channels == 1 else image)
        writer.write(np.asfortranarray(image))
    pack = opened(tmp_path / "p")
    assert pack.manifest.mode == mode and all((sample.image == image).all() for sample in pack)


def test_objects(tmp_path: Path) -> None:
    with PackWriter(tmp_path / "p", classes=("ant", "bee")) as writer:
        writer.write(
            ALIKE[0], boxes=[[0, 1, 3, 4], [1, 1, 2, 2]], box_labels=["bee", 0], landmarks=np.array([[1, 2]]),
            keypoints=[[[1, 1, 2]], [[2, 2, 0]]], polygons=[[(0, 1), (3, 1), (3, 4)], np.zeros((0, 2))],
            box_fields={"difficult": [0, 1]}, extras={"night": True},
        )  # fmt: skip
        writer.write(ALIKE[1], boxes=np.zeros((0, 4)), box_labels=[], keypoints=np.zeros((0, 1, 3)))
        writer.write(ALIKE[2])
    pack = opened(tmp_path / "p")
    one, two, three = (annotation for _, annotation in pack)
    assert one.boxes.tolist() == [[0, 1, 3, 4], [1, 1, 2, 2]] and one.box_labels.tolist() == [1, 0]
    assert one.landmarks.tolist() == [[1, 2]] and one.keypoints.shape == (2, 1, 3) and one.extras == {"night": True}
    assert [len(polygon) for polygon in one.polygons] == [3, 0] and one.box_fields == {"difficult": (0, 1)}
    assert len(two.boxes) == 0 and three.boxes is None
    assert pack.manifest.notes == ("1 image has neither a label nor boxes",)
    assert pack.manifest.class_counts == {"boxes": [1, 1]}


WRONG = [
    ({"image": np.zeros((3, 8, 8), np.uint8)}, BadImage, r"record 1: an array of uint8 \(3, 8, 8\).*image.transpose"),
    ({"image": np.zeros((8, 8, 3))}, BadImage, r"float64.*convert it"),
    ({"image": b"no image"}, BadImage, "record 1: "),
    ({"image": image_file(0)}, UsageError, "record 1: is an image file, but others are not"),
    ({"label": "dog"}, BadLabel, "record 1: class dog is not in the class list of 2 names"),
    ({"label": 2}, BadLabel, "record 1: has the class 2, not one of 0 to 1"),
    ({"label": 0.5}, BadLabel, "has the class 0.5"),
    ({"boxes": [[0, 0, 9, 9]]}, BadLabel, "record 1: box"),
    ({"boxes": [0, 0, 3, 3]}, BadLabel, r"has boxes of shape \(4,\), not \(n, 4\)"),
    ({"boxes": [[0, 0, 1, 1]], "box_labels": [0, 1]}, BadLabel, "record 1: "),
    ({"boxes": [[0, 0, 1, 1]], "box_fields": {"difficult": [0, 1]}}, BadLabel, "has 2 box_fields for 1 box"),
    ({"bboxes": [[0, 0, 1, 1]]}, TypeError, "unknown field 'bboxes'; did you mean boxes?"),
    ({"tags": [1]}, TypeError, "fields are boxes, box_labels"),
    ({"extras": {"a": float("nan")}}, BadLabel, "finite|JSON"),
    ({"image": "a.jpg"}, BadImage, r"read it: Path\(image\).read_bytes\(\)"),
    ({"label": True}, BadLabel, "has the class True"),
    ({"boxes": "abc"}, BadLabel, "has boxes that are not an array of numbers"),
    ({"extras": 3}, BadLabel, 'has extras that is not a mapping; write extras={"name": value}'),
    ({"boxes": [[0, 0, 3, 3]], "polygons": [[(0, 0), (3, 0), (3, 3)]], "masks": [None]}, BadLabel,
     "record 1: has polygons and masks, and a record keeps one of them; give masks=, which are exact, or polygons="),
    ({"path": "first"}, UsageError, "first: cannot be the name of a record, or was given before"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "kind", "message"), WRONG, ids=range(len(WRONG)))
def test_what_is_wrong_is_not_added(given: dict[str, Any], kind: type[Exception], message: str, tmp_path: Path) -> None:
    with PackWriter(tmp_path / "p", classes=["ant", "bee"]) as writer:
        writer.write(ALIKE[0], label=0, path="first")
        with pytest.raises(kind, match=message):
            writer.write(**{"image": ALIKE[1], **given})
        writer.write(ALIKE[2], label=1)
    pack = opened(tmp_path / "p")
    assert len(pack) == 2 and (pack[1].image == ALIKE[2]).all()


def test_a_block_that_raises_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), PackWriter(tmp_path / "p", shard_bytes=1) as writer:
        writer.write(ALIKE[0])
        raise RuntimeError
    assert os.listdir(tmp_path) == []
    with pytest.raises(UsageError, match="has no record"), PackWriter(tmp_path / "p"):
        pass
    assert os.listdir(tmp_path) == []
    with pytest.raises(UsageError, match="is closed"):
        writer.write(ALIKE[0])


def test_a_number_that_is_no_class(tmp_path: Path) -> None:
    with PackWriter(tmp_path / "p") as writer:
        writer.write(ALIKE[0], label=65535)
        with pytest.raises(BadLabel, match="has the class 20261126, not one of 0 to 65535"):
            writer.write(ALIKE[1], label=20261126)
    assert len(opened(tmp_path / "p").classes) == 65536


def test_without_with(tmp_path: Path) -> None:
    writer = PackWriter(tmp_path / "p")
    writer.write(ALIKE[0], label=5)
    writer.close()
    writer.close()
    assert opened(tmp_path / "p")[0].annotation.label == 5
    with pytest.raises(UsageError, match="exists"):
        PackWriter(tmp_path / "p")
    with PackWriter(tmp_path / "p", overwrite=True) as writer:
        writer.write(ALIKE[1], label=1)
    assert opened(tmp_path / "p").classes == ["0", "1"]


def test_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        with PackWriter(tmp_path / name, encode="jpeg") as writer:
            for image in SIZES:
                writer.write(image)
    assert all(
        (tmp_path / "a" / n).read_bytes() == (tmp_path / "b" / n).read_bytes() for n in os.listdir(tmp_path / "a")
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"format": "zip"}, "must be one of"),
        ({"encode": "webp"}, "must be one of raw, jpeg, png, bmp"),
        ({"quality": 0}, "1 to 100"),
        ({"shard_bytes": 0}, "at least 1"),
        ({"classes": "ant"}, r'must be names, got \'ant\'; write classes=\["ant", "bee"\]'),
        ({"classes": ["a", "a"]}, "has a name twice"),
    ],
)
def test_options(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=message):
        PackWriter(tmp_path / "p", **options)
    assert os.listdir(tmp_path) == []


def test_the_work_of_a_build_is_not_removed(tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / f"{number}.jpg").write_bytes(image_file(number)[: -100 if number == 2 else None])
    with pytest.raises(TooManyBad):
        packer.build(tmp_path, tmp_path.parent / "p", shard_bytes=1, workers=1, labels="none", resize=8)
    left = tmp_path.parent / "p.partial"
    before = {path.name for path in left.rglob("*")}
    assert "shard-00000.lmdb" in before
    with pytest.raises(UsageError, match=r"p.partial: holds finished shards of a build; run that build again"):
        PackWriter(tmp_path.parent / "p")
    assert {path.name for path in left.rglob("*")} == before
