"""Names that users choose: those of containers and sources in other packages (entry points), and what was meant."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from packer.errors import UsageError, printable

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


ALIASES = {
    "jpg": "jpeg", "grey": "gray", "grayscale": "gray", "cv2": "opencv",
    "h5": "hdf5", "hdf": "hdf5", "mdb": "lmdb", "wds": "webdataset", "tar": "webdataset", "tfrecords": "tfrecord",
    "rec": "recordio", "mxnet": "recordio", "pt": "pth",
    "imagefolder": "folder", "pascal": "voc", "pascalvoc": "voc", "csv": "list", "tsv": "list", "txt": "list",
    "letterbox": "pad", "h5py": "hdf5",
}  # fmt: skip
"""Other usual names, in lower case without - and _; they count where the real name is a choice."""


def meant(name: str, choices: Sequence[str]) -> str:
    """Return the one of `choices` that a name means, in any case or by another usual name; else the name itself."""
    if name in choices:
        return name
    lower = name.strip().lower()
    plain = re.sub(r"[-_ ]", "", lower)
    plain = "yolo" if re.fullmatch(r"yolov?\d+", plain) else ALIASES.get(plain, plain)
    return next((found for found in (lower, plain) if found in choices), name)


def suggestion(option: str, name: str, choices: Sequence[str]) -> str:
    """Return ``write --format=lmdb``, or an empty text if no choice is like the name."""
    likely = difflib.get_close_matches(name.lower(), choices, 1)
    between = "=" if option.startswith("-") else " "  # an argument has no name that is typed
    return f"write {option}{between}{likely[0]}" if likely else ""


def choose(option: str, name: str, choices: Sequence[str]) -> str:
    """Return the one of `choices` that a name means; raise UsageError, with a suggestion, if none is.

    Args:
        option: The option, for the error, as `packer.errors.option` returns it; or the name of an argument.
        name: What was given.
        choices: The names.
    """
    if (found := meant(name, choices)) not in choices:
        problem = f"must be one of {', '.join(choices)}; got {printable(name)}"
        raise UsageError(option, problem, suggestion(option, name, choices))
    return found


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
