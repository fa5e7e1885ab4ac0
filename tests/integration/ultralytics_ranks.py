"""Two processes of Ultralytics: the images that each validates, and what they count together."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from yolo_sets import OURS, trainer_of


def validated(task: str, data: str, **options: Any) -> dict[str, Any]:
    """The images of this rank, and on rank 0 the number of all that were counted."""
    trainer = trainer_of(OURS, task, data, **options)
    batch = trainer.preprocess_batch(next(iter(trainer.train_loader)))
    _, trainer.loss_items = trainer.model(batch)
    trainer.epoch = 0
    trainer.validator(trainer)
    validator, counted = trainer.validator, 0
    if dist.get_rank() == 0:
        counted = sum(map(len, validator.targets)) if task == "classify" else validator.metrics.nt_per_class.sum()
    return {"images": len(trainer.test_loader.sampler), "counted": int(counted)}


def main(boxes: str, classes: str, home: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    facts = {"detect": validated("detect", boxes), "classify": validated("classify", classes)}
    Path(home, f"{dist.get_rank()}.json").write_text(json.dumps(facts))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
