"""Processes around a pack: killed, interrupted, forked; files changed, replaced and deleted under readers."""

from __future__ import annotations

import contextlib
import gc
import hashlib
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from itertools import count
from pathlib import Path

import numpy as np
import pytest
import torch
from running import killed_at_last, members_of, until
from torch.utils.data import DataLoader, get_worker_info

from packer import BuildOptions, PackedDataset, build_pack, collate, open_pack
from packer.errors import DamagedPack, UsageError
from packer.system import PORTABLE

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
HERE = Path(__file__).parent
ROOT = HERE.parent.parent


def script(*arguments: object, before: tuple[str, ...] = (), **options) -> subprocess.Popen[str]:
    command = [*before, sys.executable, "-W", "ignore", str(HERE / "worker_scripts.py"), *map(str, arguments)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    return subprocess.Popen(
        command, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)}, start_new_session=True, **pipes
    )


def digest(data: PackedDataset) -> str:
    """One text for all of a pack's images and labels."""
    state = hashlib.sha256()
    for image, target in (data[i] for i in range(len(data))):
        state.update(image.numpy().tobytes() + bytes([target]))
    return state.hexdigest()


def has_ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


# -- this process and its workers


def test_two_datasets_on_one_pack(make_pack, container):
    path = make_pack("raw", container)
    train, val = PackedDataset(path), PackedDataset(path)
    for i in range(len(train)):
        assert torch.equal(train[i][0], val[i][0])
    del train
    gc.collect()
    assert val[3][1] == 0
    loaders = [DataLoader(val, 5, num_workers=1, multiprocessing_context="fork", collate_fn=collate) for _ in range(2)]
    for (a, _), (b, _) in zip(*loaders, strict=True):
        assert torch.equal(a, b)


def test_eight_threads_share_a_dataset(make_pack):
    for kind in ("raw", "jpeg"):
        data = PackedDataset(make_pack(kind, "lmdb"))
        expected = digest(PackedDataset(make_pack(kind, "lmdb")))
        found: list[str] = []
        threads = [threading.Thread(target=lambda d=data, f=found: f.append(digest(d))) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == [expected] * 8


@pytest.mark.parametrize(
    ("leave", "persistent"),
    [("break", False), ("break", True), ("dropped", True), ("an error", False), ("never begun", True)],
)
def test_workers_end_with_the_loop(make_pack, leave, persistent):
    def train() -> list[int]:
        loader = DataLoader(
            PackedDataset(make_pack("raw", "lmdb")), 2, num_workers=2, persistent_workers=persistent,
            multiprocessing_context="fork",
        )  # fmt: skip
        batches = iter(loader)
        pids.extend(worker.pid for worker in batches._workers)
        if leave != "never begun":
            next(batches)
        if leave == "an error":
            raise ZeroDivisionError
        if leave == "break":
            for _ in batches:
                break

    gc.collect()
    pids: list[int] = []
    with contextlib.suppress(ZeroDivisionError):
        train()
    gc.collect()
    assert until(lambda: all(map(has_ended, pids)), 60)
    assert not set(members_of(os.getsid(0))) & set(pids)
    of_ours = tuple(f"torch_{pid}_" for pid in (os.getpid(), *pids))
    assert not [name for name in os.listdir("/dev/shm") if name.startswith(of_ours)]


class Drawn:
    """A transform that draws from every generator there is."""

    def __call__(self, image: torch.Tensor) -> torch.Tensor:
        info = get_worker_info()
        draws = [random.random(), np.random.random(), float(torch.rand(()))]
        return torch.tensor([*draws, float(info.id)], dtype=torch.float64)


def test_draws_in_workers_differ_and_can_be_repeated(make_pack):
    def epochs() -> list[torch.Tensor]:
        generator = torch.Generator().manual_seed(5)
        loader = DataLoader(
            PackedDataset(make_pack("raw", "lmdb"), Drawn()), 6, num_workers=2, multiprocessing_context="fork",
            generator=generator, collate_fn=collate,
        )  # fmt: skip
        return [torch.cat([images for images, _ in loader]) for _ in range(2)]

    first, again = epochs(), epochs()
    assert all(map(torch.equal, first, again))
    both = torch.cat(first)
    assert set(both[:, 3].tolist()) == {0.0, 1.0}
    for column in range(3):
        assert len(set(both[:, column].tolist())) == 48  # no two alike, in any worker or epoch


# -- other processes


def workers_at_work(process: subprocess.Popen[str]) -> list[int]:
    """The workers of a training that has begun."""
    pids = [int(pid) for pid in process.stdout.readline().split()]
    assert process.stdout.readline() == "training\n"
    return pids


def test_workers_end_when_the_main_process_is_killed(make_pack):
    with script("train", make_pack("raw", "lmdb"), 2) as process, killed_at_last(process):
        pids = workers_at_work(process)
        assert len(pids) == 2
        process.kill()
        process.wait(60)
        assert until(lambda: all(map(has_ended, pids)), 60)


@pytest.mark.parametrize("workers", [0, 2])
def test_ctrl_c(make_pack, workers):
    with script("train", make_pack("raw", "lmdb"), workers) as process, killed_at_last(process):
        pids = workers_at_work(process)
        os.killpg(process.pid, signal.SIGINT)
        process.communicate(timeout=240)  # alone 0.3 s; the epoch takes hours
        assert process.returncode == -signal.SIGINT  # as Python ends for it: 130 in a shell
        assert until(lambda: all(map(has_ended, pids)), 60)


@pytest.fixture(scope="module")
def ran(make_pack, tmp_path_factory):
    """What one process says that does what the next three tests look at, and its exit code."""
    home = tmp_path_factory.mktemp("ran")
    shutil.copytree(make_pack("raw", "webdataset"), home / "cut")
    source = make_pack("raw", "lmdb").parent / "source"
    build_pack(BuildOptions(str(source), str(home / "many"), "webdataset", workers=1, shard_bytes=500))
    with (
        script("one_after_another", make_pack("jpeg", "lmdb"), home / "many", home / "cut") as process,
        killed_at_last(process),
    ):
        out, err = process.communicate(timeout=240)
    return [*out.splitlines(), err], process.returncode, len(open_pack(home / "many").reader.shards)


def test_opencv_in_forked_children(ran):
    assert ran[0][0] == "fine", ran


@pytest.mark.skipif(PORTABLE, reason="each map of a file holds a descriptor")
def test_many_shards_and_few_descriptors(ran):
    said, _, shards = ran
    assert shards > 15 and said[1] == f"{shards} 24 24", said


# -- files that change


def test_a_shard_that_is_cut_while_it_is_mapped(ran):
    """The kernel ends the process that touches what is gone; no pixel is made up. torch reports a worker's end."""
    said, code, _ = ran
    assert said[2].startswith("RuntimeError DataLoader worker (pid") and "read" not in said[3:], said
    assert code == -signal.SIGBUS


def test_what_is_open_outlives_its_files(copied, make_pack, container):
    path = copied("raw", container)
    data, expected = PackedDataset(path), digest(PackedDataset(make_pack("raw", container)))
    data[0]
    shutil.rmtree(path)

    try:
        assert digest(data) == expected
    except DamagedPack as error:
        assert "is missing" in error.problem
    with pytest.raises(UsageError):
        PackedDataset(path)


@pytest.mark.skipif(PORTABLE, reason="two packs change places in two steps: between them there is none")
@pytest.mark.parametrize("container", ["lmdb", "webdataset"])
def test_readers_of_a_pack_that_is_being_replaced(make_pack, tmp_path, container):
    """Whole old, whole new, or an error that says so: never a mix."""
    source = make_pack("raw", "lmdb").parent / "source"
    packs = []
    for number in (1, 2):
        out = tmp_path / f"version{number}"
        build_pack(BuildOptions(str(source), str(out), container, workers=1, shuffle=number, shard_bytes=3000))
        packs.append(out)
    known = {digest(PackedDataset(pack)) for pack in packs}
    assert len(known) == 2
    current, stop, outcomes = tmp_path / "current", threading.Event(), []
    dice = random.Random(0)

    def has_read_both() -> bool:
        return known <= set(outcomes)

    def replace() -> None:
        here, there = packs
        here.rename(current)
        pause_s = 0.004
        try:
            for number in count():
                current.rename(here)
                there.rename(current)
                here, there = there, here
                time.sleep(dice.random() * pause_s)
                if number > 100:
                    if has_read_both() or pause_s > 10:
                        return
                    pause_s *= 1.1  # a busy machine does not get through a pack in less
        finally:
            stop.set()

    def read() -> None:
        while not stop.is_set():
            try:
                outcomes.append(digest(PackedDataset(current)))
            except (UsageError, DamagedPack) as error:
                outcomes.append(type(error).__name__)
            except BaseException as error:
                outcomes.append(f"{type(error).__name__}: {error}")

    threads = [threading.Thread(target=f) for f in (replace, read, read)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(outcomes) <= known | {"PackNotFound", "DamagedPack"} and has_read_both()
