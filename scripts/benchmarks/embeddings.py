"""The map of a pack of embeddings in a real browser, and what is found in them: a million of 768 numbers, float16.

Map: a new server and a new browser page; from the click on the tab until all points are drawn. Frames: while it is
zoomed and moved, the time of a frame in JavaScript. Similar: the nearest records of one, all compared. Neighbors:
those of all, in a process of its own, and the share of the true 10 nearest that is found, of RECALL records. The file
was just written, so it is in the page cache.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from large_packs import large_pack
from looking import browser, missing, served

from benchmarks.common import Table, figures, in_new_process
from packer import attach, open_pack
from packer.bench.measure import Figure, seconds_of

CLUSTERS, RECALL, FRAMES = 200, 200, 60
MOVED = """async (frames) => {
  const map = document.getElementById("map-canvas").scatter;
  map.frames.length = 0;
  for (let n = 0; n < frames; n += 1) {
    map.zoom(n < frames / 2 ? 1.06 : 1 / 1.06); map.pan(3, 1);
    await new Promise(requestAnimationFrame);
  }
  return map.frames.sort((a, b) => a - b)[Math.floor(map.frames.length / 2)];
}"""
PROGRAM = """
import sys, time, resource
import numpy as np
from packer import open_pack
from packer.stats.embeddings import Embedding
from packer.stats.neighbors import highest, neighborhoods
embedding = Embedding(open_pack(sys.argv[1]), "clip")
begun = time.perf_counter()
embedding.similar(7, 12)
similar = time.perf_counter() - begun
begun = time.perf_counter()
found = neighborhoods(embedding)
seconds = time.perf_counter() - begun
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
count = min(int(sys.argv[2]), embedding.records)
some = np.sort(np.random.default_rng(0).choice(embedding.records, count, replace=False))
queries, _ = embedding.of(some)
scores = np.empty((len(some), embedding.records), np.float32)
for block, made in embedding.in_blocks(lambda vectors, known: queries @ vectors.T):
    scores[:, block] = made
scores[np.arange(len(some)), some] = -np.inf
its, _ = highest(scores, found.records.shape[1])
share = np.mean([len(set(a) & set(b)) / len(a) for a, b in zip(its.tolist(), found.records[some].tolist())])
print(similar, seconds, peak, share)
"""


def embedded_pack(home: Path, records: int, dimensions: int) -> Path:
    """Make a pack of tiny images with an embedding: clusters in 48 dimensions, turned, and noise in all."""
    shards = max(1, records // 100_000)
    path: Path = large_pack(home / "embedded", shards, records // shards, 8)
    random = np.random.default_rng(0)
    centers = random.normal(size=(CLUSTERS, 48)).astype(np.float32)
    turn = random.normal(size=(48, dimensions)).astype(np.float32) * (np.arange(1, 49)[:, None] ** -0.4)
    rows = np.lib.format.open_memmap(home / "clip.npy", "w+", np.float16, (records // shards * shards, dimensions))
    for at in range(0, len(rows), 50_000):
        count = len(rows[at : at + 50_000])
        places = centers[random.integers(0, CLUSTERS, count)] + 0.7 * random.standard_normal((count, 48))
        rows[at : at + count] = places @ turn + 0.5 * random.standard_normal((count, dimensions), dtype=np.float32)
    rows.flush()
    attach(path, home / "clip.npy", "clip")
    return path


def shown(path: Path) -> tuple[float, float]:
    """Return the seconds until the map is drawn, and the median milliseconds of a frame that moves it."""
    with served(path) as server, browser() as page:
        page.goto(server.url)
        page.wait_for_selector("#canvas .tile img")

        def until_drawn() -> None:
            page.click("#tab-of-map")
            page.wait_for_selector("#map[data-drawn]", timeout=600_000)
            page.wait_for_function("() => document.getElementById('map-canvas').scatter.frames.length", polling=5)

        return seconds_of(until_drawn), page.evaluate(MOVED, FRAMES)


def options(parser: Any) -> None:
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--dimensions", type=int, default=768)


def run(given: Any) -> None:
    path = embedded_pack(given.home, given.records, given.dimensions)
    table = Table.of_figures(f"{len(open_pack(path)):,} records, {given.dimensions} numbers each")
    if missing():
        print(f"The page was not measured: {missing()}.")
    else:
        seconds, frames = zip(*(shown(path) for _ in range(given.rounds)), strict=True)
        table.figure("map, s", Figure(seconds), 10)
        table.figure("frame while it moves, ms", Figure(frames), 33, 1)
    similar, found, peak, share = figures(in_new_process(PROGRAM, path, RECALL) for _ in range(1))
    table.figure("similar records of one, s", similar)
    table.figure("10 nearest of all, s", found, digits=0)
    table.figure("share of the true ones", share, digits=3)
    table.figure("memory at its peak, with the mapped file, MB", peak, digits=0)
