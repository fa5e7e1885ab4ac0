"""Packs of each format version that packer has had, read as they were written: old packs stay readable.

Each holds three images of 12x9, 8x8 and 10x6 pixels with 0, 1 and 2 boxes. A pack here is never made anew: a new format
version gets a folder of its own beside the old ones.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import numpy as np
import pytest

from packer import PackedDataset, open_pack
from packer.format.verify import verify

HERE = Path(__file__).resolve().parent
PACKS = sorted(path.parent for path in HERE.glob("v*/*/pack.json"))
EXPECTED = json.loads((HERE / "expected.json").read_text())
KINDS = json.loads((HERE / "kinds.json").read_text())
"""What each pack in kinds/ held when version 0.1 wrote it: every annotation field, several shards and encodings."""
FIELDS = ("label", "boxes", "box_labels", "landmarks", "polygons", "keypoints", "box_fields", "extras")


def seen(pack: Path) -> list[dict[str, object]]:
    """What a reader sees of each record."""
    opened, data = open_pack(pack), PackedDataset(pack)
    rows = []
    for i in range(len(opened)):
        image, target = data[i]
        pixels = image.permute(1, 2, 0).contiguous().numpy()
        annotation = opened.annotation(i)
        rows.append({
            "key": opened.key(i),
            "path": bytes(opened.column("path")[i]).decode(),
            "shape": list(pixels.shape),
            "sha256": hashlib.sha256(pixels.tobytes()).hexdigest(),
            "boxes": annotation.boxes.tolist(),
            "box_labels": annotation.box_labels.tolist(),
            "difficult": list(annotation.box_fields.get("difficult", ())),
            "target_boxes": target["boxes"].tolist(),
        })  # fmt: skip
    return rows


def test_all_containers_are_here() -> None:
    assert {open_pack(pack).manifest.container for pack in PACKS} == {"lmdb", "hdf5", "tfrecord", "webdataset"}


@pytest.mark.parametrize("pack", PACKS, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_reads_as_it_was_written(pack: Path) -> None:
    assert seen(pack) == EXPECTED
    assert list(open_pack(pack).manifest.classes) == ["cat", "dog"]


def as_json(value: object) -> object:
    """Arrays and tuples as lists."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, tuple | list):
        return [as_json(item) for item in value]
    return {name: as_json(item) for name, item in value.items()} if isinstance(value, dict) else value


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_reads_as_it_was_written(name: str) -> None:
    pack = open_pack(HERE / "kinds" / name)
    rows = [
        {
            "key": pack.key(i),
            "path": os.fsdecode(pack.paths[i]),
            "encoding": pack.encoding_of(i),
            "shape": list(pack.shape_of(i)),
            "record_sha256": hashlib.sha256(pack.record(i)).hexdigest(),
            **{field: as_json(getattr(pack.annotation(i), field)) for field in FIELDS},
        }
        for i in range(len(pack))
    ]
    assert {"classes": pack.classes, "shards": len(pack.shards), "rows": rows} == KINDS[name]


@pytest.mark.parametrize(
    "pack", [*PACKS, *(HERE / "kinds" / name for name in KINDS)], ids=lambda p: f"{p.parent.name}-{p.name}"
)
def test_is_found_whole(pack: Path) -> None:
    assert not verify(pack, deep=True).problems
