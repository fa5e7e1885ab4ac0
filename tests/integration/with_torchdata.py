"""torchdata's StatefulDataLoader, with 0 or 2 workers; two processes share it as in a loop of one's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from runs import EPOCHS, RANK, STOPS, WORLD, Make, Seen, checked
from runs import data_loader as torch_loader
from torchdata.stateful_dataloader import StatefulDataLoader
from with_bare import start

__all__ = ["data_loader", "fit", "start"]


def data_loader(pack: Path, kind: str) -> Any:
    return torch_loader(pack, kind, StatefulDataLoader)


def fit(make: Make, home: Path, resume: Path | None) -> Seen:
    loader = make()
    first = step = 0
    if resume is not None:
        checkpoint = torch.load(resume)
        loader.load_state_dict(checkpoint["data"])
        first, step = checkpoint["epoch"], checkpoint["step"]
    seen = Seen()
    for epoch in range(first, EPOCHS):
        for images, targets in loader:
            seen.append((epoch, checked(images, targets)))
            step += 1
            if step in STOPS and RANK == 0:
                home.mkdir(parents=True, exist_ok=True)
                torch.save({"data": loader.state_dict(), "epoch": epoch, "step": step}, home / "tmp")
                (home / "tmp").rename(home / str(step))
    if WORLD > 1:
        torch.distributed.barrier()  # no step of theirs keeps them together, and they resume what rank 0 saved
    return seen
