"""Runs `packer` as a program of its own, so that it can be watched, and killed, from outside."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from packer.system import kill_group
from packer.system.pool import import_path

POLL_S = 0.002


@dataclass(frozen=True)
class Ran:
    """How a command ended.

    Attributes:
        code: Exit code; negative: the signal that killed it.
        text: What it printed, on standard output and standard error.
        killed: Whether it was killed here.
    """

    code: int
    text: str
    killed: bool


def run_packer(arguments: Sequence[str], kill_when: Callable[[], bool] | None = None) -> Ran:
    """Run ``packer ARGUMENTS`` in a process of its own, and kill it and its workers when a condition comes true.

    Args:
        arguments: Command and options.
        kill_when: The condition, asked every few milliseconds. None: it runs to its end.
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(import_path()), "PYTHONSAFEPATH": "1"}
    command = [sys.executable, "-m", "packer", *arguments]
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        errors="replace", env=environment, start_new_session=True,
    ) as process:  # fmt: skip
        killed = False
        try:
            while kill_when is not None and process.poll() is None and not killed:
                if killed := kill_when():
                    kill_group(process.pid)
                    process.kill()
                else:
                    time.sleep(POLL_S)
            text, _ = process.communicate()
        except BaseException:
            kill_group(process.pid)
            process.kill()
            raise
    return Ran(process.returncode, text, killed)
