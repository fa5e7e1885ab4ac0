"""How fast `packer build` packs, against bare loops of the same work in the same run.

CIFAR-like: files of 32x32 to raw, against two processes that read and decode with Pillow and keep nothing, and against
two threads of simplejpeg. Photos: to 256 px JPEG, against processes that decode, resize and encode the same pixels.
The bare loops write nothing, check nothing and know no labels: what packer adds is all that lies between.

Archives: a zip and a tar of the small files, against packer on the folder that they hold.
"""

from __future__ import annotations

import io
import multiprocessing
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import cv2
import simplejpeg
from PIL import Image

from benchmarks.common import Table, images
from packer import BuildOptions, build_pack
from packer.bench.measure import take_turns
from packer.containers import CONTAINERS
from packer.system import usable_cores

PARTS = 20
"""Parts per process or thread: none waits long for the other at the end."""


def contents(paths: list[str]) -> Iterator[bytes]:
    """Yield the bytes of files."""
    for path in paths:
        with open(path, "rb") as file:
            yield file.read()


def pillow(paths: list[str]) -> int:
    """Read and decode with Pillow, and keep nothing."""
    return sum(len(Image.open(io.BytesIO(data)).convert("RGB").tobytes()) for data in contents(paths))


def turbo(paths: list[str]) -> int:
    """Read and decode with simplejpeg, and keep nothing."""
    return sum(len(simplejpeg.decode_jpeg(data)) for data in contents(paths))


def smaller(paths: list[str]) -> int:
    """Decode, resize by area and encode, as fast as the libraries allow, to the same pixels as packer.

    Scaled decode by the rule of packer.images: at 1/2, 1/4 or 1/8 if that is still twice the wanted size.
    """
    cv2.setNumThreads(0)
    total = 0
    for data in contents(paths):
        height, width, _, _ = simplejpeg.decode_jpeg_header(data)
        scale = 256 / min(width, height)
        size = (max(1, round(width * scale)), max(1, round(height * scale)))
        factor = next((f for f in (8, 4, 2) if width >= 2 * f * size[0] and height >= 2 * f * size[1]), 1)
        least = (-(-height // factor), -(-width // factor)) if factor > 1 else (0, 0)
        image = simplejpeg.decode_jpeg(data, min_height=least[0], min_width=least[1], min_factor=factor)
        image = cv2.resize(image, size, interpolation=cv2.INTER_AREA if scale < 1 else cv2.INTER_LINEAR)
        total += len(simplejpeg.encode_jpeg(image, quality=90, colorsubsampling="420"))
    return total


def spread(pool: Executor, work: Callable[[list[str]], int], paths: list[str], count: int) -> None:
    """Spread the paths over processes or threads."""
    with pool:
        sum(pool.map(work, [paths[i :: count * PARTS] for i in range(count * PARTS)]))


def processes(count: int) -> Executor:
    """Return processes that are forked: ready at once."""
    return ProcessPoolExecutor(count, multiprocessing.get_context("fork"))


Loops = dict[str, tuple[Callable[[], Any], float]]
"""By name: a bare loop, and the goal for packer's rate divided by its rate."""


def compare(table: Table, what: str, paths: list[str], bare: Loops, given: Any, **options: Any) -> None:
    """Measure each container against each bare loop, all in the same rounds; print a row for each pair."""
    source, out = Path(paths[0]).parents[1], given.home / "pack"

    def build(container: str) -> None:
        made = BuildOptions(str(source), str(out), container, overwrite=True, workers=given.workers, **options)
        build_pack(made)

    works = {name: work for name, (work, _) in bare.items()}
    seconds = take_turns({**works, **{name: partial(build, name) for name in given.formats}}, given.rounds)
    for container in given.formats:
        for name, (_, goal) in bare.items():
            rate, limit = seconds[container].per_second(len(paths)), seconds[name].per_second(len(paths))
            table.rates(f"{what}, {container}, against {name}", goal, rate, limit)


def archives(table: Table, paths: list[str], given: Any) -> None:
    """Measure packs of the small files in archives against that of their folder; print a row for each archive."""
    folder = Path(paths[0]).parents[1]
    sources = {name: folder.with_name(f"cifar.{name}") for name in ("zip", "tar")}
    with zipfile.ZipFile(sources["zip"], "w") as stored:
        for path in paths:
            stored.write(path, Path(path).relative_to(folder))
    with tarfile.open(sources["tar"], "w", format=tarfile.GNU_FORMAT) as tar:
        tar.add(folder, ".")

    def build(source: Path) -> None:
        out = str(folder.with_name("pack"))
        build_pack(BuildOptions(str(source), out, labels=("folder",), overwrite=True, workers=given.workers))

    what = f"{len(paths):,} files of 32x32 in a {{}}, against the folder"
    works = {what.format(name): partial(build, source) for name, source in sources.items()}
    table.against(1.0, len(paths), partial(build, folder), works, given.rounds)


def options(parser: Any) -> None:
    parser.add_argument("--cifar", type=int, default=50_000, help="files of 32x32; 0: none [%(default)s]")
    parser.add_argument("--photos", type=int, default=2000, help="photos; 0: none [%(default)s]")
    parser.add_argument("--workers", type=int, default=usable_cores())
    parser.add_argument("--formats", nargs="*", default=list(CONTAINERS), choices=CONTAINERS)


def run(given: Any) -> None:
    table = Table("build", "goal", "ratio", "packer, images/s", "bare loop, images/s")
    if given.cifar:
        paths = images("cifar", given.data, given.home / "cifar", given.cifar)
        loops = {
            "2 processes of Pillow": (lambda: spread(processes(2), pillow, paths, 2), 1.2),
            "2 threads of simplejpeg": (lambda: spread(ThreadPoolExecutor(2), turbo, paths, 2), 0.35),
        }
        what = f"{given.cifar:,} files of 32x32 to raw"
        if given.formats:
            compare(table, what, paths, loops, given, labels=("folder",))
        archives(table, paths, given)
    if given.photos:
        photos = images("photos", given.data, given.home / "photos", given.photos)
        count = given.workers
        bare = {f"{count} bare processes": (lambda: spread(processes(count), smaller, photos, count), 0.92)}
        what = f"{given.photos:,} photos to 256 px JPEG"
        compare(table, what, photos, bare, given, labels=("none",), resize="256", encode="jpeg")
