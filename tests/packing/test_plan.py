"""Plans made of partitions: the same bytes for any size of partition and any engine, in memory that does not grow."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from drawn import draw, draw_classes, draw_plain, draw_voc, voc_xml
from hypothesis import given
from hypothesis import strategies as st
from running import digests, good, run_script

from packer.format.pack import open_pack
from packer.model.fields import label_arrays
from packer.packing import BuildOptions, build_pack, plan_pack
from packer.packing.partition import map_table, rows_at, write_table
from packer.packing.plan import cuts_of, permuted
from packer.packing.scan import read_inputs
from packer.samplers.order import permutation

SEVERAL = {"scan.IMAGES_A_JOB": 3, "partition.ROWS_A_BATCH": 4, "plan.AT_ONCE": 5}


def shrink(monkeypatch: pytest.MonkeyPatch, sizes: dict[str, int]) -> None:
    """Make partitions, batches and pieces small."""
    for name, size in sizes.items():
        monkeypatch.setattr(f"packer.packing.{name}", size)


def draw_labels(root: Path, kind: str) -> Path:
    """14 images with labels: two without, one that is bad, one whose label names another file."""
    if kind == "folder":
        return draw_plain(draw_classes(root, each=4), 2)
    draw_voc(root, 11)
    (root / "Annotations" / "001.xml").write_text(voc_xml("other.jpg", [("cat", 1, 2, 60, 9)]))
    (root / "JPEGImages" / "004.jpg").write_bytes(b"no image, and longer than a header")
    for i in range(3):
        draw(root / "JPEGImages" / f"more{i}.jpg", i)
    if kind == "yolo":
        for i, path in enumerate(sorted((root / "Annotations").iterdir())):
            path.unlink()
            (root / "JPEGImages" / f"{path.stem}.txt").write_text(f"{i % 3} 0.5 0.5 0.{i % 8 + 1} 0.2\n" * (i % 4))
    return root


@pytest.mark.workers
@pytest.mark.parametrize(("kind", "shuffle"), [("folder", 3), ("voc", None), ("yolo", 3)])
def test_partitions_of_any_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, shuffle: int | None
) -> None:
    source = draw_labels(tmp_path / "src", kind)
    given: dict[str, Any] = {
        "labels": (kind,), "shuffle": shuffle, "missing_labels": "empty", "boxes": "clip", "max_bad": "1",
        "shard_bytes": 12_000,
    }  # fmt: skip
    first = build_pack(BuildOptions(str(source), str(tmp_path / "whole"), workers=1, **given)).manifest
    shrink(monkeypatch, SEVERAL)
    ways: dict[str, dict[str, Any]] = {"1": {"workers": 1}, "threads": {"engine": "executors:threads"}}
    if kind == "folder":  # processes take what threads take
        ways["3"] = {"workers": 3}
    for name, more in ways.items():
        build_pack(BuildOptions(str(source), str(tmp_path / name), **given, **more))
        assert digests(tmp_path / name) == digests(tmp_path / "whole")
    assert first.counts["packed"] == 14 - (kind != "folder") and first.counts["missing_labels"] >= 2
    assert kind != "voc" or any("claims" in note for note in first.notes)


def test_no_class_is_not_the_first_class(tmp_path: Path) -> None:
    """Arrow leaves zeros below the nulls of rows that were taken."""
    source = draw_plain(draw_classes(tmp_path / "src", ("x", "y"), 3), 4)
    good("build", source, "-o", tmp_path / "p", "--labels", "folder", "--missing-labels", "empty", "--shuffle", 2)
    pack = open_pack(tmp_path / "p")
    assert {path: int(label) for path, label in zip(pack.paths, pack.column("label"), strict=True)} == {
        path: -1 if "/" not in path else int(path[:1] == "y") for path in pack.paths
    }


def test_rows_that_are_dropped_leave_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shrink(monkeypatch, SEVERAL)
    inputs = read_inputs(BuildOptions(str(draw_labels(tmp_path / "src", "folder")), labels=("folder",), on_bad="skip",
                                      missing_labels="empty"))  # fmt: skip
    before = inputs.table.to_pylist()
    inputs.drop({0, 4, 5, 6, 13})
    assert inputs.table.to_pylist() == [row for i, row in enumerate(before) if i not in (0, 4, 5, 6, 13)]
    raw = np.concatenate([np.frombuffer(c.buffers()[1], np.int32, len(c)) for c in inputs.table["label"].chunks])
    assert raw.tolist() == [-1 if row["label"] is None else row["label"] for row in inputs.table.to_pylist()]
    assert inputs.rows == len(before) - 5


@given(st.lists(st.integers(0, 50), max_size=80), st.integers(1, 9))
def test_rows_in_any_order(numbers: list[int], a_batch: int) -> None:
    labels = np.where(np.arange(51) % 4, np.arange(51), -1).astype(np.int32)
    table = pa.table({"label": label_arrays(labels)[0], "path": [b"%d" % i for i in range(51)]})
    table = pa.Table.from_batches(table.to_batches(max_chunksize=a_batch))
    rows = rows_at(table, np.array(numbers, np.int64))
    assert rows["path"].to_pylist() == [b"%d" % i for i in numbers]
    if numbers:
        raw = np.frombuffer(rows["label"].chunk(0).buffers()[1], np.int32, len(numbers))
        assert raw.tolist() == labels[numbers].tolist()


@given(st.lists(st.integers(0, 10_000), min_size=1, max_size=60), st.integers(1, 50_000), st.integers(1, 12))
def test_cuts_are_those_of_all_sizes_at_once(sizes: list[int], shard_bytes: int, at_once: int) -> None:
    image_bytes = np.array(sizes, np.int64)
    n, ends = len(sizes), np.cumsum(image_bytes)
    shards = min(n, max(1, -(-int(ends[-1]) // shard_bytes)))
    cuts = np.searchsorted(ends, [int(ends[-1]) * k / shards for k in range(1, shards)], side="left") + 1
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("packer.packing.plan.AT_ONCE", at_once)
        assert cuts_of(image_bytes, shard_bytes) == tuple(np.unique([0, *np.minimum(cuts, n), n]).tolist())
        assert permuted(image_bytes, (n, 5)).tolist() == image_bytes[permutation(n, 5)].tolist()


@pytest.mark.parametrize("sizes", ["tiny", "one that is large", "random"])
def test_a_shard_has_at_most_100_000_records(sizes: str) -> None:
    image_bytes = np.ones(1_050_000, np.int64)
    if sizes == "one that is large":
        image_bytes[700_000] = 1 << 30
    if sizes == "random":
        image_bytes = np.random.default_rng(0).integers(1, 2000, len(image_bytes))
    shards = np.diff(cuts_of(image_bytes, 128 << 20))
    assert shards.sum() == len(image_bytes) and shards.min() > 0 and shards.max() <= 100_000
    assert len(cuts_of(image_bytes, None)) == 2
    assert len(cuts_of(image_bytes[:100_000], 1 << 40)) == 2


def test_a_long_table_is_written_in_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shrink(monkeypatch, {"partition.ROWS_A_BATCH": 10})
    batches = [pa.RecordBatch.from_pydict({"n": list(range(i, i + 3))}) for i in range(0, 60, 3)]
    write_table(batches, batches[0].schema, str(tmp_path / "t"))
    table = map_table(str(tmp_path / "t"))
    assert table["n"].to_pylist() == list(range(60)) and {len(b) for b in table.to_batches()} == {12}


PEAKS = """
import sys, tracemalloc
from packer.packing import BuildOptions, partition, plan, scan
from packer.packing.plan import make_plan
from packer.sources import paths
from packer.system import storage

scan.IMAGES_A_JOB = paths.AT_ONCE = 100
partition.ROWS_A_BATCH = plan.AT_ONCE = 200
storage.MEMORY_BYTES = 4096
for folder in sys.argv[1:]:
    options = BuildOptions(folder, folder + ".pack", labels=("folder",), shuffle=1)
    tracemalloc.start()
    plan = make_plan(options, scan.read_inputs(options), lambda job: [])
    print(plan.inputs.rows, tracemalloc.get_traced_memory()[1])
    tracemalloc.stop()
"""


def test_the_memory_of_a_plan_does_not_grow_with_the_set(tmp_path: Path) -> None:
    """Of class folders: Python's objects and numpy's arrays. What is mapped from files is page cache."""
    draw(tmp_path / "one.jpg", 0)
    counts = (100, 1000, 4000)
    for count in counts:
        for i in range(count):
            folder = tmp_path / str(count) / f"{i // 100:02d}"
            folder.mkdir(parents=True, exist_ok=True)
            os.link(tmp_path / "one.jpg", folder / f"image_{i:06d}.jpg")
    printed = run_script(PEAKS, *(tmp_path / str(count) for count in counts)).split()
    assert [int(rows) for rows in printed[::2]] == list(counts)
    first, second = (int(peak) for peak in printed[3::2])
    assert (second - first) / 3000 < 40  # a path as an object takes more than that


def test_a_dry_run_removes_its_table(tmp_path: Path) -> None:
    plan = plan_pack(BuildOptions(str(draw_plain(tmp_path / "src", 3)), str(tmp_path / "p")))
    file = plan.inputs.file
    assert os.path.isfile(file) and not os.path.isdir(os.path.join(os.path.dirname(file), "plan"))
    del plan
    assert not os.path.exists(os.path.dirname(file))
