"""Values of options and arguments: which are allowed, what was meant by others, and how a shell completes them."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from packer.errors import UsageError, printable
from packer.system.registry import choose

MANIFEST = "pack.json"
if TYPE_CHECKING:
    Type = click.ParamType[str]
else:
    Type = click.ParamType  # generic since click 8.4


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
        return [CompletionItem(kind.partition("[")[0].replace("FILE", "")) for kind in kinds]


class PackPath(click.Path):
    """The path of a pack, or its URL."""

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Return the packs that begin like this; without any, the shell completes folders."""
        folder = os.path.dirname(incomplete)
        packs = []
        with suppress(OSError):
            for entry in sorted(os.listdir(folder or ".")):
                path = os.path.join(folder, entry)
                if path.startswith(incomplete) and os.path.exists(os.path.join(path, MANIFEST)):
                    packs.append(path)
        if not packs or any(set(path) & set(" \t\n'\"\\$&;()<>|*?[]`~!#:") for path in packs):  # the shell quotes those
            return [CompletionItem(incomplete, type="dir")]
        return [CompletionItem(path) for path in packs]


def files(incomplete: str, before: str) -> list[CompletionItem]:
    """Return the files that begin like `incomplete`, after the text `before`; folders end with a slash."""
    folder = os.path.dirname(incomplete)
    found = []
    with suppress(OSError):
        for entry in sorted(os.listdir(folder or ".")):
            path = os.path.join(folder, entry)
            if path.startswith(incomplete):
                found.append(CompletionItem(before + path + ("/" if os.path.isdir(path) else "")))
    return found
