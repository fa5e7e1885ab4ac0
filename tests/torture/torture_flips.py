"""Every bit of a small pack flipped, every length cut, and blocks, records and shards exchanged.

`verify` must find each. A reader must raise an error, or read exactly what was packed: the difference then lies in
bytes that belong to the container alone. Cases run in forked children, a run of them in each: a child that crashes is
noticed, the crash counted, and the next child goes on behind it.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
from outcome import Budget, Outcome
from PIL import Image
from torture_damage import Case, Pack, change_cases, cut_cases, flip_cases, sampled

from packer import BuildOptions, build_pack, open_pack
from packer.containers import CONTAINERS
from packer.errors import PackerError
from packer.format.verify import verify

RUN = 500
"""Cases in one child."""
CASE_S = 10
FIELDS = ("label", "boxes", "box_labels", "landmarks", "polygons", "keypoints", "box_fields", "extras")
COLUMNS = ("key", "path", "source_xxh3", "height", "width", "channels", "dtype", "encoding", *FIELDS)


def small_pack(home: Path, container: str) -> Pack:
    """Five images of 4x4 pixels with labels, boxes, points and extras, in two shards."""
    source = home / "source"
    if not source.is_dir():
        random_pixels = np.random.default_rng(0)
        source.mkdir()
        lines = []
        for number in range(5):
            Image.fromarray(random_pixels.integers(0, 256, (4, 4, 3), dtype=np.uint8)).save(source / f"{number}.png")
            lines.append(f"{number}.png,{'ab'[number % 2]},{number}.5,1.25,2.5,3.0,night {number}")
        (source / "labels.csv").write_text("path,label,x1,y1,x2,y2,when\n" + "\n".join(lines) + "\n")
    folder = home / f"pack.{container}"
    options = BuildOptions(
        str(source), str(folder), container, workers=1, shard_bytes=150, labels=(f"list:{source / 'labels.csv'}",)
    )  # fmt: skip
    build_pack(options)
    return opened(folder)


def opened(folder: Path) -> Pack:
    """What there is to know of a good pack."""
    pack = open_pack(folder)
    images: dict[str, list[tuple[int, int]]] = {}
    for i in range(len(pack)):
        shard, _ = pack.locate(i)
        start = int(pack.offsets[i] - pack._starts[shard])
        images.setdefault(pack.shards[shard].container.name, []).append((start, start + int(pack.sizes[i])))
    return Pack(folder, read_all(folder), {p.name: p.read_bytes() for p in sorted(folder.iterdir())}, images)


def read_all(folder: Path) -> object:
    """Every byte and every number that a reader can ask for."""
    pack = open_pack(folder)
    records = []
    for i in range(len(pack)):
        a = pack.annotation(i)
        image = pack.image(i)
        records.append((pack.key(i), image.tobytes(), image.shape, repr([plain(getattr(a, name)) for name in FIELDS])))
    columns = [(name, repr([plain(row) for row in pack.column(name)])) for name in COLUMNS]
    return records, columns, pack.classes, pack.paths


def plain(value: object) -> object:
    """A value that `repr` shows in full."""
    if isinstance(value, np.ndarray):
        return str(value.dtype), value.shape, value.tobytes()
    return [plain(v) for v in value] if isinstance(value, (tuple, list)) or hasattr(value, "offsets") else value


# -- running cases


def run(pack: Pack, cases: Iterable[Case], budget: Budget) -> Outcome:
    """Run the cases on a copy of the pack, in forked children."""
    outcome = Outcome("", "")
    home = Path(tempfile.mkdtemp(prefix="flips"))
    copy = home / "pack"
    try:
        for chunk in _chunks(cases):
            rest = list(chunk)
            while rest and not budget.spent:
                shutil.rmtree(copy, ignore_errors=True)
                shutil.copytree(pack.folder, copy)
                done = _child(pack, copy, rest, outcome)
                rest = rest[done:]
    finally:
        shutil.rmtree(home, ignore_errors=True)
    return outcome


def _chunks(cases: Iterable[Case]) -> Iterator[list[Case]]:
    chunk: list[Case] = []
    for case in cases:
        chunk.append(case)
        if len(chunk) == RUN:
            yield chunk
            chunk = []
    yield chunk


def _child(pack: Pack, copy: Path, cases: list[Case], outcome: Outcome) -> int:
    """Run cases in a child until one of them ends it; how many are done with."""
    ours, theirs = os.pipe()
    child = os.fork()
    if not child:
        os.close(ours)
        _run_all(pack, copy, cases, theirs)
    os.close(theirs)
    with open(ours, encoding="utf-8") as lines:
        told = [line.rstrip("\n") for line in lines]
    _, status = os.waitpid(child, 0)
    whole = [line for line in told if line.count("\t") == 1]
    for line in whole:
        verdict, fault = line.split("\t")
        outcome.count("cases")
        outcome.count(verdict)
        if fault:
            outcome.faults.append(fault)
    if os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0:
        return len(whole)
    how = f"signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else f"exit code {os.WEXITSTATUS(status)}"
    outcome.count("cases")
    outcome.count("crashes")
    outcome.faults.append(f"{pack.folder.name} {cases[len(whole)].name}: the child ended with {how}")
    return len(whole) + 1


def _run_all(pack: Pack, copy: Path, cases: list[Case], pipe: int) -> None:
    code = 1
    try:
        with open(pipe, "w", encoding="utf-8") as out:
            for case in cases:
                signal.alarm(CASE_S)  # a hang ends the child
                verdict, fault = _verdict(pack, copy, case)
                at = f"{pack.folder.name} {case.name}: {fault}" if fault else ""
                out.write(f"{verdict}\t{at}\n")
                out.flush()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _verdict(pack: Pack, copy: Path, case: Case) -> tuple[str, str]:
    """What became of a case, and what is wrong with that."""
    case.change(copy)
    try:
        found = _damaged(copy)
        if found is None:
            return "missed by verify", "verify says good"
        if not isinstance(found, str):
            return "missed by verify", f"verify raised {found!r}"
        try:
            same = read_all(copy) == pack.content
        except PackerError as error:
            return "read as an error", "" if error.problem else "an error without a problem"
        except Exception as error:
            return "read as another error", f"reading raised {error!r}"
        if not same:
            return "read wrong", "reading gave something else"
        return "read as packed", "reading raised nothing" if case.loud else ""
    finally:
        for name in case.files:
            _put_back(copy / name, pack.files.get(name))


def _damaged(copy: Path) -> str | Exception | None:
    try:
        problems = verify(copy).problems
        return None if not problems else "problems"
    except PackerError:
        return "refused"
    except Exception as error:
        return error


def _put_back(path: Path, data: bytes | None) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    if data is None:
        path.unlink(missing_ok=True)
    else:
        path.unlink(missing_ok=True)  # a new file: a map of the old one may still be there
        path.write_bytes(data)


# -- the rows


def _row(what: str, goal: str, cases_of: Callable[[Pack], Iterable[Case]], budget: Budget) -> Outcome:
    outcome = Outcome(what, goal)
    with tempfile.TemporaryDirectory() as home:
        for container in CONTAINERS:
            pack = small_pack(Path(home), container)
            outcome.count("bytes", sum(map(len, pack.files.values())))
            outcome.add(run(pack, cases_of(pack), budget))
    return outcome


def flips(budget: Budget, share: float = 1.0) -> Outcome:
    """Every single-bit flip."""
    what = "every single-bit flip of every file of a small pack, per container"
    goal = "100 % by `verify`; read as an error, or exactly as packed"
    return _row(what, goal, lambda pack: sampled(flip_cases(pack), share, budget.seed), budget)


def truncations(budget: Budget, share: float = 1.0) -> Outcome:
    """Every length, and appended bytes."""
    what = "every truncation length of every file, and appended bytes, per container"
    return _row(what, "100 % found, 0 crashes", lambda pack: sampled(cut_cases(pack), share, budget.seed), budget)


def changes(budget: Budget, share: float = 1.0) -> Outcome:
    """Blocks, images and files exchanged, zeroed, doubled."""
    what = "blocks, images and files zeroed, copied, exchanged, renamed, doubled, per container"
    goal = "100 % by `verify`; read as an error, or exactly as packed"
    return _row(what, goal, lambda pack: sampled(change_cases(pack, budget.seed), share, budget.seed), budget)
