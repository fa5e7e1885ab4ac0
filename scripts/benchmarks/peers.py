"""How fast `PackedLoader` is on the CPU next to other loaders of the same JPEG files, in the same rounds.

Each loader runs in a process of its own (peer_loaders.py), in an environment that is made once, some gigabytes
in all; only one works at a time. One that does not install or run is reported. FFCV is compiled: it needs a compiler,
pkg-config, OpenCV and libturbojpeg with their headers. SPDL needs FFmpeg's libraries.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import packer
from benchmarks.common import Table, against_goal, build, images
from benchmarks.loader import CROP, VIEWS, write_files
from packer.bench.measure import take_turns

BATCH = 256
TORCH, OPENCV = "torch==2.13.0", "opencv-python-headless==5.0.0.93"
VISION = ("torch==2.15.0", "torchvision==0.29.2")  # torchvision needs a torch that is built for CUDA

PEERS = {
    "ffcv": ("ffcv", TORCH, "pillow==13.0.0", "ffcv==1.0.2"),
    "dali": ("dali", TORCH, "nvidia-dali-cuda120==2.4.0"),
    "torchvision": ("torchvision", *VISION),
    "webdataset": ("webdataset", TORCH, OPENCV, "webdataset==1.0.2"),
    "streaming": ("torchvision", *VISION, OPENCV, "mosaicml-streaming==0.13.0"),
    "litdata": ("litdata", TORCH, OPENCV, "litdata==0.2.76"),
    "spdl": ("spdl", TORCH, OPENCV, "spdl==0.8.0"),
    "spdl-opencv": ("spdl", TORCH, OPENCV, "spdl==0.8.0"),
    "turboloader": ("webdataset", TORCH, "turboloader==2.39.0"),
}
"""By name of each loader: its environment, which may be shared, and what is installed there in this order."""
OF_BYTES = tuple(name for name in PEERS if name != "turboloader")
"""Those with batches of uint8."""


@dataclass(frozen=True)
class Work:
    """What is read: files made of images of a `source` of common.py, resized by `build` if there are options."""

    name: str
    kind: str
    goal: float
    batches: int
    source: str
    options: dict[str, str] = field(default_factory=dict)
    peers: tuple[str, ...] = OF_BYTES
    epochs: int = 1
    native_goals: dict[str, float] = field(default_factory=dict)
    beside: tuple[str, str, float] | None = None
    """What packer reads, too: its name in the table, its kind, and the least share of that rate."""

    def files(self, home: Path, data: Path, photos: int, count: int) -> Path:
        """Write the files, `count` in all, of `photos` images, or those of `data` as they are."""
        if self.options:
            images(self.source, data, home / "large", photos)
            pack = build(home / "large", home / "pack", encode="jpeg", **self.options)
            data = home / "small"
            write_files(pack, data / self.source)
        images(self.source, data, home / "files", count)
        return home / "files"


RESIZED = {"resize": "256"}
WORKS = (
    Work(CROP, "crop", 1.8, 40, "photos", RESIZED, native_goals={"ffcv": 3, "dali": 4}),
    Work("JPEG 32 px, whole images", "whole", 2.5, 200, "cifar"),
    Work(
        f"{CROP}, float32", "floats", 2.5, 40, "photos", RESIZED, ("turboloader",),
        native_goals={"turboloader": 2.5}, beside=("uint8", "crop", 0.75),
    ),
    Work(VIEWS, "views", 6, 8, "photos", {"resize": "500"}, ("torchvision",)),
    Work("raw 224 px", "raw", 2.3, 16, "photos", {"resize": "224", "fit": "crop"}, ("ffcv",), 10),
)  # fmt: skip


def last_error(text: str) -> str:
    """Return the line of an installer's or a program's messages that says best what went wrong."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if re.match(r"(\w+\.)*\w*Error: ", line) or "fatal error" in line]
    return (errors or lines or ["no message"])[-1][:300]


def python_of(name: str, root: Path) -> str:
    """Return the interpreter of a loader's environment, where what is missing gets installed.

    Raises:
        RuntimeError: If something cannot be installed.
    """
    environment, *requirements = PEERS[name]
    home = (root / environment).absolute()
    python, done = home / "bin" / "python", home / "installed.txt"
    if not done.exists():
        venv.create(home, with_pip=True)
        done.touch()
    missing = [each for each in requirements if each not in done.read_text().split()]
    if missing:
        print(f"installing {' '.join(missing)} into {home}", file=sys.stderr)
        words = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *missing]
        run = subprocess.run(words, check=False, capture_output=True, text=True)
        if run.returncode:
            raise RuntimeError(f"not installed: {last_error(run.stderr)}")
        done.write_text("\n".join([done.read_text(), *missing]))
    return str(python)


@contextmanager
def reader(python: str, words: list[str], errors: Path) -> Iterator[Callable[[int], int]]:
    """Start peer_loaders.py; yield what has it read a number of epochs and returns the number of images."""
    script = str(Path(__file__).with_name("peer_loaders.py"))
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with errors.open("w") as log, subprocess.Popen([python, script, *words], stderr=log, **pipes) as child:

        def read(epochs: int) -> int:
            try:
                print(epochs, file=child.stdin, flush=True)
                return int(child.stdout.readline() if child.stdout else "")
            except (OSError, ValueError):
                raise RuntimeError(f"does not run: {last_error(errors.read_text())}") from None

        yield read  # the process ends with its input


def measure(work: Work, files: Path, count: int, given: argparse.Namespace) -> None:
    """Print a table of one kind of work, and who is missing in it."""
    home, works, missing = files.parent, {}, []
    ours_too = ("packer", "packer-fast") if given.native else ()
    beside, kind, least = work.beside or ("", "", 0)
    peers = [peer for peer in work.peers if not given.only or peer in given.only]
    with ExitStack() as processes:
        for name in (given.ours, *ours_too, *([beside] if beside else []), *peers):
            try:
                python = python_of(name, given.environments) if name in PEERS else sys.executable
                what = (given.ours, kind) if name == beside else (name, work.kind)
                words = [*what, str(files), str(home / name)]
                read = processes.enter_context(reader(python, words, home / f"{name}.log"))
                if (number := read(1)) != count:
                    raise RuntimeError(f"reads {number} images instead of {count}")
            except RuntimeError as error:
                missing.append(f"{name}: {error}")
            else:
                works[name] = partial(read, work.epochs)
        rates = {name: each.per_second(count * work.epochs) for name, each in take_turns(works, given.rounds).items()}
    for line in missing:
        print(f"{line}\n")
    ours = rates.pop(given.ours)
    table = Table(work.name, "versions", "goal", f"{given.ours} against it", "images/s")
    table.row(f"**{given.ours}**", packer.__version__, "", "", ours.text(0))
    if beside in rates:
        rate = rates.pop(beside)
        table.row(f"{given.ours}, {beside}", packer.__version__, *against_goal(ours / rate, least), rate.text(0))
    for place, (name, rate) in enumerate(sorted(rates.items(), key=lambda item: -item[1].median)):
        goal = work.native_goals.get(name) if given.native else None if place else work.goal
        versions = " ".join(PEERS[name][1:]).replace("==", " ") if name in PEERS else packer.__version__
        table.row(name, versions, *against_goal(ours / rate, goal), rate.text(0))
    print()


def options(parser: Any) -> None:
    parser.add_argument("--environments", type=Path, default=Path(".venv-peers"), help="their folder [%(default)s]")
    parser.add_argument("--only", default=(), nargs="+", choices=PEERS, metavar="PEER", help="only these")
    native = "packer with the native decoder and an index of the JPEGs, and without them; not the raw images"
    parser.add_argument("--native", action="store_true", help=native)
    parser.add_argument("--photos", type=int, default=500, help="different photos among the images [%(default)s]")
    parser.add_argument("--share", type=float, default=1, help="share of the images to read [%(default)s]")


def run(given: Any) -> None:
    """Print a table for each kind of work."""
    given.ours = "packer-fast-index" if given.native else "packer"
    for work in WORKS[:3] if given.native else WORKS:
        if given.only and not set(given.only) & set(work.peers):
            continue
        home = given.home / work.kind
        home.mkdir()
        count = BATCH * max(2, round(work.batches * given.share))
        measure(work, work.files(home, given.data, given.photos, count), count, given)
        shutil.rmtree(home)
