"""Builds that are killed, meet a disk that refuses, or lose their power: nothing is ever lost or wrong in silence."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import time
from functools import cache
from itertools import product
from pathlib import Path

import pytest
import torture_builds
from packs import WIDE
from torture_builds import (
    MUTATING,
    SHORT_WRITES,
    Call,
    Child,
    Place,
    build,
    calls_of,
    can_trace,
    traced,
)
from torture_power import lose_unsynced, synced_again

from packer.errors import DamagedPack

pytestmark = [
    pytest.mark.syncs,
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
]

KILL = ("signal=KILL",)
FAULTS = {
    "kill": (MUTATING, KILL, ("once",), 2),
    "kill-overwrite": (MUTATING, KILL, ("once",), 2),
    "power-cut": (MUTATING, KILL, ("first", "second", "third"), 2),
    "error": (
        [*MUTATING, "close"], ("error=ENOSPC", "error=EIO", "error=EDQUOT", "error=EROFS"), ("once", "ever"), 4,
    ),
}  # fmt: skip
"""Name -> at which system calls of a build; what strace does there; how often, or which loss is drawn;
how many cases the suite runs."""


@pytest.fixture(scope="module")
def place_of(memory: Path):
    """The place of a container, and the calls of its builds, made once."""

    @cache
    def place(container: str) -> Place:
        (memory / container).mkdir()
        return Place(memory / container, container)

    @cache
    def calls(container: str, names: tuple[str, ...]) -> dict[str, Call]:
        one = place(container)
        one.clear()
        return {f"{call.name} {call.number}": call for call in calls_of(one.work, one.folder, names)}

    place.calls = calls  # type: ignore[attr-defined]
    return place


@pytest.mark.parametrize("container", WIDE)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_at_any_call(fault: str, container: str, place_of, torture) -> None:
    """A build that meets a fault says so or succeeds rightly, and the same build again makes the same bytes."""
    if not can_trace():
        pytest.skip("strace is not here, or must not trace (apt-get install strace)")
    place = place_of(container)
    names, whats, times, few = FAULTS[fault]
    calls = place_of.calls(container, tuple(names))
    overwrite = fault == "kill-overwrite"

    def run(call: str, what: str, when: str) -> str:
        place.clear(overwrite)
        options = calls[call].inject(what, names if when == "ever" else ())
        if fault == "power-cut":
            options = ["-e", f"trace={','.join(MUTATING)}", options[-2], options[-1]]
        code, text, log = traced(lambda: build(place.options(overwrite=overwrite)), *options)
        if fault == "power-cut":
            lose_unsynced(log, place.folder, random.Random(f"{torture.seed} {call} {when}"))
        assert (again := synced_again(log)) == [], again
        place.check(code, text, overwrite)
        return "killed" if code == -9 else "succeeded" if code == 0 else "ended with an error"

    outcomes = torture.each(list(product(calls, whats, times)), run, few)
    assert not torture.sliced or outcomes["killed"] + outcomes["ended with an error"] >= 1


@pytest.mark.parametrize("container", ["lmdb", "hdf5", "tfrecord"])
def test_short_writes(container: str, memory: Path, torture) -> None:
    """Writes that take half of what they are given, at each write of a build and at all of them."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    folder = memory / f"short-{container}"
    folder.mkdir()
    library = folder / "short.so"
    command = [compiler, "-xc", "-shared", "-fPIC", "-w", "-o", str(library), "-", "-ldl"]
    subprocess.run(command, input=SHORT_WRITES, text=True, check=True)
    command = [sys.executable, torture_builds.__file__, str(library), str(folder), container]
    env = {**os.environ, "LD_PRELOAD": str(library)}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env) as builder:
        assert builder.stdin is not None and builder.stdout is not None

        def run(at: int) -> str:
            print(at, file=builder.stdin, flush=True)
            answer = builder.stdout.readline()  # type: ignore[union-attr]
            assert answer.strip().isdigit(), answer
            return "as packed"

        print(0, file=builder.stdin, flush=True)
        writes = int(builder.stdout.readline())
        assert writes > 10
        run(-1)
        torture.each([(at,) for at in range(1, writes + 1)], run, few=2)
        builder.stdin.close()


@pytest.mark.workers
def test_random_kills(memory: Path, torture) -> None:
    """SIGKILL of the whole process group of a parallel build at any time, also of builds that resume."""
    places: dict[str, tuple[Place, float]] = {}

    def run(container: str, number: int) -> str:
        if container not in places:
            (memory / f"parallel-{container}").mkdir()
            place = Place(memory / f"parallel-{container}", container)
            started = time.monotonic()
            assert Child(lambda: build(place.options(workers=2))).wait()[0] == 0
            places[container] = place, time.monotonic() - started
        place, whole_s = places[container]
        dice = random.Random(f"{torture.seed} {container} {number}")
        place.clear()
        kills = 0
        for _ in range(dice.randint(1, 3)):
            child = Child(lambda: build(place.options(workers=2)))
            time.sleep(dice.uniform(0, 1.05 * whole_s))
            child.kill()
            code, text = child.wait()
            if code != -9:
                break  # it was done already
            kills += 1
        place.check(code, text, workers=2)
        return f"killed {kills} times"

    cases = [(container, number) for number in range(300) for container in WIDE]
    torture.each(cases, run, few=1)


def test_a_shard_that_cannot_be_read_back_is_the_disks_fault(monkeypatch: pytest.MonkeyPatch, place_of) -> None:
    """HDF5 could not close the file that it had read, and the build ended as if a pack were damaged."""

    def damaged(path: str, *_: object) -> None:
        raise DamagedPack(path, "cannot be closed")

    place = place_of("hdf5")
    place.clear()
    monkeypatch.setattr("packer.packing.write_shard.digest_of_written", damaged)
    code, text = Child(lambda: build(place.options())).wait()
    assert code == 3 and "changed after it was written: cannot be closed; check the disk" in text
