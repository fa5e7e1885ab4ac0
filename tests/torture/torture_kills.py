"""Kills builds at every step, and looks whether anything is lost or wrong afterwards."""

from __future__ import annotations

import random
import time

from outcome import Budget, Outcome
from torture_builds import Child, Ground, build, drawn_points, ground, points_of, traced

from packer.containers import CONTAINERS


def kills(budget: Budget, share: float = 1.0, containers: tuple[str, ...] = CONTAINERS) -> Outcome:
    """SIGKILL at every mutating system call of a build of three shards; then the same build again."""
    outcome = Outcome(
        "SIGKILL at every mutating system call of a 3-shard build, per container; then resume",
        "0 unreadable, 0 complete but wrong, resumed bytes sha256-identical",
    )
    for container in containers:
        with ground(container) as place:
            _each_call(place, outcome, budget, share, overwrite=False)
            _each_call(place, outcome, budget, share, overwrite=True)
        outcome.count("containers")
    return outcome


def _each_call(place: Ground, outcome: Outcome, budget: Budget, share: float, overwrite: bool) -> None:
    """`overwrite`: another pack stands there before; it, or the new one, must stand there at any time."""

    def prepare() -> None:
        place.clear()
        if overwrite:
            old = Child(lambda: build(place.options(resize="8"), "inline"))
            assert old.wait() == 0, old.said

    def work() -> int:
        return build(place.options(overwrite=overwrite), place.engine)

    prepare()
    old_state = place.state()
    points = points_of(work, place.folder)
    for point in drawn_points(points, share, budget.seed):
        if budget.spent:
            return
        prepare()
        where = f"{place.container}{' --overwrite' * overwrite}: kill at {point}"
        code, said, _ = traced(work, *point.inject("signal=KILL"))
        outcome.count("kills", code == -9)
        state = place.state()
        allowed = ("whole", old_state) if overwrite else ("absent", "partial", "whole")
        if state not in allowed or code not in (-9, 0):
            outcome.faults.append(f"{where}: {state}, code {code}: {said}")
        again = Child(work)
        code = again.wait()
        if not (code == 0 or (code == 2 and not overwrite)) or place.state() != "whole":
            outcome.faults.append(f"{where}: after going on {place.state()}, code {code}: {again.said}")
        outcome.count("resumed")


def random_kills(
    budget: Budget, kills: int = 2000, resumed_kills: int = 300, containers: tuple[str, ...] = CONTAINERS
) -> Outcome:
    """SIGKILL of the whole process group of parallel builds, at any time; also of builds that go on."""
    outcome = Outcome(
        "SIGKILL of the whole process group at random times, parallel build; and during resume",
        "2,000 and 300 kills: 0 unreadable, 0 complete but wrong, resumed bytes sha256-identical",
    )
    dice = random.Random(budget.seed)
    for number, container in enumerate(containers):
        share = len(containers) - number
        with ground(container, engine="local", workers=2) as place:
            _random_kills(place, outcome, budget, dice, (kills // share, resumed_kills // share))
        kills -= kills // share
        resumed_kills -= resumed_kills // share
    return outcome


def _random_kills(
    place: Ground, outcome: Outcome, budget: Budget, dice: random.Random, wanted: tuple[int, int]
) -> None:
    done = [0, 0]
    place.clear()
    started = time.monotonic()
    assert place.finish() is None
    whole_s = time.monotonic() - started
    while (done[0] < wanted[0] or done[1] < wanted[1]) and not budget.spent:
        place.clear()
        times = 1 + (done[1] < wanted[1]) * dice.randrange(3)
        delays = []
        for attempt in range(times):
            delays.append(dice.uniform(0, 1.05 * whole_s))
            child = Child(lambda: build(place.options(), place.engine))
            time.sleep(delays[-1])
            child.kill()
            if child.wait() != -9:
                break  # it was done already
            during_resume = attempt > 0
            done[during_resume] += 1
            outcome.count("kills during resume" if during_resume else "kills")
            state = place.state()
            if state not in ("absent", "partial", "whole"):
                outcome.faults.append(f"{place.container}: killed after {delays} s: {state}")
        wrong = place.finish()
        if wrong:
            outcome.faults.append(f"{place.container}: killed after {delays} s: {wrong}")
