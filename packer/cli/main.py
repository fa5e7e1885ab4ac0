"""Entry point of the command line: signals, standard files and exit codes."""

from __future__ import annotations

import _thread
import os
import signal
import sys
import threading
import time
from types import FrameType
from typing import Any


def main(arguments: list[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: The arguments after the program name; default: those of this process.

    Returns:
        The exit code (docs/cli.md lists them).
    """
    try:
        code = run(sys.argv[1:] if arguments is None else arguments)
    except KeyboardInterrupt:  # raised while the libraries of `run` were loaded
        print("packer: interrupted", file=sys.stderr)
        code = 130
    if arguments is None:
        from packer.system import ENDING_SIGNALS

        for number in ENDING_SIGNALS:
            signal.signal(number, signal.SIG_IGN)  # nothing is left but Python's shutdown
    return code


def run(given: list[str]) -> int:
    """Run the command line `given` and return its exit code."""
    import click

    from packer.cli.error_reports import report
    from packer.cli.group import cli
    from packer.cli.output import ReaderGone, drop_output, flush_output
    from packer.errors import EXIT_IO
    from packer.system import ENDING_SIGNALS

    _open_standard_files()
    for number in ENDING_SIGNALS[1:]:
        if number == signal.SIGTERM or signal.getsignal(number) == signal.SIG_DFL:  # SIGHUP is ignored under nohup
            signal.signal(number, _raise_terminated)
    before, sys.unraisablehook = sys.unraisablehook, _send_again
    if given[:1] == ["help"]:  # of git, cargo, docker, ...
        given = [*given[1:2], "--help"]
    try:
        cli.main(given, prog_name="packer", standalone_mode=False)
        flush_output()
        return 0
    except click.exceptions.Exit as done:
        return done.exit_code
    except ReaderGone:
        drop_output()
        return EXIT_IO
    except (Exception, KeyboardInterrupt) as error:
        expected = isinstance(error, click.ClickException | click.Abort | KeyboardInterrupt)
        if "--debug" in given and not expected:
            raise
        return report(error, given)
    finally:
        sys.unraisablehook = before


def _open_standard_files() -> None:
    """Open standard files that are closed (``2>&-``): a shard must not get their numbers, to which libraries write."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free: this one
            os.set_inheritable(number, True)


def _send_again(unraisable: Any) -> None:
    """Send a signal again if it came while Python ran a finalizer, which prints and drops its exception."""
    error = unraisable.exc_value
    if isinstance(error, KeyboardInterrupt):
        number = signal.SIGINT
    elif isinstance(error, SystemExit) and isinstance(error.code, int) and error.code > 128:  # of `_terminated`
        number = signal.Signals(error.code - 128)
    else:
        sys.__unraisablehook__(unraisable)
        return
    # from another thread, after this call: here its exception would be dropped again
    threading.Thread(target=_send_after, args=(sys._getframe(), number), daemon=True).start()


def _send_after(call: FrameType, number: signal.Signals) -> None:
    """Send a signal to the main thread when it has left a call."""
    left = False
    while not left:
        time.sleep(0.02)
        frame = sys._current_frames().get(threading.main_thread().ident or 0)
        while frame is not None and frame is not call:
            frame = frame.f_back
        left = frame is None
    _thread.interrupt_main(number)


def _raise_terminated(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)  # unwinds: an unfinished build is removed
