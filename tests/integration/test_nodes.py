"""Two machines of two ranks each, by torchrun: each fetches its half of a pack; resumed by one process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import ExitStack, suppress
from pathlib import Path

import numpy as np
import pytest
from conftest import ENVIRONMENT, HERE, ROOT
from packs import needs_cache
from running import GUARD_S, until
from store_servers import free_ports

from packer import PackedLoader, open_pack
from packer.samplers import BlockShuffleSampler
from packer.stores.blocks import BlockLayout

sys.path.insert(0, str(HERE.parent / "stores"))

from served import Served


def kill_all(home: Path) -> None:
    """Kill the processes that have been given this folder: torchrun puts each rank into a session of its own."""
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if os.fsencode(home) in (process / "cmdline").read_bytes().split(b"\0"):
                os.kill(int(process.name), signal.SIGKILL)


def run_machines(urls: list[str], home: Path) -> bool:
    """Run torchrun for each machine, with a cache each; return False if another program has taken their port."""
    home.mkdir()
    (port,) = free_ports(1)
    jobs: list[subprocess.Popen[bytes]] = []

    def ended() -> bool:
        codes = [job.poll() for job in jobs]
        return None not in codes or any(codes)  # a machine waits in vain for one that has failed

    with ExitStack() as exits:
        for node, url in enumerate(urls):
            where = ["--nnodes", str(len(urls)), "--node-rank", str(node), "--nproc-per-node", "2"]
            where += ["--master-addr", "127.0.0.1", "--master-port", str(port)]
            command = [sys.executable, "-m", "torch.distributed.run", *where, str(HERE / "node_ranks.py"), url, home]
            variables = {
                **os.environ,
                **ENVIRONMENT,
                "PYTHONPATH": str(ROOT),
                "PACKER_CACHE": str(home / f"cache{node}"),
            }
            log = exits.enter_context((home / f"{node}.log").open("wb"))
            jobs.append(subprocess.Popen(command, env=variables, stdout=log, stderr=log))
            exits.callback(jobs[-1].wait)
            exits.callback(kill_all, home)  # runs before the wait
        until(ended, GUARD_S)
        codes = [job.poll() for job in jobs]
    said = "".join((home / f"{node}.log").read_text(errors="replace") for node in range(len(urls)))
    if any(codes) and "EADDRINUSE" in said:
        return False
    assert codes == [0] * len(urls), f"{codes}\n{said[-6000:]}"
    return True


@needs_cache
def test_two_machines_by_torchrun(numbered_pack: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BlockLayout, "BLOCK_BYTES", 512)
    with Served(numbered_pack) as one, Served(numbered_pack) as other:
        urls, home = [one.url, other.url], tmp_path / "first"
        if not run_machines(urls, home):
            home = tmp_path / "second"
            assert run_machines(urls, home), "two ports were taken"
        fetched = [server.blocks() for server in (one, other)]
    ranks = [json.loads((home / f"{rank}.json").read_text()) for rank in range(4)]
    assert [rank["node"] for rank in ranks] == [0, 0, 1, 1]
    assert all(rank["state"] == ranks[0]["state"] for rank in ranks)

    pack = open_pack(numbered_pack)
    alone = PackedLoader(pack, 8, sampler=BlockShuffleSampler(pack, 3, block=2, window=8, nodes=4), with_index=True)
    by_position = sorted(ranks, key=lambda rank: rank["first"])
    for epoch in range(2):
        shares = zip(*(rank["epochs"][epoch] for rank in by_position), strict=True)
        together = [np.stack(parts, axis=1).ravel().tolist() for parts in shares]
        whole = [records.tolist() for _, _, records in alone]
        assert together == whole[: len(together)] and len(together) == (6, 3)[epoch]
    assert all(set(blocks.values()) == {1} for blocks in fetched)
    assert len(set(fetched[0]) & set(fetched[1])) <= 4  # blocks at the ends of the parts
    parts = [{i for r in ranks if r["node"] == node for b in r["epochs"][0] for i in b} for node in (0, 1)]
    assert len(parts[0]) == len(parts[1]) == 24 and not parts[0] & parts[1]
    resumed = PackedLoader(pack, 8, sampler=BlockShuffleSampler(pack, 3, block=2, window=8, nodes=4), with_index=True)
    resumed.load_state_dict(ranks[3]["state"])
    assert [records.tolist() for _, _, records in resumed] == whole[3:]
