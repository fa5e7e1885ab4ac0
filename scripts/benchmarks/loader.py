"""How fast `PackedLoader` is on the CPU, each kind of work against a bare loop of the same in the same run.

The bare loops have no order, no checks, no targets and no queue: two threads, each with memory of its own that it fills
again and again.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import cv2
import numpy as np
import simplejpeg
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from benchmarks.common import Table, build, images, tiny_pack
from benchmarks.peer_loaders import region
from packer import Pack, PackedDataset, PackedLoader, RandomResizedCrop, open_pack
from packer.bench.measure import Figure, drop_from_page_cache, in_threads
from packer.containers import CONTAINERS
from packer.loading import pipeline
from packer.loading.fill import overlapping_rows
from packer.repack.index_jpegs import index_jpegs

THREADS = 2
CROP = "JPEG 256 px, RandomResizedCrop(224) and flip"
VIEWS = "JPEG 500 px, 10 views: 2 of 224 px, 8 of 96 px"


def drain(loader: Any) -> None:
    for _ in loader:
        pass


class Bench:
    """Prints a row for each comparison."""

    def __init__(self, rounds: int, only: str) -> None:
        self.rounds, self.only = rounds, only
        self.table = Table("work", "goal", "ratio", "packer, images/s", "bare, images/s")

    def compare(self, name: str, goal: float | None, images: int, ours: Any, bare: Any) -> None:
        """Measure our rate against that of a bare loop; the round before the first touches and checks every record.

        Args:
            name: Of the row.
            goal: The least that the ratio must be.
            images: How many are read.
            ours: What reads them: a function, or a loader.
            bare: The same.
        """
        if self.only not in name:
            return
        works = [work if callable(work) else partial(drain, work) for work in (bare, ours)]
        self.table.against(goal, images, works[0], {name: works[1]}, self.rounds)


def bare_gather(pack: Pack, batch: int) -> Callable[[], None]:
    """Two threads, each gathering half of the batches of a shuffled epoch."""
    assert pack.reader.record_bytes is not None
    rows = overlapping_rows(pack.reader.region.parts[0], pack.reader.record_bytes)
    order = torch.from_numpy(pack.reader.places(np.random.default_rng(0).permutation(len(pack)))[0])
    buffers = [
        [torch.empty(batch, pack.reader.record_bytes, dtype=torch.uint8) for _ in range(3)] for _ in range(THREADS)
    ]

    def work(number: int) -> None:
        torch.get_num_threads()
        torch.set_num_threads(1)
        for i, start in enumerate(range(number * batch, len(order), THREADS * batch)):
            offsets = order[start : start + batch]
            torch.index_select(rows, 0, offsets, out=buffers[number][i % 3][: len(offsets)])

    def run() -> None:
        threads = torch.get_num_threads()
        in_threads(THREADS, work)
        torch.set_num_threads(threads)

    return run


def bare_resize(image: Any, out: Any, interpolation: str) -> None:
    """Resize by OpenCV with the filter of one of packer's crops: an axis that shrinks is averaged, if it must be."""
    height, width = image.shape[:2]
    across, down = width / out.shape[1], height / out.shape[0]
    size = out.shape[1::-1]
    if max(across, down) <= (1.15 if interpolation == "fast" else 1):
        cv2.resize(image, size, dst=out, interpolation=cv2.INTER_LINEAR)
    elif min(across, down) >= 1:
        cv2.resize(image, size, dst=out, interpolation=cv2.INTER_AREA)
    else:
        between = (size[0], height) if across > 1 else (width, size[1])
        image = cv2.resize(image, between, interpolation=cv2.INTER_AREA)
        cv2.resize(image, size, dst=out, interpolation=cv2.INTER_LINEAR)


def bare_crops(files: list[bytes], size: int, interpolation: str) -> Callable[[], None]:
    """Two threads: simplejpeg, a random crop, OpenCV's resize by the same filter into the row. No flip."""

    def work(number: int) -> None:
        batch = np.empty((256, size, size, 3), np.uint8)
        for i in range(number, len(files), THREADS):
            image = simplejpeg.decode_jpeg(files[i])
            top, left, height, width = region(*image.shape[:2])
            bare_resize(image[top : top + height, left : left + width], batch[i % 256], interpolation)

    return lambda: in_threads(THREADS, work)


def bare_decode(files: list[bytes], into_rows: bool = False) -> Callable[[], None]:
    """Two threads that decode and nothing else, into new memory or into rows of a batch."""

    def work(number: int) -> None:
        if into_rows:
            rows = np.empty((512, *simplejpeg.decode_jpeg(files[0]).shape), np.uint8)
            for i in range(number, len(files), THREADS):
                simplejpeg.decode_jpeg(files[i], "RGB", False, False, 0, 0, 1, rows[i % 512])
        else:
            for i in range(number, len(files), THREADS):
                simplejpeg.decode_jpeg(files[i])

    return lambda: in_threads(THREADS, work)


class Loose(Dataset[tuple[torch.Tensor, int]]):
    """Loose files, each read by a function."""

    def __init__(self, paths: list[str], read: Callable[[str], torch.Tensor]) -> None:
        self.paths, self.read = paths, read

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.read(self.paths[index]), 0


def by_pillow(crop: bool, floats: bool, path: str) -> torch.Tensor:
    """Read as torchvision's ImageFolder does: PIL, RandomResizedCrop, flip, ToTensor.

    With `floats` off it hands over bytes, as the loader does, which leaves the rest to the GPU.
    """
    with Image.open(path) as file:
        image = file.convert("RGB")
    if crop:
        top, left, height, width = region(image.height, image.width)
        box = (left, top, left + width, top + height)
        image = image.resize((224, 224), Image.Resampling.BILINEAR, box=box)
        if np.random.random() < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    tensor = torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()
    return tensor.to(torch.float32).div_(255) if floats else tensor


def write_files(pack: Pack, folder: Path) -> None:
    """Write the JPEGs of a pack as files, of one class."""
    (folder / "all").mkdir(parents=True)
    for i, data in enumerate(records(pack)):
        (folder / "all" / f"{i:07}.jpg").write_bytes(data)


def native_rows(bench: Bench, home: Path, small: Pack) -> None:
    """The native decoder, without an index of JPEGs and with one, against the same bare loops."""
    notes = []
    for side, goals in ((256, (1.6, 1.9, None)), (500, (2.0, 2.7, None))):
        name = f"JPEG {side} px, RandomResizedCrop(224) and flip, native decoder"
        if bench.only not in name:
            continue
        pack = build(home / "photos", home / f"native {side}", resize=str(side), encode="jpeg")
        limit = bare_crops(records(pack), 224, "fast")
        intervals = {"": "no index", "row": "index", "4": "index of 4"}
        for (interval, what), goal in zip(intervals.items(), goals, strict=True):
            if interval:
                report = index_jpegs(pack.path, interval)
                share, ms = report.share, report.ms_per_image
                notes.append(f"- {side} px, {what}: {share:.2%} of the shards, {ms:.2f} ms an image")
            each = loader_of(open_pack(pack.path), 256, crop=RandomResizedCrop(224), flip=True, decoder="fast")
            bench.compare(f"{name}, {what}", goal, len(pack), each, limit)
    name = "JPEG 32x32, batch 512, native decoder, against decoding into rows"
    tiny = loader_of(small, 512, decoder="fast")
    bench.compare(name, 1.3, len(small), tiny, bare_decode(records(small), into_rows=True))
    view_rows(bench, home, "fast")
    print("", *notes, sep="\n")


def records(pack: Pack) -> list[bytes]:
    return [bytes(pack.record(i)) for i in range(len(pack))]


def loader_of(pack: Pack, batch: int, **options: Any) -> PackedLoader:
    return PackedLoader(pack, batch, shuffle=True, threads=THREADS, **{"decoder": "simplejpeg", **options})


def growth(loader: PackedLoader) -> float:
    """How much the memory of the process grows from the second to the twentieth epoch, as a share."""
    sizes = []
    for _ in range(20):
        drain(loader)
        with open("/proc/self/statm") as file:
            sizes.append(int(file.read().split()[1]))
    return sizes[-1] / sizes[1] - 1


def drop_from_memory(path: str) -> None:
    """Drop the pack from the page cache; nothing may have it mapped."""
    for entry in os.scandir(path):
        drop_from_page_cache(entry.path)


def cold(path: str, ahead: bool) -> Callable[[], None]:
    """A shuffled epoch from the disk, with the loader's read-ahead or without."""

    def run() -> None:
        with nullcontext() if ahead else patch.object(pipeline, "announced", lambda batches, pack: iter(batches)):
            drain(loader_of(open_pack(path), 256))
        gc.collect()
        drop_from_memory(path)

    return run


def first_batch(path: Path, records: int, rounds: int) -> Figure:
    """Return the seconds from iter() to the first batch of a pack of many records, each time with a new loader."""
    tiny_pack(path, records)
    seconds = []
    for _ in range(rounds):
        loader = loader_of(open_pack(path), 256)
        started = time.perf_counter()
        next(iter(loader))
        seconds.append(time.perf_counter() - started)
    return Figure(tuple(seconds))


def first_of_warm(loader: PackedLoader, rounds: int) -> Figure:
    """Return the time from iter() to the first batch, over that of a batch in the middle of an epoch."""
    ratios = []
    for _ in range(rounds + 1):
        started = time.perf_counter()
        batches = iter(loader)
        next(batches)
        first = time.perf_counter()
        middle = [next(batches) for _ in range(len(loader) - 2)]
        ratios.append((first - started) / (time.perf_counter() - first) * len(middle))
        batches.close()  # type: ignore[attr-defined]
    return Figure(tuple(ratios[1:]))


def plain_line(bench: Bench, name: str, pack: Pack, batch: int = 256) -> None:
    """`DataLoader(PackedDataset(...), batch, shuffle=True)`, without and with workers, against `PackedLoader`."""
    loader = loader_of(pack, batch)
    for workers in (0, 2):
        options: dict[str, Any] = {"num_workers": workers, "persistent_workers": workers > 0}
        line = DataLoader(PackedDataset(pack, decoder="simplejpeg"), batch, shuffle=True, **options)
        how = f" with {workers} workers" if workers else ""
        title = f"{name}, DataLoader(PackedDataset){how} against PackedLoader"
        bench.compare(title, None, len(pack), line, loader)


def with_boxes(bench: Bench, source: Path, home: Path) -> None:
    """Raw 300x300 with 13 boxes per image as dicts, against the same images without labels."""
    for number, path in enumerate(sorted(source.rglob("*.jpg"))):
        image, label = home / "boxes/images" / f"{number}.jpg", home / "boxes/labels" / f"{number}.txt"
        for file in (image, label):
            file.parent.mkdir(parents=True, exist_ok=True)
        os.link(path, image)
        boxes = np.random.default_rng(number).uniform(0.3, 0.5, (13, 4))
        label.write_text("".join(f"{i % 3} {' '.join(map(str, box))}\n" for i, box in enumerate(boxes.tolist())))
    sizes: dict[str, Any] = {"resize": "300", "fit": "crop"}
    boxed, plain = (
        loader_of(build(home / "boxes", home / f"raw300 {labels}", labels=(labels,), **sizes), 64)
        for labels in ("yolo", "none")
    )
    name = "raw 300x300 with 13 boxes, dicts, against no labels"
    bench.compare(name, 0.8, len(boxed.pack), boxed, plain)
    plain_line(bench, "raw 300x300 with 13 boxes", boxed.pack, 64)


def raw_large(bench: Bench, path: Path) -> None:
    """Raw 224x224: warm, with and without checksums, and from a cold disk."""

    def warm() -> int:
        pack = open_pack(path)
        loader, unchecked = loader_of(pack, 256), loader_of(pack, 256, verify=False)
        bench.compare("raw 224x224, batch 256", 0.97, len(pack), loader, bare_gather(pack, 256))
        name = "checksums (second epoch on) against none"
        bench.compare(name, 0.99, len(pack), loader, unchecked)
        plain_line(bench, "raw 224x224", pack)
        return len(pack)

    images = warm()
    gc.collect()  # no map may be left
    drop_from_memory(str(path))
    bench.compare("cold disk: read-ahead against none", 1, images, cold(str(path), True), cold(str(path), False))


def options(parser: Any) -> None:
    parser.add_argument("--only", default="", metavar="TEXT", help="only work whose name has this in it")
    parser.add_argument("--photos", type=int, default=3000)
    parser.add_argument("--small", type=int, default=80_000, help="images of 32x32")
    parser.add_argument("--records", type=int, default=1_000_000, help="of the pack whose first batch is awaited")
    decoder = "only the rows of the native decoder, or all others, with simplejpeg"
    parser.add_argument("--decoder", choices=("fast", "simplejpeg"), default="simplejpeg", help=decoder)


def run(given: Any) -> None:
    cv2.setNumThreads(0)
    bench, home = Bench(given.rounds, given.only), given.home
    images("photos", given.data, home / "photos", given.photos)
    files = images("cifar", given.data, home / "small", given.small)
    if given.decoder == "simplejpeg":
        build(home / "photos", home / "raw224", resize="224", fit="crop")
    large = build(home / "photos", home / "jpeg256", resize="256", encode="jpeg")
    small = build(home / "small", home / "jpeg32", encode="jpeg")
    if given.decoder == "fast":
        native_rows(bench, home, small)
        return
    raw_large(bench, home / "raw224")
    for name in CONTAINERS:
        pack = build(home / "small", home / name, format=name)
        bench.compare(f"raw 32x32, batch 512, {name}", 0.8, len(pack), loader_of(pack, 512), bare_gather(pack, 512))
    with_boxes(bench, home / "photos", home)
    square = build(home / "photos", home / "square", encode="jpeg", resize="256", fit="crop")
    plain_line(bench, "JPEG 256x256", square)
    crops = jpeg_rows(bench, home, large, small)
    folder_rows(bench, home, files, crops)
    print()
    table = Table.of_figures("what")
    table.figure("growth of memory over 20 epochs, from the second on", Figure((growth(crops),)), 0.02, 4)
    first = first_batch(home / "many", given.records, given.rounds)
    table.figure("first batch of JPEG 256 px and crop, against a later one", first_of_warm(crops, given.rounds), 2)
    table.figure(f"first batch of {given.records:,} records, s", first, 0.3)


def jpeg_rows(bench: Bench, home: Path, large: Pack, small: Pack) -> PackedLoader:
    """Print the rows of JPEGs; return the loader of random crops."""

    def crops_of(pack: Pack, interpolation: Any = "fast", **options: Any) -> PackedLoader:
        crop = RandomResizedCrop(224, interpolation=interpolation)
        return loader_of(pack, 256, crop=crop, flip=True, **options)

    crops = crops_of(large)
    for name in ("fast", "area"):
        limit = bare_crops(records(large), 224, name)
        bench.compare(f"{CROP}, {name}", 0.95, len(large), crops_of(large, interpolation=name), limit)
    for name in ("area", "bilinear"):
        bench.compare(f"{CROP}, {name} against fast", None, len(large), crops_of(large, interpolation=name), crops)
    whole = partial(loader_of, batch=512)
    for pack, make, what in ((small, whole, "32 px"), (large, crops_of, "256 px and crop")):
        source = home / "files" / what
        write_files(pack, source)
        copied = make(build(source, home / f"copy {what}", encode="copy"))
        bench.compare(f"JPEG {what}: --encode copy against --encode jpeg", 0.95, len(pack), copied, make(pack))
    floats = crops_of(large, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
    bench.compare(f"{CROP}, float32 against bytes", 0.75, len(large), floats, crops)
    view_rows(bench, home)
    tiny, limit = whole(small), bare_decode(records(small))
    bench.compare("JPEG 32x32, batch 512, against decoding", 0.5, len(small), tiny, limit)
    return crops


def view_rows(bench: Bench, home: Path, decoder: str = "simplejpeg") -> None:
    """Print the rows of several crops out of one decode, in images decoded."""
    pack = build(home / "photos", home / "jpeg500", resize="500", encode="jpeg")
    views = {"global": (2, RandomResizedCrop(224, (0.4, 1.0))), "local": (8, RandomResizedCrop(96, (0.05, 0.4)))}
    make, by = partial(loader_of, pack, 64, flip=True), ", native decoder" if decoder == "fast" else ""
    one, several = make(crop=RandomResizedCrop(224), decoder=decoder), make(views=views, decoder=decoder)
    bench.compare(f"{VIEWS}{by}, against one of 224 px", 0.4, len(pack), several, one)
    repeats = make(crop=RandomResizedCrop(224), repeats=3, decoder=decoder)

    def three() -> None:
        for _ in range(3):
            drain(one)

    bench.compare(f"JPEG 500 px, repeats=3{by} against three epochs", 2, len(pack), repeats, three)
    if by:
        bench.compare(f"{VIEWS}{by}, against simplejpeg", None, len(pack), several, make(views=views))


def folder_rows(bench: Bench, home: Path, small: list[str], crops: PackedLoader) -> None:
    """Print the rows of loops over loose files, which `jpeg_rows` has written."""
    jpegs = [str(path) for path in sorted((home / "files" / "256 px and crop").rglob("*.jpg"))]
    each = loader_of(open_pack(home / "lmdb"), 512)
    for floats, what in ((True, "an ImageFolder-like loop"), (False, "the same loop without ToTensor")):
        plain = DataLoader(Loose(jpegs, partial(by_pillow, True, floats)), 256, shuffle=True, num_workers=2)
        bench.compare(f"JPEG, against {what}", 3 if floats else None, len(jpegs), crops, plain)
        loose = DataLoader(Loose(small, partial(by_pillow, False, floats)), 512, shuffle=True, num_workers=2)
        bench.compare(f"raw 32x32 against {what}", 30 if floats else None, len(small), each, loose)
