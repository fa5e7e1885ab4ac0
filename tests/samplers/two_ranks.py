"""Two processes that train together: each writes down its rank and the records that it got in two epochs."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import torch.distributed
from torch.utils.data import DataLoader

from packer import PackedDataset
from packer.samplers import ShuffleSampler


def main(pack: str, meeting_point: str, rank: int) -> None:
    """`meeting_point` is a file by which the processes find one another."""
    data = PackedDataset(pack)
    sampler = ShuffleSampler(data)
    loader = DataLoader(range(len(data)), 16, sampler=sampler)  # type: ignore[arg-type]
    assert (sampler.world_size, len(loader)) == (1, 8)
    # after the sampler, as Lightning, accelerate and many scripts do
    torch.distributed.init_process_group("gloo", init_method=f"file://{meeting_point}", rank=rank, world_size=2)
    try:
        assert len(loader) == 4
        epochs = []
        for epoch in range(2):
            sampler.set_epoch(epoch)
            epochs.append([int(record) for batch in loader for record in batch])
            torch.distributed.barrier()
        found = {"rank": sampler.rank, "world_size": sampler.world_size, "epochs": epochs}
        Path(f"{meeting_point}.{rank}").write_text(json.dumps(found))
        end = time.monotonic() + 60
        while not Path(f"{meeting_point}.{1 - rank}").exists() and time.monotonic() < end:
            time.sleep(0.01)  # the other may still be at the barrier, where it needs this one
    finally:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    rank = int(os.fork() == 0)  # torch is loaded once
    main(sys.argv[1], sys.argv[2], rank)
    sys.exit(0 if rank else os.waitstatus_to_exitcode(os.wait()[1]))
