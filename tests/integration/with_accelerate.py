"""accelerate: a PackedLoader is registered for checkpoints, a DataLoader is prepared, and skips batches on resume."""

from __future__ import annotations

from pathlib import Path

import torch
from accelerate import Accelerator
from runs import EPOCHS, STEPS, STOPS, Make, Model, Seen, checked

from packer import PackedLoader


def fit(make: Make, home: Path, resume: Path | None) -> Seen:
    accelerator = Accelerator(cpu=True)
    loader = make()
    model = Model()
    model, optimizer, loader = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01), loader)
    if isinstance(loader, PackedLoader):
        accelerator.register_for_checkpointing(loader)
    seen = Seen()
    step = 0
    if resume is not None:
        accelerator.load_state(str(resume))
        step = int(resume.name)
    for epoch in range(step // STEPS, EPOCHS):
        loader.set_epoch(epoch)
        batches = loader
        if step % STEPS and not seen and not isinstance(loader, PackedLoader):
            batches = accelerator.skip_first_batches(loader, step % STEPS)
        for images, targets in batches:
            optimizer.zero_grad()
            accelerator.backward(model(images))
            optimizer.step()
            seen.append((epoch, checked(images, targets)))
            step += 1
            if step in STOPS:
                accelerator.save_state(str(home / str(step)))
                accelerator.wait_for_everyone()
                (home / str(step) / "done").touch()
    return seen
