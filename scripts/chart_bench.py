"""Makes docs/images/bench.png: the top of the page that `packer bench FOLDER --report` writes, in a real browser.

scripts/chart_bench.py FOLDER [OUT]     FOLDER: images of your own; without one, drawn images. Needs a quiet machine
"""

from __future__ import annotations

import argparse
import io
import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "view"))

import looking  # noqa: E402
from PIL import Image  # noqa: E402

WIDTH = 860


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("out", nargs="?", type=Path, default=ROOT / "docs" / "images" / "bench.png")
    given = parser.parse_args()
    if looking.missing():
        sys.exit(looking.missing())
    with tempfile.TemporaryDirectory() as folder:
        source = [] if given.folder is None else [str(given.folder)]
        command = [sys.executable, "-m", "packer", "bench", *source, "--report", folder]
        done = subprocess.run(command, check=False)
        if done.returncode:
            return done.returncode
        if not json.loads(Path(folder, "report.json").read_text("utf-8"))["reliable"]:
            sys.exit("the figures are unreliable, so no picture was made")
        with looking.browser(WIDTH, 700) as page:
            page.goto(Path(folder, "index.html").as_uri())
            end = page.evaluate("document.getElementById('speed').getBoundingClientRect().bottom")
            shot = page.screenshot(clip={"x": 0, "y": 0, "width": WIDTH, "height": end + 16}, full_page=True)
        given.out.parent.mkdir(parents=True, exist_ok=True)
        Image.open(io.BytesIO(shot)).convert("RGB").quantize(128).save(given.out, optimize=True)
        print(given.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
