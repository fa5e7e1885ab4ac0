"""`packer completion`: let the shell complete commands, options, values and packs."""

from __future__ import annotations

import json
import os
import shlex
import sys
from contextlib import suppress
from pathlib import Path

import click
from click.shell_completion import BashComplete, CompletionItem, add_completion_class, get_completion_class

from packer.cli.output import echo
from packer.cli.values import OneOf
from packer.errors import UsageError, printable
from packer.system.atomic import replacing

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
