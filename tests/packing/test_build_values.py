"""Numeric targets from the list to the batch: each container, dicts, missing values, stats, view; written as a list."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from drawn import draw_plain
from running import good, refused, run
from torch.utils.data import DataLoader

from packer import CenterCrop, PackedDataset, PackedLoader, PackWriter, join_packs, open_pack
from packer.containers import CONTAINERS, open_container
from packer.errors import BadLabel, DamagedPack
from packer.format.salvage import repair
from packer.format.verify import verify
from packer.model.record_json import record_from_json
from packer.stats import pack_stats
from packer.view.catalog import Catalog, Query
from packer.view.charts import chart_facts
from packer.view.facts import record_facts

COUNT = 8
VALUES = np.array([[0.25 * i - 1, 40 + i] for i in range(COUNT)], np.float32)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Images, and a list of an angle and an age of each."""
    folder = draw_plain(tmp_path / "src", COUNT)
    rows = [f"{i:03d}.jpg,{angle:g},{age:g}" for i, (angle, age) in enumerate(VALUES.tolist())]
    (folder / "list.csv").write_text("\n".join(["image,angle,age", *rows]))
    return folder


def build(photos: Path, out: Path, *options: object) -> Path:
    good("build", photos, "-o", out, "--shard-size", "4KB", *options)
    return out


@pytest.mark.parametrize("container", sorted(CONTAINERS))
def test_values_in_every_container(photos: Path, tmp_path: Path, container: str) -> None:
    pack = open_pack(build(photos, tmp_path / "p", "--format", container))
    assert pack.manifest.fields == ("value",) and len(pack.reader.shards) > 1 and not pack.classes
    assert np.array_equal(np.asarray(pack.column("value")), VALUES)
    assert verify(pack.path, deep=True).problems == ()
    scan = open_container(container).scan
    texts = [e.annotation for s in pack.reader.shards for e in scan(f"{pack.path}/{s.container.name}")]
    assert [json.loads(text or b"")["value"] for text in texts] == VALUES.tolist()
    read = [record_from_json(text or b"", b"").annotation.value for text in texts]
    assert np.array_equal(read, VALUES) and read[0].dtype == np.float32


@pytest.mark.parametrize("encode", ["raw", "jpeg"])
def test_values_alone_are_arrays_and_a_flip_leaves_them(photos: Path, tmp_path: Path, encode: str) -> None:
    out = build(photos, tmp_path / "p", "--encode", encode)
    dataset = PackedDataset(out)
    assert torch.equal(dataset[3][1], torch.from_numpy(VALUES[3])) and dataset.targets[3].dtype == torch.float32
    for options in ({}, {"flip": True, "seed": 0, "crop": CenterCrop(16)}, {"collate": "dict"}):
        targets = torch.cat([targets for _, targets in PackedLoader(out, 3, **options)])
        assert targets.dtype == torch.float32 and np.array_equal(targets.numpy(), VALUES), options
    assert np.array_equal(torch.cat([y for _, y in DataLoader(dataset, 3)]).numpy(), VALUES)


def test_values_beside_other_labels(photos: Path, tmp_path: Path) -> None:
    boxes = [f"{i:03d}.jpg,1,2,9,9,ant" for i in range(COUNT)]
    (photos / "boxes.csv").write_text("\n".join(["filename,xmin,ymin,xmax,ymax,class", *boxes]))
    out = build(photos, tmp_path / "p", "--labels", f"list:{photos}/list.csv", "--labels", f"list:{photos}/boxes.csv")
    targets = [t for _, each in PackedLoader(out, 3, crop=CenterCrop(4), seed=0) for t in each]
    assert [t["value"].tolist() for t in targets] == VALUES.tolist() and all(not len(t["boxes"]) for t in targets)


def test_an_image_without_a_value_has_nan(tmp_path: Path) -> None:
    with PackWriter(tmp_path / "p.lmdb", format="hdf5") as writer:
        for value in (None, 0.5, [2]):
            writer.write(np.zeros((4, 4), np.uint8), value=value)
        for wrong, says in (
            ([1, 2], r"has value of shape \(2,\), not \(1\)"),
            (np.nan, "float32"),
            (1e39, "float32"),
        ):
            with pytest.raises(BadLabel, match=says):
                writer.write(np.zeros((4, 4), np.uint8), value=wrong)
    dataset = PackedDataset(tmp_path / "p.lmdb")
    assert np.array_equal([t.tolist() for t in dataset.targets], [[np.nan], [0.5], [2]], equal_nan=True)
    (stats,) = pack_stats(tmp_path / "p.lmdb").values
    assert (stats.name, stats.without, stats.spread.count, sum(stats.counts)) == ("value", 1, 2, 2)


def test_packs_of_other_numbers_are_not_mixed(tmp_path: Path) -> None:
    for name, value in (("a", [1.0]), ("b", [1.0, 2.0])):
        with PackWriter(tmp_path / f"{name}.lmdb") as writer:
            writer.write(np.full((4, 4), len(value), np.uint8), value=value)
    a, b = tmp_path / "a.lmdb", tmp_path / "b.lmdb"
    assert "b.lmdb: has 2 values each, but" in refused(2, "merge", a, b, "-o", tmp_path / "ab.lmdb")
    with pytest.raises(DamagedPack, match="has 2 values, not 1"):
        list(PackedLoader(join_packs([open_pack(a), open_pack(b)]), 2))


def test_commands_keep_values(photos: Path, tmp_path: Path) -> None:
    out = build(photos, tmp_path / "p.lmdb")
    good("convert", out, tmp_path / "c.zarr", "--resize", "16x16")
    good("split", out, "--parts", "x=0.5,y=0.5")
    good("merge", tmp_path / "p-x.lmdb", tmp_path / "p-y.lmdb", "-o", tmp_path / "m.lmdb")
    good("diff", out, tmp_path / "m.lmdb")
    (tmp_path / "p-x.lmdb" / "pack.json").unlink()
    repair(str(tmp_path / "p-x.lmdb"), str(tmp_path / "r.lmdb"))
    assert np.asarray(open_pack(tmp_path / "r.lmdb").column("value")).shape == (4, 2)
    for other in (tmp_path / "c.zarr", tmp_path / "m.lmdb"):
        pack = open_pack(other)
        by_path = dict(zip(pack.paths, np.asarray(pack.column("value")).tolist(), strict=True))
        assert [by_path[path] for path in sorted(by_path)] == VALUES.tolist()
    changed = photos / "list.csv"
    changed.write_text(changed.read_text().replace("-0.25,43", "-0.25,44"))
    build(photos, tmp_path / "q.lmdb")
    different = run("diff", out, tmp_path / "q.lmdb")
    assert different.code == 1 and "value" in different.out, different


def test_extract_writes_a_list_that_is_read_again(photos: Path, tmp_path: Path) -> None:
    out = build(photos, tmp_path / "p.lmdb", "--encode", "copy")
    said = good("extract", out, tmp_path / "files", "--layout", "list").out
    assert "--columns 'path value*2'" in said and "not in list" not in said
    with open(tmp_path / "files" / "labels.csv", newline="") as file:
        assert {row[0]: [*map(float, row[1:])] for row in csv.reader(file)} == {
            f"{i:03d}.jpg": values for i, values in enumerate(VALUES.tolist())
        }
    labels = ("--labels", f"list:{tmp_path}/files/labels.csv", "--columns", "path value*2")
    good("build", tmp_path / "files", "-o", tmp_path / "again.lmdb", "--encode", "copy", *labels)
    assert np.array_equal(np.asarray(open_pack(tmp_path / "again.lmdb").column("value")), VALUES)


def test_stats_and_view(photos: Path, tmp_path: Path) -> None:
    out = build(photos, tmp_path / "p.lmdb")
    angle, age = pack_stats(out).values
    assert (angle.name, age.name) == ("value 0", "value 1")
    assert (angle.spread.lowest, angle.spread.highest) == (-1, 0.75) and angle.spread.mean == VALUES[:, 0].mean()
    assert age.quantiles["p25"] == np.quantile(VALUES[:, 1], 0.25) and sum(age.counts) == COUNT
    said = good("stats", out).out
    assert "value 0" in said and "p10 40.7, p25 41.75, p50 43.5" in said
    pack = open_pack(out)
    catalog = Catalog(pack)
    assert catalog.find(Query(sort="largest-value")).tolist() == list(range(COUNT))[::-1]
    assert catalog.find(Query(sort="smallest-value", ranges=(("value", -0.5, 0.0),))).tolist() == [2, 3, 4]
    assert record_facts(pack, 1)["value"] == "-0.75, 41"
    charts = chart_facts(pack, catalog)["values"]
    assert [one["name"] for one in charts] == ["value 0", "value 1"] and sum(charts[0]["counts"]) == COUNT
