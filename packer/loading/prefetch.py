"""CudaPrefetcher: copies batches to the GPU ahead of the consumer, on a stream of its own.

Apex's `data_prefetcher` (BSD-3-Clause) made the pattern known; unlike it, this one takes any nesting of tensors, keeps
several batches in flight, and guards both ends: pinned memory is not written again before its copy is done, and a
tensor that the consumer drops is not handed out again before its work is done.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

import torch

from packer.loading.normalise import Normalise


class CudaPrefetcher:
    """Iterates a loader's batches, moved to `device` and normalised there.

    Wraps a PackedLoader or any DataLoader; batches may be nested tuples, named tuples, lists, dicts and dataclasses.
    The first uint8 tensor of four dimensions in a batch is its images: they cross the bus as bytes and are converted
    on the device; all other tensors are only moved. On a CPU device it does the same without streams.
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
        """Args: the loader; the device; how many batches are kept in flight; then as `Normalise` has them.

        Copies overlap with computing only from pinned memory: give a DataLoader ``pin_memory=True``.
        """
        self.loader = loader
        self._transfer = Transfer(device, depth, Normalise(mean, std, dtype, memory_format))

    def __len__(self) -> int:
        """Batches of the loader."""
        return len(self.loader)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Any]:
        """Batches on the device, in the loader's order; what the loader raises comes out as it is."""
        return self._transfer.run(self.loader)


class Transfer:
    """The way of batches to a device: one side stream for its life, `depth` batches in flight."""

    def __init__(self, device: torch.device | str, depth: int, normalise: Normalise) -> None:
        if depth < 1:
            raise ValueError(f"depth must be at least 1 batch, got {depth}")
        self.device = torch.device(device)
        self.depth = depth
        self.normalise = normalise
        self._stream: Any = None
        if self.device.type == "cuda":
            self._stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]

    def run(self, batches: Iterable[Any]) -> Generator[Any, None, None]:
        """The batches on the device, in order."""
        source = iter(batches)
        try:
            if self._stream is None:
                for batch in source:
                    yield moved(batch, self._on_this_device)
            else:
                yield from self._prefetched(source, self._stream)
        finally:
            if isinstance(source, Generator):
                source.close()

    def _on_this_device(self, tensor: torch.Tensor, images: bool) -> torch.Tensor:
        there = tensor.to(self.device, non_blocking=True)
        return self.normalise(there) if images else there

    def _prefetched(self, source: Iterator[Any], stream: Any) -> Iterator[Any]:
        flying: deque[_Flight] = deque()
        exhausted = False
        try:
            while True:
                while not exhausted and len(flying) < self.depth:
                    try:
                        flying.append(self._launch(next(source), stream))
                    except StopIteration:
                        exhausted = True
                if not flying:
                    return
                yield self._land(flying.popleft())
        finally:
            for flight in flying:  # the consumer has left early: copies still read the pinned memory
                flight.release()

    def _launch(self, host: Any, stream: Any) -> _Flight:
        with torch.cuda.stream(stream):
            batch = moved(host, self._on_this_device)
            done = torch.cuda.Event()  # type: ignore[no-untyped-call]
            done.record(stream)
        return _Flight(host, batch, done)

    def _land(self, flight: _Flight) -> Any:
        """The batch, safe to use on the consumer's current stream."""
        current = torch.cuda.current_stream(self.device)
        current.wait_event(flight.done)
        batch = flight.batch

        def claim(tensor: torch.Tensor, images: bool) -> torch.Tensor:
            # else the allocator could give its memory to the side stream while the consumer's kernels still read it
            tensor.record_stream(current)
            return tensor

        moved(batch, claim)
        flight.release()
        return batch


class _Flight:
    """A batch on its way: the pinned memory it comes from must not be written until the copy is done."""

    __slots__ = ("batch", "done", "host")

    def __init__(self, host: Any, batch: Any, done: Any) -> None:
        self.host = host
        self.batch = batch
        self.done = done

    def release(self) -> None:
        """Let go of the pinned memory; the copy out of it is waited for, which `depth` made long ago."""
        self.done.synchronize()
        self.host = None


def moved(batch: Any, move: Callable[[torch.Tensor, bool], torch.Tensor]) -> Any:
    """The batch with `move(tensor, whether it is the images)` in place of each tensor, its nesting kept."""
    return _Walk(move).walk(batch)


class _Walk:
    """One pass through a nested batch."""

    def __init__(self, move: Callable[[torch.Tensor, bool], torch.Tensor]) -> None:
        self._move = move
        self._images_seen = False

    def walk(self, item: Any) -> Any:
        if isinstance(item, torch.Tensor):
            images = not self._images_seen and item.dim() == 4
            self._images_seen |= images
            return self._move(item, images)
        if isinstance(item, dict):
            return type(item)({key: self.walk(value) for key, value in item.items()})
        if isinstance(item, tuple):
            parts = [self.walk(part) for part in item]
            return type(item)(*parts) if hasattr(item, "_fields") else tuple(parts)
        if isinstance(item, list):
            return [self.walk(part) for part in item]
        if is_dataclass(item) and not isinstance(item, type):
            return replace(item, **{f.name: self.walk(getattr(item, f.name)) for f in fields(item)})
        return item
