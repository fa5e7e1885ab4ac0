"""Lightning: the data module, validation, prediction, ranks of a plain DataLoader."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from conftest import RECORDS, Job
from runs import SAMPLERS, Model
from torch.utils.data import DataLoader

from packer import CenterCrop, PackedDataset, PackedLoader, RandomResizedCrop, collate
from packer.errors import UsageError
from packer.samplers import SequentialSampler, ShuffleSampler

lightning = pytest.importorskip("lightning", reason="lightning is not installed")

from lightning.pytorch.callbacks import ModelCheckpoint  # noqa: E402

from packer.lightning import PackedDataModule  # noqa: E402


class Module(lightning.LightningModule):
    """Notes the records of each step."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Model()
        self.seen: list[tuple[int, list[int], torch.Tensor]] = []
        self.validated: list[int] = []

    def training_step(self, batch: Any, _: int) -> torch.Tensor:
        images, targets = batch
        self.seen.append((self.current_epoch, targets.tolist(), images.clone()))
        loss: torch.Tensor = self.model(images)
        return loss

    def validation_step(self, batch: Any, _: int) -> None:
        self.validated += batch[1].tolist()

    test_step = validation_step

    def predict_step(self, batch: Any, _: int) -> Any:
        return batch[1]

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.01)


def trainer(home: Path | None = None, epochs: int = 3, **options: Any) -> Any:
    checkpoint = ModelCheckpoint(home, "{step}", every_n_train_steps=2, save_top_k=-1, auto_insert_metric_name=False)
    return lightning.Trainer(
        max_epochs=epochs, accelerator="cpu", devices=1, logger=False, enable_progress_bar=False,
        num_sanity_val_steps=0, enable_model_summary=False, callbacks=[checkpoint] if home else [],
        enable_checkpointing=home is not None, **options,
    )  # fmt: skip


def alike(seen: Any, others: Any) -> bool:
    return len(seen) == len(others) and all(
        a[:2] == b[:2] and torch.equal(a[2], b[2]) for a, b in zip(seen, others, strict=True)
    )


def data_of(pack: Path, **options: Any) -> PackedDataModule:
    shared = {"crop": RandomResizedCrop(4), "flip": True, "threads": 1, "mean": (0.5,) * 3, "std": (0.2,) * 3}
    return PackedDataModule(pack, pack, batch_size=8, eval_options={"crop": CenterCrop(4)}, **shared, **options)


def test_the_data_module_trains_validates_and_resumes(numbered_pack: Path, tmp_path: Path) -> None:
    whole = Module()
    trainer(tmp_path).fit(whole, datamodule=data_of(numbered_pack))
    assert [epoch for epoch, _, _ in whole.seen] == [0] * 6 + [1] * 6 + [2] * 6
    assert whole.validated == [*range(RECORDS)] * 3
    for epoch in range(3):
        assert sorted(r for e, records, _ in whole.seen if e == epoch for r in records) == [*range(RECORDS)]
    assert whole.seen[0][2].dtype == torch.float32 and whole.seen[0][2].shape == (8, 3, 4, 4)
    for step in (2, 6, 8, 12, 16):
        resumed = Module()
        trainer().fit(resumed, datamodule=deepcopy(data_of(numbered_pack)), ckpt_path=tmp_path / f"{step}.ckpt")
        assert alike(resumed.seen, whole.seen[step:]), step


def test_packs_that_are_not_given(numbered_pack: Path) -> None:
    data = PackedDataModule(numbered_pack, batch_size=8, threads=1)
    module = Module()
    trainer(epochs=1).fit(module, datamodule=data)
    assert len(module.seen) == 6 and not module.validated
    with pytest.raises(UsageError, match=r"test: is not given; name a pack: PackedDataModule\(..., test=...\)"):
        trainer().test(module, datamodule=data)
    trainer().test(module, datamodule=PackedDataModule(numbered_pack, test=numbered_pack, batch_size=8, threads=1))
    assert module.validated == [*range(RECORDS)]
    sampler = ShuffleSampler(PackedDataset(numbered_pack), 7)
    trainer(epochs=1).fit(module, datamodule=PackedDataModule(numbered_pack, batch_size=8, sampler=sampler))
    assert [r for _, records, _ in module.seen[6:] for r in records] == sampler.order(0).tolist()
    with pytest.raises(TypeError, match="bogus"):
        trainer().fit(module, datamodule=PackedDataModule(numbered_pack, bogus=1))


def test_packs_in_shares(numbered_pack: Path) -> None:
    module = Module()
    options = {"samples_per_epoch": 16, "crop": CenterCrop(4), "eval_options": {"crop": CenterCrop(4)}, "threads": 1}
    trainer(epochs=2).fit(
        module, datamodule=PackedDataModule({numbered_pack: 1}, numbered_pack, batch_size=8, **options)
    )
    assert [epoch for epoch, _, _ in module.seen] == [0, 0, 1, 1]
    assert len({record for _, records, _ in module.seen for record in records}) == 32 < RECORDS
    assert module.validated == [*range(RECORDS)] * 2


def test_validation_and_prediction_with_loaders_of_ours(numbered_pack: Path) -> None:
    module, loader = Module(), PackedLoader(numbered_pack, 8, threads=1)
    trainer(epochs=2).fit(module, PackedLoader(numbered_pack, 8, shuffle=True, seed=1), [loader])
    assert module.validated == [*range(RECORDS)] * 2
    module.validated.clear()
    trainer().validate(module, loader)
    trainer().test(module, loader)
    assert module.validated == [*range(RECORDS)] * 2
    data = PackedDataset(numbered_pack)
    for predicted in (loader, DataLoader(data, batch_size=8, sampler=SAMPLERS["sequential"](data), collate_fn=collate)):
        assert torch.cat(trainer().predict(module, predicted)).tolist() == [*range(RECORDS)]


@pytest.mark.parametrize("validates", [False, True])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_plain_dataloader_resumes_at_the_ends_of_epochs(
    numbered_pack: Path, tmp_path: Path, workers: int, validates: bool
) -> None:
    """It has no state: the middle of an epoch is an error. Its workers read before Lightning sets the epoch."""

    def fit(module: Any, trainer: Any, **options: Any) -> None:
        data = PackedDataset(numbered_pack)
        sampler = ShuffleSampler(data)
        loader = DataLoader(data, batch_size=8, sampler=sampler, collate_fn=collate, num_workers=workers)
        trainer.fit(module, loader, [PackedLoader(numbered_pack, 8, threads=1)] if validates else None, **options)

    whole = Module()
    fit(whole, trainer(tmp_path))
    two = trainer(epochs=2)
    fit(Module(), two)
    two.save_checkpoint(tmp_path / "two.ckpt")
    for name, step in (("two", 12), ("12", 12), ("6", 6)):
        resumed = Module()
        fit(resumed, trainer(), ckpt_path=tmp_path / f"{name}.ckpt")
        assert alike(resumed.seen, whole.seen[step:]), name
    for step, place in ((2, "epoch 0 after batch 2"), (14, "epoch 2 after batch 2")):
        with pytest.raises(
            UsageError, match=f"loader: has no state in the checkpoint, but Lightning resumes {place}: "
        ):
            fit(Module(), trainer(), ckpt_path=tmp_path / f"{step}.ckpt")


@pytest.mark.parametrize(("kind", "options"), [
    ("packed", {"limit_train_batches": 4}), ("packed", {"reload_dataloaders_every_n_epochs": 1}),
    ("packed", {"accumulate_grad_batches": 2}), ("stateful", {"accumulate_grad_batches": 2}),
    ("stateful", {"reload_dataloaders_every_n_epochs": 2, "limit_train_batches": 5}),
], ids=str)  # fmt: skip
def test_options_of_the_trainer(numbered_pack: Path, tmp_path: Path, kind: str, options: dict[str, int]) -> None:
    class Data(Module):
        def train_dataloader(self) -> Any:
            if kind == "packed":
                return PackedLoader(numbered_pack, 8, shuffle=True, threads=1)
            stateful = pytest.importorskip("torchdata.stateful_dataloader", reason="torchdata is not installed")
            data = PackedDataset(numbered_pack)
            options = {"sampler": ShuffleSampler(data), "collate_fn": collate, "num_workers": 2}
            return stateful.StatefulDataLoader(data, batch_size=8, **options)

        def val_dataloader(self) -> Any:
            return PackedLoader(numbered_pack, 8, threads=1)

    whole = Data()
    trainer(tmp_path, **options).fit(whole)
    batches = options.get("limit_train_batches", 6)
    expected = [record for epoch in range(3) for record in ShuffleSampler(RECORDS).order(epoch).tolist()[: 8 * batches]]
    assert [record for _, records, _ in whole.seen for record in records] == expected
    for checkpoint in sorted(tmp_path.glob("*.ckpt")):
        done = int(checkpoint.stem) * options.get("accumulate_grad_batches", 1)
        resumed = Data()
        trainer(**options).fit(resumed, ckpt_path=checkpoint)
        assert alike(resumed.seen, whole.seen[done:]), checkpoint.name


def test_a_plain_dataloader_is_divided_once(job: Job, tmp_path: Path) -> None:
    """Two ranks: Lightning would wrap any sampler but a DistributedSampler, and half of the records were never read."""
    ranks = job(tmp_path, "plain", 2, module="with_plain_lightning", kinds=[*SAMPLERS], whole=True, resumes={})
    for kind in SAMPLERS:
        for epoch in range(3):
            seen = [record for rank in ranks for e, batch in rank[f"{kind} whole"] if e == epoch for record in batch]
            assert sorted(seen) == [*range(RECORDS)]


@pytest.mark.parametrize(("strategy", "ranks", "options", "repeats"), [
    ("SingleDeviceStrategy", 1, {}, False), ("DDPStrategy", 2, {}, False), ("FSDPStrategy", 2, {}, True),
    ("DDPStrategy", 64, {}, True), ("DDPStrategy", 2, {"pad": True}, True), ("FSDPStrategy", 2, {"pad": False}, False),
])  # fmt: skip
def test_evaluation_repeats_records_only_where_ranks_must_have_equally_many_batches(
    numbered_pack: Path, strategy: str, ranks: int, options: dict[str, bool], repeats: bool
) -> None:
    """FSDP exchanges weights in each batch, and of more ranks than records some would have none."""
    data = PackedDataModule(numbered_pack, numbered_pack, numbered_pack, batch_size=4, eval_options=options)
    kind = type(strategy, (), {"root_device": torch.device("cpu")})
    data.trainer = SimpleNamespace(strategy=kind(), world_size=ranks)
    assert data.val_dataloader().sampler.pad == data.test_dataloader().sampler.pad == repeats
    assert data.train_dataloader().sampler.drop_last


@pytest.mark.parametrize("options", [{"sampler": SequentialSampler(RECORDS)}, {"drop_last": True}], ids=str)
def test_evaluation_in_an_order_of_ones_own(numbered_pack: Path, options: dict[str, Any]) -> None:
    data = PackedDataModule(numbered_pack, numbered_pack, batch_size=5, eval_options=options)
    assert len(data.val_dataloader()) == RECORDS // 5 + ("sampler" in options and RECORDS % 5 > 0)
