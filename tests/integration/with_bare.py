"""A loop of one's own, alone or under torchrun."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from runs import EPOCHS, RANK, STOPS, WORLD, Make, Model, Seen, checked
from runs import data_loader as torch_loader
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DistributedSampler

from packer import PackedLoader


def start() -> None:
    if WORLD > 1:
        torch.distributed.init_process_group("gloo")


def data_loader(pack: Path, kind: str) -> Any:
    loader = torch_loader(pack, kind)
    if kind == "torch" and WORLD > 1:  # as for any dataset
        sampler = DistributedSampler(loader.dataset)
        loader = type(loader)(loader.dataset, loader.batch_size, sampler=sampler, collate_fn=loader.collate_fn)
    return loader


def fit(make: Make, home: Path, resume: Path | None) -> Seen:
    loader = make()
    order = loader if isinstance(loader, PackedLoader) else loader.sampler
    model = Model()
    trained = model if WORLD == 1 else DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    seen = Seen()
    step = 0
    if resume is not None:
        checkpoint = torch.load(resume)
        model.load_state_dict(checkpoint["model"])
        order.load_state_dict(checkpoint["data"])
        step = checkpoint["step"]
    for epoch in range(getattr(order, "epoch", 0), EPOCHS):
        if isinstance(order, DistributedSampler) and not hasattr(order, "state_dict"):
            order.set_epoch(epoch)
        for images, targets in loader:
            optimizer.zero_grad()
            trained(images).backward()
            optimizer.step()
            seen.append((epoch, checked(images, targets)))
            step += 1
            if step in STOPS and RANK == 0 and hasattr(order, "state_dict"):
                home.mkdir(parents=True, exist_ok=True)
                torch.save({"model": model.state_dict(), "data": order.state_dict(), "step": step}, home / "tmp")
                (home / "tmp").rename(home / str(step))
    return seen
