"""transformers.Trainer, which resumes by skipping batches: a loader of ours, or a dataset with a sampler of ours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from runs import EPOCHS, GLOBAL_BATCH, WORKERS, WORLD, Make, Model, Seen, checked
from transformers import Trainer, TrainerCallback, TrainingArguments

from packer import PackedLoader


class Module(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.model = Model()

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.model(images)


class PackTrainer(Trainer):
    loader: Any = None
    seen: Seen

    def get_train_dataloader(self) -> Any:
        if isinstance(self.loader, PackedLoader):
            return self.loader
        return super().get_train_dataloader()

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        sampler = self.loader.sampler
        return super()._get_train_sampler(train_dataset) if type(sampler).__module__.startswith("torch") else sampler

    def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        images, targets = inputs
        self.seen.append((int(self.state.epoch or 0), checked(images, targets)))
        return model(images)


class Done(TrainerCallback):
    """Marks a checkpoint that is complete."""

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        Path(args.output_dir, f"checkpoint-{state.global_step}", "done").touch()


def fit(make: Make, home: Path, resume: Path | None) -> Seen:
    loader = make()
    arguments = TrainingArguments(
        str(home), per_device_train_batch_size=GLOBAL_BATCH // WORLD, num_train_epochs=EPOCHS, save_steps=2,
        use_cpu=True, report_to=[], disable_tqdm=True, remove_unused_columns=False, logging_strategy="no",
        dataloader_pin_memory=False, dataloader_num_workers=WORKERS,
    )  # fmt: skip
    trainer = PackTrainer(Module(), arguments, train_dataset=loader.dataset, data_collator=loader.collate_fn)
    trainer.add_callback(Done())
    trainer.loader, trainer.seen = loader, Seen()
    trainer.train(resume_from_checkpoint=None if resume is None else str(resume.with_name(f"checkpoint-{resume.name}")))
    return trainer.seen
