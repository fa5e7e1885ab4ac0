"""Packs at URLs: readers that are killed, disks that are full, and a store at its worst."""

from __future__ import annotations

import errno
import random
import shutil
import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from fault_proxy import Asked, Fault, FaultProxy
from packs import needs_cache
from torture_remote import REFUSED, RIGHT, Job, build, foreign

pytest.importorskip("obstore", reason="needs obstore (packer[remote])")

from packer import open_pack
from packer.errors import DamagedPack
from packer.format.manifest import read_manifest
from packer.stores.sparse import EXTENT, HEADER, NAME

pytestmark = needs_cache
BLOCK = 1 << 20
KILLS = 200
EVICTIONS, CASES_OF_EVICTION = 10_000, 100


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """240 images of 48 KiB in 4 shards of 3 blocks."""
    return build(tmp_path_factory.mktemp("remote"), 240, 128, 60 * 128 * 128 * 3)


@pytest.fixture
def server(pack: Path) -> Iterator[FaultProxy]:
    """A web server of the pack's folder."""
    with FaultProxy(pack) as made:
        yield made


def fresh(folder: Path) -> Path:
    """An empty cache folder, of which the one before is gone."""
    shutil.rmtree(folder / "cache", ignore_errors=True)
    (folder / "cache").mkdir()
    return folder / "cache"


def test_kills_while_filling(server: FaultProxy, pack: Path, tmp_path: Path, torture) -> None:
    """A process that is killed while it fills the cache leaves nothing wrong, and nobody waits for it."""

    def run(number: int) -> str:
        server.clear()
        server.seed = number
        server.faults = [Fault("delay", seconds=0.03 * 2**k, share=0.5, path="shard") for k in range(3)]
        dice = random.Random(f"{torture.seed} {number}")
        cache = fresh(tmp_path)
        intact = foreign(cache)
        jobs = [Job(server.url, cache, pack, seed) for seed in range(3)]
        first, beside = jobs[0].start(), jobs[1].start()
        enough = dice.randrange(len(blocks_of(pack)))
        while len(fetched_blocks(server)) < enough and first.exitcode is None:
            time.sleep(0.001)
        first.kill()
        there = len(fetched_blocks(server))
        killed = jobs[0].end(first)
        assert jobs[1].end(beside) == RIGHT
        fetched = sum(server.reads("shard").values())
        assert jobs[2].end(jobs[2].start()) == RIGHT
        assert sum(server.reads("shard").values()) == fetched, "what was whole was fetched again"
        intact()
        if killed != -9:
            return "had ended"
        return "killed while filling" if there < len(blocks_of(pack)) else "killed when all was there"

    outcomes = torture.each([(number,) for number in range(KILLS)], run, 1)
    assert not torture.sliced or sum(outcomes.values()) == 1


def test_a_full_disk(server: FaultProxy, pack: Path, tmp_path: Path, torture) -> None:
    """A disk that refuses a write, or all from then on: an error or the right images, and all is right afterwards."""

    def run(error: str, after: int, when: str) -> str:
        cache = fresh(tmp_path)
        intact = foreign(cache)
        full = Job(server.url, cache, pack, 0, faults=(after, when == "once", getattr(errno, error)))
        code = full.end(full.start())
        assert code == RIGHT or "disk" in full.log.read_text(), full.log.read_text()
        again = Job(server.url, cache, pack, 1)
        assert again.end(again.start()) == RIGHT
        intact()
        return "refused" if code == REFUSED else "read"

    cases = list(product(("ENOSPC", "EIO", "EDQUOT"), range(28), ("once", "ever")))
    torture.each(cases, run, 1)


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """24 images of nearly 1 MiB in as many shards of one block."""
    return build(tmp_path_factory.mktemp("shards"), 24, 576, 576 * 576 * 3)


def test_evictions_while_reading(shards: Path, tmp_path: Path, torture) -> None:
    """Two processes of two threads read at random what hardly fits: the right images, and nothing else is removed."""
    local = read_manifest(str(shards))

    def run(number: int) -> str:
        cache = fresh(tmp_path)
        intact = foreign(cache)
        with FaultProxy(shards) as server:
            jobs = [
                Job(server.url, cache, shards, 2 * number + one, records=80, cache_bytes="12MB") for one in range(2)
            ]
            ends = [job.end(process) for job, process in [(job, job.start()) for job in jobs]]
        assert ends == [RIGHT, RIGHT], [job.log.read_text() for job in jobs]
        intact()
        content = next((cache / "packs").glob(f"{local.digest[:16]}-*/{NAME}")).read_bytes()
        evictions = int(np.frombuffer(content, EXTENT, len(local.shards), HEADER.size)["generation"].sum())
        assert evictions >= EVICTIONS // CASES_OF_EVICTION
        return f"{EVICTIONS // CASES_OF_EVICTION} evictions or more"

    torture.each([(number,) for number in range(CASES_OF_EVICTION)], run, 1)


def fetched_blocks(server: FaultProxy) -> set[tuple[str, int]]:
    """The blocks that were sent so far, while others are in progress."""
    found = set()
    for one in [answer.asked for answer in list(server.answers) if answer.sent]:
        if "shard" in one.path and not one.path.endswith(".arrow"):
            stop = one.stop or Path(server.upstream, one.path.lstrip("/")).stat().st_size  # no range: all of it
            found.update((one.path, block) for block in range((one.start or 0) // BLOCK, -(-stop // BLOCK)))
    return found


def blocks_of(pack: Path) -> list[tuple[str, int]]:
    """Every block of the containers of a pack: (name, number)."""
    containers = [shard.container for shard in read_manifest(str(pack)).shards]
    return [(file.name, block) for file in containers for block in range(-(-file.bytes // BLOCK))]


def test_flipped_bits_of_every_block(server: FaultProxy, pack: Path, tmp_path: Path, torture) -> None:
    """A bit that is wrong once is not seen; one that stays wrong is an error with the record's name."""
    local = open_pack(pack)

    def run(name: str, block: int, when: str) -> str:
        server.clear()
        cache = fresh(tmp_path)

        def is_of_blocks(asked: Asked) -> bool:  # the second time a record is asked for by itself
            return when == "ever" or (asked.start or 0) % BLOCK == 0

        remote = open_pack(server.url, cache_dir=cache)
        if when != "on disk":
            within = local.reader.shards[int(name[6:11])].container.bytes
            within = block * BLOCK + 8192, min(within, (block + 1) * BLOCK) - 8192  # not in what LMDB has at its ends
            server.faults = [Fault("flip", path=name, within=within, when=is_of_blocks, times=None)]
        else:
            for i in range(len(local)):
                remote.record(i)
            (file,) = cache.rglob(name)
            with file.open("r+b") as opened:
                dice = random.Random(f"{torture.seed} {name} {block}")
                place = dice.randrange(block * BLOCK, min(file.stat().st_size, (block + 1) * BLOCK))
                opened.seek(place)
                byte = opened.read(1)[0]
                opened.seek(place)
                opened.write(bytes([byte ^ 1 << dice.randrange(8)]))
            remote = open_pack(server.url, cache_dir=cache)
        refused = 0
        for i in range(len(local)):
            try:
                assert bytes(remote.record(i)) == bytes(local.record(i)), f"record {i}"
            except DamagedPack as error:
                assert when == "ever", error
                assert error.key == local.key(i) and name in str(error)
                refused += 1
        assert when == "on disk" or server.struck()["flip"]
        return "an error" if refused else "right"

    torture.each([(*block, when) for block in blocks_of(pack) for when in ("once", "ever", "on disk")], run, 3)


def test_a_store_at_its_worst(server: FaultProxy, pack: Path, tmp_path: Path, torture) -> None:
    """Busy answers, connections that break, cut answers and wrong bytes, in turn and together: the right images."""
    kinds = ("503", "close", "cut", "flip", "shift", "range", "whole")

    def run(seed: int, what: str) -> str:
        server.clear()
        server.seed = seed
        times = {"503": 3, "close": 2, "cut": 2}
        chosen = kinds if what == "all" else (what,)
        share = 0.1 if what == "all" else 0.5
        server.faults = [Fault(kind, share=share, times=times.get(kind, 1), path="shard") for kind in chosen]
        job = Job(server.url, fresh(tmp_path), pack, seed)
        code = job.end(job.start())
        if code == RIGHT:
            return "right"
        problem = job.log.read_text()
        assert {"range", "whole"} & set(chosen) or server.struck()[what] > 1, problem  # twice the same record
        assert problem.startswith(("StorageError", "DamagedPack", "CutAnswer")), problem
        return "an error"

    torture.each(list(product(range(40), (*kinds, "all"))), run, 1)


def test_an_object_that_is_replaced(server: FaultProxy, pack: Path, tmp_path: Path, torture) -> None:
    """From some request on, a shard is another object: an error with its name."""

    def run(name: str, block: int) -> str:
        server.clear()
        remote = open_pack(server.url, cache_dir=fresh(tmp_path))
        local = open_pack(pack)
        last = max(number for file, number in blocks_of(pack) if file == name)
        for i in reversed(range(len(local))):  # nothing is read ahead
            if (place := block_of(local, i)) == (name, block):
                server.faults = [Fault("replaced", path=name)]
            try:
                assert bytes(remote.record(i)) == bytes(local.record(i))
            except DamagedPack as error:
                assert place[0] == name and "was replaced" in str(error) and name in str(error)
                return "an error"
        assert block == last or not server.struck()
        return "right"

    torture.each(blocks_of(pack), run, 2)


def block_of(pack: object, i: int) -> tuple[str, int]:
    """The block in which a record of a local pack ends."""
    shard, _ = pack.reader.locate(i)  # type: ignore[attr-defined]
    start = int(pack.reader.span(i)[1] - pack.reader._starts[shard]) - 1  # type: ignore[attr-defined]
    return pack.reader.shards[shard].container.name, start // BLOCK  # type: ignore[attr-defined]


def test_an_index_that_came_wrong_once(server: FaultProxy, pack: Path, tmp_path: Path) -> None:
    server.faults = [Fault("flip", path=".index.arrow", times=1)]
    assert len(open_pack(server.url, cache_dir=fresh(tmp_path))) == len(open_pack(pack))
    server.faults = [Fault("flip", path=".index.arrow")]
    with pytest.raises(DamagedPack, match="was altered"):
        open_pack(server.url, cache_dir=fresh(tmp_path))
