"""Writes docs/cli.md from the help of the commands; with --check it only says whether the file is up to date."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from packer.cli.group import cli
from packer.cli.help import HELP_ALL

TARGET = Path(__file__).resolve().parent.parent / "docs" / "cli.md"
WIDTH = 78

HEAD = """# Command line

This page is generated from the help of the commands: `python scripts/write_cli_docs.py`.

| exit code | meaning |
|---|---|
| 0 | good |
| 1 | bad data: more bad inputs than `--max-bad` allows, or lost records; of `diff`: the packs differ |
| 2 | usage: options or paths that do not go together; nothing was done |
| 3 | input or output: disk full, no permission, a worker process died |
| 4 | a damaged pack |
| 70 | a bug in packer; please report it with the output of `--debug` |
| 130 | interrupted (Ctrl-C); 143 by SIGTERM |

An error is one line: file, problem, next step. `packer --debug COMMAND ...` shows its traceback.
"""


def pages() -> str:
    """The whole file."""
    parts = [HEAD, section(cli, "packer")]
    parts += [section(command, f"packer {name}") for name, command in sorted(cli.commands.items())]
    return "\n".join(parts)


def section(command: click.Command, name: str) -> str:
    context = click.Context(
        command, info_name=name, terminal_width=WIDTH, max_content_width=WIDTH, help_option_names=["-h", "--help"]
    )
    context.meta[HELP_ALL] = True
    return f"## {name}\n\n```text\n{command.get_help(context).rstrip()}\n```\n"


def main() -> int:
    text = pages()
    if "--check" in sys.argv[1:]:
        if TARGET.is_file() and TARGET.read_text() == text:
            return 0
        print(f"{TARGET} is not what the commands say; run python scripts/write_cli_docs.py", file=sys.stderr)
        return 1
    TARGET.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
