"""What the tests of the real trainers run: a small pack, all kinds of loaders, and one process (or rank) of a job.

    python runs.py JOB              one process
    torchrun --nproc-per-node 2 runs.py JOB

A job names a module of this folder (`with_bare`, `with_lightning`, ...), whose `fit(make, home, resume)` trains three
epochs as a user of that library would write it, leaves checkpoints at some steps, and returns (epoch, records) of
every batch of this rank.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from packer import PackedDataset, PackedLoader, collate
from packer.samplers import BalancedSampler, BlockShuffleSampler, SequentialSampler, ShuffleSampler

RECORDS, GLOBAL_BATCH, EPOCHS = 48, 8, 3
STEPS = RECORDS // GLOBAL_BATCH
STOPS = tuple(json.loads(os.environ.get("STOPS", "null")) or (2, STEPS, 2 * STEPS + 2))
"""Steps at which a checkpoint is made: in the middle of epoch 0, at an end, in the middle of epoch 2."""
SAMPLERS: dict[str, Callable[[PackedDataset], Any]] = {
    "shuffle": ShuffleSampler,
    "sequential": SequentialSampler,
    "block": lambda data: BlockShuffleSampler(data, block=4, window=3),
    "balanced": BalancedSampler,
}
KINDS = ("early", "late", "torch", *SAMPLERS)
"""A PackedLoader made before the process group, or after it; a DataLoader with shuffle=True, or a sampler of ours."""


class Seen(list[tuple[int, list[int]]]):
    """The epoch and the records of each batch; LOG names a file that has them even if this process is killed."""

    def append(self, batch: tuple[int, list[int]]) -> None:
        """Note a batch that is trained on."""
        super().append(batch)
        if "LOG" in os.environ:
            with open(os.environ["LOG"], "a") as log:
                log.write(json.dumps(batch) + "\n")
            time.sleep(0.003)  # time to be killed in


def checked(images: torch.Tensor, targets: torch.Tensor) -> list[int]:
    """The records of a batch, after a comparison of its pixels with what `build_numbered` has packed."""
    records: list[int] = targets.tolist()
    for image, record in zip(images, records, strict=True):
        noise = np.random.default_rng(record).integers(0, 256, (6, 6, 3), dtype=np.uint8)
        assert np.array_equal(image.permute(1, 2, 0).numpy(), noise), f"the pixels of record {record}"
    return records


Make = Callable[[], Any]
RANK, WORLD = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
WORKERS = int(os.environ.get("WORKERS", "0"))
"""Worker processes of each DataLoader."""


class Model(torch.nn.Module):
    """Something to train."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return a loss."""
        return self.layer(images.float().mean(dim=(1, 2, 3))[:, None] / 255).square().mean()


def packed_loader(pack: Path) -> PackedLoader:
    """A loader as a user writes it; its ranks are nobody's business."""
    return PackedLoader(pack, GLOBAL_BATCH // WORLD, shuffle=True, seed=0, threads=1)


def data_loader(pack: Path, kind: str, cls: type[DataLoader[Any]] = DataLoader, **options: Any) -> Any:
    """A DataLoader with shuffle=True (kind torch) or one of our samplers."""
    data = PackedDataset(pack)
    order = {"shuffle": True} if kind == "torch" else {"sampler": SAMPLERS[kind](data)}
    options = {"batch_size": GLOBAL_BATCH // WORLD, "collate_fn": collate, "num_workers": WORKERS, **options}
    return cls(data, **order, **options)


def run(job: dict[str, Any]) -> None:
    """Run all cases of a job, and write what this rank has seen."""
    pack, home, module = Path(job["pack"]), Path(job["home"]), importlib.import_module(job["module"])
    cases: list[tuple[str, str, Path | None]] = []
    for kind in job["kinds"]:
        if job["whole"]:
            cases.append((kind, "whole", None))
        for world in [world for world, kinds in job["resumes"].items() if kind in kinds]:
            cases += [(kind, f"resumed at {stop} of {world}", home / f"{kind}-{world}" / str(stop)) for stop in STOPS]
    early = [packed_loader(pack) for kind, _, _ in cases if kind == "early"]
    getattr(module, "start", int)()
    results: dict[str, Any] = {}
    for kind, name, resume in cases:

        def make(kind: str = kind) -> Any:
            if kind in ("early", "late"):
                return early.pop() if kind == "early" else packed_loader(pack)
            return module.data_loader(pack, kind) if hasattr(module, "data_loader") else data_loader(pack, kind)

        folder = home / f"{kind}-{WORLD}" if resume is None else home / "again" / f"{kind}-{WORLD}-{name}"
        try:
            results[f"{kind} {name}"] = module.fit(make, folder, resume)
        except Exception:
            results[f"{kind} {name}"] = traceback.format_exc()
            if WORLD > 1:
                break  # the other rank may be elsewhere
    (home / f"{job['name']}-{RANK}.json").write_text(json.dumps(results))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    if WORLD > 1 and sys.version_info < (3, 12):
        # a worker hangs that is forked while gloo's thread enters Python to free what has just been exchanged
        # (python/cpython#112275, mended in 3.11.10): let it finish
        os.register_at_fork(before=lambda: time.sleep(0.05))
    run(json.loads(Path(sys.argv[1]).read_text()))
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
