"""Reads a pack once, shuffled, through a torch DataLoader, and prints images per second."""

import sys
import time

import torch
from torch.utils.data import DataLoader

from packer import PackedDataset, collate


def main(path: str) -> None:
    data = PackedDataset(path)
    order = torch.Generator().manual_seed(0)
    loader = DataLoader(data, batch_size=64, shuffle=True, collate_fn=collate, generator=order)
    image, target = data[0]
    print(f"first sample: image {tuple(image.shape)} {image.dtype}, target {describe(target)}")
    for epoch in range(2):
        started = time.perf_counter()
        images = sum(len(batch) for batch, _ in loader)
        seconds = time.perf_counter() - started
        note = "first touch: every record is checked" if epoch == 0 else "steady state"
        print(f"epoch {epoch}: {images} images in {seconds:.3f} s, {images / seconds:,.0f} images/s ({note})")


def describe(target: object) -> str:
    if not isinstance(target, dict):
        return str(target)
    parts = (f"{k} {tuple(v.shape)}" if isinstance(v, torch.Tensor) else k for k, v in target.items())
    return "{" + ", ".join(parts) + "}"


if __name__ == "__main__":
    main(sys.argv[1])
