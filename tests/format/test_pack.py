"""open_pack and Pack: shards behind one range of addresses, columns, annotations, pickling, no handles."""

from __future__ import annotations

import gc
import json
import os
import pickle
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import xxhash
from drawn import draw_classes

from packer import BuildOptions, PackedDataset, build_pack, open_pack
from packer.containers import CONTAINERS, open_container
from packer.model.annotation_columns import Ragged
from packer.system import PORTABLE

needs_proc = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="counts through /proc, which is Linux's")


@pytest.fixture(scope="module")
def many_shards(tmp_path_factory):
    """60 records in 60 shards."""
    root = tmp_path_factory.mktemp("many")
    draw_classes(root / "source", each=20)
    options = BuildOptions(str(root / "source"), str(root / "pack"), resize="8x8", shard_bytes=1, workers=1)
    build_pack(options)
    return root / "pack"


def test_records_columns_and_annotations_agree(make_pack, container):
    pack = open_pack(make_pack("boxes", container))
    assert len(pack) == 9 and len(pack.reader.shards) > 2
    boxes = pack.column("boxes")
    assert isinstance(boxes, Ragged)
    locations = []
    for shard in pack.reader.shards:
        locations += open_container(container).scan(os.path.join(pack.path, shard.container.name))
    for i in range(9):
        key, offset, size, *_ = locations[i]
        shard, row = pack.reader.locate(i)
        assert pack.key(i) == pack.keys[i] == key == f"{i:08d}"
        assert pack.reader.span(i) == (pack.reader._starts[shard] + offset, pack.reader._starts[shard] + offset + size)
        data = pack.record(i)
        assert data.readonly and len(data) == size == 3600
        path = Path(pack.path, pack.reader.shards[shard].container.name)
        assert bytes(data) == path.read_bytes()[offset : offset + size]
        sample = pack.sample(i)
        assert sample.image.shape == (30, 40, 3) and not sample.image.flags.writeable
        assert np.array_equal(sample.annotation.boxes, boxes[i]) and len(boxes[i]) == i % 3
        assert sample.annotation.boxes.dtype == np.float32 and sample.annotation.boxes.shape == (i % 3, 4)
        assert 0 <= row < pack.reader.shards[shard].records


def test_containers_hold_the_same(make_pack):
    packs = [open_pack(make_pack("boxes", container)) for container in CONTAINERS]
    for i in range(9):
        assert len({bytes(pack.record(i)) for pack in packs}) == 1
    for name in ("key", "height", "width", "channels", "crc32c", "label", "dtype", "encoding"):
        first, *others = (np.asarray(pack.column(name)) for pack in packs)
        assert all(np.array_equal(first, other) for other in others)


def test_encodings_of_copied_files(make_pack, container):
    pack = open_pack(make_pack("copy", container))
    assert [pack.reader.encoding_of(i) for i in range(6)] == ["png", "jpeg", "bmp"] * 2
    for i in range(6):
        assert bytes(pack.record(i)) == Path(pack.path, "..", "source", os.fsdecode(pack.paths[i])).read_bytes()


def test_gather_over_many_shards(many_shards):
    data = PackedDataset(many_shards)
    assert len(data.pack.reader.shards) == 60
    order = np.random.default_rng(3).permutation(60)
    batch = data.__getitems__(order)
    for image, i in zip(batch.images, order.tolist(), strict=True):
        assert torch.equal(image, data[i][0])
    assert len({bytes(data.pack.record(i)) for i in range(60)}) == 60


def test_a_pack_at_a_path_of_any_bytes(make_pack, tmp_path, monkeypatch):
    home = make_pack("raw", "lmdb")
    link = os.path.join(os.fsencode(tmp_path), b"\xff\n pack")
    os.symlink(home, link)
    data = PackedDataset(link)
    assert torch.equal(pickle.loads(pickle.dumps(data))[3][0], PackedDataset(home)[3][0])
    monkeypatch.chdir(home.parent)
    relative = PackedDataset(home.name)
    monkeypatch.chdir("/")
    assert len(pickle.loads(pickle.dumps(relative))) == 24


# -- pickling


class Tagged(PackedDataset):
    """A user's own kind."""

    def __init__(self, path, tag):
        super().__init__(path, transform=torch.Tensor.float)
        self.tag = tag


def test_pickles_small_and_reads_the_same(many_shards):
    data = PackedDataset(many_shards)
    fresh = len(pickle.dumps(data))
    batch = data.__getitems__(range(60))
    _ = data.boxes, data.landmarks, data.targets, data.labels, data.keys, data.pack.paths
    used = pickle.dumps(data)
    assert len(used) == fresh
    assert len(used) - len(str(many_shards)) < 2048
    again = pickle.loads(used)
    assert torch.equal(again.__getitems__(range(60)).images, batch.images)
    assert again.targets == data.targets


def test_a_subclass_keeps_its_own_attributes(make_pack):
    data = Tagged(make_pack("raw", "hdf5"), "mine")
    data.__getitems__([1])
    again = pickle.loads(pickle.dumps(data))
    assert again.tag == "mine" and again[0][0].dtype == torch.float32


def test_a_pack_pickles_as_its_path(make_pack):
    pack = open_pack(make_pack("boxes", "tfrecord"))
    again = pickle.loads(pickle.dumps(pack))
    assert bytes(again.record(8)) == bytes(pack.record(8)) and again.manifest == pack.manifest


def test_manifest_is_plain_json(make_pack):
    content = json.loads((make_pack("raw", "lmdb") / "pack.json").read_text("ascii"))
    assert content["format"] == "packer" and content["version"] == 2


# -- handles


def maps_of(path: Path) -> int:
    return sum(str(path) in line for line in Path("/proc/self/maps").read_text().splitlines())


def descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


@needs_proc
@pytest.mark.skipif(PORTABLE, reason="each map of a file holds a descriptor")
def test_an_open_pack_holds_no_descriptor(many_shards):
    gc.collect()
    before = descriptors()
    data = PackedDataset(many_shards)
    data.__getitems__(range(60))
    assert descriptors() <= before  # what earlier tests have left may go meanwhile
    assert maps_of(many_shards) == 120  # a container and an index for each shard


def test_the_source_files_digests(make_pack, container):
    pack = open_pack(make_pack("copy", container))
    for path, digest in zip(pack.paths, pack.column("source_xxh3"), strict=True):
        data = Path(pack.path, "..", "source", os.fsdecode(path)).read_bytes()
        assert digest.tobytes() == xxhash.xxh3_128(data).digest()


@needs_proc
@pytest.mark.parametrize("kind", ["raw", "boxes"])
def test_closed_packs_leave_nothing(make_pack, container, kind):
    path = make_pack(kind, container)
    PackedDataset(path).__getitems__([0])
    gc.collect()
    gc.disable()  # maps must go with the last reference, not when the collector comes by
    try:
        before, maps = descriptors(), len(Path("/proc/self/maps").read_text().splitlines())
        for _ in range(50):
            data = PackedDataset(path)
            data.__getitems__([0, 8])
            _ = data[3], data.targets[1], data.boxes, data.pack.record(2)
        del data, _
        assert descriptors() <= before
        assert maps_of(path) == 0
        assert len(Path("/proc/self/maps").read_text().splitlines()) <= maps + 10
    finally:
        gc.enable()


@needs_proc
def test_what_was_read_outlives_the_pack(make_pack):
    path = make_pack("raw", "lmdb")
    pack = open_pack(path)
    view, column, image = pack.record(3), pack.column("offset"), pack.image(3)
    expected = bytes(view), column.tolist(), image.tolist()
    del pack
    gc.collect()
    assert (bytes(view), column.tolist(), image.tolist()) == expected
    assert maps_of(path) > 0
    del view, column, image
    assert maps_of(path) == 0
