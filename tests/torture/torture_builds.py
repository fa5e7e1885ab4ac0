"""Builds in forked children of a process that has loaded everything: a case costs 50 ms, not a second.

The product's own code makes the shards, the journal and the pack; only the engine is another where `engine` is
"inline": it runs the jobs in the child itself, one after another, so that the n-th system call is the same each time.
"""

from __future__ import annotations

import hashlib
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import packer.build
import packer.build.local as local
from drawn import draw_shots
from packer import BuildOptions, build_pack, open_pack
from packer.build import (  # noqa: F401 - loaded before the forks
    commit,
    inputs,
    plan,
    resume,
    summary,
)
from packer.build.measure import measure
from packer.build.shard import pack_shard
from packer.containers import open_container
from packer.errors import PackerError, UsageError

CREATING = "openat,mkdir,mkdirat"
WRITING = "write,pwrite64,writev,pwritev,pwritev2,ftruncate,fallocate,copy_file_range"
SYNCING = "fsync,fdatasync,msync,sync_file_range"
NAMING = "rename,renameat,renameat2,link,linkat,unlink,unlinkat,rmdir"
MUTATING = f"{CREATING},{WRITING},{SYNCING},{NAMING}"
IMAGES = 9
TIMEOUT_S = 30.0
BUG = 70


class InlineEngine:
    """Runs the jobs in this process."""

    def __init__(self, *_: object) -> None:
        pass

    def __enter__(self) -> InlineEngine:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def warm_up(self) -> None:
        pass

    def measure(self, job: Any) -> Any:
        return measure(job)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)

    def run(self, jobs: Sequence[Any], tick: Callable[[int, int], None]) -> Iterator[tuple[int, Any]]:
        for number, job in enumerate(jobs):
            yield number, pack_shard(job, lambda done, bad: True)


@dataclass
class Ground:
    """Where builds of one container are tried: the source, and what the pack must be."""

    folder: Path
    container: str
    engine: str = "inline"
    workers: int = 1

    @property
    def out(self) -> Path:
        return self.folder / "p"

    @property
    def partial(self) -> Path:
        return self.folder / "p.partial"

    def options(self, name: str = "p", **others: Any) -> BuildOptions:
        """Three shards of three images, with boxes."""
        return BuildOptions(
            str(self.folder / "src"), out=str(self.folder / name), format=self.container, labels=("voc",),
            shard_bytes=12_000, workers=self.workers, **others,
        )  # fmt: skip

    def clear(self) -> None:
        """Remove what builds have made."""
        for path in (self.out, self.partial):
            shutil.rmtree(path, ignore_errors=True)

    def state(self) -> str:
        """absent, partial, whole (the very pack that was expected), or what is wrong."""
        try:
            open_pack(self.out)
        except UsageError:
            return "partial" if self.partial.exists() else "absent"
        except PackerError as error:
            return f"unreadable: {error}"
        return "whole" if digests(self.out) == self.expected else "complete but wrong"

    @property
    def expected(self) -> dict[str, str]:
        """Digests of the pack that an uninterrupted build makes."""
        if not hasattr(self, "_expected"):
            child = Child(lambda: build(self.options("oracle"), self.engine))
            assert child.wait() == 0, child.said
            self._expected = digests(self.folder / "oracle")
            assert len(self._expected) >= 7, "three shards, their indexes and the manifest"
        return self._expected

    def finish(self) -> str | None:
        """Build again without any fault; what is wrong with the result, if anything."""
        child = Child(lambda: build(self.options(), self.engine))
        code = child.wait()
        if code != 0 and not (code == 2 and self.state() == "whole"):
            return f"going on ended with {code}: {child.said}"
        state = self.state()
        if state != "whole":
            return f"after going on: {state}"
        return f"{self.partial} stayed" if code == 0 and self.partial.exists() else None


def digests(pack: Path) -> dict[str, str]:
    """SHA-256 of every file of a pack."""
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(pack.iterdir())}


@contextmanager
def ground(container: str, **others: Any) -> Iterator[Ground]:
    """A ground in memory where there is such a file system: fsync costs nothing there."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=memory, prefix="packer-torture-") as folder:
        draw_shots(Path(folder) / "src", IMAGES)
        open_container(container)  # loads the library
        place = Ground(Path(folder), container, **others)
        assert place.expected
        yield place


def build(options: BuildOptions, engine: str = "inline") -> int:
    """One build in this process; the exit code that the command would have."""
    packer.build.local.LocalEngine = InlineEngine if engine == "inline" else _LOCAL  # type: ignore[assignment, misc]
    local.START_METHOD = "fork"
    try:
        build_pack(options)
    except PackerError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    except OSError as error:  # as the command line does it
        sys.stderr.write(f"{error}\n")
        return 3
    return 0


_LOCAL = local.LocalEngine


class Child:
    """A forked process that does `work` in a process group of its own, once it is released."""

    def __init__(self, work: Callable[[], int], held: bool = False) -> None:
        self._file = tempfile.TemporaryFile()
        go, self._release = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            self._run(work, go)
        os.close(go)
        self.said = ""
        if not held:
            self.release()

    def _run(self, work: Callable[[], int], go: int) -> None:
        code = BUG
        try:
            os.close(self._release)
            os.setsid()
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.dup2(self._file.fileno(), 1)
            os.dup2(self._file.fileno(), 2)
            sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", closefd=False)
            os.read(go, 1)
            code = work()
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)

    def release(self) -> None:
        """Let it begin."""
        os.write(self._release, b"g")
        os.close(self._release)

    def kill(self) -> None:
        """Kill the whole process group, at once."""
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:  # not yet the leader of one
            os.kill(self.pid, signal.SIGKILL)

    def wait(self, timeout_s: float = TIMEOUT_S) -> int | None:
        """Its exit code, minus the signal that ended it, or None after a hang (then it is killed)."""
        end = time.monotonic() + timeout_s
        while True:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                break
            if time.monotonic() > end:
                self.kill()
                os.waitpid(self.pid, 0)
                status = -1
                break
            time.sleep(0.001)
        self._file.seek(0)
        self.said = self._file.read().decode("utf-8", "replace").strip()[-400:]
        self._file.close()
        return None if status == -1 else os.waitstatus_to_exitcode(status)


def traced(work: Callable[[], int], *strace: str) -> tuple[int | None, str, str]:
    """Run `work` in a child under strace: its exit code (see `Child.wait`), what it said, and the trace."""
    with tempfile.NamedTemporaryFile("r", suffix=".strace") as log:
        child = Child(work, held=True)
        command = ["strace", "-f", "-qq", "-y", "-o", log.name, *strace, "-p", str(child.pid)]
        tracer = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        status = Path(f"/proc/{child.pid}/status")
        while not re.search(r"TracerPid:\t[1-9]", status.read_text()):
            if tracer.poll() is not None:
                raise RuntimeError("strace cannot trace here")
            time.sleep(0.0005)
        child.release()
        code = child.wait()
        tracer.wait(10)
        return code, child.said, Path(log.name).read_text(errors="replace")


def calls_of(work: Callable[[], int], names: str = MUTATING) -> int:
    """How many of these system calls `work` makes, in the thread that makes most of them."""
    code, said, log = traced(work, "-e", f"trace={names}")
    assert code == 0, said
    by_thread: dict[str, int] = {}
    for line in log.splitlines():
        by_thread[line.split(" ", 1)[0]] = by_thread.get(line.split(" ", 1)[0], 0) + 1
    return max(by_thread.values())


def can_trace() -> bool:
    """Whether strace is here and may look into a child."""
    if shutil.which("strace") is None:
        return False
    try:
        return traced(lambda: 0, "-e", "trace=write")[0] == 0
    except RuntimeError:
        return False


def drawn_points(count: int, share: float, seed: int) -> list[int]:
    """1 to count, or a part of them, drawn."""
    points = list(range(1, count + 1))
    return points if share >= 1 else sorted(random.Random(seed).sample(points, max(1, int(share * count))))
