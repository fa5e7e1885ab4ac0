"""A child that is forked beside a loader's threads must not inherit a lock that one of them holds."""

from __future__ import annotations

import os
import sys
import threading
import time

import cv2
import numpy as np
import pytest
from running import forked

from packer.format import remote
from packer.format.records import Bits
from packer.loading.loader_threads import ThreadPool, _pools
from packer.loading.memory import BufferPool
from packer.loading.stand_ins import Replacer

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that a busy machine keeps waiting is not one that never ends."""
    monkeypatch.setattr("packer.loading.loader_threads.FORK_S", 60.0)
    monkeypatch.setattr("packer.loading.loader_threads.END_S", 60.0)


def started(size: int) -> ThreadPool:
    pool = ThreadPool(size)
    pool.start()
    return pool


def resize(number: int) -> int:
    return int(cv2.resize(np.full((40, 40, 3), 7, np.uint8), (20, 20)).max())


@pytest.mark.skipif(sys.platform != "linux", reason="threads of the system are counted in /proc")
def test_closed_threads_are_gone_from_the_system_too() -> None:
    """join() returns before the destructors of libraries have run, which hold locks."""
    before = set(os.listdir("/proc/self/task"))
    for _ in range(100):
        pool = started(2)
        assert pool.run(4, resize).wait() == [7] * 4
        pool.close()
        assert set(os.listdir("/proc/self/task")) <= before


def test_a_fork_waits_for_what_threads_do() -> None:
    at_work = threading.Event()
    begun = threading.Semaphore(0)

    def task(number: int) -> None:
        at_work.set()
        begun.release()
        time.sleep(0.15)
        at_work.clear()

    pool = started(1)
    parts = pool.run(3, task)
    begun.acquire()  # the first is at work, the others wait
    assert forked(lambda: b"in the middle" if at_work.is_set() else b"between") == b"between"
    parts.wait()  # and then they go on
    pool.close()


def test_a_fork_waits_for_threads_that_nobody_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of an iteration that was collected: each is gone when the child begins, with what it holds."""
    pause, forking = ThreadPool.pause, threading.Event()

    def noted(pool: ThreadPool, until: float) -> list[threading.Lock]:
        forking.set()
        return pause(pool, until)

    monkeypatch.setattr(ThreadPool, "pause", noted)
    made = set()
    for _ in range(30):
        forking.clear()
        pool = started(2)
        made.add(pool)
        threads = {str(thread.native_id) for thread in pool._threads}
        begun = threading.Semaphore(0)
        done = []

        def task(number: int, begun: threading.Semaphore = begun, done: list[int] = done) -> None:
            begun.release()
            forking.wait(60)
            time.sleep(0.01)
            done.append(resize(number))

        pool.run(2, task)
        for _ in range(2):
            begun.acquire()
        pool.close(timeout_s=0)
        assert not done
        assert forked(lambda done=done: b"%d" % sum(done)) == b"14"
        if sys.platform == "linux":
            assert not threads & set(os.listdir("/proc/self/task"))
    assert not made & _pools


def test_children_decode_while_threads_do_and_end() -> None:
    for _ in range(15):
        pool = started(2)
        parts = pool.run(50, resize)
        assert forked(lambda: b"%d" % resize(0)) == b"7"
        parts.wait()
        pool.close()
        assert forked(lambda: b"%d" % resize(0)) == b"7"


@pytest.mark.parametrize(
    "make", [lambda: Bits(9), lambda: BufferPool(64), lambda: Replacer(None, None, None, 0), lambda: remote._opening]
)
def test_locks_that_any_thread_may_hold_are_free_in_a_child(make) -> None:
    """A fork waits for the threads of packer's pools only: those of a user may be reading a pack."""
    one = make()
    with one.lock:
        assert forked(lambda: b"%d" % one.lock.acquire(blocking=False)) == b"1"
        assert not one.lock.acquire(blocking=False)


def test_a_task_may_fork() -> None:
    pool = started(2)
    assert pool.run(2, lambda number: forked(lambda: b"child")).wait() == [b"child"] * 2
    pool.close()


def test_a_task_that_never_ends_holds_a_fork_up_for_a_while_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("packer.loading.loader_threads.FORK_S", 0.1)
    begun, go_on = threading.Event(), threading.Event()
    pool = started(1)
    parts = pool.run(1, lambda number: begun.set() or go_on.wait())
    assert begun.wait(60)
    assert forked(lambda: b"child") == b"child"
    go_on.set()
    parts.wait()
    pool.close()
