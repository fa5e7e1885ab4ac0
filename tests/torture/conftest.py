"""Runs many damaging cases in one test: a few in the suite, as many as are asked for with scripts/torture.py."""

from __future__ import annotations

import json
import os
import signal
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from math import gcd
from pathlib import Path

import pytest

SEEDS, REPORT = "PACKER_TORTURE_SEEDS", "PACKER_TORTURE_REPORT"
"""FIRST:COUNT, the seeds to run of all selected tests together (COUNT may be `all`); where to append what happened."""
CHUNK = 2000
"""Cases that share one child process."""
CASE_S = 60
"""A case that takes longer hangs."""
MOST_FAILURES = 5
GOLDEN = 0.6180339887498949
TURN = pytest.StashKey[tuple[int, int]]()
"""The number of a test among those that share the seeds, and how many they are."""

Case = Sequence[object]
Run = Callable[..., str]
"""Called with the parts of a case. Returns the outcome in a few words; raises an exception if it is wrong."""


@pytest.fixture(scope="module")
def memory() -> Iterator[Path]:
    """A folder in memory if there is one: fsync costs nothing there."""
    shared = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=shared, prefix="packer-torture-") as folder:
        yield Path(folder)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """If seeds are asked for, keep the tests that have some: seed 0 belongs to the first, seed 1 to the second, ..."""
    if SEEDS not in os.environ:
        return
    tests = [item for item in items if "torture" in getattr(item, "fixturenames", ())]
    for number, item in enumerate(tests):
        item.stash[TURN] = number, len(tests)
    first, _, count = os.environ[SEEDS].partition(":")
    kept = (
        tests if count == "all" else [tests[seed % len(tests)] for seed in range(int(first), int(first) + int(count))]
    )
    kept = list(dict.fromkeys(kept)) if tests else []
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = kept


class Torture:
    """The cases of one test."""

    def __init__(self, node: str, turn: tuple[int, int] = (0, 1)) -> None:
        self.seed = 0
        """What a case draws its random numbers from, besides its name."""
        self.node, self._turn = node, turn
        self._first, _, self._count = os.environ.get(SEEDS, "").partition(":")

    def each(
        self, cases: Sequence[Case], run: Run, few: int, always: Sequence[Case] = (), apart: bool = False
    ) -> Counter[str]:
        """Run cases, and fail with all that went wrong and the commands that repeat it.

        Case k of a test is `cases[k * step % len(cases)]` with a step that scatters them, so that the first few are of
        all kinds and every k below `len(cases)` is another case; those above have other random numbers.

        Args:
            cases: All there are; a case is named by its parts, with spaces between them.
            run: Runs one case.
            few: How many cases run if no seeds are set in the environment.
            always: Cases that run before those.
            apart: Run the cases in child processes: one that crashes or hangs counts against its case only.

        Returns:
            How often `run` returned each text.
        """
        __tracebackhide__ = True
        total = len(cases)
        step = next(n for n in range(max(1, round(total * GOLDEN)), total + 2) if gcd(n, total) == 1)
        back = pow(step, -1, total) if total > 1 else 0
        numbers = self._numbers(total, few)
        if self.sliced:
            fixed = [cases.index(case) * back % total for case in always]
            numbers = [*fixed, *(number for number in numbers if number not in fixed)]

        def numbered(number: int) -> str:
            self.seed = number // total
            return run(*cases[number * step % total])

        outcomes: Counter[str] = Counter()
        failed: list[str] = []
        seeds: list[int] = []
        for number, outcome, problem in (_apart if apart else _here)(numbers, numbered):
            outcomes[outcome or "failed"] += 1
            name = _name(cases[number * step % total])
            if problem:
                failed.append(f"{name}: {problem}\nTo repeat: {SEEDS}={number}:1 python -m pytest '{self.node}'")
                seeds.append(number * self._turn[1] + self._turn[0])
            elif self._count == "1":
                print(f"\n{self.node}: {name}: {outcome}")
            if len(failed) == MOST_FAILURES:
                break
        if report := os.environ.get(REPORT):
            with open(report, "a", encoding="utf-8") as file:
                print(json.dumps({"of": total, "outcomes": outcomes, "failed": seeds}), file=file)
        assert not failed, f"{len(failed)} of {len(numbers)} cases failed\n\n" + "\n\n".join(failed)
        return outcomes

    @property
    def sliced(self) -> bool:
        """Whether the usual number of cases runs, so that a test may count the outcomes."""
        return not self._first

    def _numbers(self, total: int, few: int) -> Sequence[int]:
        if self.sliced:
            return range(min(few, total))
        if self._count == "all":
            return range(total)
        number, tests = self._turn
        first = int(self._first)
        return [seed // tests for seed in range(first, first + int(self._count)) if seed % tests == number]


@pytest.fixture
def torture(request: pytest.FixtureRequest) -> Torture:
    """The cases of this test."""
    return Torture(request.node.nodeid, request.node.stash.get(TURN, (0, 1)))


def _name(case: Case) -> str:
    return " ".join(map(str, case))


def _here(numbers: Sequence[int], run: Callable[[int], str]) -> Iterator[tuple[int, str, str]]:
    for number in numbers:
        try:
            yield number, run(number), ""
        except AssertionError as error:
            yield number, "", str(error) or traceback.format_exc()  # an assert of a module that pytest did not rewrite
        except Exception:
            yield number, "", traceback.format_exc()


def _apart(numbers: Sequence[int], run: Callable[[int], str]) -> Iterator[tuple[int, str, str]]:
    done = 0
    while done < len(numbers):
        chunk = numbers[done : done + CHUNK]
        lines, status = _child(chunk, run)
        for number, line in zip(chunk, lines, strict=False):
            yield number, *json.loads(line)
        done += len(lines)
        if len(lines) < len(chunk):
            name = signal.Signals(-status).name if status < 0 else f"exit code {status}"
            yield chunk[len(lines)], "", f"the process {'hung' if name == 'SIGALRM' else f'ended with {name}'}"
            done += 1


def _child(numbers: Sequence[int], run: Callable[[int], str]) -> tuple[list[str], int]:
    """Run cases until one of them ends the process; return the outcomes of those before it, and the exit code."""

    def timed(number: int) -> str:
        signal.alarm(CASE_S)
        return run(number)

    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            with open(theirs, "w", encoding="ascii") as pipe:
                for _, *outcome in _here(numbers, timed):
                    print(json.dumps(outcome), file=pipe, flush=True)
            code = 0
        finally:
            os._exit(code)
    os.close(theirs)
    with open(ours, encoding="ascii") as pipe:
        lines = [line for line in pipe if line.endswith("\n")]
    return lines, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
