"""What a metric of each trainer counts, on one rank or several: `evaluation_ranks.py TRAINER OUT PACK ...`.

Each trainer evaluates as docs/trainers.md tells, with a `PackedLoader` and with a DataLoader of a `PackedDataset`, and
its own metric collects the numbers of the records. Rank 0 writes them: way -> [numbers of PACK, of the next, ...].
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader

from packer import PackedDataset, PackedLoader, collate
from packer.samplers import SequentialSampler

BATCH = 4
WORLD = int(os.environ.get("WORLD_SIZE", "1"))
Counted = Iterator[tuple[str, list[int]]]


def packed_loader(pack: str, **options: Any) -> PackedLoader:
    return PackedLoader(pack, BATCH, threads=1, **options)


def data_loader(pack: str, sampler: Any = None, **options: Any) -> DataLoader[Any]:
    data = PackedDataset(pack)
    return DataLoader(data, BATCH, sampler=sampler and sampler(data), collate_fn=collate, **options)


def unpadded(pack: str) -> DataLoader[Any]:
    return data_loader(pack, lambda data: SequentialSampler(data, pad=False))


class Layers(torch.nn.Module):
    """A model with buffers, which DistributedDataParallel broadcasts in each forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.head = torch.nn.BatchNorm2d(3), torch.nn.Linear(3, 1)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return a number for each image."""
        return self.head(self.norm(images.float()).mean(dim=(2, 3)))


def group() -> None:
    """Make a process group, if there are several ranks."""
    if WORLD > 1:
        dist.init_process_group("gloo")


# -- torchrun, a loop of one's own


def bare(pack: str) -> Counted:
    for way, loader in (("PackedLoader", packed_loader(pack, pad=False)), ("DataLoader", unpadded(pack))):
        rows = [labels for _, labels in loader]
        everyones: list[Any] = [rows]
        if WORLD > 1:
            everyones = [None] * WORLD
            dist.all_gather_object(everyones, rows)
        yield way, torch.cat([*chain(*everyones)]).tolist()


# -- Lightning


def lightning(pack: str) -> Counted:
    import lightning as pl
    from torchmetrics import CatMetric

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layers, self.seen = Layers(), CatMetric()

        def training_step(self, batch: Any, _: int) -> torch.Tensor:
            return self.layers(batch[0]).mean()

        def validation_step(self, batch: Any, _: int) -> None:
            self.layers(batch[0])
            self.seen.update(batch[1])

        def on_validation_epoch_end(self) -> None:
            self.counted = self.seen.compute().long().tolist()
            self.seen.reset()

        test_step, on_test_epoch_end = validation_step, on_validation_epoch_end

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.01)

    def trainer() -> Any:
        strategy = "ddp" if WORLD > 1 else "auto"
        quiet = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False}
        how = {"num_sanity_val_steps": 0, "enable_checkpointing": False, "use_distributed_sampler": False, **quiet}
        return pl.Trainer(max_epochs=1, accelerator="cpu", devices=WORLD, strategy=strategy, **how)

    from packer.lightning import PackedDataModule

    data = PackedDataModule(pack, pack, pack, batch_size=BATCH, threads=1)
    module = Module()
    trainer().fit(module, datamodule=data)
    yield "fit, PackedDataModule", module.counted
    trainer().test(module, datamodule=data, verbose=False)
    yield "test, PackedDataModule", module.counted
    for way, loader in (("PackedLoader", packed_loader(pack, pad=False)), ("DataLoader", unpadded(pack))):
        trainer().validate(module, loader, verbose=False)
        yield f"validate, {way}", module.counted


# -- accelerate and transformers


def accelerate(pack: str) -> Counted:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model = accelerator.prepare(Layers()).eval()
    found = []
    for images, labels in packed_loader(pack, pad=False, device=accelerator.device):
        accelerator.unwrap_model(model)(images)
        found += labels.tolist()
    yield "PackedLoader", accelerator.gather_for_metrics(found, use_gather_object=True)
    found = []
    for images, labels in accelerator.prepare(data_loader(pack)):
        model(images)
        found += accelerator.gather_for_metrics(labels).tolist()
    yield "DataLoader", found


def transformers(pack: str) -> Counted:
    from transformers import Trainer, TrainingArguments

    counted = []

    class Evaluating(Trainer):
        def prediction_step(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            images, labels = inputs
            with torch.no_grad():
                return None, model(images), labels

    class OnPack(Evaluating):
        def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
            return packed_loader(pack)

    def metrics(of: Any) -> dict[str, float]:
        counted[:] = of.label_ids.tolist()
        return {}

    for way, kind in (("DataLoader", Evaluating), ("PackedLoader", OnPack)):
        if way == "PackedLoader" and WORLD > 1:
            continue  # it gathers after each batch: docs/trainers.md says what to use
        arguments = TrainingArguments(
            str(Path(sys.argv[2]).with_suffix(".run")), per_device_eval_batch_size=BATCH, use_cpu=True, report_to=[],
            disable_tqdm=True, remove_unused_columns=False, dataloader_pin_memory=False,
        )  # fmt: skip
        dataset = PackedDataset(pack)
        kind(Layers(), arguments, eval_dataset=dataset, data_collator=collate, compute_metrics=metrics).evaluate()
        yield way, list(counted)


# -- Ignite


def ignite(pack: str) -> Counted:
    import ignite.distributed as idist
    from ignite.engine import Engine
    from ignite.metrics import VariableAccumulation

    model = Layers().eval()
    for way, loader in (("PackedLoader", packed_loader(pack, pad=False)), ("DataLoader", unpadded(pack))):

        def step(_: Engine, batch: Any) -> Any:
            model(batch[0])
            return torch.nn.functional.one_hot(batch[1], 64)

        evaluator = Engine(step)
        times = VariableAccumulation(lambda total, of_batch: total + of_batch.sum(0), device=idist.device())
        times.attach(evaluator, "times")
        evaluator.run(loader)
        total, count = evaluator.state.metrics["times"]
        assert int(count) == int(total.sum())
        yield way, torch.arange(64).repeat_interleave(total.long()).tolist()


# -- Composer


def composer(pack: str) -> Counted:
    from composer import Evaluator, Trainer
    from composer.models import ComposerModel
    from composer.utils import dist as composer_dist
    from torchmetrics import CatMetric

    class Seen(CatMetric):
        def update(self, outputs: torch.Tensor, labels: torch.Tensor) -> None:
            super().update(labels)

    class Model(ComposerModel):
        def __init__(self) -> None:
            super().__init__()
            self.layers, self.seen = Layers(), Seen()

        def forward(self, batch: Any) -> torch.Tensor:
            return self.layers(batch[0])

        def loss(self, outputs: torch.Tensor, batch: Any) -> torch.Tensor:
            return outputs.mean()

        def get_metrics(self, is_train: bool = False) -> dict[str, Any]:
            return {} if is_train else {"Seen": self.seen}

        def update_metric(self, batch: Any, outputs: torch.Tensor, metric: Any) -> None:
            metric.update(outputs, batch[1])

    loaders = {
        "PackedLoader": packed_loader(pack, pad=False),
        "DataLoader": data_loader(pack, composer_dist.get_sampler),
    }
    for way, loader in loaders.items():
        if way == "PackedLoader" and WORLD > 1:
            continue  # it stops all ranks with the first that has no batch: docs/trainers.md says what to use
        trainer = Trainer(model=Model(), device="cpu", progress_bar=False, log_to_console=False)
        trainer.eval(eval_dataloader=Evaluator(label="val", dataloader=loader, metric_names=["Seen"]))
        yield way, trainer.state.eval_metrics["val"]["Seen"].compute().long().tolist()


# -- MMEngine


def mmengine(pack: str) -> Counted:
    from mmengine.evaluator import BaseMetric
    from mmengine.model import BaseModel
    from mmengine.runner import Runner

    class Model(BaseModel):
        def __init__(self) -> None:
            super().__init__()
            self.layers = Layers()

        def forward(self, images: torch.Tensor, labels: torch.Tensor, mode: str = "tensor") -> Any:
            self.layers(images)
            return labels

    class Seen(BaseMetric):
        def process(self, data_batch: Any, data_samples: Any) -> None:
            self.results += [int(label) for label in data_samples]

        def compute_metrics(self, results: list[int]) -> dict[str, Any]:
            return {"seen": results}

    loaders = {"PackedLoader": packed_loader(pack, pad=False), "DataLoader": data_loader(pack, SequentialSampler)}
    for way, loader in loaders.items():
        runner = Runner(
            Model(), str(Path(sys.argv[2]).with_suffix(".run")), val_dataloader=loader, val_cfg={},
            val_evaluator=[Seen()], log_level="ERROR", experiment_name=f"{way}-{Path(pack).name}",
        )  # fmt: skip
        yield way, runner.val()["seen"]


# -- fastai, in one process: its own DistributedDL needs CUDA


def fastai(pack: str) -> Counted:
    from fastai.callback.progress import ProgressCallback
    from fastai.data.core import DataLoaders
    from fastai.learner import Learner, Metric

    class Seen(Metric):
        def reset(self) -> None:
            self.seen: list[int] = []

        def accumulate(self, learn: Any) -> None:
            self.seen += learn.y.tolist()

        @property
        def value(self) -> list[int]:
            return self.seen

    for way, loader in (("PackedLoader", packed_loader(pack)), ("DataLoader", data_loader(pack))):
        data = DataLoaders(packed_loader(pack, shuffle=True), loader, device=torch.device("cpu"))
        seen = Seen()
        learner = Learner(data, Layers(), loss_func=lambda out, labels: out.mean(), metrics=[seen])
        learner.remove_cbs(ProgressCallback)
        learner.validate()
        yield way, list(seen.value)


TRAINERS: dict[str, Callable[[str], Counted]] = {
    function.__name__: function
    for function in (bare, lightning, accelerate, transformers, ignite, composer, mmengine, fastai)
}
OWN_GROUPS = (lightning, accelerate, transformers, composer)
"""Those that make the process group; MMEngine does with CUDA only."""


def main(trainer: str, out: str, *packs: str) -> None:
    torch.set_num_threads(1)
    if TRAINERS[trainer] not in OWN_GROUPS:
        group()
    counted: dict[str, list[list[int]]] = {}
    for pack in packs:
        for way, records in TRAINERS[trainer](pack):
            counted.setdefault(way, []).append(sorted(records))
    if os.environ.get("RANK", "0") == "0":
        Path(out).write_text(json.dumps(counted))
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
