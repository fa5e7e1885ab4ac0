"""Two machines of two ranks each, by torchrun: each fetches its half of a pack; resumed by one process."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import ENVIRONMENT, HERE, ROOT
from packs import needs_cache

from packer import PackedLoader, open_pack
from packer.samplers import BlockShuffleSampler
from packer.stores.layout import Layout

sys.path.insert(0, str(HERE.parent / "stores"))

from served import Served


@needs_cache
def test_two_machines_by_torchrun(numbered_pack: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Layout, "BLOCK_BYTES", 512)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with Served(numbered_pack) as one, Served(numbered_pack) as other:
        jobs = []
        for node, server in enumerate((one, other)):
            where = ["--nnodes", "2", "--node-rank", str(node), "--nproc-per-node", "2"]
            where += ["--master-addr", "127.0.0.1", "--master-port", str(port)]
            command = [sys.executable, "-m", "torch.distributed.run", *where, HERE / "node_ranks.py"]
            variables = {
                **os.environ,
                **ENVIRONMENT,
                "PYTHONPATH": str(ROOT),
                "PACKER_CACHE": str(tmp_path / str(node)),
            }
            jobs.append(subprocess.Popen([*command, server.url, tmp_path], env=variables))
        assert [job.wait(240) for job in jobs] == [0, 0]
        fetched = [server.blocks() for server in (one, other)]
    ranks = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(4)]
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
