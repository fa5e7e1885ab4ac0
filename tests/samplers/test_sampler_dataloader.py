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
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from running import ROOT
from sampler_kinds import KINDS
from torch.utils.data import DataLoader, DistributedSampler

from packer import PackedDataset, collate
from packer.errors import UsageError
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


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("batch", [8, 63])  # 63: the workers have read the whole epoch at once
def test_an_epoch_set_after_workers_began_another_is_an_error(sorted_pack: Path, batch: int, persistent: bool) -> None:
    """They would hand out the other one in silence."""
    data = Numbers(sorted_pack)
    sampler = ShuffleSampler(data)
    options = {"multiprocessing_context": "fork", "persistent_workers": persistent}
    loader = DataLoader(data, batch, sampler=sampler, num_workers=2, **options)
    batches = iter(loader)
    sampler.set_epoch(0)  # what they read
    message = (
        r"epoch: 2 is set after the workers of a DataLoader have begun to read epoch 0; set it before iter\(loader\)"
    )
    with pytest.raises(UsageError, match=message):
        sampler.set_epoch(2)
    pickle.dumps(sampler)
    assert next(batches).tolist() == sampler.order(0)[:batch].tolist()
    sampler.set_epoch(2)  # the loop has begun: this is the next one
    assert len(list(batches)) == len(loader) - 1
    assert [number for b in loader for number in b.tolist()] == sampler.order(2).tolist()
    del batches
    if not persistent:
        iter(loader)  # dropped
        sampler.set_epoch(4)
        assert next(iter(loader)).tolist() == sampler.order(4)[:batch].tolist()


FIT_LOOP = """
from types import SimpleNamespace as Some

class FitLoop:
    def __init__(self, loader, epoch, batches=0, started=0, last=False, restarting=True):
        self._combined_loader = Some(flattened=[loader])
        self.epoch_progress = Some(current=Some(processed=epoch, started=epoch + started))
        progress = Some(current=Some(processed=batches), is_last_batch=last)
        self.epoch_loop = Some(restarting=restarting, batch_progress=progress)
        self.loader = loader

    def setup_data(self):
        self.batches = iter(self.loader)

    def advance(self, epoch):
        self.loader.sampler.set_epoch(epoch)
        return [batch.tolist() for batch in self.batches]
"""
"""What samplers look at in Lightning's (tests/integration has the real one): it reads before it sets the epoch."""


@pytest.fixture
def fit_loop(monkeypatch: pytest.MonkeyPatch) -> Any:
    module = ModuleType("lightning.pytorch.loops.fit_loop")
    exec(FIT_LOOP, module.__dict__)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module.FitLoop


@pytest.mark.parametrize("workers", [0, 2])
def test_a_resumed_lightning_run_reads_its_epoch(sorted_pack: Path, fit_loop: Any, workers: int) -> None:
    data = Numbers(sorted_pack)
    context = "fork" if workers else None

    def loop(**options: Any) -> Any:
        loader = DataLoader(data, 8, sampler=ShuffleSampler(data), num_workers=workers, multiprocessing_context=context)
        loop = fit_loop(loader, **options)
        loop.setup_data()
        return loop

    epochs = [[batch.tolist() for batch in ShuffleSampler(data).rank_batches(8, epoch)] for epoch in range(4)]
    assert loop(epoch=0, restarting=False).advance(0) == epochs[0]
    assert loop(epoch=3).advance(3) == epochs[3]
    assert loop(epoch=2, restarting=False).advance(2) == epochs[2]  # loaders that are made anew
    assert loop(epoch=1, started=1, batches=16, last=True).advance(2) == epochs[2]
    stopped = loop(epoch=1, started=1, batches=5)
    with pytest.raises(
        UsageError, match=r"loader: has no state .*, but Lightning resumes epoch 1 after batch 5: records"
    ):
        stopped.advance(1)
    told = loop(epoch=1, restarting=False).loader.sampler
    told.load_state_dict(told.state_at(1, 40))
    resumed = fit_loop(DataLoader(data, 8, sampler=told), epoch=1, started=1, batches=5)
    resumed.setup_data()
    assert resumed.advance(1) == epochs[1][5:]


def test_a_state_ahead_of_training_is_an_error(sorted_pack: Path) -> None:
    """Workers have read batches that are not trained on yet: a run resumed there would never see them."""
    data = Numbers(sorted_pack)
    sampler = ShuffleSampler(data)
    loader = DataLoader(data, 8, sampler=sampler, num_workers=2, multiprocessing_context="fork")
    assert sampler.state_dict() == sampler.state_at(0, 0)
    for step, _ in enumerate(loader):
        if step in (1, len(loader) - 2):
            with pytest.raises(
                UsageError, match=r"state_dict: is ahead of training: .*; use PackedLoader or torchdata's"
            ):
                sampler.state_dict()
    assert sampler.state_dict() == sampler.state_at(0, sampler.num_samples)
    next(iter(loader))  # a loop that is left
    with pytest.raises(UsageError, match="is ahead of training"):
        sampler.state_dict()
    one_by_one = DataLoader(data, 8, sampler=ShuffleSampler(data))
    next(iter(one_by_one))
    assert one_by_one.sampler.state_dict() == sampler.state_at(0, 8)


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
    subprocess.run(command, env=environment, timeout=240, check=True)
    first, second = (json.loads((tmp_path / f"meet.{rank}").read_text()) for rank in range(2))
    assert (first["rank"], second["rank"]) == (0, 1) and first["world_size"] == second["world_size"] == 2
    for mine, others in zip(first["epochs"], second["epochs"], strict=True):
        assert len(mine) == len(others) == 63
        assert sorted(mine + others) == list(range(126))
    assert first["epochs"][0] != first["epochs"][1]
