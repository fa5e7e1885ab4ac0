"""Writes DIR/rejected.tsv, the list of rejected inputs. The files themselves are not moved."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from packer.errors import StorageError, TooManyBad, UsageError, plural, printable
from packer.format.manifest import PARTIAL_SUFFIX, Rejected

if TYPE_CHECKING:
    from packer.packing.options import BuildOptions
    from packer.types import Progress

LIST_NAME = "rejected.tsv"
HEAD = "path\treason\tproblem\n"


@contextmanager
def listing(options: BuildOptions, progress: Progress) -> Iterator[Callable[[Sequence[Rejected]], None]]:
    """Yield a function that writes the list of ``--quarantine``. On TooManyBad, write the list as well."""

    def write(rejected: Sequence[Rejected]) -> None:
        if options.quarantine is not None:
            write_list(options.quarantine, rejected)
            inputs = plural(len(rejected), "input is", "inputs are")
            progress.note(f"{inputs} rejected: listed in {printable(list_path(options.quarantine))}")

    if options.quarantine is not None:
        check_quarantine(options.quarantine, options.source, options.output)
    try:
        yield write
    except TooManyBad as error:
        try:
            write(error.rejected)
        except StorageError as second:
            progress.note(f"note: {second}")
        raise


def check_quarantine(folder: str, source: str, output: str) -> None:
    """Check the ``--quarantine`` folder without creating it.

    Raises:
        UsageError: It is not a folder, or a build reads from or writes to it.
        StorageError: It cannot be written to.
    """
    real = os.path.realpath(folder)
    if _within(real, os.path.realpath(source)):
        raise UsageError(folder, "is inside the source folder", "choose a --quarantine outside it")
    for path in (output, f"{output}{PARTIAL_SUFFIX}"):
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


def list_path(folder: str) -> str:
    """Return the path of the list."""
    return os.path.join(folder, LIST_NAME)


def write_list(folder: str, rejected: Sequence[Rejected]) -> None:
    """Write the list, sorted by path, replacing the old one in one step. Raise StorageError on failure.

    One input per line: path, reason, problem. In a path, backslashes are doubled and unprintable characters (tabs, line
    breaks, undecodable bytes) are escaped with a backslash, so that the path can be recovered.
    """
    lines = [HEAD]
    for item in sorted(rejected, key=lambda item: (item.path, item.problem)):
        path = item.path.replace("\\", "\\\\")
        lines.append("\t".join(printable(text) for text in (path, item.reason, item.problem)) + "\n")
    path = list_path(folder)
    working = f"{path}.tmp"
    try:
        os.makedirs(folder, exist_ok=True)
        with suppress(FileNotFoundError):
            os.unlink(working)  # left by a killed build; or a link, which must not be followed
        with open(working, "xb") as file:
            file.write("".join(lines).encode("utf-8"))
            file.flush()
            os.fsync(file.fileno())
        os.replace(working, path)
    except OSError as error:
        with suppress(OSError):
            os.unlink(working)
        problem = f"cannot be written: {error.strerror or error}"
        raise StorageError(path, problem, "choose another --quarantine") from None
