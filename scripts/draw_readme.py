"""Draws docs/images/packer.svg, the picture of README.md: a folder, the pack of it, and images per second in training.

The folder and the pack are real: they are drawn and built here. The figures are those of docs/benchmarks.md.
"""

from __future__ import annotations

import base64
import re
import tempfile
from pathlib import Path

from packer import BuildOptions, build_pack
from packer.errors import size_text
from packer.sources.synthetic import draw_sample

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "docs" / "images" / "packer.svg"
COUNT, SIDE = 1500, 64
ROW = "JPEG, against an ImageFolder-like loop"

# a card of its own color, so that it is readable on a white and on a black page
HEAD = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1200 330" fill="#1b2733"
 font-family="ui-sans-serif, system-ui, sans-serif">
<title>A folder, the pack of it, and images per second in training</title>
<rect x="1" y="1" width="1198" height="328" rx="14" fill="#f7f9fb" stroke="#9aa8b5"/>
<path d="M378 165h26m-8-8 8 8-8 8M778 165h26m-8-8 8 8-8 8" fill="none" stroke="#5b6b7a" stroke-width="3"/>
"""
GRAY, TEAL = "#8a97a5", "#00796b"


def text(x: float, y: float, words: str, size: int = 15, more: str = "") -> str:
    """Return a line of text."""
    return f'<text x="{x}" y="{y}" font-size="{size}" {more}>{words}</text>\n'


def folder_panel(source: Path) -> str:
    """Draw the classes of a folder, each with its first images."""
    parts = [text(30, 42, "A folder", 20, 'font-weight="600"')]
    parts.append(text(30, 66, f"{COUNT:,} files, opened and decoded in every epoch", 14, 'fill="#44525f"'))
    for row, name in enumerate(sorted(path.name for path in source.iterdir())):
        y = 88 + 56 * row
        parts.append(text(30, y + 30, f"{name}/", 15, 'font-family="ui-monospace, monospace"'))
        for column, path in enumerate(sorted((source / name).iterdir())[:4]):
            image = base64.b64encode(path.read_bytes()).decode()
            where = f'x="{128 + 58 * column}" y="{y}" width="50" height="50"'
            parts.append(f'<image {where} href="data:image/jpeg;base64,{image}"/>\n')
    return "".join(parts)


def pack_panel(pack: Path) -> str:
    """Draw the files of a pack with their sizes."""
    parts = [text(430, 42, "A pack", 20, 'font-weight="600"')]
    parts.append(text(430, 66, "decoded and resized once, checked, indexed", 14, 'fill="#44525f"'))
    parts.append(
        text(430, 112, f"packer build shapes --resize {SIDE}x{SIDE}", 14, 'font-family="ui-monospace, monospace"')
    )
    for row, path in enumerate(sorted(pack.rglob("*.*"), key=lambda path: -path.stat().st_size)):
        y, name = 136 + 50 * row, path.relative_to(pack).as_posix()
        parts.append(f'<rect x="430" y="{y}" width="320" height="38" rx="6" fill="#d9efec" stroke="{TEAL}"/>\n')
        parts.append(text(444, y + 25, name, 15, 'font-family="ui-monospace, monospace"'))
        parts.append(text(736, y + 25, size_text(path.stat().st_size), 14, 'text-anchor="end"'))
    return "".join(parts)


def figures(page: str) -> tuple[str, str, str, str]:
    """Return how many times, and the images/s of the pack and of the folder, and where that was measured."""
    block = page.partition("<!-- bench_loader -->")[2].partition("<!-- end -->")[0]
    _, ratio, packed, plain = re.findall(rf"^\| {ROW} \|(.*)\|(.*)\|(.*)\|(.*)\|$", block, re.MULTILINE)[0]
    machine = re.findall(r"^\d{4}-\d\d-\d\d: ([^,]+, \d+ cores)", block, re.MULTILINE)[-1]
    return ratio.strip(), packed.strip(), plain.strip(), machine


def figure_panel(page: str) -> str:
    """Draw the images per second from a folder and from a pack, as bars from 0."""
    ratio, packed, plain, machine = figures(page)
    most = float(packed.replace(",", ""))
    parts = [text(830, 42, "Training", 20, 'font-weight="600"')]
    parts.append(text(830, 66, "images/s, photos of 256 px (JPEG), random crop", 14, 'fill="#44525f"'))
    for row, (name, rate, color) in enumerate(
        [("folder, two workers", plain, GRAY), ("pack, two threads", packed, TEAL)]
    ):
        y, width = 100 + 72 * row, 260 * float(rate.replace(",", "")) / most
        parts.append(text(830, y, name))
        parts.append(f'<rect x="830" y="{y + 8}" width="{width:.0f}" height="30" fill="{color}"/>\n')
        parts.append(text(838 + width, y + 29, rate, 16, 'font-weight="600"'))
    parts.append(text(830, 262, f"{ratio} times", 18, f'font-weight="600" fill="{TEAL}"'))
    parts.append(text(830, 286, f"median (lowest to highest), {machine}", 13, 'fill="#44525f"'))
    return "".join(parts)


def main() -> None:
    """Write the picture."""
    with tempfile.TemporaryDirectory() as home:
        source, pack = Path(home, "shapes"), Path(home, "shapes.lmdb")
        draw_sample(str(source), count=COUNT, size=SIDE)
        build_pack(BuildOptions(str(source), str(pack), resize=f"{SIDE}x{SIDE}"))
        panels = folder_panel(source) + pack_panel(pack)
    TARGET.write_text(HEAD + panels + figure_panel((ROOT / "docs" / "benchmarks.md").read_text()) + "</svg>\n")


if __name__ == "__main__":
    main()
