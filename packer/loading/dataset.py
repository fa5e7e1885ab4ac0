"""PackedDataset: a pack as a map-style torch Dataset, for any DataLoader and sampler."""

from __future__ import annotations

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
from packer.loading.gather import Gather, gather_of
from packer.loading.targets import Batch, Target, Targets, join_targets, record_number

Indices = Sequence[int] | NDArray[np.int64]

DECODERS = ("auto", "simplejpeg", "opencv", "jpeg4py")


class PackedDataset(Dataset[tuple[torch.Tensor, Target]]):
    """The records of a pack: ``image, target = dataset[i]``.

    image: uint8 tensor (channels, height, width), channels last in memory (uint16 if a pack keeps it).
    target: int if the pack has class labels only, else a dict (`packer.loading.targets.target_of`).

    Give `packer.collate` to the DataLoader as its `collate_fn`: batches of raw images of one shape are then
    never stacked or copied again. Pickles small, and works under fork, spawn and forkserver. A DamagedPack in a
    worker arrives through torch's DataLoader as a DamagedPack whose text names the file and the record.

    Args:
        path: the pack's directory.
        transform: a function of each image.
        target_transform: a function of each target.
        decoder: of JPEGs: auto, simplejpeg, opencv or jpeg4py.

    Raises:
        UsageError: if there is no pack, or the decoder is not installed.
        DamagedPack: if a file of the pack is missing or of another size than it should be.
    """

    def __init__(
        self,
        path: AnyPath,
        transform: Callable[[torch.Tensor], Any] | None = None,
        target_transform: Callable[[Any], Any] | None = None,
        decoder: str = "auto",
    ) -> None:
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
        """Return sample `index`; negative ones count from the end."""
        i = record_number(index, len(self.pack))
        array = self.pack.image(i, self.decoder)
        # a copy where the array is a view of the map, which must not be handed out for writing
        image = torch.from_numpy(array if array.flags.writeable else array.copy())
        return self._transformed(i, image.permute(2, 0, 1), self._targets.target(i))

    def __getitems__(self, indices: Indices) -> Sequence[tuple[Any, Any]]:
        """Return the samples of a whole batch, as a DataLoader asks for them.

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
        return Batch(images, join_targets([self._targets.of(records)]))

    @cached_property
    def _gather(self) -> Gather:
        return gather_of(self.pack)

    @cached_property
    def _dtype(self) -> torch.dtype:
        return torch.uint16 if self.pack.dtype_of(0) == "uint16" else torch.uint8

    @cached_property
    def _targets(self) -> Targets:
        return Targets(self.pack)

    def _transformed(self, i: int, image: torch.Tensor, target: Target) -> tuple[Any, Any]:
        try:
            return (
                image if self.transform is None else self.transform(image),
                target if self.target_transform is None else self.target_transform(target),
            )
        except Exception as error:
            add_note(error, f"in a transform of record {self.pack.key(i)} of {self.pack.path}")
            raise

    def _numbers(self, indices: Indices) -> NDArray[np.int64]:
        """Return record numbers of sample indices, each checked to be an integer in range."""
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
        return self._targets if self._targets.labels is None else self._targets.labels.tolist()

    @property
    def keys(self) -> list[str]:
        """The key of every sample."""
        return self.pack.keys

    @property
    def paths(self) -> list[bytes]:
        """The path of every sample's source file, relative to the source folder."""
        return self.pack.paths

    @cached_property
    def labels(self) -> NDArray[np.int64]:
        """Class id of every image, int64 (n,), -1 for none."""
        return np.asarray(self.pack.column("label")).astype(np.int64)

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
        """Landmarks of every image: row i is float32 (k, 2); `numpy.asarray` of it is (n, k, 2) if k is the same."""
        return self._ragged("landmarks")

    def column(self, name: str) -> NDArray[Any] | Ragged:
        """Return any column of the index as an array or `Ragged`, no image touched (docs/formats.md lists them)."""
        return self.pack.column(name)

    def _ragged(self, name: str) -> Ragged:
        column = self.pack.column(name)
        assert isinstance(column, Ragged)
        return column
