"""The last step of each batch: colors changed and images mixed at random, on the device where the batch is."""

from __future__ import annotations

import importlib
import importlib.util
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from packer.errors import NotInstalled, UsageError
from packer.loading.annotations import BatchAnnotations
from packer.loading.fill import ImageFiller
from packer.loading.pair_filler import Pairing
from packer.loading.patch_filler import Patches
from packer.loading.pipeline import LoadedBatch
from packer.loading.seeded_transform import SeededTransform, check_images, seeded_torch, torchvision_v2
from packer.loading.targets import Targets, check_choice
from packer.loading.to_device import Normalize, map_tensors
from packer.loading.user_functions import Transforms
from packer.loading.views import ViewFiller, Views
from packer.loading.whole_filler import WholeImages
from packer.model.annotation import Int64
from packer.samplers import Sampler, WeightedSampler
from packer.samplers.order import derive, records_in
from packer.samplers.ranks import as_number

MIXING_STATE = ("mixup", "cutmix", "copy_paste", "color_jitter", "augment")
"""What of a loader's state is about mixing."""
AS_FLOATS = "returns floats, which mean, std and dtype would normalize as bytes"
FLOATS = "leave these out, or ToDtype out of augment"
FRACTIONS = "return fractions from it, image / 255"
JITTER = "write color_jitter=(0.4, 0.4, 0.4, 0.1)"
MIXING_STREAM = 3 << 32
"""Gives batches other random numbers than crops, flips and transforms."""


class Mixing:
    """Random changes of whole batches, by torchvision's transforms v2, on the device where the batch is.

    Their random numbers depend on (seed, epoch, number of the global batch) alone. A batch is mixed with itself: with
    more ranks, other images are mixed.

    Args:
        mixup: alpha of MixUp; None: none.
        cutmix: alpha of CutMix; with both, each batch gets one of the two.
        color_jitter: arguments of ColorJitter: brightness, contrast, saturation, hue; the same for all of a batch.
        num_classes: what class ids become one-hot vectors of.
        seed: any integer.

    Raises:
        NotInstalled: if torchvision is missing.
        UsageError: if a value is out of range.
    """

    def __init__(
        self, mixup: float | None, cutmix: float | None, color_jitter: Sequence[float] | None, num_classes: int,
        seed: int,
    ) -> None:  # fmt: skip
        self._seed = seed
        self._mix = self._jitter = None
        self._values: dict[str, float] = {}
        alphas = {"mixup": mixup, "cutmix": cutmix}
        self.mixes = [name for name, alpha in alphas.items() if alpha is not None]
        """mixup, cutmix: those that are used."""
        used = self.mixes + ["color_jitter"] * (color_jitter is not None)
        if not used:
            return
        v2 = torchvision_v2(used[0])
        for name, alpha in alphas.items():
            if alpha is not None and not 0 < as_number(alpha) < math.inf:
                raise UsageError(name, f"must be a number above 0, got {alpha!r}", f"write {name}=1.0, or leave it out")
        self._values = {name: float(alpha) for name, alpha in alphas.items() if alpha is not None}
        mixes = [
            kind(alpha=float(alpha), num_classes=num_classes)
            for kind, alpha in ((v2.MixUp, mixup), (v2.CutMix, cutmix))
            if alpha is not None
        ]
        if mixes:
            self._mix = v2.RandomChoice(mixes) if len(mixes) > 1 else mixes[0]
        if color_jitter is not None:
            problem = f"must be brightness, contrast, saturation and hue, got {color_jitter!r}"
            try:
                values = [color_jitter[number] for number in range(len(color_jitter))]
                if not 1 <= len(values) <= 4:
                    raise TypeError
                self._jitter = v2.ColorJitter(*values)
            except (TypeError, KeyError):
                raise UsageError("color_jitter", problem, JITTER) from None
            except ValueError as error:
                raise UsageError("color_jitter", f"{problem}: {str(error).rstrip('.')}", JITTER) from None

    @property
    def identity(self) -> dict[str, Any]:
        """Return the fields for a state: those of the changes that are used."""
        values: dict[str, Any] = dict(self._values)
        if self._jitter is not None:
            each = (getattr(self._jitter, name) for name in ("brightness", "contrast", "saturation", "hue"))
            values["color_jitter"] = [None if span is None else [float(edge) for edge in span] for span in each]
        return values

    @property
    def jitters(self) -> bool:
        """Whether it changes colors, which needs images as they are stored."""
        return self._jitter is not None

    def jitter(self, images: torch.Tensor, epoch: int, number: int) -> torch.Tensor:
        """Return the images of global batch `number` with other colors."""
        if self._jitter is None:
            return images
        check_images("color_jitter", images)
        with seeded_torch(derive(self._seed ^ MIXING_STREAM, epoch, number, 0)):
            changed: torch.Tensor = self._jitter(images)
        return changed

    def mix(self, images: torch.Tensor, targets: Any, epoch: int, number: int) -> tuple[torch.Tensor, Any]:
        """Return the mixed images, and targets (n, classes) in the place of class ids (n,)."""
        if self._mix is None:
            return images, targets
        check_images(self.mixes[0], images)
        if "mixup" in self.mixes and not images.is_floating_point():
            raise UsageError("mixup", f"needs float images, but the transform returns {images.dtype}", FRACTIONS)
        with seeded_torch(derive(self._seed ^ MIXING_STREAM, epoch, number, 1)):
            mixed: tuple[torch.Tensor, Any] = self._mix(images, targets)
        return mixed


@dataclass(frozen=True, slots=True)
class BatchForm:
    """What a batch is when it is handed over."""

    memory_format: torch.memory_format | None = None
    """Of the images; None: as they come."""
    with_index: bool = False
    """Whether the numbers of the records are handed out, too."""
    widen: bool = False
    """Whether targets are masks as they are stored, which become int64."""
    output: str = "torch"
    """What it is made of, one of OUTPUTS."""
    weights: Callable[[Int64], NDArray[np.float32]] | None = None
    """Gives the importance weights of records, if they are handed out, too."""
    alone: bool = True
    """Whether images of differing sizes are a list, and not one tensor."""


def check_weights(sampler: Sampler) -> Callable[[Int64], NDArray[np.float32]]:
    """Return the function from records to their importance weights. Raise UsageError if the sampler has none."""
    if not isinstance(sampler, WeightedSampler):
        step = "pass sampler=WeightedSampler(pack), or leave it out"
        raise UsageError("with_weights", f"needs a WeightedSampler, got {type(sampler).__name__}", step)
    return sampler.importance


def check_augments(
    augments: Mapping[str, SeededTransform], normalize: Normalize, filler: ImageFiller, targets: Targets,
    functions: Transforms,
) -> bool:  # fmt: skip
    """Return whether images are floats afterwards.

    Args:
        augments: transforms of each image, by view; "" without views.
        normalize: what is done to images then.
        filler: makes the images.
        targets: those of the pack.
        functions: the user's, which come before.

    Raises:
        UsageError: if a transform cannot change these images, or may move what their targets name.
    """
    floats = False
    for view, one in augments.items():
        if one.moving and targets.have_places:
            problem = f"has {one.moving[0]}, which may move what boxes, points and masks name"
            raise UsageError("augment", problem, "choose transforms of colors, or write transforms= for both")
        if not functions.of_images:
            size = filler.outputs[view] if isinstance(filler, ViewFiller) else filler.output
            stored = torch.uint16 if filler.dtype == np.uint16 else torch.uint8
            floats |= one.checked(filler.channels, size, stored).is_floating_point
    if floats and not normalize.nothing:
        raise UsageError("augment", AS_FLOATS, FLOATS)
    return floats


class BatchPostprocessor:
    """The last step of each batch.

    Args:
        mixing: random changes of the batch.
        normalize: what is left to do to images whose colors change here.
        form: what the batch becomes.
        jitters: what changes the colors of each view, by name; {}: `mixing` does, or nothing.
        augments: transforms of each image, by view; "" without views.
        pairing: how often two images became one on the host; None: never.
    """

    def __init__(
        self, mixing: Mixing, normalize: Normalize, form: BatchForm, jitters: Mapping[str, Mixing],
        augments: Mapping[str, SeededTransform], pairing: Pairing | None = None,
    ) -> None:  # fmt: skip
        self._pairing = pairing
        self._mixing, self._jitters, self._augments = mixing, jitters, augments
        self._normalize = normalize
        self._form = form
        self._make = OUTPUTS[form.output]

    @property
    def identity(self) -> dict[str, Any]:
        """Return the fields for a state, which must be equal to resume it."""
        colors = {name: one.identity["color_jitter"] for name, one in self._jitters.items() if one.jitters}
        views = {name: str(one) for name, one in self._augments.items()}
        augments = {"augment": views.get("", views)} if views else {}
        pairs = {} if self._pairing is None else self._pairing.identity
        return {**self._mixing.identity, **pairs, **({"color_jitter": colors} if colors else {}), **augments}

    def check(self, state: Mapping[str, Any]) -> None:
        """Raise UsageError if the batches of a state were mixed, or changed in color, in another way."""
        for name in MIXING_STATE:
            if state.get(name) != (here := self.identity.get(name)):
                problem = f"has {name} {state.get(name)!r}, here {here!r}"
                raise UsageError("state", problem, f"use the same {name}, or set_epoch in place of a state")

    def __call__(self, batch: LoadedBatch, epoch: int, number: int) -> tuple[Any, ...]:
        """Return (images, targets), and what else is handed out; it is global batch `number`."""
        images, targets, samples = batch
        if isinstance(images, Views):
            changed = {name: self._colored(one, samples, epoch, number, name) for name, one in images.items()}
            images = Views({name: self._formed(one) for name, one in changed.items()})
            if isinstance(targets, dict):
                targets = {name: self._as_trained(its) for name, its in targets.items()}
        elif isinstance(images, Patches):
            images, targets = images.flat(), self._as_trained(targets)
        elif isinstance(images, WholeImages):
            images, targets = images.alone() if self._form.alone else images.padded(), self._as_trained(targets)
        else:
            images = self._colored(images, samples, epoch, number)
            images, targets = self._mixing.mix(images, targets, epoch, number)
            images, targets = self._formed(images), self._as_trained(targets)
            if len(images) > len(samples):  # of `repeats`
                samples = np.tile(samples, len(images) // len(samples))
        records = records_in(samples)
        more: list[NDArray[Any]] = [records] if self._form.with_index else []
        if self._form.weights is not None:
            more.append(self._form.weights(records))
        first = next(iter(images.values())) if isinstance(images, dict) else images[0]
        numbers = (torch.from_numpy(one).to(first.device, non_blocking=True) for one in more)
        found: tuple[Any, ...] = (images, targets, *numbers)
        make = self._make
        if make is None:
            return found
        return self._arrays(images, make), *map_tensors(found[1:], lambda tensor, _: make(tensor))

    def _arrays(self, images: Any, make: Callable[[torch.Tensor], Any]) -> Any:
        """Return images as arrays, their channels last unless they are to be first."""
        if isinstance(images, dict):
            return type(images)({name: self._arrays(one, make) for name, one in images.items()})
        planar = images.dim() != 4 or self._form.memory_format == torch.contiguous_format
        return make(images if planar else images.permute(0, 2, 3, 1))

    def _colored(self, images: torch.Tensor, samples: Int64, epoch: int, number: int, view: str = "") -> torch.Tensor:
        mixing = self._jitters.get(view, self._mixing)
        if not self._jitters and not self._augments and not mixing.jitters:
            return images
        if view in self._augments:
            images = self._augments[view](images, samples, epoch)
            if images.is_floating_point() and not self._normalize.nothing:
                raise UsageError("augment", AS_FLOATS, FLOATS)
        return self._normalize(mixing.jitter(images, epoch, number))

    def _formed(self, images: torch.Tensor) -> torch.Tensor:
        if self._form.memory_format is not None and images.dim() == 4:
            return images.contiguous(memory_format=self._form.memory_format)
        return images

    def _as_trained(self, targets: Any) -> Any:
        if isinstance(targets, BatchAnnotations):
            return targets.as_dicts()
        # after the way to the device: an eighth of the bytes
        return targets.to(torch.int64) if self._form.widen else targets


def _to_jax(tensor: torch.Tensor) -> Any:
    return importlib.import_module("jax").dlpack.from_dlpack(tensor.contiguous())


OUTPUTS: dict[str, Callable[[torch.Tensor], Any] | None] = {
    "torch": None, "numpy": lambda tensor: tensor.numpy(), "jax": _to_jax,
}  # fmt: skip
"""What batches may be made of -> what makes it of a tensor."""


def check_output(output: Any, device: torch.device, normalize: Normalize) -> str:
    """Return what batches are made of.

    Raises:
        UsageError: if it is unknown, or cannot hold such batches.
        NotInstalled: if JAX is missing.
    """
    check_choice("output", output, tuple(OUTPUTS))
    if output == "numpy" and device.type != "cpu":
        problem = f'is "numpy", whose arrays are on the CPU, but the device is {str(device)!r}'
        raise UsageError("output", problem, 'write device="cpu", or output="torch"')
    if output == "numpy" and normalize.dtype == torch.bfloat16:
        raise UsageError("output", 'is "numpy", which has no bfloat16', "write dtype=torch.float16 or torch.float32")
    if output == "jax" and importlib.util.find_spec("jax") is None:
        raise NotInstalled("output", "needs JAX, which is not installed", "pip install jax")
    return str(output)


def check_mixed_labels(mixup: Any, cutmix: Any, targets: Targets) -> None:
    """Raise UsageError if there are no class labels to mix, also where torchvision is missing, which would not help."""
    name = "cutmix" if mixup is None else "mixup"
    if not (mixup is None and cutmix is None) and not targets.are_labels:
        raise UsageError(name, "needs class labels of images, but the pack has other labels", "leave it out")


def check_mixing(
    mixing: Mixing, normalize: Normalize, filler: ImageFiller, targets: Targets, functions: Transforms,
    floats: bool = False,
) -> None:  # fmt: skip
    """Raise UsageError if these batches cannot be mixed; `floats`: images are such before they are normalized."""
    if mixing.jitters and filler.channels not in (1, 3) and not functions.of_images:
        problem = f"needs gray or RGB images, but those of the pack have {filler.channels} channels"
        raise UsageError("color_jitter", problem, "leave it out")
    if not mixing.mixes:
        return
    name = mixing.mixes[0]
    if functions.of_targets:
        raise UsageError(name, "needs the pack's own class labels", "leave out target_transform")
    fractions = normalize.mean is not None or (normalize.dtype is not None and normalize.dtype.is_floating_point)
    if "mixup" in mixing.mixes and not (fractions or floats or functions.of_images):
        raise UsageError("mixup", "needs float images", "pass mean and std, or dtype=torch.float32")
