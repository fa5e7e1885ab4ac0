"""Makes docs/images/view.png: the page of `packer view` in a real browser.

scripts/screenshot_view.py FOLDER [OUT]     of a folder of labelled images; without one, of drawn images
"""

from __future__ import annotations

import argparse
import io
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "view"))

import looking  # noqa: E402
from PIL import Image  # noqa: E402

from packer import BuildOptions, build_pack  # noqa: E402
from packer.sources.synthetic import draw_sample  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("out", nargs="?", type=Path, default=ROOT / "docs" / "images" / "view.png")
    given = parser.parse_args()
    if looking.missing():
        sys.exit(looking.missing())
    with tempfile.TemporaryDirectory() as folder:
        source = given.folder or Path(folder, "shapes")
        if given.folder is None:
            draw_sample(source, layout="voc", count=400, size=200)
        pack = Path(folder, f"{source.name}.lmdb")
        build_pack(BuildOptions(source, pack, encode="jpeg", resize="320", boxes="drop", max_bad="5%"))
        with looking.served(pack) as served, looking.browser(1280, 680) as page:
            page.goto(served.url)
            page.wait_for_function(looking.FILLED)
            given.out.parent.mkdir(parents=True, exist_ok=True)
            shot = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
            shot.quantize(256).save(given.out, optimize=True)  # a third of the size
    print(given.out)


if __name__ == "__main__":
    main()
