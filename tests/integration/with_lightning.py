"""Lightning's Trainer, whose checkpoints hold the state of the loader."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from runs import EPOCHS, WORLD, Make, Model, Seen, checked
from runs import data_loader as torch_loader
from torchdata.stateful_dataloader import StatefulDataLoader


def data_loader(pack: Path, kind: str) -> Any:
    # torch's own DataLoader has no state, and Lightning can resume it at the ends of epochs only; torchdata's
    # shuffle=True is not shared out by Lightning: each rank has an order of its own
    return torch_loader(pack, kind) if kind == "torch" else torch_loader(pack, kind, StatefulDataLoader)


class Module(lightning.LightningModule):
    def __init__(self, make: Make) -> None:
        super().__init__()
        self.model = Model()
        self.seen = Seen()
        self.make = make

    def train_dataloader(self) -> Any:
        return self.make()  # after the process group; those of kind early are there already

    def training_step(self, batch: Any, _: int) -> torch.Tensor:
        images, targets = batch
        self.seen.append((self.current_epoch, checked(images, targets)))
        return self.model(images)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.01)


def fit(make: Make, home: Path, resume: Path | None) -> Seen:
    module = Module(make)
    checkpoints = ModelCheckpoint(home, "{step}", every_n_train_steps=2, save_top_k=-1, auto_insert_metric_name=False)
    trainer = lightning.Trainer(
        max_epochs=EPOCHS, accelerator="cpu", devices=WORLD, strategy="ddp" if WORLD > 1 else "auto", logger=False,
        enable_progress_bar=False, enable_model_summary=False, callbacks=[checkpoints],
    )  # fmt: skip
    trainer.fit(module, ckpt_path=None if resume is None else f"{resume}.ckpt")
    return module.seen
