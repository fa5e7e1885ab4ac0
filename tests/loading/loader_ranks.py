"""Two processes that train together: each writes what its PackedLoader gave in two epochs."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import torch.distributed

from packer import PackedLoader


def main(pack: str, folder: Path, rank: int) -> None:
    """In `folder`, the processes find one another, and each writes the file of its rank."""
    # as Lightning, accelerate and many scripts do: the loader is there before the process group
    loader = PackedLoader(pack, 4, shuffle=True, seed=0, drop_last=True, threads=1)
    assert (loader.sampler.world_size, len(loader)) == (1, 6)
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder / 'meet'}", rank=rank, world_size=2)
    try:
        epochs = []
        for epoch in range(2):
            loader.set_epoch(epoch)
            # the sum of an image of noise is its name
            epochs.append([[int(image.sum()) for image in images] for images, _ in loader])
            torch.distributed.barrier()
        assert loader.state_dict()["global_batch"] == 8
        said = {"rank": loader.sampler.rank, "batches": len(loader), "epochs": epochs}
        (folder / f"{rank}.json").write_text(json.dumps(said))  # a line each of one pipe may come in pieces
        end = time.monotonic() + 60
        while not (folder / f"{1 - rank}.json").exists() and time.monotonic() < end:
            time.sleep(0.01)  # the other may still be at the barrier, where it needs this one
    finally:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    rank = int(os.fork() == 0)  # torch is loaded once
    main(sys.argv[1], Path(sys.argv[2]), rank)
    sys.exit(0 if rank else os.waitstatus_to_exitcode(os.wait()[1]))
