"""An error as the user sees it: one line on standard error, and one JSON object where ``--json`` is given."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import click

from packer.errors import EXIT_INTERRUPTED, EXIT_USAGE, PackerError, printable

EXIT_BUG = 70  # EX_SOFTWARE of sysexits.h


_PLACE = {"pack": None, "shard": None, "key": None}
"""Where in a pack damage is (`DamagedPack`)."""


def complain(line: str) -> None:
    """Print a line on standard error, if there is one."""
    with suppress(OSError):
        click.echo(f"packer: {line}", err=True)


def failure_line(error: BaseException) -> str:
    """Any error in one line; the bad inputs that it is about stand below."""
    if isinstance(error, PackerError):
        return str(error)
    if isinstance(error, click.ClickException):
        return usage_line(error)
    if isinstance(error, click.Abort | KeyboardInterrupt):
        return "interrupted"
    return f"{type(error).__name__}: {printable(str(error))}; this is a bug: run it as packer --debug ..."


def usage_line(error: click.ClickException) -> str:
    """What click has found wrong on the command line, in packer's own form."""
    command = getattr(getattr(error, "ctx", None), "command_path", "packer")
    return f"{printable(error.format_message()).rstrip('.')}; see {command} --help"


def failure_facts(error: BaseException) -> dict[str, Any]:
    """Any error as JSON values; the same fields for every kind."""
    facts: dict[str, Any] = {"error": type(error).__name__, "where": "", "next_step": "", "rejected": [], **_PLACE}
    if isinstance(error, PackerError):
        rejected = [{"path": r.path, "reason": r.reason, "problem": r.problem} for r in getattr(error, "rejected", ())]
        facts |= {"where": printable(error.where), "next_step": error.next_step, "rejected": rejected}
        facts |= {name: None if (value := getattr(error, name, None)) is None else printable(value) for name in _PLACE}
        return {**facts, "problem": error.problem, "exit_code": error.exit_code}
    if isinstance(error, click.Abort | KeyboardInterrupt):
        return {**facts, "error": "Interrupted", "problem": "interrupted", "exit_code": EXIT_INTERRUPTED}
    if isinstance(error, click.ClickException):
        return {**facts, "error": "UsageError", "problem": usage_line(error), "exit_code": EXIT_USAGE}
    return {**facts, "problem": str(error), "exit_code": EXIT_BUG}
