"""How help looks: commands and options in sections, headings bold on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import click
from click.shell_completion import CompletionItem

from packer.cli.output import has_colors

HELP_ALL = "packer.cli.help_all"
"""Key of `click.Context.meta`: whether all options are shown."""


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


class OptionsInSections(click.Command):
    """A command whose help shows the options in sections: some of them, and all with ``--help-all``.

    Args:
        sections: Heading -> the names of the options below it.
        rest: Heading of all others.
        first: The options that ``--help`` shows.
    """

    def __init__(
        self, *given: Any, sections: Mapping[str, Sequence[str]], rest: str, first: Sequence[str], **more: Any
    ) -> None:
        super().__init__(*given, **more)
        self.sections, self._rest, self._first = sections, rest, first
        text = "Show all options and exit."
        self.params.append(
            click.Option(
                ["--help-all"], is_flag=True, is_eager=True, expose_value=False, help=text, callback=self._show_all
            )
        )

    def _show_all(self, ctx: click.Context, _: click.Parameter, value: bool) -> None:
        if value and not ctx.resilient_parsing:
            ctx.meta[HELP_ALL] = True
            click.echo(ctx.get_help(), color=ctx.color)
            ctx.exit()

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the sections."""
        options = [p for p in self.get_params(ctx) if isinstance(p, click.Option)]
        shown = options
        if not ctx.meta.get(HELP_ALL):
            shown = [p for p in options if p.name in self._first or {*p.opts} & {"--help", "--help-all"}]
        grouped = {name for names in self.sections.values() for name in names}
        for heading, names in {**self.sections, self._rest: ()}.items():
            here = [p for p in shown if (p.name in names if names else p.name not in grouped)]
            if rows := [row for p in here if (row := p.get_help_record(ctx))]:
                with formatter.section(heading):
                    formatter.write_dl(rows)
        if len(shown) < len(options):
            formatter.write(f"\n  {len(options) - len(shown)} more options: {ctx.command_path} --help-all\n")
