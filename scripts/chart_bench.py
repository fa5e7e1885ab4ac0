"""Makes docs/images/bench.png: the chart of speeds that `packer bench FOLDER --report` draws.

scripts/chart_bench.py FOLDER [OUT]     FOLDER: images of your own; a quiet machine tells more
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", nargs="?", type=Path, default=ROOT / "docs" / "images" / "bench.png")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report")
        command = [sys.executable, "-m", "packer", "bench", str(given.folder), "--report", str(report)]
        done = subprocess.run(command, check=False)
        if done.returncode == 0:
            given.out.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(report / "speed.png", given.out)
            print(given.out)
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
