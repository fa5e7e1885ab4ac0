"""Finds the containers and sources that other installed packages add through entry points."""

from __future__ import annotations

from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from packer.errors import UsageError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


@lru_cache
def plugins(group: str, built_in: tuple[str, ...]) -> dict[str, EntryPoint]:
    """Return the entry points of a group by name, looked up once per process.

    Args:
        group: The group, such as ``packer.sources``.
        built_in: The built-in names of that group.

    Raises:
        UsageError: Two packages, or a package and packer, use the same name.
    """
    from importlib.metadata import entry_points  # takes 20 ms, which `packer --help` does not need

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
    """Import the object with this name, built-in or from another package.

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
    except Exception as error:  # the other package's module may raise anything
        owner = entry.dist.name if entry.dist else entry.value
        problem = f"the package {owner}, which adds {name!r} to {group}, cannot be imported: {error!r}"
        raise UsageError("", problem, f"upgrade or uninstall {owner}") from error
