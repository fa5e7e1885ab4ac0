"""Lets the disk refuse at every step of a build, and looks whether success is ever claimed wrongly."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from outcome import Budget, Outcome
from torture_builds import (
    CREATING,
    NAMING,
    SYNCING,
    WRITING,
    Ground,
    Point,
    build,
    drawn_points,
    ground,
    points_of,
    traced,
)

from packer.containers import CONTAINERS

FAILING = f"{CREATING},{WRITING},{SYNCING},{NAMING},close"
SYNC = re.compile(r"^\d+ +(fsync|fdatasync|msync|close)\((\d+)(<[^>]*>)?.*= (-?\d+)")
SHORT_WRITES = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>
static long calls;
static size_t less(int fd, size_t n) {
    struct stat facts;
    if (n < 2 || fd < 3 || fstat(fd, &facts) || !S_ISREG(facts.st_mode)) return n;
    long at = atol(getenv("SHORT_AT"));
    return at == 0 || ++calls == at ? n / 2 : n;
}
ssize_t write(int fd, const void *data, size_t n) {
    static ssize_t (*real)(int, const void *, size_t);
    if (!real) real = dlsym(RTLD_NEXT, "write");
    return real(fd, data, less(fd, n));
}
ssize_t pwrite64(int fd, const void *data, size_t n, off64_t at) {
    static ssize_t (*real)(int, const void *, size_t, off64_t);
    if (!real) real = dlsym(RTLD_NEXT, "pwrite64");
    return real(fd, data, less(fd, n), at);
}
ssize_t pwrite(int fd, const void *data, size_t n, off_t at) { return pwrite64(fd, data, n, at); }
"""


def faults(
    budget: Budget,
    share: float = 1.0,
    containers: tuple[str, ...] = CONTAINERS,
    errors: tuple[str, ...] = ("ENOSPC", "EIO", "EDQUOT"),
) -> Outcome:
    """Each error at every such call of a build, once and for ever."""
    outcome = Outcome(
        "ENOSPC, EIO, EDQUOT at every creating, writing, syncing, naming or closing call of a build, once and for ever",
        "0 false successes, 0 segfaults, 0 hangs, no fsync retried after it failed",
    )
    for container in containers:
        with ground(container) as place:
            points = points_of(lambda: build(place.options()), place.folder, FAILING)
            for error in errors:
                for for_ever in (False, True):
                    for point in drawn_points(points, share, budget.seed):
                        if budget.spent:
                            return outcome
                        _one(place, outcome, point, error, for_ever)
        outcome.count("containers")
    return outcome


def _one(place: Ground, outcome: Outcome, point: Point, error: str, for_ever: bool) -> None:
    place.clear()
    where = f"{place.container}: {error} at {point}{' and from then on' if for_ever else ''}"
    inject = point.inject(f"error={error}", FAILING if for_ever else "")
    code, said, log = traced(lambda: build(place.options()), *inject)
    outcome.count("faults")
    outcome.count("builds that ended with an error", code != 0)
    outcome.faults += judged(place, where, code, said)
    outcome.faults += [f"{where}: {again}" for again in synced_again(log)]


def judged(place: Ground, where: str, code: int | None, said: str) -> list[str]:
    """What is wrong after a build that met a fault, and after the next one, which meets none."""
    found = []
    state = place.state()
    if code is None:
        found.append(f"{where}: hangs")
    elif code < 0 or code not in (0, 1, 2, 3):
        found.append(f"{where}: ended with {code}: {said}")
    elif code == 0 and state != "whole":
        found.append(f"{where}: success, and the pack is {state}")
    elif state not in ("absent", "partial", "whole"):
        found.append(f"{where}: {state}")
    wrong = place.finish()
    return [*found, f"{where}: {wrong}"] if wrong else found


def synced_again(log: str) -> list[str]:
    """Descriptors that were synced again after a sync of theirs had failed."""
    failed: set[str] = set()
    found = []
    for line in log.splitlines():
        match = SYNC.match(line)
        if match is None:
            continue
        name, fd, path, result = match.groups()
        if name == "close":
            failed.discard(fd)
        elif fd in failed:
            found.append(f"{name} of {path} again after it failed")
        elif result == "-1":
            failed.add(fd)
    return found


def short_writes(budget: Budget, every: int = 1, containers: tuple[str, ...] = CONTAINERS) -> Outcome:
    """Writes that take half of what they are given, by a library that is loaded before the C library's own."""
    outcome = Outcome(
        "short writes: at every writing call of a build, once and for ever",
        "0 false successes, 0 segfaults, 0 hangs",
    )
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        outcome.faults.append("no C compiler here: not run")
        return outcome
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "short.so"
        (Path(folder) / "short.c").write_text(SHORT_WRITES)
        command = [compiler, "-shared", "-fPIC", "-O1", "-w", "-o", str(library), str(Path(folder) / "short.c"), "-ldl"]
        subprocess.run(command, check=True)
        for container in containers:
            with ground(container) as place:
                work = lambda: build(place.options())  # noqa: E731 - called at once
                calls = len(points_of(work, place.folder, "write,pwrite64"))
                for n in (0, *range(1, calls + 1, every)):
                    if budget.spent:
                        return outcome
                    place.clear()
                    code, said = _short(place, library, n)
                    outcome.count("builds")
                    outcome.count("builds that ended with an error", code != 0)
                    outcome.faults += judged(place, f"{container}: short write {n or 'always'}", code, said)
            outcome.count("containers")
    return outcome


ONE_BUILD = """
import sys
sys.path[:0] = {paths!r}
from pathlib import Path
from torture_builds import Ground, Point, build
sys.exit(build(Ground(Path({folder!r}), {container!r}).options()))
"""


def _short(place: Ground, library: Path, n: int) -> tuple[int | None, str]:
    here = Path(__file__).resolve()
    paths = [str(here.parent), str(here.parents[1]), str(here.parents[2])]
    code = ONE_BUILD.format(paths=paths, folder=str(place.folder), container=place.container)
    env = {**os.environ, "LD_PRELOAD": str(library), "SHORT_AT": str(n), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, check=False, env=env, capture_output=True, text=True, timeout=60)
    except subprocess.TimeoutExpired:
        return None, ""
    return done.returncode, done.stderr[-400:]
