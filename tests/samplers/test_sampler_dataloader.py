"""Samplers in torch's own DataLoader, with worker processes, and in two processes that train together."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from copy import deepcopy
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from running import ROOT
from sampler_kinds import KINDS
from torch.utils.data import DataLoader, DistributedSampler

from packer import PackedDataset, collate
from packer.samplers import BalancedSampler, Sampler, ShuffleSampler

# Python 3.12 warns of any fork in a process with threads, which torch has
pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")


class Numbers(PackedDataset):
    """The number of each record as its sample; its image is read all the same."""

    def __getitems__(self, indices):
        assert len(super().__getitems__(indices)) == len(indices)
        return list(indices)


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_workers_give_the_order_of_the_sampler(sorted_pack: Path, kind: str, persistent: bool) -> None:
    data = Numbers(sorted_pack)
    sampler = KINDS[kind](len(data), rank=1, world_size=2)
    loader = DataLoader(
        data, 8, sampler=sampler, num_workers=2, persistent_workers=persistent, multiprocessing_context="fork"
    )
    for epoch in range(2):
        batches = [batch.tolist() for batch in loader]  # the next loop is the next epoch
        assert batches == [records.tolist() for records in sampler.rank_batches(8, epoch)]
        assert list(chain(*batches)) == sampler.order(epoch)[1::2].tolist()
    assert len(loader) == 8


@pytest.mark.parametrize("workers", [0, 2])
def test_a_dataloader_resumes_where_it_stopped(sorted_pack: Path, workers: int) -> None:
    data = Numbers(sorted_pack)
    context = "fork" if workers else None
    one = ShuffleSampler(data, 5)
    full, following = ([b.tolist() for b in DataLoader(data, 8, sampler=one)] for _ in range(2))
    for batches in (0, 1, 7, 15, 16):
        sampler = ShuffleSampler(data, 5)
        sampler.load_state_dict(one.state_at(0, min(batches * 8, sampler.num_samples)))
        loader = DataLoader(data, 8, sampler=sampler, num_workers=workers, multiprocessing_context=context)
        if batches < 16:
            assert [b.tolist() for b in loader] == full[batches:]
        assert [b.tolist() for b in loader] == following


def test_samplers_divide_themselves(sorted_pack: Path) -> None:
    """As DistributedSampler does: Lightning, Fabric and Ray ask for it before they divide once more."""
    for kind, make in KINDS.items():
        sampler = make(126)
        for copy in (sampler, pickle.loads(pickle.dumps(sampler)), deepcopy(sampler)):
            assert isinstance(copy, DistributedSampler) and isinstance(copy, Sampler) and type(copy) is type(sampler)
            assert copy.__class__.__name__ == type(sampler).__name__ and copy.kind == kind
            assert copy.order(3).tolist() == sampler.order(3).tolist()


def test_balanced_batches_of_images(shuffled_pack: Path) -> None:
    data = PackedDataset(shuffled_pack)
    loader = DataLoader(data, 42, sampler=BalancedSampler(data, num_samples=420), collate_fn=collate)
    targets = np.concatenate([targets.numpy() for _, targets in loader])
    assert np.allclose(np.bincount(targets), 140, atol=25)


def test_two_processes_share_an_epoch(shuffled_pack: Path, tmp_path: Path) -> None:
    script = Path(__file__).with_name("two_ranks.py")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(script), str(shuffled_pack), str(tmp_path / "meet")]
    ranks = [
        subprocess.Popen([*command, str(rank)], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for rank in range(2)
    ]
    try:
        outputs = [process.communicate(timeout=60) for process in ranks]
    finally:
        for process in ranks:
            process.kill()
    assert [process.returncode for process in ranks] == [0, 0], outputs
    first, second = (json.loads(out) for out, _ in outputs)
    assert (first["rank"], second["rank"]) == (0, 1) and first["world_size"] == second["world_size"] == 2
    for mine, others in zip(first["epochs"], second["epochs"], strict=True):
        assert len(mine) == len(others) == 63
        assert sorted(mine + others) == list(range(126))
    assert first["epochs"][0] != first["epochs"][1]
