"""From a batch on the host to the training loop: copied to the device and normalized.

Batches are copied to the GPU ahead of the consumer, on a separate stream. Apex's `data_prefetcher` (BSD-3-Clause)
introduced the pattern. Unlike it, `CudaPrefetcher` takes any nesting of tensors, keeps several batches in flight, and
protects both ends: pinned memory is not reused before its copy is done, and the memory of a tensor that the consumer
drops is not reused before its work is done.
"""

from __future__ import annotations

import copy
import math
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import lru_cache
from typing import Any

import torch

from packer.errors import UsageError
from packer.loading.epoch_stats import Stats
from packer.loading.views import Views


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
    """Copies batches to a device on one side stream, with `depth` batches in flight.

    Args:
        device: the device.
        depth: number of batches in flight.
        normalize: what is done to images there.
        leading: batches are tuples that begin with the images: an image among the targets is never taken for them.
    """

    def __init__(self, device: torch.device | str, depth: int, normalize: Normalize, leading: bool = False) -> None:
        if depth < 1:
            raise ValueError(f"depth must be at least 1 batch, got {depth}")
        self.device = torch.device(device)
        self.depth = depth
        self.normalize, self._leading = normalize, leading
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
        there = walk.walk(batch[:1] if self._leading else batch)
        if not walk.images_seen and not self.normalize.nothing:
            raise ValueError(
                "mean, std and dtype are for uint8 images (n, channels, height, width), but a batch has none: "
                "leave them out, or let the loader give such images"
            )
        if self._leading:
            walk.images_seen = True
            there += walk.walk(batch[1:])
        return there

    def _tensor_to_device(self, tensor: torch.Tensor, images: bool) -> torch.Tensor:
        # only CUDA's streams say when a copy is done, and the memory that it reads may be used again
        at_once = self._stream is not None or self.device.type == "cpu"
        there = tensor.to(self.device, non_blocking=at_once)
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
        if isinstance(item, Views) and not self.images_seen:
            self.images_seen = True
            return Views({name: self._function(images, True) for name, images in item.items()})
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
