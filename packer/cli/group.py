"""The command group `packer`: its commands in sections, headings bold on a terminal, and completion in a shell.

Commands import what they need when they run, so that help is fast.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import click
from click.shell_completion import BashComplete, CompletionItem, add_completion_class, get_completion_class

from packer import __version__
from packer.cli.changing import edit, log, purge, update
from packer.cli.checking import diff, hash_command, info, verify
from packer.cli.looking import stats, view
from packer.cli.making import adopt, build, convert, sample
from packer.cli.measuring import bench, demo, doctor
from packer.cli.output import echo, has_colors
from packer.cli.reshaping import attach, detach, extract, index, merge, repair, split
from packer.cli.storing import cache, clean, pull, push
from packer.cli.values import OneOf
from packer.errors import UsageError, printable
from packer.system.atomic import replacing


class Formatter(click.HelpFormatter):
    """Writes headings bold on a terminal."""

    def write_heading(self, heading: str) -> None:
        """Write a heading."""
        super().write_heading(_bold(heading))

    def write_usage(self, prog: str, args: str = "", prefix: str | None = None) -> None:
        """Write the line of usage."""
        super().write_usage(prog, args, f"{_bold('Usage:')} " if prefix is None else prefix)


def _bold(text: str) -> str:
    return click.style(text, bold=True) if has_colors(sys.stdout) else text


class Context(click.Context):
    """The context of all commands."""

    formatter_class = Formatter


class CommandsInSections(click.Group):
    """A group whose help shows the commands in sections.

    Args:
        sections: Heading -> the commands below it.
        seldom: Commands whose names only are listed, at the end.
        aliases: Another name -> the command that it means.
    """

    context_class = Context

    def __init__(
        self,
        *given: Any,
        sections: Mapping[str, Sequence[click.Command]],
        seldom: Sequence[click.Command] = (),
        aliases: Mapping[str, click.Command] | None = None,
        **more: Any,
    ) -> None:
        super().__init__(*given, **more)
        self.sections, self._seldom, self._aliases = sections, seldom, aliases or {}
        for command in (*(one for commands in sections.values() for one in commands), *seldom):
            command.context_class = Context
            self.add_command(command)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command of a name, or of another one that people know it by."""
        return super().get_command(ctx, cmd_name) or self._aliases.get(cmd_name)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete other names of commands, too."""
        found = super().shell_complete(ctx, incomplete)
        aliases = [
            (name, command) for name, command in self._aliases.items() if incomplete and name.startswith(incomplete)
        ]
        return found + [CompletionItem(name, help=command.get_short_help_str()) for name, command in aliases]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the sections."""
        listed = [command for commands in self.sections.values() for command in commands]
        others = [one for _, one in sorted(self.commands.items()) if one not in listed and one not in self._seldom]
        longest = max(len(str(command.name)) for command in (*listed, *others))
        width = formatter.width - 6 - longest
        for heading, commands in {**self.sections, "Other": others}.items():
            rows = [(str(one.name).ljust(longest), one.get_short_help_str(width)) for one in commands]
            if rows:
                with formatter.section(heading):
                    formatter.write_dl(rows)
        if self._seldom:
            formatter.write(f"\n  Also: {', '.join(sorted(str(one.name) for one in self._seldom))}.\n")


SHELLS = ("bash", "zsh", "fish")
START_FILES = {"bash": ("HOME", ".bashrc"), "zsh": ("ZDOTDIR", ".zshrc")}
"""Shell -> (variable of a folder, file there that it reads when it starts); fish reads its completions by itself."""
PROGRAMS = ("packer", "dataset-packer")
"""The names of the command; the second is for machines where another program is called packer."""
DIVIDING = (":", "=")
BEFORE = {
    "bash": "((BASH_VERSINFO[0] * 100 + BASH_VERSINFO[1] < 404)) && return 0 2>/dev/null  # as macOS has it\n",
    "zsh": "(( $+functions[compdef] )) || { autoload -Uz compinit && compinit }\n",
}


class Bash(BashComplete):
    """Puts together what bash takes for several words, because of a colon or an equals sign: ``--labels list:FILE``."""

    _before = ""

    @staticmethod
    def _check_version() -> None:
        """Start no bash to ask for its version: the script does."""

    def get_completion_args(self) -> tuple[list[str], str]:
        """Return the words before the cursor, and the one that is to be completed."""
        words, last = super().get_completion_args()
        joined: list[str] = []
        for word in (*words, last):
            if joined and (word in DIVIDING or joined[-1].endswith(DIVIDING)):
                joined[-1] += word
            else:
                joined.append(word)
        *args, incomplete = joined
        self._before = incomplete[: incomplete.rfind(":") + 1]
        return args, incomplete

    def format_completion(self, item: CompletionItem) -> str:
        """Return an item without what bash keeps before the colon."""
        return f"{item.type},{item.value.removeprefix(self._before)}"


add_completion_class(Bash)


@click.command()
@click.argument("shell", type=OneOf(SHELLS), required=False)
@click.option("--install", is_flag=True, help="Install it for this user; once is enough.")
@click.option("--uninstall", is_flag=True, help="Remove what --install has written.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.pass_context
def completion(context: click.Context, shell: str | None, install: bool, uninstall: bool, as_json: bool) -> None:
    """Print or install the completion of SHELL: bash, zsh or fish.

    Completes commands, options, their values and the names of packs. Without SHELL, $SHELL decides. --install prints
    which files it has written; it works in shells that are started afterwards.

    \b
    Examples:
      packer completion --install
      packer completion zsh
    """
    if install and uninstall:
        raise UsageError("--install", "excludes --uninstall", "leave out one of them")
    name = shell or os.path.basename(os.environ.get("SHELL", ""))
    if name not in SHELLS:
        problem = f"packer completes in {', '.join(SHELLS)}, and $SHELL is {printable(name) or 'not set'}"
        raise UsageError("SHELL", problem, "name one: packer completion bash")
    make = get_completion_class(name)
    assert make is not None
    program = os.path.basename(sys.argv[0]).removesuffix(".exe")
    program = program if program in PROGRAMS else PROGRAMS[0]
    script = BEFORE.get(name, "") + make(context.find_root().command, {}, program, "_PACKER_COMPLETE").source()
    files = []
    if install:
        files = _install(program, name, script)
    elif uninstall:
        files = _uninstall(program, name)
    elif not as_json:
        echo(script)
    if as_json:
        done = "installed" if install else "removed" if uninstall else "printed"
        echo(json.dumps({"shell": name, "done": done, "files": files, "script": script}))
        return
    for file in files:
        echo(f"{'written' if install else 'removed from'}: {printable(file)}")
    if install:
        remove = f"{program} completion {name} --uninstall"
        echo(f"it works in each {name} that starts from now on; remove it with: {remove}")
    elif uninstall and not files:
        echo(f"completion for {name} was not installed")


def _script_file(program: str, shell: str) -> Path:
    home = Path.home()
    if shell == "fish":
        return Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config") / "fish" / "completions" / f"{program}.fish"
    return Path(os.environ.get("XDG_DATA_HOME") or home / ".local" / "share") / program / f"completion.{shell}"


def _start_file(shell: str) -> Path | None:
    if shell not in START_FILES:
        return None
    variable, name = START_FILES[shell]
    return Path(os.environ.get(variable) or Path.home()) / name


def _install(program: str, shell: str, script: str) -> list[str]:
    file, start = _script_file(program, shell), _start_file(shell)
    file.parent.mkdir(parents=True, exist_ok=True)
    with replacing(str(file)) as new:
        new.write(f"# made by: {program} completion {shell} --install\n{script}\n".encode())
    written = [str(file)]
    if start is not None:
        before = start.read_bytes() if start.exists() else b""
        mark = f"# {program} completion"
        if mark.encode() not in before:
            quoted = shlex.quote(str(file))
            line = f"[ -f {quoted} ] && . {quoted}  {mark}\n"
            with open(start, "ab") as opened:  # not replaced: it may be a link
                opened.write((b"" if before.endswith(b"\n") or not before else b"\n") + os.fsencode(line))
            written.append(str(start))
    return written


def _uninstall(program: str, shell: str) -> list[str]:
    file, start = _script_file(program, shell), _start_file(shell)
    removed = []
    with suppress(FileNotFoundError):
        file.unlink()
        removed.append(str(file))
    if start is not None and start.exists():
        mark = f"# {program} completion".encode()
        lines = start.read_bytes().splitlines(keepends=True)
        others = [line for line in lines if mark not in line]
        if others != lines:
            start.write_bytes(b"".join(others))
            removed.append(str(start))
    return removed


EPILOG = """\b
Exit codes: 0 good, 1 bad data beyond --max-bad, 2 usage, 3 disk or
permission, 4 a damaged pack, 130 interrupted."""

SECTIONS = {
    "Make packs": (build, adopt, convert, merge, split, attach),
    "Change packs": (edit, update, purge, log),
    "Look": (info, view, stats, diff, extract),
    "Check": (verify, repair),
    "Move": (push, pull, cache),
    "Try and measure": (demo, bench, doctor),
}
"""Heading of the help -> the commands below it."""
SELDOM = (hash_command, clean, detach, index, sample, completion)
ALIASES = {"export": extract, "link": adopt}
"""Names that other tools have for a command."""


@click.group(
    cls=CommandsInSections,
    sections=SECTIONS,
    seldom=SELDOM,
    aliases=ALIASES,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=EPILOG,
)
@click.version_option(__version__, "-V", "--version", message="packer %(version)s")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
def cli(debug: bool) -> None:
    """Pack folders of labelled images, and train from them at memory speed.

    \b
    packer build ./imgs     # packs the images and labels in ./imgs
    packer view imgs.lmdb   # shows the pack in the browser
    """
