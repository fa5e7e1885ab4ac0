"""Files that the formats' own libraries write are adopted: TensorFlow, webdataset, Hugging Face, MosaicML, LitData."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

sys.path.append(str(Path(__file__).parents[1]))
from drawn import image_file
from drawn_masks import draw_mask, picture

from packer import BuildOptions, adopt, build_pack, open_pack
from packer.errors import UsageError
from packer.format.pack import Pack
from packer.format.verify import verify

pytestmark = pytest.mark.filterwarnings("ignore")
IMAGES = [image_file(i) for i in range(12)]
MASKS = [draw_mask(i) for i in range(12)]
"""Of the size of the images."""


def adopted(files: list[Path], out: Path) -> Pack:
    adopt(files, out, overwrite=True)
    assert verify(out, deep=True).problems == ()
    return open_pack(out)


def check(pack: Pack) -> None:
    assert [bytes(pack.record(i)) for i in range(len(IMAGES))] == IMAGES
    assert [pack.annotation(i).label for i in range(len(IMAGES))] == [i % 3 for i in range(len(IMAGES))]


def check_masks(pack: Pack) -> None:
    assert pack.manifest.masks["mask"].dtype == "uint8"
    assert all(np.array_equal(pack.mask(i), mask) for i, mask in enumerate(MASKS))


TENSORFLOW = """
import sys
import tensorflow as tf

def feature(value):
    if isinstance(value[0], bytes):
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=value))
    if isinstance(value[0], float):
        return tf.train.Feature(float_list=tf.train.FloatList(value=value))
    return tf.train.Feature(int64_list=tf.train.Int64List(value=value))

with tf.io.TFRecordWriter(sys.argv[1]) as writer:
    for i, path in enumerate(sys.argv[2:]):
        features = {
            "image/encoded": [open(path, "rb").read()], "image/class/label": [i % 3],
            "image/object/bbox/xmin": [0.1], "image/object/bbox/xmax": [0.5],
            "image/object/bbox/ymin": [0.2], "image/object/bbox/ymax": [0.75], "image/object/class/label": [1],
            "image/segmentation/class/encoded": [open(path + ".png", "rb").read()],  # as DeepLab's build_data.py
            "image/segmentation/class/format": [b"png"],
        }
        example = tf.train.Example(features=tf.train.Features(feature={k: feature(v) for k, v in features.items()}))
        writer.write(example.SerializeToString())
"""


def test_tensorflow(tmp_path: Path) -> None:
    paths = []
    for i, data in enumerate(IMAGES):
        paths.append(tmp_path / f"{i}.jpg")
        paths[-1].write_bytes(data)
        Path(f"{paths[-1]}.png").write_bytes(picture(MASKS[i], palette=True))
    # a process of its own: TensorFlow brings its own protobuf and numpy
    command = [sys.executable, "-c", TENSORFLOW, str(tmp_path / "a.tfrecord"), *map(str, paths)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        assert "No module named" in done.stderr, done.stderr
        pytest.skip("tensorflow is optional, and not installed here")
    pack = adopted([tmp_path / "a.tfrecord"], tmp_path / "pack")
    check(pack)
    boxes = pack.annotation(5).boxes
    assert boxes is not None
    np.testing.assert_allclose(boxes, [[4, 6, 20, 22.5]], atol=1e-5)
    check_masks(pack)


def test_webdataset(tmp_path: Path) -> None:
    webdataset = pytest.importorskip("webdataset", reason="webdataset is optional, and not installed here")
    with webdataset.ShardWriter(str(tmp_path / "%06d.tar"), maxcount=5) as out:
        for i, data in enumerate(IMAGES):
            out.write({"__key__": f"{i:06d}", "jpg": data, "cls": i % 3, "json": {"from": "camera", "number": i}})
    pack = adopted(sorted(tmp_path.glob("*.tar")), tmp_path / "pack")
    check(pack)
    assert len(pack.reader.shards) == 3 and pack.annotation(7).extras == {"from": "camera", "number": 7}


def test_masks_of_webdataset(tmp_path: Path) -> None:
    webdataset = pytest.importorskip("webdataset", reason="webdataset is optional, and not installed here")
    with webdataset.ShardWriter(str(tmp_path / "%06d.tar"), maxcount=5) as out:
        for i, data in enumerate(IMAGES):  # an array becomes a gray PNG
            out.write({"__key__": f"{i:06d}", "jpg": data, "seg.png": MASKS[i]})
    check_masks(adopted(sorted(tmp_path.glob("*.tar")), tmp_path / "pack"))


@pytest.fixture
def dataset() -> Any:
    datasets = pytest.importorskip("datasets", reason="datasets is optional, and not installed here")
    features = datasets.Features({
        "image": datasets.Image(), "label": datasets.ClassLabel(names=["ant", "bee", "cat"]),
    })  # fmt: skip
    rows = {"image": [{"bytes": data, "path": None} for data in IMAGES], "label": [i % 3 for i in range(12)]}
    return datasets.Dataset.from_dict(rows, features=features)


def test_parquet_of_datasets(dataset: Any, tmp_path: Path) -> None:
    dataset.to_parquet(str(tmp_path / "a.parquet"))
    try:
        pack = adopted([tmp_path / "a.parquet"], tmp_path / "pack")
    except UsageError as error:  # before version 5
        assert "compressed" in error.problem
        pytest.skip("this version of datasets compresses images")
    check(pack)
    assert pack.classes == ["ant", "bee", "cat"]


def test_arrow_of_datasets(dataset: Any, tmp_path: Path) -> None:
    dataset.save_to_disk(str(tmp_path / "saved"), num_shards=2)
    pack = adopted([tmp_path / "saved"], tmp_path / "pack")
    check(pack)
    assert pack.classes == ["ant", "bee", "cat"] and len(pack.reader.shards) == 2


@pytest.mark.parametrize("column", ["annotation", "label"])
def test_masks_of_datasets(column: str, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets", reason="datasets is optional, and not installed here")
    masks = [Image.fromarray(mask) if i % 2 else {"bytes": picture(mask, palette=True)} for i, mask in enumerate(MASKS)]
    rows = {"image": [{"bytes": data, "path": None} for data in IMAGES], column: masks}
    features = datasets.Features({"image": datasets.Image(), column: datasets.Image()})
    found = datasets.Dataset.from_dict(rows, features=features)
    found.save_to_disk(str(tmp_path / "saved"), num_shards=2)
    check_masks(adopted([tmp_path / "saved"], tmp_path / "arrow"))
    found.to_parquet(str(tmp_path / "a.parquet"))
    build_pack(BuildOptions(str(tmp_path / "a.parquet"), str(tmp_path / "built.lmdb"), encode="copy", workers=1))
    check_masks(open_pack(tmp_path / "built.lmdb"))
    try:
        check_masks(adopted([tmp_path / "a.parquet"], tmp_path / "pack"))
    except UsageError as error:  # before version 5
        assert "compressed" in error.problem


@pytest.mark.parametrize("kind", ["jpeg", "bytes", "pil"])
def test_mosaicml(kind: str, tmp_path: Path) -> None:
    streaming = pytest.importorskip("streaming", reason="mosaicml-streaming is optional, and not installed here")
    opened = [Image.open(io.BytesIO(data)) for data in IMAGES]
    with streaming.MDSWriter(
        out=str(tmp_path / "mds"), columns={"image": kind, "label": "int"}, size_limit=9000
    ) as out:
        for i, data in enumerate(IMAGES):
            out.write({"image": data if kind == "bytes" else opened[i], "label": i % 3})
    pack = adopted([tmp_path / "mds"], tmp_path / "pack")
    assert len(pack) == 12 and len(pack.reader.shards) > 1
    if kind == "bytes":
        check(pack)
    if kind == "pil":
        assert all((pack.image(i) == np.asarray(opened[i])).all() for i in range(12))
    with streaming.MDSWriter(out=str(tmp_path / "z"), columns={"image": "bytes"}, compression="zstd") as out:
        out.write({"image": IMAGES[0]})
    with pytest.raises(UsageError, match="zstd"):
        adopt(sorted((tmp_path / "z").glob("*.zstd")), tmp_path / "other")


@pytest.mark.parametrize("keys", [True, False])
def test_litdata(keys: bool, tmp_path: Path) -> None:
    pytest.importorskip("litdata", reason="litdata is optional, and not installed here")
    from litdata.streaming.writer import BinaryWriter

    (tmp_path / "chunks").mkdir()
    writer = BinaryWriter(str(tmp_path / "chunks"), chunk_size=5)
    for i, data in enumerate(IMAGES):
        writer.add_item(i, {"image": data, "label": i % 3} if keys else (data, i % 3))
    writer.done()
    writer.merge()
    try:
        adopt([tmp_path / "chunks"], tmp_path / "pack", columns={"image": "image" if keys else "0"})
    except UsageError as error:  # since 0.2.7x, for samples of bytes and numbers
        assert "Arrow table" in error.problem
        pytest.skip("this version of litdata writes such samples as Arrow")
    check(open_pack(tmp_path / "pack"))
