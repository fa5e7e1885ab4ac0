"""What reaches the GPU: copies, device cache, decoding there, waiting of a training step.

Needs a CUDA GPU; the images are drawn. The rows of decoding on the GPU say "not measured" without torchcodec or DALI
(pip install 'torchcodec>=0.16' nvidia-dali-cuda120).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import cv2
import numpy as np
import torch
from torch.utils.data import DataLoader

import packer.dali
from benchmarks.common import Table, build, drawn, repeated
from benchmarks.loader import Loose
from packer import Pack, PackedLoader, RandomResizedCrop
from packer.bench.measure import Figure, seconds_of
from packer.system import usable_cores

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
DEVICE = "cuda"


def row(table: Table, what: str, goal: str, values: list[float], unit: str = "") -> None:
    figure = Figure(tuple(values))
    table.row(what, goal, f"{figure.text(0 if figure.median >= 100 else 3)} {unit}".strip())


def on_device(work: Callable[[], int]) -> float:
    """Return images/s of `work`, which returns how many images it had, until the device has finished."""
    images = 0

    def run() -> None:
        nonlocal images
        images = work()
        torch.cuda.synchronize()

    torch.cuda.synchronize()
    seconds = seconds_of(run)
    return images / seconds


def bare_copies(images: int, batch: int, record_bytes: int) -> float:
    """Images per second of a loop that copies pinned memory to the device, two buffers each side."""
    host = [torch.empty(batch * record_bytes, dtype=torch.uint8, pin_memory=True) for _ in range(2)]
    there = [torch.empty(batch * record_bytes, dtype=torch.uint8, device=DEVICE) for _ in range(2)]

    def copy() -> int:
        for number in range(images // batch):
            there[number % 2].copy_(host[number % 2], non_blocking=True)
        return images // batch * batch

    return on_device(copy)


def epoch(loader: Any) -> float:
    """Images per second of one pass whose batches are only received."""
    return on_device(lambda: sum(len(batch) for batch, _ in loader))


def copy_rate(table: Table, pack: Pack, rounds: int) -> None:
    loader = PackedLoader(pack, 256, shuffle=True, drop_last=True, device=DEVICE)
    size = pack.reader.record_bytes or 0
    epoch(loader)
    values = [epoch(loader) / bare_copies(len(pack), 256, size) for _ in range(rounds)]
    row(table, "batches of raw 224 to the GPU, against a bare pinned copy loop", ">= 0.9", values)


def device_cache(table: Table, pack: Pack, rounds: int) -> None:
    loader = PackedLoader(pack, 4096, shuffle=True, drop_last=True, device=DEVICE, cache="device")
    images = torch.empty((len(pack), pack.reader.record_bytes or 1), dtype=torch.uint8, device=DEVICE)
    orders = [torch.randperm(len(images), device=DEVICE)[:4096] for _ in range(8)]

    def select() -> int:
        for number in range(len(images) // 4096):
            torch.index_select(images, 0, orders[number % 8])
        return len(images) // 4096 * 4096

    epoch(loader), on_device(select)
    rates = [(epoch(loader), on_device(select)) for _ in range(rounds)]
    what = '`cache="device"`, 32x32'
    row(table, what, ">= 10 M images/s", [ours for ours, _ in rates], "images/s")
    row(table, f"{what}, against a bare `index_select`", ">= 0.8", [ours / bare for ours, bare in rates])


class Bottleneck(torch.nn.Module):
    """A block of ResNet-50 (He et al. 2015, https://arxiv.org/abs/1512.03385)."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        layers: list[torch.nn.Module] = []
        for a, b, kernel, step in ((inputs, width, 1, 1), (width, width, 3, stride), (width, 4 * width, 1, 1)):
            layers += [torch.nn.Conv2d(a, b, kernel, step, kernel // 2, bias=False), torch.nn.BatchNorm2d(b)]
            layers.append(torch.nn.ReLU(inplace=True))
        self.body = torch.nn.Sequential(*layers[:-1])
        same = stride == 1 and inputs == 4 * width
        self.shortcut = torch.nn.Identity() if same else torch.nn.Conv2d(inputs, 4 * width, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.body(x) + self.shortcut(x))


def resnet50() -> Any:
    layers: list[torch.nn.Module] = [torch.nn.Conv2d(3, 64, 7, 2, 3), torch.nn.ReLU(), torch.nn.MaxPool2d(3, 2, 1)]
    inputs = 64
    for width, blocks, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for number in range(blocks):
            layers.append(Bottleneck(inputs, width, stride if number == 0 else 1))
            inputs = 4 * width
    layers += [torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(2048, 10)]
    whole: Any = torch.nn.Sequential(*layers)
    return whole.to(DEVICE, dtype=torch.bfloat16, memory_format=torch.channels_last)


class Trainer:
    """A ResNet-50 step in bf16; measures how long the GPU had nothing to do between steps."""

    def __init__(self) -> None:
        torch.backends.cudnn.benchmark = True
        self.model = resnet50()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)

    def step(self, images: torch.Tensor, targets: torch.Tensor) -> None:
        loss: Any = torch.nn.functional.cross_entropy(self.model(images), targets)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()

    def waiting(self, loader: Any, steps: int) -> Any:
        """Share of the time that lies between the end of a step on the GPU and the begin of the next one."""
        marks, event = [], partial(torch.cuda.Event, enable_timing=True)
        for number, (images, targets) in enumerate(loader):
            begin, end = event(), event()
            begin.record()
            self.step(images, targets)
            end.record()
            marks.append((begin, end))
            if number >= 2:
                marks[-3][1].synchronize()  # a real loop reads its loss now and then; the host must not run far ahead
            if number == steps:
                break
        torch.cuda.synchronize()
        warm = marks[len(marks) // 4 :]
        whole = warm[0][0].elapsed_time(warm[-1][1])
        return 1 - sum(a.elapsed_time(b) for a, b in warm) / whole


def by_opencv(path: str) -> torch.Tensor:
    """Read a file as in the experiment that packer began with."""
    image: Any = cv2.imdecode(np.fromfile(path, np.uint8), cv2.IMREAD_COLOR)
    image = (cv2.resize(image[..., ::-1], (224, 224)).astype(np.float32) / 255 - MEAN) / STD
    return torch.from_numpy(image.transpose(2, 0, 1)).to(torch.bfloat16)


def moved(batches: Any) -> Iterator[Any]:
    """Batches of a DataLoader on the GPU, as a loop without a prefetcher has them."""
    for images, targets in batches:
        there = images.to(DEVICE, non_blocking=True).contiguous(memory_format=torch.channels_last)
        yield there, targets.to(DEVICE, non_blocking=True)


def training(table: Table, raw: Pack, jpeg: Pack, paths: list[str], rounds: int) -> None:
    trainer = Trainer()
    common: dict[str, Any] = {"mean": MEAN, "std": STD, "dtype": torch.bfloat16, "device": DEVICE, "drop_last": True}
    whole = PackedLoader(raw, 256, shuffle=True, flip=True, **common)
    cropped = PackedLoader(jpeg, 256, shuffle=True, crop=RandomResizedCrop(224), **common)
    loose = DataLoader(Loose(paths, by_opencv), 256, shuffle=True, num_workers=4, pin_memory=True, drop_last=True)
    for what, goal, loader in (
        ("ResNet-50 step in bf16, raw 224", "<= 0.01", whole),
        ("ResNet-50 step in bf16, JPEG 256, RandomResizedCrop", "", cropped),
    ):
        trainer.waiting(loader, 8)
        row(table, f"{what}: share of waiting", goal, [trainer.waiting(loader, 60) for _ in range(rounds)])
    before = "before: loose files in a DataLoader, 4 workers"
    for what, batches in ((before, moved(loose)), ("after: this loader, raw 224", whole)):
        row(table, f"{what}: share of waiting", "", [trainer.waiting(batches, 25)])


class DaliAlone:
    """The pipeline that DALI's documentation shows for ImageNet: its own reader of files, shuffle and random crop."""

    def __init__(self, paths: list[str], batch_size: int, device: str, threads: int) -> None:
        from nvidia.dali import fn, pipeline_def, types
        from nvidia.dali.plugin.pytorch import DALIClassificationIterator, LastBatchPolicy

        @pipeline_def  # type: ignore[untyped-decorator]
        def images() -> Any:
            labels = [number % 10 for number in range(len(paths))]
            data, label = fn.readers.file(files=paths, labels=labels, random_shuffle=True, name="files")
            parts = fn.decoders.image_random_crop(data, device=device, random_area=[0.08, 1.0])
            resized = fn.resize(parts, resize_x=224, resize_y=224, interp_type=types.INTERP_LINEAR, antialias=True)
            flip = fn.random.coin_flip(probability=0.5)
            made = fn.crop_mirror_normalize(resized, dtype=types.UINT8, output_layout="HWC", mirror=flip, std=[1.0])
            return made, label

        pipe = images(batch_size=batch_size, num_threads=threads, device_id=0 if device == "mixed" else None, seed=0)
        policy = LastBatchPolicy.DROP
        self._batches = DALIClassificationIterator(pipe, reader_name="files", auto_reset=True, last_batch_policy=policy)

    def __iter__(self) -> Iterator[Any]:
        for (batch,) in self._batches:
            yield batch["data"].permute(0, 3, 1, 2), batch["label"]


def decoding(table: Table, pack: Pack, paths: list[str], rounds: int) -> None:
    """Images per second of batches of 256 on the GPU, uint8, by each decoder in turn."""
    options: dict[str, Any] = {"shuffle": True, "drop_last": True, "crop": RandomResizedCrop(224), "flip": True}
    makers: dict[str, Callable[[], Any]] = {
        "JPEG 256, RandomResizedCrop(224) and flip, decoded on the host": lambda: PackedLoader(
            pack, 256, device=DEVICE, **options
        ),
        'the same, `decode="device"` (torchcodec)': lambda: PackedLoader(
            pack, 256, device=DEVICE, decode="device", **options
        ),
        "the same, `packer.dali`": lambda: packer.dali.pipeline(pack.path, 256, **options),
        "the same, DALI alone with its own file reader": lambda: DaliAlone(paths, 256, "mixed", usable_cores()),
    }
    loaders: dict[str, Any] = {}
    for what, maker in makers.items():
        with suppress(ImportError):
            loaders[what] = maker()
            epoch(loaders[what])
    rates = [{what: epoch(loader) for what, loader in loaders.items()} for _ in range(rounds)]
    for what in makers:
        if what in loaders:
            row(table, what, "", [rate[what] for rate in rates], "images/s")
        else:
            table.row(what, "", "not measured")


def options(parser: Any) -> None:
    parser.add_argument("--large", type=int, default=8192, help="images of 224x224 and 256x256")
    parser.add_argument("--small", type=int, default=200_000, help="images of 32x32")


def run(given: Any) -> None:
    if not torch.cuda.is_available():
        print("Not measured: there is no CUDA GPU.")
        return
    table = Table.of_figures("what")
    large, little = given.home / "large", given.home / "small"
    paths = repeated(list(drawn(256)), large, given.large)
    repeated(list(drawn(32)), little, given.small)
    raw = build(large, given.home / "raw224", resize="224", fit="crop")
    jpeg = build(large, given.home / "jpeg256", encode="copy")
    copy_rate(table, raw, given.rounds)
    device_cache(table, build(little, given.home / "raw32"), given.rounds)
    training(table, raw, jpeg, paths, given.rounds)
    decoding(table, jpeg, paths, given.rounds)
    print(f"\n{torch.cuda.get_device_name()}, torch {torch.__version__}")
