"""A rank of a job on several machines, as torchrun starts it: writes what it read in an epoch and the half of another.

torchrun --nnodes 2 ... node_ranks.py URL FOLDER
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

from packer import PackedLoader, open_pack
from packer.samplers import BlockShuffleSampler
from packer.stores.blocks import BlockLayout


def main(url: str, folder: Path) -> None:
    """In `folder`, each rank writes its file."""
    torch.distributed.init_process_group("gloo")
    sampler = BlockShuffleSampler(open_pack(url), 3, block=2, window=8, nodes=4)
    loader = PackedLoader(url, 2, sampler=sampler, with_index=True, threads=1)
    epochs = [[records.tolist() for _, _, records in loader]]
    half = iter(loader)
    epochs.append([next(half)[2].tolist() for _ in range(3)])
    ranks = sampler._ranks()
    said = {"epochs": epochs, "state": loader.state_dict(), "node": ranks.node, "first": ranks.first}
    (folder / f"{ranks.rank}.json").write_text(json.dumps(said))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    BlockLayout.BLOCK_BYTES = 512
    main(sys.argv[1], Path(sys.argv[2]))
