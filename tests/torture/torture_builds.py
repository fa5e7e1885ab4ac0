"""Builds in forked children of a process that has loaded everything (50 ms each), with faults injected by strace.

The jobs of a build run in the child itself, one after another, so that its n-th system call is the same each time; all
else is the product's own code.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "audit"), str(HERE.parents[1])]

import numpy as np  # noqa: E402
from drawn import draw_shots  # noqa: E402
from PIL import Image  # noqa: E402
from running import digests, jobs_here  # noqa: E402

from packer import BuildOptions, build_pack, open_pack  # noqa: E402
from packer.errors import PackerError, UsageError  # noqa: E402
from packer.system import PORTABLE  # noqa: E402

CREATING = "openat mkdir mkdirat"
WRITING = "write pwrite64 writev pwritev pwritev2 ftruncate fallocate copy_file_range"
SYNCING = "fsync fdatasync msync sync_file_range"
NAMING = "rename renameat renameat2 link linkat unlink unlinkat rmdir"
MUTATING = f"{CREATING} {WRITING} {SYNCING} {NAMING}".split()
BUG = 70
TIMEOUT_S = 120.0
IMAGES = 9


class Call(NamedTuple):
    """One system call of a build: the `number`-th of its name."""

    name: str
    number: int
    before: dict[str, int]
    """How many calls of each name came before it."""

    def inject(self, fault: str, names: Sequence[str] = ()) -> list[str]:
        """Return strace's options for a fault at this call; with `names`, also at all later calls of these names."""
        if not names:
            return ["-e", f"trace={self.name},close", "-e", f"inject={self.name}:{fault}:when={self.number}"]
        faults = [f"inject={name}:{fault}:when={self.before.get(name, 0) + 1}+" for name in names]
        return ["-e", f"trace={','.join(names)}", *(word for one in faults for word in ("-e", one))]


def draw_parts(source: Path) -> None:
    """Draw a mask, a depth map and a text for each image of a folder."""
    random = np.random.default_rng(7)
    for image in sorted(source.rglob("*.jpg")):
        with Image.open(image) as opened:
            width, height = opened.size
        parts = {
            "masks": random.integers(0, 4, (height, width)).astype(np.uint8),
            "depth": random.integers(0, 9000, (height, width)).astype(np.uint16),
        }
        for folder, values in parts.items():
            (source / folder).mkdir(exist_ok=True)
            Image.fromarray(values).save(source / folder / f"{image.stem}.png")
        (source / "said").mkdir(exist_ok=True)
        (source / "said" / f"{image.stem}.txt").write_text(f"this is {image.stem}")


@dataclass
class Place:
    """A folder with a source of nine images with boxes and parts; its pack `p` has three shards."""

    folder: Path
    container: str

    def __post_init__(self) -> None:
        self.out, self.partial = self.folder / "p", self.folder / "p.partial"
        draw_shots(self.folder / "src", IMAGES)
        draw_parts(self.folder / "src")
        for name, others in (("whole", {}), ("old", {"resize": "8"})):
            assert build(self.options(name, **others)) == 0, said()  # in this process: children have all loaded
        self.whole, self.old = digests(self.folder / "whole"), digests(self.folder / "old")
        assert len(self.whole) == 9, "three shards, their indexes, fingerprints and their list, and the manifest"

    def options(self, name: str = "p", **others: Any) -> BuildOptions:
        """Three shards of three images."""
        others = {"workers": 1, **others}
        return BuildOptions(
            str(self.folder / "src"), out=str(self.folder / name), format=self.container, labels=("voc",),
            shard_bytes=12_000, mask="masks", part=("depth=depth:map", "said=said:text"), **others,
        )  # fmt: skip

    def work(self) -> int:
        """Build."""
        return build(self.options())

    def clear(self, overwrite: bool = False) -> None:
        """Remove what builds have made; with `overwrite`, another pack stands there instead."""
        for path in (self.out, self.partial):
            shutil.rmtree(path, ignore_errors=True)
        if overwrite:
            shutil.copytree(self.folder / "old", self.out)

    def state(self) -> str:
        """Return absent, partial, whole (the pack of an undisturbed build), old, or what is wrong."""
        try:
            open_pack(self.out)
        except UsageError:
            return "partial" if self.partial.exists() else "absent"
        except PackerError as error:
            return f"unreadable: {error}"
        found = digests(self.out)
        return {str(self.whole): "whole", str(self.old): "old"}.get(str(found), "complete but wrong")

    def check(self, code: int | None, text: str, overwrite: bool = False, **others: Any) -> None:
        """Check what a build that met a fault has left behind, and that the next one, which meets none, is whole."""
        state = self.state()
        allowed = ("old", "whole") if overwrite and not PORTABLE else ("old", "absent", "partial", "whole")
        how = "hangs" if code is None else f"ends with {code}"
        assert code in (-signal.SIGKILL, 0, 1, 2, 3), f"the build {how}: {text}"
        assert code != 0 or state == "whole", f"the build succeeds, but the pack is {state}"
        assert state in allowed, f"afterwards the pack is {state}"
        for _ in range(2000):
            code, text = Child(lambda: build(self.options(overwrite=overwrite, **others))).wait()
            if "another build" not in text:
                break
            time.sleep(0.02)  # a worker that holds the lock is not quite dead
        exists = state == "whole" and code == UsageError("").exit_code
        assert code == 0 or exists, f"the next build ends with {code}: {text}"
        assert self.state() == "whole", f"after the next build the pack is {self.state()}"
        assert exists or not self.partial.exists(), f"{self.partial} is left"


SAID = mmap.mmap(-1, 4096)
"""What a build has to say: in shared memory, since writing to a file is what may fail."""


def say(text: str) -> None:
    """Leave a text for the parent process."""
    SAID[:] = text.encode("utf-8", "replace")[-4096:].ljust(4096, b"\0")


def said() -> str:
    """Return the text that was left last."""
    return SAID[:].rstrip(b"\0").decode("utf-8", "replace")[-600:]


def build(options: BuildOptions) -> int:
    """Build, in this process if one worker is asked for; the exit code that the command would have."""
    with jobs_here() if options.workers == 1 else nullcontext():
        return code_of(lambda: build_pack(options))


def code_of(work: Callable[[], object]) -> int:
    """Do `work`; the exit code that a command would have."""
    try:
        work()
    except PackerError as error:
        say(str(error))
        return error.exit_code
    except OSError as error:  # as the command line does it
        say(str(error))
        return 3
    return 0


class Child:
    """A forked process that does `work` in a process group of its own, once it is released."""

    def __init__(self, work: Callable[[], int], held: bool = False) -> None:
        say("")
        go, self._release = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            code = BUG
            try:
                os.setsid()
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                os.read(go, 1)
                code = work()
            except BaseException:
                say(traceback.format_exc())
            finally:
                os._exit(code)
        os.close(go)
        if not held:
            self.release()

    def release(self) -> None:
        """Let it begin."""
        os.write(self._release, b"g")
        os.close(self._release)

    def kill(self) -> None:
        """Kill the whole process group."""
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:  # not yet the leader of one
            os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> tuple[int | None, str]:
        """Return its exit code, or minus the signal that ended it, or None if it hangs; and what it said."""
        end = time.monotonic() + TIMEOUT_S
        while True:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                return os.waitstatus_to_exitcode(status), said()
            if time.monotonic() > end:
                self.kill()
                os.waitpid(self.pid, 0)
                return None, said()
            time.sleep(0.001)


def traced(work: Callable[[], int], *strace: str) -> tuple[int | None, str, list[str]]:
    """Run `work` in a child under strace: its exit code, what it said, and the lines of the trace."""
    with tempfile.NamedTemporaryFile("r", suffix=".strace", errors="replace") as log:
        child = Child(work, held=True)
        command = ["strace", "-f", "-qq", "-y", "-o", log.name, *strace, "-p", str(child.pid)]
        tracer = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        status = Path(f"/proc/{child.pid}/status")
        while not re.search(r"TracerPid:\t[1-9]", status.read_text()):
            if tracer.poll() is not None:
                child.kill()
                child.wait()
                raise RuntimeError("strace cannot trace here")
            time.sleep(0.0005)
        child.release()
        code, text = child.wait()
        tracer.wait(60)
        return code, text, log.read().splitlines()


def can_trace() -> bool:
    """Whether strace is installed and may trace a child."""
    try:
        return shutil.which("strace") is not None and traced(lambda: 0, "-e", "trace=write")[0] == 0
    except RuntimeError:
        return False


def calls_of(work: Callable[[], int], folder: Path, names: Sequence[str]) -> list[Call]:
    """Return the calls of these names by which `work` changes a folder, in the thread that makes most of them."""
    code, text, log = traced(work, "-e", f"trace={','.join(names)}")
    assert code == 0, text
    lines = [line.split(maxsplit=1) for line in log]
    threads = [thread for thread, _ in lines]
    before: dict[str, int] = {}
    calls = []
    for _, call in (line for line in lines if line[0] == max(set(threads), key=threads.count)):
        if call.startswith(("+++", "---", "<...")):
            continue
        name = call.partition("(")[0]
        if str(folder) in call and (name != "openat" or "O_CREAT" in call):
            calls.append(Call(name, before.get(name, 0) + 1, dict(before)))
        before[name] = before.get(name, 0) + 1
    return calls


SHORT_WRITES = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/stat.h>
#include <unistd.h>
long short_write, writes;  /* at which write, and how many there were */
static size_t less(int fd, size_t n) {
    struct stat facts;
    if (n < 2 || fd < 3 || fstat(fd, &facts) || !S_ISREG(facts.st_mode)) return n;
    ++writes;
    return short_write == -1 || writes == short_write ? n / 2 : n;
}
ssize_t write(int fd, const void *data, size_t n) {
    ssize_t (*real)(int, const void *, size_t) = dlsym(RTLD_NEXT, "write");
    return real(fd, data, less(fd, n));
}
ssize_t pwrite64(int fd, const void *data, size_t n, off_t at) {
    ssize_t (*real)(int, const void *, size_t, off_t) = dlsym(RTLD_NEXT, "pwrite64");
    return real(fd, data, less(fd, n), at);
}
ssize_t pwrite(int fd, const void *data, size_t n, off_t at) { return pwrite64(fd, data, n, at); }
"""
"""Loaded before the C library: writes that take half of what they are given."""


def main(library: str, folder: str, container: str) -> None:
    """With the library above preloaded, answer each number on standard input: what a short write there does."""
    place = Place(Path(folder), container)
    short_write, writes = (ctypes.c_long.in_dll(ctypes.CDLL(library), name) for name in ("short_write", "writes"))
    count = mmap.mmap(-1, 8)

    def work(at: int) -> int:
        short_write.value, writes.value = at, 0
        try:
            return build(place.options())
        finally:
            short_write.value = 0
            count[:] = writes.value.to_bytes(8, "little")

    for line in sys.stdin:
        place.clear()
        try:
            place.check(*Child(lambda at=int(line): work(at)).wait())  # type: ignore[misc]
            print(int.from_bytes(count[:], "little"), flush=True)
        except AssertionError as error:
            print(repr(error), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
