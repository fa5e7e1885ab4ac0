"""The entry of the command line, `packer` and `python -m packer`: quiet also where Ctrl-C comes very early or late."""

from __future__ import annotations

import signal
import sys


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; returns the exit code (docs/cli.md lists them)."""
    try:
        from packer.cli.main import run

        code = run(sys.argv[1:] if arguments is None else arguments)
    except KeyboardInterrupt:  # before `run` could see to it
        print("packer: interrupted", file=sys.stderr)
        code = 130
    if arguments is None:
        from packer.system import ENDING_SIGNALS

        for number in ENDING_SIGNALS:
            signal.signal(number, signal.SIG_IGN)  # all is done but Python's own end
    return code


if __name__ == "__main__":
    sys.exit(main())
