"""Reports errors: one line on standard error, an exit code, and one JSON object with ``--json``."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import click

from packer.cli.output import ReaderGone, drop_output, echo_error, flush_output
from packer.errors import EXIT_INTERRUPTED, EXIT_USAGE, NotInstalled, PackerError, StorageError, printable

EXIT_BUG = 70  # EX_SOFTWARE of sysexits.h

_PLACE = ("pack", "shard", "key")
"""Attributes of `DamagedPack` that locate the damage."""
_HELP: Any = getattr(click.exceptions, "NoArgsIsHelpError", ())  # since click 8.2


def report(error: BaseException, as_json: bool) -> int:
    """Print the error.

    Args:
        error: What a command raised.
        as_json: Print it as one JSON object on standard output too.

    Returns:
        The exit code.
    """
    if not isinstance(error, PackerError) and isinstance(error, OSError):
        error = StorageError(error.filename or "", error.strerror or str(error))
    if isinstance(error, ModuleNotFoundError) and error.name == "torch":
        error = NotInstalled("", "this command needs PyTorch", "pip install torch")
    if isinstance(error, MemoryError) or str(error) == "can't start new thread":  # CPython's RuntimeError
        error = StorageError("", "not enough memory or threads", "free some, or use fewer --workers")
    facts = failure_facts(error)
    code: int = facts["exit_code"]
    if isinstance(error, _HELP):
        error.show()
        return code
    with suppress(OSError):
        if as_json:
            click.echo(json.dumps(facts))
    with suppress(OSError):
        interrupted = isinstance(error, click.Abort | KeyboardInterrupt)
        echo_error(failure_line(error) if interrupted else f"error: {failure_line(error)}", colored=not as_json)
    with suppress(OSError, ReaderGone):
        flush_output()
        return code
    drop_output()
    return code


def failure_line(error: BaseException) -> str:
    """Return any error as one line, followed by its bad inputs."""
    if isinstance(error, PackerError):
        return error.line
    if isinstance(error, click.ClickException):
        return _usage_line(error)
    if isinstance(error, click.Abort | KeyboardInterrupt):
        return "interrupted"
    return f"{type(error).__name__}: {printable(str(error))}; this is a bug: run it as packer --debug ..."


def failure_facts(error: BaseException) -> dict[str, Any]:
    """Return any error as JSON values; the fields are the same for every kind."""
    facts: dict[str, Any] = {
        "error": type(error).__name__,
        "where": "",
        "next_step": "",
        "rejected": [],
        "reasons": {},
        **dict.fromkeys(_PLACE),
    }
    if isinstance(error, PackerError):
        rejected = [{"path": r.path, "reason": r.reason, "problem": r.problem} for r in getattr(error, "rejected", ())]
        facts |= {"where": printable(error.where), "next_step": error.next_step, "rejected": rejected}
        facts["reasons"] = {reason: count for reason, count, _ in getattr(error, "reasons", ())}
        facts |= {name: printable(value) for name in _PLACE if (value := getattr(error, name, None)) is not None}
        return {**facts, "problem": error.problem, "exit_code": error.exit_code}
    if isinstance(error, click.Abort | KeyboardInterrupt):
        return {**facts, "error": "Interrupted", "problem": "interrupted", "exit_code": EXIT_INTERRUPTED}
    if isinstance(error, click.ClickException):
        return {**facts, "error": "UsageError", "problem": _usage_line(error), "exit_code": EXIT_USAGE}
    return {**facts, "problem": str(error), "exit_code": EXIT_BUG}


def _usage_line(error: click.ClickException) -> str:
    """Return a usage error of click in packer's form."""
    command = getattr(getattr(error, "ctx", None), "command_path", "packer")
    text = printable(error.format_message()).rstrip(".")
    return f"{text} See {command} --help" if text.endswith("?") else f"{text}; see {command} --help"
