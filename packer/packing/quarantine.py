"""Writes DIR/rejected.tsv, the list of rejected inputs. The files themselves are not moved."""

from __future__ import annotations

import os

from packer.errors import StorageError, UsageError, plural, printable
from packer.format.lists import Listing, file_of
from packer.format.manifest import PARTIAL_SUFFIX, Rejected
from packer.model.annotation import Progress
from packer.packing.options import BuildOptions
from packer.system.atomic import replacing

LIST_NAME = file_of("rejected")


def list_rejected(options: BuildOptions, rejected: Listing[Rejected], progress: Progress) -> None:
    """Write the list of ``--quarantine``, if it is asked for. Raise StorageError on failure."""
    if (path := list_path(options)) is not None:
        write_list(path, rejected)
        inputs = plural(len(rejected), "input is", "inputs are")
        progress.note(f"{inputs} rejected: listed in {printable(path)}")


def check_quarantine(options: BuildOptions) -> None:
    """Check the ``--quarantine`` folder without creating it.

    Raises:
        UsageError: It is not a folder, or a build reads from or writes to it.
        StorageError: It cannot be written to.
    """
    folder = options.quarantine
    if folder is None:
        return
    real = os.path.realpath(folder)
    if _within(real, os.path.realpath(options.source)):
        raise UsageError(folder, "is inside the source folder", "choose a --quarantine outside it")
    for path in (options.output, f"{options.output}{PARTIAL_SUFFIX}"):
        if _within(real, os.path.realpath(path)):
            raise UsageError(folder, "is inside the new pack", "choose a --quarantine outside it")
    above = real
    while not os.path.lexists(above):
        above = os.path.dirname(above)
    if not os.path.isdir(above):
        raise UsageError(above, "is not a folder", "choose another --quarantine")
    if not os.access(above, os.W_OK | os.X_OK):
        raise StorageError(above, "is not writable", "choose another --quarantine")


def _within(path: str, folder: str) -> bool:
    return f"{path}/".startswith(f"{folder.rstrip('/')}/")


def list_path(options: BuildOptions) -> str | None:
    """Return the path of the list, None if there is none. Each part of a build has one of its own."""
    if options.quarantine is None:
        return None
    name, dot, extension = LIST_NAME.partition(".")
    part = f"-{options.part.strip().replace('/', '-of-')}" if options.part is not None else ""
    return os.path.join(options.quarantine, f"{name}{part}{dot}{extension}")


def write_list(path: str, rejected: Listing[Rejected]) -> None:
    """Write the list, sorted by path, replacing the old one in one step. Raise StorageError on failure.

    It has the form of the lists in a pack: one input per line, with its path, reason and problem. In a path,
    backslashes are doubled and unprintable characters (tabs, line breaks, undecodable bytes) are escaped with a
    backslash, so that the path can be recovered.
    """
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with replacing(path) as file:
            file.writelines(rejected.content())
    except OSError as error:
        problem = f"cannot be written: {error.strerror or error}"
        raise StorageError(path, problem, "choose another --quarantine") from None
