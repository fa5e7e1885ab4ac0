"""Two ranks of `test_rfdetr.py`: notes the ids of the images that each of them gets."""

from __future__ import annotations

import json
import sys
from typing import Any

import torch.distributed
from rfdetr.config import RFDETRNanoConfig, TrainConfig

from packer.rfdetr import PackedRFDETRDataModule


class Trainer:
    """What a data module asks of Lightning's."""

    class strategy:  # noqa: N801 - the name is Lightning's
        root_device = torch.device("cpu")

    world_size, accumulate_grad_batches = 2, 1


def ids(batches: Any) -> list[int]:
    """Return the ids of the images."""
    return [int(target["image_id"]) for _, targets in batches for target in targets]


if __name__ == "__main__":
    train, val, out = sys.argv[1:]
    torch.distributed.init_process_group("gloo")
    config = TrainConfig(dataset_dir=train, batch_size=1, num_workers=1, grad_accum_steps=1)
    module = PackedRFDETRDataModule(RFDETRNanoConfig(pretrain_weights=None, resolution=64), config, val=val)
    module.setup("fit")
    module.trainer = Trainer()
    with open(f"{out}-{torch.distributed.get_rank()}", "w") as file:
        json.dump({"train": ids(module.train_dataloader()), "val": ids(module.val_dataloader())}, file)
    torch.distributed.destroy_process_group()
