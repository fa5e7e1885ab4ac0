"""A loader at a URL: the batches of the local pack, each byte asked for once; ends, errors and small caches."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from large_packs import large_pack
from loader_packs import alike
from packs import needs_cache, noise
from PIL import Image
from running import signals_heard
from torch.utils.data import DataLoader

from packer import BuildOptions, Pack, PackedDataset, PackedLoader, build_pack, collate, open_pack
from packer.errors import DamagedPack, DamagedRecordWarning, UsageError
from packer.format.mmap import Region
from packer.loading import page_cache, pipeline
from packer.samplers import BlockShuffleSampler, Sampler, SequentialSampler, ShuffleSampler
from packer.stores import cache
from packer.stores.blocks import BlockLayout
from packer.stores.cache import cache_at

sys.path.insert(0, str(Path(__file__).parent.parent / "stores"))

from served import Served, settle

pytestmark = needs_cache
KINDS = ["raw", "jpeg", "boxes", "gray16"]
SCRIPT = """
import sys
from packer.stores.blocks import BlockLayout
BlockLayout.BLOCK_BYTES = 512
from packer import PackedLoader
loader = PackedLoader(sys.argv[1], 2, shuffle=True, threads=2)
"""


@pytest.fixture(autouse=True)
def small(monkeypatch, tmp_path):
    monkeypatch.setattr(BlockLayout, "BLOCK_BYTES", 512)
    monkeypatch.setattr(BlockLayout, "EXTENT_BLOCKS", 2)
    monkeypatch.setenv("PACKER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(cache, "_caches", {})


@pytest.fixture
def server(pack):
    with Served(pack("raw", "tfrecord")) as found:
        yield found


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cache_bytes", [None, 0])
def test_the_batches_are_those_of_the_folder(pack, kind, cache_bytes):
    options = {"shuffle": True, "seed": 3, "with_index": True, "threads": 2}
    expected = [list(PackedLoader(pack(kind), 4, **options)) for _ in range(1)]
    loader = PackedLoader(pack(kind).as_uri(), 4, cache_bytes=cache_bytes, **options)
    assert alike(list(loader), expected[0])
    loader.set_epoch(0)
    assert alike(list(loader), expected[0])
    assert alike(list(PackedLoader(pack(kind).as_uri(), 4, **options)), expected[0])


@pytest.mark.parametrize("sampler", [SequentialSampler, ShuffleSampler, BlockShuffleSampler])
@pytest.mark.parametrize("ranks", [1, 3])
def test_each_block_is_asked_for_once_by_all_ranks_and_epochs(server: Served, sampler, ranks):
    for _ in range(2):
        for rank in range(ranks):
            opened = open_pack(server.url)
            loader = PackedLoader(opened, 2, sampler=sampler(opened, rank=rank, world_size=ranks), threads=2)
            assert len(list(loader)) == len(loader)
    assert set(server.blocks().values()) == {1}


def test_a_whole_pack_is_read_as_a_local_one(server: Served):
    opened = open_pack(server.url)
    loader = PackedLoader(opened, 2, shuffle=True)
    list(loader)
    settle(opened)
    seen = []
    for _ in loader:
        held = opened.reader.held(np.array([0]))
        seen.append(opened.reader.remote.is_whole())
        held.__exit__()
    assert all(seen)
    assert opened.reader.remote.whole() is None  # not pinned any more


def test_what_is_in_the_cache_and_not_in_memory_is_asked_of_the_disk(server: Served, monkeypatch):
    opened, asked = open_pack(server.url), []
    expected = list(PackedLoader(opened, 2))
    settle(opened)
    monkeypatch.setattr(Region, "share_in_memory", lambda region, offsets: 0.0)
    monkeypatch.setattr(Region, "fetch", lambda region, offsets, sizes: asked.extend(offsets.tolist()))
    assert alike(list(PackedLoader(opened, 2)), expected)
    assert sorted(asked) == sorted(opened.reader.places(np.arange(len(opened)))[0].tolist())


def test_a_dataset_at_a_url(pack, server: Served):
    local, data = PackedDataset(pack("raw", "tfrecord")), PackedDataset(server.url)
    assert all(torch.equal(data[i][0], local[i][0]) for i in range(len(local)))
    batches = list(DataLoader(data, 4, collate_fn=collate))
    assert alike(batches, list(DataLoader(local, 4, collate_fn=collate)))


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_forked_workers_are_an_error_and_no_hang(server: Served):
    data = PackedDataset(server.url)
    with pytest.raises(UsageError, match="forkserver"):
        list(DataLoader(data, 4, num_workers=1, multiprocessing_context="fork"))
    list(DataLoader(data, 4))
    assert len(list(DataLoader(data, 4, num_workers=1, multiprocessing_context="fork"))) == 7


def test_two_threads_iterate_at_once(pack, server: Served):
    loader, expected = PackedLoader(server.url, 2, seed=1), list(PackedLoader(pack("raw", "tfrecord"), 2, seed=1))
    found = []
    threads = [threading.Thread(target=lambda: found.append(list(loader))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert alike(found[0], expected)
    assert alike(found[1], expected)
    assert set(server.blocks().values()) == {1}


def test_left_early_nothing_stays_pinned(server: Served):
    server.fault = lambda name, start, stop: None
    opened = open_pack(server.url)
    for _ in PackedLoader(opened, 2, shuffle=True):
        break
    assert not opened.reader.remote.blocks.pin_if_all()
    everything = cache_at(os.environ["PACKER_CACHE"], None)
    list(PackedLoader(opened, 2))
    settle(opened)
    assert everything.evict(1 << 40) > 0
    assert not opened.reader.remote.blocks.states.any()


@pytest.mark.interpreter  # a fork does not show how an interpreter ends
def test_a_script_that_ends_in_the_middle(server: Served):
    text = f"{SCRIPT}\nfor _ in loader:\n    break\nbatches = iter(loader)\nnext(batches)\nsys.exit(3)"
    done = subprocess.run([sys.executable, "-c", text, server.url], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (3, "")


def test_ctrl_c_while_the_store_does_not_answer(server: Served):
    go_on, asked = threading.Event(), threading.Event()

    def stall(name: str, start: int, stop: int) -> None:
        if name.endswith("tfrecord"):
            asked.set()
            go_on.wait()

    server.fault = stall
    text = f"{SCRIPT}\nfor _ in loader:\n    pass"
    with signals_heard():
        process = subprocess.Popen([sys.executable, "-c", text, server.url], stderr=subprocess.PIPE, text=True)
    try:
        while not asked.wait(0.1):
            assert process.poll() is None, process.communicate()[1]
        process.send_signal(signal.SIGINT)
        _, said = process.communicate()
    finally:
        process.kill()
        go_on.set()
    assert process.returncode in (-signal.SIGINT, 1)
    assert "KeyboardInterrupt" in said


BLOCK_ORDERS = {
    "block shuffle": {"window": 2},
    "one of 2 machines": {"window": 4, "nodes": 4, "rank": 1, "world_size": 2, "local_world_size": 1},
}


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """A pack of 300 small images in shards of 30."""
    home = tmp_path_factory.mktemp("many")
    (home / "source").mkdir()
    for i in range(300):
        Image.fromarray(noise(i, 16, 16)).save(home / "source" / f"{i:03}.png")
    options = BuildOptions(str(home / "source"), str(home / "pack"), "tfrecord", shard_bytes=24_000, workers=1)
    build_pack(options)
    return home / "pack"


@pytest.mark.parametrize("order", ["shuffle", "in order", *BLOCK_ORDERS])
def test_the_cache_need_only_hold_what_an_order_reads_at_a_time(many: Path, order, monkeypatch):
    monkeypatch.setattr(page_cache, "AHEAD_BYTES", 4096)
    monkeypatch.setattr(pipeline, "BLOCK_BYTES", 1)
    expected = torch.cat([images for images, _ in PackedLoader(many, 10)])

    def loader(opened: Pack) -> PackedLoader:
        if order in BLOCK_ORDERS:
            sampler: Sampler = BlockShuffleSampler(opened, block=15, **BLOCK_ORDERS[order])
        else:
            sampler = (ShuffleSampler if order == "shuffle" else SequentialSampler)(opened)
        return PackedLoader(opened, 2, sampler=sampler, with_index=True, threads=2)

    with Served(many) as server:
        opened = open_pack(server.url, cache_bytes="130KB")
        with pytest.raises(UsageError, match=r"cache_bytes: leaves .* for images, but this order needs") as refused:
            next(iter(loader(opened)))
        enough = int(re.search(r"cache_bytes=(\d+) or more", str(refused.value))[1])
        total = sum(opened.reader.remote.blocks.layout.sizes)
        kept = cache_at(os.environ["PACKER_CACHE"], None).kept()
        assert enough - kept == total if order == "shuffle" else enough - kept < total / 2
        opened = open_pack(server.url, cache_bytes=enough)
        for epoch in range(2):
            server.clear()
            batches = loader(opened)
            batches.set_epoch(epoch)
            for images, _, records in batches:
                assert torch.equal(images, expected[records])
            settle(opened)
            assert cache_at(os.environ["PACKER_CACHE"], None).used() <= enough
            moved = sum(stop - start for name, start, stop in server.asked if name.endswith("tfrecord"))
            # the ends of a run are blocks of the next one, too
            share = 0.5 if order == "one of 2 machines" else 1
            assert moved <= 1.1 * share * total if epoch == 0 or order != "shuffle" else moved == 0
        for epoch in range(2, 40):  # each has other runs
            batches.set_epoch(epoch)
            page_cache.check_cache(opened, batches.sampler, 2)


def test_a_block_shuffle_asks_for_neighbors_together(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(page_cache, "AHEAD_BYTES", 4096)  # much less than a window
    monkeypatch.setattr(BlockLayout, "BLOCK_BYTES", 2048)
    pixels = np.random.default_rng(0).bytes(300 * 768)
    with Served(large_pack(tmp_path / "pack", 8, 300, 16, pixels)) as server:
        opened = open_pack(server.url)
        loader = PackedLoader(opened, 16, sampler=BlockShuffleSampler(opened, block=60, window=5), threads=2)
        loader.load_state_dict({**loader.state_dict(), "position": 1200})  # in the middle of a window
        assert sum(len(images) for images, _ in loader) == 1200
        settle(opened)
        fetched = server.blocks()
        assert sum(fetched.values()) < 0.75 * opened.reader.remote.blocks.layout.num_blocks
        asked = [name for name, _, _ in server.asked if name.endswith("tfrecord")]
        assert set(fetched.values()) == {1} and len(fetched) > 2 * len(asked)  # four at most; it was 1.2


def test_ranks_and_machines_count_for_the_least_cache(many: Path, monkeypatch):
    monkeypatch.setattr(page_cache, "AHEAD_BYTES", 4096)

    def least(kind: type[Sampler], ranks: int, **options: object) -> int:
        sampler = kind(opened, rank=0, world_size=ranks, **options)
        with pytest.raises(UsageError, match="cache_bytes") as refused:
            page_cache.check_cache(opened, sampler, 1)
        return int(re.search(r"cache_bytes=(\d+) or more", str(refused.value))[1])

    with Served(many) as server:
        opened = open_pack(server.url, cache_bytes="120KB")
        assert least(SequentialSampler, 1) < least(SequentialSampler, 4)
        block = {"block": 4, "window": 8}
        assert least(BlockShuffleSampler, 1, **block) < least(BlockShuffleSampler, 4, **block)
        parts = [least(BlockShuffleSampler, 4, nodes=8, local_world_size=local, **block) for local in (4, 2, 1)]
        assert parts == sorted(parts, reverse=True) and parts[2] < parts[0]


@pytest.mark.parametrize("machines", [1, 2, 4])
def test_each_machine_fetches_its_part_once(many: Path, machines: int, tmp_path):
    total, sent = 0, Counter[tuple[str, int]]()
    for rank in range(machines):
        with Served(many) as server:
            opened = open_pack(server.url, cache_dir=tmp_path / str(rank))
            total = sum(opened.reader.remote.blocks.layout.sizes)
            ranks = {"rank": rank, "world_size": machines, "local_world_size": 1}
            loader = PackedLoader(opened, 5, sampler=BlockShuffleSampler(opened, block=15, window=8, nodes=4, **ranks))
            assert sum(len(images) for images, _ in loader) == 300 // machines
            settle(opened)
            fetched = server.blocks()
            moved = sum(stop - start for name, start, stop in server.asked if name.endswith("tfrecord"))
            assert moved <= 1.05 * total / machines
            assert sum(len(images) for images, _ in loader) == 300 // machines
            assert server.blocks() == fetched and set(fetched.values()) == {1}
            sent += fetched
    # only blocks at the ends of the four parts go to two machines
    assert len(sent) == len(opened.reader.remote.blocks_of(*opened.reader.places(np.arange(300))))
    assert sum(sent.values()) - len(sent) <= 4


def test_in_the_ram_and_on_the_device(pack, server: Served):
    expected = list(PackedLoader(pack("raw", "tfrecord"), 4))
    loader = PackedLoader(server.url, 4, cache="ram")
    assert alike(list(loader), expected)
    assert alike(list(PackedLoader(server.url, 4, cache="device", device="cpu")), expected)
    assert set(server.blocks().values()) == {1}


def test_what_cannot_be_read_is_replaced(server: Served):
    opened = open_pack(server.url)
    bad = int(opened.reader.span(3)[0] - opened.reader.remote.starts[0])

    def fault(name: str, start: int, stop: int) -> object:
        return "flips" if name == "shard-00000.tfrecord" and start <= bad < stop else None

    server.fault = fault
    with pytest.raises(DamagedPack, match="does not match its checksum"):
        list(PackedLoader(opened, 4))
    loader = PackedLoader(opened, 4, on_error="replace")
    with pytest.warns(DamagedRecordWarning):
        assert len(list(loader)) == len(loader)
    assert 3 in [one.record for one in loader.replaced]


def test_a_missing_shard_is_not_replaced(server: Served):
    server.fault = lambda name, start, stop: "404" if name == "shard-00001.tfrecord" else None
    with pytest.raises(DamagedPack, match=r"shard-00001\.tfrecord: is missing"):
        list(PackedLoader(server.url, 4, on_error="replace"))


def test_a_run_goes_on_at_the_url(pack, server: Served):
    loader = PackedLoader(pack("raw", "tfrecord"), 2, shuffle=True)
    batches = iter(loader)
    for _ in range(4):
        next(batches)
    state = loader.state_dict()
    there = PackedLoader(server.url, 2, shuffle=True)
    there.load_state_dict(state)
    assert alike(list(there), list(batches))


def test_where_the_cache_is_belongs_to_a_url(pack, server: Served, tmp_path):
    for name, value in (("cache_dir", tmp_path), ("cache_bytes", 5)):
        with pytest.raises(UsageError, match=f"{name}: is for the URL of a pack"):
            PackedLoader(open_pack(server.url), 2, **{name: value})
    PackedLoader(pack("raw"), 2, cache_dir=tmp_path / "unused")
    loader = PackedLoader(server.url, 2, cache_dir=tmp_path / "here")
    assert loader.pack.reader.folder.startswith(str(tmp_path / "here"))
    assert not (tmp_path / "unused").exists()
