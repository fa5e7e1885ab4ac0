"""Says things on standard output, and knows what to do when nobody takes them."""

from __future__ import annotations

import click

from packer.errors import StorageError


class ReaderGone(Exception):
    """Whoever read our output has left (``packer info x | head -1``): no error of ours."""


def say(text: str) -> None:
    """Print one line. Raises ReaderGone where the pipe is closed, StorageError where the disk is full."""
    try:
        click.echo(text)
    except BrokenPipeError:
        raise ReaderGone from None
    except OSError as error:
        raise StorageError("standard output", error.strerror or str(error)) from None
