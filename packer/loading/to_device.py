"""From a batch on the host to the training loop: copied to the device and normalized, mixed, its colors changed.

Batches are copied to the GPU ahead of the consumer, on a separate stream. Apex's `data_prefetcher` (BSD-3-Clause)
introduced the pattern. Unlike it, `CudaPrefetcher` takes any nesting of tensors, keeps several batches in flight, and
protects both ends: pinned memory is not reused before its copy is done, and the memory of a tensor that the consumer
drops is not reused before its work is done.
"""

from __future__ import annotations

import copy
import importlib
import math
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from functools import lru_cache
from typing import Any

import torch

from packer.errors import NotInstalled, UsageError
from packer.loading.annotations import BatchAnnotations
from packer.loading.pipeline import LoadedBatch, Stats
from packer.samplers.order import derive
from packer.samplers.ranks import as_number


@dataclass(frozen=True)
class Normalize:
    """Normalizes and converts uint8 images.

    Args:
        mean: mean of each channel, for values from 0 to 1, as in torchvision; None: do not normalize.
        std: standard deviation of each channel. With mean and std: (x / 255 - mean) / std, computed in float32.
        dtype: dtype of the result; default float32 with mean and std, else uint8. Without mean and std: x / 255 for a
            floating dtype, unchanged values for an integer one.
        memory_format: memory format of the result.

    Raises:
        ValueError: if the arguments cannot be combined.
    """

    mean: Sequence[float] | None = None
    std: Sequence[float] | None = None
    dtype: torch.dtype | None = None
    memory_format: torch.memory_format = torch.channels_last

    def __post_init__(self) -> None:
        if (self.mean is None) != (self.std is None):
            raise ValueError("mean and std must be given together")
        if self.mean is not None and self.std is not None:
            try:
                finite = all(math.isfinite(number) for number in (*self.mean, *self.std))
            except TypeError:
                finite = False
            if not finite or len(self.mean) != len(self.std) or not all(number > 0 for number in self.std):
                problem = f"mean and std must have one number per channel, std above 0; got {self.mean}, {self.std}"
                raise ValueError(problem)
            if any(number > 1 for number in self.mean):
                raise ValueError(f"mean and std are for values from 0 to 1: divide them by 255; got mean {self.mean}")
        if self.dtype is not None and not isinstance(self.dtype, torch.dtype):
            raise ValueError(f"dtype must be a torch.dtype such as torch.float32, got {self.dtype!r}")
        if self.mean is not None and self.dtype is not None and not self.dtype.is_floating_point:
            raise ValueError(f"normalized images are fractions, which {self.dtype} cannot hold: use torch.float32")
        if self.memory_format not in (formats := (torch.channels_last, torch.contiguous_format)):
            raise ValueError(f"memory_format must be {formats[0]} or {formats[1]}, got {self.memory_format!r}")
        if not self.holds(torch.uint8):
            raise ValueError(f"dtype is {self.dtype}, which cannot hold 0 to 255: use torch.float32 or torch.int16")

    def holds(self, stored: torch.dtype) -> bool:
        """Return whether the result can hold all values of images of the dtype `stored`, uint8 or uint16."""
        dtype = self.dtype
        if dtype is None or dtype.is_floating_point:
            return True
        return not dtype.is_complex and dtype != torch.bool and torch.iinfo(dtype).max >= torch.iinfo(stored).max

    @property
    def nothing(self) -> bool:
        """Whether images are unchanged."""
        return self.mean is None and self.dtype is None

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        """Normalize images (n, channels, height, width) on their device."""
        if not self.nothing:
            images = self._values(images)
        return images.contiguous(memory_format=self.memory_format)

    def _values(self, images: torch.Tensor) -> torch.Tensor:
        dtype = self.dtype or torch.float32
        if not dtype.is_floating_point:
            return images.to(dtype)
        full = 65535.0 if images.dtype == torch.uint16 else 255.0
        values = images.to(torch.float32)
        if self.mean is None or self.std is None:
            return values.div_(full).to(dtype)
        if images.shape[1] != len(self.mean):
            raise ValueError(f"mean has {len(self.mean)} channels, but the images have {images.shape[1]}")
        mean = _per_channel(tuple(float(m) * full for m in self.mean), images.device)
        std = _per_channel(tuple(float(s) * full for s in self.std), images.device)
        return values.sub_(mean).div_(std).to(dtype)


@lru_cache(maxsize=64)
def _per_channel(values: tuple[float, ...], device: torch.device) -> torch.Tensor:
    """Return float32 (1, channels, 1, 1), cached because creating it on a GPU is a blocking copy."""
    return torch.tensor(values, dtype=torch.float32, device=device).view(1, -1, 1, 1)


IMAGES = (torch.uint8, torch.uint16)


class CudaPrefetcher:
    """Iterates a loader's batches, moved to `device` and normalized there.

    Wraps a PackedLoader or any DataLoader; batches may be nested tuples, named tuples, lists, dicts and dataclasses.
    The first uint8 (or uint16) tensor of four dimensions in a batch holds the images, which are copied as bytes and
    converted on the device; other tensors are only copied. On a CPU device it does the same without streams.

    A PackedLoader with a `device` does all this itself. If you wrap one, batches are taken ahead of your loop, and the
    loader's `state_dict` counts them.

    Args:
        loader: the loader. Copies overlap with computation only from pinned memory: create a DataLoader with
            ``pin_memory=True``.
        device: the device of the batches.
        depth: number of batches in flight.
        mean: see `Normalize`; also for `std`, `dtype` and `memory_format`.

    Raises:
        ValueError: while iterating, for a batch without images if mean, std or dtype are given.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - the signature that the field knows
        self,
        loader: Iterable[Any],
        device: torch.device | str,
        depth: int = 2,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        dtype: torch.dtype | None = None,
        memory_format: torch.memory_format = torch.channels_last,
    ) -> None:
        self.loader = loader
        self._transfer = Transfer(device, depth, Normalize(mean, std, dtype, memory_format))

    def __len__(self) -> int:
        """Batches of the loader."""
        return len(self.loader)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Any]:
        """Yield batches on the device, in the loader's order. Exceptions of the loader are raised unchanged."""
        return self._transfer.run(self.loader)


class Transfer:
    """Copies batches to a device on one side stream, with `depth` batches in flight."""

    def __init__(self, device: torch.device | str, depth: int, normalize: Normalize) -> None:
        if depth < 1:
            raise ValueError(f"depth must be at least 1 batch, got {depth}")
        self.device = torch.device(device)
        self.depth = depth
        self.normalize = normalize
        self._stream: Any = None
        if self.device.type == "cuda":
            try:
                self._stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
            except (RuntimeError, AssertionError) as error:
                problem = f"is {device}, which torch cannot use here: {str(error).splitlines()[0]}"
                raise UsageError("device", problem, 'use device="cpu", or see torch.cuda.is_available()') from None

    def run(self, batches: Iterable[Any], stats: Stats | None = None) -> Generator[Any, None, None]:
        """Yield the batches on the device, in order; `stats` counts copy and normalization as "copy"."""
        source = iter(batches)
        stats = stats or Stats()
        try:
            if self._stream is None:
                for batch in source:
                    started = time.perf_counter()
                    there = self._to_device(batch)
                    stats.add("copy", time.perf_counter() - started)
                    yield there
            else:
                yield from self._prefetched(source, self._stream, stats)
        finally:
            if isinstance(source, Generator):
                source.close()

    def _to_device(self, batch: Any) -> Any:
        walk = _BatchWalk(self._tensor_to_device)
        there = walk.walk(batch)
        if not walk.images_seen and not self.normalize.nothing:
            raise ValueError(
                "mean, std and dtype are for uint8 images (n, channels, height, width), but a batch has none: "
                "leave them out, or let the loader give such images"
            )
        return there

    def _tensor_to_device(self, tensor: torch.Tensor, images: bool) -> torch.Tensor:
        there = tensor.to(self.device, non_blocking=True)
        return self.normalize(there) if images else there

    def _prefetched(self, source: Iterator[Any], stream: Any, stats: Stats) -> Iterator[Any]:
        flying: deque[_Flight] = deque()
        ended, failure = False, None
        try:
            while True:
                while not ended and len(flying) < self.depth:
                    try:
                        flight = self._launch(source, stream)
                    except Exception as error:
                        flight, failure = None, error
                    ended = flight is None
                    if flight is not None:
                        flying.append(flight)
                if not flying:
                    break
                yield self._land(flying.popleft(), stats)
            if failure is not None:
                raise failure
        finally:
            for flight in flying:  # the consumer stopped early, but copies still read the pinned memory
                flight.release()

    def _launch(self, source: Iterator[Any], stream: Any) -> _Flight | None:
        """Start the copy of the next batch; return None at the end."""
        # run the loader on this stream too, so that its own work on the device is ordered with this code
        with torch.cuda.stream(stream):
            try:
                host = next(source)
            except StopIteration:
                return None
            begun, done = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            begun.record(stream)
            try:
                batch = self._to_device(host)
            except BaseException:
                stream.synchronize()  # copies still read the pinned memory
                raise
            done.record(stream)
        return _Flight(host, batch, begun, done)

    def _land(self, flight: _Flight, stats: Stats) -> Any:
        """Return the batch, safe to use on the consumer's current stream."""
        current = torch.cuda.current_stream(self.device)
        current.wait_event(flight.done)
        batch = flight.batch

        def claim(tensor: torch.Tensor, images: bool) -> torch.Tensor:
            # otherwise the side stream could reuse its memory while the consumer's kernels still read it
            tensor.record_stream(current)
            return tensor

        map_tensors(batch, claim)
        flight.release()
        stats.add("copy", flight.begun.elapsed_time(flight.done) / 1000)
        return batch


@dataclass(slots=True, eq=False)
class _Flight:
    """A batch in flight, whose pinned memory must not be written until the copy is done."""

    host: Any
    batch: Any
    begun: Any
    done: Any

    def release(self) -> None:
        """Release the pinned memory after waiting for its copy, which started `depth` batches ago."""
        self.done.synchronize()
        self.host = None


def map_tensors(batch: Any, function: Callable[[torch.Tensor, bool], torch.Tensor]) -> Any:
    """Return the batch with each tensor replaced by `function(tensor, whether it is the images)`, same nesting."""
    return _BatchWalk(function).walk(batch)


class _BatchWalk:
    """One pass through a nested batch."""

    def __init__(self, function: Callable[[torch.Tensor, bool], torch.Tensor]) -> None:
        self._function = function
        self.images_seen = False

    def walk(self, item: Any) -> Any:
        if isinstance(item, torch.Tensor):
            images = not self.images_seen and item.dim() == 4 and item.dtype in IMAGES
            self.images_seen |= images
            return self._function(item, images)
        if isinstance(item, Mapping):
            return _like(item, {key: self.walk(value) for key, value in item.items()})
        if isinstance(item, tuple):
            parts = [self.walk(part) for part in item]
            return type(item)(*parts) if hasattr(item, "_fields") else tuple(parts)
        if isinstance(item, list):
            return [self.walk(part) for part in item]
        if is_dataclass(item) and not isinstance(item, type):
            there = copy.copy(item)  # not `replace`, which runs __init__ and accepts only its fields
            for field in fields(item):
                if hasattr(item, field.name):
                    object.__setattr__(there, field.name, self.walk(getattr(item, field.name)))
            return there
        return item


def _like(item: Mapping[Any, Any], values: dict[Any, Any]) -> Any:
    """Return a copy of a mapping, including its attributes (the factory of a defaultdict), with these values."""
    if type(item) is dict or not isinstance(item, MutableMapping):
        return values
    there = copy.copy(item)
    for key, value in values.items():
        there[key] = value
    return there


MIXING_STATE = ("mixup", "cutmix", "color_jitter")
"""What of a loader's state is about mixing."""
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
        v2 = _torchvision(used[0])
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
        _check_images("color_jitter", images)
        with _seeded_torch(derive(self._seed ^ MIXING_STREAM, epoch, number, 0)):
            changed: torch.Tensor = self._jitter(images)
        return changed

    def mix(self, images: torch.Tensor, targets: Any, epoch: int, number: int) -> tuple[torch.Tensor, Any]:
        """Return the mixed images, and targets (n, classes) in the place of class ids (n,)."""
        if self._mix is None:
            return images, targets
        _check_images(self.mixes[0], images)
        if "mixup" in self.mixes and not images.is_floating_point():
            raise UsageError("mixup", f"needs float images, but the transform returns {images.dtype}", FRACTIONS)
        with _seeded_torch(derive(self._seed ^ MIXING_STREAM, epoch, number, 1)):
            mixed: tuple[torch.Tensor, Any] = self._mix(images, targets)
        return mixed


class BatchPostprocessor:
    """The last step of each batch.

    Args:
        mixing: random changes of the batch.
        normalize: what is left to do to images whose colors change here.
        memory_format: of the images; None: as they come.
        with_index: whether the numbers of the records are handed out, too.
        widen: whether targets are masks as they are stored, which become int64.
    """

    def __init__(
        self, mixing: Mixing, normalize: Normalize, memory_format: torch.memory_format | None, with_index: bool,
        widen: bool = False,
    ) -> None:  # fmt: skip
        self._mixing = mixing
        self._normalize = normalize
        self._memory_format = memory_format
        self._with_index = with_index
        self._widen = widen

    @property
    def identity(self) -> dict[str, Any]:
        """Return the fields for a state, which must be equal to resume it."""
        return self._mixing.identity

    def check(self, state: Mapping[str, Any]) -> None:
        """Raise UsageError if the batches of a state were mixed, or changed in color, in another way."""
        for name in MIXING_STATE:
            if state.get(name) != (here := self.identity.get(name)):
                problem = f"has {name} {state.get(name)!r}, here {here!r}"
                raise UsageError("state", problem, f"use the same {name}, or set_epoch in place of a state")

    def __call__(self, batch: LoadedBatch, epoch: int, number: int) -> tuple[Any, ...]:
        """Return (images, targets), and the numbers of the records if asked for; it is global batch `number`."""
        images, targets, records = batch
        if self._mixing.jitters:
            images = self._normalize(self._mixing.jitter(images, epoch, number))
        images, targets = self._mixing.mix(images, targets, epoch, number)
        if self._memory_format is not None and images.dim() == 4:
            images = images.contiguous(memory_format=self._memory_format)
        if isinstance(targets, BatchAnnotations):
            targets = targets.as_dicts()
        elif self._widen:
            targets = targets.to(torch.int64)  # after the way to the device: an eighth of the bytes
        if not self._with_index:
            return images, targets
        return images, targets, torch.from_numpy(records).to(images.device, non_blocking=True)


def _check_images(name: str, images: torch.Tensor) -> None:
    """Raise UsageError unless a transform has left images, which torchvision can change."""
    if images.dim() != 4:
        problem = f"needs images, but the transform returns tensors of shape {tuple(images.shape[1:])}"
        raise UsageError(name, problem, "leave it out")


def _torchvision(name: str) -> Any:
    try:
        return importlib.import_module("torchvision.transforms.v2")
    except ImportError:
        raise NotInstalled(name, "needs torchvision, which is not installed", "pip install torchvision") from None


@contextmanager
def _seeded_torch(seed: int) -> Iterator[None]:
    """Let torch's functions draw from a seed, for torchvision takes no generator; then all is as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield
