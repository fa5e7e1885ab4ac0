"""One rank of an evaluation by a published script, on the CPU: its metrics, or the records that it was given.

python references_ranks.py KIND FOLDER ARGS OUT [records]
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist


class Detector(torch.nn.Module):
    """Finds boxes that depend on the pixels."""

    def forward(self, images: list[torch.Tensor]) -> list[dict[str, torch.Tensor]]:
        """Return three boxes for each image."""
        shifts = [image.mean() * 10 for image in images]
        boxes = torch.tensor([[4.0, 6, 34, 32], [9, 9, 39, 36], [14, 12, 44, 40]])
        scores, labels = torch.tensor([0.9, 0.8, 0.7]), torch.tensor([3, 17, 44])
        return [{"boxes": boxes + by, "scores": scores * by / 10, "labels": labels} for by in shifts]


class Scores(torch.nn.Module):
    """Scores of each pixel, under the name that torchvision's models give them."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 21, 5, padding=2)

    def forward(self, images: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return them."""
        return {"out": self.conv(images)}


def reduced(value: Any) -> torch.Tensor:
    """The sum over all ranks, as `utils.reduce_across_processes`, which wants CUDA."""
    total = torch.as_tensor(value).clone()
    if dist.is_initialized():
        dist.all_reduce(total)
    return total


def metrics(kind: str, loader: Any) -> Any:
    """What evaluate() of the script finds."""
    utils = importlib.import_module("utils")
    utils.reduce_across_processes = reduced
    torch.manual_seed(0)
    if kind == "detection":
        utils.SmoothedValue.synchronize_between_processes = lambda self: None  # of times, on CUDA
        found = importlib.import_module("engine").evaluate(Detector(), loader, torch.device("cpu"))
        return found.coco_eval["bbox"].stats.tolist()
    train = importlib.import_module("train")
    if kind == "segmentation":
        return train.evaluate(Scores(), loader, torch.device("cpu"), 21).mat.tolist()
    conv = torch.nn.Conv2d(3, 6, 9, stride=4)
    model = torch.nn.Sequential(conv, torch.nn.AdaptiveMaxPool2d(1), torch.nn.Flatten())
    return train.evaluate(model, torch.nn.CrossEntropyLoss(), loader, torch.device("cpu"))


def records(kind: str, loader: Any) -> list[int]:
    """The records that all ranks were given."""
    again = type(loader)(**{**loader._settings, "sampler": loader.sampler, "with_index": True})
    mine = [record for batch in again for record in batch[-1].tolist()]
    everyones: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyones, mine)
    return [record for part in everyones for record in part]


def main(kind: str, folder: str, args: str, out: str, *what: str) -> None:
    """Write the metrics, or the records, to `out`."""
    torch.set_num_threads(1)
    sys.path.insert(0, folder)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        dist.init_process_group("gloo")
    name = {"classification": "packed_classes", "detection": "packed_boxes", "segmentation": "packed_masks"}[kind]
    given, size = importlib.import_module(name).loaders, {"base_size": 64} if kind == "segmentation" else {}
    _, loader = given(SimpleNamespace(**json.loads(args)), **size)
    found = (records if what else metrics)(kind, loader)
    if not dist.is_initialized() or dist.get_rank() == 0:
        with open(out, "w") as file:
            json.dump({"numbers": found}, file)
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
