"""Reads a data loader of the user's, in the process of a measurement: whatever a function of theirs returns."""

from __future__ import annotations

import importlib
import os
import re
import sys
import traceback
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, NoReturn

from packer.bench.report import Job, UserBatch
from packer.errors import PackerError, UsageError, option

OPTION = option("loader")
CACHED_BATCHES = 4
MOST_SHOWN = 3
"""Items of a batch that its description names."""
CHANNELS = (1, 3, 4)
"""Numbers by which the axis of the channels is recognized."""
NOT_OWN = re.compile(r"[/\\](?:site-packages|importlib|packer[/\\]bench)[/\\]|^<")
"""Files in a traceback that are not the user's."""


class LoaderFails(PackerError):
    """The user's loader raised an exception or yields something unusable."""


class OwnLoader:
    """The batches of the user's loader. An epoch that was left goes on where it was."""

    def __init__(self, job: Job) -> None:
        self._name = job.loader
        self._make = _function(job)
        self._loader = self._made()
        self._batches: Iterator[Any] | None = None
        self._read = 0
        self.burst = max(1, _int(getattr(self._loader, "num_workers", 0)))
        self.epochs = 0
        self.batch: UserBatch | None = None

    def epoch(self) -> Iterator[int]:
        """Read all images once; yield how many each batch has."""
        for batch in self.batches():
            yield self._length(batch)

    def batches(self) -> Iterator[Any]:
        """Yield the batches of the rest of the epoch, or of the next one if it has ended."""
        begins = self._batches is None
        if self._batches is None:
            self._batches = self._begun()
            self.epochs += 1
        while True:
            try:
                batch = next(self._batches)
            except StopIteration:
                break
            except (Exception, SystemExit) as error:
                _fail(self._name, f"batch {self._read + 1:,} raised", error)
            self._read += 1
            begins = False
            yield batch
        self._batches = None
        if begins:
            problem = "yields no batches" if not self._read else f"yields batches only once ({self._read:,} of them)"
            raise LoaderFails(self._name, problem, "return an object that can be iterated again, as a DataLoader")

    def end(self) -> None:
        """End its worker processes."""
        self._batches = self._loader = None

    def _made(self) -> Any:
        try:
            return self._make()
        except (Exception, SystemExit) as error:
            _fail(self._name, "raised", error)

    def _begun(self) -> Iterator[Any]:
        if self._read and self._loader is iter(self._loader):  # a generator is read only once
            self._loader = self._made()
        try:
            return iter(self._loader)
        except (Exception, SystemExit) as error:
            if not hasattr(self._loader, "__iter__"):
                problem = f"returned {type(self._loader).__name__}, which cannot be iterated"
                raise LoaderFails(self._name, problem, "return a DataLoader, or another iterable of batches") from None
            _fail(self._name, "raised", error)

    def _length(self, batch: Any) -> int:
        length = images_in(batch)
        if not length:
            raise LoaderFails(
                self._name, f"the number of images of a batch is unknown: batch {self._read:,} is {batch_text(batch)}",
                "yield tensors or arrays with the images along the first axis, or tuples, lists or dicts of them",
            )  # fmt: skip
        if self.batch is None:
            first = _first_array(batch)
            self.batch = UserBatch(length, None if first is None else _size(tuple(first.shape)), batch_text(batch))
        return length


class CachedBatches:
    """A perfect loader: the first batches of the user's, again and again, from memory."""

    def __init__(self, job: Job) -> None:
        own = OwnLoader(job)
        counts = []
        self._batches = []
        for batch in own.batches():
            self._batches.append(batch)
            counts.append(images_in(batch) or 0)
            if len(counts) == CACHED_BATCHES:
                break
        own.end()
        self._counts = counts

    def epoch(self) -> Iterator[int]:
        """Yield how many images each batch has."""
        yield from self._counts

    def end(self) -> None:
        """Release the batches."""
        self._batches = []


def images_in(batch: Any) -> int | None:
    """Return the number of images of a batch; None if it is unknown.

    Args:
        batch: An array (images along the first axis), a dict or tuple of columns, or a list of columns or of samples.
    """
    shape = getattr(batch, "shape", None)
    if shape is not None:
        return int(shape[0]) if len(shape) else None
    if isinstance(batch, Mapping):
        arrays_first = sorted(batch.values(), key=lambda value: getattr(value, "shape", None) is None)
        return next(filter(None, map(images_in, arrays_first)), None)
    if not isinstance(batch, list | tuple) or not batch:
        return None
    if _are_samples(batch):
        return len(batch)
    lengths = [length for one in batch if (length := images_in(one))]
    if isinstance(batch, list) and isinstance(batch[0], Mapping):  # a dict for each device
        return sum(lengths)
    return lengths[0] if lengths else None


def _are_samples(batch: list[Any] | tuple[Any, ...]) -> bool:
    """Return whether the items of a batch are images or samples, rather than columns."""
    first = batch[0]
    if isinstance(first, bytes | str):
        return True
    if isinstance(first, tuple | Mapping):
        array = _first_array(first)
        return isinstance(batch, list) and (array is None or len(array.shape) < 4)
    shapes = [tuple(getattr(one, "shape", ())) for one in batch]
    if all(len(shape) == 3 for shape in shapes):
        return all(shape[0] in CHANNELS or shape[2] in CHANNELS for shape in shapes)
    return not shapes[0] and hasattr(first, "size") and hasattr(first, "mode")  # of Pillow


def _first_array(value: Any) -> Any:
    if getattr(value, "shape", None):
        return value
    values = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    return next((found for one in values if (found := _first_array(one)) is not None), None)


def _size(shape: tuple[int, ...]) -> tuple[int, int] | None:
    """Return (width, height) of the images of a batch; None if they are unknown."""
    if len(shape) == 4 and shape[1] in CHANNELS:
        return int(shape[3]), int(shape[2])
    if len(shape) == 4 and shape[3] in CHANNELS:
        return int(shape[2]), int(shape[1])
    return None


def batch_text(value: Any) -> str:
    """Return the kind of a batch as text: ``float32 64x3x224x224``, ``a list of uint8 8x3x64x64, int64 8``."""
    shape = getattr(value, "shape", None)
    if shape is not None:
        dtype = str(getattr(value, "dtype", type(value).__name__)).removeprefix("torch.").removeprefix("<dtype: '")
        return f"{dtype.removesuffix(chr(39) + '>')} {'x'.join(map(str, shape)) or 'scalar'}"
    if isinstance(value, Mapping | list | tuple) and value:
        names = [f"{name}: " for name in value] if isinstance(value, Mapping) else [""] * len(value)
        items = value.values() if isinstance(value, Mapping) else value
        shown = [f"{name}{batch_text(one)}" for name, one in islice(zip(names, items, strict=True), MOST_SHOWN)]
        kind = type(value).__name__
        article = "an" if kind[0] in "AEIOUaeiou" else "a"
        more = f", ... ({len(value):,} in all)" if len(value) > MOST_SHOWN else ""
        return f"{article} {kind} of {', '.join(shown)}{more}"
    return type(value).__name__


def _function(job: Job) -> Any:
    """Import the user's function as ``python -m`` would: the current folder comes first."""
    sys.path.insert(0, job.folder)
    module_name, _, name = job.loader.partition(":")
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{module_name}.".startswith(f"{error.name}."):
            problem = f"module {error.name!r} was not found in {job.folder}, and is not installed"
            raise UsageError(OPTION, problem, f"run it in the folder of {error.name.partition('.')[0]}.py") from None
        _fail(job.loader, "cannot be imported:", error)
    except (Exception, SystemExit) as error:
        _fail(job.loader, "cannot be imported:", error)
    for part in name.split("."):
        if not hasattr(found, part):
            problem = f"{module_name} has no {name!r}"
            raise UsageError(OPTION, problem, "name a function that returns the loader")
        found = getattr(found, part)
    if not callable(found):
        problem = f"{job.loader} is not callable, but {type(found).__name__}"
        raise UsageError(OPTION, problem, "name a function that returns the loader")
    return found


def _fail(name: str, what: str, error: BaseException) -> NoReturn:
    """Raise LoaderFails with the user's error and its place in one line."""
    kind, text = type(error).__name__, (str(error).strip() or "without a message").splitlines()[-1]
    said = text if text.startswith(f"{kind}: ") else f"{kind}: {text}"  # a worker process quotes its traceback
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not NOT_OWN.search(frame.filename)]
    place = f" ({os.path.basename(frames[-1].filename)}, line {frames[-1].lineno})" if frames else ""
    module, _, function = name.partition(":")
    alone = f'python -c "import {module}; next(iter({module}.{function}()))"'
    raise LoaderFails(name, f"{what} {said}{place}", f"try it alone: {alone}") from None


def _int(value: Any) -> int:
    return value if isinstance(value, int) else 0
