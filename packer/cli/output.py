"""Output of the commands: lines, tables and progress bars."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import wraps
from typing import Any

import click

from packer.errors import StorageError, UsageError, size_text, time_text
from packer.model.annotation import Progress
from packer.stores import is_url


class ReaderGone(Exception):
    """The reader of the output has gone (``packer info x | head -1``), which is not an error."""


def echo(text: str) -> None:
    """Print one line on standard output.

    Args:
        text: The line.

    Raises:
        ReaderGone: The pipe is closed.
        StorageError: The disk is full.
    """
    _print(color_first_word(text, sys.stdout) + "\n")


def echo_bytes(data: bytes) -> None:
    """Print bytes as they are on standard output. Raise the errors of `echo`."""
    _print(data)


def _print(content: str | bytes) -> None:
    try:
        click.echo(content, nl=False)
    except BrokenPipeError:
        raise ReaderGone from None
    except OSError as error:
        raise StorageError("standard output", error.strerror or str(error)) from None


def echo_error(text: str, colored: bool = True) -> None:
    """Print one line on standard error, with the name of the program before it; red and yellow if it may be colored."""
    click.echo(f"packer: {color_first_word(text, sys.stderr) if colored else text}", err=True)


def echo_step(text: str, colored: bool = True) -> None:
    """Print the next step after an error, on a line of its own."""
    line = f"try: {text}"
    click.echo(color_first_word(line, sys.stderr) if colored else line, err=True)


STYLES: dict[str, dict[str, Any]] = {
    "error:": {"fg": "red", "bold": True},
    "warning:": {"fg": "yellow", "bold": True},
    "note:": {"fg": "yellow"},
    "rejected:": {"fg": "yellow"},
    "try:": {"fg": "green", "bold": True},
}
"""First word of a line -> its style on a terminal."""


def has_colors(stream: Any) -> bool:
    """Return whether to color what is printed there: on a terminal, unless NO_COLOR is set (https://no-color.org)."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return stream is not None and bool(stream.isatty())


def color_first_word(text: str, stream: Any) -> str:
    """Return a line with its first word colored, if it has a style and `stream` has colors."""
    word, space, rest = text.partition(" ")
    style = STYLES.get(word)
    return text if style is None or not has_colors(stream) else click.style(word, **style) + space + rest


def flush_output() -> None:
    """Flush standard output. Raise ReaderGone if the pipe is closed."""
    if sys.stdout is not None:  # None if the caller has closed it
        try:
            sys.stdout.flush()
        except BrokenPipeError:
            raise ReaderGone from None


def drop_output() -> None:
    """Discard the rest of standard output, so that Python does not try to write it again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def table_text(rows: Sequence[Sequence[str]], right: Collection[int] = ()) -> list[str]:
    """Return the lines of a table.

    Args:
        rows: The cells; the first row is the header.
        right: Indices of right-aligned columns.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = zip(row, widths, strict=True)
        padded = (c.rjust(width) if i in right else c.ljust(width) for i, (c, width) in enumerate(cells))
        lines.append("  ".join(padded).rstrip())
    return lines


def shortened(lines: Sequence[str], most: int, where: str = "--json") -> list[str]:
    """Return the first lines, and one that says how many more there are, and where all are listed."""
    more = len(lines) - most
    return [*lines[:most], f"... and {more} more ({where} lists all)"] if more > 0 else list(lines)


def counts_text(counts: Mapping[str, int]) -> str:
    """Return the counts of a build's inputs: ``found = packed + rejected + skipped``."""
    found, *parts = (f"{counts[name]:,} {name}" for name in ("found", "packed", "rejected", "skipped"))
    return f"{found} = {' + '.join(parts)}"


class LocalPath(click.Path):
    """A path on this machine. A URL is refused: it would become a folder named ``s3:``."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path. Raise UsageError if it is a URL."""
        if is_url(value):
            raise UsageError(value, "is a URL, and this must be a path on this machine", "choose a local path")
        return super().convert(value, param, ctx)


LINE_EVERY_S = 30.0


class ProgressBar(Progress):
    """Shows a bar for each stage on standard error, and prints notes on standard output.

    If standard error is not a terminal but a pipe or the log of a CI job, a line every 30 seconds takes the place of
    the bar. Use it in a ``with`` statement, so that no incomplete bar stays on the terminal.

    Args:
        hidden: Show nothing at all.
    """

    def __init__(self, hidden: bool = False) -> None:
        self._hidden = hidden
        self._bar: Any = None
        self._bad = self._done = 0
        self._printed_s = time.monotonic()

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Wipe the bar."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def stage(self, name: str, total: int | None = None, unit: str = "images") -> None:
        """Begin a new bar."""
        from tqdm import tqdm

        self.close()
        self._bad = self._done = 0
        self._name, self._total, self._unit, self._began_s = name, total, unit, time.monotonic()
        disabled = self._hidden or sys.stderr is None or not sys.stderr.isatty()
        self._prints = disabled and not self._hidden and sys.stderr is not None
        in_bytes = unit == "bytes"
        self._bar = tqdm(
            desc=name,
            total=total,
            unit="B" if in_bytes else f" {unit}",
            unit_scale=in_bytes,
            disable=disabled,
            leave=False,
        )

    def advance(self, done: int, bad: int = 0) -> None:
        """Move the bar."""
        if self._bar is None:
            return
        self._bad += bad
        if self._bad:
            self._bar.set_postfix_str(f"{self._bad} bad", refresh=False)
        self._bar.update(done)
        self._done += done
        if self._prints and time.monotonic() - self._printed_s >= LINE_EVERY_S:
            self._printed_s = time.monotonic()
            with suppress(OSError):  # nobody reads it
                echo_error(self._line())

    def _line(self) -> str:
        """Return the state of the stage: ``packing: 12,000 of 60,000 images (20%), 410 images/s, 1 min 57 s left``."""
        rate = self._done / max(time.monotonic() - self._began_s, 1e-9)
        text, unit = (size_text, "") if self._unit == "bytes" else ("{:,.0f}".format, f" {self._unit}")
        if self._total:
            parts = [f"{text(self._done)} of {text(self._total)}{unit} ({self._done / self._total:.0%})"]
        else:
            parts = [f"{text(self._done)}{unit}"]
        parts.append(f"{text(rate)}{unit}/s")
        if self._total and self._total > self._done > 0:
            parts.append(f"about {time_text((self._total - self._done) / rate)} left")
        if self._bad:
            parts.append(f"{self._bad:,} bad")
        return f"{self._name}: {', '.join(parts)}"

    def note(self, text: str) -> None:
        """Print a line."""
        if self._hidden:
            return
        if self._bar is not None:
            self._bar.clear()
        try:
            echo(text)
        except ReaderGone:
            self._hidden = True  # a closed terminal must not stop the work


Told = tuple[Mapping[str, Any], Iterable[str]]
"""What a command has to say: as JSON values, and as lines."""


def telling(json_help: str = "Print one JSON object.") -> Callable[[Callable[..., Told]], Callable[..., None]]:
    """Return the decorator of a command that shows its progress, and then says what it returns.

    It gives the command the options ``--quiet`` and ``--json``, and the argument `progress`.
    """

    def decorated(command: Callable[..., Told]) -> Callable[..., None]:
        @click.option("--quiet", is_flag=True, help="Print only errors.")
        @click.option("--json", "as_json", is_flag=True, help=json_help)
        @wraps(command)
        def tell(*arguments: Any, quiet: bool, as_json: bool, **given: Any) -> None:
            with ProgressBar(hidden=quiet or as_json) as progress:
                facts, lines = command(*arguments, progress=progress, **given)
                progress.close()
                for line in lines:
                    progress.note(line)  # not `echo`: the work is done even if nobody reads this
            if as_json:
                echo(json.dumps(facts))

        return tell

    return decorated


def as_typed(text: str, given: Sequence[str]) -> str:
    """Return a text with the paths as they were typed: many are resolved, as the library passes them to workers."""
    here = os.path.join(os.getcwd(), "")
    values = [part for word in given for part in (word, word.partition("=")[2], word.partition(":")[2]) if part]
    if any(value.startswith(here) for value in values):
        return text  # absolute ones were typed, too
    for value in sorted(values, key=len, reverse=True):
        if not value.startswith(("-", "/")) and value.strip("./"):
            path = re.escape(os.path.abspath(value))
            text = re.sub(rf"(?<![\w./-]){path}(?![\w.-])", (value.rstrip("/")).replace("\\", r"\\"), text)
    return re.sub(rf"(?<![\w./-]){re.escape(here)}(?=[^\s/])", "", text) if here != "/" else text
