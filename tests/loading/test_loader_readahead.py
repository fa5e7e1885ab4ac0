"""Cold packs: what comes next is asked of the disk before it is handed out, in the same order."""

from __future__ import annotations

import mmap
import os

import numpy as np
import pytest
from loader_packs import alike

from packer import PackedLoader, open_pack, system
from packer.format.mmap import Region
from packer.loading import page_cache
from packer.loading.page_cache import announced

PAGE = mmap.PAGESIZE


@pytest.fixture
def cold(monkeypatch):
    """The pack seems cold; returns the record offsets that were asked for, in order."""
    asked = []
    monkeypatch.setattr(Region, "share_in_memory", lambda region, offsets: 0.0)
    monkeypatch.setattr(Region, "fetch", lambda region, offsets, sizes: asked.extend(offsets.tolist()))
    return asked


@pytest.mark.parametrize("ahead", [0, 1, 360 * 4, 360 * 10, 1 << 30])
def test_everything_is_asked_for_before_it_is_handed_out(pack, cold, monkeypatch, ahead):
    monkeypatch.setattr(page_cache, "AHEAD_BYTES", ahead)
    opened = open_pack(pack("raw"))
    batches = list(np.random.default_rng(0).permutation(27).reshape(9, 3))
    handed_out = []
    for records in announced(iter(batches), opened):
        handed_out.append(records)
        assert set(opened.reader.places(np.concatenate(handed_out))[0].tolist()) <= set(cold)
        # and no further than it was meant to
        beyond = len(cold) - 3 * len(handed_out)
        assert beyond * 360 <= ahead + 3 * 360
        # the first batch must not wait for the whole lead: it took 2 s on a pack of a million tiny images
        assert len(handed_out) > 1 or beyond < 3 * page_cache.LEAD_BATCHES
        if ahead >= 360 * 4 and len(handed_out) < 5:
            assert beyond > 0
    assert np.array_equal(handed_out, batches)
    assert sorted(cold) == sorted(opened.reader.places(np.arange(len(opened)))[0].tolist())


def test_a_warm_pack_costs_nothing(pack, monkeypatch):
    monkeypatch.setattr(Region, "share_in_memory", lambda region, offsets: 1.0)
    monkeypatch.setattr(Region, "fetch", None)
    assert len(list(PackedLoader(pack("raw"), 4))) == 7


@pytest.mark.parametrize("kind", ["raw", "jpeg", "boxes"])
def test_cold_or_warm_the_batches_are_the_same(pack, cold, kind):
    ahead = list(PackedLoader(pack(kind), 4, shuffle=True, seed=1))
    assert len(cold) == len(open_pack(pack(kind)))
    assert alike(ahead, list(PackedLoader(pack(kind), 4, shuffle=True, seed=1, cache=None)))


def test_ranges_are_whole_pages_and_merged(monkeypatch):
    asked = []

    monkeypatch.setattr(system, "PORTABLE", False)
    monkeypatch.setattr(system, "fetch_pages", lambda address, size: asked.append((address, size)))
    region = np.zeros(64 * PAGE, np.uint8)
    base = region.ctypes.data
    # one page in the middle; two records of one page; neighbours; one inside another; the last byte
    offsets = np.array([40, 3, 3, 8, 9, 20, 21, 64]) * PAGE + [5, 0, 100, 0, 0, 0, 0, -1]
    sizes = np.array([10, 50, PAGE, PAGE, 1, 9 * PAGE, 10, 1])
    Region([region], [0]).fetch(offsets, sizes)
    ranges = [((address - base) // PAGE, size // PAGE) for address, size in asked]
    assert all((address - base) % PAGE == size % PAGE == 0 for address, size in asked)
    assert ranges == [(3, 2), (8, 2), (20, 9), (40, 1), (63, 1)]
    rng = np.random.default_rng(0)
    for _ in range(50):
        asked.clear()
        offsets = rng.integers(0, 63 * PAGE, 20)
        sizes = rng.integers(1, PAGE, 20)
        Region([region], [0]).fetch(offsets, sizes)
        spans = [((address - base) // PAGE, size // PAGE) for address, size in asked]
        pages = [page for first, count in spans for page in range(first, first + count)]
        wanted = {p for o, s in zip(offsets, sizes, strict=True) for p in range(o // PAGE, (o + s - 1) // PAGE + 1)}
        assert sorted(pages) == sorted(wanted)


@pytest.mark.syncs
def test_pages_dropped_from_the_cache_are_read_again(pack):
    """POSIX_FADV_DONTNEED works without root; a file system may keep its pages all the same."""
    expected = list(PackedLoader(pack("raw"), 4))
    opened = open_pack(pack("raw"))
    for shard in opened.reader.shards:
        fd = os.open(os.path.join(opened.path, shard.container.name), os.O_RDONLY)
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)
    assert 0 <= opened.reader.region.share_in_memory(opened.reader.places(np.arange(len(opened)))[0]) <= 1
    assert alike(list(PackedLoader(opened, 4)), expected)
    # after one epoch it is warm: pages that hold no image are never read, and must not count as missing
    assert opened.reader.region.share_in_memory(opened.reader.places(np.arange(len(opened)))[0]) == 1
