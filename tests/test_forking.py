"""A fork that stands for a new interpreter (forking.py) has what a new interpreter has, and leaves nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import forking
import pytest
from running import ROOT, until

pytestmark = pytest.mark.skipif(not forking.CAN_FORK, reason="processes are forked on Linux only")
STATE = """
import __main__, json, os, resource, signal, sys, threading, warnings
import numpy
print(json.dumps({
    "argv": sys.argv, "path": sys.path, "folder": os.getcwd(), "environment": dict(os.environ),
    "main": __main__.__name__, "threads": [thread.name for thread in threading.enumerate()],
    "signals": {n: str(signal.getsignal(n)) for n in sorted(signal.valid_signals())},
    "mask": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])), "umask": os.umask(0),
    "limits": resource.getrlimit(resource.RLIMIT_NOFILE), "streams": [
        (s.name, s.encoding, s.errors, s.newlines, s.line_buffering, s.write_through, s.isatty())
        for s in (sys.stdin, sys.stdout, sys.stderr)
    ],
    "session": os.getsid(0) == os.getpid(), "parent": os.getppid(), "called": open("/proc/self/comm").read(),
    "warnings": sys.warnoptions,
    "inherited": [n for n in range(3, 60) if os.path.exists(f"/proc/self/fd/{n}") and os.get_inheritable(n)],
}, sort_keys=True))
"""
"""Without the threads of libraries: the server keeps OpenBLAS and Arrow from starting any."""
ENDS = {
    "nothing": "pass", "a number": "import sys; sys.exit(7)", "a text": "import sys; sys.exit('bye')",
    "an error": "def f():\n    1 / 0\nf()", "Ctrl-C": "raise KeyboardInterrupt", "a signal": "import os; os.abort()",
    "a thread": "import threading, time\nthreading.Timer(0.1, lambda: print('late')).start()\nprint('first')",
    "at exit": "import atexit; atexit.register(print, 'at exit'); print('before')",
    "killed": "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
    "_exit": "import os; print('lost', end=''); os._exit(3)", "a closed stream": "import sys; sys.stdout.close()",
}  # fmt: skip


def both(*words: str, **options: Any) -> Iterator[subprocess.CompletedProcess[str]]:
    """What a new interpreter does, and what a fork does."""
    for how in (forking.really(), nullcontext()):
        with how:
            yield subprocess.run(
                [sys.executable, *words], capture_output=True, text=True, check=False, timeout=240, **options
            )


def pids() -> set[int]:
    """The children of this process that live."""
    path = Path(f"/proc/self/task/{os.getpid()}/children")
    return {
        int(pid) for pid in path.read_text().split() if "(packer-server)" not in Path(f"/proc/{pid}/stat").read_text()
    }


@pytest.mark.parametrize("options", [(), ("-u",), ("-W", "ignore", "-B")], ids=" ".join)
def test_the_state_is_that_of_a_new_interpreter(tmp_path: Path, options: tuple[str, ...]) -> None:
    environment = {**os.environ, "OWN": "\udcff", "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"}
    environment.pop("HOME", None)
    found = both(
        *options, "-c", STATE, "one", "two words", cwd=tmp_path, env=environment, input="", start_new_session=True
    )
    new, fork = (done.stdout for done in found)
    assert new == fork and '"OWN"' in new


@pytest.mark.parametrize("how", ENDS)
def test_it_ends_as_a_new_interpreter_does(how: str) -> None:
    new, fork = both("-c", ENDS[how])
    assert (new.returncode, new.stdout) == (fork.returncode, fork.stdout)
    assert new.stderr == fork.stderr


def test_scripts_and_modules(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(
        "import sys, beside; print(__name__, __file__, sys.argv, sys.path[0], beside.X)"
    )
    (tmp_path / "beside.py").write_text("X = 3")
    new, fork = both("script.py", "x", cwd=tmp_path)
    assert new.stdout == fork.stdout and new.returncode == fork.returncode == 0
    new, fork = both("-m", "packer", "build", str(tmp_path / "absent"), cwd=ROOT)
    assert (new.returncode, new.stdout, new.stderr) == (
        fork.returncode,
        fork.stdout,
        fork.stderr,
    ) and new.returncode == 2


def test_what_it_starts_are_its_children(tmp_path: Path) -> None:
    inner = "import os; print(os.getppid())"
    outer = (
        f"import os, subprocess, sys\nprint(os.getpid(), flush=True)\nsubprocess.run([sys.executable, '-c', {inner!r}])"
    )
    for done in both("-c", outer):
        first, second = done.stdout.split()
        assert first == second


def test_random_numbers_differ() -> None:
    program = "import random, numpy; print(random.random(), numpy.random.random())"
    said = [subprocess.check_output([sys.executable, "-c", program], text=True).split() for _ in range(2)]
    assert len({*said[0], *said[1]}) == 4


def test_it_is_a_child_that_can_be_waited_for_and_killed() -> None:
    before = pids()
    # below nohup a process ignores SIGINT, and so would a new interpreter
    heeded = "import signal, time; signal.signal(signal.SIGINT, signal.default_int_handler)"
    program = f"{heeded}; print('x', flush=True); time.sleep(1000)"
    process = subprocess.Popen([sys.executable, "-c", program], stdout=-1)
    assert process.stdout is not None and process.stdout.read(1) == b"x"
    assert process.poll() is None and pids() - before == {process.pid}
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == -signal.SIGINT
    process.stdout.close()
    assert until(lambda: pids() <= before, 60)


@pytest.mark.parametrize(
    ("words", "environment"),
    [
        (("-c", "import sys; 'sys.modules'"), {}),
        (("-X", "utf8", "-c", "pass"), {}),
        (("-m", "pip", "--version"), {}),
        (("-c", "pass"), {b"PYTHONHASHSEED": b"other"}),
        (("-c", "pass"), {b"PACKER_PORTABLE": b"other"}),
        (("-c", "pass"), {b"OMP_NUM_THREADS": b"other"}),
    ],
)
def test_what_a_fork_cannot_show_is_not_forked(words: tuple[str, ...], environment: dict[bytes, bytes]) -> None:
    other = {**os.environb, **environment}
    assert not (forking.can_be_forked(words, other, ".") and forking.is_same_start(other, dict(os.environb)))


@pytest.mark.parametrize("name", ["numpy.py", "torch", "json.py", "sitecustomize.py"])
def test_modules_that_would_be_found_first_are_not_passed_over(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_text("") if name.endswith(".py") else (path.mkdir(), (path / "__init__.py").write_text(""))
    assert forking.can_be_forked(["-c", "pass"], {}, "/")
    assert not forking.can_be_forked(["-c", "pass"], {}, str(tmp_path))
    assert not forking.can_be_forked(["-c", "pass"], {b"PYTHONPATH": os.fsencode(tmp_path)}, "/")
