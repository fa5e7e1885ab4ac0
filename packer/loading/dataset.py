"""PackedDataset: a pack as a map-style torch Dataset, for any DataLoader and sampler."""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, cast, get_args

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch.utils.data import Dataset

from packer.errors import AnyPath, UsageError
from packer.format.pack import Pack, open_pack
from packer.images.decode import Decoder, check_available
from packer.images.decoders import load_native
from packer.loading.collate import Batch, LoadedSample, SampleOfObjects, contiguous
from packer.loading.decoding import RowDecoder
from packer.loading.fill import Gather, gather_of
from packer.loading.loader_threads import on_one_core
from packer.loading.memory import BatchMemory, is_in_worker, shared_pool
from packer.loading.targets import Target, TargetOptions, Targets, check_parts, record_number
from packer.loading.user_functions import ImageTransform, JointTransform, Transforms, as_list, naming
from packer.model.annotation import Image
from packer.model.annotation_columns import Ragged
from packer.samplers.clock import is_dispatched
from packer.samplers.order import VISIT, Records, check_indices
from packer.samplers.ranks import check_int

Indices = Sequence[int] | NDArray[np.int64]
Classes = int | str | Sequence[int | str]
"""Names or ids of classes."""


class PackedDataset(Dataset[tuple[torch.Tensor, Target]]):
    """The records of a pack: ``image, target = dataset[i]``.

    image: uint8 tensor (channels, height, width), channels last in memory (uint16 if a pack keeps it).
    target: int if the pack has only class labels, float32 (k,) if only tags, int64 (height, width) if only masks, else
    a dict (`packer.loading.targets.Targets.target`).

    ``DataLoader(dataset, 256, shuffle=True)`` takes the batch that the dataset has gathered: images of one shape are
    not stacked or copied again, and dicts with boxes become a list. Raw packs without transforms need no workers. Pass
    `packer.collate` as `collate_fn` where torch cannot stack: images of different shapes, which become a list, or
    targets of different lengths that a transform returns. The dataset pickles small, and works under fork, spawn and
    forkserver. torch's DataLoader passes on a DamagedPack from a worker as a DamagedPack whose text names the file and
    the record.

    Args:
        path: the pack's directory or URL, or an open Pack.
        transform: called with each image: ``transform(image)`` or ``transform(image, generator)``. The torch.Generator
            is seeded with (seed, epoch, record), so that its numbers are the same for any number of workers and ranks.
            If a sampler of packer's repeats a record, they are others each time. Numbers that a transform draws from
            other generators are not reproducible.
        target_transform: called with each target.
        decoder: JPEG decoder: auto, fast, simplejpeg, opencv or jpeg4py.
        transforms: called with both, instead of the other two: ``transforms(image, target)`` or ``transforms(image,
            target, generator)``; returns both.
        label_offset: added to the class ids of boxes; 1 for models whose class 0 is the background.
        ignored: what becomes of ignored regions, boxes with `iscrowd`, `difficult` or `ignore`: "keep" them as any
            other boxes (default), "drop" them, or "flag" them in the targets: `ignored`, bool (n,).
        seed: seed of the generators. A sampler of packer's that was created for this dataset sets their epoch; with
            others call `set_epoch` before each epoch, or each epoch has the same random numbers.
        classes: names or ids of classes: only the images with one of these labels are samples. Class ids, `classes` and
            random numbers stay those of the whole pack, so that a model's head fits.
        parts: the parts and sidecars (`packer.attach`) to read, by name, besides other labels; default: all parts.
        indices: numbers of the records that are samples, each once, in this order; `pack.where` returns such. With
            `classes`, those of them that have one.
        cache_dir: as for `packer.open_pack`, if `path` is a URL.
        cache_bytes: as for `packer.open_pack`, if `path` is a URL.

    Raises:
        UsageError: if `path` is not a pack, the decoder is not installed, the transforms cannot be combined, or the
            pack has no such class, or no image of it.
        DamagedPack: if a file of the pack is missing or has the wrong size.
    """

    def __init__(  # noqa: PLR0913 - what torchvision's datasets take, and what makes it reproducible
        self,
        path: AnyPath | Pack,
        transform: ImageTransform | None = None,
        target_transform: Callable[[Any], Any] | None = None,
        decoder: str = "auto",
        *,
        transforms: JointTransform | None = None,
        label_offset: int = 0,
        ignored: str = "keep",
        seed: int = 0,
        classes: Classes | None = None,
        indices: ArrayLike | None = None,
        parts: Sequence[str] | None = None,
        cache_dir: AnyPath | None = None,
        cache_bytes: int | str | None = None,
    ) -> None:
        self.decoder = check_decoder(decoder)
        self.pack: Pack = pack_at(path, cache_dir, cache_bytes)
        self.indices = choose_records(self.pack, indices, classes)
        """Numbers in the pack of the samples' records, integers (n,); None: all, in order."""
        self.transform, self.target_transform, self.transforms = transform, target_transform, transforms
        self.label_offset, self.ignored = label_offset, ignored
        self.parts = None if parts is None else check_parts(self.pack, parts)
        self.seed = check_int("seed", seed, 0, (1 << 64) - 1)
        self._functions = Transforms(transform, target_transform, transforms)
        self._epoch = torch.zeros((), dtype=torch.int64)
        self._is_dispatched = False
        if self._functions.random:
            self._epoch.share_memory_()  # type: ignore[no-untyped-call]  # persistent workers see it change
        if label_offset or ignored != "keep":
            len(self._targets)  # checks them

    def set_epoch(self, epoch: int) -> None:
        """Set the `epoch`, on which the random numbers of transforms depend, also in persistent workers."""
        self._epoch.fill_(check_int("epoch", epoch, 0))

    @property
    def functions(self) -> Transforms:
        """The transforms of samples."""
        given = self.transform, self.target_transform, self.transforms
        made = self._functions
        if (made.transform, made.target_transform, made.transforms) != given:
            self._functions = Transforms(*given)
        return self._functions

    def __getstate__(self) -> dict[str, Any]:
        # without the tensor over the map and the columns, which are recreated when needed
        made = {name for c in type(self).__mro__ for name, a in vars(c).items() if isinstance(a, cached_property)}
        state = {name: value for name, value in self.__dict__.items() if name not in made}
        return {**state, "_is_dispatched": True} if is_dispatched() else state  # a spawned worker cannot find out

    def __len__(self) -> int:
        return len(self.pack) if self.indices is None else len(self.indices)

    def __repr__(self) -> str:
        return f"PackedDataset({'' if self.indices is None else f'{len(self)} of '}{self.pack!r})"

    def __getitem__(self, index: int) -> LoadedSample:
        """Return sample `index`; negative indices count from the end."""
        i = record_number(index, len(self), self.indices)
        return self._sample(i, self._image(i), self._targets.target(i), getattr(index, "visit", 0))

    def _image(self, i: int) -> torch.Tensor:
        array = self._stored(i)
        # copy a view of the map, because callers may write to the result
        return torch.from_numpy(array if array.flags.writeable else array.copy()).permute(2, 0, 1)

    def __getitems__(self, indices: Indices) -> Sequence[LoadedSample]:
        """Return the samples of a whole batch; called by DataLoader.

        Images of one shape are written into one tensor (see `Batch`): raw ones in one call.
        """
        numbers = self._numbers(indices)
        records = numbers if self.indices is None else self.indices[numbers].astype(np.int64)
        visits = [getattr(index, "visit", 0) for index in indices] if self.functions.random else None
        batch = self._samples(records, visits or [0] * len(records))
        return contiguous(batch) if self._is_dispatched or is_dispatched() else batch

    def _samples(self, records: NDArray[np.int64], visits: list[int]) -> Sequence[LoadedSample]:
        found = self._targets.of(records)
        targets: Any = torch.from_numpy(found) if isinstance(found, np.ndarray) else as_list(found)
        images: torch.Tensor | list[torch.Tensor]
        if self.pack.manifest.shape is None or self.pack.manifest.dtype is None:
            images = [self._image(i) for i in records.tolist()]
        else:
            images = self._images(records)
            if not self.functions:
                return Batch(images, targets, self._kind)
        if isinstance(found, np.ndarray):
            targets = as_list(found)
        samples = [self._sample(*one) for one in zip(records.tolist(), images, targets, visits, strict=True)]
        if isinstance(images, torch.Tensor) and not self.functions.of_images:
            return Batch(images, [target for _, target in samples], self._kind)
        return samples

    def _images(self, records: NDArray[np.int64]) -> torch.Tensor:
        """Return the images of records, which are all of one shape."""
        pack, n = self.pack, len(records)
        height, width, channels = pack.reader.shape_of(0)
        row_bytes = height * width * channels * self._dtype.itemsize
        # images that are changed do not leave the worker
        is_sent = is_in_worker() and not self.functions.of_images
        memory = shared_pool() if is_sent else self._memory
        pixels = memory.take(n * row_bytes).view(n, row_bytes)
        if pack.reader.record_bytes is None:
            rows = pixels.numpy().view(pack.reader.dtype_of(0)).reshape(n, height, width, channels)
            for row, i in zip(rows, records.tolist(), strict=True):
                row[:] = self._decoded(i, row.shape)
        else:
            with pack.reader.held(records), on_one_core():
                pack.reader.check(records)
                self._gather(pack.reader.places(records)[0], pixels)
        # one call for view and permute: channels first in shape, last in memory
        return torch.as_strided(
            pixels if self._dtype == torch.uint8 else pixels.view(self._dtype),
            (n, channels, height, width),
            (height * width * channels, 1, width * channels, channels),
        )

    def _decoded(self, i: int, shape: tuple[int, ...]) -> Image:
        image = self._stored(i)
        if image.shape != shape:
            raise self.pack.reader.damage_error(i, f"decodes to shape {image.shape}, which is not {shape}")
        return image

    def _stored(self, i: int) -> Image:
        """Return the image of a record; of a tile whose image is shared, only that is decoded where it can be."""
        if not self.pack.manifest.windows:
            return self.pack.image(i, self.decoder)
        with self.pack.reader.held(np.array([i])):
            return self._tiles.whole(i)

    @cached_property
    def _tiles(self) -> RowDecoder:
        channels = self.pack.reader.shape_of(0)[2]
        return RowDecoder(self.pack, cast(Decoder, self.decoder), channels, "area", True)

    @cached_property
    def _memory(self) -> BatchMemory:
        return BatchMemory()

    @property
    def _kind(self) -> type[LoadedSample]:
        """The class of samples: what torch makes of their targets."""
        return SampleOfObjects if self._targets.vary and not self.functions.of_targets else LoadedSample

    @cached_property
    def _gather(self) -> Gather:
        return gather_of(self.pack)

    @cached_property
    def _dtype(self) -> torch.dtype:
        return torch.uint16 if self.pack.reader.dtype_of(0) == "uint16" else torch.uint8

    @cached_property
    def _targets(self) -> Targets:
        options = TargetOptions(label_offset=self.label_offset, parts=self.parts, ignored=self.ignored)
        return Targets(self.pack, options, self.indices)

    def _sample(self, i: int, image: torch.Tensor, target: Target, visit: int) -> LoadedSample:
        functions = self.functions
        if not functions:
            return self._kind((image, target))
        with naming(self.pack, i):
            return self._kind(functions(image, target, (self.seed, int(self._epoch), i + visit * VISIT)))

    def _numbers(self, indices: Indices) -> NDArray[np.int64]:
        """Return sample indices, which must be integers in range, counted from the first sample."""
        if isinstance(indices, np.ndarray) and indices.dtype == np.int64:
            records = indices
        else:
            try:
                # unlike numpy, array rejects fractions, and it is faster
                records = np.frombuffer(array("q", indices), np.int64)
            except OverflowError as error:
                raise IndexError(f"no such sample: {error}") from None
        n = len(self)
        # one pass for the usual case: as unsigned numbers, negative ones are larger than any n
        if not len(records) or records.view(np.uint64).max() < n:
            return records
        if records.min() < -n or records.max() >= n:
            raise IndexError(f"samples {records.min()} to {records.max()} of {n}")
        return np.where(records < 0, records + n, records)

    @property
    def classes(self) -> list[str]:
        """Class names of the pack in id order."""
        return self.pack.classes

    @property
    def tags(self) -> list[str]:
        """Names of the tags (multi-label classes), in the order of a target's flags; empty if the pack has none."""
        return list(self.pack.manifest.tags)

    @property
    def class_to_idx(self) -> dict[str, int]:
        """Class id of each name."""
        return {name: i for i, name in enumerate(self.pack.classes)}

    @cached_property
    def targets(self) -> Sequence[Target]:
        """The target of every sample, without reading images: a list of class ids, or of dicts created on access."""
        return self.labels.tolist() if self._targets.are_labels else self._targets

    @property
    def keys(self) -> list[str]:
        """The key of every sample."""
        return self._of_samples(self.pack.keys)

    @property
    def paths(self) -> list[str]:
        """The path of every sample's source file, relative to the source folder."""
        return self._of_samples(self.pack.paths)

    def _of_samples(self, texts: list[str]) -> list[str]:
        return texts if self.indices is None else [texts[i] for i in self.indices.tolist()]

    @cached_property
    def labels(self) -> NDArray[np.int64]:
        """Class id of every image, int64 (n,); -1 if it has none."""
        return np.asarray(self.column("label")).astype(np.int64)

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
        """Landmarks of every image: row i is float32 (k, 2); `numpy.asarray` returns (n, k, 2) if k is constant."""
        return self._ragged("landmarks")

    def column(self, name: str) -> NDArray[Any] | Ragged:
        """Return the column `name` of the index as an array or `Ragged`, without reading images (docs/formats.md)."""
        column = self.pack.column(name)
        return column if self.indices is None else column[self.indices]

    def _ragged(self, name: str) -> Ragged:
        column = self.column(name)
        assert isinstance(column, Ragged)
        return column


def pack_at(data: Any, cache_dir: Any = None, cache_bytes: Any = None) -> Pack:
    """Return the pack that `data` is, or whose directory or URL it names."""
    if isinstance(data, (str, bytes, os.PathLike)):
        return open_pack(data, cache_dir, cache_bytes)
    if isinstance(data, Pack):
        for name, given in (("cache_dir", cache_dir), ("cache_bytes", cache_bytes)):
            if given is not None:
                raise UsageError(name, "is for the URL of a pack, but this one is open", "pass it to packer.open_pack")
        return data
    step = 'write packer.open_pack("NAME.lmdb")'
    if hasattr(data, "dataset") and hasattr(data, "indices"):
        step = "write PackedLoader(subset.dataset, ..., indices=subset.indices)"
    elif isinstance(data, (dict, list, tuple)):
        step = "join packs: packer.join_packs([PACK, ...])"
    raise UsageError("data", f"must be the directory of a pack, or an open one, got {type(data).__name__}", step)


def choose_records(
    pack: Pack, indices: ArrayLike | None, classes: Classes | None, within: Records | None = None
) -> Records | None:
    """Return the numbers of the records that a dataset or loader has; None: all.

    Args:
        pack: the pack.
        indices: which of `within`, or of the pack.
        classes: names or ids of classes, of which the image must have one; None: of any or none.
        within: the records of a dataset; None: all.

    Raises:
        UsageError: if a class is unknown, or nothing is left.
    """
    records = within
    if indices is not None:
        numbers = check_indices(indices, len(pack) if within is None else len(within))
        records = numbers if within is None else within[numbers]
    if classes is None:
        return records
    if "label" not in pack.manifest.fields:
        step = "write indices=pack.where(box_label=...) for the images with such boxes"
        raise UsageError("classes", "chooses images by their labels, but those of the pack have none", step)
    of_classes = pack.where(label=classes)
    chosen = of_classes if records is None else records[np.isin(records, of_classes)]
    if not len(chosen):
        raise UsageError("classes", f"is {classes!r}, but no image has such a label", "name other classes")
    return check_indices(chosen, len(pack))


def check_decoder(decoder: Any) -> str:
    """Return the name of a JPEG decoder that is there."""
    check_available(decoder, get_args(Decoder))
    if decoder == "fast":
        load_native()
    return str(decoder)
