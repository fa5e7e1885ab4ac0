"""Two processes with gloo, initialized after the loader was created: disjoint, complete, equal shares."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from loader_packs import fresh
from packs import needs_cache

from packer import PackedLoader
from packer.samplers import ShuffleSampler, WeightedSampler

sys.path.insert(0, str(Path(__file__).parent.parent / "stores"))

from served import Served

ROOT = Path(__file__).resolve().parents[2]


def test_a_world_size_without_a_process_group_is_warned_of_once(pack, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    loader = PackedLoader(pack("raw"), 4)
    assert len(loader) == 7
    with pytest.warns(UserWarning, match="WORLD_SIZE is 2") as warned:
        assert [len(list(loader)) for _ in range(2)] == [7, 7]
    assert len(warned) == 1


def test_two_processes_share_an_epoch(pack, tmp_path):
    script = Path(__file__).with_name("loader_ranks.py")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, script, pack("raw"), tmp_path], env=environment, timeout=240, check=True)
    said = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    assert [s["rank"] for s in said] == [0, 1] and [s["batches"] for s in said] == [3, 3]
    names = {int(image.sum()) for image, _ in fresh(pack("raw"))}
    assert len(names) == 27
    alone = PackedLoader(pack("raw"), 8, shuffle=True, seed=0, drop_last=True)
    for epoch in range(2):
        shares = [said[rank]["epochs"][epoch] for rank in range(2)]
        assert [[len(batch) for batch in share] for share in shares] == [[4, 4, 4]] * 2
        seen = [name for share in shares for batch in share for name in batch]
        assert len(set(seen)) == 24 and set(seen) <= names
        alone.set_epoch(epoch)
        for number, (images, _) in enumerate(alone):  # the global batches are those of one process
            together = [name for pair in zip(shares[0][number], shares[1][number], strict=True) for name in pair]
            assert together == [int(image.sum()) for image in images]
    assert said[0]["epochs"][0] != said[0]["epochs"][1]


def test_two_processes_evaluate_each_record_once_join_and_follow_their_losses(pack, tmp_path):
    script = Path(__file__).with_name("uneven_ranks.py")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, script, pack("raw"), tmp_path], env=environment, timeout=240, check=True)
    said = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    labels = [int(label) for _, label in fresh(pack("raw"))]
    assert said[0]["evaluated"] == said[1]["evaluated"] == [list(pair) for pair in enumerate(labels)]
    assert said[0]["trained"] == said[1]["trained"]  # DDP has kept them together to the end
    sampler = WeightedSampler(27, seed=2, num_samples=40, drop_last=True)
    alone = PackedLoader(pack("raw"), 8, sampler=sampler, with_index=True)
    for step, (images, _, records) in enumerate(alone.forever(steps=14)):
        assert records.tolist() == [n for pair in zip(*(s["weighted"][step] for s in said), strict=True) for n in pair]
        alone.sampler.update(records, images.float().mean((1, 2, 3)))


@needs_cache
def test_two_processes_share_the_cache_of_a_url(pack, tmp_path):
    script = Path(__file__).with_name("loader_ranks.py")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    environment["PACKER_CACHE"] = str(tmp_path / "cache")
    with Served(pack("raw", "tfrecord")) as server:
        subprocess.run([sys.executable, script, server.url, tmp_path], env=environment, check=True)
        assert set(server.blocks().values()) == {1}  # by two processes, in two epochs
    said = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    for rank in range(2):
        order = ShuffleSampler(27, seed=0, rank=rank, world_size=2, drop_last=True)
        alone = PackedLoader(pack("raw"), 4, sampler=order)
        for epoch in range(2):
            alone.set_epoch(epoch)
            assert said[rank]["epochs"][epoch] == [[int(image.sum()) for image in images] for images, _ in alone]
