"""Two processes that train together: each prints what its PackedLoader gave in two epochs."""

from __future__ import annotations

import json
import os
import sys

import torch.distributed

from packer import PackedLoader


def main(pack: str, meeting_point: str, rank: int) -> None:
    """`meeting_point` is a file by which the processes find one another."""
    # as Lightning, accelerate and many scripts do: the loader is there before the process group
    loader = PackedLoader(pack, 4, shuffle=True, seed=0, drop_last=True, threads=1)
    assert (loader.sampler.world_size, len(loader)) == (1, 6)
    torch.distributed.init_process_group("gloo", init_method=f"file://{meeting_point}", rank=rank, world_size=2)
    try:
        epochs = []
        for epoch in range(2):
            loader.set_epoch(epoch)
            # the sum of an image of noise is its name
            epochs.append([[int(image.sum()) for image in images] for images, _ in loader])
            torch.distributed.barrier()
        assert loader.state_dict()["global_batch"] == 8
        print(json.dumps({"rank": loader.sampler.rank, "batches": len(loader), "epochs": epochs}), flush=True)
    finally:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    rank = int(os.fork() == 0)  # torch is loaded once
    main(sys.argv[1], sys.argv[2], rank)
    sys.exit(0 if rank else os.waitstatus_to_exitcode(os.wait()[1]))
