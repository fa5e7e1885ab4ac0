"""Names that users choose, packer's own and those that other packages add, and what was meant."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
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
    "letterbox": "pad", "h5py": "hdf5", "yoloobb": "yolo-obb",
}  # fmt: skip
"""Other usual names, in lower case without - and _; they count where the real name is a choice."""


def resolve_alias(name: str, choices: Sequence[str]) -> str:
    """Return the one of `choices` that a name means, in any case or by another usual name; else the name itself."""
    if name in choices:
        return name
    lower = name.strip().lower()
    plain = re.sub(r"\Ayolov?\d+", "yolo", re.sub(r"[-_ ]", "", lower))
    plain = ALIASES.get(plain, plain)
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
    if (found := resolve_alias(name, choices)) not in choices:
        problem = f"must be one of {', '.join(choices)}; got {printable(name)}"
        raise UsageError(option, problem, suggestion(option, name, choices))
    return found


class Registry:
    """Things by name: packer's own, each imported when it is first used, and those that other packages add.

    Args:
        homes: The name of each of packer's own -> its ``module:object``.
        group: Entry points of this group add others.
    """

    def __init__(self, homes: Mapping[str, str], group: str) -> None:
        self._homes, self._group = homes, group
        self.own = tuple(homes)
        """The names of packer's own."""

    @property
    def added(self) -> Mapping[str, EntryPoint]:
        """The entry points of other packages, by name. Raise UsageError if a name is there twice."""
        return _entry_points(self._group, self.own)

    @property
    def names(self) -> tuple[str, ...]:
        """All names, those of other packages last. Raise UsageError if one is there twice."""
        return (*self.own, *self.added)

    def load(self, name: str) -> Any:
        """Import the object with this name.

        Raises:
            KeyError: There is no such name.
            UsageError: The package that adds it cannot be imported.
        """
        if name in self._homes:
            module, _, attribute = self._homes[name].partition(":")
            return getattr(import_module(module), attribute)
        entry = self.added[name]
        try:
            return entry.load()
        except Exception as error:  # the other package's module may raise anything
            owner = entry.dist.name if entry.dist else entry.value
            problem = f"the package {owner}, which adds {name!r} to {self._group}, cannot be imported: {error!r}"
            raise UsageError("", problem, f"upgrade or uninstall {owner}") from error


@lru_cache
def _entry_points(group: str, own: tuple[str, ...]) -> dict[str, EntryPoint]:
    """Return the entry points of a group by name, looked up once per process."""
    from importlib.metadata import entry_points  # takes 20 ms, which `packer --help` does not need

    owners = dict.fromkeys(own, "packer itself")
    found: dict[str, EntryPoint] = {}
    for entry in entry_points(group=group):
        owner = f"the package {entry.dist.name}" if entry.dist else entry.value
        if owners.setdefault(entry.name, owner) != owner:
            problem = f"{owner} and {owners[entry.name]} both add {entry.name!r} to {group}"
            raise UsageError("", problem, "uninstall one of them")
        found[entry.name] = entry
    return found
