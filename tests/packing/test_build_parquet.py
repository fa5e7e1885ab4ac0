"""A pack of Parquet files is the pack of the folder of their images; it resumes, and copies nothing in vain."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from drawn import image_file, tree_state
from running import digests, good, run

from packer import PackedDataset
from packer.format.pack import open_pack

NAMES = ["ant", "bee"]


def row(number: int, **more: Any) -> dict[str, Any]:
    boxes = [[10.0 + number, 3.0, 5.0, 2.0 + k] for k in range(number % 3)]
    objects = {"bbox": boxes, "category": [k % 2 for k in range(number % 3)]}
    return {"image": {"bytes": image_file(number), "path": f"{number:03d}.jpg"}, "objects": objects} | more


@pytest.fixture
def parts(tmp_path: Path) -> Path:
    """Two files for train and one for test, of seven rows in groups of three; and a folder with COCO of the same."""
    features = {"image": {"_type": "Image"}, "objects": {
        "feature": {"category": {"_type": "ClassLabel", "names": NAMES}}, "_type": "Sequence"}}  # fmt: skip
    info = {b"huggingface": json.dumps({"info": {"features": features}}).encode()}
    coco: dict[str, Any] = {"images": [], "annotations": [], "categories": []}
    coco["categories"] = [{"id": i, "name": name} for i, name in enumerate(NAMES)]
    (tmp_path / "set" / "data").mkdir(parents=True)
    for part, stem in enumerate(("test-00000-of-00001", "train-00000-of-00002", "train-00001-of-00002")):
        rows = [row(part * 7 + i) for i in range(7)]
        table = pa.Table.from_pylist(rows).replace_schema_metadata(info)
        pq.write_table(table, tmp_path / "set" / "data" / f"{stem}.parquet", row_group_size=3, compression="zstd")
        (tmp_path / "folder" / "data" / stem).mkdir(parents=True)
        for i, one in enumerate(rows):
            name = f"data/{stem}/{one['image']['path']}"
            (tmp_path / "folder" / name).write_bytes(one["image"]["bytes"])
            coco["images"].append({"id": part * 7 + i, "file_name": name, "width": 40, "height": 30})
            for box, category in zip(*one["objects"].values(), strict=True):
                thing = {"id": len(coco["annotations"]), "image_id": part * 7 + i, "bbox": box, "category_id": category}
                coco["annotations"].append(thing)
    (tmp_path / "folder" / "coco.json").write_text(json.dumps(coco))
    return tmp_path


def facts(pack: Path) -> list[Any]:
    data, found = open_pack(str(pack)), []
    for i in range(len(data)):
        annotation = data.annotation(i)
        found.append((data.paths[i], bytes(data.record(i)), annotation.boxes.tolist(), annotation.box_labels.tolist()))
    return found


def test_the_pack_is_that_of_the_folder(parts: Path) -> None:
    before = tree_state(parts / "set")
    whole = ("--split", "all", "--encode", "copy", "--shard-size", "12KB")
    good("build", parts / "set", *whole, "--workers", 2)
    good("build", parts / "folder", *whole, "--workers", 1)
    pack = PackedDataset(str(parts / "set.lmdb"))
    assert pack.classes == NAMES and len(pack) == 21
    assert facts(parts / "set.lmdb") == facts(parts / "folder.lmdb")
    assert tree_state(parts / "set") == before
    assert not [path for path in parts.iterdir() if "partial" in path.name]
    again = good("build", parts / "set", *whole, "-o", parts / "again.lmdb")
    assert "train/, test/ are packed together (--split train packs one)" in again.out
    assert digests(parts / "again.lmdb") == digests(parts / "set.lmdb")


def test_splits_and_one_file(parts: Path) -> None:
    good("build", parts / "set", "--split", "train", "--encode", "copy")
    every = facts(parts / "set-train.lmdb")
    assert [path for path, *_ in every] == [
        f"data/train-0000{k}-of-00002/{7 + 7 * k + i:03}.jpg" for k in range(2) for i in range(7)
    ]
    file = parts / "set" / "data" / "train-00001-of-00002.parquet"
    good("build", file, "--encode", "copy", "-o", parts / "one.lmdb")
    assert [(path.rpartition("/")[2], *rest) for path, *rest in every[7:]] == facts(parts / "one.lmdb")
    good("build", file, "--labels", "none", "--encode", "copy", "-o", parts / "none.lmdb")
    assert open_pack(str(parts / "none.lmdb")).manifest.fields == ()


def test_rows_without_an_image_are_listed(parts: Path) -> None:
    rows = [row(0, label="a"), row(1, label="b"), row(2, label=None)]
    rows[1]["image"]["bytes"] = None
    for one in rows:
        del one["objects"]
    (parts / "one").mkdir()
    pq.write_table(pa.Table.from_pylist(rows), parts / "one" / "x.parquet")
    done = run("build", parts / "one" / "x.parquet", "--encode", "copy", "-o", parts / "x.lmdb")
    assert done.code != 0
    assert "001.jpg" in done.err and 'x.parquet (row 2): has no class in "label"' in done.err
    good("build", parts / "one" / "x.parquet", "--encode", "copy", "--max-bad", 2, "-o", parts / "x.lmdb")
    assert list(open_pack(str(parts / "x.lmdb")).paths) == ["000.jpg"]
