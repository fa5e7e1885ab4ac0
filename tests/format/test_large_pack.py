"""A pack of two million records in 1,100 shards: no array over all records, and shards are opened when first read."""

from __future__ import annotations

import os
import shutil
import sys
import tracemalloc
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from large_packs import CLASSES, large_pack
from packs import needs_cache

from packer import PackedDataset, PackedLoader, open_pack
from packer.errors import DamagedPack, UsageError
from packer.format import pack_files
from packer.loading import page_cache
from packer.samplers import BlockShuffleSampler, ShuffleSampler
from packer.system import PORTABLE

sys.path.insert(0, str(Path(__file__).parent.parent / "stores"))

from served import Served

SHARDS, RECORDS, SIDE = 1100, 2000, 4
SIZE = SIDE * SIDE * 3

pytestmark = pytest.mark.skipif(PORTABLE, reason="each file has a map and a descriptor there")


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return large_pack(tmp_path_factory.mktemp("large") / "pack", SHARDS, RECORDS, SIDE)


@pytest.fixture
def own(large: Path, tmp_path: Path) -> Path:
    """A pack whose files may be replaced."""
    return Path(shutil.copytree(large, tmp_path / "own", copy_function=os.link))


def test_an_epoch_begins_without_an_array_over_all_records(large: Path) -> None:
    tracemalloc.start()
    try:
        pack = open_pack(large)
        assert not pack.reader._open_shards.any()
        batches = iter(PackedLoader(pack, 4, sampler=ShuffleSampler(pack), threads=2))
        images, labels = next(batches)
        _, peak = tracemalloc.get_traced_memory()
        batches.close()
    finally:
        tracemalloc.stop()
    assert images.shape == (4, 3, SIDE, SIDE) and not images.any() and len(labels) == 4
    # the manifest and the lookups take 1 kB for each shard; 8 bytes for each record would be 18 MB more
    assert peak < 14e6
    assert 0 < pack.reader._open_shards.sum() < SHARDS


def test_places_and_values_of_any_records(large: Path) -> None:
    pack = open_pack(large)
    records = np.random.default_rng(0).integers(0, SHARDS * RECORDS, 300)
    shards, rows = np.divmod(records, RECORDS)
    offsets, sizes = pack.reader.places(records)
    assert np.array_equal(offsets, pack.reader._starts[shards] + rows * SIZE) and (sizes == SIZE).all()
    assert np.array_equal(pack.reader.values("label", records), rows % CLASSES)
    assert pack.reader._open_shards.sum() == len(np.unique(shards))
    i = int(records[7])
    assert pack.reader.span(i) == (offsets[7], offsets[7] + SIZE) and pack.key(i) == f"{rows[7]:08d}"
    assert (
        pack.reader.shape_of(i) == (SIDE, SIDE, 3)
        and not any(pack.record(i))
        and pack.annotation(i).label == rows[7] % 10
    )
    assert PackedDataset(pack)[i][1] == rows[7] % CLASSES
    for outside in (SHARDS * RECORDS, -1):
        with pytest.raises(IndexError):
            pack.reader.places(np.array([outside]))


def test_no_array_over_all_records_of_a_few_large_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pack_files, "MANY_RECORDS", 3999)
    pack = open_pack(large_pack(tmp_path / "pack", 2, RECORDS, SIDE))
    images, labels = next(iter(PackedLoader(pack, 100, sampler=ShuffleSampler(pack), threads=2)))
    assert images.shape == (100, 3, SIDE, SIDE) and len(labels.unique()) == CLASSES
    assert pack.reader._all_at_hand is None and not pack.reader.indexes._columns
    assert pack.reader.places(np.array([RECORDS + 7]))[0].tolist() == [pack.reader._starts[1] + 7 * SIZE]


@pytest.mark.parametrize("kind", ["tfrecord", "index.arrow"])
def test_a_missing_file_is_found_when_the_pack_is_opened(own: Path, kind: str) -> None:
    (own / f"shard-01034.{kind}").unlink()
    with pytest.raises(DamagedPack, match=f"shard-01034.{kind}: is missing"):
        open_pack(own)


@pytest.mark.parametrize("kind", ["tfrecord", "index.arrow"])
def test_a_file_of_another_size_is_found_when_its_shard_is_read(own: Path, kind: str) -> None:
    path = own / f"shard-01034.{kind}"
    path.unlink()
    path.write_bytes(b"short")
    pack = open_pack(own)
    assert not any(pack.record(0))
    with pytest.raises(DamagedPack, match=f"shard-01034.{kind}: has 5 bytes") as caught:
        pack.reader.places(np.array([0, 1034 * RECORDS, 1099 * RECORDS]))
    assert caught.value.shard == "shard-01034.tfrecord"


def test_an_altered_index_is_found_when_its_shard_is_read(own: Path) -> None:
    path = own / "shard-01034.index.arrow"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.unlink()
    path.write_bytes(data)
    pack = open_pack(own)
    assert pack.reader.values("label", np.array([1, RECORDS + 1])).tolist() == [1, 1]
    with pytest.raises(DamagedPack, match="does not match its checksum"):
        pack.reader.values("label", np.array([1034 * RECORDS]))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, np.ndarray]:
    """A pack of 1,100 shards of 20 images, and their pixels, which are those of each shard."""
    pixels = np.random.default_rng(0).integers(0, 256, (20, SIDE, SIDE, 3), np.uint8)
    return large_pack(tmp_path_factory.mktemp("tiny") / "pack", SHARDS, 20, SIDE, pixels.tobytes()), pixels


@needs_cache
@pytest.mark.parametrize("cache_bytes", ["16MB", 0])
def test_at_a_url_an_index_is_fetched_when_its_shard_is_read(
    tiny: tuple[Path, np.ndarray], tmp_path: Path, cache_bytes: object
) -> None:
    home, pixels = tiny
    with Served(home) as server:
        pack = open_pack(server.url, tmp_path / "cache", cache_bytes)
        assert [name for name, _, _ in server.asked] == ["pack.json"]
        assert all(np.array_equal(pack.image(i), pixels[i % 20]) for i in (3, 20 * 700, 20 * 700 + 7, 20 * 1099))
        assert Counter(name for name, _, _ in server.asked[1:]) == Counter(
            f"shard-{number}.{kind}" for number in ("00000", "00700", "01099") for kind in ("index.arrow", "tfrecord")
        )
        loader = PackedLoader(pack, 50, sampler=ShuffleSampler(pack), threads=2, with_index=True)
        batches = iter(loader)
        images, labels, records = next(batches)
        assert np.array_equal(images, pixels[records % 20].transpose(0, 3, 1, 2))
        assert np.array_equal(labels, records % 20 % CLASSES)
        batches.close()
        if cache_bytes:  # a whole epoch with the other cache is enough
            return
        loader.set_epoch(0)
        assert all(np.array_equal(found, pixels[i % 20].transpose(0, 3, 1, 2)) for found, _, i in loader)
        assert len(pack.column("label")) == SHARDS * 20
        assert set(Counter(server.asked).values()) == {1} and len(server.asked) == 1 + 2 * SHARDS
        for _ in loader:
            whole = pack.reader.remote.is_whole()
        assert whole and len(server.asked) == 1 + 2 * SHARDS


@needs_cache
def test_at_a_url_indexes_that_are_not_here_yet_count_for_the_cache(
    tiny: tuple[Path, np.ndarray], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_cache, "AHEAD_BYTES", 4096)
    home, _ = tiny
    indexes = sum(shard.index.bytes for shard in open_pack(home).reader.shards)
    sampler = BlockShuffleSampler(open_pack(home), block=10, window=4)
    pack = open_pack(home.as_uri(), tmp_path / "cache", indexes)
    with pytest.raises(UsageError, match="cache_bytes: leaves 0 bytes for images, but this order needs") as refused:
        next(iter(PackedLoader(pack, 20, sampler=sampler)))
    assert not pack.reader._open_shards.any()
    enough = int(str(refused.value).split("cache_bytes=")[1].split()[0])
    assert enough - indexes + pack.reader.remote.room() < SHARDS * 20 * SIZE / 2
