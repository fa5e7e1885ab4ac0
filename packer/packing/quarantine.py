"""Writes DIR/rejected.tsv, the list of the inputs that are in no pack. The files themselves stay where they are."""

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
    """Gives a function that writes the list of ``--quarantine``; TooManyBad that passes through is listed as well."""

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
    """Refuse a folder that a build reads or makes, or that cannot be made; nothing is created yet.

    Raises UsageError, StorageError.
    """
    real = os.path.realpath(folder)
    if _within(real, os.path.realpath(source)):
        raise UsageError(folder, "lies in the source folder", "choose a --quarantine outside of it")
    for path in (output, f"{output}{PARTIAL_SUFFIX}"):
        if _within(real, os.path.realpath(path)):
            raise UsageError(folder, "lies in the pack that is made", "choose a --quarantine outside of it")
    above = real
    while not os.path.lexists(above):
        above = os.path.dirname(above)
    if not os.path.isdir(above):
        raise UsageError(above, "is not a folder", "choose another --quarantine")
    if not os.access(above, os.W_OK | os.X_OK):
        raise StorageError(above, "may not be written to", "choose another --quarantine")


def _within(path: str, folder: str) -> bool:
    return f"{path}/".startswith(f"{folder.rstrip('/')}/")


def list_path(folder: str) -> str:
    """Where the list is."""
    return os.path.join(folder, LIST_NAME)


def write_list(folder: str, rejected: Sequence[Rejected]) -> None:
    """Write the list, sorted by path, in one step: there is the old one or the new one. Raises StorageError.

    One input a line: path, reason, problem. In a path, backslashes are doubled, and what is not printable (tabs, line
    breaks, undecodable bytes) is escaped with a backslash, so that each path can be had back.
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
            os.unlink(working)  # of a build that was killed; or somebody's link: not followed
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
