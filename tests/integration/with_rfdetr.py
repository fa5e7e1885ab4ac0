"""Two ranks of `test_rfdetr.py`: notes the ids of the images that each of them gets."""

from __future__ import annotations

import json
import sys
from itertools import compress
from typing import Any

import torch.distributed
from rfdetr.config import RFDETRNanoConfig, TrainConfig
from rfdetr.training.callbacks.coco_eval import COCOEvalCallback

from packer.rfdetr import PackedRFDETRDataModule


class Trainer:
    """What a data module asks of Lightning's."""

    class strategy:  # noqa: N801 - the name is Lightning's
        root_device = torch.device("cpu")

    world_size, accumulate_grad_batches = 2, 1
    global_rank = 0


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
    module.trainer.global_rank = torch.distributed.get_rank()
    batches, callback = module.val_dataloader(), COCOEvalCallback()
    callback._reset_padding_filter([batches])
    seen = {"train": ids(module.train_dataloader()), "val": ids(batches)}
    seen["counted"] = list(compress(seen["val"], callback._next_real_sample_mask(len(seen["val"]), 0)))
    with open(f"{out}-{module.trainer.global_rank}", "w") as file:
        json.dump(seen, file)
    torch.distributed.destroy_process_group()
