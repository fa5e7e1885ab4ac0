"""Puts the output of a benchmark between its markers in docs/benchmarks.md; scripts/bench_all.sh calls it.

scripts/write_benchmarks.py bench_build OUTPUT
scripts/write_benchmarks.py --peers                the tables of docs/peers from that page, as after bench_peers
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from packer.bench.options import machine

PAGE = Path(__file__).resolve().parent.parent / "docs" / "benchmarks.md"
PEERS = {
    "torchvision": ("ImageFolder of torchvision", "torchvision"),
    "ffcv": ("FFCV", "ffcv"),
    "webdataset": ("webdataset", "webdataset"),
    "streaming": ("Streaming", "mosaicml-streaming"),
    "litdata": ("LitData", "litdata"),
    "dali": ("DALI", "nvidia-dali-cuda120"),
}
"""By name in scripts/bench_peers.py: what a reader calls it, and its distribution."""
HOW = "[How it is measured](../benchmarks.md#other-loaders-scriptsbench_peerspy), and what each loader does"


def written(page: str, name: str, text: str) -> str:
    """Return the page with `text` between the markers of `name`.

    Raises:
        ValueError: If the page does not have these markers exactly once.
    """
    pattern = re.compile(rf"(<!-- {re.escape(name)} -->\n).*?(<!-- end -->)", re.DOTALL)
    result, count = pattern.subn(lambda match: match[1] + text.strip() + "\n\n" + match[2], page)
    if count != 1:
        raise ValueError(f"{PAGE.name} has {count} pairs of markers for {name}")
    return result


def measured_on() -> str:
    """Return date, machine and versions in one line."""
    facts = machine()
    versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    memory = facts["memory_bytes"] / 2**30
    return f"{facts['date']}: {facts['processor']}, {facts['cores']} cores, {memory:.0f} GiB; {versions}."


def peer_table(page: str, peer: str) -> str:
    """Return the figures of packer and of one other loader, of the tables that bench_peers has put into the page."""
    block = page.partition("<!-- bench_peers -->")[2].partition("<!-- end -->")[0]
    rows, version = [], ""
    for table in re.findall(r"(?:^\|.*\n)+", block, re.MULTILINE):
        cells = [[cell.strip() for cell in line.strip("|\n ").split("|")] for line in table.splitlines()]
        by_name = {row[0].strip("*"): row for row in cells}
        if peer in by_name:
            _, versions, _, ratio, rate = by_name[peer]
            version = re.findall(rf"{PEERS[peer][1]} (\S+)", versions)[0]
            median, spread = ratio.replace("*", "").split(" ", 1)
            ratio = f"**{median}** {spread}" if float(median) < 1 else f"{median} {spread}"
            rows.append(f"| {cells[0][0]} | {by_name['packer'][4]} | {rate} | {ratio} |")
    head = f"| images/s on two cores | packer | {PEERS[peer][0]} {version} | packer against it |\n|---|---|---|---|"
    facts = re.findall(r"^(\d{4}-\d\d-\d\d: [^;]+);", block, re.MULTILINE)[-1]
    return "\n".join([head, *rows, "", f"{facts}. {HOW}. Bold: packer is slower."])


def with_figures(text: str, page: str) -> str:
    """Return the text of a page of docs/peers with the figures of `page` between its markers."""
    pattern = re.compile(r"(<!-- figures: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
    return pattern.sub(lambda match: f"{match[1]}{peer_table(page, match[2])}\n\n{match[3]}", text)


def write_peers() -> None:
    """Renew the figures in docs/peers."""
    for path in sorted((PAGE.parent / "peers").glob("*.md")):
        path.write_text(with_figures(path.read_text("utf-8"), PAGE.read_text("utf-8")), "utf-8")


def main() -> None:
    if sys.argv[1:] == ["--peers"]:
        return write_peers()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name")
    parser.add_argument("output", type=Path)
    given = parser.parse_args()
    text = given.output.read_text("utf-8")
    if "|" not in text:
        sys.exit(f"{given.name} has printed no table: {PAGE.name} stays as it is")
    page = written(PAGE.read_text("utf-8"), given.name, f"{text}\n{measured_on()}")
    PAGE.write_text(page, "utf-8")
    if given.name == "bench_peers":
        write_peers()


if __name__ == "__main__":
    main()
