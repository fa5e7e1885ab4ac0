"""How fast `packer view` shows a large pack in a real browser: first page, scrolling to any place, memory.

First page: a new server process is ready and a new browser page shows every tile in sight, timed from the moment at
which the address is asked for. Scroll: from setting the scroll bar to a random place until every tile there shows its
picture. Filter: from choosing a class, and from sorting by the largest box. Memory: of the server process, its own
pages (RssAnon) and all that it maps (Rss, with the pack's pages in the page cache).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from looking import FILLED, browser, missing, served

from benchmarks.common import Table
from packer import BuildOptions, build_pack, open_pack
from packer.bench.measure import Figure, seconds_of
from packer.sources.synthetic import draw_sample

DRAWN = 2000


def large_pack(folder: Path, records: int) -> Path:
    """Build a raw pack of 96x96 images with boxes: few are drawn, the others are links to them."""
    source = folder / "source"
    draw_sample(source, layout="voc", count=min(DRAWN, records), size=110)
    files = [path for path in source.rglob("*") if path.is_file()]
    for number in range(1, -(-records // DRAWN)):
        for path in files:
            link = folder / "source" / f"part{number:03d}" / path.relative_to(source)
            link.parent.mkdir(parents=True, exist_ok=True)
            link.hardlink_to(path)
    out = folder / "view.lmdb"
    build_pack(BuildOptions(str(source), str(out), labels=("voc",), resize="96x96"))
    return out


def milliseconds(work: Callable[[], object], page: Any) -> float:
    """Return how long it takes until every tile in sight shows its picture, after `work`."""

    def until_filled() -> None:
        work()
        page.wait_for_function(FILLED, polling=5)

    return seconds_of(until_filled) * 1000


def memory(pid: int) -> dict[str, float]:
    """Return the memory of the process in MB, by kind."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {line.split(":")[0]: int(line.split()[1]) / 1024 for line in lines if line.startswith(("RssAnon", "VmRSS"))}


GOALS = {"first page, ms": 1000, "scroll, ms": 300, "memory of its own, MB": 300}


def measure(path: Path, rounds: int, scrolls: int) -> dict[str, Figure]:
    """Return each figure, by name; rounds are new servers and browsers."""
    draw = random.Random(0)
    found: dict[str, list[float]] = {}

    def note(name: str, value: float) -> None:
        found.setdefault(name, []).append(value)

    for _ in range(rounds):
        with served(path) as server, browser() as page:
            note("first page, ms", milliseconds(lambda: page.goto(server.url), page))
            for place in [draw.random() for _ in range(scrolls)]:
                note("scroll, ms", milliseconds(partial(scroll, page, place), page))
            note("filter by class, ms", milliseconds(lambda: page.select_option("#class", "1"), page))
            note("sort by largest box, ms", milliseconds(lambda: page.select_option("#sort", "largest-box"), page))
            page.click("[data-tab=statistics]")
            page.wait_for_selector("#charts .card")
            used = memory(server.pid)
            note("memory of its own, MB", used["RssAnon"])
            note("memory with mapped pages, MB", used["VmRSS"])
            page.click("[data-tab=batches]")
            page.wait_for_selector("#batch-grid img")
            note("memory of its own after batches, MB", memory(server.pid)["RssAnon"])
    return {name: Figure(tuple(values)) for name, values in found.items()}


def scroll(page: Any, place: float) -> None:
    """Scroll to `place`, a share of the whole height."""
    page.evaluate(
        "(place) => { const all = document.getElementById('scroller'); all.scrollTop = place * all.scrollHeight; "
        "return new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done))); }",
        place,
    )


def options(parser: Any) -> None:
    parser.add_argument("--pack", type=Path, help="look at this one")
    parser.add_argument("--records", type=int, default=100_000, help="of the drawn pack")
    parser.add_argument("--scrolls", type=int, default=40, help="in each round")


def run(given: Any) -> None:
    if missing():
        print(f"Not measured: {missing()}.")
        return
    path = given.pack or large_pack(given.home, given.records)
    table = Table.of_figures(f"{len(open_pack(path)):,} records")
    for name, figure in measure(path, given.rounds, given.scrolls).items():
        table.figure(name, figure, GOALS.get(name), 0)
