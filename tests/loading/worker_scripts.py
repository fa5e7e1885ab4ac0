"""Programs that tests start in processes of their own: ``python worker_scripts.py NAME PACK...``."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import torch
from torch.utils.data import DataLoader

from packer import PackedDataset, PackedLoader, RandomResizedCrop, collate
from packer.samplers import BalancedSampler
from packer.system import PORTABLE


def slow(image: torch.Tensor) -> torch.Tensor:
    """A transform that takes its time."""
    time.sleep(0.05)
    return image


def train(pack: str, workers: int) -> None:
    """Say the workers' ids and that they are at work, then train until something ends it."""
    data = PackedDataset(pack, slow)
    order = BalancedSampler(data, num_samples=1_000_000)  # one epoch of hours: no worker is just being started
    if workers:
        loader = DataLoader(
            data, 4, num_workers=workers, collate_fn=collate, multiprocessing_context="fork", sampler=order
        )
    else:
        loader = PackedLoader(pack, 4, transform=slow, sampler=order)  # type: ignore[assignment]
    batches = iter(loader)
    print(*[w.pid for w in getattr(batches, "_workers", ())], flush=True)
    next(batches)  # torch's workers see that their parent is gone if they knew it
    print("training", flush=True)
    for _ in batches:
        pass


def cut(pack: str) -> None:
    """A shard is cut while it is mapped; then its last record is read, in a worker and in this process."""
    data = PackedDataset(pack)
    shard = data.pack.reader.shards[-1].container
    os.truncate(Path(pack, shard.name), 0)
    try:
        next(iter(DataLoader(data, 4, num_workers=1, multiprocessing_context="fork", sampler=[len(data) - 1])))
    except RuntimeError as error:
        print(type(error).__name__, error, flush=True)
    data[len(data) - 1]
    print("read")


def few_files(pack: str) -> None:
    """Read a pack of many shards with almost no descriptors left."""
    import resource

    data = PackedDataset(pack)
    data[0], list(PackedLoader(pack, 4, threads=1))  # whatever opens files once does so now
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 4, before[1]))
    again = PackedDataset(pack)
    images = again.__getitems__(range(len(again))).images  # type: ignore[attr-defined]
    print(
        len(again.pack.reader.shards), len(images), sum(len(i) for i, _ in PackedLoader(pack, 4, threads=1)), flush=True
    )
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def fork_after_resize(pack: str) -> None:
    """OpenCV at work in many threads here, and then in forked children."""
    import cv2
    import numpy as np

    loader = PackedLoader(pack, 4, crop=RandomResizedCrop(8), threads=3)
    picture = np.zeros((900, 900, 3), np.uint8)
    for _ in range(20):
        list(loader)  # not cv2.resize of a large picture: after that, OpenCV alone hangs in 1 of 400 forks
        pid = os.fork()
        if pid == 0:
            signal.alarm(60)
            cv2.resize(picture, (400, 400))
            PackedDataset(pack)[0]
            os._exit(0)
        if os.waitpid(pid, 0)[1]:
            print("a child did not end by itself")
            return
    print("fine", flush=True)


if __name__ == "__main__":
    name, path, *others = sys.argv[1:]
    signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever runs the tests may ignore it
    if name == "train":
        train(path, int(others[0]))
    else:
        fork_after_resize(path)
        if PORTABLE:  # each map of a file holds a descriptor
            print("left out", flush=True)
        else:
            few_files(others[0])
        cut(others[1])
