"""Loaders that are stopped at every position, whose workers die, and that are opened until something would leak."""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from itertools import islice, product
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from PIL import Image
from running import anonymous_bytes, kept_bytes
from torch.utils.data import DataLoader, Dataset

from packer import BuildOptions, Pack, PackedDataset, PackedLoader, RandomResizedCrop, build_pack, collate, open_pack
from packer.samplers import ShuffleSampler

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")

RECORDS = 97
EPOCH = 3
THREADS = (1, 2, 4)
WORLDS = range(1, 9)
PAGE = os.sysconf("SC_PAGE_SIZE")


@pytest.fixture(scope="module")
def pack_of(tmp_path_factory: pytest.TempPathFactory):
    """97 images of noise in three classes, in several shards, by container and encoding."""
    home = tmp_path_factory.mktemp("packs")
    dice = np.random.default_rng(0)
    for number in range(RECORDS):
        folder = home / "source" / ("ant", "bee", "cat")[number % 3]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(dice.integers(0, 256, (16, 16, 3), dtype=np.uint8)).save(folder / f"{number:03d}.png")

    def of(container: str, encode: str = "raw") -> Path:
        out = home / f"{encode}.{container}"
        if not out.exists():
            source = str(home / "source")
            build_pack(BuildOptions(source, str(out), container, workers=1, encode=encode, shard_bytes=20_000))
        return out

    return of


# -- resume positions

Sample = tuple[bytes, int]


def samples(batches: Iterable[Any]) -> list[Sample]:
    """Every sample that comes: the bytes of its image, and its label."""
    return [(i.numpy().tobytes(), int(t)) for images, targets in batches for i, t in zip(images, targets, strict=True)]


def loader_of(pack: Pack, threads: int, rank: int, world: int, state: Any = None) -> PackedLoader:
    """One rank's loader, one sample a batch, so that every position can be a state's; cropped and flipped at random."""
    sampler = ShuffleSampler(pack, 1, rank=rank, world_size=world)
    loader = PackedLoader(pack, 1, sampler=sampler, crop=RandomResizedCrop(8), flip=True, threads=threads)
    if state is not None:
        loader.load_state_dict(json.loads(json.dumps(state)))
    loader.set_epoch(EPOCH)  # what is left of it, even if that is nothing
    return loader


def part(loader: PackedLoader, count: int) -> tuple[list[Sample], dict[str, Any]]:
    """What comes in so many batches, and the state then."""
    iteration = iter(loader)
    got, state = samples(islice(iteration, count)), loader.state_dict()
    iteration.close()  # type: ignore[attr-defined]
    return got, state


@pytest.mark.parametrize(("container", "encode"), [("lmdb", "raw"), ("webdataset", "jpeg")])
def test_resume_positions(container: str, encode: str, pack_of, torture) -> None:
    """Stop each rank after some batches, resume, stop, resume twice more: the order is that of an undisturbed epoch."""
    pack = open_pack(pack_of(container, encode))

    @cache
    def undisturbed(rank: int, world: int) -> tuple[list[Sample], list[Sample]]:
        loader = loader_of(pack, 1, rank, world)
        return samples(loader), samples(loader)

    def run(threads: int, world: int, position: int) -> str:
        for rank in range(world):
            whole, following = undisturbed(rank, world)
            got, state = part(loader_of(pack, threads, rank, world), position)
            for number in (2, 3):  # with other numbers of threads
                loader = loader_of(pack, THREADS[(number + threads) % 3], rank, world, state)
                more, state = part(loader, (len(whole) - len(got)) // number)
                got += more
            loader = loader_of(pack, threads, rank, world, state)
            got += samples(loader)
            assert got == whole, f"rank {rank}: another order or other images"
            assert position % 7 or samples(loader) == following, f"rank {rank}: the next epoch is not whole"
        steps = zip(*(undisturbed(rank, world)[0] for rank in range(world)), strict=True)
        assert [sample for step in steps for sample in step][:RECORDS] == undisturbed(0, 1)[0]
        return f"{world} ranks"

    cases = [(n, world, at) for world in WORLDS for n in THREADS for at in range(-(-RECORDS // world) + 1)]
    ends = [(2, world, at) for world in (1, 8) for at in (0, 1, -(-RECORDS // world) - 1, -(-RECORDS // world))]
    torture.each(cases, run, 10, always=ends)


# -- epochs that are left early

LEFT = ("break", "close", "error", "next")


def leave(loader: PackedLoader, way: str, position: int) -> None:
    """Begin an epoch, and leave it after so many batches."""
    iteration: Any = iter(loader)
    if way == "next":
        next(iteration)
    elif way == "close":
        list(islice(iteration, position))
        iteration.close()
    elif way == "break":
        for number, _ in enumerate(loader):
            if number == position:
                break
    else:
        with suppress(ZeroDivisionError):
            for number, _ in enumerate(loader):
                number // (number - position)


def test_epochs_left_early(pack_of, torture) -> None:
    """Leave epochs at random, and begin the next at once, with OpenCV at work in the loader's threads and another."""
    picture = np.zeros((400, 400, 3), np.uint8)

    def transform(image: Any) -> Any:
        cv2.resize(picture, (350, 350))  # large enough for OpenCV's own threads
        return image

    def another(done: threading.Event) -> None:
        while not done.is_set():
            cv2.resize(picture, (350, 350))

    def run(encode: str, way: str, threads: int) -> str:
        dice = np.random.default_rng([torture.seed, threads])
        loader = PackedLoader(pack_of("lmdb", encode), 4, flip=True, threads=threads, transform=transform)
        whole = samples(loader)
        done, before = threading.Event(), cv2.getNumThreads()
        mine = threading.Thread(target=another, args=(done,))
        mine.start()
        try:
            for position in dice.integers(0, 24, 20).tolist():
                leave(loader, way, position)
        finally:
            done.set()
            mine.join()
        loader.set_epoch(0)
        assert samples(loader) == whole, "another epoch after those that were left"
        assert cv2.getNumThreads() == before, "another number of OpenCV's threads"
        return way

    torture.each(list(product(("raw", "jpeg", "png"), LEFT, THREADS)), run, few=6, apart=True)


# -- worker deaths

WAYS = {"kill": "SIGKILL", "crash": "SIGSEGV", "exit": "exit", "leave": "SystemExit"}


class Mortal(Dataset[Any]):
    """A dataset whose worker dies over one of its samples."""

    def __init__(self, pack: Path, way: str, fatal: int) -> None:
        self.data, self.way, self.fatal = PackedDataset(pack), way, fatal

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> Any:
        if index == self.fatal:
            if self.way == "leave":
                sys.exit(3)
            if self.way == "exit":
                os._exit(7)
            number = signal.SIGKILL if self.way == "kill" else signal.SIGSEGV
            if self.way == "crash":
                signal.signal(number, signal.SIG_DFL)  # torch's handler prints
            os.kill(os.getpid(), number)
        return self.data[index]


@contextmanager
def within(seconds: int) -> Iterator[None]:
    """Raise TimeoutError if the block takes longer."""

    def ring(*_: object) -> None:
        raise TimeoutError(f"nothing for {seconds} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


# torch's handler of SIGCHLD raises wherever the process is, also between the two lines of multiprocessing that open a
# socket to the worker and take hold of it, or where nobody can catch it, as in a callback of the garbage collector
@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_worker_deaths(pack_of, torture) -> None:
    """torch's DataLoader over a PackedDataset says that a worker died, and does not hang."""
    pack = pack_of("lmdb")

    def run(method: str, way: str, fatal: int, persistent: bool) -> str:
        data = Mortal(pack, way, fatal)
        loader = DataLoader(
            data, 7, num_workers=2, persistent_workers=persistent, collate_fn=collate, multiprocessing_context=method
        )
        with within(240), pytest.raises(RuntimeError, match=r"DataLoader worker \(pid"):
            samples(loader)
        return method

    # over the first batch of a worker: torch reads earlier ones out of the memory of the dead one, or fails to
    first = [("fork", way, 4 * n, bool(n % 2)) for n, way in enumerate(WAYS)]
    torture.each([*first, *product(("forkserver", "spawn"), WAYS, range(14), (True, False))], run, 1, always=first)
    gc.collect()  # what is left of the sockets, while their warning is ignored


# -- leaks


@pytest.mark.parametrize("container", ["lmdb", "webdataset"])  # one code reads all: with pages between, and without
def test_opening_leaves_nothing(container: str, pack_of, torture) -> None:
    """Open, read and close a pack many times: no descriptor is left, and memory stays."""

    def use() -> None:
        data = PackedDataset(pack_of(container))
        data.__getitems__([0, 50, 96])
        _ = data[3], data.targets[1], data.labels, data.keys, data.pack.annotation(96)

    def growth(times: int) -> tuple[int, int]:
        """Bytes and descriptors that so many more openings leave."""
        before = kept_bytes(), len(os.listdir("/proc/self/fd"))
        for _ in range(times):
            use()
        return kept_bytes() - before[0], len(os.listdir("/proc/self/fd")) - before[1]

    def run(_: int) -> str:
        # a leak grows in every round, what other threads and the heap take or give back now and then does not
        rounds = [growth(40)]
        while (rounds[-1][0] > 40 * PAGE or rounds[-1][1] < 0) and len(rounds) < 6:
            rounds.append(growth(40))
        assert rounds[-1][0] <= 40 * PAGE, rounds
        assert rounds[-1][1] == max(descriptors for _, descriptors in rounds) == 0, rounds
        return "40 openings that leave nothing"

    growth(80)
    torture.each([(number,) for number in range(250)], run, 1)


def test_workers_take_no_more_memory_with_each_epoch(pack_of, torture) -> None:
    """Of a DataLoader's persistent workers, after the third epoch: less than 2 % more."""
    data = PackedDataset(pack_of("lmdb", "jpeg"))

    def run(_: int) -> str:
        workers: Any = DataLoader(
            data, 8, shuffle=True, num_workers=2, persistent_workers=True, collate_fn=collate,
            multiprocessing_context="fork",
        )  # fmt: skip
        sizes = []
        for _ in range(20):
            for _ in workers:
                pass
            sizes.append([anonymous_bytes(worker.pid) for worker in workers._iterator._workers])
        workers._iterator._shutdown_workers()
        for before, after in zip(sizes[2], sizes[-1], strict=True):
            assert after < 1.02 * before
        return "20 epochs without growth"

    torture.each([(number,) for number in range(10)], run, 1)
