"""The arguments of a PackedLoader, in groups."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from numpy.typing import ArrayLike

from packer.errors import AnyPath
from packer.format.pack import Pack
from packer.loading.affine import RandomAffine
from packer.loading.crop import Crop
from packer.loading.dataset import Classes, PackedDataset
from packer.loading.on_device import Decoding
from packer.loading.user_functions import ImageTransform, JointTransform
from packer.samplers import Sampler


@dataclass(frozen=True, slots=True)
class Order:
    """Which records, in which order."""

    shuffle: bool
    sampler: Sampler | None
    indices: ArrayLike | None
    classes: Classes | None
    seed: int | None
    drop_last: bool
    pad: bool
    samples_per_epoch: int | None


@dataclass(frozen=True, slots=True)
class Augment:
    """What is changed at random, in images and their annotations."""

    crop: Crop | None
    views: Mapping[str, Any] | None
    repeats: int
    flip: bool | float
    vflip: bool | float
    rotate90: bool | float
    affine: RandomAffine | None
    flip_index: Sequence[int] | None
    min_area: float
    min_visible: float
    hide_outside: bool
    mixup: float | Sequence[float] | None
    cutmix: float | None
    copy_paste: float
    color_jitter: Sequence[float] | None
    augment: Any


@dataclass(frozen=True, slots=True)
class Functions:
    """The user's own."""

    transform: ImageTransform | None
    target_transform: Callable[[Any], Any] | None
    transforms: JointTransform | None


@dataclass(frozen=True, slots=True)
class Form:
    """What a batch is."""

    collate: str
    label_offset: int | None
    ignored: str | None
    parts: Sequence[str] | None
    with_index: bool
    with_weights: bool
    device: torch.device | str
    mean: Sequence[float] | None
    std: Sequence[float] | None
    dtype: torch.dtype | None
    memory_format: torch.memory_format | None
    output: str


@dataclass(frozen=True, slots=True)
class Reading:
    """How records are read and decoded."""

    threads: int | None
    prefetch: int
    decoder: str | None
    decode: str | Decoding
    cache: str | None
    cache_dir: AnyPath | None
    cache_bytes: int | str | None
    verify: bool
    on_error: str


@dataclass(frozen=True, slots=True)
class Arguments:
    """All of them."""

    data: AnyPath | Pack | PackedDataset | Mapping[Any, float]
    batch_size: int
    order: Order
    augment: Augment
    functions: Functions
    form: Form
    reading: Reading

    def flat(self) -> dict[str, Any]:
        """Return them by name, as PackedLoader takes them."""
        groups = (self.order, self.augment, self.functions, self.form, self.reading)
        named = {field.name: getattr(group, field.name) for group in groups for field in fields(group)}
        return {"data": self.data, "batch_size": self.batch_size, **named}

    def with_dataset(self, data: PackedDataset) -> Arguments:
        """Return them with the pack of a dataset, and with what is not given as the dataset has it."""
        own, offset = self.functions, self.form.label_offset
        functions = Functions(
            data.transform if own.transform is None else own.transform,
            data.target_transform if own.target_transform is None else own.target_transform,
            data.transforms if own.transforms is None else own.transforms,
        )
        return replace(
            self,
            data=data.pack,
            functions=functions,
            form=replace(
                self.form,
                label_offset=data.label_offset if offset is None else offset,
                ignored=self.form.ignored or data.ignored,
                parts=data.parts if self.form.parts is None else self.form.parts,
            ),
            reading=replace(self.reading, decoder=self.reading.decoder or data.decoder),
        )
