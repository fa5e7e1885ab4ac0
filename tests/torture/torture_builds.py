"""Builds in forked children of a process that has loaded everything: a case costs 50 ms, not a second.

The product's own code makes the shards, the journal and the pack; only the engine is another where `engine` is
"inline": it runs the jobs in the child itself, one after another, so that the n-th system call is the same each time.
"""

from __future__ import annotations

import hashlib
import importlib
import mmap
import os
import pkgutil
import random
import re
import shutil
import signal
import subprocess
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from drawn import draw_shots

import packer
from packer import BuildOptions, build_pack, open_pack
from packer.errors import PackerError, UsageError
from packer.processes import pool

# before the forks, each of which would load them again
for module in pkgutil.walk_packages(packer.__path__, "packer."):
    if not module.name.startswith(("packer.loading", "packer.__main__")):
        importlib.import_module(module.name)

CREATING = "openat,mkdir,mkdirat"
WRITING = "write,pwrite64,writev,pwritev,pwritev2,ftruncate,fallocate,copy_file_range"
SYNCING = "fsync,fdatasync,msync,sync_file_range"
NAMING = "rename,renameat,renameat2,link,linkat,unlink,unlinkat,rmdir"
MUTATING = f"{CREATING},{WRITING},{SYNCING},{NAMING}"
IMAGES = 9
TIMEOUT_S = 30.0
BUG = 70


class InlinePool:
    """Runs the jobs in this process."""

    size = 1

    def __init__(self, *_: object) -> None:
        pass

    def __enter__(self) -> InlinePool:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def start(self, workers: int) -> None:
        pass

    def run(
        self, work: Callable[..., Any], jobs: Sequence[Any], tick: Callable[[int, int], None] | None = None
    ) -> Iterator[tuple[int, Any]]:
        for number, job in enumerate(jobs):
            yield number, work(job, lambda done, bad: None)


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
        for _ in range(200):
            child = Child(lambda: build(self.options(), self.engine))
            code = child.wait()
            if "another build" not in child.said:
                break
            time.sleep(0.02)  # a worker, forked with the lock, is not quite dead
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
        place = Ground(Path(folder), container, **others)
        assert place.expected
        yield place


SAID = mmap.mmap(-1, 4096)
"""What a child has to say: in memory that it shares, since writing to a file is what may fail."""


def tell(text: str) -> None:
    """Leave a text for the parent."""
    SAID[:] = text.encode("utf-8", "replace")[-4096:].ljust(4096, b"\0")


def build(options: BuildOptions, engine: str = "inline") -> int:
    """One build in this process; the exit code that the command would have."""
    if engine == "inline":
        pool.Pool = InlinePool  # type: ignore[assignment, misc]
    try:
        build_pack(options)
    except PackerError as error:
        tell(str(error))
        return error.exit_code
    except OSError as error:  # as the command line does it
        tell(str(error))
        return 3
    return 0


class Child:
    """A forked process that does `work` in a process group of its own, once it is released."""

    def __init__(self, work: Callable[[], int], held: bool = False) -> None:
        tell("")
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
            os.setsid()
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.read(go, 1)
            code = work()
        except BaseException:
            tell(traceback.format_exc())
        finally:
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
        self.said = SAID[:].rstrip(b"\0").decode("utf-8", "replace")[-400:]
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


@dataclass(frozen=True)
class Point:
    """A system call of a build: the one behind so many of each name."""

    call: str
    before: dict[str, int]

    def __str__(self) -> str:
        return f"{self.call} {self.before.get(self.call, 0) + 1}"

    def inject(self, what: str, names: str = "") -> list[str]:
        """strace's options: `what` happens at this call; or at it and at all calls of these names from then on."""
        if not names:  # strace counts each name for itself
            inject = f"inject={self.call}:{what}:when={self.before.get(self.call, 0) + 1}"
            return ["-e", f"trace={self.call}", "-e", inject]
        each = [f"inject={name}:{what}:when={self.before.get(name, 0) + 1}+" for name in names.split(",")]
        return ["-e", f"trace={names}", *(option for inject in each for option in ("-e", inject))]


def points_of(work: Callable[[], int], folder: Path, names: str = MUTATING) -> list[Point]:
    """The system calls of these names by which `work` changes something in `folder`, in the thread that makes most."""
    code, said, log = traced(work, "-e", f"trace={names}")
    assert code == 0, said
    lines = [line.split(" ", 1) for line in log.splitlines()]
    threads = [thread for thread, _ in lines]
    main = max(set(threads), key=threads.count)
    before: dict[str, int] = {}
    points = []
    for thread, text in lines:
        call = text.lstrip()
        if thread == main and not call.startswith(("+++", "---", "<...")):
            name = call.partition("(")[0]
            reads_only = name == "openat" and "O_CREAT" not in call
            if str(folder) in call and not reads_only:
                points.append(Point(name, dict(before)))
            before[name] = before.get(name, 0) + 1
    return points


def can_trace() -> bool:
    """Whether strace is here and may look into a child."""
    if shutil.which("strace") is None:
        return False
    try:
        return traced(lambda: 0, "-e", "trace=write")[0] == 0
    except RuntimeError:
        return False


def drawn_points(points: list[Point], share: float, seed: int) -> list[Point]:
    """The points, or a part of them, drawn."""
    return points if share >= 1 else random.Random(seed).sample(points, max(1, int(share * len(points))))
