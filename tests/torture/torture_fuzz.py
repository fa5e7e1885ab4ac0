"""Fuzzes packer's parsers under coverage guidance, and keeps the inputs that reach new code as replay tests.

    python tests/torture/torture_fuzz.py                     all targets, to the counts that are asked for
    python tests/torture/torture_fuzz.py yaml --minutes 5    one of them
    python tests/torture/torture_fuzz.py --keep              write tests/torture/corpus from what was found so far

libFuzzer (by way of atheris) ends its process, so each chunk of executions is a process of its own. Counts, working
corpora and faults lie in build/torture; counts hold for one state of the code behind a target, and add up over runs.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from outcome import Budget, Outcome

ROOT = Path(__file__).resolve().parent.parent.parent
WORK = ROOT / "build" / "torture" / "fuzz"
COUNTS = ROOT / "build" / "torture" / "fuzz_counts.json"
CORPUS = Path(__file__).resolve().parent / "corpus"
CHUNK = 250_000
HANG_S = 1
MOST_FAULTS = 5
"""After so many in one target, more of the same would follow."""
MOST_KEPT, MOST_KEPT_BYTES = 90, 40_000
"""Inputs kept of each target."""


def fuzz(budget: Budget, share: float = 1.0, names: tuple[str, ...] = ()) -> Outcome:
    """Run every target until it has had its executions, or the time is over (shared out evenly)."""
    from torture_fuzz_targets import TARGETS

    outcome = Outcome(
        "coverage-guided fuzzing (atheris) of manifest, index, YOLO, list, VOC, image header checks",
        "20 M executions in all, 0 uncaught exceptions, 0 hangs over 1 s",
    )
    chosen = list(names or TARGETS)
    for number, name in enumerate(chosen):
        target, faults = TARGETS[name], 0
        ends = None
        if budget.minutes is not None:
            left = 60 * budget.minutes - (time.monotonic() - budget.started)
            ends = time.monotonic() + max(1.0, left / (len(chosen) - number))
        state = code_of(target.files)
        while (have := count_of(name, state)) < share * target.executions and faults < MOST_FAULTS:
            if ends is not None and time.monotonic() >= ends:
                break
            seconds = None if ends is None else max(1, int(ends - time.monotonic()))
            wanted = min(CHUNK, int(share * target.executions) - have)
            found = _chunk(name, max(1, wanted), seconds, budget.seed + have)
            _add_count(name, state, found.executed)
            outcome.faults += found.faults
            faults += len(found.faults)
            print(f"{time.strftime('%T')} {name}: {have + found.executed:,} executions, "
                  f"{len(outcome.faults)} faults", flush=True)  # fmt: skip
            if found.executed == 0 and not found.faults:
                outcome.faults.append(f"{name}: the fuzzer did not run: {found.said[-300:]}")
                break
    for name in TARGETS:
        outcome.count(f"of {name}", count_of(name, code_of(TARGETS[name].files)))
    present = sum(outcome.done.values())
    earlier = sum(sum(counts.values()) for counts in _counts().values()) - present
    outcome.done = {"executions of the present code": present, "of its earlier states": earlier, **outcome.done}
    return outcome


class _Chunk:
    """What one process has done."""

    def __init__(self, executed: int, faults: list[str], said: str) -> None:
        self.executed, self.faults, self.said = executed, faults, said


def _chunk(name: str, runs: int, seconds: int | None, seed: int) -> _Chunk:
    from torture_fuzz_targets import TARGETS

    most = TARGETS[name].most_bytes
    corpus, found = WORK / name / "corpus", WORK / name / "found"
    for folder in (corpus, found):
        folder.mkdir(parents=True, exist_ok=True)
    before = set(found.iterdir())
    with tempfile.TemporaryDirectory() as seeds:
        write_seeds(name, Path(seeds))
        options = [f"-runs={runs}", f"-seed={seed % (1 << 31) + 1}", f"-artifact_prefix={found}/", f"-timeout={HANG_S}"]
        options += ["-print_final_stats=1", f"-max_len={most}", "-rss_limit_mb=3000", "-verbosity=1"]
        options += [] if seconds is None else [f"-max_total_time={seconds}"]
        options += _dictionary(name)
        done = _child(name, [*options, str(corpus), seeds])
    said = done.stdout + done.stderr
    stats = re.findall(r"stat::number_of_executed_units:\s*(\d+)", said) or re.findall(r"^#(\d+)\s", said, re.M)
    faults = [text for path in sorted(set(found.iterdir()) - before) if (text := _fault(name, path, said))]
    return _Chunk(int(stats[-1]) if stats else 0, faults, said)


def _child(name: str, options: list[str]) -> subprocess.CompletedProcess[str]:
    command = [*_command(name), *options]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, capture_output=True, text=True, errors="replace", env=environment, check=False)


def _command(name: str) -> list[str]:
    from torture_fuzz_targets import TARGETS

    return [sys.executable, __file__, "--child", name, ",".join(TARGETS[name].also) or "packer"]


def _fault(name: str, artifact: Path, said: str) -> str:
    """What an input that libFuzzer has set aside does; "" for one that only a busy machine made slow."""
    kind = artifact.name.partition("-")[0]
    if kind in ("slow", "timeout") and _seconds(name, artifact) <= HANG_S:
        artifact.unlink()
        return ""
    said = "".join(re.findall(r"Uncaught Python exception: ===\n(.*?)\n", said)[-1:]) or said[-200:]
    return f"{name}: {kind} on build/torture/fuzz/{name}/found/{artifact.name}: {said}"


def _seconds(name: str, artifact: Path) -> float:
    """Processor time of one input, in another process."""
    code = (
        "import sys, time, pathlib; from torture_fuzz_targets import TARGETS; one = TARGETS[sys.argv[1]].one\n"
        "data = pathlib.Path(sys.argv[2]).read_bytes(); start = time.process_time(); one(data)\n"
        "print(time.process_time() - start)"
    )
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{Path(__file__).parent}"}
    command = [sys.executable, "-c", code, name, str(artifact)]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120, check=False)
    except subprocess.TimeoutExpired:
        return 120.0
    return float(ran.stdout) if ran.returncode == 0 else 120.0


def code_of(files: tuple[str, ...]) -> str:
    """A digest of files of the package."""
    digest = hashlib.sha256()
    for file in files:
        digest.update((ROOT / "packer" / file).read_bytes())
    return digest.hexdigest()[:16]


def count_of(name: str, state: str) -> int:
    """Executions of a target so far, with its files in this state."""
    return int(_counts().get(name, {}).get(state, 0))


def _add_count(name: str, state: str, executed: int) -> None:
    counts = _counts()
    of_target = counts.setdefault(name, {})
    of_target[state] = of_target.get(state, 0) + executed
    COUNTS.parent.mkdir(parents=True, exist_ok=True)
    COUNTS.write_text(json.dumps(counts, indent=1) + "\n")


def _counts() -> dict[str, Any]:
    return dict(json.loads(COUNTS.read_text())) if COUNTS.is_file() else {}


def kept(name: str) -> list[bytes]:
    """The inputs of a target that are kept in the repository: one JSON text a line, a character for each byte."""
    path = CORPUS / f"{name}.jsonl"
    return [json.loads(line).encode("latin-1") for line in path.read_text().splitlines()] if path.is_file() else []


def write_seeds(name: str, folder: Path) -> None:
    """The drawn inputs of a target, and the kept ones, as files."""
    from torture_fuzz_targets import TARGETS

    for i, data in enumerate([*TARGETS[name].seeds(), *kept(name)]):
        (folder / f"seed{i:04d}").write_bytes(data)


def _dictionary(name: str) -> list[str]:
    """libFuzzer's option for the words that mutations may insert."""
    from torture_fuzz_targets import WORDS

    if name not in WORDS:
        return []
    path = WORK / name / "words.dict"
    lines = ['"' + "".join(f"\\x{byte:02x}" for byte in word) + '"' for word in WORDS[name]]
    path.write_text("\n".join(lines) + "\n")
    return [f"-dict={path}"]


def keep(name: str) -> int:
    """Write what is kept of a target, out of the inputs that together reach all that its working corpus reaches."""
    from torture_fuzz_targets import TARGETS

    with tempfile.TemporaryDirectory() as place:
        least, seeds = Path(place, "least"), Path(place, "seeds")
        least.mkdir()
        seeds.mkdir()
        write_seeds(name, seeds)
        # libFuzzer starts itself anew for each round of a merge, by the name that it was given
        starter = Path(place, "start")
        command = shlex.join(_command(name))
        starter.write_text(f"#!/bin/sh\nPYTHONPATH={ROOT} exec {command} \"$@\"\n")
        starter.chmod(0o755)
        folders = [str(least), str(seeds), str(WORK / name / "corpus")]
        options = ["-merge=1", f"-max_len={TARGETS[name].most_bytes}", *folders]
        done = subprocess.run([str(starter), *options], env={**os.environ, "FUZZ_START": str(starter)},
                              capture_output=True, text=True, errors="replace", check=False)  # fmt: skip
        inputs = sorted((path.read_bytes() for path in least.iterdir()), key=lambda data: (len(data), data))
        if not inputs:
            raise RuntimeError(f"the merge has kept nothing: {done.stderr[-500:]}")
    lines: list[str] = []
    for data in inputs[:: -(-len(inputs) // MOST_KEPT)]:  # short and long ones
        line = json.dumps(data.decode("latin-1"))
        if sum(map(len, lines)) + len(line) <= MOST_KEPT_BYTES:
            lines.append(line)
    CORPUS.mkdir(exist_ok=True)
    (CORPUS / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    return len(lines)


def child(name: str, options: list[str]) -> None:
    """Fuzz one target in this process; libFuzzer never comes back."""
    import atheris

    # which packages to instrument must be known before they are imported: it stands in the command
    with atheris.instrument_imports(include=["packer", *options.pop(0).split(",")]):
        from torture_fuzz_targets import TARGETS
    one = _broken if os.environ.get("PACKER_FUZZ_BREAK") == name else TARGETS[name].one
    atheris.Setup([os.environ.get("FUZZ_START", sys.argv[0]), *options], one)
    atheris.Fuzz()


def _broken(data: bytes) -> None:
    """Stands for a parser with a fault, in the test of this harness."""
    if data.startswith(b"\x80"):
        raise ValueError("broken on purpose")


def main() -> int:
    """As the module says; 1 where a fault was found."""
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2], sys.argv[3:])
        return 0
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", metavar="TARGET")
    parser.add_argument("--minutes", type=float)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--share", type=float, default=1.0, help="of the executions that are asked for")
    parser.add_argument("--keep", action="store_true")
    given = parser.parse_args()
    if given.keep:
        from torture_fuzz_targets import TARGETS

        for name in given.targets or TARGETS:
            print(f"{name}: {keep(name)} inputs kept")
        return 0
    outcome = fuzz(Budget(given.minutes, given.seed), given.share, tuple(given.targets))
    print(json.dumps(outcome.done, indent=1), *outcome.faults, sep="\n")
    return 1 if outcome.faults else 0


if __name__ == "__main__":
    sys.exit(main())
