"""The entry of the command line: runs a command, and turns its error into one line and an exit code."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType

import click

from packer.errors import EXIT_INTERRUPTED, EXIT_IO, PackerError


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; returns the exit code (docs/cli.md lists them)."""
    from packer.cli import cli

    signal.signal(signal.SIGTERM, _terminated)
    debug = "--debug" in (sys.argv[1:] if arguments is None else arguments)
    try:
        cli.main(arguments, prog_name="packer", standalone_mode=False)
        sys.stdout.flush()
        return 0
    except click.exceptions.Exit as done:
        return done.exit_code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        print("packer: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # whoever read our output has gone (`packer info x | head`): not our error, nothing more to say
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_IO
    except PackerError as error:
        if debug:
            raise
        print(f"packer: {error}", file=sys.stderr)
        return error.exit_code
    except Exception as error:
        if debug:
            raise
        print(f"packer: {type(error).__name__}: {error}; this is a bug: run again with --debug", file=sys.stderr)
        return 70  # EX_SOFTWARE of sysexits.h


def _terminated(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)  # unwinds: an unfinished build is removed


if __name__ == "__main__":
    sys.exit(main())
