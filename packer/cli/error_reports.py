"""Reports errors: a line on standard error, the next step on one of its own, an exit code, and JSON with ``--json``."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from functools import partial
from typing import Any

import click

from packer.cli.output import ReaderGone, as_typed, drop_output, echo_error, echo_step, flush_output
from packer.errors import (
    EXIT_INTERRUPTED,
    EXIT_USAGE,
    NotInstalled,
    PackerError,
    StorageError,
    UsageError,
    as_options,
    option,
    printable,
)

EXIT_BUG = 70  # EX_SOFTWARE of sysexits.h

_PLACE = ("pack", "shard", "key")
"""Attributes of `DamagedPack` that locate the damage."""
OTHER_NAMES = {
    "pack": "build", "create": "build", "make": "build", "ls": "info", "list": "info", "inspect": "info",
    "show": "view", "check": "verify", "unpack": "extract", "import": "adopt",
    "fix": "repair", "upload": "push", "download": "pull", "generate": "sample", "benchmark": "bench",
}  # fmt: skip
"""What other programs call a command -> its name here."""
_HELP: Any = getattr(click.exceptions, "NoArgsIsHelpError", ())  # since click 8.2


def report(error: BaseException, given: Sequence[str]) -> int:
    """Print the error; with ``--json`` also as one JSON object on standard output.

    Args:
        error: What a command raised.
        given: The words of the command line, without the name of the program.

    Returns:
        The exit code.
    """
    if not isinstance(error, PackerError) and isinstance(error, OSError):
        error = StorageError(error.filename or "", error.strerror or str(error))
    if isinstance(error, ModuleNotFoundError) and error.name == "torch":
        error = NotInstalled("", "this command needs PyTorch", "pip install torch")
    if isinstance(error, MemoryError) or str(error) == "can't start new thread":  # CPython's RuntimeError
        error = StorageError("", "not enough memory or threads", "free some, or use fewer --workers")
    as_json = "--json" in given
    facts = failure_facts(error, given)
    code: int = facts["exit_code"]
    if isinstance(error, _HELP):
        error.show()
        return code
    with suppress(OSError):
        if as_json:
            click.echo(json.dumps(facts))
    with suppress(OSError):
        interrupted = isinstance(error, click.Abort | KeyboardInterrupt)
        text, steps = failure_text(error, given)
        echo_error(as_typed(text if interrupted else f"error: {text}", given), colored=not as_json)
        steps += corrected_command(error, given)
        for number, step in enumerate(steps):
            line = as_typed(step, given)
            if number:
                click.echo(f"  {line}", err=True)
            else:
                echo_step(line, colored=not as_json)
    with suppress(OSError, ReaderGone):
        flush_output()
        return code
    drop_output()
    return code


def failure_text(error: BaseException, given: Sequence[str] = ()) -> tuple[str, list[str]]:
    """Return any error as one line, followed by its bad inputs; and what to do: no line, or one."""
    if isinstance(error, PackerError):
        form = form_of(given)
        steps = [form(printable(error.next_step))] if error.next_step else []
        if not steps and isinstance(error, UsageError):
            steps = [_help_of(given)]
        return error.shown(form, with_step=False), steps
    if isinstance(error, click.ClickException):
        problem, step = _usage_text(error, given)
        return problem, [step]
    if isinstance(error, click.Abort | KeyboardInterrupt):
        return "interrupted", []
    return f"{type(error).__name__}: {printable(str(error))}", ["this is a bug: run it as packer --debug ..."]


def form_of(given: Sequence[str]) -> Callable[[str], str]:
    """Return the function that shows a text of an error as the command that was given names its options."""
    name = next((word for word in given if not word.startswith("-")), "")
    command = _commands().get(name)
    params = command.params if command is not None else []
    arguments = {str(p.name): p.human_readable_name for p in params if isinstance(p, click.Argument)}
    options = [p for p in params if isinstance(p, click.Option)]
    may_lack_value = [p for p in options if not p.is_flag and isinstance(p.flag_value, str)]
    attached = {p.opts[-1].removeprefix(option("")) for p in may_lack_value}
    return partial(as_options, arguments=arguments, attached=attached)


def corrected_command(error: BaseException, given: Sequence[str]) -> list[str]:
    """Return the same command with the options that an error names as its remedy, as a list of at most one line."""
    remedy = getattr(error, "remedy", ())
    if not remedy or "build" not in given[:2]:
        return []
    options = {word for word in remedy if word.startswith("--")}
    words, skipped = [], False
    for word in given:
        if skipped:
            skipped = False
        elif word in options:
            skipped = True  # its value
        elif word.partition("=")[0] not in options:
            words.append(word)
    end = words.index("--") if "--" in words else len(words)
    return [printable(shlex.join(["packer", *words[:end], *remedy, *words[end:]]))]


def failure_facts(error: BaseException, given: Sequence[str] = ()) -> dict[str, Any]:
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
        form = form_of(given)
        facts |= {"where": error.shown_where(form), "next_step": form(error.next_step), "rejected": rejected}
        facts["reasons"] = {reason: count for reason, count, _ in getattr(error, "reasons", ())}
        facts |= {name: printable(value) for name in _PLACE if (value := getattr(error, name, None)) is not None}
        return {**facts, "problem": form(error.problem), "exit_code": error.exit_code}
    if isinstance(error, click.Abort | KeyboardInterrupt):
        return {**facts, "error": "Interrupted", "problem": "interrupted", "exit_code": EXIT_INTERRUPTED}
    if isinstance(error, click.ClickException):
        problem, step = _usage_text(error)
        return {**facts, "error": "UsageError", "problem": problem, "next_step": step, "exit_code": EXIT_USAGE}
    return {**facts, "problem": str(error), "exit_code": EXIT_BUG}


def _usage_text(error: click.ClickException, given: Sequence[str] = ()) -> tuple[str, str]:
    """Return a usage error of click in packer's form, and the next step: the command as it was meant, or its help."""
    problem = printable(error.format_message().partition(" Did you mean ")[0].partition(" (Did you mean ")[0]).rstrip(
        "."
    )
    words = list(given)
    if (option := getattr(error, "option_name", None)) is not None and "No such" in problem:
        if near := get_close_matches(option, getattr(error, "possibilities", None) or (), 1, LIKE):
            words = [
                near[0] + word.removeprefix(option) if word.partition("=")[0] == option else word for word in given
            ]
        elif words and words[0] == option and option in _options_of("build"):
            words = ["build", *given]
    elif words and "No such command" in problem:
        near = get_close_matches(words[0], _commands(), 1)
        words[0] = OTHER_NAMES.get(words[0].lower(), near[0] if near else words[0])
    elif (extra := problem.partition("unexpected extra argument (")[2].rstrip(")")) in words[1:]:
        words = _with_extra(words, extra)
    if words == list(given):
        return problem, _help_of(given)
    return problem, printable(shlex.join(["packer", *words]))


LIKE = 0.75
"""How alike an unknown option must be to be taken for another: --shard-size is not --resize."""


def _options_of(command: str) -> set[str]:
    commands = _commands()
    return {o for p in commands[command].params for o in p.opts} if command in commands else set()


def _commands() -> Mapping[str, click.Command]:
    from packer.cli.group import ALIASES, cli

    return {**cli.commands, **ALIASES}


def _with_extra(words: list[str], extra: str) -> list[str]:
    """Return a command line with an argument too many as it was probably meant: an option, a height, the new pack."""
    number = len(words) - 1 - words[::-1].index(extra)
    before, after = words[:number], words[number + 1 :]
    name, equals, value = extra.partition("=")
    options = _options_of(words[0])
    if equals and f"--{name.replace('_', '-')}" in options:
        return [*before, f"--{name.replace('_', '-')}", value, *after]
    if before[-2:-1] == ["--resize"] and extra.isdigit() and before[-1].isdigit():
        return [*before[:-1], f"{before[-1]}x{extra}", *after]
    if "--out" in options and not {"-o", "--out"} & set(words):
        return [*before, "-o", extra, *after]
    return words


def _help_of(given: Sequence[str]) -> str:
    commands = _commands()
    if not given or given[0] not in commands:
        return "packer --help"
    has_more = any("--help-all" in parameter.opts for parameter in commands[given[0]].params)
    return f"packer {given[0]} {'--help-all' if has_more else '--help'}"
