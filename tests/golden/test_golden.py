"""Packs of each released version, read as they were written: by packer, and by the libraries of their formats.

`scripts/golden.py` makes those of a new version; one that is here is never made anew.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "containers"))

from foreign_readers import READERS  # noqa: E402

from packer import PackedDataset, __version__, open_pack  # noqa: E402
from packer.containers import CONTAINERS  # noqa: E402
from packer.format.index import read_index  # noqa: E402
from packer.format.manifest import read_manifest  # noqa: E402
from packer.format.salvage_records import write_shard  # noqa: E402
from packer.format.verify import verify  # noqa: E402
from packer.format.verify_records import IndexRows  # noqa: E402

EXPECTED: dict[str, dict[str, Any]] = {
    f"{path.parent.name}/{name}": pack
    for path in sorted(HERE.glob("*/expected.json"))
    for name, pack in json.loads(path.read_text("utf-8")).items()
}
"""VERSION/NAME -> what the pack held when that version wrote it."""
FIELDS = ("label", "boxes", "box_labels", "landmarks", "polygons", "keypoints", "box_fields", "extras")


def as_json(value: object) -> object:
    """Arrays and tuples as lists."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, tuple | list):
        return [as_json(item) for item in value]
    return {name: as_json(item) for name, item in value.items()} if isinstance(value, dict) else value


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def test_all_packs_are_expected() -> None:
    found = {f"{path.parent.parent.name}/{path.parent.name}" for path in HERE.glob("*/*/pack.json")}
    assert found == EXPECTED.keys()


OF_LIBRARIES = {"hdf5": "h5py", "parquet": "pyarrow"}
"""Containers whose bytes name the version of the library that wrote them."""


@pytest.mark.parametrize("name", [name for name in EXPECTED if name.startswith(f"{__version__}/")])
def test_every_python_writes_the_same_bytes(name: str, tmp_path: Path) -> None:
    """Machines of a cluster build parts of one pack, with any patch version of Python."""
    folder = HERE / name
    manifest = read_manifest(folder)
    library = OF_LIBRARIES.get(manifest.container)
    if library is not None and version(library) != manifest.libraries[library]:
        pytest.skip(f"{library} {version(library)} writes other bytes than {manifest.libraries[library]}")
    for shard in manifest.shards:
        rows = IndexRows(read_index(folder / shard.index.name), shard.index.name)
        data = (folder / shard.container.name).read_bytes()
        places = [(rows.number("offset", row), rows.number("size", row)) for row in range(len(rows))]
        records = [rows.record(row, data[start : start + size]) for row, (start, size) in enumerate(places)]
        written = write_shard(str(tmp_path), manifest, shard, records)
        assert written is not None and written.container == shard.container


def test_this_version_has_packs_of_all_containers() -> None:
    """The version that is to be released next has, once `packer.__version__` names it."""
    mine = {pack["container"] for name, pack in EXPECTED.items() if name.startswith(f"{__version__}/")}
    assert mine == ({"lmdb", "hdf5", "tfrecord", "webdataset"} if __version__ == "0.1.0" else set(CONTAINERS)), (
        "run scripts/golden.py"
    )


@pytest.mark.parametrize("name", EXPECTED)
def test_reads_as_it_was_written(name: str) -> None:
    pack, data, expected = open_pack(HERE / name), PackedDataset(HERE / name), EXPECTED[name]
    assert (pack.manifest.container, pack.classes, len(pack.reader.shards), len(pack)) == (
        expected["container"], expected["classes"], expected["shards"], len(expected["rows"]),
    )  # fmt: skip
    for i, row in enumerate(expected["rows"]):
        image, target = data[i]
        pixels = image.permute(1, 2, 0).contiguous().numpy()
        annotation = pack.annotation(i)
        found = {
            "key": pack.key(i),
            "path": os.fsdecode(pack.paths[i]),
            "encoding": pack.reader.encoding_of(i),
            "shape": list(pixels.shape),
            "record_sha256": digest(pack.record(i)),
            "pixels_sha256": digest(pixels.tobytes()),
            **{field: as_json(getattr(annotation, field)) for field in FIELDS},
        }
        assert {field: found[field] for field in row} == row
        if row.get("boxes") is not None:
            assert target["boxes"].tolist() == row["boxes"]


@pytest.mark.parametrize("name", EXPECTED)
def test_other_libraries_read_it(name: str) -> None:
    expected = EXPECTED[name]
    shards = json.loads((HERE / name / "pack.json").read_text("ascii"))["shards"]
    paths = [str(HERE / name / shard["container"]["name"]) for shard in shards]
    found = [record for path in paths for record in READERS[expected["container"]](path)]
    assert len(found) == len(expected["rows"])
    for row, (key, image, note) in zip(expected["rows"], found, strict=True):
        assert (key, note["path"], note["encoding"]) == (row["key"], row["path"], row["encoding"])
        assert digest(image if isinstance(image, bytes) else image.tobytes()) == row["record_sha256"]
        assert {field: note.get(field) or None for field in FIELDS if field in row} == {
            field: row[field] or None for field in FIELDS if field in row
        }


@pytest.mark.parametrize("name", EXPECTED)
def test_is_found_whole(name: str) -> None:
    assert not verify(HERE / name, deep=True).problems


def test_the_docs_name_this_version() -> None:
    text = " ".join((HERE.parents[1] / "docs" / "formats.md").read_text("utf-8").split())
    first = min(name.partition("/")[0] for name in EXPECTED)
    assert f"packer {__version__} reads all packs written by packer {first} and later" in text
