"""Two processes with losses of their own: evaluation without duplicates, DDP's join, weights after an all-gather.

Each writes what it got to the file of its rank.
"""

from __future__ import annotations

import json
import os
import sys
import time
from itertools import islice
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

from packer import PackedLoader
from packer.samplers import WeightedSampler


def evaluated(pack: str) -> list[list[int]]:
    """Records and labels that all ranks have seen, in the order of the pack; a rank may have one batch fewer."""
    loader = PackedLoader(pack, 13, pad=False, with_index=True, threads=1)
    assert len(loader) == (2, 1)[dist.get_rank()] == len(list(loader))
    seen = [torch.stack([records, labels], 1) for _, labels, records in loader]
    gathered: list[torch.Tensor] = [torch.empty(0)] * dist.get_world_size()
    dist.all_gather_object(gathered, torch.cat(seen))  # after the loop: the ranks have different lengths
    found: list[list[int]] = sorted(torch.cat(gathered).tolist())
    return found


def trained_with_join(pack: str) -> list[float]:
    """The weights of a model after an epoch of DDP in which the ranks have 14 and 13 batches."""
    torch.manual_seed(0)
    layers = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(360, 3))
    model = DistributedDataParallel(layers)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    loader = PackedLoader(pack, 1, shuffle=True, seed=0, pad=False, dtype=torch.float32, threads=1)
    with Join([model]):
        for images, labels in loader:
            torch.nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
            optimizer.zero_grad()
    found: list[float] = layers[1].bias.tolist()
    return found


def all_ranks(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of all ranks, one after another."""
    parts = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, tensor)
    return torch.cat(parts)


def weighted(pack: str) -> list[list[int]]:
    """The records of this rank in each of 14 steps of an epoch of 5, with weights by updates after each step."""
    sampler = WeightedSampler(27, seed=2, num_samples=40, drop_last=True)
    loader = PackedLoader(pack, 4, sampler=sampler, with_index=True, with_weights=True, threads=1)
    found = []
    for images, _, records, weights in islice(loader.forever(steps=14), 14):
        assert len(weights) == 4
        loader.sampler.update(all_ranks(records), all_ranks(images.float().mean((1, 2, 3))))
        found.append(records.tolist())
    assert loader.state_dict()["steps"] == 14
    return found


def main(pack: str, folder: Path, rank: int) -> None:
    """In `folder`, the processes find one another, and each writes the file of its rank."""
    dist.init_process_group("gloo", init_method=f"file://{folder / 'meet'}", rank=rank, world_size=2)
    try:
        said = {"evaluated": evaluated(pack), "trained": trained_with_join(pack), "weighted": weighted(pack)}
        (folder / f"{rank}.json").write_text(json.dumps(said))
        end = time.monotonic() + 60
        while not (folder / f"{1 - rank}.json").exists() and time.monotonic() < end:
            time.sleep(0.01)  # the other may still be in a collective, where it needs this one
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    rank = int(os.fork() == 0)  # torch is loaded once
    main(sys.argv[1], Path(sys.argv[2]), rank)
    sys.exit(0 if rank else os.waitstatus_to_exitcode(os.wait()[1]))
