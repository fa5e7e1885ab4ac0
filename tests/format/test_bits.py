"""Flags in bits: threads that set neighbors lose none, and a process may fork meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from running import forked

import packer.format.records
from packer import open_pack
from packer.format.records import Bits
from packer.system import PORTABLE

needs_fork = pytest.mark.skipif(PORTABLE, reason="this system does not fork")


@pytest.fixture(params=["bits", "bytes"], autouse=True)
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Flags of many records, and of few."""
    monkeypatch.setattr(packer.format.records, "IN_BYTES", 0 if request.param == "bits" else 1 << 21)


@contextmanager
def in_threads(*works: Callable[[], object]) -> Iterator[None]:
    """Meanwhile each of `works` is done again and again, in a thread of its own."""
    stop = threading.Event()

    def repeat(work: Callable[[], object]) -> None:
        while not stop.is_set():
            work()

    threads = [threading.Thread(target=repeat, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def test_flags_are_set_and_cleared() -> None:
    bits, numbers = Bits(77), np.array([0, 1, 9, 64, 76, 9])
    bits.set(numbers)
    assert np.flatnonzero(bits[np.arange(77)]).tolist() == [0, 1, 9, 64, 76]
    assert bits.has(9) and not bits.has(8)
    bits.clear(np.array([1, 76]))
    assert np.flatnonzero(bits[np.arange(77)]).tolist() == [0, 9, 64]


def test_threads_that_set_bits_of_one_byte_lose_none() -> None:
    for _ in range(20):
        bits, ready = Bits(80_000), threading.Barrier(4)

        def work(number: int, bits: Bits = bits, ready: threading.Barrier = ready) -> None:
            ready.wait()
            bits.set(np.arange(number, 80_000, 4))

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert bits[np.arange(80_000)].all()


@needs_fork
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_does_not_wait_for_threads_that_set_bits_while_it_was_forked() -> None:
    bits, numbers = Bits(1000), np.arange(64)

    def in_child() -> bytes:
        bits.set(np.array([70]))
        bits.clear(np.array([70]))
        bits.set(np.array([71]))
        return b"%d" % bits[np.arange(70, 80)].sum()

    with in_threads(*[lambda: bits.set(numbers)] * 2):
        for _ in range(30):
            assert forked(in_child) == b"1"
    assert not bits.has(71)


@needs_fork
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_reads_records_that_threads_verified_while_it_was_forked(make_pack: Callable[..., Path]) -> None:
    pack = open_pack(make_pack("raw", "tfrecord"))
    expected, records = bytes(pack.record(7)), np.arange(len(pack))
    pack.reader.places(records)  # before Python 3.12, a cached property has a lock, which a child may inherit

    def verify() -> None:
        pack.reader._checked["image"].clear(records)
        pack.reader.check(records)

    with in_threads(verify, verify):
        for _ in range(10):
            assert forked(lambda: bytes(pack.record(7))) == expected
