"""What can go wrong, as types: every error names the file, the problem and the next step.

An error is one line: ``cat3.xml: box xmax 120 exceeds width 64; fix the label or pass --boxes clip``.
The command line prints it and exits with the error's ``exit_code``; library users catch `PackerError`.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from typing import Any

EXIT_OK = 0
EXIT_BAD_DATA = 1
EXIT_USAGE = 2
EXIT_IO = 3
EXIT_DAMAGED_PACK = 4
EXIT_INTERRUPTED = 130

SHOWN_REJECTED = 10

AnyPath = str | bytes | os.PathLike[str]


def printable(path: AnyPath) -> str:
    """A path as one safe line of text: control characters and undecodable bytes are backslash-escaped.

    A file name may hold any byte, also terminal escapes and line breaks; none may reach the terminal.
    """
    text = os.fsdecode(path)
    return "".join(c if c.isprintable() else _escaped(c) for c in text)


def plural(count: int, one: str, many: str = "") -> str:
    """Return the count with its noun: ``1 class``, ``2,000 images``.

    Args:
        count: How many there are.
        one: The noun (or noun and verb) for one of them.
        many: The same for several; without it, the noun with s or es.
    """
    several = many or one + ("es" if one.endswith(("s", "x")) else "s")
    return f"{count:,} {one if count == 1 else several}"


def size_text(size: float) -> str:
    """Return a size for people: ``1.4 GB`` (powers of 1024, as in ``ls -h``)."""
    for unit in ("bytes", "KB", "MB", "GB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "bytes" or size >= 100 else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TB"


def time_text(seconds: float) -> str:
    """Return a duration for people: ``0.4 s``, ``3 min 20 s``, ``2 h 05 min``."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def add_note(error: BaseException, text: str) -> None:
    """Add to an error that is not packer's what it was about; Python 3.10 has no place for that."""
    add = getattr(error, "add_note", None)
    if add is not None:
        add(text)


def _fill_os_error(error: BaseException, problem: str, where: AnyPath | None) -> None:
    if isinstance(error, OSError):
        error.strerror, error.filename = problem, where
    if isinstance(error, FileNotFoundError):
        error.errno = errno.ENOENT


def _escaped(character: str) -> str:
    return character.encode("unicode_escape", "surrogatepass").decode("ascii")


class PackerError(Exception):
    """The base of all errors that packer raises on purpose.

    Most are also the builtin that a caller would catch: ValueError, OSError, FileNotFoundError. Of an OSError they have
    `strerror` (the problem) and `filename`.
    """

    exit_code = EXIT_BAD_DATA
    _many_lines = False

    def __init__(self, where: AnyPath, problem: str | None = None, next_step: str = "") -> None:
        """Describe the error.

        Args:
            where: The file (or option) it is about.
            problem: What is wrong. None: `where` is the problem; torch's DataLoader makes an error of a worker anew
                from one text, and the kind survives.
            next_step: What to do; may be empty.
        """
        if problem is None:
            where, problem = "", os.fsdecode(where)
            self._many_lines = True  # the worker's traceback is in it
        # all arguments in `args`: picklable; OSError would take the first for a number
        Exception.__init__(self, where, problem, next_step)
        _fill_os_error(self, problem, where or None)
        self.where = where
        self.problem = problem
        self.next_step = next_step

    def __str__(self) -> str:
        problem = printable(self.problem)  # it may quote a name or an option as they were given
        if self._many_lines:
            problem = "\n".join(map(printable, self.problem.split("\n")))
        head = f"{printable(self.where)}: {problem}" if self.where else problem
        return f"{head}; {printable(self.next_step)}" if self.next_step else head


class BadInput(PackerError, ValueError):
    """One input that cannot be packed; it costs that input, and the build goes on within ``--max-bad``."""

    reason = "bad-input"


class BadImage(BadInput):
    """An image file that is not (wholly) decodable, or that its limits refuse."""

    reason = "bad-image"


class DecoderCrashed(BadImage):
    """An image file that kills the process which decodes it."""

    reason = "crashed"


class DecoderHung(BadImage):
    """An image file whose decoding takes longer than ``--decode-timeout``."""

    reason = "timeout"


class NotAnImage(BadImage):
    """The bytes are of no image format that packer reads."""

    reason = "not-an-image"


class BadLabel(BadInput):
    """An annotation that cannot be right: a bad line, a class outside the list, a box outside the image."""

    reason = "bad-label"


class NoLabel(BadLabel):
    """An image for which the labels hold nothing (an empty label file is not that: it says "no objects")."""

    reason = "no-label"


class NoImage(BadLabel):
    """A label that names an image which is not there."""

    reason = "no-image"


class TooManyBad(PackerError):
    """More bad inputs than ``--max-bad`` allows; `rejected` are all of them (`packer.format.manifest.Rejected`)."""

    def __init__(
        self, where: AnyPath, problem: str | None = None, next_step: str = "", rejected: Sequence[Any] = ()
    ) -> None:
        super().__init__(where, problem, next_step)
        self.args = (*self.args, tuple(rejected))
        self.rejected = tuple(rejected)

    def __str__(self) -> str:
        lines = [super().__str__(), *(f"{printable(r.path)}: {r.problem}" for r in self.rejected[:SHOWN_REJECTED])]
        if len(self.rejected) > SHOWN_REJECTED:
            lines.append(f"... and {len(self.rejected) - SHOWN_REJECTED} more (--json lists all)")
        return "\n  ".join(lines)


class UsageError(PackerError, ValueError):
    """Options or a source that do not go together; nothing was done."""

    exit_code = EXIT_USAGE


class PackNotFound(UsageError, FileNotFoundError):
    """There is no pack at this path."""


class NotInstalled(UsageError, ImportError):
    """A library that this needs is not installed."""


class StorageError(PackerError, OSError):
    """The disk or its permissions: full, read-only, vanished."""

    exit_code = EXIT_IO


class WorkerDied(PackerError):
    """A worker process ended by itself (killed, out of memory, crashed)."""

    exit_code = EXIT_IO


class DamagedRecordWarning(UserWarning):
    """A record could not be read, and another one took its place (``PackedLoader(on_error="replace")``)."""


class DamagedPack(PackerError, OSError):
    """A pack, or a file in it, that is missing, truncated, swapped or altered.

    `pack` is its directory, `shard` the name of the shard's container file, `key` that of the record; each None if it
    is not known, or if all of them are meant.
    """

    exit_code = EXIT_DAMAGED_PACK

    pack: str | None = None
    shard: str | None = None
    key: str | None = None

    def with_location(self, pack: str, shard: str | None = None, key: str | None = None) -> DamagedPack:
        """Return this error, with what it did not say yet: its pack, shard and record."""
        self.pack = self.pack or pack
        self.shard = self.shard or shard
        self.key = self.key or key
        return self
