"""An interrupt says what is kept; one that comes while Python runs a finalizer is not lost, and shows no traceback."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from drawn import draw_plain
from running import good, run, signals_heard

from packer.system import ENDING_SIGNALS

SCRIPT = """
import signal, sys, time, weakref
import click
import packer.cli.group
from packer.cli.main import run

class Thing: pass

@packer.cli.group.cli.command()
def victim():
    thing = Thing()
    weakref.finalize(thing, signal.raise_signal, getattr(signal, sys.argv[1]))
    del thing
    for _ in range(100):
        time.sleep(0.05)

sys.exit(run(["victim"]))
"""


SLOWLY = """
import threading, time
start = threading.Thread.start
threading.Thread.start = lambda thread: (start(thread), time.sleep(0.3))
"""


def ended(name: str, before: str = "") -> tuple[int, str]:
    command = [sys.executable, "-c", before + SCRIPT, name]
    with signals_heard():
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=240)
    return done.returncode, done.stderr.strip()


def test_ctrl_c_in_a_finalizer() -> None:
    assert ended("SIGINT") == (130, "packer: interrupted")


@pytest.mark.parametrize("number", ENDING_SIGNALS[1:])
def test_sigterm_and_sighup_in_a_finalizer(number: signal.Signals) -> None:
    assert ended(number.name) == (128 + number, "")


def test_sigterm_in_a_finalizer_of_a_busy_machine() -> None:
    """The thread that sends the signal again may run long before the one that started it goes on."""
    assert ended("SIGTERM", SLOWLY) == (128 + signal.SIGTERM, "")


def test_what_is_kept_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*given: object) -> None:
        raise KeyboardInterrupt

    draw_plain(tmp_path / "src", 8)
    asked = ("build", tmp_path / "src", "-o", tmp_path / "p")
    with monkeypatch.context() as patched:
        patched.setattr("packer.packing.build.pack_shards", interrupted)
        ran = run(*asked)
        assert (ran.code, ran.err.strip()) == (130, "packer: interrupted")
        assert "nothing is kept: no shard was finished; the same command starts again" in ran.out
        assert "kept" not in run(*asked, "--quiet").out
    with monkeypatch.context() as patched:
        patched.setattr("packer.packing.publish.Output.publish", interrupted)
        ran = run(*asked)
        assert f"1 finished shard is kept in {tmp_path}/p.partial: run the same command to resume" in ran.out
    assert "1 finished shard kept" in good(*asked).out
