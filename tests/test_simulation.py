"""`scripts/simulate.py`: what must hold for any numbers, and that what it counts adds up."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))

import simulate
from simulation.build import building, listing, planning
from simulation.clock import Clock, Queue, Resource, compute
from simulation.setting import Setting, parsed
from simulation.stream import BLOCK, Windows, epoch, joined, opening

SMALL = replace(
    Setting(), images=200_000, folders=50, build_nodes=2, build_cores=4, workers=4, nodes=2, ranks=2, cores=8,
    threads=2, batch=64, latency_tail=0.0,
)  # fmt: skip


def test_work_on_shared_cores_takes_as_long_as_the_cores_allow():
    clock, cores = Clock(), Resource("cores", 2, 10)
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
    if phase is opening:  # each node fetches all indexes
        assert max(seconds) < 1.2 * min(seconds)
    else:
        assert all(more <= less * 1.001 for less, more in pairwise(seconds))


def test_twice_the_nodes_train_in_half_the_time_if_each_reads_its_own_part():
    one, two = (epoch(replace(SMALL, nodes=nodes, prefixes=100), "epoch") for nodes in (1, 2))
    assert one.seconds == pytest.approx(2 * two.seconds, rel=0.05)
    assert one.bytes_read == pytest.approx(two.bytes_read, rel=0.05)


def test_canonical_nodes_read_the_pack_once_and_others_more():
    pack = SMALL.pack_bytes
    mine = epoch(SMALL, "epoch").bytes_read
    assert mine == pytest.approx(1.146 * pack, rel=0.01)  # runs begin and end within blocks: docs/remote.md
    assert epoch(replace(SMALL, canonical=False), "epoch").bytes_read > 1.3 * mine
    assert epoch(replace(SMALL, block_shuffle=False), "epoch").bytes_read == pytest.approx(2 * pack, rel=0.02)


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
    free = replace(SMALL, latency_s=0.0, decode_s=0.0, fetch_byte_s=0.0, fetch_s=0.0, prefixes=10**6, gpu_images_s=0.0)
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
    later = epoch(SMALL, "epoch", cached=1.0)
    assert later.requests["GET"] == later.bytes_read == 0


def test_blocks_that_are_touched():
    windows = Windows.of(replace(SMALL, block_shuffle=False, nodes=1))
    blocks = SMALL.pack_bytes / BLOCK
    assert windows.touched(0, SMALL.image_bytes) == 0
    assert windows.touched(1, SMALL.image_bytes) == pytest.approx(1 + SMALL.image_bytes / BLOCK, rel=0.01)
    assert windows.touched(SMALL.images, SMALL.image_bytes) == pytest.approx(blocks)


def test_requests_are_joined_only_where_neighbors_are_asked_for():
    assert joined(0.0) == 1
    assert joined(1.0) == 4
    assert 1 < joined(0.3) < joined(0.5) <= 4


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
