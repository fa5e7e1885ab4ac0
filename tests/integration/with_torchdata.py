"""torchdata's StatefulDataLoader, with 0 or 2 workers."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from runs import EPOCHS, STOPS, Make, Seen
from runs import data_loader as torch_loader
from torchdata.stateful_dataloader import StatefulDataLoader

WORKERS = int(os.environ.get("WORKERS", "0"))


def data_loader(pack: Path, kind: str) -> Any:
    return torch_loader(pack, kind, StatefulDataLoader, num_workers=WORKERS)


def fit(make: Make, home: Path, resume: Path | None) -> Seen:
    loader = make()
    first = step = 0
    if resume is not None:
        checkpoint = torch.load(resume)
        loader.load_state_dict(checkpoint["data"])
        first, step = checkpoint["epoch"], checkpoint["step"]
    seen = Seen()
    for epoch in range(first, EPOCHS):
        for _, targets in loader:
            seen.append((epoch, targets.tolist()))
            step += 1
            if step in STOPS:
                home.mkdir(parents=True, exist_ok=True)
                torch.save({"data": loader.state_dict(), "epoch": epoch, "step": step}, home / "tmp")
                (home / "tmp").rename(home / str(step))
    return seen
