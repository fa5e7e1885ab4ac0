"""`scripts/simulate.py`: what must hold for any numbers, and that what it counts adds up."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from packer.stores.blocks import BlockLayout
from packer.stores.fetch import _Work

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))

import simulate
from simulation.cluster import Clock, Queue, Resource, building, compute, listing, planning
from simulation.setting import Setting, parsed
from simulation.training import (
    BLOCK,
    Files,
    Stretch,
    epoch,
    opening,
    sampled_shards,
    shards_of_epoch,
    with_neighbors,
)

SMALL = replace(
    Setting(), images=100_000, folders=50, build_nodes=2, build_cores=4, workers=4, nodes=2, ranks=2, cores=8,
    threads=2, batch=64, latency_tail=0.0,
)  # fmt: skip
MANY = replace(SMALL, shard_bytes=2 << 20, index_bytes=1000)
"""In more shards than the number from which on indexes come late."""


def groups_of(setting):
    """Return how many requests fetch the pack if each is for a whole group of four blocks."""
    return sum(-(-size // (4 * BLOCK)) for size in Files(setting).layout.sizes)


def test_work_on_shared_cores_takes_as_long_as_the_cores_allow():
    clock, cores = Clock(), Resource("cores", 2)
    ended = Queue(clock)

    def work(seconds):
        yield from compute(clock, cores, seconds)
        ended.put(clock.now)

    def main():
        for _ in range(4):
            clock.start(work(1.0))
        for _ in range(4):
            yield ended

    assert clock.run(main()) == pytest.approx(2.0)
    assert cores.busy_s == pytest.approx(4.0)


@pytest.mark.parametrize("phase", [listing, planning, building, opening])
def test_more_nodes_are_never_slower(phase):
    setting = replace(SMALL, headers=True)
    seconds = [
        phase(replace(setting, build_nodes=nodes, nodes=nodes, output_in_store=False)).seconds for nodes in (1, 2, 4)
    ]
    if phase is opening:  # each node does the same
        assert max(seconds) < 1.2 * min(seconds)
    else:
        assert all(more <= less * 1.001 for less, more in pairwise(seconds))


def test_twice_the_nodes_train_in_half_the_time_if_each_reads_its_own_part():
    one, two = (epoch(replace(SMALL, nodes=nodes, prefixes=100), "epoch") for nodes in (1, 2))
    assert one.seconds == pytest.approx(2 * two.seconds, rel=0.05)
    assert one.bytes_read == pytest.approx(two.bytes_read, rel=0.05)


def test_canonical_nodes_read_the_pack_once_and_others_on_each_node():
    pack = SMALL.pack_bytes
    assert epoch(SMALL, "epoch").bytes_read == pytest.approx(pack, rel=0.01)  # but for the block where two parts meet
    assert epoch(replace(SMALL, canonical=False), "epoch").bytes_read == pytest.approx(2 * pack, rel=0.01)
    assert epoch(replace(SMALL, block_shuffle=False), "epoch").bytes_read == pytest.approx(2 * pack, rel=0.01)


def test_canonical_nodes_that_keep_nothing_ask_for_no_windows():
    kept, not_kept = (epoch(replace(SMALL, cache_bytes=size), "epoch") for size in (1e12, 1e9))
    assert not_kept.requests["GET"] > 1.15 * kept.requests["GET"]


def test_an_epoch_of_one_window_is_read_in_whole_groups():
    setting = replace(SMALL, nodes=1, ranks=1, images=10_000, canonical=False, shard_bytes=32 << 20)
    read = epoch(setting, "epoch")
    assert read.bytes_read == setting.pack_bytes
    # threads fetch the first batch before the window is known, and what somebody waits for is not joined with the rest
    assert groups_of(setting) <= read.requests["GET"] <= 1.3 * groups_of(setting)
    shuffled = epoch(replace(setting, block_shuffle=False), "epoch")
    assert shuffled.bytes_read == setting.pack_bytes
    assert shuffled.requests["GET"] > 1.5 * groups_of(setting)


class _Queues:
    """The queues of a process, as `packer.stores.fetch` and the model have them."""

    def __init__(self, layout, now, soon, later):
        self.blocks, self.layout, self.now, self.soon, self._later = self, layout, now, soon, later
        self.queues = (now, soon, later)

    def in_later(self, block):
        return block in self._later

    def has_later(self):
        return bool(self._later)


@pytest.mark.parametrize("seed", range(20))
def test_requests_are_joined_as_packer_joins_them(seed):
    dice = np.random.default_rng(seed)
    layout = BlockLayout((dice.integers(1, 12 * BLOCK, 5)).tolist())
    kinds = dice.integers(0, 4, layout.num_blocks)
    queues = _Queues(layout, *({int(block): None for block in np.flatnonzero(kinds == kind)} for kind in range(3)))
    for queue in queues.queues:
        for block in queue:
            assert with_neighbors(block, queue, queues) == _Work._with_neighbors(queues, block, queue)


def test_opening_fetches_the_manifest_in_each_rank_and_each_index_once_on_each_node():
    setting = replace(SMALL, shard_bytes=16 << 20, latency_s=1.0)
    assert 100 < setting.shards <= 1024
    opened = opening(setting)
    assert opened.requests["GET"] == 2 * 2 + 2 * setting.shards
    assert opened.seconds == pytest.approx(1 + math.ceil(setting.shards / 32), rel=0.05)  # 32 at once on each node


def test_opening_many_shards_fetches_no_index():
    assert MANY.shards > 1024
    assert opening(MANY).requests["GET"] == 2 * 2
    assert opening(MANY).bytes_read == 2 * 2 * MANY.shards * MANY.manifest_bytes


@pytest.mark.parametrize("changes", [{}, {"canonical": False}, {"block_shuffle": False}])
def test_indexes_of_many_shards_come_in_the_first_epoch_once_on_each_node(changes):
    setting = replace(MANY, **changes)
    first, later = (epoch(setting, "epoch", Stretch(has_indexes=known)) for known in (False, True))
    expected = sum(shards_of_epoch(setting, Files(setting), node) for node in range(2))
    size = setting.images * setting.index_bytes / setting.shards
    assert first.bytes_read - later.bytes_read == pytest.approx(expected * size)
    if setting.block_shuffle and setting.canonical:
        half, sample = setting.shards / 2, len(sampled_shards(setting, Files(setting)))
        assert half <= expected / 2 <= half + sample / 2 + 1
        assert 64 <= sample <= 64 * (2 + 1024 * setting.image_bytes // setting.shard_bytes)
    else:
        assert expected == 2 * setting.shards
    with_few_steps = epoch(setting, "epoch", steps=40)
    assert with_few_steps.bytes_read > expected * size


def test_shards_are_as_large_as_packer_makes_them():
    assert Setting().bytes_of_shard == 1 << 30 and Setting().shards == math.ceil(2.8e12 / 2**30)
    assert SMALL.bytes_of_shard == 128 << 20
    assert replace(SMALL, shard_bytes=1 << 20).shards == math.ceil(SMALL.pack_bytes / 2**20)


def test_requests_add_up():
    planned = planning(replace(SMALL, headers=True))
    assert planned.requests["GET"] == SMALL.images
    built = building(SMALL)
    assert built.requests["GET"] == SMALL.images
    assert built.bytes_read == SMALL.images * SMALL.source_bytes
    parts = SMALL.images * SMALL.image_bytes / (8 << 20)
    assert parts <= built.requests["PUT"] <= parts + 4 * SMALL.shards
    assert listing(SMALL).requests["LIST"] == SMALL.folders * math.ceil(SMALL.images / SMALL.folders / 1000)
    read = epoch(SMALL, "epoch")
    assert read.bytes_read / (4 * BLOCK) <= read.requests["GET"] <= read.bytes_read / BLOCK


def test_without_latency_and_processor_time_only_the_network_and_the_gpus_take_time():
    free = replace(SMALL, latency_s=0.0, decode_s=0.0, fetch_byte_s=0.0, prefixes=10**6, gpu_images_s=0.0)
    read = epoch(free, "epoch")
    assert read.seconds == pytest.approx(read.bytes_read / free.nodes / free.network_bytes_s, rel=0.05)
    trained = epoch(replace(free, gpu_images_s=1000.0), "epoch")
    steps = SMALL.images // (64 * 4)
    assert trained.seconds == pytest.approx(steps * 64 / 1000, rel=0.05)
    assert trained.bottleneck.startswith("GPUs")


def test_a_slow_store_is_the_bottleneck_of_what_waits_for_it():
    slow = epoch(replace(SMALL, prefix_gets_s=20.0), "epoch")
    assert slow.bottleneck.startswith("GETs")
    assert slow.seconds >= slow.requests["GET"] / 20
    assert building(replace(SMALL, latency_s=5.0)).bottleneck.startswith("reads in flight")
    assert planning(replace(SMALL, headers=True, merge_s=1e-3)).bottleneck.startswith("coordinator")


def test_a_full_cache_asks_for_nothing():
    later = epoch(SMALL, "epoch", Stretch(cached=1.0))
    assert later.requests["GET"] == later.bytes_read == 0


def test_some_steps_stand_for_an_epoch():
    setting = replace(SMALL, window_blocks=8)
    whole, some = epoch(setting, "epoch"), epoch(setting, "epoch", Stretch(0.5), steps=80)
    assert some.seconds == pytest.approx(whole.seconds, rel=0.15)
    assert some.requests["GET"] == pytest.approx(whole.requests["GET"], rel=0.15)
    assert some.bytes_read == pytest.approx(whole.bytes_read, rel=0.1)
    slow = epoch(replace(setting, window_blocks=2, prefix_gets_s=20.0), "epoch", Stretch(0.2), steps=200)
    assert slow.seconds == pytest.approx(slow.requests["GET"] / 20, rel=0.1)


def test_numbers_are_given_by_name():
    assert parsed(["images=1e6", "canonical=false", "latency_s=0.03"]) == {
        "images": 1_000_000, "canonical": False, "latency_s": 0.03,
    }  # fmt: skip
    with pytest.raises(ValueError, match="no number is called image; one of images,"):
        parsed(["image=1"])


def test_the_script_prints_each_phase_with_what_limits_it(monkeypatch, capsys):
    small = ["images=50_000", "build_nodes=2", "nodes=2", "ranks=2", "workers=4"]
    monkeypatch.setattr(sys, "argv", ["simulate.py", *(word for text in small for word in ("--set", text))])
    simulate.main()
    out = capsys.readouterr().out
    assert "| `images` | 50,000 | given |" in out
    rows = [line for line in out.splitlines() if line.endswith("% |")]
    assert len(rows) == 15 and rows[0].startswith("| list |")
