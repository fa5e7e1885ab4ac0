"""docs/formats.md tells the truth; tests/test_docs_blocks.py runs its examples."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pyarrow.parquet as pq
from container_records import records_of, write_shard

from packer.containers import CONTAINERS
from packer.containers.container import Places
from packer.format.index import DTYPES, ENCODINGS, SCHEMA, IndexBuilder
from packer.format.pack_paths import INDEX_SUFFIX
from packer.model.annotation import Annotation
from packer.model.fields import FIELD_NAMES

DOC = Path(__file__).parents[2] / "docs" / "formats.md"
TEXT = DOC.read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)


def test_no_example_needs_packer() -> None:
    for block in BLOCKS:
        imported = [node for node in ast.walk(ast.parse(block)) if isinstance(node, ast.Import | ast.ImportFrom)]
        assert imported and not any("packer" in ast.unparse(node) for node in imported)


def test_every_container_and_column_is_documented() -> None:
    assert len(BLOCKS) >= 8
    for name in (*CONTAINERS, *SCHEMA.names, *DTYPES, *ENCODINGS):
        assert f"`{name}`" in TEXT, name


def test_fields_that_each_format_has_columns_for(tmp_path: Path) -> None:
    """The table of docs/formats.md, against files of an image that has every field, as other libraries see them."""
    table = re.findall(r"^\| (`[^|]*`) \| ([^|]*) \| ([^|]*) \| ([^|]*) \| [^|]* \|$", TEXT, re.MULTILINE)
    said = {name: cells for names, *cells in table for name in re.findall(r"`(\w+)`", names)}
    points = np.ones((2, 3), np.float32)
    every = Annotation(
        label=1, boxes=np.ones((1, 4), np.float32), box_labels=np.array([0]), landmarks=points[:, :2],
        polygons=(points[:, :2],), keypoints=points[None], box_fields={"pose": ("Left",)}, extras={"a": 1},
        tags=np.array([1, 0], np.uint8), value=np.ones(2, np.float32), obb=np.ones((1, 4, 2), np.float32),
        window=np.arange(6, dtype=np.int32),
    )  # fmt: skip
    for name in ("hdf5", "tfrecord", "parquet"):
        write_shard(name, str(tmp_path / name), "raw", records_of("raw", [every]))
    with h5py.File(tmp_path / "hdf5") as file:
        arrays = {"label" if dataset == "labels" else dataset for dataset in file}
    features = {
        "label": b"image/class/label", "boxes": b"image/object/bbox/xmin", "box_labels": b"image/object/class/label",
        "box_fields": b"image/object/view",
    }  # fmt: skip
    example = (tmp_path / "tfrecord").read_bytes()
    columns = pq.read_schema(tmp_path / "parquet")
    objects = {"boxes", "box_labels"} if {"boxes", "labels"} <= {m.name for m in columns.field("objects").type} else ()
    for place, held in enumerate(
        (
            arrays,
            {name for name in FIELD_NAMES if features.get(name, b"image/" + name.encode()) in example},
            {*columns.names, *objects},
        )
    ):
        assert {name for name in FIELD_NAMES if said[name][place] != "no"} == held & {*FIELD_NAMES}, place


def test_index_example_finds_the_pixels(tmp_path: Path) -> None:
    (block,) = [b for b in BLOCKS if "memory_map" in b]
    records = records_of("raw", [Annotation(label=i) for i in range(3)])
    pack = tmp_path / "imgs.tfrecord"
    pack.mkdir()
    builder = IndexBuilder()
    for record in records:
        builder.add(record)
    entries = write_shard("tfrecord", str(pack / "shard-00000.tfrecord"), "raw", records)
    places = Places.of([entry.offset for entry in entries], [entry.size for entry in entries])
    builder.write(pack / f"shard-00000{INDEX_SUFFIX}", places)
    program = block + "\nsys.stdout.flush(); print(image.tobytes().hex()); assert 'packer' not in sys.modules"
    command = [sys.executable, "-c", f"import sys\n{program}"]
    output = subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True)
    assert output.stdout.splitlines()[-1] == records[1].data.hex()
