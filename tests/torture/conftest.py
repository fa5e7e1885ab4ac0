"""Runs many damaging cases in one test: a slice of them in the suite, all of them with scripts/torture.py."""

from __future__ import annotations

import json
import os
import random
import shlex
import signal
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

SHARE, SEED, ONLY = "PACKER_TORTURE_SHARE", "PACKER_TORTURE_SEED", "PACKER_TORTURE_ONLY"
CHUNK = 500
"""Cases that share one child process."""
CASE_S = 60
"""A case that takes longer hangs."""
MOST_FAILURES = 5

Case = Sequence[object]
Run = Callable[..., str]
"""Called with the parts of a case. Returns the outcome in a few words; raises an exception if it is wrong."""


class Torture:
    """The cases of one test."""

    def __init__(self, node: str) -> None:
        self.seed = int(os.environ.get(SEED, "0"))
        self._share = float(os.environ.get(SHARE, "0"))
        self._only = os.environ.get(ONLY)
        self.node = node

    def each(self, cases: Sequence[Case], run: Run, few: int, apart: bool = False) -> Counter[str]:
        """Run cases, and fail with all that went wrong and the commands that repeat it.

        Args:
            cases: All there are; a case is named by its parts, with spaces between them.
            run: Runs one case.
            few: Number of cases to draw, if no share or name of cases is set in the environment.
            apart: Run the cases in child processes: one that crashes or hangs counts against its case only.

        Returns:
            How often `run` returned each text.
        """
        __tracebackhide__ = True
        started = time.monotonic()
        outcomes: Counter[str] = Counter()
        failed: list[str] = []
        chosen = self._drawn(cases, few)
        for case, outcome, problem in (_apart if apart else _here)(chosen, run):
            outcomes[outcome or "failed"] += 1
            if problem:
                repeat = f"{SEED}={self.seed} {ONLY}={shlex.quote(_name(case))} python -m pytest '{self.node}'"
                failed.append(f"{_name(case)}: {problem}\nTo repeat: {repeat}")
                if len(failed) == MOST_FAILURES:
                    break
        if self._share:
            count, seconds = sum(outcomes.values()), time.monotonic() - started
            print(f"\n{self.node}: {count:,} of {len(cases):,} cases, {dict(outcomes)}, {seconds:.0f} s")
        assert not failed, f"{len(failed)} of {len(chosen)} cases failed\n\n" + "\n\n".join(failed)
        assert chosen, f"no case is named {self._only!r}"
        return outcomes

    @property
    def sliced(self) -> bool:
        """Whether the usual number of cases runs, so that a test may count the outcomes."""
        return not self._share and self._only is None

    def _drawn(self, cases: Sequence[Case], few: int) -> Sequence[Case]:
        if self._only is not None:
            return [case for case in cases if _name(case) == self._only]
        count = max(1, round(self._share * len(cases))) if self._share else few
        return cases if count >= len(cases) else random.Random(self.seed).sample(cases, count)


@pytest.fixture
def torture(request: pytest.FixtureRequest) -> Torture:
    """The cases of this test."""
    return Torture(request.node.nodeid)


def _name(case: Case) -> str:
    return " ".join(map(str, case))


def _here(cases: Sequence[Case], run: Run) -> Iterator[tuple[Case, str, str]]:
    for case in cases:
        try:
            yield case, run(*case), ""
        except AssertionError as error:
            yield case, "", str(error)
        except Exception:
            yield case, "", traceback.format_exc()


def _apart(cases: Sequence[Case], run: Run) -> Iterator[tuple[Case, str, str]]:
    done = 0
    while done < len(cases):
        chunk = cases[done : done + CHUNK]
        lines, status = _child(chunk, run)
        for case, line in zip(chunk, lines, strict=False):
            yield case, *json.loads(line)
        done += len(lines)
        if len(lines) < len(chunk):
            name = signal.Signals(-status).name if status < 0 else f"exit code {status}"
            yield chunk[len(lines)], "", f"the process {'hung' if name == 'SIGALRM' else f'ended with {name}'}"
            done += 1


def _child(cases: Sequence[Case], run: Run) -> tuple[list[str], int]:
    """Run cases until one of them ends the process; return the outcomes of those before it, and the exit code."""

    def timed(*case: Any) -> str:
        signal.alarm(CASE_S)
        return run(*case)

    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            with open(theirs, "w", encoding="ascii") as pipe:
                for _, *outcome in _here(cases, timed):
                    print(json.dumps(outcome), file=pipe, flush=True)
            code = 0
        finally:
            os._exit(code)
    os.close(theirs)
    with open(ours, encoding="ascii") as pipe:
        lines = [line for line in pipe if line.endswith("\n")]
    return lines, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
