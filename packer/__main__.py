"""The command line, as `packer` and as `python -m packer`."""

from packer.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
