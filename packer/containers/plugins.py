"""Finds what other installed packages add to packer's tables of containers and sources: their entry points."""

from __future__ import annotations

from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from packer.errors import UsageError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


@lru_cache
def plugins(group: str, built_in: tuple[str, ...]) -> dict[str, EntryPoint]:
    """Return what installed packages add to a table of packer, by name; they are looked up once per process.

    Args:
        group: The entry points' group, such as ``packer.sources``.
        built_in: The names that packer itself has in that table.

    Raises:
        UsageError: Two packages, or a package and packer, use the same name.
    """
    from importlib.metadata import entry_points  # 20 ms that `packer --help` does not wait for

    owners = dict.fromkeys(built_in, "packer itself")
    found: dict[str, EntryPoint] = {}
    for entry in entry_points(group=group):
        owner = f"the package {entry.dist.name}" if entry.dist else entry.value
        if owners.setdefault(entry.name, owner) != owner:
            problem = f"{owner} and {owners[entry.name]} both add {entry.name!r} to {group}"
            raise UsageError("", problem, "uninstall one of them")
        found[entry.name] = entry
    return found


def load_named(group: str, table: dict[str, str], name: str) -> Any:
    """Return the object that a name stands for, in a table of packer or added by another package.

    Args:
        group: The entry points' group.
        table: The built-in names, each with its ``module:object``.
        name: The name.

    Raises:
        KeyError: There is no such name.
        UsageError: The package that adds it cannot be imported.
    """
    if name in table:
        module, _, attribute = table[name].partition(":")
        return getattr(import_module(module), attribute)
    entry = plugins(group, tuple(table))[name]
    try:
        return entry.load()
    except Exception as error:  # whatever the other package's module raises
        owner = entry.dist.name if entry.dist else entry.value
        problem = f"the package {owner}, which adds {name!r} to {group}, cannot be imported: {error!r}"
        raise UsageError("", problem, f"upgrade or uninstall {owner}") from error
