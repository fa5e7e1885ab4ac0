"""Copies of functions of other libraries that find other objects under the names they use: no library is changed."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Mapping
from types import CellType, FunctionType, SimpleNamespace
from typing import Any

from packer.errors import NotInstalled

Importer = Callable[..., Any]
"""Does what an import statement does, with the arguments of ``__import__``."""


def rebound(
    function: Any,
    names: Mapping[str, Any],
    importer: Importer | None = None,
    cells: tuple[CellType, ...] | None = None,
) -> Any:
    """Return a copy of a function that finds these objects under names of its module.

    Args:
        function: The function.
        names: Name -> object.
        importer: What import statements in the copy call.
        cells: Its closure, if not that of the function.
    """
    namespace = {**function.__globals__, **names}
    if importer is not None:  # a function takes its builtins from its globals
        namespace["__builtins__"] = {**vars(builtins), "__import__": importer}
    closure = function.__closure__ if cells is None else cells
    made = FunctionType(function.__code__, namespace, function.__name__, function.__defaults__, closure)
    made.__kwdefaults__ = function.__kwdefaults__
    return made


def imports(module: str, names: Mapping[str, Any]) -> Importer:
    """Return what imports as always, but finds these names in a module."""

    def importer(name: str, *arguments: Any, **options: Any) -> Any:
        found = builtins.__import__(name, *arguments, **options)
        return SimpleNamespace(**{**vars(found), **names}) if name == module else found

    return importer


class Library:
    """A library whose functions are copied.

    Args:
        name: Its name.
        version: The one that is installed.
        install: The command that installs one that fits.
    """

    def __init__(self, name: str, version: str, install: str) -> None:
        self._name, self._version, self._install = name, version, install

    def with_names(self, function: Any, importing: tuple[str, Mapping[str, Any]] | None = None, **names: Any) -> Any:
        """Return a copy of a function of this library that uses these objects.

        Args:
            function: The function.
            importing: A module that it imports itself, and what it is to find there.
            names: What it is to find in its own module.

        Raises:
            NotInstalled: The function of this version does not use such a name.
        """
        module, imported = importing or ("", {})
        if missing := {*names, *imported} - set(function.__code__.co_names):
            uses = f"{function.__qualname__} does not use {', '.join(sorted(missing))}"
            raise NotInstalled(self._name, f"version {self._version} does not fit: {uses}", self._install)
        return rebound(function, names, imports(module, imported) if importing else None)
