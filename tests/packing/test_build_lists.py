"""Lists from the source to the target: a list selects, multi-label classes, and lists that belong together."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from drawn import draw_plain
from torch.utils.data import DataLoader

from packer import BuildOptions, CenterCrop, PackedDataset, PackedLoader, build_pack, collate, open_pack
from packer.containers import CONTAINERS, open_container
from packer.errors import UsageError
from packer.format.manifest import read_manifest
from packer.format.salvage import repair
from packer.format.verify import verify
from packer.model.record_json import record_from_json
from packer.packing.scan import read_inputs
from packer.stats import pack_stats

NAMES = ("5_o_Clock_Shadow", "Smiling", "Young")
FLAGS = [[i % 2, i % 3 == 0, 0] for i in range(8)]
EXPECTED = np.array(FLAGS, np.float32)


@pytest.fixture
def photos(tmp_path):
    """Eight images, and CelebA's list of three attributes, -1 or 1."""
    folder = draw_plain(tmp_path / "src", 8)
    rows = "".join(f"{i:03d}.jpg {' '.join(str(2 * f - 1).rjust(2) for f in FLAGS[i])}\n" for i in range(8))
    (folder / "list_attr.txt").write_text(f"8\n{' '.join(NAMES)} \n{rows}")
    return folder


def build_tags(photos, out, **options):
    options = {"labels": (f"list:{photos}/list_attr.txt",), "shard_bytes": 4000, **options}
    build_pack(BuildOptions(str(photos), str(out), **options))
    return str(out)


@pytest.mark.parametrize("container", sorted(CONTAINERS))
def test_tags_in_every_container(photos, tmp_path, container):
    pack = open_pack(build_tags(photos, tmp_path / "p", format=container))
    assert pack.manifest.tags == NAMES and pack.manifest.fields == ("tags",) and pack.manifest.classes == ()
    assert [pack.annotation(i).tags.tolist() for i in range(8)] == EXPECTED.tolist()
    assert np.asarray(pack.column("tags")).dtype == np.uint8 and verify(pack.path, deep=True).problems == ()
    texts = [
        e.annotation
        for s in pack.reader.shards
        for e in open_container(container).scan(f"{pack.path}/{s.container.name}")
    ]
    assert [record_from_json(text, b"").annotation.tags.tolist() for text in texts] == EXPECTED.tolist()


@pytest.mark.parametrize("encode", ["raw", "jpeg"])
def test_tags_are_targets(photos, tmp_path, encode):
    """float32 (k,) of a sample, (n, k) of a batch: what BCEWithLogitsLoss takes."""
    dataset = PackedDataset(build_tags(photos, tmp_path / "p", encode=encode))
    assert dataset.tags == list(NAMES)
    target = dataset[3][1]
    assert target.dtype == torch.float32 and target.tolist() == EXPECTED[3].tolist()
    assert [t.tolist() for t in dataset.targets] == EXPECTED.tolist()
    for _, targets in DataLoader(dataset, 4, collate_fn=collate):
        assert targets.shape == (4, 3) and targets.dtype == torch.float32
    batch = dataset.__getitems__([0, 3])
    assert batch[1][1].tolist() == [target for _, target in batch][1].tolist() == EXPECTED[3].tolist()
    found = torch.cat([targets for _, targets in PackedLoader(dataset, 3, shuffle=False)])
    assert found.tolist() == EXPECTED.tolist()
    seen = [
        t for _, batch in PackedLoader(dataset, 3, shuffle=False, target_transform=lambda t: t.sum()) for t in batch
    ]
    assert [float(t) for t in seen] == EXPECTED.sum(axis=1).tolist()


def test_tags_beside_other_labels(photos, tmp_path):
    """In a dict, also after crops that drop boxes; an image without boxes keeps its tags."""
    lines = "".join(f"{i:03d}.jpg,{1 + i},2,{5 + i},9,dog\n" if i % 2 else f"{i:03d}.jpg,,,,,\n" for i in range(8))
    (photos / "boxes.csv").write_text("path,x1,y1,x2,y2,class\n" + lines)
    out = build_tags(photos, tmp_path / "p", labels=(f"list:{photos}/list_attr.txt", f"list:{photos}/boxes.csv"))
    target = PackedDataset(out)[3][1]
    assert target["tags"].tolist() == EXPECTED[3].tolist() and target["boxes"].tolist() == [[4, 2, 8, 9]]
    loader = PackedLoader(out, 4, shuffle=False, crop=CenterCrop(10), flip=1.0)
    targets = [t for _, batch in loader for t in batch]
    assert [t["tags"].tolist() for t in targets] == EXPECTED.tolist()


def test_tags_in_stats_and_in_a_repaired_pack(photos, tmp_path):
    out = build_tags(photos, tmp_path / "p")
    (counts,) = pack_stats(out).classes
    assert (counts.of, counts.names, counts.counts) == ("tags", NAMES, (4, 3, 0))
    assert counts.unlabelled == 2 and counts.empty == ("Young",)
    manifest = read_manifest(out)
    (tmp_path / "p" / manifest.shards[0].index.name).unlink()
    repair(out)
    assert read_manifest(out) == manifest and verify(out).problems == ()
    (tmp_path / "p" / "pack.json").unlink()
    repaired = repair(out, str(tmp_path / "q"))
    assert read_manifest(repaired.out).tags == ("0", "1", "2") and "tags" in read_manifest(repaired.out).fields


def test_two_lists_with_tags_are_refused(photos):
    (photos / "more.csv").write_text("path,a,b\n" + "".join(f"{i:03d}.jpg,1,0\n000.jpg,1,0\n" for i in range(8)))
    labels = (f"list:{photos}/list_attr.txt", f"list:{photos}/more.csv")
    with pytest.raises(UsageError, match="two lists have tag columns"):
        read_inputs(BuildOptions(str(photos), labels=labels))


def test_a_list_that_is_given_by_name_selects(photos):
    """The others are skipped, not bad; a list that auto found does not decide that."""
    (photos / "list_attr.txt").unlink()
    (photos / "train.csv").write_text("id,label\n001,cat\n003,dog\n")
    inputs = read_inputs(BuildOptions(str(photos), labels=(f"list:{photos}/train.csv",)))
    assert inputs.table["path"].to_pylist() == [b"001.jpg", b"003.jpg"] and not inputs.rejected
    assert {skipped.reason for skipped in inputs.skipped} == {"not in train.csv"} and len(inputs.skipped) == 6
    (photos / "train.csv").write_text("id,label\n001.jpg,cat\n003.jpg,dog\n")
    inputs = read_inputs(BuildOptions(str(photos), labels=("auto",)))
    assert len(inputs.rejected) == 6 and not inputs.skipped


def test_a_list_selects_for_other_labels_and_splits(photos):
    """CelebA: attributes and the partition, of which each is a list."""
    (photos / "list_eval_partition.txt").write_text("".join(f"{i:03d}.jpg {i // 3}\n" for i in range(8)))
    labels = (f"list:{photos}/list_attr.txt", f"list:{photos}/list_eval_partition.txt")
    inputs = read_inputs(BuildOptions(str(photos), labels=labels, split="val"))
    assert inputs.table["path"].to_pylist() == [b"003.jpg", b"004.jpg", b"005.jpg"] and inputs.tags == NAMES
    assert {skipped.reason for skipped in inputs.skipped} == {"not in split val"}
    with pytest.raises(UsageError, match='split="val": the list has no column of splits'):
        read_inputs(BuildOptions(str(photos), labels=labels[:1], split="val"))
