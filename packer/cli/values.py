"""Options and arguments: allowed values, what was meant by others, how shells complete and help shows them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.shell_completion import CompletionItem

from packer.cli.output import LocalPath
from packer.errors import UsageError, printable
from packer.packing.build_options import DEFAULTS, KINDS
from packer.packing.option_table import ARGUMENT, CLASS_OPTIONS, LABEL_OPTIONS, OPTIONS, TABLE
from packer.system.registry import choose

if TYPE_CHECKING:
    Type = click.ParamType[str]
else:
    Type = click.ParamType  # generic since click 8.4


MANIFEST = "pack.json"


class OneOf(Type):
    """One of several names; other usual names are taken too (``jpg``), and an error suggests the likely one.

    Args:
        names: The names, as help shows them.
        all_names: Returns the names with those of plug-ins, which are for the library to check. None: there are none.
    """

    name = "name"

    def __init__(self, names: Sequence[str], all_names: Callable[[], Sequence[str]] | None = None) -> None:
        self.names = tuple(names)
        self._all_names = all_names

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str:
        """Return the names as help shows them."""
        return "|".join(self.names)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the name. Raise UsageError if it is not known."""
        if self._all_names is not None:
            return str(value)
        option = param.opts[-1] if param is not None else ""
        try:
            return choose(option, value, self.names)
        except UsageError as error:
            if (default := getattr(param, "flag_value", None)) in self.names:
                error.next_step = f"write {option}={default} if {printable(value)} is not its value"
            raise

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Return the names that begin like this."""
        names = self.names if self._all_names is None else self._all_names()
        return [CompletionItem(name) for name in names if name.startswith(incomplete.lower())]


class LabelKind(Type):
    """A kind of labels, with a file after a colon; the source checks it."""

    name = "kind"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Return the kinds that begin like this; after the colon, the shell completes files."""
        from packer.sources import label_kinds

        name, colon, file = incomplete.partition(":")
        if colon:
            return files(file, f"{name}:")
        kinds = [kind for kind in label_kinds() if kind.startswith(name.lower())]
        return [CompletionItem(kind.partition("[")[0].replace("FILE", "").replace("REGEX", "")) for kind in kinds]


class PackPath(click.Path):
    """The path of a pack, or its URL."""

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Return the packs that begin like this; without any, the shell completes folders."""
        packs = [path for path in _paths_like(incomplete) if os.path.exists(os.path.join(path, MANIFEST))]
        if not packs or any(set(path) & set(" \t\n'\"\\$&;()<>|*?[]`~!#:") for path in packs):  # the shell quotes those
            return [CompletionItem(incomplete, type="dir")]
        return [CompletionItem(path) for path in packs]


def files(incomplete: str, before: str) -> list[CompletionItem]:
    """Return the files that begin like `incomplete`, after the text `before`; folders end with a slash."""
    found = _paths_like(incomplete)
    return [CompletionItem(before + path + ("/" if os.path.isdir(path) else "")) for path in found]


def _paths_like(incomplete: str) -> list[str]:
    """Return the paths that begin like this, sorted; none if the folder cannot be read."""
    folder = os.path.dirname(incomplete)
    with suppress(OSError):
        paths = [os.path.join(folder, entry) for entry in sorted(os.listdir(folder or "."))]
        return [path for path in paths if path.startswith(incomplete)]
    return []


PATHS: dict[str, tuple[Any, str | None]] = {
    "file": (LocalPath(), "FILE"), "names": (LocalPath(), "FILE"), "folder": (LocalPath(), "DIR"),
    "path": (click.Path(), None), "pack": (PackPath(), "PACK"), "labels": (LabelKind(), None), "": (None, None),
}  # fmt: skip
"""What the text of an option names -> its type here, and what help shows for it."""
F = TypeVar("F", bound=Callable[..., Any])


def build_option(name: str, **other: Any) -> Callable[[F], F]:
    """Return the decorator for an option that a build has, too.

    Args:
        name: Its name in `BuildOptions`.
        other: What differs in this command: its help, default, ...
    """
    row, kind, default = TABLE[name], KINDS[name], DEFAULTS[name]
    type_, metavar = PATHS[row.takes]
    if row.choices:
        type_ = OneOf(row.choices, row.every_choice)
    elif kind.startswith("int") and row.read is None:
        type_ = int
    given: dict[str, Any] = {"help": row.help, "metavar": row.metavar or metavar, "type": type_}
    if kind == "bool":
        given["is_flag"] = True
    if row.alone:
        given |= {"is_flag": False, "flag_value": row.alone}
    given |= {"multiple": kind.startswith("tuple"), **other}
    if isinstance(default, str | int | float) and kind != "bool" and "[default: " not in given["help"]:
        given |= {"default": default if row.read is None else row.text(default), "show_default": True}
    names = [row.short] if row.short else []
    return click.option(*names, f"--{row.flag}", name, **given)


def class_options(function: F) -> F:
    """Give a command that makes packs of packs the options that change their classes."""
    help = "A record of which those leave no object: error stops, empty keeps it without objects, skip leaves it out."
    function = build_option("missing_labels", help=help)(function)
    for name in reversed(CLASS_OPTIONS):
        function = build_option(name)(function)
    return function


def label_options(function: F) -> F:
    """Give a command that reads labels again the options that say how; those not given are as they were."""
    for name in reversed(LABEL_OPTIONS):
        help = f"With --source: {TABLE[name].help.partition('  [default: ')[0]}  [default: as PACK was built]"
        function = build_option(name, default=None, show_default=False, help=help)(function)
    return function


def build_options(function: F) -> F:
    """Give a command all options of a build, in the order of the table."""
    for row in reversed(OPTIONS):
        if row.section != ARGUMENT:
            function = build_option(row.name)(function)
    return function


HELP_ALL = "packer.cli.help_all"
"""Key of `click.Context.meta`: whether all options are shown."""


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
