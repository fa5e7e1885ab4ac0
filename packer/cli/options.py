"""Options of commands, made from the table of a build's options."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from packer.cli.output import LocalPath
from packer.cli.values import LabelKind, OneOf, PackPath
from packer.packing.option_table import ARGUMENT, OPTIONS, TABLE
from packer.packing.options import DEFAULTS, KINDS

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


def build_options(function: F) -> F:
    """Give a command all options of a build, in the order of the table."""
    for row in reversed(OPTIONS):
        if row.section != ARGUMENT:
            function = build_option(row.name)(function)
    return function
