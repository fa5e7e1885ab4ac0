"""Power cuts: what was not synced before the cut is lost, cut or zeroed, and names that were not synced go back.

The log of a build's own system calls says what was synced: a file's bytes by fsync of it, a name by fsync of its
directory. (After ALICE, Pillai et al., OSDI 2014.)
"""

from __future__ import annotations

import os
import random
import re
import shutil
from pathlib import Path

from outcome import Budget, Outcome
from torture_builds import MUTATING, SYNCING, WRITING, Ground, Point, build, drawn_points, ground, points_of, traced

from packer.containers import CONTAINERS

OF_FD = re.compile(r"^(\w+)\((?:\d+|AT_FDCWD)<([^>]*)>.*= (-?\d+)")
RENAME = re.compile(r'^rename\w*\((?:AT_FDCWD<[^>]*>, )?"([^"]*)", (?:AT_FDCWD<[^>]*>, )?"([^"]*)".*= 0$')
CREATED = re.compile(r'^openat\([^,]*, "([^"]*)", [^)]*O_CREAT.*= \d')


def power_cuts(
    budget: Budget, share: float = 1.0, cuts: int = 3, containers: tuple[str, ...] = CONTAINERS
) -> Outcome:
    """At every mutating system call, several drawn outcomes of what reached the disk."""
    outcome = Outcome(
        "power cut at every mutating system call: unsynced bytes lost, cut or zeroed, unsynced names gone back",
        "0 unreadable, 0 complete but wrong, resumed bytes sha256-identical",
    )
    dice = random.Random(budget.seed)
    for container in containers:
        with ground(container) as place:
            points = points_of(lambda: build(place.options()), place.folder)
            for point in drawn_points(points, share, budget.seed):
                for _ in range(cuts):
                    if budget.spent:
                        return outcome
                    _cut(place, point, dice, outcome)
        outcome.count("containers")
    return outcome


def _cut(place: Ground, point: Point, dice: random.Random, outcome: Outcome) -> None:
    place.clear()
    inject = point.inject("signal=KILL")[-1]
    _, _, log = traced(lambda: build(place.options()), "-e", f"trace={MUTATING}", "-e", inject)
    dirty, names = unsynced(log, place.folder)
    lost = 0
    for old, new in reversed(names):
        possible = os.path.exists(new) and not os.path.exists(old) and os.path.isdir(os.path.dirname(old))
        if possible and dice.random() < 0.5:
            os.rename(new, old)
            lost += 1
            dirty = {old + path[len(new) :] if path == new or path.startswith(new + "/") else path for path in dirty}
    for path in sorted(dirty):
        if os.path.isfile(path) and dice.random() < 0.8:
            _lose(path, dice)
            lost += 1
    outcome.count("cuts")
    outcome.count("files and names lost", lost)
    where = f"{place.container}: power cut at {point}, seed's draw {outcome.done['cuts']}"
    state = place.state()
    if state not in ("absent", "partial", "whole"):
        outcome.faults.append(f"{where}: {state}")
    wrong = place.finish()
    if wrong:
        outcome.faults.append(f"{where}: {wrong}")


def unsynced(log: str, folder: Path) -> tuple[set[str], list[tuple[str, str]]]:
    """Files below `folder` whose bytes, and renames (old, new) that, might not be on the disk when the log ends."""
    dirty: set[str] = set()
    names: list[tuple[str, str]] = []
    for line in log.splitlines():
        call = line.split(" ", 1)[-1].lstrip()
        if match := RENAME.match(call):
            old, new = match.groups()
            dirty = {new + path[len(old) :] if path == old or path.startswith(old + "/") else path for path in dirty}
            names.append((old, new))
        elif match := CREATED.match(call):
            dirty.add(match[1])
        elif match := OF_FD.match(call):
            name, path, result = match.groups()
            if name in WRITING.split(","):
                dirty.add(path)
            elif name in SYNCING.split(",") and result == "0":
                dirty.discard(path)
                names = [pair for pair in names if os.path.dirname(pair[1]) != path]
    return {path for path in dirty if path.startswith(str(folder))}, names


def _lose(path: str, dice: random.Random) -> None:
    size = os.path.getsize(path)
    kept = dice.randrange(size + 1)
    how = dice.randrange(3)
    if how == 0:
        os.truncate(path, kept)
    elif how == 1:  # the length reached the disk, the bytes did not
        os.truncate(path, kept)
        os.truncate(path, size)
    else:
        os.unlink(path) if dice.random() < 0.5 else shutil.copyfile(os.devnull, path)
