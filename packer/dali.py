"""Feeds a pack to NVIDIA DALI, which decodes, crops, resizes, flips and normalizes, on a GPU or on the CPU.

The loader stays packer's: its order, ranks, epochs, states, crop regions and targets. DALI reads the mapped records.
"""

from __future__ import annotations

import importlib
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import torch

from packer.errors import AnyPath, DamagedPack, NotInstalled, UsageError, add_note, plural
from packer.format.pack import Pack
from packer.loading.crop import RandomResizedCrop, Regions, Resize, parts_inside
from packer.loading.dataset import PackedDataset
from packer.loading.decoding import sizes_of
from packer.loading.epoch_stats import Stats
from packer.loading.loader import PackedLoader
from packer.loading.on_device import ANTIALIASED, BatchMaker, EncodedBatch, EncodedReader, oriented
from packer.loading.pipeline import LoadedBatch, Pipeline
from packer.loading.to_device import Normalize
from packer.model.annotation import Int64
from packer.system.machine import install_command

Inputs = tuple[Any, ...]
"""Arrays of a batch, as the pipeline's sources take them; DALI reads them until the batch is there."""
ENCODINGS = ("jpeg", "png", "bmp", "webp", "tiff")


def pipeline(
    data: AnyPath | Pack | PackedDataset, batch_size: int, *, device: str = "mixed", device_id: int = 0, **options: Any
) -> PackedLoader:
    """Return a PackedLoader whose batches DALI decodes, crops, resizes, flips and normalizes.

    It gives the same records, crop regions and targets as ``PackedLoader(data, batch_size, **options)``. Pixels differ
    by what decoders and filters differ by: crops are resized linearly, antialiased unless their `interpolation` is
    "nearest".

    Args:
        data: a pack of encoded images.
        batch_size: samples of a batch on this rank.
        device: "mixed" decodes on a GPU, where the batches stay; "cpu" needs none.
        device_id: number of the GPU.
        options: further arguments of `PackedLoader`, but for device, decode, decoder, transform and cache="device".
            `threads` and `prefetch` are DALI's.

    Raises:
        NotInstalled: if DALI is missing.
        UsageError: if DALI cannot decode the pack, or the arguments do not go together.
    """
    if device not in ("mixed", "cpu"):
        raise UsageError("device", f'must be "mixed" or "cpu", got {device!r}')
    # torchvision changes colors before images are normalized, and mixes them afterwards
    mixed = any(options.get(name) is not None for name in ("mixup", "cutmix", "color_jitter", "augment"))
    taken = () if mixed else [name for name in ("mean", "std", "dtype") if name in options]
    normalize = Normalize(**{name: options.pop(name) for name in taken})
    place = torch.device("cuda", device_id) if device == "mixed" else torch.device("cpu")
    return PackedLoader(data, batch_size, device=place, decode=Decoder(normalize), **options)


@dataclass(frozen=True)
class Decoder:
    """DALI as `PackedLoader` takes it: ``decode=Decoder()``. `pipeline` is shorter."""

    normalize: Normalize = field(default_factory=Normalize)

    def batches(self, host: Pipeline, device: torch.device) -> BatchMaker:
        """Return what makes batches on `device`, those that `host` would. Raise UsageError if DALI cannot."""
        return _DaliBatches(host, device, self.normalize)


class _Graph(NamedTuple):
    """A pipeline of DALI's, and what it reads: one iterator, in a list that it knows."""

    pipe: Any
    sources: list[Iterator[Inputs]]


class _DaliBatches:
    """Yields (images, targets, records) as `loading.pipeline.Pipeline` does, the images by DALI."""

    decoded_by = "dali"

    def __init__(self, host: Pipeline, device: torch.device, normalize: Normalize) -> None:
        self.host = host
        self.filler = host.filler
        self.device = device
        self.normalize = normalize
        self.reader = EncodedReader(host, "DALI", ENCODINGS)
        if self.reader.unknown:
            problem = f"has {self.reader.unknown[0]} images, which DALI does not decode"
            raise UsageError(self.reader.pack.path, problem, 'use PackedLoader, or pack with encode "jpeg"')
        self._dali, self._torch = _import_dali_module("nvidia.dali"), _import_dali_module("nvidia.dali.plugin.pytorch")
        crop = host.filler.augmentation.crop
        # these two take whole pixels inside the image
        self._anywhere = crop is not None and not isinstance(crop, RandomResizedCrop | Resize)
        channels = host.filler.channels
        if normalize.mean is not None and len(normalize.mean) != channels:
            problem = f"has {plural(len(normalize.mean), 'number')}, but the images have {plural(channels, 'channel')}"
            raise UsageError("mean", problem, "pass one number per channel, also in std")
        self._dtype = normalize.dtype or (torch.uint8 if normalize.mean is None else torch.float32)
        self._idle: list[_Graph] = []

    def with_host(self, host: Pipeline) -> _DaliBatches:
        """Return one for another host."""
        return _DaliBatches(host, self.device, self.normalize)

    def run(self, batches: Iterable[Int64], epoch: int, stats: Stats) -> Iterator[LoadedBatch]:
        """Yield one batch for each array of record numbers, in order."""
        sent: deque[tuple[EncodedBatch, Inputs]] = deque()
        damaged: list[DamagedPack] = []

        def inputs() -> Iterator[Inputs]:
            try:
                for batch in self.reader.read(batches, epoch):
                    sent.append((batch, self._inputs(batch)))
                    yield sent[-1][1]
            except DamagedPack as error:
                damaged.append(error)  # after the batches before it

        graph = self._idle.pop() if self._idle else self._built()
        try:
            graph.sources[:] = [inputs()]
            graph.pipe.reset()
            graph.pipe.schedule_run()
            while sent:
                started = time.perf_counter()
                images = self._received(graph.pipe, sent[0][0])
                stats.add("decode", time.perf_counter() - started)
                batch, _ = sent.popleft()
                graph.pipe.schedule_run()
                yield images, self.reader.targets(batch, stats), batch.samples
            self._idle.append(graph)
        finally:
            del graph  # if left early, before the arrays that it may still read
        if damaged:
            raise damaged[0]

    def _built(self) -> _Graph:
        fn, types, filler = self._dali.fn, self._dali.types, self.filler
        gpu = None
        if self.device.type == "cuda":
            gpu = torch.cuda.current_device() if self.device.index is None else self.device.index
        work = self.host.work
        pipe = self._dali.Pipeline(self.host.batch_size, work.threads, gpu, prefetch_queue_depth=work.prefetch)
        sources: list[Iterator[Inputs]] = []
        with pipe:
            regions = 0 if filler.augmentation.crop is None else 6 if self._anywhere else 2
            encoded, mirror, *parts = fn.external_source(
                lambda: next(sources[0]), num_outputs=2 + regions, batch=True, no_copy=True,
                ndim=[1, 0, *[1] * regions], dtype=[types.UINT8, *[types.INT32] * 4, *[types.FLOAT] * 3][: 2 + regions],
            )  # fmt: skip
            decoder = fn.decoders.image_slice if parts else fn.decoders.image
            kind = types.GRAY if filler.channels == 1 else types.RGB
            images = decoder(encoded, *parts[:2], device="cpu" if gpu is None else "mixed", output_type=kind)
            region = {"size": filler.output}
            if self._anywhere:
                region = {"roi_start": parts[3], "roi_end": parts[4], "size": parts[5]}
            if parts:
                images = fn.resize(
                    images,
                    interp_type=types.INTERP_NN if filler.interpolation == "nearest" else types.INTERP_LINEAR,
                    antialias=filler.interpolation in ANTIALIASED, **region,
                )  # fmt: skip
            if self._anywhere:
                images = fn.slice(
                    images,
                    start=parts[2],
                    shape=filler.output[::-1],
                    axis_names="WH",
                    out_of_bounds_policy="pad",
                    fill_values=filler.augmentation.border,
                )
            pipe.set_outputs(self._normalized(images, mirror))
        pipe.build()
        return _Graph(pipe, sources)

    def _normalized(self, images: Any, mirror: Any) -> Any:
        types, given = self._dali.types, self.normalize
        mean = (0.0,) if given.mean is None else given.mean
        std = (1.0,) if given.std is None else given.std
        dtype, full = types.UINT8, 1.0
        if self._dtype.is_floating_point:
            dtype, full = types.FLOAT16 if self._dtype == torch.float16 else types.FLOAT, 255.0
        return self._dali.fn.crop_mirror_normalize(
            images, dtype=dtype, output_layout="HWC", mirror=mirror,
            mean=[full * float(value) for value in mean], std=[full * float(value) for value in std],
        )  # fmt: skip

    def _inputs(self, batch: EncodedBatch) -> Inputs:
        """Return the bytes of each record, mapped; whether it is mirrored; and the region of it, if there is a crop."""
        data = [np.frombuffer(record, np.uint8) for record in self.reader.data(batch.records)]
        flipped = batch.params.flipped
        mirror = np.zeros(len(data), np.int32) if flipped is None else flipped.astype(np.int32)
        if batch.params.regions is None:
            return data, mirror
        if not self._anywhere:
            regions = batch.params.regions.astype(np.int32)
            return data, mirror, np.ascontiguousarray(regions[:, :2]), np.ascontiguousarray(regions[:, 2:])
        return data, mirror, *self._windows(batch.records, batch.params.regions)

    def _windows(self, records: Int64, regions: Regions) -> Inputs:
        """Return the regions of images, which may reach beyond them, or begin within a pixel.

        Returns:
            What is decoded (start, size) and where the output starts in what is resized, before it if there is a
            border: int32 (n, 2), x and y. What is resized of the decoded (start, end) and its size in the output:
            float32 (n, 2), y and x.
        """
        sizes = sizes_of(self.reader.pack, records)
        sides, pixels = np.stack(sizes, axis=1), np.array(self.filler.output[::-1])
        begin, end, first, last = parts_inside(regions, sizes, self.filler.output)
        # of an image outside its region, DALI resizes one pixel, and puts it after the output
        outside = (last <= first).any(axis=1, keepdims=True)
        begin, end = np.where(outside, 0, begin), np.where(outside, 1, end)
        first, last = np.where(outside, pixels, first), np.where(outside, pixels + 1, last)
        # a region of whole pixels is resized as if there were nothing around it
        around = (begin != np.rint(begin)) | (end != np.rint(end))
        margin = np.where(around.any(axis=1, keepdims=True), np.ceil(regions[:, 2:] / pixels) + 1, 0)
        decoded = np.maximum(np.floor(begin) - margin, 0)
        shape = np.minimum(np.ceil(end) + margin, sides) - decoded
        whole = [part.astype(np.int32) for part in (decoded, shape, -first)]
        exact = (begin - decoded, end - decoded, last - first)
        return *whole, *(np.ascontiguousarray(part[:, ::-1], np.float32) for part in exact)

    def _received(self, pipe: Any, batch: EncodedBatch) -> torch.Tensor:
        """Return the images of the oldest batch that DALI has begun: (n, channels, height, width), channels last."""
        try:
            (output,) = pipe.share_outputs()
        except RuntimeError as error:
            for record in batch.records.tolist():
                self.reader.pack.image(record)  # raises if the record is to blame
            add_note(error, f"in DALI, which cannot decode a record of {self.reader.pack.path} that packer can")
            raise
        tensor = output.as_tensor()
        kinds = self._torch.to_torch_type
        # a copy: DALI would give its memory to a later batch while kernels of this one still read it
        images = torch.empty(tensor.shape(), dtype=kinds[tensor.dtype], device=self.device)
        stream = torch.cuda.current_stream(self.device) if self.device.type == "cuda" else None
        self._torch.feed_ndarray(tensor, images, cuda_stream=stream)
        pipe.release_outputs()
        return oriented(images.permute(0, 3, 1, 2).to(self._dtype), replace(batch.params, flipped=None))


def _import_dali_module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise NotInstalled("nvidia-dali", "is not installed", install_command("dali")) from None
