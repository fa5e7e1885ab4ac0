"""How long `packer verify` takes, against reading the files once and hashing them with SHA-256 in one thread.

Packs of 32x32 raw images and of records of about 22 KB (as a JPEG of 256 px has), in each container, in memory.
"""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import Table, against_goal, direct_pack
from packer.bench.measure import take_turns
from packer.containers import CONTAINERS
from packer.format.digests import sha256_of
from packer.format.verify import verify


def hash_all(pack: Path) -> None:
    """Read every file once and hash it."""
    for path in pack.iterdir():
        sha256_of(str(path))


def check(pack: Path) -> None:
    """Verify the pack."""
    assert not verify(pack).problems


def options(parser: Any) -> None:
    parser.add_argument("--records", type=int, default=80_000, help="of 32x32; a fifth of them of 22 KB")


def run(given: Any) -> None:
    table = Table("pack", "goal", "verify / hash", "hash, s", "verify, s")
    random = np.random.default_rng(0)
    sizes = random.integers(18_000, 26_000, given.records // 5).tolist()
    for kind, shape in (("JPEG 256 px", (256, 256, 3)), ("raw 32x32", (32, 32, 3))):
        raw = kind.startswith("raw")
        datas = [random.bytes(size) for size in ([3072] * given.records if raw else sizes)]
        for container in CONTAINERS:
            pack = direct_pack(given.home / "pack", container, datas, shape, raw)
            seconds = take_turns({"hash": partial(hash_all, pack), "verify": partial(check, pack)}, given.rounds)
            shutil.rmtree(pack)
            hashing, checking = seconds["hash"], seconds["verify"]
            cells = against_goal(checking / hashing, 1.2, most=True)
            table.row(f"{kind}, {container}", *cells, f"{hashing.median:.3f}", f"{checking.median:.3f}")
