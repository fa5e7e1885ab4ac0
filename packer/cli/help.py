"""How help looks: commands and options in sections, headings bold on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import click

from packer.cli.output import has_colors


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
    """

    context_class = Context

    def __init__(self, *given: Any, sections: Mapping[str, Sequence[click.Command]], **more: Any) -> None:
        super().__init__(*given, **more)
        self.sections = sections
        for commands in sections.values():
            for command in commands:
                command.context_class = Context
                self.add_command(command)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the sections."""
        longest = max(map(len, self.commands))
        width = formatter.width - 6 - longest
        listed = [command for commands in self.sections.values() for command in commands]
        others = [command for name, command in sorted(self.commands.items()) if command not in listed]
        for heading, commands in {**self.sections, "Other": others}.items():
            rows = [(str(one.name).ljust(longest), one.get_short_help_str(width)) for one in commands]
            if rows:
                with formatter.section(heading):
                    formatter.write_dl(rows)


class OptionsInSections(click.Command):
    """A command whose help shows the options in sections.

    Args:
        sections: Heading -> the names of the options below it.
        rest: Heading of all others.
    """

    def __init__(self, *given: Any, sections: Mapping[str, Sequence[str]], rest: str, **more: Any) -> None:
        super().__init__(*given, **more)
        self.sections, self._rest = sections, rest

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the sections."""
        options = [(p.name, p.get_help_record(ctx)) for p in self.get_params(ctx) if isinstance(p, click.Option)]
        grouped = {name for names in self.sections.values() for name in names}
        for heading, names in {**self.sections, self._rest: ()}.items():
            rows = [r for name, r in options if r and (name in names if names else name not in grouped)]
            with formatter.section(heading):
                formatter.write_dl(rows)
