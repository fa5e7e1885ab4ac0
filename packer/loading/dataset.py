"""PackedDataset: a pack as a map-style torch Dataset, for any DataLoader and sampler."""

from __future__ import annotations

import operator
from array import array
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset

from packer.errors import AnyPath, UsageError, add_note
from packer.format.pack import Pack, open_pack
from packer.format.ragged import Ragged
from packer.loading.batch import Batch
from packer.loading.gather import Gather
from packer.loading.targets import Target, is_plain, target_of

Indices = Sequence[int] | NDArray[np.int64]

DECODERS = ("auto", "simplejpeg", "opencv", "jpeg4py")


class PackedDataset(Dataset[tuple[torch.Tensor, Target]]):
    """The records of a pack: ``image, target = dataset[i]``.

    image: uint8 tensor (channels, height, width), channels last in memory (uint16 where a pack keeps it).
    target: int where the pack has class labels only, else a dict (`packer.loading.targets.target_of`).

    Give `packer.collate` to the DataLoader as its `collate_fn`: batches of raw images of one shape are then
    never stacked or copied again. Pickles small, and works under fork, spawn and forkserver.
    """

    def __init__(
        self,
        path: AnyPath,
        transform: Callable[[torch.Tensor], Any] | None = None,
        target_transform: Callable[[Any], Any] | None = None,
        decoder: str = "auto",
    ) -> None:
        """Args: the pack's directory; functions for each image and each target; the JPEG decoder.

        Raises UsageError where there is no pack or the decoder is not installed, DamagedPack where a file
        of it is missing or of another size than it should be.
        """
        if decoder not in DECODERS:
            raise UsageError("decoder", f"must be one of {', '.join(DECODERS)}; got {decoder!r}")
        if decoder == "jpeg4py":
            from packer.images.decode import check_available

            check_available(decoder)
        self.pack: Pack = open_pack(path)
        self.transform = transform
        self.target_transform = target_transform
        self.decoder = decoder

    def __getstate__(self) -> dict[str, Any]:
        # no tensor over the map and no column: they are made again where they are needed
        made = {name for c in type(self).__mro__ for name, a in vars(c).items() if isinstance(a, cached_property)}
        return {name: value for name, value in self.__dict__.items() if name not in made}

    def __len__(self) -> int:
        return len(self.pack)

    def __repr__(self) -> str:
        return f"PackedDataset({self.pack!r})"

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        """Sample `index`; negative ones count from the end."""
        i = self._number(index)
        array = self.pack.image(i, self.decoder)
        # a copy where the array is a view of the map, which must not be handed out for writing
        image = torch.from_numpy(array if array.flags.writeable else array.copy())
        return self._transformed(i, image.permute(2, 0, 1), self._target(i))

    def __getitems__(self, indices: Indices) -> Sequence[tuple[Any, Any]]:
        """The samples of a whole batch, as a DataLoader asks for them.

        Raw images of one shape are copied out in one call into one tensor (see `Batch`).
        """
        if self.pack.record_bytes is None:
            return [self[i] for i in indices]
        records = self._numbers(indices)
        batch = self._read_batch(records)
        if self.transform is None and self.target_transform is None:
            return batch
        return [self._transformed(int(i), *pair) for i, pair in zip(records, batch, strict=True)]

    def _read_batch(self, records: NDArray[np.int64]) -> Batch:
        pack = self.pack
        pack.check(records)
        pixels = self._gather(pack.offsets[records])
        height, width, channels = pack.shape_of(0)
        # one call for view and permute: channels first in shape, last in memory
        images = torch.as_strided(
            pixels if self._dtype == torch.uint8 else pixels.view(self._dtype),
            (len(records), channels, height, width),
            (height * width * channels, 1, width * channels, channels),
        )
        if self._plain:
            return Batch(images, torch.from_numpy(self._labels[records]))
        return Batch(images, [self._target(i) for i in records.tolist()])

    @cached_property
    def _gather(self) -> Gather:
        size = self.pack.record_bytes
        assert size is not None
        return Gather(self.pack.region, size)

    @cached_property
    def _dtype(self) -> torch.dtype:
        return torch.uint16 if self.pack.dtype_of(0) == "uint16" else torch.uint8

    @cached_property
    def _plain(self) -> bool:
        return is_plain(self.pack.manifest.fields)

    @cached_property
    def _labels(self) -> NDArray[np.int64]:
        return np.asarray(self.pack.column("label")).astype(np.int64)

    def _target(self, i: int) -> Target:
        if self._plain:
            return int(self._labels[i])
        return target_of(self.pack.annotation(i), self.pack.manifest.fields)

    def _transformed(self, i: int, image: torch.Tensor, target: Target) -> tuple[Any, Any]:
        try:
            return (
                image if self.transform is None else self.transform(image),
                target if self.target_transform is None else self.target_transform(target),
            )
        except Exception as error:
            add_note(error, f"in a transform of record {self.pack.key(i)} of {self.pack.path}")
            raise

    def _number(self, index: Any) -> int:
        return _number(index, len(self.pack))

    def _numbers(self, indices: Indices) -> NDArray[np.int64]:
        """Record numbers of sample indices, each checked to be a whole number in range."""
        if isinstance(indices, np.ndarray) and indices.dtype == np.int64:
            records = indices
        else:
            try:
                # unlike numpy, array refuses fractions; and it is faster
                records = np.frombuffer(array("q", indices), np.int64)
            except OverflowError as error:
                raise IndexError(f"no such sample: {error}") from None
        n = len(self.pack)
        # one pass for all that is usual: as unsigned numbers, negative ones are larger than any n
        if not len(records) or records.view(np.uint64).max() < n:
            return records
        if records.min() < -n or records.max() >= n:
            raise IndexError(f"samples {records.min()} to {records.max()} of {n}")
        return np.where(records < 0, records + n, records)

    @property
    def classes(self) -> list[str]:
        """Class names in id order."""
        return self.pack.classes

    @property
    def class_to_idx(self) -> dict[str, int]:
        """Class id of each name."""
        return {name: i for i, name in enumerate(self.pack.classes)}

    @cached_property
    def targets(self) -> Sequence[Target]:
        """The target of every sample, no image touched: a list of class ids, or of dicts, made when asked for."""
        return self._labels.tolist() if self._plain else _Targets(self.pack)

    @property
    def keys(self) -> list[str]:
        """The key of every sample."""
        return self.pack.keys

    @property
    def paths(self) -> list[bytes]:
        """The path of every sample's source file, relative to the source folder."""
        return self.pack.paths

    @property
    def labels(self) -> NDArray[np.int64]:
        """Class id of every image, int64 (n,), -1 for none."""
        return self._labels

    @cached_property
    def boxes(self) -> Ragged:
        """Boxes of every image: row i is float32 (n, 4), xyxy, pixels."""
        return self._ragged("boxes")

    @cached_property
    def box_labels(self) -> Ragged:
        """Class ids of the boxes of every image: row i is int64 (n,)."""
        return self._ragged("box_labels")

    @cached_property
    def landmarks(self) -> Ragged:
        """Landmarks of every image: row i is float32 (k, 2); `numpy.asarray` of it is (n, k, 2) where k is the same."""
        return self._ragged("landmarks")

    def column(self, name: str) -> NDArray[Any] | Ragged:
        """Any column of the index as an array or `Ragged`, no image touched (docs/formats.md lists them)."""
        return self.pack.column(name)

    def _ragged(self, name: str) -> Ragged:
        column = self.pack.column(name)
        assert isinstance(column, Ragged)
        return column


def _number(index: Any, n: int) -> int:
    """The record number of a sample index, which must be a whole number of any type, from -n to n - 1."""
    if isinstance(index, slice):
        raise TypeError("a PackedDataset takes no slices; use torch.utils.data.Subset(dataset, range(a, b))")
    i = operator.index(index)
    if not -n <= i < n:
        raise IndexError(f"sample {i} of {n}")
    return i + n if i < 0 else i


class _Targets(Sequence[Target]):
    """The dicts of all samples, made when they are asked for."""

    def __init__(self, pack: Pack) -> None:
        self._pack = pack  # not the dataset, which keeps this: a ring would keep the map until the next gc

    def __len__(self) -> int:
        return len(self._pack)

    def __getitem__(self, index: Any) -> Any:
        return target_of(self._pack.annotation(_number(index, len(self))), self._pack.manifest.fields)
