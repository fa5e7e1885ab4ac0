"""Changes in place that are killed, meet a disk that refuses, or lose their power: a pack is the old or the new one."""

from __future__ import annotations

import random
import time
from functools import cache
from itertools import product
from pathlib import Path

import pytest
from torture_builds import MUTATING, Call, Child, calls_of, can_trace, traced
from torture_changes import CHANGES, Changing
from torture_power import lose_unsynced, synced_again

pytestmark = [
    pytest.mark.syncs,
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
]

CONTAINERS = ("lmdb", "hdf5", "webdataset", "recordio")
"""recordio has companions: files that its readers want beside the shards."""
FAULTS = {
    "kill": (MUTATING, ("signal=KILL",), ("once",), 3),
    "power-cut": (MUTATING, ("signal=KILL",), ("first", "second", "third"), 2),
    "error": ([*MUTATING, "close"], ("error=ENOSPC", "error=EIO"), ("once", "ever"), 2),
}
"""As of builds."""


@pytest.fixture(scope="module")
def place_of(memory: Path):
    """The place of a change of a pack, and the calls of the change, made once."""

    @cache
    def place(change: str, container: str) -> Changing:
        folder = memory / f"{change}-{container}"
        folder.mkdir()
        return Changing(folder, container, change)

    @cache
    def calls(change: str, container: str, fault: str) -> dict[str, Call]:
        one = place(change, container)
        one.clear()
        where = one.pack if fault == "error" else one.folder  # what cannot be remembered of a source is no error
        return {f"{call.name} {call.number}": call for call in calls_of(one.work, where, FAULTS[fault][0])}

    place.calls = calls  # type: ignore[attr-defined]
    return place


@pytest.mark.parametrize("container", CONTAINERS)
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_change_meets_a_fault(fault: str, change: str, container: str, place_of, torture) -> None:
    """Afterwards the pack and its earlier versions are whole, the old ones or the new; the same change ends well."""
    if not can_trace():
        pytest.skip("strace is not here, or must not trace (apt-get install strace)")
    place = place_of(change, container)
    names, whats, times, few = FAULTS[fault]
    calls = place_of.calls(change, container, fault)
    assert len(calls) > 30

    def run(call: str, what: str, when: str) -> str:
        place.clear()
        options = calls[call].inject(what, names if when == "ever" else ())
        if fault == "power-cut":
            options = ["-e", f"trace={','.join(MUTATING)}", options[-2], options[-1]]
        code, text, log = traced(place.work, *options)
        if fault == "power-cut":
            dice = random.Random(f"{torture.seed} {call} {when}")
            lose_unsynced(log, place.pack, dice, lambda path: place.restore(Path(path)))
        assert (again := synced_again(log)) == [], again
        how = "killed" if code == -9 else "succeeded" if code == 0 else "ended with an error"
        return f"{how}: {place.check(code, text, code != -9 and when == 'once')}"

    torture.each(list(product(calls, whats, times)), run, few)


@pytest.mark.workers
def test_random_kills_of_changes(place_of, torture) -> None:
    """SIGKILL of the process group of a change with threads and workers at any time, and of the same change again."""
    times: dict[Changing, float] = {}

    def run(change: str, container: str, number: int) -> str:
        place = place_of(change, container)
        if place not in times:
            place.clear()
            started = time.monotonic()
            assert Child(lambda: place.work(workers=2)).wait()[0] == 0
            times[place] = time.monotonic() - started
        dice = random.Random(f"{torture.seed} {change} {container} {number}")
        place.clear()
        kills, code, text = 0, None, ""
        for _ in range(dice.randint(1, 3)):
            child = Child(lambda: place.work(workers=2))
            time.sleep(dice.uniform(0, 1.05 * times[place]))
            child.kill()
            code, text = child.wait()
            if code != -9:
                break  # it was done already
            kills += 1
            if not place.change.again and place.state() == place.new:
                break
        return f"killed {kills} times: {place.check(code, text)}"

    cases = [(change, container, n) for n in range(100) for change, container in product(CHANGES, CONTAINERS)]
    torture.each(cases, run, few=1)
