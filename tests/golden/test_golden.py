"""Packs of each format version that packer has had, read as they were written: old packs stay readable.

Each holds three images of 12x9, 8x8 and 10x6 pixels with 0, 1 and 2 boxes. A pack here is never made anew: a new format
version gets a folder of its own beside the old ones.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from packer import PackedDataset, open_pack
from packer.verify import verify

HERE = Path(__file__).resolve().parent
PACKS = sorted(path.parent for path in HERE.glob("v*/*/pack.json"))
EXPECTED = json.loads((HERE / "expected.json").read_text())


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


@pytest.mark.parametrize("pack", PACKS, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_is_found_whole(pack: Path) -> None:
    assert not verify(pack, deep=True).problems
