"""What a loader leaves behind, measures of itself, and does beside others: leaks, threads, forks, stats."""

from __future__ import annotations

import gc
import os
import threading
import time
import weakref

import cv2
import numpy as np
import pytest
import torch
from loader_packs import RECORDS, alike
from running import Threads, forked, kept_bytes, run_script, until
from torch.utils.data import DataLoader

from packer import PackedDataset, PackedLoader, RandomResizedCrop, collate
from packer.loading import loader_threads
from packer.loading.fill import Gather
from packer.loading.loader_threads import can_help

OPTIONS = {"shuffle": True, "crop": RandomResizedCrop(8), "flip": True, "seed": 0, "threads": 2}


pytestmark = pytest.mark.usefixtures("blocks")
ELSEWHERE = pytest.mark.parametrize("blocks", ["in blocks"], indirect=True)
"""Of a test in a process of its own, where `blocks` changes nothing."""


def descriptors():
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("kind", ["jpeg", "boxes"])
def test_twenty_epochs_take_no_more_memory_than_two(pack, kind):
    new, loader = Threads(), PackedLoader(pack(kind), 4, **OPTIONS, mean=(0.5,) * 3, std=(0.5,) * 3)

    def growth(epochs):
        """Bytes and descriptors that so many more epochs leave."""
        before = kept_bytes(), descriptors()
        for epoch in range(epochs):
            loader.set_epoch(epoch)
            for number, _ in enumerate(loader):
                if epoch % 3 == 1 and number == 2:
                    break
        gc.collect()
        assert until(lambda: descriptors() <= before[1] and not new, 60)
        return kept_bytes() - before[0]

    growth(3)
    # a leak grows in every round, what threads and the heap take now and then does not
    rounds = [growth(18)]
    while rounds[-1] > 128 << 10 and len(rounds) < 8:
        rounds.append(growth(18))
    assert rounds[-1] <= 128 << 10, rounds


def test_nothing_stays_of_a_loader(pack):
    before, new = descriptors(), Threads()
    for leave in ("end", "break", "never begun", "loader first", "iteration first"):
        loader = PackedLoader(pack("raw"), 2, **OPTIONS)
        opened = weakref.ref(loader.pack)
        iteration = iter(loader)
        if leave == "end":
            list(iteration)
        elif leave != "never begun":
            next(iteration)
        if leave == "loader first":
            del loader
            assert len(list(iteration)) == 13  # the iteration continues
            loader = None
        del iteration, loader
        gc.collect()
        assert until(lambda opened=opened: opened() is None, 60), leave
        assert until(lambda: descriptors() <= before and not new, 60), leave


def test_an_error_in_the_loop_leaves_no_thread(pack):
    new = Threads()

    def train():
        for _ in PackedLoader(pack("raw"), 2, **OPTIONS):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        train()
    gc.collect()
    assert until(lambda: not new, 60)


@pytest.mark.parametrize("leave", [lambda loader: next(iter(loader)), list], ids=["early", "at the end"])
@pytest.mark.parametrize("kind", ["raw", "jpeg", "png"])
def test_the_number_of_opencvs_threads_is_left_alone(pack, monkeypatch, kind, leave):
    """OpenCV divides by it: whoever changes it while any thread is within OpenCV ends the process."""
    path, changes = pack(kind), []
    monkeypatch.setattr(cv2, "setNumThreads", changes.append)
    before = cv2.getNumThreads()
    picture = np.zeros((400, 400, 3), np.uint8)

    def transform(image):
        cv2.resize(picture, (350, 350))  # large enough for OpenCV's threads
        return image

    loader = PackedLoader(path, 4, **OPTIONS, transform=transform)
    for _ in range(3):
        leave(loader)
    PackedDataset(path)[0]
    assert not changes and cv2.getNumThreads() == before


@pytest.mark.parametrize("leave", ["break", "close", "collected"])
def test_leaving_an_epoch_early_waits_for_its_threads(pack, leave):
    new, at_work = Threads(), []

    def transform(image):
        at_work.append(1)
        time.sleep(0.005)
        at_work.pop()
        return image

    iteration = iter(PackedLoader(pack("raw"), 2, transform=transform, threads=2, prefetch=6))
    next(iteration)
    if leave == "break":
        for _ in iteration:
            break
    elif leave == "collected":
        cycle = [iteration]
        cycle.append(cycle)
        del cycle
    else:
        iteration.close()
    del iteration
    if leave == "collected":
        gc.collect()
    assert not at_work and not new


@ELSEWHERE
def test_an_iteration_collected_under_a_lock_that_its_threads_want(pack, monkeypatch):
    monkeypatch.setattr("packer.loading.pipeline.LEFT_S", 0.05)
    lock, wanted, new, seen = threading.Lock(), threading.Event(), Threads(), []

    def transform(image):
        seen.append(1)
        if len(seen) > 2:  # the first batch is done
            wanted.set()
            with lock:
                pass
        return image

    iteration = iter(PackedLoader(pack("raw"), 2, transform=transform, threads=1, prefetch=1))
    with lock:
        next(iteration)
        assert wanted.wait(60)
        del iteration
    assert until(lambda: not new, 60)


@ELSEWHERE
@pytest.mark.parametrize("place", ["Thread.start", "SimpleQueue.get"])
def test_ctrl_c_while_threads_start_leaves_none(pack, monkeypatch, place):
    new, calls = Threads(), []
    start, get = threading.Thread.start, loader_threads.SimpleQueue

    def interrupted():
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt

    class Queue(get):
        def get(self, *given, **options):
            if threading.current_thread() is threading.main_thread():
                interrupted()
            return super().get(*given, **options)

    if place == "Thread.start":
        monkeypatch.setattr(threading.Thread, "start", lambda thread: start(thread) or interrupted())
    else:
        monkeypatch.setattr(loader_threads, "SimpleQueue", Queue)
    for _ in range(5):
        calls.clear()
        with pytest.raises(KeyboardInterrupt):
            next(iter(PackedLoader(pack("raw"), 2, threads=3)))
        assert len(calls) == 2
    assert until(lambda: not new, 60)


def test_a_slow_transform_that_is_left_alone_ends(pack):
    new = Threads()
    begun = []

    def slow(image):
        begun.append(1)
        time.sleep(0.01)
        return image

    for _ in PackedLoader(pack("raw"), 2, transform=slow, threads=2, prefetch=6):
        break
    assert until(lambda: not new, 60)
    count = len(begun)
    assert count < RECORDS
    time.sleep(0.05)
    assert len(begun) == count


@ELSEWHERE
def test_a_thread_may_collect_its_own_iteration(pack):
    """The iteration is in a reference cycle, and the transform may hold a lock that the other thread waits for."""
    script = """
        import contextlib, gc, sys, threading
        from packer import PackedDataset, PackedLoader

        gc.disable()
        data = PackedDataset(sys.argv[1])
        first = [int(data[number][0].sum()) for number in range(2)]

        def transform(image):
            if int(image.sum()) not in first:
                left.wait()
                with lock:
                    collected.append(gc.collect())
            return image

        for lock in (contextlib.nullcontext(), threading.Lock()):
            left, collected = threading.Event(), []
            before = set(threading.enumerate())
            cycle = [iter(PackedLoader(data, 2, transform=transform, threads=2, prefetch=10))]
            next(cycle[0])
            threads = set(threading.enumerate()) - before
            cycle.append(cycle)
            del cycle
            left.set()
            for thread in threads:
                thread.join()
            print(len(threads), max(collected) > 0)
    """
    assert run_script(script, pack("raw")) == "2 True\n" * 2


def test_two_iterations_at_once(pack):
    """By turns, and in two threads: each gets its own epoch's batches, in the order in which they begin."""
    expected = []
    loader = PackedLoader(pack("raw"), 3, **OPTIONS)
    for epoch in (0, 1):
        loader.set_epoch(epoch)
        expected.append(list(loader))
    loader.set_epoch(0)
    first, second = iter(loader), iter(loader)
    received = [[], []]
    for a, b in zip(first, second, strict=True):
        received[0].append(a)
        received[1].append(b)
    assert alike(received, expected)
    for _ in range(10):
        loader.set_epoch(0)
        iterations = [iter(loader), iter(loader)]
        results = [[next(iteration)] for iteration in iterations]

        def consume(number, iterations=iterations, results=results):
            results[number] += [(images.clone(), targets) for images, targets in iterations[number]]

        threads = [threading.Thread(target=consume, args=(number,)) for number in (0, 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert alike(results, expected)


def elsewhere():
    """torch's number of threads in a new thread."""
    counts = []
    thread = threading.Thread(target=lambda: counts.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    return counts[0]


def test_torchs_threads_are_left_alone(pack):
    """In this thread, and in those that start later."""
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        counts = []
        loader = PackedLoader(pack("raw"), 4, transform=lambda image: counts.append(torch.get_num_threads()) or image)
        iteration = iter(loader)
        next(iteration)
        assert torch.get_num_threads() == 3 and elsewhere() == 3
        for _ in iteration:
            pass
        assert torch.get_num_threads() == 3 and elsewhere() == 3
        assert set(counts) == {1}  # ours are one each
    finally:
        torch.set_num_threads(before)


@pytest.mark.skipif(not can_help(), reason="torch's number of threads cannot be set for one thread alone")
def test_the_consumer_copies_small_images_while_it_waits(pack, monkeypatch):
    """With one core, which neither it nor any new thread notices."""
    seen, gather, here = set(), Gather.__call__, threading.get_ident()

    def both(self, offsets, out=None):
        seen.add((threading.get_ident() == here, torch.get_num_threads(), elsewhere()))
        assert until(lambda: len(seen) > 1, 60)  # each waits for the other
        return gather(self, offsets, out)

    monkeypatch.setattr(Gather, "__call__", both)
    monkeypatch.setattr("packer.loading.pipeline.BLOCK_BYTES", 6000)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        loader = PackedLoader(pack("raw"), 2, threads=2)
        counts = {torch.get_num_threads() for _ in loader}
    finally:
        torch.set_num_threads(before)
    assert seen == {(True, 1, 3), (False, 1, 3)} and counts == {3}


@pytest.mark.skipif(not can_help(), reason="torch's number of threads cannot be set for one thread alone")
def test_ctrl_c_while_the_consumer_copies(pack, monkeypatch):
    gather, here, came = Gather.__call__, threading.get_ident(), threading.Event()

    def interrupted(self, offsets, out=None):
        if threading.get_ident() == here:
            came.set()
            raise KeyboardInterrupt
        assert came.wait(60)
        return gather(self, offsets, out)

    monkeypatch.setattr(Gather, "__call__", interrupted)
    monkeypatch.setattr("packer.loading.pipeline.BLOCK_BYTES", 6000)
    with pytest.raises(KeyboardInterrupt):
        next(iter(PackedLoader(pack("raw"), 2, threads=2)))


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("kind", ["raw", "jpeg"])
def test_forked_workers_work_beside_a_loader(pack, kind):
    """Its threads sleep, or are gone; the workers use OpenCV and torch as the threads did."""
    loader = PackedLoader(pack(kind), 4, **OPTIONS)
    expected = list(loader)
    iteration = iter(loader)
    next(iteration)
    data = PackedDataset(pack(kind))
    plain = torch.cat([images for images, _ in DataLoader(data, 9, collate_fn=collate)])
    forked = DataLoader(data, 9, num_workers=2, collate_fn=collate, multiprocessing_context="fork", timeout=120)
    assert torch.equal(torch.cat([images for images, _ in forked]), plain)
    assert len(list(iteration)) == 6
    loader.set_epoch(0)
    assert alike(list(loader), expected)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_loader_works_in_a_forked_process(pack):
    loader = PackedLoader(pack("raw"), 4, **OPTIONS)
    images = sum(int(images.sum()) for images, _ in loader)

    def again() -> bytes:
        loader.set_epoch(0)
        return str(sum(int(images.sum()) for images, _ in loader)).encode()

    assert int(forked(again)) == images


@pytest.mark.interpreter  # a fork does not show how an interpreter ends
@ELSEWHERE
def test_a_script_may_end_in_the_middle_of_an_epoch(pack):
    """The threads are within torch when the interpreter shuts down: the process was aborted."""
    script = """
        import sys, torch
        from packer import PackedLoader

        def slow(image):
            torch.linalg.svd(torch.rand(400, 400))
            return image

        for _ in PackedLoader(sys.argv[1], 2, threads=2, transform=slow):
            break
        print("end")
    """
    assert run_script(script, pack("raw")) == "end\n"


@pytest.mark.parametrize("options", [
    {"kind": "raw"}, {"kind": "jpeg"}, {"kind": "raw", "transform": torch.clone}, {"kind": "raw", "cache": "device"},
    {"kind": "boxes", "mean": (0.5,) * 3, "std": (0.5,) * 3},
], ids=["raw", "jpeg", "transform", "on the device", "normalized"])  # fmt: skip
def test_stats_are_plausible(pack, options):
    options = dict(options)
    kind = options.pop("kind")
    loader = PackedLoader(pack(kind), 4, threads=2, **options)
    nothing = loader.stats()
    assert nothing["images"] == nothing["batches"] == nothing["waiting"] == 0
    for _ in range(2):  # each epoch for itself
        started = time.perf_counter()
        count = sum(len(images) for images, _ in loader)
        seconds = time.perf_counter() - started
        stats = loader.stats()
        assert stats["images"] == count == (9 if kind == "boxes" else RECORDS)
        assert stats["batches"] == len(loader)
        assert 0 <= stats["waiting"] <= 1 and 0 < stats["seconds"] <= seconds + 0.001
        # as far as both figures are rounded
        assert count / (stats["seconds"] + 1e-4) - 0.1 < stats["images_per_s"]
        assert stats["images_per_s"] * max(0, stats["seconds"] - 1e-4) < count + 0.1 * stats["seconds"]
    stages = {name for name in stats if name.endswith("_s")} - {"images_per_s"}
    if options.get("cache") != "device":
        assert {"targets_s", "decode_s" if kind == "jpeg" else "read_s"} <= stages
    assert ("copy_s" in stages) >= ("mean" in options) and ("transform_s" in stages) == ("transform" in options)
    assert all(0 <= stats[name] <= 3 * seconds + 0.001 for name in stages)  # two threads and this one
    time.sleep(0.03)
    assert loader.stats() == stats  # the epoch is over


def test_stats_tell_who_waits(pack):
    def slow(image):
        time.sleep(0.002)
        return image

    def waiting(pause_s=0.0, **options):
        loader = PackedLoader(pack("raw"), 4, **options)
        for _ in loader:
            time.sleep(pause_s)
        return loader.stats()["waiting"]

    # other work on the machine holds up who does not wait, or makes somebody wait, in some epochs only
    assert any(waiting(transform=slow, threads=1) > 0.8 for _ in range(50))
    assert any(waiting(pause_s=0.02, threads=2) < 0.5 for _ in range(50))
