"""The same bytes in whatever surroundings a build runs, and however often it was interrupted."""

from __future__ import annotations

import hashlib
import itertools
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from outcome import Budget, Outcome
from torture_builds import ground

from packer.containers import CONTAINERS

ROOT = Path(__file__).resolve().parents[2]
SHUFFLED = """
import os, random, sys
real_scandir, real_listdir, dice = os.scandir, os.listdir, random.Random({seed})
class Shuffled:
    def __init__(self, path):
        with real_scandir(path) as entries:
            self.entries = list(entries)
        dice.shuffle(self.entries)
        self.entries = iter(self.entries)
    def __iter__(self): return self
    def __next__(self): return next(self.entries)
    def __enter__(self): return self
    def __exit__(self, *_): pass
    def close(self): pass
def listdir(path='.'):
    names = real_listdir(path)
    dice.shuffle(names)
    return names
os.listdir = listdir
os.scandir = lambda path='.': real_scandir(path) if isinstance(path, int) else Shuffled(path)
from packer.__main__ import main
sys.exit(main(sys.argv[1:]))
"""
WORKERS = (1, 2, 4)
LOCALES = ({"LC_ALL": "C"}, {"LC_ALL": "C.UTF-8", "TZ": "Pacific/Kiritimati"}, {"LC_ALL": "tr_TR.UTF-8"})
HASH_SEEDS = ("0", "1", "4000000000")


def identity(budget: Budget, share: float = 1.0, containers: tuple[str, ...] = CONTAINERS) -> Outcome:
    """Every combination of workers, locale, hash seed, and interruption; folders are listed in another order each."""
    outcome = Outcome(
        "byte-identity over workers {1, 2, 4} x locales x hash seeds x shuffled directory order x interruptions",
        "one sha256",
    )
    dice = random.Random(budget.seed)
    for container in containers:
        with ground(container) as place:
            expected = _sha256(place.folder / "oracle")
            cases = list(itertools.product(WORKERS, LOCALES, HASH_SEEDS, (False, True)))
            dice.shuffle(cases)
            for workers, locale, hash_seed, interrupted in cases[: max(1, round(share * len(cases)))]:
                if budget.spent:
                    return outcome
                place.clear()
                env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": hash_seed, **locale}
                # as the oracle was asked
                options = ["--format", container, "--labels", "voc", "--shard-size", "12000", "--workers", str(workers)]
                given = ["build", str(place.folder / "src"), "-o", str(place.out), "--quiet", *options]
                command = [sys.executable, "-c", SHUFFLED.format(seed=dice.randrange(1 << 30)), *given]
                where = f"{container}: workers {workers}, {locale}, hash seed {hash_seed}, interrupted {interrupted}"
                if interrupted:
                    outcome.count("interruptions", _interrupt(command, env, dice))
                done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
                outcome.count("builds")
                if done.returncode != 0 and "exists" not in done.stderr:
                    outcome.faults.append(f"{where}: {done.stderr[-300:]}")
                elif _sha256(place.out) != expected:
                    outcome.faults.append(f"{where}: other bytes")
        outcome.count("containers")
    return outcome


def _interrupt(command: list[str], env: dict[str, str], dice: random.Random) -> int:
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen(command, env=env, start_new_session=True, **quiet)
    time.sleep(dice.uniform(0.4, 1.6))
    try:
        os.killpg(process.pid, dice.choice((signal.SIGKILL, signal.SIGINT, signal.SIGTERM)))
    except ProcessLookupError:
        return 0
    return int(process.wait(30) != 0)


def _sha256(pack: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(pack.iterdir()) if pack.is_dir() else ():
        digest.update(path.name.encode() + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


