"""PackWriter takes parts of any kind from memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from packer import PackWriter
from packer.errors import BadPart, UsageError
from packer.format.pack import Pack

PICTURES = [np.zeros((9, 12), kind) for kind in ("int64", "int16", "float32", "float64", "bool")]
KINDS = {"depth": "map", "right": "image", "code": "array", "text": "text", "more": "json", "tri": "mask"}


def values(i: int) -> dict[str, Any]:
    random = np.random.default_rng(i)
    return {
        "depth": random.random((9, 12), np.float32), "right": random.integers(0, 256, (9, 12, 3), np.uint8),
        "code": random.random((2, 3)), "text": f"nr. {i}", "more": {"n": [i]},
        "tri": random.integers(0, 3, (9, 12)).astype(np.uint8),
    }  # fmt: skip


@pytest.mark.parametrize("name", ["p.lmdb", "p.parquet", "p.webdataset", "p.hdf5"])
@pytest.mark.parametrize("encode", ["raw", "png"])
def test_parts_from_memory(name: str, encode: str, tmp_path: Path) -> None:
    with PackWriter(tmp_path / name, parts=KINDS, encode=encode) as writer:
        for i in range(4):
            given = values(i)
            if i == 2:
                del given["text"], given["depth"]
            writer.write(np.zeros((9, 12, 3), np.uint8), parts=given)
    pack = Pack(tmp_path / name)
    assert pack.manifest.parts == KINDS
    for i in range(4):
        for part, wanted in values(i).items():
            found = pack.part(i, part)
            if i == 2 and part in ("text", "depth"):
                assert found is None
            elif isinstance(wanted, np.ndarray):
                assert found.dtype == wanted.dtype and np.array_equal(found, wanted)
            else:
                assert found == wanted


def test_files_of_parts(tmp_path: Path) -> None:
    image = cv2.imencode(".jpg", np.full((9, 12, 3), 99, np.uint8))[1].tobytes()
    with PackWriter(tmp_path / "p.lmdb", parts={"right": "image"}) as writer:
        writer.write(image, parts={"right": image})
    pack = Pack(tmp_path / "p.lmdb")
    assert pack.reader.part(0, "right") == image and np.array_equal(pack.part(0, "right"), pack.image(0))


@pytest.mark.parametrize(
    ("part", "problem"),
    [
        ({"depth": np.zeros((9, 11), np.float32)}, "has 11x9 pixels, but the image 12x9"),
        ({"depth": np.zeros((9, 12), np.int64)}, "has 1 values of int64"),
        ({"depth": "deep"}, "depth that is"), ({"text": 7}, "is no value of the kind text"),
        *(({name: v}, f"it is of {v.dtype}, not of uint8") for v in PICTURES for name in ("right", "tri")),
        ({"more": {1, 2}}, "is no value of the kind json"), ({"code": [None]}, "code that is"),
    ],
)  # fmt: skip
def test_what_is_no_part_is_named_and_leaves_nothing(part: dict[str, Any], problem: str, tmp_path: Path) -> None:
    with PackWriter(tmp_path / "p.lmdb", parts=KINDS) as writer:
        writer.write(np.zeros((9, 12, 3), np.uint8), parts=values(0))
        with pytest.raises(BadPart, match=f"record 1: .*{problem}"):
            writer.write(np.zeros((9, 12, 3), np.uint8), parts={**values(1), **part})
        writer.write(np.zeros((9, 12, 3), np.uint8), parts=values(1))
    pack = Pack(tmp_path / "p.lmdb")
    assert len(pack) == 2 and pack.part(1, "text") == "nr. 1"


def test_parts_that_were_not_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is no kind of part"):
        PackWriter(tmp_path / "p.lmdb", parts={"depth": "deep"})
    with pytest.raises(UsageError, match="some of one name"):
        PackWriter(tmp_path / "p.lmdb", parts={"mask": "map"})
    writer = PackWriter(tmp_path / "p.lmdb", parts={"depth": "map"})
    with pytest.raises(UsageError, match="has no depth"):
        writer.write(np.zeros((9, 12, 3), np.uint8))
    with pytest.raises(UsageError, match="has the part deep"):
        writer.write(np.zeros((9, 12, 3), np.uint8), parts={"deep": 1, "depth": np.zeros((9, 12), np.uint16)})
    writer.discard()
