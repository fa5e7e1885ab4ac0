"""A rank of a job that trains and evaluates with packer's create_loader: writes the records of its batches.

torchrun --nproc-per-node 2 timm_ranks.py PACK FOLDER
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

from packer import PackedDataset
from packer.timm import create_loader


def main(pack: str, folder: Path) -> None:
    """In `folder`, each rank writes its file. Classes are the numbers of the records."""
    torch.distributed.init_process_group("gloo")
    rank, seen = torch.distributed.get_rank(), {}
    torch.manual_seed(rank)  # as train.py does
    options = {"distributed": True, "device": "cpu", "num_workers": 1}
    jobs = {
        "eval": (23, {}),
        "train": (4, {"is_training": True}),
        "repeated": (4, {"is_training": True, "num_aug_repeats": 3}),
    }
    for name, (size, more) in jobs.items():
        loader = create_loader(PackedDataset(pack, indices=range(47)), 8, size, **options, **more)
        seen[name] = [targets.tolist() for _, targets in loader]
        assert len(loader) == len(seen[name])
    (folder / f"{rank}.json").write_text(json.dumps(seen))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
