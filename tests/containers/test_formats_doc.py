"""docs/formats.md tells the truth: each of its Python blocks runs against packs of its layout."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from container_records import CLASSES, records_of, write_shard

from packer.containers import CONTAINERS, open_container
from packer.index import DTYPES, ENCODINGS, INDEX_SUFFIX, SCHEMA, IndexBuilder
from packer.sample import Annotation

DOC = Path(__file__).parents[2] / "docs" / "formats.md"
TEXT = DOC.read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def packs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """imgs.FORMAT of two raw shards each, jpeg.hdf5, and single.lmdb of one shard."""
    folder = tmp_path_factory.mktemp("packs")
    for container in CONTAINERS:
        suffix = open_container(container).suffix
        names = [f"shard-0000{i}{suffix}" for i in range(2)]
        make_pack(folder / f"imgs.{container}", container, "raw", names)
    make_pack(folder / "jpeg.hdf5", "hdf5", "jpeg", ["shard-00000.hdf5"])
    make_pack(folder / "single.lmdb", "lmdb", "raw", ["data.mdb"])
    return folder


def make_pack(pack: Path, container: str, kind: str, names: list[str]) -> None:
    pack.mkdir()
    notes = [
        Annotation(label=i % 3, boxes=np.ones((i, 4), np.float32), box_labels=np.zeros(i, np.int64))
        for i in range(3)
    ]
    for number, name in enumerate(names):
        records = records_of(kind, notes, first=3 * number)
        builder = IndexBuilder(len(records))
        for record in records:
            builder.add(record)
        builder.write(
            pack / (Path(name).stem + INDEX_SUFFIX), write_shard(container, str(pack / name), kind, records)
        )
    shards = [{"container": {"name": name}} for name in names]
    manifest = {"container": container, "records": 3 * len(names), "classes": CLASSES, "shards": shards}
    (pack / "pack.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_block_runs_without_packer(block: str, packs: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", block + "\nimport sys; assert 'packer' not in sys.modules"],
        cwd=packs, check=False, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_every_container_and_column_is_documented() -> None:
    assert len(BLOCKS) >= 8
    for name in (*CONTAINERS, *SCHEMA.names, *DTYPES, *ENCODINGS):
        assert f"`{name}`" in TEXT, name


def test_index_example_finds_the_pixels(packs: Path) -> None:
    (block,) = [b for b in BLOCKS if "memory_map" in b]
    program = block + "\nimport sys; sys.stdout.flush(); print(image.tobytes().hex())"
    output = subprocess.run(
        [sys.executable, "-c", program], cwd=packs, check=True, capture_output=True, text=True
    )
    assert output.stdout.splitlines()[-1] == records_of("raw", [Annotation()] * 2)[1].data.hex()
