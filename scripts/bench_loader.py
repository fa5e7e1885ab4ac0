"""How fast `PackedLoader` is on the CPU, each kind of work against a bare loop of the same in the same run.

The bare loops have no order, no checks, no targets and no queue: two threads, each with memory of its own that it fills
again and again. Rounds are interleaved; the median of the ratios stands first, then the lowest and highest.
"""

from __future__ import annotations

import argparse
import gc
import os
import resource
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import simplejpeg
import torch
from bench_read import write_tiny_pack
from torch.utils.data import DataLoader, Dataset

from packer import BuildOptions, PackedLoader, RandomResizedCrop, build_pack
from packer.format.pack import Pack, open_pack
from packer.loading import pipeline
from packer.loading.gather import as_tensor, overlapping_rows

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"
THREADS = 2


def in_threads(work: Callable[[int], None]) -> None:
    """Run work(0), work(1), ... at once."""
    threads = [threading.Thread(target=work, args=(i,)) for i in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def rate(images: int, work: Callable[[], Any]) -> float:
    started = time.perf_counter()
    work()
    return images / (time.perf_counter() - started)


def drain(loader: Any) -> None:
    for _ in loader:
        pass


class Bench:
    """Prints one line for each comparison."""

    def __init__(self, rounds: int, only: str) -> None:
        self.rounds, self.only = rounds, only
        print(f"{'images/s':>98}")
        print(f"{'work':<46} {'ratio':>6} {'(lowest to highest)':<19} {'goal':>5} {'packer':>10} {'limit':>10}")

    def compare(self, name: str, goal: float, images: int, ours: Callable[[], Any], limit: Callable[[], Any]) -> None:
        """Ratio of our rate to the limit's."""
        if self.only not in name:
            return
        ratios, rates, limits = [], [], []
        for number in range(self.rounds + 1):
            a, b = rate(images, limit), rate(images, ours)
            if number:  # the first round touches and checks every record
                limits.append(a)
                rates.append(b)
                ratios.append(b / a)
        spread = f"({min(ratios):.2f} to {max(ratios):.2f})"
        middle = statistics.median
        print(
            f"{name:<46} {middle(ratios):6.2f} {spread:<19} {goal:5.2f} {middle(rates):10,.0f} {middle(limits):10,.0f}",
            flush=True,
        )


def bare_gather(pack: Pack, batch: int) -> Callable[[], None]:
    """Two threads, each gathering half of the batches of a shuffled epoch."""
    assert pack.record_bytes is not None
    rows = overlapping_rows(as_tensor(pack.region.parts[0]), pack.record_bytes)
    order = torch.from_numpy(pack.offsets[np.random.default_rng(0).permutation(len(pack))])
    buffers = [[torch.empty(batch, pack.record_bytes, dtype=torch.uint8) for _ in range(3)] for _ in range(THREADS)]

    def work(number: int) -> None:
        torch.get_num_threads()
        torch.set_num_threads(1)
        for i, start in enumerate(range(number * batch, len(order), THREADS * batch)):
            offsets = order[start : start + batch]
            torch.index_select(rows, 0, offsets, out=buffers[number][i % 3][: len(offsets)])

    def run() -> None:
        threads = torch.get_num_threads()
        in_threads(work)
        torch.set_num_threads(threads)

    return run


def bare_crops(files: list[bytes], size: int) -> Callable[[], None]:
    """Two threads: simplejpeg, a random crop, OpenCV's linear resize into the row."""

    def work(number: int) -> None:
        random = np.random.default_rng(number)
        batch = np.empty((256, size, size, 3), np.uint8)
        for i in range(number, len(files), THREADS):
            image = simplejpeg.decode_jpeg(files[i])
            height, width = image.shape[:2]
            share, ratio = random.uniform(0.08, 1), np.exp(random.uniform(np.log(3 / 4), np.log(4 / 3)))
            w = min(width, max(1, round((width * height * share * ratio) ** 0.5)))
            h = min(height, max(1, round((width * height * share / ratio) ** 0.5)))
            x, y = random.integers(0, width - w + 1), random.integers(0, height - h + 1)
            cv2.resize(image[y : y + h, x : x + w], (size, size), dst=batch[i % 256], interpolation=cv2.INTER_LINEAR)

    return lambda: in_threads(work)


def bare_decode(files: list[bytes]) -> Callable[[], None]:
    """Two threads that decode and nothing else."""

    def work(number: int) -> None:
        for i in range(number, len(files), THREADS):
            simplejpeg.decode_jpeg(files[i])

    return lambda: in_threads(work)


class Folder(Dataset[tuple[torch.Tensor, int]]):
    """Loose files as torchvision's ImageFolder reads them: PIL, RandomResizedCrop, flip, ToTensor.

    With `floats` off it hands over bytes, as the loader does, which leaves the rest to the GPU.
    """

    def __init__(self, paths: list[str], size: int, crop: bool, floats: bool) -> None:
        self.paths, self.size, self.crop, self.floats = paths, size, crop, floats

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        from PIL import Image

        with Image.open(self.paths[index]) as file:
            image = file.convert("RGB")
        if self.crop:
            width, height = image.size
            share, ratio = np.random.uniform(0.08, 1), np.exp(np.random.uniform(np.log(3 / 4), np.log(4 / 3)))
            w = min(width, max(1, round((width * height * share * ratio) ** 0.5)))
            h = min(height, max(1, round((width * height * share / ratio) ** 0.5)))
            x, y = np.random.randint(0, width - w + 1), np.random.randint(0, height - h + 1)
            image = image.resize((self.size, self.size), Image.Resampling.BILINEAR, box=(x, y, x + w, y + h))
            if np.random.random() < 0.5:
                image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        tensor = torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()
        return tensor.to(torch.float32).div_(255) if self.floats else tensor, 0


def copies(source: Path, target: Path, count: int) -> list[str]:
    """`count` JPEGs in class folders: those of `source` repeated, or drawn ones where it is absent."""
    target.mkdir()
    found = sorted(p for p in source.rglob("*") if p.suffix.lower() in (".jpg", ".jpeg")) if source.is_dir() else []
    if not found:
        random = np.random.default_rng(0)
        side = 32 if "cifar" in source.name else 300
        found = [target.parent / f"{target.name}-{i}.jpg" for i in range(50)]
        for path in found:
            small = random.integers(0, 256, (side // 8, side // 8, 3), np.uint8)
            path.write_bytes(simplejpeg.encode_jpeg(cv2.resize(small, (side, side))))
    for number in range(count):
        origin = found[number % len(found)]
        folder = target / f"class{number % 10}"
        folder.mkdir(exist_ok=True)
        shutil.copyfile(origin, folder / f"{number:06d}.jpg")
    return sorted(str(p) for p in target.glob("*/*"))


def build(source: Path, out: Path, **options: Any) -> Pack:
    build_pack(BuildOptions(source=str(source), out=str(out), labels=("folder",), **options))
    return open_pack(out)


def records(pack: Pack) -> list[bytes]:
    return [bytes(pack.record(i)) for i in range(len(pack))]


def loader_of(pack: Pack, batch: int, **options: Any) -> PackedLoader:
    return PackedLoader(pack, batch, shuffle=True, threads=THREADS, **options)


def growth(loader: PackedLoader) -> float:
    """How much the memory of the process grows from the second to the twentieth epoch, as a share."""
    sizes = []
    for _ in range(20):
        drain(loader)
        with open("/proc/self/statm") as file:
            sizes.append(int(file.read().split()[1]))
    return sizes[-1] / sizes[1] - 1


def drop_from_memory(path: str) -> None:
    """Take the pack out of the page cache; nothing may have it mapped."""
    for entry in os.scandir(path):
        with open(entry, "rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def cold(path: str, ahead: bool) -> Callable[[], None]:
    """A shuffled epoch from the disk, with the loader's read-ahead or without."""

    def run() -> None:
        announced = pipeline.announced
        if not ahead:
            pipeline.announced = lambda batches, pack: iter(batches)
        drain(loader_of(open_pack(path), 256))
        pipeline.announced = announced
        gc.collect()
        drop_from_memory(path)

    return run


def first_batch(path: Path, records: int) -> list[float]:
    """Seconds from the call of iter() to the first batch of a pack of many records, each time a new loader."""
    write_tiny_pack(path, "tfrecord", records)
    seconds = []
    for _ in range(7):
        loader = loader_of(open_pack(path), 256)
        started = time.perf_counter()
        next(iter(loader))
        seconds.append(time.perf_counter() - started)
    return seconds


def raw_large(bench: Bench, path: Path) -> None:
    """Raw 224x224: warm, with and without checksums, and from a cold disk."""

    def warm() -> int:
        pack = open_pack(path)
        loader, unchecked = loader_of(pack, 256), loader_of(pack, 256, verify=False)
        bench.compare("raw 224x224, batch 256", 0.9, len(pack), lambda: drain(loader), bare_gather(pack, 256))
        name = "checksums (second epoch on) against none"
        bench.compare(name, 0.99, len(pack), lambda: drain(loader), lambda: drain(unchecked))
        return len(pack)

    images = warm()
    gc.collect()  # no map may be left
    drop_from_memory(str(path))
    bench.compare("cold disk: read-ahead against none", 1, images, cold(str(path), True), cold(str(path), False))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=SHARED, help="has folder_cifar10/ and photos/ [%(default)s]")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", default="", metavar="TEXT", help="only work whose name has this in it")
    parser.add_argument("--photos", type=int, default=5000)
    parser.add_argument("--small", type=int, default=100_000, help="images of 32x32")
    parser.add_argument("--records", type=int, default=1_000_000, help="of the pack whose first batch is awaited")
    given = parser.parse_args()
    cv2.setNumThreads(0)
    bench = Bench(given.rounds, given.only)
    with tempfile.TemporaryDirectory(prefix="bench-loader-") as folder:
        home = Path(folder)
        photos = copies(given.data / "photos", home / "photos", given.photos)
        small = copies(given.data / "folder_cifar10", home / "small", given.small)
        sizes: dict[str, Any] = {"resize": "224", "fit": "crop"}
        build(home / "photos", home / "raw224", **sizes)
        large_jpeg = build(home / "photos", home / "jpeg256", resize="256", encode="jpeg")
        small_jpeg = build(home / "small", home / "jpeg32", encode="jpeg")

        raw_large(bench, home / "raw224")
        for name in ("lmdb", "hdf5", "tfrecord", "webdataset"):
            pack = build(home / "small", home / name, format=name)
            each = loader_of(pack, 512)
            bench.compare(f"raw 32x32, batch 512, {name}", 0.8, len(pack), lambda: drain(each), bare_gather(pack, 512))  # noqa: B023
        crops = loader_of(large_jpeg, 256, crop=RandomResizedCrop(224), flip=True)
        linear = loader_of(large_jpeg, 256, crop=RandomResizedCrop(224, interpolation="linear"), flip=True)
        limit = bare_crops(records(large_jpeg), 224)
        name = "JPEG 256 px, RandomResizedCrop(224) + flip"
        bench.compare(f"{name}, linear", 0.9, len(large_jpeg), lambda: drain(linear), limit)
        bench.compare(f"{name}, area against linear", 0.8, len(large_jpeg), lambda: drain(crops), lambda: drain(linear))
        tiny = loader_of(small_jpeg, 512)
        limit = bare_decode(records(small_jpeg))
        bench.compare("JPEG 32x32, batch 512", 0.5, len(small_jpeg), lambda: drain(tiny), limit)

        jpegs = [str(home / f"{i}.jpg") for i in range(len(large_jpeg))]
        for path, data in zip(jpegs, records(large_jpeg), strict=True):
            Path(path).write_bytes(data)
        each = loader_of(open_pack(home / "lmdb"), 512)
        for floats, what in ((True, "ImageFolder-like"), (False, "the same, bytes")):
            plain = DataLoader(Folder(jpegs, 224, True, floats), 256, shuffle=True, num_workers=2)
            name = f"JPEG against {what}, 2 workers"
            bench.compare(name, 3, len(jpegs), lambda: drain(linear), lambda: drain(plain))  # noqa: B023
            loose = DataLoader(Folder(small, 32, False, floats), 512, shuffle=True, num_workers=2)
            name = f"raw 32x32 against {what}, 2 workers"
            bench.compare(name, 30, len(small), lambda: drain(each), lambda: drain(loose))  # noqa: B023

        print(f"memory over 20 epochs, from the second on: {growth(crops):+.2%} (goal: under 2 %)")
        first = first_batch(home / "many", given.records)
        spread = f"{min(first):.3f} to {max(first):.3f}"
        print(f"first batch of {given.records} records: {statistics.median(first):.3f} s ({spread}; goal: under 0.3 s)")
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
        print(f"{os.cpu_count()} cores, {len(photos)} photos, {len(small)} small images, peak memory {peak} MB")


if __name__ == "__main__":
    main()
