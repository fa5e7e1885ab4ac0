"""The errors of packer: each names the file, the problem and the next step.

An error is one line: ``cat3.xml: box xmax 120 exceeds width 64; fix the label or pass --boxes clip``. The command line
prints it and exits with the error's ``exit_code``. Library users catch `PackerError`, whose text names the parameter
`boxes` and not the option.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

EXIT_OK = 0
EXIT_BAD_DATA = 1
EXIT_DIFFERENT = 1
"""Of `packer diff`, which has no bad data, as diff and cmp have it."""
EXIT_USAGE = 2
EXIT_IO = 3
EXIT_DAMAGED_PACK = 4
EXIT_INTERRUPTED = 130

SHOWN_REJECTED = 10
OPTION = re.compile(
    r"(?<![\w/\\-])(?<!pip install )(?<!ray start )(?:--(?P<name>[a-z]+(?:-[a-z]+)*)(?![\w-])"
    r"(?:=(?P<value>\"[^\"]*\"|(?:[^\s;,()]|,(?=\S))*[^\s;,():]|))?|SRC\b(?![/\\]))"
)
"""An option in the text of an error as `option` writes it, with its value; not one of other programs, or in a path."""
PARAMETERS = {None: "source", "shard-size": "shard_bytes", "json": "rejected"}
"""Names of options that are not those of the parameters: `None` is SRC; --json lists what `rejected` holds."""

AnyPath = str | bytes | os.PathLike[str]


def printable(path: AnyPath) -> str:
    """Return a path as one safe line of text, with control characters and undecodable bytes backslash-escaped.

    A file name may contain terminal escapes and line breaks, which must not reach the terminal.
    """
    text = os.fsdecode(path)
    if text.isprintable():
        return text
    escaped = (c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode("ascii") for c in text)
    return "".join(escaped)


def plural(count: int, one: str, many: str = "") -> str:
    """Return the count with its noun: ``1 class``, ``2,000 images``.

    Args:
        count: How many there are.
        one: The noun (or noun and verb) in the singular.
        many: The plural; by default the singular with s or es.
    """
    several = many or one + ("es" if one.endswith(("s", "x")) else "s")
    return f"{count:,} {one if count == 1 else several}"


def size_text(size: float) -> str:
    """Return a size as text: ``1.4 GB`` (powers of 1024, as in ``ls -h``)."""
    for unit in ("bytes", "KB", "MB", "GB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "bytes" or size >= 100 else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TB"


def time_text(seconds: float) -> str:
    """Return a duration as text: ``0.4 s``, ``3 min 20 s``, ``2 h 05 min``."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def add_note(error: BaseException, text: str) -> None:
    """Add a note to an error that is not packer's; Python 3.10 has no notes."""
    add = getattr(error, "add_note", None)
    if add is not None:
        add(text)


def option(name: str, value: object = "") -> str:
    """Return an option as the text of an error names it: ``--fit=pad``.

    The command line shows it as ``--fit pad`` (`as_options`), and Python as ``fit="pad"`` (`as_parameters`).

    Args:
        name: Its name on the command line, or the parameter: ``pad-value`` or ``pad_value``.
        value: What to give; may be empty.
    """
    return f"--{name.replace('_', '-')}{'' if value == '' else f'={value}'}"


def words_of(options: Mapping[str, object]) -> list[str]:
    """Return options as the words of a command line: ``["--fit", "pad", "--overwrite"]``.

    Args:
        options: Name -> its value; True for an option without one, several values for one that is repeated.
    """
    words = []
    for name, value in options.items():
        for one in value if isinstance(value, (list, tuple)) else (value,):
            words += [option(name)] if one is True else [option(name), str(one)]
    return words


def as_options(text: str, arguments: Mapping[str, str] | None = None, attached: Collection[str] = ()) -> str:
    """Return the text of an error as the command line shows it: ``add --fit pad``.

    Args:
        text: The text, with options as `option` writes them.
        arguments: Those that are arguments of the command, and no options -> how its help names them.
        attached: Options whose value is optional, so that it must follow a ``=``.
    """

    def shown(found: re.Match[str]) -> str:
        name, value = found["name"], found["value"]
        if name is None or name in attached:
            return found[0]
        words = (arguments or {}).get(name, option(name))
        return words if value is None else f"{words} {value}"

    return OPTION.sub(shown, text)


def as_parameters(text: str) -> str:
    """Return the text of an error as Python shows it: ``add fit="pad"``. Whole commands stay what they are."""
    parts = text.split("; ")
    return "; ".join(as_options(part) if "packer " in part else OPTION.sub(_parameter, part) for part in parts)


def _parameter(found: re.Match[str]) -> str:
    name, value = PARAMETERS.get(found["name"]) or found["name"].replace("-", "_"), found["value"]
    if not value:  # or a value that is not a word: (x y)*5
        return name if value is None else f"{name} "
    return f'{name}="{value.strip(chr(34))}"'


def _fill_os_error(error: BaseException, problem: str, where: AnyPath | None) -> None:
    if isinstance(error, OSError):
        error.strerror, error.filename = problem, where
    if isinstance(error, FileNotFoundError):
        error.errno = errno.ENOENT


class PackerError(Exception):
    """Base class of all errors that packer raises on purpose.

    Most are also a builtin error that callers catch: ValueError, OSError, FileNotFoundError. Those that are an OSError
    have `strerror` (the problem) and `filename`.
    """

    exit_code = EXIT_BAD_DATA
    _many_lines = False

    def __init__(self, where: AnyPath, problem: str | None = None, next_step: str = "") -> None:
        """Create the error, whose texts name options as `option` does.

        Args:
            where: The file or option.
            problem: What is wrong. None: `where` is the whole text, as when torch's DataLoader recreates a worker's
                error from its text.
            next_step: What to do; may be empty.
        """
        if problem is None:
            where, problem = "", os.fsdecode(where)
            self._many_lines = True  # the worker's traceback is in it
        # `args` holds all arguments, for pickling; OSError would take the first for an error number
        Exception.__init__(self, where, problem, next_step)
        _fill_os_error(self, problem, where or None)
        self.where = where
        self.problem = problem
        self.next_step = next_step

    @property
    def told(self) -> str:
        """What is wrong, without the next step, and with the names of options as on the command line."""
        return self.shown(as_options, with_step=False)

    @property
    def line(self) -> str:
        """The error with its next step, and with the names of options as on the command line."""
        return self.shown(as_options)

    def __str__(self) -> str:
        return self.shown(as_parameters)

    def shown(self, form: Callable[[str], str], with_step: bool = True) -> str:
        """Return the error as one line.

        Args:
            form: Returns a text with the names of options as they are to be shown.
            with_step: Whether the next step follows.
        """
        problem = printable(self.problem)  # it may quote unescaped names or options
        if self._many_lines:
            problem = "\n".join(map(printable, self.problem.split("\n")))
        where = self.shown_where(form)
        text = form("; ".join((problem, printable(self.next_step))) if with_step and self.next_step else problem)
        return f"{where}: {text}" if where else text

    def shown_where(self, form: Callable[[str], str]) -> str:
        """Return the file, which stays as it is, or the option.

        Args:
            form: Returns a text with the names of options as they are to be shown.
        """
        where = printable(self.where)
        return form(where) if where.startswith(option("")) or where == "SRC" else where


class BadInput(PackerError, ValueError):
    """An input that cannot be packed. It is rejected, and the build continues within ``--max-bad``."""

    reason = "bad-input"


class BadImage(BadInput):
    """An image file that cannot be decoded completely or exceeds a limit."""

    reason = "bad-image"


class DecoderCrashed(BadImage):
    """An image file that crashes the process that decodes it."""

    reason = "crashed"


class DecoderHung(BadImage):
    """An image file whose decoding takes longer than ``--decode-timeout``."""

    reason = "timeout"


class NotAnImage(BadImage):
    """The file is not in an image format that packer reads."""

    reason = "not-an-image"


class SeveralFrames(BadImage):
    """An animation, or several pages, with ``--on-animation fail``."""

    reason = "animation"


class BadLabel(BadInput):
    """An invalid annotation: a bad line, a class outside the list, a box outside the image."""

    reason = "bad-label"


class BadPart(BadLabel):
    """A part of another size than its image, or that cannot be read."""

    reason = "bad-part"


class BadMask(BadPart):
    """A mask that is such a part, or that has values that are no class."""

    reason = "bad-mask"


class BadBox(BadLabel):
    """A box outside its image, or without area, with ``--boxes fail``."""

    reason = "bad-box"


class NoLabel(BadLabel):
    """An image without a label (an empty label file is a label: it means "no objects")."""

    reason = "no-label"


class NoImage(BadLabel):
    """A label that names a missing image."""

    reason = "no-image"


class TooManyBad(PackerError):
    """More bad inputs than ``--max-bad`` allows.

    `rejected` are the bad inputs (`packer.format.manifest.Rejected`), sorted by path; at most the first 100,000.
    `reasons` has (reason, number of bad inputs, one of them) for each reason, the most frequent first.
    `remedy` are the options with which the same build packs what is not bad.
    """

    listed_by: Sequence[str] = (option("quarantine", "DIR"), option("json"))
    """Options with which the command lists all bad inputs."""

    def __init__(
        self,
        where: AnyPath,
        problem: str | None = None,
        next_step: str = "",
        rejected: Sequence[Any] = (),
        reasons: Sequence[tuple[str, int, Any]] = (),
        remedy: Sequence[str] = (),
    ) -> None:
        super().__init__(where, problem, next_step)
        self.args = (*self.args, tuple(rejected), tuple(reasons), tuple(remedy))
        self.rejected = tuple(rejected)
        self.reasons = tuple(reasons)
        self.remedy = tuple(remedy)

    def shown(self, form: Callable[[str], str], with_step: bool = True) -> str:
        """Return the error, and the bad inputs by reason: all of them if they are few, else an example of each."""
        return "\n  ".join((super().shown(form, with_step), *self._examples(form)))

    def _examples(self, form: Callable[[str], str]) -> list[str]:
        lines: list[str] = []
        total = sum(count for _, count, _ in self.reasons)
        for reason, count, example in self.reasons:
            if total <= SHOWN_REJECTED:
                lines += [f"{reason}: {_bad_input(r)}" for r in self.rejected if r.reason == reason]
            else:
                several = f"{count:,}, for example " if count > 1 else ""
                lines.append(f"{reason}: {several}{_bad_input(example)}")
        if total > SHOWN_REJECTED:
            lines.append(f"({form(' or '.join(self.listed_by))} lists all of them)")
        return lines


def _bad_input(rejected: Any) -> str:
    return f"{printable(rejected.path)}: {rejected.problem}"


class UsageError(PackerError, ValueError):
    """Options or a source that cannot be used; nothing was done."""

    exit_code = EXIT_USAGE


class PackNotFound(UsageError, FileNotFoundError):
    """The path is not a pack."""


class NotInstalled(UsageError, ImportError):
    """A required library is not installed."""


class StorageError(PackerError, OSError):
    """The disk or its permissions: full, read-only, vanished."""

    exit_code = EXIT_IO

    full: bool = False
    """Whether a file could not be written because the disk is full."""


class WorkerDied(PackerError):
    """A worker process died (killed, out of memory, crashed)."""

    exit_code = EXIT_IO


class DamagedRecordWarning(UserWarning):
    """A record could not be read and was replaced with another one (``PackedLoader(on_error="replace")``)."""


class DamagedPack(PackerError, OSError):
    """A pack, or a file in it, that is missing, truncated, swapped or altered.

    `pack` is its directory, `shard` the name of the shard's container file, `key` that of the record, and `record` its
    number in the pack that was read; each None if it is not known, or if all of them are meant.
    """

    exit_code = EXIT_DAMAGED_PACK

    pack: str | None = None
    shard: str | None = None
    key: str | None = None
    record: int | None = None

    def with_location(self, pack: str, shard: str | None = None, key: str | None = None) -> DamagedPack:
        """Return this error with its pack, shard and record added where it did not have them."""
        self.pack = self.pack or pack
        self.shard = self.shard or shard
        self.key = self.key or key
        return self
