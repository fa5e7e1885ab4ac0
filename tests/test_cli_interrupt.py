"""An interrupt that comes while Python runs a finalizer is not lost, and shows no traceback."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest
from running import signals_heard

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


def ended(name: str) -> tuple[int, str]:
    command = [sys.executable, "-c", SCRIPT, name]
    with signals_heard():
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=240)
    return done.returncode, done.stderr.strip()


def test_ctrl_c_in_a_finalizer() -> None:
    assert ended("SIGINT") == (130, "packer: interrupted")


@pytest.mark.parametrize("number", ENDING_SIGNALS[1:])
def test_sigterm_and_sighup_in_a_finalizer(number: signal.Signals) -> None:
    assert ended(number.name) == (128 + number, "")
