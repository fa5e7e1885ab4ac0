"""PackedDataModule: the packs of a Lightning run, in three lines.

    from packer.lightning import PackedDataModule

    data = PackedDataModule("train.lmdb", "val.lmdb", batch_size=256, crop=RandomResizedCrop(224), flip=True)
    Trainer(max_epochs=90).fit(model, datamodule=data)

Needs `lightning` or `pytorch_lightning`. Lightning keeps the state of the training loader in its checkpoints.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from packer.errors import AnyPath, NotInstalled, UsageError
from packer.format.pack import Pack
from packer.loading.dataset import PackedDataset
from packer.loading.loader import PackedLoader

if TYPE_CHECKING:
    LightningDataModule: Any = object
else:
    try:
        # lightning and pytorch_lightning each accept only their own class: take that of the trainer in use
        if "pytorch_lightning" in sys.modules and "lightning.pytorch" not in sys.modules:
            from pytorch_lightning import LightningDataModule
        else:
            from lightning.pytorch import LightningDataModule
    except ModuleNotFoundError:
        try:
            from pytorch_lightning import LightningDataModule
        except ModuleNotFoundError:
            raise NotInstalled("packer.lightning", "needs Lightning", "pip install lightning") from None

Data = AnyPath | Pack | PackedDataset

TRAINING_ONLY = {
    "shuffle", "sampler", "indices", "classes", "drop_last", "pad", "samples_per_epoch", "crop", "views", "repeats",
    "flip", "vflip", "rotate90", "affine", "transform", "transforms", "mixup", "cutmix", "color_jitter", "augment",
    "with_weights",
}  # fmt: skip
"""Options of the training loader that the others do not take over."""

WITHOUT_COLLECTIVES = ("SingleDeviceStrategy", "DDPStrategy")
"""Strategies whose ranks may evaluate different numbers of batches."""


class PackedDataModule(LightningDataModule):  # type: ignore[misc]
    """The packs of a Lightning run: each a `PackedLoader` on the device of its rank.

    Args:
        train: the pack to train from, in a new order each epoch; or several packs with their shares.
        val: the pack to validate with.
        test: the pack to test with.
        batch_size: samples of a batch on each rank.
        eval_options: options of the loaders of `val` and `test`, as `crop=CenterCrop(224)`. By default each record is
            read once (`pad=False`) on a single device and with DDP; other strategies, as FSDP, exchange weights in each
            batch, so that up to one record per rank is repeated there.
        options: options of `PackedLoader` for training; `drop_last` is True by default. The loaders of `val` and `test`
            take over those that do not select or change images (TRAINING_ONLY).

    Raises:
        UsageError: if an option is unknown, when the loader is made.
    """

    def __init__(
        self,
        train: Data | Mapping[Any, float],
        val: Data | None = None,
        test: Data | None = None,
        *,
        batch_size: int = 32,
        eval_options: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        self.packs = {"train": train, "val": val, "test": test}
        self.batch_size = batch_size
        self.options = options
        self.eval_options = dict(eval_options or {})

    def train_dataloader(self) -> PackedLoader:
        """Return the loader of an epoch after another."""
        order = {} if "sampler" in self.options else {"shuffle": True, "drop_last": True}
        return self._loader("train", {**order, **self.options})

    def val_dataloader(self) -> PackedLoader | list[Any]:
        """Return the loader of all of `val`, in order; none if it is not given."""
        return self._evaluation("val") if self.packs["val"] is not None else []

    def test_dataloader(self) -> PackedLoader:
        """Return the loader of all of `test`, in order."""
        return self._evaluation("test")

    def _evaluation(self, name: str) -> PackedLoader:
        """Return a loader that repeats no record, if ranks may have different numbers of batches, and each has one."""
        shared = {name: value for name, value in self.options.items() if name not in TRAINING_ONLY}
        if {"pad", "sampler", "drop_last"} & self.eval_options.keys():
            return self._loader(name, {**shared, **self.eval_options})
        options = {"pad": False, **shared, **self.eval_options}
        loader = self._loader(name, options)
        if self.trainer is None or self._may_differ(loader.sampler.num_samples):
            return loader
        return self._loader(name, {**options, "pad": True})

    def _may_differ(self, samples: int) -> bool:
        """Return whether ranks may have different numbers of batches: nothing is exchanged in a batch."""
        return type(self.trainer.strategy).__name__ in WITHOUT_COLLECTIVES and samples >= self.trainer.world_size

    def _loader(self, name: str, options: dict[str, Any]) -> PackedLoader:
        pack = self.packs[name]
        if pack is None:
            raise UsageError(name, "is not given", f"name a pack: PackedDataModule(..., {name}=...)")
        device = self.trainer.strategy.root_device if self.trainer else "cpu"
        return PackedLoader(pack, self.batch_size, **{"device": device, **options})
