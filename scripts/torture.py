"""Runs the rows of docs/reliability.md, of which the suite runs a few cases each, and keeps what happened.

    scripts/torture.py                            list the rows
    scripts/torture.py kills --seed 17            run one case, and say what happened
    scripts/torture.py kills --runs 400           run seeds 0 to 399, and append a line to docs/evidence/kills.jsonl
    scripts/torture.py flips --runs all           run every case there is
    scripts/torture.py core:yolo --runs 2000000   fuzz one parser (needs atheris: pip install -e ".[torture]");
                                                  other options go to libFuzzer

A seed is a case: each seed below the number of cases is another one, and those above repeat cases with other random
numbers. For fuzzing, the seed is libFuzzer's, and so many inputs follow from it. `scripts/docs.py reliability`
makes the page from docs/evidence.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
EVIDENCE = ROOT / "docs" / "evidence"


# -- the rows of docs/reliability.md: what each does, what must hold, and how its cases run


@dataclass(frozen=True)
class Row:
    """A row of the page."""

    name: str
    what: str
    must_hold: str
    file: str = ""
    """The file in tests/torture that has its cases; empty for rows of other scripts, and for those of the past."""
    tests: str = ""
    """Which tests of the file, as pytest's -k."""

    @property
    def can_run(self) -> bool:
        """Whether it has cases; rows of the past are replaced by other tests."""
        return bool(self.file) or ":" in self.name

    @property
    def group(self) -> str:
        """The table that it stands in: what comes before the colon of its name, or the folder of its test."""
        group, colon, _ = self.name.partition(":")
        return group if colon else "stores" if "remote" in self.file else "packs"

    @property
    def evidence(self) -> str:
        """The file of its runs."""
        return f"{self.name.partition(':')[0]}.jsonl"


BUILDS, PACKS = "test_torture_builds.py", "test_torture_packs.py"
LOADER, PARSERS, REMOTE = "test_torture_loader.py", "test_torture_parsers.py", "test_torture_remote.py"
RESUMED = "0 unreadable, 0 complete but wrong, resumed bytes equal"
HONEST = "0 false successes, 0 crashes, 0 hangs"
NOTICED = "all found by `verify`; read as an error, or exactly as packed"
READ = "an image or BadImage, and the process lives"
RIGHT = "right images, or an error"
PARSED = "a result or one of packer's errors, in less than 1 s"

PAGE_ROWS = [
    Row("kills", "SIGKILL at any mutating system call of a build of three shards, with `--overwrite` too; then resume",
        RESUMED, BUILDS, "test_a_fault_at_any_call and kill"),
    Row("random-kills", "SIGKILL of the process group of a parallel build at random times, and while it resumes",
        RESUMED, BUILDS, "test_random_kills"),
    Row("faults", "ENOSPC, EIO, EDQUOT or EROFS at any call that creates, writes, syncs, names or closes, once or ever",
        f"{HONEST}; no fsync is retried", BUILDS, "test_a_fault_at_any_call and error"),
    Row("short-writes", "writes that take half of the bytes, at each writing call of a build", HONEST,
        BUILDS, "test_short_writes"),
    Row("power-cuts",
        "power cut at any mutating system call: unsynced bytes lost, cut or zeroed, unsynced renames undone", RESUMED,
        BUILDS, "test_a_fault_at_any_call and power"),
    Row("identity", "workers {1, 2, 4} x locales x hash seeds x order of folders x interruptions", "one SHA-256"),
    Row("flips", "every single-bit flip of every file of a small pack", NOTICED, PACKS, "test_damage and flips"),
    Row("truncations", "every truncation of every file, and appended bytes", NOTICED,
        PACKS, "test_damage and truncations"),
    Row("changes", "blocks, images and files zeroed, copied, exchanged, renamed, doubled", NOTICED,
        PACKS, "test_damage and changes"),
    Row("hostile",
        "packs with changed columns and manifests, all digests right: each is opened, and goes on to one of 38 uses "
        "(commands, page, loader); of those refused when opened, one in ten",
        "an exit code or error of packer, less than 10 s, nothing written elsewhere",
        PACKS, "test_hostile_packs"),
    Row("bombs", "a JPEG of 937 bytes and 30000x30000 pixels; giant PNG, GIF, WebP, TIFF, BMP; XML entities; deep JSON",
        "refused in less than 10 ms and 5 MiB"),
    Row("workers", "deaths of workers of a DataLoader: fork, spawn, forkserver, persistent or not",
        "0 hangs, one type of error", LOADER, "test_worker_deaths"),
    Row("resume", "resume positions of a loader of 97 records x threads {1, 2, 4} x world sizes 1 to 8", "exact order",
        LOADER, "test_resume_positions"),
    Row("left-early",
        "20 epochs left at random places by break, close, an error, next(iter()), while OpenCV works in all threads",
        "the process lives; the next whole epoch is as if nothing had been", LOADER, "test_epochs_left_early"),
    Row("leaks", "40 openings of a pack; 20 epochs of a DataLoader",
        "no descriptor left, no memory that grows; workers grow less than 2 %",
        LOADER, "test_opening_leaves_nothing or test_workers_take_no_more_memory"),
    Row("images", "mutated images of each format through the decode path", READ, PARSERS, "test_mutations and decode"),
    Row("image-flips", "every single-bit flip of a small image of each variant through the decode path", READ,
        PARSERS, "test_flipped_bits_of_images"),
    Row("labels", "mutated labels, lists, archives, manifests and indexes", PARSED,
        PARSERS, "test_mutations and not decode and not header"),
    Row("fuzz", "coverage-guided fuzzing (atheris) of manifest, index, YOLO, list, VOC and image headers", PARSED),
    Row("cache-kills", "SIGKILL of a process that fills a cache, with another beside it; then a third",
        "right images, no hang, nothing whole fetched again", REMOTE, "test_kills_while_filling"),
    Row("block-flips", "a flipped bit in every block of a pack: in the first answer, in every answer, in the cache",
        "right images, or an error that names the record", REMOTE, "test_flipped_bits_of_every_block"),
    Row("cache-disk", "ENOSPC, EIO, EDQUOT at each write of a cache, once and from then on",
        f"{RIGHT}; all right afterwards", REMOTE, "test_a_full_disk"),
    Row("evictions", "100 evictions or more while two processes of two threads read at random what hardly fits",
        "right images; only files of the cache are removed", REMOTE, "test_evictions_while_reading"),
    Row("store-replaced", "a shard becomes another object at each block",
        "an error that names it, if it is read afterwards", REMOTE, "test_an_object_that_is_replaced"),
    Row("store-faults",
        "503, closed connections, cut answers, flipped bits, other bytes and ranges, alone and together",
        RIGHT, REMOTE, "test_a_store_at_its_worst"),
]  # fmt: skip

FUZZ = {
    "list": "lists", "coco": "COCO", "labelme": "LabelMe", "createml": "Create ML", "vott": "VoTT",
    "widerface": "WIDER FACE", "yolo": "YOLO", "config": "`--config`", "pts": "PTS",
    "cvat": "CVAT (images and video)", "dlib": "dlib", "lists": "lists of a pack", "rle": "run lengths of COCO",
    "selection": "`--include`, `--exclude`", "voc": "VOC", "yaml": "data.yaml", "archive": "zips and tars as sources",
    "members": "members of zips and tars", "manifest": "manifests", "index": "indexes", "header": "headers of images",
    "decode": "images",
}  # fmt: skip
"""Parsers that are fuzzed with their source."""

CORE = {
    "pts": "PTS", "list-row": "a line of a list, by its columns", "list-columns": "`--columns`",
    "list-layout": "separator, header and columns of a list", "list-blocks": "lines by pyarrow, and one by one",
    "coco-object": "images, categories and annotations of COCO", "coco-map": "the places of them in the file",
    "rle": "run lengths of COCO", "yolo": "YOLO rows", "yaml": "data.yaml", "voc": "VOC", "cvat": "CVAT",
    "dlib": "dlib", "labelme": "LabelMe", "createml": "Create ML", "vott": "VoTT", "widerface": "WIDER FACE",
    "members": "members of zips and tars", "selection": "`--include`, `--exclude`", "config": "`--config`",
    "lists": "lists of a pack", "adopt-webdataset": "WebDataset tars of others",
    "adopt-tfrecord": "TFRecords of others",
    "adopt-parquet": "Parquet of others", "adopt-npy": "`.npy` of others", "adopt-idx": "IDX of others",
}  # fmt: skip
"""Parsers that are fuzzed alone."""

NODES = {"ray": "Ray, a node killed with its processes", "dask": "dask, a worker killed with SIGKILL"}

TRAINERS = {
    "bare": "a loop of one's own",
    "torchrun": "torchrun, DistributedDataParallel, 2 processes",
    "lightning": "Lightning",
    "lightning-ddp": "Lightning, ddp, 2 processes",
    "lightning-workers": "Lightning, torchdata with 2 workers",
    "accelerate": "accelerate",
    "accelerate-2": "accelerate, 2 processes",
    "torchdata": "torchdata",
    "torchdata-workers": "torchdata, 2 workers",
    "transformers": "transformers.Trainer",
}

OTHERS = {
    "fuzz": (FUZZ, PARSED),
    "core": (CORE, PARSED),
    "nodes": (NODES, "every file has the SHA-256 of the local build"),
    "trainers": (TRAINERS, "the parts before and after a kill are the undisturbed run, batch for batch"),
}

ROWS = {row.name: row for row in PAGE_ROWS} | {
    f"{group}:{name}": Row(f"{group}:{name}", what, must_hold)
    for group, (names, must_hold) in OTHERS.items()
    for name, what in names.items()
}


# -- running them

MEASURED = ("docs/evidence", "docs/reliability.md")
"""What a run changes itself: no reason to call its commit dirty."""


@dataclass
class Series:
    """What became of some cases."""

    outcomes: Counter[str] = field(default_factory=Counter)
    failed: list[int] = field(default_factory=list)
    of: int = 0
    """How many different cases there are; 0 if any number."""

    def add(self, outcomes: dict[str, int], failed: Sequence[int], of: int = 0) -> None:
        """Count more cases."""
        self.outcomes.update(outcomes)
        self.failed += failed
        self.of += of


def by_pytest(row: Row, first: int, runs: int | None) -> Series:
    """Run cases that tests have, in pytest."""
    series = Series()
    with tempfile.TemporaryDirectory(prefix="packer-evidence-") as folder:
        report = Path(folder, "report.jsonl")
        seeds = {"PACKER_TORTURE_SEEDS": f"{first}:{'all' if runs is None else runs}"}
        command = [sys.executable, "-m", "pytest", f"tests/torture/{row.file}", "-k", row.tests, "-s", "-rs"]
        command += ["--no-header", "-o", "faulthandler_timeout=0", "-o", "addopts=-q --strict-markers"]
        command += ["-p", "no:cacheprovider"]
        env = {**os.environ, **seeds, "PACKER_TORTURE_REPORT": str(report)}
        code = subprocess.run(command, cwd=ROOT, env=env, check=False).returncode
        for line in report.read_text("utf-8").splitlines() if report.exists() else ():
            series.add(**json.loads(line))
    if code and not series.failed:
        sys.exit(f"{row.name}: pytest ended with exit code {code} without a failed case; nothing is kept")
    return series


def by_script(row: Row, first: int, runs: int) -> Series:
    """Run cases that kill nodes or trainers."""
    group, _, name = row.name.partition(":")
    series = Series()
    for seed, outcome, problem in importlib.import_module(f"faults.{group}").cases(name, range(first, first + runs)):
        print(f"{row.name} {seed}: {problem or outcome}", flush=True)
        series.add({"failed" if problem else outcome: 1}, [seed] if problem else [])
    return series


def by_fuzzing(row: Row, first: int, runs: int, options: Sequence[str]) -> Series:
    """Fuzz a parser in a process of its own, which libFuzzer ends."""
    command = [sys.executable, "scripts/faults/fuzz.py", row.name, f"-runs={runs}", "-print_final_stats=1", *options]
    command += [f"-seed={first}"] if first else []  # libFuzzer takes 0 for any
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        lines = []
        for line in process.stderr:
            print(line, end="", file=sys.stderr, flush=True)
            lines.append(line)
    executed = re.search(r"number_of_executed_units: +(\d+)", "".join(lines))
    if executed is None:
        sys.exit(f"{row.name}: the fuzzer has not run; nothing is kept")
    series = Series()
    series.add({"executions": int(executed[1])}, [first] if process.returncode else [])
    return series


def state_of_tree() -> tuple[str, bool]:
    """Return the commit, and whether files of the working tree differ from it."""
    changed = [f":(exclude){path}" for path in MEASURED]
    commands = (["rev-parse", "--short=10", "HEAD"], ["status", "--porcelain", "--", ".", *changed])
    commit, status = (
        subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
        for words in commands
    )
    return commit, bool(status)


def line_of(row: Row, series: Series, first: int, seconds: float, tree: tuple[str, bool]) -> dict[str, Any]:
    """Return what is kept of a series: nothing of it names this machine or its folders."""
    from packer.bench.report import machine

    facts = machine()
    return {
        "row": row.name,
        "date": facts["date"],
        "commit": tree[0],
        "dirty": tree[1],
        "first_seed": first,
        "runs": sum(series.outcomes.values()),
        "of": series.of,
        "outcomes": dict(series.outcomes.most_common()),
        "faults": len(series.failed),
        "failed_seeds": series.failed,
        "seconds": round(seconds, 1),
        "machine": {
            "cpu": facts["processor"],
            "cores": facts["cores"],
            "kernel": facts["system"].partition("-")[0],
            "python": platform.python_version(),
        },
    }


def list_rows() -> None:
    """Print all rows."""
    width = max(map(len, ROWS))
    for row in ROWS.values():
        note = "" if row.can_run else " (cannot be run: its past runs are kept, and other tests check it now)"
        print(f"{row.name:{width}}  {row.what}{note}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is asked for; return 1 if a case failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("row", nargs="?", metavar="ROW", help="row of docs/reliability.md (default: list them)")
    parser.add_argument("--runs", help="number of cases to run and keep, or all (default: 1, which is not kept)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first case (default: 0)")
    parser.add_argument("--evidence", type=Path, default=EVIDENCE, help="folder of the runs (default: docs/evidence)")
    given, others = parser.parse_known_args(arguments)
    if given.row is None:
        list_rows()
        return 0
    row = ROWS.get(given.row)
    if row is None or not row.can_run:
        parser.error(f"{given.row!r} is not a row that can be run; scripts/torture.py lists them")
    group = row.name.partition(":")[0]
    fuzzed = group in ("fuzz", "core")
    if fuzzed and importlib.util.find_spec("atheris") is None:
        sys.exit(f'{row.name}: atheris is not installed; pip install -e ".[torture]" (Python 3.13 or older)')
    if others and not fuzzed:
        parser.error(f"unknown options: {' '.join(others)}")
    if given.runs == "all" and not row.file:
        parser.error(f"{row.name} has any number of cases; give --runs a number")
    if given.runs not in (None, "all") and not re.fullmatch("[1-9][0-9]*", given.runs):
        parser.error(f"--runs must be a number or all, got {given.runs!r}")
    runs = None if given.runs == "all" else int(given.runs or 1)
    if runs is None and given.seed:
        parser.error("--runs all begins at seed 0; omit --seed")
    tree, started = state_of_tree(), time.monotonic()
    if row.file:
        series = by_pytest(row, given.seed, runs)
    elif fuzzed:
        series = by_fuzzing(row, given.seed, runs or 1, others)
    else:
        series = by_script(row, given.seed, runs or 1)
    if not series.outcomes:
        sys.exit(f"{row.name}: no case ran; the reason stands above")
    line = line_of(row, series, given.seed, time.monotonic() - started, tree)
    for seed in series.failed:
        print(f"To repeat: scripts/torture.py {row.name} --seed {seed}")
    if given.runs:
        given.evidence.mkdir(parents=True, exist_ok=True)
        with open(given.evidence / row.evidence, "a", encoding="utf-8") as file:
            print(json.dumps(line), file=file)
        print(json.dumps(line, indent=1))
    return 1 if series.failed else 0


if __name__ == "__main__":
    sys.exit(main())
