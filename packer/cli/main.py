"""Runs a command, and turns its error into one line and an exit code."""

from __future__ import annotations

import _thread
import json
import os
import signal
import sys
import threading
from contextlib import suppress
from types import FrameType
from typing import Any

import click

from packer.cli.errors import complain, failure_facts, failure_line
from packer.cli.say import ReaderGone
from packer.errors import EXIT_IO, PackerError, StorageError

_HELP: Any = getattr(click.exceptions, "NoArgsIsHelpError", ())  # since click 8.2


def run(given: list[str]) -> int:
    """Run the command line `given`; returns the exit code (docs/cli.md lists them)."""
    from packer.cli.group import cli

    _open_standard_files()
    signal.signal(signal.SIGTERM, _terminated)
    if signal.getsignal(signal.SIGHUP) == signal.SIG_DFL:  # ignored under nohup
        signal.signal(signal.SIGHUP, _terminated)
    before, sys.unraisablehook = sys.unraisablehook, _not_lost
    try:
        cli.main(given, prog_name="packer", standalone_mode=False)
        _flush()
        return 0
    except click.exceptions.Exit as done:
        return done.exit_code
    except ReaderGone:
        _forget_output()
        return EXIT_IO
    except Exception as error:
        if "--debug" in given and not isinstance(error, click.ClickException | click.Abort):
            raise
        if isinstance(error, OSError) and not isinstance(error, PackerError):
            error = StorageError(error.filename or "", error.strerror or str(error))
        if isinstance(error, MemoryError) or str(error) == "can't start new thread":  # CPython's RuntimeError
            error = StorageError("", "not enough memory or threads", "free some, or take fewer --workers")
        return _report(error, "--json" in given)
    except KeyboardInterrupt as interrupt:
        return _report(interrupt, "--json" in given)
    finally:
        sys.unraisablehook = before


def _report(error: BaseException, as_json: bool) -> int:
    """Tell of the error; returns its exit code."""
    facts = failure_facts(error)
    code: int = facts["exit_code"]
    if isinstance(error, _HELP):
        error.show()
        return code
    if as_json:
        with suppress(OSError):
            click.echo(json.dumps(facts))
    complain(failure_line(error))
    with suppress(OSError):
        _flush()
        return code
    _forget_output()
    return code


def _flush() -> None:
    if sys.stdout is not None:  # None where the caller has closed it
        try:
            sys.stdout.flush()
        except BrokenPipeError:
            raise ReaderGone from None


def _forget_output() -> None:
    """Standard output takes nothing any more: Python must not try again when it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _open_standard_files() -> None:
    """Where standard files are closed (``2>&-``), a shard must not get their numbers: libraries write to them."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free: this one
            os.set_inheritable(number, True)


def _not_lost(unraisable: Any) -> None:
    """Where a signal comes while Python runs a finalizer, its exception is shown and dropped: send it once more."""
    error = unraisable.exc_value
    if isinstance(error, KeyboardInterrupt):
        number = int(signal.SIGINT)
    elif isinstance(error, SystemExit) and isinstance(error.code, int) and error.code > 128:  # of `_terminated`
        number = error.code - 128
    else:
        sys.__unraisablehook__(unraisable)
        return
    # from another thread, when this call is over: here it would be raised, and dropped, at once
    later = threading.Timer(0.02, _thread.interrupt_main, (number,))
    later.daemon = True
    later.start()


def _terminated(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)  # unwinds: an unfinished build is removed
