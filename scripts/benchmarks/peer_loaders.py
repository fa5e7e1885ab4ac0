"""Reads epochs of the same JPEG files with one loader, in an environment of its own; peers.py starts it.

    peer_loaders.py LOADER crop|floats|views|whole|raw FILES OUT

Converts FILES, a folder of class folders, to the loader's own format in OUT. Each line of input is a number of epochs;
the answer is the number of images read in them.

A batch is 256 images, uint8, by two threads or worker processes. The work is "crop", RandomResizedCrop(224) and a
horizontal flip, "floats", the same as float32 with ImageNet's mean and std, "views", two such crops and eight of 96 px
of each image, or "whole" and "raw", whole images of 32 and 224 px. Only the standard library and torch are in every
environment.
"""

from __future__ import annotations

import itertools
import math
import os
import random
import sys
import tarfile
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, default_collate

BATCH, SIDE, WORKERS, SHARDS = 256, 224, 2, 8
VIEWS = {"global": (2, SIDE, (0.4, 1.0)), "local": (8, 96, (0.05, 0.4))}
"""Name -> count, side, and share of the image's area."""
IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
Epoch = Callable[[], Iterable[torch.Tensor]]


# -- what loaders share that leave decoding to the user


def jpegs(files: Path) -> list[Path]:
    return sorted(files.rglob("*.jpg"))


def write_tars(files: Path, out: Path, shards: int = SHARDS) -> list[str]:
    """Write the files, shuffled, to tars of WebDataset's layout, and return their names."""
    out.mkdir()
    paths, names = jpegs(files), [f"{out}/{number}.tar" for number in range(shards)]
    random.Random(0).shuffle(paths)
    for number, name in enumerate(names):
        with tarfile.open(name, "w", format=tarfile.USTAR_FORMAT) as tar:
            for path in paths[number::shards]:
                tar.add(path, path.name)
    return names


def region(height: int, width: int) -> tuple[int, int, int, int]:
    """Draw a region (top, left, height, width) as torchvision's RandomResizedCrop does."""
    for _ in range(10):
        area = height * width * random.uniform(0.08, 1)
        ratio = math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
        h, w = round(math.sqrt(area / ratio)), round(math.sqrt(area * ratio))
        if 0 < h <= height and 0 < w <= width:
            return random.randint(0, height - h), random.randint(0, width - w), h, w
    side = min(height, width)
    return (height - side) // 2, (width - side) // 2, side, side


def opencv(kind: str, data: bytes) -> torch.Tensor:
    """Decode by OpenCV, crop, resize linearly (its default: not antialiased), flip: (height, width, 3)."""
    import cv2
    import numpy as np

    image: Any = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR_RGB)
    if kind == "crop":
        top, left, height, width = region(*image.shape[:2])
        image = cv2.resize(image[top : top + height, left : left + width], (SIDE, SIDE))
        if random.random() < 0.5:
            image = cv2.flip(image, 1)
    return torch.from_numpy(image)


def one_thread(worker: int = 0) -> None:
    """Keep OpenCV to the threads that call it."""
    import cv2

    cv2.setNumThreads(0)


def collated(kind: str, field: str, samples: list[dict[str, Any]]) -> Any:
    """Return a batch of decoded images, channels last; in a worker process it is in shared memory from the start."""
    return default_collate([opencv(kind, sample[field]) for sample in samples])


def in_workers(dataset: Any, kind: Callable[..., Any] = DataLoader, **options: Any) -> Epoch:
    """Return epochs of a loader with worker processes, whose batches are of `collated`."""
    loader = kind(dataset, num_workers=WORKERS, persistent_workers=True, worker_init_fn=one_thread, **options)
    return lambda: (images.permute(0, 3, 1, 2) for images in loader)


# -- the loaders


def packer(files: Path, out: Path, kind: str, decoder: str = "simplejpeg", index: str | None = None) -> Epoch:
    from packer import BuildOptions, PackedLoader, RandomResizedCrop, build_pack

    how: dict[str, Any] = {} if kind == "raw" else {"encode": "copy", "jpeg_index": index}
    build_pack(BuildOptions(str(files), str(out), labels=("folder",), **how))
    options: dict[str, Any] = {"crop": RandomResizedCrop(SIDE), "flip": True} if kind in ("crop", "floats") else {}
    if kind == "floats":
        options |= {**IMAGENET, "dtype": torch.float32}
    if kind == "views":
        views = {name: (count, RandomResizedCrop(side, scale)) for name, (count, side, scale) in VIEWS.items()}
        options = {"views": views, "flip": True}
    loader = PackedLoader(out, BATCH, shuffle=True, threads=WORKERS, decoder=decoder, **options)
    return lambda: (images["global"][: len(labels)] if kind == "views" else images for images, labels in loader)


def ffcv(files: Path, out: Path, kind: str) -> Epoch:
    from ffcv import DatasetWriter, Loader
    from ffcv.fields import IntField, RGBImageField
    from ffcv.fields.basics import IntDecoder
    from ffcv.fields.decoders import RandomResizedCropRGBImageDecoder, SimpleRGBImageDecoder
    from ffcv.loader import OrderOption
    from ffcv.transforms import RandomHorizontalFlip, ToTensor, ToTorchImage
    from PIL import Image

    class Source:
        paths = jpegs(files)

        def __len__(self) -> int:
            return len(self.paths)

        def __getitem__(self, index: int) -> tuple[Any, int]:
            return Image.open(self.paths[index]).convert("RGB"), 0

    fields = {"image": RGBImageField(write_mode="raw" if kind == "raw" else "jpg"), "label": IntField()}
    DatasetWriter(str(out), fields, num_workers=WORKERS).from_indexed_dataset(Source())
    cropped = [RandomResizedCropRGBImageDecoder((SIDE, SIDE)), RandomHorizontalFlip()]
    first = cropped if kind == "crop" else [SimpleRGBImageDecoder()]
    pipelines = {"image": [*first, ToTensor(), ToTorchImage()], "label": [IntDecoder(), ToTensor()]}
    loader = Loader(
        str(out), batch_size=BATCH, num_workers=WORKERS, order=OrderOption.RANDOM, os_cache=True, drop_last=False,
        pipelines=pipelines,
    )  # fmt: skip
    return lambda: (batch[0] for batch in loader)


def dali(files: Path, out: Path, kind: str) -> Epoch:
    from nvidia.dali import Pipeline, fn, types

    ahead, batches = 2, len(jpegs(files)) // BATCH
    pipe = Pipeline(BATCH, WORKERS, None, prefetch_queue_depth=ahead, exec_dynamic=True)
    with pipe:
        data = fn.readers.webdataset(paths=write_tars(files, out), ext=["jpg"], random_shuffle=True, initial_fill=1024)
        if kind == "crop":
            images = fn.decoders.image_random_crop(data, output_type=types.RGB)
            images = fn.resize(images, size=[SIDE, SIDE], interp_type=types.INTERP_LINEAR)
            images = fn.flip(images, horizontal=fn.random.coin_flip())
        else:
            images = fn.decoders.image(data, output_type=types.RGB)
        pipe.set_outputs(images)
    pipe.build()

    def epoch() -> Iterator[torch.Tensor]:
        for number in range(ahead + batches):
            if number < batches:  # not beyond: nothing of the next epoch is made before its time counts
                pipe.schedule_run()
            if number >= ahead:
                (output,) = pipe.share_outputs()
                yield torch.utils.dlpack.from_dlpack(output.as_tensor()).permute(0, 3, 1, 2)
                pipe.release_outputs()

    return epoch


def torchvision(files: Path, out: Path, kind: str) -> Epoch:
    from torchvision.datasets import ImageFolder
    from torchvision.io import decode_image
    from torchvision.transforms import v2

    def crop_of(side: int, scale: tuple[float, float] = (0.08, 1.0)) -> Any:
        return v2.Compose([v2.RandomResizedCrop(side, scale), v2.RandomHorizontalFlip()])

    transform = crop_of(SIDE) if kind == "crop" else None
    if kind == "views":
        crops = {name: (count, crop_of(side, scale)) for name, (count, side, scale) in VIEWS.items()}

        def transform(image: torch.Tensor) -> dict[str, torch.Tensor]:
            views = {name: [crop(image) for _ in range(count)] for name, (count, crop) in crops.items()}
            return {name: torch.stack(each) for name, each in views.items()}

    folder = ImageFolder(files, transform, loader=decode_image)
    loader = DataLoader(folder, BATCH, shuffle=True, num_workers=WORKERS, persistent_workers=True)
    return lambda: (images["global"][:, 0] if kind == "views" else images for images, _ in loader)


def webdataset(files: Path, out: Path, kind: str) -> Epoch:
    import webdataset as wds

    dataset = wds.WebDataset(write_tars(files, out), shardshuffle=SHARDS).shuffle(1000)
    dataset = dataset.batched(BATCH, collation_fn=partial(collated, kind, "jpg"))
    return in_workers(dataset, wds.WebLoader, batch_size=None)


def streaming(files: Path, out: Path, kind: str) -> Epoch:
    from streaming import MDSWriter, StreamingDataset

    with MDSWriter(out=str(out), columns={"image": "bytes", "label": "int"}) as writer:
        for path in jpegs(files):
            writer.write(read(path))
    dataset = StreamingDataset(local=str(out), shuffle=True, batch_size=BATCH)
    return in_workers(dataset, batch_size=BATCH, collate_fn=partial(collated, kind, "image"))


def litdata(files: Path, out: Path, kind: str) -> Epoch:
    from litdata import StreamingDataLoader, StreamingDataset, optimize

    optimize(read, jpegs(files), str(out), chunk_bytes="64MB", num_workers=WORKERS)
    dataset = StreamingDataset(str(out), shuffle=True)
    return in_workers(dataset, StreamingDataLoader, batch_size=BATCH, collate_fn=partial(collated, kind, "image"))


def read(path: Path) -> dict[str, Any]:
    return {"image": path.read_bytes(), "label": 0}


def spdl(load: Callable[[str, list[str]], torch.Tensor], files: Path, out: Path, kind: str) -> Epoch:
    from spdl.pipeline import PipelineBuilder

    paths = list(map(str, jpegs(files)))

    def epoch() -> Iterator[torch.Tensor]:
        random.shuffle(paths)
        batches = (paths[start : start + BATCH] for start in range(0, len(paths), BATCH))
        builder = PipelineBuilder().add_source(batches).pipe(partial(load, kind), concurrency=WORKERS).add_sink(2)
        pipeline = builder.build(num_threads=WORKERS)
        with pipeline.auto_stop():
            for images in pipeline:
                yield images.permute(0, 3, 1, 2)

    return epoch


def by_ffmpeg(kind: str, paths: list[str]) -> Any:
    """Load a batch as spdl.io does."""
    import spdl.io

    frames = []
    for path in paths:
        packets, filters = spdl.io.demux_image(path), "format=pix_fmts=rgb24"
        if kind == "crop":
            top, left, height, width = region(packets.height, packets.width)
            flip = "hflip," if random.random() < 0.5 else ""
            filters = f"crop={width}:{height}:{left}:{top},scale={SIDE}:{SIDE}:flags=bilinear,{flip}{filters}"
        frames.append(spdl.io.decode_packets(packets, filter_desc=filters))
    return spdl.io.to_torch(spdl.io.convert_frames(frames))


def by_opencv(kind: str, paths: list[str]) -> torch.Tensor:
    one_thread()
    return torch.stack([opencv(kind, Path(path).read_bytes()) for path in paths])


def turboloader(files: Path, out: Path, kind: str) -> Epoch:
    import turboloader as turbo

    (tar,) = write_tars(files, out, shards=1)  # it takes one
    loader = turbo.DataLoader(
        tar, BATCH, WORKERS, shuffle=True, output_format="pytorch", image_size=SIDE,
        transform=turbo.ImageNetNormalize(), train_aug=True, pin_memory=True,
    )  # fmt: skip
    epochs = itertools.count()

    def epoch() -> Iterator[torch.Tensor]:
        loader.set_epoch(next(epochs))
        return (images for images, _ in loader)

    return epoch


LOADERS: dict[str, Callable[[Path, Path, str], Epoch]] = {
    **{each.__name__: each for each in (packer, ffcv, dali, torchvision, webdataset, streaming, litdata, turboloader)},
    "packer-fast": partial(packer, decoder="fast"),
    "packer-fast-index": partial(packer, decoder="fast", index="row"),
    "spdl": partial(spdl, by_ffmpeg),
    "spdl-opencv": partial(spdl, by_opencv),
}


def main() -> None:
    """Answer each line of input by an epoch."""
    name, kind, files, out = sys.argv[1:]
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries print
    epoch = LOADERS[name](Path(files), Path(out), kind)
    shape = (3, 32, 32) if kind == "whole" else (3, SIDE, SIDE)
    dtype = torch.float32 if kind == "floats" else torch.uint8
    for line in sys.stdin:
        count = 0
        for _ in range(int(line)):
            for images in epoch():
                assert images.dtype == dtype and images.shape[1:] == shape, images.shape
                count += len(images)
        print(count, file=answers, flush=True)


if __name__ == "__main__":
    main()
